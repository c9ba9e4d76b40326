"""The table of stages, as the chain runs it."""
from oxillama._core.candidates cimport View
from oxillama._core.history cimport Memory
from oxillama._core.stage cimport ChainParams, Op

cdef enum:
    NOTHING_LEFT = -2
    PYTHON = 100                      # op codes from here on are Python stages


cdef int run_ops(View *v, const Op *ops, int count, const ChainParams *f, Memory *m) noexcept nogil
