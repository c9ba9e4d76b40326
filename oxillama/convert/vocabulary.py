"""The `tokenizer.ggml.*` keys of a folder's vocabulary.

A folder holds a SentencePiece model (`tokenizer.model`), a `tokenizer.json`, or both; the first is
taken where it is there, as its scores and types are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.convert.family import Family, Hyper
from oxillama.convert.folder import ModelFolder
from oxillama.convert.sentencepiece import UNIGRAM, Pieces, read_sentencepiece
from oxillama.errors import ConvertError
from oxillama.tokenizer.splits import SPLITS, WHOLE_WORDS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# names in configuration files -> `tokenizer.ggml.NAME_token_id`
_SPECIAL = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",  # the key is spelled so
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}
_IGNORED_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_EITHER_CASE = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = SPLITS["gpt-2"]

KeyValues = dict[str, tuple[Any, str]]


def vocabulary_keys(folder: ModelFolder, family: Family, hyper: Hyper) -> KeyValues:
    """Every key of the vocabulary with its GGUF type; empty where the folder has none."""
    settings = folder.json("tokenizer_config.json")
    size = hyper.integer("vocab_size")
    model = folder.path / "tokenizer.model"
    if model.is_file():
        keys, ids = _sentencepiece(folder, read_sentencepiece(model), settings, size, family)
        from_json = False
    elif (folder.path / "tokenizer.json").is_file():
        keys, ids = _from_json(folder, size)
        from_json = True
    else:
        return {}
    keys |= _special(folder, family, hyper, settings, ids, from_json=from_json)
    template = _template(folder, settings)
    if template is not None:
        keys["tokenizer.chat_template"] = template, "string"
    return keys


def _ggml(**values: tuple[Any, str]) -> KeyValues:
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


# ---- SentencePiece -------------------------------------------------------------------------------


def _sentencepiece(
    folder: ModelFolder, pieces: Pieces, settings: dict, size: int, family: Family
) -> tuple[KeyValues, dict[str, int]]:
    texts, scores, kinds = list(pieces.texts), list(pieces.scores), list(pieces.kinds)
    for at, text in sorted(_added(folder, settings).items()):
        if at < len(texts) and texts[at] == text[0]:
            if text[1] and kinds[at] == NORMAL:
                kinds[at] = CONTROL
            continue
        while len(texts) < at:
            _pad(texts, scores, kinds)
        if at >= size:
            raise ConvertError(
                f"{folder.path}: token {at} {text[0]!r} is beyond the vocabulary of {size}"
            )
        kind = CONTROL if text[1] else USER_DEFINED
        if at < len(texts):
            texts[at], scores[at], kinds[at] = text[0], -1000.0, kind
        else:
            texts.append(text[0])
            scores.append(-1000.0)
            kinds.append(kind)
    if len(texts) > size:
        raise ConvertError(
            f"{folder.path}: tokenizer.model has {len(texts)} tokens, config.json says {size}"
        )
    while len(texts) < size:
        _pad(texts, scores, kinds)
    keys = _ggml(
        model=("t5" if pieces.model_type == UNIGRAM and pieces.charsmap else "llama", "string"),
        pre=("default", "string"),
        tokens=(texts, "array[string]"),
        scores=([float(np.float32(score)) for score in scores], "array[float32]"),
        token_type=(kinds, "array[int32]"),
    )
    if family.add_space_prefix is not None:
        keys["tokenizer.ggml.add_space_prefix"] = family.add_space_prefix, "bool"
    return keys, {text: at for at, text in enumerate(texts)}


def _pad(texts: list[str], scores: list[float], kinds: list[int]) -> None:
    texts.append(f"[PAD{len(texts)}]")
    scores.append(-1000.0)
    kinds.append(UNUSED)


def _added(folder: ModelFolder, settings: dict) -> dict[int, tuple[str, bool]]:
    """Tokens that stand beside the vocabulary: id -> (text, whether it is special)."""
    found: dict[int, tuple[str, bool]] = {}
    for text, at in folder.json("added_tokens.json").items():
        if not isinstance(at, int) or isinstance(at, bool) or at < 0:
            raise ConvertError(f"{folder.path}: added_tokens.json: {text!r} has the id {at!r}")
        found[at] = text, False
    for name, about in (settings.get("added_tokens_decoder") or {}).items():
        if not name.isdigit() or not isinstance(about, dict) or "content" not in about:
            raise ConvertError(f"{folder.path}: tokenizer_config.json: added token {name!r:.40}")
        found[int(name)] = str(about["content"]), bool(about.get("special"))
    return found


# ---- tokenizer.json ------------------------------------------------------------------------------


def _from_json(folder: ModelFolder, size: int) -> tuple[KeyValues, dict[str, int]]:
    tokenizer = folder.json("tokenizer.json")
    label = f"{folder.path}/tokenizer.json"
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else model
        raise ConvertError(f"{label}: model: found {kind!r:.40}, wanted BPE")
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not all(
        isinstance(at, int) and not isinstance(at, bool) and at >= 0 for at in vocabulary.values()
    ):
        raise ConvertError(f"{label}: model.vocab: wanted an object of token and id")
    texts = {at: text for text, at in vocabulary.items()}
    kinds = dict.fromkeys(texts, NORMAL)
    for added in tokenizer.get("added_tokens") or []:
        at, text = added.get("id"), added.get("content")
        if not isinstance(at, int) or not isinstance(text, str):
            raise ConvertError(f"{label}: added_tokens: found {added!r:.80}")
        texts[at], kinds[at] = text, CONTROL if added.get("special") else USER_DEFINED
    if texts and max(texts) >= size:
        raise ConvertError(f"{label}: token {max(texts)} is beyond the vocabulary of {size}")
    for at in range(size):
        if at not in texts:
            texts[at], kinds[at] = f"[PAD{at}]", UNUSED
    merges = [_merge(label, one) for one in model.get("merges") or []]
    ordered = [texts[at] for at in range(size)]
    if model.get("byte_fallback") and _is_metaspace(tokenizer):
        return _byte_fallback(label, tokenizer, ordered, kinds, merges)
    keys = _ggml(
        model=("gpt2", "string"),
        pre=(_split(label, tokenizer), "string"),
        tokens=(ordered, "array[string]"),
        token_type=([kinds[at] for at in range(size)], "array[int32]"),
        merges=([" ".join(pair) for pair in merges], "array[string]"),
    )
    return keys, {text: at for at, text in texts.items()}


def _merge(label: str, merge: object) -> tuple[str, str]:
    """A pair of tokens; a space within one is written as byte-level vocabularies write it."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(p, str) for p in parts):
        raise ConvertError(f"{label}: model.merges: found {merge!r:.60}, wanted pairs of tokens")
    return parts[0].replace(" ", "Ġ"), parts[1].replace(" ", "Ġ")


def _is_metaspace(tokenizer: dict) -> bool:
    """Whether words begin with U+2581, as SentencePiece writes them."""
    parts = _parts(tokenizer.get("normalizer"), "normalizers")
    parts += _parts(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return any(
        one.get("type") == "Metaspace"
        or (one.get("type") in ("Replace", "Prepend") and "▁" in str(one))
        for one in parts
    )


def _byte_fallback(
    label: str, tokenizer: dict, texts: list[str], kinds: dict[int, int], merges: list
) -> tuple[KeyValues, dict[str, int]]:
    """A SentencePiece BPE that was saved as tokenizer.json: a score is a merge's rank, negative."""
    ids = {text: at for at, text in enumerate(texts)}
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    for at, text in enumerate(texts):
        if kinds[at] == NORMAL and len(text) == 6 and text.startswith("<0x") and text[-1] == ">":
            kinds[at] = BYTE
        elif kinds[at] in (NORMAL, CONTROL) and text == tokenizer["model"].get("unk_token"):
            kinds[at] = UNKNOWN
    scores = [float(-ranks[text]) if text in ranks else -float(len(merges)) for text in texts]
    prepends = any(
        one.get("type") == "Prepend"
        or (one.get("type") == "Metaspace" and one.get("prepend_scheme", "always") != "never")
        for one in _parts(tokenizer.get("normalizer"), "normalizers")
        + _parts(tokenizer.get("pre_tokenizer"), "pretokenizers")
    )
    keys = _ggml(
        model=("llama", "string"),
        pre=("default", "string"),
        tokens=(texts, "array[string]"),
        scores=(scores, "array[float32]"),
        token_type=([kinds[at] for at in range(len(texts))], "array[int32]"),
        add_space_prefix=(prepends, "bool"),
    )
    return keys, ids


def _parts(step: object, name: str) -> list[dict]:
    """The steps of a normaliser or pre-tokeniser, those of a sequence one by one."""
    if not isinstance(step, dict):
        return []
    if step.get("type") == "Sequence":
        return [part for one in step.get(name) or [] for part in _parts(one, name)]
    return [step]


def _split(label: str, tokenizer: dict) -> str:
    """The `tokenizer.ggml.pre` that cuts text as the file does; ConvertError where none does."""
    normalizers = _parts(tokenizer.get("normalizer"), "normalizers")
    if any(one.get("type") not in ("NFC",) for one in normalizers):
        raise ConvertError(
            f"{label}: normalizer: found {normalizers!r:.120}, GGUF byte-level vocabularies have none"
        )
    expressions: list[str] = []
    for one in _parts(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        kind = one.get("type")
        if kind == "Split" and isinstance(one.get("pattern"), dict):
            pattern = one["pattern"].get("Regex")
            if not isinstance(pattern, str) or one.get("behavior") not in ("Isolated", "Removed"):
                raise ConvertError(f"{label}: pre_tokenizer: found {one!r:.120}")
            expressions.append(pattern.replace(_IGNORED_CASE, _EITHER_CASE))
        elif kind == "Digits":
            expressions.append(r"\p{N}" if one.get("individual_digits") else r"\p{N}+")
        elif kind == "ByteLevel":
            if one.get("add_prefix_space"):
                raise ConvertError(f"{label}: pre_tokenizer: add_prefix_space cannot be kept")
            if one.get("use_regex", True):
                expressions += _GPT2
        else:
            raise ConvertError(f"{label}: pre_tokenizer: found {one!r:.120}, wanted a known one")
    whole = bool(tokenizer["model"].get("ignore_merges"))
    equal = [
        name
        for name, split in SPLITS.items()
        if split == tuple(expressions) and (name in WHOLE_WORDS) is whole
    ]
    if not equal:
        raise ConvertError(f"{label}: pre_tokenizer: no known split: {expressions!r:.300}")
    return "llama-bpe" if "llama-bpe" in equal else equal[0]


# ---- special tokens and templates ----------------------------------------------------------------


def _special(
    folder: ModelFolder,
    family: Family,
    hyper: Hyper,
    settings: dict,
    ids: dict[str, int],
    *,
    from_json: bool,
) -> KeyValues:
    found: dict[str, int] = {}
    if from_json:
        for name in _SPECIAL:
            token = settings.get(f"{name}_token")
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                if text not in ids:
                    raise ConvertError(
                        f"{folder.path}/tokenizer_config.json: {name}_token: {text!r} is no token"
                    )
                found[_SPECIAL[name]] = ids[text]
    for name, key in _SPECIAL.items():
        value = hyper.get(f"{name}_token_id")
        value = value[0] if isinstance(value, list) and value else value
        if key not in found and isinstance(value, int):
            if not 0 <= value < len(ids):
                raise ConvertError(f"{hyper.label}: {name}_token_id: found {value}, of {len(ids)}")
            found[key] = value
    switches: dict[str, bool] = {}
    for name in ("bos", "eos", "sep"):
        value = settings.get(f"add_{name}_token")
        if isinstance(value, bool):
            switches[f"add_{name}_token"] = value
    for key, value in family.special(hyper, ids).items():
        if isinstance(value, bool):
            switches[f"{key}_token"] = value
        elif value < len(ids) and (key.removesuffix("?") not in found or key[-1] != "?"):
            found[key.removesuffix("?")] = value
    keys = _ggml(**{f"{key}_token_id": (value, "uint32") for key, value in found.items()})
    return keys | _ggml(**{key: (value, "bool") for key, value in switches.items()})


def _template(folder: ModelFolder, settings: dict) -> str | None:
    """The chat template: a file of its own, or tokenizer_config.json's (the one named default)."""
    path = folder.path / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConvertError(f"{path}: cannot be read: {error}") from None
    template = settings.get("chat_template", folder.json("chat_template.json").get("chat_template"))
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default", next(iter(named.values()), None))
    if template is not None and not isinstance(template, str):
        raise ConvertError(f"{folder.path}: chat_template: found {type(template).__name__}")
    return template
