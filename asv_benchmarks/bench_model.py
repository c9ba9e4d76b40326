"""Whole models, the cells of the speed table: prompts, generation, generation at depth, sequences
together, and what is outside the products.

Shapes and where their files lie: models.py (`OXILLAMA_BENCH_SHAPES=135m,1b,4b` for all of them).
`tools/measure.py` takes the same cells beside peers.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from models import FORMATS, opened, wanted

import oxillama
from oxillama.cli.bench import measure


def at_depth(engine: oxillama.InferenceEngine, depth: int, tokens: int, runs: int) -> float:
    """Median tokens/s of runs that go on from `depth` tokens: a page of evaluated ones, copied as
    often as it takes.
    """
    vocab, rates = engine.config.vocab_size, []
    with engine.raw_loop() as loop:
        loop.prefill(0, [(7 * j + 11) % vocab for j in range(min(depth, 16))])
        loop._grow(0, depth - min(depth, 16))
        page = np.frombuffer(loop._memory.export(0), np.uint8)
        for number in range(1, depth // 16):
            loop._memory.load(number, page)
        loop.decode([5])
        for _ in range(runs):
            start = time.perf_counter()
            for i in range(tokens):
                loop.decode([(13 * i + 5) % vocab])
            rates.append(tokens / (time.perf_counter() - start))
    return statistics.median(rates)


class Prompt:
    """Prompt tokens/s, the median of three."""

    params = [wanted(), FORMATS, [512, 2048], [2, 1]]
    param_names = ["shape", "format", "tokens", "threads"]
    unit = "tokens/s"
    timeout = 600

    def setup(self, shape: str, recipe: str, tokens: int, threads: int) -> None:
        self.engine = opened(shape, recipe, threads)

    def teardown(self, shape: str, recipe: str, tokens: int, threads: int) -> None:
        self.engine.close()

    def track_prompt(self, shape: str, recipe: str, tokens: int, threads: int) -> float:
        return measure(self.engine, prompt=tokens, generate=1, depth=0, batch=1, runs=3)["pp_tps"]


class Generation:
    """Generated tokens/s of one sequence, the median of three runs of 64 tokens."""

    params = [wanted(), FORMATS, [2, 1]]
    param_names = ["shape", "format", "threads"]
    unit = "tokens/s"
    timeout = 600

    def setup(self, shape: str, recipe: str, threads: int) -> None:
        self.engine = opened(shape, recipe, threads)

    def teardown(self, shape: str, recipe: str, threads: int) -> None:
        self.engine.close()

    def track_generation(self, shape: str, recipe: str, threads: int) -> float:
        return at_depth(self.engine, 1, 64, 3)


class Depth:
    """Generated tokens/s of one sequence that has a long context, the median of three runs of 16
    tokens.
    """

    params = [wanted(), ["Q4_K_M", "Q8_0"], [4096, 16384], ["f16", "q8_0"]]
    param_names = ["shape", "format", "depth", "kv_type"]
    unit = "tokens/s"
    timeout = 900

    def setup(self, shape: str, recipe: str, depth: int, kv_type: str) -> None:
        self.engine = opened(shape, recipe, 2, kv_type=kv_type)

    def teardown(self, shape: str, recipe: str, depth: int, kv_type: str) -> None:
        self.engine.close()

    def track_generation(self, shape: str, recipe: str, depth: int, kv_type: str) -> float:
        return at_depth(self.engine, depth, 16, 3)


class Together:
    """Generated tokens/s of all of several sequences of 64 tokens of context each, the median of
    three runs of 32 steps.
    """

    params = [wanted(), ["Q4_K_M", "Q8_0"], [8, 16]]
    param_names = ["shape", "format", "sequences"]
    unit = "tokens/s"
    timeout = 600

    def setup(self, shape: str, recipe: str, sequences: int) -> None:
        self.engine = opened(shape, recipe, 2)

    def teardown(self, shape: str, recipe: str, sequences: int) -> None:
        self.engine.close()

    def track_generation(self, shape: str, recipe: str, sequences: int) -> float:
        return measure(self.engine, prompt=1, generate=32, depth=64, batch=sequences, runs=3)[
            "tg_tps"
        ]


class Outside:
    """Percent of a step's time that is neither a product with weights nor attention, one token, by
    the times of its ops.
    """

    params = [wanted(), ["Q4_0", "Q8_0"], [2, 1]]
    param_names = ["shape", "format", "threads"]
    unit = "%"
    timeout = 600

    def setup(self, shape: str, recipe: str, threads: int) -> None:
        self.engine = opened(shape, recipe, threads)

    def teardown(self, shape: str, recipe: str, threads: int) -> None:
        self.engine.close()

    def track_outside(self, shape: str, recipe: str, threads: int) -> float:
        with self.engine.raw_loop() as loop:
            timed = loop.profile(0, [5], repeat=50)
        inside = sum(spent for op, spent in timed if "weights" in op.params or op.name == "attend")
        return 100 * (1 - inside / sum(spent for _, spent in timed))
