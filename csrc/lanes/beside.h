/* A few rows against panels side by side, block by block: four or two with one row, two with more. A worker reads as many streams, wherever the
 * panels lie, and x comes from the first cache for all. The arithmetic per output is that of tiles.h, bit for bit.
 *
 * The processor's own prefetch follows each stream, and asking beside it takes its places, but for codes of 8 bits with one row, which are used
 * up too fast for it: their lines are asked for OX_NEAR bytes before.
 *
 * Zen 4, one thread, one row of 2048 columns from memory, GB/s in two streams and in four, beside plain reads of 33: Q4_0 31.0, 33.5, Q8_0 31.5,
 * 36.6, Q4_K 31.4, 35.4, Q6_K 31.5, 37.2, IQ4_XS 33.8, 37.6. Two threads, three rows, one panel that asks ahead and two panels: Q8_0 34.4, 37.4,
 * Q6_K 33.4, 35.7, Q4_0 36.3, 38.1, IQ4_XS 35.5, 37.9 beside plain reads of 37; four rows of Q8_0 123, 141 GMAC/s, in better minutes 164, 197. */
#ifndef OX_LANES_BESIDE_H
#define OX_LANES_BESIDE_H
#include "lanes/tiles.h"

/* Up to so many rows panels are read side by side; with more, computing is the limit, and a tile asks ahead by itself. */
#ifndef OX_BESIDE_ROWS
#define OX_BESIDE_ROWS(store) 1
#endif

enum { OX_NEAR = 512 };

OX_INLINE void beside_32(float *c, const uint8_t *const *panels, const uint8_t *x, int64_t ldx, int64_t cols, int n, int m,
                         int store, int bits, int off, int side, const uint8_t *lut, int block)
{
    ox_u8x64 table = u8_table(lut ? lut : panels[0]);
    ox_place at[4];
    ox_f32x16 acc[4][4];
    OX_UNROLL for (int k = 0; k < n; k++) {
        at[k] = (ox_place){ panels[k], panels[k] };
        OX_UNROLL for (int t = 0; t < m; t++)
            acc[k][t] = f32_zero();
    }
    for (int64_t i = 0; i < cols / 32; i++, x += ACT32_BYTES)
        OX_UNROLL for (int k = 0; k < n; k++) {
            if (store == 8 && m == 1)
                OX_UNROLL for (int j = 0; j < OX_STEP32(store, side, block); j += 64)
                    OX_PREFETCH_L2(at[k].p + OX_NEAR + j);
            step_32(acc[k], at + k, i, x, ldx, m, store, bits, off, side, lut, table, block);
        }
    OX_UNROLL for (int t = 0; t < m; t++)
        OX_UNROLL for (int k = 0; k < n; k++)
            f32_store(c + 16 * (n * t + k), acc[k][t]);
}

OX_INLINE void beside_256(float *c, const uint8_t *const *panels, const uint8_t *x, int64_t ldx, int64_t cols, int n, int m,
                          int store, int bits, int off, int head, int side, float unit, const uint8_t *lut)
{
    ox_u8x64 table = u8_table(lut ? lut : panels[0]);
    ox_ahead none = { NULL, NULL, NULL };
    ox_place at[4];
    ox_f32x16 acc[4][4];
    OX_UNROLL for (int k = 0; k < n; k++) {
        at[k] = (ox_place){ panels[k], panels[k] };
        OX_UNROLL for (int t = 0; t < m; t++)
            acc[k][t] = f32_zero();
    }
    for (int64_t i = 0; i < cols / 256; i++, x += ACT256_BYTES)
        OX_UNROLL for (int k = 0; k < n; k++)
            step_256(acc[k], at + k, i, &none, x, ldx, m, store, bits, off, head, side, unit, lut, table);
    OX_UNROLL for (int t = 0; t < m; t++)
        OX_UNROLL for (int k = 0; k < n; k++)
            f32_store(c + 16 * (n * t + k), acc[k][t]);
}

OX_INLINE void beside_float(float *c, const uint8_t *const *panels, const uint8_t *x, int64_t cols, int n, int form, int bytes)
{
    ox_f32x16 even[4], odd[4];
    OX_UNROLL for (int k = 0; k < n; k++)
        even[k] = odd[k] = f32_zero();
    for (int64_t i = 0; i < cols; i++) {
        ox_f32x16 xi = f32_set1(act_f32(x + 4 * i));
        OX_UNROLL for (int k = 0; k < n; k++)
            even[k] = f32_fma(load_weights(panels[k] + i * 16 * bytes, form), xi, even[k]);
        if (++i == cols)
            break;
        xi = f32_set1(act_f32(x + 4 * i));
        OX_UNROLL for (int k = 0; k < n; k++)
            odd[k] = f32_fma(load_weights(panels[k] + i * 16 * bytes, form), xi, odd[k]);
    }
    OX_UNROLL for (int k = 0; k < n; k++)
        f32_store(c + 16 * k, f32_add(even[k], odd[k]));
}

/* `call` is compiled for each row count that `store` allows, as M rows of N panels. */
#define OX_BESIDE_TILES(store, call)                                                \
    if (n == 4) { enum { M = 1, N = 4 }; call; }                                    \
    if (n == 2 && m == 1) { enum { M = 1, N = 2 }; call; }                          \
    if (OX_BESIDE_ROWS(store) >= 2 && m == 2) { enum { M = 2, N = 2 }; call; }      \
    if (OX_BESIDE_ROWS(store) >= 3 && m == 3) { enum { M = 3, N = 2 }; call; }      \
    if (OX_BESIDE_ROWS(store) >= 4 && m == 4) { enum { M = 4, N = 2 }; call; }

#define OX_BESIDE_ARGS float *c, const uint8_t *const *panels, int n, const uint8_t *x, int64_t ldx, int64_t cols, int m

#define OX_FLOAT(name, bytes) \
    static void beside_##name(OX_BESIDE_ARGS)                                                                          \
    {                                                                                                                   \
        (void)ldx, (void)m;                                                                                             \
        if (n == 4)                                                                                                     \
            beside_float(c, panels, x, cols, 4, FORM_##name, bytes);                                                    \
        else                                                                                                            \
            beside_float(c, panels, x, cols, 2, FORM_##name, bytes);                                                    \
    }
#define OX_FORM32(name, store, bits, off, side) \
    static void beside_##name(OX_BESIDE_ARGS) \
    { OX_BESIDE_TILES(store, beside_32(c, panels, x, ldx, cols, N, M, store, bits, off, side, lut_##name, BLOCK_##name)) }
#define OX_FORM256(name, store, bits, off, head, side, unit) \
    static void beside_##name(OX_BESIDE_ARGS) \
    { OX_BESIDE_TILES(store, beside_256(c, panels, x, ldx, cols, N, M, store, bits, off, head, side, unit, lut_##name)) }
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_FORM32
#undef OX_FORM256

#endif
