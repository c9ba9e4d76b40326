"""Reads tool calls in a reply while it streams, and loses nothing of it.

opening       where calls begin in a growing text, and how much of its end may become a beginning
JsonCall, PythonCall, TagCall, QuotedCall   one call in one notation, as it streams
ToolCallDetector   a reply with calls in it: text -> events
HarmonyReader      a reply made of messages on channels (gpt-oss)

Readers are state machines: each state reads what it can from the buffer and says whether more may
be read. The raw texts of all events, joined, are the text that was fed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from oxillama.errors import ConfigError
from oxillama.grammar.composer import partial
from oxillama.toolcalls.events import (
    CallArguments,
    CallFinished,
    CallMalformed,
    CallStarted,
    Event,
    Markup,
    Reasoning,
    Text,
    ToolCall,
    call_id,
    joined,
)
from oxillama.toolcalls.formats import (
    ARGS,
    CALL_ID,
    CDATA,
    DIGITS,
    HARMONY,
    IDENTIFIER,
    KEY,
    STRING,
    ToolCallFormat,
    format_of,
)

SPACE = " \t\r\n"
# In a template: the call's name as a JSON string, as a dotted name; a keyword of a call; a name as
# tools may have it.
NAME, WORD, KEYWORD, TITLE = "\x00\x01\x02\x03"
_LONGEST = 256  # characters of a name
_MOST_SPACES = 64  # white space in one place of a beginning: what is held back stays short


@dataclass(frozen=True, slots=True)
class Opening:
    """A beginning found at text[start:end]; kind "delimiter", "inner" (of a call whose block has no
    opening), "json" or "python".
    """

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
        rf"[^\W\d][\w.\-]{{0,{_LONGEST}}}",
    )
    for char in reversed(template):
        if char == " ":
            spaces = rf"[{SPACE}]{{0,{_MOST_SPACES}}}"
            whole, part = rf"{spaces}{whole}", rf"{spaces}(?:\Z|{part})"
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
    """(the first opening in the text, how much of the text before it is certainly no opening).

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


class Reader(Protocol):
    """What `fed` and `taken` need of a reader."""

    buffer: str
    place: Callable[[list[Event]], bool]


def fed(reader: Reader, text: str) -> list[Event]:
    """The events that a further piece of text makes certain. Raises ConfigError for what is no
    text.
    """
    if not isinstance(text, str):
        raise ConfigError(f"text: found {type(text).__name__}, wanted str")
    reader.buffer += text
    out: list[Event] = []
    while reader.buffer and reader.place(out):
        pass
    return joined(out)


def taken(reader: Reader, size: int) -> str:
    """The first characters of the buffer, which are its no longer."""
    text, reader.buffer = reader.buffer[:size], reader.buffer[size:]
    return text


class Malformed(Exception):
    """A call cannot be read; caught by the detector."""


def read(call: Any, text: str) -> int:
    """Give `text` to a call's reader character by character until the call is done; returns how
    many it read.

    What came to be known becomes events, also when `Malformed` is raised: the reader has then read
    to where it shows.
    """
    start = len(call.raw)
    call.raw += text
    try:
        for at in range(start, len(call.raw)):
            call.character(call.raw[at], at)
            if call.done:
                call.raw = call.raw[: at + 1]
                break
    except Malformed:
        call.raw = call.raw[: at + 1]
        call.stream()
        raise
    call.stream()
    if call.done:
        call.finish()
    return len(call.raw) - start


_SPACE = " \t\r\n"
_CLOSES = {"}": "{", "]": "["}


class JsonCall:
    """One call object; with `name`, its arguments object alone. `events` holds what was found,
    `raw` all that was read.
    """

    def __init__(
        self, format: ToolCallFormat, index: int, *, name: str | None = None, prefix: str = ""
    ) -> None:
        self.format, self.index, self.name = format, index, name
        self.events: list[Event] = []
        self.raw = ""
        self.done = False
        self._prefix = prefix  # stands before the object and belongs to the call's beginning
        self._given = 0  # of raw, what went into events
        self._started = False
        self._stack: list[str] = []
        self._string = self._escape = False
        self._controls: list[int] = []  # where control characters stand inside strings
        # of the outermost object: "key", "colon", "value", "inside" or "after"
        self._expect = "key"
        self._key, self._from = "", 0
        # the object is the arguments; they stream as JSON, being an object
        self._whole = self._plain = name is not None
        self._arguments: tuple[int, int | None] | None = (0, None) if name is not None else None
        self._named = 0  # where the name ends

    def feed(self, text: str) -> int:
        """Reads what belongs to the call; returns how many characters. Raises `Malformed`, having
        read to where it shows.
        """
        return read(self, text)

    def rest(self) -> str:
        """What was read and not given out."""
        rest, self._given = (
            ("" if self._started else self._prefix) + self.raw[self._given :],
            len(self.raw),
        )
        return rest

    def character(self, char: str, at: int) -> None:
        """Takes one character of the object."""
        outer = len(self._stack) == 1
        if self._string:
            if char < " ":
                self._controls.append(at)
            if self._escape:
                self._escape = False
            elif char == "\\":
                self._escape = True
            elif char == '"':
                self._string = False
                if outer:
                    self._ended(at + 1)
        elif char == '"':
            self._string = True
            if outer:
                self._begun(at)
        elif char in "{[":
            if outer:
                self._begun(at)
            self._stack.append(char)
        elif char in "}]":
            self._closed(char, at)
        elif outer:
            self._between(char, at)

    def _begun(self, at: int) -> None:
        """A string or a bracket begins in the outermost object."""
        if self._expect == "key" and self.raw[at] == '"':
            self._from = at
        elif self._expect == "value":
            self._expect, self._from = "inside", at
            self._value_begun(at)
        else:
            raise Malformed(
                f"found {self.raw[at]!r} after {self.raw[max(0, at - 20) : at]!r}, wanted "
                f"{_WANTED[self._expect]}"
            )

    def _ended(self, end: int) -> None:
        """A string or a bracket ends in the outermost object."""
        if self._expect == "key":
            self._key, self._expect = _json(self.raw[self._from : end]), "colon"
            if not self.format.name_key and self.name is None:
                self._name_found(self._key, end)
        else:
            self._value_ended(end)

    def _closed(self, char: str, at: int) -> None:
        if not self._stack or self._stack[-1] != _CLOSES[char]:
            raise Malformed(
                f"found {char!r}, wanted what closes {(self._stack or 'no bracket')[-1]!r}"
            )
        if len(self._stack) == 1 and self._expect == "inside":
            self._value_ended(at)
        self._stack.pop()
        if len(self._stack) == 1:
            self._ended(at + 1)
        self.done = not self._stack

    def _between(self, char: str, at: int) -> None:
        """Punctuation, spaces, numbers and words in the outermost object."""
        if char in _SPACE or char == ",":
            if self._expect == "inside":
                self._value_ended(at)
            if char == ",":
                if self._expect != "after":
                    raise Malformed(f"found ',', wanted {_WANTED[self._expect]}")
                self._expect = "key"
        elif char == ":" and self._expect == "colon":
            self._expect = "value"
        elif self._expect == "value":
            self._expect, self._from = "inside", at
            self._value_begun(at)
        elif self._expect != "inside":
            raise Malformed(f"found {char!r}, wanted {_WANTED[self._expect]}")

    def _value_begun(self, at: int) -> None:
        keys = self.format.arguments_keys if self.format.name_key else (self.name,)
        if self._arguments is None and self._key in keys:
            self._arguments, self._plain = (at, None), self.raw[at] == "{"

    def _value_ended(self, end: int) -> None:
        self._expect = "after"
        if self._arguments == (self._from, None):
            self._arguments = (self._from, end)
        elif self._key == self.format.name_key and self.name is None:
            self._name_found(_json(self.raw[self._from : end]), end)

    def _name_found(self, name: Any, end: int) -> None:
        if not isinstance(name, str) or not name:
            raise Malformed(f"{self._key}: found {str(name)[:40]!r}, wanted a name")
        self.name, self._named = name, end

    def stream(self) -> None:
        """Gives out what is ready: the beginning once the name is known, then the arguments as they
        come.
        """
        if self.name is None:
            return
        if not self._started:
            end = self._named if self._arguments is None else min(self._named, self._arguments[0])
            self.events.append(
                CallStarted(
                    self._prefix + self.raw[:end], self.index, call_id(self.index), self.name
                )
            )
            self._started, self._given = True, end
        if self._arguments is None:
            return
        start, stop = self._arguments
        if stop is None:
            stop = len(self.raw)
        if self._given < start:
            self.events.append(Markup(self.raw[self._given : start]))
            self._given = start
        if self._given < stop:
            start, self._given = self._given, stop
            self.events.append(
                CallArguments(
                    self.raw[start:stop],
                    self.index,
                    self._spelled(start, stop) if self._plain else "",
                )
            )

    def _spelled(self, start: int, end: int | None) -> str:
        """A stretch of the object as JSON text: control characters inside strings escaped."""
        end = len(self.raw) if end is None else end
        parts: list[str] = []
        at = start
        for place in self._controls:
            if start <= place < end:
                parts += self.raw[at:place], f"\\u{ord(self.raw[place]):04x}"
                at = place + 1
        return "".join((*parts, self.raw[at:end]))

    def finish(self) -> None:
        """The object is complete: read it as JSON; it may not be a call."""
        value = _json(self.raw)
        if self.name is None:
            wanted = f"no {self.format.name_key!r}" if self.format.name_key else "no key"
            raise Malformed(f"found {wanted}, wanted the name of the tool")
        if not self._whole and not self.format.name_key and len(value) > 1:
            raise Malformed(f"found {len(value)} keys, wanted the name of the tool alone")
        keys = self.format.arguments_keys if self.format.name_key else (self.name,)
        arguments = (
            value if self._whole else next((value[key] for key in value if key in keys), None)
        )
        if not self._plain:
            if isinstance(arguments, str):
                arguments = _json(arguments) if arguments.strip() else {}
            arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise Malformed(f"arguments: found {type(arguments).__name__}, wanted an object")
        written = self._spelled(*self._arguments) if self._plain and self._arguments else ""
        call = ToolCall(self.name, arguments, call_id(self.index), written)
        if not self._plain:
            self.events.append(CallArguments("", self.index, call.arguments_text))
        self.events.append(CallFinished(self.rest(), self.index, call))


_WANTED = {
    "key": "a key in quotes",
    "colon": "':'",
    "value": "a value",
    "inside": "the rest of the value",
    "after": "',' or '}'",
}


def _json(text: str) -> Any:
    """The value of a JSON text (control characters inside strings are let be); `Malformed` for what
    JSON has not.
    """
    try:
        value = json.loads(text, strict=False, object_pairs_hook=_members, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise Malformed("a string holds half a surrogate pair") from None
    except RecursionError:
        raise Malformed("brackets are nested too deeply") from None
    except ValueError as error:
        raise Malformed(str(error)) from None
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return members


def _constant(name: str) -> None:
    raise ValueError(f"found {name}, which is not JSON")


_CLOSES = {")": "(", "]": "[", "}": "{"}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_SPACES = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\W\d]\w*")
_NAME = re.compile(r"[^\W\d][\w.\-]*")
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "/": "/",
    "\n": "",
}
_WIDTHS = {"x": 2, "u": 4, "U": 8}
_DEEPEST = 100


class PythonCall:
    """One call from its name to its closing parenthesis; `prefix` (the opening bracket) belongs to
    its beginning. method: the name is followed by a dot and this word (`f.call(...)`).
    """

    def __init__(self, index: int, *, prefix: str = "", method: str = "") -> None:
        self.index, self._method = index, method
        self.events: list[Event] = []
        self.raw = ""
        self.name = ""
        self.done = False
        self._prefix = prefix
        self._given = 0
        self._stack: list[str] = []
        self._quote = ""
        self._escape = False

    def feed(self, text: str) -> int:
        """Reads what belongs to the call; returns how many characters. Raises `Malformed`, having
        read to where it shows.
        """
        return read(self, text)

    def stream(self) -> None:
        """Gives out the arguments read so far, once the name is known."""
        end = len(self.raw) - self.done
        if self.name and self._given < end:
            self.events.append(CallArguments(self.raw[self._given : end], self.index, ""))
            self._given = end

    def rest(self) -> str:
        """What was read and not given out."""
        rest, self._given = (
            ("" if self.name else self._prefix) + self.raw[self._given :],
            len(self.raw),
        )
        return rest

    def character(self, char: str, at: int) -> None:
        """Takes one character: of the name, then of the arguments up to the bracket that closes
        them.
        """
        if not self._stack:
            if char != "(":
                if not (char.isalnum() or char in "_.-" or char in " \t\r\n"):
                    raise Malformed(f"found {char!r}, wanted a name and '('")
                return
            name = self.raw[:at].strip()
            if not _NAME.fullmatch(name):
                raise Malformed(f"found {name[:40]!r} before '(', wanted a name")
            if self._method and not name.endswith(f".{self._method}"):
                raise Malformed(f"found {name[:40]!r}, wanted a name and '.{self._method}('")
            self.name = name = name.removesuffix(f".{self._method}") if self._method else name
            self.events.append(
                CallStarted(
                    self._prefix + self.raw[: at + 1], self.index, call_id(self.index), name
                )
            )
            self._given = at + 1
            self._stack.append(char)
        elif self._quote:
            if self._escape:
                self._escape = False
            elif char == "\\":
                self._escape = True
            elif char == self._quote:
                self._quote = ""
        elif char in "'\"":
            self._quote = char
        elif char in "([{":
            self._stack.append(char)
        elif char in _CLOSES:
            if self._stack[-1] != _CLOSES[char]:
                raise Malformed(f"found {char!r}, wanted what closes {self._stack[-1]!r}")
            self._stack.pop()
            self.done = not self._stack

    def finish(self) -> None:
        """The call is whole: its arguments are read, or it is no call."""
        text = self.raw[self.raw.index("(") + 1 : -1]
        call = ToolCall(self.name, keywords(text), call_id(self.index))
        self.events.append(CallArguments("", self.index, call.arguments_text))
        self.events.append(CallFinished(self.rest(), self.index, call))


def keywords(text: str) -> dict[str, Any]:
    """The keyword arguments in the text between a call's parentheses, as JSON values; `Malformed`
    for anything else.
    """
    found: dict[str, Any] = {}
    at = _skip(text, 0)
    while at < len(text):
        match = _WORD.match(text, at)
        if not match:
            raise Malformed(f"found {text[at : at + 20]!r}, wanted a keyword and '='")
        at = _skip(text, match.end())
        if text[at : at + 1] != "=":
            raise Malformed(f"{match.group()}: found {text[at : at + 1]!r}, wanted '=' and a value")
        if match.group() in found:
            raise Malformed(f"{match.group()}: appears twice")
        found[match.group()], at = _value(text, _skip(text, at + 1), 0)
        at = _comma(text, at, "")
    try:
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise Malformed("a string holds half a surrogate pair") from None
    except ValueError as error:
        raise Malformed(str(error)) from None
    return found


def _skip(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    return found.end() if found else at


def _comma(text: str, at: int, close: str) -> int:
    """Skip a comma, or stop at the closing bracket (or end) instead of it."""
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1)
    if text[at : at + 1] != close:
        raise Malformed(
            f"found {text[at : at + 20]!r}, wanted ','{f' or {close!r}' if close else ''}"
        )
    return at


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """(a literal's value, where it ends)."""
    char = text[at : at + 1]
    if depth > _DEEPEST:
        raise Malformed(f"brackets are nested deeper than {_DEEPEST}")
    if char and char in "'\"":
        value = ""
        while text[at : at + 1] and text[at] in "'\"":  # neighbours are one string, as in Python
            piece, end = _string(text, at)
            value, at = value + piece, _skip(text, end)
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"), at
    if char and char in "[(":
        return _list(text, at, depth)
    if char == "{":
        return _dict(text, at, depth)
    match = _WORD.match(text, at)
    if match and match.group() in _WORDS:
        return _WORDS[match.group()], match.end()
    match = _NUMBER.match(text, at)
    if match:
        try:
            spelled = match.group()
            return (
                int(spelled) if re.fullmatch(r"[+-]?[\d_]+", spelled) else float(spelled)
            ), match.end()
        except ValueError:
            raise Malformed(f"found {match.group()[:20]!r}, wanted a number") from None
    raise Malformed(f"found {text[at : at + 20]!r}, wanted a literal value")


def _list(text: str, at: int, depth: int) -> tuple[list, int]:
    close = "]" if text[at] == "[" else ")"
    items, at = [], _skip(text, at + 1)
    while text[at : at + 1] != close:
        item, at = _value(text, at, depth + 1)
        items.append(item)
        at = _comma(text, at, close)
    return items, at + 1


def _dict(text: str, at: int, depth: int) -> tuple[dict, int]:
    members, at = {}, _skip(text, at + 1)
    while text[at : at + 1] != "}":
        key, at = _value(text, at, depth + 1)
        at = _skip(text, at)
        if not isinstance(key, str) or key in members or text[at : at + 1] != ":":
            raise Malformed(
                f"found {text[at : at + 20]!r} after key {key!r}, wanted ':' after a text that "
                "appears once"
            )
        members[key], at = _value(text, _skip(text, at + 1), depth + 1)
        at = _comma(text, at, "}")
    return members, at + 1


def _string(text: str, at: int) -> tuple[str, int]:
    """(a quoted text's value, where it ends); escapes are those of Python and JSON, others stay as
    they are written.
    """
    quote, out, at = text[at], [], at + 1
    while at < len(text) and text[at] != quote:
        if text[at] != "\\":
            out.append(text[at])
            at += 1
            continue
        char = text[at + 1 : at + 2]
        at += 2
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif (
            char in _WIDTHS
            and re.fullmatch(
                rf"[0-9A-Fa-f]{{{_WIDTHS[char]}}}", digits := text[at : at + _WIDTHS[char]]
            )
            and int(digits, 16) < 0x110000
        ):
            out.append(chr(int(digits, 16)))
            at += _WIDTHS[char]
        else:
            out.append("\\" + char)
    if at >= len(text):
        raise Malformed("a text has no closing quote")
    return "".join(out), at + 1


class TagCall:
    """One call in tags, from after its name to its end. `prefix` (the text before, and the name)
    belongs to its beginning; `schema` is that of the tool's parameters.

    `feed` leaves text unread that may be the beginning of a tag; it must be passed again.
    """

    def __init__(
        self,
        format: ToolCallFormat,
        index: int,
        name: str,
        prefix: str,
        schema: Mapping[str, Any] | None,
    ) -> None:
        self.format, self.index, self.name = format, index, name
        self.events: list[Event] = [CallStarted(prefix, index, call_id(index), name)]
        self.raw, self.done = "", False
        self._schema = schema or {}
        self._arguments: dict[str, Any] = {}
        self._key: str | None = None
        self._value: list[str] | None = None  # pieces of the value that is being read
        self._string: bool | None = None  # whether the call says that the value is a text
        self._begun = self._cdata = False  # of the value

    def feed(self, text: str) -> int:
        """Reads what belongs to the call; returns how many characters. Raises `Malformed`, having
        read to where it shows.
        """
        at = 0
        try:
            while not self.done:
                size = self._step(text, at)
                if size is None:
                    break
                at += size
        finally:
            self.raw += text[:at]
            if at:
                self.events.append(CallArguments(text[:at], self.index, ""))
        if self.done:
            self._finish()
        return at

    def rest(self) -> str:
        """What was read and not given out: nothing."""
        return ""

    def _step(self, text: str, at: int) -> int | None:
        """How many characters the next part takes, None where it is not all there."""
        if self._value is not None:
            return self._in_value(text, at, self._value)
        if self._key is not None:
            return self._before_value(text, at)
        space = _skip(text, at) - at
        if space:
            return space
        kind, ends = self.format, self.format.tail or self.format.close
        rest = text[at : at + max(len(ends), len(kind.key_lead))]
        if rest.startswith(ends):
            self.done = True
            return len(kind.tail)
        if ends.startswith(rest) or (
            len(rest) < len(kind.key_lead) and kind.key_lead.startswith(rest)
        ):
            return None
        if not rest.startswith(kind.key_lead):
            raise Malformed(f"found other text, wanted {kind.key_lead} or {ends}")
        start = at + len(kind.key_lead)
        before, said, after = kind.key_tail.partition(STRING)
        end = text.find(before, start)
        if end < 0 or end - start > _LONGEST:
            if len(text) - start > _LONGEST:
                raise Malformed(f"a key is longer than {_LONGEST} characters, wanted {before}")
            return None
        over = end + len(before)
        if said:
            spelled = {f"true{after}": True, f"false{after}": False}
            found = next((each for each in spelled if text.startswith(each, over)), None)
            if found is None:
                if any(each.startswith(text[over:]) for each in spelled):
                    return None
                raise Malformed(f"found other text after {before}, wanted true{after}")
            self._string, over = spelled[found], over + len(found)
        key = text[start:end].strip()
        if not key or key in self._arguments:
            raise Malformed(f"key {key[:40]!r}: {'appears twice' if key else 'is empty'}")
        self._key, self._begun, self._cdata = key, False, False
        if not kind.value_lead:
            self._value = []
        return over - at

    def _before_value(self, text: str, at: int) -> int | None:
        lead = self.format.value_lead
        space = _skip(text, at) - at
        rest = text[at + space : at + space + len(lead)]
        if rest == lead and space <= _MOST_SPACES:
            self._value = []
            return space + len(lead)
        if not lead.startswith(rest) or space > _MOST_SPACES:
            raise Malformed(f"found other text, wanted {lead}")
        return None

    def _in_value(self, text: str, at: int, value: list[str]) -> int | None:
        key = self._key or ""
        if self.format.cdata and not self._begun:
            start = text[at : at + len(CDATA[0])]
            if start != CDATA[0] and CDATA[0].startswith(start):
                return None
            self._begun, self._cdata = True, start == CDATA[0]
            if self._cdata:
                return len(start)
        tail = self.format.value_tail.replace(KEY, key)
        tail = CDATA[1] + tail if self._cdata else tail
        end = text.find(tail, at)
        if end < 0:
            sure = len(text) - partial(text[max(at, len(text) - len(tail)) :], tail)
            value.append(text[at:sure])
            return sure - at or None
        value.append(text[at:end])
        written = "".join(value)
        if self.format.lines:
            written = written.removeprefix("\n").removesuffix("\n")
        schemas = self._schema.get("properties")
        schema = schemas.get(key) if isinstance(schemas, Mapping) else None
        if self._string is None:
            self._arguments[key] = read_value(written, schema)
        else:
            self._arguments[key] = written if self._string else _json(written.strip())
        self._key = self._value = None
        return end + len(tail) - at

    def _finish(self) -> None:
        call = ToolCall(self.name, self._arguments, call_id(self.index))
        try:
            call.arguments_text.encode()
        except UnicodeEncodeError:
            raise Malformed("a value holds half a surrogate pair") from None
        self.events.append(CallArguments("", self.index, call.arguments_text))
        self.events.append(CallFinished("", self.index, call))


class QuotedCall:
    """One call whose arguments are an object with bare keys and texts between the format's quotes.
    `prefix` (the text before, and the name) belongs to its beginning.
    """

    def __init__(self, format: ToolCallFormat, index: int, name: str, prefix: str) -> None:
        self.index, self.name, self._quote = index, name, format.quote
        self.events: list[Event] = [CallStarted(prefix, index, call_id(index), name)]
        self.raw, self.done = "", False
        self._given = 0
        self._stack: list[str] = []
        self._text = False  # inside a text
        self._from = 0  # where the last quote ends

    def feed(self, text: str) -> int:
        """Reads what belongs to the call; returns how many characters. Raises `Malformed`, having
        read to where it shows.
        """
        return read(self, text)

    def stream(self) -> None:
        """Gives out the arguments read so far."""
        if self._given < len(self.raw):
            self.events.append(CallArguments(self.raw[self._given :], self.index, ""))
            self._given = len(self.raw)

    def rest(self) -> str:
        """What was read and not given out: nothing."""
        return ""

    def character(self, char: str, at: int) -> None:
        """Takes one character, from the opening bracket of the arguments to the one that closes
        them.
        """
        start = at + 1 - len(self._quote)
        if start >= self._from and self.raw.startswith(self._quote, start):
            self._text, self._from = not self._text, at + 1
        elif self._text:
            return
        elif char in "{[":
            self._stack.append(char)
        elif char in "}]":
            if self._stack[-1] != _CLOSES[char]:
                raise Malformed(f"found {char!r}, wanted what closes {self._stack[-1]!r}")
            self._stack.pop()
            self.done = not self._stack

    def finish(self) -> None:
        """The call is whole: its arguments are read, or it is no call."""
        arguments, _ = self._object(0, 0)
        call = ToolCall(self.name, arguments, call_id(self.index))
        try:
            call.arguments_text.encode()
        except UnicodeEncodeError:
            raise Malformed("a text holds half a surrogate pair") from None
        self.events.append(CallArguments("", self.index, call.arguments_text))
        self.events.append(CallFinished("", self.index, call))

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        """(the value at a place, where it ends)."""
        if depth > _DEEPEST:
            raise Malformed(f"brackets are nested deeper than {_DEEPEST}")
        if self.raw.startswith(self._quote, at):
            return self._quoted(at)
        if self.raw[at] == "{":
            return self._object(at, depth)
        if self.raw[at] == "[":
            return self._array(at, depth)
        match = _BARE.match(self.raw, at)
        word = match.group() if match else ""
        if word in _WORDS:
            return _WORDS[word], at + len(word)
        if not word or not _JSON_NUMBER.fullmatch(word):
            raise Malformed(f"found {self.raw[at : at + 20]!r}, wanted a value")
        return _json(word), at + len(word)

    def _quoted(self, at: int) -> tuple[str, int]:
        start = at + len(self._quote)
        end = self.raw.index(self._quote, start)
        return self.raw[start:end], end + len(self._quote)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        at = _skip(self.raw, at + 1)
        while self.raw[at] != "}":
            quoted = self.raw.startswith(self._quote, at)
            if quoted:
                key, at = self._quoted(at)
            else:
                match = _BARE.match(self.raw, at)
                key = match.group().rstrip() if match else ""
                at += len(key)
            at = _skip(self.raw, at)
            if not (key or quoted) or key in members or self.raw[at] != ":":
                raise Malformed(
                    f"found {self.raw[at : at + 20]!r} after key {key[:40]!r}, wanted ':' after a "
                    "key that appears once"
                )
            members[key], at = self._value(_skip(self.raw, at + 1), depth + 1)
            at = _comma(self.raw, at, "}")
        return members, at + 1

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = _skip(self.raw, at + 1)
        while self.raw[at] != "]":
            item, at = self._value(at, depth + 1)
            items.append(item)
            at = _comma(self.raw, at, "]")
        return items, at + 1


_BARE = re.compile(r"[^\s,:{}\[\]<>\"]+(?:[ ]+[^\s,:{}\[\]<>\"]+)*")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_Call = JsonCall | PythonCall | TagCall | QuotedCall
_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_KINDS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}


def read_value(text: str, schema: Any = None) -> Any:
    """The value of an argument that is written bare: of the types that the schema allows, a text is
    itself, anything else is JSON (or Python's True, False, None). A text that is neither stays one;
    where no types are given, what is no JSON or is a JSON string is a text.
    """
    kinds = types_of(schema)
    if kinds == {"string"}:
        return text
    try:
        value = _json(text.strip())
    except Malformed:
        value = _PYTHON_WORDS.get(text.strip(), text)
    if isinstance(value, str) or (kinds and not any(_KINDS[kind](value) for kind in kinds)):
        return text
    return value


def types_of(schema: Any) -> frozenset[str]:
    """The JSON types that a schema says its values have; none where it does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    given = schema.get("type")
    if isinstance(given, str) and given in _KINDS:
        return frozenset({given})
    if isinstance(given, list):
        return frozenset(kind for kind in given if kind in _KINDS)
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    values = [*values, schema["const"]] if "const" in schema else values
    found = {kind for value in values for kind, fits in _KINDS.items() if fits(value)}
    for keyword in ("anyOf", "oneOf"):
        parts = [types_of(part) for part in schema.get(keyword) or ()]
        found |= frozenset().union(*parts) if all(parts) else frozenset()
    return frozenset(found)


_HEADER = re.compile(
    rf"(?P<name>[\w.\-]{{1,256}})[{SPACE}]*(?:{re.escape(CALL_ID)}[^\[{{]{{0,256}})?(?:{re.escape(ARGS)})?[{SPACE}]*(?={{)"
)
_HEADER_CHARACTERS = 600
_NAMED = re.compile(rf"[\w.\-]{{1,256}}[{SPACE}]*")


class ToolCallDetector:
    """Turns a reply's text, fed in any pieces, into events; the raw texts of all events, joined,
    are the text.

    - `names`: the names of the tools; if given, a bare call (without an opening delimiter) of
      another name is text.
    - `leading`: calls are recognised only at the beginning of the reply.
    - `first_index`: the number of the first call, for ids that continue earlier rounds.
    - `parameters`: the schemas of the tools' parameters by name, which distinguish texts from other
      values if a notation writes both bare (`read_value`).
    """

    def __init__(
        self,
        format: str | ToolCallFormat,
        *,
        names: Collection[str] | None = None,
        first_index: int = 0,
        leading: bool = False,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.place: Callable[[list[Event]], bool] = self._in_text
        self._fresh = self._array = self._separated = False
        self._calls = 0
        self.leading = leading
        self.format = format_of(format)
        self.names = None if names is None else frozenset(names)
        self.index = first_index
        if self.format.style == "harmony":
            raise ConfigError(
                "tool call format harmony: is read by HarmonyReader, the whole reply is in that "
                "notation"
            )
        self._parameters = {} if parameters is None else dict(parameters)
        self._templates = bare_templates(self.format)
        headed = self.format.style in ("headed", "tags")
        self._head = head_pattern(self.format) if headed else None
        self._tail: Pattern | None = None  # what may follow the last call
        self.buffer = ""
        self._call: _Call | None = None
        self._enter("", "")
        self._leave(fresh=True)

    def feed(self, text: str) -> list[Event]:
        """The events that this piece of text makes certain."""
        return fed(self, text)

    def finish(self) -> list[Event]:
        """The events of the text's end; the detector is as new then, but for the number of the next
        call.
        """
        out: list[Event] = []
        if self.place == self._in_text:
            out.append(Text(self.buffer))
        elif self.place == self._in_block and self._calls:
            out.append(Markup(self.buffer) if self._close or self._array else Text(self.buffer))
        else:
            rest = "" if self._call is None else self._call.rest()
            self._fail(out, rest + self.buffer, "the text ends inside a call")
        self.buffer, self._call = "", None
        self._leave(fresh=True)
        return joined(out)

    # ---- the five places
    # ----------------------------------------------------------------------------------------------

    def _in_text(self, out: list[Event]) -> bool:
        opening, sure = search(
            self.format,
            self.buffer,
            fresh=self._fresh,
            templates=self._templates,
            names=self.names,
            leading=self.leading,
        )
        if sure:
            self._fresh = self._fresh and not self.buffer[:sure].strip(SPACE)
            out.append(Text(taken(self, sure)))
            return bool(self.buffer)
        if opening is None:
            return False
        if opening.kind == "delimiter":
            opener = taken(self, opening.end)
            out.append(Markup(opener))
            self._enter(opener, self.format.close, python=self.format.style == "python")
        elif opening.kind == "inner":
            self._enter("", "")
        else:
            self._enter("", "", python=opening.kind == "python")
        return True

    def _in_block(self, out: list[Event]) -> bool:
        if self._tail is not None and (match := self._tail.whole.match(self.buffer)):
            self._mark(out, match.end())
            self._tail = None
            return True
        if self._tail is not None and self._tail.part.match(self.buffer):
            return False
        self._tail = None
        lead = len(self.buffer) - len(self.buffer.lstrip(SPACE))
        rest = self.buffer[lead:]
        ending = self._close or (self.format.close if self._head is not None else "")
        if not rest or (len(rest) < len(ending) and ending.startswith(rest)):
            return False
        if self._close and rest.startswith(self._close):
            markup = taken(self, lead + len(self._close))
            if self._calls:
                out.append(Markup(markup))
            else:
                self._fail(out, markup, "found no call between the delimiters")
            self._leave(fresh=False)
            return True
        return self._next_item(out, lead, rest[0])

    def _next_item(self, out: list[Event], lead: int, char: str) -> bool:
        """The next item of a block: a call, a bracket or comma around calls, or neither."""
        if self._head is not None:
            return self._next_headed(out)
        begins = self._array or not self._calls or self._close or self._separated
        if char == "{" and begins and (not self._python or self.format.open):
            self._begin(JsonCall(self.format, self.index, prefix=taken(self, lead)))
        elif char == "[" and not self._array and not self._calls:
            self._array = True
            self._mark(out, lead + 1)
        elif char in ",;" and self._calls and not self._separated and (char == ";") != self._array:
            self._separated = True
            self._mark(out, lead + 1)
        elif char == "]" and self._array:
            self._array = False
            self._mark(out, lead + 1)
            if not self._calls:
                self._give_up(out, "", "found no call between the brackets")
            elif not self._close:
                self._leave(fresh=False)
        elif (
            self._python
            and (char.isalpha() or char == "_")
            and (not self._calls or self._separated)
        ):
            self._begin(PythonCall(self.index, prefix=taken(self, lead)))
        elif self.format.bare == "json" and not self._calls and (char.isalpha() or char == "_"):
            self._begin(PythonCall(self.index, prefix=taken(self, lead), method="call"))
        elif (
            self.format.header
            and not self._array
            and not self._calls
            and (char.isalnum() or char == "_")
        ):
            self._mark(out, lead)
            self.place = self._in_header
        elif self._calls and not self._array:
            self._leave(fresh=not self._separated)
        else:
            self._give_up(out, "", f"found {char!r}, wanted a call")
        return True

    def _next_headed(self, out: list[Event]) -> bool:
        """The name of a call whose arguments follow it, within what the format puts around it."""
        head, several = head_pattern(self.format), bool(self.format.lead) or not self._calls
        match = head.whole.match(self.buffer) if several else None
        if match is not None and self.format.style == "tags":
            end = match.end() - (not self.format.middle)
            schema = self._parameters.get(match["name"])
            prefix = taken(self, end)
            self._begin(TagCall(self.format, self.index, match["name"], prefix, schema))
        elif match is not None and self.format.quote:
            prefix = taken(self, match.end() - 1)
            self._begin(QuotedCall(self.format, self.index, match["name"], prefix))
        elif match is not None:
            self._tail = tail_pattern(self.format) if self.format.tail else None
            self._begin(
                JsonCall(
                    self.format, self.index, name=match["name"], prefix=taken(self, match.end() - 1)
                )
            )
        elif several and head.part.match(self.buffer):
            return False
        elif self._calls and not self._close:
            self._leave_inner(out)
        else:
            middle = self.format.middle.replace(DIGITS, "0")
            lead = self.format.lead.replace(IDENTIFIER, "id")
            reason = f"found no call, wanted {lead}name{middle}"
            # without a block, what looked like the beginning of a call is given out at once
            inner = "" if self._whole else taken(self, len(self.format.inner))
            self._give_up(out, inner, reason)
        return True

    def _leave_inner(self, out: list[Event]) -> None:
        """Out of a block without an opening; it may have its closing text."""
        lead = len(self.buffer) - len(self.buffer.lstrip(SPACE))
        if self.format.close and self.buffer.startswith(self.format.close, lead):
            self._mark(out, lead + len(self.format.close))
        self._leave(fresh=False)

    def _in_header(self, out: list[Event]) -> bool:
        """`name[ARGS]` or `name[CALL_ID]...[ARGS]` before the arguments."""
        match = _HEADER.match(self.buffer)
        if match:
            name, prefix, self._named = match["name"], taken(self, match.end()), True
            self._begin(JsonCall(self.format, self.index, name=name, prefix=prefix))
            return True
        if not _header_may_come(self.buffer):
            # the shortest text that is wrong, so that the error does not depend on the pieces
            sizes = range(1, len(self.buffer) + 1)
            size = next(n for n in sizes if not _header_may_come(self.buffer[:n]))
            self._give_up(out, "", f"found {self.buffer[:size][:40]!r}, wanted name{ARGS}{{")
            return True
        return False

    def _in_call(self, out: list[Event]) -> bool:
        call = self._call
        if call is None:
            return False
        before = len(call.raw)
        try:
            read = taken(self, call.feed(self.buffer))
        except Malformed as error:
            taken(self, len(call.raw) - before)
            self._note(out, call)
            self._call = None
            if call.done:
                self._fail(out, call.rest(), str(error))
                self._over()
            else:
                self._give_up(out, call.rest(), str(error))
            return True
        self._note(out, call)
        if call.done:
            self._call, self._whole = None, ""
            self.index += 1
            self._over()
        return bool(read) or call.done

    def _in_ruin(self, out: list[Event]) -> bool:
        """After a malformed call: everything to the end of the block is kept together."""
        at = self.buffer.find(self._close)
        if at < 0:
            return False
        self._fail(out, taken(self, at + len(self._close)), self._reason)
        self._leave(fresh=False)
        return True

    # ---- moving between them
    # -------------------------------------------------------------------------------------------

    def _mark(self, out: list[Event], size: int) -> None:
        markup = taken(self, size)
        self._whole += markup
        out.append(Markup(markup))

    def _enter(self, opener: str, close: str, *, python: bool = False) -> None:
        """Into a block; without an opener it is a bare one."""
        self._close, self._python = close, python
        self._array = self._separated = False
        self._calls = 0
        self._whole = opener  # everything since the block's opening or the last call that was whole
        self._reason = ""
        self._named = False  # the call's name came before it
        self.place = self._in_block

    def _leave(self, *, fresh: bool) -> None:
        """Back into text; fresh: a bare call may begin here."""
        self.place, self._fresh = self._in_text, fresh or self.leading

    def _begin(self, call: _Call) -> None:
        self._call, self.place = call, self._in_call

    def _over(self) -> None:
        """A call has ended, well or not: back into its block."""
        self._calls += 1
        self._separated = False
        self.place = self._in_block
        if self._named and not self._close:
            self._leave(fresh=False)

    def _note(self, out: list[Event], call: _Call) -> None:
        """Gives out what a call has found."""
        out.extend(call.events)
        self._whole += "".join(event.raw for event in call.events)
        call.events.clear()

    def _give_up(self, out: list[Event], raw: str, reason: str) -> None:
        """This is not a call: wait for the end of the block, or report at once if a block has no
        end of its own.
        """
        if self._close:
            self.buffer = raw + self.buffer
            self._reason, self.place = reason, self._in_ruin
        else:
            self._fail(out, raw, reason)
            self._leave(fresh=False)

    def _fail(self, out: list[Event], raw: str, reason: str) -> None:
        out.append(CallMalformed(raw, self.index, self._whole + raw, self._reason or reason))
        self.index += 1
        self._whole, self._reason = "", ""
        self._separated = False


def _header_may_come(text: str) -> bool:
    """Whether an incomplete text may still become a header."""
    if len(text) > _HEADER_CHARACTERS:
        return False
    named = _NAMED.match(text)
    rest = text[named.end() :] if named else text
    if rest.startswith(CALL_ID):
        at = rest.find("[", len(CALL_ID))
        rest = "" if at < 0 and "{" not in rest else rest[max(at, 0) :]
    return (
        ARGS.startswith(rest)
        or CALL_ID.startswith(rest)
        or (rest.startswith(ARGS) and not rest[len(ARGS) :].strip(SPACE))
    )


def detector_of(
    format: str | ToolCallFormat,
    *,
    names: Collection[str] | None = None,
    first_index: int = 0,
    leading: bool = False,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
) -> ToolCallDetector | HarmonyReader:
    """What reads replies in a format; arguments are those of `ToolCallDetector`."""
    kind = format_of(format)
    if kind.style == "harmony":
        return HarmonyReader(first_index=first_index)
    return ToolCallDetector(
        kind, names=names, first_index=first_index, leading=leading, parameters=parameters
    )


def detect_calls(
    text: str,
    format: str | ToolCallFormat,
    *,
    names: Collection[str] | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[str, list, list[CallMalformed]]:
    """(the text without its calls, the calls, the malformed calls) of a complete reply;
    `parameters` as in `ToolCallDetector`.
    """
    detector = detector_of(format, names=names, parameters=parameters)
    events = detector.feed(text) + detector.finish()
    return (
        "".join(event.raw for event in events if isinstance(event, Text)),
        [event.call for event in events if isinstance(event, CallFinished)],
        [event for event in events if isinstance(event, CallMalformed)],
    )


START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN = HARMONY.marks
_NEXT = f"{START}assistant"
_FUNCTIONS = "functions."
_CHANNEL_HEADER = re.compile(
    rf"\s*(?:{re.escape(START)}\s*assistant)?\s*(?:to=(?P<before>[\w.\-]+))?\s*{re.escape(CHANNEL)}\s*(?P<channel>\w+)"
    rf"(?:\s+to=(?P<after>[\w.\-]+))?\s*(?:{re.escape(CONSTRAIN)})?\s*\w*\s*{re.escape(MESSAGE)}\s*"
)
_BEGINNINGS = (START, CHANNEL, "to=")
_ENDS = (END, CALL, RETURN)
_LONGEST_HEADER = 600  # characters of a header


class HarmonyReader:
    """Feeds on a reply in any pieces, as `ToolCallDetector` does; the raw texts of all events,
    joined, are the text that was fed.
    """

    def __init__(self, *, first_index: int = 0) -> None:
        self.index = first_index
        self.buffer = ""
        self.place: Callable[[list[Event]], bool] = self._in_head
        self._kind: type = Text
        self._call: JsonCall | None = None
        self._said = self._reason = ""  # of a call: what was given out of it, and why it is none
        self._kept = 0  # of the buffer, what belongs to a call that went wrong

    def feed(self, text: str) -> list[Event]:
        """The events that this piece of text makes certain."""
        return fed(self, text)

    def finish(self) -> list[Event]:
        """The events of the text's end; the reader is as new then, but for the number of the next
        call.
        """
        out: list[Event] = []
        if self.place == self._in_head:
            out.append(
                (Markup if self._is_head() and self.buffer.strip() else Text)(
                    taken(self, len(self.buffer))
                )
            )
        elif self.place == self._in_body:
            out.append(self._kind(taken(self, len(self.buffer))))
        else:
            if self._call is not None:
                self.buffer, self._reason = (
                    self._call.rest() + self.buffer,
                    "the text ends inside a call",
                )
            self._ruined(out, len(self.buffer))
        self._call, self.place = None, self._in_head
        return joined(out)

    def _in_head(self, out: list[Event]) -> bool:
        """Before a message: its header, or text that has none."""
        if not self._is_head():
            self._kind, self.place = Text, self._in_body
            return True
        match = _CHANNEL_HEADER.match(self.buffer)
        if match is None:
            if MESSAGE in self.buffer or len(self.buffer) > _LONGEST_HEADER:
                out.append(Text(taken(self, max(self.buffer.find(MESSAGE) + len(MESSAGE), 1))))
                self._kind, self.place = Text, self._in_body
                return True
            return False
        recipient = match["after"] or match["before"]
        if recipient is None:
            size = match.start() + len(match.group().rstrip())
            out.append(Markup(taken(self, size)))
            self._kind, self.place = (
                (Reasoning if match["channel"] == "analysis" else Text),
                self._in_body,
            )
            return True
        if match.end() == len(self.buffer):
            return False  # the arguments have not begun
        return self._begin(taken(self, match.end()), recipient)

    def _begin(self, header: str, recipient: str) -> bool:
        """A message to a tool: its arguments, or what cannot be any."""
        self._said, name = "", recipient.removeprefix(_FUNCTIONS)
        if recipient.startswith(_FUNCTIONS) and name and self.buffer[0] == "{":
            self._call, self.place = (
                JsonCall(HARMONY, self.index, name=name, prefix=header),
                self._in_call,
            )
        else:
            wanted = (
                f"found a message to {recipient}, wanted {_FUNCTIONS}NAME"
                if name == recipient
                else "found no '{', wanted arguments"
            )
            self._ruin(header, wanted)
        return True

    def _in_call(self, out: list[Event]) -> bool:
        call = self._call
        if call is None:
            return False
        before = len(call.raw)
        try:
            taken(self, call.feed(self.buffer))
        except Malformed as error:
            taken(self, len(call.raw) - before)
            self._note(out, call)
            self._ruin(call.rest(), str(error))
            return True
        self._note(out, call)
        if call.done:
            self.index += 1
            self._call, self._kind, self.place = None, Text, self._in_body
        return True

    def _note(self, out: list[Event], call: JsonCall) -> None:
        """Gives out what a call has found; its text is kept for what may yet go wrong."""
        out.extend(call.events)
        self._said += "".join(event.raw for event in call.events)
        call.events.clear()

    def _in_body(self, out: list[Event]) -> bool:
        """In a message: its text, up to what ends it."""
        at, end = self._end()
        if at:
            out.append(self._kind(taken(self, at)))
        if end is None:
            return False
        if end in _ENDS:
            out.append(Markup(taken(self, len(end))))
        self.place = self._in_head
        return True

    def _in_ruin(self, out: list[Event]) -> bool:
        """After a malformed call: everything to the end of its message is kept together."""
        at, end = self._end(self._kept)
        if end is None:
            return False
        self._ruined(out, at + (len(end) if end in _ENDS else 0))
        self.place = self._in_head
        return True

    def _ruin(self, raw: str, reason: str) -> None:
        """No call after all: wait for the end of its message."""
        self.buffer, self._kept, self._reason = raw + self.buffer, len(raw), reason
        self._call, self.place = None, self._in_ruin

    def _ruined(self, out: list[Event], size: int) -> None:
        raw = taken(self, size)
        out.append(CallMalformed(raw, self.index, self._said + raw, self._reason))
        self.index += 1

    def _end(self, start: int = 0) -> tuple[int, str | None]:
        """(where the text before what ends a message is over, what ends it), None where it may go
        on.
        """
        found = [
            (at, mark)
            for mark in (*_ENDS, START, CHANNEL)
            if (at := self.buffer.find(mark, start)) >= 0
        ]
        if found:
            return min(found)
        return len(self.buffer) - max(
            partial(self.buffer, mark) for mark in (*_ENDS, START, CHANNEL)
        ), None

    def _is_head(self) -> bool:
        rest = self.buffer.lstrip(SPACE)
        return any(rest.startswith(each) or each.startswith(rest) for each in _BEGINNINGS)
