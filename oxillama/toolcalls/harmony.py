"""`HarmonyReader`: reads replies in the harmony notation (gpt-oss), messages on channels."""

from __future__ import annotations

import re

from oxillama.grammar.composer import partial
from oxillama.toolcalls.calls import JsonCall
from oxillama.toolcalls.events import CallMalformed, Event, Markup, Reasoning, Text, joined
from oxillama.toolcalls.formats import HARMONY
from oxillama.toolcalls.literals import Malformed
from oxillama.toolcalls.openings import SPACE
from oxillama.toolcalls.streaming import StreamReader

START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN = HARMONY.marks
NEXT = f"{START}assistant"  # begins a further message of the reply
FUNCTIONS = "functions."  # before the name of a tool
_CHANNEL_HEADER = re.compile(
    rf"\s*(?:{re.escape(START)}\s*assistant)?\s*(?:to=(?P<before>[\w.\-]+))?\s*{re.escape(CHANNEL)}\s*(?P<channel>\w+)"
    rf"(?:\s+to=(?P<after>[\w.\-]+))?\s*(?:{re.escape(CONSTRAIN)})?\s*\w*\s*{re.escape(MESSAGE)}\s*"
)
_BEGINNINGS = (START, CHANNEL, "to=")
_ENDS = (END, CALL, RETURN)
_LONGEST_HEADER = 600  # characters of a header


class HarmonyReader(StreamReader):
    """Turns a reply, fed in any pieces, into events, as `ToolCallDetector` does; the raw texts of
    all events, joined, are the text that was fed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._state = self._in_head
        self._kind: type = Text
        self._call: JsonCall | None = None
        self._emitted = ""  # what events hold of the current call
        self._reason = ""  # why it is malformed
        self._kept = 0  # how much of the buffer belongs to a malformed call

    def finish(self) -> list[Event]:
        """The events at the end of the text. The reader can be used again; numbers of calls
        continue.
        """
        out: list[Event] = []
        if self._state == self._in_head:
            out.append(
                (Markup if self._is_head() and self.buffer.strip() else Text)(
                    self._take(len(self.buffer))
                )
            )
        elif self._state == self._in_body:
            out.append(self._kind(self._take(len(self.buffer))))
        else:
            if self._call is not None:
                self.buffer, self._reason = (
                    self._call.rest() + self.buffer,
                    "the text ends inside a call",
                )
            self._emit_malformed(out, len(self.buffer))
        self._call, self._state = None, self._in_head
        return joined(out)

    def _in_head(self, out: list[Event]) -> bool:
        """Before a message: its header, or text that has none."""
        if not self._is_head():
            self._kind, self._state = Text, self._in_body
            return True
        match = _CHANNEL_HEADER.match(self.buffer)
        if match is None:
            if MESSAGE in self.buffer or len(self.buffer) > _LONGEST_HEADER:
                out.append(Text(self._take(max(self.buffer.find(MESSAGE) + len(MESSAGE), 1))))
                self._kind, self._state = Text, self._in_body
                return True
            return False
        recipient = match["after"] or match["before"]
        if recipient is None:
            size = match.start() + len(match.group().rstrip())
            out.append(Markup(self._take(size)))
            self._kind, self._state = (
                (Reasoning if match["channel"] == "analysis" else Text),
                self._in_body,
            )
            return True
        if match.end() == len(self.buffer):
            return False  # the arguments have not begun
        return self._begin(self._take(match.end()), recipient)

    def _begin(self, header: str, recipient: str) -> bool:
        """A message to a tool: its arguments, or anything else, which is malformed."""
        self._emitted, name = "", recipient.removeprefix(FUNCTIONS)
        if recipient.startswith(FUNCTIONS) and name and self.buffer[0] == "{":
            self._call, self._state = (
                JsonCall(HARMONY, self.index, name=name, prefix=header),
                self._in_call,
            )
        else:
            wanted = (
                f"found a message to {recipient}, wanted {FUNCTIONS}NAME"
                if name == recipient
                else "found no '{', wanted arguments"
            )
            self._reject(header, wanted)
        return True

    def _in_call(self, out: list[Event]) -> bool:
        call = self._call
        if call is None:
            return False
        before = len(call.raw)
        try:
            self._take(call.feed(self.buffer))
        except Malformed as error:
            self._take(len(call.raw) - before)
            self._emit(out, call)
            self._reject(call.rest(), str(error))
            return True
        self._emit(out, call)
        if call.done:
            self.index += 1
            self._call, self._kind, self._state = None, Text, self._in_body
        return True

    def _emit(self, out: list[Event], call: JsonCall) -> None:
        """Pass on what a call has recognised; its text is kept in case the rest is malformed."""
        out.extend(call.events)
        self._emitted += "".join(event.raw for event in call.events)
        call.events.clear()

    def _in_body(self, out: list[Event]) -> bool:
        """Inside a message: its text up to the end of the message."""
        at, end = self._end()
        if at:
            out.append(self._kind(self._take(at)))
        if end is None:
            return False
        if end in _ENDS:
            out.append(Markup(self._take(len(end))))
        self._state = self._in_head
        return True

    def _in_malformed(self, out: list[Event]) -> bool:
        """After a malformed call: everything up to the end of its message belongs to it."""
        at, end = self._end(self._kept)
        if end is None:
            return False
        self._emit_malformed(out, at + (len(end) if end in _ENDS else 0))
        self._state = self._in_head
        return True

    def _reject(self, raw: str, reason: str) -> None:
        """This is not a call: wait for the end of its message."""
        self.buffer, self._kept, self._reason = raw + self.buffer, len(raw), reason
        self._call, self._state = None, self._in_malformed

    def _emit_malformed(self, out: list[Event], size: int) -> None:
        raw = self._take(size)
        out.append(CallMalformed(raw, self.index, self._emitted + raw, self._reason))
        self.index += 1

    def _end(self, start: int = 0) -> tuple[int, str | None]:
        """(how much of the buffer is certainly text of this message, the delimiter that ends it or
        None).
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
