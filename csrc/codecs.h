/* The codec of every GGUF tensor format: packed row -> f32 row and back, one row at a time, no state.
 *
 * `columns` is always a multiple of the format's block and greater than 0; src and dst never overlap; packed rows need no alignment.
 * `unpack` is exact: the floats are bit-equal on every machine. `quantise` minimises sum_i weights[i] (x[i] - unpacked[i])^2 over what
 * the format can say (weights NULL: all ones); weights are finite, >= 0, one per column; src is finite. It needs no scratch.
 * Both give the same bits on every instruction set. */
#ifndef OX_CODECS_H
#define OX_CODECS_H

#include <stdint.h>

typedef struct {
    const char *name; /* as GGUF files and users write it: "Q4_K" */
    int id;           /* tensor type number in GGUF files */
    int block;        /* columns per block */
    int bytes;        /* bytes per block */
    void (*unpack)(float *dst, const void *src, int64_t columns);
    void (*quantise)(void *dst, const float *src, const float *weights, int64_t columns);
} ox_codec;

enum {
#define OX_FORMAT(name, id, block, bytes) OX_INDEX_##name,
#include "formats.def"
#undef OX_FORMAT
    OX_CODEC_COUNT
};

/* In plain C, and by the words of each instruction set. */
extern const ox_codec ox_codecs[OX_CODEC_COUNT], ox_codecs_avx2[OX_CODEC_COUNT], ox_codecs_avx512[OX_CODEC_COUNT],
    ox_codecs_neon[OX_CODEC_COUNT];

const ox_codec *ox_codecs_of(int isa);              /* the table of an OX_ISA_*, the plain one where this build has none for it */
const ox_codec *ox_codec_by_name(const char *name); /* of the plain table; NULL when no format has this name (exact case) */

#endif
