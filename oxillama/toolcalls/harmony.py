"""The harmony notation (gpt-oss), in which a reply is messages on channels: their grammar, and
their reader.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant            reasoning, any number of times
    <|channel|>commentary<|message|>...<|end|><|start|>assistant          said before a call: content
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}    a call; the recipient may stand before the channel
    <|channel|>final<|message|>...                                        the answer

The prompt has written `<|start|>assistant`. A reply ends after one call or one answer (published as
OpenAI's harmony response format).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from oxillama.grammar import Grammar, GrammarLimits
from oxillama.grammar.nodes import choice, literal, repeat, seq
from oxillama.toolcalls.compose import Composer
from oxillama.toolcalls.events import CallMalformed, Event, Markup, Reasoning, Text, joined
from oxillama.toolcalls.formats import HARMONY
from oxillama.toolcalls.opening import SPACE, partial
from oxillama.toolcalls.places import fed, taken
from oxillama.toolcalls.scan import Malformed
from oxillama.toolcalls.scan_json import JsonCall

START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN = HARMONY.marks
_NEXT = f"{START}assistant"
_FUNCTIONS = "functions."
_HEADER = re.compile(
    rf"\s*(?:{re.escape(START)}\s*assistant)?\s*(?:to=(?P<before>[\w.\-]+))?\s*{re.escape(CHANNEL)}\s*(?P<channel>\w+)"
    rf"(?:\s+to=(?P<after>[\w.\-]+))?\s*(?:{re.escape(CONSTRAIN)})?\s*\w*\s*{re.escape(MESSAGE)}\s*"
)
_BEGINNINGS = (START, CHANNEL, "to=")
_ENDS = (END, CALL, RETURN)
_LONGEST = 600  # characters of a header


def harmony_grammar(
    composer: Composer,
    calls: Sequence[tuple[str, tuple]],
    *,
    answer: Grammar | None = None,
    answered: bool = False,
    limits: GrammarLimits | None = None,
) -> Grammar:
    """The grammar of a whole reply: any reasoning, then one of the calls, given as (name, node of
    its arguments).

    answered: an answer may come instead of a call; answer: what it is held to, None for any text.
    """
    spelled, message = composer.spelled, composer.delimiter(MESSAGE)
    before = [
        seq(spelled(f"{CHANNEL}{channel}{MESSAGE}"), composer.until(END), spelled(_NEXT))
        for channel in ("analysis", "commentary")
    ]
    typed = choice(spelled(f" {CONSTRAIN}json"), literal(" json"), literal(""))
    ends = []
    for name, arguments in calls:
        heads = (
            spelled(f"{CHANNEL}commentary to={_FUNCTIONS}{name}"),
            spelled(f" to={_FUNCTIONS}{name}{CHANNEL}commentary"),
        )
        ends.append(seq(choice(*heads), typed, message, arguments))
    if answered:
        body = composer.any_text() if answer is None else composer.include(answer, "answer")
        ends.append(
            seq(
                spelled(f"{CHANNEL}final"),
                repeat(spelled(f" {CONSTRAIN}json"), 0, 1),
                message,
                body,
            )
        )
    return composer.grammar(
        seq(repeat(composer.rule("before", choice(*before))), choice(*ends)), limits=limits
    )


class HarmonyReader:
    """Feeds on a reply in any pieces, as `ToolCallDetector` does; the raw texts of all events,
    joined, are the text that was fed.
    """

    def __init__(self, *, first_index: int = 0) -> None:
        self.index = first_index
        self.buffer = ""
        self.place = self._in_head
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
        match = _HEADER.match(self.buffer)
        if match is None:
            if MESSAGE in self.buffer or len(self.buffer) > _LONGEST:
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
        call, before = self._call, len(self._call.raw)
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
