"""The `tokenizer.ggml.*` keys of a folder's vocabulary.

A folder holds a SentencePiece model (`tokenizer.model`), a `tokenizer.json`, or both; the first is
taken where it is there, as its scores and types are exact.
"""

from __future__ import annotations

import ast
import json
import os
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.convert.family import Family, Hyper
from oxillama.convert.folder import ModelFolder, read_whole
from oxillama.convert.sentencepiece import UNIGRAM, Pieces, read_sentencepiece
from oxillama.errors import ConvertError
from oxillama.tokenizer.bpe import BYTE_TO_CHAR
from oxillama.tokenizer.splits import SPLITS, WHOLE_WORDS
from oxillama.tokenizer.vocabulary import CONTROL_END_NAMES, END_NAMES

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
# names in configuration files -> `tokenizer.ggml.NAME_token_id`
_SPECIAL = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",  # the key is spelled so
    "pad": "padding",
    "mask": "mask",
}
_ENDS = ("eos", "eot", "eom")  # of a text, a turn and a message
_IGNORED_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_EITHER_CASE = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_CODE_POINT = re.compile(r"\\u([0-9A-Fa-f]{4})")
# Gemma 4's tokens that its replies are read by
_RENDERED = frozenset(
    ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>")
    + ("<tool_response|>", '<|"|>')
)
_GPT2 = SPLITS["gpt-2"]
_ID = re.compile(r"[0-9]{1,18}")
# added tokens that control a model although their folders do not call them special
_CONTROLLING = re.compile(
    r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>", re.DOTALL
)

# what the folders of RWKV, Qwen and PLaMo call their vocabularies, a token a line
_WORLD, _QWEN, _PLAMO = "rwkv_vocab_v20230424.txt", "qwen.tiktoken", "tokenizer.jsonl"
# Qwen's special tokens, which follow those of its file
_QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_EXTRAS = 205
_MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")

KeyValues = dict[str, tuple[Any, str]]
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
        return _world(folder, family, settings, hyper.integer("vocab_size", default=1 << 16))
    size = hyper.integer("vocab_size")
    if family.vocabulary == "plamo":
        keys = _plamo(folder, settings, size)
        return keys | _templates(folder, settings, family) if keys else {}
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
        keys, ids = _from_json(folder, size, family)
    elif family.vocabulary == "qwen" and os.path.lexists(folder.path / _QWEN):
        keys, ids = _qwen(folder, size)
    else:
        _check_absent(folder)
        return {}
    prefix = settings.get("add_prefix_space")
    if family.prefix_setting and isinstance(prefix, bool):
        keys["tokenizer.ggml.add_space_prefix"] = prefix, "bool"
    keys |= _special(folder, family, hyper, settings, ids) | _suppressed(folder)
    if family.prefix_setting:
        keys |= _GROWN.get(size, {})
    keys |= _further_ends(folder, keys)
    return keys | _templates(folder, settings, family)


def _check_absent(folder: ModelFolder) -> None:
    """ConvertError for a vocabulary in files of another kind: the folder has one, the model needs
    it.
    """
    for pattern in ("vocab.json", "vocab.txt", "tekken.json", "tokenizer.model.*", "*tiktoken*"):
        for path in sorted(folder.path.glob(pattern)):
            raise ConvertError(
                f"{path}: a vocabulary of a kind that is not read, wanted tokenizer.json or "
                "tokenizer.model"
            )


def _world(folder: ModelFolder, family: Family, settings: dict, size: int) -> KeyValues:
    """RWKV's vocabulary: lines of a number, a Python literal and its bytes; empty without the file.

    Token 0 begins and ends texts and has no line. Two line breaks end a turn (token 261).
    """
    path = folder.path / _WORLD
    text = _text(path)
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
    keys = _ggml(
        model=("rwkv", "string"),
        tokens=(tokens, "array[string]"),
        token_type=(kinds, "array[int32]"),
        bos_token_id=(0, "uint32"),
        eos_token_id=(0, "uint32"),
        eot_token_id=(261, "uint32"),
    )
    return (
        keys
        | {"tokenizer.chat_template": ("rwkv-world", "string")}
        | _templates(folder, settings, family)
    )


def _qwen(folder: ModelFolder, size: int) -> tuple[KeyValues, dict[str, int]]:
    """Qwen's byte strings by rank (lines of base64 and a number), and its special tokens.

    A merge is what the last step of a token's own merging, by lower ranks alone, joins.
    """
    path = folder.path / _QWEN
    ranks: dict[bytes, int] = {}
    for number, line in enumerate((_text(path) or "").splitlines(), 1):
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
    texts = [_spelled(token) for token in ordered] + special
    kinds = [NORMAL] * len(ordered) + [CONTROL] * len(special)
    kinds += [UNUSED] * (size - len(texts))
    texts += [f"[PAD{at}]" for at in range(len(texts), size)]
    merges = []
    for token in ordered:
        if len(token) > 1:
            parts = _merged(ranks, token, ranks[token])
            if len(parts) != 2:
                raise ConvertError(f"{path}: {token!r} is not made of two tokens before it")
            merges.append(" ".join(map(_spelled, parts)))
    keys = _ggml(
        model=("gpt2", "string"),
        pre=("qwen2", "string"),
        tokens=(texts, "array[string]"),
        token_type=(kinds, "array[int32]"),
        merges=(merges, "array[string]"),
    )
    return keys, {text: at for at, text in enumerate(texts)}


def _spelled(token: bytes) -> str:
    """Bytes as byte-level vocabularies write them."""
    return "".join(BYTE_TO_CHAR[byte] for byte in token)


def _merged(ranks: dict[bytes, int], token: bytes, below: int) -> list[bytes]:
    """The parts of a token when pairs are joined by ranks below a number, lowest first."""
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 1:
        pairs = [ranks.get(a + b, below) for a, b in zip(parts, parts[1:], strict=False)]
        best = min(pairs)
        if best >= below:
            break
        at = pairs.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _plamo(folder: ModelFolder, settings: dict, size: int) -> KeyValues:
    """PLaMo's tokens: lines of [text, score, kind, ...]; empty without the file. Token 4 ends a
    turn.
    """
    path = folder.path / _PLAMO
    lines = _text(path)
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
    keys = _ggml(
        model=("plamo2", "string"),
        pre=("default", "string"),
        tokens=(texts, "array[string]"),
        scores=(scores, "array[float32]"),
        token_type=(kinds, "array[int32]"),
        eot_token_id=(4, "uint32"),
        add_space_prefix=(False, "bool"),
    )
    for name, key in _SPECIAL.items():
        text = _content(settings.get(f"{name}_token"))
        if text is not None and name != "mask":
            if text not in texts:
                raise ConvertError(
                    f"{folder.path}/tokenizer_config.json: {name}_token: {text!r} is not a token"
                )
            keys |= _ggml(**{f"{key}_token_id": (texts.index(text), "uint32")})
    return keys


def _ggml(**values: tuple[Any, str]) -> KeyValues:
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()}


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
        found[int(name)] = text, _is_controlling(text, about.get("special"))
    return found


def _is_controlling(text: str, special: object) -> bool:
    return bool(special) or _CONTROLLING.fullmatch(text) is not None


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
    return _unigram_keys(
        entries, pieces.add_dummy_prefix, pieces.remove_extra_whitespaces, pieces.charsmap
    )


def _unigram_keys(
    entries: list[tuple[str, float, int]], prefix: bool, trim: bool, charsmap: bytes
) -> tuple[KeyValues, dict[str, int]]:
    keys = _ggml(
        model=("t5", "string"),
        pre=("default", "string"),
        tokens=([text for text, _, _ in entries], "array[string]"),
        scores=([float(np.float32(score)) for _, score, _ in entries], "array[float32]"),
        token_type=([kind for _, _, kind in entries], "array[int32]"),
        add_space_prefix=(prefix, "bool"),
        remove_extra_whitespaces=(trim, "bool"),
    )
    if charsmap:
        keys |= _ggml(precompiled_charsmap=(list(charsmap), "array[uint8]"))
    return keys, {text: at for at, (text, _, _) in enumerate(entries)}


# ---- tokenizer.json ------------------------------------------------------------------------------


def _from_json(folder: ModelFolder, size: int, family: Family) -> tuple[KeyValues, dict[str, int]]:
    tokenizer = folder.json("tokenizer.json")
    label = f"{folder.path}/tokenizer.json"
    model = tokenizer.get("model")
    kind = model.get("type") if isinstance(model, dict) else model
    if kind == "Unigram" and family.vocabulary == "unigram":
        return _unigram_json(label, tokenizer, folder.json("tokenizer_config.json"), size)
    if kind not in ("BPE", "WordPiece"):
        raise ConvertError(f"{label}: model: found {kind!r:.40}, wanted BPE or WordPiece")
    assert isinstance(model, dict)  # else there is no kind
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, dict) or not all(
        isinstance(at, int) and not isinstance(at, bool) and at >= 0 for at in vocabulary.values()
    ):
        raise ConvertError(f"{label}: model.vocab: wanted an object of token and id")
    texts: dict[int, str] = {}
    for text, at in vocabulary.items():
        if texts.setdefault(at, text) != text:
            raise ConvertError(
                f"{label}: model.vocab: found {texts[at]!r:.40} and {text!r:.40} with the id "
                f"{at!r:.40}, wanted one token for each"
            )
    kinds = dict.fromkeys(texts, NORMAL)
    named = {text: at for at, text in texts.items()}
    for text in _named_specials(folder.json("tokenizer_config.json")):
        if text in named:
            kinds[named[text]] = CONTROL
    for text, (at, special) in _json_added(label, tokenizer).items():
        special = _is_controlling(text, special)
        texts[at] = text if special or kind == "WordPiece" else text.replace("\u2581", " ")
        kinds[at] = CONTROL if special else USER_DEFINED
    if texts and max(texts) >= size:
        raise ConvertError(f"{label}: token {max(texts)!r:.40} is beyond the vocabulary of {size}")
    for at in range(size):
        if at not in texts:
            texts[at], kinds[at] = f"[PAD{at}]", UNUSED
    ordered = [texts[at] for at in range(size)]
    if kind == "WordPiece":
        return _wordpiece(label, tokenizer, ordered, kinds)
    listed = model.get("merges") or []
    if kind == "BPE" and not isinstance(listed, list):
        raise ConvertError(f"{label}: model.merges: found {listed!r:.60}, wanted pairs of tokens")
    merges = [_merge(label, one) for one in listed]
    if family.vocabulary == "gemma4":
        return _gemma4(ordered, kinds, merges, folder.json("tokenizer_config.json"))
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


def _json_added(label: str, tokenizer: dict) -> dict[str, tuple[int, bool]]:
    """Tokens in addition to the vocabulary: text -> (id, whether it is special)."""
    found: dict[str, tuple[int, bool]] = {}
    for added in tokenizer.get("added_tokens") or []:
        at, text = (added.get("id"), added.get("content")) if isinstance(added, dict) else (0, 0)
        if not isinstance(at, int) or isinstance(at, bool) or at < 0 or not isinstance(text, str):
            raise ConvertError(f"{label}: added_tokens: found {added!r:.80}")
        found[text] = at, bool(added.get("special"))
    return found


def _named_specials(settings: dict) -> list[str]:
    """The special tokens that a tokenizer_config.json names."""
    found = [_content(settings.get(f"{name}_token")) for name in (*_SPECIAL, "cls")]
    return [text for text in found if text is not None]


def _wordpiece(
    label: str, tokenizer: dict, texts: list[str], kinds: dict[int, int]
) -> tuple[KeyValues, dict[str, int]]:
    """BERT's pieces: a word's first begins with U+2581, where the folder marks the others (##)."""
    model = tokenizer["model"]
    normalizers = _parts(tokenizer.get("normalizer"), "normalizers")
    cuts = [one.get("type") for one in _parts(tokenizer.get("pre_tokenizer"), "pretokenizers")]
    if (
        model.get("continuing_subword_prefix", "##") != "##"
        or [one.get("type") for one in normalizers] != ["BertNormalizer"]
        or cuts != ["BertPreTokenizer"]
    ):
        raise ConvertError(
            f"{label}: WordPiece with normalizer {normalizers!r:.120} and pre_tokenizer {cuts}, "
            "wanted those of BERT"
        )
    ids = {text: at for at, text in enumerate(texts)}
    written = [
        text
        if kinds[at] == CONTROL
        else text.removeprefix("##")
        if text.startswith("##")
        else f"\u2581{text}"
        for at, text in enumerate(texts)
    ]
    keys = _ggml(
        model=("bert", "string"),
        pre=("bert-bge", "string"),
        tokens=(written, "array[string]"),
        token_type=([kinds[at] for at in range(len(texts))], "array[int32]"),
    )
    for name in ("lowercase", "strip_accents"):
        value = normalizers[0].get(name)
        if isinstance(value, bool):
            keys[f"tokenizer.ggml.normalizer.{name}"] = value, "bool"
    return keys, ids


def _unigram_json(
    label: str, tokenizer: dict, settings: dict, size: int
) -> tuple[KeyValues, dict[str, int]]:
    """A unigram model that was saved as tokenizer.json."""
    model = tokenizer["model"]
    listed = model.get("vocab")
    if not isinstance(listed, list) or not all(
        isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in listed
    ):
        raise ConvertError(f"{label}: model.vocab: wanted a list of token and score")
    unknown = model.get("unk_id")
    entries = [
        (text, float(score), UNKNOWN if at == unknown else NORMAL)
        for at, (text, score) in enumerate(listed)
    ]
    for added in tokenizer.get("added_tokens") or []:
        at, text = added.get("id"), added.get("content")
        if not isinstance(at, int) or not isinstance(text, str) or not 0 <= at < size:
            raise ConvertError(f"{label}: added_tokens: found {added!r:.80}")
        while len(entries) <= at:
            entries.append((f"[PAD{len(entries)}]", -10000.0, UNUSED))
        if at != unknown:
            kind = CONTROL if added.get("special") else USER_DEFINED
            entries[at] = text, entries[at][1], kind
    if len(entries) > size:
        raise ConvertError(f"{label}: {len(entries)} tokens, config.json says {size}")
    while len(entries) < size:
        entries.append((f"[PAD{len(entries)}]", -10000.0, UNUSED))
    spaces = [
        one
        for one in _parts(tokenizer.get("pre_tokenizer"), "pretokenizers")
        if one.get("type") == "Metaspace"
    ]
    prefix = not spaces or spaces[0].get("prepend_scheme", "always") != "never"
    maps = [
        one.get("precompiled_charsmap")
        for one in _parts(tokenizer.get("normalizer"), "normalizers")
        if one.get("type") == "Precompiled"
    ]
    try:
        charsmap = b64decode(maps[0] or "", validate=True) if maps else b""
    except (ValueError, TypeError) as error:
        raise ConvertError(f"{label}: precompiled_charsmap: found no base64: {error}") from None
    trim = bool(settings.get("clean_up_tokenization_spaces", False))
    return _unigram_keys(entries, prefix, trim, charsmap)


def _gemma4(
    texts: list[str], kinds: dict[int, int], merges: list, settings: dict
) -> tuple[KeyValues, dict[str, int]]:
    """Gemma 4: merges over SentencePiece's spelling, bytes as a fallback; scores say nothing."""
    named = {_content(settings.get(f"{name}_token")) for name in (*_SPECIAL, "cls")}
    for at, text in enumerate(texts):
        if kinds[at] == NORMAL and len(text) == 6 and text.startswith("<0x") and text[-1] == ">":
            kinds[at] = BYTE
        elif kinds[at] == NORMAL and text in named:
            kinds[at] = CONTROL
        elif text in _RENDERED:
            kinds[at] = USER_DEFINED
    keys = _ggml(
        model=("gemma4", "string"),
        tokens=(texts, "array[string]"),
        scores=([-1000.0] * len(texts), "array[float32]"),
        token_type=([kinds[at] for at in range(len(texts))], "array[int32]"),
        merges=([" ".join(pair) for pair in merges], "array[string]"),
        add_space_prefix=(False, "bool"),
    )
    return keys, {text: at for at, text in enumerate(texts)}


def _merge(label: str, merge: object) -> tuple[str, str]:
    """A pair of tokens; a space within one is written as byte-level vocabularies write it."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if (
        not isinstance(parts, list)
        or len(parts) != 2
        or not all(isinstance(part, str) and part for part in parts)
    ):
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
            f"{label}: normalizer: found {normalizers!r:.120}, GGUF byte-level vocabularies have "
            "none"
        )
    expressions: list[str] = []
    for one in _parts(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        kind = one.get("type")
        if kind == "Split" and isinstance(one.get("pattern"), dict):
            pattern = one["pattern"].get("Regex")
            if not isinstance(pattern, str) or one.get("behavior") not in ("Isolated", "Removed"):
                raise ConvertError(f"{label}: pre_tokenizer: found {one!r:.120}")
            pattern = _CODE_POINT.sub(lambda code: chr(int(code[1], 16)), pattern)
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
    folder: ModelFolder, family: Family, hyper: Hyper, settings: dict, ids: dict[str, int]
) -> KeyValues:
    found: dict[str, int] = {}
    switches: dict[str, bool] = {}
    tokenizer = folder.json("tokenizer.json")
    if tokenizer:
        settings, switches = _processed(tokenizer, settings)
        added = _json_added(f"{folder.path}/tokenizer.json", tokenizer)
        for name, key in (*_SPECIAL.items(), ("eot", "eot"), ("eom", "eom")):
            at, _ = added.get(_content(settings.get(f"{name}_token")) or "", (len(ids), False))
            if at < len(ids):
                found[key] = at
    for name, key in _SPECIAL.items():
        value = hyper.get(f"{name}_token_id")
        value = value[0] if isinstance(value, list) and value else value
        # none is also said by a negative number, or one beyond the vocabulary
        if key not in found and isinstance(value, int) and 0 <= value < len(ids):
            found[key] = value
    for name in ("bos", "eos", "sep"):
        value = settings.get(f"add_{name}_token")
        if isinstance(value, bool):
            switches.setdefault(f"add_{name}_token", value)
    for key, value in family.special(hyper, ids).items():
        if isinstance(value, bool):
            name = f"{key.removesuffix('?')}_token"
            switches[name] = switches.get(name, value) if key[-1] == "?" else value
        elif value < len(ids) and (key.removesuffix("?") not in found or key[-1] != "?"):
            found[key.removesuffix("?")] = value
    keys = _ggml(**{f"{key}_token_id": (value, "uint32") for key, value in found.items()})
    return keys | _ggml(**{key: (value, "bool") for key, value in switches.items()})


def _further_ends(folder: ModelFolder, keys: KeyValues) -> KeyValues:
    """Tokens that end a text by generation_config.json and that neither the keys nor their names
    say: ends of a turn and of a message, as far as a file has none. ConvertError for more.
    """
    label = f"{folder.path / 'generation_config.json'}"
    said = folder.json("generation_config.json").get("eos_token_id")
    ends = said if isinstance(said, list) else [said]
    texts, kinds = keys["tokenizer.ggml.tokens"][0], keys["tokenizer.ggml.token_type"][0]
    named = {keys.get(f"tokenizer.ggml.{name}_token_id", (None,))[0] for name in _ENDS}
    left = []
    for at in ends:
        # none is also said by a negative number, or one beyond the vocabulary
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < len(texts):
            continue
        known = END_NAMES if kinds[at] != CONTROL else CONTROL_END_NAMES
        if at not in named and texts[at] not in known and at not in left:
            left.append(at)
    free = [name for name in _ENDS if f"tokenizer.ggml.{name}_token_id" not in keys]
    if len(left) > len(free):
        raise ConvertError(
            f"{label}: eos_token_id: found {said!r:.80}, wanted at most {len(_ENDS)} that no name "
            f"tells: a file has no place for {texts[left[len(free)]]!r:.40}"
        )
    return _ggml(
        **{f"{name}_token_id": (at, "uint32") for name, at in zip(free, left, strict=False)}
    )


def _suppressed(folder: ModelFolder) -> KeyValues:
    """The tokens that are never drawn, those of images and sound in Gemma 4 for example."""
    found = folder.json("generation_config.json").get("suppress_tokens")
    if not found:
        return {}
    if not isinstance(found, list) or not all(
        isinstance(one, int) and not isinstance(one, bool) and -(1 << 31) <= one < 1 << 31
        for one in found
    ):
        raise ConvertError(
            f"{folder.path / 'generation_config.json'}: suppress_tokens: found {found!r:.80}, "
            "wanted token ids"
        )
    return _ggml(suppress_tokens=(found, "array[int32]"))


def _content(token: object) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _processed(tokenizer: dict, settings: dict) -> tuple[dict, dict[str, bool]]:
    """The settings with the special tokens that the post-processor puts around a text, and whether
    it does. A sentence's first token is its beginning, its last its end.
    """
    settings = dict(settings)
    for name, stand_in in (("bos", "cls"), ("eos", "sep")):
        if not settings.get(f"{name}_token") and settings.get(f"{stand_in}_token"):
            settings[f"{name}_token"] = settings[f"{stand_in}_token"]
    switches: dict[str, bool] = {}
    for step in _parts(tokenizer.get("post_processor"), "processors"):
        if step.get("type") == "ByteLevel":
            switches.setdefault("add_bos_token", False)
            switches.setdefault("add_eos_token", False)
        elif step.get("type") == "RobertaProcessing":
            switches |= {f"add_{name}_token": True for name in ("bos", "eos", "sep")}
            for name in ("cls", "sep"):
                pair = step.get(name)
                if not settings.get(f"{name}_token") and isinstance(pair, list) and pair:
                    settings[f"{name}_token"] = pair[0]
        elif step.get("type") == "TemplateProcessing":
            _templated(step, settings, switches)
    return settings, switches


def _templated(step: dict, settings: dict, switches: dict[str, bool]) -> None:
    def named(part: object) -> str | None:
        special = part.get("SpecialToken") if isinstance(part, dict) else None
        return special.get("id") if isinstance(special, dict) else None

    single, pair = step.get("single") or [], step.get("pair") or []
    first = named(single[0]) if len(single) > 1 else None
    last = named(single[-1]) if len(single) > 1 else None
    begins = [_content(settings.get(f"{name}_token")) for name in ("bos", "cls")]
    if first is not None:
        for name, text in zip(("bos", "cls"), begins, strict=True):
            if first not in begins and text is None:
                settings[f"{name}_token"] = first
        begins = [_content(settings.get(f"{name}_token")) for name in ("bos", "cls")]
        switches["add_bos_token"] = first in begins
    if last is not None:
        before = _content(settings.get("eos_token"))
        if before is not None and before != last:
            settings["eot_token" if "eot_token" not in settings else "eom_token"] = before
        settings["eos_token"] = last
        switches["add_eos_token"] = True
    start = 1 if first is not None and pair and named(pair[0]) == first else 0
    stop = len(pair) - (1 if last is not None and pair and named(pair[-1]) == last else 0)
    between = [named(part) for part in pair[start:stop][1:-1]]
    if between:
        parts = [_content(settings.get(f"{name}_token")) for name in ("sep", "eos")]
        switches["add_sep_token"] = (between[0] in parts and last is None) or (
            len(between) == 2 and between[1] in parts
        )


def _templates(folder: ModelFolder, settings: dict, family: Family) -> KeyValues:
    """The chat templates: tokenizer_config.json's, or those of files of their own."""
    said = settings.get("chat_template")
    if "chat_template" not in settings or family.template_file:
        said = _template_files(folder) or said
    listed = [{"name": "default", "template": said}] if isinstance(said, str) else said
    if listed is None:
        return {}
    if not isinstance(listed, list):
        raise ConvertError(
            f"{folder.path}: chat_template: found {said!r:.80}, wanted a text or a list of names "
            "and texts"
        )
    keys: KeyValues = {}
    names: list[str] = []
    for one in listed:
        name, text = (one.get("name"), one.get("template")) if isinstance(one, dict) else (0, 0)
        if not isinstance(name, str) or not isinstance(text, str):
            raise ConvertError(
                f"{folder.path}: chat_template: found {one!r:.80}, wanted a name and a template"
            )
        key = "tokenizer.chat_template"
        if name and name != "default":
            name = re.sub("[^a-zA-Z0-9]", "_", name)
            key = f"{key}.{name}"
            names.append(name)
        if not name:
            continue
        if key in keys:
            raise ConvertError(
                f"{folder.path}: chat_template: found two whose name is {name!r:.80} in a GGUF "
                "file, wanted one"
            )
        keys[key] = text, "string"
    if names:
        keys["tokenizer.chat_templates"] = names, "array[string]"
    return keys


def _template_files(folder: ModelFolder) -> object:
    """chat_template.jinja with those of additional_chat_templates, or chat_template.json's."""
    default = _text(folder.path / "chat_template.jinja")
    if default is None:
        return folder.json("chat_template.json").get("chat_template")
    listed: list[object] = [{"name": "default", "template": default}]
    for more in sorted((folder.path / "additional_chat_templates").glob("*.jinja")):
        listed.append({"name": more.stem, "template": _text(more)})
    return listed


def _text(path: Path) -> str | None:
    """The text of a file with line feeds alone, None where there is none."""
    held = read_whole(path)
    try:
        text = None if held is None else held.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConvertError(f"{path}: found no UTF-8: {error}") from None
    return None if text is None else text.replace("\r\n", "\n").replace("\r", "\n")
