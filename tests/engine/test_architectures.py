"""Every registered architecture that generates, under the engine: a request's tokens are those of
its solo run, whatever was forked, cut, stored or taken away. No list by hand.
"""

import random
from functools import partial

import numpy as np
import pytest

from oxillama.engine.config import EngineConfig
from oxillama.model import architectures, load_model
from oxillama.opening import core_over
from oxillama.sampling import Sampler, SamplerConfig
from oxillama.speculative.planner import Planner
from oxillama.speculative.types import Candidates, Draft
from tests.engine.null import request
from tests.model.invented import VOCAB, generates, invent

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, VOCAB, 50)]


@pytest.fixture(scope="module", params=filter(generates, architectures()))
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return load_model(invent(path, request.param), num_threads=1)


@pytest.fixture
def engine(model):
    """Makes engines over the model, closed at the end; none leaves a page or slot behind."""
    made = []

    def make(**more):
        made.append(core_over(model, EngineConfig(**more)))
        return made[-1]

    yield make
    for each in made:
        assert each.metrics().pages_leaked == 0
        each.close()
        assert each.pool.pages_used == 0 and (each.states is None or each.states.used == 0)


def begun(engine, prompt, session=None):
    """A session with more tokens; the first 20 of one are what an encoder reads, if there is one
    before the decoder.
    """
    session = engine.new_session() if session is None else session
    if engine.start_token is not None and not len(session):
        session.extend(prompt[:20])
        prompt = prompt[20:]
    session.extend(prompt)
    return session


def asked(engine, prompt, session=None):
    """A submitted greedy request of 8 tokens, going on with a session that is kept, or alone."""
    session = begun(engine, prompt, session)
    session.sampler = Sampler(SamplerConfig.greedy(), VOCAB)
    return engine.submit(request(engine, [], session=session))


def ids(engine, prompt, session=None):
    return list(asked(engine, prompt, session).result(60).tokens)


def test_a_session_is_its_tokens(engine):
    solo, shared = engine(prefix_cache=False), engine(prefix_cache=False)
    session = shared.keep(shared.new_session())
    first = ids(shared, PROMPT, session)
    fork = session.fork()
    fork.truncate(len(fork) - 8 - 3)
    assert first == ids(solo, PROMPT)
    assert ids(shared, PROMPT[:2], fork) == ids(solo, [*PROMPT[:-3], *PROMPT[:2]])
    assert ids(shared, PROMPT[:4], session) == ids(solo, [*PROMPT, *first, *PROMPT[:4]])


def test_a_stored_prefix_changes_nothing(engine):
    solo, caching = engine(prefix_cache=False), engine()
    ids(caching, PROMPT)
    longer = asked(caching, [*PROMPT, *PROMPT[:7]])
    assert list(longer.result(60).tokens) == ids(solo, [*PROMPT, *PROMPT[:7]])
    assert longer.cached >= len(PROMPT) // 16 * 16


def test_requests_that_want_one_anothers_pages_change_nothing(engine):
    solo, tight = engine(prefix_cache=False), engine(max_pages=5, prefill_chunk_size=9)
    prompts = [PROMPT[at : at + 30] for at in (0, 5, 11)]
    requests = [asked(tight, prompt) for prompt in prompts]
    found = [list(each.result(60).tokens) for each in requests]
    assert found == [ids(solo, prompt) for prompt in prompts]


class Guesser:
    """Drafts tokens of known texts, some of them wrong."""

    def __init__(self, texts, right, seed):
        self.texts, self.right, self.random = texts, right, random.Random(seed)

    def open(self, session):
        return next(text for text in self.texts if text[: len(session.tokens)] == session.tokens)

    def propose(self, asks):
        return [Draft([self._guess(token) for token in self._coming(each)]) for each in asks]

    def close(self, state, session):
        pass

    def _coming(self, ask):
        at = len(ask.session.tokens)
        return ask.state[at : at + self.random.randint(0, min(5, ask.most))]

    def _guess(self, token):
        return token if self.random.random() < self.right else (token + 1) % VOCAB


def test_candidates_change_neither_tokens_nor_logits(engine):
    prompts, drawn = [PROMPT[:20], PROMPT[5:38], PROMPT[30:]], {}
    config = SamplerConfig(temperature=0.9, seed=5)

    def keep_row(kept, _, row):
        kept.append(row.copy())

    def texts(core, drafter=None, *, rows=True):
        asks = []
        for prompt in prompts:
            session, kept = begun(core, prompt), []
            keep = partial(keep_row, kept)
            session.sampler = Sampler(config, VOCAB, processors=[keep] if rows else [])
            asks.append(request(core, [], session=session, max_tokens=20))
            if drafter is not None:
                candidates = Candidates(drafter, adaptive=False)
                asks[-1].speculation = core.speculator.speculation(candidates, session)
            drawn[asks[-1]] = kept
            core.submit(asks[-1])
        made = [each.result(60) for each in asks]
        assert drafter is None or sum(each.speculation.accepted for each in made) > 0
        assert drafter is None or sum(each.speculation.rejected for each in made) > 0
        return [list(each.tokens) for each in made], [drawn[each] for each in asks]

    solo = engine(prefix_cache=False)
    plain, expected = texts(solo)
    whole = [[*begun(solo, prompt).tokens, *text] for prompt, text in zip(prompts, plain)]
    for more in (dict(), dict(max_pages=7, prefill_chunk_size=7)):
        core = engine(**more)
        core.speculator = Planner(core)
        for seed, rows in ((1, True), (2, False)):
            found, logits = texts(core, Guesser(whole, 0.7, seed), rows=rows)
            assert found == plain
            for kept, wanted in zip(logits, expected if rows else [[]] * 3):
                assert len(kept) == len(wanted) and np.array_equal(kept, wanted)
        assert core.states is None or core.states.spares_used == 0
