"""Wake-ups from another thread: none is lost, firsts and ends come at once, and what is in between
waits for its round.
"""

import asyncio
import threading

from oxillama.server.waker import Waker


def test_no_wake_up_is_lost():
    async def main():
        waker = Waker(asyncio.get_running_loop())
        bells = [waker.bell() for _ in range(8)]
        counts = [0] * len(bells)

        async def wait(at):
            while counts[at] < 200:
                await bells[at].wait()
                bells[at].clear()
                counts[at] = told[at]

        told = [0] * len(bells)

        def tell():
            for turn in range(200):
                for at, bell in enumerate(bells):
                    told[at] += 1
                    waker.ring(bell, at_once=turn % 50 == at)

        thread = threading.Thread(target=tell)
        thread.start()
        async with asyncio.timeout(20):
            await asyncio.gather(*map(wait, range(len(bells))))
        thread.join()

    asyncio.run(main())


def test_a_bell_rung_often_waits_once_for_its_round():
    async def main():
        loop = asyncio.get_running_loop()
        waker = Waker(loop)
        bell = waker.bell()
        for _ in range(5):
            waker.ring(bell, at_once=False)
        assert list(waker._in_turn) == [bell]
        async with asyncio.timeout(20):
            await bell.wait()
        assert not bell.rung
        bell.clear()
        waker.ring(bell, at_once=False)
        assert bell.rung and list(waker._in_turn) == [bell]

    asyncio.run(main())


def test_what_comes_in_a_pause_waits_for_its_end_and_what_is_urgent_does_not():
    async def main():
        loop = asyncio.get_running_loop()
        waker = Waker(loop)
        waker._round_over = lambda began: None  # no pause begins before the one below
        one, other = waker.bell(), waker.bell()
        waker.ring(one, at_once=False)
        await one.wait()
        one.clear()
        await asyncio.sleep(0)
        waker._timer.cancel()
        waker._timer = loop.call_later(1000, lambda: None)  # a pause without end
        waker.ring(one, at_once=False)
        waker.ring(other)
        async with asyncio.timeout(20):
            await other.wait()
        assert not one._heard and one.rung
        waker._timer.cancel()
        waker._pause_over()
        async with asyncio.timeout(20):
            await one.wait()

    asyncio.run(main())
