"""The workers' C side: the team of one step, and whether this process may still open a parallel region."""

from libc.stdint cimport int32_t

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
    #ifdef __linux__
    #include <sys/resource.h>
    /* How often this thread was taken off its core while it had work. */
    static long ox_preemptions(void) {
        struct rusage use;
        return getrusage(RUSAGE_THREAD, &use) ? 0 : use.ru_nivcsw;
    }
    #else
    static long ox_preemptions(void) { return 0; }
    #endif
    static void ox_add(int32_t *p, int32_t n) { __atomic_fetch_add(p, n, __ATOMIC_RELAXED); }
    """
    long ox_preemptions() noexcept nogil
    void ox_add(int32_t *p, int32_t n) noexcept nogil


cdef class Pace:
    cdef readonly int most
    cdef readonly int workers
    cdef bint trying
    cdef int left, patience, count, hits, losers, key
    cdef double spent
    cdef double[2] mean
    cpdef int note(self, int key, double seconds, int preempted) except -1
    cdef void _turn(self, bint reduced, bint trying, int left) noexcept


cpdef int worker_count(object num_threads) except -1
cdef int open_region() except -1
