"""Packed weights for other compiled modules: one matrix in panels, and the memory that many of them share."""
from libc.stdint cimport int32_t, int64_t, uint8_t

# Rows of one packed matrix, as the driver sees them.
cdef struct MatmulSegment:
    const uint8_t *panels
    int form
    int64_t rows
    int64_t panel_bytes


# What a matrix is packed from, and how far that has come.
cdef struct Supply:
    const uint8_t *source       # its rows in the file's blocks; not to be read once all is packed
    int64_t row_bytes
    int64_t ready               # panels that are packed: the first so many
    int32_t loose               # 1: some of its panels cannot be tight, as the others were made


cdef class PanelMemory:
    cdef uint8_t *block
    cdef readonly int64_t nbytes
    cdef readonly int64_t used
    cdef uint8_t *take(self, int64_t nbytes) except NULL


cdef class PackedMatrix:
    cdef MatmulSegment segment
    cdef Supply supply
    cdef readonly int64_t rows
    cdef readonly int64_t cols
    cdef readonly str format
    cdef readonly str act
    cdef readonly int64_t nbytes
    cdef int64_t capacity               # bytes that its panels may come to take
    cdef PanelMemory memory            # the panels' memory, None where they lie in `source`
    cdef readonly object pager          # what brings its panels while a step runs; None: they are in memory, or packed there
    cdef readonly str paged_name        # of a paged matrix: its tensor, and where its rows begin
    cdef readonly int paged_file
    cdef readonly int64_t paged_offset
    cdef readonly bint paged_fixed      # stays whatever happens
    cdef readonly int paged_slots       # experts of its stack that may be in memory
    cdef const uint8_t[::1] source      # what is to be packed, or panels that lay ready; None once packed
    cdef int _shape(self, str format, int64_t rows, int64_t cols) except -1
    cdef int _lay(self, int form) except -1
    cdef int _source(self, object raw, str format, int64_t rows, int64_t cols, bint tight) except -1
    cdef int _place(self, PanelMemory memory) except -1
    cdef int check_packed(self) except -1


# Panels first to end - 1 of one matrix: what a worker packs at a time.
cdef struct Unit:
    const MatmulSegment *segment
    Supply *supply
    int64_t cols, first, end
    int matrix                  # its number
    bint mapped


cdef class Units:
    cdef list matrices              # kept: units point into them
    cdef Unit *units
    cdef int64_t next               # all before are packed
    cdef readonly int64_t count
    cdef readonly int64_t nbytes    # of the file
    cdef readonly int64_t done      # of them, packed
