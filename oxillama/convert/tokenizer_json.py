"""The keys of a vocabulary in tokenizer.json: byte-level BPE, SentencePiece's BPE and unigram
models, WordPiece.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping

from oxillama.convert.family import Family
from oxillama.convert.folder import ModelFolder
from oxillama.convert.tokens import (
    BYTE,
    CONTROL,
    NORMAL,
    SPECIAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    KeyValues,
    added_tokens,
    content_of,
    ggml,
    is_controlling,
    parts_of,
    unigram_keys,
)
from oxillama.errors import ConvertError, TokenizerError
from oxillama.tokenizer.splits import SPLITS, WHOLE_WORDS
from oxillama.tokenizer.unigram import CharacterMap
from oxillama.tokenizer.vocabulary import WHITE
from oxillama.tokenizer.wordpiece import LONGEST_WORD

_IGNORED_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_EITHER_CASE = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_CODE_POINT = re.compile(r"\\u([0-9A-Fa-f]{4})")
# Gemma 4's tokens that its replies are read by
_RENDERED = frozenset(
    ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>")
    + ("<tool_response|>", '<|"|>')
)
_GPT2 = SPLITS["gpt-2"]


def json_keys(folder: ModelFolder, size: int, family: Family) -> tuple[KeyValues, dict[str, int]]:
    """(the keys of a vocabulary of `size` tokens, its ids by text)."""
    tokenizer = folder.json("tokenizer.json")
    label = f"{folder.path}/tokenizer.json"
    model = tokenizer.get("model")
    kind = model.get("type") if isinstance(model, dict) else model
    if kind == "Unigram" and family.vocabulary == "unigram":
        return _unigram_json(label, tokenizer, size)
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
    for text, (at, special) in added_tokens(label, tokenizer).items():
        if vocabulary.get(text, at) != at:
            raise ConvertError(
                f"{label}: added_tokens: {text!r:.40}: found the id {at}, wanted "
                f"{vocabulary[text]}, which it has in model.vocab"
            )
        special = is_controlling(text, special)
        texts[at] = text if special or kind == "WordPiece" else text.replace("\u2581", " ")
        kinds[at] = CONTROL if special else USER_DEFINED
    _check_added(label, tokenizer, vocabulary)
    if texts and max(texts) >= size:
        raise ConvertError(f"{label}: token {max(texts)!r:.40} is beyond the vocabulary of {size}")
    for at in range(size):
        if at not in texts:
            texts[at], kinds[at] = f"[PAD{at}]", UNUSED
    ordered = [texts[at] for at in range(size)]
    if kind == "WordPiece":
        return _wordpiece(label, tokenizer, ordered, kinds)
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise ConvertError(
                f"{label}: model.{name}: found {model[name]!r:.40}, wanted none: a file has no "
                "place for it"
            )
    listed = model.get("merges") or []
    if kind == "BPE" and not isinstance(listed, list):
        raise ConvertError(f"{label}: model.merges: found {listed!r:.60}, wanted pairs of tokens")
    # of a pair that is listed twice the library takes the last place
    merges = [*dict.fromkeys(_merge(label, one) for one in reversed(listed))][::-1]
    pieces = bool(model.get("byte_fallback")) and _is_metaspace(tokenizer)
    _check_decoder(label, tokenizer, pieces=pieces or family.vocabulary == "gemma4")
    if family.vocabulary == "gemma4":
        return _gemma4(ordered, kinds, merges, folder.json("tokenizer_config.json"))
    if pieces:
        _check_pieces(label, tokenizer, ordered, kinds)
        return _byte_fallback(label, tokenizer, ordered, kinds, merges)
    keys = ggml(
        model=("gpt2", "string"),
        pre=(_split(label, tokenizer), "string"),
        tokens=(ordered, "array[string]"),
        token_type=([kinds[at] for at in range(size)], "array[int32]"),
        merges=([" ".join(pair) for pair in merges], "array[string]"),
    )
    return keys, {text: at for at, text in texts.items()}


def _check_added(
    label: str, tokenizer: dict, vocabulary: Mapping[str, int], count: int | None = None
) -> None:
    """ConvertError for an added token whose id is not that which `tokenizers` gives it: the one in
    the vocabulary, else the next free one, whatever the file says. count: tokens of the vocabulary.
    """
    known: dict[str, int] = {}
    following = len(vocabulary) if count is None else count
    for one in tokenizer.get("added_tokens") or []:
        at, text = one["id"], one["content"]
        wanted = known.setdefault(text, vocabulary.get(text, following))
        if at != wanted:
            raise ConvertError(
                f"{label}: added_tokens: {text!r:.40}: found the id {at}, wanted {wanted}, which "
                "tokenizers gives it"
            )
        following = max(following, at + 1)


def text_keys(folder: ModelFolder, settings: dict, keys: KeyValues) -> KeyValues:
    """How tokenizer.json prepares texts, where files mean it otherwise: white space that added
    tokens swallow, a normal form, where the space before a text is put. Only oxillama reads these.
    """
    if settings.get("split_special_tokens"):
        raise ConvertError(
            f"{folder.path}/tokenizer_config.json: split_special_tokens: found "
            f"{settings['split_special_tokens']!r:.40}, wanted false: whether special tokens in a "
            "text are read as such is said with each text (parse_special)"
        )
    tokenizer = folder.json("tokenizer.json")
    label, listed = f"{folder.path}/tokenizer.json", tokenizer.get("added_tokens") or []
    if not tokenizer:
        label = f"{folder.path}/tokenizer_config.json: added_tokens_decoder"
        decoder = settings.get("added_tokens_decoder") or {}
        listed = [{**about, "id": int(at)} for at, about in decoder.items()]
    size = len(keys["tokenizer.ggml.tokens"][0])
    found: KeyValues = {}
    for one in listed:
        if one.get("single_word"):
            raise ConvertError(
                f"{label}: {one.get('content')!r:.60}: single_word: found {one['single_word']!r}, "
                "wanted false: a file has no place for it"
            )
    for side in ("lstrip", "rstrip"):
        at = sorted(one["id"] for one in listed if one.get(side) and one["id"] < size)
        if at:
            found[f"{side}_token_ids"] = at, "array[int32]"
    model = keys["tokenizer.ggml.model"][0]
    if model == "gpt2" and any(
        one.get("type") == "NFC" for one in parts_of(tokenizer.get("normalizer"), "normalizers")
    ):
        found["normalizer.nfc"] = True, "bool"
    # with a normaliser that puts the space before every part, a Metaspace has none to put
    prepends = any(
        one.get("type") == "Prepend" for one in parts_of(tokenizer.get("normalizer"), "normalizers")
    )
    if (
        model == "llama"
        and not prepends
        and keys.get("tokenizer.ggml.add_space_prefix", (True,))[0]
    ):
        for one in parts_of(tokenizer.get("pre_tokenizer"), "pretokenizers"):
            if one.get("type") == "Metaspace" and _scheme(one) != "never":
                found["space_prefix"] = _scheme(one), "string"
    return ggml(**found)


def _scheme(metaspace: dict) -> str:
    """Where a Metaspace puts a space before a text; older files say only whether."""
    return str(
        metaspace.get("prepend_scheme")
        or ("always" if metaspace.get("add_prefix_space", True) else "never")
    )


def _check_pieces(label: str, tokenizer: dict, texts: list[str], kinds: dict[int, int]) -> None:
    """ConvertError for a preparation of text that files of SentencePiece's vocabularies do not
    have.
    """
    normalizers = parts_of(tokenizer.get("normalizer"), "normalizers")
    cuts = parts_of(tokenizer.get("pre_tokenizer"), "pretokenizers")
    for one in cuts:
        if one.get("type") == "Metaspace" and one.get("replacement", "\u2581") != "\u2581":
            raise ConvertError(
                f"{label}: pre_tokenizer: replacement: found {one['replacement']!r:.40}, wanted "
                "U+2581: files of SentencePiece's vocabularies have no other mark"
            )
    kinds_of = [one.get("type") for one in normalizers]
    if "Replace" not in kinds_of and all(one.get("type") != "Metaspace" for one in cuts):
        raise ConvertError(
            f"{label}: normalizer: found {normalizers!r:.120}, wanted one that writes spaces as "
            "U+2581: files of SentencePiece's vocabularies mean it"
        )
    if kinds_of.count("Prepend") > 1:
        raise ConvertError(
            f"{label}: normalizer: found {normalizers!r:.120}, wanted one Prepend at most"
        )
    for one in normalizers:
        marks = one.get("type") == "Prepend" and one.get("prepend") == "\u2581"
        spells = (one.get("type"), one.get("pattern"), one.get("content")) == (
            "Replace",
            {"String": " "},
            "\u2581",
        )
        if not marks and not spells:
            raise ConvertError(
                f"{label}: normalizer: found {one!r:.120}, wanted those that write spaces as "
                "U+2581: files of SentencePiece's vocabularies have no other"
            )
    crossing = next(
        (text for at, text in enumerate(texts) if kinds[at] == NORMAL and "\u2581" in text[1:]),
        None,
    )
    for one in cuts:
        whole = one.get("type") == "Metaspace" and not (crossing and one.get("split", True))
        # of texts without spaces, which the normalizer has written otherwise
        idle = one.get("type") == "Split" and one.get("pattern") == {"String": " "}
        if not whole and not idle:
            why = f", with the token {crossing!r:.40}" if one.get("type") == "Metaspace" else ""
            raise ConvertError(
                f"{label}: pre_tokenizer: found {one!r:.120}{why}, wanted one that cuts no text: "
                "files of SentencePiece's vocabularies merge across words"
            )


def _named_specials(settings: dict) -> list[str]:
    """The special tokens that a tokenizer_config.json names."""
    found = [content_of(settings.get(f"{name}_token")) for name in (*SPECIAL, "cls")]
    return [text for text in found if text is not None]


def _is_byte(text: str) -> bool:
    """Whether a token of a fallback to bytes stands for one, as <0x0A> does."""
    return len(text) == 6 and text.startswith("<0x") and text[-1] == ">"


def _wordpiece(
    label: str, tokenizer: dict, texts: list[str], kinds: dict[int, int]
) -> tuple[KeyValues, dict[str, int]]:
    """BERT's pieces: a word's first begins with U+2581, where the folder marks the others (##)."""
    model = tokenizer["model"]
    normalizers = parts_of(tokenizer.get("normalizer"), "normalizers")
    cuts = [one.get("type") for one in parts_of(tokenizer.get("pre_tokenizer"), "pretokenizers")]
    if (
        model.get("continuing_subword_prefix", "##") != "##"
        or [one.get("type") for one in normalizers] != ["BertNormalizer"]
        or cuts != ["BertPreTokenizer"]
    ):
        raise ConvertError(
            f"{label}: WordPiece with normalizer {normalizers!r:.120} and pre_tokenizer {cuts}, "
            "wanted those of BERT"
        )
    longest = model.get("max_input_chars_per_word", LONGEST_WORD)
    if longest != LONGEST_WORD:
        raise ConvertError(
            f"{label}: model.max_input_chars_per_word: found {longest!r:.40}, wanted "
            f"{LONGEST_WORD}: a file has no place for it"
        )
    for name in ("clean_text", "handle_chinese_chars"):
        if normalizers[0].get(name, True) is not True:
            raise ConvertError(
                f"{label}: normalizer: {name}: found {normalizers[0][name]!r:.40}, wanted true: a "
                "file has no place for it"
            )
    ids = {text: at for at, text in enumerate(texts)}
    written = [
        text
        if kinds[at] in (CONTROL, USER_DEFINED)
        else text.removeprefix("##")
        if text.startswith("##")
        else f"\u2581{text}"
        for at, text in enumerate(texts)
    ]
    keys = ggml(
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


def _unigram_json(label: str, tokenizer: dict, size: int) -> tuple[KeyValues, dict[str, int]]:
    """A unigram model that was saved as tokenizer.json."""
    model = tokenizer["model"]
    listed = model.get("vocab")
    if not isinstance(listed, list) or not all(
        isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in listed
    ):
        raise ConvertError(f"{label}: model.vocab: wanted a list of token and score")
    named = {text: at for at, (text, _) in reversed([*enumerate(listed)])}
    if model.get("byte_fallback") and any(map(_is_byte, named)):
        raise ConvertError(
            f"{label}: model.byte_fallback: found true, wanted false: files of unigram models have "
            "no tokens of bytes"
        )
    unknown = model.get("unk_id")
    entries = [
        (text, float(score), UNKNOWN if at == unknown else NORMAL)
        for at, (text, score) in enumerate(listed)
    ]
    for added in tokenizer.get("added_tokens") or []:
        at, text = added.get("id"), added.get("content")
        if not isinstance(at, int) or not isinstance(text, str) or not 0 <= at < size:
            raise ConvertError(f"{label}: added_tokens: found {added!r:.80}")
        if named.get(text, at) != at:
            raise ConvertError(
                f"{label}: added_tokens: {text!r:.40}: found the id {at}, wanted {named[text]}, "
                "which it has in model.vocab"
            )
        while len(entries) <= at:
            entries.append((f"[PAD{len(entries)}]", -10000.0, UNUSED))
        if at != unknown:
            kind = CONTROL if added.get("special") else USER_DEFINED
            entries[at] = text, entries[at][1], kind
    _check_added(label, tokenizer, named, len(listed))
    if len(entries) > size:
        raise ConvertError(f"{label}: {len(entries)} tokens, config.json says {size}")
    while len(entries) < size:
        entries.append((f"[PAD{len(entries)}]", -10000.0, UNUSED))
    _check_unigram(label, tokenizer)
    _check_decoder(label, tokenizer, pieces=True)
    maps = [
        one.get("precompiled_charsmap")
        for one in parts_of(tokenizer.get("normalizer"), "normalizers")
        if one.get("type") == "Precompiled"
    ]
    try:
        charsmap = b64decode(maps[0] or "", validate=True) if maps else b""
    except (ValueError, TypeError) as error:
        raise ConvertError(f"{label}: precompiled_charsmap: found no base64: {error}") from None
    prefix, trim, scheme = _unigram_spaces(label, tokenizer, charsmap)
    keys, ids = unigram_keys(entries, prefix, trim, charsmap)
    return keys | (ggml(space_prefix=(scheme, "string")) if scheme else {}), ids


def _unigram_spaces(label: str, tokenizer: dict, charsmap: bytes) -> tuple[bool, bool, str]:
    """(whether a space is put before texts, whether runs of spaces are one and those at the ends
    none, `space_prefix`), as the steps of tokenizer.json treat spaces.
    """
    normalizers = parts_of(tokenizer.get("normalizer"), "normalizers")
    cuts = parts_of(tokenizer.get("pre_tokenizer"), "pretokenizers")
    marks = [one for one in cuts if one.get("type") == "Metaspace"]
    splits = len(cuts) > len(marks)  # at white space, which is dropped
    if [one.get("type") for one in cuts] not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        raise ConvertError(
            f"{label}: pre_tokenizer: found {cuts!r:.120}, wanted Metaspace, or WhitespaceSplit "
            "and Metaspace"
        )
    if marks[0].get("replacement", "\u2581") != "\u2581":
        raise ConvertError(
            f"{label}: pre_tokenizer: replacement: found {marks[0]['replacement']!r:.40}, wanted "
            "U+2581: files of unigram models have no other mark"
        )
    scheme = _scheme(marks[0])
    if scheme != "always":
        raise ConvertError(
            f"{label}: pre_tokenizer: prepend_scheme: found {scheme!r:.40}, wanted 'always': files "
            "of unigram models have no place for another"
        )
    steps = [one.get("type") for one in normalizers]
    if "Precompiled" in steps[1:] or steps.count("Replace") > 1:
        raise ConvertError(
            f"{label}: normalizer: found {steps!r:.120}, wanted Precompiled first and one Replace "
            "at most"
        )
    merges = "Replace" in steps
    right = any(one.get("type") == "Strip" and one.get("strip_right") for one in normalizers)
    left = any(one.get("type") == "Strip" and one.get("strip_left") for one in normalizers)
    if splits and not _is_spaced(label, charsmap):
        raise ConvertError(
            f"{label}: pre_tokenizer: found WhitespaceSplit without a map of characters "
            "(precompiled_charsmap) that makes spaces of all white space, wanted one with it: "
            "files of unigram models cut texts at spaces alone"
        )
    if splits or (merges and right):
        return True, True, ""
    if left or right:
        raise ConvertError(
            f"{label}: normalizer: found {normalizers!r:.160}, wanted Strip of the right side with "
            "a Replace of runs of spaces, or neither"
        )
    return True, merges, "always"


def _is_spaced(label: str, charsmap: bytes) -> bool:
    """Whether a map of characters leaves no white space but spaces, and NEL as SentencePiece's."""
    try:
        table = CharacterMap(charsmap) if charsmap else None
        return table is not None and all(
            table.map(char) in (" ", "") for char in WHITE if char != "\x85"
        )
    except TokenizerError as error:
        raise ConvertError(f"{label}: {error}") from None


def _check_unigram(label: str, tokenizer: dict) -> None:
    """ConvertError for a preparation of text that files of unigram models do not have."""
    for one in parts_of(tokenizer.get("normalizer"), "normalizers"):
        kind, pattern = one.get("type"), one.get("pattern")
        # runs of spaces, which files take for one
        runs = kind == "Replace" and pattern == {"Regex": " {2,}"}
        if kind not in ("Precompiled", "Strip") and not (
            runs and one.get("content") in (" ", "\u2581")
        ):
            raise ConvertError(
                f"{label}: normalizer: found {one!r:.120}, wanted a map of characters "
                "(Precompiled) and those that remove spaces: a file has no place for another"
            )
    for one in parts_of(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if one.get("type") not in ("Metaspace", "WhitespaceSplit"):
            raise ConvertError(
                f"{label}: pre_tokenizer: found {one!r:.120}, wanted Metaspace: a file has no "
                "place for another"
            )


def _gemma4(
    texts: list[str], kinds: dict[int, int], merges: list, settings: dict
) -> tuple[KeyValues, dict[str, int]]:
    """Gemma 4: merges over SentencePiece's spelling, bytes as a fallback; scores say nothing."""
    named = _named_specials(settings)
    for at, text in enumerate(texts):
        if kinds[at] == NORMAL and _is_byte(text):
            kinds[at] = BYTE
        elif kinds[at] == NORMAL and text in named:
            kinds[at] = CONTROL
        elif text in _RENDERED:
            kinds[at] = USER_DEFINED
    keys = ggml(
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
    parts = parts_of(tokenizer.get("normalizer"), "normalizers")
    parts += parts_of(tokenizer.get("pre_tokenizer"), "pretokenizers")
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
        if kinds[at] == NORMAL and _is_byte(text):
            kinds[at] = BYTE
        elif kinds[at] in (NORMAL, CONTROL) and text == tokenizer["model"].get("unk_token"):
            kinds[at] = UNKNOWN
    scores = [float(-ranks[text]) if text in ranks else -float(len(merges)) for text in texts]
    prepends = any(
        one.get("type") == "Prepend" or (one.get("type") == "Metaspace" and _scheme(one) != "never")
        for one in parts_of(tokenizer.get("normalizer"), "normalizers")
        + parts_of(tokenizer.get("pre_tokenizer"), "pretokenizers")
    )
    keys = ggml(
        model=("llama", "string"),
        pre=("default", "string"),
        tokens=(texts, "array[string]"),
        scores=(scores, "array[float32]"),
        token_type=([kinds[at] for at in range(len(texts))], "array[int32]"),
        add_space_prefix=(prepends, "bool"),
    )
    if not _is_scored({text for at, text in enumerate(texts) if kinds[at] == NORMAL}, merges):
        if tokenizer["model"].get("ignore_merges"):
            raise ConvertError(
                f"{label}: model.ignore_merges: found true, wanted false: files of SentencePiece's "
                "vocabularies have tokens by merges alone"
            )
        keys |= ggml(
            merges=([" ".join(pair) for pair in merges], "array[string]"), by_merges=(True, "bool")
        )
    return keys, ids


def _check_decoder(label: str, tokenizer: dict, *, pieces: bool) -> None:
    """ConvertError for a decoder that makes another text of tokens than files do. A file without
    one leaves that to its reader.
    """
    steps = parts_of(tokenizer.get("decoder"), "decoders")
    known = _piece_decoder if pieces else _byte_decoder
    for one in steps:
        if not known(one):
            wanted = "of SentencePiece's spelling" if pieces else "of bytes (ByteLevel)"
            raise ConvertError(
                f"{label}: decoder: found {one!r:.120}, wanted those {wanted}: a file has no place "
                "for another"
            )
    main = ("Replace", "Metaspace") if pieces else ("ByteLevel",)
    if steps and not any(one.get("type") in main for one in steps):
        raise ConvertError(
            f"{label}: decoder: found {steps!r:.120}, wanted {' or '.join(main)} among them"
        )


def _byte_decoder(step: dict) -> bool:
    return step.get("type") in ("ByteLevel", "Fuse", "ByteFallback")


def _piece_decoder(step: dict) -> bool:
    kind = step.get("type")
    if kind == "Metaspace":
        return step.get("replacement", "\u2581") == "\u2581"
    if kind == "Replace":
        marks = ({"String": "\u2581"}, {"Regex": "\u2581"})
        return step.get("pattern") in marks and step.get("content") == " "
    if kind == "Strip":  # of the space that is put before a text
        one = step.get("start", 0) in (0, 1) and not step.get("stop")
        return one and step.get("content", " ") == " "
    return kind in ("ByteFallback", "Fuse")


def _is_scored(texts: set[str], merges: list[tuple[str, str]]) -> bool:
    """Whether a score for each token says what the merges say: any two tokens whose joined text is
    one are merged, at one rank. True of vocabularies that were SentencePiece's.
    """
    listed, done, last = set(merges), set(), None
    for left, right in merges:
        if left + right != last and left + right in done:
            return False
        last = left + right
        done.add(last)
    return all(
        (text[:cut], text[cut:]) in listed
        for text in texts
        for cut in range(1, len(text))
        if text[:cut] in texts and text[cut:] in texts
    )


def _split(label: str, tokenizer: dict) -> str:
    """The `tokenizer.ggml.pre` that cuts text as the file does; ConvertError where none does."""
    normalizers = parts_of(tokenizer.get("normalizer"), "normalizers")
    if any(one.get("type") not in ("NFC",) for one in normalizers):
        raise ConvertError(
            f"{label}: normalizer: found {normalizers!r:.120}, GGUF byte-level vocabularies have "
            "none"
        )
    expressions: list[str] = []
    steps = parts_of(tokenizer.get("pre_tokenizer"), "pretokenizers")
    if [one.get("type") for one in steps].count("ByteLevel") != 1:
        raise ConvertError(f"{label}: pre_tokenizer: found {steps!r:.120}, wanted one ByteLevel")
    behind = steps[[one.get("type") for one in steps].index("ByteLevel") + 1 :]
    if any(one.get("type") == "Split" for one in behind):
        raise ConvertError(
            f"{label}: pre_tokenizer: found {behind!r:.120} behind ByteLevel, wanted it before: a "
            "file's expressions are those of texts, not of their bytes"
        )
    for one in steps:
        kind = one.get("type")
        if kind == "Split" and isinstance(one.get("pattern"), dict):
            pattern = one["pattern"].get("Regex")
            # what it matches is removed, unless it is turned round
            keeping = ("Isolated", "Removed") if one.get("invert") else ("Isolated",)
            if not isinstance(pattern, str) or one.get("behavior") not in keeping:
                raise ConvertError(
                    f"{label}: pre_tokenizer: found {one!r:.120}, wanted one that keeps all of a "
                    "text"
                )
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
