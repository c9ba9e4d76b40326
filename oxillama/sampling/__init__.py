"""Draws tokens from logits: configs, stages, chains, and the sampler of one request.

config.py: `SamplerConfig`, the settings. stages.py: the ordered table of stages with their papers,
`SamplerStage`. chain.py: from a config to a compiled chain; `SamplerChain` for chains made by hand.
sampler.py: `Sampler`, which the engine uses. distribution.py: the distribution of a draw, and the
acceptance rule for tokens drawn from another one. breakers.py: DRY's breakers from text to tokens.
draw.py: one draw and its errors. diffusion.py: an answer whose masks are filled in. All arithmetic
is in `oxillama._core`: sampler and the modules it names.
"""

from oxillama._core.xorshift import Xorshift64
from oxillama.sampling.breakers import breaker_sequences
from oxillama.sampling.chain import SamplerChain, stages_of
from oxillama.sampling.config import DRY_BREAKERS, SamplerConfig
from oxillama.sampling.diffusion import DiffusionConfig
from oxillama.sampling.distribution import Distribution
from oxillama.sampling.sampler import Logprobs, Sampler, token_logprobs
from oxillama.sampling.stages import REORDERABLE, STAGES, SamplerStage, StageInfo

__all__ = [
    "DRY_BREAKERS",
    "REORDERABLE",
    "STAGES",
    "DiffusionConfig",
    "Distribution",
    "Logprobs",
    "Sampler",
    "SamplerChain",
    "SamplerConfig",
    "SamplerStage",
    "StageInfo",
    "Xorshift64",
    "breaker_sequences",
    "stages_of",
    "token_logprobs",
]
