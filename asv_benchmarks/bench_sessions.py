"""What sessions cost: forks, hits in the prefix tree, and how soon a cancelled prefill stops."""
from __future__ import annotations

import time

from null_tape import NullMemory, null_core, start

from oxillama.engine.pages import KvCachePool, PagedKvCache
from oxillama.engine.prefix import PrefixKvCache


class Fork:
    """Seconds to fork and release a sequence of so many tokens: a count per page, no token copied."""

    params = [1_000, 32_000]
    param_names = ["tokens"]

    def setup(self, tokens: int) -> None:
        self.cache = PagedKvCache(KvCachePool(NullMemory()))
        self.cache.reserve(tokens)
        self.cache.commit(tokens)

    def time_fork(self, tokens: int) -> None:
        self.cache.fork().release()


class PrefixLookup:
    """Seconds to find and share a stored prefix of so many tokens."""

    params = [2_000, 32_000]
    param_names = ["tokens"]

    def setup(self, tokens: int) -> None:
        self.pool = KvCachePool(NullMemory())
        self.tree = PrefixKvCache(self.pool, max_memory_bytes=1 << 40)
        self.tokens = list(range(tokens))
        cache = PagedKvCache(self.pool)
        cache.reserve(tokens)
        cache.commit(tokens)
        self.tree.insert(self.tokens, cache.pages)

    def time_hit(self, tokens: int) -> None:
        for page in self.tree.lookup(self.tokens).pages:
            self.pool.free(page)


class FirstToken:
    """Milliseconds from `submit` to the first token over a null tape: 2,000 prompt tokens, stored or not."""

    params = ["miss", "hit"]
    param_names = ["prefix"]
    unit = "ms"

    def track_first_token(self, prefix: str) -> float:
        prompt, best = list(range(2_000)), float("inf")
        for _ in range(5):
            core = null_core(prefix={})
            if prefix == "hit":
                start(core, prompt, 1).result()
            begin = time.perf_counter()
            start(core, [*prompt, 7], 1).result()
            best = min(best, time.perf_counter() - begin)
            core.close()
        return best * 1e3
