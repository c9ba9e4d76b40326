/* Files mapped for reading, whose loss does not end the process.
 *
 * A look at a page that its file no longer has (somebody shortened it, or the disk failed) is a SIGBUS. `ox_bus` handles those of maps made
 * here: it notes the loss in the map's record and puts zeros in place of all of the map, so that the reader goes on; whoever uses what was
 * read looks at `lost` afterwards (`FileMap.change`). Every other SIGBUS goes to whoever handled it before.
 *
 * The handler allocates nothing and takes no lock: records stand in a list that only grows, a record is free while its `end` is 0, and it is
 * freed before its memory is unmapped, so that it never names what is another's by now. A child of fork() has the handler, the maps and their
 * records. The handler is put in place with the first map, and again with a later one where another has taken its place. */
#ifndef OX_FILEMAP_H
#define OX_FILEMAP_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "block.h"

typedef struct ox_map {
    struct ox_map *next;
    _Atomic uintptr_t start, end;           /* end 0: free */
    _Atomic int32_t lost;
    _Atomic int taken;
} ox_map;

typedef struct {                            /* what a file was when it was mapped */
    int64_t size, seconds, nanoseconds;
} ox_file_status;

typedef struct ox_bus_action {              /* who handled SIGBUS before; those in older ones came before them */
    struct sigaction action;
    struct ox_bus_action *older;
} ox_bus_action;

static _Atomic(ox_map *) ox_maps;
static _Atomic(ox_bus_action *) ox_bus_before;

static int ox_file_look(int fd, ox_file_status *found) {
    struct stat now;
    if (fstat(fd, &now)) return errno;
    found->size = now.st_size;
#ifdef __APPLE__
    found->seconds = now.st_mtimespec.tv_sec, found->nanoseconds = now.st_mtimespec.tv_nsec;
#else
    found->seconds = now.st_mtim.tv_sec, found->nanoseconds = now.st_mtim.tv_nsec;
#endif
    return 0;
}

/* A descriptor of the same open file; -errno where there is none. */
static int ox_file_keep(int fd) {
    int kept = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return kept < 0 ? -errno : kept;
}

/* ---- the handler ------------------------------------------------------------------------------------------------------ */

/* Whether a signal is about a page of a map of ours, which then holds zeros. */
static int ox_bus_replace(const siginfo_t *info) {
#ifdef __APPLE__
    if (info->si_code != BUS_ADRALN && info->si_code != BUS_ADRERR) return 0;    /* on AArch64 every SIGBUS is said to be BUS_ADRALN */
#else
    if (info->si_code <= 0 || info->si_code == SI_USER || info->si_code == BUS_ADRALN) return 0;
#endif
#ifdef BUS_MCEERR_AO
    if (info->si_code == BUS_MCEERR_AO) return 0;       /* of memory that nobody looked at */
#endif
    uintptr_t at = (uintptr_t)info->si_addr;
    for (ox_map *map = atomic_load(&ox_maps); map; map = map->next) {
        uintptr_t end = atomic_load(&map->end), start = atomic_load(&map->start);
        if (at < start || at >= end || atomic_load(&map->end) != end) continue;
        atomic_store(&map->lost, 1);                    /* first: no zero is read before it */
        return mmap((void *)start, end - start, PROT_READ, MAP_PRIVATE | MAP_ANON | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return 0;
}

static void ox_bus_pass_on(int number, siginfo_t *info, void *context) {
    ox_bus_action *before = atomic_load(&ox_bus_before);
    int raised = info->si_code <= 0 || info->si_code == SI_USER;
    /* by a handler that was here before and passes it on so: it must not come back to it */
    while (raised && before->older) before = before->older;
    if (before->action.sa_flags & SA_SIGINFO) {
        before->action.sa_sigaction(number, info, context);
        return;
    }
    if (before->action.sa_handler == SIG_IGN && raised) return;
    if (before->action.sa_handler == SIG_DFL || before->action.sa_handler == SIG_IGN) {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(number, &plain, NULL);
#ifdef __APPLE__
        raised = 1;                                     /* it cannot be told from a fault */
#endif
        if (raised) raise(number);                      /* a fault comes again by itself */
        return;
    }
    before->action.sa_handler(number);
}

static void ox_bus(int number, siginfo_t *info, void *context) {
    int error = errno;
    if (!ox_bus_replace(info)) ox_bus_pass_on(number, info, context);
    errno = error;
}

static int ox_bus_is(const struct sigaction *action) { return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == ox_bus; }

static int ox_bus_note(const struct sigaction *action) {
    ox_bus_action *noted = calloc(1, sizeof *noted);    /* stays: a handler may be reading it at any time */
    if (!noted) return ENOMEM;
    noted->action = *action;
    noted->older = atomic_load(&ox_bus_before);
    while (!atomic_compare_exchange_weak(&ox_bus_before, &noted->older, noted)) {}
    return 0;
}

/* Puts the handler in place where it is not. 0 or an errno. */
static int ox_bus_install(void) {
    struct sigaction ours = {0}, now;
    if (sigaction(SIGBUS, NULL, &now)) return errno;
    if (ox_bus_is(&now)) return 0;
    int failed = ox_bus_note(&now);                     /* first: it may be needed at once */
    if (failed) return failed;
    ours.sa_sigaction = ox_bus;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGBUS, &ours, NULL) ? errno : 0;
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
    int failed = ox_bus_install();
    *made = NULL;
    if (failed) return failed;
    void *start = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (start == MAP_FAILED) return errno;
    *made = ox_map_enter(start, size);
    if (*made) return 0;
    munmap(start, size);
    return ENOMEM;
}

static void ox_map_free(ox_map *map) {
    void *start = (void *)atomic_load(&map->start);
    size_t size = atomic_load(&map->end) - (uintptr_t)start;
    ox_map_leave(map);
    munmap(start, size);
}

static const uint8_t *ox_map_start(ox_map *map) { return (const uint8_t *)atomic_load(&map->start); }
static const int32_t *ox_map_flag(ox_map *map) { return (const int32_t *)&map->lost; }

/* Pages of a map are not needed in memory now. */
static void ox_map_release(ox_map *map, size_t first, size_t size) {
    const uint8_t *from = ox_map_start(map) + first, *begin = (const uint8_t *)ox_page_of(from);
    madvise((void *)begin, size + (size_t)(from - begin), MADV_DONTNEED);
}

/* Before it is read: what comes from the disk in small pages stays so. */
static void ox_map_large_pages(ox_map *map, size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise((void *)atomic_load(&map->start), size, MADV_HUGEPAGE);
#endif
}

#endif
