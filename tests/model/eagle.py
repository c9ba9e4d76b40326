"""Tiny EAGLE-3 draft models with fixed random weights, for tiny targets."""

from pathlib import Path

import numpy as np

from oxillama.gguf import GgufReader, GgufWriter
from tests.model import tiny

HEADS, KV_HEADS, HEAD_DIM, FFN, ROWS = 4, 2, 16, 64, 48


def write(
    path: Path,
    *,
    hidden: int = tiny.HIDDEN,
    target_hidden: int = tiny.HIDDEN,
    layers: tuple[int, ...] = (1, 2, 3),
    vocabulary: int = tiny.VOCAB,
    rows: int | None = ROWS,
    keys: dict | None = None,
    tensors: dict | None = None,
    words: dict | None = None,
) -> GgufReader:
    """Write a draft and open it. rows: of its own output, which are tokens of a fixed choice; None:
    the target's head. keys, tensors: replace those of the file (None removes one); words: keys of a
    vocabulary.
    """
    rng = np.random.default_rng(11)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "token_embd.weight": (vocabulary, hidden),
        "fc.weight": (hidden, 3 * target_hidden),
        "enc.output_norm.weight": (3 * target_hidden,),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.attn_norm_2.weight": (hidden,),
        "blk.0.attn_q.weight": (q, 2 * hidden),
        "blk.0.attn_k.weight": (kv, 2 * hidden),
        "blk.0.attn_v.weight": (kv, 2 * hidden),
        "blk.0.attn_output.weight": (hidden, q),
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.ffn_gate.weight": (FFN, hidden),
        "blk.0.ffn_up.weight": (FFN, hidden),
        "blk.0.ffn_down.weight": (hidden, FFN),
        "output_norm.weight": (hidden,),
        "output.weight": (rows or 1, hidden),
    }
    values = {}
    for name, shape in shapes.items():
        made = rng.standard_normal(shape).astype(np.float32)
        values[name] = 1 + 0.1 * made if len(shape) == 1 else made / np.sqrt(np.float32(shape[-1]))
    values["d2t"] = rng.permutation(vocabulary)[: rows or 1].astype(np.int64)
    said = {
        **tiny.sizes(layers=1, hidden=hidden, head_dim=HEAD_DIM, ffn=FFN),
        "target_layers": np.array(layers, np.int32),
        "target_hidden_size": target_hidden,
        "norm_before_residual": False,
        "norm_before_fc": True,
    } | (keys or {})
    values |= tensors or {}
    if not said["norm_before_fc"]:
        values["enc.output_norm.weight"] = None
    if rows is None:
        values["output.weight"] = values["d2t"] = None
    with GgufWriter(path, "eagle3") as writer:
        for key, value in said.items():
            if value is not None:
                writer.add(f"eagle3.{key}", value)
        for key, value in (words or {}).items():
            writer.add(key, value)
        for name, value in values.items():
            if value is not None:
                writer.add_tensor(name, value)
    return GgufReader(path)
