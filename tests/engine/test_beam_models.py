"""Beam search and siblings on a real model: the text, constraints, and the same bits whatever the
machine does.
"""

import asyncio

import numpy as np
import pytest

import oxillama
from oxillama import AsyncEngine, BeamSearchConfig, SamplerConfig

GREEDY = SamplerConfig.greedy()
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def path(cases):
    return cases / "stories260K" / "stories260K-f32.gguf"


@pytest.fixture(scope="module")
def engine(path):
    with oxillama.load(path) as loaded:
        yield loaded


def log_softmax(rows):
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def sum_of(engine, prompt, tokens):
    """The log-probability of tokens after a prompt, from the rows of one pass over them."""
    ids = [*engine.tokenize(prompt), *tokens]
    rows = log_softmax(engine.logits(ids))
    first = len(ids) - len(tokens)
    return sum(rows[position - 1, ids[position]] for position in range(first, len(ids)))


def test_width_one_is_the_greedy_text(engine):
    (found,) = engine.beam_generate(PROMPT, BeamSearchConfig(beam_width=1, max_new_tokens=60))
    wanted = engine.generate(PROMPT, max_tokens=60, sampler=GREEDY)
    assert (found.tokens, found.text) == (wanted.tokens, wanted.text)
    assert (
        found.logprob_sum == pytest.approx(sum_of(engine, PROMPT, wanted.tokens), rel=1e-9)
        and found.score == found.logprob_sum / 60
    )


def test_hypotheses_are_likelier_than_greedy_and_their_sums_are_the_models(engine):
    found = engine.beam_generate(PROMPT, BeamSearchConfig(beam_width=6, max_new_tokens=25))
    greedy = engine.generate(PROMPT, max_tokens=25, sampler=GREEDY)
    assert (
        found[0].logprob_sum >= sum_of(engine, PROMPT, greedy.tokens)
        and len({each.tokens for each in found}) == 6
    )
    for each in found:
        assert each.logprob_sum == pytest.approx(sum_of(engine, PROMPT, each.tokens), rel=1e-9)
        assert (
            each.text
            == engine.detokenize([*engine.tokenize(PROMPT), *each.tokens])[
                len(engine.detokenize(engine.tokenize(PROMPT))) :
            ]
        )


@pytest.mark.parametrize(
    "config",
    [
        dict(num_threads=1),
        dict(num_threads=2, prefill_chunk_size=3),
        dict(prefix_cache=False),
        dict(max_pages=30),
        dict(scheduler=oxillama.SchedulerConfig(max_batch_sequences=2)),
    ],
)
def test_the_same_bits_whatever_the_machine_does(path, engine, config):
    wanted = engine.beam_generate(PROMPT, BeamSearchConfig(beam_width=5, max_new_tokens=20))
    with oxillama.load(path, **config) as other:
        companions = [
            other.submit(f"{number}", max_tokens=40, sampler=GREEDY) for number in range(3)
        ]
        assert (
            other.beam_generate(PROMPT, BeamSearchConfig(beam_width=5, max_new_tokens=20)) == wanted
        )
        assert all(each.result().tokens for each in companions)


def test_a_wide_search_ranks_all_that_a_grammar_allows(engine):
    choices = [" there was a cat", " a dog", " there was a dog", " the end"]
    found = engine.beam_generate(
        PROMPT,
        BeamSearchConfig(beam_width=400, max_new_tokens=30, length_penalty=0.0),
        choices=choices,
    )
    assert {each.text for each in found} == set(choices) and all(each.finished for each in found)
    sums = [sum_of(engine, PROMPT, each.tokens) for each in found]
    assert [each.logprob_sum for each in found] == pytest.approx(sums, rel=1e-9) and sums == sorted(
        sums, reverse=True
    )


def test_bans_and_stops_are_respected(engine):
    free = engine.beam_generate(PROMPT, BeamSearchConfig(max_new_tokens=30))
    banned = free[0].tokens[3]
    found = engine.beam_generate(
        PROMPT,
        BeamSearchConfig(max_new_tokens=30),
        sampler=SamplerConfig.greedy(banned_tokens=(banned,)),
    )
    assert all(banned not in each.tokens for each in found)
    stopped = engine.beam_generate(
        PROMPT, BeamSearchConfig(max_new_tokens=40), stop=[" girl", "named"]
    )
    assert all(" girl" not in each.text and "named" not in each.text for each in stopped) and any(
        each.finished for each in stopped
    )
    assert (
        engine.beam_generate(PROMPT, BeamSearchConfig(max_new_tokens=30), stop_token_ids=[banned])[
            0
        ].tokens.count(banned)
        == 0
    )


def test_a_session_can_be_searched_from(engine):
    with_session = engine.session()
    engine.prefill(PROMPT, session=with_session)
    config = BeamSearchConfig(max_new_tokens=12)
    assert engine.beam_generate(None, config, session=with_session) == engine.beam_generate(
        PROMPT, config
    )
    assert len(with_session) == len(engine.tokenize(PROMPT))
    with_session.close()
    assert engine.metrics().pages_leaked == 0


def test_the_asynchronous_door_finds_the_same(engine):
    config = BeamSearchConfig(max_new_tokens=10)
    assert asyncio.run(AsyncEngine(engine).beam_generate(PROMPT, config)) == engine.beam_generate(
        PROMPT, config
    )


def test_several_completions_are_those_of_their_seeds(engine):
    options = dict(max_tokens=15, sampler=SamplerConfig(temperature=1.0))
    done = engine.generate(PROMPT, n=4, seed=3, **options)
    assert [each.tokens for each in done] == [
        engine.generate(PROMPT, seed=each.seed, **options).tokens for each in done
    ]
    assert (
        done[0].seed == 3 and done[0].text == engine.generate(PROMPT, n=1, seed=3, **options).text
    )
    assert [
        each.tokens
        for each in engine.generate(PROMPT, n=4, seed=3, speculative="lookup", **options)
    ] == [each.tokens for each in done]
    first, second = engine.generate([PROMPT, "Tom"], n=2, best_of=3, seed=3, **options)
    assert len(first) == len(second) == 2


@pytest.mark.parametrize("method", ["stream", "chat"])
def test_streams_of_one_completion_refuse_several(engine, method):
    call = {
        "stream": lambda: engine.stream(PROMPT, n=2),
        "chat": lambda: engine.chat([{"role": "user", "content": "x"}], stream=True, best_of=2),
    }
    before = engine.metrics().requests_started_total
    with pytest.raises(oxillama.ConfigError, match="n, best_of"):
        call[method]()
    assert engine.metrics().requests_started_total == before


def test_several_replies_of_a_chat_are_each_read():
    talk = [{"role": "user", "content": "Hi!"}]
    with oxillama.load() as embedded:
        done = embedded.chat(talk, n=3, max_tokens=12, seed=5)
        assert [each.tokens for each in done] == [
            embedded.chat(talk, max_tokens=12, seed=each.seed).tokens for each in done
        ]
        assert all(each.content == each.text for each in done)


def test_several_completions_are_awaited_and_never_streamed_as_one(engine):
    async def main():
        doors = AsyncEngine(engine)
        with pytest.raises(oxillama.ConfigError, match="n, best_of"):
            async for _ in doors.stream(PROMPT, n=2, max_tokens=400):
                pass
        return await doors.generate(PROMPT, n=2, max_tokens=6, seed=1), await doors.generate(
            [PROMPT, "Tom"], n=2, max_tokens=6, seed=1
        )

    alone, many = asyncio.run(main())
    wanted = engine.generate([PROMPT, "Tom"], n=2, max_tokens=6, seed=1)
    assert [each.tokens for each in alone] == [each.tokens for each in wanted[0]]
    assert [[each.tokens for each in one] for one in many] == [
        [each.tokens for each in one] for one in wanted
    ]
    assert engine.metrics().requests_running == 0
