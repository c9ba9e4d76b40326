"""What registers of the machine enforce: any order of members, counts, distinct items and names.

`jsonschema` judges: a text is accepted exactly if its value is valid and its names are distinct.
"""

import itertools
import json
import random

import jsonschema
import numpy as np
import pytest

from oxillama._core.cursor import collect
from oxillama.errors import GrammarError
from oxillama.grammar import (
    Grammar,
    GrammarLimits,
    GrammarState,
    JsonSchemaCompiler,
    TokenMasker,
)
from oxillama.grammar.schema import arrays, emit

FREE = JsonSchemaCompiler(order="free")
DECLARED = JsonSchemaCompiler()


def written(value) -> str:
    return json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("count", [2, 9, 10, 40, 200])
def test_members_come_in_any_order_at_any_number(count):
    names = [f"m{i}" for i in range(count)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": names[::3],
        "additionalProperties": False,
    }
    grammar, draw = FREE.compile(schema), random.Random(count)
    for _ in range(5):
        draw.shuffle(names)
        whole = dict.fromkeys(names, 1)
        assert grammar.matches(written(whole))
        assert grammar.matches(
            written(
                {name: 1 for name in names if name in schema["required"] or draw.random() < 0.5}
            )
        )
        missing = draw.choice(schema["required"])
        assert not grammar.matches(written({name: 1 for name in names if name != missing}))
        twice = written(whole)[:-1] + f',"{draw.choice(names)}":1}}'
        assert not grammar.matches(twice)


@pytest.mark.parametrize("compiler", [FREE, DECLARED])
@pytest.mark.parametrize("seed", range(40))
def test_objects_under_counts_and_demands_are_those_that_are_valid(compiler, seed):
    draw = random.Random(seed)
    schema: dict = {"type": "object"}
    if draw.random() < 0.8:
        schema["properties"] = {
            name: draw.choice([{"type": "integer"}, {"const": 1}, {}])
            for name in draw.sample("abc", draw.randrange(1, 4))
        }
    if draw.random() < 0.5:
        schema["required"] = draw.sample("abcd", draw.randrange(1, 3))
    if draw.random() < 0.6:
        schema["minProperties"] = draw.randrange(4)
    if draw.random() < 0.5:
        schema["maxProperties"] = draw.randrange(1, 4)
    if draw.random() < 0.4:
        schema["additionalProperties"] = draw.choice([False, {"type": "integer"}])
    if draw.random() < 0.3:
        schema["patternProperties"] = {draw.choice(["^[cd]$", "b|e"]): {"type": "integer"}}
    try:
        grammar = compiler.compile(schema)
    except GrammarError as error:
        assert "nothing is valid" in str(error)
        grammar = None
    judge = jsonschema.Draft202012Validator(schema)
    found = 0
    for size in range(4):
        for names in itertools.permutations("abcde", size):
            value = dict.fromkeys(names, 1)
            order = [*schema.get("properties", {})]
            ranks = [order.index(n) if n in order else len(order) for n in names]
            if compiler is FREE or ranks == sorted(ranks):
                found += judge.is_valid(value)
                accepted = grammar is not None and grammar.matches(written(value))
                assert accepted == judge.is_valid(value), (schema, value)
    assert grammar is not None or not found


@pytest.mark.parametrize("seed", range(40))
def test_arrays_of_distinct_scalars_are_those_that_are_valid(seed):
    draw = random.Random(seed)
    pool = [
        ({"type": "string"}, ["", "a", "aa", 'a"b', "\u00e9", "b c"]),
        ({"type": "string", "pattern": "^a*b?$", "maxLength": 3}, ["", "a", "aa", "ab", "b"]),
        ({"type": "integer"}, [0, 1, 11, -1, 10]),
        ({"type": "number"}, [0, 1, 1.5, 1.25, -2]),
        ({"type": ["string", "null", "boolean"]}, ["a", None, True, False, "null"]),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["a", "b"]}]}, [1, 2, "a", "b"]),
        ({"enum": list(range(14))}, [1, 2, 3, 12, 13]),
    ]
    item, values = draw.choice(pool)
    schema = {"type": "array", "items": item, "uniqueItems": True}
    if draw.random() < 0.5:
        schema["minItems"] = draw.randrange(3)
    if draw.random() < 0.5:
        schema["maxItems"] = draw.randrange(1, 4)
    grammar = JsonSchemaCompiler().compile({"type": "object", "properties": {"x": schema}})
    judge = jsonschema.Draft202012Validator(schema)
    try:
        for size in range(5):
            for _ in range(12):
                value = draw.choices(values, k=size)
                text = json.dumps({"x": value}, separators=(",", ":"), ensure_ascii=False)
                assert grammar.matches(text) == judge.is_valid(value), (schema, value)
    except GrammarError:
        raise AssertionError(schema) from None


def test_equal_values_in_other_spellings_are_not_distinct():
    strings = FREE.compile({"type": "array", "items": {"type": "string"}, "uniqueItems": True})
    assert strings.matches('["a","b"]') and not strings.matches('["a","\\u0061"]')
    assert not strings.matches('["\\u0061","a"]')
    numbers = FREE.compile({"type": "array", "items": {"type": "number"}, "uniqueItems": True})
    assert not numbers.matches("[1,1.0]") and not numbers.matches("[1.5,1.50]")
    names = DECLARED.compile({"type": "object", "minProperties": 2})
    assert not names.matches('{"a":1,"\\u0061":2}')


@pytest.mark.parametrize("seed", range(20))
def test_lengths_beside_patterns_are_counted_exactly(seed):
    draw = random.Random(seed)
    pattern = draw.choice(
        ["^(ab)*$", "^a+(b|cc)*$", "^(a|bc|cab)*$", "b", "^c?(ab|ba)*a$", "^(?!ab)"]
    )
    least, most = draw.randrange(3), draw.choice([None, 700, 1500])
    schema = {"type": "string", "pattern": pattern, "minLength": least}
    if most is not None:
        schema["maxLength"] = most
        schema["minLength"] = draw.choice([least, most - 3, most])
    judge = jsonschema.Draft202012Validator(schema)
    grammar = FREE.compile(schema)
    texts = ["", "a", "ab", "ba", "bc", "abab", "aab", "c"]
    for n in (most or 1000) - 4, (most or 1000) - 1, (most or 1000), (most or 1000) + 1:
        texts += [
            (part * n)[:n] + tail
            for part in ("ab", "ba", "a", "abc", "cc")
            for tail in ("", "a", "b")
        ]
    for text in texts:
        assert grammar.matches(written(text)) == judge.is_valid(text), (schema, text[:9], len(text))
        # no text leads into a dead end
        cursor = grammar.state()._cursor
        if cursor.advance(written(text)[:-1].encode()):
            assert any(cursor.next_bytes())


@pytest.mark.parametrize("least", [0, 1, 2])
@pytest.mark.parametrize("most", [0, 1, 2, 3, None])
@pytest.mark.parametrize(
    "rule", [{"pattern": "b"}, {"not": {"pattern": "^b"}}, {"not": {"const": "a"}}]
)
def test_short_lengths_hold_beside_patterns(least, most, rule):
    schema = {"type": "string", "minLength": least, **rule}
    if most is not None:
        schema["maxLength"] = most
    judge = jsonschema.Draft202012Validator(schema)
    try:
        grammar = FREE.compile(schema)
    except GrammarError as error:
        assert "nothing is valid" in str(error)
        grammar = None
    for size in range(5):
        for letters in itertools.product("ab", repeat=size):
            text = "".join(letters)
            accepted = grammar is not None and grammar.matches(written(text))
            assert accepted == judge.is_valid(text), (schema, text)


PIECES = [bytes([b]) for b in range(32, 127)] + [
    b'","',
    b'":',
    b'":1,"',
    b'"a","a"',
    b'","a","',
    b"1,1",
    b",1,",
    b"ab",
    b"abab",
    b'["',
    b"ababababab",
]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (
            {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
            b'["a","ab","","a b","c"]',
        ),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, b"[1,11,2,10]"),
        ({"type": "object", "minProperties": 2}, b'{"a":1,"b":["x"]}'),
        ({"type": "string", "pattern": "^(ab)*$", "maxLength": 900}, b'"abababab"'),
        ({"type": "string", "pattern": "^(ab)*$", "maxLength": 9}, b'"abababab"'),
        (
            {"properties": {c: {"type": "integer"} for c in "abcdefghijklm"}, "type": "object"},
            b'{"m":1,"a":2,"c":3,"zz":1}',
        ),
    ],
)
def test_masks_say_of_every_token_whether_it_may_come_next(schema, text):
    masker = TokenMasker(PIECES)
    state = masker.state(FREE.compile(schema))
    for i in range(len(text)):
        if i == len(text) // 2:
            collect(state._cursor.machine)
        mask = state.mask()
        for token, piece in enumerate(PIECES):
            bit = bool(mask[token >> 5] >> np.uint32(token & 31) & np.uint32(1))
            assert bit == state.allows_token(piece), (state.consumed, piece)
        # a fork and a saved state are at the same place
        assert (state.fork().mask() == mask).all()
        again = GrammarState.restore(state.serialise(), masker=masker)
        assert (again.mask() == mask).all()
        state.advance(text[i : i + 1])
    assert state.is_complete()


def test_what_a_register_allows_is_written_as_gbnf_where_it_is_small():
    schema = {"properties": {c: {"const": 1} for c in "abc"}, "additionalProperties": False}
    grammar = FREE.compile({"type": "object", **schema, "required": ["b"], "minProperties": 2})
    again = Grammar.parse(grammar.source)
    for size in range(4):
        for names in itertools.permutations("abc", size):
            text = written(dict.fromkeys(names, 1))
            assert grammar.matches(text) == again.matches(text) == ("b" in names and size > 1)
    distinct = FREE.compile({"type": "array", "items": {"type": "string"}, "uniqueItems": True})
    with pytest.raises(GrammarError, match="cannot be written as GBNF"):
        _ = distinct.source


def test_many_states_share_one_machine_and_keep_their_own_words():
    grammar = FREE.compile({"type": "array", "items": {"type": "string"}, "uniqueItems": True})
    states = [grammar.state() for _ in range(20)]
    for step in range(6):
        for number, state in enumerate(states):
            state.advance(f'{"[" if step == 0 else ","}"{number}-{step}"'.encode())
        if step == 3:
            collect(states[0]._cursor.machine)
    for number, state in enumerate(states):
        assert not state.allows_token(f',"{number}-3"'.encode())
        assert state.allows_token(f',"{number + 1}-3"'.encode())


def test_repetitions_that_match_in_too_many_ways_are_refused_by_name():
    source = 'root ::= (((([^x]+ " "?){0,99} ","?){0,99} "a"?){0,99} "b"?){0,99}'
    masker = TokenMasker(
        [bytes([b]) for b in range(32, 127)] + [b"hello", b" world, and more of it"]
    )
    state = masker.state(Grammar.parse(source, limits=GrammarLimits(max_items=1000)))
    with pytest.raises(GrammarError, match="max_items"):
        for _ in range(300):
            state.mask()
            state.advance(b"a b, ab ")
    # what was done before it was refused: 150 steps for every alternative allowed at once
    assert state._cursor.machine.sizes()["steps"] <= 160 * 1000
    plain = masker.state(Grammar.parse("root ::= " + "(" * 6 + "[^x]*" + "){0,99}" * 6))
    for _ in range(50):
        plain.mask()
        plain.advance(b"hello")


def test_words_of_earlier_states_do_not_use_up_a_grammar():
    limits = GrammarLimits(max_states=4000)
    compiler = JsonSchemaCompiler(limits=limits)
    grammar = compiler.compile({"type": "array", "items": {"type": "string"}, "uniqueItems": True})
    for number in range(150):
        state = grammar.state()
        state.advance(f'["{number}","x{number}","{number}x'.encode())
        assert not state.fork().allows_token(b'","x%d"' % number)


@pytest.mark.parametrize("pattern", (".", "^[a-z0-9]+$"))
def test_words_of_earlier_states_do_not_use_up_a_schema(monkeypatch, pattern):
    """The automata of what is left of a language are no part of the schema."""
    monkeypatch.setattr(emit, "MAX_AUTOMATA", 60)
    item = {"type": "string", "pattern": pattern}
    grammar = FREE.compile({"type": "array", "items": item, "uniqueItems": True})
    grammar.state().advance(b'["a","b","a"'[:-1])
    rules = len(grammar._rules)
    for number in range(30):
        state = grammar.state()
        state.advance(f'["{number}","x{number}","{number}x'.encode())
        assert not state.fork().allows_token(b'","x%d"' % number)
    assert len(grammar._rules) == rules


def test_names_of_earlier_states_do_not_add_up(monkeypatch):
    monkeypatch.setattr(emit, "MAX_ASIDE", 20)
    grammar = FREE.compile({"type": "object", "minProperties": 4})
    used = []
    for number in range(20):
        state = grammar.state()
        state.advance(f'{{"{number}":1,"{number}x":2,"x{number}":3,'.encode())
        assert state.allows_token(b'"x":4}') and not state.allows_token(b'"x%d":4}' % number)
        used.append(len(grammar._deferred._aside.others))
    assert max(used) < 15  # of 22


@pytest.mark.parametrize("step, good", ((1, True), (0.1, True), (2, False), (0.5, False)))
def test_numbers_that_cannot_be_left_out_raise_when_a_schema_is_compiled(step, good):
    """Not when a second item comes: of multiples beyond a bound none can be left out."""
    item = {"type": "number", "multipleOf": step}
    for less in ({}, {"minimum": 0}, {"minimum": -4, "maximum": 4}):
        schema = {"type": "array", "items": {**item, **less}, "uniqueItems": True}
        if good or "maximum" in less:
            assert FREE.compile(schema).matches("[2,4]")
            assert not FREE.compile(schema).matches("[2,2]")
        else:
            with pytest.raises(GrammarError, match="keyword 'uniqueItems': excluded values"):
                FREE.compile(schema)


NONE = {"type": "string", "minLength": 3, "maxLength": 1}  # no text has such a length


@pytest.mark.parametrize(
    "keywords",
    [
        {"properties": {"b": NONE}, "required": ["b"]},
        {"properties": {"b": NONE}, "required": ["b", "z"], "maxProperties": 3},
        {"properties": {"b": {"type": "array", "items": NONE, "minItems": 1}}, "required": ["b"]},
        {"properties": {"a": {}}, "patternProperties": {"^z": NONE}, "required": ["a", "z"]},
        {"properties": {"a": {}, "b": NONE}, "additionalProperties": False, "minProperties": 2},
    ],
)
def test_an_object_that_needs_a_member_without_values_is_none(keywords):
    schema = {"type": "object", **keywords}
    with pytest.raises(GrammarError, match="nothing is valid"):
        FREE.compile(schema)
    # no text leads into one
    either = FREE.compile({"type": "array", "items": {"anyOf": [schema, {"type": "null"}]}})
    state = either.state()
    state.advance(b"[")
    assert not state.allows_token(b"{") and state.allows_token(b"null")


def test_an_optional_member_without_values_takes_no_place():
    schema = {"properties": {"a": {}, "b": NONE, "c": {}}, "additionalProperties": False}
    grammar = FREE.compile({"type": "object", "minProperties": 2, **schema})
    assert grammar.matches('{"c":1,"a":2}') and not grammar.matches('{"a":1}')
    state = grammar.state()
    state.advance(b'{"c":1,')
    assert state.forced() == b'"a":'


@pytest.mark.parametrize("further", [False, NONE])
@pytest.mark.parametrize("least", [0, 2])
def test_no_comma_comes_before_members_without_values(further, least):
    schema = {
        "type": "object",
        "properties": {"a": {}, "b": NONE, "c": {}},
        "additionalProperties": further,
        "minProperties": least,
    }
    spaced = JsonSchemaCompiler(order="free", whitespace="flexible").compile(schema)
    state = spaced.state()
    state.advance(b'{ "c": 1 , "a": 2')
    assert not state.allows_token(b" ,") and state.allows_token(b" }")


@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
@pytest.mark.parametrize(
    ("keywords", "begun", "first"),
    [
        ({"maxLength": 3, "format": "email"}, b'"a', b"\\"),
        ({"maxLength": 6, "format": "uri-reference"}, b'"abcdef', b"\\"),
        ({"maxLength": 254, "format": "iri-reference"}, b'"' + b"a" * 254, b"\xc3"),
    ],
)
def test_no_letter_begins_that_has_no_room(whitespace, keywords, begun, first):
    grammar = JsonSchemaCompiler(whitespace=whitespace).compile({"type": "string", **keywords})
    state = grammar.state()
    state.advance(begun)
    assert not state.allows_token(first)


PATTERNS = ["^[ab]$", "^[bc]$", "^a$", "^[a-c]$", "^(a|bb?)$", "^[ab]?$"]
VALUES = [{"type": "null"}, {"type": "boolean"}, {"type": ["null", "boolean"]}, {"const": True}]
BYTES = TokenMasker([bytes([i]) for i in range(128)] + [None], control_ids=[128], eog_ids=[128])


def walked(grammar, draw) -> str:
    """A text that tokens of one byte make, each drawn from those allowed; asserts that there is
    always one.
    """
    state, text = BYTES.state(grammar), b""
    while True:
        bits = np.unpackbits(state.mask().view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        assert allowed, f"nothing may follow {text!r}"
        # a long text is ended where it may be
        token = 128 if 128 in allowed and len(text) > 200 else draw.choice(allowed)
        if token == 128:
            return text.decode()
        BYTES.advance(state, token)
        text += bytes([token])


def few_names(draw) -> dict:
    """A random schema of objects that have a handful of names."""
    schema: dict = {
        "type": "object",
        "patternProperties": {
            pattern: draw.choice(VALUES) for pattern in draw.sample(PATTERNS, draw.randrange(1, 3))
        },
        draw.choice(["additionalProperties", "unevaluatedProperties"]): False,
    }
    if draw.random() < 0.4:
        names = draw.sample("abcd", draw.randrange(1, 3))
        schema["properties"] = {name: draw.choice(VALUES) for name in names}
    if draw.random() < 0.3:
        schema["required"] = draw.sample("abcd", 1)
    if draw.random() < 0.6:
        schema["minProperties"] = draw.randrange(1, 5)
    if draw.random() < 0.3:
        schema["maxProperties"] = draw.randrange(1, 4)
    if draw.random() < 0.3:
        schema["propertyNames"] = draw.choice(
            [{"enum": ["a", "b"]}, {"pattern": "^[bc]"}, {"maxLength": 1}]
        )
    denied = [
        {"additionalProperties": draw.choice(VALUES)},
        {"patternProperties": {draw.choice(PATTERNS): draw.choice(VALUES)}},
        {"propertyNames": {"enum": draw.sample("abcd", 2)}},
        {"properties": {"a": draw.choice(VALUES)}, "additionalProperties": False},
    ]
    some = draw.sample(denied, draw.choice([0, 0, 1, 1, 2]))
    return {**schema, "allOf": [True, *({"not": each} for each in some)]}


@pytest.mark.parametrize("seed", range(60))
def test_no_text_leads_to_where_names_have_run_out(seed):
    draw = random.Random(seed)
    schema = few_names(draw)
    judge = jsonschema.Draft202012Validator(schema)
    valid = [
        value
        for size in range(4)
        for names in itertools.permutations(["a", "b", "c", "d", "bb", ""], size)
        for values in itertools.product([None, True], repeat=size)
        if judge.is_valid(value := dict(zip(names, values)))
    ]
    for compiler in (FREE, DECLARED):
        try:
            grammar = compiler.compile(schema)
        except GrammarError as error:
            assert "nothing is valid" in str(error) and not valid
            continue
        if compiler is FREE:
            assert all(grammar.matches(written(value)) for value in valid)
        for _ in range(10):
            assert judge.is_valid(json.loads(walked(grammar, draw)))


@pytest.mark.parametrize("compiler", [FREE, DECLARED])
@pytest.mark.parametrize(
    ("schema", "least", "most"),
    [
        ({"patternProperties": {"^[0-9]{2}$": VALUES[0]}}, "minProperties", 100),
        # a name under both patterns can have no value
        ({"patternProperties": {"^[ab]$": VALUES[0], "^[bc]$": VALUES[1]}}, "minProperties", 2),
        ({"patternProperties": {"^[a-z]$": VALUES[0]}, "not": {"additionalProperties": VALUES[1]}},
         "minProperties", 26),
        ({"items": {"type": "string", "pattern": "^[0-9]{2}$"}}, "minItems", 100),
        ({"items": {"type": "integer", "minimum": 3, "maximum": 99}}, "minItems", 97),
        ({"items": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 2},
                              {"type": "number", "multipleOf": 0.5, "minimum": 1, "maximum": 3},
                              {"type": ["null", "boolean"], "not": {"const": False}}]}},
         "minItems", 8),
    ],
)  # fmt: skip
def test_more_different_members_or_items_than_there_are_is_an_error(compiler, schema, least, most):
    kind = {"minProperties": "object", "minItems": "array"}[least]
    rest = {"additionalProperties": False} if kind == "object" else {"uniqueItems": True}
    grammar = compiler.compile({"type": kind, **schema, **rest, least: most})
    whole = json.loads(walked(grammar, random.Random(1)))
    assert len(whole) == most
    with pytest.raises(GrammarError, match="nothing is valid"):
        compiler.compile({"type": kind, **schema, **rest, least: most + 1})


@pytest.mark.parametrize(
    ("keywords", "text", "wrong"),
    [
        ({"patternProperties": {"^[a-z]{3,20}$": {}}, "additionalProperties": False,
          "minProperties": 2}, '{"abc":1,"abd":2}', '{"abc":1}'),
        ({"items": {"type": "integer", "minimum": 0, "maximum": 10**18}, "uniqueItems": True},
         "[3,5]", "[3,3]"),
        ({"items": {"type": "string", "maxLength": 10_000}, "uniqueItems": True},
         '["","a"]', '["a","a"]'),
        ({"items": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5000},
          "uniqueItems": True}, '["b","a"]', '["a","a"]'),
        ({"items": {"type": "string", "pattern": "^[a-z]{3,20}$"}, "uniqueItems": True,
          "minItems": 2}, '["abc","abd"]', '["abc","abc"]'),
        # of four demands for a name two members meet all
        ({"patternProperties": {"^[0-9]$": {}}, "additionalProperties": False, "maxProperties": 2,
          "not": {"anyOf": [{"propertyNames": {"not": {"enum": names}}}
                            for names in (["1", "3"], ["2", "3", "11"], ["2", "4"], ["1", "5"])]}},
         '{"1":0,"2":0}', '{"1":0,"3":0}'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compiler", [FREE, DECLARED])
def test_many_names_and_shared_demands_are_no_obstacle(compiler, keywords, text, wrong):
    grammar = compiler.compile(keywords)
    assert grammar.matches(text) and not grammar.matches(wrong)


@pytest.mark.parametrize(
    "keywords, good, bad",
    [
        ({"multipleOf": 0.01, "exclusiveMinimum": 0.123}, "0.13", "0.12"),
        ({"multipleOf": 0.1, "exclusiveMaximum": -0.25}, "-0.3", "-0.2"),
        ({"multipleOf": 0.01, "not": {"const": 0.123}}, "0.12", "0.123"),
        ({"multipleOf": 0.01, "not": {"const": 0.12}}, "0.13", "0.12"),
        ({"not": {"enum": [1.5, -2, 0]}}, "1.51", "1.50"),
        ({"not": {"enum": [1.5, -2, 0]}}, "2", "-2.000"),
        ({"not": {"enum": [1.5, -2, 0]}}, "-0.1", "-0.0"),
        ({"type": "integer", "not": {"enum": [0, 7]}}, "-7", "-0"),
        # a double does not keep it apart from the value that is left out
        ({"not": {"const": 1.5}}, "1.5000000000001", "1.50000000000000001"),
    ],
)
def test_numbers_between_bounds_and_but_for_some(keywords, good, bad):
    grammar = FREE.compile({"type": "number", **keywords})
    assert grammar.matches(good)
    assert not grammar.matches(bad)


def test_many_distinct_numbers_are_few_states():
    """As many states as their digits, not an interval between each two of them."""
    grammar = FREE.compile({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    state, numbers = grammar.state(), random.Random(2).sample(range(10**6, 10**7), 16)
    state.advance("[{}".format(",".join(map(str, numbers))).encode())
    assert not any(state.fork().allows_token(f",{each},".encode()) for each in numbers)
    assert state._cursor.machine.sizes()["states"] < 40_000


@pytest.mark.parametrize("more", [{}, {"minItems": 2}, {"maxItems": 3}, {"minItems": 7}])
def test_distinct_integers_of_a_long_enum_have_the_masks_of_a_short_one(monkeypatch, more):
    words = [*map(chr, range(256)), "12", ",1", "0]", "[-", "-1", "10,", "1,2", ""]
    masker = TokenMasker([word.encode("latin-1") for word in words], eog_ids=[len(words) - 1])
    schema = {"type": "array", "uniqueItems": True, "items": {"enum": [-11, -1, 0, 1, 10, 12, 120]}}
    states = []
    for many in (64, 1):  # as alternatives, and as one automaton
        monkeypatch.setattr(arrays, "MANY_INTEGERS", many)
        states.append(masker.state(Grammar.from_json_schema({**schema, **more})))
    draw = random.Random(4)
    for _ in range(40):
        first, second = (state.mask() for state in states)
        assert first.tolist() == second.tolist()
        allowed = [at for at in range(len(words) - 1) if first[at // 32] >> at % 32 & 1]
        if not allowed:
            break
        token = draw.choice(allowed)
        for state in states:
            masker.advance(state, token)
