"""The matrix product for other compiled rooms: packed weights, the arguments of one product, and a worker's share of it."""
from libc.stdint cimport int64_t, uint8_t

from oxillama._core.kernels cimport ox_form, ox_lanes
from oxillama._core.threads cimport ox_team

# Rows of one packed matrix, as the driver sees them.
cdef struct MatmulSegment:
    const uint8_t *panels
    int form
    int64_t rows
    int64_t panel_bytes

# out[t, :] = the segments' rows . x[t], one segment after another; or, gated, act(first) * second.
cdef struct MatmulArgs:
    const ox_lanes *lanes
    const MatmulSegment *segments
    int n_segments
    int gate                    # 0: none; else an activation of vec/acts.h and exactly two segments of equal rows
    int64_t cols
    const float *bias           # one number per row of all segments, or NULL
    const uint8_t *x            # (m, ldx) activation rows
    int64_t ldx                 # bytes
    float *out                  # (m, ldout)
    int64_t ldout               # floats
    int64_t m

cdef void matmul_part(const MatmulArgs *args, ox_team *team, int ith, int nth) noexcept nogil


cdef class PackedMatrix:
    cdef MatmulSegment segment
    cdef readonly int64_t rows
    cdef readonly int64_t cols
    cdef readonly str format
    cdef readonly str act
    cdef readonly int64_t nbytes
    cdef void *block                    # the panels' memory, NULL where they lie in `source`
    cdef const uint8_t[::1] source      # what is to be packed, or panels that lay ready; None once packed
    cdef int _shape(self, str format, int64_t rows, int64_t cols) except -1
    cdef int _reserve(self, object raw, str format, int64_t rows, int64_t cols) except -1
