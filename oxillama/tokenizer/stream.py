"""Turns the bytes of tokens into text as they arrive: whole UTF-8 characters only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oxillama.errors import ConfigError


class TextStream:
    """Takes token ids and returns text; holds back the bytes of an unfinished character (three at
    most).

    `token_bytes(id)` gives the bytes of a token, `shown` those of tokens that are not text and are
    written here. Bytes that cannot become a character are replaced by U+FFFD as soon as that is
    certain.
    """

    __slots__ = ("_pending", "_token_bytes", "shown")

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        pending: bytes = b"",
        shown: Mapping[int, bytes] | None = None,
    ) -> None:
        if not callable(token_bytes):
            raise ConfigError(
                f"token_bytes: found {type(token_bytes).__name__}, wanted a function of a token"
            )
        if not isinstance(pending, bytes):
            raise ConfigError(f"pending: found {type(pending).__name__}, wanted bytes")
        if shown is not None and not isinstance(shown, Mapping):
            raise ConfigError(
                f"shown: found {type(shown).__name__}, wanted a mapping of tokens to bytes"
            )
        self._token_bytes = token_bytes
        self._pending = pending
        self.shown = dict(shown or {})

    @property
    def pending(self) -> bytes:
        """The bytes not yet returned; a stream can be recreated from them."""
        return self._pending

    def feed(self, token: int) -> str:
        """The text that this token completes; may be empty."""
        return self.feed_bytes(
            self.shown[token] if token in self.shown else self._token_bytes(token)
        )

    def feed_bytes(self, data: bytes) -> str:
        """The same for bytes."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise ConfigError(f"data: found {type(data).__name__}, wanted bytes")
        data = self._pending + data
        keep = unfinished(data)
        self._pending = data[len(data) - keep :]
        return data[: len(data) - keep].decode("utf-8", "replace")

    def flush(self) -> str:
        """The rest, with an unfinished character as U+FFFD; the stream is empty afterwards."""
        data, self._pending = self._pending, b""
        return data.decode("utf-8", "replace")

    def fork(self) -> TextStream:
        """A stream that continues from the same bytes."""
        return TextStream(self._token_bytes, pending=self._pending, shown=self.shown)


def unfinished(data: bytes) -> int:
    """How many bytes at the end of `data` begin a character that more bytes could finish (Unicode
    standard, table 3-7).
    """
    for back in range(1, min(3, len(data)) + 1):
        lead = data[-back]
        if lead < 0x80:
            return 0
        if lead < 0xC0:
            continue
        size = (
            2
            if 0xC2 <= lead <= 0xDF
            else 3
            if 0xE0 <= lead <= 0xEF
            else 4
            if 0xF0 <= lead <= 0xF4
            else 0
        )
        if back >= size:
            return 0
        if back > 1:
            low, high = {
                0xE0: (0xA0, 0xBF),
                0xED: (0x80, 0x9F),
                0xF0: (0x90, 0xBF),
                0xF4: (0x80, 0x8F),
            }.get(lead, (0x80, 0xBF))
            if not low <= data[-back + 1] <= high:
                return 0
        return back
    return 0
