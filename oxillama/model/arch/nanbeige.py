"""Nanbeige 4 (Nanbeige 2025, published code, modeling_nanbeige.py): Llama whose layers may run
several times over, each time with keys and values of their own.
"""

from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("nanbeige")
def nanbeige(b: Builder) -> Value:
    """The final norm comes after each round, unless the file says otherwise."""
    rounds = b.keys.integer("num_loops", minimum=1, maximum=64, default=1)
    plain = b.keys.flag("skip_loop_final_norm", default=False)
    x = b.embed()
    for number in range(rounds):
        if number and not plain:
            x = b.norm(x, "output_norm")
        for layer in b.layers():
            x = x + attention(b, layer, layer.norm(x, "attn_norm"), style="norm")
            x = x + gated_ffn(b, layer, layer.norm(x, "ffn_norm"), act="silu")
    return b.logits(x)
