"""`ChatEvent`: what a caller of a streamed chat is told, a step each that a server can pass on;
`Parts` makes them of a reply's events.

    reasoning* content* (call arguments* (call_end | malformed))* ... end

Law: pieces of one kind, joined, are what the finished completion holds: `text` its content,
`reasoning` its reasoning, the `arguments` of a call that ended its `arguments_text`. Spaces that a
completion leaves out (around regions and calls) are held back until it is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

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
from oxillama.toolcalls.opening import SPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEvent:
    """One step of a streamed chat; `kind` says which, and every other field that does not belong to
    it is empty.

    kind: "content" (text), "reasoning" (reasoning), "call" (index, id, name: a call begins),
    "arguments" (index, arguments: a piece of JSON text), "call_end" (index, call), "malformed"
    (index, malformed: what began as a call is none) or "end" (completion). tokens, logprobs: of the
    tokens that came since the event before; over a whole stream those of the completion.
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
    logprobs: tuple = ()

    @property
    def finish_reason(self) -> str | None:
        """Why the reply ended; None before its end."""
        return None if self.completion is None else self.completion.finish_reason


class Parts:
    """Turns a reply's events into chat events, piece by piece; what it holds back are spaces and
    line ends that may be left out.
    """

    def __init__(self) -> None:
        self._reasoning = _Trimmed("\r\n")
        self._content = _Trimmed(SPACE)
        self._content.leading = True  # kept, until something else comes first
        self._calls = False

    def take(self, events: Iterable[Event]) -> list[ChatEvent]:
        """The chat events that these make certain."""
        out = []
        for event in events:
            made = self._of(event)
            if made is not None:
                out.append(made)
        return out

    def finish(self) -> list[ChatEvent]:
        """The end of the content, where spaces at its end belong to it."""
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
    """A text without some characters at its ends; `leading` keeps those at its beginning."""

    __slots__ = ("_begun", "_chars", "held", "leading")

    def __init__(self, chars: str) -> None:
        self._chars, self.held = chars, ""
        self.leading = self._begun = False

    def precede(self) -> None:
        """Something stands before the text, if it has not begun."""
        if not self._begun:
            self.leading, self.held = False, ""

    def feed(self, text: str) -> str:
        """What is now certain."""
        text = self.held + text
        if not self._begun and not self.leading:
            text = text.lstrip(self._chars)
        sure = text.rstrip(self._chars)
        self.held = text[len(sure) :]
        self._begun = self._begun or bool(sure)
        return sure
