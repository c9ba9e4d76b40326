"""What a step is given: the rows of a batch, and the flag that stops it."""
import numpy as np

cimport numpy as cnp
from libc.stdint cimport INT32_MAX, int32_t
from libc.stdlib cimport calloc, free

from oxillama.errors import ConfigError

cnp.import_array()

MAX_ROWS = 1 << 20

cdef extern from *:
    """
    #include "team.h"
    static void ox_flag_set(int32_t *flag, int32_t value) { __atomic_store_n(flag, value, __ATOMIC_RELAXED); }
    """
    void ox_flag_set(int32_t *flag, int32_t value) noexcept nogil


cdef class CancelFlag:
    """A flag another thread may set to stop a running step; the step then raises Cancelled within a few milliseconds."""

    def set(self) -> None:
        """Ask the step to stop."""
        ox_flag_set(&self.flag, 1)

    def clear(self) -> None:
        """Allow steps again."""
        ox_flag_set(&self.flag, 0)

    def __bool__(self):
        return self.flag != 0


cdef cnp.ndarray int32s(object values, str name):
    """values as a contiguous int32 array of one dimension, refusing whatever would lose something on the way."""
    if cnp.PyArray_Check(values) and cnp.PyArray_TYPE(values) == cnp.NPY_INT32 and cnp.PyArray_NDIM(values) == 1 and cnp.PyArray_IS_C_CONTIGUOUS(
            values) and cnp.PyArray_ISNOTSWAPPED(values) and cnp.PyArray_ISALIGNED(values):
        return values
    array = np.asarray(values)
    if array.ndim != 1:
        raise ConfigError(f"{name}: got {array.ndim} dimensions, wanted 1")
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu":
        raise ConfigError(f"{name}: got {array.dtype}, wanted int32")
    if array.min() < -(1 << 31) or array.max() >= 1 << 31:
        raise ConfigError(f"{name}: a value does not fit in 32 bits")
    return np.ascontiguousarray(array, np.int32)


cdef class Batch:
    """The rows of one step, from any number of sequences.

    tokens, positions: int32 (rows,); tables: one int32 array of page ids per sequence (its block table, page of position 0 first);
    row_table: int32 (rows,), which table a row belongs to; wanted: ascending row numbers whose output is asked, may be empty.
    The rows of one table are contiguous and ascend in position. ConfigError for anything else.
    """

    def __cinit__(self, tokens, positions, tables, row_table, wanted):
        cdef cnp.ndarray one
        cdef cnp.ndarray t = int32s(tokens, "tokens"), p = int32s(positions, "positions")
        cdef cnp.ndarray r = int32s(row_table, "row_table"), w = int32s(wanted, "wanted")
        cdef int i
        cdef list rows = [int32s(table, "table") for table in tables]
        if t.shape[0] > MAX_ROWS or t.shape[0] == 0:
            raise ConfigError(f"batch: {t.shape[0]} rows, wanted 1 to {MAX_ROWS}")
        if p.shape[0] != t.shape[0] or r.shape[0] != t.shape[0] or w.shape[0] > t.shape[0]:
            raise ConfigError(f"batch: {t.shape[0]} tokens, {p.shape[0]} positions, {r.shape[0]} row tables and {w.shape[0]} wanted rows")
        self.rows, self.wanted_rows, self.n_tables = t.shape[0], w.shape[0], len(rows)
        self.held = (t, p, r, w, rows)
        self.tokens, self.positions = <const int32_t *>cnp.PyArray_DATA(t), <const int32_t *>cnp.PyArray_DATA(p)
        self.row_table, self.wanted = <const int32_t *>cnp.PyArray_DATA(r), <const int32_t *>cnp.PyArray_DATA(w)
        self.pages = <const int32_t **>calloc(max(1, self.n_tables), sizeof(int32_t *))
        self.lengths = <int *>calloc(max(1, self.n_tables), sizeof(int))
        if self.pages == NULL or self.lengths == NULL:
            raise MemoryError
        for i in range(self.n_tables):
            one = rows[i]
            self.lengths[i] = <int>min(one.shape[0], <Py_ssize_t>INT32_MAX)
            self.pages[i] = <const int32_t *>cnp.PyArray_DATA(one)
        self._check_rows()

    def __dealloc__(self):
        free(self.pages)
        free(self.lengths)

    cdef int _check_rows(self) except -1:
        cdef int r, table
        cdef char *seen = <char *>calloc(max(1, self.n_tables), 1)
        if seen == NULL:
            raise MemoryError
        try:
            for r in range(self.rows):
                table = self.row_table[r]
                if table < 0 or table >= self.n_tables:
                    raise ConfigError(f"row {r}: table {table}, wanted 0 to {self.n_tables - 1}")
                if self.positions[r] < 0:
                    raise ConfigError(f"row {r}: position {self.positions[r]}, wanted at least 0")
                if r and table == self.row_table[r - 1]:
                    if self.positions[r] <= self.positions[r - 1]:
                        raise ConfigError(f"row {r}: position {self.positions[r]} after {self.positions[r - 1]}, wanted ascending positions")
                elif seen[table]:
                    raise ConfigError(f"row {r}: table {table} again, wanted the rows of a table side by side")
                seen[table] = 1
            for r in range(self.wanted_rows):
                if self.wanted[r] < 0 or self.wanted[r] >= self.rows or (r and self.wanted[r] <= self.wanted[r - 1]):
                    raise ConfigError(f"wanted: {self.wanted[r]} at {r}, wanted ascending rows below {self.rows}")
        finally:
            free(seen)
        return 0
