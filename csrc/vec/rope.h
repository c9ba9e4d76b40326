/* Rotation of one head by the angles of its position (Su et al., "RoFormer", 2021): cos[i], sin[i] turn pair i. */
#ifndef OX_VEC_ROPE_H
#define OX_VEC_ROPE_H

/* Pairs (x[i], x[i + half]); in place. Two roundings for each product and one for the sum: no fma, so plain loops say the same. */
static void rope_halves(float *x, const float *cosines, const float *sines, int half)
{
    int i = 0;
    for (; i + 16 <= half; i += 16) {
        ox_f32x16 a = f32_load(x + i), b = f32_load(x + half + i), c = f32_load(cosines + i), s = f32_load(sines + i);
        f32_store(x + i, f32_sub(f32_mul(a, c), f32_mul(b, s)));
        f32_store(x + half + i, f32_add(f32_mul(a, s), f32_mul(b, c)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * cosines[i] - b * sines[i];
        x[half + i] = a * sines[i] + b * cosines[i];
    }
}

/* Pairs (x[2i], x[2i + 1]); in place. */
static void rope_pairs(float *x, const float *cosines, const float *sines, int half)
{
    for (int i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosines[i] - b * sines[i];
        x[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
}

#endif
