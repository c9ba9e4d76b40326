"""Two replicas answer as one server: prompts go where they are known, sessions move and stay what
they are.
"""

import asyncio
import hashlib
import os
import time

import httpx
import pytest
import ray
from ray import serve

from oxillama import ConfigError
from oxillama.integrations.ray import build_app
from oxillama.integrations.ray.serving import app
from tests.integrations.ray.test_docs import blocks

MEMORY = 300 << 20
PORT = 18123
URL = f"http://127.0.0.1:{PORT}"
CHATS, TURNS = 200, 5
SYSTEM = "You tell stories to children. You are kind, brief and never sad. " * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("sessions"))


@pytest.fixture(scope="module")
def served(cluster, folder):
    """An application of two replicas, which save sessions at the end of each reply."""
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": PORT})
    run(folder, replicas=2)
    with httpx.Client(base_url=URL, timeout=120) as client:
        yield client  # what serves ends with the cluster


def run(folder, **options):
    made = build_app(
        memory=MEMORY,
        sessions_dir=folder,
        save_sessions="reply",
        publish_seconds=1.0,
        server={"log_requests": False},
        **options,
    )
    serve.run(made, name="ox", route_prefix="/")


def replicas():
    """The replicas by the id that answers carry, and their actors' names."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = [each["name"] for each in actors if "#OxillamaReplica#" in each["name"]]
    return {name.rpartition("#")[2]: name for name in names}


def turn(number, chat):
    return {"role": "user", "content": f"Tell me of {chat}, part {number}."}


async def talk(answer):
    """Chats side by side, a turn of each before the next of any: (texts, cached tokens,
    prompts).
    """
    talks = [[{"role": "system", "content": SYSTEM}] for _ in range(CHATS)]
    cached = prompt = 0
    for number in range(TURNS):
        gate = asyncio.Semaphore(8)

        async def one(at, number=number, gate=gate):
            talks[at].append(turn(number, f"{at} foxes"))
            async with gate:
                text, hit, size = await answer(talks[at])
            talks[at].append({"role": "assistant", "content": text})
            return hit, size

        for hit, size in await asyncio.gather(*(one(at) for at in range(CHATS))):
            cached, prompt = cached + hit, prompt + size
    return talks, cached, prompt


def test_chats_stay_where_their_beginning_is_known(served, engine):
    options = {"max_tokens": 3, "temperature": 0}

    async def by_engine(messages):
        done = await engine.submit_chat(messages, **options)
        return done.content, done.usage.cached_tokens, done.usage.prompt_tokens

    async def by_server():
        limits = httpx.Limits(max_connections=8)
        async with httpx.AsyncClient(base_url=URL, timeout=120, limits=limits) as client:

            async def answer(messages):
                body = {"messages": messages, **options}
                got = (await client.post("/v1/chat/completions", json=body)).json()
                usage = got["usage"]
                hit = usage["prompt_tokens_details"]["cached_tokens"]
                return got["choices"][0]["message"]["content"], hit, usage["prompt_tokens"]

            return await talk(answer)

    wanted, best, size = asyncio.run(talk(by_engine))
    talks, cached, prompt = asyncio.run(by_server())
    assert talks == wanted and prompt == size
    assert cached >= 0.9 * best
    assert len(replicas()) == 2


def complete(client, session, replica=None, **more):
    body = {"session": session, "max_tokens": 4, "seed": 7, "temperature": 0.9, **more}
    headers = {"x-oxillama-replica": replica} if replica else {}
    got = client.post("/v1/completions", json=body, headers=headers)
    assert got.status_code == 200, got.text
    return got.json()["choices"][0]["text"], got.headers["x-oxillama-replica"]


def logits(engine, folder, name):
    """A hash of the logits after one more token, over the pages that a session was saved with, and
    its tokens.
    """
    session = engine.restore_from_file(os.path.join(folder, f"{name}.session"))
    tokens = list(session.tokens)
    found = hashlib.blake2b(engine.prefill([9], session=session).tobytes()).hexdigest()
    session.close()
    return found, tokens


def test_a_session_that_moves_is_the_one_that_stays(served, engine, folder):
    one, other = replicas()
    for number in range(11):
        prompt = "Once upon a time" if not number else f" and {number}"
        stays = complete(served, "stays", one, prompt=prompt)
        moves = complete(served, "moves", (one, other)[number % 2], prompt=prompt)
        assert stays[0] == moves[0] and stays[1] == one and moves[1] == (one, other)[number % 2]
        assert logits(engine, folder, "stays") == logits(engine, folder, "moves")
    # without a word of where, it goes where it is
    assert {complete(served, "moves", prompt=" x")[1] for _ in range(3)} == {one}


def test_answers_stream_and_a_client_that_leaves_ends_them(served, engine):
    body = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "temperature": 0}
    with served.stream("POST", "/v1/completions", json={**body, "stream": True}) as got:
        home = {"x-oxillama-replica": got.headers["x-oxillama-replica"]}
        lines = got.iter_lines()
        assert next(lines).startswith("data: ")
    until = time.monotonic() + 30
    while served.get("/health", headers=home).json()["requests"] and time.monotonic() < until:
        time.sleep(0.05)
    assert served.get("/health", headers=home).json()["requests"] == 0
    counted = served.get("/metrics", headers=home).text
    aborted = [line for line in counted.splitlines() if 'finished_reason="abort"' in line]
    assert any(float(line.rsplit(" ", 1)[1]) >= 1 for line in aborted)


def test_what_one_replica_keeps_to_itself_is_refused_by_name(served):
    for method, path, body in (
        ("POST", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "b"}),
        ("POST", "/slots/0?action=erase", {}),
        ("GET", "/v1/responses/resp_1", None),
        ("POST", "/v1/responses", {"input": "hi", "previous_response_id": "resp_1"}),
    ):
        got = served.request(method, path, json=body)
        assert got.status_code == 400 and got.json()["error"]["code"] == "several_replicas"
    talk = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    got = served.post("/v1/messages", json={**talk, "thread": {"type": "create"}})
    assert got.status_code == 400 and got.json()["error"] == {
        "type": "invalid_request_error",
        "message": "thread: is stored by one replica, and several serve here; wanted the "
        "conversation as messages, or x-oxillama-replica",
        "details": {"error_code": "thread_unsupported_request"},
    }
    home = {"x-oxillama-replica": served.get("/health").headers["x-oxillama-replica"]}
    body = {**talk, "thread": {"type": "create"}}
    made = served.post("/v1/messages", json=body, headers=home).json()
    body["thread"] = {"type": "continue", "previous_message_id": made["id"]}
    assert served.post("/v1/messages", json=body, headers=home).status_code == 200
    got = served.get("/health", headers={"x-oxillama-replica": "nobody"})
    assert got.status_code == 503 and "nobody" in got.json()["error"]["message"]
    assert served.get("/nowhere").status_code == 404


def test_a_killed_replica_loses_nothing_that_was_saved_and_a_drained_one_nothing(
    served, engine, folder
):
    home = complete(served, "stays2", prompt="Once upon a time")[1]
    complete(served, "moves2", home, prompt="Once upon a time")
    ray.kill(ray.get_actor(replicas()[home], namespace="serve"))
    text, now = complete(served, "moves2", prompt=" and then")
    assert now != home
    assert complete(served, "stays2", prompt=" and then")[0] == text
    # one replica is left of two: what the other had goes on in it
    run(folder, replicas=1)
    assert (
        complete(served, "moves2", prompt=" so")[0] == complete(served, "stays2", prompt=" so")[0]
    )
    assert logits(engine, folder, "stays2") == logits(engine, folder, "moves2")


def test_what_cannot_be_honoured_is_named():
    for wrong, told in (
        ({"replicas": 0}, "replicas: found 0"),
        ({"replicas": (3, 2)}, "replicas: found"),
        ({"save_sessions": "never"}, "save_sessions: found 'never'"),
        ({"save_sessions": "reply"}, "without sessions_dir"),
        ({"server": {"model": "x"}}, "server: found model"),
        ({"server": {"colour": 1}}, "colour: is not an option"),
    ):
        with pytest.raises(ConfigError, match=told):
            build_app(**wrong)
    with pytest.raises(ConfigError, match="replicas: found 'two'"):
        app({"replicas": "two"})
    assert app({"replicas": "1-3", "prefix_routing": "false", "max_queue": "5"})


def test_the_program_of_the_docs_serves(served):
    """Beside what these tests serve: to start and end Serve once more would take as long as all of
    them.
    """
    program = blocks()[1]
    for theirs, ours in (('route_prefix="/"', 'route_prefix="/docs"'), ("serve.shutdown()", "")):
        assert theirs in program
        program = program.replace(theirs, ours)
    exec(compile(program, "docs/ray.md", "exec"), {})
    assert served.get("/docs/health").json()["status"] == "ok"
