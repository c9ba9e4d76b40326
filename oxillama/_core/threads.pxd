"""The workers' C side: the team of one step, and whether this process may still open a parallel region."""

cdef extern from "team.h" nogil:
    ctypedef struct ox_team:
        pass
    void ox_team_init(ox_team *team)
    void ox_team_barrier(ox_team *team, int nth)
    int ox_team_take(ox_team *team)
    void ox_team_stop(ox_team *team)
    bint ox_team_stopped(ox_team *team)

cpdef int worker_count(object num_threads) except -1
cdef int open_region() except -1
