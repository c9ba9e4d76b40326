"""SentencePiece BPE as `llama` vocabularies mean it: the neighbours whose joined text has the highest score merge first.

Source: Kudo and Richardson 2018 (SentencePiece), BPE model; ties go to the leftmost pair. Text that no token covers falls back to
one token per byte. Most vocabularies never join a word's end to the next word's mark, so text is cut before each mark (`▁`) and
words are remembered.
"""
from __future__ import annotations

import re
from functools import lru_cache
from heapq import heapify, heappop, heappush

from oxillama.errors import TokenizerError
from oxillama.tokenizer.vocabulary import BYTE, NORMAL, UNUSED, USER_DEFINED, Vocabulary

MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONGEST_REMEMBERED = 64


class SpmEncoder:
    """Text without special tokens to ids."""

    adds_prefix = False     # the space before a text, where the vocabulary wants one, is the caller's to put

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.scores is None:
            raise TokenizerError("tokenizer.ggml.scores: missing, a 'llama' vocabulary needs a score for every token")
        self._ids: dict[str, int] = {}
        self._bytes: dict[int, int] = {}
        kinds, scores = vocabulary.kinds.tolist(), vocabulary.scores.tolist()
        for token, (text, kind) in enumerate(zip(vocabulary.tokens, kinds)):
            if kind in (NORMAL, USER_DEFINED, UNUSED):
                self._ids.setdefault(text, token)
            elif kind == BYTE:
                self._bytes.setdefault(byte_value(text, token), token)
        self._scores = scores
        self._unknown = vocabulary.special.get("unk")
        crosses = any(MARK in text[1:] and text.strip(MARK) and re.search(f"[^{MARK}]{MARK}", text) for text in self._ids)
        self._cut = None if crosses else re.compile(f"(?<=[^{MARK}])(?={MARK})")
        self._word = lru_cache(maxsize=65536)(self._merged)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, spaces already written as they are (the mark is put in here)."""
        text = text.replace(" ", MARK)
        ids: list[int] = []
        for word in self._cut.split(text) if self._cut else (text,):
            ids.extend(self._word(word) if len(word) <= _LONGEST_REMEMBERED else self._merged(word))
        return ids

    def _merged(self, text: str) -> tuple[int, ...]:
        """Merge neighbours until no two of them join to a token."""
        whole = self._ids.get(text)
        if whole is not None and len(text) == 1:
            return (whole,)
        ids, scores = self._ids, self._scores
        pieces: list[str] = list(text)
        after = list(range(1, len(pieces) + 1))
        before = list(range(-1, len(pieces) - 1))
        queue = []
        for i in range(len(pieces) - 1):
            token = ids.get(pieces[i] + pieces[i + 1])
            if token is not None:
                queue.append((-scores[token], i, i + 1, 2))
        heapify(queue)
        n = len(pieces)
        while queue:
            _, left, right, size = heappop(queue)
            if not pieces[left] or not pieces[right] or after[left] != right or len(pieces[left]) + len(pieces[right]) != size:
                continue                                  # one of the two has merged with somebody else meanwhile
            pieces[left] += pieces[right]
            pieces[right] = ""
            after[left] = after[right]
            if after[left] < n:
                before[after[left]] = left
            for a, b in ((before[left], left), (left, after[left])):
                if a >= 0 and b < n:
                    token = ids.get(pieces[a] + pieces[b])
                    if token is not None:
                        heappush(queue, (-scores[token], a, b, len(pieces[a]) + len(pieces[b])))
        out: list[int] = []
        for piece in pieces:
            if piece:
                token = ids.get(piece)
                out.extend((token,) if token is not None else self._fallback(piece))
        return tuple(out)

    def _fallback(self, piece: str) -> list[int]:
        """A character that is no token: its bytes, or the unknown token where the vocabulary lacks them."""
        data = piece.encode("utf-8", "surrogatepass")
        found = [self._bytes.get(value) for value in data]
        if None not in found:
            return found
        if self._unknown is None:
            raise TokenizerError(f"vocabulary: no token for {piece!r}, none for its bytes, and no unknown token")
        return [self._unknown]


def byte_value(text: str, token: int) -> int:
    """The byte that a byte token such as `<0x0A>` stands for."""
    match = _BYTE_TOKEN.fullmatch(text)
    if match is None:
        raise TokenizerError(f"tokenizer.ggml.tokens: byte token {token} is {text[:20]!r}, wanted <0x00> to <0xFF>")
    return int(match[1], 16)
