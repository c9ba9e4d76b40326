"""One request's compiled sampler: its structure."""
from libc.stdint cimport uint32_t

from oxillama._core.candidates cimport View
from oxillama._core.chain cimport Chain
from oxillama._core.history cimport Memory


cdef class SamplerCore:
    cdef readonly Chain chain
    cdef Memory m
    cdef readonly object last    # (token, logprob, ids, values) of the last draw, when it was asked for
    cdef int call_stage(self, View *v, int index) except -1
    cdef int narrow(self, View *v, const float[::1] logits, const uint32_t[::1] mask) except -3
    cdef int check(self, const float[::1] logits, const uint32_t[::1] mask) except -1
