#!/usr/bin/env python3
"""Writes the tables of oxillama/tokenizer/unicode_sets.py: the sets of characters by which byte-
level vocabularies split words, as the `tokenizers` library has them (published tokenizers were
used with its tables).

    python tools/make_unicode_sets.py        takes some minutes
"""

from __future__ import annotations

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


def members(expression: str) -> list[tuple[int, int]]:
    """The code points of a set, as ranges with both ends included, surrogates left out."""
    splitter = pre_tokenizers.Split(Regex(f"{expression}+"), "removed")
    found: list[int] = []
    for start in range(0, len(POINTS), 4096):
        part = POINTS[start : start + 4096]
        inside = [True] * len(part)
        for _, (first, last) in splitter.pre_tokenize_str("".join(map(chr, part))):
            inside[first:last] = [False] * (last - first)
        found += [point for point, is_member in zip(part, inside) if is_member]
    return together(found)


def together(points: list[int]) -> list[tuple[int, int]]:
    """Ascending code points as ranges with both ends included."""
    found: list[tuple[int, int]] = []
    for point in points:
        if found and found[-1][1] == point - 1:
            found[-1] = (found[-1][0], point)
        else:
            found.append((point, point))
    return found


def shown(ranges: list[tuple[int, int]]) -> str:
    return "\n".join(f"    (0x{first:04X}, 0x{last:04X})," for first, last in ranges)


def replaced(text: str, before: str, table: str, after: str) -> str:
    """The text with another table between two marks."""
    start = text.index(before) + len(before)
    return text[:start] + table + text[text.index(after, start) :]


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
    text = PATH.read_text()
    text = replaced(text, '_CATEGORIES = """\n', "\n".join(lines), '\n"""\n')
    text = replaced(text, "_SPACE = (\n", shown(members(r"\s")), "\n)\n")
    text = replaced(text, "_HAN = (\n", shown(members(r"\p{Han}")), "\n)\n")
    text = replaced(text, "_DIGITS = (\n", shown(members(r"\d")), "\n)\n")
    # not [\w&&[^\p{L}\p{M}\d]]: within brackets the library's \w is a smaller set
    others = {
        point
        for ranges in map(members, (r"\p{L}", r"\p{M}", r"\d"))
        for first, last in ranges
        for point in range(first, last + 1)
    }
    word = [p for first, last in members(r"\w") for p in range(first, last + 1)]
    signs = together([point for point in word if point not in others])
    text = replaced(text, "_WORD_SIGNS = (\n", shown(signs), "\n)\n")
    PATH.write_text(text)


if __name__ == "__main__":
    main()
