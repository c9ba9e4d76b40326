"""`Pager`: weights of a program that stay in a file and come into memory while a step runs (csrc/pager.h).

`Pager.linear` and `Pager.experts` cut an op's matrices into pages; `begin` and `end` stand around a step. Which matrices have a home in memory,
how large the ring is and how many experts an op keeps is decided above (weights/pager.py). Matrices come from `PackedMatrix.paged`.
"""
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport strerror

from oxillama._core.filemap cimport FileMap
from oxillama._core.kernels cimport pack_panels
from oxillama._core.panels cimport PackedMatrix

from oxillama.errors import ConfigError, EngineError, PagingError

cdef extern from "errno.h":
    int ECANCELED

cdef extern from "pager.h" nogil:
    enum:
        OX_SOURCE_FILE
        OX_SOURCE_DIRECT
        OX_SOURCE_MAP
        OX_PAGER_CHANGED
        OX_PAGER_SHORT
    ctypedef bint (*ox_pack_fn)(int form, uint8_t *panels, const uint8_t *source, int64_t row_bytes, int64_t rows, int64_t cols,
                                int64_t first, int64_t end) noexcept
    ctypedef struct Counts "ox_pager_counts":
        int64_t resident_bytes, pages_read, bytes_read, hits, waited_ns
    ctypedef struct Request "ox_request":
        pass
    ctypedef struct Whole "ox_pager":
        int source, threads, slots, n_caches, stepping, loading, held, broken
        void *thread
        ox_pack_fn pack
        void *ring
        int64_t slot_bytes, queue_room, n, read
        ox_experts **caches
        Request *queue
        Counts counts
        ox_page **todo
    int ox_paged_unchanged(const ox_paged_file *file)
    int ox_paged_pread(int fd, uint8_t *room, int64_t offset, int64_t size, int64_t least)
    int ox_pager_start(ox_pager *p)
    void ox_pager_stop(ox_pager *p)
    int ox_pager_enter(ox_pager *p)
    int64_t ox_pager_want(ox_pager *p, ox_paged_op *op, ox_page **todo, int64_t n)
    void ox_pager_begin(ox_pager *p, ox_page ***todo, int64_t n, int64_t *room)
    int ox_pager_end(ox_pager *p, int whole, const ox_page **page)
    int64_t ox_page_evict(ox_pager *p, ox_page *page)
    int64_t ox_experts_limit(ox_pager *p, ox_experts *c, int active)
    int ox_pager_quiesce(ox_pager *p)
    void ox_pager_resume(ox_pager *p)
    size_t OX_SIZE_OF_PAGER "sizeof(ox_pager)"
    size_t OX_SIZE_OF_REQUEST "sizeof(ox_request)"
    size_t OX_SIZE_OF_THREAD "sizeof(ox_thread)"

cdef extern from *:
    """
    #include "block.h"
    static void ox_pager_clear(ox_pager *p) { memset(p, 0, sizeof *p); }
    static void ox_ring_free(ox_pager *p) {
        if (p->ring) ox_block_free(p->memory);
        ox_block_free(p->ring);
        p->ring = NULL;
        p->memory = NULL;
    }
    static int ox_ring_new(ox_pager *p, int slots, int64_t slot_bytes) {
        ox_ring_slot *ring = ox_block_new((size_t)slots * sizeof *ring);
        uint8_t *memory = ring ? ox_block_new((size_t)(slots * slot_bytes)) : NULL;
        if (!memory) {
            ox_block_free(ring);
            return 0;
        }
        ox_ring_free(p);
        for (int i = 0; i < slots; i++) {
            atomic_init(&ring[i].ready, -1);
            atomic_init(&ring[i].left, 0);
            ring[i].data = memory + i * slot_bytes;
        }
        p->ring = ring, p->memory = memory, p->slots = slots, p->slot_bytes = slot_bytes;
        return 1;
    }
    """
    void ox_pager_clear(ox_pager *p) nogil
    void ox_ring_free(ox_pager *p) nogil
    int ox_ring_new(ox_pager *p, int slots, int64_t slot_bytes) nogil

cdef extern from "block.h" nogil:
    void *ox_block_new(size_t size)
    void ox_block_free(void *block)

cdef extern from "os.h" nogil:
    void ox_file_close(int fd)

SOURCES = {"file": OX_SOURCE_FILE, "direct": OX_SOURCE_DIRECT, "mmap": OX_SOURCE_MAP}
PAGE_BYTES, READ_BYTES = 2 << 20, 1 << 20
LEAST_SLOTS = 2             # of a ring


cdef int _refused(int error) except -1:
    raise EngineError(f"pager: the system refused a thread ({strerror(error).decode()})")


cdef class PagedOp:
    """The paged weights of one op; `nbytes` packed bytes of them, `resident` now in memory."""

    def __dealloc__(self):
        free(self.op.pages)
        free(self.op.first)
        free(self.experts.pages)
        free(self.experts.order)
        free(self.experts.misses)
        free(self.experts.slot_of)
        free(self.experts.holds)
        free(self.experts.state)
        free(self.experts.left)
        free(self.experts.used)
        free(self.experts.last)
        ox_block_free(self.experts.memory)

    cdef int _page(self, ox_page *page, list parts, int chunks, str name) except -1:
        """parts: (matrix, first panel, panels)."""
        cdef PackedMatrix matrix
        cdef Pager pager = self.pager
        cdef ox_part *part
        cdef int64_t first, panels, place = 0
        cdef int i
        page.parts, page.chunks, page.name, page.pinned = len(parts), chunks, len(pager.names), 2
        pager.names.append(name)
        for i, (given, first_, panels_) in enumerate(parts):
            matrix, first, panels = given, first_, panels_
            part = &page.part[i]
            part.file = &pager.files[<int>matrix.paged_file]
            part.form, part.cols, part.row_bytes = matrix.segment.form, matrix.cols, matrix.supply.row_bytes
            part.offset = matrix.paged_offset + 16 * first * part.row_bytes
            part.rows, part.panels = min(matrix.rows - 16 * first, 16 * panels), panels
            part.panel_bytes, part.place = matrix.segment.panel_bytes, place
            place += (panels * part.panel_bytes + 63) // 64 * 64
            if matrix.segment.panels == NULL:
                page.pinned = 0
            else:
                page.pinned = min(page.pinned, 2 if matrix.paged_fixed else 1)
                part.home = <uint8_t *>matrix.segment.panels + first * part.panel_bytes
        page.nbytes = place
        return 0

    @property
    def nbytes(self) -> int:
        cdef int i
        cdef int64_t total = 0
        for i in range(self.experts.experts if self.routed else self.op.count):
            total += self.experts.pages[i].nbytes if self.routed else self.op.pages[i].nbytes
        return total

    @property
    def resident(self) -> int:
        """Bytes at home, or of experts that are kept."""
        cdef int i
        cdef int64_t total = 0
        if self.routed:
            for i in range(self.experts.experts):
                total += self.experts.pages[i].nbytes if self.experts.slot_of[i] >= 0 else 0
        else:
            for i in range(self.op.count):
                total += self.op.pages[i].nbytes if self.op.pages[i].resident else 0
        return total

    def kept(self) -> list:
        """The experts that are in memory, those used most first."""
        cdef int i
        found = [i for i in range(self.experts.experts) if self.experts.slot_of[i] >= 0] if self.routed else []
        return sorted(found, key=lambda e: (-self.experts.used[<int>e], -self.experts.last[<int>e], e))

    @property
    def slots(self) -> int:
        """Experts that may be kept now."""
        return self.experts.active


cdef class Pager:
    """Pages of weights in files.

    files: (descriptor, label, mapping or None) of each; descriptors become the pager's. source: "file" (reads), "direct" (reads that pass by the
    system's cache, where it can), "mmap" (a look at the mapping). ring_bytes: memory for what is read ahead. page_bytes: of packed weights that come as one
    page, about. read_bytes: of a file that are read at a time. threads: readers. poll: called before each step, None for nothing.
    """

    def __cinit__(self, list files, *, str source="file", int64_t ring_bytes=0, int64_t page_bytes=PAGE_BYTES, int64_t read_bytes=READ_BYTES,
                  int threads=4, poll=None):
        cdef Whole *whole
        cdef int error, i
        if source not in SOURCES:
            raise ConfigError(f"source: found {source!r}, wanted one of {', '.join(SOURCES)}")
        self.labels, self.maps = [label for _, label, _ in files], []
        self.names, self.ops, self.made, self.ring_bytes, self.page_bytes = [], [], {}, ring_bytes, page_bytes
        self.poll = poll
        self.files = <ox_paged_file *>calloc(max(1, len(files)), sizeof(ox_paged_file))
        if self.files == NULL:
            for fd, _, _ in files:
                ox_file_close(fd)
            raise MemoryError
        for i, (fd, _, _) in enumerate(files):      # from here on they are closed whatever fails
            self.files[i].fd, self.files[i].direct = fd, -1
        self.n_files = len(files)
        self.pager = <ox_pager *>ox_block_new(OX_SIZE_OF_PAGER)
        if self.pager == NULL:
            raise MemoryError
        ox_pager_clear(self.pager)
        for i, (fd, _, mapping) in enumerate(files):
            self._open(&self.files[i], fd, mapping, source == "direct")
        whole = <Whole *>self.pager
        whole.source, whole.threads, whole.read, whole.pack = SOURCES[source], threads, read_bytes, <ox_pack_fn>pack_panels
        whole.thread = calloc(threads, OX_SIZE_OF_THREAD)
        if whole.thread == NULL:
            raise MemoryError
        with nogil:
            error = ox_pager_start(self.pager)
        if error:
            _refused(error)

    cdef int _open(self, ox_paged_file *file, int fd, object mapping, bint direct) except -1:
        cdef Py_buffer view
        status = os.fstat(fd)
        file.size = status.st_size
        file.seconds, file.nanoseconds = status.st_mtime_ns // 1000000000, status.st_mtime_ns % 1000000000
        if direct and hasattr(os, "O_DIRECT"):
            try:
                file.direct = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:         # a file system without it
                pass
        if mapping is not None:
            PyObject_GetBuffer(mapping, &view, PyBUF_SIMPLE)
            file.map = <const uint8_t *>view.buf
            mapped = mapping.obj if isinstance(mapping, memoryview) else mapping
            if isinstance(mapped, FileMap):
                file.lost = (<FileMap>mapped).lost
            self.maps.append(mapping)       # kept alive, so that the bytes stay where they are
            PyBuffer_Release(&view)
        return 0

    def __dealloc__(self):
        cdef Whole *whole = <Whole *>self.pager
        if self.pager != NULL:
            self._end_readers()
            free(whole.thread)
            ox_ring_free(self.pager)
            free(whole.queue)
            free(whole.caches)
            free(whole.todo)
            ox_block_free(self.pager)
        self._close_files()
        free(self.spare)
        free(self.files)

    cdef int _end_readers(self) except -1:
        with nogil:
            ox_pager_stop(self.pager)
        return 0

    def close(self):
        """End the readers, once they have read what they are reading, and close the files. No step may run, now or later."""
        if self.closed:
            return
        self.closed = True
        self._end_readers()
        self._close_files()

    cdef int _close_files(self) except -1:
        cdef int i
        for i in range(self.n_files):
            ox_file_close(self.files[i].fd)
            if self.files[i].direct >= 0:
                ox_file_close(self.files[i].direct)
        self.n_files = 0
        return 0

    @property
    def descriptors(self) -> list:
        """The files that are open."""
        return [self.files[i].fd for i in range(self.n_files)]

    # ---- an op's weights ---------------------------------------------------------------------------------------------

    def linear(self, list matrices, int64_t step, bint gated, int use=0) -> PagedOp:
        """Pages of matrices that follow one another (gated: that are multiplied side by side), cut at multiples of `step` panels, the panels of a
        chunk. Programs share what they ask for alike; use: how many ops of this one have before."""
        cdef PagedOp made = PagedOp.__new__(PagedOp)
        cdef PackedMatrix matrix
        cdef int64_t first, panels, most = 0
        cdef int i, k = 0
        key = (use, step, gated, tuple(id(one) for one in matrices))
        if key in self.made:
            return self.made[key]
        sides = list(zip(*[matrices])) if not gated else [tuple(matrices)]
        for side in sides:
            most = max(most, sum((<PackedMatrix>one).segment.panel_bytes for one in side))
        made.pager, made.held = self, list(matrices)
        made.op.per = max(<int64_t>1, self.page_bytes // (most * step))
        pages = []
        made.op.first = <int *>calloc(len(matrices), sizeof(int))
        if made.op.first == NULL:
            raise MemoryError
        for i, side in enumerate(sides):
            made.op.first[i] = len(pages)
            matrix = side[0]
            for first in range(0, len(matrix), made.op.per * step):
                panels = min(len(matrix) - first, made.op.per * step)
                pages.append(([(one, first, panels) for one in side], (panels + step - 1) // step, matrix.paged_name))
        made.op.count = len(pages)
        made.op.pages = <ox_page *>calloc(len(pages), sizeof(ox_page))
        if made.op.pages == NULL:
            raise MemoryError
        for k, (parts, chunks, name) in enumerate(pages):
            made._page(&made.op.pages[k], parts, chunks, name)
        self._add(key, made)
        return made

    def experts(self, list matrices, int experts, int slots, int use=0) -> PagedOp:
        """A cache of `slots` of an op's experts."""
        cdef PagedOp made = PagedOp.__new__(PagedOp)
        cdef ox_experts *c = &made.experts
        cdef int64_t panels = len(matrices[0]) // experts, most = 0
        cdef int e
        key = (use, tuple(id(one) for one in matrices))
        if key in self.made:
            return self.made[key]
        made.pager, made.routed, made.held = self, True, list(matrices)
        c.experts, c.slots, c.active, c.panels = experts, min(slots, experts), min(slots, experts), panels
        c.pages = <ox_page *>calloc(experts, sizeof(ox_page))
        c.order, c.misses = <int32_t *>calloc(experts, 4), <int32_t *>calloc(experts, 4)
        c.slot_of, c.holds = <int32_t *>calloc(experts, 4), <int32_t *>calloc(experts, 4)
        c.state, c.left = calloc(experts, 4), calloc(experts, 4)
        c.used, c.last = <unsigned int *>calloc(experts, 4), <int64_t *>calloc(experts, 8)
        if (c.pages == NULL or c.order == NULL or c.misses == NULL or c.slot_of == NULL or c.holds == NULL or c.state == NULL or c.left == NULL
                or c.used == NULL or c.last == NULL):
            raise MemoryError
        for e in range(experts):
            c.slot_of[e] = c.holds[e] = -1
            made._page(&c.pages[e], [(one, e * panels, panels) for one in matrices], 1, f"{matrices[0].paged_name} (expert {e})")
            most = max(most, c.pages[e].nbytes)
        c.slot_bytes = (most + 4095) // 4096 * 4096
        c.memory = <uint8_t *>ox_block_new(c.slots * c.slot_bytes)
        if c.memory == NULL:
            raise MemoryError(f"{c.slots * c.slot_bytes} bytes for experts")
        self._add(key, made)
        return made

    def follow(self, PagedOp first, PagedOp then):
        """The experts that `first` takes are those that `then` takes, later in a step."""
        first.experts.then = &then.experts

    def _add(self, key, PagedOp made):
        if self.sealed:
            self.quiesce()
        try:
            self.made[key] = made
            self.ops.append(made)
            if self.sealed:
                self._seal()
        except BaseException:       # else the next caller would find this op cached although the ring is too small for it
            self.made.pop(key, None)
            self.ops[:] = [one for one in self.ops if one is not made]
            raise
        finally:
            if self.sealed:
                self.resume()

    cdef int _seal(self) except -1:
        """Memory of the ring and of the list of what is asked for, once ops are known; again where a program comes later. Where memory is refused
        the pager is what it was."""
        cdef Whole *whole = <Whole *>self.pager
        cdef PagedOp op
        cdef void *grown
        cdef int64_t most = 64, count = 0, total = 1
        cdef int i, caches = 0
        for op in self.ops:
            if op.routed:
                caches += 1
                total += op.experts.slots
            for i in range(op.op.count):
                most, count = max(most, op.op.pages[i].nbytes), count + 1
        most = (most + 4095) // 4096 * 4096
        grown = realloc(whole.caches, max(1, caches) * sizeof(void *))
        if grown == NULL:
            raise MemoryError
        whole.caches = <ox_experts **>grown
        grown = realloc(whole.queue, total * OX_SIZE_OF_REQUEST)
        if grown == NULL:
            raise MemoryError
        whole.queue = <Request *>grown
        if whole.ring == NULL or most > whole.slot_bytes:
            if not ox_ring_new(self.pager, max(<int64_t>LEAST_SLOTS, min(self.ring_bytes // most, count)), most):
                raise MemoryError(f"{self.ring_bytes} bytes for pages that are read ahead")
        whole.queue_room, whole.n_caches = total, 0
        for op in self.ops:
            if op.routed:
                whole.caches[whole.n_caches] = &op.experts
                whole.n_caches += 1
        self.sealed = True
        return 0

    # ---- a step ------------------------------------------------------------------------------------------------------

    cdef int begin(self, list ops) except -1:
        """Takes the pages that the ops of a step need (None: an op without), in their order."""
        cdef const ox_page *page = NULL
        cdef int64_t n
        cdef int error
        if self.closed:
            raise EngineError("pager: it is closed")
        if self.poll is not None:
            self.poll()
        if not self.sealed:
            self._seal()
        with nogil:
            error = ox_pager_enter(self.pager)
        if error == ECANCELED:
            raise EngineError("pager: it is closed")
        if error:
            _refused(error)
        try:
            n = self._list(ops)
            with nogil:
                ox_pager_begin(self.pager, &self.spare, n, &self.spare_room)
        except BaseException:
            ox_pager_end(self.pager, 0, &page)
            raise
        return 0

    cdef int64_t _list(self, list ops) except -1:
        """The pages that ops need, in `spare`; returns their number."""
        cdef PagedOp one
        cdef ox_page **grown
        cdef int64_t n = 0
        for op in ops:
            if op is None or (<PagedOp>op).routed:
                continue
            one = op
            if n + one.op.count > self.spare_room:
                grown = <ox_page **>realloc(self.spare, 2 * (n + one.op.count) * sizeof(ox_page *))
                if grown == NULL:
                    raise MemoryError
                self.spare, self.spare_room = grown, 2 * (n + one.op.count)
            n = ox_pager_want(self.pager, &one.op, self.spare, n)
        return n

    cdef int end(self, bint whole, bint stopped) except -1:
        """After the step; PagingError where a page could not be read, which stopped it."""
        cdef const ox_page *page = NULL
        cdef int failed
        with nogil:
            failed = ox_pager_end(self.pager, whole and not stopped, &page)
        if not (failed and stopped):        # of what is read ahead: the next step tries it again
            return 0
        self._raise(failed, (<char *>page.part[0].file - <char *>self.files) // sizeof(ox_paged_file), page.part[0].offset, self.names[page.name])

    def _raise(self, int failed, int file, int64_t offset, str name):
        place = f"{name}: {self.labels[file]} at byte {offset} cannot be read"
        if failed == OX_PAGER_CHANGED:
            raise PagingError(f"{place}: the file was changed since the model was loaded, wanted the same bytes; load it again")
        if failed == OX_PAGER_SHORT:
            raise PagingError(f"{place}: the file ends before that")
        raise PagingError(f"{place}: {strerror(failed).decode()}", errno=failed)

    cdef int fetch(self, int file, int64_t offset, int64_t row_bytes, const int32_t *rows, int count, uint8_t *out, str name) except -1:
        """Rows of a matrix of bytes at `offset` of a file, one after another in `out`; -1 is left out."""
        cdef int i, failed
        if self.closed:
            raise EngineError("pager: it is closed")
        with nogil:
            failed = ox_paged_unchanged(&self.files[file])
            for i in range(count):
                if rows[i] >= 0 and not failed:
                    failed = ox_paged_pread(self.files[file].fd, out + i * row_bytes, offset + rows[i] * row_bytes, row_bytes, row_bytes)
            if not failed:
                failed = ox_paged_unchanged(&self.files[file])
        if failed:
            self._raise(failed, file, offset, name)
        return 0

    # ---- between steps -----------------------------------------------------------------------------------------------

    def quiesce(self):
        """Wait until no step runs and nothing is read; what was read ahead is forgotten. `resume` ends it."""
        cdef int error
        with nogil:
            error = ox_pager_quiesce(self.pager)
        if error:
            _refused(error)

    def resume(self):
        with nogil:
            ox_pager_resume(self.pager)

    def shrink(self, int64_t nbytes) -> int:
        """Give about so many bytes back to the system: experts used least, then pages at home, the last ones first. Returns how many."""
        cdef PagedOp op
        cdef int64_t freed = 0
        cdef int i, active
        self.quiesce()
        try:
            for op in self.ops:
                if op.routed and freed < nbytes and not (<PackedMatrix>op.held[0]).paged_fixed:
                    active = max(1, op.experts.active - max(1, op.experts.slots // 8))
                    freed += (op.experts.active - active) * op.experts.slot_bytes
                    ox_experts_limit(self.pager, &op.experts, active)
            for op in reversed(self.ops):
                for i in range(op.op.count - 1, -1, -1):
                    if freed < nbytes:
                        freed += ox_page_evict(self.pager, &op.op.pages[i])
        finally:
            self.resume()
        return freed

    def restore(self):
        """Let all that has a home or a slot come into memory again, when a step next asks for it."""
        cdef PagedOp op
        cdef int i
        self.quiesce()
        try:
            for op in self.ops:
                op.experts.active = op.experts.slots
                for i in range(op.op.count):
                    if op.op.pages[i].part[0].home != NULL and not op.op.pages[i].pinned:
                        op.op.pages[i].pinned = 1
        finally:
            self.resume()

    def counts(self) -> dict:
        """resident_bytes (at home, experts), ring_bytes, pages_read, bytes_read (of the files), hits (pages asked for that were there),
        waited (seconds that workers waited)."""
        cdef Whole *whole = <Whole *>self.pager
        return {"resident_bytes": whole.counts.resident_bytes, "ring_bytes": whole.slots * whole.slot_bytes, "pages_read": whole.counts.pages_read,
                "bytes_read": whole.counts.bytes_read, "hits": whole.counts.hits, "waited": 1e-9 * whole.counts.waited_ns}
