"""Sequences of recurrent models: whatever is forked, cut, stored, taken away or saved, a request's
tokens are those of its solo run.
"""

import numpy as np
import pytest

import oxillama
from oxillama import SchedulerConfig

MODELS = ("mamba", "mamba2", "jamba", "lfm2")
PROMPT = [int(token) for token in np.random.default_rng(3).integers(20, 500, 70)]
OPTIONS = dict(max_tokens=12, temperature=0.0)


@pytest.fixture(scope="module", params=MODELS)
def path(request, cases):
    return cases / "arch" / request.param / "f32.gguf"


@pytest.fixture(scope="module")
def alone(path):
    """Ids of a prompt, each run by an engine of its own kind that holds nothing else."""
    with oxillama.load(path, prefix_cache=False, num_threads=1) as engine:
        return lambda: engine, {}, engine


def ids(engine, prompt, **more):
    return list(engine.submit(prompt, **OPTIONS, **more).result(60).token_ids)


def solo(path, prompt):
    with oxillama.load(path, prefix_cache=False, num_threads=1) as engine:
        return ids(engine, prompt)


def test_chunks_and_companions_change_nothing(path):
    prompts = [PROMPT, PROMPT[:30], PROMPT[10:60], PROMPT[:31]]
    wanted = [solo(path, prompt) for prompt in prompts]
    config = SchedulerConfig(max_batch_tokens=24, max_prefill_tokens=7, max_sequences=4)
    with oxillama.load(path, scheduler=config) as engine:
        requests = [engine.submit(prompt, **OPTIONS) for prompt in prompts]
        assert [list(each.result(60).token_ids) for each in requests] == wanted


def test_a_stored_prefix_begins_at_a_checkpoint(path):
    longer = [*PROMPT, *PROMPT[:9]]
    wanted = solo(path, longer)
    with oxillama.load(path) as engine:
        ids(engine, PROMPT)
        before = engine.metrics().prefix_tokens_saved
        assert ids(engine, longer) == wanted
        assert engine.metrics().prefix_tokens_saved - before >= len(PROMPT)


def test_forks_and_cuts_go_on_as_if_they_were_new(path):
    with oxillama.load(path, prefix_cache=False) as engine:
        session = engine.new_session(PROMPT)
        first = ids(engine, None, session=session)
        fork = session.fork()
        fork.truncate(len(PROMPT) - 5)
        fork.extend(PROMPT[:3])
        cut = [*PROMPT[:-5], *PROMPT[:3]]
        assert ids(engine, None, session=fork) == solo(path, cut)
        whole = [*PROMPT, *first]
        assert session.tokens[: len(whole)] == whole
        session.extend(PROMPT[:2])
        assert ids(engine, None, session=session) == solo(path, [*whole, *PROMPT[:2]])
