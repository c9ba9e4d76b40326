"""The compiled sampler's structures, for the modules that draw tokens without Python in between."""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t


cdef extern from "sample.h" nogil:
    ctypedef struct oxs_kernels:
        const char *isa
        int (*load)(float *work, float *peak, const float *logits, int vocab, const uint32_t *mask) noexcept nogil
        void (*mass)(const float *work, const float *peak, int supers, double ref, double scale, double *out) noexcept nogil
        void (*weigh)(const float *logit, double *w, int count, double ref, double scale) noexcept nogil
        void (*spread)(const float *logit, int count, double ref, double *out) noexcept nogil
        int (*sift)(float *work, float *peak, const float *order, int supers, float least) noexcept nogil
        void (*nearness)(const float *logit, float *order, int count, double ref, double scale, double center) noexcept nogil
        void (*bucket)(const float *logit, int32_t *bucket, int count, float ref, float inverse) noexcept nogil
        float (*lowest)(const float *logit, int count, float best) noexcept nogil


# The candidates while a token is drawn: all of the row (`dense`), or the keys of a list. A current logit is (row logit) * scale.
cdef struct View:
    const oxs_kernels *k
    int vocab
    int supers              # the row is padded to supers * 512
    float *work             # (padded,) logits after bans, bias, penalties and mask
    float *peak             # (padded / 32,) largest logit of each block
    float *logit            # (padded,) scratch: logits of the list
    uint64_t *key           # (padded,) the list
    double *w               # (padded,) its weights, when weighed
    uint64_t *spare         # (padded,) scratch
    uint64_t *other         # (padded,) scratch
    double *spare_w         # (padded,) scratch
    int32_t *mark           # (padded,) zeros between calls
    int count               # of the list
    bint dense
    bint sorted             # the list is in descending order
    bint weighed            # ref, mass, moment (and w of a list) are valid
    bint greedy             # a temperature of 0 chose: nothing is left to chance
    double scale            # 1 / (product of temperatures)
    double ref              # the largest row logit among the candidates
    double mass             # sum of weights exp((logit - ref) * scale)
    double moment           # sum of weight * (logit - ref) * scale


# What a request has seen: it is what `fork` copies and `state` writes.
cdef struct Memory:
    uint64_t rng
    double mu               # mirostat's current bound on surprise, in bits
    int64_t generated       # tokens accepted after the prompt
    int32_t *history        # the last `length` tokens
    int64_t length
    int64_t room
    int32_t *run            # (room,) scratch of DRY
    int32_t *slot_token     # open addressing: token -> count within the penalty window; -1 = empty
    int32_t *slot_count
    int64_t slots           # a power of two
    int64_t used


cdef struct Op:
    int code
    double a
    double b
    double c
    double d


# The unchanging part of a chain that stages read beside their own numbers.
cdef struct Facts:
    int vocab
    int32_t *bans
    int n_bans
    int32_t *late           # banned until `min_tokens` were generated
    int n_late
    int64_t min_tokens
    int32_t *bias_id
    float *bias
    int n_bias
    uint32_t *allow         # bitset or NULL
    uint32_t *special       # bitset or NULL: XTC never removes these
    uint32_t *single        # bitset or NULL: DRY breakers of one token
    uint32_t *heads         # bitset or NULL: first tokens of the DRY breakers of several tokens
    int32_t *breakers       # those breakers: length, tokens, length, tokens ...
    int n_breakers          # ints in `breakers`


cdef class Workspace:
    cdef View view
    cdef char *block


cdef class Chain:
    cdef Facts facts
    cdef Op *ops
    cdef int n_ops
    cdef int64_t window     # of the penalties stage; -1 = everything
    cdef readonly int64_t keep      # tokens of history that any stage reads; -1 = everything
    cdef int mirostat
    cdef double tau
    cdef double eta
    cdef readonly int vocab
    cdef readonly tuple names
    cdef readonly tuple callables


cdef class SamplerCore:
    cdef readonly Chain chain
    cdef Memory m
    cdef readonly object last    # (token, logprob, ids, values) of the last draw, when it was asked for
    cdef int call_stage(self, View *v, int index) except -1
    cdef int grow(self, int64_t more) except -1
    cdef int take(self, int32_t token) except -1
    cdef int narrow(self, View *v, const float[::1] logits, const uint32_t[::1] mask) except -3
    cdef int check(self, const float[::1] logits, const uint32_t[::1] mask) except -1
