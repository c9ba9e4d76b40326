"""Constants of a schema: each must hold under all that stands beside it, and integers are written
as integers; values without meaning raise.
"""

import pytest

from oxillama.errors import GrammarError
from oxillama.grammar import Grammar
from oxillama.grammar.schema import validity

DRAFT_4 = "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {
                "enum": [1, "a"],
                "$dynamicRef": "#x",
                "$defs": {"x": {"$dynamicAnchor": "x", "type": "string"}},
            },
            ['"a"'],
            ["1"],
        ),
        (
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "type": "object",
                "properties": {"a": {"enum": [5, {}], "$recursiveRef": "#"}},
            },
            ['{"a":{}}'],
            ['{"a":5}'],
        ),
        (
            {
                "enum": [{"a": 1}, {"a": 1, "b": 2}],
                "dependentRequired": {"a": ["b"]},
                "dependentSchemas": {"a": {"type": "object"}},
            },
            ['{"a":1,"b":2}'],
            ['{"a":1}'],
        ),
        (
            {
                "enum": [{"a": 1}, {"a": 1, "b": 2}],
                "dependencies": {"a": {"type": "object"}},
                "dependentRequired": {"a": ["b"]},
            },
            ['{"a":1,"b":2}'],
            ['{"a":1}'],
        ),
    ],
)
def test_a_constant_holds_under_every_keyword_beside_it(schema, good, bad):
    grammar = Grammar.from_json_schema(schema)
    assert (
        [text for text in good if grammar.matches(text)],
        [text for text in bad if grammar.matches(text)],
    ) == (good, [])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "enum": [3, 6]},
        {"type": "integer", "enum": [3.0]},
        {"const": 3},
        {"$schema": DRAFT_4, "type": "integer", "enum": [3, 4]},
        {"allOf": [{"type": "integer"}], "enum": [3.0]},
        {"$ref": "#/$defs/whole", "enum": [3.0], "$defs": {"whole": {"type": "integer"}}},
        {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 9},
        {"type": "integer", "multipleOf": 3, "minimum": 1},
        {"type": "integer", "not": {"multipleOf": 2}, "minimum": 0, "maximum": 9},
    ],
)
def test_integers_are_written_without_a_fraction(schema):
    grammar = Grammar.from_json_schema(schema)
    assert (grammar.matches("3"), grammar.matches("3.0")) == (True, False)


@pytest.mark.parametrize(
    "schema", [{"const": 3.0}, {"type": "number", "multipleOf": 1.5, "minimum": 0, "maximum": 9}]
)
def test_other_numbers_may_have_a_zero_fraction(schema):
    grammar = Grammar.from_json_schema(schema)
    assert (grammar.matches("3"), grammar.matches("3.0")) == (True, True)


@pytest.mark.parametrize(
    "beside", [{}, {"enum": [["ab"], {}, "abc", 7]}], ids=["alone", "beside constants"]
)
@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("required", "ab"),
        ("required", True),
        ("required", [1]),
        ("uniqueItems", "true"),
        ("uniqueItems", 1),
        ("minLength", "3"),
        ("minimum", "5"),
        ("maximum", True),
        ("multipleOf", "2"),
        ("multipleOf", 0),
        ("maxItems", -1),
        ("minContains", 1.5),
        ("exclusiveMinimum", "1"),
        ("dependentRequired", {"a": "b"}),
        ("maxProperties", True),
        ("pattern", 5),
        ("$ref", 5),
        ("type", {}),
        ("type", ["string", []]),
        ("format", []),
        ("format", 5),
        ("prefixItems", 1.5),
        ("properties", 5),
        ("patternProperties", ["a"]),
        ("dependentSchemas", True),
        ("allOf", None),
        ("anyOf", 5),
        ("oneOf", {}),
    ],
)
def test_values_that_a_keyword_cannot_mean_raise(keyword, value, beside):
    schemas = {
        "/": {keyword: value, **beside},
        "/not": {"not": {keyword: value}},
        "/properties/a": {"properties": {"a": {keyword: value}}},
    }
    for pointer, schema in schemas.items():
        for strict in (True, False):
            with pytest.raises(
                GrammarError,
                match=f"schema {pointer}: keyword '{keyword.replace('$', '.')}': malformed value",
            ):
                Grammar.from_json_schema(schema, strict=strict)


def test_counts_may_be_written_with_a_zero_fraction_and_a_requirement_of_false_is_none():
    grammar = Grammar.from_json_schema(
        {"type": "array", "minItems": 1.0, "items": {"const": 1, "required": False}}
    )
    assert [grammar.matches(text) for text in ("[]", "[1]")] == [False, True]


def test_a_reference_of_which_several_may_be_meant_raises_beside_constants_too():
    anchors = {
        name: {"$id": f"http://e.x/{name}", "$dynamicAnchor": "x", "type": name}
        for name in ("string", "number")
    }
    with pytest.raises(GrammarError, match="several schemas are called 'x'"):
        Grammar.from_json_schema(
            {"enum": [1, "a"], "$dynamicRef": "#x", "$dynamicAnchor": "x", "$defs": anchors}
        )


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_listed_value_is_looked_for_in_the_branches_that_list_it(keyword, monkeypatch):
    asked = []
    holds = validity.Judge.holds

    def counted(self, literal, value, depth=0):
        asked.append(literal)
        return holds(self, literal, value, depth)

    monkeypatch.setattr(validity.Judge, "holds", counted)
    branches = [{"const": f"w{i}"} for i in range(98)]
    grammar = Grammar.from_json_schema(
        {keyword: [*branches, {"enum": ["w3", "x"]}, {"type": "null"}]}
    )
    assert len(asked) < 10 * 100
    assert grammar.matches(b'"w97"') and grammar.matches(b'"x"') and grammar.matches(b"null")
    assert grammar.matches(b'"w3"') == (keyword == "anyOf")
    assert not grammar.matches(b'"w98"')


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_branches_that_list_scalars_are_one_list(keyword):
    """However many: branches of another kind are cases of their own, of which there is a limit."""
    kinds = [{"const": f"v{at}", "title": str(at)} for at in range(3000)]
    kinds += [{"enum": [at, f"{at}"], "type": "integer"} for at in range(3000)]
    grammar = Grammar.from_json_schema({keyword: [*kinds, {"const": "v7"}, {"enum": [None, 5]}]})
    twice = keyword == "anyOf"
    wanted = {'"v0"': True, '"v2999"': True, "2999": True, "null": True, '"5"': False}
    wanted |= {'"v3000"': False, "3000": False, '"v7"': twice, "5": twice}
    assert {text: grammar.matches(text) for text in wanted} == wanted
    with pytest.raises(GrammarError, match="expands to more than 1500 cases"):
        Grammar.from_json_schema({keyword: [*kinds, {"const": {}}]})


def test_branches_that_list_scalars_obey_what_stands_beside_them():
    listed = {"oneOf": [{"enum": [1, 2, "a"]}, {"const": "bb"}, {"const": None}]}
    for beside, wanted in (
        ({}, ["1", "2", '"a"', '"bb"', "null"]),
        ({"type": "string"}, ['"a"', '"bb"']),
        ({"maxLength": 1}, ["1", "2", '"a"', "null"]),
        ({"enum": ["bb", 2, 3]}, ["2", '"bb"']),
        ({"not": {"anyOf": [{"const": 1}, {"const": "a"}]}}, ["2", '"bb"', "null"]),
    ):
        grammar = Grammar.from_json_schema({**listed, **beside})
        texts = ["1", "2", "3", '"a"', '"bb"', "null", "true"]
        assert [text for text in texts if grammar.matches(text)] == wanted
