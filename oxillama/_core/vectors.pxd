"""The float tables of `csrc/vec`, one per instruction set: norms, rope, activations, one split of attention."""
from libc.stdint cimport int64_t, uint8_t, uint16_t

cdef extern from "vec/table.h" nogil:
    enum:
        OX_SPLIT_KEYS
        OX_SPLIT_GROUPS
        OX_BLOCK_GROUPS
        OX_MAX_QUERIES
        OX_ACT_NONE
        OX_ACT_COUNT
        OX_KV_F32
        OX_KV_F16
        OX_KV_Q8_0
        OX_KV_Q4_0
        OX_KV_COUNT
    ctypedef void ox_tile(float *c, int64_t ldc, const uint8_t *panel, const uint8_t *then, const uint8_t *x, int64_t ldx, int64_t cols,
                          int m) noexcept nogil
    ctypedef void ox_wide(float *c, int64_t ldc, const uint8_t *panel, int64_t stride, int64_t later, const uint8_t *x, int64_t ldx,
                          int64_t cols, int m) noexcept nogil
    ctypedef struct ox_split:
        int queries, heads, k_dim, v_dim, kind
        float softcap
        const float *q[64]
        const uint8_t *x
        int64_t ldx
        ox_tile *tile
        ox_wide *wide
        int first[64]
        int last[64]
        int biased, reach
        const float *bias[64]
        float slope[64]
        float from_ "from" [64]
        int view
        const void *k[16]
        const void *v[16]
        int64_t k_stride, v_stride
        int ahead
        const void *next_k[4]
        float *m
        float *l
        float *acc
        int width
        float *scores
        float *block
    ctypedef struct ox_scan:
        int rows, states, live, one, per_lane
        const float *x
        const float *dt
        const float *b
        const float *c
        const float *a
        const float *d
        int64_t ldx, lddt, ldb, ldc, ldy
        float *state
        float *y
    ctypedef struct ox_delta:
        int rows, keys, live
        const float *q
        const float *k
        const float *v
        const float *w
        const float *beta
        int64_t ldq, ldk, ldv, ldw, ldbeta, ldy
        float scale
        float *state
        float *y
    ctypedef struct ox_wkv:
        int rows, keys, live
        const float *r
        const float *w
        const float *k
        const float *v
        const float *a
        const float *b
        const float *u
        int64_t ldr, ldw, ldk, ldv, lda, ldb, ldy
        float scale
        float *state
        float *y
    ctypedef struct ox_vec:
        int queries
        void (*rms_norm)(float *out, const float *x, const float *weight, const float *bias, float eps, int64_t n) noexcept nogil
        void (*layer_norm)(float *out, const float *x, const float *weight, const float *bias, float eps, int64_t n) noexcept nogil
        void (*add)(float *out, const float *x, const float *y, int64_t n) noexcept nogil
        void (*mul)(float *out, const float *x, const float *y, int64_t n) noexcept nogil
        void (*scale)(float *out, const float *x, float factor, int64_t n) noexcept nogil
        void (*softcap)(float *out, const float *x, float cap, int64_t n) noexcept nogil
        void (*clamp)(float *out, const float *x, float low, float high, int64_t n) noexcept nogil
        void (*activate)(float *out, const float *x, int kind, int64_t n) noexcept nogil
        void (*exp)(float *out, const float *x, int64_t n) noexcept nogil
        void (*halves)(uint16_t *out, const float *x, int64_t n) noexcept nogil
        void (*keep_key)(int kind, void *group, int lane, const float *x, int dim) noexcept nogil
        void (*keep_value)(int kind, void *group, int row, const float *x, int dim) noexcept nogil
        void (*rope_halves)(float *x, const float *cosines, const float *sines, int half) noexcept nogil
        void (*rope_pairs)(float *x, const float *cosines, const float *sines, int half) noexcept nogil
        void (*split)(ox_split *s) noexcept nogil
        void (*fold)(ox_split *s, float *M, float *L, float *ACC, int *seen) noexcept nogil
        void (*finish)(float *out, float M, float L, const float *ACC, const float *sink, int n) noexcept nogil
        void (*scan)(const ox_scan *s) noexcept nogil
        void (*delta)(const ox_delta *s) noexcept nogil
        void (*wkv)(const ox_wkv *s) noexcept nogil
        void (*key_scores)(float *out, const float *queries, const float *shares, const float *keys, int count, int64_t stride, int heads,
                           int dim) noexcept nogil
        void (*best_dots)(float *best, const float *queries, const float *keys, int count, int64_t stride, int heads, int dim) noexcept nogil

cdef const ox_vec *vec_table(object isa) except NULL
cdef void angles(float *out, const float *f, int n, double position, double scale) noexcept nogil
cpdef int activation(object kind) except -1
