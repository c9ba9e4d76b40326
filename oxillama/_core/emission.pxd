"""The emission's compiled face, for the machine that asks for deferred rules."""
from libc.stdint cimport int32_t

from oxillama._core.networks cimport Networks
from oxillama._core.sequences cimport Ints


cpdef enum:                 # kinds of nodes
    LITERAL
    CLASS
    SEQUENCE
    CHOICE
    REPEAT
    RULE
    SYMBOL
    NETWORK
    REGISTER
    TAKE
    FRESH


cdef class Emission(Networks):
    cdef readonly int symbols, width                     # token symbols; 256 + symbols
    cdef object deferred                                 # rules that are written when they are first called
    cdef list bodies                                     # these only while building, or while rules are deferred
    cdef dict inner, bodies_seen, weights, uses
    cdef list families                                   # of distinct words: how a language goes on without some words
    cdef Ints scopes                                     # registers: where their numbers begin, see pushdown.pyx
    cdef dict scope_at
    cdef bint counting                                   # some register only counts, or some repeat is counted on the stack
    cdef bint distinct                                   # some rule calls for distinct words
    cdef dict tails                                      # (tail, b): the state from which exactly this tail of byte ranges leads to b
    cdef dict heads                                      # (ranges beyond ASCII, b): the edges that such a class begins with
    cdef int build(self, list rules, int symbols, names, Py_ssize_t max_states, deferred) except -1
    cdef Py_ssize_t _inner(self, Py_ssize_t index, rules) except -1
    cdef Py_ssize_t _number(self, body) except -1
    cdef Py_ssize_t _called(self, node) except -1
    cdef Py_ssize_t _most(self, rule) except -1
    cdef int _count_uses(self, bodies) except -1
    cdef bint _copied(self, Py_ssize_t rule) except -1
    cdef Py_ssize_t _weigh(self, node, int depth) except -1
    cdef int _emit(self, node, int32_t a, int32_t b, int depth) except -1
    cdef int _emit_apart(self, node, int32_t a, int32_t b, int depth) except -1
    cdef int _emit_choice(self, parts, int32_t a, int32_t b, int depth) except -1
    cdef int _emit_literal(self, bytes data, int32_t a, int32_t b) except -1
    cdef int _emit_sequence(self, parts, int32_t a, int32_t b, int depth) except -1
    cdef int _emit_network(self, int32_t start, states, int32_t a, int32_t b, int depth) except -1
    cdef int _begin_alike(self, int32_t a, tuple known) except -1
    cdef int _emit_class(self, ranges, int32_t a, int32_t b) except -1
    cdef int _emit_repeat(self, body, Py_ssize_t least, Py_ssize_t most, int32_t a, int32_t b, int depth) except -1
    cdef int _emit_scope(self, node, int32_t a, int32_t b) except -1
    cdef int _emit_take(self, node, int32_t a, int32_t b) except -1
    cdef int _emit_fresh(self, node, int32_t a, int32_t b) except -1
    cdef int32_t _apart(self, node) except -1
    cdef int _rep(self, int32_t rule, int32_t x, int32_t y, int32_t kind, int32_t more) except -1
    cdef int _grow(self, Py_ssize_t rule, names) except -1
    cdef int _emit_rule(self, Py_ssize_t rule, list fresh) except -1
