/* Memory for packed weights and for what is written beside them. */
#ifndef OX_BLOCK_H
#define OX_BLOCK_H
#include <stdint.h>

#include "os.h"

#define OX_HUGE ((size_t)2 << 20)

/* 64-byte aligned, NULL when there is none; `ox_block_free` frees it. Whole huge pages are asked for as such, the rest of a block takes small
 * ones: rounding up would cost a tenth of a model. */
static inline void *ox_block_new(size_t size) {
    int big = size >= OX_HUGE;
    void *block = ox_aligned_new(big ? OX_HUGE : 64, (size + 63) / 64 * 64);
    if (block && big) ox_ask_huge(block, size / OX_HUGE * OX_HUGE);
    return block;
}

static inline void ox_block_free(void *block) { ox_aligned_free(block); }

/* Where the page that an address lies in begins, and the first that begins at it or behind it. */
static inline uintptr_t ox_page_of(const void *at) { return (uintptr_t)at & ~((uintptr_t)ox_page_bytes() - 1); }
static inline uintptr_t ox_page_after(const void *at) { return ox_page_of((const char *)at + ox_page_bytes() - 1); }

/* Brings mapped memory in, by one call of the system where it has one, else by a look at every page. */
static inline void ox_fault_in(const void *start, size_t size) {
    uintptr_t first = ox_page_of(start);
    if (ox_populate((const void *)first, (uintptr_t)start + size - first) == 0) return;
    for (size_t i = 0; i < size; i += 4096)
        (void)((const volatile char *)start)[i];
}

/* Pages of a mapped file that lie wholly between `start` and `size` bytes on, and the one where that begins: no longer needed here. */
static inline void ox_let_go(const void *start, size_t size) {
    uintptr_t first = ox_page_of(start), end = ox_page_of((const char *)start + size);
    if (end > first) ox_let_pages_go((const void *)first, end - first);
}

/* Pages of a mapped file that are wanted soon: the system begins to read what is not in memory. */
static inline void ox_expect_pages(const void *start, size_t size) {
    uintptr_t first = ox_page_of(start);
    ox_want((const void *)first, (uintptr_t)start + size - first);
}

/* The number of the next free unit; and a flag that tells those who take units to stop. */
static inline int64_t ox_units_take(int64_t *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }
static inline void ox_flag_put(int32_t *flag, int value) { __atomic_store_n(flag, value, __ATOMIC_RELAXED); }
static inline int ox_flag_get(const int32_t *flag) { return __atomic_load_n(flag, __ATOMIC_RELAXED); }

/* Asks for ownership of the lines that a pair of panels will write: without it each store waits for the line (8 % of a prompt). */
static inline void ox_expect(float *out, int64_t ldout, int m) {
    for (int t = 0; t < m; t++, out += ldout) {
        __builtin_prefetch(out, 1, 3);
        __builtin_prefetch(out + 16, 1, 3);
    }
}

#endif
