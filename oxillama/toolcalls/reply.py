"""A reply in its parts, complete (`Reply`) and as it streams (`ReplyParser`, `ChatEvent`).

    reasoning* content* (call arguments* (call_end | malformed))* ... end

The pieces of one kind, joined, equal that part of the finished completion: `text` its content,
`reasoning` its reasoning, and the `arguments` of a finished call its `arguments_text`. Spaces that
the completion may leave out (around regions and calls) are held back until that is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oxillama.sampling import Logprobs
from oxillama.toolcalls.events import (
    CallArguments,
    CallFinished,
    CallMalformed,
    CallStarted,
    Event,
    Reasoning,
    Text,
    ToolCall,
)
from oxillama.toolcalls.formats import ToolCallFormat
from oxillama.toolcalls.openings import SPACE
from oxillama.toolcalls.reader import detector_of
from oxillama.toolcalls.reasoning import ReasoningFormat, ReasoningSplitter


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEvent:
    """One event of a streamed chat. `kind` says which; fields that do not belong to it are empty.

    kind: "content" (text), "reasoning" (reasoning), "call" (index, id, name: a call begins),
    "arguments" (index, arguments: a piece of JSON text), "call_end" (index, call), "malformed"
    (index, malformed: what began as a call is not one) or "end" (completion). tokens, logprobs: of
    the tokens since the previous event; over a whole stream, those of the completion.
    """

    kind: str
    text: str = ""
    reasoning: str = ""
    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""
    call: ToolCall | None = None
    malformed: CallMalformed | None = None
    completion: Any = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()

    @property
    def finish_reason(self) -> str | None:
        """Why the reply ended; None before its end."""
        return None if self.completion is None else self.completion.finish_reason


class ChatEventBuilder:
    """Turns a reply's events into chat events, piece by piece. It holds back spaces and line ends
    that may be left out.
    """

    def __init__(self) -> None:
        self._reasoning = _Trimmed("\r\n")
        self._content = _Trimmed(SPACE)
        self._content.leading = True  # kept, until something else comes first
        self._calls = False

    def take(self, events: Iterable[Event]) -> list[ChatEvent]:
        """The chat events that these events complete."""
        out = []
        for event in events:
            made = self._of(event)
            if made is not None:
                out.append(made)
        return out

    def finish(self) -> list[ChatEvent]:
        """The end of the content, if spaces at its end belong to it."""
        rest = "" if self._calls else self._content.held
        return [ChatEvent(kind="content", text=rest)] if rest else []

    def _of(self, event: Event) -> ChatEvent | None:
        if isinstance(event, Text):
            text = self._content.feed(event.raw)
            return ChatEvent(kind="content", text=text) if text else None
        self._content.precede()
        if isinstance(event, Reasoning):
            text = self._reasoning.feed(event.raw)
            return ChatEvent(kind="reasoning", reasoning=text) if text else None
        if isinstance(event, CallStarted):
            return ChatEvent(kind="call", index=event.index, id=event.id, name=event.name)
        if isinstance(event, CallArguments):
            return (
                ChatEvent(kind="arguments", index=event.index, arguments=event.json)
                if event.json
                else None
            )
        if isinstance(event, CallFinished):
            self._calls = True
            return ChatEvent(
                kind="call_end",
                index=event.index,
                id=event.call.id,
                name=event.call.name,
                call=event.call,
            )
        if isinstance(event, CallMalformed):
            self._calls = True
            return ChatEvent(kind="malformed", index=event.index, malformed=event)
        return None


class _Trimmed:
    """A text without certain characters at its ends; `leading` keeps those at its beginning."""

    __slots__ = ("_begun", "_chars", "_held", "leading")

    def __init__(self, chars: str) -> None:
        self._chars = chars
        self._held: list[str] = []
        self.leading = self._begun = False

    @property
    def held(self) -> str:
        """The text held back: spaces that may be at the end."""
        return "".join(self._held)

    def precede(self) -> None:
        """Something comes before the text, if it has not begun."""
        if not self._begun:
            self.leading = False
            self._held.clear()

    def feed(self, text: str) -> str:
        """The text that is now certain."""
        if not self._begun and not self.leading:
            text = text.lstrip(self._chars)
        kept = text.rstrip(self._chars)
        sure = ""
        if kept:
            sure, self._begun = self.held + kept, True
            self._held.clear()
        self._held.append(text[len(kept) :])
        return sure


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply in its parts. content: the answer's text without the spaces around regions and calls;
    raw: the whole text as it was written.
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: tuple[CallMalformed, ...] = ()
    raw: str = ""

    def message(self) -> dict[str, Any]:
        """The reply as a message of the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.message() for call in self.tool_calls]
        return message


class ReplyParser:
    """Parses a reply in any pieces; the raw texts of all events, joined, are the reply. A format of
    None is not looked for.

    reasoning_opened: the prompt has opened the reasoning region. Other arguments are those of
    `ToolCallDetector`.
    """

    def __init__(
        self,
        format: str | ToolCallFormat | None = None,
        *,
        reasoning: ReasoningFormat | None = None,
        reasoning_opened: bool = False,
        names: Collection[str] | None = None,
        leading: bool = False,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._splitter = (
            None if reasoning is None else ReasoningSplitter(reasoning, opened=reasoning_opened)
        )
        self._detector = (
            None
            if format is None
            else detector_of(format, names=names, leading=leading, parameters=parameters)
        )
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        """The events that this piece completes."""
        return self._keep(
            self._calls([Text(text)] if self._splitter is None else self._splitter.feed(text))
        )

    def finish(self) -> list[Event]:
        """The events of the reply's end."""
        events = self._calls([] if self._splitter is None else self._splitter.finish())
        return self._keep(events + ([] if self._detector is None else self._detector.finish()))

    @property
    def reply(self) -> Reply:
        """The reply so far; complete after `finish`."""

        parts = ChatEventBuilder()
        events = parts.take(self._events) + parts.finish()
        return Reply(
            "".join(each.text for each in events),
            "".join(each.reasoning for each in events),
            tuple(each.call for each in events if each.call is not None),
            tuple(each.malformed for each in events if each.malformed is not None),
            "".join(event.raw for event in self._events),
        )

    def _calls(self, events: list[Event]) -> list[Event]:
        """Text passed through the detector. Reasoning comes before all text, so the order is
        kept.
        """
        if self._detector is None:
            return events
        out: list[Event] = []
        for event in events:
            out += self._detector.feed(event.raw) if isinstance(event, Text) else [event]
        return out

    def _keep(self, events: list[Event]) -> list[Event]:
        self._events += events
        return events


def parse_reply(
    text: str,
    format: str | ToolCallFormat | None = None,
    *,
    reasoning: ReasoningFormat | None = None,
    reasoning_opened: bool = False,
    names: Collection[str] | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
) -> Reply:
    """A complete reply in its parts; arguments are those of `ReplyParser`."""
    parser = ReplyParser(
        format,
        reasoning=reasoning,
        reasoning_opened=reasoning_opened,
        names=names,
        parameters=parameters,
    )
    parser.feed(text)
    parser.finish()
    return parser.reply
