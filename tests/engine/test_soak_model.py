"""A soak on a real model: threads that do everything at once for so long, each result held against
its solo run.

Short by itself; `OXILLAMA_SOAK_SECONDS=600 pytest -s tests/engine/test_soak_model.py` is the long
one, and prints how memory goes.

What is leaked is looked for in two ways, between the end of the first half and that of the second:
Python's allocated blocks after a collection and, in a run of a minute or more, the process's
resident memory. Without the GIL the latter says little: every thread has heaps of its own and keeps
for itself what was freed there, so that the process grows towards the most that each thread ever
held. There the blocks alone are judged; memory that Python does not allocate is that of the same
code with the GIL.
"""

import gc
import os
import random
import sys
import sysconfig
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama import BeamSearchConfig, SamplerConfig, SchedulerConfig

SECONDS = float(os.environ.get("OXILLAMA_SOAK_SECONDS", "2"))
THREADS = 12
GREEDY, SEEDED = SamplerConfig.greedy(), SamplerConfig(temperature=1.0, seed=7)
BEAMS = BeamSearchConfig(beam_width=3, max_new_tokens=6)
SYSTEM = (
    "Once upon a time there was a little girl named Lily. She had a red ball and a small dog. One "
    "day "
)
PROMPTS = [
    SYSTEM + end for end in ("she", "the dog", "it rained", "her mom said", "they went to the park")
] + ["Tom", "The cat sat", "Why?"]


def resident_mb():
    """Megabytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def blocks():
    """Allocated blocks of Python objects that are in use."""
    gc.collect()
    return sys.getallocatedblocks()


def solo_results(engine):
    """What every piece of work must give, computed one at a time with nothing cached."""

    def one(prompt, **options):
        return engine.generate(prompt, cache_prompt=False, **options)

    return [
        {
            "greedy": one(prompt, max_tokens=24, sampler=GREEDY).tokens,
            "seeded": one(prompt, max_tokens=24, sampler=SEEDED).tokens,
            "choice": one(prompt, choices=[" and then", " but the dog"], sampler=SEEDED).text,
            "vector": engine.embed(prompt),
            "beams": engine.beam_generate(prompt, BEAMS, cache_prompt=False),
            "three": [each.tokens for each in one(prompt, n=3, max_tokens=8, sampler=SEEDED)],
        }
        for prompt in PROMPTS
    ]


class Worker:
    """One thread's mixture of work."""

    def __init__(self, engine, wanted, number, until):
        self.engine, self.wanted, self.rng, self.until = (
            engine,
            wanted,
            random.Random(number),
            until,
        )
        self.done, self.wrong = Counter(), []

    def run(self):
        kinds = (
            self.tokens,
            self.tokens,
            self.stream,
            self.cancel,
            self.choice,
            self.vector,
            self.beams,
            self.three,
            self.fork,
            self.saved,
            self.fail,
        )
        while time.monotonic() < self.until or not self.done:
            kind = self.rng.choice(kinds)
            index = self.rng.randrange(len(PROMPTS))
            try:
                if not kind(PROMPTS[index], self.wanted[index]):
                    self.wrong.append(f"{kind.__name__}: other than alone")
            except Exception as error:
                self.wrong.append(f"{kind.__name__}: {error!r}")
            self.done[kind.__name__] += 1

    def way(self):
        name, sampler = self.rng.choice((("greedy", GREEDY), ("seeded", SEEDED)))
        return name, dict(
            sampler=sampler, max_tokens=24, speculative=self.rng.choice((None, None, "lookup"))
        )

    def tokens(self, prompt, wanted):
        name, options = self.way()
        return self.engine.generate(prompt, **options).tokens == wanted[name]

    def stream(self, prompt, wanted):
        name, options = self.way()
        return (
            tuple(
                token for piece in self.engine.stream(prompt, **options) for token in piece.tokens
            )
            == wanted[name]
        )

    def cancel(self, prompt, wanted):
        name, options = self.way()
        request = self.engine.submit(prompt, **options)
        time.sleep(self.rng.random() * 0.02)
        request.cancel()
        found = request.result(60).tokens
        return found == wanted[name][: len(found)]

    def choice(self, prompt, wanted):
        return (
            self.engine.generate(prompt, choices=[" and then", " but the dog"], sampler=SEEDED).text
            == wanted["choice"]
        )

    def vector(self, prompt, wanted):
        return np.array_equal(self.engine.embed(prompt), wanted["vector"])

    def beams(self, prompt, wanted):
        return self.engine.beam_generate(prompt, BEAMS) == wanted["beams"]

    def three(self, prompt, wanted):
        return [
            each.tokens for each in self.engine.generate(prompt, n=3, max_tokens=8, sampler=SEEDED)
        ] == wanted["three"]

    def fork(self, prompt, wanted):
        session = self.engine.session()
        self.engine.prefill(prompt, session=session)
        twin = session.fork()
        ways = ((session, GREEDY), (twin, SEEDED))
        found = [
            self.engine.generate(None, session=each, max_tokens=24, sampler=sampler).tokens
            for each, sampler in ways
        ]
        session.close()
        twin.close()
        return found == [wanted["greedy"], wanted["seeded"]]

    def saved(self, prompt, wanted):
        session = self.engine.session()
        first = self.engine.generate(prompt, session=session, max_tokens=5, sampler=SEEDED).tokens
        data, again = session.snapshot(), None
        session.close()
        while again is None:
            try:
                again = self.engine.restore(data)
            except oxillama.PoolError:  # so few pages: refused, and nothing has changed
                time.sleep(0.01)
        rest = self.engine.generate(None, session=again, max_tokens=19).tokens
        again.close()
        return first + rest == wanted["seeded"]

    def fail(self, prompt, wanted):
        def broken(tokens, logits):
            raise ArithmeticError("on purpose")

        try:
            self.engine.generate(prompt, processors=[broken], max_tokens=3)
        except ArithmeticError:
            return True
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read where Linux tells it")
def test_everything_at_once_on_a_real_model_leaves_nothing_behind():
    config = SchedulerConfig(max_sequences=10, max_batch_sequences=5, max_batch_tokens=96)
    with oxillama.load(
        num_threads=1, prefill_chunk_size=64, scheduler=config, max_pages=16, prefix_max_entries=20
    ) as engine:
        wanted = solo_results(engine)
        done, wrong, memory, held = Counter(), [], [], []
        for half in range(2):
            until = time.monotonic() + SECONDS / 2
            numbers = range(THREADS * half, THREADS * (half + 1))
            workers = [Worker(engine, wanted, number, until) for number in numbers]
            threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
            for thread in threads:
                thread.start()
            begin, late = time.monotonic(), [resident_mb()]
            while any(thread.is_alive() for thread in threads):
                assert time.monotonic() < until + 120, "deadlock"
                if time.monotonic() - begin > 30 * len(late):
                    late.append(resident_mb())
                time.sleep(0.05)
            late.append(resident_mb())
            memory += late
            done += sum((worker.done for worker in workers), Counter())
            wrong += [each for worker in workers for each in worker.wrong]
            held.append(blocks())
        found = engine.metrics()
        print(
            f"\nsoak: {SECONDS:g} s, {sum(done.values())} pieces of work {dict(done)}, "
            f"{len(wrong)} wrong {Counter(wrong).most_common(5)}"
        )
        print(
            f"soak: {found.steps_total} steps, {found.tokens_generated_total} tokens, "
            f"{found.requests_preempted_total} preempted, {found.kv_evictions_total} evicted, "
            f"{found.pages_leaked} pages leaked"
        )
        print("soak: resident MB every 30 s:", " ".join(f"{each:.1f}" for each in memory))
        print("soak: blocks after each half:", *held)
        assert wrong == []
        assert found.requests_running == found.requests_waiting == found.pages_leaked == 0
        assert found.pages_used == found.pages_cached
        # whatever grows, grows at first: caches have bounds
        assert held[1] - held[0] < 10_000
        if SECONDS >= 60 and not sysconfig.get_config_var("Py_GIL_DISABLED"):
            assert max(late) - late[0] < 8
