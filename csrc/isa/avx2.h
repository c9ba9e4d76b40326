/* The vocabulary on AVX2 with FMA and F16C: every 16-lane value is two 256-bit registers. See isa/scalar.h for the words. */
#ifndef OX_ISA_AVX2_H
#define OX_ISA_AVX2_H
#include "ox.h"
#include <immintrin.h>

#define OX_ISA_NAME avx2
#define OX_ISA_INDEX OX_ISA_AVX2

typedef struct { __m256 a, b; } ox_f32x16;      /* lanes 0-7, 8-15 */
typedef struct { __m256i a, b; } ox_i32x16;
typedef struct { __m256i a, b; } ox_u8x64;      /* bytes 0-31, 32-63 */

#define OX_F2(x, y) (ox_f32x16){ (x), (y) }
#define OX_I2(x, y) (ox_i32x16){ (x), (y) }

/* floats */
OX_INLINE ox_f32x16 f32_load(const float *p) { return OX_F2(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
OX_INLINE void f32_store(float *p, ox_f32x16 v) { _mm256_storeu_ps(p, v.a); _mm256_storeu_ps(p + 8, v.b); }
OX_INLINE ox_f32x16 f32_set1(float x) { __m256 v = _mm256_set1_ps(x); return OX_F2(v, v); }
OX_INLINE ox_f32x16 f32_zero(void) { return OX_F2(_mm256_setzero_ps(), _mm256_setzero_ps()); }
OX_INLINE ox_f32x16 f32_add(ox_f32x16 x, ox_f32x16 y) { return OX_F2(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
OX_INLINE ox_f32x16 f32_sub(ox_f32x16 x, ox_f32x16 y) { return OX_F2(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
OX_INLINE ox_f32x16 f32_mul(ox_f32x16 x, ox_f32x16 y) { return OX_F2(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
OX_INLINE ox_f32x16 f32_div(ox_f32x16 x, ox_f32x16 y) { return OX_F2(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
OX_INLINE ox_f32x16 f32_fma(ox_f32x16 x, ox_f32x16 y, ox_f32x16 z)
{ return OX_F2(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)); }
OX_INLINE ox_f32x16 f32_fnma(ox_f32x16 x, ox_f32x16 y, ox_f32x16 z)
{ return OX_F2(_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)); }
OX_INLINE ox_f32x16 f32_max(ox_f32x16 x, ox_f32x16 y) { return OX_F2(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
OX_INLINE ox_f32x16 f32_min(ox_f32x16 x, ox_f32x16 y) { return OX_F2(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
OX_INLINE ox_f32x16 f32_sqrt(ox_f32x16 x) { return OX_F2(_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)); }
OX_INLINE ox_f32x16 f32_abs(ox_f32x16 x)
{ __m256 s = _mm256_set1_ps(-0.0f); return OX_F2(_mm256_andnot_ps(s, x.a), _mm256_andnot_ps(s, x.b)); }
OX_INLINE ox_f32x16 f32_neg(ox_f32x16 x)
{ __m256 s = _mm256_set1_ps(-0.0f); return OX_F2(_mm256_xor_ps(x.a, s), _mm256_xor_ps(x.b, s)); }
OX_INLINE ox_f32x16 f32_select_lt(ox_f32x16 p, ox_f32x16 q, ox_f32x16 x, ox_f32x16 y)
{
    return OX_F2(_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, q.a, _CMP_LT_OQ)),
                 _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, q.b, _CMP_LT_OQ)));
}
OX_INLINE ox_i32x16 ox_first(int n)             /* all ones in the first n lanes */
{
    __m256i k = _mm256_set1_epi32(n);
    return OX_I2(_mm256_cmpgt_epi32(k, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                 _mm256_cmpgt_epi32(k, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)));
}
OX_INLINE ox_f32x16 f32_load_n(const float *p, int n)
{ ox_i32x16 k = ox_first(n); return OX_F2(_mm256_maskload_ps(p, k.a), _mm256_maskload_ps(p + 8, k.b)); }
OX_INLINE void f32_store_n(float *p, ox_f32x16 v, int n)
{ ox_i32x16 k = ox_first(n); _mm256_maskstore_ps(p, k.a, v.a); _mm256_maskstore_ps(p + 8, k.b, v.b); }
OX_INLINE ox_f32x16 f32_load_f16(const uint16_t *p)
{ return OX_F2(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))); }
OX_INLINE void f32_store_f16(uint16_t *p, ox_f32x16 v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
OX_INLINE __m256 ox_bf16x8(const uint16_t *p)
{ return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16)); }
OX_INLINE ox_f32x16 f32_load_bf16(const uint16_t *p) { return OX_F2(ox_bf16x8(p), ox_bf16x8(p + 8)); }
OX_INLINE float f32_hsum(ox_f32x16 v)
{
    __m256 b = _mm256_add_ps(v.a, v.b);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
OX_INLINE float f32_hmax(ox_f32x16 v)
{
    __m256 b = _mm256_max_ps(v.a, v.b);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

/* ints */
OX_INLINE ox_i32x16 i32_load(const int32_t *p)
{ return OX_I2(_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8))); }
OX_INLINE void i32_store(int32_t *p, ox_i32x16 v)
{ _mm256_storeu_si256((__m256i *)p, v.a); _mm256_storeu_si256((__m256i *)(p + 8), v.b); }
OX_INLINE ox_i32x16 i32_set1(int32_t x) { __m256i v = _mm256_set1_epi32(x); return OX_I2(v, v); }
OX_INLINE ox_i32x16 i32_zero(void) { return OX_I2(_mm256_setzero_si256(), _mm256_setzero_si256()); }
OX_INLINE ox_i32x16 i32_add(ox_i32x16 x, ox_i32x16 y) { return OX_I2(_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)); }
OX_INLINE ox_i32x16 i32_sub(ox_i32x16 x, ox_i32x16 y) { return OX_I2(_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)); }
OX_INLINE ox_i32x16 i32_mul(ox_i32x16 x, ox_i32x16 y) { return OX_I2(_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)); }
OX_INLINE ox_i32x16 i32_and(ox_i32x16 x, ox_i32x16 y) { return OX_I2(_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)); }
OX_INLINE ox_i32x16 i32_or(ox_i32x16 x, ox_i32x16 y) { return OX_I2(_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)); }
OX_INLINE ox_i32x16 i32_shl(ox_i32x16 x, int n) { return OX_I2(_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)); }
OX_INLINE ox_i32x16 i32_shr(ox_i32x16 x, int n) { return OX_I2(_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)); }
OX_INLINE ox_f32x16 i32_to_f32(ox_i32x16 x) { return OX_F2(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)); }
OX_INLINE ox_i32x16 f32_to_i32(ox_f32x16 x) { return OX_I2(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)); }
OX_INLINE ox_f32x16 i32_as_f32(ox_i32x16 x) { return OX_F2(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)); }
OX_INLINE ox_i32x16 f32_as_i32(ox_f32x16 x) { return OX_I2(_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)); }
OX_INLINE void i32_store_i8(int8_t *p, ox_i32x16 x)
{
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}

#endif
