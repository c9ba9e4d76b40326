"""Where tokens begin in a text, in characters."""

from __future__ import annotations

from collections.abc import Iterable

from oxillama.tokenizer.bridge import TokenizerBridge


class TextOffsets:
    """Counts the characters of a text token by token, as its stream writes them: no control tokens,
    not the vocabulary's own space before a text, U+FFFD for bytes that are no character.
    """

    __slots__ = ("_at_start", "_bridge", "_offset", "_stream")

    def __init__(self, bridge: TokenizerBridge, *, before: Iterable[int] | None = ()) -> None:
        """before: the tokens that the text follows; None for some that are not known."""
        self._bridge, self._stream, self._offset = bridge, bridge.stream(), 0
        self._at_start = (
            before is not None
            and bridge.vocabulary.add_space_prefix
            and all(map(bridge.is_special, before))
        )

    def add(self, token: int) -> int:
        """Where this token, the next one, begins; a part of a character begins where that does."""
        offset = self._offset
        text = self._stream.feed(token) if token < self._bridge.vocab_size else ""
        if self._at_start and text:
            text, self._at_start = text.removeprefix(" "), False
        self._offset += len(text)
        return offset

    def begin(self) -> None:
        """The tokens so far were a prompt's; its completion is a text of its own."""
        self._offset += len(self._stream.flush())
