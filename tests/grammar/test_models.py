"""Pydantic models are schemas: what a grammar accepts is what the model reads, and what the model
writes is accepted.
"""

import ast
import dataclasses
import datetime
import enum
import json
import typing
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import pydantic.dataclasses
import pytest

import oxillama
from oxillama.errors import GrammarError
from oxillama.grammar import ClosedSchema, Grammar, schema_of


class Colour(enum.Enum):
    red = "red"
    blue = "blue"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, pydantic.Field(ge=1, le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, pydantic.Field(min_length=2, max_length=5)]
    born: datetime.date | None = None


class Home(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    pets: list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]]
    colour: Colour = Colour.red
    next: "Home | None" = None


GOOD = [
    '{"pets":[]}',
    '{"pets":[{"kind":"cat","lives":9}],"colour":"blue"}',
    '{"pets":[{"kind":"dog","name":"Rex","born":"2024-02-29"}],"next":{"pets":[]}}',
]
BAD = [
    "{}",
    '{"pets":[{"kind":"cat","lives":10}]}',
    '{"pets":[{"kind":"dog","name":"R"}]}',
    '{"pets":[],"colour":"green"}',
    '{"pets":[],"more":1}',
    '{"pets":[{"kind":"dog","name":"Rex","born":"2023-02-29"}]}',
    '{"pets":[],"next":{}}',
]


def test_a_grammar_of_a_model_accepts_what_the_model_reads():
    grammar = Grammar.from_json_schema(Home)
    for text in GOOD:
        assert Home.model_validate_json(text) and grammar.matches(text), text
    for text in BAD:
        with pytest.raises(pydantic.ValidationError):
            Home.model_validate_json(text)
        assert not grammar.matches(text), text


def test_what_a_model_writes_is_accepted():
    home = Home(
        pets=[
            Cat(kind="cat", lives=3),
            Dog(kind="dog", name="Ann", born=datetime.date(2024, 2, 29)),
        ],
        next=Home(pets=[]),
    )
    assert Grammar.from_json_schema(Home).matches(home.model_dump_json())


def test_a_pydantic_dataclass_keeps_its_constraints():
    @pydantic.dataclasses.dataclass
    class Point:
        x: Annotated[int, pydantic.Field(ge=0, le=9)]

    grammar = Grammar.from_json_schema(Point)
    assert [grammar.matches(t) for t in ('{"x":9}', '{"x":10}', "{}")] == [True, False, False]


def test_bounds_noted_in_a_plain_dataclass_hold_or_raise():
    @dataclasses.dataclass
    class Point:
        x: Annotated[int, "across", pydantic.Field(ge=0, lt=9)]
        name: Annotated[str, pydantic.Field(max_length=2, pattern="^[a-z]+$")]

    grammar = Grammar.from_json_schema(Point)
    texts = (
        '{"x":8,"name":"ab"}',
        '{"x":9,"name":"ab"}',
        '{"x":8,"name":"abc"}',
        '{"x":8,"name":"A"}',
    )
    assert [grammar.matches(t) for t in texts] == [True, False, False, False]

    @dataclasses.dataclass
    class Odd:
        x: Annotated[bool, pydantic.Field(ge=0)]

    with pytest.raises(GrammarError, match="Odd.x: ge=0 cannot be enforced"):
        Grammar.from_json_schema(Odd)


def test_a_model_that_cannot_be_enforced_raises():
    class Words(pydantic.BaseModel):
        words: set[tuple[int, int]]

    with pytest.raises(GrammarError, match="uniqueItems"):
        Grammar.from_json_schema(Words)


def test_models_with_addresses_sets_counts_and_flags_hold():
    class Page(pydantic.BaseModel):
        url: pydantic.HttpUrl
        tags: set[str]
        counts: dict[str, int] = pydantic.Field(min_length=2)
        name: str = pydantic.Field(pattern="(?i)^[a-c]+$")

    grammar = Grammar.from_json_schema(Page)
    good = {"url": "http://a.b/c", "tags": ["x", "y"], "counts": {"p": 1, "q": 2}, "name": "aBC"}
    for change in (
        {},
        {"tags": []},
        {"counts": {"p": 1, "pq": 2, "": 3}},
        {"url": "https://a.b/" + "c" * 2071},
    ):
        text = json.dumps({**good, **change}, separators=(",", ":"))
        assert grammar.matches(text), text
    for change in (
        {"tags": ["x", "x"]},
        {"tags": ["y", "x", "", "y"]},
        {"counts": {"p": 1}},
        {"url": "https://a.b/" + "c" * 2072},
        {"url": "a b"},
        {"name": "d"},
        {"other": 1},
    ):
        text = json.dumps({**good, **change}, separators=(",", ":"))
        assert not grammar.matches(text), text
    twice = json.dumps(good, separators=(",", ":")).replace('"q"', '"p"')
    assert not grammar.matches(twice)


class Point(typing.TypedDict):
    x: int
    y: typing.NotRequired[int]


@pytest.mark.parametrize(
    "kind",
    [
        pydantic.create_model("Point", x=int, y=(int, 0)),
        dataclasses.make_dataclass("Point", [("x", int), ("y", int, 0)]),
        Point,
    ],
)
def test_a_class_has_no_members_but_its_own(kind):
    grammar = Grammar.from_json_schema(kind)
    texts = ('{"x":1}', '{"x":1,"y":2}', '{"y":2}', '{"x":1,"z":2}')
    assert [grammar.matches(text) for text in texts] == [True, True, False, False]
    assert Grammar.rebuild(grammar.describe()).matches('{"x":1,"z":2}') is False
    schema = dict(schema_of(kind))
    schema.pop("additionalProperties", None)
    for definition in schema.get("$defs", {}).values():
        definition.pop("additionalProperties", None)
    assert Grammar.from_json_schema(schema).matches('{"x":1,"z":2}')
    assert not Grammar.from_json_schema(schema, closed=True).matches('{"x":1,"z":2}')
    assert not Grammar.from_json_schema(ClosedSchema(schema)).matches('{"x":1,"z":2}')


def test_no_module_of_the_package_imports_pydantic():
    for path in Path(oxillama.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not any(name.split(".")[0] == "pydantic" for name in names), path


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        *(
            (getattr(typing, name), ["[]", '[1,"a"]'], ["{}"])
            for name in ("List", "Sequence", "Tuple")
        ),
        (tuple, ["[]", '[1,"a"]'], ["{}"]),
        *((getattr(typing, name), ["{}", '{"a":1}'], ["[]"]) for name in ("Dict", "Mapping")),
        (tuple[()], ["[]"], ["[1]"]),
    ],
)
def test_containers_that_do_not_say_of_what_hold_anything(kind, good, bad):
    grammar = Grammar.from_json_schema(dataclasses.make_dataclass("Held", [("x", kind)]))
    assert [
        [text for text in texts if grammar.matches(f'{{"x":{text}}}')] for texts in (good, bad)
    ] == [good, []]


def test_a_set_that_does_not_say_of_what_raises_for_its_unique_items():
    with pytest.raises(GrammarError, match="uniqueItems"):
        untold = getattr(typing, "Set")  # noqa: B009
        Grammar.from_json_schema(dataclasses.make_dataclass("Held", [("x", untold)]))


@pydantic.dataclasses.dataclass
class Weight:
    grams: int = pydantic.Field(ge=1, le=9)


@dataclasses.dataclass
class Kennel:
    dogs: list[Dog]
    weight: Weight
    floors: int = pydantic.Field(ge=1, le=2)
    rooms: int = pydantic.Field(3, ge=3, le=4)
    hash: int = dataclasses.field(default=0, init=False)


class Yard(typing.TypedDict):
    home: Home
    weight: typing.NotRequired[Weight]


REX = '{"kind":"dog","name":"Rex"}'


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            Kennel,
            [
                '{"dogs":[],"weight":{"grams":9},"floors":1}',
                f'{{"dogs":[{REX}],"weight":{{"grams":1}},"floors":2,"rooms":4}}',
            ],
            [
                '{"dogs":[],"weight":{},"floors":1}',
                '{"dogs":[],"weight":{"grams":10},"floors":1}',
                '{"dogs":[],"weight":{"grams":9}}',
                '{"dogs":[],"weight":{"grams":9},"floors":3}',
                '{"dogs":[],"weight":{"grams":9},"floors":1,"rooms":5}',
                '{"dogs":[],"weight":{"grams":9},"floors":1,"hash":0}',
                '{"dogs":[{"kind":"dog","name":"R"}],"weight":{"grams":9},"floors":1}',
                '{"dogs":[{"kind":"dog","name":"Rex","more":1}],"weight":{"grams":9},"floors":1}',
            ],
        ),
        (
            Yard,
            [
                '{"home":{"pets":[],"next":{"pets":[]}}}',
                '{"home":{"pets":[]},"weight":{"grams":9}}',
            ],
            ["{}", '{"home":{"pets":[],"next":{}}}', '{"home":{"pets":[]},"weight":{}}'],
        ),
        (list[Dog], ["[]", f"[{REX},{REX}]"], [REX, '[{"kind":"dog"}]', "[1]"]),
        (dict[str, Colour], ["{}", '{"a":"red"}'], ['{"a":"green"}', "[]"]),
        (Cat | Dog, [REX, '{"kind":"cat","lives":9}'], ['{"kind":"cat","lives":10}', "null"]),
        (typing.Optional[Weight], ["null", '{"grams":1}'], ["{}"]),  # noqa: UP045
        (Annotated[int, pydantic.Field(ge=3)], ["3"], ["2", '"3"']),
        (Literal["a", 1], ['"a"', "1"], ['"b"', "a"]),
        (Colour, ['"red"'], ['"green"', "red"]),
        (bool, ["true"], ["1"]),
        (pydantic.TypeAdapter(list[Cat]), ["[]", '[{"kind":"cat","lives":1}]'], [f"[{REX}]"]),
    ],
    ids=str,
)
def test_types_made_of_classes_are_schemas_too(kind, good, bad):
    grammar = Grammar.from_json_schema(kind)
    assert [text for text in good if not grammar.matches(text)] == []
    assert [text for text in bad if grammar.matches(text)] == []


def test_a_class_that_is_no_schema_is_named():
    with pytest.raises(GrammarError, match="^Plain: type .*Plain'> has no JSON form$"):
        Grammar.from_json_schema(type("Plain", (), {}))


def test_a_list_of_models_is_generated_and_read():
    kind = Annotated[list[Dog], pydantic.Field(min_length=1, max_length=2)]
    with oxillama.load() as engine:
        found = engine.generate("Dogs: ", json_schema=kind, max_tokens=300, seed=1)
        assert found.finish_reason == "stop"
        assert pydantic.TypeAdapter(kind).validate_json(found.text)
        reply = engine.chat([{"role": "user", "content": "Hi"}], response_format=Cat | Dog, seed=1)
        pydantic.TypeAdapter(Cat | Dog).validate_json(reply.content)


def test_tools_take_and_return_models():
    def adopt(dog: Dog, others: list[Cat], weight: Weight) -> Cat:
        return others[0].model_copy(update={"lives": others[0].lives - weight.grams})

    tools = oxillama.ToolDispatcher([adopt])
    arguments = f'{{"dog":{REX},"others":[{{"kind":"cat","lives":9}}],"weight":{{"grams":2}}}}'
    assert Grammar.from_json_schema(tools.tools[0]["function"]["parameters"]).matches(arguments)
    call = oxillama.ToolCall(id="1", name="adopt", arguments=json.loads(arguments))
    assert json.loads(tools.dispatch(call).content) == {"kind": "cat", "lives": 7}
