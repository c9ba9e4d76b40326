/* The searches for super-blocks of 256: every sub-block has a small integer scale (and minimum) under one half (or two) of the block.
 *
 * First each sub-block is fitted alone; the block's halves follow from the largest fit; then, in turn, every sub-block picks the integers
 * near its own fit that cost least under the stored halves, and the halves are fitted to all picks at once, as long as that helps. */
#ifndef OX_FORMATS_FIT_K_H
#define OX_FORMATS_FIT_K_H

#include "fit.h"

enum { OX_K_ROUNDS = 2 };

static inline float ox_half_of(float f) {
    return ox_half_to_float(ox_float_to_half(ox_clip(f, -65504.0f, 65504.0f)));
}

/* ---- x ~ (d scale) q - (dmin min), q in 0..top: Q2_K, Q4_K, Q5_K ---- */

typedef struct {
    int width;        /* columns per sub-block */
    float top;        /* largest q */
    float top_scale;  /* largest scale and min */
    float over;       /* how far first roundings stretch beyond top */
    int steps;        /* first roundings tried */
} ox_k_affine_kind;

typedef struct {
    float d, dmin, error;
    uint8_t scale[16], min[16];
} ox_k_affine;

/* sum cost (x - stored)^2 of one sub-block under the scale a and the minimum b. */
static inline float ox_affine_error(const float *x, const float *cost, int n, float top, float a, float b) {
    float p[8] = {0}, inverse = ox_inverse(a);
    for (int i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) {
            float e = x[i + j] + b - a * ox_round(ox_clip((x[i + j] + b) * inverse, 0.0f, top));
            p[j] += cost[i + j] * e * e;
        }
    return ox_sum8(p);
}

/* Picks scale and min of every sub-block under fit->d and fit->dmin, near the sub-block's own (d, m). */
static inline void ox_pick_k_affine(ox_k_affine *fit, const float *x, const float *cost, const ox_k_affine_kind *kind,
                                    const ox_affine *own) {
    float to_scale = ox_inverse(fit->d), to_min = ox_inverse(fit->dmin);
    fit->error = 0.0f;
    for (int s = 0; s * kind->width < 256; s++) {
        float near_scale = ox_round(ox_clip(own[s].d * to_scale, 0.0f, kind->top_scale));
        float near_min = ox_round(ox_clip(-own[s].m * to_min, 0.0f, kind->top_scale)), best = 3.4e38f;
        for (float scale = near_scale - 1.0f; scale <= near_scale + 1.0f; scale += 1.0f)
            for (float min = near_min - 1.0f; min <= near_min + 1.0f; min += 1.0f) {
                if (scale < 0.0f || min < 0.0f || scale > kind->top_scale || min > kind->top_scale) continue;
                int at = s * kind->width;
                float error = ox_affine_error(x + at, cost + at, kind->width, kind->top, fit->d * scale, fit->dmin * min);
                if (error < best) {
                    best = error;
                    fit->scale[s] = (uint8_t)scale;
                    fit->min[s] = (uint8_t)min;
                }
            }
        fit->error += best;
    }
}

/* The halves that fit all picks best, as floats; unchanged where the picks do not determine them. */
static inline void ox_refit_k_affine(ox_k_affine *fit, const float *x, const float *cost, const ox_k_affine_kind *kind) {
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (int i = 0; i < 256; i++) {
        int s = i / kind->width;
        float a = fit->d * fit->scale[s], b = fit->dmin * fit->min[s];
        double q = fit->scale[s] * ox_round(ox_clip((x[i] + b) * ox_inverse(a), 0.0f, kind->top)), m = -(double)fit->min[s];
        aa += cost[i] * q * q;
        ab += cost[i] * q * m;
        bb += cost[i] * m * m;
        ax += cost[i] * q * x[i];
        bx += cost[i] * m * x[i];
    }
    double det = aa * bb - ab * ab;
    if (det > 1e-9 * aa * bb) {
        fit->d = ox_half_of((float)((ax * bb - bx * ab) / det));
        fit->dmin = ox_half_of((float)((bx * aa - ax * ab) / det));
    } else if (aa > 0) {
        fit->d = ox_half_of((float)(ax / aa));
    }
}

static inline ox_k_affine ox_fit_k_affine(const float *x, const float *cost, const ox_k_affine_kind *kind) {
    ox_affine own[16];
    float top_d = 0.0f, top_m = 0.0f;
    for (int s = 0; s * kind->width < 256; s++) {
        own[s] = ox_fit_affine(x + s * kind->width, cost + s * kind->width, kind->width, kind->top, 1, kind->over, kind->steps);
        top_d = own[s].d > top_d ? own[s].d : top_d;
        top_m = -own[s].m > top_m ? -own[s].m : top_m;
    }
    ox_k_affine fit = {.d = ox_half_of(top_d / kind->top_scale), .dmin = ox_half_of(top_m / kind->top_scale)}, best;
    ox_pick_k_affine(&fit, x, cost, kind, own);
    best = fit;
    for (int k = 0; k < OX_K_ROUNDS; k++) {
        ox_refit_k_affine(&fit, x, cost, kind);
        if (fit.d < 0.0f || fit.dmin < 0.0f) break;
        ox_pick_k_affine(&fit, x, cost, kind, own);
        if (!(fit.error < best.error)) break;
        best = fit;
    }
    return best;
}

static inline void ox_round_k_affine(uint8_t *q, const float *x, const ox_k_affine_kind *kind, const ox_k_affine *fit) {
    for (int i = 0, s = 0; i < 256; i += kind->width, s++)
        ox_round_affine(q + i, x + i, kind->width, kind->top, fit->d * fit->scale[s], -(fit->dmin * fit->min[s]));
}

/* ---- x ~ (d scale) snapped: Q3_K, Q6_K, IQ4_XS ---- */

typedef struct {
    int width;                /* columns per sub-block */
    float scale_lo, scale_hi; /* range of scale */
    float from, to;           /* where the first roundings send the largest number */
    int steps;
} ox_k_scaled_kind;

typedef struct {
    float d, error;
    int8_t scale[16];
} ox_k_scaled;

OX_INLINE void ox_pick_k_scaled(ox_k_scaled *fit, const float *x, const float *cost, const ox_k_scaled_kind *kind, ox_snap snap,
                                const float *own) {
    float to_scale = ox_inverse(fit->d);
    fit->error = 0.0f;
    for (int s = 0; s * kind->width < 256; s++) {
        float near = ox_round(ox_clip(own[s] * to_scale, kind->scale_lo, kind->scale_hi)), best = 3.4e38f;
        for (float scale = near - 1.0f; scale <= near + 1.0f; scale += 1.0f) {
            if (scale < kind->scale_lo || scale > kind->scale_hi) continue;
            float error = ox_scaled_error(x + kind->width * s, cost + kind->width * s, kind->width, fit->d * scale, snap);
            if (error < best) {
                best = error;
                fit->scale[s] = (int8_t)scale;
            }
        }
        fit->error += best;
    }
}

static inline float ox_snap_scale6(float v) {
    return ox_round(ox_clip(v, -32.0f, 31.0f));
}

/* The half that fits all picks best. */
OX_INLINE void ox_refit_k_scaled(ox_k_scaled *fit, const float *x, const float *cost, const ox_k_scaled_kind *kind, ox_snap snap) {
    double aa = 0, ax = 0;
    for (int s = 0; s * kind->width < 256; s++) {
        float inverse = ox_inverse(fit->d * fit->scale[s]);
        ox_moments m = ox_scaled_moments(x + kind->width * s, cost + kind->width * s, kind->width, inverse, snap);
        aa += (double)m.qq * fit->scale[s] * fit->scale[s];
        ax += (double)m.xq * fit->scale[s];
    }
    if (aa > 0) fit->d = ox_half_of((float)(ax / aa));
}

/* snap is for numbers, snap_scale for scales. */
OX_INLINE ox_k_scaled ox_fit_k_scaled(const float *x, const float *cost, const ox_k_scaled_kind *kind, ox_snap snap, ox_snap snap_scale) {
    float own[16] = {0}, matters[16] = {0}, top = 0.0f;
    for (int s = 0; s * kind->width < 256; s++) {
        own[s] = ox_fit_scaled(x + kind->width * s, cost + kind->width * s, kind->width, snap, 0, kind->from, kind->to, kind->steps);
        matters[s] = ox_scaled_moments(x + kind->width * s, cost + kind->width * s, kind->width, ox_inverse(own[s]), snap).qq;
        top = ox_abs(own[s]) > ox_abs(top) ? own[s] : top;
    }
    /* Three starts: the largest scale becomes the lowest or the highest integer, or the integers fit all scales best by what they cost. */
    float starts[3] = {top / kind->scale_lo, top / kind->scale_hi};
    starts[2] = ox_fit_scaled(own, matters, 256 / kind->width, snap_scale, 0, -0.7f * kind->scale_lo, -1.1f * kind->scale_lo, 24);
    ox_k_scaled best = {.error = 3.4e38f};
    for (int start = 0; start < 3; start++) {
        ox_k_scaled fit = {.d = ox_half_of(starts[start])};
        for (int k = 0; k < OX_K_ROUNDS; k++) {
            ox_pick_k_scaled(&fit, x, cost, kind, snap, own);
            if (fit.error < best.error) best = fit;
            else if (k) break;
            ox_refit_k_scaled(&fit, x, cost, kind, snap);
        }
    }
    return best;
}

#endif
