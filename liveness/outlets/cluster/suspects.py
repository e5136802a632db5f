"""Hosts that may be lost, and for how long we ourselves have watched them be quiet.

Redis' clock alone declares nobody lost: after an outage, or if that clock jumps, every host
looks quiet. So a host that was quiet by Redis' clock is then watched for half a lease of our
own time in which we had contact all along; the call that fences it fails if its beat moved.
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
        self._since: dict[Suspect, float] = {}  # in order of these moments

    def note(self, host: bytes, epoch: int, beat: int, now: float) -> None:
        """A host is quiet; watch it from now on, unless we do."""
        self._since.setdefault((host, epoch, beat), now)

    def clear(self) -> None:
        """What was watched proves nothing: watch anew."""
        self._since.clear()

    @property
    def next_at(self) -> float:
        """When the next one was watched for long enough; infinity if there is none."""
        return next(iter(self._since.values()), inf) + self._watch_s

    def take(self) -> Suspect:
        """The one that was watched the longest, which is then watched no more."""
        suspect = next(iter(self._since))
        del self._since[suspect]
        return suspect
