"""Runs a context-free grammar over bytes as a lazily determinised pushdown machine.

The rule networks it runs are `Networks`, its base, in networks.pyx. Map of the file, bottom up:
  Sequences         int32 sequences interned to small ids (equal content, equal id)
  dstate            a set of network states of one rule, determinised on first use; its byte segments and its calls
  stack             a *set* of call stacks as a shared tree: {frame -> stack}; union is memoised, so ambiguity shares instead of copying
  config            {dstate -> stack} plus "may stop here": the whole position in the grammar; 0 is the dead one
  row               a config's successor for every byte and token symbol, filled at once on first use
  cover             how many plain JSON characters are surely allowed from a config (lets the trie skip whole subtrees)
  collect           rebuilds the tables from the live cursors when they outgrow their bound

A frame is (return dstate, repeat, count): bounded repetition is a counter on the stack, so `x{0,100000}` costs one copy of x.
Calls of rules that can match nothing are bypassed statically; a freshly entered rule therefore never returns at once, which is what
makes every closure finite once left recursion is refused at construction. The file is long because these tables are one data structure.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memset

from oxillama._core.networks cimport FINAL, Ints, Networks, ascending, drop, put

import contextlib
import threading

from oxillama.errors import GrammarError

cdef enum:
    INFINITE = 1 << 30

LITERAL, CLASS, SEQUENCE, CHOICE, REPEAT, RULE, SYMBOL, NETWORK = range(8)

# ---------------------------------------------------------------------------------------------- interning


cdef int open_sequences(Sequences *t) except -1:
    memset(t, 0, sizeof(Sequences))
    t.mask = 255
    t.slots = <int32_t *>malloc((t.mask + 1) * sizeof(int32_t))
    if t.slots == NULL:
        raise MemoryError()
    memset(t.slots, 0xFF, (t.mask + 1) * sizeof(int32_t))
    return put(&t.start, 0)


cdef void close_sequences(Sequences *t) noexcept:
    drop(&t.pool)
    drop(&t.start)
    free(t.slots)
    t.slots = NULL


cdef inline uint64_t mix(int32_t *seq, Py_ssize_t n) noexcept:
    cdef uint64_t h = <uint64_t>0x9E3779B97F4A7C15 ^ <uint64_t>n
    cdef Py_ssize_t i
    for i in range(n):
        h = (h ^ <uint32_t>seq[i]) * <uint64_t>0xFF51AFD7ED558CCD
        h ^= h >> 32
    return h


cdef inline int32_t *seq_at(Sequences *t, int32_t i) noexcept:
    return t.pool.data + t.start.data[i]


cdef inline Py_ssize_t seq_len(Sequences *t, int32_t i) noexcept:
    return t.start.data[i + 1] - t.start.data[i]


cdef int32_t intern(Sequences *t, int32_t *seq, Py_ssize_t n) except -1:
    """The id of a sequence, new ones appended; `seq` must not point into the table's own pool."""
    cdef Py_ssize_t at, i, size
    cdef int32_t other
    cdef int32_t *slots
    at = <Py_ssize_t>(mix(seq, n) & <uint64_t>t.mask)
    while t.slots[at] >= 0:
        other = t.slots[at]
        if seq_len(t, other) == n and memcmp(seq_at(t, other), seq, n * sizeof(int32_t)) == 0:
            return other
        at = (at + 1) & t.mask
    for i in range(n):
        put(&t.pool, seq[i])
    put(&t.start, <int32_t>t.pool.n)
    other = <int32_t>t.count
    t.slots[at] = other
    t.count += 1
    if 2 * t.count > t.mask:
        size = 4 * (t.mask + 1)
        slots = <int32_t *>malloc(size * sizeof(int32_t))
        if slots == NULL:
            raise MemoryError()
        memset(slots, 0xFF, size * sizeof(int32_t))
        free(t.slots)
        t.slots = slots
        t.mask = size - 1
        for i in range(t.count):
            at = <Py_ssize_t>(mix(seq_at(t, <int32_t>i), seq_len(t, <int32_t>i)) & <uint64_t>t.mask)
            while t.slots[at] >= 0:
                at = (at + 1) & t.mask
            t.slots[at] = <int32_t>i
    return other


cdef int by_first(const void *a, const void *b) noexcept nogil:
    cdef const int32_t *x = <const int32_t *>a
    cdef const int32_t *y = <const int32_t *>b
    if x[0] != y[0]:
        return (x[0] > y[0]) - (x[0] < y[0])
    return (x[1] > y[1]) - (x[1] < y[1])


# The plain characters of a JSON string (no quote, backslash or control) as a UTF-8 automaton: state, low, high, next; state 0 is between
# characters. `cover` proves that a dstate follows it; the trie keeps the tokens that consist of such characters apart.
cdef int32_t[17][4] PLAIN
cdef int PLAIN_EDGES = 17
for _i, _edge in enumerate((
        (0, 0x20, 0x21, 0), (0, 0x23, 0x5B, 0), (0, 0x5D, 0x7E, 0), (0, 0xC2, 0xDF, 1), (0, 0xE0, 0xE0, 2), (0, 0xE1, 0xEC, 3),
        (0, 0xED, 0xED, 4), (0, 0xEE, 0xEF, 3), (0, 0xF0, 0xF0, 5), (0, 0xF1, 0xF3, 6), (0, 0xF4, 0xF4, 7), (1, 0x80, 0xBF, 0),
        (2, 0xA0, 0xBF, 1), (3, 0x80, 0xBF, 1), (4, 0x80, 0x9F, 1), (5, 0x90, 0xBF, 3), (6, 0x80, 0xBF, 3))):
    PLAIN[_i] = _edge


def plain_step(state, byte):
    """The plain-character automaton's next state, or -1: the trie sorts its tokens by it."""
    if state == 7:
        return 3 if 0x80 <= byte <= 0x8F else -1
    for i in range(PLAIN_EDGES):
        if PLAIN[i][0] == state and PLAIN[i][1] <= byte <= PLAIN[i][2]:
            return PLAIN[i][3]
    return -1


# ---------------------------------------------------------------------------------------------- the machine


machines = 0          # every machine has a number of its own: caches shared by several grammars key by it


cdef class Machine(Networks):
    """One grammar, compiled: rule networks and the automaton built from them on demand.

    `rules` is a list of nodes, rule 0 the root; `symbols` counts the token symbols (numbered from 256). Limits bound what hostile
    grammars can cost: `max_states` network states, `max_depth` frames on a stack (deeper nesting is not entered), `max_items`
    alternatives followed at once, `max_configs` positions kept before unused ones are dropped.
    """

    def __cinit__(self):
        open_sequences(&self.dstates)
        open_sequences(&self.frames)
        open_sequences(&self.stacks)
        open_sequences(&self.configs)
        open_sequences(&self.unions)

    def __init__(self, list rules, *, int symbols=0, names=None, Py_ssize_t max_states=2_000_000, int max_depth=1000,
                 Py_ssize_t max_items=20_000, Py_ssize_t max_configs=1 << 15, deferred=None):
        self.max_depth, self.max_items, self.max_configs = max_depth, max_items, max_configs
        self.lock = threading.Lock()
        self.build(rules, symbols, names, max_states, deferred)
        global machines
        self.serial = machines
        machines += 1
        self._reset()

    def __dealloc__(self):
        self._free_automaton()
        drop(&self.roots); drop(&self.free_roots); drop(&self.work); drop(&self.items); drop(&self.scratch)
        drop(&self.bounds); drop(&self.touched)

    # ------------------------------------------------------------------ the automaton's tables

    cdef void _free_automaton(self) noexcept:
        cdef Py_ssize_t i
        close_sequences(&self.dstates)
        close_sequences(&self.frames)
        close_sequences(&self.stacks)
        close_sequences(&self.configs)
        close_sequences(&self.unions)
        drop(&self.d_accept); drop(&self.d_segs); drop(&self.d_seg_at); drop(&self.d_calls); drop(&self.d_call_at)
        drop(&self.d_pure); drop(&self.s_depth); drop(&self.u_result); drop(&self.c_flags); drop(&self.start_of); drop(&self.d_cover)
        drop(&self.d_gen); drop(&self.d_expand); drop(&self.d_return); drop(&self.d_pending)
        for i in range(self.rows_cap):
            free(self.rows[i])
        free(self.rows)
        self.rows = NULL
        self.rows_cap = 0

    cdef int _reset(self) except -1:
        cdef int32_t[3] seq
        cdef Py_ssize_t i
        self._free_automaton()
        open_sequences(&self.dstates)
        open_sequences(&self.frames)
        open_sequences(&self.stacks)
        open_sequences(&self.configs)
        open_sequences(&self.unions)
        for i in range(self.rule_start.n):
            put(&self.start_of, -1)
        seq[0] = 1
        intern(&self.stacks, seq, 1)          # stack 0: only the bottom
        put(&self.s_depth, 0)
        seq[0] = 0
        intern(&self.configs, seq, 1)         # config 0: dead
        put(&self.c_flags, 0)
        self.epoch += 1
        return 0

    cdef int32_t _dstate(self) except -1:
        """The dstate of the closed set in set_work."""
        cdef Py_ssize_t i, before = self.dstates.count
        cdef int32_t d = intern(&self.dstates, self.set_work.data, self.set_work.n)
        cdef int32_t accept = 0, pure = 1, s
        if self.dstates.count > before:
            for i in range(self.set_work.n):
                s = self.set_work.data[i]
                accept |= self.state_flags[s] & FINAL
                if (self.byte_at.data[s + 1] > self.byte_at.data[s]) or (self.call_at.data[s + 1] > self.call_at.data[s]):
                    pure = 0
            put(&self.d_accept, accept)
            put(&self.d_pure, accept and pure)
            put(&self.d_seg_at, -1)
            put(&self.d_call_at, -1)
            put(&self.d_gen, 0)
            put(&self.d_expand, -1)
            put(&self.d_return, -1)
            put(&self.d_pending, 0)
            for i in range(8):
                put(&self.d_cover, 0)
        return d

    cdef int32_t _start(self, int32_t rule) except -1:
        while self.start_of.n <= rule:
            put(&self.start_of, -1)
        if self.start_of.data[rule] < 0:
            if self.rule_start.data[rule] < 0:
                self._write(rule)
            self.set_work.n = 0
            put(&self.set_work, self.rule_start.data[rule])
            self._close()
            self.start_of.data[rule] = self._dstate()
        return self.start_of.data[rule]

    cdef int _write(self, int32_t rule) except -1:
        """Gives a deferred rule its network. That runs Python, where another thread may come in: it waits at `room`."""
        cdef Py_ssize_t states = self.nfa_states, i
        cdef Py_ssize_t[4] kept
        kept[0], kept[1], kept[2], kept[3] = self.eps.n, self.byte_edges.n, self.call_edges.n, self.reps.n
        with self.writes():
            try:
                self._grow(rule, None)
            except BaseException:                 # half a network is none
                self.nfa_states = states
                self.eps.n, self.byte_edges.n, self.call_edges.n, self.reps.n = kept[0], kept[1], kept[2], kept[3]
                for i in range(self.rule_start.n):
                    if self.rule_start.data[i] >= states:
                        self.rule_start.data[i] = -1
                self.bodies[rule] = None
                raise
        return 0

    @contextlib.contextmanager
    def writes(self):
        """While rules are written: other threads wait at `room`."""
        self.writing = True
        try:
            with self.lock:
                self.writing = True
                yield
        finally:
            self.writing = False

    cdef int _segments(self, int32_t d) except -1:
        """Determinises a dstate's bytes: d_segs gets a count, then (low, high, target) triples in order."""
        cdef Py_ssize_t i, k, n, at, total
        cdef int32_t low, high, target, s, prev_high = -2, prev_target = -1
        cdef Ints edges, out
        if self.d_seg_at.data[d] >= 0:
            return 0
        memset(&edges, 0, sizeof(Ints))
        memset(&out, 0, sizeof(Ints))
        try:
            self.bounds.n = 0
            for i in range(seq_len(&self.dstates, d)):
                s = seq_at(&self.dstates, d)[i]
                for k in range(self.byte_at.data[s], self.byte_at.data[s + 1]):
                    low, high = self.byte_edges.data[4 * k + 1], self.byte_edges.data[4 * k + 2]
                    put(&edges, low); put(&edges, high); put(&edges, self.byte_edges.data[4 * k + 3])
                    put(&self.bounds, low); put(&self.bounds, high + 1)
            n = self.bounds.n
            if n:
                qsort(self.bounds.data, n, sizeof(int32_t), ascending)
            total = 0
            for i in range(n):
                if total == 0 or self.bounds.data[i] != self.bounds.data[total - 1]:
                    self.bounds.data[total] = self.bounds.data[i]
                    total += 1
            for at in range(total - 1):
                low, high = self.bounds.data[at], self.bounds.data[at + 1] - 1
                self.set_work.n = 0
                for k in range(0, edges.n, 3):
                    if edges.data[k] <= low <= edges.data[k + 1]:
                        put(&self.set_work, edges.data[k + 2])
                if self.set_work.n == 0:
                    continue
                self._close()
                target = self._dstate()
                if prev_target == target and prev_high + 1 == low:
                    out.data[out.n - 2] = high
                else:
                    put(&out, low); put(&out, high); put(&out, target)
                prev_high, prev_target = high, target
            self.d_seg_at.data[d] = <int32_t>self.d_segs.n
            put(&self.d_segs, <int32_t>(out.n // 3))
            for i in range(out.n):
                put(&self.d_segs, out.data[i])
        finally:
            drop(&edges)
            drop(&out)
        return 0

    cdef int _calls(self, int32_t d) except -1:
        """Determinises a dstate's calls: d_calls gets a count, then (rule, frame, tail) triples, one per rule and repeat."""
        cdef Py_ssize_t i, k
        cdef int32_t s, ret, rule, rep
        cdef int32_t[3] frame
        cdef Ints out
        if self.d_call_at.data[d] >= 0:
            return 0
        groups = {}
        for i in range(seq_len(&self.dstates, d)):
            s = seq_at(&self.dstates, d)[i]
            for k in range(self.call_at.data[s], self.call_at.data[s + 1]):
                groups.setdefault((self.call_edges.data[4 * k + 1], self.call_edges.data[4 * k + 2]), []).append(
                    self.call_edges.data[4 * k + 3])
        memset(&out, 0, sizeof(Ints))
        try:
            for (rule, rep), targets in groups.items():
                self.set_work.n = 0
                for s in targets:
                    put(&self.set_work, s)
                self._close()
                ret = self._dstate()
                frame[0], frame[1], frame[2] = ret, rep, 1 if rep >= 0 else 0
                put(&out, rule)
                put(&out, intern(&self.frames, frame, 3))
                put(&out, rep < 0 and self.d_pure.data[ret])
            self.d_call_at.data[d] = <int32_t>self.d_calls.n
            put(&self.d_calls, <int32_t>(out.n // 3))
            for i in range(out.n):
                put(&self.d_calls, out.data[i])
        finally:
            drop(&out)
        return 0

    # ------------------------------------------------------------------ stacks

    cdef int32_t _push(self, int32_t frame, int32_t stack) except -2:
        """The stack set with `frame` on top of every stack, or -1 where that is deeper than allowed."""
        cdef int32_t[3] seq
        cdef Py_ssize_t before = self.stacks.count
        cdef int32_t s
        if self.s_depth.data[stack] >= self.max_depth:
            self.too_deep = True
            return -1
        seq[0], seq[1], seq[2] = 0, frame, stack
        s = intern(&self.stacks, seq, 3)
        if self.stacks.count > before:
            put(&self.s_depth, self.s_depth.data[stack] + 1)
        return s

    cdef int32_t _union(self, int32_t a, int32_t b) except -1:
        """The union of two stack sets, as a tree again: equal frames are merged, their parents united."""
        cdef int32_t[2] pair
        cdef int32_t *seq
        cdef int32_t *x
        cdef int32_t *y
        cdef Py_ssize_t i, j, n, na, nb, before
        cdef int32_t u, parent, depth
        if a == b:
            return a
        if a > b:
            a, b = b, a
        pair[0], pair[1] = a, b
        before = self.unions.count
        u = intern(&self.unions, pair, 2)
        if self.unions.count > before:
            put(&self.u_result, -1)
        elif self.u_result.data[u] >= 0:
            return self.u_result.data[u]
        na, nb = seq_len(&self.stacks, a), seq_len(&self.stacks, b)
        if na + nb > 2 * self.max_items:
            raise GrammarError(f"grammar: more than {self.max_items} alternatives at once (max_items)")
        seq = <int32_t *>malloc(2 * (na + nb) * sizeof(int32_t))
        if seq == NULL:
            raise MemoryError()
        try:
            x = seq + na + nb
            y = x + na
            memcpy(x, seq_at(&self.stacks, a), na * sizeof(int32_t))
            memcpy(y, seq_at(&self.stacks, b), nb * sizeof(int32_t))
            seq[0] = x[0] | y[0]
            n = i = j = 1
            while i < na or j < nb:
                if j >= nb or (i < na and x[i] < y[j]):
                    seq[n], seq[n + 1] = x[i], x[i + 1]
                    i += 2
                elif i >= na or y[j] < x[i]:
                    seq[n], seq[n + 1] = y[j], y[j + 1]
                    j += 2
                else:
                    parent = self._union(x[i + 1], y[j + 1])
                    seq[n], seq[n + 1] = x[i], parent
                    i += 2
                    j += 2
                n += 2
            depth = max(self.s_depth.data[a], self.s_depth.data[b])
            before = self.stacks.count
            a = intern(&self.stacks, seq, n)
            if self.stacks.count > before:
                put(&self.s_depth, depth)
        finally:
            free(seq)
        self.u_result.data[u] = a
        return a

    # ------------------------------------------------------------------ configs

    cdef int _visit(self, int32_t d, int32_t stack, int fresh) except -1:
        """Adds (d, stack) to the closure: stacks of one dstate are united, and what grew is queued (again)."""
        cdef int32_t grown, pending
        if stack < 0:
            return 0
        if self.d_gen.data[d] != self.gen:
            self.d_gen.data[d] = self.gen
            self.d_expand.data[d] = self.d_return.data[d] = -1
            self.d_pending.data[d] = 0
            put(&self.touched, d)
            if self.touched.n > self.max_items:
                raise GrammarError(f"grammar: more than {self.max_items} alternatives at once (max_items)")
        pending = self.d_pending.data[d]
        grown = stack if self.d_expand.data[d] < 0 else self._union(self.d_expand.data[d], stack)
        if grown != self.d_expand.data[d]:
            self.d_expand.data[d] = grown
            self.d_pending.data[d] |= 1
        if not fresh:
            grown = stack if self.d_return.data[d] < 0 else self._union(self.d_return.data[d], stack)
            if grown != self.d_return.data[d]:
                self.d_return.data[d] = grown
                self.d_pending.data[d] |= 2
        if pending == 0 and self.d_pending.data[d]:
            put(&self.work, d)
            if self.work.n > 64 * self.max_items:
                raise GrammarError(f"grammar: more than {64 * self.max_items} steps for one byte (max_items)")
        return 0

    cdef int _begin(self) noexcept:
        self.gen += 1
        self.work.n = 0
        self.touched.n = 0
        return 0

    cdef int32_t _finish(self) except -1:
        """Runs the queued closure to its end and interns the config it makes."""
        cdef Py_ssize_t i, k, n, at
        cdef int32_t d, stack, pending, accept = 0, frame, parent, rule, rep, count, most, pushed
        cdef int32_t[3] next_frame
        i = 0
        while i < self.work.n:
            d = self.work.data[i]
            i += 1
            pending = self.d_pending.data[d]
            self.d_pending.data[d] = 0
            if pending & 1:
                stack = self.d_expand.data[d]
                self._segments(d)
                self._calls(d)
                at = self.d_call_at.data[d]
                for k in range(self.d_calls.data[at]):
                    rule, frame = self.d_calls.data[at + 1 + 3 * k], self.d_calls.data[at + 2 + 3 * k]
                    pushed = stack if self.d_calls.data[at + 3 + 3 * k] else self._push(frame, stack)
                    self._visit(self._start(rule), pushed, 1)
            if pending & 2 and self.d_accept.data[d]:
                stack = self.d_return.data[d]
                n = seq_len(&self.stacks, stack)
                accept |= seq_at(&self.stacks, stack)[0]
                for k in range(1, n, 2):
                    frame, parent = seq_at(&self.stacks, stack)[k], seq_at(&self.stacks, stack)[k + 1]
                    d = seq_at(&self.frames, frame)[0]
                    rep, count = seq_at(&self.frames, frame)[1], seq_at(&self.frames, frame)[2]
                    if rep < 0:
                        self._visit(d, parent, 0)
                        continue
                    most = self.reps.data[3 * rep + 2]
                    if count >= self.reps.data[3 * rep + 1]:
                        self._visit(d, parent, 0)
                    if most < 0 or count < most:
                        next_frame[0], next_frame[1] = d, rep
                        next_frame[2] = count + 1 if most >= 0 or count < self.reps.data[3 * rep + 1] else count
                        pushed = self._push(intern(&self.frames, next_frame, 3), parent)
                        self._visit(self._start(self.reps.data[3 * rep]), pushed, 1)
        self.items.n = 0
        for i in range(self.touched.n):
            d = self.touched.data[i]
            if self.d_segs.data[self.d_seg_at.data[d]]:
                put(&self.items, d)
                put(&self.items, self.d_expand.data[d])
        return self._intern_config(accept)

    cdef int32_t _intern_config(self, int32_t accept) except -1:
        """Interns the config made of the (d, stack) pairs in items: sorted, one stack set per dstate."""
        cdef Py_ssize_t k, n, before
        cdef int32_t config
        if self.items.n > 2:
            qsort(self.items.data, self.items.n // 2, 2 * sizeof(int32_t), by_first)
        self.scratch.n = 0
        put(&self.scratch, accept)
        for k in range(0, self.items.n, 2):
            n = self.scratch.n
            if n > 1 and self.scratch.data[n - 2] == self.items.data[k]:
                self.scratch.data[n - 1] = self._union(self.scratch.data[n - 1], self.items.data[k + 1])
            else:
                put(&self.scratch, self.items.data[k])
                put(&self.scratch, self.items.data[k + 1])
        before = self.configs.count
        config = intern(&self.configs, self.scratch.data, self.scratch.n)
        if self.configs.count > before:
            put(&self.c_flags, 0)
            if self.configs.count > 8 * self.max_configs:
                raise GrammarError(f"grammar: more than {8 * self.max_configs} positions reached in one step (max_configs)")
        return config

    cdef int32_t start_config(self) except -1:
        self._begin()
        self._visit(self._start(0), 0, 0)     # not as a call: the root may be finished at once
        return self._finish()

    cdef int accepts(self, int32_t config) noexcept:
        return seq_at(&self.configs, config)[0]

    cdef int32_t union_configs(self, int32_t a, int32_t b) except -1:
        cdef Py_ssize_t i
        cdef int32_t accept
        if a == 0 or a == b:
            return b
        if b == 0:
            return a
        self.items.n = 0
        for i in range(1, seq_len(&self.configs, a)):
            put(&self.items, seq_at(&self.configs, a)[i])
        for i in range(1, seq_len(&self.configs, b)):
            put(&self.items, seq_at(&self.configs, b)[i])
        accept = self.accepts(a) | self.accepts(b)
        return self._intern_config(accept)

    cdef int32_t *row(self, int32_t config) except NULL:
        """The successors of a config: int32[width], 0 where nothing follows. The pointer lives until the next collect."""
        cdef Py_ssize_t cap, i, k, n, j, at, pairs
        cdef int32_t *row
        cdef int32_t **rows
        cdef int32_t low, high, d, stack, c, position, next_bound
        if config >= self.rows_cap:
            cap = max(<Py_ssize_t>256, 2 * self.rows_cap)
            while cap <= config:
                cap *= 2
            rows = <int32_t **>realloc(self.rows, cap * sizeof(int32_t *))
            if rows == NULL:
                raise MemoryError()
            memset(rows + self.rows_cap, 0, (cap - self.rows_cap) * sizeof(int32_t *))
            self.rows = rows
            self.rows_cap = cap
        if self.rows[config] != NULL:
            return self.rows[config]
        row = <int32_t *>calloc(self.width, sizeof(int32_t))
        if row == NULL:
            raise MemoryError()
        try:
            pairs = (seq_len(&self.configs, config) - 1) // 2
            for i in range(pairs):
                self._segments(seq_at(&self.configs, config)[1 + 2 * i])
            if pairs == 1:
                d, stack = seq_at(&self.configs, config)[1], seq_at(&self.configs, config)[2]
                at = self.d_seg_at.data[d]
                n = self.d_segs.data[at]
                for k in range(n):
                    low, high = self.d_segs.data[at + 1 + 3 * k], self.d_segs.data[at + 2 + 3 * k]
                    self._begin()
                    self._visit(self.d_segs.data[at + 3 + 3 * k], stack, 0)
                    c = self._finish()
                    for j in range(low, high + 1):
                        row[j] = c
            else:
                position = 0
                while position < self.width:
                    next_bound = self.width
                    self._begin()
                    for i in range(pairs):
                        d, stack = seq_at(&self.configs, config)[1 + 2 * i], seq_at(&self.configs, config)[2 + 2 * i]
                        at = self.d_seg_at.data[d]
                        n = self.d_segs.data[at]
                        for k in range(n):
                            low, high = self.d_segs.data[at + 1 + 3 * k], self.d_segs.data[at + 2 + 3 * k]
                            if low > position:
                                next_bound = min(next_bound, low)
                                break
                            if high >= position:
                                next_bound = min(next_bound, high + 1)
                                self._visit(self.d_segs.data[at + 3 + 3 * k], stack, 0)
                                break
                    if self.work.n:
                        c = self._finish()
                        for j in range(position, next_bound):
                            row[j] = c
                    position = next_bound
        except BaseException:
            free(row)
            raise
        self.rows[config] = row
        return row

    cdef int has_symbols(self, int32_t config) except -1:
        cdef int32_t *row
        cdef Py_ssize_t i
        if self.symbols == 0:
            return 0
        row = self.row(config)
        for i in range(256, self.width):
            if row[i]:
                return 1
        return 0

    # ------------------------------------------------------------------ plain-character cover

    cdef int _explore(self, int32_t d, int u8, int loop) except -1:
        """1 if from d every plain string stays inside this rule's network (loop 1), or every single plain character finishes the
        rule (loop 0) and leaves nothing else to follow in it (loop 2)."""
        cdef int32_t[96][2] seen
        cdef int n = 1, i = 0, e, k, j
        cdef int32_t low, high, need, target
        cdef Py_ssize_t at, m
        seen[0][0], seen[0][1] = d, u8
        while i < n:
            d, u8 = seen[i][0], seen[i][1]
            i += 1
            self._segments(d)
            at = self.d_seg_at.data[d]
            m = self.d_segs.data[at]
            for e in range(18):
                if e < 17:
                    if PLAIN[e][0] != u8:
                        continue
                    low, high, j = PLAIN[e][1], PLAIN[e][2], PLAIN[e][3]
                else:
                    if u8 != 7:
                        continue
                    low, high, j = 0x80, 0x8F, 3
                need = low
                for k in range(m):
                    if self.d_segs.data[at + 2 + 3 * k] < need:
                        continue
                    if self.d_segs.data[at + 1 + 3 * k] > need:
                        return 0
                    target = self.d_segs.data[at + 3 + 3 * k]
                    need = self.d_segs.data[at + 2 + 3 * k] + 1
                    if j == 0 and loop != 1:
                        if not (self.d_accept.data[target] if loop == 0 else self.d_pure.data[target]):
                            return 0
                    else:
                        for u in range(n):
                            if seen[u][0] == target and seen[u][1] == j:
                                break
                        else:
                            if n == 96:
                                return 0
                            seen[n][0], seen[n][1] = target, j
                            n += 1
                    if need > high:
                        break
                if need <= high:
                    return 0
        return 1

    cdef int _covers(self, int32_t d, int u8) except -1:
        """Memoised: bit 1 = known, 2 = one plain character finishes the rule, 4 = any plain string stays inside."""
        cdef int flags = self.d_cover.data[8 * <Py_ssize_t>d + u8]
        if flags == 0:
            flags = 1 | (2 * self._explore(d, u8, 0)) | (4 * self._explore(d, u8, 1))
            self.d_cover.data[8 * <Py_ssize_t>d + u8] = flags
        return flags

    cdef int32_t exact_cover(self, int32_t config) except -2:
        """The number n such that of all plain strings exactly those of up to n characters are allowed from here; -1 if not proved.

        Holds where the config is a bounded repeat of single characters, about to read one, and whatever may follow the repeat does
        not begin with a plain character.
        """
        cdef Py_ssize_t i, k, n
        cdef int32_t d, stack, frame, ret, rep, count, most, parent = 0, body = -1, left = -1, beyond
        cdef int32_t *row
        n = seq_len(&self.configs, config)
        for i in range(1, n, 2):
            d, stack = seq_at(&self.configs, config)[i], seq_at(&self.configs, config)[i + 1]
            if seq_at(&self.stacks, stack)[0] or seq_len(&self.stacks, stack) != 3:
                continue
            frame, parent = seq_at(&self.stacks, stack)[1], seq_at(&self.stacks, stack)[2]
            ret, rep, count = seq_at(&self.frames, frame)[0], seq_at(&self.frames, frame)[1], seq_at(&self.frames, frame)[2]
            if rep < 0:
                continue
            most = self.reps.data[3 * rep + 2]
            if most < 0 or d != self._start(self.reps.data[3 * rep]) or not self._explore(d, 0, 2):
                continue
            body, left = d, most - count + 1
            break
        if body < 0:
            return -1
        self._begin()
        self._visit(ret, parent, 0)
        beyond = self._finish()
        for i in range(1, n, 2):
            d, stack = seq_at(&self.configs, config)[i], seq_at(&self.configs, config)[i + 1]
            if d == body:
                continue
            for k in range(1, seq_len(&self.configs, beyond), 2):
                if seq_at(&self.configs, beyond)[k] == d and seq_at(&self.configs, beyond)[k + 1] == stack:
                    break
            else:
                return -1
        row = self.row(beyond)
        for i in range(0x20, 0x100):
            if row[i] and i != 0x22 and i != 0x5C:
                return -1
        return left

    cdef int32_t cover(self, int32_t config, int u8) except -1:
        """How many plain characters may surely be started from here (INFINITE: any number); u8 is the plain automaton's state."""
        if u8 == 0:
            if self.c_flags.data[config] == 0:
                self.c_flags.data[config] = 1 + self._cover(config, 0)
            return self.c_flags.data[config] - 1
        return self._cover(config, u8)

    cdef int32_t _cover(self, int32_t config, int u8) except -1:
        cdef Py_ssize_t i, k, n, at, j
        cdef int32_t d, stack, best = 0, frame, ret, rep, count, most, start
        cdef int flags
        n = seq_len(&self.configs, config)
        for i in range(1, n, 2):
            d, stack = seq_at(&self.configs, config)[i], seq_at(&self.configs, config)[i + 1]
            flags = self._covers(d, u8)
            if flags & 4:
                return INFINITE
            if not flags & 2:
                continue
            for k in range(1, seq_len(&self.stacks, stack), 2):
                frame = seq_at(&self.stacks, stack)[k]
                ret, rep, count = seq_at(&self.frames, frame)[0], seq_at(&self.frames, frame)[1], seq_at(&self.frames, frame)[2]
                if rep < 0:
                    if self._covers(ret, 0) & 4:
                        return INFINITE
                    self._calls(ret)
                    at = self.d_call_at.data[ret]
                    for j in range(self.d_calls.data[at]):
                        if self.d_calls.data[at + 2 + 3 * j] != frame:
                            continue
                        start = self._start(self.d_calls.data[at + 1 + 3 * j])
                        if self._covers(start, 0) & 2:
                            return INFINITE
                else:
                    most = self.reps.data[3 * rep + 2]
                    start = self._start(self.reps.data[3 * rep])
                    if self._covers(start, 0) & 2:
                        if most < 0:
                            return INFINITE
                        best = max(best, most - count + (1 if u8 == 0 else 0))
        return best

    # ------------------------------------------------------------------ bounded memory

    cdef int room(self) except -1:
        """Called before each outer operation: waits while another thread writes a rule, and drops what no cursor needs once the tables
        outgrow their bound."""
        while self.writing:
            with self.lock:
                pass
        if (self.configs.count > self.max_configs or self.stacks.pool.n + self.unions.pool.n > 64 * self.max_configs
                or self.dstates.pool.n + self.d_segs.n > 256 * self.max_configs):
            self.collect()
        return 0

    def collect(self):
        """Rebuilds the automaton's tables from the live cursors alone; config ids change, `epoch` tells caches so."""
        cdef Py_ssize_t i, n
        cdef Machine old
        saved = []
        for i in range(self.roots.n):
            saved.append(self._export(self.roots.data[i]) if self.roots.data[i] >= 0 else None)
        self._reset()
        memo = {}
        for i in range(len(saved)):
            if saved[i] is not None:
                self.roots.data[i] = self._import(saved[i], memo)

    def _export(self, int32_t config):
        """A config as plain Python: (accept, ((network states, stack), ...)); stacks share by identity."""
        cdef Py_ssize_t i, k
        memo = {}
        order = []
        todo = [seq_at(&self.configs, config)[i] for i in range(2, seq_len(&self.configs, config), 2)]
        reached = set()
        while todo:
            s = todo.pop()
            if s in reached:
                continue
            reached.add(s)
            for k in range(2, seq_len(&self.stacks, s), 2):
                todo.append(seq_at(&self.stacks, s)[k])
        stacks = {}
        for s in reached:
            entries = []
            for k in range(1, seq_len(&self.stacks, s), 2):
                f = seq_at(&self.stacks, s)[k]
                ret, rep, count = seq_at(&self.frames, f)[0], seq_at(&self.frames, f)[1], seq_at(&self.frames, f)[2]
                entries.append((self._set_of(ret), rep, count, seq_at(&self.stacks, s)[k + 1]))
            stacks[s] = (seq_at(&self.stacks, s)[0], entries, self.s_depth.data[s])
        items = [(self._set_of(seq_at(&self.configs, config)[i]), seq_at(&self.configs, config)[i + 1])
                 for i in range(1, seq_len(&self.configs, config), 2)]
        return self.epoch, self.accepts(config), items, stacks

    def _set_of(self, int32_t d):
        return tuple([seq_at(&self.dstates, d)[i] for i in range(seq_len(&self.dstates, d))])

    def _dstate_of(self, states):
        self.set_work.n = 0
        for s in states:
            put(&self.set_work, s)
        return self._dstate()

    def _import(self, saved, memo):
        cdef int32_t[3] frame
        cdef Ints seq
        cdef Py_ssize_t before
        _, accept, items, stacks = saved
        memset(&seq, 0, sizeof(Ints))
        try:
            for s in sorted(stacks, key=lambda s: stacks[s][2]):     # parents are shallower than what stands on them
                if s in memo:
                    continue
                bottom, entries, depth = stacks[s]
                pairs = []
                for states, rep, count, parent in entries:
                    frame[0], frame[1], frame[2] = self._dstate_of(states), rep, count
                    pairs.append((intern(&self.frames, frame, 3), memo[parent]))
                seq.n = 0
                put(&seq, bottom)
                for f, parent in sorted(pairs):
                    put(&seq, f)
                    put(&seq, parent)
                before = self.stacks.count
                memo[s] = intern(&self.stacks, seq.data, seq.n)
                if self.stacks.count > before:
                    put(&self.s_depth, depth)
            self.items.n = 0
            for states, s in items:
                put(&self.items, self._dstate_of(states))
                put(&self.items, memo[s])
        finally:
            drop(&seq)
        return self._intern_config(accept)

    def sizes(self):
        """What the automaton holds now: counts by table, for tests and reports."""
        cdef Py_ssize_t i, rows = 0
        for i in range(self.rows_cap):
            rows += self.rows[i] != NULL
        return {"states": self.nfa_states, "rules": self.rule_start.n, "dstates": self.dstates.count, "frames": self.frames.count,
                "stacks": self.stacks.count, "configs": self.configs.count, "rows": rows,
                "bytes": 4 * (rows * self.width + self.stacks.pool.cap + self.configs.pool.cap + self.unions.pool.cap
                              + self.dstates.pool.cap + self.d_segs.cap)}


cdef class Cursor:
    """A position in a machine's grammar that survives `collect`; forking is copying one number."""

    def __cinit__(self, Machine machine not None, Cursor origin=None):
        self.machine = machine
        self.slot = -1
        machine.room()
        if machine.free_roots.n:
            machine.free_roots.n -= 1
            self.slot = machine.free_roots.data[machine.free_roots.n]
        else:
            self.slot = machine.roots.n
            put(&machine.roots, -1)
        machine.roots.data[self.slot] = origin.config() if origin is not None else machine.start_config()

    def __dealloc__(self):
        if self.slot >= 0 and self.machine is not None:
            self.machine.roots.data[self.slot] = -1
            put(&self.machine.free_roots, <int32_t>self.slot)

    cdef int32_t config(self) noexcept:
        return self.machine.roots.data[self.slot]

    cdef void place(self, int32_t config) noexcept:
        self.machine.roots.data[self.slot] = config

    def fork(self):
        """A second cursor at the same place."""
        return Cursor(self.machine, self)

    def move_to(self, Cursor other not None):
        """Moves to where another cursor of the same machine stands."""
        self.place(other.config())

    @property
    def complete(self):
        """Whether the grammar may end here."""
        return self.machine.accepts(self.config()) != 0

    @property
    def finished(self):
        """Whether the grammar may end here and nothing else may follow."""
        return self.machine.accepts(self.config()) != 0 and seq_len(&self.machine.configs, self.config()) == 1

    @property
    def dead(self):
        """Whether nothing can follow and nothing has matched."""
        return self.config() == 0

    @property
    def key(self):
        """(epoch, config): equal keys mean equal futures."""
        return self.machine.epoch, self.config()

    cdef int32_t _walk(self, const uint8_t[::1] data, int symbol) except -1:
        cdef int32_t config = self.config(), by_symbol = 0
        cdef Py_ssize_t i
        self.machine.too_deep = False
        if symbol >= 0:
            by_symbol = self.machine.row(config)[256 + symbol]
        for i in range(data.shape[0]):
            if config == 0:
                break
            config = self.machine.row(config)[data[i]]
        if data.shape[0] == 0 and symbol >= 0:
            config = 0
        return self.machine.union_configs(config, by_symbol)

    def allows(self, const uint8_t[::1] data, int symbol=-1):
        """Whether these bytes (or the token symbol) may come next."""
        self._check(symbol)
        self.machine.room()
        return self._walk(data, symbol) != 0

    def advance(self, const uint8_t[::1] data, int symbol=-1):
        """Moves over the bytes (or the token symbol); False, without moving, where they cannot come next."""
        cdef int32_t config
        self._check(symbol)
        self.machine.room()
        config = self._walk(data, symbol)
        if config == 0:
            return False
        self.place(config)
        return True

    def _check(self, int symbol):
        if symbol >= self.machine.symbols:
            raise GrammarError(f"token symbol {symbol}: this grammar has {self.machine.symbols}")

    def next_bytes(self):
        """The set of bytes that may come next, as a 256-long bytes object of zeros and ones."""
        cdef int32_t *row
        self.machine.room()
        row = self.machine.row(self.config())
        return bytes([1 if row[i] else 0 for i in range(256)])

    def forced(self, Py_ssize_t limit=4096):
        """The longest run of bytes that every continuation starts with (at most `limit`); empty where the grammar may end."""
        cdef int32_t config, follow
        cdef int32_t *row
        cdef Py_ssize_t i
        cdef int byte
        out = bytearray()
        self.machine.room()
        config = self.config()
        while config != 0 and not self.machine.accepts(config) and len(out) < limit:
            row = self.machine.row(config)
            byte = -1
            follow = 0
            for i in range(self.machine.width):
                if row[i]:
                    if byte >= 0 or i >= 256:
                        byte = -2
                        break
                    byte = <int>i
                    follow = row[i]
            if byte < 0:
                break
            out.append(byte)
            config = follow
        return bytes(out)
