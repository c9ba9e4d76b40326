"""Fits an adapter to a loaded model: which op of the tape each pair changes, and the factors packed
for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from oxillama._core.adapters import Adapter
from oxillama._core.tape import Program
from oxillama.errors import LoraError, not_pickled
from oxillama.gguf import GgufReader
from oxillama.lora.file import EMBEDDING, LoraFile, Pair
from oxillama.model.load import Model
from oxillama.model.lower import Tape


@dataclass(frozen=True, slots=True, eq=False)
class Lora:
    """An adapter in memory, for one loaded model. fingerprint: of what it computes. source: its
    factors for the encoder before a decoder, None for a model without one.
    """

    name: str
    path: str
    fingerprint: str
    tensors: tuple[str, ...]
    factors: Adapter = field(repr=False)
    source: Adapter | None = field(default=None, repr=False)

    __reduce__ = not_pickled(
        "lora: is packed for the model of this process",
        "pickle its `path`, and load it there",
    )

    @property
    def nbytes(self) -> int:
        """Bytes of its packed factors."""
        return self.factors.nbytes + (0 if self.source is None else self.source.nbytes)


def check_base(reader: GgufReader, lora: LoraFile) -> None:
    """LoraError unless every pair has the shape of a tensor of this model file."""
    label, arch = lora.label, reader.metadata.get("general.architecture")
    if lora.architecture != arch:
        raise LoraError(
            f"{label}: general.architecture: found {lora.architecture!r:.60}, the model is {arch!r}"
        )
    for name, pair in lora.pairs.items():
        info = reader.tensors.get(name)
        if info is None:
            raise LoraError(f"{label}: {name}: the model has no such tensor")
        shape = tuple(info.shape)
        if len(shape) < 2 or name.endswith("_norm.weight"):
            raise LoraError(f"{label}: {name}: is {shape} in the model, wanted a matrix")
        if pair_shape(name, pair) != shape:
            raise LoraError(
                f"{label}: {name}: factors {pair.a.shape[not pair.stacked :]} and "
                f"{pair.b.shape[not pair.stacked :]} are of {pair_shape(name, pair)}, the model "
                f"has {shape}"
            )


def pair_shape(name: str, pair: Pair) -> tuple[int, ...]:
    """The shape of the tensor that a pair changes."""
    if name == EMBEDDING and not pair.stacked:
        return pair.a.shape[1], pair.b.shape[1]
    shape = (pair.a.shape[0], pair.b.shape[1], pair.a.shape[2])
    return shape if pair.stacked else shape[1:]


def fit(model: Model, lora: LoraFile, name: str) -> Lora:
    """The adapter packed for a model; LoraError names a tensor that does not fit."""
    check_base(model.reader, lora)
    covered = dict.fromkeys(lora.pairs, 0)
    embedded: set[str] = set()
    factors = _packed(model.tape, model.program, lora, covered, embedded)
    source = None
    if model.source is not None and model.tape.source is not None:
        source = _packed(model.tape.source, model.source, lora, covered, embedded)
    for tensor_name, rows in covered.items():
        shape = model.reader.tensors[tensor_name].shape
        whole = int(np.prod(shape[:-1]))
        if rows < whole and not (tensor_name in embedded and rows == 0):
            raise LoraError(
                f"{lora.label}: {tensor_name}: {model.config.architecture} does not use this "
                f"tensor as a whole matrix of a product, which an adapter could change"
            )
    return Lora(name, lora.label, lora.fingerprint, tuple(lora.pairs), factors, source)


def _packed(
    tape: Tape, program: Program, lora: LoraFile, covered: dict[str, int], embedded: set[str]
) -> Adapter:
    """The adapter for one program; covered, embedded: rows of the tensors that its products use,
    and tables that it reads, are added to these.
    """
    entries: list[tuple[int, int, np.ndarray, np.ndarray, float]] = []
    for index, op in enumerate(tape.ops):
        adaptable = program.adaptable[index]
        table = op.params.get("table")
        if table is not None and table.name == EMBEDDING and EMBEDDING in lora.pairs and adaptable:
            pair = lora.pairs[table.name]
            entries.append((index, 0, pair.a, pair.b, lora.scale_of(table.name)))
            embedded.add(table.name)
        for segment, tensor in enumerate(op.params.get("weights", ()) if adaptable else ()):
            if tensor.name not in lora.pairs or (tensor.name == EMBEDDING and lora.lookups_only):
                continue
            pair = lora.pairs[tensor.name]
            if pair.stacked and tensor.start:  # some matrices of the tensor alone
                continue
            a, b = pair.a, pair.b
            if tensor.name == EMBEDDING:  # a tied head: the same matrix, read by rows
                a, b = b.transpose(0, 2, 1), a
            if not pair.stacked:
                b = b[:, tensor.start : tensor.start + tensor.shape[0]]
                count = adaptable[segment][1]  # of matrices that the file holds as one
                a, b = np.repeat(a, count, axis=0), b.reshape(count, -1, b.shape[2])
            entries.append((index, segment, a, b, lora.scale_of(tensor.name)))
            covered[tensor.name] += tensor.shape[0]
    return Adapter(program.adaptable, entries)
