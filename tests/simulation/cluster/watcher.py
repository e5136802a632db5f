"""A reader of one partition, by the product's chain of versions, and what it must deliver.

A record has to alternate, user by user, once what a rollback voids is dropped; and a list
has to be what the records before it say.
"""

from collections.abc import Callable
from typing import Any

from liveness.cluster.chain import Chain, Request
from liveness.cluster.events import ClusterEvent, ClusterGap, Listed, Rollback
from liveness.cluster.format import ClusterRecord, Place
from liveness.core.records import OFFLINE, ONLINE
from tests.simulation.cluster.world import KEYS, World, pairs
from tests.simulation.situations import reached

Newest = tuple[str, int]  # host and session


class Watcher:
    """Follows one partition from its begin."""

    def __init__(
        self,
        world: World,
        partition: int,
        online_since: Callable[[int, float], set[str]],
    ) -> None:
        self._world, self.partition = world, partition
        self._online_since = online_since
        self._chain = self._start("")
        self._current_at = world.now  # when it had all there was
        self._meta_at = 0.0  # when it read the hosts last
        # Who was online at each version that it had; empty: it waits for a list.
        self._states: list[tuple[int, dict[str, Newest]]] = [(0, {})]

    def _start(self, position: str) -> Chain:
        lease_s = self._world.plan.lease_s
        return Chain(self.partition, position=position, lists=True, lease_s=lease_s)

    @property
    def state(self) -> dict[str, Newest] | None:
        """Who is online; None: it waits for a list."""
        return self._states[-1][1] if self._states else None

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
        for event, _ in deliveries:
            self._take(event)
        if chain.is_caught_up:
            self._current_at = world.now
        return chain.is_caught_up

    def _read(self, request: Request) -> Any:
        redis, keys = self._world.redis, KEYS[self.partition]
        match request:
            case "meta", _:
                return redis("HMGET", keys.meta, "v", "t")
            case "entries", (after, limit):
                words = ("XRANGE", keys.stream, f"({after}-0", "+", "COUNT", limit)
                return [(name, pairs(fields)) for name, fields in redis(*words)]
            case "earlier_entries", (until, limit):
                words = ("XREVRANGE", keys.stream, f"{until}-0", "-", "COUNT", limit)
                return [(name, pairs(fields)) for name, fields in redis(*words)]
            case "everything", _:
                self._meta_at = self._world.now
                return self._world.meta(self.partition)
            case _:
                scan = (self._world.prefix + "scan", 3, *keys, request[1][0])
                (cursor, users), newest = redis.many(
                    ("FCALL", *scan, self._world.plan.scan_users),
                    ("HMGET", keys.meta, "v", "t"),
                )
                return int(cursor), pairs(users), newest

    def _take(self, event: ClusterEvent) -> None:
        match event:
            case Rollback(_, version):
                self._roll_back(version)
            case ClusterGap():
                # It was not there for long; or a server lost all between two reads.
                may, plan = {"empty", "failover", "old", "damage"}, self._world.plan
                if self._world.now - self._current_at >= plan.keep_s:
                    reached("cluster: a watcher misses what was trimmed")
                elif not may & self._world.faults.keys():
                    self._fault(str(event))
                self._states.clear()
            case Listed(_, version, places, is_settled):
                found = {str(place.user): _newest(place) for place in places}
                online = self._online_since(self.partition, self._meta_at)
                if is_settled and online - found.keys():
                    self._fault(f"settled without {online - found.keys()}")
                if self.state is None or self._world.damaged:
                    self._states = [(version, found)]
                elif self.state != found:
                    self._fault(f"listed {found}, by its records {self.state}")
            case _:
                if self.state is not None:
                    state = dict(self.state)
                    if fault := fold(state, event):
                        self._fault(fault)
                    self._states.append((event.version, state))

    def _roll_back(self, version: int) -> None:
        if not self._states:
            reached("cluster: a rollback comes while a watcher waits for a list")
        elif version and self._states[-1][0] > version:
            reached("cluster: a watcher has records that a failover lost")
        while self._states and self._states[-1][0] > version:
            self._states.pop()
        if version == 0:
            reached("cluster: a watcher learns that all was lost")
            self._states = [(0, {})]

    def _fault(self, what: str) -> None:
        # Users that are deleted are missed with the next call of a host only.
        if not {"user", "users"} & self._world.damaged:
            self._world.faults_found.append(f"a watcher: {what}")


def _newest(place: Place) -> Newest:
    return place.host, place.session


def fold(state: dict[str, Newest], record: ClusterRecord) -> str:
    """Apply a record to a state; return why it cannot follow on that, if it cannot."""
    before = state.pop(str(record.user), None)
    if record.kind != OFFLINE:
        state[str(record.user)] = _newest(record.place)
    ended = record.place if record.kind == OFFLINE else record.lost
    is_next = (before is None) == (record.kind == ONLINE)
    if before is not None and ended is not None:
        # Another program may have deleted whose it was; the next look notices that.
        host, session = _newest(ended)
        is_next = is_next and session == before[1]
        is_next = is_next and len({host, before[0]} - {""}) < 2
    if is_next:
        return ""
    return f"{record} after {before}"
