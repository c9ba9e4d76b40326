/* The register tiles of attention: scores of queries against floats or halves, and values of any kind mixed by their weights.
 *
 * A tile has up to OX_TILE_Q queries, and mq of them by OX_TILE_G(mq) vectors, OX_MOST_G at the most; the instruction set's file says how many. While a
 * tile is computed, memory that is
 * read later is asked for: `next` is a stretch for each of its groups, as many bytes as the group has. Into the second cache: prefetches
 * into the first one hold up the tile's own loads (Zen 4: 12.5 instead of 19 GB/s).
 */
#ifndef OX_VEC_MIX_H
#define OX_VEC_MIX_H

#define OX_FETCH(p) __builtin_prefetch((p), 0, 2)

/* scores of mq queries against OX_TILE_G(mq) groups of floats or halves */
OX_INLINE void score_tile(int mq, int kind, const float *const *q, const void *const *k, const void *const *next, int k_dim, float *scores)
{
    const int groups = OX_TILE_G(mq);
    ox_f32x16 s[OX_TILE_Q][OX_MOST_G];
    OX_UNROLL for (int i = 0; i < mq; i++)
        OX_UNROLL for (int j = 0; j < groups; j++)
            s[i][j] = f32_zero();
    for (int part = 0, d = 0; part < groups; part++) {
        const char *at = next ? next[part] : NULL;
        for (; d < k_dim * (part + 1) / groups; d++) {
            ox_f32x16 key[OX_MOST_G];
            OX_UNROLL for (int j = 0; j < groups; j++)
                key[j] = kind == OX_KV_F16 ? f32_load_f16((const uint16_t *)k[j] + 16 * d) : f32_load((const float *)k[j] + 16 * d);
            if (next) {
                if (groups > 1 || d % 2 == 0)
                    OX_UNROLL for (int b = 0; b < 32 * groups; b += 64)
                        OX_FETCH(at + b);
                at += 32 * groups;
            }
            OX_UNROLL for (int i = 0; i < mq; i++) {
                ox_f32x16 x = f32_set1(q[i][d]);
                OX_UNROLL for (int j = 0; j < groups; j++)
                    s[i][j] = f32_fma(x, key[j], s[i][j]);
            }
        }
    }
    OX_UNROLL for (int i = 0; i < mq; i++)
        OX_UNROLL for (int j = 0; j < groups; j++)
            f32_store(scores + OX_SPLIT_KEYS * i + 16 * j, s[i][j]);
}

/* Bytes of `n` values of a row. */
OX_INLINE int64_t kept_bytes(int kind, int64_t n)
{
    return kind == OX_KV_F32 ? 4 * n : kind == OX_KV_F16 ? 2 * n : kind == OX_KV_Q8_0 ? n : n / 2;
}

/* nv vectors of a row from `column` on, without their scales. */
OX_INLINE void load_values(int nv, int kind, ox_f32x16 *value, const char *row, int column)
{
    OX_UNROLL for (int j = 0; j < nv; j++) {
        int c = column + 16 * j;
        if (kind == OX_KV_F32) {
            value[j] = f32_load((const float *)row + c);
        } else if (kind == OX_KV_F16) {
            value[j] = f32_load_f16((const uint16_t *)row + c);
        } else if (kind == OX_KV_Q8_0) {
            value[j] = i32_to_f32(i32_load_i8((const int8_t *)row + c));
        } else if (nv == 1) {
            value[0] = i32_to_f32(i32_sub(i32_and(i32_shr(i32_load_u8((const uint8_t *)row + c / 32 * 16), c % 32 / 4), i32_set1(15)), i32_set1(8)));
        } else if (j % 2 == 0) {
            ox_i32x16 two = i32_load_u8((const uint8_t *)row + c / 2);
            value[j] = i32_to_f32(i32_sub(i32_and(two, i32_set1(15)), i32_set1(8)));
            value[j + 1] = i32_to_f32(i32_sub(i32_shr(two, 4), i32_set1(8)));
        }
    }
}

/* Weights of a group of 16 keys times the scales of each block that nv vectors from `column` on touch: a block after the other, `ld` floats a query. */
OX_INLINE void scale_weights(int mq, int nv, int kind, float *to, int64_t ld, const float *p, const void *v, int column, int ldv)
{
    const uint16_t *scales = (const uint16_t *)((const char *)v + kept_bytes(kind, 16 * (int64_t)ldv)) + column / 32 * 16;
    OX_UNROLL for (int b = 0; b < (nv + 1) / 2; b++)
        OX_UNROLL for (int i = 0; i < mq; i++)
            f32_store(to + ld * (OX_TILE_Q * b + i), f32_mul(f32_load(p + OX_SPLIT_KEYS * i), f32_load_f16(scales + 16 * b)));
}

/* acc[i] += sum over keys from <= t < to of p[i][t] * v[t / 16][t % 16], nv vectors wide; rows of v are `ldv` values apart.
 * Codes have scales of their own per key and block of 32 columns: p times the scale, rounded, is what multiplies them. `ready`: p is that already. */
OX_INLINE void value_tile(int mq, int nv, int kind, int ready, const float *p, const void *const *v, const void *const *next, int column, int ldv,
                          int from, int to, float *acc, int width)
{
    const int coded = kind == OX_KV_Q8_0 || kind == OX_KV_Q4_0, bytes = (int)kept_bytes(kind, 16 * nv), own = coded && !ready;
    const int64_t ld = kept_bytes(kind, ldv);
    ox_f32x16 a[OX_TILE_Q][OX_MOST_G];
    float scaled[(OX_MOST_G + 1) / 2][OX_TILE_Q][16];
    OX_UNROLL for (int i = 0; i < mq; i++)
        OX_UNROLL for (int j = 0; j < nv; j++)
            a[i][j] = f32_load(acc + (int64_t)width * i + 16 * j);
    for (int g = (unsigned)from / 16; 16 * g < to; g++) {
        const int first = from > 16 * g ? from - 16 * g : 0, n = to < 16 * g + 16 ? to - 16 * g : 16;
        const char *row = (const char *)v[g] + ld * first;
        const float *w = p + 16 * g;
        const char *at = next ? (const char *)next[g % OX_BLOCK_GROUPS] + kept_bytes(kind, 16 * (int64_t)column) + (coded ? column : 0) : NULL;
        if (own)
            scale_weights(mq, nv, kind, scaled[0][0], 16, w, v[g], column, ldv);
        if (coded && next)
            OX_FETCH(at), at += 16 * nv;    /* as many bytes as the scales */
        if (next && bytes < 64)
            for (int b = 0; b < bytes * (n - first); b += 64)
                OX_FETCH(at + b);
        for (int u = first; u < n; u++, row += ld) {     /* key u of the group */
            ox_f32x16 value[OX_MOST_G];
            load_values(nv, kind, value, row, column);
            if (next && bytes >= 64) {
                OX_UNROLL for (int b = 0; b < bytes; b += 64)
                    OX_FETCH(at + b);
                at += bytes;
            }
            OX_UNROLL for (int i = 0; i < mq; i++)
                OX_UNROLL for (int j = 0; j < nv; j++)
                    a[i][j] = f32_fma(f32_set1(own ? scaled[j / 2][i][u] : w[OX_SPLIT_KEYS * i + u]), value[j], a[i][j]);
        }
    }
    OX_UNROLL for (int i = 0; i < mq; i++)
        OX_UNROLL for (int j = 0; j < nv; j++)
            f32_store(acc + (int64_t)width * i + 16 * j, a[i][j]);
}

/* v_dim in strips of OX_TILE_G(mq) vectors, then single ones; codes in blocks of two where the tile has room for them, else their weights are scaled once
 * for the two strips of a block. */
OX_INLINE void value_strips(int mq, int kind, const float *p, const void *const *v, const void *const *next, int ldv, int from, int to,
                            float *acc, int width)
{
    const int nv = OX_TILE_G(mq), coded = kind == OX_KV_Q8_0 || kind == OX_KV_Q4_0, rest = nv > 1 && coded ? 2 : 1;
    int c = 0;
    if (nv == 1 && coded) {
        float scaled[OX_TILE_Q * OX_SPLIT_KEYS];
        for (; c < width; c += 16) {
            if (c % 32 == 0)
                for (int g = (unsigned)from / 16; 16 * g < to; g++)
                    scale_weights(mq, 1, kind, scaled + 16 * g, OX_SPLIT_KEYS, p + 16 * g, v[g], c, ldv);
            value_tile(mq, 1, kind, 1, scaled, v, next, c, ldv, from, to, acc + c, width);
        }
        return;
    }
    for (; c + 16 * nv <= width; c += 16 * nv)
        value_tile(mq, nv, kind, 0, p, v, next, c, ldv, from, to, acc + c, width);
    for (; c < width; c += 16 * rest)
        value_tile(mq, rest, kind, 0, p, v, next, c, ldv, from, to, acc + c, width);
}

/* One function per number of queries, so that every tile lives in registers; those above OX_TILE_Q are never called, and empty. */
#define OX_EACH_TILE(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define OX_QUERIES(MQ) (MQ <= OX_TILE_Q ? MQ : 1)

typedef void scores_fn(const float *const *q, const void *const *k, const void *const *next, int k_dim, float *scores);
typedef void values_fn(const float *p, const void *const *v, const void *const *next, int ldv, int from, int to, float *acc, int width);

#define OX_SCORES(MQ, KIND)                                                                                                        \
    static OX_NOINLINE void scores_##MQ##_##KIND(const float *const *q, const void *const *k, const void *const *next, int k_dim,  \
                                                 float *scores)                                                                    \
    {                                                                                                                              \
        if (MQ > OX_TILE_Q) return;                                                                                                \
        if (next && OX_KV_##KIND != OX_KV_F32) score_tile(OX_QUERIES(MQ), OX_KV_##KIND, q, k, next, k_dim, scores);                \
        else score_tile(OX_QUERIES(MQ), OX_KV_##KIND, q, k, NULL, k_dim, scores);                                                  \
    }
#define OX_VALUES(MQ, KIND)                                                                                                        \
    static OX_NOINLINE void values_##MQ##_##KIND(const float *p, const void *const *v, const void *const *next, int ldv, int from, \
                                                 int to, float *acc, int width)                                                    \
    {                                                                                                                              \
        if (MQ > OX_TILE_Q) return;                                                                                                \
        if (next && OX_KV_##KIND != OX_KV_F32)                                                                                     \
            value_strips(OX_QUERIES(MQ), OX_KV_##KIND, p, v, next, ldv, from, to, acc, width);                                     \
        else                                                                                                                       \
            value_strips(OX_QUERIES(MQ), OX_KV_##KIND, p, v, NULL, ldv, from, to, acc, width);                                     \
    }
#define OX_TILES_OF(MQ) OX_SCORES(MQ, F32) OX_SCORES(MQ, F16) OX_VALUES(MQ, F32) OX_VALUES(MQ, F16) OX_VALUES(MQ, Q8_0) OX_VALUES(MQ, Q4_0)
OX_EACH_TILE(OX_TILES_OF)

#define OX_NAME_SCORES(MQ) { [OX_KV_F32] = scores_##MQ##_F32, [OX_KV_F16] = scores_##MQ##_F16 },
#define OX_NAME_VALUES(MQ) { [OX_KV_F32] = values_##MQ##_F32, [OX_KV_F16] = values_##MQ##_F16, \
                             [OX_KV_Q8_0] = values_##MQ##_Q8_0, [OX_KV_Q4_0] = values_##MQ##_Q4_0 },
static scores_fn *const score_tiles[][2] = { { NULL, NULL }, OX_EACH_TILE(OX_NAME_SCORES) };
static values_fn *const value_tiles[][OX_KV_COUNT] = { { NULL, NULL }, OX_EACH_TILE(OX_NAME_VALUES) };

#endif
