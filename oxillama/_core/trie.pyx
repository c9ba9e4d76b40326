"""Token tries: from a grammar position to the bitset of tokens that may come next.

The vocabulary is kept as two preorder tries in flat arrays: `plain` holds the tokens made of plain JSON string characters (UTF-8, no
quote, backslash or control; a cut last character is fine), `rest` all others. A mask is one walk of each, stepping the pushdown machine's
memoised rows and leaving a subtree at its first dead byte, or taking it whole where every text of its kinds of bytes is allowed (`closed`:
letters inside `[a-z]+`). In the plain trie a subtree is taken whole where the machine proves that the
position allows any plain text of that length (cover.pyx); if that holds for most of the trie the walk starts from the full plain
mask and only clears what turns out dead, so the inside of a string costs a copy and not a hundred thousand steps.
"""
cimport cython
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

import numpy as np

from oxillama._core.cover cimport cover as covers, exact_cover
from oxillama._core.cursor cimport Cursor, begin_operation
from oxillama._core.pushdown cimport Machine

from oxillama._core.cover import plain_step
from oxillama.errors import GrammarError


cdef enum:
    COUNTED = 48           # up to this many characters left, a bounded string's plain tokens come from a table
    CLOSED = 8             # positions followed to prove that a subtree is allowed whole
    STEPS = 150            # merged stacks for a mask, per alternative that may be followed at once
    WORTH = 24             # nodes of a subtree that make the proof worth its time

# Bytes by kind: what grammars tell apart mostly goes by these. Bytes beyond ASCII are one kind, ASCII signs each their own.
cdef uint8_t[256] KIND
for _b in range(256):
    KIND[_b] = (0 if 0x30 <= _b <= 0x39 else 1 if 0x61 <= _b <= 0x66 else 2 if 0x67 <= _b <= 0x7A else 3 if 0x41 <= _b <= 0x46
                else 4 if 0x47 <= _b <= 0x5A else 5 if _b >= 0x80 else 6 if _b < 0x20 and _b not in (9, 10, 13) or _b == 0x7F
                else 7 + [*b" \t\n\r!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"].index(_b))


cdef void drop_tree(Tree *t) noexcept:
    free(t.byte)
    free(t.u8)
    free(t.depth)
    free(t.skip)
    free(t.chars)
    free(t.below)
    free(t.first)
    free(t.tokens)


cdef int open_tree(Tree *t, Py_ssize_t nodes, Py_ssize_t tokens) except -1:
    """Room for so many nodes and tokens; `drop_tree` frees it."""
    memset(t, 0, sizeof(Tree))
    t.byte = <uint8_t *>malloc(nodes)
    t.u8 = <uint8_t *>malloc(nodes)
    t.depth = <int32_t *>malloc(nodes * sizeof(int32_t))
    t.skip = <int32_t *>malloc(nodes * sizeof(int32_t))
    t.chars = <int32_t *>calloc(nodes, sizeof(int32_t))
    t.below = <uint64_t *>calloc(nodes, sizeof(uint64_t))
    t.first = <int32_t *>malloc((nodes + 1) * sizeof(int32_t))
    t.tokens = <int32_t *>malloc((tokens + 1) * sizeof(int32_t))
    if (t.byte == NULL or t.u8 == NULL or t.depth == NULL or t.skip == NULL or t.chars == NULL or t.below == NULL or t.first == NULL
            or t.tokens == NULL):
        raise MemoryError()
    return 0


cdef void look_below(Tree *t) noexcept:
    """Per node the deepest count of plain characters that start below it (at nodes whose parent is between characters), and the kinds of
    bytes that occur there; children first."""
    cdef Py_ssize_t i, k
    cdef int32_t own
    for i in range(t.nodes - 1, -1, -1):
        k = i + 1
        while k < t.skip[i]:
            own = t.chars[k] + (1 if t.u8[i] == 0 else 0)
            if own > t.chars[i]:
                t.chars[i] = own
            t.below[i] |= t.below[k] | (<uint64_t>1 << KIND[t.byte[k]])
            k = t.skip[k]


cdef int grow_tree(Tree *t, list pairs, uint8_t[:, ::1] steps) except -1:
    """Builds the preorder arrays from (bytes, token) pairs in byte order; `steps` is the plain automaton as a table (255 = none)."""
    cdef Py_ssize_t i, n, common, node = -1, last = 0      # last: how many nodes are open, those on the path of the last token
    cdef const uint8_t[::1] now
    cdef const uint8_t[::1] before = b""
    cdef int32_t *open_nodes
    cdef uint8_t state
    open_tree(t, sum([len(data) for data, _ in pairs]) + 1, len(pairs))
    open_nodes = <int32_t *>malloc((max([len(data) for data, _ in pairs], default=0) + 2) * sizeof(int32_t))
    if open_nodes == NULL:
        raise MemoryError()
    try:
        for data, token in pairs:
            now = data
            n = now.shape[0]
            common = 0
            while common < last and common < n and now[common] == before[common]:
                common += 1
            while last > common:
                last -= 1
                t.skip[open_nodes[last]] = <int32_t>(node + 1)
            for i in range(common, n):
                node += 1
                state = t.u8[open_nodes[i - 1]] if i else 0
                t.byte[node] = now[i]
                t.u8[node] = steps[state, now[i]] if state < 8 else 255
                t.depth[node] = <int32_t>(i + 1)
                t.first[node] = <int32_t>t.token_count
                open_nodes[i] = <int32_t>node
            last = n
            t.tokens[t.token_count] = token
            t.token_count += 1
            before = now
        while last > 0:
            last -= 1
            t.skip[open_nodes[last]] = <int32_t>(node + 1)
        t.nodes = node + 1
        t.first[t.nodes] = <int32_t>t.token_count
        look_below(t)
    finally:
        free(open_nodes)
    return 0


cdef inline void set_bit(uint32_t *mask, int32_t token) noexcept:
    mask[token >> 5] |= <uint32_t>1 << (token & 31)


cdef inline void clear_bit(uint32_t *mask, int32_t token) noexcept:
    mask[token >> 5] &= ~(<uint32_t>1 << (token & 31))


cdef struct Proof:
    int32_t config           # from here any text of these kinds of bytes is allowed
    uint64_t kinds
    int32_t refuted          # and from here some text of these is not, or too many positions would have to be looked at
    uint64_t too_many


cdef int closed(Machine machine, int32_t config, uint64_t kinds, Proof *proof) except -1:
    """Whether every text of these kinds of bytes is surely allowed from a config: the few configs that they lead to lead nowhere else."""
    cdef int32_t[CLOSED] seen
    cdef int32_t *row
    cdef int32_t follow
    cdef int n = 1, i = 0, j, b
    if config == proof.config and (kinds & ~proof.kinds) == 0:
        return 1
    if kinds >> 5 & 1 or (config == proof.refuted and (proof.too_many & ~kinds) == 0):
        return 0
    seen[0] = config
    while i < n:
        row = machine.row(seen[i])
        i += 1
        for b in range(128):
            if not kinds >> KIND[b] & 1:
                continue
            follow = row[b]
            for j in range(n):
                if seen[j] == follow:
                    break
            else:
                if follow == 0 or n == CLOSED:
                    proof.refuted, proof.too_many = config, kinds
                    return 0
                seen[n] = follow
                n += 1
    proof.config, proof.kinds = config, kinds
    return 1


cdef class TokenTrie:
    """A vocabulary's tokens as tries: `vocab_bytes[id]` are a token's bytes, None (or empty) for one that no text reaches."""

    def __cinit__(self, list vocab_bytes not None):
        cdef Py_ssize_t i, k, chars
        cdef uint8_t state
        cdef const uint8_t[::1] data
        cdef uint8_t[:, ::1] steps
        table = np.full((8, 256), 255, np.uint8)
        for s in range(8):
            for b in range(256):
                step = plain_step(s, b)
                if step >= 0:
                    table[s, b] = step
        steps = table
        self.vocab = len(vocab_bytes)
        self.words = (self.vocab + 31) // 32
        # the plain tokens, then those of at most 1, 2, ... COUNTED characters
        self.plain_mask = <uint32_t *>calloc((COUNTED + 1) * self.words + 1, sizeof(uint32_t))
        if self.plain_mask == NULL:
            raise MemoryError()
        plain, rest = [], []
        for i in range(self.vocab):
            piece = vocab_bytes[i]
            if not piece:
                continue
            data = piece
            self.longest = max(self.longest, len(piece))
            state = 0
            chars = 0
            for k in range(data.shape[0]):
                chars += state == 0
                state = steps[state, data[k]]
                if state == 255:
                    break
            if state == 255:
                rest.append((piece, i))
            else:
                plain.append((piece, i))
                set_bit(self.plain_mask, <int32_t>i)
                for k in range(chars, COUNTED + 1):
                    set_bit(self.plain_mask + k * self.words, <int32_t>i)
        plain.sort()
        rest.sort()
        grow_tree(&self.plain, plain, steps)
        grow_tree(&self.rest, rest, steps)

    def __dealloc__(self):
        drop_tree(&self.plain)
        drop_tree(&self.rest)
        free(self.plain_mask)

    cdef int _choose(self, Machine machine, int32_t config) except -1:
        """0: walk the plain trie setting bits; 1: walk it clearing them (most of it is covered); 2: it is covered whole;
        2 + n: exactly its tokens of up to n characters are allowed."""
        cdef int32_t cover = covers(machine, config, 0)
        cdef int32_t *row
        cdef int32_t follow
        cdef Tree *t = &self.plain
        cdef Py_ssize_t node = 0, covered = 0
        cdef int32_t deepest = 0
        while node < t.nodes:
            deepest = max(deepest, t.chars[node] + 1)
            node = t.skip[node]
        if cover >= deepest:
            return 2
        if 0 < cover <= COUNTED:
            cover = exact_cover(machine, config)
            if 0 < cover <= COUNTED:
                return 2 + cover
        row = machine.row(config)
        node = 0
        while node < t.nodes:
            follow = row[t.byte[node]]
            if follow and covers(machine, follow, t.u8[node]) >= min(t.chars[node], 8):
                covered += t.first[t.skip[node]] - t.first[node]
            node = t.skip[node]
        return 1 if 2 * covered > t.token_count else 0

    cdef int _walk(self, Tree *t, Machine machine, int32_t config, int32_t **rows, uint32_t *mask, bint covered, bint optimistic) except -1:
        """One walk; `rows` is room for the rows of a path, `covered` allows taking subtrees whole, `optimistic` means that bits are set
        already and only dead ones matter."""
        cdef Py_ssize_t i = 0, k
        cdef int32_t d, follow
        cdef int32_t last_follow = -1, last_u8 = -1, last_cover = 0
        cdef Proof proof
        proof.config = proof.refuted = -1
        if t.nodes == 0:
            return 0
        rows[0] = machine.row(config)
        while i < t.nodes:
            d = t.depth[i]
            follow = rows[d - 1][t.byte[i]]
            if follow == 0:
                if optimistic:
                    for k in range(t.first[i], t.first[t.skip[i]]):
                        clear_bit(mask, t.tokens[k])
                i = t.skip[i]
                continue
            if t.skip[i] > i + 1:
                if covered:
                    if follow != last_follow or t.u8[i] != last_u8:
                        last_follow, last_u8 = follow, t.u8[i]
                        last_cover = covers(machine, follow, t.u8[i])
                    if last_cover >= t.chars[i] and last_cover:
                        if not optimistic:
                            for k in range(t.first[i], t.first[t.skip[i]]):
                                set_bit(mask, t.tokens[k])
                        i = t.skip[i]
                        continue
                rows[d] = machine.row(follow)
                if t.skip[i] > i + WORTH and rows[d][t.byte[i + 1]] and closed(machine, follow, t.below[i], &proof):
                    if not optimistic:
                        for k in range(t.first[i], t.first[t.skip[i]]):
                            set_bit(mask, t.tokens[k])
                    i = t.skip[i]
                    continue
                if not optimistic:
                    for k in range(t.first[i], t.first[i + 1]):
                        set_bit(mask, t.tokens[k])
            elif not optimistic:
                for k in range(t.first[i], t.first[i + 1]):
                    set_bit(mask, t.tokens[k])
            i += 1
        return 0

    def fill(self, Cursor cursor not None, uint32_t[::1] mask not None):
        """Writes the tokens whose bytes may come next at the cursor: bit t of the mask is set exactly if token t is allowed."""
        cdef int32_t config
        cdef int32_t **rows
        cdef int how
        cdef Machine machine = cursor.machine
        if mask.shape[0] != self.words:
            raise GrammarError(f"mask: has {mask.shape[0]} words, the vocabulary of {self.vocab} needs {self.words}")
        with cython.critical_section(machine), machine.turn:
            begin_operation(machine)
            config = machine.frozen(cursor.config(), <int32_t>self.longest)
            if self.words == 0:
                return
            memset(&mask[0], 0, self.words * sizeof(uint32_t))
            if config == 0:
                return
            rows = <int32_t **>malloc((self.longest + 2) * sizeof(int32_t *))
            if rows == NULL:
                raise MemoryError()
            machine.spent, machine.budget = 0, STEPS * machine.max_items
            try:
                how = self._choose(machine, config) if self.plain.nodes else 0
                if how:
                    memcpy(&mask[0], self.plain_mask + max(how - 2, 0) * self.words, self.words * sizeof(uint32_t))
                if how < 2:
                    self._walk(&self.plain, machine, config, rows, &mask[0], True, how == 1)
                self._walk(&self.rest, machine, config, rows, &mask[0], False, False)
            finally:
                machine.budget = 0
                free(rows)

    def position(self, Cursor cursor not None):
        """(epoch, config): equal for cursors to which `fill` gives the same."""
        with cython.critical_section(cursor.machine), cursor.machine.turn:
            begin_operation(cursor.machine)
            return cursor.machine.epoch, cursor.machine.frozen(cursor.config(), <int32_t>self.longest)

    def sizes(self):
        """Tokens and nodes of the two tries, for tests and reports."""
        return {"plain_tokens": self.plain.token_count, "plain_nodes": self.plain.nodes, "rest_tokens": self.rest.token_count,
                "rest_nodes": self.rest.nodes, "longest": self.longest}


def apply_bits(float[::1] logits not None, const uint32_t[::1] mask not None):
    """Sets logits of tokens whose bit is clear to minus infinity, in place; returns how many tokens stay allowed."""
    cdef Py_ssize_t i, n = logits.shape[0], kept = 0
    cdef float lost = -float("inf")
    if 32 * mask.shape[0] < n:
        raise GrammarError(f"mask: has {32 * mask.shape[0]} bits, {n} logits need as many")
    with nogil:
        for i in range(n):
            if (mask[i >> 5] >> (i & 31)) & 1:
                kept += 1
            else:
                logits[i] = lost
    return kept
