"""Products over weights that do not all lie packed in memory, for the tape."""
from libc.stdint cimport int64_t, uint8_t

from oxillama._core.matmul cimport MatmulArgs
from oxillama._core.pager cimport ox_paged_op, ox_pager
from oxillama._core.panels cimport Supply
from oxillama._core.threads cimport ox_team

cdef size_t unpacked_scratch(const MatmulArgs *a) noexcept nogil
cdef void unpacked_part(const MatmulArgs *a, const Supply *const *supplies, uint8_t *scratch, ox_team *team, int ith, int nth) noexcept nogil
cdef void paged_part(const MatmulArgs *a, ox_pager *pager, const ox_paged_op *paged, uint8_t *scratch, ox_team *team) noexcept nogil
cdef int64_t chunk_panels(int64_t cols) noexcept nogil      # panels of a chunk
