"""Runs a context-free grammar over bytes as a lazily determinised pushdown machine.

A machine is one object in four layers, each in a file: networks (edges), emission (nodes to edges), dstates (sets of states), and here
stacks and positions; cover.pyx proves what a position surely allows, cursor.pyx holds places in a machine and keeps its tables bounded.
  stack             a *set* of call stacks as a shared tree: {frame -> stack}; union is memoised, so ambiguity shares instead of copying
  config            {dstate -> stack} plus "may stop here": the whole position in the grammar; 0 is the dead one
  row               a config's successor for every byte and token symbol, filled at once on first use

Calls of rules that can match nothing are bypassed statically; a freshly entered rule therefore never returns at once, which is what
makes every closure finite once left recursion is refused at construction.
"""
from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memset

from oxillama._core.dstates cimport Dstates
from oxillama._core.sequences cimport close_sequences, drop, intern, open_sequences, put, seq_at, seq_len

from oxillama.errors import GrammarError


cdef int by_first(const void *a, const void *b) noexcept nogil:
    cdef const int32_t *x = <const int32_t *>a
    cdef const int32_t *y = <const int32_t *>b
    if x[0] != y[0]:
        return (x[0] > y[0]) - (x[0] < y[0])
    return (x[1] > y[1]) - (x[1] < y[1])


machines = 0          # every machine has a number of its own: caches shared by several grammars key by it


cdef class Machine(Dstates):
    """One grammar, compiled: rule networks and the automaton built from them on demand.

    `rules` is a list of nodes, rule 0 the root; `symbols` counts the token symbols (numbered from 256). Limits bound what hostile
    grammars can cost: `max_states` network states, `max_depth` frames on a stack (deeper nesting is not entered), `max_items`
    alternatives followed at once, `max_configs` positions kept before unused ones are dropped.
    """

    def __cinit__(self):
        open_sequences(&self.stacks)
        open_sequences(&self.configs)
        open_sequences(&self.unions)

    def __init__(self, list rules, *, int symbols=0, names=None, Py_ssize_t max_states=2_000_000, int max_depth=1000,
                 Py_ssize_t max_items=20_000, Py_ssize_t max_configs=1 << 15, deferred=None):
        self.max_depth, self.max_items, self.max_configs = max_depth, max_items, max_configs
        self.build(rules, symbols, names, max_states, deferred)
        global machines
        self.serial = machines
        machines += 1
        self._reset()

    def __dealloc__(self):
        self._free_tables()
        drop(&self.roots); drop(&self.free_roots); drop(&self.work); drop(&self.items); drop(&self.scratch); drop(&self.touched)

    cdef void _free_tables(self) noexcept:
        cdef Py_ssize_t i
        close_sequences(&self.stacks)
        close_sequences(&self.configs)
        close_sequences(&self.unions)
        drop(&self.s_depth); drop(&self.u_result); drop(&self.c_flags)
        for i in range(self.rows_cap):
            free(self.rows[i])
        free(self.rows)
        self.rows = NULL
        self.rows_cap = 0

    cdef int _reset(self) except -1:
        """Tables as at the beginning; ids change, `epoch` tells caches so."""
        cdef int32_t[1] seq
        self._open_dstates()
        self._free_tables()
        open_sequences(&self.stacks)
        open_sequences(&self.configs)
        open_sequences(&self.unions)
        seq[0] = 1
        intern(&self.stacks, seq, 1)          # stack 0: only the bottom
        put(&self.s_depth, 0)
        seq[0] = 0
        intern(&self.configs, seq, 1)         # config 0: dead
        put(&self.c_flags, 0)
        self.epoch += 1
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
        cdef int32_t *row
        if config < self.rows_cap and self.rows[config] != NULL:
            return self.rows[config]
        row = <int32_t *>calloc(self.width, sizeof(int32_t))
        if row == NULL:
            raise MemoryError()
        try:
            self._make_room_for(config)
            if seq_len(&self.configs, config) == 3:
                self._fill_from_one(config, row)
            else:
                self._fill_from_many(config, row)
        except BaseException:
            free(row)
            raise
        self.rows[config] = row
        return row

    cdef int _make_room_for(self, int32_t config) except -1:
        cdef Py_ssize_t cap = max(<Py_ssize_t>256, self.rows_cap)
        cdef int32_t **rows
        if config < self.rows_cap:
            return 0
        while cap <= config:
            cap *= 2
        rows = <int32_t **>realloc(self.rows, cap * sizeof(int32_t *))
        if rows == NULL:
            raise MemoryError()
        memset(rows + self.rows_cap, 0, (cap - self.rows_cap) * sizeof(int32_t *))
        self.rows = rows
        self.rows_cap = cap
        return 0

    cdef int _fill_from_one(self, int32_t config, int32_t *row) except -1:
        """A row where one dstate alone is left: a closure per segment."""
        cdef int32_t d = seq_at(&self.configs, config)[1], stack = seq_at(&self.configs, config)[2], c
        cdef Py_ssize_t k, j, at
        self._segments(d)
        at = self.d_seg_at.data[d]
        for k in range(at + 1, at + 1 + 3 * self.d_segs.data[at], 3):
            self._begin()
            self._visit(self.d_segs.data[k + 2], stack, 0)
            c = self._finish()
            for j in range(self.d_segs.data[k], self.d_segs.data[k + 1] + 1):
                row[j] = c
        return 0

    cdef int _fill_from_many(self, int32_t config, int32_t *row) except -1:
        """A row of several dstates: a closure per run of bytes in which each of them stays in one segment."""
        cdef Py_ssize_t i, k, j, at, position = 0, pairs = (seq_len(&self.configs, config) - 1) // 2
        cdef int32_t low, high, stack, c, next_bound
        for i in range(pairs):
            self._segments(seq_at(&self.configs, config)[1 + 2 * i])
        while position < self.width:
            next_bound = self.width
            self._begin()
            for i in range(pairs):
                at, stack = self.d_seg_at.data[seq_at(&self.configs, config)[1 + 2 * i]], seq_at(&self.configs, config)[2 + 2 * i]
                for k in range(at + 1, at + 1 + 3 * self.d_segs.data[at], 3):
                    low, high = self.d_segs.data[k], self.d_segs.data[k + 1]
                    if low > position:
                        next_bound = min(next_bound, low)
                        break
                    if high >= position:
                        next_bound = min(next_bound, high + 1)
                        self._visit(self.d_segs.data[k + 2], stack, 0)
                        break
            if self.work.n:
                c = self._finish()
                for j in range(position, next_bound):
                    row[j] = c
            position = next_bound
        return 0

    def sizes(self):
        """What the automaton holds now: counts by table, for tests and reports."""
        cdef Py_ssize_t i, rows = 0
        for i in range(self.rows_cap):
            rows += self.rows[i] != NULL
        return {"states": self.nfa_states, "rules": self.rule_start.n, "dstates": self.dstates.count, "frames": self.frames.count,
                "stacks": self.stacks.count, "configs": self.configs.count, "rows": rows,
                "bytes": 4 * (rows * self.width + self.stacks.pool.cap + self.configs.pool.cap + self.unions.pool.cap
                              + self.dstates.pool.cap + self.d_segs.cap)}
