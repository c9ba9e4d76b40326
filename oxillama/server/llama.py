"""llama-server's routes: health, properties, vectors, `/completion`, `/infill`, adapters."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

from starlette.responses import Response

import oxillama
from oxillama.completion import Completion
from oxillama.server import adapters, sse
from oxillama.server import options as table
from oxillama.server.calls import Call, json_response
from oxillama.server.completions import AT_ONCE
from oxillama.server.embeddings import vectors
from oxillama.server.errors import ApiError, bad, missing, unsupported
from oxillama.server.fields import (
    EXCEPTIONS,
    RESPONSE_FORMAT,
    SESSION,
    TOKENS,
    SessionPrompt,
    constrain,
    encoded,
    options_of,
    prompts_of,
)
from oxillama.server.infill import infill_ids
from oxillama.server.logprobs import finite, spelled
from oxillama.server.models import ServedModel
from oxillama.server.schema import (
    BOOLEAN,
    FALSE,
    NAME,
    STRING,
    Schema,
    array,
    enum,
    integer,
    obj,
    one_of,
)
from oxillama.server.sessions import copy_on_error, truncate_to_common_prefix
from oxillama.server.work import (
    TIMINGS,
    Job,
    fills_context,
    reason_of,
    stopped_by,
    timings_json,
    usage_of,
)

_MIXED = array(one_of(integer(0), STRING), 1, 1 << 20)
LORA_BODY: Schema = {
    "type": "array",
    "items": adapters.LORA["items"],
    "maxItems": 1024,
}
EMBEDDING_BODY: Schema = obj(
    {"model": NAME, "content": one_of(STRING, TOKENS, array(one_of(STRING, TOKENS), 1, 2048))},
    ("content",),
)
_NOTHING = {"type": "array", "maxItems": 0}
_SHARED = {
    **table.properties("stop_sequences", "min_keep"),
    **EXCEPTIONS,
    "model": NAME,
    "n_predict": integer(-1),
    "max_tokens": integer(-1),
    "stream": BOOLEAN,
    "n_probs": integer(0, 100),
    "post_sampling_probs": BOOLEAN,
    "min_keep": integer(0, 0),
    "n_indent": integer(0, 0),
    "n_discard": integer(0, 0),
    "t_max_predict_ms": integer(0, 0),
    "id_slot": integer(-1, 65535),
    "return_tokens": BOOLEAN,
    "timings_per_token": BOOLEAN,
    # this text is not parsed: thoughts stay in it
    "reasoning_format": enum("none", "auto"),
    "return_progress": FALSE,
    "response_fields": array(NAME, 0, 64),
    "response_format": RESPONSE_FORMAT,
    "image_data": _NOTHING,
    "lora": adapters.LORA,
    "session": SESSION,
}
COMPLETION_BODY: Schema = obj(
    {**_SHARED, "prompt": one_of(STRING, _MIXED, array(one_of(STRING, _MIXED), 1, 2048))}
)
INFILL_BODY: Schema = obj(
    {
        **_SHARED,
        "input_prefix": STRING,
        "input_suffix": STRING,
        "input_extra": array(obj({"filename": STRING, "text": STRING}, ("text",)), 0, 256),
        "prompt": STRING,
    },
    ("input_prefix", "input_suffix"),
)


# ---- what is served


async def health(call: Call) -> Response:
    """GET /health"""
    status, said = call.state.health()
    return json_response(said, status)


async def props(call: Call) -> Response:
    """GET /props"""
    async with call.model(call.request.query_params.get("model")) as model:
        engine, bridge = model.engine, model.bridge
        settings = {
            "id": 0,
            "n_ctx": engine.context_size,
            "is_processing": False,
            "params": _settings(model, engine.sampler, {}, ()),
        }
        special = {
            name: bridge.token_text(token)
            for name, token in (
                ("bos_token", bridge.bos_id if bridge else None),
                ("eos_token", bridge.eos_id if bridge else None),
            )
            if bridge is not None and token is not None
        }
        return json_response(
            {
                "default_generation_settings": settings,
                "total_slots": model.slots,
                "model_path": str(engine.model_files[0]),
                "model_alias": model.name,
                "chat_template": model.builder.source if model.builder else "",
                "bos_token": special.get("bos_token", ""),
                "eos_token": special.get("eos_token", ""),
                "modalities": {"vision": model.sees, "audio": model.hears},
                "build_info": f"oxillama {oxillama.__version__}",
                "is_sleeping": False,
                "sessions": call.state.config.sessions_dir is not None,
            }
        )


# the members of a completion's answer, for `response_fields`
_ANSWER = (
    "index",
    "content",
    "tokens",
    "id_slot",
    "stop",
    "model",
    "tokens_predicted",
    "tokens_evaluated",
    "tokens_cached",
    "generation_settings",
    "prompt",
    "has_new_line",
    "truncated",
    "stop_type",
    "stopping_word",
    "timings",
    "completion_probabilities",
)


def _settings(
    model: ServedModel, sampler: Any, options: Mapping[str, Any], stops: Sequence[str]
) -> dict[str, Any]:
    """A sampler under llama-server's names."""
    return {
        "seed": options.get("seed") if options.get("seed") is not None else sampler.seed,
        "temperature": sampler.temperature,
        "dynatemp_range": sampler.dynatemp_range,
        "dynatemp_exponent": sampler.dynatemp_exponent,
        "top_k": sampler.top_k,
        "top_p": sampler.top_p,
        "min_p": sampler.min_p,
        "top_n_sigma": -1.0 if sampler.top_n_sigma is None else sampler.top_n_sigma,
        "xtc_probability": sampler.xtc_probability,
        "xtc_threshold": sampler.xtc_threshold,
        "typical_p": sampler.typical_p,
        "repeat_last_n": sampler.repetition_window,
        "repeat_penalty": sampler.repetition_penalty,
        "presence_penalty": sampler.presence_penalty,
        "frequency_penalty": sampler.frequency_penalty,
        "dry_multiplier": sampler.dry_multiplier,
        "dry_base": sampler.dry_base,
        "dry_allowed_length": sampler.dry_allowed_length,
        "dry_penalty_last_n": sampler.dry_penalty_last_n,
        "mirostat": sampler.mirostat,
        "mirostat_tau": sampler.mirostat_tau,
        "mirostat_eta": sampler.mirostat_eta,
        "max_tokens": -1 if options.get("max_tokens") is None else options["max_tokens"],
        "n_predict": -1 if options.get("max_tokens") is None else options["max_tokens"],
        "n_keep": options.get("keep", 0),
        "ignore_eos": sampler.ignore_eos,
        "stop": list(stops),
        "stream": bool(options.get("stream", False)),
        "n_probs": options.get("logprobs") or 0,
        "min_keep": 0,
        "grammar": options["grammar"] if isinstance(options.get("grammar"), str) else "",
        "samplers": list(sampler.samplers or oxillama.sampling.REORDERABLE),
        "logit_bias": [
            [token, None if value == float("-inf") else value]
            for token, value in sampler.logit_bias.items()
        ],
        "lora": adapters.in_force(model, options),
    }


# ---- vectors


async def embedding(call: Call) -> Response:
    """POST /embedding"""
    body = call.body
    async with call.model(body.get("model")) as model:
        found, _ = await call.race(
            vectors(call, model, prompts_of(body["content"]), param="content")
        )
        return json_response(
            [{"index": at, "embedding": [each.tolist()]} for at, each in enumerate(found)]
        )


# ---- adapters


async def lora_list(call: Call) -> Response:
    """GET /lora-adapters"""
    async with call.model(call.request.query_params.get("model")) as model:
        return json_response(adapters.listed(model))


async def lora_set(call: Call) -> Response:
    """POST /lora-adapters"""
    async with call.model(call.request.query_params.get("model")) as model:
        await call.offload(adapters.set_scales, model, call.body["list"])
        return json_response({"success": True})


# ---- completions


def _prompts(body: Mapping[str, Any]) -> list[Any]:
    """The prompts of a body: texts, ids, and texts and ids mixed within one. Without one a session
    goes on.
    """
    given = body.get("prompt")
    if given is None and body.get("session") is None:
        raise missing("prompt")
    if given is None:
        return [[]]
    if isinstance(given, str):
        return [given]
    if any(isinstance(each, (int, float)) for each in given):
        return [given]
    return list(given)


def _ids(model: ServedModel, prompt: Any, param: str, *, bounded: bool, special: bool) -> list[int]:
    """The ids of a prompt. In a mixed one each text is encoded separately. special: the first with
    the tokens that begin a text.
    """
    if isinstance(prompt, str):
        return encoded(model, prompt, param=param, bounded=bounded, special=special)
    ids: list[int] = []
    for at, each in enumerate(prompt):
        if isinstance(each, str):
            ids += encoded(model, each, param=f"{param}[{at}]", special=special and at == 0)
        else:
            ids += encoded(model, [int(each)], param=param)
    return ids


def _read(model: ServedModel, body: Mapping[str, Any]) -> table.RequestOptions:
    asked = options_of(model, body)
    constrain(asked, body.get("response_format"), path="response_format")
    if body.get("n_predict") is not None and body.get("max_tokens") is not None:
        raise ApiError(
            400, "max_tokens: found together with n_predict, wanted one of them", param="max_tokens"
        )
    most = body.get("n_predict") if body.get("n_predict") is not None else body.get("max_tokens")
    if most is not None and most >= 0:
        asked.options["max_tokens"] = int(most)
    if body.get("n_probs"):
        asked.options["logprobs"] = int(body["n_probs"])
    elif body.get("post_sampling_probs"):
        raise unsupported("post_sampling_probs", "found without n_probs, wanted both")
    slot = body.get("id_slot")
    if slot is not None and slot >= model.slots:
        raise bad("id_slot", slot, f"-1 to {model.slots - 1}")
    _check_fields(model, body, asked)
    return asked


def _check_fields(model: ServedModel, body: Mapping[str, Any], asked: table.RequestOptions) -> None:
    """Refuse `response_fields` that the answer will not have."""
    for at, field in enumerate(body.get("response_fields") or ()):
        name, slash, inner = field.partition("/")
        within: Collection[str] = ()
        if name == "generation_settings":
            within = _settings(model, asked.sampler, asked.options, asked.stops)
        elif name == "timings":
            within = TIMINGS
        known = name in _ANSWER and (not slash or inner in within)
        if not known or (name == "completion_probabilities" and not body.get("n_probs")):
            raise bad(
                f"response_fields[{at}]",
                field,
                f"one of {', '.join(_ANSWER)} (the last with n_probs), or a member of "
                "generation_settings or timings, like timings/prompt_n",
            )


async def completion(call: Call) -> Response:
    """POST /completion"""
    body = call.body
    async with call.model(body.get("model")) as model:

        def read() -> tuple[table.RequestOptions, list[list[int]]]:
            asked, prompts, name = _read(model, body), _prompts(body), body.get("session")
            if len(prompts) > 1 and name is not None:
                raise ApiError(400, "prompt: found a list in a session, wanted one", param="prompt")
            cut = bool(asked.options.get("truncate_prompt"))
            if name is not None:
                begun = call.state.sessions.begun(name, model)

                def encode(begun: bool) -> list[int]:
                    return _ids(model, prompts[0], "prompt", bounded=not cut, special=not begun)

                return asked, [SessionPrompt(begun, encode)]
            ids = []
            for at, each in enumerate(prompts):
                param = "prompt" if len(prompts) == 1 else f"prompt[{at}]"
                ids.append(_ids(model, each, param, bounded=not cut, special=True))
                if not ids[-1]:
                    raise ApiError(400, f"{param}: found no tokens, wanted 1 or more", param=param)
            return asked, ids

        asked, ids = await call.offload(read)
        many = len(ids) > 1
        return await _generate(call, model, asked, ids, many=many)


async def infill(call: Call) -> Response:
    """POST /infill"""
    body = call.body
    async with call.model(body.get("model")) as model:

        def read() -> tuple[table.RequestOptions, list[list[int]]]:
            return _read(model, body), [
                infill_ids(
                    model,
                    body["input_prefix"],
                    body["input_suffix"],
                    extra=body.get("input_extra") or (),
                    prompt=body.get("prompt") or "",
                )
            ]

        asked, ids = await call.offload(read)
        return await _generate(call, model, asked, ids, many=False)


async def _generate(
    call: Call,
    model: ServedModel,
    asked: table.RequestOptions,
    prompts: list[list[int]],
    *,
    many: bool,
) -> Response:
    body = call.body
    if body.get("stream"):
        if many:
            raise ApiError(400, "stream: found with several prompts, wanted one", param="stream")
        frames = _stream(call, model, asked, prompts[0])

        def failed(error: ApiError) -> bytes:
            return sse.data(error.llama())

        return await sse.EventStream(call, frames, failed=failed).begin()

    turnstile = asyncio.Semaphore(AT_ONCE)

    async def one(at: int) -> dict[str, Any]:
        async with turnstile, _job(call, model, asked, body) as job:
            await job.begin(lambda: _submit(call, model, asked, prompts[at]))
            done = (await job.results())[0]
            return _answer(job, model, asked, done, prompts[at], at)

    async def all_of() -> list[dict[str, Any]]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(at)) for at in range(len(prompts))]
        return [task.result() for task in tasks]

    try:
        found = await call.race(all_of())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return json_response(found if many else found[0])


def _job(
    call: Call, model: ServedModel, asked: table.RequestOptions, body: Mapping[str, Any]
) -> Job:
    job = Job(
        call,
        model,
        param="prompt",
        constraint=asked.constraint,
        params=_settings(
            model,
            asked.sampler,
            {**asked.options, "stream": body.get("stream")},
            asked.stops,
        ),
    )
    slot = body.get("id_slot")
    if slot is not None and slot >= 0:
        job.slot = int(slot)
    return job


def _submit(call: Call, model: ServedModel, asked: table.RequestOptions, ids: list[int]) -> Any:
    """Submit a prompt: in a named session, after the tokens of a slot, or by itself."""
    name, slot = call.body.get("session"), call.body.get("id_slot")
    if name is not None:
        with call.state.sessions.held(name, model, lora=asked.options.get("lora")) as named:
            if isinstance(ids, SessionPrompt):
                ids.follow(len(named.session) > 0)
            if not (ids or len(named.session)):
                raise missing("prompt", "is required, the session is new")
            made = model.engine.submit(ids or None, session=named.session, **asked.options)
            named.changed = True
            return made
    if slot is not None and slot >= 0:
        held = call.state.slot_sessions.get(int(slot))
        wanted = model.engine.loras.resolve(asked.options.get("lora"))
        if wanted is None:
            wanted = model.engine.loras.current
        if held is not None and held[0] is model and _fits(held[1], wanted):
            session = held[1]

            def keep(before: Any) -> None:
                call.state.slot_sessions[int(slot)] = (model, before)

            with copy_on_error(session, keep):
                more = truncate_to_common_prefix(session, ids)
                return model.engine.submit(more, session=session, **asked.options)
    return model.engine.submit(ids, **asked.options)


def _fits(session: Any, adapters: Any) -> bool:
    """Whether a slot's session can be continued with these adapters."""
    return not session.busy and tuple(session.adapters) == tuple(adapters)


def _answer(
    job: Job,
    model: ServedModel,
    asked: table.RequestOptions,
    done: Completion,
    ids: Sequence[int],
    index: int,
) -> dict[str, Any]:
    """The complete answer of one prompt."""
    body, bridge = job.call.body, model.tokenizer()
    usage = usage_of([done])
    stop = stopped_by(done, asked.stops, bridge)
    kind = "limit" if reason_of(done) == "length" else "word" if stop is not None else "eos"
    if done.finish_reason == "cancelled":
        kind = "none"
    answer: dict[str, Any] = {
        "index": index,
        "content": done.text,
        "tokens": list(done.tokens) if body.get("return_tokens") else [],
        "id_slot": job.slot,
        "stop": True,
        "model": adapters.served_as(model, body),
        "tokens_predicted": usage["generated"],
        "tokens_evaluated": usage["prompt"],
        "tokens_cached": usage["cached"],
        "generation_settings": {
            **job.params,
            "seed": done.seed,
        },
        "prompt": bridge.decode(ids, skip_special=False),
        "has_new_line": "\n" in done.text,
        "truncated": bool(done.usage.truncated_tokens or done.usage.context_shifts)
        or fills_context(done, asked.options.get("max_tokens")),
        "stop_type": kind,
        "stopping_word": stop or "",
        "timings": timings_json(job.requests, usage),
    }
    if body.get("n_probs"):
        answer["completion_probabilities"] = _probabilities(
            done.logprobs, bridge, int(body["n_probs"]), bool(body.get("post_sampling_probs"))
        )
    fields = body.get("response_fields")
    if fields:
        out: dict[str, Any] = {}
        for field in fields:
            name, _, inner = field.partition("/")
            out[inner or name] = answer[name][inner] if inner else answer[name]
        return out
    return answer


def _probabilities(
    found: Sequence[Any], bridge: Any, top: int, after: bool
) -> list[dict[str, Any]]:
    """The entries of `completion_probabilities`; `after` the sampler's stages as probabilities."""

    def value(logarithm: float) -> float:
        return math.exp(logarithm) if after else finite(logarithm)

    name, names = ("prob", "top_probs") if after else ("logprob", "top_logprobs")
    out = []
    for each in found:
        text, data = spelled(bridge, each.token)
        ids, values = (
            (each.final_ids, each.final_values) if after else (each.raw_ids, each.raw_values)
        )
        entry: dict[str, Any] = {
            "id": each.token,
            "token": text,
            "bytes": list(data),
            name: value(each.final if after else each.raw),
            names: [],
        }
        for token, logarithm in list(zip(ids, values))[:top]:
            text, data = spelled(bridge, token)
            entry[names].append(
                {"id": token, "token": text, "bytes": list(data), name: value(logarithm)}
            )
        out.append(entry)
    return out


async def _stream(
    call: Call, model: ServedModel, asked: table.RequestOptions, ids: list[int]
) -> AsyncIterator[bytes]:
    """The frames of a completion; the last one says stop: true, and no [DONE] follows."""
    body, bridge = call.body, model.tokenizer()
    async with _job(call, model, asked, body) as job:
        await job.begin(lambda: _submit(call, model, asked, ids))
        generated = 0
        async for came in job.pieces():
            frames = []
            for _, piece in came:
                if isinstance(piece, Completion):
                    last = _answer(job, model, asked, piece, ids, 0)
                    if "content" in last:
                        last["content"] = ""
                    if "tokens" in last:
                        last["tokens"] = []
                    last.pop("completion_probabilities", None)
                    frames.append(sse.data(last))
                    break
                generated += len(piece.tokens)
                frame: dict[str, Any] = {
                    "index": 0,
                    "content": piece.text,
                    "tokens": list(piece.tokens),
                    "stop": False,
                    "id_slot": job.slot,
                    "tokens_predicted": generated,
                    "tokens_evaluated": job.prompt_tokens,
                }
                if body.get("n_probs"):
                    frame["completion_probabilities"] = _probabilities(
                        piece.logprobs,
                        bridge,
                        int(body["n_probs"]),
                        bool(body.get("post_sampling_probs")),
                    )
                if body.get("timings_per_token"):
                    usage = {
                        "prompt": job.prompt_tokens,
                        "cached": job.requests[0].cached,
                        "generated": generated,
                    }
                    frame["timings"] = timings_json(job.requests, usage)
                frames.append(sse.data(frame))
            yield b"".join(frames)
