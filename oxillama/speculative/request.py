"""`RequestSpeculation`: the candidates of one request, from the call of the drafter to their
outcome.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np

from oxillama.engine.session import checked_ids
from oxillama.engine.speculation import SpecStats
from oxillama.errors import ConfigError
from oxillama.sampling import Distribution, Sampler
from oxillama.speculative.costs import NOMINAL, CostLedger, StepCosts
from oxillama.speculative.threads import SerialCalls
from oxillama.speculative.types import Candidates, Draft, DraftRequest, NoCandidates


class RequestSpeculation:
    """One request's candidates, under the settings of a `Candidates`.

    costs: a fixed table; None to learn the engine's and to keep the `ledger`. calls: the thread for
    all calls of the drafter; None if the loop makes them. rest: the number of steps in which the
    drafter is not called.
    """

    __slots__ = (
        "_calls",
        "_costs",
        "_cycle",
        "_granted",
        "_ledger",
        "_queue",
        "_since",
        "_state",
        "accepted",
        "bonus",
        "candidates",
        "ended",
        "fallbacks",
        "opened",
        "output",
        "rejected",
        "rest",
        "session",
    )

    def __init__(
        self,
        candidates: Candidates,
        session: Any,
        *,
        costs: StepCosts | None = None,
        ledger: CostLedger | None = None,
        calls: SerialCalls | None = None,
    ) -> None:
        self.candidates, self._costs, self.session = candidates, costs, session
        if candidates.drawn and costs is None:
            self._costs, ledger = NOMINAL, None
        self._calls, self._state, self.opened = calls, None, False
        if calls is None:
            self.open()
        self._ledger = ledger
        self.rest = 0
        if ledger is not None:
            self.rest, ledger.rest = ledger.rest, 0
        self._granted = self.rest  # steps of rest, past and to come
        # (time, prompt rows of the engine, sequences, accepted so far, rows, seconds of drafting)
        self._cycle: tuple[float, int, int, int, int, float] | None = None
        # drawn candidates that are not judged yet
        self._queue: deque[tuple[int, Distribution]] = deque()
        self._since = 0.0
        self.accepted = self.rejected = self.bonus = self.fallbacks = self.output = 0
        self.ended = 0.0

    @property
    def reported(self) -> bool:
        """Whether the completion shows the counts."""
        return self.candidates.asked

    # ---- called by the loop as tokens come

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
        """A token was added without a draw; drawn candidates that continue differently are
        dropped.
        """
        if self._queue and self._queue.popleft()[0] != token:
            self._queue.clear()

    def verified(self, *, accepted: int, rejected: int, bonus: bool) -> None:
        """The outcome of a step's candidates; bonus: a token was drawn from the row after the last
        one.
        """
        self.accepted += accepted
        self.rejected += rejected
        self.bonus += bonus

    # ---- called by the planner before a step

    def settle(self, costs: StepCosts | None, sequences: int, prefilled: int) -> StepCosts | None:
        """Learn from the step since the drafter was last called, and set `rest`; returns the costs
        for decisions.
        """
        if self._costs is not None or not self.candidates.adaptive or self._ledger is None:
            return self._costs
        cycle, self._cycle = self._cycle, None
        if cycle is None or cycle[1] != prefilled or cycle[2] != sequences:
            return costs
        began, _, _, accepted, rows, drafting = cycle
        seconds, extra = max(time.perf_counter() - began - drafting, 1e-9), 0.0
        if costs is None:
            if rows:
                return None
            costs = StepCosts({sequences: seconds})
        elif not rows:
            costs.scale(sequences, seconds)
        else:
            costs.observe(rows, seconds)
            # by the estimates: this step may have been held up
            extra = costs(rows) - (1 + self.accepted - accepted) * costs(sequences)
        ledger, plain = self._ledger, costs(sequences)
        extra += ledger.drafting(drafting, plain)
        self.rest = sequences * ledger.enter(extra, plain, candidates=bool(rows))
        self._granted += self.rest
        return costs

    def draft_request(
        self,
        request: Any,
        context_size: int,
        sequences: int,
        prefilled: int,
        costs: StepCosts | None,
    ) -> DraftRequest | None:
        """The next request to the drafter. None if drawn candidates are left, if there is no room
        for any, while the drafter rests, and before a plain step was measured.
        """
        if self._queue or self.rest:
            return None
        candidates = self.candidates
        most = self._most(request, context_size)
        if most < 1:
            return None
        rows = sequences - 1 + len(request.session.tokens) - request.entry.done
        costs = (self._costs or costs) if candidates.adaptive else None
        if candidates.adaptive and costs is None:
            if rows == sequences:
                self._cycle = (time.perf_counter(), prefilled, sequences, self.accepted, 0, 0.0)
            self.fallbacks += 1
            return None
        return DraftRequest(
            request.session,
            self._state,
            most,
            costs,
            rows,
            sequences,
            request.stop_ids,
            request.masker,
            self._ledger,
        )

    def _most(self, request: Any, context_size: int) -> int:
        """How many candidates can be run: they, and the token after them, must fit the context and
        max_tokens.
        """
        most = min(self.candidates.most, context_size - len(request.session.tokens) - 1)
        return (
            most
            if request.max_tokens is None
            else min(most, request.max_tokens - len(request.generated) - 1)
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

    def began(self, query: DraftRequest, candidates: int, prefilled: int, started: float) -> None:
        """A step with this many candidates, requested at `started`, is about to run."""
        # of a step with forced tokens nothing is learned about plain steps
        if candidates or query.rows == query.sequences:
            self._cycle = (
                started,
                prefilled,
                query.sequences,
                self.accepted,
                query.rows + candidates if candidates else 0,
                time.perf_counter() - started,
            )

    def again(self, request: Any) -> None:
        """Run the drawn candidates that are left."""
        request.entry.draft = runnable([token for token, _ in self._queue], request.stop_ids)

    # ---- the end

    def close(self, output: int) -> None:
        """The request has ended, with this many tokens."""
        if self.ended:
            return
        self.output, self.ended = output, time.perf_counter()
        self._queue.clear()
        if self._ledger is not None:
            self._ledger.rest = max(self._ledger.rest, self.rest)
        if self._calls is None:
            self._close()
        else:
            self._calls.run(self._close)  # after what the drafter is doing for it now

    def _close(self) -> None:
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
        elapsed = (self.ended or time.perf_counter()) - self._since if self._since else 0.0
        return SpecStats(
            accepted=self.accepted,
            rejected=self.rejected,
            bonus_tokens=self.bonus,
            total_output_tokens=self.output,
            total_elapsed=elapsed,
            n1_fallbacks=self.fallbacks + self._granted - self.rest,
        )


def runnable(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The candidates up to the first that would end the text: no row after that one is needed."""
    for at, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[:at]
    return tokens
