"""Draws tokens: one request's compiled sampler, and the log-probabilities of raw rows.

The modules below it, bottom up: sample.pxd (csrc/sample.h), xorshift (the random stream), candidates (the row and its selections), history
(what a request has seen), stage.pxd, edits, cuts, stages (the stages and their table), chain (a checked, immutable list of ops). The
formulas and their papers are listed in `oxillama/sampling/stages.py`, which validates all numbers; nothing allocates or fails while a
token is drawn.
"""
import numpy as np

from oxillama.errors import SamplingError

cimport cython
from libc.math cimport nextafter
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from oxillama._core.candidates cimport (
    View, Workspace, become_list, borrow, clamp, entropy, fold_scale, give_back, grow_to_mass, has, log_weight, materialise, row_cut, top_values,
    weigh,
)
from oxillama._core.chain cimport Chain
from oxillama._core.history cimport Memory, forget, grow, take, window_rebuild
from oxillama._core.sample cimport OXS_LARGEST, OXS_LN2, oxs_cut, oxs_exp, oxs_highest, oxs_id, oxs_key, oxs_log, oxs_logit, oxs_uniform
from oxillama._core.stage cimport ChainParams
from oxillama._core.stages cimport NOTHING_LEFT, PYTHON, run_ops

cdef enum:
    BAD_LOGITS = -1


cdef int begin(View *v, const ChainParams *f, const float *logits, const uint32_t *mask) noexcept nogil:
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
        m.mu -= eta * ((oxs_log(v.mass) - log_weight(v, key)) / OXS_LN2 - tau)
    return key


cdef Workspace raw_row(const float[::1] logits, int64_t token, int top):
    """A raw row, weighed, in a workspace to give back; SamplingError for one that is none, and for a token or `top` that it lacks."""
    cdef int vocab = <int>logits.shape[0]
    cdef Workspace ws
    cdef View *v
    cdef ChainParams none
    if not 0 <= token < vocab or not 0 <= top <= vocab:
        raise SamplingError(f"logprobs: found token {token} and top {top}, wanted both within a vocabulary of {vocab}")
    memset(&none, 0, sizeof(ChainParams))
    none.vocab = vocab
    ws = borrow(vocab)
    v = &ws.view
    try:
        if begin(v, &none, &logits[0], NULL) == BAD_LOGITS:
            raise SamplingError("logits: found NaN or +inf, wanted finite numbers or -inf")
        if not oxs_highest(v.peak, 16 * v.supers) >= -OXS_LARGEST:
            raise SamplingError("logits: all are -inf, wanted at least one finite number")
        weigh(v)
    except BaseException:
        give_back(ws)
        raise
    return ws


def logprobs(const float[::1] logits not None, int64_t token, int top):
    """Log-softmax of a raw row: (log-probability of `token`, ids of the `top` most likely, their log-probabilities).

    `logits` is (vocab,) float32. A token with a logit of -inf has -inf. Raises SamplingError for NaN, +inf or all -inf, and for a
    token or `top` outside the vocabulary.
    """
    cdef View *v
    cdef double own
    cdef Workspace ws = raw_row(logits, token, top)
    v = &ws.view
    try:
        own = (<double>logits[token] - v.ref) - oxs_log(v.mass)
        ids, values = top_values(v, top) if top else ([], [])
        return own, ids, values
    finally:
        give_back(ws)


def certainty(const float[::1] logits not None, int64_t token):
    """How sure a raw row is: (the probability of `token`, that of the likeliest token less that of the second, the entropy in nats).

    Raises SamplingError as `logprobs` does.
    """
    cdef View *v
    cdef double own, spread
    cdef Workspace ws = raw_row(logits, token, 0)
    v = &ws.view
    try:
        own, spread = oxs_exp(<double>logits[token] - v.ref) / v.mass, entropy(v)
        _, values = top_values(v, min(2, v.vocab))
        first, second = values if len(values) == 2 else (values[0], -OXS_LARGEST)
        return own, oxs_exp(first) - oxs_exp(second), spread
    finally:
        give_back(ws)


cdef class SamplerCore:
    """One request's sampler: a chain, a random stream, and what was seen so far. Two threads that use it take turns, in any order."""

    def __cinit__(self, Chain chain not None, uint64_t rng):
        self.chain = chain
        self.m.rng = rng
        self.m.mu = 2 * chain.tau
        window_rebuild(&self.m, chain.window)

    def __dealloc__(self):
        forget(&self.m)

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
    @cython.critical_section
    def history(self):
        """The newest tokens, as far back as any stage looks: (n,) int32, a copy."""
        out = np.empty(self.m.length, np.int32)
        cdef int32_t[::1] view = out
        if self.m.length:
            memcpy(&view[0], self.m.history, self.m.length * 4)
        return out

    @cython.critical_section
    def accept(self, int64_t token):
        """Adds a drawn token to the history."""
        if not 0 <= token < self.chain.params.vocab:
            raise SamplingError(f"accept: found token {token}, wanted an id below the vocabulary size {self.chain.params.vocab}")
        take(&self.m, <int32_t>token, self.chain.keep, self.chain.window)
        self.m.generated += 1

    @cython.critical_section
    def accept_prompt(self, const int32_t[::1] tokens not None):
        """Adds prompt tokens to the history; all are checked before any is added."""
        cdef Py_ssize_t i
        for i in range(tokens.shape[0]):
            if not 0 <= tokens[i] < self.chain.params.vocab:
                raise SamplingError(f"accept_prompt: found token {tokens[i]}, wanted ids below the vocabulary size {self.chain.params.vocab}")
        for i in range(tokens.shape[0]):
            take(&self.m, tokens[i], self.chain.keep, self.chain.window)

    @cython.critical_section
    def load(self, uint64_t rng, double mu, int64_t generated, const int32_t[::1] history not None):
        """Replaces everything this request remembers; nothing of it where memory is refused."""
        cdef Memory made
        cdef Py_ssize_t i
        for i in range(history.shape[0]):
            if not 0 <= history[i] < self.chain.params.vocab:
                raise SamplingError(f"sampler state: found token {history[i]}, wanted ids below the vocabulary size {self.chain.params.vocab}")
        memset(&made, 0, sizeof(Memory))
        made.rng, made.mu, made.generated = rng, mu, generated
        try:
            grow(&made, history.shape[0], self.chain.keep)
            for i in range(history.shape[0]):
                made.history[i] = history[i]
            made.length = history.shape[0]
            window_rebuild(&made, self.chain.window)
        except BaseException:
            forget(&made)
            raise
        forget(&self.m)
        self.m = made

    @cython.critical_section
    def fork(self):
        """An independent copy that will draw the same tokens."""
        cdef SamplerCore twin = SamplerCore(self.chain, self.m.rng)
        twin.load(self.m.rng, self.m.mu, self.m.generated, self.history)
        return twin

    @cython.critical_section
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
        cdef const ChainParams *f = &self.chain.params
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
        cdef int vocab = self.chain.params.vocab
        if logits.shape[0] != vocab:
            raise SamplingError(f"logits: found {logits.shape[0]}, wanted the vocabulary size {vocab}")
        if mask is not None and mask.shape[0] != (vocab + 31) // 32:
            raise SamplingError(f"mask: found {mask.shape[0]} words, wanted {(vocab + 31) // 32} for a vocabulary of {vocab}")
        return 0

    @cython.critical_section
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
        ws = borrow(self.chain.params.vocab)
        v = &ws.view
        try:
            left = self.narrow(v, logits, mask)
            if left < 0:
                return left
            key = finish(v, &self.m, self.chain.mirostat, self.chain.tau, self.chain.eta)
            if top >= 0:
                own = log_weight(v, key) - oxs_log(v.mass)
                self.last = (oxs_id(key), own, *(top_values(v, min(top, self.chain.params.vocab)) if top else ([], [])))
            return oxs_id(key)
        finally:
            give_back(ws)

    @cython.critical_section
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
        ws = borrow(self.chain.params.vocab)
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

    @cython.critical_section
    def uniform(self):
        """The next number in [0, 1) of the random stream."""
        return oxs_uniform(&self.m.rng)

    @cython.critical_section
    def settle(self, double share):
        """Tells mirostat that a token was taken whose probability was `share`."""
        if self.chain.mirostat:
            self.m.mu -= self.chain.eta * (-oxs_log(share) / OXS_LN2 - self.chain.tau)

    @cython.critical_section
    def pass_over(self, int64_t token):
        """Leaves stream and mu as `sample` would where the mask allows `token` alone; False, and nothing changed, where only a draw can tell.

        That is where Python stages look on, or where bans leave nothing.
        """
        cdef const ChainParams *f = &self.chain.params
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
        for i in range(self.chain.chances):
            oxs_uniform(&self.m.rng)
        if not self.chain.greedy:
            oxs_uniform(&self.m.rng)
            self.settle(1.0)
        return True
