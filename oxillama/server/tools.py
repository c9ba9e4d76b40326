"""Tools of a chat and the choice among them, as chat completions write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxillama.server.errors import ApiError
from oxillama.server.schema import (
    BOOLEAN,
    NAME,
    OBJECT,
    STRING,
    array,
    enum,
    obj,
    one_of,
)

TOOL_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"}
FUNCTION = obj(
    {
        "name": TOOL_NAME,
        "description": STRING,
        "parameters": OBJECT,
        "strict": BOOLEAN,
    },
    ("name",),
)
TOOLS = array(obj({"type": enum("function"), "function": FUNCTION}, ("type", "function")), 0, 128)
_NAMED = obj(
    {"type": enum("function"), "function": obj({"name": NAME}, ("name",))}, ("type", "function")
)
_ALLOWED = obj(
    {
        "type": enum("allowed_tools"),
        "allowed_tools": obj(
            {"mode": enum("auto", "required"), "tools": array(_NAMED, 1, 128)}, ("mode", "tools")
        ),
    },
    ("type", "allowed_tools"),
)
TOOL_CHOICE = one_of(enum("none", "auto", "required"), _NAMED, _ALLOWED)


def allowed_tools(tools: Any, allowed: Mapping[str, Any]) -> tuple[list[dict], str]:
    """(the tools that a choice allows, its mode); a 400 for one that there is not."""
    names = [each["function"]["name"] for each in allowed["tools"]]
    known = {tool["function"]["name"]: tool for tool in tools or ()}
    for name in names:
        if name not in known:
            raise ApiError(
                400,
                f"tool_choice: found {name!r}, wanted one of {', '.join(known) or 'no tools'}",
                param="tool_choice",
            )
    return [known[name] for name in dict.fromkeys(names)], allowed["mode"]


def tools_of(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The tools of a body, each name once; None for none."""
    tools = body.get("tools") or None
    names = [tool["function"]["name"] for tool in tools or ()]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise ApiError(
                400,
                f"tools[{at}].function.name: found {name!r} twice, wanted each name once",
                param=f"tools[{at}].function.name",
            )
    choice = body.get("tool_choice")
    if tools is None and choice not in (None, "none", "auto"):
        raise ApiError(400, "tool_choice: found without tools, wanted both", param="tool_choice")
    if (
        isinstance(choice, Mapping)
        and choice["type"] == "function"
        and choice["function"]["name"] not in names
    ):
        raise ApiError(
            400,
            f"tool_choice: found {choice['function']['name']!r}, wanted one of {', '.join(names)}",
            param="tool_choice",
        )
    return [
        {
            "type": "function",
            "function": {
                name: value
                for name, value in tool["function"].items()
                if name != "strict" and value is not None
            },
        }
        for tool in tools or ()
    ] or None
