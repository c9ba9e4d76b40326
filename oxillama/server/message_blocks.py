"""The blocks of Anthropic's messages: those of a finished reply, and a stream's events of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxillama.server import opaque, sse
from oxillama.server.ids import new_id
from oxillama.server.replies import CollectedReply, begun_object


def content_of(reply: CollectedReply, *, omitted: bool = False) -> list[dict[str, Any]]:
    """The blocks of a reply, in the order of its stream."""
    content: list[dict[str, Any]] = []
    usable = {call["id"]: given for call, given in reply.usable_calls()}
    block: dict[str, Any]
    for part in reply.parts:
        if part.kind == "reasoning":
            text, signature = ("", opaque.pack(part.text)) if omitted else (part.text, new_id())
            block = {"type": "thinking", "thinking": text, "signature": signature}
        elif part.call is None:
            block = {"type": "text", "text": part.text}
        elif part.call["id"] in usable or part is reply.parts[-1]:
            # what max_tokens cut off comes last, as in a stream: `stop_reason` says so
            known = usable.get(part.call["id"])
            given = begun_object(part.call["arguments"]) if known is None else known
            name = part.call["name"]
            block = {"type": "tool_use", "id": _use_id(part.call), "name": name, "input": given}
        else:
            continue
        content.append(block)
    return content


def _use_id(call: Mapping[str, str]) -> str:
    return "toolu_" + call["id"].removeprefix("call_")


class MessageBlocks:
    """The events of a message's blocks, of which one is open at a time."""

    def __init__(self, *, omitted: bool) -> None:
        """omitted: reasoning is given in the signature of its block alone."""
        self._omitted = omitted
        self._index, self._kind = -1, ""
        self._thought: list[str] = []  # of the open block, where its text is in the signature

    def add(self, kind: str, value: Any) -> list[bytes]:
        """What a part of the reply adds, as `CollectedReply.take` has it."""
        if kind == "call":
            use = {"id": _use_id(value), "name": value["name"], "input": {}}
            return self._begin("tool_use", use)
        if kind == "arguments":
            return [self._delta({"type": "input_json_delta", "partial_json": value[1]})]
        return self._text(value) if kind == "content" else self._thinking(value)

    def finish(self) -> list[bytes]:
        """Close the open block."""
        if not self._kind:
            return []
        frames = []
        if self._kind == "thinking":
            signature = opaque.pack("".join(self._thought)) if self._omitted else new_id()
            self._thought.clear()
            frames.append(self._delta({"type": "signature_delta", "signature": signature}))
        return [*frames, event("content_block_stop", index=self._index)]

    def _text(self, text: str) -> list[bytes]:
        frames = [] if self._kind == "text" else self._begin("text", {"text": ""})
        return [*frames, self._delta({"type": "text_delta", "text": text})]

    def _thinking(self, text: str) -> list[bytes]:
        frames = []
        if self._kind != "thinking":
            frames = self._begin("thinking", {"thinking": "", "signature": ""})
        if self._omitted:
            self._thought.append(text)
            return frames
        return [*frames, self._delta({"type": "thinking_delta", "thinking": text})]

    def _begin(self, kind: str, fields: dict[str, Any]) -> list[bytes]:
        frames = self.finish()
        self._index, self._kind = self._index + 1, kind
        block = {"type": kind, **fields}
        return [*frames, event("content_block_start", index=self._index, content_block=block)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event("content_block_delta", index=self._index, delta=delta)


def event(kind: str, **fields: Any) -> bytes:
    """An event of a message's stream."""
    return sse.event(kind, {"type": kind, **fields})
