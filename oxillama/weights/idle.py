"""Tells background threads when a model is idle."""

from __future__ import annotations

import time
import weakref
from typing import Protocol


class StepActivity(Protocol):
    """Shows whether a model is working: how many steps it has begun, and whether one is running."""

    @property
    def steps(self) -> int: ...

    @property
    def busy(self) -> bool: ...


class IdleWatch:
    """Whether a program has run no step for some seconds. It does not keep the program alive; a
    program that was freed is idle.
    """

    __slots__ = ("_program", "_seen", "_since")

    def __init__(self, program: StepActivity) -> None:
        self._program = weakref.ref(program)
        self._seen, self._since = -1, time.monotonic()

    @property
    def steps(self) -> int:
        """Steps that it has begun; 0 for a program that was freed."""
        program = self._program()
        return 0 if program is None else program.steps

    def working(self) -> bool:
        """Whether a step is running, or has run since `idle` was last called."""
        program = self._program()
        return program is not None and (program.busy or program.steps != self._seen)

    def idle(self, seconds: float) -> bool:
        """Whether no step has run for this many seconds."""
        program = self._program()
        if program is None:
            return True
        if program.busy or program.steps != self._seen:
            self._seen, self._since = program.steps, time.monotonic()
        return time.monotonic() - self._since >= seconds
