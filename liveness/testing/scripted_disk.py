"""The disk of a scripted sidecar, in memory: what outlives a stop or a crash."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from secrets import token_hex

from liveness.core.changes import Commit
from liveness.core.cursors import CursorRow, Cursors
from liveness.core.links.outbox import NOTICES_BYTES
from liveness.core.records import Gap, Logged, OnlineRow, Subscription
from liveness.core.timer_states import RETRY_POLICY
from liveness.core.timers.timer_commands import TimerTransaction
from liveness.core.timers.timer_scheduler import (
    Coming,
    Due,
    LoadedWindow,
    TimerScheduler,
)
from liveness.core.wheel.restart import Clocks
from liveness.core.wire.framing import encode

LIST_ROWS = 1_000
FULL = "the disk is full, as the script says"


@dataclass(slots=True)
class ScriptedDisk:
    """What the databases of a sidecar store, and the commits that wait to be written."""

    log: str = field(default_factory=lambda: token_hex(8))
    records: list[Logged] = field(default_factory=list)  # from seq 1, trimmed ones too
    first: int = 1  # the first seq that is not trimmed
    online: dict[int, OnlineRow] = field(default_factory=dict)
    cursors: dict[tuple[str, str], CursorRow] = field(default_factory=dict)
    # Of a planned stop, and the monotonic seconds at it; None after a crash.
    stopped: tuple[Clocks, float] | None = None
    timers: dict[int, Due] = field(default_factory=dict)  # by id
    ancestors: dict[str, int] = field(default_factory=dict)
    failure: str | None = None
    waiting: deque[Commit] = field(default_factory=deque)
    written: int = 0  # the last ticket
    # Nothing is held back while it is full: these bounds are never met.
    records_pending: int = 0
    pending_ends: int = 0
    commands_pending: int = 0
    commands_by_gateway: dict[str, int] = field(default_factory=dict)

    @property
    def durable_seq(self) -> int:
        return len(self.records)

    @property
    def log_ticket(self) -> int:
        """Up to which ticket everything may be sent; while it is full, nothing."""
        return -1 if self.failure else self.written

    def ticket_of(self, _gateway: str) -> int:
        return self.log_ticket

    @property
    def next_timer(self) -> int:
        return max(self.timers, default=0) + 1

    def write(self, cursors: Cursors, scheduler: TimerScheduler) -> None:
        """Write what waits, and report to the scheduler what became of commands."""
        if self.failure:
            return
        for key, cursor in cursors.take_moved().items():
            if cursor is not None:
                self.cursors[key] = cursor
            else:
                self.cursors.pop(key, None)
        while self.waiting:
            changes, self.written, _ = self.waiting.popleft()
            self.records += changes.records
            changes.change_online(self.online)
            live = [timer for timer, _ in self.timers.values()]
            done = TimerTransaction(changes.commands, live, RETRY_POLICY)
            for timer in done.changed:
                known = self.timers.get(timer.id)
                payload = done.payloads[timer.id] if known is None else known.payload
                self.timers[timer.id] = Due(timer, payload)
            scheduler.applied(changes.commands, done)

    def trim(self) -> Counter[str]:
        """Remove all records and ended timers; return how many timers, by state."""
        self.first = self.durable_seq + 1
        ended = [timer for timer, _ in self.timers.values() if not timer.is_live]
        for timer in ended:
            del self.timers[timer.id]
        return Counter(timer.state for timer in ended)

    def read(
        self, after: int, wanted: Subscription, limit: int, wall_ms: int
    ) -> tuple[list[tuple[int, bytes]], int]:
        """Find records above a seq for a reader; return them and the seq reached.

        Each record is its seq and its encoding. Together they have about `NOTICES_BYTES`.
        """
        found: list[tuple[int, bytes]] = []
        if after + 1 < self.first:
            gap = Gap(after + 1, self.first, wall_ms)
            trimmed = self.records[after : gap.seq]
            names = {name for it in trimmed for name in (it.gateway, it.from_gateway)}
            after = gap.seq
            if wanted.gateway is None or wanted.gateway in names:
                return [(gap.seq, encode(gap.as_map()))], after
        size = 0
        while after < len(self.records) and len(found) < limit and size < NOTICES_BYTES:
            record = self.records[after]
            after += 1
            if wanted.wants(record):
                found.append((record.seq, encode(record.as_map())))
                size += len(found[-1][1])
        return found, after

    def listed(self, gateway: str | None) -> bytes:
        """The frames of a list: the sessions of *gateway*; None: all sessions."""
        rows = [
            (row.uid, row.gateway, row.session, row.conn)
            for row in self.online.values()
            if gateway in (None, row.gateway)
        ]
        frames: list[object] = []
        while len(rows) > LIST_ROWS:
            frames.append(["list", rows[:LIST_ROWS]])
            rows = rows[LIST_ROWS:]
        return b"".join(map(encode, [*frames, ["list", rows, self.durable_seq]]))

    def due(self, numbers: Iterable[int]) -> list[Due]:
        """Those of the timers with these ids that are still live."""
        found = [self.timers[number] for number in numbers if number in self.timers]
        return [due for due in found if due.timer.is_live]

    def coming(self, window: LoadedWindow) -> list[Coming]:
        """The timers of a window, earliest first."""
        coming = sorted(
            (timer.next, timer.id, timer.gateway)
            for timer, _ in self.timers.values()
            if timer.next is not None and timer.next <= window.until
        )
        above = [row for row in coming if row[:2] > (window.next, window.id)]
        return [Coming(number, name, at) for at, number, name in above[: window.limit]]

    def moments(self) -> list[int]:
        """When each live timer is next due, or its attempt is over."""
        moments = (timer.next for timer, _ in self.timers.values())
        return [at for at in moments if at is not None]

    def states(self) -> Counter[str]:
        return Counter(timer.state for timer, _ in self.timers.values())
