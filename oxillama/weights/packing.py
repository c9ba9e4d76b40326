"""`Packing` turns weights into panels while a model already answers; `Packer` is the thread that
does so when nothing else runs.

    load ----- packer ... unit, unit, unit ... --------------------------------+--- all are packed:
    the packer ends
               first step: over what is packed and what still is in the file   |
               later steps: pack for as long as such a step takes, then run ---+

Memory that is written for the first time can take longer than the whole rest of a first token. So
the first step does not wait: its products pack what they need into a worker's cache and discard it
(`_core/unpacked`). That work must be repeated. Therefore a later step first packs with all its
workers: everything that is left if that will not take long, otherwise for as long as the last such
step took. A token waits little longer than twice that time, and packing takes at most twice as long
as without such steps. Steps of many rows wait until everything is packed. One thread packs at a
time, and none while such a step runs.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

from oxillama._core.batch import CancelFlag
from oxillama._core.panels import PackedMatrix, Units
from oxillama._core.threads import default_threads
from oxillama.errors import Cancelled, EngineError, starting_thread

UNIT = 2 << 20  # bytes that a worker packs at a time: a large page
# seconds that a step waits for all weights, as long as that seems enough
PATIENCE = 0.2
# packed between two looks at the clock; and at whether anything else is wanted
FEW_UNITS, MANY_UNITS = 8, 32
# of a step that goes without: a longer prompt would lose more than it gains
MOST_ROWS = 64
_all: weakref.WeakSet[Packing] = weakref.WeakSet()
_packers: set[Packer] = set()


class Packing:
    """Packs matrices that `reserve_all` made, in their order; `whole` when all are packed. Any
    thread can pack a few units at a time.

    mapped: for each matrix, whether its rows are in a mapped file.
    """

    def __init__(
        self, matrices: Sequence[PackedMatrix], mapped: Sequence[bool], *, num_threads: int = 0
    ) -> None:
        self._units, self._workers = (
            Units(list(matrices), mapped=mapped, unit=UNIT),
            num_threads or default_threads(),
        )
        self.nbytes = self._units.nbytes
        self._begun = self._unpacked = 0.0  # when the last step without began, how long it took
        # seconds that all workers take for a byte of the file, of late; 0 is not known yet
        self._byte_seconds = 0.0
        self._renew()
        _all.add(self)

    def _renew(self) -> None:
        """Initialise the locks, here and in a forked child."""
        self._turn, self._waiting, self._wanted = threading.Condition(), 0, CancelFlag()
        self._taken: int | None = None  # by which thread

    @property
    def whole(self) -> bool:
        """Whether everything is packed."""
        return self._units.whole

    @property
    def done(self) -> int:
        """Bytes of the file that are packed."""
        return self._units.done

    def begin(self, rows: int, cancel: CancelFlag | None = None) -> bool | None:
        """Call before a step of this many rows. None: everything is packed. False: the rest has
        been packed now. True: the step uses weights that are not packed, and `end` must be called.

        Cancelled if `cancel` is set meanwhile.
        """
        if self.whole:
            return None
        begun = False
        try:  # an interrupt may come as soon as the turn is taken
            self._take(step=True)
            least = time.perf_counter() + self._unpacked
            most = least + max(self._unpacked, PATIENCE)
            while not (begun or self.whole):
                if cancel:
                    raise Cancelled("step: cancelled by its caller")
                begun = (
                    rows <= MOST_ROWS
                    and (self._byte_seconds > 0 or not self._unpacked)
                    and time.perf_counter() >= least
                    and not self._in_time(most)
                )
                if not begun:
                    self._pack(FEW_UNITS, self._workers, cancel)
            self._begun = time.perf_counter() if begun else 0.0
        finally:
            if not begun:
                self.end()
        return begun

    def end(self) -> None:
        """Let others pack again, if this thread held the turn."""
        with self._turn:
            if self._taken == threading.get_ident():
                if self._begun:
                    self._begun, self._unpacked = 0.0, time.perf_counter() - self._begun
                self._taken = None
                self._turn.notify_all()

    def some(self, *, sparing: bool = False) -> bool:
        """Pack a few units while no step wants to; returns whether there is more. sparing: leave a
        core to others.
        """
        if self._taken is not None:
            # what a step is going through is better read before it comes there
            self._units.expect()
        try:
            self._take(step=False)
            self._pack(MANY_UNITS, max(1, self._workers - sparing), self._wanted)
        finally:
            self.end()
        return not self.whole

    def finish(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Pack everything that is left; `progress(done, total)` is called with the file's bytes
        from time to time.
        """
        while not self.whole:
            self.some()
            if progress is not None:
                progress(self.done, self.nbytes)

    def _take(self, *, step: bool) -> None:
        with self._turn:
            self._waiting += step
            try:
                while self._taken is not None or (self._waiting and not step):
                    if step:
                        self._wanted.set()
                    self._turn.wait()
                self._taken = threading.get_ident()
            finally:
                self._waiting -= step
                if not self._waiting:
                    self._wanted.clear()

    def _pack(self, most: int, workers: int, flag: CancelFlag | None) -> None:
        start, before = time.perf_counter(), self.done
        self._units.pack(most, num_threads=workers, flag=flag)
        if self.done > before:
            took = time.perf_counter() - start
            seconds = took * workers / (self._workers * (self.done - before))
            self._byte_seconds = (
                (self._byte_seconds + seconds) / 2 if self._byte_seconds else seconds
            )

    def _in_time(self, until: float) -> bool:
        """Whether the rest will probably be packed by then; memory's speed changes during a
        load.
        """
        return (
            self._byte_seconds > 0
            and time.perf_counter() + (self.nbytes - self.done) * self._byte_seconds <= until
        )


class Packer(threading.Thread):
    """Packs in the background while `program` exists, without keeping it alive. It leaves one core
    to the rest of a load.
    """

    def __init__(self, packing: Packing, program: object) -> None:
        super().__init__(name="oxillama packing", daemon=True)
        self._packing, self._program = packing, weakref.ref(program)
        self._cancelled, self._pid = threading.Event(), os.getpid()
        _packers.add(self)
        try:
            with starting_thread():
                self.start()
        except EngineError:
            _packers.discard(self)  # nobody waits for a thread that never ran
            raise

    def run(self) -> None:
        """Thread body."""
        with suppress(MemoryError):  # which the next step meets too, and can raise
            while (
                not self._cancelled.is_set()
                and self._program() is not None
                and self._packing.some(sparing=True)
            ):
                pass
        _packers.discard(self)

    def cancel(self) -> None:
        """End it within a group's time; the rest stays unpacked."""
        if os.getpid() == self._pid:  # a forked child has the object, and no such thread
            self._cancelled.set()
            self.join()


def cancel_all() -> None:
    """Make sure that no packer runs when the interpreter shuts down."""
    for packer in list(_packers):
        packer.cancel()


def _after_fork() -> None:
    _packers.clear()
    for packing in _all:
        packing._renew()


atexit.register(cancel_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
