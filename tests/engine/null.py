"""A program without a model: its logits are a hash of the tokens it reads back out of the pages, so
a wrong page is a wrong answer.
"""

from __future__ import annotations

import random
import threading
import time
from collections import namedtuple
from collections.abc import Iterator

import numpy as np

from oxillama.engine.engine import EngineCore
from oxillama.engine.memory.pages import PagedKvCache
from oxillama.engine.request import GenerateRequest
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.errors import Cancelled, PoolError
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative.planner import Planner

VOCAB = 61
HIDDEN = 8
NullBatch = namedtuple("NullBatch", "tokens positions tables row_table wanted")


class NullMemory:
    """Pages that hold the tokens themselves; refuses more than `limit` pages, as memory would."""

    def __init__(self, page_size: int = 16, limit: int = 1 << 20) -> None:
        self.page_size, self.limit = page_size, limit
        self.pages: list[np.ndarray] = []
        self.page_bytes = 1024
        self.copied = 0

    @property
    def capacity(self) -> int:
        return len(self.pages)

    @property
    def memory_bytes(self) -> int:
        return len(self.pages) * self.page_bytes

    def ensure(self, n_pages: int) -> None:
        if n_pages > self.limit:
            raise PoolError("null memory: full")
        while len(self.pages) < n_pages:
            self.pages.append(np.full(self.page_size, -1, np.int64))

    def copy(self, src: int, dst: int, *, tokens: int) -> None:
        self.copied += tokens
        self.pages[dst][:tokens] = self.pages[src][:tokens]
        self.pages[dst][tokens:] = -1

    def release(self, keep_pages: int) -> None:
        del self.pages[keep_pages:]


class Flag:
    """A cancel flag."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def set(self) -> None:
        self.event.set()

    def clear(self) -> None:
        self.event.clear()


def hashed(tokens, width: int) -> np.ndarray:
    """Float32 (width,), a function of the whole token sequence."""
    seed = 1469598103934665603
    for token in tokens:
        seed = ((seed ^ (int(token) + 1)) * 1099511628211) & ((1 << 64) - 1)
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(width, np.float32)


class NullProgram:
    """Writes tokens into pages, reads each wanted row's whole past back through its block table,
    and hashes it.
    """

    vocab_size, hidden_size, max_rows, representative = VOCAB, HIDDEN, 512, True

    def __init__(self, seconds_per_row: float = 0.0) -> None:
        self.seconds_per_row = seconds_per_row
        self.rows: list[int] = []
        self.evaluated = 0
        self.fail: BaseException | None = None

    def step(self, batch, memory, *, output="logits", cancel=None) -> np.ndarray:
        if self.fail is not None:
            raise self.fail
        size = memory.page_size
        until = time.perf_counter() + self.seconds_per_row * len(batch.tokens)
        for token, position, table in zip(batch.tokens, batch.positions, batch.row_table):
            memory.pages[batch.tables[table][position // size]][position % size] = token
        while time.perf_counter() < until:
            if cancel is not None and cancel.event.wait(0.0005):
                raise Cancelled("step: cancelled by its caller")
        self.rows.append(len(batch.tokens))
        self.evaluated += len(batch.tokens)
        out = []
        for row in batch.wanted:
            table, position = batch.tables[batch.row_table[row]], int(batch.positions[row])
            past = np.concatenate([memory.pages[page] for page in table[: position // size + 1]])[
                : position + 1
            ]
            assert (past >= 0).all(), "a position that nobody wrote"
            out.append(hashed(past, VOCAB if output == "logits" else HIDDEN))
        return np.array(out, np.float32).reshape(len(out), VOCAB if output == "logits" else HIDDEN)


def core(*, program=None, memory=None, context_size=400, prefix=None, **more) -> EngineCore:
    """An engine over a null program; `prefix=False` is without a prefix cache."""
    made = EngineCore(
        program or NullProgram(),
        memory or NullMemory(more.get("page_size", 16)),
        batch=NullBatch,
        flag=Flag(),
        context_size=context_size,
        prefix=None if prefix is False else dict(prefix or {}),
        **more,
    )
    made.speculator = Planner(made)
    return made


def request(
    engine: EngineCore,
    prompt,
    *,
    max_tokens: int = 8,
    sampler: SamplerConfig | None = None,
    session=None,
    **attributes,
) -> GenerateRequest:
    """A generation over token ids, not yet submitted."""
    session = session or engine.new_session(prompt)
    if session.sampler is None:
        session.sampler = Sampler(sampler or SamplerConfig.greedy(), VOCAB)
        session.sampler.accept_prompt(session.tokens)  # as every request of the engine does
    made = engine.request(GenerateRequest, session)
    made.prompt_tokens, made.max_tokens = len(session.tokens), max_tokens
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def solo(prompt, max_tokens: int = 8, sampler: SamplerConfig | None = None) -> list[int]:
    """What a request must give whoever else is there: sampling over hashes, no engine at all."""
    tokens, draw = list(prompt), Sampler(sampler or SamplerConfig.greedy(), VOCAB)
    draw.accept_prompt(tokens)
    for _ in range(max_tokens):
        token = draw.sample(hashed(tokens, VOCAB))
        draw.accept(token)
        tokens.append(token)
    return tokens[len(prompt) :]


def drawn_core(rng: random.Random, max_batch_tokens: int) -> EngineCore:
    """An engine whose limits are drawn: batch, sequences, chunks, pages, prefix cache."""
    limits = SchedulerConfig(
        max_batch_tokens=max_batch_tokens,
        max_batch_sequences=rng.randint(1, min(8, max_batch_tokens)),
        max_sequences=rng.randint(1, 12),
        max_prefill_tokens=rng.randint(1, 64),
        prefill_chunk=rng.randint(1, 128),
    )
    return core(
        scheduler=limits,
        max_pages=rng.choice([None, 12, 16, 30]),
        prefix=rng.choice([None, False, {"max_entries": 2}]),
    )


def drawn_prompts(rng: random.Random) -> Iterator[list[int]]:
    """Up to fourteen prompts that begin as one of three do, of any length."""
    beginnings = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 70))] for _ in range(3)]
    for _ in range(rng.randint(1, 14)):
        yield rng.choice(beginnings)[: rng.randint(1, 70)] + [
            rng.randrange(VOCAB) for _ in range(rng.randint(0, 20))
        ]


def check_solo(jobs) -> None:
    """Every request of (request, prompt, sampler) gives its solo tokens, as many as it came to
    where it was cancelled.
    """
    for job, prompt, sampler in jobs:
        done = job.result(20)
        wanted = solo(prompt, job.max_tokens, sampler)
        assert list(done.tokens) == (
            wanted if done.finish_reason == "length" else wanted[: len(done.tokens)]
        )
        assert done.finish_reason == "length" or job.cancelled


def filled(pool, length, value=0):
    """A cache of `length` positions, position p holding value + p."""
    cache = PagedKvCache(pool)
    write(cache, length, value)
    return cache


def write(cache, length, value):
    """Reserve, write and commit positions up to `length`."""
    size = cache.pool.page_size
    cache.reserve(length)
    for position in range(cache.length, length):
        # invariant 3
        assert cache.pool.owners(cache.pages[position // size]) == 1, "a shared page was written"
        cache.pool.memory.pages[cache.pages[position // size]][position % size] = value + position
    cache.commit(length)


def read(cache):
    """What the pages hold, position by position."""
    size = cache.pool.page_size
    return [
        int(cache.pool.memory.pages[cache.pages[p // size]][p % size]) for p in range(cache.length)
    ]
