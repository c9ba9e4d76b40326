"""Calls beside an answer's own constraint: a reply is one or the other, exactly, or the pair is
refused.
"""

import pytest

from oxillama.errors import ConfigError
from oxillama.grammar import Grammar, TokenMasker
from oxillama.toolcalls import plan_chat

TOOLS = [
    {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"name": "now"},
]
CALLS = {
    "qwen": '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    "llama3": '{"name": "add", "parameters": {"a": 1}}',
    "mistral": (
        '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "add", "arguments": {"a": 2}}]'
    ),
    "mistral-args": "[TOOL_CALLS]now[ARGS]{}",
    "pythonic": "[add(a=3)]",
}
TEMPLATE = "</think>"
SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}


class Words:
    special_ids = frozenset()

    def token_to_id(self, text):
        return None


def planned(format, answer, **options):
    return plan_chat(
        TEMPLATE, "", Words(), tools=TOOLS, tool_format=format, constraint=answer, **options
    )


@pytest.mark.parametrize("format", sorted(CALLS))
@pytest.mark.parametrize("region", ["", "<think>[hm]</think>\n"])
def test_a_reply_is_an_answer_or_calls_and_nothing_else(format, region):
    plan = planned(format, Grammar.from_json_schema(SCHEMA))
    answer, call = '{"x":"a"}', CALLS[format]
    assert plan.constraint.matches(region + answer) and plan.constraint.matches(region + call)
    for wrong in (
        "a",
        "{}",
        '{"x":1}',
        call + answer,
        answer + call,
        call.replace("add", "sub").replace("now", "sub"),
        call[:-1],
        "",
    ):
        assert not plan.constraint.matches(region + wrong)
    assert [plan.read(region + answer).content, *plan.read(region + answer).tool_calls] == [answer]
    assert plan.read(region + call).content == "" and len(
        plan.read(region + call).tool_calls
    ) == call.count("now") + call.count("add")


def test_what_stands_inside_an_answer_is_no_call():
    plan = planned("qwen", Grammar.from_json_schema(SCHEMA))
    text = '{"x":"<tool_call>{} é"}'
    assert (
        plan.constraint.matches(text)
        and plan.read(text).content == text
        and not plan.read(text).malformed
    )
    assert plan_chat(TEMPLATE, "", Words(), tools=TOOLS, tool_format="qwen").read(text).malformed


@pytest.mark.parametrize(
    "format, answer, told",
    [
        ("qwen", Grammar.from_regex(" *<tool.*"), "<tool_call>"),
        ("llama3", Grammar.from_json_schema({"type": "object"}), '{"name":"name","parameters":{'),
        (
            "llama3",
            Grammar.parse(r'root ::= "{ \"name\" :\n\"now\",\"parameters\": {" [a-z]*'),
            '{"name":"name","parameters":{',
        ),
        ("pythonic", Grammar.from_regex(r"\[[a-z]+\(zz=.*"), r"\[name\(key="),
        ("pythonic", Grammar.parse("root ::= [^x]*"), r"\[name\("),
    ],
)
def test_answers_that_begin_as_calls_do_are_refused_by_name(format, answer, told):
    with pytest.raises(
        ConfigError,
        match=f"format {format} and a constraint whose answers may begin with {told}",
    ):
        planned(format, answer)


@pytest.mark.parametrize(
    "format, answer",
    [
        (
            "llama3",
            Grammar.from_json_schema(
                {"type": "object", "properties": {"name": {"const": "sub"}}, "required": ["name"]}
            ),
        ),
        ("llama3", Grammar.from_json_schema(SCHEMA)),
        ("pythonic", Grammar.from_json_schema({"type": "array"})),
        ("pythonic", Grammar.from_regex(r"\[(sub|now)\(?[0-9]+.*")),
        ("qwen", Grammar.from_json_schema({"type": "object"})),
        ("qwen", Grammar.from_regex("<tool_cal[a-k]?>")),
    ],
)
def test_answers_that_differ_from_calls_at_their_beginning_are_not(format, answer):
    assert planned(format, answer).leading


def test_a_required_call_leaves_no_room_for_an_answer():
    plan = planned("qwen", Grammar.from_choices(["yes"]), tool_choice="required")
    assert plan.constraint.matches(CALLS["qwen"]) and not plan.constraint.matches("yes")


def test_an_opening_that_is_a_token_is_not_confused_with_its_text():
    class Tokens(Words):
        special_ids = frozenset({256})

        def token_to_id(self, text):
            return 256 if text == "[TOOL_CALLS]" else None

    plan = plan_chat(
        "",
        "",
        Tokens(),
        tools=TOOLS,
        tool_format="mistral-args",
        constraint=Grammar.from_regex(r"\[TOOL.*"),
    )
    masker = TokenMasker(
        [*map(bytes, zip(range(256))), b"", b""], control_ids=[256, 257], eog_ids=[257]
    )
    state = masker.state(plan.constraint)
    allowed = [token for token in range(258) if state.mask()[token >> 5] >> (token & 31) & 1]
    assert allowed == [ord("["), 256]
