"""What requests share and what they never do: a system prompt paid for once, pages by the token,
and nothing across adapters.
"""

import random

import numpy as np
import pytest

import oxillama
from oxillama.engine.scheduler import SchedulerConfig
from tests.engine.null import VOCAB, NullProgram, core, request, solo

SYSTEM = [(7 * i + i // 13) % VOCAB for i in range(2000)]


def test_a_thousand_requests_pay_for_their_system_prompt_once():
    program = NullProgram()
    engine = core(
        program=program,
        context_size=2100,
        scheduler=SchedulerConfig(max_sequences=32, max_batch_sequences=32),
    )
    jobs = [
        engine.submit(request(engine, [*SYSTEM, i % VOCAB, i // VOCAB], max_tokens=1))
        for i in range(1000)
    ]
    for i, job in enumerate(jobs):
        done = job.result(60)
        if i % 97 == 0:
            assert list(done.tokens) == solo([*SYSTEM, i % VOCAB, i // VOCAB], 1)
        assert i == 0 or done.usage.cached_tokens >= 2000
    found = engine.metrics()
    assert (
        program.evaluated
        == found.tokens_prefilled_total
        == 2002 + 999 * 2 - sum(job.cached - 2000 for job in jobs[1:])
    )
    assert found.kv_hits_total == 999 and found.pages_leaked == 0
    engine.close()


@pytest.mark.parametrize("together", [False, True])
def test_nothing_is_shared_between_adapters(together):
    program = NullProgram()
    engine = core(program=program)
    prompt = [(5 * i) % VOCAB for i in range(80)]
    jobs = []
    for adapters in ((), (("style", 1.0),), (("style", 0.5),), (("style", 1.0),)):
        session = engine.new_session(prompt, adapters=adapters)
        jobs.append(engine.submit(request(engine, None, session=session, max_tokens=3)))
        if not together:
            jobs[-1].result(60)
    cached = [job.result(60).usage.cached_tokens for job in jobs]
    assert cached[:3] == [0, 0, 0] and cached[3] >= 64
    assert all(list(job.result(60).tokens) == solo(prompt, 3) for job in jobs)
    engine.close()


def test_pages_in_use_are_tokens_over_sixteen_and_one_a_session():
    engine = core(prefix=False)
    rng, sessions = random.Random(4), []
    for _ in range(25):
        session = engine.keep(engine.new_session())
        engine.extend(session, [rng.randrange(VOCAB) for _ in range(rng.randint(1, 90))])
        sessions.append(session)
    assert engine.pool.pages_used <= sum(map(len, sessions)) / 16 + len(sessions)
    twins = [session.fork() for session in sessions]
    # forks share everything
    assert engine.pool.pages_used <= sum(map(len, sessions)) / 16 + len(sessions)
    for each in (*sessions, *twins):
        each.close()
    assert engine.pool.pages_used == 0
    engine.close()


def test_a_request_that_shares_nothing_takes_nothing_and_leaves_nothing():
    engine = core()
    prompt = [(3 * i) % VOCAB for i in range(50)]
    for shares, cached in ((False, 0), (True, 0), (False, 0), (True, 49)):
        done = engine.submit(request(engine, prompt, max_tokens=4, cache=shares)).result(60)
        assert list(done.tokens) == solo(prompt, 4) and done.usage.cached_tokens == cached
    engine.close()


def test_a_long_context_costs_nothing_until_it_is_used(cases):
    with oxillama.load(
        cases / "stories260K" / "stories260K-f32.gguf", context_size=1 << 20
    ) as engine:
        assert engine.metrics().page_memory_bytes == 0
        engine.generate([1, 2, 3], max_tokens=2)
        # a million tokens would take ten times as much
        assert 0 < engine.metrics().page_memory_bytes < 1 << 26


def test_an_embedding_longer_than_the_context_is_refused_and_one_longer_than_a_chunk_is_whole(
    cases,
):
    path = cases / "stories260K" / "stories260K-f32.gguf"
    with (
        oxillama.load(path, context_size=200, prefill_chunk_size=16) as small,
        oxillama.load(path) as large,
    ):
        ids = [(3 * i + 1) % 512 for i in range(201)]
        assert np.array_equal(small.embed(ids[:200]), large.embed(ids[:200]))
        with pytest.raises(oxillama.ContextError, match="201 tokens, the context holds 200"):
            small.embed(ids)
