"""The harmony notation: replies of messages on channels, held to one grammar and read without
loss.
"""

import json
from random import Random

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxillama.errors import ConfigError
from oxillama.grammar import Grammar, TokenMasker
from oxillama.toolcalls import (
    ChatEventBuilder,
    HarmonyReader,
    ReplyGrammar,
    ReplyParser,
    ToolCallDetector,
    TriggeredGrammar,
    plan_chat,
)
from oxillama.toolcalls.harmony import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START

TOOLS = [
    {
        "name": "add",
        "parameters": {
            "properties": {"a": {"type": "integer"}, "s": {"type": "string"}},
            "required": ["a"],
        },
    },
    {"name": "now"},
]
TEMPLATE = "<|channel|> <|message|> functions."
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}I é{END}{START}assistant"
PREAMBLE = f"{CHANNEL}commentary{MESSAGE}Wait.{END}{START}assistant"
FINAL = f"{CHANNEL}final{MESSAGE}"
CALLS = [
    f'{CHANNEL}commentary to=functions.add {CONSTRAIN}json{MESSAGE}{{"a": 1}}',
    f'{CHANNEL}commentary to=functions.add{MESSAGE}{{"a": 1}}',
    f' to=functions.add{CHANNEL}commentary json{MESSAGE}{{"a": 1}}',
]


class Words:
    special_ids = frozenset()

    def token_to_id(self, text):
        return None


class Tokens(Words):
    """A vocabulary of 256 bytes and the marks as control tokens after them."""

    marks = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
    special_ids = frozenset(range(256, 263))

    def token_to_id(self, text):
        return 256 + self.marks.index(text) if text in self.marks else None


def ids(text: str) -> list[int]:
    out, rest = [], text
    while rest:
        mark = next((mark for mark in Tokens.marks if rest.startswith(mark)), None)
        out += [Tokens().token_to_id(mark)] if mark else rest[0].encode()
        rest = rest[len(mark or rest[0]) :]
    return out


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("before", ["", ANALYSIS, ANALYSIS + PREAMBLE])
def test_a_reply_is_reasoning_then_one_call_or_an_answer(call, before):
    plan = plan_chat(TEMPLATE, "", Words(), tools=TOOLS)
    required = plan_chat(TEMPLATE, "", Words(), tools=TOOLS, tool_choice="required").constraint
    named = plan_chat(TEMPLATE, "", Words(), tools=TOOLS, tool_choice="now").constraint
    assert plan.constraint.matches(before + call) and plan.constraint.matches(
        before + FINAL + "any é"
    )
    assert (
        required.matches(before + call)
        and not required.matches(before + FINAL + "x")
        and not named.matches(before + call)
    )
    for wrong in (
        call.replace('"a": 1', '"a": "1"'),
        call.replace("add", "sub"),
        "text",
        f"{CHANNEL}other{MESSAGE}x",
    ):
        assert not plan.constraint.matches(before + wrong)
    reply = plan.read(before + call)
    assert [(each.name, each.arguments) for each in reply.tool_calls] == [("add", {"a": 1})]
    assert (
        reply.reasoning == ("I é" if before else "")
        and reply.content == ("Wait." if PREAMBLE in before else "")
        and not reply.malformed
    )
    assert plan.read(before + FINAL + " so").content.endswith("so")


def test_the_answers_channel_is_held_to_its_own_constraint_beside_calls():
    for tools in (TOOLS, None):
        plan = plan_chat(
            TEMPLATE, "", Words(), tools=tools, constraint=Grammar.from_choices(["yes"])
        )
        assert plan.constraint.matches(ANALYSIS + FINAL + "yes") and not plan.constraint.matches(
            ANALYSIS + FINAL + "no"
        )
        assert plan.constraint.matches(CALLS[0]) == (tools is not None)
    assert (
        plan_chat(TEMPLATE, "", Words()).constraint is None
        and plan_chat(TEMPLATE, "", Words()).read(FINAL + "a").content == "a"
    )


def test_marks_that_are_tokens_are_taken_as_tokens_and_shown():
    plan = plan_chat(TEMPLATE, "", Tokens(), tools=TOOLS)
    masker = TokenMasker(
        [*map(bytes, zip(range(256))), *[b""] * 8],
        control_ids=range(256, 264),
        eog_ids=[261, 262, 263],
    )
    for text in (ANALYSIS + CALLS[0], PREAMBLE + CALLS[2], FINAL + "x<|end|>".replace(END, "é")):
        state = masker.state(plan.constraint)
        for token in ids(text):
            assert state.mask()[token >> 5] >> (token & 31) & 1
            masker.advance(state, token)
        assert state.is_complete() and state.mask()[261 >> 5] >> (261 & 31) & 1
    assert plan.shown == {mark: 256 + at for at, mark in enumerate(Tokens.marks)}


WORDS = (
    "assistant",
    "analysis",
    "commentary",
    "final",
    " to=functions.now",
    " to=python",
    "{}",
    '{"a": [1, "',
    "é",
    " ",
)
MARKS = st.sampled_from([*Tokens.marks, *WORDS])
TEXTS = st.lists(MARKS | st.sampled_from([ANALYSIS, PREAMBLE, FINAL, *CALLS]), max_size=9).map(
    "".join
)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(0, 1 << 32).map(Random))
def test_joined_raw_texts_are_the_input_and_pieces_do_not_matter(text, random):
    def told(pieces):
        reader, parts, events, out = HarmonyReader(), ChatEventBuilder(), [], []
        for piece in [*pieces, None]:
            new = reader.finish() if piece is None else reader.feed(piece)
            events += new
            out += parts.take(new)
        assert "".join(event.raw for event in events) == text
        out += parts.finish()
        calls = [
            (each.kind, each.index, each.name, each.call, each.malformed and each.malformed.text)
            for each in out
            if each.call or each.malformed
        ]
        return "".join(each.text for each in out), "".join(each.reasoning for each in out), calls

    cuts = sorted({0, len(text), *(random.randrange(len(text) + 1) for _ in range(5))})
    assert told([text]) == told(list(text)) == told([text[a:b] for a, b in zip(cuts, cuts[1:])])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32).map(Random))
def test_random_calls_of_the_grammar_are_read_as_valid_calls(random):
    state, head = (
        ReplyGrammar(TOOLS).state(),
        random.choice([f" to=functions.add{CHANNEL}", f"{CHANNEL}commentary to="]),
    )
    text = (random.choice(["", ANALYSIS]) + head).encode()
    state.advance(text)
    while not state.only_end():
        piece = state.forced()
        if not piece:
            allowed = [
                bytes([byte]) for byte in b'"}a1,: s<jf' if state.allows_token(bytes([byte]))
            ]
            allowed = allowed or [
                byte for byte in map(bytes, zip(range(256))) if state.allows_token(byte)
            ]
            piece = allowed[0] if len(text) > 300 else random.choice(allowed)
        state.advance(piece)
        text += piece
    parser = ReplyParser("harmony")
    parser.feed(text.decode())
    parser.finish()
    (call,) = parser.reply.tool_calls
    schema = {
        "type": "object",
        **next(tool for tool in TOOLS if tool["name"] == call.name).get("parameters", {}),
    }
    jsonschema.validate(call.arguments, schema)
    assert (
        not parser.reply.malformed
        and not parser.reply.content
        and json.loads(call.arguments_text) == call.arguments
    )


@pytest.mark.parametrize(
    "text, reason",
    [
        (f"{CHANNEL}commentary to=python{MESSAGE}1+1{CALL}", "found a message to python"),
        (f"{CHANNEL}commentary to=functions.now{MESSAGE}1{CALL}", "found no '{'"),
        (f'{CHANNEL}commentary to=functions.now{MESSAGE}{{"a" 1}}{CALL}', "wanted ':'"),
        (f'{CHANNEL}commentary to=functions.now{MESSAGE}{{"a": ', "ends inside a call"),
    ],
)
def test_what_is_no_call_is_told_whole(text, reason):
    reply = plan_chat(TEMPLATE, "", Words(), tools=TOOLS).read(
        ANALYSIS + text + FINAL * text.endswith(CALL)
    )
    (ruin,) = reply.malformed
    assert (
        ruin.text == f"{START}assistant{text}"
        and reason in ruin.reason
        and reply.reasoning == "I é"
        and not reply.tool_calls
    )


def test_readers_for_calls_in_text_refuse_the_notation():
    for make in (ToolCallDetector, lambda format: TriggeredGrammar(format, TOOLS)):
        with pytest.raises(ConfigError, match="harmony"):
            make("harmony")
