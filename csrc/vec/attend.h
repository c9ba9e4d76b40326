/* Attention over one split of keys: scores, softmax, values, and the merge of splits (see vec/table.h for the shapes).
 *
 * The online softmax of Milakov and Gimelshein (2018) and the tiling of Dao et al. ("FlashAttention", 2022), with one change:
 * splits of 256 keys lie at absolute positions and are folded in ascending order by one formula, wherever they were computed.
 *
 * Orders, the same for every tile: a score is one fma chain over k_dim ascending; a value is one fma chain over the visible keys of
 * the split ascending; the sum of a split adds its groups of 16 ascending, lane by lane, then the tree of f32_hsum.
 *
 * Where keys are kept in panels a score is what the lanes floor makes of the panel and the query as a row of activations.
 *
 * With more than OX_WIDEN queries of a head, halves are converted to floats once for all tiles instead of in each.
 */
#ifndef OX_VEC_ATTEND_H
#define OX_VEC_ATTEND_H

#define OX_SOFTEN 4 /* queries whose softmax runs side by side */

/* Queries i0 to the return value make the next tile: the rest shared out evenly. */
OX_INLINE int tile_end(int i0, int queries)
{
    int left = queries - i0, tiles = (left + OX_TILE_Q - 1) / OX_TILE_Q;
    return i0 + (left + tiles - 1) / tiles;
}

OX_INLINE void bounds(const ox_split *s, int i0, int i1, int *first, int *last)
{
    *first = OX_SPLIT_KEYS, *last = 0;
    for (int i = i0; i < i1; i++)
        if (s->first[i] < s->last[i]) {
            *first = s->first[i] < *first ? s->first[i] : *first;
            *last = s->last[i] > *last ? s->last[i] : *last;
        }
}

/* A block is four groups of one head; a row of blocks is all heads of four groups: first the rows of K, then those of V. While a row is computed,
 * head by head, the row after it is fetched in the order in which it lies: every head of a group, then the next group. Nothing is divided on the way:
 * a block of a single token takes less than half a microsecond, as much as a dozen divisions. */
typedef struct {
    ox_split *s;
    int lo, hi, alike;                     /* keys anyone sees; whether all queries see just these */
    int g0, rows, queries;                 /* the first row's first group; rows of K, and as many of V; queries of a head */
    const char *now[OX_BLOCK_GROUPS];      /* the row's groups, of the first head; a visible group stands in for one that no query sees */
    const char *then[OX_BLOCK_GROUPS];     /* those of the row after it, where `fetch` is set */
    int64_t stride, then_stride;           /* from head to head */
    int fetch, group, head;                /* which of them is fetched next */
} walk;

OX_INLINE int within(const walk *w, int g)
{
    int first = w->lo / 16, last = (w->hi - 1) / 16;
    return g < first ? first : g > last ? last : g;
}

/* The groups of row `row`, of the first head; returns the bytes from head to head. The row after the last one is the caller's next split. */
OX_INLINE int64_t row_at(const walk *w, int row, const char **out)
{
    const ox_split *s = w->s;
    const int values = row >= w->rows, g = w->g0 + OX_BLOCK_GROUPS * (values ? row - w->rows : row);
    const void *const *groups = values ? s->v : s->k;
    if (row == 2 * w->rows) {
        for (int j = 0; j < OX_BLOCK_GROUPS; j++) out[j] = s->next_k[j];
        return s->k_stride;
    }
    for (int j = 0; j < OX_BLOCK_GROUPS; j++) out[j] = groups[within(w, g + j)];
    return values ? s->v_stride : s->k_stride;
}

OX_INLINE void enter(walk *w, int row)
{
    w->stride = row_at(w, row, w->now);
    w->fetch = row + 1 < 2 * w->rows || w->s->ahead;
    w->group = w->head = 0;
    if (w->fetch) w->then_stride = row_at(w, row + 1, w->then);
}

OX_INLINE void place(const walk *w, int head, const void **out)
{
    for (int j = 0; j < OX_BLOCK_GROUPS; j++) out[j] = w->now[j] + w->stride * head;
}

/* What is fetched while a block is computed: its share of the row after its own. NULL when that is not known. */
OX_INLINE const void *const *upcoming(walk *w, const void **out)
{
    if (!w->fetch) return NULL;
    for (int j = 0; j < OX_BLOCK_GROUPS; j++) {
        out[j] = w->then[w->group] + w->then_stride * w->head;
        if (++w->head == w->s->heads) w->head = 0, w->group++;
    }
    return out;
}

/* The same where tiles work on floats: each tile of queries asks for its share of every group, so that no request waits for room. */
typedef struct {
    const void *const *groups;     /* NULL: none */
    int bytes, share, at;          /* of a group: in all, a tile's share, how far the tiles came */
} shares;

OX_INLINE shares shares_of(const void *const *groups, int64_t bytes, int queries)
{
    shares f = { .groups = groups, .bytes = (int)bytes };
    if (groups) f.share = ((int)bytes / 64 * OX_TILE_Q + queries - 1) / queries * 64;
    return f;
}

OX_INLINE void fetch_share(shares *f)
{
    const int end = f->at + f->share < f->bytes ? f->at + f->share : f->bytes;
    if (!f->groups) return;
    for (int j = 0; j < OX_BLOCK_GROUPS; j++)
        for (int b = f->at; b < end; b += 64)
            OX_FETCH((const char *)f->groups[j] + b);
    f->at = end;
}

/* Scores of one head's queries against one block of floats or halves. */
OX_INLINE void score_block(walk *w, int row, int head)
{
    ox_split *s = w->s;
    const void *k[OX_BLOCK_GROUPS], *then[OX_BLOCK_GROUPS];
    const void *const *next = upcoming(w, then);
    int kind = s->kind, queries = w->queries, q0 = queries * head, g0 = w->g0 + OX_BLOCK_GROUPS * row;
    place(w, head, k);
    if (kind == OX_KV_F16 && queries > OX_WIDEN) {         /* enough queries to convert once for all */
        for (int j = 0; j < OX_BLOCK_GROUPS; j++) {
            float *to = s->block + (int64_t)16 * s->k_dim * j;
            for (int d = 0; d < s->k_dim; d++)
                f32_store(to + 16 * d, f32_load_f16((const uint16_t *)k[j] + 16 * d));
            k[j] = to;
        }
        kind = OX_KV_F32;
    }
    shares later = shares_of(kind == OX_KV_F32 ? next : NULL, kept_bytes(s->kind, 16 * (int64_t)s->k_dim), queries);
    for (int i0 = q0, i1; i0 < q0 + queries; i0 = i1) {
        int first, last;
        i1 = tile_end(i0, q0 + queries);
        fetch_share(&later);
        if (w->alike) first = w->lo, last = w->hi;
        else bounds(s, i0, i1, &first, &last);
        for (int j = 0, groups = OX_TILE_G(i1 - i0); j < OX_BLOCK_GROUPS; j += groups)
            if (16 * (g0 + j) < last && 16 * (g0 + j + groups) > first)
                score_tiles[i1 - i0][kind](s->q + i0, k + j, next && i0 == q0 ? next + j : NULL, s->k_dim,
                                           s->scores + OX_SPLIT_KEYS * i0 + 16 * (g0 + j));
    }
}

/* The same against one block of panels. */
OX_INLINE void score_panels(walk *w, int row, int head)
{
    ox_split *s = w->s;
    const void *k[OX_BLOCK_GROUPS], *then[OX_BLOCK_GROUPS];
    const void *const *next = upcoming(w, then);
    int queries = w->queries, q0 = queries * head, g0 = w->g0 + OX_BLOCK_GROUPS * row;
    const int bytes = (s->kind == OX_KV_Q8_0 ? 17 : 9) * s->k_dim;
    const uint8_t *x = s->x + s->ldx * q0;
    float *to = s->scores + OX_SPLIT_KEYS * q0 + 16 * g0;
    place(w, head, k);
    for (int j = 0; j < OX_BLOCK_GROUPS; j++) {
        const int g = g0 + j, seen = g >= w->lo / 16 && 16 * g < w->hi;
        const int pair = s->wide && queries >= 12 && j % 2 == 0 && seen && 16 * (g + 1) < w->hi, by_tile = seen && !pair && queries > 1;
        const char *after = next && by_tile ? (const char *)next[j] + bytes - OX_AHEAD : NULL;     /* so that OX_AHEAD on from the panel lies next[j] */
        if (next && !by_tile)
            for (int i = j; i <= j + pair; i++)
                for (int b = 0; b < bytes; b += 64)
                    OX_FETCH((const char *)next[i] + b);
        if (pair)
            s->wide(to + 16 * j, OX_SPLIT_KEYS, k[j], (const char *)k[j + 1] - (const char *)k[j], 0, x, s->ldx, s->k_dim, queries), j++;
        else if (seen)
            s->tile(to + 16 * j, OX_SPLIT_KEYS, k[j], (const uint8_t *)after, x, s->ldx, s->k_dim, queries);
    }
}

static const float KEY_LANES[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };

/* What a table of 2 reach + 1 distances adds to the scores of 16 keys, the first of them `from` keys after the query. */
OX_INLINE ox_f32x16 bias_of(const float *table, int reach, int from)
{
    float lanes[16];
    if (from >= -reach && from + 15 <= reach) return f32_load(table + from + reach);
    for (int i = 0; i < 16; i++) {
        int d = from + i;
        lanes[i] = table[(d < -reach ? -reach : d > reach ? reach : d) + reach];
    }
    return f32_load(lanes);
}

/* The softcap and what is added by distance, on 16 scores of query i, kept for the second pass. */
OX_INLINE ox_f32x16 adjusted(const ox_split *s, int i, int g, float *p, ox_f32x16 v)
{
    if (s->softcap != 0.0f) v = f32_select_lt(f32_set1(-INFINITY), v, vec_softcap(v, f32_set1(s->softcap)), v);
    if (s->biased == 2) v = f32_add(v, bias_of(s->bias[i], s->reach, (int)s->from[i] + 16 * g));
    else if (s->biased) v = f32_fma(f32_set1(s->slope[i]), f32_add(f32_load(KEY_LANES), f32_set1(s->from[i] + (float)(16 * g))), v);
    f32_store(p, v);
    return v;
}

/* Scores of n neighbouring queries, which see the same keys, into exp(score - m); sets m and l, clears their rows of acc. */
OX_INLINE void soften(ox_split *s, int i0, int n, int plain)
{
    int first = s->first[i0], last = s->last[i0], g0 = first / 16, g1 = (last + 15) / 16;
    float *p = s->scores + OX_SPLIT_KEYS * i0;
    ox_f32x16 top[OX_SOFTEN], sum[OX_SOFTEN];
    OX_UNROLL for (int i = 0; i < n; i++) {
        for (int t = 16 * g0; t < first; t++) p[OX_SPLIT_KEYS * i + t] = -INFINITY;
        for (int t = last; t < 16 * g1; t++) p[OX_SPLIT_KEYS * i + t] = -INFINITY;
        top[i] = f32_set1(-INFINITY), sum[i] = f32_zero();
    }
    for (int g = g0; g < g1; g++)
        OX_UNROLL for (int i = 0; i < n; i++) {
            float *at = p + OX_SPLIT_KEYS * i + 16 * g;
            ox_f32x16 v = f32_load(at);
            top[i] = f32_max(top[i], plain ? v : adjusted(s, i0 + i, g, at, v));
        }
    OX_UNROLL for (int i = 0; i < n; i++) {
        s->m[i0 + i] = f32_hmax(top[i]);
        top[i] = f32_set1(s->m[i0 + i]);
    }
    for (int g = g0; g < g1; g++)
        OX_UNROLL for (int j = 0; j < n; j += OX_MOST_EXPS) {
            ox_f32x16 v[OX_MOST_EXPS];
            const int m = n - j < OX_MOST_EXPS ? n - j : OX_MOST_EXPS;
            OX_UNROLL for (int i = 0; i < m; i++) v[i] = f32_sub(f32_load(p + OX_SPLIT_KEYS * (j + i) + 16 * g), top[j + i]);
            vec_exps_low(m, v);
            OX_UNROLL for (int i = 0; i < m; i++) {
                f32_store(p + OX_SPLIT_KEYS * (j + i) + 16 * g, v[i]);
                sum[j + i] = f32_add(sum[j + i], v[i]);
            }
        }
    OX_UNROLL for (int i = 0; i < n; i++)
        s->l[i0 + i] = f32_hsum(sum[i]);
    memset(s->acc + (int64_t)s->width * i0, 0, (size_t)n * (size_t)s->width * sizeof *s->acc);
}

/* Neighbours side by side where they see the same keys: one query's chain of additions would wait for itself. */
OX_INLINE void soften_all(ox_split *s)
{
    const int plain = s->softcap == 0.0f && !s->biased;
    for (int i = 0, n; i < s->queries; i += n) {
        int same = i + OX_SOFTEN <= s->queries;
        for (int j = 1; same && j < OX_SOFTEN; j++)
            same = s->first[i + j] == s->first[i] && s->last[i + j] == s->last[i];
        n = same ? OX_SOFTEN : 1;
        if (s->first[i] >= s->last[i]) continue;
        if (same && plain) soften(s, i, OX_SOFTEN, 1);
        else if (same) soften(s, i, OX_SOFTEN, 0);
        else soften(s, i, 1, plain);
    }
}

/* The values of keys t0 <= key < t1 for one tile of queries. Each query adds exactly the keys it sees, ascending: those all of them see
 * together, those at the ends one query at a time. */
OX_INLINE void mix_tile(ox_split *s, int i0, int i1, const void *const *v, const void *const *next, int kind, int ldv,
                        int t0, int t1)
{
    int lo[OX_TILE_Q], hi[OX_TILE_Q], all = 1, from = t0, to = t1;
    for (int i = i0; i < i1; i++) {
        int j = i - i0;
        lo[j] = s->first[i] > t0 ? s->first[i] : t0;
        hi[j] = s->last[i] < t1 ? s->last[i] : t1;
        all &= lo[j] < hi[j];
        from = lo[j] > from ? lo[j] : from;
        to = hi[j] < to ? hi[j] : to;
    }
    all &= from < to;
    for (int i = i0; i < i1; i++) {
        int end = all ? from : hi[i - i0];
        if (lo[i - i0] < end)
            value_tiles[1][kind](s->scores + OX_SPLIT_KEYS * i, v, NULL, ldv, lo[i - i0], end, s->acc + (int64_t)s->width * i, s->width);
    }
    if (!all) return;
    value_tiles[i1 - i0][kind](s->scores + OX_SPLIT_KEYS * i0, v, next, ldv, from, to, s->acc + (int64_t)s->width * i0, s->width);
    for (int i = i0; i < i1; i++)
        if (to < hi[i - i0])
            value_tiles[1][kind](s->scores + OX_SPLIT_KEYS * i, v, NULL, ldv, to, hi[i - i0], s->acc + (int64_t)s->width * i, s->width);
}

/* Rows of V from halves or floats into rows of `width` floats, zeros past v_dim. */
OX_INLINE void widen_rows(float *to, const void *v, int kind, int rows, int v_dim, int width)
{
    for (int t = 0; t < rows; t++, to += width) {
        int c = 0;
        if (kind == OX_KV_F16) {
            const uint16_t *from = (const uint16_t *)v + (int64_t)v_dim * t;
            for (; c + 16 <= v_dim; c += 16) f32_store(to + c, f32_load_f16(from + c));
            for (; c < v_dim; c++) to[c] = ox_f16_to_f32(from[c]);
        } else {
            const float *from = (const float *)v + (int64_t)v_dim * t;
            for (; c + 16 <= v_dim; c += 16) f32_store(to + c, f32_load(from + c));
            for (; c < v_dim; c++) to[c] = from[c];
        }
        for (; c < width; c++) to[c] = 0.0f;
    }
}

/* Rows of `width` floats from a group of 16 keys, whose first v_dim floats are the values too; zeros past v_dim. */
OX_INLINE void turn_keys(float *to, const void *k, int kind, int v_dim, int width)
{
    const int coded = kind > OX_KV_F16, unit = kind == OX_KV_Q8_0 ? 512 : 256;
    for (int d = 0; d < width; d++) {
        float row[16] = { 0 };
        if (d < v_dim && coded) {
            int b = d / 32, c = d % 32;
            const uint8_t *at = (const uint8_t *)k + 64 * (b / 2 + 1) + unit * b, *side = at - 64 - (b % 2 ? unit : 0) + 32 * (b % 2);
            for (int t = 0; t < 16; t++) {
                uint16_t h;
                memcpy(&h, side + 2 * t, 2);
                int code = kind == OX_KV_Q8_0 ? at[64 * (c / 4) + 4 * t + c % 4] - 128
                                              : (at[64 * (c / 8) + 4 * t + c % 4] >> (c % 8 < 4 ? 0 : 4) & 15) - 8;
                row[t] = (float)code * ox_f16_to_f32(h);
            }
        } else if (d < v_dim) {
            f32_store(row, kind == OX_KV_F16 ? f32_load_f16((const uint16_t *)k + 16 * d) : f32_load((const float *)k + 16 * d));
        }
        for (int t = 0; t < 16; t++) to[(int64_t)width * t + d] = row[t];
    }
}

/* The values of one head's queries over one block; for many queries rows of halves are widened to floats once. */
OX_INLINE void mix_block(walk *w, int row, int head)
{
    ox_split *s = w->s;
    const void *v[OX_SPLIT_GROUPS], *then[OX_BLOCK_GROUPS];
    const void *const *next = upcoming(w, then);
    int queries = w->queries, q0 = queries * head, g0 = w->g0 + OX_BLOCK_GROUPS * row;
    int t0 = 16 * g0 > w->lo ? 16 * g0 : w->lo, t1 = 16 * (g0 + OX_BLOCK_GROUPS) < w->hi ? 16 * (g0 + OX_BLOCK_GROUPS) : w->hi;
    const int widen = s->view || (s->kind == OX_KV_F16 && queries > OX_WIDEN) || s->v_dim != s->width, kind = widen ? OX_KV_F32 : s->kind;
    place(w, head, v + g0);
    if (widen)
        for (int g = t0 / 16; 16 * g < t1; g++) {
            int t = 16 * g > t0 ? 16 * g : t0, end = 16 * (g + 1) < t1 ? 16 * (g + 1) : t1;
            float *to = s->block + (int64_t)s->width * 16 * (g - g0);
            if (s->view) {
                turn_keys(to, v[g], s->kind, s->v_dim, s->width);
                v[g] = to;
                continue;
            }
            widen_rows(to + (int64_t)s->width * (t - 16 * g), (const char *)v[g] + (int64_t)(t - 16 * g) * kept_bytes(s->kind, s->v_dim),
                       s->kind, end - t, s->v_dim, s->width);
            v[g] = to;
        }
    shares later = shares_of(kind == OX_KV_F32 ? next : NULL, kept_bytes(s->kind, 16 * (int64_t)s->v_dim), queries);
    for (int i0 = q0, i1; i0 < q0 + queries; i0 = i1) {
        i1 = tile_end(i0, q0 + queries);
        fetch_share(&later);
        if (w->alike)
            value_tiles[i1 - i0][kind](s->scores + OX_SPLIT_KEYS * i0, v, i0 == q0 ? next : NULL, s->width, t0, t1,
                                       s->acc + (int64_t)s->width * i0, s->width);
        else
            mix_tile(s, i0, i1, v, i0 == q0 ? next : NULL, kind, s->width, t0, t1);
    }
}

static void split(ox_split *s)
{
    walk w = { .s = s, .alike = 1, .queries = s->queries / s->heads };
    bounds(s, 0, s->queries, &w.lo, &w.hi);
    if (w.lo >= w.hi) return;
    for (int i = 0; i < s->queries; i++) w.alike &= s->first[i] == w.lo && s->last[i] == w.hi;
    w.g0 = w.lo / 16 / OX_BLOCK_GROUPS * OX_BLOCK_GROUPS;
    w.rows = ((w.hi + 15) / 16 - w.g0 + OX_BLOCK_GROUPS - 1) / OX_BLOCK_GROUPS;
    for (int row = 0; row < 2 * w.rows; row++) {
        if (row == w.rows) soften_all(s);
        enter(&w, row);
        for (int head = 0; head < s->heads; head++) {
            if (row >= w.rows) mix_block(&w, row - w.rows, head);
            else if (s->kind <= OX_KV_F16) score_block(&w, row, head);
            else score_panels(&w, row, head);
        }
    }
}

/* exp of up to 16 differences at once */
OX_INLINE void exp_of(float *out, const float *x, const float *top)
{
    f32_store(out, vec_exp(f32_sub(f32_load(x), f32_load(top))));
}

/* The one formula that puts two splits together: top = max(M, m); L = L e^(M - top) + l e^(m - top), and ACC likewise. */
static void fold(ox_split *s, float *M, float *L, float *ACC, int *seen)
{
    for (int i0 = 0; i0 < s->queries; i0 += 16) {
        float top[16], m[16], a[16], b[16], old[16];
        int n = s->queries - i0 < 16 ? s->queries - i0 : 16;
        for (int i = 0; i < 16; i++) {
            int both = i < n && seen[i0 + i] && s->first[i0 + i] < s->last[i0 + i];
            old[i] = both ? M[i0 + i] : 0.0f;
            m[i] = both ? s->m[i0 + i] : 0.0f;
            top[i] = old[i] > m[i] ? old[i] : m[i];
        }
        exp_of(a, old, top);
        exp_of(b, m, top);
        for (int i = 0; i < n; i++) {
            const float *from = s->acc + (int64_t)s->width * (i0 + i);
            float *to = ACC + (int64_t)s->width * (i0 + i);
            int q = i0 + i;
            if (s->first[q] >= s->last[q]) continue;
            if (!seen[q]) {
                seen[q] = 1, M[q] = s->m[q], L[q] = s->l[q];
                memcpy(to, from, (size_t)s->width * sizeof *to);
                continue;
            }
            M[q] = top[i];
            L[q] = fmaf(L[q], a[i], s->l[q] * b[i]);
            ox_f32x16 va = f32_set1(a[i]), vb = f32_set1(b[i]);
            for (int c = 0; c < s->width; c += 16)
                f32_store(to + c, f32_fma(f32_load(to + c), va, f32_mul(f32_load(from + c), vb)));
        }
    }
}

static void finish(float *out, float M, float L, const float *ACC, const float *sink, int n)
{
    float scale = 1.0f;
    if (sink) {
        float x[16] = { M, *sink }, top[16] = { M > *sink ? M : *sink, M > *sink ? M : *sink }, e[16];
        exp_of(e, x, top);
        scale = e[0];
        L = fmaf(L, scale, e[1]);
    }
    ox_f32x16 k = f32_set1(scale / L);
    for (int c = 0; c < n; c += 16) {
        int left = n - c < 16 ? n - c : 16;
        if (left == 16) f32_store(out + c, f32_mul(f32_load(ACC + c), k));
        else f32_store_n(out + c, f32_mul(f32_load(ACC + c), k), left);
    }
}

#endif
