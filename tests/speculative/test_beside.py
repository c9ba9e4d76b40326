"""Drafters of callers run beside the loop: one that is slow or never returns holds up nobody but
its own requests, and those can be cancelled.
"""

import threading
import time

import pytest

from oxillama.errors import EngineError
from oxillama.speculative.types import Candidates, Draft
from tests.engine.null import core, request, solo


class Hanging:
    """Waits in one of its calls until it is let go; `inside` tells that it does."""

    def __init__(self, where):
        self.where, self.inside, self.go = where, threading.Event(), threading.Event()
        self.threads, self.calls = set(), []

    def wait(self, where):
        self.threads.add(threading.current_thread().name)
        self.calls.append(where)
        if where == self.where:
            self.inside.set()
            assert self.go.wait(20)

    def open(self, session):
        self.wait("open")
        return session

    def propose(self, asks):
        self.wait("propose")
        return [Draft()] * len(asks)

    def close(self, state, session):
        self.wait("close")


def drafted(engine, drafter, prompt, **more):
    made = request(engine, prompt, **more)
    made.speculation = engine.speculator.speculation(
        Candidates(drafter, adaptive=False), made.session
    )
    return made


@pytest.mark.parametrize("where", ["open", "propose"])
def test_others_go_on_beside_a_drafter_that_hangs_and_a_cancel_ends_its_request(where):
    engine, drafter = core(prefix=False), Hanging(where)
    stuck = engine.submit(drafted(engine, drafter, [3, 4], max_tokens=50))
    assert drafter.inside.wait(60)
    assert list(engine.submit(request(engine, [1, 2], max_tokens=50)).result(60).tokens) == solo(
        [1, 2], 50
    )
    assert not stuck.done
    stuck.cancel()
    done = stuck.result(60)
    assert done.finish_reason == "cancelled" and list(done.tokens) == solo([3, 4], 50)[:1]
    # its session is idle, and the loop does not turn while there is nothing to do
    assert not stuck.session.busy and engine._scheduler.idle and not engine._scheduler.parked
    drafter.go.set()
    while "close" not in drafter.calls:
        time.sleep(0.001)
    assert drafter.threads == {"oxillama worker"}
    engine.close()
    assert engine.pool.pages_used == 0


def test_a_drafter_that_hangs_at_the_end_holds_up_nobody():
    engine, drafter = core(prefix=False), Hanging("close")
    done = engine.submit(drafted(engine, drafter, [3, 4], max_tokens=5)).result(60)
    assert list(done.tokens) == solo([3, 4], 5) and drafter.inside.wait(60)
    assert list(engine.submit(request(engine, [1], max_tokens=5)).result(60).tokens) == solo([1], 5)
    drafter.go.set()
    engine.close()


def test_an_engine_closes_beside_a_drafter_that_hangs():
    engine, drafter = core(prefix=False), Hanging("propose")
    stuck = engine.submit(drafted(engine, drafter, [3, 4], max_tokens=50))
    assert drafter.inside.wait(60)
    engine.close()
    assert stuck.result(60).finish_reason == "cancelled"
    drafter.go.set()


def test_requests_of_one_drafter_are_asked_for_together_and_one_call_at_a_time():
    class Counting(Hanging):
        def propose(self, asks):
            assert self.lock.acquire(blocking=False)
            sizes.append(len(asks))
            time.sleep(0.001)
            self.lock.release()
            return [Draft([1, 2]) for _ in asks]

    sizes = []
    engine, drafter = core(prefix=False), Counting(None)
    drafter.lock = threading.Lock()
    jobs = [engine.submit(drafted(engine, drafter, [at, 4], max_tokens=30)) for at in range(4)]
    assert [list(job.result(60).tokens) for job in jobs] == [solo([at, 4], 30) for at in range(4)]
    assert max(sizes) > 1
    engine.close()


def test_a_thread_that_is_refused_ends_one_request_and_the_next_is_drafted_for(monkeypatch):
    engine, drafter, refused = core(), Hanging("nowhere"), []
    run = engine._loop.workers.run

    def refusing(call):
        if not refused:
            refused.append(call)
            raise EngineError("threads: the system refused one")
        run(call)

    monkeypatch.setattr(type(engine._loop.workers), "run", lambda self, call: refusing(call))
    with pytest.raises(EngineError, match="refused one"):
        engine.submit(drafted(engine, drafter, [1])).result(20)
    assert list(engine.submit(drafted(engine, drafter, [2])).result(20).tokens) == solo([2])
    assert drafter.calls.count("propose") > 1
    engine.close()


def test_a_request_whose_pages_are_taken_while_its_drafter_works_goes_on():
    engine, drafter = core(prefix=False, max_pages=3), Hanging("propose")
    stuck = engine.submit(drafted(engine, drafter, [3, 4], max_tokens=20))
    assert drafter.inside.wait(60)
    other = engine.submit(request(engine, [1, 2], max_tokens=45))  # needs every page
    assert list(other.result(60).tokens) == solo([1, 2], 45)
    drafter.go.set()
    assert list(stuck.result(60).tokens) == solo([3, 4], 20)
    assert engine.metrics().requests_preempted_total
    engine.close()


def test_shares_of_a_drafter_that_is_not_said_to_draw_are_refused():
    class Drawing(Hanging):
        def propose(self, asks):
            return [Draft([1], None, [None]) for _ in asks]

    engine = core(prefix=False)
    with pytest.raises(ValueError, match="wanted Candidates"):
        engine.submit(drafted(engine, Drawing(None), [3], max_tokens=5)).result(60)
    engine.close()
