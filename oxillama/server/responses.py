"""`/v1/responses`: conversations as items, stored under their ids, streamed as typed events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from oxillama.errors import OxillamaError
from oxillama.server import adapters, opaque, sse
from oxillama.server import options as table
from oxillama.server.calls import Call, json_response
from oxillama.server.chat import (
    EXCEPTIONS,
    NOT_OBFUSCATED,
    SESSION,
    VERBOSITY,
    ChatRequest,
    Reply,
    constrain,
    events,
    image_part,
    message_of,
    messages_of,
    places_of,
    prepare,
    run,
    tools_of,
    variables_of,
)
from oxillama.server.errors import ApiError, bad, from_engine, unsupported
from oxillama.server.ids import new_id
from oxillama.server.logprobs import chat_entries
from oxillama.server.models import Model
from oxillama.server.schema import (
    BOOLEAN,
    NAME,
    OBJECT,
    STRING,
    Schema,
    array,
    enum,
    integer,
    obj,
    one_of,
)
from oxillama.server.work import usage_of

_PART = one_of(
    obj(
        {
            "type": enum("input_text", "output_text", "text"),
            "text": STRING,
            "annotations": array(None, 0, 0),
            "logprobs": array(),
            "prompt_cache_breakpoint": OBJECT,
        },
        ("type", "text"),
    ),
    obj({"type": enum("refusal"), "refusal": STRING}, ("type", "refusal")),
    obj(
        {
            "type": enum("input_image"),
            "image_url": STRING,
            "detail": STRING,
            "file_id": {"type": "null"},
            "prompt_cache_breakpoint": OBJECT,
        },
        ("type", "image_url"),
    ),
)
_STATUS = enum("in_progress", "completed", "incomplete")
_ITEM = one_of(
    obj(
        {
            "type": enum("message"),
            "role": enum("user", "assistant", "system", "developer"),
            "content": one_of(STRING, array(_PART, 1, 1024)),
            "id": NAME,
            "status": _STATUS,
            "phase": STRING,
        },
        ("role", "content"),
    ),
    obj(
        {
            "type": enum("function_call"),
            "call_id": NAME,
            "name": NAME,
            "namespace": NAME,
            "arguments": STRING,
            "id": NAME,
            "status": _STATUS,
        },
        ("type", "call_id", "name", "arguments"),
    ),
    obj(
        {
            "type": enum("function_call_output"),
            "call_id": NAME,
            "output": one_of(STRING, array(_PART, 0, 1024)),
            "id": NAME,
            "status": _STATUS,
        },
        ("type", "call_id", "output"),
    ),
    obj(
        {
            "type": enum("reasoning"),
            "id": NAME,
            "summary": array(None, 0, 0),
            "content": array(obj({"type": enum("reasoning_text"), "text": STRING}, ("text",))),
            "encrypted_content": STRING,
            "status": _STATUS,
        },
        ("type",),
    ),
    obj({"type": enum("item_reference"), "id": NAME}, ("type", "id")),
)
_TOOL_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"}
_FUNCTION = obj(
    {
        "type": enum("function"),
        "name": _TOOL_NAME,
        "description": STRING,
        "parameters": OBJECT,
        "strict": BOOLEAN,
    },
    ("type", "name"),
)
_TOOL = one_of(
    _FUNCTION,
    obj(
        {
            "type": enum("namespace"),
            "name": _TOOL_NAME,
            "description": STRING,
            "tools": array(_FUNCTION, 1, 128),
        },
        ("type", "name", "tools"),
    ),
)
_NAMED = obj({"type": enum("function"), "name": NAME}, ("type", "name"))
_FORMAT = one_of(
    obj({"type": enum("text")}, ("type",)),
    obj({"type": enum("json_object")}, ("type",)),
    obj(
        {
            "type": enum("json_schema"),
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
            "description": STRING,
            "schema": OBJECT,
            "strict": BOOLEAN,
        },
        ("type", "name", "schema"),
    ),
)
_LOGPROBS = "message.output_text.logprobs"
_PACKED = "reasoning.encrypted_content"

BODY: Schema = obj(
    {
        **table.properties("stop_sequences"),
        **EXCEPTIONS,
        "client_metadata": OBJECT,
        "model": NAME,
        "input": one_of({"type": "string", "minLength": 1}, array(_ITEM, 1, 4096)),
        "instructions": STRING,
        "max_output_tokens": integer(1),
        "max_tool_calls": integer(1),  # of tools that the API runs, of which there are none
        "tools": array(_TOOL, 0, 128),
        "tool_choice": one_of(
            enum("none", "auto", "required"),
            _NAMED,
            obj(
                {
                    "type": enum("allowed_tools"),
                    "mode": enum("auto", "required"),
                    "tools": array(_NAMED, 1, 128),
                },
                ("type", "mode", "tools"),
            ),
        ),
        "parallel_tool_calls": BOOLEAN,
        "text": obj({"format": _FORMAT, "verbosity": VERBOSITY}),
        "reasoning": obj(
            {
                "effort": enum("none", "minimal", "low", "medium", "high", "xhigh"),
                # the best summary that the model has, which is none: reasoning is given itself
                "summary": enum("auto"),
            }
        ),
        "previous_response_id": NAME,
        "stream": BOOLEAN,
        "stream_options": obj({"include_obfuscation": NOT_OBFUSCATED}),
        "include": array(enum(_LOGPROBS, _PACKED), 0, 16),
        "top_logprobs": integer(0, 20),
        "truncation": enum("disabled"),
        "background": {"type": "boolean", "const": False},
        "service_tier": enum("auto", "default"),
        "chat_template_kwargs": OBJECT,
        "session": SESSION,
        "lora": adapters.LORA,
    },
    ("input",),
)


# what a prompt is made of, and so what counts its tokens
COUNT_BODY: Schema = obj(
    {
        name: BODY["properties"][name]
        for name in (
            *("model", "input", "instructions", "previous_response_id", "tools", "tool_choice"),
            *("parallel_tool_calls", "text", "reasoning", "truncation", "chat_template_kwargs"),
        )
    },
    ("input",),
)
MOST_ITEMS = 100
ITEMS_QUERY: dict[str, Schema] = {
    "order": enum("asc", "desc"),
    "limit": integer(1, MOST_ITEMS),
    "after": NAME,
}


@dataclass(slots=True)
class StoredResponse:
    """A stored response: its content, its input, and the conversation after it, without
    instructions.
    """

    response: dict[str, Any]
    items: list[dict[str, Any]]
    messages: list[dict[str, Any]]


# ---- from items to messages


def _resolved(call: Call) -> dict[str, Any]:
    """The body with the items of stored responses in the place of references to them."""
    body = call.body
    if isinstance(body["input"], str):
        return body
    known: dict[str, Any] | None = None
    items = []
    for at, item in enumerate(body["input"]):
        if item.get("type") == "item_reference":
            if known is None:
                stored = call.state.responses.values()
                known = {one["id"]: one for each in stored for one in each.response["output"]}
            if item["id"] not in known:
                raise ApiError(
                    400,
                    f"input[{at}].id: no stored response has the item {item['id'][:80]!r}",
                    param=f"input[{at}].id",
                    code="item_not_found",
                )
            item = known[item["id"]]
        items.append(item)
    return {**body, "input": items}


def _messages(items: Any) -> list[dict[str, Any]]:
    """Input items as chat messages; neighbouring calls and the text before them become one
    message. Reasoning belongs to the text or call after it.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items, "at": "input"}]
    out: list[dict[str, Any]] = []
    thought = ""

    def alone() -> None:
        """Reasoning that no text or call followed."""
        nonlocal thought
        if thought:
            said = {"role": "assistant", "content": "", "reasoning_content": thought}
            out.append({**said, "at": where})
            thought = ""

    for at, item in enumerate(items):
        kind, where = item.get("type") or "message", f"input[{at}]"
        if kind == "message":
            content = _text(item["content"], f"{where}.content")
            message = {"role": item["role"], "content": content, "at": where}
            if thought and item["role"] == "assistant":
                message["reasoning_content"], thought = thought, ""
            alone()
            out.append(message)
        elif kind == "reasoning":
            thought += _thought(item, where)
        elif kind == "function_call":
            call = {
                "id": item["call_id"],
                "type": "function",
                "function": {
                    "name": _qualified(item.get("namespace"), item["name"]),
                    "arguments": item["arguments"],
                },
            }
            if thought or not out or out[-1]["role"] != "assistant":
                out.append({"role": "assistant", "content": None, "at": where})
                if thought:
                    out[-1]["reasoning_content"], thought = thought, ""
            out[-1].setdefault("tool_calls", []).append(call)
        else:
            alone()
            out.append(
                {
                    "role": "tool",
                    "tool_call_id": item["call_id"],
                    "content": _text(item["output"], f"{where}.output"),
                    "at": where,
                    "id_at": f"{where}.call_id",
                }
            )
    alone()
    return out


def _thought(item: Mapping[str, Any], where: str) -> str:
    """The text of a reasoning item, from its content or from what it was packed to."""
    text = "".join(each["text"] for each in item.get("content") or ())
    if not item.get("encrypted_content"):
        return text
    packed = opaque.unpack(item["encrypted_content"], f"{where}.encrypted_content")
    if text and text != packed:
        raise ApiError(
            400,
            f"{where}.content: found another reasoning than in encrypted_content, wanted the same, "
            "or one of them",
            param=f"{where}.content",
        )
    return packed


def _qualified(namespace: str | None, name: str) -> str:
    """The name by which the model knows a tool."""
    return name if namespace is None else f"{namespace}__{name}"


def _functions(tools: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str | None, dict[str, Any]]]:
    """The functions by the names that the model knows: (namespace, function). The description of a
    namespace stands before that of its first function.
    """
    out: dict[str, tuple[str | None, dict[str, Any]]] = {}
    for at, tool in enumerate(tools):
        where, space, inner = f"tools[{at}]", None, [tool]
        if tool["type"] == "namespace":
            space, inner = tool["name"], tool["tools"]
        for number, each in enumerate(inner):
            name = _qualified(space, each["name"])
            if name in out:
                path = f"{where}.name" if space is None else f"{where}.tools[{number}].name"
                raise bad(path, name, "each name once")
            made = {key: value for key, value in each.items() if key != "type"}
            about = [tool.get("description") if space and not number else None]
            about.append(each.get("description"))
            made.update(name=name, description="\n\n".join(filter(None, about)) or None)
            out[name] = space, made
    return out


def _text(content: Any, where: str) -> Any:
    """A content as one text, or, if it has images, as parts of chat completions."""
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for at, part in enumerate(content):
        if part["type"] == "input_image":
            parts.append(image_part(part["image_url"], f"{where}[{at}]"))
        else:
            parts.append({"type": "text", "text": part.get("text") or part.get("refusal") or ""})
    if any(part["type"] == "image_url" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _read(
    call: Call, model: Model, body: Mapping[str, Any]
) -> tuple[ChatRequest, list[dict], dict]:
    """(the request, the messages without instructions, the fields that the response repeats)."""
    asked = _options(model, body)
    conversation = [*_before(call, body), *_messages(body["input"])]
    messages = list(conversation)
    if body.get("instructions"):
        said = {"role": "system", "content": body["instructions"], "at": "instructions"}
        messages.insert(0, said)
    tools, choice, variables = _tools(model, body)
    chat = ChatRequest(
        messages_of(messages),
        asked.options,
        asked.stops,
        tools,
        choice,
        body.get("parallel_tool_calls") is not False,
        variables,
        session=body.get("session"),
        constraint=asked.constraint,
        prompt="input",
        places=places_of(messages),
    )
    return chat, conversation, _repeated(body, asked)


def _options(model: Model, body: Mapping[str, Any]) -> table.RequestOptions:
    """The options of a body."""
    engine = model.engine
    asked = table.read(body, default=engine.sampler, vocab_size=engine.config.vocab_size)
    asked.options.update(adapters.asked(model, body))
    constrain(asked, (body.get("text") or {}).get("format"), path="text.format")
    if body.get("max_output_tokens"):
        asked.options["max_tokens"] = int(body["max_output_tokens"])
    top = _top(body)
    if top is not None:
        asked.options["logprobs"] = top
    elif body.get("top_logprobs") is not None:
        raise ApiError(
            400,
            f"top_logprobs: found without include: [{_LOGPROBS!r}], wanted both",
            param="top_logprobs",
        )
    if body.get("stream_options") is not None and not body.get("stream"):
        raise ApiError(400, "stream_options: found without stream: true", param="stream_options")
    return asked


def _before(call: Call, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation that a body continues."""
    previous = body.get("previous_response_id")
    if previous is None:
        return []
    stored = call.state.responses.get(previous)
    if stored is None:
        raise ApiError(
            400,
            f"previous_response_id: {previous[:80]!r} is not stored here",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return [{**message, "at": "previous_response_id"} for message in stored.messages]


def _tools(
    model: Model, body: Mapping[str, Any]
) -> tuple[list[dict[str, Any]] | None, Any, dict[str, Any]]:
    """(tools, the choice among them, the template's variables), as in chat completions."""
    functions = _functions(body.get("tools") or ()).values()
    as_chat: dict[str, Any] = {
        "reasoning_effort": (body.get("reasoning") or {}).get("effort"),
        "chat_template_kwargs": body.get("chat_template_kwargs"),
        "tools": [{"type": "function", "function": function} for _, function in functions],
        "tool_choice": _choice(body.get("tool_choice")),
    }
    try:
        return tools_of(as_chat), as_chat["tool_choice"], variables_of(model, as_chat)
    except ApiError as error:
        if error.param == "reasoning_effort":
            raise unsupported("reasoning.effort", error.message.partition(": ")[2]) from None
        raise


def _repeated(body: Mapping[str, Any], asked: table.RequestOptions) -> dict[str, Any]:
    """The fields of a body that the response has too, with what is in force where it says none."""
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    return {
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "temperature": asked.sampler.temperature,
        "top_p": asked.sampler.top_p,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [
            {"strict": True, "description": None, "parameters": None, **tool}
            if tool["type"] == "function"
            else tool
            for tool in body.get("tools") or ()
        ],
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "max_output_tokens": asked.options.get("max_tokens"),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": body.get("store") is not False,
        "truncation": "disabled",
        "background": False,
        "service_tier": "default",
        "top_logprobs": int(body.get("top_logprobs") or 0),
        "user": body.get("user"),
    }


def _choice(given: Any) -> Any:
    """A tool choice in the form of chat completions."""
    if not isinstance(given, Mapping):
        return given
    if given["type"] == "function":
        return {"type": "function", "function": {"name": given["name"]}}
    return {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": given["mode"],
            "tools": [
                {"type": "function", "function": {"name": each["name"]}} for each in given["tools"]
            ],
        },
    }


# ---- from replies to items


class Items:
    """The items of a response, built event by event, as its body asks for them."""

    def __init__(self, model: Model, body: Mapping[str, Any]) -> None:
        self._bridge, self._top = model.tokenizer(), _top(body)
        self._functions = _functions(body.get("tools") or ())
        self._packs = _PACKED in (body.get("include") or ())
        self.done: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._call: Any = None
        self._number = 0
        self._logprobs: list[Any] = []

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event of the stream, numbered."""
        made = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
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

    def take(self, reply: Reply) -> None:
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
        return {"namespace": space, "name": name.removeprefix(_qualified(space, ""))}

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


def _top(body: Mapping[str, Any]) -> int | None:
    return int(body.get("top_logprobs") or 0) if _LOGPROBS in (body.get("include") or ()) else None


def _head(model: str, repeated: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        **repeated,
        "usage": None,
    }


def _finished(
    head: Mapping[str, Any], items: Sequence[dict], reply: Reply, usage: Mapping[str, int]
) -> dict[str, Any]:
    """The complete response."""
    cut = reply.finish_reason == "length"
    return {
        **head,
        "status": "incomplete" if cut else "completed",
        "completed_at": None if cut else int(time.time()),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": list(items),
        "usage": {
            "input_tokens": usage["prompt"],
            "input_tokens_details": {"cached_tokens": usage["cached"], "cache_write_tokens": 0},
            "output_tokens": usage["generated"],
            "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
            "total_tokens": usage["prompt"] + usage["generated"],
        },
    }


def _store(
    call: Call, made: dict[str, Any], given: Any, conversation: list[dict], reply: Reply
) -> None:
    if not made["store"]:
        return
    items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    stored = StoredResponse(made, items, [*conversation, message_of(reply, reasoning=True)])
    call.state.responses.add(made["id"], stored, call.size)


# parameters of a retrieval that would change what comes back
_NOT_RETRIEVED = {
    "stream": "events are not stored, wanted the response itself",
    "starting_after": "events are not stored, wanted the response itself",
    **dict.fromkeys(
        ("include", "include[]"), "a response has what it was created with, wanted it in its body"
    ),
}


# ---- routes


async def create(call: Call) -> Response:
    """POST /v1/responses"""
    body = call.body = _resolved(call)
    async with call.state.models.use(body.get("model")) as model:
        asked, conversation, repeated = await call.offload(_read, call, model, body)
        head = _head(adapters.served_as(model, body), repeated)
        if body.get("stream"):
            frames = _stream(call, model, asked, conversation, head)
            items = Items(model, body)

            def failed(error: ApiError) -> bytes:
                wrong = error.openai()["error"]
                items._number = frames_so_far[0]
                return items.event(
                    "response.failed",
                    response={
                        **head,
                        "status": "failed",
                        "error": {"code": "server_error", "message": wrong["message"]},
                    },
                )

            frames_so_far = [0]

            async def counted() -> AsyncIterator[bytes]:
                async for frame in frames:
                    frames_so_far[0] += frame.count(b"\n\n")
                    yield frame

            return await sse.EventStream(call, counted(), failed=failed).begin()

        async def whole() -> dict[str, Any]:
            turn, replies, usage = await run(call, model, asked)
            reply, items = replies[0], Items(model, body)
            items.take(reply)
            made = _finished(head, items.done, reply, usage)
            _store(call, made, body["input"], conversation, reply)
            return made

        return json_response(await call.race(whole()))


async def _stream(
    call: Call, model: Model, asked: ChatRequest, conversation: list[dict], head: dict[str, Any]
) -> AsyncIterator[bytes]:
    """The events of a response."""
    body, items = call.body, Items(model, call.body)
    begun = False
    last: Any = None  # the reply, which every stream has
    rest: Sequence[Any] = ()
    async for came in events(call, model, asked):
        frames: list[bytes] = []
        for _, reply, event, added in came:
            if not begun:
                begun = True
                frames += [
                    items.event("response.created", response=head),
                    items.event("response.in_progress", response=head),
                ]
            for kind, value in added:
                frames += items.add(kind, value, event.logprobs)
            if event.kind == "end":
                rest = event.logprobs
            last = reply
        if frames:
            yield b"".join(frames)
    frames = []
    if not last.reasoning and not last.calls and not last.content:
        frames += items.add("content", "", rest)
    else:
        items.rest(rest)
    frames += items.finish("incomplete" if last.finish_reason == "length" else "completed")
    made = _finished(head, items.done, last, usage_of([last.completion]))
    _store(call, made, body["input"], conversation, last)
    frames.append(items.event(f"response.{made['status']}", response=made))
    yield b"".join(frames)


def _stored(call: Call) -> StoredResponse:
    found = call.state.responses.get(call.params["response_id"])
    if found is None:
        raise ApiError(
            404,
            f"response {call.params['response_id'][:80]!r}: is not stored here",
            param="response_id",
            code="response_not_found",
        )
    return found


async def retrieve(call: Call) -> Response:
    """GET /v1/responses/{response_id}"""
    found, query = _stored(call).response, call.request.query_params
    for name, why in _NOT_RETRIEVED.items():
        if query.get(name, "false") != "false":
            raise unsupported(name, why)
    return json_response(found)


async def delete(call: Call) -> Response:
    """DELETE /v1/responses/{response_id}"""
    _stored(call)
    name = call.params["response_id"]
    call.state.responses.remove(name)
    return json_response({"id": name, "object": "response", "deleted": True})


async def input_items(call: Call) -> Response:
    """GET /v1/responses/{response_id}/input_items"""
    items, query = _stored(call).items, call.request.query_params
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        raise bad("order", order, "asc or desc")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= MOST_ITEMS:
        raise bad("limit", limit, f"1 to {MOST_ITEMS}")
    data = []
    for at, item in enumerate(items):
        made = {"type": "message", "id": f"msg_{at:08x}", "status": "completed", **item}
        if made["type"] == "message" and isinstance(made.get("content"), str):
            made["content"] = [{"type": "input_text", "text": made["content"]}]
        data.append(made)
    if order == "desc":
        data.reverse()
    if after is not None:
        ids = [each["id"] for each in data]
        if after not in ids:
            raise bad("after", after, "the id of an item")
        data = data[ids.index(after) + 1 :]
    page = data[: int(limit)]
    return json_response(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(page) < len(data),
        }
    )


async def input_tokens(call: Call) -> Response:
    """POST /v1/responses/input_tokens"""
    body = _resolved(call)
    async with call.state.models.use(body.get("model")) as model:

        def count() -> int:
            return len(prepare(model, _read(call, model, body)[0]).prompt)

        try:
            tokens = await call.race(call.offload(count))
        except OxillamaError as error:
            raise from_engine(error, param="input") from error
        return json_response({"object": "response.input_tokens", "input_tokens": tokens})


async def cancel(call: Call) -> Response:
    """POST /v1/responses/{response_id}/cancel"""
    _stored(call)
    raise ApiError(
        400,
        "response_id: found a response that ran in the foreground, wanted one of background: true, "
        "of which there are none",
        param="response_id",
        code="response_not_cancellable",
    )
