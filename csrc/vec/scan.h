/* The recurrence of a selective state space, for up to 16 channels of one head over rows of one sequence, in order:
 *
 *   h[n] = h[n] exp(dt a[n]) + dt x b[n]      y = sum over n of h[n] c[n], ascending, + d x
 *
 * A lane is a channel. `a` has `states` vectors (Gu and Dao, "Mamba", 2023, section 3.2), or one for all states (Dao and Gu, "Transformers are
 * SSMs", 2024, section 5): exp is then taken once a row. Each channel is a chain of its own: the same bits for any number of rows at a time.
 */
#ifndef OX_VEC_SCAN_H
#define OX_VEC_SCAN_H

static void scan(const ox_scan *s)
{
    ox_f32x16 d = s->d ? f32_load(s->d) : f32_zero(), one = s->one ? f32_load(s->a) : f32_zero();
    for (int t = 0; t < s->rows; t++) {
        const float *b = s->b + t * s->ldb, *c = s->c + t * s->ldc;
        ox_f32x16 x = f32_load_n(s->x + t * s->ldx, s->live);
        ox_f32x16 dt = s->per_lane ? f32_load_n(s->dt + t * s->lddt, s->live) : f32_set1(s->dt[t * s->lddt]);
        ox_f32x16 in = f32_mul(dt, x), y = f32_mul(d, x), decay = f32_zero();
        if (s->one) decay = vec_exp(f32_mul(dt, one));
        for (int n = 0; n < s->states; n++) {
            if (!s->one) decay = vec_exp(f32_mul(dt, f32_load(s->a + 16 * n)));
            ox_f32x16 h = f32_fma(f32_load(s->state + 16 * n), decay, f32_mul(in, f32_set1(b[n])));
            f32_store(s->state + 16 * n, h);
            y = f32_fma(h, f32_set1(c[n]), y);
        }
        f32_store_n(s->y + t * s->ldy, y, s->live);
    }
}

#endif
