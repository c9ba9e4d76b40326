"""Vocabularies of encoders and of Gemma 4, from small tokenizer files made here."""

import base64
import json
import os
import struct

import pytest
from tokenizers import Tokenizer

from oxillama.convert import convert_folder
from oxillama.convert.chat_templates import template_keys
from oxillama.convert.family import FAMILIES, Hyper
from oxillama.convert.folder import ModelFolder
from oxillama.convert.vocabulary import vocabulary_keys
from oxillama.errors import ConvertError, TokenizerError
from oxillama.tokenizer import TokenizerBridge
from oxillama.tokenizer.bpe import BYTE_TO_CHAR
from oxillama.tokenizer.splits import SPLITS
from oxillama.tokenizer.template import ChatTemplate
from oxillama.tokenizer.vocabulary import WHITE, read_vocabulary
from tests.convert.folders import tiny_llama

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


@pytest.mark.parametrize("name", ["clean_text", "handle_chinese_chars"])
def test_what_bert_does_to_texts_is_not_left_out(tmp_path, name):
    other = {**WORDPIECE, "normalizer": {**WORDPIECE["normalizer"], name: False}}
    with pytest.raises(ConvertError, match=f"normalizer: {name}: found False, wanted true"):
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
    for name, step in (
        ("normalizer", {"type": "Lowercase"}),
        ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}),
        ("pre_tokenizer", {"type": "Digits", "individual_digits": True}),
    ):
        more = {"type": "Sequence", f"{name}s".replace("_", ""): [tokenizer[name], step]}
        with pytest.raises(ConvertError, match=f"{name}: found .'type': '{step['type']}'"):
            keys_of(tmp_path / "m", "XLMRobertaModel", 4, settings,
                    tokenizer__json={**tokenizer, name: more})  # fmt: skip
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}
    more = {"type": "Sequence", "normalizers": [tokenizer["normalizer"], spaces]}
    assert {**keys, "remove_extra_whitespaces": True} == keys_of(
        tmp_path / "m", "XLMRobertaModel", 4, settings,
        tokenizer__json={**tokenizer, "normalizer": more},
    )  # fmt: skip
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


# ---- SentencePiece with tokens of tokenizer_config.json ------------------------------------------

LLAMA = (("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("\u2581a", -1, 1), ("b", -2, 1))


def sentencepiece(place, size, settings=None, architecture="LlamaForCausalLM", **files):
    place.mkdir()
    trainer = field(3, 0, b"\x02")  # merges pairs
    model = field(2, 2, bytes([len(trainer)]) + trainer) + b"".join(piece(*one) for one in LLAMA)
    (place / "tokenizer.model").write_bytes(model)
    return keys_of(place, architecture, size, settings, **files)


def test_a_folder_whose_vocabulary_could_not_be_loaded_is_refused(tmp_path):
    place = tiny_llama(tmp_path / "m")
    model = b"".join(piece(*one) for one in (*LLAMA, ("<0xZZ>", 0, BYTE)))
    (place / "tokenizer.model").write_bytes(model)
    match = "its file's vocabulary could not be loaded: tokenizer.ggml.tokens: byte token 5"
    with pytest.raises(ConvertError, match=match):
        convert_folder(place, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def added(text, special=True):
    return {"content": text, "special": special}


def test_added_tokens_take_their_places_as_in_other_files(tmp_path):
    settings = {"added_tokens_decoder": {
        "0": added("<unk>"), "4": added("\u2581x", False), "6": added("<|turn|>", False),
    }}  # fmt: skip
    more = {"<more>": 7}
    keys = sentencepiece(tmp_path / "m", 9, settings, added_tokens__json=more)
    assert keys["tokens"][4:] == [" x", "[PAD5]", "<|turn|>", "<more>", "[PAD8]"]
    # a name between bars is special although the folder does not say so
    assert keys["token_type"] == [
        *(CONTROL, CONTROL, CONTROL, NORMAL, USER_DEFINED),
        *(UNUSED, CONTROL, USER_DEFINED, UNUSED),
    ]
    wanted = [-1000, 0, 0, -1, -1000, -10000, -1000, -1000, -10000]
    assert keys["scores"] == wanted


def test_tokens_beyond_the_vocabulary_are_left_out_and_told(tmp_path):
    settings = {"added_tokens_decoder": {"5": added("<pad>")}}
    keys = sentencepiece(tmp_path / "m", 5, settings)
    assert len(keys["tokens"]) == 5
    folder, told = ModelFolder(tmp_path / "m"), []
    hyper = Hyper({"vocab_size": 5, "pad_token_id": 5}, "config", folder)
    found = vocabulary_keys(folder, FAMILIES["LlamaForCausalLM"], hyper, told)
    assert told == ["5 '<pad>'"]
    assert "tokenizer.ggml.padding_token_id" not in found


def test_special_tokens_of_both_files_and_of_none(tmp_path):
    """With a tokenizer.json beside the model, its post-processor and its added tokens count."""
    settings = {"bos_token": "<s>", "unk_token": {"content": "<unk>"}, "pad_token": "<none>"}
    tokenizer = {
        "added_tokens": [special(0, "<unk>"), special(1, "<s>")],
        "post_processor": {"type": "TemplateProcessing", "single": template("<s>", "A")},
    }
    keys = sentencepiece(tmp_path / "m", 5, settings, tokenizer__json=tokenizer)
    assert (keys["unknown_token_id"], keys["bos_token_id"]) == (0, 1)
    assert keys["add_bos_token"] is True
    assert "padding_token_id" not in keys
    assert "unknown_token_id" not in sentencepiece(tmp_path / "n", 5, settings)


@pytest.mark.parametrize(
    ("size", "key", "value"), [(32016, "eot_token_id", 32010), (49152, "add_bos_token", False)]
)
def test_sizes_of_vocabularies_that_mean_something_in_a_llama(tmp_path, size, key, value):
    settings = {"add_bos_token": True}
    assert sentencepiece(tmp_path / "m", size, settings)[key] == value
    assert sentencepiece(tmp_path / "n", size - 1, settings).get(key) != value


def test_vocabularies_in_files_that_are_not_read_are_refused(tmp_path):
    for name in ("vocab__json", "vocab__txt"):
        with pytest.raises(ConvertError, match=name.replace("__", ".")):
            keys_of(tmp_path / name, "LlamaForCausalLM", 4, **{name: {}})


# ---- chat templates ------------------------------------------------------------------------------


def test_chat_templates_of_every_form(tmp_path):
    named = [{"name": "default", "template": "A"}, {"name": "tool use", "template": "B"}]
    keys = sentencepiece(tmp_path / "a", 5, {"chat_template": named})
    assert keys["tokenizer.chat_template"] == "A"
    assert keys["tokenizer.chat_template.tool_use"] == "B"
    assert keys["tokenizer.chat_templates"] == ["tool_use"]
    keys = sentencepiece(tmp_path / "b", 5, chat_template__jinja=b"C", settings={})
    assert keys["tokenizer.chat_template"] == "C"
    # transformers takes the file, and not tokenizer_config.json's
    keys = sentencepiece(tmp_path / "c", 5, {"chat_template": "A"}, chat_template__jinja=b"C")
    assert keys["tokenizer.chat_template"] == "C"
    keys = sentencepiece(tmp_path / "d", 5, {"chat_template": "A"},
                         chat_template__json={"chat_template": "D"})  # fmt: skip
    assert keys["tokenizer.chat_template"] == "A"
    keys = sentencepiece(tmp_path / "e", 5, chat_template__json={"chat_template": "D"})
    assert keys["tokenizer.chat_template"] == "D"
    with pytest.raises(ConvertError, match="chat_template"):
        sentencepiece(tmp_path / "f", 5, {"chat_template": 1})


# ---- byte-level vocabularies ---------------------------------------------------------------------


def test_added_tokens_of_byte_level_vocabularies(tmp_path):
    tokenizer = {
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "added_tokens": [
            {"id": 2, "content": "<|im_end|>", "special": False},
            {"id": 3, "content": "\u2581\u2581", "special": False},
        ],
        "model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1}, "merges": []},
    }
    settings = {"bos_token": "<s>"}
    keys = keys_of(tmp_path / "m", "Qwen2ForCausalLM", 5, settings, tokenizer__json=tokenizer)
    assert keys["tokens"] == ["a", "<s>", "<|im_end|>", "  ", "[PAD4]"]
    assert keys["token_type"] == [NORMAL, CONTROL, CONTROL, USER_DEFINED, UNUSED]
    tokenizer["added_tokens"].append({"id": 4, "content": "x", "special": False})
    with pytest.raises(ConvertError, match="token 4"):
        keys_of(tmp_path / "m", "Qwen2ForCausalLM", 4, settings, tokenizer__json=tokenizer)


@pytest.mark.parametrize("pre", ["tiny_aya", "superbpe", "afmoe", "deepseek-v3"])
def test_the_expressions_of_a_folder_name_its_split(tmp_path, pre):
    splits = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in SPLITS[pre]
    ]
    if pre == "afmoe":  # as Trinity's folder writes them
        unspaced = splits[3]["pattern"]
        unspaced["Regex"] = "".join(
            char if char.isascii() else f"\\u{ord(char):04X}" for char in unspaced["Regex"]
        )
    splits.append({"type": "ByteLevel", "add_prefix_space": False, "use_regex": False})
    tokenizer = {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    }
    keys = keys_of(tmp_path / "m", "Qwen2ForCausalLM", 1, tokenizer__json=tokenizer)
    assert keys["pre"] == pre
    splits[0]["behavior"] = "Removed"  # what it matches
    with pytest.raises(ConvertError, match="pre_tokenizer: .*wanted one that keeps all of a text"):
        keys_of(tmp_path / "m", "Qwen2ForCausalLM", 1, tokenizer__json=tokenizer)
    splits[0]["invert"] = True  # what it does not match
    assert keys == keys_of(tmp_path / "m", "Qwen2ForCausalLM", 1, tokenizer__json=tokenizer)


# ---- texts as the folder's library prepares them ------------------------------------------------

TEXTS = (
    "", " ", "a", " a", "  a  b ", "caf\u00e9 cafe\u0301", "x <|l|> y", "x\u3000<|r|>\u00a0\n y",
    "<|l|>", "a <|r|> <|l|> b", "<|r|> a", "\u2581a", "\u1112\u1161\u11ab", "a\x1c<|l|>\x1cb",
)  # fmt: skip


def extra(at, text, **flags):
    said = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": at, "content": text, "special": True, **said, **flags}


def bytes_of(**parts):
    """A byte-level tokenizer.json with one merge."""
    vocab = {char: at for at, char in enumerate([*BYTE_TO_CHAR.values(), "ab"])}
    return {
        "version": "1.0",
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]},
        "added_tokens": [extra(257, "<|l|>", lstrip=True), extra(258, "<|r|>", rstrip=True)],
        **parts,
    }  # fmt: skip


def pieces_of(**parts):
    """A tokenizer.json of SentencePiece's spelling, with bytes."""
    texts = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a"]
    return {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": {text: at for at, text in enumerate(texts)},
                  "merges": [["\u2581", "a"]], "byte_fallback": True, "fuse_unk": True,
                  "unk_token": "<unk>"},
        "added_tokens": [extra(261, "<|l|>", lstrip=True), extra(262, "<|r|>", rstrip=True)],
        **parts,
    }  # fmt: skip


def metaspace(scheme, **more):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False,
            **more}  # fmt: skip


MARKED = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
PREPENDED = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, MARKED]}


def template_of(*parts):
    single = template(*parts)
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *template("B")],
            "special_tokens": {}}  # fmt: skip


@pytest.mark.parametrize(
    "tokenizer",
    [
        bytes_of(),
        bytes_of(normalizer={"type": "NFC"}),
        pieces_of(pre_tokenizer=metaspace("first")),
        pieces_of(pre_tokenizer=metaspace("always")),
        pieces_of(pre_tokenizer=metaspace("never")),
        pieces_of(normalizer=PREPENDED),
    ],
    ids=["bytes", "nfc", "first", "always", "never", "legacy"],
)
def test_ids_of_a_folder_are_those_of_its_library(tmp_path, tokenizer):
    size = len(tokenizer["model"]["vocab"]) + 2
    keys = keys_of(tmp_path / "m", "LlamaForCausalLM", size, tokenizer__json=tokenizer)
    bridge = TokenizerBridge.from_metadata({f"tokenizer.ggml.{k}": v for k, v in keys.items()})
    library = Tokenizer.from_str(json.dumps(tokenizer))
    whole = TokenizerBridge.from_tokenizer_json(json.dumps(tokenizer))
    for text in TEXTS:
        assert bridge.encode(text) == library.encode(text).ids, text
        assert whole.encode(text) == library.encode(text).ids, text


def test_a_folder_without_unusual_preparations_has_the_usual_keys(tmp_path):
    plain = pieces_of(normalizer=PREPENDED, added_tokens=[extra(261, "<s>")])
    keys = keys_of(tmp_path / "m", "LlamaForCausalLM", 262, tokenizer__json=plain)
    unusual = {"space_prefix", "normalizer.nfc", "lstrip_token_ids", "rstrip_token_ids"}
    assert unusual.isdisjoint(keys)


def test_white_space_is_swallowed_where_only_the_settings_say_so(tmp_path):
    (tmp_path / "m").mkdir()
    model = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) + piece("a", -1, 1)
    (tmp_path / "m" / "tokenizer.model").write_bytes(model)
    settings = {
        "added_tokens_decoder": {"4": {"content": "<|x|>", "special": True, "rstrip": True}}
    }
    keys = keys_of(tmp_path / "m", "LlamaForCausalLM", 5, settings)
    assert keys["rstrip_token_ids"] == [4] and "lstrip_token_ids" not in keys


@pytest.mark.parametrize(
    ("processor", "settings", "said"),
    [
        (template_of("A"), {}, False),
        (None, {}, None),
        (template_of("A"), {"add_bos_token": True}, True),
        (template_of("<|l|>", "A"), {}, True),
    ],
)
def test_texts_begin_with_a_token_only_where_the_folder_puts_one(
    tmp_path, processor, settings, said
):
    """Files of both kinds mean it if nothing is said, as folders without a template do."""
    split = {"type": "Split", "pattern": {"Regex": SPLITS["llama-bpe"][0]}, "behavior": "Isolated"}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    cut = {"type": "Sequence", "pretokenizers": [split, bytes_only]}
    for name, tokenizer in (
        ("bytes", bytes_of(pre_tokenizer=cut, post_processor=processor)),
        ("pieces", pieces_of(pre_tokenizer=metaspace("first"), post_processor=processor)),
    ):
        tokenizer["model"]["ignore_merges"] = name == "bytes"
        size = len(tokenizer["model"]["vocab"]) + 2
        keys = keys_of(
            tmp_path / name, "LlamaForCausalLM", size, {"bos_token": "<|l|>", **settings},
            tokenizer__json=tokenizer,
        )  # fmt: skip
        assert keys["pre"] == ("llama-bpe" if name == "bytes" else "default")
        assert keys["bos_token_id"] == size - 2
        assert keys.get("add_bos_token") is said


@pytest.mark.parametrize(
    ("pair", "separated"),
    [
        (("<|l|>", "A", "<|l|>", "B"), False),  # as GPT-NeoX: a text's first token is its last
        (("<|l|>", "A", "<|r|>", "B"), True),
        (("<|l|>", "A", "<|r|>", "<|r|>", "B"), True),
    ],
)
def test_what_separates_two_texts_is_named_where_it_is_put(tmp_path, pair, separated):
    single = template("<|l|>", "A")
    processor = {"type": "TemplateProcessing", "single": single, "pair": template(*pair)}
    tokenizer = bytes_of(post_processor=processor)
    settings = {"bos_token": "<|l|>", "eos_token": "<|r|>" if separated else "<|l|>"}
    keys = keys_of(tmp_path / "m", "GPT2LMHeadModel", 259, settings, tokenizer__json=tokenizer)
    bridge = TokenizerBridge.from_metadata({f"tokenizer.ggml.{k}": v for k, v in keys.items()})
    assert bridge.encode("a") == [257, *bridge.encode("a", add_special=False)]
    assert keys["add_sep_token"] is separated
    assert keys.get("seperator_token_id") == (258 if separated else None)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"added_tokens": [extra(261, "x", single_word=True)]}, "'x': single_word: found True"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, MARKED]}},
         "normalizer: found {'type': 'NFKC'}"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            metaspace("first"), {"type": "Digits", "individual_digits": True}]}},
         "pre_tokenizer: found {'type': 'Digits'"),
        ({"pre_tokenizer": metaspace("first", split=True)}, "with the token 'a\u2581'"),
    ],
    ids=["single_word", "nfkc", "digits", "split"],
)  # fmt: skip
def test_a_preparation_that_files_have_no_place_for_is_refused(tmp_path, parts, told):
    tokenizer = pieces_of(**{"pre_tokenizer": metaspace("first"), **parts})
    tokenizer["model"]["vocab"]["a\u2581"] = 261
    tokenizer["added_tokens"] = [{**one, "id": one["id"] + 1} for one in tokenizer["added_tokens"]]
    with pytest.raises(ConvertError) as caught:
        keys_of(tmp_path / "m", "LlamaForCausalLM", 264, tokenizer__json=tokenizer)
    assert told in str(caught.value)


def test_special_tokens_that_are_to_be_split_are_refused(tmp_path):
    tokenizer = pieces_of(pre_tokenizer=metaspace("first"))
    for said in (False, None):
        settings = {"split_special_tokens": said}
        keys_of(tmp_path / "m", "LlamaForCausalLM", 264, settings, tokenizer__json=tokenizer)
    told = "tokenizer_config.json: split_special_tokens: found True, wanted false"
    with pytest.raises(ConvertError, match=told):
        settings = {"split_special_tokens": True}
        keys_of(tmp_path / "m", "LlamaForCausalLM", 264, settings, tokenizer__json=tokenizer)


def bridge_of(place, architecture, size, settings, tokenizer):
    keys = keys_of(place, architecture, size, settings, tokenizer__json=tokenizer)
    return TokenizerBridge.from_metadata({f"tokenizer.ggml.{k}": v for k, v in keys.items()})


SPLIT_AT_WHITE = {"type": "Sequence", "pretokenizers": [
    {"type": "WhitespaceSplit"}, metaspace("always", split=True)]}  # fmt: skip
RUNS = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
AT_END = {"type": "Strip", "strip_left": False, "strip_right": True}


def spacing_map():
    """A map of characters that makes spaces of white space: a double array of one block of 256
    entries for each beginning of a character.
    """
    keys = {char.encode() for char in WHITE if char not in " \x85"}
    starts = sorted({key[:size] for key in keys for size in range(len(key) + 1)})
    array = [0] * (256 * (len(starts) + 1))
    place = {b"": 0}
    for block, start in enumerate(starts, 1):
        at, base = place[start], 256 * block
        label = start[-1] if start else 0
        array[at] = (at ^ base) << 10 | (start in keys) << 8 | label
        if start in keys:
            array[base] = 1 << 31
        place |= {start + bytes([byte]): base ^ byte for byte in range(1, 256)}
    return struct.pack("<I", 4 * len(array)) + struct.pack(f"<{len(array)}I", *array) + b" \0"


def unigram_of(mapped, steps, cut):
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", "a", "\u2581a", "b"]
    charsmap = base64.b64encode(spacing_map()).decode()
    steps = [{"type": "Precompiled", "precompiled_charsmap": charsmap}] * mapped + steps
    return {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": cut,
        "model": {"type": "Unigram", "unk_id": 3, "byte_fallback": False,
                  "vocab": [[text, -float(at)] for at, text in enumerate(pieces)]},
        "added_tokens": [*(extra(at, pieces[at]) for at in range(4)),
                         extra(8, "<mask>", lstrip=True)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("mapped", "steps", "cut"),
    [
        (True, [], metaspace("always")),
        (False, [], metaspace("always")),
        (True, [RUNS], metaspace("always")),
        (True, [AT_END, {**RUNS, "content": "\u2581"}], metaspace("always")),
        (True, [], SPLIT_AT_WHITE),
        (True, [RUNS], SPLIT_AT_WHITE),
    ],
    ids=["map", "plain", "runs", "ends", "split", "split_runs"],
)
def test_spaces_of_a_unigram_model_are_those_of_its_library(tmp_path, mapped, steps, cut):
    tokenizer = unigram_of(mapped, steps, cut)
    library = Tokenizer.from_str(json.dumps(tokenizer))
    for trims in (False, True):  # which is about texts made of ids
        settings = {"clean_up_tokenization_spaces": trims}
        bridge = bridge_of(tmp_path / "m", "XLMRobertaModel", 9, settings, tokenizer)
        for text in ("", " ", "a", " a", "  a", "a ", "a  b ", "a<mask> b", "a <mask>b  "):
            ids = library.encode(text, add_special_tokens=False).ids
            assert bridge.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize(
    ("mapped", "steps", "cut", "told"),
    [
        (True, [], metaspace("first"), "prepend_scheme: found 'first'"),
        (True, [RUNS, AT_END], metaspace("never"), "prepend_scheme: found 'never'"),
        (True, [], metaspace("always", replacement="_"), "replacement: found '_'"),
        (False, [], SPLIT_AT_WHITE, "found WhitespaceSplit without a map"),
        (True, [], {"type": "WhitespaceSplit"}, "found .*'WhitespaceSplit'.*wanted Metaspace"),
        (True, [AT_END], metaspace("always"), "wanted Strip of the right side with"),
    ],
)
def test_spaces_that_files_of_unigram_models_cannot_say_are_refused(
    tmp_path, mapped, steps, cut, told
):
    with pytest.raises(ConvertError, match=told):
        bridge_of(tmp_path / "m", "XLMRobertaModel", 9, {}, unigram_of(mapped, steps, cut))


def test_bytes_and_second_ids_of_unigram_models_are_refused(tmp_path):
    tokenizer = unigram_of(False, [], metaspace("always"))
    tokenizer["model"]["byte_fallback"] = True  # without such tokens it says nothing
    assert bridge_of(tmp_path / "m", "XLMRobertaModel", 9, {}, tokenizer).encode("a")
    tokenizer["model"]["vocab"].append(["<0x0A>", -9.0])
    with pytest.raises(ConvertError, match="model.byte_fallback: found true, wanted false"):
        bridge_of(tmp_path / "m", "XLMRobertaModel", 10, {}, tokenizer)
    tokenizer = unigram_of(False, [], metaspace("always"))
    tokenizer["added_tokens"].append(extra(9, "a"))
    with pytest.raises(ConvertError, match="'a': found the id 9, wanted 5, which it has"):
        bridge_of(tmp_path / "m", "XLMRobertaModel", 10, {}, tokenizer)


@pytest.mark.parametrize(
    "added",
    [
        [(0, "x"), (1, "y"), (1, "y")],
        [(1, "x")],
        [(0, "x"), (2, "y")],
        [(1, "x"), (0, "y")],
        [(0, "x"), (1, "x")],
    ],
)
def test_added_tokens_have_the_ids_that_the_library_gives_them(tmp_path, added):
    for kind, tokenizer in (
        ("LlamaForCausalLM", pieces_of(normalizer=PREPENDED)),
        ("XLMRobertaModel", unigram_of(False, [], metaspace("always"))),
        ("BertModel", wordpiece_of()),
    ):
        own = tokenizer["added_tokens"]
        free = max(len(tokenizer["model"]["vocab"]), *(one["id"] + 1 for one in own))
        tokenizer["added_tokens"] = [*own, *(extra(free + at, text) for at, text in added)]
        library = Tokenizer.from_str(json.dumps(tokenizer))
        wrong = [text for at, text in added if library.token_to_id(text) != free + at]
        assert bool(wrong) == (len(added) < 3)
        if not wrong:
            keys_of(tmp_path / "m", kind, free + 3, tokenizer__json=tokenizer)
            continue
        wanted = library.token_to_id(wrong[0])
        told = f"added_tokens: '{wrong[0]}': found the id .*, wanted {wanted}, which tokenizers "
        with pytest.raises(ConvertError, match=told):
            keys_of(tmp_path / "m", kind, free + 3, tokenizer__json=tokenizer)


def wordpiece_of(processor=None, **model):
    texts = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##a", "b", "##b", "c"]
    return {
        **WORDPIECE,
        "version": "1.0",
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "lowercase": True,
                       "handle_chinese_chars": True, "strip_accents": None},
        "post_processor": processor,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100,
                  "vocab": {text: at for at, text in enumerate(texts)}, **model},
        "added_tokens": [*(extra(at, texts[at]) for at in range(4)),
                         extra(9, "New York", special=False), extra(10, "ab", special=False)],
    }  # fmt: skip


@pytest.mark.parametrize("unknown", ["[UNK]", "[PAD]", "c"])
def test_ids_of_a_wordpiece_folder_are_those_of_its_library(tmp_path, unknown):
    tokenizer = wordpiece_of(unk_token=unknown)
    library = Tokenizer.from_str(json.dumps(tokenizer))
    bridge = bridge_of(tmp_path / "m", "BertModel", 11, {"unk_token": "[UNK]"}, tokenizer)
    for text in ("a b", "aa x b", "a\u2581b", "a New York b", "babb", "Ab", "b" * 100, "b" * 101):
        ids = library.encode(text, add_special_tokens=False).ids
        assert bridge.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"max_input_chars_per_word": 99}, "max_input_chars_per_word: found 99, wanted 100"),
        ({"unk_token": "none"}, "model.unk_token: found 'none', wanted a token"),
    ],
)
def test_settings_of_wordpiece_without_a_place_are_refused(tmp_path, parts, told):
    with pytest.raises(ConvertError, match=told):
        bridge_of(tmp_path / "m", "BertModel", 11, {}, wordpiece_of(**parts))


def processor_of(*parts):
    found = {text: {"id": text, "ids": [at], "tokens": [text]}
             for at, text in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]"))}  # fmt: skip
    single = [{"Sequence": {"id": part, "type_id": 0}} if part == "A"
              else {"SpecialToken": {"id": part, "type_id": 0}} for part in parts]  # fmt: skip
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": found}


BERT_PROCESSOR = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}


@pytest.mark.parametrize(
    ("processor", "settings"),
    [
        (processor_of("[CLS]", "A"), {"cls_token": "[CLS]", "sep_token": "[SEP]"}),
        (processor_of("[CLS]", "A"), {"cls_token": "[CLS]", "bos_token": "[PAD]"}),
        (processor_of("A", "[SEP]"), {"sep_token": "[SEP]"}),
        (BERT_PROCESSOR, {"cls_token": "[CLS]", "sep_token": "[SEP]", "bos_token": "[PAD]"}),
    ],
)
def test_tokens_around_a_text_are_those_of_the_post_processor(tmp_path, processor, settings):
    tokenizer = wordpiece_of(processor)
    library = Tokenizer.from_str(json.dumps(tokenizer))
    bridge = bridge_of(tmp_path / "m", "BertModel", 11, settings, tokenizer)
    whole = TokenizerBridge.from_tokenizer_json(json.dumps(tokenizer))
    for text in ("", "a"):
        assert bridge.encode(text) == whole.encode(text) == library.encode(text).ids


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (("A", "[SEP]", "[SEP]"), "found .*SEP.*, wanted a text with tokens before it"),
        (("A", "A"), "found .'a text', 'a text'., wanted a text with tokens before it"),
        (("[CLS]", "[OTHER]", "A"), "found .*OTHER.* before a text, wanted tokens of the"),
        (("[UNK]", "A"), "found '.UNK.' before a text, wanted bos_token or cls_token"),
    ],
)
def test_tokens_around_a_text_without_a_place_are_refused(tmp_path, parts, told):
    tokenizer = wordpiece_of(processor_of(*parts))
    settings = {"bos_token": "[PAD]", "cls_token": "[CLS]"}
    with pytest.raises(ConvertError, match=f"post_processor: .*{told}"):
        bridge_of(tmp_path / "m", "BertModel", 11, settings, tokenizer)
    if parts[-1] == "[SEP]":
        with pytest.raises(TokenizerError, match="post_processor: makes .* wanted them with"):
            TokenizerBridge.from_tokenizer_json(json.dumps(tokenizer))


def test_several_tokens_before_a_text_are_kept(tmp_path):
    """GLM 4 begins texts with two."""
    parts = [{"type_id": 0, "id": "<|l|>"}, {"type_id": 0, "id": "<|r|>"}]
    single = [*({"SpecialToken": part} for part in parts), {"Sequence": {"type_id": 0, "id": "A"}}]
    processor = {"type": "TemplateProcessing", "single": single,
                 "pair": [*single, {"Sequence": {"type_id": 1, "id": "B"}}],
                 "special_tokens": {text: {"id": text, "ids": [at], "tokens": [text]}
                                    for at, text in ((257, "<|l|>"), (258, "<|r|>"))}}  # fmt: skip
    tokenizer = bytes_of(post_processor=processor)
    library = Tokenizer.from_str(json.dumps(tokenizer))
    keys = keys_of(tmp_path / "m", "GPT2LMHeadModel", 259, {}, tokenizer__json=tokenizer)
    named = {f"tokenizer.ggml.{k}": v for k, v in keys.items()}
    bridge = TokenizerBridge.from_metadata(named)
    whole = TokenizerBridge.from_tokenizer_json(json.dumps(tokenizer))
    for text in ("", "ab"):
        ids = library.encode(text).ids
        assert ids[:2] == [257, 258]
        assert bridge.encode(text) == whole.encode(text) == ids
    assert bridge.encode("<|l|>a") == [257, *bridge.encode("a", add_special=False)]
    assert bridge.lead_ids == whole.lead_ids == [257, 258]
    for wrong in ([258, 257], [257, 9999]):
        with pytest.raises(TokenizerError, match=f"lead_token_ids: found .{wrong[0]}, {wrong[1]}"):
            TokenizerBridge.from_metadata(named | {"tokenizer.ggml.lead_token_ids": wrong})


@pytest.mark.parametrize(
    ("merges", "said"),
    [
        (["\u2581 a", "a b", "b c", "ab c", "a bc"], False),  # as SentencePiece's
        (["\u2581 a", "a b", "ab c"], True),  # no merge makes bc
        (["\u2581 a", "b c", "ab c", "a b", "a bc"], True),  # abc at two ranks
    ],
)
def test_merges_that_scores_cannot_say_are_in_the_file(tmp_path, merges, said):
    tokenizer = pieces_of(pre_tokenizer=metaspace("never"), added_tokens=[])
    vocab = tokenizer["model"]["vocab"]
    for text in ("c", "ab", "bc", "abc"):
        vocab[text] = len(vocab)
    tokenizer["model"]["merges"] = [pair.split(" ") for pair in merges]
    library = Tokenizer.from_str(json.dumps(tokenizer))
    keys = keys_of(tmp_path / "m", "LlamaForCausalLM", len(vocab), {}, tokenizer__json=tokenizer)
    assert keys.get("by_merges", False) is said and ("merges" in keys) is said
    bridge = TokenizerBridge.from_metadata({f"tokenizer.ggml.{k}": v for k, v in keys.items()})
    for text in ("abc", "bc", "bbc a", "aabcbc ab\nabc", "\u00e9abc"):
        assert bridge.encode(text, add_special=False) == library.encode(text).ids, text
    tokenizer["model"]["ignore_merges"] = True
    if said:
        with pytest.raises(ConvertError, match="ignore_merges: found true, wanted false"):
            bridge_of(tmp_path / "m", "LlamaForCausalLM", len(vocab), {}, tokenizer)


def test_a_vocabulary_by_merges_needs_them():
    with pytest.raises(TokenizerError, match="by_merges: found true, wanted merges beside it"):
        read_vocabulary({
            "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"],
            "tokenizer.ggml.by_merges": True,
        })  # fmt: skip


def test_a_merge_that_is_listed_twice_has_its_last_place(tmp_path):
    tokenizer = bytes_of()
    vocab = tokenizer["model"]["vocab"]
    vocab["bc"] = len(vocab)
    tokenizer["model"]["merges"] = [["a", "b"], ["b", "c"], ["a", "b"]]
    tokenizer["added_tokens"] = []
    library = Tokenizer.from_str(json.dumps(tokenizer))
    bridge = bridge_of(tmp_path / "m", "LlamaForCausalLM", len(vocab), {}, tokenizer)
    assert bridge.encode("abc") == library.encode("abc").ids == [vocab["a"], vocab["bc"]]


def test_a_space_is_put_before_a_text_once(tmp_path):
    """By a normaliser, so that a Metaspace has nothing to put."""
    for scheme in ("first", "always"):
        tokenizer = pieces_of(normalizer=PREPENDED, pre_tokenizer=metaspace(scheme))
        library = Tokenizer.from_str(json.dumps(tokenizer))
        size = len(tokenizer["model"]["vocab"]) + 2
        bridge = bridge_of(tmp_path / "m", "LlamaForCausalLM", size, {}, tokenizer)
        whole = TokenizerBridge.from_tokenizer_json(json.dumps(tokenizer))
        for text in TEXTS:
            ids = library.encode(text).ids
            assert bridge.encode(text) == whole.encode(text) == ids, text


@pytest.mark.parametrize(
    ("tokenizer", "told"),
    [
        (pieces_of(pre_tokenizer=metaspace("first", replacement="_")), "replacement: found '_'"),
        (pieces_of(normalizer=PREPENDED["normalizers"][0]), "wanted one that writes spaces as"),
        (pieces_of(normalizer={"type": "Sequence", "normalizers": [*PREPENDED["normalizers"]] * 2}),
         "wanted one Prepend at most"),
        (pieces_of(added_tokens=[extra(261, "a")], normalizer=PREPENDED),
         "added_tokens: 'a': found the id 261, wanted 258"),
        (bytes_of(pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            {"type": "Split", "pattern": {"Regex": SPLITS["gpt-2"][0]}, "behavior": "Isolated"}]}),
         "behind ByteLevel, wanted it before"),
    ],
    ids=["replacement", "unmarked", "twice", "two_ids", "behind"],
)  # fmt: skip
def test_steps_that_files_do_not_take_are_refused(tmp_path, tokenizer, told):
    size = len(tokenizer["model"]["vocab"]) + 2
    with pytest.raises(ConvertError, match=told):
        bridge_of(tmp_path / "m", "LlamaForCausalLM", size, {}, tokenizer)


def decoders(*steps):
    return {"type": "Sequence", "decoders": [*steps]}


SPACED = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
BYTES_BACK = ({"type": "ByteFallback"}, {"type": "Fuse"})
STRIPPED = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}


@pytest.mark.parametrize(
    ("pieces", "decoder", "told"),
    [
        (True, decoders(SPACED, *BYTES_BACK, STRIPPED), None),
        (True, decoders(SPACED, *BYTES_BACK), None),
        (True, decoders(BYTES_BACK[0], metaspace("always")), None),
        (True, {"type": "Metaspace", "replacement": "_"}, "found .*'replacement': '_'"),
        (True, decoders({**SPACED, "content": "_"}, *BYTES_BACK), "found .*'content': '_'"),
        (True, decoders(SPACED, *BYTES_BACK, {**STRIPPED, "start": 2}), "found .*'start': 2"),
        (True, decoders(*BYTES_BACK), ".*wanted Replace or Metaspace among them"),
        (True, BYTE_DECODER, "found .*'ByteLevel'"),
        (False, BYTE_DECODER, None),
        (False, decoders(BYTE_DECODER, STRIPPED), "found .*'Strip'"),
        (False, {"type": "BPEDecoder", "suffix": "</w>"}, "found .*'BPEDecoder'"),
        (False, {"type": "Fuse"}, ".*wanted ByteLevel among them"),
    ],
)
def test_decoders_that_files_do_not_mean_are_refused(tmp_path, pieces, decoder, told):
    made = pieces_of(normalizer=PREPENDED) if pieces else bytes_of()
    tokenizer = {**made, "decoder": decoder}
    size = len(tokenizer["model"]["vocab"]) + 2
    if told is None:
        bridge = bridge_of(tmp_path / "m", "LlamaForCausalLM", size, {}, tokenizer)
        ids = bridge.encode("ab \u00e9a", add_special=False)
        library = Tokenizer.from_str(json.dumps(tokenizer))
        assert bridge.decode(ids) == library.decode(ids).removeprefix(" ") == "ab \u00e9a"
        return
    with pytest.raises(ConvertError, match=f"decoder: {told}"):
        bridge_of(tmp_path / "m", "LlamaForCausalLM", size, {}, tokenizer)


def test_results_of_a_tokenizer_json_are_not_cut_and_not_filled_up():
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    filled = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
              "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}  # fmt: skip
    plain = TokenizerBridge.from_tokenizer_json(json.dumps(bytes_of()))
    whole = TokenizerBridge.from_tokenizer_json(
        json.dumps(bytes_of(truncation=cut, padding=filled))
    )
    for text in ("", "abc abc", "a<|l|>b abc"):
        assert whole.encode(text) == plain.encode(text)


def test_a_tokenizer_json_that_draws_its_ids_is_refused():
    tokenizer = bytes_of()
    tokenizer["model"]["dropout"] = 0.5
    with pytest.raises(TokenizerError, match="model.dropout: found 0.5, wanted none"):
        TokenizerBridge.from_tokenizer_json(json.dumps(tokenizer))


def test_the_first_token_of_a_tokenizer_json_is_that_of_the_file():
    tokenizer = json.dumps(wordpiece_of(processor_of("[CLS]", "A")))
    with pytest.raises(TokenizerError, match="puts the token 2 before a text, wanted 0, which"):
        TokenizerBridge.from_tokenizer_json(tokenizer, metadata={"tokenizer.ggml.bos_token_id": 0})


def test_tokens_that_a_folder_suppresses_are_kept(tmp_path):
    tokenizer = {
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    }

    def keys(said):
        return keys_of(tmp_path / "m", "Qwen2ForCausalLM", 2, tokenizer__json=tokenizer,
                       generation_config__json={"suppress_tokens": said})  # fmt: skip

    assert keys([1, 0])["suppress_tokens"] == [1, 0]
    assert "suppress_tokens" not in keys(None)
    for wrong in (["a"], 3, [True]):
        with pytest.raises(ConvertError, match="suppress_tokens: found .*, wanted token ids"):
            keys(wrong)


def test_every_end_of_the_generation_configuration_ends_a_text(tmp_path):
    """Those that are known by name need no key."""
    vocabulary = {text: at for at, text in enumerate(["a", "b", "c", "d", "ab", "<|im_end|>"])}
    tokenizer = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b"]},
        "pre_tokenizer": {"type": "ByteLevel"},
        "added_tokens": [special(0, "a"), special(5, "<|im_end|>")],
    }

    def ends(said):
        keys = keys_of(tmp_path / "m", "Qwen2ForCausalLM", 6, {"eos_token": "a"},
                       tokenizer__json=tokenizer, generation_config__json=said)  # fmt: skip
        found = {"tokenizer.ggml." + name: value for name, value in keys.items()}
        return [keys.get(f"{name}_token_id") for name in ("eos", "eot", "eom")], read_vocabulary(
            found
        ).end_ids()

    assert ends({}) == ends({"eos_token_id": 0}) == ([0, None, None], {0, 5})
    assert ends({"eos_token_id": [5, 0, 2, 2]}) == ([0, 2, None], {0, 2, 5})
    assert ends({"eos_token_id": 3}) == ([0, 3, None], {0, 3, 5})
    assert ends({"eos_token_id": [2, 1, -1, 99]}) == ([0, 2, 1], {0, 1, 2, 5})
    with pytest.raises(ConvertError, match=r"eos_token_id: found \[1, 2, 3\], .* no place for 'd'"):
        ends({"eos_token_id": [1, 2, 3]})


def test_qwens_byte_strings_give_the_merges_that_made_them(tmp_path):
    strings = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"hex", b"he"]
    lines = [b"%s %d" % (base64.b64encode(one), rank) for rank, one in enumerate(strings)]
    # "hex" has no two parts among the tokens before it
    with pytest.raises(ConvertError, match="hex"):
        keys_of(tmp_path / "m", "QWenLMHeadModel", 300, qwen__tiktoken=b"\n".join(lines))
    del lines[259]
    lines[259] = lines[259].replace(b" 260", b" 259")
    keys = keys_of(tmp_path / "m", "QWenLMHeadModel", 300, qwen__tiktoken=b"\n".join(lines))
    assert keys["merges"] == ["t h", "th e", "\u0120 the", "h e"]
    assert keys["tokens"][258:263] == ["\u0120the", "he", "<|endoftext|>", "<|im_start|>",
                                      "<|im_end|>"]  # fmt: skip
    assert keys["token_type"][259:261] == [NORMAL, CONTROL]
    assert (keys["bos_token_id"], keys["eos_token_id"], keys["unknown_token_id"]) == (260,) * 3
    assert keys["pre"] == "qwen2"
    with pytest.raises(ConvertError, match="line 1"):
        keys_of(tmp_path / "m", "QWenLMHeadModel", 300, qwen__tiktoken=b"? 0")


SPLIT = SPLITS["tekken"][0]


def ranked(strings):
    return [
        {"rank": rank, "token_bytes": base64.b64encode(each).decode(), "token_str": None}
        for rank, each in enumerate(strings)
    ]


def tekken(*, version="v7", special=None, pattern=SPLIT, count=290, controls=25, **wrong):
    """Mistral's file: 256 bytes and five tokens of more, one of which is beyond the count."""
    strings = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"he", b"hex"]
    listed = ranked(strings + [bytes([97 + at, 98]) for at in range(10)])
    config = {"pattern": pattern, "default_vocab_size": count, "version": version}
    config["default_num_special_tokens"] = controls
    return {"config": config, "vocab": listed, "special_tokens": special, **wrong}


def test_mistrals_byte_strings_stand_behind_the_special_tokens(tmp_path):
    keys = keys_of(tmp_path / "m", "LlamaForCausalLM", 292, tekken__json=tekken())
    assert (keys["model"], keys["pre"]) == ("gpt2", "tekken")
    assert keys["tokens"][:5] == ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    assert keys["tokens"][19:26] == [
        *("[TOOL_CONTENT]", "<SPECIAL_20>", "<SPECIAL_21>", "<SPECIAL_22>", "<SPECIAL_23>"),
        *("<SPECIAL_24>", "\u0100"),
    ]
    assert keys["tokens"][25 + 256 : 25 + 261] == ["th", "the", "\u0120the", "he", "hex"]
    assert keys["tokens"][289:] == ["db", "[PAD290]", "[PAD291]"]
    assert keys["merges"][:5] == ["t h", "th e", "\u0120 the", "h e", "he x"]
    assert [keys["token_type"][at] for at in (0, 24, 25, 289, 290)] == [
        *(CONTROL, CONTROL, NORMAL, NORMAL, UNUSED)
    ]
    ends = ("bos", "eos", "unknown", "padding")
    assert [keys[f"{name}_token_id"] for name in ends] == [1, 2, 0, 11]
    assert keys["add_bos_token"] is True and keys["add_eos_token"] is False
    named = [{"rank": at, "token_str": text} for at, text in ((0, "<unk>"), (1, "<s>"), (2, "[A]"))]
    keys = keys_of(tmp_path / "n", "LlamaForCausalLM", 290, tekken__json=tekken(special=named))
    assert keys["tokens"][1:4] == ["<s>", "[A]", "<SPECIAL_3>"]
    assert "eos_token_id" not in keys


TURNS = [("system", "S"), ("user", "A"), ("assistant", "B"), ("user", "C")]


@pytest.mark.parametrize(
    "version, wanted",
    [
        ("v3", "<s>[INST]A[/INST]B</s>[INST]S\n\nC[/INST]"),
        ("v7", "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]A[/INST]B</s>[INST]C[/INST]"),
        ("v13", "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]A[/INST]B</s>[INST]C[/INST]"),
    ],
)
def test_conversations_of_mistrals_file_are_those_of_its_version(tmp_path, version, wanted):
    """As mistral-common writes them."""
    keys = keys_of(tmp_path / "m", "LlamaForCausalLM", 290, tekken__json=tekken(version=version))
    made = ChatTemplate(keys["tokenizer.chat_template"])
    messages = [{"role": role, "content": text} for role, text in TURNS]
    assert made.render(messages, bos_token="<s>", eos_token="</s>") == wanted
    own = {"chat_template__jinja": b"{{ 1 }}", "tekken__json": tekken(version="v99")}
    keys = keys_of(tmp_path / "n", "LlamaForCausalLM", 290, **own)
    assert keys["tokenizer.chat_template"] == "{{ 1 }}"


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"version": "v99"}, "config: version: found 'v99', wanted one of v3, v7"),
        ({"pattern": "."}, r"config: pattern: no known split: '\.'"),
        ({"count": 400}, "vocab: found 271, wanted at least the 375 tokens"),
        ({"controls": 5}, "special_tokens: found 20, wanted texts for ranks below 5"),
        ({"special": [{"rank": "1"}]}, "special_tokens: found {'rank': '1'}, wanted a rank and"),
        ({"config": []}, r"config: found \[\], wanted an object"),
        (
            {"vocab": [{"rank": 1}] * 290},
            "vocab: found {'rank': 1} in place 0, wanted that rank and",
        ),
        ({"vocab": ranked([b"a", b"b", b"ab", b"ab"] * 80)}, "b'ab' has the ranks 2 and 3"),
        (
            {"vocab": ranked([*(bytes([byte]) for byte in range(256)), b"abc"] + [b"xy"] * 30)},
            "b'abc' is not made of two tokens before it",
        ),
    ],
)
def test_a_file_of_mistrals_that_is_not_whole_is_refused(tmp_path, wrong, said):
    with pytest.raises(ConvertError, match=f"tekken.json: {said}"):
        keys_of(tmp_path / "m", "LlamaForCausalLM", 500, tekken__json=tekken(**wrong))
    with pytest.raises(ConvertError, match="tekken.json: 290 tokens, config.json says 289"):
        keys_of(tmp_path / "n", "LlamaForCausalLM", 289, tekken__json=tekken())


def test_plamos_tokens_have_scores_and_kinds(tmp_path):
    rows = [
        ["<unk>", 0, "UNKNOWN", 0],
        ["<|plamo:bos|>", 0, "CONTROL", 0],
        ["<0x00>", 0, "BYTE", 0],
        ["a", -1.5, "NORMAL", 0],
        ["<|plamo:op|>", 0, "NORMAL", 0],
    ]
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    settings = {"bos_token": "<|plamo:bos|>", "unk_token": "<unk>"}
    keys = keys_of(tmp_path / "m", "Plamo3ForCausalLM", 6, settings, tokenizer__jsonl=lines)
    assert keys["model"] == "plamo2"
    assert keys["token_type"] == [UNKNOWN, CONTROL, BYTE, NORMAL, CONTROL, UNUSED]
    assert keys["scores"] == [0, 0, 0, -1.5, 0, -1000]
    assert (keys["bos_token_id"], keys["unknown_token_id"], keys["eot_token_id"]) == (1, 0, 4)
    with pytest.raises(ConvertError, match="line 1"):
        keys_of(tmp_path / "m", "Plamo3ForCausalLM", 6, settings, tokenizer__jsonl=b"{}")


# ---- malformed files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"added_tokens_decoder": [1]}, r"config.json: added_tokens_decoder: found \[1\], wanted"),
        ({"added_tokens_decoder": {"\u00b2": added("x")}}, "added_tokens_decoder: found '\u00b2'"),
        ({"added_tokens_decoder": {"9" * 5000: added("x")}}, "added_tokens_decoder: found '9999"),
        ({"chat_template": 7}, "chat_template: found 7, wanted a text or a list"),
        ({"chat_template": [7]}, "chat_template: found 7, wanted a name and a template"),
        (
            {"chat_template": [{"name": n, "template": "t"} for n in ("a-b", "a_b")]},
            "chat_template: found two whose name is 'a_b'",
        ),
    ],
)
def test_malformed_settings_are_refused_by_name(tmp_path, settings, told):
    with pytest.raises(ConvertError, match=told):
        sentencepiece(tmp_path / "m", 5, settings)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"vocab": {"a": 0, "b": 0}}, "found 'a' and 'b' with the id 0, wanted one token for each"),
        ({"vocab": {"a": 10**400}}, "token 1000000000000000000000000000000000000000 is beyond the"),
        ({"vocab": {"a": 0}, "merges": True}, "model.merges: found True, wanted pairs"),
        ({"vocab": {"a": 0}, "merges": [["a", ""]]}, r"model.merges: found \['a', ''\], wanted"),
        ({"vocab": {"a": 0}, "pre": 1}, r"pre_tokenizer: found \[\], wanted one ByteLevel"),
        ({"vocab": {"a": 0}, "dropout": 0.1}, "model.dropout: found 0.1, wanted none"),
        (
            {"vocab": {"a": 0}, "end_of_word_suffix": "</w>"},
            "model.end_of_word_suffix: found '</w>', wanted none",
        ),
    ],
)
def test_a_malformed_tokenizer_is_refused_by_name(tmp_path, model, told):
    with pytest.raises(ConvertError, match=f"tokenizer.json: .*{told}"):
        keys_of(tmp_path / "m", "Qwen2ForCausalLM", 4, tokenizer__json={
            "model": {"type": "BPE", **model},
        })  # fmt: skip


def test_values_that_do_not_fit_together_are_told_with_the_folder(tmp_path):
    cut = {"type": "Sequence", "pretokenizers": 5}
    with pytest.raises(ConvertError, match="m: the values of its vocabulary's files do not fit"):
        keys_of(tmp_path / "m", "Qwen2ForCausalLM", 4, tokenizer__json={
            "model": {"type": "BPE", "vocab": {"a": 0}}, "pre_tokenizer": cut,
        })  # fmt: skip


def test_a_literal_of_rwkvs_vocabulary_is_a_text_or_bytes(tmp_path):
    lines = {"rwkv_vocab_v20230424__txt": b"1 'a' 1\n2 99999999999 99999999999\n"}
    with pytest.raises(
        ConvertError, match="line 2: found '2 99999999999 .*, wanted a number, a li"
    ):
        keys_of(tmp_path / "m", "Rwkv7ForCausalLM", 9, **lines)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja", "tokenizer.json"])
def test_pipes_and_links_to_nothing_are_neither_waited_for_nor_left_out(tmp_path, name):
    sentencepiece(tmp_path / "m", 5)
    path = tmp_path / "m" / name
    path.unlink(missing_ok=True)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    folder = ModelFolder(tmp_path / "m")
    of = FAMILIES["LlamaForCausalLM"], Hyper(config, "config", folder)
    os.mkfifo(path)
    with pytest.raises(ConvertError, match=f"{name}: not a regular file"):
        vocabulary_keys(folder, *of)
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(ConvertError, match=f"{name}: a link to nowhere, which is missing"):
        vocabulary_keys(folder, *of)


def test_template_files_come_before_the_configuration(tmp_path):
    folder = tiny_llama(tmp_path / "m")
    settings = {"chat_template": "said"}

    def templates():
        return {
            key.removeprefix("tokenizer.chat_template"): value
            for key, (value, _) in template_keys(ModelFolder(folder), settings).items()
        }

    assert templates() == {"": "said"}
    more = folder / "additional_chat_templates"
    more.mkdir()
    assert templates() == {"": "said"}
    (more / "tool_use.jinja").write_text("tools")
    # as transformers: files are all there is, with or without one that has no name
    assert templates() == {".tool_use": "tools", "s": ["tool_use"]}
    (folder / "chat_template.jinja").write_text("file")
    assert templates() == {"": "file", ".tool_use": "tools", "s": ["tool_use"]}
