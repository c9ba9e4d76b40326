"""What a step costs by the rows it holds, measured; and how many candidates that makes worth bringing."""
from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from oxillama.engine.pages import KvCachePool, PagedKvCache
from oxillama.errors import PoolError

LEAST_GAIN = 1.03               # tokens per second against a step without candidates; below this none are brought
POINTS = (1, 2, 3, 5, 9, 17)    # rows that are measured at the start
_WEIGHT = 0.1                   # of a new step in the running estimate of its number of rows


class StepCosts:
    """Seconds of a step by rows: points that were measured, straight lines between, the last slope beyond. Steps that run refine it."""

    __slots__ = ("_rows", "_seconds")

    def __init__(self, points: Mapping[int, float]) -> None:
        self._rows = sorted(points)
        self._seconds = [points[rows] for rows in self._rows]

    @classmethod
    def measure(cls, step: Callable[[int], object], most: int) -> StepCosts:
        """Run `step(rows)` once to warm up, then once for each of `POINTS` up to `most` rows."""
        points = {}
        step(1)
        for rows in sorted({min(rows, most) for rows in POINTS}):
            start = time.perf_counter()
            step(rows)
            points[rows] = time.perf_counter() - start
        return cls(points)

    @classmethod
    def assumed(cls, seconds: float) -> StepCosts:
        """What is commonly so where a step of one row takes so long: a tenth more for each further row."""
        return cls({1: seconds, POINTS[-1]: seconds * (1 + 0.1 * (POINTS[-1] - 1))})

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

    def best(self, chances: Sequence[float], *, rows: int = 1, sequences: int = 1, each: float = 0.0) -> int:
        """How many candidates to bring to a step that holds `rows` rows of `sequences` sequences without them, 0 where none pay.

        chances: of each candidate, to be right where those before it are. each: seconds that it costs to draft one.
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


def measure(program: Any, memory: Any, pool: KvCachePool, make: Callable, lock: AbstractContextManager) -> StepCosts | None:
    """The costs of a program's steps over a few pages of the pool, None where it has none to spare. The caller keeps the program to itself."""
    kv, most = PagedKvCache(pool), min(POINTS[-1], program.max_rows)
    with lock:
        try:
            kv.reserve(most)
        except PoolError:
            return None

    def step(rows: int) -> None:
        every = np.arange(rows, dtype=np.int32)
        none = np.zeros(rows, np.int32)
        program.step(make(none, every, (kv.table,), none, every), memory)
    try:
        return StepCosts.measure(step, most)
    finally:
        with lock:
            kv.release()
