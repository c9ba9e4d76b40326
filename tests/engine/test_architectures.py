"""Every registered architecture that generates, under the engine: a request's tokens are those of
its solo run, whatever was forked, cut, stored or taken away. No list by hand.
"""

import numpy as np
import pytest
from null import request

from oxillama.engine.config import EngineConfig
from oxillama.model import architectures, load_model
from oxillama.opening import core_over
from oxillama.sampling import Sampler, SamplerConfig
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


def asked(engine, prompt, session=None):
    """A submitted greedy request of 8 tokens, going on with a session that is kept, or alone."""
    session = engine.new_session() if session is None else session
    session.tokens.extend(prompt)
    session.start = len(session.tokens)
    session.sampler = Sampler(SamplerConfig.greedy(), VOCAB)
    return engine.submit(request(engine, [], session=session))


def ids(engine, prompt, session=None):
    return list(asked(engine, prompt, session).result(60).tokens)


def test_a_session_is_its_tokens(engine):
    solo, shared = engine(prefix_cache=False), engine(prefix_cache=False)
    session = shared.keep(shared.new_session())
    first = ids(shared, PROMPT, session)
    fork = session.fork()
    fork.truncate(len(PROMPT) - 3)
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
