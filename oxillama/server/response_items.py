"""The items of a response: built event by event from a chat's reply, with the functions under the
names that the request gave them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.server import opaque, sse
from oxillama.server.errors import bad
from oxillama.server.ids import new_id
from oxillama.server.logprobs import chat_entries
from oxillama.server.models import ServedModel
from oxillama.server.replies import CollectedReply

LOGPROBS = "message.output_text.logprobs"
PACKED = "reasoning.encrypted_content"


def qualified(namespace: str | None, name: str) -> str:
    """The name by which the model knows a tool."""
    return name if namespace is None else f"{namespace}__{name}"


def functions_of(
    tools: Sequence[Mapping[str, Any]],
) -> dict[str, tuple[str | None, dict[str, Any]]]:
    """The functions by the names that the model knows: (namespace, function). The description of a
    namespace stands before that of its first function.
    """
    out: dict[str, tuple[str | None, dict[str, Any]]] = {}
    for at, tool in enumerate(tools):
        where, space, inner = f"tools[{at}]", None, [tool]
        if tool["type"] == "namespace":
            space, inner = tool["name"], tool["tools"]
        for number, each in enumerate(inner):
            name = qualified(space, each["name"])
            if name in out:
                path = f"{where}.name" if space is None else f"{where}.tools[{number}].name"
                raise bad(path, name, "each name once")
            made = {key: value for key, value in each.items() if key != "type"}
            about = [tool.get("description") if space and not number else None]
            about.append(each.get("description"))
            made.update(name=name, description="\n\n".join(filter(None, about)) or None)
            out[name] = space, made
    return out


class Items:
    """The items of a response, built event by event, as its body asks for them."""

    def __init__(self, model: ServedModel, body: Mapping[str, Any]) -> None:
        self._bridge, self._top = model.tokenizer(), top_logprobs_of(body)
        self._functions = functions_of(body.get("tools") or ())
        self._packs = PACKED in (body.get("include") or ())
        self.done: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._call: Any = None
        self.number = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event of the stream, numbered."""
        made = {"type": kind, "sequence_number": self.number, **fields}
        self.number += 1
        return sse.event(kind, made)

    def add(self, kind: str, value: Any, logprobs: Sequence[Any] = ()) -> list[bytes]:
        """What a part of the reply adds."""
        if kind == "content":
            return self._text(value, logprobs)
        if kind == "reasoning":
            out = self._begin("reasoning")
            self._open["content"][0]["text"] += value  # type: ignore[index]
            return [*out, self._delta("response.reasoning_text.delta", value, part=True)]
        if kind == "call":
            out = self.finish()
            self._call = value
            item = {
                "id": new_id("fc_"),
                "type": "function_call",
                "status": "in_progress",
                "arguments": "",
                "call_id": value["id"],
                **self._named(value["name"]),
            }
            self._open = item
            return [*out, self._added(item)]
        call, text = value
        if self._call is not call:
            return []
        self._open["arguments"] += text  # type: ignore[index]
        return [self._delta("response.function_call_arguments.delta", text)]

    def take(self, reply: CollectedReply) -> None:
        """Add all of a finished reply, in its order."""
        for part in reply.parts:
            if part.call is None:
                self.add(part.kind, part.text, part.logprobs)
            else:
                self.add("call", part.call)
                self.add("arguments", (part.call, part.call["arguments"]))
        if not reply.parts:
            self.add("content", "")
        self.rest(reply.logprobs[sum(len(part.logprobs) for part in reply.parts) :])
        self.finish("incomplete" if reply.finish_reason == "length" else "completed")

    def rest(self, logprobs: Sequence[Any]) -> None:
        """Log-probabilities of the tokens after the last text."""
        if self._open is not None and self._open["type"] == "message":
            self._open["content"][0]["logprobs"] += self._entries(logprobs)

    def _named(self, name: str) -> dict[str, str]:
        """The fields that name a function as the request does."""
        space, _ = self._functions.get(name, (None, None))
        if space is None:
            return {"name": name}
        return {"namespace": space, "name": name.removeprefix(qualified(space, ""))}

    def _text(self, text: str, logprobs: Sequence[Any]) -> list[bytes]:
        out = self._begin("message")
        entries = self._entries(logprobs)
        part = self._open["content"][0]  # type: ignore[index]
        part["text"] += text
        part["logprobs"] += entries
        made = {"logprobs": entries}
        return [*out, self._delta("response.output_text.delta", text, part=True, **made)]

    def _entries(self, logprobs: Sequence[Any]) -> list[Any]:
        return [] if self._top is None else chat_entries(logprobs, self._bridge, self._top)

    def _begin(self, kind: str) -> list[bytes]:
        """Open an item, unless it is open."""
        if self._open is not None and self._open["type"] == kind:
            return []
        out = self.finish()
        if kind == "reasoning":
            self._open = {
                "id": new_id("rs_"),
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": ""}],
                "status": "in_progress",
            }
            return [*out, self._added({**self._open, "content": []})]
        self._open = {
            "id": new_id("msg_"),
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}],
        }
        return [
            *out,
            self._added({**self._open, "content": []}),
            self.event(
                "response.content_part.added",
                **self._where(part=True),
                part={"type": "output_text", "text": "", "annotations": [], "logprobs": []},
            ),
        ]

    def finish(self, status: str = "completed") -> list[bytes]:
        """Close the open item."""
        item, self._open, self._call = self._open, None, None
        if item is None:
            return []
        item["status"] = status
        self._open = item  # for `_where`
        out = []
        if item["type"] == "message":
            part = item["content"][0]
            out = [
                self.event(
                    "response.output_text.done",
                    **self._where(part=True),
                    text=part["text"],
                    logprobs=part["logprobs"],
                ),
                self.event("response.content_part.done", **self._where(part=True), part=part),
            ]
        elif item["type"] == "reasoning":
            text = item["content"][0]["text"]
            if self._packs:
                item["encrypted_content"] = opaque.pack(text)
            out = [self.event("response.reasoning_text.done", **self._where(part=True), text=text)]
        else:
            out = [
                self.event(
                    "response.function_call_arguments.done",
                    **self._where(),
                    name=item["name"],
                    arguments=item["arguments"],
                )
            ]
        self._open = None
        out.append(
            self.event(
                "response.output_item.done",
                output_index=len(self.done),
                item_id=item["id"],
                item=item,
            )
        )
        self.done.append(item)
        return out

    def _added(self, item: dict[str, Any]) -> bytes:
        return self.event(
            "response.output_item.added",
            output_index=len(self.done),
            item_id=item["id"],
            item=dict(item),
        )

    def _where(self, *, part: bool = False) -> dict[str, Any]:
        where: dict[str, Any] = {
            "item_id": self._open["id"],  # type: ignore[index]
            "output_index": len(self.done),
        }
        return {**where, "content_index": 0} if part else where

    def _delta(self, kind: str, text: str, *, part: bool = False, **more: Any) -> bytes:
        return self.event(kind, **self._where(part=part), delta=text, **more)


def top_logprobs_of(body: Mapping[str, Any]) -> int | None:
    """How many other tokens an item gives with each one, None where it is not asked for."""
    return int(body.get("top_logprobs") or 0) if LOGPROBS in (body.get("include") or ()) else None
