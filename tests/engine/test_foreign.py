"""What a request brings along (a listener, a drafter, a processor) ends that request at most, and
every request that was begun ends.
"""

import sys
import threading
import time

import pytest

from oxillama.engine.scheduler import SchedulerConfig
from oxillama.engine.siblings import make_siblings
from oxillama.engine.stream import Stream
from oxillama.errors import ConfigError
from oxillama.options import Options
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative.types import Candidates, Draft
from tests.engine.null import VOCAB, NullProgram, core, request, solo


class Drafting:
    """A drafter that does what it is told: `proposes` for each session, raising what is an
    exception; so at its end, too.
    """

    def __init__(self, proposes, closes=None):
        self.proposes, self.closes = proposes, closes

    def open(self, session):
        return None

    def propose(self, asks):
        if isinstance(self.proposes, BaseException):
            raise self.proposes
        return [self.proposes] * len(asks)

    def close(self, state, session):
        if self.closes is not None:
            raise self.closes


def drafted(engine, prompt, drafter, **more):
    made = request(engine, prompt, **more)
    made.speculation = engine.speculator.speculation(
        Candidates(drafter, adaptive=False), made.session
    )
    return made


@pytest.fixture
def beside():
    """An engine in which another request runs; afterwards it must have had its own tokens, and
    another must run still.
    """
    engine = core(program=NullProgram(seconds_per_row=0.0005))
    other = engine.submit(request(engine, [1, 2], max_tokens=40))
    yield engine
    assert list(other.result(60).tokens) == solo([1, 2], 40)
    assert list(engine.submit(request(engine, [7])).result(60).tokens) == solo([7])
    metrics = engine.metrics()
    assert (metrics.requests_running, metrics.requests_waiting, metrics.pages_leaked) == (0, 0, 0)
    engine.close()


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_a_drafter_raises_at_the_end_goes_to_the_excepthook(beside, cancelled, monkeypatch):
    """Its `close` runs beside the loop, when the request has ended."""
    told = threading.Event()
    monkeypatch.setattr(
        threading, "excepthook", lambda args: str(args.exc_value) == "of close" and told.set()
    )
    made = beside.submit(
        drafted(beside, [3, 4], Drafting(Draft(), RuntimeError("of close")), max_tokens=20)
    )
    if cancelled:
        made.cancel()
    done = made.result(60)
    assert list(done.tokens) == solo([3, 4], 20)[: len(done.tokens)]
    # one that was cancelled before it asked never opened the drafter
    assert told.wait(10 if len(done.tokens) > 1 else 0.01) or cancelled


@pytest.mark.parametrize(
    "proposes",
    [None, Draft([VOCAB]), Draft([-1]), Draft(["a"]), Draft([1 << 40]), Draft([1.0]), Draft(None)],
)
def test_candidates_that_are_no_tokens_fail_their_request(beside, proposes):
    made = beside.submit(drafted(beside, [3, 4], Drafting(proposes), max_tokens=20))
    with pytest.raises(ConfigError, match="draft"):
        made.result(60)


def test_a_drafter_with_too_few_drafts_fails_its_requests(beside):
    class Silent(Drafting):
        def propose(self, asks):
            return []

    made = beside.submit(drafted(beside, [3, 4], Silent(None), max_tokens=20))
    with pytest.raises(ConfigError, match="drafter: found 0 drafts, wanted 1"):
        made.result(60)


def test_a_drafter_that_fails_for_one_of_its_sessions_fails_that_one_alone(beside):
    class Picky(Drafting):
        def propose(self, asks):
            if any(ask.session.tokens[0] == 3 for ask in asks):
                raise ZeroDivisionError("of the session")
            return super().propose(asks)

    drafter = Picky(Draft())
    good = beside.submit(drafted(beside, [5, 6], drafter, max_tokens=40))
    bad = beside.submit(drafted(beside, [3, 4], drafter, max_tokens=40))
    with pytest.raises(ZeroDivisionError):
        bad.result(60)
    assert list(good.result(60).tokens) == solo([5, 6], 40)


def test_a_listener_that_fails_among_the_pieces_fails_its_request(beside):
    def listener():
        raise ZeroDivisionError("of the listener")

    made = request(beside, [3, 4], max_tokens=20)
    made.listen(listener)
    with pytest.raises(ZeroDivisionError):
        beside.submit(made).result(60)


@pytest.mark.parametrize("stop", [StopIteration, StopAsyncIteration])
def test_a_function_that_raises_the_end_of_an_iteration_does_not_end_the_stream(beside, stop):
    def listener():
        raise stop("of the listener")

    made = request(beside, [3, 4], max_tokens=20)
    made.listen(listener)
    with pytest.raises(RuntimeError, match="of the listener") as raised:
        list(Stream(beside.submit(made)))
    assert type(raised.value.__cause__) is stop


def test_a_listener_that_fails_at_the_end_is_told_to_threading_and_the_others_are_called(
    beside, monkeypatch
):
    told, called = [], threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))

    def listener():
        if made.done:
            raise ZeroDivisionError("of the listener")

    made = request(beside, [3, 4], max_tokens=5)
    made.listen(listener)
    made.listen(lambda: made.done and called.set())
    assert list(beside.submit(made).result(60).tokens) == solo([3, 4], 5)
    assert called.wait(60) and told == [ZeroDivisionError]


def test_a_processor_that_asks_to_exit_fails_its_request(beside):
    session = beside.new_session([3, 4])
    session.sampler = Sampler(
        SamplerConfig.greedy(), VOCAB, processors=[lambda tokens, logits: sys.exit(3)]
    )
    with pytest.raises(SystemExit):
        beside.submit(request(beside, None, session=session)).result(60)


def test_a_prefill_that_is_cancelled_leaves_its_session_no_page_beyond_its_length():
    program = NullProgram(seconds_per_row=0.002)
    engine = core(program=program, scheduler=SchedulerConfig(prefill_chunk=256))
    prompt = [at % VOCAB for at in range(200)]
    session = engine.keep(engine.new_session(prompt))
    made = engine.submit(request(engine, None, session=session))
    time.sleep(0.05)
    made.cancel()
    assert made.result(60).finish_reason == "cancelled"
    assert (session.kv.length, session.kv.pages) == (0, [])
    program.seconds_per_row = 0.0
    wanted = solo(prompt)
    assert list(engine.submit(request(engine, prompt)).result(60).tokens) == wanted
    # over a stored prefix
    assert list(engine.submit(request(engine, None, session=session)).result(60).tokens) == wanted
    engine.close()


@pytest.mark.parametrize("alive", [(), (399,), (7, 200)])
def test_hundreds_of_siblings_that_are_cancelled_before_their_prompt_is_evaluated_all_end(alive):
    engine = core(
        program=NullProgram(seconds_per_row=0.001),
        prefix=False,
        scheduler=SchedulerConfig(prefill_chunk=16),
    )
    seeded = SamplerConfig(temperature=1.0, seed=11, repetition_penalty=1.0)
    made = make_siblings(
        engine, None, Options(sampler=seeded, max_tokens=3, n=400), default=seeded, prompt=[5] * 60
    )
    engine.submit(made.requests[0])
    for at, each in enumerate(made.requests):
        if at not in alive:
            each.cancel()
    ends = [each.result(20) for each in made.requests]
    assert {at for at, each in enumerate(ends) if each.finish_reason == "length"} == set(alive)
    for at in alive:
        assert list(ends[at].tokens) == solo([5] * 60, 3, seeded.replace(seed=ends[at].seed))
    engine.close()
