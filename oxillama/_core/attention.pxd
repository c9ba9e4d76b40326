"""What the tape prepares for attention before a step: tiles of rows."""
from oxillama._core.step cimport Step, Tiles

cdef void cut_tiles(const Step *step, Tiles *tiles) noexcept nogil
