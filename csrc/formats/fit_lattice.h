/* The search behind `quantise` of the IQ1, IQ2 and IQ3 formats: points of a lattice, signs and small integer scales under one half.
 *
 * For a given scale the nearest point is found exactly: the cost of a point is the sum of two table entries, one per half of its
 * coordinates; points with the same upper half stand together (grids.h), and a run whose upper half alone costs too much is skipped.
 * Scales: each sub-block is fitted alone, the block's half follows from the largest, then sub-blocks pick codes near their own fit under
 * the stored half, and the half is fitted to all picks, as long as that helps. A scale code c stands for 2 c + 1 units. */
#ifndef OX_FORMATS_FIT_LATTICE_H
#define OX_FORMATS_FIT_LATTICE_H

#include "fit_k.h"
#include "lattice.h"

enum { OX_LATTICE_ROUNDS = 2 }; /* more gain less than 0.3 % */
enum { OX_MOST_RUNS = 88 }; /* 3^4 upper halves, or 8^2, and up to the next multiple of 8 */

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

typedef struct {
    float d, error;
    uint8_t scale[16]; /* per sub-block */
    uint16_t point[64];
    uint8_t signs[32]; /* per 8 columns */
    uint8_t shift[32]; /* per 8 columns: 1 = -1/8 */
} ox_lattice_fit;

/* Number of the cheapest point; lower[i], upper[i]: what it costs that the lower or upper half of the coordinates is i; least: of lower. */
static inline int ox_nearest_point(const ox_lattice_kind *kind, const float *lower, float least, const float *upper, float *cost) {
    int mask = kind->coordinates == 8 ? 255 : 63, first = 0, nearest = 0;
    float above[OX_MOST_RUNS], lane[8], best = 3.4e38f;
    for (int r = 0; r < OX_MOST_RUNS; r++) above[r] = r < kind->run_count ? upper[kind->uppers[r]] : 3.4e38f;
    for (int j = 0; j < 8; j++) lane[j] = above[j];
    for (int r = 8; r < OX_MOST_RUNS; r += 8)
        for (int j = 0; j < 8; j++) lane[j] = above[r + j] < lane[j] ? above[r + j] : lane[j];
    for (int j = 0; j < 8; j++) best = lane[j] < best ? lane[j] : best;
    while (above[first] != best) first++;
    best = 3.4e38f;
    for (int k = -8; k < OX_MOST_RUNS; k += 8) { /* the most promising run goes first, then all others in order, 8 at a time */
        int hit = k < 0, start = k < 0 ? first : k, end = k < 0 ? first + 1 : k + 8;
        for (int j = 0; k >= 0 && j < 8; j++) hit |= above[k + j] + least < best;
        for (int r = start; hit && r < end; r++) {
            if (above[r] + least >= best) continue;
            for (int i = kind->runs[r]; i < kind->runs[r + 1]; i++) {
                float total = above[r] + lower[kind->points[i] & mask];
                if (total < best) {
                    best = total;
                    nearest = i;
                }
            }
        }
    }
    *cost = best;
    return nearest;
}

/* Costs of both halves of a point for numbers x (signs removed), weights w and scale a, without sum w x x; gives the least lower one. */
static inline float ox_half_costs(const ox_lattice_kind *kind, const float *x, const float *w, float a, float shift, float *lower,
                                  float *upper) {
    int eight = kind->coordinates == 8;
    float one[8][8], least = 0.0f;
    for (int j = 0; j < kind->coordinates; j++)
        for (int l = 0; l < (eight ? 4 : 8); l++) {
            float v = a * (kind->levels[l] + shift);
            one[j][l] = w[j] * v * (v - 2.0f * x[j]);
        }
    for (int j = 0; j < kind->coordinates / 2; j++) {
        float cheapest = one[j][0];
        for (int l = 1; l < (eight ? 3 : 8); l++) cheapest = one[j][l] < cheapest ? one[j][l] : cheapest;
        least += cheapest;
    }
    for (int half = 0; half < 2; half++) {
        float *out = half ? upper : lower;
        if (!eight) {
            for (int h = 0; h < 8; h++)
                for (int l = 0; l < 8; l++) out[8 * h + l] = one[2 * half][l] + one[2 * half + 1][h];
        } else { /* coordinates are 0, 1, 2: what 3 would cost is computed and never read */
            float pair[2][16];
            for (int p = 0; p < 2; p++)
                for (int h = 0; h < 4; h++)
                    for (int l = 0; l < 4; l++) pair[p][4 * h + l] = one[4 * half + 2 * p][l] + one[4 * half + 2 * p + 1][h];
            for (int h = 0; h < 11; h++)
                for (int l = 0; l < 16; l++) out[16 * h + l] = pair[1][h] + pair[0][l];
        }
    }
    return least * (1.0f + 1e-5f * (least < 0.0f ? 1.0f : -1.0f)); /* a bound must not lose a point to rounding */
}

/* One group of 8 columns under scale a: the best points, in `point`; adds to the moments of what was chosen, gives the cost. */
static inline float ox_try_group(const ox_lattice_kind *kind, const float *x, const float *w, float a, float shift, uint16_t *point,
                                 ox_moments *m) {
    float total = 0.0f;
    for (int c = 0, p = 0; c < 8; c += kind->coordinates, p++) {
        float lower[256], upper[256], cost;
        float least = ox_half_costs(kind, x + c, w + c, a, shift, lower, upper);
        point[p] = (uint16_t)ox_nearest_point(kind, lower, least, upper, &cost);
        total += cost;
        unsigned code = kind->points[point[p]];
        for (int j = 0; j < kind->coordinates; j++) {
            float q = kind->levels[kind->coordinates == 8 ? code >> 2 * j & 3 : code >> 3 * j & 7] + shift;
            m->xq += w[c + j] * x[c + j] * q;
            m->qq += w[c + j] * q * q;
        }
    }
    return total;
}

/* Removes the signs of 8 numbers; where their number must be even, the number that matters least takes the wrong one. */
static inline uint8_t ox_take_signs(const ox_lattice_kind *kind, const float *x, const float *w, float *magnitude) {
    unsigned signs = 0, count = 0, cheapest = 0;
    for (unsigned j = 0; j < 8; j++) {
        magnitude[j] = kind->signs ? ox_abs(x[j]) : x[j];
        if (kind->signs && x[j] < 0.0f) signs |= 1u << j, count++;
        if (w[j] * magnitude[j] < w[cheapest] * magnitude[cheapest]) cheapest = j;
    }
    if (kind->signs == 2 && count & 1) {
        signs ^= 1u << cheapest;
        magnitude[cheapest] = -magnitude[cheapest];
    }
    return (uint8_t)signs;
}

/* One sub-block under scale a, written to `fit` at sub-block s; gives the cost, leaving out sum w x x, and the moments. */
static inline float ox_try_lattice(const ox_lattice_kind *kind, const float *x, const float *w, float a, int s, ox_lattice_fit *fit,
                                   ox_moments *m) {
    int groups = kind->width / 8, per_group = 8 / kind->coordinates, g0 = s * groups;
    float best_all = 3.4e38f;
    uint16_t keep[16] = {0};
    for (int side = 0; side < (kind->shifts == 1 ? 2 : 1); side++) { /* a shift for the whole sub-block: try one after the other */
        ox_moments sums = {0, 0};
        uint16_t chosen[16];
        float total = 0.0f;
        for (int g = 0; g < groups; g++) {
            const float *xg = x + (g0 + g) * 8, *wg = w + (g0 + g) * 8;
            float magnitude[8], shift = kind->shifts ? side ? -0.125f : 0.125f : 0.0f;
            ox_moments here = {0, 0};
            fit->signs[g0 + g] = ox_take_signs(kind, xg, wg, magnitude);
            float cost = ox_try_group(kind, magnitude, wg, a, shift, chosen + g * per_group, &here);
            if (kind->shifts == 2) {
                ox_moments other = {0, 0};
                uint16_t point[2];
                float second = ox_try_group(kind, magnitude, wg, a, -0.125f, point, &other);
                fit->shift[g0 + g] = second < cost;
                if (second < cost) {
                    cost = second;
                    here = other;
                    chosen[g] = point[0];
                }
            }
            total += cost;
            sums.xq += here.xq;
            sums.qq += here.qq;
        }
        if (total < best_all) {
            best_all = total;
            *m = sums;
            memcpy(keep, chosen, sizeof keep);
            if (kind->shifts == 1) memset(fit->shift + g0, side, (size_t)groups);
        }
    }
    memcpy(fit->point + g0 * per_group, keep, (size_t)(groups * per_group) * sizeof keep[0]);
    return best_all;
}

/* The scale that suits sub-block s best on its own. */
static inline float ox_fit_one_lattice(const ox_lattice_kind *kind, const float *x, const float *w, int s, ox_lattice_fit *room) {
    float top = ox_max_abs(x + s * kind->width, kind->width), best = 0.0f, best_a = 0.0f;
    ox_moments m = {0, 0};
    if (top < 0x1p-100f) return 0.0f;
    for (int k = 0; k < kind->steps + 2; k++) { /* two more tries from the best one */
        float a = k < kind->steps ? top / (kind->from + (kind->to - kind->from) * (float)k / (float)(kind->steps - 1)) : best_a;
        if (!(a > 0.0f)) break;
        ox_try_lattice(kind, x, w, a, s, room, &m);
        if (m.qq > 0.0f && m.xq > 0.0f && m.xq * m.xq > best * m.qq) {
            best = m.xq * m.xq / m.qq;
            best_a = m.xq / m.qq;
        } else if (k >= kind->steps) {
            break;
        }
    }
    return best_a;
}

/* Picks codes, points and signs of every sub-block under fit->d, and says which d would suit them all better. */
static inline float ox_pick_lattice(const ox_lattice_kind *kind, const float *x, const float *w, const float *own, ox_lattice_fit *fit) {
    float xq = 0.0f, qq = 0.0f, unit = fit->d * kind->unit;
    fit->error = 0.0f;
    for (int s = 0; s * kind->width < 256; s++) {
        int near = (int)ox_round(ox_clip(0.5f * (own[s] * ox_inverse(unit) - 1.0f), 0.0f, (float)(kind->codes - 1)));
        ox_lattice_fit best_room = *fit;
        ox_moments best_m = {0, 0};
        float best = 3.4e38f;
        int chosen = near;
        for (int code = near - 1; code <= near + 1; code++) {
            ox_lattice_fit room = *fit;
            ox_moments m = {0, 0};
            if (code < 0 || code >= kind->codes) continue;
            float error = ox_try_lattice(kind, x, w, unit * (float)(2 * code + 1), s, &room, &m);
            if (error < best) {
                best = error;
                best_m = m;
                best_room = room;
                chosen = code;
            }
        }
        *fit = best_room;
        fit->scale[s] = (uint8_t)chosen;
        fit->error += best;
        xq += best_m.xq * (float)(2 * chosen + 1);
        qq += best_m.qq * (float)(2 * chosen + 1) * (float)(2 * chosen + 1);
    }
    return qq > 0.0f ? ox_half_of(xq / qq / kind->unit) : 0.0f;
}

static inline void ox_fit_lattice(const ox_lattice_kind *kind, const float *x, const float *weights, ox_lattice_fit *best) {
    float cost[256], own[16], top = 0.0f;
    ox_lattice_fit fit = {0};
    ox_costs(cost, weights, 256);
    for (int s = 0; s * kind->width < 256; s++) {
        own[s] = ox_fit_one_lattice(kind, x, cost, s, &fit);
        top = own[s] > top ? own[s] : top;
    }
    memset(&fit, 0, sizeof fit);
    *best = fit;
    fit.d = ox_half_of(top / (kind->unit * (float)(2 * kind->codes - 1)));
    for (int k = 0; k < OX_LATTICE_ROUNDS && fit.d > 0.0f; k++) {
        float next = ox_pick_lattice(kind, x, cost, own, &fit);
        if (k && !(fit.error < best->error)) break;
        *best = fit;
        if (next == fit.d) break;
        fit.d = next;
    }
}

#endif
