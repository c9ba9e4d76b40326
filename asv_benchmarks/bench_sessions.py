"""What sessions cost: forks, hits in the prefix tree, and how soon a cancelled prefill stops."""
from __future__ import annotations

import time

from null_tape import NullMemory, null_core, start

import oxillama
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


class Served:
    """The embedded model through the engine: tokens/s of so many requests at once, 32 tokens in and 64 out each."""

    params = [1, 4, 16, 32]
    param_names = ["sessions"]
    unit = "tokens/s"

    def track_throughput(self, sessions: int) -> float:
        config = oxillama.SchedulerConfig(max_batch_sequences=32)
        sampler = oxillama.SamplerConfig.greedy(ignore_eos=True)
        best = 0.0
        with oxillama.load(scheduler=config, prefix_cache=False) as engine:
            prompts = [[(7 * i + j) % engine.config.vocab_size for i in range(32)] for j in range(sessions)]
            for _ in range(3):
                begin = time.perf_counter()
                done = engine.generate(prompts, max_tokens=64, sampler=sampler)
                best = max(best, sum(len(each.tokens) for each in done) / (time.perf_counter() - begin))
        return best


class ServedFirstToken:
    """Milliseconds to the first token of the embedded model: a prompt of 900 tokens, stored or not."""

    params = ["miss", "hit"]
    param_names = ["prefix"]
    unit = "ms"

    def track_first_token(self, prefix: str) -> float:
        best = float("inf")
        with oxillama.load() as engine:
            prompt = [(7 * i) % engine.config.vocab_size for i in range(900)]
            for _ in range(5):
                if prefix == "miss":
                    engine.clear_cache()
                else:
                    engine.generate(prompt, max_tokens=1)
                begin = time.perf_counter()
                next(engine.stream([*prompt, 5], max_tokens=1, sampler=oxillama.SamplerConfig.greedy()))
                best = min(best, time.perf_counter() - begin)
        return best * 1e3


class CancelLatency:
    """Milliseconds from `close()` of a stream in its prefill to the engine being done with it."""

    unit = "ms"

    def track_cancel(self) -> float:
        worst = 0.0
        with oxillama.load(prefix_cache=False) as engine:
            prompt = [(7 * i) % engine.config.vocab_size for i in range(1000)]
            for _ in range(5):
                stream = engine.stream(prompt, max_tokens=10)
                time.sleep(0.01)
                begin = time.perf_counter()
                stream.close()
                stream.request.wait()
                worst = max(worst, time.perf_counter() - begin)
        return worst * 1e3
