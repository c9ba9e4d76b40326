"""Finite automata over code points: what makes intersections and complements of patterns, lengths
and key names exact.

`Dfa` is a deterministic automaton whose alphabet is a partition of the code points into a few
symbols; `both`, `either`, `without` and `inverse` are the Boolean operations, `minimal` the
smallest equal automaton, `node` its form in a grammar. `Nfa` is what regular expressions are built
into: empty edges, class edges, `^` and `$` as edges that can be passed only at the ends of the
text, and lookahead as edges that add an obligation (another automaton that the rest of the text
must satisfy). `Nfa.determinise` turns all that into a `Dfa`.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from oxillama._core import automata
from oxillama.errors import GrammarError
from oxillama.grammar.nodes import ANY, NETWORK, ONE, TAKE, Ranges, merge, seq

MAX_STATES = 6000
MAX_THREADS = 2_000_000  # threads looked at to make one automaton with lookahead deterministic
MAX_SPLIT = 8 * MAX_STATES  # states of the automaton from which those of a few kinds are taken
MAX_NETWORK = 20_000  # states of one array's, object's or number's network
MAX_TABLE = 16_000_000  # moves of one trie of words, and of an automaton before it is the smallest
MAX_MEMBERS = 8_000_000  # classes that hold each of the code points that classes tell apart, summed
MAX_STEPS = 400_000_000  # states looked at to make one automaton deterministic: about a second
MAX_MEETING = 10_000_000  # pairs of states looked at to tell automata apart
MAX_COUNTING = 100_000_000  # moves looked at for the lengths of one language
OPEN_END = 1 << 30  # no longest text
_LONE = re.compile("[\ud800-\udfff]")  # halves of surrogate pairs, which no text has
MANY = 1 << 24  # different words: more than one text holds


class Dfa:
    """A deterministic automaton. `symbols[k]` are the code points of symbol k; `moves[s, k]` is the
    next state, -1 without one.
    """

    __slots__ = ("symbols", "moves", "accepts", "start", "_reader", "_live")

    def __init__(self, symbols: list[Ranges], moves, accepts, start: int = 0):
        self.symbols, self.start = symbols, start
        self.moves = np.asarray(moves, np.int32).reshape(len(moves), len(symbols))
        self.accepts = np.asarray(accepts, np.uint8)
        self._reader: automata.Reader | None = None
        # whether any text is accepted, once known
        self._live: bool | None = None

    @classmethod
    def _of_tables(
        cls, symbols: list[Ranges], moves: np.ndarray, accepts: np.ndarray, start: int
    ) -> "Dfa":
        """A trimmed automaton of tables of the right types, which accepts something."""
        out = object.__new__(cls)
        out.symbols, out.moves, out.accepts, out.start = symbols, moves, accepts, start
        out._reader, out._live = None, True
        return out

    @classmethod
    @functools.cache
    def everything(cls) -> "Dfa":
        """Every text."""
        return cls([ANY], [[0]], [True]).trimmed()

    @classmethod
    @functools.cache
    def nothing(cls) -> "Dfa":
        """No text at all."""
        out = cls([ANY], [[-1]], [False])
        out._live = False
        return out

    @classmethod
    def words(cls, words: Iterable[str]) -> "Dfa":
        """Exactly these texts, as a trie."""
        listed = [word for word in words if word.isascii() or not _LONE.search(word)]
        found = automata.trie(listed, MAX_TABLE)
        if found is None:
            raise GrammarError(
                f"regular: {len(listed)} words need a table of more than {MAX_TABLE} moves"
            )
        letters, moves, accepts = found
        return cls([((code, code),) for code in letters], moves, accepts)

    @classmethod
    def lengths(cls, least: int, most: int | None) -> "Dfa":
        """Texts of least to most code points."""
        last = least if most is None else most
        if last > MAX_STATES:
            raise GrammarError(
                f"regular: a length of {last} together with other constraints needs more than "
                f"{MAX_STATES} states"
            )
        moves = [[i + 1] for i in range(last)] + [[last if most is None else -1]]
        return cls([ANY], moves, [i >= least for i in range(last + 1)])

    @property
    def nbytes(self) -> int:
        """Bytes of its tables in memory, about."""
        ranges = sum(map(len, self.symbols))
        return 512 + self.moves.nbytes + self.accepts.nbytes + 192 * ranges

    def accepts_text(self, text: str) -> bool:
        """Whether the text is in the language."""
        if self._reader is None:
            self._reader = automata.Reader(self.moves, self.accepts, self.start, self.symbols)
        return self._reader.reads(text)

    def product(self, other: "Dfa", keep: int) -> "Dfa":
        """The automaton that runs both and accepts where bit 2x + y of `keep` says so (x, y:
        whether each accepts).
        """
        symbols, left, right = _refined(self.symbols, other.symbols)
        found = automata.product(
            self.moves,
            self.accepts,
            self.start,
            other.moves,
            other.accepts,
            other.start,
            left,
            right,
            keep,
            MAX_STATES,
        )
        return Dfa.nothing() if found is None else Dfa._of_tables(symbols, *found, 0)

    def both(self, other: "Dfa") -> "Dfa":
        """Intersection."""
        return self.product(other, 0b1000)

    def either(self, other: "Dfa") -> "Dfa":
        """Union."""
        return self.product(other, 0b1110)

    def without(self, other: "Dfa") -> "Dfa":
        """Difference."""
        return self.product(other, 0b0100)

    def inverse(self) -> "Dfa":
        """Complement: every text that is not in the language."""
        return Dfa.everything().without(self)

    def trimmed(self) -> "Dfa":
        """Without moves into states from which nothing can be accepted."""
        if self._live is not None:
            return self
        found = automata.trimmed(self.moves, self.accepts, self.start)
        return Dfa.nothing() if found is None else Dfa._of_tables(self.symbols, *found)

    @property
    def empty(self) -> bool:
        """Whether no text is accepted."""
        return not self.trimmed()._live

    def finite(self, limit: int) -> list[str] | None:
        """All texts if there are at most `limit` (fewer than `limit` code points at each place),
        else None.
        """
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
            for k, t in enumerate(dfa.moves[s].tolist()):
                if t >= 0:
                    if (
                        sum(high - low + 1 for low, high in dfa.symbols[k]) > limit
                        or len(todo) > 4 * limit + 64
                    ):
                        return None
                    todo.extend(
                        (t, text + chr(code))
                        for low, high in dfa.symbols[k]
                        for code in range(low, high + 1)
                    )
        return sorted(out)

    def size(self) -> int | None:
        """How many texts are in the language; None: endlessly many, or more than `MANY`."""
        dfa = self.trimmed()
        if dfa.empty:
            return 0
        widths = [sum(high - low + 1 for low, high in ranges) for ranges in dfa.symbols]
        found = automata.size(dfa.moves, dfa.accepts, dfa.start, np.array(widths, np.int32), MANY)
        return found if found <= MANY else None

    def minimal(self) -> "Dfa":
        """The smallest automaton of the same language."""
        dfa = self.trimmed()
        if not dfa._live:
            return dfa
        groups, first = automata.merged(dfa.moves, dfa.accepts)
        if len(first) == len(dfa.moves):
            return dfa
        target = np.append(groups, np.int32(-1))  # the last: where -1 leads
        return Dfa._of_tables(
            dfa.symbols, target[dfa.moves[first]], dfa.accepts[first], int(groups[dfa.start])
        )

    def spans(self, least: int, most: int | None) -> list[tuple[tuple[int, int], ...]]:
        """Per state the lengths (as ranges) of what may have been read when a text of least to most
        code points is still possible from there. The automaton must be trimmed.
        """
        if most is None:
            longest = automata.longest(self.moves, self.accepts, OPEN_END)
            return [((max(0, least - far), OPEN_END),) for far in longest.tolist()]
        if least == 0:
            nearest = automata.nearest(self.moves, self.accepts)
            return [((0, most - near),) if near <= most else () for near in nearest.tolist()]
        if (most + 1) * self.moves.size > MAX_COUNTING:
            raise GrammarError(
                f"regular: lengths up to {most} over {len(self.moves)} states need more than "
                f"{MAX_COUNTING} steps"
            )
        return automata.spans(self.moves, self.accepts, least, most)

    def counted(
        self, spell: Callable[[Ranges], tuple], least: int, most: int | None
    ) -> tuple | None:
        """A grammar node for the texts of least to most code points, for the inside of a register
        that counts them (see `nodes`); None where there are none.
        """
        spans = self.spans(least, most)
        if not any(low <= 0 <= high for low, high in spans[self.start]):
            return None
        states, spelled, parts = [], {}, {}
        for row, accept in zip(automata.grouped(self.moves), self.accepts.tolist(), strict=True):
            edges = []
            for t, symbols in row:
                if not spans[t]:
                    continue
                key = (symbols, spans[t])
                if key not in parts:
                    if symbols not in spelled:
                        spelled[symbols] = spell(merge(r for k in symbols for r in self.symbols[k]))
                    # counted before it is spelled: no character is begun beyond the length
                    parts[key] = seq((TAKE, ONE, spans[t]), spelled[symbols])
                edges.append((parts[key], t))
            states.append((bool(accept), tuple(edges)))
        return (NETWORK, self.start, tuple(states))

    def node(self, spell: Callable[[Ranges], tuple]) -> tuple:
        """A grammar node for the language; `spell` gives the node that writes one code point out of
        ranges.
        """
        states, spelled = [], {}
        for row, accept in zip(automata.grouped(self.moves), self.accepts.tolist(), strict=True):
            edges = []
            for t, symbols in row:
                if symbols not in spelled:
                    spelled[symbols] = spell(merge(r for k in symbols for r in self.symbols[k]))
                edges.append((spelled[symbols], t))
            states.append((bool(accept), tuple(edges)))
        return (NETWORK, self.start, tuple(states))


def meet(dfa: Dfa | None, other: Dfa, sign: bool) -> Dfa:
    """The intersection of the automaton with another one or (not sign) with its complement; None
    represents all texts.
    """
    if dfa is None:
        return other if sign else other.inverse()
    return dfa.both(other) if sign else dfa.without(other)


def split(start: Dfa, others: Sequence[Dfa], limit: int) -> list[tuple[frozenset[int], Dfa]] | None:
    """The texts of an automaton by which of the others accept them: (indices of the others, texts)
    wherever there are such texts; None if these are more than `limit`. One product of all automata
    whose states know who accepts: a product for each of the sets would repeat most of it.
    """
    start = start.trimmed()
    if start.empty:
        return []
    symbols, moves, at = start.symbols, start.moves, start.start
    tags = np.where(start.accepts, np.int32(0), np.int32(-1))
    kinds: list[frozenset[int]] = [frozenset()]
    for number, dfa in enumerate(others):
        symbols, left, right = _refined(symbols, dfa.symbols)
        moves, tags = automata.tagged(
            moves, tags, at, dfa.moves, dfa.accepts, dfa.start, left, right, MAX_SPLIT
        )
        at = 0
        met = sorted(set(tags.tolist()) - {-1})
        if len(met) > limit:
            return None
        place = np.full(2 * len(kinds) + 1, -1, np.int32)  # the last: where -1 leads
        place[met] = range(len(met))
        kinds = [kinds[tag >> 1] | {number} if tag & 1 else kinds[tag >> 1] for tag in met]
        tags = place[tags]
    out = []
    for tag in reversed(range(len(kinds))):
        part = Dfa(symbols, moves, tags == tag, at).trimmed()
        if len(part.moves) > MAX_STATES:
            raise GrammarError(f"regular: needs more than {MAX_STATES} states")
        out.append((kinds[tag], part))
    return out


def overlapping(dfas: Sequence[Dfa], enough: int) -> set[tuple[int, int]]:
    """The pairs (i, j), i > j, of automata that some text is in the languages of both; with those
    of which that is not known after `MAX_MEETING` steps. Once they are more than `enough`, no more
    are looked for.
    """
    dfas = [dfa.trimmed() for dfa in dfas]
    numbers: dict[Ranges, int] = {}
    for dfa in dfas:
        for ranges in dfa.symbols:
            numbers.setdefault(ranges, len(numbers))
    parts: list[list[int]] = [[] for _ in numbers]  # of each symbol, the common ones it is made of
    common = partition(numbers)
    for part, (_, members) in enumerate(common):
        for number in members:
            parts[number].append(part)
    tables = []
    for dfa in dfas:
        # the last symbol of each: one that is in none of the texts
        column = np.full(len(common) + 1, -1, np.int64)
        for at, ranges in enumerate(dfa.symbols):
            column[parts[numbers[ranges]]] = at
        moves = np.append(dfa.moves, np.full((len(dfa.moves), 1), -1, np.int32), axis=1)
        tables.append(np.ascontiguousarray(moves[:, column]))
    starts = np.array([dfa.start for dfa in dfas], np.int32)
    return automata.overlapping(tables, [dfa.accepts for dfa in dfas], starts, MAX_MEETING, enough)


def _refined(a: list[Ranges], b: list[Ranges]) -> tuple[list[Ranges], np.ndarray, np.ndarray]:
    """The common refinement of two partitions, and which symbol of each its symbols are in (-1:
    none).
    """
    if a == b:
        same = np.arange(len(a), dtype=np.int32)
        return a, same, same
    return automata.refined(a, b)


def partition(sets: Iterable[Ranges]) -> list[tuple[Ranges, frozenset[int]]]:
    """Splits the code points in any of the sets by which of them hold each: (code points, indices
    of the sets). GrammarError where these are too many in all.
    """
    sets = list(sets)
    marks: dict[int, list[int]] = {}
    for k, ranges in enumerate(sets):
        for low, high in ranges:
            marks.setdefault(low, []).append(k)
            marks.setdefault(high + 1, []).append(k)
    out: dict[frozenset[int], list] = {}
    active: set[int] = set()
    before = total = 0
    for at in sorted(marks):
        total += len(active)
        if total > MAX_MEMBERS:
            raise GrammarError(
                f"regular: {len(sets)} classes overlap at more than {MAX_MEMBERS} places"
            )
        if active:
            out.setdefault(frozenset(active), []).append((before, at - 1))
        active.symmetric_difference_update(marks[at])
        before = at
    return [(merge(ranges), members) for members, ranges in out.items()]


class Nfa:
    """A nondeterministic automaton with assertions. State 0 is the start; `final` the one accepting
    state.
    """

    def __init__(self):
        self.empty: list[list[tuple[int, str]]] = []  # (target, when it is passed: see `skip`)
        self.edges: list[list[tuple[int, int]]] = []  # (class number, target)
        # (target, what the rest of the text must satisfy)
        self.looks: list[list[tuple[int, Dfa]]] = []
        self.classes: dict[Ranges, int] = {}
        self.final = -1
        self.left = MAX_THREADS

    def state(self) -> int:
        """A new state."""
        if len(self.empty) > 20 * MAX_STATES:
            raise GrammarError(
                f"regular: needs more than {20 * MAX_STATES} states before determinisation"
            )
        self.empty.append([])
        self.edges.append([])
        self.looks.append([])
        return len(self.empty) - 1

    def skip(self, a: int, b: int, when: str = "") -> None:
        """An edge that consumes nothing; `when` is "^" or "$" where it can be passed only at that
        end of the text, "+" where anywhere but at its beginning (with lookahead alone).
        """
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
        self._spend(len(todo))
        return frozenset(seen)

    def _spend(self, threads: int) -> None:
        """Counts threads that were looked at; GrammarError once they are too many."""
        self.left -= threads
        if self.left < 0:
            raise GrammarError(
                f"regular: lookahead needs more than {MAX_THREADS} steps to make deterministic"
            )

    def determinise(self) -> Dfa:
        """The equal deterministic automaton (subset construction over threads), minimal."""
        duties = {id(rest): rest for looks in self.looks for _, rest in looks}
        sets = list(self.classes) + [ranges for rest in duties.values() for ranges in rest.symbols]
        parts = partition(sets)
        # duty -> its symbol for each part, -1 where none
        numbers: dict[int, list[int]] = {}
        at = len(self.classes)
        for key, rest in duties.items():
            numbers[key] = [
                next((k for k in range(len(rest.symbols)) if at + k in members), -1)
                for _, members in parts
            ]
            at += len(rest.symbols)
        if not duties:
            moves, accepts = automata.determinise(
                self.empty,
                self.edges,
                [members for _, members in parts],
                self.final,
                len(self.classes),
                MAX_STATES,
                MAX_TABLE,
                MAX_STEPS,
            )
            return Dfa([ranges for ranges, _ in parts], moves, accepts).minimal()
        start = self._close([(0, frozenset())], "^")
        ids, todo = {start: 0}, [start]
        rows: list[list[int]] = []
        final: list[bool] = []
        for threads in todo:
            ends = "^$" if threads is start else "+$"
            final.append(
                any(
                    state == self.final and all(duties[key].accepts[s] for key, s in owed)
                    for state, owed in self._close(threads, ends)
                )
            )
            row = []
            for part, (_, members) in enumerate(parts):
                fresh = set()
                self._spend(len(threads))
                for state, owed in threads:
                    for number, target in self.edges[state]:
                        if number in members:
                            kept = self._pay(owed, part, duties, numbers)
                            if kept is not None:
                                fresh.add((target, kept))
                if not fresh:
                    row.append(-1)
                    continue
                closed = self._close(fresh, "+")
                known = ids.get(closed)
                if known is None:
                    known = ids[closed] = len(ids)
                    todo.append(closed)
                    if known > MAX_STATES:
                        raise GrammarError(f"regular: needs more than {MAX_STATES} states")
                row.append(known)
            rows.append(row)
        return Dfa([ranges for ranges, _ in parts], rows, final).minimal()

    @staticmethod
    def _pay(owed, part, duties, numbers):
        """The obligations after one more code point; None where one cannot be met any more."""
        kept = set()
        for key, s in owed:
            symbol = numbers[key][part]
            target = int(duties[key].moves[s, symbol]) if symbol >= 0 else -1
            if target < 0:
                return None
            kept.add((key, target))
        return frozenset(kept)
