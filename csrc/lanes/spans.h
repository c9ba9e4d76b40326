/* Many rows over 16-bit and 32-bit floats: a span of columns of two panels becomes floats (or pairs of bf16, tight.inc) once and stays in the first cache
 * while all tiles of rows run over it. Between spans c keeps the chains of even columns, `odd` the others. The arithmetic per output is that of
 * tiles.h, bit for bit.
 *
 * With 32 registers a broadcast of x serves both panels; with 16 of half the width, or 32 of a quarter, a tile has one panel.
 *
 * F16 by F32, 1280 and 5120 columns, one core of Cascade Lake, whose fma alone does 66 GMAC/s on data in the first cache: a panel at a time 39 and 37
 * GMAC/s, so 46 and 25, with the next tile's rows asked for besides 55 and 54. Spans of 256 columns 45 and 48. */
#if defined(OX_WIDE) || defined(OX_PART_ROWS) || defined(OX_SWEEP)
#define OX_SPANS

enum { SPAN = 128, SPAN_ROWS = 264 };   /* columns of a span, most rows that go over it */
#ifdef OX_WIDE
#define OX_SPAN_SIDE 2                  /* panels that share a tile */
#define OX_SPAN_TILE OX_WIDE            /* rows of a tile with a chain per output */
#define OX_SPAN_HALF OX_WIDE            /* and with two */
#else
#define OX_SPAN_SIDE 1
#define OX_SPAN_TILE 6
#define OX_SPAN_HALF 3
#endif

/* The rows of x in tiles of `rows`, then of fewer; `call` is compiled for each as M, for the rows from i on. */
#define OX_SPAN_TILES(rows, call)                                                                               \
    {                                                                                                           \
        int i = 0;                                                                                              \
        for (; i + (rows) <= m; i += (rows)) { enum { M = (rows) }; call; }                                     \
        if ((rows) > 4 && i + 4 <= m) { enum { M = 4 }; call; i += 4; }                                         \
        for (; i + 2 <= m; i += 2) { enum { M = 2 }; call; }                                                    \
        if (i < m) { enum { M = 1 }; call; }                                                                    \
    }

/* A row's next bf16 numbers as floats. 16 at a time, as rows have room for. */
OX_INLINE void widen(float *to, const uint8_t *x, int n)
{
    for (int k = 0; k < n; k += 16)
        f32_store(to + k, i32_as_f32(i32_shl(i32_load_i16(x + 2 * k), 16)));
}

typedef struct { OX_ALIGN(64) float w[2][SPAN][16]; } ox_spans;

OX_INLINE void spread_tight(ox_spans *s, ox_tight *at, int64_t from, int n)
{
    for (int q = 0; q < 2; q++)
        for (int u = 0; u < n / TIGHT_COLS; u++) {
            ox_i32x16 pairs[4];
            tight_unit(pairs, at + q, (uint32_t)(from / TIGHT_COLS + u));
            OX_UNROLL for (int i = 0; i < 4; i++) {
                f32_store(s->w[q][TIGHT_COLS * u + 2 * i], pair_even(pairs[i]));
                f32_store(s->w[q][TIGHT_COLS * u + 2 * i + 1], pair_odd(pairs[i]));
            }
        }
}

/* `n` columns of OX_SPAN_SIDE panels against m rows; the last span adds the two chains. */
OX_INLINE void span_floats(float *c, int64_t ldc, float (*odd)[32], float (*w)[SPAN][16], int n, const uint8_t *x, int64_t ldx, int m, int first,
                           int last)
{
    enum { S = OX_SPAN_SIDE };
    ox_f32x16 a[S][OX_SPAN_HALF], b[S][OX_SPAN_HALF];
    OX_UNROLL for (int q = 0; q < S; q++)
        OX_UNROLL for (int t = 0; t < m; t++) {
            a[q][t] = first ? f32_zero() : f32_load(c + t * ldc + 16 * q);
            b[q][t] = first ? f32_zero() : f32_load(odd[t] + 16 * q);
        }
    for (int k = 0; k < n; k += 2, x += 8) {
        ox_f32x16 v[S];
        if (k % 16 == 0)                /* what the next tile reads: a stretch of each row is too short for the processor to foresee */
            OX_UNROLL for (int t = 0; t < m; t++)
                OX_PREFETCH_L2(x + (m + t) * ldx);
        OX_UNROLL for (int q = 0; q < S; q++)
            v[q] = f32_load(w[q][k]);
        OX_UNROLL for (int t = 0; t < m; t++) {
            ox_f32x16 y = f32_set1(act_f32(x + t * ldx));
            OX_UNROLL for (int q = 0; q < S; q++)
                a[q][t] = f32_fma(v[q], y, a[q][t]);
        }
        if (k + 1 == n)
            break;
        OX_UNROLL for (int q = 0; q < S; q++)
            v[q] = f32_load(w[q][k + 1]);
        OX_UNROLL for (int t = 0; t < m; t++) {
            ox_f32x16 y = f32_set1(act_f32(x + t * ldx + 4));
            OX_UNROLL for (int q = 0; q < S; q++)
                b[q][t] = f32_fma(v[q], y, b[q][t]);
        }
    }
    OX_UNROLL for (int q = 0; q < S; q++)
        OX_UNROLL for (int t = 0; t < m; t++) {
            f32_store(c + t * ldc + 16 * q, last ? f32_add(a[q][t], b[q][t]) : a[q][t]);
            f32_store(odd[t] + 16 * q, b[q][t]);
        }
}

OX_INLINE void wide_floats(OX_WIDE_ARGS, int form)
{
    OX_ALIGN(64) float odd[SPAN_ROWS][32];
    ox_spans s;
    ox_tight at[2];
    const int tight = form == FORM_TIGHT_F16, column = form == FORM_F32 ? 64 : 32;
    const int span = tight ? SPAN / TIGHT_COLS * TIGHT_UNIT : SPAN * column;
    if (tight)
        at[0] = tight_at(panel, cols), at[1] = tight_at(panel + stride, cols);
    for (int64_t from = 0; from < cols; from += SPAN, x += 4 * SPAN) {
        const int n = cols - from < SPAN ? (int)(cols - from) : SPAN;
        if (tight)
            spread_tight(&s, at, from, n);
        else
            for (int k = 0; k < n; k++)
                OX_UNROLL for (int q = 0; q < 2; q++)
                    f32_store(s.w[q][k], load_weights(panel + q * stride + column * (from + k), form));
        const uint8_t *next = from + n == cols ? later ? panel + later : NULL : tight ? at[0].p : panel + column * (from + n);
        OX_SPAN_TILES(OX_SPAN_HALF, {
            span_ahead(next, stride, span, i, M, m);
            for (int q = 0; q < 2; q += OX_SPAN_SIDE)
                span_floats(c + i * ldc + 16 * q, ldc, (float (*)[32])(odd[i] + 16 * q), s.w + q, n, x + i * ldx, ldx, M, from == 0, from + n == cols);
        })
    }
}

#define OX_WIDE_SPANS(name)                                                                                                 \
    static void wide_##name(OX_WIDE_ARGS)                                                                                    \
    {                                                                                                                        \
        for (; m > SPAN_ROWS; m -= SPAN_ROWS, c += SPAN_ROWS * ldc, x += SPAN_ROWS * ldx)                                    \
            wide_floats(c, ldc, panel, stride, 0, x, ldx, cols, SPAN_ROWS, FORM_##name);                                     \
        wide_floats(c, ldc, panel, stride, later, x, ldx, cols, m, FORM_##name);                                             \
    }
OX_WIDE_SPANS(TIGHT_F16)
#ifdef OX_WIDE
OX_WIDE_SPANS(F32)
OX_WIDE_SPANS(F16)
#endif
#endif
