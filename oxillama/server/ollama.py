"""Ollama's routes that generate, for the desktop clients that speak nothing else: lines of JSON,
streamed unless asked otherwise; and its vectors.

`keep_alive` of 0 unloads the model when it is idle; other durations are taken and change nothing,
since models leave by least recent use.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from oxillama.completion import Completion
from oxillama.server import options as table
from oxillama.server import sse
from oxillama.server.calls import Call, dumps, json_response
from oxillama.server.chat import (
    ChatRequest,
    events,
    image_part,
    messages_of,
    places_of,
    prefill_of,
    run,
)
from oxillama.server.embeddings import vectors
from oxillama.server.errors import ApiError, bad, unsupported
from oxillama.server.fields import (
    TOKENS,
    constrain,
    encoded,
    options_of,
    top_logprobs_of,
)
from oxillama.server.infill import infill_ids
from oxillama.server.logprobs import chat_entries
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
    number,
    obj,
    one_of,
)
from oxillama.server.tools import TOOL_CHOICE, tools_of
from oxillama.server.work import Job, reason_of, usage_of

_CALL = obj(
    {
        "id": NAME,
        "type": enum("function"),
        "index": integer(0),
        "function": obj(
            {
                "name": NAME,
                "arguments": one_of(OBJECT, STRING),
                "index": integer(0),
                "description": STRING,
            },
            ("name", "arguments"),
        ),
    },
    ("function",),
)
_IMAGES = array(STRING, 0, 64)
# seconds, or a duration as Go writes it; below 0 is for ever
_DURATION = re.compile(r"[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h))+)")
_KEEP_ALIVE = one_of(STRING, number(-1e9, 1e9))
_MESSAGE = obj(
    {
        "role": enum("system", "user", "assistant", "tool"),
        "content": STRING,
        "thinking": STRING,
        "images": _IMAGES,
        "tool_calls": array(_CALL, 0, 128),
        "tool_name": NAME,
        "name": NAME,
        "tool_call_id": NAME,
    },
    ("role",),
)
# the only role whose messages may say more with a field than that it is empty
_OF_ROLE = {
    "thinking": "assistant",
    "tool_calls": "assistant",
    "tool_name": "tool",
    "tool_call_id": "tool",
}
_TOOL = obj(
    {
        "type": enum("function"),
        "function": obj(
            {"name": NAME, "description": STRING, "parameters": OBJECT, "strict": BOOLEAN},
            ("name",),
        ),
    },
    ("function",),
)
# of how a model is loaded, which is the server's to say: what it does anyway, or Ollama's default
_LOADING: dict[str, Schema] = {
    "num_ctx": integer(1),
    "num_batch": integer(512, 512),
    "num_gpu": integer(-1, 0),
    "main_gpu": integer(0, 0),
    "num_thread": integer(0, 0),
    "low_vram": FALSE,
    "numa": FALSE,
    "use_mmap": TRUE,
    "use_mlock": FALSE,
    "vocab_only": FALSE,
    # older ones, which its client in Python still has
    "f16_kv": TRUE,
    "logits_all": FALSE,
    "embedding_only": FALSE,
}
_OPTIONS = obj(
    {
        **table.properties("stop_sequences"),
        **_LOADING,
        "num_predict": integer(-2),
        "num_keep": integer(-1),
        "penalize_newline": TRUE,
        "tfs_z": number(1, 1),  # off
    }
)
# clients write all options that they know, those that say nothing as null
_EMBED_OPTIONS = obj({**dict.fromkeys(_OPTIONS["properties"], {"type": "null"}), **_LOADING})
_SHARED: dict[str, Any] = {
    "model": NAME,
    "format": one_of(enum("json", ""), OBJECT),
    "options": _OPTIONS,
    "stream": BOOLEAN,
    "keep_alive": _KEEP_ALIVE,
    "think": one_of(BOOLEAN, enum("low", "medium", "high", "max")),
    "logprobs": BOOLEAN,
    "top_logprobs": integer(0, 20),
    # messages are not left out, and contexts not shifted
    "truncate": FALSE,
    "shift": FALSE,
}
CHAT_BODY: Schema = obj(
    {
        **_SHARED,
        "messages": array(_MESSAGE, 0, 4096),
        "tools": array(_TOOL, 0, 128),
        # not Ollama's: some of its clients send what OpenAI's take
        "tool_choice": TOOL_CHOICE,
    },
    ("model",),
)
GENERATE_BODY: Schema = obj(
    {
        **_SHARED,
        "prompt": STRING,
        "suffix": STRING,
        "system": STRING,
        "template": STRING,
        "raw": BOOLEAN,
        "images": _IMAGES,
        "context": TOKENS,
    },
    ("model",),
)
EMBED_BODY: Schema = obj(
    {
        "model": NAME,
        "input": one_of(STRING, array(STRING, 1, 2048)),
        "truncate": BOOLEAN,
        "dimensions": integer(1),
        "keep_alive": _KEEP_ALIVE,
        "options": _EMBED_OPTIONS,
    },
    ("model", "input"),
)
EMBEDDINGS_BODY: Schema = obj(
    {
        "model": NAME,
        "prompt": STRING,
        "keep_alive": _KEEP_ALIVE,
        "options": _EMBED_OPTIONS,
    },
    ("model", "prompt"),
)
LINES = "application/x-ndjson"


def _now() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"


def line(value: Any) -> bytes:
    return dumps(value) + b"\n"


def _failed(error: ApiError) -> bytes:
    return line(error.ollama())


# ---- what is asked


def check_empty(body: Mapping[str, Any], names: tuple[str, ...], why: str) -> None:
    """A 400 for a field that says something; Ollama's client in Go sends all of them, empty."""
    for name in names:
        if body.get(name):
            raise unsupported(name, why)


def check_template(body: Mapping[str, Any]) -> None:
    check_empty(
        body,
        ("template",),
        "templates of a request are not evaluated, wanted none; `oxillama serve` has "
        "--chat-template",
    )


def _unloads(body: Mapping[str, Any]) -> bool:
    """Whether a model is to be kept for no time at all; a 400 for what is no time."""
    kept = body.get("keep_alive")
    if isinstance(kept, str) and not _DURATION.fullmatch(kept):
        raise bad("keep_alive", kept, "seconds, or a duration such as 5m")
    return kept == 0 or (isinstance(kept, str) and re.search("[1-9]", kept) is None)


def _read(model: ServedModel, body: Mapping[str, Any]) -> table.RequestOptions:
    """The options of a body."""
    _unloads(body)  # a wrong time is told before the work
    given = body.get("options") or {}
    asked = options_of(model, body, given, path="options.")
    most, context = given.get("num_predict"), given.get("num_ctx")
    if context is not None and context > model.engine.context_size:
        raise bad(
            "options.num_ctx", context, f"at most {model.engine.context_size}, which the server has"
        )
    if most is not None and most >= 0:
        asked.options["max_tokens"] = int(most)
    if (given.get("num_keep") or 0) > 0:
        raise unsupported("options.num_keep", "contexts are not shifted here, wanted 0")
    format = body.get("format")
    if format:
        schema = {"type": "object"} if format == "json" else format
        constrain(asked, {"type": "json_schema", "schema": schema}, path="format")
    top = top_logprobs_of(body)
    if top is not None:
        asked.options["logprobs"] = top
    return asked


def _variables(model: ServedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    think = body.get("think")
    if think is None:
        return {}
    found = model.chat().reasoning(think)
    if found is None:
        raise unsupported("think", "the model's chat template has no such setting")
    return found


def _with_images(text: str, given: Mapping[str, Any], where: str) -> Any:
    """A content of the images of a message or body, then its text; the text where it has none."""
    images = given.get("images") or ()
    parts = [
        image_part(
            each if each[:5].lower() == "data:" else f"data:;base64,{each}", f"{where}[{at}]"
        )
        for at, each in enumerate(images)
    ]
    return [*parts, {"type": "text", "text": text}] if parts else text


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Messages as chat completions write them; a tool's answer belongs to the oldest call without
    one.
    """
    out: list[dict[str, Any]] = []
    waiting = _Waiting()
    for at, message in enumerate(body["messages"]):
        for name, role in _OF_ROLE.items():
            if message.get(name) and message["role"] != role:
                raise unsupported(
                    f"messages[{at}].{name}",
                    f"found in a message of the role {message['role']}, wanted {role}",
                )
        made: dict[str, Any] = {
            "role": message["role"],
            "content": _with_images(
                message.get("content") or "", message, f"messages[{at}].images"
            ),
        }
        if message.get("thinking"):
            made["reasoning_content"] = message["thinking"]
        if message.get("tool_calls"):
            calls = [
                _call_of(call, f"{at}-{place}") for place, call in enumerate(message["tool_calls"])
            ]
            for call in calls:
                waiting.add(call["id"], call["function"]["name"])
            made["tool_calls"] = calls
        if message["role"] == "tool":
            named = message.get("tool_name") or message.get("name")
            answered = waiting.take(message.get("tool_call_id"), named)
            if answered is None:
                where = f"messages[{at}]"
                raise ApiError(400, f"{where}: answers no call before it", param=where)
            made["tool_call_id"], made["name"] = answered
        out.append(made)
    return out


def _call_of(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A call as chat completions write it; name: its id, where it has none."""
    arguments = given["function"]["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": given.get("id") or name,
        "type": "function",
        "function": {"name": given["function"]["name"], "arguments": arguments},
    }


class _Waiting:
    """Calls without an answer, by what an answer may say of its call: each is looked at once, of
    however many.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[str, str]] = []  # all of them: id, name
        self._answered: set[int] = set()
        self._by: dict[tuple[str | None, str | None], deque[int]] = defaultdict(deque)

    def add(self, id: str, name: str) -> None:
        """A call."""
        for key in ((None, None), (id, None), (None, name), (id, name)):
            self._by[key].append(len(self._calls))
        self._calls.append((id, name))

    def take(self, id: str | None, name: str | None) -> tuple[str, str] | None:
        """(id, name) of the oldest one that an answer may belong to, which it answers; None for
        none.
        """
        waiting = self._by.get((id, name), deque())
        while waiting:
            at = waiting.popleft()
            if at not in self._answered:
                self._answered.add(at)
                return self._calls[at]
        return None


def _tool(given: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as chat completions write it; of its parameters null is what was left out, as in a
    tool of Ollama's client in Go that has none.
    """
    function = dict(given["function"])
    if function.get("parameters"):
        found = function["parameters"].items()
        function["parameters"] = {name: value for name, value in found if value is not None}
    return {"type": "function", "function": function}


# ---- chat


async def chat(call: Call) -> Response:
    """POST /api/chat"""
    body, began = call.body, time.perf_counter_ns()
    async with call.model(body.get("model")) as model:
        loaded = time.perf_counter_ns()
        if not body.get("messages"):
            return await _only_load(call, model, body, {"message": _message("")}, "messages")

        def read() -> ChatRequest:
            asked = _read(model, body)
            choice = body.get("tool_choice")
            tools = list(map(_tool, body.get("tools") or ()))
            messages, prefill = messages_of(_messages(body)), ""
            # Ollama's templates leave the end of such a message open
            if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
                prefill = prefill_of(messages, f"messages[{len(messages) - 1}]")
            return ChatRequest(
                messages,
                asked.options,
                asked.stops,
                tools_of({"tools": tools, "tool_choice": choice}),
                choice,
                variables=_variables(model, body),
                prefill=prefill,
                constraint=asked.constraint,
            )

        asked = await call.offload(read)
        return await _chat(call, model, asked, _Answer(call, model, began, loaded), _in_message)


def _message(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _in_message(content: str = "", thinking: str = "", calls: list | None = None) -> dict:
    message = _message(content)
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def _in_response(content: str = "", thinking: str = "", calls: list | None = None) -> dict:
    return {"response": content, **({"thinking": thinking} if thinking else {})}


class _Answer:
    """The lines of one answer: what they have in common, and what the last one says."""

    def __init__(self, call: Call, model: ServedModel, began: int, loaded: int) -> None:
        """began, loaded: when the request came and when its model was there, in nanoseconds."""
        self._name, self._bridge = call.body["model"], model.tokenizer()
        self._top = top_logprobs_of(call.body)
        self._began, self._loaded = began, loaded

    def part(self, fields: Mapping[str, Any], logprobs: Sequence[Any] | None = None) -> bytes:
        """A line of a stream; logprobs: None for what has none, as reasoning."""
        return line({**self._head(fields), **self._logprobs(logprobs), "done": False})

    def last(
        self,
        fields: Mapping[str, Any],
        done: Completion,
        reason: str,
        request: Any,
        logprobs: Sequence[Any] | None = None,
    ) -> dict[str, Any]:
        """The last line, or the whole answer."""
        end = _end(done, reason, request, self._began, self._loaded)
        return {**self._head(fields), **end, **self._logprobs(logprobs)}

    def _head(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self._name, "created_at": _now(), **fields}

    def _logprobs(self, found: Sequence[Any] | None) -> dict[str, Any]:
        if self._top is None or found is None:
            return {}
        return {"logprobs": chat_entries(found, self._bridge, self._top)}


async def _chat(
    call: Call, model: ServedModel, asked: ChatRequest, answer: _Answer, shape: Callable[..., dict]
) -> Response:
    """A chat's reply; shape: its content, thinking and calls as fields of a line."""
    _unload_if_asked(call, model)
    if call.body.get("stream") is False:
        _, replies, _ = await call.race(run(call, model, asked))
        reply = replies[0]
        fields = shape(reply.text, reply.thought, _calls(reply))
        made = answer.last(
            fields, reply.completion, reply.finish_reason, reply.request, reply.logprobs
        )
        return json_response(made)

    async def lines() -> AsyncIterator[bytes]:
        sent = 0  # calls
        async for came in events(call, model, asked):
            out: list[bytes] = []
            for _, reply, event, added in came:
                for kind, value in added:
                    if kind == "content":
                        out.append(answer.part(shape(value), event.logprobs))
                    elif kind == "reasoning":
                        out.append(answer.part(shape("", value)))
                if event.kind in ("call_end", "end"):
                    calls = _calls(reply)[sent:]
                    sent += len(calls)
                    if calls:
                        out.append(answer.part(shape("", "", calls)))
                if event.kind == "end":
                    rest = event.logprobs if event.logprobs and not reply.calls else None
                    done, reason = reply.completion, reply.finish_reason
                    out.append(line(answer.last(shape(), done, reason, reply.request, rest)))
            if out:
                yield b"".join(out)

    return await _streamed(call, lines(), lambda: answer.part(shape()))


async def _streamed(
    call: Call, lines: AsyncIterator[bytes], empty: Callable[[], bytes]
) -> Response:
    """empty: a line without text. Clients take it as Ollama's own of that kind, but fail at lines
    that are blank.
    """
    stream = sse.EventStream(call, lines, failed=_failed, media_type=LINES, probe=empty)
    return await stream.begin()


def _calls(reply: CollectedReply) -> list[dict[str, Any]]:
    """The whole calls of a reply; arguments as an object."""
    return [
        {
            "id": each["id"],
            "function": {"index": int(each["number"]), "name": each["name"], "arguments": given},
        }
        for each, given in reply.usable_calls()
    ]


def _end(done: Completion, reason: str, request: Any, began: int, loaded: int) -> dict[str, Any]:
    """What the last line says: counts and durations in nanoseconds."""
    usage = usage_of([done])
    admitted = request.admitted_at or request.ended_at
    first = request.first_at or request.ended_at
    return {
        "done": True,
        "done_reason": "length" if reason == "length" else "stop",
        "total_duration": time.perf_counter_ns() - began,
        "load_duration": max(0, loaded - began) + _nanoseconds(request.submitted_at, admitted),
        "prompt_eval_count": usage["prompt"],
        "prompt_eval_duration": _nanoseconds(admitted, first),
        "eval_count": usage["generated"],
        "eval_duration": _nanoseconds(first, request.ended_at),
    }


def _nanoseconds(start: float, end: float) -> int:
    return max(0, int((end - start) * 1e9))


# what a reply is made from, or made into
_OF_A_REPLY = ("system", "images", "context", "tools", "format", "logprobs")


def _unload_if_asked(call: Call, model: ServedModel) -> None:
    """Let a model leave that is to be kept for no time: as soon as no request uses it, however the
    one that asks for it ends.
    """
    if _unloads(call.body):
        call.state.models.unload_when_idle(model)


async def _only_load(
    call: Call, model: ServedModel, body: Mapping[str, Any], shape: Mapping[str, Any], prompt: str
) -> Response:
    """The answer where nothing was asked but to load the model, or to unload it; prompt: the field
    without which nothing is generated.
    """
    check_empty(body, _OF_A_REPLY, f"found without {prompt}, wanted both")
    _read(model, body)
    if model.builder is not None:
        _variables(model, body)
    _unload_if_asked(call, model)
    return json_response(
        {
            "model": body["model"],
            "created_at": _now(),
            **shape,
            "done": True,
            "done_reason": "unload" if _unloads(body) else "load",
        }
    )


# ---- generate


async def generate(call: Call) -> Response:
    """POST /api/generate"""
    body, began = call.body, time.perf_counter_ns()
    check_template(body)
    async with call.model(body.get("model")) as model:
        loaded = time.perf_counter_ns()
        if body.get("images") and (body.get("raw") or body.get("suffix") or model.builder is None):
            raise unsupported(
                "images", "found in a prompt without the chat template, wanted text alone"
            )
        if not body.get("prompt") and not body.get("suffix"):
            return await _only_load(call, model, body, {"response": ""}, "prompt")
        raw = body.get("raw") or body.get("suffix") or model.builder is None
        if raw and body.get("system"):
            raise unsupported("system", "found in a prompt without the chat template, wanted none")
        if body.get("context") and body.get("suffix"):
            raise unsupported("context", "found together with suffix, wanted one of them")
        if body.get("context") and not raw:
            raise unsupported(
                "context",
                "found without raw: true, wanted both; /api/chat takes a conversation's messages",
            )
        if body.get("context") and model.engine.config.start_token is not None:
            raise unsupported(
                "context", "found for a model whose encoder reads a prompt as a whole"
            )
        if raw and body.get("think"):
            raise unsupported("think", "found in a prompt without the chat template, wanted none")

        def read() -> tuple[table.RequestOptions, Any]:
            asked, prompt = _read(model, body), body.get("prompt") or ""
            if body.get("suffix"):
                return asked, infill_ids(model, prompt, body["suffix"], param="suffix")
            if raw:
                context = encoded(model, body.get("context") or [], param="context")
                ids = encoded(model, prompt, special=not context)
                return asked, [*map(int, context), *ids]
            content = _with_images(prompt, body, "images")
            messages = [{"role": "user", "content": content, "at": "prompt"}]
            if body.get("system"):
                said = {"role": "system", "content": body["system"], "at": "system"}
                messages.insert(0, said)
            return asked, ChatRequest(
                messages_of(messages),
                asked.options,
                asked.stops,
                variables=_variables(model, body),
                constraint=asked.constraint,
                prompt="prompt",
                places=places_of(messages),
            )

        options, asked = await call.offload(read)
        answer = _Answer(call, model, began, loaded)
        if isinstance(asked, ChatRequest):
            return await _chat(call, model, asked, answer, _in_response)
        return await _raw(call, model, options, asked, answer)


async def _raw(
    call: Call, model: ServedModel, asked: table.RequestOptions, ids: list[int], answer: _Answer
) -> Response:
    """A prompt continued without the chat template."""
    _unload_if_asked(call, model)

    def last(job: Job, done: Completion, text: str, logprobs: Any = None) -> dict[str, Any]:
        made = answer.last({"response": text}, done, reason_of(done), job.requests[0], logprobs)
        return {**made, "context": [*ids, *done.tokens]}

    def new_job() -> Job:
        params = table.shown(asked.options, asked.stops)
        return Job(call, model, param="prompt", constraint=asked.constraint, params=params)

    def submit() -> Any:
        return model.engine.submit(ids, **asked.options)

    if call.body.get("stream") is False:

        async def whole() -> dict[str, Any]:
            async with new_job() as job:
                await job.begin(submit)
                done = (await job.results())[0]
                return last(job, done, done.text, done.logprobs)

        made = await call.race(whole())
        return json_response(made)

    async def lines() -> AsyncIterator[bytes]:
        async with new_job() as job:
            await job.begin(submit)
            async for came in job.pieces():
                yield b"".join(
                    line(last(job, piece, ""))
                    if isinstance(piece, Completion)
                    else answer.part({"response": piece.text}, piece.logprobs)
                    for _, piece in came
                )

    return await _streamed(call, lines(), lambda: answer.part(_in_response()))


# ---- vectors


def _check_embed(model: ServedModel, body: Mapping[str, Any]) -> None:
    """A 400 for a time or a context that cannot be had."""
    _unloads(body)
    context = (body.get("options") or {}).get("num_ctx")
    if context is not None and context > model.engine.context_size:
        raise bad("options.num_ctx", context, f"at most {model.engine.context_size}")


async def embed(call: Call) -> Response:
    """POST /api/embed"""
    body, began = call.body, time.perf_counter_ns()
    async with call.model(body["model"]) as model:
        loaded = time.perf_counter_ns()
        _check_embed(model, body)
        _unload_if_asked(call, model)
        given = body["input"]
        found, tokens = await call.race(
            vectors(
                call,
                model,
                [given] if isinstance(given, str) else given,
                dimensions=None if body.get("dimensions") is None else int(body["dimensions"]),
                truncate=body.get("truncate") is True,
            )
        )
        return json_response(
            {
                "model": body["model"],
                "embeddings": [each.tolist() for each in found],
                "total_duration": time.perf_counter_ns() - began,
                "load_duration": loaded - began,
                "prompt_eval_count": tokens,
            }
        )


async def embeddings(call: Call) -> Response:
    """POST /api/embeddings"""
    body = call.body
    async with call.model(body["model"]) as model:
        _check_embed(model, body)
        _unload_if_asked(call, model)
        found, _ = await call.race(vectors(call, model, [body["prompt"]], param="prompt"))
        return json_response({"embedding": found[0].tolist()})
