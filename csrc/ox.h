/* The contract of the C kernels: plain C11 microkernels behind tables. No Python.h, no malloc, no threads, no errors, no mutable globals.
 *
 *   dispatch.c      which instruction sets this CPU and kernel allow (CPUID and XCR0)
 *   isa/<isa>.h     the vector vocabulary: 16 float lanes, 16 int lanes, 64 code bytes; the same words on every instruction set
 *   lanes/          weights in row panels and the tiles over them (see docs/kernels.md)
 *   vec/            norms, rope, softmax, gates, attention over the same vocabulary
 *   formats/        one GGUF row <-> float
 *
 * Beside the kernels, and bound by none of this but Python.h: workers.h and team.h (the threads of a step), pager.h (weights read from disk).
 *
 * Same bits everywhere: fma is always an explicit call (the build forbids contraction), sums across lanes have one fixed tree.
 */
#ifndef OX_H
#define OX_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#ifndef OX_INLINE
#define OX_INLINE static inline __attribute__((always_inline))
#endif
#define OX_NOINLINE __attribute__((noinline))
#define OX_ALIGN(n) __attribute__((aligned(n)))
#define OX_PREFETCH(p) __builtin_prefetch((p), 0, 3)
#define OX_PREFETCH_L2(p) __builtin_prefetch((p), 0, 2)
#else
#error "oxillama needs gcc or clang"
#endif

/* Kernels on AMX: gcc knows it from 11 on, and Linux lets a process ask for its registers. */
#if defined(__x86_64__) && defined(__linux__) && __GNUC__ >= 11
#define OX_WITH_AMX 1
#else
#define OX_WITH_AMX 0
#endif

/* Kernels on matrix products of bytes: gcc knows them from 10 on, clang from 11. */
#if defined(__aarch64__) && (__GNUC__ >= 10 || __clang_major__ >= 11)
#define OX_WITH_I8MM 1
#else
#define OX_WITH_I8MM 0
#endif

enum { OX_ISA_SCALAR = 0, OX_ISA_AVX2 = 1, OX_ISA_AVX512 = 2, OX_ISA_NEON = 3, OX_ISA_COUNT = 4 };

/* Bits of ox_cpu_features(): what the kernels may use, already checked against what the operating system saves (XCR0). */
enum {
    OX_HAS_AVX2 = 1u << 0,     /* AVX2 with FMA and F16C */
    OX_HAS_AVX_VNNI = 1u << 1, /* 256-bit dpbusd without AVX-512 */
    OX_HAS_AVX512 = 1u << 2,   /* F, BW, DQ, VL and VNNI */
    OX_HAS_AVX512_BF16 = 1u << 3,
    OX_HAS_AVX512_VBMI = 1u << 4,
    OX_HAS_NEON = 1u << 5,
    OX_HAS_DOTPROD = 1u << 6,
    OX_HAS_AMX = 1u << 7,      /* tiles and their products of bytes; the system has allowed this process to use them */
    OX_HAS_I8MM = 1u << 8      /* matrix products of bytes */
};

unsigned ox_cpu_features(void);            /* detected afresh at each call: pure, cheap enough to ask once per module */
int ox_cpu_model(char *out, int size);     /* writes the processor's own name, NUL terminated; returns its length, 0 if unknown */
/* Cores that want other prefetches or tiles than the rest (oxillama/_core/kernels.pyx, lanes/choose.c): AMD's without AVX-512 (Zen 3 and before), Zen 4, Zen 5
 * and later, Intel's without AMX and with it. */
enum { OX_CORE_OTHER, OX_CORE_ZEN3, OX_CORE_ZEN4, OX_CORE_ZEN5, OX_CORE_INTEL, OX_CORE_AMX };
int ox_core_kind(void);
enum { OX_AHEAD = 8192 };                  /* bytes between what a tile of several rows reads and what it asks for (lanes/tiles.h) */
unsigned ox_isa_available(void);           /* bit i: instruction set i can run here */
const char *ox_isa_name(int isa);          /* "scalar", "avx2", "avx512", "neon"; NULL outside the list */
int ox_isa_from_name(const char *name);    /* the index, or -1 */
int ox_isa_active(void);                   /* OXILLAMA_ISA if set (-1 unknown name, -2 not available here), else the best available */

/* IEEE half <-> float, exact and to nearest even; NaNs become quiet, as the hardware does. */
OX_INLINE float ox_bits_to_f32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
OX_INLINE uint32_t ox_f32_to_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

OX_INLINE float ox_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 1023u;
    if (e == 31u)
        return ox_bits_to_f32(sign | 0x7f800000u | (m << 13) | (m ? 0x400000u : 0u));
    if (e == 0u) {
        float v = (float)m * 0x1p-24f;      /* exact: 10 bits times a power of two */
        return ox_bits_to_f32(sign | ox_f32_to_bits(v));
    }
    return ox_bits_to_f32(sign | ((e + 112u) << 23) | (m << 13));
}

OX_INLINE uint16_t ox_f32_to_f16(float f)
{
    uint32_t u = ox_f32_to_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x1ffu));
    if (a >= 0x47800000u)
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u)                    /* below the least normal half: adding 0.5 leaves the rounded count of 2^-24 in the low bits */
        return (uint16_t)(sign | (ox_f32_to_bits(ox_bits_to_f32(a) + 0.5f) & 0x7ffu));
    a += 0xfffu + ((a >> 13) & 1u);         /* round to nearest even; a carry into the exponent is right, and reaches infinity */
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}

#endif
