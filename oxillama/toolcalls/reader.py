"""`ToolCallDetector`: reads tool calls in a reply while it streams, and loses nothing of it.

A detector is a state machine: in text, in a block of calls, in the header of a call, in a call, or
after a malformed one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from oxillama.arguments import listable
from oxillama.errors import ConfigError
from oxillama.toolcalls.calls import Call, JsonCall, PythonCall, QuotedCall, TagCall
from oxillama.toolcalls.events import CallFinished, CallMalformed, Event, Markup, Text, joined
from oxillama.toolcalls.formats import (
    ARGS,
    CALL_ID,
    DIGITS,
    IDENTIFIER,
    ToolCallFormat,
    format_of,
)
from oxillama.toolcalls.harmony import HarmonyReader
from oxillama.toolcalls.literals import Malformed
from oxillama.toolcalls.openings import (
    SPACE,
    Pattern,
    bare_templates,
    head_pattern,
    search,
    tail_pattern,
)
from oxillama.toolcalls.streaming import StreamReader

_HEADER = re.compile(
    rf"(?P<name>[\w.\-]{{1,256}})[{SPACE}]*(?:{re.escape(CALL_ID)}[^\[{{]{{0,256}})?(?:{re.escape(ARGS)})?[{SPACE}]*(?={{)"
)
_LONGEST_HEADER = 600  # characters
_NAMED = re.compile(rf"[\w.\-]{{1,256}}[{SPACE}]*")


class ToolCallDetector(StreamReader):
    """Turns a reply's text, fed in any pieces, into events; the raw texts of all events, joined,
    are the text.

    - `names`: the names of the tools; if given, a bare call (without an opening delimiter) of
      another name is text.
    - `leading`: calls are recognised only at the beginning of the reply.
    - `parameters`: the schemas of the tools' parameters by name, which distinguish texts from other
      values if a notation writes both bare (`read_value`).
    """

    def __init__(
        self,
        format: str | ToolCallFormat,
        *,
        names: Collection[str] | None = None,
        leading: bool = False,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self._fresh = self._array = self._separated = False
        self._calls = 0
        self.leading = leading
        self.format = format_of(format)
        if names is not None and (isinstance(names, str) or not listable(names)):
            raise ConfigError(f"names: found {names!r:.50}, wanted a list of names")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ConfigError(f"parameters: found {parameters!r:.50}, wanted schemas by tool")
        self.names = None if names is None else frozenset(names)
        if self.format.style == "harmony":
            raise ConfigError(
                "tool call format harmony: the whole reply is in that notation, wanted a "
                "HarmonyReader"
            )
        self._parameters = {} if parameters is None else dict(parameters)
        self._templates = bare_templates(self.format)
        headed = self.format.style in ("headed", "tags")
        self._head = head_pattern(self.format) if headed else None
        self._tail: Pattern | None = None  # what may follow the last call
        self._call: Call | None = None
        self._enter("", "")
        self._leave(fresh=True)

    def finish(self) -> list[Event]:
        """The events at the end of the text. The detector can be used again; numbers of calls
        continue.
        """
        out: list[Event] = []
        if self._state == self._in_text:
            out.append(Text(self.buffer))
        elif self._state == self._in_block and self._calls:
            out.append(Markup(self.buffer) if self._close or self._array else Text(self.buffer))
        else:
            rest = "" if self._call is None else self._call.rest()
            self._emit_malformed(out, rest + self.buffer, "the text ends inside a call")
        self.buffer, self._call = "", None
        self._leave(fresh=True)
        return joined(out)

    # ---- the five states
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
            out.append(Text(self._take(sure)))
            return bool(self.buffer)
        if opening is None:
            return False
        if opening.kind == "delimiter":
            opener = self._take(opening.end)
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
            markup = self._take(lead + len(self._close))
            if self._calls:
                out.append(Markup(markup))
            else:
                self._emit_malformed(out, markup, "found no call between the delimiters")
            self._leave(fresh=False)
            return True
        return self._next_item(out, lead, rest[0])

    def _next_item(self, out: list[Event], lead: int, char: str) -> bool:
        """The next item of a block: a call, a bracket or comma around calls, or neither."""
        if self._head is not None:
            return self._next_headed(out)
        begins = self._array or not self._calls or self._close or self._separated
        if char == "{" and begins and (not self._python or self.format.open):
            self._begin(JsonCall(self.format, self.index, prefix=self._take(lead)))
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
                self._reject(out, "", "found no call between the brackets")
            elif not self._close:
                self._leave(fresh=False)
        elif (
            self._python
            and (char.isalpha() or char == "_")
            and (not self._calls or self._separated)
        ):
            self._begin(PythonCall(self.index, prefix=self._take(lead)))
        elif self.format.bare == "json" and not self._calls and (char.isalpha() or char == "_"):
            self._begin(PythonCall(self.index, prefix=self._take(lead), method="call"))
        elif (
            self.format.header
            and not self._array
            and not self._calls
            and (char.isalnum() or char == "_")
        ):
            self._mark(out, lead)
            self._state = self._in_header
        elif self._calls and not self._array:
            self._leave(fresh=not self._separated)
        else:
            self._reject(out, "", f"found {char!r}, wanted a call")
        return True

    def _next_headed(self, out: list[Event]) -> bool:
        """The name of a call whose arguments follow it, within what the format puts around it."""
        head, several = head_pattern(self.format), bool(self.format.lead) or not self._calls
        match = head.whole.match(self.buffer) if several else None
        if match is not None and self.format.style == "tags":
            end = match.end() - (not self.format.middle)
            schema = self._parameters.get(match["name"])
            prefix = self._take(end)
            self._begin(TagCall(self.format, self.index, match["name"], prefix, schema))
        elif match is not None and self.format.quote:
            prefix = self._take(match.end() - 1)
            self._begin(QuotedCall(self.format, self.index, match["name"], prefix))
        elif match is not None:
            self._tail = tail_pattern(self.format) if self.format.tail else None
            self._begin(
                JsonCall(
                    self.format, self.index, name=match["name"], prefix=self._take(match.end() - 1)
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
            # without a block, what looked like the beginning of a call is passed on at once
            inner = "" if self._whole else self._take(len(self.format.inner))
            self._reject(out, inner, reason)
        return True

    def _leave_inner(self, out: list[Event]) -> None:
        """Leave a block without an opening; it may have a closing text."""
        lead = len(self.buffer) - len(self.buffer.lstrip(SPACE))
        if self.format.close and self.buffer.startswith(self.format.close, lead):
            self._mark(out, lead + len(self.format.close))
        self._leave(fresh=False)

    def _in_header(self, out: list[Event]) -> bool:
        """`name[ARGS]` or `name[CALL_ID]...[ARGS]` before the arguments."""
        match = _HEADER.match(self.buffer)
        if match:
            name, prefix, self._named = match["name"], self._take(match.end()), True
            self._begin(JsonCall(self.format, self.index, name=name, prefix=prefix))
            return True
        if not _header_may_come(self.buffer):
            # the shortest prefix at fault, so that the error does not depend on the pieces
            sizes = range(1, len(self.buffer) + 1)
            size = next(n for n in sizes if not _header_may_come(self.buffer[:n]))
            self._reject(out, "", f"found {self.buffer[:size][:40]!r}, wanted name{ARGS}{{")
            return True
        return False

    def _in_call(self, out: list[Event]) -> bool:
        call = self._call
        if call is None:
            return False
        before = len(call.raw)
        try:
            read = self._take(call.feed(self.buffer))
        except Malformed as error:
            self._take(len(call.raw) - before)
            self._emit(out, call)
            self._call = None
            if call.done:
                self._emit_malformed(out, call.rest(), str(error))
                self._end_call()
            else:
                self._reject(out, call.rest(), str(error))
            return True
        self._emit(out, call)
        if call.done:
            self._call, self._whole = None, ""
            self.index += 1
            self._end_call()
        return bool(read) or call.done

    def _in_malformed(self, out: list[Event]) -> bool:
        """After a malformed call: everything up to the end of the block belongs to it."""
        at = self.buffer.find(self._close)
        if at < 0:
            return False
        self._emit_malformed(out, self._take(at + len(self._close)), self._reason)
        self._leave(fresh=False)
        return True

    # ---- transitions
    # -------------------------------------------------------------------------------------------

    def _mark(self, out: list[Event], size: int) -> None:
        markup = self._take(size)
        self._whole += markup
        out.append(Markup(markup))

    def _enter(self, opener: str, close: str, *, python: bool = False) -> None:
        """Enter a block; a bare one has no opener."""
        self._close, self._python = close, python
        self._array = self._separated = False
        self._calls = 0
        self._whole = opener  # all text since the block's opening or the last complete call
        self._reason = ""
        self._named = False  # whether the name came before the call
        self._state = self._in_block

    def _leave(self, *, fresh: bool) -> None:
        """Return to text; fresh: a bare call may begin here."""
        self._state, self._fresh = self._in_text, fresh or self.leading

    def _begin(self, call: Call) -> None:
        self._call, self._state = call, self._in_call

    def _end_call(self) -> None:
        """A call has ended, complete or malformed: return to its block."""
        self._calls += 1
        self._separated = False
        self._state = self._in_block
        if self._named and not self._close:
            self._leave(fresh=False)

    def _emit(self, out: list[Event], call: Call) -> None:
        """Pass on what a call has recognised."""
        out.extend(call.events)
        self._whole += "".join(event.raw for event in call.events)
        call.events.clear()

    def _reject(self, out: list[Event], raw: str, reason: str) -> None:
        """This is not a call: wait for the end of the block, or report it at once if the block has
        no end of its own.
        """
        if self._close:
            self.buffer = raw + self.buffer
            self._reason, self._state = reason, self._in_malformed
        else:
            self._emit_malformed(out, raw, reason)
            self._leave(fresh=False)

    def _emit_malformed(self, out: list[Event], raw: str, reason: str) -> None:
        out.append(CallMalformed(raw, self.index, self._whole + raw, self._reason or reason))
        self.index += 1
        self._whole, self._reason = "", ""
        self._separated = False


def _header_may_come(text: str) -> bool:
    """Whether an incomplete text may still become a header."""
    if len(text) > _LONGEST_HEADER:
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
    leading: bool = False,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
) -> ToolCallDetector | HarmonyReader:
    """The reader of replies in a format; arguments are those of `ToolCallDetector`."""
    kind = format_of(format)
    if kind.style == "harmony":
        return HarmonyReader()
    return ToolCallDetector(kind, names=names, leading=leading, parameters=parameters)


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
