"""The vocabulary that a file describes, checked once at load: tokens, their types, special ids and
the tokens added around a text.

Sources: the GGUF specification's `tokenizer.ggml.*` keys; the numbers of token types are those of
SentencePiece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama._core.bpe import Strings
from oxillama.errors import TokenizerError, warn

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
KINDS = (NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE)
ABSENT = (1 << 32) - 1  # how files write "this vocabulary has no such token"

SPECIAL_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
}

# Tokens that end a turn or a text in published models, by the text they are written as; these are
# control tokens whatever their kind in the file (converters have got that wrong).
END_NAMES = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "</s>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)
# Names that end a generation where the file says they are control tokens: other models' turns, and
# what parts files when code is completed.
CONTROL_END_NAMES = END_NAMES | {
    "< EOT >",
    "<|eot|>",
    "<|eom|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_turn|>",
    "<|endofturn|>",
    "<|end_of_sentence|>",
    "<|eos|>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
}
# Markers of completion in the middle of code: control tokens whatever their kind in the file.
# Published files disagree (DeepSeek Coder marks them as ordinary added tokens); as user-defined
# tokens they would be read in any text, and a text must not be able to start a completion.
FILL_NAMES = frozenset(
    {
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "<|fim_pad|>",
        "<|fim_repo|>",
        "<|file_sep|>",
        "<|repo_name|>",
        "<fim-prefix>",
        "<fim-suffix>",
        "<fim-middle>",
        "<fim-pad>",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        "<fim_pad>",
        "<｜fim▁begin｜>",
        "<｜fim▁hole｜>",
        "<｜fim▁end｜>",
        "<PRE>",
        "<SUF>",
        "<MID>",
        "▁<PRE>",
        "▁<SUF>",
        "▁<MID>",
        "<|code_prefix|>",
        "<|code_suffix|>",
        "<|code_middle|>",
        "<|prefix|>",
        "<|suffix|>",
        "<|middle|>",
    }
)
_HARMONY = {"<|return|>", "<|call|>"}

# Per model: special ids, and what is added around a text, where the file does not say.
_DEFAULTS: dict[str, tuple[dict[str, int], frozenset[str]]] = {
    "llama": ({"bos": 1, "eos": 2, "unk": 0}, frozenset({"bos"})),
    "gemma4": ({}, frozenset({"bos"})),
    "t5": ({"eos": 1, "unk": 2, "pad": 0}, frozenset({"eos"})),
    "bert": (
        {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
        frozenset({"bos", "sep"}),
    ),
    "plamo2": ({"bos": 1, "eos": 2, "unk": 0, "pad": 3}, frozenset()),
}
# Unicode's property White_Space
WHITE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
WHITE += "\u2028\u2029\u202f\u205f\u3000"
# What Phi-3's special tokens swallow without the key: ASCII's, as GGUF engines have it. (Hugging
# Face's tokenizer of that model takes all of Unicode's, so it loses a no-break space in a text.)
_ASCII_WHITE = " \t\n\v\f\r"
_PREFIXES = ("always", "first")
_MERGED = ("gpt2", "gemma4")  # models whose tokens are made by merges
# files of these are of the model gpt2 in name; their tokens are spelled as Gemma 4's
_PIECES = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})
_BYTE_MODELS = ("llama", "gemma4", "plamo2")  # models whose bytes are tokens of their own
_BYTE_NAMES = frozenset(f"<0x{value:02X}>" for value in range(256))
_ADD_SEP = frozenset({"roberta-bpe", "jina-v1-en", "jina-v2-code"})
_ADD_BOS = frozenset(
    {
        "llama-bpe",
        "llama3",
        "llama-v3",
        "falcon3",
        "falcon-h1",
        "tekken",
        "chameleon",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
    }
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, and what the file says about them; `special` maps names of `SPECIAL_KEYS` to
    ids.
    """

    model: str
    pre: str
    tokens: Sequence[str] | Strings
    kinds: np.ndarray
    scores: np.ndarray | None
    merges: Sequence[str] | Strings
    special: Mapping[str, int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    lead: tuple[int, ...] = ()  # the tokens before a text, where these are more than `bos`
    add_sep: bool = False  # `bert` without `add_eos`: the separator after a text
    sep_between: bool = False  # a separator more between two texts
    remove_extra_whitespaces: bool = False  # `t5`: spaces in a row are one
    charsmap: bytes = b""  # `t5`: replacements of characters
    lowercase: bool = True  # `bert`
    strip_accents: bool = True  # `bert`
    # special tokens that swallow the white space before them, and after them
    lstrip: frozenset[int] = frozenset()
    rstrip: frozenset[int] = frozenset()
    swallowed: str = WHITE  # what white space is, for these
    nfc: bool = False  # text between special tokens is brought to Unicode's form NFC
    # where `add_space_prefix` acts: "" before every part of a text between special tokens;
    # "always", only before those that do not begin with a space; "first", of these at the text's
    # beginning alone
    space_prefix: str = ""
    suppressed: tuple[int, ...] = ()  # that are never drawn
    by_merges: bool = False  # `llama`: the merges say what is joined, not the scores

    def __len__(self) -> int:
        return len(self.tokens)

    def end_ids(self) -> frozenset[int]:
        """Every id that ends a generation: eos, eot, eom, and control tokens named like them."""
        named = {
            i
            for i in np.flatnonzero(self.kinds == CONTROL).tolist()
            if self.tokens[i] in CONTROL_END_NAMES
        }
        if {self.tokens[i] for i in named} >= _HARMONY:
            # parts the messages of one reply there
            named -= {i for i in named if self.tokens[i] == "<|end|>"}
        return frozenset(
            named | {self.special[name] for name in ("eos", "eot", "eom") if name in self.special}
        )


def _kinds(metadata: Mapping[str, Any], model: str, tokens: Strings) -> np.ndarray:
    """Of each token, int32: the file's, but tokens that are control tokens by their names. A file
    without kinds has those that the names of bytes say.
    """
    found = _array(metadata, "token_type", len(tokens), np.int32)
    kinds = np.full(len(tokens), NORMAL, np.int32) if found is None else found.astype(np.int32)
    if found is None and model in _BYTE_MODELS:
        kinds[tokens.where(_BYTE_NAMES)] = BYTE
    for token in tokens.where(END_NAMES | FILL_NAMES):
        if kinds[token] in (NORMAL, USER_DEFINED):
            kinds[token] = CONTROL
    wrong = np.flatnonzero(~np.isin(kinds, KINDS))
    if len(wrong):
        raise TokenizerError(
            f"tokenizer.ggml.token_type: token {wrong[0]} has kind {kinds[wrong[0]]}, wanted 1 to 6"
        )
    return kinds


def _special(
    metadata: Mapping[str, Any],
    model: str,
    pre: str,
    kinds: np.ndarray,
    note: Callable[[str], None],
) -> tuple[dict[str, int], dict[str, bool]]:
    """The special tokens by their names, and which of bos, eos and sep texts get."""
    n = len(kinds)
    special = {}
    for name, key in SPECIAL_KEYS.items():
        found = _value(metadata, key, int, None)
        if found is not None and found != ABSENT:
            if 0 <= found < n:
                special[name] = found
            # such files exist (a vocabulary was cut): the model runs, and its user is warned
            else:
                note(
                    f"tokenizer.ggml.{key}: found {found}, wanted an id below {n}; taken as no "
                    "such token"
                )
    around = {name for name, ones in (("bos", _ADD_BOS), ("sep", _ADD_SEP)) if pre in ones}
    ids, added = _DEFAULTS.get(model, ({}, frozenset(around)))
    if pre == "sarvam-moe":
        added = frozenset()
    for name, default in ids.items():
        if (
            SPECIAL_KEYS[name] not in _present(metadata)
            and default < n
            and ("token_type" not in _present(metadata) or kinds[default] in (CONTROL, UNKNOWN))
        ):
            special[name] = default
    add = {}
    for name in ("bos", "eos", "sep"):
        wanted = _value(metadata, f"add_{name}_token", bool, name in added)
        if wanted and name not in special and f"add_{name}_token" in _present(metadata):
            raise TokenizerError(
                f"tokenizer.ggml.add_{name}_token: true, but the file names no {name} token"
            )
        add[name] = wanted and name in special
    return special, add


def read_vocabulary(metadata: Mapping[str, Any], note: Callable[[str], None] = warn) -> Vocabulary:
    """The vocabulary of `tokenizer.ggml.*`; TokenizerError with the key, the value found and the
    value wanted. note: called with what is wrong but no error.
    """
    if not isinstance(metadata, Mapping):
        raise TokenizerError(
            f"metadata: found {type(metadata).__name__}, wanted the keys of a file"
        )
    model = _value(metadata, "model", str)
    tokens = _strings(metadata, "tokens")
    n, kinds = len(tokens), _kinds(metadata, model, tokens)
    pre = _value(metadata, "pre", str, "default")
    if model == "gpt2" and pre in _PIECES:
        model = "gemma4"
        named = np.array(tokens.where(_BYTE_NAMES), np.int64)
        kinds[named[kinds[named] == NORMAL]] = BYTE
    scores = _array(metadata, "scores", n, np.float32)
    if scores is not None and not np.isfinite(scores).all():
        raise TokenizerError(
            f"tokenizer.ggml.scores: token {np.flatnonzero(~np.isfinite(scores))[0]} has no finite "
            "score"
        )
    merges = _strings(metadata, "merges") if "tokenizer.ggml.merges" in metadata else ()
    if model in _MERGED and not len(merges):
        raise TokenizerError(f"tokenizer.ggml.merges: missing, a {model!r} vocabulary needs them")
    by_merges = _value(metadata, "by_merges", bool, False)
    if by_merges and not len(merges):
        raise TokenizerError("tokenizer.ggml.by_merges: found true, wanted merges beside it")
    special, add = _special(metadata, model, pre, kinds, note)
    charsmap = _array(metadata, "precompiled_charsmap", None, None)
    lowercase = _value(metadata, "normalizer.lowercase", bool, True)
    suppressed = _array(metadata, "suppress_tokens", None, np.int32)
    strips = {name: _ids(metadata, f"{name}_token_ids", n) for name in ("lstrip", "rstrip")}
    by_name = frozenset[int]()
    if strips["rstrip"] is None:
        by_name = _swallowing(str(metadata.get("general.name", "")), tokens, kinds)
    space_prefix = _value(metadata, "space_prefix", str, "")
    if space_prefix and space_prefix not in _PREFIXES:
        raise TokenizerError(
            f"tokenizer.ggml.space_prefix: found {space_prefix!r:.60}, wanted "
            f"{' or '.join(map(repr, _PREFIXES))}"
        )
    return Vocabulary(
        model,
        pre,
        tokens,
        kinds,
        scores,
        merges,
        special,
        add["bos"],
        add["eos"],
        model == "bert" or _value(metadata, "add_space_prefix", bool, model == "llama"),
        lead=_lead(metadata, n, special, add["bos"]),
        # one token ends a text: with eos, which BERT's files may have too, a separator is between
        add_sep=add["sep"] and model == "bert" and not add["eos"],
        sep_between=add["sep"]
        and (model != "bert" or (add["eos"] and "add_sep_token" in _present(metadata))),
        remove_extra_whitespaces=_value(metadata, "remove_extra_whitespaces", bool, False),
        charsmap=b""
        if charsmap is None
        else (charsmap.astype(np.int64) & 255).astype(np.uint8).tobytes(),
        lowercase=lowercase,
        strip_accents=_value(metadata, "normalizer.strip_accents", bool, lowercase),
        lstrip=strips["lstrip"] or frozenset(),
        rstrip=strips["rstrip"] or by_name,
        swallowed=_ASCII_WHITE if by_name else WHITE,
        nfc=_value(metadata, "normalizer.nfc", bool, False),
        space_prefix=space_prefix,
        # what is no token is never drawn anyway
        suppressed=()
        if suppressed is None
        else tuple(int(token) for token in suppressed.tolist() if 0 <= token < n),
        by_merges=by_merges,
    )


def begins_with_bos(model: str, pre: str) -> bool:
    """Whether texts begin with the first token where a file of this model does not say."""
    if pre in _ADD_BOS or model not in _DEFAULTS:
        return pre in _ADD_BOS
    return pre != "sarvam-moe" and "bos" in _DEFAULTS[model][1]


def _ids(metadata: Mapping[str, Any], key: str, n: int) -> frozenset[int] | None:
    found = _array(metadata, key, None, np.int32)
    if found is None:
        return None
    for token in found.tolist():
        if not 0 <= token < n:
            raise TokenizerError(f"tokenizer.ggml.{key}: found {token}, wanted ids below {n}")
    return frozenset(int(token) for token in found.tolist())


def _lead(
    metadata: Mapping[str, Any], n: int, special: Mapping[str, int], begins: bool
) -> tuple[int, ...]:
    """The tokens before a text, of which the first is `bos`; none where that is the only one."""
    found = _array(metadata, "lead_token_ids", None, np.int32)
    if found is None:
        return ()
    lead = tuple(int(token) for token in found.tolist())
    if not begins or lead[:1] != (special["bos"],) or not all(0 <= token < n for token in lead):
        raise TokenizerError(
            f"tokenizer.ggml.lead_token_ids: found {list(lead)!r:.60}, wanted ids below {n}, first "
            f"{special['bos'] if begins else 'one of a file whose texts begin with a token'}"
        )
    return lead


def _swallowing(name: str, tokens: Strings, kinds: np.ndarray) -> frozenset[int]:
    """Phi-3's special tokens swallow the white space after them, but for three (its tokenizer.json
    says so; GGUF has no key for it).
    """
    if not any(word in name.lower() for word in ("phi-3", "phi3")):
        return frozenset()
    special = np.flatnonzero(np.isin(kinds, (UNKNOWN, CONTROL, USER_DEFINED))).tolist()
    return frozenset(i for i in special if tokens[i] not in ("<unk>", "<s>", "<|endoftext|>"))


def _present(metadata: Mapping[str, Any]) -> set[str]:
    return {
        key.removeprefix("tokenizer.ggml.") for key in metadata if key.startswith("tokenizer.ggml.")
    }


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


def _strings(metadata: Mapping[str, Any], key: str) -> Strings:
    """An array of strings, not decoded if the mapping has their bytes (gguf.Metadata.strings);
    copied, because texts are made of them for as long as the vocabulary is used.
    """
    name = f"tokenizer.ggml.{key}"
    places = metadata.strings(name) if hasattr(metadata, "strings") else None
    if places is not None:
        try:
            return Strings(places[0].copy(), *places[1:])
        except TokenizerError as error:
            raise TokenizerError(f"{name}: {error}, wanted UTF-8") from None
    found = metadata.get(name)
    if not isinstance(found, (list, tuple)) or not found or not isinstance(found[0], str):
        what = "nothing" if found is None else type(found).__name__
        raise TokenizerError(f"{name}: found {what}, wanted an array of strings with at least one")
    return Strings.of(found)


def packed(texts: Sequence[str] | Strings) -> Strings:
    """The texts side by side as bytes."""
    return texts if isinstance(texts, Strings) else Strings.of(texts)


def _array(
    metadata: Mapping[str, Any], key: str, count: int | None, kind: type | None
) -> np.ndarray | None:
    """An array of numbers, None where the file has none; `kind` is the type that the format asks
    for (Python lists may bring any numbers).
    """
    name = f"tokenizer.ggml.{key}"
    if name not in metadata:
        return None
    given = metadata[name]
    found = np.asarray(given)
    typed = found.dtype.kind in "iuf" and (
        kind is None or not isinstance(given, np.ndarray) or found.dtype == kind
    )
    if found.ndim != 1 or not typed or count not in (None, len(found)):
        numbers = "numbers" if kind is None else f"{np.dtype(kind)} numbers"
        wanted = numbers if count is None else f"{numbers}, one for each of {count} tokens"
        raise TokenizerError(f"{name}: found {found.dtype} of shape {found.shape}, wanted {wanted}")
    return found
