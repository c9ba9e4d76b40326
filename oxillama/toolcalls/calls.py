"""One call in one notation, read as it streams: `JsonCall`, `PythonCall`, `TagCall`, `QuotedCall`.

A reader is fed text until `done`. It appends to `events` what it has recognised; `raw` is all the
text it has read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oxillama.grammar.composer import partial
from oxillama.toolcalls.events import (
    CallArguments,
    CallFinished,
    CallStarted,
    Event,
    Markup,
    ToolCall,
    call_id,
)
from oxillama.toolcalls.formats import CDATA, KEY, STRING, ToolCallFormat
from oxillama.toolcalls.literals import (
    CLOSES,
    DEEPEST,
    WORDS,
    Malformed,
    json_value,
    keywords,
    next_item,
    read_value,
    skip_space,
)
from oxillama.toolcalls.openings import LONGEST_NAME, MOST_SPACES, SPACE

_NAME = re.compile(r"[^\W\d][\w.\-]*")
_BARE = re.compile(r"[^\s,:{}\[\]<>\"]+(?:[ ]+[^\s,:{}\[\]<>\"]+)*")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


def read(call: Any, text: str) -> int:
    """Pass `text` to a call's reader character by character until the call is done; returns how
    many characters it read.

    What was recognised becomes events, even if `Malformed` is raised: the reader has then read up
    to and including the character at fault.
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


class JsonCall:
    """A call written as a JSON object, or with `name` only the object of its arguments. `prefix` is
    the text before the object that belongs to the call.
    """

    def __init__(
        self, format: ToolCallFormat, index: int, *, name: str | None = None, prefix: str = ""
    ) -> None:
        self.format, self.index, self.name = format, index, name
        self.events: list[Event] = []
        self.raw = ""
        self.done = False
        self._prefix = prefix
        self._given = 0  # how much of raw is in events
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
        """Read what belongs to the call; returns how many characters that is. When it raises
        `Malformed`, it has read up to and including the character at fault.
        """
        return read(self, text)

    def rest(self) -> str:
        """The text that was read and is not in events."""
        rest, self._given = (
            ("" if self._started else self._prefix) + self.raw[self._given :],
            len(self.raw),
        )
        return rest

    def character(self, char: str, at: int) -> None:
        """Read one character of the object."""
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
            self._key, self._expect = json_value(self.raw[self._from : end]), "colon"
            if not self.format.name_key and self.name is None:
                self._name_found(self._key, end)
        else:
            self._value_ended(end)

    def _closed(self, char: str, at: int) -> None:
        if not self._stack or self._stack[-1] != CLOSES[char]:
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
        if char in SPACE or char == ",":
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
            self._name_found(json_value(self.raw[self._from : end]), end)

    def _name_found(self, name: Any, end: int) -> None:
        if not isinstance(name, str) or not name:
            raise Malformed(f"{self._key}: found {str(name)[:40]!r}, wanted a name")
        self.name, self._named = name, end

    def stream(self) -> None:
        """Append what is ready to the events: the start once the name is known, then the arguments
        as they arrive.
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
        """A part of the object as JSON text: control characters inside strings are escaped."""
        end = len(self.raw) if end is None else end
        parts: list[str] = []
        at = start
        for place in self._controls:
            if start <= place < end:
                parts += self.raw[at:place], f"\\u{ord(self.raw[place]):04x}"
                at = place + 1
        return "".join((*parts, self.raw[at:end]))

    def finish(self) -> None:
        """The object is complete: parse it. `Malformed` if it is not a call."""
        value = json_value(self.raw)
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
                arguments = json_value(arguments) if arguments.strip() else {}
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


class PythonCall:
    """A call written as in Python, from its name to the closing parenthesis. `prefix` is the text
    before it that belongs to the call (an opening bracket). method: the name is followed by a dot
    and this word (`f.call(...)`).
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
        """Read what belongs to the call; returns how many characters that is. When it raises
        `Malformed`, it has read up to and including the character at fault.
        """
        return read(self, text)

    def stream(self) -> None:
        """Append the arguments read so far to the events, once the name is known."""
        end = len(self.raw) - self.done
        if self.name and self._given < end:
            self.events.append(CallArguments(self.raw[self._given : end], self.index, ""))
            self._given = end

    def rest(self) -> str:
        """The text that was read and is not in events."""
        rest, self._given = (
            ("" if self.name else self._prefix) + self.raw[self._given :],
            len(self.raw),
        )
        return rest

    def character(self, char: str, at: int) -> None:
        """Read one character of the name, then of the arguments up to the parenthesis that closes
        them.
        """
        if not self._stack:
            if char != "(":
                if not (char.isalnum() or char in "_.-" or char in SPACE):
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
        elif char in CLOSES:
            if self._stack[-1] != CLOSES[char]:
                raise Malformed(f"found {char!r}, wanted what closes {self._stack[-1]!r}")
            self._stack.pop()
            self.done = not self._stack

    def finish(self) -> None:
        """The call is complete: parse its arguments. `Malformed` if they cannot be parsed."""
        text = self.raw[self.raw.index("(") + 1 : -1]
        call = ToolCall(self.name, keywords(text), call_id(self.index))
        self.events.append(CallArguments("", self.index, call.arguments_text))
        self.events.append(CallFinished(self.rest(), self.index, call))


def _parsed(index: int, name: str, arguments: dict[str, Any]) -> list[Event]:
    """The last events of a call whose arguments have been read; `Malformed` for arguments that are
    not valid text.
    """
    call = ToolCall(name, arguments, call_id(index))
    try:
        call.arguments_text.encode()
    except UnicodeEncodeError:
        raise Malformed("a string holds half a surrogate pair") from None
    return [CallArguments("", index, call.arguments_text), CallFinished("", index, call)]


class TagCall:
    """A call whose arguments are written in tags, from after its name to its end. `prefix` is the
    text up to and including the name; `schema` describes the tool's parameters.

    `feed` leaves unread what may be the beginning of a tag; the caller passes it again.
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
        self._string: bool | None = None  # whether the call marks the value as a string
        self._begun = self._cdata = False  # of the value

    def feed(self, text: str) -> int:
        """Read what belongs to the call; returns how many characters that is. When it raises
        `Malformed`, it has read up to and including the character at fault.
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
            self.events += _parsed(self.index, self.name, self._arguments)
        return at

    def rest(self) -> str:
        """The text that was read and is not in events: none."""
        return ""

    def _step(self, text: str, at: int) -> int | None:
        """The length of the next part; None if it is not complete yet."""
        if self._value is not None:
            return self._in_value(text, at, self._value)
        if self._key is not None:
            return self._before_value(text, at)
        space = skip_space(text, at) - at
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
        if end < 0 or end - start > LONGEST_NAME:
            if len(text) - start > LONGEST_NAME:
                raise Malformed(f"a key is longer than {LONGEST_NAME} characters, wanted {before}")
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
        space = skip_space(text, at) - at
        rest = text[at + space : at + space + len(lead)]
        if rest == lead and space <= MOST_SPACES:
            self._value = []
            return space + len(lead)
        if not lead.startswith(rest) or space > MOST_SPACES:
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
            self._arguments[key] = written if self._string else json_value(written.strip())
        self._key = self._value = None
        return end + len(tail) - at


class QuotedCall:
    """A call whose arguments are an object with bare keys, and strings between the format's quotes.
    `prefix` is the text up to and including the name.
    """

    def __init__(self, format: ToolCallFormat, index: int, name: str, prefix: str) -> None:
        self.index, self.name, self._quote = index, name, format.quote
        self.events: list[Event] = [CallStarted(prefix, index, call_id(index), name)]
        self.raw, self.done = "", False
        self._given = 0
        self._stack: list[str] = []
        self._text = False  # inside a string
        self._from = 0  # where the last quote ends

    def feed(self, text: str) -> int:
        """Read what belongs to the call; returns how many characters that is. When it raises
        `Malformed`, it has read up to and including the character at fault.
        """
        return read(self, text)

    def stream(self) -> None:
        """Append the arguments read so far to the events."""
        if self._given < len(self.raw):
            self.events.append(CallArguments(self.raw[self._given :], self.index, ""))
            self._given = len(self.raw)

    def rest(self) -> str:
        """The text that was read and is not in events: none."""
        return ""

    def character(self, char: str, at: int) -> None:
        """Read one character, from the opening bracket of the arguments to the one that closes
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
            if self._stack[-1] != CLOSES[char]:
                raise Malformed(f"found {char!r}, wanted what closes {self._stack[-1]!r}")
            self._stack.pop()
            self.done = not self._stack

    def finish(self) -> None:
        """The call is complete: parse its arguments. `Malformed` if they cannot be parsed."""
        arguments, _ = self._object(0, 0)
        self.events += _parsed(self.index, self.name, arguments)

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        """(the value at an index, where it ends)."""
        if depth > DEEPEST:
            raise Malformed(f"brackets are nested deeper than {DEEPEST}")
        if self.raw.startswith(self._quote, at):
            return self._quoted(at)
        if self.raw[at] == "{":
            return self._object(at, depth)
        if self.raw[at] == "[":
            return self._array(at, depth)
        match = _BARE.match(self.raw, at)
        word = match.group() if match else ""
        if word in WORDS:
            return WORDS[word], at + len(word)
        if not word or not _JSON_NUMBER.fullmatch(word):
            raise Malformed(f"found {self.raw[at : at + 20]!r}, wanted a value")
        return json_value(word), at + len(word)

    def _quoted(self, at: int) -> tuple[str, int]:
        start = at + len(self._quote)
        end = self.raw.index(self._quote, start)
        return self.raw[start:end], end + len(self._quote)

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        at = skip_space(self.raw, at + 1)
        while self.raw[at] != "}":
            quoted = self.raw.startswith(self._quote, at)
            if quoted:
                key, at = self._quoted(at)
            else:
                match = _BARE.match(self.raw, at)
                key = match.group().rstrip() if match else ""
                at += len(key)
            at = skip_space(self.raw, at)
            if not (key or quoted) or key in members or self.raw[at] != ":":
                raise Malformed(
                    f"found {self.raw[at : at + 20]!r} after key {key[:40]!r}, wanted ':' after a "
                    "key that appears once"
                )
            members[key], at = self._value(skip_space(self.raw, at + 1), depth + 1)
            at = next_item(self.raw, at, "}")
        return members, at + 1

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = skip_space(self.raw, at + 1)
        while self.raw[at] != "]":
            item, at = self._value(at, depth + 1)
            items.append(item)
            at = next_item(self.raw, at, "]")
        return items, at + 1


Call = JsonCall | PythonCall | TagCall | QuotedCall
