"""Packed weights: GGUF tensors in panels of 16 rows (csrc/lanes/panel.h), all those of a model in one block of memory.

`PackedMatrix` is one matrix. 16-bit floats are packed tight, in three quarters of their bytes, where they allow it; whether they do is seen while
they are packed, so that until then a matrix may still be laid in the plain form of its format. `reserve_all` makes the room for many, one after another in a `PanelMemory`, which asks for 2 MB pages: a token reads
all of it, and small pages would cost a third of the bandwidth. `Units` fill what was reserved, piece by piece, with all workers (`unpacked`
multiplies what is not there yet), `pack_all` at once; `fault_in` has them bring a mapped file into memory.
"""
import numpy as np

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

from oxillama._core.batch cimport CancelFlag
from oxillama._core.kernels cimport form_at, form_index, ox_form, pack_panels, panel_bytes, tight_form
from oxillama._core.threads cimport run_once, worker_count

from oxillama._core.kernels import ACTS
from oxillama.errors import QuantError

cdef extern from "block.h" nogil:
    void *ox_block_new(size_t size)
    void ox_block_free(void *block)
    void ox_fault_in(const void *start, size_t size)
    void ox_let_go(const void *start, size_t size)
    void ox_expect_pages(const void *start, size_t size)
    int64_t ox_units_take(int64_t *next)
    int ox_flag_get(const int32_t *flag)
    void ox_flag_put(int32_t *flag, int value)

cdef enum:
    FAULTED = 16 << 20          # bytes that a worker brings into memory at a time
    LARGE = 2 << 20             # a large page
    AHEAD = 8                   # units that are asked for from the disk while others are packed
    START = 4096                # a matrix of many begins at a multiple of it: at a page of its own, as in a sidecar


cdef class PanelMemory:
    """Memory for the panels of many matrices; whoever holds one of them holds all of it."""

    def __cinit__(self, int64_t nbytes):
        self.nbytes, self.used = nbytes, 0
        self.block = <uint8_t *>ox_block_new(max(nbytes, <int64_t>64))
        if self.block == NULL:
            raise MemoryError(f"{nbytes} bytes for packed weights")

    def __dealloc__(self):
        ox_block_free(self.block)

    cdef uint8_t *take(self, int64_t nbytes) except NULL:
        if nbytes > self.nbytes - self.used:
            raise MemoryError(f"{nbytes} bytes of a memory for panels that has {self.nbytes - self.used} left")
        cdef uint8_t *found = self.block + self.used
        self.used = min(self.nbytes, self.used + padded_bytes(nbytes))
        return found


cdef int64_t padded_bytes(int64_t nbytes) noexcept nogil:
    return (nbytes + START - 1) // START * START


cdef class PackedMatrix:
    """The weights of one matrix (rows, cols) in lane panels, 64-byte aligned; `act` says which activation rows it multiplies.

    `raw` holds the GGUF blocks of all rows, row after row; it is only read while packing. `reserve_all` makes the room for many and leaves
    the packing to `Units` or `pack_all`; `PackedMatrix.over` takes panels that lie ready. As a buffer it shows its panels' bytes, read-only.
    tight: fewer bytes are tried where there is such a form; the products are the same. Raises QuantError when `format` cannot be packed or the sizes do
    not fit it, MemoryError if the panels cannot be allocated.
    """

    def __init__(self, raw, str format, int64_t rows, int64_t cols, num_threads=0, bint tight=True):
        self._source(raw, format, rows, cols, tight)
        self._place(PanelMemory(self.capacity))
        pack_all([self], num_threads=num_threads)

    cdef int _shape(self, str format, int64_t rows, int64_t cols) except -1:
        cdef int form = form_index(format)
        cdef const ox_form *shape = form_at(form)
        if rows < 1 or cols < 1 or cols % shape.block:
            raise QuantError(f"{format}: ({rows}, {cols}) cannot be packed, wanted at least one row and a multiple of {shape.block} columns")
        if rows > (<int64_t>1 << 40) // cols:
            raise QuantError(f"{format}: ({rows}, {cols}) is more than any matrix holds")
        if shape.plain != form and tight_form(shape.plain, cols) != form:
            raise QuantError(f"{format}: no panels of {cols} columns are laid so")
        self.rows, self.cols, self.format, self.act = rows, cols, form_at(shape.plain).name.decode(), ACTS[shape.act]
        self._lay(form)
        self.capacity = self.nbytes
        return 0

    cdef int _lay(self, int form) except -1:
        """Panels are to be those of a form; none is packed yet."""
        self.segment.form, self.segment.rows, self.segment.panel_bytes = form, self.rows, panel_bytes(form_at(form), self.cols)
        self.nbytes = (self.rows + 15) // 16 * self.segment.panel_bytes
        self.supply.ready = self.supply.loose = 0
        return 0

    @property
    def form(self) -> str:
        """How its panels are laid: its format's name, or that of the format's tight form."""
        return form_at(self.segment.form).name.decode()

    cdef int _source(self, object raw, str format, int64_t rows, int64_t cols, bint tight) except -1:
        self._shape(format, rows, cols)
        cdef const ox_form *shape = form_at(self.segment.form)
        cdef const uint8_t[::1] view = memoryview(raw).cast("B")
        cdef int64_t wanted = rows * (cols // shape.block * shape.bytes)
        if view.shape[0] != wanted:
            raise QuantError(f"{format}: ({rows}, {cols}) takes {wanted} bytes, found {view.shape[0]}")
        self.source = view
        self.supply.source, self.supply.row_bytes = &view[0], wanted // rows
        cdef int less = tight_form(self.segment.form, cols) if tight else -1
        if less >= 0:
            self._lay(less)
        return 0

    cdef int _place(self, PanelMemory memory) except -1:
        self.segment.panels = memory.take(self.capacity)
        self.memory = memory
        return 0

    @classmethod
    def over(cls, panels, str format, int64_t rows, int64_t cols):
        """Over panels that lie ready in `panels`, 64-byte aligned; they are kept alive, never copied. format: or what `form` says of them."""
        cdef PackedMatrix made = cls.__new__(cls)
        made._shape(format, rows, cols)
        made.source = memoryview(panels).cast("B")
        if made.source.shape[0] != made.nbytes:
            raise QuantError(f"{format}: panels of ({rows}, {cols}) take {made.nbytes} bytes, found {made.source.shape[0]}")
        made.segment.panels = &made.source[0]
        if <size_t>made.segment.panels % 64:
            raise QuantError(f"{format}: panels at an address that is no multiple of 64")
        made.supply.ready = (rows + 15) // 16
        return made

    @classmethod
    def paged(cls, pager, str name, int file, int64_t offset, int64_t row_bytes, str format, int64_t rows, int64_t cols, PanelMemory home=None,
              int slots=0, bint fixed=False):
        """One whose rows stay at `offset` of a pager's file. home: where its panels stay once they were read; None: they come and go. slots: experts of a
        stack that may be in memory. fixed: what has come stays, however short memory is."""
        cdef PackedMatrix made = cls.__new__(cls)
        made._shape(format, rows, cols)
        made.supply.row_bytes = row_bytes
        made.pager, made.paged_name, made.paged_file, made.paged_offset, made.paged_slots = pager, name, file, offset, slots
        made.paged_fixed = fixed
        if home is not None:
            made._place(home)
        return made

    cdef int check_packed(self) except -1:
        if 16 * self.supply.ready < self.rows:
            raise QuantError(f"{self.format}: {16 * self.supply.ready} of {self.rows} rows are packed, wanted all")
        return 0

    def __len__(self):
        """Its panels."""
        return (self.rows + 15) // 16

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        self.check_packed()
        PyBuffer_FillInfo(buffer, self, <void *>self.segment.panels, self.nbytes, 1, flags)

    def panels(self):
        """The packed bytes, (panels, bytes per panel), read-only."""
        return np.frombuffer(self, np.uint8).reshape(-1, self.segment.panel_bytes)


def packed_bytes(str format, int64_t rows, int64_t cols) -> int:
    """Bytes of a matrix in panels; QuantError for what cannot be packed."""
    cdef PackedMatrix made = PackedMatrix.__new__(PackedMatrix)
    made._shape(format, rows, cols)
    return made.nbytes


def reserve_all(list wanted) -> list:
    """A PackedMatrix for each (raw, format, rows, cols), one after another in this order; each `raw` is read while it is packed."""
    cdef PackedMatrix matrix
    cdef int64_t total = 0
    made = []
    for raw, format, rows, cols in wanted:
        matrix = PackedMatrix.__new__(PackedMatrix)
        matrix._source(raw, format, rows, cols, True)
        total += padded_bytes(matrix.capacity)
        made.append(matrix)
    memory = PanelMemory(total)
    for matrix in made:
        matrix._place(memory)
    return made


ctypedef struct Packing:
    # What the workers of one `Units.pack` share.
    const Unit *units
    int64_t end
    int64_t *next
    const int32_t *stop


cdef class Units:
    """Matrices that `reserve_all` made, cut into units that workers pack one after another, in their order; `whole` once all of them are.

    mapped: of each matrix, whether its rows lie in a mapped file, whose pages are asked for before and given back after. unit: bytes of a unit: a
    large page, whose first touch would cost two workers twice. One thread at a time may call `pack`.
    """

    def __cinit__(self, list matrices, *, mapped=(), int64_t unit=LARGE):
        cdef PackedMatrix matrix
        cdef int64_t step, first
        cdef Unit *one
        cdef int i
        self.matrices = list(matrices)
        for i, matrix in enumerate(self.matrices):
            if matrix.memory is None or matrix.source is None or matrix.supply.ready:
                raise QuantError(f"pack: matrix {i} is packed already, wanted one that was reserved")
            step = max(1, unit // matrix.segment.panel_bytes)
            self.count += (len(matrix) + step - 1) // step
        self.units = <Unit *>calloc(max(<int64_t>1, self.count), sizeof(Unit))
        if self.units == NULL:
            raise MemoryError
        one = self.units
        for i, matrix in enumerate(self.matrices):
            step = max(1, unit // matrix.segment.panel_bytes)
            for first in range(0, len(matrix), step):
                one.segment, one.supply, one.cols, one.mapped = &matrix.segment, &matrix.supply, matrix.cols, mapped[i] if mapped else False
                one.matrix, one.first, one.end = i, first, min(<int64_t>len(matrix), first + step)
                one += 1
            self.nbytes += matrix.rows * matrix.supply.row_bytes

    def __dealloc__(self):
        free(self.units)

    @property
    def whole(self) -> bool:
        """Whether everything is packed."""
        return self.next == self.count

    def pack(self, int64_t most, *, num_threads=0, CancelFlag flag=None):
        """Pack units, `most` of them or until `flag` is set; each worker ends the one it has. Where weights do not allow what was tried, less is packed
        afterwards than before."""
        cdef int workers = worker_count(num_threads)
        cdef int64_t before = self.next, end = min(self.count, before + most), taken = before, i
        cdef PackedMatrix matrix
        cdef int64_t *next = &taken         # not what others read: they are to see what is packed
        cdef int32_t never = 0
        cdef const int32_t *stop = &never if flag is None else &flag.flag
        cdef Packing work
        work.units, work.end, work.next, work.stop = self.units, end, next, stop
        run_once(_pack_units, &work, 1 if end <= before + 1 else workers)
        end = min(taken, end)
        for i in range(end - 1, -1, -1):            # of a matrix that cannot be tight all units come again, in its plain form, and those after it
            if i < before and not self.units[i].supply.loose:
                break
            if self.units[i].supply.loose:
                end = i
        for i in range(end, before):
            self.done -= bytes_of(self.units + i)
        for i in range(end, min(taken, self.count)):
            if self.units[i].supply.loose:
                matrix = self.matrices[self.units[i].matrix]
                matrix._lay(form_at(matrix.segment.form).plain)
        for i in range(before, end):
            self.units[i].supply.ready = self.units[i].end
            self.done += bytes_of(self.units + i)
        self.next = end
        if self.whole:
            for matrix in self.matrices:
                (<PackedMatrix>matrix).source = None

    def expect(self):
        """Have the system begin to read what is left of the file."""
        cdef int64_t i
        with nogil:
            for i in range(self.next, self.count):
                _expect(self.units + i)


cdef inline int64_t bytes_of(const Unit *unit) noexcept nogil:
    """Bytes of the file."""
    return (min(unit.segment.rows, 16 * unit.end) - 16 * unit.first) * unit.supply.row_bytes


cdef void _expect(const Unit *unit) noexcept nogil:
    if unit.mapped:
        ox_expect_pages(unit.supply.source + 16 * unit.first * unit.supply.row_bytes, bytes_of(unit))


cdef void _pack_units(void *args, int ith, int nth) noexcept nogil:
    """A worker's share: whatever it takes it packs, so that those before `next` are all that is packed."""
    cdef const Packing *work = <const Packing *>args
    cdef const Unit *units = work.units
    cdef int64_t end = work.end
    cdef int64_t i, size, before
    cdef const Unit *unit
    cdef const uint8_t *source
    while not ox_flag_get(work.stop):
        i = ox_units_take(work.next)
        if i >= end:
            return
        if i + AHEAD < end:
            _expect(units + i + AHEAD)
        unit = units + i
        if not ox_flag_get(&unit.supply.loose) and not pack_panels(
                unit.segment.form, <uint8_t *>unit.segment.panels, unit.supply.source, unit.supply.row_bytes, unit.segment.rows, unit.cols,
                unit.first, unit.end):
            ox_flag_put(&unit.supply.loose, 1)
        if unit.mapped:             # read once; with it goes what a look at it has mapped of the matrix before
            before = 16 * unit.first * unit.supply.row_bytes
            source, size = unit.supply.source + before, bytes_of(unit)
            before = min(before, <int64_t>LARGE)
            ox_let_go(source - before, size + before)


def pack_all(list matrices, *, num_threads=0):
    """Pack matrices that `reserve_all` made, all of them in one piece of work."""
    units = Units(matrices)
    while not units.whole:
        units.pack(units.count, num_threads=num_threads)


ctypedef struct Faulting:
    const uint8_t *start
    int64_t size
    int64_t next


cdef void _fault_in(void *args, int ith, int nth) noexcept nogil:
    cdef Faulting *work = <Faulting *>args
    cdef int64_t at = FAULTED * ox_units_take(&work.next)
    while at < work.size:
        ox_fault_in(work.start + at, min(<int64_t>FAULTED, work.size - at))
        at = FAULTED * ox_units_take(&work.next)


def fault_in(const uint8_t[::1] view not None, *, num_threads=0):
    """Bring a mapping into memory with all workers, in its order; nothing changes but time."""
    cdef int workers = worker_count(num_threads)
    if view.shape[0] == 0:
        return
    cdef Faulting work
    work.start, work.size, work.next = &view[0], view.shape[0], 0
    run_once(_fault_in, &work, 1 if work.size <= FAULTED else workers)
