"""Rotary position embedding, from the file or from overrides: one inverse frequency per pair of
floats, and a magnitude.

    file's keys --RopeOverrides.over--> keys in force --rope_from_keys--> Rope
                                                      --context_in_force--> tokens that a session
                                                      holds by default

Sources: Su et al. 2021 (RoFormer, section 3.4.2) for the plain form; Chen et al. 2023 (position
interpolation, section 3.1) for linear scaling; Peng et al. 2023 (YaRN, sections 3.2 to 3.4) for the
interpolation between frequencies and the attention factor. Llama 3.1's per-frequency factors are a
tensor of the file and stay under overrides; so do those of LongRoPE (Ding et al. 2024), one for
short sequences and one for long ones.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from oxillama.errors import ConfigError, ModelError
from oxillama.gguf.keys import Keys

# the keys that overrides stand for: of the one base, and of all scaling
BASE, SCALING = "rope.freq_base", "rope.scaling"
KINDS = ("none", "linear", "yarn")
_MOST_CONTEXT = (1 << 32) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Angles are position * inv_freq (float32 (dims/2,)); cosine and sine are both multiplied by
    `magnitude`. sections int32 (dims/2,): which of a token's positions each pair uses (M-RoPE: Wang
    et al. 2024, Qwen2-VL, section 2.1); None if a token has one position. far: the frequencies of
    sequences with more than `near` tokens (LongRoPE); None if all have the same.
    """

    dims: int
    inv_freq: np.ndarray
    magnitude: float
    sections: np.ndarray | None = None
    far: np.ndarray | None = None
    near: int = 0

    @property
    def key(self) -> tuple[int, bytes, float, bytes]:
        """What makes two tables the same."""
        sections = b"" if self.sections is None else self.sections.tobytes()
        far = b"" if self.far is None else self.far.tobytes()
        return self.dims, self.inv_freq.tobytes(), self.magnitude, sections + far


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeOverrides:
    """Overrides of the file's rotation; None keeps the file's value. Numbers become floats;
    ConfigError for invalid values.

    rope_freq_base: replaces `rope.freq_base` only; a second base (`rope.freq_base_swa` of windowed
    layers) stays. rope_freq_scale: the factor of angles, 1 / `rope.scaling.factor`. rope_scaling:
    "none", "linear" or "yarn", for `rope.scaling.type`; a file that names none is linear.
    yarn_orig_ctx: for `rope.scaling.original_context_length` (positions). yarn_ext_factor,
    yarn_attn_factor, yarn_beta_fast, yarn_beta_slow: for the keys `rope.scaling.yarn_*`; 0 as
    yarn_ext_factor interpolates every pair and leaves magnitudes unchanged.
    """

    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    rope_scaling: str | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None

    def __post_init__(self) -> None:
        if self.rope_scaling is not None and (
            not isinstance(self.rope_scaling, str) or self.rope_scaling not in KINDS
        ):
            raise ConfigError(
                f"rope_scaling: found {self.rope_scaling!r}, wanted one of {', '.join(KINDS)}"
            )
        orig = self.yarn_orig_ctx
        if orig is not None:
            if (
                isinstance(orig, bool)
                or not isinstance(orig, (int, np.integer))
                or not 1 <= orig < 1 << 31
            ):
                raise ConfigError(
                    f"yarn_orig_ctx: found {orig!r}, wanted an integer from 1 to 2^31 - 1"
                )
            object.__setattr__(self, "yarn_orig_ctx", int(orig))
        for name in (
            "rope_freq_base",
            "rope_freq_scale",
            "yarn_ext_factor",
            "yarn_attn_factor",
            "yarn_beta_fast",
            "yarn_beta_slow",
        ):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(
                    self, name, _positive(name, value, or_zero=name == "yarn_ext_factor")
                )
        if self.rope_scaling is not None:
            self._fit(self.rope_scaling, "")

    def given(self) -> dict[str, Any]:
        """The overrides that are set, by name."""
        return {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) is not None
        }

    def over(self, keys: Keys) -> Keys:
        """The same keys with the overrides; ConfigError for an override that does not fit the kind
        of scaling.
        """
        given = self.given()
        if not given:
            return keys
        self._fit(
            self.rope_scaling or _kind(keys), "the file's own " if self.rope_scaling is None else ""
        )
        values = {
            f"{SCALING}.{name}": value for name, value in given.items() if name.startswith("yarn_")
        }
        if self.yarn_orig_ctx is not None:
            values[f"{SCALING}.original_context_length"] = values.pop(f"{SCALING}.yarn_orig_ctx")
        if self.rope_freq_base is not None:
            values[BASE] = self.rope_freq_base
        if self.rope_scaling is not None:
            values[f"{SCALING}.type"] = self.rope_scaling
        if self.rope_freq_scale is not None:
            values[f"{SCALING}.factor"] = _factor(self.rope_freq_scale, _own_factor(keys))
        ruling = Keys(
            {**keys.metadata, **{keys.name(key): value for key, value in values.items()}},
            keys.arch,
            read=keys.read,
        )
        _whole_pairs(ruling)  # a key that scaling of another kind leaves unread
        fast, slow = _betas(ruling)
        if fast <= slow and given.keys() & {"yarn_beta_fast", "yarn_beta_slow"}:
            raise ConfigError(
                f"yarn_beta_fast: found {fast:g} and a yarn_beta_slow of {slow:g}, wanted a "
                "larger yarn_beta_fast"
            )
        return ruling

    def check_used(self, arch: str, used: set[str]) -> None:
        """Raise ConfigError for the first override that no layer used; used: the keys of `BASE` and
        `SCALING` that were read.
        """
        for name, value in self.given().items():
            if (BASE if name == "rope_freq_base" else SCALING) not in used:
                raise ConfigError(
                    f"{name}: found {value!r}, this {arch} rotates no layer by it, wanted None"
                )

    def _fit(self, kind: str, whose: str) -> None:
        """Raise ConfigError for what a kind of scaling does not know; whose: of whom the kind
        is.
        """
        if kind in ("none", "longrope") and self.rope_freq_scale not in (None, 1.0):
            raise ConfigError(
                f"rope_freq_scale: found {self.rope_freq_scale} and {whose}rope_scaling {kind!r}, "
                "wanted 'linear' or 'yarn'"
            )
        for name, value in self.given().items():
            if name.startswith("yarn_") and kind != "yarn":
                raise ConfigError(
                    f"{name}: found {value} and {whose}rope_scaling {kind!r}, wanted 'yarn'"
                )


AS_FILED = RopeOverrides()


def _positive(name: str, value: Any, *, or_zero: bool) -> float:
    found = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer beyond every float
            found = float(value)
    above = math.isfinite(found) and found > 0 and math.isfinite(1.0 / found)
    if not (above or or_zero and found == 0):
        raise ConfigError(
            f"{name}: found {value!r}, wanted a finite number "
            f"{'of 0 or more' if or_zero else 'above 0'}"
        )
    return found


def _kind(keys: Keys) -> str:
    """The kind of scaling by its key; a file without one is linear, by a factor of 1 unless it says
    another.
    """
    return keys.text("rope.scaling.type", default="linear")


def _own_factor(keys: Keys) -> float:
    """The factor by its key, whatever the kind."""
    legacy = keys.number("rope.scale_linear", default=1.0, minimum=0.0)
    # 0 is how some files say "no scaling"
    return keys.number("rope.scaling.factor", default=legacy, minimum=0.0) or 1.0


def _betas(keys: Keys) -> tuple[float, float]:
    """Rotations over the original context: pairs with more are kept, pairs with fewer interpolated
    (YaRN, section 3.2).
    """
    return (
        keys.number("rope.scaling.yarn_beta_fast", default=32.0, minimum=1e-6),
        keys.number("rope.scaling.yarn_beta_slow", default=1.0, minimum=1e-6),
    )


def _whole_pairs(keys: Keys) -> bool:
    """Whether YaRN's ramp begins and ends at whole pairs: that of gpt-oss as published does not,
    which files of our converter say.
    """
    return keys.flag("rope.scaling.yarn_truncate", default=True)


def _factor(scale: float, own: float) -> float:
    """The factor whose inverse is `scale`: the file's own or a whole number if possible, because 1
    / scale may differ by a rounding.
    """
    plain = 1.0 / scale
    exact = (
        each
        for each in (own, float(round(plain)) if plain < 1 << 52 else plain)
        if each and 1.0 / each == scale
    )
    return next(exact, plain)


class Scaling(NamedTuple):
    """How positions are stretched: by which kind and factor, over a context of how many positions
    before.
    """

    kind: str
    factor: float
    original: int

    @classmethod
    def of(cls, keys: Keys) -> Scaling:
        """What the `rope.scaling` keys say; the factor of "none" is 1."""
        kind = _kind(keys)
        context = keys.integer("context_length", minimum=1, maximum=_MOST_CONTEXT)
        original = keys.integer("rope.scaling.original_context_length", default=context, minimum=1)
        return cls(kind, 1.0 if kind == "none" else _own_factor(keys), original)


def context_in_force(own: Keys, ruling: Keys) -> int:
    """The tokens that a session holds by default: the file's `context_length`, or more if overrides
    stretch positions further.

    own, ruling: the file's keys, and those under overrides. YaRN with a factor extends to factor
    times its original context; linear scaling extends the file's context by the ratio of its factor
    to the file's own. Overrides never reduce it. ModelError for an impossible length.
    """
    context = own.integer("context_length", minimum=1, maximum=_MOST_CONTEXT)
    if ruling is own or (now := Scaling.of(ruling)) == (before := Scaling.of(own)):
        return context
    reach = (
        now.original * now.factor if now.kind == "yarn" else context * (now.factor / before.factor)
    )
    if not reach <= _MOST_CONTEXT:
        raise ModelError(
            f"rope_freq_scale: found {1.0 / now.factor}, which makes a context of {reach:.3g} "
            f"tokens, wanted at most {_MOST_CONTEXT}"
        )
    return max(context, round(reach))


def rope_from_keys(
    keys: Keys,
    dims: int,
    *,
    base_key: str,
    base: float,
    factors: np.ndarray | None,
    scaled: bool,
    far: np.ndarray | None = None,
) -> Rope:
    """The embedding of the `rope.*` keys over `dims` floats of a head; `scaled=False` ignores the
    scaling keys. factors, far: divide frequencies, far in sequences longer than the original
    context (LongRoPE; None: the same factors).
    """
    if dims < 2 or dims % 2:
        raise ModelError(
            f"{keys.arch}.rope.dimension_count: found {dims}, wanted an even number of 2 or more"
        )
    theta = keys.number(base_key, default=base, minimum=1e-3)
    inv_freq = theta ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    plain = inv_freq
    for each in (factors, far):
        if each is not None and not (np.isfinite(each).all() and (each > 0).all()):
            raise ModelError(
                "rope factors: found one that is not a positive number, wanted positive numbers"
            )
    if factors is not None:
        inv_freq = plain / factors.astype(np.float64)
    magnitude = 1.0
    if scaled:
        scaling = Scaling.of(keys)
        if scaling.kind == "yarn":
            inv_freq, magnitude = _yarn(keys, scaling, inv_freq, theta)
        elif scaling.kind in ("linear", "none"):
            inv_freq, plain = inv_freq / scaling.factor, plain / scaling.factor
        elif scaling.kind == "dynamic":
            inv_freq = inv_freq * _dynamic(keys, scaling, dims)
        elif scaling.kind != "longrope" or far is None:
            raise ModelError(
                f"{keys.arch}.rope.scaling.type: found {scaling.kind!r:.60}, wanted 'none', "
                "'linear', 'yarn', 'dynamic' or, with its factors, 'longrope'"
            )
        elif scaling.factor != 1.0:
            raise ModelError(  # one program divides by it, others make a magnitude of it
                f"{keys.arch}.rope.scaling.factor: found {scaling.factor:g} and the factors of "
                "longrope, wanted none or 1"
            )
        if far is not None and scaling.kind in ("yarn", "dynamic"):
            raise ModelError(
                f"{keys.arch}.rope.scaling.type: found {scaling.kind!r} and the factors of "
                "longrope, wanted 'longrope'"
            )
        magnitude *= keys.number("rope.scaling.attn_factor", default=1.0, minimum=0.0)
    if not (inv_freq <= np.finfo(np.float32).max).all():
        raise ModelError(
            f"{keys.arch}.rope: found a frequency of {inv_freq.max():.3g} under its base and "
            "scaling, wanted one that float32 holds"
        )
    made = Rope(dims, inv_freq.astype(np.float32), float(magnitude))
    if far is None or not scaled:
        return made
    far = (plain / far.astype(np.float64)).astype(np.float32)
    return replace(made, far=far, near=Scaling.of(keys).original)


def _dynamic(keys: Keys, scaling: Scaling, dims: int) -> np.ndarray:
    """The factor of frequencies in dynamic NTK scaling. Its base grows with the length of a
    sequence beyond the original context. Here it grows with the file's context instead, so that a
    token's keys do not change as the sequence grows: base * (factor * context / original - (factor
    - 1)) ^ (dims / (dims - 2)).
    """
    context = keys.integer("context_length", minimum=1, maximum=_MOST_CONTEXT)
    if context <= scaling.original or dims < 4:
        return np.ones(dims // 2)
    growth = scaling.factor * context / scaling.original - (scaling.factor - 1.0)
    return growth ** (-np.arange(0, dims, 2, dtype=np.float64) / (dims - 2))


def _yarn(
    keys: Keys, scaling: Scaling, inv_freq: np.ndarray, base: float
) -> tuple[np.ndarray, float]:
    """YaRN: keep fast pairs, interpolate slow ones, ramp linearly between (section 3.2); attention
    factor of section 3.4.
    """
    if base <= 1.0:
        raise ModelError(f"{keys.arch}.{BASE}: found {base:g}, wanted more than 1 for yarn")
    dims, (_, factor, original) = 2 * len(inv_freq), scaling
    extrapolation = keys.number("rope.scaling.yarn_ext_factor", default=1.0)
    attention = keys.number("rope.scaling.yarn_attn_factor", default=1.0)
    fast, slow = _betas(keys)

    def pair_with(rotations: float) -> float:
        """The pair that turns `rotations` times over the original context."""
        return dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair_with(fast), pair_with(slow)
    if _whole_pairs(keys):
        first, last = math.floor(first), math.ceil(last)
    low, high = max(first, 0), min(last, dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
    keep = (1.0 - ramp) * extrapolation
    blended = inv_freq / factor * (1.0 - keep) + inv_freq * keep
    # without extrapolation nothing is left of YaRN but its interpolation: the field's files mean
    # plain magnitudes by it
    magnitude = 1.0 + 0.1 * math.log(factor) if factor > 1.0 and extrapolation else 1.0
    # llama.cpp's converter puts the whole magnitude there where a configuration gives it (Olmo 3),
    # and its program does not read it
    if attention == np.float32(magnitude):
        attention = 1.0
    return blended, attention * magnitude
