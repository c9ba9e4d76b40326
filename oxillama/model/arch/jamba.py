"""Jamba (Lieber et al. 2024): Mamba layers, attention without positions where a layer has KV heads,
experts where the file has them.
"""

from oxillama.model.blocks import attention, expert_ffn, gated_ffn, selective_state_space
from oxillama.model.builder import Builder, Value, architecture


@architecture("jamba")
def jamba(b: Builder) -> Value:
    """The weights of experts are those of a softmax over all of them."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        if layer.integer("attention.head_count_kv"):
            x = x + attention(b, layer, y, style="norm", rope=None)
        else:
            x = x + selective_state_space(b, layer, y, norms=True)
        y = layer.norm(x, "ffn_norm")
        if layer.has("ffn_gate_inp.weight"):
            x = x + expert_ffn(b, layer, y, act="silu", normalise=False)
        else:
            x = x + gated_ffn(b, layer, y, act="silu")
    return b.logits(x)
