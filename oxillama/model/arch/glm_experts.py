"""GLM 4.5 and 4.6 (Zhipu AI 2025, "GLM-4.5", section 2.1): partial rotation, experts chosen as in
DeepSeek V3, and a shared expert.
"""

from oxillama.model.blocks import routing_of, sections_of, sparse_decoder
from oxillama.model.builder import Builder, Value, architecture


@architecture("glm4moe")
def glm4moe(b: Builder) -> Value:
    """GLM 4.5 norms the heads of queries and keys, its Air version does not: by tensor. A file of
    the vision model says which of a token's positions turns which pair.
    """
    sections = sections_of(b, mixed=False) if "rope.dimension_sections" in b.keys else None
    return sparse_decoder(
        b,
        style="neox",
        qk_norm="heads" if b.has("blk.0.attn_q_norm.weight") else None,
        ffn_norm="post_attention_norm",
        sections=sections,
        further=True,
        **routing_of(b, gating="sigmoid", normalise=True),
    )
