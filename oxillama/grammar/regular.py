"""Finite automata over code points: what makes intersections and complements of patterns, lengths and key names exact.

`Dfa` is a deterministic automaton whose alphabet is a partition of the code points into a few symbols; `both`, `either`, `without` and
`inverse` are the Boolean operations, `minimal` the smallest equal automaton, `node` its form in a grammar. `Nfa` is what regular
expressions are built into: empty edges, class edges, `^` and `$` as edges that can be passed only at the ends of the text, and lookahead
as edges that add an obligation (another automaton that the rest of the text must satisfy). `Nfa.determinise` turns all that into a `Dfa`.
"""
from collections.abc import Callable, Iterable

from oxillama.errors import GrammarError
from oxillama.grammar.nodes import ANY, NETWORK, Ranges, complement, intersect, merge

MAX_STATES = 6000
MAX_NETWORK = 20_000          # states of one array's, object's or number's network
MAX_REFINEMENT = 150_000     # moves looked at while making one automaton smaller


class Dfa:
    """A deterministic automaton. `symbols[k]` are the code points of symbol k; `moves[s][k]` the next state, -1 where there is none."""

    __slots__ = ("symbols", "moves", "accepts", "start")

    def __init__(self, symbols: list[Ranges], moves: list[list[int]], accepts: list[bool], start: int = 0):
        self.symbols, self.moves, self.accepts, self.start = symbols, moves, accepts, start

    @classmethod
    def everything(cls) -> "Dfa":
        """Every text."""
        return cls([ANY], [[0]], [True])

    @classmethod
    def nothing(cls) -> "Dfa":
        """No text at all."""
        return cls([ANY], [[-1]], [False])

    @classmethod
    def words(cls, words: Iterable[str]) -> "Dfa":
        """Exactly these texts, as a trie."""
        words = [word for word in words if not any(0xD800 <= ord(c) <= 0xDFFF for c in word)]
        letters = sorted({c for word in words for c in word})
        index = {c: k for k, c in enumerate(letters)}
        moves, accepts = [[-1] * len(letters)], [False]
        for word in words:
            at = 0
            for c in word:
                if moves[at][index[c]] < 0:
                    moves[at][index[c]] = len(moves)
                    moves.append([-1] * len(letters))
                    accepts.append(False)
                at = moves[at][index[c]]
            accepts[at] = True
        return cls([((ord(c), ord(c)),) for c in letters], moves, accepts)

    @classmethod
    def lengths(cls, least: int, most: int | None) -> "Dfa":
        """Texts of least to most code points."""
        last = least if most is None else most
        if last > MAX_STATES:
            raise GrammarError(f"regular: a length of {last} together with other constraints needs more than {MAX_STATES} states")
        moves = [[i + 1] for i in range(last)] + [[last if most is None else -1]]
        return cls([ANY], moves, [i >= least for i in range(last + 1)])

    def accepts_text(self, text: str) -> bool:
        """Whether the text is in the language."""
        at = self.start
        for c in text:
            code = ord(c)
            for k, ranges in enumerate(self.symbols):
                if any(low <= code <= high for low, high in ranges):
                    at = self.moves[at][k]
                    break
            else:
                return False
            if at < 0:
                return False
        return self.accepts[at]

    def product(self, other: "Dfa", keep: Callable[[bool, bool], bool]) -> "Dfa":
        """The automaton that runs both and accepts where `keep` says so; a dead side stays at -1."""
        pairs = _pair_symbols(self.symbols, other.symbols)
        ids, todo = {(self.start, other.start): 0}, [(self.start, other.start)]
        moves, accepts = [], []
        right_matters, left_matters = keep(False, True), keep(True, False)
        for a, b in todo:
            row_a = self.moves[a] if a >= 0 else None
            row_b = other.moves[b] if b >= 0 else None
            accepts.append(keep(a >= 0 and self.accepts[a], b >= 0 and other.accepts[b]))
            row = []
            for _, i, j in pairs:
                x = row_a[i] if row_a is not None and i >= 0 else -1
                y = row_b[j] if row_b is not None and j >= 0 else -1
                if (x < 0 and (y < 0 or not right_matters)) or (y < 0 and not left_matters):
                    row.append(-1)
                    continue
                known = ids.get((x, y))
                if known is None:
                    known = ids[(x, y)] = len(ids)
                    todo.append((x, y))
                    if known > MAX_STATES:
                        raise GrammarError(f"regular: needs more than {MAX_STATES} states")
                row.append(known)
            moves.append(row)
        return Dfa([ranges for ranges, _, _ in pairs], moves, accepts).trimmed()

    def both(self, other: "Dfa") -> "Dfa":
        """Intersection."""
        return self.product(other, lambda a, b: a and b)

    def either(self, other: "Dfa") -> "Dfa":
        """Union."""
        return self.product(other, lambda a, b: a or b)

    def without(self, other: "Dfa") -> "Dfa":
        """Difference."""
        return self.product(other, lambda a, b: a and not b)

    def inverse(self) -> "Dfa":
        """Complement: every text that is not in the language."""
        return Dfa.everything().without(self)

    def trimmed(self) -> "Dfa":
        """Without moves into states from which nothing can be accepted."""
        sources: list[list[int]] = [[] for _ in self.moves]
        for s, row in enumerate(self.moves):
            for t in set(row):
                if t >= 0:
                    sources[t].append(s)
        alive = [False] * len(self.moves)
        todo = [s for s, accept in enumerate(self.accepts) if accept]
        for s in todo:
            if not alive[s]:
                alive[s] = True
                todo.extend(sources[s])
        if all(alive):
            return self
        if not alive[self.start]:
            return Dfa.nothing()
        ids = {}
        for s, live in enumerate(alive):
            if live:
                ids[s] = len(ids)
        return Dfa(self.symbols, [[ids.get(t, -1) for t in self.moves[s]] for s in ids], [self.accepts[s] for s in ids],
                   ids[self.start])

    @property
    def empty(self) -> bool:
        """Whether no text is accepted."""
        trimmed = self.trimmed()
        return not any(trimmed.accepts)

    def finite(self, limit: int) -> list[str] | None:
        """All texts if there are at most `limit` (fewer than `limit` code points at each place), else None."""
        dfa, out = self.trimmed(), []
        if dfa.empty:
            return []
        todo = [(dfa.start, "")]
        while todo:
            s, text = todo.pop()
            if len(text) > len(dfa.moves):
                return None
            if dfa.accepts[s]:
                out.append(text)
                if len(out) > limit:
                    return None
            for k, t in enumerate(dfa.moves[s]):
                if t >= 0:
                    if sum(high - low + 1 for low, high in dfa.symbols[k]) > limit or len(todo) > 4 * limit + 64:
                        return None
                    todo.extend((t, text + chr(code)) for low, high in dfa.symbols[k] for code in range(low, high + 1))
        return sorted(out)

    def minimal(self) -> "Dfa":
        """The smallest automaton of the same language (partition refinement after Moore); one that would take long is only trimmed."""
        dfa = self.trimmed()
        rounds = 0
        group = [int(accept) for accept in dfa.accepts]
        count = len(set(group))
        while True:
            rounds += 1
            if rounds * len(dfa.moves) * len(dfa.symbols) > MAX_REFINEMENT:
                return dfa
            names: dict[tuple, int] = {}
            fresh = []
            for s, row in enumerate(dfa.moves):
                key = (group[s], *(group[t] if t >= 0 else -1 for t in row))
                fresh.append(names.setdefault(key, len(names)))
            if len(names) == count:
                break
            group, count = fresh, len(names)
        if count == len(dfa.moves):
            return dfa
        first: dict[int, int] = {}
        for s, g in enumerate(fresh):
            first.setdefault(g, s)
        return Dfa(dfa.symbols, [[fresh[t] if t >= 0 else -1 for t in dfa.moves[first[g]]] for g in range(count)],
                   [dfa.accepts[first[g]] for g in range(count)], fresh[dfa.start])

    def node(self, spell: Callable[[Ranges], tuple]) -> tuple:
        """A grammar node for the language; `spell` gives the node that writes one code point out of ranges."""
        states = []
        for s, row in enumerate(self.moves):
            targets: dict[int, list] = {}
            for k, t in enumerate(row):
                if t >= 0:
                    targets.setdefault(t, []).extend(self.symbols[k])
            states.append((self.accepts[s], tuple((spell(merge(ranges)), t) for t, ranges in targets.items())))
        return (NETWORK, self.start, tuple(states))


def meet(dfa: Dfa | None, other: Dfa, sign: bool) -> Dfa:
    """The automaton within another one, or (not sign) outside of it; None stands for everything."""
    if dfa is None:
        return other if sign else other.inverse()
    return dfa.both(other) if sign else dfa.without(other)


def _pair_symbols(a: list[Ranges], b: list[Ranges]) -> list[tuple[Ranges, int, int]]:
    """The common refinement of two partitions: (ranges, index in a or -1, index in b or -1)."""
    if a == b:
        return [(ranges, k, k) for k, ranges in enumerate(a)]
    out = []
    for i, x in enumerate(a):
        left = x
        for j, y in enumerate(b):
            shared = intersect(x, y)
            if shared:
                out.append((shared, i, j))
                left = intersect(left, complement(y))
        if left:
            out.append((left, i, -1))
    covered = merge([r for x in a for r in x])
    for j, y in enumerate(b):
        left = intersect(y, complement(covered))
        if left:
            out.append((left, -1, j))
    return out


def partition(sets: Iterable[Ranges]) -> list[tuple[Ranges, frozenset[int]]]:
    """Splits the code points in any of the sets by which of them hold each: (code points, indices of the sets)."""
    sets = list(sets)
    marks: dict[int, list[int]] = {}
    for k, ranges in enumerate(sets):
        for low, high in ranges:
            marks.setdefault(low, []).append(k)
            marks.setdefault(high + 1, []).append(k)
    out: dict[frozenset[int], list] = {}
    active: set[int] = set()
    before = 0
    for at in sorted(marks):
        if active:
            out.setdefault(frozenset(active), []).append((before, at - 1))
        active.symmetric_difference_update(marks[at])
        before = at
    return [(merge(ranges), members) for members, ranges in out.items()]


class Nfa:
    """A nondeterministic automaton with assertions. State 0 is the start; `final` the one accepting state."""

    def __init__(self):
        self.empty: list[list[tuple[int, str]]] = []          # (target, "" or "^" or "$")
        self.edges: list[list[tuple[int, int]]] = []          # (class number, target)
        self.looks: list[list[tuple[int, Dfa]]] = []          # (target, what the rest of the text must satisfy)
        self.classes: dict[Ranges, int] = {}
        self.final = -1

    def state(self) -> int:
        """A new state."""
        if len(self.empty) > 20 * MAX_STATES:
            raise GrammarError(f"regular: needs more than {20 * MAX_STATES} states before determinisation")
        self.empty.append([])
        self.edges.append([])
        self.looks.append([])
        return len(self.empty) - 1

    def skip(self, a: int, b: int, when: str = "") -> None:
        """An edge that consumes nothing; `when` is "^" or "$" where it can be passed only there."""
        self.empty[a].append((b, when))

    def eat(self, a: int, b: int, ranges: Ranges) -> None:
        """An edge that consumes one code point out of ranges."""
        self.edges[a].append((self.classes.setdefault(ranges, len(self.classes)), b))

    def look(self, a: int, b: int, rest: Dfa) -> None:
        """An edge that consumes nothing and demands that the rest of the text be in `rest`."""
        self.looks[a].append((b, rest))

    def _close(self, threads, marks: str):
        """Threads (state, obligations) reachable over empty edges whose assertion is in `marks`."""
        seen, todo = set(threads), list(threads)
        for state, duties in todo:
            for target, when in self.empty[state]:
                if (not when or when in marks) and (target, duties) not in seen:
                    seen.add((target, duties))
                    todo.append((target, duties))
            for target, rest in self.looks[state]:
                thread = (target, duties | {(id(rest), rest.start)})
                if thread not in seen:
                    seen.add(thread)
                    todo.append(thread)
        return frozenset(seen)

    def determinise(self) -> Dfa:
        """The equal deterministic automaton (subset construction over threads), minimal."""
        duties = {id(rest): rest for looks in self.looks for _, rest in looks}
        sets = list(self.classes) + [ranges for rest in duties.values() for ranges in rest.symbols]
        parts = partition(sets)
        numbers: dict[int, list[int]] = {}                    # duty -> its symbol for each part, -1 where none
        at = len(self.classes)
        for key, rest in duties.items():
            numbers[key] = [next((k for k in range(len(rest.symbols)) if at + k in members), -1) for _, members in parts]
            at += len(rest.symbols)
        start = self._close([(0, frozenset())], "^")
        ids, todo, moves, accepts = {start: 0}, [start], [], []
        for threads in todo:
            ends = "^$" if threads is start else "$"
            accepts.append(any(state == self.final and all(duties[key].accepts[s] for key, s in owed)
                               for state, owed in self._close(threads, ends)))
            row = []
            for part, (_, members) in enumerate(parts):
                fresh = set()
                for state, owed in threads:
                    for number, target in self.edges[state]:
                        if number in members:
                            kept = self._pay(owed, part, duties, numbers)
                            if kept is not None:
                                fresh.add((target, kept))
                if not fresh:
                    row.append(-1)
                    continue
                closed = self._close(fresh, "")
                known = ids.get(closed)
                if known is None:
                    known = ids[closed] = len(ids)
                    todo.append(closed)
                    if known > MAX_STATES:
                        raise GrammarError(f"regular: needs more than {MAX_STATES} states")
                row.append(known)
            moves.append(row)
        return Dfa([ranges for ranges, _ in parts], moves, accepts).minimal()

    @staticmethod
    def _pay(owed, part, duties, numbers):
        """The obligations after one more code point; None where one cannot be met any more."""
        kept = set()
        for key, s in owed:
            symbol = numbers[key][part]
            target = duties[key].moves[s][symbol] if symbol >= 0 else -1
            if target < 0:
                return None
            kept.add((key, target))
        return frozenset(kept)
