"""The disk of a scripted sidecar, in memory: what outlives a stop or a crash.

It stores what the databases of a sidecar store: the log, the online set, cursors, and
the table of timers.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from secrets import token_hex

from liveness.core.records import Changes, Logged, OnlineRow, Subscription
from liveness.core.table import Entry
from liveness.core.timer_scheduler import Coming, Due, LoadedWindow
from liveness.core.timer_states import RetryPolicy, TimerTransaction


@dataclass(slots=True)
class Disk:
    """The stored state, empty at first."""

    log: str = field(default_factory=lambda: token_hex(8))
    records: list[Logged] = field(default_factory=list)  # from seq 1, trimmed ones too
    first: int = 1  # the first seq that is not trimmed
    online: dict[int, OnlineRow] = field(default_factory=dict)
    cursors: dict[tuple[str, str], int] = field(default_factory=dict)
    timeouts: dict[str, float | None] = field(default_factory=dict)
    in_force: dict[str, float] = field(default_factory=dict)  # by gateway
    clocks: list[Entry] = field(default_factory=list)  # of a planned stop
    timers: dict[int, Due] = field(default_factory=dict)  # by id
    next_timer: int = 1

    @property
    def next_seq(self) -> int:
        """The seq of the next record."""
        return len(self.records) + 1

    # --- writing --------------------------------------------------------------

    def write(self, changes: Changes, policy: RetryPolicy) -> TimerTransaction:
        """Write a batch of changes; return the effect on timers."""
        self.records += changes.records
        for session, row in changes.online.items():
            if row is not None:
                self.online[session] = row
            else:
                self.online.pop(session, None)
        timers = (
            [timer for timer, _ in self.timers.values()] if changes.commands else []
        )
        transaction = TimerTransaction(changes.commands, timers, policy)
        payloads = {new.timer.id: new.payload for new in transaction.added}
        for timer in transaction.changed:
            is_new = timer.id in payloads
            payload = payloads[timer.id] if is_new else self.timers[timer.id].payload
            self.timers[timer.id] = Due(timer, payload)
            self.next_timer = max(self.next_timer, timer.id + 1)
        return transaction

    def trim(self) -> Counter[str]:
        """Remove all records and ended timers; return how many timers, by state."""
        self.first = self.next_seq
        ended = [timer for timer, _ in self.timers.values() if not timer.is_live]
        for timer in ended:
            del self.timers[timer.id]
        return Counter(timer.state for timer in ended)

    # --- reading --------------------------------------------------------------

    def read(
        self, after: int, subscription: Subscription, limit: int
    ) -> tuple[list[Logged], int]:
        """Find records above a seq for a reader; return them and the seq reached."""
        found: list[Logged] = []
        while after < len(self.records) and len(found) < limit:
            record = self.records[after]
            after += 1
            if subscription.wants(record):
                found.append(record)
        return found, after

    def due(self, numbers: Iterable[int]) -> list[Due]:
        """Those of the timers with these ids that are still live."""
        found = [self.timers[number] for number in numbers if number in self.timers]
        return [due for due in found if due.timer.is_live]

    def coming(self, window: LoadedWindow) -> list[Coming]:
        """The timers of a window, earliest first."""
        above = (window.next, window.id)
        coming = sorted(
            (timer.next, timer.id, timer.gateway)
            for timer, _ in self.timers.values()
            if timer.next is not None
            and timer.next <= window.until
            and (timer.next, timer.id) > above
        )
        return [
            Coming(number, gateway, at)
            for at, number, gateway in coming[: window.limit]
        ]

    def moments(self) -> list[int]:
        """When each live timer is next due, or its attempt is over."""
        moments = (timer.next for timer, _ in self.timers.values())
        return [at for at in moments if at is not None]

    def states(self) -> Counter[str]:
        """How many timers there are, by state."""
        return Counter(timer.state for timer, _ in self.timers.values())

    def newest(self, gateway: str, key: str) -> Due | None:
        """The newest timer with this key."""
        found = [
            due
            for due in self.timers.values()
            if (due.timer.gateway, due.timer.key) == (gateway, key)
        ]
        return found[-1] if found else None
