"""Scores of pairs of texts, from the engine's rerankers."""

from __future__ import annotations

from collections.abc import Sequence

from oxillama.engine.embedding import PoolingMode, pair_ids, scored_label
from oxillama.errors import ConfigError
from oxillama.server import adapters
from oxillama.server.calls import Call
from oxillama.server.embeddings import Batch
from oxillama.server.errors import ApiError
from oxillama.server.models import Model
from oxillama.server.work import Job


async def scores(
    call: Call, model: Model, pairs: Sequence[tuple[str, str]], param: str
) -> tuple[list[float], int]:
    """(the relevance of each pair's second text to its first, tokens in all); 400 for a model
    without a classifier, and for a pair longer than the context. param: the field of the second
    texts.
    """
    counts: list[int] = []
    numbers: list[int] = []

    def begin() -> Batch:
        engine = model.engine
        try:
            numbers.append(scored_label(engine.opened.model, None))
        except ConfigError as error:
            raise ApiError(
                400,
                f"model {model.name}: is not a reranker: {error}",
                param="model",
                code="reranking_not_supported",
            ) from None
        ids = []
        for at, (query, document) in enumerate(pairs):
            found = pair_ids(engine.tokenizer, model.metadata, query, document)
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
        lora = adapters.asked(model, call.body)
        return Batch(
            engine.submit_embedding(each, pooling=PoolingMode.RANK, **lora) for each in ids
        )

    async with Job(call, model, param=param) as job:
        await job.begin(begin)
        found = await job.results()
    return [float(each[numbers[0]]) for each in found], counts[0]
