"""Systems whose pages are larger than 4 KB, as on AArch64: what is given back to the system is
whole pages of it, and nobody else's bytes go with them.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# such a system: maps begin at a page, an address within one is refused, a size is of whole pages
SYSTEM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
static size_t whole(size_t size) { return (size + PAGE - 1) / PAGE * PAGE; }
static int refused(const void *at) { return (uintptr_t)at % PAGE ? (errno = EINVAL, -1) : 0; }

long sysconf(int name) {
    NEXT(sysconf);
    return name == _SC_PAGESIZE ? PAGE : next(name);
}
int madvise(void *at, size_t size, int advice) {
    NEXT(madvise);
    return refused(at) ? -1 : next(at, whole(size), advice);
}
int munmap(void *at, size_t size) {
    NEXT(munmap);
    return refused(at) ? -1 : next(at, whole(size));
}
void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    NEXT(mmap);
    if (flags & MAP_FIXED) return next(at, size, protection, flags, file, offset);
    char *room = next(NULL, whole(size) + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return room;
    char *start = (char *)(((uintptr_t)room + PAGE - 1) / PAGE * PAGE);
    flags |= MAP_FIXED;
    next(start, whole(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
         0);
    return next(start, size, protection, flags, file, offset);
}
void *mmap64(void *, size_t, int, int, int, off_t) __attribute__((alias("mmap")));
"""
CHILD = """
import os, sys
from pathlib import Path
import numpy as np
from oxillama.gguf import GgufReader
from oxillama.model.load import load_model
from oxillama.weights.offload import Budget
from tests.core.pages import filled
from tests.model.stepping import logits
from tests.weights.paged import IDS, dense, mixture, size, whole

assert os.sysconf("SC_PAGESIZE") == int(sys.argv[1])
for keep in range(9):
    memory = filled(pages=8)
    wanted = [memory.export(page) for page in range(keep)]
    memory.release(keep)
    memory.ensure(9)
    wanted += [bytes(memory.page_bytes)] * (9 - keep)
    assert [memory.export(page) for page in range(9)] == wanted, keep

for make in (dense, mixture):
    path = make(Path(sys.argv[2]))
    wanted = logits(whole(path), IDS)
    model = load_model(GgufReader(path), offload=Budget(size(path)), num_threads=2)
    pager = model.pager.core
    for shrunk in range(100):
        assert np.array_equal(logits(model, IDS), wanted), (path, shrunk)
        if not pager.shrink(1):
            break
    assert 2 < shrunk < 99, shrunk
    model.end(keep=False)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
@pytest.mark.parametrize("page", (16 << 10, 64 << 10))
def test_nothing_is_lost_where_pages_are_larger(page, tmp_path):
    source, system = tmp_path / "system.c", tmp_path / "system.so"
    source.write_text(SYSTEM)
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    command = [compiler, "-shared", "-fPIC", f"-DPAGE={page}", "-o", system, source, "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(page), tmp_path],
        env={**os.environ, "LD_PRELOAD": str(system), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr[-2000:]) == (0, "")
