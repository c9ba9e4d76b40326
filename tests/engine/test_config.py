"""How an engine is configured: what the scheduler was told counts, and nobody is told of a number
that nobody gave.
"""

import pytest

import oxillama
from oxillama import ConfigError, EngineConfig, SchedulerConfig


@pytest.mark.parametrize(
    ("given", "chunk"),
    [
        (dict(), 512),
        (dict(scheduler=SchedulerConfig(prefill_chunk=64)), 64),
        (dict(prefill_chunk_size=7), 7),
        (dict(prefill_chunk_size=7, scheduler=SchedulerConfig(prefill_chunk=64)), 7),
        # of which a step takes what fits
        (dict(scheduler=SchedulerConfig(max_batch_tokens=256)), 512),
    ],
)
def test_the_prefill_chunk_is_the_schedulers_where_no_other_is_given(given, chunk):
    config = EngineConfig(**given)
    assert config.scheduling().prefill_chunk == chunk
    assert EngineConfig.from_dict(config.to_dict()).scheduling() == config.scheduling()


def test_a_chunk_beyond_a_step_is_refused_where_it_was_given():
    with pytest.raises(
        ConfigError, match="prefill_chunk_size: found 300, the scheduler's max_batch_tokens is 256"
    ):
        EngineConfig(prefill_chunk_size=300, scheduler=SchedulerConfig(max_batch_tokens=256))


@pytest.mark.parametrize(
    "scheduler", [SchedulerConfig(prefill_chunk=16), SchedulerConfig(max_batch_tokens=16)]
)
def test_a_prompt_is_evaluated_in_the_schedulers_chunks(scheduler):
    with oxillama.load(num_threads=1, scheduler=scheduler, prefix_cache=False) as engine:
        engine.generate([5] * 64, max_tokens=1)
        assert engine.metrics().steps_total == 4
        wanted = engine.logits([5] * 64)[-1]
        with engine.raw_loop() as raw:
            assert (raw.prefill(0, [5] * 64) == wanted).all()
