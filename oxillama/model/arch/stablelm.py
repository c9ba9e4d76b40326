"""StableLM 2 (Stability AI 2024, technical report): layer norms, part of each head rotated. Orion
(OrionStar 2024) is the same with whole heads rotated.
"""

from oxillama.model.blocks import HeadNorm, attention, gated_ffn
from oxillama.model.builder import Builder, Value, architecture


@architecture("stablelm", "orion")
def stablelm(b: Builder) -> Value:
    """Without a norm of its own (12B) the feed-forward network reads what attention reads; that
    model also has a norm for each head of queries and keys.
    """
    b.keys.flag("use_parallel_residual", default=False)  # the tensors say it
    x = b.embed()
    for layer in b.layers():
        y = layer.norm(x, "attn_norm", kind="layer")
        norms: HeadNorm | None = "heads" if layer.has("attn_q_norm.weight") else None
        x = x + attention(b, layer, y, style="neox", qk_norm=norms, norm_kind="layer")
        z = layer.norm(x, "ffn_norm", kind="layer") if layer.has("ffn_norm.weight") else y
        x = x + gated_ffn(b, layer, z, act="silu")
    return b.logits(x, kind="layer")
