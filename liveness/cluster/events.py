"""Events of a reader of the cluster besides records: void or missed records, and lists."""

from typing import NamedTuple, TypeAlias

from liveness.cluster.format import ClusterRecord, Place


class Rollback(NamedTuple):
    """Redis lost versions: all records of the partition above `version` are void.

    The valid records above it follow. With version 0 everything was lost.
    """

    partition: int
    version: int

    @property
    def kind(self) -> str:
        return "rollback"

    def as_map(self) -> dict[str, object]:
        return {"kind": self.kind, **self._asdict()}


class ClusterGap(NamedTuple):
    """Versions `first` to `until` - 1 are no longer kept; they were not delivered."""

    partition: int
    first: int
    until: int

    @property
    def kind(self) -> str:
        return "gap"

    def as_map(self) -> dict[str, object]:
        return {"kind": self.kind, **self._asdict()}


class Listed(NamedTuple):
    """All users that are online in a partition, after all records up to `version`."""

    partition: int
    version: int
    places: list[Place]  # the newest session of each user
    is_settled: bool  # False: a user not in it may be online

    @property
    def kind(self) -> str:
        return "listed"

    def as_map(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "partition": self.partition,
            "version": self.version,
            "is_settled": self.is_settled,
            "users": [place_map(place) for place in self.places],
        }


ClusterEvent: TypeAlias = ClusterRecord | Rollback | ClusterGap | Listed
# An event, and the position of the reader once it is finished.
Delivery: TypeAlias = tuple[ClusterEvent, str]


def place_map(place: Place) -> dict[str, object]:
    """Where a user is, as a mapping; absent keys left out."""
    shown = place._asdict()
    shown["uid"] = shown.pop("user")
    if place.device:
        shown["device"] = place.uid
    else:
        del shown["device"]
    if not place.reason:
        del shown["reason"]
    return shown
