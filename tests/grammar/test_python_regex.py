"""Python's regular expressions, matched against names in bounded time: the answers are those of
`re.fullmatch`.
"""

import random
import re

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar.python_regex import MAX_PATTERN, python_pattern

ATOMS = (
    *("a", "b", "_", r"\.", ".", r"\w", r"\d", "0", "^", "$", r"\A", r"\Z", "(?#a)"),
    *(r"\b", r"\B", "[ab]", "[^a.]", "[]a]", "[^]b]"),
)
BEHIND = ("a", "b_", "0", r"\b", r"\.", r"\w.")
COUNTS = ("*", "+", "?", "*?", "{2}", "{,2}", "{1,3}", "{2,}", "{0}")


def expression(rng, depth):
    """A random one of these parts."""
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return rng.choice(ATOMS)
    inner = [expression(rng, depth - 1) for _ in range(2)]
    if kind < 0.6:
        return "".join(inner)
    if kind < 0.72:
        return f"(?:{'|'.join(inner)})"
    if kind < 0.9:
        return f"(?:{inner[0]}){rng.choice(COUNTS)}"
    if kind < 0.96:
        return f"({rng.choice(['?=', '?!'])}{inner[0]})"
    return f"({rng.choice(['?<=', '?<!'])}{rng.choice(BEHIND)})"


def test_answers_are_those_of_re():
    rng, tried, matched = random.Random(3), 0, 0
    while tried < 6000:
        text = expression(rng, 5)
        try:
            matches = python_pattern(text)
        except GrammarError as error:
            assert "an anchor cannot be repeated" in str(error)
            continue
        for _ in range(6):
            name = "".join(rng.choice("aab_.01") for _ in range(rng.randrange(1, 8)))
            want = re.fullmatch(text, name) is not None
            assert matches(name) == want, (text, name)
            tried, matched = tried + 1, matched + want
    assert matched > 200


@pytest.mark.parametrize(
    "text, told",
    [
        (r"(a)\1", "back references"),
        ("a++", "nothing to repeat"),
        ("(?>a)", "unknown kind of group"),
        ("(?<=a", "no closing parenthesis"),
        ("(?#a", "this comment has no end"),
        ("a)", "opens nowhere"),
        ("(?m)a", "flag 'm' is not supported"),
        ("a" * (MAX_PATTERN + 1), f"wanted at most {MAX_PATTERN}"),
        (3, "found int, wanted text"),
    ],
)
def test_what_is_not_read_is_refused(text, told):
    with pytest.raises(GrammarError, match=told):
        python_pattern(text)


def test_the_work_is_bounded_whatever_the_expression():
    # each would take `re` longer than anyone waits
    for text in (
        r"\b(([a-z_.0-9])+)+Q",
        r"\b(a*)*(a*)*(a*)*(a*)*b",
        r"\b(?:(?:(?:a{1,100}){1,100}){1,100}){1,100}b",
    ):
        assert not python_pattern(text)("a" * 200)
