"""`ReplyParser`: a reply as it streams, split into reasoning, answer and tool calls; `Reply` is
what it comes to.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from oxillama.toolcalls.deltas import Parts
from oxillama.toolcalls.detector import detector_of
from oxillama.toolcalls.events import CallMalformed, Event, Text, ToolCall
from oxillama.toolcalls.formats import ToolCallFormat
from oxillama.toolcalls.reasoning import ReasoningFormat, ReasoningSplitter


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply in its parts. content: the answer's text, without the spaces around regions and
    calls; raw: all as it was written.
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: tuple[CallMalformed, ...] = ()
    raw: str = ""

    def message(self) -> dict[str, Any]:
        """The reply as a conversation holds it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.message() for call in self.tool_calls]
        return message


class ReplyParser:
    """Feeds on a reply in any pieces; the raw texts of all events, joined, are the reply. None for
    a format: it is not looked for.

    reasoning_opened: the prompt has opened the region. Other arguments are those of
    `ToolCallDetector`.
    """

    def __init__(
        self,
        format: str | ToolCallFormat | None = None,
        *,
        reasoning: ReasoningFormat | None = None,
        reasoning_opened: bool = False,
        names: Collection[str] | None = None,
        first_index: int = 0,
        leading: bool = False,
    ) -> None:
        self._splitter = (
            None if reasoning is None else ReasoningSplitter(reasoning, opened=reasoning_opened)
        )
        self._detector = (
            None
            if format is None
            else detector_of(format, names=names, first_index=first_index, leading=leading)
        )
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        """The events that this piece makes certain."""
        return self._keep(
            self._calls([Text(text)] if self._splitter is None else self._splitter.feed(text))
        )

    def finish(self) -> list[Event]:
        """The events of the reply's end."""
        events = self._calls([] if self._splitter is None else self._splitter.finish())
        return self._keep(events + ([] if self._detector is None else self._detector.finish()))

    @property
    def reply(self) -> Reply:
        """What the reply has come to so far; whole after `finish`."""

        parts = Parts()
        told = parts.take(self._events) + parts.finish()
        return Reply(
            "".join(each.text for each in told),
            "".join(each.reasoning for each in told),
            tuple(each.call for each in told if each.call is not None),
            tuple(each.malformed for each in told if each.malformed is not None),
            "".join(event.raw for event in self._events),
        )

    def _calls(self, events: list[Event]) -> list[Event]:
        """Text through the detector. Reasoning comes before all text, so the order stays."""
        if self._detector is None:
            return events
        out: list[Event] = []
        for event in events:
            out += self._detector.feed(event.raw) if isinstance(event, Text) else [event]
        return out

    def _keep(self, events: list[Event]) -> list[Event]:
        self._events += events
        return events


def parse_reply(text: str, format: str | ToolCallFormat | None = None, **options: Any) -> Reply:
    """A whole reply in its parts; options are those of `ReplyParser`."""
    parser = ReplyParser(format, **options)
    parser.feed(text)
    parser.finish()
    return parser.reply
