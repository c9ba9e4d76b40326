"""Tiny DFlash, DSpark and DFlash2 draft models with fixed random weights, for tiny targets."""

from pathlib import Path

import numpy as np

from oxillama.gguf import GgufReader, GgufWriter
from tests.model import tiny

LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, ROWS, RANK, BLOCK, MASK = 2, 4, 2, 16, 64, 48, 16, 6, 7
TAPS, GROUP, LIKELY = 3, 8, 5


def write(
    path: Path,
    *,
    hidden: int = tiny.HIDDEN,
    layers: tuple[int, ...] = (1, 2),
    vocabulary: int = tiny.VOCAB,
    own: str = "none",
    markov: bool = False,
    selector: bool = False,
    mask: int | None = MASK,
    keys: dict | None = None,
    tensors: dict | None = None,
    words: dict | None = None,
) -> GgufReader:
    """Write a draft and open it. own: "none", the target's table and output; "table", which is its
    output too; "all", both; "rows", an output of `ROWS` tokens of a fixed choice. markov: DSpark;
    selector: DFlash2. keys, tensors: replace those of the file (None removes one); words: keys of a
    vocabulary.
    """
    rng = np.random.default_rng(13)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    rows = ROWS if own == "rows" else vocabulary
    shapes = {
        "fc.weight": (hidden, len(layers) * hidden),
        "enc.output_norm.weight": (hidden,),
        "output_norm.weight": (hidden,),
    }
    for at in range(LAYERS):
        block = {
            "attn_norm": (hidden,),
            "attn_q": (q, hidden),
            "attn_k": (kv, hidden),
            "attn_v": (kv, hidden),
            "attn_q_norm": (HEAD_DIM,),
            "attn_k_norm": (HEAD_DIM,),
            "attn_output": (hidden, q),
            "ffn_norm": (hidden,),
            "ffn_gate": (FFN, hidden),
            "ffn_up": (FFN, hidden),
            "ffn_down": (hidden, FFN),
        }
        shapes |= {f"blk.{at}.{name}.weight": shape for name, shape in block.items()}
    if own in ("table", "all"):
        shapes["token_embd.weight"] = (vocabulary, hidden)
    if own in ("rows", "all"):
        shapes["output.weight"] = (rows, hidden)
    if markov:
        shapes |= {
            "markov_w1.weight": (vocabulary, RANK),
            "markov_w2.weight": (rows, RANK),
            "conf_proj.weight": (1, hidden + RANK),
            "conf_proj.bias": (1,),
        }
    if selector:
        shapes |= {
            "selector_predecessor.weight": (vocabulary, RANK),
            "selector_successor.weight": (vocabulary, RANK),
            "selector_hidden.weight": (RANK, hidden),
        }
        for at in range(LAYERS):
            for name in ("attn_conv", "ffn_conv"):
                shapes[f"blk.{at}.{name}_base"] = (2, TAPS, hidden)
                shapes[f"blk.{at}.{name}_proj.weight"] = (2 * TAPS * hidden // GROUP, hidden)
    values: dict = {}
    for name, shape in shapes.items():
        made = rng.standard_normal(shape).astype(np.float32)
        values[name] = 1 + 0.1 * made if len(shape) == 1 else made / np.sqrt(np.float32(shape[-1]))
    if own == "rows":
        values["d2t"] = rng.permutation(vocabulary)[:rows].astype(np.int64)
    said = {
        **tiny.sizes(layers=LAYERS, hidden=hidden, head_dim=HEAD_DIM, ffn=FFN),
        "block_size": BLOCK,
        "target_layers": np.array(layers, np.int32),
    }
    if markov:
        said |= {"sample_from_anchor": True, "has_confidence_head": True}
    if selector:
        said |= {"conv_kernel_size": TAPS, "conv_group_size": GROUP}
        said |= {"selector_rank": RANK, "selector_top_k": LIKELY}
    with GgufWriter(path, "dflash") as writer:
        for key, value in (said | (keys or {})).items():
            if value is not None:
                writer.add(f"dflash.{key}", value)
        if mask is not None:
            writer.add("tokenizer.ggml.mask_token_id", mask)
        for key, value in (words or {}).items():
            writer.add(key, value)
        for name, value in (values | (tensors or {})).items():
            if value is not None:
                writer.add_tensor(name, value)
    return GgufReader(path)
