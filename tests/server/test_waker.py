"""Wake-ups from another thread: none is lost, firsts and ends come at once, and what is in between
waits for its round.
"""

import asyncio
import threading

from oxillama.server.waker import Waker


def test_no_wake_up_is_lost():
    async def main():
        waker, events = Waker(asyncio.get_running_loop()), [asyncio.Event() for _ in range(8)]
        counts = [0] * len(events)

        async def wait(at):
            while counts[at] < 200:
                await events[at].wait()
                events[at].clear()
                counts[at] = told[at]

        told = [0] * len(events)

        def tell():
            for turn in range(200):
                for at, event in enumerate(events):
                    told[at] += 1
                    waker.wake(event, at_once=turn % 50 == at)

        thread = threading.Thread(target=tell)
        thread.start()
        async with asyncio.timeout(20):
            await asyncio.gather(*map(wait, range(len(events))))
        thread.join()

    asyncio.run(main())


def test_what_comes_in_a_pause_waits_for_its_end_and_what_is_urgent_does_not():
    async def main():
        loop = asyncio.get_running_loop()
        waker, one, other = Waker(loop), asyncio.Event(), asyncio.Event()
        waker.wake(one, at_once=False)
        await one.wait()
        one.clear()
        await asyncio.sleep(0)
        waker._timer.cancel()
        waker._timer = loop.call_later(1000, lambda: None)  # a pause without end
        waker.wake(one, at_once=False)
        waker.wake(other)
        async with asyncio.timeout(20):
            await other.wait()
        assert not one.is_set()
        waker._timer.cancel()
        waker._pause_over()
        async with asyncio.timeout(20):
            await one.wait()

    asyncio.run(main())
