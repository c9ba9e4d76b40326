"""The stages that edit logits."""
from oxillama._core.candidates cimport View
from oxillama._core.history cimport Memory
from oxillama._core.stage cimport ChainParams, Op


cdef void stage_bias(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_penalties(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_dry(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
