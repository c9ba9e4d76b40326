"""Adapters over HTTP: what a request is evaluated with is what it names, else the scales in force;
texts are those of the engine with the same adapters.
"""

import json
import shutil
import threading

import numpy as np
import pytest

import oxillama
from oxillama.embedded import embedded_path
from oxillama.gguf import GgufReader
from oxillama.server import models
from tests.lora.made import random_pair, write_lora
from tests.server.conftest import MODEL, asking

ASK = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
GREEDY = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three adapters of the embedded model, by name."""
    folder, rng = tmp_path_factory.mktemp("lora"), np.random.default_rng(4)
    with GgufReader(embedded_path()) as reader:
        arch = reader.metadata["general.architecture"]
        shapes = {
            n: tuple(t.shape)
            for n, t in reader.tensors.items()
            if n.startswith("blk.") and len(t.shape) == 2
        }
    out = {}
    for name in ("one", "two", "three"):
        pairs = {n: random_pair(n, shape, 4, rng) for n, shape in shapes.items()}
        out[name] = write_lora(folder / f"{name}.gguf", arch, pairs, alpha=20.0)
    return out


@pytest.fixture(scope="module")
def texts(files):
    """The engine's text of each choice of adapters."""
    with oxillama.load() as engine:
        for each in files.values():
            engine.load_lora(each)

        def text(*lora):
            return engine.generate(ASK["prompt"], lora=list(lora), **GREEDY).text

        found = {
            "none": text(),
            "one": text("one"),
            "half": text(("one", 0.5)),
            "two": text("two"),
            "both": text("one", "two"),
            "three": text("three"),
        }
    assert len(set(found.values())) == len(found)
    return found


@pytest.fixture
def server(files, tmp_path):
    """A server with two adapters: one at 0.5, two at 0."""
    with asking(loras=((files["one"], 0.5), (files["two"], 0.0)), sessions_dir=tmp_path) as made:
        yield made


def said(server, path="/v1/completions", **more):
    answer = server.ok(path, {**ASK, **more})
    return answer["content"] if path == "/completion" else answer["choices"][0]["text"]


def test_scales_of_the_server_and_of_a_request(server, texts, files):
    listed = [
        {"id": 0, "path": str(files["one"]), "scale": 0.5},
        {"id": 1, "path": str(files["two"]), "scale": 0.0},
    ]
    assert server.get("/lora-adapters").json() == listed
    for path in ("/v1/completions", "/completion"):
        assert said(server, path) == texts["half"]
        assert said(server, path, lora=[]) == texts["none"]
        assert said(server, path, lora=[{"id": 1, "scale": 1}]) == texts["two"]
        both = [{"id": 1, "scale": 1}, {"id": 0, "scale": 1}]
        assert said(server, path, lora=both) == texts["both"]
    done = server.ok("/completion", ASK)
    assert done["generation_settings"]["lora"] == [{"id": 0, "scale": 0.5}]
    done = server.ok("/completion", {**ASK, "lora": both})
    assert done["generation_settings"]["lora"] == [
        {"id": 0, "scale": 1.0},
        {"id": 1, "scale": 1.0},
    ]
    # those that are not in the list are off
    assert server.ok("/lora-adapters", [{"id": 1, "scale": 1.0}]) == {"success": True}
    assert [each["scale"] for each in server.get("/lora-adapters").json()] == [0.0, 1.0]
    assert said(server) == texts["two"]
    wrong = server.refused("/lora-adapters", [{"id": 0, "scale": 1.0}, {"id": 7, "scale": 1.0}])
    assert (wrong["param"], wrong["code"]) == ("[1].id", 400)
    assert said(server) == texts["two"]


def test_a_model_by_an_adapters_name(server, texts, files):
    load = {"lora_name": "mine", "lora_path": str(files["three"])}
    answer = server.post("/v1/load_lora_adapter", load)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (
        200,
        "text/plain",
    )
    assert [each["id"] for each in server.get("/v1/models").json()["data"]] == [
        MODEL,
        "one",
        "two",
        "mine",
    ]
    found = server.get("/v1/models/mine").json()
    assert (found["parent"], found["root"]) == (MODEL, str(files["three"]))
    answer = server.ok("/v1/completions", {**ASK, "model": "mine"})
    assert (answer["model"], answer["choices"][0]["text"]) == ("mine", texts["three"])
    chunks = server.chunks("/v1/completions", {**ASK, "model": "mine"})
    assert {each["model"] for each in chunks[:-1]} == {"mine"}
    assert said(server) == texts["half"]  # loading it changed nothing for others
    assert said(server, model="one") == texts["half"]  # at the scale that it was given
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        ("/v1/embeddings", {"input": "hi"}),
    ):
        if "chat" in path:
            body["max_tokens"] = 2
        assert server.ok(path, {**body, "model": "mine"})["model"] == "mine"
    plain, own = (
        server.ok("/v1/embeddings", {"input": "hi", "model": each})["data"][0]["embedding"]
        for each in (MODEL, "mine")
    )
    assert plain != own
    assert server.refused("/v1/load_lora_adapter", load)["param"] == "lora_name"
    assert server.post("/v1/load_lora_adapter", {**load, "lora_name": MODEL}).status_code == 400
    again = {**load, "lora_path": str(files["two"]), "load_inplace": True}
    assert server.post("/v1/load_lora_adapter", again).status_code == 200
    assert said(server, model="mine") == texts["two"]
    unload = {"lora_name": "mine", "lora_int_id": 1}
    assert server.refused("/v1/unload_lora_adapter", unload)["param"] == "lora_int_id"
    assert said(server, model="mine") == texts["two"]
    unload["lora_int_id"] = server.get("/lora-adapters").json()[-1]["id"]
    assert server.post("/v1/unload_lora_adapter", unload).status_code == 200
    assert server.refused("/v1/completions", {**ASK, "model": "mine"}, 404)["param"] == "model"


def test_an_adapters_name_loads_its_model(server, texts):
    server.ok("/api/generate", {"model": MODEL, "keep_alive": 0})
    assert server.app.state.models.loaded() == []
    assert said(server, model="two", lora=None) == texts["none"]  # which was given at 0
    assert said(server, model="one") == texts["half"]


def test_an_adapter_that_is_unloaded_stays_with_what_runs(server, texts):
    chunks, begun = [], threading.Event()
    wanted = server.ok("/v1/completions", {**ASK, "max_tokens": 200, "model": "one"})
    with server.client.stream(
        "POST", "/v1/completions", json={**ASK, "max_tokens": 200, "model": "one", "stream": True}
    ) as answer:
        for line in answer.iter_lines():
            if not begun.is_set():
                begun.set()
                gone = server.post("/v1/unload_lora_adapter", {"lora_name": "one"})
                assert gone.status_code == 200
            chunks.append(line)
    text = "".join(
        each["choices"][0]["text"]
        for each in (json.loads(line[6:]) for line in chunks if line.startswith("data: {"))
    )
    assert text == wanted["choices"][0]["text"]
    assert said(server) == texts["none"]
    assert [each["id"] for each in server.get("/lora-adapters").json()] == [1]  # ids stay


def test_sessions_and_slots_keep_their_adapters(server, texts):
    ask = {**ASK, "session": "a"}
    assert said(server, **{**ask, "lora": [{"id": 1, "scale": 1}]}) == texts["two"]
    assert server.refused("/v1/completions", {**ask, "lora": []})["param"] == "lora"
    assert server.post("/v1/sessions/a/save", {}).status_code == 200
    assert server.post("/v1/sessions/a/restore", {}).status_code == 200
    server.ok("/v1/completions", {"session": "a", "max_tokens": 1})
    # a slot that was evaluated with others begins anew
    slot = {"id_slot": 3}
    assert said(server, "/completion", **slot, lora=[{"id": 1, "scale": 1}]) == texts["two"]
    assert said(server, "/completion", **slot) == texts["half"]
    assert said(server, "/completion", **slot, lora=[{"id": 1, "scale": 1}]) == texts["two"]


def test_a_name_of_both_is_the_models(files, texts):
    with asking(alias="one", loras=((files["one"], 0.5),)) as server:
        assert said(server, model="one") == texts["half"]
        server.ok("/lora-adapters", [{"id": 0, "scale": 1}])
        assert said(server, model="one") == texts["one"]
        assert said(server, model="one", lora=[]) == texts["none"]
        assert server.post("/v1/unload_lora_adapter", {"lora_name": "one"}).status_code == 200
        assert said(server, model="one") == texts["none"]


@pytest.mark.parametrize(
    "path, body",
    [
        (None, None),
        ("/lora-adapters", [{"id": 0, "scale": 1}]),
        ("/v1/unload_lora_adapter", {"lora_name": "one"}),
        ("/v1/load_lora_adapter", {"lora_name": "mine"}),
    ],
)
def test_a_model_whose_adapters_were_changed_stays_in_memory(
    files, tmp_path, monkeypatch, path, body
):
    monkeypatch.setattr(models, "_PATIENCE", 0.0)
    for name in ("given", "other"):
        shutil.copy(embedded_path(), tmp_path / f"{name}.gguf")
    given = {"model": tmp_path / "given.gguf", "loras": ((files["one"], 0.5),)}
    with asking(**given, models_dir=tmp_path, max_loaded=1) as server:
        if path is not None:
            if path == "/v1/load_lora_adapter":
                body = {"lora_path": str(files["two"]), **body}
            assert server.post(path, body).status_code == 200
        other = {"prompt": "a", "model": "other", "max_tokens": 1}
        if path is None:
            assert server.ok("/v1/completions", other)["model"] == "other"
        else:
            error = server.refused("/v1/completions", other, 503)
            assert error["code"] == "models_busy"


def test_what_is_wrong_with_an_adapter_is_named(server, files, tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 20)
    for path, status in (
        (tmp_path / "none.gguf", 404),
        ("/dev/zero", 404),
        (tmp_path / "bad.gguf", 400),
        (embedded_path(), 400),
    ):
        body = {"lora_name": "x", "lora_path": str(path)}
        assert server.refused("/v1/load_lora_adapter", body, status)["param"] == "lora_path"
    twice = [{"id": 0, "scale": 1}, {"id": 0, "scale": 0.5}]
    for body, param in (
        ({**ASK, "lora": twice}, "lora[1].id"),
        ({**ASK, "lora": [{"id": 9, "scale": 1}]}, "lora[0].id"),
        ({**ASK, "lora": [{"id": 0}]}, "lora[0].scale"),
        ({**ASK, "lora": [{"id": 0, "scale": "1"}]}, "lora[0].scale"),
        ({**ASK, "lora": [], "model": "two"}, "lora"),
    ):
        assert server.refused("/v1/completions", body)["param"] == param
    assert len(server.get("/lora-adapters").json()) == 2


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/embeddings", {"input": "Once"}, "input"),
        ("/embedding", {"content": "Once"}, "content"),
        ("/v1/completions", {"prompt": "Once"}, "prompt"),
    ],
)
def test_a_scale_beyond_what_numbers_hold_is_refused_and_named(files, path, body, named):
    with asking(loras=((files["one"], 1.0),)) as asked:
        asked.ok("/lora-adapters", [{"id": 0, "scale": 1e6}])
        wrong = asked.refused(path, body)
        assert wrong["param"] == named and "wanted finite numbers" in wrong["message"]
        asked.ok("/lora-adapters", [{"id": 0, "scale": 1}])
        asked.ok(path, body)
