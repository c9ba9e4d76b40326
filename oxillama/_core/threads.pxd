"""The workers' C side: threads, and the team of one step."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "team.h" nogil:
    ctypedef struct ox_team:
        pass
    void ox_team_init(ox_team *team, const int32_t *cancel)
    void ox_team_barrier(ox_team *team, int ith, int nth)
    bint ox_team_meet(ox_team *team, int ith, int nth)
    void ox_team_go(ox_team *team, int nth)
    void ox_team_rewind(ox_team *team)
    int ox_team_take(ox_team *team)
    void ox_team_break(ox_team *team)
    ctypedef struct ox_team_units:
        int run, begin, end, first, n
    bint ox_team_share(ox_team *team, int size, int per, int ith, int nth, int least, int most, ox_team_units *units)
    enum:
        OX_TEAM_NO_RUN
    bint ox_team_stopped(const ox_team *team)

cdef extern from "environment.h" nogil:
    ctypedef struct fenv_t:
        pass
    fenv_t ox_fenv_enter()
    void ox_fenv_leave(const fenv_t *was)

cdef extern from "os.h" nogil:
    int64_t ox_preemptions(int64_t *us)
    int64_t ox_clock_ns()

cdef extern from *:
    """
    static void ox_add(int32_t *p, int32_t n) { __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
    """
    void ox_add(int32_t *p, int32_t n) noexcept nogil

cdef inline double ox_seconds() noexcept nogil:
    """Of a clock that only goes forward."""
    return 1e-9 * <double>ox_clock_ns()


ctypedef void (*Work)(void *args, int ith, int nth) noexcept nogil


cdef class Workers:
    cdef void *workers
    cdef readonly int count
    cdef int run(self, Work work, void *args, int nth) except -1


cdef class AdaptiveWorkers:
    cdef readonly int most
    cdef readonly int workers
    cdef bint trying
    cdef int left                # steps, by weight, until the next trial may begin, or this one must end
    cdef int count, hits, losers, compared
    cdef int[2] patience         # steps until fewer are tried, and until all are
    cdef int quiet               # steps with fewer workers, by weight, since one that had not its cores
    cdef int64_t turns           # trials so far
    cdef double ratios           # sum over a trial's steps: their seconds by those of their kind before
    cdef double[2][64] mean      # running mean of each kind's seconds: with all workers, with fewer
    cdef double[64] best         # the quickest lately, with all workers
    cdef int64_t[64] fresh       # the trial in which a kind was last seen
    cpdef int note(self, int key, double seconds, int preempted, double ran=*) except -1
    cdef void _judge(self, bint reduced) noexcept
    cdef void _stay(self, bint fewer, bint anew, double lost) noexcept
    cdef void _turn(self, bint reduced, bint trying, int left) noexcept


cpdef int worker_count(object num_threads) except -1
cdef int run_once(Work work, void *args, int count) except -1
cdef int region_threads(int count) except -1
cdef int within_limit(int count) noexcept nogil
