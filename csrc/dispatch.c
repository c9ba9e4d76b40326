/* Which instruction sets may run here: CPUID says what the processor has, XCR0 what the operating system saves. */
#include "ox.h"
#include <stdlib.h>

static const char *const names[OX_ISA_COUNT] = { "scalar", "avx2", "avx512", "neon" };

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

static unsigned long long xcr0(void)
{
    unsigned lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return ((unsigned long long)hi << 32) | lo;
}

/* Linux gives the registers of AMX (8 KB a thread) only to processes that ask; a refusal, by a sandbox for one, means doing without. */
#if OX_WITH_AMX
#include <sys/syscall.h>
#include <unistd.h>
static int may_use_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
static int may_use_tiles(void) { return 0; }
#endif

unsigned ox_cpu_features(void)
{
    unsigned a, b, c, d, b7, c7, d7, a71 = 0, has = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !((c >> 27) & 1))            /* OSXSAVE */
        return 0;
    unsigned long long saved = xcr0();
    int ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6;
    int fma = (c >> 12) & 1, f16c = (c >> 29) & 1, avx = (c >> 28) & 1;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7))
        return 0;
    if (a >= 1) {
        unsigned eb, ec, ed;
        __get_cpuid_count(7, 1, &a71, &eb, &ec, &ed);
    }
    if (!(ymm && avx && fma && f16c && ((b7 >> 5) & 1)))
        return 0;
    has = OX_HAS_AVX2;
    if ((a71 >> 4) & 1)
        has |= OX_HAS_AVX_VNNI;
    unsigned base = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);   /* F, DQ, BW, VL */
    if (zmm && (b7 & base) == base && ((c7 >> 11) & 1)) {
        has |= OX_HAS_AVX512;
        if ((a71 >> 5) & 1)
            has |= OX_HAS_AVX512_BF16;
        if ((c7 >> 1) & 1)
            has |= OX_HAS_AVX512_VBMI;
        if ((saved & 0x60000) == 0x60000 && (d7 >> 24 & 3) == 3 && may_use_tiles())      /* tiles, int8 */
            has |= OX_HAS_AMX;
    }
    return has;
}

int ox_core_kind(void)
{
    enum { AMD = 0x68747541u, INTEL = 0x756e6547u, AMX_TILE = 1 << 24, AVX512F = 1 << 16 };       /* "Auth"enticAMD, "Genu"ineIntel */
    unsigned a, b, c, d, maker, family;
    if (!__get_cpuid(0, &a, &maker, &c, &d))
        return OX_CORE_OTHER;
    if (maker == INTEL)
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & AMX_TILE ? OX_CORE_AMX : OX_CORE_INTEL;
    if (maker != AMD)
        return OX_CORE_OTHER;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & AVX512F))
        return OX_CORE_ZEN3;
    __get_cpuid(1, &a, &b, &c, &d);
    family = (a >> 8) & 15;
    if (family == 15)
        family += (a >> 20) & 255;
    return family == 25 ? OX_CORE_ZEN4 : OX_CORE_ZEN5;
}

int ox_cpu_model(char *out, int size)
{
    unsigned r[12], top, b, c, d;
    int n = 0;
    if (size > 0)
        out[0] = 0;
    if (!__get_cpuid(0x80000000u, &top, &b, &c, &d) || top < 0x80000004u || size < 1)
        return 0;
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, r + 4 * i, r + 4 * i + 1, r + 4 * i + 2, r + 4 * i + 3);
    const char *s = (const char *)r;
    int end = 48, start = 0;
    while (start < end && s[start] == ' ')
        start++;
    for (int i = start; i < end && s[i] && n + 1 < size; i++)
        out[n++] = s[i];
    while (n > 0 && out[n - 1] == ' ')
        n--;
    out[n] = 0;
    return n;
}

#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

unsigned ox_cpu_features(void)
{
    unsigned has = OX_HAS_NEON;
#if defined(__linux__)
    if ((getauxval(AT_HWCAP) >> 20) & 1)        /* HWCAP_ASIMDDP */
        has |= OX_HAS_DOTPROD;
    if ((getauxval(AT_HWCAP2) >> 13) & 1)       /* HWCAP2_I8MM */
        has |= OX_HAS_I8MM;
#elif defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    has |= OX_HAS_DOTPROD;
    if (sysctlbyname("hw.optional.arm.FEAT_I8MM", &found, &size, NULL, 0) == 0 && found)
        has |= OX_HAS_I8MM;
#endif
    return has;
}

int ox_cpu_model(char *out, int size)
{
    if (size > 0)
        out[0] = 0;
#if defined(__APPLE__)
    size_t room = size > 0 ? (size_t)size : 0;
    if (room && sysctlbyname("machdep.cpu.brand_string", out, &room, NULL, 0))
        out[0] = 0;
    return room ? (int)strlen(out) : 0;
#else
    return 0;
#endif
}

int ox_core_kind(void) { return OX_CORE_OTHER; }

#else
unsigned ox_cpu_features(void) { return 0; }
int ox_cpu_model(char *out, int size)
{
    if (size > 0)
        out[0] = 0;
    return 0;
}

int ox_core_kind(void) { return OX_CORE_OTHER; }
#endif

unsigned ox_isa_available(void)
{
    unsigned has = ox_cpu_features(), isa = 1u << OX_ISA_SCALAR;
    if (has & OX_HAS_AVX2)
        isa |= 1u << OX_ISA_AVX2;
    if (has & OX_HAS_AVX512)
        isa |= 1u << OX_ISA_AVX512;
    if (has & OX_HAS_NEON)
        isa |= 1u << OX_ISA_NEON;
    return isa;
}

const char *ox_isa_name(int isa) { return isa >= 0 && isa < OX_ISA_COUNT ? names[isa] : NULL; }

int ox_isa_from_name(const char *name)
{
    for (int i = 0; i < OX_ISA_COUNT; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

int ox_isa_active(void)
{
    unsigned can = ox_isa_available();
    const char *forced = getenv("OXILLAMA_ISA");
    if (forced && forced[0]) {
        int isa = ox_isa_from_name(forced);
        return isa < 0 ? -1 : (can >> isa) & 1 ? isa : -2;
    }
    for (int isa = OX_ISA_COUNT - 1; isa > 0; isa--)
        if ((can >> isa) & 1)
            return isa;
    return OX_ISA_SCALAR;
}
