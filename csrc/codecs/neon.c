/* The codecs on AArch64 NEON. */
#if defined(__aarch64__)
#include "isa/neon.h"
#define OX_CODECS ox_codecs_neon
#include "codecs/table.inc"
#endif
