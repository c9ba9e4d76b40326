"""Mapped files, for other compiled modules."""
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "filemap.h" nogil:
    ctypedef struct ox_map:
        pass

cdef extern from "os.h" nogil:
    ctypedef struct ox_file_status:
        int64_t size, seconds, nanoseconds

cdef extern from "block.h" nogil:
    int ox_flag_get(const int32_t *flag)


cdef class FileMap:
    cdef ox_map *map
    cdef const uint8_t *data
    cdef const int32_t *lost
    cdef int descriptor
    cdef ox_file_status status
    cdef bint dated
    cdef readonly str label
    cdef int found(self, ox_file_status *now) noexcept nogil
