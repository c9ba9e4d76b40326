"""Low-rank adapters in memory: factors packed once per adapter, sets of them with scales, and the sums that products add."""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from oxillama._core.kernels cimport form_at, form_index, ox_lanes, pack_panels, panel_bytes

import numpy as np

from oxillama.errors import ConfigError, ModelError

cdef enum:
    MOST_ROWS = 264          # rows of one call of a kernel: those of a chunk in matmul.pyx

cdef int F32 = form_index("F32")


cdef class Adapter:
    """The factors of one adapter over the ops of one program.

    shapes: `Program.adaptable`; entries: (op, matrix of the op, A, B, scale) with float32 A (count, rank, cols) and B (count, rows, rank) of a
    stack of `count` matrices (1 for a single one); for the embedding A is (1, vocabulary, rank). ModelError for factors that do not fit.
    """

    def __init__(self, shapes, entries):
        cdef Pair *pair
        cdef int op, segment
        self.shapes, self.held, self.n_ops = shapes, [], len(shapes)
        self.ops = <Factors *>calloc(max(1, self.n_ops), sizeof(Factors))
        if self.ops == NULL:
            raise MemoryError
        for op, segment, a, b, scale in entries:
            if not 0 <= op < self.n_ops or not 0 <= segment < len(shapes[op]):
                raise ModelError(f"adapter: op {op} has no matrix {segment} that takes factors")
            kind, count, rows, cols, _ = shapes[op][segment]
            rank = b.shape[2] if b.ndim == 3 else 0
            wanted = (1, rows, rank) if kind == "embed" else (count, rank, cols)
            if rank < 1 or a.shape != wanted or b.shape != ((1, cols, rank) if kind == "embed" else (count, rows, rank)):
                raise ModelError(f"adapter: op {op}, matrix {segment}: factors {a.shape} and {b.shape} for {count} matrices ({rows}, {cols})")
            if self.ops[op].pairs == NULL:
                self.ops[op].pairs = <Pair *>calloc(len(shapes[op]), sizeof(Pair))
                if self.ops[op].pairs == NULL:
                    raise MemoryError
                self.ops[op].n = len(shapes[op])
            pair = self.ops[op].pairs + segment
            if pair.rank:
                raise ModelError(f"adapter: op {op}, matrix {segment}: given twice")
            pair.scale = scale
            pair.rank, pair.offset = rank, self.ops[op].width
            self.ops[op].width += (rank + 15) // 16 * 16
            if kind == "embed":
                pair.a, pair.a_panel, pair.a_bytes = self._kept(a), 0, 0
            else:
                pair.a = self._packed(a, &pair.a_panel, &pair.a_bytes)
                self.columns = max(self.columns, cols)
            pair.b = self._packed(b, &pair.b_panel, &pair.b_bytes)
        for op in range(self.n_ops):
            used = max([shape[4] for shape in shapes[op]], default=1)
            self.width = max(self.width, self.ops[op].width * used)

    cdef const uint8_t *_kept(self, values) except NULL:
        """The address of a contiguous float32 copy at a multiple of 64, which lives as long as this."""
        cdef float[::1] flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        cdef uint8_t[::1] room = np.empty(4 * flat.shape[0] + 64, np.uint8)
        cdef size_t start = (64 - <size_t>&room[0] % 64) % 64
        np.asarray(room)[start:start + 4 * flat.shape[0]] = np.asarray(flat).view(np.uint8)
        self.held.append(room)
        self.nbytes += 4 * flat.shape[0]
        return &room[start]

    cdef const uint8_t *_packed(self, values, int64_t *panel, int64_t *stride) except NULL:
        """Panels of a stack (count, rows, cols)."""
        cdef int64_t count = values.shape[0], rows = values.shape[1], cols = values.shape[2], i, panels = (rows + 15) // 16
        cdef float[:, :, ::1] source = np.ascontiguousarray(values, np.float32)
        panel[0] = panel_bytes(form_at(F32), cols)
        stride[0] = panels * panel[0]
        cdef uint8_t[::1] room = np.zeros(count * stride[0] + 64, np.uint8)
        cdef uint8_t *start = &room[0] + (64 - <size_t>&room[0] % 64) % 64
        for i in range(count):
            pack_panels(F32, start + i * stride[0], <const uint8_t *>&source[i, 0, 0], 4 * cols, rows, cols, 0, panels)
        self.held.append(room)
        self.nbytes += count * stride[0]
        return start

    def __dealloc__(self):
        cdef int i
        if self.ops != NULL:
            for i in range(self.n_ops):
                free(self.ops[i].pairs)
        free(self.ops)


cdef class AdapterSet:
    """Adapters with their scales, in the order in which their products are added; all of one program."""

    def __init__(self, pairs):
        cdef int i
        pairs = tuple((adapter, float(scale)) for adapter, scale in pairs)
        if not pairs or not all(isinstance(adapter, Adapter) and adapter.shapes is pairs[0][0].shapes for adapter, _ in pairs):
            raise ConfigError(f"adapters: {len(pairs)} of them, wanted at least one, all of one program")
        self.adapters, self.adapted.n = pairs, len(pairs)
        self.adapted.shares = <Share *>calloc(len(pairs), sizeof(Share))
        if self.adapted.shares == NULL:
            raise MemoryError
        for i in range(len(pairs)):
            self.adapted.shares[i].ops = (<Adapter>pairs[i][0]).ops
            self.adapted.shares[i].scale = pairs[i][1]
            self.width += pairs[i][0].width
            self.columns = max(self.columns, pairs[i][0].columns)

    def __dealloc__(self):
        free(self.adapted.shares)


cdef int width_at(const Adapted *adapted, int op) noexcept nogil:
    cdef int k, width = 0
    for k in range(adapted.n):
        width += adapted.shares[k].ops[op].width
    return width


cdef void add_low_rank(const LowRank *low, const ox_lanes *lanes, float *c, int64_t ldc, int segment, int64_t panel, int64_t row, int m, int live) noexcept nogil:
    """Adds B t to the sums c (m, ldc) of one panel of a segment, for the rows from `row` on that use adapters."""
    cdef float y[MOST_ROWS * 16]
    cdef const Adapted *adapted
    cdef const Factors *factors
    cdef const Pair *pair
    cdef const float *t
    cdef int i = 0, n, k, j, r, part
    while i < m:
        n = 1
        if low.order == NULL:
            adapted, t = low.rows[row + i], low.t + (row + i) * low.ldt
            while i + n < m and low.rows[row + i + n] == adapted:
                n += 1
        else:
            part = low.order[row + i]
            adapted, t = low.rows[part // low.used], low.t + part // low.used * low.ldt
            if adapted != NULL:
                t += part % low.used * width_at(adapted, low.op)
        for k in range(adapted.n if adapted != NULL else 0):
            factors = adapted.shares[k].ops + low.op
            if factors.n and factors.pairs[low.segment + segment].rank:
                pair = factors.pairs + low.segment + segment
                lanes.tile[F32](y, 16, pair.b + low.expert * pair.b_bytes + (low.panel + panel) * pair.b_panel, NULL,
                                <const uint8_t *>(t + pair.offset), 4 * low.ldt, pair.rank, n)
                for j in range(n):
                    for r in range(live):
                        c[(i + j) * ldc + r] += y[16 * j + r]
            t += factors.width
        i += n
