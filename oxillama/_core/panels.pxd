"""Packed weights for other compiled rooms: one matrix in panels, and the memory that many of them share."""
from libc.stdint cimport int64_t, uint8_t

# Rows of one packed matrix, as the driver sees them.
cdef struct MatmulSegment:
    const uint8_t *panels
    int form
    int64_t rows
    int64_t panel_bytes


cdef class PanelMemory:
    cdef uint8_t *block
    cdef readonly int64_t nbytes
    cdef readonly int64_t used
    cdef uint8_t *take(self, int64_t nbytes) except NULL


cdef class PackedMatrix:
    cdef MatmulSegment segment
    cdef readonly int64_t rows
    cdef readonly int64_t cols
    cdef readonly str format
    cdef readonly str act
    cdef readonly int64_t nbytes
    cdef PanelMemory memory            # the panels' memory, None where they lie in `source`
    cdef const uint8_t[::1] source      # what is to be packed, or panels that lay ready; None once packed
    cdef int _shape(self, str format, int64_t rows, int64_t cols) except -1
    cdef int _source(self, object raw, str format, int64_t rows, int64_t cols) except -1
    cdef int _place(self, PanelMemory memory) except -1
