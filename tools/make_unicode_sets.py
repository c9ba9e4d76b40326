#!/usr/bin/env python3
"""Writes oxillama/tokenizer/unicode_sets.py: what the sets of characters are by which byte-level
vocabularies cut words, as the `tokenizers` library (whose own tables are those that published
tokenizers were used with) has them.

    python tools/make_unicode_sets.py        takes some minutes
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from tokenizers import Regex, pre_tokenizers

CODES = {
    "Lu": "u",
    "Ll": "l",
    "Lt": "t",
    "Lm": "m",
    "Lo": "o",
    "M": "M",
    "N": "N",
    "P": "P",
    "S": "S",
}
PATH = Path(__file__).resolve().parents[1] / "oxillama" / "tokenizer" / "unicode_sets.py"
POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]

TEXT = '''"""Sets of characters by name, as regular expressions have them: the categories of Unicode that words
are cut by, white space, and the Han script. Made by tools/make_unicode_sets.py.
"""

from __future__ import annotations

from functools import cache

# The categories of all code points in order: how many (1 unless said), then which, "-" for those
# that no set holds.
_CATEGORIES = """
{categories}
"""
_CODES = {{"Lu": "u", "Ll": "l", "Lt": "t", "Lm": "m", "Lo": "o", "L": "ultmo"}}
_SPACE = {space}
_HAN = {han}


@cache
def named_set(name: str) -> tuple[tuple[int, int], ...]:
    """The code points of a set, as ranges with both ends included: a category of letters ("Lu",
    "Ll", "Lt", "Lm", "Lo"), a class of categories ("L", "M", "N", "P", "S"), "space" or "Han".
    ValueError for another name.
    """
    if name == "space":
        return _SPACE
    if name == "Han":
        return _HAN
    codes = _CODES.get(name, name)
    if not codes or name not in (*_CODES, *"MNPS"):
        raise ValueError(f"characters: found {{name!r}}, wanted a set that splits name")
    found: list[tuple[int, int]] = []
    for first, last, code in _runs():
        if code not in codes:
            continue
        if found and found[-1][1] == first - 1:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return tuple(found)


@cache
def _runs() -> tuple[tuple[int, int, str], ...]:
    """(first, last, code) of each run of one category."""
    found, at, count = [], 0, 0
    for char in _CATEGORIES:
        if char.isdigit():
            count = 10 * count + int(char)
        elif char != "\\n":
            found.append((at, at + (count or 1) - 1, char))
            at, count = at + (count or 1), 0
    return tuple(found)
'''


def members(expression: str) -> list[tuple[int, int]]:
    """The code points of a set, as ranges with both ends included, surrogates left out."""
    splitter = pre_tokenizers.Split(Regex(f"{expression}+"), "removed")
    found: list[tuple[int, int]] = []
    for start in range(0, len(POINTS), 4096):
        part = POINTS[start : start + 4096]
        inside = [True] * len(part)
        for _, (first, last) in splitter.pre_tokenize_str("".join(map(chr, part))):
            inside[first:last] = [False] * (last - first)
        for point, is_member in zip(part, inside):
            if not is_member:
                continue
            if found and found[-1][1] == point - 1:
                found[-1] = (found[-1][0], point)
            else:
                found.append((point, point))
    return found


def main() -> None:
    code = ["-"] * 0x110000
    for name, letter in CODES.items():
        for first, last in members(rf"\p{{{name}}}"):
            code[first : last + 1] = [letter] * (last + 1 - first)
    runs, start = [], 0
    for point in range(1, 0x110001):
        if point == 0x110000 or code[point] != code[start]:
            runs.append(f"{point - start if point - start > 1 else ''}{code[start]}")
            start = point
    lines: list[str] = [""]
    for run in runs:
        if len(lines[-1]) + len(run) > 100:
            lines.append("")
        lines[-1] += run
    shown = [
        "(\n"
        + textwrap.indent("".join(f"(0x{a:04X}, 0x{b:04X}),\n" for a, b in ranges), "    ")
        + ")"
        for ranges in (members(r"\s"), members(r"\p{Han}"))
    ]
    PATH.write_text(TEXT.format(categories="\n".join(lines), space=shown[0], han=shown[1]))


if __name__ == "__main__":
    main()
