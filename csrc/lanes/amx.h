/* Many rows on AMX: a tile instruction multiplies 16 rows of x by the codes of a panel, 64 columns deep, where a vector instruction takes one row and four
 * columns. The integer sums are exact, so only their order differs from wide.h; the float operations per output are those of tiles.h, bit for bit.
 *
 * A panel's codes lie as the second operand wants them: 64 bytes hold four columns of 16 rows of weights (panel.h). They are spread once for all rows of x.
 *   32s    codes less their offset; a block of 32 columns is one instruction, whose 16 x 16 sums are scaled by vectors
 *   256s   codes times their integer scale, in two bytes each ("digits", low and high) where one does not hold them: the sums of a superblock stay in
 *          tiles, and are put together and scaled once
 *
 * Instructions on tiles and on vectors run side by side, so the sums of one group of rows are scaled while the next group is multiplied. */
#ifndef OX_LANES_AMX_H
#define OX_LANES_AMX_H
#include "lanes/tiles.h"

enum { AMX_ROWS = 16 };         /* rows of x in a group; a group alone may have fewer */

/* Tiles 0 to 3 are sums, 4 is x (`depth` columns of a group), 5 to 7 are codes. */
OX_INLINE void amx_begin(int depth, int rows)
{
    OX_ALIGN(64) struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = { .palette = 1 };
    for (int i = 0; i < 8; i++)
        shape.bytes[i] = (uint16_t)(i == 4 ? depth : 64), shape.rows[i] = (uint8_t)(i > 4 ? depth / 4 : rows);
    __asm__ volatile("" : : "r"(&shape) : "memory");            /* gcc before 13 believes that only the first 8 bytes are read */
    _tile_loadconfig(&shape);
}

/* Groups of m rows. The last one ends with the last row, and leaves out what the one before has done. */
typedef struct { int first, skip; } ox_group;
OX_INLINE int amx_groups(int m) { return (m + AMX_ROWS - 1) / AMX_ROWS; }
OX_INLINE ox_group amx_group(int g, int m, int few)
{
    const int first = (few && m < AMX_ROWS) || AMX_ROWS * g + AMX_ROWS <= m ? AMX_ROWS * g : m - AMX_ROWS;
    return (ox_group){ first, AMX_ROWS * g - first };
}

/* What a worker reads next of its two panels is prefetched in parts, so that memory and computing wait for each other as little as may be: for many rows a
 * part with each group, of what follows at once; for few rows, of what follows AMX_AHEAD bytes later, four parts with each group and four while codes are
 * spread, which takes about as long as a group. `few` is a literal. */
enum { AMX_AHEAD = 4096, AMX_FEW = 32 };

typedef struct {
    const uint8_t *p;               /* NULL: not known */
    int64_t stride, bytes, parts;   /* from panel to panel, all that is prefetched of one, in how many parts */
} ox_amx_ahead;

/* What is `far` from a place in the panel; past its end, that of the pair that is `later`. */
OX_INLINE const uint8_t *amx_next(const uint8_t *from, int64_t far, const uint8_t *panel, int64_t stride, int64_t later)
{
    return from + far < panel + stride ? from + far : later ? from + far + later - stride : NULL;
}

OX_INLINE void amx_ahead(const ox_amx_ahead *next, int part)
{
    if (next->p)
        for (int64_t k = next->bytes / 64 * part / next->parts; k < next->bytes / 64 * (part + 1) / next->parts; k++) {
            OX_PREFETCH_L2(next->p + 64 * k);
            OX_PREFETCH_L2(next->p + next->stride + 64 * k);
        }
}

/* Rows [t, t + n) of the x that comes next are fetched from the second cache. */
OX_INLINE void amx_near(const uint8_t *x, int64_t ldx, int t, int n, int bytes)
{
    OX_UNROLL for (int i = t; i < t + n; i++)
        OX_UNROLL for (int k = 0; k < bytes; k += 64)
            OX_PREFETCH(x + i * ldx + k);
}

/* A copy that stays in a register: an instruction on tiles may write to memory, for all that the compiler knows, and then it would load the value again. */
#define AMX_HOLD(to, from) do { (to) = (from); __asm__("" : "+v"(to)); } while (0)

/* ---- 32s */

enum { AMX_PARTS = 4 };         /* that are spread, multiplied and scaled together: blocks of 32 columns, or halves of them where each has a scale */

typedef struct {
    OX_ALIGN(64) uint8_t code[2][AMX_PARTS][8 * 64];
    OX_ALIGN(4096) int32_t sum[2][2][AMX_PARTS * AMX_ROWS * 16];    /* of two groups in turn */
    ox_f32x16 d[2][AMX_PARTS], least[2][AMX_PARTS];
} ox_amx32;

/* A load waits for the stores before it whose addresses agree in their last 12 bits, and a group's sums fill all 4096. So the sums of one group lie row
 * after row, those of the next part after part, and while part p is stored the rows of the group before are finished that lie in another quarter, or at
 * other places of every quarter: `amx_sum` is where the sums of part k and row t begin, `amx_row` the j-th row to be finished beside part p. */
OX_INLINE int amx_sum(int turn, int k, int t) { return turn ? 256 * ((k + 2) % AMX_PARTS) + 16 * t : 64 * t + 16 * k; }
OX_INLINE int amx_row(int turn, int p, int j) { return turn ? 4 * j + (p + 2) % AMX_PARTS : 4 * p + j; }
enum { AMX_SUM_BYTES_0 = 256, AMX_SUM_BYTES_1 = 64 };               /* from row to row */

/* The next n parts of one panel, from `at` on; returns where the following ones are. A half is a block whose other half is zero. */
OX_INLINE ox_place amx_spread32(ox_amx32 *a, int q, int n, ox_place at, int64_t b, int store, int off, int side, const uint8_t *lut, int units,
                                const ox_amx_ahead *next, int few)
{
    const int halves = side == SIDE_UE4M3 ? 2 : 1;
    const ox_u8x64 table = u8_table(lut ? lut : at.p), less = _mm512_set1_epi8((char)off);
    for (int k = 0; k < n; b++) {
        if (b % (units * OX_SIDE_SPAN(side)) == 0)
            at.s = at.p, at.p += 64;
        for (int h = 0; h < halves; h++, k++) {
            if (few && k % 2 == 0)
                amx_ahead(next, 2 * q + k / 2);
            OX_UNROLL for (int i = 0; i < 4; i++) {
                ox_u8x64 w[2];
                load_two(w, at.p, i, store, lut, table);
                OX_UNROLL for (int g = 0; g < 2; g++)
                    u8_store(a->code[q][k] + 128 * i + 64 * g, halves == 2 && i / 2 != h ? i32_zero() : _mm512_sub_epi8(w[g], less));
            }
            a->d[q][k] = side_d(halves == 2 ? at.s + 32 * (b & 1) + 16 * h : at.s, side);
        }
        if (side == SIDE_F16_MIN)
            a->least[q][k - 1] = side_d(at.s + 32, side);
        if (units == 1 || b % units == units - 1)
            at.s += OX_SIDE_BYTES(side);
        at.p += OX_UNIT_BYTES(store);
    }
    return at;
}

/* Beside tiles, multiply-adds and conversions start only one in a cycle, additions two: most sums become floats by being added to the bits of a number
 * whose last bit is one, exact below 2^22 (they are below 2^20). */
OX_INLINE ox_f32x16 amx_float(ox_i32x16 sum, int added)
{
    const ox_f32x16 one = f32_set1(0x1.8p23f);
    return added ? f32_sub(i32_as_f32(i32_add(sum, f32_as_i32(one))), one) : i32_to_f32(sum);
}

OX_INLINE void amx_finish32(const ox_amx32 *a, ox_f32x16 d[2][AMX_PARTS], ox_f32x16 least[2][AMX_PARTS], int turn, int t, int n, float *c, const uint8_t *x,
                            int first, int side)
{
    const int halves = side == SIDE_UE4M3 ? 2 : 1;
    ox_f32x16 acc[2];
    OX_UNROLL for (int q = 0; q < 2; q++)
        acc[q] = first ? f32_zero() : f32_load(c + 16 * q);
    OX_UNROLL for (int k = 0; k < n; k++) {
        const uint8_t *xk = x + ACT32_BYTES * (k / halves);
        ox_f32x16 dx = f32_set1(act_f32(xk + ACT32_D));
        OX_UNROLL for (int q = 0; q < 2; q++)
            acc[q] = f32_fma(amx_float(i32_load(a->sum[turn][q] + amx_sum(turn, k, t)), (2 * k + q) % 3 != 2), f32_mul(d[q][k], dx), acc[q]);
        if (side == SIDE_F16_MIN) {
            ox_f32x16 sum = f32_set1(act_f32(xk + ACT32_DSUM));
            OX_UNROLL for (int q = 0; q < 2; q++)
                acc[q] = f32_fma(least[q][k], sum, acc[q]);
        }
    }
    OX_UNROLL for (int q = 0; q < 2; q++)
        f32_store(c + 16 * q, acc[q]);
}

#define AMX_STORE32(turn, k, one, two)                                                                                       \
    _tile_stored(one, a.sum[turn][0] + amx_sum(turn, k, 0), AMX_SUM_BYTES_##turn);                                           \
    _tile_stored(two, a.sum[turn][1] + amx_sum(turn, k, 0), AMX_SUM_BYTES_##turn);

/* Part k of a group into tiles `one` and `two`; then the sums of the part before are stored, which are ready by now, and four rows of the group before
 * finished. */
#define AMX_PART(turn, last, k, one, two, STORE)                                                                             \
    if (few)                                                                                                                 \
        amx_ahead(&next, 4 * (g + turn + 1) + (k));                                                                          \
    if ((k) < n) {                                                                                                           \
        _tile_zero(one);                                                                                                     \
        _tile_zero(two);                                                                                                     \
        _tile_loadd(4, xg + ACT32_BYTES * ((k) / halves), ldx);                                                              \
        _tile_loadd(5, a.code[0][k], 64);                                                                                    \
        _tile_loadd(6, a.code[1][k], 64);                                                                                    \
        _tile_dpbssd(one, 4, 5);                                                                                             \
        _tile_dpbssd(two, 4, 6);                                                                                             \
    }                                                                                                                        \
    if (!few)                                                                                                                \
        amx_near(xnext, ldx, 4 * (k), 4, AMX_PARTS / halves * ACT32_BYTES);                                                  \
    STORE                                                                                                                    \
    if (g + turn)                                                                                                            \
        OX_UNROLL for (int j = 0; j < 4; j++) {                                                                              \
            const int t = amx_row(last, k, j);                                                                               \
            amx_finish32(&a, d, least, last, t, n, c + (before.first + t) * ldc, x + (before.first + t) * ldx, from == 0, side); \
        }

#define AMX_GROUP(turn, last)                                                                                                \
    {                                                                                                                        \
        const ox_group now = amx_group(g + turn, m, few);                                                                    \
        const uint8_t *xg = x + now.first * ldx;                                                                             \
        const uint8_t *xnext = g + turn + 1 < groups ? x + amx_group(g + turn + 1, m, few).first * ldx : x + some * ACT32_BYTES; \
        if (!few)                                                                                                            \
            amx_ahead(&next, g + turn);                                                                                      \
        AMX_PART(turn, last, 0, 0, 1, if (g + turn && n == 4) { AMX_STORE32(last, 3, 2, 3) })                                \
        AMX_PART(turn, last, 1, 2, 3, AMX_STORE32(turn, 0, 0, 1))                                                            \
        AMX_PART(turn, last, 2, 0, 1, if (n > 1) { AMX_STORE32(turn, 1, 2, 3) })                                             \
        AMX_PART(turn, last, 3, 2, 3, if (n > 2) { AMX_STORE32(turn, 2, 0, 1) })                                             \
        before = now;                                                                                                        \
    }

/* What is left of the last group, whose turn it was. */
#define AMX_REST(turn)                                                                                                       \
    {                                                                                                                        \
        if (n == 4) {                                                                                                        \
            AMX_STORE32(turn, 3, 2, 3)                                                                                       \
        }                                                                                                                    \
        for (int t = before.skip; t < rows; t++)                                                                             \
            amx_finish32(&a, d, least, turn, t, n, c + (before.first + t) * ldc, x + (before.first + t) * ldx, from == 0, side); \
    }

OX_INLINE void amx_32(float *c, int64_t ldc, const uint8_t *panel, int64_t stride, int64_t later, const uint8_t *x, int64_t ldx, int64_t cols, int m,
                      int store, int off, int side, const uint8_t *lut, int block, int few)
{
    const int units = block / 32, halves = side == SIDE_UE4M3 ? 2 : 1, groups = amx_groups(m), rows = few && m < AMX_ROWS ? m : AMX_ROWS;
    const int64_t blocks = cols / 32;
    ox_place at = { panel, panel };
    ox_amx_ahead next = { NULL, stride, AMX_PARTS / halves * OX_STEP32(store, side, block), few ? 4 * (groups + 1) : groups };
    ox_amx32 a;
    amx_begin(32, rows);
    for (int64_t from = 0, some; from < blocks; from += some, x += some * ACT32_BYTES) {
        some = blocks - from < AMX_PARTS / halves ? blocks - from : AMX_PARTS / halves;
        next.p = amx_next(at.p, AMX_AHEAD, panel, stride, later);
        const ox_place second = { at.s + stride, at.p + stride };
        at = amx_spread32(&a, 0, (int)some * halves, at, from, store, off, side, lut, units, &next, few);
        amx_spread32(&a, 1, (int)some * halves, second, from, store, off, side, lut, units, &next, few);
        if (!few)
            next.p = amx_next(at.p, 0, panel, stride, later);
        ox_group before = { 0, 0 };
#define AMX_ALL(count)                                                                                                       \
        {                                                                                                                    \
            enum { n = (count) };                                                                                            \
            ox_f32x16 d[2][AMX_PARTS], least[2][AMX_PARTS];                                                                  \
            OX_UNROLL for (int i = 0; i < 2 * n; i++) {                                                                      \
                AMX_HOLD(d[i / n][i % n], a.d[i / n][i % n]);                                                                \
                if (side == SIDE_F16_MIN)                                                                                    \
                    AMX_HOLD(least[i / n][i % n], a.least[i / n][i % n]);                                                    \
            }                                                                                                                \
            for (int g = 0; g < groups; g += 2) {                                                                            \
                AMX_GROUP(0, 1)                                                                                              \
                if (g + 1 < groups)                                                                                          \
                    AMX_GROUP(1, 0)                                                                                          \
            }                                                                                                                \
            if (groups % 2)                                                                                                  \
                AMX_REST(0)                                                                                                  \
            else                                                                                                             \
                AMX_REST(1)                                                                                                  \
        }
        switch (some * halves) {
        case 4: AMX_ALL(4) break;
        case 3: AMX_ALL(3) break;
        case 2: AMX_ALL(2) break;
        default: AMX_ALL(1)
        }
#undef AMX_ALL
    }
    _tile_release();
}

/* ---- 256s */

/* How a code times its scale lies in bytes: alone; in two bytes of which the second stands 2^3 higher (the code times the scale's low and high three
 * bits); or as the two bytes of a 16-bit number. */
enum { DIGITS_ONE, DIGITS_THREE_BITS, DIGITS_BYTES };

#define AMX_DIGITS(bits, head) ((head) == HEAD_NONE || ((head) == HEAD_16X4_MIN && (bits) <= 4) ? DIGITS_ONE : (head) == HEAD_8X6_MIN ? DIGITS_THREE_BITS : DIGITS_BYTES)

typedef struct {                                                /* what the sums of a superblock of two panels are finished with */
    ox_i32x16 minima[2][8];
    ox_f32x16 d[2], least[2];
} ox_amx_scales;

typedef struct {
    OX_ALIGN(64) uint8_t code[2][2][4][AMX_ROWS * 64];          /* panel, digit, 64 columns */
    OX_ALIGN(64) int32_t sum[2][4][AMX_ROWS][16];               /* of two groups in turn: panel 0's digits, panel 1's */
    ox_amx_scales scales;
} ox_amx256;

/* One of a lane's two 16-bit scales, in both halves. */
OX_INLINE ox_i32x16 amx_both(ox_i32x16 pairs, int high)
{
    return high ? _mm512_or_si512(_mm512_srli_epi32(pairs, 16), _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)))
                : _mm512_or_si512(_mm512_slli_epi32(pairs, 16), _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff)));
}

/* A superblock of one panel. */
OX_INLINE void amx_spread(ox_amx256 *a, int q, const uint8_t *s, const uint8_t *p, int store, int off, int head, int side, float unit,
                          const uint8_t *lut, int digits, const ox_amx_ahead *next, int few)
{
    const int sub = OX_HEAD_SUB(head);
    const ox_u8x64 table = u8_table(lut ? lut : p), less8 = _mm512_set1_epi8((char)off);
    const ox_u8x64 lower = _mm512_set4_epi32(0x0e0e0c0c, 0x0a0a0808, 0x06060404, 0x02020000), upper = _mm512_set4_epi32(0x0f0f0d0d, 0x0b0b0909, 0x07070505, 0x03030101);
    ox_i32x16 sp[8];
    load_head(sp, a->scales.minima[q], p, head);
    p += OX_HEAD_BYTES(head);
    for (int u = 0; u < 8; u++, p += OX_UNIT_BYTES(store)) {
        uint8_t *to = a->code[q][0][0] + 512 * u, *high = a->code[q][1][0] + 512 * u;
        if (few && u % 4 == 0)
            amx_ahead(next, 2 * q + u / 4);
        ox_i32x16 scale[2];
        scale[0] = scale[1] = i32_zero();
        if (sub == 32)
            scale[0] = scale[1] = amx_both(sp[u / 2], u & 1);
        else if (sub == 16)
            scale[0] = amx_both(sp[u], 0), scale[1] = amx_both(sp[u], 1);
        ox_i32x16 first[2], second[2], less16[2];              /* a scale for even bytes, for odd ones; times the offset */
        if (digits == DIGITS_BYTES)
            OX_UNROLL for (int h = 0; h < 2; h++) {
                second[h] = _mm512_slli_epi16(scale[h], 8);
                first[h] = _mm512_and_si512(scale[h], _mm512_set1_epi16(255));
                less16[h] = _mm512_mullo_epi16(scale[h], _mm512_set1_epi16((short)off));
            }
        OX_UNROLL for (int i = 0; i < 4; i++) {
            ox_u8x64 w[2];
            load_two(w, p, i, store, lut, table);
            OX_UNROLL for (int g = 0; g < 2; g++) {
                const ox_i32x16 k = scale[i / 2];
                const int at = 128 * i + 64 * g;
                if (head == HEAD_NONE) {
                    u8_store(to + at, _mm512_sub_epi8(w[g], less8));
                } else if (digits == DIGITS_ONE) {              /* neither byte reaches into the other */
                    u8_store(to + at, _mm512_mullo_epi16(w[g], k));
                } else if (digits == DIGITS_THREE_BITS) {
                    u8_store(to + at, _mm512_mullo_epi16(w[g], _mm512_and_si512(k, _mm512_set1_epi16(7))));
                    u8_store(high + at, _mm512_mullo_epi16(w[g], _mm512_srli_epi16(k, 3)));
                } else {
                    const ox_i32x16 even = _mm512_sub_epi16(_mm512_maddubs_epi16(w[g], first[i / 2]), less16[i / 2]);
                    const ox_i32x16 odd = _mm512_sub_epi16(_mm512_maddubs_epi16(w[g], second[i / 2]), less16[i / 2]);
                    u8_store(to + at, _mm512_mask_shuffle_epi8(even, 0xaaaaaaaaaaaaaaaa, odd, lower));
                    u8_store(high + at, _mm512_mask_shuffle_epi8(odd, 0x5555555555555555, even, upper));
                }
            }
        }
    }
    a->scales.d[q] = side_d(s, side);
    if (unit != 1.0f)
        a->scales.d[q] = f32_mul(a->scales.d[q], f32_set1(unit));
    if (OX_HEAD_MIN(head))
        a->scales.least[q] = side_d(s + 32, side);
}

OX_INLINE void amx_finish256(const ox_amx256 *a, const ox_amx_scales *by, int turn, int t, float *c, const uint8_t *x, int first, int head, int digits)
{
    const int sub = OX_HEAD_SUB(head);
    const uint8_t *sums = x + (sub == 32 ? ACT256_SUM32 : ACT256_SUM16);
    ox_f32x16 dx = f32_set1(act_f32(x + ACT256_D)), acc[2];
    OX_UNROLL for (int q = 0; q < 2; q++) {
        ox_i32x16 sum = i32_load(a->sum[turn][2 * q][t]);
        if (digits != DIGITS_ONE)
            sum = i32_add(sum, i32_shl(i32_load(a->sum[turn][2 * q + 1][t]), digits == DIGITS_BYTES ? 8 : 3));
        acc[q] = f32_fma(i32_to_f32(sum), f32_mul(by->d[q], dx), first ? f32_zero() : f32_load(c + 16 * q));
    }
    if (OX_HEAD_MIN(head)) {
        ox_i32x16 z[2] = { i32_zero(), i32_zero() };
        OX_UNROLL for (int k = 0; k < 128 / sub; k++) {
            ox_i32x16 v = i32_set1(act_i32(sums + 4 * k));
            OX_UNROLL for (int q = 0; q < 2; q++)
                z[q] = i32_dot_pairs(z[q], by->minima[q][k], v);
        }
        OX_UNROLL for (int q = 0; q < 2; q++)
            acc[q] = f32_fnma(i32_to_f32(z[q]), f32_mul(by->least[q], dx), acc[q]);
    }
    OX_UNROLL for (int q = 0; q < 2; q++)
        f32_store(c + 16 * q, acc[q]);
}

OX_INLINE void amx_256(float *c, int64_t ldc, const uint8_t *panel, int64_t stride, int64_t later, const uint8_t *x, int64_t ldx, int64_t cols, int m,
                       int store, int off, int head, int side, float unit, const uint8_t *lut, int digits, int few)
{
    const int64_t step = OX_HEAD_BYTES(head) + 8 * OX_UNIT_BYTES(store);
    const int groups = amx_groups(m), rows = few && m < AMX_ROWS ? m : AMX_ROWS;
    const uint8_t *s = panel, *p = panel;
    ox_amx_ahead next = { NULL, stride, step, few ? 4 * (groups + 1) : groups };
    ox_amx256 a;
    amx_begin(64, rows);
    for (int64_t b = 0; b < cols / 256; b++, x += ACT256_BYTES, s += OX_SIDE_BYTES(side), p += step) {
        if (b % OX_SIDE_SPAN(side) == 0)
            s = p, p += 64;
        next.p = amx_next(p, few ? AMX_AHEAD : step, panel, stride, later);
        for (int q = 0; q < 2; q++)
            amx_spread(&a, q, s + q * stride, p + q * stride, store, off, head, side, unit, lut, digits, &next, few);
        ox_amx_scales by;
        OX_UNROLL for (int q = 0; q < 2; q++) {
            AMX_HOLD(by.d[q], a.scales.d[q]);
            if (!OX_HEAD_MIN(head))
                continue;
            AMX_HOLD(by.least[q], a.scales.least[q]);
            for (int k = 0; k < 128 / OX_HEAD_SUB(head); k++)
                AMX_HOLD(by.minima[q][k], a.scales.minima[q][k]);
        }
        ox_group before = { 0, 0 };
        for (int g = 0; g < groups; g++) {
            const ox_group at = amx_group(g, m, few);
            const uint8_t *xg = x + at.first * ldx;
            if (!few)
                amx_ahead(&next, g);
            _tile_zero(0);
            _tile_zero(2);
            if (digits != DIGITS_ONE) {
                _tile_zero(1);
                _tile_zero(3);
            }
            for (int k = 0; k < 4; k++) {
                if (few)
                    amx_ahead(&next, 4 * (g + 1) + k);
                _tile_loadd(4, xg + 64 * k, ldx);
                _tile_loadd(5, a.code[0][0][k], 64);
                _tile_loadd(6, a.code[1][0][k], 64);
                if (head == HEAD_NONE) {
                    _tile_dpbssd(0, 4, 5);
                    _tile_dpbssd(2, 4, 6);
                } else {
                    _tile_dpbsud(0, 4, 5);
                    _tile_dpbsud(2, 4, 6);
                }
                if (digits != DIGITS_ONE) {
                    _tile_loadd(7, a.code[0][1][k], 64);
                    _tile_loadd(5, a.code[1][1][k], 64);
                    if (digits == DIGITS_BYTES) {
                        _tile_dpbssd(1, 4, 7);
                        _tile_dpbssd(3, 4, 5);
                    } else {
                        _tile_dpbsud(1, 4, 7);
                        _tile_dpbsud(3, 4, 5);
                    }
                }
                if (g)
                    OX_UNROLL for (int t = 4 * k; t < 4 * k + 4; t++)
                        amx_finish256(&a, &by, (g - 1) & 1, t, c + (before.first + t) * ldc, x + (before.first + t) * ldx, b == 0, head, digits);
            }
            _tile_stored(0, a.sum[g & 1][0], 64);
            _tile_stored(2, a.sum[g & 1][2], 64);
            if (digits != DIGITS_ONE) {
                _tile_stored(1, a.sum[g & 1][1], 64);
                _tile_stored(3, a.sum[g & 1][3], 64);
            }
            before = at;
        }
        for (int t = before.skip; t < rows; t++)
            amx_finish256(&a, &by, (groups - 1) & 1, t, c + (before.first + t) * ldc, x + (before.first + t) * ldx, b == 0, head, digits);
    }
    _tile_release();
}
#endif
