"""Nobody waits for pages that could be had: free ones, stored prefixes', those of idle sessions,
the least recently used first.
"""

import gc
import random
import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.engine.scheduler import SchedulerConfig
from tests.engine.null import VOCAB, NullProgram, core, hashed, request, solo


def watched(engine):
    """The engine, with what `admit` refused for want of pages held against all pages that somebody
    who runs or waits must keep.
    """
    allocator, admit, refused = engine.allocator, engine.allocator.admit, []

    def judged(entry):
        answer = admit(entry)
        if answer is None:
            session = entry.owner.session
            length, shared = (
                allocator.prefix.find(session.tokens, key=session.adapters)
                if allocator.prefix and not entry.done
                else (0, [])
            )
            held = set(shared).union(*(each.session.kv.pages for each in engine._tracker.in_flight))
            table, filled = session.kv.pages, session.kv.length
            # a shared last page is copied
            mine = len(table) - bool(filled % 16 and engine.pool.owners(table[filled // 16]) > 1)
            have = length // 16 if shared else mine
            need = -(-(entry.length + 1) // 16) - have + allocator.scheduler.running
            refused.append((need, engine.pool.max_pages - len(held)))
        return answer

    engine._scheduler._admit = judged
    return refused


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 40), st.booleans())
def test_nobody_waits_while_the_pages_it_needs_can_be_taken(seed, pages, stores):
    rng = random.Random(seed)
    config = SchedulerConfig(
        max_sequences=rng.randint(2, 8),
        max_batch_sequences=rng.randint(1, 8),
        max_batch_tokens=32,
        prefill_chunk=rng.randint(8, 32),
    )
    engine = core(max_pages=pages, prefix={"max_entries": 4} if stores else False, scheduler=config)
    refused = watched(engine)
    beginning, idle, jobs = [rng.randrange(VOCAB) for _ in range(40)], [], []
    # sessions that fill the pool, then rest
    for _ in range(rng.randint(1, 5)):
        session = engine.keep(engine.new_session())
        engine.extend(
            session, [rng.randrange(VOCAB) for _ in range(rng.randint(1, 16 * pages - 20))][:300]
        )
        idle += [session] if rng.random() < 0.7 else [session, session.fork()]
    # arrivals over them, some on forks
    for _ in range(rng.randint(2, 10)):
        if rng.random() < 0.3:
            session, count = rng.choice(idle), rng.randint(1, 20)
            if session.busy or not 0 < len(session.tokens) < 16 * pages - 60:
                continue
            prompt, session.sampler = list(session.tokens), None
            jobs.append(
                (
                    engine.submit(request(engine, None, session=session, max_tokens=count)),
                    prompt,
                    count,
                )
            )
        else:
            prompt, count = (
                beginning[: rng.randint(1, 40)]
                + [rng.randrange(VOCAB) for _ in range(rng.randint(0, 60))],
                rng.randint(1, 30),
            )
            jobs.append((engine.submit(request(engine, prompt, max_tokens=count)), prompt, count))
    for job, prompt, count in jobs:
        assert list(job.result(20).tokens) == solo(prompt, count)
    for need, had in refused:
        assert need > had
    for session in idle:
        session.close()
    assert (
        engine.metrics().pages_leaked == 0
        and engine.pool.pages_used == engine.metrics().pages_cached
    )
    engine.close()


class Held(NullProgram):
    """Takes no step before it is let go, so that everybody is there when the first is planned."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def step(self, *batch, **more):
        self.go.wait(60)
        return super().step(*batch, **more)


def together(engine, prompts, count):
    """The most that ran at once while each prompt got its solo tokens."""
    engine.program.go.clear()
    jobs, seen = [request(engine, prompt, max_tokens=count) for prompt in prompts], []
    for job in jobs:
        job.listen(lambda: seen.append(engine._scheduler.running), in_loop=True)
        engine.submit(job)
    engine.program.go.set()
    assert [list(job.result(60).tokens) for job in jobs] == [
        solo(prompt, count) for prompt in prompts
    ]
    return max(seen)


def test_an_idle_session_full_of_pages_delays_nobody():
    engine = core(program=Held(), max_pages=16, prefix=False)
    idle, kept = engine.keep(engine.new_session()), list(range(60)) * 3
    # 12 of 16 pages
    engine.extend(idle, kept)
    # 2 pages and 3, one more for each who runs
    assert together(engine, [[1] * 20, [2] * 40], 8) == 2 and not idle.kv.pages
    assert (engine.extend(idle, [7]) == hashed([*kept, 7], VOCAB)).all()
    engine.close()


def test_a_prompt_that_a_runner_has_in_its_pages_is_not_counted_twice():
    engine = core(program=Held(), max_pages=12)
    system = [(7 * i) % VOCAB for i in range(128)]  # 8 pages
    engine.submit(request(engine, system, max_tokens=1)).result(60)
    assert (
        together(engine, [[*system, 1], [*system, 2]], 8) == 2
        and engine.metrics().requests_preempted_total == 0
    )
    engine.close()


def test_the_session_that_rested_longest_lends_first():
    engine = core(max_pages=9, prefix=False)
    sessions = [engine.keep(engine.new_session()) for _ in range(3)]
    for number, session in enumerate(sessions):
        # 3 pages each
        engine.extend(session, [number] * 40)
    engine.extend(sessions[0], [5])
    engine.submit(request(engine, [8] * 30, max_tokens=2)).result(60)
    assert [bool(session.kv.pages) for session in sessions] == [True, False, True]
    engine.close()


def until_forgotten(engine, left):
    """Collect until so many sessions are left: the loop may be about to let go of the last
    request.
    """
    until = time.monotonic() + 5
    while len(engine.allocator.sessions) > left and time.monotonic() < until:
        gc.collect()
        time.sleep(0.001)
    assert len(engine.allocator.sessions) == left


def test_sessions_that_are_forgotten_give_their_pages_back():
    engine = core(prefix=False)
    kept = engine.keep(engine.new_session())
    engine.extend(kept, [1] * 40)
    for number in range(30):
        session = engine.keep(engine.new_session())
        engine.extend(session, [number] * 40)
        twin, session = session.fork(), None
        # its pages are its own
        assert (engine.extend(twin, [5]) == hashed([*[number] * 40, 5], VOCAB)).all()
    del twin
    until_forgotten(engine, 1)
    found = engine.metrics()
    assert found.pages_leaked == 0 and found.pages_used == 3
    assert (engine.extend(kept, [2]) == hashed([1] * 40 + [2], VOCAB)).all()
    engine.close()
    assert engine.pool.pages_used == 0


def test_pages_of_the_forgotten_are_taken_before_anybody_waits_or_loses_one():
    engine = core(max_pages=8, prefix=False)
    kept, lost = (engine.keep(engine.new_session()) for _ in range(2))
    engine.extend(kept, [1] * 40)
    engine.extend(lost, [2] * 70)
    del lost
    until_forgotten(engine, 1)
    assert list(engine.submit(request(engine, [3] * 60, max_tokens=10)).result(60).tokens) == solo(
        [3] * 60, 10
    )
    assert len(kept.kv.pages) == 3
    engine.close()


def test_pages_that_nobody_schedules_are_waited_for():
    """A session is busy while it is restored, or until its request has reached the loop: its pages
    will be had, and a request that needs them is not starved.
    """
    engine = core(max_pages=4, prefix=False)
    held = engine.keep(engine.new_session())
    engine.extend(held, list(range(40)))
    with engine.lock:
        held.busy = True
    prompt = [7] * 50
    job = engine.submit(request(engine, prompt, max_tokens=8))
    time.sleep(0.1)
    assert not job.done
    with engine.lock:
        held.busy = False
    assert list(job.result(60).tokens) == solo(prompt, 8)
    engine.close()


def test_a_session_that_is_freed_in_another_thread_changes_nothing_that_is_read():
    engine = core(max_pages=4, prefix=False)
    kept = [engine.keep(engine.new_session()) for _ in range(8)]
    sessions = iter(engine.allocator.sessions)
    first = next(sessions)
    kept.clear()  # all but the first are freed
    assert list(sessions) == []
    assert first in engine.allocator.sessions and len(engine.allocator.sessions) == 1
    engine.close()
