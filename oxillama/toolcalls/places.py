"""The loop of a reader that stands in places: each place reads what it can from the buffer and says
whether more may be read.

Such a reader has a `buffer`, text that is not given out yet, and a `place`, a method that adds
events to a list and returns whether to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from oxillama.errors import ConfigError
from oxillama.toolcalls.events import Event, joined


class Reader(Protocol):
    """What `fed` and `taken` need of a reader."""

    buffer: str
    place: Callable[[list[Event]], bool]


def fed(reader: Reader, text: str) -> list[Event]:
    """The events that a further piece of text makes certain. Raises ConfigError for what is no
    text.
    """
    if not isinstance(text, str):
        raise ConfigError(f"text: found {type(text).__name__}, wanted str")
    reader.buffer += text
    out: list[Event] = []
    while reader.buffer and reader.place(out):
        pass
    return joined(out)


def taken(reader: Reader, size: int) -> str:
    """The first characters of the buffer, which are its no longer."""
    text, reader.buffer = reader.buffer[:size], reader.buffer[size:]
    return text
