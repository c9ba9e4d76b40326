"""WordPiece as `bert` vocabularies mean it: words in plain letters, each cut greedily into the
longest tokens.

Source: Devlin et al. 2018 (BERT). Files write a token that begins a word with the mark (`▁`), and
one inside a word without it.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from oxillama.errors import TokenizerError
from oxillama.tokenizer.spm import MARK
from oxillama.tokenizer.vocabulary import USER_DEFINED, Vocabulary

# characters; a longer word is one unknown token, as in every published BERT
LONGEST_WORD = 100
# Blocks of ideographs: each is a word of its own.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_LONGEST_REMEMBERED = 64
_SPACES = frozenset("\t\n\v\f\r\x85")
# What has no place in a word: control characters, format characters, private use. Code points that
# no character is assigned to stay: later versions of Unicode may make letters of them.
_DROPPED = ("Cc", "Cf", "Co", "Cs")


class WordPieceEncoder:
    """Text without special tokens to ids."""

    adds_prefix = True  # the mark before a word is part of its tokens

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids: dict[str, int] = {}
        for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds.tolist())):
            # added tokens, written as they are, are no parts of words
            if kind != USER_DEFINED or text.startswith(MARK):
                self._ids.setdefault(text, token)
        self._longest = max(map(len, self._ids), default=0)
        self._unknown = vocabulary.special.get("unk")
        self._lowercase, self._strip_accents = vocabulary.lowercase, vocabulary.strip_accents
        self._word = lru_cache(maxsize=65536)(self._pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; a word that cannot be written in tokens is one unknown token."""
        ids: list[int] = []
        for word in self._words(text):
            ids.extend(self._word(word) if len(word) <= _LONGEST_REMEMBERED else self._pieces(word))
        return ids

    def _words(self, text: str) -> list[str]:
        if self._strip_accents:
            text = unicodedata.normalize("NFD", text)
        out: list[str] = []
        for char in text:
            kind = unicodedata.category(char)
            if char in _SPACES or kind[0] == "Z":
                out.append(" ")
            elif char == "�" or kind in _DROPPED or (self._strip_accents and kind[0] == "M"):
                continue
            else:
                alone = (
                    kind[0] == "P"
                    or (char < "\x7f" and kind[0] == "S")
                    or any(low <= ord(char) <= high for low, high in _IDEOGRAPHS)
                )
                lower = char.lower() if self._lowercase else char
                char = lower if len(lower) == 1 else char
                out.append(f" {char} " if alone else char)
        return "".join(out).split(" ")

    def _pieces(self, word: str) -> tuple[int, ...]:
        if not word:
            return ()
        longest = self._longest if len(word) <= LONGEST_WORD else 0
        word, ids, start = MARK + word, [], 0
        while start < len(word):
            # a mark in a word is a character, not the beginning of another word
            most = min(longest, 1) if start and word[start] == MARK else longest
            for end in range(min(len(word), start + most), start, -1):
                token = self._ids.get(word[start:end])
                if token is not None:
                    ids.append(token)
                    start = end
                    break
            else:
                if self._unknown is None:
                    raise TokenizerError(
                        f"vocabulary: no tokens for {word[1:41]!r}, and no unknown token"
                    )
                return (self._unknown,)
        return tuple(ids)
