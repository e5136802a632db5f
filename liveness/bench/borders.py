"""A day in the core, in virtual time: what a million do at each border of the wheel.

Those who log in within one second for a day stay together: they come down from layer to
layer at once, hours later, and come due at once. No bench can wait for that. So the core
is driven as the engine drives it, by a clock that is told: it jumps where nothing is to
be done, and it moves on by what a pass really took where something is, so that a pass
that takes long is seen as lateness.
"""

import time
from functools import partial
from typing import Final

from liveness.bench.figures import Figure
from liveness.bench.floors import DECIDED_MS, OTHERS_DECIDED_MS
from liveness.bench.load import BATCH, LoadError, Users, cut
from liveness.bench.progress import Stage
from liveness.bench.verdict import p99_ms
from liveness.build import Wheel
from liveness.core.presence import Presence
from liveness.core.records import Instant, Login
from liveness.service.engine import (
    FIRE_PER_PASS,
    LEAST_SLEEP_S,
)

DAY_S: Final = 86_400
TIMEOUT_S: Final = 30.0  # of everyone else
SLOTS: Final = 30

# Around each border others come due, so many a second, from so long before it and
# until so long after it as the million may keep the wheel busy.
OTHERS_PER_S: Final = 100
AROUND_S: Final = 2.0
BUSY_S: Final = 10.0


def borders(users: int, stage: Stage) -> list[Figure]:
    """Lets *users* log in within a second for a day, and lives through it."""
    day = _Day(Users(users, kind="long"))
    stage("a day in the core", lambda: day.now / DAY_S)
    late_s = [day.watched(*window) for window in _windows()]
    day.until(DAY_S + BUSY_S)
    day.check()
    *poured, due = map(p99_ms, late_s)
    decided, last = max(poured), 1000 * max(map(max, late_s))
    made = partial(Figure, "day", unit="ms")
    return [
        made("core: others decided p99 at a border", decided, most=DECIDED_MS),
        made("core: others decided p99 at the end", due, most=OTHERS_DECIDED_MS),
        made("core: others decided last", last),
        made("core: longest pass", 1000 * day.longest_s),
    ]


def _windows() -> list[tuple[float, float]]:
    """From when until when others come due: around whatever the wheel does with a day.

    Of each layer the slot that holds the end of the day: its border, and the moment
    one slot of the layer below before it, when it is poured. At last the end itself.
    """
    widths, below_s = list[float](), TIMEOUT_S / SLOTS
    while (width_s := TIMEOUT_S * SLOTS ** len(widths)) < DAY_S:
        widths.append(width_s)
    moments = {DAY_S - below_s, DAY_S}
    for width_s in widths:
        border = DAY_S // width_s * width_s
        moments |= {border - below_s, border}
        below_s = width_s
    windows = list[tuple[float, float]]()
    for moment in sorted(moments):
        start, end = moment - AROUND_S, moment + BUSY_S
        if windows and start <= windows[-1][1]:
            start, _ = windows.pop()
        windows.append((start, end))
    return windows


class _Day:
    """The core, its virtual clock, and those who are there for the day."""

    def __init__(self, users: Users) -> None:
        self.now = 0.0
        self.longest_s = 0.0
        self._wheel = Wheel(timeout=TIMEOUT_S, slots=SLOTS)
        self._presence = Presence(
            self._wheel, next_seq=1, timeout=TIMEOUT_S, gateway_hold=60.0, settle=0.0
        )
        self._gateways = [self._presence.gateway(name) for name in ("others", "day")]
        for gateway in self._gateways:
            gateway.linked(ping=None, now=0.0)
        self._due: dict[str, float] = {}
        self._late_s: list[float] = []
        self._is_watched = self._is_busy = False
        for part in cut(range(len(users)), BATCH):
            self.now = part.start / len(users)
            uids = users.uids[part.start : part.stop]
            self._presence.login(
                self._gateways[1],
                Login(uids, [None] * len(uids), DAY_S, 0.0),
                self._at(),
            )
            self._presence.take()

    def watched(self, start: float, end: float) -> list[float]:
        """Live until *end*, from *start* on with others; return how late they were."""
        self.until(start - AROUND_S)
        for number in range(round((end - start) * OTHERS_PER_S)):
            uid = f"{start:.0f}-{number}"
            self._due[uid] = due = start + number / OTHERS_PER_S
            timeout_s = due - self.now
            self._presence.login(
                self._gateways[0], Login([uid], [None], timeout_s, 0.0), self._at()
            )
        self._presence.take()
        self._late_s, self._is_watched = [], True
        while self._due:
            self.now = self._pass()
        self._is_watched = False
        return self._late_s

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
        changes = self._presence.take()
        next_due = self._wheel.next_due()
        took_s = time.perf_counter() - began
        self.longest_s = max(self.longest_s, took_s)
        for record in changes.records:
            if record.uid in self._due:
                self._late_s.append(now + took_s - self._due.pop(record.uid))
        was_busy, self._is_busy = self._is_busy, next_due <= now
        if self._is_busy and not was_busy and not self._is_watched:
            raise LoadError(f"the wheel was busy at {now:,.0f} s, and nobody watched")
        has_more = judged and self._presence.due_gateways()
        wait = LEAST_SLEEP_S if has_more else max(next_due - now, LEAST_SLEEP_S)
        return now + max(wait, took_s)

    def _at(self) -> Instant:
        return Instant(self.now, self.now, round(self.now * 1000))
