"""dots.llm1 (rednote-hilab 2025, section 2.1): attention as in Qwen 3, experts chosen as in
DeepSeek V3.
"""

from oxillama.model.blocks import routing_of, sparse_decoder
from oxillama.model.builder import Builder, Value, architecture


@architecture("dots1")
def dots1(b: Builder) -> Value:
    """Files may leave out that scores are sigmoids."""
    routing = routing_of(b, gating="sigmoid")
    return sparse_decoder(b, style="neox", qk_norm="heads", **routing)
