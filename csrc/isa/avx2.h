/* The vocabulary on AVX2 with FMA and F16C: every 16-lane value is two 256-bit registers. See isa/scalar.h for the words. */
#ifndef OX_ISA_AVX2_H
#define OX_ISA_AVX2_H
#include "ox.h"
#include "isa/mxcsr.h"
#include <immintrin.h>

#define OX_ISA_NAME avx2

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
OX_INLINE ox_f32x16 f32_abs(ox_f32x16 x)
{ __m256 s = _mm256_set1_ps(-0.0f); return OX_F2(_mm256_andnot_ps(s, x.a), _mm256_andnot_ps(s, x.b)); }
OX_INLINE ox_f32x16 f32_neg(ox_f32x16 x)
{ __m256 s = _mm256_set1_ps(-0.0f); return OX_F2(_mm256_xor_ps(x.a, s), _mm256_xor_ps(x.b, s)); }
OX_INLINE ox_f32x16 f32_sqrt(ox_f32x16 x) { return OX_F2(_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)); }
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
/* Of memory, where it stands: the compiler neither moves it nor takes another instruction. Wide tiles of codes without an offset, one thread of Zen 3 in cache,
 * GMAC/s: Q4_K 117 to 122, Q5_K 104 to 110, Q2_K 92 to 98; with an offset they lose 1 % (lanes/parts.h). */
OX_INLINE ox_i32x16 i32_spread(const uint8_t *p)
{
    __m256 v;
    __asm__("vbroadcastss %1, %0" : "=x"(v) : "m"(*(const uint8_t (*)[4])p));
    return OX_I2(_mm256_castps_si256(v), _mm256_castps_si256(v));
}
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

/* code bytes and tiles. Without a u8 x s8 dot, maddubs adds two products into 16 bits; it never saturates here: codes up to 15, 31, 63
 * let 8, 4, 2 of its results be summed in 16 bits first, codes up to 127 stand alone.
 * Codes of 8 bits are centred (code - 128) and lend their sign to x: |code - 128| <= 128, |x| <= 127, two products <= 32,512.
 * One row through a table of 8 bits is cheaper in two dots of few bits (OX_DOT8_RAMP, tables.h): from the second cache of Zen 4
 * IQ4_XS 19.9 and 22.8 GB/s, a token of the 1B on one thread 41.0 and 37.7 ms. */
#ifdef OX_AVX_VNNI
#define OX_DOT8_CENTRE 0
#else
#define OX_DOT8_CENTRE 128
#define OX_DOT8_RAMP 1
#endif

OX_INLINE ox_u8x64 u8_load(const void *p)
{ return (ox_u8x64){ _mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1) }; }
OX_INLINE void u8_store(void *p, ox_u8x64 v) { _mm256_storeu_si256((__m256i *)p, v.a); _mm256_storeu_si256((__m256i *)p + 1, v.b); }
OX_INLINE ox_u8x64 u8_low4(ox_u8x64 v)
{ __m256i k = _mm256_set1_epi8(15); return (ox_u8x64){ _mm256_and_si256(v.a, k), _mm256_and_si256(v.b, k) }; }
OX_INLINE ox_u8x64 u8_field(ox_u8x64 v, int from, int mask)
{
    __m256i k = _mm256_set1_epi8((char)mask);
    return (ox_u8x64){ _mm256_and_si256(_mm256_srli_epi16(v.a, from), k), _mm256_and_si256(_mm256_srli_epi16(v.b, from), k) };
}
OX_INLINE ox_u8x64 u8_high4(ox_u8x64 v) { return u8_field(v, 4, 15); }
OX_INLINE __m256i ox_put32(__m256i a, __m256i h, int from, int to, __m256i k)
{ return _mm256_or_si256(a, _mm256_and_si256(from >= to ? _mm256_srli_epi16(h, from - to) : _mm256_slli_epi16(h, to - from), k)); }
OX_INLINE ox_u8x64 u8_put(ox_u8x64 v, ox_u8x64 h, int from, int to, int mask)
{ __m256i k = _mm256_set1_epi8((char)mask); return (ox_u8x64){ ox_put32(v.a, h.a, from, to, k), ox_put32(v.b, h.b, from, to, k) }; }
OX_INLINE ox_u8x64 u8_table(const uint8_t *t16)
{ __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)t16)); return (ox_u8x64){ t, t }; }
OX_INLINE ox_u8x64 u8_lookup(ox_u8x64 table, ox_u8x64 v)
{ return (ox_u8x64){ _mm256_shuffle_epi8(table.a, v.a), _mm256_shuffle_epi8(table.b, v.b) }; }

OX_INLINE ox_i32x16 u8_zip_low(ox_u8x64 low, ox_u8x64 high)
{ return OX_I2(_mm256_unpacklo_epi8(low.a, high.a), _mm256_unpacklo_epi8(low.b, high.b)); }
OX_INLINE ox_i32x16 u8_zip_high(ox_u8x64 low, ox_u8x64 high)
{ return OX_I2(_mm256_unpackhi_epi8(low.a, high.a), _mm256_unpackhi_epi8(low.b, high.b)); }

OX_INLINE ox_i32x16 i32_load_u8(const uint8_t *p)
{ return OX_I2(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))); }
OX_INLINE ox_i32x16 i32_load_i8(const int8_t *p)
{ return OX_I2(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)),
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))); }
OX_INLINE ox_i32x16 i32_load_i16(const void *p)
{
    const __m128i *q = (const __m128i *)p;
    return OX_I2(_mm256_cvtepi16_epi32(_mm_loadu_si128(q)), _mm256_cvtepi16_epi32(_mm_loadu_si128(q + 1)));
}
OX_INLINE ox_i32x16 i32_max(ox_i32x16 x, ox_i32x16 y) { return OX_I2(_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)); }
OX_INLINE int32_t i32_hmax(ox_i32x16 x)
{
    __m256i v = _mm256_max_epi32(x.a, x.b);
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
OX_INLINE int32_t i32_hsum(ox_i32x16 x)
{
    __m256i v = _mm256_add_epi32(x.a, x.b);
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

OX_INLINE ox_i32x16 pairs_even(ox_u8x64 v)
{ return OX_I2(_mm256_srai_epi16(_mm256_slli_epi16(v.a, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(v.b, 8), 8)); }
OX_INLINE ox_i32x16 pairs_odd(ox_u8x64 v) { return OX_I2(_mm256_srai_epi16(v.a, 8), _mm256_srai_epi16(v.b, 8)); }
OX_INLINE ox_i32x16 i32_dot_pairs(ox_i32x16 c, ox_i32x16 x, ox_i32x16 y)
{ return OX_I2(_mm256_add_epi32(c.a, _mm256_madd_epi16(x.a, y.a)), _mm256_add_epi32(c.b, _mm256_madd_epi16(x.b, y.b))); }
OX_INLINE ox_i32x16 pairs_less(ox_i32x16 x, int n)
{ __m256i k = _mm256_set1_epi16((short)n); return OX_I2(_mm256_sub_epi16(x.a, k), _mm256_sub_epi16(x.b, k)); }
OX_INLINE ox_i32x16 pairs_odd_numbers(ox_i32x16 x)
{
    __m256i k = _mm256_set1_epi16(1);
    return OX_I2(_mm256_add_epi16(_mm256_add_epi16(x.a, x.a), k), _mm256_add_epi16(_mm256_add_epi16(x.b, x.b), k));
}

/* bf16 pairs, widened to floats; isa/mxcsr.h flushes. */
typedef struct { ox_f32x16 even, odd; } ox_bf16x32;
OX_INLINE ox_bf16x32 ox_widen(__m256i a, __m256i b)
{
    __m256i high = _mm256_set1_epi32((int)0xffff0000);
    return (ox_bf16x32){ OX_F2(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))),
                         OX_F2(_mm256_castsi256_ps(_mm256_and_si256(a, high)), _mm256_castsi256_ps(_mm256_and_si256(b, high))) };
}
OX_INLINE ox_bf16x32 bf16_load(const void *p)
{ return ox_widen(_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)); }
OX_INLINE ox_bf16x32 bf16_of(ox_i32x16 pairs) { return ox_widen(pairs.a, pairs.b); }
OX_INLINE ox_bf16x32 bf16_set1(int32_t pair) { __m256i v = _mm256_set1_epi32(pair); return ox_widen(v, v); }
OX_INLINE ox_f32x16 f32_dot2(ox_f32x16 c, ox_bf16x32 w, ox_bf16x32 x) { return f32_fma(w.even, x.even, f32_fma(w.odd, x.odd, c)); }
OX_INLINE void i32_store_i16(void *p, ox_i32x16 x)
{ _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8)); }

/* gcc would turn a chain of additions into a tree and keep all of its leaves, which 16 registers do not hold: to it, this changes v. */
OX_INLINE ox_i32x16 i32_settled(ox_i32x16 v) { __asm__("" : "+x"(v.a), "+x"(v.b)); return v; }
OX_INLINE __m256i ox_x4(const int8_t *x) { int32_t v; memcpy(&v, x, 4); return _mm256_set1_epi32(v); }
#ifdef OX_AVX_VNNI
/* With dpbusd on 256 bits (AVX-VNNI) codes of every size are one instruction per 4 columns. */
typedef ox_i32x16 ox_scale;                                     /* the scale as a 32-bit number */
OX_INLINE ox_scale scale_low(ox_i32x16 pairs) { return i32_shr(i32_shl(pairs, 16), 16); }
OX_INLINE ox_scale scale_high(ox_i32x16 pairs) { return i32_shr(pairs, 16); }
OX_INLINE ox_i32x16 i32_dot16(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits)
{
    (void)bits;
    for (int g = 0; g < 4; g++) {
        __m256i v = ox_x4(x + 4 * g);
        c = OX_I2(_mm256_dpbusd_avx_epi32(c.a, w[g].a, v), _mm256_dpbusd_avx_epi32(c.b, w[g].b, v));
    }
    return c;
}
OX_INLINE ox_i32x16 i32_dot16_scaled(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits, ox_scale s)
{ return i32_add(c, i32_mul(i32_dot16(i32_zero(), w, x, bits), s)); }
OX_INLINE ox_i32x16 i32_dot32_scaled(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits, ox_scale s)
{ return i32_add(c, i32_mul(i32_dot16(i32_dot16(i32_zero(), w, x, bits), w + 4, x + 16, bits), s)); }
/* Sums of byte products in the making (lanes/parts.h): here in 32 bits. `off`: w is the signed byte, x the unsigned one. */
#define OX_PART_WORDS 0
#define OX_PART_GROUPS(bits, off) 8
typedef ox_i32x16 ox_part;
OX_INLINE ox_part part_zero(void) { return i32_zero(); }
OX_INLINE ox_part part_dot4(ox_part p, ox_u8x64 w, ox_i32x16 x, int off)
{
    return off ? OX_I2(_mm256_dpbusd_avx_epi32(p.a, x.a, w.a), _mm256_dpbusd_avx_epi32(p.b, x.b, w.b))
               : OX_I2(_mm256_dpbusd_avx_epi32(p.a, w.a, x.a), _mm256_dpbusd_avx_epi32(p.b, w.b, x.b));
}
OX_INLINE ox_part part_neg(ox_part p) { return i32_sub(i32_zero(), p); }
OX_INLINE ox_i32x16 part_sum(ox_part p) { return p; }
OX_INLINE ox_i32x16 part_scaled(ox_i32x16 c, ox_part p, ox_scale s) { return i32_add(c, i32_mul(p, s)); }
#else
typedef ox_i32x16 ox_scale;                                     /* the scale twice, as a pair: madd_epi16 widens and scales at once */
OX_INLINE __m256i ox_twice(__m256i v) { return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(v, 16)); }
OX_INLINE ox_scale scale_low(ox_i32x16 pairs) { return OX_I2(ox_twice(pairs.a), ox_twice(pairs.b)); }
OX_INLINE ox_scale scale_high(ox_i32x16 pairs)
{ return OX_I2(ox_twice(_mm256_srli_epi32(pairs.a, 16)), ox_twice(_mm256_srli_epi32(pairs.b, 16))); }

/* One half (8 rows) of 16 columns: the sum of products times the pair `s` (1, 1 or a scale twice), added to c. */
OX_INLINE __m256i ox_half16(__m256i c, __m256i w0, __m256i w1, __m256i w2, __m256i w3, __m256i x0, __m256i x1, __m256i x2, __m256i x3,
                            int bits, __m256i s)
{
    if (bits == 8) {
        __m256i k = _mm256_set1_epi8((char)0x80);
        w0 = _mm256_xor_si256(w0, k), w1 = _mm256_xor_si256(w1, k), w2 = _mm256_xor_si256(w2, k), w3 = _mm256_xor_si256(w3, k);
        x0 = _mm256_sign_epi8(x0, w0), x1 = _mm256_sign_epi8(x1, w1), x2 = _mm256_sign_epi8(x2, w2), x3 = _mm256_sign_epi8(x3, w3);
        w0 = _mm256_abs_epi8(w0), w1 = _mm256_abs_epi8(w1), w2 = _mm256_abs_epi8(w2), w3 = _mm256_abs_epi8(w3);
    }
    __m256i p0 = _mm256_maddubs_epi16(w0, x0), p1 = _mm256_maddubs_epi16(w1, x1);
    __m256i p2 = _mm256_maddubs_epi16(w2, x2), p3 = _mm256_maddubs_epi16(w3, x3);
    if (bits <= 5) {
        p0 = _mm256_add_epi16(_mm256_add_epi16(p0, p1), _mm256_add_epi16(p2, p3));
        return _mm256_add_epi32(c, _mm256_madd_epi16(p0, s));
    }
    if (bits == 6) {
        p0 = _mm256_add_epi16(p0, p1), p2 = _mm256_add_epi16(p2, p3);
        return _mm256_add_epi32(c, _mm256_add_epi32(_mm256_madd_epi16(p0, s), _mm256_madd_epi16(p2, s)));
    }
    p0 = _mm256_add_epi32(_mm256_madd_epi16(p0, s), _mm256_madd_epi16(p1, s));
    p2 = _mm256_add_epi32(_mm256_madd_epi16(p2, s), _mm256_madd_epi16(p3, s));
    return _mm256_add_epi32(c, _mm256_add_epi32(p0, p2));
}
OX_INLINE ox_i32x16 i32_dot16_scaled(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits, ox_scale s)
{
    __m256i x0 = ox_x4(x), x1 = ox_x4(x + 4), x2 = ox_x4(x + 8), x3 = ox_x4(x + 12);
    return OX_I2(ox_half16(c.a, w[0].a, w[1].a, w[2].a, w[3].a, x0, x1, x2, x3, bits, s.a),
                 ox_half16(c.b, w[0].b, w[1].b, w[2].b, w[3].b, x0, x1, x2, x3, bits, s.b));
}
OX_INLINE ox_i32x16 i32_dot16(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits)
{ __m256i one = _mm256_set1_epi16(1); return i32_dot16_scaled(c, w, x, bits, OX_I2(one, one)); }
OX_INLINE ox_i32x16 i32_dot32_scaled(ox_i32x16 c, const ox_u8x64 *w, const int8_t *x, int bits, ox_scale s)
{ return i32_dot16_scaled(i32_dot16_scaled(c, w, x, bits, s), w + 4, x + 16, bits, s); }
/* Several rows of x share what is made of a code, and gcc keeps the order that saves registers (lanes/tiles.h: dots_16). Codes of 8 bits are signs and
 * magnitudes. */
#define OX_DOTS_SHARED 1
typedef struct { ox_u8x64 sign, size; } ox_signed;
OX_INLINE ox_signed signed_of(ox_u8x64 w)
{
    __m256i k = _mm256_set1_epi8((char)0x80), a = _mm256_xor_si256(w.a, k), b = _mm256_xor_si256(w.b, k);
    return (ox_signed){ { a, b }, { _mm256_abs_epi8(a), _mm256_abs_epi8(b) } };
}
OX_INLINE ox_i32x16 i32_dot4_signed(ox_i32x16 c, ox_signed w, ox_i32x16 x, ox_scale s)
{
    __m256i a = _mm256_maddubs_epi16(w.size.a, _mm256_sign_epi8(x.a, w.sign.a)), b = _mm256_maddubs_epi16(w.size.b, _mm256_sign_epi8(x.b, w.sign.b));
    return i32_settled(i32_dot_pairs(c, OX_I2(a, b), s));
}
/* Sums of byte products in the making (lanes/parts.h): here in 16 bits, two a lane. `off`: w is the signed byte, x the unsigned one. */
#define OX_PART_WORDS 1
#define OX_PART_GROUPS(bits, off) ((off) ? (bits) <= 5 ? 8 : (bits) == 6 ? 4 : 2 : (bits) == 4 ? 8 : (bits) == 5 ? 4 : (bits) == 6 ? 2 : 1)
typedef ox_i32x16 ox_part;
OX_INLINE ox_part part_zero(void) { return i32_zero(); }
OX_INLINE ox_part part_dot4(ox_part p, ox_u8x64 w, ox_i32x16 x, int off)
{
    __m256i a = off ? _mm256_maddubs_epi16(x.a, w.a) : _mm256_maddubs_epi16(w.a, x.a);
    __m256i b = off ? _mm256_maddubs_epi16(x.b, w.b) : _mm256_maddubs_epi16(w.b, x.b);
    return i32_settled(OX_I2(_mm256_add_epi16(p.a, a), _mm256_add_epi16(p.b, b)));
}
OX_INLINE ox_part part_neg(ox_part p)
{ return OX_I2(_mm256_sub_epi16(_mm256_setzero_si256(), p.a), _mm256_sub_epi16(_mm256_setzero_si256(), p.b)); }
OX_INLINE ox_i32x16 part_sum(ox_part p) { __m256i k = _mm256_set1_epi16(1); return OX_I2(_mm256_madd_epi16(p.a, k), _mm256_madd_epi16(p.b, k)); }
OX_INLINE ox_i32x16 part_scaled(ox_i32x16 c, ox_part p, ox_scale s) { return i32_dot_pairs(c, p, s); }
#endif

OX_INLINE void part_store(void *p, ox_part v) { i32_store((int32_t *)p, v); }
OX_INLINE ox_part part_load(const void *p) { return i32_load((const int32_t *)p); }
OX_INLINE ox_u8x64 u8_less(ox_u8x64 v, int n)
{ __m256i k = _mm256_set1_epi8((char)n); return (ox_u8x64){ _mm256_sub_epi8(v.a, k), _mm256_sub_epi8(v.b, k) }; }
OX_INLINE ox_i32x16 pairs_mul(ox_i32x16 x, ox_i32x16 y) { return OX_I2(_mm256_mullo_epi16(x.a, y.a), _mm256_mullo_epi16(x.b, y.b)); }
/* 32 columns of x: as bytes x + 128; as 16-bit numbers in the order of pairs_even and pairs_odd, by turns per 4 columns. */
OX_INLINE void act_unsigned(uint8_t *to, const uint8_t *x)
{ _mm256_storeu_si256((__m256i *)to, _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)x), _mm256_set1_epi8((char)0x80))); }
OX_INLINE void act_pairs(uint8_t *to, const uint8_t *x)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)x), e = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), o = _mm256_srai_epi16(v, 8);
    __m256i a = _mm256_unpacklo_epi32(e, o), b = _mm256_unpackhi_epi32(e, o);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256((__m256i *)to + 1, _mm256_permute2x128_si256(a, b, 0x31));
}

#endif
