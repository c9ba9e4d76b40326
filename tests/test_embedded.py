"""The model in the package is what `load()` without a path gives, and it tells a story."""

import json

import pytest

import oxillama
from oxillama import SamplerConfig


def test_the_embedded_model_tells_a_story_and_answers():
    with oxillama.load() as engine:
        story = engine.generate("Once upon a time", max_tokens=60, sampler=SamplerConfig.greedy())
        assert len(story.text.split()) > 25 and "\ufffd" not in story.text
        reply = engine.chat(
            [{"role": "user", "content": "Hi!"}], max_tokens=60, sampler=SamplerConfig.greedy()
        )
        assert reply.finish_reason == "stop" and reply.text.strip()
        streamed = engine.chat(
            [{"role": "user", "content": "Hi!"}],
            max_tokens=60,
            sampler=SamplerConfig.greedy(),
            stream=True,
        )
        assert "".join(piece.text for piece in streamed) == reply.text


def test_a_reply_can_be_json():
    age = {"type": "integer", "minimum": 1, "maximum": 9}
    schema = {
        "type": "object",
        "properties": {"age": age},
        "required": ["age"],
        "additionalProperties": False,
    }
    with oxillama.load() as engine:
        form = {"type": "json_schema", "json_schema": {"name": "age", "schema": schema}}
        done = engine.chat(
            [{"role": "user", "content": "How old are you?"}], response_format=form, max_tokens=30
        )
        assert done.finish_reason == "stop" and 1 <= json.loads(done.text)["age"] <= 9
        for bad in ({"type": "xml"}, {"type": "json_schema"}, "json"):
            with pytest.raises(oxillama.ConfigError, match="response_format"):
                engine.chat([{"role": "user", "content": "Hi"}], response_format=bad)


def test_the_embedded_file_lies_in_the_package():
    assert (
        oxillama.embedded_path().parent.name == "oxillama"
        and oxillama.embedded_path().stat().st_size < 8 << 20
    )
