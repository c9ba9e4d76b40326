"""A DFlash model (model/dflash.py) as a drafter: one step of it draws a whole block of candidates.

    target       t0 ... tn-1 | tn                rows that come into some of its layers: h0 ... hn-1
    context      h0 ... hn-1 --> keys, values    in pages of the draft's own, for good
    block                      tn  m   m   m     m: a mask; sees the context and the block
                               --  c0  c1  c2    what is drawn, each with a bias by the one
                                                 before it where the draft has that (DSpark)

The block is behind the context in the pages, and is written over by the next rows of the target.
It has the rows that the draft was trained with, however many candidates are drawn. As with
multi-token prediction the context begins with the last tokens of a prompt.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from oxillama.errors import PoolError
from oxillama.model.drafts import BlockParts
from oxillama.model.pooled import RowProgram
from oxillama.speculative.draft_model import CATCH_UP
from oxillama.speculative.draft_session import SessionDraft
from oxillama.speculative.mtp import CarriedDrafter, PredictedDraft, PredictorState
from oxillama.speculative.types import DraftRequest


class BlockDraft(PredictedDraft):
    """The candidates of one session while they are drawn; `held` are the tokens of the context."""

    __slots__ = ()
    _behind: ClassVar[int] = 0

    def missing(self, most: int) -> list[int]:
        """The first tokens that the context lacks and whose rows are known: not the last one."""
        state = self.state
        at, end = len(state.held), min(state.rows.end - state.base, len(self.prefix) - 1)
        return self.prefix[at : max(at, min(at + most, end))]

    @property
    def caught_up(self) -> bool:
        """Whether the context is all tokens before the last one, of which there are some."""
        return 0 < len(self.state.held) == len(self.prefix) - 1


class _Filled(NamedTuple):
    """The rows of a block that predict candidates: logits float32 (candidates, outputs), and what a
    selector reads of them.
    """

    logits: np.ndarray
    carried: np.ndarray


class BlockDrafter(CarriedDrafter):
    """Drafts with a DFlash model. fusion: what that has besides its program."""

    _whole = True

    def __init__(self, *args: Any, fusion: BlockParts, **more: Any) -> None:
        super().__init__(*args, **more)
        self._block, self._context, self._bias = fusion.block, fusion.context, fusion.bias
        self._selector = fusion.selector

    def _session_draft(self, request: DraftRequest, count: int) -> BlockDraft:
        return BlockDraft(request, count)

    def _count(self, request: DraftRequest) -> int:
        return super()._count(replace(request, most=min(request.most, self._block.most)))

    def draft(self, drafts: list[SessionDraft]) -> float:
        """Add to the context of each session, then draw its candidates; returns the seconds for the
        context where that is much.
        """
        started = time.perf_counter()
        for draft in drafts:
            draft.drop_rejected()
        most = min(CATCH_UP, self.core.program.max_rows)
        work = [(draft, draft.missing(most)) for draft in drafts]
        self.run(work)
        few = all(len(ids) <= self._block.rows for _, ids in work)
        caught_up = 0.0 if few else time.perf_counter() - started
        ready = [draft for draft in drafts if draft.caught_up and self._room(draft)]
        at_once = self.core.program.max_rows // self._block.rows
        for start in range(0, len(ready), at_once):
            part = ready[start : start + at_once]
            self._draw(part, self._run_blocks(part))
        if ready and (not self._round or few):
            self._learn_round(time.perf_counter() - started - caught_up)
        return caught_up

    def _draw(self, drafts: list[SessionDraft], blocks: list[_Filled]) -> None:
        """Candidates of drafts, from the block of each."""
        going, at = list(zip(drafts, blocks)), 0
        while going:
            logits = [block.logits[at] for _, block in going]
            before = [draft.tokens[-1] if at else draft.prefix[-1] for draft, _ in going]
            if self._bias is not None:
                logits = list(map(self._biased, logits, self._of_tokens(self._bias, before)))
            rows = list(map(self._row, logits))
            if self._selector is not None:
                beside = [block.carried[at] for _, block in going]
                rows = list(
                    map(self._chosen, rows, self._of_tokens(self._selector.before, before) * beside)
                )
            drawn = [draft.draw(row) for (draft, _), row in zip(going, rows)]
            going, at = [one for one, more in zip(going, drawn) if more], at + 1

    def _of_tokens(self, made: RowProgram, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """What a part of the draft makes of each token."""
        with self.core.step_lock:
            self.core.check()
            return made.tokens(tokens)

    def _chosen(self, row: np.ndarray, before: np.ndarray) -> np.ndarray:
        """The scores of the likeliest tokens of a row, -inf for others; before: the selector's row
        of the token before times that of the block's row.
        """
        assert self._selector is not None
        likely = np.sort(np.argpartition(-row, self._selector.most - 1)[: self._selector.most])
        out = np.full_like(row, -np.inf)
        out[likely] = row[likely] + self._of_tokens(self._selector.after, likely) @ before
        return out

    def _biased(self, logits: np.ndarray, bias: np.ndarray) -> np.ndarray:
        if len(logits) < len(bias):
            assert self._shortlist is not None
            bias = bias[self._shortlist.ids]
        return logits + bias

    def _room(self, draft: SessionDraft) -> bool:
        """Whether there are pages for a block."""
        with self.core.lock:
            self.core.check()
            try:
                draft.kv.reserve(draft.kv.length + self._block.rows)
            except PoolError:
                return False
            return True

    def _step(self, part: list[tuple[SessionDraft, list[int]]]) -> np.ndarray:
        """Keep keys and values of tokens' rows; nothing comes out."""
        counts, states = [len(ids) for _, ids in part], [draft.state for draft, _ in part]
        rows = [
            state.rows.at(state.base + len(state.held), count)
            for state, count in zip(states, counts)
            if isinstance(state, PredictorState)
        ]
        positions = [
            np.arange(draft.kv.length, draft.kv.length + count, dtype=np.int32)
            for (draft, _), count in zip(part, counts)
        ]
        self.forwarded += sum(counts)
        core = self.core
        with core.step_lock:
            core.check()
            batch = core.make_batch(
                np.full(sum(counts), -1, np.int32),
                np.concatenate(positions),
                [draft.kv.table for draft, _ in part],
                np.repeat(np.arange(len(part), dtype=np.int32), counts),
                [],
                embeds=np.concatenate(rows),
            )
            self._context.step(batch, core.memory, output="hidden")
        for state, count in zip(states, counts):
            assert isinstance(state, PredictorState)
            state.sure = len(state.held) + count
        return np.zeros((len(part), 0), np.float32)

    def _run_blocks(self, drafts: list[SessionDraft]) -> list[_Filled]:
        """The block of each draft, filled in."""
        block, core, short = self._block, self.core, self._shortlist
        places = [draft.kv.length for draft in drafts]
        # no row of a causal block sees what is behind it
        counts = [block.first + draft.count if block.causal else block.rows for draft in drafts]
        starts = np.cumsum([0, *counts])
        tokens = np.full(starts[-1], block.mask, np.int32)
        tokens[starts[:-1]] = [draft.prefix[-1] for draft in drafts]
        wanted = [
            np.arange(start + block.first, start + block.first + draft.count, dtype=np.int32)
            for start, draft in zip(starts, drafts)
        ]
        self.forwarded += len(tokens)
        seen = np.repeat(np.array(places, np.int32) + np.array(counts, np.int32), counts)
        with core.step_lock:
            core.check()
            program = core.program
            if short is not None and short.program is not None:
                program = short.program
            batch = core.make_batch(
                tokens,
                np.concatenate(
                    [np.arange(at, at + n, dtype=np.int32) for at, n in zip(places, counts)]
                ),
                [draft.kv.table for draft in drafts],
                np.repeat(np.arange(len(drafts), dtype=np.int32), counts),
                np.concatenate(wanted),
                visible=None if block.causal else seen,
            )
            logits = program.step(batch, core.memory).copy()
            carried = program.carried().copy() if program.carries else logits[:, :0]
        ends = np.cumsum([draft.count for draft in drafts])[:-1]
        return list(map(_Filled, np.split(logits, ends), np.split(carried, ends)))
