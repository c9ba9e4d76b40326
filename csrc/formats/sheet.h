/* Sheets: sixteen blocks side by side, so that one lane is one block. Line i holds column i of each.
 *
 *            block 0   block 1   ...   block 15
 *   line 0   x[0]      x[1]            x[15]       column 0 of each
 *   line 1   x[16]     x[17]           x[31]       column 1
 */
#ifndef OX_FORMATS_SHEET_H
#define OX_FORMATS_SHEET_H

#include <stddef.h>

#include "bits.h"
#ifndef OX_ISA_NAME /* whoever brings no vocabulary gets the plain one */
#include "isa/scalar.h"
#endif

enum { OX_SHEET = 16, OX_SHEET_LINES = 32 }; /* blocks of a sheet, most columns of one */

#define OX_NOTHING 0x1p-100f /* numbers below this carry nothing */
#define OX_NEVER 3.4e38f     /* an error that no choice has */

typedef struct {
    float x[OX_SHEET * OX_SHEET_LINES];    /* blocks that are not there are 0 */
    float cost[OX_SHEET * OX_SHEET_LINES]; /* what an error in x costs */
} ox_sheet;

/* What a number becomes when it is measured in units of the scale. Searches take one as an argument and are inlined around it. */
typedef ox_f32x16 (*ox_snap)(ox_f32x16 v);

OX_INLINE float ox_sum8(const float *p) {
    return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

OX_INLINE ox_f32x16 ox_sum8_lanes(const ox_f32x16 *p) {
    return f32_add(f32_add(f32_add(p[0], p[4]), f32_add(p[2], p[6])), f32_add(f32_add(p[1], p[5]), f32_add(p[3], p[7])));
}

OX_INLINE float ox_abs(float v) {
    return ox_as_float(ox_as_bits(v) & 0x7fffffff);
}

static inline float ox_max_abs(const float *x, int n) {
    float p[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) p[j] = ox_abs(x[i + j]) > p[j] ? ox_abs(x[i + j]) : p[j];
    for (int j = 1; j < 8; j++) p[0] = p[j] > p[0] ? p[j] : p[0];
    return p[0];
}

OX_INLINE ox_f32x16 ox_max_abs_lanes(const float *x, int lines) {
    ox_f32x16 top = f32_abs(f32_load(x));
    for (int i = 1; i < lines; i++) top = f32_max(f32_abs(f32_load(x + 16 * i)), top);
    return top;
}

OX_INLINE ox_f32x16 ox_clip_lanes(ox_f32x16 v, float lo, float hi) {
    return f32_min(f32_max(v, f32_set1(lo)), f32_set1(hi));
}

/* To the nearest integer, ties to even, for |v| < 2^22. */
OX_INLINE ox_f32x16 ox_round(ox_f32x16 v) {
    return f32_sub(f32_add(v, f32_set1(12582912.0f)), f32_set1(12582912.0f));
}

/* The finite half nearest to f. */
static inline float ox_half_of(float f) {
    f = f < -65504.0f ? -65504.0f : f > 65504.0f ? 65504.0f : f;
    return ox_half_to_float(ox_float_to_half(f));
}

/* A half for f that is not nearer to zero than f, where halves are so coarse that integers under the nearest one could not reach: subnormal. */
static inline float ox_half_reaching(float f) {
    float half = ox_half_of(f), size = ox_abs(f);
    return size < 0x1p-14f && ox_abs(half) < size ? half + (f < 0.0f ? -0x1p-24f : 0x1p-24f) : half;
}

/* Writes f as a finite half and returns what was stored. */
static inline float ox_put_scale(uint8_t *p, float f) {
    float stored = ox_half_of(f);
    ox_store16(p, ox_float_to_half(stored));
    return stored;
}

/* 16 numbers as the finite halves nearest to them. */
static inline void ox_store_halves(float *out, ox_f32x16 f) {
    f32_store(out, f);
    for (int l = 0; l < OX_SHEET; l++) out[l] = ox_half_of(out[l]);
}

/* 1 / d; 0 for a scale so small that it carries nothing. */
OX_INLINE float ox_inverse(float d) {
    return ox_abs(d) > 0x1p-120f ? 1.0f / d : 0.0f;
}

OX_INLINE ox_f32x16 ox_inverse_lanes(ox_f32x16 d) {
    return f32_select_lt(f32_set1(0x1p-120f), f32_abs(d), f32_div(f32_set1(1.0f), d), f32_zero());
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

/* Lays runs of `lines` numbers side by side; where there are fewer than 16, the others are 0. */
static inline void ox_lay(float *sheet, const float *x, int lines, int there) {
    if (there < OX_SHEET) memset(sheet, 0, sizeof(float) * OX_SHEET * (size_t)lines);
    for (int i = 0; i < lines; i += 8)
        for (int l = 0; l < there; l++)
            for (int j = 0; j < 8; j++) sheet[OX_SHEET * (i + j) + l] = x[l * lines + i + j];
}

/* Lays the next blocks of `lines` columns, at most 16 and what `columns` leaves; gives their number. Costs are balanced over runs of
 * `span` columns: a block, or all the sub-blocks of one. */
static inline int ox_lay_blocks(ox_sheet *sheet, const float *x, const float *weights, int64_t columns, int lines, int span) {
    float cost[OX_SHEET * OX_SHEET_LINES];
    int there = (int)(columns / lines < OX_SHEET ? columns / lines : OX_SHEET);
    ox_lay(sheet->x, x, lines, there);
    for (int at = 0; at < there * lines; at += span) ox_costs(cost + at, weights ? weights + at : NULL, span);
    ox_lay(sheet->cost, cost, lines, there);
    return there;
}

OX_INLINE ox_f32x16 ox_snap_byte(ox_f32x16 v) {
    return ox_round(ox_clip_lanes(v, -127.0f, 127.0f));
}

/* Writes snap(x / d) of one block as small integers; n is a multiple of 16. */
OX_INLINE void ox_snap_all(int8_t *q, const float *x, int n, float d, ox_snap snap) {
    ox_f32x16 inverse = f32_set1(ox_inverse(d));
    for (int i = 0; i < n; i += 16) i32_store_i8(q + i, f32_to_i32(snap(f32_mul(f32_load(x + i), inverse))));
}

/* The same for a sheet, each block by its own d. */
OX_INLINE void ox_snap_sheet(int8_t *q, const float *x, int lines, const float *d, ox_snap snap) {
    ox_f32x16 inverse = ox_inverse_lanes(f32_load(d));
    for (int i = 0; i < lines; i++) i32_store_i8(q + 16 * i, f32_to_i32(snap(f32_mul(f32_load(x + 16 * i), inverse))));
}

/* Writes round((x - m) / d) of a sheet, clipped to 0..top. */
OX_INLINE void ox_round_sheet(int8_t *q, const float *x, int lines, float top, const float *d, const float *m) {
    ox_f32x16 inverse = ox_inverse_lanes(f32_load(d)), least = f32_load(m);
    for (int i = 0; i < lines; i++) {
        ox_f32x16 v = f32_mul(f32_sub(f32_load(x + 16 * i), least), inverse);
        i32_store_i8(q + 16 * i, f32_to_i32(ox_round(ox_clip_lanes(v, 0.0f, top))));
    }
}

/* The codes of `count` blocks off a sheet, from block `first` on, one after another. */
OX_INLINE void ox_take(int8_t *q, const int8_t *sheet, int lines, int first, int count) {
    for (int l = 0; l < count; l++)
        for (int i = 0; i < lines; i++) q[lines * l + i] = sheet[OX_SHEET * i + first + l];
}

#endif
