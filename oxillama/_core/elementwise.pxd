"""The embedding table's C side."""
from libc.stdint cimport int64_t


cdef class EmbeddingTable:
    cdef const unsigned char[::1] raw
    cdef readonly str format
    cdef readonly int rows
    cdef readonly int cols
    cdef size_t row_bytes
    cdef readonly object pager          # what reads its rows before each step, None: they are in memory
    cdef readonly str name
    cdef int file
    cdef int64_t offset
    cdef void (*unpack)(float *dst, const void *src, int64_t columns) noexcept nogil
    cdef int _shape(self, str format, int rows, int cols) except -1
