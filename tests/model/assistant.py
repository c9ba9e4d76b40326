"""Tiny Gemma 4 assistants with fixed random weights, for the tiny Gemma 4 of `invented`."""

from pathlib import Path

import numpy as np

from oxillama.gguf import GgufReader, GgufWriter
from tests.model.invented import HIDDEN, VOCAB

# layers, width, query heads, those of keys, and floats of a head in windowed and global layers
LAYERS, WIDTH, HEADS, KV_HEADS, NEAR, WHOLE, FFN = 3, 32, 4, 2, 16, 32, 48
WINDOW, TURNED, PATTERN = 8, 16, [True, True, False]


def write(
    path: Path,
    *,
    width: int = WIDTH,
    target: int = HIDDEN,
    vocabulary: int = VOCAB,
    keys: dict | None = None,
    tensors: dict | None = None,
    words: dict | None = None,
) -> GgufReader:
    """Write a draft and open it. keys, tensors: replace those of the file (None removes one);
    words: keys of a vocabulary.
    """
    rng = np.random.default_rng(12)
    shapes = {
        "token_embd.weight": (vocabulary, width),
        "nextn.pre_projection.weight": (width, 2 * target),
        "nextn.post_projection.weight": (target, width),
        "output_norm.weight": (width,),
        "rope_freqs.weight": (TURNED // 2,),
    }
    for layer, near in enumerate(PATTERN):
        dim = NEAR if near else WHOLE
        shapes |= {
            f"blk.{layer}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (width,),
                "attn_q": (HEADS * dim, width),
                "attn_q_norm": (dim,),
                "attn_output": (width, HEADS * dim),
                "post_attention_norm": (width,),
                "ffn_norm": (width,),
                "ffn_gate": (FFN, width),
                "ffn_up": (FFN, width),
                "ffn_down": (width, FFN),
                "post_ffw_norm": (width,),
                "layer_output_scale": (1,),
            }.items()
        }
    values = {}
    for name, shape in shapes.items():
        made = rng.standard_normal(shape).astype(np.float32)
        values[name] = 1 + 0.1 * made if len(shape) == 1 else made / np.sqrt(np.float32(shape[-1]))
    values["rope_freqs.weight"] = np.repeat(np.float32([1, 1e30]), [6, TURNED // 2 - 6])
    said = {
        "block_count": LAYERS,
        "context_length": 256,
        "embedding_length": width,
        "embedding_length_out": target,
        "embedding_length_per_layer_input": 0,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": WHOLE,
        "attention.value_length": WHOLE,
        "attention.key_length_swa": NEAR,
        "attention.value_length_swa": NEAR,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.shared_kv_layers": LAYERS,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": PATTERN,
        "nextn_predict_layers": LAYERS,
        "rope.dimension_count": TURNED,
        "rope.dimension_count_swa": NEAR,
        "rope.freq_base": 10000.0,
    } | (keys or {})
    with GgufWriter(path, "gemma4-assistant") as writer:
        for key, value in said.items():
            if value is not None:
                writer.add(f"gemma4-assistant.{key}", value)
        for key, value in (words or {}).items():
            writer.add(key, value)
        for name, value in (values | (tensors or {})).items():
            if value is not None:
                writer.add_tensor(name, value)
    return GgufReader(path)
