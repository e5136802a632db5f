"""What `_wire` uses of `_timer_requests`."""

cdef object timer_request(const unsigned char *at)
