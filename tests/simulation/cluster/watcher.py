"""A reader of one partition, by the product's chain of versions, and what it must deliver.

A record has to alternate, user by user, once what a rollback voids is dropped; and a list
has to be what the records before it say.
"""

from typing import Any, Final

from liveness.cluster.chain import (
    Chain,
    ReadEarlier,
    ReadEntries,
    ReadMeta,
    ReadNewest,
    Request,
)
from liveness.cluster.events import ClusterEvent, ClusterGap, Listed, Rollback
from liveness.cluster.format import ClusterRecord, Place
from liveness.core.records import OFFLINE, ONLINE
from tests.simulation.cluster.machine import LEASE_S
from tests.simulation.cluster.world import KEYS, World, pairs

Newest = tuple[str, int]  # host and session
# Users in one read of a list: so few that it takes several.
SCAN_USERS: Final = 1


class Watcher:
    """Follows one partition from its begin."""

    def __init__(self, world: World, partition: int) -> None:
        self._world, self.partition = world, partition
        self._chain = self._start("")
        self._meta_at = 0.0  # when it read the hosts last
        # Who is online, as it was told; None: it waits for a list.
        self.state: dict[str, Newest] | None = {}
        self._base: tuple[int, dict[str, Newest]] | None = (0, {})  # before `_records`
        self._records: list[ClusterRecord] = []

    def _start(self, position: str) -> Chain:
        return Chain(self.partition, position=position, lists=True, lease_s=LEASE_S)

    @property
    def version(self) -> int:
        """The version that it has."""
        return self._chain.version

    def restart(self) -> None:
        """Go on from its position, as another process."""
        self._chain = self._start(self._chain.position)

    def poll(self) -> None:
        """Make its next read."""
        chain, world = self._chain, self._world
        if world.now < world.down_until[self.partition]:
            chain.failed()
            return
        try:
            deliveries = chain.answer(self._read(chain.request), world.now)
        except ValueError:
            if not world.counts["damage stranger"]:
                raise
            self.restart()  # its program has ended by that, and is started again
            return
        for delivery in deliveries:
            self._take(delivery.event)

    def _read(self, request: Request) -> Any:
        redis, keys = self._world.redis, KEYS[self.partition]
        match request:
            case ReadNewest():
                return redis("HMGET", keys.meta, "v", "t")
            case ReadEntries(after, limit):
                start = f"({after}-0"
                rows = redis("XRANGE", keys.stream, start, "+", "COUNT", limit)
                return [(name, pairs(fields)) for name, fields in rows]
            case ReadEarlier(until, limit):
                end = f"{until}-0"
                rows = redis("XREVRANGE", keys.stream, end, "-", "COUNT", limit)
                return [(name, pairs(fields)) for name, fields in rows]
            case ReadMeta():
                self._meta_at = self._world.now
                return self._world.meta(self.partition)
            case _:
                words = (request.cursor, "COUNT", SCAN_USERS)
                (cursor, users), newest = redis.many(
                    ("HSCAN", keys.users, *words), ("HMGET", keys.meta, "v", "t")
                )
                return int(cursor), pairs(users), newest

    def _take(self, event: ClusterEvent) -> None:
        match event:
            case Rollback(_, version):
                self._world.counts["rollback"] += 1
                self._roll_back(version)
            case ClusterGap():
                # Nothing is trimmed; but a server may lose all between two reads.
                may = {"empty", "failover", "damage"}
                if not may & self._world.faults.keys():
                    self._fault(str(event))
                self.state = self._base = None
                self._records = []
            case Listed(_, version, places, is_settled):
                self._world.counts["listed"] += 1
                found = {str(place.user): _newest(place) for place in places}
                online = self._world.online_since(self.partition, self._meta_at)
                if is_settled and online - found.keys():
                    self._fault(f"settled without {online - found.keys()}")
                if self.state is None:
                    self._base, self.state = (version, found), dict(found)
                elif self.state != found:
                    self._fault(f"listed {found}, was told {self.state}")
            case _:
                self._check(event)
                self._records.append(event)
                if self.state is not None:
                    fold(self.state, event)

    def _roll_back(self, version: int) -> None:
        if version == 0:
            self._base = (0, {})
        elif self._base is not None and version < self._base[0]:
            self._base = None
        self._records = [it for it in self._records if it.version <= version]
        self.state = None if self._base is None else dict(self._base[1])
        if self.state is not None:
            for record in self._records:
                fold(self.state, record)

    def _check(self, record: ClusterRecord) -> None:
        if self.state is None:
            return
        before = self.state.get(str(record.user))
        if (before is None) != (record.kind == ONLINE):
            self._fault(f"{record} after {before}")
        ended = record.place if record.kind == OFFLINE else record.lost
        if before is not None and ended is not None and _newest(ended) != before:
            self._fault(f"{record} after {before}")

    def _fault(self, what: str) -> None:
        self._world.faults_found.append(f"a watcher: {what}")


def _newest(place: Place) -> Newest:
    return place.host, place.session


def fold(state: dict[str, Newest], record: ClusterRecord) -> None:
    """Apply a record to a state."""
    if record.kind == OFFLINE:
        state.pop(str(record.user), None)
    else:
        state[str(record.user)] = _newest(record.place)
