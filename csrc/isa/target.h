/* Which instructions the functions of a file may use, whatever the whole is compiled for: OX_TARGET("avx2,fma") before them, OX_TARGET_END behind the last.
 * gcc takes a pragma. clang knows none, but gives all functions an attribute, which those of intrinsics, included before, must not get. */
#ifndef OX_ISA_TARGET_H
#define OX_ISA_TARGET_H
#include "ox.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define OX_DO_PRAGMA(text) _Pragma(#text)
#if !defined(__clang__)
#define OX_TARGET(features) OX_DO_PRAGMA(GCC target(features))
#define OX_TARGET_END
#elif defined(__x86_64__)
#define OX_TARGET(features) OX_DO_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define OX_TARGET_END OX_DO_PRAGMA(clang attribute pop)
#else /* before 16 it has none for AArch64: these files are compiled with -march (setup.py) */
#define OX_TARGET(features)
#define OX_TARGET_END
#endif
#endif
