"""What a step is given: the rows of a batch, and the flag that stops it."""
import numpy as np

cimport numpy as cnp
from libc.stdint cimport INT32_MAX, int32_t
from libc.stdlib cimport calloc, free

from oxillama._core.adapters import AdapterSet
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
        raise ConfigError(f"{name}: found {array.ndim} dimensions, wanted 1")
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu":
        raise ConfigError(f"{name}: found {array.dtype}, wanted int32")
    if array.min() < -(1 << 31) or array.max() >= 1 << 31:
        raise ConfigError(f"{name}: a value does not fit in 32 bits")
    return np.ascontiguousarray(array, np.int32)


cdef class Batch:
    """The rows of one step, from any number of sequences.

    tokens, positions: int32 (rows,); tables: one int32 array of page ids per sequence (its block table, page of position 0 first);
    row_table: int32 (rows,), which table a row belongs to; wanted: ascending row numbers whose output is asked, may be empty.
    The rows of one table are contiguous and ascend in position. ConfigError for anything else.

    embeds: float32 (rows, width), taken in place of the embedding by every row whose token is -1; rope: int32 (rows,) or (sections, rows),
    positions that rotate in place of `positions`, which say where keys lie; visible: int32 (rows,), how many keys a row sees, from its own
    position + 1 to the last position of its table in this batch + 1; spans: int32 (2, rows), the first key and the one after the last that
    attention over spans lets a row see, at least one of its table, ascending within a table; slots: int32, the slot of recurrent state of each table;
    spares: int32 (rows,), other slots, each named once, for the state after rows that may be dropped again: the last ones of a table, or all, which leave
    its own slot as the row before them did; -1 for the others; adapters: an AdapterSet or None for each table, whose rows use them; kept: ascending row
    numbers whose state behind the last layer is read (`Program.carried`), the wanted ones among them, which are all of them if None.
    """

    def __cinit__(self, tokens, positions, tables, row_table, wanted, *, embeds=None, rope=None, visible=None, slots=None, adapters=None, spans=None, kept=None,
                  spares=None):
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
        if embeds is not None or rope is not None or visible is not None or slots is not None or spans is not None:
            self._optional(embeds, rope, visible, slots, spans)
        if adapters is not None:
            self._adapters(list(adapters))
        self._check_rows()
        self.kept_rows, self.kept = self.wanted_rows, self.wanted
        if kept is not None:
            self._kept(int32s(kept, "kept"), w)
        if spares is not None:
            self._spares(spares)

    cdef int _optional(self, object embeds, object rope, object visible, object slots, object spans) except -1:
        """What a batch may bring besides tokens and pages."""
        cdef cnp.ndarray one
        if embeds is not None:
            one = np.ascontiguousarray(embeds)
            if one.dtype != np.float32 or one.ndim != 2 or one.shape[0] != self.rows or one.shape[1] < 1:
                raise ConfigError(f"embeds: found {one.dtype} {np.shape(one)}, wanted float32 ({self.rows}, width)")
            self.embeds, self.embed_width = <const float *>cnp.PyArray_DATA(one), one.shape[1]
            self.held += (one,)
        if rope is not None:
            sections = np.shape(rope)[0] if np.ndim(rope) == 2 else 1
            one = int32s(np.reshape(rope, -1), "rope")
            if sections < 1 or one.shape[0] != sections * self.rows or one.min() < 0:
                raise ConfigError(f"rope: found {np.shape(rope)}, wanted positions of at least 0 for each of {self.rows} rows")
            self.rope, self.rope_sections = <const int32_t *>cnp.PyArray_DATA(one), sections
            self.held += (one,)
        if visible is not None:
            one = int32s(visible, "visible")
            if one.shape[0] != self.rows:
                raise ConfigError(f"visible: found {one.shape[0]} limits, wanted {self.rows}")
            self.visible = <const int32_t *>cnp.PyArray_DATA(one)
            self.held += (one,)
        if spans is not None:
            one = int32s(np.reshape(spans, -1), "spans")
            if np.ndim(spans) != 2 or np.shape(spans)[0] != 2 or one.shape[0] != 2 * self.rows:
                raise ConfigError(f"spans: found {np.shape(spans)}, wanted (2, {self.rows})")
            self.spans = <const int32_t *>cnp.PyArray_DATA(one)
            self.held += (one,)
        if slots is not None:
            one = int32s(slots, "slots")
            if one.shape[0] != self.n_tables or len(set(one.tolist())) != self.n_tables:
                raise ConfigError(f"slots: found {one.tolist()}, wanted one of its own for each of {self.n_tables} tables")
            self.slots = <const int32_t *>cnp.PyArray_DATA(one)
            self.held += (one,)
        return 0

    cdef int _kept(self, cnp.ndarray kept, cnp.ndarray wanted) except -1:
        cdef cnp.ndarray among = np.searchsorted(kept, wanted).astype(np.int32)
        if not (np.all(kept[1:] > kept[:-1]) and np.all((kept >= 0) & (kept < self.rows)) and np.isin(wanted, kept).all()):
            raise ConfigError(f"kept: found {kept.tolist()}, wanted ascending rows below {self.rows} with those wanted, {wanted.tolist()}, among them")
        self.kept_rows, self.kept, self.wanted_kept = kept.shape[0], <const int32_t *>cnp.PyArray_DATA(kept), <const int32_t *>cnp.PyArray_DATA(among)
        self.held += (kept, among)
        return 0

    cdef int _spares(self, object spares) except -1:
        cdef cnp.ndarray one = int32s(spares, "spares")
        cdef int r
        if one.shape[0] != self.rows:
            raise ConfigError(f"spares: found {one.shape[0]} of them, wanted {self.rows}, one for each row")
        if self.slots == NULL:
            raise ConfigError("spares: found some without slots, wanted a slot for each table")
        self.spares = <const int32_t *>cnp.PyArray_DATA(one)
        self.held += (one,)
        named = {self.slots[r] for r in range(self.n_tables)}
        for r in range(self.rows):
            if self.spares[r] in named or self.spares[r] < -1:
                raise ConfigError(f"row {r}: state goes to slot {self.spares[r]}, wanted one that is named once, or -1")
            if self.spares[r] >= 0:
                named.add(self.spares[r])
            elif r and self.row_table[r] == self.row_table[r - 1] and self.spares[r - 1] >= 0:
                raise ConfigError(f"row {r}: state goes to the slot of its table, wanted a spare one, as for the row before it")
        return 0

    cdef int _adapters(self, list given) except -1:
        if len(given) != self.n_tables or not all(each is None or isinstance(each, AdapterSet) for each in given):
            raise ConfigError(f"adapters: found {len(given)} of them, wanted an AdapterSet or None for each of {self.n_tables} tables")
        if any(each is not None for each in given):
            self.adapters = given
        return 0

    def __dealloc__(self):
        free(self.pages)
        free(self.lengths)

    cdef int _check_rows(self) except -1:
        cdef int r, table, last = 0
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
            for r in range(self.rows - 1, -1, -1) if self.visible != NULL else ():
                if r + 1 == self.rows or self.row_table[r + 1] != self.row_table[r]:
                    last = self.positions[r] + 1
                if not self.positions[r] < self.visible[r] <= last:
                    raise ConfigError(f"row {r}: {self.visible[r]} visible keys, wanted {self.positions[r] + 1} to {last}")
            for r in range(self.rows - 1, -1, -1) if self.spans != NULL else ():
                if r + 1 == self.rows or self.row_table[r + 1] != self.row_table[r]:
                    last = self.positions[r] + 1
                if not 0 <= self.spans[r] < min(last, self.spans[self.rows + r]):
                    raise ConfigError(f"row {r}: sees keys {self.spans[r]} to {self.spans[self.rows + r]}, wanted some from 0 to {last}")
                if r and self.row_table[r] == self.row_table[r - 1] and (
                        self.spans[r] < self.spans[r - 1] or self.spans[self.rows + r] < self.spans[self.rows + r - 1]):
                    raise ConfigError(f"row {r}: sees keys from {self.spans[r]} on after {self.spans[r - 1]}, wanted ascending spans")
            for r in range(self.wanted_rows):
                if self.wanted[r] < 0 or self.wanted[r] >= self.rows or (r and self.wanted[r] <= self.wanted[r - 1]):
                    raise ConfigError(f"wanted: {self.wanted[r]} at {r}, wanted ascending rows below {self.rows}")
        finally:
            free(seen)
        return 0
