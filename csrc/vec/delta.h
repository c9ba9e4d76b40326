/* The gated delta rule (Yang et al. 2024, "Gated Delta Networks", section 3.1), for up to 16 values of one head over rows of one sequence, in
 * order; S[i] is the state of key i:
 *
 *   S = e S, e = exp(w);  S[i] += k[i] beta (v - sum of k[i] S[i]);  y = scale sum of q[i] S[i]
 *
 * A lane is a value. Sums over keys run in chains, i mod 4 and i mod 2, added in one order: the same bits for any number of rows at a time.
 */
#ifndef OX_VEC_DELTA_H
#define OX_VEC_DELTA_H

OX_INLINE ox_f32x16 state_dot(const float *state, const float *by, int keys)
{
    ox_f32x16 s0 = f32_zero(), s1 = f32_zero(), s2 = f32_zero(), s3 = f32_zero();
    int i = 0;
    for (; i + 4 <= keys; i += 4) {
        s0 = f32_fma(f32_load(state + 16 * i), f32_set1(by[i]), s0);
        s1 = f32_fma(f32_load(state + 16 * i + 16), f32_set1(by[i + 1]), s1);
        s2 = f32_fma(f32_load(state + 16 * i + 32), f32_set1(by[i + 2]), s2);
        s3 = f32_fma(f32_load(state + 16 * i + 48), f32_set1(by[i + 3]), s3);
    }
    for (; i < keys; i++) s0 = f32_fma(f32_load(state + 16 * i), f32_set1(by[i]), s0);
    return f32_add(f32_add(s0, s1), f32_add(s2, s3));
}

OX_INLINE void delta_gated(const ox_delta *s, int t)
{
    const float *q = s->q + t * s->ldq, *k = s->k + t * s->ldk;
    ox_f32x16 e = vec_exp(f32_set1(s->w[t * s->ldw])), y0 = f32_zero(), y1 = f32_zero();
    ox_f32x16 held = f32_mul(e, state_dot(s->state, k, s->keys));
    ox_f32x16 in = f32_mul(f32_set1(s->beta[t * s->ldbeta]), f32_sub(f32_load_n(s->v + t * s->ldv, s->live), held));
    int i = 0;
    for (; i + 2 <= s->keys; i += 2) {
        ox_f32x16 h0 = f32_fma(in, f32_set1(k[i]), f32_mul(e, f32_load(s->state + 16 * i)));
        ox_f32x16 h1 = f32_fma(in, f32_set1(k[i + 1]), f32_mul(e, f32_load(s->state + 16 * i + 16)));
        f32_store(s->state + 16 * i, h0);
        f32_store(s->state + 16 * i + 16, h1);
        y0 = f32_fma(h0, f32_set1(q[i]), y0);
        y1 = f32_fma(h1, f32_set1(q[i + 1]), y1);
    }
    for (; i < s->keys; i++) {
        ox_f32x16 h = f32_fma(in, f32_set1(k[i]), f32_mul(e, f32_load(s->state + 16 * i)));
        f32_store(s->state + 16 * i, h);
        y0 = f32_fma(h, f32_set1(q[i]), y0);
    }
    f32_store_n(s->y + t * s->ldy, f32_mul(f32_set1(s->scale), f32_add(y0, y1)), s->live);
}

static void delta(const ox_delta *s)
{
    for (int t = 0; t < s->rows; t++)
        delta_gated(s, t);
}

#endif
