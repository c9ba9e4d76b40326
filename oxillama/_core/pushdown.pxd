"""The pushdown machine's compiled face, for cursors, proofs and the token trie that walk it."""
from libc.stdint cimport int32_t, int64_t

from oxillama._core.dstates cimport Dstates
from oxillama._core.sequences cimport Ints, Sequences


cdef class Machine(Dstates):
    cdef Py_ssize_t max_configs, max_items
    cdef int32_t max_depth
    cdef Sequences stacks, configs, unions
    cdef Ints s_depth, u_result                          # by stack, by union
    cdef Ints c_flags                                    # by config: 1 + its cover, 0 where not asked for yet
    cdef int32_t **rows
    cdef Py_ssize_t rows_cap
    cdef Ints roots, free_roots                          # the cursors' configs, and their slots that are free
    cdef Ints work, items, scratch, touched
    cdef int32_t gen
    cdef readonly bint too_deep
    cdef readonly int64_t epoch, serial
    cdef void _free_tables(self) noexcept
    cdef int _reset(self) except -1
    cdef int32_t _push(self, int32_t frame, int32_t stack) except -2
    cdef int32_t _union(self, int32_t a, int32_t b) except -1
    cdef int _visit(self, int32_t d, int32_t stack, int fresh) except -1
    cdef int _begin(self) noexcept
    cdef int32_t _finish(self) except -1
    cdef int32_t _intern_config(self, int32_t accept) except -1
    cdef int32_t start_config(self) except -1
    cdef int accepts(self, int32_t config) noexcept
    cdef int32_t union_configs(self, int32_t a, int32_t b) except -1
    cdef int32_t *row(self, int32_t config) except NULL
    cdef int _make_room_for(self, int32_t config) except -1
    cdef int _fill_from_one(self, int32_t config, int32_t *row) except -1
    cdef int _fill_from_many(self, int32_t config, int32_t *row) except -1
