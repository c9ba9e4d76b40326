# The sampler's stages, and the table whose row order is their default order. Part of sampler.pyx.
#
# A stage is a nogil function over a view (the candidates), an op (its numbers, a to d), the chain's facts and the request's memory.
# Formulas and papers are in oxillama/sampling/stages.py; the numpy meaning of each is in tests/reference/sampling_oracle.py.

cdef int64_t find_slot(const Memory *m, int32_t token) noexcept nogil:
    cdef uint64_t h = <uint64_t>token * 0x9e3779b97f4a7c15ULL
    cdef int64_t s = <int64_t>(h >> 32) & (m.slots - 1)
    while m.slot_token[s] >= 0 and m.slot_token[s] != token:
        s = (s + 1) & (m.slots - 1)
    return s


cdef int window_count(const Memory *m, int32_t token) noexcept nogil:
    cdef int64_t s = find_slot(m, token)
    return m.slot_count[s] if m.slot_token[s] == token else 0


cdef void window_add(Memory *m, int32_t token, int by) noexcept nogil:
    cdef int64_t s = find_slot(m, token)
    if m.slot_token[s] < 0:
        m.slot_token[s] = token
        m.slot_count[s] = 0
        m.used += 1
    m.slot_count[s] += by


cdef int window_rebuild(Memory *m, int64_t window) except -1:
    """Makes the counts anew from the history, with room for twice the distinct tokens."""
    cdef int64_t n = m.length if window < 0 or window > m.length else window
    cdef int64_t slots = 64, i, distinct = 0
    for i in range(m.slots):
        distinct += m.slot_token[i] >= 0 and m.slot_count[i] > 0
    while slots < 4 * (distinct + 1):
        slots *= 2
    while True:
        if slots != m.slots:
            free(m.slot_token)
            free(m.slot_count)
            m.slot_token = <int32_t *>malloc(slots * 4)
            m.slot_count = <int32_t *>malloc(slots * 4)
            if m.slot_token == NULL or m.slot_count == NULL:
                raise MemoryError("penalty window")
            m.slots = slots
        memset(m.slot_token, 0xff, slots * 4)
        m.used = 0
        for i in range(m.length - n, m.length):
            if m.used * 2 >= m.slots:
                break
            window_add(m, m.history[i], 1)
        else:
            return 0
        slots *= 2


ctypedef void (*Stage)(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil


cdef void stage_bias(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """Adds biases, then bans: always first, on the whole row, so a ban beats any bias."""
    cdef int i
    for i in range(f.n_bias):
        if v.work[f.bias_id[i]] >= -OXS_LARGEST:
            oxs_set(v.work, v.peak, f.bias_id[i], clamp(<double>v.work[f.bias_id[i]] + f.bias[i]))
    for i in range(f.n_bans):
        oxs_set(v.work, v.peak, f.bans[i], NONE)
    if m.generated < f.min_tokens:
        for i in range(f.n_late):
            oxs_set(v.work, v.peak, f.late[i], NONE)


cdef inline float penalised(float logit, const Op *op, int count) noexcept nogil:
    cdef double x = logit
    x = x * op.a if x <= 0 else x / op.a
    return clamp(x - (count * op.b + op.c))


cdef void stage_penalties(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a repetition, b frequency, c presence, d window: each distinct token of the window once."""
    cdef int64_t s
    cdef int i, n
    cdef int32_t id
    cdef float x
    if m.used == 0:
        return
    fold_scale(v)
    if v.dense:
        for s in range(m.slots):
            id = m.slot_token[s]
            if id < 0 or m.slot_count[s] == 0 or not v.work[id] >= -OXS_LARGEST:
                continue
            x = penalised(v.work[id], op, m.slot_count[s])
            if m.used < v.supers:
                oxs_set(v.work, v.peak, id, x)
            else:
                v.work[id] = x
        if m.used >= v.supers:          # so many edits: one pass over the row renews all peaks
            v.k.sift(v.work, v.peak, v.work, v.supers, -OXS_LARGEST)
    else:
        for i in range(v.count):
            n = window_count(m, <int32_t>oxs_id(v.key[i]))
            if n > 0:
                v.key[i] = oxs_key(penalised(oxs_logit(v.key[i]), op, n), oxs_id(v.key[i]))
        v.sorted = False
        choose_order(v)
    v.weighed = False


cdef int64_t dry_limit(const Facts *f, const int32_t *last, int64_t n) noexcept nogil:
    """How many of the last n tokens (last[0] is the newest, going down in memory) follow the newest sequence breaker."""
    cdef int64_t i, j
    cdef int at, size, best
    for i in range(n):
        best = 1 if has(f.single, last[-i]) else 0
        at = 0 if has(f.heads, last[-i]) else f.n_breakers
        while at < f.n_breakers:
            size = f.breakers[at]
            if size > best and size <= i + 1:
                for j in range(size):
                    if last[-i + j] != f.breakers[at + 1 + j]:
                        break
                else:
                    best = size
            at += size + 1
        if best > 0:
            return i - (best - 1)
    return n


cdef void stage_dry(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a multiplier, b base, c allowed length, d window: lowers tokens that would lengthen a repetition of the newest tokens."""
    cdef int64_t n = m.length, limit, i, size, left = 0, right = 0
    cdef const int32_t *last
    cdef int32_t *run = m.run       # run[i]: length of the common suffix of the history and the history without its last i
    cdef int32_t id
    cdef int k
    if op.d >= 0 and n > op.d:
        n = <int64_t>op.d
    if n <= op.c:
        return
    last = m.history + m.length - 1
    limit = dry_limit(f, last, n)
    if limit < op.c:
        return
    fold_scale(v)
    # The Z-algorithm on the reversed history: linear in n. [left, right] is the known match that reaches furthest back.
    for i in range(1, n):
        size = 0
        if i <= right:
            size = run[i - left]
            if size > right - i + 1:
                size = right - i + 1
        while size + i < n and last[-size] == last[-size - i]:
            size += 1
        run[i] = <int32_t>size
        if size + i - 1 > right:
            left = i
            right = size + i - 1
    for i in range(1, n):                           # the token after the earlier occurrence would continue it
        size = run[i] if run[i] < limit else limit
        id = last[1 - i]
        if size >= op.c and size > v.mark[id] and not has(f.single, id):
            v.mark[id] = <int32_t>size
    if v.dense:
        for i in range(1, n):
            id = last[1 - i]
            if v.mark[id] > 0:
                if v.work[id] >= -OXS_LARGEST:
                    oxs_set(v.work, v.peak, id, clamp(v.work[id] - dry_penalty(op, v.mark[id])))
                v.mark[id] = 0
    else:
        for k in range(v.count):
            id = <int32_t>oxs_id(v.key[k])
            if v.mark[id] > 0:
                v.key[k] = oxs_key(clamp(oxs_logit(v.key[k]) - dry_penalty(op, v.mark[id])), id)
        for i in range(1, n):
            v.mark[last[1 - i]] = 0
        v.sorted = False
        choose_order(v)
    v.weighed = False


cdef double dry_penalty(const Op *op, int size) noexcept nogil:
    cdef double p = op.a
    cdef int i
    for i in range(size - <int>op.c):
        p *= op.b
        if p > OXS_LARGEST or op.b == 1:
            break
    return p if p < OXS_LARGEST else OXS_LARGEST


cdef void stage_mask(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """The mask is applied while the row is loaded: it only removes, so doing it earlier changes nothing."""


cdef void stage_top_n_sigma(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
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
            v.logit[i] = NONE
        v.k.spread(v.logit, n, v.ref, out)
    mean = out[1] / out[0]
    variance = out[2] / out[0] - mean * mean
    bound = v.ref - op.a * (sqrt(variance) if variance > 0 else 0)
    keep_above(v, bound)


cdef void stage_top_k(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a: keeps the a largest logits."""
    if op.a < v.vocab:
        keep_top(v, <int>op.a)


cdef void stage_typical(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a: keeps the tokens whose surprise is nearest to the entropy, up to mass a."""
    cdef double center = -entropy(v)        # plus log(mass): the log-weight of a token whose surprise is the entropy
    cdef double need
    cdef float *order = <float *>v.other
    cdef float top = NONE
    cdef uint64_t least
    cdef int i, n = 0
    center += oxs_log(v.mass)
    need = op.a * v.mass * SLACK
    if v.dense:
        v.k.nearness(v.work, order, v.supers * OXS_SUPER, v.ref, v.scale, center)
        for i in range(v.supers * OXS_SUPER):
            top = order[i] if order[i] > top else top
        least = oxs_row_cut(v.k, v.work, v.peak, v.supers, v.ref, v.scale, order, top, LOW_WEIGHT, need, v.key, v.spare, v.w, v.spare_w, v.logit)
        keep_row_from(v, order, least)
        return
    for i in range((v.count + 7) & ~7):
        v.logit[i] = oxs_logit(v.key[i]) if i < v.count else NONE
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


cdef void stage_top_a(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a: keeps probabilities of at least a * (largest probability)^2."""
    weigh(v)
    keep_heavy(v, op.a / v.mass)


cdef void stage_eta(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a: keeps probabilities of at least min(a, sqrt(a) * exp(-entropy))."""
    cdef double bound = sqrt(op.a) * oxs_exp(-entropy(v))
    keep_heavy(v, (bound if bound < op.a else op.a) * v.mass)


cdef void stage_epsilon(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a: keeps probabilities of at least a."""
    weigh(v)
    keep_heavy(v, op.a * v.mass)


cdef void stage_top_p(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a: keeps the most likely tokens whose mass reaches a."""
    cdef double need, done = 0
    cdef int i, n
    weigh(v)
    need = op.a * v.mass * SLACK
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


cdef void stage_min_p(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a: keeps probabilities of at least a * (largest probability)."""
    keep_heavy(v, op.a)


cdef void exclude_from_row(View *v, double bound, const Facts *f) noexcept nogil:
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
            oxs_set(v.work, v.peak, <int>oxs_id(v.key[i]), NONE)
    v.weighed = False


cdef void stage_xtc(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a probability, b threshold: of the tokens that reach the threshold, removes all but the least likely."""
    cdef double bound
    cdef uint64_t least = ~<uint64_t>0
    cdef int i, n = 0, reached = 0
    if not oxs_uniform(&m.rng) < op.a:      # one number is taken whatever happens next
        return
    weigh(v)
    if v.dense:
        bound = op.b * SLACK * v.mass
        if bound > 1:                       # not even the most likely token reaches the threshold
            return
        exclude_from_row(v, v.ref + oxs_log(bound) / v.scale, f)
        return
    bound = op.b * v.mass * SLACK
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


cdef void stage_temperature(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
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


cdef void stage_mirostat(View *v, const Op *op, const Facts *f, Memory *m) noexcept nogil:
    """a version (1 or 2): cuts so that the surprise stays near tau; `draw` then moves mu by what was drawn."""
    cdef double t, b, tb = 0, tt = 0, s, e, k
    cdef uint64_t least
    cdef int i, n = 0
    if v.greedy:
        return
    if op.a == 2:
        weigh(v)
        keep_heavy(v, oxs_exp(-m.mu * LN2) * v.mass)
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
        k = oxs_exp(m.mu * LN2) / oxs_log(f.vocab)
    else:
        k = e * oxs_exp(m.mu * LN2) / (1 - oxs_pow(f.vocab, -e))
    k = oxs_pow(k, 1 / s)
    if k < f.vocab:
        keep_top(v, <int>k if k >= 1 else 1)


cdef struct Row:
    const char *name
    Stage run

# The row order is the default order. `oxillama.sampling.stages` documents the same rows.
cdef Row STAGES[15]
STAGES[0] = Row("bias", stage_bias)
STAGES[1] = Row("penalties", stage_penalties)
STAGES[2] = Row("dry", stage_dry)
STAGES[3] = Row("mask", stage_mask)
STAGES[4] = Row("top_n_sigma", stage_top_n_sigma)
STAGES[5] = Row("top_k", stage_top_k)
STAGES[6] = Row("typical", stage_typical)
STAGES[7] = Row("top_a", stage_top_a)
STAGES[8] = Row("eta", stage_eta)
STAGES[9] = Row("epsilon", stage_epsilon)
STAGES[10] = Row("top_p", stage_top_p)
STAGES[11] = Row("min_p", stage_min_p)
STAGES[12] = Row("xtc", stage_xtc)
STAGES[13] = Row("temperature", stage_temperature)
STAGES[14] = Row("mirostat", stage_mirostat)


def stage_table():
    """Names of the compiled stages in their order."""
    return tuple([STAGES[i].name.decode() for i in range(15)])
