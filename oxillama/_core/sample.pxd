"""The sampler's C: csrc/sample.h as Cython sees it."""
from libc.stdint cimport int32_t, uint32_t, uint64_t


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
    const float OXS_NONE
    const double OXS_LN2
    const double OXS_SLACK
    const double OXS_FAINT
    const int OXS_SUPER
