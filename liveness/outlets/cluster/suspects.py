"""Hosts that may be lost, and for how long we ourselves have watched them be quiet.

Redis' clock alone declares nobody lost: after an outage, or if that clock jumps, every host
looks quiet. So a host that was quiet by Redis' clock is then watched for half a lease of our
own time in which we had contact all along; for a whole one if that clock was set since its
beat, or we do not know whether it was. The call that fences it fails if its beat moved.
"""

from math import inf

Suspect = tuple[bytes, int, int]  # host, epoch, and its newest beat


class Suspects:
    """The hosts that we watch in one partition.

    Args:
        lease_s: The time after which a silent host is lost: half of it quiet by Redis'
            clock, half of it watched.
    """

    def __init__(self, lease_s: float) -> None:
        self._watch_s = lease_s / 2
        # Epoch, beat and since when, in the order of these moments.
        self._hosts: dict[bytes, tuple[int, int, float]] = {}

    def note(self, host: bytes, epoch: int, beat: int, now: float) -> None:
        """A host is quiet; watch it from a moment on, unless we do."""
        if self._hosts.get(host, ())[:2] == (epoch, beat):
            return
        self._hosts.pop(host, None)  # it was heard since
        self._hosts[host] = epoch, beat, now

    def clear(self) -> None:
        """What was watched proves nothing: watch anew."""
        self._hosts.clear()

    @property
    def next_at(self) -> float:
        """When the next one was watched for long enough; infinity if there is none."""
        for *_, since in self._hosts.values():
            return since + self._watch_s
        return inf

    def take(self) -> Suspect:
        """The one that was watched the longest, which is then watched no more."""
        host = next(iter(self._hosts))
        epoch, beat, _ = self._hosts.pop(host)
        return host, epoch, beat
