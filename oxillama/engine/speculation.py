"""Speculation as the engine sees it: the candidates of a request's next step
(`RequestCandidates`), and what proposes them for all requests (`Speculator`).
`oxillama.speculative` implements these types; the engine does not import it.

    session   t0 t1 ... tn-1
    draft                    c0 c1 c2

    a step    rows      tn-1    c0      c1      c2
              drawn     x0      x1      x2      x3      x1 only if c0 = x0, x2 only if c1 = x1, ...

The loop runs candidates as rows of the same step. It then draws row by row with the session's own
sampler and grammar, as if each row had a step of its own, until a draw differs from its candidate.
Rows do not depend on each other, so the tokens are those of plain decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from oxillama.completion import SpecStats
from oxillama.sampling import Sampler

# Takes a request out of the schedule until the function it returns is called with (value, error),
# from any thread; then the loop calls `then(value)`, or ends the request with the error.
Parking = Callable[[Any, Callable[[Any], None]], Callable[[Any, BaseException | None], None]]


class RequestCandidates(Protocol):
    """The candidates of one request.

    rest: the number of steps in which the loop must not ask for any; the loop counts it down.
    judges: whether its `draw` and `token_forced` are called: candidates may have been drawn from
    distributions of their own.
    drawn: whether they were: the text then depends on which steps have candidates. Such a request
    begins with a step, as one whose pages were taken does, though its session has logits.
    """

    rest: int
    judges: bool

    @property
    def drawn(self) -> bool: ...

    @property
    def reported(self) -> bool:
        """Whether the completion shows the counts."""

    def wants(self, request: Any, sequences: int) -> bool:
        """Called after each token: whether the engine's `Speculator` has to propose candidates for
        the next step. Candidates that are at hand are put into the request's entry here.

        sequences: how many decode now.
        """

    def carried(self, sequences: int) -> int:
        """How many of a prompt's last rows it takes (`take_carried`), besides all of later steps,
        while this many sequences decode; 0: it takes none of any step.
        """

    def take_carried(self, first: int, rows: np.ndarray) -> None:
        """The rows of a step behind the model's last layer, of the session's tokens from position
        `first` on.
        """

    def draw(self, sampler: Sampler, row: np.ndarray, mask: np.ndarray | None) -> int:
        """The next token of the text, from its logits."""

    def token_forced(self, token: int) -> None:
        """A token was added without a draw, because its grammar forced it."""

    def verified(self, *, accepted: int, rejected: int, bonus: bool, over: bool = False) -> None:
        """The outcome of a step's candidates; over: the text has ended with it."""

    def close(self, output: int) -> None:
        """The request has ended after this many tokens."""

    def stats(self) -> SpecStats:
        """The current counts."""


class Speculator(Protocol):
    """Proposes candidates for the requests of one engine; see `EngineCore.speculator`."""

    def begin(self, asked: Any, masker: Any, session: Any) -> RequestCandidates | None:
        """The candidates for an option `speculative`, None for none; masker: the grammar's
        vocabulary, None without one.
        """

    def propose(
        self,
        requests: Iterable[Any],
        *,
        sequences: int,
        prefilled: int,
        parking: Parking,
    ) -> list[tuple[Any, BaseException]]:
        """Give each request the candidates of its next step; returns (request, error) for each
        drafter that failed.

        sequences: how many decode now. prefilled: prompt rows evaluated so far.
        """

    def record(self, sequences: int, rows: int, seconds: float) -> None:
        """A step that only decoded took this long, with planning before it and draws after it;
        sequences: of its rows, those that were no candidates.
        """

    def resolve(self, asked: Any) -> Any:
        """The value of an option `speculative`, with draft models opened; ConfigError for an
        invalid value.
        """

    def cores(self) -> Sequence[Any]:
        """The engine cores of draft models."""

    def close(self) -> None:
        """Close what was opened for this engine."""
