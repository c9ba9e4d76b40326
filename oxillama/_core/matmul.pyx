"""The product that runs over packed weights (`panels.pyx`).

`matmul_part` is one worker's share of a product: the tape calls it on each of its workers, `matmul` by `prange` over numpy arrays.

The work is cut into chunks (a group of panels x a range of rows) that workers take from the team's counter; with few rows, into a run of
panels for each worker. Which worker computes a panel, how large chunks are and how many rows share a tile never change a bit of the
result: every output is one chain of its own.
"""
import numpy as np

from cython.parallel cimport prange
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free

from oxillama._core.adapters cimport add_low_rank
from oxillama._core.kernels cimport ACT_Q8_256, ACT_Q8_32, act_index, act_row_bytes, lanes_table, prefetch_distance, ox_lanes
from oxillama._core.panels cimport MatmulSegment, PackedMatrix
from oxillama._core.threads cimport (
    OX_TEAM_NO_RUN, fenv_t, ox_fenv_enter, ox_fenv_leave, ox_team, ox_team_init, ox_team_share, ox_team_take, ox_team_units, region_threads,
    worker_count)
from oxillama._core.vectors cimport activation

from oxillama.errors import QuantError

cdef extern from "block.h" nogil:
    void *ox_block_new(size_t size)
    void ox_block_free(void *block)
    void ox_expect(float *out, int64_t ldout, int m)

cdef enum:
    RANGE = 264                 # most rows of x that one chunk covers
    LEAST_RANGE = 48            # and the least, where there are as many
    MANY_CHUNKS = 16            # chunks a worker, so that waiting for the last one is no matter
    WIDE_ROWS = 9               # from so many rows on two panels share a tile
    GROUP_ROWS = 8              # a chunk keeps its full size up to so many rows
    MOST_BESIDE = 4             # most rows that the kernels take for panels side by side
    MOST_PANELS = 0x7fffffff    # what a run counts


# How one product is cut: `groups` of `group` panels, times ranges of `rows` rows of x.
cdef struct Cut:
    int64_t panels, group, groups, rows, chunks


cdef inline const uint8_t *_find(const MatmulArgs *a, int64_t p, int *segment, int64_t *local, int64_t *column) noexcept nogil:
    """Panel p of all segments' panels in a row: its address, its segment, its number and first column there."""
    cdef int i = 0
    column[0] = 0
    if not a.gate:
        while p >= (a.segments[i].rows + 15) // 16:
            p -= (a.segments[i].rows + 15) // 16
            column[0] += a.segments[i].rows
            i += 1
    column[0] += 16 * p
    segment[0] = i
    local[0] = p
    return a.segments[i].panels + p * a.segments[i].panel_bytes


cdef void _join(const MatmulArgs *a, float *c, int64_t ldc, int64_t column, int64_t row, int m, int live) noexcept nogil:
    """Adds the addend's columns from `column` on to the sums of `live` columns."""
    cdef const float *from_ = a.addend + row * a.ldadd + column
    cdef int t, i
    for t in range(m):
        for i in range(live):
            c[t * ldc + i] += from_[t * a.ldadd + i]


cdef void _pair(const MatmulArgs *a, int64_t p, int64_t after, int64_t row, int m) noexcept nogil:
    """Two neighbouring panels of one segment (of gate and up if gated) against many rows of x; `after` is the pair that is likely next, or -1."""
    cdef float c[RANGE * 32]
    cdef float u[RANGE * 32]
    cdef int i, j, h, live
    cdef int64_t local, column, k, other
    cdef const uint8_t *panel = _find(a, p, &i, &local, &column)
    cdef const MatmulSegment *seg = a.segments + i
    cdef const MatmulSegment *up = a.segments + 1
    cdef const uint8_t *x = a.x + row * a.ldx
    cdef float *out = a.out + row * a.ldout + column
    cdef const float *bias = a.bias + column if a.bias != NULL else NULL
    cdef const uint8_t *then = _find(a, after, &j, &k, &other) if after >= 0 else panel
    cdef const uint8_t *twin
    ox_expect(out, a.ldout, m)
    if a.gate:
        twin = up.panels + p * up.panel_bytes
        a.lanes.wide[seg.form](c, 32, panel, seg.panel_bytes, twin - panel, x, a.ldx, a.cols, m)
        a.lanes.wide[up.form](u, 32, twin, up.panel_bytes, then - twin if then != panel else 0, x, a.ldx, a.cols, m)
    else:
        a.lanes.wide[seg.form](c, 32, panel, seg.panel_bytes, then - panel, x, a.ldx, a.cols, m)
    for h in range(2):
        live = <int>min(<int64_t>16, seg.rows - 16 * (local + h))
        if a.addend != NULL:
            _join(a, c + 16 * h, 32, column + 16 * h, row, m, live)
            if a.gate:
                _join(a, u + 16 * h, 32, a.up + column + 16 * h, row, m, live)
        if a.low != NULL:
            add_low_rank(a.low, a.lanes, c + 16 * h, 32, i, local + h, row, m, live)
            if a.gate:
                add_low_rank(a.low, a.lanes, u + 16 * h, 32, 1, p + h, row, m, live)
        if a.gate:
            a.lanes.gate(out + 16 * h, a.ldout, c + 16 * h, u + 16 * h, 32, bias, bias + seg.rows if bias != NULL else NULL, a.gate, m, live)
        else:
            a.lanes.finish(out + 16 * h, a.ldout, c + 16 * h, 32, bias, m, live)
        bias = bias + 16 if bias != NULL else NULL


cdef inline bint _pairs(const MatmulArgs *a, int64_t p) noexcept nogil:
    """Whether panels p and p + 1 belong to one segment that has a wide kernel."""
    cdef int i
    cdef int64_t local, column
    _find(a, p, &i, &local, &column)
    return (16 * (local + 1) < a.segments[i].rows and a.lanes.wide[a.segments[i].form] != NULL
            and (not a.gate or a.lanes.wide[a.segments[1].form] != NULL))


cdef void _panel(const MatmulArgs *a, int64_t p, int64_t after, int64_t row, int m) noexcept nogil:
    """One panel (of gate and up if gated) against rows [row, row + m) of x; `after` is the panel that is likely next, -1 if none."""
    cdef float c[RANGE * 16]
    cdef float u[RANGE * 16]
    cdef int i, j
    cdef int64_t local, column, k, other
    cdef const uint8_t *panel = _find(a, p, &i, &local, &column)
    cdef const uint8_t *then = _find(a, after, &j, &k, &other) if after >= 0 else NULL
    cdef const MatmulSegment *seg = a.segments + i
    cdef const MatmulSegment *up = a.segments + 1
    cdef const uint8_t *x = a.x + row * a.ldx
    cdef float *out = a.out + row * a.ldout + column
    cdef const float *bias = a.bias + column if a.bias != NULL else NULL
    cdef int live = <int>min(<int64_t>16, seg.rows - 16 * local)
    if not a.gate:
        a.lanes.tile[seg.form](c, 16, panel, then, x, a.ldx, a.cols, m)
        if a.addend != NULL:
            _join(a, c, 16, column, row, m, live)
        if a.low != NULL:
            add_low_rank(a.low, a.lanes, c, 16, i, local, row, m, live)
        a.lanes.finish(out, a.ldout, c, 16, bias, m, live)
        return
    a.lanes.tile[seg.form](c, 16, panel, up.panels + p * up.panel_bytes, x, a.ldx, a.cols, m)
    a.lanes.tile[up.form](u, 16, up.panels + p * up.panel_bytes, then, x, a.ldx, a.cols, m)
    if a.addend != NULL:
        _join(a, c, 16, column, row, m, live)
        _join(a, u, 16, a.up + column, row, m, live)
    if a.low != NULL:
        add_low_rank(a.low, a.lanes, c, 16, 0, p, row, m, live)
        add_low_rank(a.low, a.lanes, u, 16, 1, p, row, m, live)
    a.lanes.gate(out, a.ldout, c, u, 16, bias, bias + seg.rows if bias != NULL else NULL, a.gate, m, live)


cdef inline bint _few_rows(const MatmulArgs *a, int64_t m) noexcept nogil:
    return m <= a.lanes.few_rows[a.segments[0].form]


cdef inline bint _wide(const MatmulArgs *a, int64_t p, int64_t end, int m) noexcept nogil:
    """Whether panels p and p + 1, if that comes before `end`, share tiles of m rows."""
    return (m >= WIDE_ROWS or m > a.lanes.tile_rows[a.segments[0].form]) and m != a.lanes.full_tile and p + 1 < end and _pairs(a, p)


cdef inline int64_t _panels(const MatmulArgs *a) noexcept nogil:
    """Panels of all segments; of gate and up, those of one."""
    cdef int64_t panels = 0
    cdef int i
    for i in range(1 if a.gate else a.n_segments):
        panels += (a.segments[i].rows + 15) // 16
    return panels


cdef inline int64_t _panel_bytes(const MatmulArgs *a) noexcept nogil:
    """Bytes of a panel of the segment whose panels are largest; of gate and up, those of both."""
    cdef int64_t bytes = 0
    cdef int i
    for i in range(a.n_segments):
        bytes = max(bytes, a.segments[i].panel_bytes)
    return 2 * bytes if a.gate else bytes


cdef Cut _cut(const MatmulArgs *a, int64_t panels, int nth) noexcept nogil:
    """Chunks of about 48 KB of weights (a microsecond) times eight rows, over ranges of x as long as leave chunks enough.

    A range reads all weights and puts their codes together once more, so ranges are long, though x is then more than a second cache holds: what
    is asked of the third one is little (1B, prompts of 512, two threads of Zen 4, ranges of 24 rows to 264, tokens/s: Q6_K 193 to 283, Q8_0 300
    to 323; Q6_K on plain AVX2 177 to 218). Tiles of AMX ask for more, so a range of x stays in the second cache there (1B, prompts of 512, products
    of 8,192 columns, two threads, ranges of 256 rows and of 128, billion products a second: Q4_K 839 and 1,185, Q8_0 458 and 533).
    """
    cdef Cut cut
    cdef int64_t ranges = max((a.m + RANGE - 1) // RANGE, (a.m * a.cols + a.lanes.range_values - 1) // a.lanes.range_values)
    cut.panels = panels
    while cut.panels // 2 * ranges < MANY_CHUNKS * nth and a.m >= 2 * LEAST_RANGE * ranges:
        ranges *= 2
    cut.rows = (a.m + ranges - 1) // ranges
    cut.rows = min(<int64_t>RANGE, (cut.rows + a.lanes.whole_rows - 1) // a.lanes.whole_rows * a.lanes.whole_rows)
    cut.group = max(<int64_t>1, min(49152 // _panel_bytes(a), cut.panels // (4 * nth)))
    cut.group = max(<int64_t>2, cut.group * GROUP_ROWS // min(a.m, cut.rows) // 2 * 2)
    cut.groups = (cut.panels + cut.group - 1) // cut.group
    cut.chunks = cut.groups * ((a.m + cut.rows - 1) // cut.rows)
    return cut


cdef void _beside(const MatmulArgs *a, int64_t p, int64_t q) noexcept nogil:
    """Panels p and q of all segments' panels (gate's and up's p if gated) against a few rows of x: two streams from memory at once."""
    cdef float c[32 * MOST_BESIDE]
    cdef int i, j, m = <int>a.m
    cdef int64_t local, other, column, far
    cdef const uint8_t *first = _find(a, p, &i, &local, &column)
    cdef const uint8_t *second
    cdef const MatmulSegment *seg = a.segments + i
    cdef const float *bias = a.bias + column if a.bias != NULL else NULL
    cdef int live = <int>min(<int64_t>16, seg.rows - 16 * local)
    if a.gate:
        a.lanes.beside[seg.form](c, first, a.segments[1].panels + p * a.segments[1].panel_bytes, a.x, a.ldx, a.cols, prefetch_distance[seg.form][m > 1], m)
        if a.addend != NULL:
            _join(a, c, 32, column, 0, m, live)
            _join(a, c + 16, 32, a.up + column, 0, m, live)
        if a.low != NULL:
            add_low_rank(a.low, a.lanes, c, 32, 0, p, 0, m, live)
            add_low_rank(a.low, a.lanes, c + 16, 32, 1, p, 0, m, live)
        a.lanes.gate(a.out + column, a.ldout, c, c + 16, 32, bias, bias + seg.rows if bias != NULL else NULL, a.gate, m, live)
        return
    second = _find(a, q, &j, &other, &far)
    if seg.form != a.segments[j].form:
        _panel(a, p, -1, 0, m)
        _panel(a, q, -1, 0, m)
        return
    a.lanes.beside[seg.form](c, first, second, a.x, a.ldx, a.cols, prefetch_distance[seg.form][m > 1], m)
    if a.addend != NULL:
        _join(a, c, 32, column, 0, m, live)
        _join(a, c + 16, 32, far, 0, m, <int>min(<int64_t>16, a.segments[j].rows - 16 * other))
    if a.low != NULL:
        add_low_rank(a.low, a.lanes, c, 32, i, local, 0, m, live)
        add_low_rank(a.low, a.lanes, c + 16, 32, j, other, 0, m, <int>min(<int64_t>16, a.segments[j].rows - 16 * other))
    a.lanes.finish(a.out + column, a.ldout, c, 32, bias, m, live)
    a.lanes.finish(a.out + far, a.ldout, c + 16, 32, a.bias + far if a.bias != NULL else NULL, m,
                   <int>min(<int64_t>16, a.segments[j].rows - 16 * other))


cdef inline bint _side_by_side(const MatmulArgs *a) noexcept nogil:
    """Whether rows are so few that panels are read side by side."""
    cdef int i
    for i in range(a.n_segments):
        if a.m > a.lanes.beside_rows[a.segments[i].form] or (a.gate and a.segments[i].form != a.segments[0].form):
            return False
    return True


cdef void _few(const MatmulArgs *a, int panels, ox_team *team, int ith, int nth) noexcept nogil:
    """Few rows: each worker reads a run of panels of its own, then helps whoever has most left, from the end of that run.

    Memory gives most to workers that read long streams of their own, and takes from a run of one's own do not wait for another core's line.
    Two panels that are read side by side are one of each half of a run: two streams.
    """
    cdef bint beside = _side_by_side(a), halves = beside and not a.gate
    cdef int64_t bytes = _panel_bytes(a), p, stop, far
    cdef int group = <int>min(49152 // bytes, <int64_t>(panels // (4 * nth))), least
    cdef ox_team_units u
    if a.m > GROUP_ROWS:
        group = <int>(group * GROUP_ROWS // a.m)
    least = max(1, group // 2 if halves else group)
    u.run = OX_TEAM_NO_RUN
    while ox_team_share(team, panels, 2 if halves else 1, ith, nth, least, 8 * least, &u):
        p, far = u.begin + u.first, (u.end - u.begin + 1) // 2
        stop = p + u.n
        while p < stop:
            if beside and (a.gate or p + far < u.end):
                _beside(a, p, p + far)
            elif a.m > a.lanes.tile_rows[a.segments[0].form] and _wide(a, p, stop, <int>a.m):
                _pair(a, p, p + 2 if p + 2 < (u.end if u.run == ith else stop) else -1, 0, <int>a.m)
                p += 1
            else:
                _panel(a, p, p + 1 if p + 1 < (u.end if u.run == ith else stop) else -1, 0, <int>a.m)
            p += 1


cdef void matmul_part(const MatmulArgs *a, ox_team *team, int ith, int nth) noexcept nogil:
    """Takes work until none is left. The caller puts the barrier after it."""
    cdef Cut cut
    cdef int64_t panels = _panels(a), chunk, p, end, row, after
    cdef int m
    if _few_rows(a, a.m) and panels < MOST_PANELS:
        _few(a, <int>panels, team, ith, nth)
        return
    cut = _cut(a, panels, nth)
    while True:
        chunk = ox_team_take(team)
        if chunk >= cut.chunks:
            return
        row = chunk // cut.groups * cut.rows
        m = <int>min(cut.rows, a.m - row)
        p = chunk % cut.groups * cut.group
        end = min(cut.panels, p + cut.group)
        after = (chunk + nth) % cut.groups * cut.group if chunk + nth < cut.chunks else -1
        while p < end:
            if _wide(a, p, end, m):
                _pair(a, p, p + 2 if p + 2 < end else after, row, m)
                p += 2
                continue
            _panel(a, p, p + 1 if p + 1 < end else after, row, m)
            p += 1


cdef void matmul_panels(const MatmulArgs *a, int64_t first, int64_t end) noexcept nogil:
    cdef int64_t p = first, half = (end - first + 1) // 2, row = 0, m
    cdef bint wide
    if _few_rows(a, a.m) and _side_by_side(a):
        if a.gate:
            for p in range(first, end):
                _beside(a, p, p)
            return
        for p in range(first, first + half):
            if p + half < end:
                _beside(a, p, p + half)
            else:
                _panel(a, p, -1, 0, <int>a.m)
        return
    while row < a.m:
        m, p = min(<int64_t>RANGE, a.m - row), first
        while p < end:
            wide = _wide(a, p, end, <int>m)
            if wide:
                _pair(a, p, p + 2 if p + 2 < end else -1, row, <int>m)
            else:
                _panel(a, p, p + 1 if p + 1 < end else -1, row, <int>m)
            p += 2 if wide else 1
        row += m


def act_bytes(str act, int64_t cols) -> int:
    """Bytes of one activation row of `cols` columns in the format `act` ("f32", "bf16", "q8_32", "q8_256"); QuantError if it does not fit."""
    cdef int index = act_index(act)
    cdef int64_t block = 32 if index == ACT_Q8_32 else 256 if index == ACT_Q8_256 else 1
    if cols < 1 or cols % block or cols > <int64_t>1 << 32:
        raise QuantError(f"{act}: rows of {cols} columns, wanted a multiple of {block}")
    return act_row_bytes(index, cols)


def quantise_rows(const float[:, ::1] x, str act, isa=None):
    """Activation rows, uint8 (m, act_bytes): `x` float32 (m, cols) in the format `act`."""
    cdef const ox_lanes *lanes = lanes_table(isa)
    cdef int index = act_index(act)
    cdef int64_t i, size = act_bytes(act, x.shape[1])
    cdef uint8_t[:, ::1] out = np.zeros((x.shape[0], size), np.uint8)
    with nogil:
        for i in range(x.shape[0]):
            lanes.act_quantise[index](&out[i, 0], &x[i, 0], x.shape[1])
    return np.asarray(out)


def matmul(weights, const float[:, ::1] x, *, num_threads=1, isa=None, bias=None, gate=None):
    """out (m, rows) = x (m, cols) . weights^T in float32: x is quantised to the weights' activation format, then tiled.

    `weights` is a PackedMatrix or a list of them with one activation format, whose rows follow each other in `out`. `gate` (an
    activation's name) takes two of equal rows and gives act(first) * second. `bias` has one number per row of all segments.
    Raises QuantError where shapes disagree, ConfigError for an instruction set that cannot run here.
    """
    segments = [weights] if isinstance(weights, PackedMatrix) else list(weights)
    _check(segments, x.shape[1], bias, gate)
    acts = quantise_rows(x, segments[0].act, isa)
    return matmul_acts(segments, acts, num_threads=num_threads, isa=isa, bias=bias, gate=gate)


def _check(list segments, int64_t cols, bias, gate):
    if not segments or len(segments) > 16 or not all(isinstance(w, PackedMatrix) for w in segments):
        raise QuantError(f"matmul: found {len(segments)} weights, wanted 1 to 16 PackedMatrix")
    rows = sum(w.rows for w in segments)
    for w in segments:
        if w.cols != cols or w.act != segments[0].act:
            raise QuantError(f"matmul: {w.format} weights of ({w.rows}, {w.cols}) beside x of {cols} columns in {segments[0].act}")
    if gate is not None and (len(segments) != 2 or segments[0].rows != segments[1].rows):
        raise QuantError(f"matmul: gate {gate!r} wants two matrices of equal rows, found {[w.rows for w in segments]}")
    if bias is not None and np.shape(bias) != (rows,):
        raise QuantError(f"matmul: bias of shape {np.shape(bias)}, wanted ({rows},)")


def matmul_acts(list segments, const uint8_t[:, ::1] acts, *, num_threads=1, isa=None, bias=None, gate=None, out=None):
    """The same product from rows that `quantise_rows` made; `out` (m, rows) float32 may be given to be written."""
    cdef MatmulSegment table[16]
    cdef MatmulArgs args
    cdef int i, workers = worker_count(num_threads), kind = activation(gate)
    cdef const float[::1] shift = None if bias is None else np.ascontiguousarray(bias, np.float32)
    _check(segments, segments[0].cols, bias, gate)
    if acts.shape[1] != act_bytes(segments[0].act, segments[0].cols):
        raise QuantError(f"matmul: activation rows of {acts.shape[1]} bytes, wanted {act_bytes(segments[0].act, segments[0].cols)}")
    for i in range(len(segments)):
        (<PackedMatrix>segments[i]).check_packed()
        table[i] = (<PackedMatrix>segments[i]).segment
    width = segments[0].rows if kind else sum(w.rows for w in segments)
    cdef float[:, ::1] result = np.empty((acts.shape[0], width), np.float32) if out is None else out
    if result.shape[0] != acts.shape[0] or result.shape[1] != width:
        raise QuantError(f"matmul: out is ({result.shape[0]}, {result.shape[1]}), wanted ({acts.shape[0]}, {width})")
    if acts.shape[0] == 0:
        return np.asarray(result)
    args.lanes, args.segments, args.n_segments = lanes_table(isa), table, len(segments)
    args.gate, args.cols, args.m = kind, segments[0].cols, acts.shape[0]
    args.bias = NULL if shift is None else &shift[0]
    args.addend, args.low = NULL, NULL
    args.x, args.ldx = &acts[0, 0], acts.shape[1]
    args.out, args.ldout = &result[0, 0], width
    _run(&args, workers)
    return np.asarray(result)


cdef void _share(const MatmulArgs *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef fenv_t was = ox_fenv_enter()
    matmul_part(args, team, ith, nth)
    ox_fenv_leave(&was)


cdef int _run(const MatmulArgs *args, int workers) except -1:
    cdef int ith, nth = region_threads(workers)
    cdef ox_team *team = <ox_team *>ox_block_new(sizeof(ox_team))
    if team == NULL:
        raise MemoryError
    ox_team_init(team, NULL)
    for ith in prange(nth, nogil=True, schedule="static", chunksize=1, num_threads=nth, use_threads_if=nth > 1):
        _share(args, team, ith, nth)
    ox_block_free(team)
    return 0
