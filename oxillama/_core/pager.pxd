"""Weights that come from a file while a step runs, for other compiled modules."""
from libc.stdint cimport int32_t, int64_t, uint8_t

from oxillama._core.threads cimport ox_team

cdef extern from "pager.h" nogil:
    ctypedef struct ox_paged_file:
        int fd, direct
        const uint8_t *map
        const int32_t *lost
        int64_t size, seconds, nanoseconds
    ctypedef struct ox_part:
        const ox_paged_file *file
        int form
        int64_t offset, row_bytes, rows, cols, panels, panel_bytes, place
        uint8_t *home
    ctypedef struct ox_page:
        ox_part part[2]
        int parts, name, chunks, pinned, resident
        int64_t nbytes
    ctypedef struct ox_paged_op:
        ox_page *pages
        int count, per, streams
        int *first
        int64_t todo
    ctypedef struct ox_ring_slot:
        uint8_t *data
        const ox_page *page
    ctypedef struct ox_experts:
        ox_page *pages
        int experts, slots, active, count, queued
        int64_t slot_bytes, panels
        uint8_t *memory
        ox_experts *then
        int32_t *order
        int32_t *misses
        int32_t *slot_of
        int32_t *holds
        void *state
        void *left
        unsigned int *used
        int64_t *last
    ctypedef struct ox_pager:
        pass
    ox_ring_slot *ox_pager_await(ox_pager *p, int64_t number, const ox_team *team)
    const uint8_t *ox_page_data(const ox_ring_slot *slot, const ox_page *page, int i)
    void ox_pager_done(ox_pager *p, ox_ring_slot *slot)
    void ox_experts_plan(ox_pager *p, ox_experts *c, const int32_t *chosen, const int32_t *begins, int count)
    const uint8_t *ox_experts_await(ox_pager *p, ox_experts *c, int expert, const ox_team *team)
    void ox_experts_done(ox_pager *p, ox_experts *c, int expert, int32_t panels)


cdef class PagedOp:
    # What one op of a program pages: pages in the order of its chunks, or a cache of experts.
    cdef ox_paged_op op
    cdef ox_experts experts
    cdef readonly bint routed
    cdef readonly object pager
    cdef list held
    cdef int _page(self, ox_page *page, list parts, int chunks, str name) except -1


cdef class Pager:
    cdef ox_pager *pager
    cdef ox_paged_file *files
    cdef list names, maps
    cdef readonly list ops
    cdef readonly list labels
    cdef dict made
    cdef public object poll
    cdef readonly int64_t ring_bytes, page_bytes
    cdef int n_files
    cdef ox_page **spare
    cdef int64_t spare_room
    cdef bint sealed
    cdef readonly bint closed
    cdef int _open(self, ox_paged_file *file, int fd, object mapping, bint direct) except -1
    cdef int _end_readers(self) except -1
    cdef int _close_files(self) except -1
    cdef int _seal(self) except -1
    cdef int fetch(self, int file, int64_t offset, int64_t row_bytes, const int32_t *rows, int count, uint8_t *out, str name) except -1
    cdef int begin(self, list ops) except -1
    cdef int end(self, bint whole, bint stopped) except -1
    cdef int64_t _list(self, list ops) except -1
