"""Byte-level BPE as `gpt2` vocabularies mean it, run by the `tokenizers` library built straight from the file's tokens and merges.

Source: Radford et al. 2019 (GPT-2): every byte is written as one printable character (`BYTE_TO_CHAR`), so that no text is unknown.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from oxillama.errors import TokenizerError
from oxillama.tokenizer.splits import SPLITS, WHOLE_WORDS
from oxillama.tokenizer.vocabulary import Vocabulary


def _byte_characters() -> dict[int, str]:
    """Printable Latin-1 bytes stand for themselves, the others for characters from U+0100 on, in order."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = (byte for byte in range(256) if byte not in kept)
    return {byte: chr(byte) for byte in kept} | {byte: chr(0x100 + i) for i, byte in enumerate(moved)}


LONGEST_RUN = 4_000_000
BYTE_TO_CHAR = _byte_characters()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


class BpeEncoder:
    """Text without special tokens to ids."""

    adds_prefix = False     # the space before a text, where the vocabulary wants one, is the caller's to put

    def __init__(self, vocabulary: Vocabulary, *, allow_unknown_pre: bool = False) -> None:
        if vocabulary.pre not in SPLITS and not allow_unknown_pre:
            raise TokenizerError(f"tokenizer.ggml.pre: found {vocabulary.pre!r}, wanted one of {', '.join(sorted(SPLITS))}")
        tokens = vocabulary.tokens
        ids = dict(zip(tokens, range(len(tokens))))
        if len(ids) < len(tokens):                      # of equal texts the first counts
            ids = dict(zip(reversed(tokens), reversed(range(len(tokens)))))
        self._missing = frozenset(byte for byte, char in BYTE_TO_CHAR.items() if char not in ids)
        whole_words = vocabulary.pre in WHOLE_WORDS
        pairs = [tuple(merge.split(" ")) for merge in vocabulary.merges]
        try:
            if {*map(len, pairs)} - {2} or len(set(pairs)) < len(pairs):
                raise ValueError("not the usual case")
            model = models.BPE(vocab=ids, merges=pairs, ignore_merges=whole_words)
        except Exception:                               # the library's own is untyped: an odd merge, or one of pieces that are no tokens
            model = models.BPE(vocab=ids, merges=_possible_merges(vocabulary.merges, ids), ignore_merges=whole_words)
        self._tokenizer = Tokenizer(model)
        splits = SPLITS.get(vocabulary.pre, SPLITS["default"])
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            *(pre_tokenizers.Split(Regex(split), "isolated") for split in splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def encode(self, text: str) -> list[int]:
        """The ids of `text`."""
        check_runs(text)
        if self._missing:
            lost = self._missing.intersection(text.encode())
            if lost:
                raise TokenizerError(f"vocabulary: no token for byte 0x{min(lost):02X} of the text")
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def check_runs(text: str) -> None:
    """Refuse a text that the library's regular expressions would give up on: they step back through a run at most ten million times."""
    if len(text) > LONGEST_RUN:
        longest = max(found.end() - found.start() for found in re.finditer(r"\s+|\S+", text))
        if longest > LONGEST_RUN:
            raise TokenizerError(f"text: {longest} characters in a row all white space or none, wanted at most {LONGEST_RUN}")


def _possible_merges(merges: Sequence[str], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges as pairs: each once, the first of equals; those whose pieces or product are no tokens can never be taken."""
    pairs: dict[tuple[str, str], None] = {}
    for index, merge in enumerate(merges):
        middle = merge.find(" ", 1)                     # a piece may begin with a space, never hold one elsewhere
        left, right = merge[:middle], merge[middle + 1:]
        if middle < 0 or not right:
            raise TokenizerError(f"tokenizer.ggml.merges: merge {index} is {merge[:40]!r}, wanted two pieces with a space between")
        if left in ids and right in ids and left + right in ids:
            pairs[left, right] = None
    return list(pairs)
