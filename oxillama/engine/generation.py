"""Turns text and options into a request that the loop can run (token ids, sampler, grammar state,
stops).

`Options` holds and checks everything that `generate` and related methods accept. `Vocabulary` holds
what requests share of a tokenizer and its grammars. `make_request` prepares a session.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

import numpy as np

from oxillama.engine.arguments import (
    OPTION_NAMES,
    checked_flag,
    renamed,
    seconds,
    unknown,
    whole,
)
from oxillama.engine.engine import EngineCore
from oxillama.engine.output import StopText
from oxillama.engine.request import GenerateRequest, Request
from oxillama.engine.session import Session, checked_ids
from oxillama.errors import ConfigError, ContextError
from oxillama.grammar import ClosedSchema, Grammar, TokenMasker, schema_of
from oxillama.lora.stack import Adapters
from oxillama.sampling import Sampler, SamplerConfig, breaker_sequences, token_logprobs
from oxillama.tokenizer import TokenizerBridge
from oxillama.vision.placed import ImagePrompt, images_of

_GRAMMARS_KEPT = 64
# fields of a sampler that are arguments of `generate`; what else it has, options have too
SAMPLING_FIELDS = frozenset(field.name for field in fields(SamplerConfig)) - {
    "seed",
    "stop",
    "stop_token_ids",
}


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
    response_format: Mapping[str, Any] | type | None
    template: Mapping[str, Any] | None


class ChatOptions(SingleChatOptions, total=False):
    """Arguments of `chat` and related methods for any number of completions."""

    n: int
    best_of: int | None


# A literal number of completions, for which type checkers know that a list is returned.
Several = Literal[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one request.

    The length and the sampler:

    - `max_tokens`: None (or -1) means to the end of the context.
    - `sampler`: a SamplerConfig, None for the engine's.
    - `sampling_fields`: fields of a SamplerConfig that differ from the engine's, or from those of
      the session that continues. `generate` takes them as arguments (`temperature=0`,
      `top_p=0.9`). Give a whole sampler or single fields, not both.
    - `stop`, `stop_token_ids`: are added to the sampler's own.
    - `seed`: replaces the sampler's; -1 draws one, None leaves it to the sampler.
    - `n`: the number of completions, each with its own seed (`siblings.derived_seed`).
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
    - `speculative`: propose candidates for the next tokens, which gives the same text sooner:
      "auto" or True, "lookup", a draft model, a drafter or `Candidates`. None: as the engine's
      config says. False: nothing.

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
        object.__setattr__(self, "priority", whole("priority", self.priority, -(1 << 31)))
        if self.timeout is not None:
            object.__setattr__(self, "timeout", seconds("timeout", self.timeout))
        _checked_sampling(self.sampling_fields, self.sampler)
        if self.sampler is not None and not isinstance(self.sampler, SamplerConfig):
            raise ConfigError(
                f"sampler: found {type(self.sampler).__name__}, wanted a SamplerConfig"
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
        return cls(**own)

    @classmethod
    def check_name(cls, name: str) -> None:
        """ConfigError for a name that is neither an option nor a sampler's field."""
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
                stop=(*config.stop, *stop),
                stop_token_ids=(*config.stop_token_ids, *self.stop_token_ids),
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
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise ConfigError(f"{name}: found {value!r:.50}, wanted a list")
    if name in ("stop_token_ids", "shown_tokens"):
        return tuple(checked_ids(sorted(value) if isinstance(value, Set) else value, name=name))
    found = tuple(value)
    if name == "processors" and not all(map(callable, found)):
        raise ConfigError(
            f"processors: found {found!r:.80}, wanted functions over (tokens, logits)"
        )
    return found


def response_constraint(response_format: Mapping[str, Any] | type | None) -> dict[str, Any]:
    """The option of `Options` that a chat's response_format stands for: text, json_object,
    json_schema with its schema (closed, unless it says `"strict": False`), or a class that
    json_schema takes.
    """
    if response_format is None:
        return {}
    if schema_of(response_format) is not response_format:
        return {"json_schema": response_format}
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": {"type": "object"}}
    if kind == "json_schema":
        given = response_format.get("json_schema", response_format)
        schema = given.get("schema") if isinstance(given, Mapping) else None
        if schema is None:
            raise ConfigError(
                "response_format: found json_schema without a schema, wanted json_schema: {schema: "
                "...}"
            )
        # an object that does not say what further members it has has none: a text that may always
        # have one more seldom ends
        shut = given.get("strict") is not False and isinstance(schema, Mapping)
        return {"json_schema": ClosedSchema(schema) if shut else schema}
    raise ConfigError(
        f"response_format: found {response_format!r}, wanted a type of text, json_object or "
        "json_schema, a Pydantic model, a dataclass or a TypedDict"
    )


class Vocabulary:
    """A tokenizer with what requests share: end-of-generation ids, the token masker, compiled
    grammars, DRY's breakers.
    """

    def __init__(self, bridge: TokenizerBridge, vocab_size: int) -> None:
        self.bridge = bridge
        # rows of the output, which some models pad beyond their vocabulary
        self.vocab_size = vocab_size
        self.eog_ids = frozenset(bridge.eog_ids)
        self.special_ids = bridge.special_ids
        self._lock = threading.Lock()
        self._masker: TokenMasker | None = None
        self._breakers: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
        self._grammars: OrderedDict[tuple[str, str], Grammar] = OrderedDict()

    @property
    def masker(self) -> TokenMasker:
        """The vocabulary prepared for grammar masks; made for the first grammar."""
        with self._lock:
            if self._masker is None:
                bridge = self.bridge
                pieces = bridge.vocab_bytes()
                pieces += [b""] * (self.vocab_size - len(pieces))
                names = {bridge.token_text(token): token for token in bridge.special_ids}
                self._masker = TokenMasker(
                    pieces, control_ids=bridge.special_ids, eog_ids=self.eog_ids, names=names
                )
            return self._masker

    def prepare(self, options: Options) -> None:
        """Compile the constraint of the options before a session is locked."""
        if self.grammar(options) is not None:
            _ = self.masker

    def breakers(self, config: SamplerConfig) -> list[tuple[int, ...]] | None:
        """DRY's sequence breakers as token ids, None if DRY is off."""
        if not config.dry_multiplier:
            return None
        key = tuple(config.dry_sequence_breakers)
        if key not in self._breakers:
            self._breakers[key] = breaker_sequences(
                key, self.bridge.vocab_bytes(), self._encode_bytes
            )
        return self._breakers[key]

    def grammar(self, options: Options) -> Grammar | None:
        """The compiled constraint of the options; the most recent ones are cached."""
        given: Any = options.grammar
        if callable(getattr(given, "state", None)):
            made: Grammar = given  # compiled: a Grammar, or what makes states as one does
            return made
        choices = None if options.choices is None else tuple(options.choices)
        # of a class what it asks for: another one may have its name
        schema = schema_of(options.json_schema)
        makers: tuple[tuple[Callable[[Any], Grammar], Any], ...] = (
            (Grammar.parse, given),
            (Grammar.from_json_schema, schema),
            (Grammar.from_regex, options.regex),
            (Grammar.from_choices, choices),
        )
        for make, value in makers:
            if value is None:
                continue
            key = (make.__name__, repr(value))
            with self._lock:
                if key in self._grammars:
                    self._grammars.move_to_end(key)
                    return self._grammars[key]
            made = make(value)
            with self._lock:
                self._grammars[key] = made
                while len(self._grammars) > _GRAMMARS_KEPT:
                    self._grammars.popitem(last=False)
            return made
        return None

    def begins_text(self, tokens: Sequence[int]) -> bool:
        """Whether the next token is the first of its text, in a vocabulary that puts a space before
        a text.
        """
        return self.bridge.vocabulary.add_space_prefix and all(
            token in self.special_ids for token in tokens
        )

    def _encode_bytes(self, text: bytes) -> Sequence[int]:
        return self.bridge.encode(
            text.decode("utf-8", "ignore"), add_special=False, parse_special=False
        )


def make_request(
    core: EngineCore,
    vocabulary: Vocabulary | None,
    options: Options,
    *,
    default: SamplerConfig,
    prompt: Sequence[int] | None = None,
    session: Session | None = None,
) -> GenerateRequest:
    """A request for a prompt, or one that continues a session, after more tokens if a prompt is
    given too. It is not yet submitted.
    """
    session, truncated = ready_session(
        core, vocabulary, options, default=default, prompt=prompt, session=session
    )
    request = core.request(GenerateRequest, session)
    fill_in(request, options)
    config = session.sampler.config
    request.truncated = truncated
    request.max_tokens, request.min_tokens = options.max_tokens, config.min_tokens
    request.stop_ids = frozenset(config.stop_token_ids) | (
        core.eog_ids if not config.ignore_eos else frozenset()
    )
    if session.grammar is not None and vocabulary is not None:
        request.masker = vocabulary.masker
    if options.context_shift:
        if options.keep >= core.context_size - 1:
            raise ConfigError(
                f"keep: found {options.keep}, wanted less than the context of {core.context_size} "
                "tokens"
            )
        request.shift_keep = options.keep
    if options.prompt_logprobs is not None:
        _want_prompt_logprobs(request, options.prompt_logprobs)
    # last: nothing that is refused has opened a draft
    if core.speculator is not None:
        request.speculation = core.speculator.begin(options.speculative, request.masker, session)
    elif options.speculative:
        raise ConfigError("speculative: this engine has no drafters, wanted None or False")
    return request


def fill_in(request: Request, options: Options) -> None:
    """Set the options that every kind of request has."""
    request.prompt_tokens, request.cache = len(request.session.tokens), options.cache_prompt
    request.priority, request.timeout = options.priority, options.timeout


def ready_session(
    core: EngineCore,
    vocabulary: Vocabulary | None,
    options: Options,
    *,
    default: SamplerConfig,
    prompt: Sequence[int] | None,
    session: Session | None,
) -> tuple[Session, int]:
    """(a session with the prompt, the sampler and the grammar of the options; the number of prompt
    tokens left out). session: the one to continue, None for a new one.
    """
    truncated = 0
    if session is None:
        ids, truncated = fitted(prompt or (), options, core.context_size)
        if images_of(prompt) and not truncated:
            ids = ImagePrompt(ids, images_of(prompt))
        session = core.new_session(ids, adapters=_adapters(options))
    else:
        wanted = _adapters(options)
        if wanted is not None and wanted != session.adapters:
            raise ConfigError(
                f"lora: found {wanted!r} for a session with {session.adapters or 'no adapters'!r}, "
                "which it keeps; wanted a new session"
            )
        more = prompt if isinstance(prompt, ImagePrompt) else list(prompt or ())
        if len(session.tokens) + len(more) >= core.context_size and not (
            options.context_shift and not more
        ):
            raise ContextError(
                f"session: {len(session.tokens)} tokens and {len(more)} more, a context of "
                f"{core.context_size} takes at most {core.context_size - 1}; session.truncate(...) "
                "shortens it (truncate_prompt=True does so for a prompt without a session)",
                tokens=len(session.tokens) + len(more),
                limit=core.context_size - 1,
            )
        if more:
            session.extend(more)
    if session.sampler is None:
        _equip(session, vocabulary, options, options.sampling(default), core.program.vocab_size)
    elif options.amends:
        _amend(session, vocabulary, options, core.program.vocab_size)
    config, vocab_size = session.sampler.config, core.program.vocab_size
    for name, values in (
        ("stop_token_ids", config.stop_token_ids),
        ("prompt_logprobs", (options.prompt_logprobs or 0,)),
    ):
        if values and max(values) >= vocab_size + (name == "prompt_logprobs"):
            raise ConfigError(
                f"{name}: found {max(values)}, wanted no more than a vocabulary of {vocab_size} has"
            )
    least = config.min_tokens - session.sampler.generated
    if options.max_tokens is not None and options.max_tokens < least:
        raise ConfigError(
            f"min_tokens: found {least} still to come, wanted no more than the "
            f"{options.max_tokens} that come at most"
        )
    return session, truncated


def _adapters(options: Options) -> Adapters | None:
    """The adapters of the options, as `LoraStack.resolve` makes them."""
    if options.lora is not None and not isinstance(options.lora, Adapters):
        raise ConfigError(f"lora: found {options.lora!r:.80}, wanted what this engine has loaded")
    return options.lora


def fitted(prompt: Sequence[int], options: Options, context: int) -> tuple[list[int], int]:
    """(the prompt as it will run, the number of tokens left out); ContextError for a prompt that
    leaves no room, unless truncation was asked for.
    """
    ids = list(prompt)
    limit = context if options.max_tokens == 0 else context - 1
    if len(ids) <= limit:
        return ids, 0
    if not options.truncate_prompt:
        raise ContextError(
            f"prompt: {len(ids)} tokens, a context of {context} takes at most {limit}; "
            "truncate_prompt=True shortens it, n_ctx= of load gives more where the model has it",
            tokens=len(ids),
            limit=limit,
        )
    if images_of(prompt):
        raise ContextError(
            f"truncate_prompt: found a prompt of {len(ids)} tokens with images, a context of "
            f"{context} takes at most {limit}; wanted a shorter one",
            tokens=len(ids),
            limit=limit,
        )
    available = context - min(
        max(1, options.max_tokens if options.max_tokens is not None else context // 4),
        max(1, context // 2),
    )
    return [ids[0], *ids[len(ids) - available + 1 :]] if available > 1 else ids[-1:], len(
        ids
    ) - max(available, 1)


def sampler_of(
    config: SamplerConfig,
    vocabulary: Vocabulary | None,
    vocab_size: int,
    *,
    seed: int | None = None,
    processors: Sequence[Callable[..., Any]] = (),
    logprobs: int | None = None,
) -> Sampler:
    """The sampler of a config for a vocabulary."""
    words = vocabulary
    return Sampler(
        config,
        vocab_size,
        special_ids=() if words is None else words.special_ids,
        eog_ids=() if words is None else words.eog_ids,
        dry_breakers=None if words is None else words.breakers(config),
        seed=seed,
        processors=processors,
        logprobs=logprobs,
    )


def _equip(
    session: Session,
    vocabulary: Vocabulary | None,
    options: Options,
    config: SamplerConfig,
    vocab_size: int,
) -> None:
    """Give a session its sampler, grammar state, text decoder and stop filter, from its current
    position.
    """
    config = _drawable(config, vocabulary, vocab_size)
    session.sampler = sampler_of(
        config,
        vocabulary,
        vocab_size,
        seed=options.seed,
        processors=options.processors,
        logprobs=options.logprobs,
    )
    session.sampler.accept_prompt(np.array(session.tokens, np.int32))
    session.start = len(session.tokens)
    session.at_start = vocabulary is not None and vocabulary.begins_text(session.tokens)
    session.stops = StopText(config.stop)
    words = _words(vocabulary, options, config)
    if words is not None:
        grammar = words.grammar(options)
        session.grammar = None if grammar is None else words.masker.state(grammar)
        session.text = words.bridge.stream(shown=options.shown_tokens)


def _amend(
    session: Session, vocabulary: Vocabulary | None, options: Options, vocab_size: int
) -> None:
    """Apply options to a session that continues. Options that are not given stay as they were,
    including the grammar's position.
    """
    before = session.sampler
    config = options.sampling(before.config)
    if options.sampler is not None:
        config = _drawable(config, vocabulary, vocab_size)
    anew = options.sampler is not None or options.seed is not None
    if options.sampling_fields:
        config = _drawable(config, vocabulary, vocab_size)
    session.sampler = sampler_of(
        config,
        vocabulary,
        vocab_size,
        seed=options.seed if anew else before.seed,
        processors=options.processors or before.processors,
        logprobs=before.top if options.logprobs is None else options.logprobs,
    )
    if anew:
        session.sampler.accept_prompt(np.array(session.tokens, np.int32))
    else:
        session.sampler.go_on_from(before, session.tokens)
        if options.sampling_fields:  # other stages may look further back
            session.sampler.set_history(session.tokens, generated=before.generated)
    if config.stop != before.config.stop:
        session.stops = StopText(config.stop)
    words = _words(vocabulary, options, config)
    grammar = None if words is None else words.grammar(options)
    if words is not None and grammar is not None:
        session.grammar = words.masker.state(grammar)
    if words is not None and options.shown_tokens:
        session.text = words.bridge.stream(shown=options.shown_tokens)


def _drawable(
    config: SamplerConfig, vocabulary: Vocabulary | None, vocab_size: int
) -> SamplerConfig:
    """The config with the tokens banned that the vocabulary suppresses, and the output rows that
    lie beyond it.
    """
    if vocabulary is None:
        return config
    bridge = vocabulary.bridge
    never = (*bridge.vocabulary.suppressed, *range(bridge.vocab_size, vocab_size))
    return config.replace(banned_tokens=(*config.banned_tokens, *never)) if never else config


def _words(
    vocabulary: Vocabulary | None, options: Options, config: SamplerConfig
) -> Vocabulary | None:
    """The vocabulary for writing text; ConfigError if there is none and text is asked for."""
    if vocabulary is None and (options.constrained or config.stop or options.shown_tokens):
        raise ConfigError(
            "grammar, stop, shown_tokens: the file has no vocabulary, wanted token ids and "
            "stop_token_ids alone"
        )
    return vocabulary


def _want_prompt_logprobs(request: GenerateRequest, top: int) -> None:
    """Make the loop report the log-probability of every prompt token after the first."""
    tokens, out = request.session.tokens, request.prompt_logprobs

    def rows(first: int, values: np.ndarray) -> None:
        for position, row in enumerate(values, first):
            if position + 1 < request.prompt_tokens and len(out) <= position:
                out.append(token_logprobs(row, tokens[position + 1], top=top))

    request.on_rows = rows
