"""The smaller vocabulary models against independent programs and by hand: unigram, WordPiece, rwkv,
special tokens.
"""

import re
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from oxillama.errors import TokenizerError
from oxillama.tokenizer import TokenizerBridge, spm
from oxillama.tokenizer.specials import SpecialTokens
from oxillama.tokenizer.splits import SPLITS, WHOLE_WORDS
from oxillama.tokenizer.unigram import CharacterMap


def bridge(model, tokens, kinds, **keys) -> TokenizerBridge:
    return TokenizerBridge.from_metadata(
        {
            "tokenizer.ggml.model": model,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array(kinds, np.int32),
            **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
        }
    )


# ---- unigram
# --------------------------------------------------------------------------------------------------

PIECES = {
    "▁": -2.5,
    "a": -3.0,
    "b": -3.5,
    "▁a": -3.25,
    "ab": -4.0,
    "▁ab": -4.75,
    "aa": -4.5,
    "ba": -5.0,
    "abab": -6.0,
    "é": -6.5,
    "▁▁": -7.0,
}


def unigram(**keys) -> TokenizerBridge:
    return bridge(
        "t5",
        ["<pad>", "</s>", "<unk>", *PIECES],
        [3, 3, 2] + [1] * len(PIECES),
        scores=np.array([0, 0, 0, *PIECES.values()], np.float32),
        **keys,
    )


@settings(deadline=None)
@given(st.text("▁ a", max_size=30))
def test_a_text_is_cut_before_each_mark_that_ends_a_word(text):
    wanted = re.split("(?<=[^▁])(?=▁)", text)
    assert list(spm.words_of(text)) == [part for part in wanted if part]
    assert spm.marked(text) == text.replace(" ", "▁")


@pytest.mark.parametrize("text", ["ab" * 40, " " * 70, "a b  ab " * 9, "\n" * 30])
def test_a_long_text_is_taken_in_parts_and_has_the_same_ids(text, monkeypatch):
    scores, kinds = np.array([0, *PIECES.values()], np.float32), [2] + [1] * len(PIECES)

    def encoded():
        named = ["<unk>", *PIECES]
        llama = bridge("llama", named, kinds, scores=scores, unknown_token_id=0)
        return unigram().encode(text), llama.encode(text)

    wanted = encoded()
    monkeypatch.setattr(spm, "_LONG", 7)
    assert encoded() == wanted


@settings(deadline=None)
@given(st.text(st.sampled_from("ab é#"), max_size=30))
def test_unigram_finds_the_same_best_path_as_another_program(text):
    other = Tokenizer(
        models.Unigram(
            [("<pad>", -99.0), ("</s>", -99.0), ("<unk>", -99.0), *PIECES.items()], unk_id=2
        )
    )
    other.normalizer = normalizers.Replace(" ", "▁")
    ours = unigram(add_space_prefix=False).encode(text, add_special=False)
    scores = [0.0, 0.0, min(PIECES.values()) - 10, *PIECES.values()]
    theirs = other.encode(text, add_special_tokens=False).ids
    # equals may go either way
    assert ours == theirs or sum(scores[i] for i in ours) == pytest.approx(
        sum(scores[i] for i in theirs)
    )


def test_unigram_adds_its_end_and_treats_spaces_as_the_file_says():
    plain = unigram(add_space_prefix=True)
    assert plain.encode("ab") == [3 + list(PIECES).index("▁ab"), 1]
    assert plain.decode(plain.encode("ab a")) == "ab a"
    squeezed = unigram(add_space_prefix=True, remove_extra_whitespaces=True)
    assert squeezed.encode("  ab   a ") == squeezed.encode("ab a") == plain.encode("ab a")
    assert (
        plain.encode("##", add_special=False)[-1:] == [2]
        and plain.encode("##", add_special=False).count(2) == 1
    )


def character_map(pairs: dict[str, str]) -> bytes:
    """A SentencePiece normalisation table of single-byte keys, laid out by hand: the root's
    children at 256, their values after 512.
    """
    array = [0] * 1024
    array[0] = 256 << 10
    texts = b""
    for i, (key, replacement) in enumerate(pairs.items()):
        node, value = 256 ^ ord(key), 512 + 2 * i
        array[node] = (node ^ value) << 10 | 1 << 8 | ord(key)
        array[value] = len(texts) | 1 << 31
        texts += replacement.encode() + b"\0"
    return struct.pack("<I", 4 * len(array)) + struct.pack(f"<{len(array)}I", *array) + texts


def test_the_character_map_replaces_as_another_program_does():
    table = character_map({"A": "a", "B": "bb", "\t": " "})
    ours, other = CharacterMap(table), normalizers.Precompiled(table)
    for text in ("ABBA cab\tA", "é A", "", "xyz"):
        assert (
            ours.map(text)
            == other.normalize_str(text)
            == text.replace("A", "a").replace("B", "bb").replace("\t", " ")
        )
    assert unigram(precompiled_charsmap=np.frombuffer(table, np.uint8)).encode(
        "A"
    ) == unigram().encode("a")


@pytest.mark.parametrize(
    "table",
    [
        b"\1\2",
        b"\4\0\0\0",
        b"\xff\xff\xff\xff" + b"x" * 40,
        b"\0\0\0\0x",
        struct.pack("<II", 4, 1 << 20) + b"x",
    ],
)
def test_a_broken_character_map_is_refused(table):
    with pytest.raises(TokenizerError, match="precompiled_charsmap"):
        CharacterMap(table).map("abc")


# ---- WordPiece
# --------------------------------------------------------------------------------------------------

WORDS = ["▁un", "▁want", "ed", "able", "▁hello", "▁,", "▁!", "▁世", "▁cafe", "▁a", "s"]


def test_wordpiece_cuts_words_as_another_program_does():
    ours = bridge(
        "bert",
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS],
        [3, 3, 3, 3] + [1] * len(WORDS),
        bos_token_id=2,
        seperator_token_id=3,
        unknown_token_id=1,
    )
    names = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *(word[1:] if word[0] == "▁" else "##" + word for word in WORDS),
    ]
    other = Tokenizer(
        models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    )
    other.normalizer, other.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    for text in ("Hello, unwanted!", "unable wants  nothing", "世世 CAFÉ\n\x00a", "", "as, as!"):
        assert (
            ours.encode(text, add_special=False) == other.encode(text, add_special_tokens=False).ids
        ), text
    assert ours.encode("hello") == [2, 8, 3]
    assert ours.decode(ours.encode("hello, a")) == "hello , a"


@pytest.mark.parametrize(
    ("keys", "pair"),
    [
        ({}, [2, 4, 3, 4, 3]),
        ({"add_eos_token": True}, [2, 4, 3, 4, 3]),
        ({"add_eos_token": True, "add_sep_token": False}, [2, 4, 3, 4, 3]),
        ({"add_eos_token": True, "add_sep_token": True}, [2, 4, 3, 3, 4, 3]),
    ],
)
def test_one_token_ends_a_text_of_bert_whatever_its_file_calls_it(keys, pair):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hello"]
    ids = {"bos_token_id": 2, "seperator_token_id": 3, "eos_token_id": 3, "unknown_token_id": 1}
    ours = bridge("bert", tokens, [3, 3, 3, 3, 1], **ids, **keys)
    assert ours.encode("hello") == [2, 4, 3]
    assert ours.encode_pair("hello", "hello") == pair


def test_wordpiece_keeps_the_code_points_that_the_library_keeps():
    """Unassigned code points stay in their word; control, format and private ones are dropped."""
    library = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False
    )
    for point in (0x378, 0xE000, 0x10FFFE, 0xAD, 0x200B, 0x1, 0x85F, 0x2FE0, 0xE0001):
        word = f"a{chr(point)}b"
        kept = library.normalize_str(word) == word
        tokens = ["[PAD]", "[UNK]", "▁ab", f"▁{word}"]
        made = bridge("bert", tokens, [3, 3, 1, 1], unknown_token_id=1, pre="bert-bge")
        assert made.encode(word, add_special=False) == [3 if kept else 2], hex(point)


def test_a_cased_wordpiece_vocabulary_keeps_letters_as_they_are():
    words = ["▁Café", "▁cafe"]
    keys = {
        "unknown_token_id": 0,
        "normalizer.lowercase": False,
        "add_bos_token": False,
        "add_sep_token": False,
    }
    ours = bridge("bert", ["[UNK]", *words], [2, 1, 1], **keys)
    assert ours.encode("Café cafe CAFE") == [1, 2, 0]


# ---- rwkv
# --------------------------------------------------------------------------------------------------


def test_rwkv_takes_the_longest_token_and_unescapes_what_the_file_escaped():
    tokens = ["<s>", "a", "ab", "abc", r"\n", r"\xe4", r"\xbd\xa0", r"\\", "d"]
    ours = bridge("rwkv", tokens, [3] + [1] * (len(tokens) - 1))
    assert ours.encode("abcabd\n你\\") == [3, 2, 8, 4, 5, 6, 7]
    assert ours.decode([3, 2, 8, 4, 5, 6, 7]) == "abcabd\n你\\"
    with pytest.raises(TokenizerError, match="0x7A"):
        ours.encode("z")


# ---- plamo2
# --------------------------------------------------------------------------------------------------

PLAMO = {"a": -3.0, "b": -3.5, "ab": -6.5, "aba": -7.0, "é": -2.0, " a": -4.0, "▁": -5.0, "b b": -8}


def plamo(pieces=PLAMO, *, count=256) -> TokenizerBridge:
    bytes_of = [f"<0x{byte:02X}>" for byte in range(count)]
    scores = [0.0] * (4 + count) + [*pieces.values()]
    return bridge(
        "plamo2",
        ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", *bytes_of, *pieces],
        [2, 3, 3, 3] + [6] * count + [1] * len(pieces),
        scores=np.array(scores, np.float32),
        add_space_prefix=False,
    )


@settings(deadline=None)
@given(st.text("ab é▁z", max_size=9))
def test_plamos_split_is_the_cheapest_and_its_first_token_the_longest(text):
    ours = plamo()
    first = 4 + 256

    def splits(rest):
        """(cost, minus the lengths, tokens) of every way to split; bytes for what has no token."""
        if not rest:
            yield 0, (), ()
            return
        starts = [(len(p), -round(s * 1e4), (first + i,)) for i, (p, s) in enumerate(PLAMO.items())
                  if rest.startswith(p)]  # fmt: skip
        starts.append((1, 10_000_000, tuple(4 + byte for byte in rest[0].encode())))
        for length, cost, tokens in starts:
            for more, lengths, others in splits(rest[length:]):
                yield cost + more, (-length, *lengths), tokens + others

    assert ours.encode(text) == list(min(splits(text))[2])
    assert ours.decode(ours.encode(text)) == text


def test_plamo_writes_unknown_characters_as_bytes_and_no_control_tokens():
    ours = plamo()
    assert ours.encode("日a") == [4 + byte for byte in "日".encode()] + [260]
    # equal sums: the longer token; and no space is added, nor a mark read as one
    assert (ours.encode("ab"), ours.encode("▁")) == ([262], [266])
    assert ours.encode("<|plamo:eos|>") == [2]
    assert 2 not in ours.encode("<|plamo:eos|>", parse_special=False)
    assert (ours.bos_id, ours.eos_id, ours.add_bos) == (1, 2, False)
    with pytest.raises(TokenizerError, match="no byte token <0xF0>"):
        plamo(count=0xF0)


# ---- special tokens and splits
# ---------------------------------------------------------------------------------------


@given(
    st.lists(st.text("<|ab>", min_size=1, max_size=6), min_size=1, max_size=60, unique=True),
    st.text("<|ab>", max_size=40),
)
def test_special_tokens_are_found_leftmost_and_longest(texts, text):
    ids = {special: i for i, special in enumerate(texts)}
    pattern = re.compile("(" + "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) + ")")
    wanted = [
        (piece, ids[piece] if i % 2 else None)
        for i, piece in enumerate(pattern.split(text))
        if piece
    ]
    assert list(SpecialTokens(ids).split(text)) == wanted


def test_thousands_of_special_tokens_do_not_slow_a_hostile_text_down():
    special = SpecialTokens({f"<unused{i}>": i for i in range(6000)})
    assert list(special.split("<" * 300_000)) == [("<" * 300_000, None)]
    assert [token for _, token in special.split("<unused17><unused" * 2)] == [17, None, 17, None]


def test_every_split_compiles_and_loses_nothing():
    text = "Don't PANIC'LL 1234567 你好abc ÉCOLEs\r\n\n\t  x!!;  Привет 👩‍👩‍👧 a\u0301b  "
    for name, expressions in SPLITS.items():
        splitter = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions]
        )
        assert "".join(word for word, _ in splitter.pre_tokenize_str(text)) == text, name
    assert SPLITS.keys() >= WHOLE_WORDS


def test_names_that_end_a_turn_are_control_tokens_whatever_the_file_calls_them():
    from oxillama.tokenizer.bpe import BYTE_TO_CHAR

    tokens = [*BYTE_TO_CHAR.values(), "<|im_end|>", "<|other|>", "<|file_sep|>"]
    ours = bridge("gpt2", tokens, [1] * 256 + [1, 3, 3], merges=["a b"], pre="qwen2")
    assert ours.eog_ids == {256, 258} and ours.is_special(256)
    assert ours.encode("a<|im_end|>") == [64, 256]


def test_phi_3_swallows_the_white_space_after_its_special_tokens():
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "<|user|>", "\n"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([2, 3, 3, 1, 1, 3, 1], np.int32),
        "tokenizer.ggml.scores": np.zeros(7, np.float32),
        "tokenizer.ggml.add_space_prefix": False,
    }
    assert TokenizerBridge.from_metadata(metadata).encode("<|user|>\n a") == [1, 5, 6, 3, 4]
    assert TokenizerBridge.from_metadata(metadata | {"general.name": "Phi-3-mini"}).encode(
        "<|user|>\n a"
    ) == [1, 5, 4]
    # white space beyond ASCII is text
    phi = metadata | {"general.name": "Phi-3-mini", "tokenizer.ggml.tokens": [*tokens, "\u2003"]}
    phi["tokenizer.ggml.token_type"] = np.array([2, 3, 3, 1, 1, 3, 1, 1], np.int32)
    phi["tokenizer.ggml.scores"] = np.zeros(8, np.float32)
    assert TokenizerBridge.from_metadata(phi).encode("<|user|> \u2003a") == [1, 5, 7, 4]


@pytest.mark.parametrize("kind", [1, 3, 4])
def test_a_marker_of_completion_is_a_control_token_whatever_the_file_calls_it(kind):
    from oxillama.tokenizer.bpe import BYTE_TO_CHAR

    tokens = [*BYTE_TO_CHAR.values(), "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"]
    ours = bridge("gpt2", tokens, [1] * 256 + [kind] * 3, merges=["a b"], pre="deepseek-coder")
    text = "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>"
    assert ours.encode(text) == [256, 64, 257, 65, 258]
    assert max(ours.encode(text, parse_special=False)) < 256
    assert ours.decode(ours.encode(text, parse_special=False)) == text


def test_long_words_are_not_remembered():
    wordpiece = bridge("bert", ["[UNK]", "▁a", "a"], [2, 1, 1], unknown_token_id=0)
    for ours in (wordpiece, unigram(unknown_token_id=2)):
        ours.encode("a b")
        tracemalloc.start()
        try:
            for size in range(10_000, 10_100):
                ours.encode("a" * size, add_special=False)
            assert tracemalloc.get_traced_memory()[0] < 500_000
        finally:
            tracemalloc.stop()
