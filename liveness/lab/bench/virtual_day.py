"""A day in the core, in virtual time: a million users who log in together for a day.

They stay together: hours later they cascade from layer to layer of the wheel at once, and
come due at once. The question is how much that delays other users. No bench can wait for
it. So the core is driven as the engine drives it, but by a virtual clock. The clock jumps
while there is nothing to do. Otherwise it advances by the time that a pass really took, so
that a slow pass shows as lateness.
"""

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from liveness.compiled import Wheel
from liveness.console.progress import Stage
from liveness.core.back_pressure import FIRE_PER_TURN
from liveness.core.changes import Decisions
from liveness.core.link_requests import Login
from liveness.core.presence import Presence
from liveness.core.records import Instant, Record
from liveness.lab.bench.floors import DECIDED_MS, OTHERS_DECIDED_MS
from liveness.lab.bench.verdict import p99_ms
from liveness.lab.common.figures import Figure
from liveness.lab.common.load import BATCH, LoadError, LoadUsers, cut
from liveness.lab.common.promises import is_early

DAY_S: Final = 86_400
TIMEOUT_S: Final = 30.0  # of the other users
SLOTS: Final = 30

# What adding up a moment and a timeout may lose.
ROUNDING_S: Final = 1e-6

# As of the engine: the shortest sleep after a turn.
LEAST_SLEEP_S: Final = 0.0005

# Other users that come due each second around a border. They log in `LEAD_S` before it, and
# come due until `BUSY_S` after it, the longest that the million keeps the wheel busy.
OTHERS_PER_S: Final = 1_000
LEAD_S: Final = 2.0
BUSY_S: Final = 10.0
# Only users count that are due from this long before a border until this long after the
# wheel is done with it. Among more of them a stall would not show in the 99th percentile.
MARGIN_S: Final = 0.1


def borders(users: int, stage: Stage) -> list[Figure]:
    """Simulates a day of *users* that log in within one second."""
    day = _VirtualDay(LoadUsers(users, kind="long"))
    stage("a day in the core", lambda: day.now / DAY_S)
    *cascades, end = [late_s for window in _windows() for late_s in day.others(window)]
    day.run_until(DAY_S + BUSY_S)
    day.check()
    decided, last = max(map(p99_ms, cascades)), 1000 * max(map(max, cascades))
    figure = partial(Figure, "day", unit="ms")
    return [
        figure("core: others decided p99 at a border", decided, most=DECIDED_MS),
        figure("core: others decided last at a border", last, most=DECIDED_MS),
        figure(
            "core: others decided p99 at the end", p99_ms(end), most=OTHERS_DECIDED_MS
        ),
        figure("core: others decided last at the end", 1000 * max(end)),
        figure("core: longest pass", 1000 * day.longest_s),
    ]


def _windows() -> list[list[float]]:
    """The moments at which the wheel has work with the million, in windows.

    Of each layer, the border of the slot that contains the end of the day, and the moment
    of its cascade, which is one slot of the layer below earlier. Then the end itself.
    Moments close together share a window.
    """
    widths, below_s = list[float](), TIMEOUT_S / SLOTS
    while (width_s := TIMEOUT_S * SLOTS ** len(widths)) < DAY_S:
        widths.append(width_s)
    moments = {DAY_S - below_s, DAY_S}
    for width_s in widths:
        border = DAY_S // width_s * width_s
        moments |= {border - below_s, border}
        below_s = width_s
    windows = list[list[float]]()
    for moment in sorted(moments):
        if windows and moment - LEAD_S - MARGIN_S <= windows[-1][-1] + BUSY_S:
            windows[-1].append(moment)
        else:
            windows.append([moment])
    return windows


class _VirtualDay:
    """The core, its virtual clock, and the users that log in for the day."""

    def __init__(self, users: LoadUsers) -> None:
        self.now = 0.0
        self.longest_s = 0.0
        self._wheel = Wheel(timeout=TIMEOUT_S, slots=SLOTS)
        self._presence = Presence(
            self._wheel,
            decided=Decisions(1, new_batch=Wheel.Batch),
            timeout=TIMEOUT_S,
            gateway_hold=60.0,
            reconnect_grace=0.0,
        )
        self._gateways = [self._presence.gateway(name) for name in ("others", "day")]
        for gateway in self._gateways:
            gateway.linked(ping=None, now=0.0)
        self._due: dict[str, float] = {}
        self._late: list[tuple[float, float]] = []  # others: when due, and how late
        self._busy: list[float] = []  # when passes ended that left work over
        self._is_measuring = self._is_busy = False
        for part in cut(range(len(users)), BATCH):
            self.now = part.start / len(users)
            uids = [users.uid(number) for number in part]
            login = Login(uids, [None] * len(uids), DAY_S, 0.0)
            self._presence.login(self._gateways[1], login, self._at())
            self._presence.decided.take()

    def others(self, moments: Sequence[float]) -> Iterator[list[float]]:
        """Run past *moments* with other users; yields their lateness around each."""
        start, end = moments[0] - MARGIN_S, moments[-1] + BUSY_S
        self.run_until(start - LEAD_S)
        for number in range(round((end - start) * OTHERS_PER_S)):
            uid = f"{start:.0f}-{number}"
            self._due[uid] = due = start + number / OTHERS_PER_S
            login = Login([uid], [None], due - self.now, 0.0)
            self._presence.login(self._gateways[0], login, self._at())
        self._presence.decided.take()
        self.run_until(start)
        self._late, self._busy, self._is_measuring = [], [], True
        while self._due:
            self.now = self._pass()
        self._is_measuring = False
        for moment, following in zip(moments, [*moments[1:], math.inf], strict=True):
            first, last = moment - MARGIN_S, following - MARGIN_S
            done = max((at for at in self._busy if first <= at < last), default=moment)
            last = min(last, max(moment, done) + MARGIN_S)
            yield [late_s for due, late_s in self._late if first <= due < last]

    def run_until(self, end: float) -> None:
        """Make passes until a moment."""
        while self.now < end:
            self.now = min(self._pass(), end)

    def check(self) -> None:
        """Raise if a user is still online."""
        if len(self._presence):
            raise LoadError(f"{len(self._presence)} users are online after their day")

    def _pass(self) -> float:
        """Work as `Engine.turn` does; return the moment of the next pass."""
        now, began = self.now, time.perf_counter()
        self._wheel.advance(now, self._wheel.steps)
        for gateway in self._gateways:
            gateway.empty_at = now
        fired = self._presence.fire(self._at(), limit=FIRE_PER_TURN)
        changes = self._presence.decided.take()
        next_due = self._wheel.next_due()
        took_s = time.perf_counter() - began
        self.longest_s = max(self.longest_s, took_s)
        for record in changes.records:
            assert isinstance(record, Record)
            if record.uid in self._due:
                due = self._due.pop(record.uid)
                if is_early(now, due, ROUNDING_S):
                    raise LoadError(f"decided at {now} s, due at {due} s")
                self._late.append((due, now + took_s - due))
        has_more = bool(fired and self._presence.due_gateways())
        was_busy, self._is_busy = self._is_busy, has_more or next_due <= now
        if self._is_busy or was_busy:
            self._busy.append(now + took_s)
        if self._is_busy and not was_busy and not self._is_measuring:
            raise LoadError(f"the wheel was busy at {now:,.0f} s, outside every window")
        wait = LEAST_SLEEP_S if has_more else max(next_due - now, LEAST_SLEEP_S)
        return now + max(wait, took_s)

    def _at(self) -> Instant:
        return Instant(self.now, self.now, round(self.now * 1000), self.now)
