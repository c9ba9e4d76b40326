"""The families that can be converted; importing this package registers all of them.

`dense` decoders like Llama, `gemma`, `experts` mixtures, `recurrent` state-space and `hybrid`
models, `qwen4`, `rwkv`, `older` decoders with fused projections, `encoders`, text parts of models
that see `images`, `t5`, models whose adapters are `switched`, and those of masked `diffusion`;
`single`, `routed` and `latent`: decoders and mixtures whose names or layers are their own; `drafts`
of DFlash.
"""

from oxillama.convert.families import (
    dense,
    diffusion,
    drafts,
    encoders,
    experts,
    gemma,
    hybrid,
    images,
    latent,
    older,
    qwen4,
    recurrent,
    routed,
    rwkv,
    single,
    switched,
    t5,
)

__all__ = [
    "dense",
    "diffusion",
    "drafts",
    "encoders",
    "experts",
    "gemma",
    "hybrid",
    "latent",
    "older",
    "images",
    "qwen4",
    "recurrent",
    "routed",
    "rwkv",
    "single",
    "switched",
    "t5",
]
