"""What sessions cost: forks, hits in the prefix tree, a system prompt that many share, beams, and
how soon a cancelled prefill stops.
"""

from __future__ import annotations

import time

from null_tape import NullMemory, null_core, start

import oxillama
from oxillama.engine.memory.pages import KvCachePool, PagedKvCache
from oxillama.engine.memory.prefix import PrefixKvCache


class Fork:
    """Seconds to fork and release a sequence of so many tokens: a count per page, no token
    copied.
    """

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
        self.pool.free_all(self.tree.lookup(self.tokens).pages)


class FirstToken:
    """Milliseconds from `submit` to the first token over a null tape: 2,000 prompt tokens, stored
    or not.
    """

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
    """The embedded model through the engine: tokens/s of so many requests at once, 32 tokens in and
    64 out each.
    """

    params = [1, 4, 16, 32]
    param_names = ["sessions"]
    unit = "tokens/s"

    def track_throughput(self, sessions: int) -> float:
        config = oxillama.SchedulerConfig(max_batch_sequences=32)
        sampler = oxillama.SamplerConfig.greedy(ignore_eos=True)
        best = 0.0
        with oxillama.load(scheduler=config, prefix_cache=False) as engine:
            prompts = [
                [(7 * i + j) % engine.config.vocab_size for i in range(32)] for j in range(sessions)
            ]
            for _ in range(3):
                begin = time.perf_counter()
                done = engine.generate(prompts, max_tokens=64, sampler=sampler)
                best = max(
                    best, sum(len(each.tokens) for each in done) / (time.perf_counter() - begin)
                )
        return best


class ServedFirstToken:
    """Milliseconds to the first token of the embedded model: a prompt of 900 tokens, stored or
    not.
    """

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
                next(
                    engine.stream(
                        [*prompt, 5], max_tokens=1, sampler=oxillama.SamplerConfig.greedy()
                    )
                )
                best = min(best, time.perf_counter() - begin)
        return best * 1e3


def shared_prompt(
    engine: oxillama.InferenceEngine, requests: int, *, tokens: int = 2_000
) -> dict[str, float]:
    """Requests one after another that share a system prompt: seconds to the first token of the
    first, the median of the others, rows run.
    """
    vocab, times = engine.config.vocab_size, []
    system, greedy = [(7 * i + 3) % vocab for i in range(tokens)], oxillama.SamplerConfig.greedy()
    # memory is touched once
    engine.generate([(5 * i + 4) % vocab for i in range(tokens)], max_tokens=1, sampler=greedy)
    before = engine.metrics().tokens_prefilled_total
    for number in range(requests):
        begin = time.perf_counter()
        next(
            engine.stream([*system, number % vocab, number // vocab], max_tokens=1, sampler=greedy)
        )
        times.append(time.perf_counter() - begin)
    found = engine.metrics().tokens_prefilled_total - before
    if found > tokens + 2 * requests:
        raise RuntimeError(
            f"shared prompt: {found} rows were run, wanted at most {tokens + 2 * requests}"
        )
    return {"miss": times[0], "hit": sorted(times[1:])[len(times) // 2], "rows": found}


class SharedPrompt:
    """Percent of a miss that the first token of a hit takes: requests that share 2,000 tokens,
    which are evaluated once (embedded model).
    """

    params = [20, 1_000]
    param_names = ["requests"]
    unit = "%"

    def track_hit_share(self, requests: int) -> float:
        with oxillama.load(context_size=2_200) as engine:
            found = shared_prompt(engine, requests)
        return 100 * found["hit"] / found["miss"]


class Beams:
    """Milliseconds per token of a search with four beams by its length: its cost is linear in
    length where these are equal (embedded model).
    """

    params = [32, 128, 512]
    param_names = ["tokens"]
    unit = "ms"

    def track_token(self, tokens: int) -> float:
        config = oxillama.BeamSearchConfig(max_new_tokens=tokens)
        sampler, best = oxillama.SamplerConfig.greedy(ignore_eos=True), float("inf")
        with oxillama.load() as engine:
            for _ in range(3):
                begin = time.perf_counter()
                found = engine.beam_generate("Once upon a time", config, sampler=sampler)
                best = min(best, (time.perf_counter() - begin) / len(found[0].tokens))
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
