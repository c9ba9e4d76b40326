"""Models whose weights tests page from the file: of large feed-forward networks, and of experts."""

import numpy as np

from oxillama.gguf import GgufReader
from oxillama.model.load import load_model
from tests.model import tiny

IDS = np.arange(40) * 37 % tiny.VOCAB
FFN = 3104  # gate and up are two chunks each, the second of two panels


def dense(folder, formats=None):
    shapes = {
        f"blk.{layer}.ffn_{name}.weight": (tiny.HIDDEN, FFN)
        if name == "down"
        else (FFN, tiny.HIDDEN)
        for layer in range(tiny.LAYERS)
        for name in ("gate", "up", "down")
    }
    keys = {"qwen2.feed_forward_length": FFN}
    tiny.write(folder / "m.gguf", "qwen2", formats=formats, keys=keys, tensors=shapes).close()
    return folder / "m.gguf"


def mixture(folder, experts=16):
    """A model with experts, of which a row uses two."""
    keys = {"expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": 32}
    shapes = {}
    for layer in range(tiny.LAYERS):
        shapes |= {f"blk.{layer}.ffn_{name}.weight": None for name in ("gate", "up", "down")}
        shapes |= {f"blk.{layer}.ffn_gate_inp.weight": (experts, tiny.HIDDEN)}
        shapes |= {
            f"blk.{layer}.ffn_{name}_exps.weight": (experts, 32, tiny.HIDDEN)
            for name in ("gate", "up")
        }
        shapes |= {f"blk.{layer}.ffn_down_exps.weight": (experts, tiny.HIDDEN, 32)}
        shapes |= {f"blk.{layer}.attn_{name}_norm.weight": (tiny.HEAD_DIM,) for name in "qk"}
    keys = {f"qwen3moe.{key}": value for key, value in keys.items()}
    tiny.write(folder / "x.gguf", "qwen3moe", keys=keys, tensors=shapes).close()
    return folder / "x.gguf"


def whole(path, **options):
    return load_model(GgufReader(path), progress=lambda done, total: None, **options)


def size(path):
    return sum(matrix.nbytes for matrix in whole(path).weights.values())
