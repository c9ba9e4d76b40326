"""Ministral 3 (Mistral AI 2025, published code, modeling_ministral3.py): Llama whose queries grow
beyond the context it was first trained on.
"""

import dataclasses
import math

from oxillama.model.blocks import attention, gated_ffn, heads_of, rope_dims
from oxillama.model.builder import Builder, Value, architecture
from oxillama.model.rope import SCALING, Rope, Scaling


@architecture("mistral3")
def mistral3(b: Builder) -> Value:
    """1 + rate log(1 + floor(position / original context)), the rate by its key."""
    rate = b.keys.number("attention.temperature_scale", default=0.0)
    temper = (rate, Scaling.of(b.keys).original, 0) if rate else None
    x = b.embed()
    for layer in b.layers():
        rope = _rotation(b, rope_dims(b, heads_of(b, layer)))
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style="norm", rope=rope, temper=temper)
        x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)


def _rotation(b: Builder, dims: int) -> Rope:
    """YaRN's magnitude is divided by that of the file's multiplier."""
    rope, scaling = b.rope(dims), Scaling.of(b.keys)
    multiplier = b.keys.number(f"{SCALING}.yarn_log_multiplier", default=0.0, minimum=0.0)
    if scaling.kind != "yarn" or not multiplier:
        return rope
    share = 1.0 + 0.1 * multiplier * math.log(max(scaling.factor, 1.0))
    return dataclasses.replace(rope, magnitude=rope.magnitude / share)
