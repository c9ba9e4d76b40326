"""The same bits on real models: a request's tokens and logits are those of its solo run, whoever
shares its steps, whatever was cached.
"""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oxillama
from oxillama import Candidates, SamplerConfig, SchedulerConfig
from tests.speculative.drafting import Guesser

MODELS = (("llama", "f32"), ("llama", "q8_0"), ("gemma3", "q8_0"), ("the", "embedded"))
CONTEXT = 144  # less than the longest text that is asked for
FEW = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def recorded(engine, prompt, **options):
    """A submitted request and the list that its rows of logits go to."""
    rows = []
    return engine.submit(
        prompt, processors=[lambda ids, row: rows.append(row.copy())], **options
    ), rows


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def model(request, cases):
    """(path of a model, engine that runs alone: one request at a time, chunk 512, no cache)."""
    name, kind = request.param
    path = (
        oxillama.embedded_path() if kind == "embedded" else cases / "arch" / name / f"{kind}.gguf"
    )
    with oxillama.load(path, prefix_cache=False, num_threads=1, context_size=CONTEXT) as engine:
        yield path, engine


def alone(engine, prompt, **options):
    request, rows = recorded(engine, prompt, **options)
    return request.result(60), rows


SAMPLERS = (
    SamplerConfig.greedy(),
    SamplerConfig(repetition_penalty=1.3, presence_penalty=0.4, top_k=0, min_p=0.02),
    SamplerConfig(temperature=1.2, xtc_probability=0.5, dynatemp_range=0.4, typical_p=0.9),
    SamplerConfig.mirostat_v2(),
)
MORE = ({}, {}, {"logprobs": 3}, {"context_shift": True, "keep": 3}, {"cache_prompt": False})
CONSTRAINTS = ({}, {}, {}, {"regex": "[a-m ]{3,20}[0-9]{2}"}, {"choices": ["alpha", "alpine"]})


def told(done):
    """What a completion says, but for what depends on who ran beside it."""
    return done.text, done.tokens, done.logprobs, done.seed, done.usage.context_shifts


@FEW
@given(seed=st.integers(0, 2**32))
def test_tokens_and_logits_equal_the_solo_run(model, seed):
    path, solo = model
    rng = random.Random(seed)
    vocab = solo.config.vocab_size
    batch = rng.choice([3, 17, 64])
    config = SchedulerConfig(
        max_batch_tokens=batch,
        max_batch_sequences=min(batch, rng.randint(1, 8)),
        max_sequences=rng.randint(1, 8),
        max_prefill_tokens=rng.randint(1, 40),
    )
    beginnings = [[rng.randrange(vocab) for _ in range(60)] for _ in range(2)]
    jobs = []
    with oxillama.load(
        path,
        scheduler=config,
        prefill_chunk_size=rng.randint(1, batch),
        num_threads=rng.choice([1, 2]),
        max_pages=rng.choice([None, 9, 14]),
        page_size=rng.choice([16, 32]),
        context_size=CONTEXT,
    ) as engine:
        for _ in range(rng.randint(2, 8)):
            prompt = rng.choice(beginnings)[: rng.randint(1, 60)] + [
                rng.randrange(vocab) for _ in range(rng.choice([0, 3, 20, 75]))
            ]
            options = dict(max_tokens=rng.randint(1, 24), sampler=rng.choice(SAMPLERS))
            options |= {"seed": rng.randrange(99), **rng.choice(MORE), **rng.choice(CONSTRAINTS)}
            wanted, wanted_rows = alone(solo, prompt, speculative=False, **options)
            guesser = Guesser([*prompt, *wanted.tokens], vocab=vocab)
            guesses = Candidates(guesser, most=5, adaptive=False)
            job, rows = recorded(
                engine, prompt, speculative=rng.choice([None, "lookup", guesses]), **options
            )
            jobs.append((job, rows, wanted, wanted_rows))
            if rng.random() < 0.2:
                rng.choice(jobs)[0].cancel()
        for request, rows, wanted, wanted_rows in jobs:
            done = request.result(60)
            assert done.tokens == wanted.tokens[: len(done.tokens)]
            assert request.cancelled or told(done) == told(wanted)
            assert done.finish_reason == wanted.finish_reason or request.cancelled
            assert all(
                np.array_equal(a, b)
                for a, b in zip(rows, wanted_rows, strict=not request.cancelled)
            )
        engine.reset()
        found = engine.metrics()
        assert found.pages_leaked == 0 and found.pages_used == found.pages_cached


def test_forks_and_truncations_go_on_with_the_bits_of_a_fresh_prefill(model):
    _, engine = model
    ids = [(7 * i + 3) % engine.config.vocab_size for i in range(90)]
    whole = engine.logits(ids)
    engine.reset()
    assert np.array_equal(engine.prefill(ids[:50]), whole[49])
    for length in (49, 33, 16, 5):
        engine.truncate(length)
        assert np.array_equal(engine.prefill(ids[length : length + 9]), whole[length + 8])
    engine.reset()


def test_chunks_of_a_prompt_do_not_change_its_logits(model):
    path, engine = model
    ids = [(5 * i + 1) % engine.config.vocab_size for i in range(96)]
    whole = engine.logits(ids)
    for chunk in (1, 7, 64):
        with oxillama.load(path, prefill_chunk_size=chunk, num_threads=2) as other:
            assert np.array_equal(other.logits(ids), whole)


def test_embeddings_do_not_depend_on_batch_or_chunks(model):
    path, engine = model
    texts = [[(3 * i + j) % engine.config.vocab_size for i in range(1 + 13 * j)] for j in range(6)]
    wanted = [engine.embed(ids) for ids in texts]
    with oxillama.load(path, prefill_chunk_size=5) as other:
        assert np.array_equal(other.embed_batch(texts), np.stack(wanted))


def test_a_prefix_hit_and_a_miss_give_the_same_logits(model):
    path, engine = model
    ids = [(11 * i + 2) % engine.config.vocab_size for i in range(80)]
    wanted, wanted_rows = alone(engine, ids, max_tokens=8, sampler=SamplerConfig.greedy())
    with oxillama.load(path) as cached:
        cached.generate(ids[:70], max_tokens=4, sampler=SamplerConfig.greedy())
        for _ in range(2):
            request, rows = recorded(cached, ids, max_tokens=8, sampler=SamplerConfig.greedy())
            done = request.result(60)
            assert done.tokens == wanted.tokens and np.array_equal(rows, wanted_rows)
            assert done.usage.cached_tokens >= 70


@FEW
@given(seed=st.integers(0, 2**32))
def test_any_history_of_forks_and_truncations_gives_the_bits_of_a_fresh_prefill(model, seed):
    path, solo = model
    rng = random.Random(seed)
    vocab = solo.config.vocab_size
    config = SchedulerConfig(
        max_batch_tokens=48, max_batch_sequences=rng.randint(1, 4), max_sequences=rng.randint(1, 4)
    )
    with oxillama.load(
        path,
        scheduler=config,
        prefill_chunk_size=rng.randint(1, 48),
        num_threads=rng.choice([1, 2]),
        max_pages=rng.choice([None, 9, 14]),
        prefix_cache=rng.random() < 0.5,
    ) as engine:
        sessions = [engine.session()]
        for _ in range(14):
            session, kind = rng.choice(sessions), rng.randrange(4)
            if kind == 0 and len(session) < 90:
                row = engine.prefill(
                    [rng.randrange(vocab) for _ in range(rng.randint(1, 40))], session=session
                )
                assert np.array_equal(row, solo.logits(session.tokens)[-1])
            elif kind == 1:
                sessions.append(session.fork())
            elif kind == 2:
                session.truncate(rng.randint(0, len(session)))
            else:
                asked = {
                    id(one): one for one in (session, rng.choice(sessions)) if 0 < len(one) < 100
                }.values()
                jobs = [
                    (
                        one,
                        list(one.tokens),
                        engine.submit(
                            None, session=one, max_tokens=6, sampler=SamplerConfig(seed=1)
                        ),
                    )
                    for one in asked
                ]
                for one, tokens, job in jobs:
                    assert (
                        job.result(60).tokens
                        == solo.generate(tokens, max_tokens=6, sampler=SamplerConfig(seed=1)).tokens
                    )
                    assert one.tokens[: len(tokens)] == tokens
        assert engine.metrics().pages_leaked == 0
