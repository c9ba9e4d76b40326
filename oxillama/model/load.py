"""Ties the room together: an open GGUF file becomes a `Model`, which is a Program and what the engine must know of it."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from oxillama._core.elementwise import EmbeddingTable
from oxillama._core.kernels import packable_formats
from oxillama._core.matmul import act_bytes
from oxillama._core.panels import PackedMatrix, pack_all, reserve_all
from oxillama._core.pool import PageMemory
from oxillama._core.tape import Program
from oxillama._core.threads import default_threads
from oxillama.errors import ModelError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys
from oxillama.model import arch as _arch  # noqa: F401  (importing it registers every architecture)
from oxillama.model.builder import Builder, Tensor, recorders
from oxillama.model.keeper import Keeper
from oxillama.model.lower import Tape, lower
from oxillama.model.reference import Reference
from oxillama.model.rope import AS_FILED, RopeOverrides, context_in_force
from oxillama.model.sidecar import Key, Wanted
from oxillama.model.sidecars import Place, sidecar_place

_ACTS = {name: act for name, _, _, act in packable_formats()}
Progress = Callable[[int, int], None]      # bytes packed so far, bytes in all
LEAST_GROUP, MOST_GROUP = 8 << 20, 16 << 20      # bytes packed in one region, between two reports
_PAGE = 2 << 20                                  # what a look at a file may bring into memory


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the floors above need to know of a model: sizes only, no tensors."""

    architecture: str
    name: str
    context_length: int
    vocab_size: int
    hidden_size: int
    layers: int
    kv_layers: tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class Model:
    """A loaded model; `program` runs it, `tape` shows it, `reader` stays open for the rows of its embedding.

    weights: packed, by key. keeper: what writes them for the next load, None where nothing does. rope: what was said in place of the file.
    """

    config: ModelConfig
    tape: Tape
    program: Program
    reader: GgufReader = field(repr=False)
    weights: Mapping[Key, PackedMatrix] = field(repr=False)
    keeper: Keeper | None = field(default=None, repr=False)
    rope: RopeOverrides = AS_FILED

    def page_memory(self, *, kv_type: str = "f16", page_size: int = 16) -> PageMemory:
        """Memory for the pages of this model's keys and values; grows as it is used."""
        return PageMemory(list(self.config.kv_layers), kv_type, page_size)

    def reference(self) -> Reference:
        """The numpy interpreter of the same tape."""
        return Reference(self.tape, self.reader)


def architectures() -> list[str]:
    """Names of every `general.architecture` that can be loaded."""
    return sorted(recorders())


def record(reader: GgufReader, *, depth: int | None = None, rope: RopeOverrides = AS_FILED) -> tuple[ModelConfig, Tape]:
    """Read the keys, record the architecture and lower it; touches no weight of two dimensions.

    depth: record the first layers alone, then the output norm and head. rope: what takes the place of the file's rotation; ConfigError
    where the architecture does not rotate by it.
    """
    name = reader.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError(f"general.architecture: found {name!r}, wanted the name of an architecture")
    if name not in recorders():
        raise ModelError(f"general.architecture: found {name!r}, wanted one of {', '.join(architectures())}")
    b = Builder(reader, name, depth=depth, rope=rope)
    own = Keys(reader.metadata, name)
    context = context_in_force(own, b.keys if rope.given() else own)
    result = recorders()[name](b)
    if b.depth == b.n_layers:
        rope.check_used(name, b.rotated_by)
    unused = b.unused()
    if unused and b.depth == b.n_layers:
        raise ModelError(f"{unused[0]}: {name} has no use for this tensor ({len(unused)} such in the file)")
    tape = lower(b, result, act_of, lambda act, columns: -(-act_bytes(act, columns) // 4))
    label = reader.metadata.get("general.name", "")
    return ModelConfig(name, label if isinstance(label, str) else "", context, b.vocab_size, b.hidden, b.depth, tuple(b.kv_layers)), tape


def load_model(reader: GgufReader, *, num_threads: int = 0, max_rows: int = 512, progress: Progress | None = None,
               sidecar: str | os.PathLike | Literal[False] = False, rope: RopeOverrides = AS_FILED) -> Model:
    """Record, lower, pack every weight and build the Program; `progress(done, total)` is told of bytes packed.

    sidecar: where packed weights are kept for the next load (model/sidecars.py): "auto" (the cache folder, for models of 256 MiB and more),
    a folder, or False. rope: see `record`; weights and sidecars know nothing of it.
    """
    config, tape = record(reader, rope=rope)
    tensors = {tensor.key: tensor for op in tape.ops for tensor in op.params.get("weights", ())}
    for tensor in tensors.values():
        reader.release(tensor.name)         # the look at a norm may have mapped a large page, which holds weights around it
    place = sidecar_place(reader, sidecar, sum(_rows(reader, tensor).nbytes for tensor in tensors.values()))
    mapped = None if place is None else _mapped(place, tensors, num_threads, progress)
    weights = _packed(reader, tensors, num_threads, progress) if mapped is None else mapped
    program = _program(config, tape, reader, weights, max_rows=max_rows, num_threads=num_threads)
    keeper = Keeper(place, weights, program) if place is not None and mapped is None else None
    return Model(config, tape, program, reader, weights, keeper, rope)


def early_exit(model: Model, depth: int, *, num_threads: int = 0, max_rows: int = 512) -> Model:
    """The first `depth` layers of a loaded model, rotated as it is, under its own output norm and head: another program over the same weights."""
    config, tape = record(model.reader, depth=depth, rope=model.rope)
    program = _program(config, tape, model.reader, model.weights, max_rows=max_rows, num_threads=num_threads)
    return Model(config, tape, program, model.reader, model.weights, rope=model.rope)


def _program(config: ModelConfig, tape: Tape, reader: GgufReader, weights: Mapping[Key, PackedMatrix], *, max_rows: int,
             num_threads: int) -> Program:
    ops = [(op.name, _ready(reader, op.params, weights)) for op in tape.ops]
    return Program(ops, list(tape.slots), kv_layers=list(config.kv_layers), vocab_size=config.vocab_size, hidden_size=config.hidden_size,
                   max_rows=max_rows, num_threads=num_threads)


def _rows(reader: GgufReader, tensor: Tensor) -> np.ndarray:
    """The raw blocks of a tensor's rows, a view of the file."""
    blocks = reader.data(tensor.name).reshape(reader.tensors[tensor.name].shape[0], -1)
    return blocks[tensor.start:tensor.start + tensor.shape[0]].reshape(-1)


def _ready(reader: GgufReader, params: dict, weights: Mapping[Key, PackedMatrix]) -> dict:
    """An op's parameters as the Program takes them."""
    ready = dict(params)
    if "table" in params:
        table = params["table"]
        ready["table"] = EmbeddingTable(_rows(reader, table), table.format, *table.shape)
    if "weights" in params:
        ready["weights"] = [weights[tensor.key] for tensor in params["weights"]]
    return ready


def _mapped(place: Place, tensors: Mapping[Key, Tensor], num_threads: int, progress: Progress | None) -> dict[Key, PackedMatrix] | None:
    """Every weight from the model's sidecar; None where there is none that holds."""
    weights = place.open({key: Wanted(tensor.format, *tensor.shape) for key, tensor in tensors.items()}, num_threads=num_threads)
    if weights is not None and progress is not None:
        total = sum(matrix.nbytes for matrix in weights.values())
        progress(total, total)
    return weights


def _packed(reader: GgufReader, tensors: Mapping[Key, Tensor], num_threads: int, progress: Progress | None) -> dict[Key, PackedMatrix]:
    """Every weight packed, a few at a time, the largest first: while a weight is packed it lies in memory twice."""
    raw = {key: _rows(reader, tensor) for key, tensor in tensors.items()}
    order = sorted(raw, key=lambda key: raw[key].nbytes, reverse=True)
    total, done = sum(rows.nbytes for rows in raw.values()), 0
    packed = dict(zip(raw, reserve_all([(raw[key], tensors[key].format, *tensors[key].shape) for key in raw])))      # in the order of the tape
    workers = num_threads or default_threads()
    enough = min(max(total // 16, LEAST_GROUP), MOST_GROUP)     # file pages that lie in memory beside their panels
    groups: list[list[Key]] = []
    for key in order:
        if not groups or sum(-(-raw[one].nbytes // _PAGE) * _PAGE for one in groups[-1]) >= enough:
            groups.append([])
        groups[-1].append(key)
    for group, following in zip(groups, [*groups[1:], []]):
        for key in following:
            reader.expect(tensors[key].name)        # from the disk, while this group is being packed
        pack_all([packed[key] for key in group], num_threads=workers)
        for key in group:
            reader.release(tensors[key].name)       # its file pages have been read once; the packed copy is what stays
            done += raw[key].nbytes
        if progress is not None:
            progress(done, total)
    return packed


def act_of(weight_format: str) -> str:
    """The activation format that a weight format is multiplied with."""
    if weight_format not in _ACTS:
        raise ModelError(f"weight format {weight_format}: no kernel multiplies it, wanted one of {', '.join(sorted(_ACTS))}")
    return _ACTS[weight_format]
