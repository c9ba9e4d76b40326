"""What a request made goes with its last reference: nothing waits for a search for cycles, which
without the GIL comes seldom, and holds the memory of many requests until then.
"""

import gc

import pytest

import oxillama
from oxillama import BeamSearchConfig

LONG = {"max_tokens": 300, "ignore_eos": True}


def stopped(engine):
    request = engine.submit("Once", **LONG)
    request.cancel()
    request.result(60)


def forked(engine):
    session = engine.session()
    engine.prefill("Once upon", session=session)
    twin = session.fork()
    session.close()
    engine.generate(None, session=twin, max_tokens=3)
    engine.restore(twin.snapshot()).close()
    twin.close()


WAYS = {
    "generate": lambda engine: engine.generate("Once upon a time", max_tokens=4),
    "chat": lambda engine: engine.chat([{"role": "user", "content": "Hello!"}], max_tokens=4),
    "stream": lambda engine: list(engine.stream("Once upon a time", max_tokens=4)),
    "siblings": lambda engine: engine.generate("Once", n=3, max_tokens=4, temperature=1.0),
    "lookup": lambda engine: engine.generate("Once", max_tokens=20, speculative="lookup"),
    "choices": lambda engine: engine.generate("Once", choices=[" one", " two"]),
    "processor": lambda engine: engine.generate(
        "Once", processors=[lambda tokens, logits: logits], max_tokens=3
    ),
    "beams": lambda engine: engine.beam_generate(
        "Once", BeamSearchConfig(beam_width=2, max_new_tokens=4)
    ),
    "embed": lambda engine: engine.embed("Once upon a time"),
    "logits": lambda engine: engine.logits([1, 2, 3]),
    "cancelled": stopped,
    "forked": forked,
}


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(num_threads=1) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_a_request_leaves_no_cycles(engine, way):
    WAYS[way](engine)  # what is made once and kept
    engine.metrics()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            WAYS[way](engine)
        engine.metrics()  # the loop is past the last of them
        assert gc.collect() == 0
    finally:
        gc.enable()
