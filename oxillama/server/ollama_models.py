"""Ollama's routes about models: which there are, which are loaded, what their files hold."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from starlette.responses import Response

import oxillama
from oxillama.errors import OxillamaError, QuantError
from oxillama.gguf import GgufReader, Metadata
from oxillama.quant.recipes import recipe_name
from oxillama.server.about import About, of_file, of_model
from oxillama.server.calls import Call, json_response
from oxillama.server.errors import missing
from oxillama.server.models import unusable
from oxillama.server.ollama import LINES, check_empty, check_template, line
from oxillama.server.schema import (
    BOOLEAN,
    FALSE,
    OBJECT,
    STRING,
    Schema,
    obj,
)

_MAY_BE_EMPTY = {"type": "string", "maxLength": 256}
SHOW_BODY: Schema = obj(
    {
        "model": _MAY_BE_EMPTY,
        "name": _MAY_BE_EMPTY,
        "verbose": BOOLEAN,
        "system": STRING,
        "template": STRING,
        "options": OBJECT,
    }
)
PULL_BODY: Schema = obj(
    {"model": _MAY_BE_EMPTY, "name": _MAY_BE_EMPTY, "stream": BOOLEAN, "insecure": FALSE}
)
# the Ollama that first had all that is served here, by which clients choose what to ask for
_API_VERSION = "0.14.0"


def _entry(call: Call, name: str, path: Any) -> dict[str, Any] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(status.st_mtime))
    mark = f"{name}\0{status.st_size}\0{status.st_mtime_ns}"
    # clients look a model up by its name with a tag, which Ollama's always have
    tagged = name if ":" in name else f"{name}:latest"
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": stamp,
        "size": status.st_size,
        "digest": hashlib.sha256(mark.encode()).hexdigest(),
        "details": _details(path, status),
    }


def _details(path: str | os.PathLike[str], status: os.stat_result) -> dict[str, Any]:
    """What a file says of itself, whether it is loaded or not; empty for no GGUF file."""
    marks = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    try:
        family, size, level = _said(str(path), marks)
    except (OSError, OxillamaError):  # not remembered: a split file may still be on its way
        family, size, level = "", "", ""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": size,
        "quantization_level": level,
    }


@lru_cache(maxsize=1024)
def _said(path: str, marks: tuple[int, ...]) -> tuple[str, str, str]:
    """(architecture, number of parameters, type) that a file states. marks: its state, which
    another file under this path does not have.
    """
    with GgufReader(path) as reader:
        found = reader.metadata
        return (
            str(found.get("general.architecture", "")),
            str(found.get("general.size_label") or _in_words(_parameters(reader))),
            _level(found.get("general.file_type")),
        )


def _parameters(reader: GgufReader) -> int:
    return sum(math.prod(each.shape) for each in reader.tensors.values())


def _in_words(count: int) -> str:
    """A number of parameters as Ollama writes it: 7.6B, 134.52M, 28K."""
    for unit, digits, letter in ((10**9, 1, "B"), (10**6, 2, "M"), (10**3, 0, "K")):
        if count >= unit:
            value = f"{count / unit:.{digits}f}"
            return (value.rstrip("0").rstrip(".") if digits else value) + letter
    return str(count)


def _level(file_type: object) -> str:
    """The name of a file's type, "" where the file or the type is not known."""
    try:
        return recipe_name(str(file_type))
    except QuantError:
        return ""


async def tags(call: Call) -> Response:
    """GET /api/tags"""

    def work() -> list[Any]:
        found = (_entry(call, *each) for each in call.state.models.known().items())
        return [each for each in found if each is not None]

    return json_response({"models": await call.offload(work)})


async def running(call: Call) -> Response:
    """GET /api/ps"""
    known = call.state.models.known()
    out = []
    for model in call.state.models.loaded():
        entry = _entry(call, model.name, known.get(model.name, ""))
        if entry is not None:
            entry.pop("modified_at")
            # no model leaves after a time: it does for another
            more = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
            out.append({**entry, **more, "context_length": model.engine.context_size})
    return json_response({"models": out})


async def version(call: Call) -> Response:
    """GET /api/version"""
    return json_response({"version": _API_VERSION, "oxillama": oxillama.__version__})


async def pull(call: Call) -> Response:
    """POST /api/pull"""
    call.state.models.resolve(_name(call.body))  # nothing is fetched: it is here, or a 404
    done = {"status": "success"}
    if call.body.get("stream") is False:
        return json_response(done)
    return Response(line(done), media_type=LINES)


def _name(body: Mapping[str, Any]) -> str:
    name = body.get("model") or body.get("name")
    if not name:
        raise missing("model")
    return str(name)


async def show(call: Call) -> Response:
    """POST /api/show"""
    body = call.body
    name = _name(body)
    check_template(body)
    check_empty(body, ("system", "options"), "changes nothing that is shown, wanted none")
    found = call.state.models
    name = found.resolve(name)
    loaded = found.find(name)

    def work() -> Response:
        if loaded is None:  # it is not loaded to be looked at
            about = of_file(found.known()[name], call.state.config)
        else:
            about = of_model(loaded)
        keys, tensors = _of_file(about, name, verbose=bool(body.get("verbose")))
        return json_response(
            {
                "modelfile": f"FROM {about.path}",
                "parameters": "",
                "template": about.template,
                "details": _details(about.path, about.path.stat()),
                "model_info": keys,
                **({"tensors": tensors} if body.get("verbose") else {}),
                "capabilities": _capabilities(about),
            }
        )

    return await call.offload(work)


_FEW = 8  # items of an array that is shown without `verbose`
_APART = ("general.name", "tokenizer.chat_template")  # keys that are shown elsewhere, or long


def _of_file(
    about: About, name: str, *, verbose: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the keys of a model's file, with what follows from its shapes; its tensors). Long arrays are
    empty unless `verbose`.
    """
    config = about.config
    try:
        with GgufReader(about.path) as reader:
            found = {
                key: _shown(reader.metadata, key, verbose=verbose)
                for key in reader.metadata
                if key not in _APART
            }
            parameters = _parameters(reader)
            tensors = [
                {"name": each.name, "type": each.type_name, "shape": list(each.shape)}
                for each in reader.tensors.values()
            ]
    except (OSError, OxillamaError) as error:
        raise unusable(about.path, error) from None
    arch = config.architecture
    defaults = {
        "general.architecture": arch,
        "general.basename": config.name or name,
        "general.parameter_count": parameters,
        f"{arch}.context_length": config.context_length,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.vocab_size": config.vocab_size,
    }
    return {**defaults, **found}, tensors


def _shown(metadata: Metadata, key: str, *, verbose: bool) -> Any:
    texts = None if verbose else metadata.strings(key)  # counted, and not decoded
    if texts is not None and len(texts[1]) > _FEW:
        return []
    return _plain(metadata[key], verbose=verbose)


def _plain(value: Any, *, verbose: bool) -> Any:
    """A value of a file in JSON, where "nan" and "inf" are texts."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        few = verbose or len(value) <= _FEW
        return [_plain(each, verbose=verbose) for each in value] if few else []
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _capabilities(about: About) -> list[str]:
    """What a model is for, in Ollama's words. Its clients embed with a model of "embedding" and
    never chat with it, so a model that generates is none, although it has vectors here too.
    """
    if about.embeds:
        return ["embedding"]
    chats = bool(about.template)
    found = {
        "completion": True,
        "insert": about.fills,
        "tools": chats,
        "vision": chats and about.sees,
        "thinking": chats and about.reasons,
    }
    return [name for name, has in found.items() if has]
