/* Elementwise rows: sums, products, activations, soft caps, halves. Any length; out may be x. */
#ifndef OX_VEC_GATE_H
#define OX_VEC_GATE_H

static void add_rows(float *out, const float *x, const float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) f32_store(out + i, f32_add(f32_load(x + i), f32_load(y + i)));
    for (; i < n; i++) out[i] = x[i] + y[i];
}

static void mul_rows(float *out, const float *x, const float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) f32_store(out + i, f32_mul(f32_load(x + i), f32_load(y + i)));
    for (; i < n; i++) out[i] = x[i] * y[i];
}

static void scale_row(float *out, const float *x, float factor, int64_t n)
{
    ox_f32x16 k = f32_set1(factor);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) f32_store(out + i, f32_mul(f32_load(x + i), k));
    for (; i < n; i++) out[i] = x[i] * factor;
}

/* x within low and high; NaN stays. */
static void clamp_row(float *out, const float *x, float low, float high, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = x[i] < low ? low : x[i] > high ? high : x[i];
}

/* cap * tanh(x / cap) */
OX_INLINE ox_f32x16 vec_softcap(ox_f32x16 x, ox_f32x16 cap) { return f32_mul(cap, vec_tanh(f32_div(x, cap))); }

static void softcap_row(float *out, const float *x, float cap, int64_t n)
{
    ox_f32x16 c = f32_set1(cap);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) f32_store(out + i, vec_softcap(f32_load(x + i), c));
    if (i < n) f32_store_n(out + i, vec_softcap(f32_load_n(x + i, (int)(n - i)), c), (int)(n - i));
}

#define OX_ACTIVATE(KIND)                                                                                                     \
    case KIND:                                                                                                                \
        for (; i + 16 <= n; i += 16) f32_store(out + i, vec_activate(KIND, f32_load(x + i)));                                 \
        if (i < n) f32_store_n(out + i, vec_activate(KIND, f32_load_n(x + i, (int)(n - i))), (int)(n - i));                   \
        break;

static void activate_row(float *out, const float *x, int kind, int64_t n)
{
    int64_t i = 0;
    switch (kind) {
        OX_ACTIVATE(OX_ACT_SILU)
        OX_ACTIVATE(OX_ACT_GELU_TANH)
        OX_ACTIVATE(OX_ACT_GELU_ERF)
        OX_ACTIVATE(OX_ACT_GELU_QUICK)
        OX_ACTIVATE(OX_ACT_RELU)
        OX_ACTIVATE(OX_ACT_RELU2)
        OX_ACTIVATE(OX_ACT_SIGMOID)
        OX_ACTIVATE(OX_ACT_TANH)
        OX_ACTIVATE(OX_ACT_SOFTPLUS)
        OX_ACTIVATE(OX_ACT_EXP_EXCESS)
        OX_ACTIVATE(OX_ACT_EXP)
        OX_ACTIVATE(OX_ACT_SIGNED_ROOT)
    default:
        if (out != x) memcpy(out, x, (size_t)n * sizeof *x);
    }
}

static void exp_row(float *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        int left = n - i < 16 ? (int)(n - i) : 16;
        f32_store_n(out + i, vec_exp(f32_load_n(x + i, left)), left);
    }
}

static void halves_row(uint16_t *out, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) f32_store_f16(out + i, f32_load(x + i));
    for (; i < n; i++) out[i] = ox_f32_to_f16(x[i]);
}

#endif
