"""How JSON values are written: characters of strings, constants and whitespace, as grammar nodes.

`Spelling(flexible)` is either compact (what `json.dumps` with the tightest separators and raw UTF-8
writes) or flexible (whitespace around punctuation, short escapes, and \\uXXXX for controls and all
beyond ASCII). Unconstrained strings take every escape in both. Numbers are in `numerals`.
"""

import functools
import itertools
import json
import re

from oxillama._core.emission import kept_by_ranges
from oxillama.grammar.nodes import (
    ANY,
    CLASS,
    EMPTY,
    LITERAL,
    NEVER,
    Ranges,
    choice,
    cls,
    complement,
    intersect,
    literal,
    merge,
    repeat,
    seq,
)
from oxillama.grammar.schema.numerals import number_literal

MAX_PERMUTED = 4  # members of a constant that are written in any order
SHORT = {0x22: '\\"', 0x5C: "\\\\", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t"}
# What may be written as \uXXXX where a text is constrained: escaped ASCII letters would only hide
# what is forced.
CODED: Ranges = merge([(0, 0x1F), (0x7F, 0x10FFFF)])
PLAIN: Ranges = complement(merge([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]))
# characters that flexible texts may write in more than one way
UNSAFE = re.compile(r"[^ !#-.0-\[\]-~]")
RUNS = re.compile(r"[ !#-.0-\[\]-~]+|[^ !#-.0-\[\]-~]")
HEX = cls("09", "af", "AF")


def hex_digits(low: int, high: int, digits: int) -> tuple:
    """The node of the numbers low..high written with exactly that many hexadecimal digits of either
    case.
    """
    if low == 0 and high == 16**digits - 1:
        return repeat(HEX, digits, digits)
    unit = 16 ** (digits - 1)
    first, last = low // unit, high // unit
    if digits == 1:
        return _hex_class(low, high)
    if first == last:
        return seq(
            _hex_class(first, first),
            hex_digits(low - first * unit, high - first * unit, digits - 1),
        )
    parts = []
    if low % unit:
        parts.append(seq(_hex_class(first, first), hex_digits(low % unit, unit - 1, digits - 1)))
        first += 1
    tail = None
    if high % unit != unit - 1:
        tail = seq(_hex_class(last, last), hex_digits(0, high % unit, digits - 1))
        last -= 1
    if first <= last:
        parts.append(seq(_hex_class(first, last), repeat(HEX, digits - 1, digits - 1)))
    if tail is not None:
        parts.append(tail)
    return choice(*parts)


def _hex_class(low: int, high: int) -> tuple:
    ranges = []
    for value in range(low, high + 1):
        for char in {f"{value:x}", f"{value:X}"}:
            ranges.append((ord(char), ord(char)))
    return (CLASS, merge(ranges))


@functools.lru_cache(maxsize=1024)
def escape_compact(ranges: Ranges) -> tuple:
    """One character out of ranges that cannot stand raw, as `json.dumps` escapes it."""
    parts = []
    for low, high in ranges:
        for code in range(low, high + 1):
            parts.append(
                literal(SHORT[code])
                if code in SHORT
                else seq(literal("\\u00"), hex_digits(code, code, 2))
            )
    return choice(*parts)


@kept_by_ranges
def escape_any(ranges: Ranges) -> tuple:
    """One character out of ranges as a short escape, or (controls and all beyond ASCII) as
    \\uXXXX.
    """
    short = [
        cls(text[1])
        for code, text in SHORT.items()
        if any(low <= code <= high for low, high in ranges)
    ]
    if any(low <= 0x2F <= high for low, high in ranges):
        short.append(cls("/"))
    parts = (
        [seq(literal("\\"), (CLASS, merge(r for node in short for r in node[1])))] if short else []
    )
    coded = intersect(ranges, CODED)
    return choice(*parts, *([_coded(coded)] if coded else []))


@kept_by_ranges
def _coded(ranges: Ranges) -> tuple:
    """One character out of ranges as \\uXXXX, or as a pair of them."""
    units = [hex_digits(low, min(high, 0xFFFF), 4) for low, high in ranges if low <= 0xFFFF]
    for low, high in ranges:
        low = max(low, 0x10000)
        if low <= high:
            units.extend(_surrogates(low - 0x10000, high - 0x10000))
    return seq(literal("\\u"), choice(*units))


@functools.cache
def whitespace() -> tuple:
    """llama.cpp's convention: no space, one space, or one or two line breaks with an
    indentation.
    """
    return choice(
        EMPTY, literal(" "), seq(repeat(literal("\n"), 1, 2), repeat(cls(" ", "\t"), 0, 20))
    )


@functools.cache
def any_character() -> tuple:
    """Any character of an unconstrained string, in every way JSON allows."""
    return choice(
        (CLASS, PLAIN),
        seq(literal("\\"), cls('"', "\\", "/", "b", "f", "n", "r", "t")),
        _coded(ANY),
    )


def lone(letter: str) -> bool:
    """Whether a character is half of a surrogate pair, which alone has no spelling."""
    return "\ud800" <= letter <= "\udfff"


def _surrogates(low: int, high: int) -> list[tuple]:
    """Pairs for offsets low..high above U+10000: the high unit, a backslash and u, the low unit."""
    first, last = low >> 10, high >> 10

    def pair(a, b, c, d):
        return seq(
            hex_digits(0xD800 + a, 0xD800 + b, 4),
            literal("\\u"),
            hex_digits(0xDC00 + c, 0xDC00 + d, 4),
        )

    if first == last:
        return [pair(first, first, low & 1023, high & 1023)]
    parts = []
    if low & 1023:
        parts.append(pair(first, first, low & 1023, 1023))
        first += 1
    if high & 1023 != 1023:
        parts.append(pair(last, last, 0, high & 1023))
        last -= 1
    if first <= last:
        parts.append(pair(first, last, 0, 1023))
    return parts


class Spelling:
    """The writing conventions of one grammar."""

    __slots__ = ("flexible", "free", "char", "escape", "escaped", "space")

    def __init__(self, flexible: bool, space: tuple, *, free: bool = False):
        self.flexible, self.free = flexible, free
        self.escaped = (
            merge([*CODED, (0x22, 0x22), (0x2F, 0x2F), (0x5C, 0x5C)])
            if flexible
            else complement(PLAIN)
        )
        self.escape = escape_any if flexible else escape_compact
        self.char = any_character()
        # the node between tokens: EMPTY, or a rule of `whitespace()`
        self.space = space

    def text(self, value: str) -> tuple:
        """A string literal, quotes included; lone surrogates cannot be written and match
        nothing.
        """
        if not self.flexible:
            try:
                return literal(json.dumps(value, ensure_ascii=False))
            except UnicodeEncodeError:
                return NEVER
        if not value.isascii() and any(map(lone, value)):
            return NEVER
        if not UNSAFE.search(value):
            return literal(f'"{value}"')
        parts = [literal('"')]
        for run in RUNS.findall(value):
            if len(run) > 1 or not UNSAFE.match(run):
                parts.append(literal(run))
            else:
                code = ((ord(run), ord(run)),)
                parts.append(
                    choice(*([literal(run)] if intersect(code, PLAIN) else []), escape_any(code))
                )
        return seq(*parts, literal('"'))

    def value(self, value, *, integer: bool = False) -> tuple:
        """A JSON value: scalars as they are, members in their order (if that is free and they are
        few: in any).

        A number that is given as an integer, or wanted as one (integer), is written so; 1.0 may be
        written as 1 too.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            parts = [
                seq(self.text(k), self.space, literal(":"), self.space, self.value(v))
                for k, v in value.items()
            ]
            if self.free and 1 < len(parts) <= MAX_PERMUTED:
                return choice(
                    *(
                        self.bracket("{", list(order), "}")
                        for order in itertools.permutations(parts)
                    )
                )
            return self.bracket("{", parts, "}")
        if isinstance(value, list):
            return self.bracket("[", [self.value(item) for item in value], "]")
        if isinstance(value, bool) or value is None:
            return literal(json.dumps(value))
        return number_literal(value, integer=integer or isinstance(value, int))

    def values(self, values: list, *, integer: bool = False) -> tuple:
        """Any of some JSON values."""
        if all(type(value) is str for value in values) and not UNSAFE.search("".join(values)):
            # thousands of words are listed at times
            return choice(*[(LITERAL, f'"{value}"'.encode()) for value in dict.fromkeys(values)])
        return choice(*(self.value(value, integer=integer) for value in values))

    def bracket(self, opening: str, parts: list[tuple], closing: str) -> tuple:
        """Parts separated by commas between two brackets."""
        inner = []
        for i, part in enumerate(parts):
            inner += ([literal(","), self.space] if i else []) + [part, self.space]
        return seq(literal(opening), self.space, *inner, literal(closing))
