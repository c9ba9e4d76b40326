"""`/v1/chat/completions`, and what all chats share: from checked messages and options
(`ChatRequest`) to a prepared turn, and to its replies (`run`, `events`).
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.responses import Response

from oxillama.chat import Turn
from oxillama.completion import Completion
from oxillama.errors import ConfigError, GrammarError, TemplateError
from oxillama.media.messages import MEDIA_TYPES, MediaPart, split_media, text_of
from oxillama.server import adapters, budget, sse
from oxillama.server import options as table
from oxillama.server.calls import Call, json_response
from oxillama.server.errors import ApiError, from_engine, missing, unsupported
from oxillama.server.fields import (
    EXCEPTIONS,
    FINGERPRINT,
    MOST_COMPLETIONS,
    RESPONSE_FORMAT,
    SESSION,
    STREAM_OPTIONS,
    TEMPLATE,
    VERBOSITY,
    VLLM_DEFAULTS,
    VLLM_TOKENS,
    check_stream_options,
    constrain,
    options_of,
    streamed_usage,
    too_long,
    top_logprobs_of,
    variables_of,
    want_tokens,
)
from oxillama.server.ids import new_id
from oxillama.server.logprobs import chat_entries, prompt_entries
from oxillama.server.models import ServedModel
from oxillama.server.prompts import has_late_instructions
from oxillama.server.replies import CollectedReply, message_of, reply_of, usage_json
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
from oxillama.server.sessions import NamedSession, copy_on_error, truncate_to_common_prefix
from oxillama.server.tools import TOOL_CHOICE, TOOLS, allowed_tools, tools_of
from oxillama.server.work import Job, timings_json, usage_of, usage_so_far
from oxillama.tokenizer import TemplateText, TokenizerBridge
from oxillama.toolcalls.events import call_id
from oxillama.toolcalls.formats import HARMONY

# ---- the body

# where a prompt may be cut to be found again
_CACHED = {"cache_control": OBJECT, "prompt_cache_breakpoint": OBJECT}
_TEXT_PART = obj({"type": enum("text"), "text": STRING, **_CACHED}, ("type", "text"))
_IMAGE_PART = obj(
    {
        "type": enum("image_url"),
        "image_url": one_of(STRING, obj({"url": STRING, "detail": STRING}, ("url",))),
        **_CACHED,
    },
    ("type", "image_url"),
)
_AUDIO_PARTS = (
    obj(
        {
            "type": enum("input_audio"),
            "input_audio": obj({"data": STRING, "format": STRING}, ("data", "format")),
            **_CACHED,
        },
        ("type", "input_audio"),
    ),
    obj(
        {
            "type": enum("audio_url"),
            "audio_url": one_of(STRING, obj({"url": STRING}, ("url",))),
            **_CACHED,
        },
        ("type", "audio_url"),
    ),
)
_REFUSAL_PART = obj({"type": enum("refusal"), "refusal": STRING}, ("type", "refusal"))
_CONTENT = one_of(
    STRING, array(one_of(_TEXT_PART, _IMAGE_PART, *_AUDIO_PARTS, _REFUSAL_PART), 1, 1024)
)
_NULL = {"type": "null"}
_CALL = obj(
    {
        "id": NAME,
        "type": enum("function"),
        "index": integer(0),
        "function": obj({"name": NAME, "arguments": STRING}, ("name", "arguments")),
    },
    ("id", "function"),
)
MESSAGE = one_of(
    obj(
        {"role": enum("system", "developer", "user"), "content": _CONTENT, "name": NAME},
        ("role", "content"),
    ),
    obj(
        {
            "role": enum("assistant"),
            "content": one_of(_CONTENT, _NULL),
            "name": NAME,
            "reasoning_content": STRING,
            "reasoning": STRING,
            "refusal": STRING,
            "tool_calls": array(_CALL, 0, 128),
            "annotations": array(None, 0, 0),
            "audio": _NULL,
            "function_call": _NULL,
        },
        ("role",),
    ),
    obj(
        {"role": enum("tool"), "content": _CONTENT, "tool_call_id": NAME, "name": NAME},
        ("role", "content", "tool_call_id"),
    ),
)
MESSAGES = array(MESSAGE, 1, 4096)
_LATE = (
    "; a server with --late-instructions user writes instructions in the midst of a conversation "
    "as the user's"
)
_MESSAGE = re.compile(r"messages\[(\d+)\]")

BODY: Schema = obj(
    {
        **table.properties("stop_sequences"),
        **VLLM_DEFAULTS,
        **VLLM_TOKENS,
        **EXCEPTIONS,
        **TEMPLATE,
        "model": NAME,
        "messages": MESSAGES,
        "max_tokens": integer(1),
        "max_completion_tokens": integer(1),
        "n": integer(1, MOST_COMPLETIONS),
        "stream": BOOLEAN,
        "stream_options": STREAM_OPTIONS,
        "logprobs": BOOLEAN,
        "top_logprobs": integer(0, 20),
        "tools": TOOLS,
        "tool_choice": TOOL_CHOICE,
        "parallel_tool_calls": BOOLEAN,
        "response_format": RESPONSE_FORMAT,
        "modalities": array(enum("text"), 1, 1),
        "verbosity": VERBOSITY,
        # a text to be quicker by, which changes nothing of the answer
        "prediction": obj(
            {
                "type": enum("content"),
                "content": one_of(STRING, array(_TEXT_PART, 1, 1024)),
            },
            ("type", "content"),
        ),
        "service_tier": enum("auto", "default"),
        "reasoning_format": enum("none", "auto", "deepseek"),
        "timings_per_token": BOOLEAN,
        "session": SESSION,
        "lora": adapters.LORA,
    },
    ("messages",),
)


# ---- from a body to a turn


@dataclass(slots=True)
class ChatRequest:
    """A chat in the common form of all APIs: messages, tools and choice as in OpenAI's, options of
    `submit`.
    """

    messages: list[dict[str, Any]]
    options: dict[str, Any]
    stops: tuple[str, ...] = ()
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel: bool = True
    variables: dict[str, Any] = field(default_factory=dict)
    prefill: str = ""
    session: str | None = None
    constraint: str | None = None  # the field that a constraint came in
    prompt: str = "messages"  # the field that the prompt came in
    budget: int | None = None  # tokens of reasoning at most
    unparsed: bool = False  # whether reasoning stays in the content
    places: list[str] = field(default_factory=list)  # the messages' names in errors


def prepare(model: ServedModel, asked: ChatRequest) -> Turn:
    """The turn, planned; off the event loop."""
    builder = model.chat()
    texts = [text_of(each.get("content")) for each in asked.messages]
    size = sum(map(len, texts))
    if size and not asked.options.get("truncate_prompt"):
        longest = max(texts, key=len)
        if model.too_long(longest):
            raise too_long(model, asked.prompt, len(longest))
    tools, choice = asked.tools, asked.tool_choice
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        tools, choice = allowed_tools(tools, choice["allowed_tools"])
    messages, media = split_media(asked.messages)

    def render(messages: Sequence[Any]) -> TemplateText:
        try:
            return builder.render(
                messages, tools=asked.tools, variables=asked.variables, prefill=asked.prefill
            )
        except (ConfigError, TemplateError) as error:
            late = builder.late_instructions == "refuse" and has_late_instructions(messages)
            raise _of_message(error, asked, help=_LATE if late else "") from error

    prompt: list[int] | None = None
    if not media:
        rendered = render(messages)
    else:
        for part in media:
            if builder.media is None or part.kind not in builder.media.kinds:
                raise without_encoder(part)
        assert builder.media is not None
        rendered, places = builder.media.render(messages, media, render)
        prompt = builder.media.prompt(rendered, places, media)
    try:
        turn = builder.turn(
            rendered,
            tools=tools,
            tool_choice=choice,
            # a tool that is named is called once
            parallel_tool_calls=asked.parallel and not isinstance(choice, Mapping),
            options=asked.options,
            prompt=prompt,
        )
    except Exception as error:
        raise _of_plan(error, asked) from error
    if asked.budget is not None:
        budget.hold(turn, builder.bridge, asked.budget)
    return _unparsed(turn) if asked.unparsed else turn


def _of_message(error: ConfigError | TemplateError, asked: ChatRequest, help: str) -> Exception:
    """An error of the template; if it is one of a message, under its name in the body. help: what
    may be done.
    """
    found, said = _MESSAGE.match(str(error)), f"{error}{help}"
    if asked.tools and said.startswith("tool "):
        return ApiError(400, said, param="tools", code="invalid_schema")
    if found is None or not asked.places:
        return type(error)(said)
    place = asked.places[int(found[1])]
    return ApiError(400, place + said[found.end() :], param=place)


def _unparsed(turn: Turn) -> Turn:
    """The turn with reasoning left in the content, where the same text is read as an answer."""
    plan = turn.plan
    if plan.format is not None and (plan.reasoning is not None or plan.format is HARMONY):
        raise unsupported(
            "reasoning_format",
            "'none' is not possible with tools, or with a model that reasons on a channel, wanted "
            "'auto'",
        )
    return replace(turn, plan=replace(plan, reasoning=None, reasoning_opened=False))


def submit(
    model: ServedModel, asked: ChatRequest, state: Any
) -> tuple[Turn, NamedSession | None, Any]:
    """(the turn, its named session, what the engine made of it): a request, or the siblings of
    several.
    """
    turn, named = prepare(model, asked), None
    if asked.session is not None:
        with state.sessions.held(asked.session, model, lora=asked.options.get("lora")) as named:
            with copy_on_error(named.session, partial(setattr, named, "session")):
                ids = truncate_to_common_prefix(named.session, turn.prompt)
                made = model.engine.submit(ids, session=named.session, **turn.options)
            named.changed, named.messages = True, asked.messages
    else:
        made = model.engine.submit(turn.prompt, **turn.options)
    each: Any
    for each in getattr(made, "requests", (made,)):
        each.read, each.events = turn.read, turn.events
    return turn, named, made


def _of_plan(error: Exception, asked: ChatRequest) -> Exception:
    """An error of planning, under the name of the body's field."""
    if isinstance(error, (GrammarError, ConfigError)):
        message, param = str(error), asked.constraint
        if asked.tools and (message.startswith("tool") or asked.constraint is None):
            param = "tool_choice" if message.startswith("tool_choice") else "tools"
        elif param is None:
            param = from_engine(error).param
        return ApiError(400, message, param=param, code="invalid_schema")
    return error


def messages_of(given: Sequence[Mapping[str, Any]]) -> list[dict]:
    """Messages in the form of a template: contents as text, ids of calls by their order. In
    messages of other APIs, `at` names the original field, and `id_at` that of a result's call.
    """
    ids: dict[str, str] = {}
    calls = 0  # an id may come again: some clients number the calls of each message
    out = []
    for at, message in enumerate(given):
        where = message.get("at") or f"messages[{at}]"
        made: dict[str, Any] = {
            "role": message["role"],
            "content": _content(message.get("content"), f"{where}.content"),
        }
        if message.get("refusal"):
            if made["content"]:
                raise unsupported(
                    f"{where}.refusal", "found together with content, wanted one of them"
                )
            made["content"] = message["refusal"]
        if message.get("name"):
            made["name"] = message["name"]
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if message.get("reasoning") not in (None, "", reasoning):
            raise unsupported(
                f"{where}.reasoning",
                "found another text than in reasoning_content, wanted the same",
            )
        if reasoning:
            made["reasoning_content"] = reasoning
        if message.get("tool_calls"):
            made["tool_calls"] = []
            for each in message["tool_calls"]:
                ids[each["id"]] = call_id(calls)
                calls += 1
                made["tool_calls"].append(
                    {
                        "id": ids[each["id"]],
                        "type": "function",
                        "function": dict(each["function"]),
                    }
                )
        if message["role"] == "tool":
            found = message["tool_call_id"]
            if found not in ids:
                where = message.get("id_at") or f"{where}.tool_call_id"
                raise ApiError(
                    400, f"{where}: found {found!r}, wanted the id of a call before it", param=where
                )
            made["tool_call_id"] = ids[found]
        if made["role"] == "assistant" and made["content"] is None and "tool_calls" not in made:
            raise missing(
                f"{where}.content", "is required of an assistant's message without tool_calls"
            )
        out.append(made)
    return out


def places_of(given: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of messages of another API in its errors."""
    return [message["at"] for message in given]


def _content(content: Any, path: str) -> str | list[dict[str, Any]] | None:
    """A content as one text, or, if it has images or audio, as parts."""
    if content is None or isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for at, part in enumerate(content):
        if part["type"] in MEDIA_TYPES:
            parts.append({"at": f"{path}[{at}]", **part})
        else:
            parts.append({"type": "text", "text": part.get("text") or part.get("refusal") or ""})
    if any(part["type"] in MEDIA_TYPES for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def conversation_of(body: Mapping[str, Any]) -> tuple[list[dict], str]:
    """(the messages of a body, the text of the last one if the reply is to continue it)."""
    messages = messages_of(body["messages"])
    if not body.get("continue_final_message"):
        return messages, ""
    if body.get("add_generation_prompt"):
        raise ApiError(
            400,
            "continue_final_message: found together with add_generation_prompt: true, wanted one "
            "of them",
            param="continue_final_message",
        )
    if messages[-1]["role"] != "assistant" or "tool_calls" in messages[-1]:
        raise ApiError(
            400,
            "continue_final_message: the last message is not an assistant's text",
            param="continue_final_message",
        )
    return messages, prefill_of(messages, f"messages[{len(messages) - 1}]")


def prefill_of(messages: list[dict[str, Any]], where: str) -> str:
    """The text of the last message, which begins the reply and is taken out of the messages;
    where: its name in errors.
    """
    last = messages.pop()
    thought = bool(last.get("reasoning_content"))
    if thought or isinstance(last["content"], list):
        raise ApiError(
            400,
            f"{where}: found {'reasoning' if thought else 'an image or audio'} in the message that "
            "begins the reply, wanted text alone",
            param=where,
        )
    text: str = last["content"] or ""
    return text


def image_part(url: str, at: str) -> dict[str, Any]:
    """An image of another API in the form of chat completions; at: its name in errors."""
    return {"type": "image_url", "image_url": {"url": url}, "at": at}


def without_encoder(part: MediaPart) -> ApiError:
    """The error for an image or a clip if the model has no encoder of its kind."""
    what, code = (
        ("sees no images", "images_not_supported")
        if part.kind == "image"
        else ("hears no audio", "audio_not_supported")
    )
    return ApiError(
        400,
        f"{part.name}: this model {what}: no mmproj with such an encoder is loaded",
        param=part.name,
        code=code,
    )


def read(model: ServedModel, body: Mapping[str, Any]) -> ChatRequest:
    """The request of a chat completion's body."""
    asked = options_of(model, body)
    constrain(asked, body.get("response_format"), path="response_format")
    most = [name for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
    if len(most) > 1 and body["max_tokens"] != body["max_completion_tokens"]:
        raise ApiError(
            400,
            "max_tokens: found together with max_completion_tokens, wanted one of them",
            param="max_tokens",
        )
    if most:
        asked.options["max_tokens"] = int(body[most[0]])
    top = top_logprobs_of(body)
    if top is not None:
        asked.options["logprobs"] = top
    want_tokens(body, asked)
    if body.get("n"):
        asked.options["n"] = int(body["n"])
    messages, prefill = conversation_of(body)
    if body.get("add_generation_prompt") is False and not body.get("continue_final_message"):
        raise unsupported(
            "add_generation_prompt",
            "found false without continue_final_message: true, wanted both",
        )
    session = body.get("session")
    if session is not None and asked.options.get("n", 1) > 1:
        raise ApiError(400, "n: found more than 1 in a session, wanted 1", param="n")
    parallel = body.get("parallel_tool_calls")
    return ChatRequest(
        messages,
        asked.options,
        asked.stops,
        tools_of(body),
        body.get("tool_choice"),
        True if parallel is None else parallel,
        variables_of(model, body),
        prefill,
        session,
        asked.constraint,
        unparsed=body.get("reasoning_format") == "none",
    )


# ---- from a turn to its replies


def _job(call: Call, model: ServedModel, asked: ChatRequest) -> Job:
    return Job(call, model, param=asked.prompt, params=table.shown(asked.options, asked.stops))


async def _begin(job: Job, asked: ChatRequest) -> tuple[Turn, NamedSession | None]:
    """The turn of a chat, which the job has begun to generate, and its named session."""
    turns: list[tuple[Turn, NamedSession | None]] = []

    def make() -> Any:
        turn, named, made = submit(job.model, asked, job.state)
        turns.append((turn, named))
        return made

    await job.begin(make)
    return turns[0]


async def run(
    call: Call, model: ServedModel, asked: ChatRequest
) -> tuple[Turn, list[CollectedReply], dict[str, int]]:
    """(the turn, its replies, its tokens), all finished."""
    async with _job(call, model, asked) as job:
        turn, named = await _begin(job, asked)
        done = await job.results()
        replies = await call.offload(
            lambda: [reply_of(turn, request, each) for request, each in zip(job.requests, done)]
        )
        _remember(named, asked, replies)
        return turn, replies, usage_of(done)


async def events(
    call: Call, model: ServedModel, asked: ChatRequest
) -> AsyncIterator[Iterator[tuple[int, CollectedReply, Any, list[tuple[str, Any]]]]]:
    """(number, reply so far, event, what it adds) of every completion as they arrive; usage is that
    of the replies' completions.
    """
    async with _job(call, model, asked) as job:
        turn, named = await _begin(job, asked)
        readers = [turn.events() for _ in job.requests]
        replies = [CollectedReply(turn, request) for request in job.requests]
        async for came in job.pieces(readers):
            # each is taken when it is looked at: a reply is as it was then
            yield (
                (index, replies[index], event, replies[index].take(event))
                for index, event in came
                if not isinstance(event, Completion)
            )
        _remember(named, asked, replies)


def _remember(
    named: NamedSession | None, asked: ChatRequest, replies: Sequence[CollectedReply]
) -> None:
    """Store the conversation of a named session for a client that returns after a restart."""
    if named is not None:
        named.messages = [*asked.messages, message_of(replies[0], reasoning=True)]
        named.changed = True  # a save may have come between the last token and this


# ---- chat completions


async def chat_completions(call: Call) -> Response:
    """POST /v1/chat/completions"""
    body = call.body
    async with call.model(body.get("model")) as model:
        asked = await call.offload(read, model, body)
        check_stream_options(body)
        if body.get("stream"):
            stream = _stream(call, model, asked, body)
            return await sse.EventStream(call, stream, failed=sse.openai_error).begin()
        return json_response(await call.race(_whole(call, model, asked, body)))


async def _whole(
    call: Call, model: ServedModel, asked: ChatRequest, body: Mapping[str, Any]
) -> dict:
    _, replies, usage = await run(call, model, asked)
    bridge, top = model.tokenizer(), top_logprobs_of(body)
    more: dict[str, Any] = {}
    if body.get("timings_per_token"):
        more["timings"] = timings_json([reply.request for reply in replies], usage)
    first = replies[0]
    if body.get("return_token_ids"):
        more["prompt_token_ids"] = first.request.prompt_ids
    if body.get("prompt_logprobs") is not None:
        of_prompt = (first.request.prompt_ids, first.completion, bridge)
        most = int(body["prompt_logprobs"])
        more["prompt_logprobs"] = await call.offload(prompt_entries, *of_prompt, most)
    return {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": adapters.served_as(model, body),
        "system_fingerprint": FINGERPRINT,
        "choices": [
            {
                "index": index,
                "message": message_of(reply),
                "logprobs": None if top is None else _logprobs(reply.logprobs, bridge, top),
                "finish_reason": reply.finish_reason,
                **(
                    {"token_ids": list(reply.completion.tokens)}
                    if body.get("return_token_ids")
                    else {}
                ),
            }
            for index, reply in enumerate(replies)
        ],
        "usage": usage_json(usage, sum(each.reasoning_tokens for each in replies)),
        **more,
    }


def _logprobs(found: Sequence[Any], bridge: TokenizerBridge, top: int) -> dict[str, Any]:
    """The `logprobs` of a choice or a chunk."""
    return {"content": chat_entries(found, bridge, top), "refusal": None}


async def _stream(
    call: Call, model: ServedModel, asked: ChatRequest, body: Mapping[str, Any]
) -> AsyncIterator[bytes]:
    """The chunks of a chat completion."""
    bridge = model.tokenizer()
    head = {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": adapters.served_as(model, body),
        "system_fingerprint": FINGERPRINT,
    }
    wants_usage, continuous = streamed_usage(body)
    top, timed = top_logprobs_of(body), bool(body.get("timings_per_token"))
    generated: Counter[int] = Counter()  # tokens of each completion so far
    # its tokens that no chunk has had yet, where their ids are asked for
    owed: defaultdict[int, list[int]] = defaultdict(list)
    wants_ids = bool(body.get("return_token_ids"))

    def chunk(
        index: int, delta: dict, reason: str | None = None, logprobs: Any = None, **more: Any
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        made = {**head, **more, "choices": [choice]}
        if wants_ids:
            choice["token_ids"] = owed.pop(index, [])
        if wants_usage:
            made["usage"] = None
        if timed or continuous:
            request = replies[index].request
            so_far = usage_so_far(request, generated[index])
            if timed:
                made["timings"] = timings_json([request], so_far)
            if continuous:
                made["usage"] = usage_json(so_far, replies[index].reasoning_tokens)
        return sse.data(made)

    begun: set[int] = set()
    replies: dict[int, CollectedReply] = {}
    plain = not (timed or continuous or wants_ids)
    text = sse.TextFrames(head, '"delta":{"content":%s}', usage=wants_usage)
    async for came in events(call, model, asked):
        frames: list[bytes] = []
        for index, reply, event, added in came:
            generated[index] += len(event.tokens)
            if index not in begun:
                begun.add(index)
                replies[index] = reply
                more = {"prompt_token_ids": reply.request.prompt_ids} if wants_ids else {}
                frames.append(chunk(index, {"role": "assistant", "content": ""}, **more))
            if wants_ids:
                owed[index] += event.tokens
            entries = None
            if top is not None and event.logprobs and event.kind in ("content", "malformed"):
                entries = _logprobs(event.logprobs, bridge, top)
            for kind, value in added:
                if kind == "content" and entries is None and plain:
                    frames.append(text.frames(index, (value,)))
                    continue
                frames.append(chunk(index, _delta(kind, value), None, entries))
                entries = None
            if event.kind == "end":
                if top is not None and event.logprobs and not reply.calls:
                    entries = _logprobs(event.logprobs, bridge, top)
                frames.append(chunk(index, {}, reply.finish_reason, entries))
        if frames:
            yield b"".join(frames)
    if wants_usage:
        done = [replies[index].completion for index in sorted(replies)]
        spent = sum(each.reasoning_tokens for each in replies.values())
        yield sse.data({**head, "choices": [], "usage": usage_json(usage_of(done), spent)})
    yield sse.DONE


def _delta(kind: str, value: Any) -> dict[str, Any]:
    """The delta of a chunk."""
    if kind == "content":
        return {"content": value}
    if kind == "reasoning":
        return {"reasoning_content": value}
    if kind == "call":
        return {
            "tool_calls": [
                {
                    "index": int(value["number"]),
                    "id": value["id"],
                    "type": "function",
                    "function": {"name": value["name"], "arguments": ""},
                }
            ]
        }
    call, text = value
    return {"tool_calls": [{"index": int(call["number"]), "function": {"arguments": text}}]}
