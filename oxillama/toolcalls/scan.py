"""What the readers of a call's two notations share: how characters go in, and what says that they
are no call.
"""

from __future__ import annotations

from typing import Any


class Malformed(Exception):
    """A call cannot be read; caught by the detector."""


def read(call: Any, text: str) -> int:
    """Give `text` to a call's reader character by character until the call is done; returns how
    many it read.

    What came to be known becomes events, also when `Malformed` is raised: the reader has then read
    to where it shows.
    """
    start = len(call.raw)
    call.raw += text
    try:
        for at in range(start, len(call.raw)):
            call.character(call.raw[at], at)
            if call.done:
                call.raw = call.raw[: at + 1]
                break
    except Malformed:
        call.raw = call.raw[: at + 1]
        call.stream()
        raise
    call.stream()
    if call.done:
        call.finish()
    return len(call.raw) - start
