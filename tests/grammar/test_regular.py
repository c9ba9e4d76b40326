"""Regular expressions and automata against Python's re, and the laws of the Boolean operations."""

import itertools
import random
import re
import sys

import pytest

from oxillama._core import automata
from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, regular
from oxillama.grammar.nodes import CLASS
from oxillama.grammar.regex import parse_regex, search_automaton
from oxillama.grammar.regular import Dfa, overlapping, split
from oxillama.grammar.schema.formats import FORMATS, format_automaton

PATTERNS = [
    "",
    "^a",
    "a$",
    "^(a|b)*c$",
    "a{2,3}b?",
    r"^(?=.*\d)(?=.*[a-z]).{3,6}$",
    "^((?!foo).)*$",
    "(^a|b$)",
    "^(^ab$|^cd$)$",
    "[^a-c]x",
    r"^\w+@\w+\.com$",
    "a|^$",
    "^(?!.*--)[a-z-]+$",
    "(ab)+(?!c)",
    "^a*?b+?$",
    "x(?=y)y",
    "a{,2}",
    "[.]",
    r"\x61\u0062[\u0063]",
    "(?:a|(?<n>b))c",
    "^[^\\s]+$",
    "a{0}b",
    "(a*)*b",
    "(?=a)*b|ab",
    "^^a$$",
    "a^b|^c$d|x",
    # a beginning that lookahead asks for is that of the text, not of the rest
    "(?=^.{1,3}$)[ab-d]+",
    "(?=^.{2,5}$)(?=.*b).*$",
    "b(?!^a)a|(?!^a)b",
    "b?(?=(^|b)a)..",
    "(?=(?=^a)(?!.^)a)[ab]",
    "(?=ab$).*",
    "^(?=a(b|1)$|-$)[ab1-]*",
    "^(?!(ab?)+$)[ab1-]+",
]
WORDS = ["".join(w) for n in range(4) for w in itertools.product("ab1-", repeat=n)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_what_re_matches(pattern):
    rng = random.Random(pattern)
    regex, python = (
        parse_regex(pattern),
        re.compile(
            pattern.replace("(?<n>", "(?P<n>")
            .replace("(?=a)*", "(?:(?=a))?")
            .replace("a{,2}", r"a\{,2\}")
        ),
    )
    search, whole = regex.search(), Grammar(["root"], [regex.whole()])
    direct = regex.search_node(
        lambda ranges: (CLASS, ranges), (4, (CLASS, ((0, 0xD7FF), (0xE000, 0x10FFFF))), 0, -1)
    )
    grammar = None if direct is None else Grammar(["root"], [direct])
    for _ in range(400):
        text = "".join(rng.choice("abcdfox-y1@.{,2} \n") for _ in range(rng.randint(0, 7)))
        if "$" in pattern and text.endswith("\n"):
            # Python's $ also matches before a last line break, ECMA's does not
            continue
        assert search.accepts_text(text) == bool(python.search(text)), text
        assert whole.matches(text) == bool(python.fullmatch(text)), text
        assert grammar is None or grammar.matches(text) == bool(python.search(text)), text


def test_a_pattern_as_long_as_a_server_takes_is_read_in_one_pass():
    """Each part was compared with all others: 60,000 characters took half a minute."""
    pattern = "ab" * 30_000
    grammar = Grammar.from_regex(f"^{pattern}$")
    assert grammar.matches(pattern)
    assert not grammar.matches(pattern[:-1]) and not grammar.matches(pattern + "a")


def test_operations_are_those_of_sets():
    languages = [search_automaton(p) for p in ("^(a|b)*$", "ab", "^.{2,3}$", "1$", "^$")] + [
        Dfa.words(["a", "ab1"]),
        Dfa.lengths(1, 2),
        Dfa.everything(),
        Dfa.nothing(),
    ]
    for a, b in itertools.product(languages, repeat=2):
        both, either, without = a.both(b), a.either(b), a.without(b)
        for word in WORDS:
            x, y = a.accepts_text(word), b.accepts_text(word)
            assert (
                both.accepts_text(word),
                either.accepts_text(word),
                without.accepts_text(word),
            ) == (x and y, x or y, x and not y)
        assert both.empty == (not any(both.accepts_text(w) for w in WORDS))
    for a in languages:
        inverse, minimal = a.inverse(), a.minimal()
        assert all(
            inverse.accepts_text(w) != a.accepts_text(w) == minimal.accepts_text(w) for w in WORDS
        )
        assert a.without(a).empty and a.both(inverse).empty
        assert len(minimal.moves) <= len(a.moves)


@pytest.mark.parametrize(
    "pattern, lengths",
    [
        ("^(a|bb)$", (1, 2)),
        ("^(a{3}|b{2,5})c?$", (2, 6)),
        ("^(a|b*)$", (0, None)),
        ("^(|abc)d$", (1, 4)),
        ("^(?:ab){2,3}$", (4, 6)),
        ("^(?=abc)d$", (1, 1)),
        ("^a|b$", (1, None)),
        ("ab", (2, None)),
    ],
)
def test_the_lengths_of_matches_are_bounded(pattern, lengths):
    assert parse_regex(pattern).lengths() == lengths


def test_finite_languages_are_listed():
    assert search_automaton("^(ab?|c)$").finite(10) == ["a", "ab", "c"]
    assert search_automaton("^a*$").finite(10) is None
    assert search_automaton("^[a-z]{2}$").finite(10) is None
    assert Dfa.nothing().finite(10) == []


def test_the_texts_of_a_language_are_counted():
    assert search_automaton("^(ab?|c)$").size() == 3
    assert search_automaton("^[a-z]{0,5}$").size() == sum(26**n for n in range(6))
    assert search_automaton("^[01]{24}$").size() == 2**24
    assert search_automaton("^[01]{24,25}$").size() is None  # more than any text holds
    assert search_automaton("^(a|b[cd])(e|f|gg)$").minimal().size() == 9
    assert search_automaton("^a*$").size() is search_automaton("a").size() is None
    assert Dfa.words(["", "a", "ab"]).size() == 3 and Dfa.nothing().size() == 0


@pytest.mark.parametrize(
    "pattern, position",
    [
        ("(a", 1),
        ("a)", 2),
        ("[a", 1),
        ("*a", 1),
        ("a**", 3),
        (r"\1", 1),
        (r"(a)\k<n>", 4),
        (r"a\b", 2),
        ("(?<=a)b", 1),
        (r"\p{Nope}", 1),
        ("a{3,2}", 2),
        ("a{999999}", 2),
        ("[z-a]", 3),
        (r"\u12", 1),
        ("a\\", 2),
        (r"\y", 1),
    ],
)
def test_what_is_not_regular_or_malformed_is_refused_with_its_position(pattern, position):
    with pytest.raises(GrammarError, match=f"position {position}:"):
        parse_regex(pattern)


def test_hostile_patterns_raise():
    with pytest.raises(GrammarError, match="states"):
        parse_regex("(a|b)*a(a|b){20}").search().both(parse_regex("(a|b)*b(a|b){20}").search())
    for pattern in ("(" * 500 + ")" * 500, "((((a{1,1000}){1,1000}){1,1000}){1,1000})(?=b)"):
        with pytest.raises(GrammarError):
            parse_regex(pattern).search()


def test_ways_to_the_same_texts_are_one_state():
    """However many alternatives lead there, and wherever in a text an expression may begin."""
    letters = [chr(0x3400 + 2 * i) for i in range(200)]
    each = "|".join(letters)
    found = parse_regex(f"[{''.join(letters)}]{{3}}(?:{each}){{20}}").search()
    assert found.moves.shape == (24, 201)
    assert found.accepts_text("x" + "".join(letters[:23]))
    assert not found.accepts_text("x".join(letters[:22]))
    loops = "|".join(f"(?:{a}*{b})*" for a, b in zip(letters, letters[1:]))
    found = parse_regex(f"(?:{loops})x").search()
    assert found.moves.shape[0] == 2 and found.accepts_text("yx") and not found.accepts_text("y")


def test_symbols_of_one_state_are_looked_at_in_turn():
    """Where they lead to more states than are sorted at once: here each to all but one."""
    count = 1100
    classes = [f"[^{chr(0x3400 + 2 * i)}]" for i in range(count)]
    found = parse_regex(f"^(?:{'|'.join(classes)})$").search()
    assert found.moves.shape == (2, count + 1) and found.accepts_text(chr(0x3400))
    assert not (found.moves[0] < 0).any() and (found.moves[1] < 0).all()


@pytest.mark.parametrize(
    ("limit", "pattern", "told"),
    [
        ("MAX_STEPS", "(?:ab|cd|ef){1,9}", "takes too many steps to make deterministic"),
        ("MAX_TABLE", "(?:ab|cd|ef){1,9}", "needs a table of more than 20 moves"),
        ("MAX_MEMBERS", "[a-o][b-n][c-m][d-l]", "5 classes overlap at more than 20 places"),
        ("MAX_THREADS", "(?:a(?!b).){1,9}", "lookahead needs more than 20 steps to make determini"),
    ],
)
def test_the_work_for_an_automaton_is_bounded(monkeypatch, limit, pattern, told):
    monkeypatch.setattr(regular, limit, 20)
    with pytest.raises(GrammarError, match=f"regular: {told}"):
        parse_regex(pattern).search()


def test_unicode_classes():
    letters = parse_regex(r"^\p{Lu}\p{L}*$").search()
    assert letters.accepts_text("\u00c9cole") and not letters.accepts_text("\u00e9cole")
    assert parse_regex(r"^\P{L}$").search().accepts_text("1")
    last = chr(sys.maxunicode)  # of no character
    assert parse_regex(r"^\p{Cn}$").search().accepts_text(last)
    assert not parse_regex(r"^\P{Cn}$").search().accepts_text(last)
    assert Grammar.from_regex("[\U0001f600-\U0001f64f]").matches("\U0001f601")


@pytest.mark.parametrize(
    "name, good, bad",
    [
        (
            "date",
            ["2024-02-29", "2023-12-31", "2000-02-29"],
            ["2023-02-29", "1900-02-29", "2023-04-31", "2023-1-1", "06/19/1963"],
        ),
        (
            "time",
            ["12:00:00Z", "23:59:59.25+01:00"],
            ["24:00:00Z", "12:00:00", "12:60:00Z", "08:30:06 PST"],
        ),
        ("date-time", ["2023-08-23T12:00:00Z"], ["2023-08-23 12:00:00Z", "1990-02-31T15:59:59Z"]),
        (
            "duration",
            ["P4DT12H30M5S", "P4W", "PT36H"],
            ["P", "PT", "P1D2H", "PT1D", "P2D1Y", "4DT12H"],
        ),
        ("uuid", ["2EB8AA08-AA98-11EA-B4AA-73B441D16380"], ["2eb8aa08-aa98-11ea-b4aa-73b441d1638"]),
        (
            "email",
            ["joe.bloggs@example.com", "te~st@example.com"],
            [".test@example.com", "te..st@example.com", "2962", "a@-b.com"],
        ),
        ("hostname", ["www.example.com", "a"], ["-a", "a-", "a..b", "_x", "a" * 64]),
        ("ipv4", ["192.168.0.1"], ["256.0.0.1", "1.2.3", "01.2.3.4"]),
        (
            "ipv6",
            ["::1", "1:2:3:4:5:6:7:8", "::ffff:192.168.0.1", "1::"],
            ["12345::", "1:2:3:4:5:6:7:8:9", "1::2::3", ":1"],
        ),
        (
            "uri",
            ["http://a.b/c?d=e#f", "urn:x:y", "http://[::1]:80/"],
            ["//a", "a b", "http://a b", "\\\\x"],
        ),
        ("uri-reference", ["/abc", "#f", "//a.b", "", "a/b:c"], ["\\\\WINDOWS", "#a#b"]),
        ("iri", ["http://\u00e9.b/\u4e16?d=e#f"], ["//a", "a b", "not-an-iri"]),
        ("iri-reference", ["/\u00e9"], ["\\\\WINDOWS"]),
        (
            "uri-template",
            ["http://e.com/{a,b*}{?q:3}", "plain", "{+x.y}"],
            ["http://e.com/{", "{a", "a}", "{a b}", "{}"],
        ),
        ("json-pointer", ["", "/a/b~0~1"], ["a", "/~2", "/a~"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["/a", "01", "-1/a"]),
        ("regex", ["^a(b|c)*$", "[a-z]+\\d"], ["^(abc]", "a**", "["]),
    ],
)
def test_formats_follow_their_standards(name, good, bad):
    automaton = format_automaton(name)
    assert [t for t in good if not automaton.accepts_text(t)] == []
    assert [t for t in bad if automaton.accepts_text(t)] == []
    assert name in FORMATS


@pytest.mark.parametrize(
    ("least", "most"), [(0, 1), (0, 3), (2, 5), (3, 3), (4, 9), (0, None), (2, None), (7, None)]
)
@pytest.mark.parametrize("pattern", ["^(ab?c){0,3}$", "^a*$", "^(a|bc)+d$", "^[^x]{2,4}$", "^$"])
def test_spans_are_what_may_have_been_read(pattern, least, most):
    """From each state, by trying all lengths that the texts of up to 12 code points have."""
    dfa = search_automaton(pattern)
    far = 12 if most is None else most
    ahead = [set() for _ in dfa.moves]  # lengths of the texts accepted from each state
    for length in range(far + 1):
        for state, row in enumerate(dfa.moves.tolist()):
            if (
                dfa.accepts[state]
                if not length
                else any(length - 1 in ahead[t] for t in row if t >= 0)
            ):
                ahead[state].add(length)
    for lengths, spans in zip(ahead, dfa.spans(least, most), strict=True):
        wanted = {
            read
            for read in range(far + 1)
            if any(least <= read + n <= (most or read + n) for n in lengths)
        }
        assert {n for n in range(far + 1) if any(a <= n <= b for a, b in spans)} == wanted


def test_the_refinement_of_partitions_splits_where_either_does():
    a = Dfa([((97, 102), (110, 115)), ((48, 57),)], [[0, -1]], [True])
    b = Dfa([((100, 112),), ((50, 60), (113, 113))], [[0, -1]], [True])
    found = {}
    symbols, left, right = automata.refined(a.symbols, b.symbols)
    for ranges, i, j in zip(symbols, left.tolist(), right.tolist(), strict=True):
        found[(i, j)] = ranges
    assert found == {
        (0, -1): ((97, 99), (114, 115)),
        (0, 0): ((100, 102), (110, 112)),
        (-1, 0): ((103, 109),),
        (0, 1): ((113, 113),),
        (1, -1): ((48, 49),),
        (1, 1): ((50, 57),),
        (-1, 1): ((58, 60),),
    }


@pytest.mark.parametrize("start", [None, "^[a-b]*$", "^a?$", "^(?!.*1)"])
def test_a_split_puts_every_text_where_all_automata_agree_about_it(start):
    rng = random.Random(7)
    for _ in range(30):
        base = Dfa.everything() if start is None else search_automaton(start)
        others = [search_automaton(rng.choice(PATTERNS)) for _ in range(rng.randrange(5))]
        kinds = dict(split(base, others, 64))
        assert not any(dfa.empty for dfa in kinds.values())
        for word in WORDS:
            own = frozenset(i for i, dfa in enumerate(others) if dfa.accepts_text(word))
            wanted = [own] if base.accepts_text(word) else []
            assert [kind for kind, dfa in kinds.items() if dfa.accepts_text(word)] == wanted


def test_a_split_of_too_many_kinds_is_none():
    others = [Dfa.words([letter]) for letter in "abc"]
    assert len(split(Dfa.everything(), others, 4)) == 4
    assert split(Dfa.everything(), others, 3) is None
    assert split(Dfa.nothing(), others, 0) == []


@pytest.mark.parametrize("seed", range(20))
def test_words_are_accepted_counted_and_listed(seed):
    rng = random.Random(seed)
    words = {
        "".join(rng.choice("ab\x7fé漢\U0001f600") for _ in range(rng.randrange(4)))
        for _ in range(rng.randrange(9))
    }
    dfa = Dfa.words([*words, "\ud800"])
    assert dfa.size() == len(words)
    assert dfa.finite(20) == sorted(words)
    assert {word for word in [*WORDS, *words] if dfa.accepts_text(word)} == words
    assert dfa.minimal().size() == len(words)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("^(a|bc?)$", 3),
        ("^[a-d]{3}$", 64),
        ("^[0-9]{1,7}$", 11_111_110),
        ("^[0-9]{8}$", None),
        ("^[^a]{9}$", None),
        ("^a*$", None),
        ("^(ab)*c$", None),
        ("^a(?!a)a$", 0),
    ],
)
def test_the_size_is_how_many_texts_there_are_unless_they_are_too_many(pattern, size):
    assert search_automaton(pattern).size() == size


def test_automata_with_a_common_text_are_found(monkeypatch):
    dfas = [search_automaton(pattern) for pattern in PATTERNS if pattern != "a{,2}"]
    dfas += [Dfa.nothing(), Dfa.words([""]), Dfa.words(["ab", "q"]), Dfa.everything()]
    common = {(i, j) for i in range(len(dfas)) for j in range(i) if not dfas[i].both(dfas[j]).empty}
    assert overlapping(dfas, 1000) == common and 0 < len(common) < len(dfas) ** 2 / 2
    assert len(overlapping(dfas, 5)) == 6  # no more are looked for
    # what is not known counts as common
    monkeypatch.setattr(regular, "MAX_MEETING", 50)
    assert overlapping(dfas, 1000) > common
    assert overlapping([Dfa.words([""]), Dfa.words(["", "a"])], 9) == {(1, 0)}
    assert overlapping([Dfa.words([""]), Dfa.words([""])], 9) == {(1, 0)}
    assert overlapping([Dfa.nothing(), Dfa.everything()], 9) == overlapping([], 9) == set()
