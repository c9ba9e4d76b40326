"""What came from a file is trusted as far as it can be proven: a forged snapshot changes nothing but
what its own session says.
"""

import numpy as np
import pytest

import oxillama
from oxillama import InferenceEngine, SamplerConfig
from tests.snapshot.saved import remade

GREEDY = SamplerConfig.greedy()
PROMPT = [(5 * i + 1) % 80 for i in range(50)]


def negated(facts, sections):
    """Every key and value of the pages with the other sign."""
    sections["kv"] = (np.frombuffer(sections["kv"], "<u2") ^ 0x8000).tobytes()


@pytest.fixture(scope="module")
def forged(model):
    """(a forged snapshot of a session over PROMPT, the honest one, the tokens that follow, greedily)."""
    with oxillama.load(model, num_threads=1) as engine:
        tokens = engine.generate(PROMPT, max_tokens=20, sampler=GREEDY).tokens
        session = engine.session()
        engine.generate(PROMPT, session=session, max_tokens=4, sampler=GREEDY)
        data = session.snapshot()
        yield remade(data, negated), data, tokens


def follows(engine, prompt=PROMPT):
    done = engine.generate(prompt, max_tokens=20, sampler=GREEDY)
    return done.tokens, done.usage.cached_tokens


@pytest.mark.parametrize("use", ["kept", "continued", "closed", "forked", "truncated"])
def test_pages_of_a_forged_snapshot_serve_no_other_request(model, forged, use):
    """Invariant 6, whatever the restored session does before the others come."""
    data, _, tokens = forged
    with oxillama.load(model, num_threads=1) as engine:
        session = engine.restore(data)
        if use == "continued":
            engine.generate(None, session=session, max_tokens=20)
        if use == "forked":
            fork = session.fork()
            engine.generate([3, 4], session=fork, max_tokens=5)
        if use == "truncated":
            session.truncate(40)
            engine.generate(PROMPT[40:], session=session, max_tokens=5)
        if use == "closed":
            session.close()
        assert follows(engine) == (tokens, 0)
        # and those of honest requests go on to serve others
        assert follows(engine) == (tokens, len(PROMPT) - 1)
        assert engine.metrics().pages_leaked == 0


def test_an_engine_that_was_resumed_from_a_forged_snapshot_answers_others_rightly(model, forged):
    data, _, tokens = forged
    with InferenceEngine.resume(data, model, num_threads=1) as engine:
        engine.generate(None, max_tokens=3)
        assert follows(engine) == (tokens, 0)


def test_pages_of_a_restored_session_are_not_among_those_that_are_stored_in_a_file(
    model, forged, tmp_path
):
    with oxillama.load(model, num_threads=1) as engine:
        engine.generate(None, session=engine.restore(forged[0]), max_tokens=20)
        assert engine.save_prefixes(tmp_path / "prefixes") == 0


def test_a_restored_session_goes_on_over_its_own_pages(model, forged):
    with oxillama.load(model, num_threads=1) as engine:
        session = engine.restore(forged[1])
        length = session.kv.length
        done = engine.generate(None, session=session, max_tokens=16)
        assert length >= len(PROMPT) and done.tokens == forged[2][4:]
