"""Several models: found by name, loaded on first use, unloaded by least recent use."""

import asyncio
import gc
import os
import shutil
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from oxillama.embedded import embedded_path
from oxillama.errors import ModelError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.gguf.source import Shard
from oxillama.server import ServerConfig
from oxillama.server.models import ModelRegistry, unusable
from tests.lora.made import random_pair, write_lora
from tests.server.conftest import asking

PATH = "/v1/completions"
mapped_files_stay = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows lets nobody write, replace or remove a mapped file"
)


@pytest.fixture
def folder(tmp_path):
    for name in ("one.gguf", "two.gguf", "mmproj-x.gguf", "set-00002-of-00002.gguf"):
        shutil.copy(embedded_path(), tmp_path / name)
    (tmp_path / "readme.txt").write_text("x")
    return tmp_path


def loaded(server):
    return [model.name for model in server.app.state.models.loaded()]


def test_models_of_a_folder_load_on_first_use(folder):
    with asking(models_dir=folder, max_loaded=1) as server:
        assert [each["id"] for each in server.get("/v1/models").json()["data"]] == ["one", "two"]
        assert server.get("/health").status_code == 200
        assert loaded(server) == []
        error = server.refused(PATH, {"prompt": "a"})
        assert (error["param"], "one, two" in error["message"]) == ("model", True)
        body = {"prompt": "Once upon", "seed": 1, "max_tokens": 4}
        one = server.ok(PATH, {**body, "model": "one"})
        assert (one["model"], loaded(server)) == ("one", ["one"])
        two = server.ok(PATH, {**body, "model": "two"})
        assert (two["model"], loaded(server)) == ("two", ["two"])
        assert one["choices"] == two["choices"]
        assert server.refused(PATH, {**body, "model": "three"}, 404)["code"] == "model_not_found"
        assert server.refused(PATH, {**body, "model": "../one"}, 404)["param"] == "model"
        shutil.copy(folder / "one.gguf", folder / "three.gguf")
        assert server.ok(PATH, {**body, "model": "three.gguf"})["model"] == "three"
        assert server.get("/v1/models/three.gguf").json()["id"] == "three"


def test_a_set_of_shards_in_a_folder_is_one_model(folder):
    with GgufReader(embedded_path()) as whole:
        for number in (1, 2):
            path = folder / f"set-{number:05d}-of-00002.gguf"
            with GgufWriter(path, whole.metadata["general.architecture"], part=True) as part:
                part.add("split.no", number - 1, "uint16")
                part.add("split.count", 2, "uint16")
                part.add("split.tensors.count", len(whole.tensors), "int32")
                for key, value in whole.metadata.items():
                    if number == 1 and key != "general.architecture":
                        part.add(key, value)
                infos = list(whole.tensors.values())[number - 1 :: 2]
                for info in infos:
                    part.declare(info.name, info.type_name, info.shape)
                for info in infos:
                    part.write(info.name, whole.data(info.name))
    with asking(models_dir=folder) as server:
        names = [each["id"] for each in server.get("/v1/models").json()["data"]]
        assert names == ["one", "set", "two"]
        body = {"prompt": "Once", "max_tokens": 4, "temperature": 0}
        answers = [server.ok(PATH, {**body, "model": name})["choices"] for name in ("set", "one")]
        assert answers[0] == answers[1]


def test_a_slot_is_of_the_model_that_is_named(folder, tmp_path):
    with asking(models_dir=folder, sessions_dir=tmp_path / "sessions") as server:
        server.ok("/completion", {"model": "one", "prompt": "a", "n_predict": 2, "id_slot": 1})
        assert server.refused("/slots/1?action=save", {"filename": "s"})["param"] == "model"
        two = {"model": "two", "filename": "s"}
        assert server.refused("/slots/1?action=save", two)["param"] == "id_slot"
        assert server.ok("/slots/1?action=erase", {"model": "two"})["n_erased"] == 0
        one = {**two, "model": "one"}
        saved = server.ok("/slots/1?action=save", one)["n_saved"]
        assert server.ok("/slots/1?action=erase", one)["n_erased"] == saved > 0
        assert server.ok("/slots/1?action=restore", one)["n_restored"] == saved


def test_the_least_recently_used_model_leaves(folder):
    shutil.copy(folder / "one.gguf", folder / "three.gguf")
    with asking(models_dir=folder, max_loaded=2) as server:
        for name in ("one", "two", "one", "three"):
            server.ok(PATH, {"model": name, "prompt": "a", "max_tokens": 1})
        assert loaded(server) == ["one", "three"]


def test_a_model_that_left_is_freed_without_the_collector(folder):
    """And with it its vocabulary, which the last sessions of slots and plans of chats would hold,
    and the mapping of its file.
    """
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    with asking(models_dir=folder, max_loaded=1) as server:
        server.ok("/v1/chat/completions", {**chat, "model": "one"})
        (model,) = server.app.state.models.loaded()
        core = model.engine.loaded.core
        left = [weakref.ref(each) for each in (model, model.bridge, model.engine, core)]
        del model, core
        slots = server.app.state.slot_sessions
        slots[5] = slots[0]  # which no later request takes
        gc.collect()
        gc.disable()
        try:
            server.ok(PATH, {"prompt": "a", "model": "two", "max_tokens": 2})
            end = time.monotonic() + 60
            while any(each() is not None for each in left):
                assert time.monotonic() < end, [each() for each in left]
                time.sleep(0.01)
        finally:
            gc.enable()


def test_a_model_that_becomes_idle_while_room_is_looked_for_makes_room(folder):
    """A request of the model in memory comes and goes while its sessions are being saved."""

    class Engine:
        def close(self):
            pass

    class Fake:
        def __init__(self, name):
            self.name, self.users, self.engine = name, 0, Engine()
            self.leaving = False

    async def run():
        kept, done = [True], []

        async def offload(call, *given):
            if call is release and not done:
                done.append(await models.acquire("one"))
                models.release(done[0])  # has begun a session, so that the model stays once more
                return
            call(*given)

        def release(model):
            kept[0] = False

        config = ServerConfig(models_dir=folder, max_loaded=1)
        models = ModelRegistry(config, offload, keep=lambda model: kept[0], release=release)
        models._loaded["one"] = Fake("one")
        models._stale = lambda model: False
        async with asyncio.timeout(20):
            await models._make_room()
        assert models.loaded() == [] and done

    asyncio.run(run())


def test_a_model_with_a_session_in_memory_stays(folder, tmp_path):
    with asking(models_dir=folder, max_loaded=2) as server:
        server.ok(PATH, {"model": "one", "prompt": "a", "max_tokens": 1, "session": "s"})
        server.ok(PATH, {"model": "two", "prompt": "a", "max_tokens": 1})
        shutil.copy(folder / "one.gguf", folder / "three.gguf")
        server.ok(PATH, {"model": "three", "prompt": "a", "max_tokens": 1})
        assert loaded(server) == ["one", "three"]
        error = server.refused(PATH, {"model": "three", "prompt": "a", "session": "s"}, 409)
        assert error["code"] == "session_model_mismatch"


def test_sessions_are_saved_to_make_room(folder, tmp_path):
    with asking(models_dir=folder, max_loaded=1, sessions_dir=tmp_path / "sessions") as server:
        body = {"prompt": "Once", "max_tokens": 3, "seed": 5, "session": "s"}
        first = server.ok(PATH, {**body, "model": "one"})["choices"][0]["text"]
        server.ok(PATH, {"model": "two", "prompt": "a", "max_tokens": 1})
        assert loaded(server) == ["two"]
        assert server.get("/v1/sessions/s").json()["loaded"] is False
        assert server.ok("/v1/sessions/s/restore", {})["model"] == "one"
        assert loaded(server) == ["one"]
        more = server.ok(PATH, {"model": "one", "session": "s", "max_tokens": 3})
    with asking(models_dir=folder) as server:
        body = {**body, "model": "one"}
        assert server.ok(PATH, body)["choices"][0]["text"] == first
        alone = server.ok(PATH, {"model": "one", "session": "s", "max_tokens": 3})
        assert alone["choices"] == more["choices"]


def test_a_bad_file_puts_out_no_model(folder):
    (folder / "bad.gguf").write_bytes(b"GGUFxxxx")
    with asking(models_dir=folder, max_loaded=1) as server:
        server.ok(PATH, {"model": "one", "prompt": "a", "max_tokens": 1})
        assert server.refused(PATH, {"model": "bad", "prompt": "a"}, 500)["code"] == (
            "model_unusable"
        )
        assert loaded(server) == ["one"]


def test_a_file_that_cannot_be_loaded_is_closed_at_once(folder):
    """And may be replaced by a whole one, on Windows too."""
    path, whole = folder / "bad.gguf", embedded_path().read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    body = {"model": "bad", "prompt": "a", "max_tokens": 1}
    with asking(models_dir=folder) as server:
        gc.collect()
        gc.disable()
        try:
            assert server.refused(PATH, body, 500)["code"] == "model_unusable"
            shards = [each for each in gc.get_objects() if type(each) is Shard]
        finally:
            gc.enable()
        assert path not in [each.path for each in shards]
        path.write_bytes(whole)
        assert server.ok(PATH, body)["model"] == "bad"


def test_ollama_unloads_with_keep_alive_0(folder):
    with asking(models_dir=folder) as server:
        server.ok("/api/generate", {"model": "one"})
        assert loaded(server) == ["one"]
        made = server.ok("/api/generate", {"model": "one", "keep_alive": 0})
        assert made["done_reason"] == "unload"
        assert loaded(server) == []


def test_the_given_model_is_the_default(folder):
    with asking(model=folder / "two.gguf", models_dir=folder, alias="mine") as server:
        names = [each["id"] for each in server.get("/v1/models").json()["data"]]
        assert names == ["mine", "one", "two"]
        assert server.ok(PATH, {"prompt": "a", "max_tokens": 1})["model"] == "mine"


def test_a_file_without_a_template_does_not_chat(cases):
    with asking(model=cases / "stories260K" / "stories260K-q8_0.gguf") as server:
        assert server.ok(PATH, {"prompt": "Once", "max_tokens": 2})["choices"]
        error = server.refused(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}
        )
        assert error["code"] == "no_chat_template"


def test_a_file_that_is_no_model_is_named(folder):
    (folder / "bad.gguf").write_bytes(b"GGUFxxxx")
    with asking(models_dir=folder) as server:
        error = server.refused(PATH, {"model": "bad", "prompt": "a"}, 500)
        assert (error["code"], error["param"]) == ("model_unusable", "model")
        assert server.get("/health").status_code == 200
        assert server.ok(PATH, {"model": "one", "prompt": "a", "max_tokens": 1})["choices"]


def test_a_file_that_cannot_be_read_has_the_code_of_one_that_is_no_model():
    error = unusable(Path("a/one.gguf"), OSError(5, "Input/output error"))
    assert (error.status, error.code) == (500, "model_unusable")
    assert error.message == "model one: cannot be read: Input/output error"


def test_models_asked_for_at_once_load_one_after_the_other(folder):
    shutil.copy(folder / "one.gguf", folder / "three.gguf")
    with asking(models_dir=folder, max_loaded=1) as server, ThreadPoolExecutor(6) as pool:
        most = []

        def ask(name):
            server.ok(PATH, {"model": name, "prompt": "a", "max_tokens": 8, "ignore_eos": True})
            most.append(len(loaded(server)))

        list(pool.map(ask, ("one", "two", "three") * 4))
        assert max(most) == 1 and len(loaded(server)) == 1


@pytest.mark.parametrize("error", (asyncio.CancelledError, ModelError))
def test_a_load_that_ends_when_nobody_waits_any_more_is_no_fault(folder, error):
    """The server ends, or all who asked for the model have left."""
    unheard = []

    async def offload(*_):
        await asyncio.sleep(0)
        raise error("as it may be")

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))
        models = ModelRegistry(ServerConfig(models_dir=folder), offload)
        waiting = asyncio.ensure_future(models.acquire("one"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        (load,) = models._loading.values()
        while models._loading:
            await asyncio.sleep(0)
        assert load.cancelled() == (error is asyncio.CancelledError)
        assert models.failures == ({} if load.cancelled() else {"one": "as it may be"})
        del load
        gc.collect()

    asyncio.run(run())
    assert unheard == []


@mapped_files_stay
def test_a_file_that_was_written_to_is_refused_until_it_can_be_loaded_anew(folder):
    path, body = folder / "one.gguf", {"prompt": "Once", "max_tokens": 2, "temperature": 0}
    with asking(models_dir=folder, max_loaded=2) as server:
        wanted, other = (
            server.ok(PATH, {**body, "model": name})["choices"] for name in ("one", "two")
        )
        server.ok(PATH, {**body, "model": "one", "session": "held"})
        shutil.copyfile(embedded_path(), path)
        for more in ({}, {"session": "held"}):  # which is of the model as it was
            error = server.refused(PATH, {**body, "model": "one", **more}, 503)
            assert error["code"] == "engine_unavailable"
            assert "one.gguf: the file was changed after it was opened" in error["message"]
        assert server.ok(PATH, {**body, "model": "two"})["choices"] == other
        assert server.client.delete("/v1/sessions/held").status_code == 200
        assert server.ok(PATH, {**body, "model": "one"})["choices"] == wanted


@mapped_files_stay
def test_a_file_that_was_replaced_is_loaded_anew_once_nobody_uses_it(folder, cases):
    with asking(models_dir=folder) as server:
        body = {"model": "one", "prompt": "Once", "max_tokens": 2, "temperature": 0}
        before = server.ok(PATH, body)
        held = server.app.state.models.loaded()[0]
        held.users += 1
        new = folder / "new"
        shutil.copy(cases / "stories260K" / "stories260K-q8_0.gguf", new)
        os.replace(new, folder / "one.gguf")
        assert server.ok(PATH, body)["choices"] == before["choices"]
        held.users -= 1
        server.ok(PATH, body)
        assert server.app.state.models.loaded()[0] is not held
        size = server.get("/v1/models/one").json()["meta"]["n_vocab"]
        assert size == 512


def in_parts(folder, reader):
    """Write a model as a set of two files."""
    names = list(reader.tensors)
    for number, some in enumerate((names[:1], names[1:])):
        with GgufWriter(folder / "part", reader.metadata["general.architecture"]) as writer:
            writer.add("split.no", number, "uint16")
            writer.add("split.count", 2, "uint16")
            for key, value in () if number else reader.metadata.items():
                if key != "general.architecture":
                    writer.add(key, value, reader.kv_types[key])
            for name in some:
                info = reader.tensors[name]
                writer.add_tensor(
                    name, reader.data(name), type_name=info.type_name, shape=info.shape
                )
        os.replace(folder / "part", folder / f"m-0000{number + 1}-of-00002.gguf")


@mapped_files_stay
@pytest.mark.parametrize("changed", ("m-00002-of-00002.gguf", "lora.gguf", "draft.gguf"))
def test_a_file_beside_the_model_that_was_replaced_is_loaded_anew(tmp_path, changed):
    """Another part of its set, and what is loaded with it."""
    with GgufReader(embedded_path()) as reader:
        in_parts(tmp_path, reader)
        name, rng = "blk.0.attn_q.weight", np.random.default_rng(5)
        pair = random_pair(name, tuple(reader.tensors[name].shape), 4, rng)
        write_lora(tmp_path / "lora.gguf", reader.metadata["general.architecture"], {name: pair})
    shutil.copy(embedded_path(), tmp_path / "draft.gguf")
    with asking(
        model=tmp_path / "m-00001-of-00002.gguf",
        loras=[(tmp_path / "lora.gguf", 1.0)],
        engine={"speculative": str(tmp_path / "draft.gguf")},
    ) as server:
        body = {"prompt": "Once", "max_tokens": 2, "temperature": 0}
        choices = server.ok(PATH, body)["choices"]
        held = server.app.state.models.loaded()[0]
        assert server.ok(PATH, body)["choices"] == choices
        assert server.app.state.models.loaded()[0] is held
        shutil.copy(tmp_path / changed, tmp_path / "new")
        os.replace(tmp_path / "new", tmp_path / changed)
        assert server.ok(PATH, body)["choices"] == choices
        assert server.app.state.models.loaded()[0] is not held


@mapped_files_stay
def test_a_model_whose_file_is_removed_is_listed_while_it_is_in_memory(folder):
    path = folder / "one.gguf"
    with asking(model=path) as server:
        before = server.get("/v1/models").json()
        path.unlink()
        assert server.get("/v1/models").json() == before
        for where in ("/api/tags", "/api/ps"):  # of the file they say what is not known any more
            assert server.get(where).json() == {"models": []}
        assert server.get("/v1/models/one").json() == before["data"][0]
        server.ok("/api/generate", {"model": "one", "keep_alive": 0})
        assert server.get("/v1/models").json()["data"] == []
        error = server.get("/v1/models/one").json()["error"]
        assert (error["message"], error["code"]) == ("model: 'one' is gone", "model_not_found")


def test_names_with_slashes_are_names():
    with asking(alias="maker/model") as server:
        assert server.get("/v1/models/maker/model").json()["id"] == "maker/model"
        assert server.get("/v1/models/maker%2Fmodel").json()["id"] == "maker/model"
        error = server.get("/v1/models/maker/other").json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_what_is_no_file_is_no_model(folder):
    (folder / "folder.gguf").mkdir()
    with asking(models_dir=folder) as server:
        assert [each["id"] for each in server.get("/v1/models").json()["data"]] == ["one", "two"]
