"""Draws tokens: the compiled sampler stages, in a table whose row order is the order in which they run by default.

Map of the file: `Xorshift64` is the random stream; sampler_view.pxi holds the candidates and their selection, sampler_stages.pxi
the stages and their table. `Chain` is a checked, immutable list of ops; `SamplerCore` is one request: it loads a row, runs the
chain, draws, and remembers tokens. `logprobs` reads raw rows. The formulas and their papers are listed in `oxillama/sampling/stages.py`, which validates all
numbers; nothing here allocates or fails while a token is drawn, and no vocabulary is ever sorted (see csrc/sample.h).
"""
import os

import numpy as np

from oxillama.errors import ConfigError, SamplingError

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
    uint64_t oxs_row_cut(const oxs_kernels *k, const float *work, const float *peak, int supers, double ref, double scale,
                         const float *order, float top, double depth, double need, uint64_t *tk, uint64_t *tk2, double *w, double *tw, float *f)
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
cdef double LOW_WEIGHT = 48           # exp(-48) and below: weighs next to nothing beside the largest
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
for _i in range(_n_tables):        # OXILLAMA_ISA forces one; a name that is not here is the kernels' to refuse
    if _tables[_i].isa.decode() == os.environ.get("OXILLAMA_ISA"):
        _active = _tables[_i]


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


include "sampler_view.pxi"
include "sampler_stages.pxi"


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
        f.vocab = self.vocab = vocab
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
        f.heads = _bitset([b[0] for b in breakers if len(b) > 1], vocab, "dry_breakers") if len(single) < len(breakers) else NULL
        free(_copy_ids([x for b in breakers for x in b], vocab, "dry_breakers"))       # the check alone
        longer = [x for b in breakers if len(b) > 1 for x in (len(b), *b)]
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
        free(f.heads)
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

    cdef int narrow(self, View *v, const float[::1] logits, const uint32_t[::1] mask) except -3:
        """Loads a row through a mask and runs the chain: what is left in the view may be drawn. 0, BAD_LOGITS or NOTHING_LEFT."""
        cdef const Facts *f = &self.chain.facts
        cdef const uint32_t *bits = NULL
        cdef int at = 0, ran
        if mask is not None:
            bits = &mask[0]
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
        return 0

    cdef int check(self, const float[::1] logits, const uint32_t[::1] mask) except -1:
        cdef int vocab = self.chain.facts.vocab
        if logits.shape[0] != vocab:
            raise SamplingError(f"logits: found {logits.shape[0]}, wanted the vocabulary size {vocab}")
        if mask is not None and mask.shape[0] != (vocab + 31) // 32:
            raise SamplingError(f"mask: found {mask.shape[0]} words, wanted {(vocab + 31) // 32} for a vocabulary of {vocab}")
        return 0

    def sample(self, const float[::1] logits not None, const uint32_t[::1] mask=None, int top=-1):
        """Draws a token from (vocab,) float32 logits; returns its id, -1 for bad logits, or -2 when nothing is left.

        `mask` is a bitset of (ceil(vocab/32),) uint32, a set bit allowing a token. With top >= 0, `last` then holds
        (token, log-probability after all stages, ids of the `top` most likely survivors, their log-probabilities).
        """
        cdef Workspace ws
        cdef View *v
        cdef uint64_t key
        cdef int left
        self.check(logits, mask)
        ws = borrow(self.chain.facts.vocab)
        v = &ws.view
        try:
            left = self.narrow(v, logits, mask)
            if left < 0:
                return left
            key = finish(v, &self.m, self.chain.mirostat, self.chain.tau, self.chain.eta)
            if top >= 0:
                own = log_weight(v, key) - oxs_log(v.mass)
                self.last = (oxs_id(key), own, *(top_values(v, min(top, self.chain.facts.vocab)) if top else ([], [])))
            return oxs_id(key)
        finally:
            give_back(ws)

    def distribution(self, const float[::1] logits not None, const uint32_t[::1] mask=None):
        """What `sample` would draw from: (ids (n,) int32, their probabilities (n,) float64), or -1 or -2 as `sample` returns them.

        The stages of chance take their random numbers; the draw's own number stays in the stream, and mirostat's mu waits for `settle`.
        """
        cdef Workspace ws
        cdef View *v
        cdef int left, i
        cdef int32_t[::1] id_view
        cdef double[::1] share_view
        self.check(logits, mask)
        ws = borrow(self.chain.facts.vocab)
        v = &ws.view
        try:
            left = self.narrow(v, logits, mask)
            if left < 0:
                return left
            materialise(v)
            weigh(v)
            ids, shares = np.empty(v.count, np.int32), np.empty(v.count, np.float64)
            id_view, share_view = ids, shares
            for i in range(v.count):
                id_view[i] = <int32_t>oxs_id(v.key[i])
                share_view[i] = v.w[i] / v.mass
            return ids, shares
        finally:
            give_back(ws)

    def uniform(self):
        """The next number in [0, 1) of the random stream."""
        return oxs_uniform(&self.m.rng)

    def settle(self, double share):
        """Tells mirostat that a token was taken whose probability was `share`."""
        if self.chain.mirostat:
            self.m.mu -= self.chain.eta * (-oxs_log(share) / LN2 - self.chain.tau)

    def pass_over(self, int64_t token):
        """Leaves stream and mu as `sample` would where the mask allows `token` alone; False, and nothing changed, where only a draw can tell.

        That is where Python stages look on, or where bans leave nothing.
        """
        cdef const Facts *f = &self.chain.facts
        cdef const Op *op
        cdef bint chance = True
        cdef int i
        if self.chain.callables or not 0 <= token < f.vocab or (f.allow != NULL and not has(f.allow, <uint32_t>token)):
            return False
        for i in range(f.n_bans):
            if f.bans[i] == token:
                return False
        if self.m.generated < f.min_tokens:
            for i in range(f.n_late):
                if f.late[i] == token:
                    return False
        for i in range(self.chain.n_ops):
            op = &self.chain.ops[i]
            if STAGES[op.code].run == stage_xtc:
                oxs_uniform(&self.m.rng)
            elif STAGES[op.code].run == stage_temperature and op.a == 0:
                chance = False
        if chance:
            oxs_uniform(&self.m.rng)
            self.settle(1.0)
        return True
