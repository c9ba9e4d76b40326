"""The `rwkv` vocabulary: at each place the longest token wins; tokens are byte strings that the
file writes with backslash escapes.
"""

from __future__ import annotations

import re

from oxillama.errors import TokenizerError
from oxillama.tokenizer.vocabulary import NORMAL, USER_DEFINED, Vocabulary

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescaped(text: str) -> bytes:
    """The bytes that a token's text stands for."""
    return _ESCAPE.sub(
        lambda found: bytes([int(found[1], 16)]) if found[1] else _NAMED.get(found[2], found[2]),
        text.encode(),
    )


class RwkvEncoder:
    """Text without special tokens to ids."""

    adds_prefix = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids: dict[bytes, int] = {}
        lengths: dict[bytes, set[int]] = {}
        for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds.tolist())):
            data = unescaped(text)
            if kind in (NORMAL, USER_DEFINED) and data:
                self._ids.setdefault(data, token)
                lengths.setdefault(data[:2], set()).add(len(data))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        self._unknown = vocabulary.special.get("unk")

    def encode(self, text: str) -> list[int]:
        """The ids of `text`."""
        data, ids, place = text.encode("utf-8", "surrogatepass"), [], 0
        while place < len(data):
            for length in (*self._lengths.get(data[place : place + 2], ()), 1):
                token = self._ids.get(data[place : place + length])
                if token is not None:
                    break
            else:
                token, length = self._unknown, 1
                if token is None:
                    raise TokenizerError(
                        f"vocabulary: no token for byte 0x{data[place]:02X}, and no unknown token"
                    )
            ids.append(token)
            place += length
        return ids
