"""What a step costs by the rows it holds, measured; and how many candidates that makes worth
bringing.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from oxillama.errors import PoolError

# tokens per second against a step without candidates; below this none are brought
LEAST_GAIN = 1.03
POINTS = (1, 2, 3, 5, 9, 17)  # rows that are measured, as far as somebody may use them
_WEIGHT = 0.1  # of a new step in the running estimate of its number of rows


class StepCosts:
    """Seconds of a step by rows: points that were measured, straight lines between, the last slope
    beyond. Steps that run refine it.

    measured: rows up to which the points were measured, 0 where they are assumed.
    """

    __slots__ = ("_rows", "_seconds", "measured")

    def __init__(self, points: Mapping[int, float]) -> None:
        self._rows = sorted(points)
        self._seconds = [points[rows] for rows in self._rows]
        self.measured = self._rows[-1]

    @classmethod
    def measure(
        cls, step: Callable[[int], object], most: int, *, known: StepCosts | None = None
    ) -> StepCosts:
        """Run `step(rows)` once to warm up, then once for each of `POINTS` up to `most` rows that
        is not known yet, the last being `most`.
        """
        before = 0 if known is None else known.measured
        points = (
            {rows: seconds for rows, seconds in zip(known._rows, known._seconds) if rows <= before}
            if before
            else {}
        )
        step(1)
        for rows in sorted({min(rows, most) for rows in POINTS}):
            if rows > before:
                start = time.perf_counter()
                step(rows)
                points[rows] = time.perf_counter() - start
        return cls(points)

    @classmethod
    def assumed(cls, seconds: float) -> StepCosts:
        """What is commonly so where a step of one row takes so long: a tenth more for each further
        row.
        """
        made = cls({1: seconds, POINTS[-1]: seconds * (1 + 0.1 * (POINTS[-1] - 1))})
        made.measured = 0
        return made

    def __call__(self, rows: int) -> float:
        """Seconds that a step of so many rows takes."""
        known, seconds = self._rows, self._seconds
        at = bisect_left(known, rows)
        if at < len(known) and known[at] == rows:
            return seconds[at]
        if len(known) == 1:
            return seconds[0]
        at = min(max(at, 1), len(known) - 1)
        slope = (seconds[at] - seconds[at - 1]) / (known[at] - known[at - 1])
        return max(seconds[at - 1] + slope * (rows - known[at - 1]), seconds[0])

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step that ran; one that was held up counts as twice its estimate at most."""
        if rows > 2 * POINTS[-1]:
            return
        estimate = self(rows)
        seconds = min(seconds, 2 * estimate)
        at = bisect_left(self._rows, rows)
        if at < len(self._rows) and self._rows[at] == rows:
            self._seconds[at] += _WEIGHT * (seconds - estimate)
        else:
            self._rows.insert(at, rows)
            self._seconds.insert(at, estimate + _WEIGHT * (seconds - estimate))

    def best(
        self, chances: Sequence[float], *, rows: int = 1, sequences: int = 1, each: float = 0.0
    ) -> int:
        """How many candidates to bring to a step that holds `rows` rows of `sequences` sequences
        without them, 0 where none pay.

        chances: of each candidate, to be right where those before it are. each: seconds that it
        costs to draft one.
        """
        tokens = float(sequences)
        plain = tokens / self(rows)
        best, count, chance = LEAST_GAIN * plain, 0, 1.0
        for at, right in enumerate(chances, 1):
            chance *= right
            tokens += chance
            rate = tokens / (self(rows + at) + each * at)
            if rate > best:
                best, count = rate, at
        return count


def measured(core: Any, most: int, known: StepCosts | None = None) -> StepCosts | None:
    """The costs of an engine's steps of up to `most` rows: `known` where it goes so far, else
    measured over a few pages of the pool.

    `known` too where the pool has none to spare. What is measured for the second time goes up to
    the next of `POINTS`: rows that come one by one are not measured one by one.
    """
    before = 0 if known is None else known.measured
    if before:
        most = next((rows for rows in POINTS if rows >= most), POINTS[-1])
    most = min(most, POINTS[-1], core.program.max_rows)
    if most <= before:
        return known
    # one that is kept, so that its pages are known to be somebody's, and busy: nobody takes them
    session = core.new_session()
    kv = session.kv

    def step(rows: int) -> None:
        every = np.arange(rows, dtype=np.int32)
        none = np.zeros(rows, np.int32)
        core.program.step(core.make_batch(none, every, (kv.table,), none, every), core.memory)

    with core.step_lock:
        try:
            with core.lock:
                session.busy = True
                core.keep(session)
                kv.reserve(most)
            return StepCosts.measure(step, most, known=known)
        except PoolError:
            return known
        finally:
            with core.lock:
                session.busy = False
                core.drop(session)
