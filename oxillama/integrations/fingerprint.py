"""Which prompts an engine has evaluated, in a few kilobytes: hashes of the beginnings of what its
prefix cache stores.

    tokens    t0 ........ t15 | t16 ....... t31 | t32 ...
    hash      h1 = H(t0..t15)   h2 = H(h1, t16..t31)   ...         6 bytes each, one a page

A hash stands for all tokens up to its page's end, so the deepest hash of a prompt that an engine
has published is how much of it that engine's cache holds. Of a stored sequence every `STRIDE`th
hash is published and those of its end, so that many sequences fit: what goes on with one finds its
end, what leaves it earlier finds where to `STRIDE` pages. Of one with images, audio or a source,
only what comes before them counts: tokens do not identify their rows.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence, Set
from hashlib import blake2b

from oxillama.api import InferenceEngine
from oxillama.errors import ConfigError

PAGE = 16  # tokens
HASH = 6  # bytes
MOST = 2048  # hashes that are published
STRIDE = 8  # pages
_END = 2  # pages at the end of a sequence
_SAMPLES = 4096  # of an engine's clock


def page_hashes(tokens: Sequence[int]) -> tuple[bytes, ...]:
    """The hash of every beginning of a prompt that ends with a page."""
    out, before = [], b""
    ids = array("i", tokens).tobytes()
    size = PAGE * array("i").itemsize
    for at in range(0, len(ids) - size + 1, size):
        before = blake2b(before + ids[at : at + size], digest_size=HASH).digest()
        out.append(before)
    return tuple(out)


def chosen(pages: Sequence[bytes]) -> list[bytes]:
    """Those of a sequence's hashes that stand for it, the last one first."""
    end = len(pages) - _END
    return [
        pages[at] for at in range(len(pages) - 1, -1, -1) if at >= end or at % STRIDE == STRIDE - 1
    ]


def held(pages: Sequence[bytes], known: Set[bytes]) -> int:
    """How many pages of a prompt lie under known hashes."""
    for at in range(len(pages), 0, -1):
        if pages[at - 1] in known:
            return at
    return 0


def published(data: bytes) -> frozenset[bytes]:
    """The hashes in what a `Publisher` tells."""
    return frozenset(data[at : at + HASH] for at in range(0, len(data), HASH))


class Publisher:
    """Tells, again and again, what an engine's prefix cache holds."""

    def __init__(self, *, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        """most: hashes."""
        self._most, self._clock = most, clock
        # (time, the cache's count of uses then), where it had grown
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    def tell(self, engine: InferenceEngine) -> tuple[bytes, float]:
        """(hashes of what the prefix cache stores, those used last first; seconds: all that was
        used since so long ago is there, infinite where nothing was evicted). No hashes where it
        stores states, which cannot be listed; none and 0.0 where there is no cache.
        """
        core = engine.loaded.core
        cache = core.prefix
        if cache is None:
            return b"", 0.0
        with core.lock:
            uses, forgotten = cache.uses, cache.forgotten
            try:
                stored = cache.sequences()
            except ConfigError:
                stored = []
        out: dict[bytes, None] = {}
        for key, tokens, _ in reversed(stored):
            if key == ():  # of sessions without adapters, whose pages anybody may use
                end = next((at for at, token in enumerate(tokens) if token < 0), len(tokens))
                out.update(dict.fromkeys(chosen(page_hashes(tokens[:end]))))
            if len(out) >= self._most:
                break
        return b"".join(list(out)[: self._most]), self._reach(uses, forgotten)

    def _reach(self, uses: int, forgotten: int) -> float:
        """How long ago the cache was used for the first time after the last use of what it has
        evicted.
        """
        now, samples = self._clock(), self._samples
        if not samples or samples[-1][1] < uses:
            samples.append((now, uses))
        while samples and samples[0][1] < forgotten:
            samples.popleft()
        if not forgotten:
            return math.inf
        return now - samples[0][0] if samples else 0.0
