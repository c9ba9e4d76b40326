/* What the sampler needs of C: the vector loops per instruction set, exact selection, and an exp and log of its own.
 *
 * A row of logits lies in `work`, cut into blocks of 32 strided elements whose peaks are kept beside it: the k-th largest
 * peak bounds the k-th largest logit from below, so that selection reads a few blocks and never sorts the vocabulary.
 * A candidate is one 64-bit key: the logit's order in the high half, the complement of the token id in the low half.
 * Keys are distinct, so descending keys are the one order of tokens: larger logit first, then the lower id.
 * Nothing here allocates, threads or fails. No function of libm is used: results are the same bits on every machine.
 */
#ifndef OX_SAMPLE_H
#define OX_SAMPLE_H
#include <stdint.h>
#include <string.h>

#define OXS_SUPER 512             /* logits per 16 blocks */
#define OXS_LARGEST 3.40282347e+38f
#define OXS_NONE (-__builtin_inff()) /* the logit of a token that is out */
#define OXS_LN2 0.6931471805599453
#define OXS_SLACK (1 - 0x1p-22)   /* a mass or weight within float32 rounding of its bound counts as having reached it */
#define OXS_FAINT 48.0            /* exp(-48) and below: weighs next to nothing beside the largest */
#define OXS_FLOOR (-708.0)        /* exp below this counts as 0 */
#define OXS_LOG2E 1.4426950408889634
#define OXS_LN2_HIGH 0x1.62e42fee00000p-1
#define OXS_LN2_LOW 0x1.a39ef35793c76p-33
#define OXS_ROUND 0x1.8p52        /* adding it leaves the nearest integer in the low bits */

/* Near-minimax polynomial of degree 11 for exp on |r| <= ln(2)/2, relative error 3e-18. */
static const double oxs_exp_terms[12] = {
    1.0, 1.0, 0x1.0000000000011p-1, 0x1.555555555555ap-3, 0x1.555555554f0bap-5, 0x1.111111110f21ep-7,
    0x1.6c16c1880029fp-10, 0x1.a01a01b1461c5p-13, 0x1.a01991a10d9aep-16, 0x1.71ddf56d8deb5p-19,
    0x1.28b4101c77212p-22, 0x1.af632a0f7e2cep-26,
};

/* The polynomial in pairs (Estrin): a short chain of dependent operations; r, r^2 and r^4 are given. */
#define OXS_EXP_SUM(p, type, r, r2, r4)                                                                                     \
    do {                                                                                                                    \
        const double *c_ = oxs_exp_terms;                                                                                   \
        type low_ = (c_[0] + c_[1] * (r)) + (c_[2] + c_[3] * (r)) * (r2), mid_ = (c_[4] + c_[5] * (r)) + (c_[6] + c_[7] * (r)) * (r2); \
        type high_ = (c_[8] + c_[9] * (r)) + (c_[10] + c_[11] * (r)) * (r2);                                                \
        p = low_ + (mid_ + high_ * (r4)) * (r4);                                                                            \
    } while (0)

typedef struct {
    const char *isa;
    int (*load)(float *work, float *peak, const float *logits, int vocab, const uint32_t *mask);
    void (*mass)(const float *work, const float *peak, int supers, double ref, double scale, double *out);
    void (*weigh)(const float *logit, double *w, int count, double ref, double scale);
    void (*spread)(const float *logit, int count, double ref, double *out);
    int (*sift)(float *work, float *peak, const float *order, int supers, float least);
    void (*nearness)(const float *logit, float *order, int count, double ref, double scale, double center);
    void (*bucket)(const float *logit, int32_t *bucket, int count, float ref, float inverse);
    float (*lowest)(const float *logit, int count, float best);
} oxs_kernels;

#define OXS_TABLE(suffix) \
    {#suffix, load_##suffix, mass_##suffix, weigh_##suffix, spread_##suffix, sift_##suffix, nearness_##suffix, bucket_##suffix, lowest_##suffix}

#define OXS_NAME(x) x##_scalar
#define OXS_TARGET
#define OXS_WIDTH 16
#include "sample.inc"
#undef OXS_NAME
#undef OXS_TARGET
#undef OXS_WIDTH
#if defined(__x86_64__)
#define OXS_NAME(x) x##_avx2
#define OXS_TARGET __attribute__((target("avx2")))
#define OXS_WIDTH 32
#include "sample.inc"
#undef OXS_NAME
#undef OXS_TARGET
#undef OXS_WIDTH
#define OXS_NAME(x) x##_avx512
#define OXS_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define OXS_WIDTH 64
#include "sample.inc"
#undef OXS_NAME
#undef OXS_TARGET
#undef OXS_WIDTH
#endif
/* Every instruction set this processor has, the plainest first; `scalar` is the compiler's own baseline. */
static inline int oxs_available(const oxs_kernels **out) {
    static const oxs_kernels tables[] = {
        OXS_TABLE(scalar),
#if defined(__x86_64__)
        OXS_TABLE(avx2), OXS_TABLE(avx512),
#endif
    };
    int n = 0;
    out[n++] = &tables[0];
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) out[n++] = &tables[1];
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        out[n++] = &tables[2];
#endif
    return n;
}

/* ---- scalar exp, log and power ---- */

static inline double oxs_exp(double x) {
    if (!(x >= OXS_FLOOR)) return 0;
    if (x > 709.0) x = 709.0;
    double shifted = x * OXS_LOG2E + OXS_ROUND, n = shifted - OXS_ROUND;
    double r = (x - n * OXS_LN2_HIGH) - n * OXS_LN2_LOW;
    double p, r2 = r * r;
    OXS_EXP_SUM(p, double, r, r2, r2 * r2);
    int64_t half = (int64_t)n / 2, rest = (int64_t)n - half; /* in two steps: 2^1023 * p may be reached by neither alone */
    uint64_t a = (uint64_t)(half + 1023) << 52, b = (uint64_t)(rest + 1023) << 52;
    double fa, fb;
    memcpy(&fa, &a, 8);
    memcpy(&fb, &b, 8);
    return p * fa * fb;
}

/* The natural logarithm of a positive normal double, by 2 atanh((m-1)/(m+1)). */
static inline double oxs_log(double x) {
    if (!(x > 0)) return -__builtin_inf();
    if (x > 1.7976931348623157e308) return x;
    double shift = 0;
    if (x < 2.2250738585072014e-308) {
        x *= 0x1p54;
        shift = -54;
    }
    uint64_t u;
    memcpy(&u, &x, 8);
    double e = (double)((int64_t)(u >> 52) - 1023) + shift;
    u = (u & 0x000fffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &u, 8);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e += 1;
    }
    double s = (m - 1) / (m + 1), q = s * s, sum = 0;
    for (int k = 23; k >= 3; k -= 2) sum = (sum + 1.0 / k) * q;
    return e * OXS_LN2_HIGH + (2 * s + (2 * s * sum + e * OXS_LN2_LOW));
}

static inline double oxs_pow(double base, double exponent) {
    if (exponent == 0) return 1;
    return base > 0 ? oxs_exp(exponent * oxs_log(base)) : 0;
}

/* ---- keys ---- */

static inline uint64_t oxs_key(float logit, uint32_t id) {
    uint32_t u;
    memcpy(&u, &logit, 4);
    u ^= (uint32_t)((int32_t)u >> 31) | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~id;
}

static inline uint32_t oxs_id(uint64_t key) { return ~(uint32_t)key; }

static inline float oxs_logit(uint64_t key) {
    uint32_t u = (uint32_t)(key >> 32);
    u ^= u >> 31 ? 0x80000000u : 0xffffffffu;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Sorts keys in descending order: insertion on runs of 16, then merging through `spare` (same length). */
static inline void oxs_sort(uint64_t *a, int n, uint64_t *spare) {
    for (int lo = 0; lo < n; lo += 16) {
        int hi = lo + 16 < n ? lo + 16 : n;
        for (int i = lo + 1; i < hi; i++) {
            uint64_t x = a[i];
            int j = i;
            for (; j > lo && a[j - 1] < x; j--) a[j] = a[j - 1];
            a[j] = x;
        }
    }
    for (int64_t run = 16; run < n; run *= 2) {
        for (int64_t lo = 0; lo + run < n; lo += 2 * run) {
            int64_t mid = lo + run, hi = lo + 2 * run < n ? lo + 2 * run : n;
            int64_t i = 0, j = mid, o = lo;
            memcpy(spare, a + lo, (size_t)run * 8);
            while (i < run && j < hi) a[o++] = spare[i] > a[j] ? spare[i++] : a[j++];
            while (i < run) a[o++] = spare[i++];
        }
    }
}

/* The smallest key of the shortest descending run of keys whose weights (1 each when w is NULL) sum to `need` or more.
 * Radix selection from the first bit in which keys differ: linear time whatever the data. n >= 1. */
static inline uint64_t oxs_cut(const uint64_t *key, const double *w, int n, double need, uint64_t *tk, double *tw) {
    uint64_t low = key[0], high = key[0];
    for (int i = 1; i < n; i++) {
        low = key[i] < low ? key[i] : low;
        high = key[i] > high ? key[i] : high;
    }
    if (!(need > 0)) return high;
    double done = 0;
    while (n > 48) { /* keys are distinct, so low != high, and every round fixes at least one more bit */
        double hist[2048];
        int bits = 64 - __builtin_clzll(low ^ high), shift = bits > 11 ? bits - 11 : 0, b = 2047, m = 0;
        memset(hist, 0, sizeof hist);
        for (int i = 0; i < n; i++) hist[key[i] >> shift & 2047] += w ? w[i] : 1;
        int first = (int)(low >> shift & 2047);
        for (; b > first && done + hist[b] < need; b--) done += hist[b];
        uint64_t least = ~0ull, most = 0;
        for (int i = 0; i < n; i++) {
            uint64_t x = key[i];
            if ((int)(x >> shift & 2047) != b) continue;
            double y = w ? w[i] : 1;
            tk[m] = x;
            tw[m++] = y;
            least = x < least ? x : least;
            most = x > most ? x : most;
        }
        key = tk;
        w = tw;
        n = m;
        low = least;
        high = most;
    }
    uint64_t k[48];
    double v[48];
    for (int i = 0; i < n; i++) {
        uint64_t x = key[i];
        double y = w ? w[i] : 1;
        int j = i;
        for (; j > 0 && k[j - 1] < x; j--) {
            k[j] = k[j - 1];
            v[j] = v[j - 1];
        }
        k[j] = x;
        v[j] = y;
    }
    for (int i = 0; i < n - 1; i++) {
        done += v[i];
        if (done >= need) return k[i];
    }
    return k[n - 1];
}

/* ---- the row and its blocks ---- */

/* The largest of n peaks, n a multiple of 16: a running maximum per lane, because one alone waits for itself. */
static inline float oxs_highest(const float *peak, int n) {
    float lane[16], best;
    memcpy(lane, peak, sizeof lane);
    for (int i = 16; i < n; i += 16)
        for (int j = 0; j < 16; j++) lane[j] = peak[i + j] > lane[j] ? peak[i + j] : lane[j];
    best = lane[0];
    for (int j = 1; j < 16; j++) best = lane[j] > best ? lane[j] : best;
    return best;
}

/* The k-th largest of n peaks (k <= n), by a min-heap of k floats. */
static inline float oxs_kth_peak(const float *peak, int n, int k, float *heap) {
    int size = 0;
    for (int i = 0; i < n; i++) {
        float x = peak[i];
        if (size < k) {
            int j = size++;
            for (; j > 0 && heap[(j - 1) / 2] > x; j = (j - 1) / 2) heap[j] = heap[(j - 1) / 2];
            heap[j] = x;
        } else if (x > heap[0]) {
            int j = 0;
            for (;;) {
                int c = 2 * j + 1;
                if (c >= k) break;
                if (c + 1 < k && heap[c + 1] < heap[c]) c++;
                if (heap[c] >= x) break;
                heap[j] = heap[c];
                j = c;
            }
            heap[j] = x;
        }
    }
    return heap[0];
}

/* Writes the keys of all finite logits >= least, in no particular order that matters; returns their number. */
static inline int oxs_gather(const float *work, const float *peak, int supers, float least, uint64_t *out) {
    int n = 0;
    if (!(least >= -OXS_LARGEST)) least = -OXS_LARGEST;
    for (int i = 0; i < 16 * supers; i++) {
        if (!(peak[i] >= least)) continue;
        int base = i / 16 * OXS_SUPER + i % 16;
        for (int r = 0; r < OXS_SUPER; r += 16)
            if (work[base + r] >= least) out[n++] = oxs_key(work[base + r], (uint32_t)(base + r));
    }
    return n;
}

static inline void oxs_set(float *work, float *peak, int id, float value) {
    float *p = peak + id / OXS_SUPER * 16 + id % 16, old = work[id];
    work[id] = value;
    if (value >= *p) {
        *p = value;
    } else if (old == *p) {
        const float *x = work + id / OXS_SUPER * OXS_SUPER + id % 16;
        float best = x[0];
        for (int r = 16; r < OXS_SUPER; r += 16) best = x[r] > best ? x[r] : best;
        *p = best;
    }
}

/* One element of the vector loop `bucket`, with the same bits. */
static inline int oxs_step(float logit, float ref, float inverse) {
    float t = (ref - logit) * inverse;
    return t < 2047.0f ? (int)t : 2047;
}

/* `oxs_cut` over the finite logits of a whole row, in descending `order` (the row itself, or an array beside it that is -inf
 * where the row is), where a weight is exp((logit - ref)*scale), or 1 each with scale 0.
 *
 * Weights are added up in 2048 even steps of the order from `top` (its largest) down to `depth` below; only the step in which the
 * mass is reached is looked at closer. Scratch: keys tk and tk2, weights w and tw, floats f, all as long as the padded row. */
static inline uint64_t oxs_row_cut(const oxs_kernels *k, const float *work, const float *peak, int supers, double ref, double scale,
                                   const float *order, float top, double depth, double need,
                                   uint64_t *tk, uint64_t *tk2, double *w, double *tw, float *f) {
    double hist[2][2048], chunk[OXS_SUPER], done = 0; /* two histograms: neighbours that share a step need not wait */
    int32_t *step = (int32_t *)tk2;
    float low = k->lowest(order, supers * OXS_SUPER, top), range = top - low;
    float span = depth < range ? (float)depth : range;
    float inverse = 2047 / (span > 1e-30f ? span : 1e-30f);
    int b = 0, last, n = 0;
    if (!(inverse >= 1e-35f)) inverse = 1e-35f; /* an infinite range: one step may hold all */
    memset(hist, 0, sizeof hist);
    for (int s = 0; s < supers; s++) {
        int32_t *at = step + s * OXS_SUPER;
        if (!(oxs_highest(peak + 16 * s, 16) >= -OXS_LARGEST)) continue;
        if (scale > 0) {
            k->weigh(work + s * OXS_SUPER, chunk, OXS_SUPER, ref, scale);
        } else {
            for (int i = 0; i < OXS_SUPER; i++) chunk[i] = work[s * OXS_SUPER + i] >= -OXS_LARGEST ? 1 : 0;
        }
        k->bucket(order + s * OXS_SUPER, at, OXS_SUPER, top, inverse);
        for (int i = 0; i < OXS_SUPER; i += 2) {
            hist[0][at[i]] += chunk[i];
            hist[1][at[i + 1]] += chunk[i + 1];
        }
    }
    last = oxs_step(low, top, inverse);
    for (; b < last && done + (hist[0][b] + hist[1][b]) < need; b++) done += hist[0][b] + hist[1][b];
    for (int i = 0; i < 16 * supers; i++) {
        if (!(peak[i] >= -OXS_LARGEST)) continue;
        int base = i / 16 * OXS_SUPER + i % 16;
        for (int r = 0; r < OXS_SUPER; r += 16) {
            if (step[base + r] != b || !(work[base + r] >= -OXS_LARGEST)) continue;
            f[n] = work[base + r];
            tk[n++] = oxs_key(order[base + r], (uint32_t)(base + r));
        }
    }
    for (int i = n; i < ((n + 7) & ~7); i++) f[i] = (float)ref;
    if (scale > 0) k->weigh(f, w, n, ref, scale);
    return oxs_cut(tk, scale > 0 ? w : 0, n, need - done, tk2, tw);
}

/* xorshift64: the state after the step is the output. */
static inline uint64_t oxs_next(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static inline double oxs_uniform(uint64_t *state) { return (double)(oxs_next(state) >> 40) * 0x1p-24; }

#endif
