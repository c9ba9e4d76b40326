"""The workers' C side: the team of one step, and whether this process may still open a parallel region."""

from libc.stdint cimport int32_t

cdef extern from "team.h" nogil:
    ctypedef struct ox_team:
        pass
    void ox_team_init(ox_team *team, const int32_t *cancel)
    void ox_team_barrier(ox_team *team, int nth)
    int ox_team_take(ox_team *team)
    bint ox_team_stopped(const ox_team *team)

cpdef int worker_count(object num_threads) except -1
cdef int open_region() except -1
