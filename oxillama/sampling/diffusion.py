"""Masked diffusion: an answer begins as masks, which are filled in over several passes, those
places first of which the model is surest.

    pass 1   prompt [_ _ _ _ _ _]     every place is predicted at once
    pass 2   prompt [a _ _ b _ _]     a and b were surest; the rest is predicted anew
    pass 3   prompt [a c d b _ _]     ...

`DiffusionConfig` says in which order and in how many passes, `Denoiser` does it for one answer. The
schedules are those of Nie et al. 2025 (LLaDA, appendix A.3: blocks, as many places in every pass)
and Ye et al. 2025 (Dream: by time); the order "origin" is that of Austin et al. 2021 (section 3.1
and D3PM's reverse process with an absorbing state).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np

from oxillama._core.sampler import certainty
from oxillama.arguments import is_one_of, named_fields, whole
from oxillama.errors import ConfigError
from oxillama.sampling.config import SamplerConfig, changed_fields
from oxillama.sampling.sampler import Logprobs, Sampler

Order = Literal["confidence", "entropy", "margin", "origin", "random"]
BLOCK = 32  # places, where neither a block's length nor eps is given


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionConfig:
    """How a model of masked diffusion fills in an answer.

    - `length`: the places of an answer whose `max_tokens` is None, fewer where the context has no
      more.
    - `steps`: passes over the whole answer, at least one for each block; None for a place a pass.
      Fewer passes take less time, and more places are then filled without seeing one another.
    - `block_length`: blocks of so many places are filled one after the other (the last one may be
      shorter). None is 32, or the whole answer if `eps` is given.
    - `eps`: how many places a pass fills follows the time, which goes from 1 to `eps` in equal
      steps: of the masks that are left, the part s goes to t is 1 - s / t, rounded down; the last
      pass fills the rest. None: every pass of a block fills as many.
    - `order`: which places come first. "confidence": those whose token is likeliest; "entropy":
      those whose distribution has the least entropy; "margin": those where the likeliest token is
      furthest ahead of the second; "random"; "origin": each one by chance, so that the numbers
      above are means. All look at the model's own distribution, before any stage of the sampler.
    - `order_temperature`: draws places by the softmax of what orders them, divided by this, rather
      than taking the first; 0 takes the first.
    - `guidance`: the scale w of classifier-free guidance: logits are u + (1 + w) (c - u), with u
      those without the prompt (whose tokens are masked) and c those with it. Each pass is computed
      twice; 0 for none.
    """

    length: int = 256
    steps: int | None = None
    block_length: int | None = None
    eps: float | None = None
    order: Order = "confidence"
    order_temperature: float = 0.0
    guidance: float = 0.0

    def __post_init__(self) -> None:
        for name in ("length", "steps", "block_length"):
            value = getattr(self, name)
            if value is not None or name == "length":
                object.__setattr__(self, name, whole(name, value, 1))
        for name, highest in (("order_temperature", 3e38), ("guidance", 3e38), ("eps", 1)):
            value = getattr(self, name)
            if value is not None or name != "eps":
                object.__setattr__(self, name, _number(name, value, highest))
        if not is_one_of(self.order, get_args(Order)):
            raise ConfigError(
                f"order: found {self.order!r:.50}, wanted one of {', '.join(get_args(Order))}"
            )
        if self.eps is not None and self.block_length is not None:
            raise ConfigError(
                f"eps: found {self.eps} and block_length {self.block_length}, wanted one of them"
            )
        if self.order_temperature and self.order in ("origin", "random"):
            raise ConfigError(
                f"order_temperature: found {self.order_temperature} for the order {self.order!r}, "
                "which is by chance, wanted 0"
            )

    def __repr__(self) -> str:
        """The fields that are not at their defaults."""
        return changed_fields(self)

    def blocks(self, places: int) -> list[tuple[int, int]]:
        """(places, passes) of each block of an answer; ConfigError for fewer steps than blocks."""
        size = self.block_length or (BLOCK if self.eps is None else places)
        sizes = [min(size, places - at) for at in range(0, places, size)]
        if self.steps is None:
            return [(each, each) for each in sizes]
        if self.steps < len(sizes):
            raise ConfigError(
                f"steps: found {self.steps} for {places} places in {len(sizes)} blocks, wanted one "
                "for each block at least"
            )
        return list(zip(sizes, shares(self.steps, len(sizes))))


class Pass(NamedTuple):
    """What the model reads next: all tokens, and the rows whose logits are wanted."""

    tokens: np.ndarray
    rows: np.ndarray


class Draws(Protocol):
    """What a `Denoiser` needs of a `Sampler`."""

    @property
    def logprobs(self) -> Logprobs | None: ...
    def sample(self, logits: np.ndarray) -> int: ...
    def uniform(self) -> float: ...


@dataclass(slots=True)
class Denoiser:
    """One answer while its masks are filled: run `next`, pass its logits to `take`, until `next` is
    None.

    tokens: the prompt, then the answer. final: how many of these do not change any more. mask,
    shifted: see `model.builder.Filling`.
    """

    tokens: np.ndarray
    final: int
    config: DiffusionConfig
    mask: int
    shifted: bool
    sampler: Draws
    logprobs: dict[int, Logprobs] = field(default_factory=dict)  # of filled places, if wanted
    next: Pass | None = None
    _run: Generator[Pass, np.ndarray, None] | None = None

    @classmethod
    def of(
        cls,
        prompt: Sequence[int],
        places: int,
        config: DiffusionConfig,
        *,
        mask: int,
        shifted: bool,
        sampler: Draws,
    ) -> Denoiser:
        """An answer of so many places, before its first pass. ConfigError for a prompt with a mask,
        and for a schedule that does not fit.
        """
        if mask in prompt:
            raise ConfigError(
                f"prompt: found the mask (token {mask}), wanted none before an answer"
            )
        tokens = np.array([*prompt, *[mask] * places], np.int32)
        made = cls(tokens, len(prompt), config, mask, shifted, sampler)
        made._run = made._passes(config.blocks(places))
        made.next = next(made._run)
        return made

    def take(self, logits: np.ndarray) -> None:
        """The logits (rows, vocab) of the rows that `next` wanted; sets `final` and `next`."""
        assert self._run is not None
        try:
            self.next = self._run.send(logits)
        except StopIteration:
            self.next = None

    def _passes(self, blocks: list[tuple[int, int]]) -> Generator[Pass, np.ndarray, None]:
        prompt = self.final
        for places, steps in blocks:
            masked = list(range(self.final, self.final + places))
            even = shares(places, steps)
            for step in range(steps):
                # chance may have left fewer than the schedule says
                count = min(self._count(step, steps, len(masked), even[step]), len(masked))
                if count:
                    rows = yield from self._predicted(masked, prompt)
                    filled = self._filled(rows, masked, count)
                    masked = [at for at in masked if at not in filled]
            self.final += places

    def _count(self, step: int, steps: int, masked: int, even: int) -> int:
        """How many masks the pass fills, of those that are left."""
        if step == steps - 1:
            return masked
        if self.config.eps is None:
            return even
        span = (1.0 - self.config.eps) / steps
        t, s = 1.0 - step * span, 1.0 - (step + 1) * span
        return int(masked * (1.0 - s / t))

    def _predicted(self, masked: list[int], prompt: int) -> Generator[Pass, np.ndarray, np.ndarray]:
        """The logits of the masks; prompt: how many tokens it has."""
        wanted = np.array(masked, np.int32) - np.int32(self.shifted)
        rows = yield Pass(self.tokens, wanted)
        if not self.config.guidance:
            return rows
        rows, blind = rows.copy(), self.tokens.copy()
        blind[:prompt] = self.mask
        without = yield Pass(blind, wanted)
        return without + np.float32(1.0 + self.config.guidance) * (rows - without)

    def _filled(self, rows: np.ndarray, masked: list[int], count: int) -> set[int]:
        """Fill `count` of the masks, with what is drawn from their rows; returns which."""
        order, sampler = self.config.order, self.sampler
        if order == "origin":
            share = count / len(masked)
            chosen = [at for at in range(len(masked)) if sampler.uniform() < share]
        elif order == "random":
            chosen = self._first([sampler.uniform() for _ in masked], count)
        else:
            drawn = [(sampler.sample(row), sampler.logprobs) for row in rows]
            kept = self._first(
                [_sureness(order, row, token) for row, (token, _) in zip(rows, drawn)], count
            )
            for at in kept:
                self._fill(masked[at], *drawn[at])
            return {masked[at] for at in kept}
        for at in chosen:
            self._fill(masked[at], sampler.sample(rows[at]), sampler.logprobs)
        return {masked[at] for at in chosen}

    def _fill(self, place: int, token: int, logprobs: Logprobs | None) -> None:
        self.tokens[place] = token
        if logprobs is not None:
            self.logprobs[place] = logprobs

    def _first(self, scores: list[float], count: int) -> list[int]:
        """Which `count` of the scores come first: the highest, of equal ones the earlier; with a
        temperature those that are drawn.
        """
        if not self.config.order_temperature:
            return sorted(sorted(range(len(scores)), key=lambda at: -scores[at])[:count])
        seed = int(self.sampler.uniform() * (1 << 53))
        chance = Sampler(SamplerConfig.greedy(temperature=1.0), len(scores), seed=seed)
        left = np.array(scores, np.float32) / np.float32(self.config.order_temperature)
        found = []
        for _ in range(count):
            found.append(chance.sample(left))
            left[found[-1]] = -np.inf
        return sorted(found)


def _sureness(order: Order, row: np.ndarray, token: int) -> float:
    """What an order compares, more for a surer row."""
    share, lead, entropy = certainty(row, token)
    return {"confidence": share, "margin": lead, "entropy": -entropy}[order]


def shares(total: int, parts: int) -> list[int]:
    """A number in so many parts, as even as they can be; the larger ones first."""
    least, more = divmod(total, parts)
    return [least + (at < more) for at in range(parts)]


def _number(name: str, value: Any, highest: float) -> float:
    """A number from 0 to `highest`; ConfigError for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ConfigError(f"{name}: found {value!r:.50}, wanted a number")
    if not 0 <= value <= highest or math.isinf(value):
        raise ConfigError(f"{name}: found {value!r}, wanted a number from 0 to {highest}")
    return float(value)
