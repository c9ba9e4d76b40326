"""Beam search: against trying everything, against greedy, whoever else is there, one step a
token.
"""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.engine.beam import BeamSearchConfig, likeliest, make_beams
from oxillama.engine.request import BeamRequest
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.errors import Cancelled, ConfigError, PoolError, SamplingError
from oxillama.options import Options
from oxillama.sampling import SamplerConfig
from tests.engine.null import VOCAB, NullMemory, NullProgram, core, hashed, request, solo

END = 5
DEFAULT = SamplerConfig()


def search(engine, prompt, sampler=None, session=None, **config):
    """A submitted beam search over token ids."""
    options = Options(sampler=sampler or SamplerConfig.greedy())
    return engine.submit(
        make_beams(
            engine,
            None,
            options,
            config=BeamSearchConfig(**config),
            default=DEFAULT,
            prompt=prompt,
            session=session,
        )
    )


def log_softmax(row):
    wide = row.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


def everything(prompt, tokens, length, penalty):
    """Every continuation over `tokens` that ends with END or is `length` long: (score, sum, tokens,
    finished), best first.
    """
    found, open_ = [], [((), 0.0)]
    for size in range(1, length + 1):
        grown = []
        for held, total in open_:
            values = log_softmax(hashed([*prompt, *held], VOCAB))
            for token in tokens:
                now = total + values[token]
                if token == END or size == length:
                    found.append(
                        (
                            now / size**penalty,
                            now,
                            held if token == END else (*held, token),
                            token == END,
                        )
                    )
                else:
                    grown.append(((*held, token), now))
        open_ = grown
    return sorted(found, key=lambda each: -each[0])


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("prompt", [[1, 2, 3], [9], [7] * 20])
def test_a_search_as_wide_as_everything_finds_the_best_of_everything(prompt, penalty, early):
    tokens = (2, END, 11)
    engine = core(prefix=False)
    sampler = SamplerConfig.greedy(allowed_tokens=tokens, stop_token_ids=(END,))
    found = search(
        engine,
        prompt,
        sampler,
        beam_width=81,
        max_new_tokens=4,
        length_penalty=penalty,
        early_stopping=early,
    ).result(20)
    wanted = everything(prompt, tokens, 4, penalty)
    assert len(found) == len(wanted) == 1 + 2 + 4 + 8 * 3
    assert [(each.tokens, each.finished) for each in found] == [
        (held, ended) for _, _, held, ended in wanted
    ]
    assert np.allclose(
        [each.logprob_sum for each in found],
        [total for _, total, _, _ in wanted],
        rtol=1e-12,
        atol=0,
    )
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    engine.close()


def test_a_search_says_when_its_first_tokens_came():
    engine = core()
    request = search(engine, [1, 2, 3], SamplerConfig.greedy(), beam_width=2, max_new_tokens=3)
    request.result(20)
    timings = request.timings()
    assert 0 < timings.first_token_seconds <= timings.total_seconds
    assert timings.prompt_tokens_per_second > 0
    engine.close()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    st.floats(-2, 4),
    st.integers(1, 6),
    st.integers(1, 25),
)
def test_stopping_early_never_changes_what_is_found(prompt, penalty, width, length):
    engine = core()
    sampler = SamplerConfig.greedy(allowed_tokens=(2, 3, END), stop_token_ids=(END,))
    early, late = (
        search(
            engine,
            prompt,
            sampler,
            beam_width=width,
            max_new_tokens=length,
            length_penalty=penalty,
            early_stopping=stop,
        ).result(20)
        for stop in (True, False)
    )
    assert early == late
    engine.close()


@pytest.mark.parametrize(("penalty", "most"), [(-1.0, 8), (0.0, 8), (1.0, 55), (2.0, 60)])
def test_stopping_early_saves_steps(penalty, most):
    sampler = SamplerConfig.greedy(
        allowed_tokens=(2, 3, END), stop_token_ids=(END,), logit_bias={END: 3.0}
    )
    steps = []
    for early in (True, False):
        program = NullProgram()
        engine = core(program=program)
        search(
            engine,
            [4, 4],
            sampler,
            beam_width=3,
            max_new_tokens=60,
            length_penalty=penalty,
            early_stopping=early,
        ).result(20)
        steps.append(len(program.rows))
        engine.close()
    assert steps[0] <= most <= steps[1] == 60


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    st.integers(1, 30),
    st.integers(0, VOCAB - 1),
    st.integers(0, 9),
)
def test_width_one_is_greedy(prompt, length, stop, least):
    engine, least = core(), min(least, length)
    sampler = SamplerConfig.greedy(
        stop_token_ids=(stop,),
        banned_tokens=(3, 60),
        min_tokens=least,
        logit_bias={7: 1.5, 8: -math.inf},
    )
    job = request(
        engine,
        prompt,
        max_tokens=length,
        sampler=sampler,
        stop_ids=frozenset([stop]),
        min_tokens=least,
    )
    wanted = engine.submit(job).result(20)
    for early in (True, False):
        (found,) = search(
            engine, prompt, sampler, beam_width=1, max_new_tokens=length, early_stopping=early
        ).result(20)
        assert found.tokens == wanted.tokens and found.finished == (wanted.finish_reason == "stop")
    engine.close()


def reference(prompt, width, length):
    """The same search in a few lines, over hashes."""
    beams = [((), 0.0)]
    for _ in range(length):
        grown = [
            ((*held, token), total + value)
            for held, total in beams
            for token, value in enumerate(log_softmax(hashed([*prompt, *held], VOCAB)))
        ]
        beams = sorted(grown, key=lambda each: -each[1])[:width]
    return [held for held, _ in beams]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_what_is_found_does_not_depend_on_companions_chunks_cache_or_preemption(data):
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    batch = rng.choice([3, 16, 64])
    config = SchedulerConfig(
        max_batch_tokens=batch,
        max_batch_sequences=rng.randint(1, min(8, batch)),
        max_sequences=rng.randint(1, 6),
        max_prefill_tokens=rng.randint(1, 40),
        prefill_chunk=rng.randint(1, 64),
    )
    engine = core(
        scheduler=config, max_pages=rng.choice([None, 24, 40]), prefix=rng.choice([None, False])
    )
    jobs = []
    for _ in range(rng.randint(1, 6)):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 50))]
        width, length = rng.randint(1, 7), rng.randint(1, 12)
        jobs.append(
            (
                search(engine, prompt, beam_width=width, max_new_tokens=length),
                reference(prompt, width, length),
            )
        )
        other = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 50))]
        jobs.append((engine.submit(request(engine, other, max_tokens=20)), solo(other, 20)))
    for job, wanted in jobs:
        found = job.result(30)
        assert (
            [each.tokens for each in found] == wanted
            if isinstance(job, BeamRequest)
            else list(found.tokens) == wanted
        )
    metrics = engine.metrics()
    assert metrics.pages_leaked == 0
    engine.close()
    assert engine.pool.pages_used == 0


def test_all_beams_take_one_step_a_token_whoever_else_decodes():
    program = NullProgram()
    engine = core(program=program, scheduler=SchedulerConfig(max_batch_sequences=5))
    found = search(engine, [1, 2, 3], beam_width=4, max_new_tokens=30).result(20)
    # the prompt's row draws the first token
    assert program.rows == [3, *[4] * 29] and len(found) == 4
    others = [engine.submit(request(engine, [number], max_tokens=200)) for number in range(7)]
    before = engine.metrics().steps_total
    together = search(engine, [1, 2, 3], beam_width=4, max_new_tokens=30)
    assert together.result(20) == found and engine.metrics().steps_total > before
    for number, job in enumerate(others):
        assert list(job.result(20).tokens) == solo([number], 200)
    engine.close()


def test_beams_wider_than_a_step_take_several():
    program = NullProgram()
    engine = core(program=program, scheduler=SchedulerConfig(max_batch_sequences=4))
    found = search(engine, [8, 9], beam_width=10, max_new_tokens=6).result(20)
    assert [each.tokens for each in found] == reference([8, 9], 10, 6)
    assert program.rows == [2, *[4, 4, 2] * 5]
    engine.close()


def test_searches_of_many_widths_share_steps_and_none_starves():
    engine = core(scheduler=SchedulerConfig(max_batch_sequences=6))
    jobs = [
        (search(engine, [width, 2], beam_width=width, max_new_tokens=9), width)
        for width in (6, 1, 4, 3, 6, 2)
    ]
    jobs += [
        (search(engine, [width, 2], beam_width=width, max_new_tokens=9), width) for width in (11, 5)
    ]
    for job, width in jobs:
        assert [each.tokens for each in job.result(20)] == reference([width, 2], width, 9)
    engine.close()


def test_beams_share_their_pages():
    memory = NullMemory()
    engine = core(memory=memory, prefix=False, max_pages=70)
    prompt = [(3 * i) % VOCAB for i in range(330)]
    # 21 pages of the prompt are held once
    found = search(engine, prompt, beam_width=8, max_new_tokens=20).result(20)
    assert [each.tokens for each in found] == reference(prompt, 8, 20)
    assert engine.metrics().requests_preempted_total == 0 and engine.pool.pages_used == 0
    # at most one page begun, per beam and token
    assert memory.copied <= 20 * 8 * 15
    engine.close()


def test_a_session_is_left_as_it_was():
    engine = core()
    session = engine.keep(engine.new_session())
    engine.extend(session, [4, 5, 6])
    found = search(engine, [7], session=session, beam_width=3, max_new_tokens=5).result(20)
    assert [each.tokens for each in found] == reference([4, 5, 6, 7], 3, 5)
    assert session.tokens == [4, 5, 6] and not session.busy
    assert np.array_equal(engine.extend(session, [1]), hashed([4, 5, 6, 1], VOCAB))
    engine.drop(session)
    assert engine.metrics().pages_leaked == 0
    engine.close()


def test_a_search_that_is_preempted_finds_the_same():
    engine = core(max_pages=16, prefix=False)
    with engine.step_lock:  # neither is over before the other begins
        old = engine.submit(request(engine, [1] * 90, max_tokens=60))
        job = search(engine, [2] * 20, beam_width=4, max_new_tokens=30)
    assert list(old.result(20).tokens) == solo([1] * 90, 60)
    assert [each.tokens for each in job.result(20)] == reference([2] * 20, 4, 30)
    assert engine.metrics().requests_preempted_total > 0
    engine.close()
    assert engine.pool.pages_used == 0


def test_a_search_too_big_for_the_pool_fails_alone():
    engine = core(max_pages=6, prefix=False)
    big, small = (
        search(engine, [1] * 20, beam_width=8, max_new_tokens=40),
        engine.submit(request(engine, [1], max_tokens=5)),
    )
    with pytest.raises(PoolError, match="page pool"):
        big.result(20)
    assert list(small.result(60).tokens) == solo([1], 5)
    engine.close()
    assert engine.pool.pages_used == 0


def test_a_cancelled_search_gives_its_pages_back():
    engine = core(program=NullProgram(seconds_per_row=0.001), prefix=False)
    job = search(engine, [1, 2], beam_width=4, max_new_tokens=300)
    while not engine.metrics().tokens_generated_total:
        pass
    job.cancel()
    with pytest.raises(Cancelled):
        job.result(60)
    assert engine.pool.pages_used == 0 and engine.metrics().requests_cancelled_total == 1
    engine.close()


def test_a_search_with_nothing_left_to_draw_says_so():
    engine = core()
    job = search(
        engine, [1], SamplerConfig.greedy(allowed_tokens=(3,), banned_tokens=(3,)), max_new_tokens=4
    )
    with pytest.raises(SamplingError, match="no beam has a token left"):
        job.result(60)
    engine.close()


@pytest.mark.parametrize(
    "bad",
    (
        dict(beam_width=0),
        dict(beam_width=True),
        dict(max_new_tokens=1.5),
        dict(length_penalty=17),
        dict(length_penalty=math.nan),
        dict(early_stopping=1),
    ),
)
def test_configs_that_cannot_be_honoured_raise(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        BeamSearchConfig(**bad)


@pytest.mark.parametrize(
    "bad",
    (
        dict(seed=1),
        dict(max_tokens=5),
        dict(logprobs=1),
        dict(context_shift=True),
        dict(n=2),
        dict(sampler=SamplerConfig()),
        dict(sampler=SamplerConfig.greedy(frequency_penalty=1.0)),
        dict(sampling_fields={"frequency_penalty": 1.0}),
    ),
)
def test_options_that_mean_nothing_to_a_search_raise(bad):
    engine = core()
    with pytest.raises(ConfigError):
        make_beams(
            engine, None, Options(**bad), config=BeamSearchConfig(), default=DEFAULT, prompt=[1]
        )
    engine.close()


@given(st.integers(0, 2**32), st.integers(1, 70), st.booleans())
def test_the_likeliest_are_those_of_a_full_sort(seed, count, narrow):
    rng = np.random.default_rng(seed)
    row = np.round(rng.standard_normal(VOCAB) * 4, 1).astype(np.float32)  # with ties
    allowed = rng.random(64) < 0.5
    masks = [np.packbits(allowed, bitorder="little").view(np.uint32)] if narrow else []
    ids, values = likeliest(row, count, masks)
    alive = [token for token in range(VOCAB) if not narrow or allowed[token]]
    wanted = sorted(alive, key=lambda token: (-row[token], token))[:count]
    assert ids == wanted
    assert np.allclose(values, log_softmax(row)[wanted], rtol=0, atol=1e-12)
