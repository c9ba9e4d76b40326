"""Images in every dialect: what an encoder sees of them is the same, and without one they are
refused.
"""

import base64

import pytest

from tests.server.conftest import MODEL, asking
from tests.vision.images import VISION, png

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
DATA = base64.b64encode(png("sq112")).decode() if VISION.is_dir() else ""
URL = f"data:image/png;base64,{DATA}"


@pytest.fixture(scope="module")
def seeing(cases):
    path = VISION / "qwen2vl"
    engine = {"mmproj": str(path / "mmproj-f32.gguf"), "kv_type": "f32"}
    options = dict(alias="see", chat_template=TEMPLATE, engine=engine)
    with asking(model=str(path / "text-f32.gguf"), **options) as server:
        yield server


def openai(*parts, **more):
    content = [
        {"type": "image_url", "image_url": {"url": URL}}
        if part is None
        else {"type": "text", "text": part}
        for part in parts
    ]
    return {
        "model": "see",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 4,
        "temperature": 0,
        **more,
    }


def test_dialects_show_the_same_image(seeing):
    done = seeing.ok("/v1/chat/completions", openai(None, "what?"))
    wanted, tokens = done["choices"][0]["message"]["content"], done["usage"]["prompt_tokens"]
    assert tokens > 16
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    block = [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]
    body = {"model": "see", "max_tokens": 4, "temperature": 0}
    done = seeing.ok("/v1/messages", {**body, "messages": [{"role": "user", "content": block}]})
    assert "".join(each["text"] for each in done["content"]) == wanted
    assert done["usage"]["input_tokens"] + done["usage"].get("cache_read_input_tokens", 0) >= tokens
    options = {"num_predict": 4, "temperature": 0}
    asked = {"model": "see", "stream": False, "options": options}
    message = {"role": "user", "content": "what?", "images": [DATA]}
    done = seeing.ok("/api/chat", {**asked, "messages": [message]})
    assert done["message"]["content"] == wanted and done["prompt_eval_count"] == tokens
    done = seeing.ok("/api/generate", {**asked, "prompt": "what?", "images": [DATA]})
    assert done["response"] == wanted
    parts = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "what?"}]
    body = {"model": "see", "max_output_tokens": 16, "temperature": 0}
    done = seeing.ok("/v1/responses", {**body, "input": [{"role": "user", "content": parts}]})
    assert done["usage"]["input_tokens"] == tokens


def test_the_result_of_a_tool_may_hold_an_image(seeing):
    """As Claude Code's tool that reads files gives them."""
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    content = [{"type": "text", "text": "Error: dark"}, {"type": "image_url", "image_url": URL}]
    ask = {"model": "see", "max_tokens": 4, "temperature": 0}
    talk = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": content},
    ]
    done = seeing.ok("/v1/chat/completions", {**ask, "messages": talk})
    wanted, tokens = done["choices"][0]["message"]["content"], done["usage"]["prompt_tokens"]
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    image = {"type": "image", "source": source}
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "is_error": True}
    result["content"] = [{"type": "text", "text": "dark"}, image]
    talk = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    done = seeing.ok("/v1/messages", {**ask, "messages": talk})
    assert "".join(each["text"] for each in done["content"]) == wanted
    count = seeing.ok("/v1/messages/count_tokens", {"model": "see", "messages": talk})
    assert count["input_tokens"] == tokens > 16
    source["data"] = "AAAA"
    message = seeing.refused("/v1/messages", {**ask, "messages": talk})["message"]
    assert message.startswith("messages[2].content[0].content[1]: found 3 bytes")


def test_a_conversation_finds_its_image_again(seeing):
    first = openai(None, "what is in this image?", session="with-image")
    done = seeing.ok("/v1/chat/completions", first)
    said = done["choices"][0]["message"]["content"]
    more = [{"role": "assistant", "content": said}, {"role": "user", "content": "and now?"}]
    second = {**first, "messages": [*first["messages"], *more]}
    kept = seeing.ok("/v1/chat/completions", second)
    del second["session"]
    fresh = seeing.ok("/v1/chat/completions", {**second, "cache_prompt": False})
    assert kept["choices"][0]["message"]["content"] == fresh["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "url, said",
    (
        ("https://example.com/a.png", "which is not fetched"),
        ("/etc/hostname", "wanted a data URL"),
        ("data:image/png;base64,AAAA", "found 3 bytes"),
        ("data:image/png;base64,@@", "not base64"),
    ),
)
def test_bad_images_are_the_clients_mistake(seeing, url, said):
    body = openai("what?")
    body["messages"][0]["content"].append({"type": "image_url", "image_url": url})
    error = seeing.refused("/v1/chat/completions", body)
    assert error["param"] == "messages[0].content[1]" and said in error["message"]


def test_a_model_without_an_encoder_sees_no_images():
    with asking() as blind:
        error = blind.refused("/v1/chat/completions", openai(None, "what?", model=MODEL))
        assert error["code"] == "images_not_supported"
        assert error["param"] == "messages[0].content[0]"
