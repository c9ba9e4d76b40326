"""`/slots` of llama-server: what runs in each slot; and what a slot has evaluated, saved and
restored.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from starlette.responses import Response

from oxillama.errors import OxillamaError
from oxillama.server.calls import Call, json_response
from oxillama.server.errors import ApiError, bad, from_engine, missing
from oxillama.server.models import ServedModel
from oxillama.server.schema import NAME, Schema, obj
from oxillama.server.sessions import checked_name
from oxillama.server.state import RunningJob

SLOT_BODY: Schema = obj({"filename": NAME, "model": NAME})


async def slots(call: Call) -> Response:
    """GET /slots"""
    loaded = call.state.models.loaded()
    count = max((each.slots for each in loaded), default=0)
    if call.request.query_params.get("fail_on_no_slot") and len(call.state.jobs) >= count:
        raise ApiError(503, "slots: none is free", headers={"Retry-After": "1"})
    count = max(count, 1 + max(call.state.jobs, default=-1))
    out = []
    for at in range(count):
        job = call.state.jobs.get(at)
        model = job.model if job else loaded[0] if loaded else None
        out.append(_entry(at, job, model.engine.context_size if model else 0))
    return json_response(out)


def _entry(at: int, job: RunningJob | None, context: int) -> dict[str, Any]:
    """A slot, and what runs in it."""
    most = job.params.get("max_tokens") if job else None
    generated = job.generated if job else 0  # once: it grows meanwhile
    entry: dict[str, Any] = {
        "id": at,
        "id_task": job.id if job else -1,
        "n_ctx": context,
        "speculative": False,
        "is_processing": job is not None,
        "params": job.params if job else {},
        "next_token": [
            {
                "has_next_token": job is not None,
                "has_new_line": False,
                "n_remain": -1 if most is None else most - generated,
                "n_decoded": generated,
            }
        ],
    }
    if job is not None:
        entry.update(model=job.model.name, n_prompt_tokens=job.prompt_tokens)
    return entry


async def slot_action(call: Call) -> Response:
    """POST /slots/{slot}?action=save|restore|erase"""
    state, given = call.state, call.params["slot"]
    action = call.request.query_params.get("action")
    if action not in ("save", "restore", "erase"):
        raise bad("action", action, "save, restore or erase")
    async with call.model(call.body.get("model")) as model:
        if not given.isdecimal() or len(given) > 6 or int(given) >= model.slots:
            raise bad("id_slot", given, f"0 to {model.slots - 1}")
        if action == "erase":
            return json_response(await call.race(_erase(call, model, int(given))))
        name = call.body.get("filename")
        if name is None:
            raise missing("filename")
        checked_name(name, param="filename")
        act = _save if action == "save" else _restore
        path = state.sessions.path(name)
        try:
            found, took = await call.race(act(call, model, int(given), name, path))
        except OxillamaError as error:
            raise from_engine(error, param="filename") from error
        timings = {f"{action}_ms": round(took * 1e3, 3)}
        return json_response({"id_slot": int(given), "filename": name, **found, "timings": timings})


def _held(call: Call, model: ServedModel, slot: int) -> Any:
    """The session that a slot holds, None for none of the model."""
    held = call.state.slot_sessions.get(slot)
    return held[1] if held is not None and held[0] is model else None


async def _erase(call: Call, model: ServedModel, slot: int) -> dict[str, int]:
    async with call.state.named_slot(slot):
        session = _held(call, model, slot)
        if session is not None or slot not in call.state.slot_sessions:
            call.state.empty_slot(slot)
        return {"id_slot": slot, "n_erased": 0 if session is None else len(session)}


async def _save(
    call: Call, model: ServedModel, slot: int, name: str, path: Path
) -> tuple[dict[str, int], float]:
    """Save what a slot holds when nothing runs in it: (tokens and bytes, seconds)."""
    async with call.state.named_slot(slot):
        began, session = time.perf_counter(), _held(call, model, slot)
        if session is None:
            raise ApiError(400, f"id_slot: slot {slot} holds nothing to save", param="id_slot")
        await call.offload(call.state.sessions.store, name, model, session)
        found = {"n_saved": len(session), "n_written": path.stat().st_size}
        return found, time.perf_counter() - began


async def _restore(
    call: Call, model: ServedModel, slot: int, name: str, path: Path
) -> tuple[dict[str, int], float]:
    """Restore a slot when nothing runs in it: (tokens and bytes, seconds)."""
    if not path.is_file():
        raise ApiError(
            404, f"filename: {name} is unknown", param="filename", code="session_not_found"
        )
    async with call.state.named_slot(slot):
        began = time.perf_counter()
        session = await call.offload(model.engine.restore_from_file, path)
        call.state.slot_sessions[slot] = (model, session)
        found = {"n_restored": len(session), "n_read": path.stat().st_size}
        return found, time.perf_counter() - began
