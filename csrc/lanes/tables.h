/* What a code of the panel means where it is no plain number: 16 values, `off` (forms.def) already added. NULL: the code is the value. */
#ifndef OX_LANES_TABLES_H
#define OX_LANES_TABLES_H
#include <stdint.h>

static const uint8_t lut_IQ4_NL[16] = { 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 };   /* levels + 128 */
/* The same as 15 code + rest, for OX_DOT8_RAMP: two dots of few bits instead of one of 8. The only table of 8 bits. */
static const uint8_t rest_IQ4_NL[16] = { 1, 9, 15, 18, 19, 18, 16, 13, 9, 6, 3, 1, 1, 2, 7, 16 };
static const uint8_t lut_MXFP4[16] = { 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0 };                 /* 2 e2m1 + 12 */
static const uint8_t lut_Q1_0[16] = { 0, 2 };                                                                       /* -1, 1 */
static const uint8_t lut_IQ3_S[16] = { 16, 18, 20, 22, 24, 26, 28, 30, 14, 12, 10, 8, 6, 4, 2, 0 };                 /* 15 +- 1, 3 .. 15 */
/* 62 +- 4, 12 .. 52, 62 */
static const uint8_t lut_IQ3_XXS[16] = { 66, 74, 82, 90, 98, 106, 114, 124, 58, 50, 42, 34, 26, 18, 10, 0 };
static const uint8_t lut_IQ2_S[16] = { 51, 68, 86, 43, 35, 18, 0, 43 };                                             /* 43 +- 8, 25, 43 */
/* 9 + 8 t + 1, then - 1 */
static const uint8_t lut_IQ1_S[16] = { 2, 10, 18, 0, 0, 8, 16, 0 };
#define lut_NVFP4 lut_MXFP4
#define lut_IQ4_XS lut_IQ4_NL
#define lut_IQ2_XS lut_IQ2_S
#define lut_IQ2_XXS lut_IQ2_S
#define lut_IQ1_M lut_IQ1_S
#define lut_Q4_0 NULL
#define lut_Q4_1 NULL
#define lut_Q5_0 NULL
#define lut_Q5_1 NULL
#define lut_Q8_0 NULL
#define lut_Q8_1 NULL
#define lut_Q2_0 NULL
#define lut_Q2_K NULL
#define lut_Q3_K NULL
#define lut_Q4_K NULL
#define lut_Q5_K NULL
#define lut_Q6_K NULL
#define lut_Q8_K NULL
#define lut_TQ1_0 NULL
#define lut_TQ2_0 NULL

#endif
