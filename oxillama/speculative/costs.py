"""What steps cost by their rows, how many candidates are worth running, and what speculation has
cost compared with decoding without it.

No step is run only to measure: the steps of the text are timed, with planning and drawing. Steps
without candidates show what a plain step takes; the first steps with candidates show what
additional rows cost.
"""

from __future__ import annotations

from math import ceil

from oxillama._core.lookup import StepCosts

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

    def enter(self, extra: float, plain: float, *, candidates: bool, steps: int = 1) -> int:
        """Add a step that took `extra` seconds more than the plain steps that it replaced, of
        `plain` seconds each; returns the number of steps to rest. steps: this one and those since
        the last one that was added.
        """
        self.plain_steps = 0 if candidates else self.plain_steps + 1
        self.debt = max(self.debt + extra - self._RATE * plain * steps, -self._CREDIT * plain)
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
