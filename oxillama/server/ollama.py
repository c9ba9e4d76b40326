"""Ollama's routes, for the desktop clients that speak nothing else: lines of JSON, streamed unless
asked otherwise.

`keep_alive` of 0 unloads the model when it is idle; other durations are taken and change nothing,
since models leave by least recent use.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from starlette.responses import Response

import oxillama
from oxillama.completion import Completion
from oxillama.errors import OxillamaError, QuantError
from oxillama.gguf import GgufReader, Metadata
from oxillama.quant.recipes import recipe_name
from oxillama.server import adapters, sse
from oxillama.server import options as table
from oxillama.server.about import About, of_file, of_model
from oxillama.server.calls import Call, dumps, json_response
from oxillama.server.chat import (
    TOOL_CHOICE,
    ChatRequest,
    Reply,
    events,
    image_part,
    messages_of,
    places_of,
    run,
    tools_of,
)
from oxillama.server.completions import TOKENS, encoded
from oxillama.server.embeddings import vectors
from oxillama.server.errors import ApiError, bad, unsupported
from oxillama.server.infill import infill_ids
from oxillama.server.logprobs import chat_entries
from oxillama.server.models import Model, unusable
from oxillama.server.schema import (
    BOOLEAN,
    NAME,
    OBJECT,
    STRING,
    Schema,
    array,
    enum,
    integer,
    number,
    obj,
    one_of,
)
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
_TRUE, _FALSE = ({"type": "boolean", "const": value} for value in (True, False))
# of how a model is loaded, which is the server's to say: what it does anyway, or Ollama's default
_LOADING: dict[str, Schema] = {
    "num_ctx": integer(1),
    "num_batch": integer(512, 512),
    "num_gpu": integer(-1, 0),
    "main_gpu": integer(0, 0),
    "num_thread": integer(0, 0),
    "low_vram": _FALSE,
    "numa": _FALSE,
    "use_mmap": _TRUE,
    "use_mlock": _FALSE,
    "vocab_only": _FALSE,
}
_OPTIONS = obj(
    {
        **table.properties("stop_sequences"),
        **_LOADING,
        "num_predict": integer(-2),
        "num_keep": integer(-1),
        "penalize_newline": _TRUE,
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
    "think": one_of(BOOLEAN, enum("low", "medium", "high")),
    "logprobs": BOOLEAN,
    "top_logprobs": integer(0, 20),
    # messages are not left out, and contexts not shifted
    "truncate": {"type": "boolean", "const": False},
    "shift": {"type": "boolean", "const": False},
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
_MAY_BE_EMPTY = {"type": "string", "maxLength": 256}
SHOW_BODY: Schema = obj(
    {
        "model": _MAY_BE_EMPTY,
        "name": _MAY_BE_EMPTY,
        "verbose": BOOLEAN,
        "system": STRING,
        "template": STRING,
        "options": OBJECT,
    }
)
PULL_BODY: Schema = obj(
    {"model": _MAY_BE_EMPTY, "name": _MAY_BE_EMPTY, "stream": BOOLEAN, "insecure": _FALSE}
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
_LINES = "application/x-ndjson"
# the Ollama that first had all that is served here, by which clients choose what to ask for
_API_VERSION = "0.14.0"


def _now() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"


def _line(value: Any) -> bytes:
    return dumps(value) + b"\n"


def _failed(error: ApiError) -> bytes:
    return _line(error.ollama())


# ---- what is asked


def _check_empty(body: Mapping[str, Any], names: tuple[str, ...], why: str) -> None:
    """A 400 for a field that says something; Ollama's client in Go sends all of them, empty."""
    for name in names:
        if body.get(name):
            raise unsupported(name, why)


def _check_template(body: Mapping[str, Any]) -> None:
    _check_empty(
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


def _read(model: Model, body: Mapping[str, Any]) -> table.RequestOptions:
    """The options of a body."""
    _unloads(body)  # a wrong time is told before the work
    given = body.get("options") or {}
    asked = table.read(
        given,
        default=model.engine.sampler,
        vocab_size=model.engine.config.vocab_size,
        path="options.",
    )
    asked.options.update(adapters.asked(model, body))
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
        if asked.constraint:
            raise ApiError(
                400,
                f"format: found together with {asked.constraint}, wanted one constraint",
                param="format",
            )
        asked.options["json_schema"] = {"type": "object"} if format == "json" else format
        asked.constraint = "format"
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        raise ApiError(
            400, "top_logprobs: found without logprobs: true, wanted both", param="top_logprobs"
        )
    if body.get("logprobs"):
        asked.options["logprobs"] = int(body.get("top_logprobs") or 0)
    return asked


def _variables(model: Model, body: Mapping[str, Any]) -> dict[str, Any]:
    think = body.get("think")
    if think is None:
        return {}
    builder = model.chat()
    if isinstance(think, str):
        if builder.knows("reasoning_effort"):
            return {"reasoning_effort": think}
    elif builder.thinking:
        return {builder.thinking: think}
    elif think == builder.reasons:
        return {}  # it always does, or never
    raise unsupported("think", "the model's chat template has no such setting")


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
    waiting: list[tuple[str, str]] = []
    for at, message in enumerate(body["messages"]):
        made: dict[str, Any] = {
            "role": message["role"],
            "content": _with_images(
                message.get("content") or "", message, f"messages[{at}].images"
            ),
        }
        if message.get("thinking"):
            made["reasoning_content"] = message["thinking"]
        if message.get("tool_calls"):
            made["tool_calls"] = []
            for number_, call in enumerate(message["tool_calls"]):
                function = call["function"]
                arguments = function["arguments"]
                name = call.get("id") or f"{at}-{number_}"
                waiting.append((name, function["name"]))
                made["tool_calls"].append(
                    {
                        "id": name,
                        "type": "function",
                        "function": {
                            "name": function["name"],
                            "arguments": arguments
                            if isinstance(arguments, str)
                            else json.dumps(arguments, ensure_ascii=False),
                        },
                    }
                )
        if message["role"] == "tool":
            named = message.get("tool_name") or message.get("name")
            match = next(
                (
                    each
                    for each in waiting
                    if message.get("tool_call_id") in (None, each[0]) and named in (None, each[1])
                ),
                None,
            )
            if match is None:
                raise ApiError(
                    400, f"messages[{at}]: answers no call before it", param=f"messages[{at}]"
                )
            waiting.remove(match)
            made["tool_call_id"], made["name"] = match
        out.append(made)
    return out


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
    async with call.state.models.use(body.get("model")) as model:
        loaded = time.perf_counter_ns()
        if not body.get("messages"):
            return await _only_load(call, model, body, {"message": _message("")}, "messages")

        def read() -> ChatRequest:
            asked = _read(model, body)
            choice = body.get("tool_choice")
            tools = list(map(_tool, body.get("tools") or ()))
            return ChatRequest(
                messages_of(_messages(body)),
                asked.options,
                asked.stops,
                tools_of({"tools": tools, "tool_choice": choice}),
                choice,
                variables=_variables(model, body),
                constraint=asked.constraint,
            )

        asked = await call.offload(read)
        return await _chat(call, model, asked, body, began, loaded, _in_message)


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


async def _chat(
    call: Call,
    model: Model,
    asked: ChatRequest,
    body: Mapping[str, Any],
    began: int,
    loaded: int,
    shape: Any,
) -> Response:
    top = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
    bridge = model.tokenizer()
    name = body["model"]
    if body.get("stream") is False:
        _, replies, _ = await call.race(run(call, model, asked))
        reply = replies[0]
        made = {
            "model": name,
            "created_at": _now(),
            **shape(reply.text, reply.thought, _calls(reply)),
            **_end(reply.completion, reply.finish_reason, reply.request, began, loaded),
        }
        if top is not None:
            made["logprobs"] = chat_entries(reply.logprobs, bridge, top)
        await _maybe_unload(call, model, body)
        return json_response(made)

    async def frames() -> AsyncIterator[bytes]:
        sent = 0
        async for came in events(call, model, asked):
            out: list[bytes] = []
            for _, reply, event, added in came:
                for kind, value in added:
                    part: dict[str, Any] | None = None
                    if kind == "content":
                        part = shape(value)
                        if top is not None:
                            part["logprobs"] = chat_entries(event.logprobs, bridge, top)
                    elif kind == "reasoning":
                        part = shape("", value)
                    if part is not None:
                        out.append(
                            _line({"model": name, "created_at": _now(), **part, "done": False})
                        )
                if event.kind in ("call_end", "end"):
                    calls = _calls(reply)[sent:]
                    sent += len(calls)
                    if calls:
                        part = shape("", "", calls)
                        out.append(
                            _line({"model": name, "created_at": _now(), **part, "done": False})
                        )
                if event.kind == "end":
                    last = {
                        "model": name,
                        "created_at": _now(),
                        **shape(),
                        **_end(reply.completion, reply.finish_reason, reply.request, began, loaded),
                    }
                    if top is not None and event.logprobs and not reply.calls:
                        last["logprobs"] = chat_entries(event.logprobs, bridge, top)
                    out.append(_line(last))
            if out:
                yield b"".join(out)
        await _maybe_unload(call, model, body)

    return await sse.EventStream(
        call, frames(), failed=_failed, media_type=_LINES, probe=b"\n"
    ).begin()


def _calls(reply: Reply) -> list[dict[str, Any]]:
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


async def _maybe_unload(call: Call, model: Model, body: Mapping[str, Any]) -> None:
    if _unloads(body):
        call.state.models.forget_when_idle(model)


async def _only_load(
    call: Call, model: Model, body: Mapping[str, Any], shape: Mapping[str, Any], prompt: str
) -> Response:
    """The answer where nothing was asked but to load the model, or to unload it; prompt: the field
    without which nothing is generated.
    """
    _check_empty(body, _OF_A_REPLY, f"found without {prompt}, wanted both")
    _read(model, body)
    if model.builder is not None:
        _variables(model, body)
    await _maybe_unload(call, model, body)
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
    _check_template(body)
    async with call.state.models.use(body.get("model")) as model:
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
        if body.get("context") and not raw:
            raise unsupported("context", "found without raw: true, wanted both")
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
        if isinstance(asked, ChatRequest):
            return await _chat(call, model, asked, body, began, loaded, _in_response)
        return await _raw(call, model, options, asked, body, began, loaded)


async def _raw(
    call: Call,
    model: Model,
    asked: table.RequestOptions,
    ids: list[int],
    body: Mapping[str, Any],
    began: int,
    loaded: int,
) -> Response:
    """A prompt continued without the chat template."""
    name, bridge = body["model"], model.tokenizer()
    top = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None

    def last(job: Job, done: Completion) -> dict[str, Any]:
        reason = reason_of(done)
        return {
            **_end(done, reason, job.requests[0], began, loaded),
            "context": [*ids, *done.tokens],
        }

    if body.get("stream") is False:

        async def whole() -> dict[str, Any]:
            async with Job(call, model, param="prompt", constraint=asked.constraint) as job:
                await job.begin(lambda: model.engine.submit(ids, **asked.options))
                done = (await job.results())[0]
                made = {
                    "model": name,
                    "created_at": _now(),
                    "response": done.text,
                    **last(job, done),
                }
                if top is not None:
                    made["logprobs"] = chat_entries(done.logprobs, bridge, top)
                return made

        made = await call.race(whole())
        await _maybe_unload(call, model, body)
        return json_response(made)

    async def frames() -> AsyncIterator[bytes]:
        async with Job(call, model, param="prompt", constraint=asked.constraint) as job:
            await job.begin(lambda: model.engine.submit(ids, **asked.options))
            async for came in job.pieces():
                out = []
                for _, piece in came:
                    line: dict[str, Any] = {"model": name, "created_at": _now(), "response": ""}
                    if isinstance(piece, Completion):
                        out.append(_line({**line, **last(job, piece)}))
                        continue
                    line["response"] = piece.text
                    if top is not None:
                        line["logprobs"] = chat_entries(piece.logprobs, bridge, top)
                    out.append(_line({**line, "done": False}))
                yield b"".join(out)
        await _maybe_unload(call, model, body)

    return await sse.EventStream(
        call, frames(), failed=_failed, media_type=_LINES, probe=b"\n"
    ).begin()


# ---- models


def _entry(call: Call, name: str, path: Any) -> dict[str, Any] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(status.st_mtime))
    mark = f"{name}\0{status.st_size}\0{status.st_mtime_ns}"
    # clients look a model up by its name with a tag, which Ollama's always have
    tagged = name if ":" in name else f"{name}:latest"
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": stamp,
        "size": status.st_size,
        "digest": hashlib.sha256(mark.encode()).hexdigest(),
        "details": _details(call, name, str(path), status.st_mtime_ns),
    }


def _details(call: Call, name: str, path: str, stamp: int) -> dict[str, Any]:
    loaded = next((each for each in call.state.models.loaded() if each.name == name), None)
    family, size, file_type = (
        _of_header(path, stamp)
        if loaded is None
        else _named(loaded.engine.config.architecture, loaded.metadata)
    )
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": size,
        "quantization_level": _level(file_type),
    }


@lru_cache(maxsize=1024)
def _of_header(path: str, stamp: int) -> tuple[str, str, Any]:
    """What a file that is not loaded says of itself, as `_named`; nothing for no GGUF file."""
    try:
        with GgufReader(path) as reader:
            found = reader.metadata
            return _named(str(found.get("general.architecture", "")), found)
    except (OSError, OxillamaError):
        return "", "", None


def _named(family: str, metadata: Mapping[str, Any]) -> tuple[str, str, Any]:
    """(architecture, label of the size, type of the file)."""
    return family, str(metadata.get("general.size_label", "")), metadata.get("general.file_type")


def _level(file_type: object) -> str:
    """The name of a file's type, "" where the file or the type is not known."""
    try:
        return recipe_name(str(file_type))
    except QuantError:
        return ""


async def tags(call: Call) -> Response:
    """GET /api/tags"""

    def work() -> list[Any]:
        found = (_entry(call, *each) for each in call.state.models.known().items())
        return [each for each in found if each is not None]

    return json_response({"models": await call.offload(work)})


async def running(call: Call) -> Response:
    """GET /api/ps"""
    known = call.state.models.known()
    out = []
    for model in call.state.models.loaded():
        entry = _entry(call, model.name, known.get(model.name, ""))
        if entry is not None:
            entry.pop("modified_at")
            # no model leaves after a time: it does for another
            more = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
            out.append({**entry, **more, "context_length": model.engine.context_size})
    return json_response({"models": out})


async def version(call: Call) -> Response:
    """GET /api/version"""
    return json_response({"version": _API_VERSION, "oxillama": oxillama.__version__})


async def pull(call: Call) -> Response:
    """POST /api/pull"""
    call.state.models.resolve(_name(call.body))  # nothing is fetched: it is here, or a 404
    done = {"status": "success"}
    if call.body.get("stream") is False:
        return json_response(done)
    return Response(_line(done), media_type=_LINES)


def _name(body: Mapping[str, Any]) -> str:
    name = body.get("model") or body.get("name")
    if not name:
        raise ApiError(400, "model: is required", param="model", code="missing_required_parameter")
    return str(name)


async def show(call: Call) -> Response:
    """POST /api/show"""
    body = call.body
    name = _name(body)
    _check_template(body)
    _check_empty(body, ("system", "options"), "changes nothing that is shown, wanted none")
    found = call.state.models
    name = found.resolve(name)
    loaded = next((each for each in found.loaded() if each.name == name), None)

    def work() -> Response:
        if loaded is None:  # it is not loaded to be looked at
            about = of_file(found.known()[name], call.state.config)
        else:
            about = of_model(loaded)
        keys, tensors = _of_file(about, name, verbose=bool(body.get("verbose")))
        stamp = about.path.stat().st_mtime_ns
        return json_response(
            {
                "modelfile": f"FROM {about.path}",
                "parameters": "",
                "template": about.template,
                "details": _details(call, name, str(about.path), stamp),
                "model_info": keys,
                **({"tensors": tensors} if body.get("verbose") else {}),
                "capabilities": _capabilities(about),
            }
        )

    return await call.offload(work)


_FEW = 8  # items of an array that is shown without `verbose`
_APART = ("general.name", "tokenizer.chat_template")  # keys that are shown elsewhere, or long


def _of_file(
    about: About, name: str, *, verbose: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the keys of a model's file, with what follows from its shapes; its tensors). Long arrays are
    empty unless `verbose`.
    """
    config = about.config
    try:
        with GgufReader(about.path) as reader:
            found = {
                key: _shown(reader.metadata, key, verbose=verbose)
                for key in reader.metadata
                if key not in _APART
            }
            parameters = sum(math.prod(each.shape) for each in reader.tensors.values())
            tensors = [
                {"name": each.name, "type": each.type_name, "shape": list(each.shape)}
                for each in reader.tensors.values()
            ]
    except (OSError, OxillamaError) as error:
        raise unusable(about.path, error) from None
    arch = config.architecture
    defaults = {
        "general.architecture": arch,
        "general.basename": config.name or name,
        "general.parameter_count": parameters,
        f"{arch}.context_length": config.context_length,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.vocab_size": config.vocab_size,
    }
    return {**defaults, **found}, tensors


def _shown(metadata: Metadata, key: str, *, verbose: bool) -> Any:
    texts = None if verbose else metadata.strings(key)  # counted, and not decoded
    if texts is not None and len(texts[1]) > _FEW:
        return []
    return _plain(metadata[key], verbose=verbose)


def _plain(value: Any, *, verbose: bool) -> Any:
    """A value of a file in JSON, where "nan" and "inf" are texts."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        few = verbose or len(value) <= _FEW
        return [_plain(each, verbose=verbose) for each in value] if few else []
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _capabilities(about: About) -> list[str]:
    """What a model is for, in Ollama's words. Its clients embed with a model of "embedding" and
    never chat with it, so a model that generates is none, although it has vectors here too.
    """
    if about.embeds:
        return ["embedding"]
    chats = bool(about.template)
    found = {
        "completion": True,
        "insert": about.fills,
        "tools": chats,
        "vision": chats and about.sees,
        "thinking": chats and about.reasons,
    }
    return [name for name, has in found.items() if has]


# ---- vectors


def _check_embed(model: Model, body: Mapping[str, Any]) -> None:
    """A 400 for a time or a context that cannot be had."""
    _unloads(body)
    context = (body.get("options") or {}).get("num_ctx")
    if context is not None and context > model.engine.context_size:
        raise bad("options.num_ctx", context, f"at most {model.engine.context_size}")


async def embed(call: Call) -> Response:
    """POST /api/embed"""
    body, began = call.body, time.perf_counter_ns()
    async with call.state.models.use(body["model"]) as model:
        loaded = time.perf_counter_ns()
        _check_embed(model, body)
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
        await _maybe_unload(call, model, body)
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
    async with call.state.models.use(body["model"]) as model:
        _check_embed(model, body)
        found, _ = await call.race(vectors(call, model, [body["prompt"]], param="prompt"))
        await _maybe_unload(call, model, body)
        return json_response({"embedding": found[0].tolist()})
