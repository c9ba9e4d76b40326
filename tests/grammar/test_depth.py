"""A text that nests deeper than `max_depth` is refused by name, whatever was asked before."""

import threading

import pytest

from oxillama._core.cursor import collect
from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarLimits

NESTED = 'root ::= "[" root "]" | "x"'
DEEP = "[" * 9 + "x" + "]" * 9
NAMED = r"nests deeper than 5 open rules \(max_depth\)"


@pytest.fixture
def grammar():
    return Grammar.parse(NESTED, limits=GrammarLimits(max_depth=5))


def test_it_is_refused_every_time(grammar):
    for _ in range(3):
        with pytest.raises(GrammarError, match=NAMED):
            grammar.matches(DEEP)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_it_is_refused_in_pieces_of_any_size(grammar, size):
    state = grammar.state()
    with pytest.raises(GrammarError, match=NAMED):
        for at in range(0, len(DEEP), size):
            state.advance(DEEP[at : at + size].encode())


def test_a_place_is_as_deep_after_its_machine_was_emptied(grammar):
    state = grammar.state()
    while state.allows_token(b"["):
        state.advance(b"[")
    collect(state._cursor.machine)
    with pytest.raises(GrammarError, match=NAMED):
        state.advance(b"[")


def test_a_token_terminal_that_is_too_deep_is_refused_by_name():
    grammar = Grammar.parse(
        'root ::= <[7]> inner\ninner ::= "[" inner "]" | "x"', limits=GrammarLimits(max_depth=5)
    )
    with pytest.raises(GrammarError, match=NAMED):
        grammar.matches([7, DEEP])


def test_what_does_not_belong_to_the_language_does_not(grammar):
    assert [grammar.matches(text) for text in ("[x]", "[]", "[?", "x]")] == [True] + [False] * 3


def test_another_threads_text_is_not_ones_own():
    """The last step of a state decides, not the last one of the machine."""
    grammar = Grammar.parse(NESTED, limits=GrammarLimits(max_depth=50))
    state = grammar.state()

    def deep():
        with pytest.raises(GrammarError, match="nests deeper"):
            grammar.matches("[" * 99)

    refuse = Grammar._refuse_depth

    def refused(self, cursor):
        if cursor is state._cursor:
            thread = threading.Thread(target=deep)
            thread.start()
            thread.join(60)
        refuse(self, cursor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Grammar, "_refuse_depth", refused)
        with pytest.raises(GrammarError, match="is not allowed after"):
            state.advance(b"?")
