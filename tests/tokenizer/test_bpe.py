"""Byte-pair merging over tables made from a file's bytes: the ids that the `tokenizers` library
gives, for any vocabulary and text.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from oxillama._core.bpe import BpeTables, Splitter, Strings, merge_pieces
from oxillama.errors import TokenizerError
from oxillama.tokenizer.bpe import BYTE_TO_CHAR

WHOLE = Splitter([])  # a text is one piece


def vocabulary(seed: int, count: int) -> tuple[list[str], list[str]]:
    """Bytes, then products of random pairs of earlier tokens of few letters; some products come of
    two merges.
    """
    rng = np.random.default_rng(seed)
    tokens, merges = list(BYTE_TO_CHAR.values()), []
    letters = [BYTE_TO_CHAR[byte] for byte in b"ab e"]
    for _ in range(count):
        left, right = rng.choice(letters, 2)
        if f"{left} {right}" not in merges:
            merges.append(f"{left} {right}")
        if left + right not in tokens:
            tokens.append(left + right)
            letters.append(left + right)
    return tokens, merges


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 30),
    st.integers(0, 40),
    st.booleans(),
    st.lists(st.text("abe é", max_size=60), max_size=5),
)
def test_pieces_merge_as_the_library_merges_them(seed, count, whole_words, pieces):
    tokens, merges = vocabulary(seed, count)
    ids = {token: i for i, token in enumerate(tokens)}
    library = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=[tuple(merge.split(" ")) for merge in merges],
            ignore_merges=whole_words,
        )
    )
    spelled = ["".join(BYTE_TO_CHAR[byte] for byte in piece.encode()) for piece in pieces]
    wanted = [
        token for piece in spelled for token in library.encode(piece, add_special_tokens=False).ids
    ]
    tables = BpeTables(Strings.of(tokens), Strings.of(merges), BYTE_TO_CHAR)
    for _ in range(2):  # the second time short pieces are remembered
        found = [token for piece in pieces for token in tables.encode(piece, WHOLE, whole_words)]
        assert found == wanted


def test_a_word_is_remembered_for_its_own_way_of_merging():
    # "ab" is a token that no merge makes; taken whole it is that, else its letters
    tables = BpeTables(Strings.of(["a", "b", "ab"]), Strings.of([]), BYTE_TO_CHAR)
    for _ in range(2):
        assert tables.encode("ab", WHOLE, True) == [2]
        assert tables.encode("ab", WHOLE, False) == [0, 1]


def test_of_equal_tokens_and_of_equal_merges_the_first_counts():
    tables = BpeTables(Strings.of(["a", "b", "ab", "ab"]), Strings.of(["a b", "a b"]), BYTE_TO_CHAR)
    assert tables.encode("abab", WHOLE, False) == [2, 2]
    assert tables.odd == 0


def test_merges_that_can_never_be_taken_are_counted():
    merges = ["a b", "ab", " ", "a ", "a c", "b a"]
    tables = BpeTables(Strings.of(["a", "b", "ab"]), Strings.of(merges), BYTE_TO_CHAR)
    assert tables.odd == 5
    assert tables.encode("ab", WHOLE, False) == [2]
    assert tables.encode("ba", WHOLE, False) == [1, 0]


def test_a_long_run_of_one_letter_merges_in_no_more_than_n_log_n():
    tokens, merges = list(BYTE_TO_CHAR.values()), []
    for power in range(1, 12):
        merges.append(f"{'a' * 2 ** (power - 1)} {'a' * 2 ** (power - 1)}")
        tokens.append("a" * 2**power)
    tables = BpeTables(Strings.of(tokens), Strings.of(merges), BYTE_TO_CHAR)
    assert tables.encode("a" * (1 << 20), WHOLE, False) == [266] * 512


def merged_slowly(text: str, ranks: dict[str, int], between: str) -> list[str]:
    pieces = list(text)
    while True:
        found = [
            (ranks[key], i)
            for i, key in enumerate(map(between.join, zip(pieces, pieces[1:])))
            if key in ranks
        ]
        if not found:
            return pieces
        _, i = min(found)
        pieces[i : i + 2] = ["".join(pieces[i : i + 2])]


KEYS = st.sampled_from([x + y for x in ("a", "b", "aé", "ab") for y in ("a", "é", "ba", "🦊")])


@settings(deadline=None)
@given(st.text("abé🦊", max_size=40), st.dictionaries(KEYS, st.integers(0, 5)))
def test_pieces_merge_by_rank_and_from_the_left(text, ranks):
    assert merge_pieces(text, ranks, "") == merged_slowly(text, ranks, "")
    spaced = {f"{key[0]} {key[1:]}": rank for key, rank in ranks.items()}
    assert merge_pieces(text, spaced, " ") == merged_slowly(text, spaced, " ")


def test_pieces_of_a_long_run_of_one_letter():
    ranks = {"a" * n: n for n in (2, 4, 8)}
    assert merge_pieces("a" * ((1 << 18) + 3), ranks, "") == ["a" * 8] * (1 << 15) + ["aa", "a"]


def test_a_string_that_is_no_utf8_is_named_by_its_number():
    data = np.frombuffer(b"good\xff", np.uint8)
    assert list(Strings(data, np.array([0, 1]), np.array([4, 2]))) == ["good", "oo"]
    with pytest.raises(TokenizerError, match="string 1 of 2"):
        Strings(data, np.array([0, 3]), np.array([4, 2]))
    with pytest.raises(TokenizerError, match="string 0 of 1: 6 bytes at 0 of 5"):
        Strings(data, np.array([0]), np.array([6]))


@given(st.binary(max_size=12))
def test_utf8_is_judged_as_python_judges_it(data):
    def made() -> str:
        return Strings(np.frombuffer(data + b"\0", np.uint8), np.array([0]), np.array([len(data)]))[
            0
        ]

    try:
        wanted = data.decode()
    except UnicodeDecodeError:
        with pytest.raises(TokenizerError):
            made()
    else:
        assert made() == wanted


def test_strings_are_found_by_text_wherever_they_stand():
    strings = Strings.of(["<eos>", "a", "</s>", "<eos>", "x" * 70])
    assert strings.where({"<eos>", "</s>", "x" * 70, "x" * 71}) == [0, 2, 3, 4]
    assert strings[-1] == "x" * 70 and len(strings) == 5
