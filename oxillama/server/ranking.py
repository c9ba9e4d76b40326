"""Scores of pairs of texts: the one place where routes meet what the engine has of rerankers. The
engine runs none yet, so every model is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from oxillama.server.calls import Call
from oxillama.server.errors import ApiError
from oxillama.server.models import Model


async def scores(
    call: Call, model: Model, pairs: Sequence[tuple[str, str]]
) -> tuple[list[float], int]:
    """(the relevance of each pair's second text to its first, tokens in all)."""
    raise ApiError(
        400,
        f"model {model.name}: is no reranker, wanted one that scores pairs of texts",
        param="model",
        code="reranking_not_supported",
    )
