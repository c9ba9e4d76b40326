"""Granite 3 with experts and Granite 4 (IBM 2024, 2025), and Bamba (IBM et al. 2024), which is
filed under Granite 4's name: scaled embeddings, residuals, scores and logits; in the hybrids Mamba
2 where a layer has no KV heads.
"""

from oxillama.model.arch.granite import read_unused
from oxillama.model.blocks import (
    attention,
    expert_ffn,
    gated_ffn,
    grouped_state_space,
    heads_of,
    rope_dims,
    routing_of,
)
from oxillama.model.builder import Builder, Value, architecture


@architecture("granitemoe", "granitehybrid")
def granite_hybrid(b: Builder) -> Value:
    """The scales are keys, logits are divided by theirs, 0 means none. A file without experts is
    dense; `rope.scaling.finetuned` says whether its layers rotate at all.
    """
    keys = b.keys
    read_unused(b)
    embedding, residual, logits = (
        keys.number(f"{name}_scale", default=1.0, minimum=0.0) or 1.0
        for name in ("embedding", "residual", "logit")
    )
    turned = keys.flag("rope.scaling.finetuned", default=True)
    routing = routing_of(b, normalise=True)
    sparse = keys.integer("expert_count", default=0)
    # a model without experts has the shared one alone, filed as a dense network
    shared = keys.integer("expert_shared_feed_forward_length", default=0)
    x = b.embed(scale=embedding)
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        if layer.integer("attention.head_count_kv", default=1):
            rope = b.rope(rope_dims(b, heads_of(b, layer))) if turned else None
            y = attention(b, layer, y, style="norm", rope=rope)
        else:
            y = grouped_state_space(b, layer, y)
        x = x + y * residual
        y = layer.norm(x, "ffn_norm")
        if sparse:
            y = expert_ffn(b, layer, y, act="silu", **routing)
        else:
            y = gated_ffn(b, layer, y, act="silu", width=shared)
        x = x + y * residual
    return b.logits(x, scale=1.0 / logits)
