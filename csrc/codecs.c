/* Gathers the formats into one table; each lives, drawing and all, in formats/. */
#include "codecs.h"

#include <stddef.h>
#include <string.h>

#include "formats/bf16.h"
#include "formats/f16.h"
#include "formats/f32.h"
#include "formats/iq1_m.h"
#include "formats/iq1_s.h"
#include "formats/iq2_s.h"
#include "formats/iq2_xs.h"
#include "formats/iq2_xxs.h"
#include "formats/iq3_s.h"
#include "formats/iq3_xxs.h"
#include "formats/iq4_nl.h"
#include "formats/iq4_xs.h"
#include "formats/mxfp4.h"
#include "formats/nvfp4.h"
#include "formats/q1_0.h"
#include "formats/q2_0.h"
#include "formats/q2_k.h"
#include "formats/q3_k.h"
#include "formats/q4_0.h"
#include "formats/q4_1.h"
#include "formats/q4_k.h"
#include "formats/q5_0.h"
#include "formats/q5_1.h"
#include "formats/q5_k.h"
#include "formats/q6_k.h"
#include "formats/q8_0.h"
#include "formats/q8_1.h"
#include "formats/q8_k.h"
#include "formats/tq1_0.h"
#include "formats/tq2_0.h"

_Static_assert(sizeof(ox_iq1_m) == 56, "block layout");
_Static_assert(sizeof(ox_iq1_s) == 50, "block layout");
_Static_assert(sizeof(ox_iq2_s) == 82, "block layout");
_Static_assert(sizeof(ox_iq2_xs) == 74, "block layout");
_Static_assert(sizeof(ox_iq2_xxs) == 66, "block layout");
_Static_assert(sizeof(ox_iq3_s) == 110, "block layout");
_Static_assert(sizeof(ox_iq3_xxs) == 98, "block layout");
_Static_assert(sizeof(ox_iq4_nl) == 18, "block layout");
_Static_assert(sizeof(ox_iq4_xs) == 136, "block layout");
_Static_assert(sizeof(ox_mxfp4) == 17, "block layout");
_Static_assert(sizeof(ox_nvfp4) == 36, "block layout");
_Static_assert(sizeof(ox_q1_0) == 18, "block layout");
_Static_assert(sizeof(ox_q2_0) == 18, "block layout");
_Static_assert(sizeof(ox_q2_k) == 84, "block layout");
_Static_assert(sizeof(ox_q3_k) == 110, "block layout");
_Static_assert(sizeof(ox_q4_0) == 18, "block layout");
_Static_assert(sizeof(ox_q4_1) == 20, "block layout");
_Static_assert(sizeof(ox_q4_k) == 144, "block layout");
_Static_assert(sizeof(ox_q5_0) == 22, "block layout");
_Static_assert(sizeof(ox_q5_1) == 24, "block layout");
_Static_assert(sizeof(ox_q5_k) == 176, "block layout");
_Static_assert(sizeof(ox_q6_k) == 210, "block layout");
_Static_assert(sizeof(ox_q8_0) == 34, "block layout");
_Static_assert(sizeof(ox_q8_1) == 40, "block layout");
_Static_assert(sizeof(ox_q8_k) == 292, "block layout");
_Static_assert(sizeof(ox_tq1_0) == 54, "block layout");
_Static_assert(sizeof(ox_tq2_0) == 66, "block layout");

const ox_codec ox_codecs[] = {
#define OX_FORMAT(name, id, block, bytes) {#name, id, block, bytes, ox_unpack_##name, ox_quantise_##name},
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
