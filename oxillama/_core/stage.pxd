"""What a sampler stage is: a nogil function over the candidates, its own numbers, the parameters of the chain and the request's memory."""
from libc.stdint cimport int32_t, int64_t, uint32_t

from oxillama._core.candidates cimport View
from oxillama._core.history cimport Memory


cdef struct Op:
    int code
    double a
    double b
    double c
    double d


# The unchanging part of a chain that stages read besides their own numbers.
cdef struct ChainParams:
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


ctypedef void (*Stage)(View *v, const Op *op, const ChainParams *f, Memory *m) noexcept nogil
