/* The searches behind `quantise`: least-squares fits of a scale (and an offset) to numbers that must become small integers.
 *
 * All minimise sum_i w[i] (x[i] - stored[i])^2. For a fixed rounding the best scale is a quotient of sums; so a search tries a row of
 * candidate scales, rounds by each, fits, keeps the best, then alternates rounding and fitting until nothing improves.
 * Sums run in 8 fixed partial sums, so that they vectorise and yet have the same bits on every machine. n is a multiple of 8. */
#ifndef OX_FORMATS_FIT_H
#define OX_FORMATS_FIT_H

#include <stddef.h>

#include "bits.h"

#if defined(__GNUC__)
#define OX_INLINE static inline __attribute__((always_inline))
#else
#define OX_INLINE static inline
#endif

static inline float ox_sum8(const float *p) {
    return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

static inline float ox_clip(float v, float lo, float hi) {
    v = v < lo ? lo : v;
    return v > hi ? hi : v;
}

/* To the nearest integer, ties to even, for |v| < 2^22. */
static inline float ox_round(float v) {
    return (v + 12582912.0f) - 12582912.0f;
}

static inline float ox_abs(float v) {
    return ox_as_float(ox_as_bits(v) & 0x7fffffff);
}

static inline float ox_max_abs(const float *x, int n) {
    float p[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) p[j] = ox_abs(x[i + j]) > p[j] ? ox_abs(x[i + j]) : p[j];
    for (int j = 1; j < 8; j++) p[0] = p[j] > p[0] ? p[j] : p[0];
    return p[0];
}

/* What an error in each number of a block costs, 1 on average: 1 without importances, else the importance plus 0.3 of the block's mean:
 * importances are estimates from a sample, and a number that the sample hardly used must not be given up. n is a multiple of 8. */
static inline void ox_costs(float *cost, const float *weights, int n) {
    float p[8] = {0};
    for (int i = 0; weights && i < n; i += 8)
        for (int j = 0; j < 8; j++) p[j] += weights[i + j];
    float mean = ox_sum8(p) / (float)n;
    for (int i = 0; i < n; i++) cost[i] = mean > 0x1p-60f ? (weights[i] / mean + 0.3f) / (1.0f + 0.3f) : 1.0f;
}

static inline void ox_range(const float *x, int n, float *lo, float *hi) {
    float a[8], b[8];
    for (int j = 0; j < 8; j++) a[j] = b[j] = x[j];
    for (int i = 8; i < n; i += 8)
        for (int j = 0; j < 8; j++) {
            a[j] = x[i + j] < a[j] ? x[i + j] : a[j];
            b[j] = x[i + j] > b[j] ? x[i + j] : b[j];
        }
    for (int j = 1; j < 8; j++) {
        a[0] = a[j] < a[0] ? a[j] : a[0];
        b[0] = b[j] > b[0] ? b[j] : b[0];
    }
    *lo = a[0];
    *hi = b[0];
}

/* Writes a half that is finite whatever f is, and returns what was stored. */
static inline float ox_put_scale(uint8_t *p, float f) {
    return ox_put_half(p, ox_clip(f, -65504.0f, 65504.0f));
}

/* 1 / d; 0 for a scale so small that it carries nothing. */
static inline float ox_inverse(float d) {
    return ox_abs(d) > 0x1p-120f ? 1.0f / d : 0.0f;
}

/* What a number becomes when it is measured in units of the scale. Searches take one as an argument and are inlined around it. */
typedef float (*ox_snap)(float v);

static inline float ox_snap_byte(float v) {
    return ox_round(ox_clip(v, -127.0f, 127.0f));
}

/* Writes snap(x / d) as small integers. */
OX_INLINE void ox_snap_all(int8_t *q, const float *x, int n, float d, ox_snap snap) {
    float inverse = ox_inverse(d);
    for (int i = 0; i < n; i++) q[i] = (int8_t)snap(x[i] * inverse);
}

/* Writes round((x - m) / d), clipped to 0..top. */
static inline void ox_round_affine(uint8_t *q, const float *x, int n, float top, float d, float m) {
    float inverse = ox_inverse(d);
    for (int i = 0; i < n; i++) q[i] = (uint8_t)ox_round(ox_clip((x[i] - m) * inverse, 0.0f, top));
}

/* ---- x ~ d snapped ---- */

typedef struct {
    float xq, qq; /* sum w x q, sum w q q */
} ox_moments;

OX_INLINE ox_moments ox_scaled_moments(const float *x, const float *w, int n, float inverse, ox_snap snap) {
    float xq[8] = {0}, qq[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) {
            float q = snap(x[i + j] * inverse), wq = w[i + j] * q;
            xq[j] += wq * x[i + j];
            qq[j] += wq * q;
        }
    return (ox_moments){ox_sum8(xq), ox_sum8(qq)};
}

/* sum w (x - d snapped)^2. */
OX_INLINE float ox_scaled_error(const float *x, const float *w, int n, float d, ox_snap snap) {
    float p[8] = {0}, inverse = ox_inverse(d);
    for (int i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) {
            float e = x[i + j] - d * snap(x[i + j] * inverse);
            p[j] += w[i + j] * e * e;
        }
    return ox_sum8(p);
}

/* The best d. `steps` candidates send the largest |x| to `from` .. `to`; the negative of that is tried too unless snap is odd. */
OX_INLINE float ox_fit_scaled(const float *x, const float *w, int n, ox_snap snap, int odd, float from, float to, int steps) {
    float top = ox_max_abs(x, n), best_d = 0.0f, best = 0.0f;
    if (top < 0x1p-100f) return 0.0f;
    for (int side = 0; side < (odd ? 1 : 2); side++)
        for (int k = 0; k < steps; k++) {
            float reach = (from + (to - from) * (float)k / (float)(steps - 1)) / top;
            ox_moments m = ox_scaled_moments(x, w, n, side ? -reach : reach, snap);
            if (m.qq > 0.0f && m.xq * m.xq > best * m.qq) {
                best = m.xq * m.xq / m.qq;
                best_d = m.xq / m.qq;
            }
        }
    for (int k = 0; k < 8 && best_d != 0.0f; k++) {
        ox_moments m = ox_scaled_moments(x, w, n, 1.0f / best_d, snap);
        if (!(m.qq > 0.0f) || !(m.xq * m.xq > best * m.qq)) break;
        best = m.xq * m.xq / m.qq;
        best_d = m.xq / m.qq;
    }
    return best_d;
}

/* ---- x ~ d q + m, q in 0..top ---- */

typedef struct {
    float d, m, error;
} ox_affine;

/* Rounds by (d, m), then fits. With `down`, m may not be above 0. error leaves out sum w x x. */
static inline ox_affine ox_refit_affine(const float *x, const float *w, int n, float top, int down, float d, float m) {
    float s1[8] = {0}, sq[8] = {0}, sqq[8] = {0}, sx[8] = {0}, sxq[8] = {0}, inverse = 1.0f / d;
    for (int i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) {
            float q = ox_round(ox_clip((x[i + j] - m) * inverse, 0.0f, top)), wi = w[i + j], wq = wi * q, wx = wi * x[i + j];
            s1[j] += wi;
            sq[j] += wq;
            sqq[j] += wq * q;
            sx[j] += wx;
            sxq[j] += wx * q;
        }
    float w1 = ox_sum8(s1), wq = ox_sum8(sq), wqq = ox_sum8(sqq), wx = ox_sum8(sx), wxq = ox_sum8(sxq);
    float det = w1 * wqq - wq * wq;
    ox_affine fit = {d, m, 0.0f};
    if (det > 1e-6f * w1 * wqq) {
        fit.d = (w1 * wxq - wx * wq) / det;
        fit.m = (wqq * wx - wq * wxq) / det;
    }
    if (down && fit.m > 0.0f) {
        fit.m = 0.0f;
        if (wqq > 0.0f) fit.d = wxq / wqq;
    }
    fit.error = fit.d * (fit.d * wqq - 2.0f * wxq) + fit.m * (fit.m * w1 - 2.0f * wx + 2.0f * fit.d * wq);
    return fit;
}

/* The best (d, m): the first rounding stretches the range over top - 1 .. top + `over` steps; d = 0 when all x are alike. */
static inline ox_affine ox_fit_affine(const float *x, const float *w, int n, float top, int down, float over, int steps) {
    float lo, hi;
    ox_range(x, n, &lo, &hi);
    if (down && lo > 0.0f) lo = 0.0f;
    if (!(hi - lo > 0x1p-100f)) return (ox_affine){0.0f, lo, 0.0f};
    ox_affine best = {0.0f, lo, 3.4e38f};
    for (int k = 0; k < steps; k++) {
        float span = top - 1.0f + (over + 1.0f) * (float)k / (float)(steps - 1);
        for (int shift = 0; shift < 3; shift++) { /* what does not fit is cut off above, on both sides, or below */
            float d = (hi - lo) / span, m = lo + (float)shift * 0.5f * (span - top) * d;
            if (shift && span <= top) break;
            ox_affine fit = ox_refit_affine(x, w, n, top, down, d, down && m > 0.0f ? 0.0f : m);
            if (fit.d > 0.0f && fit.error < best.error) best = fit;
        }
    }
    for (int k = 0; k < 8 && best.d > 0.0f; k++) {
        ox_affine fit = ox_refit_affine(x, w, n, top, down, best.d, best.m);
        if (!(fit.d > 0.0f && fit.error < best.error)) break;
        best = fit;
    }
    return best;
}

#endif
