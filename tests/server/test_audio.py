"""Audio over HTTP: both forms of a clip are heard alike, and without an encoder it is refused."""

import base64

import pytest

from oxillama.embedded import embedded_path
from oxillama.server.about import of_file
from oxillama.server.settings import ServerConfig
from tests.audio.files import file_of
from tests.audio.made import clip, write_audio
from tests.server.conftest import MODEL, asking
from tests.vision.made import write_mmproj

DATA = base64.b64encode(file_of(clip(0.8))).decode()
OPENAI = {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}
VLLM = {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{DATA}"}}


@pytest.fixture(scope="module")
def hearing(tmp_path_factory):
    mmproj = write_audio(tmp_path_factory.mktemp("audio") / "mmproj.gguf", width=256)
    engine = {"mmproj": str(mmproj), "kv_type": "f32", "max_audio_seconds": 3}
    with asking(alias="hear", engine=engine) as server:
        yield server


def body(*parts, model="hear"):
    content = [{"type": "text", "text": each} if isinstance(each, str) else each for each in parts]
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 4,
        "temperature": 0,
    }


def test_both_forms_of_a_clip_are_heard_alike(hearing):
    one = hearing.ok("/v1/chat/completions", body(OPENAI, "what?"))
    other = hearing.ok("/v1/chat/completions", body(VLLM, "what?"))
    assert one["choices"][0]["message"] == other["choices"][0]["message"]
    assert one["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"] > 20
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] > 20
    plain = hearing.ok("/v1/chat/completions", body("what?"))
    assert one["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 20


def test_a_server_says_that_it_hears(hearing):
    assert hearing.get("/props").json()["modalities"] == {"vision": False, "audio": True}


@pytest.mark.parametrize(
    "part, said",
    (
        ({**OPENAI, "input_audio": {"data": DATA, "format": "mp3"}}, "found a file of WAV, wanted"),
        ({**OPENAI, "input_audio": {"data": "@@", "format": "wav"}}, "not base64"),
        ({**OPENAI, "input_audio": {"data": DATA[:800], "format": "wav"}}, "found a damaged WAV"),
        ({**VLLM, "audio_url": {"url": "https://example.com/a.wav"}}, "which is not fetched"),
        ({**VLLM, "audio_url": {"url": "/etc/hostname"}}, "wanted a data URL"),
        ({**VLLM, "audio_url": {"url": "data:image/png;base64,AAAA"}}, "wanted audio/..."),
    ),
)
def test_bad_audio_is_the_clients_mistake(hearing, part, said):
    error = hearing.refused("/v1/chat/completions", body("what?", part))
    assert error["param"] == "messages[0].content[1]" and said in error["message"]
    assert error["code"] == "invalid_audio"


def test_a_clip_that_is_too_long_is_refused(hearing):
    data = base64.b64encode(file_of(clip(3.2))).decode()
    part = {**OPENAI, "input_audio": {"data": data, "format": "wav"}}
    error = hearing.refused("/v1/chat/completions", body(part))
    assert "found 3.2 seconds, wanted at most 3" in error["message"]


def test_an_image_is_nothing_for_an_encoder_of_audio(hearing):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    error = hearing.refused("/v1/chat/completions", body(part))
    assert error["code"] == "images_not_supported"


def test_an_encoder_of_audio_is_no_sight(tmp_path):
    mmproj = write_audio(tmp_path / "mmproj.gguf", width=256)
    engine = {"mmproj": str(mmproj)}
    config = ServerConfig.of({"engine": engine, "chat_template": "chatml"})
    assert not of_file(embedded_path(), config).sees
    write_mmproj(mmproj, width=256)
    assert of_file(embedded_path(), config).sees


def test_a_model_without_an_encoder_hears_no_audio():
    with asking() as deaf:
        for part in (OPENAI, VLLM):
            error = deaf.refused("/v1/chat/completions", body("what?", part, model=MODEL))
            assert error["code"] == "audio_not_supported"
            assert error["param"] == "messages[0].content[1]"
        assert deaf.get("/props").json()["modalities"] == {"vision": False, "audio": False}
        asked = {"model": MODEL, "messages": body(OPENAI)["messages"]}
        error = deaf.refused("/apply-template", asked)
        assert "found a clip of audio, wanted text alone" in error["message"]
