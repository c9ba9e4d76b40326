/* The vocabulary on AArch64 NEON: every 16-lane value is four 128-bit registers. See isa/scalar.h for what each word means.
 * With OX_NEON_DOT (the dot-product extension) 4 columns of 4 rows are one instruction. */
#ifndef OX_ISA_NEON_H
#define OX_ISA_NEON_H
#include "ox.h"
#include <arm_neon.h>

#define OX_ISA_NAME neon

typedef struct { float32x4_t v[4]; } ox_f32x16;
typedef struct { int32x4_t v[4]; } ox_i32x16;
typedef struct { uint8x16_t v[4]; } ox_u8x64;

#define OX_QUADS for (int q = 0; q < 4; q++)
#define OX_F1(expr) do { ox_f32x16 r; OX_QUADS r.v[q] = (expr); return r; } while (0)
#define OX_I1(expr) do { ox_i32x16 r; OX_QUADS r.v[q] = (expr); return r; } while (0)
#define OX_U1(expr) do { ox_u8x64 r; OX_QUADS r.v[q] = (expr); return r; } while (0)

/* floats */
OX_INLINE ox_f32x16 f32_load(const float *p) { OX_F1(vld1q_f32(p + 4 * q)); }
OX_INLINE void f32_store(float *p, ox_f32x16 a) { OX_QUADS vst1q_f32(p + 4 * q, a.v[q]); }
OX_INLINE ox_f32x16 f32_set1(float x) { OX_F1(vdupq_n_f32(x)); }
OX_INLINE ox_f32x16 f32_zero(void) { OX_F1(vdupq_n_f32(0.0f)); }
OX_INLINE ox_f32x16 f32_add(ox_f32x16 a, ox_f32x16 b) { OX_F1(vaddq_f32(a.v[q], b.v[q])); }
OX_INLINE ox_f32x16 f32_sub(ox_f32x16 a, ox_f32x16 b) { OX_F1(vsubq_f32(a.v[q], b.v[q])); }
OX_INLINE ox_f32x16 f32_mul(ox_f32x16 a, ox_f32x16 b) { OX_F1(vmulq_f32(a.v[q], b.v[q])); }
OX_INLINE ox_f32x16 f32_div(ox_f32x16 a, ox_f32x16 b) { OX_F1(vdivq_f32(a.v[q], b.v[q])); }
OX_INLINE ox_f32x16 f32_fma(ox_f32x16 a, ox_f32x16 b, ox_f32x16 c) { OX_F1(vfmaq_f32(c.v[q], a.v[q], b.v[q])); }
OX_INLINE ox_f32x16 f32_fnma(ox_f32x16 a, ox_f32x16 b, ox_f32x16 c) { OX_F1(vfmsq_f32(c.v[q], a.v[q], b.v[q])); }
OX_INLINE float32x4_t ox_choose(uint32x4_t k, float32x4_t x, float32x4_t y) { return vbslq_f32(k, x, y); }
OX_INLINE ox_f32x16 f32_max(ox_f32x16 a, ox_f32x16 b) { OX_F1(ox_choose(vcgtq_f32(a.v[q], b.v[q]), a.v[q], b.v[q])); }
OX_INLINE ox_f32x16 f32_min(ox_f32x16 a, ox_f32x16 b) { OX_F1(ox_choose(vcltq_f32(a.v[q], b.v[q]), a.v[q], b.v[q])); }
OX_INLINE ox_f32x16 f32_abs(ox_f32x16 a) { OX_F1(vabsq_f32(a.v[q])); }
OX_INLINE ox_f32x16 f32_neg(ox_f32x16 a) { OX_F1(vnegq_f32(a.v[q])); }
OX_INLINE ox_f32x16 f32_sqrt(ox_f32x16 a) { OX_F1(vsqrtq_f32(a.v[q])); }
OX_INLINE ox_f32x16 f32_select_lt(ox_f32x16 a, ox_f32x16 b, ox_f32x16 x, ox_f32x16 y)
{ OX_F1(ox_choose(vcltq_f32(a.v[q], b.v[q]), x.v[q], y.v[q])); }
OX_INLINE ox_f32x16 f32_load_n(const float *p, int n)
{
    float all[16] = { 0 };
    for (int i = 0; i < n && i < 16; i++)
        all[i] = p[i];
    return f32_load(all);
}
OX_INLINE void f32_store_n(float *p, ox_f32x16 a, int n)
{
    if (n >= 16) {
        f32_store(p, a);
        return;
    }
    float all[16];
    f32_store(all, a);
    for (int i = 0; i < n; i++)
        p[i] = all[i];
}
OX_INLINE ox_f32x16 f32_load_f16(const uint16_t *p) { OX_F1(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * q)))); }
OX_INLINE void f32_store_f16(uint16_t *p, ox_f32x16 a) { OX_QUADS vst1_u16(p + 4 * q, vreinterpret_u16_f16(vcvt_f16_f32(a.v[q]))); }
OX_INLINE float f32_hsum(ox_f32x16 a)
{
    float32x4_t w = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    float32x2_t h = vadd_f32(vget_low_f32(w), vget_high_f32(w));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
OX_INLINE float ox_larger(float a, float b) { return a > b ? a : b; }
OX_INLINE float f32_hmax(ox_f32x16 a)
{
    float all[16];
    f32_store(all, a);
    for (int w = 8; w; w >>= 1)
        for (int i = 0; i < w; i++)
            all[i] = ox_larger(all[i], all[i + w]);
    return all[0];
}

/* ints */
OX_INLINE ox_i32x16 i32_load(const int32_t *p) { OX_I1(vld1q_s32(p + 4 * q)); }
OX_INLINE void i32_store(int32_t *p, ox_i32x16 a) { OX_QUADS vst1q_s32(p + 4 * q, a.v[q]); }
OX_INLINE ox_i32x16 i32_set1(int32_t x) { OX_I1(vdupq_n_s32(x)); }
OX_INLINE ox_i32x16 i32_zero(void) { OX_I1(vdupq_n_s32(0)); }
OX_INLINE ox_i32x16 i32_add(ox_i32x16 a, ox_i32x16 b) { OX_I1(vaddq_s32(a.v[q], b.v[q])); }
OX_INLINE ox_i32x16 i32_sub(ox_i32x16 a, ox_i32x16 b) { OX_I1(vsubq_s32(a.v[q], b.v[q])); }
OX_INLINE ox_i32x16 i32_mul(ox_i32x16 a, ox_i32x16 b) { OX_I1(vmulq_s32(a.v[q], b.v[q])); }
OX_INLINE ox_i32x16 i32_and(ox_i32x16 a, ox_i32x16 b) { OX_I1(vandq_s32(a.v[q], b.v[q])); }
OX_INLINE ox_i32x16 i32_or(ox_i32x16 a, ox_i32x16 b) { OX_I1(vorrq_s32(a.v[q], b.v[q])); }
OX_INLINE ox_i32x16 i32_shl(ox_i32x16 a, int n) { OX_I1(vshlq_s32(a.v[q], vdupq_n_s32(n))); }
OX_INLINE ox_i32x16 i32_shr(ox_i32x16 a, int n) { OX_I1(vshlq_s32(a.v[q], vdupq_n_s32(-n))); }
OX_INLINE ox_f32x16 i32_to_f32(ox_i32x16 a) { OX_F1(vcvtq_f32_s32(a.v[q])); }
OX_INLINE ox_i32x16 f32_to_i32(ox_f32x16 a) { OX_I1(vcvtnq_s32_f32(a.v[q])); }
OX_INLINE ox_f32x16 i32_as_f32(ox_i32x16 a) { OX_F1(vreinterpretq_f32_s32(a.v[q])); }
OX_INLINE ox_i32x16 f32_as_i32(ox_f32x16 a) { OX_I1(vreinterpretq_s32_f32(a.v[q])); }
OX_INLINE void i32_store_i8(int8_t *p, ox_i32x16 a)
{
    int16x8_t w0 = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1])), w1 = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(w0), vmovn_s16(w1)));
}

/* code bytes and tiles: codes up to 127 are signed bytes already, codes of 8 bits lose 128 first */
#define OX_DOT8_CENTRE 128

OX_INLINE ox_u8x64 u8_load(const void *p) { OX_U1(vld1q_u8((const uint8_t *)p + 16 * q)); }
OX_INLINE void u8_store(void *p, ox_u8x64 a) { OX_QUADS vst1q_u8((uint8_t *)p + 16 * q, a.v[q]); }
OX_INLINE ox_u8x64 u8_low4(ox_u8x64 a) { OX_U1(vandq_u8(a.v[q], vdupq_n_u8(15))); }
OX_INLINE ox_u8x64 u8_high4(ox_u8x64 a) { OX_U1(vshrq_n_u8(a.v[q], 4)); }
OX_INLINE ox_u8x64 u8_field(ox_u8x64 a, int from, int mask)
{ OX_U1(vandq_u8(vshlq_u8(a.v[q], vdupq_n_s8((int8_t)-from)), vdupq_n_u8((uint8_t)mask))); }
OX_INLINE ox_u8x64 u8_put(ox_u8x64 a, ox_u8x64 h, int from, int to, int mask)
{ OX_U1(vbslq_u8(vdupq_n_u8((uint8_t)mask), vshlq_u8(h.v[q], vdupq_n_s8((int8_t)(to - from))), a.v[q])); }
OX_INLINE ox_u8x64 u8_table(const uint8_t *t16) { OX_U1(vld1q_u8(t16)); }
OX_INLINE ox_u8x64 u8_lookup(ox_u8x64 table, ox_u8x64 a) { OX_U1(vqtbl1q_u8(table.v[q], a.v[q])); }

OX_INLINE ox_i32x16 u8_zip_low(ox_u8x64 low, ox_u8x64 high) { OX_I1(vreinterpretq_s32_u8(vzip1q_u8(low.v[q], high.v[q]))); }
OX_INLINE ox_i32x16 u8_zip_high(ox_u8x64 low, ox_u8x64 high) { OX_I1(vreinterpretq_s32_u8(vzip2q_u8(low.v[q], high.v[q]))); }

OX_INLINE ox_i32x16 i32_load_u8(const uint8_t *p)
{
    uint8x16_t b = vld1q_u8(p);
    uint16x8_t lo = vmovl_u8(vget_low_u8(b)), hi = vmovl_u8(vget_high_u8(b));
    ox_i32x16 r;
    r.v[0] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo)));
    r.v[1] = vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(lo)));
    r.v[2] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi)));
    r.v[3] = vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(hi)));
    return r;
}
OX_INLINE ox_i32x16 i32_load_i8(const int8_t *p)
{
    int8x16_t b = vld1q_s8(p);
    int16x8_t lo = vmovl_s8(vget_low_s8(b)), hi = vmovl_s8(vget_high_s8(b));
    return (ox_i32x16){ { vmovl_s16(vget_low_s16(lo)), vmovl_s16(vget_high_s16(lo)), vmovl_s16(vget_low_s16(hi)), vmovl_s16(vget_high_s16(hi)) } };
}
OX_INLINE ox_i32x16 i32_load_i16(const void *p) { OX_I1(vmovl_s16(vld1_s16((const int16_t *)p + 4 * q))); }
OX_INLINE ox_i32x16 i32_max(ox_i32x16 a, ox_i32x16 b) { OX_I1(vmaxq_s32(a.v[q], b.v[q])); }
OX_INLINE int32_t i32_hmax(ox_i32x16 a) { return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3]))); }
OX_INLINE int32_t i32_hsum(ox_i32x16 a) { return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3]))); }

OX_INLINE int16x8_t ox_as16(int32x4_t v) { return vreinterpretq_s16_s32(v); }
OX_INLINE int32x4_t ox_as32(int16x8_t v) { return vreinterpretq_s32_s16(v); }
OX_INLINE ox_i32x16 pairs_even(ox_u8x64 a) { OX_I1(ox_as32(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_u8(a.v[q]), 8), 8))); }
OX_INLINE ox_i32x16 pairs_odd(ox_u8x64 a) { OX_I1(ox_as32(vshrq_n_s16(vreinterpretq_s16_u8(a.v[q]), 8))); }
OX_INLINE int32x4_t ox_pairs4(int32x4_t c, int16x8_t a, int16x8_t b)
{ return vaddq_s32(c, vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b))); }
OX_INLINE ox_i32x16 i32_dot_pairs(ox_i32x16 c, ox_i32x16 a, ox_i32x16 b) { OX_I1(ox_pairs4(c.v[q], ox_as16(a.v[q]), ox_as16(b.v[q]))); }
OX_INLINE ox_i32x16 pairs_less(ox_i32x16 a, int n) { OX_I1(ox_as32(vsubq_s16(ox_as16(a.v[q]), vdupq_n_s16((int16_t)n)))); }
OX_INLINE ox_i32x16 pairs_odd_numbers(ox_i32x16 a) { OX_I1(ox_as32(vaddq_s16(vshlq_n_s16(ox_as16(a.v[q]), 1), vdupq_n_s16(1)))); }

/* bf16 pairs, widened to floats. FPCR.FZ flushes before rounding where the dot flushes after it: a result between 2^-126 (1 - 2^-25) and 2^-126 becomes
 * zero instead of 2^-126. Whether anything was flushed FPSR.UFC tells; then flushed_pairs does the tile again. */
typedef struct { ox_f32x16 even, odd; } ox_bf16x32;
typedef uint64_t ox_flush;
OX_INLINE ox_flush flush_begin(void)
{
    uint64_t was, status;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(was), "=r"(status) : : "memory");
    __asm__ volatile("msr fpsr, %0\n\tmsr fpcr, %1" : : "r"(status & ~(uint64_t)8), "r"((uint64_t)1 << 24) : "memory");
    return was;
}
OX_INLINE int flush_end(ox_flush was)
{
    uint64_t status;
    __asm__ volatile("mrs %0, fpsr\n\tmsr fpcr, %1" : "=&r"(status) : "r"(was) : "memory");
    return (int)(status & 8);
}
OX_INLINE ox_bf16x32 ox_widen(ox_i32x16 v) { return (ox_bf16x32){ i32_as_f32(i32_shl(v, 16)), i32_as_f32(i32_and(v, i32_set1((int32_t)0xffff0000))) }; }
OX_INLINE ox_bf16x32 bf16_load(const void *p) { return ox_widen(i32_load((const int32_t *)p)); }
OX_INLINE ox_bf16x32 bf16_of(ox_i32x16 pairs) { return ox_widen(pairs); }
OX_INLINE ox_bf16x32 bf16_set1(int32_t pair) { return ox_widen(i32_set1(pair)); }
OX_INLINE ox_f32x16 f32_dot2(ox_f32x16 c, ox_bf16x32 w, ox_bf16x32 x) { return f32_fma(w.even, x.even, f32_fma(w.odd, x.odd, c)); }
OX_INLINE void i32_store_i16(void *p, ox_i32x16 a) { OX_QUADS vst1_s16((int16_t *)p + 4 * q, vmovn_s32(a.v[q])); }

typedef ox_i32x16 ox_scale;                                     /* the scale as a 32-bit number */
OX_INLINE ox_scale scale_low(ox_i32x16 pairs) { return i32_shr(i32_shl(pairs, 16), 16); }
OX_INLINE ox_scale scale_high(ox_i32x16 pairs) { return i32_shr(pairs, 16); }

/* A quad of w has four columns of four rows. */
OX_INLINE int8x16_t ox_centred(uint8x16_t w, int bits) { return vreinterpretq_s8_u8(bits == 8 ? veorq_u8(w, vdupq_n_u8(0x80)) : w); }
#ifdef OX_NEON_DOT
OX_INLINE ox_i32x16 i32_dot16(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits)
{
    const int8x16_t v = vld1q_s8(x);
    OX_QUADS c.v[q] = vdotq_laneq_s32(c.v[q], ox_centred(w[0].v[q], bits), v, 0);
    OX_QUADS c.v[q] = vdotq_laneq_s32(c.v[q], ox_centred(w[1].v[q], bits), v, 1);
    OX_QUADS c.v[q] = vdotq_laneq_s32(c.v[q], ox_centred(w[2].v[q], bits), v, 2);
    OX_QUADS c.v[q] = vdotq_laneq_s32(c.v[q], ox_centred(w[3].v[q], bits), v, 3);
    return c;
}
#else
OX_INLINE ox_i32x16 i32_dot16(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits)
{
    for (int g = 0; g < 4; g++) {
        int32_t word;
        memcpy(&word, x + 4 * g, 4);
        int8x16_t v = vreinterpretq_s8_s32(vdupq_n_s32(word));
        OX_QUADS {
            const int8x16_t k = ox_centred(w[g].v[q], bits);
            int16x8_t lo = vmull_s8(vget_low_s8(k), vget_low_s8(v)), hi = vmull_high_s8(k, v);
            c.v[q] = vaddq_s32(c.v[q], vpaddq_s32(vpaddlq_s16(lo), vpaddlq_s16(hi)));
        }
    }
    return c;
}
#endif
OX_INLINE ox_i32x16 i32_dot16_scaled(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits, ox_scale s)
{ return i32_add(c, i32_mul(i32_dot16(i32_zero(), w, x, bits), s)); }
OX_INLINE ox_i32x16 i32_dot32_scaled(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits, ox_scale s)
{ return i32_add(c, i32_mul(i32_dot16(i32_dot16(i32_zero(), w, x, bits), w + 4, x + 16, bits), s)); }

#endif
