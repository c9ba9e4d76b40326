"""The weights of a tape: packed in memory, mapped from a sidecar, or paged from the file while a
step runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from oxillama._core.elementwise import EmbeddingTable
from oxillama._core.filemap import FileMap
from oxillama._core.panels import PackedMatrix, reserve_all
from oxillama._core.pool import available_bytes
from oxillama.gguf import GgufReader
from oxillama.model.lower import Tape, TapeOp
from oxillama.model.ops import OUTPUT
from oxillama.model.record import record
from oxillama.model.tensors import Tensor
from oxillama.weights.cache import CacheSlot, slot_of
from oxillama.weights.offload import Budget, OffloadPolicy, PinnedHotSet
from oxillama.weights.packing import Packing
from oxillama.weights.pager import (
    LayerPager,
    PagedUnit,
    PagedWeight,
    PagingSummary,
    plan_pages,
)
from oxillama.weights.panel_file import Key, MappedPanels, PanelSpec
from oxillama.weights.pressure import swap_bytes

# bytes of weights that are packed before anything runs: a hundredth of a second
PACKED_AT_ONCE = 32 << 20
Progress = Callable[[int, int], None]  # bytes packed so far, bytes in all
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class TapeWeights:
    """A model's packed weights (`matrices`, by key), and what reads, maps, stores or packs them.

    slot: the place of their sidecar; mapped: they are those of the sidecar; packing: they are still
    being packed; pager: they are read from the file while a step runs.
    """

    matrices: dict[Key, PackedMatrix]
    slot: CacheSlot | None = None
    mapped: MappedPanels | None = None
    packing: Packing | None = None
    pager: LayerPager | None = None


def load_weights(
    reader: GgufReader,
    tape: Tape,
    *,
    num_threads: int,
    progress: Progress | None,
    sidecar: str | os.PathLike[str] | Literal[False],
    offload: OffloadPolicy,
    predict: bool,
) -> TapeWeights:
    """Every weight of a tape: paged if memory may not hold them, otherwise mapped from the sidecar
    if there is one, otherwise packed, or being packed. The parameters are those of
    `load.load_model`.
    """
    tensors = tensors_of(tape.all_ops)
    for tensor in tensors.values():
        # the look at a norm may have mapped a large page, which holds weights around it
        reader.release(tensor.name)
    pager = _paged(reader, tape, offload)
    if pager is not None:
        if progress is not None:
            total = sum(matrix.nbytes for matrix in pager.matrices.values())
            progress(total, total)
        return TapeWeights(dict(pager.matrices), pager=pager)
    if tape.predictor is not None and predict:
        tensors |= tensors_of(tape.predictor.ops)
    nbytes = sum(_rows(reader, tensor).nbytes for tensor in tensors.values())
    slot = slot_of(reader, sidecar, nbytes)
    if slot is not None:
        mapped = _mapped(slot, tensors, num_threads, progress)
        if mapped is not None:
            return TapeWeights(dict(mapped.matrices), slot, mapped)
        slot.check_folder()
    weights, packing = _reserved(reader, tensors, num_threads)
    if progress is None and _worth_deferring(packing):
        return TapeWeights(weights, slot, packing=packing)
    _finish(reader, tensors, packing, progress)
    return TapeWeights(weights, slot)


def files_of(reader: GgufReader, weights: TapeWeights) -> tuple[FileMap, ...]:
    """The mapped files that a step over weights relies on; the pager looks at its own."""
    if weights.pager is not None:
        return ()
    return reader.maps if weights.mapped is None else (*reader.maps, weights.mapped.map)


def packed(
    reader: GgufReader, tensors: Mapping[Key, Tensor], num_threads: int
) -> dict[Key, PackedMatrix]:
    """Weights that are packed now, however large they are."""
    weights, packing = _reserved(reader, tensors, num_threads)
    _finish(reader, tensors, packing, None)
    return weights


def tensors_of(ops: Sequence[TapeOp]) -> dict[Key, Tensor]:
    """The tensors of the weights of ops, each once."""
    return {tensor.key: tensor for op in ops for tensor in op.params.get("weights", ())}


def with_weights(
    reader: GgufReader,
    ops: Sequence[TapeOp],
    weights: Mapping[Key, PackedMatrix],
    pager: LayerPager | None = None,
) -> list[tuple[str, dict]]:
    """Ops with their weights, in the form of a `Program`: (name, parameters)."""
    made = []
    for op in ops:
        params = dict(op.params)
        if "table" in params:
            params["table"] = _table(reader, params["table"], pager)
        if "weights" in params:
            params["weights"] = [weights[tensor.key] for tensor in params["weights"]]
        made.append((op.name, params))
    return made


def paging_of(reader: GgufReader, policy: Budget | PinnedHotSet) -> PagingSummary | None:
    """The effect of a policy on a model, without loading it; None if the model fits."""
    units, table_bytes, total = _units(reader, record(reader)[1])
    if total <= policy.ram_bytes:
        return None
    return plan_pages(units, policy, table_bytes).summary(units)


def _rows(reader: GgufReader, tensor: Tensor) -> np.ndarray:
    """The raw blocks of a tensor's rows, a view of the file."""
    return tensor.blocks(reader).reshape(-1)


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
    reader: GgufReader, tensors: Mapping[Key, Tensor], num_threads: int
) -> tuple[dict[Key, PackedMatrix], Packing]:
    """Every weight in the order of the tape, with what packs them."""
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
    if free is not None and packing.nbytes > free + swap_bytes():  # who writes it would be ended
        raise MemoryError(
            f"{packing.nbytes} bytes for packed weights, the system and the process's control "
            f"groups have {free} (wanted more memory, or `offload`)"
        )
    return weights, packing


def _worth_deferring(packing: Packing) -> bool:
    """Whether a model should answer before its weights are packed: not a small one, nor if memory
    cannot hold both the panels and the file, which would then be read twice.
    """
    free = available_bytes()
    return packing.nbytes > PACKED_AT_ONCE and (free is None or 2 * packing.nbytes <= free)


def _finish(
    reader: GgufReader,
    tensors: Mapping[Key, Tensor],
    packing: Packing,
    progress: Progress | None,
) -> None:
    """Pack all weights now."""
    packing.finish(progress)
    for tensor in tensors.values():
        reader.release(tensor.name)  # what a look at others has mapped
