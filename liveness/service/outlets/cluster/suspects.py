"""Hosts that may be lost, and for how long we ourselves have watched them be quiet.

Redis' clock alone declares nobody lost: after an outage, or if that clock jumps, every host
looks quiet. So a host that was quiet for half a lease by Redis' clock is then watched for
half a lease of our own time, with contact to Redis all along. If that clock was set since the
host was heard, or we do not know whether it was, we watch for a whole lease. The call that
fences the host fails if its beat moved.
"""

from math import inf

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

        *is_quiet*: Redis' clock, which was not set meanwhile, says that it was quiet
        for half a lease.
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
        """What was watched proves nothing: watch anew."""
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
