/* Linear attention whose state decays key by key (Peng et al. 2024, "Eagle and Finch", section 4.2; Peng et al. 2025, "RWKV-7 Goose", section
 * 4.1), for up to 16 values of one head over rows of one sequence, in order; S[i] is the state of key i:
 *
 *   away = sum of a[i] S[i];  S[i] = w[i] S[i] + k[i] v + b[i] away;  y = scale sum of r[i] S[i]
 *
 * or, with a bonus u for the row itself, y = scale sum of r[i] (S[i] + u[i] k[i] v) of the state before the row. Without a and b nothing is
 * taken away. A lane is a value. Sums over keys run in chains, i mod 4 and i mod 2: the same bits for any number of rows at a time.
 */
#ifndef OX_VEC_WKV_H
#define OX_VEC_WKV_H

/* Key i of one row: the state after it is stored; returns what the row reads of it. */
OX_INLINE ox_f32x16 wkv_key(const ox_wkv *s, int t, int i, ox_f32x16 v, ox_f32x16 away)
{
    float *state = s->state + 16 * i;
    ox_f32x16 before = f32_load(state), in = f32_mul(f32_set1(s->k[t * s->ldk + i]), v);
    ox_f32x16 h = f32_fma(before, f32_set1(s->w[t * s->ldw + i]), in);
    if (s->a) h = f32_fma(away, f32_set1(s->b[t * s->ldb + i]), h);
    f32_store(state, h);
    return s->u ? f32_fma(f32_set1(s->u[i]), in, before) : h;
}

static void wkv(const ox_wkv *s)
{
    for (int t = 0; t < s->rows; t++) {
        const float *r = s->r + t * s->ldr;
        ox_f32x16 v = f32_load_n(s->v + t * s->ldv, s->live), y0 = f32_zero(), y1 = f32_zero();
        ox_f32x16 away = s->a ? state_dot(s->state, s->a + t * s->lda, s->keys) : f32_zero();
        int i = 0;
        for (; i + 2 <= s->keys; i += 2) {
            y0 = f32_fma(wkv_key(s, t, i, v, away), f32_set1(r[i]), y0);
            y1 = f32_fma(wkv_key(s, t, i + 1, v, away), f32_set1(r[i + 1]), y1);
        }
        for (; i < s->keys; i++) y0 = f32_fma(wkv_key(s, t, i, v, away), f32_set1(r[i]), y0);
        f32_store_n(s->y + t * s->ldy, f32_mul(f32_set1(s->scale), f32_add(y0, y1)), s->live);
    }
}

#endif
