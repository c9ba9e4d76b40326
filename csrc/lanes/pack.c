/* Writes GGUF rows into panels: each format's codes and scales are gathered row by row (gather.h), then 16 rows are woven into lanes.
 * Plain C, once per load; nothing is rounded: a panel says exactly what the file says. */
#include "lanes/gather.h"

typedef void (*ox_gather)(ox_strand *s, const void *src);

static const ox_gather gathers[FORM_COUNT] = {
#define OX_FLOAT(name, bytes) NULL,
#define OX_PAIRS(name) NULL,
#define OX_FORM32(name, store, bits, off, side) gather_##name,
#define OX_FORM256(name, store, bits, off, head, side, unit) gather_##name,
#define OX_TIGHT(name, plain) NULL,
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_PAIRS
#undef OX_FORM32
#undef OX_FORM256
};

enum {
#define OX_FORMAT(name, id, block, bytes) BLOCK_##name = block, BYTES_##name = bytes,
#include "formats.def"
#undef OX_FORMAT
};

const ox_form ox_forms[FORM_COUNT] = {
#define OX_FLOAT(name, bytes) { #name, 1, bytes, FAMILY_FLOAT, ACT_F32, 0, SIDE_NONE, HEAD_NONE, FORM_##name },
#define OX_PAIRS(name) { #name, 1, 2, FAMILY_PAIRS, ACT_BF16, 0, SIDE_NONE, HEAD_NONE, FORM_##name },
#define OX_TIGHT(name, plain) { #name, 1, 2, FAMILY_TIGHT, FORM_##plain == FORM_BF16 ? ACT_BF16 : ACT_F32, 0, SIDE_NONE, HEAD_NONE, FORM_##plain },
#define OX_FORM32(name, store, bits, off, side) { #name, BLOCK_##name, BYTES_##name, FAMILY_32, ACT_Q8_32, store, side, HEAD_NONE, FORM_##name },
#define OX_FORM256(name, store, bits, off, head, side, unit) { #name, BLOCK_##name, BYTES_##name, FAMILY_256, ACT_Q8_256, store, side, \
        head, FORM_##name },
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_PAIRS
#undef OX_FORM32
#undef OX_FORM256
};

int ox_form_tight(int form, int64_t cols)
{
    for (int i = 0; i < FORM_COUNT; i++)
        if (ox_forms[i].plain == form && i != form && OX_TIGHT_FITS(cols))
            return i;
    return -1;
}

int ox_form_from_name(const char *name)
{
    for (int i = 0; i < FORM_COUNT; i++)
        if (strcmp(ox_forms[i].name, name) == 0)
            return i;
    return -1;
}

int64_t ox_act_bytes(int act, int64_t cols)
{
    const int64_t bytes = OX_ROUND64(act == ACT_Q8_32 ? cols / 32 * ACT32_BYTES : act == ACT_Q8_256 ? cols / 256 * ACT256_BYTES
                                     : act == ACT_BF16 ? cols * 2 : cols * 4);
    return bytes | 64;          /* an odd number of cache lines: those of many rows do not meet in a few sets */
}

int64_t ox_panel_bytes(const ox_form *form, int64_t cols)
{
    if (form->family == FAMILY_FLOAT)
        return OX_ROUND64(cols * 16 * form->bytes);
    if (form->family == FAMILY_PAIRS)
        return (cols + 1) / 2 * 64;
    if (form->family == FAMILY_TIGHT)
        return TIGHT_HEAD + cols / TIGHT_COLS * TIGHT_UNIT + OX_ROUND64(4 * (OX_TIGHT_ROOM(cols) - TIGHT_FIRST));
    int64_t sides = OX_ROUND64(cols / form->block * OX_SIDE_BYTES(form->side)), codes = cols / 32 * OX_UNIT_BYTES(form->store);
    return sides + codes + (form->family == FAMILY_256 ? cols / 256 * OX_HEAD_BYTES(form->head) : 0);
}

/* Squares of numbers are turned by perfect shuffles: log2(n) rounds of interleaving row i with row i + n/2. */
typedef uint16_t halves8 __attribute__((vector_size(16)));
typedef uint32_t words4 __attribute__((vector_size(16)));
typedef uint8_t bytes16_t __attribute__((vector_size(16)));

/* gcc has the name that clang gave it from 12 on. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (__typeof__(a)){__VA_ARGS__})
#endif

static void turn_halves(halves8 *a)
{
    for (int round = 0; round < 3; round++) {
        halves8 b[8];
        for (int i = 0; i < 4; i++) {
            b[2 * i] = SHUFFLE(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            b[2 * i + 1] = SHUFFLE(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        memcpy(a, b, sizeof b);
    }
}

static void turn_words(words4 *a)
{
    for (int round = 0; round < 2; round++) {
        words4 b[4];
        for (int i = 0; i < 2; i++) {
            b[2 * i] = SHUFFLE(a[i], a[i + 2], 0, 4, 1, 5);
            b[2 * i + 1] = SHUFFLE(a[i], a[i + 2], 2, 6, 3, 7);
        }
        memcpy(a, b, sizeof b);
    }
}

/* 32 columns of 16 strands into their planes (see panel.h): four rows at a time, turned so that a vector holds one dword of each. */
static void weave_unit(uint32_t *out, const ox_strand *s, int u, int store)
{
    for (int r = 0; r < 16; r += 4, out += 4) {
        words4 w[8];
        for (int i = 0; i < 4; i++) {
            memcpy(w + i, s[r + i].code + 32 * u, 16);
            memcpy(w + 4 + i, s[r + i].code + 32 * u + 16, 16);
        }
        turn_words(w);
        turn_words(w + 4);
        uint32_t *o = out;
        if (store == 8) {
            for (int g = 0; g < 8; g++)
                memcpy(o + 16 * g, w + g, 16);
            continue;
        }
        if (store >= 4) {
            for (int i = 0; i < 4; i++, o += 16) {
                words4 low = (w[2 * i] & 0x0f0f0f0fu) | (w[2 * i + 1] & 0x0f0f0f0fu) << 4;
                memcpy(o, &low, 16);
            }
        } else if (store >= 2) {
            for (int i = 0; i < 2; i++, o += 16) {
                const words4 *v = w + 4 * i;
                words4 low = (v[0] & 0x03030303u) | (v[1] & 0x03030303u) << 2 | (v[2] & 0x03030303u) << 4 | (v[3] & 0x03030303u) << 6;
                memcpy(o, &low, 16);
            }
        }
        if (store == 6) {
            for (int i = 0; i < 2; i++, o += 16) {
                const words4 *v = w + 4 * i;
                words4 high = (v[0] >> 4 & 0x03030303u) | (v[1] >> 2 & 0x0c0c0c0cu) | (v[2] & 0x30303030u) | (v[3] << 2 & 0xc0c0c0c0u);
                memcpy(o, &high, 16);
            }
        } else if (store & 1) {
            words4 bit = { 0, 0, 0, 0 };
            for (int g = 0; g < 8; g++)
                bit |= (w[g] >> (store - 1) & 0x01010101u) << g;
            memcpy(o, &bit, 16);
        }
    }
}

/* Values 4 q to 4 q + 3 of a row are a dword of vector q, in the order 0, 2, 1, 3. */
static words4 weave4(words4 v) { return (v & 0xff0000ffu) | (v >> 8 & 0x0000ff00u) | (v << 8 & 0x00ff0000u); }

static void weave_head(uint32_t *out, const ox_strand *s, int head)
{
    for (int r = 0; r < 16; r += 4, out += 4) {
        words4 q[4], v[4];
        for (int i = 0; i < 4; i++) {
            const ox_strand *row = s + r + i;
            memcpy(v + i, row->scale, 16);
            if (head == HEAD_8X6_MIN)
                memcpy((uint8_t *)(v + i) + 8, row->min, 8);
            if (head == HEAD_16X4_MIN) {
                memcpy(q, row->min, 16);
                v[i] |= q[0] << 4;          /* of 4 bits: nothing crosses into the next byte */
            }
        }
        turn_words(v);
        for (int i = 0; i < 4; i++)
            q[i] = weave4(v[i]);
        words4 o[4] = { q[0], q[1], q[2], q[3] };
        int count = OX_HEAD_BYTES(head) / 64;
        switch (head) {
        case HEAD_8X6_MIN: case HEAD_16X6:
            for (int i = 0; i < 2; i++)
                o[i] = (q[2 * i] & 0x0f0f0f0fu) | (q[2 * i + 1] & 0x0f0f0f0fu) << 4;
            o[2] = (q[0] >> 4 & 0x03030303u) | (q[1] >> 4 & 0x03030303u) << 2 | (q[2] >> 4 & 0x03030303u) << 4 | (q[3] >> 4 & 0x03030303u) << 6;
            break;
        case HEAD_8X4: case HEAD_16X4:
            o[0] = q[0] | q[1] << 4, o[1] = q[2] | q[3] << 4;
            break;
        default:
            break;
        }
        for (int i = 0; i < count; i++)
            memcpy(out + 16 * i, o + i, 16);
    }
}

static void weave_side(uint8_t *out, const ox_strand *s, int side)
{
    int size = OX_SIDE_SIZE(side), count = OX_SIDE_COUNT(side);
    for (int k = 0; k < count; k++, out += 16 * size)
        for (int r = 0; r < 16; r++) {
            const uint8_t *from = s[r].side + k * size;
            if (size == 2)
                memcpy(out + 2 * r, from, 2);
            else if (size == 4)
                memcpy(out + 4 * r, from, 4);
            else
                out[r] = *from;
        }
}

static void pack_float(uint8_t *out, const uint8_t *src, int64_t row_bytes, int64_t live, int64_t cols, int size)
{
    int64_t whole = cols * 16 * size;
    memset(out + whole, 0, (size_t)(OX_ROUND64(whole) - whole));
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

/* Pairs of columns are woven as numbers of 4 bytes; the last of an odd count has a zero beside it. */
static void pack_pairs(uint8_t *out, const uint8_t *src, int64_t row_bytes, int64_t live, int64_t cols)
{
    pack_float(out, src, row_bytes, live, cols / 2, 4);
    if (cols % 2) {
        uint8_t *last = out + cols / 2 * 64;
        memset(last, 0, 64);
        for (int64_t r = 0; r < live; r++)
            memcpy(last + 4 * r, src + r * row_bytes + 2 * (cols - 1), 2);
    }
}

static void pack_codes(const ox_form *form, ox_gather gather, uint8_t *panel, const uint8_t *src, int64_t row_bytes, int64_t live,
        int64_t cols)
{
    OX_ALIGN(64) ox_strand s[16];
    memset(s, 0, sizeof s);
    uint8_t *side = panel, *code = panel;
    for (int64_t b = 0; b < cols / form->block; b++) {
        if (b % OX_SIDE_SPAN(form->side) == 0) {
            memset(code, 0, 64);
            side = code, code += 64;
        }
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
}

/* Eight numbers of a row as bf16; 0 where one of F16 is none, as infinities and NaN are taken to be. */
static inline int brains(uint16_t *to, const uint8_t *from, int half)
{
    memcpy(to, from, 16);
    if (!half)
        return 1;
    halves8 h, size, odd;
    memcpy(&h, from, 16);
    size = h & 0x7fff;
    odd = (halves8)((size - 1) >= 0x7c00 - 1) | (halves8)(size - 1 < 0x400 - 1) | (h & 7);
    uint64_t some[2];
    memcpy(some, &odd, 16);
    h = (h & 0x8000) | (((size >> 3) + ((127 - 15) << 7)) & (halves8)(size != 0));
    if (some[0] | some[1])
        for (int i = 0; i < TIGHT_COLS; i++) {
            const unsigned bits = to[i];
            const uint32_t wide = ox_f32_to_bits(ox_f16_to_f32((uint16_t)bits));
            if (wide & 0xffff || (bits & 0x7c00) == 0x7c00)
                return 0;
            h[i] = (uint16_t)(wide >> 16);
        }
    memcpy(to, &h, 16);
    return 1;
}

/* The 16 high bytes that occur most often, in every fourth unit of a panel with many. */
static int tight_table(uint8_t *table, const uint8_t *src, int64_t row_bytes, int64_t live, int64_t cols, int half)
{
    uint32_t count[2][256] = { { 0 } };
    const int64_t step = cols >= 512 ? 4 * TIGHT_COLS : TIGHT_COLS;
    int good = 1;
    for (int64_t r = 0; r < live; r++)
        for (int64_t c = 0; c < cols; c += step) {
            uint16_t v[TIGHT_COLS];
            good &= brains(v, src + r * row_bytes + 2 * c, half);
            for (int i = 0; i < TIGHT_COLS; i++)
                count[i & 1][v[i] >> 8]++;
        }
    count[0][0] += (uint32_t)(16 - live) * 8;
    uint8_t used[256];
    int n = 0;
    for (int h = 0; h < 256; h++)
        if (count[0][h] += count[1][h])
            used[n++] = (uint8_t)h;
    memset(table, 0, 16);
    for (int k = 0; k < 16 && k < n; k++) {
        int best = k;
        for (int i = k + 1; i < n; i++)
            if (count[0][used[i]] > count[0][used[best]])
                best = i;
        table[k] = used[best];
        used[best] = used[k];
    }
    return good;
}

static inline uint64_t eight_codes(const uint8_t *code, uint64_t high)
{
    uint64_t c = 0;
    for (int k = 0; k < 64; k += 8)
        c |= (uint64_t)code[high >> k & 255] << k;
    return c;
}

/* One panel; 0 where it cannot be tight. */
static int pack_tight(uint8_t *panel, const uint8_t *src, int64_t row_bytes, int64_t live, int64_t cols, int half)
{
    uint8_t code[256];
    uint32_t *const head = (uint32_t *)(panel + 16);
    uint8_t *out = panel + TIGHT_HEAD;
    uint32_t *const more = (uint32_t *)(out + cols / TIGHT_COLS * TIGHT_UNIT);
    const int64_t room = OX_TIGHT_ROOM(cols);
    int64_t found = 0;
    if (!tight_table(panel, src, row_bytes, live, cols, half))
        return 0;
    memset(code, 0x80, sizeof code);
    for (int k = 15; k >= 0; k--)
        code[panel[k]] = (uint8_t)k;
    for (int64_t u = 0; u < cols / TIGHT_COLS; u++, out += TIGHT_UNIT, src += 2 * TIGHT_COLS)
        for (int64_t q = 0; q < 4; q++) {                   /* four rows, turned so that a vector holds a pair of columns of each */
            words4 pairs[4];
            for (int64_t r = 0; r < 4; r++) {
                memset(pairs + r, 0, 16);
                if (4 * q + r < live && !brains((uint16_t *)(pairs + r), src + (4 * q + r) * row_bytes, half))
                    return 0;
            }
            turn_words(pairs);
            uint64_t c[2][2], high[2][2], missed = 0;
            for (int i = 0; i < 2; i++) {
                const bytes16_t a = (bytes16_t)pairs[2 * i], b = (bytes16_t)pairs[2 * i + 1];
                const bytes16_t l = SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
                const bytes16_t h = SHUFFLE(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
                memcpy(out + 64 + 64 * i + 16 * q, &l, 16);
                memcpy(high[i], &h, 16);
                for (int k = 0; k < 2; k++)
                    missed |= c[i][k] = eight_codes(code, high[i][k]);
            }
            if (missed & 0x8080808080808080u)
                for (int k = 0; k < 32; k++) {
                    uint8_t *const one = (uint8_t *)c + k;
                    if (!(*one & 0x80))
                        continue;
                    if (found + 1 >= room)
                        return 0;
                    const uint32_t byte = (uint32_t)(64 * (k / 16) + 16 * q + k % 16);
                    *(found < TIGHT_FIRST ? head + found : more + found - TIGHT_FIRST) = (uint32_t)u << 15 | byte << 8 | ((const uint8_t *)high)[k];
                    found++, *one = 0;
                }
            for (int k = 0; k < 2; k++) {
                const uint64_t both = c[0][k] | c[1][k] << 4;
                memcpy(out + 16 * q + 8 * k, &both, 8);
            }
        }
    for (; found < room; found++)           /* the end; all of it, so that what is written is known */
        *(found < TIGHT_FIRST ? head + found : more + found - TIGHT_FIRST) = 0xffffffffu;
    memset(more + room - TIGHT_FIRST, 0, (size_t)(OX_ROUND64(4 * (room - TIGHT_FIRST)) - 4 * (room - TIGHT_FIRST)));
    return 1;
}

int ox_pack(const ox_form *form, uint8_t *panels, const uint8_t *src, int64_t row_bytes, int64_t rows, int64_t cols, int64_t first,
        int64_t end)
{
    int64_t size = ox_panel_bytes(form, cols);
    for (int64_t p = first; p < end; p++) {
        int64_t live = rows - 16 * p < 16 ? rows - 16 * p : 16;
        const uint8_t *from = src + 16 * p * row_bytes;
        if (form->family == FAMILY_TIGHT) {
            if (!pack_tight(panels + p * size, from, row_bytes, live, cols, form->plain == FORM_F16))
                return 0;
        } else if (form->family == FAMILY_FLOAT && form->bytes == 2)
            pack_float(panels + p * size, from, row_bytes, live, cols, 2);
        else if (form->family == FAMILY_PAIRS)
            pack_pairs(panels + p * size, from, row_bytes, live, cols);
        else if (form->family == FAMILY_FLOAT)
            pack_float(panels + p * size, from, row_bytes, live, cols, 4);
        else
            pack_codes(form, gathers[form - ox_forms], panels + p * size, from, row_bytes, live, cols);
    }
    return 1;
}
