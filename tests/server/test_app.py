"""What stands around every route: keys, origins, unknown paths and methods, headers, log lines,
queues, health.
"""

import re
import threading
import time

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import oxillama
from oxillama.errors import (
    Cancelled,
    ConfigError,
    EmptySequence,
    ModelFingerprintMismatch,
    NoNextToken,
    SnapshotIncompatible,
)
from oxillama.server import ServerConfig, create_app
from oxillama.server.completions import AT_ONCE
from oxillama.server.errors import ApiError, from_engine
from oxillama.server.routes import ROUTES
from oxillama.server.work import Job
from tests.server.conftest import MODEL, asking

HI = [{"role": "user", "content": "Tell me a story"}]
CHAT = {"messages": HI, "max_tokens": 4}
LONG = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def locked():
    with asking(api_keys=("one", "two"), per_key=1, max_queue=1) as made:
        yield made


def test_every_route_but_health_wants_a_key(locked):
    for route in ROUTES:
        path = route.path.replace("{", "").replace("}", "")
        answer = locked.client.request(route.method, path, json={} if route.body else None)
        if route.path == "/health":
            assert answer.status_code == 200
            continue
        assert answer.status_code == 401, route.path
        assert answer.headers["www-authenticate"].startswith(
            "Basic" if route.media == "text/html" else "Bearer"
        )
    assert locked.get("/nothing").status_code == 401
    error = locked.get("/v1/models").json()["error"]
    assert (error["code"], error["param"]) == ("invalid_api_key", None)


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"authorization": "Bearer one"}, 200),
        ({"authorization": "bearer two"}, 200),
        ({"x-api-key": "two"}, 200),
        ({"authorization": "Basic b3hpOm9uZQ=="}, 200),  # oxi:one
        ({"authorization": "Bearer onetwo"}, 401),
        ({"authorization": "Bearer on"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "one"}, 401),
        ({"authorization": "Basic !!"}, 401),
        ({"x-api-key": ""}, 401),
        ({"authorization": "Bearer wrong", "x-api-key": "one"}, 200),
    ],
)
def test_keys(locked, headers, status):
    assert locked.get("/v1/models", headers=headers).status_code == status


def test_an_anthropic_client_without_a_key_gets_its_own_error(locked):
    made = locked.post("/v1/messages", {}).json()
    assert made["error"]["type"] == "authentication_error"


def _while_one_runs(server, headers, then):
    """What `then` returns while a long completion runs."""
    ended = []
    worker = threading.Thread(
        target=lambda: ended.append(server.post("/v1/completions", LONG, headers=headers))
    )
    worker.start()
    end = time.monotonic() + 10
    while not server.app.state.jobs:
        assert time.monotonic() < end
    found = then()
    worker.join()
    assert ended[0].status_code == 200
    return found


def test_a_key_has_as_many_requests_as_it_may(locked):
    one, two = {"x-api-key": "one"}, {"x-api-key": "two"}

    def then():
        refused = locked.post("/v1/completions", {"prompt": "a"}, headers=one)
        served = locked.post("/v1/completions", {"prompt": "a"}, headers=two)
        return refused, served

    refused, served = _while_one_runs(locked, one, then)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert locked.app.state.refused == 1
    assert served.status_code == 200


@pytest.mark.parametrize("count", [4, AT_ONCE + 2])
def test_the_prompts_of_one_request_are_one_request_of_its_key(count):
    with asking(api_keys=("one",), per_key=1, max_queue=1) as server:
        body = {"prompt": ["a"] * count, "max_tokens": 2, "temperature": 0}
        headers = {"authorization": "Bearer one"}
        answer = server.post("/v1/completions", body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["choices"]) == count
        assert not server.app.state.by_key


def test_a_full_queue_is_refused_with_retry_after():
    scheduler = oxillama.SchedulerConfig(max_sequences=1, max_batch_sequences=1)
    with asking(max_queue=1, engine={"scheduler": scheduler}) as server:
        first = threading.Thread(target=lambda: server.post("/v1/completions", LONG))
        second = threading.Thread(target=lambda: server.post("/v1/completions", LONG))
        first.start()
        second.start()
        end = time.monotonic() + 10
        while len(server.app.state.jobs) < 2:
            assert time.monotonic() < end
        answer = server.post("/v1/completions", {"prompt": "a"})
        slots = server.get("/slots").json()
        assert server.get("/slots?fail_on_no_slot=1").status_code == 503
        while 'vllm:num_requests_running{model_name="oxillama-embedded"} 1' not in (
            metrics := server.get("/metrics").text
        ):
            assert time.monotonic() < end
        health = server.get("/health").json()
        first.join()
        second.join()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["code"] == "queue_full"
    assert sum(each["is_processing"] for each in slots) == 2
    assert 'vllm:num_requests_running{model_name="oxillama-embedded"} 1' in metrics
    assert 'vllm:num_requests_waiting{model_name="oxillama-embedded"} 1' in metrics
    assert health["requests"] == 2


def test_a_full_queue_of_the_engine_is_one_of_the_server():
    scheduler = oxillama.SchedulerConfig(max_sequences=1, max_batch_sequences=1, max_waiting=0)
    with asking(engine={"scheduler": scheduler}) as server:
        (model,) = server.app.state.models.loaded()
        with model.engine.raw_loop():  # what is submitted waits
            first = threading.Thread(target=lambda: server.post("/v1/completions", LONG))
            first.start()
            end = time.monotonic() + 10
            while not any(job.requests for job in server.app.state.active):
                assert time.monotonic() < end
            answer = server.post("/v1/completions", {"prompt": "a"})
        first.join()
        assert server.ok("/v1/completions", {"prompt": "a", "max_tokens": 1})["choices"]
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["code"] == "queue_full"


def test_slots_say_how_far_a_request_is():
    with asking() as server:
        (model,) = server.app.state.models.loaded()
        worker = threading.Thread(target=lambda: server.post("/v1/completions", LONG))
        worker.start()
        end = time.monotonic() + 10
        while not any(job.generated for job in server.app.state.active):
            assert time.monotonic() < end
        with model.engine.raw_loop():  # no step runs while it is open
            busy, *free = server.get("/slots").json()
        worker.join()
    (token,) = busy["next_token"]
    assert busy["is_processing"] and token["has_next_token"] and token["n_decoded"] > 0
    assert token["n_remain"] == 900 - token["n_decoded"]
    assert busy["n_prompt_tokens"] > 1 and busy["model"] == MODEL
    assert busy["params"]["max_tokens"] == 900
    assert len(free) == model.slots - 1
    for each in free:
        assert not each["is_processing"] and each["id_task"] == -1
        (token,) = each["next_token"]
        assert (token["n_remain"], token["n_decoded"]) == (-1, 0)


def test_slots_show_the_same_options_of_every_route(server, monkeypatch):
    begin, shown = Job.begin, []

    async def noted(job, make):
        shown.append(job.params)
        return await begin(job, make)

    monkeypatch.setattr(Job, "begin", noted)
    asked = {"temperature": 0.25, "seed": 7, "stop": ["\n"]}
    server.ok("/v1/completions", {"prompt": "a", "max_tokens": 3, **asked})
    server.ok("/v1/chat/completions", {"messages": HI, "max_tokens": 3, **asked})
    ours = {"options": {"num_predict": 3, **asked}, "stream": False}
    server.ok("/api/generate", {"model": MODEL, "prompt": "a", "raw": True, **ours})
    assert shown == 3 * [{"max_tokens": 3, **asked}]
    server.ok("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert shown[3] == {"max_tokens": 1, "temperature": None, "seed": None, "stop": []}


def test_a_wrong_method_says_which_are_right(server):
    for method, path, allow in (
        ("GET", "/v1/chat/completions", "OPTIONS, POST"),
        ("PUT", "/v1/models", "GET, HEAD, OPTIONS"),
        ("POST", "/health", "GET, HEAD, OPTIONS"),
        ("PATCH", "/v1/sessions/x", "DELETE, GET, HEAD, OPTIONS, POST"),
    ):
        answer = server.client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)
        assert answer.json()["error"]
    answer = server.client.request("OPTIONS", "/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (204, "OPTIONS, POST")


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/chat/completions/", "/static/app.py", "/static/a/b"]
)
def test_unknown_paths_are_not_found(server, path):
    answer = server.get(path)
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_bodies_that_cannot_be_read_are_refused(server):
    client = server.client
    path = "/v1/completions"
    assert client.post(path, content=b"{").json()["error"]["code"] == "invalid_json"
    assert client.post(path, content=b"[" * 1000).json()["error"]["code"] == "json_too_deep"
    # of chats too: this server sees no images
    for each in (path, "/v1/chat/completions"):
        assert client.post(each, content=b"x" * (9 << 20)).status_code == 413
    assert client.post(path, content=b"x", headers={"content-encoding": "gzip"}).status_code == 415
    assert client.post(path, files={"a": b"x"}).status_code == 415
    for kind in ("text/plain", "application/xml", "application/json; charset=latin-1"):
        wrong = client.post(path, content=b'{"prompt": "a"}', headers={"content-type": kind})
        assert wrong.status_code == 415, kind
    for kind in ("application/x-www-form-urlencoded", "application/json; charset=UTF-8"):
        body = b'{"prompt": "a", "max_tokens": 1}'
        assert client.post(path, content=body, headers={"content-type": kind}).status_code == 200
    nan = client.post(path, content=b'{"prompt": "a", "temperature": NaN}')
    assert nan.status_code == 400 and "NaN" in nan.json()["error"]["message"]


def test_schemas_larger_than_the_limit_are_refused_by_name(server):
    texts = [f"value {each}" for each in range(30_000)]
    for path, name, more in (
        (
            "/v1/chat/completions",
            "response_format",
            {"messages": [{"role": "user", "content": "x"}]},
        ),
        ("/v1/completions", "json_schema", {"prompt": "x"}),
    ):
        schema = {"enum": texts}
        if name == "response_format":
            schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        error = server.refused(path, {**more, name: schema})
        assert (error["param"], error["code"]) == (name, "schema_too_large")
    kept = {"json_schema": {"enum": texts[:10_000]}, "max_tokens": 4}
    assert server.ok("/v1/completions", {"prompt": "x", **kept})["choices"][0]["text"].startswith(
        '"va'
    )


def test_a_large_head_is_refused(server):
    answer = server.get("/health", headers={"x-large": "a" * 40_000})
    assert answer.status_code == 431
    assert server.get("/health?" + "a" * 40_000).status_code == 431


def test_pages_of_other_sites_are_refused(server):
    post = server.client.post
    evil = {"origin": "http://evil.example"}
    assert post("/tokenize", json={"content": "a"}, headers=evil).status_code == 403
    assert server.get("/health", headers=evil).headers.get("access-control-allow-origin") is None
    own = {"origin": "http://localhost"}
    assert post("/tokenize", json={"content": "a"}, headers=own).status_code == 200
    rebound = {"host": "evil.example"}
    answer = server.get("/v1/models", headers=rebound)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")


def test_allowed_origins_are_named_and_have_no_credentials():
    with asking(cors_origins=("http://app.example",)) as server:
        good, bad = {"origin": "http://app.example"}, {"origin": "http://evil.example"}
        answer = server.client.post("/tokenize", json={"content": "a"}, headers=good)
        assert answer.headers["access-control-allow-origin"] == "http://app.example"
        assert "access-control-allow-credentials" not in answer.headers
        preflight = server.client.request("OPTIONS", "/tokenize", headers=good)
        assert preflight.headers["access-control-allow-headers"] == (
            "authorization, content-type, x-api-key"
        )
        # of OpenAI's and Anthropic's clients in browsers; what is no name of a field is left out
        asked = "Content-Type, anthropic-version, X-Stainless-Lang, a b, "
        preflight = server.client.request(
            "OPTIONS", "/tokenize", headers={**good, "access-control-request-headers": asked}
        )
        assert preflight.headers["access-control-allow-headers"] == (
            "authorization, content-type, x-api-key, anthropic-version, x-stainless-lang"
        )
        refused = server.client.request("OPTIONS", "/tokenize", headers=bad)
        assert "access-control-allow-origin" not in refused.headers


def test_headers_of_every_answer(server):
    for path in ("/", "/health", "/nothing"):
        headers = server.get(path).headers
        assert headers["content-security-policy"] == "default-src 'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI, "choices": ["a\u2028\u2029\x85b"]}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 40, "choices": ["a\u2028\u2029\x85b"]}),
        ("/api/chat", {"messages": HI, "format": {"const": "a\u2028\u2029\x85b"}}),
        ("/v1/responses", {"input": "x", "choices": ["a\u2028\u2029\x85b"]}),
    ],
)
def test_no_text_ends_a_line_of_a_stream(server, path, body):
    """Ollama's client in Python, and others, split a stream where `str.splitlines` does."""
    answer = server.post(path, {**body, "model": "oxillama-embedded", "stream": True})
    assert answer.status_code == 200, answer.text
    assert all(f"\\u{each:04x}" in answer.text for each in (0x85, 0x2028, 0x2029))
    assert answer.text.splitlines() == answer.text.removesuffix("\n").split("\n")


def test_a_request_is_one_line_without_its_text(server):
    before = len(server.logged())
    server.ok("/v1/chat/completions", CHAT)
    (line,) = server.logged()[before:]
    assert (line["event"], line["status"], line["route"]) == (
        "request",
        200,
        "/v1/chat/completions",
    )
    assert (line["completion_tokens"], line["finish_reason"]) == (4, "length")
    assert line["prompt_tokens"] > 5 and line["ms"] > 0 and line["model"] == "oxillama-embedded"
    parts = [line[f"{part}_ms"] for part in ("queue", "prefill", "decode")]
    assert min(parts) >= 0 and line["ms"] > sum(parts) > 0
    assert "story" not in str(line)


def test_texts_are_logged_where_that_is_asked_for():
    with asking(log_prompts=True) as server:
        server.ok("/v1/chat/completions", CHAT)
        assert "Tell me a story" in str(server.logged()[-1])


def test_health_tells_of_an_engine_that_failed():
    with asking() as server:
        (model,) = server.app.state.models.loaded()
        model.engine.close()
        answer = server.get("/health")
        assert answer.status_code == 503
        made = answer.json()["error"]
        assert (made["code"], made["type"]) == (503, "unavailable_error")
        assert server.post("/v1/completions", {"prompt": "a"}).status_code == 503


def test_health_sees_steps_that_give_no_token():
    """Of a long prompt, or of a program beside the server."""
    with asking() as server:
        state = server.app.state
        (model,) = state.models.loaded()
        before, end = state.moved_at, time.monotonic() + 20
        model.engine.generate("Once", max_tokens=1)
        while state.moved_at == before:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_nothing_begins_while_the_server_ends():
    with asking() as server:
        server.app.state.stopping = True
        answer = server.post("/v1/completions", {"prompt": "a"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"]["code"] == "shutting_down"


def test_health_tells_of_a_loop_that_stands_still():
    with asking(stall_timeout=0.05) as server:
        state = server.app.state
        (model,) = state.models.loaded()
        raw = model.engine.raw_loop()
        with raw:  # no step runs while it is open
            worker = threading.Thread(
                target=lambda: server.post("/v1/completions", {"prompt": "a"})
            )
            worker.start()
            end = time.monotonic() + 10
            while server.get("/health").status_code == 200:
                assert time.monotonic() < end
                time.sleep(0.01)
            assert "no step" in server.get("/health").json()["error"]["message"]
        worker.join(60)
        assert server.get("/health").status_code == 200


def test_health_tells_of_a_model_that_cannot_be_read(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF")
    config = ServerConfig(model=path)
    with TestClient(create_app(config), base_url="http://localhost") as client:
        end = time.monotonic() + 10
        while True:
            answer = client.get("/health")
            assert answer.status_code == 503
            if answer.json()["error"]["message"] != "Loading model":
                break
            assert time.monotonic() < end
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 500


@pytest.mark.parametrize("below", ["/llm", "/some/models", ""])
def test_an_application_mounts_it_below_a_path(below):
    app = create_app(log_requests=False)
    outer = Starlette(routes=[Mount(below, app=app)], lifespan=app.lifespan)
    with TestClient(outer, base_url="http://localhost") as client:
        end = time.monotonic() + 60
        while client.get(f"{below}/health").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.01)
        body = {"prompt": "Once upon a", "max_tokens": 2, "temperature": 0}
        answer = client.post(f"{below}/v1/completions", json=body)
        assert answer.json()["choices"][0]["text"] == " time,"
        assert client.get(f"{below}/").headers["content-type"].startswith("text/html")
        unknown = client.post(f"{below}/api/create", json={}).json()["error"]
        assert unknown.startswith("path: '/api/create' is unknown; a GGUF file")
    assert app.state.stopping


def test_an_application_that_was_not_started_says_so():
    app = create_app(log_requests=False)
    client = TestClient(Starlette(routes=[Mount("/llm", app=app)]), base_url="http://localhost")
    for answer in (client.get("/llm/health"), client.post("/llm/v1/completions", json={})):
        assert answer.status_code == 503
        assert "lifespan=app.lifespan" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "options",
    [
        {"host": "0.0.0.0"},
        {"host": "192.168.1.5"},
        {"port": 70_000},
        {"port": -1},
        {"body_bytes": 0},
        {"header_timeout": float("nan")},
        {"max_queue": 1.5},
        {"api_keys": ("",)},
        {"api_keys": "secret"},  # whose letters would be keys
        {"api_keys": (b"secret",)},
        {"api_keys": 5},
        {"cors_origins": "*"},
        {"allowed_hosts": "llm.example"},
        {"host": 5},
        {"host": "0.0.0.0", "force": "no"},
        {"log_prompts": "no"},
        {"loras": ("a.gguf", "x", 5)},
        {"loras": ((5, 1.0),)},
        {"api_keys": ("a",), "cors_origins": ("*",)},
        {"per_key": 1},
        {"allowed_hosts": ("llm.example:8080",)},
        {"allowed_hosts": ("http://llm.example",)},
        {"models_dir": "/nowhere"},
        {"alias": ""},
        {"alias": "a" * 257},
        {"alias": "a", "models_dir": "."},
        {"nonsense": 1},
    ],
)
def test_configs_that_cannot_be_honoured_are_refused(options):
    with pytest.raises(ConfigError, match=f"^({'|'.join(options)}): "):
        ServerConfig.of(options)


def test_lists_of_a_config_may_be_lists_and_adapters_need_no_scale():
    config = ServerConfig(api_keys=["one", "two"], loras=["a.gguf", ("b.gguf", 0.5)])
    assert config.api_keys == ("one", "two")
    assert config.loras == (("a.gguf", 1.0), ("b.gguf", 0.5))
    assert ServerConfig(loras="a.gguf").loras == (("a.gguf", 1.0),)
    with pytest.raises(ConfigError, match="^api_keys: found str, wanted a list of texts$"):
        ServerConfig(api_keys="secret")


def test_a_config_names_the_option_that_was_meant():
    with pytest.raises(ConfigError, match="^max_que: is not an option .*; did you mean max_queue?"):
        ServerConfig.of({"max_que": 1})


def test_other_addresses_need_a_key_or_force():
    assert ServerConfig(host="0.0.0.0", api_keys=("k",)).loopback is False
    assert ServerConfig(host="0.0.0.0", force=True).hosts is None
    named = ServerConfig(host="0.0.0.0", api_keys=("k",), allowed_hosts=("LLM.example", "[::1]"))
    assert named.hosts == {"llm.example", "[::1]"}  # as a request's name is compared
    assert ServerConfig(host="::1").loopback and ServerConfig(host="localhost").loopback


@pytest.mark.parametrize(
    "error, status, code",
    [
        (oxillama.ContextError("prompt: long"), 400, "context_length_exceeded"),
        (oxillama.ConfigError("n: found 0, wanted 1"), 400, None),
        (oxillama.GrammarError("schema /: bad"), 400, "invalid_schema"),
        (oxillama.EngineError("engine: is closed"), 503, "engine_unavailable"),
        (oxillama.EngineError("session: a request is running on it"), 409, "session_busy"),
        (oxillama.QueueFull("engine: full"), 429, "queue_full"),
        (Cancelled("the engine is closed"), 503, None),
        (NoNextToken("bert is an encoder"), 400, "generation_not_supported"),
        (EmptySequence("prompt: no tokens"), 400, None),
        (SnapshotIncompatible("x.session: damaged"), 409, "snapshot_incompatible"),
        (ModelFingerprintMismatch("a", "b", "x.session"), 409, "model_mismatch"),
        (oxillama.ModelError("m.gguf: no tensor"), 500, "model_unusable"),
        (oxillama.ImageError("image: found 3 bytes"), 400, "invalid_image"),
        (oxillama.AudioError("audio: found 3 bytes"), 400, "invalid_audio"),
        (oxillama.SamplingError("no token is left"), 400, "nothing_to_sample"),
        (oxillama.PoolError("page pool: full"), 503, "out_of_memory"),
        (MemoryError(), 503, "out_of_memory"),
        (ZeroDivisionError("x"), 500, "internal_error"),
    ],
)
def test_errors_of_the_engine(error, status, code):
    made = from_engine(error, param="prompt")
    assert isinstance(made, ApiError)
    assert (made.status, made.code) == (status, code)


def test_a_prompt_that_is_too_long_is_told_in_the_words_of_the_server(server):
    for path, body in (
        ("/v1/completions", {"prompt": [5] * 2000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b " * 2000}]}),
    ):
        error = server.post(path, body).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert re.fullmatch(
            r"prompt: \d+ tokens, a context of 1024 takes at most 1023; \"truncate_prompt\": true "
            "shortens it, the server's -c gives more where the model has it",
            error["message"],
        )
    asked = {"prompt": [5] * 1000, "max_tokens": 1, "temperature": 0, "session": "full"}
    server.post("/v1/completions", asked)
    error = server.post("/v1/completions", {"prompt": [5] * 100, "session": "full"}).json()["error"]
    assert error["message"] == (
        "session: 1001 tokens and 100 more, a context of 1024 takes at most 1023; wanted a new one"
    )
