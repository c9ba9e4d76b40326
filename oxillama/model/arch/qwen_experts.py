"""Qwen 1.5 and 2 with experts (Alibaba 2024: "Qwen2 Technical Report", section 2.2.2), Qwen 3 with
experts ("Qwen3 Technical Report" 2025, section 2) and the text part of its vision models.
"""

from oxillama.model.blocks import routing_of, sections_of, sparse_decoder
from oxillama.model.builder import Builder, Value, architecture


@architecture("qwen2moe")
def qwen2moe(b: Builder) -> Value:
    """The weights of experts are those of a softmax over all; the shared experts have a gate."""
    return sparse_decoder(b, style="neox", **routing_of(b))


@architecture("qwen3moe")
def qwen3moe(b: Builder) -> Value:
    """The weights of the chosen experts sum to 1."""
    return sparse_decoder(b, style="neox", qk_norm="heads", **routing_of(b, normalise=True))


@architecture("qwen3vlmoe")
def qwen3vlmoe(b: Builder) -> Value:
    """Three positions a token turn the pairs of a head in turns (Qwen3-VL Technical Report
    2025).
    """
    sections = sections_of(b, mixed=True)
    return sparse_decoder(
        b, style="neox", qk_norm="heads", sections=sections, **routing_of(b, normalise=True)
    )
