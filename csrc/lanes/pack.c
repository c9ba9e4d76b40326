/* Writes GGUF rows into panels: each format's codes and scales are gathered row by row, then 16 rows are woven into lanes.
 * Plain C, once per load; nothing is rounded: a panel says exactly what the file says. */
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

static void low_high(uint8_t *code, const uint8_t *nibbles, int n)      /* n low nibbles, then n high ones */
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

static void gather_Q6_K(ox_strand *s, const void *src)
{
    const ox_q6_k *b = src;
    for (int h = 0; h < 2; h++) {
        low_high(s->code + 128 * h, b->low + 64 * h, 64);
        for (int k = 0; k < 4; k++)
            for (int j = 0; j < 32; j++)
                s->code[128 * h + 32 * k + j] |= (uint8_t)((b->high[32 * h + j] >> 2 * k & 3) << 4);
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
    memcpy(s->side, b->d, 4);
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

static void four_quarters(uint8_t *code, const uint8_t *pairs)      /* 32 bytes: the low pairs of bits, then the next, ... */
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
    for (int u = 0; u < 8; u++) {
        low_high(s->code + 32 * u, b->nibbles + 16 * u, 16);
        s->scale[u] = (uint8_t)ox_iq4_xs_scale(b, u);
    }
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
            point4(s->code + 32 * u + 4 * k, ox_grid_iq3_xxs[b->point[8 * u + k]], ox_even_signs(word >> 7 * (k >> 1) & 127) >> 4 * (k & 1));
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

typedef void (*ox_gather)(ox_strand *s, const void *src);

static const ox_gather gathers[FORM_COUNT] = {
#define OX_FLOAT(name, bytes) NULL,
#define OX_FORM32(name, store, bits, off, side) gather_##name,
#define OX_FORM256(name, store, bits, off, head, side, unit) gather_##name,
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_FORM32
#undef OX_FORM256
};

enum {
#define OX_FORMAT(name, id, block, bytes) BLOCK_##name = block, BYTES_##name = bytes,
#include "formats.def"
#undef OX_FORMAT
};

const ox_form ox_forms[FORM_COUNT] = {
#define OX_FLOAT(name, bytes) { #name, 1, bytes, FAMILY_FLOAT, ACT_F32, 0, SIDE_NONE, HEAD_NONE },
#define OX_FORM32(name, store, bits, off, side) { #name, BLOCK_##name, BYTES_##name, FAMILY_32, ACT_Q8_32, store, side, HEAD_NONE },
#define OX_FORM256(name, store, bits, off, head, side, unit) { #name, BLOCK_##name, BYTES_##name, FAMILY_256, ACT_Q8_256, store, side, head },
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_FORM32
#undef OX_FORM256
};

int ox_form_from_name(const char *name)
{
    for (int i = 0; i < FORM_COUNT; i++)
        if (strcmp(ox_forms[i].name, name) == 0)
            return i;
    return -1;
}

int64_t ox_act_bytes(int act, int64_t cols)
{
    return OX_ROUND64(act == ACT_Q8_32 ? cols / 32 * ACT32_BYTES : act == ACT_Q8_256 ? cols / 256 * ACT256_BYTES : cols * 4);
}

static int64_t side_bytes(const ox_form *form, int64_t cols) { return OX_ROUND64(cols / form->block * OX_SIDE_BYTES(form->side)); }

int64_t ox_panel_bytes(const ox_form *form, int64_t cols)
{
    if (form->family == FAMILY_FLOAT)
        return OX_ROUND64(cols * 16 * form->bytes);
    int64_t codes = cols / 32 * OX_UNIT_BYTES(form->store);
    if (form->family == FAMILY_256)
        codes += cols / 256 * OX_HEAD_BYTES(form->head);
    return side_bytes(form, cols) + codes;
}

/* 32 columns of 16 strands into their planes (see panel.h). */
static void weave_unit(uint32_t *out, const ox_strand *s, int u, int store)
{
    for (int r = 0; r < 16; r++) {
        uint32_t w[8], mask = store == 8 ? 0 : store >= 4 ? 0x0f0f0f0fu : 0x03030303u;
        memcpy(w, s[r].code + 32 * u, 32);
        uint32_t *o = out + r;
        if (store == 8) {
            for (int g = 0; g < 8; g++)
                o[16 * g] = w[g];
            continue;
        }
        if (store >= 4) {
            for (int i = 0; i < 4; i++)
                o[16 * i] = (w[2 * i] & mask) | (w[2 * i + 1] & mask) << 4;
            o += 64;
        } else if (store >= 2) {
            for (int i = 0; i < 2; i++, o += 16)
                *o = (w[4 * i] & mask) | (w[4 * i + 1] & mask) << 2 | (w[4 * i + 2] & mask) << 4 | (w[4 * i + 3] & mask) << 6;
        }
        if (store == 6) {
            for (int i = 0; i < 2; i++)
                o[16 * i] = (w[4 * i] >> 4 & 0x03030303u) | (w[4 * i + 1] >> 2 & 0x0c0c0c0cu) | (w[4 * i + 2] & 0x30303030u)
                            | (w[4 * i + 3] << 2 & 0xc0c0c0c0u);
        } else if (store & 1) {
            uint32_t bit = 0;
            for (int g = 0; g < 8; g++)
                bit |= (w[g] >> (store - 1) & 0x01010101u) << g;
            *o = bit;
        }
    }
}

/* Value 4 q + k of a row goes to byte {0, 2, 1, 3}[k] of its dword of vector q. */
static uint32_t weave4(const uint8_t *v) { return (uint32_t)v[0] | (uint32_t)v[2] << 8 | (uint32_t)v[1] << 16 | (uint32_t)v[3] << 24; }

static void weave_head(uint32_t *out, const ox_strand *s, int head)
{
    for (int r = 0; r < 16; r++) {
        uint8_t v[16];
        memcpy(v, s[r].scale, 16);
        if (head == HEAD_8X6_MIN)
            memcpy(v + 8, s[r].min, 8);
        if (head == HEAD_16X4_MIN)
            for (int j = 0; j < 16; j++)
                v[j] = (uint8_t)(v[j] | s[r].min[j] << 4);
        uint32_t q0 = weave4(v), q1 = weave4(v + 4), q2 = weave4(v + 8), q3 = weave4(v + 12), m = 0x0f0f0f0fu, h = 0x03030303u;
        uint32_t *o = out + r;
        switch (head) {
        case HEAD_8X6_MIN: case HEAD_16X6:
            o[0] = (q0 & m) | (q1 & m) << 4;
            o[16] = (q2 & m) | (q3 & m) << 4;
            o[32] = (q0 >> 4 & h) | (q1 >> 4 & h) << 2 | (q2 >> 4 & h) << 4 | (q3 >> 4 & h) << 6;
            break;
        case HEAD_8X4:
            o[0] = q0 | q1 << 4;
            break;
        case HEAD_16X4:
            o[0] = q0 | q1 << 4;
            o[16] = q2 | q3 << 4;
            break;
        case HEAD_8X8:
            o[0] = q0, o[16] = q1;
            break;
        case HEAD_16X8: case HEAD_16X4_MIN:
            o[0] = q0, o[16] = q1, o[32] = q2, o[48] = q3;
            break;
        default:
            break;
        }
    }
}

static void weave_side(uint8_t *out, const ox_strand *s, int side)
{
    int size = OX_SIDE_SIZE(side), count = OX_SIDE_COUNT(side);
    for (int k = 0; k < count; k++)
        for (int r = 0; r < 16; r++)
            memcpy(out + (16 * k + r) * size, s[r].side + k * size, (size_t)size);
}

/* Squares of numbers are turned by perfect shuffles: log2(n) rounds of interleaving row i with row i + n/2. */
typedef uint16_t halves8 __attribute__((vector_size(16)));
typedef uint32_t words4 __attribute__((vector_size(16)));

static void turn_halves(halves8 *a)
{
    for (int round = 0; round < 3; round++) {
        halves8 b[8];
        for (int i = 0; i < 4; i++) {
            b[2 * i] = __builtin_shufflevector(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        memcpy(a, b, sizeof b);
    }
}

static void turn_words(words4 *a)
{
    for (int round = 0; round < 2; round++) {
        words4 b[4];
        for (int i = 0; i < 2; i++) {
            b[2 * i] = __builtin_shufflevector(a[i], a[i + 2], 0, 4, 1, 5);
            b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + 2], 2, 6, 3, 7);
        }
        memcpy(a, b, sizeof b);
    }
}

static void pack_float(uint8_t *out, const uint8_t *src, int64_t row_bytes, int64_t live, int64_t cols, int size)
{
    const int step = 16 / size;         /* columns that 16 bytes of a row hold = rows of a square */
    int64_t c = 0;
    for (; c + step <= cols; c += step, out += 256)
        for (int64_t r = 0; r < 16; r += step) {
            union { uint8_t row[8][16]; halves8 halves[8]; words4 words[4]; } square;
            for (int i = 0; i < step; i++) {
                if (r + i < live)
                    memcpy(square.row[i], src + (r + i) * row_bytes + c * size, 16);
                else
                    memset(square.row[i], 0, 16);
            }
            if (size == 2)
                turn_halves(square.halves);
            else
                turn_words(square.words);
            for (int i = 0; i < step; i++)
                memcpy(out + i * 16 * size + r * size, square.row[i], 16);
        }
    for (; c < cols; c++)
        for (int64_t r = 0; r < 16; r++, out += size) {
            if (r < live)
                memcpy(out, src + r * row_bytes + c * size, (size_t)size);
            else
                memset(out, 0, (size_t)size);
        }
}

static void pack_codes(const ox_form *form, ox_gather gather, uint8_t *panel, const uint8_t *src, int64_t row_bytes, int64_t live, int64_t cols)
{
    OX_ALIGN(64) ox_strand s[16];
    memset(s, 0, sizeof s);
    uint8_t *side = panel, *code = panel + side_bytes(form, cols);
    for (int64_t b = 0; b < cols / form->block; b++) {
        for (int64_t r = 0; r < live; r++)
            gather(s + r, src + r * row_bytes + b * form->bytes);
        weave_side(side, s, form->side);
        side += OX_SIDE_BYTES(form->side);
        if (form->family == FAMILY_256) {
            weave_head((uint32_t *)code, s, form->head);
            code += OX_HEAD_BYTES(form->head);
        }
        for (int u = 0; u < form->block / 32; u++, code += OX_UNIT_BYTES(form->store))
            weave_unit((uint32_t *)code, s, u, form->store);
    }
    memset(side, 0, (size_t)(side_bytes(form, cols) - (side - panel)));
}

void ox_pack(const ox_form *form, uint8_t *panels, const uint8_t *src, int64_t row_bytes, int64_t rows, int64_t cols, int64_t first, int64_t end)
{
    int64_t size = ox_panel_bytes(form, cols);
    for (int64_t p = first; p < end; p++) {
        int64_t live = rows - 16 * p < 16 ? rows - 16 * p : 16;
        const uint8_t *from = src + 16 * p * row_bytes;
        if (form->family == FAMILY_FLOAT && form->bytes == 2)
            pack_float(panels + p * size, from, row_bytes, live, cols, 2);
        else if (form->family == FAMILY_FLOAT)
            pack_float(panels + p * size, from, row_bytes, live, cols, 4);
        else
            pack_codes(form, gathers[form - ox_forms], panels + p * size, from, row_bytes, live, cols);
    }
}
