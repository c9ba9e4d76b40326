"""An allocator for child processes that refuses memory to the compiled modules: a shim that is
preloaded, whose `fail_at(n, only)` refuses their nth allocation from now on, or that and all later
ones (a negative n: none), and whose `calls_seen()` counts them.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

ALLOCATOR = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
static _Atomic long left = -1, calls = 0, once = 1;

void fail_at(long n, long only) { left = n; once = only; calls = n < 0 ? calls : 0; }
long calls_seen(void) { return calls; }

static int refused(void *caller) {
    Dl_info info;
    if (left < 0 || !dladdr(caller, &info) || !info.dli_fname)
        return 0;
    if (!strstr(info.dli_fname, "oxillama/_core/"))
        return 0;
    long call = atomic_fetch_add(&calls, 1) + 1;
    if (once ? call != left + 1 : call <= left)
        return 0;
    errno = ENOMEM;
    return 1;
}
#define REFUSED refused(__builtin_return_address(0))
void *malloc(size_t n) { return REFUSED ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return REFUSED ? NULL : __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return REFUSED ? NULL : __libc_realloc(p, n); }
int posix_memalign(void **made, size_t alignment, size_t n) {
    void *found = REFUSED ? NULL : __libc_memalign(alignment, n);
    if (!found)
        return ENOMEM;
    *made = found;
    return 0;
}
void *mmap(void *at, size_t n, int reach, int kind, int fd, off_t offset) {
    return REFUSED ? MAP_FAILED : (void *)syscall(SYS_mmap, at, n, reach, kind, fd, offset);
}
"""


def run_refused(folder: Path, source: str) -> str:
    """What the program `source` prints, run with the shim, whose path is its first argument, and a
    folder for files, its second. It must end without an error.
    """
    text, shim, child = folder / "allocator.c", folder / "allocator.so", folder / "child.py"
    text.write_text(ALLOCATOR)
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", shim, text, "-ldl"],
        check=True,
        capture_output=True,
    )
    child.write_text(source)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", child, shim, folder],
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stderr[-2000:]) == (0, ""), done.stdout
    return done.stdout
