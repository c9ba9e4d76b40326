"""Rule networks: nondeterministic automata over bytes and calls, one per rule, as flat edge lists indexed by source state.

The emission appends states and edges (emission.pyx); `settle` then makes what is new fit to run: edges that lead nowhere go (`_prune`), calls
that can match nothing get an empty edge beside them (`_bypass_nullable`), and left recursion is refused, because no finite closure exists
for it. The pushdown machine determinises what is left, on demand.
"""
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memset

from oxillama._core.sequences cimport Ints, ascending, drop, put, reserve

from oxillama.errors import GrammarError


cdef int index_edges(Ints *edges, int stride, Py_ssize_t old, Py_ssize_t low, Py_ssize_t high, Ints *at) except -1:
    """Sorts the edges from int `old` on, all of states low..high-1, by source (stable by count); `at` gets first edges per state."""
    cdef Py_ssize_t i, n = (edges.n - old) // stride, before = old // stride
    cdef int32_t src
    cdef int32_t *sorted_edges
    cdef int32_t *fill
    if high + 1 > at.n:
        reserve(at, high + 1 - at.n)
    sorted_edges = <int32_t *>malloc((edges.n - old + 1) * sizeof(int32_t))
    fill = <int32_t *>calloc(high - low + 2, sizeof(int32_t))
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


cdef int keep_alive(Ints *edges, int stride, int target, Py_ssize_t old, uint8_t *alive, Py_ssize_t base) noexcept:
    """Keeps, of the edges from int `old` on, those between states that are alive; `target` is the place of an edge's target."""
    cdef Py_ssize_t i, n = old
    for i in range(old, edges.n, stride):
        if alive[edges.data[i] - base] and alive[edges.data[i + target] - base]:
            memcpy(edges.data + n, edges.data + i, stride * sizeof(int32_t))
            n += stride
    edges.n = n
    return 0


cdef class Networks:
    """States, edges and rules; the first layer of the pushdown machine, which alone makes them."""

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

    cdef TableSizes _sizes(self) noexcept:
        """Where states and edges end now."""
        return TableSizes(self.nfa_states, self.eps.n, self.byte_edges.n, self.call_edges.n, self.reps.n)

    cdef void _forget(self, TableSizes old) noexcept:
        """Takes back what was appended since `old`: half a network is none."""
        cdef Py_ssize_t i
        self.nfa_states = old.states
        self.eps.n, self.byte_edges.n, self.call_edges.n = old.eps, old.byte_edges, old.call_edges   # `reps` is referred to by tables
        for i in range(self.rule_start.n):
            if self.rule_start.data[i] >= old.states:
                self.rule_start.data[i] = -1

    cdef int settle(self, list fresh, TableSizes old, names) except -1:
        """Settles what was appended since `old`: the rules in `fresh`, whose states and edges touch no older ones but by calls."""
        cdef Py_ssize_t i
        cdef int32_t *stamp = <int32_t *>realloc(self.stamp, (self.nfa_states + 1) * sizeof(int32_t))
        cdef uint8_t *flags
        if stamp != NULL:
            self.stamp = stamp
        flags = <uint8_t *>realloc(self.state_flags, self.nfa_states + 1)
        if flags != NULL:
            self.state_flags = flags
        if stamp == NULL or flags == NULL:
            raise MemoryError()
        for i in range(old.states, self.nfa_states + 1):
            self.stamp[i] = 0
            self.state_flags[i] = 0
        self._prune(fresh, old)
        self._bypass_nullable(fresh, old)
        index_edges(&self.eps, 2, old.eps, old.states, self.nfa_states, &self.eps_at)
        index_edges(&self.byte_edges, 4, old.byte_edges, old.states, self.nfa_states, &self.byte_at)
        index_edges(&self.call_edges, 4, old.call_edges, old.states, self.nfa_states, &self.call_at)
        for rule in fresh:
            self.state_flags[self.rule_final.data[<int32_t>rule]] = FINAL
        for i in range(old.states, self.nfa_states):
            if (self.state_flags[i] or self.byte_at.data[i + 1] > self.byte_at.data[i]
                    or self.call_at.data[i + 1] > self.call_at.data[i]):
                self.state_flags[i] |= IMPORTANT
        self._refuse_left_recursion(fresh, names)
        return 0

    cdef int32_t _needed(self, Py_ssize_t edge) noexcept:
        """The rule that must match something for a call edge to be passed, or -1: its repeat may be skipped, or it is a guard."""
        cdef int32_t rep = self.call_edges.data[edge + 2]
        if rep >= 0 and self.reps.data[REP * rep + 3] == COUNTED and self.reps.data[REP * rep + 1] == 0:
            return -1
        return self.call_edges.data[edge + 1]

    cdef int _backwards(self, list fresh, TableSizes old, bint over_bytes, int32_t flag, uint8_t *seen) except -1:
        """TableSizes in `seen` the new states from which a final one is reached over empty edges, calls of rules with `flag` and, where
        asked for, bytes; a rule whose start is reached gets the flag, and what waits for it goes on."""
        cdef Ints incoming, at, stack            # incoming: reversed edges (target, source, rule that must have the flag or -1)
        cdef Py_ssize_t i, k, base = old.states
        cdef int32_t s, source, rule
        memset(&incoming, 0, sizeof(Ints))
        memset(&at, 0, sizeof(Ints))
        memset(&stack, 0, sizeof(Ints))
        try:
            for i in range(old.eps, self.eps.n, 2):
                put(&incoming, self.eps.data[i + 1] - base); put(&incoming, self.eps.data[i] - base); put(&incoming, -1)
            for i in range(old.byte_edges, self.byte_edges.n if over_bytes else 0, 4):
                put(&incoming, self.byte_edges.data[i + 3] - base); put(&incoming, self.byte_edges.data[i] - base); put(&incoming, -1)
            for i in range(old.call_edges, self.call_edges.n, 4):
                put(&incoming, self.call_edges.data[i + 3] - base); put(&incoming, self.call_edges.data[i] - base)
                put(&incoming, self._needed(i))
            index_edges(&incoming, 3, 0, 0, self.nfa_states - base, &at)
            owners = {self.rule_start.data[<int32_t>r] - base: r for r in fresh}
            waiting = {}                         # rule -> sources that are reached as soon as that rule has the flag
            for r in fresh:
                put(&stack, self.rule_final.data[<int32_t>r] - base)
            while stack.n:
                stack.n -= 1
                s = stack.data[stack.n]
                if seen[s]:
                    continue
                seen[s] = 1
                owner = owners.get(s)
                if owner is not None:
                    self.rule_flags.data[<int32_t>owner] |= flag
                    for source in waiting.pop(owner, ()):
                        put(&stack, source)
                for k in range(at.data[s], at.data[s + 1]):
                    source, rule = incoming.data[3 * k + 1], incoming.data[3 * k + 2]
                    if rule >= 0 and not self.rule_flags.data[rule] & flag:
                        waiting.setdefault(rule, []).append(source)
                    elif not seen[source]:
                        put(&stack, source)
        finally:
            drop(&incoming)
            drop(&at)
            drop(&stack)
        return 0

    cdef int _prune(self, list fresh, TableSizes old) except -1:
        """Drops new edges that cannot lead to a finished match (calls of rules that never finish among them)."""
        cdef uint8_t *alive = <uint8_t *>calloc(self.nfa_states - old.states + 1, 1)
        cdef Py_ssize_t i, n
        if alive == NULL:
            raise MemoryError()
        try:
            self._backwards(fresh, old, True, DONE, alive)
            if not self.rule_flags.data[<int32_t>fresh[0]] & DONE:
                raise GrammarError("grammar: the root rule can never finish a match")
            keep_alive(&self.eps, 2, 1, old.eps, alive, old.states)
            keep_alive(&self.byte_edges, 4, 3, old.byte_edges, alive, old.states)
            keep_alive(&self.call_edges, 4, 3, old.call_edges, alive, old.states)
        finally:
            free(alive)
        n = old.call_edges
        for i in range(old.call_edges, self.call_edges.n, 4):
            if self.call_edges.data[i + 1] < 0 or self.rule_flags.data[self.call_edges.data[i + 1]] & DONE:
                memcpy(self.call_edges.data + n, self.call_edges.data + i, 4 * sizeof(int32_t))
                n += 4
            elif self._needed(i) < 0:
                self._eps(self.call_edges.data[i], self.call_edges.data[i + 3])
        self.call_edges.n = n
        return 0

    cdef int _bypass_nullable(self, list fresh, TableSizes old) except -1:
        """Adds an empty edge beside every new call that can match nothing: its rule is nullable, or its repeat may be skipped."""
        cdef uint8_t *seen = <uint8_t *>calloc(self.nfa_states - old.states + 1, 1)
        cdef Py_ssize_t i
        cdef int32_t rule
        if seen == NULL:
            raise MemoryError()
        try:
            self._backwards(fresh, old, False, NULLABLE, seen)
        finally:
            free(seen)
        for i in range(old.reps, self.reps.n, REP):
            if self.reps.data[i + 3] == COUNTED and self.rule_flags.data[self.reps.data[i]] & NULLABLE:
                self.reps.data[i + 1] = 0
        for i in range(old.call_edges, self.call_edges.n, 4):
            if self.call_edges.data[i + 1] < 0:          # a guard is passed by the machine, never beside it
                continue
            rule = self._needed(i)
            if rule < 0 or self.rule_flags.data[rule] & NULLABLE:
                self._eps(self.call_edges.data[i], self.call_edges.data[i + 3])
        return 0

    cdef int _refuse_left_recursion(self, list fresh, names) except -1:
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
                    if self.call_edges.data[4 * e + 1] >= 0:
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
