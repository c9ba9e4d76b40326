"""The rows of a step and the cancel flag, as the tape reads them."""
cimport numpy as cnp
from libc.stdint cimport int32_t


cdef class CancelFlag:
    cdef int32_t flag


cdef class Batch:
    cdef readonly int rows
    cdef readonly int wanted_rows
    cdef int n_tables
    cdef tuple held                  # the arrays behind the pointers
    cdef const int32_t *tokens
    cdef const int32_t *positions
    cdef const int32_t *row_table
    cdef const int32_t *wanted       # ascending rows
    cdef readonly int kept_rows
    cdef const int32_t *kept         # ascending rows, those wanted among them
    cdef const int32_t *wanted_kept  # which of the kept rows each wanted one is; NULL: they are the same rows
    cdef const int32_t **pages       # of each table
    cdef const float *embeds         # (rows, embed_width) or NULL
    cdef readonly int embed_width
    cdef const int32_t *rope         # (rope_sections, rows) or NULL: positions
    cdef readonly int rope_sections
    cdef const int32_t *visible      # keys each row sees, or NULL: those up to its own position
    cdef const int32_t *spans        # (2, rows) or NULL: the keys from the first to before the second that belong together with a row
    cdef const int32_t *slots        # state slot of each table, or NULL
    cdef const int32_t *spares       # (rows,) or NULL: the slot that the state after a row goes to, -1 for its table's own
    cdef readonly list adapters      # an AdapterSet or None of each table; None: no table has any
    cdef int *lengths                # of each table
    cdef int _check_rows(self) except -1
    cdef int _optional(self, object embeds, object rope, object visible, object slots, object spans) except -1
    cdef int _kept(self, cnp.ndarray kept, cnp.ndarray wanted) except -1
    cdef int _spares(self, object spares) except -1
    cdef int _adapters(self, list given) except -1
