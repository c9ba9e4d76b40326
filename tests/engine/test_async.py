"""The engine's awaitable doors: the same results, errors that cancel what was begun beside them, and no thread per request."""
import asyncio
import threading

import numpy as np
import pytest

import oxillama
from oxillama import AsyncEngine, SamplerConfig

GREEDY = SamplerConfig.greedy()


@pytest.fixture(scope="module")
def engine(cases):
    with oxillama.load(cases / "stories260K" / "stories260K-f32.gguf") as loaded:
        yield loaded


def test_every_door_gives_what_the_engine_gives(engine):
    async def main():
        doors = AsyncEngine(engine)
        one = await doors.generate("Once upon a time", max_tokens=9, sampler=GREEDY)
        many = await doors.generate(["Once", "One day"], max_tokens=5, sampler=GREEDY)
        pieces = [piece async for piece in doors.stream("Once upon a time", max_tokens=9, sampler=GREEDY)]
        return one, many, "".join(piece.text for piece in pieces), await doors.embed("Lily"), await doors.embed("Lily", mode="last")
    one, many, text, mean, last = asyncio.run(main())
    assert one.tokens == engine.generate("Once upon a time", max_tokens=9, sampler=GREEDY).tokens
    assert [each.text for each in many] == [each.text for each in engine.generate(["Once", "One day"], max_tokens=5, sampler=GREEDY)]
    assert text == one.text
    assert np.array_equal(mean, engine.embed("Lily")) and np.array_equal(last, engine.embed_with("Lily", "last"))


def test_an_error_of_one_of_many_cancels_the_others(engine):
    def bad(tokens, logits):
        if tokens[0] == 5:
            raise ZeroDivisionError("mine")

    async def main():
        before = engine.metrics()
        with pytest.raises(ZeroDivisionError):
            await AsyncEngine(engine).generate(["Once", [5] * 40, "One day"], max_tokens=400, processors=[bad],
                                               sampler=SamplerConfig.greedy(ignore_eos=True))
        while engine.metrics().requests_running:           # the loop is alive, so nobody else cancels them
            await asyncio.sleep(0.001)
        return before, engine.metrics()
    before, after = asyncio.run(main())
    assert (after.requests_failed_total - before.requests_failed_total, after.requests_cancelled_total - before.requests_cancelled_total) == (1, 2)


def test_a_closed_loop_leaves_no_request_behind(engine):
    async def main():
        asyncio.get_running_loop().create_task(AsyncEngine(engine).generate("Once", max_tokens=450, sampler=GREEDY))
        await asyncio.sleep(0.01)                  # asyncio.run cancels what is left
    before = threading.active_count()
    asyncio.run(main())
    while engine.metrics().requests_running:
        pass
    assert engine.metrics().requests_running == 0 and threading.active_count() == before
