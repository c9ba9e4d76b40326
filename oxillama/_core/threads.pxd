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

cdef extern from *:
    """
    #include <stdint.h>
    #include <time.h>
    #ifdef __linux__
    #include <sys/resource.h>
    #endif
    /* How often this thread was taken off its core while it had work; `*us`: the microseconds it ran, to the last of them: what getrusage
     * says of its time is brought up to date at a tick only, and a tick may be as long as a step. */
    static long ox_preemptions(int64_t *us) {
        struct timespec ran;
        *us = 0;
        if (!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran)) *us = ran.tv_sec * INT64_C(1000000) + ran.tv_nsec / 1000;
    #ifdef __linux__
        struct rusage use;
        if (!getrusage(RUSAGE_THREAD, &use)) return use.ru_nivcsw;
    #endif
        return 0;
    }
    static double ox_seconds(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }
    static void ox_add(int32_t *p, int32_t n) { __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
    """
    long ox_preemptions(int64_t *us) noexcept nogil
    double ox_seconds() noexcept nogil                      # of a clock that only goes forward
    void ox_add(int32_t *p, int32_t n) noexcept nogil

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
    cdef long turns              # trials so far
    cdef double ratios           # sum over a trial's steps: their seconds by those of their kind before
    cdef double[2][64] mean      # running mean of each kind's seconds: with all workers, with fewer
    cdef double[64] best         # the quickest lately, with all workers
    cdef long[64] fresh          # the trial in which a kind was last seen
    cpdef int note(self, int key, double seconds, int preempted, double ran=*) except -1
    cdef void _judge(self, bint reduced) noexcept
    cdef void _stay(self, bint fewer, bint anew, double lost) noexcept
    cdef void _turn(self, bint reduced, bint trying, int left) noexcept


cpdef int worker_count(object num_threads) except -1
cdef int run_once(Work work, void *args, int count) except -1
cdef int region_threads(int count) except -1
cdef int within_limit(int count) noexcept nogil
