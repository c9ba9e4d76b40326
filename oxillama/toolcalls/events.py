"""The events of a streamed reply: text, markup, reasoning, and the beginning, arguments and end of
tool calls.

Every event has the `raw` text it was read from; the raw texts of all events, joined, are exactly
the input.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool: its name and its arguments as JSON values. The id is nine letters and
    digits, which every template accepts.

    written: the arguments' JSON text as the model wrote it, "" if it did not write JSON.
    """

    name: str
    arguments: dict[str, Any]
    id: str = "call00000"
    written: str = field(default="", compare=False, repr=False)

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text: as written, otherwise made from the values."""
        return self.written or json.dumps(self.arguments, ensure_ascii=False)

    def message(self) -> dict[str, Any]:
        """The call as an entry of an assistant message's `tool_calls`, with its arguments as an
        object.
        """
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


def call_id(index: int) -> str:
    """The id of call number `index` of a conversation."""
    return f"call{index:05d}"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer."""

    raw: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the reasoning before the answer."""

    raw: str


@dataclass(frozen=True, slots=True)
class Markup:
    """Delimiters and the text between them that is not shown."""

    raw: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call whose name is known."""

    raw: str
    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments: as it was written, and as JSON. The `json` pieces of a
    finished call, joined, are its arguments.
    """

    raw: str
    index: int
    json: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A complete call."""

    raw: str
    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallMalformed:
    """What began as a call and is not one: `text` is everything from its opening on, and `raw` the
    part that was not returned before.
    """

    raw: str
    index: int
    text: str
    reason: str


Event = Text | Reasoning | Markup | CallStarted | CallArguments | CallFinished | CallMalformed


def joined(events: list[Event]) -> list[Event]:
    """The events with neighbouring pieces of one kind merged and empty ones removed."""
    out: list[Event] = []
    for event in events:
        kind = type(event)
        if kind in (Text, Reasoning, Markup):
            if not event.raw:
                continue
            if out and type(out[-1]) is kind:
                out[-1] = kind(out[-1].raw + event.raw)
                continue
        out.append(event)
    return out
