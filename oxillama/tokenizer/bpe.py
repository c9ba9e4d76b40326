"""Byte-level BPE of `gpt2` vocabularies: expressions split a text into words, tables merge their
bytes; both are compiled.

Source: Radford et al. 2019 (GPT-2): every byte is written as one printable character
(`BYTE_TO_CHAR`), so that no text is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property

from oxillama._core.bpe import BpeTables, Splitter, Strings
from oxillama.errors import TokenizerError
from oxillama.tokenizer.automaton import SplitTables, split_stages
from oxillama.tokenizer.splits import SPLITS, WHOLE_WORDS
from oxillama.tokenizer.vocabulary import Vocabulary, packed


def _byte_characters() -> dict[int, str]:
    """Printable Latin-1 bytes are written as themselves, the others as characters from U+0100 on,
    in order.
    """
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = (byte for byte in range(256) if byte not in kept)
    return {byte: chr(byte) for byte in kept} | {
        byte: chr(0x100 + i) for i, byte in enumerate(moved)
    }


BYTE_TO_CHAR = _byte_characters()
_CONTROLS = frozenset((*range(0x20), 0x7F))
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


class BpeEncoder:
    """Text without special tokens to ids."""

    # the space before a text, where the vocabulary wants one, is the caller's to put
    adds_prefix = False

    def __init__(self, vocabulary: Vocabulary, *, allow_unknown_pre: bool = False) -> None:
        if vocabulary.pre not in SPLITS and not allow_unknown_pre:
            raise TokenizerError(
                f"tokenizer.ggml.pre: found {vocabulary.pre!r:.60}, wanted one of "
                f"{', '.join(sorted(SPLITS))}"
            )
        self._tables = BpeTables(packed(vocabulary.tokens), packed(vocabulary.merges), BYTE_TO_CHAR)
        if self._tables.odd:
            _check_merges(vocabulary.merges)
        self._missing = self._tables.missing() - _CONTROLS
        self._whole_words = vocabulary.pre in WHOLE_WORDS
        self._expressions = SPLITS.get(vocabulary.pre, SPLITS["default"])

    @cached_property
    def splitter(self) -> Splitter:
        """What cuts a text into words; made when the first text comes."""
        return splitter_of(self._expressions)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`. Control characters that the vocabulary has no token for are left out,
        as in the tokenizers that such vocabularies (Falcon's) come from; any other byte without a
        token raises TokenizerError.
        """
        if self._missing:
            lost = self._missing.intersection(text.encode())
            if lost:
                raise TokenizerError(f"vocabulary: no token for byte 0x{min(lost):02X} of the text")
        return self._tables.encode(text, self.splitter, self._whole_words)


@cache
def splitter_of(expressions: tuple[str, ...]) -> Splitter:
    """What cuts a text by expressions in turn."""
    return Splitter(
        [
            (each.classes, each.steps)
            if isinstance(each, SplitTables)
            else (each.classes, each.size, each.apart)
            for each in split_stages(expressions)
        ]
    )


def _check_merges(merges: Sequence[str] | Strings) -> None:
    """Raise TokenizerError for a merge that is not two pieces. A merge whose pieces or product are
    not tokens is never applied.
    """
    for index, merge in enumerate(merges):
        # a piece may begin with a space, never hold one elsewhere
        middle = merge.find(" ", 1)
        if middle < 0 or middle == len(merge) - 1:
            raise TokenizerError(
                f"tokenizer.ggml.merges: merge {index} is {merge[:40]!r}, wanted two pieces with a "
                "space between"
            )
