"""A program that computes nothing, so that what is left to measure is the engine's own ledger."""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from oxillama.engine.engine import EngineCore
from oxillama.engine.request import GenerateRequest
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.sampling import Sampler, SamplerConfig

VOCAB = 512
NullBatch = namedtuple("NullBatch", "tokens positions tables row_table wanted")


class NullMemory:
    """Pages without bytes."""

    page_bytes, memory_bytes, capacity = 1 << 14, 0, 1 << 20

    def ensure(self, n_pages: int) -> None:
        """All pages are there."""

    def copy(self, src: int, dst: int, *, tokens: int) -> None:
        """Nothing to copy."""

    def release(self, keep_pages: int) -> None:
        """Nothing to give back."""


class NullFlag:
    """A cancel flag that nobody looks at."""

    def set(self) -> None:
        """No step is long enough to be stopped."""

    def clear(self) -> None:
        """Nothing was set."""


class NullProgram:
    """Gives every wanted row the same logits at once."""

    vocab_size, hidden_size, max_rows, representative = VOCAB, 64, 512, True

    def __init__(self) -> None:
        self.out = np.zeros((512, VOCAB), np.float32)
        self.out[:, 7] = 1.0
        self.steps = 0

    def step(self, batch, memory, *, output="logits", cancel=None) -> np.ndarray:
        """A view of rows that are always the same."""
        self.steps += 1
        return self.out[: len(batch.wanted)]


def null_core(*, batch=NullBatch, prefix: dict | None = None, **scheduler: int) -> EngineCore:
    """An engine over the null program with as many sequences a step as rows."""
    config = SchedulerConfig(**{"max_sequences": 64, "max_batch_sequences": 64, **scheduler})
    return EngineCore(
        NullProgram(),
        NullMemory(),
        batch=batch,
        flag=NullFlag(),
        context_size=1 << 16,
        scheduler=config,
        prefix=prefix,
    )


def start(core: EngineCore, prompt: list[int], max_tokens: int):
    """Submit a greedy request over token ids."""
    session = core.new_session(prompt)
    session.sampler = Sampler(SamplerConfig.greedy(), VOCAB)
    request = core.request(GenerateRequest, session)
    request.max_tokens, request.prompt_tokens = max_tokens, len(prompt)
    return core.submit(request)
