/* The searches for super-blocks of 256: every sub-block has a small integer scale (and minimum) under one half (or two) of the block.
 *
 * First each sub-block is fitted alone; the block's halves follow from the largest fit; then, in turn, every sub-block picks the integers
 * near its own fit that cost least under the stored halves, and the halves are fitted to all picks at once, as long as that helps.
 *
 * On the sheet a lane is a sub-block: one block of 16, or two neighbouring blocks of 8, which take the same steps and each its own way. */
#ifndef OX_FORMATS_FIT_K_H
#define OX_FORMATS_FIT_K_H

#include "fit.h"

enum { OX_K_ROUNDS = 2 };

/* Lanes of which each holds what its block holds; a block has `per` lanes. */
OX_INLINE ox_f32x16 ox_of_blocks(const float *block, int per) {
    float lane[OX_SHEET];
    for (int l = 0; l < OX_SHEET; l++) lane[l] = block[l / per];
    return f32_load(lane);
}

/* The sum of each block's lanes, in order. */
OX_INLINE void ox_block_sums(float *sum, ox_f32x16 lanes, int per) {
    float lane[OX_SHEET];
    f32_store(lane, lanes);
    sum[0] = sum[1] = 0.0f;
    for (int l = 0; l < OX_SHEET; l++) sum[l / per] += lane[l];
}

/* OX_NEVER in lanes whose integer is outside lo..hi, error in the others. */
OX_INLINE ox_f32x16 ox_only_within(ox_f32x16 error, ox_f32x16 integer, float lo, float hi) {
    const ox_f32x16 never = f32_set1(OX_NEVER);
    return f32_select_lt(integer, f32_set1(lo), never, f32_select_lt(f32_set1(hi), integer, never, error));
}

/* ---- x ~ (d scale) q - (dmin min), q in 0..top: Q2_K, Q4_K, Q5_K ---- */

typedef struct {
    int width;       /* columns per sub-block */
    float top;       /* largest q */
    float top_scale; /* largest scale and min */
    float over;      /* how far first roundings stretch beyond top */
    int steps;       /* first roundings tried */
} ox_k_affine_kind;

typedef struct {
    float d[2], dmin[2], error[2];        /* per block */
    float scale[OX_SHEET], min[OX_SHEET]; /* per sub-block, small integers */
} ox_k_affine;

/* sum cost (x - stored)^2 of every sub-block under the scale a and the minimum b. */
OX_INLINE ox_f32x16 ox_affine_error(const ox_sheet *sheet, int lines, float top, ox_f32x16 a, ox_f32x16 b) {
    ox_f32x16 p[8], inverse = ox_inverse_lanes(a);
    for (int j = 0; j < 8; j++) {
        p[j] = f32_zero();
        for (int i = j; i < lines; i += 8) {
            ox_f32x16 v = f32_add(f32_load(sheet->x + 16 * i), b);
            ox_f32x16 e = f32_sub(v, f32_mul(a, ox_round(ox_clip_lanes(f32_mul(v, inverse), 0.0f, top))));
            p[j] = f32_add(p[j], f32_mul(f32_mul(f32_load(sheet->cost + 16 * i), e), e));
        }
    }
    return ox_sum8_lanes(p);
}

/* Picks scale and min of every sub-block under fit->d and fit->dmin, near the sub-block's own (d, m). */
OX_INLINE void ox_pick_k_affine(ox_k_affine *fit, const ox_sheet *sheet, const ox_k_affine_kind *kind, const ox_affine *own) {
    int per = 256 / kind->width;
    float top = kind->top_scale;
    ox_f32x16 d = ox_of_blocks(fit->d, per), dmin = ox_of_blocks(fit->dmin, per), best = f32_set1(OX_NEVER);
    ox_f32x16 near_scale = ox_round(ox_clip_lanes(f32_mul(own->d, ox_inverse_lanes(d)), 0.0f, top)), chosen_scale = near_scale;
    ox_f32x16 near_min = ox_round(ox_clip_lanes(f32_mul(f32_neg(own->m), ox_inverse_lanes(dmin)), 0.0f, top)), chosen_min = near_min;
    for (int s = -1; s <= 1; s++)
        for (int m = -1; m <= 1; m++) {
            ox_f32x16 scale = f32_add(near_scale, f32_set1((float)s)), min = f32_add(near_min, f32_set1((float)m));
            ox_f32x16 error = ox_affine_error(sheet, kind->width, kind->top, f32_mul(d, scale), f32_mul(dmin, min));
            error = ox_only_within(ox_only_within(error, scale, 0.0f, top), min, 0.0f, top);
            chosen_scale = f32_select_lt(error, best, scale, chosen_scale);
            chosen_min = f32_select_lt(error, best, min, chosen_min);
            best = f32_min(error, best);
        }
    f32_store(fit->scale, chosen_scale);
    f32_store(fit->min, chosen_min);
    ox_block_sums(fit->error, best, per);
}

/* The halves that fit all picks of a block best; unchanged where the picks do not determine them. */
OX_INLINE void ox_refit_k_affine(ox_k_affine *fit, const ox_sheet *sheet, const ox_k_affine_kind *kind, ox_affine_moments *sums) {
    int per = 256 / kind->width;
    float w[OX_SHEET], wx[OX_SHEET], wq[OX_SHEET], wqq[OX_SHEET], wxq[OX_SHEET];
    ox_f32x16 a = f32_mul(ox_of_blocks(fit->d, per), f32_load(fit->scale)), b = f32_mul(ox_of_blocks(fit->dmin, per), f32_load(fit->min));
    ox_affine_round(sums, sheet->x, sheet->cost, kind->width, kind->top, ox_inverse_lanes(a), f32_neg(b));
    f32_store(w, sums->w), f32_store(wx, sums->wx), f32_store(wq, sums->wq), f32_store(wqq, sums->wqq), f32_store(wxq, sums->wxq);
    for (int block = 0; block < OX_SHEET / per; block++) {
        double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
        for (int l = per * block; l < per * (block + 1); l++) {
            double scale = fit->scale[l], min = fit->min[l];
            aa += wqq[l] * scale * scale;
            ab -= wq[l] * scale * min;
            bb += w[l] * min * min;
            ax += wxq[l] * scale;
            bx -= wx[l] * min;
        }
        double det = aa * bb - ab * ab;
        if (det > 1e-9 * aa * bb) {
            fit->d[block] = ox_half_of((float)((ax * bb - bx * ab) / det));
            fit->dmin[block] = ox_half_of((float)((bx * aa - ax * ab) / det));
        } else if (aa > 0) {
            fit->d[block] = ox_half_of((float)(ax / aa));
        }
    }
}

/* The halves under which each block's largest scale and largest minimum become the largest integer. */
OX_INLINE void ox_first_halves(ox_k_affine *fit, const ox_affine *own, const ox_k_affine_kind *kind) {
    int per = 256 / kind->width;
    float d[OX_SHEET], m[OX_SHEET], top_d[2] = {0}, top_m[2] = {0};
    f32_store(d, own->d), f32_store(m, own->m);
    for (int l = 0; l < OX_SHEET; l++) {
        top_d[l / per] = d[l] > top_d[l / per] ? d[l] : top_d[l / per];
        top_m[l / per] = -m[l] > top_m[l / per] ? -m[l] : top_m[l / per];
    }
    for (int block = 0; block < 2; block++) {
        fit->d[block] = ox_half_reaching(top_d[block] / kind->top_scale);
        fit->dmin[block] = ox_half_reaching(top_m[block] / kind->top_scale);
    }
}

OX_INLINE void ox_fit_k_affine(ox_k_affine *best, const ox_sheet *sheet, const ox_k_affine_kind *kind) {
    int per = 256 / kind->width, over[2] = {0};
    ox_affine own = ox_fit_affine(sheet->x, sheet->cost, kind->width, kind->top, 1, kind->over, kind->steps);
    ox_affine_moments sums = ox_affine_sums(sheet->x, sheet->cost, kind->width);
    ox_k_affine fit;
    ox_first_halves(&fit, &own, kind);
    ox_pick_k_affine(&fit, sheet, kind, &own);
    *best = fit;
    for (int k = 0; k < OX_K_ROUNDS; k++) {
        ox_refit_k_affine(&fit, sheet, kind, &sums);
        ox_pick_k_affine(&fit, sheet, kind, &own);
        for (int block = 0; block < OX_SHEET / per; block++) {
            over[block] |= fit.d[block] < 0.0f || fit.dmin[block] < 0.0f || !(fit.error[block] < best->error[block]);
            if (over[block]) continue;
            best->d[block] = fit.d[block], best->dmin[block] = fit.dmin[block], best->error[block] = fit.error[block];
            memcpy(best->scale + per * block, fit.scale + per * block, (size_t)per * sizeof(float));
            memcpy(best->min + per * block, fit.min + per * block, (size_t)per * sizeof(float));
        }
    }
}

/* The codes of a sheet under a fit. */
OX_INLINE void ox_round_k_affine(int8_t *q, const ox_sheet *sheet, const ox_k_affine_kind *kind, const ox_k_affine *fit) {
    float d[OX_SHEET], m[OX_SHEET];
    for (int l = 0; l < OX_SHEET; l++) {
        d[l] = fit->d[l * kind->width / 256] * fit->scale[l];
        m[l] = -(fit->dmin[l * kind->width / 256] * fit->min[l]);
    }
    ox_round_sheet(q, sheet->x, kind->width, kind->top, d, m);
}

/* ---- x ~ (d scale) snapped: Q3_K, Q6_K, IQ4_XS ---- */

typedef struct {
    int width;                /* columns per sub-block */
    float scale_lo, scale_hi; /* range of scale */
    float from, to;           /* where the first roundings send the largest number */
    int steps;
} ox_k_scaled_kind;

typedef struct {
    float d[2], error[2];
    float scale[OX_SHEET];
} ox_k_scaled;

OX_INLINE void ox_pick_k_scaled(ox_k_scaled *fit, const ox_sheet *sheet, const ox_k_scaled_kind *kind, ox_snap snap, ox_f32x16 own) {
    int per = 256 / kind->width;
    float lo = kind->scale_lo, hi = kind->scale_hi;
    ox_f32x16 d = ox_of_blocks(fit->d, per), best = f32_set1(OX_NEVER);
    ox_f32x16 near = ox_round(ox_clip_lanes(f32_mul(own, ox_inverse_lanes(d)), lo, hi)), chosen = near;
    for (int s = -1; s <= 1; s++) {
        ox_f32x16 scale = f32_add(near, f32_set1((float)s));
        ox_f32x16 error = ox_scaled_error(sheet->x, sheet->cost, kind->width, f32_mul(d, scale), snap);
        error = ox_only_within(error, scale, lo, hi);
        chosen = f32_select_lt(error, best, scale, chosen);
        best = f32_min(error, best);
    }
    f32_store(fit->scale, chosen);
    ox_block_sums(fit->error, best, per);
}

OX_INLINE ox_f32x16 ox_snap_scale6(ox_f32x16 v) {
    return ox_round(ox_clip_lanes(v, -32.0f, 31.0f));
}

/* The half that fits all picks of a block best. */
OX_INLINE void ox_refit_k_scaled(ox_k_scaled *fit, const ox_sheet *sheet, const ox_k_scaled_kind *kind, ox_snap snap) {
    int per = 256 / kind->width;
    float xq[OX_SHEET], qq[OX_SHEET];
    ox_f32x16 inverse = ox_inverse_lanes(f32_mul(ox_of_blocks(fit->d, per), f32_load(fit->scale)));
    ox_moments m = ox_scaled_moments(sheet->x, sheet->cost, kind->width, inverse, snap);
    f32_store(xq, m.xq), f32_store(qq, m.qq);
    for (int block = 0; block < OX_SHEET / per; block++) {
        double aa = 0, ax = 0;
        for (int l = per * block; l < per * (block + 1); l++) {
            aa += (double)qq[l] * fit->scale[l] * fit->scale[l];
            ax += (double)xq[l] * fit->scale[l];
        }
        if (aa > 0) fit->d[block] = ox_half_of((float)(ax / aa));
    }
}

/* Three first halves per block: the largest scale becomes the lowest or the highest integer, or the integers fit all scales best by what
 * they cost. */
OX_INLINE void ox_scale_starts(float starts[3][2], const ox_sheet *sheet, const ox_k_scaled_kind *kind, ox_snap snap, ox_snap snap_scale,
                               ox_f32x16 own) {
    int per = 256 / kind->width;
    float scales[OX_SHEET], matters[OX_SHEET];
    f32_store(scales, own);
    f32_store(matters, ox_scaled_moments(sheet->x, sheet->cost, kind->width, ox_inverse_lanes(own), snap).qq);
    for (int block = 0; block < OX_SHEET / per; block++) {
        float top = 0.0f;
        for (int l = per * block; l < per * (block + 1); l++) top = ox_abs(scales[l]) > ox_abs(top) ? scales[l] : top;
        starts[0][block] = ox_half_reaching(top / kind->scale_lo);
        starts[1][block] = ox_half_reaching(top / kind->scale_hi);
        float lo = kind->scale_lo, fitted = ox_fit_row(scales + per * block, matters + per * block, per, snap_scale, 0, -0.7f * lo,
                                                       -1.1f * lo, 24);
        starts[2][block] = ox_half_of(fitted);
    }
}

/* snap is for numbers, snap_scale for scales. */
OX_INLINE void ox_fit_k_scaled(ox_k_scaled *best, const ox_sheet *sheet, const ox_k_scaled_kind *kind, ox_snap snap, ox_snap snap_scale) {
    int per = 256 / kind->width;
    float starts[3][2] = {{0}};
    ox_f32x16 own = ox_fit_scaled(sheet->x, sheet->cost, kind->width, snap, kind->from, kind->to, kind->steps);
    ox_scale_starts(starts, sheet, kind, snap, snap_scale, own);
    *best = (ox_k_scaled){.error = {OX_NEVER, OX_NEVER}};
    for (int start = 0; start < 3; start++) {
        ox_k_scaled fit = {.d = {starts[start][0], starts[start][1]}};
        for (int k = 0; k < OX_K_ROUNDS; k++) {
            if (k) ox_refit_k_scaled(&fit, sheet, kind, snap);
            ox_pick_k_scaled(&fit, sheet, kind, snap, own);
            for (int block = 0; block < OX_SHEET / per; block++) {
                if (!(fit.error[block] < best->error[block])) continue;
                best->d[block] = fit.d[block], best->error[block] = fit.error[block];
                memcpy(best->scale + per * block, fit.scale + per * block, (size_t)per * sizeof(float));
            }
        }
    }
}

#endif
