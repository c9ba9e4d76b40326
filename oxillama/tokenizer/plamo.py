"""The `plamo2` vocabulary (Preferred Networks 2025, published code, tokenization_plamo.py): of all
ways to split a text into tokens, the one with the highest sum of scores; characters without a token
are written as their bytes.
"""

from __future__ import annotations

import numpy as np

from oxillama.errors import TokenizerError
from oxillama.tokenizer.spm import byte_value
from oxillama.tokenizer.vocabulary import BYTE, NORMAL, USER_DEFINED, Vocabulary

# sums are of integers, so that equal sums are equal; of these the longest first token wins
_UNIT = 1e4
_BYTES_COST = 10_000_000  # of a character that is written as bytes
_HIGHEST_COST = 20_000_000  # from which on a token is not used


class PlamoEncoder:
    """Text without special tokens to ids."""

    adds_prefix = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.scores is None:
            raise TokenizerError(
                "tokenizer.ggml.scores: missing, a 'plamo2' vocabulary needs a score for every "
                "token"
            )
        costs = np.rint(vocabulary.scores.astype(np.float64) * -_UNIT).tolist()
        self._tokens: dict[str, tuple[int, int]] = {}
        self._beginnings: set[str] = set()
        held: dict[int, int] = {}
        for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds.tolist())):
            if kind == BYTE:
                held[byte_value(text, token)] = token
            elif kind in (NORMAL, USER_DEFINED) and text and costs[token] < _HIGHEST_COST:
                self._tokens[text] = token, int(costs[token])
                self._beginnings.update(text[:size] for size in range(1, len(text)))
        missing = next((byte for byte in range(256) if byte not in held), None)
        if missing is not None:
            raise TokenizerError(
                f"tokenizer.ggml.tokens: no byte token <0x{missing:02X}>, a 'plamo2' vocabulary "
                "needs all 256"
            )
        self._bytes = [held[byte] for byte in range(256)]

    def encode(self, text: str) -> list[int]:
        """The ids of `text`."""
        n = len(text)
        tokens, beginnings = self._tokens, self._beginnings
        costs = [0] * (n + 1)  # of the best split of what follows a place
        steps: list[tuple[int, int]] = [(0, -1)] * n  # where its first token ends, and its id
        for start in range(n - 1, -1, -1):
            end = start + 1
            best, step = costs[end] + _BYTES_COST, (end, -1)
            while True:
                piece = text[start:end]
                found = tokens.get(piece)
                if found is not None and costs[end] + found[1] <= best:
                    best, step = costs[end] + found[1], (end, found[0])
                if end == n or piece not in beginnings:
                    break
                end += 1
            costs[start], steps[start] = best, step
        ids: list[int] = []
        place = 0
        while place < n:
            end, token = steps[place]
            if token < 0:
                ids.extend(self._bytes[byte] for byte in text[place].encode())
            else:
                ids.append(token)
            place = end
        return ids
