"""Drafters that choose among others: the first that has a draft, or the likelier of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from oxillama.speculative.lookup import LookupDrafter
from oxillama.speculative.mtp import MtpDrafter
from oxillama.speculative.types import Draft, Drafter, DraftRequest, carries


class DrafterChoice:
    """Several drafters as one, whose state is a list of theirs."""

    def __init__(self, *drafters: Drafter) -> None:
        self.drafters = drafters
        self.carries = max(map(carries, drafters))

    def open(self, session: Any) -> list[Any]:
        """What each keeps."""
        return [drafter.open(session) for drafter in self.drafters]

    def take_carried(self, state: list[Any], first: int, rows: np.ndarray) -> None:
        """The target's rows, for those that take them."""
        for drafter, each in zip(self.drafters, state):
            if carries(drafter):
                drafter.take_carried(each, first, rows)  # type: ignore[attr-defined]

    def close(self, state: list[Any], session: Any) -> None:
        """The request has ended."""
        for drafter, each in zip(self.drafters, state):
            drafter.close(each, session)

    def _drafts(
        self, index: int, requests: Sequence[DraftRequest], places: Sequence[int]
    ) -> dict[int, Draft]:
        """What drafter number `index` proposes for the requests at these places, by place."""
        asked = [replace(requests[at], state=requests[at].state[index]) for at in places]
        return dict(zip(places, self.drafters[index].propose(asked))) if asked else {}


class FirstOf(DrafterChoice):
    """The draft of the first of several drafters that has one."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Each drafter is asked for all sessions, so that all learn from the text; one that takes
        the target's rows runs steps of its own, and only for those that have no draft yet.
        """
        out = [Draft()] * len(requests)
        for index, drafter in enumerate(self.drafters):
            runs = carries(drafter) > 0
            places = [at for at, draft in enumerate(out) if not (runs and draft.tokens)]
            for at, draft in self._drafts(index, requests, places).items():
                if not out[at].tokens:
                    out[at] = draft
        return out


class LikelierOf(DrafterChoice):
    """The draft of a lookup where its first candidate is as likely as the predictor's; otherwise
    the predictor's. alone: there is none for a request while others decode.
    """

    def __init__(
        self, lookup: LookupDrafter, predictor: MtpDrafter, *, alone: bool = False
    ) -> None:
        super().__init__(lookup, predictor)
        self._predictor, self.alone = predictor, alone

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """A draft for each request."""
        if self.alone and any(each.sequences > 1 for each in requests):
            return [Draft()] * len(requests)
        out = list(self._drafts(0, requests, range(len(requests))).values())
        unlikely = []
        for at, (draft, request) in enumerate(zip(out, requests)):
            likely = draft.chances[0] if draft.tokens and draft.chances else 0.0
            if likely < self._predictor.chance(request.state[1]):
                unlikely.append(at)
        for at, draft in self._drafts(1, requests, unlikely).items():
            if draft.tokens:
                out[at] = draft
        return out
