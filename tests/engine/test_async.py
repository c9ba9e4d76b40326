"""The engine's awaitable doors: the same results, errors that cancel what was begun beside them,
and no thread per request.
"""

import asyncio
import contextlib
import threading

import numpy as np
import pytest

import oxillama
from oxillama import AsyncEngine, SamplerConfig
from oxillama.engine import stream

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
        pieces = [
            piece async for piece in doors.stream("Once upon a time", max_tokens=9, sampler=GREEDY)
        ]
        return (
            one,
            many,
            "".join(piece.text for piece in pieces),
            await doors.embed("Lily"),
            await doors.embed("Lily", pooling="last"),
        )

    one, many, text, mean, last = asyncio.run(main())
    assert one.tokens == engine.generate("Once upon a time", max_tokens=9, sampler=GREEDY).tokens
    assert [each.text for each in many] == [
        each.text for each in engine.generate(["Once", "One day"], max_tokens=5, sampler=GREEDY)
    ]
    assert text == one.text
    assert np.array_equal(mean, engine.embed("Lily")) and np.array_equal(
        last, engine.embed_with("Lily", "last")
    )


def test_going_on_is_with_what_was_awaited_last(engine):
    async def main():
        engine.generate("The first", max_tokens=2, sampler=GREEDY)
        begun = await AsyncEngine(engine).generate("Once upon a time", max_tokens=4, sampler=GREEDY)
        return begun.tokens + (await AsyncEngine(engine).generate(None, max_tokens=5)).tokens

    assert (
        asyncio.run(main())
        == engine.generate("Once upon a time", max_tokens=9, sampler=GREEDY).tokens
    )


def test_an_engine_without_its_doors_is_refused(engine):
    with (
        oxillama.SpeculativeEngine(oxillama.SpeculativeConfig(engine, "early_exit:1")) as other,
        pytest.raises(
            oxillama.ConfigError,
            match="^engine: found SpeculativeEngine, wanted an InferenceEngine",
        ),
    ):
        AsyncEngine(other)


def test_an_error_of_one_of_many_cancels_the_others(engine):
    def bad(tokens, logits):
        if tokens[0] == 5:
            raise ZeroDivisionError("mine")

    async def main():
        before = engine.metrics()
        with pytest.raises(ZeroDivisionError):
            await AsyncEngine(engine).generate(
                ["Once", [5] * 40, "One day"],
                max_tokens=400,
                processors=[bad],
                sampler=SamplerConfig.greedy(ignore_eos=True),
            )
        # the loop is alive, so nobody else cancels them
        while engine.metrics().requests_running:
            await asyncio.sleep(0.001)
        return before, engine.metrics()

    before, after = asyncio.run(main())
    assert (
        after.requests_failed_total - before.requests_failed_total,
        after.requests_cancelled_total - before.requests_cancelled_total,
    ) == (1, 2)


def test_a_closed_loop_leaves_no_request_behind(engine):
    async def main():
        asyncio.get_running_loop().create_task(
            AsyncEngine(engine).generate("Once", max_tokens=450, sampler=GREEDY)
        )
        await asyncio.sleep(0.01)  # asyncio.run cancels what is left

    before = threading.active_count()
    asyncio.run(main())
    while engine.metrics().requests_running:
        pass
    assert engine.metrics().requests_running == 0 and threading.active_count() == before


def test_sixty_four_tasks_with_random_cancels_get_their_solo_tokens_without_a_thread_each(engine):
    prompts = ["Once upon a time", "Tom", "Lily saw", "The dog"]
    wanted = [
        engine.generate(prompt, max_tokens=12, sampler=GREEDY, cache_prompt=False).tokens
        for prompt in prompts
    ]

    async def one(number):
        return (
            await AsyncEngine(engine).generate(prompts[number % 4], max_tokens=12, sampler=GREEDY)
        ).tokens

    async def main():
        before = threading.active_count()
        tasks = [asyncio.ensure_future(one(number)) for number in range(64)]
        for number in range(0, 64, 5):
            await asyncio.sleep(0)
            tasks[number].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert threading.active_count() == before
        return found

    for number, found in enumerate(asyncio.run(main())):
        assert (
            found == wanted[number % 4]
            or number % 5 == 0
            and isinstance(found, asyncio.CancelledError)
        )
    while engine.metrics().requests_running:
        pass
    assert engine.metrics().pages_leaked == 0


def test_a_loop_over_pieces_that_is_left_stops_the_work(engine):
    async def main():
        request = engine.submit("Once", sampler=SamplerConfig.greedy(ignore_eos=True))
        async with contextlib.aclosing(aiter(request)) as pieces:
            async for _ in pieces:
                break
        return (await request).finish_reason, [piece async for piece in request][-1].finish_reason

    assert asyncio.run(main()) == ("cancelled", "cancelled")


@pytest.mark.parametrize("leave", ["drop", "close"])
def test_events_of_a_chat_that_nobody_reads_stop_the_work(leave):
    async def main(engine):
        asked = [{"role": "user", "content": "Hello!"}]
        events = await AsyncEngine(engine).chat(
            asked, stream=True, ignore_eos=True, context_shift=True, max_tokens=10**9
        )
        if leave == "close":
            await events.aclose()
        del events
        while not engine.metrics().requests_cancelled_total:
            await asyncio.sleep(0.001)
        return engine.metrics().requests_cancelled_total

    with oxillama.load() as engine:
        assert asyncio.run(asyncio.wait_for(main(engine), 20)) == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_a_cancel_that_does_not_wake_the_loop_is_noticed(engine, monkeypatch, streamed):
    """As a notebook does in a signal handler, when a cell that awaits is interrupted."""
    monkeypatch.setattr(stream, "AWAKE", 0.01)
    never, waiting, tasks = threading.Event(), threading.Event(), []

    def stuck(tokens, logits):
        waiting.set()
        never.wait()

    async def ask():
        options = {"max_tokens": 9, "processors": [stuck]}
        if streamed:
            return [piece async for piece in AsyncEngine(engine).stream("Once", **options)]
        return await AsyncEngine(engine).generate("Once", **options)

    async def main():
        tasks.append(asyncio.get_running_loop().create_task(ask()))
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert waiting.wait(60)
    tasks[0].cancel()
    thread.join(20)
    ended = not thread.is_alive()
    never.set()
    assert ended and tasks[0].cancelled()
