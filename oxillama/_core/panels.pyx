"""Packed weights: GGUF tensors in panels of 16 rows (csrc/lanes/panel.h), all those of a model in one block of memory.

`PackedMatrix` is one matrix. `reserve_all` makes the room for many, one after another in a `PanelMemory`, which asks for 2 MB pages: a token reads
all of it, and small pages would cost a third of the bandwidth. `pack_all` fills what was reserved, with all workers; `fault_in` has them bring
a mapped file into memory.
"""
import numpy as np

from cpython.buffer cimport PyBuffer_FillInfo
from cython.parallel cimport prange
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from oxillama._core.kernels cimport form_at, form_index, ox_form, pack_panels, panel_bytes
from oxillama._core.threads cimport open_region, worker_count

from oxillama._core.kernels import ACTS
from oxillama.errors import QuantError

cdef extern from "block.h" nogil:
    void *ox_block_new(size_t size)
    void ox_fault_in(const void *start, size_t size)

cdef enum:
    FAULTED = 16 << 20          # bytes that a worker brings into memory at a time
    START = 4096                # a matrix of many begins at a multiple of it: at a page of its own, as in a sidecar


cdef class PanelMemory:
    """Memory for the panels of many matrices; whoever holds one of them holds all of it."""

    def __cinit__(self, int64_t nbytes):
        self.nbytes, self.used = nbytes, 0
        self.block = <uint8_t *>ox_block_new(max(nbytes, <int64_t>64))
        if self.block == NULL:
            raise MemoryError(f"{nbytes} bytes for packed weights")

    def __dealloc__(self):
        free(self.block)

    cdef uint8_t *take(self, int64_t nbytes) except NULL:
        if nbytes > self.nbytes - self.used:
            raise MemoryError(f"{nbytes} bytes of a memory for panels that has {self.nbytes - self.used} left")
        cdef uint8_t *found = self.block + self.used
        self.used = min(self.nbytes, self.used + room_of(nbytes))
        return found


cdef int64_t room_of(int64_t nbytes) noexcept nogil:
    return (nbytes + START - 1) // START * START


cdef class PackedMatrix:
    """The weights of one matrix (rows, cols) in lane panels, 64-byte aligned; `act` says which activation rows it multiplies.

    `raw` holds the GGUF blocks of all rows, row after row; it is only read while packing. `reserve_all` makes the room for many and leaves
    the packing to `pack_all`; `PackedMatrix.over` takes panels that lie ready. As a buffer it shows its panels' bytes, read-only.
    Raises QuantError when `format` cannot be packed or the sizes do not fit it, MemoryError when the panels find no room.
    """

    def __init__(self, raw, str format, int64_t rows, int64_t cols, num_threads=0):
        self._source(raw, format, rows, cols)
        self._place(PanelMemory(self.nbytes))
        pack_all([self], num_threads=num_threads)

    cdef int _shape(self, str format, int64_t rows, int64_t cols) except -1:
        cdef int form = form_index(format)
        cdef const ox_form *shape = form_at(form)
        if rows < 1 or cols < 1 or cols % shape.block:
            raise QuantError(f"{format}: ({rows}, {cols}) cannot be packed, wanted at least one row and a multiple of {shape.block} columns")
        if rows > (<int64_t>1 << 40) // cols:
            raise QuantError(f"{format}: ({rows}, {cols}) is more than any matrix holds")
        self.rows, self.cols, self.format, self.act = rows, cols, format, ACTS[shape.act]
        self.segment.form, self.segment.rows, self.segment.panel_bytes = form, rows, panel_bytes(shape, cols)
        self.nbytes = (rows + 15) // 16 * self.segment.panel_bytes
        return 0

    cdef int _source(self, object raw, str format, int64_t rows, int64_t cols) except -1:
        self._shape(format, rows, cols)
        cdef const ox_form *shape = form_at(self.segment.form)
        cdef const uint8_t[::1] view = memoryview(raw).cast("B")
        cdef int64_t wanted = rows * (cols // shape.block * shape.bytes)
        if view.shape[0] != wanted:
            raise QuantError(f"{format}: ({rows}, {cols}) takes {wanted} bytes, found {view.shape[0]}")
        self.source = view
        return 0

    cdef int _place(self, PanelMemory memory) except -1:
        self.segment.panels = memory.take(self.nbytes)
        self.memory = memory
        return 0

    @classmethod
    def over(cls, panels, str format, int64_t rows, int64_t cols):
        """Over panels that lie ready in `panels`, 64-byte aligned; they are kept alive, never copied."""
        cdef PackedMatrix made = cls.__new__(cls)
        made._shape(format, rows, cols)
        made.source = memoryview(panels).cast("B")
        if made.source.shape[0] != made.nbytes:
            raise QuantError(f"{format}: panels of ({rows}, {cols}) take {made.nbytes} bytes, found {made.source.shape[0]}")
        made.segment.panels = &made.source[0]
        if <size_t>made.segment.panels % 64:
            raise QuantError(f"{format}: panels at an address that is no multiple of 64")
        return made

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *>self.segment.panels, self.nbytes, 1, flags)

    def panels(self):
        """The packed bytes, (panels, bytes per panel), read-only."""
        return np.frombuffer(self, np.uint8).reshape(-1, self.segment.panel_bytes)


def reserve_all(list wanted) -> list:
    """A PackedMatrix for each (raw, format, rows, cols), one after another in this order; each `raw` is read when `pack_all` is called."""
    cdef PackedMatrix matrix
    cdef int64_t total = 0
    made = []
    for raw, format, rows, cols in wanted:
        matrix = PackedMatrix.__new__(PackedMatrix)
        matrix._source(raw, format, rows, cols)
        total += room_of(matrix.nbytes)
        made.append(matrix)
    memory = PanelMemory(total)
    for matrix in made:
        matrix._place(memory)
    return made


# One matrix to pack: its chunks are numbers first to first + chunks - 1 of the region's.
cdef struct Packing:
    uint8_t *to
    const uint8_t *source
    int64_t row_bytes, rows, cols, panels, step, first, chunks
    int form


def pack_all(list matrices, *, num_threads=0):
    """Pack matrices that `reserve_all` made, all of them in one region: workers take chunks of about 256 KB, in order."""
    cdef int workers = worker_count(num_threads), i
    cdef int64_t chunk, chunks = 0
    cdef PackedMatrix matrix
    cdef const ox_form *shape
    cdef Packing *jobs = <Packing *>calloc(max(1, len(matrices)), sizeof(Packing))
    if jobs == NULL:
        raise MemoryError
    cdef Packing *job
    try:
        for i, matrix in enumerate(matrices):
            if matrix.memory is None or matrix.source is None:
                raise QuantError(f"pack_all: matrix {i} is packed already, wanted one that was reserved")
            job, shape = &jobs[i], form_at(matrix.segment.form)
            job.to, job.source, job.form = <uint8_t *>matrix.segment.panels, &matrix.source[0], matrix.segment.form
            job.rows, job.cols = matrix.rows, matrix.cols
            job.row_bytes, job.panels = matrix.cols // shape.block * shape.bytes, (matrix.rows + 15) // 16
            job.step = max(1, (1 << 18) // matrix.segment.panel_bytes)
            job.first, job.chunks = chunks, (job.panels + job.step - 1) // job.step
            chunks += job.chunks
        if workers == 1 or chunks == 1:
            with nogil:
                for chunk in range(chunks):
                    _pack_chunk(jobs, chunk)
        else:
            open_region()
            for chunk in prange(chunks, nogil=True, num_threads=workers, schedule="dynamic", chunksize=1):
                _pack_chunk(jobs, chunk)
        for matrix in matrices:
            matrix.source = None
    finally:
        free(jobs)


cdef void _pack_chunk(const Packing *jobs, int64_t chunk) noexcept nogil:
    while chunk >= jobs.first + jobs.chunks:
        jobs += 1
    cdef int64_t first = (chunk - jobs.first) * jobs.step
    pack_panels(jobs.form, jobs.to, jobs.source, jobs.row_bytes, jobs.rows, jobs.cols, first, min(jobs.panels, first + jobs.step))


def fault_in(const uint8_t[::1] view not None, *, num_threads=0):
    """Bring a mapping into memory with all workers, in its order; nothing changes but time."""
    cdef int workers = worker_count(num_threads)
    cdef int64_t size = view.shape[0], part, parts = (size + FAULTED - 1) // FAULTED
    if size == 0:
        return
    cdef const uint8_t *start = &view[0]
    if workers > 1 and parts > 1:
        open_region()
        for part in prange(parts, nogil=True, num_threads=workers, schedule="dynamic", chunksize=1):
            ox_fault_in(start + part * FAULTED, min(<int64_t>FAULTED, size - part * FAULTED))
    else:
        with nogil:
            ox_fault_in(start, size)
