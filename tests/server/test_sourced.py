"""The server over a decoder behind an encoder: texts answered, and what such a model refuses."""

import pytest

import oxillama
from tests.model.worded import worded
from tests.server.conftest import asking

TEXT = "a source of words"
COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return worded(tmp_path_factory.mktemp("t5"))


@pytest.fixture(scope="module")
def server(path):
    with asking(model=str(path)) as made:
        yield made


@pytest.fixture(scope="module")
def done(path):
    with oxillama.load(path) as engine:
        yield engine.generate(TEXT, max_tokens=8, temperature=0, logprobs=1)


def test_a_prompt_is_answered_by_every_interface(server, done):
    ask = {"prompt": TEXT, "max_tokens": 8, "temperature": 0}
    made = server.ok(COMPLETIONS, {**ask, "logprobs": 1})
    (choice,) = made["choices"]
    assert choice["text"] == done.text
    assert choice["logprobs"]["token_logprobs"] == [each.raw for each in done.logprobs]
    assert made["usage"]["prompt_tokens"] == done.usage.prompt_tokens
    assert server.ok(COMPLETIONS, {**ask, "echo": True})["choices"][0]["text"].endswith(done.text)
    assert (
        server.ok("/completion", {"prompt": TEXT, "n_predict": 8, "temperature": 0})["content"]
        == done.text
    )
    body = {"model": "t5", "prompt": TEXT, "stream": False}
    body["options"] = {"num_predict": 8, "temperature": 0}
    assert server.ok("/api/generate", body)["response"] == done.text


def test_a_session_has_one_source(server):
    ask = {"prompt": TEXT, "max_tokens": 2, "session": "s", "ignore_eos": True}
    server.ok(COMPLETIONS, ask)
    assert "wanted a new session" in server.refused(COMPLETIONS, ask)["message"]
    goes_on = {"max_tokens": 2, "session": "s", "ignore_eos": True}
    assert server.ok(COMPLETIONS, goes_on)["usage"]["completion_tokens"] == 2


def test_what_has_no_meaning_is_a_400_that_says_so(server):
    encoder = "found a model whose encoder reads the prompt"
    for path, body, message in (
        (COMPLETIONS, {"prompt": TEXT, "max_tokens": 0, "echo": True, "logprobs": 0}, encoder),
        ("/v1/embeddings", {"input": TEXT}, encoder),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "no chat temp"),
    ):
        assert message in server.refused(path, {"model": "t5", **body})["message"]
    body = {"model": "t5", "prompt": TEXT, "raw": True, "context": [4, 5]}
    answer = server.post("/api/generate", body)
    assert answer.status_code == 400 and "context" in answer.text
