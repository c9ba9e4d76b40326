"""A sampler chain, compiled: its stages as ops, and the token lists that they read."""
from oxillama.errors import ConfigError

from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

from oxillama._core.stage cimport ChainParams, Op
from oxillama._core.stages cimport PYTHON

from oxillama._core.stages import stage_table


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
        cdef ChainParams *f = &self.params
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
        if f.bias == NULL:
            raise MemoryError("sampler chain")
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
        if f.breakers == NULL or self.ops == NULL:
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
            self.chances += name == "xtc"
            self.greedy = self.greedy or (name == "temperature" and op.a == 0)
            if name in ("penalties", "dry"):
                self.keep = -1 if op.d < 0 or self.keep < 0 else max(self.keep, <int64_t>op.d + 1)
        self.names = tuple([o[0] for o in ops])
        self.callables = tuple(callables)

    def __dealloc__(self):
        cdef ChainParams *f = &self.params
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
