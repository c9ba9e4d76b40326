"""Vocabularies in files of a token a line: RWKV's, Qwen's and PLaMo's."""

from __future__ import annotations

import ast
import json
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from oxillama._core.bpe import merge_pieces
from oxillama.convert.folder import ModelFolder
from oxillama.convert.tokens import (
    BYTE,
    CONTROL,
    NORMAL,
    SPECIAL,
    UNKNOWN,
    UNUSED,
    KeyValues,
    content_of,
    ggml,
    text_of,
)
from oxillama.errors import ConvertError
from oxillama.tokenizer.bpe import BYTE_TO_CHAR

# what their folders call them
_WORLD, QWEN, _PLAMO = "rwkv_vocab_v20230424.txt", "qwen.tiktoken", "tokenizer.jsonl"
# Qwen's special tokens, which follow those of its file
_QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_EXTRAS = 205


def world_keys(folder: ModelFolder, size: int) -> KeyValues:
    """RWKV's vocabulary: lines of a number, a Python literal and its bytes; empty without the file.

    Token 0 begins and ends texts and has no line. Two line breaks end a turn (token 261).
    """
    path = folder.path / _WORLD
    text = text_of(path)
    if text is None:
        return {}
    tokens, kinds = ["<s>"], [CONTROL]
    for number, line in enumerate(text.splitlines(), 1):
        try:
            _, literal = line.split(" ", 1)
            literal, length = literal.rsplit(" ", 1)
            token = ast.literal_eval(literal)
            held = token.encode() if isinstance(token, str) else token
            if not isinstance(held, bytes) or len(held) != int(length):
                raise ValueError(length)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise ConvertError(
                f"{path}: line {number}: found {line!r:.60}, "
                "wanted a number, a literal and its bytes"
            ) from error
        tokens.append(repr(held)[2:-1])
        kinds.append(NORMAL)
    if len(tokens) > size:
        raise ConvertError(f"{path}: {len(tokens)} tokens, config.json says {size}")
    kinds += [UNUSED] * (size - len(tokens))
    tokens += [f"[PAD{at}]" for at in range(len(tokens), size)]
    keys = ggml(
        model=("rwkv", "string"),
        tokens=(tokens, "array[string]"),
        token_type=(kinds, "array[int32]"),
        bos_token_id=(0, "uint32"),
        eos_token_id=(0, "uint32"),
        eot_token_id=(261, "uint32"),
    )
    return keys | {"tokenizer.chat_template": ("rwkv-world", "string")}


def qwen_keys(folder: ModelFolder, size: int) -> tuple[KeyValues, dict[str, int]]:
    """(the keys, the ids by text) of Qwen's byte strings by rank (lines of base64 and a number) and
    of its special tokens.
    """
    path = folder.path / QWEN
    ranks: dict[bytes, int] = {}
    for number, line in enumerate((text_of(path) or "").splitlines(), 1):
        try:
            held, rank = line.split()
            ranks[b64decode(held, validate=True)] = int(rank)
        except ValueError:
            raise ConvertError(
                f"{path}: line {number}: found {line!r:.60}, wanted base64 and a rank"
            ) from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ConvertError(f"{path}: ranks are not the numbers from 0 to {len(ranks) - 1}")
    ordered = sorted(ranks, key=ranks.__getitem__)
    extras = [f"<|extra_{number}|>" for number in range(_QWEN_EXTRAS)]
    special = [*_QWEN_SPECIAL, *extras][: max(size - len(ordered), 0)]
    if len(ordered) > size:
        raise ConvertError(f"{path}: {len(ordered)} tokens, config.json says {size}")
    texts = [spelled(token) for token in ordered] + special
    kinds = [NORMAL] * len(ordered) + [CONTROL] * len(special)
    kinds += [UNUSED] * (size - len(texts))
    texts += [f"[PAD{at}]" for at in range(len(texts), size)]
    keys = ggml(
        model=("gpt2", "string"),
        pre=("qwen2", "string"),
        tokens=(texts, "array[string]"),
        token_type=(kinds, "array[int32]"),
        merges=(merges_of(path, ordered), "array[string]"),
    )
    return keys, {text: at for at, text in enumerate(texts)}


def merges_of(path: Path, ordered: Sequence[bytes]) -> list[str]:
    """The merges of tokens by rank: of each what the last step of its own merging, by lower ranks
    alone, joins. ConvertError, naming the file, for a token that nothing is joined to, or that is
    there twice.
    """
    ranks: dict[str, int] = {}  # of the tokens so far
    merges = []
    for rank, token in enumerate(ordered):
        text = spelled(token)
        if text in ranks:
            raise ConvertError(f"{path}: {token!r} has the ranks {ranks[text]} and {rank}")
        if len(text) > 1:
            parts = merge_pieces(text, ranks, "")
            if len(parts) != 2:
                raise ConvertError(f"{path}: {token!r} is not made of two tokens before it")
            merges.append(" ".join(parts))
        ranks[text] = rank
    return merges


def spelled(token: bytes) -> str:
    """Bytes as byte-level vocabularies write them."""
    return "".join(BYTE_TO_CHAR[byte] for byte in token)


def plamo_keys(folder: ModelFolder, settings: dict, size: int) -> KeyValues:
    """PLaMo's tokens: lines of [text, score, kind, ...]; empty without the file. Token 4 ends a
    turn.
    """
    path = folder.path / _PLAMO
    lines = text_of(path)
    if lines is None:
        return {}
    texts, scores, kinds = [], [], []
    named = {"UNKNOWN": UNKNOWN, "CONTROL": CONTROL, "BYTE": BYTE}
    for number, line in enumerate(lines.splitlines(), 1):
        if not line.strip():
            continue
        try:
            text, score, *rest = json.loads(line)
            texts.append(str(text))
            scores.append(float(np.float32(score)))
        except (ValueError, TypeError):
            raise ConvertError(
                f"{path}: line {number}: found {line!r:.60}, wanted a text, a score and a kind"
            ) from None
        renders = not (texts[-1].startswith("<|plamo:") and texts[-1].endswith("|>"))
        kinds.append(named.get(rest[0] if rest else "", NORMAL if renders else CONTROL))
    if len(texts) > size:
        raise ConvertError(f"{path}: {len(texts)} tokens, config.json says {size}")
    for number in range(1, size - len(texts) + 1):
        texts.append(f"[PAD{number}]")
        scores.append(-1000.0)
        kinds.append(UNUSED)
    keys = ggml(
        model=("plamo2", "string"),
        pre=("default", "string"),
        tokens=(texts, "array[string]"),
        scores=(scores, "array[float32]"),
        token_type=(kinds, "array[int32]"),
        eot_token_id=(4, "uint32"),
        add_space_prefix=(False, "bool"),
    )
    for name, key in SPECIAL.items():
        text = content_of(settings.get(f"{name}_token"))
        if text is not None and name != "mask":
            if text not in texts:
                raise ConvertError(
                    f"{folder.path}/tokenizer_config.json: {name}_token: {text!r} is not a token"
                )
            keys |= ggml(**{f"{key}_token_id": (texts.index(text), "uint32")})
    return keys
