# cython: auto_pickle=False
"""Byte-pair merging over tables that are made straight from a file's bytes: no token or merge becomes a Python object.

`words` finds a token by its text: open addressing, an entry is the upper half of the hash over the id + 1. `pairs` finds what two neighbours
become: (left, right) to (rank, id). Both are plain arrays, made once per load without the GIL. A text is a list of pieces; within a
piece the merge of lowest rank comes first, of equal ranks the leftmost (Sennrich et al. 2016), by a heap: n log n for a piece of n bytes.
"""
import numpy as np

from cpython.list cimport PyList_Append
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from oxillama.errors import TokenizerError

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    str PyUnicode_DecodeUTF8(const char *data, Py_ssize_t size, const char *errors)

cdef extern from *:
    """
    #include <string.h>
    #define OX_NO_PAIR UINT64_MAX
    static inline uint64_t ox_text_hash(const uint8_t *p, int64_t n) {
        uint64_t h = (uint64_t)n * 0x9E3779B97F4A7C15u, w = 0;
        for (; n >= 8; n -= 8, p += 8) {
            memcpy(&w, p, 8);
            h = (h ^ w) * 0x9E3779B97F4A7C15u;
            h ^= h >> 29;
        }
        w = 0;
        memcpy(&w, p, (size_t)n);
        h = (h ^ w) * 0xBF58476D1CE4E5B9u;
        return h ^ h >> 32;
    }
    /* Whether n bytes are UTF-8 as Unicode 15, table 3-7, has it: no overlong forms, no surrogates, nothing past U+10FFFF. */
    static int ox_is_utf8(const uint8_t *p, int64_t n) {
        const uint8_t *end = p + n;
        while (p < end) {
            uint8_t c = *p++;
            if (c < 0x80) continue;
            int more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
            if (c < 0xC2 || c > 0xF4 || end - p < more) return 0;
            uint8_t low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
            if (*p < low || *p > high) return 0;
            for (p++; --more; p++)
                if ((*p & 0xC0) != 0x80) return 0;
        }
        return 1;
    }
    #define ox_prefetch(p) __builtin_prefetch(p)
    static inline uint64_t ox_pair_hash(uint64_t key) {
        key = (key ^ key >> 32) * 0x9E3779B97F4A7C15u;
        return key ^ key >> 29;
    }
    """
    uint64_t OX_NO_PAIR
    uint64_t ox_text_hash(const uint8_t *p, int64_t n) noexcept nogil
    uint64_t ox_pair_hash(uint64_t key) noexcept nogil
    void ox_prefetch(const void *place) noexcept nogil
    bint ox_is_utf8(const uint8_t *p, int64_t n) noexcept nogil


cdef enum:
    AHEAD = 16          # merges looked up side by side: a core waits for some ten lines at once

# One merge: its two pieces and their product.
cdef struct Merge:
    const uint8_t *texts[3]
    int64_t lengths[3]
    uint64_t hashes[3]
    int64_t ids[3]
    bint odd


def _room(int64_t count):
    """A power of two that `count` entries fill to four fifths at most."""
    size = 16
    while 4 * size < 5 * count:
        size *= 2
    return size


cdef class Strings:
    """A sequence of str that stays what it is in a file, UTF-8 in one buffer: text i is `lengths[i]` bytes from `starts[i]` on.

    Every text is checked here; TokenizerError for one that is not UTF-8, or places that do not fit the buffer.
    """
    cdef const uint8_t[::1] data
    cdef const int64_t[::1] starts
    cdef const int64_t[::1] lengths

    def __init__(self, data, starts, lengths):
        self.data, self.starts, self.lengths = data, starts, lengths
        cdef int64_t i, n = self.starts.shape[0], size = self.data.shape[0]
        if self.lengths.shape[0] != n:
            raise TokenizerError(f"strings: {n} starts and {self.lengths.shape[0]} lengths")
        with nogil:
            i = 0
            while i < n and 0 <= self.lengths[i] <= size and 0 <= self.starts[i] <= size - self.lengths[i] and ox_is_utf8(
                    &self.data[0] + self.starts[i], self.lengths[i]):
                i += 1
        if i < n:
            raise TokenizerError(f"string {i} of {n}: {self.lengths[i]} bytes at {self.starts[i]} of {size} are no UTF-8 text")

    @classmethod
    def of(cls, texts):
        """The strings of a sequence of str."""
        parts = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return cls(np.frombuffer(b"".join(parts) or b"\0", np.uint8), np.cumsum(lengths) - lengths, lengths)

    def __len__(self):
        return self.starts.shape[0]

    def __getitem__(self, index):
        cdef int64_t i = index
        if i < 0:
            i += self.starts.shape[0]
        if not 0 <= i < self.starts.shape[0]:
            raise IndexError(f"string {index} of {self.starts.shape[0]}")
        return PyUnicode_DecodeUTF8(<const char *>&self.data[0] + self.starts[i], self.lengths[i], NULL)

    def where(self, texts):
        """Indices of every string that is one of `texts`, ascending."""
        cdef list wanted = [text.encode() for text in texts]
        cdef int64_t i, n
        cdef uint64_t lengths = 0
        cdef bint first[256]            # bytes that one of `texts` begins with
        cdef list found = []
        memset(first, 0, sizeof(first))
        for text in wanted:
            lengths |= <uint64_t>1 << min(<int64_t>len(text), 63)
            if text:
                first[<int>text[0]] = True
        for i in range(self.starts.shape[0]):
            n = self.lengths[i]
            if lengths >> min(n, 63) & 1 and (n == 0 or first[self.data[self.starts[i]]]):
                for text in wanted:
                    if len(<bytes>text) == n and memcmp(<const char *><bytes>text, &self.data[0] + self.starts[i], n) == 0:
                        found.append(i)
                        break
        return found


cdef class BpeTables:
    """The tables of one vocabulary. `alphabet`: how each of the 256 bytes is written in tokens.

    `odd` counts merges that are no two pieces or whose pieces or product are no tokens: they can never be taken.
    Raises TokenizerError when two tables cannot be made of what is given.
    """
    cdef Strings tokens
    cdef readonly int64_t odd
    cdef uint64_t[::1] words
    cdef uint64_t[:, ::1] pairs
    cdef int32_t byte_ids[256]
    cdef uint8_t spelled[256][4]
    cdef uint8_t spelled_bytes[256]
    cdef void *memory
    cdef int64_t capacity

    def __init__(self, Strings tokens not None, Strings merges not None, alphabet):
        cdef int i
        self.tokens = tokens
        if len(tokens) >= 1 << 31 or len(merges) >= 1 << 31:
            raise TokenizerError(f"vocabulary: {len(tokens)} tokens and {len(merges)} merges, wanted less than 2^31")
        self.words = np.zeros(_room(2 * len(tokens)), np.uint64)
        self.pairs = np.full((_room(len(merges)), 2), 2 ** 64 - 1, np.uint64)
        together = np.add.reduceat(merges.lengths, np.arange(0, len(merges), AHEAD)).max() if len(merges) else 1
        cdef uint8_t[::1] whole = np.empty(max(1, together), np.uint8)
        cdef int64_t begin = 0
        with nogil:
            self._add_words()
            while begin < merges.starts.shape[0]:
                self._add_pairs(merges, begin, min(<int64_t>AHEAD, merges.starts.shape[0] - begin), &whole[0])
                begin += AHEAD
        for i in range(256):
            text = alphabet[i].encode()
            self.spelled_bytes[i] = len(text)
            memcpy(&self.spelled[i][0], <const char *>text, len(text))
            self.byte_ids[i] = self.find(text)

    def __dealloc__(self):
        free(self.memory)

    cdef void _add_words(self) noexcept nogil:
        cdef uint64_t mask = self.words.shape[0] - 1, h, at
        cdef int64_t i
        for i in range(self.tokens.starts.shape[0]):
            if self._find(&self.tokens.data[0] + self.tokens.starts[i], self.tokens.lengths[i], &h, &at) < 0:      # of equal texts the first counts
                self.words[at] = (h >> 32 << 32) | <uint64_t>(i + 1)

    cdef int64_t _find(self, const uint8_t *p, int64_t n, uint64_t *hashed, uint64_t *place) noexcept nogil:
        """The id of a text, -1 if it is no token; `place` is then the free entry for it."""
        cdef uint64_t mask = self.words.shape[0] - 1, h = ox_text_hash(p, n), at = h & mask, entry
        cdef int64_t token
        hashed[0] = h
        while True:
            entry = self.words[at]
            if entry == 0:
                place[0] = at
                return -1
            if entry >> 32 == h >> 32:
                token = <int64_t><uint32_t>entry - 1
                if self.tokens.lengths[token] == n and memcmp(&self.tokens.data[0] + self.tokens.starts[token], p, n) == 0:
                    return token
            at = (at + 1) & mask

    cdef void _add_pairs(self, Strings merges, int64_t begin, int64_t count, uint8_t *whole) noexcept nogil:
        """Up to AHEAD merges side by side: each waits for its lines of the tables while those of the others come."""
        cdef Merge some[AHEAD]
        cdef uint64_t mask = self.words.shape[0] - 1, h, at
        cdef int64_t i, k, n, token
        cdef Merge *one
        cdef const uint8_t *p
        cdef const uint8_t *space
        for i in range(count):
            one = &some[i]
            p, n = &merges.data[0] + merges.starts[begin + i], merges.lengths[begin + i]
            space = <const uint8_t *>memchr(p + 1, c' ', n - 1) if n > 2 else NULL       # a piece may begin with a space, never hold one elsewhere
            one.odd = space == NULL or space - p == n - 1
            if one.odd:
                continue
            one.lengths[0], one.lengths[1], one.lengths[2] = space - p, n - 1 - (space - p), n - 1
            one.texts[0], one.texts[1], one.texts[2] = p, space + 1, whole
            memcpy(whole, p, one.lengths[0])
            memcpy(whole + one.lengths[0], space + 1, one.lengths[1])
            whole += n
            for k in range(3):
                one.hashes[k] = ox_text_hash(one.texts[k], one.lengths[k])
                ox_prefetch(&self.words[one.hashes[k] & mask])
        for i in range(count):
            for k in range(0 if some[i].odd else 3):        # the place of the likely token
                token = <int64_t><uint32_t>self.words[some[i].hashes[k] & mask] - 1
                if token >= 0:
                    ox_prefetch(&self.tokens.starts[token])
                    ox_prefetch(&self.tokens.lengths[token])
        for i in range(count):
            for k in range(0 if some[i].odd else 3):        # and its text
                token = <int64_t><uint32_t>self.words[some[i].hashes[k] & mask] - 1
                if token >= 0:
                    ox_prefetch(&self.tokens.data[self.tokens.starts[token]])
        for i in range(count):
            one = &some[i]
            for k in range(0 if one.odd else 3):
                one.ids[k] = self._find(one.texts[k], one.lengths[k], &h, &at)
            one.odd = one.odd or one.ids[0] < 0 or one.ids[1] < 0 or one.ids[2] < 0
            if not one.odd:
                ox_prefetch(&self.pairs[ox_pair_hash(<uint64_t>one.ids[0] << 32 | <uint64_t>one.ids[1]) & (self.pairs.shape[0] - 1), 0])
        for i in range(count):
            if some[i].odd:
                self.odd += 1
            else:
                self._add_pair(some[i].ids, begin + i)

    cdef void _add_pair(self, const int64_t *ids, int64_t rank) noexcept nogil:
        cdef uint64_t mask = self.pairs.shape[0] - 1, key = <uint64_t>ids[0] << 32 | <uint64_t>ids[1], at = ox_pair_hash(key) & mask
        while self.pairs[at, 0] != OX_NO_PAIR and self.pairs[at, 0] != key:
            at = (at + 1) & mask
        if self.pairs[at, 0] == OX_NO_PAIR:           # of equal merges the first counts
            self.pairs[at, 0] = key
            self.pairs[at, 1] = <uint64_t>rank << 32 | <uint64_t>ids[2]

    cdef inline uint64_t _pair(self, int32_t left, int32_t right) noexcept nogil:
        """rank << 32 | id of what two neighbours become, OX_NO_PAIR if they stay."""
        cdef uint64_t mask = self.pairs.shape[0] - 1, key = <uint64_t>left << 32 | <uint32_t>right, at = ox_pair_hash(key) & mask
        while self.pairs[at, 0] != key:
            if self.pairs[at, 0] == OX_NO_PAIR:
                return OX_NO_PAIR
            at = (at + 1) & mask
        return self.pairs[at, 1]

    def find(self, bytes text):
        """The id of the token written so (in the vocabulary's own alphabet), -1 if there is none."""
        cdef uint64_t h, at
        return self._find(<const uint8_t *><const char *>text, len(text), &h, &at)

    def missing(self):
        """The bytes that no token stands for."""
        return frozenset(i for i in range(256) if self.byte_ids[i] < 0)

    def encode(self, list pieces, bint whole_words):
        """The ids of pieces of text, bytes of `missing` left out; `whole_words` takes a piece that is a token as it is."""
        cdef Py_ssize_t n
        cdef int64_t i, count
        cdef const uint8_t *p
        cdef int32_t *ids
        cdef list out = []
        for piece in pieces:
            p = <const uint8_t *>PyUnicode_AsUTF8AndSize(piece, &n)
            if n == 0:
                continue
            self._reserve(n)
            ids = <int32_t *>self.memory
            count = self._whole(p, n, ids) if whole_words else 0
            if count == 0:
                n = self._spell(p, n)
                count = self._merge(n) if n else 0
            for i in range(count):
                PyList_Append(out, ids[i])
        return out

    cdef int _reserve(self, int64_t n) except -1:
        """Room for a piece of n bytes: ids, both neighbours and a heap of 3 n."""
        if n <= self.capacity:
            return 0
        n += n // 2 + 64
        n += n & 1              # the heap after the first three arrays is aligned
        cdef void *grown = realloc(self.memory, n * (4 + 4 + 4 + 24 + 8))
        if grown == NULL:
            raise MemoryError
        self.memory, self.capacity = grown, n
        return 0

    cdef int64_t _whole(self, const uint8_t *p, int64_t n, int32_t *ids) noexcept nogil:
        cdef uint8_t *text = <uint8_t *>self.memory + 12 * self.capacity
        cdef int64_t i, length = 0, token
        cdef uint64_t h, at
        for i in range(n):
            memcpy(text + length, &self.spelled[p[i]][0], 4)
            length += self.spelled_bytes[p[i]]
        token = self._find(text, length, &h, &at)
        if token < 0:
            return 0
        ids[0] = <int32_t>token
        return 1

    cdef int64_t _spell(self, const uint8_t *p, int64_t n) noexcept nogil:
        """Writes the tokens of the piece's bytes to the first entries of `memory`; returns how many, bytes without one left out."""
        cdef int32_t *ids = <int32_t *>self.memory
        cdef int64_t i, count = 0
        for i in range(n):
            ids[count] = self.byte_ids[p[i]]
            count += ids[count] >= 0
        return count

    cdef int64_t _merge(self, int64_t n) noexcept nogil:
        """Merges the first n (at least one) entries of `memory`; the ids are then its first entries."""
        cdef int32_t *ids = <int32_t *>self.memory
        cdef int32_t *after = ids + self.capacity
        cdef int32_t *before = after + self.capacity
        cdef uint64_t *heap = <uint64_t *>(before + self.capacity)
        cdef int64_t i, j, size = 0, count
        cdef uint64_t top, found
        for i in range(n):
            after[i], before[i] = <int32_t>(i + 1), <int32_t>(i - 1)
        after[n - 1] = -1
        for i in range(n - 1):
            found = self._pair(ids[i], ids[i + 1])
            if found != OX_NO_PAIR:
                size = _push(heap, size, (found >> 32 << 32) | <uint64_t>i)
        while size:
            top = heap[0]
            size = _pop(heap, size)
            i = <int64_t><uint32_t>top
            j = after[i]
            if ids[i] < 0 or j < 0:
                continue
            found = self._pair(ids[i], ids[j])
            if found == OX_NO_PAIR or found >> 32 != top >> 32:      # a neighbour has been merged away since
                continue
            ids[i], ids[j] = <int32_t><uint32_t>found, -1
            after[i] = after[j]
            if after[i] >= 0:
                before[after[i]] = <int32_t>i
                found = self._pair(ids[i], ids[after[i]])
                if found != OX_NO_PAIR:
                    size = _push(heap, size, (found >> 32 << 32) | <uint64_t>i)
            if before[i] >= 0:
                found = self._pair(ids[before[i]], ids[i])
                if found != OX_NO_PAIR:
                    size = _push(heap, size, (found >> 32 << 32) | <uint64_t>before[i])
        count, i = 0, 0
        while i >= 0:
            ids[count] = ids[i]
            count += 1
            i = after[i]
        return count


cdef int64_t _push(uint64_t *heap, int64_t size, uint64_t item) noexcept nogil:
    cdef int64_t i = size, up
    while i and heap[(i - 1) >> 1] > item:
        up = (i - 1) >> 1
        heap[i] = heap[up]
        i = up
    heap[i] = item
    return size + 1


cdef int64_t _pop(uint64_t *heap, int64_t size) noexcept nogil:
    cdef uint64_t item = heap[size - 1]
    cdef int64_t i = 0, child
    size -= 1
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= item:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = item
    return size
