"""Byte-level BPE as `gpt2` vocabularies mean it, run by the `tokenizers` library built straight from the file's tokens and merges.

Source: Radford et al. 2019 (GPT-2): every byte is written as one printable character (`BYTE_TO_CHAR`), so that no text is unknown.
"""
from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from oxillama.errors import TokenizerError
from oxillama.tokenizer.splits import SPLITS, WHOLE_WORDS
from oxillama.tokenizer.vocabulary import Vocabulary


def _byte_characters() -> dict[int, str]:
    """Printable Latin-1 bytes stand for themselves, the others for characters from U+0100 on, in order."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = (byte for byte in range(256) if byte not in kept)
    return {byte: chr(byte) for byte in kept} | {byte: chr(0x100 + i) for i, byte in enumerate(moved)}


BYTE_TO_CHAR = _byte_characters()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


class BpeEncoder:
    """Text without special tokens to ids."""

    adds_prefix = False     # the space before a text, where the vocabulary wants one, is the caller's to put

    def __init__(self, vocabulary: Vocabulary, *, allow_unknown_pre: bool = False) -> None:
        if vocabulary.pre not in SPLITS and not allow_unknown_pre:
            raise TokenizerError(f"tokenizer.ggml.pre: found {vocabulary.pre!r}, wanted one of {', '.join(sorted(SPLITS))}")
        ids = {text: token for token, text in reversed(list(enumerate(vocabulary.tokens)))}      # of equal texts the first counts
        merges = []
        for index, merge in enumerate(vocabulary.merges):
            left, space, right = merge.partition(" ") if not merge.startswith(" ") else _after_first(merge)
            if not space or not left or not right:
                raise TokenizerError(f"tokenizer.ggml.merges: merge {index} is {merge[:40]!r}, wanted two pieces with a space between")
            if left in ids and right in ids and left + right in ids:       # a merge without its token can never be taken
                merges.append((left, right))
        self._missing = frozenset(byte for byte, char in BYTE_TO_CHAR.items() if char not in ids)
        model = models.BPE(vocab=ids, merges=merges, ignore_merges=vocabulary.pre in WHOLE_WORDS)
        self._tokenizer = Tokenizer(model)
        splits = SPLITS.get(vocabulary.pre, SPLITS["default"])
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            *(pre_tokenizers.Split(Regex(split), "isolated") for split in splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def encode(self, text: str) -> list[int]:
        """The ids of `text`."""
        if self._missing:
            lost = self._missing.intersection(text.encode())
            if lost:
                raise TokenizerError(f"vocabulary: no token for byte 0x{min(lost):02X} of the text")
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def _after_first(merge: str) -> tuple[str, str, str]:
    """Split at the first space that is not the merge's own first character."""
    left, space, right = merge[1:].partition(" ")
    return merge[0] + left, space, right
