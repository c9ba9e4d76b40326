"""The options of one request, as callers give them by keyword: checked, and as types of keyword
arguments.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

import numpy as np

from oxillama.arguments import (
    CONFIG_NAMES,
    OPTION_NAMES,
    as_written,
    checked_flag,
    checked_ids,
    listable,
    named_fields,
    renamed,
    seconds,
    unknown,
    whole,
)
from oxillama.errors import ConfigError
from oxillama.grammar import ClosedSchema, Grammar, schema_of
from oxillama.sampling import DiffusionConfig, SamplerConfig

# fields of a sampler that are arguments of `generate`; what else it has, options have too
MOST_COMPLETIONS = 1 << 16  # of one prompt: each takes some KiB before it has a token
SAMPLING_FIELDS = frozenset(field.name for field in fields(SamplerConfig)) - {
    "seed",
    "stop",
    "stop_token_ids",
}
# types of a response_format -> its members
_FORMATS = {
    "text": ("type",),
    "json_object": ("type", "schema"),
    "json_schema": ("type", "name", "description", "schema", "strict"),
}
# how an engine is loaded, under all names
_OF_LOAD = {*CONFIG_NAMES, *CONFIG_NAMES.values()}
_WRAPPED = {*_FORMATS["json_schema"][1:]}  # none of them says anything in a schema


class SamplerFields(TypedDict, total=False):
    """Fields of `SamplerConfig` that `generate` and related methods take as arguments, and other
    libraries' names for them.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    repetition_window: int
    frequency_penalty: float
    presence_penalty: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    typical_p: float
    top_a: float
    eta_cutoff: float
    epsilon_cutoff: float
    top_n_sigma: float | None
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str | bytes | Sequence[int]]
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    logit_bias: Mapping[int, float]
    banned_tokens: Iterable[int]
    allowed_tokens: Iterable[int] | None
    ignore_eos: bool
    min_tokens: int
    samplers: Sequence[str] | None
    temp: float
    repeat_penalty: float
    repeat_last_n: int
    mirostat_mode: int
    typical: float


class SingleOptions(SamplerFields, total=False):
    """Arguments of `generate` and related methods for one completion (`oxillama.Options`)."""

    max_tokens: int | None
    sampler: SamplerConfig | None
    sampling_fields: Mapping[str, Any] | None
    stop: str | Iterable[str] | None
    stop_token_ids: Iterable[int] | None
    seed: int | None
    cache_prompt: bool
    truncate_prompt: bool
    context_shift: bool
    keep: int
    logprobs: int | None
    prompt_logprobs: int | None
    grammar: str | Grammar | None
    json_schema: Any
    regex: str | None
    choices: Iterable[str] | None
    shown_tokens: Iterable[int] | None
    speculative: Any
    diffusion: DiffusionConfig | None
    processors: Iterable[Callable[..., Any]] | None
    priority: int
    timeout: float | None
    lora: Any
    max_new_tokens: int | None
    n_predict: int
    num_predict: int
    n_keep: int


class GenerateOptions(SingleOptions, total=False):
    """Arguments of `generate` and related methods for any number of completions."""

    n: int
    best_of: int | None


class SingleChatOptions(SingleOptions, total=False):
    """Arguments of `chat` and related methods for one completion."""

    tools: Sequence[Any] | None
    tool_choice: Any
    tool_format: str | None
    parallel_tool_calls: bool
    response_format: Any
    template: Mapping[str, Any] | None


class ChatOptions(SingleChatOptions, total=False):
    """Arguments of `chat` and related methods for any number of completions."""

    n: int
    best_of: int | None


# A literal number of completions, for which type checkers know that a list is returned.
Several = Literal[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one request.

    The length and the sampler:

    - `max_tokens`: None (or -1) means to the end of the context.
    - `sampler`: a SamplerConfig, None for the engine's.
    - `sampling_fields`: fields of a SamplerConfig that differ from the engine's, or from those of
      the session that continues. `generate` takes them as arguments (`temperature=0`,
      `top_p=0.9`). Give a whole sampler or single fields, not both.
    - `stop`, `stop_token_ids`: are added to the sampler's own. Where a session goes on, a stop
      string may have begun in an earlier call.
    - `seed`: replaces the sampler's; -1 draws one, None leaves it to the sampler.
    - `n`: the number of completions, each with its own seed (`siblings.derived_seed`), at most
      65536.
    - `best_of`: draw this many and keep the n likeliest.
    - `logprobs`, `prompt_logprobs`: report this number of likeliest tokens for each draw, or for
      each token of the prompt.
    - `processors`: Python functions over logits (slow).

    The prompt and the context:

    - `cache_prompt`: share pages with prompts that begin in the same way.
    - `truncate_prompt`: drop the middle of a prompt that is too long (its first token stays)
      instead of raising.
    - `context_shift`: at the end of the context, drop the older half of what follows the first
      `keep` tokens and evaluate the rest again.
    - `lora`: the adapters of a new session: a name, a path, or a list of (name, scale). None: the
      engine's stack.

    The text:

    - `grammar` (GBNF or a Grammar), `json_schema`, `regex`, `choices`: constrain the text; at most
      one of them.
    - `shown_tokens`: control tokens that are written in the text.
    - `speculative`: propose candidates for the next tokens, which gives the same text sooner
      (docs/speculative.md): "auto" or True, "lookup", "mtp", "early_exit:n", a draft model (an
      engine, or a name as in `load`), a drafter or `Candidates`. None: as the engine's config says.
      False: nothing.

    - `diffusion`: how a model that fills in masks does so (docs/diffusion.md), None for the
      engine's way.

    Scheduling:

    - `priority`: the lower number runs first, and may preempt requests with higher numbers.
    - `timeout`: seconds after which the request ends with finish_reason "timeout" and its text so
      far, None for no limit.
    """

    max_tokens: int | None = None
    sampler: SamplerConfig | None = None
    sampling_fields: Mapping[str, Any] | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    cache_prompt: bool = True
    truncate_prompt: bool = False
    context_shift: bool = False
    keep: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str | Grammar | None = None
    json_schema: Any = None
    regex: str | None = None
    choices: Sequence[str] | None = None
    shown_tokens: Sequence[int] = ()
    speculative: Any = None
    diffusion: DiffusionConfig | None = None
    processors: Sequence[Callable[..., Any]] = ()
    priority: int = 0
    timeout: float | None = None
    lora: Any = None
    n: int = 1
    best_of: int | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "shown_tokens", "processors", "choices"):
            object.__setattr__(self, name, _listed(name, getattr(self, name)))
        for name in ("cache_prompt", "truncate_prompt", "context_shift"):
            checked_flag(name, getattr(self, name))
        if isinstance(self.max_tokens, (int, np.integer)) and self.max_tokens == -1:
            object.__setattr__(self, "max_tokens", None)  # as llama.cpp has it
        if isinstance(self.seed, (int, np.integer)) and self.seed == -1:
            object.__setattr__(self, "seed", secrets.randbits(64))
        if isinstance(self.seed, np.integer):
            object.__setattr__(self, "seed", int(self.seed))
        for name, least in (
            ("max_tokens", 0),
            ("keep", 0),
            ("logprobs", 0),
            ("prompt_logprobs", 0),
            ("n", 1),
            ("best_of", self.n),
        ):
            value = getattr(self, name)
            if value is not None or name in ("keep", "n"):
                object.__setattr__(self, name, whole(name, value, least))
        for name in ("n", "best_of"):
            value = getattr(self, name)
            if value is not None and value > MOST_COMPLETIONS:
                raise ConfigError(f"{name}: found {value}, wanted at most {MOST_COMPLETIONS}")
        object.__setattr__(self, "priority", whole("priority", self.priority, -(1 << 31)))
        if self.timeout is not None:
            object.__setattr__(self, "timeout", seconds("timeout", self.timeout))
        _checked_sampling(self.sampling_fields, self.sampler)
        if self.sampler is not None and not isinstance(self.sampler, SamplerConfig):
            raise ConfigError(
                f"sampler: found {type(self.sampler).__name__}, wanted a SamplerConfig"
            )
        if self.diffusion is not None and not isinstance(self.diffusion, DiffusionConfig):
            raise ConfigError(
                f"diffusion: found {type(self.diffusion).__name__}, wanted a DiffusionConfig"
            )
        schema = self.json_schema
        if isinstance(schema, Mapping) and "schema" in schema and not schema.keys() - _WRAPPED:
            raise ConfigError(
                "json_schema: found a schema within the form of OpenAI's response_format, wanted "
                "the schema alone (chat takes response_format=)"
            )
        if self.regex is not None and not isinstance(self.regex, str):
            raise ConfigError(f"regex: found {type(self.regex).__name__}, wanted a text")
        given = [
            name
            for name in ("grammar", "json_schema", "regex", "choices")
            if getattr(self, name) is not None
        ]
        if len(given) > 1:
            raise ConfigError(f"{given[1]}: found together with {given[0]}, wanted one constraint")
        if self.keep and not self.context_shift:
            raise ConfigError(
                f"keep: found {self.keep} without context_shift, wanted both or neither"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Options from keyword arguments, including a sampler's fields. ConfigError for an unknown
        name and for a value given in two ways.
        """
        if not isinstance(given, Mapping):
            raise ConfigError(f"options: found {type(given).__name__}, wanted options by name")
        own = renamed(given, OPTION_NAMES)
        for name in own:
            cls.check_name(name)
        fields_given = {name: own.pop(name) for name in list(own) if name in SAMPLING_FIELDS}
        if isinstance(fields_given.get("top_k"), (int, np.integer)) and fields_given["top_k"] == -1:
            fields_given["top_k"] = 0  # off, as in vLLM
        if fields_given:
            both = own.get("sampling_fields")
            twice = [name for name in fields_given if name in (both or ())]
            if twice:
                raise ConfigError(f"{twice[0]}: found in sampling_fields too, wanted it once")
            own["sampling_fields"] = {**(both or {}), **fields_given}
        with as_written(given, OPTION_NAMES):
            return cls(**own)

    @classmethod
    def check_name(cls, name: str) -> None:
        """ConfigError for a name that is neither an option nor a sampler's field."""
        if not isinstance(name, str):
            raise ConfigError(f"options: found {name!r:.50}, wanted the name of an option")
        if name in _OF_LOAD and name not in _OPTIONS:
            raise ConfigError(f"{name}: is not an option of generate; load(...) takes it")
        if name not in _OPTIONS:
            raise unknown(name, _OPTIONS, place="an option of generate")

    @property
    def constrained(self) -> bool:
        """Whether the text is constrained."""
        return not (
            self.grammar is None
            and self.json_schema is None
            and self.regex is None
            and self.choices is None
        )

    @property
    def amends(self) -> bool:
        """Whether these options change a continuing session that has begun to draw."""
        given = (self.sampler, self.seed, self.logprobs)
        return (
            any(each is not None for each in given)
            or bool(self.sampling_fields)
            or self.constrained
            or bool(self.stop or self.stop_token_ids or self.shown_tokens or self.processors)
        )

    @property
    def completions(self) -> int:
        """How many completions of the prompt are drawn."""
        return max(self.n, self.best_of or 1)

    def sampling(self, default: SamplerConfig) -> SamplerConfig:
        """The sampler's config with the fields and stops of these options."""
        config = self.sampler or default
        if self.sampling_fields:
            config = config.replace(**dict(self.sampling_fields))
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if stop or self.stop_token_ids:
            config = config.replace(
                stop=tuple(dict.fromkeys((*config.stop, *stop))),
                stop_token_ids=tuple(dict.fromkeys((*config.stop_token_ids, *self.stop_token_ids))),
            )
        return config


# every name that `Options.of` takes
_OPTIONS = SAMPLING_FIELDS.union(field.name for field in fields(Options))


def _checked_sampling(given: Any, sampler: SamplerConfig | None) -> None:
    """Raise ConfigError for fields that no sampler has, or if a whole sampler is given too."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"sampling_fields: found {type(given).__name__}, wanted a mapping of fields"
        )
    for name in given:
        if name not in SAMPLING_FIELDS:
            raise unknown(name, SAMPLING_FIELDS, place="a field of a sampler")
    if given and sampler is not None:
        raise ConfigError(f"{next(iter(given))}: found together with sampler, wanted one of them")
    if given:
        SamplerConfig(**given)


def _listed(name: str, value: Any) -> Any:
    """A list option as a tuple; None means none of them (and no constraint), and a single stop is a
    text.
    """
    if value is None:
        return None if name == "choices" else ()
    if name == "stop" and isinstance(value, str):
        return value
    if isinstance(value, (str, bytes, Mapping)) or not listable(value):
        wanted = "a text or a list of texts" if name == "stop" else "a list"
        raise ConfigError(f"{name}: found {value!r:.50}, wanted {wanted}")
    if name in ("stop_token_ids", "shown_tokens"):
        return tuple(checked_ids(sorted(value) if isinstance(value, Set) else value, name=name))
    found = tuple(value)
    if name == "stop" and not all(isinstance(each, str) for each in found):
        raise ConfigError(f"stop: found {found!r:.80}, wanted a text or a list of texts")
    if name == "processors" and not all(map(callable, found)):
        raise ConfigError(
            f"processors: found {found!r:.80}, wanted functions over (tokens, logits)"
        )
    return found


def response_constraint(response_format: Any) -> dict[str, Any]:
    """The option of `Options` that a chat's response_format stands for: text, json_object (which
    may have a schema, as in llama.cpp), json_schema with its schema, or a type that json_schema
    takes. A schema is closed, unless it stands beside `"strict": False`.
    """
    if response_format is None:
        return {}
    if schema_of(response_format) is not response_format:
        return {"json_schema": response_format}
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise ConfigError(
            f"response_format: found {response_format!r}, wanted a type of text, json_object or "
            "json_schema, a Pydantic model, a dataclass, a TypedDict or a type such as list[str]"
        )
    given, known, name = response_format, _FORMATS[kind], "response_format"
    if kind == "json_schema" and given.get("json_schema") is not None:
        _check_members(given, ("type", "json_schema"), name)
        given, name = given["json_schema"], "response_format.json_schema"
        known = _FORMATS["json_schema"][1:]
    if isinstance(given, Mapping):
        _check_members(given, known, name)
    schema = given.get("schema") if isinstance(given, Mapping) else None
    if schema is None and kind == "json_schema":
        raise ConfigError(
            "response_format: found json_schema without a schema, wanted json_schema: {schema: ...}"
        )
    if kind == "text":
        return {}
    if schema is None or (kind == "json_object" and schema == {}):
        return {"json_schema": {"type": "object"}}
    # an object that does not say what further members it has has none: a text that may always have
    # one more seldom ends
    strict = given.get("strict")
    shut = strict is None or checked_flag(f"{name}.strict", strict)
    return {"json_schema": ClosedSchema(schema) if shut and isinstance(schema, Mapping) else schema}


def _check_members(given: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    """Raise ConfigError for a member that a format does not have; None is none."""
    for name, value in given.items():
        if name not in known and value is not None:
            raise unknown(name, known, place=f"a member of {place}")
