"""Products of parts of a row with matrices of one stack: experts that a router chose, the adapter in force, or one matrix for each head.

A routed row holds `used` parts side by side, part k for the k-th expert that its router chose; `route` and `switch` write the choice as
[ids | weights], `experts` multiplies, `combine` adds the parts under their weights. A part whose id is -1 has no matrix: it is zeros. The parts of a
whole batch that chose one expert are multiplied together: each output is one chain of its own, so its bits do not depend on the rows beside it.
Without a route part k goes to matrix k.
"""
import numpy as np

from math import exp

from libc.math cimport INFINITY, rint, sqrtf
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from oxillama._core.adapters cimport LowRank
from oxillama._core.blocks cimport token_row
from oxillama._core.kernels cimport form_at, lanes_table, pack_panels, panel_bytes
from oxillama._core.lowrank cimport LOW_SCRATCH, LowRankOp, low_rank_part
from oxillama._core.matmul cimport MatmulArgs, matmul_panels
from oxillama._core.pager cimport Pager, ox_experts, ox_experts_await, ox_experts_done, ox_experts_plan, ox_pager
from oxillama._core.panels cimport MatmulSegment, PackedMatrix, Supply
from oxillama._core.step cimport Common, Op, Plan, Step, act_number, act_row_bytes, row_of, rows_of, step_row
from oxillama._core.threads cimport OX_TEAM_NO_RUN, ox_team, ox_team_break, ox_team_share, ox_team_take, ox_team_units
from oxillama._core.vectors cimport activation

from oxillama._core.blocks import rows_layer

cdef enum:
    MOST_EXPERTS = 4096
    RANGE = 96                # most parts of one expert that a chunk covers: their rows stay in the second cache
    TILE = 6                  # rows of a wide tile
    MANY = 9                  # from so many parts on panels are taken in pairs
    MANY_PANELS = 16          # and so many a chunk, so that its parts' rows are gathered for more than one pair
    CHUNK_BYTES = 49152       # weights of a chunk of fewer, about: a microsecond of memory
    MOST_PANELS = 0x7fffffff  # what a run counts

cdef float MIXER_REACH = 0.02   # twice the jitter that the model was trained with: how far below the best a score counts

cdef enum Gating:
    SOFTMAX, SIGMOID, CHOSEN, CHOSEN_SIGMOID, MIXER, SQRT_SOFTPLUS

GATINGS = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "chosen": CHOSEN, "chosen_sigmoid": CHOSEN_SIGMOID, "mixer": MIXER,
           "sqrt_softplus": SQRT_SOFTPLUS}

# ---- route -----------------------------------------------------------------------------------------------------------

ctypedef struct RouteArgs:
    Common common
    int x, out, experts, used, groups, groups_used, normalise
    int share                 # experts that one written id stands for
    int group_sum             # 1: a group counts as the sum of its two best, 0: as its best
    Gating gating
    int sigmoid, softplus     # the numbers of these activations
    float scale
    const float *bias
    const int32_t *by_token   # (vocabulary, used): the experts of each token, NULL where scores choose them


cdef void choose_best(const float *scores, char *taken, int n, int count, float *ids) noexcept nogil:
    """The numbers of the `count` largest of n scores not taken, largest first, the lower number first among equals; they are taken then."""
    cdef int k, i, best
    for k in range(count):
        best = -1
        for i in range(n):
            if not taken[i] and (best < 0 or scores[i] > scores[best]):
                best = i
        taken[best] = 1
        ids[k] = best


cdef void keep_groups(const RouteArgs *a, const float *scores, char *taken, float *ids, float *worth, char *out) noexcept nogil:
    """Takes out the experts of all groups but the best `groups_used`."""
    cdef int size = a.experts // a.groups, g, i
    cdef float first, second
    for g in range(a.groups):
        first, second, out[g] = -INFINITY, -INFINITY, 0
        for i in range(g * size, (g + 1) * size):
            if scores[i] > first:
                first, second = scores[i], first
            elif scores[i] > second:
                second = scores[i]
        worth[g] = first + second if a.group_sum and size > 1 else first
    choose_best(worth, out, a.groups, a.groups_used, ids)
    for i in range(a.experts):
        taken[i] = not out[i // size]


cdef void softmax(const Step *step, float *p, int n) noexcept nogil:
    cdef float top = -INFINITY, total = 0.0
    cdef int i
    for i in range(n):
        top = max(top, p[i])
    for i in range(n):
        p[i] = p[i] - top
    step.vec.exp(p, p, n)
    for i in range(n):
        total += p[i]
    for i in range(n):
        p[i] = p[i] / total


cdef void mix(const Step *step, const float *p, int n, const float *ids, float *weights, int used, float *term, char *taken) noexcept nogil:
    """SparseMixer's weights: of the experts not chosen before, the softmax over those near the best (Liu et al. 2024, section 2.1)."""
    cdef int i, k
    cdef float best, total
    for i in range(n):
        taken[i] = 0
    for k in range(used):
        best, total = p[<int>ids[k]], 0.0
        for i in range(n):
            term[i] = p[i] - best
        step.vec.exp(term, term, n)
        for i in range(n):
            if not taken[i] and not (best - p[i]) / max(abs(p[i]), best) > MIXER_REACH:
                total += term[i]
        weights[k] = 1 / total
        taken[<int>ids[k]] = 1


cdef void route_row(const RouteArgs *a, const Step *step, const float *x, int token, float *out, float *scratch) noexcept nogil:
    cdef float *p = scratch
    cdef float *scores = scratch + a.experts
    cdef float *ids = scores + a.experts
    cdef float *worth = ids + a.experts
    cdef char *taken = <char *>(worth + a.experts)
    cdef float *weights = out + a.used
    cdef float total = 0.0
    cdef int i
    memcpy(p, x, 4 * <size_t>a.experts)
    if a.gating == SOFTMAX:
        softmax(step, p, a.experts)
    elif a.gating == SIGMOID:
        step.vec.activate(p, p, a.sigmoid, a.experts)
    elif a.gating == SQRT_SOFTPLUS:
        step.vec.activate(p, p, a.softplus, a.experts)
        for i in range(a.experts):
            p[i] = sqrtf(p[i])
    for i in range(a.experts):
        taken[i] = 0
        scores[i] = p[i] + a.bias[i] if a.bias != NULL else p[i]
        if scores[i] != scores[i]:              # NaN is the least: a choice is made all the same, and its weight stays NaN
            scores[i] = -INFINITY
    if a.groups > 1:
        keep_groups(a, scores, taken, ids, worth, taken + a.experts)
    if a.by_token != NULL:
        for i in range(a.used):
            out[i] = a.by_token[<int64_t>token * a.used + i]
    else:
        choose_best(scores, taken, a.experts, a.used, out)
    for i in range(a.used):
        weights[i] = p[<int>out[i]]
    if a.gating == CHOSEN:
        softmax(step, weights, a.used)
    elif a.gating == CHOSEN_SIGMOID:
        step.vec.activate(weights, weights, a.sigmoid, a.used)
    elif a.gating == MIXER:
        mix(step, p, a.experts, out, weights, a.used, worth, taken)
    if a.normalise:
        for i in range(a.used):
            total += weights[i]
        for i in range(a.used):
            weights[i] = weights[i] / max(total, <float>6.103515625e-5)
    for i in range(a.used):
        weights[i] = weights[i] * a.scale
        out[i] = <int>out[i] // a.share


cdef void route_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const RouteArgs *a = <const RouteArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r = ox_team_take(team)
    while r < rows:
        route_row(a, step, <const float *>row_of(step, a.x, r), step.tokens[step_row(&a.common, r)],
                  <float *>row_of(step, a.out, r), <float *>(step.scratch + <size_t>ith * step.scratch_stride))
        r = ox_team_take(team)


cdef class RouteOp(Op):
    cdef RouteArgs a
    cdef const float[::1] bias
    cdef const int32_t[:, ::1] by_token

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "used", "gating", "out", bias=None, groups=1, groups_used=1, group_by="best", normalise=False, scale=1.0,
                      share=1, by_token=None)
        cdef RouteArgs *a = &self.a
        a.x, a.experts = p["x"], plan.reads(p["x"])
        if a.experts > MOST_EXPERTS:
            raise plan.fail(f"{a.experts} experts, wanted at most {MOST_EXPERTS}")
        a.used, a.groups = plan.number(p, "used", 1, a.experts), plan.number(p, "groups", 1, a.experts)
        a.groups_used = plan.number(p, "groups_used", 1, a.groups)
        if a.experts % a.groups or a.groups_used * (a.experts // a.groups) < a.used:
            raise plan.fail(f"{a.experts} experts in {a.groups} groups, {a.groups_used} of them used, do not give {a.used}")
        a.share = plan.number(p, "share", 1, a.experts)
        if p["gating"] not in GATINGS:
            raise plan.fail(f"gating is {p['gating']!r}, wanted one of {', '.join(GATINGS)}")
        if p["group_by"] not in ("best", "two"):
            raise plan.fail(f"group_by is {p['group_by']!r}, wanted 'best' or 'two'")
        a.gating, a.group_sum = GATINGS[p["gating"]], p["group_by"] == "two"
        a.sigmoid, a.softplus = activation("sigmoid"), activation("softplus")
        a.normalise, a.scale = bool(p["normalise"]), plan.real(p, "scale", -1e30, 1e30)
        self.bias = plan.floats(p["bias"], "bias", a.experts)
        a.bias = NULL if self.bias is None else &self.bias[0]
        a.by_token = NULL
        if p["by_token"] is not None:
            if a.bias != NULL or a.groups > 1 or a.gating == MIXER:
                raise plan.fail("experts by token beside a bias, groups or a mixer, which choose them, wanted one of these")
            if np.shape(p["by_token"]) != (plan.vocab_size, a.used) or not 0 <= np.min(p["by_token"]) <= np.max(p["by_token"]) < a.experts:
                raise plan.fail(f"by_token is {np.shape(p['by_token'])}, wanted ({plan.vocab_size}, {a.used}) numbers below {a.experts}")
            self.by_token = np.ascontiguousarray(p["by_token"], np.int32)
            a.by_token, plan.by_token = &self.by_token[0, 0], True
        if p["out"] == p["x"]:
            raise plan.fail(f"x and out are both slot {p['x']}")
        a.out = plan.writes(p["out"], 2 * a.used)
        plan.routed = None
        plan.need_scratch(self, 20 * <size_t>a.experts + 64)
        self.begin(plan, &a.common, "route", route_part, p)
        self.whole = True


# ---- switch ----------------------------------------------------------------------------------------------------------

ctypedef struct SwitchArgs:
    Common common
    int out, layer, most      # most: the largest number
    int counted               # 1: the mean of the numbers so far is in force, 0: the last of them
    double weight             # of a token that does not switch, in that mean
    const int32_t *numbers    # (vocabulary,): the adapter of each token, from 1 on, 0 for none; -1: it does not switch


cdef inline int mean_of(const SwitchArgs *a, int32_t total, int32_t count, int position) noexcept nogil:
    """The mean of `count` numbers and of the other tokens up to a position, to nearest even; a float32 holds the sum of the weights."""
    if count == 0:
        return 0
    return min(a.most, <int>rint(total / <double><float>(count + a.weight * (position + 1 - count))))


cdef void switch_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const SwitchArgs *a = <const SwitchArgs *>args
    cdef const Step *step = a.common.step
    cdef int s = ox_team_take(team), r, position, token, number
    cdef int32_t *now
    cdef const int32_t *before
    cdef float *out
    while s < step.sequences:
        for r in range(step.begins[s], step.begins[s + 1]):
            position, token = step.positions[r], step.tokens[r]
            number = -1 if token < 0 else a.numbers[token]
            now = <int32_t *>token_row(step, a.layer, r, position)
            before = <int32_t *>token_row(step, a.layer, r, position - 1) if position else NULL
            out = <float *>row_of(step, a.out, r)
            if a.counted:
                now[0] = (0 if before == NULL else before[0]) + max(0, number)
                now[1] = (0 if before == NULL else before[1]) + (number >= 0)
                out[0] = mean_of(a, now[0], now[1], position) - 1
            else:
                now[0] = number if number >= 0 else 0 if before == NULL else before[0]
                out[0] = now[0] - 1
            out[1] = 1.0
        s = ox_team_take(team)


cdef class SwitchOp(Op):
    cdef SwitchArgs a
    cdef const int32_t[::1] numbers

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "numbers", "layer", "out", gain=None)
        cdef SwitchArgs *a = &self.a
        self.numbers = plan.tokens(p["numbers"], "numbers", -1, MOST_EXPERTS)
        a.numbers, a.most = &self.numbers[0], np.max(p["numbers"])
        a.counted, a.weight = p["gain"] is not None, 0.0
        if a.counted:
            a.weight = exp(-2.0 * plan.real(p, "gain", 0.0, 1e30))
            plan.positions = min(plan.positions, 0x7fffffff // max(1, a.most))      # what a sum of numbers holds
        a.layer = rows_layer(plan, p, "layer", 2 if a.counted else 1)
        plan.reaches.append((a.layer, 0))
        a.out = plan.writes(p["out"], 2)
        plan.routed = None
        self.begin(plan, &a.common, "switch", switch_part, p)
        self.whole = True


# ---- experts ---------------------------------------------------------------------------------------------------------

ctypedef struct ExpertsArgs:
    Common common
    MatmulArgs matmul         # of one expert: its panels, rows and bias are filled in for each chunk
    MatmulSegment whole[2]    # all experts' panels of each matrix
    const Supply *supplies[2]
    int x, routes, out, experts, used, n
    int shared                # 1: every part of a row multiplies the whole row
    int64_t rows, panels, x_bytes
    int64_t few, many         # panels of a chunk, by how many parts there are
    ox_pager *pager           # NULL: all experts are in memory
    ox_experts *paged
    LowRankOp low
    int64_t ldy               # of a chunk's outputs, until they go where they belong
    size_t order_bytes, gather_bytes, out_bytes   # of a worker's scratch: the sorted parts, the rows of a chunk, its outputs


ctypedef struct ExpertParts:
    # The parts of a batch by expert: those of `chosen[i]` are order[begins[i]] to order[begins[i + 1] - 1], a part being row * used + k.
    int count
    int32_t *chosen
    int32_t *begins
    int32_t *order


cdef ExpertParts sort_parts(const ExpertsArgs *a, const Step *step, int rows, char *scratch) noexcept nogil:
    """Each worker sorts for itself: a few microseconds, and no barrier."""
    cdef ExpertParts p
    cdef int32_t *at = <int32_t *>scratch
    cdef int r, k, e, total = 0
    cdef const float *ids
    p.chosen = at + a.experts
    p.begins = p.chosen + a.experts
    p.order = p.begins + a.experts + 1
    p.count = 0
    for e in range(a.experts):
        at[e] = 0 if a.routes >= 0 else rows
    if a.routes >= 0:
        for r in range(rows):
            ids = <const float *>row_of(step, a.routes, r)
            for k in range(a.used):
                if ids[k] >= 0:
                    at[<int>ids[k]] += 1
    for e in range(a.experts):
        if at[e]:
            p.chosen[p.count], p.begins[p.count] = e, total
            p.count += 1
        total += at[e]
        at[e] = total - at[e]
    p.begins[p.count] = total
    for r in range(rows):
        ids = <const float *>row_of(step, a.routes, r) if a.routes >= 0 else NULL
        for k in range(a.used):
            e = <int>ids[k] if ids != NULL else k
            if e >= 0:
                p.order[at[e]] = r * a.used + k
                at[e] += 1
    return p


cdef void clear_others(const ExpertsArgs *a, const Step *step, int rows, int ith, int nth) noexcept nogil:
    """Zeros in the parts that have no matrix; each worker clears some rows."""
    cdef int r = ith, k
    cdef const float *ids
    while r < rows:
        ids = <const float *>row_of(step, a.routes, r)
        for k in range(a.used):
            if ids[k] < 0:
                memset(<float *>row_of(step, a.out, r) + k * a.rows, 0, 4 * <size_t>a.rows)
        r += nth


# How the product of one expert with its parts is cut: `groups` of `group` panels, times `ranges` of `rows` parts.
ctypedef struct Cut:
    int64_t group, groups
    int rows, ranges


cdef inline Cut cut_of(const ExpertsArgs *a, int parts) noexcept nogil:
    cdef Cut cut
    cut.group = a.many if parts >= MANY else a.few
    cut.groups = (a.panels + cut.group - 1) // cut.group
    cut.ranges = (parts + RANGE - 1) // RANGE
    cut.rows = ((parts + cut.ranges - 1) // cut.ranges + TILE - 1) // TILE * TILE
    cut.ranges = (parts + cut.rows - 1) // cut.rows
    return cut


cdef void run_chunk(const ExpertsArgs *a, const Step *step, const ExpertParts *parts, int i, int first, int m, int64_t p0, int64_t p1, char *scratch,
                    const LowRank *low, const uint8_t *slot) noexcept nogil:
    """ExpertParts `first` to first + m - 1 of the i-th chosen expert against its panels p0 to p1 - 1; slot: where that expert is, NULL: among all."""
    cdef MatmulArgs one = a.matmul
    cdef LowRank mine
    cdef MatmulSegment two[2]
    cdef int e = parts.chosen[i], j, t, part = parts.order[first]
    cdef int64_t live = min(a.rows, 16 * p1) - 16 * p0, panel = e * a.panels + p0
    cdef uint8_t *x = <uint8_t *>scratch
    cdef float *y = <float *>(x + a.gather_bytes)
    cdef uint8_t *packed = <uint8_t *>y + a.out_bytes
    cdef bint scattered = m > 1 and a.routes >= 0       # else the parts' rows lie a row of the step apart
    for j in range(a.n):
        two[j] = a.whole[j]
        two[j].rows, two[j].panels = live, a.whole[j].panels + panel * a.whole[j].panel_bytes
        if slot != NULL:
            two[j].panels = slot + a.paged.pages[e].part[j].place + p0 * a.whole[j].panel_bytes
        elif step.unpacked and a.supplies[j].ready < panel + p1 - p0:
            two[j].form = form_at(two[j].form).plain        # what any weights can be in
            two[j].panel_bytes = panel_bytes(form_at(two[j].form), one.cols)
            pack_panels(two[j].form, packed, a.supplies[j].source + 16 * panel * a.supplies[j].row_bytes, a.supplies[j].row_bytes, live,
                        one.cols, 0, p1 - p0)
            two[j].panels = packed
            packed += (p1 - p0) * two[j].panel_bytes
    one.segments, one.n_segments, one.m = two, a.n, m
    if low != NULL:
        mine = low[0]
        mine.expert, mine.panel, mine.order, one.low = e, p0, parts.order + first, &mine
    if scattered:
        for t in range(m):
            part = parts.order[first + t]
            memcpy(x + t * a.x_bytes, row_of(step, a.x, part // a.used) + (0 if a.shared else part % a.used * a.x_bytes), a.x_bytes)
        one.x, one.ldx, one.out, one.ldout = x, a.x_bytes, y, a.ldy
    else:
        one.x, one.ldx = <const uint8_t *>row_of(step, a.x, part // a.used) + (0 if a.shared else part % a.used * a.x_bytes), step.strides[a.x]
        one.out = <float *>row_of(step, a.out, part // a.used) + part % a.used * a.rows + 16 * p0
        one.ldout = <int64_t>step.strides[a.out] // 4
    one.bias = NULL
    matmul_panels(&one, 0, p1 - p0)
    if scattered:
        for t in range(m):
            part = parts.order[first + t]
            memcpy(<float *>row_of(step, a.out, part // a.used) + part % a.used * a.rows + 16 * p0, y + t * a.ldy, 4 * live)


cdef bint few_parts(const ExpertsArgs *a, const ExpertParts *parts) noexcept nogil:
    """Whether every chosen expert has so few parts that memory is the limit."""
    cdef int i
    if a.pager != NULL or <int64_t>parts.count * a.panels > MOST_PANELS:
        return False
    for i in range(parts.count):
        if parts.begins[i + 1] - parts.begins[i] > min(<int>RANGE, <int>a.matmul.lanes.few_rows[a.whole[0].form]):      # what scratch holds
            return False
    return True


cdef void run_few(const ExpertsArgs *a, const Step *step, const ExpertParts *parts, ox_team *team, int ith, int nth, char *scratch,
                  const LowRank *low) noexcept nogil:
    """Few parts: each worker reads consecutive panels of the chosen experts, then helps the worker with the most left (`_few` of matmul.pyx)."""
    cdef int i, m
    cdef int64_t p, p0, p1, stop
    cdef ox_team_units u
    u.run = OX_TEAM_NO_RUN
    while ox_team_share(team, <int>(parts.count * a.panels), 1, ith, nth, <int>a.few, 8 * <int>a.few, &u):
        p = u.begin + u.first
        stop = p + u.n
        while p < stop:
            i, p0 = <int>(p // a.panels), p % a.panels
            m = parts.begins[i + 1] - parts.begins[i]
            p1 = min(a.panels, p0 + stop - p)
            if m > 1 or step.unpacked:          # what scratch holds
                p1 = min(p1, p0 + a.few)
            run_chunk(a, step, parts, i, parts.begins[i], m, p0, p1, scratch, low, NULL)
            p += p1 - p0


cdef void experts_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const ExpertsArgs *a = <const ExpertsArgs *>args
    cdef const Step *step = a.common.step
    cdef char *scratch = step.scratch + <size_t>ith * step.scratch_stride
    cdef LowRank low
    cdef const LowRank *added = NULL
    cdef ExpertParts parts
    cdef Cut cut
    cdef int64_t chunk, before = 0, here, p0, p1
    cdef const uint8_t *slot = NULL
    cdef int at = 0, i, first, m
    if step.adapting and low_rank_part(&low, &a.low, &a.common, team, ith, nth):
        added = &low
    parts = sort_parts(a, step, rows_of(&a.common), scratch)
    if parts.begins[parts.count] < rows_of(&a.common) * a.used:
        clear_others(a, step, rows_of(&a.common), ith, nth)
    if a.pager != NULL:
        ox_experts_plan(a.pager, a.paged, parts.chosen, parts.begins, parts.count)
    if few_parts(a, &parts):
        run_few(a, step, &parts, team, ith, nth, scratch + a.order_bytes, added)
        return
    chunk = ox_team_take(team)
    while at < parts.count:
        i = at if a.pager == NULL else a.paged.order[at]
        cut = cut_of(a, parts.begins[i + 1] - parts.begins[i])
        here = cut.ranges * cut.groups
        if chunk >= before + here:
            before += here
            at += 1
            continue
        first = parts.begins[i] + <int>((chunk - before) // cut.groups) * cut.rows
        m = min(cut.rows, parts.begins[i + 1] - first)
        p0 = (chunk - before) % cut.groups * cut.group
        p1 = min(a.panels, p0 + cut.group)
        if a.pager != NULL:
            slot = ox_experts_await(a.pager, a.paged, parts.chosen[i], team)
            if slot == NULL:
                ox_team_break(team)
                return
        run_chunk(a, step, &parts, i, first, m, p0, p1, scratch + a.order_bytes, added, slot)
        if a.pager != NULL:
            ox_experts_done(a.pager, a.paged, parts.chosen[i], <int32_t>(m * (p1 - p0)))
        chunk = ox_team_take(team)


def _even(panels, most):
    """Panels of a chunk: of `most` at most, all chunks about as large, pairs where there are two."""
    groups = -(-panels // most)
    return min(panels, -(-panels // groups // 2) * 2)


cdef class ExpertsOp(Op):
    cdef ExpertsArgs a
    cdef readonly int parts   # that a row of x has: 1 where every matrix meets the whole row
    cdef list weights

    def __init__(self, Plan plan, params):
        p = plan.keys(params, "x", "act", "weights", "experts", "out", routes=None, used=0, gate=None)
        cdef ExpertsArgs *a = &self.a
        cdef MatmulArgs *m = &a.matmul
        cdef PackedMatrix w
        cdef int j
        cdef size_t packed = 0
        weights = list(p["weights"])
        m.gate = activation(p["gate"])
        a.n, a.experts = 2 if m.gate else 1, plan.number(p, "experts", 1, MOST_EXPERTS)
        if len(weights) != a.n or not all(isinstance(w, PackedMatrix) for w in weights):
            raise plan.fail(f"weights: {len(weights)} of them, wanted {a.n} PackedMatrix")
        a.rows, m.cols = weights[0].rows // a.experts, weights[0].cols
        for w in weights:
            if w.rows != a.experts * a.rows or a.rows % 16 or w.cols != m.cols or w.act != p["act"]:
                raise plan.fail(f"a weight of {w.format} is ({w.rows}, {w.cols}), wanted {a.experts} matrices of a multiple of 16 rows, all alike, for {p['act']}")
        a.panels = a.rows // 16
        a.routes, a.used = -1, a.experts
        columns = plan.reads(p["x"], p["act"])
        if p["routes"] is not None:
            a.used, a.routes = plan.number(p, "used", 1, a.experts), p["routes"]
            plan.reads(p["routes"], columns=2 * a.used)
        a.shared = columns == m.cols and (a.used > 1 or p["routes"] is not None)
        if not a.shared and columns != a.used * m.cols:
            raise plan.fail(f"slot {p['x']} holds {columns} columns, wanted {m.cols}, or {a.used} parts of {m.cols}")
        a.x, a.x_bytes = p["x"], act_row_bytes(act_number(p["act"]), m.cols)
        self.parts = 1 if a.shared else a.used
        if p["out"] in (p["x"], p["routes"]):
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        a.out = plan.writes(p["out"], a.used * a.rows)
        self.weights = weights
        self.look()
        for j in range(a.n):
            w = weights[j]
            a.supplies[j] = &w.supply
            packed += <size_t>panel_bytes(form_at(form_at(w.segment.form).plain), w.cols)
        a.few = max(<int64_t>1, min(a.panels, <int64_t>CHUNK_BYTES // <int64_t>packed))
        a.many = _even(a.panels, MANY_PANELS // a.n)
        a.ldy = 16 * max(a.few, a.many) + 16                # not a power of two, which the first cache would keep in few of its sets
        m.lanes, m.bias, m.addend = lanes_table(plan.isa), NULL, NULL
        self._page(plan, weights)
        a.order_bytes = (4 * (3 * <size_t>a.experts + 1 + <size_t>plan.max_rows * a.used) + 63) // 64 * 64
        a.gather_bytes = (RANGE * <size_t>a.x_bytes + 63) // 64 * 64      # packed panels follow, which kernels want at a multiple of 64
        a.out_bytes = 4 * RANGE * <size_t>a.ldy
        a.low.lanes, a.low.op, a.low.x, a.low.act = m.lanes, plan.index, a.x, act_number(p["act"])
        a.low.cols, a.low.x_bytes, a.low.used, a.low.shared, a.low.routes = m.cols, a.x_bytes, a.used, a.shared, a.routes
        self.adaptable = [("experts", a.experts, a.rows, m.cols, a.used) for w in weights]
        plan.need_scratch(self, LOW_SCRATCH)
        plan.need_scratch(self, a.order_bytes + a.gather_bytes + a.out_bytes + max(a.few, a.many) * packed)
        self.begin(plan, &a.common, "experts", experts_part, p)

    cdef int look(self) except -1:
        cdef int j
        for j in range(self.a.n):
            self.a.whole[j] = (<PackedMatrix>self.weights[j]).segment
        return 0

    cdef int _page(self, Plan plan, list weights) except -1:
        """What is brought from a file while a step runs: all matrices, or none."""
        cdef ExpertsArgs *a = &self.a
        cdef PackedMatrix first = weights[0]
        a.pager = NULL
        if any((<PackedMatrix>w).pager is not first.pager for w in weights):
            raise plan.fail("weights: some are paged and some are not, wanted all or none")
        if first.pager is None:
            return 0
        self.paged = (<Pager>first.pager).experts(weights, a.experts, first.paged_slots, plan.use(weights))
        a.pager, a.paged = (<Pager>first.pager).pager, &self.paged.experts
        if a.routes >= 0:       # the op before that has the same choice reads for this one too
            if plan.routed is not None and plan.routed_by == a.routes:
                (<Pager>first.pager).follow(plan.routed, self.paged)
            plan.routed, plan.routed_by = self.paged, a.routes
        return 0


# ---- expert_bias and combine -----------------------------------------------------------------------------------------

ctypedef struct PartsArgs:
    Common common
    int x, routes, out, used
    int64_t width
    const float *bias         # (experts, width)


cdef void expert_bias_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const PartsArgs *a = <const PartsArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r = ox_team_take(team), k
    cdef const float *ids
    cdef const float *x
    cdef float *out
    while r < rows:
        ids, x, out = <const float *>row_of(step, a.routes, r), <const float *>row_of(step, a.x, r), <float *>row_of(step, a.out, r)
        for k in range(a.used):
            step.vec.add(out + k * a.width, x + k * a.width, a.bias + <int64_t>ids[k] * a.width, a.width)
        r = ox_team_take(team)


cdef void combine_part(const void *args, ox_team *team, int ith, int nth) noexcept nogil:
    cdef const PartsArgs *a = <const PartsArgs *>args
    cdef const Step *step = a.common.step
    cdef int rows = rows_of(&a.common), r = ox_team_take(team), k
    cdef const float *weights
    cdef const float *x
    cdef float *out
    cdef float *term
    while r < rows:
        weights, x, out = <const float *>row_of(step, a.routes, r) + a.used, <const float *>row_of(step, a.x, r), <float *>row_of(step, a.out, r)
        term = <float *>(step.scratch + <size_t>ith * step.scratch_stride)
        step.vec.scale(out, x, weights[0], a.width)
        for k in range(1, a.used):
            step.vec.scale(term, x + k * a.width, weights[k], a.width)
            step.vec.add(out, out, term, a.width)
        r = ox_team_take(team)


cdef class PartsOp(Op):
    cdef PartsArgs a
    cdef const float[:, ::1] bias

    def __init__(self, Plan plan, params):
        name = plan.op
        p = plan.keys(params, "x", "routes", "out", *(("bias",) if name == "expert_bias" else ()))
        cdef PartsArgs *a = &self.a
        columns = plan.reads(p["x"])
        a.x, a.routes, a.used = p["x"], p["routes"], plan.reads(p["routes"]) // 2
        if columns % a.used:
            raise plan.fail(f"slot {p['x']} holds {columns} columns, wanted {a.used} parts")
        a.width = columns // a.used
        if p["out"] in (p["x"], p["routes"]):
            raise plan.fail(f"out is slot {p['out']}, which it reads")
        if name == "expert_bias":
            self.bias = p["bias"]
            if self.bias.shape[1] != a.width:
                raise plan.fail(f"bias is ({self.bias.shape[0]}, {self.bias.shape[1]}), wanted a row of {a.width} for each expert")
            a.bias = &self.bias[0, 0]
        a.out = plan.writes(p["out"], a.width if name == "combine" else columns)
        plan.need_scratch(self, 4 * <size_t>a.width)
        self.begin(plan, &a.common, name, combine_part if name == "combine" else expert_bias_part, p)
        self.whole = True


OPS = {"route": RouteOp, "switch": SwitchOp, "experts": ExpertsOp, "expert_bias": PartsOp, "combine": PartsOp}
