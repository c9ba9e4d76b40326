"""The model in the package is what `load()` without a path gives, and it tells a story."""
import oxillama
from oxillama import SamplerConfig


def test_the_embedded_model_tells_a_story_and_answers():
    with oxillama.load() as engine:
        story = engine.generate("Once upon a time", max_tokens=60, sampler=SamplerConfig.greedy())
        assert len(story.text.split()) > 25 and "\ufffd" not in story.text
        reply = engine.chat([{"role": "user", "content": "Hi!"}], max_tokens=60, sampler=SamplerConfig.greedy())
        assert reply.finish_reason == "stop" and reply.text.strip()
        streamed = engine.chat([{"role": "user", "content": "Hi!"}], max_tokens=60, sampler=SamplerConfig.greedy(), stream=True)
        assert "".join(piece.text for piece in streamed) == reply.text


def test_the_embedded_file_lies_in_the_package():
    assert oxillama.embedded_path().parent.name == "oxillama" and oxillama.embedded_path().stat().st_size < 8 << 20
