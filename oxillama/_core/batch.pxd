"""The rows of a step and the cancel flag, as the tape reads them."""
from libc.stdint cimport int32_t


cdef class CancelFlag:
    cdef int32_t flag


cdef class Batch:
    cdef readonly int rows
    cdef readonly int wanted_rows
    cdef int n_tables
    cdef tuple held                  # the arrays behind the pointers
    cdef const int32_t *tokens
    cdef const int32_t *positions
    cdef const int32_t *row_table
    cdef const int32_t *wanted       # ascending rows
    cdef const int32_t **pages       # of each table
    cdef int *lengths                # of each table
    cdef int _check_rows(self) except -1
