"""Nemotron-4 and Minitron (NVIDIA 2024), Jais 2 (2025): layer norms, and a squared ReLU without a
gate (So et al. 2021, Primer).
"""

from oxillama.model.blocks import attention, ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("nemotron", "jais2")
def nemotron(b: Builder) -> Value:
    """Norm weights in the file include the one that Nemotron adds."""
    b.keys.number("attention.layer_norm_rms_epsilon", default=0.0)  # no norm here is one of these
    x = b.embed()
    for layer in b.layers():
        x = x + attention(b, layer, layer.norm(x, "attn_norm", kind="layer"), style="neox")
        x = x + ffn(b, layer, layer.norm(x, "ffn_norm", kind="layer"), act="relu2")
    return b.logits(x, kind="layer")
