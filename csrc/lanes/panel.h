/* The panel: 16 rows of a weight matrix, all columns, one row per lane, the same bytes on every instruction set.
 *
 *   panel = one stream, read from its first byte to its last: [ side ][ code ] [ side ][ code ] ...
 *   side  = 64 bytes: the float scales of 16 rows side by side, of as many file blocks as fill them (OX_SIDE_SPAN); zeros after the last
 *   code  = of these blocks, per 256 columns (OX_FORM256): [ head ] then 8 units; otherwise units only
 *   unit  = 32 columns x 16 rows as planes of 64-byte vectors. A vector's byte 4 r + k belongs to row r, column 4 g + k of group g:
 *             8 bits   8 vectors, one group each
 *             4 bits   4 vectors: low nibble group 2 i, high nibble group 2 i + 1
 *             2 bits   2 vectors: bits 2 q, 2 q + 1 = group 4 i + q
 *             1 bit    1 vector: bit g = group g
 *             5 = 4 + 1 bits, 6 = 4 + 2 bits, 3 = 2 + 1 bits: the low plane first
 *   head  = integer scales of the 16 rows; dword r = 4 values of row r in the order 0, 2, 1, 3 (so that even and odd bytes make pairs)
 *
 * A tight panel (OX_TIGHT) says the same as one of 16-bit floats in three quarters of its bytes: a bf16 number is a byte of sign and high exponent,
 * of which few are in use, above a byte of low exponent and mantissa.
 *
 *   panel = [ head ][ unit ] ... [ unit ][ more exceptions ]
 *   head  = 128 bytes: a table of 16 high bytes, then the first exceptions
 *   unit  = 8 columns x 16 rows: 64 bytes of codes into the table (low nibbles columns 0-3, high ones columns 4-7), 64 low bytes of columns 0-3, 64 of
 *           columns 4-7. Byte 16 q + 8 p + 2 i + e of each belongs to row 4 q + i and to column 2 p + e of the four: a byte-wise interleaving of
 *           16 low and 16 high bytes gives pairs of columns, row beside row
 *   exception = dword: unit << 15 | byte of the unit's 128 << 8 | high byte, for a weight whose high byte is not in the table. Ascending by units;
 *           0xffffffff after the last. A panel with more than there is room for cannot be tight, nor can its matrix.
 */
#ifndef OX_LANES_PANEL_H
#define OX_LANES_PANEL_H
#include "ox.h"

enum { OX_PANEL_LAYOUT = 4 };       /* grows when these bytes change: what keeps panels in a file asks for it */

enum { ACT_F32 = 0, ACT_Q8_32 = 1, ACT_Q8_256 = 2, ACT_BF16 = 3, ACT_COUNT = 4 };

enum { FAMILY_FLOAT, FAMILY_PAIRS, FAMILY_32, FAMILY_256, FAMILY_TIGHT };

enum { TIGHT_HEAD = 128, TIGHT_UNIT = 192, TIGHT_COLS = 8, TIGHT_FIRST = 28 };      /* bytes of a head and a unit, its columns, exceptions in the head */
#define OX_TIGHT_ROOM(cols) (TIGHT_FIRST + (cols) / 4)          /* exceptions and their end: one weight of 64 */
#define OX_TIGHT_FITS(cols) ((cols) % TIGHT_COLS == 0 && (cols) >= 64 && (cols) < 1 << 20)

/* Sides: `count` numbers of `size` bytes per row and file block; number k of row r lies at (16 k + r) size. */
enum {
    SIDE_NONE,
    SIDE_F16,          /* d */
    SIDE_F16_MIN,      /* d, then the minimum (added in 32s, subtracted in 256s) */
    SIDE_F32,          /* d */
    SIDE_E8M0,         /* d = 2^(e - 128) */
    SIDE_UE4M3         /* four scales of 16 columns, unsigned e4m3, to be halved */
};

enum {
    HEAD_NONE,         /* one scale of 1 */
    HEAD_8X6_MIN,      /* 8 scales and 8 minima of 6 bits: 2 vectors of low nibbles, 1 of the four pairs of high bits */
    HEAD_16X6,         /* 16 scales of 6 bits, less 32: the same */
    HEAD_16X8,         /* 16 signed bytes: 4 vectors */
    HEAD_8X8,          /* 8 signed bytes: 2 vectors */
    HEAD_8X4,          /* 8 scales 2 s + 1 of 4 bits: 1 vector */
    HEAD_16X4,         /* 16 scales 2 s + 1 of 4 bits: 2 vectors */
    HEAD_16X4_MIN      /* 16 scales (low nibble) and 16 minima (high nibble): 4 vectors */
};

#define OX_HEAD_BYTES(h) \
    ((h) == HEAD_NONE ? 0 : (h) == HEAD_8X4 ? 64 : (h) == HEAD_8X6_MIN || (h) == HEAD_16X6 ? 192 \
     : (h) == HEAD_8X8 || (h) == HEAD_16X4 ? 128 : 256)
/* columns under one integer scale */
#define OX_HEAD_SUB(h) ((h) == HEAD_NONE ? 256 : (h) == HEAD_8X6_MIN || (h) == HEAD_8X8 || (h) == HEAD_8X4 ? 32 : 16)
#define OX_HEAD_MIN(h) ((h) == HEAD_8X6_MIN || (h) == HEAD_16X4_MIN)
#define OX_SIDE_SIZE(s) ((s) == SIDE_F32 ? 4 : (s) == SIDE_E8M0 || (s) == SIDE_UE4M3 ? 1 : 2)
#define OX_SIDE_COUNT(s) ((s) == SIDE_NONE ? 0 : (s) == SIDE_F16_MIN ? 2 : (s) == SIDE_UE4M3 ? 4 : 1)
#define OX_SIDE_BYTES(s) (16 * OX_SIDE_SIZE(s) * OX_SIDE_COUNT(s))
#define OX_SIDE_SPAN(s) ((s) == SIDE_NONE ? 1 : 64 / OX_SIDE_BYTES(s))        /* file blocks that share one side */
#define OX_UNIT_BYTES(store) (64 * (store))             /* 32 columns x 16 rows x store bits */
#define OX_ROUND64(n) (((n) + 63) & ~(int64_t)63)

/* Activation rows, block after block:
 *   q8_32   48 bytes per 32 columns:    codes int8[32], d float, - sum int32, d * sum float, sums of 16 int16[2]
 *   q8_256  320 bytes per 256 columns:  codes int8[256], d float, three largest sums int16[3] (of magnitudes of 16, of 32, of one sign of 32),
 *           6 zero bytes, sums of 16 int16[16], sums of 32 int16[8]
 *   bf16    2 bytes a column, a zero after an odd one */
enum { ACT32_D = 32, ACT32_LESS = 36, ACT32_DSUM = 40, ACT32_HALVES = 44, ACT32_BYTES = 48 };
enum { ACT256_D = 256, ACT256_MOST16 = 260, ACT256_MOST32 = 262, ACT256_SIGN32 = 264, ACT256_SUM16 = 272, ACT256_SUM32 = 304, ACT256_BYTES = 320 };

enum {
#define OX_FLOAT(name, bytes) FORM_##name,
#define OX_PAIRS(name) FORM_##name,
#define OX_TIGHT(name, plain) FORM_##name,
#define OX_FORM32(name, store, bits, off, side) FORM_##name,
#define OX_FORM256(name, store, bits, off, head, side, unit) FORM_##name,
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_PAIRS
#undef OX_FORM32
#undef OX_FORM256
    FORM_COUNT
};

typedef struct {
    const char *name;      /* the GGUF format */
    int block, bytes;      /* of the file */
    int family, act, store, side, head;
    int plain;             /* the form that says the same of any weights; its own number unless it is tight */
} ox_form;

extern const ox_form ox_forms[FORM_COUNT];

int ox_form_from_name(const char *name);                              /* index, or -1 */
int ox_form_tight(int form, int64_t cols);                            /* the tight form of as many columns, or -1 */
int64_t ox_act_bytes(int act, int64_t cols);                          /* bytes of an activation row, an odd multiple of 64 */
int64_t ox_panel_bytes(const ox_form *form, int64_t cols);            /* a multiple of 64 */
/* Writes panels [first, end) of a matrix whose file rows start at src, `row_bytes` apart. Rows past the end become zeros. 0 where one of them
 * cannot be tight: none of them is to be read then. */
int ox_pack(const ox_form *form, uint8_t *panels, const uint8_t *src, int64_t row_bytes, int64_t rows, int64_t cols, int64_t first,
        int64_t end);

/* The kernels of one instruction set. Pointers and counts in, nothing out. */
typedef struct {
    const char *name;
    /* c[t ldc + r] = row r of the panel . activation row t, for t < m, r < 16: the whole panel, all columns. `then` is the panel that
     * this worker reads next (NULL if none): more rows than one ask for the bytes that lie OX_AHEAD further on, from the panel's end on in `then`. */
    void (*tile[FORM_COUNT])(float *c, int64_t ldc, const uint8_t *panel, const uint8_t *then, const uint8_t *x, int64_t ldx,
            int64_t cols, int m);
    /* c[32 t + r] = row r of `first` . activation row t, c[32 t + 16 + r] = row r of `second` . that, for up to `beside_rows` rows: two
     * streams, wherever the panels lie */
    void (*beside[FORM_COUNT])(float *c, const uint8_t *first, const uint8_t *second, const uint8_t *x, int64_t ldx, int64_t cols,
                               int64_t near, int m);
    int8_t beside_rows[FORM_COUNT];
    int8_t few_rows[FORM_COUNT];    /* up to so many rows each worker reads a run of panels of its own, */
    int8_t tile_rows[FORM_COUNT];   /* and up to so many one panel at a time (`tile`); with more, two (`wide`) */
    int full_tile;         /* but exactly so many, which fill a tile of one panel, go by `tile` all the same; 0: no number does */
    int whole_rows;        /* what many rows are best divided into multiples of */
    int range_values;      /* and how many values of x are best multiplied at a time, at most */
    /* `tile` for two panels, `stride` bytes apart, side by side in c (columns 0-15, 16-31), for many rows; `later` bytes on lies the pair
     * that is read next (0: none). NULL: use tile */
    void (*wide[FORM_COUNT])(float *c, int64_t ldc, const uint8_t *panel, int64_t stride, int64_t later, const uint8_t *x, int64_t ldx,
            int64_t cols, int m);
    /* one row of floats to an activation row (or a range of whole blocks of it, both pointers moved) */
    void (*act_quantise[ACT_COUNT])(uint8_t *out, const float *x, int64_t cols);
    /* out[t ldout + r] = c[t ldc + r] (+ bias[r]) for r < n; n <= 16 */
    void (*finish)(float *out, int64_t ldout, const float *c, int64_t ldc, const float *bias, int m, int n);
    /* out = act(g (+ bias_g)) * (u (+ bias_u)); kind as in vec/acts.h */
    void (*gate)(float *out, int64_t ldout, const float *g, const float *u, int64_t ldc, const float *bias_g, const float *bias_u,
            int kind, int m, int n);
} ox_lanes;

enum { LANES_SCALAR, LANES_AVX2, LANES_AVXVNNI, LANES_AVX512, LANES_AVX512INTEL, LANES_AVX512BF16, LANES_AVX512AMX, LANES_NEON, LANES_NEONDOT, LANES_NEONI8MM, LANES_COUNT };
const ox_lanes *ox_lanes_table(int index);          /* NULL when this CPU cannot run it */
int ox_lanes_best(int isa);                         /* the lanes an instruction set of ox.h uses on this CPU */

#endif
