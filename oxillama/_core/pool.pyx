"""Memory for keys and values: pages of a fixed number of tokens, in slabs that grow and never move.

This module owns bytes, not pages: which page belongs to whom is the engine's business. Its calls run their parts (layers, or groups of tokens) by
`prange` where a caller asks for threads; the engine, which copies a page now and then, does not.

A slab holds a few pages (4 MB), layer by layer; a page of a layer is K, then V:

    slab:  layer 0 [page 0 | page 1 | ...]  layer 1 [page 0 | page 1 | ...]  ...
    page:  K [kv_head][group of 16 tokens][k_dim][16 tokens]      one SIMD lane = one key
           V [kv_head][group of 16 tokens][16 tokens][v_dim]

`csrc/vec/keep.h` draws a group of each type: what is inside it is known there, in the kernels, and in `read` alone. Slabs come in extents of
32 MB at a multiple of 2 MiB, of huge pages where the system has them (attention over deep sequences reads 12 % faster): small enough that
a short sequence takes a few huge pages, not one of every layer; large enough that the pages of a layer do not share a few cache sets.

A layer whose values are a view of its keys (a latent, multi-head latent attention) keeps K alone. Layers with recurrent state keep no pages: their
state has a fixed size and lies in a slot, one for each sequence.

Invariants
1. A page's bytes never move while its id is below `capacity`.
2. Address space is reserved by slabs; real memory is taken when a page is first written.
3. A slot's bytes never move while its id is below `slot_capacity`.
4. `export` of a page and `load` into another give equal bytes (K and V of every layer, layers ascending).
"""
import os
from math import prod
from pathlib import Path

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cython.parallel cimport prange
from libc.limits cimport INT_MAX
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from oxillama._core.threads cimport fenv_t, ox_fenv_enter, ox_fenv_leave, region_threads, worker_count
from oxillama._core.vectors cimport OX_KV_F16, OX_KV_F32, OX_KV_Q4_0, OX_KV_Q8_0, ox_vec, vec_table

from oxillama._core.threads import cgroup_folders
from oxillama.errors import ConfigError, PoolError

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t length)
    int madvise(void *address, size_t length, int advice)
    int PROT_READ
    int PROT_WRITE
    int MAP_PRIVATE
    int MAP_ANONYMOUS
    int MADV_DONTNEED
    void *MAP_FAILED

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/mman.h>
    /* Zeroed memory at a multiple of 2 MiB, of huge pages where the system has them. */
    static void *map_extent(size_t size) {
        size_t unit = (size_t)2 << 20, room = size + unit;
        char *data = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) return NULL;
        char *start = (char *)(((uintptr_t)data + unit - 1) / unit * unit);
        if (start > data) munmap(data, (size_t)(start - data));
        if (start + size < data + room) munmap(start + size, (size_t)(data + room - start - size));
    #ifdef MADV_HUGEPAGE
        madvise(start, size, MADV_HUGEPAGE);
    #endif
        return start;
    }
    """
    void *map_extent(size_t size) nogil

KV_TYPES = {"f16": OX_KV_F16, "f32": OX_KV_F32, "q8_0": OX_KV_Q8_0, "q4_0": OX_KV_Q4_0}
KV_BLOCK = {"f16": 1, "f32": 1, "q8_0": 32, "q4_0": 32}      # numbers of a head under one scale
MAX_SLABS = 1 << 16
SLAB_BYTES = 4 << 20
EXTENT_BYTES = 32 << 20
MAX_DIM = 1 << 16
MAX_SLOTS = 1 << 16
LATENT = -1                # in place of a number of heads
MAX_STATE = 1 << 30

cdef size_t _round_up(size_t value, size_t unit) noexcept:
    return (value + unit - 1) // unit * unit


def _cached_bytes(stat, total) -> int:
    """Cached files in a cgroup's memory: they count as used, a mapped model's among them, and yield to whoever asks for memory."""
    try:
        numbers = dict(line.split() for line in stat.read_text().splitlines())
        return int(numbers[total + "active_file"]) + int(numbers[total + "inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0


def available_bytes(proc: str = "/proc", root: str = "/sys/fs/cgroup") -> int | None:
    """Memory the system could still give this process: MemAvailable and the limits of its cgroups, None where neither is known."""
    found = []
    try:
        for line in (Path(proc) / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError):
        pass
    for group in cgroup_folders("memory", f"{proc}/self/cgroup", root):
        for limit, used, total in (("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")):
            try:
                room = int((group / limit).read_text()) - int((group / used).read_text())
            except (OSError, ValueError):
                continue
            found.append(room + _cached_bytes(group / "memory.stat", total))
    return max(0, min(found)) if found else None


cdef class Arena:
    """A zeroed block of `nbytes`, page-aligned; PoolError when the system refuses it."""

    def __cinit__(self, size_t nbytes):
        self.nbytes = _round_up(nbytes if nbytes else 1, 4096)
        cdef void *data = mmap(NULL, self.nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if data == MAP_FAILED:
            raise PoolError(f"memory: the system refused {self.nbytes} bytes")
        self.data = <char *>data

    def __dealloc__(self):
        if self.data != NULL:
            munmap(self.data, self.nbytes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.nbytes, 0, flags)


cdef size_t kept_bytes(int kind, size_t numbers) noexcept nogil:
    """Bytes of so many numbers without their scales."""
    if kind == OX_KV_F32:
        return 4 * numbers
    if kind == OX_KV_F16:
        return 2 * numbers
    return numbers if kind == OX_KV_Q8_0 else numbers // 2


cdef size_t scale_bytes(int kind, size_t dim) noexcept nogil:
    """Bytes of the scales of 16 tokens of one head."""
    return dim if kind > OX_KV_F16 else 0


cdef void _copy_lanes(char *dst, const char *src, int lanes, size_t columns, size_t item) noexcept nogil:
    """The first `lanes` of 16 numbers of `item` bytes, in each of so many columns."""
    cdef size_t d
    for d in range(columns):
        memcpy(dst + 16 * item * d, src + 16 * item * d, lanes * item)


cdef void _copy_part(int kind, const KvLayer *layer, const char *src, char *dst, size_t group, int count) noexcept nogil:
    """The first `count` of the 16 tokens of one group of each head, K and V."""
    cdef int head
    cdef size_t row = kept_bytes(kind, layer.v_dim), unit = kept_bytes(kind, 512), block, k, v
    for head in range(layer.heads):
        k = head * layer.k_head_bytes + group * layer.k_group_bytes
        v = layer.v_offset + head * layer.v_head_bytes + group * layer.v_group_bytes
        if kind > OX_KV_F16:      # a panel: the scales of two blocks, then their codes, 4 columns (or two fours of nibbles) of a token in 4 bytes
            for block in range(layer.k_dim // 32):
                if block % 2 == 0:
                    _copy_lanes(dst + k, src + k, count, 2, 2)
                    k += 64
                _copy_lanes(dst + k, src + k, count, unit // 64, 4)
                k += unit
            if not layer.view:
                _copy_lanes(dst + v + 16 * row, src + v + 16 * row, count, layer.v_dim // 32, 2)
        else:
            _copy_lanes(dst + k, src + k, count, layer.k_dim, kept_bytes(kind, 1))
        if not layer.view:
            memcpy(dst + v, src + v, count * row)


cdef void _copy_layer(int kind, const KvLayer *layer, const char *src, char *dst, int count, int page_size) noexcept nogil:
    cdef size_t head, whole = count // 16, at
    if count == page_size:
        memcpy(dst, src, layer.page_bytes)
        return
    for head in range(layer.heads):
        at = head * layer.k_head_bytes
        memcpy(dst + at, src + at, whole * layer.k_group_bytes)
        if layer.view:
            continue
        at = layer.v_offset + head * layer.v_head_bytes
        memcpy(dst + at, src + at, whole * layer.v_group_bytes)
    if count % 16:
        _copy_part(kind, layer, src, dst, whole, count % 16)


cdef void _move_layer(const KvLayer *layer, char *page, char *data, bint out) noexcept nogil:
    memcpy(data if out else page, page if out else data, layer.page_bytes)


ctypedef struct Writing:
    # What the threads of one `write` share.
    const KvLayer *layer
    const ox_vec *vec
    char **slabs
    const int32_t *table
    const float *k
    const float *v
    int kind, shift, page_size, first, count


cdef void _write_group(const Writing *w, int group) noexcept nogil:
    """The tokens of one group of 16 positions: groups share no byte."""
    cdef const KvLayer *one = w.layer
    cdef char *page = page_of(w.slabs, w.shift, one, w.table[16 * group // w.page_size])
    cdef char *key = page + 16 * group % w.page_size // 16 * one.k_group_bytes
    cdef char *value = page + one.v_offset + 16 * group % w.page_size // 16 * one.v_group_bytes
    cdef const float *k
    cdef const float *v
    cdef int position, h
    cdef fenv_t was = ox_fenv_enter()
    for position in range(max(w.first, 16 * group), min(w.first + w.count, 16 * group + 16)):
        for h in range(one.heads):
            k = w.k + (<size_t>(position - w.first) * one.heads + h) * one.k_dim
            w.vec.keep_key(w.kind, key + h * one.k_head_bytes, position % 16, k, one.k_dim)
            if w.v != NULL:
                v = w.v + (<size_t>(position - w.first) * one.heads + h) * one.v_dim
                w.vec.keep_value(w.kind, value + h * one.v_head_bytes, position % 16, v, one.v_dim)
    ox_fenv_leave(&was)


cdef class PageMemory:
    """Keys and values of every layer, by page id.

    kv_layers: a (kv_heads, k_dim, v_dim) per attention layer, kv_heads LATENT where one key a token holds its value too (its first v_dim floats);
    slot_layers: the shape of the recurrent state of each layer that has one, float32; kv_type: how they are kept, "f16", "f32", "q8_0" or "q4_0" (which
    want head sizes in blocks of 32); page_size: tokens per page, a multiple of 16.
    ConfigError for impossible arguments, PoolError when memory is refused or a page id is not below `capacity`.
    """

    def __cinit__(self, kv_layers, kv_type="f16", page_size=16, slot_layers=()):
        if kv_type not in KV_TYPES:
            raise ConfigError(f"kv_type: got {kv_type!r}, wanted one of {', '.join(KV_TYPES)}")
        if isinstance(page_size, bool) or not isinstance(page_size, int) or page_size < 16 or page_size % 16 or page_size > 4096:
            raise ConfigError(f"page_size: got {page_size!r}, wanted a multiple of 16 up to 4096")
        self.kind = KV_TYPES[kv_type]
        self.page_size = page_size
        self.n_layers = len(kv_layers)
        self.layers = <KvLayer *>calloc(max(1, self.n_layers), sizeof(KvLayer))
        self.slabs = <char **>calloc(MAX_SLABS, sizeof(char *))
        if self.layers == NULL or self.slabs == NULL:
            raise MemoryError
        self._lay_out(kv_layers)
        self.slot_layers, self._slot_arenas = tuple([tuple([int(size) for size in shape]) for shape in slot_layers]), []
        self.slots = <char **>calloc(MAX_SLOTS if self.slot_layers else 1, sizeof(char *))
        if self.slots == NULL:
            raise MemoryError
        for shape in self.slot_layers:
            if not shape or min(shape) < 1 or prod(shape) > MAX_STATE:
                raise ConfigError(f"slot_layers: got {shape}, wanted a shape of 1 to {MAX_STATE} numbers")
            self.slot_bytes = _round_up(self.slot_bytes + 4 * <size_t>prod(shape), 64)

    def _lay_out(self, kv_layers):
        """Sizes of a page of each layer, and how many pages make a slab."""
        cdef size_t total = 0, side
        cdef KvLayer *layer
        cdef int i
        for i, dims in enumerate(kv_layers):
            heads, k_dim, v_dim = dims
            self.layers[i].view = heads == LATENT
            heads = 1 if self.layers[i].view else heads
            if self.layers[i].view and v_dim > k_dim:
                raise ConfigError(f"kv_layers[{i}]: v_dim is {v_dim}, wanted at most the {k_dim} of the key that holds it")
            for name, value in (("kv_heads", heads), ("k_dim", k_dim), ("v_dim", v_dim)):
                if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DIM:
                    raise ConfigError(f"kv_layers[{i}]: {name} is {value!r}, wanted 1 to {MAX_DIM}")
            layer = &self.layers[i]
            layer.heads, layer.k_dim, layer.v_dim = heads, k_dim, v_dim
            for name, value in (("k_dim", k_dim), ("v_dim", v_dim)):
                if value % KV_BLOCK[self.kv_type]:
                    raise ConfigError(f"kv_type: got {self.kv_type!r}, wanted f16 or f32: kv_layers[{i}] has a {name} of {value}, "
                                      f"not in blocks of {KV_BLOCK[self.kv_type]}")
            side = _round_up(scale_bytes(self.kind, layer.k_dim), 64)
            layer.k_group_bytes = side + 16 * kept_bytes(self.kind, layer.k_dim)
            layer.k_head_bytes = layer.k_group_bytes * <size_t>(self.page_size // 16)
            layer.v_group_bytes = 16 * kept_bytes(self.kind, layer.v_dim)
            if self.kind > OX_KV_F16:
                layer.v_group_bytes = _round_up(layer.v_group_bytes + scale_bytes(self.kind, layer.v_dim), 64)
            if layer.view:
                layer.v_group_bytes = 0
            layer.v_head_bytes = layer.v_group_bytes * <size_t>(self.page_size // 16)
            layer.v_offset = _round_up(layer.k_head_bytes * <size_t>layer.heads, 64)
            layer.page_bytes = layer.v_offset + _round_up(layer.v_head_bytes * <size_t>layer.heads, 64)
            layer.start = total
            total += layer.page_bytes
        self.page_bytes = total
        while (<size_t>2 << self.shift) * total <= <size_t>SLAB_BYTES and self.shift < 20:
            self.shift += 1
        cdef size_t region = 0
        for i in range(self.n_layers):
            self.layers[i].region = region
            region = _round_up(region + (self.layers[i].page_bytes << self.shift), 4096)
        self.slab_bytes = max(<size_t>4096, region)
        self.extent = <int>max(1, min(EXTENT_BYTES // self.slab_bytes, (1 << 20) >> self.shift))

    def __dealloc__(self):
        cdef int i
        if self.slabs != NULL:
            for i in range(self.n_slabs):
                munmap(self.slabs[i], self.slab_bytes)
            free(self.slabs)
        free(self.layers)
        free(self.slots)

    @property
    def kv_type(self) -> str:
        """How keys and values are kept: a name of KV_TYPES."""
        return next(name for name, kind in KV_TYPES.items() if kind == self.kind)

    @property
    def kv_layers(self) -> list:
        """(kv_heads, k_dim, v_dim) of every layer."""
        return [(LATENT if self.layers[i].view else self.layers[i].heads, self.layers[i].k_dim, self.layers[i].v_dim) for i in range(self.n_layers)]

    @property
    def memory_bytes(self) -> int:
        """Bytes of the pages below `capacity`: what they take once all are written."""
        return self.capacity * self.page_bytes

    @cython.critical_section
    def ensure(self, n_pages: int) -> None:
        """Makes page ids 0 to n_pages - 1 valid, adding slabs as needed; PoolError when memory is refused."""
        cdef long wanted = n_pages
        if wanted < 0 or wanted > <long>INT_MAX >> 1:
            raise PoolError(f"pages: asked for {n_pages}, wanted 0 to {INT_MAX >> 1}")
        free_bytes = available_bytes() if wanted > self.capacity else None
        if free_bytes is not None and free_bytes < (wanted - self.capacity) * self.page_bytes:
            raise PoolError(f"pages: {n_pages} need {(wanted - self.capacity) * self.page_bytes} more bytes, the system has {free_bytes}")
        while self.capacity < wanted:
            self._map()

    cdef int _map(self) except -1:
        """One more extent of slabs."""
        cdef int i
        cdef char *data
        if self.n_slabs + self.extent > MAX_SLABS:
            raise PoolError(f"pages: this memory ends at {self.capacity}")
        data = <char *>map_extent(self.slab_bytes * <size_t>self.extent)
        if data == NULL:
            raise PoolError(f"pages: the system refused {self.slab_bytes * self.extent} bytes beside {self.memory_bytes}")
        for i in range(self.extent):
            self.slabs[self.n_slabs + i] = data + <size_t>i * self.slab_bytes
        self.n_slabs += self.extent
        self.capacity = self.n_slabs << self.shift

    @cython.critical_section
    def release(self, keep_pages: int) -> None:
        """Gives memory back: slabs wholly above the first `keep_pages` pages go, pages above them in the last slab read as zero again."""
        cdef long keep
        cdef size_t first, low, high, start, end
        cdef char *slab
        cdef int i
        if keep_pages < 0:
            raise PoolError(f"keep_pages: got {keep_pages}, wanted at least 0")
        if self.steps:
            raise PoolError("release: a step or another call is running on this memory")
        if keep_pages >= self.capacity:
            return
        keep = keep_pages
        cdef int slabs = <int>((keep + (1 << self.shift) - 1) >> self.shift)
        while self.n_slabs > slabs:
            self.n_slabs -= 1
            munmap(self.slabs[self.n_slabs], self.slab_bytes)
            self.slabs[self.n_slabs] = NULL
        self.capacity = self.n_slabs << self.shift
        if keep >= self.capacity:
            return
        first = <size_t>(keep & ((1 << self.shift) - 1))
        for i in range(self.n_layers):
            low = self.layers[i].region + first * self.layers[i].page_bytes
            high = self.layers[i].region + (self.layers[i].page_bytes << self.shift)
            start, end, slab = min(high, _round_up(low, 4096)), high // 4096 * 4096, self.slabs[self.n_slabs - 1]
            memset(slab + low, 0, start - low)
            if start < end:
                madvise(slab + start, end - start, MADV_DONTNEED)
            if max(start, end) < high:
                memset(slab + max(start, end), 0, high - max(start, end))

    cdef int _check(self, int page) except -1:
        if page < 0 or page >= self.capacity:
            raise PoolError(f"page: got {page}, wanted 0 to {self.capacity - 1}")
        return 0

    @cython.critical_section
    def ensure_slots(self, n_slots: int) -> None:
        """Makes slot ids 0 to n_slots - 1 valid; PoolError when memory is refused."""
        if not self.slot_layers or n_slots < 0 or n_slots > MAX_SLOTS:
            raise PoolError(f"slots: asked for {n_slots}, wanted 0 to {MAX_SLOTS if self.slot_layers else 0}")
        cdef Arena arena
        while self.slot_capacity < n_slots:
            arena = Arena(self.slot_bytes)
            self._slot_arenas.append(arena)
            self.slots[self.slot_capacity] = arena.data
            self.slot_capacity += 1

    cdef int _check_slot(self, int slot) except -1:
        if slot < 0 or slot >= self.slot_capacity:
            raise PoolError(f"slot: got {slot}, wanted 0 to {self.slot_capacity - 1}")
        return 0

    def save_slot(self, int slot) -> bytes:
        """The slot's bytes (`slot_bytes` of them): a checkpoint."""
        self._check_slot(slot)
        return self.slots[slot][:self.slot_bytes]

    def load_slot(self, int slot, const unsigned char[::1] data) -> None:
        """Fills the slot from bytes of `save_slot` of a memory with the same slot layers."""
        self._check_slot(slot)
        if <size_t>data.shape[0] != self.slot_bytes:
            raise PoolError(f"slot bytes: got {data.shape[0]}, wanted {self.slot_bytes}")
        memcpy(self.slots[slot], &data[0], self.slot_bytes)

    cdef int _begin(self, object num_threads) except -1:
        """A call that runs without the GIL: until `_end` nothing of this memory is given back. Returns the threads it may have."""
        cdef int nth = region_threads(worker_count(num_threads))
        with cython.critical_section(self):
            self.steps += 1
        return nth

    cdef int _end(self) except -1:
        with cython.critical_section(self):
            self.steps -= 1
        return 0

    def copy(self, int src, int dst, *, tokens=None, num_threads=1) -> None:
        """Copies the first `tokens` tokens (default: all) of page `src` into page `dst`, in every layer; the rest of `dst` stays."""
        self._check(src)
        self._check(dst)
        cdef int count = self.page_size if tokens is None else tokens
        if count < 0 or count > self.page_size:
            raise PoolError(f"tokens: got {count}, wanted 0 to {self.page_size}")
        if src == dst:
            return
        cdef int i, nth = self._begin(num_threads)
        for i in prange(self.n_layers, nogil=True, schedule="static", num_threads=nth, use_threads_if=nth > 1):
            _copy_layer(self.kind, &self.layers[i], page_of(self.slabs, self.shift, &self.layers[i], src),
                        page_of(self.slabs, self.shift, &self.layers[i], dst), count, self.page_size)
        self._end()

    cdef int _move(self, int page, char *data, bint out, object num_threads) except -1:
        """The page's bytes, K and V of every layer, layers ascending, to `data` or from there."""
        cdef int i, nth = self._begin(num_threads)
        for i in prange(self.n_layers, nogil=True, schedule="static", num_threads=nth, use_threads_if=nth > 1):
            _move_layer(&self.layers[i], page_of(self.slabs, self.shift, &self.layers[i], page), data + self.layers[i].start, out)
        return self._end()

    def export(self, int page, *, num_threads=1) -> bytes:
        """The page's bytes: K and V of every layer, layers ascending (`page_bytes` of them)."""
        self._check(page)
        cdef bytes out = PyBytes_FromStringAndSize(NULL, self.page_bytes)
        self._move(page, PyBytes_AsString(out), True, num_threads)
        return out

    def load(self, int page, const unsigned char[::1] data, *, num_threads=1) -> None:
        """Fills the page from bytes of `export` of a memory with the same layers, type and page size."""
        self._check(page)
        if <size_t>data.shape[0] != self.page_bytes:
            raise PoolError(f"page bytes: got {data.shape[0]}, wanted {self.page_bytes}")
        self._move(page, <char *>&data[0], False, num_threads)

    def write(self, pages, int layer, int first, k, v=None, *, num_threads=1, isa=None) -> None:
        """Stores the keys and values of tokens first, first + 1, ... of the sequence whose pages these are, in order.

        k: float32 (tokens, kv_heads, k_dim), as attention is to see them; v: (tokens, kv_heads, v_dim), None where values are a view of the keys.
        PoolError for a layer, page or shape that does not fit this memory.
        """
        cdef const KvLayer *one = self._layer(layer)
        cdef const int32_t[::1] table = np.ascontiguousarray(pages, np.int32)
        cdef const float[:, :, ::1] keys = np.ascontiguousarray(k, np.float32)
        cdef const float[:, :, ::1] values = None if v is None else np.ascontiguousarray(v, np.float32)
        cdef int count = <int>keys.shape[0], g
        self.check_table(table, first, count)
        if keys.shape[1] != one.heads or keys.shape[2] != one.k_dim:
            raise PoolError(f"k: found {np.shape(k)}, wanted ({count}, {one.heads}, {one.k_dim})")
        if (v is None) != bool(one.view) or (v is not None and np.shape(v) != (count, one.heads, one.v_dim)):
            raise PoolError(f"v: found {None if v is None else np.shape(v)}, wanted {None if one.view else (count, one.heads, one.v_dim)}")
        if count == 0:
            return
        cdef Writing work
        work.layer, work.vec, work.kind, work.page_size, work.first, work.count = one, vec_table(isa), self.kind, self.page_size, first, count
        work.slabs, work.shift, work.table = self.slabs, self.shift, &table[0]
        work.k, work.v = &keys[0, 0, 0], NULL if one.view else &values[0, 0, 0]
        cdef int nth = self._begin(num_threads)
        for g in prange(first // 16, (first + count + 15) // 16, nogil=True, schedule="static", num_threads=nth, use_threads_if=nth > 1):
            _write_group(&work, g)
        self._end()

    cdef const KvLayer *_layer(self, int layer) except NULL:
        if layer < 0 or layer >= self.n_layers:
            raise PoolError(f"layer: got {layer}, wanted 0 to {self.n_layers - 1}")
        return &self.layers[layer]

    cdef int check_table(self, const int32_t[::1] pages, int first, int count) except -1:
        """Positions first to first + count - 1 lie in these pages, and these exist."""
        cdef int page
        if first < 0 or count > INT_MAX - first or first + count > pages.shape[0] * self.page_size:
            raise PoolError(f"positions: got {first} to {first + count - 1}, wanted 0 to {pages.shape[0] * self.page_size - 1}")
        for page in pages:
            self._check(page)
        return 0

    def read(self, int page, int layer) -> tuple:
        """(k, v) of one page and layer as float32 arrays of shape (page_size, kv_heads, k_dim) and (page_size, kv_heads, v_dim)."""
        self._check(page)
        cdef const KvLayer *one = self._layer(layer)
        cdef const char *base = page_of(self.slabs, self.shift, one, page)
        groups = self.page_size // 16
        k = np.frombuffer(base[:one.k_head_bytes * one.heads], np.uint8).reshape(one.heads, groups, -1)
        v = np.frombuffer((base + one.v_offset)[:one.v_head_bytes * one.heads], np.uint8).reshape(one.heads, groups, -1) if not one.view else None
        if self.kind > OX_KV_F16:
            k = _panel_rows(k, one.k_dim, self.kind == OX_KV_Q4_0)
            v = k[..., :one.v_dim] if one.view else _coded_rows(v, one.v_dim, self.kind == OX_KV_Q4_0)
        else:
            dtype = np.float16 if self.kind == OX_KV_F16 else np.float32
            k = k.view(dtype).reshape(one.heads, groups, one.k_dim, 16).transpose(0, 1, 3, 2)
            v = k[..., :one.v_dim] if one.view else v.view(dtype).reshape(one.heads, groups, 16, one.v_dim)
        return tuple(np.ascontiguousarray(x.transpose(1, 2, 0, 3).reshape(self.page_size, one.heads, -1), np.float32) for x in (k, v))


def _panel_rows(raw, dim, nibbles):
    """Numbers (heads, groups, 16 tokens, dim) of panels of bytes (heads, groups, bytes): two blocks' scales, their codes, and so on."""
    heads, groups, _ = raw.shape
    unit = 256 if nibbles else 512
    starts = [64 * (b // 2 + 1) + unit * b for b in range(dim // 32)]
    scales = [raw[:, :, at - 64 + 32 * (b % 2) - unit * (b % 2):][:, :, :32] for b, at in enumerate(starts)]
    scales = np.ascontiguousarray(np.stack(scales, axis=2)).view(np.float16).transpose(0, 1, 3, 2)
    codes = np.stack([raw[:, :, at:at + unit] for at in starts], axis=2).reshape(heads, groups, -1, 1, 16, 4).astype(np.int32)
    codes = np.concatenate([codes & 15, codes >> 4], axis=3) - 8 if nibbles else codes - 128
    codes = codes.transpose(0, 1, 4, 2, 3, 5).reshape(heads, groups, 16, dim)
    return codes.astype(np.float32) * np.repeat(scales.astype(np.float32), 32, axis=3)


def _coded_rows(raw, dim, nibbles):
    """Numbers (heads, groups, 16 tokens, dim) of rows of codes and their scales (heads, groups, bytes)."""
    heads, groups, _ = raw.shape
    row = dim // 2 if nibbles else dim
    codes = raw[:, :, :16 * row].reshape(heads, groups, 16, -1, 16 if nibbles else 32)
    codes = np.concatenate([codes & 15, codes >> 4], axis=4).astype(np.int32) - 8 if nibbles else codes.view(np.int8)
    scales = np.ascontiguousarray(raw[:, :, 16 * row:16 * row + dim]).view(np.float16).reshape(heads, groups, dim // 32, 16)
    return codes.reshape(heads, groups, 16, dim).astype(np.float32) * np.repeat(scales.transpose(0, 1, 3, 2).astype(np.float32), 32, axis=3)
