"""Streamed chats: whatever way a reply is split, its events joined are the finished completion."""

import asyncio
import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxillama
from oxillama.asynchronous import AsyncEngine
from oxillama.chat import Chat
from oxillama.tokenizer.stream import TextStream
from oxillama.toolcalls import FORMATS, THINK, ChatEventBuilder, ReplyParser, ToolCallGrammar

TOOLS = [
    {
        "name": "add",
        "parameters": {
            "properties": {
                "a": {"type": "array", "items": {"type": "integer"}},
                "s": {"type": "string", "maxLength": 20},
            }
        },
    },
    {"name": "now"},
]
BLOCKS = sorted(set(FORMATS) - {"harmony"})  # the others: calls in text
GRAMMARS = {name: ToolCallGrammar(name, TOOLS) for name in BLOCKS}
MARKS = sorted({mark for each in FORMATS.values() for mark in each.marks} | {"<think>", "</think>"})
WORDS = st.sampled_from(
    [
        *MARKS,
        " ",
        "\n",
        "é",
        "日本",
        "🙂",
        "{",
        '"name"',
        "[now(",
        "a\r\n",
        "<",
        "tool_call>",
        "x" * 9,
    ]
)
PROSE = st.lists(WORDS, max_size=6).map("".join)


def a_call(format: str, random: Random) -> str:
    """A text of the format's grammar, at random but short."""
    state, text = GRAMMARS[format].state(), b""
    letters = [bytes([byte]) for byte in b'"}])><,:01 a']
    while not state.only_end():
        piece = state.forced()
        if not piece:
            if state.is_complete() and random.random() < 0.6:
                break
            allowed = [each for each in letters if state.allows_token(each)] or [
                each for each in map(bytes, zip(range(256))) if state.allows_token(each)
            ]
            piece = random.choice((allowed[0], allowed[-1]) if len(text) > 300 else allowed)
        state.advance(piece)
        text += piece
    return text.decode()


def told(parser: ReplyParser, pieces):
    parts, out = ChatEventBuilder(), []
    for piece in pieces:
        out += parts.take(parser.feed(piece))
    return out + parts.take(parser.finish()) + parts.finish()


def cut(data: bytes, random: Random) -> list[str]:
    """The text as a stream gives it out when its bytes come in pieces cut anywhere."""
    places = sorted(
        {0, len(data), *(random.randrange(len(data) + 1) for _ in range(random.randrange(12)))}
    )
    stream = TextStream(lambda token: data[places[token] : places[token + 1]])
    return [stream.feed(at) for at in range(len(places) - 1)] + [stream.flush()]


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(BLOCKS), PROSE, PROSE, PROSE, st.booleans(), st.integers(0, 1 << 32).map(Random)
)
def test_events_joined_are_the_reply_however_its_bytes_are_cut(
    format, thought, before, after, opened, random
):
    text = (
        ("" if opened else "<think>")
        + thought
        + "</think>"
        + before
        + a_call(format, random)
        + after
    )

    def parser():
        return ReplyParser(format, reasoning=THINK, reasoning_opened=opened, names=["add", "now"])

    whole = parser()
    whole.feed(text)
    whole.finish()
    reply, events = whole.reply, told(parser(), cut(text.encode(), random))
    assert (
        "".join(each.text for each in events) == reply.content
        and "".join(each.reasoning for each in events) == reply.reasoning
    )
    assert [each.call for each in events if each.call] == list(
        reply.tool_calls
    ) and reply.raw == text
    assert [each.malformed.text for each in events if each.malformed] == [
        each.text for each in reply.malformed
    ]
    for number, end in enumerate(each for each in events if each.kind == "call_end"):
        mine = [each for each in events if each.index == end.index]
        assert [each.kind for each in mine if each.kind != "arguments"] == ["call", "call_end"]
        assert (
            "".join(each.arguments for each in mine)
            == end.call.arguments_text
            == reply.tool_calls[number].arguments_text
        )
        assert (
            json.loads(end.call.arguments_text) == end.call.arguments
            and mine[0].name == end.call.name
            and mine[0].id == end.call.id
        )


@pytest.mark.parametrize("format", BLOCKS)
def test_a_call_of_a_grammar_is_read_whole_from_its_events(format):
    for seed in range(20):
        text = a_call(format, Random(seed))
        events = told(ReplyParser(format, names=["add", "now"]), text)
        assert not any(each.malformed or each.text for each in events) and any(
            each.call for each in events
        )


def test_spaces_around_regions_and_calls_are_held_back_and_others_are_not():
    def kinds(text):
        return [
            (each.text or each.reasoning)
            for each in told(ReplyParser("qwen", reasoning=THINK), text)
            if each.text or each.reasoning
        ]

    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert "".join(kinds("<think>\na\n\nb\n</think>\n\n c \n")) == "a\n\nbc \n"
    assert (
        "".join(kinds(" a " + call + "\n")) == " a" and "".join(kinds("\n" + call + " b\n")) == "b"
    )
    assert kinds(" \n") == [" \n"] and kinds(" \n" + call) == []


def test_control_characters_in_strings_are_escaped_in_pieces():
    text = '<tool_call>{"name": "add", "arguments": {"s": "a\nb\té",\n "a": []}}</tool_call>'
    events = told(ReplyParser("qwen"), text)
    written = "".join(each.arguments for each in events)
    assert (
        json.loads(written) == {"s": "a\nb\té", "a": []}
        and written == events[-1].call.arguments_text
    )


TALK = [{"role": "user", "content": "Once upon a time"}]
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ '' if true else '<tool_call> </think>' }}"
)
CHATS = [
    dict(tools=TOOLS, tool_choice="required"),
    dict(tools=TOOLS, tool_choice="now", tool_format="pythonic"),
    dict(tools=TOOLS),
    dict(stop=["girl"]),
    dict(response_format={"type": "json_object"}),
]


@pytest.fixture(scope="module")
def engine(cases):
    with oxillama.load(cases / "stories260K" / "stories260K-f32.gguf") as loaded:
        loaded._loaded._chat = Chat(
            {"tokenizer.chat_template": TEMPLATE}, loaded._loaded.required_vocabulary
        )
        yield loaded


@pytest.mark.parametrize("options", CHATS, ids=["required", "named", "auto", "stop", "json"])
def test_a_streamed_chat_joined_is_the_finished_one(engine, options):
    options = {
        **options,
        "sampler": oxillama.SamplerConfig.greedy(),
        "max_tokens": 120,
        "logprobs": 1,
    }
    done = engine.chat(TALK, **options)
    events = list(engine.chat(TALK, stream=True, **options))
    check(events, done)

    async def ask():
        return [
            event async for event in await AsyncEngine(engine).chat(TALK, stream=True, **options)
        ]

    check(asyncio.run(ask()), done)
    assert list(engine.submit_chat(TALK, **options))[-1].completion.text == done.text


def check(events, done):
    assert [each.kind for each in events].index("end") == len(events) - 1 and events[
        -1
    ].finish_reason == done.finish_reason
    assert (
        "".join(each.text for each in events) == done.content
        and "".join(each.reasoning for each in events) == done.reasoning
    )
    assert (
        tuple(each.call for each in events if each.call)
        == done.tool_calls
        == events[-1].completion.tool_calls
    )
    assert tuple(token for each in events for token in each.tokens) == done.tokens
    assert tuple(each for event in events for each in event.logprobs) == done.logprobs
