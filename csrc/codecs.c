/* The formats in plain C, and how one is found. */
/* Left to the compiler here: plain vectors of 16 floats inlined everywhere take it over a minute. */
#define OX_INLINE static inline
#include "isa/scalar.h"
#define OX_CODECS ox_codecs
#include "codecs/table.inc"

const ox_codec *ox_codec_by_name(const char *name) {
    for (int i = 0; i < OX_CODEC_COUNT; i++)
        if (strcmp(ox_codecs[i].name, name) == 0) return &ox_codecs[i];
    return NULL;
}
