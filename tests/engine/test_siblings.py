"""Several completions of one prompt: evaluated once, each as if it were alone with its seed."""

import asyncio
import time

import pytest

from oxillama.engine.scheduler import SchedulerConfig
from oxillama.engine.siblings import derived_seed, make_siblings
from oxillama.errors import ConfigError
from oxillama.options import Options
from oxillama.sampling import SamplerConfig
from tests.engine.null import VOCAB, NullProgram, core, solo

# penalties would see the prompt, `solo` has none
SEEDED = SamplerConfig(temperature=1.0, seed=11, repetition_penalty=1.0)
PROMPT = [(5 * i) % VOCAB for i in range(70)]


def siblings(engine, prompt=PROMPT, **options):
    made = make_siblings(
        engine,
        None,
        Options(**{"sampler": SEEDED, "max_tokens": 9, **options}),
        default=SEEDED,
        prompt=prompt,
    )
    engine.submit(made.requests[0])
    return made


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    "limits", [{}, {"max_sequences": 2}, {"max_batch_sequences": 3, "prefill_chunk": 7}]
)
def test_each_is_alone_with_its_seed_and_the_prompt_is_evaluated_once(cached, limits):
    program = NullProgram()
    engine = core(
        program=program, prefix=None if cached else False, scheduler=SchedulerConfig(**limits)
    )
    done = siblings(engine, n=6, cache_prompt=cached).result(20)
    assert [each.seed for each in done] == [derived_seed(11, index) for index in range(6)]
    assert [list(each.tokens) for each in done] == [
        solo(PROMPT, 9, SEEDED.replace(seed=each.seed)) for each in done
    ]
    assert len({each.tokens for each in done}) == 6 and done[0].seed == 11
    # the first token of all comes from the prompt's last row
    assert program.evaluated == len(PROMPT) + 6 * 8
    assert [each.usage.cached_tokens for each in done] == [0, *[len(PROMPT)] * 5]
    assert engine.metrics().pages_leaked == 0
    engine.close()
    assert engine.pool.pages_used == 0


def test_the_best_have_the_highest_mean_log_probability():
    engine = core()
    every = siblings(engine, n=8, logprobs=0).result(20)
    best = siblings(engine, n=3, best_of=8).result(20)
    ranked = sorted(
        every,
        key=lambda each: sum(report.raw for report in each.logprobs) / len(each.logprobs),
        reverse=True,
    )
    assert [each.tokens for each in best] == [each.tokens for each in ranked[:3]]
    assert all(each.logprobs == () for each in best) and len(every[0].logprobs) == 9
    engine.close()


@pytest.mark.parametrize("gone", [(0,), (0, 1), (2,), (0, 1, 2)])
def test_who_is_cancelled_before_the_prompt_is_there_leaves_the_others_theirs(gone):
    program = NullProgram(seconds_per_row=0.001)
    engine = core(program=program, prefix=False, scheduler=SchedulerConfig(prefill_chunk=5))
    made = siblings(engine, n=3)
    time.sleep(0.005)
    for index in gone:
        made.requests[index].cancel()
    for index, request in enumerate(made.requests):
        done = request.result(20)
        wanted = solo(PROMPT, 9, SEEDED.replace(seed=derived_seed(11, index)))
        assert done.finish_reason == ("cancelled" if index in gone else "length")
        assert list(done.tokens) == (wanted[: len(done.tokens)] if index in gone else wanted)
    assert engine.metrics().pages_leaked == 0
    engine.close()


def test_an_error_of_the_prompt_is_everybodys_and_one_of_a_sibling_its_own():
    engine = core(max_pages=3)
    made = siblings(engine, n=4)
    for request in made.requests:
        with pytest.raises(Exception, match="page pool"):
            request.result(60)
    engine.close()
    engine = core()
    calls = []

    def second_fails(tokens, logits):
        calls.append(len(tokens))
        if len(calls) == 2:
            raise ArithmeticError("mine")

    made = siblings(engine, n=3, processors=[second_fails])
    with pytest.raises(ArithmeticError):
        made.result(60)
    assert sum(request.error is not None for request in made.requests) == 1
    engine.close()


def test_those_who_wait_lend_their_pages_to_who_runs():
    engine = core(max_pages=7, prefix=False, scheduler=SchedulerConfig(max_sequences=1))
    # 100 tokens: all seven pages, and 40 are shared
    done = siblings(engine, prompt=PROMPT[:40], n=3, max_tokens=60).result(20)
    assert [list(each.tokens) for each in done] == [
        solo(PROMPT[:40], 60, SEEDED.replace(seed=derived_seed(11, index))) for index in range(3)
    ]
    engine.close()
    assert engine.pool.pages_used == 0


def test_waiting_can_be_bounded_awaited_and_closed():
    engine = core(program=NullProgram(seconds_per_row=0.005))
    made = siblings(engine, n=2, max_tokens=300)
    with pytest.raises(TimeoutError):
        made.result(0.01)
    assert not made.done
    engine.close()
    assert [each.finish_reason for each in made.result(60)] == ["cancelled"] * 2 and made.done
    engine = core()

    async def main():
        return await siblings(engine, n=3)

    assert [each.tokens for each in asyncio.run(main())] == [
        each.tokens for each in siblings(engine, n=3).result(60)
    ]
    engine.close()


def test_log_probabilities_of_the_prompt_are_everybodys():
    engine = core()
    done = siblings(engine, n=3, prompt_logprobs=2).result(20)
    assert len(done[0].prompt_logprobs) == len(PROMPT) - 1
    assert all(each.prompt_logprobs == done[0].prompt_logprobs for each in done)
    engine.close()


def test_derived_seeds_are_those_of_splitmix64():
    # its published first outputs
    assert derived_seed(0, 1) == 0xE220A8397B1DCDAF and derived_seed(0, 2) == 0x6E789E6AA1B965F4
    assert (
        derived_seed(9, 0) == 9
        and len({derived_seed(seed, index) for seed in range(20) for index in range(20)}) == 400
    )


@pytest.mark.parametrize("bad", (dict(n=0), dict(n=True), dict(n=3, best_of=2), dict(best_of=1.5)))
def test_counts_that_cannot_be_honoured_raise(bad):
    with pytest.raises(ConfigError, match="n|best_of"):
        Options(**bad)


@pytest.mark.parametrize("more", (dict(n=10**7), dict(n=2, best_of=10**7)))
def test_more_completions_than_memory_holds_are_refused_early(more):
    name = [*more][-1]
    with pytest.raises(ConfigError, match=f"^{name}: found 10000000, wanted at most 65536$"):
        Options(**more)
    assert Options(n=65536).n == 65536


def test_a_session_has_one_continuation():
    engine = core()
    with pytest.raises(ConfigError, match="Session.fork"):
        make_siblings(
            engine, None, Options(n=2), default=SEEDED, prompt=[1], session=engine.new_session([1])
        )
    engine.close()
