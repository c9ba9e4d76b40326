"""Products over weights that are not all packed yet: a step that need not wait until they are.

A worker packs a chunk of panels into its scratch, multiplies it while it is in its second cache, and forgets it: memory that is written for the first
time may cost more than all the rest of a first token. What is packed already is taken from where it lies. The products are those of
`matmul_part`, bit for bit.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from oxillama._core.adapters cimport LowRank
from oxillama._core.kernels cimport pack_panels
from oxillama._core.matmul cimport MatmulArgs, matmul_part
from oxillama._core.panels cimport MatmulSegment, Supply
from oxillama._core.threads cimport OX_TEAM_RUNS, ox_team, ox_team_cut, ox_team_init, ox_team_left

cdef enum:
    CHUNK = 96 * 2048           # weights that are packed at a time: they stay in a worker's second cache
    MOST = 8                    # chunks that a worker takes at once, at most


cdef inline int64_t _step(const MatmulArgs *a) noexcept nogil:
    """Panels of a chunk, the same for every format: those of gate and up go together."""
    return max(<int64_t>1, CHUNK // (16 * a.cols))


cdef inline int64_t _chunks(const MatmulArgs *a, int i) noexcept nogil:
    """Chunks of segment i."""
    cdef int64_t rows = 16 * _step(a)
    return (a.segments[i].rows + rows - 1) // rows


cdef size_t unpacked_scratch(const MatmulArgs *a) noexcept nogil:
    """Bytes of scratch that a worker needs: a chunk of each matrix that goes with another, and its bias."""
    cdef int64_t most = 0
    cdef int i
    for i in range(a.n_segments):
        most = max(most, a.segments[i].panel_bytes)
    return <size_t>((2 if a.gate else 1) * _step(a) * (most + 16 * <int64_t>sizeof(float)))


cdef void _chunk(const MatmulArgs *a, const Supply *const *supplies, int64_t number, uint8_t *scratch, ox_team *alone) noexcept nogil:
    """Chunk `number` of all segments' chunks in a row (of gate and up if gated) against all rows of x."""
    cdef MatmulSegment two[2]
    cdef MatmulArgs part = a[0]
    cdef LowRank low
    cdef const MatmulSegment *whole
    cdef const Supply *supply
    cdef int64_t step = _step(a), column = 0, first, end, rows
    cdef float *bias = <float *>scratch
    cdef int i = 0, j, n = 2 if a.gate else 1
    while number >= _chunks(a, i):
        number -= _chunks(a, i)
        column += a.segments[i].rows
        i += 1
    first = number * step
    end = min((a.segments[i].rows + 15) // 16, first + step)
    rows = min(a.segments[i].rows, 16 * end) - 16 * first
    column += 16 * first
    scratch += n * 16 * step * <int64_t>sizeof(float)
    for j in range(n):
        whole, supply = a.segments + i + j, supplies[i + j]
        two[j] = whole[0]
        two[j].rows, two[j].panels = rows, whole.panels + first * whole.panel_bytes
        if end > supply.ready:
            pack_panels(whole.form, scratch, supply.source + 16 * first * supply.row_bytes, supply.row_bytes, rows, a.cols, 0, end - first)
            two[j].panels = scratch
            scratch += step * whole.panel_bytes
        if a.bias != NULL:
            memcpy(bias + j * rows, a.bias + column + j * whole.rows, rows * sizeof(float))
    if a.addend != NULL:
        part.addend = a.addend + column
    if a.low != NULL:
        low = a.low[0]
        low.segment, low.panel, part.low = i, first, &low
    part.segments, part.n_segments, part.out = two, n, a.out + column
    part.bias = bias if a.bias != NULL else NULL
    ox_team_init(alone, NULL)
    matmul_part(&part, alone, 0, 1)


cdef void unpacked_part(const MatmulArgs *a, const Supply *const *supplies, uint8_t *scratch, ox_team *team, int ith, int nth) noexcept nogil:
    """Takes work until none is left, as `matmul_part`: first from a run of its own. The caller puts the barrier after it."""
    cdef ox_team alone
    cdef int runs = min(nth, <int>OX_TEAM_RUNS), own = ith % runs, run = own, longest = 1, i, n, left
    cdef int64_t chunks = 0, first, k
    for i in range(1 if a.gate else a.n_segments):
        chunks += _chunks(a, i)
    while longest:
        first = chunks * run // runs
        k = first + ox_team_cut(team, run, <int>(chunks * (run + 1) // runs - first), 1, MOST, run != own, &n)
        for i in range(n):
            _chunk(a, supplies, k + i, scratch, &alone)
        if n:
            continue
        longest = 0
        for i in range(runs):
            left = ox_team_left(team, i, <int>(chunks * (i + 1) // runs - chunks * i // runs))
            if left > longest:
                longest, run = left, i
