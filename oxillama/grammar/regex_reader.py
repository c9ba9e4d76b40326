"""Reads the text of ECMA-262 regular expressions (as with the u flag) into trees, and knows their
classes of code points.

A tree is ("class", ranges), ("seq", parts), ("alt", parts), ("rep", part, least, most), ("^",),
("$",) or ("look", part, positive).
"""

import functools
import re
import sys
import unicodedata
from bisect import bisect_left, bisect_right

from oxillama._core.emission import kept_by_ranges
from oxillama.errors import GrammarError
from oxillama.grammar.nodes import ANY, Ranges, complement, merge

DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = merge(
    [
        (9, 13),
        (32, 32),
        (160, 160),
        (0x1680, 0x1680),
        (0x2000, 0x200A),
        (0x2028, 0x2029),
        (0x202F, 0x202F),
        (0x205F, 0x205F),
        (0x3000, 0x3000),
        (0xFEFF, 0xFEFF),
    ]
)
NOT_LINE_END: Ranges = complement(merge([(10, 10), (13, 13), (0x2028, 0x2029)]))
SETS = {
    "d": DIGIT,
    "D": complement(DIGIT),
    "w": WORD,
    "W": complement(WORD),
    "s": SPACE,
    "S": complement(SPACE),
}
CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
FLAGS = re.compile(r"\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
MAX_COUNT = 100_000
LAST_CASED = 0x1FFFF  # no code point beyond has case
MAX_NESTING = 120


class Reader:
    """One pass over the expression's text."""

    def __init__(self, text: str):
        self.text, self.at = text, 0
        self.fold = self.any_line = False  # the flags i and s

    def fail(self, what: str, at: int | None = None) -> GrammarError:
        return GrammarError(
            f"pattern {self.text[:120]!r}, position {(self.at if at is None else at) + 1}: {what}"
        )

    def next(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self, token: str) -> bool:
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def alternatives(self, depth: int) -> tuple:
        if depth > MAX_NESTING:
            raise self.fail(f"groups are nested deeper than {MAX_NESTING}")
        parts = [self.sequence(depth)]
        while self.take("|"):
            parts.append(self.sequence(depth))
        return parts[0] if len(parts) == 1 else ("alt", tuple(parts))

    def sequence(self, depth: int) -> tuple:
        parts = []
        while self.next() and self.next() not in "|)":
            parts.append(self.quantified(self.item(depth)))
        return parts[0] if len(parts) == 1 else ("seq", tuple(parts))

    def quantified(self, part: tuple) -> tuple:
        bounds = self.bounds()
        if bounds is None:
            return part
        if part[0] in "^$":
            raise self.fail("an anchor cannot be repeated")
        self.take("?")  # lazy: another search order, the same language
        if self.next() and self.next() in "*+?":
            raise self.fail("nothing to repeat")
        if part[0] == "look":
            return part if bounds[0] else ("seq", ())
        return ("rep", part, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        for mark, pair in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(mark):
                return pair
        if self.next() != "{":
            return None
        end = self.text.find("}", self.at)
        inside = self.text[self.at + 1 : end] if end > 0 else ""
        low, comma, high = inside.partition(",")
        if not (
            low.isascii() and low.isdigit() and (not high or high.isascii() and high.isdigit())
        ):
            return None  # a brace that is no quantifier stands for itself
        if len(low) > 9 or len(high) > 9 or max(int(low), int(high or 0)) > MAX_COUNT:
            raise self.fail(f"repetition {{{inside}}} is above {MAX_COUNT}")
        least = int(low)
        most = int(high) if high else None if comma else least
        if most is not None and most < least:
            raise self.fail(f"repetition {{{inside}}} has its bounds the wrong way round")
        self.at = end + 1
        return least, most

    def item(self, depth: int) -> tuple:
        start = self.at
        char = self.next()
        self.at += 1
        if char == "^" or char == "$":
            return (char,)
        if char == ".":
            return ("class", ANY if self.any_line else NOT_LINE_END)
        if char == "[":
            return ("class", self.klass(start))
        if char == "(":
            return self.group(start, depth)
        if char == "\\":
            return ("class", self.folded(self.escape(start, False)))
        if char in "*+?":
            raise self.fail("nothing to repeat", start)
        return ("class", self.folded(self.one(ord(char), start)))

    def folded(self, ranges: Ranges) -> Ranges:
        """The code points, with all that differ in case alone where the flag i holds."""
        return any_case(ranges) if self.fold else ranges

    def one(self, code: int, start: int) -> Ranges:
        if 0xD800 <= code <= 0xDFFF:
            raise self.fail("a lone surrogate matches no text", start)
        return ((code, code),)

    def group(self, start: int, depth: int) -> tuple:
        look = None
        flags = FLAGS.match(self.text, self.at)
        if flags:
            self.at = flags.end()
            outside = self.fold, self.any_line
            for turned_on, letters in ((True, flags[1]), (False, flags[2] or "")):
                for letter in letters:
                    if letter == "i":
                        self.fold = turned_on
                    elif letter == "s":
                        self.any_line = turned_on
                    elif letter != "u":
                        raise self.fail(f"flag {letter!r} is not supported", start)
            if flags[3] == ")":  # for the rest of the group that it stands in
                return ("seq", ())
            body = self.alternatives(depth + 1)
            self.fold, self.any_line = outside
            if not self.take(")"):
                raise self.fail("this group has no closing parenthesis", start)
            return body
        if self.take("?"):
            if self.take("=") or self.take("!"):
                look = self.text[self.at - 1] == "="
            elif self.text.startswith(("<=", "<!"), self.at):
                raise self.fail("lookbehind is not supported", start)
            elif self.take("<") or self.take("P<"):
                end = self.text.find(">", self.at)
                if end < 0:
                    raise self.fail("this group name has no end", start)
                self.at = end + 1
            elif not self.take(":"):
                raise self.fail("unknown kind of group", start)
        outside = self.fold, self.any_line
        body = self.alternatives(depth + 1)
        self.fold, self.any_line = outside
        if not self.take(")"):
            raise self.fail("this group has no closing parenthesis", start)
        return body if look is None else ("look", body, look)

    def hexadecimal(self, digits: int, start: int) -> int:
        text = self.text[self.at : self.at + digits]
        if len(text) < digits or any(c not in "0123456789abcdefABCDEF" for c in text):
            raise self.fail(f"found {text!r}, wanted {digits} hexadecimal digits", start)
        self.at += digits
        return int(text, 16)

    def escape(self, start: int, inside: bool) -> Ranges:
        """The code points of the escape whose backslash was read."""
        char = self.next()
        self.at += 1
        if not char:
            raise self.fail("the expression ends in a backslash", start)
        if char in SETS:
            return SETS[char]
        if char in CONTROLS:
            return self.one(CONTROLS[char], start)
        if char == "x":
            return self.one(self.hexadecimal(2, start), start)
        if char == "u":
            return self.unicode(start)
        if char == "c" and self.next().isascii() and self.next().isalpha():
            self.at += 1
            return self.one(ord(self.text[self.at - 1]) % 32, start)
        if char == "0" and not self.next().isdigit():
            return self.one(0, start)
        if char in "pP" and self.take("{"):
            end = self.text.find("}", self.at)
            name = self.text[self.at : end]
            self.at = end + 1
            ranges = unicode_property(name) if end > 0 else None
            if ranges is None:
                raise self.fail(f"unknown Unicode property {name!r}", start)
            return ranges if char == "p" else complement(ranges)
        if char == "b" and inside:
            return self.one(8, start)
        if char in "bB":
            raise self.fail("word boundaries are not supported", start)
        if char.isdigit() or char == "k":
            raise self.fail("back references are not regular", start)
        if char.isascii() and char.isalpha():
            raise self.fail(f"unknown escape \\{char}", start)
        return self.one(ord(char), start)

    def unicode(self, start: int) -> Ranges:
        if self.take("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : end] if end > 0 else ""
            if (
                not digits
                or len(digits) > 8
                or any(c not in "0123456789abcdefABCDEF" for c in digits)
                or int(digits, 16) > 0x10FFFF
            ):
                raise self.fail(
                    f"found {digits!r}, wanted the hexadecimal digits of a code point", start
                )
            self.at = end + 1
            return self.one(int(digits, 16), start)
        code = self.hexadecimal(4, start)
        if 0xD800 <= code < 0xDC00 and self.text.startswith("\\u", self.at):
            self.at += 2
            low = self.hexadecimal(4, start)
            if not 0xDC00 <= low < 0xE000:
                raise self.fail("a lone surrogate matches no text", start)
            code = 0x10000 + (code - 0xD800 << 10) + (low - 0xDC00)
        return self.one(code, start)

    def klass(self, start: int) -> Ranges:
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            low = self.member(start)
            if self.next() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                at = self.at
                self.at += 1
                high = self.member(start)
                if (
                    len(low) == len(high) == 1
                    and low[0][0] == low[0][1]
                    and high[0][0] == high[0][1]
                ):
                    if high[0][0] < low[0][0]:
                        raise self.fail("this range is the wrong way round", at)
                    ranges.append((low[0][0], high[0][0]))
                else:  # a set beside a dash: the dash stands for itself
                    ranges.extend(low)
                    ranges.append((45, 45))
                    ranges.extend(high)
            else:
                ranges.extend(low)
        merged = self.folded(merge(ranges))
        return complement(merged) if negated else merged

    def member(self, start: int) -> Ranges:
        char = self.next()
        if not char:
            raise self.fail("this class has no closing bracket", start)
        self.at += 1
        return self.escape(self.at - 1, True) if char == "\\" else self.one(ord(char), start)


@functools.lru_cache(maxsize=1)
def _cases() -> tuple[dict[int, tuple[int, ...]], list[int]]:
    """Code points that differ from others in case alone (Unicode's simple case folding), with all
    of their group; and these code points, ascending.
    """
    groups: dict[str, set[int]] = {}
    for code in range(LAST_CASED + 1):
        char = chr(code)
        for other in (char.casefold(), char.lower()):
            if len(other) == 1:
                if other != char:
                    groups.setdefault(other, {ord(other)}).add(code)
                break
    found = {code: tuple(sorted(group)) for group in groups.values() for code in group}
    return found, sorted(found)


@kept_by_ranges
def any_case(ranges: Ranges) -> Ranges:
    """The code points of the ranges and all that differ from one of them in case alone."""
    cases, codes = _cases()
    more = [
        (other, other)
        for low, high in ranges
        for code in codes[bisect_left(codes, low) : bisect_right(codes, high)]
        for other in cases[code]
    ]
    return merge([*ranges, *more])


@functools.lru_cache(maxsize=1)
def _categories() -> dict[str, Ranges]:
    """Code points by two-letter general category."""
    out: dict[str, list[tuple[int, int]]] = {}
    start, current = 0, unicodedata.category("\0")
    for code in range(1, sys.maxunicode + 2):
        now = unicodedata.category(chr(code)) if code <= sys.maxunicode else ""
        if now != current:
            out.setdefault(current, []).append((start, code - 1))
            start, current = code, now
    return {name: merge(ranges) for name, ranges in out.items()}


LONG_NAMES = {
    "Letter": "L",
    "Lowercase_Letter": "Ll",
    "Uppercase_Letter": "Lu",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Other": "C",
    "Control": "Cc",
    "digit": "Nd",
    "punct": "P",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
}


@functools.lru_cache(maxsize=256)
def unicode_property(name: str) -> Ranges | None:
    """The code points of `\\p{name}`: general categories by short or long name, Any and ASCII; None
    where it is not known.
    """
    for prefix in ("General_Category=", "gc="):
        name = name.removeprefix(prefix)
    if name == "Any":
        return ANY
    if name == "ASCII":
        return ((0, 127),)
    short = LONG_NAMES.get(name, name)
    found = [
        ranges
        for key, ranges in _categories().items()
        if key == short or (len(short) == 1 and key[0] == short)
    ]
    return merge(r for ranges in found for r in ranges) if found else None
