"""The unigram model of `t5` vocabularies: of all ways to split a text into tokens, the one with the
highest sum of scores.

Sources: Kudo 2018 (subword regularisation) for the model, found by the Viterbi algorithm; Kanda
2018 for the XOR-compressed double array in which SentencePiece stores its normalisation table
(`precompiled_charsmap`).
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from oxillama.errors import TokenizerError
from oxillama.tokenizer.spm import MARK, byte_value, marked, words_of
from oxillama.tokenizer.vocabulary import BYTE, NORMAL, UNUSED, USER_DEFINED, Vocabulary

_UNKNOWN_PENALTY = 10.0  # below the lowest score, per character that no token covers
_LONGEST_REMEMBERED = 64
_RUNS = re.compile(" {2,}")


class UnigramEncoder:
    """Text without special tokens to ids."""

    adds_prefix = True  # normalisation puts the space before a text

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.scores is None:
            raise TokenizerError(
                "tokenizer.ggml.scores: missing, a 't5' vocabulary needs a score for every token"
            )
        self._tokens: dict[str, tuple[int, float]] = {}
        self._beginnings: set[str] = set()
        kinds, scores = vocabulary.kinds.tolist(), vocabulary.scores.tolist()
        for token, (text, kind) in enumerate(zip(vocabulary.tokens, kinds)):
            if kind in (NORMAL, USER_DEFINED, UNUSED) and text:
                self._tokens.setdefault(
                    text, (token, 0.0 if kind == USER_DEFINED else scores[token])
                )
                self._beginnings.update(text[:size] for size in range(1, len(text)))
            elif kind == BYTE:
                byte_value(text, token)
        lowest = min((score for score, kind in zip(scores, kinds) if kind == NORMAL), default=0.0)
        self._unknown_score = lowest - _UNKNOWN_PENALTY
        self._unknown = vocabulary.special.get("unk")
        self._prefix, self._squeeze = (
            vocabulary.add_space_prefix,
            vocabulary.remove_extra_whitespaces,
        )
        self._where = vocabulary.space_prefix
        self._table = CharacterMap(vocabulary.charsmap) if vocabulary.charsmap else None
        crosses = any(
            re.search(f"[^{MARK}]{MARK}", text) for text in self._tokens if MARK in text[1:]
        )
        self._apart = not crosses
        self._word = lru_cache(maxsize=65536)(self._best)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; characters in a row that no token covers share one unknown token."""
        text = self.normalise(text)
        ids: list[int] = []
        for word in words_of(text) if self._apart else (text,):
            found = self._word(word) if len(word) <= _LONGEST_REMEMBERED else self._best(word)
            ids.extend(
                found[1:] if ids and found and ids[-1] == found[0] == self._unknown else found
            )
        return ids

    def normalise(self, text: str) -> str:
        """`text` as the model sees it: characters mapped by the file's table, spaces written as
        marks, as the file wants them.
        """
        if self._table:
            text = self._table.map(text)
        if self._where:
            # as a Metaspace: only where the text has none, and those at its end stay
            if self._squeeze:
                text = _RUNS.sub(" ", text)
            return marked(text if not text or text[0] in (" ", MARK) else " " + text)
        if self._squeeze:
            return "".join(MARK + run for run in text.split(" ") if run)
        spaces = len(text) - len(text.lstrip(" "))
        if self._prefix and spaces < len(text):
            text = text[:spaces] + " " + text[spaces:]
        return marked(text)

    def _best(self, text: str) -> tuple[int, ...]:
        n = len(text)
        tokens, beginnings, unknown = self._tokens, self._beginnings, self._unknown
        scores = [float("-inf")] * (n + 1)
        scores[0] = 0.0
        came_by: list[tuple[int, int | None]] = [(0, None)] * (n + 1)
        for start in range(n):
            so_far, end = scores[start], start
            single = False
            while end < n:
                end += 1
                piece = text[start:end]
                found = tokens.get(piece)
                if found is not None:
                    single = single or end == start + 1
                    if so_far + found[1] > scores[end]:
                        scores[end] = so_far + found[1]
                        came_by[end] = start, found[0]
                if piece not in beginnings:
                    break
            if not single and so_far + self._unknown_score > scores[start + 1]:
                scores[start + 1] = so_far + self._unknown_score
                came_by[start + 1] = start, unknown
        ids: list[int] = []
        end = n
        while end:
            end, token = came_by[end]
            if token is None:
                raise TokenizerError(
                    f"vocabulary: no token for {text[end]!r}, and no unknown token"
                )
            if not (token == unknown and ids and ids[-1] == unknown):
                ids.append(token)
        return tuple(reversed(ids))


class CharacterMap:
    """SentencePiece's table of replacements: of the keys that a text begins with, the longest is
    replaced.

    u32 bytes of the array | the array, u32 each | replacements, ended by zeros. A node of the
    array: bits 10-30 offset (times 256 where bit 9 is set), bit 8 has a value, bits 0-7 and 31 the
    byte that leads here.
    """

    def __init__(self, table: bytes) -> None:
        size = struct.unpack_from("<I", table)[0] if len(table) >= 4 else 0
        if size < 4 or size % 4 or size + 4 >= len(table):
            raise TokenizerError(
                f"tokenizer.ggml.precompiled_charsmap: {len(table)} bytes with an array of {size}, "
                "wanted room for both its parts"
            )
        self._array = struct.unpack_from(f"<{size // 4}I", table, 4)
        self._replacements = table[4 + size :]
        self._mapped = lru_cache(maxsize=8192)(self._map)

    def map(self, text: str) -> str:
        """`text` with every key replaced."""
        parts = (found[0] for found in re.finditer(r" +|[^ ]+ ?", text))
        return "".join(
            self._mapped(part) if len(part) <= _LONGEST_REMEMBERED else self._map(part)
            for part in parts
        )

    def _map(self, text: str) -> str:
        data, out, place = text.encode("utf-8", "replace"), bytearray(), 0
        while place < len(data):
            length, replacement = self._longest(data, place)
            if length:
                out += replacement
            else:
                lead = data[place]
                length = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
                out += data[place : place + length]
            place += length
        return out.decode("utf-8", "replace")

    def _longest(self, data: bytes, place: int) -> tuple[int, bytes]:
        node = self._offset(self._node(0))
        length, at = 0, 0
        for end in range(place, len(data)):
            byte = data[end]
            node ^= byte
            entry = self._node(node)
            if not byte or entry & 0x800000FF != byte:
                break
            node ^= self._offset(entry)
            if entry >> 8 & 1:
                length, at = end - place + 1, self._node(node) & 0x7FFFFFFF
        if not length:
            return 0, b""
        stop = self._replacements.find(0, at)
        if stop < 0:
            raise TokenizerError(
                f"tokenizer.ggml.precompiled_charsmap: no replacement ends after byte {at}"
            )
        return length, self._replacements[at:stop]

    def _node(self, index: int) -> int:
        if index >= len(self._array):
            raise TokenizerError(
                f"tokenizer.ggml.precompiled_charsmap: node {index} of {len(self._array)}"
            )
        return self._array[index]

    @staticmethod
    def _offset(entry: int) -> int:
        return (entry >> 10 & 0x1FFFFF) << ((entry & 0x200) >> 6)
