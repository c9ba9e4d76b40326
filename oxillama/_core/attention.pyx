"""Ops over pages of keys and values: `rope_store` puts them there, `attend` reads them.

The keys a row sees are cut into splits of 256 at absolute positions. One split of one tile of queries is one call of the C kernel
(`csrc/vec/attend.h`), which yields (largest score, sum, mixed values) per query; a query's splits are folded in ascending order by
one formula. Who computes a split and when never changes a bit, so the schedule is free:

- many rows: an item is (KV head, tile of rows of one sequence); its worker walks the splits and folds as it goes;
- few rows on deep sequences: an item is one split; results wait in `partials`, and the worker that finishes the last split of a tile
  folds them all.

Queries of a tile are its rows times the query heads that share the KV head, so K and V are read once for all of them.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.string cimport memcpy

from oxillama._core.pool cimport KvLayer, page_of
from oxillama._core.step cimport Common, Op, Plan, Step, Tiles, row_of, rows_of
from oxillama._core.threads cimport ox_team, ox_team_take
from oxillama._core.vectors cimport OX_MAX_QUERIES, OX_SPLIT_GROUPS, OX_SPLIT_KEYS, ox_split, ox_vec

cdef extern from *:
    """
    /* Adds 1 and returns the new value; what other workers wrote before their own addition is visible after it. */
    static int ox_count_up(int *p) { return __atomic_add_fetch(p, 1, __ATOMIC_ACQ_REL); }
    """
    int ox_count_up(int32_t *p) noexcept nogil

cdef enum:
    TILE_QUERIES = 48                # queries aimed at for a tile: a multiple of every register tile
    HEADS = 16                       # heads of a rope_store chunk
    ROWS = 16                        # rows of a rope_store chunk
    PARTIAL_LIMIT = 16 << 20         # floats: beyond this a tile's splits are folded by one worker
    ITEMS_PER_WORKER = 4             # fewer items than this a worker: go by splits
    CHUNKS_PER_WORKER = 16           # aimed at when going by splits: heads of one split share a chunk where there are more
    FETCH_QUERIES = 12               # most queries of a tile that waits for memory, not for arithmetic


# ---- rope_store ------------------------------------------------------------------------------------------------------

ctypedef struct StoreArgs:
    Common common
    int x, rope, half, pairs, q_heads, kv_heads, k_dim, v_dim, layer
    const float *q_norm
    const float *k_norm
    float eps, q_scale


cdef void turn(const StoreArgs *a, const Step *step, float *head, const float *weight, int row) noexcept nogil:
    """Norm (if any) and rotate one head in place."""
    cdef const float *angles
    if weight != NULL:
        step.vec.rms_norm(head, head, weight, NULL, a.eps, a.k_dim)
    if a.rope >= 0:
        angles = <const float *>row_of(step, a.rope, row)
        if a.pairs:
            step.vec.rope_pairs(head, angles, angles + a.half, a.half)
        else:
            step.vec.rope_halves(head, angles, angles + a.half, a.half)


cdef void store_key(const Step *step, const KvLayer *layer, char *page, int head, int token, const float *k, uint16_t *halves) noexcept nogil:
    cdef char *to = page + head * layer.k_head_bytes + (token // 16) * layer.k_group_bytes
    cdef int d
    if step.halves:
        step.vec.halves(halves, k, layer.k_dim)
        for d in range(layer.k_dim):
            (<uint16_t *>to)[16 * d + token % 16] = halves[d]
    else:
        for d in range(layer.k_dim):
            (<float *>to)[16 * d + token % 16] = k[d]


cdef void store_row(const StoreArgs *a, const Step *step, int row, int first, int last, float *scratch) noexcept nogil:
    """Heads first to last - 1 of q, k and v side by side, of one row."""
    cdef float *x = <float *>row_of(step, a.x, row)
    cdef float *keys = x + <size_t>a.q_heads * a.k_dim
    cdef float *values = keys + <size_t>a.kv_heads * a.k_dim
    cdef const KvLayer *layer = &step.layers[a.layer]
    cdef int position = step.positions[row], h, token = position % step.page_size
    cdef char *page = page_of(step.slabs, step.shift, layer, step.tables[step.row_table[row]][position // step.page_size])
    cdef char *v
    for h in range(first, min(last, a.q_heads)):
        turn(a, step, x + <size_t>h * a.k_dim, a.q_norm, row)
        if a.q_scale != 1.0:
            step.vec.scale(x + <size_t>h * a.k_dim, x + <size_t>h * a.k_dim, a.q_scale, a.k_dim)
    for h in range(max(0, first - a.q_heads), min(last - a.q_heads, a.kv_heads)):
        memcpy(scratch, keys + <size_t>h * a.k_dim, a.k_dim * sizeof(float))
        turn(a, step, scratch, a.k_norm, row)
        store_key(step, layer, page, h, token, scratch, <uint16_t *>(scratch + a.k_dim))
    for h in range(max(0, first - a.q_heads - a.kv_heads), min(last - a.q_heads - a.kv_heads, a.kv_heads)):
        v = page + layer.v_offset + h * layer.v_head_bytes + token * layer.v_row_bytes
        if step.halves:
            step.vec.halves(<uint16_t *>v, values + <size_t>h * a.v_dim, a.v_dim)
        else:
            memcpy(v, values + <size_t>h * a.v_dim, a.v_dim * sizeof(float))


cdef void rope_store_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const StoreArgs *a = <const StoreArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), heads = a.q_heads + 2 * a.kv_heads, blocks = (heads + HEADS - 1) // HEADS
    cdef int items = (rows + ROWS - 1) // ROWS * blocks, c, r, first
    cdef float *scratch = <float *>(step.scratch + <size_t>ith * step.scratch_stride)
    c = ox_team_take(team)
    while c < items:
        first = c % blocks * HEADS
        for r in range(c // blocks * ROWS, min(rows, (c // blocks + 1) * ROWS)):
            store_row(a, step, r, first, min(heads, first + HEADS), scratch)
        c = ox_team_take(team)


def head_shape(Plan plan, p):
    """(q_heads, kv_heads, k_dim, v_dim, layer) of an attention op, checked against the program's layers."""
    layer = plan.number(p, "layer", 0, len(plan.kv_layers) - 1)
    q_heads, kv_heads = plan.number(p, "q_heads", 1, 1 << 16), plan.number(p, "kv_heads", 1, 1 << 16)
    k_dim, v_dim = plan.number(p, "k_dim", 1, 1 << 16), plan.number(p, "v_dim", 1, 1 << 16)
    if q_heads % kv_heads:
        raise plan.fail(f"{q_heads} query heads do not share {kv_heads} KV heads evenly")
    if plan.kv_layers[layer] != (kv_heads, k_dim, v_dim):
        raise plan.fail(f"layer {layer} has (kv_heads, k_dim, v_dim) {plan.kv_layers[layer]}, this op {(kv_heads, k_dim, v_dim)}")
    return q_heads, kv_heads, k_dim, v_dim, layer


cdef class RopeStoreOp(Op):
    cdef StoreArgs a
    cdef const float[::1] q_norm
    cdef const float[::1] k_norm

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "q_heads", "kv_heads", "k_dim", "v_dim", "layer",
                      rope=None, rope_dims=0, style="norm", q_norm=None, k_norm=None, eps=1e-6, q_scale=1.0)
        cdef StoreArgs *a = &self.a
        a.q_heads, a.kv_heads, a.k_dim, a.v_dim, a.layer = head_shape(plan, p)
        a.x, a.rope = p["x"], -1
        plan.reads(p["x"], columns=a.q_heads * a.k_dim + a.kv_heads * (a.k_dim + a.v_dim), full=True)
        if p["style"] not in ("norm", "neox"):
            raise plan.fail(f"style is {p['style']!r}, wanted 'norm' or 'neox'")
        a.pairs = p["style"] == "norm"
        if p["rope"] is not None:
            dims = plan.number(p, "rope_dims", 2, a.k_dim)
            if dims % 2:
                raise plan.fail(f"rope_dims is {dims}, wanted an even number")
            plan.reads(p["rope"], columns=dims, full=True)
            a.rope, a.half = p["rope"], dims // 2
        self.q_norm, self.k_norm = plan.floats(p["q_norm"], "q_norm", a.k_dim), plan.floats(p["k_norm"], "k_norm", a.k_dim)
        a.q_norm = NULL if self.q_norm is None else &self.q_norm[0]
        a.k_norm = NULL if self.k_norm is None else &self.k_norm[0]
        a.eps, a.q_scale = plan.real(p, "eps", 0.0, 1.0), plan.real(p, "q_scale", -1e30, 1e30)
        plan.need_scratch(self, 6 * <size_t>a.k_dim + 64)
        self.begin(plan, &a.common, "rope_store", rope_store_part, p)


# ---- attend ----------------------------------------------------------------------------------------------------------

ctypedef struct AttendArgs:
    Common common
    int x, out, q_heads, kv_heads, k_dim, v_dim, layer, window
    int group                 # query heads of a KV head
    int share                 # of them, those that go into one tile
    int parts                 # tiles needed for a group
    int width                 # v_dim rounded up to 16
    int tiles                 # which Tiles of the step
    float softcap
    const float *sinks


ctypedef struct Worker:
    # One worker's scratch: the kernel's arguments, then its buffers.
    ox_split split
    float m[OX_MAX_QUERIES]
    float l[OX_MAX_QUERIES]
    float *scores
    float *block
    float *part               # acc of the split just computed
    float *total              # acc folded so far
    float part_m[OX_MAX_QUERIES]
    float part_l[OX_MAX_QUERIES]
    int seen[OX_MAX_QUERIES]  # whether any split was folded yet


cdef size_t worker_bytes(int k_dim, int width) noexcept nogil:
    return sizeof(Worker) + 64 + 4 * <size_t>OX_MAX_QUERIES * (OX_SPLIT_KEYS + 2 * <size_t>width + <size_t>max(k_dim, width))


cdef Worker *open_worker(const AttendArgs *a, const Step *step, int ith) noexcept nogil:
    cdef Worker *w = <Worker *>(step.scratch + <size_t>ith * step.scratch_stride)
    cdef float *at = <float *>(<char *>w + (sizeof(Worker) + 63) // 64 * 64)
    w.scores = at
    w.part = at + OX_MAX_QUERIES * OX_SPLIT_KEYS
    w.total = w.part + OX_MAX_QUERIES * a.width
    w.block = w.total + OX_MAX_QUERIES * a.width
    w.split.k_dim, w.split.v_dim, w.split.width = a.k_dim, a.v_dim, a.width
    w.split.halves, w.split.softcap = step.halves, a.softcap
    w.split.scores, w.split.block = w.scores, w.block
    return w


cdef inline int first_key(const AttendArgs *a, int position) noexcept nogil:
    return max(0, position - a.window + 1) if a.window else 0


cdef inline int first_split(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile) noexcept nogil:
    return first_key(a, step.positions[tiles.first[tile]]) // OX_SPLIT_KEYS


cdef inline int last_split(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile) noexcept nogil:
    return step.positions[tiles.first[tile + 1] - 1] // OX_SPLIT_KEYS


cdef void aim(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile, int head, int part, ox_split *s) noexcept nogil:
    """Points the kernel at the queries of a tile: row by row, `share` heads each."""
    cdef int h0 = head * a.group + part * a.share, heads = min(a.share, a.group - part * a.share), r, h, i = 0
    cdef const float *q
    for r in range(tiles.first[tile], tiles.first[tile + 1]):
        q = <const float *>row_of(step, a.x, r)
        for h in range(h0, h0 + heads):
            s.q[i] = q + <size_t>h * a.k_dim
            i += 1
    s.queries = i


cdef void mark(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile, int split, ox_split *s) noexcept nogil:
    """Sets which keys of the split each query sees."""
    cdef int row0 = tiles.first[tile], row1 = tiles.first[tile + 1], base = split * OX_SPLIT_KEYS
    cdef int heads = s.queries // (row1 - row0), r, i
    for r in range(row0, row1):
        for i in range((r - row0) * heads, (r - row0 + 1) * heads):
            s.first[i] = max(0, first_key(a, step.positions[r]) - base)
            s.last[i] = min(<int>OX_SPLIT_KEYS, step.positions[r] + 1 - base)


cdef void find(const AttendArgs *a, const Step *step, const int32_t *pages, int head, int split, int low, int high,
               const void **k, const void **v) noexcept nogil:
    """Where the groups of keys low to high - 1 of a split lie for one KV head; groups outside stand at the first one."""
    cdef const KvLayer *layer = &step.layers[a.layer]
    cdef const char *page
    cdef int g, token
    for g in range(low // 16, (high + 15) // 16):
        token = split * OX_SPLIT_KEYS + 16 * g
        page = page_of(step.slabs, step.shift, layer, pages[token // step.page_size])
        token = token % step.page_size
        k[g] = page + head * layer.k_head_bytes + (token // 16) * layer.k_group_bytes
        v[g] = page + layer.v_offset + head * layer.v_head_bytes + token * layer.v_row_bytes
    for g in range(low // 16):
        k[g], v[g] = k[low // 16], v[low // 16]
    for g in range((high + 15) // 16, OX_SPLIT_GROUPS):
        k[g], v[g] = k[low // 16], v[low // 16]


cdef void seen_range(const ox_split *s, int *low, int *high) noexcept nogil:
    """The keys of the split that any query sees."""
    cdef int i
    low[0], high[0] = OX_SPLIT_KEYS, 0
    for i in range(s.queries):
        if s.first[i] < s.last[i]:
            low[0], high[0] = min(low[0], s.first[i]), max(high[0], s.last[i])


cdef void run_split(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile, int head, int split, int last, ox_split *s) noexcept nogil:
    """Runs the kernel on one split of the tile `aim` chose; with few queries it fetches the split after it meanwhile, up to `last`."""
    cdef const int32_t *pages = step.tables[step.row_table[tiles.first[tile]]]
    cdef int low, high, pos = step.positions[tiles.first[tile + 1] - 1]
    mark(a, step, tiles, tile, split, s)
    seen_range(s, &low, &high)
    find(a, step, pages, head, split, low, high, s.k, s.v)
    s.ahead = split < last and s.queries <= FETCH_QUERIES
    if s.ahead:
        find(a, step, pages, head, split + 1, 0, min(<int>OX_SPLIT_KEYS, pos + 1 - (split + 1) * OX_SPLIT_KEYS), s.next_k, s.next_v)
    step.vec.split(s)


cdef void fold(const AttendArgs *a, const Step *step, Worker *w, const float *m, const float *l, const float *acc) noexcept nogil:
    """Adds the split just described by first and last to each query's running result."""
    cdef int i
    for i in range(w.split.queries):
        if w.split.first[i] >= w.split.last[i]:
            continue
        if w.seen[i]:
            step.vec.merge(&w.m[i], &w.l[i], w.total + <size_t>i * a.width, m[i], l[i], acc + <size_t>i * a.width, a.width)
        else:
            w.seen[i], w.m[i], w.l[i] = 1, m[i], l[i]
            memcpy(w.total + <size_t>i * a.width, acc + <size_t>i * a.width, a.width * sizeof(float))


cdef void deliver(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile, int head, int part, Worker *w) noexcept nogil:
    """Divides and writes the tile's rows of the out slot."""
    cdef int h0 = head * a.group + part * a.share, heads = min(a.share, a.group - part * a.share), r, h, i = 0
    cdef float *out
    for r in range(tiles.first[tile], tiles.first[tile + 1]):
        out = <float *>row_of(step, a.out, r)
        for h in range(h0, h0 + heads):
            step.vec.finish(out + <size_t>h * a.v_dim, w.m[i], w.l[i], w.total + <size_t>i * a.width,
                            NULL if a.sinks == NULL else a.sinks + h, a.v_dim)
            i += 1


cdef void clear(Worker *w) noexcept nogil:
    cdef int i
    for i in range(w.split.queries):
        w.seen[i] = 0


cdef void whole_item(const AttendArgs *a, const Step *step, const Tiles *tiles, int item, Worker *w) noexcept nogil:
    """All splits of one (KV head, tile), folded as they come. Late tiles, which see the most keys, go first."""
    cdef int per_head = tiles.count * a.parts, head = item // per_head, rest = per_head - 1 - item % per_head
    cdef int tile = rest // a.parts, part = rest % a.parts, split, last
    aim(a, step, tiles, tile, head, part, &w.split)
    clear(w)
    w.split.m, w.split.l, w.split.acc = w.part_m, w.part_l, w.part
    last = last_split(a, step, tiles, tile)
    for split in range(first_split(a, step, tiles, tile), last + 1):
        run_split(a, step, tiles, tile, head, split, last, &w.split)
        fold(a, step, w, w.part_m, w.part_l, w.part)
    deliver(a, step, tiles, tile, head, part, w)


cdef inline size_t partial_size(const AttendArgs *a, const Tiles *tiles) noexcept nogil:
    """Floats of one split's result: m and l of each query, then acc."""
    return <size_t>(tiles.rows * a.share) * <size_t>(a.width + 2)


cdef void split_chunk(const AttendArgs *a, const Step *step, const Tiles *tiles, int chunk, int share, Worker *w) noexcept nogil:
    """One split of `share` neighbouring (KV head, part) of one tile; the last split of a tile and head to be finished folds them all."""
    cdef int heads = a.kv_heads * a.parts, chunks = (heads + share - 1) // share, tile = 0, before = 0, first, splits, split, h
    while True:
        first = first_split(a, step, tiles, tile)
        splits = last_split(a, step, tiles, tile) - first + 1
        if chunk < (before + splits) * chunks:
            break
        before += splits
        tile += 1
    chunk -= before * chunks
    split = chunk // chunks
    for h in range(chunk % chunks * share, min(heads, (chunk % chunks + 1) * share)):
        split_head(a, step, tiles, tile, first, splits, split, h, before * heads, w)
        if ox_count_up(&step.done[tile * heads + h]) == splits:
            step.done[tile * heads + h] = 0
            fold_head(a, step, tiles, tile, first, splits, h, before * heads, w)


cdef void split_head(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile, int first, int splits, int split, int h, int base,
                     Worker *w) noexcept nogil:
    """Computes partial `base + split * heads + h`, and fetches the next head's keys (or the next split's, after the last) meanwhile."""
    cdef int heads = a.kv_heads * a.parts, head = h // a.parts, low, high, next = h + 1, after = split
    cdef const int32_t *pages = step.tables[step.row_table[tiles.first[tile]]]
    cdef float *mine = step.partials + <size_t>(base + split * heads + h) * partial_size(a, tiles)
    cdef ox_split *s = &w.split
    aim(a, step, tiles, tile, head, h % a.parts, s)
    s.m, s.l, s.acc = mine, mine + s.queries, mine + 2 * s.queries
    mark(a, step, tiles, tile, first + split, s)
    seen_range(s, &low, &high)
    find(a, step, pages, head, first + split, low, high, s.k, s.v)
    if next == heads:
        next, after, low = 0, split + 1, 0
        high = min(<int>OX_SPLIT_KEYS, step.positions[tiles.first[tile + 1] - 1] + 1 - (first + after) * OX_SPLIT_KEYS)
    s.ahead = after < splits and s.queries <= FETCH_QUERIES
    if s.ahead:
        find(a, step, pages, next // a.parts, first + after, low, high, s.next_k, s.next_v)
    step.vec.split(s)


cdef void fold_head(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile, int first, int splits, int h, int base,
                    Worker *w) noexcept nogil:
    """Folds all splits of one head of a tile, ascending, and delivers."""
    cdef int heads = a.kv_heads * a.parts, k
    cdef const float *partial
    aim(a, step, tiles, tile, h // a.parts, h % a.parts, &w.split)
    clear(w)
    for k in range(splits):
        partial = step.partials + <size_t>(base + k * heads + h) * partial_size(a, tiles)
        mark(a, step, tiles, tile, first + k, &w.split)
        fold(a, step, w, partial, partial + w.split.queries, partial + 2 * w.split.queries)
    deliver(a, step, tiles, tile, h // a.parts, h % a.parts, w)


cdef int split_count(const AttendArgs *a, const Step *step, const Tiles *tiles, int nth) noexcept nogil:
    """Splits of all tiles when the op goes by splits, 0 when it goes by whole tiles."""
    cdef int heads = a.kv_heads * a.parts, tile, splits = 0
    if nth == 1 or tiles.count * heads >= ITEMS_PER_WORKER * nth:
        return 0
    for tile in range(tiles.count):
        splits += last_split(a, step, tiles, tile) - first_split(a, step, tiles, tile) + 1
    if splits == tiles.count or <size_t>splits * heads * partial_size(a, tiles) > PARTIAL_LIMIT:
        return 0
    return splits


cdef size_t partial_floats_wanted(const void *args, const Step *step, int nth) noexcept nogil:
    """Floats of `partials` an attend op may use in this step."""
    cdef const AttendArgs *a = <const AttendArgs *>args
    cdef const Tiles *tiles = &step.tiles[a.tiles]
    return <size_t>split_count(a, step, tiles, nth) * <size_t>(a.kv_heads * a.parts) * partial_size(a, tiles)


cdef int done_items_wanted(const void *args, const Step *step) noexcept nogil:
    """Counters an attend op may use in this step."""
    cdef const AttendArgs *a = <const AttendArgs *>args
    return step.tiles[a.tiles].count * a.kv_heads * a.parts


cdef void cut_tiles(const Step *step, Tiles *tiles) noexcept nogil:
    """Cuts the rows of a step into tiles of one sequence and consecutive positions."""
    cdef int r, start = 0
    tiles.count = 0
    for r in range(step.rows):
        if r == 0 or r - start == tiles.rows or step.row_table[r] != step.row_table[r - 1] or step.positions[r] != step.positions[r - 1] + 1:
            start = r
            tiles.first[tiles.count] = r
            tiles.count += 1
    tiles.first[tiles.count] = step.rows


cdef void attend_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const AttendArgs *a = <const AttendArgs *>args
    cdef const Step *step = a.common.step
    cdef const Tiles *tiles = &step.tiles[a.tiles]
    cdef Worker *w = open_worker(a, step, ith)
    cdef int splits = split_count(a, step, tiles, nth), heads = a.kv_heads * a.parts, items = tiles.count * heads, share, c
    if splits:
        share = max(1, min(heads, splits * heads // (CHUNKS_PER_WORKER * nth)))
        items = splits * ((heads + share - 1) // share)
    c = ox_team_take(team)
    while c < items:
        if splits:
            split_chunk(a, step, tiles, c, share, w)
        else:
            whole_item(a, step, tiles, c, w)
        c = ox_team_take(team)


cdef class AttendOp(Op):
    cdef AttendArgs a
    cdef const float[::1] sinks

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "q_heads", "kv_heads", "k_dim", "v_dim", "layer", "out", window=0, softcap=0.0, sinks=None)
        cdef AttendArgs *a = &self.a
        a.q_heads, a.kv_heads, a.k_dim, a.v_dim, a.layer = head_shape(plan, p)
        a.x = p["x"]
        if plan.reads(p["x"], full=True) < a.q_heads * a.k_dim:
            raise plan.fail(f"slot {p['x']} is narrower than {a.q_heads} heads of {a.k_dim}")
        a.window, a.softcap = plan.number(p, "window", 0, (1 << 31) - 1), plan.real(p, "softcap", 0.0, 1e30)
        self.sinks = plan.floats(p["sinks"], "sinks", a.q_heads)
        a.sinks = NULL if self.sinks is None else &self.sinks[0]
        a.group = a.q_heads // a.kv_heads
        a.share = min(a.group, <int>TILE_QUERIES)
        a.parts = (a.group + a.share - 1) // a.share
        a.width = (a.v_dim + 15) // 16 * 16
        rows = max(1, (TILE_QUERIES + a.share // 2) // a.share)
        if p["out"] == p["x"]:
            raise plan.fail(f"x and out are both slot {p['x']}")
        if rows not in plan.tile_rows:
            plan.tile_rows.append(rows)
        a.tiles = plan.tile_rows.index(rows)
        plan.reaches.append(a.window)
        a.out = plan.writes(p["out"], a.q_heads * a.v_dim, wanted=False)
        plan.need_scratch(self, worker_bytes(a.k_dim, a.width))
        self.begin(plan, &a.common, "attend", attend_part, p)


OPS = {"rope_store": RopeStoreOp, "attend": AttendOp}
