/* Files mapped for reading, whose loss does not end the process.
 *
 * A look at a page that its file no longer has (somebody shortened it, or the disk failed) would. `ox_map_lose` hears of those of maps made here
 * (`ox_guard_faults` of os.h): it notes the loss in the map's record and puts zeros in place of all of the map, so that the reader goes on;
 * whoever uses what was read looks at `lost` afterwards (`FileMap.change`).
 *
 * It allocates nothing and takes no lock: records stand in a list that only grows, a record is free while its `end` is 0, and it is freed before
 * its memory is unmapped, so that it never names what is another's by now. A child of fork() has the maps and their records. */
#ifndef OX_FILEMAP_H
#define OX_FILEMAP_H

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "block.h"

typedef struct ox_map {
    struct ox_map *next;
    _Atomic uintptr_t start, end;           /* end 0: free */
    _Atomic int32_t lost;
    _Atomic int taken;
} ox_map;

static _Atomic(ox_map *) ox_maps;

/* Whether an address that cannot be read is of a map of ours, which then holds zeros. */
static int ox_map_lose(uintptr_t at) {
    for (ox_map *map = atomic_load(&ox_maps); map; map = map->next) {
        uintptr_t end = atomic_load(&map->end), start = atomic_load(&map->start);
        if (at < start || at >= end || atomic_load(&map->end) != end) continue;
        atomic_store(&map->lost, 1);                    /* first: no zero is read before it */
        return ox_zeros_over((void *)start, end - start, at);
    }
    return 0;
}

/* ---- maps ------------------------------------------------------------------------------------------------------------- */

/* A record of `size` bytes at `start`; NULL without memory. */
static ox_map *ox_map_enter(const void *start, size_t size) {
    ox_map *map = atomic_load(&ox_maps);
    for (int free = 0; map; map = map->next)
        if (atomic_compare_exchange_strong(&map->taken, &free, 1))
            break;
        else
            free = 0;
    if (!map) {
        map = calloc(1, sizeof *map);
        if (!map) return NULL;
        atomic_init(&map->taken, 1);
        map->next = atomic_load(&ox_maps);
        while (!atomic_compare_exchange_weak(&ox_maps, &map->next, map)) {}
    }
    atomic_store(&map->lost, 0);
    atomic_store(&map->start, (uintptr_t)start);
    atomic_store(&map->end, ox_page_after((const char *)start + size));
    return map;
}

static void ox_map_leave(ox_map *map) {
    atomic_store(&map->end, 0);
    atomic_store(&map->taken, 0);
}

/* Maps a file of `size` bytes, which may be closed afterwards. 0 or an errno. */
static int ox_map_new(int fd, size_t size, ox_map **made) {
    void *start;
    int failed = ox_guard_faults(ox_map_lose);
    *made = NULL;
    if (!failed) failed = ox_map_file(&start, fd, size);
    if (failed) return failed;
    *made = ox_map_enter(start, size);
    if (*made) return 0;
    ox_unmap_file(start, size);
    return ENOMEM;
}

static void ox_map_free(ox_map *map) {
    void *start = (void *)atomic_load(&map->start);
    size_t size = atomic_load(&map->end) - (uintptr_t)start;
    int lost = atomic_load(&map->lost);
    ox_map_leave(map);
    ox_zeros_end(start, size, lost);
}

static const uint8_t *ox_map_start(ox_map *map) { return (const uint8_t *)atomic_load(&map->start); }
static const int32_t *ox_map_flag(ox_map *map) { return (const int32_t *)&map->lost; }

/* Pages of a map are not needed in memory now. */
static void ox_map_release(ox_map *map, size_t first, size_t size) {
    const uint8_t *from = ox_map_start(map) + first, *begin = (const uint8_t *)ox_page_of(from);
    ox_let_pages_go(begin, size + (size_t)(from - begin));
}

/* Before it is read: what comes from the disk in small pages stays so. */
static void ox_map_large_pages(ox_map *map, size_t size) { ox_ask_huge((void *)atomic_load(&map->start), size); }

#endif
