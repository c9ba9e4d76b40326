"""Sequences of recurrent models: whatever is forked, cut, stored, taken away or saved, a request's
tokens and logits are those of its solo run.
"""

import numpy as np
import pytest

import oxillama
from oxillama import BeamSearchConfig, SamplerConfig, SchedulerConfig
from oxillama.errors import Cancelled

MODELS = ("mamba", "mamba2", "jamba", "lfm2")
PROMPT = [int(token) for token in np.random.default_rng(3).integers(20, 500, 70)]
GREEDY = dict(max_tokens=12, sampler=SamplerConfig.greedy())


@pytest.fixture(scope="module", params=MODELS)
def path(request, cases):
    return cases / "arch" / request.param / "f32.gguf"


@pytest.fixture(scope="module")
def solo(path):
    """Tokens that a prompt goes on with, from an engine that keeps nothing."""
    with oxillama.load(path, prefix_cache=False, num_threads=1) as engine:
        yield lambda prompt: ids(engine, prompt)


def ids(engine, prompt, **more):
    """Tokens that were drawn."""
    return list(engine.submit(prompt, **GREEDY, **more).result(60).tokens)


def test_chunks_and_companions_change_nothing(path, solo):
    prompts = [PROMPT, PROMPT[:30], PROMPT[10:60], PROMPT[:31]]
    config = SchedulerConfig(max_batch_tokens=24, max_prefill_tokens=7, max_sequences=4)
    with oxillama.load(path, scheduler=config) as engine:
        requests = [engine.submit(prompt, **GREEDY) for prompt in prompts]
        found = [list(each.result(60).tokens) for each in requests]
    assert found == [solo(prompt) for prompt in prompts]


def test_a_stored_prefix_begins_at_a_checkpoint(path, solo):
    longer = [*PROMPT, *PROMPT[:9]]
    with oxillama.load(path) as engine:
        ids(engine, PROMPT)
        request = engine.submit(longer, **GREEDY)
        assert list(request.result(60).tokens) == solo(longer)
        assert request.cached == len(PROMPT)


def test_forks_and_cuts_go_on_as_if_they_were_new(path, solo):
    with oxillama.load(path, prefix_cache=False) as engine:
        session = engine.session()
        engine.prefill(PROMPT, session=session)
        fork = session.fork()
        assert fork.kv.length == len(PROMPT) and fork.kv.pages == session.kv.pages
        fork.truncate(len(PROMPT) - 5)
        assert ids(engine, PROMPT[:3], session=fork) == solo([*PROMPT[:-5], *PROMPT[:3]])
        first = ids(engine, None, session=session)
        assert first == solo(PROMPT)
        assert ids(engine, PROMPT[:2], session=session) == solo([*PROMPT, *first, *PROMPT[:2]])


def test_what_is_taken_away_is_evaluated_again(path, solo):
    prompts = [PROMPT[at : at + 40] for at in (0, 7, 19)]
    with oxillama.load(path, max_pages=6) as engine:
        requests = [engine.submit(prompt, **GREEDY) for prompt in prompts]
        found = [list(each.result(60).tokens) for each in requests]
        assert found == [solo(prompt) for prompt in prompts]
        assert engine.metrics().pages_leaked == 0


def test_a_snapshot_goes_on_as_its_session_would_have(path, solo):
    with oxillama.load(path) as engine:
        session = engine.session()
        first = ids(engine, PROMPT, session=session)
        saved = session.snapshot()
        with oxillama.load(path) as other:
            restored = other.restore(saved)
            assert ids(other, PROMPT[:4], session=restored) == solo([*PROMPT, *first, *PROMPT[:4]])


@pytest.mark.parametrize("cached", [True, False])
def test_a_text_goes_on_although_its_request_gave_its_pages_back(path, solo, cached):
    """The session used last, and a fork of a request's own."""
    with oxillama.load(path, prefix_cache=cached, num_threads=1) as engine:
        first = engine.generate(PROMPT, max_tokens=5, sampler=SamplerConfig.greedy())
        rest = engine.generate(None, max_tokens=7)
        assert [*first.tokens, *rest.tokens] == solo(PROMPT)
        request = engine.submit(PROMPT, max_tokens=5, sampler=SamplerConfig.greedy())
        done = request.result(60)
        assert not request.session.kv.pages
        with request.session.fork() as twin:
            rest = engine.generate(None, session=twin, max_tokens=7)
        assert [*done.tokens, *rest.tokens] == solo(PROMPT)
        assert engine.metrics().pages_leaked == 0


def test_siblings_begin_from_one_prompt(path, solo):
    with oxillama.load(path) as engine:
        found = engine.submit(PROMPT, n=3, **GREEDY).result(60)
    assert [list(each.tokens) for each in found] == [solo(PROMPT)] * 3


def test_candidates_change_nothing(path, solo):
    prompt = PROMPT[:20] * 3
    with oxillama.load(path) as engine:
        assert ids(engine, prompt, speculative=True) == solo(prompt)


def test_a_cancelled_step_leaves_its_companions_alone(path, solo):
    with oxillama.load(path) as engine:
        requests = [engine.submit(PROMPT[at:], **GREEDY) for at in range(6)]
        for request in requests[::2]:
            request.cancel()
        for at in (1, 3, 5):
            assert list(requests[at].result(60).tokens) == solo(PROMPT[at:])


STOPPED = Cancelled("step: cancelled by its caller")


class StoppedStep:
    """A program whose step number `at` raises when it has run, after a call of `before`; by default
    it is stopped, as by a cancelled companion.
    """

    def __init__(self, program, at, error=STOPPED, before=lambda: None):
        self.program, self.left, self.error, self.before = program, at, error, before

    def __getattr__(self, name):
        return getattr(self.program, name)

    def step(self, *args, **more):
        out = self.program.step(*args, **more)
        self.left -= 1
        if not self.left:
            self.before()
            raise self.error
        return out


class CancellingStep:
    """A program in whose first step a request is cancelled. ends: how each of its steps ended."""

    def __init__(self, program):
        self.program, self.request, self.ends = program, None, []

    def __getattr__(self, name):
        return getattr(self.program, name)

    def step(self, *args, **more):
        if not self.ends:
            self.request.cancel()
        self.ends.append("stopped")
        out = self.program.step(*args, **more)
        self.ends[-1] = "whole"
        return out


@pytest.mark.parametrize("alone", [True, False])
def test_a_step_is_stopped_for_a_cancel_where_no_other_request_loses_its_state(path, solo, alone):
    plain = dict(num_threads=1, prefix_cache=False, speculative=False)
    with oxillama.load(path, **plain) as engine:
        core = engine.loaded.core
        program = core._loop.program = CancellingStep(core.program)
        with core.lock:  # no step before all are known
            others = [] if alone else [engine.submit(PROMPT[:8], **GREEDY)]
            program.request = engine.submit(PROMPT, **GREEDY)
        assert program.request.result(60).finish_reason == "cancelled"
        for each in others:
            assert list(each.result(60).tokens) == solo(PROMPT[:8])
        core._loop.program = program.program
    assert program.ends == (["stopped"] if alone else ["whole"] * GREEDY["max_tokens"])


def test_a_stopped_step_leaves_a_beam_search_and_siblings_as_they_were(path):
    """The state of the step's sequences is lost: they begin again from the prompt."""
    beams = BeamSearchConfig(beam_width=3, max_new_tokens=4)
    asked = dict(n=2, max_tokens=4, temperature=0.9, seed=5, cache_prompt=False)
    with oxillama.load(path, num_threads=1) as engine:
        wanted = engine.beam_generate(PROMPT, beams, cache_prompt=False)
        several = [each.tokens for each in engine.generate(PROMPT, **asked)]
        loop = engine.loaded.core._loop
        program = loop.program
        for at in (1, 2, 4):
            loop.program = StoppedStep(program, at)
            assert engine.beam_generate(PROMPT, beams, cache_prompt=False) == wanted
            loop.program = StoppedStep(program, at)
            assert [each.tokens for each in engine.generate(PROMPT, **asked)] == several
        loop.program = program
        assert engine.metrics().pages_leaked == 0


@pytest.mark.parametrize("at", [1, 3])
def test_a_request_cancelled_in_a_step_leaves_right_states_behind(path, at):
    """In its session, which goes on, and in the prefix cache."""
    with oxillama.load(path, num_threads=1) as engine:
        core, session = engine.loaded.core, engine.session()
        engine.prefill(PROMPT[:20], session=session)
        program = core.program
        with core.lock:  # no step before the request is known
            request = engine.submit(PROMPT[20:40], session=session, temperature=0, ignore_eos=True)
            core._loop.program = StoppedStep(program, at, before=request.cancel)
        assert request.result(60).finish_reason == "cancelled"
        assert len(request.generated) == at - 1
        core._loop.program = program
        for prompt in (PROMPT[:50], [*session.tokens, 21]):
            found, wanted = (
                engine.generate(prompt, max_tokens=3, temperature=0, logprobs=2, cache_prompt=cache)
                for cache in (True, False)
            )
            assert found.usage.cached_tokens >= 20 and found.logprobs == wanted.logprobs
        row = engine.prefill([21], session=session)
        assert np.array_equal(row, engine.logits(session.tokens)[-1])


@pytest.mark.parametrize("at", [1, 3])
def test_a_session_whose_step_got_no_memory_goes_on_with_the_tokens_that_it_has(path, at):
    with oxillama.load(path, num_threads=1) as engine:
        session, loop = engine.session(), engine.loaded.core._loop
        engine.prefill(PROMPT[:20], session=session)
        program, loop.program = loop.program, StoppedStep(loop.program, at, MemoryError("none"))
        with pytest.raises(MemoryError, match="none"):
            engine.generate(PROMPT[20:30], session=session, cache_prompt=False, **GREEDY)
        loop.program = program
        assert session.tokens[:30] == PROMPT[:30]
        row = engine.prefill(PROMPT[30:33], session=session)
        assert np.array_equal(row, engine.logits(session.tokens)[-1])


def test_the_bare_loop_says_that_it_cannot_take_tokens_back(path):
    logits = []
    with oxillama.load(path, num_threads=1) as engine, engine.raw_loop() as loop:
        for sequence in (0, 1):
            loop.prefill(sequence, [21, 22, 23])
            if sequence == 0:
                assert not loop.rewind(sequence, 2)
            logits.append(loop.prefill(sequence, [24]).copy())
    assert np.array_equal(*logits)
