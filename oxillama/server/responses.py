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
    ChatRequest,
    events,
    image_part,
    messages_of,
    places_of,
    prepare,
    run,
)
from oxillama.server.errors import ApiError, bad, from_engine, unsupported
from oxillama.server.fields import (
    EXCEPTIONS,
    FORMAT_NAME,
    NOT_OBFUSCATED,
    SESSION,
    VERBOSITY,
    check_stream_options,
    constrain,
    options_of,
    variables_of,
)
from oxillama.server.ids import new_id
from oxillama.server.models import ServedModel
from oxillama.server.replies import CollectedReply, message_of
from oxillama.server.response_items import (
    LOGPROBS,
    PACKED,
    Items,
    functions_of,
    qualified,
    top_logprobs_of,
)
from oxillama.server.schema import (
    BOOLEAN,
    FALSE,
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
from oxillama.server.tools import TOOL_NAME, tools_of
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
_FUNCTION = obj(
    {
        "type": enum("function"),
        "name": TOOL_NAME,
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
            "name": TOOL_NAME,
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
            "name": FORMAT_NAME,
            "description": STRING,
            "schema": OBJECT,
            "strict": BOOLEAN,
        },
        ("type", "name", "schema"),
    ),
)

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
                "effort": enum("none", "minimal", "low", "medium", "high", "xhigh", "max"),
                # the best summary that the model has, which is none: reasoning is given itself
                "summary": enum("auto"),
            }
        ),
        "previous_response_id": NAME,
        "stream": BOOLEAN,
        "stream_options": obj({"include_obfuscation": NOT_OBFUSCATED}),
        "include": array(enum(LOGPROBS, PACKED), 0, 16),
        "top_logprobs": integer(0, 20),
        "truncation": enum("disabled"),
        "background": FALSE,
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
                    "name": qualified(item.get("namespace"), item["name"]),
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
    call: Call, model: ServedModel, body: Mapping[str, Any]
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


def _options(model: ServedModel, body: Mapping[str, Any]) -> table.RequestOptions:
    """The options of a body."""
    asked = options_of(model, body)
    constrain(asked, (body.get("text") or {}).get("format"), path="text.format")
    if body.get("max_output_tokens"):
        asked.options["max_tokens"] = int(body["max_output_tokens"])
    top = top_logprobs_of(body)
    if top is not None:
        asked.options["logprobs"] = top
    elif body.get("top_logprobs") is not None:
        raise ApiError(
            400,
            f"top_logprobs: found without include: [{LOGPROBS!r}], wanted both",
            param="top_logprobs",
        )
    check_stream_options(body)
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
    model: ServedModel, body: Mapping[str, Any]
) -> tuple[list[dict[str, Any]] | None, Any, dict[str, Any]]:
    """(tools, the choice among them, the template's variables), as in chat completions."""
    functions = functions_of(body.get("tools") or ()).values()
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
    head: Mapping[str, Any], items: Sequence[dict], reply: CollectedReply, usage: Mapping[str, int]
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
    call: Call, made: dict[str, Any], given: Any, conversation: list[dict], reply: CollectedReply
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
    async with call.model(body.get("model")) as model:
        asked, conversation, repeated = await call.offload(_read, call, model, body)
        head = _head(adapters.served_as(model, body), repeated)
        if body.get("stream"):
            items = Items(model, body)

            def failed(error: ApiError) -> bytes:
                wrong = {"code": "server_error", "message": error.message}
                response = {**head, "status": "failed", "error": wrong}
                return items.event("response.failed", response=response)

            frames = _stream(call, model, asked, conversation, head, items)
            return await sse.EventStream(call, frames, failed=failed).begin()

        async def whole() -> dict[str, Any]:
            turn, replies, usage = await run(call, model, asked)
            reply, items = replies[0], Items(model, body)
            items.take(reply)
            made = _finished(head, items.done, reply, usage)
            _store(call, made, body["input"], conversation, reply)
            return made

        return json_response(await call.race(whole()))


async def _stream(
    call: Call,
    model: ServedModel,
    asked: ChatRequest,
    conversation: list[dict],
    head: dict[str, Any],
    items: Items,
) -> AsyncIterator[bytes]:
    """The events of a response."""
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
    _store(call, made, call.body["input"], conversation, last)
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


_PREFIXES = {"function_call": "fc_", "function_call_output": "fc_", "reasoning": "rs_"}


def _listed(item: Mapping[str, Any], at: int) -> dict[str, Any]:
    """An item of a request as a list of items has it, with what it may leave out."""
    kind = item.get("type") or "message"
    said = {name: value for name, value in item.items() if value is not None}
    given = {"id": f"{_PREFIXES.get(kind, 'msg_')}{at:08x}", "status": "completed", "type": kind}
    made: dict[str, Any] = {**given, **said}
    if kind == "message" and isinstance(made["content"], str):
        part: dict[str, Any] = {"type": "input_text", "text": made["content"]}
        if made["role"] == "assistant":
            part.update(type="output_text", annotations=[])
        made["content"] = [part]
    return made


async def input_items(call: Call) -> Response:
    """GET /v1/responses/{response_id}/input_items"""
    items, query = _stored(call).items, call.request.query_params
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        raise bad("order", order, "asc or desc")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= MOST_ITEMS:
        raise bad("limit", limit, f"1 to {MOST_ITEMS}")
    data = [_listed(item, at) for at, item in enumerate(items)]
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
    async with call.model(body.get("model")) as model:

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
