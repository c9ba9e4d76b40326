"""The context of each tensor in its model: `tensor_contexts` reads it from names, shapes and keys
for the rules of `recipes`.

Tensors whose rules ask for the layer are counted in order of their layers and then of their names,
as in llama.cpp, except those that no recipe changes. Names without `blk.N.` (the sides of an
encoder and decoder) come before the layers.
"""

import re
from collections import Counter
from typing import Any

import numpy as np

from oxillama.gguf import GgufReader, Keys, TensorInfo
from oxillama.quant.recipes import TensorContext, is_kept, layer_of, roles_of

_BLOCK = re.compile(r"\bblk\.(\d+)\.")  # of `v.blk.3.ffn_down.weight` too
_COUNTED = ("attn_v", "ffn_down", "ffn_gate", "ffn_up")
# Models of 70 billion weights, most of which share each value among eight queries: architecture to
# layers. One of `_GROUPED_ONLY` that has as many key heads as heads is none of them.
_LARGE = {"llama": 80, "llama-embed": 80, "deci": 80, "olmo": 80, "qwen2": 80, "jais2": 68}
_GROUPED_ONLY = ("llama", "llama-embed")


def tensor_contexts(
    reader: GgufReader, has_imatrix: bool
) -> list[tuple[TensorInfo, TensorContext]]:
    """Every tensor with its context, in the file's order; raises ModelError for keys that are not
    sizes.
    """
    keys = Keys(reader.metadata)
    numbers = {info.name: layer_of(info.name) for info in reader.tensors.values()}
    layers = _first(keys, "block_count") or 1 + max(
        (int(layer) for name in numbers for layer in _BLOCK.findall(name)), default=0
    )
    heads = _first(keys, "attention.head_count") or 0
    key_heads = _first(keys, "attention.head_count_kv")
    key_heads = heads if key_heads is None else key_heads
    experts = _first(keys, "expert_count") or 0
    model: dict[str, Any] = {
        "grouping": heads // key_heads if key_heads else 0,
        "experts": experts,
        "has_imatrix": has_imatrix,
        "tied": "output.weight" not in reader.tensors,
        "arch": keys.arch,
        "large": _is_large(keys.arch, layers, heads, key_heads),
    }
    values = sum("attn_v" in roles_of(name) for name in numbers)
    met: Counter[str] = Counter()
    found = {}
    for info in sorted(
        reader.tensors.values(),
        key=lambda info: (-1 if numbers[info.name] is None else numbers[info.name], info.name),
    ):
        role = next((role for role in roles_of(info.name) if role in _COUNTED), None)
        own = numbers[info.name]
        counted = role == "attn_v" or (role is not None and (experts < 2 or own is None))
        before = 0 if role is None else met[role]
        layer = before if counted else own or 0
        found[info.name] = TensorContext(
            layer=layer, layers=values if role == "attn_v" else layers, before=before, **model
        )
        if role is not None and not is_kept(info.name, info.shape, keys.arch):
            met[role] += 1
    return [(info, found[info.name]) for info in reader.tensors.values()]


def _first(keys: Keys, key: str) -> int | None:
    """A key's number, of an array of them the first layer's, None where the file has none."""
    if isinstance(keys.metadata.get(keys.name(key)), (list, tuple, np.ndarray)):
        return next(iter(keys.integers(key)), None)
    return keys.integer(key, default=None)


def _is_large(arch: str, layers: int, heads: int, key_heads: int) -> bool:
    return _LARGE.get(arch) == layers and not (arch in _GROUPED_ONLY and heads == key_heads)
