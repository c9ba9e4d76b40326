"""What an engine has loaded, and how long it is kept."""

import gc
import time

import oxillama

LONG = oxillama.SamplerConfig.greedy(ignore_eos=True)


def test_every_sibling_keeps_its_engine_to_its_end():
    engine = oxillama.load(num_threads=1)
    first, second, third = engine.submit(
        "Once upon a time", n=3, max_tokens=150, sampler=LONG
    ).requests
    while not second.generated:
        time.sleep(0.001)
    first.cancel()
    first.wait()
    del engine, first
    gc.collect()
    assert [each.result(20).finish_reason for each in (second, third)] == ["length", "length"]
