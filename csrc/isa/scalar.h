/* The vocabulary in plain C: the law the other instruction sets must equal bit for bit. See docs/kernels.md for the words. */
#ifndef OX_ISA_SCALAR_H
#define OX_ISA_SCALAR_H
#include "ox.h"
#include <math.h>

#define OX_ISA_NAME scalar
#define OX_ISA_INDEX OX_ISA_SCALAR

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
OX_INLINE ox_f32x16 f32_fma(ox_f32x16 a, ox_f32x16 b, ox_f32x16 c) { OX_EACH c.v[i] = fmaf(a.v[i], b.v[i], c.v[i]); return c; }   /* a*b + c */
OX_INLINE ox_f32x16 f32_fnma(ox_f32x16 a, ox_f32x16 b, ox_f32x16 c) { OX_EACH c.v[i] = fmaf(-a.v[i], b.v[i], c.v[i]); return c; } /* c - a*b */
OX_INLINE ox_f32x16 f32_max(ox_f32x16 a, ox_f32x16 b) { OX_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }   /* b if either is NaN */
OX_INLINE ox_f32x16 f32_min(ox_f32x16 a, ox_f32x16 b) { OX_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
OX_INLINE ox_f32x16 f32_sqrt(ox_f32x16 a) { OX_EACH a.v[i] = sqrtf(a.v[i]); return a; }
OX_INLINE ox_f32x16 f32_abs(ox_f32x16 a) { OX_EACH a.v[i] = fabsf(a.v[i]); return a; }
OX_INLINE ox_f32x16 f32_neg(ox_f32x16 a) { OX_EACH a.v[i] = -a.v[i]; return a; }
OX_INLINE ox_f32x16 f32_select_lt(ox_f32x16 a, ox_f32x16 b, ox_f32x16 x, ox_f32x16 y)   /* a < b ? x : y (false on NaN) */
{ OX_EACH x.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i]; return x; }
OX_INLINE ox_f32x16 f32_load_n(const float *p, int n) { ox_f32x16 r; OX_EACH r.v[i] = i < n ? p[i] : 0.0f; return r; }
OX_INLINE void f32_store_n(float *p, ox_f32x16 a, int n) { for (int i = 0; i < n && i < 16; i++) p[i] = a.v[i]; }
OX_INLINE ox_f32x16 f32_load_f16(const uint16_t *p) { ox_f32x16 r; OX_EACH r.v[i] = ox_f16_to_f32(p[i]); return r; }
OX_INLINE void f32_store_f16(uint16_t *p, ox_f32x16 a) { OX_EACH p[i] = ox_f32_to_f16(a.v[i]); }
OX_INLINE ox_f32x16 f32_load_bf16(const uint16_t *p) { ox_f32x16 r; OX_EACH r.v[i] = ox_bf16_to_f32(p[i]); return r; }
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
OX_INLINE ox_i32x16 f32_to_i32(ox_f32x16 a) { ox_i32x16 r; OX_EACH r.v[i] = (int32_t)lrintf(a.v[i]); return r; }     /* nearest even; |a| < 2^31 */
OX_INLINE ox_f32x16 i32_as_f32(ox_i32x16 a) { ox_f32x16 r; memcpy(&r, &a, 64); return r; }                           /* same bits */
OX_INLINE ox_i32x16 f32_as_i32(ox_f32x16 a) { ox_i32x16 r; memcpy(&r, &a, 64); return r; }
OX_INLINE void i32_store_i8(int8_t *p, ox_i32x16 a) { OX_EACH p[i] = (int8_t)a.v[i]; }                               /* values already in range */

#endif
