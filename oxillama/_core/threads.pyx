"""The one module that knows about cores: how many workers a step gets, and what their barrier costs.

`default_threads()` counts the cores this process may use: its CPU affinity, its cgroup's CPU quota, and one worker per physical core.
`worker_count(n)` turns a caller's `num_threads` (0 = the default) into a number and refuses what cannot be honoured.
`Pace` runs short steps with fewer workers while other programs take cores away: results do not depend on their number.
`barrier_seconds` and `op_seconds` measure `csrc/team.h` for the benchmarks and the tests.
"""
import os
from pathlib import Path

from cython.parallel cimport parallel
from libc.stdlib cimport free
from openmp cimport omp_get_num_threads, omp_get_thread_num, omp_get_wtime

from oxillama.errors import ConfigError, EngineError

cdef extern from *:
    """
    #include <stdlib.h>
    #include <string.h>
    #include "team.h"
    static ox_team *ox_team_new(void) {
        ox_team *team = NULL;
        if (posix_memalign((void **)&team, 64, sizeof(ox_team))) return NULL;
        ox_team_init(team, NULL);
        return team;
    }
    """
    ox_team *ox_team_new() nogil

MAX_THREADS = 1024

cdef bint regions_opened = False
cdef bint forked = False


def _after_fork():
    global forked
    forked = regions_opened


os.register_at_fork(after_in_child=_after_fork)


cdef int open_region() except -1:
    """Called before every parallel region: a child of a process that had one must not open another (libgomp's workers are gone there)."""
    global regions_opened
    if forked:
        raise EngineError("this process was forked after its parent had started workers: load the model in the child, or use spawn")
    regions_opened = True
    return 0


def _quota(folder: Path) -> float | None:
    """CPUs that one cgroup folder allows (v2 `cpu.max`, v1 `cpu.cfs_quota_us`), None when it sets no limit."""
    try:
        limit, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if limit == "max" or int(limit) <= 0 or int(period) <= 0:
        return None
    return int(limit) / int(period)


def cgroup_folders(controller: str, proc: str, root: str) -> list:
    """The folders of the cgroups that hold this process under a controller, its own first; none where the system has no cgroups."""
    try:
        lines = Path(proc).read_text().splitlines()
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
    """How many physical cores the given logical CPUs belong to; a CPU whose topology is unknown counts as its own core."""
    cores = set()
    for cpu in cpus:
        topology = Path(sysfs) / f"cpu{cpu}" / "topology"
        for name in ("core_cpus_list", "thread_siblings_list"):
            try:
                cores.add((topology / name).read_text().strip())
                break
            except OSError:
                continue
        else:
            cores.add(cpu)
    return len(cores)


def default_threads() -> int:
    """Workers used when nobody says: physical cores within the CPU affinity, no more than the cgroup quota, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        count = physical_cores(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = cgroup_cpus()
    if quota is not None:
        count = min(count, int(quota))
    return max(1, min(count, MAX_THREADS))


cpdef int worker_count(object num_threads) except -1:
    """The number of workers for a caller's `num_threads`: 0 means `default_threads()`; ConfigError outside 0..1024."""
    if isinstance(num_threads, bool) or not isinstance(num_threads, int):
        raise ConfigError(f"num_threads: got {num_threads!r}, wanted an int from 0 to {MAX_THREADS}")
    if num_threads < 0 or num_threads > MAX_THREADS:
        raise ConfigError(f"num_threads: got {num_threads}, wanted 0 to {MAX_THREADS} (0 = all cores this process may use)")
    return num_threads or default_threads()


cdef enum:
    WINDOW = 8         # steps over which preemptions are counted
    TRIAL = 4          # steps that decide between all workers and fewer
    PATIENCE = 64      # steps with fewer workers until all are tried again; doubles while that stays slower
    QUIET = 4          # steps with fewer workers, all on their cores, before all are tried again


cdef class Pace:
    """How many workers the next short step gets: all of `most`, or fewer while that is measurably quicker.

    When a worker loses its core in the middle of an op all others wait for it, a time slice at a time; with a busy neighbour a step
    of two workers can take many times that of one. A step tells `note` its kind (steps of one kind take like times), its seconds,
    how many workers were taken off their core, and the seconds that its workers ran, all together; `workers` is the number for the next.

    Workers that ran less than half of a step's time have no cores to run on: one such step is enough, because it may take a hundred
    times its due. While fewer workers do not keep their cores either, all are not tried again.
    """

    def __init__(self, int most):
        self.most = self.workers = most
        self.patience = PATIENCE

    cpdef int note(self, int key, double seconds, int preempted, double ran=-1.0) except -1:
        """Takes in one step; returns the number of workers for the next. ran: below 0 where nobody knows."""
        if self.most == 1:
            return 1
        cdef bint reduced = self.workers < self.most, other = key != self.key
        cdef double share = ran / (seconds * self.workers) if ran >= 0 and seconds > 0 else 1.0
        if reduced:
            self.quiet = self.quiet + 1 if share > 0.8 else 0
        elif preempted > 0 and share < 0.5:
            if self.trying:
                self.patience = min(16 * PATIENCE, 2 * self.patience)
            self.key, self.mean[0], self.losers = key, seconds, max(self.losers, preempted)
            self._turn(True, False, self.patience if self.trying else WINDOW)
            return self.workers
        if other:
            self.key, self.count, self.hits, self.spent, self.losers = key, 0, 0, 0.0, 0
            self.left -= 1
            if self.trying or (reduced and self.left <= 0 and self.quiet >= QUIET):  # nothing to compare with: as if never tried
                self._turn(False, False, 0)
            return self.workers
        self.spent += seconds
        self.count += 1
        self.hits += preempted > 0
        self.losers = max(self.losers, preempted)
        if self.trying:
            self.left -= 1
            if self.left <= 0:
                self.mean[reduced] = self.spent / self.count
                if self.mean[reduced] < 0.95 * self.mean[not reduced]:      # the change pays: stay
                    self.patience = PATIENCE
                    self._turn(reduced, False, self.patience)
                else:
                    self.patience = min(16 * PATIENCE, 2 * self.patience)
                    self._turn(not reduced, False, self.patience)
        elif reduced:
            self.left -= 1
            if self.left <= 0 and self.quiet >= QUIET:
                self.mean[1] = self.spent / self.count
                self._turn(False, True, TRIAL)
        else:
            self.left -= 1
            if self.hits >= 2 and self.left <= 0:
                self.mean[0] = self.spent / self.count
                self._turn(True, True, TRIAL)
            elif self.count >= WINDOW:
                self.count, self.hits, self.spent, self.losers = 0, 0, 0.0, 0
        return self.workers

    cdef void _turn(self, bint reduced, bint trying, int left) noexcept:
        if not reduced:
            self.workers = self.most
        elif self.workers == self.most:
            self.workers = max(1, self.most - max(1, self.losers))
        self.trying, self.left, self.quiet = trying, left, 0
        self.count, self.hits, self.spent, self.losers = 0, 0, 0.0, 0


def barrier_seconds(int barriers, *, num_threads=0) -> float:
    """Seconds per barrier over `barriers` of them in one parallel region."""
    return _measure(barriers, 0, worker_count(num_threads))


def op_seconds(int ops, int chunks, *, num_threads=0) -> float:
    """Seconds per empty op of `chunks` chunks: what the tape costs where the work is nothing."""
    return _measure(ops, chunks, worker_count(num_threads))


cdef double _measure(int ops, int chunks, int workers) except -1:
    if ops < 1 or chunks < 0:
        raise ConfigError(f"ops, chunks: got {ops}, {chunks}, wanted at least 1 and 0")
    open_region()
    cdef ox_team *team = ox_team_new()
    if team == NULL:
        raise MemoryError
    cdef int nth, i
    cdef double start = omp_get_wtime()
    with nogil, parallel(num_threads=workers):
        nth = omp_get_num_threads()
        for i in range(ops):
            while ox_team_take(team) < chunks:
                pass
            ox_team_barrier(team, nth)
    cdef double seconds = (omp_get_wtime() - start) / ops
    free(team)
    return seconds


def team_size(*, num_threads=0) -> int:
    """How many workers OpenMP really gives a region that asks for `num_threads`."""
    cdef int workers = worker_count(num_threads)
    cdef int size = 0
    cdef int *shared = &size  # a plain name assigned inside the region would be one worker's own
    open_region()
    with nogil, parallel(num_threads=workers):
        if omp_get_thread_num() == 0:
            shared[0] = omp_get_num_threads()
    return size
