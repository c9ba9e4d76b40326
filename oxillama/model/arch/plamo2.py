"""PLaMo 2 (Preferred Networks 2025, published code, modeling_plamo.py): Mamba 2 without groups in
most layers, attention with a norm for each head in the others, norms before and after each branch.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("plamo2")
def plamo2(b: Builder) -> Value:
    """Layers without KV heads are recurrent; norms' offsets are in the file's weights."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        if layer.integer("attention.head_count_kv", minimum=0):
            y = attention(b, layer, y, style="neox", qk_norm="each")
        else:
            y = _state_space(b, layer, y)
        x = x + layer.norm(y, "post_attention_norm")
        y = gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
        x = x + layer.norm(y, "post_ffw_norm")
    return b.logits(x)


def _state_space(b: Builder, layer: Layer, x: Value) -> Value:
    """Gate and input lie side by side in each head; the time step comes of a product of low rank,
    and it, B and C are normed.
    """
    keys = b.keys
    inner = keys.integer("ssm.inner_size", minimum=1, maximum=1 << 20)
    heads = keys.integer("ssm.time_step_rank", minimum=1, maximum=1 << 16)
    states = keys.integer("ssm.state_size", minimum=1, maximum=1 << 12)
    taps = keys.integer("ssm.conv_kernel", minimum=2, maximum=64)
    keys.integer("ssm.group_count", default=0, maximum=0)
    both, width = layer.linear(x, "ssm_in", 2 * inner), inner // heads
    z = both.columns(0, width, heads=heads)
    x = both.columns(width, 2 * width, heads=heads)
    x = b.conv(x, layer.array("ssm_conv1d.weight", inner, taps), act="silu")
    rank = max(64, b.hidden // 16)
    made = layer.linear(x, "ssm_x", 2 * states + rank)
    state_in, state_out, dt = (
        layer.norm(made.columns(start, stop), f"ssm_{name}_norm")
        for name, start, stop in (
            ("b", 0, states),
            ("c", states, 2 * states),
            ("dt", 2 * states, 2 * states + rank),
        )
    )
    dt = b.activate(layer.linear(dt, "ssm_dt", heads), "softplus")
    y = b.scan(
        *(x, dt, state_in, state_out),
        a=layer.vector("ssm_a", heads).reshape(heads, 1),
        d=layer.vector("ssm_d", heads),
    )
    return layer.linear(b.gate(z, y, act="silu"), "ssm_out", b.hidden)
