"""ModernBERT (Warner et al. 2024): norms before each branch, windows between global layers, two
rope bases, fused and gated projections.
"""

from __future__ import annotations

from typing import Literal

from oxillama.model.blocks import attention, gated_ffn, heads_of, hidden_act, rope_dims
from oxillama.model.builder import Builder, architecture

_POOLINGS: dict[int, Literal["mean", "cls"]] = {1: "mean", 2: "cls"}


@architecture("modern-bert")
def modern_bert(b: Builder) -> None:
    """Layers 0, 3, 6 ... see the whole text, the others half a window to each side. The first layer
    has no norm of its own before attention: that of the embedding is it.
    """
    keys = b.keys
    b.see_all()
    window = keys.integer("attention.sliding_window", default=0)
    period = keys.integer("attention.sliding_window_pattern", default=3, minimum=1)
    act = hidden_act(b, {"gelu": "gelu_erf", "silu": "silu"})
    # of RMS norms, of which the model has none
    keys.number("attention.layer_norm_rms_epsilon", default=0.0)
    x = b.norm(b.embed(), "token_embd_norm", kind="layer")
    for layer in b.layers():
        y = layer.norm(x, "attn_norm", kind="layer") if layer.has("attn_norm.weight") else x
        dims = rope_dims(b, heads_of(b, layer))
        if window and layer.index % period:
            rope, reach = b.rope(dims, base_key="rope.freq_base_swa", scaled=False), window // 2 + 1
        else:
            rope, reach = b.rope(dims), 0
        x = x + attention(b, layer, y, style="neox", rope=rope, window=reach)
        y = layer.norm(x, "ffn_norm", kind="layer")
        x = x + gated_ffn(b, layer, y, act=act)
    b.mark_embedding(b.norm(x, "output_norm", kind="layer"))
    pooling = keys.integer("classifier.pooling_type", default=1, minimum=1, maximum=2)
    b.classify(act="gelu_erf", pooling=_POOLINGS[pooling])
