"""Candidates in the step loop: the same tokens with and without them, whoever else is there, and
nothing that stands is run twice.
"""

import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import ConfigError, PoolError
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative.costs import StepCosts
from oxillama.speculative.lookup import LookupDrafter
from oxillama.speculative.types import Candidates, Draft
from tests.engine.null import (
    VOCAB,
    NullProgram,
    check_solo,
    core,
    drawn_core,
    drawn_prompts,
    hashed,
    request,
    solo,
)

SEEDED = SamplerConfig(temperature=1.0, top_k=20, seed=11)
CHAIN = SamplerConfig(
    temperature=0.8,
    top_p=0.9,
    repetition_penalty=1.3,
    presence_penalty=0.2,
    xtc_probability=0.3,
    mirostat=2,
    seed=7,
)


class Prophet:
    """Drafts what the null program will say, wrong with a given probability: it reads the session,
    so that a wrong state shows.
    """

    def __init__(self, right: float = 1.0, seed: int = 0, shortest: int = 0) -> None:
        self.right, self.random, self.shortest = right, random.Random(seed), shortest
        self.closed, self.over = 0, threading.Event()

    def open(self, session):
        return session

    def propose(self, asks):
        return [
            Draft(
                self.guess(ask.session, self.random.randint(min(self.shortest, ask.most), ask.most))
            )
            for ask in asks
        ]

    def guess(self, session, count):
        tokens, draw, out = list(session.tokens), session.sampler.fork(), []
        for _ in range(count):
            token = draw.sample(hashed(tokens, VOCAB))
            if self.random.random() >= self.right:
                token = self.random.randrange(VOCAB)
            draw.accept(token)
            tokens.append(token)
            out.append(token)
        return out

    def close(self, state, session):
        self.closed += 1
        self.over.set()


def speculating(engine, prompt, drafter, *, most=4, costs=None, **more):
    """A request over a null program that brings candidates."""
    made = request(engine, prompt, **more)
    made.speculation = engine.speculator.speculation(
        Candidates(drafter, most, adaptive=costs is not None), made.session, costs=costs
    )
    return made


@pytest.mark.parametrize("sampler", [None, SEEDED, CHAIN], ids=["greedy", "seeded", "chain"])
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_tokens_are_those_without_candidates(sampler, right):
    engine = core()
    drafter = Prophet(right)
    job = engine.submit(speculating(engine, [1, 2, 3], drafter, max_tokens=60, sampler=sampler))
    done = job.result(60)
    assert list(done.tokens) == solo([1, 2, 3], 60, sampler)
    assert done.finish_reason == "length" and done.speculation.total_output_tokens == 60
    engine.close()
    # in a worker: a drafter that hangs holds nobody up
    assert drafter.over.wait(20) and drafter.closed == 1


def test_every_candidate_stands_when_the_draft_is_the_target():
    engine = core()
    engine.submit(
        speculating(engine, [5, 6], Prophet(shortest=4), max_tokens=41, sampler=SEEDED)
    ).result(60)
    done = engine.submit(
        speculating(engine, [5, 6], Prophet(shortest=4), max_tokens=41, sampler=SEEDED)
    ).result(60)
    stats = done.speculation
    assert stats.acceptance_rate == 1.0 and stats.rejected == 0
    # the first token comes from the prompt, then 8 steps of 4 and 1
    assert (stats.accepted, stats.bonus_tokens) == (32, 8)
    engine.close()


def test_nothing_that_stands_is_run_twice():
    program = NullProgram()
    engine = core(program=program, prefix=False)
    done = engine.submit(
        speculating(engine, list(range(20)), Prophet(0.7, seed=3), max_tokens=100)
    ).result(60)
    stats = done.speculation
    assert stats.accepted and stats.rejected
    # The prompt, every token but the last, which nobody needs the logits of, and the candidates
    # that fell.
    assert program.evaluated == 20 + 99 + stats.rejected
    engine.close()


def test_a_step_of_candidates_gives_the_tokens_of_several():
    program = NullProgram()
    engine = core(program=program, prefix=False)
    engine.submit(speculating(engine, [1], Prophet(shortest=4), max_tokens=51)).result(60)
    assert program.rows == [1, *[5] * 10]
    engine.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([4, 16, 64, 512]))
def test_sessions_with_and_without_candidates_share_steps_and_cannot_be_told_apart(seed, max_batch):
    rng = random.Random(seed)
    engine = drawn_core(rng, max_batch)
    drafters = [LookupDrafter(), Prophet(0.5, seed), Prophet(0.9, seed), None]
    jobs = []
    for prompt in drawn_prompts(rng):
        sampler, drafter = rng.choice([None, SEEDED, SamplerConfig(seed=5)]), rng.choice(drafters)
        made = request(engine, prompt, max_tokens=rng.randint(1, 40), sampler=sampler)
        if drafter is not None:
            costs = rng.choice([None, StepCosts({1: 1.0, 9: 2.0})])
            made.speculation = engine.speculator.speculation(
                Candidates(drafter, rng.randint(1, 9), adaptive=rng.random() < 0.5),
                made.session,
                costs=costs,
            )
        jobs.append((engine.submit(made), prompt, sampler))
        if rng.random() < 0.2:
            rng.choice(jobs)[0].cancel()
    check_solo(jobs)
    for job, _, _ in jobs:
        job.wait()
    engine.close()
    assert engine.pool.pages_used == 0


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_is_exact(max_tokens):
    program = NullProgram()
    engine = core(program=program, prefix=False)
    done = engine.submit(
        speculating(engine, [4, 4], Prophet(shortest=5), most=5, max_tokens=max_tokens)
    ).result(60)
    assert list(done.tokens) == solo([4, 4], max_tokens) and done.finish_reason == "length"
    assert program.evaluated == 2 + max_tokens - 1
    engine.close()


def test_the_end_of_the_context_is_exact():
    engine = core(context_size=24)
    done = engine.submit(
        speculating(engine, [1, 2, 3], Prophet(shortest=5), most=5, max_tokens=None)
    ).result(60)
    assert list(done.tokens) == solo([1, 2, 3], 21) and done.finish_reason == "length"
    engine.close()


def test_a_token_that_ends_the_text_ends_it_among_candidates():
    tokens = solo([9, 9, 9], 20)
    stop = tokens[10]
    at = tokens.index(stop)
    engine = core(prefix=False)
    session = engine.keep(engine.new_session([9, 9, 9]))
    drafter = Prophet(shortest=8)
    job = engine.submit(
        speculating(
            engine, [], drafter, most=8, max_tokens=20, session=session, stop_ids=frozenset({stop})
        )
    )
    done = job.result(60)
    assert list(done.tokens) == tokens[:at] and done.finish_reason == "stop"
    assert session.kv.length == len(session.tokens) == 3 + at
    assert (session.pending == hashed(session.tokens, VOCAB)).all()
    engine.close()


def test_a_session_goes_on_after_candidates_as_without_them():
    engine = core(prefix=False)
    session = engine.keep(engine.new_session([7, 8]))
    first = engine.submit(
        speculating(engine, [], Prophet(0.7), max_tokens=13, session=session, sampler=CHAIN)
    ).result(60)
    assert len(session.kv.pages) == -(-session.kv.length // 16)
    second = engine.submit(
        speculating(engine, [], Prophet(0.7), max_tokens=13, session=session)
    ).result(60)
    assert [*first.tokens, *second.tokens] == solo([7, 8], 26, CHAIN)
    engine.close()


def test_a_context_that_is_shifted_among_candidates_gives_the_tokens_of_one_that_is_not():
    def tokens(drafter):
        engine = core(context_size=40, prefix=False)
        made = request(engine, [1, 2, 3, 4], max_tokens=120, shift_keep=4)
        if drafter is not None:
            made.speculation = engine.speculator.speculation(
                Candidates(drafter, 5, adaptive=False), made.session
            )
        done = engine.submit(made).result(60)
        engine.close()
        return done.tokens, done.usage.context_shifts

    plain = tokens(None)
    assert plain[1] > 2
    assert tokens(Prophet(0.8)) == plain and tokens(LookupDrafter()) == plain


def test_a_drafter_that_fails_ends_its_own_request_alone():
    class Broken(Prophet):
        def propose(self, asks):
            raise PoolError("draft: out of pages")

    engine = core()
    beside = engine.submit(request(engine, [1, 2], max_tokens=50))
    broken = engine.submit(speculating(engine, [3, 4], Broken(), max_tokens=50))
    with pytest.raises(PoolError, match="draft: out of pages"):
        broken.result(60)
    assert list(beside.result(60).tokens) == solo([1, 2], 50)
    engine.close()


@pytest.mark.parametrize(
    "answer, told",
    [
        (lambda asks: [[3]] * len(asks), "drafter: found list, wanted a Draft"),
        (lambda asks: [None] * len(asks), "drafter: found NoneType, wanted a Draft"),
        (lambda asks: [Draft()] * (len(asks) + 1), "drafter: found 2 drafts, wanted 1, one for"),
        (lambda asks: [Draft([VOCAB])], rf"draft\[0\]: found token {VOCAB}, wanted 0 to"),
        (lambda asks: [Draft([-1])], r"draft\[0\]: found token -1, wanted 0 to"),
        (lambda asks: [Draft([3], shares=[None])], "drafter: found shares, wanted Candidates"),
    ],
)
def test_what_is_no_draft_ends_the_request_that_it_is_for(answer, told):
    drafter = Prophet()
    drafter.propose = answer
    engine = core()
    beside = engine.submit(request(engine, [1, 2], max_tokens=20))
    broken = engine.submit(speculating(engine, [3, 4], drafter, max_tokens=20))
    with pytest.raises(ConfigError, match=f"^{told}"):
        broken.result(60)
    assert list(beside.result(60).tokens) == solo([1, 2], 20)
    engine.close()


def test_candidates_take_no_pages_that_others_need():
    engine = core(max_pages=2, prefix=False)
    jobs = [
        engine.submit(speculating(engine, [token], Prophet(shortest=8), most=8, max_tokens=15))
        for token in (1, 2)
    ]
    assert [list(job.result(60).tokens) for job in jobs] == [solo([token], 15) for token in (1, 2)]
    assert engine.metrics().requests_preempted_total == 0
    engine.close()


class Circle(NullProgram):
    """Says 0 to 6 over and over, whatever came before."""

    def step(self, batch, memory, *, output="logits", cancel=None):
        super().step(batch, memory, output=output, cancel=cancel)
        out = np.zeros((len(batch.wanted), VOCAB), np.float32)
        out[np.arange(len(batch.wanted)), (batch.positions[batch.wanted] + 1) % 7] = 5.0
        return out


def test_a_text_that_goes_in_circles_is_looked_up():
    program = Circle()
    engine = core(program=program, prefix=False)
    costs = StepCosts({1: 1.0, 17: 1.2})
    done = engine.submit(
        speculating(engine, [0], LookupDrafter(), most=8, costs=costs, max_tokens=200)
    ).result(60)
    assert list(done.tokens) == [(at + 1) % 7 for at in range(200)]
    assert done.speculation.acceptance_rate > 0.95 and len(program.rows) < 60
    engine.close()


def test_what_never_stands_is_no_longer_brought():
    class Wrong(LookupDrafter):
        def propose(self, asks):
            drafts = super().propose(asks)
            return [
                Draft([(token + 1) % VOCAB for token in draft.tokens], draft.chances)
                for draft in drafts
            ]

    program = NullProgram()
    engine = core(program=program, prefix=False)
    costs = StepCosts({1: 1.0, 17: 4.0})
    done = engine.submit(
        speculating(engine, [1, 2] * 9, LookupDrafter(), most=8, costs=costs, max_tokens=300)
    ).result(60)
    assert list(done.tokens) == solo([1, 2] * 9, 300)
    assert done.speculation.rejected < 10 and done.speculation.n1_fallbacks > 280
    engine.close()


def test_neighbours_help_each_other_unless_they_must_not():
    for neighbours in (True, False):
        engine = core(prefix=False)
        drafter = LookupDrafter(neighbours=neighbours)
        engine.submit(speculating(engine, [3, 1, 4, 1, 5], drafter, max_tokens=60)).result(60)
        again = engine.submit(speculating(engine, [3, 1, 4, 1, 5], drafter, max_tokens=60)).result(
            5
        )
        assert list(again.tokens) == solo([3, 1, 4, 1, 5], 60)
        assert (again.speculation.accepted > 40) is neighbours
        engine.close()


def test_a_request_of_its_own_sampler_reports_each_draw():
    engine = core(prefix=False)
    made = speculating(engine, [1, 2], Prophet(0.7), max_tokens=30)
    made.session.sampler = Sampler(SEEDED, VOCAB, logprobs=2)
    plain = request(engine, [1, 2], max_tokens=30)
    plain.session.sampler = Sampler(SEEDED, VOCAB, logprobs=2)
    done, wanted = engine.submit(made).result(60), engine.submit(plain).result(60)
    assert done.tokens == wanted.tokens and done.logprobs == wanted.logprobs
    engine.close()
