"""Finds the node of a Redis Cluster that serves a partition, also after it moved."""

from binascii import crc_hqx
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final

from anyio import Lock, current_time, fail_after

from liveness.cluster.nodes import Address, CallError, RedisNode

SLOTS: Final = 16_384
# The pause between two reads of the slots while a master fails: a failover takes seconds,
# and a thousand hosts then send 2,000 small commands a second.
LOOK_PAUSE_S: Final = 0.5


def slot_of(partition: int) -> int:
    """The hash slot of a partition's keys: CRC-16 of their hash tag."""
    return crc_hqx(b"%d" % partition, 0) % SLOTS


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
        self._moved: dict[int, Address] = {}  # partitions, since the slots were read
        self._is_doubtful = True
        self._looked_at = -inf
        self._looking = Lock()

    @property
    def nodes(self) -> set[Address]:
        return {*self._nodes, *self._seeds}

    async def masters(self) -> set[Address]:
        """The masters that have slots."""
        await self._refresh()
        return {address for _, _, address in self._ranges}

    async def master_of(self, partition: int) -> Address:
        """The master of a partition; a `CallError` if there is none, or no answer."""
        await self._refresh()
        slot = slot_of(partition)
        for first, last, address in self._ranges:
            if first <= slot <= last:
                return self._moved.get(partition, address)
        self._is_doubtful = True
        raise CallError("moving", f"no node of the Cluster has slot {slot}")

    def move(self, partition: int, address: Address) -> None:
        """Note that, by a redirection, another node has this partition now."""
        self._moved[partition] = address
        self._is_doubtful = True

    def doubt(self, address: Address) -> None:
        """Note that a node failed: others may have its slots, now or soon."""
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
        self._moved.clear()
        self._is_doubtful = False
        nodes.pop(asked, None)
        self._nodes = [*nodes, asked]


def _address(place: list[Any], asked: Address) -> Address:
    host, port, *_ = place
    # A node that does not know its own address leaves it empty: use the one dialled.
    return Address(host.decode() if host else asked.host, port)
