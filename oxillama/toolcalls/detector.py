"""`ToolCallDetector`: finds tool calls in a reply while it streams, and loses nothing of it.

The detector stands in one of five places: in text, in a block (after an opening, between calls), in
a call, after the name of a `name[ARGS]{...}` call, or in what turned out to be no call and is kept
to the end of its block. Each place reads what it can from the buffer and says whether more may be
read.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from oxillama.errors import ConfigError
from oxillama.toolcalls.events import CallFinished, CallMalformed, Event, Markup, Text, joined
from oxillama.toolcalls.formats import ARGS, CALL_ID, ToolCallFormat, format_of
from oxillama.toolcalls.harmony import HarmonyReader
from oxillama.toolcalls.opening import (
    SPACE,
    Pattern,
    bare_templates,
    head_pattern,
    search,
    tail_pattern,
)
from oxillama.toolcalls.places import fed, taken
from oxillama.toolcalls.scan import Malformed
from oxillama.toolcalls.scan_json import JsonCall
from oxillama.toolcalls.scan_python import PythonCall

_HEADER = re.compile(
    rf"(?P<name>[\w.\-]{{1,256}})[{SPACE}]*(?:{re.escape(CALL_ID)}[^\[{{]{{0,256}})?(?:{re.escape(ARGS)})?[{SPACE}]*(?={{)"
)
_HEADER_CHARACTERS = 600
_NAMED = re.compile(rf"[\w.\-]{{1,256}}[{SPACE}]*")


class ToolCallDetector:
    """Feeds on a reply's text in any pieces, gives out events; the raw texts of all events, joined,
    are the text that was fed.

    names: names of the tools on offer; where given, a bare call (one without an opening delimiter)
    of another name is text. leading: calls stand at the reply's beginning or nowhere. first_index:
    number of the first call, for ids that go on from earlier rounds.
    """

    def __init__(
        self,
        format: str | ToolCallFormat,
        *,
        names: Collection[str] | None = None,
        first_index: int = 0,
        leading: bool = False,
    ) -> None:
        self.leading = leading
        self.format = format_of(format)
        self.names = None if names is None else frozenset(names)
        self.index = first_index
        if self.format.style == "harmony":
            raise ConfigError(
                "tool call format harmony: is read by HarmonyReader, the whole reply is in that notation"
            )
        self._templates = bare_templates(self.format)
        self._head = head_pattern(self.format) if self.format.style == "headed" else None
        self._tail: Pattern | None = None  # what may follow the last call
        self.buffer = ""
        self._call: JsonCall | PythonCall | None = None
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
    # -----------------------------------------------------------------------------------------------

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
            self._enter(opener, self.format.close)
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
        if not rest or (
            self._close and len(rest) < len(self._close) and self._close.startswith(rest)
        ):
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
        """What stands in a block: a call, a bracket or comma around calls, or no call at all."""
        if self._head is not None:
            return self._next_headed(out)
        begins = self._array or not self._calls or self._close or self._separated
        if char == "{" and begins and not self._python:
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
        match = self._head.whole.match(self.buffer) if self.format.lead or not self._calls else None
        if match is not None:
            self._tail = tail_pattern(self.format) if self.format.tail else None
            self._begin(
                JsonCall(
                    self.format, self.index, name=match["name"], prefix=taken(self, match.end() - 1)
                )
            )
        elif self._head.part.match(self.buffer) and (self.format.lead or not self._calls):
            return False
        else:
            self._give_up(
                out,
                "",
                f"found {self.buffer[:40]!r}, wanted {self.format.lead}name{self.format.middle}{{",
            )
        return True

    def _in_header(self, out: list[Event]) -> bool:
        """`name[ARGS]` or `name[CALL_ID]...[ARGS]` before the arguments."""
        match = _HEADER.match(self.buffer)
        if match:
            name, prefix, self._named = match["name"], taken(self, match.end()), True
            self._begin(JsonCall(self.format, self.index, name=name, prefix=prefix))
            return True
        if not _header_may_come(self.buffer):
            self._give_up(out, "", f"found {self.buffer[:40]!r}, wanted name{ARGS}{{")
            return True
        return False

    def _in_call(self, out: list[Event]) -> bool:
        call, before = self._call, len(self._call.raw)
        try:
            taken(self, call.feed(self.buffer))
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
        return True

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
        self._named = False  # the call's name stood before it
        self.place = self._in_block

    def _leave(self, *, fresh: bool) -> None:
        """Back into text; fresh: a bare call may begin here."""
        self.place, self._fresh = self._in_text, fresh or self.leading

    def _begin(self, call: JsonCall | PythonCall) -> None:
        self._call, self.place = call, self._in_call

    def _over(self) -> None:
        """A call has ended, well or not: back into its block."""
        self._calls += 1
        self._separated = False
        self.place = self._in_block
        if self._named and not self._close:
            self._leave(fresh=False)

    def _note(self, out: list[Event], call: JsonCall | PythonCall) -> None:
        """Gives out what a call has found."""
        out.extend(call.events)
        self._whole += "".join(event.raw for event in call.events)
        call.events.clear()

    def _give_up(self, out: list[Event], raw: str, reason: str) -> None:
        """No call after all: wait for the end of the block, or report at once where a block has no
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
    """Whether a text that is no header yet may become one."""
    if len(text) > _HEADER_CHARACTERS:
        return False
    rest = text[_NAMED.match(text).end() :]
    if rest.startswith(CALL_ID):
        at = rest.find("[", len(CALL_ID))
        rest = "" if at < 0 and "{" not in rest else rest[max(at, 0) :]
    return (
        ARGS.startswith(rest)
        or CALL_ID.startswith(rest)
        or (rest.startswith(ARGS) and not rest[len(ARGS) :].strip(SPACE))
    )


def detector_of(format: str | ToolCallFormat, **options: Any) -> ToolCallDetector | HarmonyReader:
    """What reads replies in a format; options are those of `ToolCallDetector`."""
    kind = format_of(format)
    return (
        HarmonyReader(first_index=options.get("first_index", 0))
        if kind.style == "harmony"
        else ToolCallDetector(kind, **options)
    )


def detect_calls(
    text: str, format: str | ToolCallFormat, *, names: Collection[str] | None = None
) -> tuple[str, list, list[CallMalformed]]:
    """(the text without its calls, the calls, what began as a call and is none) of a whole reply."""
    detector = detector_of(format, names=names)
    events = detector.feed(text) + detector.finish()
    return (
        "".join(event.raw for event in events if isinstance(event, Text)),
        [event.call for event in events if isinstance(event, CallFinished)],
        [event for event in events if isinstance(event, CallMalformed)],
    )
