"""The server over a model that fills in masks: every interface, streamed by blocks, and what such a
model refuses.
"""

import pytest

import oxillama
from oxillama import DiffusionConfig
from tests.model.worded import worded
from tests.server.conftest import asking

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
HOW = DiffusionConfig(block_length=5, order="entropy")
TEXT, MESSAGES = "a text of words", [{"role": "user", "content": "a text of words"}]
OPTIONS = {"max_tokens": 12, "seed": 4, "temperature": 0.6, "ignore_eos": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return worded(tmp_path_factory.mktemp("llada"), "llada", template=TEMPLATE)


@pytest.fixture(scope="module")
def server(path):
    with asking(model=str(path), engine={"diffusion": HOW}) as made:
        yield made


@pytest.fixture(scope="module")
def engine(path):
    with oxillama.load(path, diffusion=HOW) as made:
        yield made


def test_a_text_goes_on_in_every_interface(server, engine):
    done = engine.generate(TEXT, logprobs=1, **OPTIONS)
    made = server.ok(COMPLETIONS, {"prompt": TEXT, "logprobs": 1, **OPTIONS})
    (choice,) = made["choices"]
    assert (choice["text"], choice["finish_reason"]) == (done.text, "length")
    assert choice["logprobs"]["token_logprobs"] == [each.raw for each in done.logprobs]
    assert made["usage"]["completion_tokens"] == 12
    body = {
        "prompt": TEXT,
        "n_predict": 12,
        **{k: OPTIONS[k] for k in OPTIONS if k != "max_tokens"},
    }
    assert server.ok("/completion", body)["content"] == done.text


def test_a_chat_is_answered_and_streamed(server, engine):
    done = engine.chat(MESSAGES, **OPTIONS)
    body = {"messages": MESSAGES, **OPTIONS}
    made = server.ok(CHAT, body)["choices"][0]["message"]["content"]
    assert made == done.content
    *events, end = server.chunks(CHAT, body)
    parts = [each["choices"][0]["delta"].get("content") or "" for each in events]
    assert end == "[DONE]"
    assert "".join(parts) == done.content and len([each for each in parts if each]) > 1


def test_a_request_says_how_masks_are_filled_in(server, engine):
    how = {"order": "random", "eps": 0.01, "steps": 4}
    done = engine.generate(TEXT, diffusion=DiffusionConfig(**how), **OPTIONS)
    body = {"prompt": TEXT, "diffusion": how, **OPTIONS}
    assert server.ok(COMPLETIONS, body)["choices"][0]["text"] == done.text
    for wrong, message in (
        ({"eps": 0.1, "block_length": 4}, "eps: found 0.1 and block_length 4"),
        ({"order": "best"}, "diffusion.order"),
        ({"stepz": 4}, "diffusion.stepz"),
    ):
        error = server.refused(COMPLETIONS, {"prompt": TEXT, "diffusion": wrong})
        assert message in error["message"] and error["param"].startswith("diffusion")


def test_what_has_no_meaning_is_a_400_that_says_so(server):
    for path, body, message in (
        (COMPLETIONS, {"prompt": TEXT, "echo": True, "logprobs": 0}, "fills in masks"),
        (COMPLETIONS, {"prompt": TEXT, "presence_penalty": 0.5}, "presence_penalty: found 0.5"),
        (COMPLETIONS, {"prompt": TEXT, "max_tokens": 400}, "a context of 256 has room for"),
        (
            CHAT,
            {"messages": MESSAGES, "response_format": {"type": "json_object"}},
            "grammar: found",
        ),
    ):
        assert message in server.refused(path, {"model": "llada", **body})["message"]
