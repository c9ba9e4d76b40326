"""The one module that knows about cores: how many workers a step gets, and what their barrier costs.

`default_threads()` counts the cores this process may use: its CPU affinity, its cgroup's CPU quota, and one worker per physical core;
`OXILLAMA_NUM_THREADS` says another number. `worker_count(n)` turns a caller's `num_threads` (0 = the default) into a number and refuses what cannot be honoured.
`Workers` are the threads of a program (csrc/workers.h), started when it is built; `run_once` starts threads for one piece of work, such as packing.
Standalone calls over arrays (a product, attention, page memory) run their parts by `prange`; `region_threads` says on how many threads.
`AdaptiveWorkers` runs short steps with fewer workers while other programs take cores away: results do not depend on their number.
`barrier_seconds` and `op_seconds` measure `csrc/team.h` for the benchmarks and the tests.
"""
import os
from pathlib import Path

from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t
from libc.string cimport strerror

from oxillama.errors import ConfigError, EngineError

cdef extern from *:
    """
    #include "workers.h"
    static ox_team *ox_team_new(void) {
        ox_team *team = ox_block_new(sizeof *team);
        if (team) ox_team_init(team, NULL);
        return team;
    }

    /* The most workers that any step or conversion of this process uses, 0 for no limit: found by name in this library (oxillama.threadpool). */
    static _Atomic int ox_limit;
    #ifdef _WIN32
    #define OX_EXPORT __declspec(dllexport)
    #else
    #define OX_EXPORT __attribute__((visibility("default")))
    #endif
    OX_EXPORT int oxillama_get_num_threads(void) { return atomic_load(&ox_limit); }
    OX_EXPORT void oxillama_set_num_threads(int limit) { atomic_store(&ox_limit, limit < 0 ? 0 : limit); }

    /* Whether a `prange` here would get threads: not in a build without OpenMP, nor inside another region. */
    #ifdef _OPENMP
    #include <omp.h>
    static int ox_region_parallel(void) { return !omp_in_parallel(); }
    static int ox_openmp(void) { return _OPENMP; }
    #else
    static int ox_region_parallel(void) { return 0; }
    static int ox_openmp(void) { return 0; }
    #endif
    """
    ox_team *ox_team_new() nogil
    int oxillama_get_num_threads() nogil
    bint ox_region_parallel() nogil
    int ox_openmp() nogil

cdef extern from "os.h" nogil:
    int ox_process()
    int ox_system_cores()
    int64_t ox_sysctl(const char *name)
    int ox_system_memory(int64_t *total, int64_t *left)

cdef extern from "block.h" nogil:
    void ox_block_free(void *block)

cdef extern from "workers.h" nogil:
    ctypedef struct ox_workers:
        int started
    int ox_workers_new(ox_workers **made, int count)
    void ox_workers_free(ox_workers *workers)
    int ox_workers_run(ox_workers *workers, Work work, void *args, int nth)

MAX_THREADS = 1024
FORKED = 0x40              # of the flags in Linux's /proc/*/stat: PF_FORKNOEXEC


cdef int _refused(int error, int count) except -1:
    if error == ENOMEM:         # of what threads share, or of a thread's record: systems say EAGAIN of a thread itself
        raise MemoryError(f"what {count} workers share")
    raise EngineError(f"threads: the system refused one of {count - 1} threads ({strerror(error).decode()}); wanted fewer (num_threads, "
                      "OXILLAMA_NUM_THREADS) or a higher limit")


cdef class Workers:
    """`count` workers: the thread that calls `run`, and count - 1 threads of their own, which sleep meanwhile.

    EngineError where the system refuses a thread. A forked child has none of its parent's threads: its first `run` starts them again.
    """

    def __cinit__(self, int count):
        cdef ox_workers *made = NULL
        cdef int error
        with nogil:
            error = ox_workers_new(&made, count)
        if error:
            _refused(error, count)
        self.workers, self.count = made, count

    def __dealloc__(self):
        cdef ox_workers *workers = <ox_workers *>self.workers
        with nogil:
            ox_workers_free(workers)

    cdef int run(self, Work work, void *args, int nth) except -1:
        """work(args, ith, nth) for every ith, side by side and without the GIL; nth at most `count`, one caller at a time."""
        cdef int error
        with nogil:
            error = ox_workers_run(<ox_workers *>self.workers, work, args, nth)
        if error:
            _refused(error, self.count)
        return 0


cdef int run_once(Work work, void *args, int count) except -1:
    """work(args, ith, count) for every ith, on threads that are started for it and end with it; on fewer where a limit stands."""
    count = within_limit(count)
    return Workers(count).run(work, args, count)


cdef int within_limit(int count) noexcept nogil:
    """`count` workers, or as many as `threadpoolctl` allows now."""
    cdef int limit = oxillama_get_num_threads()
    return limit if 0 < limit < count else count


cdef int region_threads(int count) except -1:
    """Threads that a `prange` of `count` parts may have now: so many, or as many as `threadpoolctl` allows; EngineError where the system refuses them.

    Results do not depend on it, so it is one wherever OpenMP cannot be trusted: in a process that was forked, where a region would wait for ever for
    threads that only the parent has, inside another region, and in a build without OpenMP. An OpenMP library ends the process when it is refused a
    thread; so the threads are started here first, and end again. It keeps the threads of an earlier region at the same time, so the system allows its own too.
    """
    global asked_by, was_forked
    count = within_limit(count)
    if count == 1 or not ox_region_parallel():
        return 1
    if asked_by != ox_process():
        was_forked, asked_by = forked(), ox_process()
    if was_forked:
        return 1
    Workers(count)
    return count


cdef int asked_by = 0, imported_by = ox_process()
cdef bint was_forked = False


def system_text(path) -> str:
    """What the system says in a file; names of processes and groups in it may be of any bytes, in any locale."""
    return os.fsdecode(path.read_bytes())


def system_memory() -> tuple | None:
    """(total, available) bytes of this machine's memory; None where the system has files for that, or none of it."""
    cdef int64_t total, left
    return (total, left) if ox_system_memory(&total, &left) == 0 else None


def forked(proc: str = "/proc") -> bool:
    """Whether this process was forked and has run no new program since; where the system does not tell, whether that was after this import."""
    try:
        _, _, _, _, _, _, flags, *_ = system_text(Path(proc) / "self/stat").rpartition(")")[2].split()
        return bool(int(flags) & FORKED)
    except (OSError, ValueError):
        return imported_by != ox_process()


def standalone_threads(*, num_threads=0) -> int:
    """How many threads a standalone call for `num_threads` may have now."""
    return region_threads(worker_count(num_threads))


def openmp_version() -> int:
    """Year and month of the OpenMP specification that standalone calls were built with, 0 where they run on one thread."""
    return ox_openmp()


def _quota(folder: Path) -> float | None:
    """CPUs that one cgroup folder allows (v2 `cpu.max`, v1 `cpu.cfs_quota_us`), None when it sets no limit."""
    try:
        limit, period = system_text(folder / "cpu.max").split()
    except (OSError, ValueError):
        try:
            limit = system_text(folder / "cpu.cfs_quota_us").strip()
            period = system_text(folder / "cpu.cfs_period_us").strip()
        except OSError:
            return None
    if limit == "max" or int(limit) <= 0 or int(period) <= 0:
        return None
    return int(limit) / int(period)


def cgroup_folders(controller: str, proc: str, root: str) -> list:
    """The folders of the cgroups that hold this process under a controller, its own first; none where the system has no cgroups."""
    try:
        lines = system_text(Path(proc)).splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy != "0" and controller not in controllers.split(","):
            continue
        base = Path(root) if hierarchy == "0" else Path(root) / controllers
        folder = base / path.lstrip("/")
        folders += [folder, *(one for one in folder.parents if one.is_relative_to(base))]
    return folders


def cgroup_cpus(proc: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> float | None:
    """The tightest CPU quota above this process in CPUs, None when there is none or the system has no cgroups."""
    quotas = [_quota(folder) for folder in cgroup_folders("cpu", proc, root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def physical_cores(cpus, sysfs: str = "/sys/devices/system/cpu") -> int:
    """How many physical cores the given logical CPUs belong to; a CPU whose topology is unknown counts as its own core. Of a Mac, which has no
    affinity, all."""
    if mac := mac_cores():
        return mac
    cores = set()
    for cpu in cpus:
        topology = Path(sysfs) / f"cpu{cpu}" / "topology"
        for name in ("core_cpus_list", "thread_siblings_list"):
            try:
                cores.add(system_text(topology / name).strip())
                break
            except OSError:
                continue
        else:
            cores.add(cpu)
    return len(cores)


def mac_cores(*, bint fast=False) -> int | None:
    """The physical cores of a Mac; fast: without the efficiency cores of its processor. None on other systems."""
    cdef int64_t count = ox_sysctl(b"hw.perflevel0.physicalcpu") if fast else -1
    if count < 1:       # the names of levels came with macOS 12
        count = ox_sysctl(b"hw.physicalcpu")
    return count if count > 0 else None


def default_threads() -> int:
    """The default number of workers: `OXILLAMA_NUM_THREADS`, else physical cores within the CPU affinity (of a Mac: its performance
    cores, because an op ends with its slowest worker), no more than the cgroup quota, at least 1. ConfigError where the variable is no number from 1 to 1024.
    """
    asked = os.environ.get("OXILLAMA_NUM_THREADS", "")
    if asked:
        if not (asked.isascii() and asked.isdigit() and len(asked) < 9 and 1 <= int(asked) <= MAX_THREADS):
            raise ConfigError(f"OXILLAMA_NUM_THREADS: found {asked!r}, wanted 1 to {MAX_THREADS}")
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        count = physical_cores(os.sched_getaffinity(0))
    else:
        count = mac_cores(fast=True) or ox_system_cores() or os.cpu_count() or 1
    quota = cgroup_cpus()
    if quota is not None:
        count = min(count, int(quota))
    return max(1, min(count, MAX_THREADS))


def available_cpus() -> int:
    """The logical CPUs that this process may use: those of its affinity, no more than the cgroup quota, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = cgroup_cpus()
    return max(1, count if quota is None else min(count, int(-(-quota // 1))))


cpdef int worker_count(object num_threads) except -1:
    """The number of workers for a caller's `num_threads`: 0 means `default_threads()`; ConfigError outside 0..1024."""
    if isinstance(num_threads, bool) or not isinstance(num_threads, int):
        raise ConfigError(f"num_threads: found {num_threads!r}, wanted an int from 0 to {MAX_THREADS}")
    if num_threads < 0 or num_threads > MAX_THREADS:
        raise ConfigError(f"num_threads: found {num_threads}, wanted 0 to {MAX_THREADS} (0 = all cores this process may use)")
    return num_threads or default_threads()


cdef enum:
    WINDOW = 8         # steps over which disturbed ones are counted
    TRIAL = 4          # compared steps that decide between all workers and fewer, if one is clearly quicker; 4 * TRIAL else
    PATIENCE = 64      # steps until fewer workers are tried again; doubles while that loses, to 16 times
    HASTE = 8          # steps until all are: a neighbour is soon gone, and an idle core costs more than a trial; doubles to 32 times
    QUIET = 4          # steps with fewer workers, all on their cores, before all are tried again
    KINDS = 64         # kinds of steps that are told apart


cdef class AdaptiveWorkers:
    """How many workers the next short step gets: all of `most`, or fewer while that is measurably quicker.

    When a worker loses its core in the middle of an op all others wait for it, a time slice at a time; with a busy neighbour a step
    of two workers can take many times that of one. `note` is given each step: its kind (steps of one kind take like times; kinds may
    follow each other in any order), its seconds and how many workers were taken off their core; `workers` is the number for the next.

    Disturbed steps (workers were taken off their cores and missed a tenth of the step, or it took half as long again as its kind can)
    start a trial of fewer workers. Its steps are compared with those of the same kinds before, whose seconds are kept as running means.

    Workers that ran less than half of a step's time, where that was several times its due, have no cores to run on: one such step is
    enough, because it may take a hundred times its due. While fewer workers do not keep their cores either, all are not tried again.

    One worker of sixteen may take ten times as long as all: a step of fewer workers counts as many as steps of all would have fitted into it, so
    that a neighbour of a moment costs little more than its moment.
    """

    def __init__(self, int most):
        self.most = self.workers = most
        self.patience[0], self.patience[1] = PATIENCE, HASTE

    cpdef int note(self, int key, double seconds, int preempted, double ran=-1.0) except -1:
        """Takes in one step; returns the number of workers for the next. ran: below 0 if unknown."""
        if self.most == 1:
            return 1
        cdef int kind = key % KINDS
        cdef bint reduced = self.workers < self.most
        cdef double share = ran / (seconds * self.workers) if ran >= 0 and seconds > 0 else 1.0
        cdef double own = self.mean[reduced][kind], other = self.mean[not reduced][kind]
        cdef int weight = 1
        if reduced and self.best[kind] > 0:
            weight = max(1, <int>min(1e6, seconds / self.best[kind]))
        if own == 0 or (self.trying and self.fresh[kind] != self.turns):        # of an earlier time: the neighbour was another
            own = seconds
        self.mean[reduced][kind] = own + 0.25 * (seconds - own)
        self.fresh[kind] = self.turns
        self.left -= weight
        if reduced:
            self.quiet = self.quiet + weight if share > 0.8 else 0
        elif preempted > 0 and share < 0.5 and (self.best[kind] == 0 or seconds > 4 * self.best[kind]):
            self.losers = max(self.losers, preempted)
            if self.best[kind] == 0:
                self.best[kind] = ran / self.workers
            self._stay(True, not self.trying, seconds / self.best[kind] if self.trying else 0)
            return self.workers
        if self.trying:
            if not reduced:
                self.losers = max(self.losers, preempted)
            if other > 0:
                self.compared += 1
                self.ratios += seconds / other
            if self.compared >= TRIAL or (self.compared and self.left <= 0):
                self._judge(reduced)
            elif self.left <= 0:                                    # nothing to compare with: as if never tried
                self._turn(False, False, self.patience[False])
            return self.workers
        if reduced:
            if self.left <= 0 and self.quiet >= QUIET:
                self._turn(False, True, 8 * TRIAL)
            return self.workers
        self.best[kind] = seconds if self.best[kind] == 0 else min(seconds, 1.01 * self.best[kind])
        self.count += 1
        self.hits += (preempted > 0 and (ran < 0 or share < 0.9)) or seconds > 1.5 * self.best[kind]
        self.losers = max(self.losers, preempted)
        if self.hits >= 2 and self.left <= 0:
            self._turn(True, True, 8 * TRIAL)
        elif self.count >= WINDOW:
            self.count = self.hits = self.losers = 0
        return self.workers

    cdef void _judge(self, bint reduced) noexcept:
        """The end of a trial, or not yet: fewer workers stay only where they are quicker by a twentieth."""
        cdef double ratio = self.ratios / self.compared
        cdef bint fewer = ratio < 0.95 if reduced else ratio > 1 / 0.95
        if self.compared >= 4 * TRIAL or self.left <= 0 or ratio < 0.8 or ratio > 1.25:
            self._stay(fewer, fewer == reduced, 0)

    cdef void _stay(self, bint fewer, bint anew, double lost) noexcept:
        """With fewer workers, or with all, until the others are tried again: `anew` if that is a change, else twice as long as last time, and long
        enough for a trial that took `lost` steps' time to be a fifth of all.
        """
        cdef int first = HASTE if fewer else PATIENCE
        self.patience[fewer] = first if anew else min((32 if fewer else 16) * first, 2 * self.patience[fewer])
        self.patience[fewer] = max(self.patience[fewer], <int>min(1e6, 4 * lost))
        self._turn(fewer, False, self.patience[fewer])

    cdef void _turn(self, bint reduced, bint trying, int left) noexcept:
        if not reduced:
            self.workers = self.most
        elif self.workers == self.most:
            self.workers = max(1, self.most - max(1, self.losers))
        self.trying, self.left, self.quiet = trying, left, 0
        self.turns += trying
        self.count = self.hits = self.losers = self.compared = 0
        self.ratios = 0.0


def barrier_seconds(int barriers, *, num_threads=0) -> float:
    """Seconds per barrier over `barriers` of them in one piece of work."""
    return _measure(barriers, 0, worker_count(num_threads))


def op_seconds(int ops, int chunks, *, num_threads=0) -> float:
    """Seconds per empty op of `chunks` chunks: what the tape costs where the work is nothing."""
    return _measure(ops, chunks, worker_count(num_threads))


ctypedef struct Measured:
    ox_team *team
    int ops
    int chunks


cdef void _measured(void *args, int ith, int nth) noexcept nogil:
    cdef Measured *m = <Measured *>args
    cdef int i
    for i in range(m.ops):
        while ox_team_take(m.team) < m.chunks:
            pass
        ox_team_barrier(m.team, ith, nth)


cdef double _measure(int ops, int chunks, int count) except -1:
    if ops < 1 or chunks < 0:
        raise ConfigError(f"ops, chunks: found {ops}, {chunks}, wanted at least 1 and 0")
    cdef Measured m
    cdef double start
    workers = Workers(count)
    m.ops, m.chunks, m.team = ops, chunks, ox_team_new()
    if m.team == NULL:
        raise MemoryError
    try:
        start = ox_seconds()
        workers.run(_measured, &m, count)
        return (ox_seconds() - start) / ops
    finally:
        ox_block_free(m.team)


cdef void _counted(void *args, int ith, int nth) noexcept nogil:
    ox_add(<int32_t *>args, 1)


def team_size(*, num_threads=0) -> int:
    """How many workers a piece of work for `num_threads` really runs on."""
    cdef int32_t size = 0
    run_once(_counted, &size, worker_count(num_threads))
    return size
