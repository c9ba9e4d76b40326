"""Plans of chats are kept: what was asked before is at hand, what differs is made anew, and threads
may share it.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from oxillama.errors import ConfigError
from oxillama.grammar import Grammar, TokenMasker
from oxillama.toolcalls import ChatPlanner, TriggeredGrammar

TOOLS = [
    {
        "name": "add",
        "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
    {"name": "now"},
]
SWAPPED = [
    {
        "name": "add",
        "parameters": {"properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}},
    },
    {"name": "now"},
]
TEMPLATE = "<tool_call> </think>"


class Words:
    special_ids = frozenset()

    def token_to_id(self, text):
        return None


def test_what_was_asked_before_is_at_hand_with_its_masks():
    planner, masker = (
        ChatPlanner(TEMPLATE, Words()),
        TokenMasker([*map(bytes, zip(range(256))), b""], control_ids=[256], eog_ids=[256]),
    )
    for options in ({}, {"tool_choice": "required"}, {"constraint": Grammar.from_choices(["a"])}):
        first = planner.plan("", tools=TOOLS, **options)
        assert planner.plan("other", tools=[dict(tool) for tool in TOOLS], **options) is first
        state, again = (
            masker.state(first.constraint),
            masker.state(planner.plan("", tools=TOOLS, **options).constraint),
        )
        for each in (state, again):
            each.advance(b"<think>x</think>\n<tool_call>")
        assert state.mask() is again.mask()


def test_whatever_differs_makes_another_plan():
    planner, answers = (
        ChatPlanner(TEMPLATE, Words()),
        [Grammar.from_choices(["a"]) for _ in range(2)],
    )
    asked = [
        ("", {}),
        ("x<think>", {}),
        ("", {"tools": SWAPPED}),
        ("", {"tools": TOOLS[:1]}),
        ("", {"tool_choice": "required"}),
        ("", {"tool_choice": "add"}),
        ("", {"tool_choice": "none"}),
        ("", {"tool_format": "llama3"}),
        ("", {"parallel_tool_calls": False}),
        ("", {"constraint": answers[0]}),
        ("", {"constraint": answers[1]}),
    ]
    plans = [planner.plan(prompt, **{"tools": TOOLS, **options}) for prompt, options in asked]
    assert len(set(map(id, plans))) == len(asked)
    call = '<tool_call>{"name": "add", "arguments": {"b": 1, "a": 2}}</tool_call>'
    assert [
        planner.plan("", tools=each, tool_choice="required").constraint.matches(call)
        for each in (TOOLS, SWAPPED)
    ] == [False, True]


def test_only_the_last_plans_are_kept():
    planner = ChatPlanner(TEMPLATE, Words(), kept=2)
    first = planner.plan("", tools=TOOLS)
    for choice in ("required", "add"):
        planner.plan("", tools=TOOLS, tool_choice=choice)
    assert planner.plan("", tools=TOOLS) is not first


def test_threads_share_plans():
    planner = ChatPlanner(TEMPLATE, Words())
    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(lambda _: planner.plan("", tools=TOOLS), range(64)))
    assert all(
        isinstance(plan.constraint, TriggeredGrammar)
        and plan.constraint.describe() == plans[0].constraint.describe()
        for plan in plans
    )
    assert planner.plan("", tools=TOOLS) in plans


def test_tools_that_are_no_json_are_refused():
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        ChatPlanner(TEMPLATE, Words()).plan(
            "", tools=[{"name": "f", "parameters": {"properties": {"a": {"enum": [{1}]}}}}]
        )


def test_vocabularies_that_share_a_grammar_have_masks_of_their_own(monkeypatch):
    """Also where another thread asks for the other one's mask in the middle of a mask."""
    letters = [*map(bytes, zip(range(256)))]
    one = TokenMasker([*letters, b"<tool_call>!"])
    other = TokenMasker([b"<tool_call>!", *letters])

    def mask(masker, grammar):
        found = masker.state(grammar).mask()
        return None if found is None else found.tolist()

    alone = [mask(masker, TriggeredGrammar("hermes", TOOLS)) for masker in (one, other)]
    assert alone[0] != alone[1]
    grammar, may_open, asked = TriggeredGrammar("hermes", TOOLS), TriggeredGrammar._may_open, []

    def between(self, data, state):
        if not asked:
            asked.append(other)
            assert mask(other, grammar) == alone[1]
        return may_open(self, data, state)

    monkeypatch.setattr(TriggeredGrammar, "_may_open", between)
    assert mask(one, grammar) == alone[0]
    assert asked
    assert mask(other, grammar) == alone[1]
    assert mask(one, grammar) == alone[0]
