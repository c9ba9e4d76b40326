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

A layer whose values are a view of its keys (a latent, multi-head latent attention) keeps K alone. A layer of rows (what keys are made of later, and
keys made of several tokens) keeps float32 whatever the type of the others is, [token][k_dim]. Layers with recurrent state keep no pages: their
state has a fixed size and lies in a slot, one for each sequence.

Layers with a window may lie apart, because rows to come look at the last tokens only. Pages of such a memory are names: `attach` gives one a
frame of memory for the layers that see all tokens, and another for those with a window (`near` below), which `shed` takes back while the page
stays. `compact` moves frames together, so that what is free of one kind can be used by the other.

Invariants
1. A page's bytes never move while its id is below `capacity`; where layers lie apart, they move while no step or call runs.
2. Address space is reserved by slabs; real memory is taken when a page is first written.
3. A slot's bytes never move while its id is below `slot_capacity`.
4. `export` of a page and `load` into another give equal bytes (K and V of every layer, layers ascending).
"""
import os
import time
from math import prod
from pathlib import Path

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cython.parallel cimport prange
from libc.limits cimport INT_MAX
from libc.stdint cimport uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from oxillama._core.threads cimport fenv_t, ox_fenv_enter, ox_fenv_leave, region_threads, worker_count
from oxillama._core.vectors cimport OX_KV_F16, OX_KV_F32, OX_KV_Q4_0, OX_KV_Q8_0, ox_vec, vec_table

from oxillama._core.threads import cgroup_folders, system_memory, system_text
from oxillama.errors import ConfigError, PoolError

cdef extern from "os.h" nogil:
    enum:
        OX_PARTS_GO
    size_t ox_page_bytes()
    void *ox_memory_new(size_t size)
    void ox_memory_free(void *start, size_t size)
    void *ox_extent_new(size_t size)

cdef extern from *:
    """
    #include <string.h>
    #include "block.h"
    /* Has private memory read as zero; whole pages of it the system gets back, until they are written. */
    static void forget(char *start, size_t size) {
        char *first = (char *)ox_page_after(start), *end = (char *)ox_page_of(start + size);
        if (first < end && !ox_drop(first, (size_t)(end - first))) {
            memset(start, 0, (size_t)(first - start));
            memset(end, 0, (size_t)(start + size - end));
            return;
        }
        memset(start, 0, size);
    }
    """
    void forget(char *start, size_t size) nogil

KV_TYPES = {"f16": OX_KV_F16, "f32": OX_KV_F32, "q8_0": OX_KV_Q8_0, "q4_0": OX_KV_Q4_0}
KV_BLOCK = {"f16": 1, "f32": 1, "q8_0": 32, "q4_0": 32}      # numbers of a head under one scale
MAX_SLABS = 1 << 16
SLAB_BYTES = 4 << 20
EXTENT_BYTES = 32 << 20
MAX_DIM = 1 << 16
cdef enum:
    NAME_CHUNKS = (1 << 30) >> NAME_CHUNK     # all that there can be
MAX_SLOTS = 1 << 16
LATENT, ROWS = -1, -2      # in place of a number of heads
MAX_STATE = 1 << 30

cdef size_t _round_up(size_t value, size_t unit) noexcept:
    return (value + unit - 1) // unit * unit


def _cached_bytes(stat, total) -> int:
    """Cached files in a cgroup's memory: they count as used, a mapped model's among them, and yield to whoever asks for memory."""
    try:
        numbers = dict(line.split() for line in system_text(stat).splitlines())
        return int(numbers[total + "active_file"]) + int(numbers[total + "inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0


def available_bytes(proc: str = "/proc", root: str = "/sys/fs/cgroup") -> int | None:
    """Memory the system could still give this process: MemAvailable and the limits of its cgroups, None where neither is known."""
    known = system_memory() if proc == "/proc" else None
    found = [] if known is None else [known[1]]
    try:
        for line in system_text(Path(proc) / "meminfo").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError):
        pass
    for group in cgroup_folders("memory", f"{proc}/self/cgroup", root):
        for limit, used, total in (("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")):
            try:
                room = int(system_text(group / limit)) - int(system_text(group / used))
            except (OSError, ValueError):
                continue
            found.append(room + _cached_bytes(group / "memory.stat", total))
    return max(0, min(found)) if found else None


cdef class Arena:
    """A zeroed block of `nbytes`, page-aligned; PoolError when the system refuses it."""

    def __cinit__(self, size_t nbytes):
        self.nbytes = _round_up(nbytes if nbytes else 1, 4096)
        cdef void *data = ox_memory_new(self.nbytes)
        if data == NULL:
            raise PoolError(f"memory: the system refused {self.nbytes} bytes")
        self.data = <char *>data

    def __dealloc__(self):
        if self.data != NULL:
            ox_memory_free(self.data, self.nbytes)

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
    if layer.view == ROWS_VIEW:
        memcpy(dst + group * layer.k_group_bytes, src + group * layer.k_group_bytes, count * 4 * <size_t>layer.k_dim)
        return
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


cdef void _gather_lanes(char *dst, const char *const *src, const int *lanes, int count, size_t first, size_t columns, size_t item) noexcept nogil:
    """Numbers of `item` bytes, 2 or 4, in each of so many columns of 16 from byte `first` on: number i is that of a lane of src[i]."""
    cdef size_t d
    cdef int i
    if item == 2:
        for d in range(columns):
            for i in range(count):
                (<uint16_t *>(dst + first))[16 * d + i] = (<const uint16_t *>(src[i] + first))[16 * d + lanes[i]]
    else:
        for d in range(columns):
            for i in range(count):
                (<uint32_t *>(dst + first))[16 * d + i] = (<const uint32_t *>(src[i] + first))[16 * d + lanes[i]]


cdef void gather_keys(int kind, const KvLayer *layer, char *dst, const char *const *src, const int *lanes, int count) noexcept nogil:
    """Makes the first `count` keys of a group those at so many places of other groups."""
    cdef size_t unit = kept_bytes(kind, 512), block, at = 0
    if kind <= OX_KV_F16:
        _gather_lanes(dst, src, lanes, count, 0, layer.k_dim, kept_bytes(kind, 1))
        return
    for block in range(layer.k_dim // 32):
        if block % 2 == 0:
            _gather_lanes(dst, src, lanes, count, at, 2, 2)
            at += 64
        _gather_lanes(dst, src, lanes, count, at, unit // 64, 4)
        at += unit


cdef void gather_values(int kind, const KvLayer *layer, char *dst, const char *const *src, const int *lanes, int count) noexcept nogil:
    """The same with values."""
    cdef size_t row = kept_bytes(kind, layer.v_dim)
    cdef int i
    for i in range(count):
        memcpy(dst + i * row, src[i] + lanes[i] * row, row)
    if kind > OX_KV_F16:
        _gather_lanes(dst, src, lanes, count, 16 * row, layer.v_dim // 32, 2)


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
    const int32_t *table
    const float *k
    const float *v
    int kind, page_size, first, count


cdef void _write_group(const Writing *w, int group) noexcept nogil:
    """The tokens of one group of 16 positions: groups share no byte."""
    cdef const KvLayer *one = w.layer
    cdef char *page = page_of(one, w.table[16 * group // w.page_size])
    cdef char *key = page + 16 * group % w.page_size // 16 * one.k_group_bytes
    cdef char *value = page + one.v_offset + 16 * group % w.page_size // 16 * one.v_group_bytes
    cdef const float *k
    cdef const float *v
    cdef int position, h
    cdef fenv_t was = ox_fenv_enter()
    for position in range(max(w.first, 16 * group), min(w.first + w.count, 16 * group + 16)):
        for h in range(one.heads):
            k = w.k + (<size_t>(position - w.first) * one.heads + h) * one.k_dim
            if one.view == ROWS_VIEW:
                memcpy(key + position % 16 * 4 * <size_t>one.k_dim, k, 4 * <size_t>one.k_dim)
                continue
            w.vec.keep_key(w.kind, key + h * one.k_head_bytes, position % 16, k, one.k_dim)
            if w.v != NULL:
                v = w.v + (<size_t>(position - w.first) * one.heads + h) * one.v_dim
                w.vec.keep_value(w.kind, value + h * one.v_head_bytes, position % 16, v, one.v_dim)
    ox_fenv_leave(&was)


cdef class PageMemory:
    """Keys and values of every layer, by page id.

    kv_layers: a (kv_heads, k_dim, v_dim) per attention layer, kv_heads LATENT where one key a token holds its value too (its first v_dim floats),
    ROWS where a token has a row of k_dim floats, kept as float32; slot_layers: the shape of the recurrent state of each layer that has one, float32; kv_type: how they are kept, "f16", "f32", "q8_0" or "q4_0" (which
    want head sizes in blocks of 32); page_size: tokens per page, a multiple of 16. windows: how many tokens each layer looks back at, 0 for all; empty:
    no layer lies apart. Where some do, a page has memory from `attach` to `detach`, and for windowed layers to `shed`.
    ConfigError for impossible arguments, PoolError when memory is refused or a page id is not below `capacity`.
    """

    def __cinit__(self, kv_layers, kv_type="f16", page_size=16, slot_layers=(), windows=()):
        if kv_type not in KV_TYPES:
            raise ConfigError(f"kv_type: found {kv_type!r}, wanted one of {', '.join(KV_TYPES)}")
        if isinstance(page_size, bool) or not isinstance(page_size, int) or page_size < 16 or page_size % 16 or page_size > 4096:
            raise ConfigError(f"page_size: found {page_size!r}, wanted a multiple of 16 up to 4096")
        self.kind = KV_TYPES[kv_type]
        self.page_size = page_size
        self.n_layers = len(kv_layers)
        self.layers = <KvLayer *>calloc(max(1, self.n_layers), sizeof(KvLayer))
        self.windows = tuple(windows) or (0,) * self.n_layers
        if len(self.windows) != self.n_layers or any(type(each) is not int or not 0 <= each <= INT_MAX for each in self.windows):
            raise ConfigError(f"windows: found {self.windows}, wanted {self.n_layers} numbers from 0 to {INT_MAX}")
        self.window = max(self.windows, default=0)
        self.whole.at = <char **>calloc(MAX_SLABS, sizeof(char *))
        if self.layers == NULL or self.whole.at == NULL:
            raise MemoryError
        if self.window:
            self.near.at = <char **>calloc(MAX_SLABS, sizeof(char *))
            self.whole.frames = <int32_t **>calloc(NAME_CHUNKS, sizeof(int32_t *))
            self.near.frames = <int32_t **>calloc(NAME_CHUNKS, sizeof(int32_t *))
            if self.near.at == NULL or self.whole.frames == NULL or self.near.frames == NULL:
                raise MemoryError
        self._lay_out(kv_layers)
        self.slot_layers, self._slot_arenas = tuple([tuple([int(size) for size in shape]) for shape in slot_layers]), []
        self.slots = <char **>calloc(MAX_SLOTS if self.slot_layers else 1, sizeof(char *))
        if self.slots == NULL:
            raise MemoryError
        for shape in self.slot_layers:
            if not shape or min(shape) < 1 or prod(shape) > MAX_STATE:
                raise ConfigError(f"slot_layers: found {shape}, wanted a shape of 1 to {MAX_STATE} numbers")
            self.slot_bytes = _round_up(self.slot_bytes + 4 * <size_t>prod(shape), 64)

    def _lay_out(self, kv_layers):
        """Sizes of a page of each layer, and how many pages make a slab."""
        cdef size_t total = 0, side
        cdef KvLayer *layer
        cdef int i
        for i, dims in enumerate(kv_layers):
            heads, k_dim, v_dim = dims
            self.layers[i].view = -heads if heads in (LATENT, ROWS) else 0
            heads = 1 if self.layers[i].view else heads
            if self.layers[i].view and v_dim > k_dim:
                raise ConfigError(f"kv_layers[{i}]: v_dim is {v_dim}, wanted at most the {k_dim} of the key that holds it")
            for name, value in (("kv_heads", heads), ("k_dim", k_dim), ("v_dim", v_dim)):
                if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DIM:
                    raise ConfigError(f"kv_layers[{i}]: {name} is {value!r}, wanted 1 to {MAX_DIM}")
            layer = &self.layers[i]
            layer.heads, layer.k_dim, layer.v_dim = heads, k_dim, v_dim
            for name, value in (("k_dim", k_dim), ("v_dim", v_dim)):
                if value % KV_BLOCK[self.kv_type] and self.layers[i].view != ROWS_VIEW:
                    raise ConfigError(f"kv_type: found {self.kv_type!r}, wanted f16 or f32: kv_layers[{i}] has a {name} of {value}, "
                                      f"not in blocks of {KV_BLOCK[self.kv_type]}")
            side = _round_up(scale_bytes(self.kind, layer.k_dim), 64)
            layer.k_group_bytes = side + 16 * kept_bytes(self.kind, layer.k_dim)
            if layer.view == ROWS_VIEW:
                layer.k_group_bytes = 64 * <size_t>layer.k_dim
            layer.k_head_bytes = layer.k_group_bytes * <size_t>(self.page_size // 16)
            layer.v_group_bytes = 16 * kept_bytes(self.kind, layer.v_dim)
            if self.kind > OX_KV_F16:
                layer.v_group_bytes = _round_up(layer.v_group_bytes + scale_bytes(self.kind, layer.v_dim), 64)
            if layer.view:
                layer.v_group_bytes = 0
            layer.v_head_bytes = layer.v_group_bytes * <size_t>(self.page_size // 16)
            layer.v_offset = _round_up(layer.k_head_bytes * <size_t>layer.heads, 64)
            layer.page_bytes = layer.v_offset + _round_up(layer.v_head_bytes * <size_t>layer.heads, 64)
            layer.start, layer.bare_start = total, self.whole.page_bytes
            total += layer.page_bytes
            layer.slabs = &self.near if self.windows[i] else &self.whole
            layer.frames = <const int32_t **>layer.slabs.frames
            if self.windows[i]:
                self.near.page_bytes += layer.page_bytes
            else:
                self.whole.page_bytes += layer.page_bytes
        self.page_bytes, self.near_bytes = total, self.near.page_bytes
        cdef Slabs *slabs
        cdef size_t region
        cdef int k
        for k in range(2):
            slabs = &self.near if k else &self.whole
            while (<size_t>2 << slabs.shift) * slabs.page_bytes <= <size_t>SLAB_BYTES and slabs.shift < 20:
                slabs.shift += 1
            region = 0
            for i in range(self.n_layers):
                if self.layers[i].slabs == slabs:
                    self.layers[i].region = region
                    region = _round_up(region + (self.layers[i].page_bytes << slabs.shift), 4096)
            slabs.slab_bytes = _round_up(max(<size_t>1, region), ox_page_bytes())
            # slabs are freed one by one
            slabs.extent = <int>max(1, min(EXTENT_BYTES // slabs.slab_bytes, (1 << 20) >> slabs.shift)) if OX_PARTS_GO else 1

    def __dealloc__(self):
        cdef int i, k
        cdef Slabs *slabs
        for k in range(2):
            slabs = &self.near if k else &self.whole
            for i in range(slabs.count):
                ox_memory_free(slabs.at[i], slabs.slab_bytes)
            free(slabs.at)
            free(slabs.spare)
            for i in range(NAME_CHUNKS if slabs.frames != NULL else 0):
                free(slabs.frames[i])
            free(slabs.frames)
        free(self.layers)
        free(self.slots)

    @property
    def kv_type(self) -> str:
        """How keys and values are kept: a name of KV_TYPES."""
        return next(name for name, kind in KV_TYPES.items() if kind == self.kind)

    @property
    def kv_layers(self) -> list:
        """(kv_heads, k_dim, v_dim) of every layer."""
        return [(heads_mark(&self.layers[i]), self.layers[i].k_dim, self.layers[i].v_dim) for i in range(self.n_layers)]

    @property
    @cython.critical_section
    def capacity(self) -> int:
        """Page ids that are valid: 0 to capacity - 1."""
        return self.names if self.window else self.whole.capacity

    @property
    @cython.critical_section
    def made(self) -> tuple:
        """(frames, near frames) that pages have or had, from the first of their slabs on: no memory above them was touched."""
        return self.whole.made, self.near.made

    @property
    @cython.critical_section
    def memory_bytes(self) -> int:
        """Bytes of all slabs: what they take once all their pages are written."""
        return self.whole.capacity * self.whole.page_bytes + self.near.capacity * self.near.page_bytes

    @cython.critical_section
    def ensure(self, n_pages: int) -> None:
        """Makes page ids 0 to n_pages - 1 valid, with undefined content; PoolError when memory is refused. Where layers lie apart, without memory."""
        cdef int64_t wanted = n_pages
        if wanted < 0 or wanted > <int64_t>INT_MAX >> 1:
            raise PoolError(f"pages: asked for {n_pages}, wanted 0 to {INT_MAX >> 1}")
        if not self.window:
            self._ensure(&self.whole, wanted)
            return
        while self.names < wanted:
            self._name(&self.whole, self.names)
            self._name(&self.near, self.names)
            self.names = <int>min(wanted, (self.names | ((1 << NAME_CHUNK) - 1)) + 1)

    cdef int _name(self, Slabs *slabs, int page) except -1:
        """Allocate the entry of this page and those of its chunk."""
        cdef int32_t *chunk = slabs.frames[page >> NAME_CHUNK]
        if chunk == NULL:
            chunk = <int32_t *>malloc(sizeof(int32_t) << NAME_CHUNK)
            if chunk == NULL:
                raise MemoryError
            memset(chunk, 255, sizeof(int32_t) << NAME_CHUNK)
            slabs.frames[page >> NAME_CHUNK] = chunk
        return 0

    cdef int _ensure(self, Slabs *slabs, int64_t wanted) except -1:
        """Other threads may run while the system is asked: what they changed is looked at afterwards, and by the caller."""
        free_bytes = available_bytes() if wanted > slabs.capacity else None
        cdef int64_t more = max(0, wanted - slabs.capacity)
        if free_bytes is not None and free_bytes < more * <int64_t>slabs.page_bytes:
            raise PoolError(f"pages: {wanted} need {more * <int64_t>slabs.page_bytes} more bytes, the system has {free_bytes}")
        while slabs.capacity < wanted:
            self._map(slabs)
        return 0

    cdef int _map(self, Slabs *slabs) except -1:
        """One more extent of slabs."""
        cdef int i
        cdef char *data
        if slabs.count + slabs.extent > MAX_SLABS:
            raise PoolError(f"pages: this memory ends at {slabs.capacity}")
        data = <char *>ox_extent_new(slabs.slab_bytes * <size_t>slabs.extent)
        if data == NULL:
            raise PoolError(f"pages: the system refused {slabs.slab_bytes * slabs.extent} bytes beside {self.memory_bytes}")
        for i in range(slabs.extent):
            slabs.at[slabs.count + i] = data + <size_t>i * slabs.slab_bytes
        slabs.count += slabs.extent
        slabs.capacity = slabs.count << slabs.shift
        return 0

    def release(self, keep_pages: int) -> None:
        """Gives memory back: slabs wholly above the first `keep_pages` pages go, pages above them in the last slab read as zero again. Where layers
        lie apart, pages above them have no memory any more, and all free frames go. Waits while a step or call runs."""
        if keep_pages < 0:
            raise PoolError(f"keep_pages: found {keep_pages}, wanted at least 0")
        self._give_back(keep_pages)

    cdef int _release(self, Slabs *slabs, int64_t keep) except -1:
        cdef size_t first
        cdef char *pages
        cdef int i, most
        if keep >= slabs.capacity:
            return 0
        most = <int>((keep + (1 << slabs.shift) - 1) >> slabs.shift)
        while slabs.count > most:
            slabs.count -= 1
            ox_memory_free(slabs.at[slabs.count], slabs.slab_bytes)
            slabs.at[slabs.count] = NULL
        slabs.capacity = slabs.count << slabs.shift
        if keep >= slabs.capacity:
            return 0
        first = <size_t>(keep & ((1 << slabs.shift) - 1))
        for i in range(self.n_layers):
            if self.layers[i].slabs != slabs:
                continue
            pages = slabs.at[slabs.count - 1] + self.layers[i].region
            forget(pages + first * self.layers[i].page_bytes, ((1 << slabs.shift) - first) * self.layers[i].page_bytes)
        return 0

    cdef int _check(self, int page) except -1:
        if page < 0 or page >= (self.names if self.window else self.whole.capacity):
            raise PoolError(f"page: found {page}, wanted 0 to {self.capacity - 1}")
        return 0

    # ---- where windowed layers lie apart -----------------------------------------------------------------------------

    cdef int _check_held(self, int page, bint near) except -1:
        """The page, which is valid, has memory for the layers without a window (near: for those with one)."""
        if self.window and frame_of(&self.near if near else &self.whole, page) < 0:
            raise PoolError(f"page {page}: holds no keys of {'windowed' if near else 'other'} layers, wanted it attached")
        return 0

    cdef int _check_whole(self, int page, bint bare) except -1:
        """The page is valid, and has all memory (bare: but for the layers with a window)."""
        with cython.critical_section(self):
            self._check(page)
            self._check_held(page, False)
            if not bare:
                self._check_held(page, True)
        return 0

    @cython.critical_section
    def attached(self, int page) -> bool:
        """Whether the page has memory for the keys of windowed layers (always, where none lie apart)."""
        self._check(page)
        return not self.window or frame_of(&self.near, page) >= 0

    def attach(self, int page, *, bare=False) -> None:
        """Gives the page the memory that it lacks (bare: not for windowed layers), with undefined content; PoolError when it is refused."""
        with cython.critical_section(self):
            self._check(page)
            if self.window:
                self._give(&self.whole, page)
                if not bare:
                    self._give(&self.near, page)

    def shed(self, int page) -> None:
        """Takes the memory for windowed layers away from a page, for others to use."""
        with cython.critical_section(self):
            self._check(page)
            if self.window:
                self._take(&self.near, page)

    def detach(self, int page) -> None:
        """Takes all memory away from a page, for others to use."""
        with cython.critical_section(self):
            self._check(page)
            if self.window:
                self._take(&self.whole, page)
                self._take(&self.near, page)

    def compact(self) -> None:
        """Moves frames of either kind together and gives the memory above them back to the system; waits while a step or call runs."""
        if self.window:
            self._give_back(-1)

    def _give_back(self, int64_t keep_pages):
        """Gives back the pages above the first `keep_pages` (-1: none of them) and free frames, as soon as no step or call runs."""
        cdef bint done = False
        cdef int page
        with cython.critical_section(self):
            self.movers += 1
        try:
            while not done:
                with cython.critical_section(self):
                    if not self.steps:
                        if keep_pages >= 0 and not self.window:
                            self._release(&self.whole, keep_pages)
                        elif keep_pages >= 0:
                            for page in range(<int>min(keep_pages, <int64_t>self.names), self.names):
                                self._take(&self.whole, page)
                                self._take(&self.near, page)
                            self.names = <int>min(keep_pages, <int64_t>self.names)
                        if self.window:
                            self._compact(&self.whole)
                            self._compact(&self.near)
                        done = True
                if not done:
                    time.sleep(1e-4)
        finally:
            with cython.critical_section(self):
                self.movers -= 1

    cdef int _give(self, Slabs *slabs, int page) except -1:
        cdef int *spare
        while frame_of(slabs, page) < 0 and not slabs.spares and slabs.made >= slabs.capacity:
            self._ensure(slabs, slabs.made + 1)
            self._check(page)
        if frame_of(slabs, page) >= 0:
            return 0
        if not slabs.spares:
            if slabs.made == slabs.spare_size:
                spare = <int *>realloc(slabs.spare, (2 * <size_t>slabs.spare_size + 64) * sizeof(int))
                if spare == NULL:
                    raise MemoryError
                slabs.spare, slabs.spare_size = spare, 2 * slabs.spare_size + 64
            slabs.spare[0], slabs.spares = slabs.made, 1
            slabs.made += 1
        slabs.spares -= 1
        slabs.frames[page >> NAME_CHUNK][page & ((1 << NAME_CHUNK) - 1)] = slabs.spare[slabs.spares]
        return 0

    cdef int _take(self, Slabs *slabs, int page) except -1:
        cdef int frame = frame_of(slabs, page)
        if frame >= 0:
            slabs.spare[slabs.spares] = frame        # last freed on top: it is the likeliest to be in cache
            slabs.spares += 1
            slabs.frames[page >> NAME_CHUNK][page & ((1 << NAME_CHUNK) - 1)] = -1
        return 0

    cdef int _compact(self, Slabs *slabs) except -1:
        cdef int used = slabs.made - slabs.spares, holes = 0, i, page
        cdef int32_t *frame
        if not slabs.spares:
            return 0
        for i in range(slabs.spares):
            if slabs.spare[i] < used:
                slabs.spare[holes] = slabs.spare[i]
                holes += 1
        for page in range(self.names):
            if not holes:
                break
            frame = &slabs.frames[page >> NAME_CHUNK][page & ((1 << NAME_CHUNK) - 1)]
            if frame[0] < used:
                continue
            holes -= 1
            for i in range(self.n_layers):
                if self.layers[i].slabs == slabs:
                    memcpy(bytes_at(&self.layers[i], slabs.spare[holes]), bytes_at(&self.layers[i], frame[0]), self.layers[i].page_bytes)
            frame[0] = slabs.spare[holes]
        slabs.made, slabs.spares = used, 0
        return self._release(slabs, used)

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
            raise PoolError(f"slot: found {slot}, wanted 0 to {self.slot_capacity - 1}")
        return 0

    def save_slot(self, int slot) -> bytes:
        """The slot's bytes (`slot_bytes` of them): a checkpoint."""
        self._check_slot(slot)
        return self.slots[slot][:self.slot_bytes]

    def load_slot(self, int slot, const unsigned char[::1] data) -> None:
        """Fills the slot from bytes of `save_slot` of a memory with the same slot layers."""
        self._check_slot(slot)
        if <size_t>data.shape[0] != self.slot_bytes:
            raise PoolError(f"slot bytes: found {data.shape[0]}, wanted {self.slot_bytes}")
        memcpy(self.slots[slot], &data[0], self.slot_bytes)

    cdef int _begin(self, object num_threads) except -1:
        """A call that runs without the GIL: until `_end` nothing of this memory is given back. Returns the threads it may have. It may wait for what is
        given back now, so pages are checked after it."""
        cdef int nth = region_threads(worker_count(num_threads))
        cdef bint begun = False
        while True:
            with cython.critical_section(self):
                if not self.movers:         # who calls again and again shall not keep them waiting
                    self.steps += 1
                    begun = True
            if begun:
                return nth
            time.sleep(1e-5)

    cdef int _end(self) except -1:
        with cython.critical_section(self):
            self.steps -= 1
        return 0

    def copy(self, int src, int dst, *, tokens=None, num_threads=1) -> None:
        """Copies the first `tokens` tokens (default: all) of page `src` into page `dst`, in every layer; the rest of `dst` stays."""
        cdef int count = self.page_size if tokens is None else tokens
        if count < 0 or count > self.page_size:
            raise PoolError(f"tokens: found {count}, wanted 0 to {self.page_size}")
        cdef int i, nth = self._begin(num_threads)
        try:
            self._check_whole(src, False)
            self._check_whole(dst, False)
            if src == dst:
                return
            for i in prange(self.n_layers, nogil=True, schedule="static", num_threads=nth, use_threads_if=nth > 1):
                _copy_layer(self.kind, &self.layers[i], page_of(&self.layers[i], src), page_of(&self.layers[i], dst), count, self.page_size)
        finally:
            self._end()

    cdef int _move(self, int page, char *data, bint bare, bint out, object num_threads) except -1:
        """The page's bytes, K and V of every layer (bare: of those without a window), layers ascending, to `data` or from there."""
        cdef int i, nth = self._begin(num_threads)
        cdef const KvLayer *layer
        try:
            self._check_whole(page, bare)
            for i in prange(self.n_layers, nogil=True, schedule="static", num_threads=nth, use_threads_if=nth > 1):
                layer = &self.layers[i]
                if not bare:
                    _move_layer(layer, page_of(layer, page), data + layer.start, out)
                elif layer.slabs == &self.whole:
                    _move_layer(layer, page_of(layer, page), data + layer.bare_start, out)
        finally:
            self._end()
        return 0

    def export(self, int page, *, bare=False, num_threads=1) -> bytes:
        """The page's bytes: K and V of every layer, layers ascending (`page_bytes` of them); bare: without windowed layers (`near_bytes` fewer)."""
        cdef bytes out = PyBytes_FromStringAndSize(NULL, self.page_bytes - self.near_bytes if bare else self.page_bytes)
        self._move(page, PyBytes_AsString(out), bare, True, num_threads)
        return out

    def load(self, int page, const unsigned char[::1] data, *, bare=False, num_threads=1) -> None:
        """Fills the page from bytes of `export` of a memory with the same layers, type and page size."""
        wanted = self.page_bytes - self.near_bytes if bare else self.page_bytes
        if <size_t>data.shape[0] != wanted:
            raise PoolError(f"page bytes: found {data.shape[0]}, wanted {wanted}")
        self._move(page, <char *>&data[0] if wanted else NULL, bare, False, num_threads)

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
        if keys.shape[1] != one.heads or keys.shape[2] != one.k_dim:
            raise PoolError(f"k: found {np.shape(k)}, wanted ({count}, {one.heads}, {one.k_dim})")
        if (v is None) != bool(one.view) or (v is not None and np.shape(v) != (count, one.heads, one.v_dim)):
            raise PoolError(f"v: found {None if v is None else np.shape(v)}, wanted {None if one.view else (count, one.heads, one.v_dim)}")
        cdef Writing work
        work.layer, work.vec, work.kind, work.page_size, work.first, work.count = one, vec_table(isa), self.kind, self.page_size, first, count
        cdef int nth = self._begin(num_threads)
        try:
            self.check_table(table, first, count, first, one)
            if count == 0:
                return
            work.table = &table[0]
            work.k, work.v = &keys[0, 0, 0], NULL if one.view else &values[0, 0, 0]
            for g in prange(first // 16, (first + count + 15) // 16, nogil=True, schedule="static", num_threads=nth, use_threads_if=nth > 1):
                _write_group(&work, g)
        finally:
            self._end()

    cdef const KvLayer *_layer(self, int layer) except NULL:
        if layer < 0 or layer >= self.n_layers:
            raise PoolError(f"layer: found {layer}, wanted 0 to {self.n_layers - 1}")
        return &self.layers[layer]

    cdef int check_table(self, const int32_t[::1] pages, int first, int count, int held, const KvLayer *one) except -1:
        """Positions first to first + count - 1 lie in these pages, and these exist; from position `held` on they have memory for the layer."""
        cdef int page, i
        if first < 0 or count > INT_MAX - first or first + count > pages.shape[0] * self.page_size:
            raise PoolError(f"positions: found {first} to {first + count - 1}, wanted 0 to {pages.shape[0] * self.page_size - 1}")
        with cython.critical_section(self):
            for page in pages:
                self._check(page)
            for i in range(held // self.page_size, (first + count + self.page_size - 1) // self.page_size if self.window and count else 0):
                self._check_held(pages[i], one.slabs == &self.near)
        return 0

    def read(self, int page, int layer) -> tuple:
        """(k, v) of one page and layer as float32 arrays of shape (page_size, kv_heads, k_dim) and (page_size, kv_heads, v_dim)."""
        cdef const KvLayer *one = self._layer(layer)
        cdef const char *base
        groups = self.page_size // 16
        self._begin(1)
        try:
            with cython.critical_section(self):
                self._check(page)
                self._check_held(page, one.slabs == &self.near)
            base = page_of(one, page)
            k = np.frombuffer(base[:one.k_head_bytes * one.heads], np.uint8).reshape(one.heads, groups, -1)
            v = np.frombuffer((base + one.v_offset)[:one.v_head_bytes * one.heads], np.uint8).reshape(one.heads, groups, -1) if not one.view else None
        finally:
            self._end()
        if one.view == ROWS_VIEW:
            rows = k.view(np.float32).reshape(self.page_size, 1, one.k_dim)
            return rows.copy(), rows.copy()
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
