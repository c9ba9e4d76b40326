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
    ox_f32x16 even[2] = { f32_zero(), f32_zero() }, odd[2] = { f32_zero(), f32_zero() };
    for (int64_t u = 0; u < cols / TIGHT_COLS; u++, x += 4 * TIGHT_COLS) {
        OX_UNROLL for (int q = 0; q < 2; q++) {
            ox_i32x16 pairs[4];
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

#if defined(OX_WIDE) || defined(OX_PART_ROWS)
#define OX_WIDE_TIGHT

/* Many rows: 128 columns of two panels are spread once, as floats where dots are fused multiply-adds, and stay in the first cache for all tiles of rows,
 * as the 8 rows of x of one tile do. With 32 registers a broadcast of x serves both panels; with 16 (of half the width) a tile has one. */
enum { TIGHT_SPAN = 128, TIGHT_RANGE = 132 };
#ifdef OX_WIDE
#define OX_TIGHT_SIDE 2                 /* panels that share a tile */
#define OX_TIGHT_ROWS OX_WIDE           /* rows of a tile with a chain per output */
#define OX_TIGHT_HALF OX_WIDE           /* and with two */
#else
#define OX_TIGHT_SIDE 1
#define OX_TIGHT_ROWS 6
#define OX_TIGHT_HALF 3
#endif

/* The rows of x in tiles of `rows`, then of fewer; `call` is compiled for each as M, for the rows from i on. */
#define OX_TIGHT_TILES(rows, call)                                                                              \
    {                                                                                                           \
        int i = 0;                                                                                              \
        for (; i + (rows) <= m; i += (rows)) { enum { M = (rows) }; call; }                                     \
        if ((rows) > 4 && i + 4 <= m) { enum { M = 4 }; call; i += 4; }                                         \
        for (; i + 2 <= m; i += 2) { enum { M = 2 }; call; }                                                    \
        if (i < m) { enum { M = 1 }; call; }                                                                    \
    }

/* Spreading reads in bursts: what it reads next, at `next` and `stride` bytes on, is asked for by the tiles, rows i to i + rows - 1 of m their part. */
OX_INLINE void tight_ahead(const uint8_t *next, int64_t stride, int i, int rows, int m)
{
    const int lines = TIGHT_SPAN / TIGHT_COLS * TIGHT_UNIT / 64;
    if (next)
        for (int k = lines * i / m; k < lines * (i + rows) / m; k++) {
            OX_PREFETCH_L2(next + 64 * k);
            OX_PREFETCH_L2(next + stride + 64 * k);
        }
}

/* A row's next numbers as floats. 16 at a time, as rows have room for. */
OX_INLINE void widen(float *to, const uint8_t *x, int n)
{
    for (int k = 0; k < n; k += 16)
        f32_store(to + k, i32_as_f32(i32_shl(i32_load_i16(x + 2 * k), 16)));
}

typedef struct { OX_ALIGN(64) float w[2][TIGHT_SPAN][16]; } ox_spans;

OX_INLINE void tight_spread(ox_spans *s, ox_tight *at, int64_t from, int n)
{
    for (int q = 0; q < 2; q++)
        for (int u = 0; u < n / TIGHT_COLS; u++) {
            ox_i32x16 pairs[4];
            tight_unit(pairs, at + q, (uint32_t)(from / TIGHT_COLS + u));
            OX_UNROLL for (int i = 0; i < 4; i++) {
                f32_store(s->w[q][TIGHT_COLS * u + 2 * i], pair_even(pairs[i]));
                f32_store(s->w[q][TIGHT_COLS * u + 2 * i + 1], pair_odd(pairs[i]));
            }
        }
}

/* `n` columns of OX_TIGHT_SIDE panels against m rows: both chains, each row's 32 apart from the next one's. */
OX_INLINE void tight_floats(float *even, float *odd, float (*w)[TIGHT_SPAN][16], int n, const uint8_t *x, int64_t ldx, int m, int first)
{
    enum { S = OX_TIGHT_SIDE };
    ox_f32x16 a[S][OX_TIGHT_HALF], b[S][OX_TIGHT_HALF];
    OX_UNROLL for (int q = 0; q < S; q++)
        OX_UNROLL for (int t = 0; t < m; t++) {
            a[q][t] = first ? f32_zero() : f32_load(even + 32 * t + 16 * q);
            b[q][t] = first ? f32_zero() : f32_load(odd + 32 * t + 16 * q);
        }
    for (int k = 0; k < n; k += 2, x += 8) {
        ox_f32x16 v[S];
        OX_UNROLL for (int q = 0; q < S; q++)
            v[q] = f32_load(w[q][k]);
        OX_UNROLL for (int t = 0; t < m; t++) {
            ox_f32x16 y = f32_set1(act_f32(x + t * ldx));
            OX_UNROLL for (int q = 0; q < S; q++)
                a[q][t] = f32_fma(v[q], y, a[q][t]);
        }
        OX_UNROLL for (int q = 0; q < S; q++)
            v[q] = f32_load(w[q][k + 1]);
        OX_UNROLL for (int t = 0; t < m; t++) {
            ox_f32x16 y = f32_set1(act_f32(x + t * ldx + 4));
            OX_UNROLL for (int q = 0; q < S; q++)
                b[q][t] = f32_fma(v[q], y, b[q][t]);
        }
    }
    OX_UNROLL for (int q = 0; q < S; q++)
        OX_UNROLL for (int t = 0; t < m; t++) {
            f32_store(even + 32 * t + 16 * q, a[q][t]);
            f32_store(odd + 32 * t + 16 * q, b[q][t]);
        }
}

OX_INLINE void range_TIGHT_F16(OX_WIDE_ARGS)
{
    OX_ALIGN(64) float even[TIGHT_RANGE][32], odd[TIGHT_RANGE][32];
    ox_spans s;
    ox_tight at[2] = { tight_at(panel, cols), tight_at(panel + stride, cols) };
    for (int64_t from = 0; from < cols; from += TIGHT_SPAN, x += 4 * TIGHT_SPAN) {
        const int n = cols - from < TIGHT_SPAN ? (int)(cols - from) : TIGHT_SPAN;
        tight_spread(&s, at, from, n);
        const uint8_t *next = from + n < cols ? at[0].p : later ? panel + later : NULL;
        OX_TIGHT_TILES(OX_TIGHT_HALF, {
            tight_ahead(next, stride, i, M, m);
            for (int q = 0; q < 2; q += OX_TIGHT_SIDE)
                tight_floats(even[i] + 16 * q, odd[i] + 16 * q, s.w + q, n, x + i * ldx, ldx, M, from == 0);
        })
    }
    for (int t = 0; t < m; t++) {
        f32_store(c + t * ldc, f32_add(f32_load(even[t]), f32_load(odd[t])));
        f32_store(c + t * ldc + 16, f32_add(f32_load(even[t] + 16), f32_load(odd[t] + 16)));
    }
}

static void wide_TIGHT_F16(OX_WIDE_ARGS)
{
    for (; m > TIGHT_RANGE; m -= TIGHT_RANGE, c += TIGHT_RANGE * ldc, x += TIGHT_RANGE * ldx)
        range_TIGHT_F16(c, ldc, panel, stride, 0, x, ldx, cols, TIGHT_RANGE);
    range_TIGHT_F16(c, ldc, panel, stride, later, x, ldx, cols, m);
}
#endif
#endif
