"""Cohere 2 with experts (Cohere 2026, by its code in transformers, `models/cohere2_moe`): one norm
before attention and experts, which run side by side; rotation in windowed layers alone.
"""

from oxillama.model.blocks import (
    attention,
    decoder,
    heads_of,
    is_windowed,
    predicts,
    rope_dims,
    routing_of,
    sparse_ffn,
)
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("cohere2moe")
def cohere2moe(b: Builder) -> Value:
    """Leading dense layers, and what predicts further tokens, rotate too. Where there are shared
    experts, both halves of the network count half. Norms are rms norms where a file gives their
    epsilon, else layer norms: transformers saves the epsilon of these in any case.
    """
    keys = b.keys
    routing = routing_of(b, gating="sigmoid")
    rms = keys.number("attention.layer_norm_rms_epsilon", default=0.0, minimum=0.0)
    kind = "rms" if rms else "layer"
    dense = keys.integer("leading_dense_block_count", default=0)
    window = keys.integer("attention.sliding_window", minimum=1)

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        near = is_windowed(b, layer.index, 4)
        turned = near or layer.index < dense or predicts(layer)
        rope = b.rope(rope_dims(b, heads_of(b, layer))) if turned else None
        y = layer.norm(x, "attn_norm", kind=kind)
        made = sparse_ffn(b, layer, y, **routing)
        if layer.has("ffn_up_shexp.weight"):
            made = made * 0.5
        seen = attention(b, layer, y, style="norm", rope=rope, window=window if near else 0)
        return x + made + seen

    return decoder(b, block, kind=kind, scale=keys.number("logit_scale", default=1.0))
