"""Plans of chats: which constraint and which reading follow from template, prompt, tools and
choice.
"""

import pytest

from oxillama.errors import ConfigError
from oxillama.grammar import Grammar
from oxillama.toolcalls import TriggeredGrammar, plan_chat

TOOLS = [
    {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"name": "now"},
]
QWEN = "{{ '<tool_call>' }} {{ '</think>' }}"
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
ADD = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


class Words:
    """A vocabulary with some control tokens, after 256 bytes."""

    def __init__(self, *control):
        self.control = {text: 256 + number for number, text in enumerate(control)}
        self.special_ids = frozenset(self.control.values())

    def token_to_id(self, text):
        return self.control.get(text)

    def token_bytes(self, token):
        return b"" if token in self.special_ids else bytes([token])


def test_a_required_call_is_held_to_its_grammar_after_reasoning():
    plan = plan_chat(QWEN, "", Words(), tools=TOOLS, tool_choice="required")
    assert (
        plan.constraint.matches(CALL)
        and plan.constraint.matches("<think>hm</think>\n" + ADD)
        and not plan.constraint.matches("no")
    )
    assert plan_chat(
        QWEN, "x<think>\n", Words(), tools=TOOLS, tool_choice="required"
    ).constraint.matches("hm</think>" + CALL + ADD)
    single = plan_chat(
        QWEN, "", Words(), tools=TOOLS, tool_choice="required", parallel_tool_calls=False
    )
    assert single.constraint.matches(CALL) and not single.constraint.matches(CALL + ADD)


@pytest.mark.parametrize("choice", ["add", {"type": "function", "function": {"name": "add"}}])
def test_a_named_tool_is_the_only_one(choice):
    plan = plan_chat(QWEN, "", Words(), tools=TOOLS, tool_choice=choice)
    assert plan.constraint.matches(ADD) and not plan.constraint.matches(CALL)


def test_automatic_choice_constrains_from_an_opening_on_and_none_does_not():
    plan = plan_chat(QWEN, "", Words(), tools=TOOLS)
    assert (
        isinstance(plan.constraint, TriggeredGrammar)
        and plan.read("a " + CALL).tool_calls[0].name == "now"
    )
    plan = plan_chat(QWEN, "", Words(), tools=TOOLS, tool_choice="none")
    assert plan.constraint is None and plan.read("<think>b</think>a " + CALL).content == "a " + CALL


def test_an_answers_own_constraint_begins_after_reasoning():
    plan = plan_chat(QWEN, "", Words(), constraint=Grammar.from_choices(["yes"]))
    assert (
        plan.constraint.matches("<think>no</think>\n\nyes")
        and plan.read("<think>no</think>\n\nyes").reasoning == "no"
    )


@pytest.mark.parametrize("prompt, again", [("", True), ("x<think>\n\n</think>\n\n", False)])
def test_what_is_held_to_a_form_does_not_reason_again_where_the_prompt_has_done_so(prompt, again):
    for options, text in (
        ({"constraint": Grammar.from_choices(["yes"])}, "yes"),
        ({"tools": TOOLS, "tool_choice": "required"}, CALL),
        ({"tools": TOOLS, "tool_choice": "now"}, CALL),
    ):
        plan = plan_chat(QWEN, prompt, Words(), **options)
        assert plan.constraint.matches(text)
        assert plan.constraint.matches("<think>hm</think>\n" + text) == again
    free = plan_chat(QWEN, prompt, Words(), tools=TOOLS)
    assert free.read("<think>hm</think>\n" + CALL).reasoning == "hm"


def test_a_model_that_reasons_from_the_first_token_has_no_opening():
    implied = plan_chat("{{ '<｜Assistant｜>' }}{{ '</think>' }}", "", Words())
    for plan, told in (
        (implied, ("hm", "yes")),
        (plan_chat(QWEN, "", Words()), ("", "hm</think>yes")),
    ):
        reply = plan.read("hm</think>yes")
        assert (reply.reasoning, reply.content) == told


def test_control_tokens_that_are_delimiters_are_shown_and_others_are_not():
    words = Words("[TOOL_CALLS]", "[ARGS]", "[OTHER]")
    plan = plan_chat("[TOOL_CALLS] [ARGS]", "", words, tools=TOOLS, tool_choice="required")
    assert plan.shown == {"[TOOL_CALLS]": 256, "[ARGS]": 257}
    assert plan.constraint.matches([256, b"now", 257, b"{}"]) and not plan.constraint.matches(
        ["[TOOL_CALLS]now[ARGS]{}"]
    )


def test_delimiters_that_hold_control_tokens_are_shown_by_their_tokens():
    gemma = "{{ '<|channel>thought' }}{{ '<channel|>' }}{{ '<|tool_call>call:' }}"
    marks = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')
    plan = plan_chat(gemma, "", Words(*marks), tools=TOOLS)
    assert plan.shown == {mark: 256 + number for number, mark in enumerate(marks)}
    state = plan.constraint.state()
    for data, token in (
        (b"", 256),
        (b"thought\n<|tool_call>call:no{", None),
        (b"", 257),
        (b"Yes.", None),
        (b"", 258),
        (b"call:add{a:1}", None),
    ):
        state.advance(data, token)
    assert state.inside
    assert not state.fork().try_advance(b"x")
    state.advance(b"", 259)
    assert not state.inside
    reply = plan.read("<|channel>thought\nhm\n<channel|>Yes.<|tool_call>call:add{a:1}<tool_call|>")
    assert (reply.reasoning, reply.content) == ("hm", "Yes.")
    assert [call.arguments for call in reply.tool_calls] == [{"a": 1}]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"tool_choice": "required"}, "without tools"),
        (
            {"tool_choice": "fly", "tools": TOOLS},
            "found 'fly', wanted one of auto, none, required, add, now",
        ),
        (
            {"tools": TOOLS, "constraint": Grammar.from_choices(["<tool_call>"])},
            "answers may begin with <tool_call>, as calls do",
        ),
    ],
)
def test_choices_that_cannot_be_honoured_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        plan_chat(QWEN, "", Words(), **options)


def test_a_template_that_teaches_no_format_needs_one():
    with pytest.raises(ConfigError, match="teaches none that is known"):
        plan_chat("plain", "", Words(), tools=TOOLS)
    assert (
        plan_chat("plain", "", Words(), tools=TOOLS, tool_format="hermes").format.name == "hermes"
    )
