"""A compiled chain's structure, for the sampler that runs it."""
from libc.stdint cimport int64_t

from oxillama._core.stage cimport ChainParams, Op


cdef class Chain:
    cdef ChainParams params
    cdef Op *ops
    cdef int n_ops
    cdef int64_t window     # of the penalties stage; -1 = everything
    cdef readonly int64_t keep      # tokens of history that any stage reads; -1 = everything
    cdef int chances        # stages that take a random number of their own, whatever is left
    cdef bint greedy        # a temperature of 0: the draw takes none
    cdef int mirostat
    cdef double tau
    cdef double eta
    cdef readonly int vocab
    cdef readonly tuple names
    cdef readonly tuple callables
