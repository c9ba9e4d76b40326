"""Token tries: from a grammar position to the bitset of tokens that may come next.

The vocabulary is kept as two preorder tries in flat arrays: `plain` holds the tokens made of plain JSON string characters (UTF-8, no
quote, backslash or control; a cut last character is fine), `rest` all others. A mask is one walk of each, stepping the pushdown machine's
memoised rows and leaving a subtree at its first dead byte, or taking it whole where every text of its kinds of bytes is allowed (`closed`:
letters inside `[a-z]+`). In the plain trie a subtree is taken whole where the machine proves that the
position allows any plain text of that length (cover.pyx); if that holds for most of the trie the walk starts from the full plain
mask and only clears what turns out dead, so the inside of a string costs a copy and not a hundred thousand steps.
"""
cimport cython
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from cpython.bytes cimport PyBytes_AsString

import numpy as np

from oxillama._core.cover cimport cover as covers, exact_cover
from oxillama._core.cursor cimport Cursor, begin_operation
from oxillama._core.pushdown cimport HORIZONS, LENGTHS, Machine
from oxillama._core.sequences cimport drop, put

from oxillama._core.cover import plain_step
from oxillama.errors import GrammarError


cdef enum:
    COUNTED = 48           # plain tokens of up to so many characters stand in a table by length, longer ones in a list
    CLOSED = 64            # positions followed to prove that a subtree is allowed whole
    RUN = 48               # and so many where all texts of a length lead to the same one
    PATIENCE = 128         # positions looked at in vain, in one walk, before it goes on without
    CONTINUED = 5          # the kind of bytes that begin no character
    LEADS = 43             # and from here on those of bytes that begin one beyond ASCII
    OTHER_LEADS = 48
    LOOKS = 192            # positions looked at to prove how much plain text may follow, in one mask
    STEPS = 150            # merged stacks for a mask, per alternative that may be followed at once
    WORTH = 12             # tokens of a subtree that make the proof worth its time

# Bytes by kind: what grammars tell apart mostly goes by these. ASCII signs are each a kind of their own, and so are the bytes that begin what
# \s or a dot tells apart: U+00A0, U+1680, U+2028, U+3000, U+FEFF.
cdef uint8_t[256] KIND
for _b in range(256):
    KIND[_b] = (0 if 0x30 <= _b <= 0x39 else 1 if 0x61 <= _b <= 0x66 else 2 if 0x67 <= _b <= 0x7A else 3 if 0x41 <= _b <= 0x46
                else 4 if 0x47 <= _b <= 0x5A else LEADS + b"\xC2\xE1\xE2\xE3\xEF".index(_b) if _b in b"\xC2\xE1\xE2\xE3\xEF"
                else OTHER_LEADS if 0xC3 <= _b <= 0xF4 else CONTINUED if _b >= 0x80 else 6 if _b < 0x20 and _b not in (9, 10, 13) or _b == 0x7F
                else 7 + [*b" \t\n\r!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"].index(_b))
cdef uint64_t MULTIBYTE = <uint64_t>1 << CONTINUED
for _i in range(LEADS, OTHER_LEADS + 1):
    MULTIBYTE |= <uint64_t>1 << _i
cdef uint8_t[128] BY_KIND      # ASCII, kind by kind: neighbours often lead to the same position
for _i, _b in enumerate(sorted(range(128), key=lambda b: KIND[b])):
    BY_KIND[_i] = _b
cdef uint8_t[8][256] PLAIN_STEPS     # the plain automaton as a table (255 = none)
for _i in range(8):
    for _b in range(256):
        PLAIN_STEPS[_i][_b] = plain_step(_i, _b) % 256


# Up to how many bytes the tokens of a part have; those of the last have more.
cdef int32_t[LENGTHS - 1] LIMITS
LIMITS[0], LIMITS[1], LIMITS[2], LIMITS[3] = 4, 8, 16, 32
# Within how many bytes no count may come to a bound where it stands still: the same for all vocabularies, which share machines. Those of
# the parts are among them.
cdef int32_t[HORIZONS] REACHES
for _i, _b in enumerate((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 80, 128, 256, 1024, 0xFFFF)):
    REACHES[_i] = _b
cdef int[LENGTHS - 1] PART
PART[0], PART[1], PART[2], PART[3] = 3, 5, 7, 9


cdef void drop_tree(Tree *t) noexcept:
    free(t.at)
    free(t.kids)
    free(t.kid_bytes)
    free(t.tokens)
    free(t.sizes)


cdef int open_tree(Tree *t, Py_ssize_t nodes, Py_ssize_t tokens) except -1:
    """Room for so many nodes and tokens; `drop_tree` frees it."""
    memset(t, 0, sizeof(Tree))
    t.at = <Node *>calloc(nodes + 1, sizeof(Node))
    t.tokens = <int32_t *>malloc((tokens + 1) * sizeof(int32_t))
    t.sizes = <int32_t *>malloc((tokens + 1) * sizeof(int32_t))
    if t.at == NULL or t.tokens == NULL or t.sizes == NULL:
        raise MemoryError()
    return 0


cdef void look_below(Tree *t) noexcept:
    """Per node the deepest count of plain characters that start below it (at nodes whose parent is between characters), the kinds of
    bytes that occur there, and the bytes of the longest token; children first."""
    cdef Py_ssize_t i
    cdef Node *node
    cdef Node *child
    cdef uint16_t own
    for i in range(t.nodes - 1, -1, -1):
        node = t.at + i
        child = node + 1
        node.reach = node.depth
        while child < t.at + node.skip:
            node.reach = max(node.reach, child.reach)
            own = child.chars + (1 if node.u8 == 0 else 0)
            node.chars = max(node.chars, own)
            node.below |= child.below | (<uint64_t>1 << KIND[child.byte])
            child = t.at + child.skip


cdef int32_t list_children(Tree *t, Py_ssize_t child, Py_ssize_t end, int32_t k) noexcept:
    """Writes the list of the siblings from a child to the node outside, from entry k on; returns the entry behind it."""
    while child < end:
        t.kids[k], t.kid_bytes[k] = <int32_t>child, t.at[child].byte
        child = t.at[child].skip
        k += 1
    t.kids[k] = ~<int32_t>end
    return k + 1


cdef int list_tops(Tree *t) except -1:
    """Lists the nodes of the first and of the second bytes."""
    cdef int32_t k = 0, i = 0, size = 257 * 257
    t.kids = <int32_t *>malloc(size * sizeof(int32_t))
    t.kid_bytes = <uint8_t *>malloc(size)
    if t.kids == NULL or t.kid_bytes == NULL:
        raise MemoryError()
    k = list_children(t, 0, t.nodes, 0)
    while t.kids[i] >= 0:
        t.deepest = max(t.deepest, t.at[t.kids[i]].chars + 1)
        t.seconds[i] = k
        k = list_children(t, t.kids[i] + 1, t.at[t.kids[i]].skip, k)
        i += 1
    return 0


cdef int grow_tree(Tree *t, list vocab_bytes, list tokens, uint8_t[:, ::1] steps) except -1:
    """Builds the preorder nodes of tokens, given in the order of their bytes; `steps` is the plain automaton as a table (255 = none)."""
    cdef Py_ssize_t i, n, common, total = 0, longest = 0, node = -1, last = 0      # last: how many nodes of the last token's path are open
    cdef const uint8_t *now
    cdef const uint8_t *before = NULL
    cdef int32_t *open_nodes
    cdef Node *smaller
    cdef uint8_t state
    for token in tokens:
        n = len(<bytes>vocab_bytes[token])
        total += n
        longest = max(longest, n)
    open_tree(t, total + 1, len(tokens))
    open_nodes = <int32_t *>malloc((longest + 2) * sizeof(int32_t))
    if open_nodes == NULL:
        raise MemoryError()
    try:
        for token in tokens:
            now, n = <const uint8_t *>PyBytes_AsString(<bytes>vocab_bytes[token]), len(<bytes>vocab_bytes[token])
            common = 0
            while common < last and common < n and now[common] == before[common]:
                common += 1
            while last > common:
                last -= 1
                t.at[open_nodes[last]].skip = <int32_t>(node + 1)
            for i in range(common, n):
                node += 1
                state = t.at[open_nodes[i - 1]].u8 if i else 0
                t.at[node].byte = now[i]
                t.at[node].u8 = steps[state, now[i]] if state < 8 else 255
                t.at[node].depth = <uint16_t>(i + 1)
                t.at[node].first = <int32_t>t.token_count
                open_nodes[i] = <int32_t>node
            last = n
            t.tokens[t.token_count] = token
            t.sizes[t.token_count] = <int32_t>n
            t.token_count += 1
            before = now
        while last > 0:
            last -= 1
            t.at[open_nodes[last]].skip = <int32_t>(node + 1)
        t.nodes = node + 1
        t.at[t.nodes].first = <int32_t>t.token_count
        smaller = <Node *>realloc(t.at, (t.nodes + 1) * sizeof(Node))
        t.at = smaller if smaller != NULL else t.at
        look_below(t)
        list_tops(t)
    finally:
        free(open_nodes)
    return 0


cdef inline void set_bit(uint32_t *mask, int32_t token) noexcept:
    mask[token >> 5] |= <uint32_t>1 << (token & 31)


cdef inline void clear_bit(uint32_t *mask, int32_t token) noexcept:
    mask[token >> 5] &= ~(<uint32_t>1 << (token & 31))


cdef inline void set_tokens(uint32_t *mask, Tree *t, int32_t first, int32_t end, Walk *walk) noexcept:
    """Sets tokens of a range, those of the lengths asked for."""
    cdef int32_t k
    for k in range(first, end):
        if walk.shorter < t.sizes[k] <= walk.longest:
            set_bit(mask, t.tokens[k])


cdef int refuted(Walk *walk, int32_t config, uint64_t kinds, int32_t bytes_, Proof *proof, int looked_at) noexcept:
    """Notes a proof that failed."""
    proof.refuted, proof.too_many, proof.too_long = config, kinds, bytes_
    walk.patience = max(walk.patience - looked_at, 0)
    return 0


cdef int32_t home(Machine machine, int32_t config, uint8_t u8) except -1:
    """The config to which everything leads that ends a character begun before this one; 0 where these are several, or some are dead."""
    cdef int32_t *row
    cdef int32_t follow, last = 0, found = 0, one = 0
    cdef uint8_t step, last_step = 0
    cdef int b
    if u8 == 0:
        return config
    if config < machine.c_home.n and machine.c_home.data[config] & 7 == u8:
        return machine.c_home.data[config] >> 3
    row = machine.row(config)
    for b in range(0x80, 0xC0):
        step = PLAIN_STEPS[u8][b]
        follow = row[b]
        if step == 255 or (follow == last and step == last_step and last):
            continue
        last, last_step = follow, step
        one = home(machine, follow, step) if follow else 0
        if one == 0 or (found and found != one):
            found = 0
            break
        found = one
    while machine.c_home.n <= config:
        put(&machine.c_home, 0)
    if found < 1 << 28:
        machine.c_home.data[config] = found << 3 | u8
    return found


cdef bint loops(Machine machine, int32_t config, uint64_t kinds) except -1:
    """Whether a config comes back to itself after each character of these kinds."""
    cdef int32_t *row
    cdef uint64_t back = <uint64_t>0xFFFFFFFFFFFFFFFF
    cdef Py_ssize_t at = 3 * <Py_ssize_t>config
    cdef int b
    while machine.c_loops.n <= at + 2:
        put(&machine.c_loops, 0)
    if machine.c_loops.data[at] & 1:
        back = <uint64_t><uint32_t>machine.c_loops.data[at + 1] | <uint64_t><uint32_t>machine.c_loops.data[at + 2] << 32
    else:
        row = machine.row(config)
        for b in range(128):
            if row[b] != config:
                back &= ~(<uint64_t>1 << KIND[b])
        machine.c_loops.data[at] = 1
    if kinds & ~back:
        machine.c_loops.data[at + 1], machine.c_loops.data[at + 2] = <int32_t>back, <int32_t>(back >> 32)
        return False
    if kinds & MULTIBYTE and not machine.c_loops.data[at] & 2:
        row = machine.row(config)
        for b in range(0xC2, 0xF5):
            if back >> KIND[b] & 1 and (row[b] == 0 or home(machine, row[b], PLAIN_STEPS[0][b]) != config):
                back &= ~(<uint64_t>1 << KIND[b])
        machine.c_loops.data[at] = 3
    machine.c_loops.data[at + 1], machine.c_loops.data[at + 2] = <int32_t>back, <int32_t>(back >> 32)
    return kinds & ~back == 0


cdef int32_t run(Machine machine, int32_t config, uint64_t kinds, uint8_t byte, int32_t most) except -2:
    """The number n such that of the texts of up to `most` bytes of these kinds (of ASCII alone) exactly those of up to n are allowed from a
    config, because all of the same length lead to the same one; -1 if not proved. `byte` is of these kinds."""
    cdef int32_t *row
    cdef int32_t follow, n = 0
    cdef uint64_t same
    cdef Py_ssize_t at
    cdef int b
    if kinds & MULTIBYTE or most > RUN:
        return -1
    while n < most:
        at = 3 * <Py_ssize_t>config
        while machine.c_next.n <= at + 2:
            put(&machine.c_next, -1)
        row = machine.row(config)
        follow = row[byte]
        if machine.c_next.data[at] == follow:
            same = <uint64_t><uint32_t>machine.c_next.data[at + 1] | <uint64_t><uint32_t>machine.c_next.data[at + 2] << 32
        else:
            same = <uint64_t>0xFFFFFFFFFFFFFFFF
            for b in range(128):
                if row[b] != follow:
                    same &= ~(<uint64_t>1 << KIND[b])
            machine.c_next.data[at], machine.c_next.data[at + 1], machine.c_next.data[at + 2] = follow, <int32_t>same, <int32_t>(same >> 32)
        if kinds & ~same:
            return -1
        if follow == 0:
            return n
        if follow == config:
            return most
        config = follow
        n += 1
    return most


cdef bint stays(Machine machine, int32_t config, uint8_t u8, uint64_t kinds, uint8_t byte, bint plain) except -1:
    """Whether every text of these kinds, of which one begins with `byte`, leads from a config to one alone, which is hence allowed at any
    length. `plain`: bytes beyond ASCII are those of characters, whose automaton is at u8."""
    cdef int32_t *row
    if u8 == 0 or not plain:
        if kinds & MULTIBYTE and not plain:
            return False
        row = machine.row(config)
        if row[byte] != config and (byte < 0x80 or row[byte] == 0 or home(machine, row[byte], PLAIN_STEPS[0][byte]) != config):
            return False
        return loops(machine, config, kinds)
    config = home(machine, config, u8)
    if config == 0:
        return False
    kinds &= ~(<uint64_t>1 << CONTINUED)
    return kinds == 0 or loops(machine, config, kinds)


cdef int closed(Machine machine, int32_t config, bint whole, uint64_t kinds, int32_t bytes_, Proof *proof, Walk *walk) except -1:
    """Whether every text of these kinds of bytes, and up to so many, is surely allowed from a config: the few configs that they lead to
    lead nowhere else. Bytes beyond ASCII are those of characters, which are `whole` up to here; else nothing is known of them."""
    cdef int32_t[CLOSED] seen, at
    cdef uint8_t[CLOSED] u8
    cdef int32_t *row
    cdef int32_t follow, last = -1
    cdef uint64_t beyond = kinds & MULTIBYTE
    cdef uint8_t step
    cdef int n = 1, i = 0, j, k, b
    if config == proof.config and (kinds & ~proof.kinds) == 0 and bytes_ <= proof.bytes:
        return 1
    if (beyond and (not whole)) or (config == proof.refuted and (proof.too_many & ~kinds) == 0 and bytes_ >= proof.too_long):
        return 0
    seen[0], at[0], u8[0] = config, 0, 0
    while i < n and at[i] < bytes_:
        row = machine.row(seen[i])
        for k in range(128 if u8[i] == 0 else 0):
            b = BY_KIND[k]
            follow = row[b]
            if follow == last or not kinds >> KIND[b] & 1:
                continue
            last = follow
            for j in range(n):
                if seen[j] == follow and u8[j] == 0:
                    break
            else:
                if follow == 0 or n == CLOSED:
                    return refuted(walk, config, kinds, bytes_, proof, n if n == CLOSED else i if beyond else 0)
                seen[n], at[n], u8[n] = follow, at[i] + 1, 0
                n += 1
        for b in range(128, 256 if beyond else 128):
            step = PLAIN_STEPS[u8[i]][b]
            if step == 255 or (u8[i] == 0 and not kinds >> KIND[b] & 1):
                continue
            follow = row[b]
            for j in range(n):
                if seen[j] == follow and u8[j] == step:
                    break
            else:
                if follow == 0 or n == CLOSED:
                    return refuted(walk, config, kinds, bytes_, proof, n if n == CLOSED else i if beyond else 0)
                seen[n], at[n], u8[n] = follow, at[i] + 1, step
                n += 1
        i += 1
    proof.config, proof.kinds, proof.bytes = config, kinds, bytes_
    return 1


cdef class TokenTrie:
    """A vocabulary's tokens as tries: `vocab_bytes[id]` are a token's bytes, None (or empty) for one that no text reaches."""

    def __cinit__(self, list vocab_bytes not None):
        cdef Py_ssize_t i, k, chars
        cdef uint8_t state
        cdef const uint8_t *data
        cdef Py_ssize_t n
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
        self.longest = max([len(piece) for piece in vocab_bytes if piece], default=0)
        if self.longest > 0xFFFF:
            raise GrammarError(f"vocabulary: found a token of {self.longest} bytes, wanted at most {0xFFFF}")
        self.plain_mask = <uint32_t *>calloc((COUNTED + 1) * self.words + 1, sizeof(uint32_t))
        self.sized_mask = <uint32_t *>calloc(LENGTHS * self.words + 1, sizeof(uint32_t))
        if self.plain_mask == NULL or self.sized_mask == NULL:
            raise MemoryError()
        for i in range(LENGTHS):
            self.bounds[i + 1] = <int32_t>(min(LIMITS[i], self.longest) if i < LENGTHS - 1 else self.longest)
        while REACHES[self.farthest] < self.longest:
            self.farthest += 1
        plain, rest, long_plain = [], [], []
        for i in sorted([i for i in range(self.vocab) if vocab_bytes[i]], key=vocab_bytes.__getitem__):
            piece = <bytes>vocab_bytes[i]
            data, n = <const uint8_t *>PyBytes_AsString(piece), len(piece)
            for k in range(LENGTHS):
                if self.bounds[k] < n <= self.bounds[k + 1]:
                    set_bit(self.sized_mask + k * self.words, <int32_t>i)
            state = 0
            chars = 0
            for k in range(n):
                chars += state == 0
                state = steps[state, data[k]]
                if state == 255:
                    break
            if state == 255:
                rest.append(i)
                continue
            plain.append(i)
            set_bit(self.plain_mask, <int32_t>i)
            if chars > COUNTED:
                long_plain.append((chars, i))
            else:
                set_bit(self.plain_mask + chars * self.words, <int32_t>i)
        for i in range(2 * self.words, (COUNTED + 1) * self.words):     # of so many characters, or fewer
            self.plain_mask[i] |= self.plain_mask[i - self.words]
        for found in sorted(long_plain):
            put(&self.long_plain, found[0])
            put(&self.long_plain, found[1])
        grow_tree(&self.plain, vocab_bytes, plain, steps)
        grow_tree(&self.rest, vocab_bytes, rest, steps)

    def __dealloc__(self):
        drop_tree(&self.plain)
        drop_tree(&self.rest)
        free(self.plain_mask)
        free(self.sized_mask)
        drop(&self.long_plain)

    cdef int _choose(self, Machine machine, int32_t config, int32_t longest) except -1:
        """0: walk the plain trie setting bits; 1: walk it clearing them (most of it is covered); 2: it is covered whole;
        2 + n: exactly its tokens of up to n characters are allowed. Tokens of up to `longest` bytes are asked for."""
        cdef int32_t cover = covers(machine, config, 0, True)
        cdef int32_t *row
        cdef int32_t follow
        cdef Tree *t = &self.plain
        cdef Node *node
        cdef Py_ssize_t k = 0, covered = 0
        if cover >= min(t.deepest, longest):
            return 2
        if cover > 0:
            cover = exact_cover(machine, config)
            if cover > 0:
                return 2 + cover
        row = machine.row(config)
        while t.kids[k] >= 0:
            follow = row[t.kid_bytes[k]]
            if follow:
                node = t.at + t.kids[k]
                if covers(machine, follow, node.u8, False) >= min(node.chars, 8):
                    covered += t.at[node.skip].first - node.first
            k += 1
        return 1 if 2 * covered > t.token_count else 0

    cdef int _walk(self, Tree *t, Machine machine, int32_t config, Walk *walk, uint32_t *mask, bint covered, bint optimistic) except -1:
        """One walk; `covered` allows taking subtrees whole, `optimistic` means that bits are set already and only dead ones matter."""
        cdef int32_t d, follow, end, longest = walk.longest, k
        cdef int32_t[3] kid                   # the children that come next in the lists of the first and second bytes
        cdef int32_t last_follow = -1, last_u8 = -1, last_cover = 0, last_many = 0, many, last, standing
        cdef bint still = machine.still
        cdef int32_t **rows = walk.rows
        cdef Node *node = t.at
        cdef Node *stop = t.at + t.nodes
        cdef Node *beyond
        if t.nodes == 0:
            return 0
        rows[0] = machine.row(config)
        walk.still[0] = still
        kid[1] = 0
        memset(walk.proofs, 0xFF, (longest + 1) * sizeof(Proof))      # of no config
        while node < stop:
            machine.walked += 1
            d = node.depth
            if d <= 2 and not optimistic:
                k = kid[d]
                while t.kids[k] >= 0 and rows[d - 1][t.kid_bytes[k]] == 0:
                    k += 1
                if t.kids[k] < 0:
                    node = t.at + ~t.kids[k]
                    continue
                node = t.at + t.kids[k]
                kid[d] = k + 1
                if d == 1:
                    kid[2] = t.seconds[k]
            beyond = t.at + node.skip
            if d > longest or node.reach <= walk.shorter:
                node = beyond
                continue
            follow = rows[d - 1][node.byte]
            if follow == 0:
                if optimistic:
                    for d in range(node.first, beyond.first):
                        clear_bit(mask, t.tokens[d])
                node = beyond
                continue
            end = (node + 1).first
            if d < longest and beyond > node + 1:
                many = beyond.first - node.first > WORTH
                walk.still[d] = machine.still = walk.still[d - 1]
                if many and machine.counting:
                    # no count comes to a bound below this node that is farther than its longest token
                    k = 0
                    while REACHES[k] < min(<int32_t>node.reach, longest) - d:
                        k += 1
                    standing = machine.frozen(follow, k, REACHES[k])
                    walk.still[d] = machine.still = machine.still or standing != follow
                    follow = standing
                if covered:
                    if follow != last_follow or node.u8 != last_u8 or many > last_many:
                        last_follow, last_u8, last_many = follow, node.u8, many
                        last_cover = covers(machine, follow, node.u8, many)
                    if last_cover and last_cover >= min(<int32_t>node.chars, longest - d):
                        if not optimistic:
                            set_tokens(mask, t, node.first, beyond.first, walk)
                        node = beyond
                        continue
                rows[d] = machine.row(follow)
                last = run(machine, follow, node.below, (node + 1).byte, min(<int32_t>node.reach, longest) - d) if many else -1
                if last >= 0:
                    for k in range(node.first, beyond.first):
                        if optimistic:
                            if t.sizes[k] > d + last:
                                clear_bit(mask, t.tokens[k])
                        elif walk.shorter < t.sizes[k] <= min(longest, d + last):
                            set_bit(mask, t.tokens[k])
                    node = beyond
                    continue
                if (many or node.u8 == 0) and stays(machine, follow, node.u8, node.below, (node + 1).byte, covered) or (
                        many and walk.patience and (machine.still or not walk.apart) and rows[d][(node + 1).byte]
                        and closed(machine, follow, covered and node.u8 == 0, node.below, min(<int32_t>node.reach, longest) - d,
                                   &walk.proofs[d], walk)):
                    if not optimistic:
                        set_tokens(mask, t, node.first, beyond.first, walk)
                    node = beyond
                    continue
            if not optimistic:
                set_tokens(mask, t, node.first, end, walk)
            node += 1
        machine.still = still
        return 0

    cdef int _fill_part(self, Machine machine, int32_t config, int low, int high, uint32_t *mask) except -1:
        """Sets in an empty mask the tokens of parts `low` to `high` - 1 that may come next at a config."""
        cdef Walk walk
        cdef int how
        cdef Py_ssize_t i, k
        cdef uint32_t sized
        walk.shorter, walk.longest = self.bounds[low], self.bounds[high]
        walk.patience = PATIENCE
        walk.apart = not machine.still and (low > 0 or high < LENGTHS)
        walk.rows = <int32_t **>malloc((walk.longest + 1) * sizeof(int32_t *))
        walk.proofs = <Proof *>malloc((walk.longest + 1) * sizeof(Proof))
        walk.still = <uint8_t *>malloc(walk.longest + 1)
        try:
            if walk.rows == NULL or walk.proofs == NULL or walk.still == NULL:
                raise MemoryError()
            how = self._choose(machine, config, walk.longest) if self.plain.nodes else 0
            if how:
                memcpy(mask, self.plain_mask + min(max(how - 2, 0), COUNTED) * self.words, self.words * sizeof(uint32_t))
                for i in range(0, self.long_plain.n, 2):
                    if self.long_plain.data[i] > how - 2:
                        break
                    set_bit(mask, self.long_plain.data[i + 1])
                for i in range(self.words if low > 0 or high < LENGTHS else 0):
                    sized = 0
                    for k in range(low, high):
                        sized |= self.sized_mask[k * self.words + i]
                    mask[i] &= sized
            if how < 2:
                self._walk(&self.plain, machine, config, &walk, mask, True, how == 1)
            self._walk(&self.rest, machine, config, &walk, mask, False, False)
        finally:
            free(walk.rows)
            free(walk.proofs)
            free(walk.still)
        return 0

    cdef tuple _parts(self, Machine machine, int32_t config):
        """(config, first part, behind the last part) triples, flat: where a count comes near a bound within longer tokens only, a config
        in which it stands still answers for the shorter ones."""
        cdef int32_t[LENGTHS] frozen
        cdef int k, at, low = 0
        cdef list found = []
        if not machine.counting:
            return (config,)
        for k in range(LENGTHS):
            at = PART[k] if k < LENGTHS - 1 else self.farthest
            frozen[k] = machine.frozen(config, at, REACHES[at])
        for k in range(1, LENGTHS + 1):
            if k == LENGTHS or (frozen[k] != frozen[low] and self.bounds[k] < self.bounds[k + 1]):
                if low == 0 and k == LENGTHS:
                    return (frozen[0],)
                found += (frozen[low], low, k)
                low = k
        return tuple(found)

    def fill(self, Cursor cursor not None, uint32_t[::1] mask not None, known=None):
        """Writes the tokens whose bytes may come next at the cursor: bit t of the mask is set exactly if token t is allowed. `known` may
        keep what was found for some of the tokens, by `get(key)` and `put(key, mask)`. Returns `position`."""
        cdef Machine machine = cursor.machine
        if mask.shape[0] != self.words:
            raise GrammarError(f"mask: has {mask.shape[0]} words, the vocabulary of {self.vocab} needs {self.words}")
        with cython.critical_section(machine), machine.turn:
            begin_operation(machine)
            parts = self._parts(machine, cursor.config())
            if self.words:
                memset(&mask[0], 0, self.words * sizeof(uint32_t))
                machine.patience, machine.walked = LOOKS, 0
                machine.spent, machine.budget = 0, STEPS * machine.max_items
                try:
                    self._fill_parts(machine, cursor.config(), parts, &mask[0], known)
                finally:
                    machine.budget = 0
            return machine.epoch, *parts

    cdef int _fill_parts(self, Machine machine, int32_t config, tuple parts, uint32_t *mask, known) except -1:
        """Sets in an empty mask what each of the parts allows: the longest tokens first, for which no count may stand still."""
        cdef Py_ssize_t i, k
        cdef uint32_t[::1] fresh
        cdef const uint32_t[::1] part
        cdef const uint32_t *bits
        if len(parts) == 1:
            machine.still = parts[0] != config
            return self._fill_part(machine, parts[0], 0, LENGTHS, mask) if config else 0
        for i in range(len(parts) - 3, -1, -3):
            machine.still = parts[i] != config
            if not machine.still:                     # where no count stands still, nobody asks again
                self._fill_part(machine, config, parts[i + 1], parts[i + 2], mask)
                continue
            key = (machine.serial, machine.epoch, *parts[i:i + 3])
            found = known.get(key) if known is not None else None
            if found is None:
                found = np.zeros(self.words, np.uint32)
                fresh = found
                self._fill_part(machine, parts[i], parts[i + 1], parts[i + 2], &fresh[0])
                if known is not None:
                    known.put(key, found)
            part = found
            bits = &part[0]
            for k in range(self.words):
                mask[k] |= bits[k]
        return 0

    def position(self, Cursor cursor not None):
        """(epoch, config ...): equal for cursors to which `fill` gives the same."""
        with cython.critical_section(cursor.machine), cursor.machine.turn:
            begin_operation(cursor.machine)
            return cursor.machine.epoch, *self._parts(cursor.machine, cursor.config())

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
