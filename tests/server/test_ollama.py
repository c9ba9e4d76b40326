"""Ollama's routes: lines of JSON, streamed unless told otherwise."""

import json
import time
from types import SimpleNamespace

import pytest

from oxillama.server.ollama import _end

MODEL = "oxillama-embedded"
OPTIONS = {"num_predict": 10, "seed": 3}
CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me a story"}],
    "options": OPTIONS,
}
PROMPT = {"model": MODEL, "prompt": "Once upon a time", "options": OPTIONS}


def lines(server, path, body):
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_chat_is_that_of_the_engine(server, engine):
    done = engine.chat(CHAT["messages"], max_tokens=10, seed=3)
    made = server.ok("/api/chat", {**CHAT, "stream": False})
    assert made["message"] == {"role": "assistant", "content": done.content}
    assert (made["done"], made["done_reason"]) == (True, "length")
    assert (made["prompt_eval_count"], made["eval_count"]) == (done.usage.prompt_tokens, 10)
    assert made["model"] == MODEL and made["total_duration"] > 0
    streamed = lines(server, "/api/chat", CHAT)
    assert all(each["done"] is False for each in streamed[:-1])
    assert "".join(each["message"]["content"] for each in streamed) == done.content
    assert streamed[-1]["eval_count"] == 10


def test_a_call_has_its_arguments_as_an_object(server):
    tool = {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"a": {"enum": [1]}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    messages = [
        *CHAT["messages"],
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_name": "f", "content": "one"},
    ]
    made = server.ok("/api/chat", {**CHAT, "messages": messages, "tools": [tool], "stream": False})
    assert made["done"] is True
    wrong = [{"role": "tool", "content": "x"}]
    assert (
        "answers no call" in server.post("/api/chat", {**CHAT, "messages": wrong}).json()["error"]
    )


def test_logprobs_of_a_stop_string_come_streamed_or_not(server):
    text = server.ok("/api/chat", {**CHAT, "stream": False})["message"]["content"]
    # where it begins a token, no text comes with its logprobs
    stop = text[text.index(" upon") :][:5]
    body = {**CHAT, "logprobs": True, "top_logprobs": 1, "options": {**OPTIONS, "stop": [stop]}}
    whole = server.ok("/api/chat", {**body, "stream": False})
    assert len(whole["logprobs"]) == whole["eval_count"] > 1
    streamed = lines(server, "/api/chat", body)
    found = [entry for line in streamed for entry in line.get("logprobs", ())]
    assert found == whole["logprobs"]


def test_durations_are_those_of_the_request():
    done = SimpleNamespace(
        usage=SimpleNamespace(prompt_tokens=300, cached_tokens=0, completion_tokens=10)
    )
    request = SimpleNamespace(submitted_at=10.0, admitted_at=10.5, first_at=12.5, ended_at=13.0)
    began = time.perf_counter_ns()
    made = _end(done, "stop", request, began, began)
    assert made["load_duration"] == 500_000_000
    assert (made["prompt_eval_count"], made["prompt_eval_duration"]) == (300, 2_000_000_000)
    assert (made["eval_count"], made["eval_duration"]) == (10, 500_000_000)
    # a request of no tokens
    request = SimpleNamespace(submitted_at=10.0, admitted_at=10.0, first_at=0.0, ended_at=11.0)
    made = _end(done, "length", request, began, began)
    assert (made["prompt_eval_duration"], made["eval_duration"]) == (1_000_000_000, 0)


def test_a_format_holds(server):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    made = server.ok("/api/chat", {**CHAT, "format": schema, "stream": False, "options": {}})
    assert json.loads(made["message"]["content"])["a"] in (1, 2)


def test_generate_with_and_without_the_template(server, engine):
    raw = server.ok("/api/generate", {**PROMPT, "raw": True, "stream": False})
    assert raw["response"] == engine.generate("Once upon a time", max_tokens=10, seed=3).text
    streamed = lines(server, "/api/generate", {**PROMPT, "raw": True})
    assert "".join(each["response"] for each in streamed) == raw["response"]
    assert streamed[-1]["context"] == raw["context"]
    chat = server.ok("/api/generate", {**PROMPT, "system": "Be kind.", "stream": False})
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Once upon a time"},
    ]
    assert chat["response"] == engine.chat(messages, max_tokens=10, seed=3).content
    loaded = server.ok("/api/generate", {"model": MODEL})
    assert (loaded["done"], loaded["done_reason"], loaded["response"]) == (True, "load", "")


def test_models_are_listed_and_shown(server):
    (tag,) = server.get("/api/tags").json()["models"]
    assert tag["name"] == tag["model"] == MODEL and tag["size"] > 0 and len(tag["digest"]) == 64
    shown = server.ok("/api/show", {"model": f"{MODEL}:latest"})
    assert shown["model_info"]["general.architecture"] == "llama"
    assert "completion" in shown["capabilities"] and "<|im_start|>" in shown["template"]
    assert server.get("/api/version").json().keys() == {"version"}
    assert server.get("/api/ps").json()["models"][0]["name"] == MODEL


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/api/chat", {"messages": []}, 400),
        ("/api/chat", {**CHAT, "model": "nope"}, 404),
        ("/api/chat", {**CHAT, "options": {"temperature": -1}}, 400),
        ("/api/chat", {**CHAT, "options": {"nonsense": 1}}, 400),
        ("/api/chat", {**CHAT, "options": {"num_ctx": 4096}}, 400),
        ("/api/chat", {**CHAT, "options": {"num_thread": 4}}, 400),
        (
            "/api/chat",
            {**CHAT, "messages": [{"role": "user", "content": "x", "images": ["aa"]}]},
            400,
        ),
        ("/api/chat", {**CHAT, "think": True}, 400),
        ("/api/generate", {**PROMPT, "template": "x"}, 400),
        ("/api/generate", {**PROMPT, "keep_alive": "soon"}, 400),
        ("/api/generate", {"model": MODEL, "keep_alive": "5"}, 400),
        ("/api/embed", {"model": MODEL, "input": "x", "keep_alive": "m5"}, 400),
        ("/api/generate", {**PROMPT, "suffix": "x"}, 400),
        ("/api/embed", {"model": MODEL, "input": "word " * 3000}, 400),
    ],
)
def test_errors_are_ollamas(server, path, body, status):
    answer = server.post(path, body)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"} and isinstance(answer.json()["error"], str)


def test_a_text_is_cut_where_that_is_asked_for(server):
    body = {"model": MODEL, "input": "word " * 3000, "truncate": True}
    assert server.ok("/api/embed", body)["prompt_eval_count"] == 1024


@pytest.mark.parametrize("size", [3000, 30000])
@pytest.mark.parametrize("more", [{}, {"truncate": False}, {"truncate": None}])
def test_a_text_that_is_too_long_to_be_embedded_says_what_cuts_it(server, size, more):
    """Without being asked for, nothing is cut, although Ollama does so by default."""
    body = {"model": MODEL, "input": ["x", "word " * size], **more}
    error = server.post("/api/embed", body).json()["error"]
    assert error.startswith("input[1]: ")
    assert error.endswith('; wanted fewer, or "truncate": true, which cuts it')


@pytest.mark.parametrize(
    "kept", ["5m", "1h30m", "-1m", "1.5h", "300ms", 300, -1, "0", "0s", 0, "0h0m"]
)
def test_times_to_keep_a_model_are_seconds_or_gos_durations(server, kept):
    made = server.ok("/api/generate", {"model": MODEL, "keep_alive": kept})
    assert made["done_reason"] == ("unload" if str(kept).strip("0hms") == "" else "load")


def test_a_number_that_may_have_one_value_is_told_as_that(server):
    body = {"model": "oxillama-embedded", "prompt": "a", "options": {"num_gpu": 1}}
    assert server.refused("/api/generate", body) == "options.num_gpu: found 1, wanted 0"
