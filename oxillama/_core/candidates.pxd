"""The candidates while a token is drawn: their structure, and the selections that stages make among them."""
from libc.stdint cimport int32_t, uint32_t, uint64_t

from oxillama._core.sample cimport OXS_LARGEST, oxs_kernels, oxs_logit


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


cdef class Workspace:
    cdef View view
    cdef char *block


cdef void choose_order(View *v) noexcept nogil
cdef void weigh(View *v) noexcept nogil
cdef void total(View *v) noexcept nogil
cdef double entropy(View *v) noexcept nogil
cdef void become_list(View *v, int count) noexcept nogil
cdef void materialise(View *v) noexcept nogil
cdef void keep_from(View *v, uint64_t least) noexcept nogil
cdef void shrink(View *v, int n) noexcept nogil
cdef int gather_top(View *v, int k) noexcept nogil
cdef uint64_t row_cut(View *v, double scale, double need) noexcept nogil
cdef void keep_row_from(View *v, const float *order, uint64_t least) noexcept nogil
cdef void keep_top(View *v, int k) noexcept nogil
cdef void keep_above(View *v, double bound) noexcept nogil
cdef void keep_heavy(View *v, double least) noexcept nogil
cdef int grow_to_mass(View *v, double need) noexcept nogil
cdef void fold_scale(View *v) noexcept nogil
cdef tuple top_values(View *v, int k)
cdef Workspace borrow(int vocab)
cdef void give_back(Workspace ws)


cdef inline float clamp(double x) noexcept nogil:
    """Rounds to a finite float32 without a negative zero: an edited logit never becomes a ban by overflow."""
    if x > OXS_LARGEST:
        return OXS_LARGEST
    if x < -OXS_LARGEST:
        return -OXS_LARGEST
    return <float>x + <float>0


cdef inline bint has(const uint32_t *bits, uint32_t id) noexcept nogil:
    return bits != NULL and (bits[id >> 5] >> (id & 31)) & 1


cdef inline double log_weight(const View *v, uint64_t key) noexcept nogil:
    return (<double>oxs_logit(key) - v.ref) * v.scale
