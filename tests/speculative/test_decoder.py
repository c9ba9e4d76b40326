"""Speculation whose draft works background in a thread of its own: the same text, cancelled at
once, shut down cleanly.
"""

import gc
import json
import threading
import time
import weakref

import pytest

import oxillama
from oxillama._core.threads import default_threads
from oxillama.speculative.decoder import AsyncSpecConfig, CancellationToken, SpeculativeDecoder

SEEDED = oxillama.SamplerConfig(temperature=0.9, top_p=0.95, repetition_penalty=1.1)
GREEDY = oxillama.SamplerConfig.greedy()


@pytest.fixture(scope="module")
def stories(cases):
    return cases / "stories260K"


@pytest.fixture(scope="module")
def target(stories):
    with oxillama.load(stories / "stories260K-f32.gguf", num_threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def draft(stories):
    with oxillama.load(stories / "stories260K-q8_0.gguf", num_threads=1) as engine:
        yield engine


def alive():
    return [thread for thread in threading.enumerate() if thread.name == "oxillama draft"]


def test_the_golden_text_comes_from_a_draft_that_works_background(target, stories):
    golden = json.loads((stories / "stories260K-golden.json").read_text("utf-8"))
    with SpeculativeDecoder(
        AsyncSpecConfig(target_sampler=GREEDY, draft_threads=1, adaptive=False),
        target,
        stories / "stories260K-q8_0.gguf",
    ) as decoder:
        done = decoder.generate(
            [target.tokenizer.bos_id], max_tokens=len(golden["llama_cpp"]["f32"]["ids"])
        )
        assert done.text == golden["expected_run_c"]
        assert decoder.stats.acceptance_rate > 0.9 and decoder.stale < 20
    assert not alive()


@pytest.mark.parametrize("spec_k", [1, 3, 8])
@pytest.mark.parametrize("sampler", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_text_is_the_targets_own(target, draft, spec_k, sampler):
    with SpeculativeDecoder(
        AsyncSpecConfig(spec_k=spec_k, target_sampler=sampler, max_tokens=100, adaptive=False),
        target,
        draft,
    ) as decoder:
        for seed in (1, 2):
            wanted = target.generate("Once upon a time", max_tokens=100, sampler=sampler, seed=seed)
            done = decoder.generate("Once upon a time", seed=seed)
            assert (
                done.tokens == wanted.tokens
                and done.usage.completion_tokens == 100
                and decoder.stats.accepted
            )
            requests = [decoder.submit("A cat", seed=seed), decoder.submit("A dog and", seed=seed)]
            assert [each.result().tokens for each in requests] == [
                target.generate(prompt, max_tokens=100, sampler=sampler, seed=seed).tokens
                for prompt in ("A cat", "A dog and")
            ]


def test_every_candidate_of_a_first_proposal_may_be_accepted(target):
    """Where drafting may not pay, no more is drafted than the first proposal asks for; the token
    after it is drafted when it is known to be wanted.
    """
    with SpeculativeDecoder(
        AsyncSpecConfig(spec_k=3, target_sampler=GREEDY, max_tokens=60), target, target
    ) as decoder:
        planner, accepted = target.loaded.core.speculator, 0
        for prompt in ("Once", "A dog", "Tom"):
            # as if speculation had paid so far: it is tried at once
            ledger = planner._record(decoder.engine.candidates.drafter).ledger
            ledger.debt, ledger.rest = -1e3, 0
            wanted = target.generate(prompt, sampler=GREEDY, max_tokens=60).tokens
            assert decoder.submit(prompt).result(20).tokens == wanted
            accepted += decoder.stats.accepted
        assert accepted


def test_nothing_is_drafted_where_one_token_a_step_is_forced(target, draft):
    with SpeculativeDecoder(
        AsyncSpecConfig(force_n1=True, target_sampler=GREEDY, max_tokens=30), target, draft
    ) as decoder:
        done = decoder.generate("Once upon a time")
        assert (
            done.tokens == target.generate("Once upon a time", sampler=GREEDY, max_tokens=30).tokens
        )
        # the last draw has no step after it, nor one to spare
        assert (decoder.stats.accepted, decoder.stats.n1_fallbacks) == (0, 28)


def test_a_sampler_of_the_drafts_own_gives_the_same_text_for_the_same_seed(target, draft):
    with SpeculativeDecoder(
        AsyncSpecConfig(draft_sampler=SEEDED, target_sampler=SEEDED, max_tokens=80), target, draft
    ) as decoder:
        texts = [decoder.generate("One day", seed=seed).text for seed in (3, 3, 4)]
        assert texts[0] == texts[1] != texts[2] and decoder.stats.accepted


def test_a_cancelled_token_stops_what_runs_and_what_comes_later(target, draft):
    token = CancellationToken()
    with SpeculativeDecoder(
        AsyncSpecConfig(target_sampler=GREEDY, max_tokens=450), target, draft
    ) as decoder:
        stream = decoder.stream("Once upon a time", cancel=token, stop_token_ids=())
        next(stream)
        token.cancel()
        assert stream.completion.finish_reason == "cancelled" and token.cancelled
        assert decoder.generate("Once", cancel=token).finish_reason == "cancelled"
        assert decoder.generate("Once upon", max_tokens=20).finish_reason == "length"


def test_an_engine_drafts_for_itself(target):
    with SpeculativeDecoder(
        AsyncSpecConfig(target_sampler=SEEDED, max_tokens=40), target, target
    ) as decoder:
        for seed in range(8):
            done = decoder.submit("Once upon a time", seed=seed).result(20)
            assert (
                done.tokens
                == target.generate(
                    "Once upon a time", max_tokens=40, sampler=SEEDED, seed=seed
                ).tokens
            )
            assert done.speculation.rejected == 0


def test_a_token_keeps_no_request_that_has_ended(target, draft):
    token = CancellationToken()
    with SpeculativeDecoder(AsyncSpecConfig(max_tokens=3), target, draft) as decoder:
        for seed in range(5):
            decoder.generate("Once", cancel=token, seed=seed)
        running = decoder.submit("Once", cancel=token, max_tokens=400)
        assert token._requests == [running]
        token.cancel()
        assert running.result().finish_reason == "cancelled"
        assert decoder.generate("Once", cancel=token).finish_reason == "cancelled"


@pytest.mark.parametrize("draft_sampler", [None, SEEDED], ids=["found", "drawn"])
def test_a_forgotten_decoder_finishes_what_it_began_and_lets_go_of_its_thread_and_models(
    stories, draft_sampler
):
    paths = [stories / name for name in ("stories260K-f32.gguf", "stories260K-q8_0.gguf")]
    decoder = SpeculativeDecoder(
        AsyncSpecConfig(
            target_sampler=GREEDY, max_tokens=120, draft_threads=1, draft_sampler=draft_sampler
        ),
        *paths,
    )
    models = [weakref.ref(decoder.engine.drafter), weakref.ref(decoder.engine.target)]
    wanted = decoder.generate("Once").tokens
    request = decoder.submit("Once")
    del decoder
    gc.collect()
    assert request.result(20).tokens == wanted
    del request
    until = time.monotonic() + 10
    while (alive() or any(each() for each in models)) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert not alive() and [each() for each in models] == [None, None]


def test_closing_stops_the_requests_and_the_thread(target, draft):
    decoder = SpeculativeDecoder(
        AsyncSpecConfig(target_sampler=GREEDY, max_tokens=450), target, draft
    )
    request = decoder.submit("Once upon a time")
    decoder.close()
    decoder.close()
    assert request.done and not alive()
    assert target.generate("Once", max_tokens=3, sampler=GREEDY).finish_reason == "length"


@pytest.mark.parametrize("source", ["stories260K-q8_0.gguf", "early_exit:4"])
def test_a_draft_that_is_loaded_here_has_threads_of_its_own(target, stories, source):
    draft = source if source.startswith("early") else stories / source
    for asked, given in ((None, max(1, default_threads() // 2)), (3, 3)):
        with SpeculativeDecoder(
            AsyncSpecConfig(target_sampler=GREEDY, draft_threads=asked, adaptive=False),
            target,
            draft,
        ) as decoder:
            assert decoder.engine.drafter.core.program.num_threads == given
            done = decoder.generate("Once upon a time", max_tokens=40)
            assert (
                done.tokens
                == target.generate("Once upon a time", max_tokens=40, sampler=GREEDY).tokens
                and done.speculation.accepted
            )
    assert not alive()


def test_most_tokens_may_have_any_of_their_names(target, draft):
    with SpeculativeDecoder(AsyncSpecConfig(max_tokens=9), target, draft) as decoder:
        given = ({}, {"max_tokens": 4}, {"max_new_tokens": 3}, {"n_predict": 2})
        counts = [len(decoder.generate("Once", ignore_eos=True, **each).tokens) for each in given]
    assert counts == [9, 4, 3, 2]


def test_what_is_no_number_is_refused():
    for name, value in (("spec_k", 0), ("spec_k", True), ("max_tokens", -1), ("draft_threads", 0)):
        with pytest.raises(oxillama.ConfigError, match=name):
            AsyncSpecConfig(**{name: value})
