"""The interface between drafters and the loop: `DraftRequest` in, `Draft` out.

How a candidate was made decides how it is accepted:

- *found* (looked up, or drawn with the target's own random numbers): the target draws, and the
  candidate is accepted if it equals the token drawn.
- *drawn* from a distribution q of the draft's own sampler: it is accepted with probability
  min(1, p/q); otherwise a draw from max(0, p - q) replaces it (`Sampler.judge`; Leviathan et al.
  2023, algorithm 1). The text then follows the target's distribution, but is a different text than
  without candidates.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from oxillama.arguments import checked_flag, whole
from oxillama.errors import ConfigError
from oxillama.sampling import Distribution
from oxillama.speculative.costs import CostLedger, StepCosts

MAX_CANDIDATES = 16  # of a step, unless a request says otherwise


@dataclass(frozen=True, slots=True)
class Draft:
    """Candidates in order.

    chances: of each, to be accepted where those before it are; candidates beyond the last chance
    are not run. None where the drafter has chosen their number. shares: the distribution that each
    was drawn from, where they were drawn by a sampler of the drafter's own. setup: seconds of the
    call that are spent once, and say nothing of what later calls cost.
    """

    tokens: Sequence[int] = ()
    chances: Sequence[float] | None = None
    shares: Sequence[Distribution] | None = None
    setup: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A session that takes at most `most` candidates (1 or more) in its next step.

    state: what the drafter's `open` returned. costs: seconds of a step by rows, None where every
    candidate offered is run. rows, sequences: of the step without candidates. stop_ids: tokens that
    end the text. masker: advances a fork of the session's grammar. ledger: what candidates of this
    drafter have cost so far.
    """

    session: Any
    state: Any
    most: int
    costs: StepCosts | None = None
    rows: int = 1
    sequences: int = 1
    stop_ids: frozenset[int] = frozenset()
    masker: Any = None
    ledger: CostLedger | None = None

    def worthwhile(self, chances: Sequence[float], *, each: float = 0.0, once: float = 0.0) -> int:
        """How many candidates of these chances to run: as many as give the most tokens per second,
        0 where none pay, and now and then one that does not, to measure again.

        each: seconds that drafting a candidate takes; once: that drafting any takes.
        """
        chances = chances[: self.most]
        if self.costs is None or not chances:
            return len(chances)
        best = self.costs.best(
            chances, rows=self.rows, sequences=self.sequences, each=each, once=once
        )
        if best or self.ledger is None:
            return best
        plain = self.costs(self.sequences)
        loss = self.costs(self.rows + 1) + each + once - plain
        loss -= chances[0] * plain / self.sequences
        return int(self.ledger.affords(loss, plain))


@runtime_checkable
class Drafter(Protocol):
    """Proposes candidates.

    A drafter in Python runs in a thread outside the engine's loop, one call at a time. The requests
    that it drafts for wait for it, all others continue, and a request can be cancelled while it
    runs.
    """

    def open(self, session: Any) -> Any:
        """What the drafter keeps for a session while a request runs on it."""

    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """A draft for each request, empty where there is none."""

    def close(self, state: Any, session: Any) -> None:
        """The request has ended."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """How a request speculates.

    drafter: proposes the candidates. most: candidates of a step. adaptive: run only as many as pay.
    asked: whether the caller asked for speculation; then the completion shows the counts. owner: an
    object kept alive while the request runs. drawn: the drafter draws with a sampler of its own
    (`Draft.shares`); the text then depends on the number of candidates, so measured times do not
    decide it. alone: there are none while other requests decode.
    """

    drafter: Drafter
    most: int = MAX_CANDIDATES
    adaptive: bool = True
    asked: bool = True
    owner: Any = None
    drawn: bool = False
    alone: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "most", whole("num_speculative", self.most, 1))
        if not callable(getattr(self.drafter, "propose", None)):
            raise ConfigError(
                f"drafter: found {type(self.drafter).__name__}, wanted a drafter (open, propose, "
                "close)"
            )
        try:  # what is learnt of it is kept as long as it is, and no longer
            weakref.ref(self.drafter)
        except TypeError:
            raise ConfigError(
                f"drafter: found a {type(self.drafter).__name__} without weak references, wanted "
                "one with '__weakref__' among its __slots__ (weakref_slot=True of a dataclass)"
            ) from None
        for name in ("adaptive", "asked", "drawn", "alone"):
            checked_flag(name, getattr(self, name))


def carries(drafter: Any) -> int:
    """How many of a prompt's last rows behind the target's last layer a drafter takes, besides all
    that come later; 0: none. `take_carried(state, first, rows)` gets those of the session's tokens
    from position `first` on, after each step.
    """
    return int(getattr(drafter, "carries", 0))


class NoCandidates:
    """A drafter without candidates: one token a step, and every step counted."""

    def open(self, session: Any) -> None:
        """Nothing is kept."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Nothing."""
        return [Draft()] * len(requests)

    def close(self, state: None, session: Any) -> None:
        """Nothing was kept."""
