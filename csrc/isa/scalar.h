/* The vocabulary in plain C: the reference that every other instruction set must equal bit for bit. See docs/kernels.md for the words. */
#ifndef OX_ISA_SCALAR_H
#define OX_ISA_SCALAR_H
#include "isa/flush.h"

#define OX_ISA_NAME scalar

typedef struct { float v[16]; } ox_f32x16;
typedef struct { int32_t v[16]; } ox_i32x16;
typedef struct { uint8_t v[64]; } ox_u8x64;

#define OX_EACH for (int i = 0; i < 16; i++)

/* floats */
OX_INLINE ox_f32x16 f32_load(const float *p) { ox_f32x16 r; memcpy(&r, p, 64); return r; }
OX_INLINE void f32_store(float *p, ox_f32x16 a) { memcpy(p, &a, 64); }
OX_INLINE ox_f32x16 f32_set1(float x) { ox_f32x16 r; OX_EACH r.v[i] = x; return r; }
OX_INLINE ox_f32x16 f32_zero(void) { return f32_set1(0.0f); }
OX_INLINE ox_f32x16 f32_add(ox_f32x16 a, ox_f32x16 b) { OX_EACH a.v[i] = a.v[i] + b.v[i]; return a; }
OX_INLINE ox_f32x16 f32_sub(ox_f32x16 a, ox_f32x16 b) { OX_EACH a.v[i] = a.v[i] - b.v[i]; return a; }
OX_INLINE ox_f32x16 f32_mul(ox_f32x16 a, ox_f32x16 b) { OX_EACH a.v[i] = a.v[i] * b.v[i]; return a; }
OX_INLINE ox_f32x16 f32_div(ox_f32x16 a, ox_f32x16 b) { OX_EACH a.v[i] = a.v[i] / b.v[i]; return a; }
/* a*b + c */
OX_INLINE ox_f32x16 f32_fma(ox_f32x16 a, ox_f32x16 b, ox_f32x16 c) { OX_EACH c.v[i] = fmaf(a.v[i], b.v[i], c.v[i]); return c; }
/* c - a*b */
OX_INLINE ox_f32x16 f32_fnma(ox_f32x16 a, ox_f32x16 b, ox_f32x16 c) { OX_EACH c.v[i] = fmaf(-a.v[i], b.v[i], c.v[i]); return c; }
/* b if either is NaN */
OX_INLINE ox_f32x16 f32_max(ox_f32x16 a, ox_f32x16 b) { OX_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
OX_INLINE ox_f32x16 f32_min(ox_f32x16 a, ox_f32x16 b) { OX_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
OX_INLINE ox_f32x16 f32_abs(ox_f32x16 a) { OX_EACH a.v[i] = fabsf(a.v[i]); return a; }
OX_INLINE ox_f32x16 f32_neg(ox_f32x16 a) { OX_EACH a.v[i] = -a.v[i]; return a; }
OX_INLINE ox_f32x16 f32_sqrt(ox_f32x16 a) { OX_EACH a.v[i] = sqrtf(a.v[i]); return a; }
OX_INLINE ox_f32x16 f32_select_lt(ox_f32x16 a, ox_f32x16 b, ox_f32x16 x, ox_f32x16 y)   /* a < b ? x : y (false on NaN) */
{ OX_EACH x.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i]; return x; }
OX_INLINE ox_f32x16 f32_load_n(const float *p, int n) { ox_f32x16 r; OX_EACH r.v[i] = i < n ? p[i] : 0.0f; return r; }
OX_INLINE void f32_store_n(float *p, ox_f32x16 a, int n) { for (int i = 0; i < n && i < 16; i++) p[i] = a.v[i]; }
OX_INLINE ox_f32x16 f32_load_f16(const uint16_t *p) { ox_f32x16 r; OX_EACH r.v[i] = ox_f16_to_f32(p[i]); return r; }
OX_INLINE void f32_store_f16(uint16_t *p, ox_f32x16 a) { OX_EACH p[i] = ox_f32_to_f16(a.v[i]); }
OX_INLINE float f32_hsum(ox_f32x16 a)       /* lane i + lane i+8, then +4, +2, +1 */
{
    for (int w = 8; w; w >>= 1) for (int i = 0; i < w; i++) a.v[i] = a.v[i] + a.v[i + w];
    return a.v[0];
}
OX_INLINE float f32_hmax(ox_f32x16 a)
{
    for (int w = 8; w; w >>= 1) for (int i = 0; i < w; i++) a.v[i] = a.v[i] > a.v[i + w] ? a.v[i] : a.v[i + w];
    return a.v[0];
}

/* ints */
OX_INLINE ox_i32x16 i32_load(const int32_t *p) { ox_i32x16 r; memcpy(&r, p, 64); return r; }
OX_INLINE void i32_store(int32_t *p, ox_i32x16 a) { memcpy(p, &a, 64); }
OX_INLINE ox_i32x16 i32_set1(int32_t x) { ox_i32x16 r; OX_EACH r.v[i] = x; return r; }
OX_INLINE ox_i32x16 i32_zero(void) { return i32_set1(0); }
OX_INLINE ox_i32x16 i32_add(ox_i32x16 a, ox_i32x16 b) { OX_EACH a.v[i] = (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i]); return a; }
OX_INLINE ox_i32x16 i32_sub(ox_i32x16 a, ox_i32x16 b) { OX_EACH a.v[i] = (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i]); return a; }
OX_INLINE ox_i32x16 i32_mul(ox_i32x16 a, ox_i32x16 b) { OX_EACH a.v[i] = (int32_t)((uint32_t)a.v[i] * (uint32_t)b.v[i]); return a; }
OX_INLINE ox_i32x16 i32_and(ox_i32x16 a, ox_i32x16 b) { OX_EACH a.v[i] &= b.v[i]; return a; }
OX_INLINE ox_i32x16 i32_or(ox_i32x16 a, ox_i32x16 b) { OX_EACH a.v[i] |= b.v[i]; return a; }
OX_INLINE ox_i32x16 i32_shl(ox_i32x16 a, int n) { OX_EACH a.v[i] = (int32_t)((uint32_t)a.v[i] << n); return a; }
OX_INLINE ox_i32x16 i32_shr(ox_i32x16 a, int n) { OX_EACH a.v[i] = a.v[i] >> n; return a; }                          /* arithmetic */
OX_INLINE ox_f32x16 i32_to_f32(ox_i32x16 a) { ox_f32x16 r; OX_EACH r.v[i] = (float)a.v[i]; return r; }               /* nearest even */
/* nearest even; |a| < 2^31 */
OX_INLINE ox_i32x16 f32_to_i32(ox_f32x16 a) { ox_i32x16 r; OX_EACH r.v[i] = (int32_t)lrintf(a.v[i]); return r; }
OX_INLINE ox_f32x16 i32_as_f32(ox_i32x16 a) { ox_f32x16 r; memcpy(&r, &a, 64); return r; }                           /* same bits */
OX_INLINE ox_i32x16 f32_as_i32(ox_f32x16 a) { ox_i32x16 r; memcpy(&r, &a, 64); return r; }
/* values already in range */
OX_INLINE void i32_store_i8(int8_t *p, ox_i32x16 a) { OX_EACH p[i] = (int8_t)a.v[i]; }

/* code bytes and tiles. A vector of codes holds 4 columns of 16 rows: byte 4 r + k = column k of row r, unsigned.
 * `bits` says how large codes can be (4: <= 15, 5: <= 31, 6: <= 63, 7: <= 127, 8: <= 255) and is always a literal: instruction sets
 * without a u8 x s8 dot pick the cheapest exact way by it. Where codes are 8 bits, OX_DOT8_CENTRE is what the
 * dot itself takes off every code. */
#define OX_DOT8_CENTRE 0

OX_INLINE ox_u8x64 u8_load(const void *p) { ox_u8x64 r; memcpy(&r, p, 64); return r; }
OX_INLINE void u8_store(void *p, ox_u8x64 a) { memcpy(p, &a, 64); }
OX_INLINE ox_u8x64 u8_low4(ox_u8x64 a) { for (int i = 0; i < 64; i++) a.v[i] &= 15; return a; }
OX_INLINE ox_u8x64 u8_high4(ox_u8x64 a) { for (int i = 0; i < 64; i++) a.v[i] >>= 4; return a; }
OX_INLINE ox_u8x64 u8_field(ox_u8x64 a, int from, int mask)                 /* bits of a from `from` up, under mask */
{ for (int i = 0; i < 64; i++) a.v[i] = (uint8_t)((a.v[i] >> from) & mask); return a; }
OX_INLINE ox_u8x64 u8_put(ox_u8x64 a, ox_u8x64 h, int from, int to, int mask)     /* a | bits of h moved from `from` to `to`, under mask */
{ for (int i = 0; i < 64; i++) a.v[i] |= (uint8_t)((from >= to ? h.v[i] >> (from - to) : h.v[i] << (to - from)) & mask); return a; }
OX_INLINE ox_u8x64 u8_table(const uint8_t *t16) { ox_u8x64 r; for (int i = 0; i < 64; i++) r.v[i] = t16[i & 15]; return r; }
OX_INLINE ox_i32x16 u8_zip(ox_u8x64 low, ox_u8x64 high, int from)            /* of each 16 bytes those 8 from `from` on: low and high by turns */
{
    ox_i32x16 r;
    for (int i = 0; i < 16; i++) {
        const uint8_t *l = low.v + 16 * (i / 4) + from + 2 * (i % 4), *h = high.v + 16 * (i / 4) + from + 2 * (i % 4);
        r.v[i] = (int32_t)((uint32_t)l[0] | (uint32_t)h[0] << 8 | (uint32_t)l[1] << 16 | (uint32_t)h[1] << 24);
    }
    return r;
}
OX_INLINE ox_i32x16 u8_zip_low(ox_u8x64 low, ox_u8x64 high) { return u8_zip(low, high, 0); }      /* bytes 0-7 of each 16 */
OX_INLINE ox_i32x16 u8_zip_high(ox_u8x64 low, ox_u8x64 high) { return u8_zip(low, high, 8); }     /* bytes 8-15 */
OX_INLINE ox_u8x64 u8_lookup(ox_u8x64 table, ox_u8x64 a) { for (int i = 0; i < 64; i++) a.v[i] = table.v[a.v[i] & 15]; return a; }

OX_INLINE ox_i32x16 i32_load_u8(const uint8_t *p) { ox_i32x16 r; OX_EACH r.v[i] = p[i]; return r; }
OX_INLINE ox_i32x16 i32_load_i8(const int8_t *p) { ox_i32x16 r; OX_EACH r.v[i] = p[i]; return r; }
OX_INLINE ox_i32x16 i32_load_i16(const void *p) { int16_t v[16]; ox_i32x16 r; memcpy(v, p, 32); OX_EACH r.v[i] = v[i]; return r; }
OX_INLINE ox_i32x16 i32_max(ox_i32x16 a, ox_i32x16 b) { OX_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
OX_INLINE int32_t i32_hmax(ox_i32x16 a) { int32_t m = a.v[0]; OX_EACH m = a.v[i] > m ? a.v[i] : m; return m; }
OX_INLINE int32_t i32_hsum(ox_i32x16 a) { uint32_t s = 0; OX_EACH s += (uint32_t)a.v[i]; return (int32_t)s; }

/* Pairs: a 32-bit lane as two signed 16-bit numbers. */
OX_INLINE ox_i32x16 pairs_even(ox_u8x64 a)                                  /* bytes 0 and 2 of each lane, as signed */
{ ox_i32x16 r; OX_EACH r.v[i] = (int32_t)((uint16_t)(int8_t)a.v[4 * i] | (uint32_t)(uint16_t)(int8_t)a.v[4 * i + 2] << 16); return r; }
OX_INLINE ox_i32x16 pairs_odd(ox_u8x64 a)                                   /* bytes 1 and 3 */
{ ox_i32x16 r; OX_EACH r.v[i] = (int32_t)((uint16_t)(int8_t)a.v[4 * i + 1] | (uint32_t)(uint16_t)(int8_t)a.v[4 * i + 3] << 16); return r; }
OX_INLINE ox_i32x16 i32_dot_pairs(ox_i32x16 c, ox_i32x16 a, ox_i32x16 b)    /* c + low a * low b + high a * high b */
{ OX_EACH c.v[i] += (int16_t)a.v[i] * (int16_t)b.v[i] + (a.v[i] >> 16) * (b.v[i] >> 16); return c; }
OX_INLINE ox_i32x16 pairs_less(ox_i32x16 a, int n)                          /* both halves - n */
{ OX_EACH a.v[i] = (int32_t)((uint16_t)((int16_t)a.v[i] - n) | (uint32_t)((a.v[i] >> 16) - n) << 16); return a; }
OX_INLINE ox_i32x16 pairs_odd_numbers(ox_i32x16 a)                          /* both halves 2 n + 1 */
{ OX_EACH a.v[i] = (int32_t)((uint16_t)(2 * (int16_t)a.v[i] + 1) | (uint32_t)(2 * (a.v[i] >> 16) + 1) << 16); return a; }

/* bf16 pairs: a 32-bit lane holds two columns, the even one in its low half. f32_dot2 is c + odd * odd, then + even * even, each fused, rounded to
 * nearest even and then zero if below 2^-126; subnormal inputs are zero too. It stands between flush_begin and flush_end, so that a processor
 * can be told to flush; where that flushes more than it should, flush_end says so, and flushed_pairs does the tile again. */
typedef struct { uint32_t v[16]; } ox_bf16x32;
typedef int ox_flush;
OX_INLINE ox_flush flush_begin(void) { return 0; }
OX_INLINE int flush_end(ox_flush was) { return was; }
OX_INLINE ox_bf16x32 bf16_load(const void *p) { ox_bf16x32 r; memcpy(&r, p, 64); return r; }
OX_INLINE ox_bf16x32 bf16_of(ox_i32x16 pairs) { return bf16_load(&pairs); }
OX_INLINE ox_bf16x32 bf16_set1(int32_t pair) { ox_bf16x32 r; OX_EACH r.v[i] = (uint32_t)pair; return r; }
OX_INLINE ox_f32x16 f32_dot2(ox_f32x16 c, ox_bf16x32 w, ox_bf16x32 x)
{
    OX_EACH {
        c.v[i] = ox_flushed_fma(ox_bf16_flushed(w.v[i] >> 16), ox_bf16_flushed(x.v[i] >> 16), c.v[i]);
        c.v[i] = ox_flushed_fma(ox_bf16_flushed(w.v[i] & 0xffff), ox_bf16_flushed(x.v[i] & 0xffff), c.v[i]);
    }
    return c;
}
OX_INLINE void i32_store_i16(void *p, ox_i32x16 a) { int16_t v[16]; OX_EACH v[i] = (int16_t)a.v[i]; memcpy(p, v, 32); }      /* values already in range */

/* A sub-block's integer scale per row, in the shape that i32_dot16_scaled likes. */
typedef ox_i32x16 ox_scale;
OX_INLINE ox_scale scale_low(ox_i32x16 pairs) { OX_EACH pairs.v[i] = (int16_t)pairs.v[i]; return pairs; }
OX_INLINE ox_scale scale_high(ox_i32x16 pairs) { OX_EACH pairs.v[i] = pairs.v[i] >> 16; return pairs; }

OX_INLINE ox_i32x16 i32_dot16(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits)    /* c + 16 columns of codes * x */
{
    (void)bits;
    for (int g = 0; g < 4; g++) OX_EACH for (int k = 0; k < 4; k++) c.v[i] += w[g].v[4 * i + k] * x[4 * g + k];
    return c;
}
OX_INLINE ox_i32x16 i32_dot16_scaled(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits, ox_scale s)
{ return i32_add(c, i32_mul(i32_dot16(i32_zero(), w, x, bits), s)); }
OX_INLINE ox_i32x16 i32_dot32_scaled(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits, ox_scale s)
{ return i32_add(c, i32_mul(i32_dot16(i32_dot16(i32_zero(), w, x, bits), w + 4, x + 16, bits), s)); }

#endif
