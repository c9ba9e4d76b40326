/* How one token's key or value of one head is kept: rounding, and where it lies in its group of 16 tokens.
 *
 *   F32, F16     K [dim][16 tokens]      V [16 tokens][dim]      floats, halves (to nearest even)
 *   Q8_0, Q4_0   K one panel of the lanes floor (lanes/panel.h) of 16 rows: a token is a row, its blocks of 32 those of the file format
 *                V [16 tokens][codes of dim][dim / 32 times 16 halves: a block's scale for each token]
 *                    Q8_0 a signed byte a code; Q4_0 byte j of a block: code j (low nibble) and code 16 + j, both + 8
 *
 * x = d q with a half d. Q8_0: d = largest / 127. Q4_0: q from -8 to 7 and d = -m / 7.5, -m / 8 or -m / 8.5, m being the number of largest
 * magnitude: whichever leaves the least sum of squared errors, the first named of equals. Codes are x (1 / d) to nearest even, within bounds.
 * A block with an infinity or NaN gets d = NaN and codes 0: whoever sees the token sees it. Tokens are rounded alone, one at a time.
 */
#ifndef OX_VEC_KEEP_H
#define OX_VEC_KEEP_H

typedef struct {
    ox_f32x16 x[2], most;    /* 32 numbers; the largest magnitude in every lane */
    int broken;              /* an infinity or a NaN among them */
} kept_block;

OX_INLINE kept_block look_at(const float *x)
{
    kept_block b = { .x = { f32_load(x), f32_load(x + 16) } };
    const ox_i32x16 magnitude = i32_set1(0x7fffffff);
    int32_t bits = i32_hmax(i32_max(i32_and(f32_as_i32(b.x[0]), magnitude), i32_and(f32_as_i32(b.x[1]), magnitude)));
    b.broken = bits >= 0x7f800000;
    b.most = f32_set1(ox_bits_to_f32((uint32_t)bits));
    return b;
}

/* Codes of a block under the scale d, from `least` to `greatest`. */
OX_INLINE void codes_of(ox_i32x16 *codes, const kept_block *b, float d, float least, float greatest)
{
    ox_f32x16 by = f32_set1(d != 0.0f ? 1.0f / d : 0.0f);
    OX_UNROLL for (int j = 0; j < 2; j++) {
        ox_f32x16 v = f32_min(f32_set1(greatest), f32_mul(b->x[j], by));
        codes[j] = f32_to_i32(f32_max(f32_set1(least), v));
    }
}

OX_INLINE float first_lane(ox_f32x16 v)
{
    float lanes[16];
    f32_store(lanes, v);
    return lanes[0];
}

/* One block to 32 signed codes; returns its scale. */
OX_INLINE uint16_t round_q8(int8_t *codes, const float *x)
{
    kept_block b = look_at(x);
    ox_i32x16 q[2] = { i32_zero(), i32_zero() };
    uint16_t d = b.broken ? 0x7e00 : ox_f32_to_f16(first_lane(b.most) / 127.0f);
    if (!b.broken)
        codes_of(q, &b, ox_f16_to_f32(d), -127.0f, 127.0f);
    i32_store_i8(codes, q[0]);
    i32_store_i8(codes + 16, q[1]);
    return d;
}

OX_INLINE uint16_t round_q4(int8_t *codes, const float *x)
{
    kept_block b = look_at(x);
    ox_i32x16 q[2], best[2] = { i32_zero(), i32_zero() };
    uint16_t d = 0x7e00;
    if (!b.broken) {
        float top = f32_hmax(f32_max(b.x[0], b.x[1])), bottom = -f32_hmax(f32_max(f32_neg(b.x[0]), f32_neg(b.x[1])));
        float m = top > -bottom ? top : bottom, least = INFINITY;
        static const float by[3] = { -7.5f, -8.0f, -8.5f };
        for (int i = 0; i < 3; i++) {
            uint16_t half = ox_f32_to_f16(m / by[i]);
            ox_f32x16 scale = f32_set1(ox_f16_to_f32(half)), error = f32_zero();
            codes_of(q, &b, ox_f16_to_f32(half), -8.0f, 7.0f);
            OX_UNROLL for (int j = 0; j < 2; j++) {
                ox_f32x16 off = f32_fnma(i32_to_f32(q[j]), scale, b.x[j]);
                error = f32_fma(off, off, error);
            }
            float sum = f32_hsum(error);
            if (sum < least || least != least || i == 0)    /* NaN: this scale did not fit a half */
                least = sum, d = half, best[0] = q[0], best[1] = q[1];
        }
    }
    i32_store_i8(codes, best[0]);
    i32_store_i8(codes + 16, best[1]);
    return d;
}

/* The key `x` becomes row `lane` of the panel: its 32 codes of block b go to the block's 8 vectors, 4 columns to each (q8), or two
 * neighbouring vectors to the nibbles of one (q4). */
OX_INLINE void keep_panel_row(int kind, uint8_t *panel, int lane, const float *x, int dim)
{
    const int unit = kind == OX_KV_Q8_0 ? 512 : 256;
    uint8_t *side = panel, *at = panel;     /* two blocks share a side */
    for (int b = 0; b < dim / 32; b++, at += unit) {
        if (b % 2 == 0)
            side = at + 2 * lane, at += 64;
        int8_t codes[32];
        uint16_t d = kind == OX_KV_Q8_0 ? round_q8(codes, x + 32 * b) : round_q4(codes, x + 32 * b);
        memcpy(side + 32 * (b % 2), &d, 2);
        if (kind == OX_KV_Q8_0) {
            for (int c = 0; c < 32; c++) at[64 * (c / 4) + 4 * lane + c % 4] = (uint8_t)(codes[c] + 128);
        } else {
            for (int c = 0; c < 16; c++) {
                int low = 8 * (c / 4) + c % 4;      /* group 2 i: columns 8 i to 8 i + 3; group 2 i + 1: the four after them */
                at[64 * (c / 4) + 4 * lane + c % 4] = (uint8_t)((codes[low] + 8) | (codes[low + 4] + 8) << 4);
            }
        }
    }
}

static void keep_key(int kind, void *group, int lane, const float *x, int dim)
{
    if (kind == OX_KV_Q8_0 || kind == OX_KV_Q4_0) {
        keep_panel_row(kind, group, lane, x, dim);
    } else if (kind == OX_KV_F32) {
        for (int d = 0; d < dim; d++) ((float *)group)[16 * d + lane] = x[d];
    } else {
        uint16_t *to = (uint16_t *)group + lane;
        int d = 0;
        for (; d + 16 <= dim; d += 16, to += 256) {
            uint16_t h[16];
            f32_store_f16(h, f32_load(x + d));
            OX_UNROLL for (int i = 0; i < 16; i++) to[16 * i] = h[i];
        }
        for (; d < dim; d++, to += 16) *to = ox_f32_to_f16(x[d]);
    }
}

static void keep_value(int kind, void *group, int row, const float *x, int dim)
{
    if (kind == OX_KV_F32) {
        memcpy((float *)group + (int64_t)dim * row, x, (size_t)dim * 4);
    } else if (kind == OX_KV_F16) {
        halves_row((uint16_t *)group + (int64_t)dim * row, x, dim);
    } else {
        int bytes = kind == OX_KV_Q8_0 ? dim : dim / 2;
        uint8_t *to = (uint8_t *)group + (int64_t)bytes * row, *scales = (uint8_t *)group + 16 * (int64_t)bytes + 2 * row;
        for (int b = 0; b < dim / 32; b++) {
            int8_t codes[32];
            uint16_t d = kind == OX_KV_Q8_0 ? round_q8(codes, x + 32 * b) : round_q4(codes, x + 32 * b);
            memcpy(scales + 32 * b, &d, 2);
            if (kind == OX_KV_Q8_0)
                memcpy(to + 32 * b, codes, 32);
            else
                for (int j = 0; j < 16; j++) to[16 * b + j] = (uint8_t)((codes[j] + 8) | (codes[16 + j] + 8) << 4);
        }
    }
}

#endif
