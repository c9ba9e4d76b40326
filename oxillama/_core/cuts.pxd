"""The stages that remove candidates, and the temperature."""
from oxillama._core.candidates cimport View
from oxillama._core.history cimport Memory
from oxillama._core.stage cimport ChainParams, Op


cdef void stage_top_n_sigma(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_top_k(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_typical(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_top_a(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_eta(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_epsilon(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_top_p(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_min_p(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_xtc(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_temperature(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
cdef void stage_mirostat(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
