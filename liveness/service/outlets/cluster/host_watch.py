"""The duties of any host of a partition when another one is lost.

It looks for quiet hosts (`look`), declares them lost (`fence`), and ends sessions without a
host (`reap`).

Redis' clock alone declares nobody lost: after an outage, or if that clock jumps, every host
looks quiet. So a host that was quiet for a quarter of a lease by Redis' clock is then watched
for a whole lease of our own time, with contact to Redis all along. The call that fences the
host fails if its beat moved.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

from liveness.service.outlets.cluster.host_state import HostIdentity
from liveness.service.outlets.cluster.partition_clock import PartitionClock
from liveness.service.outlets.cluster.session_changes import Call


class HostWatch:
    """These duties of one partition that follows the log, once it has begun."""

    _look_at: float
    _reap_at: float
    _own_beat: int  # our newest, as Redis answered it
    _fenced: bytes  # the host of the `fence` under way

    def __init__(self, number: int, host: HostIdentity, clock: PartitionClock) -> None:
        self._number = number
        self._host = host
        self._clock = clock
        # The hosts that we watch, in order: epoch, beat, and until when.
        self._suspects: dict[bytes, tuple[int, int, float]] = {}
        self._cursor: bytes | int = 0

    def begin(self, now: float) -> None:
        self._look_at, self._reap_at = now, inf
        self._own_beat = 0

    def clear(self) -> None:
        """What was observed of the other hosts proves nothing."""
        self._suspects.clear()

    def suspect(self, host: bytes, epoch: int, beat: int, now: float) -> None:
        """Watch a quiet host from now on, unless we do already."""
        if self._suspects.get(host, ())[:2] != (epoch, beat):
            self._suspects.pop(host, None)
            self._suspects[host] = epoch, beat, now + self._host.lease_s

    def beat(self, before: int, beat: int, look_age: int, now: float) -> None:
        """Note our beats, the one before and the newest, and when any host looked."""
        if before != self._own_beat:
            # Redis lost our newest beat, or we lost its answer: the beats of others that
            # we know may be old.
            self.clear()
        self._own_beat = beat
        self._look_at = max(self._look_at, now + self._host.look_s - look_age / 1e6)

    @property
    def fence_at(self) -> float:
        """When the next one was watched for long enough; infinity if there is none."""
        return next((until for *_, until in self._suspects.values()), inf)

    @property
    def next_at(self) -> float:
        return min(self.fence_at, self._look_at, self._reap_at)

    def next_call(self, now: float) -> Call:
        host, at = self._host, self.next_at
        if at == self.fence_at:
            self._fenced = next(iter(self._suspects))
            epoch, beat, _ = self._suspects.pop(self._fenced)
            suspect = self._fenced, epoch, beat
            return Call("fence", [host.name, self._own_beat, *suspect])
        if at == self._look_at:
            self._look_at = now + host.look_s
            times = host.lease_s / 4, host.look_s, host.keep_s
            return Call("look", [host.name, *(round(it * 1e6) for it in times)])
        self._reap_at = host.reap_turn(now)
        floor, token = self._clock.floor(now), host.token()
        return Call("reap", [self._cursor, host.reap_users, floor, token])

    def looked(self, word: str, answer: Sequence[Any], now: float) -> None:
        if word in ("ok", "later"):
            is_ours = answer[-1] == round(self._host.lease_s * 1e6)
            self._host.other_lease_s = 0.0 if is_ours else answer[-1] / 1e6
        if word != "ok":
            return
        _, stale, quiets, _ = answer
        for name, epoch, beat in quiets:
            self.suspect(name, int(epoch), int(beat), now)
        self._reap_at = self._host.reap_turn(now) if stale else inf

    def fenced(self, word: str, now: float) -> None:
        if word == "behind":
            self.clear()
        elif word == "ok":
            self._host.on_fenced(self._fenced, self._number)
            self._reap_at = self._host.reap_turn(now)

    def reaped(self, word: str, answer: Sequence[Any], now: float) -> None:
        stale = 0
        if word == "ok":
            _, self._cursor, gone, stale, version = answer
            self._host.sessions_reaped += gone
            self._clock.see(version, now)
        if not stale:
            self._reap_at = inf
