/* Many rows: what two panels say is spread once for all of them, 512 columns at a time, codes to bytes in the order of use and scales to lanes, and every tile of rows
 * runs over that: 16 KB of codes stay in the first cache, and nothing but dots and their scaling is left to do. c keeps the chains from one part to the next. The arithmetic per
 * output is that of tiles.h, bit for bit. */
#ifndef OX_LANES_SPREAD_H
#define OX_LANES_SPREAD_H
#include "lanes/tiles.h"

enum { SPREAD_COLS = 512, SPREAD_BLOCKS = SPREAD_COLS / 32, SPREAD_SUBS = SPREAD_COLS / 16 };

/* From so many rows on spreading pays. Where all but dots is free: for codes of two planes alone, which cost most to put together. Zen 4, 120 rows, GMAC/s: Q6_K 164 to
 * 178, Q5_K 178 to 188, Q3_K 146 to 175, IQ2_XS 140 to 165, but Q4_K 193 to 186. Where nothing is free, Cascade Lake, from the panel and spread: Q6_K at 12, 16 and 60 rows 117 and 114,
 * 104 and 121, 115 and 159, Q4_K at 24, 36 and 60 rows 150 and 145, 159 and 161, 159 and 172. Steps of 32 rows in slices with a bound of 48 for one plane: Q4_K_M 1.03 times as fast,
 * Q8_0 1.06, Q4_0 0.98, IQ4_XS 0.97; of 40 rows 1.07, 1.08, 1.04, 1.03. */
enum { OX_SPREAD_ROWS = 24 };
#define OX_TWO_PLANES(store) ((store) == 3 || (store) == 5 || (store) == 6)
#define OX_SPREAD_ROWS_TWO_PORTS(store) (OX_TWO_PLANES(store) ? 24 : 32)

/* Scales of two panels: of 32 columns (or 16), or of a superblock and its sub-blocks. A superblock's integer scales lie a number a lane or in pairs of neighbours. */
typedef struct {
    OX_ALIGN(64) uint8_t code[2][SPREAD_COLS * 16];
    float d[2][SPREAD_SUBS][16], least[2][SPREAD_BLOCKS][16];
    int32_t scale[2][SPREAD_SUBS][16], low[2][SPREAD_SUBS / 2][16];
} ox_spread;

OX_INLINE void spread_unit(uint8_t *out, const uint8_t *p, int store, const uint8_t *lut, ox_u8x64 table)
{
    OX_UNROLL for (int i = 0; i < 4; i++) {
        ox_u8x64 w[2];
        load_two(w, p, i, store, lut, table);
        u8_store(out + 128 * i, w[0]);
        u8_store(out + 128 * i + 64, w[1]);
    }
}

/* Dots of m rows with 4 n columns of two panels, whose codes lie `apart`. */
OX_INLINE void spread_dots(ox_i32x16 (*dot)[OX_WIDE], const uint8_t *code, int64_t apart, int n, const uint8_t *x, int64_t ldx, int m)
{
    OX_UNROLL for (int g = 0; g < n; g++) {
        ox_u8x64 w0 = u8_load(code + 64 * g), w1 = u8_load(code + apart + 64 * g);
        OX_UNROLL for (int t = 0; t < m; t++) {
            ox_i32x16 v = i32_set1(act_i32(x + t * ldx + 4 * g));
            dot[0][t] = i32_dot4(dot[0][t], w0, v);
            dot[1][t] = i32_dot4(dot[1][t], w1, v);
        }
    }
}

/* n blocks of 32 columns. Codes of 8 bits are not spread: they are read where they lie, a side before every `span` blocks. */
OX_INLINE void spread_tile_32(float *c, int64_t ldc, const ox_spread *w, const uint8_t *code, int64_t apart, int span, int n, int begun,
                              const uint8_t *x, int64_t ldx, int m, int off, int side)
{
    enum { HALVES = 2 };
    const int parts = side == SIDE_UE4M3 ? HALVES : 1;
    ox_f32x16 acc[2][OX_WIDE];
    OX_UNROLL for (int t = 0; t < m; t++) {
        acc[0][t] = begun ? f32_load(c + t * ldc) : f32_zero();
        acc[1][t] = begun ? f32_load(c + t * ldc + 16) : f32_zero();
    }
    for (int b = 0; b < n; b++, x += ACT32_BYTES, code += OX_UNIT_BYTES(8)) {
        if (span && b % span == 0)
            code += 64;
        OX_UNROLL for (int h = 0; h < parts; h++) {
            ox_i32x16 dot[2][OX_WIDE];
            OX_UNROLL for (int t = 0; t < m; t++) {
                int16_t sum;
                memcpy(&sum, x + t * ldx + ACT32_HALVES + 2 * h, 2);
                dot[0][t] = dot[1][t] = parts == HALVES ? i32_set1(-off * sum) : start_32(x + t * ldx, off);
            }
            spread_dots(dot, code + 256 * h, apart, 8 / parts, x + 16 * h, ldx, m);
            ox_f32x16 d0 = f32_load(w->d[0][parts * b + h]), d1 = f32_load(w->d[1][parts * b + h]);
            OX_UNROLL for (int t = 0; t < m; t++) {
                ox_f32x16 dx = f32_set1(act_f32(x + t * ldx + ACT32_D));
                acc[0][t] = f32_fma(i32_to_f32(dot[0][t]), f32_mul(d0, dx), acc[0][t]);
                acc[1][t] = f32_fma(i32_to_f32(dot[1][t]), f32_mul(d1, dx), acc[1][t]);
            }
        }
        if (side == SIDE_F16_MIN) {
            ox_f32x16 d0 = f32_load(w->least[0][b]), d1 = f32_load(w->least[1][b]);
            OX_UNROLL for (int t = 0; t < m; t++) {
                ox_f32x16 sum = f32_set1(act_f32(x + t * ldx + ACT32_DSUM));
                acc[0][t] = f32_fma(d0, sum, acc[0][t]);
                acc[1][t] = f32_fma(d1, sum, acc[1][t]);
            }
        }
    }
    OX_UNROLL for (int t = 0; t < m; t++) {
        f32_store(c + t * ldc, acc[0][t]);
        f32_store(c + t * ldc + 16, acc[1][t]);
    }
}

/* One sub-block's dots into `dot`, below what they are or from their offset. */
OX_INLINE void spread_sub(ox_i32x16 (*dot)[OX_WIDE], const uint8_t *code, const uint8_t *x, int64_t ldx, const int32_t *start, int below, int m, int off, int cols)
{
    OX_UNROLL for (int t = 0; t < m; t++) {
        ox_i32x16 first = off ? i32_set1(start[16 * t]) : below ? i32_set1(OX_ABOVE) : i32_zero();
        dot[0][t] = below ? i32_above(dot[0][t], first) : first;
        dot[1][t] = below ? i32_above(dot[1][t], first) : off ? i32_set1_again(start + 16 * t) : first;
    }
    spread_dots(dot, code, SPREAD_COLS * 16, cols / 4, x, ldx, m);
}

/* Superblock b of those that are spread. `alone` as in wide.h, wide_super. */
OX_INLINE void spread_super(float *c, int64_t ldc, const ox_spread *w, int b, int begun, const uint8_t *x, int64_t ldx, int m, int bits, int off,
                            int head, int alone)
{
    const int sub = OX_HEAD_SUB(head), cols = sub == 256 ? 32 : sub, subs = 256 / cols, first = sub == 16 ? 0 : 8;
    const int fit = pairs_fit(x, ldx, m, bits, off, sub), pairs = fit && !alone;
    const uint8_t *code = w->code[0] + 16 * 256 * b;
    ox_i32x16 sum[2][OX_WIDE], dot[2][OX_WIDE];
    OX_ALIGN(64) int32_t start[OX_WIDE][16];
    OX_UNROLL for (int t = 0; t < m; t++) {
        sum[0][t] = sum[1][t] = i32_zero();
        if (off)
            starts_256(start[t], x + t * ldx, sub, off, pairs);
    }
    if (pairs) {
        for (int j = 0; j < subs; j += 2) {
            spread_sub(dot, code + 16 * cols * (j + 1), x + cols * (j + 1), ldx, start[0] + first + j + 1, 0, m, off, cols);
            spread_sub(dot, code + 16 * cols * j, x + cols * j, ldx, start[0] + first + j, 1, m, off, cols);
            ox_i32x16 s0 = i32_load(w->scale[0][(subs * b + j) / 2]), s1 = i32_load(w->scale[1][(subs * b + j) / 2]);
            OX_UNROLL for (int t = 0; t < m; t++) {
                sum[0][t] = i32_dot_pairs(sum[0][t], pairs_of(dot[0][t]), s0);
                sum[1][t] = i32_dot_pairs(sum[1][t], pairs_of(dot[1][t]), s1);
            }
        }
    } else if (fit) {
        for (int j = 0; j < subs; j++) {
            spread_sub(dot, code + 16 * cols * j, x + cols * j, ldx, start[0] + first + j, 0, m, off, cols);
            ox_i32x16 s0 = i32_load(w->scale[0][subs * b + j]), s1 = i32_load(w->scale[1][subs * b + j]);
            OX_UNROLL for (int t = 0; t < m; t++) {
                sum[0][t] = i32_dot_pairs(sum[0][t], dot[0][t], s0);
                sum[1][t] = i32_dot_pairs(sum[1][t], dot[1][t], s1);
            }
        }
    } else {
        for (int j = 0; j < subs; j++) {
            spread_sub(dot, code + 16 * cols * j, x + cols * j, ldx, start[0] + first + j, 0, m, off, cols);
            const int at = alone ? subs * b + j : (subs * b + j) / 2;
            ox_i32x16 s0 = i32_load(w->scale[0][at]), s1 = i32_load(w->scale[1][at]);
            if (alone || j % 2 == 0)
                s0 = i32_shl(s0, 16), s1 = i32_shl(s1, 16);
            s0 = i32_shr(s0, 16), s1 = i32_shr(s1, 16);
            OX_UNROLL for (int t = 0; t < m; t++) {
                sum[0][t] = i32_add(sum[0][t], sub == 256 ? dot[0][t] : i32_mul(dot[0][t], s0));
                sum[1][t] = i32_add(sum[1][t], sub == 256 ? dot[1][t] : i32_mul(dot[1][t], s1));
            }
        }
    }
    ox_f32x16 d[2] = { f32_load(w->d[0][b]), f32_load(w->d[1][b]) };
    OX_UNROLL for (int t = 0; t < m; t++) {
        const uint8_t *sums = x + t * ldx + (sub == 32 ? ACT256_SUM32 : ACT256_SUM16);
        ox_f32x16 dx = f32_set1(act_f32(x + t * ldx + ACT256_D));
        OX_UNROLL for (int q = 0; q < 2; q++) {
            ox_f32x16 acc = begun ? f32_load(c + t * ldc + 16 * q) : f32_zero();
            acc = f32_fma(i32_to_f32(sum[q][t]), f32_mul(d[q], dx), acc);
            if (OX_HEAD_MIN(head)) {
                ox_i32x16 least = i32_zero();
                OX_UNROLL for (int k = 0; k < 128 / sub; k++)
                    least = i32_dot_pairs(least, i32_load(w->low[q][128 / sub * b + k]), i32_set1(act_i32(sums + 4 * k)));
                acc = f32_fnma(i32_to_f32(least), f32_mul(f32_load(w->least[q][b]), dx), acc);
            }
            f32_store(c + t * ldc + 16 * q, acc);
        }
    }
}

/* What is spread next, `bytes` at `next` and `stride` on, is asked for by the tiles, a part each: spreading reads in bursts. */
OX_INLINE void ask_part(const uint8_t *next, int64_t stride, int64_t bytes, int tile, int tiles)
{
    const int64_t part = bytes / tiles / 64 * 64 + 64;
    if (next)
        for (int64_t k = tile * part; k < (tile + 1) * part; k += 64) {
            OX_PREFETCH_L2(next + k);
            OX_PREFETCH_L2(next + stride + k);
        }
}

/* 32s, of 8 rows or more: tiles of 4 to 6 then leave none over (heights_of). */
OX_INLINE void spread_32(float *sums, int64_t ldc, const uint8_t *p, int64_t stride, int64_t later, const uint8_t *first, int64_t ldx, int64_t cols, int all,
                         int store, int off, int side, const uint8_t *lut, int block)
{
    const int units = block / 32, span = units * OX_SIDE_SPAN(side);
    const ox_heights cut = heights_of(all, OX_WIDE, 4);
    const uint8_t *then = later ? p + later : NULL, *s = p;
    ox_u8x64 table = u8_table(lut ? lut : p);
    ox_spread w;
    for (int64_t b = 0, n; b < cols / 32; b += n, first += n * ACT32_BYTES) {
        const uint8_t *x = first, *code = store == 8 ? p : w.code[0];
        float *c = sums;
        int m = all;
        n = cols / 32 - b < SPREAD_BLOCKS ? cols / 32 - b : SPREAD_BLOCKS;
        for (int k = 0; k < n; k++, p += OX_UNIT_BYTES(store)) {
            if ((b + k) % span == 0)
                s = p, p += 64;
            OX_UNROLL for (int q = 0; q < 2; q++) {
                const uint8_t *sq = s + q * stride;
                if (store != 8)
                    spread_unit(w.code[q] + OX_UNIT_BYTES(8) * k, p + q * stride, store, lut, table);
                if (side == SIDE_UE4M3) {
                    f32_store(w.d[q][2 * k], side_d(sq + 32 * (k & 1), side));
                    f32_store(w.d[q][2 * k + 1], side_d(sq + 32 * (k & 1) + 16, side));
                } else {
                    f32_store(w.d[q][k], side_d(sq, side));
                }
                if (side == SIDE_F16_MIN)
                    f32_store(w.least[q][k], side_d(sq + 32, side));
            }
            if ((b + k) % units == units - 1)
                s += OX_SIDE_BYTES(side);
        }
        OX_HEIGHTS(cut, OX_WIDE, 4,
            ask_part(b + n < cols / 32 ? p : then, stride, n * OX_STEP32(store, side, block), i, cut.tiles);
            spread_tile_32(c, ldc, &w, code, store == 8 ? stride : SPREAD_COLS * 16, store == 8 ? span : 0, (int)n, b > 0, x, ldx, M, off, side))
    }
}

/* 256s, of 16 rows or more (24 with tiles of 5 and 6), for the same reason. */
OX_INLINE void spread_256(float *sums, int64_t ldc, const uint8_t *p, int64_t stride, int64_t later, const uint8_t *first, int64_t ldx, int64_t cols, int all,
                          int store, int bits, int off, int head, int side, float unit, const uint8_t *lut, int alone)
{
    enum { SUPERS = SPREAD_COLS / 256 };
    const int sub = OX_HEAD_SUB(head), pairs = sub == 256 ? 0 : 128 / sub;
    const ox_heights cut = heights_of(all, OX_WIDE, alone ? 4 : OX_WIDE - 1);
    const uint8_t *then = later ? p + later : NULL, *s = p;
    ox_u8x64 table = u8_table(lut ? lut : p);
    ox_spread w;
    for (int64_t b = 0, n; b < cols / 256; b += n, first += n * ACT256_BYTES) {
        const uint8_t *x = first;
        float *c = sums;
        int m = all;
        n = cols / 256 - b < SUPERS ? cols / 256 - b : SUPERS;
        for (int k = 0; k < n; k++) {
            if ((b + k) % OX_SIDE_SPAN(side) == 0)
                s = p, p += 64;
            OX_UNROLL for (int q = 0; q < 2; q++) {
                const uint8_t *at = p + q * stride;
                ox_i32x16 sp[8], mp[8];
                load_head(sp, mp, at, head);
                OX_UNROLL for (int j = 0; j < pairs; j++) {
                    if (alone) {
                        i32_store(w.scale[q][2 * (pairs * k + j)], i32_and(sp[j], i32_set1(0xffff)));
                        i32_store(w.scale[q][2 * (pairs * k + j) + 1], i32_and(i32_shr(sp[j], 16), i32_set1(0xffff)));
                    } else {
                        i32_store(w.scale[q][pairs * k + j], sp[j]);
                    }
                    if (OX_HEAD_MIN(head))
                        i32_store(w.low[q][pairs * k + j], mp[j]);
                }
                f32_store(w.d[q][k], f32_mul(side_d(s + q * stride, side), f32_set1(unit)));
                if (OX_HEAD_MIN(head))
                    f32_store(w.least[q][k], side_d(s + q * stride + 32, side));
                for (int u = 0; u < 8; u++)
                    spread_unit(w.code[q] + OX_UNIT_BYTES(8) * (8 * k + u), at + OX_HEAD_BYTES(head) + u * OX_UNIT_BYTES(store), store, lut, table);
            }
            p += OX_HEAD_BYTES(head) + 8 * OX_UNIT_BYTES(store);
            s += OX_SIDE_BYTES(side);
        }
        OX_HEIGHTS(cut, OX_WIDE, alone ? 4 : OX_WIDE - 1,
            ask_part(b + n < cols / 256 ? p : then, stride, 64 + n * (OX_HEAD_BYTES(head) + 8 * OX_UNIT_BYTES(store)), i, cut.tiles);
            for (int k = 0; k < n; k++)
                spread_super(c, ldc, &w, k, b > 0 || k > 0, x + k * ACT256_BYTES, ldx, M, bits, off, head, alone))
    }
}

#endif
