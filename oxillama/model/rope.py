"""Rotary position embedding as the file describes it: one inverse frequency per pair of floats, and a magnitude.

Sources: Su et al. 2021 (RoFormer, section 3.4.2) for the plain form; Peng et al. 2023 (YaRN, sections 3.2 to 3.4) for the
interpolation between frequencies and the attention factor; Llama 3.1's per-frequency factors come ready as a tensor.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from oxillama.errors import ModelError
from oxillama.gguf.keys import Keys


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Angles are position * inv_freq (float32 (dims/2,)); cosine and sine are both multiplied by `magnitude`."""

    dims: int
    inv_freq: np.ndarray
    magnitude: float

    @property
    def key(self) -> tuple[int, bytes, float]:
        """What makes two tables the same."""
        return self.dims, self.inv_freq.tobytes(), self.magnitude


def rope_from_keys(keys: Keys, dims: int, *, base_key: str, base: float, factors: np.ndarray | None, scaled: bool) -> Rope:
    """The embedding that `rope.*` keys ask for over `dims` floats of a head; `scaled=False` leaves the scaling keys out."""
    if dims < 2 or dims % 2:
        raise ModelError(f"{keys.arch}.rope.dimension_count: found {dims}, wanted an even number of 2 or more")
    theta = keys.number(base_key, default=base, minimum=1e-3)
    inv_freq = theta ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    if factors is not None:
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ModelError("rope_freqs.weight: found a factor that is not a positive number, wanted positive numbers")
        inv_freq = inv_freq / factors.astype(np.float64)
    magnitude = 1.0
    if scaled:
        kind = keys.text("rope.scaling.type", default="none")
        legacy = keys.number("rope.scale_linear", default=1.0, minimum=0.0)
        factor = keys.number("rope.scaling.factor", default=legacy, minimum=0.0) or 1.0   # 0 is how some files say "no scaling"
        if kind == "yarn":
            inv_freq, magnitude = _yarn(keys, inv_freq, dims, theta, factor)
        elif kind == "linear" or (kind == "none" and "rope.scaling.type" not in keys):
            inv_freq = inv_freq / factor
        elif kind != "none":
            raise ModelError(f"{keys.arch}.rope.scaling.type: found {kind!r}, wanted 'none', 'linear' or 'yarn'")
        magnitude *= keys.number("rope.scaling.attn_factor", default=1.0, minimum=0.0)
    return Rope(dims, inv_freq.astype(np.float32), float(magnitude))


def _yarn(keys: Keys, inv_freq: np.ndarray, dims: int, base: float, factor: float) -> tuple[np.ndarray, float]:
    """YaRN: keep fast pairs, interpolate slow ones, ramp linearly between (section 3.2); attention factor of section 3.4."""
    context = keys.integer("context_length", minimum=1)
    original = keys.integer("rope.scaling.original_context_length", default=context, minimum=1)
    extrapolation = keys.number("rope.scaling.yarn_ext_factor", default=1.0)
    attention = keys.number("rope.scaling.yarn_attn_factor", default=1.0)
    fast = keys.number("rope.scaling.yarn_beta_fast", default=32.0, minimum=1e-6)
    slow = keys.number("rope.scaling.yarn_beta_slow", default=1.0, minimum=1e-6)

    def pair_with(rotations: float) -> float:
        """The pair that turns `rotations` times over the original context."""
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_with(fast)), 0)
    high = min(math.ceil(pair_with(slow)), dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
    keep = (1.0 - ramp) * extrapolation
    blended = inv_freq / factor * (1.0 - keep) + inv_freq * keep
    return blended, attention * (1.0 + 0.1 * math.log(factor) if factor > 1.0 else 1.0)
