"""Finite automata as tables: subset construction, products, trimming, the smallest equal automaton, and the lengths of its texts.

A table is int32 (states, symbols): the next state, -1 where there is none; `accepts` is uint8 per state. What the symbols mean is the
caller's (`oxillama.grammar.regular`: ranges of code points). Everything is bounded: `limit` states, and `GrammarError` beyond.
"""
from cpython.bytearray cimport PyByteArray_AsString
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcpy, memset

import numpy as np

from oxillama._core.sequences cimport Ints, Sequences, ascending, close_sequences, drop, find, intern, open_sequences, put, reserve

from oxillama.errors import GrammarError

cdef enum:
    FAR = 0x7FFFFFFF
    PAUSE = 1 << 21         # units of work, some milliseconds, after which other threads have a turn
    ALONE = 0, WITHIN, BESIDE  # how states are closed over, see `Subsets.close`
    AT_ONCE = 1 << 20       # moves of one state that are sorted by symbol at once

UNREACHABLE = FAR


cdef object table_of(Ints *flat, Py_ssize_t states, Py_ssize_t width):
    out = np.empty((states, width), np.int32)
    cdef int32_t[:, ::1] view = out
    if states and width:
        memcpy(&view[0, 0], flat.data, states * width * sizeof(int32_t))
    return out


cdef object live_part(const int32_t *flat, const uint8_t *accepts, Py_ssize_t states, Py_ssize_t width, Py_ssize_t start):
    """(table, accepts, start) of the states from which something can be accepted, in their order; None if that is not so of the start."""
    cdef int32_t *place = <int32_t *>calloc(2 * states + 2, sizeof(int32_t))   # per state: 1 where it is live, then its number
    cdef int32_t *first = NULL                  # the moves to state t come from into[first[t]:first[t + 1]]
    cdef int32_t *into = NULL
    cdef int32_t *todo
    cdef Py_ssize_t s, k, n = 0, at = 0, moves = 0
    cdef int32_t t
    cdef uint8_t[::1] accepting
    cdef int32_t[:, ::1] view
    if place == NULL:
        raise MemoryError()
    todo = place + states + 1
    try:
        for s in range(states):
            if accepts[s]:
                place[s] = 1
                todo[n] = <int32_t>s
                n += 1
        if n < states:
            first = <int32_t *>calloc(states + 2, sizeof(int32_t))
            into = <int32_t *>malloc((states * width + 1) * sizeof(int32_t))
            if first == NULL or into == NULL:
                raise MemoryError()
            for at in range(states * width):
                if flat[at] >= 0:
                    first[flat[at] + 2] += 1
            for s in range(states):
                first[s + 2] += first[s + 1]
            for s in range(states):              # first[t + 1] runs up to where the moves to t end
                for k in range(width):
                    t = flat[s * width + k]
                    if t >= 0:
                        into[first[t + 1]] = <int32_t>s
                        first[t + 1] += 1
            at = 0
            while at < n and n < states:
                t = todo[at]
                at += 1
                for k in range(first[t], first[t + 1]):
                    if not place[into[k]]:
                        place[into[k]] = 1
                        todo[n] = into[k]
                        n += 1
        if not place[start]:
            return None
        at = 0
        for s in range(states):
            if place[s]:
                place[s] = <int32_t>at
                at += 1
            else:
                place[s] = -1
        out, good = np.empty((n, width), np.int32), np.empty(n, np.uint8)
        accepting = good
        if width:
            view = out
        for s in range(states):
            if place[s] < 0:
                continue
            accepting[place[s]] = accepts[s]
            for k in range(width):
                t = flat[s * width + k]
                view[place[s], k] = place[t] if t >= 0 else -1
        return out, good, place[start]
    finally:
        free(place)
        free(first)
        free(into)


def trimmed(const int32_t[:, ::1] table, const uint8_t[::1] accepts, int start):
    """(table, accepts, start) without the states from which nothing can be accepted; None if the start is one of them."""
    cdef Py_ssize_t states = table.shape[0], width = table.shape[1]
    return live_part(&table[0, 0] if width else NULL, &accepts[0], states, width, start)


def product(const int32_t[:, ::1] a, const uint8_t[::1] accept_a, int start_a, const int32_t[:, ::1] b, const uint8_t[::1] accept_b,
            int start_b, const int32_t[::1] left, const int32_t[::1] right, int keep, Py_ssize_t limit):
    """The automaton that runs both: symbol k is `left[k]` of a and `right[k]` of b (-1: none). Bit 2x + y of `keep`: accepted where a says
    x and b says y; a dead side stays at -1. Returns (table, accepts), start 0, without states from which nothing can be accepted; None
    where there are no others."""
    cdef Sequences known
    cdef Ints flat
    cdef int32_t[2] pair
    cdef int32_t x, y, u, v, found
    cdef Py_ssize_t k, width = left.shape[0], at = 0
    cdef int right_alone = (keep >> 1) & 1, left_alone = (keep >> 2) & 1
    memset(&flat, 0, sizeof(Ints))
    open_sequences(&known)
    accepts = bytearray()
    try:
        pair[0], pair[1] = start_a, start_b
        intern(&known, pair, 2)
        while at < known.count:
            x, y = known.pool.data[2 * at], known.pool.data[2 * at + 1]
            at += 1
            accepts.append((keep >> (2 * (x >= 0 and accept_a[x]) + (y >= 0 and accept_b[y]))) & 1)
            for k in range(width):
                u = a[x, left[k]] if x >= 0 and left[k] >= 0 else -1
                v = b[y, right[k]] if y >= 0 and right[k] >= 0 else -1
                if (u < 0 and (v < 0 or not right_alone)) or (v < 0 and not left_alone):
                    put(&flat, -1)
                    continue
                pair[0], pair[1] = u, v
                found = intern(&known, pair, 2)
                if known.count > limit:
                    raise GrammarError(f"regular: needs more than {limit} states")
                put(&flat, found)
        found_live = live_part(flat.data, <const uint8_t *>PyByteArray_AsString(accepts), at, width, 0)
        return None if found_live is None else found_live[:2]
    finally:
        close_sequences(&known)
        drop(&flat)


def tagged(const int32_t[:, ::1] a, const int32_t[::1] tags, int start_a, const int32_t[:, ::1] b, const uint8_t[::1] accept_b, int start_b,
           const int32_t[::1] left, const int32_t[::1] right, Py_ssize_t limit):
    """The automaton that runs both over all texts that a reads, as in `product`: (table, tags), start 0. A state's tag is 2t + y where a has
    the tag t and b says y; -1, where a has -1."""
    cdef Sequences known
    cdef Ints flat, out
    cdef int32_t[2] pair
    cdef int32_t x, y, u, v
    cdef Py_ssize_t k, width = left.shape[0], at = 0
    memset(&flat, 0, sizeof(Ints)); memset(&out, 0, sizeof(Ints))
    open_sequences(&known)
    try:
        pair[0], pair[1] = start_a, start_b
        intern(&known, pair, 2)
        while at < known.count:
            x, y = known.pool.data[2 * at], known.pool.data[2 * at + 1]
            at += 1
            put(&out, 2 * tags[x] + (y >= 0 and accept_b[y]) if tags[x] >= 0 else -1)
            for k in range(width):
                u = a[x, left[k]] if left[k] >= 0 else -1
                if u < 0:
                    put(&flat, -1)
                    continue
                v = b[y, right[k]] if y >= 0 and right[k] >= 0 else -1
                pair[0], pair[1] = u, v
                put(&flat, intern(&known, pair, 2))
                if known.count > limit:
                    raise GrammarError(f"regular: needs more than {limit} states")
        return table_of(&flat, at, width), row_of(&out)
    finally:
        close_sequences(&known)
        drop(&flat); drop(&out)


cdef Py_ssize_t meeting(const int32_t *a, const uint8_t *accept_a, int32_t start_a, const int32_t *b, const uint8_t *accept_b, int32_t start_b,
                        Py_ssize_t width, Py_ssize_t most) except? -1:
    """How many pairs of states are looked at until it is known that two automata over the same symbols accept some text both, or given up
    beyond `most`; negative where they accept none."""
    cdef Sequences known
    cdef int32_t[2] pair
    cdef int32_t x, y
    cdef Py_ssize_t k, at = 0
    open_sequences(&known)
    try:
        pair[0], pair[1] = start_a, start_b
        intern(&known, pair, 2)
        while at < known.count:
            x, y = known.pool.data[2 * at], known.pool.data[2 * at + 1]
            at += 1
            if (accept_a[x] and accept_b[y]) or at > most:
                return at
            for k in range(width):
                pair[0], pair[1] = a[x * width + k], b[y * width + k]
                if pair[0] >= 0 and pair[1] >= 0:
                    intern(&known, pair, 2)
        return -at
    finally:
        close_sequences(&known)


def overlapping(list tables, list accepts, const int32_t[::1] starts, Py_ssize_t most, Py_ssize_t enough):
    """The pairs (i, j), i > j, of automata over the same symbols (at least one) that accept some text both; with those of which that is not
    known after `most` pairs of states. Once they are more than `enough`, no more are looked for."""
    cdef const int32_t[:, ::1] a, b
    cdef const uint8_t[::1] accept_a, accept_b
    cdef Py_ssize_t i, j, found
    cdef set out = set()
    for i in range(len(tables)):
        a, accept_a = tables[i], accepts[i]
        for j in range(i):
            b, accept_b = tables[j], accepts[j]
            found = 0
            if most > 0:
                found = meeting(&a[0, 0], &accept_a[0], starts[i], &b[0, 0], &accept_b[0], starts[j], a.shape[1], most)
                most -= abs(found)
            if found >= 0:
                out.add((i, j))
                if len(out) > enough:
                    return out
    return out


def size(const int32_t[:, ::1] table, const uint8_t[::1] accepts, int start, const int32_t[::1] widths, long long most):
    """How many texts are accepted if symbol k is `widths[k]` letters: `most + 1` if they are more, or endlessly many. The table must be
    trimmed."""
    cdef Py_ssize_t n = table.shape[0], width = table.shape[1], k
    cdef long long *texts = <long long *>malloc((n + 1) * sizeof(long long))      # from a state on; -1: not met, -2: not known yet
    cdef Ints todo
    cdef long long whole
    cdef int32_t s, t
    cdef bint waits
    if texts == NULL:
        raise MemoryError()
    memset(texts, 0xFF, (n + 1) * sizeof(long long))
    memset(&todo, 0, sizeof(Ints))
    try:
        put(&todo, start)
        while todo.n:
            s = todo.data[todo.n - 1]
            if texts[s] >= 0:
                todo.n -= 1
                continue
            if texts[s] == -1:
                texts[s] = -2
                waits = False
                for k in range(width):
                    t = table[s, k]
                    if t < 0 or texts[t] >= 0:
                        continue
                    if texts[t] == -2:
                        return most + 1          # a loop, and every state of it can accept
                    put(&todo, t)
                    waits = True
                if waits:
                    continue
            todo.n -= 1
            whole = accepts[s]
            for k in range(width):
                if table[s, k] >= 0:
                    whole = min(whole + widths[k] * texts[table[s, k]], most + 1)
            texts[s] = whole
        return texts[start]
    finally:
        drop(&todo)
        free(texts)


def trie(list words, Py_ssize_t most):
    """The automaton of these texts: (code points in ascending order, table, accepts), start 0; None if the table has more than `most`
    moves."""
    cdef Ints flat
    cdef int32_t[128] ascii
    cdef dict others = {}
    cdef bytearray accepts = bytearray(1)
    cdef Py_ssize_t width, k, at, place
    cdef int32_t t, states = 1
    cdef str word
    cdef Py_UCS4 c
    letters = sorted(set("".join(words)))
    width = len(letters)
    for k in range(width):
        c = letters[k]
        if c < 128:
            ascii[<int32_t>c] = <int32_t>k
        else:
            others[c] = k
    memset(&flat, 0, sizeof(Ints))
    try:
        reserve(&flat, width + 1)        # not none: of empty texts alone there is no letter, and `memset` takes no NULL
        memset(flat.data, 0xFF, width * sizeof(int32_t))
        flat.n = width
        for word in words:
            at = 0
            for c in word:
                k = ascii[<int32_t>c] if c < 128 else <Py_ssize_t>others[c]
                place = at * width + k
                t = flat.data[place]
                if t < 0:
                    if flat.n + width > most:
                        return None
                    t = flat.data[place] = states
                    states += 1
                    reserve(&flat, width)
                    memset(flat.data + flat.n, 0xFF, width * sizeof(int32_t))
                    flat.n += width
                    accepts.append(0)
                at = t
            accepts[at] = 1
        return [ord(letter) for letter in letters], table_of(&flat, states, width), np.frombuffer(accepts, np.uint8)
    finally:
        drop(&flat)


cdef class Reader:
    """Reads texts with an automaton; `symbols` are the ranges of each symbol."""

    cdef const int32_t[:, ::1] table
    cdef const uint8_t[::1] accepts
    cdef Range *ranges
    cdef Py_ssize_t n
    cdef int32_t start

    def __cinit__(self, const int32_t[:, ::1] table, const uint8_t[::1] accepts, int start, list symbols):
        self.ranges = ranges_of(symbols, &self.n)
        self.table, self.accepts, self.start = table, accepts, start

    def __dealloc__(self):
        free(self.ranges)

    def reads(self, str text):
        """Whether the text is accepted."""
        cdef int32_t at = self.start, letter
        cdef Py_ssize_t low, high, middle
        cdef Py_UCS4 c
        for c in text:
            letter = <int32_t>c
            low, high = 0, self.n                # the first range that does not end before the letter
            while low < high:
                middle = (low + high) >> 1
                if self.ranges[middle].high < letter:
                    low = middle + 1
                else:
                    high = middle
            if low == self.n or self.ranges[low].low > letter:
                return False
            at = self.table[at, self.ranges[low].symbol]
            if at < 0:
                return False
        return self.accepts[at] != 0


cdef class Moves:
    """A table's moves, numbered by symbol and then by state: `tail`, where each comes from; `into[first[t]:first[t + 1]]`, those to state t;
    `symbol_at`, the first of each symbol."""

    cdef int32_t *tail
    cdef int32_t *first
    cdef int32_t *into
    cdef int32_t *symbol_at
    cdef Py_ssize_t n

    def __cinit__(self, const int32_t[:, ::1] table):
        cdef Py_ssize_t states = table.shape[0], width = table.shape[1], s, k, i = 0
        cdef int32_t t
        for s in range(states):
            for k in range(width):
                self.n += table[s, k] >= 0
        self.tail = <int32_t *>malloc((self.n + 1) * sizeof(int32_t))
        self.first = <int32_t *>calloc(states + 2, sizeof(int32_t))
        self.into = <int32_t *>malloc((self.n + 1) * sizeof(int32_t))
        self.symbol_at = <int32_t *>malloc((width + 1) * sizeof(int32_t))
        if self.tail == NULL or self.first == NULL or self.into == NULL or self.symbol_at == NULL:
            raise MemoryError()
        for k in range(width):
            self.symbol_at[k] = <int32_t>i
            for s in range(states):
                if table[s, k] >= 0:
                    self.tail[i] = <int32_t>s
                    self.first[table[s, k] + 2] += 1
                    i += 1
        self.symbol_at[width] = <int32_t>i
        for s in range(states):
            self.first[s + 2] += self.first[s + 1]
        for k in range(width):                   # first[t + 1] runs up to where the moves to t end
            for i in range(self.symbol_at[k], self.symbol_at[k + 1]):
                t = table[self.tail[i], k]
                self.into[self.first[t + 1]] = <int32_t>i
                self.first[t + 1] += 1

    def __dealloc__(self):
        free(self.tail)
        free(self.first)
        free(self.into)
        free(self.symbol_at)


cdef class Partition:
    """Numbers 0..n-1 in groups that are split by marking members: the refinable partition of Valmari's minimisation."""

    cdef int32_t *member
    cdef int32_t *where
    cdef int32_t *group
    cdef int32_t *first
    cdef int32_t *past
    cdef int32_t *marked
    cdef int32_t *touched
    cdef Py_ssize_t touched_n, count, n

    def __cinit__(self, Py_ssize_t n):
        cdef Py_ssize_t i
        cdef int32_t *block = <int32_t *>calloc(7 * n + 7, sizeof(int32_t))
        if block == NULL:
            raise MemoryError()
        self.member, self.where, self.group, self.first = block, block + n + 1, block + 2 * n + 2, block + 3 * n + 3
        self.past, self.marked, self.touched = block + 4 * n + 4, block + 5 * n + 5, block + 6 * n + 6
        self.n = n
        for i in range(n):
            self.member[i] = self.where[i] = <int32_t>i
        if n:
            self.count = 1
            self.past[0] = <int32_t>n

    def __dealloc__(self):
        free(self.member)

    cdef void group_runs(self, const int32_t *start, Py_ssize_t runs) noexcept:
        """Groups as at first: numbers start[k] to start[k + 1] - 1 each, for every run that is not empty."""
        cdef Py_ssize_t k, i
        self.count = 0
        for k in range(runs):
            if start[k] == start[k + 1]:
                continue
            self.first[self.count], self.past[self.count] = start[k], start[k + 1]
            for i in range(start[k], start[k + 1]):
                self.group[i] = <int32_t>self.count
            self.count += 1

    cdef void mark(self, int32_t e) noexcept:
        cdef int32_t g = self.group[e], i = self.where[e], j = self.first[g] + self.marked[g]
        if i < j:
            return
        self.member[i] = self.member[j]
        self.where[self.member[i]] = i
        self.member[j] = e
        self.where[e] = j
        if self.marked[g] == 0:
            self.touched[self.touched_n] = g
            self.touched_n += 1
        self.marked[g] += 1

    cdef void split(self) noexcept:
        """Every group with some members marked falls into two, the smaller one with a new number."""
        cdef int32_t g, fresh, middle
        cdef Py_ssize_t i
        while self.touched_n:
            self.touched_n -= 1
            g = self.touched[self.touched_n]
            middle = self.first[g] + self.marked[g]
            if middle == self.past[g]:
                self.marked[g] = 0
                continue
            fresh = <int32_t>self.count
            if self.marked[g] <= self.past[g] - middle:
                self.first[fresh] = self.first[g]
                self.past[fresh] = self.first[g] = middle
            else:
                self.past[fresh] = self.past[g]
                self.first[fresh] = self.past[g] = middle
            for i in range(self.first[fresh], self.past[fresh]):
                self.group[self.member[i]] = fresh
            self.marked[g] = self.marked[fresh] = 0
            self.count += 1


def merged(const int32_t[:, ::1] table, const uint8_t[::1] accepts):
    """Groups of states with equal futures, in the order of their first states: (group of each state, first state of each group). The table
    must be trimmed.

    Valmari, "Fast brief practical DFA minimization" (2012): states and moves are refined against each other, O(moves log states).
    """
    cdef Py_ssize_t n = table.shape[0], s, i, at, state_group = 1, move_group = 0
    cdef Moves moves = Moves(table)
    cdef Partition states = Partition(n)
    cdef Partition cords = Partition(moves.n)
    out = np.zeros(n, np.int32)
    cdef int32_t[::1] found = out, first, number
    for s in range(n):
        if accepts[s]:
            states.mark(<int32_t>s)
    states.split()
    cords.group_runs(moves.symbol_at, table.shape[1])
    while move_group < cords.count:
        for i in range(cords.first[move_group], cords.past[move_group]):
            states.mark(moves.tail[cords.member[i]])
        states.split()
        move_group += 1
        while state_group < states.count:
            for i in range(states.first[state_group], states.past[state_group]):
                s = states.member[i]
                for at in range(moves.first[s], moves.first[s + 1]):
                    cords.mark(moves.into[at])
            cords.split()
            state_group += 1
    firsts = np.empty(states.count, np.int32)
    first, number = firsts, np.empty(states.count, np.int32)
    number[:] = -1
    at = 0
    for s in range(n):
        i = states.group[s]
        if number[i] < 0:
            number[i] = <int32_t>at
            first[at] = <int32_t>s
            at += 1
        found[s] = number[i]
    return out, firsts


cdef class Subsets:
    """The subset construction for an automaton without obligations: see `determinise`.

    A state of the result is a set of states: those that read something, may pass a "$", or accept; what empty edges lead through says no
    more. Classes that every symbol belongs to (any character, where an expression may match anywhere) lead to the same states whatever
    is read: these are closed once for each set, and found again by number, so that a symbol costs what it adds to them."""

    cdef Ints skip_at, skip_to, skip_when, eat_at, eat_class, eat_to
    cdef Ints part_at, parts            # the symbols of class c: parts[part_at[c]:part_at[c + 1]], ascending
    cdef Ints work, common, joined, pair_to, known_sets
    cdef Ints count, first              # of each symbol: the states it leads to, and where they are in pair_to
    cdef Sequences sets, steps, commons # states of the result; (common set, what a symbol adds); common sets
    cdef int32_t *stamp
    cdef int32_t *in_common
    cdef uint8_t *matters
    cdef int32_t now, now_common
    cdef Py_ssize_t n, width, classes
    cdef int64_t left, pause            # units of work that may follow; and before other threads have a turn

    def __cinit__(self, list skips, list eats, list members, int final, Py_ssize_t classes, int64_t work):
        cdef Py_ssize_t s, k
        cdef int32_t kind
        self.n, self.width, self.classes, self.left, self.pause = len(skips), len(members), classes, work, PAUSE
        open_sequences(&self.sets)
        open_sequences(&self.steps)
        open_sequences(&self.commons)
        self.stamp = <int32_t *>calloc(2 * self.n + 2, sizeof(int32_t))
        self.matters = <uint8_t *>calloc(self.n + 1, 1)
        if self.stamp == NULL or self.matters == NULL:
            raise MemoryError()
        self.in_common = self.stamp + self.n + 1
        for s in range(self.n):
            put(&self.skip_at, <int32_t>self.skip_to.n)
            put(&self.eat_at, <int32_t>self.eat_to.n)
            self.matters[s] = s == final
            for target, when in skips[s]:
                kind = 1 if when == "^" else 2 if when == "$" else 0
                put(&self.skip_to, target)
                put(&self.skip_when, kind)
                self.matters[s] |= kind == 2
            for number, target in eats[s]:
                put(&self.eat_class, number)
                put(&self.eat_to, target)
                self.matters[s] = 1
        put(&self.skip_at, <int32_t>self.skip_to.n)
        put(&self.eat_at, <int32_t>self.eat_to.n)
        for s in range(classes + 1):
            put(&self.part_at, 0)
        for k in range(self.width):
            put(&self.count, 0)
            put(&self.first, 0)
            for number in members[k]:
                if number < classes:
                    self.part_at.data[<int32_t>number + 1] += 1
        for s in range(classes):
            self.part_at.data[s + 1] += self.part_at.data[s]
        reserve(&self.parts, self.part_at.data[classes])
        at = [self.part_at.data[s] for s in range(classes)]
        for k in range(self.width):
            for number in members[k]:
                if number < classes:
                    self.parts.data[<int32_t>at[number]] = <int32_t>k
                    at[number] += 1

    def __dealloc__(self):
        drop(&self.skip_at); drop(&self.skip_to); drop(&self.skip_when); drop(&self.eat_at); drop(&self.eat_class); drop(&self.eat_to)
        drop(&self.part_at); drop(&self.parts); drop(&self.count); drop(&self.first)
        drop(&self.work); drop(&self.common); drop(&self.joined); drop(&self.pair_to); drop(&self.known_sets)
        close_sequences(&self.sets); close_sequences(&self.steps); close_sequences(&self.commons)
        free(self.stamp)
        free(self.matters)

    cdef int spend(self, int64_t units) except -1:
        """Counts work. Now and then other threads have a turn: nothing else here lets them."""
        self.left -= units
        if self.left < 0:
            raise GrammarError("regular: takes too many steps to make deterministic")
        self.pause -= units
        if self.pause < 0:
            self.pause = PAUSE
            with nogil:
                pass
        return 0

    cdef int close(self, int marks, int common) except -1:
        """Closes `work` over empty edges whose assertion is in `marks` (bit 1: ^, bit 2: $), and keeps the states that matter; sorted,
        once each. common: WITHIN marks all that it comes by as the common set, BESIDE leaves out that set and what it leads to."""
        cdef Py_ssize_t i = 0, k, n = 0
        cdef int32_t s
        self.now += 1
        while i < self.work.n:
            s = self.work.data[i]
            i += 1
            if self.stamp[s] == self.now or (common == BESIDE and self.in_common[s] == self.now_common):
                continue
            self.stamp[s] = self.now
            if common == WITHIN:
                self.in_common[s] = self.now_common
            if self.matters[s]:
                self.work.data[n] = s            # n <= i - 1: only what was read is written over
                n += 1
            for k in range(self.skip_at.data[s], self.skip_at.data[s + 1]):
                if self.stamp[self.skip_to.data[k]] != self.now and (self.skip_when.data[k] & ~marks) == 0:
                    put(&self.work, self.skip_to.data[k])
        self.spend(i + n)
        self.work.n = n
        if n > 1:
            qsort(self.work.data, n, sizeof(int32_t), ascending)
        return 0

    cdef int accepts(self, Py_ssize_t at, int final) except -1:
        """Whether a text may end in a state."""
        cdef Py_ssize_t i
        self.work.n = 0
        for i in range(self.sets.start.data[at], self.sets.start.data[at + 1]):
            put(&self.work, self.sets.pool.data[i])
        self.close(3 if at == 0 else 2, ALONE)
        return self.stamp[final] == self.now

    cdef int leads_to_all(self, Py_ssize_t at) except -2:
        """Finds what a state leads to whatever is read, closed, and marks it; the number of that set, -1 for none."""
        cdef Py_ssize_t i, e, c
        cdef int32_t s
        self.work.n = 0
        for i in range(self.sets.start.data[at], self.sets.start.data[at + 1]):
            s = self.sets.pool.data[i]
            for e in range(self.eat_at.data[s], self.eat_at.data[s + 1]):
                c = self.eat_class.data[e]
                if self.part_at.data[c + 1] - self.part_at.data[c] == self.width:
                    put(&self.work, self.eat_to.data[e])
        self.now_common += 1
        self.close(0, WITHIN)
        self.common.n = 0
        for i in range(self.work.n):
            put(&self.common, self.work.data[i])
        return intern(&self.commons, self.common.data, self.common.n) if self.common.n else -1

    cdef int scatter(self, Py_ssize_t at, Py_ssize_t begin) except -1:
        """Sorts what a state leads to by symbol, of symbols from `begin` on as many as fit; returns the first that does not."""
        cdef Py_ssize_t i, e, c, k, p, end = begin, total = 0, low, high
        cdef int32_t s
        cdef int64_t units = self.width
        for k in range(begin, self.width):
            self.count.data[k] = 0
        for i in range(self.sets.start.data[at], self.sets.start.data[at + 1]):
            s = self.sets.pool.data[i]
            for e in range(self.eat_at.data[s], self.eat_at.data[s + 1]):
                c = self.eat_class.data[e]
                low, high = self.part_at.data[c], self.part_at.data[c + 1]
                if high - low == self.width:
                    continue
                for p in range(low, high):
                    if self.parts.data[p] >= begin:
                        self.count.data[self.parts.data[p]] += 1
                units += high - low + 1
        self.spend(2 * units)
        while end < self.width and (end == begin or total + self.count.data[end] <= AT_ONCE):
            self.first.data[end] = <int32_t>total
            total += self.count.data[end]
            end += 1
        self.pair_to.n = 0
        reserve(&self.pair_to, total + 1)
        for k in range(begin, end):
            self.count.data[k] = self.first.data[k]
        for i in range(self.sets.start.data[at], self.sets.start.data[at + 1]):
            s = self.sets.pool.data[i]
            for e in range(self.eat_at.data[s], self.eat_at.data[s + 1]):
                c = self.eat_class.data[e]
                low, high = self.part_at.data[c], self.part_at.data[c + 1]
                if high - low == self.width:
                    continue
                for p in range(low, high):
                    k = self.parts.data[p]
                    if begin <= k < end:
                        self.pair_to.data[self.count.data[k]] = self.eat_to.data[e]
                        self.count.data[k] += 1
        return <int>end

    cdef int32_t led_to(self, int number, Py_ssize_t k) except -2:
        """The state that symbol k leads to, from where `scatter` looked; -1 for none. number: of the common set."""
        cdef Py_ssize_t i, j
        cdef int32_t step, found
        self.work.n = 0
        for i in range(self.first.data[k], self.count.data[k]):
            put(&self.work, self.pair_to.data[i])
        if self.work.n:
            self.close(0, BESIDE)
        if number < 0:
            return intern(&self.sets, self.work.data, self.work.n) if self.work.n else -1
        put(&self.work, number)                  # behind the states: equal sets over equal ones are equal
        step = find(&self.steps, self.work.data, self.work.n)
        if step >= 0:
            return self.known_sets.data[step]
        self.joined.n = i = 0
        for j in range(self.common.n):           # two sorted lists without a common state
            while i < self.work.n - 1 and self.work.data[i] < self.common.data[j]:
                put(&self.joined, self.work.data[i])
                i += 1
            put(&self.joined, self.common.data[j])
        while i < self.work.n - 1:
            put(&self.joined, self.work.data[i])
            i += 1
        self.spend(self.joined.n)
        reserve(&self.known_sets, 1)
        found = intern(&self.sets, self.joined.data, self.joined.n)
        intern(&self.steps, self.work.data, self.work.n)
        put(&self.known_sets, found)
        return found


def determinise(
        list skips, list eats, list members, int final, Py_ssize_t classes, Py_ssize_t limit, Py_ssize_t moves, int64_t work):
    """The table of a nondeterministic automaton: `skips[s]` are (target, "" or "^" or "$"), `eats[s]` (class, target); `members[k]` says
    which classes symbol k belongs to. State 0 starts, "^" edges can be passed only there, "$" edges only at the end.

    moves, work: the largest table, and how many steps may be taken, about as many as states are looked at."""
    cdef Subsets nfa = Subsets(skips, eats, members, final, classes, work)
    cdef Ints flat
    cdef Py_ssize_t at = 0, k, end, width = len(members)
    cdef int number
    memset(&flat, 0, sizeof(Ints))
    accepts = bytearray()
    try:
        put(&nfa.work, 0)
        nfa.close(1, ALONE)
        intern(&nfa.sets, nfa.work.data, nfa.work.n)
        while at < nfa.sets.count:
            if (at + 1) * width > moves:
                raise GrammarError(f"regular: needs a table of more than {moves} moves")
            accepts.append(nfa.accepts(at, final))
            number = nfa.leads_to_all(at)
            k = 0
            while k < width:
                end = nfa.scatter(at, k)
                for k in range(k, end):
                    put(&flat, nfa.led_to(number, k))
                    if nfa.sets.count > limit or nfa.sets.pool.n > 4096 * limit or nfa.steps.pool.n > 4096 * limit:
                        raise GrammarError(f"regular: needs more than {limit} states")
                k = end
            at += 1
        return table_of(&flat, at, width), np.frombuffer(accepts, np.uint8)
    finally:
        drop(&flat)


cdef struct Range:
    int32_t low, high, symbol


cdef int by_low(const void *a, const void *b) noexcept nogil:
    return ((<const Range *>a)[0].low > (<const Range *>b)[0].low) - ((<const Range *>a)[0].low < (<const Range *>b)[0].low)


cdef Range *ranges_of(list symbols, Py_ssize_t *count) except NULL:
    """The ranges of all symbols in ascending order."""
    cdef Py_ssize_t n = 0, i = 0, k
    cdef Range *out
    for k in range(len(symbols)):
        n += len(<tuple>symbols[k])
    out = <Range *>malloc((n + 1) * sizeof(Range))
    if out == NULL:
        raise MemoryError()
    try:
        for k in range(len(symbols)):
            for low, high in <tuple>symbols[k]:
                out[i].low, out[i].high, out[i].symbol = low, high, <int32_t>k
                i += 1
    except BaseException:
        free(out)
        raise
    qsort(out, n, sizeof(Range), by_low)
    count[0] = n
    return out


def refined(list a, list b):
    """The common refinement of two partitions of code points (ranges per symbol): its symbols, and which symbol of a and of b each is in
    (int32, -1: none)."""
    cdef Range *x = NULL
    cdef Range *y = NULL
    cdef int32_t *place = NULL                  # the symbol that is in symbol i of a and j of b, at (i + 1) * (len(b) + 1) + j + 1
    cdef Ints left, right, first, last          # per symbol: where it is in a and in b, and its range that may still grow
    cdef Py_ssize_t n = 0, m = 0, i = 0, j = 0, width = len(b) + 1, at_place, size
    cdef int32_t at = 0, stop, k, in_x, in_y
    cdef list out = []
    memset(&left, 0, sizeof(Ints)); memset(&right, 0, sizeof(Ints)); memset(&first, 0, sizeof(Ints)); memset(&last, 0, sizeof(Ints))
    try:
        x = ranges_of(a, &n)
        y = ranges_of(b, &m)
        size = (len(a) + 1) * width
        place = <int32_t *>malloc(size * sizeof(int32_t))
        if place == NULL:
            raise MemoryError()
        memset(place, 0xFF, size * sizeof(int32_t))
        while i < n or j < m:
            if i < n and (j == m or x[i].low <= y[j].low):
                at = max(at, x[i].low)
            else:
                at = max(at, y[j].low)
            in_x = i < n and x[i].low <= at
            in_y = j < m and y[j].low <= at
            stop = 0x7FFFFFFF
            if i < n:
                stop = x[i].high if in_x else x[i].low - 1
            if j < m:
                stop = min(stop, y[j].high if in_y else y[j].low - 1)
            at_place = (x[i].symbol + 1 if in_x else 0) * width + (y[j].symbol + 1 if in_y else 0)
            k = place[at_place]
            if k < 0:
                k = place[at_place] = <int32_t>left.n
                out.append([])
                put(&left, x[i].symbol if in_x else -1)
                put(&right, y[j].symbol if in_y else -1)
                put(&first, at)
                put(&last, stop)
            elif last.data[k] + 1 == at:
                last.data[k] = stop
            else:
                (<list>out[k]).append((first.data[k], last.data[k]))
                first.data[k], last.data[k] = at, stop
            at = stop + 1
            i += i < n and x[i].high < at
            j += j < m and y[j].high < at
        for k in range(left.n):
            (<list>out[k]).append((first.data[k], last.data[k]))
            out[k] = tuple(<list>out[k])
        return out, row_of(&left), row_of(&right)
    finally:
        drop(&left); drop(&right); drop(&first); drop(&last)
        free(x)
        free(y)
        free(place)


cdef object row_of(Ints *numbers):
    out = np.empty(numbers.n, np.int32)
    cdef int32_t[::1] view = out
    if numbers.n:
        memcpy(&view[0], numbers.data, numbers.n * sizeof(int32_t))
    return out


def nearest(const int32_t[:, ::1] table, const uint8_t[::1] accepts):
    """Per state the length of the shortest text accepted from there (int32); UNREACHABLE where there is none."""
    cdef Py_ssize_t n = table.shape[0], s, at, i = 0
    cdef int32_t source
    cdef Moves moves = Moves(table)
    cdef Ints todo
    out = np.full(n, UNREACHABLE, np.int32)
    cdef int32_t[::1] near = out
    memset(&todo, 0, sizeof(Ints))
    try:
        for s in range(n):
            if accepts[s]:
                near[s] = 0
                put(&todo, <int32_t>s)
        while i < todo.n:
            s = todo.data[i]
            i += 1
            for at in range(moves.first[s], moves.first[s + 1]):
                source = moves.tail[moves.into[at]]
                if near[source] == FAR:
                    near[source] = near[s] + 1
                    put(&todo, source)
        return out
    finally:
        drop(&todo)


def longest(const int32_t[:, ::1] table, const uint8_t[::1] accepts, int without_end):
    """Per state the length of the longest text accepted from there (int32; -1: none); `without_end` where a loop lies ahead. The table
    must be trimmed."""
    cdef Py_ssize_t n = table.shape[0], s, at, i = 0
    cdef int32_t source
    cdef Moves moves = Moves(table)
    cdef Ints todo, left                        # states whose longest text is known; per state the moves to others
    out = np.full(n, without_end, np.int32)
    cdef int32_t[::1] far = out
    reached = np.full(n, -1, np.int32)
    cdef int32_t[::1] best = reached
    memset(&todo, 0, sizeof(Ints)); memset(&left, 0, sizeof(Ints))
    try:
        for s in range(n):
            put(&left, 0)
            if accepts[s]:
                best[s] = 0
        for at in range(moves.n):
            left.data[moves.tail[at]] += 1
        for s in range(n):
            if left.data[s] == 0:
                put(&todo, <int32_t>s)
        while i < todo.n:
            s = todo.data[i]
            i += 1
            far[s] = best[s]
            for at in range(moves.first[s], moves.first[s + 1]):
                source = moves.tail[moves.into[at]]
                if far[s] >= 0:
                    best[source] = max(best[source], far[s] + 1)
                left.data[source] -= 1
                if left.data[source] == 0:
                    put(&todo, source)
        return out
    finally:
        drop(&todo); drop(&left)


def spans(const int32_t[:, ::1] table, const uint8_t[::1] accepts, Py_ssize_t least, Py_ssize_t most):
    """Per state the ranges ((low, high), ...) of lengths of what may have been read when a text of least to most symbols is still possible
    from there. Takes time and memory of `most` times the table."""
    cdef Py_ssize_t n = table.shape[0], width = table.shape[1], s, k, length, read, begun
    cdef int32_t t
    possible = np.zeros((most + 1, n), np.uint8)      # is a text of exactly this length accepted from here?
    cdef uint8_t[:, ::1] now = possible
    sums = np.zeros((most + 2, n), np.int32)
    cdef int32_t[:, ::1] ends = sums
    cdef list out = [], parts
    for s in range(n):
        now[0, s] = accepts[s] != 0
    for length in range(1, most + 1):
        for s in range(n):
            for k in range(width):
                t = table[s, k]
                if t >= 0 and now[length - 1, t]:
                    now[length, s] = 1
                    break
    for length in range(most + 1):
        for s in range(n):
            ends[length + 1, s] = ends[length, s] + now[length, s]
    known = {}
    for s in range(n):
        parts = []
        begun = -1
        for read in range(most + 1):
            if ends[most - read + 1, s] > ends[max(least - read, <Py_ssize_t>0), s]:
                if begun < 0:
                    begun = read
            elif begun >= 0:
                parts.append((begun, read - 1))
                begun = -1
        if begun >= 0:
            parts.append((begun, most))
        found = tuple(parts)
        out.append(known.setdefault(found, found))
    return out


def grouped(const int32_t[:, ::1] table):
    """Per state its moves as ((target, symbols), ...), in the order of their first symbols."""
    cdef Py_ssize_t states = table.shape[0], width = table.shape[1], s, k, i
    cdef list out = [], row
    cdef Ints place, targets                    # per target: its place in the row, and the row it was met in
    cdef dict known = {}
    memset(&place, 0, sizeof(Ints)); memset(&targets, 0, sizeof(Ints))
    try:
        for s in range(states):
            put(&place, -1)
        for s in range(states):
            targets.n = 0
            row = []
            for k in range(width):
                if table[s, k] < 0:
                    continue
                i = place.data[table[s, k]]
                if i < 0:
                    place.data[table[s, k]] = <int32_t>targets.n
                    put(&targets, table[s, k])
                    row.append([k])
                else:
                    (<list>row[i]).append(k)
            for i in range(targets.n):
                place.data[targets.data[i]] = -1
                symbols = tuple(<list>row[i])
                row[i] = (targets.data[i], known.setdefault(symbols, symbols))
            out.append(row)
        return out
    finally:
        drop(&place); drop(&targets)
