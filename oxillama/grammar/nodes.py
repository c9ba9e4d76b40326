"""Grammar nodes: the tree into which GBNF text, regular expressions and JSON Schemas are turned.

A node is a plain tuple whose first item is its kind (the numbers are those of the compiled
machine):
  (LITERAL, bytes)                  exactly these bytes
  (CLASS, ((low, high), ...))       one code point out of sorted, disjoint ranges
  (SEQUENCE, (node, ...))           one after the other
  (CHOICE, (node, ...))             any of them
  (REPEAT, node, least, most)       most -1: no upper bound
  (RULE, index)                     another rule
  (SYMBOL, ((low, high), ...))      one token out of ranges of token symbols, numbered from 256
  (NETWORK, start, ((accept, ((node, target), ...)), ...))
                                    a finite automaton whose edges are nodes
  (REGISTER, node, least, most, members)
                                    the node under a register: a count, a set of members and a
                                    set of words that its TAKE and FRESH parts read and change
  (TAKE, member, spans)             matches nothing; continues if the register allows it
  (FRESH, node, without, size)      the node, except the words that the register holds

A register belongs to one REGISTER node. TAKE and FRESH are parts of the networks, sequences and
choices of that node itself, not of rules that it calls. (TAKE, i, spans) takes member i >= 0, at
most once, and counts it; ONE counts without a member; CHECK only checks whether one more may be
counted. `spans` (None, or (low, high) pairs) are the counts allowed afterwards. The REGISTER node
may end only when `least` are counted and all of `members` are taken. At most `most` are counted
(-1: any number), and the members still missing can always be taken. The text that a FRESH node
matched, decoded from JSON, becomes a word of the register; `without(words)` gives the node of the
same language without a frozenset of words (None: nothing is left); `size` is how many words there
are (None: unlimited or unknown).
"""

from collections.abc import Callable, Sequence

from oxillama._core.emission import (
    CHOICE,
    CLASS,
    FRESH,
    LITERAL,
    NETWORK,
    REGISTER,
    REPEAT,
    RULE,
    SEQUENCE,
    SYMBOL,
    TAKE,
)

__all__ = [
    "CHOICE",
    "CLASS",
    "EMPTY",
    "FRESH",
    "LITERAL",
    "NETWORK",
    "NEVER",
    "ONE",
    "REGISTER",
    "REPEAT",
    "CHECK",
    "RULE",
    "SEQUENCE",
    "SYMBOL",
    "TAKE",
    "ANY",
    "choice",
    "cls",
    "complement",
    "intersect",
    "literal",
    "merge",
    "repeat",
    "rewritten",
    "rule",
    "seq",
    "subtract",
]

Ranges = tuple[tuple[int, int], ...]
LAST = 0x10FFFF

ONE, CHECK = -1, -2  # members of TAKE nodes
EMPTY = (LITERAL, b"")
NEVER = (CLASS, ())


def merge(ranges) -> Ranges:
    """Sorts ranges of code points and joins those that touch; surrogates are dropped, they have no
    UTF-8.
    """
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if out and low <= out[-1][1] + 1:
            if high > out[-1][1]:
                out[-1] = (out[-1][0], high)
        else:
            out.append((low, high))
    if any(low <= 0xDFFF and high >= 0xD800 for low, high in out):
        out = [
            part
            for low, high in out
            for part in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high))
            if part[0] <= part[1]
        ]
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """Every code point that is in none of the ranges (surrogates never are)."""
    out, at = [], 0
    for low, high in ranges:
        if low > at:
            out.append((at, low - 1))
        at = high + 1
    if at <= LAST:
        out.append((at, LAST))
    return merge(out)


def intersect(a: Ranges, b: Ranges) -> Ranges:
    """The code points in both."""
    out, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            out.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def subtract(a: Ranges, b: Ranges) -> Ranges:
    """The code points in a that are not in b."""
    return intersect(a, complement(b))


ANY = complement(())


def literal(text: str | bytes) -> tuple:
    """Exactly this text."""
    return (LITERAL, text.encode("utf-8") if isinstance(text, str) else bytes(text))


def cls(*ranges) -> tuple:
    """One code point out of ranges, given as (low, high) numbers or as strings such as "az" (a to
    z) or "-" (one character).
    """
    return (CLASS, merge((ord(r[0]), ord(r[-1])) if isinstance(r, str) else r for r in ranges))


def seq(*nodes) -> tuple:
    """One after the other; neighbouring literals are joined."""
    out: list[tuple] = []
    for node in nodes:
        kind = node[0]
        if kind == SEQUENCE:
            parts = node[1]
            if out and out[-1][0] == LITERAL and parts[0][0] == LITERAL:
                out[-1] = (LITERAL, out[-1][1] + parts[0][1])
                parts = parts[1:]
            out += parts
        elif kind == LITERAL:
            if out and out[-1][0] == LITERAL:
                out[-1] = (LITERAL, out[-1][1] + node[1])
            elif node[1]:
                out.append(node)
        elif kind == CLASS and not node[1]:
            return NEVER
        else:
            out.append(node)
    if not out:
        return EMPTY
    return out[0] if len(out) == 1 else (SEQUENCE, tuple(out))


def choice(*nodes) -> tuple:
    """Any of them; equal literals and rules are kept once (larger nodes are not compared: hashing
    them would cost more than it saves).
    """
    out, seen = [], set()
    for node in nodes:
        if node[0] == CLASS and not node[1]:
            continue
        if node[0] == LITERAL or node[0] == RULE:
            if node in seen:
                continue
            seen.add(node)
        out.append(node)
    if not out:
        return NEVER
    return out[0] if len(out) == 1 else (CHOICE, tuple(out))


def repeat(node: tuple, least: int = 0, most: int | None = None) -> tuple:
    """The node from `least` to `most` times (None: no upper bound)."""
    if most == 0 or node == EMPTY or (node == NEVER and least == 0):
        return EMPTY
    if node == NEVER:
        return NEVER
    if least == 1 and most == 1:
        return node
    if node[0] == REPEAT:
        # x{a,b}{c,d} is x{ac,bd} where the counts have no gap: else every way of sharing them out
        # would be followed
        _, inner, low, high = node
        first = max(least, 1)
        whole = high < 0 or low <= 1 or first * (high - low) + 1 >= low
        if whole and (least > 0 or low <= 1):
            last = -1 if most is None or high < 0 else most * high
            return (REPEAT, inner, least * low, last)
    return (REPEAT, node, least, -1 if most is None else most)


def rule(index: int) -> tuple:
    """Another rule of the same grammar, by its number."""
    return (RULE, index)


def rewritten(node: tuple, change: Callable[[tuple], tuple]) -> tuple:
    """The node with `change` of each node within it that holds no others. Its parts wait on a
    stack: bounds of many digits are nested as deeply as they have digits.
    """
    done: list[tuple] = []
    todo = [(node, False)]
    while todo:
        node, complete = todo.pop()
        parts = _parts(node)
        if parts and not complete:
            todo.append((node, True))
            todo.extend((part, False) for part in reversed(parts))
        elif parts:
            changed = done[-len(parts) :]
            del done[-len(parts) :]
            done.append(_with_parts(node, changed))
        else:
            done.append(change(node))
    return done[0]


def _parts(node: tuple) -> Sequence[tuple]:
    """The nodes within a node, in order."""
    kind = node[0]
    if kind in (SEQUENCE, CHOICE):
        parts: Sequence[tuple] = node[1]
        return parts
    if kind in (REPEAT, REGISTER, FRESH):
        return (node[1],)
    if kind == NETWORK:
        return [part for _, edges in node[2] for part, _ in edges]
    return ()


def _with_parts(node: tuple, parts: Sequence[tuple]) -> tuple:
    """The node with other nodes within it."""
    kind = node[0]
    if kind in (SEQUENCE, CHOICE):
        return (kind, tuple(parts))
    if kind in (REPEAT, REGISTER, FRESH):
        return (kind, parts[0], *node[2:])
    rest = iter(parts)
    states = tuple(
        (accept, tuple((next(rest), target) for _, target in edges)) for accept, edges in node[2]
    )
    return (NETWORK, node[1], states)
