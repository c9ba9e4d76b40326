"""OLMoE (Muennighoff et al. 2024, section 2): experts under the plain weights of a softmax, norms
over whole rows of queries and keys.
"""

from oxillama.model.blocks import routing_of, sparse_decoder
from oxillama.model.builder import Builder, Value, architecture


@architecture("olmoe")
def olmoe(b: Builder) -> Value:
    """Every layer has experts."""
    return sparse_decoder(b, style="neox", qk_norm="rows", **routing_of(b))
