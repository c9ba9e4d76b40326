/* The table of one instruction set: rows of floats and one split of attention. Pointers and counts in, nothing out, nothing fails.
 *
 * Every entry gives the same bits on every instruction set, and one row's bits never depend on the rows beside it.
 */
#ifndef OX_VEC_TABLE_H
#define OX_VEC_TABLE_H
#include "ox.h"
#include "vec/acts.h"

enum {
    OX_SPLIT_KEYS = 256,   /* keys of a split: a softmax is computed within splits at fixed absolute positions, then merged in order */
    OX_SPLIT_GROUPS = 16,  /* groups of 16 keys in a split */
    OX_BLOCK_GROUPS = 4,   /* groups worked on together */
    OX_MAX_QUERIES = 128   /* queries of a tile: a third more than any table aims at, since rows have all heads of a group */
};

/* How keys and values are kept (vec/keep.h draws them). */
enum { OX_KV_F32, OX_KV_F16, OX_KV_Q8_0, OX_KV_Q4_0, OX_KV_COUNT };

typedef void ox_tile(float *c, int64_t ldc, const uint8_t *panel, const uint8_t *then, const uint8_t *x, int64_t ldx, int64_t cols, int m);
typedef void ox_wide(float *c, int64_t ldc, const uint8_t *panel, int64_t stride, int64_t later, const uint8_t *x, int64_t ldx, int64_t cols,
                     int m);

/* One split of keys for a tile of queries: `heads` neighbouring KV heads, queries / heads queries each, head after head.
 *
 *   K group g: [k_dim][16 keys]      a lane = a key        (halves, floats, or a panel of 16 rows)
 *   V group g: [16 keys][v_dim]      a lane = an output    (rows of v_dim halves, floats or codes)
 *
 * Query i sees the keys first[i] <= key < last[i] of this split (0 to 256, counted from the split's start); a query with
 * first >= last sees none of it: its m, l and row of acc are left alone. Groups no query sees are never read.
 * A query's result is its own: neither its tile nor the other lanes of a group (unwritten keys) can change a bit of it.
 */
typedef struct {
    int queries, heads, k_dim, v_dim;
    int kind;                          /* how K and V are kept */
    float softcap;                     /* 0: none */
    const float *q[OX_MAX_QUERIES];    /* k_dim floats each, already scaled; where K is kept in panels instead: */
    const uint8_t *x;                  /* a row of activations (q8_32) a query, `ldx` bytes apart */
    int64_t ldx;
    ox_tile *tile;                     /* the lanes floor's products of panels and rows */
    ox_wide *wide;                     /* the same for two panels and many rows; NULL: none */
    int first[OX_MAX_QUERIES], last[OX_MAX_QUERIES];
    int biased;                        /* what is added to a score. 1: slope[i] (key - query) (Press et al., "Train Short, Test Long", 2021);
                                          2: bias[i][clamp(key - query, -reach, reach) + reach] (Raffel et al. 2020, section 2.1) */
    int reach;
    const float *bias[OX_MAX_QUERIES];
    float slope[OX_MAX_QUERIES], from[OX_MAX_QUERIES];     /* from: the split's first key less the query's position */
    int view;                          /* values are the first v_dim floats of the keys, which `v` points at too */
    const void *k[OX_SPLIT_GROUPS], *v[OX_SPLIT_GROUPS];   /* of the first head */
    int64_t k_stride, v_stride;        /* bytes from one head's groups to the next head's */
    int ahead;                         /* whether next_k says where the caller's next split begins, to be fetched in time */
    const void *next_k[OX_BLOCK_GROUPS];
    float *m, *l;                      /* per query: largest score, sum of exp(score - m) */
    float *acc;                        /* per query: sum of exp(score - m) v, rows of `width` floats */
    int width;                         /* v_dim rounded up to 16 */
    float *scores;                     /* scratch: queries x 256 */
    float *block;                      /* scratch: 64 keys of K or V as floats, 64 x max(k_dim, width) */
} ox_split;

/* Rows of one sequence through the recurrence of up to 16 channels of one head (vec/scan.h); ld* are floats from row to row. */
typedef struct {
    int rows, states, live;            /* live: channels, two blocks of 16 at most */
    int one, per_lane;                 /* one: `a` is one vector for all states; per_lane: dt has a number a channel, else one for all */
    const float *x, *dt, *b, *c, *a, *d;   /* a: [block][states or 1][16]; d: [block][16] or NULL */
    int64_t ldx, lddt, ldb, ldc, ldy;
    float *state;                      /* [block][states][16], read and left */
    float *y;
} ox_scan;

/* Rows of one sequence through the gated delta rule (vec/delta.h), for up to 16 values of one head. */
typedef struct {
    int rows, keys, live;              /* live: values */
    const float *q, *k, *v;            /* q, k: [keys] a row; v: [live] */
    const float *w, *beta;             /* one number a row; w: the decay's logarithm */
    int64_t ldq, ldk, ldv, ldw, ldbeta, ldy;
    float scale;                       /* of y */
    float *state;                      /* [keys][16], read and left */
    float *y;
} ox_delta;

/* Rows of one sequence through a state that decays key by key (vec/wkv.h), for up to 16 values of one head. */
typedef struct {
    int rows, keys, live;              /* live: values */
    const float *r, *w, *k, *v;        /* r, w, k: [keys] a row; v: [live] */
    const float *a, *b;                /* [keys] a row, or both NULL */
    const float *u;                    /* [keys] or NULL */
    int64_t ldr, ldw, ldk, ldv, lda, ldb, ldy;
    float scale;                       /* of y */
    float *state;                      /* [keys][16], read and left */
    float *y;
} ox_wkv;

typedef struct {
    int queries;    /* of a prompt that a tile of attention aims at: a multiple of every register tile */
    void (*rms_norm)(float *out, const float *x, const float *weight, const float *bias, float eps, int64_t n);
    void (*layer_norm)(float *out, const float *x, const float *weight, const float *bias, float eps, int64_t n);
    void (*add)(float *out, const float *x, const float *y, int64_t n);
    void (*mul)(float *out, const float *x, const float *y, int64_t n);
    void (*scale)(float *out, const float *x, float factor, int64_t n);
    void (*softcap)(float *out, const float *x, float cap, int64_t n);
    void (*clamp)(float *out, const float *x, float low, float high, int64_t n);
    void (*activate)(float *out, const float *x, int kind, int64_t n);
    void (*exp)(float *out, const float *x, int64_t n);
    void (*halves)(uint16_t *out, const float *x, int64_t n);
    /* Keeps one token's key or value of one head in its group of 16 tokens. */
    void (*keep_key)(int kind, void *group, int lane, const float *x, int dim);
    void (*keep_value)(int kind, void *group, int row, const float *x, int dim);
    void (*rope_halves)(float *x, const float *cosines, const float *sines, int half);
    void (*rope_pairs)(float *x, const float *cosines, const float *sines, int half);
    void (*split)(ox_split *s);
    /* Folds the split's m, l and acc into the running M, L and ACC of its queries, splits ascending; seen[i]: query i has begun.
     * Then the sink (or NULL) and the division, one query at a time. */
    void (*fold)(ox_split *s, float *M, float *L, float *ACC, int *seen);
    void (*finish)(float *out, float M, float L, const float *ACC, const float *sink, int n);
    void (*scan)(const ox_scan *s);
    void (*delta)(const ox_delta *s);
    void (*wkv)(const ox_wkv *s);
    /* For each of `count` keys the sum over heads of shares[h] times the dot product of query h and the key, where it is positive.
     * queries: [dim][heads]; heads: a multiple of 16; keys `stride` floats apart. */
    void (*key_scores)(float *out, const float *queries, const float *shares, const float *keys, int count, int64_t stride, int heads, int dim);
    /* best[h]: the largest of itself and the dot products of query h and such keys. A NaN is passed over. */
    void (*best_dots)(float *best, const float *queries, const float *keys, int count, int64_t stride, int heads, int dim);
} ox_vec;

extern const ox_vec ox_vec_scalar;
extern const ox_vec ox_vec_avx2;
extern const ox_vec ox_vec_avx512;
extern const ox_vec ox_vec_neon;

const ox_vec *ox_vec_table(int isa); /* NULL when this build has none for it */

/* out = [cos(position * f[i]) * scale ..., sin(position * f[i]) * scale ...]; angles in double, the same bits on every machine */
void ox_angles(float *out, const float *f, int n, double position, double scale);

#endif
