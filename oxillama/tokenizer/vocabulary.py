"""The vocabulary a file describes, checked once at the door: tokens, their kinds, special ids and what to add around a text.

Sources: the GGUF specification's `tokenizer.ggml.*` keys; the numbers of token kinds are those of SentencePiece.
"""
from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.errors import TokenizerError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
KINDS = (NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE)
ABSENT = (1 << 32) - 1      # how files write "this vocabulary has no such token"

SPECIAL_KEYS = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "sep": "seperator_token_id", "pad": "padding_token_id",
                "cls": "cls_token_id", "mask": "mask_token_id", "eot": "eot_token_id", "eom": "eom_token_id"}

# Control tokens that end a turn or a text in published models, by the text they are written as.
END_NAMES = frozenset({"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "< EOT >",
                       "_<EOT>", "<|eot|>", "<|eom|>", "[EOT]", "[EOS]", "<|return|>", "<|call|>", "<|END_OF_TURN_TOKEN|>", "<|end_of_turn|>",
                       "<|endofturn|>", "<｜end▁of▁sentence｜>", "<|end_of_sentence|>", "<turn|>", "</s>", "<eos>", "<|eos|>", "<end_of_utterance>"})


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, and what the file says about them; `special` maps names of `SPECIAL_KEYS` to ids."""

    model: str
    pre: str
    tokens: Sequence[str]
    kinds: np.ndarray
    scores: np.ndarray | None
    merges: Sequence[str]
    special: Mapping[str, int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool

    def __len__(self) -> int:
        return len(self.tokens)

    def end_ids(self) -> frozenset[int]:
        """Every id that ends a generation: eos, eot, eom, and control tokens named like them."""
        named = {i for i in np.flatnonzero(self.kinds == CONTROL).tolist() if self.tokens[i] in END_NAMES}
        return frozenset(named | {self.special[name] for name in ("eos", "eot", "eom") if name in self.special})


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of `tokenizer.ggml.*`; raises TokenizerError naming the key, the value found and the value wanted."""
    model = _value(metadata, "model", str)
    tokens = _list(metadata, "tokens", str)
    n = len(tokens)
    kinds = _array(metadata, "token_type", n)
    kinds = np.full(n, NORMAL, np.int32) if kinds is None else kinds.astype(np.int32)
    wrong = np.flatnonzero(~np.isin(kinds, KINDS))
    if len(wrong):
        raise TokenizerError(f"tokenizer.ggml.token_type: token {wrong[0]} has kind {kinds[wrong[0]]}, wanted 1 to 6")
    scores = _array(metadata, "scores", n)
    if scores is not None and not np.isfinite(scores).all():
        raise TokenizerError(f"tokenizer.ggml.scores: token {np.flatnonzero(~np.isfinite(scores))[0]} has no finite score")
    merges = _list(metadata, "merges", str) if "tokenizer.ggml.merges" in metadata else []
    pre = _value(metadata, "pre", str, "default")
    special = {}
    for name, key in SPECIAL_KEYS.items():
        found = _value(metadata, key, int, None)
        if found is not None and found != ABSENT:
            if 0 <= found < n:
                special[name] = found
            else:                       # such files exist (a vocabulary was cut): the model runs, and its user is told
                warnings.warn(f"tokenizer.ggml.{key}: found {found}, wanted an id below {n}; taken as no such token", stacklevel=4)
    spm = model == "llama"
    if spm:
        for name, default in (("bos", 1), ("eos", 2), ("unk", 0)):        # the ids SentencePiece gives when the file says nothing
            if name not in special and SPECIAL_KEYS[name] not in _present(metadata) and default < n and kinds[default] in (CONTROL, UNKNOWN):
                special[name] = default
    bos_by_default = spm or pre in ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken", "chameleon", "pixtral", "lfm2")
    add_bos = _value(metadata, "add_bos_token", bool, bos_by_default)
    add_eos = _value(metadata, "add_eos_token", bool, False)
    for flag, name in ((add_bos, "bos"), (add_eos, "eos")):
        if flag and name not in special and f"add_{name}_token" in _present(metadata):
            raise TokenizerError(f"tokenizer.ggml.add_{name}_token: true, but the file names no {name} token")
    return Vocabulary(model, pre, tokens, kinds, scores, merges, special, add_bos and "bos" in special, add_eos and "eos" in special,
                      _value(metadata, "add_space_prefix", bool, spm))


def _present(metadata: Mapping[str, Any]) -> set[str]:
    return {key.removeprefix("tokenizer.ggml.") for key in metadata if key.startswith("tokenizer.ggml.")}


def _value(metadata: Mapping[str, Any], key: str, kind: type, *default: Any) -> Any:
    name = f"tokenizer.ggml.{key}"
    if name not in metadata:
        if default:
            return default[0]
        raise TokenizerError(f"{name}: missing, the file has no vocabulary")
    found = metadata[name]
    if isinstance(found, bool) != (kind is bool) or not isinstance(found, kind):
        raise TokenizerError(f"{name}: found {str(found)[:60]!r}, wanted {kind.__name__}")
    return found


def _list(metadata: Mapping[str, Any], key: str, kind: type) -> Sequence[Any]:
    found = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(found, (list, tuple)) or not found or not isinstance(found[0], kind):
        what = "nothing" if found is None else type(found).__name__
        raise TokenizerError(f"tokenizer.ggml.{key}: found {what}, wanted an array of strings with at least one")
    return found


def _array(metadata: Mapping[str, Any], key: str, count: int) -> np.ndarray | None:
    name = f"tokenizer.ggml.{key}"
    if name not in metadata:
        return None
    found = np.asarray(metadata[name])
    if found.ndim != 1 or found.dtype.kind not in "iuf" or len(found) != count:
        raise TokenizerError(f"{name}: found {found.dtype} of shape {found.shape}, wanted one number for each of {count} tokens")
    return found
