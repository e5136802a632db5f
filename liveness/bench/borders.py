"""A day in the core, in virtual time: what a million do at each border of the wheel.

Those who log in within one second for a day stay together: they come down from layer to
layer at once, hours later, and come due at once. No bench can wait for that. So the core
is driven as the engine drives it, by a clock that is told: it jumps where nothing is to
be done, and it moves on by what a pass really took where something is, so that a pass
that takes long is seen as lateness.
"""

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from liveness.bench.figures import Figure
from liveness.bench.floors import DECIDED_MS, OTHERS_DECIDED_MS
from liveness.bench.load import BATCH, LoadError, LoadUsers, cut
from liveness.bench.verdict import p99_ms
from liveness.compiled import Wheel
from liveness.console.progress import Stage
from liveness.core.changes import Decisions
from liveness.core.presence import Presence
from liveness.core.records import Instant, Login, Record
from liveness.service.engine.engine import (
    FIRE_PER_PASS,
    LEAST_SLEEP_S,
)

DAY_S: Final = 86_400
TIMEOUT_S: Final = 30.0  # of everyone else
SLOTS: Final = 30

# Around each border others come due, so many a second, who spoke so long before, until
# so long after it as the million may keep the wheel busy. Only those count who are due
# from just before it until just after the wheel is done with it: among more of them a
# stall would be less than a hundredth.
OTHERS_PER_S: Final = 1_000
AROUND_S: Final = 2.0
BUSY_S: Final = 10.0
JUST_S: Final = 0.1


def borders(users: int, stage: Stage) -> list[Figure]:
    """Lets *users* log in within a second for a day, and lives through it."""
    day = _Day(LoadUsers(users, kind="long"))
    stage("a day in the core", lambda: day.now / DAY_S)
    *poured, due = [late_s for window in _windows() for late_s in day.watched(window)]
    day.until(DAY_S + BUSY_S)
    day.check()
    decided, last = max(map(p99_ms, poured)), 1000 * max(map(max, poured))
    made = partial(Figure, "day", unit="ms")
    return [
        made("core: others decided p99 at a border", decided, most=DECIDED_MS),
        made("core: others decided last at a border", last, most=DECIDED_MS),
        made(
            "core: others decided p99 at the end", p99_ms(due), most=OTHERS_DECIDED_MS
        ),
        made("core: others decided last at the end", 1000 * max(due)),
        made("core: longest pass", 1000 * day.longest_s),
    ]


def _windows() -> list[list[float]]:
    """The moments around which others come due: of whatever the wheel does with a day.

    Of each layer the slot that holds the end of the day: its border, and the moment
    one slot of the layer below before it, when it is poured. At last the end itself.
    Moments that lie close together are one window.
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
        if windows and moment - AROUND_S - JUST_S <= windows[-1][-1] + BUSY_S:
            windows[-1].append(moment)
        else:
            windows.append([moment])
    return windows


class _Day:
    """The core, its virtual clock, and those who are there for the day."""

    def __init__(self, users: LoadUsers) -> None:
        self.now = 0.0
        self.longest_s = 0.0
        self._wheel = Wheel(timeout=TIMEOUT_S, slots=SLOTS)
        self._presence = Presence(
            self._wheel,
            decided=Decisions(1),
            timeout=TIMEOUT_S,
            gateway_hold=60.0,
            reconnect_grace=0.0,
        )
        self._gateways = [self._presence.gateway(name) for name in ("others", "day")]
        for gateway in self._gateways:
            gateway.linked(ping=None, now=0.0)
        self._due: dict[str, float] = {}
        self._late: list[tuple[float, float]] = []  # when due, and how late
        self._busy: list[float] = []  # the ends of passes with work left over
        self._is_watched = self._is_busy = False
        for part in cut(range(len(users)), BATCH):
            self.now = part.start / len(users)
            uids = users.uids[part.start : part.stop]
            self._presence.login(
                self._gateways[1],
                Login(uids, [None] * len(uids), DAY_S, 0.0),
                self._at(),
            )
            self._presence.decided.take()

    def watched(self, moments: Sequence[float]) -> Iterator[list[float]]:
        """Live past *moments* with others; give how late those around each were."""
        start, end = moments[0] - JUST_S, moments[-1] + BUSY_S
        self.until(start - AROUND_S)
        for number in range(round((end - start) * OTHERS_PER_S)):
            uid = f"{start:.0f}-{number}"
            self._due[uid] = due = start + number / OTHERS_PER_S
            timeout_s = due - self.now
            self._presence.login(
                self._gateways[0], Login([uid], [None], timeout_s, 0.0), self._at()
            )
        self._presence.decided.take()
        self.until(start)
        self._late, self._busy, self._is_watched = [], [], True
        while self._due:
            self.now = self._pass()
        self._is_watched = False
        for moment, following in zip(moments, [*moments[1:], math.inf], strict=True):
            first, last = moment - JUST_S, following - JUST_S
            done = max((at for at in self._busy if first <= at < last), default=moment)
            last = min(last, max(moment, done) + JUST_S)
            yield [late_s for due, late_s in self._late if first <= due < last]

    def until(self, end: float) -> None:
        """Make passes up to a moment."""
        while self.now < end:
            self.now = min(self._pass(), end)

    def check(self) -> None:
        """Raise if somebody is left."""
        if len(self._presence):
            raise LoadError(f"{len(self._presence)} users outlived their day")

    def _pass(self) -> float:
        """As `Engine.turn` does; return the moment of the next one."""
        now, began = self.now, time.perf_counter()
        self._wheel.advance(now, self._wheel.steps)
        for gateway in self._gateways:
            gateway.empty_at = now
        judged = self._presence.fire(self._at(), limit=FIRE_PER_PASS)
        changes = self._presence.decided.take()
        next_due = self._wheel.next_due()
        took_s = time.perf_counter() - began
        self.longest_s = max(self.longest_s, took_s)
        for record in changes.records:
            assert isinstance(record, Record)
            if record.uid in self._due:
                due = self._due.pop(record.uid)
                self._late.append((due, now + took_s - due))
        has_more = bool(judged and self._presence.due_gateways())
        was_busy, self._is_busy = self._is_busy, has_more or next_due <= now
        if self._is_busy or was_busy:
            self._busy.append(now + took_s)
        if self._is_busy and not was_busy and not self._is_watched:
            raise LoadError(f"the wheel was busy at {now:,.0f} s, and nobody watched")
        wait = LEAST_SLEEP_S if has_more else max(next_due - now, LEAST_SLEEP_S)
        return now + max(wait, took_s)

    def _at(self) -> Instant:
        return Instant(self.now, self.now, round(self.now * 1000))
