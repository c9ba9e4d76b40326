"""Models that draft for a loaded one, over its weights: its first layers, its layers that predict
further tokens, an EAGLE-3 model, a DFlash model, a Gemma 4 assistant, and any of these with an
output over a part of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from oxillama._core.panels import PackedMatrix
from oxillama._core.tape import Program
from oxillama.errors import ConfigError, ModelError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys
from oxillama.model.accounts import check_keys
from oxillama.model.assistant import ARCH as ASSISTANT
from oxillama.model.assistant import LENT, assistant
from oxillama.model.builder import Builder
from oxillama.model.dflash import ARCH as DFLASH
from oxillama.model.dflash import Block, dflash
from oxillama.model.eagle import ARCH as EAGLE
from oxillama.model.eagle import eagle
from oxillama.model.extracts import target_tokens
from oxillama.model.load import Model, program_of
from oxillama.model.lower import Tape, lower
from oxillama.model.ops import OUTPUT
from oxillama.model.pooled import RowProgram
from oxillama.model.record import ModelConfig, record
from oxillama.model.recorder import Value
from oxillama.model.rope import AS_FILED, RopeOverrides
from oxillama.model.state import LayerState
from oxillama.model.tape_weights import packed, tensors_of, with_weights
from oxillama.weights.panel_file import Key

_TABLE, _HEAD = "token_embd.weight", "output.weight"


def early_exit(model: Model, depth: int, *, num_threads: int = 0, max_rows: int = 512) -> Model:
    """The first `depth` layers of a loaded model, with its rope overrides, under its own output
    norm and head: another program over the same weights.
    """
    config, tape = record(model.reader, depth=depth, rope=model.rope)
    return _over(model, config, tape, model.weights, num_threads=num_threads, max_rows=max_rows)


def predictor(model: Model, *, num_threads: int = 0, max_rows: int = 512) -> Model:
    """What predicts further tokens (multi-token prediction): another program over the same weights,
    whose rows are a token and the row that `model.program.carried()` had before it.

    ConfigError for a model without such layers, or that carries rows for another draft, or whose
    weights are paged.
    """
    tape = model.tape.predictor
    if model.tape.extracts:
        raise ConfigError(
            "speculative: found 'mtp' for a model that was loaded with a draft of another kind "
            "(EAGLE-3, DFlash, a Gemma 4 assistant), wanted a model loaded without one"
        )
    if tape is None:
        raise ConfigError(
            "speculative: found 'mtp' for a model without layers that predict further tokens "
            "(blk.N.nextn), wanted a file that has them, or the file of these layers (mtp-*.gguf) "
            "in place of 'mtp' where the model is loaded"
        )
    if model.pager is not None:
        raise ConfigError(
            "speculative: found 'mtp' for weights that a step reads from the file, wanted them in "
            "memory, or another way to speculate"
        )
    tensors = tensors_of(tape.ops)
    missing = {key: tensor for key, tensor in tensors.items() if key not in model.weights}
    made = packed(model.reader, missing, num_threads) if missing else {}
    weights = {key: made.get(key) or model.weights[key] for key in tensors}
    config = replace(model.config, layers=1, states=model.config.predicts, predicts=())
    return _over(model, config, tape, weights, num_threads=num_threads, max_rows=max_rows)


def _over(
    model: Model,
    config: ModelConfig,
    tape: Tape,
    weights: Mapping[Key, PackedMatrix],
    **sizes: int,
) -> Model:
    """Another model over weights of a loaded one, some of which may still be packed. sizes:
    `num_threads` and `max_rows`.
    """
    ops = with_weights(model.reader, tape.ops, weights, model.pager)
    files = model.program.files
    program = program_of(config, tape, ops, packing=model.packing, files=files, **sizes)
    program.served = model.program.served
    return Model(
        config, tape, program, model.reader, weights, rope=model.rope, packing=model.packing
    )


def eagle_draft(
    target: Model, reader: GgufReader, *, num_threads: int = 0, max_rows: int = 512
) -> tuple[Model, RowProgram, np.ndarray | None]:
    """(an EAGLE-3 draft model for a target; what makes its rows g of the target's carried rows; the
    target's token of each row of its output, None where they are the same).

    ConfigError unless it was made for such a target; ModelError for a malformed file.
    """
    reader, lent = _completed(reader, target)
    b = _recording(target, reader, EAGLE)
    with b.complete():
        logits, fusion = eagle(b, Keys(target.reader.metadata).integer("embedding_length"))
    tokens = target_tokens(b, logits.width, target.config.vocab_size)
    keys = ("target_layers", "target_hidden_size", "context_length")
    sizes = dict(num_threads=num_threads, max_rows=max_rows)
    model, made = _beside(target, b, logits, (fusion,), tuple(b.pages), keys, lent, **sizes)
    return model, _over_rows(model, made[0]), tokens


@dataclass(frozen=True, slots=True)
class Selector:
    """Chooses a candidate among the `most` likeliest tokens of a row: before, after: its rows of
    the token before, and of those tokens.
    """

    most: int
    before: RowProgram
    after: RowProgram


@dataclass(frozen=True, slots=True)
class BlockParts:
    """What a DFlash draft has besides the program over its blocks. context: keeps keys and values
    of the target's carried rows, in the same pages; bias: of the logits, by the token before;
    selector: takes the rows that the program carries. Both are None for a draft without.
    """

    block: Block
    context: Program
    bias: RowProgram | None = None
    selector: Selector | None = None


def dflash_draft(
    target: Model, reader: GgufReader, *, num_threads: int = 0, max_rows: int = 512
) -> tuple[Model, BlockParts, np.ndarray | None]:
    """(a DFlash draft for a target; its other parts; the target's token of each row of its output,
    None where they are the same).

    ConfigError unless it was made for such a target; ModelError for a malformed file.
    """
    reader, lent = _completed(reader, target, tied=True)
    b = _recording(target, reader, DFLASH)
    with b.complete():
        width = Keys(target.reader.metadata).integer("embedding_length")
        logits, block, graphs = dflash(b, width)
    tokens = target_tokens(b, logits.width, target.config.vocab_size)
    sizes = dict(num_threads=num_threads, max_rows=max(max_rows, block.rows, graphs.most))
    known = ("context_length",)
    names = [name for name in ("context", "markov", "before", "after") if getattr(graphs, name)]
    several = [getattr(graphs, name) for name in names]
    model, found = _beside(target, b, logits, several, tuple(b.pages), known, lent, **sizes)
    made = dict(zip(names, found))
    program, (tape, ops) = model.program, made.pop("context")
    context = program_of(
        model.config,
        tape,
        ops,
        max_rows=program.max_rows,
        num_threads=program.num_threads,
        beside=program,
        files=program.files,
    )
    more = {name: _over_rows(model, part) for name, part in made.items()}
    bias = more.pop("markov", None)
    selector = Selector(graphs.most, **more) if more else None
    return model, BlockParts(block, context, bias, selector), tokens


def assistant_draft(
    target: Model, reader: GgufReader, *, num_threads: int = 0, max_rows: int = 512
) -> tuple[Model, RowProgram, None]:
    """(a Gemma 4 assistant for a target, whose steps read the target's pages; what makes its rows h
    of the target's carried rows; None: its tokens are the target's).

    ConfigError unless it was made for such a target; ModelError for a malformed file.
    """
    reader = reader.joined(target.reader, LENT)
    # its queries meet the target's keys, so they are rotated alike
    b = _recording(target, reader, ASSISTANT, rope=target.rope)
    with b.complete():
        width = Keys(target.reader.metadata).integer("embedding_length")
        logits, norm = assistant(b, target.config.states, width)
    sizes = dict(num_threads=num_threads, max_rows=max_rows)
    states, keys = target.config.states, ("context_length",)
    model, made = _beside(target, b, logits, (norm,), states, keys, {}, **sizes)
    return model, _over_rows(model, made[0]), None


def _recording(
    target: Model, reader: GgufReader, arch: str, *, rope: RopeOverrides = AS_FILED
) -> Builder:
    """What records a draft; ConfigError unless it has the target's vocabulary."""
    b, vocabulary = Builder(reader, arch, rope=rope), target.config.vocab_size
    if b.vocab_size != vocabulary:
        raise ConfigError(
            f"draft: found {_TABLE} of {b.vocab_size} rows, wanted {vocabulary}, the vocabulary of "
            "the target"
        )
    return b


def _beside(
    target: Model,
    b: Builder,
    logits: Value,
    graphs: Sequence[Builder],
    states: tuple[LayerState, ...],
    known: Sequence[str],
    lent: Mapping[Key, PackedMatrix],
    *,
    num_threads: int,
    max_rows: int,
) -> tuple[Model, list[tuple[Tape, list[tuple[str, dict]]]]]:
    """(the draft that was recorded for a target; the tapes of other graphs over the same file, with
    their ops as a `Program` takes them). known: keys that were looked at elsewhere, or say nothing
    of the draft; lent: weights of the target.
    """
    reader, arch = b.reader, b.arch
    unused = b.unused()
    if unused:
        raise ModelError(f"{unused[0]}: {arch} has no use for this tensor")
    check_keys(reader.metadata, arch, b.read | {f"{arch}.{key}" for key in known})
    tape, others = lower(b, logits), [lower(graph, None) for graph in graphs]
    tensors = tensors_of([op for one in (tape, *others) for op in one.ops])
    own = {key: tensor for key, tensor in tensors.items() if key not in lent}
    weights = {**lent, **packed(reader, own, num_threads)}
    config = replace(
        target.config,
        architecture=arch,
        hidden_size=b.hidden,
        layers=b.n_layers,
        states=states,
        rope_near=None,
        predicts=(),
    )
    # the head that is the target's may still be packed
    packing = target.packing if lent else None
    program = program_of(
        config,
        tape,
        with_weights(reader, tape.ops, weights),
        max_rows=max_rows,
        num_threads=num_threads,
        packing=packing,
        outputs=logits.width,
        files=reader.maps,
    )
    made = [(each, with_weights(reader, each.ops, weights)) for each in others]
    for graph in (*graphs, b):
        graph.forget()
    return Model(config, tape, program, reader, weights, packing=packing), made


def _over_rows(model: Model, made: tuple[Tape, list[tuple[str, dict]]]) -> RowProgram:
    """What runs a tape over rows, on the workers of a draft."""
    tape, ops = made
    program = model.program
    return RowProgram(tape, ops, model.config.vocab_size, None, beside=program, files=program.files)


def _completed(
    reader: GgufReader, target: Model, *, tied: bool = False
) -> tuple[GgufReader, dict[Key, PackedMatrix]]:
    """(a draft's file with the target's token table and output where it has none; the packed matrix
    of that output). tied: a token table of its own is its output, too.
    """
    own = _TABLE in reader.tensors
    names = {} if own else {_TABLE: _TABLE}
    weights: dict[Key, PackedMatrix] = {}
    if _HEAD not in reader.tensors and not (tied and own):
        head = output_matrix(target)
        if head is None:
            raise ConfigError(
                f"draft: found no {_HEAD}, wanted one: that of the target cannot be used alone"
            )
        names[_HEAD] = next(
            op.params["weights"][0].name for op in target.tape.ops if op.params.get("out") == OUTPUT
        )
        weights[_HEAD, 0, target.config.vocab_size] = head
    return reader.joined(target.reader, names), weights


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
    short = PackedMatrix.over(taken.reshape(-1), matrix.form, len(tokens), matrix.cols)
    ops = with_weights(model.reader, model.tape.ops, model.weights)
    for name, params in ops:
        if name == "matmul" and params["out"] == OUTPUT:
            bias = params["bias"]
            params |= {"weights": [short], "bias": None if bias is None else bias[tokens]}
    whole = model.program
    program = program_of(
        model.config,
        model.tape,
        ops,
        max_rows=whole.max_rows,
        num_threads=whole.num_threads,
        beside=whole,
        outputs=len(tokens),
        files=whole.files,
    )
    program.served = whole.served
    return program
