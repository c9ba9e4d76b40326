"""The matrix product for other compiled modules: the arguments of one product, and a worker's share of it."""
from libc.stdint cimport int64_t, uint8_t

from oxillama._core.adapters cimport LowRank
from oxillama._core.kernels cimport ox_lanes
from oxillama._core.panels cimport MatmulSegment
from oxillama._core.threads cimport ox_team

# out[t, :] = the segments' rows . x[t], one segment after another; or, gated, act(first) * second.
cdef struct MatmulArgs:
    const ox_lanes *lanes
    const MatmulSegment *segments
    int n_segments
    int gate                    # 0: none; else an activation of vec/acts.h and exactly two segments of equal rows
    int64_t cols
    const float *addend         # (m, ldadd): added to the product before its activation; NULL: none
    int64_t ldadd, up           # floats from row to row, and from gate's columns to up's
    const LowRank *low          # products of adapters, added before the activation too; NULL: none
    const float *bias           # one number per row of all segments, or NULL
    const uint8_t *x            # (m, ldx) activation rows
    int64_t ldx                 # bytes
    float *out                  # (m, ldout)
    int64_t ldout               # floats
    int64_t m

# Panels first to end - 1 of one product, all rows of x, by the caller alone: the same bits as `matmul_part`.
cdef void matmul_panels(const MatmulArgs *args, int64_t first, int64_t end) noexcept nogil
cdef void matmul_part(const MatmulArgs *args, ox_team *team, int ith, int nth) noexcept nogil
