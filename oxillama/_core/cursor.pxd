"""Places in a machine, for the token trie that stands at them."""
from libc.stdint cimport int32_t, uint8_t

from oxillama._core.pushdown cimport Machine


cdef int begin_operation(Machine m) except -1


cdef class Cursor:
    cdef readonly Machine machine
    cdef Py_ssize_t slot
    cdef readonly bint too_deep                          # whether its last step failed where max_depth cuts something off
    cdef int32_t config(self) noexcept
    cdef void place(self, int32_t config) noexcept
    cdef bytearray text                                  # what was consumed since the machine has rules for distinct words
    cdef int32_t _walk(self, const uint8_t[::1] data, int symbol, bytearray text) except -1
