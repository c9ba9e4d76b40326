"""Products over weights that do not all lie packed in memory: those that are not packed yet, and those that are paged from a file.

A worker packs a chunk of panels into its scratch, multiplies it while it is in its second cache, and forgets it: memory that is written for the first
time may cost more than all the rest of a first token. What is packed already is taken from where it lies. What is paged is multiplied chunk by chunk as
it comes (`pager`). The products are those of `matmul_part`, bit for bit.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from oxillama._core.adapters cimport LowRank
from oxillama._core.kernels cimport form_at, pack_panels, panel_bytes
from oxillama._core.matmul cimport MatmulArgs, matmul_part
from oxillama._core.pager cimport ox_page, ox_page_data, ox_paged_op, ox_pager, ox_pager_await, ox_pager_done, ox_ring_slot
from oxillama._core.panels cimport MatmulSegment, Supply
from oxillama._core.threads cimport OX_TEAM_NO_RUN, ox_team, ox_team_break, ox_team_init, ox_team_share, ox_team_take, ox_team_units

cdef enum:
    CHUNK = 96 * 2048           # weights that are packed at a time: they stay in a worker's second cache
    MOST = 8                    # chunks that a worker takes at once, at most


cdef int64_t chunk_panels(int64_t cols) noexcept nogil:
    return max(<int64_t>1, CHUNK // (16 * cols))


cdef inline int64_t _step(const MatmulArgs *a) noexcept nogil:
    """Panels of a chunk, the same for every format: those of gate and up go together."""
    return chunk_panels(a.cols)


cdef inline int64_t _chunks(const MatmulArgs *a, int i) noexcept nogil:
    """Chunks of segment i."""
    cdef int64_t rows = 16 * _step(a)
    return (a.segments[i].rows + rows - 1) // rows


cdef size_t unpacked_scratch(const MatmulArgs *a) noexcept nogil:
    """Bytes of scratch that a worker needs: a chunk of each matrix that goes with another, and its bias."""
    cdef int64_t most = 0
    cdef int i
    for i in range(a.n_segments):
        most = max(most, panel_bytes(form_at(form_at(a.segments[i].form).plain), a.cols))
    return <size_t>((2 if a.gate else 1) * _step(a) * (most + 16 * <int64_t>sizeof(float)))


# Panels of one segment (of gate and up) that go together.
cdef struct Chunk:
    int segment
    int64_t number, first, end      # of the segment's chunks; its panels
    int64_t column                  # of the output


cdef Chunk _chunk(const MatmulArgs *a, int64_t number) noexcept nogil:
    """Chunk `number` of all segments' chunks in a row (of gate and up if gated)."""
    cdef Chunk c
    cdef int64_t step = _step(a)
    c.segment, c.column = 0, 0
    while number >= _chunks(a, c.segment):
        number -= _chunks(a, c.segment)
        c.column += a.segments[c.segment].rows
        c.segment += 1
    c.number, c.first = number, number * step
    c.end = min((a.segments[c.segment].rows + 15) // 16, c.first + step)
    c.column += 16 * c.first
    return c


cdef void _multiply(const MatmulArgs *a, const Chunk *c, MatmulSegment *two, float *bias, ox_team *alone) noexcept nogil:
    """A chunk, whose panels (gate's, up's) begin where `two` says and have its form, against all rows of x; `bias` is a buffer for theirs."""
    cdef MatmulArgs part = a[0]
    cdef LowRank low
    cdef const MatmulSegment *whole
    cdef int64_t rows = min(a.segments[c.segment].rows, 16 * c.end) - 16 * c.first
    cdef int j, n = 2 if a.gate else 1
    for j in range(n):
        whole = a.segments + c.segment + j
        two[j].rows = rows
        if a.bias != NULL:
            memcpy(bias + j * rows, a.bias + c.column + j * whole.rows, rows * sizeof(float))
    if a.addend != NULL:
        part.addend = a.addend + c.column
    if a.low != NULL:
        low = a.low[0]
        low.segment, low.panel, part.low = c.segment, c.first, &low
    part.segments, part.n_segments, part.out = two, n, a.out + c.column
    part.bias = bias if a.bias != NULL else NULL
    ox_team_init(alone, NULL)
    matmul_part(&part, alone, 0, 1)


cdef void _pack_and_multiply(const MatmulArgs *a, const Supply *const *supplies, int64_t number, uint8_t *scratch, ox_team *alone) noexcept nogil:
    cdef Chunk c = _chunk(a, number)
    cdef MatmulSegment two[2]
    cdef const Supply *supply
    cdef float *bias = <float *>scratch
    cdef int64_t step = _step(a), rows = min(a.segments[c.segment].rows, 16 * c.end) - 16 * c.first
    cdef int j, n = 2 if a.gate else 1
    scratch += n * 16 * step * <int64_t>sizeof(float)
    for j in range(n):
        two[j], supply = a.segments[c.segment + j], supplies[c.segment + j]
        two[j].panels += c.first * two[j].panel_bytes
        if c.end > supply.ready:
            two[j].form = form_at(two[j].form).plain        # what any weights can be in
            two[j].panels, two[j].panel_bytes = scratch, panel_bytes(form_at(two[j].form), a.cols)
            pack_panels(two[j].form, scratch, supply.source + 16 * c.first * supply.row_bytes, supply.row_bytes, rows, a.cols, 0, c.end - c.first)
            scratch += step * two[j].panel_bytes
    _multiply(a, &c, two, bias, alone)


cdef void paged_part(const MatmulArgs *a, ox_pager *pager, const ox_paged_op *paged, uint8_t *scratch, ox_team *team) noexcept nogil:
    """Takes chunks in the order in which their pages come, until none is left; a page that does not come ends the step."""
    cdef ox_team alone
    cdef Chunk c
    cdef const ox_page *page
    cdef ox_ring_slot *slot
    cdef MatmulSegment two[2]
    cdef int64_t chunks = 0, chunk
    cdef int i, j, k
    for i in range(1 if a.gate else a.n_segments):
        chunks += _chunks(a, i)
    chunk = ox_team_take(team)
    while chunk < chunks:
        c = _chunk(a, chunk)
        k = paged.first[c.segment] + <int>(c.number // paged.per)
        slot = ox_pager_await(pager, paged.todo + k, team)
        if slot == NULL:
            ox_team_break(team)
            return
        page = paged.pages + k
        for j in range(page.parts):
            two[j] = a.segments[c.segment + j]
            two[j].panels = ox_page_data(slot, page, j) + (c.first - c.number // paged.per * paged.per * _step(a)) * page.part[j].panel_bytes
        _multiply(a, &c, two, <float *>scratch, &alone)
        ox_pager_done(pager, slot)
        chunk = ox_team_take(team)


cdef void unpacked_part(const MatmulArgs *a, const Supply *const *supplies, uint8_t *scratch, ox_team *team, int ith, int nth) noexcept nogil:
    """Takes work until none is left, as `matmul_part`: first from a run of its own. The caller puts the barrier after it."""
    cdef ox_team alone
    cdef ox_team_units u
    cdef int64_t chunks = 0
    cdef int i
    for i in range(1 if a.gate else a.n_segments):
        chunks += _chunks(a, i)
    u.run = OX_TEAM_NO_RUN
    while ox_team_share(team, <int>chunks, 1, ith, nth, 1, MOST, &u):
        for i in range(u.n):
            _pack_and_multiply(a, supplies, u.begin + u.first + i, scratch, &alone)
