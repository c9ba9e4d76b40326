/* exp and the activations made of it, over the vocabulary of isa/: the same bits on every instruction set.
 *
 * Largest errors, measured against double over the whole range (tests/core/test_vectors.py holds them):
 *   vec_exp      1.1 ULP; 0 below -87.31 (no subnormal results), the value at 88.36 above it
 *   vec_exp_all  the same, infinity above 88.36
 *   vec_tanh     2 ULP
 *   activations  4e-7 of max(|x|, |result|)
 * Coefficients are minimax fits of this project (weighted for relative error), rounded to float.
 */
#ifndef OX_VEC_EXP_H
#define OX_VEC_EXP_H
#include <math.h>

#include "vec/acts.h"

#define OX_MOST_EXPS 2 /* vectors side by side: one alone is twenty operations that wait for each other */

#define OX_EACH OX_UNROLL for (int i = 0; i < n; i++)

/* exp(x) = 2^m p(r) of n vectors: x log2(e) rounded by adding 1.5 * 2^23, whose low bits then hold m; r = x - m ln 2 in two steps. For x <= 88.36
 * or NaN. */
OX_INLINE void vec_exps_low(int n, ox_f32x16 *x)
{
    const ox_f32x16 shift = f32_set1(0x1.8p23f), least = f32_set1(-0x1.5d4p6f);
    ox_f32x16 t[OX_MOST_EXPS], m[OX_MOST_EXPS], r[OX_MOST_EXPS], p[OX_MOST_EXPS];
    OX_EACH t[i] = f32_fma(x[i], f32_set1(0x1.715476p0f), shift);
    OX_EACH m[i] = f32_sub(t[i], shift);
    OX_EACH r[i] = f32_fnma(m[i], f32_set1(0x1.62e43p-1f), x[i]);
    OX_EACH r[i] = f32_fnma(m[i], f32_set1(-0x1.05c61p-29f), r[i]);
    OX_EACH p[i] = f32_fma(f32_set1(0x1.6a2256p-10f), r[i], f32_set1(0x1.123b02p-7f));
    OX_EACH p[i] = f32_fma(p[i], r[i], f32_set1(0x1.5558f8p-5f));
    OX_EACH p[i] = f32_fma(p[i], r[i], f32_set1(0x1.55549p-3f));
    OX_EACH p[i] = f32_fma(p[i], r[i], f32_set1(0x1.fffffcp-2f));
    OX_EACH p[i] = f32_fma(f32_mul(r[i], r[i]), p[i], r[i]);
    OX_EACH p[i] = f32_add(p[i], f32_set1(1.0f));
    OX_EACH p[i] = f32_mul(p[i], i32_as_f32(i32_add(i32_shl(f32_as_i32(t[i]), 23), i32_set1(0x3f800000))));   /* exact, and NaN stays NaN */
    OX_EACH x[i] = f32_select_lt(x[i], least, f32_zero(), p[i]);
}
#undef OX_EACH

OX_INLINE ox_f32x16 vec_exp_low(ox_f32x16 x)
{
    vec_exps_low(1, &x);
    return x;
}

OX_INLINE ox_f32x16 vec_exp(ox_f32x16 x) { return vec_exp_low(f32_min(f32_set1(0x1.617p6f), x)); }

OX_INLINE ox_f32x16 vec_exp_all(ox_f32x16 x)
{
    return f32_select_lt(f32_set1(0x1.617p6f), x, f32_set1(INFINITY), vec_exp(x));
}

OX_INLINE ox_f32x16 vec_sigmoid(ox_f32x16 x)
{
    const ox_f32x16 one = f32_set1(1.0f);
    return f32_div(one, f32_add(one, vec_exp_all(f32_neg(x))));
}

/* x / (1 + exp(-x)) */
OX_INLINE ox_f32x16 vec_silu(ox_f32x16 x)
{
    return f32_div(x, f32_add(f32_set1(1.0f), vec_exp_all(f32_neg(x))));
}

/* x/2 (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): nothing cancels. */
OX_INLINE ox_f32x16 vec_gelu_tanh(ox_f32x16 x)
{
    ox_f32x16 u = f32_mul(x, f32_fma(f32_mul(x, x), f32_set1(-0x1.2444f2p-4f), f32_set1(-0x1.988453p0f)));
    return f32_div(x, f32_add(f32_set1(1.0f), vec_exp_all(u)));
}

/* x * 1.702-scaled sigmoid, the quick form some vision and text models were trained with. */
OX_INLINE ox_f32x16 vec_gelu_quick(ox_f32x16 x)
{
    return f32_div(x, f32_add(f32_set1(1.0f), vec_exp_all(f32_mul(x, f32_set1(-1.702f)))));
}

/* x times the normal distribution function: its tail at t = |x| is exp(-t^2/2) w P(w), w = 1/(1 + t/4). */
OX_INLINE ox_f32x16 vec_gelu_erf(ox_f32x16 x)
{
    const ox_f32x16 one = f32_set1(1.0f);
    ox_f32x16 t = f32_abs(x);
    ox_f32x16 w = f32_div(one, f32_fma(t, f32_set1(0.25f), one));
    ox_f32x16 p = f32_set1(0x1.0fa50cp-6f);
    p = f32_fma(p, w, f32_set1(-0x1.0133aap-4f));
    p = f32_fma(p, w, f32_set1(0x1.a7291p-5f));
    p = f32_fma(p, w, f32_set1(0x1.d1d3d2p-6f));
    p = f32_fma(p, w, f32_set1(0x1.a0a682p-7f));
    p = f32_fma(p, w, f32_set1(0x1.62f076p-4f));
    p = f32_fma(p, w, f32_set1(0x1.26e982p-4f));
    p = f32_fma(p, w, f32_set1(0x1.873b5ap-4f));
    p = f32_fma(p, w, f32_set1(0x1.978586p-4f));
    p = f32_fma(p, w, f32_set1(0x1.989142p-4f));
    ox_f32x16 tail = f32_mul(f32_mul(p, w), vec_exp(f32_mul(f32_mul(t, t), f32_set1(-0.5f))));
    return f32_mul(x, f32_select_lt(x, f32_zero(), tail, f32_sub(one, tail)));
}

/* An odd polynomial below 0.625, else (1 - e) / (1 + e) with e = exp(-2|x|). */
OX_INLINE ox_f32x16 vec_tanh(ox_f32x16 x)
{
    const ox_f32x16 one = f32_set1(1.0f), a = f32_abs(x);
    ox_f32x16 z = f32_mul(x, x), p = f32_set1(-0x1.76ac18p-8f);
    p = f32_fma(p, z, f32_set1(0x1.5256d8p-6f));
    p = f32_fma(p, z, f32_set1(-0x1.b84448p-5f));
    p = f32_fma(p, z, f32_set1(0x1.110768p-3f));
    p = f32_fma(p, z, f32_set1(-0x1.555534p-2f));
    ox_f32x16 near = f32_fma(f32_mul(p, z), x, x);
    ox_f32x16 e = vec_exp(f32_mul(a, f32_set1(-2.0f)));
    ox_f32x16 far = f32_div(f32_sub(one, e), f32_add(one, e));
    far = f32_select_lt(x, f32_zero(), f32_neg(far), far);
    return f32_select_lt(a, f32_set1(0.625f), near, far);
}

OX_INLINE ox_f32x16 vec_relu(ox_f32x16 x) { return f32_select_lt(x, f32_zero(), f32_zero(), x); }

/* log(1 + exp(x)) = max(x, 0) + log1p(e), e = exp(-|x|) in (0, 1]; log1p(e) = 2 artanh(s), s = e / (2 + e) <= 1/3: its series to s^17 leaves
 * 1e-9 of the result. */
OX_INLINE ox_f32x16 vec_softplus(ox_f32x16 x)
{
    ox_f32x16 e = vec_exp(f32_neg(f32_abs(x))), s = f32_div(e, f32_add(e, f32_set1(2.0f))), z = f32_mul(s, s);
    ox_f32x16 p = f32_set1(1.0f / 17.0f);
    p = f32_fma(p, z, f32_set1(1.0f / 15.0f));
    p = f32_fma(p, z, f32_set1(1.0f / 13.0f));
    p = f32_fma(p, z, f32_set1(1.0f / 11.0f));
    p = f32_fma(p, z, f32_set1(1.0f / 9.0f));
    p = f32_fma(p, z, f32_set1(1.0f / 7.0f));
    p = f32_fma(p, z, f32_set1(1.0f / 5.0f));
    p = f32_fma(p, z, f32_set1(1.0f / 3.0f));
    p = f32_fma(f32_mul(p, z), s, s);
    return f32_fma(f32_set1(2.0f), p, vec_relu(x));
}

/* exp(x) - 1 - x below 0, else 0: what xIELU bends its negative half by. From -0.5 on the series to x^9, whose rest is below 1e-9 of it. */
OX_INLINE ox_f32x16 vec_exp_excess(ox_f32x16 x)
{
    x = f32_select_lt(f32_zero(), x, f32_zero(), x); /* a NaN stays */
    ox_f32x16 far = f32_sub(f32_sub(vec_exp(x), f32_set1(1.0f)), x), p = f32_set1(1.0f / 362880.0f);
    p = f32_fma(p, x, f32_set1(1.0f / 40320.0f));
    p = f32_fma(p, x, f32_set1(1.0f / 5040.0f));
    p = f32_fma(p, x, f32_set1(1.0f / 720.0f));
    p = f32_fma(p, x, f32_set1(1.0f / 120.0f));
    p = f32_fma(p, x, f32_set1(1.0f / 24.0f));
    p = f32_fma(p, x, f32_set1(1.0f / 6.0f));
    p = f32_fma(p, x, f32_set1(0.5f));
    return f32_select_lt(x, f32_set1(-0.5f), far, f32_mul(f32_mul(p, x), x));
}

/* sign(x) sqrt(max(|x|, 1e-6)), and 0 at 0: the scores of Qwen 4's hashed embeddings before their sigmoid. */
OX_INLINE ox_f32x16 vec_signed_root(ox_f32x16 x)
{
    ox_f32x16 a = f32_abs(x), least = f32_set1(1e-6f), root = f32_sqrt(f32_select_lt(a, least, least, a));
    root = f32_select_lt(x, f32_zero(), f32_neg(root), root);
    return f32_select_lt(f32_zero(), a, root, x); /* 0 and a NaN stay */
}

/* Every activation by number, numbered in vec/acts.h. */
OX_INLINE ox_f32x16 vec_activate(int kind, ox_f32x16 x)
{
    switch (kind) {
    case OX_ACT_SILU: return vec_silu(x);
    case OX_ACT_GELU_TANH: return vec_gelu_tanh(x);
    case OX_ACT_GELU_ERF: return vec_gelu_erf(x);
    case OX_ACT_GELU_QUICK: return vec_gelu_quick(x);
    case OX_ACT_RELU: return vec_relu(x);
    case OX_ACT_RELU2: x = vec_relu(x); return f32_mul(x, x);
    case OX_ACT_SIGMOID: return vec_sigmoid(x);
    case OX_ACT_TANH: return vec_tanh(x);
    case OX_ACT_SOFTPLUS: return vec_softplus(x);
    case OX_ACT_EXP_EXCESS: return vec_exp_excess(x);
    case OX_ACT_EXP: return vec_exp(x);
    case OX_ACT_SIGNED_ROOT: return vec_signed_root(x);
    default: return x;
    }
}

#endif
