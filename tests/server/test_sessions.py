"""Sessions by name survive a restart, bit for bit; names cannot lead out of the folder."""

import json
import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from oxillama.errors import ConfigError
from oxillama.media.features import MediaFeatures
from oxillama.media.placement import PlacedMedia, identities
from oxillama.media.prompt import ImagePrompt
from oxillama.server import ServerConfig, chat, create_app
from oxillama.server.errors import ApiError
from oxillama.server.models import ModelRegistry
from oxillama.server.sessions import truncate_to_common_prefix
from oxillama.snapshot.session import EngineSnapshot, Snapshots
from tests.server.conftest import asking

PATH = "/v1/completions"
BEGIN = {"prompt": "Once upon a time", "session": "a", "max_tokens": 8, "seed": 5, "temperature": 1}
GO_ON = {"session": "a", "max_tokens": 8}


def text(made):
    return made["choices"][0]["text"]


def test_a_session_goes_on_after_a_restart(tmp_path):
    with asking(sessions_dir=tmp_path) as server:
        first = text(server.ok(PATH, BEGIN))
        assert server.ok("/v1/sessions/a/fork", {"to": "b"})["tokens"] == 13
        without = text(server.ok(PATH, {**GO_ON, "session": "b", "max_tokens": 16}))
        server.ok("/v1/sessions/b/save", {})
    with asking(sessions_dir=tmp_path) as server:
        assert [each["name"] for each in server.get("/v1/sessions").json()["data"]] == ["a", "b"]
        parts = [text(server.ok(PATH, GO_ON)) for _ in range(2)]
        assert "".join(parts) == without
        whole = server.ok(PATH, {**BEGIN, "session": "c", "max_tokens": 24})
        assert text(whole) == first + without


def test_options_of_a_session_that_goes_on_change_what_they_name_alone(server):
    begin = {**BEGIN, "top_k": 3, "top_p": 1, "temperature": 2}
    whole = text(server.ok(PATH, {**begin, "session": "named", "max_tokens": 16}))
    first = text(server.ok(PATH, {**begin, "session": "going"}))
    second = text(server.ok(PATH, {**GO_ON, "session": "going", "temperature": 2}))
    assert first + second == whole


@pytest.mark.parametrize(("path", "most"), [(PATH, "max_tokens"), ("/completion", "n_predict")])
def test_a_session_is_appended_to_and_goes_on_as_in_the_engine(server, engine, path, most):
    """A text that follows others has no token before it that begins a text."""
    session, name = engine.session(), f"appended{most}"
    for prompt, options in (("Once", {"seed": 5}), (" Then", {"seed": 6}), (None, {}), ("", {})):
        given = {} if prompt is None else {"prompt": prompt}
        answer = server.ok(path, {**given, **options, "session": name, most: 8})
        found = answer["content"] if most == "n_predict" else text(answer)
        wanted = engine.generate(prompt or None, session=session, max_tokens=8, **options)
        assert found == wanted.text
    assert server.app.state.sessions.named(name).session.tokens == session.tokens
    assert session.tokens.count(session.tokens[0]) == 1
    server.client.delete(f"/v1/sessions/{name}")
    wrong = server.refused(path, {"session": name, most: 8})
    assert wrong["message"] == "prompt: is required, the session is new"
    assert server.refused(path, {most: 8})["message"] == "prompt: is required"


@pytest.mark.parametrize(("path", "most"), [(PATH, "max_tokens"), ("/completion", "n_predict")])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_session_that_another_request_begins_or_deletes_meanwhile_has_one_beginning(
    server, monkeypatch, path, most, deleted
):
    """The other request comes after this one has read its prompt."""
    name, sessions = f"meanwhile{most}{deleted}", server.app.state.sessions
    first = {"prompt": "Once", "session": name, "seed": 5, most: 4}
    if deleted:
        server.ok(path, first)
    known, others = sessions.begun, [lambda: server.ok(path, first)]
    if deleted:
        others = [lambda: server.client.delete(f"/v1/sessions/{name}")]

    def begun(*given):
        found = known(*given)
        if others:
            others.pop()()
        return found

    monkeypatch.setattr(sessions, "begun", begun)
    server.ok(path, {**first, "prompt": " Then"})
    tokens = sessions.named(name).session.tokens
    assert len(tokens) > 4 and [at for at, each in enumerate(tokens) if each == tokens[0]] == [0]
    assert tokens[0] == server.ok("/tokenize", {"content": "", "add_special": True})["tokens"][0]
    server.client.delete(f"/v1/sessions/{name}")


@pytest.mark.parametrize("path", [PATH, "/completion", "/v1/chat/completions"])
def test_a_request_in_a_slot_changes_no_session(server, path):
    """A slot holds what its last request evaluated, and goes on from there."""
    asked = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "a"}
    server.ok(path, {**asked, "session": "own", "max_tokens": 8})
    held = server.app.state.sessions.named("own").session
    before = list(held.tokens)
    one = {"prompt": "Tom", "n_predict": 4, "seed": 2, "id_slot": 0}
    alone = server.ok("/completion", one)["content"]
    assert list(held.tokens) == before and len(before) >= 9
    assert server.ok("/completion", one)["content"] == alone
    server.client.delete("/v1/sessions/own")


def test_names_that_differ_in_case_are_two_sessions(tmp_path, monkeypatch):
    """Where the file system takes them for one, too: the file of `a` is that of `A` there."""
    with asking(sessions_dir=tmp_path) as server:
        server.ok(PATH, BEGIN)
        server.ok("/v1/sessions/a/save", {})
    saved = (tmp_path / "a.session").read_bytes()
    monkeypatch.setattr(os, "listdir", lambda folder: ["A.session"])
    with asking(sessions_dir=tmp_path) as server:
        assert server.get("/v1/sessions/a").status_code == 404
        server.ok(PATH, {**BEGIN, "prompt": "Another"})
        error = server.refused("/v1/sessions/a/save", {}, 409)
        assert error["code"] == "exists" and "differs in case alone" in error["message"]
        assert server.client.delete("/v1/sessions/a").status_code == 200
    assert (tmp_path / "a.session").read_bytes() == saved


def test_a_fork_may_take_the_place_of_what_it_is_a_fork_of(tmp_path):
    with asking(sessions_dir=tmp_path, max_sessions=1) as server:
        server.ok(PATH, BEGIN)
        assert server.ok("/v1/sessions/a/fork", {"to": "b"})["tokens"] == 13
        assert [each["loaded"] for each in server.get("/v1/sessions").json()["data"]] == [
            False,
            True,
        ]
        texts = [text(server.ok(PATH, {**GO_ON, "session": name})) for name in ("b", "a")]
        assert texts[0] == texts[1] != ""
    with asking(max_sessions=1) as server:  # no folder: neither gives way
        server.ok(PATH, BEGIN)
        assert (
            server.refused("/v1/sessions/a/fork", {"to": "b"}, 429)["code"] == "too_many_sessions"
        )
        assert text(server.ok(PATH, GO_ON)) == texts[0]
        server.client.delete("/v1/sessions/a")
        assert server.app.state.models.loaded()[0].engine.metrics().pages_held == 0


def test_a_session_that_is_handed_over_goes_on_in_another_server(tmp_path):
    with asking(sessions_dir=tmp_path) as one, asking(sessions_dir=tmp_path) as other:
        one.ok(PATH, BEGIN)
        one.ok("/v1/sessions/a/fork", {"to": "b"})
        one.app.state.sessions.save_and_release("a")
        assert one.app.state.sessions.named("a") is None and one.app.state.sessions.named("b")
        assert text(other.ok(PATH, GO_ON)) == text(one.ok(PATH, {**GO_ON, "session": "b"}))
        one.app.state.sessions.save_and_release("nobody")  # has nothing to give


def test_a_chat_keeps_its_messages_and_its_answer(tmp_path):
    messages = [{"role": "user", "content": "Tell me a story"}]
    ask = {"messages": messages, "session": "talk", "max_tokens": 10, "seed": 3}
    path = "/v1/chat/completions"
    with asking(sessions_dir=tmp_path) as server:
        first = server.ok(path, ask)["choices"][0]["message"]
        plain = {name: value for name, value in ask.items() if name != "session"}
        assert server.ok(path, plain)["choices"][0]["message"] == first
    with asking(sessions_dir=tmp_path) as server:
        error = server.refused("/v1/sessions/talk/restore", {"messages": messages})
        assert error["param"] == "messages"
        found = server.ok("/v1/sessions/talk/restore", {})
        assert found["messages"] == [*messages, {"role": "assistant", "content": first["content"]}]
        more = [*found["messages"], {"role": "user", "content": "Go on"}]
        second = server.ok(path, {**ask, "messages": more})
        alone = server.ok(path, {**plain, "messages": more})
        assert second["choices"][0]["message"] == alone["choices"][0]["message"]
        streamed = server.chunks(path, {**ask, "messages": more})
        joined = "".join(each["choices"][0]["delta"].get("content") or "" for each in streamed[:-1])
        assert joined == second["choices"][0]["message"]["content"]


def test_usage_tells_what_a_session_held_already(server):
    messages = [{"role": "user", "content": "Tell me a story"}]
    ask = {"session": "counted", "max_tokens": 4, "temperature": 0, "cache_prompt": False}
    path = "/v1/chat/completions"
    answer = server.ok(path, {**ask, "messages": messages})["choices"][0]["message"]
    more = [*messages, {"role": "assistant", "content": answer["content"]}, messages[0]]
    usage = server.ok(path, {**ask, "messages": more})["usage"]
    fresh = server.ok(path, {**ask, "session": "fresh", "messages": more})["usage"]
    assert usage["prompt_tokens"] == fresh["prompt_tokens"]
    assert fresh["prompt_tokens_details"]["cached_tokens"] == 0
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] // 3
    for name in ("counted", "fresh"):
        server.client.delete(f"/v1/sessions/{name}")


def test_a_prompt_that_ends_in_an_image_takes_it_from_its_first_row():
    """At least one token is evaluated, and an image is so as a whole."""
    image = PlacedMedia(1, MediaFeatures(np.zeros((4, 2), np.float32)))
    own = identities([7, 0, 0, 0, 0, 9], (image,))
    cut = []
    session = SimpleNamespace(identities=own, media=(image,), truncate=cut.append)
    more = truncate_to_common_prefix(session, ImagePrompt([7, 0, 0, 0, 0], (image,)))
    assert (cut, list(more), more.media) == ([1], [0] * 4, (PlacedMedia(0, image.features),))
    whole = truncate_to_common_prefix(session, ImagePrompt([7, 0, 0, 0, 0, 9, 3], (image,)))
    assert (cut, list(whole)) == ([1, 6], [3])


def test_one_file_has_a_session_and_its_messages(tmp_path):
    """What interrupts a save leaves both as they were."""
    messages = [{"role": "user", "content": "Tell me a story"}]
    ask = {"session": "talk", "max_tokens": 4, "temperature": 0}
    path = "/v1/chat/completions"
    with asking(sessions_dir=tmp_path) as server:
        answer = server.ok(path, {**ask, "messages": messages})["choices"][0]["message"]
        assert server.ok("/v1/sessions/talk/save", {})["saved"] is True
        (file,) = tmp_path.iterdir()
        found = EngineSnapshot.inspect(file)
        assert json.loads(found.note) == {
            "model": "oxillama-embedded",
            "messages": [*messages, {"role": "assistant", "content": answer["content"]}],
        }
        saved, held = file.read_bytes(), server.get("/v1/sessions/talk").json()
        more = [*messages, {"role": "assistant", "content": answer["content"]}, messages[0]]
        server.ok(path, {**ask, "messages": more})
        assert server.app.state.sessions.saved_info("talk")["messages"] == held["messages"]
        assert server.app.state.sessions.saved_info("talk")["tokens"] == held["tokens"]
        assert file.read_bytes() == saved
        restored = server.ok("/v1/sessions/talk/restore", {})
        assert restored == held


@pytest.mark.parametrize("note", (None, b"{", b"[1]", b'{"model": 1, "messages": 2}'))
def test_a_snapshot_of_another_writer_is_a_session_without_messages(tmp_path, note):
    with asking(sessions_dir=tmp_path) as server:
        server.ok(PATH, {**BEGIN, "session": "own"})
        session = server.app.state.sessions.named("own").session
        session.owner.require_snapshots().to_file(session, tmp_path / "other.session", note=note)
        assert server.refused("/v1/sessions/other", {}, 409)["code"] == "exists"
        assert server.get("/v1/sessions/other").json()["loaded"] is False
        assert server.ok("/v1/sessions/other/fork", {"to": "copy"})["tokens"] == len(session)
        found = server.ok("/v1/sessions/other/restore", {})
        assert found["messages"] is None and found["tokens"] == len(session)
        go_on = {**GO_ON, "temperature": 0}
        here = text(server.ok(PATH, {**go_on, "session": "own"}))
        assert text(server.ok(PATH, {**go_on, "session": "other"})) == here


def test_sessions_are_made_listed_saved_and_deleted(tmp_path):
    with asking(sessions_dir=tmp_path) as server:
        talk = [{"role": "user", "content": "Hi"}]
        made = server.ok("/v1/sessions/x", {"messages": talk})
        assert (made["tokens"], made["messages"]) == (0, talk)
        assert server.refused("/v1/sessions/x", {}, 409)["code"] == "exists"
        assert server.refused("/v1/sessions/x/fork", {"to": "x"}, 409)["param"] == "to"
        assert server.refused(PATH, {"session": "x"})["param"] == "prompt"
        server.ok(PATH, {**BEGIN, "session": "x"})
        saved = server.ok("/v1/sessions/x/save", {})
        assert saved["saved"] is True
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x.session"]
        assert saved["bytes"] == (tmp_path / "x.session").stat().st_size
        (tmp_path / "-x.session").write_bytes(b"no name of a session")
        (listed,) = server.get("/v1/sessions").json()["data"]
        assert (listed["name"], listed["loaded"], listed["saved"]) == ("x", True, True)
        (tmp_path / "-x.session").unlink()
        deleted = server.client.delete("/v1/sessions/x").json()
        assert deleted == {"name": "x", "object": "session", "deleted": True}
        assert list(tmp_path.iterdir()) == []
        assert server.get("/v1/sessions/x").status_code == 404
        for action in ("save", "restore"):
            assert server.refused(f"/v1/sessions/x/{action}", {}, 404)["param"] == "session"


def test_a_session_that_comes_while_one_of_its_name_is_made_is_kept(monkeypatch):
    """The model may be loaded in between, which takes long."""
    talk, take = [{"role": "user", "content": "Hi"}], ModelRegistry.take
    with asking() as server:
        held = server.app.state.sessions

        def late(self, name):
            model = take(self, name)
            held.get("a", model, create=True).messages = talk
            return model

        monkeypatch.setattr(ModelRegistry, "take", late)
        error = server.refused("/v1/sessions/a", {}, 409)
        assert (error["code"], error["param"]) == ("exists", "name")
        assert server.get("/v1/sessions/a").json()["messages"] == talk


def test_a_session_on_which_a_request_runs_stays(tmp_path):
    body = {"session": "a", "prompt": "Once", "max_tokens": 900, "ignore_eos": True}
    with asking(sessions_dir=tmp_path) as server:
        held, ended = server.app.state.sessions, []
        (model,) = server.app.state.models.loaded()
        worker = threading.Thread(target=lambda: ended.append(server.ok(PATH, body)))
        worker.start()
        while not any(job.generated for job in server.app.state.active):
            assert worker.is_alive()
        with model.engine.raw_loop():  # no step runs while it is open
            answer = server.client.delete("/v1/sessions/a")
            with pytest.raises(ApiError, match="a request is running on it"):
                held.save_and_release("a")
            held.save_and_release_all(model)
            forked = server.post("/v1/sessions/a/fork", {"to": "b"})
            (busy,) = server.get("/v1/sessions").json()["data"]
        worker.join()
        for refused in (answer, forked):
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "session_busy")
        assert (busy["name"], busy["busy"], busy["loaded"]) == ("a", True, True)
        found = server.get("/v1/sessions/a").json()
        assert (found["busy"], found["tokens"]) == (False, ended[0]["usage"]["total_tokens"])


def test_a_request_that_is_refused_leaves_its_session_as_it_was(server):
    def chat(*messages, **more):
        return {"session": "kept", "max_tokens": 8, "temperature": 0, "messages": messages, **more}

    path, first = "/v1/chat/completions", {"role": "user", "content": "Tell me a story"}
    said = server.ok(path, chat(first))["choices"][0]["message"]["content"]
    before = server.get("/v1/sessions/kept").json()
    assert [each["content"] for each in before["messages"]] == ["Tell me a story", said]
    other = {"role": "user", "content": "word " * 2000}
    refused = [chat(first, other), chat(other), chat({**first, "content": "x"}, min_tokens=9)]
    for body in refused:
        server.refused(path, body)
        assert server.get("/v1/sessions/kept").json() == before
    go_on = {"session": "kept", "max_tokens": 4, "temperature": 0}
    rest = text(server.ok(PATH, go_on))
    again = server.ok(path, {**chat(first), "session": "whole", "max_tokens": 12})
    assert again["choices"][0]["message"]["content"] == said + rest
    for body in refused:
        server.refused(path, {**body, "session": "unheard"})
        assert server.get("/v1/sessions/unheard").status_code == 404
    for where in (PATH, "/completion"):
        body = {"session": "unheard", "prompt": "word " * 300, "max_tokens": 8, "min_tokens": 9}
        server.refused(where, body)
        assert server.get("/v1/sessions/unheard").status_code == 404
    for where in (PATH, "/completion"):
        body = {"session": "unheard", "max_tokens": 4, **({} if where == PATH else {"prompt": []})}
        server.refused(where, body)
        server.refused(where, {**body, "prompt": ""} if where == PATH else body)
        assert server.get("/v1/sessions/unheard").status_code == 404


@pytest.mark.parametrize("name", ["..", ".hidden", "a b", "-x", "x" * 65, "é"])
def test_bad_names_are_refused(server, name):
    for path in (f"/v1/sessions/{name}", f"/v1/sessions/{name}/save"):
        answer = server.post(path, {})
        assert answer.status_code in (400, 404, 405)
        assert "error" in answer.json()
    assert server.refused(PATH, {**BEGIN, "session": name})["param"] == "session"


@pytest.mark.parametrize("path", ["/v1/sessions/..%2f..%2fx", "/v1/sessions/%2e%2e/save"])
def test_paths_in_names_lead_nowhere(server, path):
    assert server.post(path, {}).status_code in (400, 404, 405)


def test_nothing_is_saved_without_a_folder():
    with asking() as server:
        server.ok(PATH, BEGIN)
        assert server.refused("/v1/sessions/a/save", {})["code"] == "sessions_not_saved"
        assert server.get("/v1/sessions/a").json()["saved"] is False


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "bad.session").write_bytes(b"nothing")
    with asking(sessions_dir=tmp_path) as server:
        error = server.refused("/v1/sessions/bad/restore", {}, 409)
        assert error["code"] == "snapshot_incompatible"
        assert server.refused(PATH, {**GO_ON, "session": "bad"}, 409)["param"] == "session"


def test_the_oldest_session_leaves_memory_for_the_folder(tmp_path):
    with asking(sessions_dir=tmp_path, max_sessions=1) as server:
        server.ok(PATH, BEGIN)
        server.ok(PATH, {**BEGIN, "session": "b"})
        found = {each["name"]: each for each in server.get("/v1/sessions").json()["data"]}
        assert (found["a"]["loaded"], found["b"]["loaded"]) == (False, True)
        server.ok(PATH, GO_ON)
    with asking(max_sessions=1) as server:
        server.ok(PATH, BEGIN)
        answer = server.post(PATH, {**BEGIN, "session": "b"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_sessions")


def test_the_session_used_longest_ago_makes_room(tmp_path):
    with asking(sessions_dir=tmp_path, max_sessions=2) as server:
        for name in ("a", "b", "a", "c"):
            server.ok(PATH, {"prompt": "x", "session": name, "max_tokens": 1})
        loaded = {e["name"]: e["loaded"] for e in server.get("/v1/sessions").json()["data"]}
        assert loaded == {"a": True, "b": False, "c": True}


def test_sessions_that_come_while_others_are_looked_through_do_not_matter(server):
    sessions = server.app.state.sessions

    class Late:
        """A session during whose look another one comes, as from another thread."""

        @property
        def model(self):
            sessions._named[f"later {len(sessions._named)}"] = None

    before = set(sessions._named)
    sessions._named |= {"late": Late(), "last": Late()}
    try:
        assert not sessions.holds("a model")
        assert len(sessions._named) == len(before) + 4
    finally:
        for name in set(sessions._named) - before:
            sessions._named.pop(name, None)


def while_saving(monkeypatch, meanwhile):
    """Calls `meanwhile()` once, when a session has been written and its save has not returned."""
    write, left = Snapshots.to_file, [meanwhile]

    def to_file(*arguments, **options):
        write(*arguments, **options)
        while left:
            left.pop()()

    monkeypatch.setattr(Snapshots, "to_file", to_file)


def test_a_session_that_goes_on_while_it_is_saved_has_changed(tmp_path, monkeypatch):
    with asking(sessions_dir=tmp_path) as server:
        server.ok(PATH, BEGIN)
        server.ok("/v1/sessions/a/fork", {"to": "b"})
        without = text(server.ok(PATH, {**GO_ON, "session": "b", "max_tokens": 16}))
        parts = []
        while_saving(monkeypatch, lambda: parts.append(text(server.ok(PATH, GO_ON))))
        saved = server.ok("/v1/sessions/a/save", {})
        assert len(parts) == 1 and not saved["saved"]
    with asking(sessions_dir=tmp_path) as server:  # what came meanwhile was saved at the end
        parts.append(text(server.ok(PATH, GO_ON)))
        assert "".join(parts) == without


def test_a_session_that_is_deleted_while_it_is_saved_does_not_come_back(tmp_path, monkeypatch):
    with asking(sessions_dir=tmp_path) as server:
        server.ok(PATH, BEGIN)
        held = server.app.state.sessions
        deleting = threading.Thread(target=held.delete, args=("a",))

        def delete():
            deleting.start()
            deleting.join(0.05)

        while_saving(monkeypatch, delete)
        server.ok("/v1/sessions/a/save", {})
        deleting.join(60)
        assert server.get("/v1/sessions").json()["data"] == [] and not list(tmp_path.iterdir())
        # one that was about to be saved when it was deleted
        named = held.get("late", server.app.state.models.loaded()[0], create=True)
        held.delete("late")
        with pytest.raises(ApiError, match="late: is unknown"):
            held._write(named, held.path("late"))
        assert not list(tmp_path.iterdir())


def test_saves_of_one_session_come_one_after_the_other(tmp_path, monkeypatch):
    with asking(sessions_dir=tmp_path) as server:
        server.ok(PATH, BEGIN)
        held, again = server.app.state.sessions, []
        saving = threading.Thread(target=lambda: again.append(held.save("a")["tokens"]))

        def save():
            server.ok(PATH, GO_ON)
            saving.start()
            saving.join(0.05)
            assert saving.is_alive()  # the newer state is not written before the older one

        while_saving(monkeypatch, save)
        server.ok("/v1/sessions/a/save", {})
        saving.join(60)
        assert again == [21] and held.saved_info("a")["tokens"] == 21
        assert not held.named("a").changed


def test_a_session_on_which_a_request_is_about_to_run_stays_in_memory(tmp_path):
    with asking(sessions_dir=tmp_path, max_sessions=1) as server:
        server.ok(PATH, BEGIN)
        held, model = server.app.state.sessions, server.app.state.models.loaded()[0]
        with held.held("a", model) as named:
            code = server.refused(PATH, {**BEGIN, "session": "b"}, 429)["code"]
            assert code == "too_many_sessions"
            answer = server.client.delete("/v1/sessions/a")
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_busy")
            with pytest.raises(ApiError, match="a request is running on it"):
                held.save_and_release("a")
            assert named.session.kv.length
        server.ok(PATH, {**BEGIN, "session": "b"})


@pytest.mark.parametrize("stream", (False, True))
def test_an_answer_in_a_session_that_is_gone_when_it_ends_is_whole(tmp_path, monkeypatch, stream):
    messages = [{"role": "user", "content": "Tell me a story"}]
    ask = {"messages": messages, "session": "talk", "max_tokens": 4, "seed": 3}
    path = "/v1/chat/completions"
    remember = chat._remember
    with asking(sessions_dir=tmp_path) as server:

        def late(*arguments):
            server.app.state.sessions.delete("talk")
            remember(*arguments)

        plain = {name: value for name, value in ask.items() if name != "session"}
        want = server.chunks(path, plain) if stream else server.ok(path, plain)
        monkeypatch.setattr(chat, "_remember", late)
        found = server.chunks(path, ask) if stream else server.ok(path, ask)
        assert server.get("/v1/sessions").json()["data"] == []
        if stream:
            assert found[-1] == "[DONE]"
            found, want = found[1:-1], want[1:-1]
            assert [e["choices"] for e in found] == [e["choices"] for e in want]
        else:
            assert found["choices"] == want["choices"]


def test_the_end_of_an_answer_waits_for_no_other_session(tmp_path, monkeypatch):
    """The lock of all sessions may be held for as long as the disk needs."""
    remember, free = chat._remember, threading.Event()
    ask = {"messages": [{"role": "user", "content": "Hi"}], "session": "talk", "max_tokens": 2}
    with asking(sessions_dir=tmp_path) as server:
        held = server.app.state.sessions

        def hold():
            with held._lock:
                taken.set()
                free.wait(60)

        holder, taken = threading.Thread(target=hold), threading.Event()

        def late(*arguments):
            holder.start()
            taken.wait(60)
            remember(*arguments)

        monkeypatch.setattr(chat, "_remember", late)
        made = server.ok("/v1/chat/completions", ask)
        assert holder.is_alive()
        free.set()
        holder.join(60)
        assert (
            held.named("talk").messages[-1]["content"] == made["choices"][0]["message"]["content"]
        )


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path, monkeypatch):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and access(path, mode))
    with pytest.raises(ConfigError, match=r"^sessions_dir: .* cannot be written, wanted a folder"):
        create_app(ServerConfig(sessions_dir=tmp_path))


def test_a_session_without_space_is_the_servers_failure(tmp_path):
    with asking(sessions_dir=tmp_path / "sessions") as server:
        server.ok("/v1/sessions/s", {})
        (tmp_path / "sessions").rmdir()
        error = server.refused("/v1/sessions/s/save", {}, 507)
        assert (error["type"], error["code"]) == ("server_error", "session_not_written")
        (tmp_path / "sessions").mkdir()
