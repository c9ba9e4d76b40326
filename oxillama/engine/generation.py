"""Turns text and options into a request that the loop can run (token ids, sampler, grammar state,
stops).

`SharedVocabulary` holds what requests share of a tokenizer and its grammars. `make_request`
prepares a session.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from oxillama.engine.engine import EngineCore
from oxillama.engine.output import StopText
from oxillama.engine.request import GenerateRequest, Request
from oxillama.engine.session import Session
from oxillama.errors import ConfigError, ContextError, GrammarError
from oxillama.grammar import Grammar, TokenMasker, schema_of
from oxillama.lora.stack import Adapters
from oxillama.media.prompt import ImagePrompt, media_of
from oxillama.options import Options
from oxillama.sampling import (
    DiffusionConfig,
    Sampler,
    SamplerConfig,
    breaker_sequences,
    token_logprobs,
)
from oxillama.sampling.diffusion import Denoiser
from oxillama.tokenizer import TokenizerBridge

_MOST_KEPT = 64  # grammars and sets of breakers of a vocabulary
_MOST_IDS = 1 << 21  # of all kept sets of breakers: long breakers have millions, some 10 MB each


class SharedVocabulary:
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
        self._kept: OrderedDict[tuple[str, Any], tuple[Any, int]] = OrderedDict()

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

    def prepare(self, options: Options, default: SamplerConfig) -> None:
        """Compile the constraint and the breakers of the options before a session is locked."""
        if self.grammar(options) is not None:
            _ = self.masker
        fields = options.sampling_fields or {}
        if fields.get("dry_multiplier") or (options.sampler or default).dry_multiplier:
            self.breakers(options.sampling(default))

    def breakers(self, config: SamplerConfig) -> list[tuple[int, ...]] | None:
        """DRY's sequence breakers as token ids, None if DRY is off."""
        if not config.dry_multiplier:
            return None
        key = config.dry_sequence_breakers
        made: list[tuple[int, ...]] = self.once(
            ("breakers", key),
            lambda: breaker_sequences(key, self.bridge.vocab_bytes(), self._encode_bytes),
            weigh=lambda sequences: sum(map(len, sequences)),
        )
        return made

    def grammar(self, options: Options) -> Grammar | None:
        """The compiled constraint of the options, None for none."""
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
            try:
                key = (make.__name__, repr(value))
            except RecursionError:
                raise GrammarError("schema: nested too deeply") from None
            made = self.once(key, partial(make, value))
            return made
        return None

    def begins_text(self, tokens: Sequence[int]) -> bool:
        """Whether the next token is the first of its text, in a vocabulary that puts a space before
        a text.
        """
        return self.bridge.vocabulary.add_space_prefix and all(
            token in self.special_ids for token in tokens
        )

    def once(
        self,
        key: tuple[str, Any],
        make: Callable[[], Any],
        weigh: Callable[[Any], int] = lambda made: 0,
    ) -> Any:
        """What `make()` gave for this key; those used last are kept. weigh: how many ids it has,
        of which there is a limit for all that have any but the last.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        made = make()
        with self._lock:
            self._kept[key] = made, weigh(made)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            heavy = {each: size for each, (_, size) in self._kept.items() if size}
            while sum(heavy.values()) > _MOST_IDS and len(heavy) > 1:
                oldest = next(iter(heavy))
                del self._kept[oldest], heavy[oldest]
        return made

    def _encode_bytes(self, text: bytes) -> Sequence[int]:
        return self.bridge.encode(
            text.decode("utf-8", "ignore"), add_special=False, parse_special=False
        )


def make_request(
    core: EngineCore,
    vocabulary: SharedVocabulary | None,
    options: Options,
    *,
    default: SamplerConfig,
    prompt: Sequence[int] | None = None,
    session: Session | None = None,
) -> GenerateRequest:
    """A request for a prompt, or one that continues a session, after more tokens if a prompt is
    given too. It is not yet submitted.
    """
    if core.filling is not None:
        _check_filling(options, default)
    elif options.diffusion is not None:
        raise ConfigError(
            f"diffusion: found {options.diffusion!r} for a model that does not fill in masks, "
            "wanted None"
        )
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
        if core.start_token is not None:
            raise ConfigError(
                "context_shift: found True for a model whose encoder reads the prompt, wanted False"
            )
        if options.keep >= core.context_size - 1:
            raise ConfigError(
                f"keep: found {options.keep}, wanted less than the context of {core.context_size} "
                "tokens"
            )
        request.shift_keep = options.keep
    if options.prompt_logprobs is not None:
        _want_prompt_logprobs(request, options.prompt_logprobs)
    if core.filling is not None:
        _begin_answer(core, request, options.diffusion or core.diffusion)
        return request
    # last: nothing that is refused has opened a draft
    if core.speculator is not None:
        request.speculation = core.speculator.begin(options.speculative, request.masker, session)
    elif options.speculative:
        raise ConfigError("speculative: this engine has no drafters, wanted None or False")
    return request


# options that take one token after the other
_SEQUENTIAL = (
    *("grammar", "json_schema", "regex", "choices"),
    *("prompt_logprobs", "context_shift", "speculative", "processors"),
)
# fields of a sampler that look at the text before a token, with the values that do not
_LOOKING_BACK = {
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "min_tokens": 0,
}


def _check_filling(options: Options, default: SamplerConfig) -> None:
    """ConfigError for options that have no meaning where masks are filled in, in any order."""
    config = options.sampling(default)
    refused = [
        *((name, getattr(options, name), None) for name in _SEQUENTIAL),
        *((name, getattr(config, name), value) for name, value in _LOOKING_BACK.items()),
    ]
    for name, value, wanted in refused:
        if not (value is None or value is False or value in (wanted, ())):
            raise ConfigError(
                f"{name}: found {value!r:.80} for a model that fills in masks, in any order, "
                f"wanted {wanted}"
            )
    if options.max_tokens == 0:
        raise ConfigError("max_tokens: found 0 for a model that fills in masks, wanted 1 or more")


def _begin_answer(core: EngineCore, request: GenerateRequest, how: DiffusionConfig) -> None:
    """Give a request its masks: as many as it wants tokens, or as the config says. ContextError
    for more than the context has room for.
    """
    session, filling = request.session, core.filling
    assert filling is not None
    room = core.context_size - len(session.tokens)
    places = min(how.length, room) if request.max_tokens is None else request.max_tokens
    if places > room:
        raise ContextError(
            f"max_tokens: {places} after {len(session.tokens)} tokens, a context of "
            f"{core.context_size} has room for {room}",
            tokens=len(session.tokens) + places,
            limit=core.context_size,
        )
    request.max_tokens = places
    request.fill = Denoiser.of(
        session.tokens,
        places,
        how,
        mask=filling.mask,
        shifted=filling.shifted,
        sampler=session.sampler,
    )


def fill_in(request: Request, options: Options) -> None:
    """Set the options that every kind of request has."""
    request.prompt_tokens, request.cache = len(request.session.tokens), options.cache_prompt
    request.priority, request.timeout = options.priority, options.timeout


def ready_session(
    core: EngineCore,
    vocabulary: SharedVocabulary | None,
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
        session, truncated = _new_session(core, options, prompt)
    else:
        _extend(session, core, options, prompt)
    if session.sampler is None:
        _equip(session, core, vocabulary, options, options.sampling(default))
    elif options.amends:
        _amend(session, core, vocabulary, options)
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


def _new_session(
    core: EngineCore, options: Options, prompt: Sequence[int] | None
) -> tuple[Session, int]:
    """(a session with the prompt, the number of its tokens left out)."""
    prompt = core.sourced(prompt or ())
    ids, truncated = fitted(prompt, options, core.context_size)
    if media_of(prompt) and not truncated:
        ids = ImagePrompt(ids, media_of(prompt))
    return core.new_session(ids, adapters=_adapters(options)), truncated


def _extend(
    session: Session, core: EngineCore, options: Options, prompt: Sequence[int] | None
) -> None:
    """Append a prompt to a session that continues; ConfigError or ContextError if it cannot be."""
    wanted = _adapters(options)
    if wanted is not None and wanted != session.adapters:
        raise ConfigError(
            f"lora: found {wanted!r} for a session with {session.adapters or 'no adapters'!r}, "
            "which it keeps; wanted a new session"
        )
    more = prompt if isinstance(prompt, ImagePrompt) else list(prompt or ())
    if more:
        core.check_unsourced(session)
    if not session.tokens:
        more = core.sourced(more)
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
        session.extend_locked(more)


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
    if media_of(prompt):
        raise ContextError(
            f"truncate_prompt: found a prompt of {len(ids)} tokens with images or audio, or for an "
            f"encoder, a context of {context} takes at most {limit}; wanted a shorter one",
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
    vocabulary: SharedVocabulary | None,
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
    core: EngineCore,
    vocabulary: SharedVocabulary | None,
    options: Options,
    config: SamplerConfig,
) -> None:
    """Give a session its sampler, grammar state, text decoder and stop filter, from its current
    position.
    """
    config = _drawable(config, core, vocabulary)
    session.sampler = sampler_of(
        config,
        vocabulary,
        core.program.vocab_size,
        seed=options.seed,
        processors=options.processors,
        logprobs=options.logprobs,
    )
    before = session.tokens[session.target :]
    session.sampler.accept_prompt(np.array(before, np.int32))
    session.start = len(session.tokens)
    session.at_start = vocabulary is not None and vocabulary.begins_text(before)
    session.stops = StopText(config.stop)
    words = _words(vocabulary, options, config)
    if words is not None:
        grammar = words.grammar(options)
        session.grammar = None if grammar is None else words.masker.state(grammar)
        session.text = words.bridge.stream(shown=options.shown_tokens)


def _amend(
    session: Session, core: EngineCore, vocabulary: SharedVocabulary | None, options: Options
) -> None:
    """Apply options to a session that continues. Options that are not given stay as they were,
    including the grammar's position.
    """
    before = session.sampler
    config = options.sampling(before.config)
    if options.sampler is not None:
        config = _drawable(config, core, vocabulary)
    anew = options.sampler is not None or options.seed is not None
    tokens = session.tokens[session.target :]
    if options.sampling_fields:
        config = _drawable(config, core, vocabulary)
    session.sampler = sampler_of(
        config,
        vocabulary,
        core.program.vocab_size,
        seed=options.seed if anew else before.seed,
        processors=options.processors or before.processors,
        logprobs=before.top if options.logprobs is None else options.logprobs,
    )
    if anew:
        session.sampler.accept_prompt(np.array(tokens, np.int32))
    else:
        session.sampler.go_on_from(before, tokens)
        if options.sampling_fields:  # other stages may look further back
            session.sampler.set_history(tokens, generated=before.generated)
    if session.stops is None:
        session.stops = StopText(config.stop)
    elif config.stop != before.config.stop:
        session.stops = session.stops.fork(config.stop)
    words = _words(vocabulary, options, config)
    grammar = None if words is None else words.grammar(options)
    if words is not None and grammar is not None:
        session.grammar = words.masker.state(grammar)
    if words is not None and options.shown_tokens:
        pending = b"" if session.text is None else session.text.pending
        session.text = words.bridge.stream(shown=options.shown_tokens, pending=pending)


def _drawable(
    config: SamplerConfig, core: EngineCore, vocabulary: SharedVocabulary | None
) -> SamplerConfig:
    """The config with the tokens banned that the vocabulary suppresses, the output rows that lie
    beyond it, and the mask, with which no mask is filled in.
    """
    never: tuple[int, ...] = () if core.filling is None else (core.filling.mask,)
    if vocabulary is not None:
        bridge, rows = vocabulary.bridge, core.program.vocab_size
        never += (*bridge.vocabulary.suppressed, *range(bridge.vocab_size, rows))
    return config.replace(banned_tokens=(*config.banned_tokens, *never)) if never else config


def _words(
    vocabulary: SharedVocabulary | None, options: Options, config: SamplerConfig
) -> SharedVocabulary | None:
    """The vocabulary for writing text; ConfigError if there is none and text is asked for."""
    if vocabulary is None and (options.constrained or config.stop or options.shown_tokens):
        raise ConfigError(
            "grammar, stop, shown_tokens: the file has no vocabulary, wanted token ids and "
            "stop_token_ids alone"
        )
    return vocabulary


def _want_prompt_logprobs(request: GenerateRequest, top: int) -> None:
    """Make the loop report the log-probability and the rank of every prompt token after the
    first.
    """
    tokens, out, ranks = request.session.tokens, request.prompt_logprobs, request.prompt_ranks

    def rows(first: int, values: np.ndarray) -> None:
        for position, row in enumerate(values, first):
            if position + 1 < request.prompt_tokens and len(out) <= position:
                token = tokens[position + 1]
                out.append(token_logprobs(row, token, top=top))
                ranks.append(1 + int(np.count_nonzero(row > row[token])))

    request.on_rows = rows
