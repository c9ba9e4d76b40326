"""States and masks against a slow reference: random grammars, random vocabularies, cut code points,
bounded memory.
"""

import itertools
import pickle
import random
import tracemalloc
from functools import partial

import numpy as np
import pytest

from oxillama.errors import GrammarError
from oxillama.grammar import (
    Grammar,
    GrammarLimits,
    GrammarState,
    JsonSchemaCompiler,
    TokenMasker,
    apply_grammar_mask,
)
from oxillama.grammar.gbnf import parse, render
from tests.grammar.slow_recogniser import Reference

ALPHABET = ["a", "b", "c", "\u00e9", "\u4e16", "\U0001f600"]


def random_body(rng, depth, rules):
    roll = rng.random()
    if depth == 0 or roll < 0.3:
        if rng.random() < 0.3:
            return (
                "["
                + rng.choice(["ab", "a-c", "^a", "^b\u00e9", "\u00e8-\u4e17", "c\U0001f600"])
                + "]"
            )
        return '"' + "".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, 3))) + '"'
    if roll < 0.45:
        return rng.choice(rules)
    if roll < 0.65:
        return (
            "("
            + " | ".join(random_body(rng, depth - 1, rules) for _ in range(rng.randint(1, 3)))
            + ")"
        )
    if roll < 0.85:
        return " ".join(random_body(rng, depth - 1, rules) for _ in range(rng.randint(1, 3)))
    mark = rng.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,2}"])
    return "(" + random_body(rng, depth - 1, rules) + ")" + mark


def random_grammar(rng):
    """A grammar that is neither left recursive nor endless; both are refused and drawn again."""
    while True:
        names = ["root", "x", "y", "z"]
        text = "\n".join(
            f"{name} ::= {random_body(rng, 3, names[1:])} | " + '"a"' for name in names
        )
        try:
            return text, Grammar.parse(text)
        except GrammarError:
            continue


def random_texts(rng, parsed, count):
    """Texts near the language: walks of the reference with a few wrong bytes."""
    for _ in range(count):
        reference, data = Reference(parsed.rules), bytearray()
        for _ in range(rng.randint(0, 12)):
            options = [b for b in range(256) if step(reference, b).stacks]
            if not options:
                break
            byte = rng.choice(options) if rng.random() < 0.97 else rng.randrange(256)
            data.append(byte)
            reference.step(byte)
            if not reference.stacks or len(reference.stacks) > 300:
                break
        yield bytes(data)


def step(reference, byte):
    other = object.__new__(Reference)
    other.rules, other.stacks = reference.rules, reference.stacks
    other.step(byte)
    return other


@pytest.mark.parametrize("seed", range(40))
def test_random_grammars_equal_the_reference(seed):
    rng = random.Random(seed)
    text, grammar = random_grammar(rng)
    parsed = parse(text)
    again = Grammar.parse(render(parsed.names, parsed.rules))
    for data in random_texts(rng, parsed, 8):
        reference, state, other = Reference(parsed.rules), grammar.state(), again.state()
        for byte in data:
            allowed = reference.step(byte)
            assert state.allows_token(bytes([byte])) == allowed, (text, data)
            assert other.allows_token(bytes([byte])) == allowed, (text, data)
            if not allowed:
                with pytest.raises(GrammarError):
                    state.advance(bytes([byte]))
                break
            state.advance(bytes([byte]))
            other.advance(bytes([byte]))
            assert state.is_complete() == other.is_complete() == reference.complete, (text, data)


def small_vocabulary(rng, size):
    pieces = {bytes([b]) for b in range(256)}
    sources = "".join(ALPHABET) + 'xyz"\\ ,:0123456789{}[]\n'
    while len(pieces) < size:
        piece = "".join(rng.choice(sources) for _ in range(rng.randint(1, 5))).encode()
        pieces.add(piece[rng.randint(0, 1) : len(piece) - rng.randint(0, 1)] or b"x")
    vocab = sorted(pieces, key=lambda _: rng.random()) + [b"<eos>", b"<pad>", b"aa", b"aa"]
    return vocab, len(vocab) - 4, len(vocab) - 3


GRAMMARS = [
    'root ::= "{" pair ("," pair)* "}"\npair ::= str ":" (str | [0-9]+)\nstr ::= "\\"" char* '
    '"\\""\nchar ::= [^"\\\\\\x00-\\x1F] | "\\\\" ["\\\\n]',
    'root ::= "\\"" char{0,7} "\\"" ","?\nchar ::= [^"\\\\\\x00-\\x1F] | "\\\\" ["\\\\n]',
    'root ::= "\\"" [^"\\\\\\x00-\\x1F]{2,90} "\\""',
    'root ::= "\\"" ([^"\\\\\\x00-\\x1F]{3,200} | "abc") "\\"" "x"*',
    'root ::= ("\\"" str | "b" [a-z]+)\nstr ::= [^"]* "\\"" | [^"\\\\]{20,30} "x"',
    "root ::= .*",
    'root ::= "a" .{3} "b"',
    'root ::= [^\\n]+ "\\n"',
    'root ::= ("ab" | "cd")* "e"?',
    'root ::= char{40,60} "x"\nchar ::= [a-z\\u00e9]',
    'root ::= (str | key)\nstr ::= "\\"" [^"\\\\\\x00-\\x1F]{0,9} "\\""\nkey ::= "\\"abc\\"" | '
    '"\\"" [0-9]* "\\"" "!"',
]


@pytest.mark.parametrize("number", range(len(GRAMMARS) + 12))
def test_masks_equal_asking_for_every_token(number):
    rng = random.Random(number)
    grammar = Grammar.parse(GRAMMARS[number]) if number < len(GRAMMARS) else random_grammar(rng)[1]
    vocab, eos, pad = small_vocabulary(rng, 700)
    masker = TokenMasker(vocab, control_ids=[pad], eog_ids=[eos])
    for _ in range(4):
        state = masker.state(grammar)
        for _ in range(14):
            mask = state.mask()
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(vocab)].astype(bool)
            plain = state.fork()
            wanted = [
                state.is_complete() if i == eos else i != pad and plain.allows_token(piece)
                for i, piece in enumerate(vocab)
            ]
            assert bits.tolist() == wanted, state
            choices = [i for i in np.flatnonzero(bits) if i != eos]
            if not choices:
                break
            longest = max(choices, key=lambda i: len(vocab[i]))
            masker.advance(state, longest if rng.random() < 0.3 else int(rng.choice(choices)))


def test_control_tokens_are_never_allowed_and_the_end_exactly_when_complete():
    vocab = [b"a", b"b", b"<s>", b"</s>", b"ab"]
    masker = TokenMasker(vocab, control_ids=[2], eog_ids=[3])
    state = masker.state(Grammar.parse('root ::= "ab" | "<s>"'))
    assert state.mask().tolist() == [0b10001]
    with pytest.raises(GrammarError):
        masker.advance(state, 3)
    with pytest.raises(GrammarError):
        masker.advance(state, 2)
    masker.advance(state, 4)
    assert state.mask().tolist() == [0b01000] and state.only_end()
    masker.advance(state, 3)


def test_token_terminals_name_tokens_and_their_opposites():
    vocab = [b"a", b"b", b"<think>", b"</think>", b"", b"<tool>"]
    masker = TokenMasker(
        vocab, control_ids=[2, 3, 5], eog_ids=[4], names={"<think>": 2, "</think>": 3}
    )
    state = masker.state(
        Grammar.parse('root ::= <think> (!</think>)* <[3]> "b"'.replace("<[3]>", "</think>"))
    )
    assert state.mask().tolist() == [0b000100]
    masker.advance(state, 2)
    # any text, the named control tokens; no other, no end
    assert state.mask().tolist() == [0b001111]
    assert [masker.allows(state, i) for i in range(6)] == [True, True, True, True, False, False]
    masker.advance(state, 0)
    other = GrammarState.restore(state.serialise(), masker=masker)
    for s in (state, other):
        masker.advance(s, 3)
        assert s.mask().tolist() == [0b000010]
        masker.advance(s, 1)
        assert s.mask().tolist() == [0b010000]
    with pytest.raises(GrammarError, match="<missing>"):
        masker.state(Grammar.parse("root ::= <missing>"))


def test_grammars_with_other_ids_for_the_same_names_have_masks_of_their_own():
    # one machine serves them all: bytes lead to the same positions, whatever a name's token is
    source = Grammar.parse('root ::= <a> "x" <b>?')
    readings = [
        source,
        *(source.resolve(ids) for ids in ({"<a>": 1, "<b>": 2}, {"<a>": 2, "<b>": 1})),
    ]

    def asked(masker, reading):
        state = reading.state()
        masks = [masker.mask(state).tolist()]
        for token in (1, 2):
            if masker.allows(state, token):
                masker.advance(state, token)
                masker.advance(state, 0)
                return [*masks, masker.mask(state).tolist()]
        return masks

    def made():
        return TokenMasker([b"x", b"<a>", b"<b>"], control_ids=[1, 2], names={"<a>": 1, "<b>": 2})

    alone = [asked(made(), each) for each in readings]
    assert alone == [[[0]], [[0b010], [0b100]], [[0b100], [0b010]]]
    for order in itertools.permutations(range(3)):
        shared = made()
        assert [asked(shared, readings[i]) for i in order] == [alone[i] for i in order]
        assert shared.state(source).mask().tolist() == alone[1][0]


@pytest.mark.parametrize("resolved", (False, True))
def test_a_token_may_have_several_names(resolved):
    """Each of them stands for it, and without each of them it is excluded."""
    vocab = [b"x", b"y", b"<a>", b"<b>"]
    masker = TokenMasker(vocab, control_ids=[2, 3], names={"<a>": 2, "<b>": 3, "<also>": 2})

    def answers(text, *tokens):
        """What may follow each of the tokens, and the end."""
        grammar = Grammar.parse(text)
        if resolved:
            grammar = grammar.resolve(masker.names)
        state = masker.state(grammar)
        found = [int(state.mask()[0])]
        for token in tokens:
            masker.advance(state, token)
            found.append(int(state.mask()[0]))
            again = GrammarState.restore(state.serialise(), masker=masker)
            assert again.mask().tolist() == state.mask().tolist()
        return found

    for one, other in itertools.permutations(("<a>", "<[2]>", "<also>"), 2):
        assert answers(f'root ::= {one} "x" | {other} "y"', 2) == [0b0100, 0b0011]
        assert answers(f'root ::= "x" {one} {other}', 0, 2, 2) == [0b0001, 0b0100, 0b0100, 0]
        assert answers(f'root ::= !{one} "x" | <b> | "y" {other}', 1) == [0b1011, 0b0101]
        assert answers(f'root ::= ({one} "x"){{2}} !{other}', 2, 0, 2, 0)[-1] == 0b0011
    # the same grammar over a vocabulary where they are two tokens, in either order
    apart = TokenMasker(vocab, control_ids=[2, 3], names={"<a>": 2, "<also>": 3})
    grammar = Grammar.parse('root ::= <a> "x" | <also> "y"')
    for order in ((masker, apart), (apart, masker)):
        bound = grammar
        for each in order:
            bound = each.resolve(bound)
            assert masker.mask(bound.state(each))[0] == (0b0100 if each is masker else 0b1100)


def test_ids_given_for_names_are_not_looked_up_again():
    """By no vocabulary, whatever it calls them, nor where the grammar is read again."""
    masker = TokenMasker([b"x", b"", b""], control_ids=[1, 2], names={"<a>": 1})
    grammar = Grammar.parse('root ::= <a> "x"').resolve({"<a>": 2})
    state = masker.state(grammar)
    for each in (grammar, Grammar.rebuild(grammar.describe()), pickle.loads(pickle.dumps(grammar))):
        assert masker.state(each).mask().tolist() == [0b100]
        assert each.matches([2, "x"]) and not each.matches([1, "x"])
    masker.advance(state, 2)
    assert GrammarState.restore(state.serialise(), masker=masker).mask().tolist() == [0b001]
    assert grammar.source == 'root ::= <[2]> "x"\n' and grammar.resolve({"<a>": 1}) is grammar


def test_code_points_may_straddle_tokens():
    grammar = Grammar.parse('root ::= [\u4e00-\u9fff]+ "\U0001f600"')
    data = "\u4e16\u754c\U0001f600".encode()
    for cut in range(1, len(data)):
        state = grammar.state()
        state.advance(data[:cut])
        assert not state.is_complete()
        state.advance(data[cut:])
        assert state.is_complete()
    assert not grammar.state().allows_token(b"\xe4\xb7")  # would be U+4DC0 to U+4DFF


def test_classes_that_are_alike_beyond_ascii_lead_each_to_its_own_end():
    grammar = Grammar.parse(
        'root ::= [a\u0080-\u4e16] "1" | [b\u0080-\u4e16] "2" | [ab\u4e17-\U0001f600] "3"'
    )
    for letters, ends in (
        ("a", "13"),
        ("b", "23"),
        ("\x80\u00e9\u4e16", "12"),
        ("\u4e17\U0001f600", "3"),
    ):
        for letter in letters:
            assert [end for end in "0123" if grammar.matches(letter + end)] == [*ends]
    assert not any(grammar.matches(letter + "3") for letter in ("\x7f", "c", "\U0001f601"))


def test_forced_bytes_are_what_every_continuation_starts_with():
    grammar = Grammar.parse('root ::= "{\\"name\\":" ("true" | "tall") "}"')
    state = grammar.state()
    assert state.forced() == b'{"name":t'
    state.advance(state.forced())
    assert state.forced() == b""
    state.advance(b"a")
    assert state.forced() == b"ll}"
    assert grammar.state().forced(3) == b'{"n'
    # may end here: nothing is forced
    assert Grammar.parse('root ::= "ab"?').state().forced() == b""


def test_states_fork_serialise_and_restore():
    grammar = Grammar.parse('root ::= "(" root ")" | [a-z\u00e9]{1,40}')
    state = grammar.state()
    state.advance("((ab\u00e9".encode()[:-1])
    fork = state.fork()
    restored = GrammarState.restore(state.serialise())
    shared = GrammarState.restore(state.serialise(), grammar=grammar)
    assert shared.key == state.key
    fork.advance(b"\xa9x))")
    assert fork.is_complete() and not state.is_complete()
    for other in (restored, shared, state):
        other.advance(b"\xa9))")
        assert other.is_complete()
    with pytest.raises(GrammarError):
        GrammarState.restore(state.serialise(), grammar=Grammar.parse('root ::= "x"'))
    for junk in (
        b"",
        b"{}",
        b"[]",
        b"\xff",
        state.serialise().replace(b'"version":1', b'"version":9'),
    ):
        with pytest.raises(GrammarError):
            GrammarState.restore(junk)


def test_tokens_of_more_bytes_than_a_trie_counts_are_refused():
    longest = TokenMasker([b"a", b"a" * 0xFFFF])
    limits = GrammarLimits(max_repetition=100_000)
    state = longest.state(Grammar.parse("root ::= [a-z]{0,100000}", limits=limits))
    assert state.mask().tolist() == [3]
    state.advance(b"a" * 50_000)
    assert state.mask().tolist() == [1]
    with pytest.raises(GrammarError, match="a token of 65536 bytes, wanted at most 65535"):
        TokenMasker([b"a", b"a" * 0x10000])


def test_masks_take_no_more_memory_than_they_may():
    most = 100_000
    masker = TokenMasker([bytes([b]) for b in range(256)], cache_bytes=most)
    state = masker.state(Grammar.parse(f'root ::= "{"q" * 1500}"'))
    tracemalloc.start()
    for _ in range(1500):
        state.mask()
        masker.advance(state, ord("q"))
    held = masker.cached_masks
    before = tracemalloc.get_traced_memory()[0]
    masker._masks = None
    freed = before - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held == 183 and most / 2 < freed <= most


def test_memory_is_bounded_and_positions_survive_eviction():
    limits = GrammarLimits(max_configs=300)
    grammar = Grammar.parse('root ::= ("(" root ")")* [a-z]{0,2000} "."', limits=limits)
    large = Grammar.parse(grammar.source)
    vocab = [bytes([b]) for b in range(256)] + [b"))", b"ab.", b"((("]
    small, roomy = TokenMasker(vocab, cache_bytes=0), TokenMasker(vocab)
    states, others = [], []
    rng = random.Random(5)
    a, b = small.state(grammar), roomy.state(large)
    for i in range(1500):
        choices = np.flatnonzero(np.unpackbits(a.mask().view(np.uint8), bitorder="little"))
        assert a.mask().tolist() == b.mask().tolist()
        token = int(rng.choice(choices))
        if b"." in vocab[token] and i % 90:  # long runs of letters: a new position each
            token = ord("q")
            if not a.allows_token(b"q"):
                token = int(choices[0])
        if i % 300 == 0:
            states.append(a.fork())
            others.append(b.fork())
        small.advance(a, token)
        roomy.advance(b, token)
        if a.is_complete() and not a.forced() and a.only_end():
            a, b = small.state(grammar), roomy.state(large)
    assert grammar._machine.epoch > 2  # tables were rebuilt on the way
    assert grammar._machine.sizes()["configs"] < 8 * 300
    assert small.cached_masks <= 16
    for a, b in zip(states, others, strict=True):
        assert a.mask().tolist() == b.mask().tolist()
        assert a.is_complete() == b.is_complete()


def test_apply_grammar_mask_removes_exactly_what_is_not_allowed():
    masker = TokenMasker([b"a", b"b", b"c"] + [b""] * 40, eog_ids=[42])
    state = masker.state(Grammar.parse("root ::= [ac]"))
    logits = np.arange(43, dtype=np.float32)
    assert apply_grammar_mask(logits, state) == 2
    assert np.flatnonzero(np.isfinite(logits)).tolist() == [0, 2]
    with pytest.raises(GrammarError):
        apply_grammar_mask(np.zeros(43), state)
    with pytest.raises(GrammarError):
        apply_grammar_mask(logits, Grammar.parse('root ::= "a"').state())


def test_choices_are_exactly_the_choices():
    grammar = Grammar.from_choices(["yes", "no", "yes!", "\u00e9"])
    assert all(grammar.matches(t) for t in ("yes", "no", "yes!", "\u00e9"))
    assert not any(grammar.matches(t) for t in ("", "y", "yesno", "e"))
    assert Grammar.parse(grammar.source).matches("yes!")
    for bad in ([], "yes", [1], [b"\xff"], ["\ud800"]):
        with pytest.raises(GrammarError, match="^choices: "):
            Grammar.from_choices(bad)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Grammar.parse("= x"), "line 1, column 1: found '=', wanted a rule name"),
        (
            lambda: Grammar.parse("root = x"),
            "line 1, column 6: found '=' after rule name 'root', wanted '::='",
        ),
        (
            lambda: Grammar.parse('root ::= "a" )'),
            "line 1, column 14: found ')', wanted the end of the line",
        ),
        (
            lambda: Grammar.parse('root ::= ("a"'),
            "line 1, column 14: found the end of the text, wanted ')' "
            "(the group opens at line 1, column 10)",
        ),
        (
            lambda: Grammar.parse('root ::= "a"{1;2}'),
            "line 1, column 15: found ';', wanted '}' or ','",
        ),
        (lambda: Grammar.parse('root ::= "a"{x}'), "line 1, column 14: found 'x', wanted a number"),
        (
            lambda: Grammar.parse("root ::= <a"),
            "line 1, column 10: found '<', wanted a token terminal: <[id]> or <text>",
        ),
        (lambda: Grammar.parse(3), "found int, wanted text"),
        (
            lambda: Grammar.parse("x" * 5, limits=GrammarLimits(max_source=4)),
            "found 5 characters, wanted at most 4 (max_source)",
        ),
        (lambda: Grammar.rebuild({"regex": 1}), "regex: found int, wanted text"),
        (
            lambda: Grammar.rebuild({"x": 1}),
            "found {'x': 1}, wanted a description (gbnf, regex, choices or schema)",
        ),
    ],
)
def test_errors_of_grammars_say_what_was_found_and_wanted(call, error):
    with pytest.raises(GrammarError) as raised:
        call()
    assert str(raised.value) == f"grammar: {error}"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Grammar.from_regex(["a"]), "pattern: found list, wanted text"),
        (lambda: Grammar.from_choices(3), "choices: found int, wanted a list of texts"),
        (lambda: Grammar.from_choices({"a": 1}), "choices: found dict, wanted a list of texts"),
        *(
            (lambda make=make: make(limits={}), "limits: found dict, wanted GrammarLimits or None")
            for make in (
                partial(Grammar.parse, "root ::= [a]"),
                partial(Grammar.from_regex, "a"),
                partial(Grammar.from_choices, ["a"]),
                partial(Grammar.from_json_schema, {}),
            )
        ),
        (
            lambda: Grammar.from_json_schema({}, resources=[1]),
            "resources: found [1], wanted a mapping of URIs to schemas",
        ),
        (
            lambda: Grammar.from_json_schema({}, resources={1: {}}),
            "resources: found {1: {}}, wanted a mapping of URIs to schemas",
        ),
    ],
)
def test_what_a_grammar_is_made_of_is_named_where_it_is_something_else(call, error):
    with pytest.raises(GrammarError) as raised:
        call()
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Grammar.from_regex(3), "pattern: found int, wanted text"),
        (lambda: Grammar.from_regex(["a"]), "pattern: found list, wanted text"),
        (
            lambda: Grammar.from_regex(r"\xg1"),
            r"pattern '\\xg1', position 1: found 'g1', wanted 2 hexadecimal digits",
        ),
        (lambda: Grammar.from_choices("a"), "choices: found one text, wanted a list of texts"),
        (lambda: Grammar.from_choices([]), "choices: found none, wanted at least one"),
        (lambda: Grammar.from_choices([3]), "choices: found int, wanted text"),
        (
            lambda: JsonSchemaCompiler(order="any"),
            "order: found 'any', wanted one of ('declared', 'free')",
        ),
        (
            lambda: JsonSchemaCompiler(closed=2),
            "closed: found 2, wanted None, True or False",
        ),
        (
            lambda: GrammarLimits(max_depth=0),
            "GrammarLimits.max_depth: found 0, wanted a positive integer",
        ),
        (
            lambda: Grammar.from_json_schema({1}),
            "schema: found {1}, wanted JSON text, a dict or bool, a Pydantic model, a dataclass, a "
            "TypedDict or a type such as list[str]",
        ),
        (
            lambda: Grammar.from_json_schema({"properties": {"a": 1}}),
            "schema /properties/a: found number, wanted an object or a boolean",
        ),
        (
            lambda: apply_grammar_mask(np.zeros((2, 2)), None),
            "logits: found float64 of shape (2, 2), wanted one float32 row",
        ),
    ],
)
def test_other_errors_say_what_was_found_and_wanted(call, error):
    with pytest.raises(GrammarError) as raised:
        call()
    assert str(raised.value) == error
