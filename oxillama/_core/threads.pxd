"""The workers' C side: the team of one step, and whether this process may still open a parallel region."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "team.h" nogil:
    ctypedef struct ox_team:
        pass
    void ox_team_init(ox_team *team, const int32_t *cancel)
    void ox_team_barrier(ox_team *team, int nth)
    int ox_team_take(ox_team *team)
    int ox_team_left(ox_team *team, int run, int size)
    int ox_team_cut(ox_team *team, int run, int size, int least, int most, bint back, int *n)
    enum:
        OX_TEAM_RUNS
    bint ox_team_stopped(const ox_team *team)

cdef extern from *:
    """
    #include <stdint.h>
    #ifdef __linux__
    #include <sys/resource.h>
    /* What this thread had of its core: how often it was taken off it while it had work (above bit 44), and the microseconds it ran. */
    static int64_t ox_usage(void) {
        struct rusage use;
        if (getrusage(RUSAGE_THREAD, &use)) return 0;
        int64_t us = (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * INT64_C(1000000) + use.ru_utime.tv_usec + use.ru_stime.tv_usec;
        return (int64_t)((uint64_t)use.ru_nivcsw << 44) | (us & ((INT64_C(1) << 44) - 1));
    }
    #else
    static int64_t ox_usage(void) { return 0; }
    #endif
    static void ox_add(int32_t *p, int32_t n) { __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
    """
    int64_t ox_usage() noexcept nogil
    void ox_add(int32_t *p, int32_t n) noexcept nogil


cdef class Pace:
    cdef readonly int most
    cdef readonly int workers
    cdef bint trying
    cdef int left, patience, count, hits, losers, key, quiet
    cdef double spent
    cdef double[2] mean
    cpdef int note(self, int key, double seconds, int preempted, double ran=*) except -1
    cdef void _turn(self, bint reduced, bint trying, int left) noexcept


cpdef int worker_count(object num_threads) except -1
cdef int open_region() except -1
