"""GPT-2 (Radford et al. 2019) and what has its shape: StarCoder (BigCode 2023) with learned
positions; GPT-NeoX (Black et al. 2022), StarCoder 2 (BigCode 2024), CodeShell and Phi-2 with
rotation.
"""

from oxillama.model.blocks import attention, ffn, hidden_act
from oxillama.model.builder import Builder, Value, architecture


@architecture("gpt2", "starcoder")
def gpt2(b: Builder) -> Value:
    """Learned positions; StarCoder has one KV head."""
    x = b.embed() + b.position_embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm", kind="layer")
        x = x + attention(b, layer, y, style="norm", rope=None)
        x = x + ffn(b, layer, layer.norm(x, "ffn_norm", kind="layer"), act="gelu_tanh")
    return b.logits(x, kind="layer")


@architecture("starcoder2", "codeshell")
def starcoder2(b: Builder) -> Value:
    """Rotation in place of learned positions, biases everywhere."""
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm", kind="layer"), style="neox")
        x = x + ffn(b, layer, layer.norm(x, "ffn_norm", kind="layer"), act="gelu_tanh")
    return b.logits(x, kind="layer")


@architecture("gptneox")
def gptneox(b: Builder) -> Value:
    """Both branches read the layer's input where the file says so (section 2.1), each by a norm of
    its own; else one after the other.
    """
    parallel = b.keys.flag("use_parallel_residual", default=True)
    act = hidden_act(b, {"gelu": "gelu_erf", "gelu_pytorch_tanh": "gelu_tanh"})
    x = b.embed()
    for layer in b.layers():
        y = attention(b, layer, layer.norm(x, "attn_norm", kind="layer"), style="neox")
        middle = x + y
        z = layer.norm(x if parallel else middle, "ffn_norm", kind="layer")
        x = middle + ffn(b, layer, z, act=act)
    return b.logits(x, kind="layer")


@architecture("phi2")
def phi2(b: Builder) -> Value:
    """Phi-2 (Microsoft 2023): one norm for both branches, part of each head rotated."""
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm", kind="layer")
        x = x + attention(b, layer, y, style="neox") + ffn(b, layer, y, act="gelu_tanh")
    return b.logits(x, kind="layer")
