/* The score by which the key of a block of tokens is chosen: the sum over heads of a share times the dot product of the head's query and the
 * key where that is positive (DeepSeek-AI 2025, "DeepSeek-V3.2", section 2.1).
 *
 * A lane is a head. A dot product is one fma chain over dim ascending; sixteens of heads are added ascending, then the tree of f32_hsum.
 */
#ifndef OX_VEC_CHOOSE_H
#define OX_VEC_CHOOSE_H

enum { OX_CHOOSE_WIDE = 4 /* sixteens of heads side by side: one chain would wait for itself */ };

/* The sum of n sixteens of heads, from `sum` on. */
OX_INLINE ox_f32x16 choose_heads(ox_f32x16 sum, const float *queries, const float *shares, const float *key, int heads, int dim, int n)
{
    ox_f32x16 dot[OX_CHOOSE_WIDE], zero = f32_zero();
    OX_UNROLL for (int i = 0; i < n; i++) dot[i] = zero;
    for (int d = 0; d < dim; d++)
        OX_UNROLL for (int i = 0; i < n; i++)
            dot[i] = f32_fma(f32_load(queries + (int64_t)heads * d + 16 * i), f32_set1(key[d]), dot[i]);
    OX_UNROLL for (int i = 0; i < n; i++)     /* NaN is not below 0, and stays */
        sum = f32_fma(f32_select_lt(dot[i], zero, zero, dot[i]), f32_load(shares + 16 * i), sum);
    return sum;
}

static float block_score(const float *queries, const float *shares, const float *key, int heads, int dim)
{
    ox_f32x16 sum = f32_zero();
    int h = 0;
    for (; h + 16 * OX_CHOOSE_WIDE <= heads; h += 16 * OX_CHOOSE_WIDE)
        sum = choose_heads(sum, queries + h, shares + h, key, heads, dim, OX_CHOOSE_WIDE);
    for (; h < heads; h += 16)
        sum = choose_heads(sum, queries + h, shares + h, key, heads, dim, 1);
    return f32_hsum(sum);
}

#endif
