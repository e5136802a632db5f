"""Finds the node of a Redis Cluster that serves a partition, also after it moved."""

from binascii import crc_hqx
from collections.abc import Callable, Iterable
from typing import Any, Final

from anyio import Event, fail_after, sleep

from liveness.cluster.nodes import Address, CallError, RedisNode

SLOTS: Final = 16_384
# The pause between two reads of the slots while a master fails: a failover takes seconds,
# and a thousand hosts then send 2,000 small commands a second.
LOOK_PAUSE_S: Final = 0.5


def slot_of(partition: int) -> int:
    """The hash slot of a partition's keys: CRC-16 of their hash tag."""
    return crc_hqx(b"%d" % partition, 0) % SLOTS


class SlotMap:
    """The masters of a Cluster and their slots, as one of the nodes sees them."""

    def __init__(
        self, seeds: Iterable[Address], server: Callable[[Address], RedisNode]
    ) -> None:
        self._seeds = tuple(seeds)
        self._nodes = list(self._seeds)  # the next one to ask is the first
        self._server = server
        self._ranges: list[tuple[int, int, Address]] = []
        self._masters: dict[int, Address] = {}  # of partitions looked up so far
        self._failing: set[Address] = set()  # and no answer since
        self._doubted = Event()
        self._looked = Event()
        self._failure: CallError | None = None

    @property
    def nodes(self) -> set[Address]:
        """All known nodes."""
        return {*self._nodes, *self._seeds}

    async def masters(self, timeout_s: float) -> set[Address]:
        """The masters that have slots.

        Raises:
            CallError: No node answers.
        """
        await self._know(timeout_s)
        return {address for _, _, address in self._ranges}

    async def master_of(self, partition: int, timeout_s: float) -> Address:
        """The master of a partition.

        Raises:
            CallError: No node answers, or no master has its slot.
        """
        found = self._masters.get(partition)
        if found is None:
            await self._know(timeout_s)
            slot = slot_of(partition)
            for first, last, address in self._ranges:
                if first <= slot <= last:
                    self._masters[partition] = found = address
                    break
            else:
                self._doubted.set()
                raise CallError("moving", f"no node of the Cluster has slot {slot}")
        return found

    def move(self, partition: int, address: Address) -> None:
        """Note that, by a redirection, another node has this partition now."""
        self._masters[partition] = address
        self._doubted.set()

    def doubt(self, address: Address) -> None:
        """Note that a node failed: others may have its slots, now or soon."""
        self._failing.add(address)
        if address in self._nodes:  # ask it last
            self._nodes.remove(address)
            self._nodes.append(address)
        self._doubted.set()

    def trust(self, address: Address) -> None:
        """Note that a node answered."""
        self._failing.discard(address)

    async def run(self) -> None:
        """Read the slots again while a node is in doubt.

        This does not wait for the next failing call, which may come seconds later: that
        call should find the new master.
        """
        while True:
            await self._doubted.wait()
            self._doubted = Event()
            await self._look()
            self._looked.set()
            self._looked = Event()
            await sleep(LOOK_PAUSE_S)
            if any(address in self._failing for _, _, address in self._ranges):
                self._doubted.set()

    async def _know(self, timeout_s: float) -> None:
        if self._ranges:
            return
        self._doubted.set()
        try:
            with fail_after(timeout_s):
                await self._looked.wait()
        except TimeoutError:
            raise self._failure or CallError(
                "timeout", f"no node of the Cluster answered within {timeout_s:g} s"
            ) from None
        if not self._ranges:
            raise self._failure or CallError(
                "moving", "the nodes of the Cluster know no master"
            )

    async def _look(self) -> None:
        self._failure = None
        for address in dict.fromkeys([*self._nodes, *self._seeds]):
            try:
                rows = await self._server(address).send(b"CLUSTER SLOTS")
            except CallError as failure:
                self._failure = failure
                continue
            self._learn(rows, address)
            return

    def _learn(self, rows: list[list[Any]], asked: Address) -> None:
        ranges, nodes = list[tuple[int, int, Address]](), dict[Address, None]()
        for first, last, *places in rows:
            addresses = [_address(place, asked) for place in places]
            nodes.update(dict.fromkeys(addresses))
            ranges.append((first, last, addresses[0]))
        self._ranges = ranges
        self._masters.clear()
        self._failing &= {address for _, _, address in ranges}
        # The next read asks another node: a single one may be cut off from the others.
        nodes.pop(asked, None)
        self._nodes = [*nodes, asked]


def _address(place: list[Any], asked: Address) -> Address:
    host, port, *_ = place
    # A node that does not know its own address leaves it empty: use the one dialled.
    return Address(host.decode() if host else asked.host, port)
