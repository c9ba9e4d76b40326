"""The op that puts keys and values into their pages: norm and rotation of the heads of q and k, then the store. Keys and values may come alone.

`head_shape` is what every op over heads checks first.
"""
from libc.math cimport floor, log
from libc.string cimport memcpy

from oxillama._core.pool cimport KvLayer, page_of
from oxillama._core.step cimport Common, Op, Plan, Step, row_of, rows_of
from oxillama._core.threads cimport ox_team, ox_team_take

cdef enum:
    HEADS = 16        # heads of a chunk
    ROWS = 16         # rows of a chunk

ctypedef struct StoreArgs:
    Common common
    int x, rope, rope_start, half, pairs, q_heads, kv_heads, k_dim, v_dim, layer
    int view                  # values are a view of the keys: none are stored
    int keep                  # 0: queries alone, the keys and values are another layer's
    int norm_last             # the norm of a head comes after its rotation
    double rate, span         # by which queries grow with their position; rate 0: they do not
    int offset
    const float *q_norm
    const float *k_norm
    float eps, q_scale


cdef void turn(const StoreArgs *a, const Step *step, float *head, const float *weight, int row) noexcept nogil:
    """Norm (if any) and rotate one head in place."""
    cdef const float *angles
    if weight != NULL and not a.norm_last:
        step.vec.rms_norm(head, head, weight, NULL, a.eps, a.k_dim)
    if a.rope >= 0:
        angles = <const float *>row_of(step, a.rope, row)
        if a.pairs:
            step.vec.rope_pairs(head + a.rope_start, angles, angles + a.half, a.half)
        else:
            step.vec.rope_halves(head + a.rope_start, angles, angles + a.half, a.half)
    if weight != NULL and a.norm_last:
        step.vec.rms_norm(head, head, weight, NULL, a.eps, a.k_dim)


cdef void store_row(const StoreArgs *a, const Step *step, int row, int first, int last, float *scratch) noexcept nogil:
    """Heads first to last - 1 of q, k and v side by side, of one row."""
    cdef float *x = <float *>row_of(step, a.x, row)
    cdef float *keys = x + <size_t>a.q_heads * a.k_dim
    cdef float *values = keys + <size_t>a.kv_heads * a.k_dim
    cdef float scale = a.q_scale
    cdef const KvLayer *layer = &step.layers[a.layer]
    cdef int position = step.positions[row], h, token = position % step.page_size
    cdef char *page = page_of(layer, step.tables[step.row_table[row]][position // step.page_size])
    cdef char *key = page + token // 16 * layer.k_group_bytes
    cdef char *value = page + layer.v_offset + token // 16 * layer.v_group_bytes
    if a.rate != 0.0:
        scale = <float>(a.q_scale * (1.0 + a.rate * log(1.0 + floor((position + a.offset) / a.span))))
    for h in range(first, min(last, a.q_heads)):
        turn(a, step, x + <size_t>h * a.k_dim, a.q_norm, row)
        if scale != 1.0:
            step.vec.scale(x + <size_t>h * a.k_dim, x + <size_t>h * a.k_dim, scale, a.k_dim)
    if not a.keep:
        return
    for h in range(max(0, first - a.q_heads), min(last - a.q_heads, a.kv_heads)):
        memcpy(scratch, keys + <size_t>h * a.k_dim, a.k_dim * sizeof(float))
        turn(a, step, scratch, a.k_norm, row)
        step.vec.keep_key(step.kind, key + h * layer.k_head_bytes, token % 16, scratch, a.k_dim)
    for h in range(max(0, first - a.q_heads - a.kv_heads), 0 if a.view else min(last - a.q_heads - a.kv_heads, a.kv_heads)):
        step.vec.keep_value(step.kind, value + h * layer.v_head_bytes, token % 16, values + <size_t>h * a.v_dim, a.v_dim)


cdef void rope_store_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const StoreArgs *a = <const StoreArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), heads = a.q_heads + (2 * a.kv_heads if a.keep else 0), blocks = (heads + HEADS - 1) // HEADS
    cdef int per = max(1, min(<int>ROWS, rows * blocks // (2 * nth))), items = (rows + per - 1) // per * blocks, c, r, first
    cdef float *scratch = <float *>(step.scratch + <size_t>ith * step.scratch_stride)
    c = ox_team_take(team)
    while c < items:
        first = c % blocks * HEADS
        for r in range(c // blocks * per, min(rows, (c // blocks + 1) * per)):
            store_row(a, step, r, first, min(heads, first + HEADS), scratch)
        c = ox_team_take(team)


def head_shape(Plan plan, p, *, int least=1):
    """(q_heads, kv_heads, k_dim, v_dim, layer, view) of an attention op, checked against the program's layers. least: fewest query heads."""
    layer = plan.number(p, "layer", 0, len(plan.kv_layers) - 1)
    q_heads, kv_heads = plan.number(p, "q_heads", least, 1 << 16), plan.number(p, "kv_heads", 1, 1 << 16)
    k_dim, v_dim = plan.number(p, "k_dim", 1, 1 << 16), plan.number(p, "v_dim", 1, 1 << 16)
    if q_heads % kv_heads:
        raise plan.fail(f"{q_heads} query heads do not share {kv_heads} KV heads evenly")
    view = plan.kv_layers[layer][0] == -1
    if plan.kv_layers[layer] != (kv_heads, k_dim, v_dim) and not (view and kv_heads == 1 and plan.kv_layers[layer][1:] == (k_dim, v_dim)):
        raise plan.fail(f"layer {layer} has (kv_heads, k_dim, v_dim) {plan.kv_layers[layer]}, this op {(kv_heads, k_dim, v_dim)}")
    return q_heads, kv_heads, k_dim, v_dim, layer, view


cdef class RopeStoreOp(Op):
    cdef StoreArgs a
    cdef const float[::1] q_norm
    cdef const float[::1] k_norm

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "q_heads", "kv_heads", "k_dim", "v_dim", "layer",
                      rope=None, rope_dims=0, rope_start=0, style="norm", q_norm=None, k_norm=None, eps=1e-6, q_scale=1.0,
                      norm_last=False, keep=True, temper=None)
        cdef StoreArgs *a = &self.a
        a.q_heads, a.kv_heads, a.k_dim, a.v_dim, a.layer, a.view = head_shape(plan, p, least=0)
        a.x, a.rope = p["x"], -1
        a.keep, a.norm_last, a.rate, a.span, a.offset = bool(p["keep"]), bool(p["norm_last"]), 0.0, 1.0, 0
        if not (a.q_heads or a.keep):
            raise plan.fail("no query heads and keep is False, wanted queries, or keys and values to keep")
        kept = a.kv_heads * (a.k_dim + (0 if a.view else a.v_dim)) if a.keep else 0
        plan.reads(p["x"], columns=a.q_heads * a.k_dim + kept, full=True)
        if p["temper"] is not None:
            growth = dict(zip(("rate", "span", "offset"), p["temper"], strict=True))
            a.rate, a.span = plan.real(growth, "rate", -1e6, 1e6), plan.number(growth, "span", 1, (1 << 31) - 1)
            a.offset = plan.number(growth, "offset", 0, 1 << 20)
        if p["style"] not in ("norm", "neox"):
            raise plan.fail(f"style is {p['style']!r}, wanted 'norm' or 'neox'")
        a.pairs = p["style"] == "norm"
        if p["rope"] is not None:
            a.rope_start = plan.number(p, "rope_start", 0, a.k_dim - 2)
            dims = plan.number(p, "rope_dims", 2, a.k_dim - a.rope_start)
            if dims % 2:
                raise plan.fail(f"rope_dims is {dims}, wanted an even number")
            plan.reads(p["rope"], columns=dims, full=True)
            a.rope, a.half = p["rope"], dims // 2
        self.q_norm, self.k_norm = plan.floats(p["q_norm"], "q_norm", a.k_dim), plan.floats(p["k_norm"], "k_norm", a.k_dim)
        a.q_norm = NULL if self.q_norm is None else &self.q_norm[0]
        a.k_norm = NULL if self.k_norm is None else &self.k_norm[0]
        a.eps, a.q_scale = plan.real(p, "eps", 0.0, 1.0), plan.real(p, "q_scale", -1e30, 1e30)
        plan.need_scratch(self, 4 * <size_t>a.k_dim + 64)
        self.begin(plan, &a.common, "rope_store", rope_store_part, p)
        self.whole = a.q_heads + (2 * a.kv_heads if a.keep else 0) <= HEADS


OPS = {"rope_store": RopeStoreOp}
