"""Left recursion means what it says: the language of the rules as they are written."""

import itertools
import random

import pytest

from oxillama.grammar import Grammar
from oxillama.grammar.gbnf import parse
from oxillama.grammar.nodes import CHOICE, LITERAL, REPEAT, RULE

ALPHABET = "abc"
LONGEST = 5


def language(rules) -> set[str]:
    """The root's texts of at most LONGEST letters, as the least fixed point of the equations."""
    texts = [set() for _ in rules]

    def joined(left: set[str], right: set[str]) -> set[str]:
        return {x + y for x in left for y in right if len(x + y) <= LONGEST}

    def of(node) -> set[str]:
        kind = node[0]
        if kind == LITERAL:
            text = node[1].decode()
            return {text} if len(text) <= LONGEST else set()
        if kind == RULE:
            return texts[node[1]]
        if kind == CHOICE:
            return set().union(*map(of, node[1]))
        if kind == REPEAT:
            body, out, last = of(node[1]), set(), {""}
            most = node[3] if node[3] >= 0 else LONGEST + node[2] + 1
            for count in range(most + 1):
                if count >= node[2]:
                    out |= last
                last = joined(last, body)
            return out
        out = {""}
        for part in node[1]:
            out = joined(out, of(part))
        return out

    while True:
        found = [of(body) for body in rules]
        if found == texts:
            return texts[0]
        texts = found


def body(draw: random.Random, depth: int) -> str:
    kind = draw.randrange(7 if depth else 3)
    if kind < 2:
        return draw.choice(["root", "x", "y"])
    if kind == 2:
        return f'"{draw.choice(ALPHABET)}"'
    if kind == 3:
        return f"({body(draw, depth - 1)}){draw.choice(['?', '*', '+', '{0,2}'])}"
    if kind == 4:
        return f"({body(draw, depth - 1)} | {body(draw, depth - 1)})"
    return f"{body(draw, depth - 1)} {body(draw, depth - 1)}"


@pytest.mark.parametrize("seed", range(60))
def test_rules_that_begin_with_themselves_have_their_language(seed):
    draw = random.Random(seed)
    source = "\n".join(
        f'{name} ::= {body(draw, 3)} | "{draw.choice(ALPHABET)}"' for name in ("root", "x", "y")
    )
    wanted = language(parse(source).rules)
    grammar = Grammar.parse(source)
    for length in range(LONGEST + 1):
        for letters in itertools.product(ALPHABET, repeat=length):
            text = "".join(letters)
            assert grammar.matches(text) == (text in wanted), (source, text)


def test_arithmetic_written_with_left_recursion():
    grammar = Grammar.parse(
        'root ::= root "+" term | term\nterm ::= term "*" value | value\nvalue ::= [0-9]+ | "(" '
        'root ")"'
    )
    for text in ("1", "1+2*3", "(1+2)*3+4", "((7))"):
        assert grammar.matches(text)
    for text in ("", "+1", "1+", "(1", "1**2"):
        assert not grammar.matches(text)
    assert grammar.source.startswith("root ::= root")


def test_a_rule_of_itself_alone_can_never_finish():
    with pytest.raises(Exception, match="never finish"):
        Grammar.parse('root ::= root "a"')


def test_repetitions_up_to_many_thousands_are_counted():
    grammar = Grammar.parse('root ::= "a"{0,2048} "b"')
    assert grammar.matches("a" * 2048 + "b")
    assert not grammar.matches("a" * 2049 + "b")


@pytest.mark.parametrize("inner", ["{0,}", "{1,}", "{0,3}", "{2,5}", "{2,3}", "{3,3}", "{0,1}"])
@pytest.mark.parametrize("outer", ["{0,2}", "{1,}", "{0,}", "{2,4}", "{3,3}", "{1,2}"])
def test_repetitions_of_repetitions_have_the_sums_of_their_counts(inner, outer):
    def counts(text):
        low, high = text.strip("{}").split(",")
        return range(int(low), (int(high) if high else 40) + 1)

    sums = {0} if 0 in counts(outer) else set()
    for times in counts(outer):
        low, high = counts(inner)[0] * times, counts(inner)[-1] * times
        sums |= set(range(low, high + 1)) if times else set()
        # every count between is reached: each of the parts takes any count
    grammar = Grammar.parse(f'root ::= ("a"{inner}){outer}')
    for n in range(30):
        assert grammar.matches("a" * n) == (n in sums), n
