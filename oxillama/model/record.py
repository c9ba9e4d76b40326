"""Records a file: its keys are read, its architecture is recorded and lowered to a tape, and every
key and tensor is accounted for. No matrix is read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby

from oxillama.errors import ConfigError, ModelError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys
from oxillama.model import arch as _arch  # noqa: F401  (importing it registers every architecture)
from oxillama.model.accounts import check_keys
from oxillama.model.assistant import ARCH as ASSISTANT
from oxillama.model.builder import Builder, Classifier, Filling, Value, recorders
from oxillama.model.dflash import ARCH as DFLASH
from oxillama.model.eagle import ARCH as EAGLE
from oxillama.model.lower import Tape, lower
from oxillama.model.mtp_file import is_further
from oxillama.model.rope import AS_FILED, RopeOverrides, context_in_force
from oxillama.model.state import LayerState, Slot

# the values of `pooling_type`, in order
POOLINGS = ("none", "mean", "cls", "last", "rank")

# files that are used beside a model, and how
_NOT_MODELS = {
    "adapter": "a LoRA adapter is given beside its base model, with --lora or lora=",
    "imatrix": "an importance matrix is given to `oxillama quantize --imatrix`",
}

# Architectures of files that hold no next-token model or encoder of texts, and what they do.
_DRAFTS_BESIDE = "drafts for another model, which is loaded with it (speculative=, --speculative)"
_SPEAKS = "makes sound"
NOT_GENERATING = {
    **dict.fromkeys((EAGLE, DFLASH, ASSISTANT), _DRAFTS_BESIDE),
    **dict.fromkeys(("wavtokenizer-dec", "pockettts", "qwen3tts"), _SPEAKS),
    "clip": "encodes images or sound for another model (mmproj)",
    "controlvector": "changes the rows of another model, which is not supported,",
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and properties of a model for higher layers, without tensors. hidden_size: floats of a
    row of the embedding.
    """

    architecture: str
    name: str
    context_length: int
    vocab_size: int
    hidden_size: int
    layers: int
    states: tuple[LayerState, ...]
    # a row sees no token after its own; else all of a text must be in one step
    causal: bool = True
    # whether there are logits of tokens: of the next one, or of what masks stand for
    generates: bool = True
    # how the file says that the rows of a text become one vector: "none", "mean", "cls", "last",
    # "rank"; None where it does not
    pooling: str | None = None
    # what a classifier over the pooled rows scores, none for models without one
    labels: tuple[str, ...] = ()
    # the token that an answer begins with, behind the source that an encoder reads; None for models
    # without an encoder before them
    start_token: int | None = None
    # tokens beyond which sequences have other rope factors (LongRoPE), None where all have the same
    rope_near: int | None = None
    # what the layers keep that predict further tokens, none for models without
    predicts: tuple[LayerState, ...] = ()
    # of a model that fills in masks (diffusion), None for others
    filling: Filling | None = None

    def __repr__(self) -> str:
        """Every field; layers in a row that keep the same are counted."""
        parts = []
        for each in fields(self):
            told = repr(getattr(self, each.name))
            if each.name in ("states", "predicts"):
                runs = [(state, len(list(run))) for state, run in groupby(getattr(self, each.name))]
                told = ", ".join(f"{count} x {state!r}" for state, count in runs)
                told = f"({told})"
            parts.append(f"{each.name}={told}")
        return f"ModelConfig({', '.join(parts)})"

    @property
    def kv_layers(self) -> tuple[tuple[int, int, int], ...]:
        """(kv_heads, k_dim, v_dim) of every layer that keeps pages, as page memory takes them."""
        return tuple(state.dims for state in self.states if not isinstance(state, Slot))

    @property
    def slot_layers(self) -> tuple[tuple[int, ...], ...]:
        """The shape of every layer's recurrent state, empty for models without any."""
        return tuple(state.shape for state in self.states if isinstance(state, Slot))


def architectures() -> list[str]:
    """Names of every `general.architecture` that can be loaded."""
    return sorted(recorders())


def record(
    reader: GgufReader, *, depth: int | None = None, rope: RopeOverrides = AS_FILED
) -> tuple[ModelConfig, Tape]:
    """What a file holds, and its tape.

    depth: record only the first layers, then the output norm and head. rope: the overrides;
    ConfigError if the architecture does not use one of them.
    """
    config, tape, _ = recorded(reader, depth=depth, rope=rope)
    return config, tape


def recorded(
    reader: GgufReader,
    *,
    depth: int | None = None,
    rope: RopeOverrides = AS_FILED,
    extracts: Sequence[int] = (),
) -> tuple[ModelConfig, Tape, Classifier | None]:
    """`record`, and the model's classifier if it has one. extracts: see `load.load_model`."""
    name = _architecture_of(reader)
    b = Builder(reader, name, depth=depth, rope=rope)
    own = Keys(reader.metadata, name, read=b.read)
    context = context_in_force(own, b.keys if rope.given() else own)
    if extracts:
        b.extract(extracts)
    with b.complete():
        result = recorders()[name](b)
    if extracts:
        if b.extracted is None:
            raise ConfigError(
                f"draft: found one that reads what comes into layers of {name}, wanted it for a "
                "model whose layers add to one row, of which its output is made"
            )
        b.carried = b.extracted
    pooling = _pooling(own, b)
    if b.causal is False and result is not None:
        _check_past(b)
    if b.depth == b.n_layers:
        rope.check_used(name, b.rotated_by)
        _check_all_used(b)
    tape = replace(_lowered(b, result), extracts=tuple(extracts))
    config = _config_of(b, tape, context=context, pooling=pooling, answers=result is not None)
    classifier = b.classifier
    for graph in (*_further_graphs(b), b):
        graph.forget()
    return config, tape, classifier


def _check_all_used(b: Builder) -> None:
    """Raise ModelError for a tensor or a key of the file that the architecture did not ask for."""
    unused = b.unused()
    if unused:
        raise ModelError(
            f"{unused[0]}: {b.arch} has no use for this tensor ({len(unused)} such in the file)"
        )
    check_keys(b.reader.metadata, b.arch, b.read)


def _further_graphs(b: Builder) -> Iterator[Builder]:
    """The graphs that were recorded beside that of the model's layers."""
    for graph in (
        None if b.predictor is None else b.predictor.graph,
        b.source,
        b.projection,
        None if b.classifier is None else b.classifier.head,
    ):
        if graph is not None:
            yield graph


def _lowered(b: Builder, result: Value | None) -> Tape:
    """The tape of a graph, with those of the graphs beside it."""
    return replace(
        lower(b, result),
        predictor=None if b.predictor is None else lower(b.predictor.graph, b.predictor.logits),
        source=None if b.source is None else lower(b.source, None),
        projection=None if b.projection is None else lower(b.projection, None),
        classifier=None if b.classifier is None else lower(b.classifier.head, None),
    )


def _config_of(
    b: Builder, tape: Tape, *, context: int, pooling: str | None, answers: bool
) -> ModelConfig:
    """What the engine must know of a model. context: that of the file; answers: it has logits."""
    label = b.reader.metadata.get("general.name", "")
    if b.source is not None:
        context *= 2  # the file's is that of a source, and of an answer
    return ModelConfig(
        b.arch,
        label if isinstance(label, str) else "",
        context,
        b.vocab_size,
        b.hidden if b.embedding is None else b.embedding.width,
        b.depth,
        (*b.pages, *b.slots),
        causal=b.causal is not False,
        generates=answers and (b.causal is not False or b.filling is not None),
        pooling=pooling,
        labels=() if b.classifier is None else b.classifier.labels,
        start_token=b.start_token,
        rope_near=next(
            (op.params["near"] for op in tape.ops if op.params.get("far") is not None), None
        ),
        predicts=() if b.predictor is None else tuple(b.predictor.graph.pages),
        filling=b.filling,
    )


def _check_past(b: Builder) -> None:
    """Raise ModelError if the file of a decoder says that it is not causal, and some of its layers
    cannot be otherwise.
    """
    why = ""
    if b.slots:
        why = "layers that keep a state see the tokens before them alone"
    elif any(getattr(state, "window", 0) for state in b.pages):
        # transformers halves the window then, llama.cpp leaves it out ahead
        why = "no file says how far a window reaches ahead"
    if why:
        raise ModelError(f"{b.arch}.attention.causal: found False, wanted True: {why}")


def _architecture_of(reader: GgufReader) -> str:
    """The architecture of a model's file; ModelError if it is none, or one that cannot be
    computed.
    """
    kind = reader.metadata.get("general.type", "model")
    if not isinstance(kind, str):
        raise ModelError(f"general.type: found {kind!r:.60}, wanted a text")
    if kind in _NOT_MODELS:
        raise ModelError(f"general.type: found {kind!r}, wanted a model: {_NOT_MODELS[kind]}")
    if kind not in ("model", "mmproj"):  # an encoder is named by its architecture
        raise ModelError(f"general.type: found {kind!r:.60}, wanted 'model'")
    name = reader.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError(
            f"general.architecture: found {name!r:.60}, wanted the name of an architecture"
        )
    if name in NOT_GENERATING:
        raise ModelError(
            f"general.architecture: found {name!r}, which {NOT_GENERATING[name]}, wanted a model "
            "that predicts the next token, or an encoder"
        )
    if name not in recorders():
        raise ModelError(
            f"general.architecture: found {name!r:.60}{_nearest(name)}, wanted one of "
            f"{', '.join(architectures())}"
        )
    if is_further(reader):
        raise ModelError(
            f"general.architecture: found {name!r} with layers alone that predict further tokens, "
            "wanted a model; this file is given where its model is loaded: load(MODEL, "
            "speculative=FILE), --speculative FILE"
        )
    return name


def _nearest(name: str) -> str:
    """The known architecture with the most similar name, for error messages."""
    known = difflib.get_close_matches(name, architectures(), n=1, cutoff=0.0)
    return f" (nearest known: {known[0]!r})" if known else ""


def _pooling(keys: Keys, b: Builder) -> str | None:
    """How the rows of a text become one vector, as the file says; None where it does not."""
    number = keys.integer("pooling_type", default=None, minimum=0, maximum=len(POOLINGS) - 1)
    if number is None:
        return None
    if POOLINGS[number] == "rank" and b.classifier is None:
        raise ModelError(
            f"{b.arch}.pooling_type: found {number} (rank), wanted cls.output.weight too"
        )
    return POOLINGS[number]
