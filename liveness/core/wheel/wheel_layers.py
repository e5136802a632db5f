"""The layers of the wheel: in which list a deadline waits, and when the list moves down.

Time is counted in buckets of at most 10 ms. The lowest layer is a ring of slots; each
layer above has as many slots, each as long as a revolution of the layer below. Below the
lowest layer are the buckets of the current slot and the next one. With a timeout of 30 s:

    buckets  200 of 10 ms              deadlines within two slots, to 10 ms
    layer 0  30 slots of 1 s           the ring: one revolution is one timeout
    layer 1  30 slots of 30 s          deadlines beyond one revolution
    ...                                until more than a year is spanned

With a timeout of a day a slot of the ring is 48 minutes, and two layers lie below it.

An entry waits in the lowest layer that reaches its deadline. One slot ahead of time a
slot's list is detached as a whole, and a bucket's once the bucket has passed. Detached
lists wait in queues, from which the wheel moves their entries down (it *cascades* them)
in bounded steps.

Source: Varghese & Lauck, SOSP 1987, schemes 6 and 7.
"""

from collections import deque
from typing import NamedTuple

from liveness.core.wheel.table import Table


class Layers:
    """The lists of buckets and slots, and the hand that moves over them.

    Args:
        table: Where the lists are.
        slots: Slots of a layer.
        per_slot: Buckets in a slot of the lowest layer.
        bucket_s: Seconds of a bucket.
        ring: The layer whose revolution is one timeout.
        origin: Attended seconds at the start.
        horizon_s: Seconds that all layers together span at least.
    """

    def __init__(
        self,
        table: Table,
        *,
        slots: int,
        per_slot: int,
        bucket_s: float,
        ring: int,
        origin: float,
        horizon_s: float,
    ) -> None:
        self.bucket = 0  # the newest bucket that has passed
        # Detached lists: of passed buckets, and of slots by layer.
        self.passed: deque[int] = deque()
        self.cascading: list[deque[int]] = []
        self._table = table
        self._slots = slots
        self._per_slot = per_slot
        self._bucket_s = bucket_s
        self._scale = 1 / bucket_s
        self._ring = ring
        self._origin = origin
        self._buckets = [table.new_list() for _ in range(2 * per_slot)]
        self._layers: list[list[int]] = []
        self._widths: list[int] = []  # buckets in a slot, by layer
        self._cascaded: list[int] = []  # the newest slot detached, by layer
        width = per_slot
        while width * bucket_s <= horizon_s:
            self._layers.append([table.new_list() for _ in range(slots)])
            self._widths.append(width)
            self._cascaded.append(1 if width == per_slot else 0)
            self.cascading.append(deque())
            width *= slots

    # --- where a deadline waits -------------------------------------------------

    def has_passed(self, deadline: float) -> bool:
        return self._due_bucket(deadline) <= self.bucket

    def list_for(self, deadline: float) -> int:
        bucket = max(self._due_bucket(deadline), self.bucket + 1)
        if bucket - self.bucket <= len(self._buckets):
            return self._buckets[bucket % len(self._buckets)]
        layer, slot = self._slot_for(bucket)
        return self._layers[layer][slot]

    def _slot_for(self, bucket: int) -> tuple[int, int]:
        """The lowest layer that reaches a bucket, and the slot."""
        for layer, (width, cascaded) in enumerate(
            zip(self._widths, self._cascaded, strict=True)
        ):
            slot = (bucket - 1) // width
            # A detached slot's place is empty, and so free for the slot a whole
            # revolution ahead: 30 places hold exactly 30 slots.
            if slot - cascaded <= self._slots:
                return layer, slot % self._slots
        ahead_s = bucket * self._bucket_s
        raise ValueError(f"a deadline {ahead_s} s ahead is too far")

    def _due_bucket(self, deadline: float) -> int:
        # Bucket n ends at the first border after its deadlines. This is the expression
        # by which `detach` finds the passed buckets: multiplication keeps order, so no
        # rounding puts a deadline into a bucket that passes before the deadline.
        return int((deadline - self._origin) * self._scale) + 1

    # --- the hand -------------------------------------------------------------

    def detach(self, now: float) -> None:
        """Move the hand to *now*; queue the lists that this makes ready."""
        bucket = int((now - self._origin) * self._scale)
        passed = bucket - self.bucket
        if passed <= 0:
            return
        size = len(self._buckets)
        for step in range(min(passed, size)):
            self._queue(self._buckets, (self.bucket + 1 + step) % size, self.passed)
        self.bucket = bucket
        # A slot is ready once all of it fits below. In layer 0 that is one slot ahead,
        # as the buckets span two; above, one slot of the layer below ahead, as a layer
        # spans just one revolution.
        ready = bucket // self._per_slot + 1
        for number, layer in enumerate(self._layers):
            if number:
                ready = (bucket // self._widths[number - 1] + 1) // self._slots
            last = self._cascaded[number]
            for slot in range(max(last, ready - self._slots) + 1, ready + 1):
                self._queue(layer, slot % self._slots, self.cascading[number])
            self._cascaded[number] = max(last, ready)

    def _queue(self, layer: list[int], at: int, queue: deque[int]) -> None:
        """Queue the list at a place of a layer, and put an empty one there."""
        if self._table.count[layer[at]]:
            queue.append(layer[at])
            layer[at] = self._table.new_list()

    def next_due(self) -> float:
        """The attended moment at which there will next be something to detach or move."""
        if self.passed or any(self.cascading):
            return self._passes_at(self.bucket)
        boundary = (self.bucket // self._per_slot + 1) * self._per_slot
        buckets, count, size = self._buckets, self._table.count, len(self._buckets)
        for bucket in range(self.bucket + 1, boundary):
            if count[buckets[bucket % size]]:
                return self._passes_at(bucket)
        return self._passes_at(boundary)

    def _passes_at(self, bucket: int) -> float:
        """The first moment at which `detach` counts *bucket* as passed."""
        moment = self._origin + bucket * self._bucket_s
        while int((moment - self._origin) * self._scale) < bucket:
            # Rounding left the moment just before the border. Without this step the
            # loop would wake again and again for a bucket that never passes.
            moment += max(self._bucket_s * 1e-6, moment * 2**-52)
        return moment

    # --- views ----------------------------------------------------------------

    def slot_of(self, deadline: float) -> tuple[int, int]:
        """Return layer and slot of a deadline that has not passed.

        A bucket counts as part of its slot of the lowest layer.
        """
        return self._slot_for(self._due_bucket(deadline))

    def counts(self) -> "LayerCounts":
        count = self._table.count
        return LayerCounts(
            self.bucket,
            self._ring,
            self._widths,
            [count[sentinel] for sentinel in self._buckets],
            [[count[sentinel] for sentinel in layer] for layer in self._layers],
            [[count[sentinel] for sentinel in queue] for queue in self.cascading],
        )


class LayerCounts(NamedTuple):
    """How many users are in each list, for both wheels."""

    bucket: int  # the newest that has passed
    ring: int
    widths: list[int]  # buckets in a slot, by layer
    buckets: list[int]
    layers: list[list[int]]
    cascading: list[list[int]]  # in detached lists of slots, by layer

    @property
    def hand(self) -> float:
        """Where on the ring the hand is, in slots: from 0 to below their number."""
        return self.bucket / self.widths[self.ring] % len(self.layers[0])

    def slot_users(self) -> list[int]:
        """Count the users that come due in each slot of the ring, by place on the ring.

        Users in layers below count for their slot of the ring. Those due beyond one
        revolution, or due already, are not counted.
        """
        slots, ring = len(self.layers[0]), self.widths[self.ring]
        users, size = [0] * slots, len(self.buckets)
        for bucket in range(self.bucket + 1, self.bucket + size + 1):
            users[(bucket - 1) // ring % slots] += self.buckets[bucket % size]
        for layer, width, queue in zip(
            self.layers[: self.ring + 1], self.widths, self.cascading, strict=False
        ):
            current = self.bucket // width
            for slot in range(current + 1, current + slots + 1):
                users[slot * width // ring % slots] += layer[slot % slots]
            users[(current + 1) * width // ring % slots] += sum(queue)
        return users
