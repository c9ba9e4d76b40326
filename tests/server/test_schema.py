"""Bodies against schemas: every value that is refused is named with its path."""

import pytest

from oxillama.server import hints
from oxillama.server.errors import ApiError
from oxillama.server.routes import ROUTES
from oxillama.server.schema import (
    BOOLEAN,
    FALSE,
    TRUE,
    array,
    check,
    check_body,
    enum,
    integer,
    number,
    obj,
    one_of,
)

BODY = obj(
    {
        "n": integer(1, 8),
        "p": number(0, 1),
        "on": BOOLEAN,
        "kind": enum("a", "b"),
        "items": array(obj({"name": {"type": "string", "pattern": "^[a-z]+$"}}, ("name",)), 1, 3),
        "stop": one_of({"type": "string", "minLength": 1}, array({"type": "string"}, 0, 2)),
        "bias": {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": number(-1, 1),
        },
    },
    ("n",),
)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n": 8.0},
        {"p": None, "on": None, "stop": None},
        {"p": 1, "on": False, "kind": "b"},
        {"items": [{"name": "x"}]},
        {"stop": "x"},
        {"stop": ["x", "y"]},
        {"bias": {"5": 0.5}},
    ],
)
def test_what_fits_passes(more):
    check_body({"n": 1, **more}, BODY)


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "n"),
        ({"n": None}, "n"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": "1"}, "n"),
        ({"n": 1, "p": 1.01}, "p"),
        ({"n": 1, "p": False}, "p"),
        ({"n": 1, "on": "yes"}, "on"),
        ({"n": 1, "on": 1}, "on"),
        ({"n": 1, "kind": "c"}, "kind"),
        ({"n": 1, "items": []}, "items"),
        ({"n": 1, "items": [{}]}, "items[0].name"),
        ({"n": 1, "items": [{"name": "x"}, {"name": "X"}]}, "items[1].name"),
        ({"n": 1, "items": [{"name": "x\n"}]}, "items[0].name"),
        ({"n": 1, "bias": {"5\n": 0.5}}, "bias"),
        ({"n": 1, "items": [{"name": "x", "more": 1}]}, "items[0].more"),
        ({"n": 1, "stop": ""}, "stop"),
        ({"n": 1, "stop": ["a", 1]}, "stop[1]"),
        ({"n": 1, "stop": ["a", "b", "c"]}, "stop"),
        ({"n": 1, "bias": {"x": 0}}, "bias"),
        ({"n": 1, "bias": {"5": 2}}, "bias"),
        ({"n": 1, "other": 1}, "other"),
    ],
)
def test_what_does_not_fit_is_named(body, param):
    with pytest.raises(ApiError) as caught:
        check_body(body, BODY)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    "body, told",
    [
        ({"n": 1, "kindd": "a"}, "kindd: is not a known field; did you mean kind?"),
        ({"n": 1, "zzz": 1}, "zzz: is not a known field"),
        (
            {"n": 1, "items": [{"nam": "x", "name": "x"}]},
            "items[0].nam: is not a known field; did you mean name?",
        ),
    ],
)
def test_an_unknown_field_is_told_with_the_most_similar_one(body, told):
    with pytest.raises(ApiError) as caught:
        check_body(body, BODY)
    assert (caught.value.message, caught.value.code) == (told, "unknown_parameter")


def objects(schema, path=""):
    """(path, properties) of a schema's object and of those within."""
    yield path, schema.get("properties", {})
    for name, inner in schema.get("properties", {}).items():
        yield from objects(inner, f"{path}{name}.")


@pytest.mark.parametrize(
    "schema, value, told",
    [
        (BOOLEAN, None, "x: found null, wanted true or false"),
        (integer(1, 8), True, "x: found true, wanted an integer in [1, 8]"),
        (FALSE, True, "x: found true, wanted false"),
        (TRUE, "yes", "x: found 'yes', wanted true"),
        (enum("json", ""), "yaml", "x: found 'yaml', wanted one of json, an empty string"),
    ],
)
def test_values_stand_in_errors_as_json_writes_them(schema, value, told):
    with pytest.raises(ApiError) as caught:
        check(value, schema, "x")
    assert caught.value.message == told


def test_a_hint_stands_beside_a_field_of_a_route_that_lacks_or_limits_what_it_is_for():
    bodies = [found for route in ROUTES if route.body for found in objects(route.body)]
    for path, (beside, _) in hints._FIELDS.items():
        above, _, name = path.rpartition(".")
        there = [known for at, known in bodies if at == (f"{above}." if above else "")]
        there = [known for known in there if beside in known]
        alone = path in hints._ONE_VALUE
        assert any((name in known) == alone for known in there), path
