"""The regular expressions of `splits` as tables that a compiled loop walks: one look at each
character, no stepping back.

An expression becomes a program of threads with priorities (Thompson 1968; Pike's order: the first
alternative, the longer repetition), and that a deterministic automaton whose states are the ordered
threads still alive. A thread that has ended cuts off those of lower priority, so what is found is
what a backtracking search finds. Characters are put into classes first: those that no set of the
expression tells apart are one.

A lookahead `(?!X)` of one character is decided when the next character is known; for that, a state
says of each class whether a match ends before it. Expressions that count digits from the right of
their run look ahead without a bound: `COUNTED` says which, and what they come to (`DigitGroups`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from oxillama.tokenizer.unicode_sets import named_set

_POINTS = 0x110000
_MOST_STATES = 4000
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}

Ranges = tuple[tuple[int, int], ...]  # of code points, both ends included, ascending, apart


@dataclass(frozen=True, slots=True)
class SplitTables:
    """classes: of each code point. steps: (states, classes + 1) of int32, the last column for the
    end of the text: twice the next state, and 1 where a match ends before the character; the next
    state is 0 where no thread goes on. The first state is 1.
    """

    classes: np.ndarray
    steps: np.ndarray


@dataclass(frozen=True, slots=True)
class DigitGroups:
    """Runs of digits cut into groups, counted from their right. classes: of each code point, 1 of a
    digit, 2 of one before which a run is left as it is. size: digits of a group. apart: whether a
    run is cut off from what is beside it.
    """

    classes: np.ndarray
    size: int
    apart: bool


@dataclass(frozen=True, slots=True)
class _Char:
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class _Not:
    """The next character is none of these, or there is none."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class _All:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Either:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


_Node = _Char | _Not | _All | _Either | _Repeat

# Expressions, in a row where several do one thing: whether a run of digits stands apart, and what
# must not follow it.
COUNTED: dict[tuple[str, ...], tuple[bool, tuple[str, ...]]] = {
    (r"\d{1,3}(?=(?:\d{3})*\b)",): (True, ("L", "M", "word signs")),
    (r"(?=(\d{3})+(?!\d))",): (False, ()),
    (
        # pieces of 510 digits from the right, so that the next two need not look far
        r"\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}",
        r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)",
        r"\A\p{Nd}{3}|\G\p{Nd}{3}",
    ): (True, ()),
}


def split_stages(expressions: tuple[str, ...]) -> list[SplitTables | DigitGroups]:
    """What cuts a text as the expressions in turn do."""
    stages: list[SplitTables | DigitGroups] = []
    while expressions:
        counted = next((each for each in COUNTED if expressions[: len(each)] == each), None)
        stages.append(split_tables(expressions[0]) if counted is None else _groups(counted))
        expressions = expressions[len(counted or "1") :]
    return stages


def _groups(counted: tuple[str, ...]) -> DigitGroups:
    apart, barriers = COUNTED[counted]
    classes = np.zeros(_POINTS, np.uint8)
    for kind, names in ((2, barriers), (1, ("Nd",))):
        for name in names:
            for first, last in named_set(name):
                classes[first : last + 1] = kind
    return DigitGroups(classes, 3, apart)


@cache
def split_tables(expression: str) -> SplitTables:
    """The tables of an expression; ValueError for one that is written in other ways than those of
    `splits`, or that matches an empty text.
    """
    program = _Program()
    program.add(_Reader(expression).read())
    program.ops.append(("end", (), 0))
    sets = list(dict.fromkeys(op[1] for op in program.ops if op[0] in ("char", "not")))
    classes, members = _classes(sets)
    return SplitTables(classes, _steps(program.ops, {s: members[i] for i, s in enumerate(sets)}))


# ---- reading an expression


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def read(self) -> _Node:
        found = self._either()
        if self.at != len(self.text):
            raise self._wrong("the end")
        return found

    def _wrong(self, wanted: str) -> ValueError:
        found = self.text[self.at : self.at + 8] or "the end"
        return ValueError(
            f"expression {self.text!r}: found {found!r} at {self.at}, wanted {wanted}"
        )

    def _take(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._wrong(text)

    def _next(self) -> str:
        if self.at == len(self.text):
            raise self._wrong("a character")
        self.at += 1
        return self.text[self.at - 1]

    def _either(self) -> _Node:
        parts = [self._all()]
        while self._take("|"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else _Either(tuple(parts))

    def _all(self) -> _Node:
        parts: list[_Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self._repeated(self._one()))
        return parts[0] if len(parts) == 1 else _All(tuple(parts))

    def _repeated(self, part: _Node) -> _Node:
        while True:
            if self._take("?"):
                part = _Repeat(part, 0, 1)
            elif self._take("*"):
                part = _Repeat(part, 0, None)
            elif self._take("+"):
                part = _Repeat(part, 1, None)
            elif self._take("{"):
                least = self._number()
                most = self._number() if self._take(",") else least
                self._expect("}")
                part = _Repeat(part, least, most)
            else:
                return part

    def _number(self) -> int:
        start = self.at
        while self.at < len(self.text) and self.text[self.at].isdigit():
            self.at += 1
        if start == self.at:
            raise self._wrong("a number")
        return int(self.text[start : self.at])

    def _one(self) -> _Node:
        if self._take("(?!"):
            ranges = self._set()
            self._expect(")")
            return _Not(ranges)
        if self._take("(?:") or self._take("("):
            found = self._either()
            self._expect(")")
            return found
        return _Char(self._set())

    def _set(self) -> Ranges:
        if self._take("["):
            return self._bracket()
        char = self._next()
        if char == "\\":
            return self._escape()
        if char in "?*+{}.^$":
            self.at -= 1
            raise self._wrong("a character or a set of them")
        return _single(char)

    def _escape(self) -> Ranges:
        char = self._next()
        if char == "p":
            self._expect("{")
            end = self.text.index("}", self.at)
            name, self.at = self.text[self.at : end], end + 1
            return named_set(name)
        if char in "sS":
            space = named_set("space")
            return space if char == "s" else _without(space)
        if char.isalnum() and char not in _ESCAPED:
            raise self._wrong("an escape that is known")
        return _single(_ESCAPED.get(char, char))

    def _bracket(self) -> Ranges:
        negative = self._take("^")
        found: list[tuple[int, int]] = []
        within: Ranges | None = None
        while not self._take("]"):
            if self._take("&&"):
                self._expect("[")
                within = self._bracket()
                self._expect("]")
                break
            if self.text.startswith("[", self.at):
                raise self._wrong("an escaped bracket")
            ranges = self._escape() if self._take("\\") else _single(self._next())
            follows = self.text[self.at : self.at + 2]
            if len(ranges) == 1 and follows[:1] == "-" and follows != "-]":
                self.at += 1
                last = self._escape() if self._take("\\") else _single(self._next())
                ranges = ((ranges[0][0], last[0][1]),)
            found.extend(ranges)
        made = _together(found)
        if within is not None:
            made = _without(_together([*_without(made), *_without(within)]))
        return _without(made) if negative else made


def _single(char: str) -> Ranges:
    return ((ord(char), ord(char)),)


def _together(ranges: list[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def _without(ranges: Ranges) -> Ranges:
    """Every other code point."""
    starts = [0, *(last + 1 for _, last in ranges)]
    ends = [*(first - 1 for first, _ in ranges), _POINTS - 1]
    return tuple((first, last) for first, last in zip(starts, ends) if first <= last)


# ---- the program of threads


class _Program:
    """ops: ("char", set, 0), ("not", set, 0), ("either", (), other), ("go", (), to), ("end", (),
    0); an op is followed by the next, "either" by the next first and then by `other`.
    """

    def __init__(self) -> None:
        self.ops: list[tuple[str, Ranges, int]] = []

    def add(self, node: _Node) -> None:
        ops = self.ops
        if isinstance(node, _Char):
            ops.append(("char", node.ranges, 0))
        elif isinstance(node, _Not):
            ops.append(("not", node.ranges, 0))
        elif isinstance(node, _All):
            for part in node.parts:
                self.add(part)
        elif isinstance(node, _Either):
            exits = []
            for part in node.parts[:-1]:
                choice = self._hole("either")
                self.add(part)
                exits.append(self._hole("go"))
                self._fill(choice)
            self.add(node.parts[-1])
            for each in exits:
                self._fill(each)
        else:
            self._add_repeat(node)

    def _add_repeat(self, node: _Repeat) -> None:
        for _ in range(node.least):
            self.add(node.part)
        if node.most is None:
            choice = self._hole("either")
            self.add(node.part)
            self.ops.append(("go", (), choice))
            self._fill(choice)
            return
        choices = []
        for _ in range(node.most - node.least):
            choices.append(self._hole("either"))
            self.add(node.part)
        for choice in choices:
            self._fill(choice)

    def _hole(self, kind: str) -> int:
        self.ops.append((kind, (), -1))
        return len(self.ops) - 1

    def _fill(self, at: int) -> None:
        self.ops[at] = (self.ops[at][0], (), len(self.ops))


# ---- classes of characters, and the automaton


def _classes(sets: list[Ranges]) -> tuple[np.ndarray, np.ndarray]:
    """(class of each code point as uint8, whether (set, class) holds)."""
    # a set: `np.unique` imports `numpy.ma` for this, which takes as long as the rest
    ends = {e for ranges in sets for first, last in ranges for e in (first, last + 1)}
    edges = np.array(sorted(ends | {0, _POINTS}))
    starts = edges[:-1]
    inside = np.zeros((len(sets), len(starts)), bool)
    for row, ranges in zip(inside, sets):
        bounds = np.array([e for first, last in ranges for e in (first, last + 1)], np.int64)
        row[:] = np.searchsorted(bounds, starts, "right") % 2
    members, of = np.unique(inside, axis=1, return_inverse=True)
    if members.shape[1] > 255:
        raise ValueError(f"an expression of {members.shape[1]} classes, wanted at most 255")
    return np.repeat(of.reshape(-1).astype(np.uint8), np.diff(edges)), members


def _steps(ops: list[tuple[str, Ranges, int]], members: dict[Ranges, np.ndarray]) -> np.ndarray:
    """The automaton's table. A state is the threads that have taken the last character, in
    order.
    """
    inside = {ranges: row.tolist() for ranges, row in members.items()}
    asked = [ranges for ranges in inside if ("not", ranges, 0) in ops]
    count = len(next(iter(inside.values())))
    # how each column answers the lookaheads; the last is the end of the text
    answers = [tuple(not inside[r][column] for r in asked) for column in range(count)]
    answers.append((True,) * len(asked))
    begin: tuple[int, ...] = (0,)
    numbers, todo, table = {(): 0, begin: 1}, [begin], [[0] * (count + 1)]
    for threads in todo:
        closed = {
            answer: _closed(ops, threads, dict(zip(asked, answer))) for answer in set(answers)
        }
        row = []
        for column, answer in enumerate(answers):
            takers, ends = closed[answer]
            if ends and threads is begin:
                raise ValueError("an expression that matches an empty text")
            after: tuple[int, ...] = ()
            if column < count:
                after = tuple(dict.fromkeys(op + 1 for op in takers if inside[ops[op][1]][column]))
            if after not in numbers:
                if len(numbers) == _MOST_STATES:
                    raise ValueError(f"an expression of more than {_MOST_STATES} states")
                numbers[after] = len(numbers)
                todo.append(after)
            row.append(2 * numbers[after] + ends)
        table.append(row)
    return np.array(table, np.int32)


def _closed(
    ops: list[tuple[str, Ranges, int]], threads: tuple[int, ...], holds: dict[Ranges, bool]
) -> tuple[list[int], bool]:
    """(the ops that take a character, in order of priority; whether a match ends here, which cuts
    off the ops after it). holds: of each lookahead, whether the next character allows it.
    """
    takers: list[int] = []
    seen: set[int] = set()
    stack = list(reversed(threads))
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        kind, ranges, other = ops[at]
        if kind == "end":
            return takers, True
        if kind == "char":
            takers.append(at)
        elif kind == "go":
            stack.append(other)
        elif kind == "either":
            stack += [other, at + 1]
        elif holds[ranges]:
            stack.append(at + 1)
    return takers, False
