"""Where calls begin in a growing text, and how much of its end may yet become a beginning."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from oxillama.grammar.composer import partial
from oxillama.toolcalls.formats import DIGITS, IDENTIFIER, ToolCallFormat

SPACE = " \t\r\n"
# Placeholders of a template: the call's name as a JSON string, the name as a dotted identifier, the
# keyword of an argument, and any name that a tool may have.
NAME, WORD, KEYWORD, TITLE = "\x00\x01\x02\x03"
LONGEST_NAME = 256  # characters
MOST_SPACES = 64  # white space in one place of an opening, so that little is held back


@dataclass(frozen=True, slots=True)
class Opening:
    """An opening found at text[start:end]. kind: "delimiter", "inner" (the call's block has no
    opening of its own), "json" or "python".
    """

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A template as two patterns: `whole` matches all of it, `part` also every prefix of it."""

    whole: re.Pattern
    part: re.Pattern


@lru_cache(maxsize=256)
def _pattern(template: str) -> Pattern:
    """The pattern of a template: literal characters, a space for any white space, and
    placeholders.

    In `part`, the group "closed" takes part in the match once the name is complete.
    """
    whole, part = "", ""
    string, word = (
        rf'(?P<name>(?:[^"\\]|\\.){{0,{LONGEST_NAME}}})',
        rf"[^\W\d][\w.\-]{{0,{LONGEST_NAME}}}",
    )
    for char in reversed(template):
        if char == " ":
            spaces = rf"[{SPACE}]{{0,{MOST_SPACES}}}"
            whole, part = rf"{spaces}{whole}", rf"{spaces}(?:\Z|{part})"
        elif char == NAME:
            whole, part = rf'"{string}"{whole}', rf'(?:"{string}(?:\\?\Z|"(?P<closed>){part}))'
        elif char == WORD:
            whole, part = (
                rf"(?P<name>{word}){whole}",
                rf"(?:\Z|(?P<name>{word})(?:\Z|(?P<closed>){part}))",
            )
        elif char == TITLE:
            title = rf"[\w.\-]{{1,{LONGEST_NAME}}}"
            whole, part = rf"(?P<name>{title}){whole}", rf"(?:\Z|{title}(?:\Z|{part}))"
        elif char == DIGITS:
            whole, part = rf"\d{{1,9}}{whole}", rf"(?:\Z|\d{{1,9}}(?:\Z|{part}))"
        elif char == IDENTIFIER:
            whole, part = rf"[\w\-]{{1,64}}{whole}", rf"(?:\Z|[\w\-]{{1,64}}(?:\Z|{part}))"
        elif char == KEYWORD:
            whole, part = rf"{word}{whole}", rf"(?:\Z|{word}(?:\Z|{part}))"
        else:
            whole, part = re.escape(char) + whole, rf"(?:\Z|{re.escape(char)}{part})"
    return Pattern(re.compile(whole, re.DOTALL), re.compile(part, re.DOTALL))


def bare_templates(format: ToolCallFormat, *, trigger: bool = False) -> tuple[str, ...]:
    """The templates of calls without a delimiter. With `trigger`, they end before the first
    character that a constraint applies to.
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
    """The pattern of the text before the arguments of a headed call, from its lead to the bracket
    after it; for a call in tags, to the end of its name.
    """
    if format.style == "tags":
        return _pattern(f" {format.lead}{TITLE}{format.middle or ' <'}")
    return _pattern(f" {' '.join(format.lead.split())}{TITLE} {' '.join(format.middle.split())} {{")


def tail_pattern(format: ToolCallFormat) -> Pattern:
    """The pattern of the text after the arguments of a headed call."""
    return _pattern(f" {' '.join(format.tail.split())}")


def search(
    format: ToolCallFormat,
    text: str,
    *,
    fresh: bool,
    templates: Sequence[str],
    names: Collection[str] | None = None,
    openers: tuple[str, str] | None = None,
    leading: bool = False,
) -> tuple[Opening | None, int]:
    """(the first opening in the text, how many characters before it are certainly plain text).

    fresh: the text begins where a bare call is allowed. names: if given, a bare call of another
    name is text. openers: the format's `open` and `inner` as spelled in this text. leading: an
    opening, or a delimiter, is recognised only at the beginning.
    """
    opener, inner = (format.open, format.inner) if openers is None else openers
    if fresh and templates:
        lead = len(text) - len(text.lstrip(SPACE))
        if lead == len(text):
            return None, lead
        found, waiting = _bare(text, lead, templates, names)
        if found is not None:
            return Opening(lead, found, format.bare), lead
        if waiting:
            return None, lead
    kinds = [(mark, kind) for mark, kind in ((opener, "delimiter"), (inner, "inner")) if mark]
    if not kinds:
        return None, len(text)
    if leading:
        rest = text.lstrip(SPACE)
        lead = len(text) - len(rest)
        for mark, kind in kinds:
            if fresh and rest.startswith(mark):
                return Opening(lead, lead + len(mark) * (kind == "delimiter"), kind), lead
        waits = fresh and any(mark.startswith(rest) for mark, _ in kinds)
        return None, lead if waits else len(text)
    places = [(text.find(mark), mark, kind) for mark, kind in kinds]
    found_at = [place for place in places if place[0] >= 0]
    if found_at:
        at, mark, kind = min(found_at)
        return Opening(at, at + len(mark) * (kind == "delimiter"), kind), at
    return None, len(text) - max(partial(text, mark) for mark, _ in kinds)


def _bare(
    text: str, at: int, templates: Sequence[str], names: Collection[str] | None
) -> tuple[int | None, bool]:
    """(the end of a complete opening at `at`, whether the text may still become one)."""
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
