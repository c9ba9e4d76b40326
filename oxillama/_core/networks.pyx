"""Turns grammar nodes into rule networks: nondeterministic automata over bytes and calls, one per rule.

Nodes are tuples (see `oxillama.grammar.nodes`). Small rules and rules called once are copied into their callers; a repetition that would
take many copies becomes a counted call; code points become UTF-8 byte ranges whose common tails are shared. Afterwards useless edges go
(`_prune`), calls that can match nothing are bypassed (`_bypass_nullable`), and left recursion is refused, because no finite closure
exists for it. What is left are flat edge lists, indexed by source state, that the pushdown machine determinises on demand.
"""
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memset

from oxillama.errors import GrammarError

cdef enum:
    INLINE_WEIGHT = 12      # rules up to this size are copied into their callers (fewer frames, better determinism)
    ONCE_WEIGHT = 400       # rules that only one place calls: up to this size
    UNROLL_WEIGHT = 24      # repetitions up to this size are copied instead of counted
    INFINITE = 1 << 30
    DONE = 1                # a rule can finish
    NULLABLE = 2            # a rule can match nothing


cdef int index_edges(Ints *edges, int stride, Py_ssize_t old, Py_ssize_t low, Py_ssize_t high, Ints *at) except -1:
    """Sorts the edges from int `old` on, all of states low..high-1, by source (stable by count); `at` gets first edges per state."""
    cdef Py_ssize_t i, n = (edges.n - old) // stride, before = old // stride
    cdef int32_t *sorted_edges = <int32_t *>malloc((edges.n - old + 1) * sizeof(int32_t))
    cdef int32_t *fill = <int32_t *>calloc(high - low + 2, sizeof(int32_t))
    cdef int32_t src
    if sorted_edges == NULL or fill == NULL:
        free(sorted_edges)
        free(fill)
        raise MemoryError()
    for i in range(n):
        fill[edges.data[old + i * stride] - low + 1] += 1
    for i in range(high - low):
        fill[i + 1] += fill[i]
    at.n = low
    for i in range(high - low + 1):
        put(at, <int32_t>(before + fill[i]))
    for i in range(n):
        src = edges.data[old + i * stride] - <int32_t>low
        memcpy(sorted_edges + <Py_ssize_t>fill[src] * stride, edges.data + old + i * stride, stride * sizeof(int32_t))
        fill[src] += 1
    if n:
        memcpy(edges.data + old, sorted_edges, n * stride * sizeof(int32_t))
    free(fill)
    free(sorted_edges)
    return 0


def utf8_sequences(ranges):
    """The byte-range sequences that spell the code points in `ranges` ((low, high) pairs) as UTF-8; surrogates have no spelling."""
    out = []
    for low, high in ranges:
        for first, last in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)):
            a, b = max(low, first), min(high, last)
            if a <= b:
                _split_utf8(a, b, out)
    return out


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


cdef class Networks:
    """The networks of a grammar's rules; the base of the pushdown machine, which alone makes them (`build`)."""

    cdef int build(self, list rules, int symbols, names, Py_ssize_t max_states, deferred) except -1:
        """Compiles the rules, rule 0 the root. Raises `GrammarError` for left recursion, endless rules and too many states.

        `deferred` (or None) has `rules`, `lazy` and `write`: rule i with `lazy[i]` gets its network when the machine first calls it, from
        `rules[i]`, which `write(i)` fills where it is None. It must match something, never nothing, and not begin with itself.
        """
        cdef Py_ssize_t i
        self.symbols = symbols
        self.width = 256 + symbols
        self.max_states = max_states
        self.deferred = deferred
        self.weights, self.utf8_cache, self.bodies_seen, self.uses = {}, {}, {}, {0: 2}
        self.bodies, self.outer, self.inner = [], [], {}
        for i in range(len(rules)):
            self._inner(i, rules)
        self._count_uses(self.bodies)
        self._grow(-1, names)
        if deferred is None:
            self.bodies = self.weights = self.utf8_cache = self.uses = self.bodies_seen = self.outer = self.inner = None
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

    def __dealloc__(self):
        drop(&self.eps); drop(&self.byte_edges); drop(&self.call_edges); drop(&self.reps); drop(&self.rule_start)
        drop(&self.rule_final); drop(&self.eps_at); drop(&self.byte_at); drop(&self.call_at); drop(&self.set_work); drop(&self.rule_flags)
        free(self.stamp)
        free(self.state_flags)

    cdef int32_t _state(self) except -1:
        if self.nfa_states >= self.max_states:
            raise GrammarError(f"grammar: needs more than {self.max_states} states (max_states)")
        self.nfa_states += 1
        return <int32_t>(self.nfa_states - 1)

    cdef int _eps(self, int32_t a, int32_t b) except -1:
        put(&self.eps, a)
        return put(&self.eps, b)

    cdef int _bytes(self, int32_t a, int32_t low, int32_t high, int32_t b) except -1:
        put(&self.byte_edges, a)
        put(&self.byte_edges, low)
        put(&self.byte_edges, high)
        return put(&self.byte_edges, b)

    cdef int _call(self, int32_t a, int32_t rule, int32_t rep, int32_t b) except -1:
        put(&self.call_edges, a)
        put(&self.call_edges, rule)
        put(&self.call_edges, rep)
        return put(&self.call_edges, b)

    cdef Py_ssize_t _most(self, rule) except -1:
        """The size up to which a rule is copied into its callers."""
        return ONCE_WEIGHT if self.uses.get(rule, 0) == 1 else INLINE_WEIGHT

    def _count_uses(self, bodies):
        """How many places call each rule."""
        todo = [body for body in bodies if body is not None]
        while todo:
            node = todo.pop()
            if node[0] == 5:
                rule = self._inner(node[1], self.deferred.rules if self.deferred is not None else None)
                self.uses[rule] = self.uses.get(rule, 0) + 1
            elif node[0] == 2 or node[0] == 3:
                todo.extend(node[1])
            elif node[0] == 4:
                todo.append(node[1])
                if node[2] > 1 or node[3] > 1:        # copies
                    todo.append(node[1])
            elif node[0] == 7:
                for _, edges in node[2]:
                    todo.extend([part for part, _ in edges])

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
        if kind == 0:
            return len(node[1])
        if kind == 1:
            return 1 if all([high < 128 for _, high in node[1]]) else 8
        if kind == 2 or kind == 3:
            for part in node[1]:
                total += self._weigh(part, depth + 1)
                if total > INFINITE:
                    return INFINITE
            return total
        if kind == 4:
            copies = node[3] if node[3] > 0 else node[2] + 1
            return min(<Py_ssize_t>INFINITE, self._weigh(node[1], depth + 1) * min(<Py_ssize_t>INFINITE, copies))
        if kind == 5:
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
        if kind == 6:
            return 1
        for accept, edges in node[2]:
            total += 1
            for part, target in edges:
                total += self._weigh(part, depth + 1)
        return total

    cdef int _emit(self, node, int32_t a, int32_t b, int depth) except -1:
        """Adds a network for `node` from state a to state b."""
        cdef int kind = node[0]
        cdef int32_t s, t, first
        cdef Py_ssize_t i, n
        if depth > 2000:
            raise GrammarError("grammar: nested deeper than 2000 levels")
        if kind == 0:
            data = <bytes>node[1]
            n = len(data)
            if n == 0:
                return self._eps(a, b)
            s = a
            for i in range(n):
                t = b if i == n - 1 else self._state()
                self._bytes(s, data[i], data[i], t)
                s = t
        elif kind == 1:
            self._emit_class(node[1], a, b)
        elif kind == 2:
            parts = node[1]
            n = len(parts)
            if n == 0:
                return self._eps(a, b)
            s = a
            for i in range(n):
                t = b if i == n - 1 else self._state()
                self._emit(parts[i], s, t, depth + 1)
                s = t
        elif kind == 3:
            for part in node[1]:
                if part[0] <= 1 or part[0] == 5 or part[0] == 6:
                    self._emit(part, a, b, depth + 1)
                    continue
                # own end states: an alternative that ends in a loop must not leak into its siblings
                s, t = self._state(), self._state()
                self._eps(a, s)
                self._emit(part, s, t, depth + 1)
                self._eps(t, b)
        elif kind == 4:
            self._emit_repeat(node[1], node[2], node[3], a, b, depth)
        elif kind == 5:
            self._weigh(node, 0)
            i = self._called(node)
            if self._copied(i):
                s, t = self._state(), self._state()
                self._eps(a, s)
                self._emit(self.bodies[i], s, t, depth + 1)
                self._eps(t, b)
            else:
                self._call(a, <int32_t>i, -1, b)
        elif kind == 6:
            for low, high in node[1]:         # "any but" ranges are open above
                if low < self.width:
                    self._bytes(a, low, min(<int32_t>high, <int32_t>self.width - 1), b)
        else:
            states = node[2]
            first = <int32_t>self.nfa_states
            for i in range(len(states)):
                self._state()
            self._eps(a, first + <int32_t>node[1])
            for i in range(len(states)):
                accept, edges = states[i]
                if accept:
                    self._eps(first + <int32_t>i, b)
                for part, target in edges:
                    self._emit(part, first + <int32_t>i, first + <int32_t>target, depth + 1)
        return 0

    cdef int _emit_class(self, ranges, int32_t a, int32_t b) except -1:
        cdef int32_t s, t
        sequences = self.utf8_cache.get(ranges)
        if sequences is None:
            sequences = self.utf8_cache[ranges] = utf8_sequences(ranges)
        tails = self.tails                    # (tail, b) -> the state from which exactly this tail of byte ranges leads to b
        for sequence in sequences:
            t = b
            for i in range(len(sequence) - 1, 0, -1):
                tail = sequence[i:]
                known = tails.get((tail, b))
                if known is None:
                    s = self._state()
                    self._bytes(s, sequence[i][0], sequence[i][1], t)
                    tails[(tail, b)] = s
                    t = s
                else:
                    t = known
            self._bytes(a, sequence[0][0], sequence[0][1], t)
        return 0

    cdef int _emit_repeat(self, body, Py_ssize_t least, Py_ssize_t most, int32_t a, int32_t b, int depth) except -1:
        cdef int32_t s, t, loop, rule
        cdef Py_ssize_t i, copies, weight
        if most == 0:
            return self._eps(a, b)
        copies = most if most > 0 else least + 1
        weight = self._weigh(body, 0)
        if copies > 1 and (weight + 1) * copies > UNROLL_WEIGHT and not (least <= 1 and most < 0):
            key = body if body[0] == 1 else id(body)
            known = self.bodies_seen.get(key)
            if body[0] == 5:
                rule = <int32_t>self._called(body)
                self.weights[rule] = INFINITE          # called by number from here on: it needs its own network
            elif known is None:
                rule = <int32_t>self._number(body)
                self.bodies_seen[key] = rule
            else:
                rule = known
            put(&self.reps, rule)
            put(&self.reps, <int32_t>least)
            put(&self.reps, <int32_t>most)
            self._call(a, rule, <int32_t>(self.reps.n // 3 - 1), b)
            return 0
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
        """Emits networks: all that need one (rule -1, at first), or that of a deferred rule and of what it calls. Then settles
        nullability, productivity and left recursion of what is new; states and edges are only ever appended."""
        cdef Py_ssize_t i, k, before = self.nfa_states
        cdef Py_ssize_t eps = self.eps.n, by_byte = self.byte_edges.n, calls = self.call_edges.n, reps = self.reps.n
        cdef int32_t *stamp
        cdef uint8_t *flags
        self.tails = {}
        fresh = []
        if rule < 0:
            i = 0
            while i < len(self.bodies):           # repeats append bodies while we go
                if self.bodies[i] is not None and (i == 0 or not self._copied(i)):
                    self._emit_rule(i)
                    fresh.append(i)
                i += 1
        else:
            if self.deferred.rules[self.outer[rule]] is None:
                self.deferred.write(self.outer[rule])
            body = self.deferred.rules[self.outer[rule]]
            self._count_uses([body])
            self.bodies[rule] = body
            self._emit_rule(rule)
            self.bodies[rule] = None              # never copied into others
            fresh.append(rule)
        k = calls
        while k < self.call_edges.n:              # rules thought to be copied everywhere may still be called
            i = self.call_edges.data[k + 1]
            k += 4
            if self.bodies[i] is not None and self.rule_start.data[i] < 0:
                self._emit_rule(i)
                fresh.append(i)
        self.tails = None
        stamp = <int32_t *>realloc(self.stamp, (self.nfa_states + 1) * sizeof(int32_t))
        if stamp != NULL:
            self.stamp = stamp
        flags = <uint8_t *>realloc(self.state_flags, self.nfa_states + 1)
        if flags != NULL:
            self.state_flags = flags
        if stamp == NULL or flags == NULL:
            raise MemoryError()
        for i in range(before, self.nfa_states + 1):
            self.stamp[i] = 0
            self.state_flags[i] = 0
        self._prune(fresh, before, eps, by_byte, calls)
        self._bypass_nullable(fresh, before, eps, calls, reps)
        index_edges(&self.eps, 2, eps, before, self.nfa_states, &self.eps_at)
        index_edges(&self.byte_edges, 4, by_byte, before, self.nfa_states, &self.byte_at)
        index_edges(&self.call_edges, 4, calls, before, self.nfa_states, &self.call_at)
        for rule in fresh:
            self.state_flags[self.rule_final.data[rule]] = FINAL
        for i in range(before, self.nfa_states):
            if (self.state_flags[i] or self.byte_at.data[i + 1] > self.byte_at.data[i]
                    or self.call_at.data[i + 1] > self.call_at.data[i]):
                self.state_flags[i] |= IMPORTANT
        self._refuse_left_recursion(fresh, names)
        return 0

    cdef int _emit_rule(self, Py_ssize_t rule) except -1:
        """A rule's start and final state and what lies between."""
        cdef int32_t start = self._state(), final = self._state()
        self.rule_start.data[rule], self.rule_final.data[rule] = start, final
        return self._emit(self.bodies[rule], self.rule_start.data[rule], self.rule_final.data[rule], 0)

    def _prune(self, fresh, Py_ssize_t before, Py_ssize_t eps, Py_ssize_t by_byte, Py_ssize_t calls):
        """Drops new edges that cannot lead to a finished match (calls of rules that never finish among them)."""
        cdef Py_ssize_t states = self.nfa_states - before
        cdef uint8_t *alive = <uint8_t *>calloc(states + 1, 1)
        cdef Ints incoming, at, stack
        cdef Py_ssize_t i, k, n
        cdef int32_t s, src, rule
        if alive == NULL:
            raise MemoryError()
        memset(&incoming, 0, sizeof(Ints))
        memset(&at, 0, sizeof(Ints))
        memset(&stack, 0, sizeof(Ints))
        try:
            # reversed edges: (target, source, rule or -1)
            for i in range(eps, self.eps.n, 2):
                put(&incoming, self.eps.data[i + 1] - before); put(&incoming, self.eps.data[i] - before); put(&incoming, -1)
            for i in range(by_byte, self.byte_edges.n, 4):
                put(&incoming, self.byte_edges.data[i + 3] - before); put(&incoming, self.byte_edges.data[i] - before)
                put(&incoming, -1)
            for i in range(calls, self.call_edges.n, 4):
                put(&incoming, self.call_edges.data[i + 3] - before); put(&incoming, self.call_edges.data[i] - before)
                put(&incoming, self._needed(i))
            index_edges(&incoming, 3, 0, 0, states, &at)
            owners = {}
            waiting = {}                      # rule -> sources alive as soon as that rule can finish
            for rule in fresh:
                owners[self.rule_start.data[rule] - before] = rule
                put(&stack, self.rule_final.data[rule] - before)
            while stack.n:
                stack.n -= 1
                s = stack.data[stack.n]
                if alive[s]:
                    continue
                alive[s] = 1
                owner = owners.get(s)
                if owner is not None:
                    self.rule_flags.data[<int32_t>owner] |= DONE
                    for src in waiting.pop(owner, ()):
                        put(&stack, src)
                for k in range(at.data[s], at.data[s + 1]):
                    src, rule = incoming.data[3 * k + 1], incoming.data[3 * k + 2]
                    if rule >= 0 and not self.rule_flags.data[rule] & DONE:
                        waiting.setdefault(rule, []).append(src)
                    elif not alive[src]:
                        put(&stack, src)
            if not self.rule_flags.data[<int32_t>fresh[0]] & DONE:
                raise GrammarError("grammar: the root rule can never finish a match")
            n = eps
            for i in range(eps, self.eps.n, 2):
                if alive[self.eps.data[i] - before] and alive[self.eps.data[i + 1] - before]:
                    memcpy(self.eps.data + n, self.eps.data + i, 2 * sizeof(int32_t))
                    n += 2
            self.eps.n = n
            n = by_byte
            for i in range(by_byte, self.byte_edges.n, 4):
                if alive[self.byte_edges.data[i] - before] and alive[self.byte_edges.data[i + 3] - before]:
                    memcpy(self.byte_edges.data + n, self.byte_edges.data + i, 4 * sizeof(int32_t))
                    n += 4
            self.byte_edges.n = n
            n = calls
            for i in range(calls, self.call_edges.n, 4):
                if not (alive[self.call_edges.data[i] - before] and alive[self.call_edges.data[i + 3] - before]):
                    continue
                if self.rule_flags.data[self.call_edges.data[i + 1]] & DONE:
                    memcpy(self.call_edges.data + n, self.call_edges.data + i, 4 * sizeof(int32_t))
                    n += 4
                elif self._needed(i) < 0:
                    self._eps(self.call_edges.data[i], self.call_edges.data[i + 3])
            self.call_edges.n = n
        finally:
            free(alive)
            drop(&incoming)
            drop(&at)
            drop(&stack)

    cdef int32_t _needed(self, Py_ssize_t edge) noexcept:
        """The rule that must match something for a call edge to be passed, or -1 where its repeat may be skipped."""
        cdef int32_t rep = self.call_edges.data[edge + 2]
        return -1 if rep >= 0 and self.reps.data[3 * rep + 1] == 0 else self.call_edges.data[edge + 1]

    def _bypass_nullable(self, fresh, Py_ssize_t before, Py_ssize_t eps, Py_ssize_t calls, Py_ssize_t reps):
        """Adds an empty edge beside every new call that can match nothing, until no more rules turn out nullable."""
        cdef Ints out, at, stack
        cdef Py_ssize_t i, k, states = self.nfa_states - before
        cdef int32_t s, t, rule
        cdef uint8_t *seen = <uint8_t *>calloc(states + 1, 1)
        if seen == NULL:
            raise MemoryError()
        memset(&out, 0, sizeof(Ints))
        memset(&at, 0, sizeof(Ints))
        memset(&stack, 0, sizeof(Ints))
        try:
            # Backwards from every final over empty edges; a call edge is empty once its rule is (or its repeat may be skipped).
            for i in range(eps, self.eps.n, 2):
                put(&out, self.eps.data[i + 1] - before); put(&out, self.eps.data[i] - before); put(&out, -1)
            for i in range(calls, self.call_edges.n, 4):
                put(&out, self.call_edges.data[i + 3] - before); put(&out, self.call_edges.data[i] - before)
                put(&out, self._needed(i))
            index_edges(&out, 3, 0, 0, states, &at)
            owners = {self.rule_start.data[<int32_t>rule] - before: rule for rule in fresh}
            waiting = {}
            for rule in fresh:
                put(&stack, self.rule_final.data[rule] - before)
            while stack.n:
                stack.n -= 1
                s = stack.data[stack.n]
                if seen[s]:
                    continue
                seen[s] = 1
                owner = owners.get(s)
                if owner is not None:
                    self.rule_flags.data[<int32_t>owner] |= NULLABLE
                    for t in waiting.pop(owner, ()):
                        put(&stack, t)
                for k in range(at.data[s], at.data[s + 1]):
                    t, rule = out.data[3 * k + 1], out.data[3 * k + 2]
                    if rule >= 0 and not self.rule_flags.data[rule] & NULLABLE:
                        waiting.setdefault(rule, []).append(t)
                    else:
                        put(&stack, t)
            for i in range(reps, self.reps.n, 3):
                if self.rule_flags.data[self.reps.data[i]] & NULLABLE:
                    self.reps.data[i + 1] = 0
            for i in range(calls, self.call_edges.n, 4):
                rule = self._needed(i)
                if rule < 0 or self.rule_flags.data[rule] & NULLABLE:
                    self._eps(self.call_edges.data[i], self.call_edges.data[i + 3])
        finally:
            free(seen)
            drop(&out)
            drop(&at)
            drop(&stack)

    def _refuse_left_recursion(self, fresh, names):
        """Raises if a rule can reach itself before any byte: no finite closure exists then."""
        cdef Py_ssize_t i, k
        graph = {}
        for i in fresh:
            self.set_work.n = 0
            put(&self.set_work, self.rule_start.data[i])
            self._close()
            first = set()
            for k in range(self.set_work.n):
                s = self.set_work.data[k]
                for e in range(self.call_at.data[s], self.call_at.data[s + 1]):
                    first.add(self.call_edges.data[4 * e + 1])
            graph[i] = sorted(first)
        colour = {}
        for root in fresh:
            if root in colour:
                continue
            path = [(root, iter(graph[root]))]
            colour[root] = 1
            while path:
                rule, rest = path[len(path) - 1]
                for follower in rest:
                    if colour.get(follower) == 1:
                        ring = [r for r, _ in path]
                        ring = ring[ring.index(follower):]
                        known = [self.outer[r] for r in ring if names is not None and 0 <= self.outer[r] < len(names)]
                        error = GrammarError("grammar: left recursion through rule "
                                             + (repr(names[known[0]]) if known else str(follower)))
                        error.rule = known[0] if known else None
                        raise error
                    if follower not in colour and follower in graph:
                        colour[follower] = 1
                        path.append((follower, iter(graph[follower])))
                        break
                else:
                    colour[rule] = 2
                    path.pop()

    cdef int _close(self) except -1:
        """Replaces the states in set_work by their closure over empty edges, keeping the important ones, sorted."""
        cdef Py_ssize_t i, k, n = 0
        cdef int32_t s
        self.stamp_now += 1
        i = 0
        while i < self.set_work.n:
            s = self.set_work.data[i]
            i += 1
            if self.stamp[s] == self.stamp_now:
                self.set_work.data[i - 1] = -1
                continue
            self.stamp[s] = self.stamp_now
            for k in range(self.eps_at.data[s], self.eps_at.data[s + 1]):
                if self.stamp[self.eps.data[2 * k + 1]] != self.stamp_now:
                    put(&self.set_work, self.eps.data[2 * k + 1])
        for i in range(self.set_work.n):
            s = self.set_work.data[i]
            if s >= 0 and self.state_flags[s] & IMPORTANT:
                self.set_work.data[n] = s
                n += 1
        self.set_work.n = n
        if n > 1:
            qsort(self.set_work.data, n, sizeof(int32_t), ascending)
        return 0
