"""A Gemma 4 assistant (model/assistant.py) as a drafter. It keeps nothing: its steps read the pages
of the target's session.

    target       t0 ... tn-1 | tn         pages hold n tokens; h: the row of tn-1
    step 1       tn, h    -->  c0, h'     each step at the place of tn
    step 2       c0, h'   -->  c1, h''

The loop asks for candidates between two steps of the target, so nothing writes to those pages then;
the target's lock of steps is held, as by any step over its memory. A draft looks at no key that the
row of tn does not look at, so a running request holds the near parts of all pages that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from oxillama.engine.session import Session
from oxillama.model.pooled import RowProgram
from oxillama.sampling import Sampler
from oxillama.speculative.draft_model import ModelDrafter
from oxillama.speculative.draft_session import DraftAcceptance, DraftState, SessionDraft
from oxillama.speculative.mtp import CarriedRows
from oxillama.speculative.types import DraftRequest


class AssistantState(DraftState):
    """What is kept of a session while a request runs on it: the target's last rows."""

    __slots__ = ("rows",)

    def __init__(
        self, session: Session, sampler: Sampler | None, acceptance: DraftAcceptance
    ) -> None:
        super().__init__(session, sampler, acceptance)
        self.rows = CarriedRows()


class AssistantDraft(SessionDraft):
    """The candidates of one session while they are drawn. row: what the next step begins with
    besides the last token; None where it is unknown, or other tokens are still to be evaluated.
    """

    __slots__ = ("row",)
    state: AssistantState

    def __init__(self, request: DraftRequest, count: int, fusion: RowProgram) -> None:
        super().__init__(request, count)
        done, rows = self.kv.length, self.state.rows
        known = done == len(self.prefix) - 1 and rows.start < done <= rows.end
        self.row = fusion.each(rows.at(done - 1, 1)) if known else None

    def drop_rejected(self) -> None:
        """The pages are those of the session alone."""

    def missing(self, most: int) -> list[int]:
        """The token that the next step begins with."""
        return [self.tokens[-1] if self.tokens else self.prefix[-1]] if self.caught_up else []

    @property
    def caught_up(self) -> bool:
        """Whether there can be candidates."""
        return self.row is not None


class AssistantDrafter(ModelDrafter):
    """Drafts with a Gemma 4 assistant. fusion: makes what it reads of the target's rows. The core
    is that of its program, and holds pages of no session.
    """

    carries = 1

    def __init__(self, *args: Any, fusion: RowProgram, **more: Any) -> None:
        super().__init__(*args, **more)
        self._fusion = fusion

    def open(self, session: Session) -> AssistantState:
        """Nothing is known of the session yet."""
        return self._state_of(session, session)

    def close(self, state: DraftState, session: Session) -> None:
        """Nothing is kept."""

    def take_carried(self, state: AssistantState, first: int, rows: np.ndarray) -> None:
        """The target's rows of a session's tokens from position `first` on."""
        state.rows.write(first, rows)

    @contextmanager
    def reserved(self, drafts: Sequence[SessionDraft]) -> Iterator[None]:
        """A running request's pages are not taken while it waits for candidates."""
        yield

    def run(self, work: list[tuple[SessionDraft, list[int]]]) -> list[np.ndarray | None]:
        """One row of each draft that has a token; the logits of it."""
        out: list[np.ndarray | None] = [None] * len(work)
        places = [at for at, (_, ids) in enumerate(work) if ids]
        most = self.core.program.max_rows
        for start in range(0, len(places), most):
            part = places[start : start + most]
            for at, row in zip(part, self._step([work[at] for at in part])):
                out[at] = row
        return out

    def _state_of(self, session: Session, drafted: Session) -> AssistantState:
        return AssistantState(drafted, None, self._acceptance)

    def _session_draft(self, request: DraftRequest, count: int) -> AssistantDraft:
        return AssistantDraft(request, count, self._fusion)

    def _step(self, part: list[tuple[SessionDraft, list[int]]]) -> np.ndarray:
        """Logits (drafts, outputs) of a row of each, at the place of its session's last token."""
        target = part[0][0].request.session.owner
        number = np.arange(len(part), dtype=np.int32)
        tokens = np.array([ids[0] for _, ids in part], np.int32)
        drafts = [draft for draft, _ in part if isinstance(draft, AssistantDraft)]
        ends = np.array([draft.kv.length for draft in drafts], np.int32)
        self.forwarded += len(part)
        with self.core.step_lock, target.step_lock:
            target.check()  # closed meanwhile, its sessions have no pages
            program, short = self.core.program, self._shortlist
            if short is not None and short.program is not None:
                program = short.program
            batch = target.make_batch(
                tokens,
                ends - 1,  # the last key that a row sees
                [draft.kv.table for draft in drafts],
                number,
                number,
                embeds=np.concatenate([draft.row for draft in drafts]),
                rope=ends,
            )
            logits = program.step(batch, target.memory).copy()
            for draft, row in zip(drafts, program.carried()):
                draft.row = row[None].copy()
        return logits
