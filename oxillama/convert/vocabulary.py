"""The `tokenizer.ggml.*` keys of a folder's vocabulary.

A folder holds a SentencePiece model (`tokenizer.model`), a `tokenizer.json`, or both; the first is
taken where it is there, as its scores and types are exact. Where neither is there, Mistral's
`tekken.json` is read.
"""

from __future__ import annotations

import os
import re

import numpy as np

from oxillama.convert.chat_templates import template_keys
from oxillama.convert.family import Family, Hyper
from oxillama.convert.folder import ModelFolder
from oxillama.convert.sentencepiece import UNIGRAM, Pieces, read_sentencepiece
from oxillama.convert.special_tokens import (
    beginning_keys,
    end_keys,
    special_keys,
    suppressed_keys,
)
from oxillama.convert.tekken import TEKKEN, tekken_keys, tekken_template
from oxillama.convert.token_lines import QWEN, plamo_keys, qwen_keys, world_keys
from oxillama.convert.tokenizer_json import json_keys, text_keys
from oxillama.convert.tokens import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    KeyValues,
    ggml,
    is_controlling,
    unigram_keys,
)
from oxillama.errors import ConvertError

_ID = re.compile(r"[0-9]{1,18}")
_MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
# what vocabularies of two sizes mean in the family of Llama: Code Llama's with tokens to fill a
# middle, and that of small Granites
_GROWN: dict[int, KeyValues] = {
    32016: {"tokenizer.ggml.eot_token_id": (32010, "uint32")},
    49152: {"tokenizer.ggml.add_bos_token": (False, "bool")},
}


def vocabulary_keys(
    folder: ModelFolder, family: Family, hyper: Hyper, left_out: list[str] | None = None
) -> KeyValues:
    """Every key of the vocabulary with its GGUF type; empty where the folder has none.

    Tokens beyond the model's vocabulary, which it can neither read nor write, are added to
    left_out. ConvertError, naming the file, for what is malformed.
    """
    left_out = [] if left_out is None else left_out
    try:
        return _vocabulary_keys(folder, family, hyper, left_out)
    except ConvertError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConvertError(
            f"{folder.path}: the values of its vocabulary's files do not fit together: "
            f"{type(error).__name__}: {error}"
        ) from error


def _vocabulary_keys(
    folder: ModelFolder, family: Family, hyper: Hyper, left_out: list[str]
) -> KeyValues:
    settings = folder.json("tokenizer_config.json")
    if family.vocabulary == "rwkv":
        keys = world_keys(folder, hyper.integer("vocab_size", default=1 << 16))
        return keys | template_keys(folder, settings) if keys else {}
    size = hyper.integer("vocab_size")
    if family.vocabulary == "plamo":
        keys = plamo_keys(folder, settings, size)
        return keys | template_keys(folder, settings) if keys else {}
    # whatever has the name, so that a link to nothing is not taken for no vocabulary
    from_json = os.path.lexists(folder.path / "tokenizer.json")
    files = [name for name in _MODELS if os.path.lexists(folder.path / name)]
    if files and family.vocabulary != "gemma4":
        pieces = read_sentencepiece(folder.path / files[0])
        if pieces.model_type == UNIGRAM and family.vocabulary == "unigram":
            keys, ids = _unigram_pieces(folder, pieces, size, files[0])
        else:
            keys, ids = _sentencepiece(folder, pieces, settings, size, family, left_out)
    elif from_json:
        keys, ids = json_keys(folder, size, family)
    elif family.vocabulary == "qwen" and os.path.lexists(folder.path / QWEN):
        keys, ids = qwen_keys(folder, size)
    elif os.path.lexists(folder.path / TEKKEN):
        keys, ids = tekken_keys(folder, size)
    else:
        _check_absent(folder)
        return {}
    prefix = settings.get("add_prefix_space")
    if family.prefix_setting and isinstance(prefix, bool):
        keys["tokenizer.ggml.add_space_prefix"] = prefix, "bool"
    keys |= special_keys(folder, family, hyper, settings, ids) | suppressed_keys(folder)
    if family.prefix_setting:
        keys |= _GROWN.get(size, {})
    keys |= beginning_keys(folder, keys) | text_keys(folder, settings, keys)
    keys |= end_keys(folder, keys)
    template = template_keys(folder, settings)
    if not template and not files and not from_json and os.path.lexists(folder.path / TEKKEN):
        template = tekken_template(folder)
    return keys | template


def _check_absent(folder: ModelFolder) -> None:
    """ConvertError for a vocabulary in files of another kind: the folder has one, the model needs
    it.
    """
    for pattern in ("vocab.json", "vocab.txt", "tokenizer.model.*", "*tiktoken*"):
        for path in sorted(folder.path.glob(pattern)):
            raise ConvertError(
                f"{path}: a vocabulary of a kind that is not read, wanted tokenizer.json or "
                "tokenizer.model"
            )


# ---- SentencePiece -------------------------------------------------------------------------------


def _sentencepiece(
    folder: ModelFolder,
    pieces: Pieces,
    settings: dict,
    size: int,
    family: Family,
    left_out: list[str],
) -> tuple[KeyValues, dict[str, int]]:
    if len(pieces.texts) > size:
        raise ConvertError(
            f"{folder.path}: tokenizer.model has {len(pieces.texts)} tokens, config.json says "
            f"{size}"
        )
    more = size - len(pieces.texts)
    texts = pieces.texts + [f"[PAD{at}]" for at in range(len(pieces.texts), size)]
    scores, kinds = pieces.scores + [-10000.0] * more, pieces.kinds + [UNUSED] * more
    for at, (text, special) in _added(folder, settings).items():
        if at >= size:
            left_out.append(f"{at} {text!r}")
            continue
        texts[at] = text if special else text.replace("\u2581", " ")
        scores[at], kinds[at] = -1000.0, CONTROL if special else USER_DEFINED
    keys = ggml(
        model=("t5" if pieces.model_type == UNIGRAM and pieces.charsmap else "llama", "string"),
        pre=("default", "string"),
        tokens=(texts, "array[string]"),
        scores=([float(np.float32(score)) for score in scores], "array[float32]"),
        token_type=(kinds, "array[int32]"),
    )
    if family.add_space_prefix is not None:
        keys["tokenizer.ggml.add_space_prefix"] = family.add_space_prefix, "bool"
    return keys, {text: at for at, text in enumerate(texts)}


def _added(folder: ModelFolder, settings: dict) -> dict[int, tuple[str, bool]]:
    """Tokens in addition to the vocabulary: id -> (text, whether it is special)."""
    found: dict[int, tuple[str, bool]] = {}
    for text, at in folder.json("added_tokens.json").items():
        if not isinstance(at, int) or isinstance(at, bool) or at < 0:
            raise ConvertError(f"{folder.path}: added_tokens.json: {text!r} has the id {at!r}")
        found[at] = text, False
    label, decoder = f"{folder.path}/tokenizer_config.json", settings.get("added_tokens_decoder")
    if decoder is not None and not isinstance(decoder, dict):
        raise ConvertError(
            f"{label}: added_tokens_decoder: found {decoder!r:.80}, wanted an object of id and "
            "token"
        )
    for name, about in (decoder or {}).items():
        if not _ID.fullmatch(name) or not isinstance(about, dict) or "content" not in about:
            raise ConvertError(
                f"{label}: added_tokens_decoder: found {name!r:.40}: {about!r:.80}, wanted an id "
                "and its token's content"
            )
        text = str(about["content"])
        found[int(name)] = text, is_controlling(text, about.get("special"))
    return found


def _unigram_pieces(
    folder: ModelFolder, pieces: Pieces, size: int, name: str
) -> tuple[KeyValues, dict[str, int]]:
    """A unigram model. XLM-RoBERTa's numbers are its own: four special tokens, then the model's
    pieces from its third.
    """
    kinds = [NORMAL if kind == USER_DEFINED else kind for kind in pieces.kinds]
    entries = list(zip(pieces.texts, pieces.scores, kinds, strict=True))
    if name == "sentencepiece.bpe.model":
        first = [("<s>", 0.0, CONTROL), ("<pad>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
        entries = [*first, ("<unk>", 0.0, UNKNOWN), *entries[3:]]
    if len(entries) > size:
        raise ConvertError(
            f"{folder.path}: {name} has {len(entries)} tokens, config.json says {size}"
        )
    # numbers without a piece; in XLM-RoBERTa's own the padding is numbered before the shift
    behind = 1 if name == "sentencepiece.bpe.model" else 0
    while len(entries) < size:
        entries.append((f"[PAD{len(entries) - behind}]", -10000.0, UNUSED))
    for at, (text, _) in _added(folder, {}).items():
        if at >= size:
            raise ConvertError(f"{folder.path}: token {at} {text!r} is beyond the {size} tokens")
        entries[at] = text, -1000.0, USER_DEFINED
    return unigram_keys(
        entries, pieces.add_dummy_prefix, pieces.remove_extra_whitespaces, pieces.charsmap
    )
