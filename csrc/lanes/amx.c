/* Products of many rows on AMX (amx.h), for a table of lanes/avx512.c. */
#include "ox.h"
#if OX_WITH_AMX
#include "isa/target.h"
OX_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")
#include "isa/avx512.h"
#define OX_TILE_ROWS 8
#include "lanes/amx.h"

#define OX_FLOAT(name, bytes)
#define OX_PAIRS(name)
/* `call` is compiled twice, in functions of their own: in one function, each slows the other down. */
#define OX_AMX(name, call)                                                                                                      \
    static OX_NOINLINE void few_##name(OX_WIDE_ARGS) { enum { FEW = 1 }; call; }                                                \
    static OX_NOINLINE void many_##name(OX_WIDE_ARGS) { enum { FEW = 0 }; call; }                                               \
    void ox_amx_##name(OX_WIDE_ARGS);                                                                                           \
    void ox_amx_##name(OX_WIDE_ARGS) { (m <= AMX_FEW ? few_##name : many_##name)(c, ldc, panel, stride, later, x, ldx, cols, m); }
#define OX_FORM32(name, store, bits, off, side)                                                                                 \
    OX_AMX(name, amx_32(c, ldc, panel, stride, later, x, ldx, cols, m, store, off, side, lut_##name, BLOCK_##name, FEW))
#define OX_FORM256(name, store, bits, off, head, side, unit)                                                                    \
    OX_AMX(name, amx_256(c, ldc, panel, stride, later, x, ldx, cols, m, store, off, head, side, unit, lut_##name, AMX_DIGITS(bits, head), FEW))
#include "lanes/forms.def"
OX_TARGET_END
#endif
