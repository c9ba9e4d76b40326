"""Memory for keys and values: pages of a fixed number of tokens, in slabs that grow and never move.

This module owns bytes, not pages: which page belongs to whom is the engine's business.

A slab holds `slab_pages` pages, layer by layer; a page of a layer is K, then V:

    slab:  layer 0 [page 0 | page 1 | ...]  layer 1 [page 0 | page 1 | ...]  ...
    page:  K [kv_head][group of 16 tokens][k_dim][16 tokens]      one SIMD lane = one key
           V [kv_head][token][v_dim]

Invariants
1. A page's bytes never move while its id is below `capacity`.
2. Address space is reserved by slabs; real memory is taken when a page is first written.
3. `export` of a page and `load` into another give equal bytes (K and V of every layer, layers ascending).
"""
import os
from pathlib import Path

import numpy as np

from libc.limits cimport INT_MAX
from libc.stdint cimport uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

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
    /* Zeroed memory; huge: at a multiple of 2 MiB and of huge pages where the system has them (attention over deep sequences reads
     * 12 % faster). The first slab goes without: a short sequence must not take 2 MiB of every layer. */
    static void *map_slab(size_t size, int huge) {
        size_t unit = (size_t)2 << 20, room = size + (huge ? unit : 0);
        char *data = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) return NULL;
        if (!huge) return data;
        char *start = (char *)(((uintptr_t)data + unit - 1) / unit * unit);
        if (start > data) munmap(data, (size_t)(start - data));
        if (start + size < data + room) munmap(start + size, (size_t)(data + room - start - size));
    #ifdef MADV_HUGEPAGE
        madvise(start, size, MADV_HUGEPAGE);
    #endif
        return start;
    }
    """
    void *map_slab(size_t size, int huge) nogil

KV_TYPES = {"f16": KV_F16, "f32": KV_F32}
MAX_SLABS = 1 << 16
SLAB_BYTES = 32 << 20
MAX_DIM = 1 << 16

cdef size_t _round_up(size_t value, size_t unit) noexcept:
    return (value + unit - 1) // unit * unit


def available_bytes() -> int | None:
    """Memory the system could still give this process: MemAvailable and the cgroup's limit, None where neither is known."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError):
        pass
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            root = Path("/sys/fs/cgroup")
            found.append(int((root / limit).read_text()) - int((root / used).read_text()))
        except (OSError, ValueError):
            continue
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


cdef void _copy_layer(const KvLayer *layer, const char *src, char *dst, int count, int page_size, size_t item) noexcept:
    cdef int whole = count // 16, part = count % 16, head, d
    cdef size_t at
    if count == page_size:
        memcpy(dst, src, layer.page_bytes)
        return
    for head in range(layer.heads):
        at = head * layer.k_head_bytes
        memcpy(dst + at, src + at, whole * layer.k_group_bytes)
        at += whole * layer.k_group_bytes
        if part:
            for d in range(layer.k_dim):
                memcpy(dst + at, src + at, part * item)
                at += 16 * item
        at = layer.v_offset + head * layer.v_head_bytes
        memcpy(dst + at, src + at, count * layer.v_row_bytes)


cdef class PageMemory:
    """Keys and values of every layer, by page id.

    kv_layers: a (kv_heads, k_dim, v_dim) per attention layer; kv_type: "f16" or "f32"; page_size: tokens per page, a multiple of 16.
    ConfigError for impossible arguments, PoolError when memory is refused or a page id is not below `capacity`.
    """

    def __cinit__(self, kv_layers, kv_type="f16", page_size=16):
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

    def _lay_out(self, kv_layers):
        """Sizes of a page of each layer, and how many pages make a slab."""
        cdef size_t item = 2 if self.kind == KV_F16 else 4
        cdef size_t total = 0
        cdef KvLayer *layer
        cdef int i
        for i, dims in enumerate(kv_layers):
            heads, k_dim, v_dim = dims
            for name, value in (("kv_heads", heads), ("k_dim", k_dim), ("v_dim", v_dim)):
                if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DIM:
                    raise ConfigError(f"kv_layers[{i}]: {name} is {value!r}, wanted 1 to {MAX_DIM}")
            layer = &self.layers[i]
            layer.heads, layer.k_dim, layer.v_dim = heads, k_dim, v_dim
            layer.k_group_bytes = 16 * item * <size_t>layer.k_dim
            layer.k_head_bytes = layer.k_group_bytes * <size_t>(self.page_size // 16)
            layer.v_row_bytes = item * <size_t>layer.v_dim
            layer.v_head_bytes = layer.v_row_bytes * <size_t>self.page_size
            layer.v_offset = _round_up(layer.k_head_bytes * <size_t>layer.heads, 64)
            layer.page_bytes = layer.v_offset + _round_up(layer.v_head_bytes * <size_t>layer.heads, 64)
            total += layer.page_bytes
        self.page_bytes = total
        while (<size_t>2 << self.shift) * total <= <size_t>SLAB_BYTES and self.shift < 20:
            self.shift += 1
        cdef size_t region = 0
        for i in range(self.n_layers):
            self.layers[i].region = region
            region = _round_up(region + (self.layers[i].page_bytes << self.shift), 4096)
        self.slab_bytes = max(<size_t>4096, region)

    def __dealloc__(self):
        cdef int i
        if self.slabs != NULL:
            for i in range(self.n_slabs):
                munmap(self.slabs[i], self.slab_bytes)
            free(self.slabs)
        free(self.layers)

    @property
    def kv_type(self) -> str:
        """The stored type of keys and values: "f16" or "f32"."""
        return "f16" if self.kind == KV_F16 else "f32"

    @property
    def kv_layers(self) -> list:
        """(kv_heads, k_dim, v_dim) of every layer."""
        return [(self.layers[i].heads, self.layers[i].k_dim, self.layers[i].v_dim) for i in range(self.n_layers)]

    @property
    def memory_bytes(self) -> int:
        """Bytes of the pages below `capacity`: what they take once all are written."""
        return self.capacity * self.page_bytes

    def ensure(self, n_pages: int) -> None:
        """Makes page ids 0 to n_pages - 1 valid, adding slabs as needed; PoolError when memory is refused."""
        cdef long wanted = n_pages
        if wanted < 0 or wanted > <long>INT_MAX >> 1:
            raise PoolError(f"pages: asked for {n_pages}, wanted 0 to {INT_MAX >> 1}")
        cdef void *data
        while self.capacity < wanted:
            if self.n_slabs >= MAX_SLABS:
                raise PoolError(f"pages: asked for {n_pages}, this memory ends at {self.capacity}")
            free_bytes = available_bytes()
            if free_bytes is not None and free_bytes < (wanted - self.capacity) * self.page_bytes:
                raise PoolError(f"pages: {n_pages} need {(wanted - self.capacity) * self.page_bytes} more bytes, the system has {free_bytes}")
            data = map_slab(self.slab_bytes, self.n_slabs > 0)
            if data == NULL:
                raise PoolError(f"pages: the system refused a slab of {self.slab_bytes} bytes beside {self.memory_bytes}")
            self.slabs[self.n_slabs] = <char *>data
            self.n_slabs += 1
            self.capacity = self.n_slabs << self.shift

    def release(self, keep_pages: int) -> None:
        """Gives memory back: slabs wholly above the first `keep_pages` pages go, pages above them in the last slab read as zero again."""
        cdef long keep = keep_pages
        cdef size_t first, start, end
        cdef int i
        if keep < 0:
            raise PoolError(f"keep_pages: got {keep_pages}, wanted at least 0")
        if self.steps:
            raise PoolError("release: a step is running on this memory")
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
            start = _round_up(self.layers[i].region + first * self.layers[i].page_bytes, 4096)
            end = (self.layers[i].region + (self.layers[i].page_bytes << self.shift)) // 4096 * 4096
            if start < end:
                madvise(self.slabs[self.n_slabs - 1] + start, end - start, MADV_DONTNEED)

    cdef int _check(self, int page) except -1:
        if page < 0 or page >= self.capacity:
            raise PoolError(f"page: got {page}, wanted 0 to {self.capacity - 1}")
        return 0

    def copy(self, int src, int dst, *, tokens=None) -> None:
        """Copies the first `tokens` tokens (default: all) of page `src` into page `dst`, in every layer; the rest of `dst` stays."""
        self._check(src)
        self._check(dst)
        cdef int count = self.page_size if tokens is None else tokens
        if count < 0 or count > self.page_size:
            raise PoolError(f"tokens: got {count}, wanted 0 to {self.page_size}")
        if src == dst:
            return
        cdef size_t item = 2 if self.kind == KV_F16 else 4
        cdef int i
        for i in range(self.n_layers):
            _copy_layer(&self.layers[i], page_of(self.slabs, self.shift, &self.layers[i], src),
                        page_of(self.slabs, self.shift, &self.layers[i], dst), count, self.page_size, item)

    def export(self, int page) -> bytes:
        """The page's bytes: K and V of every layer, layers ascending (`page_bytes` of them)."""
        self._check(page)
        cdef bytearray out = bytearray(self.page_bytes)
        cdef char *to = out
        cdef int i
        for i in range(self.n_layers):
            memcpy(to, page_of(self.slabs, self.shift, &self.layers[i], page), self.layers[i].page_bytes)
            to += self.layers[i].page_bytes
        return bytes(out)

    def load(self, int page, const unsigned char[::1] data) -> None:
        """Fills the page from bytes of `export` of a memory with the same layers, type and page size."""
        self._check(page)
        if <size_t>data.shape[0] != self.page_bytes:
            raise PoolError(f"page bytes: got {data.shape[0]}, wanted {self.page_bytes}")
        cdef size_t at = 0
        cdef int i
        for i in range(self.n_layers):
            memcpy(page_of(self.slabs, self.shift, &self.layers[i], page), &data[at], self.layers[i].page_bytes)
            at += self.layers[i].page_bytes

    def read(self, int page, int layer) -> tuple:
        """(k, v) of one page and layer as float32 arrays of shape (page_size, kv_heads, k_dim) and (page_size, kv_heads, v_dim)."""
        self._check(page)
        if layer < 0 or layer >= self.n_layers:
            raise PoolError(f"layer: got {layer}, wanted 0 to {self.n_layers - 1}")
        cdef const KvLayer *one = &self.layers[layer]
        cdef size_t v_bytes = one.v_head_bytes * one.heads
        cdef const char *base = page_of(self.slabs, self.shift, one, page)
        dtype = np.float16 if self.kind == KV_F16 else np.float32
        k = np.frombuffer((<const char *>base)[:one.k_head_bytes * one.heads], dtype)
        v = np.frombuffer((base + one.v_offset)[:v_bytes], dtype)
        k = k.reshape(one.heads, self.page_size // 16, one.k_dim, 16).transpose(1, 3, 0, 2).reshape(self.page_size, one.heads, one.k_dim)
        v = v.reshape(one.heads, self.page_size, one.v_dim).transpose(1, 0, 2)
        return np.ascontiguousarray(k, np.float32), np.ascontiguousarray(v, np.float32)
