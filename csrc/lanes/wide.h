/* Wide tiles: two panels against OX_WIDE rows of x, for prompts and large batches. A broadcast of x serves both panels, so the loads
 * (two a cycle) no longer limit the dots (two a cycle). The arithmetic per output is that of tiles.h, bit for bit. */
#ifndef OX_LANES_WIDE_H
#define OX_LANES_WIDE_H
#include "lanes/spread.h"

/* What the tiles over a pair ask for, each in its turn a part: the pair that comes `later` bytes on (0: none is known). All at once would hold up
 * the tile that asks. 1B, prompts of 512, two threads of Zen 4, tokens/s: Q6_K 234 to 244, Q4_0 321 to 338, Q8_0 301 to 317. Into the second cache:
 * the first one is full of x and codes, and has few places for what is on its way. 32 rows from memory, two threads of Zen 4, GMAC/s by the cache asked,
 * first and second: Q6_K 244 and 266, Q4_K 312 and 324, Q8_0 292 and 328; 256 rows the same within the noise. */
typedef struct { int64_t later; int turn, turns; } ox_asking;

OX_INLINE ox_asking turn_of(int64_t later, int tile, int tiles)
{
    const int turns = tiles < 2 ? 1 : tiles < 4 ? 2 : tiles < 8 ? 4 : 8;        /* no division in every block */
    return (ox_asking){ tile < turns ? later : 0, tile, turns };
}

OX_INLINE void ahead_pair(const uint8_t *p, int64_t stride, ox_asking a, int unit, int step)
{
    const int64_t later = a.later;
    if (later && (unit & (a.turns - 1)) == a.turn) {
        OX_UNROLL for (int i = 0; i < step; i += 64) {
            OX_PREFETCH_L2(p + later + i);
            OX_PREFETCH_L2(p + later + stride + i);
        }
    }
}

/* Rows of a tile over 32s. Zen 5, 240 rows of 1024 columns, GMAC/s of one core by 4, 5 and 6 rows: Q8_0 353, 361, 332, Q4_0 314, 375, 341, Q5_0 336,
 * 347, 312, IQ4_NL 351, 369, 334: with six, one block's dots and the next one's seem more instructions than are kept in flight. Over 256s, which scale
 * once in 32 columns of integers, six are as good. */
enum { OX_WIDE_32_ROWS = 5 };

OX_INLINE void wide_32(float *c, int64_t ldc, const uint8_t *panel, int64_t stride, ox_asking ahead, const uint8_t *x, int64_t ldx,
        int64_t cols, int m,
                       int store, int bits, int off, int side, const uint8_t *lut, int block)
{
    const uint8_t *s = panel, *p = panel;
    const int less = off, units = block / 32;
    ox_u8x64 table = u8_table(lut ? lut : (const uint8_t *)panel);
    ox_f32x16 acc[2][OX_WIDE];
    OX_UNROLL for (int t = 0; t < m; t++)
        acc[0][t] = acc[1][t] = f32_zero();
    for (int64_t b = 0; b < cols / 32; b++, p += OX_UNIT_BYTES(store), x += ACT32_BYTES) {
        ox_i32x16 dot[2][OX_WIDE];
        if (b % (units * OX_SIDE_SPAN(side)) == 0)
            s = p, p += 64;
        ahead_pair(p, stride, ahead, (int)b, OX_STEP32(store, side, block));
        OX_UNROLL for (int t = 0; t < m; t++)
            dot[0][t] = dot[1][t] = start_32(x + t * ldx, less);
        OX_UNROLL for (int i = 0; i < 4; i++) {
            ox_u8x64 w[2][2];
            load_two(w[0], p, i, store, lut, table);
            load_two(w[1], p + stride, i, store, lut, table);
            OX_UNROLL for (int g = 0; g < 2; g++)
                OX_UNROLL for (int t = 0; t < m; t++) {
                    ox_i32x16 v = i32_set1(act_i32(x + t * ldx + 8 * i + 4 * g));
                    dot[0][t] = i32_dot4(dot[0][t], w[0][g], v);
                    dot[1][t] = i32_dot4(dot[1][t], w[1][g], v);
                }
        }
        ox_f32x16 d0 = side_d(s, side), d1 = side_d(s + stride, side);
        OX_UNROLL for (int t = 0; t < m; t++) {
            ox_f32x16 dx = f32_set1(act_f32(x + t * ldx + ACT32_D));
            acc[0][t] = f32_fma(i32_to_f32(dot[0][t]), f32_mul(d0, dx), acc[0][t]);
            acc[1][t] = f32_fma(i32_to_f32(dot[1][t]), f32_mul(d1, dx), acc[1][t]);
        }
        if (side == SIDE_F16_MIN) {
            d0 = side_d(s + 32, side), d1 = side_d(s + stride + 32, side);
            OX_UNROLL for (int t = 0; t < m; t++) {
                ox_f32x16 sum = f32_set1(act_f32(x + t * ldx + ACT32_DSUM));
                acc[0][t] = f32_fma(d0, sum, acc[0][t]);
                acc[1][t] = f32_fma(d1, sum, acc[1][t]);
            }
        }
        if (units == 1 || b % units == units - 1)
            s += OX_SIDE_BYTES(side);
    }
    OX_UNROLL for (int t = 0; t < m; t++) {
        f32_store(c + t * ldc, acc[0][t]);
        f32_store(c + t * ldc + 16, acc[1][t]);
    }
}

/* Dots of two panels over `n` pairs of groups from number `from` on, started anew or below what they are; `start` has 16 numbers a row. */
OX_INLINE void wide_dots(ox_i32x16 (*dot)[OX_WIDE], const uint8_t *code, int64_t apart, int from, int n, const uint8_t *x, int64_t ldx,
                         const int32_t *start, int below, int m, int store, int off, const uint8_t *lut, ox_u8x64 table)
{
    OX_UNROLL for (int t = 0; t < m; t++) {
        ox_i32x16 first = off ? i32_set1(start[16 * t]) : below ? i32_set1(OX_ABOVE) : i32_zero();
        dot[0][t] = below ? i32_above(dot[0][t], first) : first;
        dot[1][t] = below ? i32_above(dot[1][t], first) : first;
    }
    OX_UNROLL for (int i = from; i < from + n; i++) {
        ox_u8x64 w[2][2];
        load_two(w[0], code, i, store, lut, table);
        load_two(w[1], code + apart, i, store, lut, table);
        OX_UNROLL for (int g = 0; g < 2; g++)
            OX_UNROLL for (int t = 0; t < m; t++) {
                ox_i32x16 v = i32_set1(act_i32(x + t * ldx + 8 * i + 4 * g));
                dot[0][t] = i32_dot4(dot[0][t], w[0][g], v);
                dot[1][t] = i32_dot4(dot[1][t], w[1][g], v);
            }
    }
}

/* What a superblock of two panels is read from: scales `stride` apart, codes `apart`. */
typedef struct {
    const uint8_t *side, *head, *code;
    int64_t stride, apart;
    ox_asking ahead;
} ox_super;

/* One superblock against m rows. `alone`: a dot that fits 16 bits is scaled by one dot of pairs, else two share a lane and one (pairs_256). */
OX_INLINE void wide_super(ox_f32x16 (*acc)[OX_WIDE], ox_super in, int step, const uint8_t *x, int64_t ldx, int m,
                          int store, int bits, int off, int head, int side, float unit, const uint8_t *lut, int alone)
{
    const int sub = OX_HEAD_SUB(head), halves = sub == 16 ? 2 : 1, per = 4 / halves, fit = pairs_fit(x, ldx, m, bits, off, sub), pairs = fit && !alone;
    ox_u8x64 table = u8_table(lut ? lut : in.code);
    ox_i32x16 sp[2][8], mp[2][8], sum[2][OX_WIDE], least[2][OX_WIDE];
    OX_ALIGN(64) int32_t start[OX_WIDE][16];
    load_head(sp[0], mp[0], in.head, head);
    load_head(sp[1], mp[1], in.head + in.stride, head);
    OX_UNROLL for (int t = 0; t < m; t++) {
        const uint8_t *sums = x + t * ldx + (sub == 32 ? ACT256_SUM32 : ACT256_SUM16);
        ox_i32x16 z[2] = { i32_zero(), i32_zero() };
        if (OX_HEAD_MIN(head)) {
            OX_UNROLL for (int k = 0; k < 128 / sub; k++) {
                ox_i32x16 v = i32_set1(act_i32(sums + 4 * k));
                z[0] = i32_dot_pairs(z[0], mp[0][k], v);
                z[1] = i32_dot_pairs(z[1], mp[1][k], v);
            }
            least[0][t] = z[0], least[1][t] = z[1];
        }
        sum[0][t] = sum[1][t] = i32_zero();
        if (off)
            starts_256(start[t], x + t * ldx, sub, off, pairs);
    }
    if (pairs) {
        for (int k = 0; k < 128 / sub; k++, in.code += OX_UNIT_BYTES(store) * sub / 16, x += 2 * sub) {
            ox_i32x16 dot[2][OX_WIDE];
            const int32_t *from = start[0] + (sub == 32 ? 8 : 0) + 2 * k;
            OX_UNROLL for (int u = 0; u < sub / 16; u++)
                ahead_pair(in.head + (k * sub / 16 + u) * step, in.stride, in.ahead, k * sub / 16 + u, step);
            if (sub == 32)
                wide_dots(dot, in.code + OX_UNIT_BYTES(store), in.apart, 0, 4, x + 32, ldx, from + 1, 0, m, store, off, lut, table);
            else
                wide_dots(dot, in.code, in.apart, 2, 2, x, ldx, from + 1, 0, m, store, off, lut, table);
            wide_dots(dot, in.code, in.apart, 0, per, x, ldx, from, 1, m, store, off, lut, table);
            OX_UNROLL for (int t = 0; t < m; t++) {
                sum[0][t] = i32_dot_pairs(sum[0][t], pairs_of(dot[0][t]), sp[0][k]);
                sum[1][t] = i32_dot_pairs(sum[1][t], pairs_of(dot[1][t]), sp[1][k]);
            }
        }
        x -= 256;
    }
    for (int u = 0; u < 8 && !pairs; u++, in.code += OX_UNIT_BYTES(store)) {
        ahead_pair(in.head + u * step, in.stride, in.ahead, u, step);
        /* pairs of scales: both of this unit (sub 16), or this unit's moved to the low half (sub 32) */
        ox_i32x16 k0 = sp[0][sub == 32 ? u / 2 : u], k1 = sp[1][sub == 32 ? u / 2 : u], dot[2][OX_WIDE];
        if (sub == 32 && (u & 1))
            k0 = i32_shr(k0, 16), k1 = i32_shr(k1, 16);
        for (int h = 0; h < halves; h++) {
            wide_dots(dot, in.code, in.apart, h * per, per, x + 32 * u, ldx, start[0] + (sub == 16 ? 2 * u + h : 8 + u), 0, m, store, off, lut,
                      table);
            ox_scale s0 = h ? scale_high(k0) : scale_low(k0), s1 = h ? scale_high(k1) : scale_low(k1);
            if (alone && fit) {
                s0 = i32_and(s0, i32_set1(0xffff)), s1 = i32_and(s1, i32_set1(0xffff));
                OX_UNROLL for (int t = 0; t < m; t++) {
                    sum[0][t] = i32_dot_pairs(sum[0][t], dot[0][t], s0);
                    sum[1][t] = i32_dot_pairs(sum[1][t], dot[1][t], s1);
                }
                continue;
            }
            OX_UNROLL for (int t = 0; t < m; t++) {
                sum[0][t] = i32_add(sum[0][t], sub == 256 ? dot[0][t] : i32_mul(dot[0][t], s0));
                sum[1][t] = i32_add(sum[1][t], sub == 256 ? dot[1][t] : i32_mul(dot[1][t], s1));
            }
        }
    }
    OX_UNROLL for (int q = 0; q < 2; q++) {
        ox_f32x16 d = side_d(in.side + q * in.stride, side);
        if (unit != 1.0f)
            d = f32_mul(d, f32_set1(unit));
        OX_UNROLL for (int t = 0; t < m; t++) {
            ox_f32x16 dx = f32_set1(act_f32(x + t * ldx + ACT256_D));
            acc[q][t] = f32_fma(i32_to_f32(sum[q][t]), f32_mul(d, dx), acc[q][t]);
            if (OX_HEAD_MIN(head))
                acc[q][t] = f32_fnma(i32_to_f32(least[q][t]), f32_mul(side_d(in.side + q * in.stride + 32, side), dx), acc[q][t]);
        }
    }
}

/* All superblocks against one tile of rows, codes straight from the panels. */
OX_INLINE void wide_256(float *c, int64_t ldc, const uint8_t *panel, int64_t stride, ox_asking ahead, const uint8_t *x, int64_t ldx,
                        int64_t cols, int m, int store, int bits, int off, int head, int side, float unit, const uint8_t *lut, int alone)
{
    const uint8_t *s = panel, *p = panel;
    OX_ALIGN(64) ox_f32x16 acc[2][OX_WIDE];
    for (int t = 0; t < m; t++)
        acc[0][t] = acc[1][t] = f32_zero();
    for (int64_t b = 0; b < cols / 256; b++, x += ACT256_BYTES, s += OX_SIDE_BYTES(side)) {
        if (b % OX_SIDE_SPAN(side) == 0)
            s = p, p += 64;
        ox_super in = { s, p, p + OX_HEAD_BYTES(head), stride, stride, ahead };
        wide_super(acc, in, OX_STEP256(store, head, side), x, ldx, m, store, bits, off, head, side, unit, lut, alone);
        p += OX_HEAD_BYTES(head) + 8 * OX_UNIT_BYTES(store);
    }
    OX_UNROLL for (int t = 0; t < m; t++) {
        f32_store(c + t * ldc, acc[0][t]);
        f32_store(c + t * ldc + 16, acc[1][t]);
    }
}

#define OX_WIDE_FLOAT(name) wide_##name
#define OX_WIDE_32(store, bits) 1
#define OX_WIDE_256(store, bits) 1

/* What is left over goes by tiles, which read both panels again. */
#define OX_LEFT_OVER(name)                                        \
    tile_##name(c, ldc, panel, NULL, x, ldx, cols, m);            \
    tile_##name(c + 16, ldc, panel + stride, NULL, x, ldx, cols, m);

/* `wide`: every dot costs more than what is done to codes and sums beside it. `two_ports` (avx512.c, the table of Intel): all cost the same, so panels are spread for as
 * few rows as that pays for (spread.h), and a dot that fits 16 bits is scaled alone. */
#define OX_FLOAT(name, bytes)
#define OX_PAIRS(name)
#define OX_FORM32(name, store, bits, off, side)                                                                              \
    static void wide_##name(OX_WIDE_ARGS)                                                                                    \
    {                                                                                                                        \
        const ox_heights cut = heights_of(side == SIDE_UE4M3 ? 0 : m, OX_WIDE_32_ROWS, OX_WIDE_32_ROWS - 1);                 \
        OX_HEIGHTS(cut, OX_WIDE_32_ROWS, OX_WIDE_32_ROWS - 1,                                                                \
            wide_32(c, ldc, panel, stride, turn_of(later, i, cut.tiles), x, ldx, cols, M, store, bits, off, side,            \
                    lut_##name, BLOCK_##name))                                                                               \
        OX_LEFT_OVER(name)                                                                                                   \
    }                                                                                                                        \
    static void two_ports_##name(OX_WIDE_ARGS)                                                                               \
    {                                                                                                                        \
        if (m >= (side == SIDE_UE4M3 ? 8 : OX_SPREAD_ROWS_TWO_PORTS(store))) {                                               \
            spread_32(c, ldc, panel, stride, later, x, ldx, cols, m, store, off, side, lut_##name, BLOCK_##name);            \
            return;                                                                                                          \
        }                                                                                                                    \
        const ox_heights cut = heights_of(side == SIDE_UE4M3 ? 0 : m, OX_WIDE, 4);                                           \
        OX_HEIGHTS(cut, OX_WIDE, 4,                                                                                          \
            wide_32(c, ldc, panel, stride, turn_of(later, i, cut.tiles), x, ldx, cols, M, store, bits, off, side,            \
                    lut_##name, BLOCK_##name))                                                                               \
        OX_LEFT_OVER(name)                                                                                                   \
    }
#define OX_FORM256(name, store, bits, off, head, side, unit)                                                                 \
    static void wide_##name(OX_WIDE_ARGS)                                                                                    \
    {                                                                                                                        \
        if (OX_TWO_PLANES(store) && m >= OX_SPREAD_ROWS) {                                                                   \
            spread_256(c, ldc, panel, stride, later, x, ldx, cols, m, store, bits, off, head, side, unit, lut_##name, 0);    \
            return;                                                                                                          \
        }                                                                                                                    \
        const ox_heights cut = heights_of(m, OX_WIDE, OX_WIDE - 1);                                                          \
        OX_HEIGHTS(cut, OX_WIDE, OX_WIDE - 1,                                                                                \
            wide_256(c, ldc, panel, stride, turn_of(later, i, cut.tiles), x, ldx, cols, M, store, bits, off, head, side,     \
                     unit, lut_##name, 0))                                                                                   \
        OX_LEFT_OVER(name)                                                                                                   \
    }                                                                                                                        \
    static void two_ports_##name(OX_WIDE_ARGS)                                                                               \
    {                                                                                                                        \
        if (m >= OX_SPREAD_ROWS_TWO_PORTS(store)) {                                                                          \
            spread_256(c, ldc, panel, stride, later, x, ldx, cols, m, store, bits, off, head, side, unit, lut_##name, 1);    \
            return;                                                                                                          \
        }                                                                                                                    \
        const ox_heights cut = heights_of(m, OX_WIDE, 4);                                                                    \
        OX_HEIGHTS(cut, OX_WIDE, 4,                                                                                          \
            wide_256(c, ldc, panel, stride, turn_of(later, i, cut.tiles), x, ldx, cols, M, store, bits, off, head, side,     \
                     unit, lut_##name, 1))                                                                                   \
        OX_LEFT_OVER(name)                                                                                                   \
    }
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_PAIRS
#undef OX_FORM32
#undef OX_FORM256

#endif
