/* Two panels against a few rows, block by block: a worker reads two streams, wherever the panels lie, and x comes from the first cache for
 * both. The arithmetic per output is that of tiles.h, bit for bit.
 *
 * Zen 4, one thread, one row, weights from memory, GB/s at 2048 / 8192 columns beside plain reads of 29 to 32, one panel and then two: Q4_0
 * 27.3 / 25.2 and 29.2 / 29.0, Q8_0 27.1 / 24.0 and 27.3 / 24.2, Q4_K 27.0 / 24.7 and 30.6 / 29.6, Q6_K 27.4 / 25.1 and 32.9 / 31.3, IQ4_XS
 * 26.6 / 24.5 and 33.2 / 33.9. Two threads, three rows, one panel that asks ahead and two panels: Q8_0 34.4, 37.4, Q6_K 33.4, 35.7, Q4_0 36.3,
 * 38.1, IQ4_XS 35.5, 37.9 beside plain reads of 37; four rows of Q8_0 123, 141 GMAC/s, in better minutes 164, 197. */
#ifndef OX_LANES_BESIDE_H
#define OX_LANES_BESIDE_H
#include "lanes/tiles.h"

/* Up to so many rows panels are read side by side; with more, computing is the limit, and a tile asks ahead by itself. */
#ifndef OX_BESIDE_ROWS
#define OX_BESIDE_ROWS(store) 1
#endif

/* What a stream asks for beyond what the processor's own prefetch brings: the lines `near` bytes further on, of any panel that follows; none if that
 * is 0. How far pays depends on the processor and on the form (`prefetch_distance` of kernels.pyx, docs/kernel-figures.md). */
OX_INLINE ox_ahead near_of(const uint8_t *panel, int64_t near)
{
    return (ox_ahead){ panel + near, (const uint8_t *)UINTPTR_MAX, near ? panel : NULL };
}

OX_INLINE void beside_store(float *c, const ox_f32x16 *a, const ox_f32x16 *b, int m)
{
    OX_UNROLL for (int t = 0; t < m; t++) {
        f32_store(c + 32 * t, a[t]);
        f32_store(c + 32 * t + 16, b[t]);
    }
}

OX_INLINE void beside_32(float *c, const uint8_t *first, const uint8_t *second, const uint8_t *x, int64_t ldx, int64_t cols, int64_t near,
                         int m, int store, int bits, int off, int side, const uint8_t *lut, int block)
{
    ox_u8x64 table = u8_table(lut ? lut : first);
    ox_place a = { first, first }, b = { second, second };
    ox_f32x16 acc[2][4];
    OX_UNROLL for (int t = 0; t < m; t++)
        acc[0][t] = acc[1][t] = f32_zero();
    ox_ahead next[2] = { near_of(first, near), near_of(second, near) };
    for (int64_t i = 0; i < cols / 32; i++, x += ACT32_BYTES) {
        ahead(&next[0], OX_STEP32(store, side, block));
        ahead(&next[1], OX_STEP32(store, side, block));
        step_32(acc[0], &a, i, x, ldx, m, store, bits, off, side, lut, table, block);
        step_32(acc[1], &b, i, x, ldx, m, store, bits, off, side, lut, table, block);
    }
    beside_store(c, acc[0], acc[1], m);
}

OX_INLINE void beside_256(float *c, const uint8_t *first, const uint8_t *second, const uint8_t *x, int64_t ldx, int64_t cols, int64_t near,
                          int m, int store, int bits, int off, int head, int side, float unit, const uint8_t *lut)
{
    ox_u8x64 table = u8_table(lut ? lut : first);
    ox_place a = { first, first }, b = { second, second };
    ox_ahead next[2] = { near_of(first, near), near_of(second, near) };
    ox_f32x16 acc[2][4];
    OX_UNROLL for (int t = 0; t < m; t++)
        acc[0][t] = acc[1][t] = f32_zero();
    for (int64_t i = 0; i < cols / 256; i++, x += ACT256_BYTES) {
        step_256(acc[0], &a, i, &next[0], x, ldx, m, store, bits, off, head, side, unit, lut, table);
        step_256(acc[1], &b, i, &next[1], x, ldx, m, store, bits, off, head, side, unit, lut, table);
    }
    beside_store(c, acc[0], acc[1], m);
}

OX_INLINE void beside_float(float *c, const uint8_t *first, const uint8_t *second, const uint8_t *x, int64_t cols, int64_t near, int form, int bytes)
{
    ox_f32x16 even[2] = { f32_zero(), f32_zero() }, odd[2] = { f32_zero(), f32_zero() };
    ox_ahead next[2] = { near_of(first, near), near_of(second, near) };
    for (int64_t k = 0; k < cols; k += 2, first += 32 * bytes, second += 32 * bytes) {
        ahead(&next[0], 32 * bytes);
        ahead(&next[1], 32 * bytes);
        ox_f32x16 xk = f32_set1(act_f32(x + 4 * k));
        even[0] = f32_fma(load_weights(first, form), xk, even[0]);
        even[1] = f32_fma(load_weights(second, form), xk, even[1]);
        if (k + 1 == cols)
            break;
        xk = f32_set1(act_f32(x + 4 * k + 4));
        odd[0] = f32_fma(load_weights(first + 16 * bytes, form), xk, odd[0]);
        odd[1] = f32_fma(load_weights(second + 16 * bytes, form), xk, odd[1]);
    }
    f32_store(c, f32_add(even[0], odd[0]));
    f32_store(c + 16, f32_add(even[1], odd[1]));
}

/* `call` is compiled for each row count that `store` allows, as M. */
#define OX_BESIDE_TILES(store, call)                                        \
    if (m == 1) { enum { M = 1 }; call; }                                   \
    if (OX_BESIDE_ROWS(store) >= 2 && m == 2) { enum { M = 2 }; call; }     \
    if (OX_BESIDE_ROWS(store) >= 3 && m == 3) { enum { M = 3 }; call; }     \
    if (OX_BESIDE_ROWS(store) >= 4 && m == 4) { enum { M = 4 }; call; }

#define OX_BESIDE_ARGS float *c, const uint8_t *first, const uint8_t *second, const uint8_t *x, int64_t ldx, int64_t cols, int64_t near, int m

#define OX_FLOAT(name, bytes) \
    static void beside_##name(OX_BESIDE_ARGS) { (void)ldx, (void)m; beside_float(c, first, second, x, cols, near, FORM_##name, bytes); }
#define OX_PAIRS(name)
#define OX_FORM32(name, store, bits, off, side) \
    static void beside_##name(OX_BESIDE_ARGS) \
    { OX_BESIDE_TILES(store, beside_32(c, first, second, x, ldx, cols, near, M, store, bits, off, side, lut_##name, BLOCK_##name)) }
#define OX_FORM256(name, store, bits, off, head, side, unit) \
    static void beside_##name(OX_BESIDE_ARGS) \
    { OX_BESIDE_TILES(store, beside_256(c, first, second, x, ldx, cols, near, M, store, bits, off, head, side, unit, lut_##name)) }
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_PAIRS
#undef OX_FORM32
#undef OX_FORM256

#endif
