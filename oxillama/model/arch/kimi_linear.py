"""Kimi Linear (Moonshot AI 2025, section 3): three layers of Kimi Delta Attention, whose state
decays key by key, then one of latent attention without rotation; experts as in DeepSeek V3.
"""

import numpy as np

from oxillama.errors import ModelError
from oxillama.gguf.keys import REQUIRED
from oxillama.model.blocks import routing_of, sparse_ffn
from oxillama.model.builder import Builder, Layer, Value, architecture
from oxillama.model.latent import latent_attention
from oxillama.model.rope import Rope


@architecture("kimi-linear")
def kimi_linear(b: Builder) -> Value:
    """Layers without KV heads are recurrent."""
    routing = routing_of(b, gating="sigmoid", normalise=True)
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        if layer.integer("attention.head_count_kv", minimum=0):
            x = x + latent_attention(b, layer, y, rotation=unrotated)
        else:
            x = x + delta_attention(b, layer, y)
        x = x + sparse_ffn(b, layer, layer.norm(x, "ffn_norm"), **routing)
    return b.logits(x)


def unrotated(b: Builder, turned: int, width: int) -> tuple[Rope | None, float]:
    """No rotation; scores are scaled by the width of a key."""
    # files say a base that nothing is turned by
    b.keys.number("rope.freq_base", default=0.0)
    return None, width**-0.5


def bound_of_decay(b: Builder, *, needed: bool = False) -> float:
    """What the logarithm of a decay approaches; 0 where the file has no bound, an error if one is
    needed.
    """
    default = REQUIRED if needed else None
    found = b.keys.number("kda.gate_lower_bound", maximum=0.0, default=default)
    if found == 0:
        raise ModelError(
            f"{b.arch}.kda.gate_lower_bound: found 0, wanted a number below 0: nothing would decay"
        )
    return found or 0.0


def delta_attention(
    b: Builder, layer: Layer, x: Value, *, lowest: float = 0.0, eps: float = 0.0
) -> Value:
    """S = (I - beta k k^T) diag(w) S + beta k v^T, y = S^T q / sqrt(width); a norm over each head
    of the result is gated by a product, of low rank where the file has two matrices for it
    (sections 3.1, 3.3). lowest: a bound that log w approaches by a sigmoid in place of a softplus;
    eps: what is added to squared lengths of queries and keys, the file's where it is 0.
    """
    heads = layer.integer("attention.head_count", minimum=1, maximum=1 << 12)
    width = b.keys.integer("kda.head_dim", minimum=1, maximum=1 << 12)
    taps = b.keys.integer("ssm.conv_kernel", minimum=2, maximum=64)
    inner = heads * width

    def mixed(name: str) -> Value:
        """A product through its convolution."""
        full = layer.name(f"ssm_conv1d_{name}.weight")
        shape = b.reader.tensors[full].shape if b.has(full) else (inner, 1, taps)
        weight = b.array(full, *((1,) * (len(shape) - 3)), inner, 1, taps).reshape(inner, taps)
        return b.conv(layer.linear(x, f"attn_{name}", inner), weight, act="silu")

    def low(name: str) -> Value:
        """A product of low rank, or of one matrix."""
        if layer.has(f"ssm_{name}.weight"):
            return layer.linear(x, f"ssm_{name}", inner)
        if not layer.has(f"ssm_{name}_b.weight") and lowest:
            return layer.linear(x, f"ssm_{name}_a", inner)
        return layer.linear(layer.linear(x, f"ssm_{name}_a", width), f"ssm_{name}_b", inner)

    q, k, v = (mixed(name) for name in "qkv")
    # a norm by the root of the mean square leaves a length of sqrt(width)
    q, k = (b.norm(part, None, heads=heads, eps=(eps or b.epsilon()) / width) for part in (q, k))
    k = k * width**-0.5
    w = low("f") + layer.vector("ssm_dt.bias", inner)
    full = layer.name("ssm_a")
    shape = b.reader.tensors[full].shape if b.has(full) else (heads, 1)
    wanted = (heads,) if len(shape) == 1 else (*((1,) * (len(shape) - 2)), heads, 1)
    rate = b.array(full, *wanted).reshape(heads)
    if lowest:
        # files have the rate of either sign
        w = b.activate(w * np.repeat(np.abs(rate), width), "sigmoid") * lowest
    else:
        w = b.activate(w, "softplus") * np.repeat(rate, width)
    w = b.activate(w, "exp")
    beta = b.activate(layer.linear(x, "ssm_beta", heads), "sigmoid")
    taken = b.head_scale(k, beta, heads=heads)
    v = b.head_scale(v, beta, heads=heads)
    y = b.wkv(q, w, k, v, w * k, taken * -1.0, heads=heads, scale=1.0 / width)
    y = b.gate(low("g"), layer.norm(y, "ssm_norm", heads=heads), act="sigmoid")
    return layer.linear(y, "attn_output", b.hidden)
