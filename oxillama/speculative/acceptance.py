"""How likely candidates are to be accepted, learned from those that were."""

from __future__ import annotations

from collections.abc import Sequence

_MEMORY = 0.95  # weight of earlier verdicts at each new one
_FIRST_REACH = 2  # candidates of a kind without verdicts
_GROWTH = 3  # times as many as were accepted are tried next


class AcceptanceEstimate:
    """The share of candidates of one kind that were accepted, the newest verdicts counting most;
    `first` is assumed before any.

    reach: how many candidates may be run. It starts at two (unless given), grows to three times as
    many as were accepted at once, and falls to one where the first of all are rejected.
    """

    __slots__ = ("judged", "reach", "right")

    def __init__(self, first: float, *, weight: float = 1.0, reach: int = _FIRST_REACH) -> None:
        self.right, self.judged, self.reach = first * weight, weight, reach

    @property
    def chance(self) -> float:
        """Of a candidate to be accepted where those before it are."""
        return self.right / self.judged

    def chances(self, most: int) -> list[float]:
        """Of each candidate that may be run, `most` at most."""
        return [self.chance] * min(most, self.reach)

    def learn(self, came: Sequence[int], candidates: Sequence[int]) -> None:
        """Compare the text with the candidates, up to the first difference."""
        accepted = 0
        for token, candidate in zip(came, candidates):
            self.right = self.right * _MEMORY + (token == candidate)
            self.judged = self.judged * _MEMORY + 1
            if token != candidate:
                break
            accepted += 1
        if accepted:
            self.reach = max(self.reach, _GROWTH * accepted)
        elif came and candidates and self.reach == _FIRST_REACH:
            self.reach = 1
