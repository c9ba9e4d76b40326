/* The vocabulary on AVX-512 (F, BW, DQ, VL, VNNI). Include after OX_TARGET; see isa/scalar.h for what each word means. */
#ifndef OX_ISA_AVX512_H
#define OX_ISA_AVX512_H
#include "ox.h"
#include "isa/mxcsr.h"
#include <immintrin.h>

#define OX_ISA_NAME avx512

typedef __m512 ox_f32x16;
typedef __m512i ox_i32x16;
typedef __m512i ox_u8x64;

/* floats */
OX_INLINE ox_f32x16 f32_load(const float *p) { return _mm512_loadu_ps(p); }
OX_INLINE void f32_store(float *p, ox_f32x16 a) { _mm512_storeu_ps(p, a); }
OX_INLINE ox_f32x16 f32_set1(float x) { return _mm512_set1_ps(x); }
OX_INLINE ox_f32x16 f32_zero(void) { return _mm512_setzero_ps(); }
OX_INLINE ox_f32x16 f32_add(ox_f32x16 a, ox_f32x16 b) { return _mm512_add_ps(a, b); }
OX_INLINE ox_f32x16 f32_sub(ox_f32x16 a, ox_f32x16 b) { return _mm512_sub_ps(a, b); }
OX_INLINE ox_f32x16 f32_mul(ox_f32x16 a, ox_f32x16 b) { return _mm512_mul_ps(a, b); }
OX_INLINE ox_f32x16 f32_div(ox_f32x16 a, ox_f32x16 b) { return _mm512_div_ps(a, b); }
OX_INLINE ox_f32x16 f32_fma(ox_f32x16 a, ox_f32x16 b, ox_f32x16 c) { return _mm512_fmadd_ps(a, b, c); }
OX_INLINE ox_f32x16 f32_fnma(ox_f32x16 a, ox_f32x16 b, ox_f32x16 c) { return _mm512_fnmadd_ps(a, b, c); }
OX_INLINE ox_f32x16 f32_max(ox_f32x16 a, ox_f32x16 b) { return _mm512_max_ps(a, b); }
OX_INLINE ox_f32x16 f32_min(ox_f32x16 a, ox_f32x16 b) { return _mm512_min_ps(a, b); }
OX_INLINE ox_f32x16 f32_abs(ox_f32x16 a) { return _mm512_abs_ps(a); }
OX_INLINE ox_f32x16 f32_neg(ox_f32x16 a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
OX_INLINE ox_f32x16 f32_sqrt(ox_f32x16 a) { return _mm512_sqrt_ps(a); }
OX_INLINE ox_f32x16 f32_select_lt(ox_f32x16 a, ox_f32x16 b, ox_f32x16 x, ox_f32x16 y)
{ return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x); }
OX_INLINE __mmask16 ox_first(int n) { return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1u); }
OX_INLINE ox_f32x16 f32_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(ox_first(n), p); }
OX_INLINE void f32_store_n(float *p, ox_f32x16 a, int n) { _mm512_mask_storeu_ps(p, ox_first(n), a); }
OX_INLINE ox_f32x16 f32_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
OX_INLINE void f32_store_f16(uint16_t *p, ox_f32x16 a)
{ _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
OX_INLINE float f32_hsum(ox_f32x16 a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
OX_INLINE float f32_hmax(ox_f32x16 a)
{
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

/* ints */
OX_INLINE ox_i32x16 i32_load(const int32_t *p) { return _mm512_loadu_si512(p); }
OX_INLINE void i32_store(int32_t *p, ox_i32x16 a) { _mm512_storeu_si512(p, a); }
OX_INLINE ox_i32x16 i32_set1(int32_t x) { return _mm512_set1_epi32(x); }
/* A broadcast from memory for another register, where the compiler would copy the first one's: a load costs no vector port. */
OX_INLINE ox_i32x16 i32_set1_again(const int32_t *p)
{
    ox_i32x16 a;
    __asm__("vpbroadcastd %1, %0" : "=v"(a) : "m"(*p));
    return a;
}
OX_INLINE ox_i32x16 i32_zero(void) { return _mm512_setzero_si512(); }
OX_INLINE ox_i32x16 i32_add(ox_i32x16 a, ox_i32x16 b) { return _mm512_add_epi32(a, b); }
OX_INLINE ox_i32x16 i32_sub(ox_i32x16 a, ox_i32x16 b) { return _mm512_sub_epi32(a, b); }
OX_INLINE ox_i32x16 i32_mul(ox_i32x16 a, ox_i32x16 b) { return _mm512_mullo_epi32(a, b); }
OX_INLINE ox_i32x16 i32_and(ox_i32x16 a, ox_i32x16 b) { return _mm512_and_si512(a, b); }
OX_INLINE ox_i32x16 i32_or(ox_i32x16 a, ox_i32x16 b) { return _mm512_or_si512(a, b); }
OX_INLINE ox_i32x16 i32_shl(ox_i32x16 a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
OX_INLINE ox_i32x16 i32_shr(ox_i32x16 a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
OX_INLINE ox_f32x16 i32_to_f32(ox_i32x16 a) { return _mm512_cvtepi32_ps(a); }
OX_INLINE ox_i32x16 f32_to_i32(ox_f32x16 a) { return _mm512_cvtps_epi32(a); }
OX_INLINE ox_f32x16 i32_as_f32(ox_i32x16 a) { return _mm512_castsi512_ps(a); }
OX_INLINE ox_i32x16 f32_as_i32(ox_f32x16 a) { return _mm512_castps_si512(a); }
OX_INLINE void i32_store_i8(int8_t *p, ox_i32x16 a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }

/* code bytes and tiles */
#define OX_DOT8_CENTRE 0

OX_INLINE ox_u8x64 u8_load(const void *p) { return _mm512_loadu_si512(p); }
OX_INLINE void u8_store(void *p, ox_u8x64 a) { _mm512_storeu_si512(p, a); }
OX_INLINE ox_u8x64 u8_low4(ox_u8x64 a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
OX_INLINE ox_u8x64 u8_high4(ox_u8x64 a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
OX_INLINE ox_u8x64 u8_field(ox_u8x64 a, int from, int mask)
{ return _mm512_and_si512(from ? _mm512_srli_epi16(a, (unsigned)from) : a, _mm512_set1_epi8((char)mask)); }
OX_INLINE ox_u8x64 u8_put(ox_u8x64 a, ox_u8x64 h, int from, int to, int mask)
{
    ox_u8x64 v = from == to ? h : from > to ? _mm512_srli_epi16(h, (unsigned)(from - to)) : _mm512_slli_epi16(h, (unsigned)(to - from));
    return _mm512_ternarylogic_epi32(a, v, _mm512_set1_epi8((char)mask), 0xf8);      /* a | (v & mask) */
}
OX_INLINE ox_u8x64 u8_table(const uint8_t *t16) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)t16)); }
OX_INLINE ox_u8x64 u8_lookup(ox_u8x64 table, ox_u8x64 a) { return _mm512_shuffle_epi8(table, a); }

OX_INLINE ox_i32x16 u8_zip_low(ox_u8x64 low, ox_u8x64 high) { return _mm512_unpacklo_epi8(low, high); }
OX_INLINE ox_i32x16 u8_zip_high(ox_u8x64 low, ox_u8x64 high) { return _mm512_unpackhi_epi8(low, high); }

OX_INLINE ox_i32x16 i32_load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
OX_INLINE ox_i32x16 i32_load_i8(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }
OX_INLINE ox_i32x16 i32_load_i16(const void *p) { return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)p)); }
OX_INLINE ox_i32x16 i32_max(ox_i32x16 a, ox_i32x16 b) { return _mm512_max_epi32(a, b); }
OX_INLINE int32_t i32_hmax(ox_i32x16 a) { return _mm512_reduce_max_epi32(a); }
OX_INLINE int32_t i32_hsum(ox_i32x16 a) { return _mm512_reduce_add_epi32(a); }

OX_INLINE ox_i32x16 pairs_even(ox_u8x64 a) { return _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8); }
OX_INLINE ox_i32x16 pairs_odd(ox_u8x64 a) { return _mm512_srai_epi16(a, 8); }
/* In assembly because gcc 12 copies sums that a loop carries through the intrinsic, there and back. */
OX_INLINE ox_i32x16 i32_dot_pairs(ox_i32x16 c, ox_i32x16 a, ox_i32x16 b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
}
OX_INLINE ox_i32x16 pairs_less(ox_i32x16 a, int n) { return _mm512_sub_epi16(a, _mm512_set1_epi16((short)n)); }
OX_INLINE ox_i32x16 pairs_odd_numbers(ox_i32x16 a) { return _mm512_add_epi16(_mm512_add_epi16(a, a), _mm512_set1_epi16(1)); }

/* bf16 pairs, widened to floats; isa/mxcsr.h flushes. */
typedef struct { ox_f32x16 even, odd; } ox_bf16x32;
OX_INLINE ox_bf16x32 ox_widen(__m512i v)
{
    return (ox_bf16x32){ _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)),
                         _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000))) };
}
OX_INLINE ox_bf16x32 bf16_load(const void *p) { return ox_widen(_mm512_loadu_si512(p)); }
OX_INLINE ox_bf16x32 bf16_of(ox_i32x16 pairs) { return ox_widen(pairs); }
OX_INLINE ox_bf16x32 bf16_set1(int32_t pair) { return ox_widen(_mm512_set1_epi32(pair)); }
OX_INLINE ox_f32x16 f32_dot2(ox_f32x16 c, ox_bf16x32 w, ox_bf16x32 x) { return f32_fma(w.even, x.even, f32_fma(w.odd, x.odd, c)); }
OX_INLINE void i32_store_i16(void *p, ox_i32x16 a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(a)); }

typedef __m512i ox_scale;                                       /* the scale as a 32-bit number */
OX_INLINE ox_scale scale_low(ox_i32x16 pairs) { return _mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16); }
OX_INLINE ox_scale scale_high(ox_i32x16 pairs) { return _mm512_srai_epi32(pairs, 16); }

OX_INLINE ox_i32x16 i32_dot4(ox_i32x16 c, ox_u8x64 w, ox_i32x16 x) { return _mm512_dpbusd_epi32(c, w, x); }   /* 4 columns, x broadcast */
/* What a dot goes on from, with the sum so far in the upper 16 bits; and that lane as two numbers, once the dot is below. */
#define OX_ABOVE 0x8000
OX_INLINE ox_i32x16 i32_above(ox_i32x16 sum, ox_i32x16 from) { return _mm512_add_epi32(_mm512_slli_epi32(sum, 16), from); }
OX_INLINE ox_i32x16 pairs_of(ox_i32x16 a) { return _mm512_xor_si512(a, _mm512_set1_epi32(OX_ABOVE)); }
OX_INLINE int32_t ox_word(const int8_t *x) { int32_t v; memcpy(&v, x, 4); return v; }
OX_INLINE ox_i32x16 i32_dot16(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits)
{
    (void)bits;
    c = _mm512_dpbusd_epi32(c, w[0], _mm512_set1_epi32(ox_word(x)));
    c = _mm512_dpbusd_epi32(c, w[1], _mm512_set1_epi32(ox_word(x + 4)));
    c = _mm512_dpbusd_epi32(c, w[2], _mm512_set1_epi32(ox_word(x + 8)));
    return _mm512_dpbusd_epi32(c, w[3], _mm512_set1_epi32(ox_word(x + 12)));
}
OX_INLINE ox_i32x16 i32_dot16_scaled(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits, ox_scale s)
{ return i32_add(c, i32_mul(i32_dot16(i32_zero(), w, x, bits), s)); }
OX_INLINE ox_i32x16 i32_dot32_scaled(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits, ox_scale s)
{ return i32_add(c, i32_mul(i32_dot16(i32_dot16(i32_zero(), w, x, bits), w + 4, x + 16, bits), s)); }

#endif
