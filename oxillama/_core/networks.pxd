"""Rule networks: their compiled face, for the layers above them."""
from libc.stdint cimport int32_t, uint8_t

from oxillama._core.sequences cimport Ints


cdef enum:
    FINAL = 1               # states: the last of a rule
    IMPORTANT = 2           # has an edge that consumes or calls, or is final
    DONE = 1                # rules: can finish
    NULLABLE = 2            # can match nothing
    REP = 5                 # numbers of an entry in `reps`


cdef enum:                  # what an entry in `reps` makes of its call edge
    COUNTED                 # a repeat: the rule, least and most times
    SCOPE                   # one call of the rule under a register: see pushdown.pyx
    GUARD                   # no call: the edge is passed where the register allows it, and changes it
    DISTINCT                # one call of a rule without the words that the register holds


cdef struct TableSizes:          # how many states and edges the tables hold at a moment
    Py_ssize_t states
    Py_ssize_t eps
    Py_ssize_t byte_edges
    Py_ssize_t call_edges
    Py_ssize_t reps


cdef class Networks:
    cdef Ints eps                                        # empty edges: (source, target)
    cdef Ints byte_edges                                 # (source, low, high, target); token symbols are bytes from 256 on
    cdef Ints call_edges                                 # (source, rule, repeat or -1, target)
    cdef Ints reps                                       # of calls that are more than a call: (rule, a, b, kind, scope or word family)
    cdef Ints rule_start, rule_final, rule_flags
    cdef Ints eps_at, byte_at, call_at                   # first edge of each state
    cdef Ints set_work                                   # the state set that _close closes
    cdef Py_ssize_t nfa_states, max_states
    cdef int32_t *stamp
    cdef int32_t stamp_now
    cdef uint8_t *state_flags
    cdef list outer                                      # number of each rule in the grammar, -1 for a repeat's body
    cdef int32_t _state(self) except -1
    cdef int _eps(self, int32_t a, int32_t b) except -1
    cdef int _bytes(self, int32_t a, int32_t low, int32_t high, int32_t b) except -1
    cdef int _call(self, int32_t a, int32_t rule, int32_t rep, int32_t b) except -1
    cdef TableSizes _sizes(self) noexcept
    cdef void _forget(self, TableSizes old) noexcept
    cdef int settle(self, list fresh, TableSizes old, names) except -1
    cdef int32_t _needed(self, Py_ssize_t edge) noexcept
    cdef int _backwards(self, list fresh, TableSizes old, bint over_bytes, int32_t flag, uint8_t *seen) except -1
    cdef int _prune(self, list fresh, TableSizes old) except -1
    cdef int _bypass_nullable(self, list fresh, TableSizes old) except -1
    cdef int _refuse_left_recursion(self, list fresh, names) except -1
    cdef int _close(self) except -1
