"""What all partitions of a host share: its name, its epoch, and whether it may publish."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

# A host pauses between two steps of a reap, in any partition, for this many times as long
# as the last step took, within these bounds. Others then wait for one step and not for one of
# each partition; many hosts that reap slow each other down; and a million users of a lost
# host among as many others, 4,000 steps, are gone within 50 s.
REAP_PAUSES: Final = 3
LEAST_REAP_PAUSE_S: Final = 0.003
MOST_REAP_PAUSE_S: Final = 0.012


@dataclass(slots=True)
class ClusterCounts:
    """What is counted of a host's publishing, since its process started."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)  # function, answer
    errors: Counter[str] = field(default_factory=Counter)  # by kind
    changes: int = 0  # that Redis has taken
    audit_mismatches: int = 0
    sessions_reaped: int = 0  # of hosts that were lost, or of older incarnations


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTerms:
    """How a host publishes; all hosts of a cluster share them but for `name` and `log`."""

    name: str
    log: str  # the id of its log
    lease_s: float
    linger_s: float
    keep_s: float
    configuration: str  # what Redis compares: hosts with another one are refused
    may_keep: bool = True  # whether Redis may have its sessions as it would list them


def nonce_of(start_ms: int, random: Random) -> int:
    """A number of a process that differs from others, and grows with its start.

    It has 53 bits, as many as a double: 42 of Unix milliseconds, and 11 at random.
    """
    return start_ms << 11 | random.getrandbits(11)


class HostIdentity:
    """A host as its partitions see it.

    Args:
        terms: How it publishes.
        nonce: Of this process, from `nonce_of`.
        epoch: Above every epoch of an earlier process of this name, as far as is known:
            the wall clock. If it is not, Redis answers with a higher one.
        random: For tokens and pauses.
        on_fenced: Called with a host that this one declared lost, and the partition.
    """

    def __init__(
        self,
        terms: HostTerms,
        *,
        nonce: int,
        epoch: int,
        random: Random,
        on_fenced: Callable[[bytes, int], None],
    ) -> None:
        self.name, self.log = terms.name, terms.log
        self.nonce, self.epoch = nonce, epoch
        self.configuration, self.may_keep = terms.configuration, terms.may_keep
        self.lease_s, self.linger_s, self.keep_s = (
            terms.lease_s,
            terms.linger_s,
            terms.keep_s,
        )
        self.beat_s = terms.lease_s / 6
        self.look_s = terms.lease_s / 10
        self.contact_gap_s = terms.lease_s / 4
        self.newest = 0  # the newest seq of the log that is durable
        self.is_stopped = False  # another process has this name
        self.may_take = True  # from a process of this name that lives
        self.why_refused = ""  # the configuration that the others have; empty: accepted
        self.other_lease_s = 0.0  # that another host has; 0: none has
        self.counts = ClusterCounts()
        self.fenced = on_fenced
        self._reap_pause_s = LEAST_REAP_PAUSE_S
        self._reap_at = 0.0
        self._random = random

    def next_epoch(self) -> int:
        """An epoch above all before."""
        self.epoch += 1
        return self.epoch

    def accepted(self) -> None:
        """A partition took this process for the host of its name."""
        self.is_stopped = False
        self.why_refused = ""

    def replaced(self) -> None:
        """Another process of this name publishes: stop in all partitions."""
        self.is_stopped = True
        self.may_take = False  # it is newer

    def reap_turn(self, now: float) -> float:
        """When a partition may make its next step of a reap."""
        at = max(now, self._reap_at)
        self._reap_at = at + self._reap_pause_s
        return at

    def reap_took(self, seconds: float) -> None:
        """A step of a reap was answered after this time."""
        pause_s = max(REAP_PAUSES * seconds, LEAST_REAP_PAUSE_S)
        self._reap_pause_s = min(pause_s, MOST_REAP_PAUSE_S)

    def token(self) -> int:
        """A random number that tells versions apart."""
        return self._random.getrandbits(31)

    def jitter(self) -> float:
        """A factor for pauses, so that hosts do not all come back at once."""
        return 0.75 + self._random.random() / 2
