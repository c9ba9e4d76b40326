"""What steps cost by their rows, how many candidates are worth running, and what speculation has
cost compared with decoding without it.

No step is run only to measure: the steps of the text are timed, with everything between them
(drafting, planning, drawing). Steps without candidates show what a plain step takes; the first
steps with candidates show what additional rows cost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import ceil

# tokens per second against a step without candidates; below this none are run
LEAST_GAIN = 1.03
ASSUMED_SLOPE = 0.1  # of a plain step, for each further row, before one was measured
_WEIGHT = 0.1  # of a new measurement, once there are several
_MOST_ROWS = 64  # of a step that is learned from


class StepCosts:
    """Seconds of a step by rows: measured points, straight lines between, the last slope beyond;
    with one point, `ASSUMED_SLOPE`.
    """

    __slots__ = ("_counts", "_rows", "_seconds")

    def __init__(self, points: Mapping[int, float]) -> None:
        self._rows = sorted(points)
        self._seconds = [points[rows] for rows in self._rows]
        self._counts = [1] * len(self._rows)

    def __call__(self, rows: int) -> float:
        """Seconds of a step with this many rows."""
        known, seconds = self._rows, self._seconds
        at = bisect_left(known, rows)
        if at < len(known) and known[at] == rows:
            return seconds[at]
        if len(known) == 1:
            return seconds[0] * max(1 + ASSUMED_SLOPE * (rows - known[0]), 0.5)
        at = min(max(at, 1), len(known) - 1)
        slope = (seconds[at] - seconds[at - 1]) / (known[at] - known[at - 1])
        return max(seconds[at - 1] + slope * (rows - known[at - 1]), seconds[0])

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step. The first one with its number of rows counts fully, later ones less
        and less; a delayed one counts as at most four times its estimate, later twice.
        """
        if rows > _MOST_ROWS:
            return
        estimate = self(rows)
        at = bisect_left(self._rows, rows)
        if at == len(self._rows) or self._rows[at] != rows:
            self._rows.insert(at, rows)
            self._seconds.insert(at, min(seconds, 4 * estimate))
            self._counts.insert(at, 1)
            return
        self._counts[at] += 1
        weight = max(_WEIGHT, 1 / self._counts[at])
        self._seconds[at] += weight * (min(seconds, 2 * estimate) - estimate)

    def scale(self, rows: int, seconds: float) -> None:
        """Learn from a plain step with this many rows: all estimates change in its proportion, as
        they do on a machine that becomes busier or with a text that becomes longer.
        """
        if rows not in self._rows:
            self.observe(rows, seconds)
            return
        estimate = self(rows)
        factor = 1 + _WEIGHT * (min(max(seconds / estimate, 0.5), 2.0) - 1)
        self._seconds = [each * factor for each in self._seconds]

    def best(
        self, chances: Sequence[float], *, rows: int = 1, sequences: int = 1, each: float = 0.0
    ) -> int:
        """How many candidates to add to a step that holds `rows` rows of `sequences` sequences
        without them, 0 where none pay.

        chances: of each candidate, to be accepted where those before it are. each: seconds that
        drafting one takes.
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


# a target's step by rows, where the clock must not decide
NOMINAL = StepCosts({1: 1.0, 17: 2.6})


class CostLedger:
    """The cost of speculation with one drafter, in seconds, compared with decoding without it.

    `debt` grows with every step that took longer than the plain steps it replaced, and falls with
    every one that took less, down to a credit of `_CREDIT` steps. Each plain step pays back `_RATE`
    of its time. Above `_GRACE` steps of debt the drafter rests until the debt is paid back, so the
    cost of falling back is bounded by `_RATE`, whatever the drafter does.
    """

    __slots__ = ("_drafting", "debt", "plain_steps", "rest")

    _RATE = 0.005
    _GRACE = 1.0
    _CREDIT = 8.0
    _LONGEST = 1 << 20

    def __init__(self) -> None:
        self.debt = 0.0
        self.plain_steps = 0  # since candidates were last run
        self.rest = 0  # steps that the next request rests first
        self._drafting = 0.0  # seconds that the drafter usually takes

    def drafting(self, seconds: float, plain: float) -> float:
        """The time to count for a call of the drafter: at most twice the typical one, because a
        thread may be delayed while it drafts.
        """
        seconds = min(seconds, 2 * self._drafting or 4 * plain)
        self._drafting += (seconds - self._drafting) * (0.2 if self._drafting else 1.0)
        return seconds

    def enter(self, extra: float, plain: float, *, candidates: bool) -> int:
        """Add a step that took `extra` seconds more than the plain steps that it replaced, of
        `plain` seconds each; returns the number of steps to rest.
        """
        self.plain_steps = 0 if candidates else self.plain_steps + 1
        self.debt = max(self.debt + extra - self._RATE * plain, -self._CREDIT * plain)
        over = self.debt - self._GRACE * plain
        if over <= 0:
            return 0
        self.debt = self._GRACE * plain
        steps = min(ceil(over / (self._RATE * plain)), self._LONGEST)
        self.plain_steps += steps
        return steps

    def affords(self, loss: float, plain: float) -> bool:
        """Whether the plain steps since the last candidates allow a trial that will probably lose
        this many seconds.
        """
        return self.plain_steps * self._RATE * plain >= loss
