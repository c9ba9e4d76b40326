/* Floats to activation rows: int8 codes under one float scale per 32 or 256 columns, and the sums the tiles need, or bf16 (layout: panel.h).
 *
 * A block's scale is its largest magnitude / 127 and code = round(x * (127 / largest)), to nearest even: |code| <= 127, so that no dot
 * leaves 32 bits. A block whose largest magnitude is below 2^-100 is zero. A block holding an infinity or a NaN gets the scale NaN and
 * codes 0: it is seen in every result it enters, the same on every instruction set. */
#ifndef OX_LANES_ACT_H
#define OX_LANES_ACT_H
#include "lanes/panel.h"

/* The largest magnitude's bits order as integers do, and every NaN is above infinity. */
OX_INLINE ox_i32x16 act_magnitude(ox_f32x16 x) { return i32_and(f32_as_i32(x), i32_set1(0x7fffffff)); }

OX_INLINE float act_scale(int32_t largest_bits, float *inverse)
{
    float largest = ox_bits_to_f32((uint32_t)largest_bits);
    if (largest_bits >= 0x7f800000) {
        *inverse = 0.0f;
        return ox_bits_to_f32(0x7fc00000u);
    }
    if (largest < 0x1p-100f) {
        *inverse = 0.0f;
        return 0.0f;
    }
    *inverse = 127.0f / largest;
    return largest / 127.0f;
}

/* Codes of 16 columns. Of a block without finite scale only the zeros matter: NaN * 0 must not reach the conversion. */
OX_INLINE ox_i32x16 act_codes(const float *x, ox_f32x16 inverse) { return f32_to_i32(f32_mul(f32_load(x), inverse)); }

static void act_q8_32(uint8_t *out, const float *x, int64_t cols)
{
    for (int64_t b = 0; b < cols / 32; b++, out += ACT32_BYTES, x += 32) {
        float inverse, d = act_scale(i32_hmax(i32_max(act_magnitude(f32_load(x)), act_magnitude(f32_load(x + 16)))), &inverse), dsum;
        ox_i32x16 a = i32_zero(), z = i32_zero();
        if (inverse != 0.0f)
            a = act_codes(x, f32_set1(inverse)), z = act_codes(x + 16, f32_set1(inverse));
        i32_store_i8((int8_t *)out, a);
        i32_store_i8((int8_t *)out + 16, z);
        int32_t s0 = i32_hsum(a), s1 = i32_hsum(z), sum = s0 + s1, less = -sum;
        int16_t halves[2] = { (int16_t)s0, (int16_t)s1 };
        dsum = d * (float)sum;
        memcpy(out + ACT32_D, &d, 4);
        memcpy(out + ACT32_LESS, &less, 4);
        memcpy(out + ACT32_DSUM, &dsum, 4);
        memcpy(out + ACT32_HALVES, halves, 4);
    }
}

static void act_q8_256(uint8_t *out, const float *x, int64_t cols)
{
    for (int64_t b = 0; b < cols / 256; b++, out += ACT256_BYTES, x += 256) {
        ox_i32x16 most = i32_zero();
        for (int k = 0; k < 16; k++)
            most = i32_max(most, act_magnitude(f32_load(x + 16 * k)));
        float inverse, d = act_scale(i32_hmax(most), &inverse);
        OX_ALIGN(64) int32_t part[2][16] = { { 0 } }, pair[16];
        int16_t sum32[16];
        ox_f32x16 by = f32_set1(inverse);
        for (int k = 0; k < 16; k++) {
            ox_i32x16 a = inverse != 0.0f ? act_codes(x + 16 * k, by) : i32_zero();
            i32_store_i8((int8_t *)out + 16 * k, a);
            /* the sum of the codes below 16 bits of the sum of their magnitudes */
            part[k % 2][k / 2] = i32_hsum(i32_add(a, i32_shl(i32_max(a, i32_sub(i32_zero(), a)), 16)));
        }
        ox_i32x16 sum[2], size[2];
        for (int h = 0; h < 2; h++) {
            sum[h] = i32_shr(i32_shl(i32_load(part[h]), 16), 16);
            size[h] = i32_shr(i32_sub(i32_load(part[h]), sum[h]), 16);
        }
        ox_i32x16 both = i32_add(sum[0], sum[1]), sizes = i32_add(size[0], size[1]), magnitude = i32_max(both, i32_sub(i32_zero(), both));
        i32_store(pair, i32_or(i32_and(sum[0], i32_set1(0xffff)), i32_shl(sum[1], 16)));
        i32_store_i16(sum32, both);
        const int16_t largest[6] = { (int16_t)i32_hmax(i32_max(size[0], size[1])), (int16_t)i32_hmax(sizes),
                                     (int16_t)(i32_hmax(i32_add(sizes, magnitude)) / 2) };
        memcpy(out + ACT256_D, &d, 4);
        memcpy(out + ACT256_MOST16, largest, sizeof largest);
        memcpy(out + ACT256_SUM16, pair, 32);
        memcpy(out + ACT256_SUM32, sum32, 16);
    }
}

/* 16 numbers in bf16, to nearest even, as the low halves of lanes: zero below 2^-126, where a dot would take it for zero, and one NaN for all. */
OX_INLINE ox_i32x16 act_brain(ox_f32x16 x)
{
    ox_i32x16 bits = f32_as_i32(x), size = act_magnitude(x), one = i32_set1(1);
    ox_i32x16 number = i32_shr(i32_add(bits, i32_add(i32_set1(0x7fff), i32_and(i32_shr(bits, 16), one))), 16);
    ox_i32x16 normal = i32_shr(i32_sub(i32_set1(0x7fffff), size), 31), none = i32_shr(i32_sub(i32_set1(0x7f800000), size), 31);
    ox_i32x16 some = i32_shr(i32_sub(size, i32_set1(0x7f800001)), 31);
    return i32_or(i32_and(number, i32_and(normal, some)), i32_and(none, i32_set1(0x7fc0)));
}

static void act_bf16(uint8_t *out, const float *x, int64_t cols)
{
    int64_t c = 0;
    for (; c + 16 <= cols; c += 16)
        i32_store_i16(out + 2 * c, act_brain(f32_load(x + c)));
    if (c < cols) {
        int16_t rest[16];
        i32_store_i16(rest, act_brain(f32_load_n(x + c, (int)(cols - c))));
        memcpy(out + 2 * c, rest, (size_t)(cols - c + 1) / 2 * 4);
    }
}

static void act_f32_copy(uint8_t *out, const float *x, int64_t cols) { memcpy(out, x, (size_t)cols * 4); }

#endif
