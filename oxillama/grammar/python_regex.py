"""Python's regular expressions, as configuration files hold them, matched against names: in a time
bounded by the lengths of both, whatever the expression.

Each part of an expression is looked at once for each place of the name. Back references, atomic
groups and possessive repetition are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from oxillama.errors import GrammarError
from oxillama.grammar.regex_reader import WORD, Reader

MAX_PATTERN = 10_000  # characters
_EDGES = {"A": ("^",), "Z": ("$",), "b": ("edge", True), "B": ("edge", False)}
_BEHIND = {"?<=": True, "?<!": False}


@functools.lru_cache(maxsize=512)
def python_pattern(text: str) -> Callable[[str], bool]:
    """Whether an expression matches a name as a whole, as `re.fullmatch` says; `GrammarError` names
    what is malformed or not read.
    """
    if not isinstance(text, str):
        raise GrammarError(f"pattern: found {type(text).__name__}, wanted text")
    if len(text) > MAX_PATTERN:
        raise GrammarError(f"pattern: {len(text)} characters, wanted at most {MAX_PATTERN}")
    reader = _PythonReader(text)
    tree = reader.alternatives(0)
    if reader.at < len(text):
        raise reader.fail("this parenthesis opens nowhere")
    return lambda name: len(name) in _Ends(name).of(tree, 0)


class _PythonReader(Reader):
    """Reads Python's dialect where it differs. Trees have two more kinds: ("edge", whether it is
    one) of words, and ("behind", part, positive).
    """

    def item(self, depth: int) -> tuple:
        if self.next() == "\\":
            found = _EDGES.get(self.text[self.at + 1 : self.at + 2])
            if found is not None:
                self.at += 2
                return found
        return super().item(depth)

    def group(self, start: int, depth: int) -> tuple:
        if self.take("?#"):
            end = self.text.find(")", self.at)
            if end < 0:
                raise self.fail("this comment has no end", start)
            self.at = end + 1
            return ("seq", ())
        for mark, positive in _BEHIND.items():
            if self.take(mark):
                return ("behind", super().group(start, depth), positive)
        return super().group(start, depth)

    def bounds(self) -> tuple[int, int | None] | None:
        if self.text.startswith("{,", self.at):
            self.text = f"{self.text[: self.at]}{{0{self.text[self.at + 1 :]}"
        return super().bounds()

    def klass(self, start: int) -> tuple:
        at = self.at + (self.next() == "^")
        if self.text[at : at + 1] == "]":  # the first stands for itself
            self.text = f"{self.text[:at]}\\{self.text[at:]}"
        return super().klass(start)


class _Ends:
    """The places of one name at which the parts of an expression end that begin at a place."""

    def __init__(self, name: str):
        self.name = name
        self.known: dict[tuple[int, int], frozenset[int]] = {}

    def of(self, tree: tuple, at: int) -> frozenset[int]:
        found = self.known.get((id(tree), at))
        if found is None:
            found = self.known[id(tree), at] = frozenset(self._found(tree, at))
        return found

    def _all(self, tree: tuple, places: Iterable[int]) -> set[int]:
        return {end for at in places for end in self.of(tree, at)}

    def _found(self, tree: tuple, at: int) -> Iterable[int]:
        kind = tree[0]
        if kind == "class":
            inside = at < len(self.name) and _holds(tree[1], self.name[at])
            return (at + 1,) if inside else ()
        if kind == "seq":
            places: set[int] = {at}
            for part in tree[1]:
                places = self._all(part, places)
            return places
        if kind == "alt":
            return {end for part in tree[1] for end in self.of(part, at)}
        if kind == "rep":
            return self._repeated(tree[1], tree[2], tree[3], at)
        return (at,) if self._holds(tree, at) else ()

    def _holds(self, tree: tuple, at: int) -> bool:
        """Whether something that takes no character holds at a place."""
        kind = tree[0]
        if kind == "^":
            return at == 0
        if kind == "$":
            return at == len(self.name)
        if kind == "look":
            return bool(self.of(tree[1], at)) == tree[2]
        if kind == "behind":
            return any(at in self.of(tree[1], first) for first in range(at + 1)) == tree[2]
        around = (self.name[max(0, at - 1) : at], self.name[at : at + 1])
        before, after = (bool(one) and _holds(WORD, one) for one in around)
        return (before != after) == tree[1]

    def _repeated(self, part: tuple, least: int, most: int | None, at: int) -> set[int]:
        places = {at}
        # one more than the name is long: then some repetition takes nothing, and any number may
        for _ in range(min(least, len(self.name) + 1)):
            places = self._all(part, places)
        left = len(self.name) + 1 if most is None else most - least
        reached, new = set(places), places
        while new and left > 0:
            new = self._all(part, new) - reached
            reached |= new
            left -= 1
        return reached


def _holds(ranges: Iterable[tuple[int, int]], char: str) -> bool:
    return any(low <= ord(char) <= high for low, high in ranges)
