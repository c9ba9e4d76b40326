"""A short soak: threads that generate, cancel, fork, embed and fail at once; no deadlock, no leak,
no cross-talk.
"""

import os
import random
import threading

import numpy as np
import pytest

from oxillama.engine.embedding import Pooler, PoolingMode
from oxillama.engine.request import EmbedRequest
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.sampling import Sampler, SamplerConfig
from tests.engine.null import HIDDEN, VOCAB, NullMemory, NullProgram, core, hashed, request, solo

SEEDED = SamplerConfig(seed=9)
ROUNDS = int(os.environ.get("OXILLAMA_SOAK_ROUNDS", "12"))


def broken(tokens, logits):
    raise ArithmeticError("on purpose")


class Worker:
    """One thread's mixture of work; `wrong` collects what was not as it must be."""

    def __init__(self, engine, number, wrong):
        self.engine, self.rng, self.wrong = engine, random.Random(number), wrong

    def prompt(self):
        beginning = [(5 * i + self.rng.randrange(3)) % VOCAB for i in range(3)] * 20
        return beginning[: self.rng.randint(1, 60)] + [
            self.rng.randrange(VOCAB) for _ in range(self.rng.randint(0, 8))
        ]

    def run(self):
        for _ in range(ROUNDS):
            work = self.rng.choice(
                (self.generate, self.generate, self.embed, self.fork, self.fail, self.stream)
            )
            try:
                if not work():
                    self.wrong.append(work.__name__)
            except Exception as error:
                self.wrong.append(f"{work.__name__}: {error!r}")

    def generate(self):
        prompt = self.prompt()
        job = self.engine.submit(
            request(self.engine, prompt, max_tokens=self.rng.randint(1, 25), sampler=SEEDED)
        )
        if self.rng.random() < 0.3:
            job.cancel()
        done = job.result(60)
        return list(done.tokens) == solo(prompt, job.max_tokens, SEEDED)[: len(done.tokens)]

    def stream(self):
        prompt, tokens = self.prompt(), []
        for piece in self.engine.submit(request(self.engine, prompt, max_tokens=12)):
            tokens.extend(piece.tokens)
        return tokens == solo(prompt, 12)

    def embed(self):
        prompt, pooler = self.prompt(), Pooler(PoolingMode.MEAN, normalize=False)
        job = self.engine.request(EmbedRequest, self.engine.new_session(prompt))
        job.on_rows = pooler.add
        self.engine.submit(job).result(60)
        wanted = np.zeros(HIDDEN)
        for i in range(len(prompt)):
            wanted = wanted + hashed(prompt[: i + 1], HIDDEN)
        return np.array_equal(pooler.result(), (wanted / len(prompt)).astype(np.float32))

    def fork(self):
        session = self.engine.keep(self.engine.new_session())
        prompt = self.prompt()
        self.engine.extend(session, prompt)
        twins = [session.fork() for _ in range(3)]
        jobs = [
            self.engine.submit(
                request(self.engine, None, session=twin, max_tokens=7, sampler=SEEDED)
            )
            for twin in twins
        ]
        good = all(list(job.result(60).tokens) == solo(prompt, 7, SEEDED) for job in jobs)
        for each in (session, *twins):
            each.close()
        return good

    def fail(self):
        session = self.engine.new_session(self.prompt())
        session.sampler = Sampler(SEEDED, VOCAB, processors=[broken])
        try:
            self.engine.submit(request(self.engine, None, session=session)).result(60)
        except ArithmeticError:
            return True
        return False


def test_mixed_load_leaves_nothing_behind():
    config = SchedulerConfig(
        max_sequences=10, max_batch_sequences=4, max_batch_tokens=48, prefill_chunk=32
    )
    engine = core(
        program=NullProgram(seconds_per_row=1e-5),
        memory=NullMemory(limit=90),
        scheduler=config,
        prefix={"max_entries": 6},
    )
    wrong = []
    threads = [
        threading.Thread(target=Worker(engine, number, wrong).run, daemon=True)
        for number in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "deadlock"
    assert wrong == []
    found = engine.metrics()
    assert found.requests_running == found.requests_waiting == found.pages_leaked == 0
    assert found.pages_used == found.pages_cached
    assert (
        found.requests_started_total
        == found.requests_completed_total
        + found.requests_cancelled_total
        + found.requests_failed_total
    )
    engine.close()
    assert engine.pool.pages_used == 0


def test_failing_in_the_middle_of_mixed_load_tells_everybody():
    program = NullProgram(seconds_per_row=1e-4)
    engine = core(program=program)
    jobs = [engine.submit(request(engine, [i], max_tokens=200)) for i in range(20)]
    program.fail = MemoryError("no more")
    for job in jobs:
        with pytest.raises(MemoryError, match="no more"):
            job.result(60)
    program.fail = None
    assert list(engine.submit(request(engine, [5])).result(60).tokens) == solo([5])
    engine.close()
    assert engine.pool.pages_used == 0
