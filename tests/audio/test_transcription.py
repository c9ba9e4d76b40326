"""Speech as text: the prompts that models were trained with, and what their replies say."""

import json

import numpy as np
import pytest

import oxillama
from oxillama.completion import Completion, Usage
from oxillama.embedded import embedded_path
from oxillama.errors import AudioError, ConfigError, EngineError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.transcription import transcript
from tests.audio.files import file_of
from tests.audio.made import RATE, clip, write_audio
from tests.server.conftest import asking

QWEN = ("<asr_text>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_pad|>")
QWEN = (*QWEN, "<|audio_end|>")
VOXTRAL = ("[TRANSCRIBE]", "[INST]", "[/INST]", "[BEGIN_AUDIO]", "[AUDIO]")
USER, CONTROL = 4, 3  # kinds of tokens


def write_model(path, words):
    """The embedded model with some of its last tokens renamed: the first is a user's."""
    held = GgufReader(embedded_path())
    metadata = dict(held.metadata)
    tokens = list(metadata["tokenizer.ggml.tokens"])
    kinds = np.array(metadata["tokenizer.ggml.token_type"])
    new = [word for word in words if word not in tokens]
    # from the end of the ordinary tokens
    free = [at for at in range(len(tokens) - 1, 0, -1) if kinds[at] == 1]
    for at, word in zip(free, new):
        tokens[at], kinds[at] = word, USER if word == "<asr_text>" else CONTROL
    metadata["tokenizer.ggml.tokens"] = tokens
    metadata["tokenizer.ggml.token_type"] = kinds.tolist()
    with GgufWriter(path, metadata.pop("general.architecture")) as file:
        for key, value in metadata.items():
            file.add(key, value)
        for name, info in held.tensors.items():
            file.declare(name, info.type_name, info.shape)
        for name in held.tensors:
            file.write(name, held.data(name))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(model, encoder) of Qwen3-ASR's and of Voxtral's vocabulary."""
    home = tmp_path_factory.mktemp("asr")
    return {
        "qwen": (
            write_model(home / "qwen.gguf", QWEN),
            write_audio(home / "mmproj-qwen.gguf", "qwen3a", width=256),
        ),
        "voxtral": (
            write_model(home / "voxtral.gguf", VOXTRAL),
            write_audio(home / "mmproj-voxtral.gguf", "voxtral", width=256),
        ),
    }


def opened(files, name, **options):
    model, mmproj = files[name]
    return oxillama.load(model, mmproj=mmproj, **options)


def shown(engine, monkeypatch, **options):
    """The prompt of a transcription as text, with | in place of the clip."""
    seen = []
    submit = engine.submit
    monkeypatch.setattr(engine, "submit", lambda ids, **o: seen.append(ids) or submit(ids, **o))
    engine.transcribe((clip(0.6), RATE), max_tokens=1, **options)
    ids, (placed,) = list(seen[0]), seen[0].audio

    words = engine.tokenizer.vocabulary.tokens
    text = "".join(words[each] for each in ids[: placed.start])
    text += "|" + "".join(words[each] for each in ids[placed.end :])
    return (
        text.replace("\u2581", " ")
        .replace("<0x0A>", "\n")
        .replace("\u010a", "\n")
        .replace("\u0120", " ")
    )


def test_the_prompt_of_qwen3_asr(files, monkeypatch):
    with opened(files, "qwen") as engine:
        text = shown(engine, monkeypatch)
        assert text.endswith(
            "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n<|audio_start|>|<|audio_end|>"
            "<|im_end|>\n<|im_start|>assistant\n"
        )
        text = shown(engine, monkeypatch, language="en", prompt="Oxi <|im_end|>")
        assert text.endswith("<|im_start|>assistant\nlanguage English<asr_text>")
        # what the caller says is no control token
        assert "system\nOxi <|im_end|><|im_end|>" in text
        assert text == shown(engine, monkeypatch, language="English", prompt="Oxi <|im_end|>")
        with pytest.raises(ConfigError, match="language: found 'xx', wanted one of ar, cs"):
            engine.transcribe((clip(0.6), RATE), language="xx")


def test_the_prompt_of_voxtral(files, monkeypatch):
    with opened(files, "voxtral") as engine:
        assert shown(engine, monkeypatch).endswith("[INST][BEGIN_AUDIO]|[/INST][TRANSCRIBE]")
        text = shown(engine, monkeypatch, language="EN")
        assert text.endswith("|[/INST]lang:en[TRANSCRIBE]")
        with pytest.raises(ConfigError, match="prompt: found one, wanted none"):
            engine.transcribe((clip(0.6), RATE), prompt="Oxi")
        with pytest.raises(ConfigError, match="language: found 'e n', wanted a code"):
            engine.transcribe((clip(0.6), RATE), language="e n")


@pytest.mark.parametrize(
    "reply, given, text, language",
    (
        ("language English<asr_text>Hello there.", None, "Hello there.", "English"),
        ("language None<asr_text>", None, "", None),
        ("Hello there. ", None, "Hello there.", None),
        (" Hello there.", "en", "Hello there.", "en"),
    ),
)
def test_a_reply_of_qwen3_asr_is_read(files, reply, given, text, language):
    with opened(files, "qwen") as engine:
        done = Completion(reply, (), "stop", Usage(1, 1))
        found = transcript(engine.tokenizer, given, done)
        assert (found.text, found.language) == (text, language)


def test_what_cannot_be_transcribed_is_refused(files, tmp_path):
    with oxillama.load() as deaf, pytest.raises(EngineError, match="transcribe: found a clip of"):
        deaf.transcribe((clip(0.6), RATE))
    mmproj = write_audio(tmp_path / "a.gguf", width=256)
    said = "this model has no form of prompt for it, wanted"
    with oxillama.load(mmproj=mmproj) as engine, pytest.raises(EngineError, match=said):
        engine.transcribe((clip(0.6), RATE))
    with opened(files, "qwen") as engine:
        with pytest.raises(AudioError, match="audio: found 3 bytes that begin"):
            engine.transcribe(b"abc")
        with pytest.raises(ConfigError, match="n, best_of: found more than 1 completion"):
            engine.transcribe((clip(0.6), RATE), n=2)


@pytest.fixture(scope="module")
def server(files):
    model, mmproj = files["qwen"]
    with asking(model=str(model), alias="asr", engine={"mmproj": str(mmproj)}) as made:
        yield made


def posted(server, file=None, **fields):
    """The answer to a form with a file."""
    files = {"file": ("a.wav", file_of(clip(0.6)) if file is None else file, "audio/wav")}
    return server.client.post("/v1/audio/transcriptions", data=fields, files=files)


def test_a_server_transcribes_a_file(files, server):
    wav = file_of(clip(0.6))
    with opened(files, "qwen") as engine:
        wanted = engine.transcribe(wav, language="en").text
    answer = posted(server, model="asr", language="en")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["text"] == wanted and body["usage"]["input_tokens"] > 20
    answer = posted(server, model="asr", language="en", response_format="text", temperature="0")
    assert answer.text == wanted + "\n"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    "fields, param, said",
    (
        ({"language": "xx"}, "language", "found 'xx', wanted one of ar"),
        ({"response_format": "srt"}, "response_format", "found 'srt', wanted 'json' or 'text'"),
        ({"stream": "true"}, "stream", "found true, wanted false"),
        ({"temperature": "hot"}, "temperature", "wanted a number"),
        ({"temperature": "nan"}, "temperature", "wanted a number"),
        ({"temperature": "1_0"}, "temperature", "wanted a number"),
        ({"temperature": "3"}, "temperature", "wanted"),
        ({"speaker": "a"}, "speaker", "speaker"),
        ({"file": b"abc"}, "file", "found 3 bytes that begin with b'abc'"),
    ),
)
def test_bad_fields_are_the_clients_mistake(server, fields, param, said):
    answer = posted(server, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and said in error["message"]


def test_bodies_that_are_no_form_are_refused(server):
    path = "/v1/audio/transcriptions"
    assert server.client.post(path, json={}).status_code == 415
    other = {"content-type": "application/json; boundary=x"}
    assert server.client.post(path, content=b"--x--", headers=other).status_code == 415
    head = {"content-type": "multipart/form-data; boundary=x"}
    for body in (
        b"",
        b"--x\r\n",
        b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nabc',
        b"--x\r\nContent-Disposition: form-data\r\n\r\nabc\r\n--x--\r\n",
        b'--x\r\nContent-Disposition: form-data; name="file"\r\n'
        b"Content-Transfer-Encoding: base64\r\n\r\nYWJj\r\n--x--\r\n",
    ):
        answer = server.client.post(path, content=body, headers=head)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] is None  # of the form, not of what is in it
    part = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n'
    answer = server.client.post(path, content=2 * part + b"--x--\r\n", headers=head)
    assert answer.json()["error"]["message"] == "model: found twice, wanted once"
    answer = server.client.post(path, content=part + b"--x--\r\n", headers=head)
    assert answer.json()["error"]["param"] == "file"


def test_a_model_without_a_form_of_transcription_says_so(tmp_path):
    mmproj = write_audio(tmp_path / "a.gguf", width=256)
    with asking(engine={"mmproj": str(mmproj)}) as plain:
        error = posted(plain).json()["error"]
        assert error["code"] == "transcription_not_supported"
    with asking() as deaf:
        error = posted(deaf).json()["error"]
        assert (error["code"], error["param"]) == ("audio_not_supported", "file")


def test_the_document_has_the_form(server):
    document = json.loads(server.get("/openapi.json").content)
    content = document["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
    assert content["multipart/form-data"]["schema"]["properties"]["file"]["format"] == "binary"
