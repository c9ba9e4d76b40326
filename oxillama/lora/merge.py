"""Writes a model file whose weights are those of a base with adapters added: W + scale alpha / rank
B A, in the formats of the base.

Tensors that no adapter changes are copied. The others are unpacked, summed in float64 and packed
again, some rows at a time; a quantised format rounds them again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxillama._core.codecs import unpack_rows
from oxillama.arguments import check_progress, path_of
from oxillama.errors import ConfigError, GgufError, LoraError
from oxillama.gguf import GgufReader, GgufWriter, TensorInfo, architecture, is_among
from oxillama.lora.file import EMBEDDING, LoraFile
from oxillama.lora.fit import check_base
from oxillama.lora.stack import paths_with_scales, read_lora
from oxillama.quant import quantize

_SLAB = 1 << 20  # numbers that are summed at a time
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge: the tensors it changed, and those of them that were rounded again."""

    path: Path
    changed: tuple[str, ...]
    rounded: tuple[str, ...]

    def __str__(self) -> str:
        summary = f"{self.path}: {len(self.changed)} tensors changed"
        return (
            summary
            if not self.rounded
            else f"{summary}, {len(self.rounded)} of them quantised again"
        )


def merge_lora(
    base: str | os.PathLike[str],
    adapters: str
    | os.PathLike[str]
    | Iterable[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]],
    target: str | os.PathLike[str],
    *,
    num_threads: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Merged:
    """Write `target`, one file: the base with adapters added: the path of one, or a list of paths
    or of (path, scale). progress: called with (bytes done, bytes in all, name) after each tensor.

    LoraError for an adapter that does not fit, ConfigError without adapters or for a target that is
    one of the inputs; then no file is written.
    """
    check_progress(progress, "(done, total, name)")
    with GgufReader(path_of("base", base)) as reader:
        found: list[tuple[LoraFile, float]] = []
        for path, scale in paths_with_scales(adapters, option="adapters"):
            if Path(path).is_file() and is_among(target, (Path(path),)):
                raise ConfigError(f"{target}: is the adapter, wanted another file")
            lora = read_lora(path, reader)
            check_base(reader, lora)
            if lora.lookups_only and scale:
                raise LoraError(
                    f"{path}: {EMBEDDING}: changes what tokens are read as alone, wanted a base "
                    "with an output.weight of its own: one file cannot hold both matrices"
                )
            found.append((lora, scale))
        if not found:
            raise ConfigError("adapters: found none, wanted at least one")
        if is_among(target, reader.paths):
            raise ConfigError(f"{target}: is the base itself, wanted another file")
        changed = {name for lora, scale in found if scale for name in lora.pairs}
        writer = GgufWriter(target, architecture(reader.metadata), alignment=reader.alignment)
        _copy_keys(reader, writer)
        for info in reader.tensors.values():
            writer.declare(info.name, info.type_name, info.shape)
        done, total = 0, sum(info.nbytes for info in reader.tensors.values())
        with writer:
            for info in reader.tensors.values():
                stored: Any = reader.data(info.name)
                if info.name in changed:
                    stored = _summed(stored, info, found, num_threads or 0)
                writer.write(info.name, stored)
                done += info.nbytes
                if progress is not None:
                    progress(done, total, info.name)
            reader.check()
        rounded = [name for name in changed if reader.tensors[name].type_name not in _FLOATS]
    return Merged(Path(target), tuple(sorted(changed)), tuple(sorted(rounded)))


def _copy_keys(reader: GgufReader, writer: GgufWriter) -> None:
    for key, value in reader.metadata.items():
        if key not in ("general.architecture", "general.alignment") and not key.startswith(
            "split."
        ):
            writer.add(key, value, reader.kv_types[key])


def _summed(
    stored: np.ndarray, info: TensorInfo, adapters: list[tuple[LoraFile, float]], num_threads: int
) -> np.ndarray:
    """One tensor's bytes with the products of all adapters added."""
    *count, rows, columns = info.shape
    blocks = stored.reshape(math.prod(count) * rows, -1)
    out = np.empty(blocks.shape, np.uint8)
    step = max(1, _SLAB // columns)
    for matrix in range(math.prod(count)):
        for first in range(0, rows, step):
            stop = min(rows, first + step)
            slab = slice(matrix * rows + first, matrix * rows + stop)
            numbers = np.empty((stop - first, columns), np.float32)
            try:
                unpack_rows(blocks[slab], info.type_name, numbers, num_threads)
            except (GgufError, MemoryError):
                raise
            except Exception as error:
                raise LoraError(f"{info.name}: type {info.type_name}: {error}") from error
            total = numbers.astype(np.float64)
            for lora, scale in adapters:
                if info.name in lora.pairs:
                    pair = lora.pairs[info.name]
                    by = scale * lora.scale_of(info.name)
                    a, b = pair.a[matrix].astype(np.float64), pair.b[matrix].astype(np.float64)
                    total += by * (
                        a[first:stop] @ b.T if info.name == EMBEDDING else b[first:stop] @ a
                    )
            packed = quantize(total.astype(np.float32), info.type_name, num_threads=num_threads)
            out[slab] = packed.reshape(stop - first, -1).view(np.uint8)
    return out
