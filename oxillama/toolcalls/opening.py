"""Where calls begin in a text that is still growing, and how much of its end might be the beginning
of one.

A delimiter is searched for as it is. A bare beginning (`{"name": "f", "parameters": {` or `[f(a=`)
is a pattern in two forms: one that matches it whole, and one that matches every beginning of it, so
that text is held back no longer than it must be.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from oxillama.toolcalls.formats import ToolCallFormat

SPACE = " \t\r\n"
# In a template: the call's name as a JSON string, as a dotted name; a keyword of a call; a name as
# tools may have it.
NAME, WORD, KEYWORD, TITLE = "\x00\x01\x02\x03"
_LONGEST = 256  # characters of a name


@dataclass(frozen=True, slots=True)
class Opening:
    """A beginning found at text[start:end]; kind "delimiter", "json" or "python"."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A template as two patterns: `whole` matches all of it, `part` every beginning of it too."""

    whole: re.Pattern
    part: re.Pattern


@lru_cache(maxsize=256)
def _pattern(template: str) -> Pattern:
    """The pattern of a template: characters as they are, a space for any spaces, and the three
    placeholders.

    In `part`, group "closed" takes part once the name is over.
    """
    whole, part = "", ""
    string, word = (
        rf'(?P<name>(?:[^"\\]|\\.){{0,{_LONGEST}}})',
        rf"[A-Za-z_][\w.\-]{{0,{_LONGEST}}}",
    )
    for char in reversed(template):
        if char == " ":
            whole, part = rf"[{SPACE}]*{whole}", rf"[{SPACE}]*(?:\Z|{part})"
        elif char == NAME:
            whole, part = rf'"{string}"{whole}', rf'(?:"{string}(?:\\?\Z|"(?P<closed>){part}))'
        elif char == WORD:
            whole, part = (
                rf"(?P<name>{word}){whole}",
                rf"(?:\Z|(?P<name>{word})(?:\Z|(?P<closed>){part}))",
            )
        elif char == TITLE:
            title = rf"[\w.\-]{{1,{_LONGEST}}}"
            whole, part = rf"(?P<name>{title}){whole}", rf"(?:\Z|{title}(?:\Z|{part}))"
        elif char == KEYWORD:
            whole, part = rf"{word}{whole}", rf"(?:\Z|{word}(?:\Z|{part}))"
        else:
            whole, part = re.escape(char) + whole, rf"(?:\Z|{re.escape(char)}{part})"
    return Pattern(re.compile(whole, re.DOTALL), re.compile(part, re.DOTALL))


def bare_templates(format: ToolCallFormat, *, trigger: bool = False) -> tuple[str, ...]:
    """Beginnings without a delimiter; as triggers of a constraint they end before the first thing
    that is to be constrained.
    """
    if format.bare == "python":
        return (f"[ {WORD}(",) if trigger else (f"[ {WORD}( )", f"[ {WORD}( {KEYWORD} =")
    if format.bare == "json":
        heads = ("{ ", '{ "type" : "function" , ')
        if trigger:
            return tuple(f'{head}"{format.name_key}" :' for head in heads)
        return tuple(
            f'{head}"{format.name_key}" : {NAME} , "{key}" : {{'
            for head in heads
            for key in format.arguments_keys
        )
    return ()


def head_pattern(format: ToolCallFormat) -> Pattern:
    """The pattern of what stands before the arguments of a headed call, from its lead to the
    bracket after it.
    """
    return _pattern(f" {' '.join(format.lead.split())}{TITLE} {' '.join(format.middle.split())} {{")


def tail_pattern(format: ToolCallFormat) -> Pattern:
    """The pattern of what stands after the arguments of a headed call."""
    return _pattern(f" {' '.join(format.tail.split())}")


def search(
    format: ToolCallFormat,
    text: str,
    *,
    fresh: bool,
    templates: Sequence[str],
    names: Collection[str] | None = None,
    opener: str | None = None,
    leading: bool = False,
) -> tuple[Opening | None, int]:
    """(the first opening in the text, how much of the text before it is certainly none).

    fresh: the text begins where a bare call may stand. names: where given, a bare call of another
    name is text. leading: only what stands there is an opening, a delimiter too.
    """
    opener = format.open if opener is None else opener
    if fresh and templates:
        lead = len(text) - len(text.lstrip(SPACE))
        if lead == len(text):
            return None, lead
        found, waiting = _bare(text, lead, templates, names)
        if found is not None:
            return Opening(lead, found, format.bare), lead
        if waiting:
            return None, lead
    if not opener:
        return None, len(text)
    if leading:
        rest = text.lstrip(SPACE)
        lead = len(text) - len(rest)
        if fresh and rest.startswith(opener):
            return Opening(lead, lead + len(opener), "delimiter"), lead
        return None, lead if fresh and opener.startswith(rest) else len(text)
    at = text.find(opener)
    if at >= 0:
        return Opening(at, at + len(opener), "delimiter"), at
    return None, len(text) - partial(text, opener)


def _bare(
    text: str, at: int, templates: Sequence[str], names: Collection[str] | None
) -> tuple[int | None, bool]:
    """(end of a whole beginning at `at`, whether the text may still become one)."""
    waiting = False
    for template in templates:
        pattern = _pattern(template)
        match = pattern.whole.match(text, at)
        if match is not None:
            if names is None or "name" not in match.groupdict() or match["name"] in names:
                return match.end(), False
            continue
        match = pattern.part.match(text, at)
        if match is not None:
            groups = match.groupdict()
            waiting = (
                waiting or names is None or groups.get("closed") is None or groups["name"] in names
            )
    return None, waiting


def partial(text: str, delimiter: str) -> int:
    """Length of the longest end of the text that a delimiter begins with, without being it."""
    for size in range(min(len(delimiter) - 1, len(text)), 0, -1):
        if text.endswith(delimiter[:size]):
            return size
    return 0
