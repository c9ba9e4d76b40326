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


def in_cycles(found):
    """Of objects that nothing holds from outside those in cycles, and what these hold. Without the
    GIL there are others: the last reference was another thread's, and theirs has yet to hear of it.
    """
    left = {id(each): each for each in found}
    while True:
        held = {id(to) for each in left.values() for to in gc.get_referents(each)}
        loose = left.keys() - held
        if not loose:
            return list(left.values())
        for at in loose:
            del left[at]


def test_what_lies_in_cycles():
    ring, tail, loose = [], [], []
    ring += [ring, tail]
    assert in_cycles([loose, [loose]]) == []
    found = in_cycles([loose, ring, tail])
    assert len(found) == 2 and found[0] is ring and found[1] is tail


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
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert in_cycles(gc.garbage) == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
