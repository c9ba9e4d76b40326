"""Sessions by a machine that tries everything: forks, truncations, generations and drops, against
plain lists of tokens.
"""

import threading
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import oxillama
from oxillama.engine.output import StopText
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.errors import (
    Cancelled,
    ConfigError,
    ContextError,
    EngineError,
    PoolError,
    QueueFull,
)
from oxillama.sampling import SamplerConfig
from tests.engine.null import VOCAB, NullProgram, core, hashed, request, solo

SEEDED = SamplerConfig(seed=3)


class SessionMachine(RuleBasedStateMachine):
    """Every session is a list of tokens; whatever was shared, its logits are those of the list."""

    def __init__(self):
        super().__init__()
        self.engine = core(
            max_pages=40,
            scheduler=SchedulerConfig(max_batch_tokens=16, prefill_chunk=7, max_batch_sequences=3),
        )
        self.sessions = [(self.engine.keep(self.engine.new_session()), [])]

    def teardown(self):
        for session, _ in self.sessions:
            session.close()
        found = self.engine.metrics()
        assert found.pages_leaked == 0 and found.pages_used == found.pages_cached
        self.engine.close()
        assert self.engine.pool.pages_used == 0

    @rule(
        index=st.integers(0, 99), ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)
    )
    def extend(self, index, ids):
        session, held = self.sessions[index % len(self.sessions)]
        if len(held) + len(ids) > 300:
            return
        held.extend(ids)
        assert (self.engine.extend(session, ids) == hashed(held, VOCAB)).all()

    @rule(
        pairs=st.lists(
            st.tuples(st.integers(0, 99), st.integers(1, 12)),
            min_size=1,
            max_size=4,
            unique_by=lambda pair: pair[0] % 7,
        )
    )
    def generate_together(self, pairs):
        jobs = {}
        for index, count in pairs:
            session, held = self.sessions[index % len(self.sessions)]
            if held and len(held) < 300 and id(session) not in jobs:
                session.sampler = None
                job = request(self.engine, None, session=session, max_tokens=count, sampler=SEEDED)
                jobs[id(session)] = (self.engine.submit(job), held, count)
        for job, held, count in jobs.values():
            wanted = solo(held, count, SEEDED)
            assert list(job.result(20).tokens) == wanted
            held.extend(wanted)

    @precondition(lambda self: len(self.sessions) < 6)
    @rule(index=st.integers(0, 99))
    def fork(self, index):
        session, held = self.sessions[index % len(self.sessions)]
        self.sessions.append((session.fork(), list(held)))

    @rule(index=st.integers(0, 99), share=st.floats(0, 1))
    def truncate(self, index, share):
        session, held = self.sessions[index % len(self.sessions)]
        del held[int(share * len(held)) :]
        session.truncate(len(held))

    @precondition(lambda self: len(self.sessions) > 1)
    @rule(index=st.integers(0, 99))
    def close(self, index):
        self.sessions.pop(index % len(self.sessions))[0].close()

    @invariant()
    def tokens_are_the_lists_and_no_page_is_lost(self):
        assert all(
            session.tokens == held and session.kv.length <= len(held)
            for session, held in self.sessions
        )
        assert self.engine.metrics().pages_leaked == 0


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_a_busy_session_refuses_changes():
    engine = core()
    session = engine.keep(engine.new_session([1, 2]))
    session.busy = True
    for change in (
        session.fork,
        lambda: session.truncate(1),
        lambda: session.extend([1]),
        session.close,
    ):
        with pytest.raises(EngineError, match="a request is running"):
            change()
    session.busy = False
    with pytest.raises(ContextError, match="length 3, wanted 0 to 2"):
        session.truncate(3)
    engine.close()


def test_a_closed_session_refuses_everything_but_a_look():
    engine = core()
    session = engine.keep(engine.new_session())
    engine.extend(session, [1, 2])
    with session:
        copy = session.fork()
    session.close()
    for use in (
        session.fork,
        lambda: session.truncate(1),
        lambda: session.extend([1]),
        session.kv_cache,
        lambda: engine.extend(session, [1]),
        lambda: engine.submit(request(engine, None, session=session, max_tokens=1)),
    ):
        with pytest.raises(EngineError, match="session: is closed"):
            use()
    assert (session.tokens, repr(session)) == ([1, 2], "<Session 2 tokens, closed>")
    assert "closed" in session._repr_html_()
    assert (engine.extend(copy, [5]) == hashed([1, 2, 5], VOCAB)).all()
    engine.close()


def test_a_session_of_another_engine_is_refused():
    engine, other = core(), core()
    session = other.keep(other.new_session([1, 2]))
    for use in (
        lambda: engine.extend(session, [3]),
        lambda: engine.submit(request(engine, None, session=session, max_tokens=1)),
    ):
        with pytest.raises(EngineError, match="session: belongs to another engine"):
            use()
    with pytest.raises(ConfigError, match="session: found list, wanted a Session"):
        engine.extend([1, 2], [3])
    assert (other.extend(session, [3]) == hashed([1, 2, 3], VOCAB)).all()
    engine.close()
    other.close()


def test_more_tokens_end_what_a_generation_left():
    engine = core()
    session = engine.keep(engine.new_session([1, 2]))
    engine.submit(request(engine, None, session=session, max_tokens=3)).result(60)
    session.at_start, session.stops = True, StopText(["END"], "E", 1)
    assert session.sampler is not None
    session.extend([3])
    left = (session.pending, session.sampler, session.grammar, session.text, session.stops)
    assert left == (None,) * 5 and session.at_start is False
    engine.close()


def test_a_change_waits_for_a_request_that_was_cancelled():
    engine = core(program=NullProgram(0.005))
    for change in (
        lambda session: session.fork(),
        lambda session: session.truncate(1),
        lambda session: session.extend([1]),
        lambda session: engine.extend(session, [1]),
        lambda session: session.close(),
    ):
        session = engine.keep(engine.new_session([1, 2]))
        job = engine.submit(request(engine, None, session=session, max_tokens=200))
        next(iter(job))
        job.cancel()
        change(session)
        assert not session.busy and job.done
    assert engine.metrics().pages_leaked == 0
    engine.close()


def test_idle_sessions_lend_their_pages_and_go_on_with_the_same_bits():
    engine = core(max_pages=8, prefix=False)
    idle = engine.keep(engine.new_session())
    engine.extend(idle, list(range(60)))
    busy = engine.submit(request(engine, [3] * 70, max_tokens=20))
    assert list(busy.result(60).tokens) == solo([3] * 70, 20) and not idle.kv.pages
    assert (engine.extend(idle, [5]) == hashed([*range(60), 5], VOCAB)).all()
    engine.close()


def test_tokens_that_did_not_fit_are_taken_back():
    engine = core(context_size=50)
    session = engine.keep(engine.new_session())
    engine.extend(session, [1] * 40)
    for extend in (session.extend, lambda ids: engine.extend(session, ids)):
        with pytest.raises(ContextError, match="40 tokens and 11 more, the context holds 50") as e:
            extend([2] * 11)
        assert session.tokens == [1] * 40 and (e.value.tokens, e.value.limit) == (51, 50)
    session.extend([2] * 10)
    assert len(session) == 50
    engine.close()


@pytest.mark.parametrize("before", [1, 5, None])
def test_a_prompt_whose_beginning_was_evaluated_has_its_log_probabilities_reported_whole(
    engine, before
):
    ids = engine.tokenize("Once upon a time there was a girl")
    wanted = engine.generate(ids, prompt_logprobs=2, max_tokens=4, seed=7)
    assert len(wanted.prompt_logprobs) == len(ids) - 1
    session = engine.session()
    engine.prefill(ids[:before], session=session)
    done = engine.generate(
        ids[before:] if before else None, session=session, prompt_logprobs=2, max_tokens=4, seed=7
    )
    assert done.prompt_logprobs == wanted.prompt_logprobs and done.tokens == wanted.tokens


@pytest.mark.parametrize("cache", [True, False])
def test_what_a_session_holds_counts_as_cached(engine, cache):
    session, options = engine.session(), {"max_tokens": 4, "seed": 1, "cache_prompt": cache}
    engine.generate("Once upon a time there was", session=session, **options)
    held = len(session)
    done = engine.generate(" and", session=session, **options)
    assert done.usage.prompt_tokens == held + len(engine.tokenize(" and", add_special=False))
    assert done.usage.cached_tokens == held - 1  # the last token drawn is still to be evaluated
    again = engine.generate(None, session=session, **options)
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1


def test_a_completion_names_the_seed_it_was_drawn_with_whatever_its_session_does_later(engine):
    session = engine.session()
    first = engine.submit("Once", session=session, seed=1, max_tokens=3)
    assert first.result().seed == 1
    second = engine.submit(" upon", session=session, seed=2, max_tokens=3)
    assert (second.result().seed, first.result().seed) == (2, 1)
    session.truncate(1)
    assert (second.result().seed, first.result().seed) == (2, 1)


class Interrupted(list):
    """Tokens; somebody else appends to the session while they are looked at for the first time."""

    def __init__(self, ids, other):
        super().__init__(ids)
        self.other = [other]

    def __len__(self):
        while self.other:
            self.other.pop()()
        return super().__len__()

    def __iter__(self):
        len(self)
        return super().__iter__()


@pytest.mark.parametrize("ids, error", [([VOCAB + 5], ConfigError), ([5] * 20, ContextError)])
def test_a_prefill_that_is_refused_takes_no_tokens_of_another_away(ids, error):
    engine = core(context_size=30)
    session = engine.keep(engine.new_session())
    with pytest.raises(error):
        engine.extend(session, Interrupted(ids, lambda: engine.extend(session, [7] * 15)))
    assert (
        session.tokens == [7] * 15
        and session.kv.length == 15
        and (session.pending == hashed([7] * 15, VOCAB)).all()
    )
    engine.close()


def test_a_prefill_that_is_cancelled_is_undone_before_anybody_else_may_append():
    program = NullProgram(seconds_per_row=0.01)
    engine = core(program=program)
    session = engine.keep(engine.new_session())
    program.seconds_per_row, held = 0.0, []
    engine.extend(session, [1, 2, 3])
    program.seconds_per_row = 0.01

    def cancel():
        while not (running := tuple(engine._tracker.in_flight)):
            time.sleep(0.001)
        running[0].listen(lambda: held.append((session.busy, list(session.tokens))), in_loop=True)
        running[0].cancel()

    other = threading.Thread(target=cancel)
    other.start()
    with pytest.raises(Cancelled):
        engine.extend(session, [4] * 200)
    other.join()
    assert held == [(False, [1, 2, 3])] and session.tokens == [1, 2, 3]
    program.seconds_per_row = 0.0
    assert (engine.extend(session, [9]) == hashed([1, 2, 3, 9], VOCAB)).all()
    engine.close()


@pytest.mark.parametrize("least", (0, 2))
def test_after_a_prefill_that_failed_a_generation_goes_on_as_before(model, least):
    options = dict(sampler=SamplerConfig(temperature=1.0, seed=5, min_tokens=least), logprobs=0)
    with oxillama.load(model, num_threads=1, max_pages=3, prefix_cache=False) as engine:
        whole = engine.generate([5, 6, 7], max_tokens=9, **options)
        session = engine.session()
        begun = engine.generate([5, 6, 7], session=session, max_tokens=4, **options)
        before = session.start, session.sampler, list(session.tokens)
        with pytest.raises(PoolError):
            engine.prefill([9] * 60, session=session)
        assert (session.start, session.sampler, session.tokens) == before
        rest = engine.generate(None, session=session, max_tokens=5)
    assert begun.tokens + rest.tokens == whole.tokens
    assert begun.logprobs + rest.logprobs == whole.logprobs


def test_a_beam_search_that_is_refused_leaves_no_pages_behind(model):
    limits, go = SchedulerConfig(max_sequences=1, max_waiting=0), threading.Event()
    with oxillama.load(model, num_threads=1, scheduler=limits, prefix_cache=False) as engine:
        session = engine.session()
        engine.prefill([5, 6, 7], session=session)
        running = engine.submit(
            [1], max_tokens=1, processors=[lambda ids, row: go.wait(20) and None]
        )
        with pytest.raises(QueueFull):
            engine.beam_generate(None, session=session)
        go.set()
        running.result(20)
        session.close()
        found = engine.metrics()
        assert (found.pages_used, found.pages_leaked) == (0, 0)
