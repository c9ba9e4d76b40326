/* The lanes in plain C: slow, and the law. */
#include "isa/scalar.h"
#define OX_TILE_ROWS 4
#define OX_UNROLL
#define OX_LANES_NAME "scalar"
#define OX_LANES_TABLE ox_lanes_scalar
#include "lanes/table.inc"
