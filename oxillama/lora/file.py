"""Reads a GGUF adapter. Every key, name, type, shape and number is checked, and anything without a
meaning here is refused by name.

Keys: general.type "adapter", adapter.type "lora", general.architecture, adapter.lora.alpha. Tensors
come in pairs NAME.lora_a (rank, columns) and NAME.lora_b (rows, rank); for a stack of experts their
number is the first dimension. The pair of token_embd.weight is (vocabulary, rank) and (columns,
rank).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from oxillama._core.codecs import unpack_rows
from oxillama.errors import GgufError, LoraError
from oxillama.gguf import GgufReader, file_kind

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
# the files of a PEFT folder
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
_SUFFIXES = (".lora_a", ".lora_b")
_FLOATS = ("F32", "F16", "BF16")
# keys of an adapter that say nothing about what is computed
_INERT = ("adapter.lora.task_name",)


@dataclass(frozen=True, slots=True)
class Pair:
    """The factors of one tensor, float32: a (count, rank, columns) and b (count, rows, rank), with
    count 1 for a matrix. For the token embedding a is (1, vocabulary, rank) and b (1, columns,
    rank).
    """

    a: np.ndarray
    b: np.ndarray
    stacked: bool = False  # whether the file has a count

    @property
    def rank(self) -> int:
        """Columns of b."""
        return int(self.b.shape[2])


@dataclass(frozen=True, slots=True)
class LoraFile:
    """An adapter as read from a file. alpha: 0 if products are not scaled by alpha / rank; scaled:
    the factor of a pair, by tensor name, if it is not alpha / rank. lookups_only: the token
    embedding changes and a head that is the same matrix does not.
    """

    label: str
    architecture: str
    alpha: float
    pairs: Mapping[str, Pair] = field(repr=False)
    scaled: Mapping[str, float] = field(default_factory=dict, repr=False)
    lookups_only: bool = False

    def scale_of(self, name: str) -> float:
        """The factor of a tensor's product, in addition to the caller's scale."""
        if name in self.scaled:
            return self.scaled[name]
        return self.alpha / self.pairs[name].rank if self.alpha else 1.0

    @property
    def fingerprint(self) -> str:
        """BLAKE3 of everything the adapter computes, hexadecimal: equal for equal factors from any
        file.
        """
        hasher = blake3(self.architecture.encode())
        if self.lookups_only:
            hasher.update(b"\0lookups only")
        for name in sorted(self.pairs):
            pair = self.pairs[name]
            text = f"\0{name}\0{pair.a.shape}{pair.b.shape}{float(self.scale_of(name)).hex()}\0"
            hasher.update(text.encode())
            hasher.update(np.ascontiguousarray(pair.a).tobytes())
            hasher.update(np.ascontiguousarray(pair.b).tobytes())
        return hasher.hexdigest()


def read_gguf_lora(path: str | os.PathLike[str]) -> LoraFile:
    """The adapter of a GGUF file. GgufError for a malformed file, LoraError for a file that is not
    an adapter or cannot be honoured.
    """
    label = str(path)
    with GgufReader(Path(path)) as reader:
        _check_keys(reader.metadata, label)
        architecture = reader.metadata["general.architecture"]
        alpha = _alpha(reader.metadata.get("adapter.lora.alpha", 0.0), label)
        return LoraFile(label, architecture, alpha, checked_pairs(_read(reader, label), label))


def _check_keys(metadata: Mapping[str, Any], label: str) -> None:
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        found = metadata.get(key)
        if not isinstance(found, str) or found != wanted:
            what = f": this is {file_kind(metadata)}" if key == "general.type" else ""
            raise LoraError(f"{label}: {key}: found {found!r:.60}, wanted {wanted!r}{what}")
    found = metadata.get("general.architecture")
    if not isinstance(found, str) or not found:
        raise LoraError(
            f"{label}: general.architecture: found {found!r:.60}, wanted the base's name"
        )
    for key in metadata:
        if key.startswith("general.") or key in ("adapter.type", "adapter.lora.alpha", *_INERT):
            continue
        raise LoraError(f"{label}: {key}: this key of an adapter has no meaning here")


def fits_float32(value: Any) -> bool:
    """Whether a number is finite in float32, as the kernels hold scales."""
    try:
        with np.errstate(over="ignore"):
            return math.isfinite(np.float32(value))
    except OverflowError:  # an integer that no float holds
        return False


def _alpha(value: Any, label: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not fits_float32(value):
        raise LoraError(f"{label}: adapter.lora.alpha: found {value!r:.60}, wanted a finite number")
    return float(value)


def _read(reader: GgufReader, label: str) -> dict[str, np.ndarray]:
    """Every tensor as float32 in its shape; LoraError names one that is not a factor."""
    found: dict[str, np.ndarray] = {}
    for name, info in reader.tensors.items():
        if not name.endswith(_SUFFIXES):
            raise LoraError(f"{label}: {name}: found a tensor that is not a lora_a or lora_b")
        shape = tuple(info.shape)
        if len(shape) not in (2, 3) or 0 in shape:
            raise LoraError(f"{label}: {name}: found shape {shape}, wanted 2 or 3 dimensions")
        try:
            blocks = reader.data(name).reshape(math.prod(shape[:-1]), -1)
            out = np.empty((len(blocks), shape[-1]), np.float32)
            unpack_rows(blocks, info.type_name, out)
        except (GgufError, MemoryError):
            raise
        except Exception as error:
            raise LoraError(
                f"{label}: {name}: found type {info.type_name}, wanted one of weights: {error}"
            ) from error
        found[name] = out.reshape(shape)
    return found


def checked_pairs(tensors: Mapping[str, np.ndarray], label: str) -> dict[str, Pair]:
    """Factors by the tensor they change; LoraError for half a pair, unequal ranks, or a number that
    is not finite.
    """
    pairs: dict[str, Pair] = {}
    for name in tensors:
        base = name.removesuffix(".lora_a").removesuffix(".lora_b")
        if base in pairs:
            continue
        a, b = tensors.get(base + ".lora_a"), tensors.get(base + ".lora_b")
        if a is None or b is None:
            lacks = "lora_a" if a is None else "lora_b"
            raise LoraError(f"{label}: {base}: has no {lacks}, wanted both factors")
        for half, values in (("lora_a", a), ("lora_b", b)):
            if not np.isfinite(values).all():
                raise LoraError(f"{label}: {base}.{half}: holds numbers that are not finite")
        if a.ndim != b.ndim:
            raise LoraError(f"{label}: {base}: found factors {a.shape} and {b.shape}, wanted alike")
        rank = a.shape[-1] if base == EMBEDDING else a.shape[-2]
        if rank != b.shape[-1] or (a.ndim == 3 and len(a) != len(b)):
            raise LoraError(
                f"{label}: {base}: found lora_a {a.shape} and lora_b {b.shape}, wanted one rank "
                "and count"
            )
        stacked = a.ndim == 3
        pairs[base] = Pair(a if stacked else a[None], b if stacked else b[None], stacked)
    if not pairs:
        raise LoraError(f"{label}: found no factors, wanted at least one pair")
    return pairs
