"""RWKV 6, Finch (Peng et al. 2024, "Eagle and Finch"), and 7, Goose (Peng et al. 2025): no
attention, each layer mixes a row with the one before it and keeps a state of fixed size. With the
feed-forward network of Qwen 2: QRWKV 6 (Recursal 2024) and ARWKV (Yueyu et al. 2025).
"""

import numpy as np

from oxillama.errors import ModelError
from oxillama.model.blocks import gated_ffn
from oxillama.model.builder import Builder, Layer, Value, architecture

# of the norm over heads: 1e-5 times the square of 8, by which the first code divided its rows
_HEAD_EPSILON = 64e-5
# a decay is never below exp(-exp(-1/2)) (RWKV-7, section 4.1)
_SLOWEST = -0.606531


@architecture("rwkv6")
def rwkv6(b: Builder) -> Value:
    """A file's rows are halved every few layers where its weights were too."""
    every = b.keys.integer("rescale_every_n_layers", default=0)
    x = _begin(b, shifts=2)
    for layer in b.layers():
        x = x + _finch(b, layer, layer.norm(x, "attn_norm", kind="layer"))
        x = x + _channel_mix(b, layer, layer.norm(x, "attn_norm_2", kind="layer"), gated=True)
        if every and (layer.index + 1) % every == 0:
            x = x * 0.5
    return b.logits(x, kind="layer")


@architecture("rwkv7")
def rwkv7(b: Builder) -> Value:
    """Layers mix the values of the first one into theirs."""
    x, first = _begin(b, shifts=2), None
    for layer in b.layers():
        y, first = _goose(b, layer, layer.norm(x, "attn_norm", kind="layer"), first)
        x = x + y
        x = x + _channel_mix(b, layer, layer.norm(x, "attn_norm_2", kind="layer"), gated=False)
    return b.logits(x, kind="layer")


@architecture("rwkv6qwen2")
def rwkv6qwen2(b: Builder) -> Value:
    """Finch in place of the attention of Qwen 2, with fewer heads of keys and values than of
    queries.
    """
    x = _begin(b, shifts=1)
    for layer in b.layers():
        x = x + _finch(b, layer, layer.norm(x, "attn_norm"))
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


@architecture("arwkv7")
def arwkv7(b: Builder) -> Value:
    """Goose in place of the attention of Qwen 2, in some files without its gate."""
    x, first = _begin(b, shifts=1), None
    for layer in b.layers():
        y, first = _goose(b, layer, layer.norm(x, "attn_norm"), first)
        x = x + y
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


def _begin(b: Builder, *, shifts: int) -> Value:
    """The embedding, normalised where both branches of a layer look at the row before."""
    b.keys.integer("attention.head_count", default=0, maximum=0)
    b.keys.integer("token_shift_count", default=2, minimum=shifts, maximum=shifts)
    x = b.embed()
    return b.norm(x, "token_embd_norm", kind="layer") if shifts == 2 else x


def _heads(b: Builder) -> int:
    """Heads of the state; the file says how wide one is."""
    width = b.keys.integer("wkv.head_size", minimum=1, maximum=b.hidden)
    if b.hidden % width:
        raise ModelError(
            f"{b.arch}.wkv.head_size: found {width}, wanted a divisor of embedding_length "
            f"{b.hidden}"
        )
    return b.hidden // width


def _step_back(b: Builder, x: Value) -> Value:
    """The row before, less the row: what a mix adds a part of."""
    return b.conv(x, np.tile(np.array([1, -1], np.float32), (x.width, 1)))


def _channel_mix(b: Builder, layer: Layer, x: Value, *, gated: bool) -> Value:
    """A feed-forward network under a squared ReLU; gated: by a sigmoid of the row."""
    width = layer.integer("feed_forward_length", minimum=1, maximum=1 << 24)
    back = _step_back(b, x)

    def mixed(name: str) -> Value:
        return x + back * layer.vector(f"channel_mix_lerp_{name}.weight", b.hidden)

    k = b.activate(layer.linear(mixed("k"), "channel_mix_key", width), "relu2")
    y = layer.linear(k, "channel_mix_value", b.hidden)
    if not gated:
        return y
    return b.gate(layer.linear(mixed("r"), "channel_mix_receptance", b.hidden), y, act="sigmoid")


def _finch(b: Builder, layer: Layer, x: Value) -> Value:
    """Shares of the row before that depend on the rows themselves (section 4.1), and a decay for
    each key and row (4.2). Without a bonus for the row itself (`time_mix_first`) the state with it
    in is read, there is no norm over heads, and keys weigh as much as is forgotten.
    """
    heads, hidden = _heads(b), b.hidden
    plain = not layer.has("time_mix_first.weight")
    rank = b.keys.integer("time_mix_extra_dim", minimum=1, maximum=1 << 12)
    back = _step_back(b, x)
    fused = layer.has("time_mix_lerp_fused.weight")
    shares = layer.array("time_mix_lerp_fused.weight", 5, 1, 1, hidden) if fused else None
    low = x + back * layer.vector("time_mix_lerp_x.weight", hidden)
    low = b.activate(layer.linear(low, "time_mix_w1", 5 * rank), "tanh")
    more = layer.stacked(low, "time_mix_w2", hidden, count=5)

    def mixed(place: int, name: str) -> Value:
        """w, k, v, r and g lie in this order."""
        if shares is None:
            share = layer.vector(f"time_mix_lerp_{name}.weight", hidden)
        else:
            share = np.ascontiguousarray(shares[place].reshape(-1))
        return x + back * (more.columns(place * hidden, (place + 1) * hidden) + share)

    rank = b.keys.integer("time_decay_extra_dim", minimum=1, maximum=1 << 12)
    w = b.activate(layer.linear(mixed(0, "w"), "time_mix_decay_w1", rank), "tanh")
    w = layer.linear(w, "time_mix_decay_w2", hidden)
    w = b.activate(w + layer.vector("time_mix_decay.weight", hidden), "exp")
    w = b.activate(w * -1.0, "exp")
    shared = (layer.integer("attention.head_count_kv", default=heads) or heads) if plain else heads
    width = hidden // heads * shared
    k = layer.linear(mixed(1, "k"), "time_mix_key", width)
    v = layer.linear(mixed(2, "v"), "time_mix_value", width)
    r = layer.linear(mixed(3, "r"), "time_mix_receptance", hidden)
    gate = layer.linear(mixed(4, "g"), "time_mix_gate", hidden)
    if shared != heads:
        k, v = (b.concat(*[part] * (heads // shared), heads=shared) for part in (k, v))
    if plain:
        y = b.wkv(r, w, k + k * w * -1.0, v, heads=heads, scale=(hidden // heads) ** -0.5)
        y = b.gate(gate, y, act="sigmoid")
    else:
        u = layer.array("time_mix_first.weight", heads, hidden // heads)
        y = _head_norm(b, layer, b.wkv(r, w, k, v, heads=heads, u=u), heads)
        y = b.gate(gate, y, act="silu")
    return layer.linear(y, "time_mix_output", hidden)


def _goose(b: Builder, layer: Layer, x: Value, first: Value | None) -> tuple[Value, Value]:
    """(The branch, the values of the first layer): a key is replaced as far as a rate learned in
    context says (section 4.1).
    """
    heads, hidden, keys = _heads(b), b.hidden, b.keys
    back = _step_back(b, x)
    rank = {
        name: keys.integer(f"attention.{key}_lora_rank", minimum=0, maximum=1 << 12, default=0)
        for name, key in zip("wavg", ("decay", "iclr", "value_residual_mix", "gate"))
    }
    gated = layer.has("time_mix_g1.weight")
    order = "rwkvag" if gated else "rwkva"
    shares = layer.array("time_mix_lerp_fused.weight", len(order), 1, 1, hidden)

    def mixed(name: str) -> Value:
        return x + back * np.ascontiguousarray(shares[order.index(name)].reshape(-1))

    def low(name: str, act: str | None) -> Value:
        """A product of rank `rank[name]` of the row mixed for `name`."""
        y = layer.linear(mixed(name), f"time_mix_{name}1", rank[name])
        y = b.activate(y, act) if act else y
        return layer.linear(y, f"time_mix_{name}2", hidden)

    def constant(name: str) -> np.ndarray:
        return layer.vector(f"time_mix_{name}.weight", hidden)

    r = layer.linear(mixed("r"), "time_mix_receptance", hidden)
    w = b.activate(low("w", "tanh") + constant("w0"), "sigmoid")
    w = b.activate(w * _SLOWEST, "exp")
    k = layer.linear(mixed("k"), "time_mix_key", hidden)
    v = layer.linear(mixed("v"), "time_mix_value", hidden)
    if first is None:
        first = v
        # a file has the first layer's mix, which has nothing to mix with
        b.used.update(layer.name(f"time_mix_v{i}.weight") for i in range(3))
    else:
        v = v + b.gate(low("v", None) + constant("v0"), first + v * -1.0, act="sigmoid")
    rate = b.activate(low("a", None) + constant("a0"), "sigmoid")
    # a norm by the root of the mean square leaves a length of sqrt(width)
    width = hidden // heads
    removed = b.norm(k * constant("k_k"), None, heads=heads, eps=1e-24 / width) * width**-0.5
    k = k + (k * constant("k_a")) * (rate + np.full(hidden, -1, np.float32))
    y = b.wkv(r, w, k, v, removed * -1.0, removed * rate, heads=heads)
    if layer.has("time_mix_ln.weight"):
        y = _head_norm(b, layer, y, heads)
    y = y + b.head_scale(v, r * constant("r_k"), k, heads=heads)
    if gated:
        y = y * low("g", "sigmoid")
    return layer.linear(y, "time_mix_output", hidden), first


def _head_norm(b: Builder, layer: Layer, y: Value, heads: int) -> Value:
    """A norm over each head, then a weight for each column."""
    return b.norm(y, layer.name("time_mix_ln"), kind="layer", heads=heads, eps=_HEAD_EPSILON)
