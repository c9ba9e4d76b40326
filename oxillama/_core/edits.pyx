"""The sampler stages that edit logits: biases and bans, penalties, DRY.

Formulas and papers are in oxillama/sampling/stages.py; the numpy meaning of each is in tests/reference/sampling_oracle.py.
"""
from libc.stdint cimport int32_t, int64_t

from oxillama._core.candidates cimport View, choose_order, clamp, fold_scale, has
from oxillama._core.history cimport Memory, window_count
from oxillama._core.sample cimport OXS_LARGEST, OXS_NONE, oxs_id, oxs_key, oxs_logit, oxs_set
from oxillama._core.stage cimport ChainParams, Op


cdef void stage_bias(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
    """Adds biases, then bans: always first, on the whole row, so a ban beats any bias."""
    cdef int i
    for i in range(f.n_bias):
        if v.work[f.bias_id[i]] >= -OXS_LARGEST:
            oxs_set(v.work, v.peak, f.bias_id[i], clamp(<double>v.work[f.bias_id[i]] + f.bias[i]))
    for i in range(f.n_bans):
        oxs_set(v.work, v.peak, f.bans[i], OXS_NONE)
    if m.generated < f.min_tokens:
        for i in range(f.n_late):
            oxs_set(v.work, v.peak, f.late[i], OXS_NONE)


cdef inline float penalised(float logit, const Op *op, int count) noexcept nogil:
    cdef double x = logit
    x = x * op.a if x <= 0 else x / op.a
    return clamp(x - (count * op.b + op.c))


cdef void stage_penalties(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
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


cdef int64_t dry_limit(const ChainParams *f, const int32_t *last, int64_t n) noexcept nogil:
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


cdef void stage_dry(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil:
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
