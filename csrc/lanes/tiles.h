/* The tiles: one panel against a few activation rows, straight from the packed bytes. Written once over the vocabulary.
 *
 * Everything here is inlined into functions whose arguments are literals, so each format and row count is a loop of its own.
 * A format's arithmetic is one fixed formula per output, blocks ascending, and any m gives the same bits (docs/kernels.md):
 *   32s    acc = fma(float(sum (code - off) x), d dx, acc); with a minimum then acc = fma(dmin, dx sum x, acc)
 *   256s   acc = fma(float(sum of scale (code - off) x), d dx, acc); with minima then acc = acc - float(sum of min x) (dmin dx)
 *   floats acc = fma(w, x, acc) column by column, even and odd columns in a chain each, added at the end
 *   bf16   pairs.inc
 */
#ifndef OX_LANES_TILES_H
#define OX_LANES_TILES_H
#include "lanes/panel.h"
#include "lanes/tables.h"

#ifndef OX_UNROLL
#define OX_UNROLL _Pragma("GCC unroll 16")
#endif
#ifndef OX_DOTS_SHARED
#define OX_DOTS_SHARED 0
#endif
#ifndef OX_DOT8_RAMP
#define OX_DOT8_RAMP 0
#endif

OX_INLINE float act_f32(const uint8_t *p) { float v; memcpy(&v, p, 4); return v; }
OX_INLINE int32_t act_i32(const uint8_t *p) { int32_t v; memcpy(&v, p, 4); return v; }

/* The bytes that 32 columns take in a panel, all streams together. */
#define OX_STEP32(store, side, block) (OX_UNIT_BYTES(store) + OX_SIDE_BYTES(side) * 32 / (block))
#define OX_STEP256(store, head, side) (OX_UNIT_BYTES(store) + (OX_HEAD_BYTES(head) + OX_SIDE_BYTES(side)) / 8)

/* Weights come from memory once per panel, in one stream (panel.h).
 *
 * One row: the processor's own prefetch follows the streams as fast as memory goes, and asking beside it only takes its places (what is an exception,
 * beside.h is told): on Zen 4 Q4_0 runs at 31 GB/s without, 22 with, beside plain reads of 31 (14 and 23 while the scales lay apart from the codes).
 * More rows: computing hides the next misses from that prefetch, so the first tile over a panel asks for what its worker reads OX_AHEAD
 * bytes later, into the second cache: the first one has too few places for what is on its way. Two threads of Zen 4, GMAC/s, asking for
 * nothing, into the first and into the second: 4 rows Q4_0 193, 288, 317, Q6_K 104, 184, 243; 8 rows Q6_K 133, 254, 287, Q8_0 159, 213, 341;
 * 16 rows Q8_0 213, 251, 348. */
typedef struct {
    const uint8_t *at, *end, *then;     /* position, end of this panel, the panel that this worker reads next (NULL: ask for nothing) */
} ox_ahead;

OX_INLINE ox_ahead ahead_of(const uint8_t *panel, int64_t bytes, const uint8_t *then, int m)
{
    return (ox_ahead){ panel + OX_AHEAD, panel + bytes, m > 1 ? then : NULL };
}

/* Where a tile reads in a panel: the side that its block belongs to, and its codes. */
typedef struct {
    const uint8_t *s, *p;
} ox_place;

OX_INLINE void ahead(ox_ahead *a, int step)
{
    if (a->then) {
        if (a->at >= a->end)
            a->at = a->then + (a->at - a->end), a->end = (const uint8_t *)UINTPTR_MAX;
        OX_UNROLL for (int i = 0; i < step; i += 64)
            OX_PREFETCH_L2(a->at + i);
        a->at += step;
    }
}

/* Spreading reads in bursts: what it reads next, `bytes` at `next` and `stride` on, is asked for by the tiles, rows i to i + rows - 1 of m their part. */
OX_INLINE void span_ahead(const uint8_t *next, int64_t stride, int bytes, int i, int rows, int m)
{
    const int lines = bytes / 64;
    if (next)
        for (int k = lines * i / m; k < lines * (i + rows) / m; k++) {
            OX_PREFETCH_L2(next + 64 * k);
            OX_PREFETCH_L2(next + stride + 64 * k);
        }
}

/* Groups 2 i and 2 i + 1 of a unit. */
OX_INLINE void load_two(ox_u8x64 *w, const uint8_t *p, int i, int store, const uint8_t *lut, ox_u8x64 table)
{
    if (store == 8) {
        w[0] = u8_load(p + 128 * i);
        w[1] = u8_load(p + 128 * i + 64);
    } else if (store >= 4) {
        ox_u8x64 v = u8_load(p + 64 * i);
        w[0] = u8_low4(v);
        w[1] = u8_high4(v);
        p += 256;
    } else if (store >= 2) {
        ox_u8x64 v = u8_load(p + 64 * (i / 2));
        w[0] = u8_field(v, i & 1 ? 4 : 0, 3);
        w[1] = u8_field(v, i & 1 ? 6 : 2, 3);
        p += 128;
    }
    if (store == 6) {
        ox_u8x64 v = u8_load(p + 64 * (i / 2));
        w[0] = u8_put(w[0], v, i & 1 ? 4 : 0, 4, 0x30);
        w[1] = u8_put(w[1], v, i & 1 ? 6 : 2, 4, 0x30);
    } else if (store == 1) {
        ox_u8x64 v = u8_load(p);
        w[0] = u8_field(v, 2 * i, 1);
        w[1] = u8_field(v, 2 * i + 1, 1);
    } else if (store & 1) {
        ox_u8x64 v = u8_load(p);
        w[0] = u8_put(w[0], v, 2 * i, store - 1, 1 << (store - 1));
        w[1] = u8_put(w[1], v, 2 * i + 1, store - 1, 1 << (store - 1));
    }
    if (lut)
        w[0] = u8_lookup(table, w[0]), w[1] = u8_lookup(table, w[1]);
}

/* Half a unit: 16 columns, 4 groups. */
OX_INLINE void load_half(ox_u8x64 *w, const uint8_t *p, int h, int store, const uint8_t *lut, ox_u8x64 table)
{
    load_two(w, p, 2 * h, store, lut, table);
    load_two(w + 2, p, 2 * h + 1, store, lut, table);
}

/* 16 columns of m rows, times the scales `s`, or ones where that is NULL. A row after the other needs all codes at once, a group after the other one at a
 * time. Four rows hold many registers already, and some codes need many to be put together: these lose (Zen 3, GMAC/s: Q1_0 86 and 61, IQ2_XS 52 and 48,
 * MXFP4 83 and 81). */
OX_INLINE void dots_16(ox_i32x16 *dot, const ox_u8x64 *w, const uint8_t *x, int64_t ldx, int m, int store, int bits, const ox_scale *s)
{
#if OX_DOTS_SHARED
    if (m > 1 && (m < 4 || bits == 8 || (bits == 4 && store > 1))) {
        const ox_scale times = s ? *s : scale_low(i32_set1(1));
        const int n = bits > 6 ? 1 : bits == 6 ? 2 : 4;         /* groups that share a 16-bit sum */
        OX_UNROLL for (int g = 0; g < 4; g += n) {
            ox_part part[8];
            OX_UNROLL for (int e = g; e < g + n; e++) {
                const ox_signed code = signed_of(w[e]);
                OX_UNROLL for (int t = 0; t < m; t++) {
                    ox_i32x16 v = i32_set1(act_i32(x + t * ldx + 4 * e));
                    if (bits == 8)
                        dot[t] = i32_dot4_signed(dot[t], code, v, times);
                    else
                        part[t] = part_dot4(e == g ? part_zero() : part[t], w[e], v, 0);
                }
            }
            OX_UNROLL for (int t = 0; t < m && bits != 8; t++)
                dot[t] = part_scaled(dot[t], part[t], times);
        }
        return;
    }
#endif
    OX_UNROLL for (int t = 0; t < m; t++) {
        const int8_t *xt = (const int8_t *)x + t * ldx;
        dot[t] = s ? i32_dot16_scaled(dot[t], w, xt, bits, *s) : i32_dot16(dot[t], w, xt, bits);
    }
}

/* 16 float scales of a side. E8M0: 2^(e - 128), where the two least are subnormal. UE4M3: the bits moved into place are
 * (1 + m / 8) 2^(e - 127), or subnormal for e = 0 just the same: times 2^119 is half of the number. */
OX_INLINE ox_f32x16 side_d(const uint8_t *p, int side)
{
    if (side == SIDE_F32)
        return f32_load((const float *)p);
    if (side == SIDE_E8M0) {
        ox_i32x16 e = i32_load_u8(p);
        return i32_as_f32(i32_max(i32_shl(i32_sub(e, i32_set1(1)), 23), i32_shl(i32_add(e, i32_set1(1)), 21)));
    }
    if (side == SIDE_UE4M3)
        return f32_mul(i32_as_f32(i32_shl(i32_load_u8(p), 20)), f32_set1(0x1p119f));
    return f32_load_f16((const uint16_t *)p);
}

/* What a dot of 32 columns starts from: - off * sum of x. The row holds - sum, so this is a broadcast and a shift. */
OX_INLINE ox_i32x16 start_32(const uint8_t *x, int off)
{
    if (off == 0)
        return i32_zero();
    ox_i32x16 v = i32_set1(act_i32(x + ACT32_LESS));
    return off & (off - 1) ? i32_mul(v, i32_set1(off)) : off == 1 ? v : i32_shl(v, off == 8 ? 3 : off == 16 ? 4 : 7);
}

/* Columns 32 b to 32 b + 31 of a panel against m rows. */
OX_INLINE void step_32(ox_f32x16 *acc, ox_place *at, int64_t b, const uint8_t *x, int64_t ldx, int m,
                       int store, int bits, int off, int side, const uint8_t *lut, ox_u8x64 table, int block)
{
    const int less = off - (bits == 8 ? OX_DOT8_CENTRE : 0), units = block / 32;
    ox_i32x16 dot[8];
    if (b % (units * OX_SIDE_SPAN(side)) == 0)
        at->s = at->p, at->p += 64;
    OX_UNROLL for (int h = 0; h < 2; h++) {
        ox_u8x64 w[4];
        load_half(w, at->p, h, store, lut, table);
        OX_UNROLL for (int t = 0; t < m; t++) {
            const uint8_t *xt = x + t * ldx;
            if (side == SIDE_UE4M3) {
                int16_t sum;
                memcpy(&sum, xt + ACT32_HALVES + 2 * h, 2);
                dot[t] = i32_set1(-less * sum);
            } else if (h == 0) {
                dot[t] = start_32(xt, less);
            }
        }
        dots_16(dot, w, x + 16 * h, ldx, m, store, bits, NULL);
        if (h == 1 || side == SIDE_UE4M3) {
            ox_f32x16 d = side_d(side == SIDE_UE4M3 ? at->s + 32 * (b & 1) + 16 * h : at->s, side);
            OX_UNROLL for (int t = 0; t < m; t++)
                acc[t] = f32_fma(i32_to_f32(dot[t]), f32_mul(d, f32_set1(act_f32(x + t * ldx + ACT32_D))), acc[t]);
        }
    }
    if (side == SIDE_F16_MIN) {
        ox_f32x16 least = side_d(at->s + 32, side);
        OX_UNROLL for (int t = 0; t < m; t++)
            acc[t] = f32_fma(least, f32_set1(act_f32(x + t * ldx + ACT32_DSUM)), acc[t]);
    }
    if (units == 1 || b % units == units - 1)
        at->s += OX_SIDE_BYTES(side);
    at->p += OX_UNIT_BYTES(store);
}

OX_INLINE void tile_32(float *c, int64_t ldc, const uint8_t *panel, const uint8_t *then, const uint8_t *x, int64_t ldx, int64_t cols, int m,
                       int store, int bits, int off, int side, const uint8_t *lut, int block)
{
    ox_u8x64 table = u8_table(lut ? lut : panel);
    ox_ahead next = ahead_of(panel, OX_ROUND64(cols / block * OX_SIDE_BYTES(side)) + cols / 32 * OX_UNIT_BYTES(store), then, m);
    ox_place at = { panel, panel };
    ox_f32x16 acc[8];
    OX_UNROLL for (int t = 0; t < m; t++)
        acc[t] = f32_zero();
    for (int64_t b = 0; b < cols / 32; b++, x += ACT32_BYTES) {
        ahead(&next, OX_STEP32(store, side, block));
        step_32(acc, &at, b, x, ldx, m, store, bits, off, side, lut, table, block);
    }
    OX_UNROLL for (int t = 0; t < m; t++)
        f32_store(c + t * ldc, acc[t]);
}

/* Integer scales (and minima) of a superblock, as pairs of neighbours: sp[k] = (scale[2 k], scale[2 k + 1]). */
OX_INLINE void load_head(ox_i32x16 *sp, ox_i32x16 *mp, const uint8_t *p, int head)
{
    if (head == HEAD_NONE)
        return;
    int n = head == HEAD_8X8 || head == HEAD_8X4 ? 2 : 4;
    ox_u8x64 v[4];
    if (head == HEAD_8X6_MIN || head == HEAD_16X6) {
        ox_u8x64 a = u8_load(p), b = u8_load(p + 64), h = u8_load(p + 128);
        v[0] = u8_put(u8_low4(a), h, 0, 4, 0x30);
        v[1] = u8_put(u8_high4(a), h, 2, 4, 0x30);
        v[2] = u8_put(u8_low4(b), h, 4, 4, 0x30);
        v[3] = u8_put(u8_high4(b), h, 6, 4, 0x30);
    } else if (head == HEAD_8X4) {
        ox_u8x64 a = u8_load(p);
        v[0] = u8_low4(a), v[1] = u8_high4(a);
    } else if (head == HEAD_16X4) {
        ox_u8x64 a = u8_load(p), b = u8_load(p + 64);
        v[0] = u8_low4(a), v[1] = u8_high4(a), v[2] = u8_low4(b), v[3] = u8_high4(b);
    } else {
        OX_UNROLL for (int q = 0; q < n; q++)
            v[q] = u8_load(p + 64 * q);
    }
    if (head == HEAD_16X4_MIN) {
        OX_UNROLL for (int q = 0; q < 4; q++) {
            ox_u8x64 most = u8_high4(v[q]);
            mp[2 * q] = pairs_even(most), mp[2 * q + 1] = pairs_odd(most);
            v[q] = u8_low4(v[q]);
        }
    }
    OX_UNROLL for (int q = 0; q < n; q++) {
        ox_i32x16 *to = head == HEAD_8X6_MIN && q >= 2 ? mp - 4 : sp;
        to[2 * q] = pairs_even(v[q]), to[2 * q + 1] = pairs_odd(v[q]);
    }
    if (head == HEAD_16X6) {
        OX_UNROLL for (int k = 0; k < 8; k++)
            sp[k] = pairs_less(sp[k], 32);
    }
    if (head == HEAD_8X4 || head == HEAD_16X4) {
        OX_UNROLL for (int k = 0; k < 2 * n; k++)
            sp[k] = pairs_odd_numbers(sp[k]);
    }
}

#ifdef OX_ABOVE
/* Two sub-blocks under one multiplication. Multiplications start on the ports of the dots; shifts, additions and bit operations do not. So where two dots
 * fit 16 bits they share a lane, and one dot of 16-bit pairs scales both: the second sub-block's is moved up, and the first one's is added below it. The
 * lower half stands 2^15 above its value meanwhile, so that it borrows nothing from the upper one. The integers are those of the plain way.
 *
 * Whether they fit depends on x: a code stands at most `reach` from its offset, and a row of x knows its largest sums of magnitudes (panel.h). Of superblocks
 * of normal numbers, Q4_K's fit all, Q6_K's 99.8 % and Q5_K's 97.6 %; of uniform ones Q4_K's 99.99 % and the others' none. A format that would seldom
 * fit does not ask. */
#define OX_REACH(bits, off) ((off) > (1 << (bits)) - 1 - (off) ? (off) : (1 << (bits)) - 1 - (off))
enum { OX_PAIRS_ROWS = 8, OX_PAIRS_LEAST = 1000 };

OX_INLINE int pairs_fit(const uint8_t *x, int64_t ldx, int m, int bits, int off, int sub)
{
    const int limit = 32767 / OX_REACH(bits, off);
    int most = 0;
    if (sub == 256 || limit < OX_PAIRS_LEAST || limit >= 127 * sub)
        return sub != 256 && limit >= 127 * sub;
    OX_UNROLL for (int t = 0; t < m; t++) {
        int16_t v;
        memcpy(&v, x + t * ldx + (sub == 16 ? ACT256_MOST16 : off ? ACT256_MOST32 : ACT256_SIGN32), 2);
        most = v > most ? v : most;
    }
    return most <= limit;
}

/* What the dots of a row start from: the offset of their codes, taken off, and in pairs what the first of two is kept above its value by. */
OX_INLINE void starts_256(int32_t *start, const uint8_t *x, int sub, int off, int pairs)
{
    OX_ALIGN(64) static const int32_t above[16] = { OX_ABOVE, 0, OX_ABOVE, 0, OX_ABOVE, 0, OX_ABOVE, 0, OX_ABOVE, 0, OX_ABOVE, 0, OX_ABOVE, 0, OX_ABOVE, 0 };
    ox_i32x16 less = i32_mul(i32_load_i16(x + (sub == 16 ? ACT256_SUM16 : ACT256_SUM32 - 16)), i32_set1(-off));
    i32_store(start, pairs ? i32_add(less, i32_load(above)) : less);
}

/* The codes of a superblock against m rows, in pairs of sub-blocks. */
OX_INLINE void pairs_256(ox_i32x16 *sum, const ox_i32x16 *sp, const uint8_t *p, ox_ahead *next, int step, const uint8_t *x, int64_t ldx, int m,
                         int store, int bits, int off, int sub, const uint8_t *lut, ox_u8x64 table)
{
    OX_ALIGN(64) int32_t start[OX_PAIRS_ROWS][16];
    OX_UNROLL for (int t = 0; t < m; t++) {
        sum[t] = i32_zero();
        if (off)
            starts_256(start[t], x + t * ldx, sub, off, 1);
    }
    for (int k = 0; k < 128 / sub; k++, p += OX_UNIT_BYTES(store) * sub / 16, x += 2 * sub) {
        ox_i32x16 dot[OX_PAIRS_ROWS];
        OX_UNROLL for (int u = 0; u < sub / 16; u++)
            ahead(next, step);
        OX_UNROLL for (int second = 1; second >= 0; second--) {
            OX_UNROLL for (int t = 0; t < m; t++) {
                ox_i32x16 from = off ? i32_set1(start[t][(sub == 32 ? 8 : 0) + 2 * k + second]) : second ? i32_zero() : i32_set1(OX_ABOVE);
                dot[t] = second ? from : i32_above(dot[t], from);
            }
            OX_UNROLL for (int h = 0; h < sub / 16; h++) {
                ox_u8x64 w[4];
                load_half(w, p + (sub == 32 ? second * OX_UNIT_BYTES(store) : 0), sub == 32 ? h : second, store, lut, table);
                OX_UNROLL for (int t = 0; t < m; t++)
                    dot[t] = i32_dot16(dot[t], w, (const int8_t *)x + t * ldx + sub * second + 16 * h, bits);
            }
        }
        OX_UNROLL for (int t = 0; t < m; t++)
            sum[t] = i32_dot_pairs(sum[t], pairs_of(dot[t]), sp[k]);
    }
}
#endif

/* Superblock b of a panel against m rows. */
OX_INLINE void step_256(ox_f32x16 *acc, ox_place *at, int64_t b, ox_ahead *next, const uint8_t *x, int64_t ldx, int m,
                        int store, int bits, int off, int head, int side, float unit, const uint8_t *lut, ox_u8x64 table)
{
    const int ramp = OX_DOT8_RAMP && bits == 8 && lut && m == 1;        /* tables.h */
    const int less = off - (bits == 8 && !ramp ? OX_DOT8_CENTRE : 0), sub = OX_HEAD_SUB(head);
    ox_i32x16 sp[8], mp[8], sum[8], least[8], codes = i32_zero();
    if (b % OX_SIDE_SPAN(side) == 0)
        at->s = at->p, at->p += 64;
    load_head(sp, mp, at->p, head);
    const uint8_t *p = at->p + OX_HEAD_BYTES(head);
    int pairs = 0;
#ifdef OX_ABOVE
    pairs = m == OX_PAIRS_ROWS && pairs_fit(x, ldx, m, bits, off, sub);
    if (pairs) {
        pairs_256(sum, sp, p, next, OX_STEP256(store, head, side), x, ldx, m, store, bits, off, sub, lut, table);
        p += 8 * OX_UNIT_BYTES(store);
    }
#endif
    OX_UNROLL for (int t = 0; t < m; t++) {
        const uint8_t *sums = x + t * ldx + (sub == 32 ? ACT256_SUM32 : ACT256_SUM16);
        ox_i32x16 a = i32_zero(), z = i32_zero();
        if (head == HEAD_NONE) {
            int32_t all = 0;
            for (int k = 0; k < 8; k++) { int16_t v; memcpy(&v, x + t * ldx + ACT256_SUM32 + 2 * k, 2); all += v; }
            a = i32_set1(-less * all);
        } else if (less && !pairs) {
            OX_UNROLL for (int k = 0; k < 128 / sub; k++)
                a = i32_dot_pairs(a, sp[k], i32_set1(act_i32(sums + 4 * k)));
            a = less == 128 ? i32_shl(a, 7) : less == 32 ? i32_shl(a, 5) : i32_mul(a, i32_set1(less));
            a = i32_sub(z, a);
        }
        if (OX_HEAD_MIN(head)) {
            OX_UNROLL for (int k = 0; k < 128 / sub; k++)
                z = i32_dot_pairs(z, mp[k], i32_set1(act_i32(sums + 4 * k)));
            least[t] = z;
        }
        if (!pairs)
            sum[t] = a;
    }
    for (int u = 0; u < 8 && !pairs; u += 2) {
        OX_UNROLL for (int v = 0; v < 2; v++, p += OX_UNIT_BYTES(store)) {
            ahead(next, OX_STEP256(store, head, side));
            ox_i32x16 pair = sub == 32 ? sp[u / 2] : sub == 16 ? sp[u + v] : i32_zero();
            OX_UNROLL for (int h = 0; h < 2; h++) {
                ox_u8x64 w[4];
                load_half(w, p, h, store, ramp ? NULL : lut, table);
                ox_scale k = (sub == 32 ? v : h) ? scale_high(pair) : scale_low(pair);
                if (ramp) {
                    const int8_t *part = (const int8_t *)x + 32 * (u + v) + 16 * h;
                    codes = i32_dot16_scaled(codes, w, part, 4, k);
                    OX_UNROLL for (int q = 0; q < 4; q++)
                        w[q] = u8_lookup(u8_table(rest_IQ4_NL), w[q]);
                    sum[0] = i32_dot16_scaled(sum[0], w, part, 5, k);
                    continue;
                }
                dots_16(sum, w, x + 32 * (u + v) + 16 * h, ldx, m, store, bits, sub == 256 ? NULL : &k);
            }
        }
    }
    if (ramp)
        sum[0] = i32_add(sum[0], i32_mul(codes, i32_set1(15)));
    ox_f32x16 d = side_d(at->s, side);
    if (unit != 1.0f)
        d = f32_mul(d, f32_set1(unit));
    OX_UNROLL for (int t = 0; t < m; t++) {
        ox_f32x16 dx = f32_set1(act_f32(x + t * ldx + ACT256_D));
        acc[t] = f32_fma(i32_to_f32(sum[t]), f32_mul(d, dx), acc[t]);
        if (OX_HEAD_MIN(head))
            acc[t] = f32_fnma(i32_to_f32(least[t]), f32_mul(side_d(at->s + 32, side), dx), acc[t]);
    }
    at->s += OX_SIDE_BYTES(side);
    at->p = p;
}

OX_INLINE void tile_256(float *c, int64_t ldc, const uint8_t *panel, const uint8_t *then, const uint8_t *x, int64_t ldx,
        int64_t cols, int m,
                        int store, int bits, int off, int head, int side, float unit, const uint8_t *lut)
{
    ox_u8x64 table = u8_table(lut ? lut : panel);
    const int64_t sides = OX_ROUND64(cols / 256 * OX_SIDE_BYTES(side));
    ox_ahead next = ahead_of(panel, sides + cols / 256 * (OX_HEAD_BYTES(head) + 8 * OX_UNIT_BYTES(store)), then, m);
    ox_place at = { panel, panel };
    ox_f32x16 acc[8];
    OX_UNROLL for (int t = 0; t < m; t++)
        acc[t] = f32_zero();
    for (int64_t b = 0; b < cols / 256; b++, x += ACT256_BYTES)
        step_256(acc, &at, b, &next, x, ldx, m, store, bits, off, head, side, unit, lut, table);
    OX_UNROLL for (int t = 0; t < m; t++)
        f32_store(c + t * ldc, acc[t]);
}

OX_INLINE ox_f32x16 load_weights(const uint8_t *p, int form)
{
    return form == FORM_F32 ? f32_load((const float *)p) : f32_load_f16((const uint16_t *)p);
}

/* Two chains per output, even and odd columns: one alone would wait for its own fma (4 cycles for 32 bytes of F16). */
OX_INLINE void tile_float(float *c, int64_t ldc, const uint8_t *panel, const uint8_t *then, const uint8_t *x, int64_t ldx,
        int64_t cols, int m,
                          int form, int bytes)
{
    ox_ahead next = ahead_of(panel, OX_ROUND64(cols * 16 * bytes), then, m);
    ox_f32x16 even[8], odd[8];
    OX_UNROLL for (int t = 0; t < m; t++)
        even[t] = odd[t] = f32_zero();
    int64_t k = 0;
    for (; k + 2 <= cols; k += 2, panel += 32 * bytes) {
        ahead(&next, 32 * bytes);
        ox_f32x16 w0 = load_weights(panel, form);
        OX_UNROLL for (int t = 0; t < m; t++)
            even[t] = f32_fma(w0, f32_set1(act_f32(x + t * ldx + 4 * k)), even[t]);
        ox_f32x16 w1 = load_weights(panel + 16 * bytes, form);
        OX_UNROLL for (int t = 0; t < m; t++)
            odd[t] = f32_fma(w1, f32_set1(act_f32(x + t * ldx + 4 * k + 4)), odd[t]);
    }
    if (k < cols) {
        ox_f32x16 w0 = load_weights(panel, form);
        OX_UNROLL for (int t = 0; t < m; t++)
            even[t] = f32_fma(w0, f32_set1(act_f32(x + t * ldx + 4 * k)), even[t]);
    }
    OX_UNROLL for (int t = 0; t < m; t++)
        f32_store(c + t * ldc, f32_add(even[t], odd[t]));
}

/* Splits m into the row counts that this instruction set's registers hold; `call` is compiled once for each as M. */
#define OX_TILES(call)                                                                            \
    if (OX_TILE_ROWS >= 8)                                                                        \
        for (; m >= 8; m -= 8, c += 8 * ldc, x += 8 * ldx, then = 0) { enum { M = 8 }; call; }    \
    for (; m >= 4; m -= 4, c += 4 * ldc, x += 4 * ldx, then = 0) { enum { M = 4 }; call; }        \
    if (m == 3) { enum { M = 3 }; call; }                                                         \
    if (m == 2) { enum { M = 2 }; call; }                                                         \
    if (m == 1) { enum { M = 1 }; call; }

/* How m rows are cut for tiles of `most` rows at the most and `least` at the least: as evenly as can be, the first `more` tiles with a row more than `rows`.
 * Fewer than can be cut so are left over. One thread of Zen 4, weights from memory, 32 rows, GMAC/s with 6, 6, 6, 6, 6 and 2 rows a tile and with 6, 6, 5, 5, 5, 5:
 * Q6_K 115 and 128, Q4_K 153 and 158. */
typedef struct { int tiles, rows, more; } ox_heights;

OX_INLINE ox_heights heights_of(int m, int most, int least)
{
    const int tiles = (m + most - 1) / most;
    return m <= 0 || m < least * tiles ? (ox_heights){ m / most, most, 0 } : (ox_heights){ tiles, m / tiles, m % tiles };
}

/* Calls `tile` once for each height, with its rows as the literal M; i counts the tiles. */
#define OX_HEIGHT(most, least, less, tile) \
    if ((most) - (less) >= (least) && rows == (most) - (less)) { enum { M = (most) - (less) }; tile; }
#define OX_HEIGHTS(cut, most, least, tile)                                                        \
    for (int i = 0, rows; i < (cut).tiles; i++, m -= rows, c += rows * ldc, x += rows * ldx) {    \
        rows = (cut).rows + (i < (cut).more);                                                     \
        OX_HEIGHT(most, least, 0, tile)                                                           \
        OX_HEIGHT(most, least, 1, tile)                                                           \
        OX_HEIGHT(most, least, 2, tile)                                                           \
        OX_HEIGHT(most, least, 3, tile)                                                           \
    }

#define OX_TILE_ARGS float *c, int64_t ldc, const uint8_t *panel, const uint8_t *then, const uint8_t *x, int64_t ldx, int64_t cols, int m
#define OX_WIDE_ARGS float *c, int64_t ldc, const uint8_t *panel, int64_t stride, int64_t later, const uint8_t *x, int64_t ldx, \
        int64_t cols, int m

enum {
#define OX_FORMAT(name, id, block, bytes) BLOCK_##name = block,
#include "formats.def"
#undef OX_FORMAT
};

/* Two chains a row: with 16 registers three rows fit, four would be spilled (AVX2 on Zen 4, 60 rows: 31 GMAC/s and 53). */
#define OX_FLOAT_TILES(call)                                                                                                 \
    for (; OX_TILE_ROWS < 8 && (m == 3 || m > 4); m -= 3, c += 3 * ldc, x += 3 * ldx, then = 0) { enum { M = 3 }; call; }    \
    for (; OX_TILE_ROWS < 8 && m > 2; m -= 2, c += 2 * ldc, x += 2 * ldx, then = 0) { enum { M = 2 }; call; }                \
    OX_TILES(call)

#define OX_FLOAT(name, bytes) \
    static void tile_##name(OX_TILE_ARGS) { OX_FLOAT_TILES(tile_float(c, ldc, panel, then, x, ldx, cols, M, FORM_##name, bytes)) }
#define OX_PAIRS(name)
#define OX_FORM32(name, store, bits, off, side) \
    static void tile_##name(OX_TILE_ARGS) \
    { OX_TILES(tile_32(c, ldc, panel, then, x, ldx, cols, M, store, bits, off, side, lut_##name, BLOCK_##name)) }
#define OX_FORM256(name, store, bits, off, head, side, unit) \
    static void tile_##name(OX_TILE_ARGS) \
    { OX_TILES(tile_256(c, ldc, panel, then, x, ldx, cols, M, store, bits, off, head, side, unit, lut_##name)) }
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_PAIRS
#undef OX_FORM32
#undef OX_FORM256

#endif
