"""`Planner`: candidates for the requests of one engine. It calls each drafter once per step for all
its requests, learns what steps cost, and runs drafters of callers in worker threads.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from oxillama.engine.engine import EngineCore
from oxillama.engine.speculation import Parking
from oxillama.errors import ConfigError, EngineError
from oxillama.speculative.assistant import AssistantDrafter
from oxillama.speculative.background import BackgroundDrafter
from oxillama.speculative.choices import DrafterChoice
from oxillama.speculative.costs import CostLedger, StepCosts
from oxillama.speculative.dflash import BlockDrafter
from oxillama.speculative.draft_model import ModelDrafter
from oxillama.speculative.grammar import ForcedText
from oxillama.speculative.lookup import LookupDrafter, LookupSpeculation
from oxillama.speculative.mtp import MtpDrafter
from oxillama.speculative.registry import DrafterRegistry
from oxillama.speculative.request import RequestSpeculation
from oxillama.speculative.threads import SerialCalls
from oxillama.speculative.types import (
    Candidates,
    Draft,
    Drafter,
    DraftRequest,
    NoCandidates,
)

PendingDraft = tuple[Any, DraftRequest]

# drafters that the loop asks itself: they answer at once, or after steps of a draft model
_IN_LOOP = (
    *(LookupDrafter, ForcedText, NoCandidates),
    *(ModelDrafter, MtpDrafter, AssistantDrafter, BlockDrafter),
)
# drafters whose `open` and `close` never wait
_OPENS_AT_ONCE = (*_IN_LOOP, BackgroundDrafter)


@dataclass(frozen=True, slots=True)
class _DrafterRecord:
    """What the planner knows of a drafter: its costs, and the thread in which it is called."""

    ref: weakref.ref | None
    ledger: CostLedger
    calls: SerialCalls


def _in_worker(core: EngineCore, call: Callable[[], None]) -> None:
    core.run_in_worker(call)


class Planner:
    """The `Speculator` of an engine core. registry: resolves values of `speculative=`; None allows
    only drafters and values that need no other model.
    """

    def __init__(self, core: EngineCore, registry: DrafterRegistry | None = None) -> None:
        self.registry = registry or DrafterRegistry()
        self.costs = StepCosts()
        self._core: EngineCore = weakref.proxy(core)
        # neither holds the core, which holds this
        self._run = partial(_in_worker, self._core)
        self._drafters: dict[int, _DrafterRecord] = {}

    def resolve(self, asked: Any) -> Any:
        """The value of an option `speculative`, with draft models opened before any lock is held;
        ConfigError for an invalid value.
        """
        return self.registry.resolve(asked)

    def begin(
        self, asked: Any, masker: Any, session: Any
    ) -> RequestSpeculation | LookupSpeculation | None:
        """The candidates for a value of `speculative=`, None for none."""
        candidates = self.registry.candidates(asked, masker)
        if candidates is None:
            return None
        if not candidates.asked and self._core.allocator.most_candidates == 0:
            return None  # by default, without an error for a model that cannot speculate
        return self.speculation(candidates, session)

    def speculation(
        self, candidates: Candidates, session: Any, *, costs: StepCosts | None = None
    ) -> RequestSpeculation | LookupSpeculation:
        """The candidates of a request on a session. costs: a fixed table, None to learn the
        engine's.
        """
        drafter, most = candidates.drafter, self._core.allocator.most_candidates
        rewindable = most != 0
        if most and most < candidates.most:
            candidates = replace(candidates, most=most)
        if type(drafter) is LookupDrafter and rewindable:
            learning = candidates.adaptive and costs is None
            return LookupSpeculation(
                candidates,
                session,
                self._core.context_size,
                costs=(costs or self.costs) if candidates.adaptive else None,
                ledger=self._record(drafter).ledger if learning else None,
            )
        inner = drafter.inner if isinstance(drafter, BackgroundDrafter) else drafter
        if isinstance(inner, ModelDrafter) and inner.drawn:
            candidates = replace(candidates, drawn=True)
        known = self._record(drafter)
        return RequestSpeculation(
            candidates,
            session,
            costs=costs,
            ledger=known.ledger if candidates.adaptive and costs is None else None,
            calls=None if is_built_in(drafter, _OPENS_AT_ONCE) else known.calls,
            rewindable=rewindable,
        )

    def propose(
        self, requests: Iterable[Any], *, sequences: int, prefilled: int, parking: Parking
    ) -> list[tuple[Any, BaseException]]:
        """Give each request the candidates of its next step, calling each drafter once; returns
        (request, error) for built-in drafters that failed.
        """
        started, size = time.perf_counter(), self._core.context_size
        groups: dict[int, tuple[Drafter, list[PendingDraft]]] = {}
        for request in requests:
            speculation = request.speculation
            speculation.record_step_cost(self.costs, sequences, prefilled)
            query = speculation.draft_request(request, size, sequences, self.costs)
            if query is None:
                speculation.offer_drawn(request)
            else:
                drafter = speculation.candidates.drafter
                groups.setdefault(id(drafter), (drafter, []))[1].append((request, query))
        failed: list[tuple[Any, BaseException]] = []
        for drafter, group in groups.values():
            if not is_built_in(drafter, _IN_LOOP):
                self._draft_in_thread(drafter, group, prefilled, started, parking)
                continue
            for (request, query), answer in proposals(drafter, group):
                try:
                    self._offer(request, query, prefilled, started, answer)
                except BaseException as error:
                    failed.append((request, error))
        return failed

    def _offer(
        self,
        request: Any,
        query: DraftRequest,
        prefilled: int,
        started: float,
        answer: Draft | BaseException,
    ) -> None:
        """Put an answer into the request's next step, or raise it."""
        if isinstance(answer, BaseException):
            raise answer
        speculation = request.speculation
        speculation.offer(request, query, answer, self._core.program.vocab_size)
        started += answer.setup
        speculation.step_started(query, len(request.entry.draft), prefilled, started)

    def _draft_in_thread(
        self,
        drafter: Drafter,
        group: list[PendingDraft],
        prefilled: int,
        started: float,
        parking: Parking,
    ) -> None:
        """Call a drafter in its own thread; the requests of the group wait for it."""
        answers: dict[int, Callable[[Any, BaseException | None], None]] = {
            id(request): parking(request, partial(self._offer, request, query, prefilled, started))
            for request, query in group
        }

        def work() -> None:
            ready, failed = opened([each for each in group if not each[0].done])
            for (request, _), answer in (*failed, *(proposals(drafter, ready) if ready else ())):
                answers[id(request)](answer, None)

        try:
            self._record(drafter).calls.run(work)
        except EngineError as error:  # no thread for it: these requests end, others go on
            for answer in answers.values():
                answer(None, error)

    def record(self, sequences: int, rows: int, seconds: float) -> None:
        """Learn what a step of so many rows costs, the first of which were not candidates."""
        self.costs.record(sequences, rows, seconds)

    def cores(self) -> Sequence[EngineCore]:
        """The engine cores of draft models."""
        return self.registry.cores()

    def close(self) -> None:
        """Close the draft models that were opened for this engine."""
        self.registry.close()

    def _record(self, drafter: Drafter) -> _DrafterRecord:
        """The record of a drafter, kept while the drafter exists."""
        key = id(drafter)
        known = self._drafters.get(key)
        if known is None or known.ref is None or known.ref() is not drafter:
            known = self._drafters[key] = _DrafterRecord(
                weakref.ref(drafter, partial(_forget, self._drafters, key)),
                CostLedger(),
                SerialCalls(self._run),
            )
        return known


def _forget(drafters: dict[int, _DrafterRecord], key: int, _: Any) -> None:
    drafters.pop(key, None)


def is_built_in(drafter: Drafter, types: tuple[type, ...]) -> bool:
    """Whether a drafter is of exactly one of these types, or a choice among such drafters."""
    if isinstance(drafter, DrafterChoice):
        return all(is_built_in(each, types) for each in drafter.drafters)
    return type(drafter) in types


def proposals(
    drafter: Drafter, group: list[PendingDraft]
) -> Sequence[tuple[PendingDraft, Draft | BaseException]]:
    """A draft, or the drafter's exception, for each request of a group. If a call for the whole
    group fails, each request is tried alone, so that none fails because of another.
    """
    try:
        drafts = list(drafter.propose([query for _, query in group]))
        if len(drafts) != len(group):
            raise ConfigError(
                f"drafter: found {len(drafts)} drafts, wanted {len(group)}, one for each session"
            )
    except BaseException as error:
        if len(group) == 1:
            return [(group[0], error)]
        return [answer for each in group for answer in proposals(drafter, [each])]
    return list(zip(group, drafts))


def opened(
    group: list[PendingDraft],
) -> tuple[list[PendingDraft], list[tuple[PendingDraft, BaseException]]]:
    """(the requests with the drafter's states, created if necessary; those for which that
    failed).
    """
    ready: list[PendingDraft] = []
    failed: list[tuple[PendingDraft, BaseException]] = []
    for request, query in group:
        try:
            ready.append((request, replace(query, state=request.speculation.open())))
        except BaseException as error:
            failed.append(((request, query), error))
    return ready, failed
