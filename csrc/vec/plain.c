/* What needs no instruction set: the choice of a table, and sine and cosine of rotary angles in double, without the C library, so that
 * they are the same bits on every machine. */
#include "vec/table.h"

/* pi/2 in three parts; k times the first two is exact for k < 2^20, enough for angles below 1.6 million. */
static const double HALF_PI[3] = { 0x1.921fb544p+0, 0x1.0b4611a6p-34, 0x1.3198a2e037073p-69 };

/* Taylor series: on |r| <= pi/4 the first dropped terms are below 1e-19. */
static void sine_cosine(double x, double *sine, double *cosine)
{
    double k = x * 0x1.45f306dc9c883p-1;
    int64_t turn = (int64_t)(k + (k < 0 ? -0.5 : 0.5));
    double n = (double)turn;
    double r = x - n * HALF_PI[0];
    r = r - n * HALF_PI[1];
    r = r - n * HALF_PI[2];
    double z = r * r, s = -1.0 / 121645100408832000.0, c = 1.0 / 6402373705728000.0 * -1.0;
    static const double S[] = { 1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
                                1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0 };
    static const double C[] = { 1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
                                1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -1.0 / 2.0 };
    for (int i = 0; i < 8; i++) s = s * z + S[i], c = c * z + C[i];
    s = r + r * z * s;
    c = 1.0 + z * c;
    switch (turn & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s;
    }
}

void ox_angles(float *out, const float *f, int n, double position, double scale)
{
    for (int i = 0; i < n; i++) {
        double sine, cosine;
        sine_cosine(position * (double)f[i], &sine, &cosine);
        out[i] = (float)(cosine * scale);
        out[n + i] = (float)(sine * scale);
    }
}

const ox_vec *ox_vec_table(int isa)
{
    switch (isa) {
    case OX_ISA_SCALAR: return &ox_vec_scalar;
#if defined(__x86_64__)
    case OX_ISA_AVX2: return &ox_vec_avx2;
    case OX_ISA_AVX512: return &ox_vec_avx512;
#endif
#if defined(__aarch64__)
    case OX_ISA_NEON: return &ox_vec_neon;
#endif
    default: return NULL;
    }
}
