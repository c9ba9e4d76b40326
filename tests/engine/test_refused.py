"""Memory that is refused in the loop: the requests of that step end with a MemoryError, the others
have their solo tokens, and the engine goes on.
"""

import sys
import threading

import pytest

from oxillama.engine.beam import BeamSearchConfig, make_beams
from oxillama.engine.scheduler import SchedulerConfig
from oxillama.engine.siblings import make_siblings
from oxillama.options import Options
from oxillama.sampling import Sampler, SamplerConfig
from tests.engine.null import VOCAB, core, request, solo

SEEDED = SamplerConfig(temperature=1.0, top_k=20, seed=11)
GREEDY = SamplerConfig.greedy()
# where the loop's own work is done; pages and prefixes are counted in others
FILES = (
    "engine/allocator.py",
    "engine/beam.py",
    "engine/loop.py",
    "engine/output.py",
    "engine/request.py",
    "engine/scheduler.py",
    "engine/session.py",
    "engine/tracker.py",
    "sampling/sampler.py",
)
# they wait, or run where a request is not in flight any more
NEVER = ("_fail", "abandon", "_run", "close", "_run_end_listeners", "_survive", "end_step")


class Refusing:
    """Raises MemoryError in one thread, once, before the line `at` of the loop's files is run for
    the `count`-th time; collects the lines that are run.
    """

    def __init__(self):
        self.at, self.seen, self.fired = None, {}, False

    def trace(self, frame, event, _):
        name = frame.f_code.co_filename
        if name.endswith(FILES) and frame.f_code.co_name not in NEVER:
            return self.line
        return None

    def line(self, frame, event, _):
        if event == "line":
            point = (frame.f_code.co_filename.rsplit("/", 1)[1], frame.f_lineno)
            self.seen[point] = self.seen.get(point, 0) + 1
            if point == self.at:
                self.at, self.fired = None, True
                raise MemoryError(f"refused at {point}")
        return self.line


def watched(engine, tracer):
    """Trace what the loop does from now on."""
    armed = threading.Event()
    engine._loop.inbox.put((lambda: (sys.settrace(tracer), armed.set()),))
    assert armed.wait(60)


def load(engine):
    """(request, what it gives alone) of work of every kind, in flight together."""
    whole = [(5 * i) % VOCAB for i in range(21)]

    def processed(prompt):
        session = engine.new_session(prompt)
        session.sampler = Sampler(GREEDY, VOCAB, processors=[lambda tokens, row: None])
        return request(engine, None, session=session, max_tokens=3)

    made = [
        (request(engine, whole, max_tokens=4), solo(whole, 4)),
        (request(engine, [*whole, 3], max_tokens=3, sampler=SEEDED), solo([*whole, 3], 3, SEEDED)),
        (processed([7, 8]), solo([7, 8], 3)),
    ]
    siblings = make_siblings(
        engine, None, Options(max_tokens=2, n=2, seed=4), default=SEEDED, prompt=[9, 10]
    )
    made += [(each, solo([9, 10], 2, SEEDED.replace(seed=each.seed))) for each in siblings.requests]
    beams = make_beams(
        engine,
        None,
        Options(),
        config=BeamSearchConfig(beam_width=2, max_new_tokens=2),
        default=GREEDY,
        prompt=[1, 2],
    )
    for job in (*(job for job, _ in made[:4]), beams):
        engine.submit(job)
    return made, beams


def check(engine, made, beams, wanted_beams):
    """Every request has its solo tokens or a MemoryError; returns how many have the latter."""
    refused = 0
    for job, wanted in made:
        try:
            assert list(job.result(60).tokens) == wanted
        except MemoryError:
            refused += 1
    try:
        assert [each.tokens for each in beams.result(60)] == wanted_beams
    except MemoryError:
        refused += 1
    return refused


@pytest.mark.parametrize("file", FILES)
def test_memory_refused_at_any_line_of_the_loop_ends_requests_and_not_the_engine(file):
    engine = core(max_pages=14, prefix=False)
    tracer = Refusing()
    engine.submit(request(engine, [1])).result(60)
    watched(engine, tracer.trace)
    made, beams = load(engine)
    wanted_beams = [each.tokens for each in beams.result(60)]
    assert check(engine, made, beams, wanted_beams) == 0
    points, hit = [point for point in tracer.seen if file.endswith(point[0])], 0
    assert points
    for point in points:
        tracer.at, tracer.fired = point, False
        watched(engine, tracer.trace)  # what raises in a trace is traced no more
        made, beams = load(engine)
        check(engine, made, beams, wanted_beams)
        hit += tracer.fired
        tracer.at = None
        assert list(engine.submit(request(engine, [3], max_tokens=2)).result(60).tokens) == solo(
            [3], 2
        ), point
        metrics = engine.metrics()
        assert metrics.pages_used == metrics.requests_running == metrics.requests_waiting == 0, (
            point
        )
        assert not engine._tracker.in_flight, point
    assert hit > 0.9 * len(points)
    metrics = engine.metrics()
    assert metrics.requests_started_total == (
        metrics.requests_completed_total + metrics.requests_failed_total
    )
    engine.close()


@pytest.mark.parametrize("part", ["step", "batch", "draw", "pages"])
def test_memory_refused_by_what_a_step_calls_ends_those_of_the_step_alone(part, monkeypatch):
    engine = core(prefix=False, scheduler=SchedulerConfig(max_sequences=1))
    refuse = {"on": False}

    def refusing(function):
        def call(*given, **more):
            if refuse["on"]:
                refuse["on"] = False
                raise MemoryError("no more")
            return function(*given, **more)

        return call

    first, waiting = request(engine, [5] * 20, max_tokens=6), request(engine, [6], max_tokens=6)
    if part == "draw":
        first.session.sampler = Drawing(first.session.sampler, refusing)
    else:
        owner, name = {
            "step": (engine._loop.program, "step"),
            "batch": (engine._loop._batch, "_make"),
            "pages": (engine.memory, "ensure"),
        }[part]
        monkeypatch.setattr(owner, name, refusing(getattr(owner, name)))
    refuse["on"] = True
    for job in (first, waiting):
        engine.submit(job)
    with pytest.raises(MemoryError, match="no more"):
        first.result(60)
    assert list(waiting.result(60).tokens) == solo([6], 6)
    assert list(engine.submit(request(engine, [5] * 20)).result(60).tokens) == solo([5] * 20)
    assert engine.metrics().requests_failed_total == 1 and engine.metrics().pages_used == 0
    engine.close()


class Drawing:
    """A sampler whose draws go through a function."""

    processors, logprobs = (), None

    def __init__(self, sampler, through):
        self.accept, self.sample, self.seed = sampler.accept, through(sampler.sample), sampler.seed
