/* The scores by which keys, or blocks of them, are chosen: the sum over heads of a share times the dot product of the head's query and the
 * key where that is positive (DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1); for each head, the largest dot product with a block's keys.
 *
 * A lane is a head. A dot product is one fma chain over dim ascending; sixteens of heads are added ascending, then the tree of f32_hsum.
 */
#ifndef OX_VEC_CHOOSE_H
#define OX_VEC_CHOOSE_H

enum { OX_CHOOSE_KEYS = 4 /* keys side by side: one chain would wait for itself */ };

/* The dot products of sixteen heads' queries with n keys. */
OX_INLINE void dots_of(ox_f32x16 *dot, const float *queries, const float *keys, int64_t stride, int heads, int dim, int n)
{
    OX_UNROLL for (int i = 0; i < n; i++) dot[i] = f32_zero();
    for (int d = 0; d < dim; d++) {
        ox_f32x16 q = f32_load(queries + (int64_t)heads * d);
        OX_UNROLL for (int i = 0; i < n; i++)
            dot[i] = f32_fma(q, f32_set1(keys[stride * i + d]), dot[i]);
    }
}

OX_INLINE void scores_of(float *out, const float *queries, const float *shares, const float *keys, int64_t stride, int heads, int dim, int n)
{
    ox_f32x16 sum[OX_CHOOSE_KEYS], dot[OX_CHOOSE_KEYS], zero = f32_zero();
    OX_UNROLL for (int i = 0; i < n; i++) sum[i] = zero;
    for (int h = 0; h < heads; h += 16) {
        dots_of(dot, queries + h, keys, stride, heads, dim, n);
        OX_UNROLL for (int i = 0; i < n; i++)     /* NaN is not below 0, and stays */
            sum[i] = f32_fma(f32_select_lt(dot[i], zero, zero, dot[i]), f32_load(shares + h), sum[i]);
    }
    OX_UNROLL for (int i = 0; i < n; i++) out[i] = f32_hsum(sum[i]);
}

static void key_scores(float *out, const float *queries, const float *shares, const float *keys, int count, int64_t stride, int heads, int dim)
{
    int i = 0;
    for (; i + OX_CHOOSE_KEYS <= count; i += OX_CHOOSE_KEYS)
        scores_of(out + i, queries, shares, keys + stride * i, stride, heads, dim, OX_CHOOSE_KEYS);
    for (; i < count; i++)
        scores_of(out + i, queries, shares, keys + stride * i, stride, heads, dim, 1);
}

OX_INLINE ox_f32x16 best_of(ox_f32x16 top, const float *queries, const float *keys, int64_t stride, int heads, int dim, int n)
{
    ox_f32x16 dot[OX_CHOOSE_KEYS];
    dots_of(dot, queries, keys, stride, heads, dim, n);
    OX_UNROLL for (int i = 0; i < n; i++)
        top = f32_select_lt(top, dot[i], dot[i], top);
    return top;
}

static void best_dots(float *best, const float *queries, const float *keys, int count, int64_t stride, int heads, int dim)
{
    for (int h = 0; h < heads; h += 16) {
        ox_f32x16 top = f32_load(best + h);
        int i = 0;
        for (; i + OX_CHOOSE_KEYS <= count; i += OX_CHOOSE_KEYS)
            top = best_of(top, queries + h, keys + stride * i, stride, heads, dim, OX_CHOOSE_KEYS);
        for (; i < count; i++)
            top = best_of(top, queries + h, keys + stride * i, stride, heads, dim, 1);
        f32_store(best + h, top);
    }
}

#endif
