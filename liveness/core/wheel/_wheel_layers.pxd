"""What the wheel uses of its layers.

What every move needs is here, so that gcc inlines it in the wheel's loops.
"""

from libc.stdint cimport int32_t, int64_t

from liveness.core.wheel._table cimport Table

cdef struct Queue:
    int32_t first, last


cdef class Layers:
    cdef int slots, ring, layers
    cdef double bucket_s, origin, scale
    cdef int64_t per_slot, size, bucket
    cdef Table table
    # Lists by their numbers in the table.
    cdef int32_t *buckets
    cdef int32_t *layer_lists
    cdef int64_t *widths
    cdef int64_t *cascaded
    cdef Queue passed
    cdef Queue *cascading

    cdef int64_t too_far(self, double moment) except -1
    cdef int detach(self, double now) except -1
    cdef int queue(self, int32_t *at, Queue *queue) except -1
    cdef double next_due(self) except? -1
    cdef double passes_at(self, int64_t bucket) except? -1
    cdef tuple slot_of(self, double deadline)
    cdef object counts(self)
    cdef list counts_of(self, const int32_t *lists, int64_t size)
    cdef list queued(self, const Queue *queue)

    cdef inline int64_t border_before(self, double moment) except? -1:
        """The last bucket border that is not after *moment*."""
        cdef double at = (moment - self.origin) * self.scale
        if not -1e18 < at < 1e18:
            return self.too_far(moment)
        return <int64_t> at

    cdef inline bint has_passed(self, double deadline) except -1:
        """Whether the bucket of a deadline has passed."""
        return self.border_before(deadline) + 1 <= self.bucket

    cdef inline int32_t list_for(self, double deadline) except -1:
        """The bucket or slot for a deadline that has not passed."""
        cdef int64_t bucket = self.border_before(deadline) + 1, slot
        cdef int layer
        if bucket <= self.bucket:
            bucket = self.bucket + 1
        if bucket - self.bucket <= self.size:
            return self.buckets[bucket % self.size]
        for layer in range(self.layers):
            slot = (bucket - 1) // self.widths[layer]
            if slot - self.cascaded[layer] <= self.slots:
                return self.layer_lists[layer * self.slots + slot % self.slots]
        return self.too_far(deadline)

