"""What the tape prepares for attention before a step: tiles of rows, and room for the results of single splits."""
from oxillama._core.step cimport Step, Tiles

cdef void cut_tiles(const Step *step, Tiles *tiles) noexcept nogil
cdef size_t partial_floats_wanted(const void *args, const Step *step, int nth) noexcept nogil
cdef int done_items_wanted(const void *args, const Step *step) noexcept nogil
