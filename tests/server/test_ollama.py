"""Ollama's routes: lines of JSON, streamed unless told otherwise."""

import json
import math
import os
import shutil
import sys
import time
from contextlib import closing
from http.client import HTTPConnection
from types import SimpleNamespace

import pytest

from oxillama import __version__
from oxillama.embedded import embedded_path
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.server.ollama import _end, _Waiting
from tests.server.conftest import Compared, asking

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


def test_an_assistants_message_at_the_end_is_continued(server, engine):
    begun = "Once upon a time"
    talk = {**CHAT, "messages": [*CHAT["messages"], {"role": "assistant", "content": begun}]}
    prompt = engine.render_chat(CHAT["messages"]) + begun
    done = engine.generate(prompt, max_tokens=10, seed=3)
    made = server.ok("/api/chat", {**talk, "stream": False})
    assert made["message"]["content"] == done.text
    assert made["prompt_eval_count"] == done.usage.prompt_tokens
    streamed = lines(server, "/api/chat", talk)
    assert "".join(each["message"]["content"] for each in streamed) == done.text
    talk["messages"][-1]["thinking"] = "hm"
    assert "messages[1]: found reasoning" in server.refused("/api/chat", talk)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/api/delete", "; `oxillama rm` removes a model"),
        ("/api/blobs/sha256:0", "; a GGUF file of --models-dir is a model"),
        ("/api/other", ""),
    ],
)
def test_a_route_that_changes_which_models_there_are_says_what_does(server, path, hint):
    told = server.refused(path, {"model": MODEL}, 404)
    assert told == f"path: {path!r} is unknown{hint}"


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
    assert tag["name"] == tag["model"] == f"{MODEL}:latest"
    assert tag["size"] > 0 and len(tag["digest"]) == 64
    shown = server.ok("/api/show", {"model": f"{MODEL}:latest"})
    assert shown["model_info"]["general.architecture"] == "llama"
    assert "<|im_start|>" in shown["template"]
    assert server.get("/api/version").json() == {"version": "0.14.0", "oxillama": __version__}
    assert server.get("/api/ps").json()["models"][0]["name"] == f"{MODEL}:latest"


def test_models_that_are_not_loaded_say_what_they_are(tmp_path):
    shutil.copyfile(embedded_path(), tmp_path / "a.gguf")
    second = "b" if sys.platform == "win32" else "b:7b"  # names there have no colon
    (tmp_path / f"{second}.gguf").write_bytes(b"no model")
    with asking(models_dir=tmp_path) as server:
        a, b = server.get("/api/tags").json()["models"]
        assert not server.app.state.models.loaded()
        assert (a["name"], b["name"]) == ("a:latest", "b:latest" if second == "b" else second)
        assert b["details"]["family"] == "" and b["details"]["families"] == []
        server.ok("/api/generate", {"model": "a:latest"})
        assert server.get("/api/tags").json()["models"][0]["details"] == a["details"]
        assert a["details"]["family"] == "llama" and a["details"]["quantization_level"]
        assert a["details"]["parameter_size"] == "3.5M" and b["details"]["parameter_size"] == ""


def test_what_a_listed_file_says_is_that_of_the_file_that_is_there(tmp_path):
    whole, path = embedded_path().read_bytes(), tmp_path / "a.gguf"

    def put(data):
        """Another file in its place, of the time that an archive gives all of its files."""
        (tmp_path / "new").write_bytes(data)
        os.utime(tmp_path / "new", (1e9, 1e9))
        os.replace(tmp_path / "new", path)

    with asking(models_dir=tmp_path) as server:
        found = []
        for data in (whole[:-1], whole, whole.replace(b"3.5M", b"7.5M"), b"no model"):
            put(data)
            (tag,) = server.get("/api/tags").json()["models"]
            found.append(tag["details"]["parameter_size"])
            if data[:4] == b"GGUF" and len(data) == len(whole):
                shown = server.ok("/api/show", {"model": "a"})
                assert shown["details"] == tag["details"]
    assert found == ["", "3.5M", "7.5M", ""]


def test_a_model_that_is_here_is_pulled_without_being_fetched(server):
    for name in (MODEL, f"{MODEL}:latest"):
        assert server.ok("/api/pull", {"name": name, "stream": False}) == {"status": "success"}
    assert lines(server, "/api/pull", {"model": MODEL}) == [{"status": "success"}]
    assert server.refused("/api/pull", {"model": "nope"}, 404).startswith("model: 'nope' is not")
    assert server.refused("/api/pull", {}) == "model: is required"
    assert server.refused("/api/pull", {"model": MODEL, "insecure": True}).startswith("insecure: ")


def test_keys_and_tensors_of_the_file_are_shown(server, engine):
    body = {"model": MODEL}
    shown, whole = server.ok("/api/show", body), server.ok("/api/show", {**body, "verbose": True})
    with GgufReader(engine.model_files[0]) as reader:
        words, wanted = list(reader.metadata["tokenizer.ggml.tokens"]), dict(reader.metadata)
        shapes = {each.name: list(each.shape) for each in reader.tensors.values()}
    about = shown["model_info"]
    for name in ("llama.block_count", "llama.rope.freq_base", "general.languages"):
        assert about[name] == whole["model_info"][name] == wanted[name]
    assert about["general.parameter_count"] == sum(map(math.prod, shapes.values()))
    assert about["tokenizer.ggml.tokens"] == [] and "tensors" not in shown
    assert whole["model_info"]["tokenizer.ggml.tokens"] == words
    assert {each["name"]: each["shape"] for each in whole["tensors"]} == shapes


THINKS = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n</think>"


@pytest.mark.parametrize("options", [{}, {"chat_template": THINKS}])
def test_a_model_is_shown_without_being_loaded(tmp_path, cases, options):
    """Copilot asks about all models of the list: each would have made room for the next."""
    shutil.copyfile(embedded_path(), tmp_path / "a.gguf")
    for case in ("bert_mean", "qwen3_embedding"):
        shutil.copyfile(cases / "embed" / case / "f32.gguf", tmp_path / f"{case}.gguf")
    (tmp_path / "no.gguf").write_bytes(b"no model")
    with asking(models_dir=tmp_path, **options) as server:
        names = ("a", "bert_mean", "qwen3_embedding:latest")
        found = [server.ok("/api/show", {"model": name}) for name in names]
        error = server.refused("/api/show", {"model": "no"}, 500)
        assert error.startswith("no.gguf: starts with b'no m', wanted b'GGUF'")
        assert not server.app.state.models.loaded()
        for name, shown in zip(names, found):
            if shown["capabilities"] == ["embedding"]:
                server.ok("/api/embed", {"model": name, "input": "a"})
            else:
                server.ok("/api/generate", {"model": name})
            assert server.app.state.models.loaded()[-1].name == name.removesuffix(":latest")
            assert server.ok("/api/show", {"model": name}) == shown
    kinds = [shown["capabilities"] for shown in found]
    thinks = ["thinking"] if options else []
    assert kinds == [["completion", "tools", *thinks], ["embedding"], ["embedding"]]


def test_a_number_that_json_cannot_hold_is_shown_as_a_text(tmp_path, engine):
    path = tmp_path / "made.gguf"
    with GgufReader(engine.model_files[0]) as reader, GgufWriter(path, "llama") as writer:
        for key, value in reader.metadata.items():
            if key != "general.architecture":
                writer.add(key, value, reader.kv_types[key])
        writer.add("general.odd", float("nan"))
        writer.add("general.odds", [[1.0, float("-inf")], [2.0]])
        for each in reader.tensors.values():
            data = reader.data(each.name)
            writer.add_tensor(each.name, data, type_name=each.type_name, shape=each.shape)
    with asking(model=path) as server:
        about = server.ok("/api/show", {"model": "made"})["model_info"]
    assert (about["general.odd"], about["general.odds"]) == ("nan", [[1.0, "-inf"], [2.0]])


def test_a_model_that_generates_is_no_embedding_model(server, cases):
    """Ollama's own command line embeds with every model of that capability."""
    assert server.ok("/api/show", {"model": MODEL})["capabilities"] == ["completion", "tools"]
    for case in ("bert_mean", "qwen3_embedding"):  # an encoder, and a decoder that is pooled
        with asking(model=cases / "embed" / case / "f32.gguf") as other:
            assert other.ok("/api/show", {"model": "f32"})["capabilities"] == ["embedding"]


def test_the_client_in_go_sends_empty_fields(server):
    """Those that its types do not leave out when they are empty."""
    empty = {"system": "", "template": "", "options": None}
    whole = server.ok("/api/generate", {**PROMPT, "stream": False})
    body = {**empty, **PROMPT, "suffix": "", "stream": False}
    assert server.ok("/api/generate", body)["response"] == whole["response"]
    made = server.ok("/api/generate", {**empty, "model": MODEL, "prompt": "", "suffix": ""})
    assert made["done_reason"] == "load"
    shown = server.ok("/api/show", {**empty, "model": MODEL, "name": "", "verbose": False})
    assert shown == server.ok("/api/show", {"model": MODEL})
    assert server.ok("/api/show", {**empty, "model": "", "name": MODEL}) == shown
    function = {"name": "f", "parameters": {"type": "object", "required": None, "properties": None}}
    tools = [{"type": "function", "function": function}]
    one = server.ok("/api/chat", {**CHAT, "tools": tools, "stream": False})
    function["parameters"] = {"type": "object"}
    other = server.ok("/api/chat", {**CHAT, "tools": tools, "stream": False})
    assert one["message"] == other["message"]


@pytest.mark.parametrize(
    "path, more, param",
    [
        ("/api/generate", {"images": ["aa"]}, "images"),
        ("/api/generate", {"system": "Be kind."}, "system"),
        ("/api/generate", {"context": [1]}, "context"),
        ("/api/generate", {"format": "json"}, "format"),
        ("/api/generate", {"think": True}, "think"),
        ("/api/generate", {"options": {"num_ctx": 4096}}, "options.num_ctx"),
        ("/api/generate", {"template": "{{ .Prompt }}"}, "template"),
        ("/api/chat", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("/api/chat", {"options": {"top_p": 0.5, "num_keep": 3}}, "options.num_keep"),
        ("/api/show", {"system": "Be kind."}, "system"),
        ("/api/show", {"options": {"top_k": 3}}, "options"),
        ("/api/show", {"template": "{{ .Prompt }}"}, "template"),
        ("/api/show", {"model": ""}, "model"),
    ],
)
def test_what_a_request_that_loads_or_shows_cannot_use_is_told(server, path, more, param):
    assert server.refused(path, {"model": MODEL, **more}).startswith(f"{param}: ")


@pytest.mark.parametrize(
    "more, param",
    [
        # the prompt of a suffix has no place for what came before
        ({"suffix": "x", "context": [5]}, "context"),
        ({"suffix": "x", "raw": True, "context": [5]}, "context"),
        ({"context": [5]}, "context"),
        ({"suffix": "x", "system": "s"}, "system"),
        ({"raw": True, "system": "s"}, "system"),
        ({"suffix": "x", "images": ["aa"]}, "images"),
        ({"raw": True, "images": ["aa"]}, "images"),
        ({"raw": True, "think": True}, "think"),
        ({"raw": True, "context": [2048]}, "context[0]"),
    ],
)
def test_what_a_prompt_without_the_template_cannot_use_is_told(server, more, param):
    assert server.refused("/api/generate", {**PROMPT, **more}).startswith(f"{param}: ")


@pytest.mark.parametrize("name", ["truncate", "shift"])
def test_a_conversation_is_neither_shortened_nor_shifted(server, name):
    for path, body in (("/api/chat", CHAT), ("/api/generate", PROMPT)):
        assert server.ok(path, {**body, name: False, "stream": False})["done"] is True
        assert server.refused(path, {**body, name: True}) == f"{name}: found true, wanted false"


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("/api/chat", {"messages": []}, 400),
        ("/api/chat", {**CHAT, "model": "nope"}, 404),
        ("/api/chat", {**CHAT, "options": {"temperature": -1}}, 400),
        ("/api/chat", {**CHAT, "options": {"nonsense": 1}}, 400),
        ("/api/chat", {**CHAT, "options": {"num_ctx": 4096}}, 400),
        ("/api/chat", {**CHAT, "tool_choice": "required"}, 400),
        ("/api/pull", {"model": "nope"}, 404),
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


@pytest.mark.parametrize(
    ("name", "value", "role"),
    [
        ("thinking", "hm", "assistant"),
        ("tool_calls", [{"function": {"name": "f", "arguments": {}}}], "assistant"),
        ("tool_name", "f", "tool"),
        ("tool_call_id", "1", "tool"),
    ],
)
def test_a_message_has_the_fields_of_its_role(server, name, value, role):
    """Clients send the others, too, with nothing in them."""
    told = f"messages[0].{name}: found in a message of the role user, wanted {role}"
    user = {"role": "user", "content": "Hi"}
    body = {**CHAT, "messages": [{**user, name: value}], "stream": False}
    answer = server.post("/api/chat", body)
    assert (answer.status_code, answer.json()) == (400, {"error": told})
    empty = {"thinking": "", "tool_calls": [], "tool_name": None, "images": []}
    server.ok("/api/chat", {**body, "messages": [{**user, **empty}]})


def test_how_a_model_is_loaded_is_the_servers_to_say(server):
    asked = {"num_thread": 0, "num_batch": 512, "num_gpu": -1, "main_gpu": 0, "low_vram": False}
    asked |= {"use_mmap": True, "use_mlock": False, "vocab_only": False, "numa": False, "tfs_z": 1}
    asked |= {"f16_kv": True, "logits_all": False, "embedding_only": False}
    body = {**CHAT, "stream": False}
    made = server.ok("/api/chat", {**body, "options": {**OPTIONS, **asked}})
    assert made["message"] == server.ok("/api/chat", body)["message"]
    wrong = {"num_thread": 4, "num_batch": 64, "num_gpu": 1, "use_mmap": False, "use_mlock": True}
    wrong |= {"f16_kv": False, "logits_all": True, "embedding_only": True}
    for name, value in wrong.items():
        wanted = json.dumps(asked[name]) if name != "num_gpu" else ""
        told = f"options.{name}: found {json.dumps(value)}, wanted {wanted}"
        assert server.refused("/api/chat", {**body, "options": {name: value}}).startswith(told)


def test_options_that_say_nothing_are_taken_with_a_text_to_embed(server):
    nothing = dict.fromkeys(("mirostat", "num_ctx", "num_thread", "stop", "temperature", "tfs_z"))
    body = {"model": MODEL, "input": "x"}
    assert (
        server.ok("/api/embed", {**body, "options": nothing})["embeddings"]
        == server.ok("/api/embed", body)["embeddings"]
    )
    told = server.refused("/api/embed", {**body, "options": {"temperature": 0.5}})
    assert told == "options.temperature: found 0.5, wanted null"


def test_a_format_is_any_object_or_that_of_a_schema(server):
    options = {"num_predict": 60, "seed": 3}
    any_one = server.ok("/api/chat", {**CHAT, "stream": False, "format": "json"})
    assert any_one["message"]["content"].lstrip().startswith("{")
    schema = {"const": {"a": 1}}
    body = {**CHAT, "stream": False, "format": schema, "options": options}
    assert json.loads(server.ok("/api/chat", body)["message"]["content"]) == {"a": 1}
    body = {**PROMPT, "stream": False, "format": schema, "options": options}
    assert json.loads(server.ok("/api/generate", body)["response"]) == {"a": 1}


def test_a_choice_of_tools_is_held(server):
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body = {**CHAT, "tools": [tool], "stream": False, "options": {"num_predict": 60, "seed": 3}}
    made = server.ok("/api/chat", {**body, "tool_choice": "required"})["message"]
    assert made["tool_calls"][0]["function"]["name"] == "f"
    # a call may come back with its place in the message, as Open WebUI sends it
    call = {**made["tool_calls"][0], "index": 0}
    talk = [*CHAT["messages"], {"role": "assistant", "tool_calls": [call]}]
    talk.append({"role": "tool", "content": "one", "tool_call_id": call["id"]})
    made = server.ok("/api/chat", {**body, "messages": talk, "tool_choice": "none"})["message"]
    assert "tool_calls" not in made


def test_the_calls_of_a_stream_are_those_of_the_whole_answer(server):
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "clock", "parameters": parameters}}
    body = {**CHAT, "tools": [tool], "options": {"num_predict": 250, "seed": 2}}
    body["tool_choice"] = "required"
    whole = server.ok("/api/chat", {**body, "stream": False})["message"]["tool_calls"]
    found = [each["message"].get("tool_calls", []) for each in lines(server, "/api/chat", body)]
    assert found[-1] == [] and max(map(len, found)) == 1  # each as soon as it is whole
    calls = [call["function"] for each in found for call in each]
    assert calls == [call["function"] for call in whole] and len(calls) > 1
    assert [call["index"] for call in calls] == list(range(len(calls)))


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_a_reply_to_keep_no_model_after_unloads_it_alone(stream, raw):
    """And not the next one, whose request asks for nothing of the kind."""
    body = {"model": MODEL, "prompt": "Hi", "raw": raw, "options": {"num_predict": 2}}
    with asking() as server:
        models, end = server.app.state.models, time.monotonic() + 20
        for kept in ({"keep_alive": 0}, {}):
            answer = server.post("/api/generate", {**body, **kept, "stream": stream})
            assert answer.status_code == 200, answer.text
            while kept and models.loaded():
                assert time.monotonic() < end
                time.sleep(0.002)
            assert len(models.loaded()) == (not kept)


def test_a_client_that_leaves_a_reply_to_keep_no_model_after_unloads_it_too(listening):
    models, end = listening.app.state.models, time.monotonic() + 20
    options = {"num_predict": 900, "ignore_eos": True}
    body = {"model": MODEL, "prompt": "Hi", "keep_alive": 0, "options": options}
    with closing(HTTPConnection(*listening.address)) as client:
        client.request("POST", "/api/generate", json.dumps(body))
        assert client.getresponse().readline()
        assert models.loaded()
    while models.loaded():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_number_that_may_have_one_value_is_told_as_that(server):
    body = {"model": "oxillama-embedded", "prompt": "a", "options": {"num_thread": 1}}
    assert server.refused("/api/generate", body) == "options.num_thread: found 1, wanted 0"


def test_answers_belong_to_the_oldest_call_that_they_may_answer():
    waiting = _Waiting()
    for id, name in (("1", "f"), ("2", "g"), ("3", "f"), ("4", "g"), ("5", "f")):
        waiting.add(id, name)
    assert waiting.take(None, "g") == ("2", "g")
    assert waiting.take(None, None) == ("1", "f")
    assert waiting.take("3", None) == ("3", "f") and waiting.take("3", None) is None
    assert waiting.take("4", "f") is None and waiting.take("4", "g") == ("4", "g")
    assert waiting.take(None, "f") == ("5", "f") and waiting.take(None, None) is None


def test_a_call_is_looked_at_once_however_many_answers_there_are(monkeypatch):
    waiting = _Waiting()
    for at in range(400):
        waiting.add(str(at), Compared("fg"[at // 200]))
    monkeypatch.setattr(Compared, "times", 0)
    assert [waiting.take(None, "g") for _ in range(200)] == [
        (str(at), "g") for at in range(200, 400)
    ]
    assert Compared.times <= 2 * 200
