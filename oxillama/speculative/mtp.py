"""Multi-token prediction: the model's own layers that predict the token after the next one
(`nextn_predict_layers`; DeepSeek-AI 2024, DeepSeek-V3, section 2.2) as a drafter. Likewise an
EAGLE-3 draft model (model/eagle.py), for which the target's rows are those that come into three of
its layers.

    target       t0   t1   t2   t3              rows behind its last layer: h0 h1 h2
    predictor         t1   t2   t3   c0   c1    each token with the row before it
                      h0   h1   h2   p3   p4    h: the target's, p: the predictor's own
                                c0   c1   c2    what it draws

The engine's loop gives the target's rows to the drafter as they are computed (`take_carried`). A
predictor is one layer with pages of its own. What it makes of its own rows is dropped and made
again of the target's, once the target has verified the candidates.

It looks at the last `WINDOW` tokens of a prompt, and at what is generated: rows of earlier tokens
would have to be kept, or taken from a cache that has none. Candidates are only proposals, so the
text does not depend on it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from oxillama.engine.allocator import common_prefix
from oxillama.engine.session import Session
from oxillama.model.pooled import RowProgram
from oxillama.sampling import Sampler
from oxillama.speculative.draft_model import ModelDrafter, SavedDraft
from oxillama.speculative.draft_session import DraftAcceptance, DraftState, SessionDraft
from oxillama.speculative.types import DraftRequest

WINDOW = 256  # a prompt's last tokens that a predictor looks at


class CarriedRows:
    """The target's rows at positions `start` to `end` - 1 of a session, the last `2 * WINDOW` at
    most; float32 (rows, columns).
    """

    __slots__ = ("_rows", "end", "start")

    def __init__(self) -> None:
        self.start = self.end = 0
        self._rows: np.ndarray | None = None

    def write(self, first: int, rows: np.ndarray) -> None:
        """The rows of positions from `first` on; those that were there, and later ones, are
        dropped.
        """
        if self._rows is None:
            self._rows = np.empty((2 * WINDOW, rows.shape[1]), np.float32)
        first, rows = first + max(0, len(rows) - WINDOW), rows[-WINDOW:]
        if not self.start <= first <= self.end:
            self.start = self.end = first
        kept = first - self.start
        if kept + len(rows) > len(self._rows):
            keep = min(kept, WINDOW)
            self._rows[:keep] = self._rows[kept - keep : kept].copy()
            self.start, kept = first - keep, keep
        self._rows[kept : kept + len(rows)] = rows
        self.end = first + len(rows)

    def at(self, first: int, count: int) -> np.ndarray:
        """The rows of `count` positions from `first` on."""
        assert self._rows is not None and self.start <= first <= first + count <= self.end
        return self._rows[first - self.start : first - self.start + count]


class PredictorState(DraftState):
    """A predictor's session. Its pages begin with token `base` of the target's; the first `sure` of
    `held` are made of the target's rows. last: the predictor's own row of its last token.
    """

    __slots__ = ("base", "last", "rows", "sure")

    def __init__(
        self, session: Session, sampler: Sampler | None, acceptance: DraftAcceptance
    ) -> None:
        super().__init__(session, sampler, acceptance)
        self.base, self.sure, self.rows = 0, 0, CarriedRows()
        self.last: np.ndarray | None = None


class PredictedDraft(SessionDraft):
    """The candidates of one session while they are drawn; `prefix` are the tokens from
    `state.base` on.
    """

    __slots__ = ()
    state: PredictorState
    # how many tokens a row of the target comes before the token that it is for
    _behind: ClassVar[int] = 1

    def drop_rejected(self) -> None:
        """Drop all that was not made of the target's rows, or of tokens that the session does not
        hold. If rows are missing that come next, begin with the first token that has one.
        """
        state, session = self.state, self.request.session
        self.drop_lost_pages()
        self.prefix = session.tokens[state.base :]
        most = min(state.sure, len(state.held), len(self.prefix) - 1)
        keep = common_prefix(state.held, self.prefix, most) if most > 0 else 0
        begin = max(state.rows.start + self._behind, session.media[-1].end if session.media else 0)
        if not keep or state.base + keep < begin:
            state.base, keep = begin, 0
            self.prefix = session.tokens[begin:]
        del state.held[keep:]
        state.sure = keep
        if keep < self.kv.floor:
            self.kv.truncate(keep)
            self.drop_lost_pages()
        else:
            self.kv.length = keep

    def missing(self, most: int) -> list[int]:
        """The first tokens that the predictor has not run and whose rows are known: the session's,
        then its own candidates.
        """
        known = self.state.rows.end + 1 - self.state.base  # of `prefix`
        at = len(self.state.held)
        if at < len(self.prefix):
            return self.prefix[at : max(at, min(at + most, known))]
        return super().missing(most)

    @property
    def caught_up(self) -> bool:
        """Whether the predictor has run all tokens of the session, of which there are some."""
        return bool(self.prefix) and super().caught_up


class CarriedDrafter(ModelDrafter):
    """Drafts with what reads rows of the target, as they come."""

    carries = WINDOW
    # a few layers, over a few rows
    _catch_up_counts = False

    def _state_of(self, session: Session, drafted: Session) -> PredictorState:
        return PredictorState(drafted, None, self._acceptance)

    def take_carried(self, state: PredictorState, first: int, rows: np.ndarray) -> None:
        """The target's rows of a session's tokens from position `first` on."""
        state.rows.write(first, rows)

    def save(self, session: Session) -> SavedDraft | None:
        """What was learned. Pages could not be continued without the rows behind them: elsewhere
        they begin with rows that come.
        """
        state = self.kept(session)
        return None if state is None else SavedDraft(b"", 0, b"", state.to_dict())


class MtpDrafter(CarriedDrafter):
    """Drafts with the layers of the target that predict further tokens, or with an EAGLE-3 model.
    fusion: makes what such a model reads of the target's rows; only of those that it reads, so that
    others, of rejected candidates and of a text while there are no drafts, cost nothing.
    """

    def __init__(self, *args: Any, fusion: RowProgram | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._fusion = fusion

    def _session_draft(self, request: DraftRequest, count: int) -> PredictedDraft:
        return PredictedDraft(request, count)

    def chance(self, state: PredictorState) -> float:
        """How likely the first candidate is to be accepted."""
        return float(state.acceptance.estimate.chances(1)[0])

    def _inputs(self, part: list[tuple[SessionDraft, list[int]]]) -> dict[str, Any]:
        rows = []
        for draft, ids in part:
            state = draft.state
            assert isinstance(state, PredictorState)
            if len(state.held) < len(draft.prefix):
                first = state.base + len(state.held) - 1
                known = state.rows.at(first, len(ids))
                rows.append(known if self._fusion is None else self._fusion.each(known))
            else:
                assert state.last is not None
                rows.append(state.last)
        return {"embeds": np.concatenate(rows)}

    def _stepped(self, part: list[tuple[SessionDraft, list[int]]], program: Any) -> None:
        for row, (draft, ids) in zip(program.carried(), part):
            state = draft.state
            assert isinstance(state, PredictorState)
            if len(state.held) < len(draft.prefix):
                state.sure = len(state.held) + len(ids)
            state.last = row[None].copy()
