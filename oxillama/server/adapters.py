"""LoRA adapters: the one place where routes meet what the engine has of them. The engine loads
none yet, so the list is empty, and what names an adapter is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.server.errors import ApiError, shown
from oxillama.server.models import Model

_WHY = "adapters cannot be loaded by this version of the engine"


def listed(model: Model) -> list[dict[str, Any]]:
    """The adapters of a model: id, path, scale."""
    return []


def set_scales(model: Model, wanted: Sequence[Mapping[str, Any]]) -> None:
    """Give adapters new scales; a 400 for an id that is none."""
    known = {each["id"] for each in listed(model)}
    for at, each in enumerate(wanted):
        if each["id"] not in known:
            raise ApiError(
                400,
                f"[{at}].id: found {each['id']}, which is no adapter; {len(known)} are loaded",
                param=f"[{at}].id",
                code="adapter_not_found",
            )


def load(model: Model, name: str, path: str) -> None:
    """Load an adapter under a name that requests can give as their model."""
    raise ApiError(400, f"lora_path: {_WHY}", param="lora_path", code="adapters_not_supported")


def unload(model: Model, name: str) -> None:
    """Unload an adapter; 404 for an unknown one."""
    raise ApiError(
        404,
        f"lora_name: {shown(name)} is not loaded",
        param="lora_name",
        code="adapter_not_found",
    )
