"""Granite Switch 4.1 (IBM 2026, published code, granite-switch 0.1.0 and 0.1.1): Granite 4 without
recurrent layers and experts, with low-rank adapters in the file (Hu et al. 2021), of which a token
within a text says which one changes the rows from there on.
"""

from dataclasses import dataclass, field

import numpy as np

from oxillama.errors import ModelError
from oxillama.gguf.keys import REQUIRED
from oxillama.model.arch.granite import read_unused
from oxillama.model.blocks import fused, heads_of, rope_dims
from oxillama.model.builder import Builder, Layer, Value, architecture
from oxillama.model.tensors import Tensor, unpacked

_MOST = 4095  # adapters, and columns of their factors


@architecture("graniteswitch")
def granite_switch(b: Builder) -> Value:
    """Stacks `lora_a` and `lora_b` hold a pair of factors for each adapter behind one of zeros;
    scales are in `lora_b`. The scales of the rest are keys, logits are divided by theirs, 0 means
    none; `rope.scaling.finetuned` says whether layers rotate at all.
    """
    keys = b.keys
    read_unused(b)
    embedding, residual, logits = (
        keys.number(f"{name}_scale", default=1.0, minimum=0.0) or 1.0
        for name in ("embedding", "residual", "logit")
    )
    turned = keys.flag("rope.scaling.finetuned", default=True)
    width = keys.integer("expert_shared_feed_forward_length", default=0, maximum=1 << 24)
    count = keys.integer("adapters.count", minimum=1, maximum=_MOST)
    numbers, taken = _tokens(b, count)
    # without a gain the last token counts (MultiSwitch), with one the mean of all (SingleSwitch)
    gain = keys.number("adapters.router_gain", default=None, minimum=0.0)
    x = b.embed(scale=embedding, taken=taken)
    rank = keys.integer("adapters.lora_rank", minimum=1, maximum=_MOST)
    adapters = _Adapters(b.switch(numbers, gain=gain), count, rank)
    for layer in b.layers():
        y = layer.norm(x, "attn_norm")
        x = x + _attention(b, layer, y, adapters, turned=turned) * residual
        y = layer.norm(x, "ffn_norm")
        said = layer.integer("feed_forward_length", default=width or REQUIRED, maximum=1 << 24)
        gate, up = (adapters.linear(b, layer, y, f"ffn_{n}", width or said) for n in ("gate", "up"))
        y = adapters.linear(b, layer, b.gate(gate, up, act="silu"), "ffn_down", b.hidden)
        x = x + y * residual
    return b.logits(x, scale=1.0 / logits)


@dataclass(frozen=True, slots=True)
class _Adapters:
    """The adapters of the file: the route to the one in force, how many there are, and their rank
    (smaller ones are padded with zeros).
    """

    routes: Value = field(repr=False)
    count: int
    rank: int

    def linear(self, b: Builder, layer: Layer, x: Value, name: str, rows: int) -> Value:
        """The product of a matrix, changed by the adapter in force."""
        return self.change(b, layer, layer.linear(x, name, rows), x, name)

    def change(self, b: Builder, layer: Layer, y: Value, x: Value, name: str) -> Value:
        """y plus B A x of the adapter in force."""
        a, factor = (layer.name(f"{name}.lora_{part}") for part in "ab")
        stacks = self.count + 1
        low = b.routed(x, self.routes, b.stack(a, stacks, self.rank, x.width, skip=1), self.count)
        weight = b.stack(factor, stacks, y.width, self.rank, skip=1)
        _check_zeros(b, factor, weight.format, y.width, self.rank)
        return y + b.routed(low, self.routes, weight, self.count)


def _attention(b: Builder, layer: Layer, x: Value, adapters: _Adapters, *, turned: bool) -> Value:
    heads = heads_of(b, layer)
    sizes = heads.query * heads.key_dim, heads.kv * heads.key_dim, heads.kv * heads.value_dim
    q, k, v = (
        adapters.change(b, layer, y, x, f"attn_{name}")
        for name, y in zip("qkv", fused(layer, x, "attn_qkv", sizes))
    )
    scale = b.keys.number("attention.scale", default=0.0) or heads.key_dim**-0.5
    rope = b.rope(rope_dims(b, heads)) if turned else None
    y = b.attend(q, k, v, heads=heads, rope=rope, style="norm", scale=scale)
    return adapters.linear(b, layer, y, "attn_output", b.hidden)


def _tokens(b: Builder, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(the adapter that each token switches to, from 1 on, 0 for none, -1 for tokens that do not
    switch; the token whose embedding each token has). Where there is a token more than adapters,
    the first one switches back to none.
    """
    key, other = (f"adapters.token_ids_{name}" for name in ("activate", "substitute"))
    ids, stand = (b.keys.integers(name, maximum=b.vocab_size - 1) for name in (key, other))
    back = len(ids) - count
    if (
        back not in (0, 1)
        or (back and "adapters.router_gain" in b.keys)
        or len(set(ids)) < len(ids)
    ):
        raise ModelError(
            f"{b.keys.name(key)}: found {len(ids)} tokens, wanted {count} different ones, one for "
            "each adapter (or one more without adapters.router_gain)"
        )
    if len(stand) != len(ids):
        raise ModelError(f"{b.keys.name(other)}: found {len(stand)} tokens, wanted {len(ids)}")
    numbers = np.full(b.vocab_size, -1, np.int32)
    numbers[list(ids)] = np.arange(1 - back, count + 1)
    taken = np.arange(b.vocab_size, dtype=np.int32)
    taken[list(ids)] = stand
    return numbers, taken


def _check_zeros(b: Builder, name: str, kind: str, rows: int, rank: int) -> None:
    """The first matrix of `lora_b` belongs to no adapter; ModelError unless it is zeros."""
    if name not in b.missing and np.any(unpacked(b.reader, Tensor(name, kind, (rows, rank)))):
        raise ModelError(f"{name}: found numbers in its first matrix, wanted zeros: no adapter's")
