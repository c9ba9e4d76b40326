/* What a 4-bit code means where it is no plain number: 16 values, `off` (forms.def) already added. NULL: the code is the value. */
#ifndef OX_LANES_TABLES_H
#define OX_LANES_TABLES_H
#include <stdint.h>

#define lut_Q4_0 NULL
#define lut_Q5_0 NULL
#define lut_Q8_0 NULL
#define lut_Q4_K NULL
#define lut_Q5_K NULL
#define lut_Q6_K NULL

#endif
