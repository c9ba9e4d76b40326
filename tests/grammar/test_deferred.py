"""Rules that are written when they are first reached: the same language, errors where the schema is
compiled, threads that share a grammar.
"""

import functools
import json
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarLimits, JsonSchemaCompiler, TokenMasker
from oxillama.grammar.schema import survey

COMPILER = JsonSchemaCompiler()
LEAF = {"anyOf": [{"type": "string", "maxLength": 3}, {"$ref": "#"}]}
ROWS = {f"q{k}": {"type": "array", "items": {"$ref": "#/$defs/leaf"}} for k in range(5)}
WIDE = {
    "type": "object",
    "properties": {f"p{i}": {"type": "object", "properties": ROWS} for i in range(9)},
    "$defs": {"leaf": LEAF},
}


def test_what_no_text_has_reached_is_not_written():
    grammar = COMPILER.compile(WIDE)
    before = grammar._machine.sizes()["states"]
    assert grammar.matches('{"p7":{"q1":["abc",{"p3":{}}]}}')
    reached = grammar._machine.sizes()["states"]
    assert reached > before
    assert grammar.matches('{"p7":{"q1":["ab",{"p3":{}}]}}')
    assert grammar._machine.sizes()["states"] == reached


def test_rules_written_at_once_and_when_reached_are_the_same_language():
    late, at_once = COMPILER.compile(WIDE), COMPILER.compile(WIDE)
    assert Grammar.parse(at_once.source, limits=at_once.limits).source == at_once.source
    texts = [
        "{}",
        '{"p0":{}}',
        '{"p1":{"q0":[]},"p2":{"q4":["x",{}]}}',
        '{"p2":{},"p1":{}}',
        '{"p1":{"q0":["abcd"]}}',
        '{"p8":{"q4":[[]]}}',
        "[]",
    ]
    assert (
        [late.matches(t) for t in texts]
        == [at_once.matches(t) for t in texts]
        == [True, True, True, False, False, False, False]
    )
    # names that are not declared have their network, and no nodes: these are made again
    assert late.matches('{"p0":{},"p":1}') and not late.matches('{"p":1,"p0":{}}')
    again = Grammar.parse(late.source, limits=late.limits)
    for text in [*texts, '{"p0":{},"p":1}', '{"p":1,"p0":{}}', '{"p01":[]}']:
        assert again.matches(text) == late.matches(text)


def test_a_keyword_deep_below_is_refused_where_the_schema_is_compiled():
    schema = {
        "type": "object",
        "properties": {
            "a": {
                "type": "array",
                "items": {"type": "object", "properties": {"b": {"$ref": "#/$defs/c"}}},
            }
        },
        "$defs": {"c": {"type": "array", "items": {"type": "object"}, "uniqueItems": True}},
    }
    with pytest.raises(GrammarError, match=r"schema /\$defs/c: keyword 'uniqueItems'"):
        COMPILER.compile(schema)


def test_no_text_leads_into_a_rule_that_cannot_end():
    endless = {
        "type": "object",
        "properties": {"again": {"$ref": "#/$defs/endless"}},
        "required": ["again"],
    }
    schema = {
        "type": "object",
        "properties": {
            "bad": {"$ref": "#/$defs/endless"},
            "good": {"type": "array", "items": {"$ref": "#/$defs/endless"}},
        },
        "additionalProperties": False,
        "$defs": {"endless": endless},
    }
    grammar = COMPILER.compile(schema)
    assert grammar.matches('{"good":[]}')
    state = grammar.state()
    assert not state.allows_token(b'{"b')
    state.advance(b'{"good":[')
    assert state.forced() == b"]}"
    with pytest.raises(GrammarError, match="nothing is valid"):
        COMPILER.compile({"$ref": "#/$defs/endless", "$defs": {"endless": endless}})


PIECES = [bytes([b]) for b in range(256)] + [b'{"p', b'":', b'":{"q', b'["', b'"]}', b'","']


def masks(masker, grammar, text):
    """The mask before each byte of a text."""
    state, out = masker.state(grammar), []
    for byte in text:
        out.append(state.mask().tobytes())
        masker.advance(state, byte)
    return out


@pytest.fixture
def together():
    """Calls functions at once, a thread each, that give way to each other as often as they can."""

    def run(works):
        gate = threading.Barrier(len(works))

        def one(work):
            gate.wait()
            return work()

        with ThreadPoolExecutor(len(works)) as pool:
            return list(pool.map(one, works))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield run
    sys.setswitchinterval(before)


def test_threads_that_share_a_grammar_read_the_same_masks(together):
    text = json.dumps(
        {f"p{i}": {f"q{k}": ["ab", {}] for k in range(5)} for i in range(0, 9, 2)},
        separators=(",", ":"),
    ).encode()
    wanted = masks(TokenMasker(PIECES), COMPILER.compile(WIDE), text)
    for _ in range(8):
        shared = TokenMasker(PIECES, cache_bytes=64), COMPILER.compile(WIDE)
        found = together([functools.partial(masks, *shared, text)] * 4)
        assert [one == wanted for one in found] == [True] * 4


def test_the_first_mask_writes_nothing():
    grammar = COMPILER.compile(WIDE)
    before = grammar._machine.sizes()
    state = TokenMasker(PIECES).state(grammar)
    assert [PIECES[t] for t in range(len(PIECES)) if state.mask()[t >> 5] >> (t & 31) & 1] == [
        b"{",
        b'{"p',
    ]
    after = grammar._machine.sizes()
    assert after["states"] == before["states"]
    state.advance(b'{"p3":')
    assert state.mask()[ord("{") >> 5] >> (ord("{") & 31) & 1
    assert grammar._machine.sizes()["states"] > after["states"]


def test_a_long_list_is_written_by_compilation():
    def states(count):
        words = [f"word {i}" for i in range(count)]
        schema = {"type": "object", "properties": {"a": {"enum": words}}, "required": ["a"]}
        grammar = COMPILER.compile({**schema, "additionalProperties": False})
        before, state = grammar._machine.sizes()["states"], grammar.state()
        state.advance(b'{"a":"word ')
        allowed = [chr(b) for b in range(256) if state.allows_token(bytes([b]))]
        return allowed, grammar._machine.sizes()["states"] - before

    assert states(survey.LISTED + 1) == (list("0123456789"), 0)
    allowed, written = states(survey.LISTED)
    assert allowed == list("0123456789") and written > 100


def test_a_limit_that_the_first_position_exceeds_is_told_by_the_mask():
    wide = {"anyOf": [{"type": "object", "required": [f"n{i}"]} for i in range(40)]}
    grammar = JsonSchemaCompiler(limits=GrammarLimits(max_items=20)).compile(wide)
    with pytest.raises(GrammarError, match="max_items"):
        TokenMasker(PIECES).mask(grammar.state())


PARTS = 40
LINKED = {
    "$ref": "#/$defs/part0",
    "$defs": {
        f"part{n}": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": f"^[a-z]{{1,{1 + n % 3}}}{n}$"},
                "left": {"$ref": f"#/$defs/part{(3 * n + 1) % PARTS}"},
                "right": {"$ref": f"#/$defs/part{(7 * n + 2) % PARTS}"},
                "more": {"type": "array", "items": {"$ref": f"#/$defs/part{(n + 11) % PARTS}"}},
                "tags": {
                    "type": "array",
                    "items": {"type": "string", "pattern": f"^[a-c]{{1,{1 + n % 4}}}$"},
                    "uniqueItems": True,
                },
            },
        }
        for n in range(PARTS)
    },
}


def part(rng, n, depth):
    """A value of LINKED's part n."""
    value = {"name": f"x{n}"} if rng.random() < 0.5 else {}
    if depth:
        value["left"] = part(rng, (3 * n + 1) % PARTS, depth - 1)
        if rng.random() < 0.4:
            value["right"] = part(rng, (7 * n + 2) % PARTS, depth - 1)
        value["more"] = [part(rng, (n + 11) % PARTS, depth - 1) for _ in range(rng.randrange(2))]
    value["tags"] = rng.sample("abc", rng.randrange(4))
    return value


@pytest.mark.parametrize("machines", ["one machine", "a machine for each"])
def test_threads_that_follow_different_texts_read_the_masks_of_a_grammar_alone(together, machines):
    texts = [
        json.dumps(part(random.Random(seed), 0, 3), separators=(",", ":")).encode()
        for seed in range(8)
    ]

    def follow(masker, grammar, text):
        if machines == "a machine for each":  # as after many rules for words
            grammar._machine = grammar._make()
        return masks(masker, grammar, text)

    wanted = [masks(TokenMasker(PIECES), COMPILER.compile(LINKED), text) for text in texts]
    for _ in range(8):
        shared = TokenMasker(PIECES, cache_bytes=64), COMPILER.compile(LINKED)
        found = together([functools.partial(follow, *shared, text) for text in texts])
        assert [one == own for one, own in zip(found, wanted, strict=True)] == [True] * 8


def test_half_a_network_is_none():
    pieces = {
        f"k{i}": {"type": "array", "items": {"type": "integer"}, "maxItems": 3} for i in range(40)
    }
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "object", "properties": pieces}},
    }

    def states(grammar, text):
        grammar.state().allows_token(text)
        return grammar._machine.sizes()["states"]

    free = COMPILER.compile(schema)
    few, many = states(free, b'{"a":"x","b"'), states(free, b'{"a":"x","b":{"k')
    limits = GrammarLimits(max_states=(few + many) // 2, max_repetition=1 << 30)
    grammar = JsonSchemaCompiler(limits=limits).compile(schema)
    for _ in range(2):
        with pytest.raises(GrammarError, match="max_states"):
            grammar.matches('{"a":"x","b":{}}')
    assert grammar.matches('{"a":"y"}')


VALUES = ["", "a", "abcd", 0, 3, 9, 2.5, True, None, [], [1], ["a", "a"], {}, {"a": 1}, {"b": []}]
PLAIN = (
    lambda rng, sub: {"type": rng.choice(["string", "integer", "number", "boolean", "null"])},
    lambda rng, sub: {"type": "string", "minLength": rng.choice([0, 1, 2]), "maxLength": 1},
    lambda rng, sub: {"type": "integer", "minimum": 1, "maximum": rng.choice([0, 3, 9])},
    lambda rng, sub: {"minimum": rng.choice([1, 2.5]), "type": ["number", "string"]},
    lambda rng, sub: {"enum": rng.sample(["a", "abcd", 3, None], rng.choice([1, 2]))},
    lambda rng, sub: {"enum": ["", "a"], "type": rng.choice(["string", "integer"])},
    lambda rng, sub: {"format": rng.choice(["date", "other"]), "type": ["string", "array"]},
    lambda rng, sub: {
        "type": "array",
        "items": sub(),
        "minItems": 1,
        "maxItems": rng.choice([0, 2]),
    },
    lambda rng, sub: {"type": ["array", "null"], "items": rng.choice([sub(), False])},
    lambda rng, sub: {"type": "object", "properties": {"a": sub()}, "required": ["a"]},
    lambda rng, sub: {
        "properties": {"b": sub()},
        "additionalProperties": rng.choice([sub(), False]),
    },
    lambda rng, sub: {"anyOf": [sub(), sub()]},
    lambda rng, sub: {"oneOf": [sub(), {"type": "object", "required": ["a"]}]},
    lambda rng, sub: {"$ref": rng.choice(["#/$defs/x", "#/$defs/y"])},
    lambda rng, sub: {"type": "object", "not": {"additionalProperties": sub()}},
    lambda rng, sub: {"title": "anything"},
)


def test_a_look_at_a_schema_tells_what_its_expansion_tells(monkeypatch):
    rng = random.Random(5)

    def draw(depth):
        maker = rng.choice(PLAIN[:7] if depth == 0 else PLAIN)
        return maker(rng, lambda: draw(depth - 1))

    def verdicts(schema):
        try:
            grammar = JsonSchemaCompiler(order="free").compile(schema)
        except GrammarError as error:
            return str(error)
        return [grammar.matches(json.dumps([v], separators=(",", ":"))) for v in VALUES]

    looked = 0
    for _ in range(300):
        items = draw(2)
        schema = {"type": "array", "items": items, "$defs": {"x": draw(1), "y": draw(0)}}
        quick = verdicts(schema)
        with monkeypatch.context() as patched:
            patched.setattr(survey, "glance", lambda em, key, depth=0: None)
            assert verdicts(schema) == quick, schema
        looked += not isinstance(quick, str)
    assert looked > 150
