"""The parts that need no cluster: fingerprints, prompts, the ledger, messages, the manifest."""

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ray.serve._private.common import DeploymentID
from ray.serve.request_router import ReplicaID
from ray.serve.schema import ServeDeploySchema

from oxillama import embedded_path
from oxillama.integrations.fingerprint import Publisher, held, page_hashes, published
from oxillama.integrations.ray import PrefixRouter, app
from oxillama.integrations.ray import ledger as ledgers
from oxillama.integrations.ray.http import HttpRequest, Route, answered
from oxillama.integrations.ray.ledger import SessionClaims, SessionLedger
from oxillama.integrations.ray.prompts import PromptReader
from oxillama.integrations.ray.replica import OxillamaReplica
from oxillama.server import ServerConfig
from oxillama.server.errors import ApiError

ROOT = Path(__file__).resolve().parents[3]


def test_a_fingerprint_tells_how_much_of_a_prompt_is_stored(engine):
    engine.clear_cache()
    ids = [(7 * at + 3) % 2000 for at in range(100)]
    engine.generate(ids, max_tokens=1, temperature=0)
    data, _ = Publisher().tell(engine)
    known = published(data)
    assert held(page_hashes(ids), known) == 6
    assert held(page_hashes([1, *ids]), known) == 0


def test_prompts_are_read_as_the_server_reads_them(engine):
    reader = PromptReader(ServerConfig())
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    wanted = engine.tokenize(engine.render_chat(talk), add_special=False)
    for path, body in (
        ("/v1/chat/completions", {"messages": talk}),
        ("/v1/messages", {"system": "Be brief.", "messages": talk[1:]}),
        ("/api/chat", {"messages": talk}),
        ("/api/generate", {"system": "Be brief.", "prompt": "hi"}),
        ("/v1/responses", {"instructions": "Be brief.", "input": "hi"}),
    ):
        assert reader.ids(path, body) == wanted
    assert reader.ids("/v1/completions", {"prompt": "hi"}) == engine.tokenize("hi")
    assert reader.ids("/completion", {"prompt": [1, 2]}) == [1, 2]
    for path, body in (
        ("/v1/chat/completions", {"messages": 5}),
        ("/v1/chat/completions", {"messages": talk, "model": "other"}),
        ("/v1/embeddings", {"input": "x"}),
    ):
        assert reader.ids(path, body) == []


def test_late_instructions_are_read_as_the_server_reads_them():
    source = (
        "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    )
    talk = [{"role": role, "content": f"As {role}."} for role in ("user", "system", "user")]
    body = {"messages": talk}
    assert PromptReader(ServerConfig(chat_template=source)).ids("/api/chat", body) == []
    as_users = {"messages": [{**each, "role": "user"} for each in talk]}
    reader = PromptReader(ServerConfig(chat_template=source, late_instructions="user"))
    assert reader.ids("/api/chat", body) == reader.ids("/api/chat", as_users) != []


class Router(PrefixRouter):
    """A router over replicas whose queues are as long as `loads` says."""

    def __init__(self, loads, **options):
        self.replicas = {
            ReplicaID(name, DeploymentID("d", "a")): SimpleNamespace(routing_stats={})
            for name in loads
        }
        for key, each in self.replicas.items():
            each.replica_id = key
        self.loads = loads
        self.initialize_state(**options)

    @property
    def curr_replicas(self):
        return self.replicas

    @property
    def replica_queue_len_cache(self):
        return SimpleNamespace(get=lambda key: self.loads[key.unique_id])

    def order(self, route):
        pending = SimpleNamespace(args=["request", route], kwargs={})
        made = asyncio.run(self.choose_replicas(list(self.replicas.values()), pending))
        return [each.replica_id.unique_id for rank in made for each in rank]

    def sent(self, name, route):
        key = next(key for key in self.replicas if key.unique_id == name)
        self.on_request_routed(SimpleNamespace(args=["request", route], kwargs={}), key, None)
        return self.replicas[key]


def test_a_request_goes_where_its_beginning_is_unless_others_have_much_less_to_do():
    ids = list(range(100))
    known, longer = Route(page_hashes(ids[:64])), Route(page_hashes(ids))
    router = Router({"one": 0, "two": 3, "three": 5}, overload=4)
    assert router.order(longer) == ["one", "two", "three"]
    router.sent("two", known)
    assert router.order(longer) == ["two", "one", "three"]
    one = router.sent("one", Route())
    one.routing_stats = {"pages": b"".join(longer.pages), "reach": 0.0, "sessions": []}
    assert router.order(longer) == ["one", "two", "three"]
    router.loads["one"] = 8
    assert router.order(longer) == ["two", "three", "one"]
    # what was sent and is neither within the cache's reach nor published has been evicted
    evicted = {"pages": b"".join(page_hashes([7] * 32)), "reach": 0.0, "sessions": []}
    stale = Router({"one": 0, "two": 0})
    stale.sent("one", longer).routing_stats = evicted
    time.sleep(0.01)
    stale.sent("two", known)
    assert stale.order(longer) == ["two", "one"]


def test_a_session_goes_where_it_is_and_a_named_replica_is_the_only_one():
    router = Router({"one": 0, "two": 3, "three": 5})
    three = router.sent("three", Route())
    three.routing_stats = {"pages": b"", "reach": 0.0, "sessions": ["ada"]}
    assert router.order(Route((), "ada"))[0] == "three"
    router.sent("two", Route((), "ada"))
    assert router.order(Route((), "ada"))[0] == "two"
    assert router.order(Route((), None, "three")) == ["three"]


def test_a_replica_whose_engine_does_not_serve_is_unhealthy():
    said = {"error": {"message": "the engine has made no step for 61 seconds"}}
    sick, well = (
        SimpleNamespace(_state=SimpleNamespace(health=lambda told=told: told))
        for told in ((503, said), (200, {"status": "ok"}))
    )
    with pytest.raises(RuntimeError, match="no step for 61 seconds"):
        asyncio.run(OxillamaReplica.check_health(sick))
    asyncio.run(OxillamaReplica.check_health(well))


class Handle:
    """A ledger as a deployment's handle: methods with `remote`."""

    def __init__(self, ledger):
        self._ledger = ledger

    def __getattr__(self, name):
        method = getattr(self._ledger, name)
        return type("Method", (), {"remote": staticmethod(method)})


def test_a_session_is_one_replicas_at_a_time_and_saved_before_it_moves(tmp_path, monkeypatch):
    """Invariants 1 to 3 of the ledger."""
    alive, log = {"A", "B"}, []
    monkeypatch.setattr(ledgers, "_lives", lambda name: name in alive)
    monkeypatch.setattr(ledgers, "_LOOK", 0.02)

    async def play():
        ledger = SessionLedger(str(tmp_path))

        def claims(name):
            async def save(session):
                log.append((name, session))

            return SessionClaims(
                *(Handle(ledger), name, save),
                seconds=0.3,
                failed=lambda *told: log.append(told),
                keeps=lambda session: True,
            )

        a, b = claims("A"), claims("B")
        async with a.using(["ada"]):
            assert await ledger.owners() == {"ada": "A"}
            with pytest.raises(ApiError, match="another replica has it"):
                async with b.using(["ada"]):
                    pass
            assert log == []
            waiting = asyncio.ensure_future(_once(b, "ada"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
        await waiting
        assert log == [("A", "ada")] and await ledger.owners() == {"ada": "B"}
        assert a.names == [] and b.names == ["ada"]
        # a ledger that begins anew knows it still; one who is gone holds nothing up
        again = SessionLedger(str(tmp_path))
        assert await again.owners() == {"ada": "B"}
        alive.discard("B")
        assert await again.claim("ada", "A", 0.0) is None
        assert json.loads((tmp_path / "owners.json").read_text()) == {"ada": "A"}
        await b.close()
        await a.close()

    asyncio.run(play())


def test_a_replica_holds_sessions_that_are_in_its_memory_alone(tmp_path, monkeypatch):
    """Clients may name any number of sessions that come to nothing, are deleted or stay on disk."""
    monkeypatch.setattr(ledgers, "_lives", lambda name: True)
    monkeypatch.setattr(ledgers, "_FEWEST", 8)
    here = {f"kept-{i}" for i in range(3)}

    async def play():
        ledger, saved = SessionLedger(str(tmp_path)), []

        async def save(session):
            saved.append(session)

        def claims(name):
            return SessionClaims(
                *(Handle(ledger), name, save),
                seconds=5,
                failed=lambda *told: saved.append(told),
                keeps=here.__contains__,
            )

        async def settled(claims):
            while claims._leaving:
                await asyncio.gather(*claims._leaving)

        a, b = claims("A"), claims("B")
        for i in range(20):
            async with a.using([f"none-{i}", f"kept-{i % 3}"]):
                assert f"none-{i}" in a.names
            await settled(a)
        assert a.names == sorted(here) == sorted(await ledger.owners())
        # those that leave memory later are found once there are many
        most = 0
        for i in range(60):
            here.add(f"more-{i}")
            await _once(a, f"more-{i}")
            here.discard(f"more-{i}")
            await settled(a)
            most = max(most, len(a.names))
        assert 3 < most <= 9 and here <= {*a.names} and a.names == sorted(await ledger.owners())
        # one that is wanted again while it leaves stays
        async with a.using(["none"]):
            again = asyncio.ensure_future(_held(a, "none"))
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert "none" in a.names and (await ledger.owners())["none"] == "A"
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        await settled(a)
        assert "none" not in a.names
        # and the others are handed over as ever
        await _once(b, "kept-0")
        assert saved == ["kept-0"] and b.names == ["kept-0"] and "kept-0" not in a.names
        assert not (a._turns or a._uses or b._turns or b._uses)
        await b.close()
        await a.close()

    asyncio.run(play())


async def _held(claims, name):
    async with claims.using([name]):
        await asyncio.sleep(60)


async def _once(claims, name):
    async with claims.using([name]):
        pass


def test_an_answer_that_nobody_waits_for_is_ended():
    ended = []

    async def application(scope, receive, send):
        assert (await receive())["body"] == b"body" and scope["path"] == "/x"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            assert (await receive())["type"] == "http.disconnect"
        finally:
            ended.append(True)

    async def play():
        request = HttpRequest.of(
            {"method": "POST", "path": "/pre/x", "root_path": "/pre", "headers": []}, b"body"
        )
        async for messages in answered(application, request):
            assert messages[0]["status"] == 200
            break

    asyncio.run(play())
    assert ended == [True]


def test_replicas_come_and_go_as_their_queues_say():
    made = app({"replicas": "1-3", "target_queue": "5", "scale_down_seconds": "7"})
    (replica, *_) = made._bound_deployment.init_args
    scaling = replica._bound_deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 3)
    assert scaling.target_ongoing_requests == 5
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (30, 7)


def test_requests_that_are_not_logged_are_not_logged_by_serve_either():
    for asked, wanted in (({}, True), ({"log_requests": "false"}, False)):
        gateway = app(asked)._bound_deployment
        replica = gateway.init_args[0]._bound_deployment
        for each in (gateway, replica):
            assert each._deployment_config.logging_config["enable_access_log"] is wanted


def test_the_manifest_is_one_that_serve_takes(tmp_path):
    text = (ROOT / "docs" / "ray-service.yaml").read_text("utf-8")
    service = yaml.safe_load(text)
    assert service["kind"] == "RayService"
    config = ServeDeploySchema.parse_obj(yaml.safe_load(service["spec"]["serveConfigV2"]))
    (one,) = config.applications
    assert one.import_path == "oxillama.integrations.ray:app"
    (tmp_path / "key").write_text("secret\n")
    here = {"model": str(embedded_path()), "api_key_file": str(tmp_path / "key")}
    assert app({**one.args, **here, "sessions_dir": str(tmp_path)})
    workers = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert str(workers["minReplicas"]) + "-" + str(workers["maxReplicas"]) == one.args["replicas"]
