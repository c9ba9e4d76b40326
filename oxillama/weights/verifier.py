"""`PanelVerifier`: compares mapped packed weights with the hashes they were written with, while the
model already answers.

    load --- 2 MB ... 2 MB ... (a piece every tenth of a second while steps run, without a pause
             while none does) --- every section holds --- the model's files hold
                        |
                        +-- one does not: the file is removed, the engine fails with WeightsDamaged,
                            and a DamagedWeightsWarning says how many steps used it

The sections are compared first. When the model has been idle for two seconds, its files are
compared with the hashes taken when the weights were packed. Closing a model finishes the sections.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from blake3 import blake3

from oxillama.durable import open_without_waiting
from oxillama.errors import DamagedWeightsWarning, EngineError, WeightsDamaged, starting_thread
from oxillama.gguf.source import Shard
from oxillama.weights.identity import unchanged
from oxillama.weights.idle import IdleWatch, StepActivity
from oxillama.weights.panel_file import PIECE, MappedPanels, log

IDLE_SECONDS = 2.0  # without a step, before the model's files are read
BUSY_SECONDS = 0.1  # between two pieces while the model works
QUIET_SECONDS = 0.05  # without a step, before pieces follow one another without a pause
LAST_SECONDS = 5.0  # for what is left of the sections when a model is closed
_verifiers: set[PanelVerifier] = set()

Report = Callable[[WeightsDamaged], None]


class _Stopped(Exception):
    """The model was closed."""


class PanelVerifier(threading.Thread):
    """Verifies one mapped file in the background, without keeping `program`, which uses it, alive.
    shards: the model's files.

    verified: every section is right. damage: the error found, None without one.
    """

    def __init__(
        self, mapped: MappedPanels, program: StepActivity, shards: Sequence[Shard]
    ) -> None:
        super().__init__(name="oxillama verifier", daemon=True)
        self._mapped: MappedPanels | None = mapped
        self._shards: Sequence[Shard] = tuple(shards)
        self._watch = IdleWatch(program)
        self._hurry, self._cancelled = threading.Event(), threading.Event()
        self._deadline = 0.0  # when hurrying
        self._lock, self._reports = threading.Lock(), list[Report]()
        self._pid = os.getpid()
        self.verified = False
        self.damage: WeightsDamaged | None = None
        _verifiers.add(self)
        try:
            with starting_thread():
                self.start()
        except EngineError:
            _verifiers.discard(self)  # nobody waits for a thread that never ran
            raise

    def tell(self, report: Report) -> None:
        """Call `report(error)` when damage is found, or now if it has been."""
        with self._lock:
            self._reports.append(report)
            found = self.damage
        if found is not None:
            report(found)

    def run(self) -> None:
        """Thread body."""
        try:
            self._verify()
        except _Stopped:
            pass
        except (OSError, MemoryError) as error:  # of reading the model's file again
            log.info("packed weights are not verified further: %s", error)
        finally:
            self._mapped, self._shards = None, ()
            _verifiers.discard(self)

    def finish(self, seconds: float = LAST_SECONDS) -> None:
        """Verify the remaining sections now, for at most this many seconds."""
        if os.getpid() != self._pid:  # a forked child has the object, and no such thread
            return
        self._deadline = time.monotonic() + seconds
        self._hurry.set()
        if self is not threading.current_thread():
            self.join(seconds + 1.0)

    def cancel(self) -> None:
        """End it; the rest stays unverified."""
        if os.getpid() == self._pid:
            self._cancelled.set()
            self._hurry.set()
            if self is not threading.current_thread():
                self.join()

    # ---- in its own thread
    # ----------------------------------------------------------------------------------------------

    def _verify(self) -> None:
        mapped = self._mapped
        assert mapped is not None
        for section in mapped.sections:
            view = mapped.view[section.offset : section.offset + section.size]
            pieces = (view[at : at + PIECE] for at in range(0, section.size, PIECE))
            if not self._holds(pieces, section.digest, self._throttle_panels):
                self._report(mapped, f"the panels of {section.name} differ from what was written")
                return
        self.verified = True
        for shard, digest in zip(self._shards, mapped.whole):
            if not unchanged(self._shards):  # another file by now, which nothing was loaded from
                return
            if not self._holds(_pieces(shard), digest, self._throttle_files):
                if unchanged(self._shards):
                    self._report(mapped, f"{shard.label} has changed since they were packed")
                return

    def _holds(self, pieces: Iterator[memoryview], digest: str, wait: Callable[[], None]) -> bool:
        hasher = blake3()
        wait()
        for piece in pieces:
            hasher.update(piece)
            wait()
        return hasher.hexdigest() == digest

    def _throttle_panels(self) -> None:
        """Wait before each piece of a section."""
        if not self._hurry.is_set() and not self._watch.idle(QUIET_SECONDS):
            self._hurry.wait(BUSY_SECONDS)
        if self._cancelled.is_set() or self._hurry.is_set() and time.monotonic() > self._deadline:
            raise _Stopped

    def _throttle_files(self) -> None:
        """Wait before each piece of the model's files."""
        while not self._hurry.is_set() and not self._watch.idle(IDLE_SECONDS):
            self._hurry.wait(BUSY_SECONDS)
        if self._hurry.is_set():
            raise _Stopped

    def _report(self, mapped: MappedPanels, what: str) -> None:
        mapped.remove()
        steps = self._watch.steps
        error = WeightsDamaged(
            f"sidecar {mapped.path}: {what}; {steps} steps ran over it since the model was loaded, "
            "whose results may be wrong; the file is removed, load the model again"
        )
        log.error("%s", error)
        with self._lock:
            self.damage, reports = error, list(self._reports)
        for report in reports:
            report(error)
        with suppress(DamagedWeightsWarning):  # where warnings are errors, it has been reported
            warnings.warn(str(error), DamagedWeightsWarning, stacklevel=2)


def _pieces(shard: Shard) -> Iterator[memoryview]:
    """The bytes of a file, read again through the system's file cache."""
    if shard.path is None:
        return
    buffer = memoryview(bytearray(PIECE))
    with open(shard.path, "rb", buffering=0, opener=open_without_waiting) as file:
        while (got := file.readinto(buffer)) > 0:
            yield buffer[:got]


def finish_all(seconds: float = LAST_SECONDS) -> None:
    """Let all verifications finish within this many seconds in total; Ctrl-C ends them."""
    waiting, end = list(_verifiers), time.monotonic() + seconds
    try:
        for each in waiting:
            each.finish(max(0.0, end - time.monotonic()))
    except KeyboardInterrupt:
        for each in waiting:
            each.cancel()


atexit.register(finish_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_verifiers.clear)  # a child has no thread of its parent's
