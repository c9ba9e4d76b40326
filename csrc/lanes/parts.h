/* Wide tiles where a vector is two registers of 256 bits and there are 16 of them (AVX2, AVX-VNNI): a panel's codes are spread once, 256
 * columns at a time, and stay in the first cache while OX_PART_ROWS rows of x after each other run over them. The arithmetic per output is
 * that of tiles.h, bit for bit.
 *
 * maddubs multiplies an unsigned byte by a signed one and adds two products in 16 bits. What it may be given, and how many of its results may
 * be added before they are widened, is what a format costs:
 *   codes below 16, nothing to take off     codes as they are: 2 * 15 * 127 * 8 < 2^15
 *   an offset to take off                   the code less its offset is the signed byte, x + 128 the unsigned one (2 * 255 * 64 < 2^15). What
 *                                           x has too much goes into the start of the sum, which is the same for every row of x. Sums in
 *                                           16 bits may wrap on the way: the true one of 4 n products fits where |code| <= 64 / n
 *   codes of 8 bits                         16 bits each, times the sub-block's scale where there is one: one madd per 2 columns
 */
#ifndef OX_LANES_PARTS_H
#define OX_LANES_PARTS_H
#include "lanes/tiles.h"

enum { PART_COLS = 256 };

/* 256 columns of a panel, ready for use. */
typedef struct {
    OX_ALIGN(64) uint8_t code[PART_COLS * 32];          /* a vector per 4 columns (16 bits: per 2) */
    OX_ALIGN(64) uint8_t start[32][64];
    OX_ALIGN(64) ox_scale scale[16];
    OX_ALIGN(64) ox_i32x16 least[8];
    OX_ALIGN(64) ox_f32x16 d[8], low[8];
} ox_spread;

#define OX_PART_SHORT(bits) (OX_PART_WORDS && (bits) == 8)      /* codes of 16 bits */

/* Codes of 32 columns less `off`, and what their sums start from: every `n` vectors one. */
OX_INLINE void spread_unit(ox_spread *w, int u, const uint8_t *p, int n, int store, int bits, int off, ox_scale scale, int scaled,
                           const uint8_t *lut, ox_u8x64 table)
{
    ox_part start = part_zero();
    OX_UNROLL for (int i = 0; i < 4; i++) {
        ox_u8x64 v[2];
        load_two(v, p, i, store, lut, table);
        OX_UNROLL for (int g = 0; g < 2; g++) {
            const int at = 8 * u + 2 * i + g;
            if (off)
                v[g] = u8_less(v[g], off);
            if (OX_PART_SHORT(bits)) {
                ox_i32x16 even = pairs_even(v[g]), odd = pairs_odd(v[g]);
                i32_store((int32_t *)(w->code + 128 * at), scaled ? pairs_mul(even, scale) : even);
                i32_store((int32_t *)(w->code + 128 * at + 64), scaled ? pairs_mul(odd, scale) : odd);
                continue;
            }
            u8_store(w->code + 64 * at, v[g]);
            if (off) {
                start = part_dot4(start, v[g], i32_set1((int32_t)0x80808080), 1);
                if (at % n == n - 1)
                    part_store(w->start[at / n], part_neg(start)), start = part_zero();
            }
        }
    }
}

/* Adds 32 columns to the sums of m rows. `n` vectors share a 16-bit sum, `sub` columns a scale. */
OX_INLINE void part_dots(ox_part *part, const ox_spread *w, int at, int n, const uint8_t *x, int64_t ldx, int m, int off)
{
    OX_UNROLL for (int t = 0; t < m; t++)
        part[t] = off ? part_load(w->start[at / n]) : part_zero();
    OX_UNROLL for (int g = 0; g < n; g++) {
        ox_u8x64 v = u8_load(w->code + 64 * (at + g));
        OX_UNROLL for (int t = 0; t < m; t++)
            part[t] = part_dot4(part[t], v, off ? i32_set1(act_i32(x + t * ldx + 4 * g)) : i32_spread(x + t * ldx + 4 * g), off);
    }
}

/* 16-bit codes: 32 columns. */
OX_INLINE void short_dots(ox_i32x16 *sum, const ox_spread *w, int at, const uint8_t *x, int64_t ldx, int m)
{
    OX_UNROLL for (int g = 0; g < 16; g++) {
        ox_i32x16 v = i32_load((const int32_t *)(w->code + 128 * at + 64 * g));
        OX_UNROLL for (int t = 0; t < m; t++)
            sum[t] = i32_settled(i32_dot_pairs(sum[t], v, i32_set1(act_i32(x + t * ldx + 4 * g))));
    }
}

/* The bytes of a row's 256 columns as the dots want them: `to` has 512 bytes a row. Not called where they are wanted as they lie. */
OX_INLINE void part_row(uint8_t *to, const uint8_t *x, int blocks, int apart, int bits)
{
    for (int b = 0; b < blocks; b++)
        if (OX_PART_SHORT(bits))
            act_pairs(to + 64 * b, x + apart * b);
        else
            act_unsigned(to + 32 * b, x + apart * b);
}

/* Up to 8 blocks of 32 columns against m rows. */
OX_INLINE void part_32(float *c, int64_t ldc, const ox_spread *w, int blocks, const uint8_t *row, int64_t ldrow, const uint8_t *x,
                       int64_t ldx, int apart, int m, int first, int bits, int off, int side)
{
    const int n = OX_PART_GROUPS(bits, off);
    ox_f32x16 acc[OX_PART_ROWS];
    OX_UNROLL for (int t = 0; t < m; t++)
        acc[t] = first ? f32_zero() : f32_load(c + t * ldc);
    for (int b = 0; b < blocks; b++, x += apart, row += ACT32_BYTES) {
        ox_i32x16 dot[OX_PART_ROWS];
        OX_UNROLL for (int t = 0; t < m; t++)
            dot[t] = i32_zero();
        if (OX_PART_SHORT(bits))
            short_dots(dot, w, 8 * b, x, ldx, m);
        else
            OX_UNROLL for (int k = 0; k < 8; k += n) {
                ox_part part[OX_PART_ROWS];
                part_dots(part, w, 8 * b + k, n, x + 4 * k, ldx, m, off);
                OX_UNROLL for (int t = 0; t < m; t++)
                    dot[t] = k ? i32_add(dot[t], part_sum(part[t])) : part_sum(part[t]);
            }
        OX_UNROLL for (int t = 0; t < m; t++) {
            ox_f32x16 dx = f32_set1(act_f32(row + t * ldrow + ACT32_D));
            acc[t] = f32_fma(i32_to_f32(dot[t]), f32_mul(w->d[b], dx), acc[t]);
            if (side == SIDE_F16_MIN)
                acc[t] = f32_fma(w->low[b], f32_set1(act_f32(row + t * ldrow + ACT32_DSUM)), acc[t]);
        }
    }
    OX_UNROLL for (int t = 0; t < m; t++)
        f32_store(c + t * ldc, acc[t]);
}

/* A superblock against m rows. */
OX_INLINE void part_256(float *c, int64_t ldc, const ox_spread *w, const uint8_t *row, int64_t ldrow, const uint8_t *x, int64_t ldx, int m,
                        int first, int bits, int off, int head)
{
    const int sub = OX_HEAD_SUB(head), most = OX_PART_GROUPS(bits, off), n = sub == 16 && most > 4 ? 4 : most;
    ox_i32x16 sum[OX_PART_ROWS];
    OX_UNROLL for (int t = 0; t < m; t++)
        sum[t] = i32_zero();
    for (int u = 0; u < 8; u++) {
        if (OX_PART_SHORT(bits)) {
            short_dots(sum, w, 8 * u, x + 64 * u, ldx, m);
            continue;
        }
        OX_UNROLL for (int k = 0; k < 8; k += n) {
            ox_part part[OX_PART_ROWS];
            part_dots(part, w, 8 * u + k, n, x + 32 * u + 4 * k, ldx, m, off);
            OX_UNROLL for (int t = 0; t < m; t++)
                sum[t] = sub == 256 ? i32_add(sum[t], part_sum(part[t])) : part_scaled(sum[t], part[t], w->scale[sub == 16 ? 2 * u + k / 4 : u]);
        }
    }
    OX_UNROLL for (int t = 0; t < m; t++) {
        const uint8_t *sums = row + t * ldrow + (sub == 32 ? ACT256_SUM32 : ACT256_SUM16);
        ox_f32x16 dx = f32_set1(act_f32(row + t * ldrow + ACT256_D)), acc = first ? f32_zero() : f32_load(c + t * ldc);
        acc = f32_fma(i32_to_f32(sum[t]), f32_mul(w->d[0], dx), acc);
        if (OX_HEAD_MIN(head)) {
            ox_i32x16 z = i32_zero();
            OX_UNROLL for (int k = 0; k < 128 / sub; k++)
                z = i32_dot_pairs(z, w->least[k], i32_set1(act_i32(sums + 4 * k)));
            acc = f32_fnma(i32_to_f32(z), f32_mul(w->low[0], dx), acc);
        }
        f32_store(c + t * ldc, acc);
    }
}

/* The scales of a superblock in the shape of use. */
OX_INLINE void spread_head(ox_spread *w, const uint8_t *p, int head)
{
    const int sub = OX_HEAD_SUB(head);
    ox_i32x16 sp[8];
    load_head(sp, w->least, p, head);
    OX_UNROLL for (int k = 0; k < 256 / sub / 2; k++)
        w->scale[2 * k] = scale_low(sp[k]), w->scale[2 * k + 1] = scale_high(sp[k]);
}

typedef struct {
    const uint8_t *panel;               /* of two, `stride` bytes apart */
    int64_t stride;
    const uint8_t *x;
    int64_t ldx, cols;
    float *c;
    int64_t ldc;
    int m;                              /* at least OX_PART_ROWS */
    int64_t later;                      /* bytes from `panel` to the pair that is read next, 0 if none is */
} ox_parts;

/* What is spread next: the columns after these, or the first ones of the next pair. */
OX_INLINE const uint8_t *part_next(ox_parts a, const uint8_t *p, int last) { return !last ? p : a.later ? a.panel + a.later : NULL; }

/* The rows of x in tiles; the last one may overlap the one before it, and keeps its chains in `rest`. */
#define OX_PART_TILES(a, rest, call)                                                                                          \
    for (int i = 0; i < (a).m; i += OX_PART_ROWS) {                                                                           \
        const int over = i + OX_PART_ROWS > (a).m;                                                                            \
        const uint8_t *row = x + (over ? (a).m - OX_PART_ROWS : i) * (a).ldx;                                                 \
        float *to = over ? rest : (a).c + i * (a).ldc;                                                                        \
        const int64_t ld = over ? 32 : (a).ldc;                                                                               \
        call;                                                                                                                 \
    }

OX_INLINE void part_rest(ox_parts a, const float *rest)
{
    const int n = a.m % OX_PART_ROWS;
    for (int t = n ? OX_PART_ROWS - n : OX_PART_ROWS; t < OX_PART_ROWS; t++) {
        float *to = a.c + (a.m - OX_PART_ROWS + t) * a.ldc;
        f32_store(to, f32_load(rest + 32 * t));
        f32_store(to + 16, f32_load(rest + 32 * t + 16));
    }
}

OX_INLINE void parts_32(ox_parts a, int store, int bits, int off, int side, const uint8_t *lut, int block)
{
    ox_spread w[2];
    OX_ALIGN(64) uint8_t own[OX_PART_ROWS][512];
    float rest[OX_PART_ROWS * 32];
    const int units = block / 32, n = OX_PART_GROUPS(bits, off), ready = !off && !OX_PART_SHORT(bits);
    ox_u8x64 table = u8_table(lut ? lut : a.panel);
    const uint8_t *p = a.panel, *s = p, *x = a.x;
    ox_scale none = scale_low(i32_zero());
    for (int64_t b = 0; b < a.cols / 32; b += 8, x += 8 * ACT32_BYTES) {
        const int blocks = a.cols / 32 - b < 8 ? (int)(a.cols / 32 - b) : 8;
        for (int k = 0; k < blocks; k++, p += OX_UNIT_BYTES(store)) {
            if ((b + k) % (units * OX_SIDE_SPAN(side)) == 0)
                s = p, p += 64;
            for (int q = 0; q < 2; q++) {
                spread_unit(w + q, k, p + q * a.stride, n, store, bits, off, none, 0, lut, table);
                w[q].d[k] = side_d(s + q * a.stride, side);
                if (side == SIDE_F16_MIN)
                    w[q].low[k] = side_d(s + q * a.stride + 32, side);
            }
            if (units == 1 || (b + k) % units == units - 1)
                s += OX_SIDE_BYTES(side);
        }
        const uint8_t *next = part_next(a, p, b + 8 >= a.cols / 32);
        OX_PART_TILES(a, rest, {
            span_ahead(next, a.stride, 8 * OX_STEP32(store, side, block), i, OX_PART_ROWS, a.m);
            if (!ready)
                for (int t = 0; t < OX_PART_ROWS; t++)
                    part_row(own[t], row + t * a.ldx, blocks, ACT32_BYTES, bits);
            for (int q = 0; q < 2; q++)
                part_32(to + 16 * q, ld, w + q, blocks, row, a.ldx, ready ? row : own[0], ready ? a.ldx : 512,
                        ready ? ACT32_BYTES : OX_PART_SHORT(bits) ? 64 : 32, OX_PART_ROWS, b == 0, bits, off, side);
        })
    }
    part_rest(a, rest);
}

OX_INLINE void parts_256(ox_parts a, int store, int bits, int off, int head, int side, float unit, const uint8_t *lut)
{
    ox_spread w[2];
    OX_ALIGN(64) uint8_t own[OX_PART_ROWS][512];
    float rest[OX_PART_ROWS * 32];
    const int sub = OX_HEAD_SUB(head), most = OX_PART_GROUPS(bits, off), n = sub == 16 && most > 4 ? 4 : most;
    const int ready = !off && !OX_PART_SHORT(bits);
    ox_u8x64 table = u8_table(lut ? lut : a.panel);
    const uint8_t *p = a.panel, *s = p, *x = a.x;
    for (int64_t b = 0; b < a.cols / 256; b++, s += OX_SIDE_BYTES(side), x += ACT256_BYTES) {
        if (b % OX_SIDE_SPAN(side) == 0)
            s = p, p += 64;
        for (int q = 0; q < 2; q++) {
            const uint8_t *code = p + q * a.stride + OX_HEAD_BYTES(head);
            if (head != HEAD_NONE)
                spread_head(w + q, p + q * a.stride, head);
            for (int u = 0; u < 8; u++)
                spread_unit(w + q, u, code + u * OX_UNIT_BYTES(store), n, store, bits, off, w[q].scale[sub == 32 ? u : 0], sub == 32, lut, table);
            ox_f32x16 d = side_d(s + q * a.stride, side);
            w[q].d[0] = unit != 1.0f ? f32_mul(d, f32_set1(unit)) : d;
            if (OX_HEAD_MIN(head))
                w[q].low[0] = side_d(s + q * a.stride + 32, side);
        }
        p += OX_HEAD_BYTES(head) + 8 * OX_UNIT_BYTES(store);
        const uint8_t *next = part_next(a, p, b + 1 == a.cols / 256);
        OX_PART_TILES(a, rest, {
            span_ahead(next, a.stride, 8 * OX_STEP256(store, head, side), i, OX_PART_ROWS, a.m);
            if (!ready)
                for (int t = 0; t < OX_PART_ROWS; t++)
                    part_row(own[t], row + t * a.ldx, 8, 32, bits);
            for (int q = 0; q < 2; q++)
                part_256(to + 16 * q, ld, w + q, row, a.ldx, ready ? row : own[0], ready ? a.ldx : 512, OX_PART_ROWS, b == 0, bits, off, head);
        })
    }
    part_rest(a, rest);
}

/* Where spreading pays: from 8 rows on, 12 if a nibble is the code. With 32-bit sums not where the codes are nibbles (Q4_K) or, in 32s, bytes or
 * nibbles: these stay on tiles.
 * One row left over is cheaper in a tile of its own than in a whole one that overlaps. */
#define OX_PART_FROM(store, bits) ((store) == 4 && (bits) == 4 ? 12 : 8)
#define OX_WIDE_FLOAT(name) NULL
#define OX_WIDE_32(store, bits) (OX_PART_WORDS || (store) != (bits) || ((store) & ((store) - 1)))
#define OX_WIDE_256(store, bits) (OX_PART_WORDS || (store) != 4 || (bits) != 4)
#define OX_PARTS_OR_TILES(name, able, from, call)                                                                            \
    static void wide_##name(OX_WIDE_ARGS)                                                                                    \
    {                                                                                                                        \
        const int some = !(able) || m < (from) ? 0 : m % OX_PART_ROWS == 1 ? m - 1 : m;                                      \
        ox_parts a = { panel, stride, x, ldx, cols, c, ldc, some, later };                                                          \
        if (some)                                                                                                            \
            call;                                                                                                            \
        m -= some, c += some * ldc, x += some * ldx;                                                                         \
        tile_##name(c, ldc, panel, NULL, x, ldx, cols, m);                                                                   \
        tile_##name(c + 16, ldc, panel + stride, NULL, x, ldx, cols, m);                                                     \
    }
#define OX_FLOAT(name, bytes)
#define OX_PAIRS(name)
#define OX_FORM32(name, store, bits, off, side)                                                                              \
    OX_PARTS_OR_TILES(name, side != SIDE_UE4M3 && OX_WIDE_32(store, bits), OX_PART_FROM(store, bits),                        \
                      parts_32(a, store, bits, off, side, lut_##name, BLOCK_##name))
#define OX_FORM256(name, store, bits, off, head, side, unit)                                                                 \
    OX_PARTS_OR_TILES(name, OX_WIDE_256(store, bits), OX_PART_FROM(store, bits),                                             \
                      parts_256(a, store, bits, off, head, side, unit, lut_##name))
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_PAIRS
#undef OX_FORM32
#undef OX_FORM256

#endif
