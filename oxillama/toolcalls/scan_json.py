"""Reads one tool call written as a JSON object while it streams, and gives out its name and
arguments as soon as they are known.

Only brackets, strings and the members of the outermost object are followed; whether the object is
JSON is judged once it is whole.
"""

from __future__ import annotations

import json
from typing import Any

from oxillama.toolcalls.events import (
    CallArguments,
    CallFinished,
    CallStarted,
    Event,
    Markup,
    ToolCall,
    call_id,
)
from oxillama.toolcalls.formats import ToolCallFormat
from oxillama.toolcalls.scan import Malformed, read

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
                f"found {self.raw[at]!r} after {self.raw[max(0, at - 20) : at]!r}, wanted {_WANTED[self._expect]}"
            )

    def _ended(self, end: int) -> None:
        """A string or a bracket ends in the outermost object."""
        if self._expect == "key":
            self._key, self._expect = _json(self.raw[self._from : end]), "colon"
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
        if self._arguments is None and self._key in self.format.arguments_keys:
            self._arguments, self._plain = (at, None), self.raw[at] == "{"

    def _value_ended(self, end: int) -> None:
        self._expect = "after"
        if self._arguments == (self._from, None):
            self._arguments = (self._from, end)
        elif self._key == self.format.name_key and self.name is None:
            name = _json(self.raw[self._from : end])
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
        start, end = self._arguments
        if self.done and end is None:
            end = len(self.raw)
        if self._given < start:
            self.events.append(Markup(self.raw[self._given : start]))
            self._given = start
        stop = len(self.raw) if end is None else end
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
        parts, at = [], start
        for place in self._controls:
            if start <= place < end:
                parts += self.raw[at:place], f"\\u{ord(self.raw[place]):04x}"
                at = place + 1
        return "".join((*parts, self.raw[at:end]))

    def finish(self) -> None:
        """The object is whole: it is read as JSON, or is no call."""
        value = _json(self.raw)
        if self.name is None:
            raise Malformed(f"found no {self.format.name_key!r}, wanted the name of the tool")
        arguments = (
            value
            if self._whole
            else next((value[key] for key in value if key in self.format.arguments_keys), None)
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
        raise ValueError("a key stands twice in one object")
    return members


def _constant(name: str) -> None:
    raise ValueError(f"found {name}, which is no JSON")
