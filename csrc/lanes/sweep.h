/* Many rows on AArch64 with dot products or, twice as fast, matrix products of bytes (OX_NEON_I8MM). The arithmetic per output is that of tiles.h, bit for
 * bit; only the order of integer sums, which are exact, is another.
 *
 * 256 columns of two panels at a time are spread once for all rows of x: codes less their offset, as the products want them. They stay in the first cache
 * while all rows of x run over them, four at a time. A tile is four rows of x by eight of weights, eight vectors of sums; scales lie as the sums do.
 *   sdot    four columns: a vector of weights is four rows, x one row. Sums of one row of x by four rows of weights
 *   smmla   eight columns: two rows of weights by two of x, which are put side by side for the tiles of both panels. Sums of two rows by two
 *
 *   32s    a block's sums start from the bits of a number whose last bit is one, so that a subtraction makes them floats (they are below 2^20)
 *   256s   a sub-block's sums are multiplied by its integer scale; where the product of code and scale is a byte, codes are multiplied when spread.
 *          Minima are bytes, multiplied by two digits of the sums of x */
#ifndef OX_LANES_SWEEP_H
#define OX_LANES_SWEEP_H
#include "lanes/tiles.h"

enum { SWEEP_COLS = 256, SWEEP_ROWS = 4 };
#ifdef OX_NEON_I8MM
enum { SWEEP_X = 2, SWEEP_W = 4 };              /* vectors that a tile takes of x and of weights: pairs of rows */
#else
enum { SWEEP_X = 4, SWEEP_W = 2 };              /* rows of x, fours of rows of weights */
#endif

/* 256 columns of a panel. Codes and minima: 8 columns in 8 vectors. All else: as sums. */
typedef struct {
    OX_ALIGN(64) int8_t code[SWEEP_COLS / 8][8][16];
    int8_t minima[2][8][16];
    int32_t scale[16][2 * SWEEP_W][4];
    float d[16][2 * SWEEP_W][4], least[8][2 * SWEEP_W][4];      /* by block or half of a block (32s) */
} ox_sweep_panel;

/* Four rows of x. A sum that minima are multiplied by is 64 times its first digit and the second one. */
typedef struct {
#ifdef OX_NEON_I8MM
    OX_ALIGN(64) int8_t code[SWEEP_COLS / 8][2][16];
    int8_t digit[2][2][2][16];
#else
    const int8_t *code[SWEEP_ROWS];             /* in the row itself, blocks of 32 `apart` */
    int8_t digit[2][2][4][8];
    int apart;
#endif
    float d[8][SWEEP_X][4], sum[8][SWEEP_X][4];
} ox_sweep_rows;

/* What is done with 256 columns. */
typedef struct {
    const uint8_t *x;
    int64_t ldx;
    float *c, *rest;                            /* the sums, and those of a last tile that is not whole */
    int64_t ldc;
    int m;
    const uint8_t *next;                        /* what is read next of two panels, `stride` apart (NULL: not known) */
    int64_t stride;
    int bytes, parts, first, last;
} ox_sweep;

OX_INLINE ox_u8x64 sweep_less(ox_u8x64 code, int off) { OX_U1(vsubq_u8(code.v[q], vdupq_n_u8((uint8_t)off))); }
OX_INLINE ox_u8x64 sweep_times(ox_u8x64 code, ox_scale by) { OX_U1(vmulq_u8(code.v[q], vreinterpretq_u8_s32(by.v[q]))); }
/* What codes stand for less the offset; codes without a table lose it themselves. */
OX_INLINE ox_u8x64 sweep_table(const uint8_t *lut, const uint8_t *panel, int off) { return lut ? sweep_less(u8_table(lut), off) : u8_table(panel); }

#ifdef OX_NEON_I8MM
/* Lanes of rows, two by two, each pair twice. */
OX_INLINE void sweep_scales(void *to, ox_i32x16 v)
{
    OX_QUADS {
        int64x2_t pairs = vreinterpretq_s64_s32(v.v[q]);
        vst1q_s64((int64_t *)to + 4 * q, vdupq_laneq_s64(pairs, 0));
        vst1q_s64((int64_t *)to + 4 * q + 2, vdupq_laneq_s64(pairs, 1));
    }
}

/* Eight columns of 16 rows, four in each half. */
OX_INLINE void sweep_put(int8_t (*to)[16], ox_u8x64 first, ox_u8x64 second)
{
    OX_QUADS {
        int32x4_t a = vreinterpretq_s32_u8(first.v[q]), b = vreinterpretq_s32_u8(second.v[q]);
        vst1q_s8(to[2 * q], vreinterpretq_s8_s32(vzip1q_s32(a, b)));
        vst1q_s8(to[2 * q + 1], vreinterpretq_s8_s32(vzip2q_s32(a, b)));
    }
}

OX_INLINE void sweep_codes(ox_sweep_rows *to, const uint8_t *const *x, int blocks, int apart)
{
    OX_UNROLL for (int p = 0; p < 2; p++)
        for (int k = 0; k < blocks; k++)
            OX_UNROLL for (int h = 0; h < 2; h++) {
                int64x2_t v = vreinterpretq_s64_u8(vld1q_u8(x[2 * p] + k * apart + 16 * h)), w = vreinterpretq_s64_u8(vld1q_u8(x[2 * p + 1] + k * apart + 16 * h));
                vst1q_s8(to->code[4 * k + 2 * h][p], vreinterpretq_s8_s64(vzip1q_s64(v, w)));
                vst1q_s8(to->code[4 * k + 2 * h + 1][p], vreinterpretq_s8_s64(vzip2q_s64(v, w)));
            }
}

OX_INLINE void sweep_digits(int8_t (*to)[16], const int8x8_t *rows)
{
    vst1q_s8(to[0], vcombine_s8(rows[0], rows[1]));
    vst1q_s8(to[1], vcombine_s8(rows[2], rows[3]));
}

OX_INLINE void sweep_floats(float (*to)[4], const uint8_t *const *x, int at)
{
    OX_UNROLL for (int p = 0; p < 2; p++)
        vst1q_f32(to[p], vcombine_f32(vdup_n_f32(act_f32(x[2 * p] + at)), vdup_n_f32(act_f32(x[2 * p + 1] + at))));
}

OX_INLINE void sweep_eight(int32x4_t (*sum)[SWEEP_W], const int8_t (*w)[16], const int8_t (*x)[16])
{
    int8x16_t v[2], k[4];
    OX_UNROLL for (int p = 0; p < 2; p++)
        v[p] = vld1q_s8(x[p]);
    OX_UNROLL for (int j = 0; j < 4; j++)
        k[j] = vld1q_s8(w[j]);
    OX_UNROLL for (int j = 0; j < 4; j++)
        OX_UNROLL for (int p = 0; p < 2; p++)
            sum[p][j] = vmmlaq_s32(sum[p][j], v[p], k[j]);
}

/* Columns 8 s to 8 (s + n) - 1; w is where the tile's rows begin in them. */
OX_INLINE void sweep_dots(int32x4_t (*sum)[SWEEP_W], const int8_t (*w)[16], const ox_sweep_rows *x, int s, int n)
{
    OX_UNROLL for (int i = 0; i < n; i++)
        sweep_eight(sum, w + 8 * i, x->code[s + i]);
}

/* The chains of a tile. Until the last columns c keeps them as they are, where the outputs of the same tile will lie. */
OX_INLINE void sweep_begin(float32x4_t (*acc)[SWEEP_W], const float *c, int64_t ldc, int first)
{
    OX_UNROLL for (int p = 0; p < 2; p++)
        OX_UNROLL for (int j = 0; j < 4; j++)
            acc[p][j] = first ? vdupq_n_f32(0.0f) : vld1q_f32(c + (2 * p + j / 2) * ldc + 4 * (j % 2));
}

OX_INLINE void sweep_end(float *c, int64_t ldc, float32x4_t (*acc)[SWEEP_W], int last)
{
    OX_UNROLL for (int p = 0; p < 2; p++)
        OX_UNROLL for (int j = 0; j < 4; j += 2) {
            float64x2_t a = vreinterpretq_f64_f32(acc[p][j]), b = vreinterpretq_f64_f32(acc[p][j + 1]);
            float *to = c + 2 * p * ldc;
            if (last) {
                vst1q_f32(to + 2 * j, vreinterpretq_f32_f64(vzip1q_f64(a, b)));
                vst1q_f32(to + ldc + 2 * j, vreinterpretq_f32_f64(vzip2q_f64(a, b)));
            } else {
                vst1q_f32(to + j / 2 * ldc, acc[p][j]);
                vst1q_f32(to + j / 2 * ldc + 4, acc[p][j + 1]);
            }
        }
}
#else
OX_INLINE void sweep_scales(void *to, ox_i32x16 v) { i32_store((int32_t *)to, v); }

OX_INLINE void sweep_put(int8_t (*to)[16], ox_u8x64 first, ox_u8x64 second)
{
    u8_store(to, first);
    u8_store(to + 4, second);
}

OX_INLINE void sweep_codes(ox_sweep_rows *to, const uint8_t *const *x, int blocks, int apart)
{
    (void)blocks;
    to->apart = apart;
    OX_UNROLL for (int t = 0; t < 4; t++)
        to->code[t] = (const int8_t *)x[t];
}

OX_INLINE void sweep_digits(int8_t (*to)[8], const int8x8_t *rows)
{
    OX_UNROLL for (int t = 0; t < 4; t++)
        vst1_s8(to[t], rows[t]);
}

OX_INLINE void sweep_floats(float (*to)[4], const uint8_t *const *x, int at)
{
    OX_UNROLL for (int t = 0; t < 4; t++)
        vst1q_f32(to[t], vdupq_n_f32(act_f32(x[t] + at)));
}

#define SWEEP_FOUR(w, dot, x, lane)                                     \
    OX_UNROLL for (int j = 0; j < 2; j++) {                             \
        int8x16_t k = vld1q_s8((w)[j]);                         \
        OX_UNROLL for (int t = 0; t < 4; t++)                           \
            sum[t][j] = dot(sum[t][j], k, (x)[t], lane);                \
    }

OX_INLINE void sweep_eight(int32x4_t (*sum)[SWEEP_W], const int8_t (*w)[16], const int8_t (*x)[8])
{
    int8x8_t v[4];
    OX_UNROLL for (int t = 0; t < 4; t++)
        v[t] = vld1_s8(x[t]);
    SWEEP_FOUR(w, vdotq_lane_s32, v, 0)
    SWEEP_FOUR(w + 4, vdotq_lane_s32, v, 1)
}

/* The same; n is even and divides s. */
OX_INLINE void sweep_dots(int32x4_t (*sum)[SWEEP_W], const int8_t (*w)[16], const ox_sweep_rows *x, int s, int n)
{
    const int64_t at = (int64_t)(s / 4) * x->apart + 8 * (s % 4);
    OX_UNROLL for (int i = 0; i < n; i += 2) {
        int8x16_t v[4];
        OX_UNROLL for (int t = 0; t < 4; t++)
            v[t] = vld1q_s8(x->code[t] + at + 8 * i);
        SWEEP_FOUR(w + 8 * i, vdotq_laneq_s32, v, 0)
        SWEEP_FOUR(w + 8 * i + 4, vdotq_laneq_s32, v, 1)
        SWEEP_FOUR(w + 8 * i + 8, vdotq_laneq_s32, v, 2)
        SWEEP_FOUR(w + 8 * i + 12, vdotq_laneq_s32, v, 3)
    }
}

/* The chains of a tile. */
OX_INLINE void sweep_begin(float32x4_t (*acc)[SWEEP_W], const float *c, int64_t ldc, int first)
{
    OX_UNROLL for (int t = 0; t < 4; t++)
        OX_UNROLL for (int j = 0; j < 2; j++)
            acc[t][j] = first ? vdupq_n_f32(0.0f) : vld1q_f32(c + t * ldc + 4 * j);
}

OX_INLINE void sweep_end(float *c, int64_t ldc, float32x4_t (*acc)[SWEEP_W], int last)
{
    (void)last;
    OX_UNROLL for (int t = 0; t < 4; t++)
        OX_UNROLL for (int j = 0; j < 2; j++)
            vst1q_f32(c + t * ldc + 4 * j, acc[t][j]);
}
#endif

/* 32 columns. `by` holds a factor of codes for each row, if there is one. */
OX_INLINE void sweep_spread(int8_t (*to)[8][16], const uint8_t *p, int store, int off, const uint8_t *lut, ox_u8x64 table, const ox_scale *by)
{
    OX_UNROLL for (int i = 0; i < 4; i++) {
        ox_u8x64 w[2];
        load_two(w, p, i, store, lut, table);
        if (off)
            w[0] = sweep_less(w[0], off), w[1] = sweep_less(w[1], off);
        if (by)
            w[0] = sweep_times(w[0], by[i / 2]), w[1] = sweep_times(w[1], by[i / 2]);
        sweep_put(to[i], w[0], w[1]);
    }
}

/* Eight minima of each row: a lane of `pairs` has two. */
OX_INLINE void sweep_minima(int8_t (*to)[16], const ox_i32x16 *pairs)
{
    static const uint8_t order[16] = { 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15 };
    const uint8x16_t natural = vld1q_u8(order);
    ox_u8x64 four[2];
    OX_UNROLL for (int g = 0; g < 2; g++) {
        ox_i32x16 v = i32_or(pairs[2 * g], i32_shl(pairs[2 * g + 1], 8));         /* those of a lane are 0, 2, 1, 3 */
        OX_QUADS four[g].v[q] = vqtbl1q_u8(vreinterpretq_u8_s32(v.v[q]), natural);
    }
    sweep_put(to, four[0], four[1]);
}

OX_INLINE void sweep_rows_32(ox_sweep_rows *to, const uint8_t *const *x, int blocks, int least)
{
    sweep_codes(to, x, blocks, ACT32_BYTES);
    for (int k = 0; k < blocks; k++) {
        sweep_floats(to->d[k], x, ACT32_BYTES * k + ACT32_D);
        if (least)
            sweep_floats(to->sum[k], x, ACT32_BYTES * k + ACT32_DSUM);
    }
}

OX_INLINE void sweep_rows_256(ox_sweep_rows *to, const uint8_t *const *x, int minima)
{
    sweep_codes(to, x, 8, 32);
    sweep_floats(to->d[0], x, ACT256_D);
    OX_UNROLL for (int k = 0; k < minima / 8; k++) {
        int8x8_t first[SWEEP_ROWS], second[SWEEP_ROWS];
        OX_UNROLL for (int t = 0; t < SWEEP_ROWS; t++) {
            int16x8_t v = vreinterpretq_s16_u8(vld1q_u8(x[t] + (minima == 8 ? ACT256_SUM32 : ACT256_SUM16) + 16 * k));
            first[t] = vshrn_n_s16(v, 6), second[t] = vmovn_s16(vandq_s16(v, vdupq_n_s16(63)));
        }
        sweep_digits(to->digit[0][k], first);
        sweep_digits(to->digit[1][k], second);
    }
}

#define SWEEP_EACH OX_UNROLL for (int p = 0; p < SWEEP_X; p++) OX_UNROLL for (int j = 0; j < SWEEP_W; j++)

/* `parts` blocks of 8 `n` columns: whole ones of 32, or halves. */
OX_INLINE void sweep_tile_32(float *c, int64_t ldc, const ox_sweep_panel *w, int h, const ox_sweep_rows *x, const ox_sweep *a, int n, int least)
{
    const int8_t (*code)[16] = w->code[0] + SWEEP_W * h;
    const float32x4_t one = vdupq_n_f32(0x1.8p23f);
    float32x4_t acc[SWEEP_X][SWEEP_W];
    sweep_begin(acc, c, ldc, a->first);
    for (int b = 0; b < a->parts; b++) {
        const int block = n == 4 ? b : b / 2;
        int32x4_t sum[SWEEP_X][SWEEP_W];
        SWEEP_EACH sum[p][j] = vreinterpretq_s32_f32(one);
        sweep_dots(sum, code + 8 * n * b, x, n * b, n);
        SWEEP_EACH {
            float32x4_t scale = vmulq_f32(vld1q_f32(w->d[b][SWEEP_W * h + j]), vld1q_f32(x->d[block][p]));
            acc[p][j] = vfmaq_f32(acc[p][j], vsubq_f32(vreinterpretq_f32_s32(sum[p][j]), one), scale);
        }
        if (least)
            SWEEP_EACH acc[p][j] = vfmaq_f32(acc[p][j], vld1q_f32(w->least[b][SWEEP_W * h + j]), vld1q_f32(x->sum[block][p]));
    }
    sweep_end(c, ldc, acc, a->last);
}

/* A superblock: `sub` columns under a scale (256: none), so many `minima`. */
OX_INLINE void sweep_tile_256(float *c, int64_t ldc, const ox_sweep_panel *w, int h, const ox_sweep_rows *x, const ox_sweep *a, int sub, int minima)
{
    const int8_t (*code)[16] = w->code[0] + SWEEP_W * h;
    const int n = sub == 16 ? 2 : 4;
    int32x4_t sum[SWEEP_X][SWEEP_W];
    float32x4_t acc[SWEEP_X][SWEEP_W];
    SWEEP_EACH sum[p][j] = vdupq_n_s32(0);
    for (int k = 0; k < SWEEP_COLS / 8 / n; k++) {
        int32x4_t dot[SWEEP_X][SWEEP_W];
        if (sub == 256) {
            sweep_dots(sum, code + 8 * n * k, x, n * k, n);
            continue;
        }
        SWEEP_EACH dot[p][j] = vdupq_n_s32(0);
        sweep_dots(dot, code + 8 * n * k, x, n * k, n);
        SWEEP_EACH sum[p][j] = vmlaq_s32(sum[p][j], dot[p][j], vld1q_s32(w->scale[k][SWEEP_W * h + j]));
    }
    sweep_begin(acc, c, ldc, a->first);
    SWEEP_EACH acc[p][j] = vfmaq_f32(acc[p][j], vcvtq_f32_s32(sum[p][j]), vmulq_f32(vld1q_f32(w->d[0][SWEEP_W * h + j]), vld1q_f32(x->d[0][p])));
    if (minima) {
        SWEEP_EACH sum[p][j] = vdupq_n_s32(0);
        OX_UNROLL for (int k = 0; k < minima / 8; k++)
            sweep_eight(sum, w->minima[k] + SWEEP_W * h, x->digit[0][k]);
        SWEEP_EACH sum[p][j] = vshlq_n_s32(sum[p][j], 6);
        OX_UNROLL for (int k = 0; k < minima / 8; k++)
            sweep_eight(sum, w->minima[k] + SWEEP_W * h, x->digit[1][k]);
        SWEEP_EACH acc[p][j] = vfmsq_f32(acc[p][j], vcvtq_f32_s32(sum[p][j]), vmulq_f32(vld1q_f32(w->least[0][SWEEP_W * h + j]), vld1q_f32(x->d[0][p])));
    }
    sweep_end(c, ldc, acc, a->last);
}

/* All rows over two spread panels. Formats whose codes are spread alike share it: `act` and what follows are literals. */
OX_INLINE void sweep_all(const ox_sweep_panel *w, const ox_sweep *a, int act, int sub, int minima)
{
    for (int i = 0; i < a->m; i += SWEEP_ROWS) {
        const int whole = i + SWEEP_ROWS <= a->m;
        const uint8_t *x[SWEEP_ROWS];
        float *c = whole ? a->c + i * a->ldc : a->rest;
        const int64_t ldc = whole ? a->ldc : 32;
        ox_sweep_rows rows;
        OX_UNROLL for (int t = 0; t < SWEEP_ROWS; t++)
            x[t] = a->x + (i + t < a->m ? i + t : a->m - 1) * a->ldx;
        span_ahead(a->next, a->stride, a->bytes, i, whole ? SWEEP_ROWS : a->m - i, a->m);
        if (act == ACT_Q8_32)
            sweep_rows_32(&rows, x, sub == 16 ? a->parts / 2 : a->parts, minima);
        else
            sweep_rows_256(&rows, x, minima);
        for (int k = 0; k < 4; k++) {
            float *to = c + 8 * k;
            if (act == ACT_Q8_32)
                sweep_tile_32(to, ldc, w + k / 2, k % 2, &rows, a, sub / 8, minima);
            else
                sweep_tile_256(to, ldc, w + k / 2, k % 2, &rows, a, sub, minima);
        }
    }
}

#define SWEEP(name, act, sub, minima) \
    static OX_NOINLINE void name(const ox_sweep_panel *w, const ox_sweep *a) { sweep_all(w, a, act, sub, minima); }
SWEEP(sweep_all_32, ACT_Q8_32, 32, 0)
SWEEP(sweep_all_32_min, ACT_Q8_32, 32, 1)
SWEEP(sweep_all_32_halves, ACT_Q8_32, 16, 0)
SWEEP(sweep_all_256, ACT_Q8_256, 256, 0)
SWEEP(sweep_all_256_min16, ACT_Q8_256, 256, 16)
SWEEP(sweep_all_256_sub16, ACT_Q8_256, 16, 0)
SWEEP(sweep_all_256_sub32, ACT_Q8_256, 32, 0)
SWEEP(sweep_all_256_sub32_min8, ACT_Q8_256, 32, 8)

/* The rows of the last tile, if it was not whole. */
OX_INLINE void sweep_rest(const ox_sweep *a)
{
    for (int t = 0; t < a->m % SWEEP_ROWS; t++) {
        float *to = a->c + (a->m - a->m % SWEEP_ROWS + t) * a->ldc;
        f32_store(to, f32_load(a->rest + 32 * t));
        f32_store(to + 16, f32_load(a->rest + 32 * t + 16));
    }
}

OX_INLINE void sweep_32(OX_WIDE_ARGS, int store, int off, int side, const uint8_t *lut, int block)
{
    ox_sweep_panel w[2];
    float rest[SWEEP_ROWS * 32];
    const int units = block / 32, halves = side == SIDE_UE4M3 ? 2 : 1;
    const ox_u8x64 table = sweep_table(lut, panel, off);
    const uint8_t *s = panel, *p = panel;
    ox_sweep a = { x, ldx, c, rest, ldc, m, NULL, stride, 8 * OX_STEP32(store, side, block), 0, 1, 0 };
    for (int64_t b = 0; b < cols / 32; b += 8, a.x += 8 * ACT32_BYTES, a.first = 0) {
        const int blocks = cols / 32 - b < 8 ? (int)(cols / 32 - b) : 8;
        for (int k = 0; k < blocks; k++, p += OX_UNIT_BYTES(store)) {
            if ((b + k) % (units * OX_SIDE_SPAN(side)) == 0)
                s = p, p += 64;
            for (int q = 0; q < 2; q++) {
                sweep_spread(w[q].code + 4 * k, p + q * stride, store, lut ? 0 : off, lut, table, NULL);
                for (int h = 0; h < halves; h++)
                    sweep_scales(w[q].d[halves * k + h], f32_as_i32(side_d(s + q * stride + (halves == 2 ? 32 * ((b + k) & 1) + 16 * h : 0), side)));
                if (side == SIDE_F16_MIN)
                    sweep_scales(w[q].least[k], f32_as_i32(side_d(s + q * stride + 32, side)));
            }
            if (units == 1 || (b + k) % units == units - 1)
                s += OX_SIDE_BYTES(side);
        }
        a.parts = halves * blocks;
        a.last = b + 8 >= cols / 32;
        a.next = !a.last ? p : later ? panel + later : NULL;
        (halves == 2 ? sweep_all_32_halves : side == SIDE_F16_MIN ? sweep_all_32_min : sweep_all_32)(w, &a);
    }
    sweep_rest(&a);
}

OX_INLINE void sweep_256(OX_WIDE_ARGS, int store, int off, int head, int side, float unit, const uint8_t *lut)
{
    ox_sweep_panel w[2];
    float rest[SWEEP_ROWS * 32];
    const int sub = OX_HEAD_SUB(head), minima = OX_HEAD_MIN(head) ? 256 / sub : 0;
    const int small = head == HEAD_16X4_MIN;                /* a code times its scale is a byte */
    const ox_u8x64 table = sweep_table(lut, panel, off);
    const uint8_t *s = panel, *p = panel;
    const int step = OX_HEAD_BYTES(head) + 8 * OX_UNIT_BYTES(store);
    ox_sweep a = { x, ldx, c, rest, ldc, m, NULL, stride, step, 0, 1, 0 };
    for (int64_t b = 0; b < cols / 256; b++, a.x += ACT256_BYTES, a.first = 0, s += OX_SIDE_BYTES(side), p += step) {
        if (b % OX_SIDE_SPAN(side) == 0)
            s = p, p += 64;
        for (int q = 0; q < 2; q++) {
            const uint8_t *from = p + q * stride, *scales = s + q * stride;
            ox_i32x16 sp[8], mp[8];
            load_head(sp, mp, from, head);
            for (int u = 0; u < 8; u++) {
                ox_scale by[2];
                if (small)
                    by[0] = i32_mul(scale_low(sp[u]), i32_set1(0x01010101)), by[1] = i32_mul(scale_high(sp[u]), i32_set1(0x01010101));
                sweep_spread(w[q].code + 4 * u, from + OX_HEAD_BYTES(head) + u * OX_UNIT_BYTES(store), store, lut ? 0 : off, lut, table, small ? by : NULL);
            }
            if (head != HEAD_NONE && !small)
                OX_UNROLL for (int k = 0; k < 256 / sub; k++)
                    sweep_scales(w[q].scale[k], k % 2 ? scale_high(sp[k / 2]) : scale_low(sp[k / 2]));
            OX_UNROLL for (int k = 0; k < minima / 8; k++)
                sweep_minima(w[q].minima[k], mp + 4 * k);
            ox_f32x16 d = side_d(scales, side);
            sweep_scales(w[q].d[0], f32_as_i32(unit != 1.0f ? f32_mul(d, f32_set1(unit)) : d));
            if (minima)
                sweep_scales(w[q].least[0], f32_as_i32(side_d(scales + 32, side)));
        }
        a.last = b + 1 == cols / 256;
        a.next = !a.last ? p + step : later ? panel + later : NULL;
        (small ? sweep_all_256_min16 : minima ? sweep_all_256_sub32_min8 : sub == 16 ? sweep_all_256_sub16 : sub == 32 ? sweep_all_256_sub32 : sweep_all_256)(w, &a);
    }
    sweep_rest(&a);
}

/* A function for each format; i8mm.c gives them names that are seen elsewhere. */
#ifndef OX_SWEPT
#define OX_SWEPT(name) static void swept_##name(OX_WIDE_ARGS)
#endif
#define OX_FLOAT(name, bytes)
#define OX_PAIRS(name)
#define OX_FORM32(name, store, bits, off, side) \
    OX_SWEPT(name) { sweep_32(c, ldc, panel, stride, later, x, ldx, cols, m, store, off, side, lut_##name, BLOCK_##name); }
#define OX_FORM256(name, store, bits, off, head, side, unit)                                                \
    _Static_assert((head) != HEAD_16X4_MIN || (store) <= 3, "15 times the largest code is a signed byte");  \
    OX_SWEPT(name) { sweep_256(c, ldc, panel, stride, later, x, ldx, cols, m, store, off, head, side, unit, lut_##name); }
#include "lanes/forms.def"
#undef OX_FORM32
#undef OX_FORM256

/* One row left over is cheaper in a tile of its own than in one of four. */
#define OX_SWEEP_OR_TILES(name, wide, swept)                                          \
    static void wide(OX_WIDE_ARGS)                                                    \
    {                                                                                 \
        const int some = m % SWEEP_ROWS == 1 ? m - 1 : m;                             \
        if (some)                                                                     \
            swept(c, ldc, panel, stride, later, x, ldx, cols, some);                  \
        m -= some, c += some * ldc, x += some * ldx;                                  \
        tile_##name(c, ldc, panel, NULL, x, ldx, cols, m);                            \
        tile_##name(c + 16, ldc, panel + stride, NULL, x, ldx, cols, m);              \
    }
#ifdef OX_SWEEP
#define OX_WIDE_FLOAT(name) NULL
#define OX_WIDE_32(store, bits) 1
#define OX_WIDE_256(store, bits) 1
#define OX_FORM32(name, store, bits, off, side) OX_SWEEP_OR_TILES(name, wide_##name, swept_##name)
#define OX_FORM256(name, store, bits, off, head, side, unit) OX_SWEEP_OR_TILES(name, wide_##name, swept_##name)
#include "lanes/forms.def"
#undef OX_FORM32
#undef OX_FORM256
#endif
#undef OX_FLOAT
#undef OX_PAIRS

#endif
