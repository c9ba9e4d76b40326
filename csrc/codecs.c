/* Gathers the formats into one table; each lives, drawing and all, in formats/. */
#include "codecs.h"

#include <stddef.h>
#include <string.h>

#include "formats/bf16.h"
#include "formats/f16.h"
#include "formats/f32.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q5_k.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"

_Static_assert(sizeof(ox_q4_0) == 18 && sizeof(ox_q4_1) == 20 && sizeof(ox_q5_0) == 22 && sizeof(ox_q5_1) == 24, "block layout");
_Static_assert(sizeof(ox_q8_0) == 34 && sizeof(ox_q4_k) == 144 && sizeof(ox_q5_k) == 176 && sizeof(ox_q6_k) == 210, "block layout");

const ox_codec ox_codecs[] = {
#define OX_FORMAT(name, id, block, bytes) {#name, id, block, bytes, ox_unpack_##name, NULL},
#include "formats.def"
#undef OX_FORMAT
};

const int ox_codec_count = (int)(sizeof ox_codecs / sizeof ox_codecs[0]);

const ox_codec *ox_codec_by_id(int id) {
    for (int i = 0; i < ox_codec_count; i++)
        if (ox_codecs[i].id == id) return &ox_codecs[i];
    return NULL;
}

const ox_codec *ox_codec_by_name(const char *name) {
    for (int i = 0; i < ox_codec_count; i++)
        if (strcmp(ox_codecs[i].name, name) == 0) return &ox_codecs[i];
    return NULL;
}
