"""Vocabularies of encoders and of Gemma 4, from small tokenizer files made here."""

import base64
import json
import struct

import pytest

from oxillama.convert.family import FAMILIES, Hyper
from oxillama.convert.folder import ModelFolder
from oxillama.convert.vocabulary import vocabulary_keys
from oxillama.errors import ConvertError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def keys_of(place, architecture, size, settings=None, **files):
    """The vocabulary's keys without their prefix."""
    config = {"architectures": [architecture], "vocab_size": size}
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))
    (place / "tokenizer_config.json").write_text(json.dumps(settings or {}))
    for name, value in files.items():
        path = place / name.replace("__", ".")
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    folder = ModelFolder(place)
    found = vocabulary_keys(folder, FAMILIES[architecture], Hyper(config, "config", folder))
    return {key.removeprefix("tokenizer.ggml."): value for key, (value, _) in found.items()}


def special(at, text):
    return {"id": at, "content": text, "special": True}


def template(*parts):
    named = lambda part: (  # noqa: E731
        {"Sequence": {"id": part}} if part in "AB" else {"SpecialToken": {"id": part}}
    )
    return [named(part) for part in parts]


WORDPIECE = {
    "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": template("[CLS]", "A", "[SEP]"),
        "pair": template("[CLS]", "A", "[SEP]", "B", "[SEP]"),
    },
    "added_tokens": [special(0, "[PAD]"), special(1, "[UNK]"), special(2, "[CLS]"),
                     special(3, "[SEP]")],
    "model": {
        "type": "WordPiece",
        "continuing_subword_prefix": "##",
        "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "play": 4, "##ing": 5},
    },
}  # fmt: skip
BERT_SETTINGS = {
    "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"
}  # fmt: skip


def test_first_pieces_of_words_are_marked_in_place_of_the_others(tmp_path):
    keys = keys_of(tmp_path / "m", "BertModel", 7, BERT_SETTINGS, tokenizer__json=WORDPIECE)
    marked = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581play", "ing", "\u2581[PAD6]"]
    assert keys["tokens"] == marked
    assert keys["token_type"] == [CONTROL] * 4 + [NORMAL, NORMAL, UNUSED]
    assert keys["model"] == "bert"
    assert keys["normalizer.lowercase"] is True
    assert "normalizer.strip_accents" not in keys
    assert (keys["bos_token_id"], keys["eos_token_id"], keys["seperator_token_id"]) == (2, 3, 3)
    assert (keys["padding_token_id"], keys["unknown_token_id"]) == (0, 1)
    switches = [keys[f"add_{name}_token"] for name in ("bos", "eos", "sep")]
    assert switches == [True, True, False]


def test_a_wordpiece_that_cuts_otherwise_is_refused(tmp_path):
    other = {**WORDPIECE, "pre_tokenizer": {"type": "Whitespace"}}
    with pytest.raises(ConvertError, match="Whitespace"):
        keys_of(tmp_path / "m", "BertModel", 6, BERT_SETTINGS, tokenizer__json=other)


def field(number, kind, payload):
    return bytes([number << 3 | kind]) + payload


def piece(text, score, kind):
    body = field(1, 2, bytes([len(text.encode())]) + text.encode())
    body += field(2, 5, struct.pack("<f", score)) + field(3, 0, bytes([kind]))
    return field(1, 2, bytes([len(body)]) + body)


def unigram(*pieces):
    normalizer = field(2, 2, b"\x03abc") + field(3, 0, b"\x01") + field(4, 0, b"\x00")
    return (
        b"".join(piece(*one) for one in pieces)
        + field(2, 2, b"\x02" + field(3, 0, b"\x01"))
        + field(3, 2, bytes([len(normalizer)]) + normalizer)
    )


def test_pieces_of_t5_keep_their_numbers(tmp_path):
    model = unigram(("<pad>", 0, 3), ("</s>", 0, 3), ("<unk>", 0, 2), ("\u2581a", -1.5, 1))
    keys = keys_of(tmp_path / "m", "T5EncoderModel", 5, spiece__model=model)
    assert keys["model"] == "t5"
    assert keys["tokens"] == ["<pad>", "</s>", "<unk>", "\u2581a", "[PAD4]"]
    assert keys["scores"] == [0, 0, 0, -1.5, -10000]
    assert keys["token_type"] == [CONTROL, CONTROL, UNKNOWN, NORMAL, UNUSED]
    assert keys["precompiled_charsmap"] == list(b"abc")
    assert keys["add_space_prefix"] is True
    assert keys["remove_extra_whitespaces"] is False


def test_pieces_of_xlm_roberta_move_by_one(tmp_path):
    model = unigram(("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("a", -1, 1), ("b", -2, 1))
    path = tmp_path / "m"
    path.mkdir()
    (path / "sentencepiece.bpe.model").write_bytes(model)
    keys = keys_of(path, "XLMRobertaModel", 7)
    assert keys["tokens"] == ["<s>", "<pad>", "</s>", "<unk>", "a", "b", "[PAD5]"]
    assert keys["token_type"] == [CONTROL, CONTROL, CONTROL, UNKNOWN, NORMAL, NORMAL, UNUSED]
    with pytest.raises(ConvertError, match="6 tokens"):
        keys_of(path, "XLMRobertaModel", 5)


def test_a_unigram_json_gives_scores_and_its_map(tmp_path):
    tokenizer = {
        "normalizer": {
            "type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"x").decode(),
        },
        "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": template("<s>", "A", "</s>"),
            "pair": template("<s>", "A", "</s>", "</s>", "B", "</s>"),
        },
        "added_tokens": [special(0, "<s>"), special(1, "</s>"), special(2, "<unk>")],
        "model": {"type": "Unigram", "unk_id": 2,
                  "vocab": [["<s>", 0], ["</s>", 0], ["<unk>", 0], ["a", -1.5]]},
    }  # fmt: skip
    settings = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    keys = keys_of(tmp_path / "m", "XLMRobertaModel", 4, settings, tokenizer__json=tokenizer)
    assert keys["scores"] == [0, 0, 0, -1.5]
    assert keys["token_type"] == [CONTROL, CONTROL, UNKNOWN, NORMAL]
    assert keys["precompiled_charsmap"] == list(b"x")
    assert [keys[f"add_{name}_token"] for name in ("bos", "eos", "sep")] == [True, True, True]
    tokenizer["normalizer"]["precompiled_charsmap"] = "?"
    with pytest.raises(ConvertError, match="base64"):
        keys_of(tmp_path / "m", "XLMRobertaModel", 4, settings, tokenizer__json=tokenizer)


def test_gemma4_has_merges_bytes_and_rendered_tokens(tmp_path):
    tokenizer = {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "added_tokens": [special(1, "<bos>"), special(2, "<|channel>")],
        "model": {
            "type": "BPE", "byte_fallback": True, "merges": [["a", "b"]],
            "vocab": {
                "<pad>": 0, "<bos>": 1, "<|channel>": 2, "<0x41>": 3, "a": 4, "b": 5, "ab": 6,
            },
        },
    }  # fmt: skip
    settings = {"bos_token": "<bos>", "pad_token": "<pad>"}
    keys = keys_of(tmp_path / "m", "Gemma4ForCausalLM", 7, settings, tokenizer__json=tokenizer)
    assert keys["model"] == "gemma4"
    assert keys["merges"] == ["a b"]
    assert keys["token_type"] == [CONTROL, CONTROL, USER_DEFINED, BYTE, NORMAL, NORMAL, NORMAL]
    assert keys["add_bos_token"] is True
    assert keys["add_space_prefix"] is False
