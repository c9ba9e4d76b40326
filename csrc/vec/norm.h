/* Norms of one row. Sums run in 64 partial sums (4 vectors), added pairwise, then the tree of f32_hsum: one order everywhere. */
#ifndef OX_VEC_NORM_H
#define OX_VEC_NORM_H

/* sum of (x[i] - mean)^2, and with mean 0 of squares */
OX_INLINE float vec_sum_squares(const float *x, float mean, int64_t n)
{
    ox_f32x16 s[4] = { f32_zero(), f32_zero(), f32_zero(), f32_zero() }, m = f32_set1(mean);
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; j++) {
            ox_f32x16 d = f32_sub(f32_load(x + i + 16 * j), m);
            s[j] = f32_fma(d, d, s[j]);
        }
    for (int j = 0; i < n; i += 16, j++) {
        int left = n - i < 16 ? (int)(n - i) : 16;
        ox_f32x16 d = f32_sub(f32_load_n(x + i, left), m);
        float square[16] = { 0 };
        f32_store_n(square, f32_mul(d, d), left);   /* lanes past the end would hold mean^2 */
        s[j] = f32_add(s[j], f32_load(square));
    }
    return f32_hsum(f32_add(f32_add(s[0], s[1]), f32_add(s[2], s[3])));
}

OX_INLINE float vec_sum(const float *x, int64_t n)
{
    ox_f32x16 s[4] = { f32_zero(), f32_zero(), f32_zero(), f32_zero() };
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; j++)
            s[j] = f32_add(s[j], f32_load(x + i + 16 * j));
    for (int j = 0; i < n; i += 16, j++)
        s[j] = f32_add(s[j], f32_load_n(x + i, n - i < 16 ? (int)(n - i) : 16));
    return f32_hsum(f32_add(f32_add(s[0], s[1]), f32_add(s[2], s[3])));
}

/* out = (x - mean) * scale * weight + bias; weight and bias may be NULL; out may be x */
OX_INLINE void vec_apply_norm(float *out, const float *x, const float *weight, const float *bias, float mean, float scale, int64_t n)
{
    ox_f32x16 m = f32_set1(mean), k = f32_set1(scale);
    for (int64_t i = 0; i < n; i += 16) {
        int left = n - i < 16 ? (int)(n - i) : 16;
        ox_f32x16 v = left == 16 ? f32_load(x + i) : f32_load_n(x + i, left);
        v = f32_mul(f32_sub(v, m), k);
        if (weight) v = f32_mul(v, left == 16 ? f32_load(weight + i) : f32_load_n(weight + i, left));
        if (bias) v = f32_add(v, left == 16 ? f32_load(bias + i) : f32_load_n(bias + i, left));
        if (left == 16) f32_store(out + i, v);
        else f32_store_n(out + i, v, left);
    }
}

/* x / sqrt(mean(x^2) + eps) * weight + bias (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019) */
static void rms_norm(float *out, const float *x, const float *weight, const float *bias, float eps, int64_t n)
{
    float mean = vec_sum_squares(x, 0.0f, n) / (float)n;
    vec_apply_norm(out, x, weight, bias, 0.0f, 1.0f / sqrtf(mean + eps), n);
}

/* (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al., "Layer Normalization", 2016) */
static void layer_norm(float *out, const float *x, const float *weight, const float *bias, float eps, int64_t n)
{
    float mean = vec_sum(x, n) / (float)n;
    float variance = vec_sum_squares(x, mean, n) / (float)n;
    vec_apply_norm(out, x, weight, bias, mean, 1.0f / sqrtf(variance + eps), n);
}

#endif
