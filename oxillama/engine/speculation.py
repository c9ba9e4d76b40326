"""Speculation: candidates for the next tokens are run in the same step as the last token, and the
target says which of them stand.

    session   t0 t1 ... tn-1            a step of one session:   rows     tn-1   c0   c1   c2
    draft                c0 c1 c2                                logits   -> x0  -> x1 -> x2  (after c0 = x0, c1 = x1, ...)

A *drafter* offers candidates. The engine's loop runs them as rows, then draws row by row with the
session's own sampler and grammar, as if each row had had a step of its own; the first draw that
differs from its candidate ends it. Rows do not depend on their companions, so what comes out is bit
for bit what would have come without candidates, whatever they were: greedy, seeded, under penalties
or a grammar. Rows of candidates that did not stand are written over; nothing that stands is run
twice.

Two laws, by how a candidate was made:

- *found* (looked up, or drawn with the target's own random numbers): the target draws, and a
  candidate stands when it is what was drawn.
- *drawn* from a distribution q of a draft sampler of its own: it stands with probability min(1,
  p/q), else a draw from max(0, p - q)
  takes its place (`Sampler.judge`). The law of the text is the target's own; the text itself is
  another one than without candidates.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from oxillama.engine.costs import StepCosts
from oxillama.engine.session import checked_ids
from oxillama.errors import ConfigError
from oxillama.sampling import Distribution, Sampler

MOST = 16  # candidates of a step, unless told otherwise
_MEMORY = 0.95  # weight of what was learned before, at each verdict
_FIRST_REACH = 2  # candidates of a kind that has not been judged yet
_GROWTH = 3  # times as many as stood are tried next


@dataclass(frozen=True, slots=True)
class Draft:
    """Candidates in order. chances: of each, to stand where those before it do; those beyond the
    last chance are not brought. None where their number was already chosen with care.

    shares: what each was drawn from, where they were drawn by a sampler of the drafter's own.
    """

    tokens: Sequence[int] = ()
    chances: Sequence[float] | None = None
    shares: Sequence[Distribution] | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A session that may be brought at most `most` candidates (1 or more); `state` is what the
    drafter's `open` gave for it.

    costs: of a step by rows, None where every candidate offered is to be run. rows, sequences: of
    the step without candidates. stop_ids: tokens after which nothing comes. masker: consumes tokens
    for a fork of the session's grammar.
    """

    session: Any
    state: Any
    most: int
    costs: StepCosts | None = None
    rows: int = 1
    sequences: int = 1
    stop_ids: frozenset[int] = frozenset()
    masker: Any = None


class Drafter(Protocol):
    """Where candidates come from; asked by one thread at a time, without the engine's lock.

    One whose class says `in_loop = True` is asked in the engine's loop, which waits for it; every
    other one beside the loop, and the requests that it drafts for wait alone.
    """

    def open(self, session: Any) -> Any:
        """What the drafter keeps for a session while a request runs on it."""

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        """A draft for each ask, empty where there is none."""

    def close(self, state: Any, session: Any) -> None:
        """The request is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStats:
    """What became of candidates.

    accepted: candidates that stood. rejected: that were run and did not stand. bonus_tokens: drawn
    from the row after the last candidate, all having stood. total_output_tokens: with and without
    candidates. total_elapsed: seconds from the first draw to the end. n1_fallbacks: steps without
    candidates because none were at hand or none would pay.
    """

    accepted: int = 0
    rejected: int = 0
    bonus_tokens: int = 0
    total_output_tokens: int = 0
    total_elapsed: float = 0.0
    n1_fallbacks: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Share of the judged candidates that stood; 0 when none was judged."""
        judged = self.accepted + self.rejected
        return self.accepted / judged if judged else 0.0


class Trust:
    """How often candidates of one kind stood, the newest verdicts counting most; `first` is what is
    believed before any.

    reach: how many may be brought, from the start two unless told otherwise: what is believed
    before any verdict is worth few rows. It is soon as many as there are where they stand, and one
    where the first do not.
    """

    __slots__ = ("judged", "reach", "right")

    def __init__(self, first: float, *, weight: float = 1.0, reach: int = _FIRST_REACH) -> None:
        self.right, self.judged, self.reach = first * weight, weight, reach

    @property
    def chance(self) -> float:
        """Of a candidate to be right where those before it are."""
        return self.right / self.judged

    def chances(self, most: int) -> list[float]:
        """Of each candidate that may be brought, `most` at most."""
        return [self.chance] * min(most, self.reach)

    def learn(self, came: Sequence[int], candidates: Sequence[int]) -> None:
        """Compare what came with what was offered, up to the first difference."""
        stood = 0
        for token, candidate in zip(came, candidates):
            self.right = self.right * _MEMORY + (token == candidate)
            self.judged = self.judged * _MEMORY + 1
            if token != candidate:
                break
            stood += 1
        if stood:
            self.reach = max(self.reach, _GROWTH * stood)
        elif came and candidates and self.reach == _FIRST_REACH:
            self.reach = 1


@dataclass(frozen=True, slots=True)
class Candidates:
    """How a request speculates: whose candidates, at most how many a step, and whether only as many
    as pay are brought.

    asked: whether the caller wanted it: then nothing is begun before the costs of steps are
    measured, and the completion tells what became of the candidates. Else steps are assumed to cost
    what they commonly do until they have run. owner: what is kept alive for the drafter.
    """

    drafter: Drafter
    most: int = MOST
    adaptive: bool = True
    asked: bool = True
    owner: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 1:
            raise ConfigError(
                f"num_speculative: found {self.most!r}, wanted an integer of 1 or more"
            )


class Silent:
    """A drafter that never has anything to say: one token a step, and every step counted."""

    in_loop = True

    def open(self, session: Any) -> None:
        """Nothing is kept."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """Nothing."""
        return [Draft()] * len(asks)

    def close(self, state: None, session: Any) -> None:
        """Nothing was kept."""


class FirstOf:
    """The draft of the first of several drafters that has one."""

    def __init__(self, *drafters: Drafter) -> None:
        self.drafters = drafters

    @property
    def in_loop(self) -> bool:
        """Whether all of them are asked in the engine's loop."""
        return all(map(in_loop, self.drafters))

    def open(self, session: Any) -> list[Any]:
        """What each keeps."""
        return [drafter.open(session) for drafter in self.drafters]

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """Each drafter is asked for those that those before it had nothing for; all learn from what
        came.
        """
        out = [Draft()] * len(asks)
        for index, drafter in enumerate(self.drafters):
            for at, draft in enumerate(
                drafter.propose([replace(ask, state=ask.state[index]) for ask in asks])
            ):
                if not out[at].tokens:
                    out[at] = draft
        return out

    def close(self, state: list[Any], session: Any) -> None:
        """The request is over."""
        for drafter, each in zip(self.drafters, state):
            drafter.close(each, session)


class Speculation:
    """One request's candidates: whose they are and how many, by `Candidates`. costs: a table of its
    own, None for the engine's.

    `draw`, `passed` and `judged` are called by the loop as tokens come.
    """

    __slots__ = (
        "_costs",
        "_queue",
        "_session",
        "_since",
        "_state",
        "accepted",
        "bonus",
        "candidates",
        "ended",
        "fallbacks",
        "output",
        "rejected",
    )

    def __init__(
        self, candidates: Candidates, session: Any, *, costs: StepCosts | None = None
    ) -> None:
        self.candidates, self._costs = candidates, costs
        self._session, self._state = session, candidates.drafter.open(session)
        # drawn candidates that are not judged yet
        self._queue: deque[tuple[int, Distribution]] = deque()
        self._since = 0.0
        self.accepted = self.rejected = self.bonus = self.fallbacks = self.output = 0
        self.ended = 0.0

    def draw(self, sampler: Sampler, row: np.ndarray, mask: np.ndarray | None) -> int:
        """The next token of the text, whatever candidates there are."""
        if not self._since:
            self._since = time.perf_counter()
        if not self._queue:
            return sampler.sample(row, mask)
        token, shares = self._queue.popleft()
        taken = sampler.judge(row, mask, token, shares)
        if taken != token:
            self._queue.clear()
        return taken

    def passed(self, token: int) -> None:
        """A token came without a draw; drawn candidates that go on otherwise are void."""
        if self._queue and self._queue.popleft()[0] != token:
            self._queue.clear()

    def judged(self, *, stood: int, fell: int, bonus: bool) -> None:
        """Of a step's candidates `stood` stood and `fell` did not; bonus: a token was drawn from
        the row after the last.
        """
        self.accepted += stood
        self.rejected += fell
        self.bonus += bonus

    def ask(
        self, request: Any, context_size: int, sequences: int, costs: StepCosts | None
    ) -> Ask | None:
        """What to ask the drafter for now; None where drawn candidates are left, or there is room
        for none.
        """
        if self._queue:
            return None
        tokens, candidates = request.session.tokens, self.candidates
        most = self._most(request, context_size)
        if most < 1:
            return None
        costs = (self._costs or costs) if candidates.adaptive else None
        # no room to measure in: nobody can say what pays
        if candidates.adaptive and costs is None:
            return None
        rows = sequences - 1 + len(tokens) - request.ticket.done
        return Ask(
            request.session,
            self._state,
            most,
            costs,
            rows,
            sequences,
            request.stop_ids,
            request.masker,
        )

    def rows_to_measure(self, request: Any, context_size: int, sequences: int) -> int:
        """Rows of the largest step that the request may bring about beside so many sequences; 0
        where nobody need know what it costs.
        """
        if not (self.candidates.adaptive and self.candidates.asked) or self._costs is not None:
            return 0
        most = self._most(request, context_size)
        return sequences + most if most > 0 else 0

    def _most(self, request: Any, context_size: int) -> int:
        """Candidates that may be brought: the context has room for them, and for the token that
        comes after them.
        """
        most = min(self.candidates.most, context_size - len(request.session.tokens) - 1)
        return (
            most
            if request.max_tokens is None
            else min(most, request.max_tokens - len(request.generated) - 1)
        )

    def offer(self, request: Any, ask: Ask, draft: Draft, vocab_size: int) -> None:
        """Bring a draft into the request's next step, as much of it as is worth its rows;
        ConfigError for what is none.
        """
        if not isinstance(draft, Draft):
            raise ConfigError(f"drafter: found {type(draft).__name__}, wanted a Draft")
        tokens = checked_ids(draft.tokens, vocab_size, name="draft", wanted="token ids")[: ask.most]
        if draft.shares is not None:
            self._queue.extend(zip(tokens, draft.shares))
        elif ask.costs is not None and draft.chances is not None:
            tokens = tokens[
                : ask.costs.best(draft.chances[: ask.most], rows=ask.rows, sequences=ask.sequences)
            ]
        request.ticket.draft = runnable(tokens, request.stop_ids)
        self.fallbacks += not tokens

    def again(self, request: Any) -> None:
        """Bring the drawn candidates that are left."""
        request.ticket.draft = runnable([token for token, _ in self._queue], request.stop_ids)

    def close(self, output: int, run: Callable[[Callable[[], None]], None] | None = None) -> None:
        """The request is over, with so many tokens. run: runs the drafter's `close` later, where
        the drafter may be at work in another thread.
        """
        if not self.ended:
            self.output, self.ended = output, time.perf_counter()
            self._queue.clear()
            # a request that is kept keeps nothing of a draft's
            state, self._state = self._state, None
            # the statistics stay; a drafter may hold another engine
            drafter, self.candidates = (
                self.candidates.drafter,
                replace(self.candidates, drafter=Silent(), owner=None),
            )
            if run is None:
                drafter.close(state, self._session)
            else:
                run(partial(drafter.close, state, self._session))

    def stats(self) -> SpecStats:
        """The counts as they are now."""
        elapsed = (self.ended or time.perf_counter()) - self._since if self._since else 0.0
        return SpecStats(
            accepted=self.accepted,
            rejected=self.rejected,
            bonus_tokens=self.bonus,
            total_output_tokens=self.output,
            total_elapsed=elapsed,
            n1_fallbacks=self.fallbacks,
        )


def in_loop(drafter: Any) -> bool:
    """Whether a drafter is asked in the engine's own loop."""
    return getattr(drafter, "in_loop", False)


def runnable(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The candidates up to the first that would end the text: no row after that one is ever needed."""
    for at, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[:at]
    return tokens


def propose(
    requests: Iterable[Any],
    *,
    context_size: int,
    vocab_size: int,
    sequences: int,
    costs: StepCosts | None,
) -> list[tuple[Any, BaseException]]:
    """Give each request its candidates for the next step, asking each drafter once; returns
    (request, error) where a drafter failed.
    """
    asked: dict[int, tuple[Drafter, list[tuple[Any, Ask]]]] = {}
    for request in requests:
        speculation = request.speculation
        ask = speculation.ask(request, context_size, sequences, costs)
        if ask is None:
            speculation.again(request)
        else:
            drafter = speculation.candidates.drafter
            asked.setdefault(id(drafter), (drafter, []))[1].append((request, ask))
    return [
        each for drafter, group in asked.values() for each in _offered(drafter, group, vocab_size)
    ]


def _offered(
    drafter: Drafter, group: list[tuple[Any, Ask]], vocab_size: int
) -> list[tuple[Any, BaseException]]:
    """Ask a drafter for all of a group; where that fails, for each of them alone, so that nobody
    fails of another's text or grammar.
    """
    failed = []
    try:
        drafts = list(drafter.propose([ask for _, ask in group]))
        if len(drafts) != len(group):
            raise ConfigError(
                f"drafter: found {len(drafts)} drafts, wanted {len(group)}, one for each session"
            )
    except BaseException as error:
        if len(group) == 1:
            return [(group[0][0], error)]
        return [each for one in group for each in _offered(drafter, [one], vocab_size)]
    for (request, ask), draft in zip(group, drafts):
        try:
            request.speculation.offer(request, ask, draft, vocab_size)
        except BaseException as error:
            failed.append((request, error))
    return failed
