"""How `SpeculativeEngine` and `SpeculativeDecoder` speculate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.arguments import checked_flag, named_fields, whole
from oxillama.errors import ConfigError
from oxillama.sampling import SamplerConfig
from oxillama.speculative.drafts import ModelEngine

Model = str | Path | ModelEngine | None


@named_fields
@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """A target, a draft, and how they work together.

    - `target`: an engine or a name as in `load`, None for the embedded model.
    - `draft`: one of
      - an engine, or a name as in `load` (of a folder, the best compatible file is taken);
      - "early_exit:n", the target's own first n layers under its output norm and head, over the
        same weights ("early_exit": a quarter of the layers);
      - "requantised", the target itself with fewer bits, in a temporary file that is removed when
        the engine is closed, or at the latest when the interpreter ends.
    - `num_speculative`: most candidates of a step.
    - `seed`: of every generation that gives none.
    - `draft_sampler`: the draft's own sampler, whose candidates are accepted or replaced by
      probability. None: candidates are drawn with the target's random numbers.
    - `adaptive`: run only as many candidates as make generation faster.
    """

    target: Model = None
    draft: Any = None
    num_speculative: int = 4
    seed: int | None = None
    draft_sampler: SamplerConfig | None = None
    adaptive: bool = True

    def __post_init__(self) -> None:
        _set_integer(self, "num_speculative", 1)
        if self.seed is not None:
            if (
                isinstance(self.seed, bool)
                or not isinstance(self.seed, (int, np.integer))
                or not 0 <= self.seed < 1 << 64
            ):
                raise ConfigError(f"seed: found {self.seed!r}, wanted an integer in [0, 2^64)")
            object.__setattr__(self, "seed", int(self.seed))
        _check_sampler("draft_sampler", self.draft_sampler)
        checked_flag("adaptive", self.adaptive)
        if self.draft is None:
            raise ConfigError(
                "draft: found None, wanted an engine, the name of a model, 'early_exit' or "
                "'requantised'"
            )


@named_fields
@dataclass(frozen=True, slots=True)
class AsyncSpecConfig:
    """How a `SpeculativeDecoder` speculates.

    - `spec_k`: most candidates of a step.
    - `draft_sampler`: the draft's own sampler, None to draw with the target's random numbers. With
      one the same seed gives the same text, but a different one than a `SpeculativeEngine`, whose
      draft draws in another order.
    - `target_sampler`: of the text, None for the target's own.
    - `force_n1`: one token a step, without the draft.
    - `max_tokens`: of a generation.
    - `draft_threads`: workers of a draft that is loaded here, None for half of the cores.
    - `adaptive`: draft only while it makes generation faster. With a `draft_sampler`, candidates
      are drafted for every step.
    """

    spec_k: int = 4
    draft_sampler: SamplerConfig | None = None
    target_sampler: SamplerConfig | None = None
    force_n1: bool = False
    max_tokens: int = 512
    draft_threads: int | None = None
    adaptive: bool = True

    def __post_init__(self) -> None:
        _set_integer(self, "spec_k", 1)
        _set_integer(self, "max_tokens", 0)
        if self.draft_threads is not None:
            _set_integer(self, "draft_threads", 1)
        _check_sampler("draft_sampler", self.draft_sampler)
        _check_sampler("target_sampler", self.target_sampler)
        for name in ("force_n1", "adaptive"):
            checked_flag(name, getattr(self, name))


def _set_integer(config: Any, name: str, least: int) -> None:
    object.__setattr__(config, name, whole(name, getattr(config, name), least))


def _check_sampler(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, SamplerConfig):
        raise ConfigError(f"{name}: found {type(value).__name__}, wanted a SamplerConfig")
