"""Every spelling of every option of generation, in one table: which names people know it by, what
values it may have, and which field of `SamplerConfig` or `Options` it is.

A name that stands in no route's table is refused; so are two names of one option.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from oxillama.grammar import ClosedSchema
from oxillama.sampling import DiffusionConfig, SamplerConfig
from oxillama.sampling.diffusion import Order
from oxillama.server.errors import ApiError, bad, from_engine, unsupported
from oxillama.server.schema import (
    BOOLEAN,
    FALSE,
    OBJECT,
    STRING,
    array,
    enum,
    integer,
    number,
    obj,
    one_of,
)

_TOKEN = integer(0, 2**31 - 1)
_STOPS = one_of(
    {"type": "string", "minLength": 1, "maxLength": 4096},
    array({"type": "string", "minLength": 1, "maxLength": 4096}, 0, 64),
)
_STAGES = {
    "penalties": "penalties",
    "dry": "dry",
    "top_n_sigma": "top_n_sigma",
    "top_k": "top_k",
    "typ_p": "typical",
    "typical_p": "typical",
    "typical": "typical",
    "top_a": "top_a",
    "eta": "eta",
    "epsilon": "epsilon",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc": "xtc",
    "temperature": "temperature",
}


_DIFFUSION = obj(
    {
        **dict.fromkeys(("length", "steps", "block_length"), integer(1)),
        "eps": number(0, 1),
        "order": enum(*get_args(Order)),
        **dict.fromkeys(("order_temperature", "guidance"), number(0, 1e6)),
    }
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: the names it goes by, what its values may be, the field it sets, and how a value
    is turned into the field's (None drops it).
    """

    names: tuple[str, ...]
    schema: Mapping[str, Any]
    field: str
    of: Callable[[Any], Any] = lambda value: value


def _closed(schema: Any) -> Any:
    """A schema of vLLM's: objects have only the members that it names."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            return schema  # the engine says what is wrong with it
    return ClosedSchema(schema) if isinstance(schema, Mapping) else schema


def _float(value: Any) -> float:
    return float(value)


def _sigma(value: Any) -> float | None:
    """A number of standard deviations; 0 and less mean none, as llama.cpp has it."""
    return float(value) if value > 0 else None


def _seed(value: Any) -> int:
    """A seed as 64 bits without a sign; -1 draws one, as in llama.cpp."""
    return -1 if value == -1 else int(value) & (2**64 - 1)


def _bias(value: Any) -> dict[int, float]:
    """Biases by token id, from an object, or from llama.cpp's list of [token, bias or false]."""
    if isinstance(value, dict):
        return {int(token): float(bias) for token, bias in value.items()}
    made = {int(token): float("-inf") if bias is False else float(bias) for token, bias in value}
    if len(made) < len(value):
        twice = next(
            token for token, count in Counter(int(t) for t, _ in value).items() if count > 1
        )
        raise bad("logit_bias", twice, "each token once")
    return made


def _ids(value: list[Any]) -> tuple[int, ...]:
    """Token ids; JSON knows no difference between 5 and 5.0."""
    return tuple(map(int, value))


def _breakers(value: list[str]) -> tuple[str, ...]:
    return tuple(value)


def _stages(value: list[str]) -> tuple[str, ...]:
    return tuple(_STAGES[name] for name in value)


def _diffusion(value: Mapping[str, Any]) -> DiffusionConfig:
    """How masks are filled in; members that are null are left out."""
    try:
        return DiffusionConfig(**{name: each for name, each in value.items() if each is not None})
    except ValueError as error:
        wrong = from_engine(error)
        wrong.param = "diffusion"
        raise wrong from None


_BIAS = one_of(
    {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": number(-100, 100),
        "maxProperties": 65536,
    },
    array(array(None, 2, 2, prefixItems=[_TOKEN, one_of(number(-100, 100), FALSE)])),
)

SAMPLER: tuple[Option, ...] = (
    Option(("temperature", "temp"), number(0, 100), "temperature", _float),
    Option(("top_k",), integer(-1), "top_k", lambda value: max(0, int(value))),
    Option(("top_p",), number(0, 1), "top_p", _float),
    Option(("min_p",), number(0, 1), "min_p", _float),
    Option(("typical_p", "typ_p"), number(0, 1), "typical_p", _float),
    Option(("top_a",), number(0, 1e6), "top_a", _float),
    Option(("eta_cutoff",), number(0, 1), "eta_cutoff", _float),
    Option(("epsilon_cutoff",), number(0, 1), "epsilon_cutoff", _float),
    Option(("top_n_sigma", "top_nsigma"), number(-1, 1e6), "top_n_sigma", _sigma),
    Option(
        ("repetition_penalty", "repeat_penalty"),
        number(1e-6, 100),
        "repetition_penalty",
        _float,
    ),
    Option(
        ("repetition_window", "repeat_last_n", "penalty_last_n"),
        integer(-1),
        "repetition_window",
        int,
    ),
    Option(("frequency_penalty",), number(-2, 2), "frequency_penalty", _float),
    Option(("presence_penalty",), number(-2, 2), "presence_penalty", _float),
    Option(("mirostat", "mirostat_mode"), integer(0, 2), "mirostat", int),
    Option(("mirostat_tau",), number(0, 1e6), "mirostat_tau", _float),
    Option(("mirostat_eta",), number(0, 1e6), "mirostat_eta", _float),
    Option(("dry_multiplier",), number(0, 1e6), "dry_multiplier", _float),
    Option(("dry_base",), number(1, 1e6), "dry_base", _float),
    Option(("dry_allowed_length",), integer(1), "dry_allowed_length", int),
    Option(("dry_penalty_last_n",), integer(-1), "dry_penalty_last_n", int),
    Option(
        ("dry_sequence_breakers",),
        array({"type": "string", "minLength": 1, "maxLength": 256}, 0, 64),
        "dry_sequence_breakers",
        _breakers,
    ),
    Option(("xtc_probability",), number(0, 1), "xtc_probability", _float),
    Option(("xtc_threshold",), number(0, 1), "xtc_threshold", _float),
    Option(("dynatemp_range",), number(0, 1e6), "dynatemp_range", _float),
    Option(("dynatemp_exponent",), number(0, 1e6), "dynatemp_exponent", _float),
    Option(("logit_bias",), _BIAS, "logit_bias", _bias),
    Option(("banned_tokens",), array(_TOKEN), "banned_tokens", _ids),
    Option(("allowed_tokens", "allowed_token_ids"), array(_TOKEN, 1), "allowed_tokens", _ids),
    Option(("ignore_eos",), BOOLEAN, "ignore_eos"),
    Option(("min_tokens",), integer(0), "min_tokens", int),
    Option(
        ("samplers",),
        array({"type": "string", "enum": sorted(_STAGES)}, 0, 32),
        "samplers",
        _stages,
    ),
)

REQUEST: tuple[Option, ...] = (
    Option(("stop", "stop_sequences"), _STOPS, "stop"),
    Option(("stop_token_ids",), array(_TOKEN, 0, 1024), "stop_token_ids", _ids),
    Option(("seed",), integer(-(2**63), 2**64 - 1), "seed", _seed),
    Option(("cache_prompt",), BOOLEAN, "cache_prompt"),
    Option(("truncate_prompt",), BOOLEAN, "truncate_prompt"),
    Option(("context_shift",), BOOLEAN, "context_shift"),
    Option(("keep", "n_keep"), integer(0), "keep", int),
    Option(("speculative",), BOOLEAN, "speculative", lambda value: "auto" if value else False),
    Option(("diffusion",), _DIFFUSION, "diffusion", _diffusion),
    Option(("priority",), integer(-(2**31)), "priority", int),
    Option(
        ("timeout",), {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6}, "timeout", _float
    ),
    # "" is llama.cpp's default: none
    Option(("grammar", "guided_grammar"), STRING, "grammar", lambda value: value or None),
    Option(("regex", "guided_regex"), {"type": "string"}, "regex"),
    Option(("choices", "guided_choice"), array(STRING, 1, 4096), "choices", tuple),
    Option(
        ("json_schema", "guided_json"),
        one_of(OBJECT, {"type": "string", "minLength": 1}, BOOLEAN),
        "json_schema",
    ),
)
TABLE: tuple[Option, ...] = (*SAMPLER, *REQUEST)
_SAMPLER_FIELDS = frozenset(option.field for option in SAMPLER)
NAMES: dict[str, Option] = {name: option for option in TABLE for name in option.names}
CONSTRAINTS = ("grammar", "json_schema", "regex", "choices")

# extensions that vLLM's clients write in one object
STRUCTURED = {
    "json": "json_schema",
    "json_object": "json_schema",
    "regex": "regex",
    "choice": "choices",
    "grammar": "grammar",
}

# the fields of all routes that are compiled to grammars
COMPILED = frozenset(
    {
        *(name for name, option in NAMES.items() if option.field in CONSTRAINTS),
        *("structured_outputs", "response_format", "format", "text", "tools"),
    }
)


def properties(*without: str) -> dict[str, Any]:
    """The table as the properties of a body; some names may mean something else on a route."""
    out = {name: dict(option.schema) for name, option in NAMES.items() if name not in without}
    out["structured_outputs"] = {
        "type": "object",
        "properties": {
            "json": dict(NAMES["json_schema"].schema),
            "regex": dict(NAMES["regex"].schema),
            "choice": dict(NAMES["choices"].schema),
            "grammar": dict(NAMES["grammar"].schema),
            "json_object": BOOLEAN,
        },
        "additionalProperties": False,
    }
    return out


@dataclass(slots=True)
class RequestOptions:
    """What a body asks of generation: keyword arguments of `engine.submit`, the name that its
    constraint came by (for errors), all its stops, and the sampler of a new session.
    """

    options: dict[str, Any]
    constraint: str | None
    stops: tuple[str, ...]
    sampler: SamplerConfig


def shown(options: Mapping[str, Any], stops: Sequence[str]) -> dict[str, Any]:
    """What /slots shows of a request; None for what it does not ask for."""
    return {
        "max_tokens": options.get("max_tokens"),
        "temperature": options.get("sampling_fields", {}).get("temperature"),
        "seed": options.get("seed"),
        "stop": list(stops),
    }


def read(
    body: Mapping[str, Any], *, default: SamplerConfig, vocab_size: int, path: str = ""
) -> RequestOptions:
    """The options that a checked body asks for; ApiError names what cannot be honoured."""
    sampler, options, by = _named(body, path)
    _add_structured(body.get("structured_outputs") or {}, options, by)
    constraint = _constraint(options, by)
    _check_tokens(sampler, options, by, vocab_size)
    if options.get("keep") == 0 and not options.get("context_shift"):
        del options["keep"]
    if "keep" in options and not options.get("context_shift"):
        raise unsupported(by["keep"], "found without context_shift, wanted both")
    try:
        whole = default.replace(**sampler)
    except ValueError as error:
        wrong = from_engine(error)
        wrong.param = by.get(wrong.param or "", wrong.param)
        raise wrong from None
    if sampler:  # the fields alone: a session that continues keeps its others
        options["sampling_fields"] = sampler
    stop = options.get("stop", ())
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if "stop" in options:
        options["stop"] = stops
    return RequestOptions(options, constraint, (*default.stop, *stops), whole)


def _named(
    body: Mapping[str, Any], path: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """(fields of the sampler, of `Options`, the name that each came by)."""
    sampler: dict[str, Any] = {}
    options: dict[str, Any] = {}
    by: dict[str, str] = {}
    for name, value in body.items():
        option = NAMES.get(name)
        if option is None or value is None:
            continue
        if option.field in by:
            raise ApiError(
                400,
                f"{path}{name}: found together with {by[option.field]}, which is the same option; "
                "wanted one of them",
                param=path + name,
            )
        by[option.field] = path + name
        made = _closed(value) if name == "guided_json" else option.of(value)
        if option.field in _SAMPLER_FIELDS:
            sampler[option.field] = made
        elif made is not None:
            options[option.field] = made
    return sampler, options, by


def _add_structured(given: Mapping[str, Any], options: dict[str, Any], by: dict[str, str]) -> None:
    """Add the constraints of `structured_outputs`."""
    for name, value in given.items():
        if value is None or (name == "json_object" and not value):
            continue
        field = STRUCTURED[name]
        if field in by:
            raise ApiError(
                400,
                f"structured_outputs.{name}: found together with {by[field]}, wanted one of them",
                param=f"structured_outputs.{name}",
            )
        by[field] = f"structured_outputs.{name}"
        if name == "json_object":
            options[field] = {"type": "object"}
        else:
            options[field] = _closed(value) if name == "json" else value


def _constraint(options: Mapping[str, Any], by: Mapping[str, str]) -> str | None:
    """The name that the constraint came by; a 400 for a second one."""
    found = [by[field] for field in CONSTRAINTS if field in options]
    if len(found) > 1:
        raise ApiError(
            400,
            f"{found[1]}: found together with {found[0]}, wanted one constraint",
            param=found[1],
        )
    return found[0] if found else None


def _check_tokens(
    sampler: Mapping[str, Any], options: Mapping[str, Any], by: Mapping[str, str], size: int
) -> None:
    """Refuse ids beyond the vocabulary, which a sampler would pass over."""
    for field, ids in (
        ("logit_bias", sampler.get("logit_bias", ())),
        ("banned_tokens", sampler.get("banned_tokens", ())),
        ("allowed_tokens", sampler.get("allowed_tokens", ())),
        ("stop_token_ids", options.get("stop_token_ids", ())),
    ):
        for token in ids:
            if token >= size:
                raise bad(by[field], token, f"token ids of 0 to {size - 1}")
