/* x86: MXCSR flushes subnormals, after rounding, for as long as a tile of bf16 pairs runs (0x9fc0: to nearest, no traps). What is loaded and stored
 * between two barriers is computed between them. */
#ifndef OX_ISA_MXCSR_H
#define OX_ISA_MXCSR_H
#include "ox.h"
#include <immintrin.h>

typedef unsigned ox_flush;
OX_INLINE ox_flush flush_begin(void)
{
    ox_flush was = _mm_getcsr();
    _mm_setcsr(0x9fc0);
    __asm__ volatile("" ::: "memory");
    return was;
}
OX_INLINE int flush_end(ox_flush was)
{
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(was);
    return 0;
}

#endif
