"""`/v1/models`: the models of a server, in the form of OpenAI's list and of Anthropic's."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from oxillama.errors import OxillamaError
from oxillama.server.calls import Call, json_response
from oxillama.server.errors import bad
from oxillama.server.models import gone

_MOST_MODELS = 1000  # in one page


async def models(call: Call) -> Response:
    """GET /v1/models"""
    found = await call.offload(_models, call)
    if call.dialect != "anthropic":
        return json_response({"object": "list", "data": found})
    page, more = _page(found, call.request.query_params)
    return json_response(
        {
            "data": [_as_anthropic(each) for each in page],
            "has_more": more,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
        }
    )


def _page(
    found: list[dict[str, Any]], query: Mapping[str, str]
) -> tuple[list[dict[str, Any]], bool]:
    """(the models that Anthropic's parameters of a list name, whether more follow)."""
    limit, names = query.get("limit", "20"), [each["id"] for each in found]
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= _MOST_MODELS:
        raise bad("limit", limit, f"1 to {_MOST_MODELS}")
    given = [name for name in ("after_id", "before_id") if name in query]
    if len(given) > 1:
        raise bad("before_id", query["before_id"], "one of after_id and before_id")
    for name in given:
        if query[name] not in names:
            raise bad(name, query[name], "the id of a model")
    if "before_id" in query:
        before = found[: names.index(query["before_id"])]
        return before[-int(limit) :], len(before) > int(limit)
    after = found[names.index(query["after_id"]) + 1 if given else 0 :]
    return after[: int(limit)], len(after) > int(limit)


def _as_anthropic(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A model as Anthropic's list has it."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry["created"]))
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": entry.get("max_model_len"),
    }


async def model(call: Call) -> Response:
    """GET /v1/models/{model}"""
    given = call.params["model"]
    name = call.state.models.resolve(given)
    found = {each["id"]: each for each in await call.offload(_models, call)}
    if name not in found:
        raise gone(name)
    entry = found[given if given in found else name]
    return json_response(_as_anthropic(entry) if call.dialect == "anthropic" else entry)


def _models(call: Call) -> list[dict[str, Any]]:
    registry = call.state.models
    loaded = {each.name: each for each in registry.loaded()}
    out = []
    for name, path in registry.known().items():
        try:
            created = os.stat(path).st_mtime
        except OSError:
            if name not in loaded:
                continue
            created = loaded[name].stamps[path][-1] / 1e9  # what is in memory needs no file
        entry: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": int(created),
            "owned_by": "oxillama",
            "loaded": name in loaded,
        }
        if name in loaded:
            engine = loaded[name].engine
            try:
                entry["max_model_len"] = engine.context_size
                entry["meta"] = {
                    "vocab_type": engine.config.architecture,
                    "n_vocab": engine.config.vocab_size,
                    "n_ctx": engine.context_size,
                    "n_ctx_train": engine.config.context_length,
                    "n_embd": engine.config.hidden_size,
                    "size": engine.model_bytes,
                }
            except OxillamaError:
                entry["loaded"] = False
        entry.update(root=str(path), parent=None)
        out.append(entry)
        if name in loaded:
            for each in loaded[name].adapters.all():
                base = {key: entry[key] for key in ("object", "created", "owned_by", "loaded")}
                out.append({"id": each.name, **base, "root": each.path, "parent": name})
    return out
