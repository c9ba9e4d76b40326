"""Dispatching: schemas from functions, every error a result, and rounds that end in an answer."""

import asyncio
import dataclasses
import datetime
import enum
import functools
import math
import typing
import uuid
from dataclasses import dataclass

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import ConfigError, RoundsExhausted, TemplateError
from oxillama.tokenizer import ChatTemplate
from oxillama.toolcalls import (
    ChatEvent,
    MessageForm,
    NoOpDispatcher,
    Reply,
    Tool,
    ToolCall,
    ToolDispatcher,
    run_until_answer,
    run_until_answer_async,
    tool_of,
)
from oxillama.toolcalls.checking import ArgumentChecker


class Unit(enum.Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


@dataclass
class Place:
    city: str
    near: "list[Place] | None" = None


def weather(
    place: Place,
    days: int = 1,
    *,
    unit: Unit = Unit.CELSIUS,
    tags: typing.Annotated[tuple[str, ...], "words to add"] = (),
) -> dict:
    """Tells the weather
    of a place.

    Args:
        place: where,
            roughly
        days (int): how many
    """
    return {"place": place, "days": days, "unit": unit, "tags": tags}


def test_a_function_is_a_tool_by_its_hints_and_docstring():
    tool = tool_of(weather)
    assert (tool.name, tool.description) == ("weather", "Tells the weather of a place.")
    properties = tool.parameters["properties"]
    assert (
        tool.parameters["required"] == ["place"]
        and tool.parameters["additionalProperties"] is False
    )
    assert properties["days"] == {"type": "integer", "description": "how many"}
    assert (
        properties["unit"] == {"enum": ["C", "F"]}
        and properties["tags"]["description"] == "words to add"
    )
    assert properties["place"]["description"] == "where, roughly"
    name = properties["place"]["$ref"].removeprefix("#/$defs/")
    assert tool.parameters["$defs"][name]["required"] == ["city"]


def test_a_call_reaches_its_function_with_the_types_of_its_hints():
    result = ToolDispatcher([weather]).dispatch(
        ToolCall(
            "weather",
            {"place": {"city": "Ulm", "near": [{"city": "Au"}]}, "unit": "F", "tags": ["a"]},
        )
    )
    assert (
        result.value
        == {
            "place": Place("Ulm", [Place("Au")]),
            "days": 1,
            "unit": Unit.FAHRENHEIT,
            "tags": ("a",),
        }
        and result.ok
    )
    assert result.content == (
        '{"place": {"city": "Ulm", "near": [{"city": "Au", "near": null}]}, "days": 1, "unit": '
        '"F", "tags": ["a"]}'
    )
    assert result.message() == {
        "role": "tool",
        "tool_call_id": "call00000",
        "name": "weather",
        "content": result.content,
    }


DAY, MARK = "2024-02-29", "12345678-1234-5678-1234-567812345678"


@pytest.mark.parametrize(
    "hint, given, wanted",
    [
        (dict[str, Place], {"a": {"city": "Ulm"}}, {"a": Place("Ulm")}),
        (typing.Mapping[str, Unit], {"a": "C"}, {"a": Unit.CELSIUS}),
        (typing.Sequence[Place], [{"city": "Ulm"}], [Place("Ulm")]),
        (Unit | Place, {"city": "Ulm"}, Place("Ulm")),
        (Place | Unit | None, "F", Unit.FAHRENHEIT),
        (int | str, "5", "5"),
        (datetime.date | str, DAY, datetime.date(2024, 2, 29)),
        (datetime.date | str, "soon", "soon"),
        (datetime.datetime, f"{DAY}T10:00:00", datetime.datetime(2024, 2, 29, 10)),
        (datetime.time, "10:00:00", datetime.time(10)),
        (uuid.UUID, MARK, uuid.UUID(MARK)),
        (list[int], [2.0, 3], [2, 3]),
        (tuple[datetime.date, ...], [DAY, DAY], (datetime.date(2024, 2, 29),) * 2),
        (tuple[datetime.date, str], [DAY, DAY], (datetime.date(2024, 2, 29), DAY)),
        (typing.Dict, {"a": DAY}, {"a": DAY}),  # noqa: UP006
        (float, 2, 2.0),
    ],
)
def test_an_argument_has_the_type_of_its_hint(hint, given, wanted):
    def tool(value):
        return value

    tool.__annotations__["value"] = hint
    found = ToolDispatcher([tool]).dispatch(ToolCall("tool", {"value": given})).value
    assert found == wanted
    assert repr(found) == repr(wanted)  # 2 and 2.0 are equal


def test_a_result_that_json_does_not_have_is_written_as_its_text():
    def tool():
        return {"day": datetime.date(2024, 2, 29), "kinds": {Unit.FAHRENHEIT, Unit.CELSIUS}}

    result = ToolDispatcher([tool]).dispatch(ToolCall("tool", {}))
    assert result.content == '{"day": "2024-02-29", "kinds": ["C", "F"]}'


def test_what_stands_before_the_first_argument_is_no_description():
    def tool(days):
        """Waits.

        Args:
            of all sorts
            days: how
                long
        """

    assert tool_of(tool).parameters["properties"]["days"]["description"] == "how long"


def test_what_has_to_be_awaited_is_not_taken_for_a_result():
    async def later(x: int) -> int:
        return x + 1

    class Tool:
        async def __call__(self, x: int) -> int:
            return x + 1

    tools = ToolDispatcher({"plain": lambda x: later(x)})
    tools.register(Tool(), name="object")
    tools.register(functools.partial(later, x=1), name="part")
    assert tools.tools[1]["function"]["parameters"]["properties"] == {"x": {"type": "integer"}}
    for name in ("plain", "object", "part"):
        call = ToolCall(name, {"x": 1})
        assert tools.dispatch(call).error == f"{name}: has to be awaited, wanted dispatch_async"
        assert asyncio.run(tools.dispatch_async(call)).value == 2
    with pytest.raises(ConfigError, match="tool: found a Tool without a name, wanted"):
        ToolDispatcher([Tool()])


@pytest.mark.parametrize(
    "call, kind, error",
    [
        (ToolCall("fly", {}), "unknown_tool", "fly: is not a tool, wanted one of weather"),
        (ToolCall("weather", {}), "bad_arguments", "weather: place: is missing"),
        (
            ToolCall("weather", {"place": {"city": 3}}),
            "bad_arguments",
            "weather: place.city: found 3, wanted string",
        ),
        (
            ToolCall("weather", {"place": {"city": "x"}, "days": True}),
            "bad_arguments",
            "weather: days: found True, wanted integer",
        ),
        (
            ToolCall("weather", {"place": {"city": "x"}, "unit": "K"}),
            "bad_arguments",
            "weather: unit: found 'K', wanted one of 'C', 'F'",
        ),
        (
            ToolCall("weather", {"place": {"city": "x"}, "wind": 1}),
            "bad_arguments",
            "weather: wind: is not a parameter, wanted place, days, unit, tags",
        ),
    ],
)
def test_wrong_calls_are_results_that_name_what_is_wrong(call, kind, error):
    result = ToolDispatcher([weather]).dispatch(call)
    assert (result.kind, result.error, result.ok) == (kind, error, False) and error[
        :20
    ] in result.content


def test_what_a_function_raises_is_its_result():
    dispatcher = ToolDispatcher()

    @dispatcher.register
    def divide(a: float, b: float) -> float:
        if b == 0:
            raise ValueError("b is 0")
        return a / b

    @dispatcher.register(
        name="say",
        description="Says it.",
        parameters={"type": "object", "properties": {"it": {"type": "string"}}},
    )
    def echo(it="é"):
        return it

    assert (
        dispatcher.dispatch(ToolCall("divide", {"a": 1, "b": 0})).error
        == "divide: ValueError: b is 0"
    )
    assert dispatcher.dispatch(ToolCall("divide", {"a": 1, "b": 2})).content == "0.5"
    assert dispatcher.dispatch(ToolCall("say", {})).content == "é"
    assert [tool["function"]["name"] for tool in dispatcher.tools] == ["divide", "say"]
    with pytest.raises(ConfigError, match="say: is registered already"):
        dispatcher.register(echo, name="say")


def test_what_is_no_tool_is_refused():
    for wrong in (3, {}, lambda *args: 0, Tool):
        with pytest.raises(ConfigError):
            ToolDispatcher([wrong]) if callable(wrong) and wrong is not Tool else tool_of(
                wrong if wrong is not Tool else {"name": "a b"}
            )
    with pytest.raises(ConfigError, match="object"):
        Tool("f", "", {"type": "string"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=4,
)
schemas = st.recursive(
    st.sampled_from(
        [
            {},
            {"type": "integer"},
            {"type": "string"},
            {"type": ["null", "boolean"]},
            {"enum": [1, "a", True, None]},
            {"const": 0},
            {"minimum": 1},
            {"maxLength": 1},
            {"type": "array", "minItems": 1},
            {"exclusiveMinimum": 0, "exclusiveMaximum": 2},
            {"uniqueItems": True},
            {"minProperties": 1, "maxProperties": 1},
            {"enum": [[True], [1], {"a": 1.0}]},
            False,
            {"pattern": "^a|bb"},
            {"multipleOf": 2},
            {"dependentRequired": {"a": ["b"]}},
            {"propertyNames": {"enum": ["a", "b"]}},
        ]
    ),
    lambda inner: (
        st.fixed_dictionaries({"items": inner})
        | st.fixed_dictionaries(
            {"items": inner, "prefixItems": st.lists(inner, min_size=1, max_size=2)}
        )
        | st.fixed_dictionaries(
            {
                "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
                "required": st.lists(st.sampled_from("abc"), unique=True, max_size=1),
                "additionalProperties": inner | st.booleans(),
            }
        )
        | st.fixed_dictionaries({"not": inner})
        | st.fixed_dictionaries({"if": inner, "then": inner, "else": inner})
        | st.fixed_dictionaries({"contains": inner}, optional={"maxContains": st.integers(0, 2)})
        | st.fixed_dictionaries({"patternProperties": st.fixed_dictionaries({"^[ab]": inner})})
        | st.fixed_dictionaries({"dependentSchemas": st.fixed_dictionaries({"a": inner})})
        | st.fixed_dictionaries({"allOf": st.lists(inner), "unevaluatedProperties": inner})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)})
        | st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)})
    ),
    max_leaves=4,
)


@pytest.mark.parametrize(
    "hint, given, fault",
    [
        (tuple[int, str], ["x", "y"], "value[0]: found 'x', wanted integer"),
        (tuple[int, str], [1, 5], "value[1]: found 5, wanted string"),
        (set[int], [2, 3, 2.0], "value: found [2, 3, 2.0], uniqueItems is true"),
        (int | str | None, 2.5, "value: found 2.5, wanted integer"),
    ],
)
def test_an_argument_that_its_hint_does_not_allow_is_a_result(hint, given, fault):
    def tool(value):
        raise AssertionError

    tool.__annotations__["value"] = hint
    assert ToolDispatcher([tool]).dispatch(ToolCall("tool", {"value": given})).error == (
        f"tool: {fault}"
    )


def faults(value, schema):
    return ArgumentChecker(schema).faults(value)


@pytest.mark.parametrize(
    "parameters, error",
    [
        ({"allOf": [{"$ref": "#"}]}, "refers to itself without end"),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "refers to itself without end"),
        ({"properties": {"a": {"$ref": "other"}}}, "'other' is not in this document"),
        ({"properties": {"a": {"pattern": r"(a)\1"}}}, "back references are not regular"),
        ({"properties": {"a": {"minLength": "2"}}}, "keyword 'minLength': malformed value '2'"),
    ],
)
def test_a_schema_that_arguments_cannot_be_checked_against_is_refused(parameters, error):
    with pytest.raises(ConfigError, match=f"tool f: schema.*{error}"):
        ToolDispatcher().register(lambda **given: given, name="f", parameters=parameters)


def test_branches_that_ask_the_same_of_parts_are_not_tried_in_all_combinations():
    schema = {
        "anyOf": [
            {"type": "array", "items": {"$ref": "#"}},
            {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
        ]
    }
    value: list = ["x"]
    for _ in range(40):
        value = [value]
    place = "[0]" * 41
    assert faults(value, schema) == [f"{place}: found 'x', wanted array"]
    assert faults(value[0], {**schema, "anyOf": [*schema["anyOf"], {"const": "x"}]}) == []


def test_arguments_too_deep_to_be_checked_are_an_error():
    value: dict = {}
    for _ in range(400):
        value = {"a": value}
    schema = {"additionalProperties": {"$ref": "#"}}
    assert faults(value, schema) == ["arguments: nested too deeply to be checked"]
    assert faults({"a": {"a": {}}}, schema) == []


def test_arguments_that_are_no_json_are_an_error():
    assert faults({"a": math.nan}, {}) == [
        "arguments: not JSON (Out of range float values are not JSON compliant)"
    ]


@pytest.mark.parametrize(
    "schema, value, wanted",
    [
        ({"pattern": "^b"}, "a", ["found 'a', pattern is \"^b\""]),
        ({"multipleOf": 0.1}, 0.35, ["found 0.35, multipleOf is 0.1"]),
        ({"multipleOf": 0.1}, 0.3, []),
        ({"format": "date"}, "2026-02-30", []),
        ({"not": {"const": 1}}, 1, ["found 1, which `not` excludes"]),
        ({"contains": {"const": 1}}, [2], ["found [2], wanted an item that fits `contains`"]),
        ({"contains": {}, "maxContains": 1}, [2, 3], ["found [2, 3], maxContains is 1"]),
        ({"contains": True, "minContains": 2}, [2], ["found [2], minContains is 2"]),
        ({"if": {"minLength": 2}, "else": {"const": "a"}}, "b", ["found 'b', wanted 'a'"]),
        ({"oneOf": [{"type": "string"}, {"maxLength": 1}]}, "a", ["found 'a', which fits 2 of"]),
        ({"oneOf": [{"type": "string"}, {"pattern": "^b"}]}, "a", []),
        ({"prefixItems": [{}], "items": False}, [1, 2], ["[1]: nothing is allowed here"]),
        ({"required": ["a", "b"]}, {"b": 1}, ["a: is missing"]),
        ({"dependentRequired": {"b": ["a"]}}, {"b": 1}, ["a: is missing"]),
        ({"dependentSchemas": {"b": {"maxProperties": 0}}}, {"b": 1}, ["found {'b': 1}, max"]),
        ({"patternProperties": {"^b": {"type": "null"}}}, {"b": 1}, ["b: found 1, wanted null"]),
        ({"propertyNames": {"maxLength": 1}}, {"bb": 1}, ["the name 'bb': found 'bb', max"]),
        ({"unevaluatedProperties": False}, {"b": 1}, ["b: is not a parameter, wanted none"]),
        (
            {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": False}},
            {"a": 1},
            ["a: noth"],
        ),
    ],
)
def test_every_keyword_is_judged_and_named(schema, value, wanted):
    found = [each.removeprefix("arguments: ") for each in faults(value, schema)]
    assert len(found) == len(wanted)
    assert all(each.startswith(start) for each, start in zip(found, wanted, strict=True))


@settings(max_examples=500, deadline=None)
@given(json_values, schemas)
def test_faults_are_found_exactly_where_the_standard_finds_them(value, schema):
    assert (not faults(value, schema)) == jsonschema.Draft202012Validator(schema).is_valid(value)


# ---- rounds
# --------------------------------------------------------------------------------------------------


def scripted(*replies):
    """A chat that gives these replies, and keeps what it was asked."""
    asked = []

    def chat(messages, tools=None):
        asked.append((messages, tools))
        return replies[len(asked) - 1]

    return chat, asked


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def test_rounds_feed_results_back_until_there_is_an_answer():
    chat, asked = scripted(
        Reply(
            "",
            tool_calls=(ToolCall("add", {"a": 1, "b": 2}), ToolCall("add", {"a": 1}, "call00001")),
        ),
        Reply("hm", tool_calls=(ToolCall("add", {"a": 3, "b": 4}),)),
        Reply("It is 7."),
    )
    told = []
    question = [{"role": "user", "content": "1 + 2 + 4?"}]
    answer = run_until_answer(chat, question, None, ToolDispatcher([add]), on_result=told.append)
    assert (answer.content, answer.rounds) == ("It is 7.", 3) and question == [
        {"role": "user", "content": "1 + 2 + 4?"}
    ]
    assert [message["role"] for message in answer.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [(result.content, result.kind) for result in answer.results] == [
        ("3", ""),
        ('{"error": "add: b: is missing"}', "bad_arguments"),
        ("7", ""),
    ]
    ids = [call["id"] for message in answer.messages for call in message.get("tool_calls", ())]
    assert len(set(ids)) == 3 and ids == [
        message["tool_call_id"] for message in answer.messages if message["role"] == "tool"
    ]
    assert (
        tuple(told) == answer.results
        and asked[0][1][0]["function"]["name"] == "add"
        and len(asked[1][0]) == 4
    )


def test_rounds_end_at_their_bound_by_name_with_the_last_calls_not_run():
    reply = Reply("", tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
    with pytest.raises(
        RoundsExhausted, match="max_rounds: the model still calls add in reply 3"
    ) as raised:
        run_until_answer(scripted(*[reply] * 9)[0], [], None, ToolDispatcher([add]), max_rounds=3)
    assert (raised.value.answer.rounds, len(raised.value.answer.results)) == (3, 2)


def test_awaited_rounds_run_the_calls_of_a_reply_side_by_side():
    together = []

    async def wait(n: int) -> int:
        together.append(n)
        while len(together) < 2:
            await asyncio.sleep(0)
        return n

    async def fail() -> None:
        raise ValueError("no")

    calls = (
        ToolCall("wait", {"n": 2}),
        ToolCall("wait", {"n": 1}, "call00001"),
        ToolCall("add", {"a": 1, "b": 2}, "call00002"),
    )
    chat, _ = scripted(
        Reply("", tool_calls=calls), Reply("", tool_calls=(ToolCall("fail", {}),)), Reply("done")
    )

    async def asked(messages, tools):
        return chat(messages, tools)

    dispatcher = ToolDispatcher([wait, add, fail])
    answer = asyncio.run(run_until_answer_async(asked, [], None, dispatcher))
    assert [result.content for result in answer.results] == [
        "2",
        "1",
        "3",
        '{"error": "fail: ValueError: no"}',
    ] and answer.content == "done"
    assert (
        dispatcher.dispatch(ToolCall("wait", {"n": 1})).error
        == "wait: has to be awaited, wanted dispatch_async"
    )


def test_rounds_of_streams_tell_their_events():
    replies = iter([Reply("", tool_calls=(ToolCall("add", {"a": 1, "b": 2}),)), Reply("3")])
    told = []

    def chat(messages, tools):
        return iter(
            [ChatEvent(kind="content", text="x"), ChatEvent(kind="end", completion=next(replies))]
        )

    async def stream():
        for event in chat(None, None):
            yield event

    answer = run_until_answer(chat, [], None, ToolDispatcher([add]), on_event=told.append)
    assert answer.content == "3" and [event.kind for event in told] == ["content", "end"] * 2
    replies = iter([Reply("later")])
    assert (
        asyncio.run(
            run_until_answer_async(lambda messages, tools: stream(), [], [], NoOpDispatcher())
        ).content
        == "later"
    )


def test_rounds_check_what_they_are_given():
    chat, _ = scripted("plain")
    assert run_until_answer(chat, [], [], NoOpDispatcher()).content == "plain"
    for options in ({"max_rounds": 0}, {"dispatcher": None}):
        with pytest.raises(ConfigError):
            run_until_answer(chat, [], [], **{"dispatcher": NoOpDispatcher(), **options})


def test_a_reply_whose_answer_is_empty_is_not_taken_for_its_whole_text():
    cut = dataclasses.make_dataclass("Cut", ["text", "content", "tool_calls"])(
        "<tool_call>{", "", ()
    )
    assert (
        run_until_answer(lambda messages, tools: cut, [], [], NoOpDispatcher()).messages[-1][
            "content"
        ]
        == ""
    )


def test_a_dispatcher_that_runs_nothing_says_so():
    assert (
        NoOpDispatcher().dispatch(ToolCall("f", {})).kind == "no_tools"
        and NoOpDispatcher("later").dispatch(ToolCall("f", {})).content == "later"
    )


@pytest.mark.parametrize(
    "name",
    [
        "Qwen-Qwen2.5-7B-Instruct",
        "Qwen-Qwen3-0.6B",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        "meta-llama-Llama-3.1-8B-Instruct",
        "mistralai-Mistral-Nemo-Instruct-2407",
    ],
)
def test_published_templates_take_the_messages_of_rounds(cases, name):
    template = ChatTemplate((cases / "chat_templates" / f"{name}.jinja").read_text())
    chat, asked = scripted(Reply("", tool_calls=(ToolCall("add", {"a": 1, "b": 2}),)), Reply("3"))
    dispatcher = ToolDispatcher([add])
    answer = run_until_answer(chat, [{"role": "user", "content": "1 + 2?"}], None, dispatcher)
    text = template.render(
        answer.messages[:-1], tools=dispatcher.tools, bos_token="<s>", eos_token="</s>"
    )
    assert '"a": 1' in text and "3" in text


HISTORY = (
    "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}<{{ ARGUMENTS }}>{% "
    "endfor %}{% endfor %}"
)


@pytest.mark.parametrize("given", [{"a": "é"}, '{"a": "é"}'])
@pytest.mark.parametrize(
    "written",
    [
        "c.function.arguments | tojson",
        "'' + c.function.arguments",
        "c.function.arguments",
        "c.function | tojson",
    ],
)
def test_arguments_reach_a_template_in_the_form_that_it_writes_as_json(given, written):
    template = ChatTemplate(HISTORY.replace("ARGUMENTS", written))
    form = MessageForm(template.source, template.render)
    call = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": given}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    text = template.render(form.formed(messages))
    assert '{"a": "é"}' in text and messages[0]["tool_calls"][0]["function"]["arguments"] == given


def test_reasoning_reaches_a_template_that_calls_it_thinking(cases):
    template = ChatTemplate((cases / "chat_templates" / "openai-gpt-oss-120b.jinja").read_text())
    form = MessageForm(template.source, template.render)
    call = ToolCall("add", {"a": 1}).message()
    talk = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [call]},
    ]
    talk.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
    text = template.render(form.formed(talk))
    assert (
        "analysis<|message|>so<|end|>" in text
        and 'to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>' in text
    )
    both = [*talk[:1], {**talk[1], "content": "Wait."}, talk[2]]
    assert "Wait." in template.render(form.formed(both))
    with pytest.raises(TemplateError):
        template.render([*talk[:1], {**talk[1], "content": "Wait.", "thinking": "so"}, talk[2]])
