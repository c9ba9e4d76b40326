"""Adapters made here: files with given factors, and the model file that a merged adapter stands
for.
"""

from pathlib import Path

import numpy as np

from oxillama.gguf import GgufReader, GgufWriter
from oxillama.model.tensors import Tensor, unpacked

EMBEDDING = "token_embd.weight"


def write_lora(path: Path, arch: str, pairs: dict, *, alpha: float = 8.0, keys=()) -> Path:
    """A GGUF adapter; pairs: tensor name -> (lora_a, lora_b)."""
    with GgufWriter(path, arch) as writer:
        writer.add("general.type", "adapter")
        writer.add("adapter.type", "lora")
        writer.add("adapter.lora.alpha", alpha, "float32")
        for key, value in dict(keys).items():
            writer.add(key, value)
        for name, (a, b) in pairs.items():
            writer.add_tensor(name + ".lora_a", np.ascontiguousarray(a, np.float32))
            writer.add_tensor(name + ".lora_b", np.ascontiguousarray(b, np.float32))
    return path


def random_pair(name: str, shape: tuple[int, ...], rank: int, rng) -> tuple:
    """Factors of a size that changes results without drowning them."""
    *count, rows, columns = shape
    if name == EMBEDDING:
        a, b = (rows, rank), (columns, rank)
    else:
        a, b = (*count, rank, columns), (*count, rows, rank)
    size = 0.2 / np.sqrt(rank * columns)
    return tuple((rng.standard_normal(s) * f).astype(np.float32) for s, f in ((a, size), (b, 1.0)))


def delta(name: str, a: np.ndarray, b: np.ndarray, scale: float) -> np.ndarray:
    """What a pair adds to its tensor, in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return scale * (a @ b.T if name == EMBEDDING else b @ a)


def merged(path: Path, reader: GgufReader, adapters: list[tuple[dict, float]]) -> Path:
    """A float32 model file with adapters, [(pairs, scale alpha / rank)], added to its weights."""
    with GgufWriter(path, reader.metadata["general.architecture"]) as writer:
        for key in reader.metadata:
            if key != "general.architecture":
                writer.add(key, reader.metadata[key])
        for name, info in reader.tensors.items():
            if info.type_name == "I32":  # a table, which no adapter changes
                writer.add_tensor(name, reader.data(name).view("<i4").reshape(info.shape))
                continue
            rows = int(np.prod(info.shape[:-1]))
            values = unpacked(reader, Tensor(name, info.type_name, (rows, info.shape[-1])))
            values = values.reshape(info.shape).astype(np.float64)
            for pairs, scale in adapters:
                if name in pairs:
                    values = values + delta(name, *pairs[name], scale)
            writer.add_tensor(name, values.astype(np.float32))
    return path
