/* The lanes of each instruction set, where this CPU can run them. */
#include "lanes/panel.h"

extern const ox_lanes ox_lanes_scalar, ox_lanes_avx2, ox_lanes_avx512;

const ox_lanes *ox_lanes_table(int index)
{
    unsigned can = ox_isa_available();
    if (index < 0 || index >= LANES_COUNT || !((can >> index) & 1))
        return NULL;
#if defined(__x86_64__)
    if (index == LANES_AVX2)
        return &ox_lanes_avx2;
    if (index == LANES_AVX512)
        return &ox_lanes_avx512;
#endif
    return index == LANES_SCALAR ? &ox_lanes_scalar : NULL;
}
