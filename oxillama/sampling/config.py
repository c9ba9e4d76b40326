"""`SamplerConfig`: the sampling settings of a request, one frozen value whose fields are checked
when it is made.

A field with its neutral value runs no stage. Nothing is clamped or guessed: a value that cannot be
honoured raises a ConfigError with the field, the value found and the values wanted.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from oxillama.arguments import is_one_of, listable, named_fields, unknown
from oxillama.errors import ConfigError
from oxillama.sampling.stages import REORDERABLE

DRY_BREAKERS = ("\n", ":", '"', "*")
INF = math.inf


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """How tokens are drawn: which stages run, with which numbers. Formulas and papers are in
    `oxillama.sampling.stages`.

    - `temperature` 0 takes the most likely token after bans, bias, penalties and masks. Random
      stages then do not run.
    - These values turn a stage off: top_k 0, top_p 1, min_p 0, typical_p 1, top_a 0, eta_cutoff 0,
      epsilon_cutoff 0, top_n_sigma None, dry_multiplier 0, xtc_probability 0, dynatemp_range 0 and
      mirostat 0.
    - `mirostat` runs after the truncation stages that are on. `SamplerConfig.mirostat_v2()` turns
      them off, as in its paper.
    - `repetition_window` and `dry_penalty_last_n` count tokens, including the prompt; -1 means all.
    - `seed` None draws one from the system, which `Sampler.seed` reports.
    - `min_tokens` prevents end-of-generation and stop tokens until that many tokens are drawn,
      unless a grammar's text is complete.
    - `samplers` names the stages that run, in order, out of `oxillama.sampling.REORDERABLE`. None
      is all of them in table order. Bans, biases and masks always run first.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_window: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    typical_p: float = 1.0
    top_a: float = 0.0
    eta_cutoff: float = 0.0
    epsilon_cutoff: float = 0.0
    top_n_sigma: float | None = None
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str | bytes | tuple[int, ...], ...] = DRY_BREAKERS
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    banned_tokens: tuple[int, ...] = ()
    allowed_tokens: tuple[int, ...] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    samplers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, (low, high, kind) in _RANGES.items():
            object.__setattr__(self, name, _number(name, getattr(self, name), low, high, kind))
        if self.seed is not None:
            object.__setattr__(self, "seed", _number("seed", self.seed, 0, 2**64 - 1, int))
        if self.top_n_sigma is not None:
            object.__setattr__(
                self, "top_n_sigma", _number("top_n_sigma", self.top_n_sigma, 1e-6, INF, float)
            )
        if not isinstance(self.ignore_eos, bool):
            raise ConfigError(f"ignore_eos: found {self.ignore_eos!r}, wanted True or False")
        for name in ("banned_tokens", "stop_token_ids"):
            object.__setattr__(self, name, token_ids(name, getattr(self, name)))
        if self.allowed_tokens is not None:
            object.__setattr__(
                self, "allowed_tokens", token_ids("allowed_tokens", self.allowed_tokens)
            )
            if not self.allowed_tokens:
                raise ConfigError(
                    "allowed_tokens: found an empty list, wanted None or at least one token id"
                )
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "dry_sequence_breakers", _breakers(self.dry_sequence_breakers))
        if self.samplers is not None:
            object.__setattr__(self, "samplers", _order(self.samplers))

    @classmethod
    def greedy(cls, **changes: Any) -> "SamplerConfig":
        """Always the most likely token: temperature 0 and no penalty. Keyword arguments change
        other fields.
        """
        return cls(**{**_NEUTRAL, "temperature": 0.0, **changes})

    @classmethod
    def mirostat_v2(cls, tau: float = 5.0, eta: float = 0.1, **changes: Any) -> "SamplerConfig":
        """Mirostat 2.0 alone: temperature 1, no truncation, no penalty; tau is the target surprise
        in bits.
        """
        return cls(
            **{
                **_NEUTRAL,
                "temperature": 1.0,
                "mirostat": 2,
                "mirostat_tau": tau,
                "mirostat_eta": eta,
                **changes,
            }
        )

    def __repr__(self) -> str:
        """The fields that are not at their defaults."""
        return changed_fields(self)

    def replace(self, **changes: Any) -> "SamplerConfig":
        """A copy with some fields changed, checked again."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values; `from_dict` makes an equal config of them."""
        out = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "logit_bias":
                value = {str(token): bias for token, bias in value.items()}
            elif f.name == "dry_sequence_breakers":
                value = [
                    {"bytes": b.hex()}
                    if isinstance(b, bytes)
                    else list(b)
                    if isinstance(b, tuple)
                    else b
                    for b in value
                ]
            elif isinstance(value, tuple):
                value = list(value)
            out[f.name] = value
        return out

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SamplerConfig":
        """A config from the result of `to_dict()`; missing fields have their defaults, unknown ones
        raise ConfigError.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"SamplerConfig: found {type(values).__name__}, wanted a mapping of fields"
            )
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown(name, known, place="a field of SamplerConfig")
        given = dict(values)
        if isinstance(given.get("logit_bias"), Mapping):
            given["logit_bias"] = {_token_key(k): v for k, v in given["logit_bias"].items()}
        if isinstance(given.get("dry_sequence_breakers"), (list, tuple)):
            given["dry_sequence_breakers"] = [
                _breaker_from_json(b) for b in given["dry_sequence_breakers"]
            ]
        return cls(**given)


_NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}

# field: (lowest, highest, kind); both ends belong, infinities do not.
_RANGES: dict[str, tuple[float, float, type]] = {
    "temperature": (0, INF, float),
    "top_k": (0, 2**31 - 1, int),
    "top_p": (0, 1, float),
    "min_p": (0, 1, float),
    "repetition_penalty": (1e-6, INF, float),
    "repetition_window": (-1, 2**31 - 1, int),
    "frequency_penalty": (-INF, INF, float),
    "presence_penalty": (-INF, INF, float),
    "mirostat": (0, 2, int),
    "mirostat_tau": (0, INF, float),
    "mirostat_eta": (0, INF, float),
    "typical_p": (0, 1, float),
    "top_a": (0, INF, float),
    "eta_cutoff": (0, 1, float),
    "epsilon_cutoff": (0, 1, float),
    "dry_multiplier": (0, INF, float),
    "dry_base": (1, INF, float),
    "dry_allowed_length": (1, 2**31 - 1, int),
    "dry_penalty_last_n": (-1, 2**31 - 1, int),
    "xtc_probability": (0, 1, float),
    "xtc_threshold": (0, 1, float),
    "dynatemp_range": (0, INF, float),
    "dynatemp_exponent": (0, INF, float),
    "min_tokens": (0, 2**31 - 1, int),
}


def changed_fields(made: Any) -> str:
    """A short `repr` of a dataclass: its fields that are not at their defaults."""
    parts = []
    for each in fields(made):
        value = getattr(made, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if value != default:
            parts.append(f"{each.name}={value!r}")
    return f"{type(made).__name__}({', '.join(parts)})"


def _number(name: str, value: Any, low: float, high: float, kind: type) -> Any:
    """The value as int or float if it is finite and in [low, high]; numpy scalars are accepted,
    bools are not.
    """
    wanted = "an integer" if kind is int else "a finite number"
    try:
        plain = value.item() if type(value).__module__ == "numpy" else value
        good = (
            isinstance(plain, (int, float))
            and not isinstance(plain, bool)
            and math.isfinite(plain)
            and low <= plain <= high
        )
        good = good and (kind is float or int(plain) == plain)
    except (AttributeError, ValueError, OverflowError):
        good = False
    if not good:
        bounds = f" in [{low}, {high}]" if high != INF else f" >= {low}" if low != -INF else ""
        raise ConfigError(f"{name}: found {value!r}, wanted {wanted}{bounds}")
    return kind(plain)


def token_ids(name: str, values: Any) -> tuple[int, ...]:
    """The ids without repeats, in order; ConfigError under `name` for anything else."""
    if isinstance(values, (str, bytes)) or not listable(values):
        raise ConfigError(f"{name}: found {values!r}, wanted a list of token ids")
    values = tuple(values)
    # plain ids, as vocabularies have them, need no closer look
    if not all(type(v) is int and 0 <= v < 2**31 for v in values):
        values = tuple(_number(f"{name}[{i}]", v, 0, 2**31 - 1, int) for i, v in enumerate(values))
    return tuple(dict.fromkeys(values))


def _biases(values: Any) -> dict[int, float]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"logit_bias: found {values!r}, wanted a mapping of token id to number")
    out = {}
    for token, bias in values.items():
        token = _number("logit_bias key", token, 0, 2**31 - 1, int)
        if bias != -INF:  # -inf is a ban
            bias = _number(f"logit_bias[{token}]", bias, -3e38, 3e38, float)
        out[token] = bias
    return out


def _stops(values: Any) -> tuple[str, ...]:
    values = (values,) if isinstance(values, str) else values
    if not isinstance(values, (list, tuple)):
        raise ConfigError(f"stop: found {values!r}, wanted a text or a list of texts")
    for at, value in enumerate(values):
        if not isinstance(value, str) or not value:
            name = f"stop[{at}]" if len(values) > 1 else "stop"  # which may be a text alone
            raise ConfigError(f"{name}: found {value!r}, wanted a text that is not empty")
        _unicode("stop", value)
    return tuple(values)


def _unicode(name: str, text: str) -> None:
    """Raise ConfigError for half of a surrogate pair, which no text holds."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name}: found a lone surrogate at character {error.start} of {text!r:.60}, wanted "
            "valid Unicode"
        ) from None


def _breakers(values: Any) -> tuple[str | bytes | tuple[int, ...], ...]:
    if isinstance(values, (str, bytes)) or not listable(values):
        raise ConfigError(
            f"dry_sequence_breakers: found {values!r}, wanted a list of strings, bytes or lists of "
            "token ids"
        )
    out = []
    for value in values:
        if isinstance(value, str):
            _unicode("dry_sequence_breakers", value)
        elif not isinstance(value, bytes):
            value = token_sequence("dry_sequence_breakers", value)
        if not value:
            raise ConfigError(
                "dry_sequence_breakers: found an empty breaker, wanted at least one character or "
                "token"
            )
        out.append(value)
    return tuple(out)


def token_sequence(name: str, values: Any) -> tuple[int, ...]:
    """The ids in order with repeats, at least one; ConfigError under `name` for anything else."""
    if not isinstance(values, (list, tuple)) or not values:
        raise ConfigError(f"{name}: found {values!r}, wanted a list of at least one token id")
    if all(type(v) is int and 0 <= v < 2**31 for v in values):
        return tuple(values)
    return tuple(_number(name, v, 0, 2**31 - 1, int) for v in values)


def _breaker_from_json(value: Any) -> Any:
    if isinstance(value, Mapping) and set(value) == {"bytes"}:
        try:
            return bytes.fromhex(value["bytes"])
        except (TypeError, ValueError):
            raise ConfigError(
                f"dry_sequence_breakers: found {value!r}, wanted bytes in hexadecimal"
            ) from None
    return value


def _token_key(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def _order(values: Any) -> tuple[str, ...]:
    if isinstance(values, str) or not listable(values):
        raise ConfigError(f"samplers: found {values!r:.50}, wanted a list of stage names")
    out = tuple(values)
    for name in out:
        if not is_one_of(name, REORDERABLE):
            raise ConfigError(f"samplers: found {name!r:.50}, wanted one of {list(REORDERABLE)}")
        if out.count(name) > 1:
            raise ConfigError(f"samplers: found {name!r} twice, wanted each stage once")
    return out
