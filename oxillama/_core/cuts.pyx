"""The sampler stages that remove candidates, and the temperature.

Formulas and papers are in oxillama/sampling/stages.py; the numpy meaning of each is in tests/reference/sampling_oracle.py.
"""
from libc.math cimport nextafterf, sqrt
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from oxillama._core.candidates cimport (
    View, choose_order, entropy, gather_top, grow_to_mass, has, keep_above, keep_from, keep_heavy, keep_row_from, keep_top, materialise,
    row_cut, shrink, total, weigh,
)
from oxillama._core.history cimport Memory
from oxillama._core.sample cimport (
    OXS_FAINT, OXS_LARGEST, OXS_LN2, OXS_NONE, OXS_SLACK, OXS_SUPER, oxs_cut, oxs_exp, oxs_gather, oxs_highest, oxs_id, oxs_key, oxs_log,
    oxs_logit, oxs_pow, oxs_row_cut, oxs_set, oxs_sort, oxs_uniform,
)
from oxillama._core.stage cimport ChainParams, Op


cdef void stage_top_n_sigma(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a: keeps logits within a standard deviations of the largest."""
    cdef double out[3]
    cdef double mean, variance, bound
    cdef int i, n
    if v.dense:
        v.ref = oxs_highest(v.peak, 16 * v.supers)
        v.k.spread(v.work, v.supers * OXS_SUPER, v.ref, out)
    else:
        v.weighed = False
        weigh(v)
        n = (v.count + 15) & ~15
        for i in range(v.count, n):
            v.logit[i] = OXS_NONE
        v.k.spread(v.logit, n, v.ref, out)
    mean = out[1] / out[0]
    variance = out[2] / out[0] - mean * mean
    bound = v.ref - op.a * (sqrt(variance) if variance > 0 else 0)
    keep_above(v, bound)


cdef void stage_top_k(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a: keeps the a largest logits."""
    if op.a < v.vocab:
        keep_top(v, <int>op.a)


cdef void stage_typical(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a: keeps the tokens whose surprise is nearest to the entropy, up to mass a."""
    cdef double center = -entropy(v)        # plus log(mass): the log-weight of a token whose surprise is the entropy
    cdef double need
    cdef float *order = <float *>v.other
    cdef float top = OXS_NONE
    cdef uint64_t least
    cdef int i, n = 0
    center += oxs_log(v.mass)
    need = op.a * v.mass * OXS_SLACK
    if v.dense:
        v.k.nearness(v.work, order, v.supers * OXS_SUPER, v.ref, v.scale, center)
        for i in range(v.supers * OXS_SUPER):
            top = order[i] if order[i] > top else top
        least = oxs_row_cut(v.k, v.work, v.peak, v.supers, v.ref, v.scale, order, top, OXS_FAINT, need, v.key, v.spare, v.w, v.spare_w, v.logit)
        keep_row_from(v, order, least)
        return
    for i in range((v.count + 7) & ~7):
        v.logit[i] = oxs_logit(v.key[i]) if i < v.count else OXS_NONE
    v.k.nearness(v.logit, order, (v.count + 7) & ~7, v.ref, v.scale, center)
    for i in range(v.count):
        v.spare[i] = oxs_key(order[i], oxs_id(v.key[i]))
    least = oxs_cut(v.spare, v.w, v.count, need, v.other, v.spare_w)
    for i in range(v.count):
        if v.spare[i] >= least:
            v.key[n] = v.key[i]
            v.w[n] = v.w[i]
            n += 1
    if n < v.count:
        v.count = n
        v.weighed = False
        choose_order(v)


cdef void stage_top_a(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a: keeps probabilities of at least a * (largest probability)^2."""
    weigh(v)
    keep_heavy(v, op.a / v.mass)


cdef void stage_eta(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a: keeps probabilities of at least min(a, sqrt(a) * exp(-entropy))."""
    cdef double bound = sqrt(op.a) * oxs_exp(-entropy(v))
    keep_heavy(v, (bound if bound < op.a else op.a) * v.mass)


cdef void stage_epsilon(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a: keeps probabilities of at least a."""
    weigh(v)
    keep_heavy(v, op.a * v.mass)


cdef void stage_top_p(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a: keeps the most likely tokens whose mass reaches a."""
    cdef double need, done = 0
    cdef int i, n
    weigh(v)
    need = op.a * v.mass * OXS_SLACK
    if v.dense:
        n = grow_to_mass(v, need)
        if n >= 0:
            v.dense = False
            v.sorted = True
            v.count = n
            total(v)
        else:
            keep_row_from(v, v.work, row_cut(v, v.scale, need))
    elif v.sorted:
        for i in range(v.count):
            done += v.w[i]
            if done >= need:
                shrink(v, i + 1)
                return
    else:
        keep_from(v, oxs_cut(v.key, v.w, v.count, need, v.spare, v.spare_w))


cdef void stage_min_p(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a: keeps probabilities of at least a * (largest probability)."""
    keep_heavy(v, op.a)


cdef void exclude_from_row(View *v, double bound, const ChainParams *f) noexcept nogil:
    """Removes from a dense view the logits of at least `bound`, but for the least of them and special tokens."""
    cdef int i, n
    cdef uint64_t least = ~<uint64_t>0
    cdef float lowest = -OXS_LARGEST
    if bound > lowest:
        lowest = <float>bound
        if lowest < bound:
            lowest = nextafterf(lowest, OXS_LARGEST)
    n = oxs_gather(v.work, v.peak, v.supers, lowest, v.key)
    for i in range(n):
        if v.key[i] < least:
            least = v.key[i]
    for i in range(n):
        if v.key[i] > least and not has(f.special, oxs_id(v.key[i])):
            oxs_set(v.work, v.peak, <int>oxs_id(v.key[i]), OXS_NONE)
    v.weighed = False


cdef void stage_xtc(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a probability, b threshold: of the tokens that reach the threshold, removes all but the least likely."""
    cdef double bound
    cdef uint64_t least = ~<uint64_t>0
    cdef int i, n = 0, reached = 0
    if not oxs_uniform(&m.rng) < op.a:      # one number is taken whatever happens next
        return
    weigh(v)
    if v.dense:
        bound = op.b * OXS_SLACK * v.mass
        if bound > 1:                       # not even the most likely token reaches the threshold
            return
        exclude_from_row(v, v.ref + oxs_log(bound) / v.scale, f)
        return
    bound = op.b * v.mass * OXS_SLACK
    for i in range(v.count):
        if v.w[i] >= bound:
            reached += 1
            if v.key[i] < least:
                least = v.key[i]
    if reached < 2:
        return
    for i in range(v.count):
        if v.key[i] <= least or has(f.special, oxs_id(v.key[i])):
            v.key[n] = v.key[i]
            n += 1
    v.count = n
    v.weighed = False
    choose_order(v)


cdef void stage_temperature(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a temperature, b range and c exponent of the dynamic temperature: divides the logits; 0 keeps the first alone."""
    cdef double t = op.a, low, share, count
    cdef double out[3]
    if op.b > 0:
        share = entropy(v)
        count = v.count
        if v.dense:
            v.k.spread(v.work, v.supers * OXS_SUPER, v.ref, out)
            count = out[0]
        if count > 1:
            share /= oxs_log(count)
            low = t - op.b if t > op.b else 0
            t = low + (t + op.b - low) * oxs_pow(share if share < 1 else 1, op.c)
    if t == 0:
        keep_top(v, 1)
        v.greedy = True
        return
    v.scale /= t if t > 1e-30 else 1e-30
    v.weighed = False


cdef void stage_mirostat(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """a version (1 or 2): cuts so that the surprise stays near tau; `draw` then moves mu by what was drawn."""
    cdef double t, b, tb = 0, tt = 0, s, e, k
    cdef uint64_t least
    cdef int i, n = 0
    if v.greedy:
        return
    if op.a == 2:
        weigh(v)
        keep_heavy(v, oxs_exp(-m.mu * OXS_LN2) * v.mass)
        return
    # Version 1 estimates the exponent of Zipf's law from the 100 most likely tokens.
    if v.dense:
        n = gather_top(v, 100)
        if n < 0:
            materialise(v)
    if not v.dense:
        n = v.count
        memcpy(v.spare, v.key, n * sizeof(uint64_t))
        if not v.sorted:
            least = oxs_cut(v.key, NULL, n, 100, v.other, v.spare_w)
            n = 0
            for i in range(v.count):
                if v.key[i] >= least:
                    v.spare[n] = v.key[i]
                    n += 1
            oxs_sort(v.spare, n, v.other)
    else:
        memcpy(v.spare, v.key, n * sizeof(uint64_t))
    if n > 100:
        n = 100
    for i in range(n - 1):
        t = oxs_log((i + 2.0) / (i + 1.0))
        b = (<double>oxs_logit(v.spare[i]) - <double>oxs_logit(v.spare[i + 1])) * v.scale
        tb += t * b
        tt += t * t
    if n < 2 or not tb > 0:
        return                               # a flat head has no Zipf exponent: nothing to cut
    s = tb / tt
    e = s - 1
    if e < 1e-9 and e > -1e-9:               # the limit of e / (1 - N^-e) at 0 is 1 / log N
        k = oxs_exp(m.mu * OXS_LN2) / oxs_log(f.vocab)
    else:
        k = e * oxs_exp(m.mu * OXS_LN2) / (1 - oxs_pow(f.vocab, -e))
    k = oxs_pow(k, 1 / s)
    if k < f.vocab:
        keep_top(v, <int>k if k >= 1 else 1)
