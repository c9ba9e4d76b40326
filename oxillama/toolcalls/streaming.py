"""`StreamReader`: what readers of a reply that arrives in pieces have in common."""

from __future__ import annotations

from collections.abc import Callable

from oxillama.errors import ConfigError
from oxillama.toolcalls.events import Event, joined


class StreamReader:
    """A state machine over the text of a reply. `_state` reads what it can from `buffer`, appends
    events, and returns whether more may be read. `index` is the number of the next call.
    """

    _state: Callable[[list[Event]], bool]

    def __init__(self) -> None:
        self.index = 0
        self.buffer = ""

    def feed(self, text: str) -> list[Event]:
        """The events that become certain with another piece of text. ConfigError unless it is a
        str.
        """
        if not isinstance(text, str):
            raise ConfigError(f"text: found {type(text).__name__}, wanted str")
        self.buffer += text
        out: list[Event] = []
        while self.buffer and self._state(out):
            pass
        return joined(out)

    def _take(self, size: int) -> str:
        """Remove the first `size` characters of the buffer; returns them."""
        text, self.buffer = self.buffer[:size], self.buffer[size:]
        return text
