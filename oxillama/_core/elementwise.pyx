"""Ops that work on rows one by one: embedding, angles, norms, quantising, sums, products, activations, taking rows.

Each op is an argument struct, a `_part` every worker of the step calls, and a class that checks parameters and fills the struct.
`OPS` is this module's share of the tape's dispatch table. With many rows a chunk is some rows; with few, a range of columns.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.math cimport sqrt
from libc.string cimport memcpy, memset

from oxillama._core.adapters cimport Adapted, Pair
from oxillama._core.codecs cimport ox_codec, ox_codec_by_name
from oxillama._core.batch cimport Batch as Rows
from oxillama._core.kernels cimport form_index, lanes_table, ox_lanes
from oxillama._core.pager cimport Pager
from oxillama._core.step cimport (
    ACTS, ALL_ROWS, KEPT_ROWS, OUTPUT, Common, Domain, Op, Plan, Step, act_number, act_row_bytes, ox_fetch, row_of, rows_of,
)
from oxillama._core.threads cimport ox_team, ox_team_take
from oxillama._core.vectors cimport activation, angles

import numpy as np

from oxillama.errors import ModelError

cdef enum:
    COLUMNS = 4096        # columns of a chunk where a row is cut; a multiple of every activation block
    BROUGHT = -1
    ZEROS = -2


cdef class EmbeddingTable:
    """A matrix as the file holds it, whose rows are unpacked one at a time when asked.

    raw: `rows` packed rows of `format`, `cols` columns each; kept alive, never copied. ModelError when sizes do not fit.
    """

    def __init__(self, raw, str format, int rows, int cols):
        self._shape(format, rows, cols)
        self.raw = memoryview(raw).cast("B")
        if <size_t>self.raw.shape[0] != self.row_bytes * <size_t>rows:
            raise ModelError(f"embedding: {self.raw.shape[0]} bytes, ({rows}, {cols}) of {format} takes {self.row_bytes * rows}")

    @classmethod
    def paged(cls, Pager pager, str name, int file, int64_t offset, str format, int rows, int cols):
        """One that stays at `offset` of a pager's file; each step reads the rows it needs."""
        cdef EmbeddingTable made = cls.__new__(cls)
        made._shape(format, rows, cols)
        made.pager, made.name, made.file, made.offset = pager, name, file, offset
        return made

    cdef int _shape(self, str format, int rows, int cols) except -1:
        cdef const ox_codec *codec = ox_codec_by_name(format.encode())
        if codec == NULL:
            raise ModelError(f"embedding: unknown format {format!r}")
        if rows < 1 or cols < 1 or cols % codec.block:
            raise ModelError(f"embedding: ({rows}, {cols}) of {format}, wanted at least one row and blocks of {codec.block} columns")
        self.format, self.rows, self.cols = format, rows, cols
        self.row_bytes = <size_t>(cols // codec.block) * <size_t>codec.bytes
        self.unpack = codec.unpack
        return 0

    def row(self, int index):
        """Row `index` as float32 (cols,)."""
        if index < 0 or index >= self.rows:
            raise ModelError(f"embedding: row {index}, wanted 0 to {self.rows - 1}")
        cdef float[::1] out = np.empty(self.cols, np.float32)
        cdef uint8_t[::1] read
        cdef int32_t wanted = index
        if self.pager is None:
            self.unpack(&out[0], &self.raw[index * self.row_bytes], self.cols)
        else:
            read = np.empty(self.row_bytes, np.uint8)
            (<Pager>self.pager).fetch(self.file, self.offset, self.row_bytes, &wanted, 1, &read[0], self.name)
            self.unpack(&out[0], &read[0], self.cols)
        return np.asarray(out)


# ---- embed -----------------------------------------------------------------------------------------------------------

ctypedef struct EmbedArgs:
    Common common
    int out
    const uint8_t *raw
    const uint8_t *fetched    # (rows of the step, row_bytes): what was read for it; NULL: the table is in memory
    size_t row_bytes
    int by_position           # rows of the table are positions, not tokens
    int filler                # the row of a token of -1; BROUGHT: that of the batch; ZEROS
    const int32_t *taken      # the token whose row each token takes; NULL: its own
    int64_t columns
    void (*unpack)(float *dst, const void *src, int64_t columns) noexcept nogil
    float scale
    const ox_lanes *lanes
    int op


cdef int F32 = form_index("F32")


cdef inline int table_row(const EmbedArgs *a, int token, int position) noexcept nogil:
    """The row of the table that a row of a step reads, or what the filler says."""
    cdef int row = position if a.by_position else token
    return a.filler if row < 0 else a.taken[row] if a.taken != NULL else row


cdef void adapt_row(const EmbedArgs *a, const Adapted *adapted, int token, float *out, float *t) noexcept nogil:
    """Adds s B A[token] of each adapter of the table to a row."""
    cdef float y[16]
    cdef const Pair *pair
    cdef int64_t p, i
    cdef int k
    for k in range(adapted.n):
        if not adapted.shares[k].ops[a.op].n:
            continue
        pair = adapted.shares[k].ops[a.op].pairs
        for i in range(pair.rank):
            t[i] = adapted.shares[k].scale * pair.scale * (<const float *>pair.a)[token * <int64_t>pair.rank + i]
        for p in range((a.columns + 15) // 16):
            a.lanes.tile[F32](y, 16, pair.b + p * pair.b_panel, NULL, <const uint8_t *>t, 4 * <int64_t>pair.rank, pair.rank, 1)
            for i in range(min(<int64_t>16, a.columns - 16 * p)):
                out[16 * p + i] += y[i]


cdef void embed_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const EmbedArgs *a = <const EmbedArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r, row
    cdef float *out
    r = ox_team_take(team)
    while r < rows:
        out = <float *>row_of(step, a.out, r)
        row = table_row(a, step.tokens[r], step.positions[r])
        if row >= 0:
            a.unpack(out, a.raw + <size_t>row * a.row_bytes if a.fetched == NULL else a.fetched + <size_t>r * a.row_bytes, a.columns)
            if step.adapting and not a.by_position and step.adapted[<int>a.common.domain].rows[r] != NULL:
                adapt_row(a, step.adapted[<int>a.common.domain].rows[r], row, out, step.low + r * step.low_stride)
            if a.scale != 1.0:
                step.vec.scale(out, out, a.scale, a.columns)
        elif row == ZEROS:
            memset(out, 0, 4 * <size_t>a.columns)
        else:
            memcpy(out, step.embeds + <size_t>r * <size_t>step.embed_width, 4 * <size_t>a.columns)
        r = ox_team_take(team)


cdef class EmbedOp(Op):
    cdef EmbedArgs a
    cdef EmbeddingTable table
    cdef uint8_t[::1] fetched
    cdef int32_t[::1] wanted
    cdef const int32_t[::1] taken

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "out", "table", scale=1.0, by="token", filler=None, taken=None)
        table = p["table"]
        if not isinstance(table, EmbeddingTable):
            raise plan.fail(f"table is a {type(table).__name__}, wanted an EmbeddingTable")
        cdef EmbeddingTable rows = table
        if p["by"] not in ("token", "position"):
            raise plan.fail(f"by is {p['by']!r}, wanted 'token' or 'position'")
        self.a.by_position = p["by"] == "position"
        if p["filler"] is None or p["filler"] == "zeros":
            self.a.filler = BROUGHT if p["filler"] is None else ZEROS
        else:
            self.a.filler = plan.number(p, "filler", 0, rows.rows - 1)
        self.a.taken = NULL
        if p["taken"] is not None:
            if self.a.by_position or self.a.filler >= 0:
                raise plan.fail("taken beside positions or a filler, wanted tokens alone")
            self.taken = plan.tokens(p["taken"], "taken", 0, rows.rows)
            self.a.taken = &self.taken[0]
        if self.a.by_position:
            plan.positions = min(plan.positions, rows.rows)
        elif rows.rows < plan.vocab_size:
            raise plan.fail(f"table has {rows.rows} rows, the vocabulary {plan.vocab_size}")
        elif p["filler"] is None:
            plan.embed_columns = max(plan.embed_columns, rows.cols)
        if not self.a.by_position:
            self.adaptable = [("embed", 1, rows.rows, rows.cols, 1)]
        self.a.lanes, self.a.op = lanes_table(plan.isa), plan.index
        self.a.out = plan.writes(p["out"], rows.cols)
        self.a.row_bytes, self.a.columns, self.table = rows.row_bytes, rows.cols, rows
        self.a.raw, self.a.fetched, self.fetches = NULL, NULL, rows.pager is not None
        if self.fetches:
            self.fetched, self.wanted = np.empty(plan.max_rows * rows.row_bytes, np.uint8), np.empty(plan.max_rows, np.int32)
            self.a.fetched = &self.fetched[0]
        else:
            self.a.raw = &rows.raw[0]
        self.a.unpack, self.a.scale = rows.unpack, plan.real(p, "scale", -1e30, 1e30)
        self.begin(plan, &self.a.common, "embed", embed_part, p)
        self.whole = True

    cdef int fetch(self, Rows batch) except -1:
        """The rows of a step's tokens; of a table of positions, of those."""
        cdef int r
        for r in range(batch.rows):
            self.wanted[r] = table_row(&self.a, batch.tokens[r], batch.positions[r])
        return (<Pager>self.table.pager).fetch(self.table.file, self.table.offset, self.table.row_bytes, &self.wanted[0], batch.rows,
                                               &self.fetched[0], self.table.name)


# ---- features --------------------------------------------------------------------------------------------------------

ctypedef struct FeaturesArgs:
    Common common
    int out
    int64_t start, count      # columns of the rows that a batch brings
    int beside                # tokens have such rows, too


cdef void features_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const FeaturesArgs *a = <const FeaturesArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r = ox_team_take(team)
    cdef char *out
    while r < rows:
        out = row_of(step, a.out, r)
        if step.embeds != NULL and (a.beside or step.tokens[r] < 0):
            memcpy(out, step.embeds + <size_t>r * <size_t>step.embed_width + a.start, 4 * <size_t>a.count)
        else:
            memset(out, 0, 4 * <size_t>a.count)
        r = ox_team_take(team)


cdef class FeaturesOp(Op):
    cdef FeaturesArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "out", "start", "count", beside=False)
        self.a.beside = bool(p["beside"])
        self.a.start, self.a.count = plan.number(p, "start", 0, 1 << 24), plan.number(p, "count", 1, 1 << 24)
        plan.embed_columns = max(plan.embed_columns, self.a.start + self.a.count)
        self.a.out = plan.writes(p["out"], self.a.count)
        self.begin(plan, &self.a.common, "features", features_part, p)
        self.whole = True


# ---- rope_table ------------------------------------------------------------------------------------------------------

ctypedef struct RopeTableArgs:
    Common common
    int out
    int n
    const float *inv_freq
    const float *far          # the frequencies of sequences of more than `near` tokens; NULL: the same
    int near
    const int32_t *section    # which of a batch's rope positions turns each frequency; NULL: the first
    double mscale


cdef void rope_table_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const RopeTableArgs *a = <const RopeTableArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r, i
    cdef float *out
    cdef const float *f
    cdef float pair[2]
    r = ox_team_take(team)
    while r < rows:
        out, f = <float *>row_of(step, a.out, r), a.inv_freq
        if a.far != NULL and tokens_of(step, r) > a.near:
            f = a.far
        if step.rope_sections == 1 or a.section == NULL:
            angles(out, f, a.n, step.rope[r], a.mscale)
        else:
            for i in range(a.n):
                angles(pair, f + i, 1, step.rope[a.section[i] * step.rows + r], a.mscale)
                out[i], out[a.n + i] = pair[0], pair[1]
        r = ox_team_take(team)


cdef int tokens_of(const Step *step, int row) noexcept nogil:
    """Tokens of a row's sequence: those that it may have where the program knows, else those up to its last row of this step."""
    cdef int low = 0, high = step.sequences, middle
    if step.served:
        return step.served
    while high - low > 1:
        middle = (low + high) // 2
        if step.begins[middle] <= row:
            low = middle
        else:
            high = middle
    return step.positions[step.begins[low + 1] - 1] + 1


cdef class RopeTableOp(Op):
    cdef RopeTableArgs a
    cdef const float[::1] inv_freq
    cdef const float[::1] far
    cdef const int32_t[::1] section

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "out", "inv_freq", mscale=1.0, sections=None, far=None, near=0)
        n = int(np.size(p["inv_freq"]))
        self.a.section = NULL
        if p["sections"] is not None:
            self.section = np.ascontiguousarray(p["sections"], np.int32)
            if self.section.shape[0] != n or np.min(self.section) < 0:
                raise plan.fail(f"sections: {np.shape(p['sections'])}, wanted a section for each of {n} frequencies")
            self.a.section = &self.section[0]
            plan.sections = max(plan.sections, 1 + int(np.max(self.section)))
        self.inv_freq = plan.floats(p["inv_freq"], "inv_freq", max(1, n))
        self.a.out = plan.writes(p["out"], 2 * n)
        self.far = plan.floats(p["far"], "far", n)
        self.a.far, self.a.near = NULL if self.far is None else &self.far[0], plan.number(p, "near", 0, (1 << 31) - 1)
        self.a.inv_freq, self.a.n, self.a.mscale = &self.inv_freq[0], n, plan.real(p, "mscale", -1e30, 1e30)
        self.begin(plan, &self.a.common, "rope_table", rope_table_part, p)
        self.whole = True


# ---- norm and quantise -----------------------------------------------------------------------------------------------

ctypedef struct NormArgs:
    Common common
    int x, add, out, wide     # wide: there is an `out`
    int layer                 # 0: rms, 1: layer norm
    int heads                 # parts of a row, each with a norm of its own
    int64_t step              # from one part's weights to the next part's: 0 where they share them
    int acts[ACTS]            # slot per activation format, -1 none
    int64_t columns
    const float *weight
    const float *bias
    float eps


cdef void norm_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const NormArgs *a = <const NormArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r, k, h
    cdef int64_t width = a.columns // a.heads
    cdef float *x
    cdef float *n
    cdef const float *weight
    cdef const float *bias
    r = ox_team_take(team)
    while r < rows:
        x = <float *>row_of(step, a.x, r)
        if a.add >= 0:
            step.vec.add(x, x, <const float *>row_of(step, a.add, r), a.columns)
        n = <float *>(row_of(step, a.out, r) if a.wide else step.scratch + <size_t>ith * step.scratch_stride)
        for h in range(a.heads):
            weight = a.weight + h * a.step if a.weight != NULL else NULL
            bias = a.bias + h * a.step if a.bias != NULL else NULL
            if a.layer:
                step.vec.layer_norm(n + h * width, x + h * width, weight, bias, a.eps, width)
            else:
                step.vec.rms_norm(n + h * width, x + h * width, weight, bias, a.eps, width)
        for k in range(ACTS):
            if a.acts[k] >= 0:
                step.quantise[k](<uint8_t *>row_of(step, a.acts[k], r), n, a.columns)
        r = ox_team_take(team)


cdef void norm_warm(const void *args, int ith, int nth) noexcept nogil:
    cdef const NormArgs *a = <const NormArgs *>args
    cdef int r
    if a.weight != NULL:
        ox_fetch(a.weight, 4 * a.columns)
    for r in range(rows_of(&a.common) if rows_of(&a.common) > 1 else 0):     # a single row one worker will read, others still write
        ox_fetch(row_of(a.common.step, a.x, r), 4 * a.columns)


cdef int fill_acts(Plan plan, object acts, int *slots, int64_t columns) except -1:
    """Notes the slot of each asked activation format; -1 where none is asked."""
    cdef int k
    for k in range(ACTS):
        slots[k] = -1
    if not isinstance(acts, dict):
        raise plan.fail(f"acts is {acts!r}, wanted a dict of slots by activation format")
    for act, slot in acts.items():
        slots[act_number(act)] = plan.writes(slot, columns, act)
    return 0


cdef class NormOp(Op):
    cdef NormArgs a
    cdef const float[::1] weight
    cdef const float[::1] bias

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "kind", "eps", add=None, weight=None, bias=None, out=None, acts={}, heads=1)
        columns = plan.reads(p["x"])
        self.a.x, self.a.columns, self.a.add, self.a.out, self.a.wide = p["x"], columns, -1, -1, p["out"] is not None
        if p["add"] is not None:
            plan.reads(p["add"], columns=columns)
            self.a.add = p["add"]
        if p["kind"] not in ("rms", "layer"):
            raise plan.fail(f"kind is {p['kind']!r}, wanted 'rms' or 'layer'")
        self.a.layer = p["kind"] == "layer"
        self.a.eps = plan.real(p, "eps", 0.0, 1.0)
        self.a.heads = plan.number(p, "heads", 1, 1 << 16)
        if columns % self.a.heads:
            raise plan.fail(f"{columns} columns are not {self.a.heads} heads")
        weights = columns
        for part in (p["weight"], p["bias"]):
            if part is not None and np.size(part) != columns:
                weights = columns // self.a.heads
        self.a.step = 0 if weights < columns else columns // self.a.heads
        self.weight, self.bias = plan.floats(p["weight"], "weight", weights), plan.floats(p["bias"], "bias", weights)
        self.a.weight = NULL if self.weight is None else &self.weight[0]
        self.a.bias = NULL if self.bias is None else &self.bias[0]
        if p["out"] is not None:
            self.a.out = plan.writes(p["out"], columns, output=True)
            self.output = self.a.out == OUTPUT
        fill_acts(plan, p["acts"], self.a.acts, columns)
        plan.need_scratch(self, 4 * <size_t>columns)
        self.begin(plan, &self.a.common, "norm", norm_part, p)
        self.whole = True
        self.warm = norm_warm


ctypedef struct QuantiseArgs:
    Common common
    int x
    int acts[ACTS]
    int64_t columns


cdef void quantise_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const QuantiseArgs *a = <const QuantiseArgs *>args
    cdef const Step *step = a.common.step
    cdef int blocks = <int>((a.columns + COLUMNS - 1) // COLUMNS), items = rows_of(&a.common) * blocks, c, r, k
    cdef int64_t first, n
    c = ox_team_take(team)
    while c < items:
        r = c // blocks
        first = <int64_t>(c % blocks) * COLUMNS
        n = min(<int64_t>COLUMNS, a.columns - first)
        for k in range(ACTS):
            if a.acts[k] >= 0:
                step.quantise[k](<uint8_t *>row_of(step, a.acts[k], r) + act_row_bytes(k, first),
                                 <const float *>row_of(step, a.x, r) + first, n)
        c = ox_team_take(team)


cdef class QuantiseOp(Op):
    cdef QuantiseArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "acts")
        self.a.columns, self.a.x = plan.reads(p["x"]), p["x"]
        fill_acts(plan, p["acts"], self.a.acts, self.a.columns)
        self.begin(plan, &self.a.common, "quantise", quantise_part, p)
        self.whole = self.a.columns <= COLUMNS


# ---- add, mul, scale, affine, clamp, softcap, activate ------------------------------------------------------------------------------

cdef enum Kind:
    ADD, MUL, SCALE, SOFTCAP, ACTIVATE, CLAMP, AFFINE

ctypedef struct ElementwiseArgs:
    Common common
    Kind kind
    int x, y, out, act
    int64_t columns
    float value, high
    const float *weight
    const float *bias


cdef void elementwise_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const ElementwiseArgs *a = <const ElementwiseArgs *>args
    cdef const Step *step = a.common.step
    cdef int blocks = <int>((a.columns + COLUMNS - 1) // COLUMNS), items = rows_of(&a.common) * blocks, c, r
    cdef int64_t first, n
    cdef const float *x
    cdef float *out
    c = ox_team_take(team)
    while c < items:
        r = c // blocks
        first = <int64_t>(c % blocks) * COLUMNS
        n = min(<int64_t>COLUMNS, a.columns - first)
        x = <const float *>row_of(step, a.x, r) + first
        out = <float *>row_of(step, a.out, r) + first
        if a.kind == ADD:
            step.vec.add(out, x, <const float *>row_of(step, a.y, r) + first, n)
        elif a.kind == MUL:
            step.vec.mul(out, x, <const float *>row_of(step, a.y, r) + first, n)
        elif a.kind == SCALE:
            step.vec.scale(out, x, a.value, n)
        elif a.kind == SOFTCAP:
            step.vec.softcap(out, x, a.value, n)
        elif a.kind == CLAMP:
            step.vec.clamp(out, x, a.value, a.high, n)
        elif a.kind == AFFINE:
            if a.weight != NULL:
                step.vec.mul(out, x, a.weight + first, n)
                x = out
            if a.bias != NULL:
                step.vec.add(out, x, a.bias + first, n)
        else:
            step.vec.activate(out, x, a.act, n)
        c = ox_team_take(team)


ELEMENTWISE = {"add": (ADD, ("y",)), "mul": (MUL, ("y",)), "scale": (SCALE, ("factor",)), "softcap": (SOFTCAP, ("cap",)),
               "activate": (ACTIVATE, ("kind",)), "clamp": (CLAMP, ("low", "high")), "affine": (AFFINE, ("weight", "bias"))}


cdef class ElementwiseOp(Op):
    cdef ElementwiseArgs a
    cdef const float[::1] weight
    cdef const float[::1] bias

    def __init__(self, Plan plan, params):
        name = plan.op
        kind, extra = ELEMENTWISE[name]
        p = plan.keys(params, "x", *extra, "out")
        self.a.kind = kind
        self.a.columns, self.a.x = plan.reads(p["x"], output=True), p["x"]
        if "y" in p:
            plan.reads(p["y"], columns=self.a.columns, output=True)
            self.a.y = p["y"]
        elif name == "activate":
            self.a.act = activation(p["kind"])
        elif name == "affine":
            if p["weight"] is None and p["bias"] is None:
                raise plan.fail("weight and bias are both None, wanted at least one of them")
            self.weight, self.bias = plan.floats(p["weight"], "weight", self.a.columns), plan.floats(p["bias"], "bias", self.a.columns)
            self.a.weight = NULL if self.weight is None else &self.weight[0]
            self.a.bias = NULL if self.bias is None else &self.bias[0]
        elif name == "clamp":
            self.a.value, self.a.high = plan.real(p, "low", -3.4e38, 3.4e38), plan.real(p, "high", -3.4e38, 3.4e38)
            if not self.a.value <= self.a.high:
                raise plan.fail(f"low is {self.a.value}, wanted at most the high of {self.a.high}")
        else:
            self.a.value = plan.real(p, extra[0], -1e30, 1e30)
            if name == "softcap" and not self.a.value > 0.0:
                raise plan.fail(f"cap is {self.a.value}, wanted more than 0")
        self.a.out = plan.writes(p["out"], self.a.columns, output=True)
        self.output = self.a.out == OUTPUT
        self.begin(plan, &self.a.common, name, elementwise_part, p)
        self.whole = self.a.columns <= COLUMNS


# ---- measure ---------------------------------------------------------------------------------------------------------

ctypedef struct MeasureArgs:
    Common common
    int x, out, heads
    int centred               # a standard deviation, else a root of a mean square
    int sum                   # neither: the plain sum
    int64_t columns           # of a head


cdef void measure_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const MeasureArgs *a = <const MeasureArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r, h
    cdef const float *x
    cdef double mean, total
    r = ox_team_take(team)
    while r < rows:
        for h in range(a.heads):
            x = <const float *>row_of(step, a.x, r) + h * a.columns
            mean = 0.0
            if a.centred or a.sum:
                mean = sum_powers(x, 0.0, 1, a.columns)
            if a.sum:
                total = mean
            else:
                total = sqrt(sum_powers(x, mean / a.columns, 2, a.columns) / a.columns)
            (<float *>row_of(step, a.out, r))[h] = <float>total
        r = ox_team_take(team)


cdef double sum_powers(const float *x, double mean, int power, int64_t n) noexcept nogil:
    """The sum of x - mean, or of its squares, in eight partial sums that are added in order."""
    cdef double[8] part
    cdef double d
    cdef int64_t i
    cdef int j
    for j in range(8):
        part[j] = 0.0
    for i in range(0, n - n % 8, 8):
        for j in range(8):
            d = x[i + j] - mean
            part[j] = part[j] + (d * d if power == 2 else d)
    for i in range(n - n % 8, n):
        d = x[i] - mean
        part[i % 8] = part[i % 8] + (d * d if power == 2 else d)
    d = 0.0
    for j in range(8):
        d = d + part[j]
    return d


cdef class MeasureOp(Op):
    cdef MeasureArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "kind", "out", heads=1)
        columns, self.a.x, self.a.heads = plan.reads(p["x"]), p["x"], plan.number(p, "heads", 1, 1 << 16)
        if p["kind"] not in ("rms", "deviation", "sum"):
            raise plan.fail(f"kind is {p['kind']!r}, wanted 'rms', 'deviation' or 'sum'")
        if columns % self.a.heads:
            raise plan.fail(f"x has {columns} columns, wanted {self.a.heads} parts")
        self.a.columns, self.a.centred, self.a.sum = columns // self.a.heads, p["kind"] == "deviation", p["kind"] == "sum"
        if p["x"] == p["out"]:
            raise plan.fail(f"x and out are both slot {p['x']}")
        self.a.out = plan.writes(p["out"], self.a.heads)
        self.begin(plan, &self.a.common, "measure", measure_part, p)
        self.whole = True


# ---- softmax ---------------------------------------------------------------------------------------------------------

ctypedef struct SoftmaxArgs:
    Common common
    int x, out, heads, rounds
    int64_t columns           # of a head
    float eps


cdef void softmax_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const SoftmaxArgs *a = <const SoftmaxArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r, h, k
    cdef int64_t i
    cdef const float *x
    cdef float *y
    cdef float top
    r = ox_team_take(team)
    while r < rows:
        for h in range(a.heads):
            x = <const float *>row_of(step, a.x, r) + h * a.columns
            y = <float *>row_of(step, a.out, r) + h * a.columns
            top = x[0]
            for i in range(1, a.columns):
                top = max(top, x[i])
            for i in range(a.columns):
                y[i] = x[i] - top
            step.vec.exp(y, y, a.columns)
            share(y, a.columns, 1, 0)
            for i in range(a.columns):
                y[i] = y[i] + a.eps
        y = <float *>row_of(step, a.out, r)
        for k in range(2 * a.rounds - 1):
            for h in range(a.heads):
                if k % 2:
                    share(y + h * a.columns, a.columns, 1, a.eps)
                else:
                    share(y + h, a.columns, a.columns, a.eps)
        r = ox_team_take(team)


cdef void share(float *y, int64_t n, int64_t step, float eps) noexcept nogil:
    """Divides n numbers, `step` apart, by their sum in ascending order plus eps."""
    cdef float total = 0
    cdef int64_t i
    for i in range(n):
        total = total + y[i * step]
    total = total + eps
    for i in range(n):
        y[i * step] = y[i * step] / total


cdef class SoftmaxOp(Op):
    cdef SoftmaxArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "out", heads=1, rounds=0, eps=0.0)
        columns, self.a.x, self.a.heads = plan.reads(p["x"]), p["x"], plan.number(p, "heads", 1, 1 << 16)
        self.a.rounds, self.a.eps = plan.number(p, "rounds", 0, 1 << 10), plan.real(p, "eps", 0.0, 1.0)
        if columns % self.a.heads or (self.a.rounds and columns != self.a.heads * self.a.heads):
            raise plan.fail(f"x has {columns} columns, wanted {self.a.heads} parts{' of as many' if self.a.rounds else ''}")
        self.a.columns = columns // self.a.heads
        if p["x"] == p["out"]:
            raise plan.fail(f"x and out are both slot {p['x']}")
        self.a.out = plan.writes(p["out"], columns)
        self.begin(plan, &self.a.common, "softmax", softmax_part, p)
        self.whole = True


# ---- head_scale ------------------------------------------------------------------------------------------------------

ctypedef struct HeadScaleArgs:
    Common common
    int x, p, q, out, heads, dot      # dot: by p . q, else by p
    int64_t columns, dim      # of a head: of x, of p and q


cdef void head_scale_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const HeadScaleArgs *a = <const HeadScaleArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r, h
    cdef int64_t i
    cdef const float *p
    cdef const float *q
    cdef float by
    r = ox_team_take(team)
    while r < rows:
        for h in range(a.heads):
            p = <const float *>row_of(step, a.p, r) + h * a.dim
            by = p[0]
            if a.dot:
                q = <const float *>row_of(step, a.q, r) + h * a.dim
                by = 0
                for i in range(a.dim):
                    by += p[i] * q[i]
            step.vec.scale(<float *>row_of(step, a.out, r) + h * a.columns, <const float *>row_of(step, a.x, r) + h * a.columns, by, a.columns)
        r = ox_team_take(team)


cdef class HeadScaleOp(Op):
    cdef HeadScaleArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "p", "heads", "out", q=None)
        cdef HeadScaleArgs *a = &self.a
        a.x, a.p, a.dot, a.heads = p["x"], p["p"], p["q"] is not None, plan.number(p, "heads", 1, 1 << 16)
        a.q = p["q"] if a.dot else 0
        columns, dims = plan.reads(p["x"]), plan.reads(p["p"])
        if a.dot:
            plan.reads(p["q"], columns=dims)
        if columns % a.heads or dims % a.heads or not (a.dot or dims == a.heads):
            raise plan.fail(f"x has {columns} columns and p {dims}, wanted {a.heads} parts of each{'' if a.dot else ', of p of one column'}")
        a.columns, a.dim = columns // a.heads, dims // a.heads
        if p["out"] in (p["p"], p["q"]):
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        a.out = plan.writes(p["out"], columns)
        self.begin(plan, &a.common, "head_scale", head_scale_part, p)
        self.whole = True


# ---- take_rows -------------------------------------------------------------------------------------------------------

ctypedef struct TakeArgs:
    Common common
    int x, out
    size_t row_bytes
    Domain of                 # the rows that x holds


cdef void take_rows_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const TakeArgs *a = <const TakeArgs *>args
    cdef const Step *step = a.common.step
    cdef const int32_t *taken = step.kept_rows if a.common.domain == KEPT_ROWS else step.wanted_rows if a.of == ALL_ROWS else step.wanted_kept
    cdef int rows = rows_of(&a.common), r = ox_team_take(team)
    while r < rows:
        memcpy(row_of(step, a.out, r), row_of(step, a.x, r if taken == NULL else taken[r]), a.row_bytes)
        r = ox_team_take(team)


cdef class TakeRowsOp(Op):
    cdef TakeArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "out", rows="wanted", of="all")
        if (p["rows"], p["of"]) not in (("wanted", "all"), ("kept", "all"), ("wanted", "kept")):
            raise plan.fail(f"takes {p['rows']!r} rows of {p['of']!r}, wanted 'wanted' or 'kept' ones of 'all', or 'wanted' ones of 'kept'")
        self.a.of = ALL_ROWS if p["of"] == "all" else KEPT_ROWS
        if self.a.of == KEPT_ROWS:
            plan.take("kept")
        columns = plan.reads(p["x"], full=self.a.of == ALL_ROWS)
        if p["x"] == p["out"]:
            raise plan.fail(f"x and out are both slot {p['x']}")
        self.a.x, self.a.row_bytes = p["x"], 4 * <size_t>columns
        plan.take(p["rows"])
        self.a.out = plan.writes(p["out"], columns, output=True)
        self.output = self.a.out == OUTPUT
        self.begin(plan, &self.a.common, "take_rows", take_rows_part, p)
        self.whole = True


# ---- copy ------------------------------------------------------------------------------------------------------------

ctypedef struct CopyArgs:
    Common common
    int x, out, heads
    int64_t first, step, offset, stride, count


cdef void copy_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const CopyArgs *a = <const CopyArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r, h
    cdef const float *x
    cdef float *out
    r = ox_team_take(team)
    while r < rows:
        x = <const float *>row_of(step, a.x, r) + a.first
        out = <float *>row_of(step, a.out, r) + a.offset
        for h in range(a.heads):
            memcpy(out + h * a.stride, x + h * a.step, 4 * <size_t>a.count)
        r = ox_team_take(team)


cdef class CopyOp(Op):
    cdef CopyArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "out", "count", heads=1, first=0, step=0, offset=0, stride=0)
        self.a.x, self.a.heads = p["x"], plan.number(p, "heads", 1, 1 << 16)
        self.a.count, self.a.first, self.a.step = plan.number(p, "count", 1, 1 << 28), plan.number(p, "first", 0, 1 << 28), plan.number(p, "step", 0, 1 << 28)
        self.a.offset, self.a.stride = plan.number(p, "offset", 0, 1 << 28), plan.number(p, "stride", 0, 1 << 28)
        columns = plan.reads(p["x"])
        if self.a.first + (self.a.heads - 1) * self.a.step + self.a.count > columns:
            raise plan.fail(f"slot {p['x']} holds {columns} columns, wanted {self.a.first + (self.a.heads - 1) * self.a.step + self.a.count}")
        if p["x"] == p["out"]:
            raise plan.fail(f"x and out are both slot {p['x']}")
        self.a.out = plan.writes(p["out"], (self.a.heads - 1) * self.a.stride + self.a.count, offset=self.a.offset)
        self.begin(plan, &self.a.common, "copy", copy_part, p)
        self.whole = True


# ---- shift -----------------------------------------------------------------------------------------------------------

ctypedef struct ShiftArgs:
    Common common
    int x, out
    size_t row_bytes


cdef void shift_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const ShiftArgs *a = <const ShiftArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r
    r = ox_team_take(team)
    while r < rows:
        if r == 0 or step.row_table[r] != step.row_table[r - 1]:
            memset(row_of(step, a.out, r), 0, a.row_bytes)
        else:
            memcpy(row_of(step, a.out, r), row_of(step, a.x, r - 1), a.row_bytes)
        r = ox_team_take(team)


cdef class ShiftOp(Op):
    cdef ShiftArgs a

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "out")
        columns = plan.reads(p["x"], full=True)
        if p["x"] == p["out"]:
            raise plan.fail(f"x and out are both slot {p['x']}")
        self.a.x, self.a.row_bytes = p["x"], 4 * <size_t>columns
        self.a.out = plan.writes(p["out"], columns)
        self.begin(plan, &self.a.common, "shift", shift_part, p)


OPS = {"embed": EmbedOp, "features": FeaturesOp, "copy": CopyOp, "rope_table": RopeTableOp, "norm": NormOp, "quantise": QuantiseOp, "take_rows": TakeRowsOp,
       "measure": MeasureOp, "softmax": SoftmaxOp, "head_scale": HeadScaleOp, "shift": ShiftOp,
       **dict.fromkeys(ELEMENTWISE, ElementwiseOp)}
