"""The distribution that a sampler draws from, and the rule that turns a token drawn from another
distribution into a draw from this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama._core.sampler import SamplerCore
from oxillama.errors import SamplingError
from oxillama.sampling.draw import misfit, no_draw


@dataclass(frozen=True, slots=True)
class Distribution:
    """The tokens that can be drawn and their probabilities: ids (n,) int32 without repeats, and
    shares (n,) float64 that sum to 1.
    """

    ids: np.ndarray
    shares: np.ndarray

    def share(self, token: int) -> float:
        """The probability of a token, 0 if it cannot be drawn."""
        at = np.flatnonzero(self.ids == token)
        return float(self.shares[at[0]]) if len(at) else 0.0

    def draw(self, uniform: float) -> tuple[int, float]:
        """(token, its probability) for a number in [0, 1): the first token whose cumulative mass is
        above it.
        """
        at = _above(np.cumsum(self.shares), uniform)
        return int(self.ids[at]), float(self.shares[at])

    def likeliest(self, count: int) -> list[tuple[int, float]]:
        """The `count` most probable tokens with their probabilities, descending; the lower id first
        among equals.
        """
        order = np.lexsort((self.ids, -self.shares))[:count]
        return [(int(self.ids[at]), float(self.shares[at])) for at in order]


def distribution(
    core: SamplerCore,
    row: np.ndarray,
    mask: np.ndarray | None,
    lists: Callable[[], Mapping[str, Any]],
) -> Distribution:
    """The distribution that a compiled sampler would draw from; raises SamplingError like a
    draw.
    """
    try:
        out = core.distribution(row, mask)
    except (TypeError, ValueError) as error:
        raise misfit(error) from error
    if isinstance(out, int):
        raise no_draw(out, row, mask, lists)
    return Distribution(*out)


def settled(
    own: Distribution,
    token: int,
    other: Distribution,
    uniform: Callable[[], float],
    vocab_size: int,
) -> tuple[int, float]:
    """(token, its probability in `own`): `token`, drawn from `other`, with probability min(1, p/q),
    otherwise a draw from max(0, p - q).

    One random number is used if the token is kept, two if not. `token` must be one that `other` can
    draw.
    """
    p, q = own.share(token), other.share(token)
    if not q > 0:
        raise SamplingError(
            f"candidate {token}: its distribution gives it probability {q}, wanted above 0"
        )
    if uniform() * q < p:
        return token, p
    dense = np.zeros(vocab_size)
    dense[other.ids] = other.shares
    cumulative = np.cumsum(np.maximum(own.shares - dense[own.ids], 0.0))
    if not cumulative[-1] > 0:  # equal but for rounding: nothing is left over to draw from
        cumulative = np.cumsum(own.shares)
    at = _above(cumulative, uniform())
    return int(own.ids[at]), float(own.shares[at])


def _above(cumulative: np.ndarray, uniform: float) -> int:
    """The first index whose cumulative mass is above `uniform` times the total; rounding never
    leads past the last token with any mass.
    """
    at = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return (
        at
        if at < len(cumulative)
        else int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    )
