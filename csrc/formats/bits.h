/* Reads the small numbers that blocks are made of: little-endian words, halves, brain floats, e8m0 and e4m3 scales.
 *
 * Blocks are declared as bytes only (alignment 1), because a row may start anywhere in a mapped file. No function here depends on the
 * rounding of denormals, so a host that flushes them to zero still gets the same floats. */
#ifndef OX_FORMATS_BITS_H
#define OX_FORMATS_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint16_t ox_load16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t ox_load32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void ox_store16(uint8_t *p, unsigned v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void ox_store32(uint8_t *p, uint32_t v) {
    ox_store16(p, v & 0xffff);
    ox_store16(p + 2, v >> 16);
}

static inline float ox_as_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint32_t ox_as_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

/* IEEE binary16 -> f32, exact. Both candidates are computed and one is masked in, so that loops over it vectorise. */
static inline float ox_half_to_float(uint16_t h) {
    uint32_t mag = (uint32_t)(h & 0x7fff) << 13;
    uint32_t big = mag + (112u << 23) + (-(uint32_t)(mag >= 0x1fu << 23) & 112u << 23); /* re-bias; infinities and NaN once more */
    uint32_t small = ox_as_bits(ox_as_float((113u << 23) + mag) - ox_as_float(113u << 23)); /* subnormal: (1 + f) 2^-14 - 2^-14 */
    uint32_t is_small = -(uint32_t)(mag < 1u << 23);
    return ox_as_float((uint32_t)(h & 0x8000) << 16 | (small & is_small) | (big & ~is_small));
}

/* f32 -> binary16, to nearest, ties to even; what is too big becomes infinity. */
static inline uint16_t ox_float_to_half(float f) {
    uint32_t bits = ox_as_bits(f), mag = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    if (mag > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x1ff)); /* NaN stays NaN, made quiet */
    if (mag >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (mag < 113u << 23) /* below 2^-14: adding 0.5 lets the adder round to multiples of 2^-24 */
        return (uint16_t)(sign | (ox_as_bits(ox_as_float(mag) + 0.5f) - ox_as_bits(0.5f)));
    return (uint16_t)(sign | (mag + 0xfff + (mag >> 13 & 1) - (112u << 23)) >> 13);
}

static inline float ox_half(const uint8_t *p) {
    return ox_half_to_float(ox_load16(p));
}

static inline uint16_t ox_float_to_brain(float f) {
    uint32_t bits = ox_as_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Half of the power of two that an e8m0 byte names (2^(e - 128)), to go with tables of doubled e2m1 values. */
static inline float ox_e8m0_half(uint8_t e) {
    return e < 2 ? ox_as_float(0x00200000u << e) : ox_as_float((uint32_t)(e - 1) << 23);
}

/* Half of an unsigned e4m3 number (bias 7, subnormals; 0x7f is no number and reads as 0), for the same tables. */
static inline float ox_ue4m3_half(uint8_t v) {
    int e = v >> 3 & 15, m = v & 7;
    if (v == 0x7f) return 0.0f;
    if (e == 0) return (float)m * 0x1p-10f;
    return (1.0f + (float)m / 8.0f) * ox_as_float((uint32_t)(e - 8 + 127) << 23);
}

/* 8 six-bit scales and 8 six-bit minima in 12 bytes, as Q4_K and Q5_K store them (letters: one per sub-block; capitals: sub-blocks 0..3)
 *
 *   byte 0..3    e1 e0 S5..S0 of sub-block 0..3, with the two high bits of scale 4..7 on top
 *   byte 4..7    the same for the minima
 *   byte 8..11   low nibble: low 4 bits of scale 4..7; high nibble: low 4 bits of minimum 4..7 */
static inline void ox_get_scales6(const uint8_t *p, uint8_t *scale, uint8_t *min) {
    uint32_t w[3], s[2], m[2];      /* four bytes at once: no bit leaves its byte */
    memcpy(w, p, 12);
    s[0] = w[0] & 0x3f3f3f3fu, s[1] = (w[2] & 0x0f0f0f0fu) | (w[0] >> 2 & 0x30303030u);
    m[0] = w[1] & 0x3f3f3f3fu, m[1] = (w[2] >> 4 & 0x0f0f0f0fu) | (w[1] >> 2 & 0x30303030u);
    memcpy(scale, s, 8);
    memcpy(min, m, 8);
}

/* The same from small integers held in floats. */
static inline void ox_put_scales6(uint8_t *p, const float *scales, const float *mins) {
    uint8_t scale[8], min[8];
    for (int j = 0; j < 8; j++) {
        scale[j] = (uint8_t)scales[j];
        min[j] = (uint8_t)mins[j];
    }
    for (int j = 0; j < 4; j++) {
        p[j] = (uint8_t)(scale[j] | scale[4 + j] >> 4 << 6);
        p[4 + j] = (uint8_t)(min[j] | min[4 + j] >> 4 << 6);
        p[8 + j] = (uint8_t)((scale[4 + j] & 15) | (min[4 + j] & 15) << 4);
    }
}

#endif
