"""Reads a `tokenizer.json`: the `tokenizers` library encodes with it, and its vocabulary gives ids,
types and bytes.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer

from oxillama.durable import open_without_waiting
from oxillama.errors import TokenizerError
from oxillama.tokenizer.bpe import BYTE_TO_CHAR
from oxillama.tokenizer.spm import MARK
from oxillama.tokenizer.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    SPECIAL_KEYS,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
)

T = TypeVar("T")

# characters; the library steps back through so many at most
LONGEST_RUN = 4_000_000
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_NAMES = {
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|begin|>"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>"),
    "unk": ("<unk>",),
    "pad": ("<pad>",),
}


class JsonEncoder:
    """The library's own encoding, without the special tokens it would add or find in a text: those
    are found before (`SpecialTokens`).
    """

    def __init__(self, tokenizer: Tokenizer, adds_prefix: bool = True) -> None:
        """adds_prefix: whether the library itself puts the space before a text."""
        self._tokenizer, self.adds_prefix = tokenizer, adds_prefix
        tokenizer.encode_special_tokens = True

    def __reduce__(self) -> Any:
        """The library's pickles leave out what is set on its tokenizer."""
        return JsonEncoder, (self._tokenizer, self.adds_prefix)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`."""
        check_runs(text)
        return _encoded(self._tokenizer, text, add_special_tokens=False).ids


def read_tokenizer_json(
    source: str | os.PathLike[str], metadata: Mapping[str, Any]
) -> tuple[Vocabulary, JsonEncoder]:
    """The vocabulary and encoder of a `tokenizer.json`, given as its text or as a path. Raises
    TokenizerError for a file that cannot be read, is not UTF-8, or describes no tokenizer.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise TokenizerError(
            f"tokenizer_json: found {type(source).__name__}, wanted the text of a tokenizer.json, "
            "or a path"
        )
    text = os.fspath(source)
    if not text.lstrip().startswith("{"):
        try:
            with open(text, encoding="utf-8", opener=open_without_waiting) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise TokenizerError(f"{source}: not a regular file, wanted a tokenizer.json")
                text = file.read()
        except TokenizerError:
            raise
        except OSError as error:
            raise TokenizerError(f"{source}: {error.strerror}, wanted a tokenizer.json") from error
        except ValueError as error:  # not UTF-8, or a path with a zero byte
            raise TokenizerError(f"{source!r:.80}: {error}, wanted a tokenizer.json") from None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"tokenizer.json: {error}, wanted JSON") from None
    _check_merges(parsed)
    tokenizer = guarded(_tokenizer, text, "tokenizer.json")
    model = parsed.get("model") if isinstance(parsed, dict) else None
    if isinstance(model, dict) and model.get("dropout"):
        raise TokenizerError(
            f"tokenizer.json: model.dropout: found {model['dropout']!r:.40}, wanted none: ids of a "
            "text would be drawn"
        )
    ids = tokenizer.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    if not 0 < size <= 2 * len(ids) + 1024:
        raise TokenizerError(f"tokenizer.json: {len(ids)} tokens with ids up to {size - 1}")
    tokens, kinds = [""] * size, np.full(size, UNUSED, np.int32)
    for token, index in ids.items():
        tokens[index], kinds[index] = token, NORMAL
    strips: dict[str, set[int]] = {"lstrip": set(), "rstrip": set()}
    for index, about in _added_tokens(parsed, ids, size):
        kinds[index] = CONTROL if about.get("special") else USER_DEFINED
        for side, ones in strips.items():
            if about.get(side):
                ones.add(index)
    byte_level = sum(char in ids for char in BYTE_TO_CHAR.values()) >= 250
    if not byte_level:
        for index in np.flatnonzero(kinds == NORMAL).tolist():
            if _BYTE_TOKEN.fullmatch(tokens[index]):
                kinds[index] = BYTE
    special = _special_ids(metadata, ids, size)
    around = _around(tokenizer, metadata, special)
    letter = _encoded(tokenizer, "a", add_special_tokens=False).tokens
    # The library is given the parts between special tokens one by one. A space that it puts before
    # the first part alone is put before that by the bridge.
    first = not _prepends(parsed.get("normalizer")) and _without_first_prefix(
        parsed.get("pre_tokenizer")
    )
    if first:
        tokenizer = guarded(_tokenizer, json.dumps(parsed), "tokenizer.json")
    vocabulary = Vocabulary(
        "gpt2" if byte_level else "llama",
        "tokenizer.json",
        tokens,
        kinds,
        None,
        (),
        special,
        bool(around.before),
        bool(around.after),
        not byte_level and letter[:1] != ["a"] and MARK + "a" in ids,
        lead=around.before if len(around.before) > 1 else (),
        sep_between=around.between,
        lstrip=frozenset(strips["lstrip"]),
        rstrip=frozenset(strips["rstrip"]),
        space_prefix="first" if first else "",
    )
    return vocabulary, JsonEncoder(tokenizer, not first)


def _check_merges(parsed: Any) -> None:
    """TokenizerError for a merge whose second part lacks the prefix of parts that continue a word.
    The library cuts so many bytes off it all the same, within a character if need be, and what it
    does with the pieces of that ends the process.
    """
    model = parsed.get("model") if isinstance(parsed, dict) else None
    if not isinstance(model, dict):
        return
    prefix = model.get("continuing_subword_prefix")
    if not (isinstance(prefix, str) and prefix):
        return
    merges = model.get("merges")
    for at, merge in enumerate(merges if isinstance(merges, list) else ()):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(parts, list) and parts and isinstance(parts[-1], str)):
            continue  # the library says so
        if not parts[-1].startswith(prefix):
            raise TokenizerError(
                f"tokenizer.json: model.merges[{at}]: found {parts[-1]!r:.40} at its end, wanted a "
                f"part that begins with {prefix!r:.40} (continuing_subword_prefix)"
            )


def _tokenizer(text: str) -> Tokenizer:
    """The library's tokenizer, without the cutting and filling up of its results: those are for
    batches of texts, and transformers does neither unless a caller asks.
    """
    found = Tokenizer.from_str(text)
    found.no_truncation()
    found.no_padding()
    return found


class _Around(NamedTuple):
    """The tokens that a post-processor puts before and after a text, and whether it puts one more
    between two.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    between: bool


def _around(tokenizer: Tokenizer, metadata: Mapping[str, Any], special: dict[str, int]) -> _Around:
    """What the post-processor does; its tokens become the first, the last and the separating token
    in `special`. TokenizerError for more than one after a text, and for others than the metadata's.
    """
    text = _encoded(tokenizer, "a", add_special_tokens=False).ids
    whole = _encoded(tokenizer, "a", add_special_tokens=True).ids
    before = next(
        (at for at in range(len(whole) - len(text) + 1) if whole[at : at + len(text)] == text), -1
    )
    added = tuple(whole[: max(before, 0)]), tuple(whole[before + len(text) :])
    if (whole and not text) or before < 0 or len(added[1]) > 1:
        raise TokenizerError(
            f"tokenizer.json: post_processor: makes {whole!r:.60} of the ids {text!r:.40}, wanted "
            "them with tokens before them and one after them at most"
        )
    for name, one in zip(("bos", "eos"), added, strict=True):
        key = f"tokenizer.ggml.{SPECIAL_KEYS[name]}"
        if one and metadata.get(key) not in (None, one[0]):
            raise TokenizerError(
                f"tokenizer.json: post_processor: puts the token {one[0]} "
                f"{'before' if name == 'bos' else 'after'} a text, wanted {metadata[key]}, which "
                f"{key} names"
            )
        if one:
            special[name] = one[0]
    pair = guarded(lambda text: tokenizer.encode(text, text), "a", "tokenizer.json").ids
    end = before + len(text) + len(added[1])
    rest = pair[end : len(pair) - len(text) - len(added[1])]
    parts = len(rest) == 1 and pair[:end] == whole and pair[end + 1 :] == [*text, *added[1]]
    if parts:
        special["sep"] = rest[0]
    return _Around(*added, parts)


def _prepends(step: Any) -> bool:
    """Whether a normaliser puts something before each part of a text."""
    if not isinstance(step, dict):
        return False
    if step.get("type") == "Sequence":
        return any(map(_prepends, step.get("normalizers") or []))
    return step.get("type") == "Prepend"


def _without_first_prefix(step: Any) -> bool:
    """Take the space before the first part of a text out of a pre-tokeniser; whether it had one."""
    if not isinstance(step, dict):
        return False
    if step.get("type") == "Sequence":
        had = [_without_first_prefix(one) for one in step.get("pretokenizers") or []]
        return True in had
    if step.get("type") != "Metaspace" or step.get("prepend_scheme") != "first":
        return False
    step["prepend_scheme"] = "never"
    return True


def _encoded(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> Encoding:
    def encode(text: str) -> Encoding:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)

    return guarded(encode, text, "tokenizer.json")


def _added_tokens(parsed: Any, ids: Mapping[str, int], size: int) -> list[tuple[int, dict]]:
    """(id, what the file says of it) of every added token."""
    added = parsed.get("added_tokens") or [] if isinstance(parsed, dict) else None
    if not isinstance(added, list):
        raise TokenizerError(
            f"tokenizer.json: added_tokens: found {type(added).__name__}, wanted a list"
        )
    found = []
    for at, token in enumerate(added):
        index = token.get("id") if isinstance(token, dict) else None
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size:
            raise TokenizerError(
                f"tokenizer.json: added_tokens[{at}]: id {index!r}, wanted 0 to {size - 1}"
            )
        if ids.get(token.get("content")) != index:
            raise TokenizerError(
                f"tokenizer.json: added_tokens[{at}]: {token.get('content')!r:.40} has id {index}, "
                f"the vocabulary made of the file has {ids.get(token.get('content'))}"
            )
        if token.get("single_word"):
            raise TokenizerError(
                f"tokenizer.json: added_tokens[{at}]: {token.get('content')!r:.40}: single_word: "
                f"found {token['single_word']!r:.40}, wanted false"
            )
        found.append((index, token))
    return found


def _special_ids(metadata: Mapping[str, Any], ids: Mapping[str, int], size: int) -> dict[str, int]:
    """Ids of special tokens: as the metadata says, else by the names they are published under."""
    special = {}
    for name, key in SPECIAL_KEYS.items():
        found = metadata.get(f"tokenizer.ggml.{key}")
        if found is None:
            found = next((ids[text] for text in _NAMES.get(name, ()) if text in ids), None)
        if isinstance(found, int) and 0 <= found < size:
            special[name] = found
    return special


def guarded(function: Callable[[str], T], text: str, what: str = "tokenizers") -> T:
    """The result of a function of the `tokenizers` library; TokenizerError if it fails or panics (a
    panic of its Rust code is a BaseException that nothing else catches).
    """
    try:
        return function(text)
    except Exception as error:
        raise TokenizerError(f"{what}: {_first_line(error)}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what}: panicked: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def check_runs(text: str) -> None:
    """Refuse a text that the library's regular expressions would give up on: they step back through
    a run at most ten million times.
    """
    if len(text) > LONGEST_RUN:
        longest = max(found.end() - found.start() for found in re.finditer(r"\s+|\S+", text))
        if longest > LONGEST_RUN:
            raise TokenizerError(
                f"text: {longest} characters in a row all white space or none, wanted at most "
                f"{LONGEST_RUN}"
            )
