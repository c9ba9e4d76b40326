"""Loads a model: an open GGUF file becomes a `Model`, a Program with what the engine must know
about it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Literal

import numpy as np

from oxillama._core.elementwise import EmbeddingTable
from oxillama._core.panels import PackedMatrix, reserve_all
from oxillama._core.pool import PageMemory, available_bytes
from oxillama._core.tape import Program
from oxillama.errors import ConfigError, ModelError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys
from oxillama.model import arch as _arch  # noqa: F401  (importing it registers every architecture)
from oxillama.model.accounts import check_keys
from oxillama.model.builder import Builder, Classifier, recorders
from oxillama.model.eagle import ARCH as EAGLE
from oxillama.model.eagle import eagle, target_tokens
from oxillama.model.further import is_further
from oxillama.model.lower import Op, Tape, lower
from oxillama.model.ops import OUTPUT
from oxillama.model.pooled import ClassifierHead, RowProgram
from oxillama.model.reference import Reference
from oxillama.model.rope import AS_FILED, RopeOverrides, context_in_force
from oxillama.model.state import LayerState, Slot
from oxillama.model.tensors import Tensor
from oxillama.weights.cache import CacheSlot, slot_of
from oxillama.weights.offload import Budget, OffloadPolicy, PinnedHotSet
from oxillama.weights.packing import Packer, Packing
from oxillama.weights.pager import (
    LayerPager,
    PagedUnit,
    PagedWeight,
    PagingSummary,
    plan_pages,
)
from oxillama.weights.panel_file import Key, MappedPanels, PanelSpec
from oxillama.weights.verifier import PanelVerifier
from oxillama.weights.writer import CacheWriter

# the values of `pooling_type`, in order
POOLINGS = ("none", "mean", "cls", "last", "rank")
# rows of a step that a text may take where attention is not causal
LONGEST_STEP = 1 << 15
_TABLE = "token_embd.weight"
Progress = Callable[[int, int], None]  # bytes packed so far, bytes in all
# bytes of weights that are packed before anything runs: a hundredth of a second
PACKED_AT_ONCE = 32 << 20


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
    # whether there are logits of a next token
    generates: bool = True
    # how the file says that the rows of a text become one vector: "none", "mean", "cls", "last",
    # "rank"; None where it does not
    pooling: str | None = None
    # what a classifier over the pooled rows scores, none for models without one
    labels: tuple[str, ...] = ()
    # tokens beyond which sequences have other rope factors (LongRoPE), None where all have the same
    rope_near: int | None = None
    # what the layers keep that predict further tokens, none for models without
    predicts: tuple[LayerState, ...] = ()

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


@dataclass(slots=True)
class Model:
    """A loaded model; `program` runs it, `tape` shows it, `reader` stays open for the rows of its
    embedding.

    weights: packed, by key. writer: writes them to a sidecar, None without one; verifier: compares
    a mapped sidecar with its hashes, None if the weights were packed from the file. rope: the
    overrides. packing: packs the weights while the program already runs, None if they were packed
    before; packer: its thread. projection, classifier: the processing of a pooled row of the
    embedding, None if the file has no such head. pager: reads weights from the file while a step
    runs, None if all of them are in memory.
    """

    config: ModelConfig
    tape: Tape
    program: Program
    reader: GgufReader = field(repr=False)
    weights: Mapping[Key, PackedMatrix] = field(repr=False)
    writer: CacheWriter | None = field(default=None, repr=False)
    verifier: PanelVerifier | None = field(default=None, repr=False)
    rope: RopeOverrides = AS_FILED
    packing: Packing | None = field(default=None, repr=False)
    packer: Packer | None = field(default=None, repr=False)
    projection: RowProgram | None = field(default=None, repr=False)
    classifier: ClassifierHead | None = field(default=None, repr=False)
    pager: LayerPager | None = field(default=None, repr=False)

    def pack(self) -> None:
        """Pack the rest of the weights, so that step times are representative."""
        if self.packing is not None:
            self.packing.finish()

    def end(self, *, keep: bool) -> None:
        """End background work on the model; keep: finish writing its sidecar first."""
        if self.packer is not None:
            self.packer.cancel()
        if self.pager is not None:
            self.pager.close()
        if self.writer is not None:
            self.writer.finish() if keep else self.writer.cancel()
        if self.verifier is not None:
            # whoever has results shall hear whether they may be wrong
            self.verifier.finish() if self.program.steps else self.verifier.cancel()

    def page_memory(
        self, *, kv_type: str = "f16", page_size: int = 16, context: int = 0
    ) -> PageMemory:
        """Memory for the pages and slots of this model's layers; it grows as needed. context: how
        many tokens a sequence may have; layers that look back at fewer lie apart, for a caller that
        attaches and detaches them.
        """
        config = self.config
        windows: tuple[int, ...] = ()
        if context and config.causal and not config.slot_layers:
            windows = tuple(
                each.window if not isinstance(each, Slot) and each.window < context else 0
                for each in config.states
            )
        return PageMemory(
            list(config.kv_layers),
            kv_type,
            page_size,
            slot_layers=config.slot_layers,
            windows=windows,
        )

    def reference(self) -> Reference:
        """The numpy interpreter of the same tape."""
        return Reference(self.tape, self.reader, served=self.program.served)


def architectures() -> list[str]:
    """Names of every `general.architecture` that can be loaded."""
    return sorted(recorders())


def record(
    reader: GgufReader, *, depth: int | None = None, rope: RopeOverrides = AS_FILED
) -> tuple[ModelConfig, Tape]:
    """Read the keys, record the architecture and lower it; does not read any matrix.

    depth: record only the first layers, then the output norm and head. rope: the overrides;
    ConfigError if the architecture does not use one of them.
    """
    config, tape, _ = _recorded(reader, depth=depth, rope=rope)
    return config, tape


# files that are used beside a model, and how
_NOT_MODELS = {
    "adapter": "a LoRA adapter is given beside its base model, with --lora or lora=",
    "imatrix": "an importance matrix is given to `oxillama quantize --imatrix`",
}


def _recorded(
    reader: GgufReader,
    *,
    depth: int | None = None,
    rope: RopeOverrides = AS_FILED,
    extracts: Sequence[int] = (),
) -> tuple[ModelConfig, Tape, Classifier | None]:
    """`record`, and the model's classifier if it has one. extracts: see `load_model`."""
    kind = reader.metadata.get("general.type", "model")
    if not isinstance(kind, str):
        raise ModelError(f"general.type: found {kind!r:.60}, wanted a text")
    if kind in _NOT_MODELS:
        raise ModelError(f"general.type: found {kind!r}, wanted a model: {_NOT_MODELS[kind]}")
    name = reader.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError(
            f"general.architecture: found {name!r}, wanted the name of an architecture"
        )
    if name in NOT_GENERATING:
        raise ModelError(
            f"general.architecture: found {name!r}, which {NOT_GENERATING[name]}, wanted a model "
            "that predicts the next token, or an encoder"
        )
    if name not in recorders():
        why = f", which {NOT_COMPUTED[name]}: not computed here" if name in NOT_COMPUTED else ""
        raise ModelError(
            f"general.architecture: found {name!r}{why or _nearest(name)}, wanted one of "
            f"{', '.join(architectures())}"
        )
    if is_further(reader):
        raise ModelError(
            f"general.architecture: found {name!r} with layers alone that predict further tokens, "
            "wanted a model: they are given beside theirs, with --speculative or speculative="
        )
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
                f"draft: found {EAGLE} for {name}, wanted it for a model whose layers add to one "
                "row, of which its output is made"
            )
        b.carried = b.extracted
    pooling = own.integer("pooling_type", default=None, minimum=0, maximum=len(POOLINGS) - 1)
    if pooling is not None and POOLINGS[pooling] == "rank" and b.classifier is None:
        raise ModelError(
            f"{name}.pooling_type: found {pooling} (rank), wanted cls.output.weight too"
        )
    if b.depth == b.n_layers:
        rope.check_used(name, b.rotated_by)
    unused = b.unused()
    if unused and b.depth == b.n_layers:
        raise ModelError(
            f"{unused[0]}: {name} has no use for this tensor ({len(unused)} such in the file)"
        )
    if b.depth == b.n_layers:
        check_keys(reader.metadata, name, b.read)
    tape = replace(lower(b, result), extracts=tuple(extracts))
    if b.predictor is not None:
        graph = b.predictor.graph
        tape = replace(tape, predictor=lower(graph, b.predictor.logits))
    if b.projection is not None:
        tape = replace(tape, projection=lower(b.projection, None))
    if b.classifier is not None:
        tape = replace(tape, classifier=lower(b.classifier.head, None))
    label = reader.metadata.get("general.name", "")
    return (
        ModelConfig(
            name,
            label if isinstance(label, str) else "",
            context,
            b.vocab_size,
            b.hidden if b.embedding is None else b.embedding.width,
            b.depth,
            (*b.pages, *b.slots),
            causal=b.causal is not False,
            generates=result is not None and b.causal is not False,
            pooling=None if pooling is None else POOLINGS[pooling],
            labels=() if b.classifier is None else b.classifier.labels,
            rope_near=next(
                (op.params["near"] for op in tape.ops if op.params.get("far") is not None), None
            ),
            predicts=() if b.predictor is None else tuple(b.predictor.graph.pages),
        ),
        tape,
        b.classifier,
    )


# Architectures of files that hold no next-token model or encoder of texts, and what they do.
_FILLS = "fills in masked tokens step by step (diffusion)"
_DRAFTS = "drafts for another model and has no use alone"
_SPEAKS = "makes sound"
NOT_GENERATING = {
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _FILLS),
    **dict.fromkeys(("dflash", "gemma4-assistant"), _DRAFTS),
    EAGLE: "drafts for another model, which is loaded with it (speculative=, --speculative)",
    **dict.fromkeys(("wavtokenizer-dec", "pockettts", "qwen3tts"), _SPEAKS),
    "t5": "writes with a decoder that looks at what an encoder read",
    "clip": "encodes images or sound for another model (mmproj)",
}
# Architectures that llama.cpp runs and that need an op which is not here, with what it would do.
NOT_COMPUTED = {
    "graniteswitch": "switches adapters within a text",
}


def _nearest(name: str) -> str:
    """The known architecture with the most similar name, for error messages."""
    known = difflib.get_close_matches(name, architectures(), n=1, cutoff=0.0)
    return f" (nearest known: {known[0]!r})" if known else ""


def load_model(
    reader: GgufReader,
    *,
    num_threads: int = 0,
    max_rows: int = 512,
    progress: Progress | None = None,
    sidecar: str | os.PathLike[str] | Literal[False] = False,
    rope: RopeOverrides = AS_FILED,
    offload: OffloadPolicy = None,
    predict: bool = True,
    extracts: Sequence[int] = (),
) -> Model:
    """Record, lower and build the Program over weights that are packed, or being packed
    (weights/packing.py).

    progress: called with the bytes packed, and makes this call wait for all of them; without it a
    large model answers earlier. sidecar: where packed weights are stored for later loads
    (weights/cache.py): "auto" (the cache folder, for models of 256 MiB and more), a folder, or
    False. rope: see `record`; weights and sidecars do not depend on it. offload: the memory that
    weights may take (weights/offload.py); if they do not fit they are paged, and no sidecar is read
    or written. predict: load the layers that predict further tokens too, if the file has some;
    otherwise `predictor` does. A sidecar has them in any case. extracts: layers whose inputs are
    carried for a draft model, instead of the rows for the file's own layers that predict further
    tokens; ConfigError if there is no such row.
    """
    config, tape, classifier = _recorded(reader, rope=rope, extracts=extracts)
    if not config.causal:
        # a text of any length that the model takes is one step; rows cost nothing until used
        max_rows = max(max_rows, min(config.context_length, LONGEST_STEP))
    held = _held(
        reader,
        tape,
        num_threads=num_threads,
        progress=progress,
        sidecar=sidecar,
        offload=offload,
        predict=predict and not extracts or sidecar is not False,
    )
    program = _program(
        config,
        tape,
        reader,
        held.weights,
        max_rows=max_rows,
        num_threads=num_threads,
        packing=held.packing,
        pager=held.pager,
    )
    writer = verifier = None
    if held.mapped is not None:
        verifier = PanelVerifier(held.mapped, program, reader.shards)
    elif held.slot is not None:
        writer = CacheWriter(held.slot, held.weights, program, packing=held.packing)
    packer = None if held.packing is None else Packer(held.packing, program)
    scores = _row_program(tape.classifier, config, reader, held)
    projection = _row_program(tape.projection, config, reader, held)
    head = None if classifier is None or scores is None else ClassifierHead(classifier, scores)
    return Model(
        config,
        tape,
        program,
        reader,
        held.weights,
        writer,
        verifier,
        rope,
        held.packing,
        packer,
        projection,
        head,
        held.pager,
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """A model's packed weights by key, and what reads, maps, stores or packs them.

    slot: the place of their sidecar; mapped: they are those of the sidecar; packing: they are still
    being packed; pager: they are read from the file while a step runs.
    """

    weights: dict[Key, PackedMatrix]
    slot: CacheSlot | None = None
    mapped: MappedPanels | None = None
    packing: Packing | None = None
    pager: LayerPager | None = None


def _held(
    reader: GgufReader,
    tape: Tape,
    *,
    num_threads: int,
    progress: Progress | None,
    sidecar: str | os.PathLike[str] | Literal[False],
    offload: OffloadPolicy,
    predict: bool,
) -> _Held:
    """Every weight of a tape: paged if memory may not hold them, otherwise mapped from the sidecar
    if there is one, otherwise packed.
    """
    tensors = _weights(*tape.all_ops)
    for tensor in tensors.values():
        # the look at a norm may have mapped a large page, which holds weights around it
        reader.release(tensor.name)
    pager = _paged(reader, tape, offload)
    if pager is not None:
        if progress is not None:
            total = sum(matrix.nbytes for matrix in pager.matrices.values())
            progress(total, total)
        return _Held(dict(pager.matrices), pager=pager)
    if tape.predictor is not None and predict:
        tensors |= _weights(*tape.predictor.ops)
    nbytes = sum(_rows(reader, tensor).nbytes for tensor in tensors.values())
    slot = slot_of(reader, sidecar, nbytes)
    if slot is not None:
        mapped = _mapped(slot, tensors, num_threads, progress)
        if mapped is not None:
            return _Held(dict(mapped.matrices), slot, mapped)
        slot.check_folder()
    weights, packing = _reserved(reader, tensors, num_threads, progress)
    return _Held(weights, slot, packing=packing)


def _weights(*ops: Op) -> dict[Key, Tensor]:
    """The weights of ops, each once."""
    return {tensor.key: tensor for op in ops for tensor in op.params.get("weights", ())}


def _row_program(
    part: Tape | None, config: ModelConfig, reader: GgufReader, held: _Held
) -> RowProgram | None:
    """The program of a tape over pooled rows of the embedding."""
    if part is None:
        return None
    ops = [(op.name, ready(reader, op.params, held.weights, held.pager)) for op in part.ops]
    return RowProgram(part, ops, config.vocab_size, held.packing)


def early_exit(model: Model, depth: int, *, num_threads: int = 0, max_rows: int = 512) -> Model:
    """The first `depth` layers of a loaded model, with its rope overrides, under its own output
    norm and head: another program over the same weights.
    """
    config, tape = record(model.reader, depth=depth, rope=model.rope)
    program = _program(
        config,
        tape,
        model.reader,
        model.weights,
        max_rows=max_rows,
        num_threads=num_threads,
        packing=model.packing,
        pager=model.pager,
    )
    program.served = model.program.served
    return Model(
        config, tape, program, model.reader, model.weights, rope=model.rope, packing=model.packing
    )


def predictor(model: Model, *, num_threads: int = 0, max_rows: int = 512) -> Model:
    """What predicts further tokens (multi-token prediction): another program over the same weights,
    whose rows are a token and the row that `model.program.carried()` had before it.

    ConfigError for a model without such layers, or that carries rows for another draft, or whose
    weights are paged.
    """
    tape = model.tape.predictor
    if tape is None or model.pager is not None or model.tape.extracts:
        found = "weights that a step reads from the file" if model.pager else "none"
        if model.tape.extracts:
            found = "a model that was loaded with an EAGLE-3 draft"
        raise ConfigError(
            f"mtp: found {found}, wanted layers in memory that predict further tokens (blk.N.nextn)"
        )
    tensors = _weights(*tape.ops)
    missing = {key: tensor for key, tensor in tensors.items() if key not in model.weights}
    packed = _reserved(model.reader, missing, num_threads, _unseen)[0] if missing else {}
    config = replace(model.config, layers=1, states=model.config.predicts, predicts=())
    weights = {key: packed.get(key) or model.weights[key] for key in tensors}
    program = _program(
        config,
        tape,
        model.reader,
        weights,
        max_rows=max_rows,
        num_threads=num_threads,
        packing=model.packing,
        pager=None,
    )
    program.served = model.program.served
    return Model(
        config, tape, program, model.reader, weights, rope=model.rope, packing=model.packing
    )


def _unseen(done: int, total: int) -> None:
    """Progress of a little packing that a caller waits for."""


def eagle_draft(
    target: Model, reader: GgufReader, *, num_threads: int = 0, max_rows: int = 512
) -> tuple[Model, RowProgram, np.ndarray | None]:
    """(an EAGLE-3 draft model for a target; what makes its rows g of the target's carried rows; the
    target's token of each row of its output, None where they are the same).

    ConfigError unless it was made for such a target; ModelError for a malformed file.
    """
    vocabulary = target.config.vocab_size
    weights: dict[Key, PackedMatrix] = {}
    lent = {} if _TABLE in reader.tensors else {_TABLE: _TABLE}
    if "output.weight" not in reader.tensors:
        head = output_matrix(target)
        if head is None:
            raise ConfigError(
                "draft: found no output.weight, wanted one: that of the target cannot be used alone"
            )
        lent["output.weight"] = next(
            op.params["weights"][0].name for op in target.tape.ops if op.params.get("out") == OUTPUT
        )
        weights["output.weight", 0, vocabulary] = head
    width = Keys(target.reader.metadata).integer("embedding_length")
    reader = reader.joined(target.reader, lent)
    b = Builder(reader, EAGLE)
    if b.vocab_size != vocabulary:
        raise ConfigError(
            f"draft: found {_TABLE} of {b.vocab_size} rows, wanted {vocabulary}, the vocabulary of "
            "the target"
        )
    with b.complete():
        logits, fusion = eagle(b, width)
    tokens = target_tokens(b, logits.width, vocabulary)
    unused = b.unused()
    if unused:
        raise ModelError(f"{unused[0]}: {EAGLE} has no use for this tensor")
    known = {f"{EAGLE}.target_layers", f"{EAGLE}.target_hidden_size", f"{EAGLE}.context_length"}
    check_keys(reader.metadata, EAGLE, b.read | known)
    tape = lower(b, logits)
    fusing = lower(fusion, None)
    # the head that is the target's may still be packed
    packing = target.packing if weights else None
    tensors = {
        key: tensor
        for key, tensor in _weights(*tape.ops, *fusing.ops).items()
        if key not in weights
    }
    weights |= _reserved(reader, tensors, num_threads, _unseen)[0]
    config = replace(
        target.config,
        architecture=EAGLE,
        hidden_size=b.hidden,
        layers=1,
        states=tuple(b.pages),
        rope_near=None,
        predicts=(),
    )
    program = _program(
        config,
        tape,
        reader,
        weights,
        max_rows=max_rows,
        num_threads=num_threads,
        packing=packing,
        pager=None,
        outputs=logits.width,
    )
    ops = [(op.name, ready(reader, op.params, weights)) for op in fusing.ops]
    rows = RowProgram(fusing, ops, vocabulary, None, beside=program)
    return Model(config, tape, program, reader, weights, packing=packing), rows, tokens


def output_matrix(model: Model) -> PackedMatrix | None:
    """The matrix whose rows are the tokens of the output; None if its product is not the last but
    for ops on single numbers, or its rows are not in memory.
    """
    writers = [op for op in model.tape.ops if op.params.get("out") == OUTPUT]
    if model.pager is not None or not writers or writers[0].name != "matmul":
        return None
    first, *rest = writers
    if len(first.params["weights"]) > 1 or first.params.get("addend") is not None:
        return None
    if any(op.name not in ("scale", "softcap") or op.params["x"] != OUTPUT for op in rest):
        return None
    return model.weights[first.params["weights"][0].key]


def shortened(model: Model, tokens: np.ndarray) -> Program:
    """The program of a model whose output is that of some tokens, given in runs of 16 from a
    multiple of 16 on; on the workers of the model's own program. All weights must be packed, and
    `output_matrix` known.
    """
    matrix, panels = output_matrix(model), tokens[::16] // 16
    assert matrix is not None
    held = matrix.panels()
    # panels begin at multiples of 64 bytes
    buffer = np.empty(len(panels) * held.shape[1] + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    taken = buffer[start : start + len(panels) * held.shape[1]].reshape(len(panels), -1)
    np.take(held, panels, axis=0, out=taken)
    ops = []
    for op in model.tape.ops:
        params = ready(model.reader, op.params, model.weights)
        if op.name == "matmul" and op.params["out"] == OUTPUT:
            short = PackedMatrix.over(taken.reshape(-1), matrix.form, len(tokens), matrix.cols)
            bias = params["bias"]
            params |= {"weights": [short], "bias": None if bias is None else bias[tokens]}
        ops.append((op.name, params))
    whole = model.program
    program = Program(
        ops,
        list(model.tape.slots),
        kv_layers=whole.kv_layers,
        slot_layers=whole.slot_layers,
        hidden=model.tape.embedding,
        carried=model.tape.carried,
        vocab_size=whole.vocab_size,
        hidden_size=whole.hidden_size,
        max_rows=whole.max_rows,
        num_threads=whole.num_threads,
        beside=whole,
        outputs=len(tokens),
    )
    program.served = whole.served
    return program


def _program(
    config: ModelConfig,
    tape: Tape,
    reader: GgufReader,
    weights: Mapping[Key, PackedMatrix],
    *,
    max_rows: int,
    num_threads: int,
    packing: Packing | None,
    pager: LayerPager | None,
    outputs: int | None = None,
) -> Program:
    ops = [(op.name, ready(reader, op.params, weights, pager)) for op in tape.ops]
    return Program(
        ops,
        list(tape.slots),
        kv_layers=list(config.kv_layers),
        slot_layers=list(config.slot_layers),
        hidden=tape.embedding,
        carried=tape.carried,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_rows=max_rows,
        num_threads=num_threads,
        packing=packing,
        outputs=outputs,
    )


def _rows(reader: GgufReader, tensor: Tensor) -> np.ndarray:
    """The raw blocks of a tensor's rows, a view of the file."""
    return tensor.blocks(reader).reshape(-1)


def ready(
    reader: GgufReader,
    params: dict,
    weights: Mapping[Key, PackedMatrix],
    pager: LayerPager | None = None,
) -> dict:
    """An op's parameters in the form of the Program."""
    ready = dict(params)
    if "table" in params:
        ready["table"] = _table(reader, params["table"], pager)
    if "weights" in params:
        ready["weights"] = [weights[tensor.key] for tensor in params["weights"]]
    return ready


def _table(reader: GgufReader, table: Tensor, pager: LayerPager | None) -> EmbeddingTable:
    """A table whose rows are read one per token: from the mapped file, or as the pager's policy
    says.
    """
    if pager is None:
        return EmbeddingTable(_rows(reader, table), table.format, *table.shape)
    if pager.pins_embeddings:
        made = EmbeddingTable(np.array(_rows(reader, table)), table.format, *table.shape)
        reader.release(table.name)
        return made
    place = _place(reader, table)
    return EmbeddingTable.paged(
        pager.core, table.name, place.shard, place.offset, table.format, *table.shape
    )


_LAYER = re.compile(r"blk\.(\d+)\.")


def _place(reader: GgufReader, tensor: Tensor) -> PagedWeight:
    """The position of a tensor's rows in its file."""
    info, row_bytes = reader.tensors[tensor.name], tensor.blocks(reader).shape[1]
    return PagedWeight(
        tensor.key,
        tensor.format,
        *tensor.shape,
        info.shard,
        info.offset + tensor.start * row_bytes,
        row_bytes,
    )


def _paged(reader: GgufReader, tape: Tape, offload: OffloadPolicy) -> LayerPager | None:
    """The pager of a policy; None if the weights fit, or without a policy."""
    if offload is None:
        return None
    units, table_bytes, total = _units(reader, tape)
    if total <= offload.ram_bytes:
        return None
    return LayerPager(reader.shards, units, offload, table_bytes=table_bytes)


def paging_of(reader: GgufReader, policy: Budget | PinnedHotSet) -> PagingSummary | None:
    """The effect of a policy on a model, without loading it; None if the model fits."""
    _, tape, _ = _recorded(reader)
    units, table_bytes, total = _units(reader, tape)
    if total <= policy.ram_bytes:
        return None
    return plan_pages(units, policy, table_bytes).summary(units)


def _units(reader: GgufReader, tape: Tape) -> tuple[list[PagedUnit], int, int]:
    """(the weights of each op, in the order of the tape; bytes of tables; bytes of all)."""
    units, tables = [], {}
    for op in tape.all_ops:
        if "table" in op.params:
            tables[op.params["table"].key] = _rows(reader, op.params["table"]).nbytes
        if "weights" not in op.params:
            continue
        weights = tuple(_place(reader, tensor) for tensor in op.params["weights"])
        layer = _LAYER.match(weights[0].key[0])
        units.append(
            PagedUnit(
                weights,
                op.params["experts"] if op.name == "experts" else 0,
                None if layer is None else int(layer[1]),
                op.params.get("out") == OUTPUT,
                op.params.get("routes") is not None,
            )
        )
    known = {weight.key: weight.nbytes for unit in units for weight in unit.weights}
    rows = sum(nbytes for key, nbytes in tables.items() if key not in known)
    return units, sum(tables.values()), sum(known.values()) + rows


def _mapped(
    slot: CacheSlot, tensors: Mapping[Key, Tensor], num_threads: int, progress: Progress | None
) -> MappedPanels | None:
    """Every weight from the cache; None if it has no valid file."""
    mapped = slot.open(
        {key: PanelSpec(tensor.format, *tensor.shape) for key, tensor in tensors.items()},
        num_threads=num_threads,
    )
    if mapped is not None and progress is not None:
        total = sum(matrix.nbytes for matrix in mapped.matrices.values())
        progress(total, total)
    return mapped


def _reserved(
    reader: GgufReader, tensors: Mapping[Key, Tensor], num_threads: int, progress: Progress | None
) -> tuple[dict[Key, PackedMatrix], Packing | None]:
    """Every weight in the order of the tape, with its packing; None if all of them are packed at
    once.

    That is the case for small models, with `progress`, and if memory cannot hold both the panels
    and the file, which would then be read twice.
    """
    raw = {key: _rows(reader, tensor) for key, tensor in tensors.items()}
    weights = dict(
        zip(raw, reserve_all([(raw[key], tensors[key].format, *tensors[key].shape) for key in raw]))
    )
    packing = Packing(
        list(weights.values()),
        [reader.is_mapped(key[0]) for key in weights],
        num_threads=num_threads,
    )
    free = available_bytes()
    if (
        progress is None
        and packing.nbytes > PACKED_AT_ONCE
        and (free is None or 2 * packing.nbytes <= free)
    ):
        return weights, packing
    packing.finish(progress)
    for tensor in tensors.values():
        reader.release(tensor.name)  # what a look at others has mapped
    return weights, None
