"""Beam search: the likeliest continuations of a session. Beams are forks of it and run in the same
steps.

    root     the prompt's last row offers the first tokens
    step     one row of every beam, all in one step of the program; each beam offers its best
             `beam_width` tokens, and the best `beam_width` of all offers are taken: those that end
             are hypotheses, the others are the beams of the next step
    pages    a beam that is taken k times becomes k sessions on shared pages (copied when written),
             one that is not taken releases its pages

A token's log-probability is the model's own, log-softmax over the whole row in double precision
(after biases, if there are any). Bans and grammars remove tokens and change no number, so the
search finds the likeliest text among those allowed. The score of a hypothesis is

    logprob_sum / n ** length_penalty,      n: tokens drawn, the one that ended it included

A sum of log-probabilities never grows, so a beam with sum s can reach at most s / N ** p, where N
is the longest length allowed if p > 0 and the next length otherwise. Early stopping waits until no
beam can reach the worst hypothesis kept. It changes when the search ends, but not its result.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from oxillama._core.trie import apply_bits
from oxillama.arguments import named_fields, whole
from oxillama.engine.engine import EngineCore
from oxillama.engine.generation import SharedVocabulary, fill_in, ready_session
from oxillama.engine.request import BeamRequest
from oxillama.engine.session import Session
from oxillama.errors import ConfigError, SamplingError
from oxillama.options import Options
from oxillama.sampling import SamplerConfig, token_logprobs

_SUPPORTED = (
    "lora",
    "grammar",
    "json_schema",
    "regex",
    "choices",
    "stop",
    "stop_token_ids",
    "sampler",
    "sampling_fields",
    "priority",
    "cache_prompt",
    "truncate_prompt",
    "shown_tokens",
)
# of a sampler's config
_RULES = (
    "logit_bias",
    "banned_tokens",
    "allowed_tokens",
    "ignore_eos",
    "min_tokens",
    "stop",
    "stop_token_ids",
)
# of length penalties: beyond it a power of a length is no number any more
STEEPEST = 16.0
NONE_LEFT = float("-inf")


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchConfig:
    """The width and length of a beam search.

    beam_width: live continuations, and most hypotheses returned. max_new_tokens: most tokens of a
    hypothesis. length_penalty: the p of the score logprob_sum / length ** p; above 0 favours long
    hypotheses, below 0 short ones. early_stopping: end as soon as nothing better is possible, with
    the same hypotheses as the complete search; False continues to the last token. ConfigError for a
    value out of range.
    """

    beam_width: int = 4
    max_new_tokens: int = 256
    length_penalty: float = 1.0
    early_stopping: bool = True

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_new_tokens"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 1))
        penalty = self.length_penalty
        if (
            isinstance(penalty, bool)
            or not isinstance(penalty, (int, float, np.integer, np.floating))
            or not abs(penalty) <= STEEPEST
        ):
            raise ConfigError(
                f"length_penalty: found {penalty!r}, wanted a number from -{STEEPEST:g} to "
                f"{STEEPEST:g}"
            )
        if not isinstance(self.early_stopping, bool):
            raise ConfigError(
                f"early_stopping: found {self.early_stopping!r}, wanted True or False"
            )


@dataclass(frozen=True, slots=True)
class BeamHypothesis:
    """One continuation: its tokens without the one that ended it, and the sum of the (natural)
    log-probabilities of all tokens drawn.

    finished: False if max_new_tokens or the context ended it. score: see `oxillama.engine.beam`.
    """

    tokens: tuple[int, ...]
    logprob_sum: float
    finished: bool
    score: float
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamRules:
    """Which tokens a search may draw and where it ends, for one vocabulary.

    allowed: bitset (ceil(vocab/32),) uint32, None for every token; `allowed_early` replaces it
    while fewer than min_tokens were drawn. bias: (ids int64, float32 values) added to every row,
    None for none.
    """

    stop_ids: frozenset[int] = frozenset()
    allowed: np.ndarray | None = None
    allowed_early: np.ndarray | None = None
    min_tokens: int = 0
    bias: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def of(
        cls, config: SamplerConfig, vocab_size: int, *, eog_ids: Iterable[int] = ()
    ) -> BeamRules:
        """The rules in a sampler's config: bans, biases, min_tokens and what stops."""
        eog = frozenset(eog_ids)
        stop_ids = frozenset(config.stop_token_ids) | (frozenset() if config.ignore_eos else eog)
        finite = {token: value for token, value in config.logit_bias.items() if value != -math.inf}
        bans = {
            *config.banned_tokens,
            *(config.logit_bias.keys() - finite.keys()),
            *(eog if config.ignore_eos else ()),
        }
        late = bans | stop_ids | eog if config.min_tokens else bans
        for token in (*bans, *finite, *(config.allowed_tokens or ())):
            if token >= vocab_size:
                raise ConfigError(
                    f"beam search: found token {token}, wanted ids below the vocabulary size "
                    f"{vocab_size}"
                )
        return cls(
            stop_ids=stop_ids,
            allowed=_bits(vocab_size, config.allowed_tokens, bans),
            min_tokens=config.min_tokens,
            allowed_early=_bits(vocab_size, config.allowed_tokens, late),
            bias=(np.array(list(finite), np.int64), np.array(list(finite.values()), np.float32))
            if finite
            else None,
        )


@dataclass(slots=True)
class Beam:
    """A continuation in progress: a fork of the root, the sum of its log-probabilities, and its
    text so far.
    """

    session: Session
    total: float = 0.0
    text: str = ""
    offers: tuple[list[int], list[float]] = field(default_factory=lambda: ([], []))

    def take(self, token: int, masker: Any, *, listen: bool) -> bool:
        """Append a token; True if that completed a stop string. `listen`: stop strings count
        already.
        """
        session = self.session
        session.tokens.append(token)
        if session.grammar is not None:
            masker.advance(session.grammar, token)
        if session.text is None:
            return False
        text, stopped = session.text.feed(token), False
        # without the space that a vocabulary puts before all of it
        if text and session.at_start:
            text, session.at_start = text.removeprefix(" "), False
        if listen and session.stops.stops:
            text, stopped = session.stops.feed(text)
        self.text += text
        return stopped

    def whole(self) -> str:
        """The text if it ends here, with what the decoder and the stop filter hold; changes
        nothing.
        """
        session = self.session
        if session.text is None:
            return self.text
        rest, stops = session.text.fork().flush(), session.stops.fork()
        text, stopped = stops.feed(rest.removeprefix(" ") if session.at_start else rest)
        whole: str = self.text + text + ("" if stopped else stops.flush())
        return whole


class BeamSearch:
    """The state of one search, fed rows by the loop; it owns the pages of its beams. `root` is the
    prompt's session, which does not change.

    context_size: most tokens of a session. masker: consumes tokens for the sessions' grammar.
    """

    __slots__ = ("_found", "_limit", "_masker", "beams", "config", "root", "rules")

    def __init__(
        self,
        config: BeamSearchConfig,
        rules: BeamRules,
        root: Session,
        *,
        context_size: int,
        masker: Any = None,
    ) -> None:
        self.config, self.rules, self.root = config, rules, root
        self.beams = [Beam(root)]
        self._masker = masker
        # most tokens of a hypothesis
        self._limit = min(config.max_new_tokens, context_size - len(root.tokens))
        # the best so far, best first
        self._found: list[BeamHypothesis] = []

    @property
    def drawn(self) -> int:
        """Tokens that every beam has drawn."""
        return len(self.beams[0].session.tokens) - len(self.root.tokens) if self.beams else 0

    @property
    def sessions(self) -> list[Session]:
        """The sessions of the beams, in their order."""
        return [beam.session for beam in self.beams]

    def begin(self, row: np.ndarray) -> bool:
        """The root is evaluated, for the first time (`row` (vocab,) are its logits) or again; True
        if the search is over.
        """
        if self.drawn:
            for beam in self.beams:
                beam.session.kv = self.root.kv.fork()
            return False
        self.feed(0, row)
        return self.step()

    def update_entry(self, entry: Any) -> None:
        """Write the state of the beams into an entry: `width` sequences with one token each that is
        not evaluated, or more after a preemption.
        """
        entry.width, entry.length = len(self.beams), len(self.root.tokens) + self.drawn

    def feed_rows(self, entry: Any, rows: int, out: np.ndarray) -> bool:
        """The next `rows` beams had their row, with logits `out` (rows, vocab) if it was for the
        last token.

        True when all beams have the logits to continue from.
        """
        for index, row in enumerate(out, entry.part):
            self.feed(index, row)
        entry.part += rows
        if entry.part < entry.width:
            return False
        entry.part, entry.done = 0, entry.done + 1
        for session in self.sessions:
            session.kv.length = entry.done
        return bool(entry.done == entry.length)

    def feed(self, index: int, row: np.ndarray) -> None:
        """The logits (vocab,) after beam number `index`: remember its best tokens."""
        beam, rules = self.beams[index], self.rules
        if rules.bias is not None:
            row = row.copy()
            row[rules.bias[0]] += rules.bias[1]
        masks = [rules.allowed_early if self.drawn < rules.min_tokens else rules.allowed]
        if beam.session.grammar is not None:
            masks.append(beam.session.grammar.mask())
        beam.offers = likeliest(
            row, self.config.beam_width, [mask for mask in masks if mask is not None]
        )

    def step(self) -> bool:
        """Every beam has been fed: take the best offers. True if the search is over and no beam is
        left.
        """
        length = self.drawn + 1
        offers = (
            (-(beam.total + value), index, token)
            for index, beam in enumerate(self.beams)
            for token, value in zip(*beam.offers)
        )
        taken = heapq.nsmallest(self.config.beam_width, offers)
        if not taken and not self._found:
            raise SamplingError(
                "beam search: no beam has a token left, wanted at least one that bans and grammar "
                "allow"
            )
        going = []
        for negative, index, token in taken:
            if token in self.rules.stop_ids:
                self._end(self.beams[index], -negative, length)
            else:
                going.append((-negative, index, token))
        self.beams = self._children(self.beams, going)
        if length >= self._limit:
            for child in self.beams:
                self._keep(child, child.text + child.session.stops.flush(), length, finished=False)
            self.close()
        if self.beams and self.config.early_stopping and self._settled():
            self.close()
        return not self.beams

    def result(self) -> list[BeamHypothesis]:
        """The best hypotheses, at most `beam_width` of them, best first."""
        return list(self._found)

    def close(self) -> None:
        """Release the remaining beams."""
        for beam in self.beams:
            self._drop(beam.session)
        self.beams = []

    def release(self) -> None:
        """Release all pages of the beams. `begin` lets them continue from the root's pages when
        those are evaluated again.
        """
        for beam in self.beams:
            beam.session.kv.release()

    def _children(self, parents: list[Beam], going: list[tuple[float, int, int]]) -> list[Beam]:
        """The beams that continue; a parent's session is reused by the last of its children. Beams
        that end with their token become hypotheses.
        """
        made: list[Session | None] = [None] * len(going)
        try:
            return self._grown(parents, going, made)
        except BaseException:
            for session in filter(None, made):  # nothing else refers to them
                self._drop(session)
            raise

    def _grown(
        self, parents: list[Beam], going: list[tuple[float, int, int]], made: list[Session | None]
    ) -> list[Beam]:
        """`_children`; the sessions are in `made` as soon as they are there."""
        left, out = Counter(index for _, index, _ in going), []
        listen = len(parents[0].session.tokens) - len(self.root.tokens) + 1 >= self.rules.min_tokens
        for at, (total, index, token) in enumerate(going):
            parent = parents[index]
            left[index] -= 1
            shared = left[index] or parent.session is self.root
            session = made[at] = parent.session.fork_untracked() if shared else parent.session
            child = Beam(session, total, parent.text)
            stopped = child.take(token, self._masker, listen=listen)
            length = len(session.tokens) - len(self.root.tokens)
            if stopped or (session.grammar is not None and session.grammar.only_end()):
                self._keep(child, child.text if stopped else child.whole(), length, finished=True)
                self._drop(session)
            else:
                out.append(child)
        for index, parent in enumerate(parents):
            if index not in left:
                self._drop(parent.session)
        return out

    def _end(self, beam: Beam, total: float, length: int) -> None:
        """A beam drew a token that stops; it is not part of the text."""
        self._keep(Beam(beam.session, total), beam.whole(), length, finished=True)

    def _keep(self, beam: Beam, text: str, length: int, *, finished: bool) -> None:
        """Keep a hypothesis if it is among the best; of equal ones the earlier."""
        tokens = tuple(beam.session.tokens[len(self.root.tokens) :])
        score = _score(beam.total, length, self.config.length_penalty)
        self._found.append(BeamHypothesis(tokens, beam.total, finished, score, text))
        self._found.sort(key=lambda each: -each.score)
        del self._found[self.config.beam_width :]

    def _settled(self) -> bool:
        """Whether no beam can still become a hypothesis that would be kept."""
        if len(self._found) < self.config.beam_width:
            return False
        penalty = self.config.length_penalty
        length = self._limit if penalty > 0 else self.drawn + 1
        return self._found[-1].score >= max(
            _score(beam.total, length, penalty) for beam in self.beams
        )

    def _drop(self, session: Session) -> None:
        if session is not self.root:
            session.kv.release()


def likeliest(
    row: np.ndarray, count: int, masks: Sequence[np.ndarray] = ()
) -> tuple[list[int], list[float]]:
    """(ids, log-probabilities) of the `count` likeliest tokens of a row (vocab,) float32, best
    first, the lower id first among equals.

    masks: bitsets (ceil(vocab/32),) uint32; a token counts when its bit is set in all. The
    log-probabilities are those of the whole row. Tokens of probability 0 are left out.
    """
    count = min(count, len(row))
    if not masks:
        _, ids, values = token_logprobs(row, 0, top=count)
    else:
        _, (best,), (value,) = token_logprobs(row, 0, top=1)
        log_mass = float(row[best]) - value
        narrow = row.copy()
        for mask in masks:
            apply_bits(narrow, mask)
        if narrow.max() == NONE_LEFT:
            return [], []
        _, ids, _ = token_logprobs(narrow, 0, top=count)
        values = [float(narrow[token]) - log_mass for token in ids]
    alive = [(token, value) for token, value in zip(ids, values) if value != NONE_LEFT]
    return [token for token, _ in alive], [value for _, value in alive]


def _score(total: float, length: int, penalty: float) -> float:
    return float(total / float(length) ** penalty)


def _bits(vocab_size: int, allowed: Sequence[int] | None, bans: Iterable[int]) -> np.ndarray | None:
    """The bitset of the allowed tokens without the banned, None for all."""
    bans = list(bans)
    if allowed is None and not bans:
        return None
    flags = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    flags[slice(vocab_size) if allowed is None else list(allowed)] = 1
    flags[bans] = 0
    return np.packbits(flags, bitorder="little").view(np.uint32)


def make_beams(
    core: EngineCore,
    vocabulary: SharedVocabulary | None,
    options: Options,
    *,
    config: BeamSearchConfig,
    default: SamplerConfig,
    prompt: Sequence[int] | None = None,
    session: Session | None = None,
) -> BeamRequest:
    """A search over a prompt, or from a fork of a session after more tokens; not yet submitted. Its
    result is the list of hypotheses.

    Bans, biases, min_tokens and stops of `default` and of a session's own sampler are used; a
    sampler that is passed must be greedy otherwise.
    """
    for each in fields(Options):
        if each.name not in _SUPPORTED and getattr(options, each.name) != each.default:
            wanted = (
                "max_new_tokens of BeamSearchConfig"
                if each.name == "max_tokens"
                else "none in a beam search"
            )
            raise ConfigError(
                f"{each.name}: found {getattr(options, each.name)!r}, wanted {wanted}"
            )
    if options.sampler is not None:
        _greedy_but_for_rules(options.sampler)
    if options.sampling_fields:
        _greedy_but_for_rules(SamplerConfig.greedy(**options.sampling_fields))
    root = None
    if session is not None:
        with core.exclusive(session):
            root = session.fork_untracked()
    try:
        ready, _ = ready_session(
            core,
            vocabulary,
            replace(options, max_tokens=config.max_new_tokens),
            default=default,
            prompt=prompt,
            session=root,
        )
        rules = BeamRules.of(ready.sampler.config, core.program.vocab_size, eog_ids=core.eog_ids)
    except BaseException:
        if root is not None:
            root.kv.release()
        raise
    ready.sampler = None  # nothing is drawn, so no beam need carry one
    request = core.request(BeamRequest, ready)
    fill_in(request, options)
    masker = None if ready.grammar is None or vocabulary is None else vocabulary.masker
    request.search = BeamSearch(config, rules, ready, context_size=core.context_size, masker=masker)
    return request


def _greedy_but_for_rules(config: SamplerConfig) -> None:
    """Raise ConfigError for a config with more than rules, because a search draws nothing and
    penalises nothing.
    """
    plain = SamplerConfig.greedy(**{name: getattr(config, name) for name in _RULES})
    for each in fields(SamplerConfig):
        if each.name != "seed" and getattr(config, each.name) != getattr(plain, each.name):
            raise ConfigError(
                f"{each.name}: found {getattr(config, each.name)!r}, a beam search wanted "
                f"SamplerConfig.greedy() with no more than {', '.join(_RULES)}"
            )
