"""What only sockets show: slow, broken and half-closed connections, and clients that leave."""

import contextlib
import gc
import io
import json
import re
import socket
import threading
import time

import pytest

import oxillama
from oxillama.server import ServerConfig, calls, create_app, protocol, run, transcriptions
from oxillama.server.logs import Log
from tests.server.conftest import Listening

GEN = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}


def request(method, path, body=b"", **headers):
    """A request's bytes."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    fields = {"Host": "localhost", "Content-Length": str(len(body)), **given}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def dial(listening):
    made = socket.create_connection(listening.address)
    made.settimeout(8)
    return made


def answer(listening, data, *, half=False):
    """All that the server says until it closes."""
    with dial(listening) as made:
        made.sendall(data)
        if half:
            made.shutdown(socket.SHUT_WR)
        return rest(made)


def rest(made):
    out = b""
    try:
        while piece := made.recv(65536):
            out += piece
    except ConnectionError:
        pass
    return out


def status(data):
    return int(data.split(b" ", 2)[1])


def error_of(data):
    return json.loads(data.split(b"\r\n\r\n", 1)[1])["error"]


@pytest.mark.parametrize(
    "data, wanted",
    [
        (b"\x00\x01 nothing\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", 400),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
            b"Content-Length: 2\r\n\r\n{}",
            400,
        ),
        (
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"z\r\n",
            400,
        ),
        (
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            400,
        ),
        (request("POST", "/tokenize", b"{}", Content_Length="99999999999"), 413),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000, 431),
        (request("GET", "/health", X="a" * 40_000), 431),
        (request("POST", "/tokenize", b"[" * 100_000, Connection="close"), 400),
    ],
)
def test_what_is_no_request_is_answered_and_closed(listening, data, wanted):
    found = answer(listening, data)
    assert status(found) == wanted
    assert set(error_of(found)) >= {"message", "type", "param", "code"}


@pytest.mark.parametrize("offered", ["h2c", "websocket"])
def test_a_protocol_that_is_offered_changes_nothing(listening, offered, caplog):
    upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": offered}
    assert status(answer(listening, request("GET", "/health", **upgrade))) == 200
    assert caplog.messages == []  # which would be uvicorn's advice to install a library


def test_an_idle_connection_has_the_seconds_that_were_given():
    app = create_app(idle_timeout=0.25)
    assert run.uvicorn_config(app).timeout_keep_alive == 0.25


def test_a_head_that_comes_byte_by_byte_is_given_up(listening):
    began = time.monotonic()
    with dial(listening) as made:
        try:
            for byte in b"GET /health HTTP/1.1\r\n" * 40:
                made.sendall(bytes([byte]))
                time.sleep(0.01)
        except ConnectionError:
            pass
        else:
            raise AssertionError("the server read on")
    assert time.monotonic() - began < 3
    with dial(listening) as made:
        made.sendall(b"GET /hea")
        assert status(rest(made)) == 408


def test_a_silent_connection_is_closed(listening):
    with dial(listening) as made:
        assert rest(made) == b""


def test_a_connection_that_was_used_is_closed_when_it_is_idle(listening):
    with dial(listening) as made:
        made.sendall(request("GET", "/health"))
        assert status(rest(made)) == 200


def test_a_second_head_that_stays_unfinished_is_given_up(listening):
    with dial(listening) as made:
        made.sendall(request("GET", "/health"))
        made.recv(65536)
        made.sendall(b"GET /hea")
        assert status(rest(made)) == 408


def test_a_body_that_does_not_come_is_given_up(listening):
    data = request("POST", "/tokenize", b'{"con', Content_Length="50")
    assert status(answer(listening, data)) == 408


def test_bodies_that_come_slowly_take_a_bounded_amount_of_memory(monkeypatch):
    monkeypatch.setattr(calls, "_ARRIVING", 1 << 19)
    made = Listening(body_bytes=1 << 18, body_timeout=5.0)
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
    try:
        slow = []
        for _ in range(4):
            slow.append(socket.create_connection(made.address))
            slow[-1].sendall(head + b" " * 150_000)
        answers = []
        for each in slow:
            each.settimeout(1.0)
            with contextlib.suppress(TimeoutError):
                answers.append(each.recv(4096).split(b"\r\n")[0])
        assert answers == [b"HTTP/1.1 503 Service Unavailable"]
        for each in slow:
            each.close()
        end = time.monotonic() + 10
        while made.app.state.arriving:
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        made.stop()


def test_half_closed_connections_are_answered(listening):
    assert status(answer(listening, b"GET /hea", half=True)) == 400
    half = request("POST", "/v1/completions", b'{"pro', Content_Length="50")
    found = answer(listening, half, half=True)
    assert (status(found), error_of(found)["code"]) == (400, "incomplete_body")
    assert status(answer(listening, request("GET", "/health"), half=True)) == 200
    found = answer(listening, request("POST", "/v1/completions", GEN), half=True)
    assert (status(found), error_of(found)["code"]) == (400, "client_closed_request")
    assert idle(listening)


def test_a_stream_goes_on_for_a_client_that_closed_its_sending_side(listening):
    body = {**GEN, "max_tokens": 200, "stream": True}
    with dial(listening) as made:
        made.sendall(request("POST", "/v1/completions", body))
        first = made.recv(200)
        made.shutdown(socket.SHUT_WR)
        found = first + rest(made)
    assert found.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") or b"[DONE]" in found


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate"])
def test_a_stream_begins_for_a_client_that_has_closed_its_sending_side(listening, path):
    body = {"model": "oxillama-embedded", "prompt": "Once upon a time", "stream": True}
    body |= {"options": {"num_predict": 50}} if path[1:4] == "api" else {"max_tokens": 50}
    found = answer(listening, request("POST", path, body), half=True)
    last = b"data: [DONE]" if path[1:3] == "v1" else b'"done":true'
    assert status(found) == 200 and last in found
    assert b"\n\n" not in found or path[1:3] == "v1"  # lines of JSON have none that is empty
    wrong = request("POST", path, {**body, "model": 5})
    assert status(answer(listening, wrong, half=True)) == 400


def test_a_client_that_leaves_before_its_stream_begins_frees_its_place(listening, monkeypatch):
    (model,), go_on = listening.app.state.models.loaded(), []
    body = {**GEN, "stream": True, "n": 3}
    original = type(model.engine).submit

    def slow(self, *given, **options):
        go_on.append(threading.Event())
        assert go_on[0].wait(20)
        return original(self, *given, **options)

    monkeypatch.setattr(type(model.engine), "submit", slow)
    with dial(listening) as made:
        made.sendall(request("POST", "/v1/completions", body))
        end = time.monotonic() + 5
        while not go_on:
            assert time.monotonic() < end
            time.sleep(0.001)
    assert idle(listening, 5)
    go_on[0].set()


def idle(listening, seconds=1.0):
    """Whether no request runs, within a moment."""
    end = time.monotonic() + seconds
    while listening.app.state.jobs:
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(listening, stream):
    state = listening.app.state
    with dial(listening) as made:
        made.sendall(request("POST", "/v1/completions", {**GEN, "stream": stream}))
        end = time.monotonic() + 5
        while not any(job.generated for job in state.jobs.values()):
            assert time.monotonic() < end
            time.sleep(0.001)
        (job,) = state.jobs.values()
    assert idle(listening)
    job.requests[0].wait()
    assert job.requests[0].finish_reason == "cancelled"
    assert job.generated < 900


def test_a_client_that_leaves_before_its_prompt_is_prepared_is_forgotten(listening):
    for _ in range(5):
        with dial(listening) as made:
            made.sendall(request("POST", "/v1/completions", GEN))
    assert idle(listening)


@pytest.fixture
def alone():
    """A server that no other test's requests still come to."""
    made = Listening()
    yield made
    made.stop()


def test_a_client_that_leaves_while_its_model_is_loaded_is_noticed_at_once(alone, monkeypatch):
    state, load = alone.app.state, oxillama.load
    asked, go_on = threading.Event(), threading.Event()

    def slow(*given, **options):
        asked.set()
        assert go_on.wait(20)
        return load(*given, **options)

    monkeypatch.setattr(oxillama, "load", slow)
    unload = {"model": "oxillama-embedded", "keep_alive": 0}
    answer(alone, request("POST", "/api/generate", unload, Connection="close"))
    with dial(alone) as connection:
        connection.sendall(request("POST", "/v1/completions", GEN))
        assert asked.wait(20)
    end = time.monotonic() + 5
    while not state.disconnects:
        assert time.monotonic() < end
        time.sleep(0.002)
    assert state.models.loaded() == []
    go_on.set()
    found = answer(alone, request("GET", "/props", Connection="close"))
    assert status(found) == 200 and state.models.loaded()[0].users == 0


def test_a_client_that_leaves_ends_its_transcription(alone, monkeypatch):
    state, options = alone.app.state, {"max_tokens": 900, "ignore_eos": True}
    monkeypatch.setattr(
        transcriptions, "_submit", lambda model, _: model.engine.submit(GEN["prompt"], **options)
    )
    part = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nsound\r\n--x--\r\n'
    kind = {"Content_Type": "multipart/form-data; boundary=x"}
    with dial(alone) as connection:
        connection.sendall(request("POST", "/v1/audio/transcriptions", part, **kind))
        end = time.monotonic() + 5
        while not any(job.generated for job in state.jobs.values()):
            assert time.monotonic() < end
            time.sleep(0.001)
        (job,) = state.jobs.values()
    assert idle(alone)
    job.requests[0].wait()
    assert job.requests[0].finish_reason == "cancelled"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_its_prompt_is_prepared_is_counted(
    alone, monkeypatch, path, stream
):
    (model,), state = alone.app.state.models.loaded(), alone.app.state
    engine, asked, go_on, made = type(model.engine), threading.Event(), threading.Event(), []
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else GEN
    original = engine.submit

    def slow(self, *given, **options):
        asked.set()
        assert go_on.wait(20)
        made.append(original(self, *given, **options))
        return made[0]

    monkeypatch.setattr(engine, "submit", slow)
    with dial(alone) as connection:
        connection.sendall(request("POST", path, {**prompt, "stream": stream}))
        assert asked.wait(20)
        assert state.waiting(model.name) == 1
    assert idle(alone, 20)
    go_on.set()
    end = time.monotonic() + 20
    while not made:
        assert time.monotonic() < end
        time.sleep(0.001)
    # what was made all the same is ended, and not counted again
    made[0].wait()
    assert made[0].finish_reason == "cancelled"
    assert state.metrics[model.name].finished == {"abort": 1}
    # what is refused while it is prepared was no request of the engine
    monkeypatch.setattr(engine, "submit", lambda *given, **options: original(given))
    assert status(answer(alone, request("POST", path, prompt, Connection="close"))) >= 400
    assert state.metrics[model.name].finished == {"abort": 1}


def test_what_is_refused_when_its_client_has_left_is_logged_nowhere_else(
    alone, monkeypatch, caplog
):
    """Such as a prompt that is too long: asyncio would write the error, and so its text, below the
    server's log.
    """
    (model,), state = alone.app.state.models.loaded(), alone.app.state
    asked, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def refuse(*given, **options):
        asked.set()
        assert go_on.wait(20)
        raise oxillama.ContextError("prompt: secret")

    monkeypatch.setattr(type(model.engine), "submit", refuse)
    with dial(alone) as connection:
        connection.sendall(request("POST", "/v1/completions", GEN))
        assert asked.wait(20)
    end = time.monotonic() + 20
    while state.disconnects < 1:
        assert time.monotonic() < end
        time.sleep(0.001)
    go_on.set()
    state.pool.submit(lambda: None).result(20)
    alone.server._loop.call_soon_threadsafe(
        lambda: alone.server._loop.call_later(0.05, lambda: (gc.collect(), ended.set()))
    )
    assert ended.wait(20)
    assert [each.name for each in caplog.records if each.name == "asyncio"] == []


def test_a_client_that_does_not_read_is_given_up(listening):
    body = {
        "prompt": ["Once"] * 60,
        "max_tokens": 900,
        "ignore_eos": True,
        "logprobs": 5,
        "stream": True,
    }
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        made.connect(listening.address)
        made.sendall(request("POST", "/v1/completions", body))
        end = time.monotonic() + 15
        while not listening.app.state.jobs:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert idle(listening, 15)


def test_health_answers_while_a_long_prompt_is_read(listening):
    body = {"content": "hello world, " * 8000}
    worker = threading.Thread(
        target=lambda: answer(listening, request("POST", "/tokenize", body, Connection="close"))
    )
    worker.start()
    answers = 0
    while worker.is_alive() or not answers:
        found = answer(listening, request("GET", "/health", Connection="close"))
        assert status(found) == 200
        answers += 1
    assert answers


def test_a_whole_uri_is_its_path_where_it_names_this_host(listening):
    for host, wanted in (("localhost", 200), ("example.org", 404)):
        assert status(answer(listening, request("GET", f"http://{host}/version"))) == wanted


def test_requests_on_one_connection_follow_one_another(listening):
    with dial(listening) as made:
        made.sendall(request("GET", "/health") + request("GET", "/version", Connection="close"))
        found = rest(made)
    assert found.count(b"HTTP/1.1 200 OK") == 2 and b'"version"' in found


@pytest.mark.parametrize("body", [b"{bad", b"{}", b'{"prompt": 1}', b'{"prompt":"a","n":0}', b"[]"])
def test_a_connection_goes_on_after_a_body_that_was_refused(listening, body):
    refused = request("POST", "/v1/completions", body)
    found = answer(listening, refused + request("GET", "/version", Connection="close"))
    assert found.count(b"HTTP/1.1 400") == 1 and found.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    ("more", "wanted"),
    [({"Content_Type": "text/plain"}, 415), ({"X_Long": "x" * (8 << 20)}, 431)],
)
def test_a_client_that_sends_still_is_not_reset(listening, more, wanted):
    """Most clients read an answer once they have sent all, and a reset takes it from them."""
    with dial(listening) as made:
        made.sendall(request("POST", "/v1/completions", b"x" * (8 << 20), **more))
        out = b""
        while piece := made.recv(65536):
            out += piece
    assert status(out) == wanted


def test_a_body_that_was_refused_is_not_read_for_ever(listening, monkeypatch):
    monkeypatch.setattr(protocol, "_LINGER", 0.05)
    with dial(listening) as made:
        made.sendall(
            request("POST", "/tokenize", b"", Content_Type="text/plain", Content_Length="5000")
        )
        assert status(rest(made)) == 415
        with pytest.raises(ConnectionError):
            for _ in range(300):
                made.sendall(b"x")
                time.sleep(0.01)


def test_no_file_descriptor_is_left(listening):
    import os

    def count():
        return len(os.listdir("/proc/self/fd"))

    answer(listening, request("GET", "/health", Connection="close"))
    before = count()
    for _ in range(30):
        with dial(listening) as made:
            made.sendall(request("POST", "/v1/completions", {**GEN, "stream": True}))
    assert idle(listening)
    end = time.monotonic() + 10
    while count() > before and time.monotonic() < end:
        time.sleep(0.02)
    assert count() <= before


@pytest.mark.parametrize(
    "path, body, last",
    [
        ("/v1/completions", {"prompt": "Once"}, b"data: [DONE]"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, b"data: [DONE]"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}, b"event: error"),
        ("/v1/responses", {"input": "x"}, b"event: response.failed"),
        ("/completion", {"prompt": "Once"}, b'data: {"error"'),
        (
            "/api/generate",
            {"prompt": "Once", "model": "oxillama-embedded", "raw": True},
            b'{"error"',
        ),
    ],
)
def test_an_error_in_the_middle_of_a_stream_is_an_event_and_its_end(listening, path, body, last):
    body = {**body, "stream": True}
    if path.startswith("/api"):
        body["options"] = {"num_predict": 900, "ignore_eos": True}
    else:
        most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        body.update({most: 900, "ignore_eos": True})
    with dial(listening) as made:
        made.sendall(request("POST", path, body, Connection="close"))
        first = made.recv(400)
        assert status(first) == 200
        (job,) = listening.app.state.jobs.values()
        loop = job.model.engine.loaded.core._loop
        with loop._lock:
            loop.tracker.end(job.requests[0], None, RuntimeError("Qz7 is private"))
        found = first + rest(made)
    frames = [each for each in found.split(b"\r\n") if each.strip()]
    assert last in frames[-2] and b"internal error: RuntimeError" in found
    assert b"Qz7" not in found  # no story says that
    assert idle(listening)


def test_a_stream_that_waits_sends_comments():
    made = Listening(sse_ping_interval=0.05, idle_timeout=0.2)
    try:
        ask = {"prompt": "Once upon a time", "n_predict": 8, "seed": 3, "stream": True}
        path = "/completion"
        alone = answer(made, request("POST", path, ask))
        with dial(made) as other, dial(made) as waiting:
            other.sendall(
                request("POST", path, {**ask, "n_predict": 900, "ignore_eos": True, "id_slot": 1})
            )
            assert status(other.recv(65536)) == 200
            waiting.sendall(request("POST", path, {**ask, "id_slot": 1}))
            found = b""
            while found.count(b":\n\n") < 2:
                found += waiting.recv(65536)
            assert status(found) == 200 and b"data:" not in found
            other.close()
            found += rest(waiting)
        texts = [re.findall(rb'"content":"(.*?)"', each) for each in (found, alone)]
        assert texts[0] == texts[1] and len(texts[0]) > 2
    finally:
        made.stop()


@pytest.mark.parametrize(
    "path, more, empty",
    [
        ("/api/generate", {"prompt": "Once"}, {"response": ""}),
        ("/api/generate", {"prompt": "Once", "raw": True}, {"response": ""}),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "Once"}]},
            {"message": {"role": "assistant", "content": ""}},
        ),
    ],
)
def test_lines_of_json_that_wait_send_empty_ones(path, more, empty):
    engine = {"scheduler": oxillama.SchedulerConfig(max_sequences=1)}
    made = Listening(sse_ping_interval=0.05, idle_timeout=0.2, engine=engine)
    ask = {"model": "oxillama-embedded", "options": {"num_predict": 8, "seed": 3}, **more}
    try:
        alone = json.loads(
            answer(made, request("POST", path, {**ask, "stream": False})).split(b"\r\n\r\n")[1]
        )
        with dial(made) as other, dial(made) as waiting:
            long = {"prompt": "Once", "n_predict": 900, "ignore_eos": True, "stream": True}
            other.sendall(request("POST", "/completion", long))
            assert status(other.recv(65536)) == 200
            waiting.sendall(request("POST", path, ask))
            found = b""
            while found.count(b'"done":false') < 2:
                found += waiting.recv(65536)
            other.close()
            found += rest(waiting)
        lines = [json.loads(line) for line in re.findall(rb"\{.*\}", found)]
        for line in lines[:2]:
            assert {name: line[name] for name in empty} == empty
            assert set(line) == {"model", "created_at", "done", *empty}
        texts = [line.get("response", line.get("message", {}).get("content")) for line in lines]
        whole = alone.get("response", alone.get("message", {}).get("content"))
        assert "".join(texts) == whole and whole
    finally:
        made.stop()


def test_what_the_end_of_the_server_cuts_is_told():
    from tests.server.conftest import Listening

    made = Listening(grace=0.1)
    whole, found = {**GEN, "prompt": ["Once"] * 60}, []
    with dial(made) as streaming:
        streaming.sendall(request("POST", "/v1/completions", {**GEN, "stream": True}))
        first = streaming.recv(400)
        data = request("POST", "/v1/completions", whole)
        worker = threading.Thread(target=lambda: found.append(answer(made, data)))
        worker.start()
        end = time.monotonic() + 10
        while len(made.app.state.jobs) < 30:
            assert time.monotonic() < end
        made.stop()
        streamed = first + rest(streaming)
    worker.join(60)
    assert (status(found[0]), error_of(found[0])["code"]) == (503, "shutting_down")
    assert status(streamed) == 200
    assert b"shutting_down" in streamed and b"data: [DONE]" in streamed


def test_the_end_does_not_wait_for_what_nobody_waits_for():
    from tests.server.conftest import Listening

    made, go_on = Listening(grace=0.1), threading.Event()
    state = made.app.state
    for pool, count in ((state.pool, 8), (state.bulk, 2)):
        for _ in range(count):
            pool.submit(go_on.wait)
    try:
        with dial(made) as asking:
            asking.sendall(request("POST", "/v1/completions", GEN))
            end = time.monotonic() + 10
            while not made.server.server_state.tasks:
                assert time.monotonic() < end
            made.stop()
    finally:
        go_on.set()


class Limited:
    """Stands for `resource`: the limits of open files, of which the hard one stays."""

    RLIM_INFINITY, RLIMIT_NOFILE = -1, 7

    def __init__(self, soft, hard, *, fixed=False):
        self.soft, self.hard, self.fixed = soft, hard, fixed

    def getrlimit(self, which):
        return self.soft, self.hard

    def setrlimit(self, which, limits):
        if self.fixed:
            raise ValueError("not allowed")
        self.soft, hard = limits
        assert hard == self.hard and (hard == -1 or self.soft <= hard)


@pytest.mark.parametrize(
    ("soft", "hard", "fixed", "most", "then"),
    [
        (1024, 4096, False, 2048, 2176),
        (1024, -1, False, 2048, 2176),
        (1024, 1024, False, 896, 1024),
        (1024, 2000, False, 1872, 2000),
        (1024, 4096, True, 896, 1024),
        (40, 40, False, 20, 40),
        (1, 1, False, 1, 1),
        (5000, 5000, False, 2048, 5000),
        (-1, -1, False, 2048, -1),
    ],
)
def test_there_are_no_more_connections_than_the_system_gives_descriptors_for(
    monkeypatch, soft, hard, fixed, most, then
):
    limits = Limited(soft, hard, fixed=fixed)
    monkeypatch.setattr(run, "resource", limits)
    assert run.fit_connections(ServerConfig()) == ServerConfig(max_connections=most)
    assert limits.soft == then


def test_more_connections_than_the_system_gives_descriptors_for_are_refused(monkeypatch):
    monkeypatch.setattr(run, "resource", Limited(256, 1024))
    assert run.fit_connections(ServerConfig(max_connections=896)).max_connections == 896
    said = "max_connections: found 897, wanted at most 896: the system allows this process 1024 op"
    with pytest.raises(oxillama.ConfigError, match=said):
        run.fit_connections(ServerConfig(max_connections=897))


def test_what_the_event_loop_tells_is_logged_once_a_second(alone):
    """asyncio tells thousands of times that no connection can be accepted, with a trace each."""
    stream, loop, done = io.StringIO(), alone.server._loop, threading.Event()
    alone.app.state.log = Log(stream)

    def tell():
        for number in range(1000):
            error = OSError(24, f"Too many open files {number}")
            loop.call_exception_handler({"message": "out of system resource", "exception": error})
        loop.call_exception_handler({"message": "another"})
        done.set()

    loop.call_soon_threadsafe(tell)
    assert done.wait(20)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["message"]) for line in lines] == [
        ("http", "out of system resource"),
        ("http", "another"),
    ]
    assert lines[0]["trace"] == ["OSError: [Errno 24] Too many open files 0\n"]
