"""The candidates while a token is drawn: selection over the row and over lists, and the scratch memory that both use.

A view starts dense (the whole row, in `work` and `peak`) and becomes a list of keys once few candidates are left. Everything here is
exact: the same candidates survive whichever form the view is in. Nothing allocates or fails, and no vocabulary is ever sorted (csrc/sample.h).
"""
import os

from oxillama.errors import ConfigError

from libc.math cimport nextafterf
from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free

from oxillama._core.sample cimport (
    OXS_FAINT, OXS_LARGEST, OXS_NONE, OXS_SLACK, OXS_SUPER, oxs_available, oxs_cut, oxs_gather, oxs_highest, oxs_id, oxs_kernels, oxs_key,
    oxs_kth_peak, oxs_log, oxs_logit, oxs_row_cut, oxs_set, oxs_sort,
)

cdef enum:
    SORT_LIMIT = 1024                 # lists up to this length are kept sorted
    PEAK_LIMIT = 512                  # up to this many candidates are selected by the peaks of blocks


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


# ---- selection ----

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
    cdef double depth = OXS_FAINT / scale if scale > 0 else OXS_LARGEST
    return oxs_row_cut(v.k, v.work, v.peak, v.supers, v.ref, scale, v.work, <float>v.ref, depth, need, v.key, v.spare, v.w, v.spare_w, v.logit)


cdef void keep_row_from(View *v, const float *order, uint64_t least) noexcept nogil:
    """Keeps of a dense view the tokens whose key by `order` is >= least; it stays dense while many are left."""
    cdef float bound = oxs_logit(least)
    cdef int i, left = v.k.sift(v.work, v.peak, order, v.supers, bound)
    v.weighed = False
    for i in range(<int>oxs_id(least) + 1, v.supers * OXS_SUPER):     # equals of higher ids
        if order[i] == bound and v.work[i] >= -OXS_LARGEST:
            oxs_set(v.work, v.peak, i, OXS_NONE)
            left -= 1
    if 4 * left <= v.vocab or left <= SORT_LIMIT:
        materialise(v)


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
        keep_row_from(v, v.work, row_cut(v, 0, k))
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
            n = v.k.sift(v.work, v.peak, v.work, v.supers, least)
            v.weighed = False
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
    keep_above(v, v.ref + oxs_log((least if least < 1 else 1) * OXS_SLACK) / v.scale)


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


# ---- scratch ----

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
    if free_ones is not None:
        try:
            return free_ones.pop()
        except IndexError:      # none, or another thread took the last
            pass
    return Workspace(vocab)


cdef void give_back(Workspace ws):
    _pool.setdefault(ws.view.vocab, []).append(ws)
