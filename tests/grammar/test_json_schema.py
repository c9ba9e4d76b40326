"""JSON Schema: the cases, the policy (enforce or raise), and random schemas against the jsonschema
package.
"""

import dataclasses
import datetime
import enum
import json
import random
import re
import typing

import jsonschema
import pytest

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar, GrammarWarning, JsonSchemaCompiler
from oxillama.grammar.schema.values import DEEPEST, nests_deeply

COMPACT, FLEXIBLE = JsonSchemaCompiler(), JsonSchemaCompiler(whitespace="flexible")


def text_of(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def test_texts_are_accepted_and_rejected_as_the_cases_say(cases):
    for case in json.loads((cases / "grammar" / "grammar_accept_reject.json").read_text("utf-8")):
        if case["kind"] != "schema":
            continue
        grammar = FLEXIBLE.compile(case["source"])
        again = Grammar.parse(grammar.source, limits=grammar.limits)
        for wanted, texts in ((True, case["accept"]), (False, case["reject"])):
            for text in texts:
                assert grammar.matches(text) == wanted, (case["name"], text)
                assert again.matches(text) == wanted, (case["name"], text)


def random_walk(rng, grammar):
    """A text of the language, by choosing bytes."""
    state, out = grammar.state(), None
    for i in range(300):
        options = [b for b, allowed in enumerate(state._cursor.next_bytes()) if allowed]
        if state.is_complete() and (not options or rng.random() < 0.3):
            return state.consumed
        if not options:
            break
        ending = [b for b in options if b in b'"}],:1a']
        state.advance(
            bytes(
                [
                    rng.choice(
                        ending if ending and rng.random() < (0.5 if i < 60 else 0.95) else options
                    )
                ]
            )
        )
    return out


def test_schemas_equal_their_reference_grammars_on_texts_of_both(cases):
    """Where the reference enforces the schema, whatever either language contains is in both (up to
    digits and property order).
    """
    # the reference lets more pass
    weaker = {
        "regexp with unsupported shorthand",
        "unsupported regexp in a property",
        "exotic formats",
    }
    for case in json.loads((cases / "grammar" / "json_schema_to_grammar.json").read_text("utf-8")):
        if case["expect"] == "FAILURE":
            with pytest.raises(GrammarError):
                FLEXIBLE.compile(case["schema"])
            continue
        ours, reference = FLEXIBLE.compile(case["schema"]), Grammar.parse(case["reference_gbnf"])
        schema = json.loads(case["schema"])
        kind = (
            jsonschema.Draft7Validator
            if isinstance(schema.get("items"), list)
            else jsonschema.Draft202012Validator
        )
        validator, rng = kind(schema), random.Random(case["name"])
        for _ in range(20):
            for source in (ours, reference):
                text = random_walk(rng, source)
                if text is None:
                    continue
                try:
                    valid = validator.is_valid(json.loads(text))
                except ValueError:  # the reference lets control characters into strings
                    assert source is reference
                    valid = False
                assert not ours.matches(text) or valid, (case["name"], text)
                if source is reference and valid and case["name"] not in weaker:
                    assert (
                        ours.matches(text) or b"-0" in text or b"." in text or b"e" in text.lower()
                    ), (case["name"], text)


NAMES = ["a", "b", "cc"]
LEAVES = [None, True, False, 0, 1, 2, 5, -3, 10, 1.5, 0.5, "", "a", "b", "ab", "cc", "abc", 7, 12]


def random_value(rng, depth):
    roll = rng.random()
    if depth == 0 or roll < 0.6:
        return rng.choice(LEAVES)
    if roll < 0.8:
        return [random_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {
        name: random_value(rng, depth - 1)
        for name in rng.sample([*NAMES, "x1", "zz"], rng.randint(0, 3))
    }


def random_schema(rng, depth):
    if rng.random() < 0.08:
        return rng.random() < 0.8
    out: dict = {}
    if rng.random() < 0.6:
        out["type"] = rng.choice(
            [
                "object",
                "array",
                "string",
                "number",
                "integer",
                "null",
                "boolean",
                ["string", "null"],
                ["integer", "string"],
                ["object", "array"],
            ]
        )

    def sub():
        if depth:
            return random_schema(rng, depth - 1)
        return rng.choice(
            [
                True,
                {"type": "string"},
                {"type": "integer"},
                {"const": 1},
                {"enum": ["a", "b", 1]},
                {"minimum": 2},
            ]
        )

    makers = {
        "enum": lambda: [random_value(rng, 1) for _ in range(rng.randint(1, 4))],
        "const": lambda: random_value(rng, 1),
        "multipleOf": lambda: rng.choice([1, 2, 0.5, 3, 5]),
        "pattern": lambda: rng.choice(["^a", "b$", "^(a|b)*$", "c", "^.{2}$"]),
        "properties": lambda: {name: sub() for name in rng.sample(NAMES, rng.randint(1, 3))},
        "required": lambda: rng.sample(NAMES, rng.randint(1, 2)),
        "propertyNames": lambda: rng.choice(
            [{"maxLength": 1}, {"pattern": "^a"}, {"enum": ["a", "b"]}, False, {"minLength": 2}]
        ),
        "patternProperties": lambda: {rng.choice(["^a", "c$", "^x"]): sub()},
        "prefixItems": lambda: [sub() for _ in range(rng.randint(1, 2))],
        "dependentRequired": lambda: {rng.choice(NAMES): [rng.choice(NAMES)]},
        "dependentSchemas": lambda: {rng.choice(NAMES): sub()},
        "$ref": lambda: "#/$defs/d",
        "uniqueItems": lambda: True,
        **{
            k: lambda: rng.choice([0, 1, 2, -3, 5, 1.5, 0.25, 10])
            for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        },
        **{
            k: lambda: rng.randint(0, 3)
            for k in (
                "minLength",
                "maxLength",
                "minItems",
                "maxItems",
                "minProperties",
                "maxProperties",
            )
        },
        **dict.fromkeys(
            (
                "additionalProperties",
                "items",
                "contains",
                "not",
                "unevaluatedProperties",
                "unevaluatedItems",
            ),
            sub,
        ),
        **{
            k: lambda: [sub() for _ in range(rng.randint(1, 3))]
            for k in ("allOf", "anyOf", "oneOf")
        },
    }
    for _ in range(rng.randint(0, 3)):
        keyword = rng.choice([*makers, "if"])
        if keyword == "if":
            out.update({"if": sub(), "then": sub(), "else": sub()})
        else:
            out[keyword] = makers[keyword]()
    return out


def members_in_question(value):
    """Whether the order of members matters for a value."""
    if isinstance(value, dict):
        return len(value) > 1 or any(members_in_question(v) for v in value.values())
    return isinstance(value, list) and any(members_in_question(v) for v in value)


@pytest.mark.parametrize("block", range(12))
def test_random_schemas_accept_only_valid_texts_and_all_canonical_ones(block):
    refused = 0
    for seed in range(25 * block, 25 * block + 25):
        rng = random.Random(seed)
        schema = random_schema(rng, 2)
        if isinstance(schema, dict):
            schema["$defs"] = {"d": random_schema(rng, 1)}
        compiler = JsonSchemaCompiler(
            whitespace=rng.choice(["compact", "flexible"]), order=rng.choice(["declared", "free"])
        )
        try:
            grammar = compiler.compile(schema)
        except GrammarError as error:
            if "nothing is valid" not in str(error):
                refused += 1
                continue
            grammar = None
        validator = jsonschema.Draft202012Validator(schema)
        try:
            for _ in range(8 if grammar else 0):
                text = random_walk(rng, grammar)
                assert text is None or validator.is_valid(json.loads(text)), (schema, text)
            for _ in range(30):
                value = random_value(rng, 2)
                valid, matched = (
                    validator.is_valid(value),
                    grammar is not None and grammar.matches(text_of(value)),
                )
                assert not matched or valid, (schema, value)
                assert matched or not valid or members_in_question(value), (schema, value)
        except RecursionError:  # the validator's, for a definition that refers to itself
            continue
    assert refused <= 8


@pytest.mark.parametrize(
    "schema, good, bad",
    [
        (
            {"type": "integer", "minimum": -5, "multipleOf": 5},
            ["-5", "0", "10", "100000"],
            ["-10", "3", "101"],
        ),
        (
            {"type": "number", "exclusiveMinimum": 0.5, "maximum": 1.25},
            ["0.51", "1", "1.25", "1.0"],
            ["0.5", "1.26", "1.250001", "0"],
        ),
        (
            {"multipleOf": 0.01, "minimum": 0, "type": "number"},
            ["0", "1.5", "2.25"],
            ["0.001", "-1"],
        ),
        ({"multipleOf": 0.25, "type": "number"}, ["0.25", "-1.75", "3"], ["0.3", "1.1"]),
        ({"type": "integer", "not": {"multipleOf": 3}}, ["1", "-2", "100"], ["0", "3", "-9", "99"]),
        (
            {"type": "number", "not": {"multipleOf": 2}, "minimum": 0, "maximum": 5},
            ["1", "3", "0.5", "4.25"],
            ["0", "2", "4", "6.5"],
        ),
        (
            {"type": "string", "minLength": 2, "maxLength": 3},
            ['"ab"', '"\U0001f600\u00e9x"', '"\\u00e9\\n"', '"\\ud83d\\ude00a"'],
            ['"a"', '"abcd"', '"\\ud83d\\ude00"', '"\\ud83da"'],
        ),
        (
            {"type": "string", "pattern": "^[A-Z]{2}", "maxLength": 4},
            ['"AB"', '"ABcd"'],
            ['"Ab"', '"ABcde"'],
        ),
        ({"type": "string", "format": "ipv4"}, ['"1.2.3.4"'], ['"1.2.3"']),
        ({"type": "string", "format": "no-such-format"}, ['"x"'], ["1"]),
        (
            {
                "properties": {"a": {"type": "integer"}},
                "additionalProperties": {"type": "string"},
                "type": "object",
            },
            ['{"a":1}', '{"b":"x"}', '{"a":1,"aa":"x"}'],
            ['{"a":"x"}', '{"\\u0061":"x"}', '{"b":1}'],
        ),
        (
            {
                "type": "object",
                "patternProperties": {"^x-": {"type": "integer"}},
                "additionalProperties": False,
            },
            ["{}", '{"x-1":2}'],
            ['{"y":2}', '{"x-":"s"}'],
        ),
        (
            {"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "minProperties": 1},
            ['{"abc":1}'],
            ["{}", '{"d":1}'],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {}, "b": {}, "c": {}},
                "additionalProperties": False,
                "minProperties": 2,
                "maxProperties": 2,
            },
            ['{"a":1,"c":2}', '{"b":1,"c":2}'],
            ['{"a":1}', '{"a":1,"b":2,"c":3}', "{}"],
        ),
        (
            {
                "type": "array",
                "prefixItems": [{"type": "string"}],
                "items": {"type": "integer"},
                "minItems": 2,
                "maxItems": 3,
            },
            ['["a",1]', '["a",1,2]'],
            ['["a"]', '["a","b"]', '["a",1,2,3]', "[]"],
        ),
        (
            {"type": "array", "contains": {"const": 5}, "minContains": 2, "maxContains": 2},
            ["[5,5]", "[1,5,2,5]"],
            ["[5]", "[5,5,5]", "[]"],
        ),
        (
            {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 2},
            ["[1,2]", "[3,1,2]"],
            ["[1,1]", "[1]"],
        ),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, ["1", "2.5"], ["3"]),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
            ['{"a":1}', '{"b":1}'],
            ["{}", '{"a":1,"b":2}'],
        ),
        ({"allOf": [{"minimum": 2}, {"maximum": 4}], "type": "integer"}, ["2", "4"], ["1", "5"]),
        (
            {"not": {"enum": ["a", 1, None]}, "type": ["string", "integer", "null"]},
            ['"b"', "2"],
            ['"a"', "1", "null"],
        ),
        (
            {
                "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]},
                "then": {"required": ["y"]},
                "else": {"required": ["z"]},
                "type": "object",
                "properties": {"k": {}, "y": {}, "z": {}},
            },
            ['{"k":"x","y":1}', '{"z":1}', '{"k":"w","z":0}'],
            ['{"k":"x"}', '{"k":"w"}', "{}"],
        ),
        (
            {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}},
            ["{}", '{"b":1}', '{"a":1,"b":1}'],
            ['{"a":1}'],
        ),
        (
            {
                "$defs": {
                    "node": {
                        "type": "object",
                        "properties": {"next": {"$ref": "#/$defs/node"}},
                        "additionalProperties": False,
                    }
                },
                "$ref": "#/$defs/node",
            },
            ["{}", '{"next":{"next":{}}}'],
            ['{"next":1}', '{"next":{"x":{}}}'],
        ),
        (
            {
                "$id": "http://e.x/root",
                "$ref": "item",
                "$defs": {"i": {"$id": "item", "$anchor": "here", "const": 1}},
            },
            ["1"],
            ["2"],
        ),
        ({"$ref": "#here", "$defs": {"i": {"$anchor": "here", "const": 1}}}, ["1"], ["2"]),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "allOf": [{"$ref": "#here"}, {"$ref": "#/definitions/n"}],
                "definitions": {"i": {"$id": "#here", "minimum": 1}, "n": {"type": "integer"}},
            },
            ["1"],
            ["0", '"a"'],
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$ref": "#/definitions/i",
                "type": "string",
                "definitions": {"i": {"const": 1}},
            },
            ["1"],
            ["2", '"a"'],
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "minimum": 3,
                "exclusiveMinimum": True,
                "type": "integer",
            },
            ["4"],
            ["3"],
        ),
        (
            {
                "allOf": [{"properties": {"a": {"const": 1}}}],
                "unevaluatedProperties": False,
                "type": "object",
            },
            ["{}", '{"a":1}'],
            ['{"b":1}'],
        ),
        (
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "type": "array",
                "allOf": [{"additionalItems": {"type": "number"}}],
                "unevaluatedItems": {"type": "string"},
            },
            ["[]", '["a"]'],
            ["[1]", '["a",1]'],
        ),
        (
            {"type": ["string", "null"], "pattern": "^a$b$|^c^d$|^e$"},
            ['"e"', "null"],
            ['"ab"', '"a"', '"cd"', '"d"'],
        ),
        (
            {"type": "string", "pattern": "^(a|bb)$", "minLength": 2},
            ['"bb"'],
            ['"a"', '"b"', '"abb"'],
        ),
        (
            True,
            ["1", "null", '{"a":[1,{}]}', '"x"', "-1.5e+10"],
            ["", "nul", "{a:1}", "[1,]", "01", "1."],
        ),
    ],
)
def test_keywords_mean_what_the_standard_says(schema, good, bad):
    for grammar in (COMPACT.compile(schema), FLEXIBLE.compile(schema)):
        assert [t for t in good if not grammar.matches(t)] == []
        assert [t for t in bad if grammar.matches(t)] == []
        again = Grammar.parse(grammar.source, limits=grammar.limits)
        assert [t for t in good if not again.matches(t)] == []
        assert [t for t in bad if again.matches(t)] == []


@pytest.mark.parametrize(
    "schema, pointer, keyword",
    [
        ({"properties": {"a": {"type": "kaboom"}}}, "/properties/a", "type"),
        ({"properties": {"a/b": {"pattern": "(a)\\1"}}}, "/properties/a~1b", "pattern"),
        ({"items": {"pattern": "("}}, "/items", "pattern"),
        ({"type": "array", "uniqueItems": True, "items": {"type": "object"}}, "/", "uniqueItems"),
        ({"type": "array", "uniqueItems": True}, "/", "uniqueItems"),
        ({"$ref": "#/nowhere"}, "/", "\\$ref"),
        ({"$ref": "http://elsewhere/"}, "/", "\\$ref"),
        ({"minLength": -1}, "/", "minLength"),
        ({"required": 5}, "/", "required"),
        ({"not": {"multipleOf": 0.3}}, "/", "not"),
        (
            {"type": "object", "additionalProperties": {"format": "uuid", "maxLength": "x"}},
            "/additionalProperties",
            "maxLength",
        ),
    ],
)
def test_what_cannot_be_enforced_raises_with_pointer_and_keyword(schema, pointer, keyword):
    with pytest.raises(GrammarError, match=f"schema {pointer}: keyword '{keyword}'"):
        COMPACT.compile(schema)


def test_lenient_compilation_warns_and_leaves_the_keyword_out():
    schema = {
        "type": "array",
        "uniqueItems": True,
        "items": {"type": ["string", "array"], "pattern": "(a)\\1"},
    }
    with pytest.warns(GrammarWarning, match="uniqueItems") as told:
        grammar = COMPACT.compile(schema, strict=False)
    assert [each.filename for each in told] == [__file__] * 2
    assert grammar.matches('["b","b"]') and not grammar.matches("[1]")
    assert len(grammar.warnings) == 2


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"not": {}},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"allOf": [{"const": 1}, {"const": 2}]},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"$ref": "#"},
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
    ],
)
def test_schemas_that_nothing_satisfies_raise(schema):
    with pytest.raises(GrammarError):
        COMPACT.compile(schema)


def test_order_is_declared_or_free():
    schema = {
        "type": "object",
        "properties": {"a": {}, "b": {}, "c": {}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    free = JsonSchemaCompiler(order="free").compile(schema)
    declared = COMPACT.compile(schema)
    for text in ('{"a":1,"b":2}', '{"a":1,"b":2,"c":3}'):
        assert free.matches(text) and declared.matches(text)
    for text in ('{"b":1,"a":2}', '{"c":1,"b":2,"a":3}'):
        assert free.matches(text) and not declared.matches(text)
    for text in ('{"a":1}', '{"a":1,"a":2,"b":1}', "{}"):
        assert not free.matches(text) and not declared.matches(text)


def test_whitespace_is_compact_or_flexible():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array"}, "\u00e9": {"const": "\u00e9\n"}},
    }
    value = {"a": [1, {"b": None}], "\u00e9": "\u00e9\n"}
    compact, flexible = COMPACT.compile(schema), FLEXIBLE.compile(schema)
    assert compact.matches(text_of(value)) and flexible.matches(text_of(value))
    for spelling in (
        json.dumps(value),
        json.dumps(value, indent=2),
        json.dumps(value, ensure_ascii=False),
    ):
        assert flexible.matches(spelling) and not compact.matches(spelling)


def test_a_pattern_is_spelled_as_each_grammar_wants_it():
    texts = ['"a/b-1"', '"a\\/b-1"', '"a-1"']
    for _ in range(2):  # what is kept of a pattern serves all grammars
        for whitespace, accepted in (
            ("compact", [True, False, True]),
            ("flexible", [True, True, True]),
        ):
            compiler = JsonSchemaCompiler(whitespace=whitespace)
            grammar = compiler.compile({"type": "string", "pattern": "^a(?:/b)?-[0-9]$"})
            assert [grammar.matches(text) for text in texts] == accepted
            raw = compiler.compile({"type": "string", "pattern": "^a-[0-9]$"})
            assert [raw.matches(text) for text in texts] == [False, False, True]


def test_models_and_dataclasses_are_schemas():
    class Colour(enum.Enum):
        RED = "red"
        BLUE = "blue"

    @dataclasses.dataclass
    class Point:
        x: int
        y: float = 0.0

    @dataclasses.dataclass
    class Shape:
        name: str
        colour: Colour
        points: list[Point]
        made: datetime.date | None = None
        kind: typing.Literal["open", "closed"] = "open"
        tags: dict[str, bool] = dataclasses.field(default_factory=dict)

    Shape.__annotations__["points"] = list[Point]
    grammar = COMPACT.compile(Shape)
    assert grammar.matches(
        '{"name":"n","colour":"red","points":[{"x":1},{"x":2,"y":0.5}],"made":"2024-01-31","tags":{"a":true}}'
    )
    assert not grammar.matches('{"name":"n","colour":"green","points":[]}')
    assert not grammar.matches('{"name":"n","colour":"red"}')

    class Model:
        @classmethod
        def model_json_schema(cls):
            return {
                "type": "object",
                "properties": {"n": {"type": "integer"}},
                "required": ["n"],
                "additionalProperties": False,
            }

    assert COMPACT.compile(Model).matches('{"n":3}')

    @dataclasses.dataclass
    class Wrong:
        call: typing.Callable

    with pytest.raises(GrammarError, match="Wrong.call"):
        COMPACT.compile(Wrong)


def test_hostile_schemas_raise():
    deep: dict = {"type": "integer"}
    for _ in range(3000):
        deep = {"items": deep}
    blowup = {
        "allOf": [
            {
                "anyOf": [
                    {"properties": {f"p{i}{j}": {"const": j}}, "required": [f"p{i}{j}"]}
                    for j in range(4)
                ]
            }
            for i in range(9)
        ]
    }
    for schema in (
        deep,
        blowup,
        "{",
        '{"minimum": 1e999999999}',
        {"minimum": float("nan")},
        5,
        None,
        {"items": 3},
        {"pattern": "^(a{1,1000}){1,1000}b$", "maxLength": 5000},
    ):
        with pytest.raises(GrammarError):
            COMPACT.compile(schema)
    for options in ({"whitespace": "loose"}, {"order": "random"}):
        with pytest.raises(GrammarError):
            JsonSchemaCompiler(**options)


def test_references_to_given_resources_are_resolved():
    compiler = JsonSchemaCompiler(
        resources={"http://e.x/defs.json": {"$defs": {"n": {"type": "integer"}}}}
    )
    grammar = compiler.compile(
        {"type": "array", "items": {"$ref": "http://e.x/defs.json#/$defs/n"}}
    )
    assert grammar.matches("[1,2]") and not grammar.matches('["a"]')


def test_names_are_told_apart_by_the_patterns_they_match_and_the_names_listed():
    """Values differ by the class of their name, so a name in the wrong class is seen."""
    patterns = {"^x-": 1, "[0-9]$": 2, "^(x|y)[^-]*$": 3}
    listed = {"x-1": 4, "yes": 5, "\u00e9\u4e16": 6, 'say "a/b"': 7}
    schema = {
        "properties": {name: {"const": value} for name, value in listed.items()},
        "patternProperties": {pattern: {"minimum": value} for pattern, value in patterns.items()},
        "additionalProperties": {"const": 0},
        "type": "object",
    }
    grammar = JsonSchemaCompiler(whitespace="flexible").compile(schema)
    names = [
        *listed,
        "",
        "x",
        "x-",
        "x-2",
        "y",
        "ye",
        "yes!",
        "\u00e9",
        "\u00e9\u4e17",
        "say",
        "a9",
        "\\",
    ]
    for name in names:
        bounds = [value for pattern, value in patterns.items() if re.search(pattern, name)]
        for value in range(9):
            good = all(value >= bound for bound in bounds)
            if name in listed:
                good = good and value == listed[name]
            elif not bounds:
                good = value == 0
            for text in (json.dumps({name: value}), json.dumps({name: value}, ensure_ascii=False)):
                assert grammar.matches(text) == good, text


HOSTS = [
    "a",
    "www.example.com",
    "k8s-default-ingress-1234567890-0123456789.us-east-1.elb.amazonaws.com",
    ".".join(["a" * 63] * 3 + ["b" * 61]),
    ".".join(["a"] * 127),
]
NO_HOSTS = [
    "",
    "-a",
    "a-",
    "a..b",
    "a" * 64,
    ".".join(["a" * 63] * 3 + ["b" * 62]),
    "a." * 127 + "b",
]


@pytest.mark.parametrize("compiler", [COMPACT, FLEXIBLE])
@pytest.mark.parametrize(
    "schema, accepted",
    [
        ({"type": "string", "format": "hostname"}, HOSTS),
        ({"type": "string", "not": {"format": "hostname"}}, NO_HOSTS),
        ({"format": "hostname", "enum": HOSTS + NO_HOSTS}, HOSTS),
        ({"type": "string", "format": "hostname", "minLength": 3, "maxLength": 69}, HOSTS[1:3]),
        ({"type": "string", "format": "hostname", "pattern": "com$"}, HOSTS[1:3]),
        ({"oneOf": [{"type": "string", "format": f} for f in ("hostname", "ipv6")]}, HOSTS),
    ],
)
def test_host_names_have_up_to_253_characters(compiler, schema, accepted):
    grammar = compiler.compile(schema)
    assert [t for t in HOSTS + NO_HOSTS if grammar.matches(json.dumps(t))] == accepted


@pytest.mark.parametrize("most", (2**30, 2**31 - 1, 2**31, 2**32 + 1, 2**63, 10**40))
def test_a_bound_that_no_text_reaches_bounds_nothing(most):
    """2**31 - 1 is what generators of schemas write for "any length"."""
    for schema, text in (
        ({"type": "string", "maxLength": most}, '"abc"'),
        ({"type": "string", "pattern": "b", "maxLength": most}, '"abc"'),
        ({"type": "string", "pattern": "^[a-c]*$", "maxLength": most}, '"abc"'),
        ({"type": "array", "maxItems": most}, "[1,2,3]"),
        ({"type": "array", "contains": {"const": 1}, "maxContains": most}, "[1,1,2]"),
        ({"type": "object", "maxProperties": most}, '{"a":1,"b":2}'),
        ({"type": "string", "not": {"minLength": most}}, '"abc"'),
    ):
        assert COMPACT.compile(schema).matches(text), schema


@pytest.mark.parametrize("least", (2**30, 2**32 + 1, 10**40))
@pytest.mark.parametrize(
    "kind, keyword",
    (
        ("string", "minLength"),
        ("array", "minItems"),
        ("object", "minProperties"),
        ("array", "minContains"),
    ),
)
def test_a_bound_that_no_text_can_reach_is_refused_when_the_schema_is_compiled(
    kind, keyword, least
):
    bounded = {"type": kind, keyword: least, "contains": {"const": 1}}
    told = f"found at least {least}, wanted less than 1073741824"
    for schema in (
        bounded,
        {"type": "object", "properties": {"a": bounded}, "required": ["a"]},
        {"type": "object", "properties": {"a": bounded, "b": {"type": "string"}}},
    ):
        with pytest.raises(GrammarError, match=told):
            COMPACT.compile(schema)
    if keyword != "minContains":
        del bounded["contains"]
        with pytest.raises(GrammarError, match=told):
            COMPACT.compile({"type": "object", "properties": {"a": bounded}, "required": ["a"]})


def test_a_schema_of_the_most_levels_compiles_and_one_of_more_does_not():
    def nested(levels: int) -> dict:
        schema: dict = {"type": "null"}
        for _ in range(levels - 1):
            schema = {"items": schema}
        return schema

    assert COMPACT.compile(nested(DEEPEST)).rules
    with pytest.raises(GrammarError, match=f"nested too deeply, wanted at most {DEEPEST} levels"):
        COMPACT.compile(nested(DEEPEST + 1))
    itself: list = []
    itself.append(itself)
    assert nests_deeply(itself) and not nests_deeply([itself[:0]] * 1000)
