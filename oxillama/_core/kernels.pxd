"""The kernel tables of `csrc/lanes`, one per instruction set, and the forms weights take in panels."""
from libc.stdint cimport int64_t, uint8_t

cdef extern from "lanes/panel.h" nogil:
    enum:
        ACT_F32
        ACT_Q8_32
        ACT_Q8_256
        ACT_BF16
        ACT_COUNT
        FORM_COUNT
    ctypedef struct ox_form:
        const char *name
        int block, bytes
        int family, act, store, side, head
        int plain
    ctypedef struct ox_lanes:
        const char *name
        void (*tile[64])(float *c, int64_t ldc, const uint8_t *panel, const uint8_t *then, const uint8_t *x, int64_t ldx, int64_t cols,
                         int m) noexcept nogil
        void (*beside[64])(float *c, const uint8_t *first, const uint8_t *second, const uint8_t *x, int64_t ldx, int64_t cols,
                           int64_t near, int m) noexcept nogil
        signed char beside_rows[64]
        signed char few_rows[64]
        signed char tile_rows[64]
        int full_tile, whole_rows, range_values
        void (*wide[64])(float *c, int64_t ldc, const uint8_t *panel, int64_t stride, int64_t later, const uint8_t *x, int64_t ldx,
                         int64_t cols, int m) noexcept nogil
        void (*act_quantise[4])(uint8_t *out, const float *x, int64_t cols) noexcept nogil
        void (*finish)(float *out, int64_t ldout, const float *c, int64_t ldc, const float *bias, int m, int n) noexcept nogil
        void (*gate)(float *out, int64_t ldout, const float *g, const float *u, int64_t ldc, const float *bias_g, const float *bias_u,
                     int kind, int m, int n) noexcept nogil

cdef int prefetch_distance[64][2]

cdef const ox_lanes *lanes_table(object isa) except NULL
cdef int form_index(str name) except -1
cdef int act_index(str name) except -1
cdef const ox_form *form_at(int index) noexcept nogil
cdef int64_t act_row_bytes(int act, int64_t cols) noexcept nogil
cdef int64_t panel_bytes(const ox_form *form, int64_t cols) noexcept nogil
cdef int tight_form(int form, int64_t cols) noexcept nogil
cdef bint pack_panels(int form, uint8_t *panels, const uint8_t *src, int64_t row_bytes, int64_t rows, int64_t cols,
                      int64_t first, int64_t end) noexcept nogil
