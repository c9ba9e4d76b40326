"""Runs a context-free grammar over bytes as a lazily determinised pushdown machine.

A machine is one object in four layers, each in a file: networks (edges), emission (nodes to edges), dstates (sets of states), and here
stacks and positions; cover.pyx proves what a position surely allows, cursor.pyx holds places in a machine and keeps its tables bounded.
  stack             a *set* of call stacks as a shared tree: {frame -> stack}; union is memoised, so ambiguity shares instead of copying
  config            {dstate -> stack} plus "may stop here": the whole position in the grammar; 0 is the dead one
  row               a config's successor for every byte and token symbol, filled at once on first use

Calls of rules that can match nothing are bypassed statically; a freshly entered rule therefore never returns at once, which is what
makes every closure finite once left recursion is refused at construction.
"""
import itertools

cimport cython
from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memset

from oxillama._core.dstates cimport Dstates
from oxillama._core.networks cimport COUNTED, DISTINCT, REP, SCOPE, TableSizes
from oxillama._core.sequences cimport Ints, clear_sequences, close_sequences, drop, intern, open_sequences, put, reserve, seq_at, seq_len

from oxillama.errors import GrammarError


cdef enum:
    ROOM = -2             # the guard of a comma: one more member may follow


cdef inline int32_t popcount(int32_t x) noexcept nogil:
    cdef int32_t n = 0
    while x:
        x &= x - 1
        n += 1
    return n


cdef int by_first(const void *a, const void *b) noexcept nogil:
    cdef const int32_t *x = <const int32_t *>a
    cdef const int32_t *y = <const int32_t *>b
    if x[0] != y[0]:
        return (x[0] > y[0]) - (x[0] < y[0])
    return (x[1] > y[1]) - (x[1] < y[1])


_serials = itertools.count()       # every machine has a number of its own: caches shared by several grammars key by it


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
        open_sequences(&self.values)
        open_sequences(&self.wordsets)

    def __init__(self, list rules, *, int symbols=0, names=None, Py_ssize_t max_states=2_000_000, int max_depth=1000,
                 Py_ssize_t max_items=20_000, Py_ssize_t max_configs=1 << 15, deferred=None):
        if self.epoch:
            raise GrammarError("machine: is initialised already")
        self.max_depth, self.max_items, self.max_configs = max_depth, max_items, max_configs
        self.without = {}
        self.build(rules, symbols, names, max_states, deferred)
        self.serial = next(_serials)
        self._reset()

    def __dealloc__(self):
        # Only what stands in this file is called: where a base class could not be made, this object has no methods.
        cdef Py_ssize_t i
        close_sequences(&self.stacks)
        close_sequences(&self.configs)
        close_sequences(&self.unions)
        close_sequences(&self.values)
        close_sequences(&self.wordsets)
        for i in range(self.rows_cap):
            free(self.rows[i])
        free(self.rows)
        drop(&self.s_depth); drop(&self.u_result); drop(&self.c_flags); drop(&self.c_deep); drop(&self.c_frozen)
        drop(&self.c_home); drop(&self.c_loops); drop(&self.c_next); drop(&self.s_frozen)
        drop(&self.roots); drop(&self.free_roots); drop(&self.work); drop(&self.items); drop(&self.scratch); drop(&self.touched)

    cdef int _reset(self) except -1:
        """Empties the tables; ids change, and `epoch` with them. Fails only at the first call: later ones have all the memory they need."""
        cdef int32_t[2] seq
        cdef Py_ssize_t i
        self._clear_dstates()
        clear_sequences(&self.stacks)
        clear_sequences(&self.configs)
        clear_sequences(&self.unions)
        clear_sequences(&self.values)
        clear_sequences(&self.wordsets)
        self.s_depth.n = self.u_result.n = self.c_flags.n = self.c_deep.n = self.c_frozen.n = self.c_home.n = self.c_loops.n = self.c_next.n = self.s_frozen.n = 0
        self.words, self.word_numbers = [], {}
        for i in range(self.rows_cap):
            free(self.rows[i])
            self.rows[i] = NULL
        reserve(&self.s_depth, 1)
        reserve(&self.c_flags, 1)
        reserve(&self.c_deep, 1)
        seq[0] = 1
        intern(&self.stacks, seq, 1)          # stack 0: only the bottom
        put(&self.s_depth, 0)
        seq[0] = seq[1] = 0
        intern(&self.configs, seq, 1)         # config 0: dead
        put(&self.c_flags, 0)
        put(&self.c_deep, 0)
        intern(&self.wordsets, seq, 0)        # word set 0: none
        intern(&self.values, seq, 2)          # value 0: nothing counted, nothing taken
        self.epoch += 1
        return 0

    # ------------------------------------------------------------------ registers

    cdef int32_t _value(self, int32_t count, int32_t words, int32_t *bits, Py_ssize_t n) except -1:
        """The number of a register's value; bits without trailing zeros."""
        cdef int32_t *seq = <int32_t *>malloc((n + 2) * sizeof(int32_t))
        cdef int32_t value
        if seq == NULL:
            raise MemoryError()
        while n and bits[n - 1] == 0:
            n -= 1
        seq[0], seq[1] = count, words
        if n:
            memcpy(seq + 2, bits, n * sizeof(int32_t))
        try:
            value = intern(&self.values, seq, n + 2)
        finally:
            free(seq)
        return value

    cdef int32_t _taken(self, int32_t value, int32_t guard, int32_t scope) except -2:
        """A register's value after a guard; -1 where it does not let pass."""
        cdef int32_t member = self.reps.data[REP * guard + 1], spans = self.reps.data[REP * guard + 2]
        cdef int32_t least = self.scopes.data[scope], most = self.scopes.data[scope + 1], needed = self.scopes.data[scope + 2]
        cdef int32_t *old = seq_at(&self.values, value)
        cdef int32_t count = old[0] & ~FROZEN, words = old[1], missing = 0
        cdef Py_ssize_t n = seq_len(&self.values, value) - 2, k, size = max(n, <Py_ssize_t>(member // 31 + 1)) if member >= 0 else n
        cdef int32_t *bits
        if member == ROOM:
            return value if most < 0 or count < most else -1
        if member >= 0 and member // 31 < n and old[2 + member // 31] >> (member % 31) & 1:
            return -1
        if (most >= 0 or count < least) and not old[0] & FROZEN:
            count += 1
        if most >= 0 and count > most:
            return -1
        if spans >= 0:
            for k in range(self.scopes.data[spans]):
                if self.scopes.data[spans + 1 + 2 * k] <= count <= self.scopes.data[spans + 2 + 2 * k]:
                    break
            else:
                return -1
        if old[0] & FROZEN:
            return value
        bits = <int32_t *>calloc(size + 1, sizeof(int32_t))
        if bits == NULL:
            raise MemoryError()
        try:
            memcpy(bits, old + 2, n * sizeof(int32_t))
            if member >= 0:
                bits[member // 31] |= 1 << (member % 31)
            if needed and most >= 0:
                for k in range(self.scopes.data[scope + 3]):
                    missing += popcount(self.scopes.data[scope + 4 + k] & ~(bits[k] if k < size else 0))
                if most - count < missing:
                    return -1
            return self._value(count, words, bits, size)
        finally:
            free(bits)

    cdef bint _closes(self, int32_t value, int32_t scope) noexcept:
        """Whether a scope may end with this value: enough is counted, and every member that must be there is."""
        cdef int32_t *seq = seq_at(&self.values, value)
        cdef Py_ssize_t n = seq_len(&self.values, value) - 2, k
        if seq[0] & ~FROZEN < self.scopes.data[scope]:
            return False
        for k in range(self.scopes.data[scope + 3]):
            if self.scopes.data[scope + 4 + k] & ~(seq[2 + k] if k < n else 0):
                return False
        return True

    cdef int32_t _single(self, int32_t frame, int32_t parent) except -1:
        """The stack set with one frame on one parent."""
        cdef int32_t[3] seq
        cdef Py_ssize_t before = self.stacks.count
        cdef int32_t s
        seq[0], seq[1], seq[2] = 0, frame, parent
        reserve(&self.s_depth, 1)
        s = intern(&self.stacks, seq, 3)
        if self.stacks.count > before:
            put(&self.s_depth, self.s_depth.data[parent] + 1)
        return s

    cdef int _guard(self, int32_t ret, int32_t rep, int32_t stack) except -1:
        """Passes a guard edge with those of the stacks whose register allows it."""
        cdef Py_ssize_t k
        cdef int32_t frame, parent, scope, value, mark
        cdef int32_t[3] changed
        for k in range(1, seq_len(&self.stacks, stack), 2):
            frame, parent = seq_at(&self.stacks, stack)[k], seq_at(&self.stacks, stack)[k + 1]
            changed[0], changed[1] = seq_at(&self.frames, frame)[0], seq_at(&self.frames, frame)[1]
            value, mark = seq_at(&self.frames, frame)[2] >> 1, seq_at(&self.frames, frame)[2] & 1
            if changed[1] < 0 or self.reps.data[REP * changed[1] + 3] != SCOPE:
                raise GrammarError("grammar: a guard stands outside of a register's scope")
            scope = self.reps.data[REP * changed[1] + 4]
            value = self._taken(value, rep, scope)
            if value < 0:
                continue
            changed[2] = 2 * value + mark        # the same byte may have ended a word and passed this guard
            self._visit(ret, self._single(intern(&self.frames, changed, 3), parent), 0)
        return 0

    cdef int _fresh(self, int32_t rule, int32_t frame, int32_t rep, int32_t stack) except -1:
        """Calls a language without the words that each stack's register holds."""
        cdef Py_ssize_t k
        cdef int32_t top, parent, scope, words, other
        for k in range(1, seq_len(&self.stacks, stack), 2):
            top, parent = seq_at(&self.stacks, stack)[k], seq_at(&self.stacks, stack)[k + 1]
            scope = seq_at(&self.frames, top)[1]
            if scope < 0 or self.reps.data[REP * scope + 3] != SCOPE:
                raise GrammarError("grammar: a guard stands outside of a register's scope")
            words = seq_at(&self.values, seq_at(&self.frames, top)[2] >> 1)[1]
            other = self._rule_without(rule, self.reps.data[REP * rep + 4], words) if words else rule
            if other >= 0:
                self._visit(self._start(other), self._push(frame, self._single(top, parent)), 1)
        return 0

    cdef int32_t _rule_without(self, int32_t rule, int32_t family, int32_t words) except -2:
        """The rule of a language without some words, made on first use; -1 where nothing is left."""
        cdef Py_ssize_t i
        cdef TableSizes before
        key = (family, frozenset([self.words[seq_at(&self.wordsets, words)[i]] for i in range(seq_len(&self.wordsets, words))]))
        known = self.without.get(key)
        if known is None:
            body = self.families[family](key[1])
            if body is None:
                known = -1
            else:
                known = self._number(body)
                before = self._sizes()
                try:
                    self._grow(known, None)
                except BaseException:
                    self._forget(before)
                    raise
                self.removed_states += self.nfa_states - before.states
            self.without[key] = known
        return known

    cdef int32_t _marked(self, int32_t stack) except -1:
        """The stacks with their registers marked: a word of a distinct language has just ended, and is not noted yet."""
        cdef Py_ssize_t k
        cdef int32_t frame, parent, single, out = -1
        cdef int32_t[3] changed
        for k in range(1, seq_len(&self.stacks, stack), 2):
            frame, parent = seq_at(&self.stacks, stack)[k], seq_at(&self.stacks, stack)[k + 1]
            changed[0], changed[1], changed[2] = (seq_at(&self.frames, frame)[0], seq_at(&self.frames, frame)[1],
                                                  seq_at(&self.frames, frame)[2] | 1)
            single = self._single(intern(&self.frames, changed, 3), parent)
            out = single if out < 0 else self._union(out, single)
        return out

    cdef int32_t frozen(self, int32_t config, int length, int32_t horizon) except -1:
        """A config that allows the same texts of up to `horizon` bytes: counts that come to no bound on the way stand still in it, so
        that a walk over the vocabulary meets few configs. Memoised: `length` is the number of the horizon."""
        cdef Py_ssize_t k, at, n = seq_len(&self.configs, config)
        cdef int32_t stack
        cdef bint same = True
        at = HORIZONS * <Py_ssize_t>config + length
        while self.c_frozen.n <= at:
            put(&self.c_frozen, -1)
        if self.c_frozen.data[at] >= 0:
            return self.c_frozen.data[at]
        self.items.n = 0
        for k in range(1, n, 2):
            stack = self._stack_frozen(seq_at(&self.configs, config)[k + 1], length, horizon)
            same = same and stack == seq_at(&self.configs, config)[k + 1]
            put(&self.items, seq_at(&self.configs, config)[k])
            put(&self.items, stack)
        self.c_frozen.data[at] = config if same else self._intern_config(self.accepts(config))
        return self.c_frozen.data[at]

    cdef int32_t _stack_frozen(self, int32_t stack, int length, int32_t horizon) except -1:
        cdef Py_ssize_t k, n = seq_len(&self.stacks, stack), at = HORIZONS * <Py_ssize_t>stack + length
        cdef int32_t frame, parent, other, single, out = -1
        cdef int32_t[1] only
        cdef bint same = True
        while self.s_frozen.n <= at:
            put(&self.s_frozen, -1)
        if self.s_frozen.data[at] >= 0:
            return self.s_frozen.data[at]
        if seq_at(&self.stacks, stack)[0]:
            only[0] = 1
            out = intern(&self.stacks, only, 1)
        for k in range(1, n, 2):
            frame, parent = seq_at(&self.stacks, stack)[k], seq_at(&self.stacks, stack)[k + 1]
            other = self._stack_frozen(parent, length, horizon)
            same = same and other == parent
            parent = other
            other = self._frozen(frame, horizon)
            same = same and other == frame
            single = self._single(other, parent)
            out = single if out < 0 else self._union(out, single)
        self.s_frozen.data[at] = stack if same else out
        return self.s_frozen.data[at]

    cdef int32_t _frozen(self, int32_t frame, int32_t horizon) except -1:
        """The frame with its count at the last bound before it, standing still, where no bound is within the horizon."""
        cdef int32_t rep = seq_at(&self.frames, frame)[1], scope, at, count, bound, last = 0
        cdef int32_t[3] changed
        cdef Py_ssize_t k
        if rep < 0:
            return frame
        changed[0], changed[1] = seq_at(&self.frames, frame)[0], rep
        if self.reps.data[REP * rep + 3] == COUNTED:
            count = seq_at(&self.frames, frame)[2]
            last, bound = self.reps.data[REP * rep + 1], self.reps.data[REP * rep + 2]
            if count >= last:
                if bound < 0 or bound - count <= horizon + 1:
                    return frame
            elif last - count <= horizon + 1:
                return frame
            else:
                last = 0
            changed[2] = last | FROZEN
            return intern(&self.frames, changed, 3)
        if self.reps.data[REP * rep + 3] != SCOPE:
            return frame
        scope = self.reps.data[REP * rep + 4]
        at = scope + 4 + self.scopes.data[scope + 3]
        count = seq_at(&self.values, seq_at(&self.frames, frame)[2] >> 1)[0]
        if self.scopes.data[at] == 0 or count & FROZEN:
            return frame
        for k in range(1, self.scopes.data[at] + 1):
            bound = self.scopes.data[at + k]
            if bound <= count:
                last = bound
            elif bound <= count + horizon + 1:
                return frame
        changed[2] = 2 * self._value(last | FROZEN, 0, NULL, 0)
        return intern(&self.frames, changed, 3)

    cdef int32_t _noted(self, int32_t config, object word) except -1:
        """The config with a word added to every register that is marked."""
        cdef Py_ssize_t k, n = seq_len(&self.configs, config)
        cdef dict memo = {}
        cdef list pairs = []
        cdef int32_t accept = self.accepts(config), deep = self.c_deep.data[config]
        for k in range(1, n, 2):
            pairs.append((seq_at(&self.configs, config)[k], self._stack_noted(seq_at(&self.configs, config)[k + 1], word, memo)))
        self.items.n = 0
        for d, stack in pairs:
            put(&self.items, d)
            put(&self.items, stack)
        config = self._intern_config(accept)
        self.c_deep.data[config] |= deep
        return config

    cdef int32_t _stack_noted(self, int32_t stack, object word, dict memo) except -1:
        cdef Py_ssize_t k, n = seq_len(&self.stacks, stack)
        cdef int32_t frame, parent, single, out = -1, bottom = seq_at(&self.stacks, stack)[0], rep
        cdef int32_t[3] changed
        cdef int32_t[1] only
        cdef int32_t *value
        known = memo.get(stack)
        if known is not None:
            return known
        if bottom and n == 1:
            memo[stack] = stack
            return stack
        if bottom:
            only[0] = 1
            out = intern(&self.stacks, only, 1)
        for k in range(1, n, 2):
            frame, parent = seq_at(&self.stacks, stack)[k], seq_at(&self.stacks, stack)[k + 1]
            rep = seq_at(&self.frames, frame)[1]
            if rep >= 0 and self.reps.data[REP * rep + 3] == SCOPE and seq_at(&self.frames, frame)[2] & 1:
                changed[0], changed[1] = seq_at(&self.frames, frame)[0], rep
                changed[2] = 2 * self._with_word(seq_at(&self.frames, frame)[2] >> 1, word)
                frame = intern(&self.frames, changed, 3)
            else:
                parent = self._stack_noted(parent, word, memo)
            single = self._single(frame, parent)
            out = single if out < 0 else self._union(out, single)
        memo[stack] = out
        return out

    def _with_word(self, int32_t value, word):
        """A register's value with one more word."""
        cdef Py_ssize_t i
        cdef int32_t words = seq_at(&self.values, value)[1], n = <int32_t>seq_len(&self.wordsets, words)
        cdef list numbers = [seq_at(&self.wordsets, words)[i] for i in range(n)]
        if word not in self.word_numbers:
            self.word_numbers[word] = len(self.words)
            self.words.append(word)
        number = self.word_numbers[word]
        if number in numbers:
            return value
        return self._restored_value(seq_at(&self.values, value)[0], [*numbers, number],
                                    [seq_at(&self.values, value)[i] for i in range(2, seq_len(&self.values, value))])

    def _restored_value(self, int32_t count, list numbers, list bits):
        """The number of the value with these words and members."""
        cdef Ints seq
        cdef int32_t words
        memset(&seq, 0, sizeof(Ints))
        try:
            for number in sorted(numbers):
                put(&seq, number)
            words = intern(&self.wordsets, seq.data, seq.n)
            seq.n = 0
            for part in bits:
                put(&seq, part)
            return self._value(count, words, seq.data, seq.n)
        finally:
            drop(&seq)

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
        reserve(&self.s_depth, 1)
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
        reserve(&self.u_result, 1)
        u = intern(&self.unions, pair, 2)
        if self.unions.count > before:
            put(&self.u_result, -1)
        elif self.u_result.data[u] >= 0:
            return self.u_result.data[u]
        na, nb = seq_len(&self.stacks, a), seq_len(&self.stacks, b)
        self.steps += na + nb
        if self.budget and self.spent + self.steps > self.budget:
            raise GrammarError(f"grammar: more than {self.budget} steps for one mask (max_items): repetitions inside repetitions match the "
                               "same text in too many ways")
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
            reserve(&self.s_depth, 1)
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
        self.spent += self.steps
        self.steps = 0
        self.work.n = 0
        self.touched.n = 0
        self.too_deep = False
        return 0

    cdef int32_t _finish(self) except -1:
        """Runs the queued closure to its end and interns the config it makes."""
        cdef Py_ssize_t i, k, n, at
        cdef int32_t d, stack, pending, accept = 0, frame, parent, rule, rep, count, least, most, pushed, frozen
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
                    rep = seq_at(&self.frames, frame)[1]
                    if rule < 0:
                        self._guard(seq_at(&self.frames, frame)[0], rep, stack)
                        continue
                    if rep >= 0 and self.reps.data[REP * rep + 3] == DISTINCT:
                        self._fresh(rule, frame, rep, stack)
                        continue
                    pushed = stack if self.d_calls.data[at + 3 + 3 * k] else self._push(frame, stack)
                    self._visit(self._start(rule), pushed, 1)
            if pending & 2 and self.d_accept.data[d]:
                stack = self.d_return.data[d]
                n = seq_len(&self.stacks, stack)
                self.steps += n
                accept |= seq_at(&self.stacks, stack)[0]
                for k in range(1, n, 2):
                    frame, parent = seq_at(&self.stacks, stack)[k], seq_at(&self.stacks, stack)[k + 1]
                    d = seq_at(&self.frames, frame)[0]
                    rep, count = seq_at(&self.frames, frame)[1], seq_at(&self.frames, frame)[2]
                    if rep < 0:
                        self._visit(d, parent, 0)
                        continue
                    if self.reps.data[REP * rep + 3] == SCOPE:
                        if self._closes(count >> 1, self.reps.data[REP * rep + 4]):
                            self._visit(d, parent, 0)
                        continue
                    if self.reps.data[REP * rep + 3] == DISTINCT:
                        self._visit(d, self._marked(parent), 0)
                        continue
                    least, most = self.reps.data[REP * rep + 1], self.reps.data[REP * rep + 2]
                    frozen = count & FROZEN
                    count &= ~FROZEN
                    if count >= least:
                        self._visit(d, parent, 0)
                    if most < 0 or count < most:
                        next_frame[0], next_frame[1] = d, rep
                        next_frame[2] = frozen | (count if frozen or (most < 0 and count >= least) else count + 1)
                        pushed = self._push(intern(&self.frames, next_frame, 3), parent)
                        self._visit(self._start(self.reps.data[REP * rep]), pushed, 1)
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
        reserve(&self.c_flags, 1)
        reserve(&self.c_deep, 1)
        config = intern(&self.configs, self.scratch.data, self.scratch.n)
        if self.configs.count > before:
            put(&self.c_flags, 0)
            put(&self.c_deep, 0)
            if self.configs.count > 8 * self.max_configs:
                raise GrammarError(f"grammar: more than {8 * self.max_configs} positions reached in one step (max_configs)")
        return config

    cdef int32_t _follow(self, int32_t config) except -1:
        """Ends a closure that began at a config; what it left out for its depth is noted where a text would miss it."""
        cdef int32_t found = self._finish()
        if self.too_deep:
            self.c_deep.data[found if found else config] = 1
        return found

    cdef int32_t start_config(self) except -1:
        self._begin()
        self._visit(self._start(0), 0, 0)     # not as a call: the root may be finished at once
        return self._follow(0)

    cdef int accepts(self, int32_t config) noexcept:
        return seq_at(&self.configs, config)[0]

    cdef int32_t union_configs(self, int32_t a, int32_t b) except -1:
        cdef Py_ssize_t i
        cdef int32_t accept, deep
        if a == 0 or a == b:
            return b
        if b == 0:
            return a
        self.items.n = 0
        for i in range(1, seq_len(&self.configs, a)):
            put(&self.items, seq_at(&self.configs, a)[i])
        for i in range(1, seq_len(&self.configs, b)):
            put(&self.items, seq_at(&self.configs, b)[i])
        accept, deep = self.accepts(a) | self.accepts(b), self.c_deep.data[a] | self.c_deep.data[b]
        a = self._intern_config(accept)
        self.c_deep.data[a] |= deep
        return a

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
            c = self._follow(config)
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
                c = self._follow(config)
                for j in range(position, next_bound):
                    row[j] = c
            position = next_bound
        return 0

    def sizes(self):
        """What the automaton holds now: counts by table, for tests and reports."""
        cdef Py_ssize_t i, rows = 0
        with cython.critical_section(self), self.turn:
            for i in range(self.rows_cap):
                rows += self.rows[i] != NULL
            return {"states": self.nfa_states, "rules": self.rule_start.n, "dstates": self.dstates.count, "frames": self.frames.count,
                    "stacks": self.stacks.count, "configs": self.configs.count, "rows": rows,
                    "steps": self.spent + self.steps, "walked": self.walked,
                    "bytes": 4 * (rows * self.width + self.stacks.pool.cap + self.configs.pool.cap + self.unions.pool.cap
                                  + self.dstates.pool.cap + self.d_segs.cap)}
