"""What draft models have in common that begin with rows which come into some of a target's layers:
EAGLE-3 (model/eagle.py) and DFlash (model/dflash.py).
"""

from __future__ import annotations

import numpy as np

from oxillama.errors import ConfigError, ModelError
from oxillama.gguf.keys import Keys
from oxillama.model.builder import Builder

# architectures whose layers read one row of several that they add to
_STREAMS = ("gemma3n", "glm5-next")


def target_layers(
    keys: Keys, its: Keys, *, count: int | None = None, out: bool = False
) -> tuple[int, ...]:
    """The layers of a target whose inputs a draft begins with, from both files' keys; out: the
    number of layers stands for what comes out of the last one. ConfigError for a target without
    such rows.
    """
    if its.arch in _STREAMS:
        raise ConfigError(
            f"draft: found {keys.arch} for {its.arch}, wanted it for a model whose layers add to "
            "one row"
        )
    layers = keys.integers("target_layers", count=count)
    trunk = its.integer("block_count") - its.integer("nextn_predict_layers", default=0)
    most = trunk if out else trunk - 1
    if max(layers, default=0) > most:
        raise ConfigError(
            f"draft: found {keys.arch}.target_layers {list(layers)}, wanted at most {most}, as the "
            f"target has {trunk} layers"
        )
    return layers


def target_tokens(b: Builder, rows: int, vocabulary: int) -> np.ndarray | None:
    """The target's token of each row of a draft's output, int64 (rows,), from the file's `d2t`;
    None where they are the same.
    """
    if not b.has("d2t"):
        if rows != vocabulary:
            raise ConfigError(
                f"draft: found output.weight of {rows} rows without d2t, wanted {vocabulary}, the "
                "vocabulary of the target"
            )
        return None
    b.used.add("d2t")
    info = b.reader.tensors["d2t"]
    if tuple(info.shape) != (rows,) or info.type_name != "I64":
        raise ModelError(
            f"d2t: file has {info.type_name} {tuple(info.shape)}, {b.arch} needs I64 {(rows,)}"
        )
    tokens = b.reader.data("d2t").view("<i8").astype(np.int64)
    if not 0 <= tokens.min() <= tokens.max() < vocabulary:
        raise ConfigError(
            f"d2t: found tokens from {tokens.min()} to {tokens.max()}, wanted 0 to "
            f"{vocabulary - 1}, the vocabulary of the target"
        )
    if len(np.unique(tokens)) < rows:
        raise ModelError(f"d2t: found tokens twice, wanted {rows} of the target's")
    return tokens
