/* The searches behind `quantise`: least-squares fits of a scale (and an offset) to numbers that must become small integers.
 *
 * All minimise sum_i w[i] (x[i] - stored[i])^2. For a fixed rounding the best scale is a quotient of sums; so a search tries a row of
 * candidate scales, rounds by each, fits, keeps the best, then alternates rounding and fitting until nothing improves.
 *
 * Sixteen blocks are fitted side by side on a sheet (sheet.h): every step is written in the words of isa/, a lane never looks at its
 * neighbours, and a lane whose search is over repeats its last step without effect. So a block's bytes depend on the block alone, on every
 * instruction set. Sums along a block run in 8 fixed partial sums; lines and n are multiples of 8. */
#ifndef OX_FORMATS_FIT_H
#define OX_FORMATS_FIT_H

#include "sheet.h"

/* ---- x ~ d snapped ---- */

typedef struct {
    ox_f32x16 xq, qq; /* sum w x q, sum w q q */
} ox_moments;

OX_INLINE ox_moments ox_scaled_moments(const float *x, const float *w, int lines, ox_f32x16 inverse, ox_snap snap) {
    ox_f32x16 xq[8], qq[8];
    for (int j = 0; j < 8; j++) {
        xq[j] = qq[j] = f32_zero();
        for (int i = j; i < lines; i += 8) {
            ox_f32x16 v = f32_load(x + 16 * i), q = snap(f32_mul(v, inverse)), wq = f32_mul(f32_load(w + 16 * i), q);
            xq[j] = f32_add(xq[j], f32_mul(wq, v));
            qq[j] = f32_add(qq[j], f32_mul(wq, q));
        }
    }
    return (ox_moments){ox_sum8_lanes(xq), ox_sum8_lanes(qq)};
}

/* sum w (x - d snapped)^2. */
OX_INLINE ox_f32x16 ox_scaled_error(const float *x, const float *w, int lines, ox_f32x16 d, ox_snap snap) {
    ox_f32x16 p[8], inverse = ox_inverse_lanes(d);
    for (int j = 0; j < 8; j++) {
        p[j] = f32_zero();
        for (int i = j; i < lines; i += 8) {
            ox_f32x16 v = f32_load(x + 16 * i), e = f32_sub(v, f32_mul(d, snap(f32_mul(v, inverse))));
            p[j] = f32_add(p[j], f32_mul(f32_mul(f32_load(w + 16 * i), e), e));
        }
    }
    return ox_sum8_lanes(p);
}

typedef struct {
    ox_f32x16 d, gain; /* the scale; what it takes off sum w x x */
} ox_best;

/* Keeps the scale that moments ask for in lanes where it gains more and that are above 0 in `lanes`; gives whether there was one. */
OX_INLINE int ox_keep_scale(ox_best *best, ox_moments m, ox_f32x16 lanes) {
    ox_f32x16 squared = f32_mul(m.xq, m.xq), bar = f32_mul(best->gain, m.qq);
    squared = f32_select_lt(f32_zero(), lanes, squared, f32_zero());
    best->gain = f32_select_lt(bar, squared, f32_div(squared, m.qq), best->gain);
    best->d = f32_select_lt(bar, squared, f32_div(m.xq, m.qq), best->d);
    return f32_hmax(f32_select_lt(bar, squared, f32_set1(1.0f), f32_zero())) > 0.0f;
}

/* The best d of each block. `steps` candidates send the largest |x| to `from` .. `to`, and to the negative of that. */
OX_INLINE ox_f32x16 ox_fit_scaled(const float *x, const float *w, int lines, ox_snap snap, float from, float to, int steps) {
    ox_f32x16 top = ox_max_abs_lanes(x, lines), one = f32_set1(1.0f), there;
    ox_best best = {f32_zero(), f32_zero()};
    there = f32_select_lt(top, f32_set1(OX_NOTHING), f32_zero(), one);
    top = f32_select_lt(top, f32_set1(OX_NOTHING), one, top);
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < steps; k++) {
            float reach = from + (to - from) * (float)k / (float)(steps - 1);
            ox_f32x16 inverse = f32_div(f32_set1(side ? -reach : reach), top);
            ox_keep_scale(&best, ox_scaled_moments(x, w, lines, inverse, snap), there);
        }
    for (int k = 0; k < 8; k++) /* a lane that found no scale has none to start from */
        if (!ox_keep_scale(&best, ox_scaled_moments(x, w, lines, ox_inverse_lanes(best.d), snap), f32_abs(best.d))) break;
    return best.d;
}

/* ---- the same for one long row, a lane a column ---- */

OX_INLINE ox_moments ox_row_moments(const float *x, const float *w, int n, float inverse, ox_snap snap) {
    ox_f32x16 xq = f32_zero(), qq = f32_zero(), by = f32_set1(inverse);
    for (int i = 0; i < n; i += 16) {
        ox_f32x16 v = f32_load_n(x + i, n - i), q = snap(f32_mul(v, by)), wq = f32_mul(f32_load_n(w + i, n - i), q);
        xq = f32_add(xq, f32_mul(wq, v));
        qq = f32_add(qq, f32_mul(wq, q));
    }
    return (ox_moments){xq, qq};
}

/* The best d. With `odd` (snap(-v) = -snap(v)) the negative candidates are left out. */
OX_INLINE float ox_fit_row(const float *x, const float *w, int n, ox_snap snap, int odd, float from, float to, int steps) {
    float top = ox_max_abs(x, n), best_d = 0.0f, best = 0.0f;
    int tries = odd ? steps : 2 * steps;
    if (top < OX_NOTHING) return 0.0f;
    for (int k = 0; k < tries + 8; k++) { /* eight more tries start from the best scale */
        float reach = (from + (to - from) * (float)(k % steps) / (float)(steps - 1)) / top;
        if (k >= tries && best_d == 0.0f) break;
        ox_moments lanes = ox_row_moments(x, w, n, k >= tries ? 1.0f / best_d : k >= steps ? -reach : reach, snap);
        float xq = f32_hsum(lanes.xq), qq = f32_hsum(lanes.qq);
        if (qq > 0.0f && xq * xq > best * qq) {
            best = xq * xq / qq;
            best_d = xq / qq;
        } else if (k >= tries) {
            break;
        }
    }
    return best_d;
}

/* ---- x ~ d q + m, q in 0..top ---- */

typedef struct {
    ox_f32x16 d, m, error;
} ox_affine;

typedef struct {
    ox_f32x16 w, wx;        /* sum w, sum w x: the same for every rounding */
    ox_f32x16 wq, wqq, wxq; /* sum w q, sum w q q, sum w x q */
} ox_affine_moments;

OX_INLINE ox_affine_moments ox_affine_sums(const float *x, const float *w, int lines) {
    ox_f32x16 s1[8], sx[8];
    for (int j = 0; j < 8; j++) {
        s1[j] = sx[j] = f32_zero();
        for (int i = j; i < lines; i += 8) {
            ox_f32x16 wi = f32_load(w + 16 * i);
            s1[j] = f32_add(s1[j], wi);
            sx[j] = f32_add(sx[j], f32_mul(wi, f32_load(x + 16 * i)));
        }
    }
    return (ox_affine_moments){.w = ox_sum8_lanes(s1), .wx = ox_sum8_lanes(sx)};
}

/* Rounds (x - m) / d, and sums. */
OX_INLINE void ox_affine_round(ox_affine_moments *s, const float *x, const float *w, int lines, float top, ox_f32x16 inverse, ox_f32x16 m) {
    ox_f32x16 sq[8], sqq[8], sxq[8];
    for (int j = 0; j < 8; j++) {
        sq[j] = sqq[j] = sxq[j] = f32_zero();
        for (int i = j; i < lines; i += 8) {
            ox_f32x16 v = f32_load(x + 16 * i), wi = f32_load(w + 16 * i);
            ox_f32x16 q = ox_round(ox_clip_lanes(f32_mul(f32_sub(v, m), inverse), 0.0f, top)), wq = f32_mul(wi, q);
            sq[j] = f32_add(sq[j], wq);
            sqq[j] = f32_add(sqq[j], f32_mul(wq, q));
            sxq[j] = f32_add(sxq[j], f32_mul(f32_mul(wi, v), q));
        }
    }
    s->wq = ox_sum8_lanes(sq);
    s->wqq = ox_sum8_lanes(sqq);
    s->wxq = ox_sum8_lanes(sxq);
}

/* Rounds by (d, m), then fits: the normal equations of d q + m. With `down`, m may not be above 0. error leaves out sum w x x. */
OX_INLINE ox_affine ox_refit_affine(ox_affine_moments *s, const float *x, const float *w, int lines, float top, int down, ox_f32x16 d,
                                    ox_f32x16 m) {
    const ox_f32x16 two = f32_set1(2.0f);
    ox_affine_round(s, x, w, lines, top, f32_div(f32_set1(1.0f), d), m);
    ox_f32x16 det = f32_sub(f32_mul(s->w, s->wqq), f32_mul(s->wq, s->wq));
    ox_f32x16 bar = f32_mul(f32_mul(f32_set1(1e-6f), s->w), s->wqq);
    ox_affine fit = {d, m, f32_zero()};
    fit.d = f32_select_lt(bar, det, f32_div(f32_sub(f32_mul(s->w, s->wxq), f32_mul(s->wx, s->wq)), det), d);
    fit.m = f32_select_lt(bar, det, f32_div(f32_sub(f32_mul(s->wqq, s->wx), f32_mul(s->wq, s->wxq)), det), m);
    if (down) {
        ox_f32x16 alone = f32_select_lt(f32_zero(), s->wqq, f32_div(s->wxq, s->wqq), fit.d);
        fit.d = f32_select_lt(f32_zero(), fit.m, alone, fit.d);
        fit.m = f32_min(fit.m, f32_zero());
    }
    ox_f32x16 of_d = f32_mul(fit.d, f32_sub(f32_mul(fit.d, s->wqq), f32_mul(two, s->wxq)));
    ox_f32x16 of_m = f32_add(f32_sub(f32_mul(fit.m, s->w), f32_mul(two, s->wx)), f32_mul(f32_mul(two, fit.d), s->wq));
    fit.error = f32_add(of_d, f32_mul(fit.m, of_m));
    return fit;
}

/* Takes the fit in lanes where it is better and its d above 0; gives whether any lane took it. */
OX_INLINE int ox_keep_affine(ox_affine *best, ox_affine fit) {
    ox_f32x16 error = f32_select_lt(f32_zero(), fit.d, fit.error, f32_set1(OX_NEVER)), old = best->error;
    best->d = f32_select_lt(error, old, fit.d, best->d);
    best->m = f32_select_lt(error, old, fit.m, best->m);
    best->error = f32_select_lt(error, old, error, old);
    return f32_hmax(f32_select_lt(error, old, f32_set1(1.0f), f32_zero())) > 0.0f;
}

/* The best (d, m) of each block: the first rounding stretches the range over top - 1 .. top + `over` steps; d = 0 when all x are alike. */
OX_INLINE ox_affine ox_fit_affine(const float *x, const float *w, int lines, float top, int down, float over, int steps) {
    ox_f32x16 lo = f32_load(x), hi = lo, zero = f32_zero(), one = f32_set1(1.0f), nothing = f32_set1(OX_NOTHING);
    for (int i = 1; i < lines; i++) {
        lo = f32_min(f32_load(x + 16 * i), lo);
        hi = f32_max(f32_load(x + 16 * i), hi);
    }
    if (down) lo = f32_min(lo, zero);
    ox_f32x16 range = f32_sub(hi, lo), stretched = f32_select_lt(nothing, range, range, one);
    ox_affine best = {zero, lo, f32_select_lt(nothing, range, f32_set1(OX_NEVER), f32_set1(-OX_NEVER))}; /* -OX_NEVER: none is better */
    ox_affine_moments sums = ox_affine_sums(x, w, lines);
    for (int k = 0; k < steps; k++) {
        float span = top - 1.0f + (over + 1.0f) * (float)k / (float)(steps - 1);
        ox_f32x16 d = f32_div(stretched, f32_set1(span));
        for (int shift = 0; shift < 3; shift++) { /* what does not fit is cut off above, on both sides, or below */
            if (shift && span <= top) break;
            ox_f32x16 m = f32_add(lo, f32_mul(f32_set1((float)shift * 0.5f * (span - top)), d));
            ox_keep_affine(&best, ox_refit_affine(&sums, x, w, lines, top, down, d, down ? f32_min(m, zero) : m));
        }
    }
    for (int k = 0; k < 8; k++) {
        ox_f32x16 d = f32_select_lt(zero, best.d, best.d, one);
        ox_affine fit = ox_refit_affine(&sums, x, w, lines, top, down, d, best.m);
        fit.d = f32_select_lt(zero, best.d, fit.d, zero); /* a lane without a fit stays so */
        if (!ox_keep_affine(&best, fit)) break;
    }
    return best;
}

#endif
