"""A second model as a drafter. Its pages follow the session's tokens and are truncated with them,
so that no token is evaluated twice.

    target  t0 ... tn-1 | x0 x1 x2     draft  t0 ... tn-1 c0 c1     (the last candidate is not run)
    x0 = c0, x1 != c1:                 truncated to  t0 ... tn-1 c0,  then runs  x1

Candidates are drawn after all of the target's sampler stages, from logits in the target's
vocabulary: with a fork of the session's own sampler (the random numbers that the target will use,
so that equal logits draw equal tokens), or with a sampler of the drafter's own, whose distributions
are returned for acceptance. A grammar masks candidates like the text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from oxillama.engine.allocator import common_prefix
from oxillama.engine.engine import EngineCore
from oxillama.engine.session import Session
from oxillama.errors import PoolError
from oxillama.model.load import Model
from oxillama.sampling import Sampler
from oxillama.speculative.costs import NOMINAL
from oxillama.speculative.draft_session import DraftAcceptance, DraftState, SessionDraft
from oxillama.speculative.shortlist import Shortlist
from oxillama.speculative.types import Draft, DraftRequest
from oxillama.speculative.vocabularies import Alignment

# rows of a long prompt that the draft runs between two steps of the target
CATCH_UP = 256
_SHORT = 4  # rows of a catch-up that counts as part of a draft's step
_LEAST_ROUND = 5e-5  # seconds of a draft's step, before one was measured: what any step costs


@dataclass(frozen=True, slots=True)
class SavedDraft:
    """A draft in a snapshot: its session as an OXISNAP1 snapshot (empty if it will be evaluated
    again), how many of the target's tokens that holds, the state of the draft's own sampler, and
    `DraftState.to_dict()`.
    """

    session: bytes
    held: int
    sampler: bytes
    memory: dict


class ModelDrafter:
    """Drafts with the program of another engine. alignment: between the two vocabularies.

    own_sampler: makes the sampler of a session's draft, None to draw with a fork of the session's
    own. weight: the cost of a draft step relative to a target step, in bytes read; it replaces
    measured times if the text depends on the number of candidates, as with a sampler of its own.
    model: what the engine runs, to draw from a part of its vocabulary; None to draw from all of it.
    If both are the same engine, its own requests and drafts take turns.

    `open`, `close` and `forget` take no engine's lock, because callers may hold the target's, and
    two engines may draft for each other.
    """

    # whether the prompts that it evaluates are part of what its candidates cost
    _catch_up_counts = True
    # whether a step of it draws all candidates of a session
    _whole = False

    def __init__(
        self,
        core: EngineCore,
        alignment: Alignment,
        *,
        own_sampler: Callable[[Session], Sampler] | None = None,
        weight: float = 1.0,
        model: Model | None = None,
    ) -> None:
        self.core, self.alignment = core, alignment
        self._shortlist: Shortlist | None = None
        # with a sampler of its own, a text would depend on what others were made of
        if model is not None and own_sampler is None and not alignment.mapped:
            self._shortlist = Shortlist.of(model)
        self._own_sampler, self._weight = own_sampler, weight
        # of all sessions, except where the text depends on it
        self._acceptance = DraftAcceptance()
        self._round = 0.0  # seconds of a step that draws a candidate of each session, 0: unknown
        self.forwarded = 0  # rows that the draft has run
        self._kept: tuple[Session, DraftState] | None = None
        # of other sessions what their texts depend on: the drafts of a sampler of its own
        self._others: WeakKeyDictionary[Session, DraftState] = WeakKeyDictionary()
        self._lock = threading.Lock()  # of these two

    @property
    def drawn(self) -> bool:
        """Whether candidates are drawn by the drafter's own sampler."""
        return self._own_sampler is not None

    def open(self, session: Session) -> DraftState:
        """Nothing is run yet; the session closed last continues where it ended, and so does any
        other whose draft has a sampler of its own, without its pages.
        """
        with self._lock:
            if self._kept is not None and self._kept[0] is session:
                state, self._kept = self._kept[1], None
                return state
            other = self._others.pop(session, None)
        return other or self._state_of(session, self.core.new_session())

    def _state_of(self, session: Session, drafted: Session) -> DraftState:
        if self._own_sampler is None:
            return DraftState(drafted, None, self._acceptance)
        return DraftState(drafted, self._own_sampler(session), DraftAcceptance())

    def close(self, state: DraftState, session: Session) -> None:
        """The draft's pages stay until they are needed, for the last session only."""
        with self._lock:
            before, self._kept = self._kept, (session, state)
            if before is not None and before[0] is not session and self.drawn:
                before[1].lose_pages(self.core.new_session())
                self._others[before[0]] = before[1]

    def forget(self) -> None:
        """Drop the session that was closed last and release its pages, and what is kept of
        others.
        """
        with self._lock:
            self._kept = None
            self._others.clear()

    def kept(self, session: Session) -> DraftState | None:
        """The draft of an idle session, None if nothing is kept of it."""
        with self._lock:
            if self._kept is not None and self._kept[0] is session:
                return self._kept[1]
            return self._others.get(session)

    def save(self, session: Session) -> SavedDraft | None:
        """What `resume` needs to continue an idle session elsewhere; None where nothing is kept of
        it.

        Only pages of tokens that the session holds are saved. Pages of rejected candidates, and of
        candidates that were not verified because the text ended, are not.
        """
        state = self.kept(session)
        if state is None:
            return None
        core, drafted = self.core, state.session
        sampler, memory = b"", state.to_dict()
        if state.sampler is not None:
            sampler = state.sampler.state()
            memory["reached"] = state.keep_reached(session.tokens, len(session.tokens))
        with core.lock:
            most = min(len(state.held), drafted.kv.length)
            held = common_prefix(state.held, session.tokens, most)
            if not held or core.snapshots is None or drafted.kv.stateful:
                return SavedDraft(b"", 0, sampler, memory)
            part = drafted.fork_untracked()
            part.kv.truncate(held)
            held = part.kv.length  # 0 where windowed layers have given back what it looks at
            # a session ends in a token that is not evaluated; this one is never read
            part.tokens = [*self.alignment.ids(state.held[:held]).tolist(), 0]
            core.keep(part)
        try:
            return SavedDraft(core.require_snapshots().to_bytes(part), held, sampler, memory)
        finally:
            core.drop(part)

    def resume(
        self, session: Session, drafted: Session, *, held: int, sampler: bytes | None, memory: dict
    ) -> None:
        """Continue from what `save` gave in another process: `drafted` holds the first `held`
        tokens of the session in pages of this draft's.

        Tokens at its end that the session does not hold are cut off: snapshots of earlier versions
        have rejected candidates there. ValueError, after which the pages are released, where
        `drafted` holds more or fewer tokens, or `memory` is not what `DraftState.to_dict` gave.
        """
        state = self._state_of(session, self.core.keep(drafted))
        try:
            if state.sampler is not None and sampler is not None:
                state.sampler.restore(sampler)
            if drafted.kv.length != held:
                raise ValueError(f"held: found {drafted.kv.length} tokens, wanted {held}")
            state.load_dict(memory)
            reached = memory.get("reached", held)
            if type(reached) is not int or reached < 0:
                raise ValueError(f"reached: found {reached!r}, wanted a number of tokens")
            wanted = self.alignment.ids(session.tokens[:held]).tolist()
            held = common_prefix(drafted.tokens, wanted, len(wanted))
            with self.core.lock:
                drafted.kv.truncate(held)
        except BaseException:
            self.core.drop(drafted)
            raise
        state.held = session.tokens[:held]
        if state.sampler is not None:
            state.reached = session.tokens[:reached]
        self.close(state, session)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Candidates of all sessions, drafted together: one step of the draft for the next
        candidate of each.
        """
        self.core.check()
        out = [Draft()] * len(requests)
        drafts: dict[int, SessionDraft] = {}
        for at, request in enumerate(requests):
            self._note(request)
            count = self._count(request)
            if count:
                drafts[at] = self._session_draft(request, count)
        if not drafts:
            return out
        began, setup = time.perf_counter(), 0.0
        if self._shortlist is not None:
            self._shortlist.update()
            setup = time.perf_counter() - began
        with self.reserved(list(drafts.values())):
            caught_up = self.draft(list(drafts.values()))
        if not self._catch_up_counts:
            setup += caught_up
        for at, draft in drafts.items():
            draft.state.position, draft.state.offered = (
                len(draft.request.session.tokens),
                draft.tokens,
            )
            out[at] = Draft(
                draft.tokens,
                None,
                draft.shares if draft.state.sampler is not None else None,
                setup,
            )
        return out

    def _note(self, request: DraftRequest) -> None:
        """Count the session's tokens that are new."""
        state, tokens = request.state, request.session.tokens
        if self._shortlist is not None:
            self._shortlist.note(tokens[state.noted :])
            state.noted = len(tokens)

    def _row(self, logits: np.ndarray) -> np.ndarray:
        """float32 (the target's vocabulary,) of a row of the draft's output."""
        short, rows = self._shortlist, self.core.program.vocab_size
        if short is not None and len(logits) < rows:
            logits = short.row(logits, rows)
        return self.alignment.row(logits)

    def _session_draft(self, request: DraftRequest, count: int) -> SessionDraft:
        return SessionDraft(request, count)

    @contextmanager
    def reserved(self, drafts: Sequence[SessionDraft]) -> Iterator[None]:
        """While candidates are drawn, the pages of their sessions cannot be taken."""
        sessions = [draft.state.session for draft in drafts]
        with self.core.lock:
            for session in sessions:
                self.core.keep(session)
                session.busy = True
        try:
            yield
        finally:
            with self.core.lock:
                for session in sessions:
                    session.busy = False

    def _count(self, request: DraftRequest) -> int:
        """How many candidates to draft: as many as pay, by the clock or, where the text depends on
        their number, without it.
        """
        state = request.state
        state.learn(request.session.tokens)
        if request.costs is None:
            return request.most
        chances = state.acceptance.estimate.chances(request.most)
        if state.sampler is not None:
            return state.acceptance.count(NOMINAL.best(chances, each=self._weight))
        plain = request.costs(request.sequences)
        each = (self._round or max(self._weight * plain, _LEAST_ROUND)) / request.sequences
        return request.worthwhile(chances, **{"once" if self._whole else "each": each})

    def draft(self, drafts: list[SessionDraft]) -> float:
        """Catch up with each session, then draw its candidates; returns the seconds of a long
        catch-up.
        """
        started, rounds = time.perf_counter(), 0
        for draft in drafts:
            draft.drop_rejected()
        most = min(CATCH_UP, self.core.program.max_rows)
        work = [(draft, draft.missing(most)) for draft in drafts]
        rows = self.run(work)
        for at, (draft, ids) in enumerate(work):
            # a text that depends on when candidates begin does not depend on what a step holds, nor
            # on whether pages were lost
            left = 0
            if draft.state.sampler is not None:
                left = CATCH_UP + len(draft.state.reached) - len(draft.state.held)
            while left and rows[at] is not None and not draft.caught_up:
                ids = draft.missing(min(most, left))
                rows[at], left = self.run([(draft, ids)])[0], left - len(ids)
        short = all(len(ids) <= _SHORT for _, ids in work)
        caught_up = 0.0 if short else time.perf_counter() - started
        live = [
            (draft, row) for draft, row in zip(drafts, rows) if row is not None and draft.caught_up
        ]
        while live:
            rounds += 1
            going = [draft for draft, row in live if draft.draw(self._row(row))]
            rows = self.run([(draft, [draft.tokens[-1]]) for draft in going])
            live = [(draft, row) for draft, row in zip(going, rows) if row is not None]
        if rounds and (not self._round or short):
            self._learn_round((time.perf_counter() - started - caught_up) / rounds)
        return caught_up

    def _learn_round(self, seconds: float) -> None:
        """A step that draws candidates took so long."""
        if self._round:
            seconds = self._round + 0.2 * (min(seconds, 3 * self._round) - self._round)
        self._round = seconds

    def run(self, work: list[tuple[SessionDraft, list[int]]]) -> list[np.ndarray | None]:
        """Evaluate tokens of several drafts; the logits after the last of each, None for one that
        got no pages or has no tokens to run.
        """
        out: list[np.ndarray | None] = [None] * len(work)
        most, start = self.core.program.max_rows, 0
        while start < len(work):  # as many drafts as a step holds
            end, rows = start, 0
            while end < len(work) and rows + len(work[end][1]) <= most:
                rows += len(work[end][1])
                end += 1
            part = [
                (index, *work[index])
                for index in range(start, end)
                if work[index][1] and self._reserve(*work[index])
            ]
            if part:
                try:
                    logits = self._step([(draft, ids) for _, draft, ids in part])
                except BaseException:
                    self._forget_states([draft for _, draft, _ in part])
                    raise
                for (index, draft, ids), row in zip(part, logits):
                    draft.state.held += ids
                    draft.kv.length += len(ids)
                    out[index] = row.copy()
            start = end
        return out

    def _reserve(self, draft: SessionDraft, ids: list[int]) -> bool:
        with self.core.lock:
            self.core.check()  # if it was closed meanwhile, its pages have no owner
            try:
                draft.kv.reserve(draft.kv.length + len(ids))
            except PoolError:
                return False
            return not draft.caught_up or draft.kv.spare(len(ids))

    def _forget_states(self, drafts: list[SessionDraft]) -> None:
        """An unfinished step left the recurrent state of its drafts undefined."""
        with self.core.lock:
            for draft in drafts:
                if draft.kv.stateful:
                    draft.kv.release()

    def _step(self, part: list[tuple[SessionDraft, list[int]]]) -> np.ndarray:
        """Logits (drafts, vocabulary) after the last token of each; a view that the next step
        overwrites.
        """
        tokens = np.concatenate([self.alignment.ids(ids) for _, ids in part])
        positions = np.concatenate(
            [
                np.arange(draft.kv.length, draft.kv.length + len(ids), dtype=np.int32)
                for draft, ids in part
            ]
        )
        row_table = np.repeat(np.arange(len(part), dtype=np.int32), [len(ids) for _, ids in part])
        wanted = (np.cumsum([len(ids) for _, ids in part]) - 1).astype(np.int32)
        self.forwarded += len(tokens)
        core, short = self.core, self._shortlist
        with core.step_lock:
            program = core.program  # first: closed meanwhile, the drafts have no pages
            if short is not None and short.program is not None:
                program = short.program
            batch = core.make_batch(
                tokens,
                positions,
                [draft.kv.table for draft, _ in part],
                row_table,
                wanted,
                **self._inputs(part),
            )
            logits = program.step(batch, core.memory).copy()
            self._stepped(part, program)
            return logits

    def _inputs(self, part: list[tuple[SessionDraft, list[int]]]) -> dict[str, Any]:
        """What a step reads besides the tokens."""
        return _states(part)

    def _stepped(self, part: list[tuple[SessionDraft, list[int]]], program: Any) -> None:
        """A step was run; its tokens are not yet among those held."""


def _states(part: list[tuple[SessionDraft, list[int]]]) -> dict[str, list[int]]:
    """Where a step finds the recurrent state of drafts, and where it leaves that after candidates;
    nothing for a model without any.
    """
    slots = [draft.kv.slot for draft, _ in part if draft.kv.slot is not None]
    if not slots:
        return {}
    spares: list[int] = []
    for draft, ids in part:
        spares += draft.kv.trail(draft.kv.length, len(ids)) if draft.caught_up else [-1] * len(ids)
    return {"slots": slots, "spares": spares}
