/* The words over bf16 pairs where AVX512_BF16 has them as one instruction; in place of isa/avx512.h's, for a second set of functions.
 * vdpbf16ps adds the odd product, then the even one, each rounded to nearest even, and takes subnormal inputs and results as zero, whatever
 * MXCSR says. Its own flush is after rounding, as MXCSR's is: 96 million lanes of every kind on Zen 4, 128 million on Zen 5, none differed. */
OX_INLINE __m512 ox_dpbf16(__m512 c, __m512i w, __m512i x) { return _mm512_dpbf16_ps(c, (__m512bh)w, (__m512bh)x); }
#define ox_bf16x32 __m512i
#define bf16_load u8_load
#define bf16_of(pairs) (pairs)
#define bf16_set1 i32_set1
#define f32_dot2 ox_dpbf16
#define flush_begin() 0
#define flush_end(was) ((void)(was), 0)
#define tile_pairs dot_tile_pairs
#define tile_BF16 dot_tile_BF16
#define beside_BF16 dot_beside_BF16
#define wide_pairs dot_wide_pairs
#define wide_BF16 dot_wide_BF16
#define tile_tight dot_tile_tight
#define wide_tight dot_wide_tight
#define tile_TIGHT_BF16 dot_tile_TIGHT_BF16
#define beside_TIGHT_BF16 dot_beside_TIGHT_BF16
#define wide_TIGHT_BF16 dot_wide_TIGHT_BF16
#define OX_PAIRS_DOT
#undef OX_WIDE_PAIRS
