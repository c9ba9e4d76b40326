"""The determinised layer's compiled face."""
from libc.stdint cimport int32_t

from oxillama._core.emission cimport Emission
from oxillama._core.sequences cimport Ints, Sequences


cdef class Dstates(Emission):
    cdef Sequences dstates, frames
    cdef Ints start_of                                   # dstate of each rule's start, -1 where not asked for yet
    cdef Ints d_segs, d_calls                            # all segments and calls, each dstate's behind their count
    cdef Ints d_accept, d_pure, d_seg_at, d_call_at      # by dstate; pure: the rule ends there and nothing else can follow in it
    cdef Ints d_gen, d_expand, d_return, d_pending       # by dstate: where it stands in the closure that is being made
    cdef Ints d_cover                                    # eight by dstate: what is proved of plain text (cover.pyx)
    cdef Ints bounds
    cdef void _clear_dstates(self) noexcept
    cdef int32_t _dstate(self) except -1
    cdef int32_t _start(self, int32_t rule) except -1
    cdef int _write(self, int32_t rule) except -1
    cdef int _segments(self, int32_t d) except -1
    cdef int _calls(self, int32_t d) except -1
