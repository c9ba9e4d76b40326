"""Requests in a queue: who goes first, how long they may take, and how many may wait."""

import asyncio
import threading
import time

import numpy as np
import pytest

import oxillama
from oxillama.engine.request import all_finished
from oxillama.engine.scheduler import ScheduleEntry, Scheduler, SchedulerConfig, State
from oxillama.engine.tracker import Deadlines
from oxillama.errors import ConfigError, ContextError, QueueFull
from tests.engine.null import VOCAB, NullProgram, core, request, solo


class Held(NullProgram):
    """Takes no step before it is let go."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    def step(self, *batch, **more):
        assert self.go.wait(20)
        return super().step(*batch, **more)


def finished_in_order(engine, jobs):
    """The numbers of jobs in the order of their ends."""
    ends = []
    for number, job in enumerate(jobs):
        job.listen(lambda number=number, job=job: job.done and ends.append(number), in_loop=True)
        engine.submit(job)
    engine.program.go.set()
    for job in jobs:
        job.result(20)
    return ends


def test_the_lower_number_goes_first_among_those_that_wait():
    engine = core(program=Held(), prefix=False, scheduler=SchedulerConfig(max_sequences=1))
    given = [0, 5, 1, -2, 1, 5]
    jobs = [request(engine, [at, 1], max_tokens=3, priority=p) for at, p in enumerate(given)]
    ends = finished_in_order(engine, jobs)
    assert ends == sorted(range(6), key=lambda at: (given[at], at))
    for at, job in enumerate(jobs):
        assert list(job.result().tokens) == solo([at, 1], 3)
    engine.close()


def test_one_that_waits_takes_the_place_of_a_higher_number_which_has_its_tokens_all_the_same():
    engine = core(
        program=NullProgram(seconds_per_row=0.002),
        prefix=False,
        scheduler=SchedulerConfig(max_sequences=2),
    )
    slow = [engine.submit(request(engine, [at] * 9, max_tokens=40, priority=1)) for at in range(2)]
    while not all(job.generated for job in slow):
        time.sleep(0.001)
    quick = engine.submit(request(engine, [7], max_tokens=3))
    assert list(quick.result(60).tokens) == solo([7], 3)
    assert not any(job.done for job in slow)
    assert [list(job.result(60).tokens) for job in slow] == [solo([at] * 9, 40) for at in range(2)]
    assert engine.metrics().requests_preempted_total == 1
    engine.close()


def test_pages_are_taken_from_the_last_rank():
    held, taken = {}, []

    def reserve(entry, length):
        need = -(-length // 16)
        if sum(held.values()) - held.get(entry, 0) + need > 4:
            return False
        held[entry] = need
        return True

    def release(entry):
        taken.append(entry)
        held.pop(entry, None)

    sched = Scheduler(SchedulerConfig(), admit=lambda entry: True, reserve=reserve, release=release)
    last, first, middle = (ScheduleEntry(20, priority=p) for p in (3, 0, 1))
    for entry in (last, first, middle):
        sched.add(entry)
        for each, rows in sched.schedule():
            each.done += min(rows, 19)
    assert taken == [last] and last.state is State.PREEMPTED
    assert [entry.state for entry in (first, middle)] == [State.PREFILLING] * 2


def test_a_request_ends_when_its_time_is_over_with_what_it_has():
    engine = core(program=NullProgram(seconds_per_row=0.004), context_size=2000)
    # a deadline far away, which the next one is not to wait for
    other = engine.submit(request(engine, [1], max_tokens=60, timeout=1000))
    job = engine.submit(request(engine, [2], max_tokens=1500, timeout=0.1))
    done = job.result(60)
    assert done.finish_reason == "timeout" and 0 < len(done.tokens) < 100
    assert list(done.tokens) == solo([2], len(done.tokens)) and not job.cancelled
    assert list(other.result(60).tokens) == solo([1], 60)
    metrics = engine.metrics()
    assert (metrics.requests_timed_out_total, metrics.requests_completed_total) == (1, 2)
    # one that waits, too
    program, engine._scheduler.config = engine.program, SchedulerConfig(max_sequences=1)
    long = engine.submit(request(engine, [3], max_tokens=1500))
    while not long.generated:
        time.sleep(0.001)
    waiting = engine.submit(request(engine, [4], max_tokens=5, timeout=0.02))
    assert waiting.result(60).finish_reason == "timeout" and not waiting.generated
    # a step that is mostly its own is stopped
    long.cancel()
    long.result(60)
    program.seconds_per_row = 0.02
    prompt = [at % VOCAB for at in range(500)]
    ended = engine.submit(request(engine, prompt, max_tokens=5, timeout=0.05)).result(60)
    assert ended.finish_reason == "timeout" and ended.tokens == ()
    engine.close()


def test_the_deadlines_of_ended_requests_are_not_kept():
    class Ended:
        done = False

        def expire(self, request):
            raise AssertionError(request)

    owner, requests = Ended(), [Ended() for _ in range(500)]
    deadlines = Deadlines(owner.expire)
    for each in requests:
        deadlines.add(each, 1000)
        each.done = each is not requests[300]
        assert len(deadlines._heap) <= 128
    assert [each for *_, each in deadlines._heap if each() is requests[300]]
    deadlines.close()


def test_the_session_of_one_whose_time_was_over_goes_on():
    engine = core(program=NullProgram(seconds_per_row=0.004), context_size=2000)
    session = engine.keep(engine.new_session([5, 6]))
    first = engine.submit(request(engine, None, session=session, timeout=0.05, max_tokens=900))
    begun = list(first.result(60).tokens)
    more = engine.submit(request(engine, None, session=session, max_tokens=4)).result(60)
    assert [*begun, *more.tokens] == solo([5, 6], len(begun) + 4)
    engine.close()


@pytest.mark.parametrize("refused", (False, True))
def test_an_error_while_results_are_collected_cancels_all(refused):
    """Of a request, or of what begins the next one."""
    engine = core(program=NullProgram(seconds_per_row=0.002), context_size=2000)
    failed = request(engine, [3], max_tokens=1)
    failed.end(None, ContextError("too long"))
    running = [engine.submit(request(engine, [at], max_tokens=1500)) for at in range(2)]

    def begun():
        yield from (failed, *running)
        if refused:
            raise QueueFull("no more")

    with pytest.raises(QueueFull if refused else ContextError):
        all_finished(begun())
    assert [each.result(60).finish_reason for each in running] == ["cancelled"] * 2
    engine.close()


def test_no_more_wait_than_the_bound():
    engine = core(
        program=Held(), scheduler=SchedulerConfig(max_sequences=2, max_waiting=3), prefix=False
    )
    jobs = [engine.submit(request(engine, [at], max_tokens=2)) for at in range(5)]
    with pytest.raises(QueueFull, match="5 requests in flight and 1 more"):
        engine.submit(request(engine, [9]))
    assert engine.metrics().requests_refused_total == 1
    jobs[4].cancel()
    engine.program.go.set()
    for at, job in enumerate(jobs[:4]):
        assert list(job.result(60).tokens) == solo([at], 2)
    assert list(engine.submit(request(engine, [9], max_tokens=2)).result(60).tokens) == solo([9], 2)
    engine.close()


def test_a_list_of_prompts_waits_for_itself_and_nobody_is_refused():
    bound = SchedulerConfig(max_sequences=1, max_waiting=1, max_batch_sequences=1)
    with oxillama.load(num_threads=1, scheduler=bound) as engine:
        prompts = [f"Story {at}" for at in range(7)]
        options = dict(max_tokens=3, temperature=0)
        wanted = [engine.generate(each, **options).tokens for each in prompts]
        assert [each.tokens for each in engine.generate(prompts, **options)] == wanted
        assert engine.metrics().requests_refused_total >= 1
        running = [engine.submit("Once", ignore_eos=True) for _ in range(2)]
        with pytest.raises(QueueFull):
            engine.generate(["Once", "One"])
        for each in running:
            each.cancel()


def test_lists_of_texts_and_documents_wait_for_themselves_too(cases):
    bound = SchedulerConfig(max_sequences=1, max_waiting=1, max_batch_sequences=1)
    path = cases / "embed" / "bert_rerank" / "f32.gguf"
    texts = ["the dog", "a cat", "", "one [SEP] two", "the dog", "a", "some more"]
    with oxillama.load(path, num_threads=1, scheduler=bound) as engine:
        ids = [engine.tokenize(each) for each in texts]
        wanted = [engine.embed(each, pooling="mean") for each in ids]
        scores = [engine.score("a cat", each) for each in texts]
        assert np.array_equal(engine.embed_batch(ids, pooling="mean"), wanted)
        assert sorted(engine.rerank("a cat", texts)) == list(enumerate(scores))

        async def served():
            doors = oxillama.AsyncEngine(engine)
            return (
                await doors.embed_batch(ids, pooling="mean"),
                await doors.rerank("a cat", iter(texts), top_n=3),
                [each.shape for each in await doors.embed_batch(ids[:2], pooling="none")],
                (await doors.embed_batch([], pooling="rank")).shape,
            )

        vectors, found, rows, none = asyncio.run(served())
        assert np.array_equal(vectors, wanted)
        assert found == engine.rerank("a cat", texts)[:3]
        assert rows == [(len(each), engine.config.hidden_size) for each in ids[:2]]
        assert none == (0, 1)
        assert engine.metrics().requests_refused_total >= 1


def test_awaiting_texts_and_documents_raises_what_the_engine_raises(cases):
    with oxillama.load(cases / "embed" / "bert_rerank" / "f32.gguf", num_threads=1) as engine:
        doors = oxillama.AsyncEngine(engine)
        for call, error, message in (
            (lambda: doors.embed_batch("a"), ConfigError, "embed_batch: found str"),
            (
                lambda: doors.embed_batch(["a", None]),
                ConfigError,
                r"texts\[1\]: prompt: found",
            ),
            (lambda: doors.embed_batch(["a"], pooling="x"), ConfigError, "pooling: found 'x'"),
            (lambda: doors.rerank("a", "b"), ConfigError, "rerank: found str"),
            (lambda: doors.rerank("a", ["b"], top_n=0), ConfigError, "top_n: found 0"),
            (lambda: doors.rerank("a", ["b", "c " * 600]), ContextError, r"documents\[1\]: prompt"),
        ):
            with pytest.raises(error, match=f"^{message}"):
                asyncio.run(call())
        assert engine.metrics().requests_running == 0


@pytest.mark.parametrize("value", [-1, 1.5, "many", True])
def test_a_bound_that_is_none_is_refused(value):
    with pytest.raises(ConfigError, match="max_waiting: found"):
        SchedulerConfig(max_waiting=value)
