"""Reads one call in Python's spelling, `f(a=1, b="x")`, while it streams.

Values are literals; JSON's true, false and null are taken too.
"""

from __future__ import annotations

import json
import re
from typing import Any

from oxillama.toolcalls.events import (
    CallArguments,
    CallFinished,
    CallStarted,
    Event,
    ToolCall,
    call_id,
)
from oxillama.toolcalls.scan import Malformed, read

_CLOSES = {")": "(", "]": "[", "}": "{"}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_SPACES = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
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
    its beginning.
    """

    def __init__(self, index: int, *, prefix: str = "") -> None:
        self.index = index
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
            self.name = name
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
            raise Malformed(f"{match.group()}: stands twice")
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
    return _SPACES.match(text, at).end()


def _comma(text: str, at: int, close: str) -> int:
    """Past a comma, or to the closing bracket (or end) that may stand instead."""
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
                f"found {text[at : at + 20]!r} after key {key!r}, wanted ':' after a text that stands once"
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
