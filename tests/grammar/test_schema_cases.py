"""Into how many cases and rules a schema is split, and that its language stays the same."""

import json

import pytest

from oxillama.grammar import JsonSchemaCompiler
from oxillama.grammar.schema.document import ENFORCED, Document
from oxillama.grammar.schema.expander import Expander
from oxillama.grammar.schema.keywords import APPLY


def cases_of(schema: dict, *, loose: bool = True) -> list:
    document = Document(schema)

    def refuse(pointer, keyword, why):
        raise AssertionError(f"{pointer}: {keyword}: {why}")

    expander = Expander(document, refuse, loose=loose)
    return expander.cases(frozenset([(document.root, True)]))


def compact(value) -> str:
    return json.dumps(value, separators=(",", ":"))


def free(schema: dict, **options):
    return JsonSchemaCompiler(order="free", **options).compile(schema)


def test_what_is_enforced_is_what_has_a_handler():
    assert set(APPLY) == ENFORCED


def test_equal_leaves_and_references_to_one_schema_are_one_rule():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 3, "title": "first"},
            "b": {"description": "second", "type": "string", "maxLength": 3},
            "c": {"$ref": "#/$defs/short", "title": "third"},
            "d": {"$ref": "#/$defs/again"},
            "e": {"type": "string", "maxLength": 4},
        },
        "additionalProperties": False,
        "$defs": {"short": {"type": "string", "maxLength": 3}, "again": {"$ref": "#/$defs/short"}},
    }
    grammar = free(schema)
    # the root, `a` to `d`, `e` and the character of a string
    assert len(grammar.rules) == 4
    for name, longest in {"a": 3, "b": 3, "c": 3, "d": 3, "e": 4}.items():
        assert grammar.matches(compact({name: "x" * longest}))
        assert not grammar.matches(compact({name: "x" * (longest + 1)}))


def test_leaves_that_differ_in_the_kind_of_a_constant_stay_apart():
    grammar = free({"prefixItems": [{"const": 1}, {"const": True}, {"const": "1"}], "minItems": 3})
    assert grammar.matches('[1,true,"1"]')
    assert not grammar.matches("[1,1,1]")
    assert not grammar.matches('[true,true,"1"]')


KINDS = ["point", "line", "ring", "area"]
TAGGED = {
    "type": "object",
    "required": ["kind"],
    "oneOf": [
        {"properties": {"kind": {"enum": [kind]}, "size": {"type": "integer", "minimum": i}}}
        for i, kind in enumerate(KINDS)
    ],
}


def test_a_member_that_the_surrounding_schema_requires_tells_branches_apart():
    assert len(cases_of(TAGGED)) == len(KINDS)
    grammar = free(TAGGED)
    assert grammar.matches('{"size":2,"kind":"ring"}')
    assert not grammar.matches('{"size":1,"kind":"ring"}')
    assert not grammar.matches('{"size":1}')
    assert not grammar.matches('{"kind":"disc"}')


def test_a_way_to_fail_that_others_share_is_one_case():
    names = ["p", "q", "r", "s"]
    schema = {
        "type": "object",
        "allOf": [{"not": {"required": names[: n + 1]}} for n in range(len(names))],
    }
    # without "p" none of them holds; before, 24 combinations were looked at
    assert [case.forbidden for case in cases_of(schema)] == [{"p"}]
    grammar = free(schema)
    assert grammar.matches('{"q":1,"r":1,"s":1}')
    assert not grammar.matches('{"p":1}')


def test_a_required_member_settles_what_asks_for_it():
    schema = {
        "type": "object",
        "required": ["a"],
        "anyOf": [{"required": ["b"]}, {"required": ["a"]}, {"required": ["c"]}],
        "dependentRequired": {"d": ["a"]},
    }
    assert [case.required for case in cases_of(schema)] == [("a",)]


@pytest.mark.parametrize("closed", [False, True])
def test_a_branch_that_declares_members_is_kept_where_they_count(closed):
    """The second branch alone declares "b": without it, no closed object would have one."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "required": ["a"],
        "anyOf": [{"required": ["a"]}, {"properties": {"b": {"type": "null"}}}],
    }
    assert len(cases_of(schema, loose=True)) == 1
    assert len(cases_of(schema, loose=False)) == 2
    grammar = free(schema, closed=closed)
    assert grammar.matches('{"a":null,"b":null}')
    assert grammar.matches('{"a":null,"b":1}') is not closed
    assert grammar.matches('{"a":null,"c":1}') is not closed
