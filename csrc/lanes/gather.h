/* Each format's block re-expressed as codes and scales, one row at a time: what pack.c weaves into panels. Exact, nothing is rounded. */
#ifndef OX_LANES_GATHER_H
#define OX_LANES_GATHER_H
#include "lanes/panel.h"

#include "formats/iq1_m.h"
#include "formats/iq1_s.h"
#include "formats/iq2_s.h"
#include "formats/iq2_xs.h"
#include "formats/iq2_xxs.h"
#include "formats/iq3_s.h"
#include "formats/iq3_xxs.h"
#include "formats/iq4_nl.h"
#include "formats/iq4_xs.h"
#include "formats/mxfp4.h"
#include "formats/nvfp4.h"
#include "formats/q1_0.h"
#include "formats/q2_0.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q5_k.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"
#include "formats/q8_1.h"
#include "formats/q8_k.h"
#include "formats/tq1_0.h"
#include "formats/tq2_0.h"

/* One row of one file block, re-expressed. */
typedef struct {
    uint8_t code[256];
    uint8_t scale[16], min[16];
    uint8_t side[4];
} ox_strand;

static void low_high(uint8_t *restrict code, const uint8_t *restrict nibbles, int n)      /* n low nibbles, then n high ones */
{
    for (int j = 0; j < n; j++) {
        code[j] = nibbles[j] & 15;
        code[n + j] = nibbles[j] >> 4;
    }
}

static void gather_Q4_0(ox_strand *s, const void *src)
{
    const ox_q4_0 *b = src;
    low_high(s->code, b->nibbles, 16);
    memcpy(s->side, b->d, 2);
}

static void gather_Q5_0(ox_strand *s, const void *src)
{
    const ox_q5_0 *b = src;
    uint32_t high = ox_load32(b->high);
    low_high(s->code, b->nibbles, 16);
    for (int j = 0; j < 32; j++)
        s->code[j] |= (uint8_t)((high >> j & 1) << 4);
    memcpy(s->side, b->d, 2);
}

static void gather_Q8_0(ox_strand *s, const void *src)
{
    const ox_q8_0 *b = src;
    for (int j = 0; j < 32; j++)
        s->code[j] = (uint8_t)(b->q[j] + 128);
    memcpy(s->side, b->d, 2);
}

static void gather_Q4_K(ox_strand *s, const void *src)
{
    const ox_q4_k *b = src;
    for (int p = 0; p < 4; p++)
        low_high(s->code + 64 * p, b->nibbles + 32 * p, 32);
    ox_get_scales6(b->scales6, s->scale, s->min);
    memcpy(s->side, b->d, 4);
}

static void gather_Q5_K(ox_strand *s, const void *src)
{
    const ox_q5_k *b = src;
    for (int p = 0; p < 4; p++)
        low_high(s->code + 64 * p, b->nibbles + 32 * p, 32);
    for (int u = 0; u < 8; u++)
        for (int j = 0; j < 32; j++)
            s->code[32 * u + j] |= (uint8_t)((b->high[j] >> u & 1) << 4);
    ox_get_scales6(b->scales6, s->scale, s->min);
    memcpy(s->side, b->d, 4);
}

/* Sixteen bytes of a block as dwords: shifted together and masked, which compilers do not find for bytes. */
typedef uint32_t ox_bytes16 __attribute__((vector_size(16)));

static inline ox_bytes16 bytes16(const uint8_t *p)
{
    ox_bytes16 v;
    memcpy(&v, p, 16);
    return v;
}

static void gather_Q6_K(ox_strand *s, const void *src)
{
    const ox_q6_k *b = src;
    for (int h = 0; h < 4; h++) {               /* columns 128 (h / 2) + 32 k + 16 (h % 2) and 15 more */
        const uint8_t *low = b->low + 64 * (h >> 1) + 16 * (h & 1);
        ox_bytes16 first = bytes16(low), second = bytes16(low + 32), high = bytes16(b->high + 16 * h);
        ox_bytes16 code[4] = {
            (first & 0x0f0f0f0fu) | (high & 0x03030303u) << 4, (second & 0x0f0f0f0fu) | (high & 0x0c0c0c0cu) << 2,
            (first >> 4 & 0x0f0f0f0fu) | (high & 0x30303030u), (second >> 4 & 0x0f0f0f0fu) | (high >> 2 & 0x30303030u),
        };
        for (int k = 0; k < 4; k++)
            memcpy(s->code + 128 * (h >> 1) + 16 * (h & 1) + 32 * k, code + k, 16);
    }
    memcpy(s->scale, b->scale, 16);
    memcpy(s->side, b->d, 2);
}

static void gather_Q4_1(ox_strand *s, const void *src)
{
    const ox_q4_1 *b = src;
    low_high(s->code, b->nibbles, 16);
    memcpy(s->side, b->d, 4);
}

static void gather_Q5_1(ox_strand *s, const void *src)
{
    const ox_q5_1 *b = src;
    uint32_t high = ox_load32(b->high);
    low_high(s->code, b->nibbles, 16);
    for (int j = 0; j < 32; j++)
        s->code[j] |= (uint8_t)((high >> j & 1) << 4);
    memcpy(s->side, b->d, 4);
}

static void gather_Q8_1(ox_strand *s, const void *src)
{
    const ox_q8_1 *b = src;
    for (int j = 0; j < 32; j++)
        s->code[j] = (uint8_t)(b->q[j] + 128);
    memcpy(s->side, b->d, 2);
}

static void gather_IQ4_NL(ox_strand *s, const void *src)
{
    const ox_iq4_nl *b = src;
    low_high(s->code, b->nibbles, 16);
    memcpy(s->side, b->d, 2);
}

static void gather_MXFP4(ox_strand *s, const void *src)
{
    const ox_mxfp4 *b = src;
    low_high(s->code, b->nibbles, 16);
    s->side[0] = b->e;
}

static void gather_NVFP4(ox_strand *s, const void *src)
{
    const ox_nvfp4 *b = src;
    for (int k = 0; k < 4; k++) {
        low_high(s->code + 16 * k, b->nibbles + 8 * k, 8);
        s->side[k] = b->d[k] == 0x7f ? 0 : b->d[k] & 0x7f;      /* 0x7f is no number and reads as 0 */
    }
}

static void gather_Q1_0(ox_strand *s, const void *src)
{
    const ox_q1_0 *b = src;
    for (int j = 0; j < 128; j++)
        s->code[j] = b->bits[j >> 3] >> (j & 7) & 1;
    memcpy(s->side, b->d, 2);
}

static void gather_Q2_0(ox_strand *s, const void *src)
{
    const ox_q2_0 *b = src;
    for (int j = 0; j < 64; j++)
        s->code[j] = b->pairs[j >> 2] >> 2 * (j & 3) & 3;
    memcpy(s->side, b->d, 2);
}

static void four_quarters(uint8_t *restrict code, const uint8_t *restrict pairs)      /* 32 bytes: the low pairs of bits, then the next, ... */
{
    for (int k = 0; k < 4; k++)
        for (int j = 0; j < 32; j++)
            code[32 * k + j] = pairs[j] >> 2 * k & 3;
}

static void gather_Q2_K(ox_strand *s, const void *src)
{
    const ox_q2_k *b = src;
    four_quarters(s->code, b->pairs);
    four_quarters(s->code + 128, b->pairs + 32);
    for (int k = 0; k < 16; k++) {
        s->scale[k] = b->scales[k] & 15;
        s->min[k] = b->scales[k] >> 4;
    }
    memcpy(s->side, b->d, 4);
}

static void gather_Q3_K(ox_strand *s, const void *src)
{
    const ox_q3_k *b = src;
    four_quarters(s->code, b->pairs);
    four_quarters(s->code + 128, b->pairs + 32);
    for (int u = 0; u < 8; u++)
        for (int j = 0; j < 32; j++)
            s->code[32 * u + j] |= (uint8_t)((b->high[j] >> u & 1) << 2);
    ox_q3_k_scales(b, (int8_t *)s->scale);
    for (int k = 0; k < 16; k++)
        s->scale[k] = (uint8_t)(s->scale[k] + 32);
    memcpy(s->side, b->d, 2);
}

static void gather_Q8_K(ox_strand *s, const void *src)
{
    const ox_q8_k *b = src;
    for (int j = 0; j < 256; j++)
        s->code[j] = (uint8_t)(b->q[j] + 128);
    memcpy(s->side, b->d, 4);
}

static void gather_IQ4_XS(ox_strand *s, const void *src)
{
    const ox_iq4_xs *b = src;
    for (int u = 0; u < 8; u++)
        low_high(s->code + 32 * u, b->nibbles + 16 * u, 16);
    for (int u = 0; u < 8; u++)
        s->scale[u] = (uint8_t)ox_iq4_xs_scale(b, u);
    memcpy(s->side, b->d, 2);
}

static void point8(uint8_t *code, unsigned point, unsigned signs)   /* 8 coordinates of 2 bits, a sign above each */
{
    for (int j = 0; j < 8; j++)
        code[j] = (uint8_t)((point >> 2 * j & 3) | (signs >> j & 1) << 2);
}

static void point4(uint8_t *code, unsigned point, unsigned signs)   /* 4 coordinates of 3 bits, a sign above each */
{
    for (int j = 0; j < 4; j++)
        code[j] = (uint8_t)((point >> 3 * j & 7) | (signs >> j & 1) << 3);
}

static void gather_IQ3_S(ox_strand *s, const void *src)
{
    const ox_iq3_s *b = src;
    for (int p = 0; p < 64; p++)
        point4(s->code + 4 * p, ox_grid_iq3_s[b->low[p] | (b->high[p >> 3] >> (p & 7) & 1) << 8], b->signs[p >> 1] >> 4 * (p & 1));
    for (int k = 0; k < 8; k++)
        s->scale[k] = b->scales[k >> 1] >> 4 * (k & 1) & 15;
    memcpy(s->side, b->d, 2);
}

static void gather_IQ3_XXS(ox_strand *s, const void *src)
{
    const ox_iq3_xxs *b = src;
    for (int u = 0; u < 8; u++) {
        uint32_t word = ox_load32(b->signs_scale[u]);
        for (int k = 0; k < 8; k++)
            point4(s->code + 32 * u + 4 * k, ox_grid_iq3_xxs[b->point[8 * u + k]],
                    ox_even_signs(word >> 7 * (k >> 1) & 127) >> 4 * (k & 1));
        s->scale[u] = (uint8_t)(word >> 28);
    }
    memcpy(s->side, b->d, 2);
}

static void gather_IQ2_S(ox_strand *s, const void *src)
{
    const ox_iq2_s *b = src;
    for (int p = 0; p < 32; p++)
        point8(s->code + 8 * p, ox_grid_iq2_s[b->low[p] | (b->high[p >> 2] >> 2 * (p & 3) & 3) << 8], b->signs[p]);
    for (int k = 0; k < 16; k++)
        s->scale[k] = b->scales[k >> 1] >> 4 * (k & 1) & 15;
    memcpy(s->side, b->d, 2);
}

static void gather_IQ2_XS(ox_strand *s, const void *src)
{
    const ox_iq2_xs *b = src;
    for (int p = 0; p < 32; p++) {
        unsigned word = ox_load16(b->points[p]);
        point8(s->code + 8 * p, ox_grid_iq2_xs[word & 511], ox_even_signs(word >> 9));
    }
    for (int k = 0; k < 16; k++)
        s->scale[k] = b->scales[k >> 1] >> 4 * (k & 1) & 15;
    memcpy(s->side, b->d, 2);
}

static void gather_IQ2_XXS(ox_strand *s, const void *src)
{
    const ox_iq2_xxs *b = src;
    for (int u = 0; u < 8; u++) {
        uint32_t word = ox_load32(b->groups[u].signs_scale);
        for (int k = 0; k < 4; k++)
            point8(s->code + 32 * u + 8 * k, ox_grid_iq2_xxs[b->groups[u].point[k]], ox_even_signs(word >> 7 * k & 127));
        s->scale[u] = (uint8_t)(word >> 28);
    }
    memcpy(s->side, b->d, 2);
}

static void gather_IQ1_M(ox_strand *s, const void *src)
{
    const ox_iq1_m *b = src;
    uint16_t d = 0;
    for (int p = 0; p < 32; p++) {
        unsigned nibble = b->high[p >> 1] >> 4 * (p & 1) & 15;
        point8(s->code + 8 * p, ox_grid_iq1[b->low[p] | (nibble & 7) << 8], nibble & 8 ? 255 : 0);      /* the shift, not a sign */
    }
    for (int k = 0; k < 16; k++)
        s->scale[k] = ox_load16(b->scales[k >> 2]) >> 3 * (k & 3) & 7;
    for (int w = 0; w < 4; w++)
        d |= (uint16_t)(ox_load16(b->scales[w]) >> 12 << 4 * w);
    memcpy(s->side, &d, 2);
}

static void gather_IQ1_S(ox_strand *s, const void *src)
{
    const ox_iq1_s *b = src;
    for (int u = 0; u < 8; u++) {
        unsigned word = ox_load16(b->high[u]);
        for (int k = 0; k < 4; k++)
            point8(s->code + 32 * u + 8 * k, ox_grid_iq1[b->low[4 * u + k] | (word >> 3 * k & 7) << 8], word >> 15 ? 255 : 0);
        s->scale[u] = word >> 12 & 7;
    }
    memcpy(s->side, b->d, 2);
}

static void digits(uint8_t *code, const uint8_t *bytes, int count, int k)
{
    for (int j = 0; j < count; j++)
        code[j] = (uint8_t)((uint8_t)(bytes[j] * ox_powers_of_3[k]) * 3 >> 8);
}

static void gather_TQ1_0(ox_strand *s, const void *src)
{
    const ox_tq1_0 *b = src;
    for (int k = 0; k < 5; k++) {
        digits(s->code + 32 * k, b->fives, 32, k);
        digits(s->code + 160 + 16 * k, b->fives + 32, 16, k);
        if (k < 4)
            digits(s->code + 240 + 4 * k, b->fours, 4, k);
    }
    memcpy(s->side, b->d, 2);
}

static void gather_TQ2_0(ox_strand *s, const void *src)
{
    const ox_tq2_0 *b = src;
    four_quarters(s->code, b->pairs);
    four_quarters(s->code + 128, b->pairs + 32);
    memcpy(s->side, b->d, 2);
}

#endif
