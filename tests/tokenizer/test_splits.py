"""Words of byte-level vocabularies: our automata cut every text as a backtracking search by the
same expressions does (the `tokenizers` library's).
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from oxillama._core.bpe import Splitter
from oxillama.errors import TokenizerError
from oxillama.tokenizer.automaton import split_stages, split_tables
from oxillama.tokenizer.bpe import splitter_of
from oxillama.tokenizer.splits import SPLITS
from oxillama.tokenizer.unicode_sets import named_set

# what the expressions tell apart: cases, digits, signs, white space of every kind, scripts, marks
PARTS = [
    *"aAbBzZ019 '\n\r\t.,!?/_-$+<=>`|~^[]",
    *"éÉßñµª中文字〇かなカ한국ǅʰ٣²Ⅷ€😀。،…“”、",
    *("\u0301", "\u0903", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200d", "\U000e0100", "\0"),
    *("'s", "'LL", "'vE", "   ", "\n\n", " \r\n", "<sentinel:12>", "IMGIMGABZ", " the", "Hello"),
]
NAMES = sorted({expressions: name for name, expressions in SPLITS.items()}.values())
mixed = st.lists(st.sampled_from(PARTS), max_size=40).map("".join)


def library(name: str):
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in SPLITS[name]]
    return lambda text: [
        piece for piece, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_cut_as_the_expressions_cut_them(name):
    ours, theirs = splitter_of(SPLITS[name]), library(name)

    @settings(max_examples=40, deadline=None)
    @given(st.one_of(mixed, st.text(max_size=40)))
    def check(text):
        assert ours.pieces(text) == theirs(text)

    check()
    rng = random.Random(name)
    text = "".join(rng.choice(PARTS) for _ in range(4000))
    assert ours.pieces(text) == theirs(text)


def test_a_long_run_that_fails_at_each_character_takes_linear_time():
    # stepping back, each of the spaces would be a beginning of a run to the end: 5e11 characters
    spaces = " " * 1_000_000
    pieces = splitter_of(SPLITS["deepseek-llm"]).pieces(spaces + "中" + spaces)
    assert pieces == [spaces, "中", spaces]


def test_sets_are_those_of_the_library():
    points = "".join(chr(point) for point in range(0x3100) if not 0xD800 <= point < 0xE000)
    for name in ("Lu", "Ll", "Lt", "Lm", "Lo", "L", "M", "N", "P", "S", "Han"):
        removed = pre_tokenizers.Split(Regex(rf"\p{{{name}}}"), "removed")
        left = "".join(piece for piece, _ in removed.pre_tokenize_str(points))
        inside = {point for first, last in named_set(name) for point in range(first, last + 1)}
        assert left == "".join(char for char in points if ord(char) not in inside), name


@pytest.mark.parametrize(
    "expression", ["a*", "(?=a)b", "a$", r"\w", "[[a]]", "a{2", "(a", "a**|", r"\p{Cn}", "[a&&b]"]
)
def test_other_expressions_are_refused(expression):
    with pytest.raises(ValueError):
        split_tables(expression)


def test_tables_that_do_not_fit_are_refused():
    good, other = split_tables("ab"), split_tables("[ab]c|d")
    with pytest.raises(TokenizerError, match="do not fit"):
        Splitter([(other.classes, good.steps)])
    with pytest.raises(TokenizerError, match="at most 8"):
        Splitter([(good.classes, good.steps)] * 9)


@pytest.mark.parametrize("name", ["tiny_aya", "superbpe", "afmoe"])
def test_digits_are_counted_from_the_right_as_the_expressions_count_them(name):
    ours, theirs = splitter_of(SPLITS[name]), library(name)
    beside = ["", " ", "a", "_", "½", "²", "\u0301", "Ⅷ", "٣", "中", ".5", "\n"]
    for count in (*range(1, 8), 510, 511, 1022):
        digits = "1234567890"[: count % 10] + "0123456789" * (count // 10)
        for before in beside:
            for after in beside:
                text = f"{before}{digits}{after}"
                assert ours.pieces(text) == theirs(text), text
    assert "1|234|567" in "|".join(ours.pieces("$1234567"))


def test_groups_of_digits_that_cannot_be_are_refused():
    groups = split_stages(SPLITS["superbpe"])[1]
    with pytest.raises(TokenizerError, match="groups of no digits"):
        Splitter([(groups.classes, 0, True)])
    with pytest.raises(TokenizerError, match="not of all characters"):
        Splitter([(groups.classes[:9], 3, True)])
