"""Where the key that a block of tokens became lies."""
from oxillama._core.step cimport Step

cdef const float *block_key(const Step *step, int layer, int row, int block, int ratio) noexcept nogil
