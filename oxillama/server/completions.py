"""`/v1/completions`: texts and token ids continued, lists of them, echoed, scored, filled in the
middle.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from oxillama.completion import Completion
from oxillama.server import adapters, sse
from oxillama.server import options as table
from oxillama.server.calls import Call, json_response
from oxillama.server.errors import ApiError, bad, missing, unsupported
from oxillama.server.fields import (
    EXCEPTIONS,
    FINGERPRINT,
    MOST_COMPLETIONS,
    PROMPT,
    RESPONSE_FORMAT,
    SESSION,
    STREAM_OPTIONS,
    VLLM_DEFAULTS,
    VLLM_TOKENS,
    SessionPrompt,
    check_stream_options,
    constrain,
    encoded,
    options_of,
    prompts_of,
    streamed_usage,
    want_tokens,
)
from oxillama.server.ids import new_id
from oxillama.server.infill import infill_ids
from oxillama.server.logprobs import LegacyLogprobs, prompt_entries
from oxillama.server.models import ServedModel
from oxillama.server.schema import (
    BOOLEAN,
    NAME,
    STRING,
    Schema,
    integer,
    obj,
)
from oxillama.server.work import Job, reason_of, usage_of, usage_so_far

DEFAULT_TOKENS = 16
AT_ONCE = 64  # prompts of one body that the engine has at once

BODY: Schema = obj(
    {
        **table.properties("stop_sequences"),
        **VLLM_DEFAULTS,
        **VLLM_TOKENS,
        **EXCEPTIONS,
        "model": NAME,
        "prompt": PROMPT,
        "suffix": STRING,
        "max_tokens": integer(0),
        "n": integer(1, MOST_COMPLETIONS),
        "best_of": integer(1, MOST_COMPLETIONS),
        "stream": BOOLEAN,
        "stream_options": STREAM_OPTIONS,
        "logprobs": integer(0, 20),
        "echo": BOOLEAN,
        "add_special_tokens": BOOLEAN,
        "response_format": RESPONSE_FORMAT,
        "session": SESSION,
        "lora": adapters.LORA,
    },
)


async def completions(call: Call) -> Response:
    """POST /v1/completions"""
    body = call.body
    async with call.model(body.get("model")) as model:
        prompts, options = await call.offload(_read, call, model, body)
        if body.get("stream"):
            frames = _stream(call, model, prompts, options, body)
            return await sse.EventStream(call, frames, failed=sse.openai_error).begin()
        return json_response(await call.race(_whole(call, model, prompts, options, body)))


def _read(
    call: Call, model: ServedModel, body: Mapping[str, Any]
) -> tuple[list[list[int] | None], table.RequestOptions]:
    """(the prompts' ids, None to continue a session; the request of the body)."""
    asked = options_of(model, body)
    constrain(asked, body.get("response_format"), path="response_format")
    check_stream_options(body)
    n, best = int(body.get("n") or 1), body.get("best_of")
    if best is not None:
        if best < n:
            raise bad("best_of", best, f"n, which is {n}, or more")
        if body.get("stream") and best != n:
            raise ApiError(
                400, "best_of: found with stream: true, wanted one of them", param="best_of"
            )
        asked.options["best_of"] = int(best)
    asked.options["n"] = n
    most = body.get("max_tokens")
    if most == 0 and not body.get("echo") and body.get("prompt_logprobs") is None:
        raise bad("max_tokens", 0, "1 or more; 0 scores a prompt, with echo or prompt_logprobs")
    asked.options["max_tokens"] = DEFAULT_TOKENS if most is None else int(most)
    if body.get("logprobs") is not None:
        asked.options["logprobs"] = int(body["logprobs"])
        if body.get("echo"):
            asked.options["prompt_logprobs"] = int(body["logprobs"])
    want_tokens(body, asked)
    session, given = body.get("session"), body.get("prompt")
    special = body.get("add_special_tokens") is not False
    if session is not None:
        return _in_session(call, model, body, asked, n, special)
    if given is None:
        raise missing("prompt")
    texts = prompts_of(given)
    if body.get("suffix"):
        if not all(isinstance(each, str) for each in texts):
            raise ApiError(
                400, "suffix: found together with token ids, wanted a text", param="suffix"
            )
        if body.get("echo"):
            raise unsupported("echo", "found together with suffix, wanted one of them")
        made = [
            infill_ids(model, str(each), body["suffix"], param="suffix", special=special)
            for each in texts
        ]
        return list(made), asked
    prompts: list[list[int] | None] = []
    cut = bool(asked.options.get("truncate_prompt"))
    if cut and body.get("echo"):
        raise unsupported("echo", "found together with truncate_prompt, wanted one of them")
    for at, each in enumerate(texts):
        param = "prompt" if len(texts) == 1 else f"prompt[{at}]"
        ids = encoded(model, each, param=param, special=special, bounded=not cut)
        if not ids:
            raise ApiError(400, f"{param}: found no tokens, wanted 1 or more", param=param)
        prompts.append(ids)
    return prompts, asked


def _in_session(
    call: Call,
    model: ServedModel,
    body: Mapping[str, Any],
    asked: table.RequestOptions,
    n: int,
    special: bool,
) -> tuple[list[list[int] | None], table.RequestOptions]:
    for name in ("suffix", "best_of", "echo"):
        if body.get(name):
            raise unsupported(name, "found together with session, wanted one of them")
    if n > 1:
        raise bad("n", n, "1 in a session")
    texts = prompts_of(body["prompt"]) if body.get("prompt") else []
    if len(texts) > 1:
        raise ApiError(400, "prompt: found a list in a session, wanted one", param="prompt")
    begun = call.state.sessions.begun(body["session"], model)
    ids = SessionPrompt(
        begun,
        lambda begun: encoded(model, texts[0], special=special and not begun) if texts else [],
    )
    if not ids and not begun:
        raise missing("prompt", "is required, the session is new")
    asked.options.pop("n")
    return [ids], asked


def _submit(
    call: Call, model: ServedModel, ids: list[int] | None, asked: table.RequestOptions, body: Any
) -> Any:
    name = body.get("session")
    if name is None:
        return model.engine.submit(ids, **asked.options)
    with call.state.sessions.held(name, model, lora=asked.options.get("lora")) as named:
        if isinstance(ids, SessionPrompt):
            ids.follow(len(named.session) > 0)
        if not (ids or len(named.session)):
            raise missing("prompt", "is required, the session is new")
        made = model.engine.submit(ids or None, session=named.session, **asked.options)
        named.changed = True
        return made


async def _whole(
    call: Call,
    model: ServedModel,
    prompts: list[list[int] | None],
    asked: table.RequestOptions,
    body: Mapping[str, Any],
) -> dict[str, Any]:
    turnstile = asyncio.Semaphore(AT_ONCE)

    async def one(
        at: int, ids: list[int] | None
    ) -> tuple[list[Completion], dict[str, int], list[int]]:
        param = "prompt" if len(prompts) == 1 else f"prompt[{at}]"
        async with turnstile, _job(call, model, param, asked) as job:
            await job.begin(lambda: _submit(call, model, ids, asked, body))
            done = await job.results()
            # what best_of drew and left out counts too
            usage = {**usage_of(done), "generated": job.generated}
            return done, usage, job.requests[0].prompt_ids

    tasks = [asyncio.ensure_future(one(at, ids)) for at, ids in enumerate(prompts)]
    try:
        ended = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    results = [done for done, _, _ in ended]
    scored = any(body.get(name) is not None for name in ("logprobs", "prompt_logprobs"))
    if not scored and not body.get("echo"):
        choices = _choices(model, prompts, results, body)
    else:
        choices = await call.offload(_choices, model, prompts, results, body)
    if body.get("return_token_ids"):
        sent = [(ids, each) for done, _, ids in ended for each in done]
        for choice, (ids, each) in zip(choices, sent):
            choice |= {"prompt_token_ids": ids, "token_ids": list(each.tokens)}
    return {
        "id": new_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": adapters.served_as(model, body),
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
        "usage": _usage([usage for _, usage, _ in ended]),
    }


def _usage(usages: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    prompt, cached, generated = (
        sum(each[name] for each in usages) for name in ("prompt", "cached", "generated")
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _job(call: Call, model: ServedModel, param: str, asked: table.RequestOptions) -> Job:
    params = table.shown(asked.options, asked.stops)
    return Job(call, model, param=param, constraint=asked.constraint, params=params)


def _choices(
    model: ServedModel,
    prompts: list[list[int] | None],
    results: Sequence[Sequence[Completion]],
    body: Mapping[str, Any],
) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for ids, done in zip(prompts, results):
        echoed = _echo(model, ids) if body.get("echo") else ""
        for each in done:
            logprobs = None
            if body.get("logprobs") is not None:
                entries = _entries(model, ids, body)
                if body.get("echo"):
                    _add_prompt(entries, ids or [], each.prompt_logprobs)
                _add_drawn(entries, each.logprobs)
                logprobs = entries.take()
            out.append(
                {
                    "index": len(out),
                    "text": echoed + each.text,
                    "logprobs": logprobs,
                    "finish_reason": reason_of(each),
                }
            )
            if body.get("prompt_logprobs") is not None:
                top, bridge = int(body["prompt_logprobs"]), model.tokenizer()
                out[-1]["prompt_logprobs"] = prompt_entries(ids or (), each, bridge, top)
    return out


def _entries(
    model: ServedModel, ids: Sequence[int] | None, body: Mapping[str, Any]
) -> LegacyLogprobs:
    """The empty lists of a prompt's completion, whose text begins with the prompt if it is
    echoed.
    """
    return LegacyLogprobs(
        model.tokenizer(), int(body["logprobs"]), before=() if body.get("echo") else ids
    )


def _echo(model: ServedModel, ids: Sequence[int] | None) -> str:
    """The text of a prompt's ids; control tokens have none."""
    return model.tokenizer().decode(ids or ())


def _add_prompt(
    entries: LegacyLogprobs, ids: Sequence[int], scores: Sequence[tuple[Any, ...]]
) -> None:
    """Add the prompt's entries; scores: those of the tokens after the first."""
    if ids:
        entries.add(ids[0], None, (), ())
    for token, (value, top_ids, top_values) in zip(ids[1:], scores):
        entries.add(token, value, top_ids, top_values)
    entries.begin()


def _add_drawn(entries: LegacyLogprobs, drawn: Sequence[Any]) -> None:
    for each in drawn:
        entries.add(each.token, each.raw, each.raw_ids, each.raw_values)


async def _stream(
    call: Call,
    model: ServedModel,
    prompts: list[list[int] | None],
    asked: table.RequestOptions,
    body: Mapping[str, Any],
) -> AsyncIterator[bytes]:
    """The chunks of all prompts as they arrive."""
    head = {
        "id": new_id("cmpl-"),
        "object": "text_completion",
        "created": int(time.time()),
        "model": adapters.served_as(model, body),
        "system_fingerprint": FINGERPRINT,
    }
    wants_usage, so_far = streamed_usage(body)
    wants_logprobs, wants_ids = body.get("logprobs") is not None, bool(body.get("return_token_ids"))
    n = asked.options.get("n", 1)
    usages: list[Mapping[str, int]] = []
    turnstile = asyncio.Semaphore(AT_ONCE)
    plain = sse.TextFrames(head, '"text":%s', usage=wants_usage)

    told: set[int] = set()  # the completions whose prompt's ids were sent

    def chunk(
        index: int,
        text: str,
        reason: str | None,
        logprobs: Any,
        usage: Mapping[str, int],
        request: Any,
        tokens: Sequence[int] = (),
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        if wants_ids:
            choice["token_ids"] = list(tokens)
            if index not in told:
                told.add(index)
                choice["prompt_token_ids"] = request.prompt_ids
        made = {**head, "choices": [choice]}
        if wants_usage:
            made["usage"] = _usage([usage]) if so_far else None
        return sse.data(made)

    async def one(at: int, ids: list[int] | None) -> AsyncGenerator[bytes, None]:
        """The chunks of one prompt."""
        param = "prompt" if len(prompts) == 1 else f"prompt[{at}]"
        async with turnstile, _job(call, model, param, asked) as job:
            await job.begin(lambda: _submit(call, model, ids, asked, body))
            lists = [_entries(model, ids, body) if wants_logprobs else None for _ in job.requests]
            echoed: set[int] = set()
            finished: dict[int, Completion] = {}
            generated: Counter[int] = Counter()  # tokens of each completion so far
            as_texts = not (wants_logprobs or so_far or wants_ids)
            async for came in job.pieces(texts=as_texts):
                frames = []
                for index, new in came:
                    number, entries, text = at * n + index, lists[index], ""
                    request: Any = job.requests[index]
                    echoes = bool(body.get("echo")) and index not in echoed
                    if echoes:
                        echoed.add(index)
                        text = _echo(model, ids)
                        if entries is not None:
                            # all of them are known once it has begun to draw
                            scores = tuple(request.prompt_logprobs)
                            _add_prompt(entries, ids or [], scores)
                    if isinstance(new, Completion):
                        finished[index] = new
                        logprobs = entries.take() if entries is not None and echoes else None
                        usage = usage_of([new])
                        reason = reason_of(new)
                        frames.append(chunk(number, text, reason, logprobs, usage, request))
                    elif as_texts:
                        texts = [text + new[0], *new[1:]]
                        frames.append(plain.frames(number, filter(None, texts)))
                    else:
                        generated[index] += len(new.tokens)
                        usage = usage_so_far(request, generated[index])
                        logprobs = None
                        if entries is not None:
                            _add_drawn(entries, new.logprobs)
                            logprobs = entries.take()
                        if echoes or new.text or new.tokens:
                            text += new.text
                            frames.append(
                                chunk(number, text, None, logprobs, usage, request, new.tokens)
                            )
                yield b"".join(frames)
            usages.append(usage_of([finished[index] for index in sorted(finished)]))

    async with aclosing(_merged([one(at, ids) for at, ids in enumerate(prompts)])) as all_of:
        async for frames in all_of:
            yield frames
    if wants_usage:
        yield sse.data({**head, "choices": [], "usage": _usage(usages)})
    yield sse.DONE


async def _merged(streams: list[AsyncGenerator[bytes, None]]) -> AsyncGenerator[bytes, None]:
    """The items of several streams as they arrive; the first error ends all of them."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for frames in only:
                yield frames
        return
    queue: asyncio.Queue[Any] = asyncio.Queue(64)

    async def pump(stream: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(stream) as own:
            async for frames in own:
                await queue.put(frames)

    async def pump_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for stream in streams:
                    group.create_task(pump(stream))
        except BaseExceptionGroup as group:
            await queue.put(group.exceptions[0])
            return
        await queue.put(None)

    work = asyncio.ensure_future(pump_all())
    try:
        while (frames := await queue.get()) is not None:
            if isinstance(frames, BaseException):
                raise frames
            yield frames
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
