"""The duties of any host of a partition when another one is lost.

It looks for quiet hosts (`look`), declares them lost (`fence`), and ends sessions without a
host (`reap`).

Redis' clock alone declares nobody lost: after an outage, or if that clock jumps, every host
looks quiet. So a host that was quiet for half a lease by Redis' clock is then watched for
half a lease of our own time, with contact to Redis all along. If that clock was set since the
host was heard, or we do not know whether it was, we watch for a whole lease. The call that
fences the host fails if its beat moved.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

from liveness.service.outlets.cluster.host_state import HostIdentity
from liveness.service.outlets.cluster.partition_clock import PartitionClock
from liveness.service.outlets.cluster.session_changes import Call

Suspect = tuple[bytes, int, int]  # host, epoch, and its newest beat


class Suspects:
    """The hosts that we watch in one partition."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        # Epoch, beat, since when we watch, and until when.
        self._hosts: dict[bytes, tuple[int, int, float, float]] = {}

    def note(
        self, host: bytes, epoch: int, beat: int, now: float, *, is_quiet: bool
    ) -> None:
        """Watch a host from now on, unless we do already.

        *is_quiet*: it was quiet for half a lease by Redis' clock, which was not set since.
        """
        if self._hosts.get(host, ())[:2] == (epoch, beat):
            return
        until = now + (self._lease_s / 2 if is_quiet else self._lease_s)
        self._hosts[host] = epoch, beat, now, until

    def distrust_clock(self) -> None:
        """Redis' clock was set: only what we have watched ourselves counts."""
        for host, (epoch, beat, since, _) in self._hosts.items():
            self._hosts[host] = epoch, beat, since, since + self._lease_s

    def clear(self) -> None:
        """Forget the hosts: what was watched proves nothing."""
        self._hosts.clear()

    @property
    def next_at(self) -> float:
        """When the next one was watched for long enough; infinity if there is none."""
        return min((until for *_, until in self._hosts.values()), default=inf)

    def take(self) -> Suspect:
        """Remove and return the one that is due first."""
        host = min(self._hosts, key=lambda name: self._hosts[name][3])
        epoch, beat, *_ = self._hosts.pop(host)
        return host, epoch, beat


class HostWatch:
    """These duties of one partition that follows the log.

    A step of a reap searches *reap_users* users.
    """

    def __init__(
        self, number: int, host: HostIdentity, clock: PartitionClock, reap_users: int
    ) -> None:
        self._number = number
        self._host = host
        self._clock = clock
        self._reap_users = reap_users
        self._suspects = Suspects(host.lease_s)
        self._fenced = b""  # the host of the `fence` under way
        self._look_at = 0.0
        self._reap_at = inf
        self._cursor: bytes | int = 0
        self._own_beat = 0  # our newest, as Redis answered it

    def begin(self, now: float) -> None:
        """The partition begins: nothing is known of the other hosts."""
        self._look_at, self._reap_at = now, inf
        self._own_beat = 0

    def clear(self) -> None:
        """What was observed of the other hosts proves nothing."""
        self._suspects.clear()

    def clock_was_set(self) -> None:
        """Redis' clock was set: only what we have watched ourselves counts."""
        self._suspects.distrust_clock()

    def beat(self, before: int, beat: int, look_age: int, now: float) -> None:
        """Note our beats, the one before and the newest, and when any host looked."""
        if before != self._own_beat:
            # Redis lost our newest beat, or we lost its answer: the beats of others that
            # we know may be old.
            self._suspects.clear()
        self._own_beat = beat
        self._look_at = max(self._look_at, now + self._host.look_s - look_age / 1e6)

    @property
    def next_at(self) -> float:
        """When the next call is due."""
        return min(self._suspects.next_at, self._look_at, self._reap_at)

    def next_call(self, now: float) -> Call:
        """The call that is due first."""
        host = self._host
        at = self.next_at
        if at == self._suspects.next_at:
            suspect = self._suspects.take()
            self._fenced = suspect[0]
            return Call("fence", [host.name, self._own_beat, *suspect])
        if at == self._look_at:
            self._look_at = now + host.look_s
            quiet, every, keep = host.lease_s / 2, host.look_s, host.keep_s
            times = [round(seconds * 1e6) for seconds in (quiet, every, keep)]
            return Call("look", [host.name, *times])
        self._reap_at = host.reap_turn(now)
        floor, token = self._clock.floor(now), host.token()
        return Call("reap", [self._cursor, self._reap_users, floor, token])

    def looked(self, word: str, answer: Sequence[Any], now: float) -> None:
        """Take the answer to `look`."""
        if word in ("ok", "later"):
            is_ours = answer[-1] == round(self._host.lease_s * 1e6)
            self._host.other_lease_s = 0.0 if is_ours else answer[-1] / 1e6
        if word != "ok":
            return
        _, stale, quiets, _ = answer
        for name, epoch, beat in quiets:
            # If Redis' clock was set since, it does not say that the host was quiet.
            is_quiet = self._clock.set_to <= int(beat) <= self._clock.latest_us(now)
            self._suspects.note(name, int(epoch), int(beat), now, is_quiet=is_quiet)
        self._reap_at = self._host.reap_turn(now) if stale else inf

    def fenced(self, word: str, now: float) -> None:
        """Take the answer to `fence`."""
        if word == "behind":
            self._suspects.clear()
        elif word == "ok":
            self._host.fenced(self._fenced, self._number)
            self._reap_at = self._host.reap_turn(now)

    def reaped(
        self, word: str, answer: Sequence[Any], began: float, now: float
    ) -> None:
        """Take the answer to `reap`, a call that began at *began*."""
        self._host.reap_took(now - began)
        if word != "ok":
            self._reap_at = inf
            return
        _, cursor, gone, stale, version = answer
        self._host.counts.sessions_reaped += gone
        self._cursor = cursor
        self._clock.see(version, now)
        if not stale:
            self._reap_at = inf
