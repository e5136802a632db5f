"""Redis for the cluster's code: one server, or a Redis Cluster.

A call is repeated only if it certainly did not run: its function was missing, or another
node of the Cluster has its slot. Any other failure is a `CallError`; the next call looks
for the right server again.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from anyio import TASK_STATUS_IGNORED, create_task_group, sleep_forever
from anyio.abc import TaskGroup, TaskStatus

from liveness.cluster.format import PartitionKeys, keys_of
from liveness.cluster.functions import Functions, functions
from liveness.cluster.nodes import Address, CallError, RedisNode, Word, check_start
from liveness.cluster.slots import SlotMap
from liveness.config.cluster import ClusterSettings

__all__ = ["CallError", "Redis", "connected"]

Entry: TypeAlias = tuple[bytes, dict[bytes, bytes]]

TIMEOUT_S: Final = 2.0
# After these failures, another node may have the slot.
_MAY_HAVE_MOVED: Final = frozenset({"timeout", "connection", "moving", "readonly"})
_IS_CLUSTER: Final = "it is a Cluster: name cluster.nodes in place of cluster.url"
_NOT_LOADED: Final = (
    "the functions of this version are not there: let a sidecar of this version run, or "
    "grant +function|load"
)


class Redis:
    """One server or a Cluster, connected when it is first called.

    Calls may be made by many tasks at once, in trio and asyncio, while `run` runs. Each
    raises a `CallError` if there was no answer, or Redis refused it. *timeout_s* is the
    longest time to connect, and to wait for an answer. With *must_keep*, a server is refused
    whose `maxmemory-policy` may evict any key, as it is when a connection begins.

    Raises:
        StartError: coredis is not installed, or a file of the settings is unusable.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        timeout_s: float = TIMEOUT_S,
        must_keep: bool = False,
        functions: Functions = functions(),  # noqa: B008 - the same for all
    ) -> None:
        check_start(settings)
        self.error: CallError | None = None  # of the newest call; None: it succeeded
        self._settings = settings
        self._timeout_s = timeout_s
        self._must_keep = must_keep
        self._functions = functions
        self._tasks: TaskGroup | None = None
        self._servers: dict[Address, RedisNode] = {}
        self._keys: dict[int, PartitionKeys] = {}
        addresses = [Address(*server) for server in settings.servers]
        self._only = None if settings.nodes else addresses[0]
        self._slots = SlotMap(addresses, self._server, timeout_s=timeout_s)

    @property
    def is_connected(self) -> bool:
        return any(server.is_connected for server in self._servers.values())

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Keep the connections until cancelled; Redis may be down."""
        async with create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            try:
                await sleep_forever()
            finally:
                self._tasks = None
                self._servers.clear()

    # --- functions and reads --------------------------------------------------------

    async def call(self, function: str, partition: int, args: Sequence[Word]) -> Any:
        """Call a function of the library; without an answer it may have run."""
        return await self._function(b"FCALL", function, partition, args)

    async def read(self, function: str, partition: int, args: Sequence[Word]) -> Any:
        """Call a function that only reads."""
        return await self._function(b"FCALL_RO", function, partition, args)

    async def _function(
        self, command: bytes, function: str, partition: int, args: Sequence[Word]
    ) -> Any:
        name, keys = self._functions.prefix + function, self._keys_of(partition)
        return await self._send(partition, command, name, len(keys), *keys, *args)

    async def entries(
        self, partition: int, after_version: int, limit: int
    ) -> list[Entry]:
        """The oldest entries of the stream whose first record is above a version."""
        words = f"({after_version}-0", "+", "COUNT", limit
        return await self._entries(partition, b"XRANGE", *words)

    async def earlier_entries(
        self, partition: int, until_version: int, limit: int
    ) -> list[Entry]:
        """Entries of the stream up to one whose first record is a version, newest first."""
        words = f"{until_version}-0", "-", "COUNT", limit
        return await self._entries(partition, b"XREVRANGE", *words)

    async def _entries(
        self, partition: int, command: bytes, *words: Word
    ) -> list[Entry]:
        key = self._keys_of(partition).stream
        rows = await self._send(partition, command, key, *words)
        return [(name, _pairs(fields)) for name, fields in rows]

    async def meta(self, partition: int, *fields: str) -> list[bytes | None]:
        """Fields of the hash of a partition; None for a missing one."""
        key = self._keys_of(partition).meta
        values: list[bytes | None] = await self._send(partition, b"HMGET", key, *fields)
        return values

    async def everything(self, partition: int) -> dict[bytes, bytes]:
        """The whole hash of a partition; empty if it never had a host."""
        key = self._keys_of(partition).meta
        fields: dict[bytes, bytes] = await self._send(partition, b"HGETALL", key)
        return fields

    async def scan(
        self, partition: int, cursor: int, count: int
    ) -> tuple[int, dict[bytes, bytes], list[bytes | None]]:
        """About *count* users and their sessions; and `v` and `t` at that moment.

        The next cursor comes first: 0 at the end.
        """
        keys = self._keys_of(partition)
        words = (keys.users, cursor, "COUNT", count)
        newest = (b"HMGET", keys.meta.encode(), b"v", b"t")
        found, version = await self._send(partition, b"HSCAN", *words, then=newest)
        return int(found[0]), _pairs(found[1]), version

    async def users(self, partition: int) -> int:
        key = self._keys_of(partition).users
        count: int = await self._send(partition, b"HLEN", key)
        return count

    async def information(self) -> list[dict[str, str]]:
        """The INFO of each master, and its `address`; empty if the user may not see it."""
        masters = {self._only} if self._only else await self._slots.masters()
        return [await self._information(address) for address in sorted(masters)]

    async def _information(self, address: Address) -> dict[str, str]:
        found = {"address": str(address)}
        try:
            for section in (b"server", b"memory"):
                text = (await self._ask(address, b"INFO", section)).decode()
                pairs = (line.partition(":") for line in text.splitlines())
                found |= {name: value for name, colon, value in pairs if colon}
        except CallError as failure:
            if failure.kind != "permission":
                raise
        return found

    # --- sending ------------------------------------------------------------------

    async def _send(
        self, partition: int, command: bytes, *words: Word, then: Sequence[bytes] = ()
    ) -> Any:
        try:
            answer = await self._route(partition, command, *words, then=then)
        except CallError as failure:
            self.error = failure
            raise
        self.error = None
        return answer

    async def _route(
        self, partition: int, command: bytes, *words: Word, then: Sequence[bytes]
    ) -> Any:
        address = self._only or await self._slots.master_of(partition)
        try:
            return await self._ask(address, command, *words, then=then)
        except CallError as failure:
            target, is_ask = failure.address, failure.is_ask
            if target is None:
                raise
            if self._only:
                raise CallError("moving", f"{failure}; {_IS_CLUSTER}") from None
        if not is_ask:
            self._slots.move(partition, target)
        return await self._ask(target, command, *words, then=then, asking=is_ask)

    async def _ask(self, address: Address, *words: Any, **options: Any) -> Any:
        """Send a command to a server; load the library where it is missing."""
        server = self._server(address)
        try:
            return await server.send(*words, **options)
        except CallError as failure:
            if failure.kind in _MAY_HAVE_MOVED:
                self._slots.doubt(address)
            if "Function not found" not in str(failure):
                raise
        await self._load(server)
        return await server.send(*words, **options)

    async def _load(self, server: RedisNode) -> None:
        try:
            await server.send(b"FUNCTION LOAD", self._functions.source)
        except CallError as failure:
            if failure.kind == "permission":
                raise CallError("permission", f"{failure}; {_NOT_LOADED}") from None
            if "already exists" not in str(failure):  # another host has just loaded it
                raise

    def _server(self, address: Address) -> RedisNode:
        server = self._servers.get(address)
        if server is None:
            if self._tasks is None:
                raise CallError("connection", "the connection to Redis is not running")
            if self._only is None:  # forget servers that left the Cluster
                for stranger in self._servers.keys() - self._slots.nodes:
                    self._servers.pop(stranger).disconnect()
            server = self._servers[address] = RedisNode(
                address,
                self._settings,
                timeout_s=self._timeout_s,
                tasks=self._tasks,
                must_keep=self._must_keep,
            )
        return server

    def _keys_of(self, partition: int) -> PartitionKeys:
        keys = self._keys.get(partition)
        if keys is None:
            keys = self._keys[partition] = keys_of(self._settings.prefix, partition)
        return keys


@asynccontextmanager
async def connected(settings: ClusterSettings, **options: Any) -> AsyncIterator[Redis]:
    """`Redis` for a block, for programs that have no task group of their own."""
    redis, failure = Redis(settings, **options), None
    async with create_task_group() as tasks:
        await tasks.start(redis.run)
        try:
            yield redis
        except Exception as error:  # raised below: here it would be wrapped in a group
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
