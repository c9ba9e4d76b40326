"""Rule networks: their compiled face, and the growable arrays that the machine uses too."""
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free, realloc


cdef enum:
    FINAL = 1
    IMPORTANT = 2


cdef struct Ints:
    int32_t *data
    Py_ssize_t n
    Py_ssize_t cap


cdef inline int put(Ints *v, int32_t x) except -1:
    cdef Py_ssize_t cap
    cdef int32_t *grown
    if v.n == v.cap:
        cap = 2 * v.cap if v.cap else 64
        grown = <int32_t *>realloc(v.data, cap * sizeof(int32_t))
        if grown == NULL:
            raise MemoryError()
        v.data = grown
        v.cap = cap
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


cdef class Networks:
    cdef Ints eps, byte_edges, call_edges, reps, rule_start, rule_final
    cdef Ints eps_at, byte_at, call_at                   # first edge of each state
    cdef Ints set_work                                   # the state set that _close closes
    cdef Py_ssize_t nfa_states, max_states
    cdef int32_t *stamp
    cdef uint8_t *state_flags                            # FINAL; IMPORTANT: has an edge that consumes or calls, or is final
    cdef Ints rule_flags
    cdef int32_t stamp_now
    cdef readonly int symbols, width
    cdef object deferred                                 # rules that are written when they are first called
    cdef object bodies, outer, inner, bodies_seen, weights, utf8_cache, uses, tails       # only while building, or while rules are deferred
    cdef int build(self, list rules, int symbols, names, Py_ssize_t max_states, deferred) except -1
    cdef Py_ssize_t _inner(self, Py_ssize_t index, rules) except -1
    cdef Py_ssize_t _number(self, body) except -1
    cdef Py_ssize_t _called(self, node) except -1
    cdef bint _copied(self, Py_ssize_t rule) except -1
    cdef int _grow(self, Py_ssize_t rule, names) except -1
    cdef int _emit_rule(self, Py_ssize_t rule) except -1
    cdef int32_t _needed(self, Py_ssize_t edge) noexcept
    cdef int32_t _state(self) except -1
    cdef int _eps(self, int32_t a, int32_t b) except -1
    cdef int _bytes(self, int32_t a, int32_t low, int32_t high, int32_t b) except -1
    cdef int _call(self, int32_t a, int32_t rule, int32_t rep, int32_t b) except -1
    cdef Py_ssize_t _most(self, rule) except -1
    cdef Py_ssize_t _weigh(self, node, int depth) except -1
    cdef int _emit(self, node, int32_t a, int32_t b, int depth) except -1
    cdef int _emit_class(self, ranges, int32_t a, int32_t b) except -1
    cdef int _emit_repeat(self, body, Py_ssize_t least, Py_ssize_t most, int32_t a, int32_t b, int depth) except -1
    cdef int _close(self) except -1
