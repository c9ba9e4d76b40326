"""Where what is kept of a token lies, and the key that a block of tokens became."""
from oxillama._core.step cimport Step

cdef float *token_row(const Step *step, int layer, int row, int position) noexcept nogil
cdef const float *block_key(const Step *step, int layer, int row, int block, int ratio) noexcept nogil
