"""`/v1/sessions`: named sessions listed, made, saved, restored, forked and deleted."""

from __future__ import annotations

from starlette.responses import Response

from oxillama.server.calls import Call, json_response
from oxillama.server.chat import MESSAGES
from oxillama.server.schema import NAME, Schema, obj
from oxillama.server.sessions import NAME_PATTERN, checked_name, exists, missing

EMPTY_BODY: Schema = obj({})
CREATE_BODY: Schema = obj({"model": NAME, "messages": MESSAGES})
RESTORE_BODY: Schema = obj({"model": NAME})
FORK_BODY: Schema = obj({"to": {"type": "string", "pattern": NAME_PATTERN}}, ("to",))


def _name(call: Call) -> str:
    return checked_name(call.params["name"])


async def index(call: Call) -> Response:
    """GET /v1/sessions"""
    found = await call.offload(call.state.sessions.list)
    return json_response({"object": "list", "data": found})


async def about(call: Call) -> Response:
    """GET /v1/sessions/{name}"""
    return json_response(await call.offload(call.state.sessions.about, _name(call)))


async def create(call: Call) -> Response:
    """POST /v1/sessions/{name}"""
    name, sessions = _name(call), call.state.sessions
    if await call.offload(sessions.knows, name):
        raise exists(name, param="name")  # before a model is loaded for it
    async with call.model(call.body.get("model")) as model:
        made = await call.offload(sessions.create, name, model, call.body.get("messages"))
        return json_response(made.info())


async def delete(call: Call) -> Response:
    """DELETE /v1/sessions/{name}"""
    name = _name(call)
    await call.offload(call.state.sessions.delete, name)
    return json_response({"name": name, "object": "session", "deleted": True})


async def save(call: Call) -> Response:
    """POST /v1/sessions/{name}/save"""
    return json_response(await call.offload(call.state.sessions.save, _name(call)))


async def restore(call: Call) -> Response:
    """POST /v1/sessions/{name}/restore"""
    name, sessions = _name(call), call.state.sessions
    sessions.folder()
    if not await call.offload(sessions.on_disk, name):
        raise missing(name)
    wanted = call.body.get("model") or await call.offload(sessions.model_of, name)
    async with call.model(wanted) as model:
        named = await call.offload(sessions.restore, name, model)
        return json_response(named.info())


async def fork(call: Call) -> Response:
    """POST /v1/sessions/{name}/fork"""
    name, sessions = _name(call), call.state.sessions
    if not await call.offload(sessions.knows, name):
        raise missing(name)
    # a snapshot of another writer may name none
    wanted = await call.offload(sessions.model_of, name)
    async with call.model(wanted) as model:
        made = await call.offload(sessions.fork, name, call.body["to"], model)
        return json_response(made.info())
