"""What a request has seen: its last tokens, and how often each occurs within the penalty window (open addressing)."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove, memset


cdef int64_t find_slot(const Memory *m, int32_t token) noexcept nogil:
    cdef uint64_t h = <uint64_t>token * 0x9e3779b97f4a7c15ULL
    cdef int64_t s = <int64_t>(h >> 32) & (m.slots - 1)
    while m.slot_token[s] >= 0 and m.slot_token[s] != token:
        s = (s + 1) & (m.slots - 1)
    return s


cdef int window_count(const Memory *m, int32_t token) noexcept nogil:
    cdef int64_t s = find_slot(m, token)
    return m.slot_count[s] if m.slot_token[s] == token else 0


cdef void window_add(Memory *m, int32_t token, int by) noexcept nogil:
    cdef int64_t s = find_slot(m, token)
    if m.slot_token[s] < 0:
        m.slot_token[s] = token
        m.slot_count[s] = 0
        m.used += 1
    m.slot_count[s] += by


cdef int window_rebuild(Memory *m, int64_t window) except -1:
    """Counts the history again in a table for twice the distinct tokens. If memory cannot be allocated, the counts stay as they were."""
    cdef int64_t n = m.length if window < 0 or window > m.length else window
    cdef int64_t slots = 64, i, distinct = 0
    cdef Memory made = m[0]
    for i in range(m.slots):
        distinct += m.slot_token[i] >= 0 and m.slot_count[i] > 0
    while slots < 4 * (distinct + 1):
        slots *= 2
    while True:
        made.slot_token, made.slot_count = <int32_t *>malloc(slots * 4), <int32_t *>malloc(slots * 4)
        made.slots, made.used = slots, 0
        if made.slot_token == NULL or made.slot_count == NULL:
            free(made.slot_token)
            free(made.slot_count)
            raise MemoryError("penalty window")
        memset(made.slot_token, 0xff, slots * 4)
        for i in range(m.length - n, m.length):
            if made.used * 2 >= slots:
                break
            window_add(&made, m.history[i], 1)
        else:
            free(m.slot_token)
            free(m.slot_count)
            m[0] = made
            return 0
        free(made.slot_token)
        free(made.slot_count)
        slots *= 2


cdef int grow(Memory *m, int64_t more, int64_t keep) except -1:
    """Makes room for more tokens; of the older ones the last `keep` stay (-1: all)."""
    cdef int64_t capacity
    if m.length + more <= m.capacity:
        return 0
    if keep >= 0 and m.length > keep:
        memmove(m.history, m.history + (m.length - keep), keep * 4)
        m.length = keep
    capacity = 2 * (m.length + more) + 256
    if capacity > m.capacity:
        history = <int32_t *>realloc(m.history, capacity * 4)
        if history == NULL:
            raise MemoryError("sampler history")
        m.history = history
        run = <int32_t *>realloc(m.run, capacity * 4)
        if run == NULL:
            raise MemoryError("sampler history")
        m.run = run
        m.capacity = capacity
    return 0


cdef int take(Memory *m, int32_t token, int64_t keep, int64_t window) except -1:
    """Adds a token; the counts go on over the last `window` tokens (-1: all). Where memory is refused it is not added."""
    grow(m, 1, keep)
    if window != 0 and 2 * (m.used + 1) > m.slots:
        window_rebuild(m, window)
    m.history[m.length] = token
    m.length += 1
    if window != 0:
        window_add(m, token, 1)
        if 0 < window < m.length:
            window_add(m, m.history[m.length - 1 - window], -1)
    return 0


cdef void forget(Memory *m) noexcept:
    """Frees all of it."""
    free(m.history)
    free(m.run)
    free(m.slot_token)
    free(m.slot_count)
