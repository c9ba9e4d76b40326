"""The families that can be converted; importing this package registers all of them.

`dense` decoders like Llama, `gemma`, `experts` mixtures, `recurrent` state-space and hybrid models, `older`
decoders with fused projections.
"""

from oxillama.convert.families import dense, encoders, experts, gemma, hybrid, older, recurrent

__all__ = ["dense", "encoders", "experts", "gemma", "hybrid", "older", "recurrent"]
