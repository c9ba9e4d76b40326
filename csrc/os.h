/* What the system gives, in the same words on every system: memory, files, threads, waits and clocks. os/posix.h (Linux, macOS) and
 * os/windows.h define them; nothing else in C or Cython asks which system it is.
 *
 *     memory      ox_page_bytes()                    of a page
 *                 ox_aligned_new(alignment, size)    undefined content; ox_aligned_free(it)
 *                 ox_memory_new(size)                zeroed, of whole pages; ox_memory_free(start, size)
 *                 ox_extent_new(size)                zeroed, at a multiple of 2 MiB; if OX_PARTS_GO parts of it may be freed by themselves
 *                 ox_ask_huge(start, size)           of huge pages, where the system has them
 *                 ox_drop(first, size)               whole pages go back until they are written; 0: they are zero then, else undefined
 *     mappings    ox_map_file(&start, fd, size)      read-only; ox_unmap_file(start, size)
 *                 ox_populate(first, size)           reads pages in; EINVAL where there is no such call, another errno if reading failed
 *                 ox_want(first, size)               pages are wanted soon
 *                 ox_let_pages_go(first, size)       pages need not stay in memory
 *                 ox_guard_faults(lose)              whoever reads a page of a map that cannot be read calls lose(address); if that answers 1 it goes on
 *                 ox_zeros_over(start, size, at)     has a map read as zeros from now on (1); inside `lose` only
 *                 ox_zeros_end(start, size, lost)    unmaps it, or the zeros
 *     files       ox_file_look(fd, &status), ox_file_keep(fd), ox_file_close(fd), ox_file_read(fd, room, size, offset)
 *     threads     ox_thread_start(&thread, main, args), ox_thread_join(thread), ox_yield(), ox_nap(ns), ox_process()
 *                 ox_signals_hold(&was), ox_signals_back(&was)        around the start of threads
 *                 ox_mutex_*, ox_cond_*; ox_cond_doze(cond, mutex)    waits for 5 ms at most
 *     waits       ox_wait(at, value)                 until it is another or a millisecond has gone; ox_wake_all(at). With OX_CAN_WAIT only
 *     machine     ox_system_memory(&total, &free), ox_system_cores()      of this process; -1 and 0 where files tell that (Linux) or nothing does
 *                 ox_sysctl(name)                    what macOS says under a name; -1 where it does not know it, and elsewhere
 *     clocks      ox_clock_ns()                      only goes forward
 *                 ox_preemptions(&us)                how often this thread was taken off its core, where that is counted, and how long it ran
 *
 * What may fail returns 0 or an errno. */
#ifndef OX_OS_H
#define OX_OS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {                            /* what a file is at one moment: its bytes, and when it was written */
    int64_t size, seconds, nanoseconds;
} ox_file_status;

typedef int (*ox_lose)(uintptr_t at);

#ifdef _WIN32
#include "os/windows.h"
#else
#include "os/posix.h"
#endif

#endif
