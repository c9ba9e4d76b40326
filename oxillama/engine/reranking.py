"""How relevant documents are to a query: the texts that a reranker reads, and the order of its scores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from oxillama.errors import ConfigError, TemplateError, TokenizerError
from oxillama.tokenizer import TokenizerBridge
from oxillama.tokenizer.provenance import TemplateText, concat, from_message

if TYPE_CHECKING:
    from oxillama.model.load import Model

# of a model that is asked in words, the text around a query and a document
TEMPLATE = "tokenizer.chat_template.rerank"
_PLACES = re.compile(r"\{(query|document)\}")


class RankedDocument(NamedTuple):
    """A document of `rerank`: its place in the list that was given, and its score."""

    index: int  # type: ignore[assignment]  # nobody asks a document for the method
    score: float


def scored_label(model: Model, label: str | None) -> int:
    """The number of the score that says how relevant a document is; ConfigError for a model without a
    classifier, and where only the caller can say which of several labels it is.
    """
    head = model.classifier
    if head is None:
        raise ConfigError(
            f"rerank: {model.config.architecture} has no classifier in its file (cls.output.weight), wanted a reranker"
        )
    if label is not None:
        if label not in head.labels:
            raise ConfigError(f"label: found {label!r}, wanted one of {', '.join(head.labels)}")
        return head.labels.index(label)
    if head.score is None:
        raise ConfigError(
            f"label: found none, the classifier has {len(head.labels)}; wanted one of {', '.join(head.labels)}"
        )
    return head.score


def pair_ids(
    bridge: TokenizerBridge, metadata: Mapping[str, Any], query: str, document: str
) -> list[int]:
    """The ids of a query and a document as the model reads them: in the file's template where it has
    one, else as a pair of texts.
    """
    for name, text in (("query", query), ("document", document)):
        if not isinstance(text, str):
            raise TokenizerError(f"{name}: found {type(text).__name__}, wanted str")
    template = metadata.get(TEMPLATE)
    if template is None:
        return bridge.encode_pair(query, document)
    if not isinstance(template, str) or sorted(_PLACES.findall(template)) != ["document", "query"]:
        raise TemplateError(f"{TEMPLATE}: wanted a text with one {{query}} and one {{document}}")
    places = {"query": query, "document": document}
    # every other part is the name of a place
    parts = _PLACES.split(template)
    pieces = [from_message(places[part]) if at % 2 else part for at, part in enumerate(parts)]
    text = concat(pieces)
    made = text if isinstance(text, TemplateText) else TemplateText(text, bytes(len(text)))
    return bridge.encode(made, add_special=False)


def ranked(scores: Iterable[float | np.floating], top_n: int | None) -> list[RankedDocument]:
    """Documents by score, the best first, equal ones in their own order; the first `top_n`."""
    found = [RankedDocument(index, float(score)) for index, score in enumerate(scores)]
    return sorted(found, key=lambda each: (-each.score, each.index))[:top_n]
