/* What happens to a tile's sums on their way out: bias, or a gate. */
#ifndef OX_LANES_FINISH_H
#define OX_LANES_FINISH_H
#include "lanes/panel.h"
#include "vec/exp.h"

OX_INLINE ox_f32x16 with_bias(ox_f32x16 v, const float *bias, int n) { return bias ? f32_add(v, f32_load_n(bias, n)) : v; }

static void finish(float *out, int64_t ldout, const float *c, int64_t ldc, const float *bias, int m, int n)
{
    for (int t = 0; t < m; t++)
        f32_store_n(out + t * ldout, with_bias(f32_load(c + t * ldc), bias, n), n);
}

static void gate(float *out, int64_t ldout, const float *g, const float *u, int64_t ldc, const float *bias_g, const float *bias_u,
        int kind, int m, int n)
{
    for (int t = 0; t < m; t++) {
        ox_f32x16 a = vec_activate(kind, with_bias(f32_load(g + t * ldc), bias_g, n));
        f32_store_n(out + t * ldout, f32_mul(a, with_bias(f32_load(u + t * ldc), bias_u, n)), n);
    }
}

#endif
