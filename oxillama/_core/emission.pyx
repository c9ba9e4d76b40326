"""Turns grammar nodes into rule networks.

Nodes are tuples, their kind first (see `oxillama.grammar.nodes`). Small rules and rules called once are copied into their callers; a
repetition that would take many copies becomes a counted call; code points become UTF-8 byte ranges whose common tails are shared.
"""
from libc.stdint cimport int32_t
from libc.string cimport memset

from oxillama._core.networks cimport COUNTED, DISTINCT, DONE, GUARD, TableSizes, Networks, REP, SCOPE
from oxillama._core.sequences cimport Ints, drop, put, reserve

from oxillama.errors import GrammarError

import functools

cdef enum:
    INLINE_WEIGHT = 12      # rules up to this size are copied into their callers (fewer frames, better determinism)
    ONCE_WEIGHT = 400       # rules that only one place calls: up to this size
    UNROLL_WEIGHT = 24      # repetitions up to this size are copied instead of counted
    INFINITE = 1 << 30
    OPEN_COUNT = (1 << 30) + 1
    FEW_RANGES = 128


def kept_by_ranges(function):
    """Results of a function of ranges (its first argument) are remembered: many of those for few ranges, few of those for many,
    which are megabytes."""
    few = functools.lru_cache(maxsize=1 << 12)(function)
    many = functools.lru_cache(maxsize=4)(function)

    @functools.wraps(function)
    def found(ranges, *more):
        return (few if len(ranges) <= FEW_RANGES else many)(ranges, *more)

    return found


@kept_by_ranges
def utf8_sequences(ranges):
    """The byte-range sequences that spell the code points in `ranges` ((low, high) pairs) as UTF-8; surrogates have no spelling."""
    out = []
    for low, high in ranges:
        for first, last in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)):
            a, b = max(low, first), min(high, last)
            if a <= b:
                _split_utf8(a, b, out)
    return tuple(out)


def _split_utf8(a, b, out):
    """Appends the sequences for code points a..b, all of one encoded length, splitting where the last bytes do not run full."""
    x, y = chr(a).encode("utf-8"), chr(b).encode("utf-8")
    for i in range(1, len(x)):
        unit = (1 << (6 * i)) - 1
        if (a & ~unit) != (b & ~unit):
            if a & unit:
                _split_utf8(a, a | unit, out)
                _split_utf8((a | unit) + 1, b, out)
                return
            if (b & unit) != unit:
                _split_utf8(a, (b & ~unit) - 1, out)
                _split_utf8(b & ~unit, b, out)
                return
    out.append(tuple(zip(x, y)))


def count_bounds(body, least, most):
    """The counts at which something changes for a register that only counts: between two of them its count does not matter."""
    bounds, todo, seen = {0, least, OPEN_COUNT if most < 0 else most + 1}, [body], set()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        kind = node[0]
        if kind == TAKE:
            if node[2] is None:
                return set()
            for low, high in node[2]:
                bounds.add(low)
                bounds.add(high + 1)
        elif kind == FRESH:
            return set()
        elif kind == SEQUENCE or kind == CHOICE:
            todo.extend(node[1])
        elif kind == REPEAT:
            todo.append(node[1])
        elif kind == NETWORK:
            for _, edges in node[2]:
                todo.extend([part for part, _ in edges])
    return bounds


cdef class Emission(Networks):
    """Networks that are written from nodes: all at once, or rule by rule as the machine first calls them (`deferred`)."""

    def __dealloc__(self):
        drop(&self.scopes)

    cdef int build(self, list rules, int symbols, names, Py_ssize_t max_states, deferred) except -1:
        """Compiles the rules, rule 0 the root. Raises `GrammarError` for left recursion, endless rules and too many states.

        `deferred` (or None) has `rules`, `lazy`, `write`, `release` and `alone`: rule i with `lazy[i]` gets its network when the machine
        first calls it, from `rules[i]`, which `write(i)` fills where it is None and `release(i)` may empty again. It must match something,
        never nothing, and not begin with itself.
        Rules are read and written in `alone()`, a machine is built in it too.
        """
        cdef Py_ssize_t i
        self.symbols = symbols
        self.width = 256 + symbols
        self.max_states = max_states
        self.deferred = deferred
        self.weights, self.bodies_seen, self.uses = {}, {}, {0: 2}
        self.bodies, self.outer, self.inner, self.families, self.scope_at = [], [], {}, [], {}
        for i in range(len(rules)):
            self._inner(i, rules)
        self._count_uses(self.bodies)
        self._grow(-1, names)
        if deferred is None and not self.distinct:
            self.bodies = self.weights = self.uses = self.bodies_seen = self.outer = self.inner = None
        return 0

    cdef Py_ssize_t _inner(self, Py_ssize_t index, rules) except -1:
        """The number that a rule of the grammar has here (repeated bodies have numbers too); None is the body of a deferred one."""
        known = self.inner.get(index)
        if known is None:
            known = self.inner[index] = self._number(None if self.deferred is not None and self.deferred.lazy[index] else rules[index])
            self.outer[known] = index
        return known

    cdef Py_ssize_t _number(self, body) except -1:
        self.bodies.append(body)
        self.outer.append(-1)
        put(&self.rule_start, -1)
        put(&self.rule_final, -1)
        put(&self.rule_flags, 0 if body is not None else DONE)
        return len(self.bodies) - 1

    cdef Py_ssize_t _most(self, rule) except -1:
        """The size up to which a rule is copied into its callers."""
        return ONCE_WEIGHT if self.uses.get(rule, 0) == 1 else INLINE_WEIGHT

    cdef int _count_uses(self, bodies) except -1:
        """How many places call each rule."""
        cdef int kind
        todo = [body for body in bodies if body is not None]
        while todo:
            node = todo.pop()
            kind = node[0]
            if kind == RULE:
                rule = self._called(node)
                self.uses[rule] = self.uses.get(rule, 0) + 1
            elif kind == SEQUENCE or kind == CHOICE:
                todo.extend(node[1])
            elif kind == REPEAT:
                todo.append(node[1])
                if node[2] > 1 or node[3] > 1:        # copies
                    todo.append(node[1])
            elif kind == REGISTER or kind == FRESH:
                todo.append(node[1])
                todo.append(node[1])
            elif kind == NETWORK:
                for _, edges in node[2]:
                    todo.extend([part for part, _ in edges])
        return 0

    cdef Py_ssize_t _called(self, node) except -1:
        return self._inner(node[1], self.deferred.rules if self.deferred is not None else None)

    cdef bint _copied(self, Py_ssize_t rule) except -1:
        """Whether calls of a rule are replaced by copies of it."""
        if self.bodies[rule] is None:
            return False
        known = self.weights.get(rule)
        return known is not None and 0 <= known <= self._most(rule)

    cdef Py_ssize_t _weigh(self, node, int depth) except -1:
        """About how many states a node takes; a rule met while it is being weighed is recursive and weighs as a call."""
        cdef int kind = node[0]
        cdef Py_ssize_t total = 0, copies
        if depth > 400:
            return INFINITE
        if kind == LITERAL:
            return len(node[1])
        if kind == CLASS:
            return 1 if all([high < 128 for _, high in node[1]]) else 8
        if kind == SEQUENCE or kind == CHOICE:
            for part in node[1]:
                total += self._weigh(part, depth + 1)
                if total > INFINITE:
                    return INFINITE
            return total
        if kind == REPEAT:
            copies = node[3] if node[3] > 0 else node[2] + 1
            return min(<Py_ssize_t>INFINITE, self._weigh(node[1], depth + 1) * min(<Py_ssize_t>INFINITE, copies))
        if kind == RULE:
            rule = self._called(node)
            if self.bodies[rule] is None:
                return 1
            known = self.weights.get(rule)
            if known is None:
                self.weights[rule] = -1
                total = self._weigh(self.bodies[rule], depth + 1)
                if self.weights[rule] == -2:         # met again below: recursive
                    total = INFINITE
                self.weights[rule] = total
                return total if total <= self._most(rule) else 1
            if known < 0:
                self.weights[rule] = -2
                return 1
            return known if known <= self._most(rule) else 1
        if kind == SYMBOL or kind == REGISTER or kind == TAKE or kind == FRESH:
            return 1
        for accept, edges in node[2]:
            total += 1
            for part, target in edges:
                total += self._weigh(part, depth + 1)
        return total

    cdef int _emit(self, node, int32_t a, int32_t b, int depth) except -1:
        """Adds a network for `node` from state a to state b."""
        cdef int kind = node[0]
        if depth > 2000:
            raise GrammarError("grammar: nested deeper than 2000 levels")
        if kind == LITERAL:
            return self._emit_literal(<bytes>node[1], a, b)
        if kind == CLASS:
            return self._emit_class(node[1], a, b)
        if kind == SEQUENCE:
            return self._emit_sequence(node[1], a, b, depth)
        if kind == CHOICE:
            return self._emit_choice(node[1], a, b, depth)
        elif kind == REPEAT:
            return self._emit_repeat(node[1], node[2], node[3], a, b, depth)
        elif kind == RULE:
            self._weigh(node, 0)
            rule = self._called(node)
            if self._copied(rule):
                return self._emit_apart(self.bodies[rule], a, b, depth)
            return self._call(a, rule, -1, b)
        elif kind == SYMBOL:
            for low, high in node[1]:         # "any but" ranges are open above
                if low < self.width:
                    self._bytes(a, low, min(<int32_t>high, <int32_t>self.width - 1), b)
        elif kind == REGISTER:
            return self._emit_scope(node, a, b)
        elif kind == TAKE:
            return self._emit_take(node, a, b)
        elif kind == FRESH:
            return self._emit_fresh(node, a, b)
        else:
            return self._emit_network(node[1], node[2], a, b, depth)
        return 0

    cdef int _rep(self, int32_t rule, int32_t x, int32_t y, int32_t kind, int32_t more) except -1:
        """A new entry in `reps`; returns its number."""
        reserve(&self.reps, REP)
        put(&self.reps, rule); put(&self.reps, x); put(&self.reps, y); put(&self.reps, kind); put(&self.reps, more)
        return <int>(self.reps.n // REP - 1)

    cdef int32_t _apart(self, node) except -1:
        """The rule of a node that is called by number wherever it stands."""
        cdef int32_t rule
        if node[0] == RULE:
            rule = <int32_t>self._called(node)
            self.weights[rule] = INFINITE
            return rule
        known = self.bodies_seen.get(id(node))
        if known is None:
            known = self.bodies_seen[id(node)] = self._number(node)
        return known

    cdef int _emit_scope(self, node, int32_t a, int32_t b) except -1:
        """A call under a register of its own: (REGISTER, body, least, most, members that must be taken)."""
        cdef int32_t rule = self._apart(node[1]), at
        cdef Py_ssize_t k
        least, most, needed = node[2], node[3], node[4]
        key = (node[2:], id(node[1]))
        known = self.scope_at.get(key)
        if known is None:
            words = [0] * ((max(needed) // 31 + 1) if needed else 0)
            for k in needed:
                words[k // 31] |= 1 << (k % 31)
            bounds = sorted(count_bounds(node[1], least, most))
            reserve(&self.scopes, 5 + len(words) + len(bounds))
            known = self.scopes.n
            put(&self.scopes, least); put(&self.scopes, most); put(&self.scopes, <int32_t>len(needed)); put(&self.scopes, <int32_t>len(words))
            for word in words:
                put(&self.scopes, word)
            put(&self.scopes, <int32_t>len(bounds))
            for word in bounds:
                put(&self.scopes, word)
            self.counting = self.counting or len(bounds) > 0
            self.scope_at[key] = known
        at = known
        return self._call(a, rule, self._rep(rule, 0, 0, SCOPE, at), b)

    cdef int _emit_take(self, node, int32_t a, int32_t b) except -1:
        """A guard of the register: (TAKE, member, spans)."""
        cdef int32_t at = -1
        if node[2] is not None:
            known = self.scope_at.get(node[2])
            if known is None:
                known = self.scopes.n
                reserve(&self.scopes, 1 + 2 * len(node[2]))
                put(&self.scopes, <int32_t>len(node[2]))
                for low, high in node[2]:
                    put(&self.scopes, low)
                    put(&self.scopes, high)
                self.scope_at[node[2]] = known
            at = known
        key = ("take", node[1], at)
        rep = self.scope_at.get(key)
        if rep is None:
            rep = self.scope_at[key] = self._rep(-1, node[1], at, GUARD, 0)
        return self._call(a, -1, rep, b)

    cdef int _emit_fresh(self, node, int32_t a, int32_t b) except -1:
        """A call of a language without the words that the register holds: (FRESH, base, family)."""
        cdef int32_t rule = self._apart(node[1])
        self.distinct = True
        self.families.append(node[2])
        return self._call(a, rule, self._rep(rule, 0, 0, DISTINCT, <int32_t>len(self.families) - 1), b)

    cdef int _emit_apart(self, node, int32_t a, int32_t b, int depth) except -1:
        """A node between two states of its own."""
        cdef int32_t s = self._state(), t = self._state()
        self._eps(a, s)
        self._emit(node, s, t, depth + 1)
        return self._eps(t, b)

    cdef int _emit_choice(self, parts, int32_t a, int32_t b, int depth) except -1:
        """Alternatives; literals share the states of what they begin with alike, each with the one before it."""
        cdef Py_ssize_t i, n, common
        cdef int32_t t
        cdef const unsigned char[::1] data
        cdef const unsigned char[::1] before = b""
        cdef Ints path                            # the states along the literal before, but for its last
        cdef int kind
        memset(&path, 0, sizeof(Ints))
        try:
            put(&path, a)
            for part in parts:
                kind = part[0]
                if kind == LITERAL and len(part[1]):
                    data = part[1]
                    n = data.shape[0]
                    common = 0
                    while common < min(path.n, n) - 1 and data[common] == before[common]:
                        common += 1
                    path.n = common + 1
                    for i in range(common, n):
                        t = b if i == n - 1 else self._state()
                        self._bytes(path.data[i], data[i], data[i], t)
                        put(&path, t)
                    path.n = n
                    before = data
                elif kind == LITERAL or kind == CLASS or kind == RULE or kind == SYMBOL:
                    self._emit(part, a, b, depth + 1)
                else:             # own end states: an alternative that ends in a loop must not leak into its siblings
                    self._emit_apart(part, a, b, depth)
        finally:
            drop(&path)
        return 0

    cdef int _emit_literal(self, bytes data, int32_t a, int32_t b) except -1:
        cdef Py_ssize_t i, n = len(data)
        cdef int32_t s = a, t
        if n == 0:
            return self._eps(a, b)
        for i in range(n):
            t = b if i == n - 1 else self._state()
            self._bytes(s, <unsigned char>data[i], <unsigned char>data[i], t)
            s = t
        return 0

    cdef int _emit_sequence(self, parts, int32_t a, int32_t b, int depth) except -1:
        cdef Py_ssize_t i, n = len(parts)
        cdef int32_t s = a, t
        if n == 0:
            return self._eps(a, b)
        for i in range(n):
            t = b if i == n - 1 else self._state()
            self._emit(parts[i], s, t, depth + 1)
            s = t
        return 0

    cdef int _emit_network(self, int32_t start, states, int32_t a, int32_t b, int depth) except -1:
        """A node that is an automaton already: per state whether it accepts, and its (node, target) edges.

        The same node into the same state again is a copy of the edges it begins with: what lies behind them leads nowhere but there.
        """
        cdef int32_t first = <int32_t>self.nfa_states, s
        cdef TableSizes before
        cdef Py_ssize_t i
        cdef dict begun = {}
        for i in range(len(states)):
            self._state()
        self._eps(a, first + start)
        for i in range(len(states)):
            s = first + <int32_t>i
            accept, edges = states[i]
            if accept:
                self._eps(s, b)
            for part, target in edges:
                known = begun.get((id(part), target))
                if known is not None:
                    self._begin_alike(s, known)
                    continue
                before = self._sizes()
                self._emit(part, s, first + <int32_t>target, depth + 1)
                if self.byte_edges.n - before.byte_edges > 4:
                    begun[(id(part), target)] = (s, before.eps, self.eps.n, before.byte_edges, self.byte_edges.n, before.call_edges,
                                                 self.call_edges.n)
        return 0

    cdef int _begin_alike(self, int32_t a, tuple known) except -1:
        """Copies the edges that were made from a state: (state, where they begin and end among empty, byte and call edges)."""
        cdef int32_t like = known[0]
        cdef Py_ssize_t i
        for i in range(<Py_ssize_t>known[1], <Py_ssize_t>known[2], 2):
            if self.eps.data[i] == like:
                self._eps(a, self.eps.data[i + 1])
        for i in range(<Py_ssize_t>known[3], <Py_ssize_t>known[4], 4):
            if self.byte_edges.data[i] == like:
                self._bytes(a, self.byte_edges.data[i + 1], self.byte_edges.data[i + 2], self.byte_edges.data[i + 3])
        for i in range(<Py_ssize_t>known[5], <Py_ssize_t>known[6], 4):
            if self.call_edges.data[i] == like:
                self._call(a, self.call_edges.data[i + 1], self.call_edges.data[i + 2], self.call_edges.data[i + 3])
        return 0

    cdef int _emit_class(self, ranges, int32_t a, int32_t b) except -1:
        """One code point out of `ranges`; common tails of byte ranges are shared."""
        cdef int32_t s, t, low, high
        cdef Py_ssize_t i, k = 0, n = len(ranges)
        cdef list heads
        while k < n:                              # the ASCII part: an edge each
            low, high = ranges[k]
            if high >= 0x80:
                break
            self._bytes(a, low, high, b)
            k += 1
        if k == n:
            return 0
        low, high = ranges[k]
        if low < 0x80:
            self._bytes(a, low, 0x7F, b)
            ranges = ((0x80, high), *ranges[k + 1:])
        elif k:
            ranges = ranges[k:]
        heads = self.heads.get((ranges, b))       # names differ in their ASCII letters: what lies beyond is mostly the same
        if heads is None:
            heads = []
            for sequence in utf8_sequences(ranges):
                t = b
                for i in range(len(sequence) - 1, 0, -1):
                    tail = (sequence[i:], b)
                    known = self.tails.get(tail)
                    if known is None:
                        s = self._state()
                        self._bytes(s, sequence[i][0], sequence[i][1], t)
                        self.tails[tail] = s
                        t = s
                    else:
                        t = known
                heads.append((sequence[0][0], sequence[0][1], t))
            self.heads[(ranges, b)] = heads
        for low, high, t in heads:
            self._bytes(a, low, high, t)
        return 0

    cdef int _emit_repeat(self, body, Py_ssize_t least, Py_ssize_t most, int32_t a, int32_t b, int depth) except -1:
        cdef int kind = body[0]
        cdef int32_t s, t, loop, rule
        cdef Py_ssize_t i, copies, weight
        cdef bint called
        if most == 0:
            return self._eps(a, b)
        copies = most if most > 0 else least + 1
        weight = self._weigh(body, 0)
        called = kind == RULE and not self._copied(self._called(body))     # copies would be calls: no fewer frames
        if copies > 1 and (called or (weight + 1) * copies > UNROLL_WEIGHT) and not (least <= 1 and most < 0):
            key = body if kind == CLASS else id(body)
            known = self.bodies_seen.get(key)
            if kind == RULE:
                rule = <int32_t>self._called(body)
                self.weights[rule] = INFINITE          # called by number from here on: it needs its own network
            elif known is None:
                rule = <int32_t>self._number(body)
                self.bodies_seen[key] = rule
            else:
                rule = known
            self.counting = True
            return self._call(a, rule, self._rep(rule, <int32_t>least, <int32_t>most, COUNTED, 0), b)
        s = self._state()
        self._eps(a, s)
        for i in range(least if most >= 0 else max(least - 1, <Py_ssize_t>0)):
            t = self._state()
            self._emit(body, s, t, depth + 1)
            s = t
        if most < 0:
            loop = self._state()
            t = self._state()
            self._eps(s, loop)
            self._emit(body, loop, t, depth + 1)
            self._eps(t, loop)
            self._eps(t, b)
            if least == 0:
                self._eps(s, b)
            return 0
        for i in range(most - least):
            self._eps(s, b)
            t = self._state()
            self._emit(body, s, t, depth + 1)
            s = t
        return self._eps(s, b)

    cdef int _grow(self, Py_ssize_t rule, names) except -1:
        """Emits and settles networks: all that need one (rule -1, at first), or that of a deferred rule and of what it calls. States and
        edges are only ever appended."""
        cdef Py_ssize_t i, k
        cdef TableSizes old = self._sizes()
        cdef list fresh = []
        self.tails, self.heads = {}, {}
        if rule < 0:
            i = 0
            while i < len(self.bodies):           # repeats append bodies while we go
                if self.bodies[i] is not None and (i == 0 or not self._copied(i)):
                    self._emit_rule(i, fresh)
                i += 1
        else:
            body = self.bodies[rule]
            if body is None:
                if self.deferred.rules[self.outer[rule]] is None:
                    self.deferred.write(self.outer[rule])
                body = self.deferred.rules[self.outer[rule]]
            self._count_uses([body])
            self.bodies[rule] = body
            self._emit_rule(rule, fresh)
            self.bodies[rule] = None              # never copied into others
            self.deferred.release(self.outer[rule])
        k = old.call_edges
        while k < self.call_edges.n:              # rules thought to be copied everywhere may still be called
            i = self.call_edges.data[k + 1]
            k += 4
            if i >= 0 and self.bodies[i] is not None and self.rule_start.data[i] < 0:
                self._emit_rule(i, fresh)
        self.tails = self.heads = None
        return self.settle(fresh, old, names)

    cdef int _emit_rule(self, Py_ssize_t rule, list fresh) except -1:
        """A rule's start and final state and what lies between."""
        cdef int32_t start = self._state(), final = self._state()
        self.rule_start.data[rule], self.rule_final.data[rule] = start, final
        self._emit(self.bodies[rule], start, final, 0)
        fresh.append(rule)
        return 0
