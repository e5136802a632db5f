"""Redis for the cluster's code: one server, or a Redis Cluster.

A call is repeated only if it certainly did not run: its function was missing, or another
node of the Cluster has its slot. Any other failure is a `CallError`; the next call looks
for the right server again.
"""

import hashlib
from binascii import crc_hqx
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from math import inf
from typing import Any, Final, TypeAlias

from anyio import (
    TASK_STATUS_IGNORED,
    Lock,
    create_task_group,
    current_time,
    fail_after,
    sleep_forever,
)
from anyio.abc import TaskGroup, TaskStatus

from liveness.cluster.format import PartitionKeys, keys_of
from liveness.cluster.nodes import Address, CallError, RedisNode, Word, check_start
from liveness.config.cluster import ClusterSettings

__all__ = ["CallError", "Redis", "connected"]

Entry: TypeAlias = tuple[bytes, dict[bytes, bytes]]

TIMEOUT_S: Final = 2.0
SLOTS: Final = 16_384
# The pause between two reads of the slots while a master fails: a failover takes seconds,
# and a thousand hosts then send 2,000 small commands a second.
LOOK_PAUSE_S: Final = 0.5
# After these failures, another node may have the slot.
_MAY_HAVE_MOVED: Final = frozenset({"timeout", "connection", "moving", "readonly"})
_SERVER_CLOCK: Final = "local t = call('TIME'); return t[1] * 1000000 + t[2]"
_IS_CLUSTER: Final = "it is a Cluster: name cluster.nodes in place of cluster.url"
_NOT_LOADED: Final = (
    "the functions of this version are not there: let a sidecar of this version run, or "
    "grant +function|load"
)


@cache
def functions(clock: str = _SERVER_CLOCK) -> tuple[str, str]:
    """The library of `functions.lua`, and the prefix of the names in it.

    The prefix is a hash: sidecars of two versions each call their own on one Redis.

    Args:
        clock: Lua that returns the microseconds now; a simulation has a clock of its own.
    """
    file = resources.files("liveness.cluster") / "functions.lua"
    source = file.read_text(encoding="utf-8").replace("@NOW@", clock)
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    source = source.replace("@LIBRARY@", f"liveness_{digest}")
    return source.replace("@PREFIX@", f"lv_{digest}_"), f"lv_{digest}_"


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
        functions: tuple[str, str] = functions(),
    ) -> None:
        check_start(settings)
        # Of the newest call; None: it succeeded.
        self.error: CallError | None = CallError("connection", "nothing was asked yet")
        self._settings = settings
        self._timeout_s = timeout_s
        self._must_keep = must_keep
        self._source, self._prefix = functions
        self._tasks: TaskGroup | None = None
        self._servers: dict[Address, RedisNode] = {}
        self._keys: dict[int, PartitionKeys] = {}
        addresses = [Address(*server) for server in settings.servers]
        self._only = None if settings.nodes else addresses[0]
        self._slots = SlotMap(addresses, self._server, timeout_s=timeout_s)

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

    async def read(self, function: str, partition: int, args: Sequence[Word]) -> Any:
        """Call a function of the library that only reads."""
        return await self.call(function, partition, args, command=b"FCALL_RO")

    async def call(
        self,
        function: str,
        partition: int,
        args: Sequence[Word],
        *,
        command: bytes = b"FCALL",
    ) -> Any:
        """Call a function of the library; without an answer it may have run."""
        name, keys = self._prefix + function, self._keys_of(partition)
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
            await server.send(b"FUNCTION LOAD", self._source)
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


class SlotMap:
    """The masters of a Cluster and their slots, as one of the nodes sees them.

    They are read again, by the next call, after a call has failed. *timeout_s* is the
    longest time for that.
    """

    def __init__(
        self,
        seeds: Iterable[Address],
        server: Callable[[Address], RedisNode],
        *,
        timeout_s: float,
    ) -> None:
        self._seeds = tuple(seeds)
        self._nodes = list(self._seeds)  # the next one to ask is the first
        self._server = server
        self._timeout_s = timeout_s
        self._ranges: list[tuple[int, int, Address]] = []
        self._is_doubtful = True
        self._looked_at = -inf
        self._looking = Lock()

    @property
    def nodes(self) -> set[Address]:
        return {*self._nodes, *self._seeds}

    async def master_of(self, partition: int) -> Address:
        """The master of a partition; a `CallError` if there is none, or no answer."""
        await self._refresh()
        slot = crc_hqx(b"%d" % partition, 0) % SLOTS  # of the hash tag of its keys
        for first, last, address in self._ranges:
            if first <= slot <= last:
                return address
        self._is_doubtful = True
        raise CallError("moving", f"no node of the Cluster has slot {slot}")

    def doubt(self, address: Address) -> None:
        """Note that a node failed or redirected: others have its slots, now or soon."""
        self._is_doubtful = True
        self._ask_last(address)

    def _ask_last(self, address: Address) -> None:
        if address in self._nodes:
            self._nodes.remove(address)
            self._nodes.append(address)

    async def _refresh(self) -> None:
        """Read the slots if they may have changed; one caller at a time waits for that."""
        if self._ranges and (self._looking.locked() or not self._is_due):
            return
        try:
            with fail_after(self._timeout_s):
                async with self._looking:
                    if not self._ranges or self._is_due:
                        await self._look()
        except TimeoutError:
            if not self._ranges:
                late = f"no node of the Cluster answered within {self._timeout_s:g} s"
                raise CallError("timeout", late) from None

    @property
    def _is_due(self) -> bool:
        return self._is_doubtful and current_time() >= self._looked_at + LOOK_PAUSE_S

    async def _look(self) -> None:
        failure = CallError("moving", "the nodes of the Cluster know no master")
        self._looked_at = current_time()
        for address in dict.fromkeys([*self._nodes, *self._seeds]):
            self._ask_last(address)  # a single one may be cut off from the others
            try:
                rows = await self._server(address).send(b"CLUSTER SLOTS")
            except CallError as error:
                failure = error
                continue
            self._learn(rows, address)
            break
        if not self._ranges:
            raise failure

    def _learn(self, rows: list[list[Any]], asked: Address) -> None:
        ranges, nodes = list[tuple[int, int, Address]](), dict[Address, None]()
        for first, last, *places in rows:
            addresses = [_address(place, asked) for place in places]
            nodes.update(dict.fromkeys(addresses))
            ranges.append((first, last, addresses[0]))
        self._ranges = ranges
        self._is_doubtful = False
        nodes.pop(asked, None)
        self._nodes = [*nodes, asked]


def _address(place: list[Any], asked: Address) -> Address:
    host, port, *_ = place
    # A node that does not know its own address leaves it empty: use the one dialled.
    return Address(host.decode() if host else asked.host, port)


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
