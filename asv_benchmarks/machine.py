"""What this machine can do in this minute: the fastest of many calls, and plain reads of memory."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

STREAM = 192 << 20  # bytes that no cache keeps


def best(call, seconds: float = 0.4) -> float:
    """Seconds of the fastest of as many calls as fit."""
    least, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least


def read_bandwidth(threads: int, seconds: float = 0.4) -> float:
    """GB/s that `threads` readers of plain memory reach now."""
    parts = np.array_split(np.ones(STREAM // 4, np.float32), threads)
    with ThreadPoolExecutor(threads) as pool:
        return (
            sum(p.nbytes for p in parts)
            / best(lambda: list(pool.map(np.max, parts)), seconds)
            / 1e9
        )
