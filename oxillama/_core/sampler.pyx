"""Draws tokens: the compiled sampler stages, in a table whose row order is the order in which they run by default.

Map of the file: `Xorshift64` is the random stream. `STAGES` at the foot of the first half is the table of stages, each a nogil
function over a `View` (the candidates), an `Op` (its numbers), the chain's `Facts` and the request's `Memory`. `Chain` is a
checked, immutable list of ops; `SamplerCore` is one request: it loads a row, runs the chain, draws, and remembers tokens.
`logprobs` reads raw rows. The formulas and their papers are listed in `oxillama/sampling/stages.py`, which validates all
numbers; nothing here allocates or fails while a token is drawn, and no vocabulary is ever sorted (see csrc/sample.h).
"""
import os

import numpy as np

from oxillama.errors import ConfigError, SamplingError

from cython.parallel cimport prange
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset


cdef extern from "sample.h" nogil:
    int oxs_available(const oxs_kernels **out)
    double oxs_exp(double x)
    double oxs_log(double x)
    double oxs_pow(double base, double exponent)
    uint64_t oxs_key(float logit, uint32_t id)
    uint32_t oxs_id(uint64_t key)
    float oxs_logit(uint64_t key)
    void oxs_sort(uint64_t *a, int n, uint64_t *spare)
    uint64_t oxs_cut(const uint64_t *key, const double *w, int n, double need, uint64_t *tk, double *tw)
    uint64_t oxs_row_cut(const oxs_kernels *k, const float *work, const float *peak, int supers, double ref, double scale, double need,
                         uint64_t *tk, uint64_t *tk2, double *w, double *tw, float *f)
    float oxs_kth_peak(const float *peak, int n, int k, float *heap)
    int oxs_gather(const float *work, const float *peak, int supers, float least, uint64_t *out)
    void oxs_set(float *work, float *peak, int id, float value)
    float oxs_highest(const float *peak, int n)
    uint64_t oxs_next(uint64_t *state)
    double oxs_uniform(uint64_t *state)
    const float OXS_LARGEST
    const int OXS_SUPER

cdef extern from "<math.h>" nogil:
    double sqrt(double x)
    float nextafterf(float x, float y)
    double nextafter(double x, double y)

cdef uint64_t GOLDEN_SEED = 0x517cc1b727220a95ULL
cdef float NONE = float("-inf")
cdef double LN2 = 0.6931471805599453
cdef double SLACK = 1 - 2.0 ** -22    # a mass or weight within float32 rounding of its bound counts as having reached it
cdef enum:
    SORT_LIMIT = 1024                 # lists up to this length are kept sorted
    PEAK_LIMIT = 512                  # up to this many candidates are selected by the peaks of blocks
    BAD_LOGITS = -1
    NOTHING_LEFT = -2
    PYTHON = 100                      # op codes from here on are Python stages


cdef class Xorshift64:
    """The random stream of the sampler: xorshift64 (Marsaglia 2003), 64 bits of state, the state being the output.

    Each step does x ^= x << 13, x ^= x >> 7, x ^= x << 17. A seed of 0, which would stay 0, stands for 0x517cc1b727220a95.
    """
    cdef uint64_t state

    def __init__(self, seed):
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 64:
            raise ConfigError(f"seed: found {seed!r}, wanted an integer in [0, 2^64)")
        self.state = seed
        if self.state == 0:
            self.state = GOLDEN_SEED

    @classmethod
    def from_raw_state(cls, state):
        """Continue a stream from `raw_state()`; 0 is no state of any stream and raises ConfigError."""
        if not isinstance(state, int) or not 0 < state < 1 << 64:
            raise ConfigError(f"raw state: found {state!r}, wanted an integer in [1, 2^64)")
        return cls(state)

    def raw_state(self):
        """The 64 bits that `from_raw_state` continues from."""
        return self.state

    def next_u64(self):
        """The next 64 bits."""
        return oxs_next(&self.state)

    def next_f32(self):
        """The next number in [0, 1) with 24 bits, exact as a float32: (x >> 40) / 2^24."""
        return oxs_uniform(&self.state)


# ---- instruction sets ----

cdef const oxs_kernels *_tables[8]
cdef int _n_tables = oxs_available(_tables)
cdef const oxs_kernels *_active = _tables[_n_tables - 1]


def instruction_sets():
    """Names of the instruction sets this machine can run the sampler with, plainest first; results never depend on it."""
    return [_tables[i].isa.decode() for i in range(_n_tables)]


def use_instruction_set(str name):
    """Run later draws with the named instruction set (for tests); returns the name used before."""
    global _active
    before = _active.isa.decode()
    for i in range(_n_tables):
        if _tables[i].isa.decode() == name:
            _active = _tables[i]
            _pool.clear()
            return before
    raise ConfigError(f"instruction set: found {name!r}, wanted one of {instruction_sets()}")


# ---- views: the candidates ----

cdef void choose_order(View *v) noexcept nogil:
    if not v.dense and not v.sorted and v.count <= SORT_LIMIT:
        oxs_sort(v.key, v.count, v.spare)
        v.sorted = True
        v.weighed = False


cdef void weigh(View *v) noexcept nogil:
    """Makes ref, mass, moment (and the list's weights) valid; a list is summed in its own order."""
    cdef double out[2]
    cdef double z
    cdef float best
    cdef int i
    if v.weighed:
        return
    v.weighed = True
    if v.dense:
        v.ref = oxs_highest(v.peak, 16 * v.supers)
        v.k.mass(v.work, v.peak, v.supers, v.ref, v.scale, out)
        v.mass = out[0]
        v.moment = out[1]
        return
    best = oxs_logit(v.key[0])
    for i in range(v.count):
        v.logit[i] = oxs_logit(v.key[i])
        if v.logit[i] > best:
            best = v.logit[i]
    for i in range(v.count, (v.count + 7) & ~7):
        v.logit[i] = best
    v.ref = best
    v.k.weigh(v.logit, v.w, v.count, v.ref, v.scale)
    total(v)


cdef void total(View *v) noexcept nogil:
    """Sums mass and moment of a list whose weights are valid."""
    cdef int i
    v.mass = 0
    v.moment = 0
    for i in range(v.count):
        v.mass += v.w[i]
        if v.w[i] > 0:
            v.moment += v.w[i] * ((<double>oxs_logit(v.key[i]) - v.ref) * v.scale)


cdef double entropy(View *v) noexcept nogil:
    """Shannon entropy of the candidates in nats: log(mass) - moment / mass."""
    cdef double h
    weigh(v)
    h = oxs_log(v.mass) - v.moment / v.mass
    return h if h > 0 else 0


cdef void become_list(View *v, int count) noexcept nogil:
    v.dense = False
    v.sorted = False
    v.weighed = False
    v.count = count
    choose_order(v)


cdef void materialise(View *v) noexcept nogil:
    if v.dense:
        become_list(v, oxs_gather(v.work, v.peak, v.supers, -OXS_LARGEST, v.key))


cdef void keep_from(View *v, uint64_t least) noexcept nogil:
    """Keeps the list's keys >= least, with their weights when these are valid."""
    cdef int i, n = 0
    for i in range(v.count):
        if v.key[i] >= least:
            v.key[n] = v.key[i]
            v.w[n] = v.w[i]
            n += 1
    shrink(v, n)


cdef void shrink(View *v, int n) noexcept nogil:
    """The list lost elements but not its first: sums are made anew, and a short list is sorted."""
    if n == v.count:
        return
    v.count = n
    if not v.sorted and n <= SORT_LIMIT:
        choose_order(v)
    elif v.weighed:
        total(v)


cdef int gather_top(View *v, int k) noexcept nogil:
    """Writes to `key`, sorted, the candidates of a dense view down to the k-th block peak; -1 when they are too many to sort.

    At least min(k, candidates) keys come back, and all candidates above the last of them are among them.
    """
    cdef int n
    cdef int blocks = 16 * v.supers
    cdef float least = -OXS_LARGEST
    if k < blocks:
        least = oxs_kth_peak(v.peak, blocks, k, v.logit)
    n = oxs_gather(v.work, v.peak, v.supers, least, v.key)
    if n > 2 * SORT_LIMIT:
        return -1
    oxs_sort(v.key, n, v.spare)
    return n


cdef uint64_t row_cut(View *v, double scale, double need) noexcept nogil:
    """Of a dense view with a valid ref: the smallest key of the shortest descending run with mass (count at scale 0) >= need."""
    return oxs_row_cut(v.k, v.work, v.peak, v.supers, v.ref, scale, need, v.key, v.spare, v.w, v.spare_w, v.logit)


cdef void keep_row_from(View *v, uint64_t least) noexcept nogil:
    """Keeps the keys >= least of a dense view; it stays dense while many are left."""
    cdef float bound = oxs_logit(least)
    cdef int i, left = drop_below(v, bound)
    for i in range(<int>oxs_id(least) + 1, v.supers * OXS_SUPER):     # equal logits of higher ids
        if v.work[i] == bound:
            oxs_set(v.work, v.peak, i, NONE)
            left -= 1
    if 4 * left <= v.vocab or left <= SORT_LIMIT:
        materialise(v)


cdef int drop_below(View *v, float bound) noexcept nogil:
    v.weighed = False
    return v.k.drop(v.work, v.peak, v.supers, bound)


cdef void keep_top(View *v, int k) noexcept nogil:
    """Keeps the k largest candidates."""
    cdef int n
    if v.dense and k <= PEAK_LIMIT:
        n = gather_top(v, k)
        if n >= 0:
            v.dense = False
            v.sorted = True
            v.weighed = False
            v.count = n if n < k else k
            return
    if v.dense:
        v.ref = oxs_highest(v.peak, 16 * v.supers)
        keep_row_from(v, row_cut(v, 0, k))
    elif k < v.count:
        if v.sorted:
            shrink(v, k)
        else:
            v.weighed = False
            keep_from(v, oxs_cut(v.key, NULL, v.count, k, v.spare, v.spare_w))


cdef void keep_above(View *v, double bound) noexcept nogil:
    """Keeps candidates whose row logit is at least `bound`, which lies at or below the largest."""
    cdef float least
    cdef int i, n = 0
    if not bound > -OXS_LARGEST:
        return
    least = <float>bound
    if least < bound:
        least = nextafterf(least, OXS_LARGEST)
    if v.dense:
        for i in range(16 * v.supers):
            n += v.peak[i] >= least
        if n > PEAK_LIMIT:
            n = drop_below(v, least)
            if 4 * n > v.vocab and n > SORT_LIMIT:
                return
        become_list(v, oxs_gather(v.work, v.peak, v.supers, least, v.key))
        return
    for i in range(v.count):
        if oxs_logit(v.key[i]) >= least:
            v.key[n] = v.key[i]
            v.w[n] = v.w[i]
            n += 1
    shrink(v, n)


cdef void keep_heavy(View *v, double least) noexcept nogil:
    """Keeps candidates whose weight (1 for the most likely) is at least `least`; the most likely always stay."""
    if not least > 0:
        return
    if not v.weighed:       # the largest logit is all that is needed
        if v.dense:
            v.ref = oxs_highest(v.peak, 16 * v.supers)
        else:
            weigh(v)
    keep_above(v, v.ref + oxs_log((least if least < 1 else 1) * SLACK) / v.scale)


cdef int grow_to_mass(View *v, double need) noexcept nogil:
    """On a dense, weighed view: the length of the shortest sorted prefix in `key` with mass >= need, or -1 when it is long."""
    cdef int i, n, k = 40
    cdef double done
    while k <= PEAK_LIMIT:
        if 2 * k < need:          # no weight is above 1: so few tokens can hardly reach it
            k *= 6
            continue
        n = gather_top(v, k)
        if n < 0:
            return -1
        for i in range(n):
            v.logit[i] = oxs_logit(v.key[i])
        for i in range(n, (n + 7) & ~7):
            v.logit[i] = <float>v.ref
        v.k.weigh(v.logit, v.w, n, v.ref, v.scale)
        done = 0
        for i in range(n):
            done += v.w[i]
            if done >= need:
                return i + 1
        if n < k:
            return n      # all candidates: the rest is rounding
        k *= 6
    return -1


cdef void fold_scale(View *v) noexcept nogil:
    """Writes the temperature into the logits, so that a stage that edits logits sees the current ones."""
    cdef int i
    if v.scale == 1:
        return
    if v.dense:
        for i in range(v.supers * OXS_SUPER):
            v.work[i] = clamp(v.work[i] * v.scale) if v.work[i] >= -OXS_LARGEST else v.work[i]
        for i in range(16 * v.supers):
            v.peak[i] = clamp(v.peak[i] * v.scale) if v.peak[i] >= -OXS_LARGEST else v.peak[i]
    else:
        for i in range(v.count):
            v.key[i] = oxs_key(clamp(oxs_logit(v.key[i]) * v.scale), oxs_id(v.key[i]))
        v.sorted = False
        choose_order(v)
    v.scale = 1
    v.weighed = False


cdef inline float clamp(double x) noexcept nogil:
    """Rounds to a finite float32 without a negative zero: an edited logit never becomes a ban by overflow."""
    if x > OXS_LARGEST:
        return OXS_LARGEST
    if x < -OXS_LARGEST:
        return -OXS_LARGEST
    return <float>x + <float>0


cdef inline bint has(const uint32_t *bits, uint32_t id) noexcept nogil:
    return bits != NULL and (bits[id >> 5] >> (id & 31)) & 1


# ---- stages ----

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
    if m.used == 0:
        return
    fold_scale(v)
    if v.dense:
        for s in range(m.slots):
            id = m.slot_token[s]
            if id >= 0 and m.slot_count[s] > 0 and v.work[id] >= -OXS_LARGEST:
                oxs_set(v.work, v.peak, id, penalised(v.work[id], op, m.slot_count[s]))
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
        at = 0
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
    cdef double h, log_mass, d
    cdef uint64_t least
    cdef int i, n = 0
    materialise(v)
    h = entropy(v)
    log_mass = oxs_log(v.mass)
    for i in range(v.count):
        d = log_mass - ((<double>oxs_logit(v.key[i]) - v.ref) * v.scale) - h
        v.spare[i] = oxs_key(-<float>(d if d > 0 else -d), oxs_id(v.key[i]))
    least = oxs_cut(v.spare, v.w, v.count, op.a * v.mass * SLACK, v.other, v.spare_w)
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
            keep_row_from(v, row_cut(v, v.scale, need))
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


# ---- the penalty window: token -> count ----

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


# ---- workspace ----

cdef dict _pool = {}        # vocabulary size -> workspaces not in use: one exists for each draw in flight, shared by all requests


cdef class Workspace:
    """Scratch for one draw over one vocabulary: never part of a request's state."""

    def __cinit__(self, int vocab):
        cdef View *v = &self.view
        cdef size_t n
        cdef char *p
        v.k = _active
        v.vocab = vocab
        v.supers = (vocab + OXS_SUPER - 1) // OXS_SUPER
        n = <size_t>v.supers * OXS_SUPER
        self.block = <char *>calloc(n * 53 + 64, 1)
        if self.block == NULL:
            raise MemoryError("sampler workspace")
        p = self.block + (64 - <size_t>self.block % 64)
        v.key = <uint64_t *>p
        v.w = <double *>(p + n * 8)
        v.spare = <uint64_t *>(p + n * 16)
        v.spare_w = <double *>(p + n * 24)
        v.other = <uint64_t *>(p + n * 32)
        v.work = <float *>(p + n * 40)
        v.logit = <float *>(p + n * 44)
        v.mark = <int32_t *>(p + n * 48)
        v.peak = <float *>(p + n * 52)

    def __dealloc__(self):
        free(self.block)


cdef Workspace borrow(int vocab):
    cdef list free_ones = _pool.get(vocab)
    if free_ones:
        return free_ones.pop()
    return Workspace(vocab)


cdef void give_back(Workspace ws):
    _pool.setdefault(ws.view.vocab, []).append(ws)


# ---- one draw ----

cdef int begin(View *v, const Facts *f, const float *logits, const uint32_t *mask) noexcept nogil:
    """Loads the row through the mask and the allowed tokens; the view is dense and untouched by temperature."""
    cdef uint32_t *both = <uint32_t *>v.spare
    cdef int i
    v.dense = True
    v.sorted = v.weighed = v.greedy = False
    v.scale = 1
    v.count = 0
    if f.allow != NULL:
        if mask == NULL:
            mask = f.allow
        else:
            for i in range((f.vocab + 31) // 32):
                both[i] = mask[i] & f.allow[i]
            mask = both
    return BAD_LOGITS if v.k.load(v.work, v.peak, logits, f.vocab, mask) else 0


cdef int run_ops(View *v, const Op *ops, int count, const Facts *f, Memory *m) noexcept nogil:
    """Runs compiled stages up to the first Python stage; returns how many ran, or NOTHING_LEFT."""
    cdef int i
    for i in range(count):
        if ops[i].code >= PYTHON:
            return i
        STAGES[ops[i].code].run(v, &ops[i], f, m)
        if ops[i].code == 0 and not oxs_highest(v.peak, 16 * v.supers) >= -OXS_LARGEST:
            return NOTHING_LEFT                 # after bans and mask; no later stage removes the last one
    return count


cdef uint64_t finish(View *v, Memory *m, int mirostat, double tau, double eta) noexcept nogil:
    """Draws by inverting the cumulative mass in descending order; returns the key of the token. Takes one random number
    unless the choice was greedy."""
    cdef double target, done = 0
    cdef uint64_t key
    cdef int i, n
    if v.greedy:
        weigh(v)
        return v.key[0]
    weigh(v)
    target = nextafter(oxs_uniform(&m.rng) * v.mass, 1e300)     # the first token whose cumulative mass is above u * mass
    if v.dense:
        n = grow_to_mass(v, target)
        key = v.key[n - 1] if n > 0 else row_cut(v, v.scale, target)
    elif v.sorted:
        key = v.key[v.count - 1]
        for i in range(v.count):
            done += v.w[i]
            if done >= target:
                key = v.key[i]
                break
    else:
        key = oxs_cut(v.key, v.w, v.count, target, v.spare, v.spare_w)
    if mirostat:
        m.mu -= eta * ((oxs_log(v.mass) - log_weight(v, key)) / LN2 - tau)
    return key


cdef inline double log_weight(const View *v, uint64_t key) noexcept nogil:
    return (<double>oxs_logit(key) - v.ref) * v.scale


cdef tuple top_values(View *v, int k):
    """The k most likely candidates of a weighed view and their log-probabilities; consumes the view."""
    cdef double log_mass = oxs_log(v.mass), ref = v.ref
    cdef int i
    keep_top(v, k)
    materialise(v)
    if not v.sorted:
        oxs_sort(v.key, v.count, v.spare)
    v.ref = ref
    ids = [oxs_id(v.key[i]) for i in range(v.count)]
    return ids, [log_weight(v, v.key[i]) - log_mass for i in range(v.count)]


def logprobs(const float[::1] logits not None, int64_t token, int top):
    """Log-softmax of a raw row: (log-probability of `token`, ids of the `top` most likely, their log-probabilities).

    `logits` is (vocab,) float32. A token with a logit of -inf has -inf. Raises SamplingError for NaN, +inf or all -inf, and for a
    token or `top` outside the vocabulary.
    """
    cdef int vocab = <int>logits.shape[0]
    cdef Workspace ws
    cdef View *v
    cdef double own
    cdef Facts none
    if not 0 <= token < vocab or not 0 <= top <= vocab:
        raise SamplingError(f"logprobs: found token {token} and top {top}, wanted both within a vocabulary of {vocab}")
    memset(&none, 0, sizeof(Facts))
    none.vocab = vocab
    ws = borrow(vocab)
    v = &ws.view
    try:
        if begin(v, &none, &logits[0], NULL) == BAD_LOGITS:
            raise SamplingError("logits: found NaN or +inf, wanted finite numbers or -inf")
        if not oxs_highest(v.peak, 16 * v.supers) >= -OXS_LARGEST:
            raise SamplingError("logits: all are -inf, wanted at least one finite number")
        weigh(v)
        own = (<double>logits[token] - v.ref) - oxs_log(v.mass)
        ids, values = top_values(v, top) if top else ([], [])
        return own, ids, values
    finally:
        give_back(ws)


cdef int32_t *_copy_ids(object ids, int vocab, str name) except? NULL:
    """A malloc'ed int32 copy of token ids, each checked against the vocabulary; room for at least one."""
    cdef Py_ssize_t i, n = len(ids)
    cdef int32_t *out = <int32_t *>malloc((n + 1) * 4)
    if out == NULL:
        raise MemoryError(name)
    for i in range(n):
        token = ids[i]
        if not 0 <= token < vocab:
            free(out)
            raise ConfigError(f"{name}: found token {token}, wanted ids below the vocabulary size {vocab}")
        out[i] = token
    return out


cdef uint32_t *_bitset(object ids, int vocab, str name) except? NULL:
    cdef int32_t *list_of = _copy_ids(ids, vocab, name)
    cdef uint32_t *bits = <uint32_t *>calloc((vocab + 31) // 32, 4)
    cdef Py_ssize_t i
    if bits == NULL:
        free(list_of)
        raise MemoryError(name)
    for i in range(len(ids)):
        bits[list_of[i] >> 5] |= <uint32_t>1 << (list_of[i] & 31)
    free(list_of)
    return bits


cdef class Chain:
    """A compiled, immutable list of stages with the token lists they read; any number of requests share one.

    `ops` is a sequence of (name, a, b, c, d) for compiled stages or (name, callable) for Python stages; the first is "bias".
    Numbers are validated by `oxillama.sampling`, token ids here.
    """

    def __cinit__(self, int vocab, ops, *, bans=(), late=(), int64_t min_tokens=0, bias=None, allow=None, special=(), breakers=()):
        cdef Facts *f = &self.facts
        cdef int i
        cdef Op *op
        if not 0 < vocab < 1 << 28:
            raise ConfigError(f"vocab_size: found {vocab}, wanted 1 to 2^28")
        ops = list(ops)
        table = stage_table()
        f.vocab = vocab
        f.bans = _copy_ids(bans, vocab, "banned_tokens")
        f.n_bans = len(bans)
        f.late = _copy_ids(late, vocab, "eog_ids")
        f.n_late = len(late)
        f.min_tokens = min_tokens
        bias = dict(bias or {})
        f.bias_id = _copy_ids(list(bias), vocab, "logit_bias")
        f.bias = <float *>malloc((len(bias) + 1) * 4)
        f.n_bias = len(bias)
        for i, value in enumerate(bias.values()):
            f.bias[i] = value
        f.allow = _bitset(allow, vocab, "allowed_tokens") if allow is not None else NULL
        f.special = _bitset(special, vocab, "special_ids") if len(special) else NULL
        single = [b[0] for b in breakers if len(b) == 1]
        f.single = _bitset(single, vocab, "dry_breakers") if single else NULL
        longer = [x for b in breakers if len(b) > 1 for x in (len(b), *b)]
        for b in breakers:
            free(_copy_ids(b, vocab, "dry_breakers"))       # the check alone
        f.breakers = <int32_t *>malloc((len(longer) + 1) * 4)
        f.n_breakers = len(longer)
        self.ops = <Op *>calloc(len(ops) + 1, sizeof(Op))
        if f.breakers == NULL or f.bias == NULL or self.ops == NULL:
            raise MemoryError("sampler chain")
        for i in range(len(longer)):
            f.breakers[i] = longer[i]
        self.n_ops = len(ops)
        self.keep = 0
        callables = []
        for i in range(len(ops)):
            op = &self.ops[i]
            if callable(ops[i][1]):
                op.code = PYTHON + len(callables)
                callables.append(ops[i])
                continue
            name, op.a, op.b, op.c, op.d = ops[i]
            op.code = table.index(name)
            if name == "penalties":
                self.window = <int64_t>op.d
            if name == "mirostat":
                self.mirostat, self.tau, self.eta = <int>op.a, op.b, op.c
            if name in ("penalties", "dry"):
                self.keep = -1 if op.d < 0 or self.keep < 0 else max(self.keep, <int64_t>op.d + 1)
        self.names = tuple([o[0] for o in ops])
        self.callables = tuple(callables)

    def __dealloc__(self):
        cdef Facts *f = &self.facts
        free(f.bans)
        free(f.late)
        free(f.bias_id)
        free(f.bias)
        free(f.allow)
        free(f.special)
        free(f.single)
        free(f.breakers)
        free(self.ops)


cdef class SamplerCore:
    """One request's sampler: a chain, a random stream, and what was seen so far. Not for use from two threads at once."""

    def __cinit__(self, Chain chain not None, uint64_t rng):
        self.chain = chain
        self.m.rng = rng
        self.m.mu = 2 * chain.tau
        window_rebuild(&self.m, chain.window)

    def __dealloc__(self):
        free(self.m.history)
        free(self.m.run)
        free(self.m.slot_token)
        free(self.m.slot_count)

    @property
    def rng(self):
        """The raw state of the random stream."""
        return self.m.rng

    @property
    def mu(self):
        """Mirostat's current bound on surprise, in bits."""
        return self.m.mu

    @property
    def generated(self):
        """How many tokens were accepted after the prompt."""
        return self.m.generated

    @property
    def history(self):
        """The newest tokens, as far back as any stage looks: (n,) int32, a copy."""
        out = np.empty(self.m.length, np.int32)
        cdef int32_t[::1] view = out
        if self.m.length:
            memcpy(&view[0], self.m.history, self.m.length * 4)
        return out

    cdef int grow(self, int64_t more) except -1:
        cdef Memory *m = &self.m
        cdef int64_t keep = self.chain.keep, room
        if m.length + more <= m.room:
            return 0
        if keep >= 0 and m.length > keep:
            memmove(m.history, m.history + (m.length - keep), keep * 4)
            m.length = keep
        room = 2 * (m.length + more) + 256
        if room > m.room:
            history = <int32_t *>realloc(m.history, room * 4)
            if history == NULL:
                raise MemoryError("sampler history")
            m.history = history
            run = <int32_t *>realloc(m.run, room * 4)
            if run == NULL:
                raise MemoryError("sampler history")
            m.run = run
            m.room = room
        return 0

    cdef int take(self, int32_t token) except -1:
        cdef Memory *m = &self.m
        cdef int64_t window = self.chain.window
        self.grow(1)
        m.history[m.length] = token
        m.length += 1
        if window != 0:
            window_add(m, token, 1)
            if 0 < window < m.length:
                window_add(m, m.history[m.length - 1 - window], -1)
            if 2 * m.used > m.slots:
                window_rebuild(m, window)
        return 0

    def accept(self, int64_t token):
        """Adds a drawn token to the history."""
        if not 0 <= token < self.chain.facts.vocab:
            raise SamplingError(f"accept: found token {token}, wanted an id below the vocabulary size {self.chain.facts.vocab}")
        self.take(<int32_t>token)
        self.m.generated += 1

    def accept_prompt(self, const int32_t[::1] tokens not None):
        """Adds prompt tokens to the history; all are checked before any is added."""
        cdef Py_ssize_t i
        for i in range(tokens.shape[0]):
            if not 0 <= tokens[i] < self.chain.facts.vocab:
                raise SamplingError(f"accept_prompt: found token {tokens[i]}, wanted ids below the vocabulary size {self.chain.facts.vocab}")
        for i in range(tokens.shape[0]):
            self.take(tokens[i])

    def load(self, uint64_t rng, double mu, int64_t generated, const int32_t[::1] history not None):
        """Replaces everything this request remembers."""
        cdef Memory *m = &self.m
        cdef Py_ssize_t i
        for i in range(history.shape[0]):
            if not 0 <= history[i] < self.chain.facts.vocab:
                raise SamplingError(f"sampler state: found token {history[i]}, wanted ids below the vocabulary size {self.chain.facts.vocab}")
        m.rng = rng
        m.mu = mu
        m.generated = generated
        m.length = 0
        self.grow(history.shape[0])
        for i in range(history.shape[0]):
            m.history[i] = history[i]
        m.length = history.shape[0]
        window_rebuild(m, self.chain.window)

    def fork(self):
        """An independent copy that will draw the same tokens."""
        cdef SamplerCore twin = SamplerCore(self.chain, self.m.rng)
        twin.load(self.m.rng, self.m.mu, self.m.generated, self.history)
        return twin

    def recent(self):
        """The history as far back as the chain promises to look, for `load`: (n,) int32."""
        history = self.history
        return history if self.chain.keep < 0 else history[max(0, len(history) - self.chain.keep):]

    cdef int call_stage(self, View *v, int index) except -1:
        """Lets a Python stage rewrite the current logits: fn(ids (n,) int32, logits (n,) float32) -> logits or None."""
        cdef int i, n = 0
        cdef float x
        cdef const float[::1] result
        cdef int32_t[::1] ids_view
        cdef float[::1] logits_view
        fold_scale(v)
        materialise(v)
        ids = np.empty(v.count, np.int32)
        logits = np.empty(v.count, np.float32)
        ids_view = ids
        logits_view = logits
        for i in range(v.count):
            ids_view[i] = <int32_t>oxs_id(v.key[i])
            logits_view[i] = oxs_logit(v.key[i])
        name, stage = self.chain.callables[index]
        before = ids.copy()
        out = stage(ids, logits)
        out = np.ascontiguousarray(logits if out is None else out, dtype=np.float32)
        if out.shape != (v.count,):
            raise SamplingError(f"stage {name}: found logits of shape {out.shape}, wanted ({v.count},)")
        result = out
        ids_view = before
        for i in range(v.count):
            x = result[i]
            if not x <= OXS_LARGEST:
                raise SamplingError(f"stage {name}: found a logit of {x}, wanted finite numbers or -inf")
            if x >= -OXS_LARGEST:
                v.key[n] = oxs_key(clamp(x), <uint32_t>ids_view[i])
                n += 1
        if n == 0:
            raise SamplingError(f"stage {name}: removed every candidate, wanted at least one left")
        become_list(v, n)
        return 0

    def sample(self, const float[::1] logits not None, const uint32_t[::1] mask=None, int top=-1):
        """Draws a token from (vocab,) float32 logits; returns its id, -1 for bad logits, or -2 when nothing is left.

        `mask` is a bitset of (ceil(vocab/32),) uint32, a set bit allowing a token. With top >= 0, `last` then holds
        (token, log-probability after all stages, ids of the `top` most likely survivors, their log-probabilities).
        """
        cdef const Facts *f = &self.chain.facts
        cdef const uint32_t *bits = NULL
        cdef Workspace ws
        cdef View *v
        cdef uint64_t key
        cdef int at = 0, ran
        if logits.shape[0] != f.vocab:
            raise SamplingError(f"logits: found {logits.shape[0]}, wanted the vocabulary size {f.vocab}")
        if mask is not None:
            if mask.shape[0] != (f.vocab + 31) // 32:
                raise SamplingError(f"mask: found {mask.shape[0]} words, wanted {(f.vocab + 31) // 32} for a vocabulary of {f.vocab}")
            bits = &mask[0]
        ws = borrow(f.vocab)
        v = &ws.view
        try:
            if begin(v, f, &logits[0], bits) < 0:
                return BAD_LOGITS
            while at < self.chain.n_ops:
                ran = run_ops(v, self.chain.ops + at, self.chain.n_ops - at, f, &self.m)
                if ran < 0:
                    return NOTHING_LEFT
                at += ran
                if at < self.chain.n_ops:
                    self.call_stage(v, self.chain.ops[at].code - PYTHON)
                    at += 1
            key = finish(v, &self.m, self.chain.mirostat, self.chain.tau, self.chain.eta)
            if top >= 0:
                own = log_weight(v, key) - oxs_log(v.mass)
                self.last = (oxs_id(key), own, *(top_values(v, min(top, f.vocab)) if top else ([], [])))
            return oxs_id(key)
        finally:
            give_back(ws)
