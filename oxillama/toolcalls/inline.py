"""Tools, calls and results written into the text of messages, for chat templates that teach no
notation of calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.errors import ConfigError
from oxillama.toolcalls.formats import ARGS, DIGITS, IDENTIFIER, KEY, STRING, ToolCallFormat
from oxillama.toolcalls.messages import call_arguments
from oxillama.toolcalls.tools import tools_of

_PREAMBLE = """You can call functions. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>
To call a function, write its name and its arguments like this:
{example}"""
_EXAMPLE = ("FUNCTION", {"ARGUMENT": "VALUE"})


def written_calls(kind: ToolCallFormat, calls: Sequence[tuple[str, Any]]) -> str:
    """Calls, (name, arguments) each, as a model of the format writes them. ConfigError for
    arguments that are no object in a format that writes each of them by its name.
    """
    if kind.style in ("python", "tags") or kind.quote:
        for name, arguments in calls:
            if not isinstance(arguments, Mapping):
                raise ConfigError(
                    f"tool call {name}: arguments: found {str(arguments)[:40]!r}, wanted an object"
                )
    if kind.style == "python":
        each = (f"{name}({_python(arguments)})" for name, arguments in calls)
        return f"{kind.open}[{', '.join(each)}]{kind.close}"
    if kind.style == "harmony":
        return "".join(
            f"{kind.open}commentary to=functions.{name} <|constrain|>json<|message|>"
            f"{_json(arguments)}<|call|>"
            for name, arguments in calls
        )
    if kind.style == "named":
        return "".join(f"{kind.open}{name}{ARGS}{_json(arguments)}" for name, arguments in calls)
    if kind.style == "tags":
        return _blocks(kind, [_tagged(kind, *call) for call in calls], together=kind.together)
    if kind.style == "headed":
        lead = kind.lead.replace(IDENTIFIER, "0")
        write = _quoted if kind.quote else _json
        spelled = [
            f"{lead}{name}{kind.middle.replace(DIGITS, str(number))}{write(arguments)}{kind.tail}"
            for number, (name, arguments) in enumerate(calls)
        ]
        if kind.lead:
            return kind.open + "\n".join(spelled) + kind.close
        return "\n".join(f"{kind.open}{each}{kind.close}" for each in spelled)
    objects = [
        _json(
            {kind.name_key: name, kind.arguments_keys[0]: arguments}
            if kind.name_key
            else {name: arguments}
        )
        for name, arguments in calls
    ]
    if kind.style == "array":
        return f"{kind.open}[{', '.join(objects)}]{kind.close}"
    if kind.bare:
        return kind.open + "; ".join(objects)
    return _blocks(kind, objects, together=kind.together)


def _blocks(kind: ToolCallFormat, calls: Sequence[str], *, together: bool) -> str:
    """Calls on lines of their own, in one block or in a block each."""
    blocks = ["\n".join(calls)] if together else calls
    return "\n".join(f"{kind.open}\n{each}\n{kind.close}".rstrip("\n") for each in blocks)


def _tagged(kind: ToolCallFormat, name: str, arguments: Mapping[str, Any]) -> str:
    line = "\n" if kind.lines else ""
    written = "".join(
        f"{kind.key_lead}{key}"
        f"{kind.key_tail.replace(STRING, 'true' if isinstance(value, str) else 'false')}"
        f"{kind.value_lead}{line}{value if isinstance(value, str) else _json(value)}{line}"
        f"{kind.value_tail.replace(KEY, key)}\n"
        for key, value in arguments.items()
    )
    return f"{kind.lead}{name}{kind.middle}{line}{written}{kind.tail}"


def _python(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.items())


def _quoted(value: Any, *, inner: bool = False) -> str:
    """A value between Gemma's quotes: the arguments' own keys are bare, those below are not."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        keys = [(_quoted(key) if inner else key, item) for key, item in value.items()]
        return "{" + ",".join(f"{key}:{_quoted(item, inner=True)}" for key, item in keys) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_quoted(item, inner=True) for item in value) + "]"
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def inline_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None,
    kind: ToolCallFormat,
    *,
    system: bool,
) -> list[dict[str, Any]]:
    """Messages for a template that knows neither tools nor calls: calls are written in the format,
    results stand in messages of the user, and tools in the system message, or without `system` in
    the first message of the user.
    """
    out: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        content, calls = message.get("content"), message.get("tool_calls")
        if message["role"] == "tool":
            result = f"<tool_response>\n{_said(content)}\n</tool_response>"
            if after_result:
                out[-1]["content"] += f"\n{result}"
            else:
                out.append({"role": "user", "content": result})
            after_result = True
            continue
        after_result = False
        made = {name: value for name, value in message.items() if name != "tool_calls"}
        if calls:
            written = written_calls(kind, [_called(call) for call in calls])
            made["content"] = "\n".join(filter(None, (_said(content), written)))
        out.append(made)
    if tools:
        _teach(out, tools, kind, system=system)
    return out


def _teach(
    messages: list[dict[str, Any]], tools: Sequence[Any], kind: ToolCallFormat, *, system: bool
) -> None:
    """Puts the tools and the notation of calls into messages."""
    tools_of(tools)  # an error names what is no tool
    try:
        listed = "\n".join(_json(tool.get("function", tool)) for tool in tools)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"tools: cannot be written as JSON ({error}), wanted JSON Schemas"
        ) from None
    preamble = _PREAMBLE.format(tools=listed, example=written_calls(kind, [_EXAMPLE]))
    first = next((each for each in messages if each["role"] == "user"), None)
    if not system and first is not None:
        content = first["content"]
        first["content"] = (
            f"{preamble}\n\n{content}"
            if isinstance(content, str)
            else [{"type": "text", "text": f"{preamble}\n\n"}, *content]
        )
    elif messages and messages[0]["role"] in ("system", "developer"):
        before = _said(messages[0]["content"])
        messages[0] = {**messages[0], "content": f"{before}\n\n{preamble}".strip()}
    else:
        messages.insert(0, {"role": "system", "content": preamble})


def _said(content: Any) -> str:
    """The text of a content: parts are joined, and what a tool returned as an object is JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Mapping):
        return _json(content)
    return "".join(part.get("text", "") for part in content)


def _called(call: Mapping[str, Any]) -> tuple[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    return function.get("name"), {} if arguments is None else call_arguments(arguments, False)
