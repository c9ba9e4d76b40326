"""A file's vocabulary, ready to use: text to ids and back, and the exact bytes of every token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from operator import index
from os import PathLike
from typing import Any
from unicodedata import normalize

import numpy as np

from oxillama._core.threads import worker_count
from oxillama.arguments import listable
from oxillama.errors import TokenizerError, starting_thread, warn
from oxillama.tokenizer.bpe import CHAR_TO_BYTE, BpeEncoder
from oxillama.tokenizer.plamo import PlamoEncoder
from oxillama.tokenizer.provenance import TemplateText
from oxillama.tokenizer.rwkv import RwkvEncoder, unescaped
from oxillama.tokenizer.specials import SpecialTokens
from oxillama.tokenizer.spm import MARK, SpmEncoder, byte_value
from oxillama.tokenizer.stream import TextStream
from oxillama.tokenizer.unigram import UnigramEncoder
from oxillama.tokenizer.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    read_vocabulary,
)
from oxillama.tokenizer.wordpiece import WordPieceEncoder

_SPACES = (" ", MARK)
_RUN = 1 << 16  # characters, from which on a thread of its own pays


class TokenizerBridge:
    """A vocabulary, ready to use.

    Special tokens (control, user-defined, unknown) are found in the text first, longest first; with
    `parse_special=False` only user-defined ones. The text between them is encoded by the
    vocabulary's model.
    """

    def __init__(self, vocabulary: Vocabulary, encoder: Any) -> None:
        self.vocabulary = vocabulary
        self._encoder = encoder
        self.eog_ids = vocabulary.end_ids()
        kinds = vocabulary.kinds
        self._kinds = kinds.tolist()
        by_text = {
            vocabulary.tokens[i]: i
            for i in np.flatnonzero(np.isin(kinds, (CONTROL, USER_DEFINED, UNKNOWN))).tolist()[::-1]
        }
        by_text.pop("", None)
        self._special_ids = by_text
        added = {t: token for t, token in by_text.items() if self._kinds[token] == USER_DEFINED}
        self._special = SpecialTokens(by_text, in_text=frozenset(added.values()))
        self._user_defined = SpecialTokens(added)
        self._bytes = _Bytes(vocabulary, self._kinds)

    def __repr__(self) -> str:
        """The vocabulary's model and size."""
        return f"<TokenizerBridge {self.vocabulary.model}, {len(self.vocabulary.tokens)} tokens>"

    def __reduce__(self) -> Any:
        """Pickles hold the vocabulary, from which the encoder is made again."""
        words, encoder = self.vocabulary, self._encoder
        words = replace(words, tokens=[*words.tokens], merges=[*words.merges])
        if type(encoder) in (BpeEncoder, *_ENCODERS.values()):
            return TokenizerBridge._made_of, (words,)
        return TokenizerBridge, (words, encoder)

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        *,
        allow_unknown_pre: bool = False,
        note: Callable[[str], None] = warn,
    ) -> TokenizerBridge:
        """From the `tokenizer.*` keys of a file. An unknown pre-tokenizer raises unless
        `allow_unknown_pre` selects the default one. note: called with what is a warning otherwise.
        """
        return cls._made_of(read_vocabulary(metadata, note), allow_unknown_pre=allow_unknown_pre)

    @classmethod
    def _made_of(cls, vocabulary: Vocabulary, *, allow_unknown_pre: bool = True) -> TokenizerBridge:
        if vocabulary.model == "gpt2":
            return cls(vocabulary, BpeEncoder(vocabulary, allow_unknown_pre=allow_unknown_pre))
        encoder = _ENCODERS.get(vocabulary.model)
        if encoder is None:
            raise TokenizerError(
                f"tokenizer.ggml.model: found {vocabulary.model!r:.60}, wanted one of gpt2, "
                f"{', '.join(_ENCODERS)}"
            )
        return cls(vocabulary, encoder(vocabulary))

    @classmethod
    def from_gguf(
        cls, path: str | PathLike[str], *, allow_unknown_pre: bool = False
    ) -> TokenizerBridge:
        """From a GGUF file, which may contain only a vocabulary."""
        from oxillama.gguf import GgufReader

        with GgufReader(path) as reader:
            return cls.from_metadata(reader.metadata, allow_unknown_pre=allow_unknown_pre)

    @classmethod
    def from_tokenizer_json(
        cls, source: str | PathLike[str], *, metadata: Mapping[str, Any] | None = None
    ) -> TokenizerBridge:
        """From a `tokenizer.json` (its text, or a path to it). Special ids and flags come from
        `metadata` if it has them.
        """
        from oxillama.tokenizer.json_file import read_tokenizer_json

        return cls(*read_tokenizer_json(source, metadata or {}))

    # ---- sizes and ids
    # -------------------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary."""
        return len(self.vocabulary)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, None if the vocabulary has none."""
        return self.vocabulary.special.get("bos")

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, None if the vocabulary has none."""
        return self.vocabulary.special.get("eos")

    @property
    def eot_id(self) -> int | None:
        """The token that ends a turn, None if the file names none."""
        return self.vocabulary.special.get("eot")

    @property
    def add_bos(self) -> bool:
        """Whether `add_special` puts the first token before a text."""
        return self.vocabulary.add_bos

    @property
    def lead_ids(self) -> list[int]:
        """The tokens that `add_special` puts before a text: the first token, and those of GLM 4
        that follow it.
        """
        v = self.vocabulary
        return [*v.lead] or ([v.special["bos"]] if v.add_bos else [])

    @property
    def add_eos(self) -> bool:
        """Whether `add_special` puts the last token after a text."""
        return self.vocabulary.add_eos

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of control and unknown tokens, which are not text."""
        return frozenset(
            np.flatnonzero(np.isin(self.vocabulary.kinds, (CONTROL, UNKNOWN))).tolist()
        )

    def is_special(self, token: int) -> bool:
        """Whether the token is a control or unknown token, which contributes no text."""
        return self._kinds[self._checked(token)] in (CONTROL, UNKNOWN)

    def token_text(self, token: int) -> str:
        """The token as the file spells it."""
        return self.vocabulary.tokens[self._checked(token)]

    def token_to_id(self, text: str) -> int | None:
        """The id of the special token with this text, None if there is none."""
        if not isinstance(text, str):
            raise TokenizerError(f"text: found {type(text).__name__}, wanted str")
        return self._special_ids.get(text)

    # ---- text to ids
    # ---------------------------------------------------------------------------------------------

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """The ids of `text`. `add_special` adds the file's tokens for the beginning and end of a
        text (no second one at the beginning if the text already begins with it). `parse_special`
        recognises control tokens in the text.

        A `TemplateText` (a rendered conversation) is complete: nothing is added, and control tokens
        are recognised only in what the template wrote.
        """
        if not isinstance(text, str):
            raise TokenizerError(f"text: found {type(text).__name__}, wanted str")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"text: found a lone surrogate at character {error.start}, wanted valid Unicode"
            ) from None
        v, add_special = self.vocabulary, add_special and not isinstance(text, TemplateText)
        ids: list[int] = []
        prefix = v.add_space_prefix and not self._encoder.adds_prefix
        parts = list((self._special if parse_special else self._user_defined).split(text))
        first, swallow = True, False
        for at, (piece, token) in enumerate(parts, 1):
            if token is not None:
                ids.append(token)
                first, swallow = v.space_prefix != "first", token in v.rstrip
                continue
            if swallow:
                piece = piece.lstrip(v.swallowed)
            if v.lstrip and at < len(parts) and parts[at][1] in v.lstrip:
                piece = piece.rstrip(v.swallowed)
            if piece:
                if v.nfc:
                    piece = normalize("NFC", piece)
                if first and prefix and not (v.space_prefix and piece[0] in _SPACES):
                    piece = " " + piece
                ids.extend(self._encoder.encode(piece))
                first = False
        lead = self.lead_ids if add_special else []
        if lead and ids[:1] != lead[:1]:
            ids = lead + ids
        if add_special and v.add_sep:
            ids.append(v.special["sep"])
        if add_special and v.add_eos:
            ids.append(v.special["eos"])
        return ids

    def encode_batch(
        self,
        texts: Iterable[str],
        *,
        add_special: bool = True,
        parse_special: bool = True,
        num_threads: int | None = None,
    ) -> list[list[int]]:
        """The ids of each text, as `encode` returns them.

        num_threads: threads that share the texts; None for as many as an engine would take.
        """
        if isinstance(texts, (str, bytes)) or not listable(texts):
            raise TokenizerError(
                f"texts: found {type(texts).__name__}, wanted a list of texts; `encode` takes one"
            )
        texts, most = list(texts), worker_count(num_threads or 0)

        def several(first: int, last: int) -> list[list[int]]:
            out: list[list[int]] = []
            try:
                for text in texts[first:last]:
                    out.append(
                        self.encode(text, add_special=add_special, parse_special=parse_special)
                    )
            except TokenizerError as error:
                error.args = (f"texts[{first + len(out)}]: {error}",)
                raise
            return out

        runs, first, size = [], 0, 0
        for last, text in enumerate(texts, 1):
            size += len(text) if isinstance(text, str) else 0
            if size >= _RUN or last == len(texts):
                runs.append((first, last))
                first, size = last, 0
        if min(most, len(runs)) < 2:
            return several(0, len(texts))
        with ThreadPoolExecutor(min(most, len(runs)), "oxillama tokenizer") as pool:
            with starting_thread():
                done = pool.map(several, *zip(*runs))
            return [ids for run in done for ids in run]

    def encode_pair(self, first: str, second: str) -> list[int]:
        """The ids of two texts that a cross-encoder reads as one: the file's first and last tokens
        around the first text and after the second, with a separator between them if the file has
        one. Control tokens spelled in the texts are text. TokenizerError if nothing would separate
        the two.
        """
        v = self.vocabulary

        def named(name: str, there: bool) -> list[int]:
            return [v.special[name]] if there else []

        end = named("sep", v.add_sep) + named("eos", v.add_eos)
        between = end + named("sep", v.sep_between)
        if not between:
            raise TokenizerError(
                "pair: the file has no separator of two texts, wanted "
                "tokenizer.ggml.add_eos_token or add_sep_token"
            )
        ids = [
            self.encode(text, add_special=False, parse_special=False) for text in (first, second)
        ]
        return self.lead_ids + ids[0] + between + ids[1] + end

    # ---- ids to text
    # ---------------------------------------------------------------------------------------------

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes that the token contributes to a text; none for control, unknown and
        unused tokens.
        """
        return self._bytes[self._checked(token)]

    def vocab_bytes(self) -> list[bytes]:
        """`token_bytes` of every id, in order."""
        return [self._bytes[token] for token in range(len(self._kinds))]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`, without the space that `encode` puts before a text.
        `skip_special=False` writes control tokens too.
        """
        if not listable(ids):
            raise TokenizerError(f"ids: found {type(ids).__name__}, wanted token ids")
        table, parts, start = self._bytes, [], True
        for token in ids:
            special = self.is_special(token)
            if special and not skip_special:
                parts.append(self.vocabulary.tokens[token].encode())
            data = table[token]
            if start and not special and self.vocabulary.add_space_prefix and data.startswith(b" "):
                data = data[1:]
            start = start and special
            parts.append(data)
        return b"".join(parts).decode("utf-8", "replace")

    def stream(self, *, shown: Iterable[int] = (), pending: bytes = b"") -> TextStream:
        """A stream over this vocabulary, for tokens that continue a text; `shown` are control
        tokens that are written as text. pending: the beginning of a character that the text ends
        in.
        """
        if not listable(shown):
            raise TokenizerError(f"shown: found {type(shown).__name__}, wanted token ids")
        return TextStream(
            self._bytes.__getitem__,
            pending=pending,
            shown={token: self.token_text(token).encode() for token in shown},
        )

    def _checked(self, token: int) -> int:
        try:
            number = -1 if isinstance(token, bool) else index(token)
        except TypeError:
            number = -1
        if not 0 <= number < len(self._kinds):
            raise TokenizerError(
                f"token id: found {token!r:.50}, wanted 0 to {len(self._kinds) - 1}"
            )
        return number


class _Bytes(dict):
    """The bytes of tokens by id, computed when first needed, because a text uses few tokens of a
    large vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary, kinds: list[int]) -> None:
        self._texts, self._kinds = vocabulary.tokens, kinds
        self._spell = _SPELLINGS.get(vocabulary.model, _spm_bytes)

    def __missing__(self, token: int) -> bytes:
        found = self[token] = self._spell(self._texts[token], self._kinds[token], token)
        return found


def _spm_bytes(text: str, kind: int, token: int) -> bytes:
    if kind == NORMAL:
        return text.replace(MARK, " ").encode()
    if kind == BYTE:
        return bytes([byte_value(text, token)])
    return text.encode() if kind == USER_DEFINED else b""


def _bpe_bytes(text: str, kind: int, token: int) -> bytes:
    if kind in (NORMAL, BYTE):
        try:
            return bytes([CHAR_TO_BYTE[char] for char in text])
        except KeyError:
            # written as it is: the vocabulary's author left the byte alphabet
            return text.encode()
    return text.encode() if kind == USER_DEFINED else b""


def _rwkv_bytes(text: str, kind: int, token: int) -> bytes:
    return unescaped(text) if kind in (NORMAL, USER_DEFINED) else b""


def _plain_bytes(text: str, kind: int, token: int) -> bytes:
    if kind == BYTE:
        return bytes([byte_value(text, token)])
    return text.encode() if kind in (NORMAL, USER_DEFINED) else b""


_ENCODERS = {
    "llama": SpmEncoder,
    "gemma4": SpmEncoder,
    "t5": UnigramEncoder,
    "bert": WordPieceEncoder,
    "rwkv": RwkvEncoder,
    "plamo2": PlamoEncoder,
}
_SPELLINGS = {"gpt2": _bpe_bytes, "rwkv": _rwkv_bytes, "plamo2": _plain_bytes}
