"""`RequestSpeculation`: the candidates of one request, from the call of the drafter to their
outcome. `CandidateCounts`: what all requests with candidates count.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np

from oxillama.arguments import checked_ids
from oxillama.completion import SpecStats
from oxillama.errors import ConfigError
from oxillama.sampling import Distribution, Sampler
from oxillama.speculative.costs import NOMINAL, CostLedger, StepCosts
from oxillama.speculative.threads import SerialCalls
from oxillama.speculative.types import (
    Candidates,
    Draft,
    DraftRequest,
    NoCandidates,
    carries,
)


class CandidateCounts:
    """Counts of one request's candidates. reported: whether the completion shows them. rest: steps
    in which the loop must not ask; it counts them down.
    """

    __slots__ = (
        "accepted",
        "bonus",
        "ended",
        "output",
        "rejected",
        "reported",
        "rest",
        "session",
    )

    def __init__(self, session: Any, *, reported: bool) -> None:
        self.session, self.reported = session, reported
        self.accepted = self.rejected = self.bonus = self.output = self.rest = 0
        self.ended = 0.0

    @property
    def drawn(self) -> bool:
        """Whether candidates were drawn from distributions of their own."""
        return False

    def carried(self, sequences: int) -> int:
        """Nothing is taken."""
        return 0

    def take_carried(self, first: int, rows: np.ndarray) -> None:
        """Nothing is taken."""

    def draw(self, sampler: Sampler, row: np.ndarray, mask: np.ndarray | None) -> int:
        """The next token of the text, from its logits."""
        return sampler.sample(row, mask)

    def token_forced(self, token: int) -> None:
        """A token was added without a draw: nothing depends on it."""

    def verified(self, *, accepted: int, rejected: int, bonus: bool, over: bool = False) -> None:
        """The outcome of a step's candidates; bonus: a token was drawn from the row after the last
        one. over: the text has ended with it.
        """
        self.accepted += accepted
        self.rejected += rejected
        self.bonus += bonus

    def end(self, output: int) -> bool:
        """The request has ended, with this many tokens; whether that is news."""
        if self.ended:
            return False
        self.output, self.ended = output, time.perf_counter()
        return True

    def counted(self, since: float, fallbacks: int) -> SpecStats:
        """The counts as they are now. since: when the first token was drawn, 0 before it.
        fallbacks: steps without candidates, those of `rest` included.
        """
        return SpecStats(
            accepted=self.accepted,
            rejected=self.rejected,
            bonus_tokens=self.bonus,
            total_output_tokens=self.output,
            total_elapsed=(self.ended or time.perf_counter()) - since if since else 0.0,
            n1_fallbacks=fallbacks - self.rest,
        )


class RequestSpeculation(CandidateCounts):
    """One request's candidates, under the settings of a `Candidates`.

    costs: a fixed table; None to learn the engine's and to keep the `ledger`. calls: the thread for
    all calls of the drafter; None if the loop makes them. rewindable: whether candidates can be
    run; where memory cannot drop its last tokens, the text is one token a step.
    """

    __slots__ = (
        "_calls",
        "_carries",
        "_costs",
        "_cycle",
        "_ended",
        "_ledger",
        "_queue",
        "_rewindable",
        "_state",
        "candidates",
        "fallbacks",
        "opened",
        "since",
    )

    def __init__(
        self,
        candidates: Candidates,
        session: Any,
        *,
        costs: StepCosts | None = None,
        ledger: CostLedger | None = None,
        calls: SerialCalls | None = None,
        rewindable: bool = True,
    ) -> None:
        super().__init__(session, reported=candidates.asked)
        self.candidates, self._costs = candidates, costs
        self.since, self._rewindable = 0.0, rewindable
        if candidates.drawn and costs is None:
            self._costs, ledger = NOMINAL, None
        self._calls, self._state, self.opened = calls, None, False
        self._carries = carries(candidates.drafter) if calls is None and rewindable else 0
        if calls is None:
            self.open()
        self._ledger = ledger
        if ledger is not None:
            self.rest, ledger.rest = ledger.rest, 0
        self.fallbacks = self.rest
        # (prompt rows of the engine, sequences, accepted so far, rows, seconds of drafting)
        self._cycle: tuple[int, int, int, int, float] | None = None
        # drawn candidates that are not judged yet
        self._queue: deque[tuple[int, Distribution]] = deque()
        # all of them were accepted, and the token after them is still to come: it has no candidate,
        # whether it is of the same step or, where there was no space for candidates, of a later one
        self._ended = False

    # ---- called by the loop as tokens come

    judges = True

    @property
    def drawn(self) -> bool:
        """Whether the drafter draws by a sampler of its own."""
        return self.candidates.drawn

    def wants(self, request: Any, sequences: int) -> bool:
        """Whether the drafter is called before the next step."""
        calls = self._rewindable and (sequences == 1 or not self.candidates.alone)
        self.fallbacks += not calls
        return calls

    def carried(self, sequences: int) -> int:
        """How many of a prompt's last rows the drafter takes (`take_carried`), besides all of later
        steps, while this many sequences decode; 0: it takes none of any step.
        """
        return self._carries if sequences <= 1 or not self.candidates.alone else 0

    def take_carried(self, first: int, rows: np.ndarray) -> None:
        """The target's rows of the session's tokens from position `first` on."""
        self.candidates.drafter.take_carried(self._state, first, rows)  # type: ignore[attr-defined]

    def draw(self, sampler: Sampler, row: np.ndarray, mask: np.ndarray | None) -> int:
        """The next token of the text, whatever candidates there are."""
        if not self.since:
            self.since = time.perf_counter()
        if not self._queue:
            self._ended = False
            return sampler.sample(row, mask)
        token, shares = self._queue.popleft()
        taken = sampler.judge(row, mask, token, shares)
        self._came(taken == token)
        return taken

    def token_forced(self, token: int) -> None:
        """A token was added without a draw; drawn candidates that continue differently are
        dropped.
        """
        self._came(bool(self._queue) and self._queue.popleft()[0] == token)

    def _came(self, accepted: bool) -> None:
        """A token came where a drawn candidate may have been, which it equals or not."""
        if not accepted:
            self._queue.clear()
        self._ended = accepted and not self._queue

    # ---- called by the planner before a step

    def record_step_cost(self, costs: StepCosts, sequences: int, prefilled: int) -> None:
        """Count what the step since the drafter was last called has cost, and set `rest`."""
        cycle, self._cycle = self._cycle, None
        if cycle is None or self._ledger is None or cycle[:2] != (prefilled, sequences):
            return
        _, _, accepted, rows, drafting = cycle
        ledger, plain, extra = self._ledger, costs(sequences), 0.0
        if rows:
            extra = costs(rows) - (1 + self.accepted - accepted) * plain
        extra += ledger.drafting(drafting, plain)
        self.rest = sequences * ledger.enter(extra, plain, candidates=bool(rows))
        self.fallbacks += self.rest

    def draft_request(
        self,
        request: Any,
        context_size: int,
        sequences: int,
        costs: StepCosts,
    ) -> DraftRequest | None:
        """The next request to the drafter. None if drawn candidates are left or the token after
        them is, if none fit, while the drafter rests, and before a plain step was measured.
        """
        if self._queue or self.rest:
            return None
        if self._ended:
            self.fallbacks += 1
            return None
        candidates = self.candidates
        most = min(candidates.most, most_candidates(request, context_size))
        if most < 1:
            return None
        rows = sequences - 1 + len(request.session.tokens) - request.entry.done
        costs = self._costs or costs
        if candidates.adaptive and not costs:
            self.fallbacks += 1
            return None
        return DraftRequest(
            request.session,
            self._state,
            most,
            costs if candidates.adaptive else None,
            rows,
            sequences,
            request.stop_ids,
            request.masker,
            self._ledger,
        )

    def open(self) -> Any:
        """The drafter's state for the session, created if necessary."""
        if not self.opened:
            self._state, self.opened = self.candidates.drafter.open(self.session), True
        return self._state

    def offer(self, request: Any, query: DraftRequest, draft: Draft, vocab_size: int) -> None:
        """Add as much of a draft to the request's next step as is worth its rows; ConfigError for
        an invalid draft.
        """
        if not isinstance(draft, Draft):
            raise ConfigError(f"drafter: found {type(draft).__name__}, wanted a Draft")
        if not draft.tokens and draft.tokens is not None:
            request.entry.draft = ()
            self.fallbacks += 1
            return
        tokens = checked_ids(draft.tokens, vocab_size, name="draft", wanted="token ids")[
            : query.most
        ]
        if draft.shares is not None:
            if not self.candidates.drawn:
                raise ConfigError(
                    "drafter: found shares, wanted Candidates(..., drawn=True) for a drafter with "
                    "a sampler of its own"
                )
            self._queue.extend(zip(tokens, draft.shares))
        elif query.costs is not None and draft.chances is not None:
            tokens = tokens[: query.worthwhile(draft.chances)]
        request.entry.draft = runnable(tokens, request.stop_ids)
        self.fallbacks += not tokens

    def step_started(
        self, query: DraftRequest, candidates: int, prefilled: int, started: float
    ) -> None:
        """A step with this many candidates, requested at `started`, is about to run."""
        # of a step with forced tokens nothing is learned about plain steps
        if candidates or query.rows == query.sequences:
            self._cycle = (
                prefilled,
                query.sequences,
                self.accepted,
                query.rows + candidates if candidates else 0,
                time.perf_counter() - started,
            )

    def offer_drawn(self, request: Any) -> None:
        """Run the drawn candidates that are left."""
        request.entry.draft = runnable([token for token, _ in self._queue], request.stop_ids)

    # ---- the end

    def close(self, output: int) -> None:
        """The request has ended, with this many tokens."""
        self._queue.clear()
        if not self.end(output):
            return
        if self._ledger is not None:
            self._ledger.rest = max(self._ledger.rest, self.rest)
        if self._calls is None:
            self._end()
        else:
            self._calls.run(self._end)  # after what the drafter is doing for it now

    def _end(self) -> None:
        # a request that is kept keeps nothing of the drafter's
        state, self._state = self._state, None
        drafter = self.candidates.drafter
        # nor what leads to an engine: a drafter's model, the threads of this one
        self.candidates = replace(self.candidates, drafter=NoCandidates(), owner=None)
        self._calls = self._ledger = None
        if self.opened:
            drafter.close(state, self.session)

    def stats(self) -> SpecStats:
        """The counts as they are now."""
        return self.counted(self.since, self.fallbacks)


def most_candidates(request: Any, context_size: int) -> int:
    """How many candidates can be run: they, and the token after them, must fit the context and
    max_tokens.
    """
    most = context_size - len(request.session.tokens) - 1
    if request.max_tokens is not None:
        most = min(most, request.max_tokens - len(request.generated) - 1)
    return max(most, 0)


def runnable(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The candidates up to the first that would end the text: no row after that one is needed."""
    for at, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[:at]
    return tokens
