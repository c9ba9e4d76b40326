"""Keys of blocks of tokens, chosen keys, and adapters that tokens switch, under the engine:
whatever is forked, cut, stored, restored, proposed or taken away, in the middle of a block or
between two, before a switch or behind it, a text has the bits of one evaluation.
"""

import numpy as np
import pytest

import oxillama
from oxillama import SamplerConfig, SchedulerConfig
from oxillama.engine.memory import pages as paging
from oxillama.gguf import GgufReader
from oxillama.model.state import Slot
from tests.model.invented import VOCAB, invent

GREEDY = SamplerConfig.greedy()
COUNT = 400  # tokens: beyond 3 blocks of 128 and beyond the first window
IDS = [int(token) for token in np.random.default_rng(3).integers(0, VOCAB, COUNT)]


@pytest.fixture(
    scope="module",
    params=[
        *("deepseek4", "glm-dsa", "minimax-m3", "qwen4exp", "graniteswitch"),
        "graniteswitch router_gain",
    ],
)
def path(request, tmp_path_factory):
    made = tmp_path_factory.mktemp("blocks") / "m.gguf"
    arch, *gain = request.param.split()
    changed = {f"{arch}.adapters.{name}": 15.0 for name in gain}
    invent(made, arch, changed={f"{arch}.context_length": 1024} | changed)
    return made


@pytest.fixture(scope="module")
def arch(path):
    return GgufReader(path).metadata["general.architecture"]


@pytest.fixture(scope="module")
def whole(path):
    """The logits of every token of the text, evaluated in one go."""
    with oxillama.load(path, prefix_cache=False, prefill_chunk_size=512) as engine:
        return engine.logits(IDS)


@pytest.fixture(params=[0, 64])
def slack(request, monkeypatch):
    monkeypatch.setattr(paging, "SLACK", request.param)
    return request.param


@pytest.mark.parametrize("chunk", [5, 64])
def test_a_text_that_is_cut_anywhere_has_the_bits_of_one_step(path, arch, slack, whole, chunk):
    with oxillama.load(path, prefix_cache=False, prefill_chunk_size=chunk) as engine:
        pool, session = engine._loaded.core.pool, engine.session()
        assert np.array_equal(engine.prefill(IDS, session=session), whole[-1])
        if arch == "deepseek4":
            # what keys are made of is kept of the last block alone, and the window with it
            assert pool.window == 128 and session.kv.shed >= (COUNT - 128 - slack) // 16 - 2
        for length in (399, 382, 257, 256, 255, 130, 128, 30):
            session.truncate(length)
            row = engine.prefill(IDS[length : length + 1], session=session)
            assert np.array_equal(row, whole[length])


def test_a_hit_and_a_fork_have_the_bits_of_an_evaluation(path, slack):
    with oxillama.load(path, prefill_chunk_size=16) as engine:
        session = engine.session()
        engine.prefill(IDS, session=session)
        for length in (398, 383, 258, 127, 33):
            wanted = engine.logits([*IDS[:length], 1, 2])[-1]
            fork = session.fork()
            fork.truncate(length)
            assert np.array_equal(engine.prefill([1, 2], session=fork), wanted)
            fork.close()
            job = engine.submit([*IDS[:length], 1, 2, 3], max_tokens=1).result(60)
            assert job.usage.cached_tokens >= min(length, 384) // 16 * 16
        session.close()
        engine.reset()
        engine._loaded.core.clear_cache()
        pool = engine._loaded.core.pool
        assert (pool.pages_used, pool.near_used) == (0, 0)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("length", [255, 258, 399])
def test_a_session_is_saved_in_the_middle_of_a_block(path, arch, slack, tmp_path, kv_type, length):
    if kv_type == "q8_0" and arch == "glm-dsa":
        kv_type = "f32"  # its latents are not in blocks of 32
    how = dict(prefix_cache=False, kv_type=kv_type)
    with oxillama.load(path, prefill_chunk_size=16, **how) as engine:
        session = engine.session()
        engine.prefill(IDS[:length], session=session)
        session.snapshot_to_file(tmp_path / "one.snap")
        wanted = engine.generate(None, session=session, max_tokens=12, sampler=GREEDY).tokens
    with oxillama.load(path, **how) as other:
        again = other.restore(tmp_path / "one.snap")
        # that of a recurrent model is saved as its tokens
        assert again.kv.length == (0 if arch == "qwen4exp" else length)
        found = other.generate(None, session=again, max_tokens=12, sampler=GREEDY).tokens
        assert found == wanted


def test_stored_prefixes_are_saved_with_the_keys_of_their_blocks(path, arch, whole, tmp_path):
    if arch == "qwen4exp":
        return  # prefixes of recurrent models are not saved
    with oxillama.load(path, prefill_chunk_size=16) as engine:
        engine.prefill(IDS, session=engine.session())
        engine.save_prefixes(tmp_path / "stored")
    with oxillama.load(path) as other:
        assert other.load_prefixes(tmp_path / "stored", trust=True) == 1
        assert np.array_equal(other.prefill(IDS, session=other.session()), whole[-1])
        assert other.metrics().kv_tokens_saved_total == 399


def test_rejected_candidates_leave_no_trace_in_blocks(path):
    """A text that repeats itself, so that candidates come, and do not always stand."""
    prompt = (IDS[:23] * 12)[:250]
    tokens = []
    for speculation in (None, "lookup"):
        with oxillama.load(path, prefix_cache=False) as engine:
            more = {} if speculation is None else {"speculative": speculation}
            done = engine.generate(prompt, max_tokens=60, sampler=GREEDY, **more)
            tokens.append(done.tokens)
    assert tokens[0] == tokens[1]


def test_requests_that_compete_for_few_pages_have_their_own_tokens(path, monkeypatch):
    monkeypatch.setattr(paging, "SLACK", 0)
    with oxillama.load(path, prefix_cache=False) as one:
        wanted = one.generate(IDS[:300], max_tokens=20, sampler=GREEDY).tokens
    steps = SchedulerConfig(max_batch_tokens=32, max_batch_sequences=4)
    with oxillama.load(
        path, max_pages=26, prefix_cache=False, scheduler=steps, prefill_chunk_size=16
    ) as engine:
        jobs = [engine.submit(IDS[:300], max_tokens=20, sampler=GREEDY) for _ in range(4)]
        assert [job.result(60).tokens for job in jobs] == [wanted] * 4
        assert engine.metrics().pages_leaked == 0


def test_a_cache_of_such_a_model_can_be_read(path):
    """A row of a layer of rows is that of its token."""
    with oxillama.load(path, prefix_cache=False) as engine:
        session = engine.session()
        engine.prefill(IDS[:60], session=session)
        memory, held = engine._loaded.core.memory, session.kv
        states = [one for one in engine._loaded.model.config.states if not isinstance(one, Slot)]
        for layer, state in enumerate(states):
            rows = [memory.read(page, layer)[0] for page in held.pages]
            heads, width, _ = state.dims
            assert np.concatenate(rows).shape == (64, max(1, heads), width)
