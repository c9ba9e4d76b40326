"""Ops whose layer keeps a state of fixed size for each sequence: a short causal convolution, the scan of a selective state space, the
gated delta rule, the time mix of RWKV, rows of a table by the last tokens.

A sequence's rows lie side by side in a step, in order, so an op takes them in one go: work is cut by sequences and channels, never by rows, and
any cut of a prompt into steps gives the same bits. A sequence that begins at position 0 begins from a state of zeros, whatever its slot holds.

The last rows of a sequence, or all, may be candidates (`Batch.spares`): the state after each of them goes to a slot of its own, and the sequence's
slot keeps that before them, so that any number of them can be dropped. What is kept of earlier rows alone (the last ones, of inputs or tokens) is written once
for each such row; a recurrence is copied from slot to slot, a block that the first cache holds at a time, and goes on in place.
"""
import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from oxillama._core.batch cimport Batch as Rows
from oxillama._core.elementwise cimport EmbeddingTable
from oxillama._core.pager cimport Pager
from oxillama._core.step cimport Common, Op, Plan, Step, row_of
from oxillama._core.threads cimport ox_team, ox_team_take
from oxillama._core.vectors cimport activation, ox_delta, ox_scan, ox_wkv

cdef enum:
    STRIP = 256               # channels of a chunk of `conv`


cdef inline char *state_of(const Step *step, int row, size_t offset) noexcept nogil:
    """Where an op finds its state in the slot of a row's sequence."""
    return step.states[step.state_slots[step.row_table[row]]] + offset


cdef inline char *spare_of(const Step *step, int row, size_t offset) noexcept nogil:
    """The same in the slot that the state after a candidate goes to."""
    return step.states[step.spare_slots[row]] + offset


cdef inline int kept_until(const Step *step, int first, int last) noexcept nogil:
    """The first of a sequence's rows that is a candidate; `last` where none is."""
    if step.spare_slots != NULL:
        while last > first and step.spare_slots[last - 1] >= 0:
            last -= 1
    return last


cdef inline float *next_state(const Step *step, int row, size_t offset, const float *before, size_t nbytes) noexcept nogil:
    """Where a candidate's own state is computed, as the row before it left it."""
    cdef float *state = <float *>spare_of(step, row, offset)
    memcpy(state, before, nbytes)
    return state


# ---- conv ------------------------------------------------------------------------------------------------------------

ctypedef struct ConvArgs:
    Common common
    int x, out, act, taps, ahead     # ahead: rows behind a row that its taps reach; 0: causal, with a state
    int64_t channels
    size_t state              # the last taps - 1 rows of x: [taps - 1][channels]
    const float *weight       # [taps][channels]
    const float *bias


cdef void conv_strip(const ConvArgs *a, const Step *step, int first, int last, float *state, int64_t c, int64_t n, float *term) noexcept nogil:
    """Channels c to c + n - 1 of the rows of one sequence; state NULL: zeros around them."""
    cdef int t, j, at, past = a.taps - 1 - a.ahead, kept = kept_until(step, first, last)
    cdef const float *x
    cdef float *out
    if state != NULL and step.positions[first] == 0:
        for j in range(past):
            memset(state + j * a.channels + c, 0, 4 * <size_t>n)
    for t in range(first, last):
        out = <float *>row_of(step, a.out, t) + c
        if state == NULL:
            memset(out, 0, 4 * <size_t>n)
        for j in range(a.taps):
            at = t - past + j
            if state == NULL:
                if first <= at < last:
                    step.vec.mul(term, <const float *>row_of(step, a.x, at) + c, a.weight + j * a.channels + c, n)
                    step.vec.add(out, out, term, n)
                continue
            x = <const float *>row_of(step, a.x, at) + c if at >= first else state + (at - first + past) * a.channels + c
            step.vec.mul(term if j else out, x, a.weight + j * a.channels + c, n)
            if j:
                step.vec.add(out, out, term, n)
        if a.bias != NULL:
            step.vec.add(out, out, a.bias + c, n)
        if a.act:
            step.vec.activate(out, out, a.act, n)
    if state == NULL:
        return
    for t in range(last - 1, kept - 2, -1):      # the state of the step before is read until its own slot is written
        out = state if t < kept else <float *>spare_of(step, t, a.state)
        for j in range(past):
            at = t + 1 - past + j
            memcpy(out + j * a.channels + c,
                   <const float *>row_of(step, a.x, at) + c if at >= first else state + (at - first + past) * a.channels + c, 4 * <size_t>n)


cdef void conv_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const ConvArgs *a = <const ConvArgs *>args
    cdef const Step *step = a.common.step
    cdef int strips = <int>((a.channels + STRIP - 1) // STRIP), chunk = ox_team_take(team), s
    cdef int64_t c
    cdef float term[STRIP]
    while chunk < step.sequences * strips:
        s, c = chunk // strips, <int64_t>(chunk % strips) * STRIP
        conv_strip(a, step, step.begins[s], step.begins[s + 1],
                   NULL if a.ahead else <float *>state_of(step, step.begins[s], a.state), c,
                   min(<int64_t>STRIP, a.channels - c), term)
        chunk = ox_team_take(team)


cdef class ConvOp(Op):
    cdef ConvArgs a
    cdef const float[:, ::1] weight
    cdef const float[::1] bias

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "weight", "out", state=None, bias=None, act=None)
        cdef ConvArgs *a = &self.a
        a.x, a.channels = p["x"], plan.reads(p["x"], full=True)
        if np.ndim(p["weight"]) != 2 or p["weight"].dtype != np.float32 or p["weight"].shape[0] != a.channels or p["weight"].shape[1] < 2:
            raise plan.fail(f"weight is {p['weight'].dtype} {p['weight'].shape}, wanted float32 ({a.channels}, taps) of 2 taps or more")
        self.weight = np.ascontiguousarray(p["weight"].T)
        a.weight, a.taps = &self.weight[0, 0], self.weight.shape[0]
        if p["state"] is not None:
            a.state, a.ahead = plan.state(p, (a.taps - 1, a.channels)), 0
        elif a.taps % 2:
            a.ahead = a.taps // 2
        else:
            raise plan.fail(f"weight has {a.taps} taps and no state, wanted an odd number, as many ahead of a row as behind it")
        self.bias = plan.floats(p["bias"], "bias", a.channels)
        a.bias, a.act = NULL if self.bias is None else &self.bias[0], activation(p["act"])
        if p["out"] == p["x"]:
            raise plan.fail(f"x and out are both slot {p['x']}")
        a.out = plan.writes(p["out"], a.channels)
        self.begin(plan, &a.common, "conv", conv_part, p)


# ---- scan ------------------------------------------------------------------------------------------------------------

ctypedef struct ScanArgs:
    Common common
    int x, dt, b, c, out, heads, states, groups, one
    int64_t channels, dim, blocks     # channels of a head; blocks of up to 16 channels: of a head, or of single-channel heads
    size_t state              # [block][states][16]
    const float *a            # [block][states or 1][16]
    const float *d            # [block][16] or NULL


cdef void scan_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    """A chunk is a pair of blocks: of one head, or of single-channel heads."""
    cdef const ScanArgs *a = <const ScanArgs *>args
    cdef const Step *step = a.common.step
    cdef int64_t per = a.blocks if a.dim == 1 else (a.dim + 15) // 16, pairs = (per + 1) // 2      # of a head, or of all such heads
    cdef int64_t chunks = a.blocks // per * pairs, chunk = ox_team_take(team), block, channel, head, group
    cdef int first, last
    cdef size_t nbytes, offset
    cdef float *state
    cdef ox_scan s
    while chunk < step.sequences * chunks:
        first, last, head, block = step.begins[chunk // chunks], step.begins[chunk // chunks + 1], chunk % chunks // pairs, 2 * (chunk % pairs)
        channel = head * a.dim + 16 * block
        s.live = <int>min(<int64_t>32, (a.channels if a.dim == 1 else (head + 1) * a.dim) - channel)
        block += head * per
        if a.dim == 1:
            head = channel
        group = head * a.groups // a.heads
        s.rows, s.states, s.one, s.per_lane = kept_until(step, first, last) - first, a.states, a.one, a.dim == 1
        s.a = a.a + block * 16 * (1 if a.one else a.states)
        s.d = a.d + block * 16 if a.d != NULL else NULL
        nbytes, offset = 64 * <size_t>a.states * (2 if s.live > 16 else 1), a.state + 64 * <size_t>block * a.states
        state = <float *>state_of(step, first, offset)
        if step.positions[first] == 0:
            memset(state, 0, nbytes)
        while True:
            s.x, s.ldx = <const float *>row_of(step, a.x, first) + channel, <int64_t>step.strides[a.x] // 4
            s.dt, s.lddt = <const float *>row_of(step, a.dt, first) + head, <int64_t>step.strides[a.dt] // 4
            s.b, s.ldb = <const float *>row_of(step, a.b, first) + group * a.states, <int64_t>step.strides[a.b] // 4
            s.c, s.ldc = <const float *>row_of(step, a.c, first) + group * a.states, <int64_t>step.strides[a.c] // 4
            s.y, s.ldy = <float *>row_of(step, a.out, first) + channel, <int64_t>step.strides[a.out] // 4
            s.state = state
            step.vec.scan(&s)
            first += s.rows
            if first == last:
                break
            state, s.rows = next_state(step, first, offset, state, nbytes), 1
        chunk = ox_team_take(team)


def scan_blocks(channels, heads):
    """Blocks of up to 16 channels that the state of a scan is kept in: of one head, or of single-channel heads."""
    dim = channels // heads
    return (channels + 15) // 16 if dim == 1 else heads * ((dim + 15) // 16)


cdef class ScanOp(Op):
    cdef ScanArgs a
    cdef const float[:, :, ::1] decay
    cdef const float[:, ::1] skip

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "dt", "b", "c", "a", "state", "out", d=None, groups=1)
        cdef ScanArgs *a = &self.a
        a.x, a.dt, a.b, a.c = p["x"], p["dt"], p["b"], p["c"]
        a.channels, a.heads = plan.reads(p["x"], full=True), plan.reads(p["dt"], full=True)
        a.groups = plan.number(p, "groups", 1, a.heads)
        a.states = plan.reads(p["b"], full=True) // a.groups
        plan.reads(p["c"], columns=a.states * a.groups, full=True)
        decay = np.asarray(p["a"])
        if a.channels % a.heads or a.heads % a.groups or (a.heads == a.channels and a.groups > 1) or a.states < 1:
            raise plan.fail(f"{a.channels} channels, {a.heads} heads and {a.groups} groups do not divide evenly")
        if decay.dtype != np.float32 or decay.shape not in ((a.heads, a.states), (a.heads, 1)):
            raise plan.fail(f"a is {decay.dtype} {decay.shape}, wanted float32 ({a.heads}, {a.states}) or ({a.heads}, 1)")
        a.one, a.dim, a.blocks = decay.shape[1] == 1, a.channels // a.heads, scan_blocks(a.channels, a.heads)
        self.decay = np.ascontiguousarray(np.stack([self._lanes(column) for column in decay.T], axis=1))
        a.a = &self.decay[0, 0, 0]
        self.skip = None if p["d"] is None else self._lanes(plan.floats(p["d"], "d", a.heads))
        a.d = NULL if self.skip is None else &self.skip[0, 0]
        a.state = plan.state(p, (a.blocks, a.states, 16))
        if p["out"] in (p["x"], p["dt"], p["b"], p["c"]):
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        a.out = plan.writes(p["out"], a.channels)
        self.begin(plan, &a.common, "scan", scan_part, p)

    def _lanes(self, of_heads):
        """A number per head as (blocks, 16): the number of each lane's channel."""
        if self.a.dim == 1:
            padded = np.zeros(16 * self.a.blocks, np.float32)
            padded[:self.a.heads] = of_heads
            return padded.reshape(-1, 16)
        return np.repeat(np.asarray(of_heads, np.float32), 16 * (self.a.blocks // self.a.heads)).reshape(-1, 16)


# ---- delta -----------------------------------------------------------------------------------------------------------

ctypedef struct DeltaArgs:
    Common common
    int q, k, v, w, beta, out, heads, key_heads, tiled, blocks   # blocks of up to 16 values, of a head
    int64_t keys, values      # of a head
    size_t state              # [head][block][keys][16]
    float scale


cdef void delta_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const DeltaArgs *a = <const DeltaArgs *>args
    cdef const Step *step = a.common.step
    cdef int64_t chunk = ox_team_take(team), items = <int64_t>a.heads * a.blocks, block, head, from_
    cdef int first, last
    cdef size_t offset, nbytes = 64 * <size_t>a.keys
    cdef float *state
    cdef ox_delta s
    while chunk < step.sequences * items:
        first, last, head, block = step.begins[chunk // items], step.begins[chunk // items + 1], chunk % items // a.blocks, chunk % a.blocks
        from_ = head % a.key_heads if a.tiled else head // (a.heads // a.key_heads)
        s.rows, s.keys, s.scale = kept_until(step, first, last) - first, <int>a.keys, a.scale
        s.live = <int>min(<int64_t>16, a.values - 16 * block)
        offset = a.state + <size_t>(head * a.blocks + block) * nbytes
        state = <float *>state_of(step, first, offset)
        if step.positions[first] == 0:
            memset(state, 0, nbytes)
        while True:
            s.q, s.ldq = <const float *>row_of(step, a.q, first) + from_ * a.keys, <int64_t>step.strides[a.q] // 4
            s.k, s.ldk = <const float *>row_of(step, a.k, first) + from_ * a.keys, <int64_t>step.strides[a.k] // 4
            s.v, s.ldv = <const float *>row_of(step, a.v, first) + head * a.values + 16 * block, <int64_t>step.strides[a.v] // 4
            s.w, s.ldw = <const float *>row_of(step, a.w, first) + head, <int64_t>step.strides[a.w] // 4
            s.beta, s.ldbeta = <const float *>row_of(step, a.beta, first) + head, <int64_t>step.strides[a.beta] // 4
            s.y, s.ldy = <float *>row_of(step, a.out, first) + head * a.values + 16 * block, <int64_t>step.strides[a.out] // 4
            s.state = state
            step.vec.delta(&s)
            first += s.rows
            if first == last:
                break
            state, s.rows = next_state(step, first, offset, state, nbytes), 1
        chunk = ox_team_take(team)


cdef class DeltaOp(Op):
    cdef DeltaArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "q", "k", "v", "w", "beta", "heads", "key_heads", "tiled", "state", "out", scale=1.0)
        cdef DeltaArgs *a = &self.a
        a.heads = plan.number(p, "heads", 1, 1 << 16)
        a.key_heads, a.tiled = plan.number(p, "key_heads", 1, a.heads), bool(p["tiled"])
        a.q, a.k, a.v, a.w, a.beta = p["q"], p["k"], p["v"], p["w"], p["beta"]
        columns, values = plan.reads(p["q"], full=True), plan.reads(p["v"], full=True)
        if columns % a.key_heads or values % a.heads or a.heads % a.key_heads:
            raise plan.fail(f"{columns} columns of keys in {a.key_heads} heads and {values} of values in {a.heads} do not divide evenly")
        plan.reads(p["k"], columns=columns, full=True)
        plan.reads(p["w"], columns=a.heads, full=True)
        plan.reads(p["beta"], columns=a.heads, full=True)
        a.keys, a.values = columns // a.key_heads, values // a.heads
        a.scale = plan.real(p, "scale", -1e30, 1e30)
        a.blocks = (a.values + 15) // 16
        a.state = plan.state(p, (a.heads * a.blocks, a.keys, 16))
        if p["out"] in (p["q"], p["k"], p["v"], p["w"], p["beta"]):
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        a.out = plan.writes(p["out"], values)
        self.begin(plan, &a.common, "delta", delta_part, p)


# ---- wkv -------------------------------------------------------------------------------------------------------------

ctypedef struct WkvArgs:
    Common common
    int r, w, k, v, a, b, out, heads, takes, blocks   # takes: a and b are there; blocks of up to 16 values, of a head
    int64_t keys, values      # of a head
    size_t state              # [head][block][keys][16]
    const float *u            # [head][keys] or NULL
    float scale


cdef void wkv_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const WkvArgs *a = <const WkvArgs *>args
    cdef const Step *step = a.common.step
    cdef int64_t chunk = ox_team_take(team), items = <int64_t>a.heads * a.blocks, block, head
    cdef int first, last
    cdef size_t offset, nbytes = 64 * <size_t>a.keys
    cdef float *state
    cdef ox_wkv s
    while chunk < step.sequences * items:
        first, last, head, block = step.begins[chunk // items], step.begins[chunk // items + 1], chunk % items // a.blocks, chunk % a.blocks
        s.rows, s.keys, s.scale = kept_until(step, first, last) - first, <int>a.keys, a.scale
        s.live = <int>min(<int64_t>16, a.values - 16 * block)
        s.a = s.b = NULL
        s.lda = s.ldb = 0
        s.u = a.u + head * a.keys if a.u != NULL else NULL
        offset = a.state + <size_t>(head * a.blocks + block) * nbytes
        state = <float *>state_of(step, first, offset)
        if step.positions[first] == 0:
            memset(state, 0, nbytes)
        while True:
            s.r, s.ldr = <const float *>row_of(step, a.r, first) + head * a.keys, <int64_t>step.strides[a.r] // 4
            s.w, s.ldw = <const float *>row_of(step, a.w, first) + head * a.keys, <int64_t>step.strides[a.w] // 4
            s.k, s.ldk = <const float *>row_of(step, a.k, first) + head * a.keys, <int64_t>step.strides[a.k] // 4
            s.v, s.ldv = <const float *>row_of(step, a.v, first) + head * a.values + 16 * block, <int64_t>step.strides[a.v] // 4
            if a.takes:
                s.a, s.lda = <const float *>row_of(step, a.a, first) + head * a.keys, <int64_t>step.strides[a.a] // 4
                s.b, s.ldb = <const float *>row_of(step, a.b, first) + head * a.keys, <int64_t>step.strides[a.b] // 4
            s.y, s.ldy = <float *>row_of(step, a.out, first) + head * a.values + 16 * block, <int64_t>step.strides[a.out] // 4
            s.state = state
            step.vec.wkv(&s)
            first += s.rows
            if first == last:
                break
            state, s.rows = next_state(step, first, offset, state, nbytes), 1
        chunk = ox_team_take(team)


cdef class WkvOp(Op):
    cdef WkvArgs a
    cdef const float[:, ::1] bonus

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "r", "w", "k", "v", "heads", "state", "out", a=None, b=None, u=None, scale=1.0)
        cdef WkvArgs *a = &self.a
        a.heads = plan.number(p, "heads", 1, 1 << 16)
        a.r, a.w, a.k, a.v, a.takes = p["r"], p["w"], p["k"], p["v"], p["a"] is not None
        columns, values = plan.reads(p["k"], full=True), plan.reads(p["v"], full=True)
        if columns % a.heads or values % a.heads:
            raise plan.fail(f"{columns} columns of keys and {values} of values do not divide into {a.heads} heads")
        if (p["b"] is not None) != bool(a.takes):
            raise plan.fail("one of a and b is missing, wanted both or none")
        read = ["r", "w", "k", "v"] + (["a", "b"] if a.takes else [])
        for name in read:
            if name not in ("k", "v"):
                plan.reads(p[name], columns=columns, full=True)
        a.a, a.b = (p["a"], p["b"]) if a.takes else (0, 0)
        a.keys, a.values = columns // a.heads, values // a.heads
        a.u = NULL
        if p["u"] is not None:
            if p["u"].dtype != np.float32 or p["u"].shape != (a.heads, a.keys):
                raise plan.fail(f"u is {p['u'].dtype} {p['u'].shape}, wanted float32 ({a.heads}, {a.keys})")
            self.bonus = np.ascontiguousarray(p["u"])
            a.u = &self.bonus[0, 0]
        a.scale = plan.real(p, "scale", -1e30, 1e30)
        a.blocks = (a.values + 15) // 16
        a.state = plan.state(p, (a.heads * a.blocks, a.keys, 16))
        if p["out"] in [p[name] for name in read]:
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        a.out = plan.writes(p["out"], values)
        self.begin(plan, &a.common, "wkv", wkv_part, p)


# ---- ngram_embed -----------------------------------------------------------------------------------------------------

ctypedef struct NgramArgs:
    Common common
    int out, heads, per, past, stop, filler   # per: heads of each length of n-grams, from 2 on; past: tokens before a row's own that count
    int64_t columns
    size_t state              # int32 [head][past]: the last tokens; every head has its own, so that none waits for another
    size_t row_bytes
    const uint8_t *raw
    const uint8_t *fetched    # (rows of the step, heads, row_bytes): what was read for it; NULL: the table is in memory
    const uint64_t *multipliers
    const uint64_t *sizes     # of each head's part of the table
    const uint64_t *offsets   # its first row
    void (*unpack)(float *dst, const void *src, int64_t columns) noexcept nogil


cdef inline int32_t ngram_token(const NgramArgs *a, const Step *step, int first, int at, const int32_t *before) noexcept nogil:
    """The token of a row of a sequence whose step begins with row `first`, or of one before that; before: its state, NULL for none."""
    if at < first:
        return a.stop if before == NULL else before[at - first + a.past]
    return a.filler if step.tokens[at] < 0 else step.tokens[at]


cdef int64_t ngram_row(const NgramArgs *a, const Step *step, int first, int at, int head, const int32_t *before) noexcept nogil:
    """The row of the table that a head takes. A token that stops n-grams is the end of those that follow it, and stands for what they lack."""
    cdef uint64_t mixed = <uint64_t>ngram_token(a, step, first, at, before) * a.multipliers[0]
    cdef int32_t token = -1
    cdef int back
    for back in range(1, head // a.per + 2):
        if token != a.stop:
            token = ngram_token(a, step, first, at - back, before)
        mixed ^= <uint64_t>token * a.multipliers[back]
    return <int64_t>(mixed % a.sizes[head] + a.offsets[head])


cdef inline int32_t *ngram_state(const NgramArgs *a, const Step *step, int first, int head) noexcept nogil:
    return <int32_t *>state_of(step, first, a.state) + head * a.past


cdef void ngram_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const NgramArgs *a = <const NgramArgs *>args
    cdef const Step *step = a.common.step
    cdef int chunk = ox_team_take(team), first, last, kept, end, head, t
    cdef int32_t *state
    cdef int32_t *after
    cdef const uint8_t *row
    while chunk < step.sequences * a.heads:
        first, last, head = step.begins[chunk // a.heads], step.begins[chunk // a.heads + 1], chunk % a.heads
        state = ngram_state(a, step, first, head)
        if step.positions[first] == 0:
            for t in range(a.past):
                state[t] = a.stop
        for t in range(first, last):
            if a.fetched == NULL:
                row = a.raw + <size_t>ngram_row(a, step, first, t, head, state) * a.row_bytes
            else:
                row = a.fetched + (<size_t>t * a.heads + head) * a.row_bytes
            a.unpack(<float *>row_of(step, a.out, t) + head * a.columns, row, a.columns)
        kept = kept_until(step, first, last)
        for end in range(last, kept - 1, -1):      # the state of the step before is read until its own slot is written
            after = state if end == kept else <int32_t *>spare_of(step, end - 1, a.state) + head * a.past
            for t in range(a.past):
                after[t] = ngram_token(a, step, first, end - a.past + t, state)
        chunk = ox_team_take(team)


cdef class NgramEmbedOp(Op):
    cdef NgramArgs a
    cdef EmbeddingTable table
    cdef const uint64_t[::1] multipliers
    cdef const uint64_t[:, ::1] parts
    cdef uint8_t[::1] fetched
    cdef int32_t[::1] wanted

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "out", "table", "multipliers", "sizes", "offsets", "stop", "filler", "state")
        cdef NgramArgs *a = &self.a
        if not isinstance(p["table"], EmbeddingTable):
            raise plan.fail(f"table is a {type(p['table']).__name__}, wanted an EmbeddingTable")
        cdef EmbeddingTable rows = p["table"]
        a.past, a.heads = len(p["multipliers"]) - 1, len(p["sizes"])
        if a.past < 1 or a.heads < 1 or a.heads % a.past or len(p["offsets"]) != a.heads:
            raise plan.fail(f"{a.past + 1} multipliers, {a.heads} sizes and {len(p['offsets'])} offsets, wanted as many sizes as offsets for "
                            "each multiplier but one")
        for size, offset in zip(p["sizes"], p["offsets"]):
            if size < 1 or offset < 0 or size + offset > rows.rows:
                raise plan.fail(f"rows {offset} to {offset + size - 1} of a table of {rows.rows}")
        if min(p["multipliers"]) < 1 or max(p["multipliers"]) * (plan.vocab_size - 1) >= 1 << 63:
            raise plan.fail("a multiplier is 0, or its product with a token has more than 63 bits")
        self.multipliers = np.asarray(p["multipliers"], np.uint64)
        self.parts = np.asarray([p["sizes"], p["offsets"]], np.uint64)
        a.multipliers, a.sizes, a.offsets = &self.multipliers[0], &self.parts[0, 0], &self.parts[1, 0]
        a.per, a.stop, a.filler = a.heads // a.past, plan.number(p, "stop", 0, plan.vocab_size - 1), plan.number(p, "filler", 0, plan.vocab_size - 1)
        a.state = plan.state(p, (a.heads, a.past))
        self.table, a.columns, a.row_bytes, a.unpack = rows, rows.cols, rows.row_bytes, rows.unpack
        a.raw, a.fetched, self.fetches = NULL, NULL, rows.pager is not None
        if self.fetches:
            self.fetched, self.wanted = np.empty(plan.max_rows * a.heads * rows.row_bytes, np.uint8), np.empty(plan.max_rows * a.heads, np.int32)
            a.fetched = &self.fetched[0]
        else:
            a.raw = &rows.raw[0]
        a.out = plan.writes(p["out"], a.heads * a.columns)
        self.begin(plan, &a.common, "ngram_embed", ngram_part, p)

    cdef int fetch(self, Rows batch) except -1:
        """The rows of a step's tokens, for each head."""
        cdef const Step *step = self.a.common.step
        cdef const int32_t *before
        cdef int s, first, t, head
        for s in range(step.sequences):
            first = step.begins[s]
            for head in range(self.a.heads):
                before = NULL if step.positions[first] == 0 else ngram_state(&self.a, step, first, head)
                for t in range(first, step.begins[s + 1]):
                    self.wanted[t * self.a.heads + head] = <int32_t>ngram_row(&self.a, step, first, t, head, before)
        return (<Pager>self.table.pager).fetch(self.table.file, self.table.offset, self.a.row_bytes, &self.wanted[0], batch.rows * self.a.heads,
                                               &self.fetched[0], self.table.name)


OPS = {"conv": ConvOp, "scan": ScanOp, "delta": DeltaOp, "wkv": WkvOp, "ngram_embed": NgramEmbedOp}
