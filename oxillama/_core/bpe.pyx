# cython: auto_pickle=False
"""Byte-pair merging over tables that are made straight from a file's bytes: no token or merge becomes a Python object.

`words` finds a token by its text: open addressing, an entry is the upper half of the hash over the id + 1. `pairs` finds what two neighbours
become: (left, right) to (rank, id). Both are plain arrays, made once per load without the GIL. A text is cut into pieces (`Splitter`);
within a piece the merge of lowest rank comes first, of equal ranks the leftmost (Sennrich et al. 2016): by looking at all pairs of a
short piece, by a heap for a long one, n log n for n bytes. Texts repeat their words: what a short piece became is kept (`Word`).
`merge_pieces` merges the characters of SentencePiece texts, whose ranks are a dict.
"""
import numpy as np

from cpython.list cimport PyList_Append
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
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
    WORDS = 1 << 14     # pieces whose ids are kept: 1 MB
    WORD_BYTES = 22     # of such a piece at most
    WORD_IDS = 8        # and what it may become
    SHORT = 32          # bytes of a piece whose pairs are all looked at for each merge
    LONG_FAILURE = 64   # bytes of an attempt without a match after which states are noted
    ANY = 0             # classes of characters where digits are counted
    DIGIT = 1
    BARRIER = 2         # digits before it are left as they are

# A piece and its ids, in a line of the cache. A place holds one piece, the last that came.
cdef struct Word:
    uint64_t hashed
    uint8_t length      # 0: none
    uint8_t count
    uint8_t text[WORD_BYTES]
    int32_t ids[WORD_IDS]

# An expression of `tokenizer.splits` as tables, or groups of digits (`tokenizer.automaton`).
cdef struct Stage:
    const uint8_t *classes
    const int32_t *steps
    int64_t columns
    int64_t size        # of a group of digits; 0: steps
    bint apart

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

    def __iter__(self):
        return (self[i] for i in range(len(self)))

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


cdef class EncodeScratch:
    """What one call of `BpeTables.encode` works on: the ids and the ends of pieces so far, and the words that calls before it met."""
    cdef Word *words
    cdef void *memory
    cdef int64_t capacity
    cdef int32_t *ids
    cdef int64_t count, ids_capacity
    cdef int64_t *ends
    cdef int64_t *others
    cdef int64_t ends_capacity
    cdef int32_t *trace
    cdef int64_t trace_capacity

    def __cinit__(self):
        self.words = <Word *>calloc(WORDS, sizeof(Word))
        if self.words == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.words)
        self.release()

    cdef void release(self) noexcept:
        free(self.memory)
        free(self.ids)
        free(self.ends)
        free(self.others)
        free(self.trace)
        self.memory = NULL
        self.ids = self.trace = NULL
        self.ends = self.others = NULL
        self.capacity = self.ids_capacity = self.ends_capacity = self.trace_capacity = 0

    cdef void shrink(self) noexcept:
        """Gives back what one long text needed."""
        if self.ids_capacity + 2 * self.ends_capacity + 11 * self.capacity > 1 << 20:
            self.release()

    cdef bint reserve(self, int64_t n) noexcept nogil:
        """Room for a piece of n bytes: ids, both neighbours and a heap of 3 n. False where memory is refused."""
        cdef void *grown
        n = n if n > 8 * SHORT else 8 * SHORT
        if n <= self.capacity:
            return True
        n += n // 2 + 64
        n += n & 1              # the heap after the first three arrays is aligned
        grown = realloc(self.memory, n * (4 + 4 + 4 + 24 + 8))
        if grown == NULL:
            return False
        self.memory, self.capacity = grown, n
        return True

    cdef bint reserve_ids(self, int64_t n) noexcept nogil:
        """Room for n more ids."""
        cdef void *grown
        cdef int64_t size
        if self.count + n <= self.ids_capacity:
            return True
        size = 2 * (self.count + n) + 256
        grown = realloc(self.ids, size * sizeof(int32_t))
        if grown == NULL:
            return False
        self.ids, self.ids_capacity = <int32_t *>grown, size
        return True

    cdef bint reserve_ends(self, int64_t n) noexcept nogil:
        """Room for n ends of pieces, twice."""
        cdef void *grown
        if n <= self.ends_capacity:
            return True
        n += n // 2 + 64
        grown = realloc(self.ends, n * sizeof(int64_t))
        if grown == NULL:
            return False
        self.ends = <int64_t *>grown
        grown = realloc(self.others, n * sizeof(int64_t))
        if grown == NULL:
            return False
        self.others, self.ends_capacity = <int64_t *>grown, n
        return True


cdef class Splitter:
    """Cuts a text into pieces by expressions in turn, each applied to the pieces that the one before left: a match is a piece, and so is
    what lies between two. stages: (class of each code point, steps) of each, or (classes, size, apart) of one that counts digits from the
    right, as `tokenizer.automaton` makes them; none leave a text whole.
    """
    cdef Stage stages[8]
    cdef int count
    cdef list held

    def __init__(self, stages):
        cdef const uint8_t[::1] classes
        cdef const int32_t[:, ::1] steps
        self.held = list(stages)
        if len(self.held) > 8:
            raise TokenizerError(f"splits: found {len(self.held)} expressions, wanted at most 8")
        for i, (classes, *rest) in enumerate(self.held):
            if len(rest) == 2:
                if classes.shape[0] != 0x110000 or rest[0] < 1:
                    raise TokenizerError("splits: found classes that are not of all characters, or groups of no digits")
                self.stages[i] = Stage(&classes[0], NULL, 0, rest[0], rest[1])
                continue
            steps, = rest
            if classes.shape[0] != 0x110000 or max(np.asarray(classes)) + 1 >= steps.shape[1] or np.max(steps) >= 2 * steps.shape[0]:
                raise TokenizerError("splits: tables that do not fit each other")
            self.stages[i] = Stage(&classes[0], &steps[0, 0], steps.shape[1], 0, False)
        self.count = len(self.held)

    def pieces(self, str text not None):
        """The pieces of a text."""
        cdef Py_ssize_t n
        cdef const uint8_t *p = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &n)
        cdef EncodeScratch scratch = EncodeScratch()
        cdef int64_t i, start = 0, count = self.cut(p, n, scratch)
        if count < 0:
            raise MemoryError
        found = []
        for i in range(count):
            found.append(PyUnicode_DecodeUTF8(<const char *>p + start, scratch.ends[i] - start, NULL))
            start = scratch.ends[i]
        return found

    cdef int64_t cut(self, const uint8_t *p, int64_t n, EncodeScratch scratch) noexcept nogil:
        """Writes where the pieces end; returns how many, -1 where memory is refused."""
        cdef int64_t i, start, count = n > 0, made
        cdef int64_t *swap
        cdef int stage
        if not scratch.reserve_ends(n // 8 + 3):
            return -1
        scratch.ends[0] = n
        for stage in range(self.count):
            start, made = 0, 0
            for i in range(count):
                if self.stages[stage].size:
                    made = self._cut_groups(&self.stages[stage], p, start, scratch.ends[i], scratch, made)
                else:
                    made = self._cut(&self.stages[stage], p, start, scratch.ends[i], scratch, made)
                if made < 0:
                    return -1
                start = scratch.ends[i]
            swap = scratch.ends
            scratch.ends, scratch.others, count = scratch.others, swap, made
        return count

    cdef int64_t _cut(self, const Stage *stage, const uint8_t *p, int64_t begin, int64_t end, EncodeScratch scratch, int64_t made) noexcept nogil:
        """Appends to `others` the ends of the pieces of p[begin:end].

        An attempt that reaches no match notes its states, so that those from later characters end where they would go the same way:
        the time is linear in the text for expressions that fail after long runs too.
        """
        cdef int64_t i = begin, j, last, state, gap = begin, noted = begin, length = 0
        cdef int32_t step
        cdef void *grown
        while i < end:
            state, j, last = 1, i, -1
            while True:
                if j == end:
                    if stage.steps[(state + 1) * stage.columns - 1] & 1:
                        last = j
                    break
                step = stage.steps[state * stage.columns + stage.classes[_point(p + j, &length)]]
                if step & 1:
                    last = j
                state = step >> 1
                if state == 0:
                    break
                j += length
                if noted > i and last < 0:
                    if j < noted and scratch.trace[j - begin] == state:
                        break
                    scratch.trace[j - begin] = <int32_t>state
            if made + 3 > scratch.ends_capacity and not scratch.reserve_ends(made + 3):
                return -1
            if last > i:
                if gap < i:
                    scratch.others[made] = i
                    made += 1
                scratch.others[made] = last
                made += 1
                i = gap = last
                noted = begin
                continue
            if j - i > LONG_FAILURE and j > noted:
                if noted == begin and end - begin >= scratch.trace_capacity:
                    grown = realloc(scratch.trace, (end - begin + 1) * sizeof(int32_t))
                    if grown == NULL:
                        return -1
                    scratch.trace, scratch.trace_capacity = <int32_t *>grown, end - begin + 1
                if noted == begin:
                    memset(scratch.trace + (i - begin), 0, (j - i + 1) * sizeof(int32_t))
                noted = j
            _point(p + i, &length)
            i += length
        if gap < end:
            scratch.others[made] = end
            made += 1
        return made

    cdef int64_t _cut_groups(self, const Stage *stage, const uint8_t *p, int64_t begin, int64_t end, EncodeScratch scratch, int64_t made) noexcept nogil:
        """Appends to `others` the ends of the pieces of p[begin:end]: a run of digits is cut before each `size` of them, counted from its
        end, and where groups stand apart also at its beginning and end.
        """
        cdef int64_t i = begin, j, gap = begin, digits, left, length = 0
        cdef uint8_t kind
        while i < end:
            j, digits, kind = i, 0, ANY
            while j < end:
                kind = stage.classes[_point(p + j, &length)]
                if kind != DIGIT:
                    break
                digits += 1
                j += length
            if digits == 0 or j < end and kind == BARRIER:
                i = j + length * (digits == 0)
                continue
            if made + digits // stage.size + 3 > scratch.ends_capacity and not scratch.reserve_ends(made + digits // stage.size + 3):
                return -1
            left = digits % stage.size
            if gap < i and (left == 0 or stage.apart):
                scratch.others[made] = gap = i
                made += 1
            left = left if left else stage.size
            while i < j:
                _point(p + i, &length)
                i += length
                left -= 1
                if left == 0 and (i < j or stage.apart):
                    scratch.others[made] = gap = i
                    made += 1
                if left == 0:
                    left = stage.size
        if gap < end:
            if made + 1 > scratch.ends_capacity and not scratch.reserve_ends(made + 1):
                return -1
            scratch.others[made] = end
            made += 1
        return made


cdef inline int64_t _point(const uint8_t *p, int64_t *length) noexcept nogil:
    """The code point at p, where UTF-8 that is right continues."""
    cdef uint8_t c = p[0]
    if c < 0x80:
        length[0] = 1
        return c
    if c < 0xE0:
        length[0] = 2
        return (c & 0x1F) << 6 | (p[1] & 0x3F)
    if c < 0xF0:
        length[0] = 3
        return (c & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F)
    length[0] = 4
    return (c & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F)


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
    cdef list idle_scratch                     # that no call uses now

    def __init__(self, Strings tokens not None, Strings merges not None, alphabet):
        cdef int i
        self.tokens, self.idle_scratch = tokens, []
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

    def encode(self, str text not None, Splitter splitter not None, bint whole_words):
        """The ids of a text, cut by `splitter`, bytes of `missing` left out; `whole_words` takes a piece that is a token as it is.

        Runs without the GIL; texts may be encoded side by side.
        """
        cdef Py_ssize_t n
        cdef int64_t i
        cdef const uint8_t *p = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &n)
        cdef EncodeScratch scratch
        cdef bint done
        if n >= 1 << 31:
            raise TokenizerError(f"text: found {n} bytes of UTF-8, wanted less than 2^31")
        try:
            scratch = self.idle_scratch.pop()
        except IndexError:
            scratch = EncodeScratch()
        with nogil:
            done = self._encode(p, n, splitter, whole_words, scratch)
        if not done:
            raise MemoryError
        out = [scratch.ids[i] for i in range(scratch.count)]
        scratch.shrink()
        self.idle_scratch.append(scratch)
        return out

    cdef bint _encode(self, const uint8_t *p, int64_t n, Splitter splitter, bint whole_words, EncodeScratch scratch) noexcept nogil:
        """False where memory is refused."""
        cdef int64_t i, start = 0, end, pieces
        scratch.count = 0
        pieces = splitter.cut(p, n, scratch)
        if pieces < 0:
            return False
        for i in range(pieces):
            end = scratch.ends[i]
            if not self._piece(p + start, end - start, whole_words, scratch):
                return False
            start = end
        return True

    cdef bint _piece(self, const uint8_t *p, int64_t n, bint whole_words, EncodeScratch scratch) noexcept nogil:
        cdef int64_t count
        cdef uint64_t h
        cdef Word *word = NULL
        cdef int32_t *ids
        if not scratch.reserve_ids(n):
            return False
        if n <= WORD_BYTES:
            h = ox_text_hash(p, n) ^ <uint64_t>whole_words
            word = &scratch.words[h >> 40 & (WORDS - 1)]
            if word.hashed == h and word.length == n and memcmp(&word.text[0], p, n) == 0:
                memcpy(scratch.ids + scratch.count, &word.ids[0], word.count * sizeof(int32_t))
                scratch.count += word.count
                return True
        if not scratch.reserve(n):
            return False
        ids = <int32_t *>scratch.memory
        count = self._whole(p, n, scratch) if whole_words else 0
        if count == 0:
            n = self._spell(p, n, ids)
            count = _short(self, ids, n, <uint64_t *>(ids + 4 * SHORT)) if n <= SHORT else self._merge(n, scratch)
        memcpy(scratch.ids + scratch.count, ids, count * sizeof(int32_t))
        scratch.count += count
        if word != NULL and count <= WORD_IDS:
            word.hashed, word.length, word.count = h, <uint8_t>n, <uint8_t>count
            memcpy(&word.text[0], p, n)
            memcpy(&word.ids[0], ids, count * sizeof(int32_t))
        return True

    cdef int64_t _whole(self, const uint8_t *p, int64_t n, EncodeScratch scratch) noexcept nogil:
        cdef uint8_t *text = <uint8_t *>scratch.memory + 12 * scratch.capacity
        cdef int64_t i, length = 0, token
        cdef uint64_t h, at
        for i in range(n):
            memcpy(text + length, &self.spelled[p[i]][0], 4)
            length += self.spelled_bytes[p[i]]
        token = self._find(text, length, &h, &at)
        if token < 0:
            return 0
        (<int32_t *>scratch.memory)[0] = <int32_t>token
        return 1

    cdef int64_t _spell(self, const uint8_t *p, int64_t n, int32_t *ids) noexcept nogil:
        """Writes the tokens of the piece's bytes; returns how many, bytes without one left out."""
        cdef int64_t i, count = 0
        for i in range(n):
            ids[count] = self.byte_ids[p[i]]
            count += ids[count] >= 0
        return count

    cdef int64_t _merge(self, int64_t n, EncodeScratch scratch) noexcept nogil:
        """Merges the first n (at least one) entries of the scratch's memory; the ids are then its first entries."""
        cdef int32_t *ids = <int32_t *>scratch.memory
        cdef int32_t *after = ids + scratch.capacity
        cdef int32_t *before = after + scratch.capacity
        cdef uint64_t *heap = <uint64_t *>(before + scratch.capacity)
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


cdef int64_t _short(BpeTables tables, int32_t *ids, int64_t n, uint64_t *pairs) noexcept nogil:
    """Merges n ids in place by looking at all pairs; returns how many are left."""
    cdef int64_t i, best
    for i in range(n - 1):
        pairs[i] = tables._pair(ids[i], ids[i + 1])
    while n > 1:
        best = 0
        for i in range(1, n - 1):
            if pairs[i] >> 32 < pairs[best] >> 32:
                best = i
        if pairs[best] == OX_NO_PAIR:
            break
        ids[best] = <int32_t><uint32_t>pairs[best]
        n -= 1
        for i in range(best + 1, n):
            ids[i] = ids[i + 1]
            pairs[i - 1] = pairs[i]
        if best:
            pairs[best - 1] = tables._pair(ids[best - 1], ids[best])
        if best < n - 1:
            pairs[best] = tables._pair(ids[best], ids[best + 1])
    return n


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


cdef class PiecePairs:
    """The pieces that one text is merged of, by number, and what became of two neighbours so far: (left, right) to (rank, number), open
    addressing. Ranks are asked for once for each pair of pieces that meet."""
    cdef list texts
    cdef dict numbers, ranks
    cdef str between
    cdef uint64_t *table
    cdef uint64_t mask
    cdef int64_t count

    def __cinit__(self, dict ranks not None, str between not None):
        self.texts, self.numbers, self.ranks, self.between = [], {}, ranks, between
        self.table = _empty_table(256)
        if self.table == NULL:
            raise MemoryError
        self.mask = 255

    def __dealloc__(self):
        free(self.table)

    cdef int32_t number(self, str piece) except -1:
        """The number of a piece."""
        known = self.numbers.get(piece)
        if known is None:
            known = self.numbers[piece] = len(self.texts)
            self.texts.append(piece)
        return <int32_t>known

    cdef inline uint64_t find(self, int32_t left, int32_t right) except? 0 nogil:
        """rank << 32 | number of what two neighbours become, OX_NO_PAIR if they stay."""
        cdef uint64_t key = <uint64_t>left << 32 | <uint32_t>right, at = ox_pair_hash(key) & self.mask
        while self.table[2 * at] != key:
            if self.table[2 * at] == OX_NO_PAIR:
                return self._learn(left, right)
            at = (at + 1) & self.mask
        return self.table[2 * at + 1]

    cdef uint64_t _learn(self, int32_t left, int32_t right) except? 0 with gil:
        """The same of a pair that is met for the first time."""
        cdef str one = self.texts[left], other = self.texts[right]
        cdef uint64_t found = OX_NO_PAIR, i, mask
        cdef uint64_t *table
        rank = self.ranks.get(one + self.between + other)
        if rank is not None:
            found = <uint64_t>rank << 32 | <uint32_t>self.number(one + other)
        if 4 * self.count >= 3 * <int64_t>self.mask:
            mask = 2 * self.mask + 1
            table = _empty_table(mask + 1)
            if table == NULL:
                raise MemoryError
            for i in range(self.mask + 1):
                if self.table[2 * i] != OX_NO_PAIR:
                    _put_pair(table, mask, self.table[2 * i], self.table[2 * i + 1])
            free(self.table)
            self.table, self.mask = table, mask
        _put_pair(self.table, self.mask, <uint64_t>left << 32 | <uint32_t>right, found)
        self.count += 1
        return found


cdef uint64_t *_empty_table(uint64_t size) noexcept nogil:
    cdef uint64_t *table = <uint64_t *>realloc(NULL, 2 * size * sizeof(uint64_t))
    if table != NULL:
        memset(table, 0xFF, 2 * size * sizeof(uint64_t))       # OX_NO_PAIR
    return table


cdef void _put_pair(uint64_t *table, uint64_t mask, uint64_t key, uint64_t value) noexcept nogil:
    cdef uint64_t at = ox_pair_hash(key) & mask
    while table[2 * at] != OX_NO_PAIR:
        at = (at + 1) & mask
    table[2 * at], table[2 * at + 1] = key, value


cdef class PieceMerge:
    """Neighbours of one text and the merges that are due."""
    cdef PiecePairs pairs
    cdef int32_t *ids
    cdef int32_t *after
    cdef int32_t *before
    cdef uint64_t *heap
    cdef int64_t size, capacity

    def __dealloc__(self):
        free(self.ids)
        free(self.heap)

    cdef int due(self, int64_t i) except -1 nogil:
        """Notes that the piece at i may be merged with the next one."""
        cdef uint64_t found = self.pairs.find(self.ids[i], self.ids[self.after[i]])
        cdef void *grown
        if found == OX_NO_PAIR:
            return 0
        if self.size == self.capacity:
            grown = realloc(self.heap, (self.capacity + self.capacity // 2 + 16) * sizeof(uint64_t))
            if grown == NULL:
                with gil:
                    raise MemoryError
            self.heap, self.capacity = <uint64_t *>grown, self.capacity + self.capacity // 2 + 16
        self.size = _push(self.heap, self.size, (found >> 32 << 32) | <uint64_t>i)
        return 0

    cdef int run(self, int64_t n) except -1 nogil:
        """Merges the n pieces; -1 in `ids` are those that are now part of another."""
        cdef int64_t i, j
        cdef uint64_t top, found
        for i in range(n):
            self.after[i], self.before[i] = <int32_t>(i + 1), <int32_t>(i - 1)
        self.after[n - 1] = -1
        for i in range(n - 1):
            self.due(i)
        while self.size:
            top = self.heap[0]
            self.size = _pop(self.heap, self.size)
            i = <int64_t><uint32_t>top
            j = self.after[i]
            if self.ids[i] < 0 or j < 0:
                continue
            found = self.pairs.find(self.ids[i], self.ids[j])
            if found == OX_NO_PAIR or found >> 32 != top >> 32:      # a neighbour has been merged away since
                continue
            self.ids[i], self.ids[j] = <int32_t><uint32_t>found, -1
            self.after[i] = self.after[j]
            if self.after[i] >= 0:
                self.before[self.after[i]] = <int32_t>i
                self.due(i)
            if self.before[i] >= 0:
                self.due(self.before[i])
        return 0


def merge_pieces(str text not None, dict ranks not None, str between not None):
    """The pieces that are left of a text's characters when no two neighbours merge any more: those first whose texts, with `between` between
    them, have the lowest rank (from 0), of equal ones the leftmost. n log n for n characters, most of it without the GIL.
    """
    cdef int64_t i, n = len(text)
    cdef int32_t[256] low           # numbers of the first characters
    cdef PieceMerge merge = PieceMerge.__new__(PieceMerge)
    cdef PiecePairs pairs = PiecePairs(ranks, between)
    cdef Py_UCS4 letter, last = 0
    cdef int32_t number = -1
    cdef list texts, out
    if n < 2:
        return list(text)
    if n >= 1 << 31:
        raise TokenizerError(f"text: found {n} characters, wanted less than 2^31")
    merge.pairs = pairs
    merge.ids = <int32_t *>realloc(NULL, 3 * n * sizeof(int32_t))
    merge.heap = <uint64_t *>realloc(NULL, n * sizeof(uint64_t))
    if merge.ids == NULL or merge.heap == NULL:
        raise MemoryError
    merge.after, merge.before, merge.capacity = merge.ids + n, merge.ids + 2 * n, n
    memset(low, 0xFF, sizeof(low))
    for i in range(n):
        letter = text[i]
        if number < 0 or letter != last:
            last = letter
            if letter < 256 and low[letter] >= 0:
                number = low[letter]
            else:
                number = pairs.number(letter)
                if letter < 256:
                    low[letter] = number
        merge.ids[i] = number
    with nogil:
        merge.run(n)
    texts, out, i = pairs.texts, [], 0
    while i >= 0:
        PyList_Append(out, texts[merge.ids[i]])
        i = merge.after[i]
    return out
