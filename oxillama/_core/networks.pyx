"""Turns grammar nodes into rule networks: nondeterministic automata over bytes and calls, one per rule.

Nodes are tuples (see `oxillama.grammar.nodes`). Small rules and rules called once are copied into their callers; a repetition that would
take many copies becomes a counted call; code points become UTF-8 byte ranges whose common tails are shared. Afterwards useless edges go
(`_prune`), calls that can match nothing are bypassed (`_bypass_nullable`), and left recursion is refused, because no finite closure
exists for it. What is left are flat edge lists, indexed by source state, that the pushdown machine determinises on demand.
"""
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcpy, memset

from oxillama.errors import GrammarError

cdef enum:
    INLINE_WEIGHT = 12      # rules up to this size are copied into their callers (fewer frames, better determinism)
    ONCE_WEIGHT = 400       # rules that only one place calls: up to this size
    UNROLL_WEIGHT = 24      # repetitions up to this size are copied instead of counted
    INFINITE = 1 << 30


cdef int index_edges(Ints *edges, int stride, Py_ssize_t states, Ints *at) except -1:
    """Sorts edges of `stride` ints by source (stable by count) and leaves offsets per state in `at`."""
    cdef Py_ssize_t i, n = edges.n // stride
    cdef int32_t *sorted_edges = <int32_t *>malloc((edges.n + 1) * sizeof(int32_t))
    cdef int32_t *fill = <int32_t *>calloc(states + 1, sizeof(int32_t))
    cdef int32_t src
    if sorted_edges == NULL or fill == NULL:
        free(sorted_edges)
        free(fill)
        raise MemoryError()
    for i in range(n):
        fill[edges.data[i * stride] + 1] += 1
    for i in range(states):
        fill[i + 1] += fill[i]
    at.n = 0
    for i in range(states + 1):
        put(at, fill[i])
    for i in range(n):
        src = edges.data[i * stride]
        memcpy(sorted_edges + <Py_ssize_t>fill[src] * stride, edges.data + i * stride, stride * sizeof(int32_t))
        fill[src] += 1
    free(fill)
    free(edges.data)
    edges.data = sorted_edges
    edges.cap = edges.n + 1
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

    cdef int build(self, list rules, int symbols, names, Py_ssize_t max_states) except -1:
        """Compiles the rules, rule 0 the root. Raises `GrammarError` for left recursion, endless rules and too many states."""
        self.symbols = symbols
        self.width = 256 + symbols
        self.max_states = max_states
        self.bodies = list(rules)
        self.weights, self.utf8_cache, self.tails, self.bodies_seen = {}, {}, {}, {}
        self._count_uses()
        self._emit_all(names)
        return 0

    def __dealloc__(self):
        drop(&self.eps); drop(&self.byte_edges); drop(&self.call_edges); drop(&self.reps); drop(&self.rule_start)
        drop(&self.rule_final); drop(&self.eps_at); drop(&self.byte_at); drop(&self.call_at); drop(&self.set_work)
        free(self.stamp)
        free(self.final_state)
        free(self.important)

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

    def _count_uses(self):
        """How many places call each rule."""
        self.uses = {0: 2}
        todo = list(self.bodies)
        while todo:
            node = todo.pop()
            if node[0] == 5:
                self.uses[node[1]] = self.uses.get(node[1], 0) + 1
            elif node[0] == 2 or node[0] == 3:
                todo.extend(node[1])
            elif node[0] == 4:
                todo.append(node[1])
                if node[2] > 1 or node[3] > 1:        # copies
                    todo.append(node[1])
            elif node[0] == 7:
                for _, edges in node[2]:
                    todo.extend([part for part, _ in edges])

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
            known = self.weights.get(node[1])
            if known is None:
                self.weights[node[1]] = -1
                total = self._weigh(self.bodies[node[1]], depth + 1)
                if self.weights[node[1]] == -2:      # met again below: recursive
                    total = INFINITE
                self.weights[node[1]] = total
                return total if total <= self._most(node[1]) else 1
            if known < 0:
                self.weights[node[1]] = -2
                return 1
            return known if known <= self._most(node[1]) else 1
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
            if 0 <= self.weights[node[1]] <= self._most(node[1]):
                s, t = self._state(), self._state()
                self._eps(a, s)
                self._emit(self.bodies[node[1]], s, t, depth + 1)
                self._eps(t, b)
            else:
                self._call(a, node[1], -1, b)
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
            key = (body[1] if body[0] == 5 else body if body[0] == 1 else id(body))
            known = self.bodies_seen.get(key)
            if body[0] == 5:
                rule = body[1]
                self.weights[rule] = INFINITE          # called by number from here on: it needs its own network
            elif known is None:
                self.bodies.append(body)
                rule = <int32_t>(len(self.bodies) - 1)
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

    def _emit_all(self, names):
        """Emits every rule that the root reaches, then settles nullability, productivity and left recursion."""
        cdef Py_ssize_t i, rule
        cdef int32_t s, t
        emitted = []
        rule = 0
        while rule < len(self.bodies):        # repeats append bodies while we go
            s, t = self._state(), self._state()
            put(&self.rule_start, s)
            put(&self.rule_final, t)
            emitted.append(rule == 0 or rule not in self.weights or not 0 <= self.weights[rule] <= self._most(rule))
            if emitted[rule]:
                self._emit(self.bodies[rule], s, t, 0)
            rule += 1
        for rule in range(0, self.call_edges.n, 4):       # a rule thought to be copied everywhere may still be called
            i = self.call_edges.data[rule + 1]
            if not emitted[i]:
                emitted[i] = True
                self._emit(self.bodies[i], self.rule_start.data[i], self.rule_final.data[i], 0)
        self.stamp = <int32_t *>calloc(self.nfa_states + 1, sizeof(int32_t))
        self.final_state = <uint8_t *>calloc(self.nfa_states + 1, 1)
        self.important = <uint8_t *>calloc(self.nfa_states + 1, 1)
        if self.stamp == NULL or self.final_state == NULL or self.important == NULL:
            raise MemoryError()
        self._prune()
        self._bypass_nullable()
        index_edges(&self.eps, 2, self.nfa_states, &self.eps_at)
        index_edges(&self.byte_edges, 4, self.nfa_states, &self.byte_at)
        index_edges(&self.call_edges, 4, self.nfa_states, &self.call_at)
        for i in range(self.rule_final.n):
            self.final_state[self.rule_final.data[i]] = 1
        for i in range(self.nfa_states):
            self.important[i] = (self.final_state[i] or self.byte_at.data[i + 1] > self.byte_at.data[i]
                                 or self.call_at.data[i + 1] > self.call_at.data[i])
        self._refuse_left_recursion(names)
        self.bodies = self.weights = self.utf8_cache = self.uses = self.bodies_seen = self.tails = None

    def _prune(self):
        """Drops edges that cannot lead to a finished match (calls of rules that never finish among them)."""
        cdef uint8_t *alive = <uint8_t *>calloc(self.nfa_states + 1, 1)
        cdef uint8_t *done = <uint8_t *>calloc(self.rule_start.n + 1, 1)
        cdef Ints incoming, at, stack
        cdef Py_ssize_t i, k, n
        cdef int32_t s, src, rule
        if alive == NULL or done == NULL:
            free(alive)
            free(done)
            raise MemoryError()
        memset(&incoming, 0, sizeof(Ints))
        memset(&at, 0, sizeof(Ints))
        memset(&stack, 0, sizeof(Ints))
        try:
            # reversed edges: (target, source, rule or -1)
            for i in range(0, self.eps.n, 2):
                put(&incoming, self.eps.data[i + 1]); put(&incoming, self.eps.data[i]); put(&incoming, -1)
            for i in range(0, self.byte_edges.n, 4):
                put(&incoming, self.byte_edges.data[i + 3]); put(&incoming, self.byte_edges.data[i]); put(&incoming, -1)
            for i in range(0, self.call_edges.n, 4):
                rule = self.call_edges.data[i + 1]
                k = self.call_edges.data[i + 2]
                if k >= 0 and self.reps.data[3 * k + 1] == 0:
                    rule = -1                 # may be skipped altogether
                put(&incoming, self.call_edges.data[i + 3]); put(&incoming, self.call_edges.data[i]); put(&incoming, rule)
            index_edges(&incoming, 3, self.nfa_states, &at)
            owners = {}
            waiting = {}                      # rule -> sources alive as soon as that rule can finish
            for i in range(self.rule_start.n):
                owners[self.rule_start.data[i]] = i
                put(&stack, self.rule_final.data[i])
            while stack.n:
                stack.n -= 1
                s = stack.data[stack.n]
                if alive[s]:
                    continue
                alive[s] = 1
                owner = owners.get(s)
                if owner is not None:
                    done[owner] = 1
                    for src in waiting.pop(owner, ()):
                        put(&stack, src)
                for k in range(at.data[s], at.data[s + 1]):
                    src, rule = incoming.data[3 * k + 1], incoming.data[3 * k + 2]
                    if rule >= 0 and not done[rule]:
                        waiting.setdefault(rule, []).append(src)
                    elif not alive[src]:
                        put(&stack, src)
            if not done[0]:
                raise GrammarError("grammar: the root rule can never finish a match")
            n = 0
            for i in range(0, self.eps.n, 2):
                if alive[self.eps.data[i]] and alive[self.eps.data[i + 1]]:
                    memcpy(self.eps.data + n, self.eps.data + i, 2 * sizeof(int32_t))
                    n += 2
            self.eps.n = n
            n = 0
            for i in range(0, self.byte_edges.n, 4):
                if alive[self.byte_edges.data[i]] and alive[self.byte_edges.data[i + 3]]:
                    memcpy(self.byte_edges.data + n, self.byte_edges.data + i, 4 * sizeof(int32_t))
                    n += 4
            self.byte_edges.n = n
            n = 0
            for i in range(0, self.call_edges.n, 4):
                k = self.call_edges.data[i + 2]
                if not (alive[self.call_edges.data[i]] and alive[self.call_edges.data[i + 3]]):
                    continue
                if done[self.call_edges.data[i + 1]]:
                    memcpy(self.call_edges.data + n, self.call_edges.data + i, 4 * sizeof(int32_t))
                    n += 4
                elif k >= 0 and self.reps.data[3 * k + 1] == 0:
                    self._eps(self.call_edges.data[i], self.call_edges.data[i + 3])
            self.call_edges.n = n
        finally:
            free(alive)
            free(done)
            drop(&incoming)
            drop(&at)
            drop(&stack)

    def _bypass_nullable(self):
        """Adds an empty edge beside every call that can match nothing, until no more rules turn out nullable."""
        cdef Ints out, at, stack
        cdef Py_ssize_t i, k
        cdef int32_t s, t, rule
        cdef uint8_t *seen = <uint8_t *>calloc(self.nfa_states + 1, 1)
        cdef uint8_t *nullable = <uint8_t *>calloc(self.rule_start.n + 1, 1)
        if seen == NULL or nullable == NULL:
            free(seen)
            free(nullable)
            raise MemoryError()
        memset(&out, 0, sizeof(Ints))
        memset(&at, 0, sizeof(Ints))
        memset(&stack, 0, sizeof(Ints))
        try:
            # Backwards from every final over empty edges; a call edge is empty once its rule is (or its repeat may be skipped).
            for i in range(0, self.eps.n, 2):
                put(&out, self.eps.data[i + 1]); put(&out, self.eps.data[i]); put(&out, -1)
            for i in range(0, self.call_edges.n, 4):
                rule, k = self.call_edges.data[i + 1], self.call_edges.data[i + 2]
                if k >= 0 and self.reps.data[3 * k + 1] == 0:
                    rule = -1
                put(&out, self.call_edges.data[i + 3]); put(&out, self.call_edges.data[i]); put(&out, rule)
            index_edges(&out, 3, self.nfa_states, &at)
            owners = {self.rule_start.data[i]: i for i in range(self.rule_start.n)}
            waiting = {}
            for i in range(self.rule_final.n):
                put(&stack, self.rule_final.data[i])
            while stack.n:
                stack.n -= 1
                s = stack.data[stack.n]
                if seen[s]:
                    continue
                seen[s] = 1
                owner = owners.get(s)
                if owner is not None:
                    nullable[owner] = 1
                    for t in waiting.pop(owner, ()):
                        put(&stack, t)
                for k in range(at.data[s], at.data[s + 1]):
                    t, rule = out.data[3 * k + 1], out.data[3 * k + 2]
                    if rule >= 0 and not nullable[rule]:
                        waiting.setdefault(rule, []).append(t)
                    else:
                        put(&stack, t)
            for i in range(0, self.reps.n, 3):
                if nullable[self.reps.data[i]]:
                    self.reps.data[i + 1] = 0
            for i in range(0, self.call_edges.n, 4):
                rule, k = self.call_edges.data[i + 1], self.call_edges.data[i + 2]
                if nullable[rule] or (k >= 0 and self.reps.data[3 * k + 1] == 0):
                    self._eps(self.call_edges.data[i], self.call_edges.data[i + 3])
        finally:
            free(seen)
            free(nullable)
            drop(&out)
            drop(&at)
            drop(&stack)

    def _refuse_left_recursion(self, names):
        """Raises if a rule can reach itself before any byte: no finite closure exists then."""
        cdef Py_ssize_t i, k
        graph = []
        for i in range(self.rule_start.n):
            self.set_work.n = 0
            put(&self.set_work, self.rule_start.data[i])
            self._close()
            first = set()
            for k in range(self.set_work.n):
                s = self.set_work.data[k]
                for e in range(self.call_at.data[s], self.call_at.data[s + 1]):
                    first.add(self.call_edges.data[4 * e + 1])
            graph.append(sorted(first))
        colour = [0] * len(graph)
        for root in range(len(graph)):
            if colour[root]:
                continue
            path = [(root, iter(graph[root]))]
            colour[root] = 1
            while path:
                rule, rest = path[len(path) - 1]
                for follower in rest:
                    if colour[follower] == 1:
                        ring = [r for r, _ in path]
                        ring = ring[ring.index(follower):]
                        known = [r for r in ring if names is not None and r < len(names)]
                        error = GrammarError("grammar: left recursion through rule "
                                             + (repr(names[known[0]]) if known else str(follower)))
                        error.rule = known[0] if known else None
                        raise error
                    if colour[follower] == 0:
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
            if s >= 0 and self.important[s]:
                self.set_work.data[n] = s
                n += 1
        self.set_work.n = n
        if n > 1:
            qsort(self.set_work.data, n, sizeof(int32_t), ascending)
        return 0
