"""`/v1/audio/transcriptions`: a file of speech as text, for models that have a form of prompt for
it (`oxillama.transcription`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from oxillama.completion import Completion
from oxillama.errors import ConfigError, EngineError
from oxillama.media.messages import MediaPart
from oxillama.server.calls import Call, json_response
from oxillama.server.chat import without_encoder
from oxillama.server.errors import ApiError, unsupported
from oxillama.server.models import ServedModel
from oxillama.server.schema import BOOLEAN, NAME, STRING, Schema, enum, number, obj
from oxillama.server.work import Job, usage_of
from oxillama.transcription import (
    Transcript,
    form_of,
    shown_tokens,
    transcript,
    transcription_prompt,
)

BODY: Schema = obj(
    {
        "file": {"type": "string", "format": "binary"},
        "model": NAME,
        "language": STRING,
        "prompt": STRING,
        "response_format": enum("json", "text", "srt", "verbose_json", "vtt"),
        "temperature": number(0, 2),
        "stream": BOOLEAN,
    },
    ("file",),
)


async def create(call: Call) -> Response:
    """POST /v1/audio/transcriptions"""
    body = call.body
    kind = body.get("response_format") or "json"
    if kind not in ("json", "text"):
        raise unsupported("response_format", f"found {kind!r}, wanted 'json' or 'text'")
    if body.get("stream"):
        raise unsupported("stream", "found true, wanted false")
    async with call.model(body.get("model")) as model:
        params = {"temperature": body.get("temperature", 0.0)}

        async def whole() -> list[Completion]:
            async with Job(call, model, param="file", params=params) as job:
                await job.begin(lambda: _submit(model, body))
                return await job.results()

        done = await call.race(whole())
        said = transcript(model.tokenizer(), body.get("language"), done[0])
        return _answer(said, kind, usage_of(done))


def _submit(model: ServedModel, body: Mapping[str, Any]) -> Any:
    """The request for a file's text, off the event loop."""
    media, bridge = model.engine.loaded.media, model.tokenizer()
    if media is None or "audio" not in media.kinds:
        raise without_encoder(MediaPart("audio", "file", None))
    try:
        form_of(bridge)
    except EngineError as error:
        raise ApiError(400, str(error), param="model", code="transcription_not_supported") from None
    language, words = body.get("language"), body.get("prompt")
    try:
        prompt = transcription_prompt(
            media, body["file"], language=language, prompt=words, name="file"
        )
    except ConfigError as error:
        name = str(error).partition(":")[0]
        raise ApiError(400, str(error), param=name) from None
    return model.engine.submit(
        prompt,
        temperature=body.get("temperature", 0.0),
        shown_tokens=shown_tokens(bridge),
    )


def _answer(said: Transcript, kind: str, usage: Mapping[str, int]) -> Response:
    if kind == "text":
        return Response(said.text + "\n", media_type="text/plain; charset=utf-8")
    counted = {
        "type": "tokens",
        "input_tokens": usage["prompt"],
        "output_tokens": usage["generated"],
        "total_tokens": usage["prompt"] + usage["generated"],
    }
    return json_response({"text": said.text, "usage": counted})
