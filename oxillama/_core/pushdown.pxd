"""The pushdown machine's compiled face, for the token trie that walks it."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from oxillama._core.networks cimport Ints, Networks


cdef struct Sequences:
    Ints pool            # all sequences, end to end
    Ints start           # count + 1 offsets into pool
    int32_t *slots       # open addressing, -1 = free
    Py_ssize_t mask
    Py_ssize_t count


cdef class Machine(Networks):
    cdef Py_ssize_t max_configs, max_items
    cdef int32_t max_depth
    # the lazily built automaton (rebuilt by collect)
    cdef Sequences dstates, frames, stacks, configs, unions
    cdef Ints d_accept, d_segs, d_seg_at, d_calls, d_call_at, d_pure, s_depth, u_result, c_flags, start_of
    cdef Ints d_gen, d_expand, d_return, d_pending
    cdef Ints d_cover
    cdef int32_t **rows
    cdef Py_ssize_t rows_cap
    cdef Ints roots, free_roots
    cdef Ints work, items, scratch, bounds, touched
    cdef int32_t gen
    cdef readonly bint too_deep
    cdef bint writing                                    # a deferred rule is being written, under `lock`
    cdef object lock
    cdef readonly int64_t epoch, serial

    cdef int32_t *row(self, int32_t config) except NULL
    cdef int32_t exact_cover(self, int32_t config) except -2
    cdef int32_t _cover(self, int32_t config, int u8) except -1
    cdef int32_t cover(self, int32_t config, int u8) except -1
    cdef int32_t union_configs(self, int32_t a, int32_t b) except -1
    cdef int32_t start_config(self) except -1
    cdef int accepts(self, int32_t config) noexcept
    cdef int has_symbols(self, int32_t config) except -1
    cdef int room(self) except -1

    cdef void _free_automaton(self) noexcept
    cdef int _reset(self) except -1
    cdef int32_t _dstate(self) except -1
    cdef int32_t _start(self, int32_t rule) except -1
    cdef int _write(self, int32_t rule) except -1
    cdef int _segments(self, int32_t d) except -1
    cdef int _calls(self, int32_t d) except -1
    cdef int32_t _push(self, int32_t frame, int32_t stack) except -2
    cdef int32_t _union(self, int32_t a, int32_t b) except -1
    cdef int _visit(self, int32_t d, int32_t stack, int fresh) except -1
    cdef int _begin(self) noexcept
    cdef int32_t _finish(self) except -1
    cdef int32_t _intern_config(self, int32_t accept) except -1
    cdef int _explore(self, int32_t d, int u8, int loop) except -1
    cdef int _covers(self, int32_t d, int u8) except -1

cdef class Cursor:
    cdef readonly Machine machine
    cdef Py_ssize_t slot
    cdef int32_t config(self) noexcept
    cdef void place(self, int32_t config) noexcept
    cdef int32_t _walk(self, const uint8_t[::1] data, int symbol) except -1
