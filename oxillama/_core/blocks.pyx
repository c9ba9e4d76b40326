"""Ops around keys that are made of blocks of tokens: a row is kept for each token, a full block of them becomes one key, some keys are chosen
for a row to attend to; and a rotation of heads, which attention to such keys takes back from its result.

What is kept lies in layers of rows (`ROWS` in pool.pyx), so that sequences share, cut and restore it as they do keys. The key of a block lies in
the rows of its last tokens, at most 16, which are of one page, one after the other: its floats are in one piece, and are written when the last
token of the block is. Until then these rows are zeros. A key is thus a function of the tokens of its blocks, whatever the steps that brought them.
"""
import numpy as np

from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

from oxillama._core.pool cimport KvLayer, page_of
from oxillama._core.step cimport Common, Op, Plan, Step, ox_count_up, row_of, rows_of
from oxillama._core.threads cimport ox_team, ox_team_take
from oxillama._core.vectors cimport angles

from oxillama._core.pool import ROWS

cdef enum:
    MOST_SPAN = 16            # tokens of a page whose rows hold the key of a block
    MOST_RATIO = 4096
    SCORES = 256              # blocks of a chunk, where a row is cut


cdef float *token_row(const Step *step, int layer, int row, int position) noexcept nogil:
    """What a layer of rows keeps of a token of the sequence that a row of the step is of."""
    cdef const KvLayer *one = &step.layers[layer]
    cdef char *page = page_of(one, step.tables[step.row_table[row]][position // step.page_size])
    return <float *>page + <size_t>(position % step.page_size) * one.k_dim


cdef int span_of(int ratio) noexcept nogil:
    """Tokens whose rows hold the key of a block."""
    return min(ratio, <int>MOST_SPAN)


cdef const float *block_key(const Step *step, int layer, int row, int block, int ratio) noexcept nogil:
    """The key of a block of the sequence that a row of the step is of."""
    return token_row(step, layer, row, (block + 1) * ratio - span_of(ratio))


def rows_layer(Plan plan, p, name, columns):
    """The number of a layer of rows of so many floats."""
    layer = plan.number(p, name, 0, len(plan.kv_layers) - 1)
    if tuple(plan.kv_layers[layer]) != (ROWS, columns, columns):
        raise plan.fail(f"{name} {layer} is {plan.kv_layers[layer]}, wanted rows of {columns} floats")
    return layer


def block_ratio(Plan plan, p):
    """Tokens of a block: a divisor of 16, or a multiple of it."""
    ratio = plan.number(p, "ratio", 2, MOST_RATIO)
    if MOST_SPAN % ratio and ratio % MOST_SPAN:
        raise plan.fail(f"ratio is {ratio}, wanted a divisor or a multiple of {MOST_SPAN}")
    return ratio


def key_layer(Plan plan, p, name, ratio, dim):
    """The number of the layer of rows that holds keys of `dim` floats of blocks of `ratio` tokens."""
    if dim % span_of(ratio):
        raise plan.fail(f"keys of {dim} floats, wanted a multiple of {span_of(ratio)}")
    return rows_layer(plan, p, name, dim // span_of(ratio))


# ---- keep_rows -------------------------------------------------------------------------------------------------------

ctypedef struct KeepArgs:
    Common common
    int x, gate, layer, into, period
    int64_t columns
    const float *bias         # (period, columns)


cdef void keep_rows_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const KeepArgs *a = <const KeepArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r = ox_team_take(team), position
    cdef float *out
    while r < rows:
        position = step.positions[r]
        out = token_row(step, a.layer, r, position)
        memcpy(out, row_of(step, a.x, r), 4 * <size_t>a.columns)
        step.vec.add(out + a.columns, <const float *>row_of(step, a.gate, r), a.bias + position % a.period * a.columns, a.columns)
        memset(token_row(step, a.into, r, position), 0, 4 * <size_t>step.layers[a.into].k_dim)
        r = ox_team_take(team)


cdef class KeepRowsOp(Op):
    cdef KeepArgs a
    cdef const float[::1] bias

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "gate", "bias", "layer", "into")
        cdef KeepArgs *a = &self.a
        a.x, a.gate, a.columns = p["x"], p["gate"], plan.reads(p["x"], full=True)
        plan.reads(p["gate"], columns=a.columns, full=True)
        if np.ndim(p["bias"]) != 2 or p["bias"].shape[1] != a.columns:
            raise plan.fail(f"bias is {np.shape(p['bias'])}, wanted (positions, {a.columns})")
        a.period = p["bias"].shape[0]
        self.bias = plan.floats(p["bias"].reshape(-1), "bias", a.period * a.columns)
        a.bias, a.layer = &self.bias[0], rows_layer(plan, p, "layer", 2 * a.columns)
        a.into = plan.number(p, "into", 0, len(plan.kv_layers) - 1)
        if plan.kv_layers[a.into][0] != ROWS or a.into == a.layer:
            raise plan.fail(f"into is layer {a.into}, wanted another layer of rows")
        self.begin(plan, &a.common, "keep_rows", keep_rows_part, p)


# ---- compress --------------------------------------------------------------------------------------------------------

ctypedef struct CompressArgs:
    Common common
    int layer, into, ratio, dim, overlap, half
    double mscale
    const float *weight
    const float *inv_freq
    float eps


cdef void compress_block(const CompressArgs *a, const Step *step, int row, int last, float *scratch) noexcept nogil:
    """The key of the block that ends at position `last`: the mean of its rows, weighted for each float by a softmax over gates; norm, rotation."""
    cdef int dim = a.dim, begin = last - a.ratio + 1, first = max(0, begin - a.ratio) if a.overlap else begin, parts = 2 if a.overlap else 1
    cdef int position, i, side
    cdef float *top = scratch
    cdef float *term = top + dim
    cdef float *total = term + dim
    cdef float *mean = total + dim
    cdef float *turns = mean + dim
    cdef float *out = token_row(step, a.into, row, last + 1 - span_of(a.ratio))
    cdef const float *x
    cdef const float *gate
    for i in range(dim):
        top[i], total[i], mean[i] = -INFINITY, 0.0, 0.0
    for position in range(first, last + 1):
        side = 1 if position >= begin and a.overlap else 0      # a token has numbers for the next block's key, and for its own
        gate = token_row(step, a.layer, row, position) + (parts + side) * dim
        for i in range(dim):
            top[i] = gate[i] if gate[i] > top[i] else top[i]
    for position in range(first, last + 1):
        side = 1 if position >= begin and a.overlap else 0
        x = token_row(step, a.layer, row, position) + side * dim
        gate = x + parts * dim
        for i in range(dim):
            term[i] = gate[i] - top[i]
        step.vec.exp(term, term, dim)
        for i in range(dim):
            total[i] = total[i] + term[i]
            mean[i] = mean[i] + term[i] * x[i]
    for i in range(dim):
        mean[i] = mean[i] / total[i]
    step.vec.rms_norm(out, mean, a.weight, NULL, a.eps, dim)
    angles(turns, a.inv_freq, a.half, begin, a.mscale)
    step.vec.rope_pairs(out + dim - 2 * a.half, turns, turns + a.half, a.half)


cdef void compress_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const CompressArgs *a = <const CompressArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r = ox_team_take(team)
    while r < rows:
        if (step.positions[r] + 1) % a.ratio == 0:
            compress_block(a, step, r, step.positions[r], <float *>(step.scratch + <size_t>ith * step.scratch_stride))
        r = ox_team_take(team)


cdef class CompressOp(Op):
    cdef CompressArgs a
    cdef const float[::1] weight
    cdef const float[::1] inv_freq

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "layer", "into", "ratio", "weight", "inv_freq", "eps", overlap=False, mscale=1.0)
        cdef CompressArgs *a = &self.a
        a.dim, a.ratio, a.overlap = int(np.size(p["weight"])), block_ratio(plan, p), bool(p["overlap"])
        self.weight = plan.floats(p["weight"], "weight", max(1, a.dim))
        a.half = int(np.size(p["inv_freq"]))
        if a.half < 1 or 2 * a.half > a.dim:
            raise plan.fail(f"inv_freq has {a.half} frequencies, wanted 1 to {a.dim // 2}, for keys of {a.dim} floats")
        self.inv_freq = plan.floats(p["inv_freq"], "inv_freq", a.half)
        a.weight, a.inv_freq = &self.weight[0], &self.inv_freq[0]
        a.mscale, a.eps = plan.real(p, "mscale", -1e30, 1e30), plan.real(p, "eps", 0.0, 1.0)
        a.layer = rows_layer(plan, p, "layer", (4 if a.overlap else 2) * a.dim)
        a.into = key_layer(plan, p, "into", a.ratio, a.dim)
        plan.reaches.extend([(a.layer, (2 if a.overlap else 1) * a.ratio), (a.into, a.ratio)])
        plan.need_scratch(self, 4 * (4 * <size_t>a.dim + 2 * a.half) + 64)
        self.begin(plan, &a.common, "compress", compress_part, p)


# ---- choose_blocks ---------------------------------------------------------------------------------------------------

ctypedef struct ChooseArgs:
    Common common
    int x, shares, out, layer, ratio, most, heads, dim
    int wide                  # heads rounded up to 16


cdef inline bint worse(const float *scores, const int32_t *ids, int i, int j) noexcept nogil:
    """Of two blocks, the one of the lower score, and among equals the later one, is given up first."""
    return scores[i] < scores[j] or (scores[i] == scores[j] and ids[i] > ids[j])


cdef void sift(float *scores, int32_t *ids, int n, int at) noexcept nogil:
    """A heap whose first entry is the worst, but for the entry `at`, made one again."""
    cdef int child
    while True:
        child = 2 * at + 1
        if child >= n:
            return
        if child + 1 < n and worse(scores, ids, child + 1, child):
            child += 1
        if not worse(scores, ids, child, at):
            return
        scores[at], scores[child] = scores[child], scores[at]
        ids[at], ids[child] = ids[child], ids[at]
        at = child


ctypedef struct Chooser:
    # One worker's scratch: the queries of a row, turned, and the best of its blocks so far.
    float *queries            # (dim, wide)
    float *shares             # (wide,)
    float *scores             # (most,)
    int32_t *ids
    int row                   # whose queries they are; -1: none
    int held                  # blocks so far, until there are `most`


cdef Chooser open_chooser(const ChooseArgs *a, const Step *step, int ith) noexcept nogil:
    cdef Chooser c
    c.queries = <float *>(step.scratch + <size_t>ith * step.scratch_stride)
    c.shares = c.queries + <size_t>a.wide * a.dim
    c.scores = c.shares + a.wide
    c.ids = <int32_t *>(c.scores + a.most)
    c.row, c.held = -1, 0
    return c


cdef void take_row(const ChooseArgs *a, const Step *step, int row, Chooser *c) noexcept nogil:
    """Turns the queries of a row, so that a lane is a head."""
    cdef const float *q = <const float *>row_of(step, a.x, row)
    cdef int d, h
    if c.row == row:
        return
    memset(c.queries, 0, 4 * <size_t>a.wide * (a.dim + 1))      # and its shares
    memcpy(c.shares, row_of(step, a.shares, row), 4 * <size_t>a.heads)
    for h in range(a.heads):
        for d in range(a.dim):
            c.queries[d * a.wide + h] = q[h * a.dim + d]
    c.row = row


cdef inline float score_of(const ChooseArgs *a, const Step *step, const Chooser *c, int block) noexcept nogil:
    """The score of a block for the row that was taken."""
    cdef float score = step.vec.block_score(c.queries, c.shares, block_key(step, a.layer, c.row, block, a.ratio), a.wide, a.dim)
    return score if score == score else -INFINITY      # NaN is the least


cdef void offer(const ChooseArgs *a, Chooser *c, int block, float score) noexcept nogil:
    """Considers the next block: it enters while there is room, or in place of the worst one if its score is higher."""
    cdef int i
    if c.held < a.most:
        c.scores[c.held], c.ids[c.held] = score, block
        c.held += 1
        if c.held == a.most:
            for i in range(a.most // 2 - 1, -1, -1):
                sift(c.scores, c.ids, a.most, i)
    elif score > c.scores[0]:
        c.scores[0], c.ids[0] = score, block
        sift(c.scores, c.ids, a.most, 0)


cdef void deliver(const ChooseArgs *a, Chooser *c, float *out) noexcept nogil:
    """Writes the blocks by number: a heap of equal scores gives the last one up first."""
    cdef int i
    for i in range(a.most):
        c.scores[i] = 0.0
    for i in range(a.most // 2 - 1, -1, -1):
        sift(c.scores, c.ids, a.most, i)
    for i in range(a.most - 1, -1, -1):
        out[i] = c.ids[0]
        c.ids[0] = c.ids[i]
        sift(c.scores, c.ids, i, 0)
    c.held = 0


cdef inline int blocks_of(const ChooseArgs *a, const Step *step, int row) noexcept nogil:
    return (step.positions[row] + 1) // a.ratio


cdef void take_all(const ChooseArgs *a, int count, float *out) noexcept nogil:
    """The choice of a row with no more blocks than are chosen."""
    cdef int i
    for i in range(a.most):
        out[i] = i if i < count else -1


cdef void choose_row(const ChooseArgs *a, const Step *step, int row, Chooser *c) noexcept nogil:
    cdef int count = blocks_of(a, step, row), block
    if count <= a.most:
        take_all(a, count, <float *>row_of(step, a.out, row))
        return
    take_row(a, step, row, c)
    for block in range(count):
        offer(a, c, block, score_of(a, step, c, block))
    deliver(a, c, <float *>row_of(step, a.out, row))


cdef inline int chunks_of(const ChooseArgs *a, const Step *step, int row) noexcept nogil:
    """Into how many chunks the scores of a row are cut."""
    cdef int count = blocks_of(a, step, row)
    return (count + SCORES - 1) // SCORES if count > a.most else 1


cdef void choose_chunk(const ChooseArgs *a, const Step *step, int row, int chunk, float *scores, Chooser *c) noexcept nogil:
    """Some scores of a row; the worker that finishes its last chunk chooses."""
    cdef int count = blocks_of(a, step, row), block
    if count <= a.most:
        take_all(a, count, <float *>row_of(step, a.out, row))
        return
    take_row(a, step, row, c)
    for block in range(chunk * SCORES, min(count, (chunk + 1) * SCORES)):
        scores[block] = score_of(a, step, c, block)
    if ox_count_up(&step.done[row]) < chunks_of(a, step, row):
        return
    step.done[row] = 0
    for block in range(count):
        offer(a, c, block, scores[block])
    deliver(a, c, <float *>row_of(step, a.out, row))


cdef size_t scores_wanted(const void *args, const Step *step, int nth) noexcept nogil:
    """Floats of `partials`: the scores of all rows, where there are fewer rows than workers."""
    cdef const ChooseArgs *a = <const ChooseArgs *>args
    cdef size_t total = 0
    cdef int r
    for r in range(step.rows if step.rows < nth else 0):
        total += blocks_of(a, step, r)
    return total


cdef int rows_counted(const void *args, const Step *step) noexcept nogil:
    return step.rows


cdef void choose_blocks_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const ChooseArgs *a = <const ChooseArgs *>args
    cdef const Step *step = a.common.step
    cdef Chooser c = open_chooser(a, step, ith)
    cdef int rows = rows_of(&a.common), item = ox_team_take(team), r = 0, before = 0
    cdef float *scores = step.partials
    if rows >= nth:
        while item < rows:
            choose_row(a, step, item, &c)
            item = ox_team_take(team)
        return
    while True:                      # items come in ascending order
        while r < rows and item >= before + chunks_of(a, step, r):
            before += chunks_of(a, step, r)
            scores += blocks_of(a, step, r)
            r += 1
        if r == rows:
            return
        choose_chunk(a, step, r, item - before, scores, &c)
        item = ox_team_take(team)


cdef class ChooseBlocksOp(Op):
    cdef ChooseArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "shares", "layer", "ratio", "most", "out")
        cdef ChooseArgs *a = &self.a
        a.x, a.shares = p["x"], p["shares"]
        columns, a.heads = plan.reads(p["x"], full=True), plan.reads(p["shares"], full=True)
        if columns % a.heads:
            raise plan.fail(f"queries of {columns} floats, wanted a multiple of {a.heads} heads")
        a.wide = (a.heads + 15) // 16 * 16
        a.dim, a.ratio, a.most = columns // a.heads, block_ratio(plan, p), plan.number(p, "most", 1, 1 << 20)
        a.layer = key_layer(plan, p, "layer", a.ratio, a.dim)
        if p["out"] in (p["x"], p["shares"]):
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        plan.reaches.append((a.layer, 0))
        a.out = plan.writes(p["out"], a.most)
        plan.need_scratch(self, 4 * (<size_t>a.wide * (a.dim + 1) + 2 * <size_t>a.most) + 64)
        self.begin(plan, &a.common, "choose_blocks", choose_blocks_part, p)
        self.partials, self.counters = scores_wanted, rows_counted


# ---- turn ------------------------------------------------------------------------------------------------------------

ctypedef struct TurnArgs:
    Common common
    int x, rope, out, heads, half, back
    int64_t dim


cdef void turn_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const TurnArgs *a = <const TurnArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r = ox_team_take(team), h
    cdef float *sines = <float *>(step.scratch + <size_t>ith * step.scratch_stride)
    cdef float *out
    cdef const float *turns
    while r < rows:
        turns, out = <const float *>row_of(step, a.rope, r), <float *>row_of(step, a.out, r)
        step.vec.scale(sines, turns + a.half, -1.0 if a.back else 1.0, a.half)
        memcpy(out, row_of(step, a.x, r), 4 * <size_t>(a.heads * a.dim))
        for h in range(a.heads):
            step.vec.rope_pairs(out + (h + 1) * a.dim - 2 * a.half, turns, sines, a.half)
        r = ox_team_take(team)


cdef class TurnOp(Op):
    cdef TurnArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "rope", "heads", "out", back=False)
        cdef TurnArgs *a = &self.a
        a.x, a.rope, a.back = p["x"], p["rope"], bool(p["back"])
        columns, a.heads = plan.reads(p["x"]), plan.number(p, "heads", 1, 1 << 16)
        a.half = plan.reads(p["rope"]) // 2
        if columns % a.heads or 2 * a.half > columns // a.heads:
            raise plan.fail(f"{a.heads} heads of {columns} floats with {a.half} pairs, wanted whole heads that hold them")
        a.dim = columns // a.heads
        if p["out"] in (p["x"], p["rope"]):
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        a.out = plan.writes(p["out"], columns)
        plan.need_scratch(self, 4 * <size_t>a.half + 64)
        self.begin(plan, &a.common, "turn", turn_part, p)


OPS = {"keep_rows": KeepRowsOp, "compress": CompressOp, "choose_blocks": ChooseBlocksOp, "turn": TurnOp}
