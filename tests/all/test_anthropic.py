"""The `anthropic` client as its users call it."""

import asyncio
from typing import Literal

import anthropic
import pytest

MODEL = "oxillama-embedded"
HI = [{"role": "user", "content": "Tell me a story"}]
TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as made:
        yield made


def test_messages_streamed_and_not(client):
    ask = dict(model=MODEL, messages=HI, max_tokens=12, system="Be kind.", extra_body={"seed": 3})
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 12


def test_messages_without_blocking(url):
    async def main():
        async with anthropic.AsyncAnthropic(base_url=url, api_key="none") as client:
            ask = dict(model=MODEL, messages=HI, max_tokens=8, extra_body={"seed": 3})
            one, other = await asyncio.gather(
                client.messages.create(**ask), client.messages.create(**ask)
            )
            assert one.content == other.content
            async with client.messages.stream(**ask) as stream:
                assert (await stream.get_final_message()).content[0].text == one.content[0].text

    asyncio.run(main())


def test_a_loop_of_tools(client):
    choice = {"type": "any", "disable_parallel_tool_use": True}
    ask = dict(model=MODEL, tools=[TOOL], max_tokens=500)
    with client.messages.stream(messages=HI, tool_choice=choice, **ask) as stream:
        first = stream.get_final_message()
    (use,) = first.content
    assert (first.stop_reason, use.type, use.input) == ("tool_use", "tool_use", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
    messages = [
        *HI,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(messages=messages, tool_choice={"type": "none"}, **ask)
    assert second.stop_reason == "end_turn" and second.content[0].text
    counted = client.messages.count_tokens(model=MODEL, messages=messages, tools=[TOOL])
    usage = second.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_runs_tools_over_a_thread(client, stream):
    asked = []

    @anthropic.beta_tool
    def weather(city: Literal["Paris"]) -> str:
        """The weather of a city."""
        asked.append(city)
        return "sunny"

    runner = client.beta.messages.tool_runner(
        model=MODEL,
        messages=HI,
        tools=[weather],
        max_tokens=500,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_iterations=3,
        stream=stream,
    )
    said = [each.get_final_message() if stream else each for each in runner]
    assert [each.stop_reason for each in said] == ["tool_use"] * 3
    assert asked == ["Paris"] * 3
    prompts = [each.usage.input_tokens + each.usage.cache_read_input_tokens for each in said]
    assert prompts == sorted(set(prompts))  # each has the turns before it


def test_errors_are_typed(client):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude", messages=HI, max_tokens=2)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(
            model=MODEL, messages=HI, max_tokens=2, extra_body={"temperature": -1}
        )
