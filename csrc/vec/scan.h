/* The recurrence of a selective state space, for up to 32 channels of one head over rows of one sequence, in order:
 *
 *   h[n] = h[n] exp(dt a[n]) + dt x b[n]      y = sum over n of h[n] c[n], ascending, + d x
 *
 * A lane is a channel. `a` has `states` vectors a block (Gu and Dao, "Mamba", 2023, section 3.2), or one for all states (Dao and Gu, "Transformers
 * are SSMs", 2024, section 5): exp is then taken once a row. Each channel is a chain of its own: the same bits for any number of rows at a time.
 * Two blocks of 16 channels side by side share what is broadcast, and neither waits for its own chain.
 */
#ifndef OX_VEC_SCAN_H
#define OX_VEC_SCAN_H

OX_INLINE void scan_blocks(const ox_scan *s, const int blocks, const int single)
{
    const int64_t block = 16 * (int64_t)s->states, decays = single ? 16 : block;
    const int live[2] = { s->live < 16 ? s->live : 16, s->live - 16 };
    ox_f32x16 d[2], one[2], in[2], y[2], dt[2], decay[2];
    OX_UNROLL for (int q = 0; q < blocks; q++) {
        d[q] = s->d ? f32_load(s->d + 16 * q) : f32_zero();
        one[q] = single ? f32_load(s->a + 16 * q) : f32_zero();
    }
    for (int t = 0; t < s->rows; t++) {
        const float *b = s->b + t * s->ldb, *c = s->c + t * s->ldc;
        OX_UNROLL for (int q = 0; q < blocks; q++) {
            ox_f32x16 x = f32_load_n(s->x + t * s->ldx + 16 * q, live[q]);
            dt[q] = s->per_lane ? f32_load_n(s->dt + t * s->lddt + 16 * q, live[q]) : f32_set1(s->dt[t * s->lddt]);
            in[q] = f32_mul(dt[q], x), y[q] = f32_mul(d[q], x);
            decay[q] = single ? vec_exp(f32_mul(dt[q], one[q])) : f32_zero();
        }
        for (int n = 0; n < s->states; n++) {
            const ox_f32x16 bn = f32_set1(b[n]), cn = f32_set1(c[n]);
            OX_UNROLL for (int q = 0; q < blocks; q++) {
                float *state = s->state + q * block + 16 * n;
                if (!single) decay[q] = vec_exp(f32_mul(dt[q], f32_load(s->a + q * decays + 16 * n)));
                ox_f32x16 h = f32_fma(f32_load(state), decay[q], f32_mul(in[q], bn));
                f32_store(state, h);
                y[q] = f32_fma(h, cn, y[q]);
            }
        }
        OX_UNROLL for (int q = 0; q < blocks; q++)
            f32_store_n(s->y + t * s->ldy + 16 * q, y[q], live[q]);
    }
}

static void scan(const ox_scan *s)
{
    if (s->live > 16 && s->one) scan_blocks(s, 2, 1);
    else if (s->live > 16) scan_blocks(s, 2, 0);
    else if (s->one) scan_blocks(s, 1, 1);
    else scan_blocks(s, 1, 0);
}

#endif
