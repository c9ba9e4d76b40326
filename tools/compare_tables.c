/* Compares every table of kernels that this processor runs with plain C, bit for bit: codecs, packed products, float rows, attention, recurrent
 * states.
 * Built by tools/aarch64_kernels.sh; stands on csrc alone, so that an emulator without Python can run it. An argument names the table that products
 * must use there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "codecs.h"
#include "lanes/panel.h"
#include "vec/table.h"

enum { COLUMNS = 512, ROWS = 32, TOKENS = 11 };

static int compared, differ;
static uint64_t state = 88172645463325252u;

static float number(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (float)((double)(state >> 11) * 0x1p-53 * 4 - 2);
}

static void same(const char *what, const char *table, const char *name, const void *a, const void *b, size_t size)
{
    compared++;
    if (memcmp(a, b, size)) {
        differ++;
        printf("%s of %s: %s differs from plain C\n", what, table, name);
    }
}

static float rows[ROWS * COLUMNS], tokens[TOKENS * COLUMNS];
static uint8_t blocks[ROWS * COLUMNS * 4], other[ROWS * COLUMNS * 4];

static void codecs(int isa)
{
    const ox_codec *plain = ox_codecs_of(OX_ISA_SCALAR), *fast = ox_codecs_of(isa);
    static float a[ROWS * COLUMNS], b[ROWS * COLUMNS];
    for (int i = 0; i < OX_CODEC_COUNT; i++) {
        const int size = COLUMNS / plain[i].block * plain[i].bytes;
        for (int r = 0; r < ROWS; r++) {
            plain[i].quantise(blocks + r * size, rows + r * COLUMNS, r % 2 ? tokens : NULL, COLUMNS);
            fast[i].quantise(other + r * size, rows + r * COLUMNS, r % 2 ? tokens : NULL, COLUMNS);
            plain[i].unpack(a + r * COLUMNS, blocks + r * size, COLUMNS);
            fast[i].unpack(b + r * COLUMNS, blocks + r * size, COLUMNS);
        }
        same("quantise", ox_isa_name(isa), plain[i].name, blocks, other, (size_t)(ROWS * size));
        same("unpack", ox_isa_name(isa), plain[i].name, a, b, sizeof a);
    }
}

/* Products of two panels of `cols` columns. The first rows are as large as can be, all of one sign and by turns;
 * products of a row of x are about the least normal number. */
static void products(const ox_lanes *fast, int i, int cols)
{
    const ox_lanes *plain = ox_lanes_table(LANES_SCALAR);
    const ox_form *form = &ox_forms[i];
    const ox_codec *codec = ox_codec_by_name(ox_forms[form->plain].name);
    const int64_t size = cols / form->block * form->bytes, row = ox_act_bytes(form->act, cols), bytes = ox_panel_bytes(form, cols);
    uint8_t *panel = aligned_alloc(64, (size_t)(2 * bytes)), *x = aligned_alloc(64, (size_t)(TOKENS * row)),
            *y = aligned_alloc(64, (size_t)(TOKENS * row));
    OX_ALIGN(64) float a[TOKENS * 32], b[TOKENS * 32];
    memset(x, 0, (size_t)(TOKENS * row)), memset(y, 0, (size_t)(TOKENS * row));
    for (int r = 0; r < ROWS; r++) {
        float row_of[COLUMNS];
        for (int k = 0; k < cols; k++) {
            const float value = r == 0 ? 2.0f : r == 1 ? -2.0f : r == 2 ? k % 2 ? 2.0f : -2.0f : rows[r * COLUMNS + k];
            row_of[k] = form->plain == i ? value : ox_bits_to_f32(ox_f32_to_bits(value) & 0xffff0000u);       /* what a tight form can hold */
        }
        codec->quantise(blocks + r * size, row_of, NULL, cols);
    }
    if (!ox_pack(form, panel, blocks, size, ROWS, cols, 0, 2))
        printf("%s: not packed\n", form->name), differ++;
    for (int t = 0; t < TOKENS; t++) {
        float row_of[COLUMNS];
        for (int k = 0; k < cols; k++)
            row_of[k] = t == 0 ? 1.0f : t == 1 ? k % 2 ? 1.0f : -1.0f : t == 2 ? tokens[k] * 0x1p-122f : t % 2 ? -rows[t * COLUMNS + k] : tokens[t * COLUMNS + k];
        plain->act_quantise[form->act](x + t * row, row_of, cols);
        fast->act_quantise[form->act](y + t * row, row_of, cols);
    }
    same("activations", fast->name, form->name, x, y, (size_t)(TOKENS * row));
    plain->tile[i](a, 32, panel, NULL, x, row, cols, TOKENS);
    plain->tile[i](a + 16, 32, panel + bytes, NULL, x, row, cols, TOKENS);
    for (int m = 1; m <= TOKENS; m++) {
        memset(b, 0, sizeof b);
        fast->tile[i](b, 32, panel, NULL, x, row, cols, m);
        fast->tile[i](b + 16, 32, panel + bytes, NULL, x, row, cols, m);
        same("tile", fast->name, form->name, a, b, sizeof(float) * 32 * (size_t)m);
        if (fast->wide[i]) {
            memset(b, 0, sizeof b);
            fast->wide[i](b, 32, panel, bytes, 0, x, row, cols, m);
            same("wide", fast->name, form->name, a, b, sizeof(float) * 32 * (size_t)m);
        }
    }
    for (int m = 1; m <= fast->beside_rows[i]; m++) {
        fast->beside[i](b, panel, panel + bytes, x, row, cols, 512, m);
        same("beside", fast->name, form->name, a, b, sizeof(float) * 32 * (size_t)m);
    }
    free(panel), free(x), free(y);
}

static void lanes(const ox_lanes *fast)
{
    const ox_lanes *plain = ox_lanes_table(LANES_SCALAR);
    for (int i = 0; i < FORM_COUNT; i++) {
        products(fast, i, COLUMNS);
        if (320 % ox_forms[i].block == 0)           /* not a multiple of 256 */
            products(fast, i, 320);
    }
    OX_ALIGN(64) float a[TOKENS * 16] = { 0 }, b[TOKENS * 16] = { 0 };
    for (int kind = OX_ACT_NONE; kind < OX_ACT_COUNT; kind++) {
        plain->gate(a, 16, rows, tokens, 16, kind % 2 ? rows : NULL, tokens, kind, TOKENS, 16 - kind);
        fast->gate(b, 16, rows, tokens, 16, kind % 2 ? rows : NULL, tokens, kind, TOKENS, 16 - kind);
        same("gate", fast->name, "f32", a, b, sizeof a);
    }
    plain->finish(a, 16, rows, 16, tokens, TOKENS, 13), fast->finish(b, 16, rows, 16, tokens, TOKENS, 13);
    same("finish", fast->name, "f32", a, b, sizeof a);
}

/* A split of 41 keys for three queries of one head: keys and values kept, scores, softmax, mixture. The codes' products are the lanes'. */
static void attend(int isa, int kind)
{
    enum { DIM = 64, KEYS = 41, GROUPS = (KEYS + 15) / 16, QUERIES = 3, BYTES = 16 * DIM * 4 + 512 };
    static uint8_t kept[2][2][GROUPS][BYTES];
    static float found[2][QUERIES * (2 + DIM)], scores[QUERIES * OX_SPLIT_KEYS], block[64 * DIM];
    const int form = ox_form_from_name(kind == OX_KV_Q8_0 ? "Q8_0" : "Q4_0");
    OX_ALIGN(64) static uint8_t x[QUERIES * COLUMNS * 4];
    memset(kept, 0, sizeof kept), memset(found, 0, sizeof found);
    for (int fast = 0; fast < 2; fast++) {
        const ox_vec *table = ox_vec_table(fast ? isa : OX_ISA_SCALAR);
        const ox_lanes *products = ox_lanes_table(ox_lanes_best(fast ? isa : OX_ISA_SCALAR));
        ox_split s = { .queries = QUERIES, .heads = 1, .k_dim = DIM, .v_dim = DIM, .width = DIM, .kind = kind, .softcap = 5.0f,
                       .m = found[fast], .l = found[fast] + QUERIES, .acc = found[fast] + 2 * QUERIES, .scores = scores, .block = block,
                       .x = x, .ldx = ox_act_bytes(ACT_Q8_32, DIM), .tile = products->tile[form], .wide = products->wide[form] };
        for (int t = 0; t < KEYS; t++) {
            table->keep_key(kind, kept[fast][0][t / 16], t % 16, rows + DIM * t, DIM);
            table->keep_value(kind, kept[fast][1][t / 16], t % 16, rows + DIM * (KEYS + t), DIM);
        }
        for (int g = 0; g < GROUPS; g++)
            s.k[g] = kept[fast][0][g], s.v[g] = kept[fast][1][g];
        for (int i = 0; i < QUERIES; i++) {
            s.q[i] = tokens + DIM * i, s.first[i] = 7 * i, s.last[i] = KEYS - i;
            products->act_quantise[ACT_Q8_32](x + i * s.ldx, s.q[i], DIM);
        }
        table->split(&s);
    }
    const char *names[OX_KV_COUNT] = { "f32", "f16", "q8_0", "q4_0" };
    same("keys", ox_isa_name(isa), names[kind], kept[0][0], kept[1][0], sizeof kept[0][0]);
    same("values", ox_isa_name(isa), names[kind], kept[0][1], kept[1][1], sizeof kept[0][1]);
    same("split", ox_isa_name(isa), names[kind], found[0], found[1], sizeof found[0]);
}

/* Recurrent states of 16 channels over rows of a sequence. */
static void recurrent(int isa)
{
    enum { LENGTH = 5, STATES = 16 };
    static float states[3][2][16 * STATES], y[3][2][LENGTH * 16];
    memset(states, 0, sizeof states);
    for (int fast = 0; fast < 2; fast++) {
        const ox_vec *table = ox_vec_table(fast ? isa : OX_ISA_SCALAR);
        table->scan(&(ox_scan){ LENGTH, STATES, 16, 0, 1, rows, tokens, rows + 500, rows + 700, rows + 900, rows + 1200, 16, 16, 16, 16, 16,
                                states[0][fast], y[0][fast] });
        table->delta(&(ox_delta){ LENGTH, STATES, 16, rows, rows + 100, rows + 200, rows + 300, tokens, 16, 16, 16, 1, 1, 16, 0.5f,
                                  states[1][fast], y[1][fast] });
        table->wkv(&(ox_wkv){ LENGTH, STATES, 16, rows, tokens, rows + 200, rows + 300, NULL, NULL, rows + 400, 16, 16, 16, 16, 0, 0, 16, 0.5f,
                              states[2][fast], y[2][fast] });
    }
    enum { HEADS = 80, CHOSEN = 5 };
    static float scores[2][CHOSEN], best[2][HEADS];
    for (int fast = 0; fast < 2; fast++) {
        const ox_vec *table = ox_vec_table(fast ? isa : OX_ISA_SCALAR);
        table->key_scores(scores[fast], rows, tokens, rows + HEADS * 16, CHOSEN, 16, HEADS, 16);
        for (int h = 0; h < HEADS; h++) best[fast][h] = -INFINITY;
        table->best_dots(best[fast], rows, rows + HEADS * 16, CHOSEN, 16, HEADS, 16);
    }
    same("key_scores", ox_isa_name(isa), "f32", scores[0], scores[1], sizeof scores[0]);
    same("best_dots", ox_isa_name(isa), "f32", best[0], best[1], sizeof best[0]);
    const char *names[3] = { "scan", "delta", "wkv" };
    for (int i = 0; i < 3; i++) {
        same(names[i], ox_isa_name(isa), "states", states[i][0], states[i][1], sizeof states[i][0]);
        same(names[i], ox_isa_name(isa), "outputs", y[i][0], y[i][1], sizeof y[i][0]);
    }
}

static void floats(int isa)
{
    const ox_vec *plain = ox_vec_table(OX_ISA_SCALAR), *fast = ox_vec_table(isa);
    const char *name = ox_isa_name(isa);
    static float a[COLUMNS], b[COLUMNS];
    static uint16_t h[COLUMNS], k[COLUMNS];
    if (!fast) {
        printf("%s: no table of float rows\n", name), differ++;
        return;
    }
    for (int n = COLUMNS; n > COLUMNS - 20; n -= 3) {
        plain->rms_norm(a, rows, tokens, NULL, 1e-6f, n), fast->rms_norm(b, rows, tokens, NULL, 1e-6f, n);
        same("rms_norm", name, "f32", a, b, sizeof(float) * (size_t)n);
        plain->layer_norm(a, rows, tokens, tokens, 1e-6f, n), fast->layer_norm(b, rows, tokens, tokens, 1e-6f, n);
        same("layer_norm", name, "f32", a, b, sizeof(float) * (size_t)n);
        plain->exp(a, rows, n), fast->exp(b, rows, n);
        same("exp", name, "f32", a, b, sizeof(float) * (size_t)n);
        plain->softcap(a, rows, 3.0f, n), fast->softcap(b, rows, 3.0f, n);
        same("softcap", name, "f32", a, b, sizeof(float) * (size_t)n);
        plain->halves(h, rows, n), fast->halves(k, rows, n);
        same("halves", name, "f16", h, k, sizeof(uint16_t) * (size_t)n);
        for (int kind = OX_ACT_NONE; kind < OX_ACT_COUNT; kind++) {
            plain->activate(a, rows, kind, n), fast->activate(b, rows, kind, n);
            same("activate", name, "f32", a, b, sizeof(float) * (size_t)n);
        }
    }
    for (int kind = 0; kind < OX_KV_COUNT; kind++)
        attend(isa, kind);
    recurrent(isa);
    memcpy(a, rows, sizeof a), memcpy(b, rows, sizeof b);
    plain->rope_halves(a, tokens, tokens + 64, 64), fast->rope_halves(b, tokens, tokens + 64, 64);
    plain->rope_pairs(a + 128, tokens, tokens + 64, 64), fast->rope_pairs(b + 128, tokens, tokens + 64, 64);
    same("rope", name, "f32", a, b, sizeof a);
}

int main(int argc, char **argv)
{
    const unsigned available = ox_isa_available();
    int tables = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        rows[i] = number();
    for (int i = 0; i < TOKENS * COLUMNS; i++)
        tokens[i] = fabsf(number());
    for (int isa = OX_ISA_SCALAR + 1; isa < OX_ISA_COUNT; isa++)
        if (available >> isa & 1)
            codecs(isa), floats(isa), tables++;
    for (int i = LANES_SCALAR + 1; i < LANES_COUNT; i++)
        if (ox_lanes_table(i)) {
            printf("%s ", ox_lanes_table(i)->name);
            lanes(ox_lanes_table(i)), tables++;
        }
    const char *best = ox_lanes_table(ox_lanes_best(ox_isa_active()))->name;
    printf("%d tables, %d comparisons, %d differ; products are those of %s\n", tables, compared, differ, best);
    return differ || !tables || (argc > 1 && strcmp(best, argv[1]));
}
