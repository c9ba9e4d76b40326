"""How long others wait for a long prompt: the loop over a null program, by a clock that only steps
move.
"""

import threading

import pytest

import oxillama.engine.engine
import oxillama.engine.loop
from oxillama.engine.scheduler import SMALLEST_CHUNK, SchedulerConfig
from tests.engine.null import VOCAB, NullProgram, core, request, solo

BASE, ROW = 0.004, 0.0005  # seconds of a step, and of each of its rows
LONG = 32_000


class Clock:
    """Stands still but for the steps; stands in for the module `time` in the loop."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


class ClockedProgram(NullProgram):
    """A null program whose steps take time by the clock, and whose logits look back a few tokens
    alone: long prompts cost the test little.
    """

    max_rows = 512

    def __init__(self, clock):
        super().__init__()
        self.clock, self.gate = clock, threading.Event()

    def step(self, batch, memory, *, output="logits", cancel=None):
        self.gate.wait(20)
        self.clock.now += BASE + ROW * len(batch.tokens)
        self.rows.append(len(batch.tokens))
        return super().step(batch, memory, output=output, cancel=cancel)


@pytest.mark.parametrize("decoders", [1, 12])
def test_a_prompt_of_32k_tokens_never_delays_the_next_token_of_others_by_more_than_a_chunk(
    monkeypatch, decoders
):
    clock = Clock()
    for module in (oxillama.engine.engine, oxillama.engine.loop):
        monkeypatch.setattr(module, "time", clock)
    program = ClockedProgram(clock)
    config = SchedulerConfig()
    engine = core(program=program, context_size=LONG + 10, scheduler=config, prefix=False)
    times = {}
    talkers = []
    for number in range(decoders):
        job = request(engine, [number], max_tokens=420)
        times[number] = seen = []
        job.listen(lambda seen=seen: seen.append(clock.now), in_loop=True)
        talkers.append(engine.submit(job))
    prompt = [(7 * i) % VOCAB for i in range(LONG)]
    long = engine.submit(request(engine, prompt, max_tokens=1))
    program.gate.set()
    for number, job in enumerate(talkers):
        assert list(job.result(60).tokens) == solo([number], 420)
    decoding = BASE + ROW * decoders  # all in one step: a wider one costs less a row here
    gaps = [later - earlier for seen in times.values() for earlier, later in zip(seen, seen[1:])]
    bound = max(config.max_decode_wait_ms / 1000, decoding + ROW * SMALLEST_CHUNK)
    # from the first chunk on, which comes before any was measured
    assert max(gaps) <= bound + 1e-9
    late = [
        later - earlier for seen in times.values() for earlier, later in zip(seen[40:], seen[41:])
    ]
    assert max(late) <= bound + 1e-9
    # the long prompt was on its way meanwhile
    assert max(program.rows[:40]) > config.max_batch_sequences
    long.cancel()
    engine.close()


def test_where_a_row_alone_takes_longer_than_the_bound_a_prompt_adds_its_smallest_chunk(
    monkeypatch,
):
    clock = Clock()
    for module in (oxillama.engine.engine, oxillama.engine.loop):
        monkeypatch.setattr(module, "time", clock)
    step, row = 0.1, 0.013  # the rates of a 4B
    monkeypatch.setitem(globals(), "BASE", step)
    monkeypatch.setitem(globals(), "ROW", row)
    program = ClockedProgram(clock)
    engine = core(program=program, context_size=LONG + 10, prefix=False)
    seen = []
    job = request(engine, [1], max_tokens=100)
    job.listen(lambda: seen.append(clock.now), in_loop=True)
    engine.submit(job)
    long = engine.submit(request(engine, [(7 * i) % VOCAB for i in range(LONG)], max_tokens=1))
    program.gate.set()
    job.result(60)
    gaps = [later - earlier for earlier, later in zip(seen, seen[1:])]
    assert max(gaps) == pytest.approx(step + row * (1 + SMALLEST_CHUNK))
    long.cancel()
    engine.close()
