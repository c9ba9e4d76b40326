"""SentencePiece BPE of `llama` and `gemma4` vocabularies.

`llama`: the neighbours whose joined text has the highest score merge first. `gemma4`, and `llama`
with `by_merges`: the neighbours that come first in the list of merges. Ties go to the leftmost
pair. Text that no token covers falls back to one token per byte. Source: Kudo and Richardson 2018
(SentencePiece), BPE model. Most vocabularies never join a word's end to the next word's marker, so
text is split before each marker (`▁`) and words are cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from oxillama._core.bpe import merge_pieces
from oxillama.errors import TokenizerError
from oxillama.tokenizer.vocabulary import BYTE, NORMAL, UNUSED, USER_DEFINED, Vocabulary

MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONGEST_REMEMBERED = 64
# characters that one call of Python's own code takes: all other threads wait for it
_LONG = 1 << 16
_WORD = re.compile(f"{MARK}*+[^{MARK}]*")


class SpmEncoder:
    """Text without special tokens to ids."""

    # the space before a text, where the vocabulary wants one, is the caller's to put
    adds_prefix = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        lines = vocabulary.model == "gemma4"
        merged = lines or vocabulary.by_merges
        self._ids: dict[str, int] = {}
        self._bytes: dict[int, int] = {}
        for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds.tolist())):
            if kind in (NORMAL, USER_DEFINED, UNUSED):
                self._ids.setdefault(text, token)
            elif kind == BYTE:
                self._bytes.setdefault(byte_value(text, token), token)
        # what stands between the pieces of a merge in the keys of its ranks
        self._between = " " if merged else ""
        self._ranks = self._by_merges(vocabulary) if merged else self._by_scores(vocabulary)
        self._lines = re.compile(r"\n+|[^\n]+") if lines else None
        self._unknown = vocabulary.special.get("unk")
        crosses = any(
            MARK in text[1:] and text.strip(MARK) and re.search(f"[^{MARK}]{MARK}", text)
            for text in self._ids
        )
        self._apart = not crosses
        self._word = lru_cache(maxsize=65536)(self._merged)

    def _by_scores(self, vocabulary: Vocabulary) -> dict[str, int]:
        if vocabulary.scores is None:
            raise TokenizerError(
                "tokenizer.ggml.scores: missing, a 'llama' vocabulary needs a score for every token"
            )
        scores = vocabulary.scores.tolist()
        best_first = {
            score: rank
            for rank, score in enumerate(
                sorted({scores[token] for token in self._ids.values()}, reverse=True)
            )
        }
        return {text: best_first[scores[token]] for text, token in self._ids.items()}

    def _by_merges(self, vocabulary: Vocabulary) -> dict[str, int]:
        """The rank of every merge whose pieces and product are tokens; the others never happen."""
        ranks: dict[str, int] = {}
        for rank, merge in enumerate(vocabulary.merges):
            pieces = merge.split(" ")
            if len(pieces) != 2 or not all(pieces):
                raise TokenizerError(
                    f"tokenizer.ggml.merges: merge {rank} is {merge[:40]!r}, wanted two pieces "
                    "with a space between"
                )
            if pieces[0] in self._ids and pieces[1] in self._ids and "".join(pieces) in self._ids:
                ranks.setdefault(merge, rank)
        return ranks

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, spaces already written as they are (the mark is put in here)."""
        text = marked(text)
        if self._lines is None:
            return self._line(text)
        ids: list[int] = []
        for line in self._lines.findall(text):
            # a run of line ends that is a token is taken whole, whatever the merges say
            whole = self._ids.get(line) if line[0] == "\n" else None
            ids.extend(self._line(line) if whole is None else (whole,))
        return ids

    def _line(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in words_of(text) if self._apart else (text,):
            ids.extend(self._word(word) if len(word) <= _LONGEST_REMEMBERED else self._merged(word))
        return ids

    def _merged(self, text: str) -> tuple[int, ...]:
        """Merge neighbours until no two of them join to a token."""
        whole = self._ids.get(text)
        if whole is not None and len(text) == 1:
            return (whole,)
        ids = self._ids
        out: list[int] = []
        for piece in merge_pieces(text, self._ranks, self._between):
            token = ids.get(piece)
            out.extend((token,) if token is not None else self._fallback(piece))
        return tuple(out)

    def _fallback(self, piece: str) -> list[int]:
        """A character that is not a token: its bytes, or the unknown token if the vocabulary lacks
        them.
        """
        data = piece.encode("utf-8", "surrogatepass")
        found = [self._bytes[value] for value in data if value in self._bytes]
        if len(found) == len(data):
            return found
        if self._unknown is None:
            raise TokenizerError(
                f"vocabulary: no token for {piece!r}, none for its bytes, and no unknown token"
            )
        return [self._unknown]


def words_of(text: str) -> Iterator[str]:
    """The parts of a text, each with the marks before it; found one at a time, so that other
    threads run meanwhile.
    """
    return (found[0] for found in _WORD.finditer(text) if found[0])


def marked(text: str) -> str:
    """A text with its spaces written as marks."""
    parts = (text[at : at + _LONG] for at in range(0, len(text), _LONG))
    return "".join(part.replace(" ", MARK) for part in parts)


def byte_value(text: str, token: int) -> int:
    """The byte of a byte token such as `<0x0A>`."""
    match = _BYTE_TOKEN.fullmatch(text)
    if match is None:
        raise TokenizerError(
            f"tokenizer.ggml.tokens: byte token {token} is {text[:20]!r}, wanted <0x00> to <0xFF>"
        )
    return int(match[1], 16)
