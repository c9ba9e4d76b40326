"""Vocabularies: the ids others give, every byte accounted for, and hostile files refused by
name.
"""

import copy
import json
import os
import pickle
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

import oxillama
from oxillama.errors import TokenizerError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.tokenizer import TextStream, TokenizerBridge
from oxillama.tokenizer.bpe import BYTE_TO_CHAR
from oxillama.tokenizer.json_file import guarded
from oxillama.tokenizer.vocabulary import CONTROL, USER_DEFINED
from tests.tokenizer.made import bpe, spm

NAMES = ("deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2")


@pytest.mark.parametrize("name", NAMES)
def test_real_vocabularies_give_the_ids_that_others_give_and_the_text_back(cases, name):
    path = cases / "tokenizers" / f"{name}.gguf"
    bridge = TokenizerBridge.from_gguf(path)
    texts = (
        (path.parent / f"{name}.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    )
    wanted = [
        [int(i) for i in line.split()]
        for line in (path.parent / f"{name}.gguf.out").read_text("utf-8").split("\n")
    ]
    assert len(texts) == len(wanted) > 40
    for text, ids in zip(texts, wanted):
        assert bridge.encode(text, add_special=False, parse_special=False) == ids
        assert bridge.decode(ids) == text


def test_the_small_vocabularies_of_every_architecture_give_the_ids_that_others_give(cases):
    checked = 0
    folders = (each for kind in ("arch", "arch_more") for each in (cases / kind).iterdir())
    for folder in sorted(folders):
        bridge = TokenizerBridge.from_gguf(folder / "f32.gguf")
        for case in json.loads((folder / "tokenizer_cases.json").read_text("utf-8")):
            assert (
                bridge.encode(case["text"], add_special=False, parse_special=False) == case["ids"]
            ), (folder.name, case["text"])
            checked += 1
    assert checked > 500


def test_the_vocabularies_of_embedders_give_the_ids_that_others_give(cases):
    checked = 0
    for folder in sorted((cases / "embed").iterdir()):
        bridge = TokenizerBridge.from_gguf(folder / "f32.gguf")
        for case in json.loads((folder / "tokenizer_cases.json").read_text("utf-8")):
            given = [
                bridge.encode(case["text"], add_special=special, parse_special=False)
                for special in (False, True)
            ]
            assert case["ids"] in given, (folder.name, case["text"])
            checked += 1
    assert checked > 200


@pytest.mark.parametrize("name", ("llama-bpe", "llama-spm"))
@settings(deadline=None, max_examples=60)
@given(text=st.text())
@example("a▁b ▁")
def test_any_text_comes_back_and_its_tokens_bytes_join_to_it(cases, name, text):
    bridge = _cached(cases / "tokenizers" / f"{name}.gguf")
    ids = bridge.encode(text, add_special=False, parse_special=False)
    joined = b"".join(bridge.token_bytes(i) for i in ids)
    if name == "llama-spm":  # whose pieces write a space so
        text = text.replace("▁", " ")
    assert (
        joined == ((" " + text) if bridge.vocabulary.add_space_prefix and text else text).encode()
    )
    assert bridge.decode(ids) == text
    stream = bridge.stream()
    assert "".join([stream.feed(i) for i in ids] + [stream.flush()]).encode() == joined


_BRIDGES: dict = {}


def _cached(path):
    if path not in _BRIDGES:
        _BRIDGES[path] = TokenizerBridge.from_gguf(path)
    return _BRIDGES[path]


def test_the_highest_score_merges_first_and_the_leftmost_of_equals():
    bridge = spm({"a": -9, "b": -9, "ab": -2, "ba": -1, "aa": -3}, add_space_prefix=False)
    base = 259
    assert bridge.encode("aba", add_special=False) == [base, base + 3]  # "ba" beats "ab"
    # leftmost pair of equals
    assert bridge.encode("aaa", add_special=False) == [base + 4, base]


def test_what_no_token_covers_falls_back_to_bytes():
    bridge = spm({"a": 0.0}, add_space_prefix=False)
    assert bridge.encode("é", add_special=False) == [3 + 0xC3, 3 + 0xA9]
    assert bridge.decode([3 + 0xC3, 3 + 0xA9]) == "é"


def test_specials_are_added_and_parsed_only_when_asked():
    bridge = bpe(
        ["h i"],
        {"<|x|>": CONTROL, "<|xy|>": USER_DEFINED, "<|end|>": CONTROL},
        bos_token_id=257,
        add_bos_token=True,
    )
    hi, x, xy, end = 256, 257, 258, 259
    assert bridge.encode("hi<|x|>hi<|xy|>") == [x, hi, x, hi, xy]
    assert bridge.encode("hi<|xy|>", add_special=False, parse_special=False) == [hi, xy]
    assert x not in bridge.encode("<|x|>", add_special=False, parse_special=False)
    assert bridge.token_bytes(x) == b"" and bridge.token_bytes(xy) == b"<|xy|>"
    assert (
        bridge.decode([x, hi]) == "hi" and bridge.decode([x, hi], skip_special=False) == "<|x|>hi"
    )
    assert bridge.eog_ids == {end}
    assert bridge.is_special(x) and not bridge.is_special(xy)


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"eos_token_id": 9999, "add_eos_token": True}, "names no eos token"),
        ({"add_bos_token": "yes"}, "add_bos_token: found 'yes'"),
        ({"token_type": np.zeros(3, np.int32)}, "token_type: found int32 of shape (3,)"),
        ({"scores": np.full(260, np.nan, np.float32)}, "no finite score"),
        ({"scores": np.zeros(260, np.uint8)}, "scores: found uint8"),
        ({"token_type": np.ones(260, np.uint8)}, "token_type: found uint8"),
        ({"model": "gpt2"}, "merges: missing"),
        ({"model": "gemma4", "merges": ["a"]}, "merge 0 is 'a'"),
        ({"tokens": []}, "tokenizer.ggml.tokens"),
        ({"model": "unheard"}, "'unheard'"),
        ({"lstrip_token_ids": np.array([9999], np.int32)}, "lstrip_token_ids: found 9999"),
        ({"space_prefix": "both"}, "space_prefix: found 'both', wanted 'always' or 'first'"),
    ],
)
@pytest.mark.filterwarnings("ignore:tokenizer.ggml.eos_token_id")
def test_an_inconsistent_vocabulary_is_refused_by_name(keys, word):
    with pytest.raises(TokenizerError) as caught:
        spm({"a": 0.0}, **keys)
    assert word in str(caught.value)


def test_a_special_id_outside_the_vocabulary_is_no_token_and_said_so():
    with pytest.warns(UserWarning, match="eos_token_id: found 9999"):
        assert spm({"a": 0.0}, eos_token_id=9999).eos_id is None


def test_an_unknown_pre_tokenizer_is_refused_by_name_unless_allowed():
    with pytest.raises(TokenizerError, match="'unheard'"):
        bpe(["h i"], pre="unheard")
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "unheard",
        "tokenizer.ggml.tokens": list(BYTE_TO_CHAR.values()),
        "tokenizer.ggml.merges": ["a b"],
    }
    assert TokenizerBridge.from_metadata(metadata, allow_unknown_pre=True).decode(
        [65]
    ) == TokenizerBridge.from_metadata(metadata | {"tokenizer.ggml.pre": "default"}).decode([65])


def test_a_byte_without_a_token_is_an_error_and_not_a_hole():
    tokens = [char for byte, char in BYTE_TO_CHAR.items() if byte != 0x7A]
    bridge = TokenizerBridge.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": ["a b"],
        }
    )
    assert bridge.decode(bridge.encode("abc")) == "abc"
    with pytest.raises(TokenizerError, match="0x7A"):
        bridge.encode("abz")


def test_a_control_character_without_a_token_is_left_out_as_the_library_leaves_it_out():
    lacking = (0x01, 0x0B, 0x7F)
    tokens = [char for byte, char in BYTE_TO_CHAR.items() if byte not in lacking] + ["!!"]
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ["! !"]}
    bridge = TokenizerBridge.from_metadata({f"tokenizer.ggml.{k}": v for k, v in keys.items()})
    library = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [("!", "!")]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in ("a\x01b", "!\x01!", "\x01\x0b\x7f", "a \x0b!\x7f!b", "\x02"):
        assert bridge.encode(text) == library.encode(text).ids, text


@pytest.mark.parametrize("name", ("llama-spm", "llama-bpe"))
def test_one_character_a_hundred_thousand_times_takes_no_longer_than_other_text(cases, name):
    bridge = _cached(cases / "tokenizers" / f"{name}.gguf")
    for char in "a A.<0":
        begin = time.process_time()
        ids = bridge.encode(char * 100_000, add_special=False)
        assert time.process_time() - begin < 2
        assert bridge.decode(ids) == char * 100_000


def test_texts_that_cannot_be_encoded_are_refused_by_name():
    bridge = bpe(["h i"], pre="llama-bpe")
    with pytest.raises(TokenizerError, match="surrogate at character 1"):
        bridge.encode("a\ud800")
    with pytest.raises(TokenizerError, match="bytes"):
        bridge.encode(b"a")


def test_ids_outside_the_vocabulary_are_refused():
    bridge = spm({"a": 0.0})
    for bad in (-1, 260):
        with pytest.raises(TokenizerError, match=str(bad)):
            bridge.token_bytes(bad)


@pytest.mark.filterwarnings("ignore:tokenizer.ggml")
def test_bad_vocabularies_are_refused_or_taken_as_their_manifest_says(cases):
    manifest = json.loads((cases / "bad_gguf" / "manifest.json").read_text("utf-8"))
    for name, entry in manifest.items():
        if not name.startswith("tok_"):
            continue
        try:
            TokenizerBridge.from_metadata(
                GgufReader(cases / "bad_gguf" / f"{name}.gguf").metadata
            ).encode("Hello wörld")
            verdict = "accept"
        except TokenizerError:
            verdict = "reject"
        assert entry["expect"] in ("either", verdict), (name, entry)


def gemma4(tokens: list[str], merges: list[str]) -> TokenizerBridge:
    keys = {"model": "gemma4", "tokens": tokens, "merges": merges, "unknown_token_id": 0}
    return TokenizerBridge.from_metadata({f"tokenizer.ggml.{k}": v for k, v in keys.items()})


@settings(deadline=None)
@given(st.lists(st.sampled_from(["▁ a", "a b", "b a", "▁a b", "ab a", "a a", "b b"]), unique=True))
def test_gemma4_merges_in_the_order_of_its_list_as_the_library_does(merges):
    tokens = ["<unk>", "▁", "a", "b", *(merge.replace(" ", "") for merge in merges)]
    merges = [each for each in merges if all(part in tokens for part in each.split())]
    bridge = gemma4([*dict.fromkeys(tokens)], merges or ["▁ a"])
    library = Tokenizer(
        models.BPE(
            {t: i for i, t in enumerate(dict.fromkeys(tokens))},
            [tuple(each.split()) for each in merges],
        )
    )
    library.normalizer = normalizers.Replace(" ", "▁")
    for text in ("ab aba  bab", "aaaa", " ba", "abababa b"):
        assert bridge.encode(text, add_special=False) == library.encode(text).ids


def test_gemma4_takes_a_run_of_line_ends_whole_where_it_is_a_token():
    bridge = gemma4(["<unk>", "a", "\n", "\n\n", "\n\n\n"], ["\n \n"])
    assert bridge.encode("a\n\n\na\n\n", add_special=False) == [1, 4, 1, 3]


@pytest.mark.parametrize("pre", ["gemma4", "granite-embed-multi-311m", "sarvam-moe"])
def test_pieces_with_merges_in_a_gpt2_file_are_read_as_gemma4s(pre):
    tokens = ["<unk>", "<bos>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "▁ab"]
    keys = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": ["▁ a", "▁a b"]}
    keys |= {"unknown_token_id": 0, "bos_token_id": 1, "token_type": [2, 3] + [1] * 261}
    bridge = TokenizerBridge.from_metadata({f"tokenizer.ggml.{k}": v for k, v in keys.items()})
    ids = bridge.encode(" ab é\n", add_special=False)
    assert [tokens[i] for i in ids] == ["▁ab", "▁", "<0xC3>", "<0xA9>", "<0x0A>"]
    assert bridge.decode(ids) == " ab é\n"
    assert bridge.add_bos is (pre != "sarvam-moe")


@pytest.mark.parametrize("pre", ["roberta-bpe", "jina-v1-en", "jina-v2-code"])
def test_vocabularies_of_roberta_put_a_separator_more_between_two_texts(pre):
    bridge = bpe([], {"</s>": CONTROL}, pre=pre, seperator_token_id=256)
    assert bridge.vocabulary.sep_between
    assert not bpe([], {"</s>": CONTROL}, seperator_token_id=256).vocabulary.sep_between


def test_tokens_that_are_not_utf8_are_told_of_the_key(tmp_path):
    with GgufWriter(tmp_path / "v.gguf", "llama") as writer:
        writer.add("tokenizer.ggml.model", "llama")
        writer.add("tokenizer.ggml.tokens", ["<unk>", "abcé"])
    data = (tmp_path / "v.gguf").read_bytes().replace("é".encode(), b"\xc3c")
    (tmp_path / "v.gguf").write_bytes(data)
    with pytest.raises(TokenizerError, match="^tokenizer.ggml.tokens: string 1 of 2: .* UTF-8$"):
        TokenizerBridge.from_gguf(tmp_path / "v.gguf")


def test_a_file_without_kinds_has_bytes_by_their_names_and_its_models_first_tokens():
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"]
    keys = {"model": "llama", "tokens": tokens, "scores": np.zeros(len(tokens), np.float32)}
    made = TokenizerBridge.from_metadata({f"tokenizer.ggml.{k}": v for k, v in keys.items()})
    assert made.encode("aé") == [1, 259, 260, 3 + 0xC3, 3 + 0xA9]
    assert made.decode([259, 260, 3 + 0xC3, 3 + 0xA9]) == "aé"
    assert (made.eos_id, made.vocabulary.special["unk"]) == (2, 0)


@pytest.mark.parametrize("pre", ["glm4", "glm5"])
def test_a_word_of_glm_that_is_a_token_is_taken_whole(pre):
    # "a b" merges first, after which nothing makes " ab": the token is reached as a whole only
    bridge = bpe(["a b", "Ġ a", "Ġa b"], pre=pre)
    assert bridge.encode(" ab", add_special=False) == [258]
    assert len(bpe(["a b", "Ġ a", "Ġa b"], pre="chatglm-bpe").encode(" ab")) == 2


def added_token(index: object, text: str) -> dict:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": text, "special": True, **flags}


def json_tokenizer() -> dict:
    return {
        "version": "1.0",
        "added_tokens": [added_token(256, "<|x|>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "vocab": {char: i for i, char in enumerate(BYTE_TO_CHAR.values())},
            "merges": [],
        },
    }


def test_a_tokenizer_json_with_a_token_for_whole_words_alone_is_refused_by_name():
    tokenizer = json_tokenizer()
    tokenizer["added_tokens"][0]["single_word"] = True
    with pytest.raises(TokenizerError, match="'<|x|>': single_word: found True, wanted false"):
        TokenizerBridge.from_tokenizer_json(json.dumps(tokenizer))


def test_a_tokenizer_json_reads_control_tokens_only_where_asked():
    bridge = TokenizerBridge.from_tokenizer_json(json.dumps(json_tokenizer()))
    assert bridge.encode("a<|x|>") == [*bridge.encode("a"), 256]
    assert 256 not in bridge.encode("a<|x|>", parse_special=False)


def test_a_mutated_tokenizer_json_is_read_or_refused_by_name():
    whole = json.dumps(json_tokenizer())
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(400):
        data = bytearray(whole.encode())
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(data)))
            data[at : at + int(rng.integers(0, 3))] = rng.bytes(int(rng.integers(0, 3)))
        try:
            TokenizerBridge.from_tokenizer_json(data.decode("latin-1")).encode("ab <|x|>")
        except TokenizerError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("index", [-1, 0, 300, 1 << 31, True, "256", None, 1.5])
def test_an_added_token_with_an_id_out_of_range_is_refused_by_name(index):
    made = json_tokenizer()
    made["added_tokens"].append(added_token(index, "<|y|>"))
    with pytest.raises(TokenizerError, match="tokenizer.json"):
        TokenizerBridge.from_tokenizer_json(json.dumps(made))


@pytest.mark.parametrize("part", ["added_tokens", "model", "pre_tokenizer"])
@pytest.mark.parametrize("value", [7, "x", {"a": 1}, [1], [None], [[]]])
def test_a_tokenizer_json_with_a_part_of_another_kind_is_refused_by_name(part, value):
    with pytest.raises(TokenizerError, match="tokenizer.json"):
        TokenizerBridge.from_tokenizer_json(json.dumps(json_tokenizer() | {part: value}))


def test_a_tokenizer_json_whose_merges_lack_the_prefix_of_its_parts_is_refused_by_name():
    """The library cuts the prefix off by its length, and ends the process over half a character."""
    vocabulary = {"a": 0, "\u65e5": 1, "a\u65e5": 2, "(b": 3, "ab": 4}
    parts = {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}

    def made(merge, prefix):
        model = {"type": "BPE", "vocab": vocabulary, "merges": [["a", "(b"], merge]}
        model["continuing_subword_prefix"] = prefix
        about = {"version": "1.0", "added_tokens": [], **parts, "model": model}
        return TokenizerBridge.from_tokenizer_json(json.dumps(about))

    assert made(["a", "(b"], "(").encode("ab") == [4]
    for merge in (["a", "\u65e5"], "a \u65e5", ["a", "a"]):
        with pytest.raises(
            TokenizerError, match=r"merges\[1\]: found '.' at its end, .* with '\('"
        ):
            made(merge, "(")


def test_a_tokenizer_json_that_is_not_utf8_is_refused_by_name(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'{"version": "\xff"}')
    with pytest.raises(TokenizerError, match="tokenizer.json"):
        TokenizerBridge.from_tokenizer_json(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
def test_a_pipe_in_place_of_a_tokenizer_json_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(TokenizerError, match="tokenizer.json: not a regular file, wanted a tokeni"):
        TokenizerBridge.from_tokenizer_json(tmp_path / "tokenizer.json")


def test_a_panic_of_the_tokenizers_library_is_a_typed_error():
    class PanicException(BaseException):
        pass

    def panics(text: str) -> str:
        raise PanicException(f"called unwrap on {text}\nbacktrace")

    with pytest.raises(TokenizerError, match="^tokenizers: panicked: called unwrap on x$"):
        guarded(panics, "x")

    def interrupted(text: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(interrupted, "x")


def test_a_tokenizer_json_gives_the_same_ids_as_the_keys_it_was_made_from():
    merges = ["h e", "l l", "he ll", "hell o"]
    bridge = bpe(merges)
    ids = {text: i for i, text in enumerate(bridge.vocabulary.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    other = TokenizerBridge.from_tokenizer_json(tokenizer.to_str())
    for text in ("hello hello", "  hé\n\nllo", ""):
        assert other.encode(text) == bridge.encode(text)
        assert other.decode(other.encode(text)) == text
    with pytest.raises(TokenizerError, match="tokenizer.json"):
        TokenizerBridge.from_tokenizer_json("{}")


@given(st.binary(max_size=40), st.integers(1, 5))
def test_a_stream_gives_what_the_whole_gives_and_never_half_a_character(data, size):
    stream = TextStream(lambda token: b"")
    pieces = [stream.feed_bytes(data[i : i + size]) for i in range(0, len(data), size)]
    assert len(stream.pending) <= 3
    twin = stream.fork()
    assert "".join(pieces) + stream.flush() == data.decode("utf-8", "replace")
    assert stream.pending == b"" and "".join(pieces) + twin.flush() == data.decode(
        "utf-8", "replace"
    )


@given(st.text())
def test_a_stream_of_valid_text_never_replaces_anything(text):
    stream = TextStream(lambda token: b"")
    pieces = [stream.feed_bytes(bytes([byte])) for byte in text.encode()]
    assert "".join(pieces) == text and stream.flush() == "" and stream.pending == b""


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_a_batch_of_texts_has_the_ids_of_each(num_threads):
    bridge = oxillama.load().tokenizer
    long = "Once upon a time there was a <|im_start|>fox. " * 2000
    parts = (long[i : i + 900] for i in range(99))
    texts = ["", "a", long, "Tim", long[7:], long[:70_000], "\n", *parts]
    for options in ({}, {"add_special": False}, {"parse_special": False}):
        found = bridge.encode_batch(iter(texts), num_threads=num_threads, **options)
        assert found == [bridge.encode(text, **options) for text in texts]
    assert bridge.encode_batch([]) == []


def test_a_batch_refuses_what_is_no_list_of_texts():
    bridge = oxillama.load().tokenizer
    with pytest.raises(TokenizerError, match="texts: found str, wanted a list of texts"):
        bridge.encode_batch("abc")
    for wrong in (None, 5, b"abc"):
        with pytest.raises(TokenizerError, match=f"texts: found {type(wrong).__name__}, wanted"):
            bridge.encode_batch(wrong)
    with pytest.raises(TokenizerError, match="text: found int, wanted str"):
        bridge.encode_batch(["a" * 70_000, 3, "b" * 70_000], num_threads=2)
    with pytest.raises(oxillama.ConfigError, match="num_threads"):
        bridge.encode_batch(["a"], num_threads=-1)


def test_an_engine_tokenizes_batches():
    with oxillama.load() as engine:
        texts = ["Once upon a time", "Hello"]
        assert engine.tokenize_batch(texts) == [engine.tokenize(text) for text in texts]


def test_a_vocabulary_can_be_pickled_and_copied(cases):  # for processes that prepare texts
    text = "Käse 12 \U0001f98a  <|x|> <s> end\n"
    made = [
        TokenizerBridge.from_gguf(cases / "tokenizers" / "gpt-2.gguf"),
        spm({"▁a": 0.0, "b": 0.0}),
        bpe(["a b"], {"<|x|>": CONTROL}),
        TokenizerBridge.from_tokenizer_json(json.dumps(json_tokenizer())),
    ]
    kinds = ("bert", "t5", "rwkv", "gemma4", "plamo2")
    for path in sorted((cases / "arch").glob("*/f32.gguf")):
        with GgufReader(path) as reader:
            model = reader.metadata.get("tokenizer.ggml.model")
            if model in kinds:
                made.append(TokenizerBridge.from_metadata(reader.metadata))
    for bridge in made:
        for again in (pickle.loads(pickle.dumps(bridge)), copy.deepcopy(bridge)):
            for special in (False, True):
                ids = bridge.encode(text, add_special=special, parse_special=special)
                assert again.encode(text, add_special=special, parse_special=special) == ids
            assert again.decode(ids) == bridge.decode(ids)
            assert again.vocab_bytes() == bridge.vocab_bytes()
            assert (again.eog_ids, repr(again)) == (bridge.eog_ids, repr(bridge))
