"""Into how many cases and rules a schema is split, and that its language stays the same."""

import itertools
import json
import random
import re

import pytest

from oxillama._core.schemas import ENFORCED
from oxillama.errors import GrammarError
from oxillama.grammar import JsonSchemaCompiler
from oxillama.grammar.schema.document import Document
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


def test_a_case_that_is_part_of_another_is_dropped():
    """A branch fails by another kind or by a bad size: all that has a kind is one case of it."""
    schema = {name: value for name, value in TAGGED.items() if name != "required"}
    cases = cases_of(schema)
    tagged = [case for case in cases if "kind" in case.required]
    assert (len(tagged), len(cases)) == (len(KINDS), 8)
    grammar = free(schema)
    assert grammar.matches('{"size":2,"kind":"ring"}')
    assert grammar.matches('{"size":0}')  # of the first branch alone
    assert not grammar.matches('{"size":1}')
    assert not grammar.matches("{}")


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


def some_of(*patterns: str) -> dict:
    return {"anyOf": [{"pattern": pattern} for pattern in patterns]}


def test_what_a_string_may_be_is_not_multiplied():
    schema = {"type": "string", "allOf": [some_of("a", "b", "c"), some_of("1", "2", "3", "4")]}
    (case,) = cases_of(schema)
    assert [len(texts) for texts in case.text_choices] == [3, 4]
    assert case.combinations() == 12
    schema["allOf"].append({"not": some_of("^x", "y$")})
    (case,) = cases_of(schema)
    assert case.combinations() == 12
    grammar = free(schema)
    assert [t for t in ("b4", "4b", "b5", "d4", "xb4", "b4y") if grammar.matches(f'"{t}"')] == [
        "b4",
        "4b",
    ]


def test_few_combinations_of_a_string_stay_cases():
    schema = {"type": "string", "allOf": [some_of("a", "b"), some_of("1", "2")]}
    assert [(case.text_choices, len(case.patterns)) for case in cases_of(schema)] == [((), 2)] * 4


def test_alternatives_inside_alternatives_of_a_string_are_one_case():
    inner = [{"not": {"allOf": [{"pattern": c}, {"pattern": c + c}]}} for c in "abcde"]
    schema = {"type": "string", "pattern": "^[a-e]*$", "anyOf": inner}
    (case,) = cases_of(schema)
    assert case.combinations() == 10
    grammar = free(schema)
    assert grammar.matches('"aabbccdde"')
    assert not grammar.matches('"aabbccddee"')


def test_a_string_too_large_for_one_automaton_is_written_by_combinations():
    lengths = [{"minLength": 900 * i, "maxLength": 900 * i + 7_000} for i in range(3)]
    letters = [{"pattern": f"^[{c}x]*$"} for c in "abc"]
    schema = {"type": "string", "allOf": [{"anyOf": lengths}, {"anyOf": letters}]}
    (case,) = cases_of(schema)
    assert case.combinations() == 9
    grammar = free(schema)
    assert grammar.matches('"' + "bx" * 4_400 + '"')
    assert not grammar.matches('"' + "bx" * 4_401 + '"')
    assert not grammar.matches('"abx"')


def test_an_absent_member_and_a_bad_one_are_one_way_to_fail():
    """Each of the branches that must not hold fails by its own member: one case, not 2 ** 4."""
    names = ["a", "b", "c", "d"]
    schema = {
        "type": "object",
        "allOf": [
            {"not": {"required": [name], "properties": {name: {"type": "integer"}}}}
            for name in names
        ],
    }
    (case,) = cases_of(schema)
    assert (case.required, case.forbidden) == ((), frozenset())
    assert [list(properties) for properties, _, _ in case.objects] == [[name] for name in names]
    grammar = free(schema)
    assert grammar.matches('{"d":"x","b":null}')
    assert grammar.matches("{}")
    assert not grammar.matches('{"d":"x","b":1}')


def test_a_member_that_a_closed_object_cannot_have_ends_its_case():
    """Seven branches that differ in names: what one closes, no other needs a case of."""
    branches = [
        {"properties": {f"own{i}": {}, "shared": {"maximum": i}}, "additionalProperties": False}
        for i in range(7)
    ]
    cases = cases_of({"type": "object", "oneOf": branches})
    assert all(not case.undeclared for case in cases)
    assert len(cases) == 49  # of 7 * 2 ** 6 combinations
    grammar = free({"type": "object", "oneOf": branches})
    assert grammar.matches('{"own3":1,"shared":3}')
    assert grammar.matches('{"shared":6}')
    assert not grammar.matches('{"shared":5}')
    assert not grammar.matches('{"own3":1,"own4":1}')


def test_equal_schemas_that_hold_others_are_one():
    def member(least) -> dict:
        return {"type": "object", "properties": {"x": {"minimum": least}}, "required": ["x"]}

    first, twin, other, named = member(1), member(1), member(2), member(1)
    named["required"] = ["y"]
    document = Document({"anyOf": [first, twin, other, named]})
    document.prepare()
    assert document.literal(first) == document.literal(twin)
    assert len({document.literal(schema) for schema in (first, other, named)}) == 3


def test_equal_schemas_that_only_references_lead_to_are_one():
    def shape() -> dict:
        return {"properties": {"x": {"minimum": 1}}, "required": ["x"]}

    first, twin, unused = shape(), shape(), {"required": 1}
    references = [{"$ref": "#/shapes/first"}, {"$ref": "#/shapes/twin"}]
    document = Document(
        {"anyOf": references, "shapes": {"first": first, "twin": twin}, "$defs": {"unused": unused}}
    )
    document.prepare()
    assert len({document.literal(schema) for schema in (first, twin, *references)}) == 1


def test_the_cases_of_a_split_exclude_each_other():
    """One kind decides all that must not hold: not a case per combination of other ways to fail."""
    branches = [
        {
            "properties": {"kind": {"enum": [f"k{i}"]}, f"own{i}": {}, f"more{i}": {}},
            "required": ["kind", f"own{i}", f"more{i}"],
        }
        for i in range(6)
    ]
    plain = {"properties": {"other": {}}, "required": ["kind", "other"]}
    schema = {"type": "object", "oneOf": [*branches, plain]}
    assert len(cases_of(schema)) == 6 + 1 + 6 * 2
    grammar = free(schema)
    assert grammar.matches('{"kind":"k1","own1":1,"more1":1}')
    assert grammar.matches('{"kind":"k1","own1":1,"other":1}')
    assert grammar.matches('{"other":1,"kind":"new"}')
    assert not grammar.matches('{"kind":"k1","own1":1,"more1":1,"other":1}')
    assert not grammar.matches('{"kind":"new","own1":1,"more1":1}')


def test_patterns_of_few_texts_tell_branches_apart():
    branches = [
        {"properties": {"kind": {"type": "string", "pattern": p}}, "required": ["kind", f"m{i}"]}
        for i, p in enumerate(["^(a|b)$", "^c$", "^d[12]$"])
    ]
    schema = {"type": "object", "oneOf": branches}
    assert len(cases_of(schema)) == 3
    grammar = free(schema)
    assert grammar.matches('{"m2":0,"kind":"d2"}')
    assert not grammar.matches('{"m2":0,"kind":"c"}')


@pytest.mark.parametrize("more", [[], [{"type": "null"}, {"const": "x7"}, {"type": "integer"}]])
def test_hundreds_of_patterns_without_a_common_text_are_a_case_each(more):
    """Automata tell them apart, no steps."""
    patterns = [f"^[a-c]{{{i % 3}}}x{i}[a-z]+$" for i in range(400)]
    branches = [{"type": "string", "pattern": pattern} for pattern in patterns]
    assert len(cases_of({"oneOf": [*branches, *more]})) == 400 + len(more)
    grammar = free({"oneOf": [*branches, *more]})
    for value in ("bx1a", "abx398zz", "x0a"):
        assert grammar.matches(compact(value)), value
    for value in ("bx0a", "x1a", "abx398", "x400a"):
        assert not grammar.matches(compact(value)), value
    for value in (None, "x7", 5):
        assert grammar.matches(compact(value)) == bool(more), value


def test_a_text_meets_one_of_many_patterns():
    rng = random.Random(7)
    parts = ["a", "b", "[ab]", "c?", "a*", "(ab|c)", "."]
    texts = ["".join(t) for n in range(5) for t in itertools.product("abc", repeat=n)]
    tried = 0
    for _ in range(12):
        patterns = [
            rng.choice(["^%s$", "^%s", "%s$"]) % "".join(rng.choices(parts, k=rng.randint(2, 4)))
            for _ in range(rng.randint(9, 14))
        ]
        branches = [{"type": "string", "pattern": pattern} for pattern in patterns]
        met = [sum(bool(re.search(p, text)) for p in patterns) == 1 for text in texts]
        if any(met):
            grammar = free({"oneOf": branches})
            assert [grammar.matches(compact(text)) for text in texts] == met, patterns
            tried += 1
    assert tried > 4
    wide = free({"oneOf": [{"type": "string", "pattern": f"o{i:02}"} for i in range(60)]})
    assert wide.matches('"xo01o01"') and not wide.matches('"xo01o02"')


def test_too_many_patterns_with_common_texts_are_refused():
    branches = [{"type": "string", "pattern": f"o{i}"} for i in range(180)]
    told = "^schema /oneOf/0: is a branch of a 'oneOf', of which more than 15000 pairs have strings"
    with pytest.raises(GrammarError, match=told):
        free({"oneOf": branches})


def test_a_type_that_two_branches_take_whole_is_no_one_branch():
    branches = [
        {"properties": {"kind": {"const": k}, "size": {"maximum": i}}, "required": ["kind"]}
        for i, k in enumerate("abc")
    ]
    cases = cases_of({"oneOf": branches})
    assert [case.types for case in cases] == [{"object"}] * 3
    grammar = free({"oneOf": branches})
    assert grammar.matches('{"kind":"b","size":1}')
    assert not grammar.matches('{"kind":"a","size":1}')
    assert not grammar.matches('"a"')


def test_a_demand_that_few_names_meet_declares_them_for_others():
    schema = {
        "type": "object",
        "required": ["c"],
        "allOf": [
            {"not": {"patternProperties": {"^[ab]$": {"type": "string"}}}},
            {"not": {"properties": {"a": {}, "c": {}}, "additionalProperties": False}},
        ],
    }
    grammar = free(schema)
    assert grammar.matches('{"b":1,"c":1}')  # "b" meets both demands
    assert grammar.matches('{"a":1,"c":1,"d":1}')
    assert not grammar.matches('{"a":1,"c":1}')
    assert not grammar.matches('{"b":"x","c":1}')


@pytest.mark.parametrize("order", ["free", "declared"])
def test_one_member_meets_what_several_branches_demand(order):
    def strings(pattern):
        return {"type": "object", "additionalProperties": {"type": "string", "pattern": pattern}}

    grammar = JsonSchemaCompiler(order=order).compile(
        {"type": "object", "not": {"anyOf": [strings("a"), strings("b"), strings("c")]}}
    )
    for value in ({"x": 1}, {"x": "d", "y": "a"}, {"x": "ab", "y": "bc", "z": "ca"}):
        assert grammar.matches(compact(value)), value
    for value in ({}, {"x": "bca"}, {"x": "ab"}, {"x": "ab", "y": "ba"}):
        assert not grammar.matches(compact(value)), value
    closed = {"type": "object", "properties": {"c": {"maximum": 2}}, "additionalProperties": False}
    grammar = JsonSchemaCompiler(order=order).compile(
        {"oneOf": [{"type": "object"}, closed, strings("^v$")]}
    )
    for value in ({"a": 1}, {"c": 5}, {"a": 1, "b": "v"}, {"a": "v", "c": 1}):
        assert grammar.matches(compact(value)), value
    for value in ({}, {"c": 1}, {"a": "v"}):
        assert not grammar.matches(compact(value)), value


def test_only_the_cases_of_rules_are_kept_once_a_schema_is_compiled():
    schema = {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    document = Document(schema)
    expander = Expander(document, lambda *_: None, loose=True)
    rule = frozenset([(document.root, True)])
    other = frozenset([document.literal(schema["properties"]["a"])])
    kept, dropped = expander.cases(rule), expander.cases(other)
    expander.forget({rule: 0})
    assert expander.cases(rule) is kept
    assert expander.cases(other) is not dropped
    assert [case.types for case in expander.cases(other)] == [case.types for case in dropped]
