"""Reads a `tokenizer.json`: the library runs it as it is, and its vocabulary gives ids, kinds and
bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from oxillama.errors import TokenizerError
from oxillama.tokenizer.bpe import BYTE_TO_CHAR, check_runs
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

_NAMES = {
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|begin|>"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>"),
    "unk": ("<unk>",),
    "pad": ("<pad>",),
}


class JsonEncoder:
    """The library's own encoding, without the special tokens it would add."""

    adds_prefix = True  # its own normaliser puts the space before a text

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """The ids of `text`."""
        check_runs(text)
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def read_tokenizer_json(
    source: str | os.PathLike, metadata: Mapping[str, Any]
) -> tuple[Vocabulary, JsonEncoder]:
    """The vocabulary and encoder of a `tokenizer.json`, given as its text or as a path."""
    text = os.fspath(source)
    if not text.lstrip().startswith("{"):
        try:
            with open(text, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise TokenizerError(f"{source}: {error.strerror}, wanted a tokenizer.json") from error
    try:
        tokenizer, parsed = Tokenizer.from_str(text), json.loads(text)
    except Exception as error:  # the library raises its own untyped exception
        raise TokenizerError(f"tokenizer.json: {str(error).splitlines()[0]}") from error
    ids = tokenizer.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    if not 0 < size <= 2 * len(ids) + 1024:
        raise TokenizerError(f"tokenizer.json: {len(ids)} tokens with ids up to {size - 1}")
    tokens, kinds = [""] * size, np.full(size, UNUSED, np.int32)
    for token, index in ids.items():
        tokens[index], kinds[index] = token, NORMAL
    for added in parsed.get("added_tokens", ()):
        kinds[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
    byte_level = sum(char in ids for char in BYTE_TO_CHAR.values()) >= 250
    if not byte_level:
        for index in np.flatnonzero(kinds == NORMAL).tolist():
            if len(tokens[index]) == 6 and tokens[index].startswith("<0x"):
                kinds[index] = BYTE
    special = {}
    for name, key in SPECIAL_KEYS.items():
        found = metadata.get(f"tokenizer.ggml.{key}")
        found = (
            next((ids[text] for text in _NAMES.get(name, ()) if text in ids), None)
            if found is None
            else found
        )
        if isinstance(found, int) and 0 <= found < size:
            special[name] = found
    added = tokenizer.encode("", add_special_tokens=True).ids
    add_bos, add_eos = (
        bool(added) and added[0] == special.get("bos"),
        bool(added) and added[-1] == special.get("eos"),
    )
    vocabulary = Vocabulary(
        "gpt2" if byte_level else "llama",
        "tokenizer.json",
        tokens,
        kinds,
        None,
        (),
        special,
        add_bos,
        add_eos,
        not byte_level
        and tokenizer.encode("a", add_special_tokens=False).tokens[:1] != ["a"]
        and MARK + "a" in ids,
    )
    return vocabulary, JsonEncoder(tokenizer)
