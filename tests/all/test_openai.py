"""The `openai` client as its users call it."""

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel

MODEL = "oxillama-embedded"
HI = [{"role": "user", "content": "Tell me a story"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": PARAMETERS, "strict": True},
}
FLAT = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}


class Person(BaseModel):
    likes_tea: bool
    number: int


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_chat_streamed_and_not(client):
    whole = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=12, seed=3)
    text, usage = "", None
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=HI,
        max_tokens=12,
        seed=3,
        stream=True,
        stream_options={"include_usage": True},
    ):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert usage.completion_tokens == whole.usage.completion_tokens == 12


def test_chat_without_blocking(url):
    async def main():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            ask = dict(model=MODEL, messages=HI, max_tokens=8)
            many = await asyncio.gather(
                *(client.chat.completions.create(**ask, seed=seed) for seed in range(8))
            )
            alone = [await client.chat.completions.create(**ask, seed=seed) for seed in range(8)]
            assert [each.choices[0] for each in many] == [each.choices[0] for each in alone]
            text = ""
            async for chunk in await client.chat.completions.create(**ask, seed=0, stream=True):
                text += chunk.choices[0].delta.content or ""
            assert text == alone[0].choices[0].message.content

    asyncio.run(main())


def test_the_stream_helper(client):
    with client.chat.completions.stream(model=MODEL, messages=HI, max_tokens=200, seed=3) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content


def test_a_loop_of_tools(client):
    messages, called = list(HI), []
    for choice in ("required", "none"):
        made = client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=[TOOL],
            tool_choice=choice,
            max_tokens=400,
            seed=1,
            parallel_tool_calls=False,
        ).choices[0]
        messages.append(made.message)
        for call in made.message.tool_calls or ():
            called.append(json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    assert len(called) == 1 and called[0]["city"] in ("Paris", "Rome")
    assert made.finish_reason == "stop" and made.message.content


def test_structured_outputs(client):
    made = client.chat.completions.parse(
        model=MODEL, messages=HI, response_format=Person, max_tokens=300, seed=2
    )
    assert isinstance(made.choices[0].message.parsed, Person)
    made = client.responses.parse(
        model=MODEL, input="Hi", text_format=Person, max_output_tokens=300
    )
    assert isinstance(made.output_parsed, Person)


def test_embeddings(client):
    plain = client.embeddings.create(model=MODEL, input=["a", "b c d"], encoding_format="float")
    coded = client.embeddings.create(model=MODEL, input=["a", "b c d"])
    assert [each.embedding for each in plain.data] == [each.embedding for each in coded.data]
    small = client.embeddings.create(model=MODEL, input="a", dimensions=4)
    assert len(small.data[0].embedding) == 4


def test_completions(client):
    made = client.completions.create(
        model=MODEL, prompt=["Once", "A dog"], n=2, max_tokens=4, logprobs=2
    )
    assert [each.index for each in made.choices] == [0, 1, 2, 3]
    assert all(len(each.logprobs.tokens) == 4 for each in made.choices)


def test_responses(client):
    first = client.responses.create(model=MODEL, input="Hello", max_output_tokens=60)
    assert first.output_text
    second = client.responses.create(
        model=MODEL, input="More", previous_response_id=first.id, max_output_tokens=60
    )
    assert second.usage.input_tokens > first.usage.input_tokens
    with client.responses.stream(model=MODEL, input="Hello", max_output_tokens=400) as stream:
        numbers = [event.sequence_number for event in stream]
        final = stream.get_final_response()
    assert numbers == list(range(len(numbers))) and final.output_text
    with client.responses.stream(
        model=MODEL,
        input="Hi",
        tools=[FLAT],
        tool_choice="required",
        max_output_tokens=600,
        parallel_tool_calls=False,
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert json.loads(final.output[0].arguments)["city"] in ("Paris", "Rome")
    assert client.responses.retrieve(final.id).id == final.id
    client.responses.delete(final.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(final.id)


def test_errors_are_typed(client):
    ask = dict(messages=HI, max_tokens=2)
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", **ask)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, temperature=-1, **ask)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x " * 9000}]
        )
    assert caught.value.code == "context_length_exceeded"
