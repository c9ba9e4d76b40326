"""Vocabularies: the ids others give, every byte accounted for, and hostile files refused by name."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import TokenizerError
from oxillama.gguf import GgufReader
from oxillama.tokenizer import TextStream, TokenizerBridge
from oxillama.tokenizer.bpe import BYTE_TO_CHAR
from oxillama.tokenizer.vocabulary import CONTROL, NORMAL, USER_DEFINED

NAMES = ("deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2")


def spm(pieces: dict[str, float], **keys) -> TokenizerBridge:
    """A small `llama` vocabulary: three specials, 256 bytes, then `pieces` with their scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    kinds = np.array([2, 3, 3] + [6] * 256 + [1] * len(pieces), np.int32)
    scores = np.array([0.0] * 259 + list(pieces.values()), np.float32)
    return TokenizerBridge.from_metadata(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": scores,
            **{f"tokenizer.ggml.{k}": v for k, v in keys.items()},
        }
    )


def bpe(merges: list[str], extra: dict[str, int] | None = None, **keys) -> TokenizerBridge:
    """A small byte-level vocabulary: 256 bytes, the merges' products, then `extra` tokens with
    their kinds.
    """
    tokens = list(BYTE_TO_CHAR.values()) + [merge.replace(" ", "", 1) for merge in merges]
    kinds = [NORMAL] * len(tokens) + list((extra or {}).values())
    tokens += list(extra or {})
    return TokenizerBridge.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array(kinds, np.int32),
            "tokenizer.ggml.merges": merges or ["a b"],
            **{f"tokenizer.ggml.{k}": v for k, v in keys.items()},
        }
    )


@pytest.mark.parametrize("name", NAMES)
def test_real_vocabularies_give_the_ids_that_others_give_and_the_text_back(cases, name):
    path = cases / "tokenizers" / f"{name}.gguf"
    bridge = TokenizerBridge.from_gguf(path)
    texts = (
        (path.parent / f"{name}.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    )
    wanted = [
        [int(i) for i in line.split()]
        for line in (path.parent / f"{name}.gguf.out").read_text().split("\n")
    ]
    assert len(texts) == len(wanted) > 40
    for text, ids in zip(texts, wanted):
        assert bridge.encode(text, add_special=False, parse_special=False) == ids
        assert bridge.decode(ids) == text


def test_the_small_vocabularies_of_every_architecture_give_the_ids_that_others_give(cases):
    checked = 0
    for folder in sorted((cases / "arch").iterdir()):
        bridge = TokenizerBridge.from_gguf(folder / "f32.gguf")
        for case in json.loads((folder / "tokenizer_cases.json").read_text()):
            assert (
                bridge.encode(case["text"], add_special=False, parse_special=False) == case["ids"]
            ), (folder.name, case["text"])
            checked += 1
    assert checked > 500


@pytest.mark.parametrize("name", ("llama-bpe", "llama-spm"))
@settings(deadline=None, max_examples=60)
@given(text=st.text())
def test_any_text_comes_back_and_its_tokens_bytes_join_to_it(cases, name, text):
    bridge = _cached(cases / "tokenizers" / f"{name}.gguf")
    ids = bridge.encode(text, add_special=False, parse_special=False)
    joined = b"".join(bridge.token_bytes(i) for i in ids)
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
        ({"tokens": []}, "tokenizer.ggml.tokens"),
        ({"model": "unheard"}, "'unheard'"),
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
    with pytest.raises(TokenizerError, match="4000001 characters in a row"):
        bridge.encode(" " * 4_000_001)
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
    manifest = json.loads((cases / "bad_gguf" / "manifest.json").read_text())
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


def test_a_tokenizer_json_gives_the_same_ids_as_the_keys_it_was_made_from():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

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
