"""Scores of pairs of texts, from the engine's rerankers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oxillama.engine.embedding import PoolingMode, pair_ids, scored_label
from oxillama.errors import ConfigError
from oxillama.server import adapters
from oxillama.server.calls import Call
from oxillama.server.embeddings import pooled
from oxillama.server.errors import ApiError
from oxillama.server.models import ServedModel
from oxillama.server.work import Job


async def scores(
    call: Call, model: ServedModel, pairs: Sequence[tuple[str, str]], param: str
) -> tuple[list[float], int]:
    """(the relevance of each pair's second text to its first, tokens in all); 400 for a model
    without a classifier, and for a pair longer than the context. param: the field of the second
    texts.
    """
    counts: list[int] = []
    numbers: list[int] = []
    options: dict[str, Any] = {"pooling": PoolingMode.RANK}

    def prompts() -> list[list[int]]:
        engine = model.engine
        try:
            numbers.append(scored_label(engine.loaded.model, None))
        except ConfigError as error:
            raise ApiError(
                400,
                f"model {model.name}: is not a reranker: {error}",
                param="model",
                code="reranking_not_supported",
            ) from None
        ids = []
        for at, (query, document) in enumerate(pairs):
            found = pair_ids(engine.loaded.model, engine.tokenizer, query, document)
            if len(found) > engine.context_size:
                raise ApiError(
                    400,
                    f"{param}[{at}]: {len(found)} tokens with the query, "
                    f"the context holds {engine.context_size}",
                    param=f"{param}[{at}]",
                    code="context_length_exceeded",
                )
            ids.append(found)
        counts.append(sum(map(len, ids)))
        options.update(adapters.resolved(model, call.body))
        return ids

    def submit(ids: list[int]) -> Any:
        return model.engine.submit_embedding(ids, **options)

    async with Job(call, model, param=param) as job:
        found = await pooled(job, prompts, submit)
    return [float(each[numbers[0]]) for each in found], counts[0]
