"""Tiny models with fixed random weights, one per architecture, in the shapes the architecture asks
for.
"""

import numpy as np

from oxillama import quant
from oxillama.gguf import GgufReader, GgufWriter

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 64, 3, 4, 2, 32, 96, 80


def sizes(
    *, layers: int = LAYERS, hidden: int = HIDDEN, head_dim: int = HEAD_DIM, ffn: int = FFN
) -> dict:
    """The keys every architecture shares."""
    return {
        "block_count": layers,
        "context_length": 256,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }


def metadata(arch: str) -> dict:
    """The keys every architecture shares, and what one of them alone wants."""
    keys = sizes()
    if arch == "gemma3":
        keys |= {
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": 3,
            "final_logit_softcapping": 20.0,
            "rope.freq_base": 1e6,
            "attn_logit_softcapping": 30.0,
        }
    return {f"{arch}.{key}": value for key, value in keys.items()}


def shapes(arch: str) -> dict[str, tuple[int, ...]]:
    """Every tensor of the tiny model of `arch`, rows outermost."""
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    if arch != "gemma3":
        found["output.weight"] = (VOCAB, HIDDEN)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    for layer in range(LAYERS):
        block = {
            "attn_norm": (HIDDEN,),
            "attn_q": (q, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, q),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (FFN, HIDDEN),
            "ffn_up": (FFN, HIDDEN),
            "ffn_down": (HIDDEN, FFN),
        }
        if arch in ("qwen3", "gemma3"):
            block |= {"attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,)}
        if arch == "gemma3":
            block |= {"post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,)}
        found |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
        if arch == "qwen2":
            found |= {
                f"blk.{layer}.attn_{name}.bias": (rows,)
                for name, rows in (("q", q), ("k", kv), ("v", kv))
            }
    return found


def write(path, arch: str, *, formats=None, keys=None, tensors=None) -> GgufReader:
    """Write the tiny model of `arch` and open it.

    `formats(name) -> type name` picks how a matrix is stored (default F32), `keys` overrides
    metadata (None removes one), and `tensors` overrides shapes (None removes a tensor).
    """
    rng = np.random.default_rng(7)
    with GgufWriter(path, arch) as writer:
        for key, value in (metadata(arch) | (keys or {})).items():
            if value is not None:
                writer.add(key, value)
        for name, shape in (shapes(arch) | (tensors or {})).items():
            if shape is None:
                continue
            values = rng.standard_normal(shape).astype(np.float32)
            values = (
                1 + 0.1 * values if len(shape) == 1 else values / np.sqrt(np.float32(shape[-1]))
            )
            kind = formats(name) if formats and len(shape) == 2 else "F32"
            if kind == "F32":
                writer.add_tensor(name, values)
            else:
                writer.add_tensor(name, quant.quantize(values, kind), type_name=kind, shape=shape)
    return GgufReader(path)
