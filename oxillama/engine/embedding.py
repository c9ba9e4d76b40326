"""Results for a whole text: logits or hidden rows of every token, vectors pooled from them, and how
relevant documents are to a query.

Rows arrive in chunks; pooling gives the same bits as if they arrived at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from oxillama.arguments import listable
from oxillama.engine.engine import EngineCore
from oxillama.engine.request import EmbedRequest, Request, RowsRequest, all_finished, finished
from oxillama.errors import (
    ConfigError,
    EmptySequence,
    SamplingError,
    TemplateError,
    TokenizerError,
)
from oxillama.tokenizer import TokenizerBridge
from oxillama.tokenizer.provenance import TemplateText, concat, from_message

if TYPE_CHECKING:
    from oxillama.model.load import Model


# of a model that is asked in words, the text around a query and a document
TEMPLATE = "tokenizer.chat_template.rerank"
_PLACES = re.compile(r"\{(query|document)\}")


def submit_rows(
    core: EngineCore,
    ids: Sequence[int],
    sink: Callable[[int, np.ndarray], None],
    *,
    hidden: bool = False,
    owner: Any = None,
    adapters: Any = None,
) -> Request:
    """Call `sink(first position, rows)` with float32 (rows, vocabulary) or (rows, hidden) of every
    token in order, one chunk at a time.

    The request keeps `owner` alive while it runs.
    """
    request = core.request(
        EmbedRequest if hidden else RowsRequest, core.new_session(ids, adapters=adapters)
    )
    request.on_rows, request.owner = sink, owner
    return core.submit(request)


def all_logits(
    core: EngineCore, ids: Sequence[int], *, owner: Any = None, adapters: Any = None
) -> np.ndarray:
    """float32 (len(ids), vocabulary): row i predicts token i + 1."""
    out = np.empty((len(ids), core.program.vocab_size), np.float32)

    def rows(first: int, values: np.ndarray) -> None:
        out[first : first + len(values)] = values

    finished(submit_rows(core, ids, rows, owner=owner, adapters=adapters))
    return out


class PoolingMode(Enum):
    """How the hidden rows (tokens, hidden) of a text become one vector (hidden,).

    LAST, CLS: the last row, the first row. MEAN, MAX: the mean or the largest value of each column.
    NONE keeps all rows, (tokens, hidden). RANK gives the scores of the model's classifier,
    (labels,), instead.
    """

    LAST = "last"
    MEAN = "mean"
    MAX = "max"
    CLS = "cls"
    NONE = "none"
    RANK = "rank"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ConfigError(
            f"pooling: found {value!r:.50}, wanted one of {', '.join(each.value for each in cls)}"
        )

    @classmethod
    def of(cls, value: PoolingMode | str) -> PoolingMode:
        """The mode with that name; ConfigError for an unknown name."""
        return cls(value) if isinstance(value, (cls, str)) else cls._missing_(value)


class Pooler:
    """Collects hidden rows (rows, hidden) float32 in order of position, one chunk at a time;
    `result` is the pooled vector.

    Means are summed in double precision, row by row, so that chunks do not change the result. then:
    a function applied to the pooled vector before it is normalised, not used without pooling.
    """

    __slots__ = ("_kept", "_rows", "_then", "mode", "normalize")

    def __init__(
        self,
        mode: PoolingMode,
        *,
        normalize: bool = True,
        then: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        if mode is PoolingMode.RANK:
            raise ConfigError("pooling: found rank, wanted that of the classifier's rows")
        self.mode, self.normalize, self._then = mode, normalize, then
        self._rows = 0
        self._kept: Any = None

    def add(self, first: int, rows: np.ndarray) -> None:
        """Add rows of positions from `first` on; rows that were added before are skipped."""
        rows = rows[self._rows - first :]
        if not len(rows):
            return
        self._rows += len(rows)
        if self.mode is PoolingMode.NONE:
            self._kept = [*(self._kept or ()), rows.copy()]
        elif self.mode is PoolingMode.LAST:
            self._kept = rows[-1].copy()
        elif self.mode is PoolingMode.CLS:
            self._kept = rows[0].copy() if self._kept is None else self._kept
        elif self.mode is PoolingMode.MAX:
            top = rows.max(axis=0)
            self._kept = top if self._kept is None else np.maximum(self._kept, top)
        else:
            total = np.zeros(rows.shape[1]) if self._kept is None else self._kept
            for row in rows:
                total = total + row
            self._kept = total

    def result(self) -> np.ndarray:
        """float32 (hidden,), or (rows, hidden) without pooling; each of length 1 if normalised.
        EmptySequence without rows; SamplingError for numbers that are not finite, as where logits
        are not.
        """
        if self._kept is None:
            raise EmptySequence("embedding: found no tokens, wanted 1 or more")
        if self.mode is PoolingMode.NONE:
            out = np.concatenate(self._kept)
        elif self.mode is PoolingMode.MEAN:
            out = (self._kept / self._rows).astype(np.float32)
        else:
            out = self._kept
        if self._then is not None and self.mode is not PoolingMode.NONE:
            out = self._then(out)
        if not np.isfinite(out).all():
            # of weights, or of an adapter at a scale, whose sums float32 cannot hold
            wrong = out[~np.isfinite(out)][0]
            raise SamplingError(f"embedding: found {wrong}, wanted finite numbers")
        if self.normalize:
            wide = out.astype(np.float64)
            size = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
            out = (wide / np.where(size > 0, size, 1.0)).astype(np.float32)
        return out


def pooling_of(model: Model, asked: PoolingMode | str | None) -> PoolingMode:
    """The mode asked for, otherwise the file's, otherwise the mean of the rows."""
    return PoolingMode.of(model.config.pooling or "mean" if asked is None else asked)


def pooler_of(
    model: Model | None, pooling: PoolingMode | str | None, normalize: bool | None
) -> Pooler:
    """The pooler for a text; ConfigError for a pooling that the model does not support.

    normalize: None means length 1 for vectors, and unchanged scores.
    """
    mode = PoolingMode.of(pooling or "mean") if model is None else pooling_of(model, pooling)
    if normalize is not None and not isinstance(normalize, bool):
        raise ConfigError(f"normalize: found {normalize!r}, wanted True, False or None")
    if mode is not PoolingMode.RANK:
        then = None if model is None else model.projection
        return Pooler(mode, normalize=normalize is not False, then=then)
    head = None if model is None else model.classifier
    if head is None:
        name = "this model" if model is None else model.config.architecture
        raise ConfigError(
            f"pooling: found rank, {name} has no classifier in its file (cls.output.weight)"
        )
    if normalize:
        raise ConfigError(
            "normalize: found True and pooling 'rank', wanted False: scores are not a vector"
        )
    return Pooler(PoolingMode(head.pooling), normalize=False, then=head)


def submit_embedding(
    core: EngineCore,
    ids: Sequence[int],
    *,
    pooling: PoolingMode | str | None = None,
    normalize: bool | None = None,
    model: Model | None = None,
    owner: Any = None,
    adapters: Any = None,
) -> tuple[Request, Pooler]:
    """Start an embedding of token ids: the request, and the pooler that has the vector when it has
    ended.
    """
    pooler = pooler_of(model, pooling, normalize)
    if not ids:
        raise EmptySequence("embed: found no tokens, wanted 1 or more")
    return submit_rows(core, ids, pooler.add, hidden=True, owner=owner, adapters=adapters), pooler


def all_pooled(work: Iterable[tuple[Request, Pooler]]) -> list[np.ndarray]:
    """The vectors of embeddings that start as they are iterated; an error of one cancels all."""
    poolers: list[Pooler] = []

    def begun() -> Iterator[Request]:
        for request, pooler in work:
            poolers.append(pooler)
            yield request

    all_finished(begun())
    return [pooler.result() for pooler in poolers]


def batch_of(
    model: Model, texts: Any, pooling: PoolingMode | str | None, normalize: bool | None
) -> tuple[list[Any], PoolingMode]:
    """The texts of a batch as a list, and how their rows are pooled; ConfigError for a single text,
    and for a pooling that the model does not support.
    """
    if isinstance(texts, (str, bytes)) or not listable(texts):
        raise ConfigError(
            f"embed_batch: found {type(texts).__name__}, wanted a list of texts; `embed` takes one"
        )
    pooler_of(model, pooling, normalize)
    return list(texts), pooling_of(model, pooling)


def stacked(
    core: EngineCore, model: Model, vectors: list[np.ndarray], pooling: PoolingMode
) -> np.ndarray | list[np.ndarray]:
    """The vectors of a batch as rows of one array; rows of all tokens stay a list."""
    if pooling is PoolingMode.NONE:
        return vectors
    if vectors:
        return np.stack(vectors)
    labels = len(model.config.labels)
    width = labels if pooling is PoolingMode.RANK else core.program.hidden_size
    return np.empty((0, width), np.float32)


class RankedDocument(NamedTuple):
    """A document of `rerank`: its index in the list given, and its score."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    score: float


def scored_label(model: Model, label: str | None) -> int:
    """The index of the score that says how relevant a document is; ConfigError for a model without
    a classifier, or if the caller must choose one of several labels.
    """
    head = model.classifier
    if head is None:
        raise ConfigError(
            f"rerank: {model.config.architecture} has no classifier in its file "
            "(cls.output.weight), wanted a reranker"
        )
    if label is not None:
        if label not in head.labels:
            raise ConfigError(f"label: found {label!r}, wanted one of {', '.join(head.labels)}")
        return head.labels.index(label)
    if head.score is None:
        raise ConfigError(
            f"label: found none, the classifier has {len(head.labels)}; wanted one of "
            f"{', '.join(head.labels)}"
        )
    return head.score


def pair_ids(model: Model, bridge: TokenizerBridge, query: str, document: str) -> list[int]:
    """The ids of a query and a document as the model reads them: in the file's template if it has
    one, otherwise as a pair of texts.
    """
    for name, text in (("query", query), ("document", document)):
        if not isinstance(text, str):
            raise TokenizerError(f"{name}: found {type(text).__name__}, wanted str")
    template = model.reader.metadata.get(TEMPLATE)
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


def pairs_of(model: Model, bridge: TokenizerBridge, query: str, documents: Any) -> list[list[int]]:
    """`pair_ids` of a query and each of the documents; an error names the document."""
    if isinstance(documents, (str, bytes)) or not listable(documents):
        raise ConfigError(
            f"rerank: found {type(documents).__name__}, wanted a list of documents; `score` takes "
            "one"
        )
    documents = list(documents)
    for at, document in enumerate(documents):
        if not isinstance(document, str):
            raise TokenizerError(f"documents[{at}]: found {type(document).__name__}, wanted str")
    return [pair_ids(model, bridge, query, each) for each in documents]


def ranked(scores: Iterable[float | np.floating], top_n: int | None) -> list[RankedDocument]:
    """Documents by score, best first, equal ones in their original order; only the first
    `top_n`.
    """
    found = [RankedDocument(index, float(score)) for index, score in enumerate(scores)]
    return sorted(found, key=lambda each: (-each.score, each.index))[:top_n]
