"""t = s A x for the rows of an op that use adapters, over the rows that use them alone.

x is taken as the product itself takes it: its activation row, in float32. The columns of A are cut at fixed places into sums of one chain each,
which are added in ascending order: neither workers nor rows beside a row can change a bit of its t.
"""
from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from oxillama._core.adapters cimport Adapted, Factors, LowRank, Pair, RowTile, RowTiles, width_at
from oxillama._core.kernels cimport form_index
from oxillama._core.step cimport Common, Step, row_of
from oxillama._core.threads cimport ox_team, ox_team_barrier, ox_team_take

cdef enum:
    ACT_Q8_32 = 1
    ACT_Q8_256 = 2
    ACT_BF16 = 3

cdef int F32 = form_index("F32")


cdef void unpack_act(int act, const uint8_t *row, int64_t first, int64_t count, float *out) noexcept nogil:
    """Columns first to first + count - 1 of an activation row (csrc/lanes/panel.h) as floats; first is a multiple of 256."""
    cdef int64_t i, b, block, size, at
    cdef const int8_t *codes
    cdef uint32_t bits
    cdef float d
    if act == ACT_Q8_32 or act == ACT_Q8_256:
        block = 32 if act == ACT_Q8_32 else 256
        size, at = block + (16 if act == ACT_Q8_32 else 64), block
        for b in range(count // block):
            codes = <const int8_t *>(row + (first // block + b) * size)
            memcpy(&d, <const uint8_t *>codes + at, 4)
            for i in range(block):
                out[b * block + i] = codes[i] * d
    elif act == ACT_BF16:
        for i in range(count):
            bits = <uint32_t>(<const uint16_t *>row)[first + i] << 16
            memcpy(out + i, &bits, 4)
    else:
        memcpy(out, row + 4 * first, 4 * <size_t>count)


cdef void products(const LowRankOp *a, const Step *step, const RowTile *tile, int64_t chunk, float *t, int64_t ldt, bint begins, float *x) noexcept nogil:
    """One chunk's columns of A x for the rows of a tile, put or added to t (rows, ldt)."""
    cdef float y[LOW_ROWS * 16]
    cdef int64_t first = chunk * LOW_COLUMNS, n = min(<int64_t>LOW_COLUMNS, a.cols - chunk * LOW_COLUMNS)
    cdef int width = width_at(tile.adapted, a.op), part, r, rows, k, s, p, i, j, expert, at
    cdef const Factors *factors
    cdef const Pair *pair
    cdef float *to
    for part in range(a.used):
        if part == 0 or not a.shared:
            for r in range(tile.rows):
                unpack_act(a.act, <const uint8_t *>row_of(step, a.x, tile.first + r) + (0 if a.shared else part * a.x_bytes), first, n,
                           x + r * LOW_COLUMNS)
        r = 0
        while r < tile.rows:
            rows, expert = tile.rows, part
            if a.routes >= 0:
                rows, expert = 1, <int>(<const float *>row_of(step, a.routes, tile.first + r))[part]
            at = part * width
            for k in range(tile.adapted.n):
                factors = tile.adapted.shares[k].ops + a.op
                for s in range(factors.n):
                    pair = factors.pairs + s
                    for p in range((pair.rank + 15) // 16):
                        a.lanes.tile[F32](y, 16, pair.a + expert * pair.a_bytes + p * pair.a_panel + 64 * first, NULL,
                                          <const uint8_t *>(x + r * LOW_COLUMNS), 4 * LOW_COLUMNS, n, rows)
                        for j in range(rows):
                            to = t + (r + j) * ldt + at + pair.offset + 16 * p
                            if begins:
                                memcpy(to, y + 16 * j, 64)
                            else:
                                for i in range(16):
                                    to[i] += y[16 * j + i]
                at += factors.width
            r += rows


cdef void scaled(const LowRankOp *a, const RowTile *tile, float *t, int64_t ldt) noexcept nogil:
    cdef int r, part, k, s, i
    cdef float *at
    cdef float scale
    cdef const Factors *factors
    for r in range(tile.rows):
        at = t + r * ldt
        for part in range(a.used):
            for k in range(tile.adapted.n):
                factors = tile.adapted.shares[k].ops + a.op
                for s in range(factors.n):
                    scale = tile.adapted.shares[k].scale * factors.pairs[s].scale
                    for i in range(factors.pairs[s].rank):
                        at[factors.pairs[s].offset + i] *= scale
                at += factors.width


cdef bint low_rank_part(LowRank *low, const LowRankOp *a, const Common *common, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const Step *step = common.step
    cdef const RowTiles *tiles = &step.adapted[<int>common.domain]
    cdef const RowTile *tile
    cdef float *x = <float *>(step.scratch + <size_t>ith * step.scratch_stride)
    cdef float *t
    cdef int64_t chunks = (a.cols + LOW_COLUMNS - 1) // LOW_COLUMNS, ldt = step.low_stride, item, chunk
    cdef int i, r, j, width, used = 0
    for i in range(tiles.count):
        used |= width_at(tiles.tiles[i].adapted, a.op)
    if not used:
        return False
    low.rows, low.t, low.ldt, low.op, low.expert, low.segment, low.panel = tiles.rows, step.low, ldt, a.op, 0, 0, 0
    low.order, low.used = NULL, a.used
    if tiles.count >= nth or chunks == 1:
        item = ox_team_take(team)
        while item < tiles.count:
            tile = tiles.tiles + item
            t = step.low + tile.first * ldt
            for chunk in range(chunks):
                products(a, step, tile, chunk, t, ldt, chunk == 0, x)
            scaled(a, tile, t, ldt)
            item = ox_team_take(team)
        ox_team_barrier(team, ith, nth)
        return True
    # few rows: chunks of columns are the work, their sums meet in `low_parts` (chunks, tiles, LOW_ROWS, ldt)
    item = ox_team_take(team)
    while item < tiles.count * chunks:
        products(a, step, tiles.tiles + item // chunks, item % chunks, step.low_parts + (item % chunks * tiles.count + item // chunks) * LOW_ROWS * ldt,
                 ldt, True, x)
        item = ox_team_take(team)
    ox_team_barrier(team, ith, nth)
    item = ox_team_take(team)
    while item < tiles.count:
        tile = tiles.tiles + item
        width = a.used * width_at(tile.adapted, a.op)
        t = step.low + tile.first * ldt
        for r in range(tile.rows):
            for chunk in range(chunks):
                x = step.low_parts + ((chunk * tiles.count + item) * LOW_ROWS + r) * ldt
                if chunk == 0:
                    memcpy(t + r * ldt, x, 4 * <size_t>width)
                else:
                    for j in range(width):
                        t[r * ldt + j] += x[j]
        scaled(a, tile, t, ldt)
        item = ox_team_take(team)
    ox_team_barrier(team, ith, nth)
    return True
