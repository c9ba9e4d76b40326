"""GBNF: what parses, what it means, and where errors point."""

import json

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarLimits
from oxillama.grammar.gbnf import parse, render


def pieces(form):
    """The cases' texts: a string, or a sum of strings and token ids."""
    if isinstance(form, str):
        return [form]
    if "op" in form:
        return pieces(form["a"]) + pieces(form["b"])
    return [form["args"][0]]


def test_texts_parse_or_not_as_the_cases_say(cases):
    for case in json.loads((cases / "grammar" / "grammar_parse.json").read_text("utf-8")):
        if case["parses"]:
            Grammar.parse(case["gbnf"])
        else:
            with pytest.raises(GrammarError):
                Grammar.parse(case["gbnf"])


def test_strings_are_accepted_and_rejected_as_the_cases_say(cases):
    for case in json.loads((cases / "grammar" / "grammar_accept_reject.json").read_text("utf-8")):
        if case["kind"] != "grammar":
            continue
        grammar = Grammar.parse(case["source"])
        again = Grammar.parse(render(grammar.names, grammar.rules, grammar.tokens))
        for wanted, forms in ((True, case["accept"]), (False, case["reject"])):
            for form in forms:
                assert grammar.matches(pieces(form)) == wanted, (case["name"], form)
                assert again.matches(pieces(form)) == wanted, (case["name"], form)


def test_published_grammars_parse_and_work(cases):
    texts = {
        "arithmetic": ["1+2=3\n", "x1 +(2*y)= z\nq=1\n"],
        "c": ["int main(){}", "int f(int a){int b = 3;return  a+b;}"],
        "chess": ["1. e4 e5\n2. Nf3 Nc6\n", "1. O-O O-O-O\n9. exd8=Q+ Kxe7#\n"],
        "english": ["Hello, world!", "a b\nc"],
        "japanese": ["\u3053\u3093\u306b\u3061\u306f", "\u4e16\u754c \u30ab\u30ca\u3002"],
        "json": ['{"a": [1, -2.5e3, "x\\u00e9\\n"], "b": {"c": null}}', "{}"],
        "json_arr": ['[\n1,\n{"a": true}]', "[\n]"],
        "list": ["- one\n- two\n"],
    }
    for path in sorted((cases / "grammar" / "gbnf").glob("*.gbnf")):
        grammar = Grammar.parse(path.read_text(encoding="utf-8"))
        again = Grammar.parse(render(grammar.names, grammar.rules))
        for text in texts.get(path.stem, []):
            assert grammar.matches(text), (path.stem, text)
            assert again.matches(text), (path.stem, text)
            assert not grammar.matches(text + "\x00")


@pytest.mark.parametrize(
    "body, accepted, rejected",
    [
        (r'"\n\t\r\"\\\x41\u00e9\U0001F600[]"', ['\n\t\r"\\A\u00e9\U0001f600[]'], [""]),
        (r'[\]\[\\"^-]', ["]", "[", "\\", '"', "^", "-"], ["a", ""]),
        (r"[^a-c\n]", ["d", "\u00e9", "\U0001f600", "\t"], ["a", "c", "\n", "dd"]),
        (r"[a-]+", ["a-a"], ["b"]),
        ("[x]", ["x"], ["", "]"]),
        ('"ab"*', ["", "abab"], ["aba"]),
        ('"a" "b"?', ["a", "ab"], ["abb"]),
        ('("a" | "b"\n  | "c")+', ["abc"], [""]),
        ('"a"{2,3}{2}', ["aaaa", "aaaaaa"], ["aaa", "aaaaaaa"]),
        ('"a"{0}', [""], ["a"]),
        ('""', [""], ["a"]),
        ('"a" |\n  "b"', ["a", "b"], ["ab"]),
        ('"a"\n  | "b"', ["a", "b"], ["ab"]),
        ('"a" # a comment\n# another\n', ["a"], ["b"]),
        ("( [x]* )*", ["", "xx"], ["y"]),
        ('("a"? "b"?){3} "c"', ["c", "abc", "ababbc"], ["ababababc"]),
        ("(x* ){50,60}\nx ::= [a-b]", ["", "abab" * 9], ["c"]),
    ],
)
def test_notation_means_what_it_says(body, accepted, rejected):
    grammar = Grammar.parse("root ::= " + body)
    again = Grammar.parse(render(grammar.names, grammar.rules))
    for text in accepted:
        assert grammar.matches(text) and again.matches(text), text
    for text in rejected:
        assert not grammar.matches(text) and not again.matches(text), text


@pytest.mark.parametrize(
    "text, line, column",
    [
        ("root ::= a", 1, 10),
        ('root ::= "a', 1, 10),
        ("root ::= [a", 1, 10),
        ('root ::= ("a"', 1, 14),
        ('root ::= "a")', 1, 13),
        ('root ::= "a"\nroot ::= "b"', 2, 1),
        ('root = "a"', 1, 6),
        ("root ::= *", 1, 10),
        ('root ::= "a"{,2}', 1, 14),
        ('root ::= "a"{3,2}', 1, 13),
        ('root ::= "a"{2', 1, 15),
        (r'root ::= "\q"', 1, 11),
        (r'root ::= "\x4"', 1, 11),
        (r'root ::= "\uD800"', 1, 11),
        ("root ::= [z-a]", 1, 10),
        ("root ::= <nothing", 1, 10),
    ],
)
def test_errors_carry_line_and_column(text, line, column):
    with pytest.raises(GrammarError, match=f"line {line}, column {column}:"):
        Grammar.parse(text)


def test_a_grammar_needs_a_root_that_can_finish():
    for text in (
        "",
        "# nothing\n",
        'a ::= "b"',
        'root ::= "a" root',
        'root ::= "a" x\nx ::= "(" x ")"',
        "root ::= []",
    ):
        with pytest.raises(GrammarError):
            Grammar.parse(text)
    # only the useless alternative goes
    grammar = Grammar.parse('root ::= "a" x | "b"\nx ::= "(" x ")"')
    assert grammar.matches("b") and not grammar.state().allows_token(b"a")


def test_hostile_grammars_raise():
    with pytest.raises(GrammarError, match="max_nesting"):
        Grammar.parse("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000)
    with pytest.raises(GrammarError, match="max_source"):
        Grammar.parse('root ::= "' + "a" * 200 + '"', limits=GrammarLimits(max_source=100))
    with pytest.raises(GrammarError, match="max_states"):
        Grammar.parse('root ::= "' + "a" * 2000 + '"', limits=GrammarLimits(max_states=1000))
    with pytest.raises(GrammarError, match="max_repetition"):
        Grammar.parse('root ::= "a"{99999999999999999999}')
    nested = 'root ::= "a"' + "{2000}" * 6
    # 2000**6 letters, a few states
    assert Grammar.parse(nested).state().allows_token(b"a" * 5000)
    with pytest.raises(GrammarError, match="max_depth"):
        Grammar.parse('root ::= "(" root ")" | "x"').matches("(" * 5000 + "x" + ")" * 5000)
    with pytest.raises(GrammarError):
        GrammarLimits(max_depth=0)


def test_exponential_ambiguity_stays_polynomial():
    grammar = Grammar.parse(
        'root ::= s\ns ::= "a" s "b" | "a" t "c" | "a"\nt ::= "a" t "c" | "a" s "b" | "a"'
    )
    state = grammar.state()
    for _ in range(300):
        state.advance(b"a")
    assert grammar._machine.sizes()["stacks"] < 20_000
    doubled = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40))
    tower = Grammar.parse(f'root ::= r0\n{doubled}\nr40 ::= "a"?')
    assert tower.matches("a" * 200)


def test_rendering_keeps_the_language_of_token_terminals():
    parsed = parse("root ::= <[7]> (!<think>)* <think>")
    assert parsed.tokens == (7, "<think>")
    assert parse(render(parsed.names, parsed.rules, parsed.tokens)) == parse(
        render(parsed.names, parsed.rules, parsed.tokens)
    )
    assert parse(render(parsed.names, parsed.rules, parsed.tokens)).rules == parsed.rules
