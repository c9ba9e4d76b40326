"""GroveMoE (Wu et al. 2025, "Grove MoE", section 3; published code, modeling_grove_moe.py): Qwen 3
with experts, and a small expert for each group of them, which reads the rows of its members.
"""

from oxillama.model.blocks import attention, expert_ffn, routed
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("grovemoe")
def grovemoe(b: Builder) -> Value:
    """The weight of an expert is that of its group's too, under a scale of their own."""
    scale = b.keys.number("expert_group_scale")
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="neox", qk_norm="heads")
        y = layer.norm(x, "ffn_norm")
        x = x + (expert_ffn(b, layer, y, act="silu") + _groups(b, layer, y) * scale)
    return b.logits(x)


def _groups(b: Builder, layer: Layer, x: Value) -> Value:
    """The experts of the groups whose members a row chose, one part for each of those."""
    count = layer.integer("expert_count", minimum=1, maximum=1 << 12)
    each = b.keys.integer("experts_per_group", minimum=1, maximum=count)
    width = b.keys.integer("expert_chunk_feed_forward_length", minimum=1, maximum=1 << 24)
    routes, groups = routed(b, layer, x, normalise=True, share=each), count // each
    gate, up = (
        layer.experts(x, routes, f"ffn_{name}_chexps", width, count=groups)
        for name in ("gate", "up")
    )
    y = layer.experts(
        b.gate(gate, up, act="silu"), routes, "ffn_down_chexps", b.hidden, count=groups
    )
    return b.combine(y, routes)
