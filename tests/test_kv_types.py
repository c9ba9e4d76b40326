"""Keys and values as codes through the public face: the same tokens in any company, forks and
rewinds, heads that do not fit refused.
"""

from contextlib import closing

import numpy as np
import pytest

import oxillama
from oxillama import EngineConfig, SamplerConfig
from oxillama.model import load_model
from oxillama.opening import core_over
from tests.model.invented import invent

PROMPTS = ["Once upon a time", "One day, a girl named Lily found a key. " * 6, "The cat"]


@pytest.mark.parametrize("kv_type", ("q8_0", "q4_0"))
def test_tokens_over_codes_do_not_depend_on_companions_chunks_or_the_prefix_cache(kv_type):
    options = dict(max_tokens=24, sampler=SamplerConfig(temperature=0.8), seed=3)
    with oxillama.load(kv_type=kv_type, num_threads=2) as engine:
        together = [done.tokens for done in engine.generate(PROMPTS, **options)]
        # begins with stored pages
        again = [engine.generate(prompt, **options).tokens for prompt in PROMPTS]
    with oxillama.load(
        kv_type=kv_type, num_threads=1, prefill_chunk_size=7, prefix_cache=False
    ) as engine:
        alone = [engine.generate(prompt, **options).tokens for prompt in PROMPTS]
    assert together == again == alone


@pytest.mark.parametrize("kv_type", ("q8_0", "q4_0"))
def test_forks_rewound_and_restored_sessions_over_codes_go_on_as_a_fresh_one(kv_type):
    ids = list(range(40, 77))
    with oxillama.load(kv_type=kv_type, prefix_cache=False) as engine:
        fresh, session = engine.session(), engine.session()
        engine.prefill(ids[:21], session=fresh)
        before = engine.prefill(ids, session=session)
        rewound = session.fork()
        rewound.truncate(21)
        restored = engine.restore(rewound.snapshot())
        found = [engine.prefill(ids[30:35], session=one) for one in (fresh, rewound, restored)]
        assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
        session.truncate(len(ids) - 1)
        # what its fork wrote is not seen
        assert np.array_equal(engine.prefill(ids[-1:], session=session), before)


@pytest.mark.parametrize("kv_type", ("q8_0", "q4_0"))
def test_a_model_with_heads_of_eight_is_refused_by_name(cases, kv_type):
    with pytest.raises(oxillama.ConfigError, match=f"{kv_type}.*k_dim of 8"):
        oxillama.load(cases / "stories260K" / "stories260K-f16.gguf", kv_type=kv_type)


def kept(model, kv_type):
    """How a core over the model keeps keys and values."""
    with closing(core_over(model, EngineConfig(kv_type=kv_type))) as core:
        return core.memory.kv_type


def test_an_encoder_keeps_what_is_asked_for_and_f32_where_nothing_is(tmp_path):
    """Its keys live for one step; a type that was asked for is kept all the same."""
    model = load_model(invent(tmp_path / "m.gguf", "eurobert"))
    for kind, wanted in ((None, "f32"), ("f16", "f16"), ("f32", "f32"), ("q8_0", "q8_0")):
        assert kept(model, kind) == wanted


@pytest.mark.parametrize("kv_type", ("f16", "q8_0"))
def test_a_model_without_keys_and_values_has_no_type_for_them(kv_type, tmp_path):
    model = load_model(invent(tmp_path / "m.gguf", "mamba"))
    with pytest.raises(oxillama.ConfigError, match=f"kv_type: found '{kv_type}', wanted None"):
        kept(model, kv_type)
