"""Ops around keys that are made of blocks of tokens, or chosen in blocks: a row is kept for each token, a full block of them becomes one key, some
are chosen for a row to attend to; and a rotation of heads, which attention to such keys takes back from its result.

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
    ratio = plan.number(p, "ratio", 1, MOST_RATIO)
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
    int x, gate, layer, into, period      # gate, into: -1 for none
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
        if a.gate >= 0:
            step.vec.add(out + a.columns, <const float *>row_of(step, a.gate, r), a.bias + position % a.period * a.columns, a.columns)
        if a.into >= 0:
            memset(token_row(step, a.into, r, position), 0, 4 * <size_t>step.layers[a.into].k_dim)
        r = ox_team_take(team)


cdef class KeepRowsOp(Op):
    cdef KeepArgs a
    cdef const float[::1] bias

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "layer", gate=None, bias=None, into=None)
        cdef KeepArgs *a = &self.a
        a.x, a.gate, a.into, a.columns = p["x"], -1, -1, plan.reads(p["x"], full=True)
        if (p["gate"] is None) != (p["bias"] is None):
            raise plan.fail("gate or bias alone, wanted both or none")
        if p["gate"] is not None:
            a.gate = p["gate"]
            plan.reads(p["gate"], columns=a.columns, full=True)
            if np.ndim(p["bias"]) != 2 or p["bias"].shape[1] != a.columns:
                raise plan.fail(f"bias is {np.shape(p['bias'])}, wanted (positions, {a.columns})")
            a.period = p["bias"].shape[0]
            self.bias = plan.floats(p["bias"].reshape(-1), "bias", a.period * a.columns)
            a.bias = &self.bias[0]
        a.layer = rows_layer(plan, p, "layer", (1 if a.gate < 0 else 2) * a.columns)
        if p["into"] is not None:
            a.into = plan.number(p, "into", 0, len(plan.kv_layers) - 1)
            if plan.kv_layers[a.into][0] != ROWS or a.into == a.layer:
                raise plan.fail(f"into is layer {a.into}, wanted another layer of rows")
        self.begin(plan, &a.common, "keep_rows", keep_rows_part, p)
        self.whole = True


# ---- compress --------------------------------------------------------------------------------------------------------

ctypedef struct CompressArgs:
    Common common
    int layer, into, ratio, dim, overlap
    int gated                 # rows have gates; else the mean is a plain one
    int half                  # pairs that are rotated: of the last floats, by `inv_freq`, or of the first, by the rotation that rows end with
    double mscale
    const float *weight       # NULL: no norm
    const float *inv_freq     # or NULL
    float eps


cdef void weigh(const CompressArgs *a, const Step *step, int row, int last, float *scratch, float *mean) noexcept nogil:
    """The mean of a block's rows, weighted for each float by a softmax over their gates."""
    cdef int dim = a.dim, begin = last - a.ratio + 1, first = max(0, begin - a.ratio) if a.overlap else begin, parts = 2 if a.overlap else 1
    cdef int position, i, side
    cdef float *top = scratch
    cdef float *term = top + dim
    cdef float *total = term + dim
    cdef const float *x
    cdef const float *gate
    for i in range(dim):
        top[i], total[i] = -INFINITY, 0.0
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


cdef void compress_block(const CompressArgs *a, const Step *step, int row, int last, float *scratch) noexcept nogil:
    """The key of the block that ends at position `last`: the mean of its rows, a norm, a rotation by the position where it begins."""
    cdef int dim = a.dim, begin = last - a.ratio + 1, position
    cdef float *mean = scratch + 3 * dim
    cdef float *turns = mean + dim
    cdef float *out = token_row(step, a.into, row, last + 1 - span_of(a.ratio))
    cdef const float *carried
    memset(mean, 0, 4 * <size_t>dim)
    if a.gated:
        weigh(a, step, row, last, scratch, mean)
    else:
        for position in range(begin, last + 1):
            step.vec.add(mean, mean, token_row(step, a.layer, row, position), dim)
        step.vec.scale(mean, mean, <float>(1.0 / a.ratio), dim)
    if a.weight == NULL:
        memcpy(out, mean, 4 * <size_t>dim)
    else:
        step.vec.rms_norm(out, mean, a.weight, NULL, a.eps, dim)
    if a.inv_freq != NULL:
        angles(turns, a.inv_freq, a.half, begin, a.mscale)
        step.vec.rope_pairs(out + dim - 2 * a.half, turns, turns + a.half, a.half)
    elif a.half:
        carried = token_row(step, a.layer, row, begin) + dim
        step.vec.rope_halves(out, carried, carried + a.half, a.half)


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
        p = plan.keys(params, "layer", "into", "ratio", "dim", weight=None, eps=0.0, gated=True, overlap=False, inv_freq=None, mscale=1.0, carried=0)
        cdef CompressArgs *a = &self.a
        a.dim, a.ratio = plan.number(p, "dim", 1, 1 << 16), block_ratio(plan, p)
        a.gated, a.overlap = bool(p["gated"]), bool(p["overlap"])
        if a.ratio < 2 or (a.overlap and not a.gated):
            raise plan.fail(f"ratio is {a.ratio}, gated {bool(a.gated)}, overlap {bool(a.overlap)}, wanted 2 or more, and gates where blocks overlap")
        self.weight = plan.floats(p["weight"], "weight", a.dim)
        a.weight = NULL if self.weight is None else &self.weight[0]
        carried = plan.number(p, "carried", 0, a.dim)
        if carried and (carried % 2 or a.gated or p["inv_freq"] is not None):
            raise plan.fail(f"carried is {carried}, wanted an even number, no gates and no frequencies beside it")
        a.half, a.inv_freq = carried // 2, NULL
        if p["inv_freq"] is not None:
            a.half = int(np.size(p["inv_freq"]))
            if a.half < 1 or 2 * a.half > a.dim:
                raise plan.fail(f"inv_freq has {a.half} frequencies, wanted 1 to {a.dim // 2}, for keys of {a.dim} floats")
            self.inv_freq = plan.floats(p["inv_freq"], "inv_freq", a.half)
            a.inv_freq = &self.inv_freq[0]
        a.mscale, a.eps = plan.real(p, "mscale", -1e30, 1e30), plan.real(p, "eps", 0.0, 1.0)
        a.layer = rows_layer(plan, p, "layer", (4 if a.overlap else 2 if a.gated else 1) * a.dim + carried)
        a.into = key_layer(plan, p, "into", a.ratio, a.dim)
        plan.reaches.extend([(a.layer, (2 if a.overlap else 1) * a.ratio), (a.into, a.ratio)])
        plan.need_scratch(self, 4 * (4 * <size_t>a.dim + 2 * a.half) + 64)
        self.begin(plan, &a.common, "compress", compress_part, p)
        self.whole = True


# ---- choose_blocks ---------------------------------------------------------------------------------------------------

ctypedef struct ChooseArgs:
    Common common
    int x, shares, out, layer, ratio, most, heads, dim      # shares: -1 for 1 each
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
    for h in range(a.heads):
        c.shares[h] = (<const float *>row_of(step, a.shares, row))[h] if a.shares >= 0 else 1.0
        for d in range(a.dim):
            c.queries[d * a.wide + h] = q[h * a.dim + d]
    c.row = row


cdef void score_blocks(const ChooseArgs *a, const Step *step, const Chooser *c, int first, int count, float *out) noexcept nogil:
    """The scores of some blocks for the row that was taken. Keys of the blocks of one group of 16 tokens lie one after the other."""
    cdef int side = max(1, <int>MOST_SPAN // a.ratio), i = 0, n
    while i < count:
        n = min(side - (first + i) % side, count - i)
        step.vec.key_scores(out + i, c.queries, c.shares, block_key(step, a.layer, c.row, first + i, a.ratio), n, a.dim, a.wide, a.dim)
        i += n
    for i in range(count):
        if out[i] != out[i]:
            out[i] = -INFINITY      # NaN is the least


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
    """Writes the blocks by number, sorted a byte at a time; the scores are not needed any more."""
    cdef int32_t *ids = c.ids
    cdef int32_t *sorted_ = <int32_t *>c.scores
    cdef int[256] place
    cdef int i, byte, shift = 0, top = 0, before, here
    for i in range(a.most):
        top = max(top, ids[i])
    while top >> shift:
        memset(place, 0, sizeof(place))
        for i in range(a.most):
            place[ids[i] >> shift & 255] += 1
        before = 0
        for byte in range(256):
            here = place[byte]
            place[byte] = before
            before += here
        for i in range(a.most):
            byte = ids[i] >> shift & 255
            sorted_[place[byte]] = ids[i]
            place[byte] += 1
        ids, sorted_ = sorted_, ids
        shift += 8
    for i in range(a.most):
        out[i] = ids[i]
    c.held = 0


cdef inline int blocks_of(const ChooseArgs *a, const Step *step, int row) noexcept nogil:
    return (step.positions[row] + 1) // a.ratio


cdef void take_all(const ChooseArgs *a, int count, float *out) noexcept nogil:
    """The choice of a row with no more blocks than are chosen."""
    cdef int i
    for i in range(a.most):
        out[i] = i if i < count else -1


cdef void choose_row(const ChooseArgs *a, const Step *step, int row, Chooser *c) noexcept nogil:
    cdef int count = blocks_of(a, step, row), first = 0, i
    cdef float[MOST_SPAN] scores
    if count <= a.most:
        take_all(a, count, <float *>row_of(step, a.out, row))
        return
    take_row(a, step, row, c)
    while first < count:
        score_blocks(a, step, c, first, min(<int>MOST_SPAN, count - first), scores)
        for i in range(min(<int>MOST_SPAN, count - first)):
            offer(a, c, first + i, scores[i])
        first += MOST_SPAN
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
    score_blocks(a, step, c, chunk * SCORES, min(<int>SCORES, count - chunk * SCORES), scores + chunk * SCORES)
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
        p = plan.keys(params, "x", "layer", "ratio", "most", "out", shares=None, heads=0)
        cdef ChooseArgs *a = &self.a
        a.x, a.shares, columns = p["x"], -1, plan.reads(p["x"], full=True)
        if p["shares"] is None:
            a.heads = plan.number(p, "heads", 1, 1 << 16)
        else:
            a.shares, a.heads = p["shares"], plan.reads(p["shares"], full=True)
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


# ---- choose_spans ----------------------------------------------------------------------------------------------------

ctypedef struct SpanArgs:
    ChooseArgs best           # out: `most` for each head; x: one query a head
    int local                 # of the last blocks, chosen whatever their scores


cdef inline int spans_of(const ChooseArgs *a, const Step *step, int row) noexcept nogil:
    """Blocks of a row: the one that its position is in counts."""
    return step.positions[row] // a.ratio + 1


cdef inline int parts_of(const ChooseArgs *a, const Step *step, int row) noexcept nogil:
    """Into how many parts the blocks of a row are cut."""
    cdef int count = spans_of(a, step, row), each = max(1, <int>SCORES // a.ratio)
    return (count + each - 1) // each if count > a.most else 1


cdef void choose_spans_chunk(const SpanArgs *s, const Step *step, int row, int part, float *scores, Chooser *c) noexcept nogil:
    """The scores of some blocks of a row for every head; the worker that finishes its last part chooses."""
    cdef const ChooseArgs *a = &s.best
    cdef int count = spans_of(a, step, row), each = max(1, <int>SCORES // a.ratio), position = step.positions[row], block, token, end, h
    cdef float *out = <float *>row_of(step, a.out, row)
    cdef float *best = c.shares
    if count <= a.most:
        for h in range(a.heads):
            take_all(a, count, out + h * a.most)
        return
    take_row(a, step, row, c)
    for block in range(part * each, min(count, (part + 1) * each)):
        for h in range(a.wide):
            best[h] = -INFINITY
        token, end = block * a.ratio, min(position + 1, (block + 1) * a.ratio)
        while token < end:                       # rows of a page lie one after the other
            step.vec.best_dots(best, c.queries, token_row(step, a.layer, row, token), min(16 - token % 16, end - token), a.dim, a.wide, a.dim)
            token += min(16 - token % 16, end - token)
        for h in range(a.heads):
            scores[<size_t>h * count + block] = INFINITY if block >= count - s.local else best[h]
    if ox_count_up(&step.done[row]) < parts_of(a, step, row):
        return
    step.done[row] = 0
    for h in range(a.heads):
        for block in range(count):
            offer(a, c, block, scores[<size_t>h * count + block])
        deliver(a, c, out + h * a.most)


cdef size_t spans_wanted(const void *args, const Step *step, int nth) noexcept nogil:
    """Floats of `partials`: the scores of all rows."""
    cdef const ChooseArgs *a = &(<const SpanArgs *>args).best
    cdef size_t total = 0
    cdef int r
    for r in range(step.rows):
        total += <size_t>a.heads * spans_of(a, step, r)
    return total


cdef void choose_spans_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const SpanArgs *s = <const SpanArgs *>args
    cdef const ChooseArgs *a = &s.best
    cdef const Step *step = a.common.step
    cdef Chooser c = open_chooser(a, step, ith)
    cdef int rows = rows_of(&a.common), item = ox_team_take(team), r = 0, before = 0
    cdef float *scores = step.partials
    while True:                      # items come in ascending order
        while r < rows and item >= before + parts_of(a, step, r):
            before += parts_of(a, step, r)
            scores += <size_t>a.heads * spans_of(a, step, r)
            r += 1
        if r == rows:
            return
        choose_spans_chunk(s, step, r, item - before, scores, &c)
        item = ox_team_take(team)


cdef class ChooseSpansOp(Op):
    cdef SpanArgs s

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "heads", "layer", "ratio", "most", "local", "out")
        cdef ChooseArgs *a = &self.s.best
        a.x, a.shares = p["x"], -1
        columns, a.heads = plan.reads(p["x"], full=True), plan.number(p, "heads", 1, 1 << 16)
        if columns % a.heads:
            raise plan.fail(f"queries of {columns} floats, wanted a multiple of {a.heads} heads")
        a.wide = (a.heads + 15) // 16 * 16
        a.dim, a.ratio, a.most = columns // a.heads, block_ratio(plan, p), plan.number(p, "most", 1, 1 << 20)
        self.s.local = plan.number(p, "local", 0, a.most)
        a.layer = rows_layer(plan, p, "layer", a.dim)
        if p["out"] == p["x"]:
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        plan.reaches.append((a.layer, 0))
        a.out = plan.writes(p["out"], a.heads * a.most)
        plan.need_scratch(self, 4 * (<size_t>a.wide * (a.dim + 1) + 2 * <size_t>a.most) + 64)
        self.begin(plan, &a.common, "choose_spans", choose_spans_part, p)
        self.partials, self.counters = spans_wanted, rows_counted


# ---- turn ------------------------------------------------------------------------------------------------------------

ctypedef struct TurnArgs:
    Common common
    int x, rope, out, heads, start, half, pairs, back
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
            if a.pairs:
                step.vec.rope_pairs(out + h * a.dim + a.start, turns, sines, a.half)
            else:
                step.vec.rope_halves(out + h * a.dim + a.start, turns, sines, a.half)
        r = ox_team_take(team)


cdef class TurnOp(Op):
    cdef TurnArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "rope", "heads", "out", start=0, style="norm", back=False)
        cdef TurnArgs *a = &self.a
        a.x, a.rope, a.back = p["x"], p["rope"], bool(p["back"])
        columns, a.heads = plan.reads(p["x"]), plan.number(p, "heads", 1, 1 << 16)
        a.half = plan.reads(p["rope"]) // 2
        if p["style"] not in ("norm", "neox"):
            raise plan.fail(f"style is {p['style']!r}, wanted 'norm' or 'neox'")
        a.pairs, a.start = p["style"] == "norm", plan.number(p, "start", 0, 1 << 16)
        if columns % a.heads or a.start + 2 * a.half > columns // a.heads:
            raise plan.fail(f"{a.heads} heads of {columns} floats with {a.half} pairs from {a.start} on, wanted whole heads that hold them")
        a.dim = columns // a.heads
        if p["out"] in (p["x"], p["rope"]):
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        a.out = plan.writes(p["out"], columns)
        plan.need_scratch(self, 4 * <size_t>a.half + 64)
        self.begin(plan, &a.common, "turn", turn_part, p)
        self.whole = True


OPS = {"keep_rows": KeepRowsOp, "compress": CompressOp, "choose_blocks": ChooseBlocksOp, "choose_spans": ChooseSpansOp, "turn": TurnOp}
