"""Proofs about plain text, for the token trie."""
from libc.stdint cimport int32_t

from oxillama._core.pushdown cimport Machine


cdef int32_t cover(Machine m, int32_t config, int u8, bint thorough) except -1
cdef int32_t exact_cover(Machine m, int32_t config) except -2
