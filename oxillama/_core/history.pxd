"""What a request has seen: its structure, for the stages that count in it."""
from libc.stdint cimport int32_t, int64_t, uint64_t


# What a request has seen: it is what `fork` copies and `state` writes.
cdef struct Memory:
    uint64_t rng
    double mu               # mirostat's current bound on surprise, in bits
    int64_t generated       # tokens accepted after the prompt
    int32_t *history        # the last `length` tokens
    int64_t length
    int64_t capacity
    int32_t *run            # (capacity,) scratch of DRY
    int32_t *slot_token     # open addressing: token -> count within the penalty window; -1 = empty
    int32_t *slot_count
    int64_t slots           # a power of two
    int64_t used


cdef int window_count(const Memory *m, int32_t token) noexcept nogil
cdef int window_rebuild(Memory *m, int64_t window) except -1
cdef int grow(Memory *m, int64_t more, int64_t keep) except -1
cdef int take(Memory *m, int32_t token, int64_t keep, int64_t window) except -1
cdef void forget(Memory *m) noexcept
