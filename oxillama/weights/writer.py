"""`CacheWriter`: writes the packed weights of a model to a sidecar when the model is idle.

It waits until the model has run no step for two seconds, then writes 2 MB at a time at the lowest
priority, stops as soon as a step runs, and continues after two more idle seconds. When a model is
closed or the interpreter ends, it gets five seconds, or less if the disk needs less. If that is not
enough, it abandons the file, leaves nothing, and for a day does not begin at a close again, only
when the model is idle. After an error it does not try again for a day. Errors are logged, as
warnings where the user named the folder; nothing is raised.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from oxillama._core.panels import PackedMatrix
from oxillama.errors import EngineError, starting_thread
from oxillama.weights.cache import CacheSlot
from oxillama.weights.idle import IdleWatch, StepActivity
from oxillama.weights.packing import Packing
from oxillama.weights.panel_file import PIECE, Key, WriteAborted, log, write_panels

IDLE_SECONDS = 2.0  # without a step, before anything is written
LAST_SECONDS = 5.0  # for what is left when a model is closed or the interpreter ends
BYTES_A_SECOND = 600 << 20  # at most, while the model may be asked at any moment
_POLL = 0.25
# seconds in which what is given up ends, unless the disk hangs: then its thread ends when it can
_LEAVE = 1.0
_writers: set[CacheWriter] = set()
_stuck: set[Path] = set()  # files whose writer did not leave a disk that hangs


class DiskTooSlow(WriteAborted):
    """The disk needed more time than there was."""


class CacheWriter(threading.Thread):
    """Writes the packed weights of one model in the background, without keeping `program` alive.

    packing: may still have matrices to pack. folder: of the file. automatic: whether that is the
    default folder. nbytes: the size of the weights.
    """

    def __init__(
        self,
        slot: CacheSlot,
        matrices: Mapping[Key, PackedMatrix],
        program: StepActivity,
        *,
        packing: Packing | None = None,
    ) -> None:
        super().__init__(name="oxillama sidecar", daemon=True)
        self._packing = packing
        self._slot, self._matrices = slot, dict(matrices)
        self.folder, self.nbytes = slot.path.parent, sum(each.nbytes for each in matrices.values())
        self.automatic = slot.automatic
        self._watch = IdleWatch(program)
        self._hurry, self._cancelled = threading.Event(), threading.Event()
        self._deadline = 0.0  # when hurrying
        # when the hurry began, and what was written then
        self._mark: tuple[float, int] | None = None
        self._pid = os.getpid()
        self.written = False  # by this thread
        self.reason = ""  # why not, once it has ended
        _writers.add(self)
        try:
            with starting_thread():
                self.start()
        except EngineError:
            _writers.discard(self)  # nobody waits for a thread that never ran
            raise

    def run(self) -> None:
        """Thread body."""
        failed = False
        try:
            if self._slot.path in _stuck:
                raise WriteAborted("an earlier try of this process still waits for the disk")
            self._gently()
            self._wait_until_idle()
            failed = self._write()
        except (WriteAborted, OSError, MemoryError) as error:
            self.reason = str(error)
            failed = not isinstance(error, WriteAborted) or isinstance(error, DiskTooSlow)
            if isinstance(error, (DiskTooSlow, OSError)):
                self._slot.note_failure(self.reason, late=isinstance(error, DiskTooSlow))
        finally:
            self._matrices, self._packing = {}, None
            _writers.discard(self)
        if self.reason:
            # one who named the folder is told, except of what others or the user himself did
            level = logging.WARNING if failed and not self.automatic else logging.INFO
            log.log(level, "packed weights are not kept in %s: %s", self.folder, self.reason)

    def foreseen(self) -> str | None:
        """The reason why nothing will be written, as far as it is known; None if it will be."""
        return self._slot.foreseen(self.nbytes)

    def foreseen_at_close(self) -> str | None:
        """The reason why nothing will be written if the model is closed before it was idle, as far
        as it is known.
        """
        return self.foreseen() or self._slot.failure(closing=True)

    def finish(self, seconds: float = LAST_SECONDS) -> None:
        """Write the rest now, for at most this many seconds; returns when that is done or
        abandoned.
        """
        self.hurry(seconds)
        self.join(seconds + _POLL)
        self.cancel(_LEAVE)
        if self.is_alive():
            _stuck.add(self._slot.path)

    def hurry(self, seconds: float) -> None:
        """Write the rest within this many seconds or abandon it; returns at once."""
        if os.getpid() != self._pid:  # a forked child has the object, and no such thread
            return
        self._deadline = time.monotonic() + seconds
        self._hurry.set()

    def cancel(self, seconds: float = LAST_SECONDS) -> None:
        """Abandon the file; returns when nothing of it is left, or after this many seconds if the
        disk hangs.
        """
        if os.getpid() != self._pid:
            return
        self._cancelled.set()
        self._hurry.set()
        if self is not threading.current_thread():
            self.join(seconds)

    # ---- in its own thread
    # ----------------------------------------------------------------------------------------------

    def _gently(self) -> None:
        with suppress(OSError):
            if sys.platform == "linux":  # where a thread has a priority of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

    def _write(self) -> bool:
        """Write the file, where it may be written; whether it may not."""
        self.reason = self._slot.refusal(self.nbytes, closing=self._hurry.is_set()) or ""
        if self.reason:
            return True
        self._pack()
        self.written = write_panels(
            self._slot.path,
            self._slot.key,
            self._matrices,
            shards=self._slot.shards,
            pause=self._pause,
        )
        if self.written:
            self._slot.forget_failure()
            log.info(
                "packed weights of %s are kept in %s (%d bytes) for the next load",
                self._slot.shards[0].label,
                self._slot.path,
                self.nbytes,
            )
        else:
            self.reason = "another process writes them, or has written them"
        return False

    def _pack(self) -> None:
        """Pack what the model has left; only if it was closed early."""
        while self._packing is not None and self._packing.some():
            if (
                self._cancelled.is_set()
                or self._hurry.is_set()
                and time.monotonic() > self._deadline
            ):
                raise self._given_up("the model was closed before its weights were packed")

    def _wait_until_idle(self) -> None:
        while not self._hurry.is_set() and not self._watch.idle(IDLE_SECONDS):
            self._hurry.wait(_POLL)
        if self._cancelled.is_set() and not self._deadline:
            raise WriteAborted("the model was closed")

    def _pause(self, written: int, size: int) -> None:
        """Before each piece: wait while the model works, keep to the rate limit, and abandon what
        cannot be finished in time.
        """
        if self._watch.working():
            self._wait_until_idle()
        if not self._hurry.is_set():
            self._hurry.wait(PIECE / BYTES_A_SECOND)
        if self._hurry.is_set() and self._deadline:
            self._in_time(written, size)
        if self._cancelled.is_set():
            raise self._given_up("the model was closed")

    def _given_up(self, reason: str) -> WriteAborted:
        """The exception for a cancellation; after `hurry`, that time was up."""
        return DiskTooSlow(reason) if self._deadline else WriteAborted(reason)

    def _in_time(self, written: int, size: int) -> None:
        now = time.monotonic()
        began, before = self._mark = self._mark or (now, written)
        need = 0.0
        if written - before >= 64 << 20:  # enough to tell the disk's speed
            need = (size - written) / (written - before) * (now - began)
        if now + need > self._deadline:
            raise DiskTooSlow(
                f"{size - written} of {size} bytes were left, which would have taken too long"
            )


def finish_all(seconds: float = LAST_SECONDS) -> None:
    """Let all files be finished within this many seconds in total; Ctrl-C abandons them."""
    waiting, end = list(_writers), time.monotonic() + seconds
    try:
        for writer in waiting:
            writer.hurry(max(0.0, end - time.monotonic()))
        for writer in waiting:
            writer.finish(max(0.0, end - time.monotonic()))
    except KeyboardInterrupt:
        for writer in waiting:
            writer.cancel()


atexit.register(finish_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_writers.clear)  # a child has no thread of its parent's
