"""What the engine itself costs: the scheduler's tick, and the whole ledger of a token over a tape
that computes nothing.
"""

from __future__ import annotations

import time

from null_tape import null_core, start

from oxillama.engine.scheduler import ScheduleEntry, Scheduler, SchedulerConfig

TOKENS = 2000


class SchedulerTick:
    """Seconds of one `schedule()` with so many sequences decoding."""

    params = [1, 8, 32]
    param_names = ["sequences"]

    def setup(self, sequences: int) -> None:
        config = SchedulerConfig(max_sequences=64, max_batch_sequences=64)
        self.scheduler = Scheduler(
            config,
            admit=lambda entry: True,
            reserve=lambda entry, length: True,
            release=lambda entry: None,
        )
        for _ in range(sequences):
            self.scheduler.add(ScheduleEntry(1))
        for entry, _ in self.scheduler.schedule():
            self.scheduler.start_decoding(entry)

    def time_tick(self, sequences: int) -> None:
        self.scheduler.schedule()


class Ledger:
    """Microseconds per token of schedule, batch, call, sample, stop check and hand-over; nothing is
    computed.
    """

    params = [1, 16]
    param_names = ["sequences"]
    unit = "us"

    def track_token(self, sequences: int) -> float:
        best = float("inf")
        for _ in range(5):
            core = null_core()
            begin = time.perf_counter()
            requests = [start(core, [1, 2, 3], TOKENS // sequences) for _ in range(sequences)]
            for request in requests:
                request.result()
            best = min(best, time.perf_counter() - begin)
            core.close()
        return best / TOKENS * 1e6
