"""The data of a cluster on Redis, read without the product's connection."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from liveness.cluster.format import (
    ClusterRecord,
    StoredHost,
    entry_of,
    host_of,
    keys_of,
    sessions_of,
)
from liveness.core.records import Uid
from tests.helpers.redis_servers import RedisServer

PARTITIONS: Final = 4
# At one moment: between two calls a host may come or go.
BOTH: Final = "return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}"


class Seen(NamedTuple):
    host: str
    gateway: str
    session: int
    device: str


class ClusterState:
    def __init__(self, server: RedisServer, partitions: int = PARTITIONS) -> None:
        self._server = server
        self._keys = [keys_of("lv", number) for number in range(partitions)]

    def users(self) -> dict[str, list[Seen]]:
        found: dict[str, list[Seen]] = {}
        for number in range(len(self._keys)):
            found |= self.users_in(number)
        return found

    def users_in(self, partition: int) -> dict[str, list[Seen]]:
        keys = self._keys[partition]
        meta, users = self._server("EVAL", BOTH, 2, keys.meta, keys.users)
        hosts = {
            int(field[1:]): value.partition(b"\n")[0].decode()
            for field, value in fields(meta)
            if field.startswith(b"i")
        }
        return {
            field.decode(): [
                Seen(hosts[it.incarnation], it.gateway, it.session, it.device)
                for it in sessions_of(value)
            ]
            for field, value in fields(users)
        }

    def hosts_of(self, user: Uid) -> list[str]:
        """On which hosts a user is online, the newest session first."""
        return [seen.host for seen in self.users().get(str(user), [])]

    def hosts(self) -> dict[str, list[StoredHost]]:
        found: dict[str, list[StoredHost]] = {}
        for meta, _, _ in self._keys:
            for field, value in fields(self._server("HGETALL", meta)):
                if field.startswith(b"h"):
                    found.setdefault(field[1:].decode(), []).append(host_of(value))
        return found

    def records(self, user: Uid | None = None) -> list[ClusterRecord]:
        """The records of the streams, in order in each partition; of one user or all."""
        found = []
        for number, keys in enumerate(self._keys):
            before = None
            for entry_id, flat in self._server("XRANGE", keys.stream, "-", "+"):
                entry = entry_of(number, entry_id, dict(fields(flat)))
                assert before in (None, entry.before), "the chain is broken"
                before = entry.name
                found += [it for it in entry.records if user in (None, it.user)]
        return found

    def kinds(self, user: Uid) -> list[tuple[str, str, str]]:
        return [(it.kind, it.place.host, it.place.reason) for it in self.records(user)]


def fields(flat: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
