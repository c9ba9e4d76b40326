"""Rules that are written when they are first reached: the same language, errors where the schema is
compiled, threads that share a grammar.
"""

import json
import random
import threading

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


def test_threads_that_share_a_grammar_read_the_same_masks():
    pieces = [bytes([b]) for b in range(256)] + [b'{"p', b'":', b'":{"q', b'["', b'"]}']
    text = json.dumps(
        {f"p{i}": {f"q{k}": ["ab", {}] for k in range(5)} for i in range(0, 9, 2)},
        separators=(",", ":"),
    ).encode()

    def walk(masker, grammar):
        state, out = masker.state(grammar), []
        for byte in text:
            out.append(state.mask().tobytes())
            masker.advance(state, byte)
        return out

    wanted = walk(TokenMasker(pieces), COMPILER.compile(WIDE))
    masker, grammar, found = TokenMasker(pieces, cache_bytes=64), COMPILER.compile(WIDE), []
    threads = [
        threading.Thread(target=lambda: found.append(walk(masker, grammar))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one == wanted for one in found) and len(found) == 4


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
