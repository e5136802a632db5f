# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The layers of the wheel, compiled; it behaves as `wheel_layers`, which documents it."""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t, int64_t, uintptr_t

from liveness.core.wheel._table cimport NONE, Table, room_for
from liveness.core.wheel.wheel_layers import LayerCounts


@cython.no_gc  # its object, the table, has none
cdef class Layers:
    """The lists of buckets and slots; see `wheel_layers.Layers`."""

    def __cinit__(
        self, Table table not None, *, int slots, int64_t per_slot, double bucket_s,
        int ring, double origin, double horizon_s,
    ):
        cdef int64_t width
        cdef int at
        self.table, self.passed = table, Queue(NONE, NONE)
        self.slots, self.per_slot, self.ring, self.origin = slots, per_slot, ring, origin
        self.bucket_s, self.scale = bucket_s, 1 / bucket_s
        self.size = 2 * per_slot
        width = per_slot
        while width * bucket_s <= horizon_s:
            self.layers += 1
            width *= slots
        self.buckets = <int32_t *> room_for(self.size, sizeof(int32_t))
        self.layer_lists = <int32_t *> room_for(self.layers * slots, sizeof(int32_t))
        self.widths = <int64_t *> room_for(self.layers, sizeof(int64_t))
        self.cascaded = <int64_t *> room_for(self.layers, sizeof(int64_t))
        self.cascading = <Queue *> room_for(self.layers, sizeof(Queue))
        for at in range(self.size):
            self.buckets[at] = table.new_list()
        for at in range(self.layers * slots):
            self.layer_lists[at] = table.new_list()
        width = per_slot
        for at in range(self.layers):
            self.widths[at] = width
            self.cascaded[at] = 0 if at else 1
            self.cascading[at] = Queue(NONE, NONE)
            width *= slots

    def __dealloc__(self):
        for memory in (
            <uintptr_t> self.buckets, <uintptr_t> self.layer_lists,
            <uintptr_t> self.widths, <uintptr_t> self.cascaded,
            <uintptr_t> self.cascading,
        ):
            PyMem_Free(<void *> <uintptr_t> memory)

    cdef int64_t too_far(self, double moment) except -1:
        raise ValueError(f"a deadline {moment - self.origin} s ahead is too far")

    # --- the hand -------------------------------------------------------------

    cdef int detach(self, double now) except -1:
        """Move the hand to *now*; queue the lists that this makes ready."""
        cdef int64_t bucket = self.border_before(now)
        cdef int64_t passed = bucket - self.bucket, step, ready, last, slot
        cdef int layer
        if passed <= 0:
            return 0
        for step in range(min(passed, self.size)):
            self.queue(&self.buckets[(self.bucket + 1 + step) % self.size], &self.passed)
        self.bucket = bucket
        ready = bucket // self.per_slot + 1
        for layer in range(self.layers):
            if layer:
                ready = (bucket // self.widths[layer - 1] + 1) // self.slots
            last = self.cascaded[layer]
            for slot in range(max(last, ready - self.slots) + 1, ready + 1):
                self.queue(
                    &self.layer_lists[layer * self.slots + slot % self.slots],
                    &self.cascading[layer],
                )
            self.cascaded[layer] = max(last, ready)
        return 0

    cdef int queue(self, int32_t *at, Queue *queue) except -1:
        """Queue the list at a place of a layer, and put an empty one there."""
        cdef int32_t full = at[0]
        if self.table.lists[full].count:
            at[0] = self.table.new_list()
            if queue.last == NONE:
                queue.first = full
            else:
                self.table.lists[queue.last].after = full
            queue.last = full
        return 0

    cdef double next_due(self) except? -1:
        """The moment at which there will next be something to detach or move."""
        cdef int64_t bucket, boundary
        cdef int layer
        cdef bint is_behind = self.passed.first != NONE
        for layer in range(self.layers):
            is_behind |= self.cascading[layer].first != NONE
        if is_behind:
            return self.passes_at(self.bucket)
        boundary = (self.bucket // self.per_slot + 1) * self.per_slot
        for bucket in range(self.bucket + 1, boundary):
            if self.table.lists[self.buckets[bucket % self.size]].count:
                return self.passes_at(bucket)
        return self.passes_at(boundary)

    cdef double passes_at(self, int64_t bucket) except? -1:
        """The first moment at which *bucket* counts as passed."""
        cdef double moment = self.origin + bucket * self.bucket_s
        while self.border_before(moment) < bucket:
            moment += max(self.bucket_s * 1e-6, moment * 2.0**-52)
        return moment

    # --- views ----------------------------------------------------------------

    cdef tuple slot_of(self, double deadline):
        cdef int64_t bucket = self.border_before(deadline), slot
        cdef int layer
        for layer in range(self.layers):
            slot = bucket // self.widths[layer]
            if slot - self.cascaded[layer] <= self.slots:
                return layer, slot % self.slots
        self.too_far(deadline)

    cdef object counts(self):
        cdef int layer
        return LayerCounts(
            self.bucket,
            self.ring,
            [self.widths[layer] for layer in range(self.layers)],
            self.counts_of(self.buckets, self.size),
            [
                self.counts_of(self.layer_lists + layer * self.slots, self.slots)
                for layer in range(self.layers)
            ],
            [self.queued(&self.cascading[layer]) for layer in range(self.layers)],
        )

    cdef list counts_of(self, const int32_t *lists, int64_t size):
        cdef int64_t at
        return [self.table.lists[lists[at]].count for at in range(size)]

    cdef list queued(self, const Queue *queue):
        cdef int32_t number = queue.first
        counts = []
        while number != NONE:
            counts.append(self.table.lists[number].count)
            number = self.table.lists[number].after
        return counts
