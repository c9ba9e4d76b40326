"""vLLM's routes: scores and reranking, adapters by name, the version, and `/metrics`."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from starlette.responses import PlainTextResponse, Response

import oxillama
from oxillama.engine.metrics import MetricsSnapshot
from oxillama.errors import OxillamaError
from oxillama.server import adapters, ranking
from oxillama.server.calls import Call, json_response
from oxillama.server.errors import ApiError, unsupported
from oxillama.server.fields import EXCEPTIONS
from oxillama.server.ids import new_id
from oxillama.server.metrics import CONTENT_TYPE, ModelMetrics, exposition
from oxillama.server.models import ServedModel
from oxillama.server.schema import (
    BOOLEAN,
    NAME,
    TRUE,
    Schema,
    array,
    integer,
    obj,
    one_of,
)
from oxillama.server.state import ServerState

_TEXT = {"type": "string", "minLength": 1}
_DOCUMENTS = array(one_of(_TEXT, obj({"text": _TEXT}, ("text",))), 1, 2048)
RERANK_BODY: Schema = obj(
    {
        **EXCEPTIONS,
        "model": NAME,
        "query": _TEXT,
        "documents": _DOCUMENTS,
        "texts": array(_TEXT, 1, 2048),
        "top_n": integer(1),
        "return_documents": BOOLEAN,
        "return_text": BOOLEAN,
        # scores are the classifier's own
        "raw_scores": TRUE,
        "lora": adapters.LORA,
    },
    ("query",),
)
_ONE_OR_MANY = one_of(_TEXT, array(_TEXT, 1, 2048))
SCORE_BODY: Schema = obj(
    {
        **EXCEPTIONS,
        "model": NAME,
        "text_1": _ONE_OR_MANY,
        "text_2": _ONE_OR_MANY,
        "lora": adapters.LORA,
        "encoding_format": {"type": "string", "enum": ["float"]},
    },
    ("text_1", "text_2"),
)
LOAD_BODY: Schema = obj(
    {
        "lora_name": NAME,
        "lora_path": {"type": "string", "minLength": 1, "maxLength": 4096},
        "load_inplace": BOOLEAN,
        "model": NAME,
    },
    ("lora_name", "lora_path"),
)
UNLOAD_BODY: Schema = obj(
    {"lora_name": NAME, "lora_int_id": integer(0), "model": NAME}, ("lora_name",)
)


async def rerank(call: Call) -> Response:
    """POST /v1/rerank; a body with `texts` gets an answer in the form of
    text-embeddings-inference.
    """
    body = call.body
    given = [name for name in ("documents", "texts") if body.get(name)]
    if len(given) != 1:
        raise ApiError(
            400,
            "documents: is required" if not given else "texts: found together with documents",
            param="documents" if not given else "texts",
            code="missing_required_parameter" if not given else None,
        )
    others = ("return_text", "raw_scores") if given == ["documents"] else ("return_documents",)
    for name in others:
        if body.get(name) is not None:
            raise unsupported(name, f"is of no use with {given[0]}")
    texts = [each if isinstance(each, str) else each["text"] for each in body[given[0]]]
    async with call.model(body.get("model")) as model:
        found, tokens = await call.race(
            ranking.scores(call, model, [(body["query"], text) for text in texts], given[0])
        )
        order = sorted(range(len(texts)), key=lambda at: -found[at])
        order = order[: int(body.get("top_n") or len(order))]
        if given == ["texts"]:
            rows: list[dict[str, Any]] = [{"index": at, "score": found[at]} for at in order]
            if body.get("return_text"):
                rows = [{**row, "text": texts[row["index"]]} for row in rows]
            return json_response(rows)
        results: list[dict[str, Any]] = [
            {"index": at, "relevance_score": found[at]} for at in order
        ]
        if body.get("return_documents") is not False:
            results = [{**row, "document": {"text": texts[row["index"]]}} for row in results]
        return json_response(
            {
                "id": new_id("rerank-"),
                "model": adapters.served_as(model, body),
                "object": "list",
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "results": results,
            }
        )


async def score(call: Call) -> Response:
    """POST /v1/score"""
    body = call.body
    one, other = (
        [body[name]] if isinstance(body[name], str) else body[name] for name in ("text_1", "text_2")
    )
    if len(one) not in (1, len(other)):
        raise ApiError(
            400,
            f"text_1: found {len(one)} texts and {len(other)} of text_2, wanted 1 or as many",
            param="text_1",
        )
    pairs = list(zip(one * len(other) if len(one) == 1 else one, other))
    async with call.model(body.get("model")) as model:
        found, tokens = await call.race(ranking.scores(call, model, pairs, "text_2"))
        return json_response(
            {
                "id": new_id("score-"),
                "object": "list",
                "created": int(time.time()),
                "model": adapters.served_as(model, body),
                "data": [
                    {"index": at, "object": "score", "score": value}
                    for at, value in enumerate(found)
                ],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )


async def load_lora(call: Call) -> Response:
    """POST /v1/load_lora_adapter"""
    body = call.body
    async with call.model(body.get("model")) as model:
        await call.offload(
            adapters.load,
            model,
            body["lora_name"],
            body["lora_path"],
            replace=bool(body.get("load_inplace")),
            taken=list(call.state.models.known()),
        )
        return PlainTextResponse(f"Success: LoRA adapter '{body['lora_name']}' added successfully.")


async def unload_lora(call: Call) -> Response:
    """POST /v1/unload_lora_adapter"""
    body = call.body
    async with call.model(body.get("model")) as model:
        await call.offload(adapters.unload, model, body["lora_name"], body.get("lora_int_id"))
        return PlainTextResponse(
            f"Success: LoRA adapter '{body['lora_name']}' removed successfully."
        )


async def version(call: Call) -> Response:
    """GET /version"""
    return json_response({"version": oxillama.__version__})


async def metrics(call: Call) -> Response:
    """GET /metrics"""
    state = call.state
    # copied here, where requests add to them
    requests, known = state.requests_total.copy(), tuple(state.metrics)

    def gather() -> str:
        loaded = {model.name: model for model in state.models.loaded()}
        names = dict.fromkeys((*loaded, *known))
        return exposition(
            [_counted(state, name, loaded.get(name)) for name in names],
            _gauges(state, len(loaded)),
            requests,
        )

    return Response(await call.offload(gather), headers={"content-type": CONTENT_TYPE})


def _counted(
    state: ServerState, name: str, model: ServedModel | None
) -> tuple[str, ModelMetrics, MetricsSnapshot | None, int | None]:
    """What is known of one model, loaded or not."""
    engine, pages = None, None
    if model is not None:
        with suppress(OxillamaError):  # it failed, or was just unloaded
            pages = model.engine.engine_config.max_pages or _most_pages(model)
            # what is still prepared waits, too
            engine = replace(model.engine.metrics(), requests_waiting=state.waiting(name))
    return name, state.metrics[name], engine, pages


def _gauges(state: ServerState, loaded: int) -> dict[str, tuple[str, str, Any]]:
    """What is counted of the server itself: name -> (kind, help, value)."""
    rows = (
        ("requests_active", "gauge", "Generations that run or wait.", len(state.active)),
        (
            "disconnects_total",
            "counter",
            "Clients that left before their answer.",
            state.disconnects,
        ),
        ("refused_total", "counter", "Requests refused for a full queue.", state.refused),
        ("sessions", "gauge", "Named sessions in memory.", state.sessions.count),
        ("models_loaded", "gauge", "Models in memory.", loaded),
        (
            "start_time_seconds",
            "gauge",
            "When the server started, in seconds since 1970.",
            state.started_at,
        ),
    )
    return {f"oxillama_server_{name}": (kind, about, value) for name, kind, about, value in rows}


def _most_pages(model: ServedModel) -> int:
    """The number of pages that all running sequences could use at full length."""
    size = model.engine.engine_config.page_size
    return model.slots * -(-model.engine.context_size // size)
