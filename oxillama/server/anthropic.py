"""Anthropic's `/v1/messages`, with conversations that the server holds (`thread`), and
`/v1/messages/count_tokens`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from oxillama.server import adapters, budget, opaque, sse
from oxillama.server import options as table
from oxillama.server.calls import Call, json_response
from oxillama.server.chat import (
    ChatRequest,
    events,
    image_part,
    messages_of,
    places_of,
    prefill_of,
    prepare,
    run,
)
from oxillama.server.errors import ApiError, bad, unsupported
from oxillama.server.fields import (
    EXCEPTIONS,
    SESSION,
    add_variables,
    constrain,
    options_of,
    template_kwargs,
)
from oxillama.server.ids import new_id
from oxillama.server.message_blocks import MessageBlocks, content_of, event
from oxillama.server.models import ServedModel
from oxillama.server.replies import CollectedReply
from oxillama.server.schema import (
    BOOLEAN,
    FALSE,
    NAME,
    OBJECT,
    STRING,
    TRUE,
    Schema,
    array,
    enum,
    integer,
    obj,
    one_of,
)
from oxillama.server.tools import TOOL_NAME, tools_of
from oxillama.server.work import fills_context, usage_of

_CACHE = obj({"type": enum("ephemeral"), "ttl": enum("5m", "1h")}, ("type",))
_TEXT = obj(
    {"type": enum("text"), "text": STRING, "cache_control": _CACHE, "citations": array(None, 0, 0)},
    ("type", "text"),
)
_IMAGE = obj({"type": enum("image"), "source": OBJECT, "cache_control": _CACHE}, ("type", "source"))
_RESULT = obj(
    {
        "type": enum("tool_result"),
        "tool_use_id": NAME,
        "content": one_of(STRING, array(one_of(_TEXT, _IMAGE), 0, 1024)),
        "is_error": BOOLEAN,
        "cache_control": _CACHE,
    },
    ("type", "tool_use_id"),
)
_USE = obj(
    {
        "type": enum("tool_use"),
        "id": NAME,
        "name": NAME,
        "input": OBJECT,
        "cache_control": _CACHE,
        "caller": OBJECT,
    },
    ("type", "id", "name", "input"),
)
_THINKING = obj(
    {"type": enum("thinking"), "thinking": STRING, "signature": STRING}, ("type", "thinking")
)
MESSAGES = array(
    one_of(
        obj(
            {
                "role": enum("user"),
                "content": one_of(STRING, array(one_of(_TEXT, _IMAGE, _RESULT), 1, 1024)),
            },
            ("role", "content"),
        ),
        obj(
            {
                "role": enum("assistant"),
                "content": one_of(STRING, array(one_of(_TEXT, _USE, _THINKING), 1, 1024)),
            },
            ("role", "content"),
        ),
        # instructions that hold from there on
        obj(
            {"role": enum("system"), "content": one_of(STRING, array(_TEXT, 1, 1024))},
            ("role", "content"),
        ),
    ),
    1,
    4096,
)
_TOOL = obj(
    {
        "type": enum("custom"),
        "name": TOOL_NAME,
        "description": STRING,
        "input_schema": OBJECT,
        "cache_control": _CACHE,
        "strict": BOOLEAN,
        # arguments are always streamed as they come, of every tool, and by the model alone
        "eager_input_streaming": TRUE,
        "defer_loading": FALSE,
        "allowed_callers": array(enum("direct"), 1, 1),
    },
    ("name", "input_schema"),
)
_DISPLAY = enum("summarized", "omitted")
_FLAG = {"disable_parallel_tool_use": BOOLEAN}
_SHARED = {
    **table.properties("stop"),
    **EXCEPTIONS,
    "stop_sequences": array({"type": "string", "minLength": 1, "maxLength": 4096}, 0, 64),
    "model": NAME,
    "messages": MESSAGES,
    "system": one_of(STRING, array(_TEXT, 0, 1024)),
    "tools": array(_TOOL, 0, 128),
    "tool_choice": one_of(
        obj({"type": enum("auto", "any"), **_FLAG}, ("type",)),
        obj({"type": enum("tool"), "name": NAME, **_FLAG}, ("type", "name")),
        obj({"type": enum("none")}, ("type",)),
    ),
    "thinking": one_of(
        obj({"type": enum("disabled")}, ("type",)),
        obj({"type": enum("adaptive"), "display": _DISPLAY}, ("type",)),
        obj({"type": enum("enabled"), "budget_tokens": integer(1), "display": _DISPLAY}, ("type",)),
    ),
    "context_management": obj(
        {
            # keeps what is there
            "edits": array(
                obj(
                    {
                        "type": enum("clear_thinking_20251015"),
                        "keep": one_of(enum("all"), obj({"type": enum("all")}, ("type",))),
                    },
                    ("type", "keep"),
                ),
                0,
                1,
            )
        }
    ),
    "cache_control": _CACHE,
    "output_config": obj(
        {
            "format": obj({"type": enum("json_schema"), "schema": OBJECT}, ("type", "schema")),
            "effort": enum("low", "medium", "high", "xhigh", "max"),
        }
    ),
}
BODY: Schema = obj(
    {
        **_SHARED,
        "max_tokens": integer(1),
        "stream": BOOLEAN,
        "service_tier": enum("auto", "standard_only"),
        "speed": enum("standard"),
        "thread": one_of(
            obj({"type": enum("create")}, ("type",)),
            obj(
                {"type": enum("continue"), "previous_message_id": NAME},
                ("type", "previous_message_id"),
            ),
        ),
        "chat_template_kwargs": OBJECT,
        "session": SESSION,
        "lora": adapters.LORA,
    },
    ("max_tokens", "messages"),
)
COUNT_BODY: Schema = obj(
    {**_SHARED, "chat_template_kwargs": OBJECT},
    ("messages",),
)


# ---- threads


@dataclass(frozen=True, slots=True)
class StoredThread:
    """A conversation up to one reply, and the fields that hold for all of its turns."""

    messages: list[dict[str, Any]]
    fields: dict[str, Any]


_OF_THREAD = ("system", "tools")


def _continued(call: Call) -> tuple[dict[str, Any], int]:
    """(the body with the whole conversation, how many messages of it the server held)."""
    body = dict(call.body)
    thread = body.get("thread") or {}
    if thread.get("type") != "continue":
        return body, 0
    for name in _OF_THREAD:
        if body.get(name) is not None:
            raise ApiError(
                400,
                f"{name}: found together with a thread to continue, which keeps the {name} that "
                "it was created with, wanted none",
                param=name,
            )
    previous = thread["previous_message_id"]
    stored = call.state.threads.get(previous)
    if stored is None:
        raise ApiError(
            404,
            f"thread.previous_message_id: {previous[:80]!r} is not stored here",
            param="thread.previous_message_id",
            code="thread_not_found",
        )
    body.update(stored.fields, messages=[*stored.messages, *body["messages"]])
    return body, len(stored.messages)


def _store(
    call: Call, body: Mapping[str, Any], name: str, content: Sequence[Mapping[str, Any]]
) -> None:
    """Hold the conversation after a reply, if its request asks for that. A reply that continues the
    assistant's last message is one message with it.
    """
    if body.get("thread") is None:
        return
    messages, blocks = list(body["messages"]), list(content)
    if messages[-1]["role"] == "assistant":
        begun = messages.pop()["content"]
        if isinstance(begun, str):
            begun = [{"type": "text", "text": begun}]
        blocks = [*begun, *blocks]
    messages.append({"role": "assistant", "content": blocks})
    fields = {each: body[each] for each in _OF_THREAD if body.get(each) is not None}
    call.state.threads.add(name, StoredThread(messages, fields), call.size)


# ---- from blocks to messages


def _messages(body: Mapping[str, Any], held: int) -> tuple[list[dict[str, Any]], str]:
    """(messages in the form of chat completions, the text with which the last one begins the
    reply); held: how many of the messages are not the request's own.
    """
    out: list[dict[str, Any]] = []
    system = body.get("system")
    if system:
        out.append({"role": "system", "content": _joined(system), "at": "system"})
    given = body["messages"]
    if given[0]["role"] == "system":
        raise bad("messages[0].role", "system", "user or assistant; `system` is what comes first")
    for at, message in enumerate(given):
        where, content = f"messages[{at - held}]", message["content"]
        if isinstance(content, str) or message["role"] == "system":
            made = [{"role": message["role"], "content": _joined(content)}]
        elif message["role"] == "user":
            made = _of_user(content, where)
        else:
            made = _of_assistant(content, where)
        out += [{**each, "at": where if at >= held else "thread"} for each in made]
    prefill = ""
    if given[-1]["role"] == "assistant":
        where, content = f"messages[{len(given) - 1 - held}]", given[-1]["content"]
        if not isinstance(content, str) and any(each["type"] == "tool_use" for each in content):
            raise ApiError(
                400, f"{where}: found a tool_use, wanted its tool_result after it", param=where
            )
        prefill = prefill_of(out, where)
    return out, prefill


def _joined(content: str | Sequence[Mapping[str, Any]]) -> str:
    """A text, or texts in blocks, as one."""
    if isinstance(content, str):
        return content
    return "\n\n".join(each["text"] for each in content)


def _of_user(blocks: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    texts: list[str] = []

    def text() -> None:
        """The texts since the last image, as one part."""
        if texts:
            parts.append({"type": "text", "text": "\n\n".join(texts)})
            texts.clear()

    for at, block in enumerate(blocks):
        if block["type"] == "image":
            text()
            parts.append(_image(block["source"], f"{where}.content[{at}]"))
            continue
        if block["type"] == "text":
            texts.append(block["text"])
            continue
        if texts or parts:
            raise ApiError(
                400,
                f"{where}.content[{at}]: found a tool_result after other blocks, wanted the "
                "message's tool_result blocks first",
                param=f"{where}.content[{at}]",
            )
        place = f"{where}.content[{at}]"
        results.append(
            {
                "role": "tool",
                "tool_call_id": block["tool_use_id"],
                "content": _result(block, place),
                "id_at": f"{place}.tool_use_id",
            }
        )
    if any(part["type"] == "image_url" for part in parts):
        text()
        return [*results, {"role": "user", "content": parts}]
    return [*results, *([{"role": "user", "content": "\n\n".join(texts)}] if texts else [])]


def _result(block: Mapping[str, Any], where: str) -> str | list[dict[str, Any]]:
    """What a tool gave: a text, or, if it has images, texts and images in their order."""
    content = block.get("content") or ""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    parts = [
        {"type": "text", "text": each["text"]}
        if each["type"] == "text"
        else _image(each["source"], f"{where}.content[{at}]")
        for at, each in enumerate(content)
    ]
    if block.get("is_error"):
        parts.insert(0, {"type": "text", "text": "Error: "})
    if any(part["type"] == "image_url" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _image(source: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An image block's source in the form of chat completions."""
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        kind = source.get("media_type")
        return image_part(
            f"data:{kind if isinstance(kind, str) else ''};base64,{source['data']}", where
        )
    if source.get("type") == "url" and isinstance(source.get("url"), str):
        return image_part(source["url"], where)
    raise ApiError(
        400,
        f"{where}.source: found type {source.get('type')!r}, wanted base64 with data",
        param=f"{where}.source",
    )


def _of_assistant(blocks: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Templates write a message's text before its calls, so text or thinking after a call begins
    a message of its own, which keeps the order.
    """
    out: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for at, each in enumerate(blocks):
        if each["type"] == "tool_use":
            call = {
                "id": each["id"],
                "type": "function",
                "function": {
                    "name": each["name"],
                    "arguments": json.dumps(each["input"], ensure_ascii=False),
                },
            }
            out[-1].setdefault("tool_calls", []).append(call)
            continue
        kind = each["type"]
        said = each[kind]
        if kind == "thinking" and not said and each.get("signature"):
            said = opaque.unpack(each["signature"], f"{where}.content[{at}].signature")
        if not said:
            continue
        if "tool_calls" in out[-1]:
            out.append({"role": "assistant", "content": ""})
        name = "content" if kind == "text" else "reasoning_content"
        out[-1][name] = out[-1].get(name, "") + said
    return out


def _read(model: ServedModel, body: Mapping[str, Any], held: int = 0) -> ChatRequest:
    """The request of a body; held: how many of its messages are of the thread it continues."""
    asked = options_of(model, body)
    if body.get("max_tokens"):
        asked.options["max_tokens"] = int(body["max_tokens"])
    output = body.get("output_config") or {}
    constrain(asked, output.get("format"), path="output_config.format")
    messages, prefill = _messages(body, held)
    choice = body.get("tool_choice") or {}
    kinds = {"auto": "auto", "any": "required", "none": "none"}
    as_chat: dict[str, Any] = {
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description"),
                    "parameters": tool["input_schema"],
                },
            }
            for tool in body.get("tools") or ()
        ],
        "tool_choice": {"type": "function", "function": {"name": choice["name"]}}
        if choice.get("type") == "tool"
        else kinds.get(choice.get("type", "")),
    }
    return ChatRequest(
        messages_of(messages),
        asked.options,
        asked.stops,
        tools_of(as_chat),
        as_chat["tool_choice"],
        not choice.get("disable_parallel_tool_use"),
        _variables(model, body),
        prefill,
        body.get("session"),
        asked.constraint,
        budget=_budget(body),
        places=places_of(messages),
    )


def _budget(body: Mapping[str, Any]) -> int | None:
    tokens = (body.get("thinking") or {}).get("budget_tokens")
    if tokens is None:
        return None
    return budget.checked(int(tokens), body.get("max_tokens"), param="thinking.budget_tokens")


def _variables(model: ServedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    builder, given = model.chat(), template_kwargs(model, body)
    kind = (body.get("thinking") or {}).get("type", "adaptive")
    effort = (body.get("output_config") or {}).get("effort")
    leveled = effort is not None and builder.knows("reasoning_effort")
    if not leveled and effort not in (None, "high"):  # high is what the API has by default
        raise unsupported(
            "output_config.effort",
            f"found {effort!r}, and the model's chat template has no such setting, wanted 'high' "
            "or none",
        )
    found: dict[str, Any] = {}
    if kind != "adaptive":
        on = kind == "enabled"
        made = builder.reasoning(str(effort) if leveled and on else on)
        if made is None:
            raise unsupported("thinking.type", "the model's chat template has no such setting")
        found = made
    add_variables(given, found, path="thinking.type")
    if leveled and "reasoning_effort" not in found:
        add_variables(given, {"reasoning_effort": effort}, path="output_config.effort")
    return given


# ---- routes


async def messages(call: Call) -> Response:
    """POST /v1/messages"""
    body, held = _continued(call)
    async with call.model(body.get("model")) as model:
        asked = await call.offload(_read, model, body, held)
        if body.get("stream"):
            frames = _stream(call, model, asked, body)

            def failed(error: ApiError) -> bytes:
                return sse.event("error", error.anthropic(call.id))

            return await sse.EventStream(call, frames, failed=failed).begin()
        _, replies, usage = await call.race(run(call, model, asked))
        name = adapters.served_as(model, body)
        made = _message(model, name, asked, replies[0], usage, body)
        _store(call, body, made["id"], made["content"])
        return json_response(made)


async def count_tokens(call: Call) -> Response:
    """POST /v1/messages/count_tokens"""
    body = call.body
    async with call.model(body.get("model")) as model:

        def count() -> int:
            return len(prepare(model, _read(model, body)).prompt)

        return json_response({"input_tokens": await call.offload(count)})


def _message(
    model: ServedModel,
    name: str,
    asked: ChatRequest,
    reply: CollectedReply,
    usage: Mapping[str, int],
    body: Mapping[str, Any],
) -> dict[str, Any]:
    reason, stop = _stop(model, asked, reply)
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": name,
        "content": content_of(reply, omitted=_omits(body)),
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": _usage(**usage, thinking=reply.reasoning_tokens),
        **_edited(body),
    }


def _omits(body: Mapping[str, Any]) -> bool:
    """Whether reasoning is given in the signature alone."""
    return (body.get("thinking") or {}).get("display") == "omitted"


def _edited(body: Mapping[str, Any]) -> dict[str, Any]:
    """What was done for `context_management`, where that is asked for."""
    return (
        {}
        if body.get("context_management") is None
        else {"context_management": {"applied_edits": []}}
    )


def _usage(prompt: int, cached: int, generated: int, thinking: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
        "output_tokens_details": {"thinking_tokens": thinking},
    }


def _stop(model: ServedModel, asked: ChatRequest, reply: CollectedReply) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence)."""
    if reply.finish_reason == "length":
        full = fills_context(reply.completion, asked.options["max_tokens"])
        return "model_context_window_exceeded" if full else "max_tokens", None
    if reply.finish_reason == "tool_calls":
        return "tool_use", None
    stop = reply.stopped_by(asked.stops, model.tokenizer())
    return ("end_turn", None) if stop is None else ("stop_sequence", stop)


async def _stream(
    call: Call, model: ServedModel, asked: ChatRequest, body: Mapping[str, Any]
) -> AsyncIterator[bytes]:
    """The events of a message: its blocks one after another."""
    name, blocks = new_id("msg_"), MessageBlocks(omitted=_omits(body))
    last: Any = None  # the reply, which every stream has
    async for came in events(call, model, asked):
        frames: list[bytes] = []
        for _, reply, _, added in came:
            if last is None:
                last = reply
                frames.append(_start(name, adapters.served_as(model, body), reply))
            for kind, value in added:
                frames += blocks.add(kind, value)
        if frames:
            yield b"".join(frames)
    _store(call, body, name, content_of(last))
    usage = usage_of([last.completion])
    reason, stop = _stop(model, asked, last)
    yield b"".join(
        [
            *blocks.finish(),
            event(
                "message_delta",
                delta={"stop_reason": reason, "stop_sequence": stop},
                usage=_usage(**usage, thinking=last.reasoning_tokens),
                **_edited(body),
            ),
            event("message_stop"),
        ]
    )


def _start(name: str, model: str, reply: CollectedReply) -> bytes:
    """The first event of a message, which has its prompt's tokens."""
    prompt, cached = reply.request.prompt_tokens, reply.request.cached
    return event(
        "message_start",
        message={
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(prompt, min(cached, prompt), 0),
        },
    )
