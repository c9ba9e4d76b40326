"""Growable arrays of int32, and sequences of int32 interned to small ids: equal content, equal id. All of it is inlined where it is used."""
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memset


cdef struct Ints:
    int32_t *data
    Py_ssize_t n
    Py_ssize_t cap


cdef inline int reserve(Ints *v, Py_ssize_t more) except -1:
    """Makes room for `more` further numbers: `put` cannot fail for these."""
    cdef Py_ssize_t cap = v.cap if v.cap else 64
    cdef int32_t *grown
    if v.n + more <= v.cap:
        return 0
    while cap < v.n + more:
        cap *= 2
    grown = <int32_t *>realloc(v.data, cap * sizeof(int32_t))
    if grown == NULL:
        raise MemoryError()
    v.data = grown
    v.cap = cap
    return 0


cdef inline int put(Ints *v, int32_t x) except -1:
    if v.n == v.cap:
        reserve(v, 1)
    v.data[v.n] = x
    v.n += 1
    return 0


cdef inline void drop(Ints *v) noexcept:
    free(v.data)
    v.data = NULL
    v.n = v.cap = 0


cdef inline int ascending(const void *a, const void *b) noexcept nogil:
    cdef int32_t x = (<const int32_t *>a)[0]
    cdef int32_t y = (<const int32_t *>b)[0]
    return (x > y) - (x < y)


cdef struct Sequences:
    Ints pool            # all sequences, end to end
    Ints start           # count + 1 offsets into pool
    int32_t *slots       # open addressing, -1 = free
    Py_ssize_t mask
    Py_ssize_t count


cdef inline int open_sequences(Sequences *t) except -1:
    memset(t, 0, sizeof(Sequences))
    t.mask = 255
    t.slots = <int32_t *>malloc((t.mask + 1) * sizeof(int32_t))
    if t.slots == NULL:
        raise MemoryError()
    memset(t.slots, 0xFF, (t.mask + 1) * sizeof(int32_t))
    return put(&t.start, 0)


cdef inline void clear_sequences(Sequences *t) noexcept:
    """Forgets all sequences and keeps the memory."""
    t.pool.n = 0
    t.start.n = 1
    t.count = 0
    memset(t.slots, 0xFF, (t.mask + 1) * sizeof(int32_t))


cdef inline void close_sequences(Sequences *t) noexcept:
    drop(&t.pool)
    drop(&t.start)
    free(t.slots)
    t.slots = NULL


cdef inline uint64_t mix(int32_t *seq, Py_ssize_t n) noexcept:
    cdef uint64_t h = <uint64_t>0x9E3779B97F4A7C15 ^ <uint64_t>n
    cdef Py_ssize_t i
    for i in range(n):
        h = (h ^ <uint32_t>seq[i]) * <uint64_t>0xFF51AFD7ED558CCD
        h ^= h >> 32
    return h


cdef inline int32_t *seq_at(Sequences *t, int32_t i) noexcept:
    return t.pool.data + t.start.data[i]


cdef inline Py_ssize_t seq_len(Sequences *t, int32_t i) noexcept:
    return t.start.data[i + 1] - t.start.data[i]


cdef inline int rehash(Sequences *t) except -1:
    """A slot table four times as large."""
    cdef Py_ssize_t i, at, size = 4 * (t.mask + 1)
    cdef int32_t *slots = <int32_t *>malloc(size * sizeof(int32_t))
    if slots == NULL:
        raise MemoryError()
    memset(slots, 0xFF, size * sizeof(int32_t))
    free(t.slots)
    t.slots = slots
    t.mask = size - 1
    for i in range(t.count):
        at = <Py_ssize_t>(mix(seq_at(t, <int32_t>i), seq_len(t, <int32_t>i)) & <uint64_t>t.mask)
        while t.slots[at] >= 0:
            at = (at + 1) & t.mask
        t.slots[at] = <int32_t>i
    return 0


cdef inline int32_t find(Sequences *t, int32_t *seq, Py_ssize_t n) noexcept:
    """The id of a sequence, -1 where it is not in the table."""
    cdef Py_ssize_t at = <Py_ssize_t>(mix(seq, n) & <uint64_t>t.mask)
    cdef int32_t other
    while t.slots[at] >= 0:
        other = t.slots[at]
        if seq_len(t, other) == n and (n == 0 or memcmp(seq_at(t, other), seq, n * sizeof(int32_t)) == 0):     # it takes no NULL
            return other
        at = (at + 1) & t.mask
    return -1


cdef inline int32_t intern(Sequences *t, int32_t *seq, Py_ssize_t n) except -1:
    """The id of a sequence, new ones appended; `seq` must not point into the table's own pool. All memory is reserved before anything
    changes: a failed allocation leaves the table as it was. Tables kept beside this one must reserve their memory before the call."""
    cdef Py_ssize_t at, i
    cdef int32_t known = find(t, seq, n)
    if known >= 0:
        return known
    reserve(&t.pool, n)
    reserve(&t.start, 1)
    if 2 * (t.count + 1) > t.mask:
        rehash(t)
    at = <Py_ssize_t>(mix(seq, n) & <uint64_t>t.mask)
    while t.slots[at] >= 0:
        at = (at + 1) & t.mask
    for i in range(n):
        t.pool.data[t.pool.n + i] = seq[i]
    t.pool.n += n
    t.start.data[t.start.n] = <int32_t>t.pool.n
    t.start.n += 1
    known = <int32_t>t.count
    t.slots[at] = known
    t.count += 1
    return known
