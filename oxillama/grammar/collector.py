"""Compilation without Python's cyclic garbage collector, which would look again and again at many
small objects none of which is garbage.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_turn = threading.Lock()


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pauses the collector, which is one for the whole process, while the block runs.

    One block at a time pauses it, and only that one resumes it: a block inside another, or in
    another thread meanwhile, changes nothing, so that the collector never waits for longer than one
    block. Where it is off already it stays off. A thread that turns it off while a block runs finds
    it on again afterwards.
    """
    if not gc.isenabled() or not _turn.acquire(blocking=False):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _turn.release()
