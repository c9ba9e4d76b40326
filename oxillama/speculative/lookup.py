"""Prompt lookup: the tokens that followed the newest tokens earlier, in the session itself or in
another one, may follow again.

    tokens   ... the quick brown fox ... the quick brown        candidates: fox ...
                 ^-------------^          ^-------------^
                 a longer earlier run that ends as the text does

An index of all sessions' texts knows where each run of 2, 4 and 8 tokens occurred last
(`_core/lookup.pyx`). A lookup takes a fraction of a microsecond and no rows. The token that each
one finds is compared with the token that came, even if it was not a candidate, so that the
acceptance rate is known for runs of every length, and repetition is noticed during a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oxillama._core.lookup import IndexedText, StepCosts, TextIndex, Watcher
from oxillama.arguments import checked_flag, whole
from oxillama.completion import SpecStats
from oxillama.errors import not_pickled
from oxillama.speculative.costs import CostLedger
from oxillama.speculative.request import CandidateCounts, most_candidates, runnable
from oxillama.speculative.types import MAX_CANDIDATES, Candidates, Draft, DraftRequest

# the chance that a candidate is accepted after a run of 2, 3-4, 5-8, 9-16, 17 and more tokens, in
# the text itself, then in another
_FIRST_CHANCES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.3, 0.5, 0.7, 0.8, 0.9)
_RETURNING = 4.0  # of `IndexedText.streak`: eight tokens in a row that candidates would have been


class LookupDrafter:
    """Candidates by prompt lookup; with `neighbours=False` sessions do not use each other's
    tokens.
    """

    __reduce__ = not_pickled(
        "drafter: holds texts in memory of this process",
        "make one in each process",
    )

    def __init__(self, *, most: int = MAX_CANDIDATES, neighbours: bool = True) -> None:
        self.most = whole("most", most, 1)
        self._index = TextIndex() if checked_flag("neighbours", neighbours) else None
        self._first = list(_FIRST_CHANCES)

    def open(self, session: Any) -> IndexedText:
        """Nothing is indexed before the first `propose`."""
        return IndexedText(TextIndex() if self._index is None else self._index, self._first)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """The tokens that followed before."""
        out = []
        for request in requests:
            request.state.learn(request.session.tokens)
            out.append(Draft(*request.state.offer(min(request.most, self.most))))
        return out

    def close(self, state: IndexedText, session: Any) -> None:
        """Its tokens remain known to other sessions for a while, and the next session begins
        half-way to the acceptance rates it ended with.
        """
        state.close()
        self._first = [(first + chance) / 2 for first, chance in zip(self._first, state.chances)]


class LookupSpeculation(CandidateCounts):
    """The candidates of a request that come from a lookup alone: given to each step at once,
    without the planner, because a step of a small model takes no longer than a few calls.

    costs: of steps, None to run every candidate. ledger: what candidates have cost so far, None to
    decide by `costs` alone.
    """

    judges = False

    __slots__ = (
        "_before",
        "_context_size",
        "_costs",
        "_drafter",
        "_drafts",
        "_ledger",
        "_pause",
        "_sequences",
        "_text",
        "_watcher",
        "wants",
    )

    def __init__(
        self,
        candidates: Candidates,
        session: Any,
        context_size: int,
        *,
        costs: StepCosts | None,
        ledger: CostLedger | None,
    ) -> None:
        super().__init__(session, reported=candidates.asked)
        drafter: LookupDrafter = candidates.drafter  # type: ignore[assignment]
        self._context_size = context_size
        self._drafter: LookupDrafter | None = drafter
        self._costs, self._ledger = costs, ledger
        self._text = drafter.open(session)
        most = min(candidates.most, drafter.most)
        # A step of many sequences is as good a use of its rows as candidates are, and each request
        # decides for itself: unasked, one that is not alone leaves them to the others.
        self._watcher = Watcher(self._text, costs, most, self, alone=not candidates.asked)
        self.wants = self._watcher.wants
        self._sequences = 1
        self._drafts = 0  # steps with candidates
        self._before = 0  # steps when candidates were last verified
        self._pause = 0  # steps before which there are none
        if ledger is not None:
            self._pause, ledger.rest = ledger.rest, 0

    def found(self, request: Any, sequences: int, count: int) -> bool:
        """Put candidates into the request's entry; False if none fit, or for now none are run."""
        if self._steps < self._pause:
            if self._text.streak < _RETURNING:
                return False
            self._pause = 0
        count = min(count, most_candidates(request, self._context_size))
        draft = runnable(self._text.offer(count)[0], request.stop_ids)
        if not draft:
            return False
        request.entry.draft, self._sequences = draft, sequences
        self._drafts += 1
        return True

    @property
    def fallbacks(self) -> int:
        """Steps without candidates, those of `rest` included."""
        return self._watcher.fallbacks

    @property
    def _steps(self) -> int:
        return self.fallbacks - self.rest + self._drafts

    def verified(self, *, accepted: int, rejected: int, bonus: bool, over: bool = False) -> None:
        super().verified(accepted=accepted, rejected=rejected, bonus=bonus)
        ledger, costs = self._ledger, self._costs
        if ledger is None or costs is None or over:
            return
        sequences, steps = self._sequences, self._steps
        plain = costs(sequences) / sequences
        extra = costs(sequences + accepted + rejected) - (sequences + accepted) * plain
        pause = ledger.enter(extra, plain, candidates=True, steps=steps - self._before)
        self._before = steps
        if pause:
            self._pause, self._text.streak = steps + pause, 0.0

    def close(self, output: int) -> None:
        """The request has ended, with this many tokens."""
        if not self.end(output):
            return
        self._watcher.close()
        drafter, self._drafter = self._drafter, None
        if self._ledger is not None:
            self._ledger.rest = max(self._ledger.rest, self._pause - self._steps)
            self._ledger = None
        if drafter is not None:
            drafter.close(self._text, self.session)

    def stats(self) -> SpecStats:
        """The counts as they are now."""
        return self.counted(self._watcher.since, self.fallbacks)
