# cython: language_level=3
"""Rows of GGUF blocks in Cython: unpacked, and multiplied without unpacking them."""
import numpy as np

from libc.stdint cimport int64_t

from oxillama.capi cimport OXILLAMA_OK, oxillama_api, oxillama_import, oxillama_matrix

cdef const oxillama_api *ox = oxillama_import()


def unpacked(const unsigned char[:, ::1] blocks, bytes format):
    """The float32 numbers of rows of blocks."""
    cdef int64_t per_block, size
    if ox.format(format, &per_block, &size) != OXILLAMA_OK:
        raise ValueError(ox.error().decode())
    cdef int64_t columns = blocks.shape[1] // size * per_block
    cdef float[:, ::1] out = np.empty((blocks.shape[0], columns), np.float32)
    cdef const char *name = format
    cdef int status
    with nogil:
        status = ox.dequantise(name, &blocks[0, 0], blocks.shape[0], columns, &out[0, 0], 0)
    if status != OXILLAMA_OK:
        raise ValueError(ox.error().decode())
    return np.asarray(out)


def product(const unsigned char[:, ::1] blocks, bytes format, const float[:, ::1] x):
    """x . rows^T, over weights packed once."""
    cdef oxillama_matrix *matrix = NULL
    cdef float[:, ::1] out = np.empty((x.shape[0], blocks.shape[0]), np.float32)
    cdef int status
    if ox.pack(format, &blocks[0, 0], blocks.shape[0], x.shape[1], &matrix, 0) != OXILLAMA_OK:
        raise ValueError(ox.error().decode())
    with nogil:
        status = ox.matmul(matrix, &x[0, 0], x.shape[0], &out[0, 0], 1)
        ox.matrix_free(matrix)
    if status != OXILLAMA_OK:
        raise ValueError(ox.error().decode())
    return np.asarray(out)
