"""langchain-openai and litellm, a chat each."""


def test_langchain(url):
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(
        model="oxillama-embedded", base_url=f"{url}/v1", api_key="none", max_tokens=12, seed=3
    )
    whole = chat.invoke("Tell me a story")
    assert whole.content and whole.usage_metadata["output_tokens"] == 12
    assert "".join(each.content for each in chat.stream("Tell me a story")) == whole.content


def test_litellm(url):
    import litellm

    made = litellm.completion(
        model="openai/oxillama-embedded",
        api_base=f"{url}/v1",
        api_key="none",
        messages=[{"role": "user", "content": "Tell me a story"}],
        max_tokens=12,
        seed=3,
    )
    assert made.choices[0].message.content
    assert made.usage.completion_tokens == 12
