"""The op that reads keys and values from their pages: attention of every row over the keys it sees.

The keys a row sees are cut into splits of 256 at absolute positions. One split of one tile of queries is one call of the C kernel
(`csrc/vec/attend.h`), which yields (largest score, sum, mixed values) per query; a query's splits are folded in ascending order by
one formula. Who computes a split and when never changes a bit, so the schedule is free:

- many rows: an item is (KV head, tile of rows of one sequence); its worker walks the splits and folds as it goes;
- few rows on deep sequences: an item is one split; results wait in `partials`, and the worker that finishes the last split of a tile
  folds them all.

Keys that blocks of tokens became (blocks.pyx) come before a layer's own: splits of 256 of them, those of a tile numbered so that its first own
split follows. They lie in a layer of rows, and are brought together in a worker's scratch as the kernel wants its keys, all that a row sees or
those that were chosen for it; splits are counted in either, so that a row's are the same in any tile.

A row may also see only chosen blocks of a layer's own keys, once it has more of them than are chosen; such a row is a tile of its own, and its
splits are those of the keys it sees, one after the other. Blocks of whole groups of 16 are read where they lie, others are brought together too.

Queries of a tile are its rows times the query heads that share the KV head, so K and V are read once for all of them.

`attend_part` is one worker's share: the tape calls it on each of its workers, `attend` by `prange` over numpy arrays.
"""
import numpy as np

from cython.parallel cimport prange
from libc.limits cimport INT_MAX
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memset

from oxillama._core.blocks cimport block_key
from oxillama._core.linear cimport fill_quantise
from oxillama._core.pool cimport Arena, KvLayer, PageMemory, gather_keys, gather_values, page_of
from oxillama._core.step cimport ALL_ROWS, Common, Op, PartFn, Plan, Step, Tiles, act_row_bytes, ox_count_up, ox_fetch, row_of
from oxillama._core.threads cimport fenv_t, ox_fenv_enter, ox_fenv_leave, ox_team, ox_team_init, ox_team_take, worker_count
from oxillama._core.vectors cimport OX_BLOCK_GROUPS, OX_MAX_QUERIES, OX_SPLIT_KEYS, ox_split, vec_table

from oxillama._core.blocks import block_ratio, key_layer
from oxillama._core.store import head_shape

cdef extern from "block.h" nogil:
    void *ox_block_new(size_t size)
    void ox_block_free(void *block)

cdef enum:
    Q8_32 = 1                        # activations of keys in panels
    VIEW_QUERIES = 48                # queries aimed at for a tile over a view, each of which turns the values anew
    HEAD_QUERIES = 64                # those of KV heads that go together, and of a row over a view
    PARTIAL_LIMIT = 16 << 20         # floats: beyond this a tile's splits are folded by one worker
    WARM_GROUPS = 8                  # groups of 16 keys fetched before the op begins
    ITEMS_PER_WORKER = 4             # fewer items than this a worker: go by splits
    DEEP_SPLITS = 4                  # a tile on average: from here on several heads at a time read memory faster than one
    CHUNKS_PER_WORKER = 8            # aimed at: heads go together where there are more


ctypedef struct AttendArgs:
    Common common
    int x, out, q_heads, kv_heads, k_dim, v_dim, layer, window, chunk
    int group                 # query heads of a KV head
    int share                 # of them, those that go into one tile
    int parts                 # tiles needed for a group
    int width                 # v_dim rounded up to 16
    int tiles                 # which Tiles of the step
    float softcap
    const float *sinks
    const float *slopes       # of each query head, or NULL
    const float *relative     # of each query head: a bias for each distance from -reach to reach, or NULL
    int reach
    int spans                 # rows see the keys of their spans alone
    int behind                # or those behind their spans
    int strict                # no key after a row's own, whatever the batch says
    int symmetric             # the window looks ahead as far as it looks back
    int view                  # values are a view of the keys
    int blocks                # the layer of the keys of blocks, -1: none
    int ratio                 # tokens of a block
    int chosen, most          # the slot of the blocks chosen for each row, so many at most; -1: rows see all blocks before them
    int picked                # without `blocks`: what is chosen are blocks of the layer's own keys
    int each                  # for each KV head
    int running               # a block may be chosen before its last token is there; else its tokens are seen until then
    int alone                 # the first position with more blocks than are chosen


ctypedef struct Item:
    # What one call of the kernel covers: a tile of rows, and KV heads head to head + heads - 1 (`part` of their query heads).
    int tile, head, heads, part


ctypedef struct Worker:
    # One worker's scratch: the kernel's arguments, then its buffers.
    ox_split split
    float m[OX_MAX_QUERIES]
    float l[OX_MAX_QUERIES]
    int seen[OX_MAX_QUERIES]  # whether any split was folded yet
    float part_m[OX_MAX_QUERIES]
    float part_l[OX_MAX_QUERIES]
    float *part               # acc of the split just computed
    float *total              # acc folded so far
    uint8_t *rows             # queries as rows of activations, for keys in panels
    char *keys                # keys of blocks, a split of them
    int tile, head            # of the item they are of; -1: none
    int part_of


cdef size_t worker_bytes(int k_dim, int width, int gathered) noexcept nogil:
    """gathered: numbers that a token has among the keys and values that are brought together, 0 where none are."""
    cdef size_t block = 16 * OX_BLOCK_GROUPS * <size_t>max(k_dim, width) + <size_t>OX_MAX_QUERIES * ((k_dim + 31) // 32 * 12)
    cdef size_t keys = 64 + OX_SPLIT_KEYS * 4 * <size_t>gathered if gathered else 0      # no type keeps a number in more
    return sizeof(Worker) + 64 + 4 * (<size_t>OX_MAX_QUERIES * (OX_SPLIT_KEYS + 2 * <size_t>width) + block) + keys


cdef Worker *open_worker(const AttendArgs *a, const Step *step, int ith) noexcept nogil:
    cdef Worker *w = <Worker *>(step.scratch + <size_t>ith * step.scratch_stride)
    cdef const KvLayer *layer = &step.layers[a.layer]
    cdef float *at = <float *>(<char *>w + (sizeof(Worker) + 63) // 64 * 64)
    w.split.scores = at
    w.part = at + OX_MAX_QUERIES * OX_SPLIT_KEYS
    w.total = w.part + OX_MAX_QUERIES * a.width
    w.split.block = w.total + OX_MAX_QUERIES * a.width
    w.split.k_dim, w.split.v_dim, w.split.width = a.k_dim, a.v_dim, a.width
    w.split.kind, w.split.softcap = step.kind, a.softcap
    w.split.tile, w.split.wide = step.key_tile[step.kind], step.key_wide[step.kind]
    w.rows = <uint8_t *>(w.split.block + 16 * OX_BLOCK_GROUPS * max(a.k_dim, a.width))
    w.split.x, w.split.ldx = w.rows, act_row_bytes(Q8_32, a.k_dim)
    w.keys = <char *>w + (<size_t>(<char *>(w.rows + OX_MAX_QUERIES * w.split.ldx) - <char *>w) + 63) // 64 * 64
    w.tile = -1
    w.split.k_stride, w.split.v_stride = layer.k_head_bytes, layer.k_head_bytes if a.view else layer.v_head_bytes
    w.split.biased, w.split.view = 2 if a.relative != NULL else a.slopes != NULL, a.view
    w.split.reach = a.reach
    return w


cdef inline int first_key(const AttendArgs *a, const Step *step, int row) noexcept nogil:
    cdef int position = step.positions[row]
    if a.spans:
        return step.spans[row]
    if a.behind:
        return step.spans[step.rows + row]
    if a.chunk:
        return position - position % a.chunk
    return max(0, position - a.window + 1) if a.window else 0


cdef inline int key_limit(const AttendArgs *a, const Step *step, int row) noexcept nogil:
    """Keys that a row may see: the first one after them."""
    cdef int most = step.positions[row] + 1 if a.strict else step.limits[row]
    if a.spans:
        return min(most, step.spans[step.rows + row])
    if a.symmetric and a.window and most - step.positions[row] > a.window:
        return step.positions[row] + a.window
    return most


cdef inline int own_split(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile) noexcept nogil:
    """The first split of the layer's own keys."""
    return first_key(a, step, tiles.first[tile]) // OX_SPLIT_KEYS


cdef inline int blocks_seen(const AttendArgs *a, const Step *step, int row) noexcept nogil:
    """Keys of blocks that a row sees: of whole blocks up to its own position, or those chosen of them."""
    cdef int count = (step.positions[row] + 1) // a.ratio
    return min(count, a.most) if a.chosen >= 0 else count


cdef inline bint picks(const AttendArgs *a, const Step *step, int row) noexcept nogil:
    """Whether a row sees only chosen blocks of the layer's keys."""
    return a.picked and step.positions[row] >= a.alone


cdef inline const float *picked_by(const AttendArgs *a, const Step *step, int row, int head) noexcept nogil:
    return <const float *>row_of(step, a.chosen, row) + (head * a.most if a.each else 0)


cdef inline int picked_keys(const AttendArgs *a, const Step *step, int row, int head) noexcept nogil:
    """Keys that a row sees: those of the blocks chosen, and of the tokens behind the last whole one."""
    cdef int most = a.most * a.ratio, tail = (step.positions[row] + 1) % a.ratio
    if not a.running:
        return most + tail
    if tail and <int>picked_by(a, step, row, head)[a.most - 1] == step.positions[row] // a.ratio:
        return most - a.ratio + tail
    return most


cdef inline int picked_token(const AttendArgs *a, const Step *step, int row, const float *chosen, int key) noexcept nogil:
    """Which token such a key is of."""
    cdef int block = key // a.ratio
    return (<int>chosen[block] if block < a.most else (step.positions[row] + 1) // a.ratio) * a.ratio + key % a.ratio


cdef inline int first_split(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile) noexcept nogil:
    cdef int first = own_split(a, step, tiles, tile)
    if a.blocks < 0:
        return first
    return first - (blocks_seen(a, step, tiles.first[tile + 1] - 1) + <int>OX_SPLIT_KEYS - 1) // OX_SPLIT_KEYS


cdef inline int last_split(const AttendArgs *a, const Step *step, const Tiles *tiles, int tile) noexcept nogil:
    cdef int most = key_limit(a, step, tiles.first[tile + 1] - 1), r
    if picks(a, step, tiles.first[tile]):
        return (a.most * a.ratio + (0 if a.running else (step.positions[tiles.first[tile]] + 1) % a.ratio) - 1) // OX_SPLIT_KEYS
    if step.limited:
        for r in range(tiles.first[tile], tiles.first[tile + 1]):
            most = max(most, key_limit(a, step, r))
    return (most - 1) // OX_SPLIT_KEYS


cdef inline int shared_heads(const AttendArgs *a, int part) noexcept nogil:
    """Query heads of a KV head in this part."""
    return min(a.share, a.group - part * a.share)


cdef void aim(const AttendArgs *a, const Step *step, const Tiles *tiles, const Item *item, Worker *w) noexcept nogil:
    """Points the kernel at the queries of an item: head by head, row by row, `share` query heads each. No split folded yet."""
    cdef bint same = w.tile == item.tile and w.head == item.head and w.part_of == item.part     # a worker stays with its item
    cdef int share = shared_heads(a, item.part), head, r, h, i = 0
    cdef const float *q
    for head in range(item.head, item.head + item.heads):
        for r in range(tiles.first[item.tile], tiles.first[item.tile + 1]):
            q = <const float *>row_of(step, a.x, r) + <size_t>(head * a.group + item.part * a.share) * a.k_dim
            for h in range(share):
                w.split.q[i] = q + <size_t>h * a.k_dim
                w.seen[i] = 0
                if w.split.tile != NULL and not same:
                    step.quantise[Q8_32](w.rows + w.split.ldx * i, w.split.q[i], a.k_dim)
                i += 1
    w.split.queries, w.split.heads = i, item.heads
    w.tile, w.head, w.part_of = item.tile, item.head, item.part


cdef void mark(const AttendArgs *a, const Step *step, const Tiles *tiles, const Item *item, int split, ox_split *s) noexcept nogil:
    """Sets which keys of the split each query sees."""
    cdef int base = split * OX_SPLIT_KEYS, share = shared_heads(a, item.part), head, r, h, i = 0, first, last
    cdef bint blocks = a.blocks >= 0 and split < own_split(a, step, tiles, item.tile)
    cdef const float *slopes
    if blocks:
        base = (split - first_split(a, step, tiles, item.tile)) * OX_SPLIT_KEYS
    for head in range(item.heads):
        for r in range(tiles.first[item.tile], tiles.first[item.tile + 1]):
            first = max(0, first_key(a, step, r) - base)
            last = min(<int>OX_SPLIT_KEYS, key_limit(a, step, r) - base)
            if blocks:
                first, last = 0, min(<int>OX_SPLIT_KEYS, blocks_seen(a, step, r) - base)
            elif picks(a, step, r):
                first, last = 0, min(<int>OX_SPLIT_KEYS, picked_keys(a, step, r, item.head + head) - base)
            for h in range(share):
                s.first[i], s.last[i] = first, last
                if a.slopes != NULL:
                    slopes = a.slopes + (item.head + head) * a.group + item.part * a.share
                    s.slope[i], s.from_[i] = slopes[h], <float>(base - step.positions[r])
                elif a.relative != NULL:
                    s.bias[i] = a.relative + <size_t>((item.head + head) * a.group + item.part * a.share + h) * (2 * <size_t>a.reach + 1)
                    s.from_[i] = <float>(base - step.positions[r])
                i += 1


cdef inline const char *group_at(const AttendArgs *a, const Step *step, const int32_t *pages, int token, int head,
                                 const void **v) noexcept nogil:
    """K of the 16 keys from `token` on, for one KV head; and V of them."""
    cdef const KvLayer *layer = &step.layers[a.layer]
    cdef const char *page = page_of(layer, pages[token // step.page_size])
    token = token % step.page_size
    if a.view:
        v[0] = page + (token // 16) * layer.k_group_bytes
    else:
        v[0] = page + layer.v_offset + head * layer.v_head_bytes + (token // 16) * layer.v_group_bytes
    return page + head * layer.k_head_bytes + (token // 16) * layer.k_group_bytes


cdef void gather(const AttendArgs *a, const Step *step, const Tiles *tiles, const Item *item, int split, Worker *w) noexcept nogil:
    """Brings the keys of blocks of one split together, and points the kernel at them."""
    cdef int row = tiles.first[item.tile + 1] - 1, base = (split - first_split(a, step, tiles, item.tile)) * OX_SPLIT_KEYS, i, g, block
    cdef int count = min(<int>OX_SPLIT_KEYS, blocks_seen(a, step, row) - base)
    cdef size_t size = step.layers[a.layer].k_group_bytes
    cdef const float *chosen = <const float *>row_of(step, a.chosen, row) if a.chosen >= 0 else NULL
    for i in range(count):
        block = <int>chosen[base + i] if chosen != NULL else base + i
        step.vec.keep_key(step.kind, w.keys + i // 16 * size, i % 16, block_key(step, a.blocks, row, block, a.ratio), a.k_dim)
    for g in range((count + 15) // 16):
        w.split.k[g] = w.split.v[g] = w.keys + g * size


cdef void pick(const AttendArgs *a, const Step *step, const int32_t *pages, const Item *item, int row, int split, Worker *w) noexcept nogil:
    """Points the kernel at the chosen keys of one split, brought together where their blocks are no whole groups."""
    cdef int base = split * OX_SPLIT_KEYS, count = min(<int>OX_SPLIT_KEYS, picked_keys(a, step, row, item.head) - base), g, i, n, token
    cdef const KvLayer *layer = &step.layers[a.layer]
    cdef const float *chosen = picked_by(a, step, row, item.head)
    cdef ox_split *s = &w.split
    cdef char *values = w.keys + OX_SPLIT_KEYS // 16 * layer.k_group_bytes
    cdef const char *k[16]
    cdef const void *v[16]
    cdef int[16] lanes
    for g in range((count + 15) // 16):
        if a.ratio % 16 == 0:
            s.k[g] = group_at(a, step, pages, picked_token(a, step, row, chosen, base + 16 * g), item.head, &s.v[g])
            continue
        n = min(16, count - 16 * g)
        for i in range(n):
            token = picked_token(a, step, row, chosen, base + 16 * g + i)
            k[i], lanes[i] = group_at(a, step, pages, token, item.head, &v[i]), token % 16
        s.k[g] = s.v[g] = w.keys + g * layer.k_group_bytes
        gather_keys(step.kind, layer, w.keys + g * layer.k_group_bytes, k, lanes, n)
        if not a.view:
            s.v[g] = values + g * layer.v_group_bytes
            gather_values(step.kind, layer, values + g * layer.v_group_bytes, <const char *const *>v, lanes, n)


cdef void run_split(const AttendArgs *a, const Step *step, const Tiles *tiles, const Item *item, int split, Worker *w) noexcept nogil:
    """Runs the kernel on one split of the item `aim` chose."""
    cdef const int32_t *pages = step.tables[step.row_table[tiles.first[item.tile]]]
    cdef ox_split *s = &w.split
    cdef int low = OX_SPLIT_KEYS, high = 0, i, g
    mark(a, step, tiles, item, split, s)
    if a.blocks >= 0 and split < own_split(a, step, tiles, item.tile):
        gather(a, step, tiles, item, split, w)
        step.vec.split(s)
        return
    if picks(a, step, tiles.first[item.tile]):
        pick(a, step, pages, item, tiles.first[item.tile], split, w)
        step.vec.split(s)
        return
    for i in range(s.queries // s.heads):
        if s.first[i] < s.last[i]:
            low, high = min(low, s.first[i]), max(high, s.last[i])
    for g in range(low // 16, (high + 15) // 16):
        s.k[g] = group_at(a, step, pages, split * OX_SPLIT_KEYS + 16 * g, item.head, &s.v[g])
    step.vec.split(s)


cdef void foresee(const AttendArgs *a, const Step *step, const Tiles *tiles, const Item *item, int split, ox_split *s) noexcept nogil:
    """Tells the kernel where the split after this one begins, if its keys are all that lie there."""
    cdef const int32_t *pages = step.tables[step.row_table[tiles.first[item.tile]]]
    cdef int last = step.positions[tiles.first[item.tile + 1] - 1], begin = first_key(a, step, tiles.first[item.tile]), j
    cdef const void *v
    if picks(a, step, tiles.first[item.tile]):
        return
    s.ahead = 1
    begin = max(begin, split * OX_SPLIT_KEYS)     # keys before it may lie nowhere
    for j in range(OX_BLOCK_GROUPS):
        s.next_k[j] = group_at(a, step, pages, min(last, begin + 16 * j), item.head, &v)


cdef void deliver(const AttendArgs *a, const Step *step, const Tiles *tiles, const Item *item, Worker *w) noexcept nogil:
    """Divides and writes the item's part of its rows of the out slot."""
    cdef int share = shared_heads(a, item.part), head, r, h, q, i = 0
    for head in range(item.head, item.head + item.heads):
        for r in range(tiles.first[item.tile], tiles.first[item.tile + 1]):
            for h in range(share):
                q = head * a.group + item.part * a.share + h
                step.vec.finish(<float *>row_of(step, a.out, r) + <size_t>q * a.v_dim, w.m[i], w.l[i], w.total + <size_t>i * a.width,
                                NULL if a.sinks == NULL else a.sinks + q, a.v_dim)
                i += 1


ctypedef struct Cut:
    # How an attend op is cut into chunks in this step.
    int splits                # of all tiles when chunks are single splits, else 0
    int heads                 # KV heads of an item
    int blocks                # items a tile makes: blocks of KV heads times parts
    int chunks


cdef Cut cut_op(const AttendArgs *a, const Step *step, const Tiles *tiles, int nth) noexcept nogil:
    """By splits where whole tiles would leave workers without work. Heads go together as far as queries and balance allow: those of a
    page lie side by side, so a worker with all of them reads pages from end to end. With more workers splits are never given up again."""
    cdef Cut cut
    cdef int tile, splits = 0, together = 1, items = tiles.count * a.kv_heads * a.parts, deep
    for tile in range(tiles.count):
        splits += last_split(a, step, tiles, tile) - first_split(a, step, tiles, tile) + 1
    if a.parts == 1 and not (a.picked and (a.each or a.ratio % 16)):      # what is picked is so for one head
        together = max(1, min(<int>HEAD_QUERIES // (tiles.widest * a.share), a.kv_heads))
    deep = together > 1 and splits >= DEEP_SPLITS * tiles.count and items < together * ITEMS_PER_WORKER * nth
    cut.splits = splits if nth > 1 and splits > tiles.count and (deep or items < ITEMS_PER_WORKER * nth) else 0
    if <size_t>(cut.splits * a.kv_heads * a.parts) * partial_size(a, tiles) > PARTIAL_LIMIT:
        cut.splits = 0
    cut.heads = together
    if nth > 1:
        cut.heads = max(1, min(together, (cut.splits or tiles.count) * a.kv_heads // (CHUNKS_PER_WORKER * nth)))
    cut.blocks = (a.kv_heads + cut.heads - 1) // cut.heads * a.parts
    cut.chunks = (cut.splits or tiles.count) * cut.blocks
    return cut


cdef inline size_t partial_size(const AttendArgs *a, const Tiles *tiles) noexcept nogil:
    """Floats of one split's result for one head and part: m and l of each query, then acc."""
    return <size_t>(tiles.widest * a.share) * <size_t>(a.width + 2)


cdef inline void choose(const AttendArgs *a, const Cut *cut, int block, Item *item) noexcept nogil:
    """The heads and part of one of a tile's items."""
    item.head, item.part = block // a.parts * cut.heads, block % a.parts
    item.heads = min(cut.heads, a.kv_heads - item.head)


cdef void whole_chunk(const AttendArgs *a, const Step *step, const Tiles *tiles, const Cut *cut, int chunk, Worker *w) noexcept nogil:
    """All splits of one item, folded as they come. Late tiles, which see the most keys, go first."""
    cdef Item item
    cdef int split, last
    choose(a, cut, chunk // tiles.count, &item)
    item.tile = tiles.count - 1 - chunk % tiles.count
    aim(a, step, tiles, &item, w)
    w.split.m, w.split.l, w.split.acc = w.part_m, w.part_l, w.part
    last = last_split(a, step, tiles, item.tile)
    for split in range(first_split(a, step, tiles, item.tile), last + 1):
        w.split.ahead = 0
        if split < last:
            foresee(a, step, tiles, &item, split + 1, &w.split)
        run_split(a, step, tiles, &item, split, w)
        step.vec.fold(&w.split, w.m, w.l, w.total, w.seen)
    deliver(a, step, tiles, &item, w)


ctypedef struct SplitPosition:
    # A chunk that is one split of one item: the item, its tile's splits, and those of the tiles before it.
    Item item
    int block, split, first, splits, before


cdef SplitPosition locate(const AttendArgs *a, const Step *step, const Tiles *tiles, const Cut *cut, int chunk) noexcept nogil:
    cdef SplitPosition p
    p.item.tile, p.before = 0, 0
    while True:
        p.first = first_split(a, step, tiles, p.item.tile)
        p.splits = last_split(a, step, tiles, p.item.tile) - p.first + 1
        if chunk < (p.before + p.splits) * cut.blocks:
            break
        p.before += p.splits
        p.item.tile += 1
    chunk -= p.before * cut.blocks
    p.split, p.block = chunk // cut.blocks, chunk % cut.blocks
    choose(a, cut, p.block, &p.item)
    return p


cdef void point_at(const AttendArgs *a, const Step *step, const Tiles *tiles, const SplitPosition *p, int split, Worker *w) noexcept nogil:
    """Where the kernel leaves, and `fold` finds, the result of one split of the item."""
    cdef size_t heads = a.kv_heads * a.parts
    cdef float *at = step.partials + ((p.before + split) * heads + p.item.head * a.parts + p.item.part) * partial_size(a, tiles)
    w.split.m, w.split.l, w.split.acc = at, at + w.split.queries, at + 2 * w.split.queries


cdef void split_chunk(const AttendArgs *a, const Step *step, const Tiles *tiles, const Cut *cut, int chunk, int then, Worker *w) noexcept nogil:
    """One split of one item; the worker that finishes the item's last split folds them all. Chunk `then` is this worker's next."""
    cdef SplitPosition p = locate(a, step, tiles, cut, chunk), following
    cdef int k
    cdef int32_t *done = &step.done[p.item.tile * cut.blocks + p.block]
    aim(a, step, tiles, &p.item, w)
    point_at(a, step, tiles, &p, p.split, w)
    w.split.ahead = 0
    if then < cut.chunks:
        following = locate(a, step, tiles, cut, then)
        foresee(a, step, tiles, &following.item, following.first + following.split, &w.split)
    run_split(a, step, tiles, &p.item, p.first + p.split, w)
    if ox_count_up(done) < p.splits:
        return
    done[0] = 0
    for k in range(p.splits):
        point_at(a, step, tiles, &p, k, w)
        mark(a, step, tiles, &p.item, p.first + k, &w.split)
        step.vec.fold(&w.split, w.m, w.l, w.total, w.seen)
    deliver(a, step, tiles, &p.item, w)


cdef size_t partial_floats_wanted(const void *args, const Step *step, int nth) noexcept nogil:
    """Floats of `partials` an attend op may use in this step with up to `nth` workers."""
    cdef const AttendArgs *a = <const AttendArgs *>args
    cdef const Tiles *tiles = &step.tiles[a.tiles]
    return <size_t>cut_op(a, step, tiles, nth).splits * <size_t>(a.kv_heads * a.parts) * partial_size(a, tiles)


cdef int done_items_wanted(const void *args, const Step *step) noexcept nogil:
    """Counters an attend op may use in this step."""
    cdef const AttendArgs *a = <const AttendArgs *>args
    return step.tiles[a.tiles].count * a.kv_heads * a.parts


cdef void cut_tiles(const Step *step, Tiles *tiles) noexcept nogil:
    """Cuts the rows of a step into tiles of one sequence and consecutive positions."""
    cdef int r, start = 0
    tiles.count, tiles.widest = 0, 1
    for r in range(step.rows):
        if (r == 0 or r - start == tiles.rows or step.row_table[r] != step.row_table[r - 1] or step.positions[r] != step.positions[r - 1] + 1
                or step.positions[r] >= tiles.alone):
            start = r
            tiles.first[tiles.count] = r
            tiles.count += 1
        tiles.widest = max(tiles.widest, r - start + 1)
    tiles.first[tiles.count] = step.rows


cdef void attend_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const AttendArgs *a = <const AttendArgs *>args
    cdef const Step *step = a.common.step
    cdef const Tiles *tiles = &step.tiles[a.tiles]
    cdef Worker *w = open_worker(a, step, ith)
    cdef Cut cut = cut_op(a, step, tiles, nth)
    cdef int chunk = ox_team_take(team), then
    while chunk < cut.chunks:
        then = ox_team_take(team)     # taken early, so that its keys can be fetched while this one is computed
        if cut.splits:
            split_chunk(a, step, tiles, &cut, chunk, then, w)
        else:
            whole_chunk(a, step, tiles, &cut, chunk, w)
        chunk = then


cdef void attend_warm(const void *args, int ith, int nth) noexcept nogil:
    """The first keys (and values, where a sequence is short) of this worker's likely first chunk: a step finds them nowhere near."""
    cdef const AttendArgs *a = <const AttendArgs *>args
    cdef const Step *step = a.common.step
    cdef const Tiles *tiles = &step.tiles[a.tiles]
    cdef const KvLayer *layer = &step.layers[a.layer]
    cdef Cut cut = cut_op(a, step, tiles, nth)
    cdef SplitPosition p
    cdef const int32_t *pages
    cdef const void *v
    cdef const char *k
    cdef int g, h, first, groups, last
    if ith >= cut.chunks:
        return
    if cut.splits:
        p = locate(a, step, tiles, &cut, ith)
        first, groups = (p.first + p.split) * (OX_SPLIT_KEYS // 16), OX_BLOCK_GROUPS
        first = max(first, first_key(a, step, tiles.first[p.item.tile]) // 16)
    else:
        choose(a, &cut, ith // tiles.count, &p.item)
        p.item.tile = tiles.count - 1 - ith % tiles.count
        first, groups = first_key(a, step, tiles.first[p.item.tile]) // 16, WARM_GROUPS
    if picks(a, step, tiles.first[p.item.tile]):
        return
    pages = step.tables[step.row_table[tiles.first[p.item.tile]]]
    last = min(first + groups - 1, step.positions[tiles.first[p.item.tile + 1] - 1] // 16)
    for g in range(first, last + 1):
        k = group_at(a, step, pages, 16 * g, p.item.head, &v)
        for h in range(p.item.heads):
            ox_fetch(k + h * layer.k_head_bytes, layer.k_group_bytes)
            if not cut.splits:
                ox_fetch(<const char *>v + h * layer.v_head_bytes, layer.v_group_bytes)


cdef class AttendOp(Op):
    cdef AttendArgs a
    cdef const float[::1] sinks
    cdef const float[::1] slopes
    cdef const float[::1] relative

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "q_heads", "kv_heads", "k_dim", "v_dim", "layer", "out", window=0, softcap=0.0, sinks=None, slopes=None,
                      relative=None, causal=True, chunk=0, spans=False, behind=False, strict=False, most=0, blocks=None, ratio=0, chosen=None,
                      each=False, running=False)
        cdef AttendArgs *a = &self.a
        a.q_heads, a.kv_heads, a.k_dim, a.v_dim, a.layer, a.view = head_shape(plan, p)
        a.x = p["x"]
        if plan.reads(p["x"], full=True) < a.q_heads * a.k_dim:
            raise plan.fail(f"slot {p['x']} is narrower than {a.q_heads} heads of {a.k_dim}")
        a.window, a.softcap = plan.number(p, "window", 0, (1 << 31) - 1), plan.real(p, "softcap", 0.0, 1e30)
        a.chunk = plan.number(p, "chunk", 0, (1 << 31) - 1)
        if a.chunk and a.window:
            raise plan.fail(f"window is {a.window} beside a chunk of {a.chunk}, wanted one of them")
        a.blocks, a.ratio, a.chosen, a.most = -1, 1, -1, 0
        if p["blocks"] is not None:
            if not a.view or a.v_dim != a.k_dim or not p["causal"] or a.chunk or p["slopes"] is not None or p["relative"] is not None:
                raise plan.fail("blocks beside values of their own, a chunk, a bias by distance or attention that is not causal, wanted none of them")
            a.ratio = block_ratio(plan, p)
            a.blocks = key_layer(plan, p, "blocks", a.ratio, a.k_dim)
            plan.reaches.append((a.blocks, 0))
        a.picked, a.each, a.running, a.alone = p["chosen"] is not None and a.blocks < 0, bool(p["each"]), bool(p["running"]), INT_MAX
        if p["chosen"] is not None:
            a.chosen, a.most = p["chosen"], plan.reads(p["chosen"], full=True)
        if a.picked:
            self._pick(plan, p)
        elif a.each or a.running:
            raise plan.fail("each or running without a choice of the layer's keys, wanted both")
        if p["most"]:
            plan.positions = min(plan.positions, plan.number(p, "most", 1, 1 << 30))
        a.spans, a.behind = bool(p["spans"]), bool(p["behind"])
        if a.spans + a.behind + bool(a.window) + bool(a.chunk) + (a.blocks >= 0 and a.spans + a.behind) > 1:
            raise plan.fail("spans beside a window, a chunk or blocks, or behind beside any of them, wanted one of them")
        if a.behind and not p["causal"]:
            raise plan.fail("behind beside attention that is not causal, wanted one of them")
        plan.spanned |= a.spans or a.behind
        a.strict = bool(p["strict"])
        if a.strict and not p["causal"]:
            raise plan.fail("strict beside attention that is not causal, wanted one of them")
        self.sinks = plan.floats(p["sinks"], "sinks", a.q_heads)
        a.sinks = NULL if self.sinks is None else &self.sinks[0]
        self.slopes = plan.floats(p["slopes"], "slopes", a.q_heads)
        a.slopes = NULL if self.slopes is None else &self.slopes[0]
        a.relative, a.reach, a.symmetric = NULL, 0, not p["causal"]
        if p["relative"] is not None:
            shape = np.shape(p["relative"])
            if a.slopes != NULL or len(shape) != 2 or shape[0] != a.q_heads or shape[1] % 2 == 0:
                raise plan.fail(f"relative is {shape}, wanted ({a.q_heads}, an odd number of distances) and no slopes")
            self.relative = plan.floats(np.reshape(p["relative"], -1), "relative", a.q_heads * shape[1])
            a.relative, a.reach = &self.relative[0], shape[1] // 2
        plan.sees(bool(p["causal"]))
        a.group = a.q_heads // a.kv_heads
        aim = <int>VIEW_QUERIES if a.view else vec_table(plan.isa).queries
        a.share = min(a.group, <int>HEAD_QUERIES if a.view else aim)
        a.parts = (a.group + a.share - 1) // a.share
        a.width = (a.v_dim + 15) // 16 * 16
        # each row has its own choice
        rows = 1 if a.blocks >= 0 and a.chosen >= 0 else max(1, (aim + a.share // 2) // a.share), a.alone
        if p["out"] in (p["x"], p["chosen"]):
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        if rows not in plan.tile_rows:
            plan.tile_rows.append(rows)
        a.tiles = plan.tile_rows.index(rows)
        plan.reaches.append((a.layer, a.window or a.chunk))
        a.out = plan.writes(p["out"], a.q_heads * a.v_dim)
        gathered = a.k_dim if a.blocks >= 0 else a.k_dim + (0 if a.view else a.v_dim) if a.picked and a.ratio % 16 else 0
        plan.need_scratch(self, worker_bytes(a.k_dim, a.width, gathered))
        self.begin(plan, &a.common, "attend", attend_part, p)
        self.warm, self.partials, self.counters = attend_warm, partial_floats_wanted, done_items_wanted

    def _pick(self, Plan plan, p):
        """Checks a choice among the layer's own keys."""
        cdef AttendArgs *a = &self.a
        if not p["strict"] or a.window or a.chunk or p["spans"] or p["behind"] or p["slopes"] is not None or p["relative"] is not None:
            raise plan.fail("chosen keys beside a window, a chunk, spans or a bias by distance, or not strict, wanted none of them and strict")
        a.ratio = block_ratio(plan, p)
        if a.each and a.most % a.kv_heads:
            raise plan.fail(f"chosen has {a.most} columns, wanted as many for each of {a.kv_heads} heads")
        a.most = a.most // a.kv_heads if a.each else a.most
        if a.most * <int64_t>a.ratio > 1 << 30:
            raise plan.fail(f"{a.most} blocks of {a.ratio} tokens chosen, wanted at most {1 << 30} tokens")
        a.alone = a.most * a.ratio if a.running else (a.most + 1) * a.ratio - 1


OPS = {"attend": AttendOp}


cdef void _share(PartFn part, const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef fenv_t was = ox_fenv_enter()
    part(args, team, ith, nth)
    ox_fenv_leave(&was)


def attend(const float[:, :, ::1] q, PageMemory memory not None, pages, int layer, *, int first=0, window=0, chunk=0, softcap=0.0, sinks=None,
           slopes=None, num_threads=1, isa=None):
    """out (rows, q_heads, v_dim) float32: attention of the rows at positions first, first + 1, ... of the sequence whose pages these are, in order.

    q (rows, q_heads, k_dim) comes rotated and scaled; a row sees the keys up to its own position, as `PageMemory.write` or a step stored them. The
    other numbers are those of the op `attend`. PoolError for a layer or page that does not exist, ModelError for what the op refuses.
    """
    cdef const KvLayer *one = memory._layer(layer)
    cdef int rows = <int>q.shape[0], heads = <int>q.shape[1], workers = worker_count(num_threads), ith, nth
    cdef const int32_t[::1] table = np.ascontiguousarray(pages, np.int32)
    cdef float[:, :, ::1] out = np.empty((rows, heads, one.v_dim), np.float32)
    reach = window or chunk
    cdef int held = min(first, max(0, first - reach + 1)) if reach else 0
    memory.check_table(table, first, rows, held, one)
    if rows == 0:
        return np.asarray(out)
    cdef Step step
    memset(&step, 0, sizeof(Step))
    cdef Plan plan = Plan([heads * q.shape[2], heads * one.v_dim], memory.kv_layers, (), vocab_size=1, max_rows=rows, num_threads=workers, isa=isa)
    plan.step = &step
    plan.start(0, "attend")
    plan.content[0] = ("f32", heads * q.shape[2], ALL_ROWS)
    if q.shape[2] != one.k_dim:
        raise plan.fail(f"q is {np.shape(q)}, wanted (rows, heads, {one.k_dim})")
    cdef AttendOp op = AttendOp(plan, dict(x=0, out=1, q_heads=heads, kv_heads=one.heads, k_dim=one.k_dim, v_dim=one.v_dim, layer=layer,
                                           window=window, chunk=chunk, softcap=softcap, sinks=sinks, slopes=slopes))
    cdef int32_t[::1] positions = np.arange(first, first + rows, dtype=np.int32)
    cdef int32_t[::1] limits = np.arange(first + 1, first + rows + 1, dtype=np.int32)
    cdef int32_t[::1] row_table = np.zeros(rows, np.int32)
    cdef int32_t[::1] begins = np.empty(rows + 1, np.int32)
    cdef const int32_t *tables = &table[0]
    cdef char *slots[2]
    cdef size_t strides[2]
    cdef Tiles tiles
    slots[0], slots[1] = <char *>&q[0, 0, 0], <char *>&out[0, 0, 0]
    strides[0], strides[1] = sizeof(float) * heads * one.k_dim, sizeof(float) * heads * one.v_dim
    step.rows, step.positions, step.limits, step.row_table, step.tables = rows, &positions[0], &limits[0], &row_table[0], &tables
    step.slots, step.strides = slots, strides
    step.page_size, step.kind, step.layers = memory.page_size, memory.kind, memory.layers
    step.vec = vec_table(isa)
    fill_quantise(&step, isa)
    (tiles.rows, tiles.alone), tiles.first = plan.tile_rows[0], <int *>&begins[0]
    step.tiles = &tiles
    cut_tiles(&step, &tiles)
    cdef float[::1] partials = np.empty(max(<size_t>1, partial_floats_wanted(op.args, &step, workers)), np.float32)
    cdef int32_t[::1] done = np.zeros(done_items_wanted(op.args, &step), np.int32)
    step.partials, step.done = &partials[0], &done[0]
    step.scratch_stride = (op.scratch + 4095) // 4096 * 4096
    cdef Arena scratch = Arena(step.scratch_stride * <size_t>workers)
    step.scratch = scratch.data
    cdef ox_team *team = <ox_team *>ox_block_new(sizeof(ox_team))
    if team == NULL:
        raise MemoryError
    ox_team_init(team, NULL)
    try:
        nth = memory._begin(num_threads)
        try:
            memory.check_table(table, first, rows, held, one)       # again: while this call waited, pages may have been given back
            for ith in prange(nth, nogil=True, schedule="static", chunksize=1, num_threads=nth, use_threads_if=nth > 1):
                _share(op.part, op.args, team, ith, nth)
        finally:
            memory._end()
    finally:
        ox_block_free(team)
    return np.asarray(out)
