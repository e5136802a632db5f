"""What all partitions of a host share: its name, its epoch, and whether it may publish."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

# The pause between two steps of a reap, in any partition: others wait for one step and not
# for one of each partition; and a million users of a lost host among as many others, 4,000
# steps, are gone within 50 s.
REAP_PAUSE_S: Final = 0.01
# Changes in one call: 1.5 ms of Redis' time. A list of all sessions comes in such pieces.
CALL_CHANGES: Final = 500
# Changes that a partition keeps in memory; what is behind is read from the log again.
MOST_QUEUED: Final = 2_000
# Users searched in one step of a reap: others wait 2 ms.
REAP_USERS: Final = 500


def nonce_of(start_ms: int, random: Random) -> int:
    """A number of a process that differs from others, and grows with its start.

    It has 53 bits, as many as a double: 42 of Unix milliseconds, and 11 at random.
    """
    return start_ms << 11 | random.getrandbits(11)


@dataclass(slots=True, kw_only=True)
class HostIdentity:
    """A host as its partitions see it."""

    name: str
    log: str  # the id of its log
    nonce: int  # of this process, from `nonce_of`
    # Above every epoch of an earlier process of this name, as far as is known: the wall
    # clock. If it is not, Redis answers with a higher one.
    epoch: int
    configuration: str  # what Redis compares: hosts with another one are refused
    lease_s: float
    linger_s: float
    keep_s: float
    random: Random  # for tokens and pauses
    on_fenced: Callable[
        [bytes, int], None
    ]  # called with a lost host, and the partition
    may_keep: bool = True  # whether Redis may have its sessions as it would list them
    call_changes: int = CALL_CHANGES
    most_queued: int = MOST_QUEUED
    reap_users: int = REAP_USERS
    newest: int = 0  # the newest seq of the log that is durable
    is_stopped: bool = False  # another process has this name
    may_take: bool = True  # from a process of this name that lives
    why_refused: str = ""  # the configuration that the others have; empty: accepted
    other_lease_s: float = 0.0  # that another host has; 0: none has
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)  # function, answer
    errors: Counter[str] = field(default_factory=Counter)  # by kind
    audit_mismatches: int = 0
    sessions_reaped: int = 0  # of hosts that were lost, or of older incarnations
    _reap_at: float = 0.0

    @property
    def beat_s(self) -> float:
        return self.lease_s / 6

    @property
    def look_s(self) -> float:
        return self.lease_s / 10

    @property
    def contact_gap_s(self) -> float:
        """After so long without an answer, nothing is known of the other hosts."""
        return self.lease_s / 4

    def replaced(self) -> None:
        """Another process of this name publishes: stop in all partitions."""
        self.is_stopped = True
        self.may_take = False  # it is newer

    def reap_turn(self, now: float) -> float:
        """When a partition may make its next step of a reap."""
        at = max(now, self._reap_at)
        self._reap_at = at + REAP_PAUSE_S
        return at

    def token(self) -> int:
        return self.random.getrandbits(31)

    def jitter(self) -> float:
        """A factor for pauses, so that hosts do not all come back at once."""
        return 0.75 + self.random.random() / 2
