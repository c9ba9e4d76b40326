"""`Keeper`: writes the sidecar of a model that had to be packed, when that disturbs nobody.

It waits until the model has run no step for two seconds, then writes 2 MB at a time at the lowest
priority, stops as soon as a step runs, and goes on after two more idle seconds. A model that is
closed before, or an interpreter that ends, gives it five seconds, or the time it needs if that can
be told to be less; what is not done then is given up, and nothing stays of it. Whatever fails is
logged, nothing is raised.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from oxillama._core.panels import PackedMatrix
from oxillama.weights.cache import Place
from oxillama.weights.packing import Packing
from oxillama.weights.panel_file import PIECE, GivenUp, Key, log, write_sidecar

IDLE_SECONDS = 2.0  # without a step, before anything is written
LAST_SECONDS = 5.0  # for what is left when a model is closed or the interpreter ends
BYTES_A_SECOND = 600 << 20  # at most, while the model may be asked at any moment
_POLL = 0.25
# seconds in which what is given up ends, unless the disk hangs: then its thread ends when it can
_LEAVE = 1.0
_keepers: set[Keeper] = set()


class Worked(Protocol):
    """What tells whether a model is at work: how many steps it has begun, and whether one is
    running.
    """

    steps: int
    busy: bool


class Keeper(threading.Thread):
    """Writes one sidecar in the background; `program` is watched, and not kept alive. packing: what
    may still have matrices to pack.
    """

    def __init__(
        self,
        place: Place,
        matrices: Mapping[Key, PackedMatrix],
        program: Worked,
        *,
        packing: Packing | None = None,
    ) -> None:
        super().__init__(name="oxillama sidecar", daemon=True)
        self._packing = packing
        self._place, self._matrices = place, dict(matrices)
        self._program = weakref.ref(program)
        self._hurry, self._cancelled = threading.Event(), threading.Event()
        self._deadline = 0.0  # when hurrying
        # when the hurry began, and what was written then
        self._mark: tuple[float, int] | None = None
        self._pid = os.getpid()
        # steps, and since when there were no more
        self._seen, self._since = -1, time.monotonic()
        self.written = False  # by this thread
        self.reason = ""  # why not, once it has ended
        _keepers.add(self)
        self.start()

    def run(self) -> None:
        """Thread body."""
        try:
            self._gently()
            self._wait_until_idle()
            self._write()
        except (GivenUp, OSError, MemoryError) as error:
            self.reason = str(error)
        finally:
            self._matrices, self._packing = {}, None
            _keepers.discard(self)
        if self.reason:
            log.info("packed weights are not kept in %s: %s", self._place.path.parent, self.reason)

    def finish(self, seconds: float = LAST_SECONDS) -> None:
        """Write what is left now, for at most so many seconds; returns when that is done or given
        up.
        """
        self.hurry(seconds)
        self.join(seconds + _POLL)
        self.cancel(_LEAVE)

    def hurry(self, seconds: float) -> None:
        """Have it written within so many seconds, or not at all; returns at once."""
        if os.getpid() != self._pid:  # a forked child has the object, and no such thread
            return
        self._deadline = time.monotonic() + seconds
        self._hurry.set()

    def cancel(self, seconds: float = LAST_SECONDS) -> None:
        """Give up; returns when nothing of it is left, or after so many seconds of a disk that
        hangs.
        """
        if os.getpid() != self._pid:
            return
        self._cancelled.set()
        self._hurry.set()
        if self is not threading.current_thread():
            self.join(seconds)

    # ---- in its own thread
    # ---------------------------------------------------------------------------------------------------

    def _gently(self) -> None:
        with suppress(OSError):
            if sys.platform == "linux":  # where a thread has a priority of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

    def _at_work(self) -> bool:
        """Whether the model has run a step within the last seconds."""
        program = self._program()
        if program is None:  # nobody can ask it anything any more
            return False
        if program.busy or program.steps != self._seen:
            self._seen, self._since = program.steps, time.monotonic()
        return time.monotonic() - self._since < IDLE_SECONDS

    def _write(self) -> None:
        nbytes = sum(matrix.nbytes for matrix in self._matrices.values())
        self.reason = self._place.refusal(nbytes) or ""
        if self.reason:
            return
        self._pack()
        self.written = write_sidecar(
            self._place.path,
            self._place.key,
            self._matrices,
            names=self._place.names,
            pause=self._pause,
        )
        if self.written:
            log.info(
                "packed weights of %s are kept in %s (%d bytes) for the next load",
                self._place.names[0],
                self._place.path,
                nbytes,
            )
        else:
            self.reason = "another process writes them, or has written them"

    def _pack(self) -> None:
        """What the model has left: only where it was closed at once."""
        while self._packing is not None and self._packing.some():
            if (
                self._cancelled.is_set()
                or self._hurry.is_set()
                and time.monotonic() > self._deadline
            ):
                raise GivenUp("the model was closed before its weights were packed")

    def _wait_until_idle(self) -> None:
        while not self._hurry.is_set() and self._at_work():
            self._hurry.wait(_POLL)
        if self._cancelled.is_set():
            raise GivenUp("the model was closed")

    def _pause(self, written: int, size: int) -> None:
        """Before each piece: wait while the model works, keep to the pace, and give up what cannot
        be done in time.
        """
        program = self._program()
        if program is not None and (program.busy or program.steps != self._seen):
            self._wait_until_idle()
        if not self._hurry.is_set():
            self._hurry.wait(PIECE / BYTES_A_SECOND)
        if self._cancelled.is_set():
            raise GivenUp("it was cancelled")
        if self._hurry.is_set():
            self._in_time(written, size)

    def _in_time(self, written: int, size: int) -> None:
        now = time.monotonic()
        began, before = self._mark = self._mark or (now, written)
        need = 0.0
        if written - before >= 64 << 20:  # enough to tell the disk's speed
            need = (size - written) / (written - before) * (now - began)
        if now + need > self._deadline:
            raise GivenUp(
                f"{size - written} of {size} bytes were left, which would have taken too long"
            )


def finish_all(seconds: float = LAST_SECONDS) -> None:
    """Let all sidecars be finished within so many seconds together; Ctrl-C gives them up."""
    waiting, end = list(_keepers), time.monotonic() + seconds
    try:
        for keeper in waiting:
            keeper.hurry(max(0.0, end - time.monotonic()))
        for keeper in waiting:
            keeper.finish(max(0.0, end - time.monotonic()))
    except KeyboardInterrupt:
        for keeper in waiting:
            keeper.cancel()


atexit.register(finish_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keepers.clear)  # a child has no thread of its parent's
