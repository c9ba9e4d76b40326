/* The lanes in plain C: slow, and the reference for the others. What is inlined is left to the compiler: no register holds 16 numbers, and with every word inlined
 * at every use this was the longest file of the build, of eighteen times the code, and slower. */
#define OX_INLINE static inline
#include "isa/scalar.h"
#define OX_TILE_ROWS 4
#define OX_UNROLL
#define OX_LANES_NAME "scalar"
#define OX_LANES_TABLE ox_lanes_scalar
#include "lanes/table.inc"
