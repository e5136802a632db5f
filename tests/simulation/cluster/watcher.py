"""A reader of one partition, by the product's chain of versions, and what it must deliver.

A record has to alternate, user by user, once what a rollback voids is dropped; and a list
has to be what the records before it say.
"""

from typing import Any

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
from tests.simulation.cluster.world import KEYS, World, pairs
from tests.simulation.situations import reached

Newest = tuple[str, int]  # host and session


class Watcher:
    """Follows one partition from its begin."""

    def __init__(self, world: World, partition: int) -> None:
        self._world, self.partition = world, partition
        self._chain = self._start("")
        self._current_at = world.now  # when it had all there was
        self._meta_at = 0.0  # when it read the hosts last
        # Who is online, as it was told; None: it waits for a list.
        self.state: dict[str, Newest] | None = {}
        self._base: tuple[int, dict[str, Newest]] | None = (0, {})  # before `_records`
        self._records: list[ClusterRecord] = []

    def _start(self, position: str) -> Chain:
        lease_s = self._world.plan.lease_s
        return Chain(self.partition, position=position, lists=True, lease_s=lease_s)

    @property
    def version(self) -> int:
        """The version that it has."""
        return self._chain.version

    def restart(self) -> None:
        """Go on from its position, as another process."""
        self._chain = self._start(self._chain.position)

    def poll(self) -> bool:
        """Make its next read; return whether it has all there is."""
        chain, world = self._chain, self._world
        if world.now < world.down_until[self.partition]:
            chain.failed()
            return True
        try:
            deliveries = chain.answer(self._read(chain.request), world.now)
        except ValueError:
            if "stranger" not in world.damaged:
                raise
            self.restart()  # its program has ended by that, and is started again
            return False
        for delivery in deliveries:
            self._take(delivery.event)
        if chain.is_caught_up:
            self._current_at = world.now
        return chain.is_caught_up

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
                scan = (self._world.prefix + "scan", 3, *keys, request.cursor)
                (cursor, users), newest = redis.many(
                    ("FCALL", *scan, self._world.plan.scan_users),
                    ("HMGET", keys.meta, "v", "t"),
                )
                return int(cursor), pairs(users), newest

    def _take(self, event: ClusterEvent) -> None:
        match event:
            case Rollback(_, version):
                self._notice_rollback(version)
                self._roll_back(version)
            case ClusterGap():
                # It was not there for long; or a server lost all between two reads.
                may, plan = {"empty", "failover", "old", "damage"}, self._world.plan
                if self._world.now - self._current_at >= plan.keep_s:
                    reached("cluster: a watcher misses what was trimmed")
                elif not may & self._world.faults.keys():
                    self._fault(str(event))
                self.state = self._base = None
                self._records = []
            case Listed(_, version, places, is_settled):
                found = {str(place.user): _newest(place) for place in places}
                online = self._world.online_since(self.partition, self._meta_at)
                if is_settled and online - found.keys():
                    self._fault(f"settled without {online - found.keys()}")
                if self.state is None or self._world.damaged:
                    self._base, self.state = (version, found), dict(found)
                elif self.state != found:
                    self._fault(f"listed {found}, was told {self.state}")
            case _:
                self._check(event)
                self._records.append(event)
                if self.state is not None:
                    fold(self.state, event)

    def _notice_rollback(self, version: int) -> None:
        if version == 0:
            reached("cluster: a watcher learns that all was lost")
        elif self._records and self._records[-1].version > version:
            reached("cluster: a watcher has records that a failover lost")
        if self.state is None:
            reached("cluster: a rollback comes while a watcher waits for a list")

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
        # Users that are deleted are missed with the next call of a host only.
        if not {"user", "users"} & self._world.damaged:
            self._world.faults_found.append(f"a watcher: {what}")


def _newest(place: Place) -> Newest:
    return place.host, place.session


def fold(state: dict[str, Newest], record: ClusterRecord) -> None:
    """Apply a record to a state."""
    if record.kind == OFFLINE:
        state.pop(str(record.user), None)
    else:
        state[str(record.user)] = _newest(record.place)
