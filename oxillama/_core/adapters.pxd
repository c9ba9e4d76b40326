"""Low-rank adapters as a step sees them: the factors of every op, the adapters of a sequence with their scales, and A times the rows that use them.

A row's product W x of an adapted matrix gets s1 B1 (A1 x) + s2 B2 (A2 x) + ... (Hu et al. 2021, LoRA, equation 3). `low_rank_part` fills t = s A x
for the rows of an op; the product itself (`matmul.pyx`) adds B t panel by panel, before bias and activation.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t

from oxillama._core.kernels cimport ox_lanes


ctypedef struct Pair:
    # The factors of one matrix, float32 in panels; rank 0: the adapter has none for it.
    const uint8_t *a             # (rank, cols); of an embedding plain rows (vocabulary, rank)
    const uint8_t *b             # (rows, rank)
    int64_t a_panel, b_panel     # bytes of a panel
    int64_t a_bytes, b_bytes     # from one matrix of a stack to the next
    int rank
    float scale                  # of this matrix: alpha / rank
    int offset                   # first float within the adapter's part of a row of t


ctypedef struct Factors:
    # Of one op; n 0: the adapter leaves it as it is.
    int n
    int width                    # floats of t, whole vectors
    Pair *pairs


ctypedef struct Share:
    const Factors *ops
    float scale


ctypedef struct Adapted:
    # What the rows of a sequence use, in the order in which the products are added.
    int n
    Share *shares


ctypedef struct RowTile:
    int first, rows              # rows side by side that use the same adapters
    const Adapted *adapted


ctypedef struct RowTiles:
    # The rows of a domain that use adapters.
    int count
    RowTile *tiles
    const Adapted **rows         # of each row, NULL: none


ctypedef struct LowRank:
    # What a product needs to add B t.
    const Adapted *const *rows
    const float *t
    int64_t ldt                  # floats
    int op
    int expert                   # of a stack
    int segment                  # the first of the product's segments is that one of the op,
    int64_t panel                # from that panel on
    const int32_t *order         # NULL: row i of x is row i; else part order[i] of the op, row * used + number
    int used


cdef class Adapter:
    cdef Factors *ops
    cdef int n_ops
    cdef list held
    cdef readonly object shapes
    cdef readonly int64_t nbytes
    cdef readonly int width      # most floats of t that a row takes at any op
    cdef readonly int columns    # most columns of an A
    cdef const uint8_t *_kept(self, values) except NULL
    cdef const uint8_t *_packed(self, values, int64_t *panel, int64_t *stride) except NULL


cdef class AdapterSet:
    cdef Adapted adapted
    cdef readonly tuple adapters
    cdef readonly int width, columns


cdef int width_at(const Adapted *adapted, int op) noexcept nogil
cdef void add_low_rank(const LowRank *low, const ox_lanes *lanes, float *c, int64_t ldc, int segment, int64_t panel, int64_t row, int m, int live) noexcept nogil
