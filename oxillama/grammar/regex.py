"""Reads ECMA-262 regular expressions (as with the u flag) and turns them into grammar nodes or
automata.

`parse_regex(text)` gives a `Regex`: `whole()` is the node of texts that match as a whole,
`search_node(spell, any)` that of texts in which the expression matches somewhere (None where
anchors or lookahead need an automaton), `search()` the automaton of the latter. Read: alternation,
groups (capturing, named, `(?:`), greedy and lazy quantifiers, classes, `\\d \\w \\s` and their
opposites, `\\p{...}` of general categories and a few binary properties, all character escapes, `^`,
`$`, lookahead, `\\b` is refused like everything that is not regular (back references) or not read
(lookbehind): `GrammarError` names the construct and its position.
"""

from collections.abc import Callable

from oxillama.errors import GrammarError
from oxillama.grammar.nodes import (
    ANY,
    CLASS,
    EMPTY,
    Ranges,
    choice,
    repeat,
    seq,
)
from oxillama.grammar.regex_reader import Reader
from oxillama.grammar.regular import Dfa, Nfa
from oxillama.grammar.remembered import remembered

MAX_COPIES = 20_000


class Regex:
    """A parsed expression: a tree of ("class", ranges), ("seq", parts), ("alt", parts), ("rep",
    part, least, most), ("^",), ("$",) and ("look", part, positive).
    """

    __slots__ = ("text", "tree", "_branches", "_raw")

    def __init__(self, text: str, tree: tuple):
        self.text, self.tree = text, tree
        # the alternatives without anchors at their ends, and whether those were there; None where
        # others are left; () where not looked at yet
        self._branches: list[tuple[bool, tuple, bool]] | tuple | None = ()
        # by what tells spellings apart, nodes that hold no rule
        self._raw: dict[object, tuple] = {}

    def whole(self) -> tuple:
        """The node of texts (as they are, UTF-8) that the expression matches from start to end."""
        tree = _strip(self.tree, True, True)
        if tree is not None:
            return _node(tree, lambda ranges: (CLASS, ranges))
        return self.automaton(search=False).node(lambda ranges: (CLASS, ranges))

    def search_node(
        self, spell: Callable[[Ranges], tuple], anything: tuple, key: object = None
    ) -> tuple | None:
        """The node of texts in which the expression matches; `spell` writes one code point,
        `anything` any text. None: use `search`. A node that `spell` has no part in but for classes
        is made once for each `key` (None: each time).
        """
        if key in self._raw:
            return self._raw[key]
        if self._branches == ():
            self._branches = self._anchored()
        if self._branches is None:
            return None
        raw = key is not None and all(first and last for first, _, last in self._branches)

        def spelled(ranges: Ranges) -> tuple:
            nonlocal raw
            node = spell(ranges)
            raw = raw and node[0] == CLASS
            return node

        parts = []
        for first, inner, last in self._branches:
            middle = _node(inner, spelled)
            parts.append(seq(EMPTY if first else anything, middle, EMPTY if last else anything))
        node = choice(*parts)
        if raw:
            self._raw[key] = node
        return node

    def _anchored(self) -> list[tuple[bool, tuple, bool]] | None:
        """The alternatives: whether each begins with an anchor, what is left, whether it ends with
        one. None if other anchors or lookahead are left.
        """
        out = []
        for part in self.tree[1] if self.tree[0] == "alt" else (self.tree,):
            items = part[1] if part[0] == "seq" else (part,)
            first, last = bool(items) and items[0] == ("^",), bool(items) and items[-1] == ("$",)
            inner = _strip(
                ("seq", items[first : len(items) - (last and len(items) > first)]), False, False
            )
            if inner is None:
                return None
            out.append((first, inner, last))
        return out

    def lengths(self) -> tuple[int, int | None]:
        """Bounds on the length of texts in which the expression matches (None: no upper bound)."""
        least, most = _lengths(self.tree)
        parts = self.tree[1] if self.tree[0] == "alt" else (self.tree,)
        items = [part[1] if part[0] == "seq" else (part,) for part in parts]
        pinned = all(p and p[0] == ("^",) and p[-1] == ("$",) for p in items)
        return least, most if pinned else None

    def run(self) -> tuple[Ranges, int, int | None] | None:
        """(class, least, most) if the expression is `^[class]{least,most}$`, or one that means the
        same; else None.
        """
        tree = self.tree
        if tree[0] != "seq" or len(tree[1]) != 3 or tree[1][0] != ("^",) or tree[1][2] != ("$",):
            return None
        inner = tree[1][1]
        if inner[0] == "class":
            return inner[1], 1, 1
        if inner[0] == "rep" and inner[1][0] == "class":
            return inner[1][1], inner[2], inner[3]
        return None

    def search(self) -> Dfa:
        """The automaton of texts in which the expression matches somewhere."""
        return self.automaton(search=True)

    def automaton(self, *, search: bool) -> Dfa:
        """The automaton of texts that match as a whole, or (search) somewhere."""
        try:
            nfa = Nfa()
            start, inner, final = nfa.state(), nfa.state(), nfa.state()
            end = _build(nfa, self.tree, inner, [0])
            nfa.skip(start, inner)
            nfa.skip(end, final)
            if search:
                before, after = nfa.state(), nfa.state()
                nfa.eat(start, before, ANY)
                nfa.eat(before, before, ANY)
                nfa.skip(before, inner)
                nfa.eat(end, after, ANY)
                nfa.eat(after, after, ANY)
                nfa.skip(after, final)
            nfa.final = final
            return nfa.determinise()
        except GrammarError as error:
            raise GrammarError(f"{error} (pattern {self.text[:120]!r})") from None


def _lengths(tree: tuple) -> tuple[int, int | None]:
    """The least and most code points a tree can match."""
    kind = tree[0]
    if kind == "class":
        return 1, 1
    if kind in ("^", "$", "look"):
        return 0, 0
    if kind == "rep":
        least, most = _lengths(tree[1])
        return least * tree[2], None if most is None or (tree[3] is None and most) else most * (
            tree[3] or 0
        )
    bounds = [_lengths(part) for part in tree[1]]
    most_of = [high for _, high in bounds if high is not None]
    open_ended = len(most_of) < len(bounds)
    if kind == "alt":
        return min(low for low, _ in bounds), None if open_ended else max(most_of)
    return sum(low for low, _ in bounds), None if open_ended else sum(most_of)


def _strip(tree: tuple, head: bool, tail: bool):
    """The tree without anchors where they hold anyway (at the start if `head`, at the end if
    `tail`); None if others are left.
    """
    kind = tree[0]
    if kind == "class":
        return tree
    if kind == "^":
        return ("seq", ()) if head else None
    if kind == "$":
        return ("seq", ()) if tail else None
    if kind == "look":
        return None
    if kind == "alt":
        parts = [_strip(part, head, tail) for part in tree[1]]
        return None if None in parts else ("alt", tuple(parts))
    if kind == "rep":
        inner = _strip(tree[1], False, False)
        return None if inner is None else ("rep", inner, tree[2], tree[3])
    items = tree[1]
    # how many parts begin the text, and from which on they end it
    first = next((i for i, part in enumerate(items) if part != ("^",)), len(items))
    last = next((i for i in range(len(items) - 1, -1, -1) if items[i] != ("$",)), -1)
    parts = [_strip(part, head and i <= first, tail and i >= last) for i, part in enumerate(items)]
    return None if None in parts else ("seq", tuple(parts))


def _node(tree: tuple, spell) -> tuple:
    kind = tree[0]
    if kind == "class":
        return spell(tree[1])
    if kind == "seq":
        return seq(*(_node(part, spell) for part in tree[1]))
    if kind == "alt":
        return choice(*(_node(part, spell) for part in tree[1]))
    return repeat(_node(tree[1], spell), tree[2], tree[3])


def _build(nfa: Nfa, tree: tuple, a: int, copies: list[int], later: bool = False) -> int:
    """Adds the tree to the automaton from state a; returns its end state. `copies` bounds what
    nested repetition may cost. later: the automaton begins after the beginning of the text, so that
    nothing passes a `^`.
    """
    kind = tree[0]
    copies[0] += 1
    if copies[0] > MAX_COPIES:
        raise GrammarError(f"regular: repetition expands to more than {MAX_COPIES} parts")
    if kind == "seq":
        for part in tree[1]:
            a = _build(nfa, part, a, copies, later)
        return a
    b = nfa.state()
    if kind == "class":
        nfa.eat(a, b, tree[1])
    elif kind in "^$":
        if not (later and kind == "^"):
            nfa.skip(a, b, kind)
    elif kind == "alt":
        for part in tree[1]:
            nfa.skip(_build(nfa, part, a, copies, later), b)
    elif kind == "look":
        if later or not _has_begin(tree[1]):
            nfa.look(a, b, _rest(tree, copies, later))
        else:
            for when, behind in (("^", False), ("+", True)):
                at = nfa.state()
                nfa.skip(a, at, when)
                nfa.look(at, b, _rest(tree, copies, behind))
    else:
        _, part, least, most = tree
        at = nfa.state()
        nfa.skip(a, at)
        for _ in range(least):
            at = _build(nfa, part, at, copies, later)
        if most is None:
            loop = nfa.state()
            nfa.skip(at, loop)
            nfa.skip(_build(nfa, part, loop, copies, later), loop)
            nfa.skip(loop, b)
        else:
            for _ in range(most - least):
                nfa.skip(at, b)
                at = _build(nfa, part, at, copies, later)
            nfa.skip(at, b)
    return b


def _rest(look: tuple, copies: list[int], later: bool) -> Dfa:
    """What a lookahead wants of the rest of the text; later: not from its beginning."""
    nfa = Nfa()
    end = _build(nfa, look[1], nfa.state(), copies, later)
    loop = nfa.final = nfa.state()  # what was looked at, then anything
    nfa.skip(end, loop)
    nfa.eat(loop, loop, ANY)
    dfa = nfa.determinise()
    return dfa if look[2] else dfa.inverse()


def _has_begin(tree: tuple) -> bool:
    """Whether a tree has a `^`."""
    kind = tree[0]
    if kind in ("rep", "look"):
        return _has_begin(tree[1])
    return kind == "^" or kind in ("seq", "alt") and any(map(_has_begin, tree[1]))


# a tree takes up to 180 bytes for each character
@remembered(64 << 20, weigh=lambda made, text: 512 + 256 * len(text))
def parse_regex(text: str) -> Regex:
    """Reads an expression. Raises `GrammarError` with the position of what is malformed, not
    regular or not supported.
    """
    if not isinstance(text, str):
        raise GrammarError(f"pattern: found {type(text).__name__}, wanted text")
    reader = Reader(text)
    tree = reader.alternatives(0)
    if reader.at < len(text):
        raise reader.fail("this parenthesis opens nowhere")
    return Regex(text, tree)


@remembered(256 << 20, weigh=lambda dfa, text: dfa.nbytes + 8 * len(text))
def search_automaton(text: str) -> Dfa:
    """`parse_regex(text).search()`, remembered."""
    return parse_regex(text).search()


@remembered(16 << 20, weigh=lambda found, text, limit: 512 + 8 * len(text) + _size(found))
def few_matches(text: str, limit: int) -> list[str] | None:
    """The texts in which an expression matches, if there are at most `limit`, else None.
    Remembered.
    """
    if parse_regex(text).lengths()[1] is None:
        return None
    return search_automaton(text).finite(limit)


def _size(texts: list[str] | None) -> int:
    """Bytes of texts in memory, about."""
    return sum(64 + 4 * len(text) for text in texts or ())
