/* The search behind `quantise` of the IQ1, IQ2 and IQ3 formats: points of a lattice, signs and small integer scales under one half.
 *
 * For a given scale the nearest point is found exactly: the cost of a point is the sum of two table entries, one per half of its
 * coordinates; points with the same upper half stand together (grids.h), so the cheapest lower half of each such run is enough.
 * Scales: each sub-block is fitted alone, the block's half follows from the largest, then sub-blocks pick codes near their own fit under
 * the stored half, and the half is fitted to all picks, as long as that helps. A scale code c stands for 2 c + 1 units.
 *
 * On the sheet a lane is a sub-block, as in fit_k.h; each lane has tables of its own, entry after entry. */
#ifndef OX_FORMATS_FIT_LATTICE_H
#define OX_FORMATS_FIT_LATTICE_H

#include "fit_k.h"
#include "lattice.h"

enum { OX_LATTICE_ROUNDS = 2 }; /* more gain less than 0.3 % */
enum { OX_MOST_POINTS = 8, OX_MOST_GROUPS = 4 }; /* of a sub-block: points; groups of 8 columns */

typedef struct {
    const uint16_t *points, *runs, *uppers;
    int run_count;
    int coordinates;     /* 8 (2 bits each) or 4 (3 bits each) */
    const float *levels; /* what the coordinates mean */
    int signs;           /* 0: points are signed themselves; 1: any signs; 2: an even number of minus signs in 8 columns */
    int shifts;          /* 0: none; 1: one of +-1/8 per sub-block; 2: one per point */
    int width;           /* columns per scale */
    int codes;           /* scale codes */
    float unit;          /* d is multiplied by unit (2 code + 1) */
    float from, to;      /* where first tries send the largest number, in levels */
    int steps;
} ox_lattice_kind;

/* What was found for one block. */
typedef struct {
    float d;
    uint8_t scale[16]; /* per sub-block */
    uint16_t point[64];
    uint8_t signs[32]; /* per 8 columns */
    uint8_t shift[32]; /* per 8 columns: 1 = -1/8 */
} ox_lattice_fit;

/* What a sheet's sub-blocks chose. Lines of 16 lanes. */
typedef struct {
    float point[OX_MOST_POINTS * OX_SHEET];
    float shift[OX_MOST_GROUPS * OX_SHEET];
} ox_lattice_picks;

/* out = x where a < b, in `lines` lines. */
static inline void ox_take_lines(float *out, const float *x, int lines, ox_f32x16 a, ox_f32x16 b) {
    for (int i = 0; i < lines; i++) f32_store(out + 16 * i, f32_select_lt(a, b, f32_load(x + 16 * i), f32_load(out + 16 * i)));
}

/* Numbers of the cheapest points, the lowest where several are; lower[16 i + l], upper[16 i + l]: what it costs lane l that the lower or
 * upper half of the coordinates is i. Gives the costs. */
static ox_f32x16 ox_nearest_points(const ox_lattice_kind *kind, const float *lower, const float *upper, float *point) {
    int mask = kind->coordinates == 8 ? 255 : 63;
    ox_f32x16 best = f32_set1(OX_NEVER), run = f32_zero();
    float costs[OX_SHEET], runs[OX_SHEET];
    for (int r = 0; r < kind->run_count; r++) {
        int i = kind->runs[r], end = kind->runs[r + 1];
        ox_f32x16 least = f32_load(lower + 16 * (kind->points[i] & mask));
        while (++i < end) least = f32_min(f32_load(lower + 16 * (kind->points[i] & mask)), least);
        ox_f32x16 total = f32_add(f32_load(upper + 16 * kind->uppers[r]), least);
        run = f32_select_lt(total, best, f32_set1((float)r), run);
        best = f32_min(total, best);
    }
    f32_store(costs, best), f32_store(runs, run);
    for (int l = 0; l < OX_SHEET; l++) {
        int r = (int)runs[l], i = kind->runs[r], last = kind->runs[r + 1] - 1;
        float above = upper[16 * kind->uppers[r] + l];
        while (i < last && above + lower[16 * (kind->points[i] & mask) + l] != costs[l]) i++;
        point[l] = (float)i;
    }
    return best;
}

/* Costs of both halves of a point for numbers x (signs removed), weights w and scale a, without sum w x x. */
static void ox_half_costs(const ox_lattice_kind *kind, const float *x, const float *w, ox_f32x16 a, float shift, float *lower, float *upper) {
    int levels = kind->coordinates == 8 ? 3 : 8;
    ox_f32x16 one[8][8], pair[2][9];
    for (int j = 0; j < kind->coordinates; j++)
        for (int k = 0; k < levels; k++) {
            ox_f32x16 v = f32_mul(a, f32_set1(kind->levels[k] + shift)), twice = f32_mul(f32_set1(2.0f), f32_load(x + 16 * j));
            one[j][k] = f32_mul(f32_mul(f32_load(w + 16 * j), v), f32_sub(v, twice));
        }
    for (int half = 0; half < 2; half++) {
        float *out = half ? upper : lower;
        if (levels == 8) {
            for (int h = 0; h < 8; h++)
                for (int k = 0; k < 8; k++) f32_store(out + 16 * (8 * h + k), f32_add(one[2 * half][k], one[2 * half + 1][h]));
            continue;
        }
        for (int p = 0; p < 2; p++)
            for (int h = 0; h < 3; h++)
                for (int k = 0; k < 3; k++) pair[p][3 * h + k] = f32_add(one[4 * half + 2 * p][k], one[4 * half + 2 * p + 1][h]);
        for (int h = 0; h < 9; h++)
            for (int k = 0; k < 9; k++)
                f32_store(out + 16 * (64 * (h / 3) + 16 * (h % 3) + 4 * (k / 3) + k % 3), f32_add(pair[1][h], pair[0][k]));
    }
}

/* Adds the moments of the chosen points. */
static void ox_point_moments(const ox_lattice_kind *kind, const float *x, const float *w, float shift, const float *point, ox_moments *m) {
    int bits = kind->coordinates == 8 ? 2 : 3;
    float q[8 * OX_SHEET];
    for (int l = 0; l < OX_SHEET; l++) {
        unsigned code = kind->points[(int)point[l]];
        for (int j = 0; j < kind->coordinates; j++) q[16 * j + l] = kind->levels[code >> bits * j & ((1u << bits) - 1)] + shift;
    }
    for (int j = 0; j < kind->coordinates; j++) {
        ox_f32x16 v = f32_load(q + 16 * j), wi = f32_load(w + 16 * j);
        m->xq = f32_add(m->xq, f32_mul(f32_mul(wi, f32_load(x + 16 * j)), v));
        m->qq = f32_add(m->qq, f32_mul(f32_mul(wi, v), v));
    }
}

/* One group of 8 columns under scale a: the best points, in `point`; sets the moments of what was chosen, gives the cost. */
static ox_f32x16 ox_try_group(const ox_lattice_kind *kind, const float *x, const float *w, ox_f32x16 a, float shift, float *point,
                              ox_moments *m) {
    float lower[171 * OX_SHEET], upper[171 * OX_SHEET]; /* the largest half of coordinates is 2 2 2 2: 0xaa */
    ox_f32x16 total = f32_zero();
    *m = (ox_moments){f32_zero(), f32_zero()};
    for (int c = 0; c < 8; c += kind->coordinates, point += OX_SHEET) {
        ox_half_costs(kind, x + 16 * c, w + 16 * c, a, shift, lower, upper);
        total = f32_add(total, ox_nearest_points(kind, lower, upper, point));
        ox_point_moments(kind, x + 16 * c, w + 16 * c, shift, point, m);
    }
    return total;
}

/* Every sub-block under its scale a: the best picks; gives the costs, leaving out sum w x x, and the moments. */
static ox_f32x16 ox_try_lattice(const ox_lattice_kind *kind, const ox_sheet *sheet, ox_f32x16 a, ox_lattice_picks *picks, ox_moments *m) {
    int groups = kind->width / 8, per_group = 8 / kind->coordinates;
    ox_f32x16 best = f32_set1(OX_NEVER);
    for (int side = 0; side < (kind->shifts == 1 ? 2 : 1); side++) { /* a shift for the whole sub-block: try one after the other */
        float shift = kind->shifts ? side ? -0.125f : 0.125f : 0.0f, other_point[2 * OX_SHEET];
        ox_f32x16 total = f32_zero();
        ox_moments sums = {f32_zero(), f32_zero()};
        ox_lattice_picks now;
        for (int g = 0; g < groups; g++) {
            const float *x = sheet->x + 128 * g, *w = sheet->cost + 128 * g;
            float *point = now.point + 16 * per_group * g;
            ox_moments here, other;
            ox_f32x16 cost = ox_try_group(kind, x, w, a, shift, point, &here), minus = f32_set1((float)side);
            if (kind->shifts == 2) {
                ox_f32x16 second = ox_try_group(kind, x, w, a, -0.125f, other_point, &other);
                minus = f32_select_lt(second, cost, f32_set1(1.0f), f32_zero());
                ox_take_lines(point, other_point, per_group, second, cost);
                here.xq = f32_select_lt(second, cost, other.xq, here.xq);
                here.qq = f32_select_lt(second, cost, other.qq, here.qq);
                cost = f32_min(second, cost);
            }
            f32_store(now.shift + 16 * g, minus);
            total = f32_add(total, cost);
            sums.xq = f32_add(sums.xq, here.xq);
            sums.qq = f32_add(sums.qq, here.qq);
        }
        ox_take_lines(picks->point, now.point, groups * per_group, total, best);
        ox_take_lines(picks->shift, now.shift, groups, total, best);
        m->xq = f32_select_lt(total, best, sums.xq, m->xq);
        m->qq = f32_select_lt(total, best, sums.qq, m->qq);
        best = f32_min(total, best);
    }
    return best;
}

/* The scale that suits each sub-block best on its own; 0 where there is nothing. */
static ox_f32x16 ox_fit_lattice_alone(const ox_lattice_kind *kind, const ox_sheet *sheet) {
    ox_f32x16 top = ox_max_abs_lanes(sheet->x, kind->width);
    ox_best best = {f32_zero(), f32_zero()};
    ox_lattice_picks room = {{0}, {0}};
    top = f32_select_lt(top, f32_set1(OX_NOTHING), f32_zero(), top);
    for (int k = 0; k < kind->steps + 2; k++) { /* two more tries from the best one */
        float to = kind->from + (kind->to - kind->from) * (float)k / (float)(kind->steps - 1);
        ox_f32x16 a = k < kind->steps ? f32_div(top, f32_set1(to)) : best.d;
        ox_moments m = {f32_zero(), f32_zero()};
        ox_try_lattice(kind, sheet, a, &room, &m);
        ox_keep_scale(&best, m, f32_min(a, m.xq));
    }
    return best.d;
}

/* Picks codes and points of every sub-block under its block's d; gives the errors, and in `next` which d would suit each block better. */
static ox_f32x16 ox_pick_lattice(const ox_lattice_kind *kind, const ox_sheet *sheet, const float *d, ox_f32x16 own, float *scale,
                                 ox_lattice_picks *picks, float *next) {
    int per = 256 / kind->width, lines = kind->width / kind->coordinates;
    float xq[2], qq[2], most = (float)(kind->codes - 1);
    ox_f32x16 one = f32_set1(1.0f), unit = f32_mul(ox_of_blocks(d, per), f32_set1(kind->unit)), best = f32_set1(OX_NEVER);
    ox_f32x16 units = f32_sub(f32_mul(own, ox_inverse_lanes(unit)), one);
    ox_f32x16 near = ox_round(ox_clip_lanes(f32_mul(f32_set1(0.5f), units), 0.0f, most)), chosen = near;
    ox_moments sums = {f32_zero(), f32_zero()};
    for (int step = -1; step <= 1; step++) {
        ox_f32x16 code = f32_add(near, f32_set1((float)step)), times = f32_add(f32_add(code, code), one);
        ox_lattice_picks room = {{0}, {0}};
        ox_moments m = {f32_zero(), f32_zero()};
        ox_f32x16 error = ox_only_within(ox_try_lattice(kind, sheet, f32_mul(unit, times), &room, &m), code, 0.0f, most);
        ox_take_lines(picks->point, room.point, lines, error, best);
        ox_take_lines(picks->shift, room.shift, kind->width / 8, error, best);
        chosen = f32_select_lt(error, best, code, chosen);
        sums.xq = f32_select_lt(error, best, f32_mul(m.xq, times), sums.xq);
        sums.qq = f32_select_lt(error, best, f32_mul(f32_mul(m.qq, times), times), sums.qq);
        best = f32_min(error, best);
    }
    f32_store(scale, chosen);
    ox_block_sums(xq, sums.xq, per), ox_block_sums(qq, sums.qq, per);
    for (int block = 0; block < 2; block++) next[block] = qq[block] > 0.0f ? ox_half_of(xq[block] / qq[block] / kind->unit) : 0.0f;
    return best;
}

/* Removes the signs of a sheet's numbers, 8 at a time; where their number must be even, the number that matters least takes the wrong one. */
static void ox_take_signs(const ox_lattice_kind *kind, ox_sheet *sheet, uint8_t *signs) {
    for (int l = 0; kind->signs && l < OX_SHEET; l++)
        for (int g = 0; g < kind->width / 8; g++) {
            float *x = sheet->x + 128 * g + l, *w = sheet->cost + 128 * g + l;
            unsigned minus = 0, count = 0, cheapest = 0;
            for (unsigned j = 0; j < 8; j++) {
                if (x[16 * j] < 0.0f) minus |= 1u << j, count++;
                x[16 * j] = ox_abs(x[16 * j]);
                if (w[16 * j] * x[16 * j] < w[16 * cheapest] * x[16 * cheapest]) cheapest = j;
            }
            if (kind->signs == 2 && count & 1) {
                minus ^= 1u << cheapest;
                x[16 * cheapest] = -x[16 * cheapest];
            }
            signs[OX_MOST_GROUPS * l + g] = (uint8_t)minus;
        }
}

/* One block's picks off the sheet. */
static void ox_keep_lattice(const ox_lattice_kind *kind, ox_lattice_fit *fit, int block, float d, const float *scale,
                            const ox_lattice_picks *picks, const uint8_t *signs) {
    int per = 256 / kind->width, points = kind->width / kind->coordinates, groups = kind->width / 8;
    fit->d = d;
    for (int s = 0; s < per; s++) {
        int l = per * block + s;
        fit->scale[s] = (uint8_t)scale[l];
        for (int p = 0; p < points; p++) fit->point[points * s + p] = (uint16_t)picks->point[16 * p + l];
        for (int g = 0; g < groups; g++) {
            fit->shift[groups * s + g] = (uint8_t)picks->shift[16 * g + l];
            fit->signs[groups * s + g] = signs[OX_MOST_GROUPS * l + g];
        }
    }
}

/* Fits the next blocks, one or two of the `columns` that are left; gives their number. */
static int ox_fit_lattice(const ox_lattice_kind *kind, const float *x, const float *weights, int64_t columns, ox_lattice_fit *fits) {
    int per = 256 / kind->width, over[2] = {0};
    uint8_t signs[OX_MOST_GROUPS * OX_SHEET] = {0};
    float own[OX_SHEET], d[2] = {0}, least[2];
    ox_sheet sheet;
    int blocks = ox_lay_blocks(&sheet, x, weights, columns, kind->width, 256) / per;
    ox_take_signs(kind, &sheet, signs);
    ox_f32x16 alone = ox_fit_lattice_alone(kind, &sheet);
    f32_store(own, alone);
    for (int l = 0; l < OX_SHEET; l++) d[l / per] = own[l] > d[l / per] ? own[l] : d[l / per];
    for (int block = 0; block < blocks; block++) {
        d[block] = ox_half_of(d[block] / (kind->unit * (float)(2 * kind->codes - 1)));
        fits[block] = (ox_lattice_fit){0};
        over[block] = !(d[block] > 0.0f);
    }
    for (int k = 0; k < OX_LATTICE_ROUNDS; k++) {
        float scale[OX_SHEET], next[2], error[2];
        ox_lattice_picks picks = {{0}, {0}};
        ox_block_sums(error, ox_pick_lattice(kind, &sheet, d, alone, scale, &picks, next), per);
        for (int block = 0; block < blocks; block++) {
            over[block] |= k && !(error[block] < least[block]);
            if (over[block]) continue;
            ox_keep_lattice(kind, fits + block, block, d[block], scale, &picks, signs);
            least[block] = error[block];
            over[block] = next[block] == d[block] || !(next[block] > 0.0f);
            d[block] = next[block];
        }
    }
    return blocks;
}

#endif
