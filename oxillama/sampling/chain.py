"""Chains of sampler stages. `SamplerChain` combines stages freely; `Sampler` and the engine run the
same chains.

A chain is an ordered list of `SamplerStage`. Bans, biases and masks are not part of it: they always
run first, so that no stage can restore a token. `compile_stages` turns the list into its compiled
form.
"""

import math
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from oxillama._core.chain import Chain
from oxillama._core.sampler import SamplerCore
from oxillama._core.xorshift import Xorshift64
from oxillama.arguments import listable
from oxillama.errors import ConfigError
from oxillama.sampling.config import SamplerConfig, token_sequence
from oxillama.sampling.draw import draw, token_array
from oxillama.sampling.stages import NAMES, REORDERABLE, SamplerStage


def stages_of(config: SamplerConfig) -> tuple[SamplerStage, ...]:
    """The stages of a config, in order; a stage with neutral numbers is left out."""
    c = config
    greedy = c.temperature == 0
    wanted: dict[str, tuple[bool, tuple[float, ...]]] = {
        "penalties": (
            c.repetition_window != 0
            and (c.repetition_penalty != 1 or c.frequency_penalty != 0 or c.presence_penalty != 0),
            (
                c.repetition_penalty,
                c.frequency_penalty,
                c.presence_penalty,
                c.repetition_window,
            ),
        ),
        "dry": (
            c.dry_multiplier > 0 and c.dry_penalty_last_n != 0,
            (c.dry_multiplier, c.dry_base, c.dry_allowed_length, c.dry_penalty_last_n),
        ),
        "top_n_sigma": (c.top_n_sigma is not None, (c.top_n_sigma or 0.0,)),
        "top_k": (c.top_k > 0, (c.top_k,)),
        "typical": (c.typical_p < 1, (c.typical_p,)),
        "top_a": (c.top_a > 0, (c.top_a,)),
        "eta": (c.eta_cutoff > 0, (c.eta_cutoff,)),
        "epsilon": (c.epsilon_cutoff > 0, (c.epsilon_cutoff,)),
        "top_p": (c.top_p < 1, (c.top_p,)),
        "min_p": (c.min_p > 0, (c.min_p,)),
        "xtc": (c.xtc_probability > 0, (c.xtc_probability, c.xtc_threshold)),
        "temperature": (
            c.temperature != 1 or c.dynatemp_range > 0,
            (c.temperature, c.dynatemp_range, c.dynatemp_exponent),
        ),
    }
    # the largest logit after the edits: stages of chance or truncation have nothing to say
    if greedy:
        names = [
            n
            for n in (REORDERABLE if c.samplers is None else c.samplers)
            if n in ("penalties", "dry")
        ]
        out = [SamplerStage(n, wanted[n][1]) for n in names if wanted[n][0]]
        return (*out, SamplerStage("temperature", (0.0, 0.0, 1.0)))
    out = [
        SamplerStage(n, wanted[n][1])
        for n in (REORDERABLE if c.samplers is None else c.samplers)
        if wanted[n][0]
    ]
    if c.mirostat:
        out.append(SamplerStage("mirostat", (c.mirostat, c.mirostat_tau, c.mirostat_eta)))
    return tuple(out)


def token_lists(config: SamplerConfig, breakers: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The token lists of a config for `compile_stages`; a bias of -inf is a ban.

    Those are in the order of their JSON keys, in which a saved config has them: a restored sampler
    has the same lists.
    """
    banned = sorted(str(token) for token, bias in config.logit_bias.items() if bias == -math.inf)
    return {
        "bans": (*config.banned_tokens, *map(int, banned)),
        "bias": {token: bias for token, bias in config.logit_bias.items() if bias != -math.inf},
        "allow": config.allowed_tokens,
        "breakers": tuple(breakers),
    }


def breaker_ids(
    config: SamplerConfig, given: Iterable[Sequence[int]] | None
) -> tuple[tuple[int, ...], ...]:
    """DRY's breakers as token ids: those of the config, with `given` for its text; ConfigError for
    text without `given`.
    """
    if config.dry_multiplier == 0:
        return ()
    ids = [b for b in config.dry_sequence_breakers if isinstance(b, tuple)]
    if given is None and len(ids) < len(config.dry_sequence_breakers):
        raise ConfigError(
            "dry_sequence_breakers: found text and no dry_breakers, wanted token ids (see "
            "breaker_sequences) or ()"
        )
    return tuple(dict.fromkeys((*ids, *(token_sequence("dry_breakers", b) for b in given or ()))))


def compile_stages(stages: Sequence[SamplerStage], vocab_size: int, **lists: Any) -> Chain:
    """The compiled chain of the stages, after bans, biases and the mask; `lists` are the token
    lists of `Chain`.
    """
    for name in ("penalties", "dry", "mirostat"):
        if sum(stage.name == name for stage in stages) > 1:
            raise ConfigError(
                f"chain: found {name!r} twice, wanted it once (it keeps a memory of its own)"
            )
    if any(stage.name == "mirostat" for stage in stages[:-1]):
        raise ConfigError(
            "chain: found 'mirostat' before other stages, wanted it last (it steers by what is "
            "drawn)"
        )
    ops: list[tuple] = [("bias", 0, 0, 0, 0), ("mask", 0, 0, 0, 0)]
    for stage in stages:
        if stage.function is not None:
            ops.append((stage.name, stage.function))
        else:
            ops.append((stage.name, *stage.values, *(0,) * (4 - len(stage.values))))
    return Chain(vocab_size, ops, **lists)


class SamplerChain:
    """A chain made by hand: push stages in the order in which they must run, then sample from rows
    of logits.

    The chain keeps a random stream (and mirostat's mu) between draws; earlier tokens are passed
    with each call. `vocab_size` is taken from the first row if it is not given.
    """

    def __init__(
        self,
        stages: Iterable[SamplerStage] = (),
        *,
        vocab_size: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._stages: list[SamplerStage] = []
        self._vocab = vocab_size
        self._lists: dict[str, Any] = {}
        self._core: SamplerCore | None = None
        self.with_seed(seed)
        if not listable(stages):
            raise ConfigError(f"chain: found {stages!r:.50}, wanted a list of SamplerStage")
        for stage in stages:
            self.push(stage)

    def __repr__(self) -> str:
        """Its stages and its seed."""
        names = ", ".join(stage.name for stage in self._stages) or "no stages"
        return f"<SamplerChain {names}, seed {self.seed}>"

    @classmethod
    def from_config(cls, config: SamplerConfig, *, vocab_size: int | None = None) -> "SamplerChain":
        """The chain of a config, with its bans, biases and allowed tokens. ConfigError for a field
        that is about the end of a text, of which a chain knows nothing.
        """
        if not isinstance(config, SamplerConfig):
            raise ConfigError(f"config: found {type(config).__name__}, wanted a SamplerConfig")
        for name in ("ignore_eos", "min_tokens", "stop", "stop_token_ids"):
            value = getattr(config, name)
            if value:
                raise ConfigError(
                    f"{name}: found {value!r}, a chain does not know what ends a text; wanted a "
                    "Sampler"
                )
        chain = cls(stages_of(config), vocab_size=vocab_size, seed=config.seed)
        chain._lists = token_lists(config, breaker_ids(config, None))
        return chain

    def push(self, stage: SamplerStage) -> "SamplerChain":
        """Add a stage at the end; returns the chain."""
        if not isinstance(stage, SamplerStage):
            raise ConfigError(f"chain: found {stage!r}, wanted a SamplerStage")
        if stage.name in ("bias", "mask"):
            raise ConfigError(
                f"chain: found {stage.name!r}, wanted a stage that is not always there"
            )
        self._stages.append(stage)
        if self._core is not None:
            self._seed_state = self._core.rng
            self._core = None
        return self

    def with_seed(self, seed: int | None) -> "SamplerChain":
        """Restart the random stream from a seed (None: one from the system, see `seed`); returns
        the chain.
        """
        self.seed = secrets.randbits(64) if seed is None else seed
        self._seed_state = Xorshift64(self.seed).raw_state()
        self._core = None
        return self

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of all stages in running order; "bias" and "mask" are always the first two."""
        return (*NAMES[:1], "mask", *(stage.name for stage in self._stages))

    @property
    def stages(self) -> tuple[SamplerStage, ...]:
        """The stages that were pushed, in running order."""
        return tuple(self._stages)

    def sample(
        self, logits: Any, recent: Sequence[int] = (), *, mask: np.ndarray | None = None
    ) -> int:
        """Draws a token id from (vocab,) logits; `recent` are the tokens so far, oldest first (for
        penalties and DRY).

        `mask` is a bitset, (ceil(vocab/32),) uint32, a set bit allowing a token. Raises
        SamplingError when no token is left.
        """
        row = np.ascontiguousarray(logits, dtype=np.float32)
        if self._core is None:
            self._vocab = self._vocab or row.size
            self._core = SamplerCore(
                compile_stages(self._stages, self._vocab, **self._lists), self._seed_state
            )
        core = self._core
        core.load(core.rng, core.mu, 0, token_array("recent", recent, core.chain.vocab))
        return draw(core, row, mask, -1, lambda: self._lists)
