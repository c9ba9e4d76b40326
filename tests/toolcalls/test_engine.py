"""Tools in the engine's own chat: a model that knows nothing of tools calls them as their schemas
say.
"""

import asyncio
from typing import Literal

import jsonschema
import pytest

import oxillama
from oxillama import SamplerConfig, ToolDispatcher, run_until_answer
from oxillama.chat import Chat

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ "
    "c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
)
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "who": {"enum": ["Tim", "Ann"]},
    },
    "required": ["n", "who"],
}
TOOLS = [
    {"type": "function", "function": {"name": "count", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop"}},
]
TALK = [{"role": "user", "content": "Once upon a time"}]
GREEDY = SamplerConfig.greedy()


@pytest.fixture(scope="module")
def engine(cases):
    with oxillama.load(cases / "stories260K" / "stories260K-f32.gguf") as loaded:
        loaded._loaded._chat = Chat(
            {"tokenizer.chat_template": TEMPLATE}, loaded._loaded.required_vocabulary
        )
        yield loaded


@pytest.mark.parametrize("format", ["qwen", "llama3", "mistral", "mistral-args", "pythonic"])
def test_a_required_call_follows_its_schema(engine, format):
    done = engine.chat(
        TALK,
        tools=TOOLS,
        tool_choice="count",
        tool_format=format,
        parallel_tool_calls=False,
        sampler=GREEDY,
        max_tokens=250,
    )
    (call,) = done.tool_calls
    jsonschema.validate(call.arguments, SCHEMA)
    assert (call.name, done.finish_reason, done.content, done.malformed_calls) == (
        "count",
        "tool_calls",
        "",
        (),
    )


def test_an_automatic_choice_leaves_text_as_it_is(engine):
    plain = engine.chat(TALK, sampler=GREEDY, max_tokens=20)
    free = engine.chat(TALK, tools=TOOLS, sampler=GREEDY, max_tokens=20)
    assert (
        free.text == plain.text == free.content
        and free.tokens == plain.tokens
        and not free.tool_calls
        and free.finish_reason == "length"
    )


def test_an_automatic_choice_constrains_what_follows_an_opening(engine):
    bias = dict.fromkeys(engine.tokenize("<", add_special=False)[-1:], 100.0)
    done = engine.chat(
        [{"role": "user", "content": "x"}],
        tools=TOOLS,
        tool_format="pythonic",
        sampler=GREEDY.replace(logit_bias=bias),
        max_tokens=5,
    )
    assert not done.malformed_calls
    with pytest.raises(oxillama.ConfigError, match="tool_choice"):
        engine.chat(TALK, tool_choice="required")


def test_submitted_and_awaited_chats_are_read_too(engine):
    options = dict(
        tools=TOOLS, tool_choice="stop", parallel_tool_calls=False, sampler=GREEDY, max_tokens=200
    )
    assert engine.submit_chat(TALK, **options).result().tool_calls[0].name == "stop"

    async def ask():
        return await engine.submit_chat(TALK, **options)

    assert asyncio.run(ask()).tool_calls[0].arguments == {}


def test_rounds_run_through_the_engine(engine):
    seen = []

    def count(n: Literal[1, 2], who: Literal["Tim", "Ann"]) -> str:
        seen.append((n, who))
        return f"{who} has {n}"

    dispatcher = ToolDispatcher({"count": count})

    def chat(messages, tools):
        choice = "required" if len(messages) == 1 else "none"
        return engine.chat(
            messages,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=False,
            sampler=GREEDY,
            max_tokens=100,
        )

    answer = run_until_answer(chat, TALK, None, dispatcher, max_rounds=3)
    assert (
        len(seen) == 1
        and answer.rounds == 2
        and answer.results[0].content == "{1} has {0}".format(*seen[0])
    )
