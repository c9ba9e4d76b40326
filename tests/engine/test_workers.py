"""Functions that callers bring run beside the loop: their request waits for them, and no other."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest

from oxillama.engine.scheduler import SchedulerConfig
from oxillama.engine.workers import Workers
from oxillama.errors import EngineError
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative.types import Candidates, Draft
from tests.engine.null import VOCAB, NullProgram, core, hashed, request, solo

GREEDY = SamplerConfig.greedy()
SEEDED = SamplerConfig(temperature=1.0, top_k=20, seed=11)


class Gate:
    """A function that blocks until it is let go, once it was entered."""

    def __init__(self):
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, *_):
        self.entered.set()
        assert self.go.wait(20)


class Hanging:
    """A drafter that blocks, and whose ends are told."""

    def __init__(self, gate):
        self.gate, self.closed = gate, threading.Event()

    def open(self, session):
        return None

    def propose(self, asks):
        self.gate()
        return [Draft([1, 2])] * len(asks)

    def close(self, state, session):
        self.closed.set()


def held_up(engine, kind, gate, prompt):
    """A request whose processor, listener or drafter waits at the gate."""
    session = engine.new_session(prompt)
    processors = [gate] if kind == "processor" else []
    session.sampler = Sampler(GREEDY, VOCAB, processors=processors)
    job = request(engine, None, session=session, max_tokens=5)
    if kind == "listener":
        job.listen(gate)
    if kind == "drafter":
        job.speculation = engine.speculator.speculation(
            Candidates(Hanging(gate), adaptive=False), session
        )
    return job


@pytest.mark.parametrize("kind", ["processor", "listener", "drafter"])
def test_a_function_that_blocks_holds_up_its_own_request_alone(kind):
    engine, gate = core(prefix=False), Gate()
    job = engine.submit(held_up(engine, kind, gate, [1, 2]))
    assert gate.entered.wait(60)
    others = [engine.submit(request(engine, [at, 3], max_tokens=30)) for at in range(5)]
    for at, other in enumerate(others):
        assert list(other.result(60).tokens) == solo([at, 3], 30)
    assert not job.done and engine.metrics().requests_running == 1
    gate.go.set()
    assert list(job.result(60).tokens) == solo([1, 2], 5)
    assert engine.metrics().pages_used == 0
    engine.close()


@pytest.mark.parametrize("kind", ["processor", "listener", "drafter"])
def test_a_cancel_ends_a_request_whose_function_does_not_return(kind):
    engine, gate = core(prefix=False), Gate()
    job = engine.submit(held_up(engine, kind, gate, [1, 2]))
    assert gate.entered.wait(60)
    job.cancel()
    assert job.result(60).finish_reason == "cancelled"
    assert not gate.go.is_set() and not job.session.busy
    assert engine.metrics().pages_used == engine.metrics().requests_running == 0
    # the session goes on from where it stands, whatever the function returns later
    done = list(job.generated)
    gate.go.set()
    job.session.sampler = Sampler(GREEDY, VOCAB)
    again = engine.submit(request(engine, None, session=job.session, max_tokens=4))
    assert list(again.result(60).tokens) == solo([1, 2], len(done) + 4)[len(done) :]
    engine.close()


def test_the_pages_of_one_whose_function_does_not_return_are_had_by_those_who_wait(monkeypatch):
    monkeypatch.setattr("oxillama.engine.loop.STALL_SECONDS", 0.01)
    engine, gate = core(max_pages=3, prefix=False), Gate()
    job = engine.submit(held_up(engine, "processor", gate, [1] * 33))
    assert gate.entered.wait(60)
    other = engine.submit(request(engine, [2] * 33, max_tokens=8))
    assert list(other.result(60).tokens) == solo([2] * 33, 8)
    assert engine.metrics().requests_preempted_total == 1
    gate.go.set()
    assert list(job.result(60).tokens) == solo([1] * 33, 5)
    assert engine.metrics().pages_used == 0
    engine.close()


@pytest.mark.parametrize("sequences", [1, 2, 8])
def test_processors_of_many_requests_change_no_token_of_any(sequences):
    """What a processor does is what it does in the loop: its own tokens, its own row, in order."""

    def processor(tokens, row):
        time.sleep(0.0005 * (len(tokens) % 3))
        row[int(tokens.sum()) % VOCAB] += 5.0

    def alone(prompt, count):
        draw, tokens = Sampler(SEEDED, VOCAB, processors=[processor]), list(prompt)
        draw.accept_prompt(prompt)
        for _ in range(count):
            token = draw.sample(hashed(tokens, VOCAB))
            draw.accept(token)
            tokens.append(token)
        return tokens[len(prompt) :]

    engine = core(
        max_pages=24, scheduler=SchedulerConfig(max_sequences=sequences), program=NullProgram()
    )
    jobs = []
    for at in range(8):
        session = engine.new_session([at, 7, at])
        session.sampler = Sampler(SEEDED, VOCAB, processors=[processor])
        session.sampler.accept_prompt([at, 7, at])
        job = engine.submit(request(engine, None, session=session, max_tokens=20))
        plain = engine.submit(request(engine, [at] * 20, max_tokens=20))
        jobs += [(job, alone([at, 7, at], 20)), (plain, solo([at] * 20, 20))]
    for job, wanted in jobs:
        assert list(job.result(20).tokens) == wanted
    engine.close()


class OneBuffer(NullProgram):
    """Its rows lie where those of the last step did, as a real program's do."""

    def step(self, *args, **more):
        rows = super().step(*args, **more)
        self.out = getattr(self, "out", np.empty((64, VOCAB), np.float32))
        self.out[: len(rows)] = rows
        return self.out[: len(rows)]


class Knowing:
    """A drafter that knows the text."""

    def __init__(self, text):
        self.text = text

    def open(self, session):
        return None

    def propose(self, asks):
        return [Draft(self.text[len(each.session.tokens) :]) for each in asks]

    def close(self, state, session):
        pass


def test_a_listener_that_comes_between_the_candidates_of_a_step_changes_no_token():
    engine, gate = core(prefix=False, program=OneBuffer()), Gate()
    prompt, wanted = [1, 2], solo([1, 2], 12)
    job = request(engine, prompt, max_tokens=12)
    job.speculation = engine.speculator.speculation(
        Candidates(Knowing(prompt + wanted), adaptive=False), job.session
    )

    def comes():
        if len(job.generated) == 4:  # in the middle of a step with eleven candidates
            job.listen(gate)

    job.listen(comes, in_loop=True)
    engine.submit(job)
    assert gate.entered.wait(60)
    assert engine.metrics().steps_total == 2
    others = [engine.submit(request(engine, [at, 6], max_tokens=9)) for at in range(14)]
    for at, other in enumerate(others):
        assert list(other.result(60).tokens) == solo([at, 6], 9)
    gate.go.set()
    assert list(job.result(60).tokens) == wanted
    engine.close()


def test_the_counts_of_candidates_are_whole_when_a_request_ends():
    engine, found = core(prefix=False), []
    job = request(engine, [1, 2], max_tokens=12)
    job.speculation = engine.speculator.speculation(
        Candidates(Knowing([1, 2, *solo([1, 2], 12)]), adaptive=False), job.session
    )
    job.listen(lambda: job.done and found.append(job.result().speculation), in_loop=True)
    engine.submit(job).result(60)
    engine.close()
    counts = [(each.accepted, each.rejected, each.bonus_tokens) for each in found]
    assert counts == [(10, 0, 1)]  # eleven tokens of one step, the first was the prompt's


def test_an_engine_is_closed_while_a_function_does_not_return():
    engine, gate = core(), Gate()
    job = engine.submit(held_up(engine, "processor", gate, [1, 2]))
    assert gate.entered.wait(60)
    engine.close()
    assert job.result(60).finish_reason == "cancelled"
    gate.go.set()


def test_an_engine_closed_in_its_own_loop_says_that_it_is_closed():
    engine = core()
    jobs = [request(engine, [at, 2], max_tokens=50) for at in range(3)]
    jobs[1].listen(lambda: len(jobs[1].generated) == 4 and engine.close(), in_loop=True)
    with engine.lock:
        for job in jobs:
            engine.submit(job)
    for at, job in enumerate(jobs):
        done = job.result(60)
        assert done.finish_reason == "cancelled"
        assert list(done.tokens) == solo([at, 2], len(done.tokens))
    engine._loop.thread.join(60)
    with pytest.raises(EngineError, match="engine: is closed"):
        engine.check()
    assert engine.pool.pages_used == 0


def test_workers_are_reused_and_end_when_they_are_closed():
    workers, threads = Workers(), []
    for _ in range(20):
        ran = threading.Event()
        workers.run(lambda ran=ran: (threads.append(threading.current_thread()), ran.set()))
        assert ran.wait(60)
        while not workers._idle:
            time.sleep(0.0005)
    assert len(set(threads)) == 1
    workers.close()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_a_busy_worker_ends_with_its_function_when_they_are_closed(monkeypatch):
    monkeypatch.setattr("oxillama.engine.workers.IDLE_SECONDS", 1000.0)
    workers, gate, threads = Workers(), Gate(), []
    workers.run(lambda: (threads.append(threading.current_thread()), gate()))
    assert gate.entered.wait(60)
    workers.close()
    ran = threading.Event()
    workers.run(lambda: (threads.append(threading.current_thread()), ran.set()))
    assert ran.wait(60)  # as the ends of drafters, which come after that
    gate.go.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_request_that_has_ended_keeps_no_engine_alive():
    engine = core(prefix=False)
    gate = Gate()
    gate.go.set()
    made = [
        engine.submit(held_up(engine, kind, gate, [1, 2]))
        for kind in ("processor", "listener", "drafter")
    ]
    for job in made:
        assert list(job.result(60).tokens) == solo([1, 2], 5)
    assert made[0].session.owner is engine
    parts = [weakref.ref(engine), weakref.ref(engine.program), weakref.ref(engine.memory)]
    engine.stop()
    engine._loop.thread.join(60)
    del engine
    for _ in range(200):
        gc.collect()
        if not any(part() for part in parts):
            break
        time.sleep(0.01)
    assert [part() for part in parts] == [None, None, None]
    assert made[0].result().finish_reason == "length" and made[0].session.tokens[:2] == [1, 2]
