"""Products over weights that are not all packed yet, for the tape."""
from libc.stdint cimport uint8_t

from oxillama._core.matmul cimport MatmulArgs
from oxillama._core.panels cimport Supply
from oxillama._core.threads cimport ox_team

cdef size_t unpacked_scratch(const MatmulArgs *a) noexcept nogil
cdef void unpacked_part(const MatmulArgs *a, const Supply *const *supplies, uint8_t *scratch, ox_team *team, int ith, int nth) noexcept nogil
