"""What a chat's completion becomes, whatever API asked: from the events of a turn to a message
(`CollectedReply`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from oxillama.chat import Turn
from oxillama.completion import Completion
from oxillama.server.ids import new_id
from oxillama.server.work import reason_of, stopped_by
from oxillama.tokenizer import TokenizerBridge


@dataclass(slots=True)
class ReplyPart:
    """A text without calls in it, or one call: "reasoning", "content" or "call"."""

    kind: str
    texts: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    call: dict[str, str] | None = None

    @property
    def text(self) -> str:
        """The text of its pieces."""
        return "".join(self.texts)


class CollectedReply:
    """One completion of a chat, event by event. A call that never finished is included with the
    arguments so far.

    `parts` are its texts and calls in the order in which the model wrote them.
    """

    __slots__ = (
        "calls",
        "completion",
        "content",
        "logprobs",
        "parts",
        "reasoning",
        "reasoning_tokens",
        "request",
        "turn",
    )

    def __init__(self, turn: Turn, request: Any) -> None:
        self.turn, self.request = turn, request
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.parts: list[ReplyPart] = []
        self.calls: dict[int, dict[str, str]] = {}
        self.logprobs: list[Any] = []
        self.reasoning_tokens = 0
        self.completion: Any = None  # at the end a Completion

    def take(self, event: Any) -> list[tuple[str, Any]]:
        """(kind, value) that an event adds: "content" and "reasoning" with text, "call" and
        "arguments" with (number, text).
        """
        kind = event.kind
        if kind == "reasoning":
            self.reasoning.append(event.reasoning)
            self._text("reasoning", event.reasoning, ())
            self.reasoning_tokens += len(event.tokens)
            return [("reasoning", event.reasoning)]
        if kind == "content":
            self.content.append(event.text)
            self._text("content", event.text, event.logprobs)
            self.logprobs.extend(event.logprobs)
            return [("content", event.text)]
        if kind == "call":
            number = len(self.calls)
            self.calls[event.index] = {
                "id": new_id("call_"),
                "name": event.name,
                "arguments": "",
                "number": str(number),
            }
            self.parts.append(ReplyPart("call", call=self.calls[event.index]))
            return [("call", self.calls[event.index])]
        if kind == "arguments" and event.index in self.calls:
            call = self.calls[event.index]
            call["arguments"] += event.arguments
            return [("arguments", (call, event.arguments))]
        if kind == "call_end" and event.index in self.calls:
            call = self.calls[event.index]
            rest = event.call.arguments_text
            if not call["arguments"] and rest:
                call["arguments"] = rest
                return [("arguments", (call, rest))]
        if kind == "malformed" and event.index not in self.calls:
            self.content.append(event.malformed.text)
            self._text("content", event.malformed.text, event.logprobs)
            self.logprobs.extend(event.logprobs)
            return [("content", event.malformed.text)]
        if kind == "end":
            self.logprobs.extend(event.logprobs if not self.calls else ())
            self.completion = event.completion
        return []

    def _text(self, kind: str, text: str, logprobs: Sequence[Any]) -> None:
        if not self.parts or self.parts[-1].kind != kind:
            self.parts.append(ReplyPart(kind))
        self.parts[-1].texts.append(text)
        self.parts[-1].logprobs.extend(logprobs)

    @property
    def text(self) -> str:
        return "".join(self.content)

    def usable_calls(self) -> list[tuple[dict[str, str], Any]]:
        """(call, its arguments as an object) of the calls that have all of them; one cut short by
        max_tokens has not.
        """
        out: list[tuple[dict[str, str], Any]] = []
        for call in self.calls.values():
            with suppress(ValueError):  # "" too: no arguments are "{}"
                out.append((call, json.loads(call["arguments"])))
        return out

    def stopped_by(self, stops: Sequence[str], bridge: TokenizerBridge) -> str | None:
        """The stop string that ended it."""
        shown = self.turn.options["shown_tokens"]
        return stopped_by(self.completion, stops, bridge, shown=shown)

    @property
    def thought(self) -> str:
        return "".join(self.reasoning)

    @property
    def finish_reason(self) -> str:
        return reason_of(self.completion) if self.completion else "stop"


# of JSON: opened, closed, a mark between values, a string or another scalar
_TOKEN = re.compile(r'\s*(?:([{\[])|([}\]])|([,:])|("(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+))')
_NAMES = ("true", "false", "null")


def begun_object(text: str) -> dict[str, Any]:
    """The members that are whole in an object's JSON text that ends anywhere, and of the last one
    what is whole in it. A number at the end might have gone on.
    """
    end, left = 0, ""  # what is whole ends there, and what closes it
    closing: list[str] = []
    at, is_value = 0, True
    while match := _TOKEN.match(text, at):
        at = match.end()
        opened, closed, mark, scalar = match.groups()
        if mark:
            is_value = mark == ":" or closing[-1:] == ["]"]
            continue
        if opened:
            closing.append("}" if opened == "{" else "]")
        elif closed:
            if not closing:
                break
            closing.pop()
        elif not is_value or (at == len(text) and scalar[0] != '"' and scalar not in _NAMES):
            continue  # a key, or a number that may go on
        end, left = at, "".join(reversed(closing))
        is_value = opened == "["
    try:
        found = json.loads(text[:end] + left)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def reply_of(turn: Turn, request: Any, done: Completion) -> CollectedReply:
    """A finished completion as a reply: the same events as those of a stream."""
    reply, reader = CollectedReply(turn, request), turn.events()
    for index in range(len(request.pieces)):
        for event in reader.feed(request.piece(index)):
            reply.take(event)
    for event in reader.finish(request.last_piece(), done):
        reply.take(event)
    return reply


def message_of(reply: CollectedReply, *, reasoning: bool = False) -> dict[str, Any]:
    """A reply as an assistant's message of a response, or (`reasoning`) of a conversation."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text if reply.text or not reply.calls else None,
    }
    if not reasoning:
        message["refusal"] = None
    if reply.reasoning:
        message["reasoning_content"] = reply.thought
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": each["id"],
                "type": "function",
                "function": {"name": each["name"], "arguments": each["arguments"]},
            }
            for each in reply.calls.values()
        ]
    return message


def usage_json(usage: Mapping[str, int], reasoning: int) -> dict[str, Any]:
    """Token counts in OpenAI's form."""
    return {
        "prompt_tokens": usage["prompt"],
        "completion_tokens": usage["generated"],
        "total_tokens": usage["prompt"] + usage["generated"],
        "prompt_tokens_details": {"cached_tokens": usage["cached"]},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
