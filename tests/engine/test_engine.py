"""The step loop over a null program: the same tokens whoever else is there, and nobody left
waiting.
"""

import asyncio
import os
import random
import signal
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.engine.embedding import all_logits
from oxillama.engine.generation import make_request
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.errors import ContextError, EngineError, PoolError
from oxillama.options import Options
from oxillama.sampling import Sampler, SamplerConfig
from tests.engine.null import (
    VOCAB,
    NullMemory,
    NullProgram,
    check_solo,
    core,
    drawn_core,
    drawn_prompts,
    hashed,
    request,
    solo,
)

SEEDED = SamplerConfig(temperature=1.0, top_k=20, seed=11)


def wait_idle(engine, seconds=5.0):
    """Until no request is in flight."""
    end = time.monotonic() + seconds
    while engine._tracker.in_flight and time.monotonic() < end:
        time.sleep(0.001)
    assert not engine._tracker.in_flight


def test_one_request_gives_its_solo_tokens():
    engine = core()
    done = engine.submit(request(engine, [1, 2, 3], max_tokens=20)).result(60)
    assert list(done.tokens) == solo([1, 2, 3], 20)
    assert (
        done.finish_reason == "length"
        and done.usage.prompt_tokens == 3
        and done.usage.completion_tokens == 20
    )
    engine.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([4, 16, 64, 512]))
def test_tokens_do_not_depend_on_companions_chunks_cache_or_preemption(seed, max_batch):
    rng = random.Random(seed)
    engine = drawn_core(rng, max_batch)
    jobs = []
    for prompt in drawn_prompts(rng):
        sampler = rng.choice([None, SEEDED, SamplerConfig(seed=5)])
        job = engine.submit(request(engine, prompt, max_tokens=rng.randint(1, 40), sampler=sampler))
        jobs.append((job, prompt, sampler))
        if rng.random() < 0.2:
            rng.choice(jobs)[0].cancel()
    check_solo(jobs)
    wait_idle(engine)
    metrics = engine.metrics()
    assert metrics.pages_leaked == 0 and metrics.pages_used == metrics.pages_cached
    engine.close()
    assert engine.pool.pages_used == 0


def test_preempted_requests_come_back_with_the_same_tokens():
    engine = core(max_pages=8, prefix=False, scheduler=SchedulerConfig(max_sequences=8))
    jobs = [engine.submit(request(engine, [i, i + 1, 2], max_tokens=60)) for i in range(6)]
    for i, job in enumerate(jobs):
        assert list(job.result(20).tokens) == solo([i, i + 1, 2], 60)
    assert engine.metrics().requests_preempted_total > 0
    engine.close()


def test_a_request_too_big_for_the_pool_fails_alone():
    engine = core(max_pages=4)
    big = engine.submit(request(engine, list(range(50)), max_tokens=100))
    small = engine.submit(request(engine, [1], max_tokens=5))
    with pytest.raises(PoolError, match="page pool"):
        big.result(60)
    assert list(small.result(60).tokens) == solo([1], 5)
    engine.close()


def test_a_request_too_big_for_the_systems_memory_is_told_how_much_that_gave():
    engine = core(memory=NullMemory(limit=2), prefix=False)
    big = engine.submit(request(engine, list(range(50)), max_tokens=1))
    with pytest.raises(PoolError, match="need 4 pages, the system gave memory for 2, 2 of them"):
        big.result(60)
    engine.close()


def test_memory_refused_by_the_system_is_shared_not_fatal():
    engine = core(memory=NullMemory(limit=9), prefix=False)
    jobs = [engine.submit(request(engine, [i] * 20, max_tokens=50)) for i in range(5)]
    for i, job in enumerate(jobs):
        assert list(job.result(20).tokens) == solo([i] * 20, 50)
    engine.close()


def test_a_prompt_shared_by_many_is_evaluated_once():
    program = NullProgram()
    engine = core(program=program)
    system = [(7 * i) % VOCAB for i in range(200)]
    jobs = [engine.submit(request(engine, [*system, i], max_tokens=1)) for i in range(30)]
    for i, job in enumerate(jobs):
        assert list(job.result(20).tokens) == solo([*system, i], 1)
    assert program.evaluated <= 201 + 29 * 17
    assert sum(job.cached for job in jobs) >= 29 * 192
    engine.close()


def test_cancel_stops_a_prefill_within_milliseconds():
    engine = core(program=NullProgram(seconds_per_row=0.01))
    job = engine.submit(request(engine, list(range(50)) * 7, max_tokens=5))
    time.sleep(0.05)
    start = time.perf_counter()
    job.cancel()
    assert job.result(60).finish_reason == "cancelled"
    assert time.perf_counter() - start < 0.1
    engine.close()


def test_cancel_leaves_companions_their_tokens():
    engine = core(program=NullProgram(seconds_per_row=0.0005))
    keep = engine.submit(request(engine, [5, 6], max_tokens=40))
    drop = engine.submit(request(engine, list(range(40)) * 8, max_tokens=40))
    time.sleep(0.03)
    drop.cancel()
    assert list(keep.result(60).tokens) == solo([5, 6], 40)
    engine.close()


def test_sixty_four_threads_with_random_cancels():
    engine = core(scheduler=SchedulerConfig(max_sequences=16, max_batch_sequences=5), max_pages=60)
    wrong = []

    def work(number):
        rng = random.Random(number)
        for _ in range(4):
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))]
            job = engine.submit(
                request(engine, prompt, max_tokens=rng.randint(1, 30), sampler=SEEDED)
            )
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.01)
                job.cancel()
            done = job.result(60)
            wanted = solo(prompt, job.max_tokens, SEEDED)
            if list(done.tokens) != wanted[: len(done.tokens)] or (
                done.finish_reason == "length"
            ) != (len(done.tokens) == len(wanted)):
                wrong.append((number, prompt))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and engine.metrics().pages_leaked == 0
    engine.close()
    assert engine.pool.pages_used == 0


def test_an_error_in_the_loop_fails_everybody_and_the_engine_says_so():
    program = NullProgram(seconds_per_row=0.001)
    engine = core(program=program)
    jobs = [engine.submit(request(engine, [i, 1], max_tokens=300)) for i in range(3)]
    time.sleep(0.02)
    program.fail = ValueError("the cause")
    for job in jobs:
        with pytest.raises(EngineError, match="the cause") as caught:
            job.result(60)
        assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(EngineError, match="the cause"):
        engine.submit(request(engine, [1]))
    engine.close()


def test_an_error_of_one_request_is_its_own():
    def bad(tokens, logits):
        raise ZeroDivisionError("mine")

    engine = core()
    session = engine.new_session([1, 2])
    session.sampler = Sampler(SamplerConfig.greedy(), VOCAB, processors=[bad])
    broken = engine.submit(request(engine, None, session=session))
    good = engine.submit(request(engine, [3], max_tokens=10))
    with pytest.raises(ZeroDivisionError):
        broken.result(60)
    assert list(good.result(60).tokens) == solo([3], 10)
    engine.close()


def test_stop_ids_end_without_being_part_of_the_text():
    wanted = solo([9], 20)
    stop = wanted[7]
    engine = core()
    done = engine.submit(request(engine, [9], max_tokens=20, stop_ids=frozenset([stop]))).result(60)
    assert list(done.tokens) == wanted[: wanted.index(stop)] and done.finish_reason == "stop"
    engine.close()


def test_the_end_of_the_context_is_length():
    engine = core(context_size=30)
    done = engine.submit(request(engine, [1] * 20, max_tokens=None)).result(60)
    assert done.finish_reason == "length" and list(done.tokens) == solo([1] * 20, 10)
    with pytest.raises(ContextError, match="31 tokens, the context holds 30"):
        engine.submit(request(engine, [1] * 31))
    engine.close()


def test_a_shifted_context_goes_on_and_equals_its_definition():
    engine = core(context_size=30)
    asked = request(engine, [1] * 20, max_tokens=60, shift_keep=4)
    done = engine.submit(asked).result(60)
    tokens, draw, wanted = [1] * 20, Sampler(SamplerConfig.greedy(), VOCAB), []
    for _ in range(60):
        wanted.append(draw.sample(hashed(tokens, VOCAB)))
        tokens.append(wanted[-1])
        if len(tokens) >= 30:
            del tokens[4 : 4 + (len(tokens) - 4) // 2]
    assert list(done.tokens) == wanted and done.usage.context_shifts > 2
    assert asked.prompt_ids == [1] * 20 and asked.session.tokens[:20] != [1] * 20
    engine.close()


@pytest.mark.parametrize("first", [9, 10, 11, 23])
def test_a_shifted_context_goes_on_wherever_a_request_ended(first):
    engine = core(context_size=30)
    shifting = dict(shift_keep=4)
    whole = engine.submit(request(engine, [1] * 20, max_tokens=60, **shifting)).result(60)
    session = engine.new_session([1] * 20)
    parts = []
    for most in (first, 60 - first):
        asked = request(engine, None, session=session, max_tokens=most, **shifting)
        parts.append(engine.submit(asked).result(60))
    assert parts[0].tokens + parts[1].tokens == whole.tokens
    assert parts[0].usage.context_shifts + parts[1].usage.context_shifts == (
        whole.usage.context_shifts
    )
    # one that draws nothing drops nothing
    none = request(engine, None, session=session, max_tokens=0, **shifting)
    assert engine.submit(none).result(60).usage.context_shifts == 0
    engine.close()


def test_a_session_goes_on_where_it_stopped():
    engine = core()
    session = engine.keep(engine.new_session([4, 5, 6]))
    first = engine.submit(request(engine, None, session=session, max_tokens=7)).result(60)
    rest = engine.submit(request(engine, None, session=session, max_tokens=9)).result(60)
    assert list(first.tokens + rest.tokens) == solo([4, 5, 6], 16)
    engine.drop(session)
    engine.close()


def test_forks_share_pages_and_go_their_own_ways():
    memory = NullMemory()
    engine = core(memory=memory, prefix=False)
    session = engine.keep(engine.new_session(list(range(40))))
    engine.submit(request(engine, None, session=session, max_tokens=5)).result(60)
    used, copied = engine.pool.pages_used, memory.copied
    twins = []
    for token in (1, 2):
        twin = session.fork()
        twin.extend([token])
        twins.append(twin)
    assert engine.pool.pages_used == used and memory.copied == copied
    base = list(session.tokens)
    for token, twin in zip((1, 2), twins):
        done = engine.submit(request(engine, None, session=twin, max_tokens=6)).result(60)
        assert list(done.tokens) == solo([*base, token], 6)
    done = engine.submit(request(engine, None, session=session, max_tokens=6)).result(60)
    assert list(done.tokens) == solo(base, 6)
    for each in (session, *twins):
        engine.drop(each)
    assert engine.pool.pages_used == 0
    engine.close()


def test_closing_ends_what_runs_and_doors_say_so():
    engine = core(program=NullProgram(seconds_per_row=0.001))
    job = engine.submit(request(engine, [1], max_tokens=300))
    time.sleep(0.01)
    engine.close()
    assert job.result(1).finish_reason == "cancelled"
    with pytest.raises(EngineError, match="closed"):
        engine.submit(request(engine, [1]))
    engine.close()


def test_closing_waits_for_a_thread_that_is_just_being_started(monkeypatch):
    engine, start, begun, asked = core(), threading.Thread.start, threading.Event(), []

    def slowly(thread):
        if thread.name == "oxillama engine":
            begun.set()
            while not engine._loop.closed:
                time.sleep(0.001)
            time.sleep(0.02)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slowly)
    caller = threading.Thread(
        target=lambda: asked.append(engine.submit(request(engine, [1], max_tokens=300)))
    )
    caller.start()
    begun.wait()
    engine.close()
    caller.join()
    assert not engine._loop.thread.is_alive() and asked[0].result(1).finish_reason == "cancelled"


def test_a_request_that_comes_while_the_engine_is_closed_is_told_so_and_starts_nothing(monkeypatch):
    engine, threads = core(), threading.active_count()
    late, check = request(engine, [1]), engine.check_session
    monkeypatch.setattr(engine, "check_session", lambda session: engine.close() or check(session))
    with pytest.raises(EngineError, match="closed"):
        engine.submit(late)
    assert (
        engine._loop.thread is None
        and threading.active_count() == threads
        and not late.session.busy
        and not engine._tracker.in_flight
    )


def test_whoever_reads_the_program_of_a_closed_engine_is_told_so():
    engine = core()
    engine.close()
    for late in (
        lambda: make_request(engine, None, Options(), default=SEEDED, prompt=[1]),
        lambda: all_logits(engine, [1]),
    ):
        with pytest.raises(EngineError, match="closed"):
            late()


def is_told_in_a_forked_child(act):
    """Whether `act()` raises there, within ten seconds, an EngineError that speaks of the
    process.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(10)
            act()
        except EngineError as error:
            code = 0 if "load a model in this process" in str(error) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_is_told_not_hung():
    engine = core()
    job = engine.submit(request(engine, [1], max_tokens=3))
    job.result(60)
    assert is_told_in_a_forked_child(lambda: engine.submit(request(engine, [1])))
    engine.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("way", ["wait", "await", "async for"])
def test_whoever_waits_for_a_request_in_a_forked_process_is_told_not_hung(way):
    engine = core(program=NullProgram(seconds_per_row=0.01))
    job = engine.submit(request(engine, [1], max_tokens=300))

    async def waited():
        if way == "await":
            await job
        async for _ in job:
            pass

    assert is_told_in_a_forked_child(lambda: job.wait() if way == "wait" else asyncio.run(waited()))
    engine.close()


def test_streams_give_every_token_in_order():
    engine = core()
    pieces = list(engine.submit(request(engine, [8], max_tokens=25)))
    assert [token for piece in pieces for token in piece.tokens] == solo([8], 25)
    assert pieces[-1].finish_reason == "length" and not any(
        piece.finish_reason for piece in pieces[:-1]
    )
    engine.close()


def test_async_without_a_thread_per_request():
    import asyncio

    engine = core()

    async def one(number):
        tokens = []
        async for piece in engine.submit(request(engine, [number], max_tokens=15)):
            tokens.extend(piece.tokens)
        return tokens

    async def main():
        before = threading.active_count()
        streams = [asyncio.ensure_future(one(number)) for number in range(20)]
        whole = await engine.submit(request(engine, [3, 3], max_tokens=4))
        assert threading.active_count() <= before + 1
        return await asyncio.gather(*streams), whole

    streams, whole = asyncio.run(main())
    assert streams == [solo([number], 15) for number in range(20)]
    assert list(whole.tokens) == solo([3, 3], 4)
    engine.close()


@pytest.mark.parametrize("most, reason", [(1, "length"), (2, "cancelled")])
def test_a_cancel_while_a_listener_is_told_of_the_last_token_changes_nothing(most, reason):
    engine, inside, go = core(), threading.Event(), threading.Event()
    job = request(engine, [1, 2], max_tokens=most)
    job.listen(lambda: (inside.set(), go.wait(20)))
    engine.submit(job)
    assert inside.wait(20)
    job.cancel()
    go.set()
    done = job.result(20)
    assert (list(done.tokens), done.finish_reason) == (solo([1, 2], 1), reason)
    engine.close()
