"""A times the rows of an op that use adapters: what an op's part runs before its product."""
from libc.stdint cimport int64_t

from oxillama._core.adapters cimport LowRank
from oxillama._core.kernels cimport ox_lanes
from oxillama._core.step cimport Common
from oxillama._core.threads cimport ox_team

cdef enum:
    LOW_COLUMNS = 512        # columns of A that are one sum: fixed, so that workers cannot be seen in the bits
    LOW_ROWS = 16            # most rows of a tile
    LOW_SCRATCH = 4 * LOW_COLUMNS * LOW_ROWS     # bytes of a worker

ctypedef struct LowRankOp:
    # An op as its low-rank products see it.
    const ox_lanes *lanes
    int op                   # its number
    int x, act
    int64_t cols             # of one matrix
    int64_t x_bytes          # of one part of a row of x
    int used                 # parts of a row
    int shared               # 1: every part multiplies the whole row
    int routes               # slot of the experts chosen, -1: part k goes to matrix k

# Whether any row of the step uses factors of this op; t is filled and `low` says so then. All workers call it, before they take work.
cdef bint low_rank_part(LowRank *low, const LowRankOp *a, const Common *common, ox_team *team, int ith, int nth) noexcept nogil
