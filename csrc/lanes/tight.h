/* Tight panels (panel.h): 16-bit floats read as one byte and a nibble. A table look-up and an interleaving of bytes give back pairs of columns, exactly;
 * exceptions are mended on the way. What is multiplied then, and in what order, is as of plain panels (tiles.h, pairs.inc), so every bit is.
 *
 * A token reads a quarter fewer bytes. Eight columns of 16 rows take 17 instructions on AVX-512 beside their 8 fused multiply-adds. */
#ifndef OX_LANES_TIGHT_H
#define OX_LANES_TIGHT_H
#include "lanes/tiles.h"

/* A place in a tight panel. */
typedef struct {
    const uint8_t *p;                   /* the unit that is read next */
    const uint32_t *list, *end, *more;  /* the next exception but one; where those of the head end; where the others are */
    uint32_t exception;                 /* the next one */
    ox_u8x64 table;
} ox_tight;

OX_INLINE ox_tight tight_at(const uint8_t *panel, int64_t cols)
{
    const uint32_t *list = (const uint32_t *)(panel + 16);
    return (ox_tight){ panel + TIGHT_HEAD, list + 1, list + TIGHT_FIRST,
                       (const uint32_t *)(panel + TIGHT_HEAD + cols / TIGHT_COLS * TIGHT_UNIT), list[0], u8_table(panel) };
}

/* Puts the exceptions of a unit into its high bytes. */
OX_NOINLINE static void tight_mend(ox_tight *t, uint8_t *high)
{
    const uint32_t unit = t->exception >> 15;
    do {
        high[t->exception >> 8 & 127] = (uint8_t)t->exception;
        if (t->list == t->end)
            t->list = t->more;
        t->exception = *t->list++;
    } while (t->exception >> 15 == unit);
}

/* Eight columns, as four vectors of pairs; `unit` is their number. */
OX_INLINE void tight_unit(ox_i32x16 *pairs, ox_tight *t, uint32_t unit)
{
    ox_u8x64 codes = u8_load(t->p), high[2] = { u8_lookup(t->table, u8_low4(codes)), u8_lookup(t->table, u8_high4(codes)) };
    if (__builtin_expect(t->exception >> 15 == unit, 0)) {
        OX_ALIGN(64) uint8_t own[128];
        u8_store(own, high[0]);
        u8_store(own + 64, high[1]);
        ox_tight at = *t;               /* a copy, so that the place itself can stay in registers */
        tight_mend(&at, own);
        t->list = at.list, t->end = at.end, t->exception = at.exception;
        high[0] = u8_load(own), high[1] = u8_load(own + 64);
    }
    OX_UNROLL for (int i = 0; i < 2; i++) {
        ox_u8x64 low = u8_load(t->p + 64 + 64 * i);
        pairs[2 * i] = u8_zip_low(low, high[i]);
        pairs[2 * i + 1] = u8_zip_high(low, high[i]);
    }
    t->p += TIGHT_UNIT;
}

OX_INLINE ox_f32x16 pair_even(ox_i32x16 pairs) { return i32_as_f32(i32_shl(pairs, 16)); }
OX_INLINE ox_f32x16 pair_odd(ox_i32x16 pairs) { return i32_as_f32(i32_and(pairs, i32_set1((int32_t)0xffff0000))); }

/* ---- F16: two chains per output, as tile_float has them */

OX_INLINE void tile_tight_float(float *c, int64_t ldc, const uint8_t *panel, const uint8_t *then, const uint8_t *x, int64_t ldx, int64_t cols, int m)
{
    ox_ahead next = ahead_of(panel, TIGHT_HEAD + cols / TIGHT_COLS * TIGHT_UNIT, then, m);
    ox_tight at = tight_at(panel, cols);
    ox_f32x16 even[8], odd[8];
    OX_UNROLL for (int t = 0; t < m; t++)
        even[t] = odd[t] = f32_zero();
    for (int64_t u = 0; u < cols / TIGHT_COLS; u++, x += 4 * TIGHT_COLS) {
        ox_i32x16 pairs[4];
        ahead(&next, TIGHT_UNIT);
        tight_unit(pairs, &at, (uint32_t)u);
        OX_UNROLL for (int i = 0; i < 4; i++) {
            ox_f32x16 w0 = pair_even(pairs[i]), w1 = pair_odd(pairs[i]);
            OX_UNROLL for (int t = 0; t < m; t++) {
                even[t] = f32_fma(w0, f32_set1(act_f32(x + t * ldx + 8 * i)), even[t]);
                odd[t] = f32_fma(w1, f32_set1(act_f32(x + t * ldx + 8 * i + 4)), odd[t]);
            }
        }
    }
    OX_UNROLL for (int t = 0; t < m; t++)
        f32_store(c + t * ldc, f32_add(even[t], odd[t]));
}

static void tile_TIGHT_F16(OX_TILE_ARGS) { OX_FLOAT_TILES(tile_tight_float(c, ldc, panel, then, x, ldx, cols, M)) }

static void beside_TIGHT_F16(OX_BESIDE_ARGS)
{
    (void)ldx, (void)m;
    ox_tight at[2] = { tight_at(first, cols), tight_at(second, cols) };
    ox_ahead next[2] = { near_of(first, near), near_of(second, near) };
    ox_f32x16 even[2] = { f32_zero(), f32_zero() }, odd[2] = { f32_zero(), f32_zero() };
    for (int64_t u = 0; u < cols / TIGHT_COLS; u++, x += 4 * TIGHT_COLS) {
        OX_UNROLL for (int q = 0; q < 2; q++) {
            ox_i32x16 pairs[4];
            ahead(&next[q], TIGHT_UNIT);
            tight_unit(pairs, at + q, (uint32_t)u);
            OX_UNROLL for (int i = 0; i < 4; i++) {
                even[q] = f32_fma(pair_even(pairs[i]), f32_set1(act_f32(x + 8 * i)), even[q]);
                odd[q] = f32_fma(pair_odd(pairs[i]), f32_set1(act_f32(x + 8 * i + 4)), odd[q]);
            }
        }
    }
    f32_store(c, f32_add(even[0], odd[0]));
    f32_store(c + 16, f32_add(even[1], odd[1]));
}
#endif
