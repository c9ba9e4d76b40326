"""LoRA adapters of a served model, with ids and scales as in llama-server, and names used as models
as in vLLM.

A request uses the adapters that its body names, otherwise those whose scale is not 0. Running
requests keep their adapters: changed scales and unloaded adapters affect later requests.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import oxillama
from oxillama.errors import ConfigError, OxillamaError
from oxillama.lora.fit import Lora
from oxillama.server.errors import ApiError, shown
from oxillama.server.schema import array, integer, number, obj

# per request: these and no others, whatever the scales of the server
LORA = array(obj({"id": integer(0), "scale": number(-1e6, 1e6)}, ("id", "scale")), 0, 64)


@dataclass(slots=True)
class Adapter:
    """A loaded adapter. `own`: its scale if its name is given as the model; `scale`: for requests
    that name no adapter.
    """

    id: int
    lora: Lora
    path: str
    own: float
    scale: float

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.lora.name


class ModelAdapters:
    """The adapters of one model. Ids are never reused. `changed`: since the model was loaded, so
    that unloading it would lose something.
    """

    def __init__(self, engine: oxillama.InferenceEngine) -> None:
        self._engine, self._lock = engine, threading.Lock()
        self._by_id: dict[int, Adapter] = {}
        self._next = 0
        self._names: set[str] = set()  # of all there ever were
        self.changed = False

    def all(self) -> list[Adapter]:
        """Every one, by id."""
        with self._lock:
            return list(self._by_id.values())

    def named(self, name: Any) -> Adapter | None:
        """The adapter of a name."""
        return next((each for each in self.all() if each.name == name), None)

    def means(self, name: Any) -> bool:
        """Whether a name is, or was before it was unloaded, an adapter's."""
        return name in self._names

    def add(
        self, path: str, *, name: str | None = None, scale: float = 1.0, on: bool, replace: bool
    ) -> Adapter:
        """Load one. on: requests that name no adapter use it too. OxillamaError for a bad adapter;
        then nothing has changed.
        """
        with self._lock:
            loras = self._engine.loras
            held = next((each for each in self._by_id.values() if each.name == name), None)
            lora = loras.load(path, name=name, replace=replace)
            if held is not None and replace:
                held.lora, held.path, held.own = lora, path, scale
                self._push()
                return held
            if any(each.lora is lora for each in self._by_id.values()):
                raise ConfigError(f"lora: {lora.name!r} is loaded already, wanted each one once")
            made = Adapter(self._next, lora, path, scale, scale if on else 0.0)
            self._next += 1
            self._by_id[made.id] = made
            self._names.add(made.name)
            self._push()
            return made

    def drop(self, adapter: Adapter) -> None:
        """Unload one; sessions that use it keep it."""
        with self._lock:
            if self._by_id.pop(adapter.id, None) is not None:
                self._push()
                self._engine.unload_lora(adapter.name)

    def scale(self, wanted: Mapping[int, float]) -> None:
        """Set every adapter's scale by its id, 0 if there is none."""
        with self._lock:
            for each in self._by_id.values():
                each.scale = wanted.get(each.id, 0.0)
            self._push()

    def _push(self) -> None:
        self._engine.loras.replace(
            [(each.lora, each.scale) for each in self._by_id.values() if each.scale]
        )


# ---- what routes ask


class ServedModel(Protocol):
    """What this module needs from a model (`models.ServedModel`)."""

    @property
    def name(self) -> str:
        """What requests call it."""

    adapters: ModelAdapters
    engine: oxillama.InferenceEngine


def listed(model: ServedModel) -> list[dict[str, Any]]:
    """The adapters as llama-server lists them."""
    return [
        {"id": each.id, "path": each.path, "scale": each.scale} for each in model.adapters.all()
    ]


def _scales(
    model: ServedModel, given: Sequence[Mapping[str, Any]], path: str
) -> list[tuple[Adapter, float]]:
    """The adapters of a list of ids and scales, by id; 400 for an unknown id."""
    known = {each.id: each for each in model.adapters.all()}
    found: dict[int, float] = {}
    for at, each in enumerate(given):
        where, id = f"{path}[{at}].id", int(each["id"])
        if id not in known:
            have = ", ".join(map(str, known)) or "none"
            raise ApiError(
                400,
                f"{where}: found {id}, which is no adapter; loaded are {have}",
                param=where,
                code="adapter_not_found",
            )
        if id in found:
            raise ApiError(400, f"{where}: found {id} twice, wanted each id once", param=where)
        found[id] = float(each["scale"])
    return [(known[id], found[id]) for id in sorted(found)]


def set_scales(model: ServedModel, wanted: Sequence[Mapping[str, Any]]) -> None:
    """Set the scales of adapters, and 0 for those that are not in the list; 400 for an unknown id,
    and then nothing has changed.
    """
    model.adapters.scale({each.id: scale for each, scale in _scales(model, wanted, "")})
    model.adapters.changed = True


def asked(model: ServedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    """The option `lora` of `engine.submit` for a body: by ids, or by its model; empty if the
    server's scales apply.
    """
    name, given = body.get("model"), body.get("lora")
    if name == model.name:
        name = None  # the model's, also where one of its adapters has the same
    by_name = model.adapters.named(name)
    if by_name is None and model.adapters.means(name):
        # unloaded since its name was looked up
        raise ApiError(
            404, f"model: {shown(name)} is unloaded", param="model", code="model_not_found"
        )
    if given is None:
        return {} if by_name is None else {"lora": [(by_name.lora, by_name.own)]}
    if by_name is not None:
        raise ApiError(
            400, f"lora: found together with the adapter {by_name.name} as model", param="lora"
        )
    return {"lora": [(each.lora, scale) for each, scale in _scales(model, given, "lora")]}


def resolved(model: ServedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with the server's scales as they are now: for a body whose prompts are submitted
    one after another.
    """
    loras = model.engine.loras
    found = loras.resolve(asked(model, body).get("lora"))
    return {"lora": loras.current if found is None else found}


def in_force(model: ServedModel, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The adapters, by id and scale, of a request with these options of `engine.submit`."""
    known, given = model.adapters.all(), options.get("lora")
    if given is None:
        return [{"id": each.id, "scale": each.scale} for each in known if each.scale]
    ids = {each.lora: each.id for each in known}
    return [{"id": ids.get(lora), "scale": scale} for lora, scale in given]


def served_as(model: ServedModel, body: Mapping[str, Any]) -> str:
    """The model's name in an answer: the adapter's name, if the body gave that."""
    name = body.get("model")
    return name if isinstance(name, str) and model.adapters.means(name) else model.name


def load(model: ServedModel, name: str, path: str, *, replace: bool, taken: Sequence[str]) -> None:
    """Load an adapter under a name that requests can use as their model; `taken` are names of
    models.
    """
    if name in taken:
        raise ApiError(
            400,
            f"lora_name: {shown(name)} is a model's, wanted another",
            param="lora_name",
            code="adapter_exists",
        )
    if not replace and model.adapters.named(name) is not None:
        raise ApiError(
            400,
            f"lora_name: {shown(name)} is loaded already, wanted another, or load_inplace: true",
            param="lora_name",
            code="adapter_exists",
        )
    if "\0" in path or not (Path(path).is_file() or Path(path).is_dir()):
        raise ApiError(
            404,
            f"lora_path: {shown(path)} is not a file or folder of the server's machine",
            param="lora_path",
            code="adapter_not_found",
        )
    try:
        model.adapters.add(path, name=name, on=False, replace=replace)
    except (OxillamaError, OSError, ValueError) as error:
        raise ApiError(
            400, f"lora_path: {error}", param="lora_path", code="adapter_unusable"
        ) from error
    model.adapters.changed = True


def unload(model: ServedModel, name: str, id: int | None = None) -> None:
    """Unload an adapter; 404 for an unknown one."""
    found = model.adapters.named(name)
    if found is None:
        raise ApiError(
            404,
            f"lora_name: {shown(name)} is not loaded",
            param="lora_name",
            code="adapter_not_found",
        )
    if id is not None and id != found.id:
        raise ApiError(
            400,
            f"lora_int_id: found {id}, {found.name} has {found.id}",
            param="lora_int_id",
        )
    model.adapters.drop(found)
    model.adapters.changed = True
