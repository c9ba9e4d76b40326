"""What the keys of several kinds of vocabularies are made of: kinds of tokens, special tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.convert.folder import read_whole
from oxillama.errors import ConvertError

# what a token is (`tokenizer.ggml.token_type`)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# names in configuration files -> `tokenizer.ggml.NAME_token_id`
SPECIAL = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",  # the key is spelled so
    "pad": "padding",
    "mask": "mask",
}
# added tokens that control a model although their folders do not call them special
_CONTROLLING = re.compile(
    r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>", re.DOTALL
)
# key -> (value, type)
KeyValues = dict[str, tuple[Any, str]]


def ggml(**values: tuple[Any, str]) -> KeyValues:
    """Keys of the vocabulary by their last names."""
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


def is_controlling(text: str, special: object) -> bool:
    """Whether an added token is a control token; special: what its folder says."""
    return bool(special) or _CONTROLLING.fullmatch(text) is not None


def added_tokens(label: str, tokenizer: dict) -> dict[str, tuple[int, bool]]:
    """Tokens in addition to the vocabulary: text -> (id, whether it is special)."""
    found: dict[str, tuple[int, bool]] = {}
    for added in tokenizer.get("added_tokens") or []:
        at, text = (added.get("id"), added.get("content")) if isinstance(added, dict) else (0, 0)
        if not isinstance(at, int) or isinstance(at, bool) or at < 0 or not isinstance(text, str):
            raise ConvertError(f"{label}: added_tokens: found {added!r:.80}")
        found[text] = at, bool(added.get("special"))
    return found


def parts_of(step: object, name: str) -> list[dict]:
    """The steps of a normaliser or pre-tokeniser, those of a sequence one by one."""
    if not isinstance(step, dict):
        return []
    if step.get("type") == "Sequence":
        return [part for one in step.get(name) or [] for part in parts_of(one, name)]
    return [step]


def content_of(token: object) -> str | None:
    """The text of a token that a file has as text or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def text_of(path: Path) -> str | None:
    """The text of a file with line feeds alone, None where there is none."""
    held = read_whole(path)
    try:
        text = None if held is None else held.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConvertError(f"{path}: found no UTF-8: {error}") from None
    return None if text is None else text.replace("\r\n", "\n").replace("\r", "\n")


def unigram_keys(
    entries: list[tuple[str, float, int]], prefix: bool, trim: bool, charsmap: bytes
) -> tuple[KeyValues, dict[str, int]]:
    """(the keys of a unigram model, its ids by text) of (text, score, kind) of every token."""
    keys = ggml(
        model=("t5", "string"),
        pre=("default", "string"),
        tokens=([text for text, _, _ in entries], "array[string]"),
        scores=([float(np.float32(score)) for _, score, _ in entries], "array[float32]"),
        token_type=([kind for _, _, kind in entries], "array[int32]"),
        add_space_prefix=(prefix, "bool"),
        remove_extra_whitespaces=(trim, "bool"),
    )
    if charsmap:
        keys |= ggml(precompiled_charsmap=(list(charsmap), "array[uint8]"))
    return keys, {text: at for at, (text, _, _) in enumerate(entries)}
