"""The pushdown machine's compiled face, for cursors, proofs and the token trie that walk it."""
cimport cython
from libc.stdint cimport int32_t, int64_t

from oxillama._core.dstates cimport Dstates
from oxillama._core.sequences cimport Ints, Sequences


cdef enum:
    FROZEN = 1 << 30      # a count that is not changed any more, because no bound is near
    LENGTHS = 5           # parts of a vocabulary, by length
    HORIZONS = 16         # and numbers of bytes within which counts are asked about


cdef class Machine(Dstates):
    cdef cython.pymutex turn                             # held through each operation: see cursor.pyx
    cdef Py_ssize_t max_configs, max_items
    cdef int32_t max_depth
    cdef Sequences stacks, configs, unions
    cdef Sequences values, wordsets                      # of registers: (count, word set, members' bits ...); sorted numbers of words
    cdef list words                                      # by number
    cdef dict word_numbers, without                      # (rule, words) -> the rule of the language without them
    cdef readonly Py_ssize_t removed_states              # network states of the rules in `without`
    cdef object unplaced                                 # the cursors' positions while a failed `collect` has not been made good
    cdef Ints s_depth, u_result                          # by stack, by union
    cdef Ints c_flags                                    # by config: 1 + its cover, -1 - what is known of it, 0 where not asked for yet
    cdef Ints s_frozen                                   # the same by stack
    cdef Ints c_frozen                                   # by config and horizon: what `frozen` gives, -1 where not asked for yet
    cdef Ints c_home                                     # by config: 8 times the one behind the rest of a character + its state (trie.pyx)
    cdef Ints c_loops                                    # three by config: what is known of the kinds of bytes that lead back to it
    cdef Ints c_next                                     # three by config: a config behind it, and the kinds of bytes that lead there
    cdef Ints c_deep                                     # by config: 1 where max_depth cuts off what might follow
    cdef int32_t **rows
    cdef Py_ssize_t rows_cap
    cdef Ints roots, free_roots                          # the cursors' configs, and their slots that are free
    cdef Ints work, items, scratch, touched
    cdef int32_t gen
    cdef bint still                                      # whether a mask is asked for where counts stand still
    cdef bint too_deep                                   # whether max_depth cut something off in this closure
    cdef Py_ssize_t walked                               # nodes of tries that the last mask looked at
    cdef int patience                                    # positions that proofs may still look at for this mask
    cdef Py_ssize_t steps, spent, budget                 # of this closure; of those before it in a mask; at most (0: any number)
    cdef readonly int64_t epoch, serial
    cdef int32_t _value(self, int32_t count, int32_t words, int32_t *bits, Py_ssize_t n) except -1
    cdef int32_t _taken(self, int32_t value, int32_t guard, int32_t scope) except -2
    cdef bint _closes(self, int32_t value, int32_t scope) noexcept
    cdef int32_t _single(self, int32_t frame, int32_t parent) except -1
    cdef int _guard(self, int32_t ret, int32_t rep, int32_t stack) except -1
    cdef int _fresh(self, int32_t rule, int32_t frame, int32_t rep, int32_t stack) except -1
    cdef int32_t _rule_without(self, int32_t rule, int32_t family, int32_t words) except -2
    cdef int32_t _marked(self, int32_t stack) except -1
    cdef int32_t _frozen(self, int32_t frame, int32_t horizon) except -1
    cdef int32_t _stack_frozen(self, int32_t stack, int length, int32_t horizon) except -1
    cdef int32_t frozen(self, int32_t config, int length, int32_t horizon) except -1
    cdef int32_t _noted(self, int32_t config, object word) except -1
    cdef int32_t _stack_noted(self, int32_t stack, object word, dict memo) except -1
    cdef int _reset(self) except -1
    cdef int32_t _push(self, int32_t frame, int32_t stack) except -2
    cdef int32_t _union(self, int32_t a, int32_t b) except -1
    cdef int _visit(self, int32_t d, int32_t stack, int fresh) except -1
    cdef int _begin(self) noexcept
    cdef int32_t _follow(self, int32_t config) except -1
    cdef int32_t _finish(self) except -1
    cdef int32_t _intern_config(self, int32_t accept) except -1
    cdef int32_t start_config(self) except -1
    cdef int accepts(self, int32_t config) noexcept
    cdef int32_t union_configs(self, int32_t a, int32_t b) except -1
    cdef int32_t *row(self, int32_t config) except NULL
    cdef int _make_room_for(self, int32_t config) except -1
    cdef int _fill_from_one(self, int32_t config, int32_t *row) except -1
    cdef int _fill_from_many(self, int32_t config, int32_t *row) except -1
