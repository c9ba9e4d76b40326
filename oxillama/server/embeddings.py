"""Vectors of texts: `/v1/embeddings`, and what the other dialects' routes for vectors share."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from starlette.responses import Response

from oxillama.engine.embedding import PoolingMode
from oxillama.engine.request import Request
from oxillama.server import adapters
from oxillama.server.calls import Call, json_response
from oxillama.server.errors import ApiError, bad
from oxillama.server.fields import EXCEPTIONS, PROMPT, encoded, prompts_of, too_long
from oxillama.server.models import ServedModel
from oxillama.server.schema import BOOLEAN, NAME, Schema, enum, integer, obj
from oxillama.server.work import Job

_MODES = tuple(mode.value for mode in PoolingMode if mode is not PoolingMode.NONE)

BODY: Schema = obj(
    {
        **EXCEPTIONS,
        "model": NAME,
        "input": PROMPT,
        "encoding_format": enum("float", "base64"),
        "dimensions": integer(1),
        "pooling": enum(*_MODES),
        "normalize": BOOLEAN,
        "lora": adapters.LORA,
    },
    ("input",),
)


_WAVE = 32  # texts of one body that are submitted together; two such waves run at once


class Batch:
    """Embeddings that run together, one piece of work for a `Job`."""

    def __init__(self, submitted: Iterable[tuple[Request, Any]]) -> None:
        """submitted: submits each as it is asked for; if one is refused, those before it end."""
        self.requests: list[Request] = []
        self._poolers: list[Any] = []
        try:
            for request, pooler in submitted:
                self.requests.append(request)
                self._poolers.append(pooler)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop all of them."""
        for request in self.requests:
            request.cancel()

    def result(self, timeout: float | None = None) -> list[np.ndarray]:
        """The vectors in order."""
        for request in self.requests:
            request.result(timeout)
        return [pooler.result() for pooler in self._poolers]


async def pooled(
    job: Job, prompts: Callable[[], list[list[int]]], submit: Callable[[list[int]], Any]
) -> list[np.ndarray]:
    """What comes of the prompts of a body, in their order. prompts: makes them; submit: submits
    one. The engine takes requests in the order in which they come, so it gets the prompts a few at
    a time: the requests of others do not wait for all of them.
    """
    waves: list[list[list[int]]] = []

    def begin() -> Batch:
        ids = prompts()
        waves.extend(ids[at : at + _WAVE] for at in range(0, len(ids), _WAVE))
        return Batch(map(submit, waves[0]))

    running = deque([await job.begin(begin)])
    found: list[np.ndarray] = []
    for wave in waves[1:]:
        running.append(await job.begin(partial(Batch, map(submit, wave))))
        found += await job.results(running.popleft())
    return found + await job.results(running.popleft())


async def vectors(
    call: Call,
    model: ServedModel,
    texts: Sequence[str | Sequence[int]],
    *,
    param: str = "input",
    pooling: str | None = None,
    normalize: bool = True,
    dimensions: int | None = None,
    truncate: bool | None = None,
) -> tuple[list[np.ndarray], int]:
    """(float32 vectors, tokens in all). truncate: whether a text is cut to the context, None if the
    route has no such field.
    """
    help = "" if truncate is None else '; wanted fewer, or "truncate": true, which cuts it'
    hidden = model.engine.config.hidden_size
    if dimensions is not None and dimensions > hidden:
        raise bad("dimensions", dimensions, f"at most {hidden}, which the model has")
    if len(texts) > call.state.config.max_batch_inputs:
        raise ApiError(
            400,
            f"{param}: found {len(texts)} inputs, wanted at most "
            f"{call.state.config.max_batch_inputs}",
            param=param,
        )
    if pooling is None and normalize and model.engine.config.pooling == PoolingMode.RANK.value:
        raise ApiError(
            400,
            f"model {model.name}: is a reranker, whose scores are not vectors; /v1/rerank and "
            "/v1/score give them",
            param="model",
            code="embeddings_not_supported",
        )
    counts: list[int] = []
    options: dict[str, Any] = {}

    def prompts() -> list[list[int]]:
        ids = [
            _encoded(
                model,
                text,
                param if len(texts) == 1 else f"{param}[{at}]",
                truncate=bool(truncate),
                help=help,
            )
            for at, text in enumerate(texts)
        ]
        counts.append(sum(map(len, ids)))
        options.update(adapters.resolved(model, call.body), normalize=normalize)
        options.update({"pooling": pooling} if pooling else {})
        return ids

    def submit(ids: list[int]) -> Any:
        return model.engine.submit_embedding(ids, **options)

    async with Job(call, model, param=param) as job:
        found = await pooled(job, prompts, submit)
    if dimensions is not None:
        found = [_cut(each, dimensions, normalize) for each in found]
    return found, counts[0]


def _encoded(
    model: ServedModel, text: str | Sequence[int], where: str, *, truncate: bool, help: str
) -> list[int]:
    """The ids of a text that fits into the context, or is cut to it. where: its name in errors;
    help: what may be done.
    """
    if not text:
        raise ApiError(400, f"{where}: is empty, wanted text or token ids", param=where)
    if not truncate and isinstance(text, str) and model.too_long(text):
        raise too_long(model, where, len(text), help)
    ids, most = encoded(model, text, param=where, bounded=False), model.engine.context_size
    if len(ids) > most and truncate:
        ids = _shortened(ids, most, model.tokenizer().vocabulary)
    if len(ids) > most:
        raise ApiError(
            400,
            f"{where}: {len(ids)} tokens, the context holds {most}{help}",
            param=where,
            code="context_length_exceeded",
        )
    return ids


def _shortened(ids: list[int], most: int, vocabulary: Any) -> list[int]:
    """The first of a text's ids, and the tokens that the vocabulary puts after a text, which some
    models take the vector from.
    """
    end = len(ids) - vocabulary.add_sep - vocabulary.add_eos
    return [*ids[: max(0, end - (len(ids) - most))], *ids[end:]][:most]


def _cut(vector: np.ndarray, size: int, normalize: bool) -> np.ndarray:
    """The first numbers of a vector, normalised to length 1 again."""
    wide = vector[:size].astype(np.float64)
    length = float(np.sqrt((wide * wide).sum()))
    return (wide / length if normalize and length > 0 else wide).astype(np.float32)


async def embeddings(call: Call) -> Response:
    """POST /v1/embeddings"""
    body = call.body
    async with call.model(body.get("model")) as model:
        found, tokens = await call.race(
            vectors(
                call,
                model,
                prompts_of(body["input"]),
                pooling=body.get("pooling"),
                normalize=body.get("normalize") is not False,
                dimensions=_int(body, "dimensions"),
            )
        )
        as_text = body.get("encoding_format") == "base64"
        data = await call.offload(
            lambda: [
                {
                    "object": "embedding",
                    "index": at,
                    "embedding": base64.b64encode(each.astype("<f4").tobytes()).decode()
                    if as_text
                    else each.tolist(),
                }
                for at, each in enumerate(found)
            ]
        )
        return json_response(
            {
                "object": "list",
                "data": data,
                "model": adapters.served_as(model, body),
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )


def _int(body: Mapping[str, Any], name: str) -> int | None:
    return None if body.get(name) is None else int(body[name])
