/* Two panels against one row, block by block: a worker reads two streams, wherever the panels lie, and x comes from the first cache for both.
 * The arithmetic per output is that of tiles.h, bit for bit.
 *
 * Zen 4, one thread, weights from memory, GB/s at 2048 / 8192 columns beside plain reads of 29 to 32, one panel and then two: Q4_0 27.3 / 25.2
 * and 29.2 / 29.0, Q8_0 27.1 / 24.0 and 27.3 / 24.2, Q4_K 27.0 / 24.7 and 30.6 / 29.6, Q6_K 27.4 / 25.1 and 32.9 / 31.3, IQ4_XS 26.6 / 24.5 and
 * 33.2 / 33.9. */
#ifndef OX_LANES_TWO_H
#define OX_LANES_TWO_H
#include "lanes/tiles.h"

OX_INLINE void two_32(float *c, const uint8_t *first, const uint8_t *second, const uint8_t *x, int64_t cols,
                      int store, int bits, int off, int side, const uint8_t *lut, int block)
{
    ox_u8x64 table = u8_table(lut ? lut : first);
    ox_place a = { first, first }, b = { second, second };
    ox_f32x16 acc[2] = { f32_zero(), f32_zero() };
    for (int64_t i = 0; i < cols / 32; i++, x += ACT32_BYTES) {
        step_32(acc, &a, i, x, 0, 1, store, bits, off, side, lut, table, block);
        step_32(acc + 1, &b, i, x, 0, 1, store, bits, off, side, lut, table, block);
    }
    f32_store(c, acc[0]);
    f32_store(c + 16, acc[1]);
}

OX_INLINE void two_256(float *c, const uint8_t *first, const uint8_t *second, const uint8_t *x, int64_t cols,
                       int store, int bits, int off, int head, int side, float unit, const uint8_t *lut)
{
    ox_u8x64 table = u8_table(lut ? lut : first);
    ox_place a = { first, first }, b = { second, second };
    ox_ahead none = { NULL, NULL, NULL };
    ox_f32x16 acc[2] = { f32_zero(), f32_zero() };
    for (int64_t i = 0; i < cols / 256; i++, x += ACT256_BYTES) {
        step_256(acc, &a, i, &none, x, 0, 1, store, bits, off, head, side, unit, lut, table);
        step_256(acc + 1, &b, i, &none, x, 0, 1, store, bits, off, head, side, unit, lut, table);
    }
    f32_store(c, acc[0]);
    f32_store(c + 16, acc[1]);
}

OX_INLINE void two_float(float *c, const uint8_t *first, const uint8_t *second, const uint8_t *x, int64_t cols, int form, int bytes)
{
    ox_f32x16 even[2] = { f32_zero(), f32_zero() }, odd[2] = { f32_zero(), f32_zero() };
    for (int64_t k = 0; k < cols; k += 2, first += 32 * bytes, second += 32 * bytes) {
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

#define OX_TWO_ARGS float *c, const uint8_t *first, const uint8_t *second, const uint8_t *x, int64_t cols

#define OX_FLOAT(name, bytes) static void two_##name(OX_TWO_ARGS) { two_float(c, first, second, x, cols, FORM_##name, bytes); }
#define OX_FORM32(name, store, bits, off, side) \
    static void two_##name(OX_TWO_ARGS) { two_32(c, first, second, x, cols, store, bits, off, side, lut_##name, BLOCK_##name); }
#define OX_FORM256(name, store, bits, off, head, side, unit) \
    static void two_##name(OX_TWO_ARGS) { two_256(c, first, second, x, cols, store, bits, off, head, side, unit, lut_##name); }
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_FORM32
#undef OX_FORM256

#endif
