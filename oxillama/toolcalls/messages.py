"""Messages in the form that a chat template expects. Some templates write a call's arguments from
an object, some from JSON text; some call reasoning "thinking"; some read contents only as text,
some only as parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

from oxillama.errors import ConfigError, TemplateError
from oxillama.media.messages import MEDIA_TYPES

_PROBE = "probe_of_arguments"
_SAID = "probe_of_content"
_RESULTS = ("tool", "ipython", "function")  # roles whose content is what a tool returned
# a template that goes through a content part by part
_PARTS = re.compile(r"\bfor\s+\w+\s+in\s+\w+(?:\.content\b|\[['\"]content['\"]\])")


class MessageForm:
    """The form of messages that one template expects. The forms of calls and of contents are
    detected by rendering, when the first message needs it.
    """

    __slots__ = ("_by_parts", "_calls", "_render", "_takes_parts", "_takes_text", "_thinking")

    def __init__(self, source: str, render: Callable[[Sequence[dict]], str]) -> None:
        self._render = render
        self._thinking = (
            "reasoning_content" not in source
            and re.search(r"\.thinking\b|\[['\"]thinking['\"]\]", source) is not None
        )
        # whether arguments are text, and the content of a message with calls alone
        self._calls: tuple[bool, str | None] | None = None
        self._by_parts = _PARTS.search(source) is not None
        # None: not tried yet; texts are read by whoever does not go through parts
        self._takes_text: bool | None = None if self._by_parts else True
        self._takes_parts: bool | None = None

    def formed(self, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The messages with contents, tool calls and reasoning as the template expects them.
        ConfigError names a value that is not a message, or what has a wrong type in it.
        """
        check_messages(messages)
        return [self._message(message) for message in messages]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(message)
        if made.get("tool_calls"):
            made["tool_calls"] = [self._call(call) for call in made["tool_calls"]]
        if made.get("content") is None:
            made["content"] = self._form_of_calls()[1]
        else:
            made["content"] = self._content(made["content"])
        reasoning = made.get("reasoning_content")
        if (
            self._thinking
            and reasoning
            and "thinking" not in made
            and not (made.get("tool_calls") and made.get("content"))
        ):
            made["thinking"] = reasoning
        return made

    def _content(self, content: Any) -> Any:
        """A content in the form that the template writes completely: text as one part if it reads
        only parts, parts as one text if it reads only text.
        """
        if isinstance(content, str):
            if self._takes_text is None:
                self._takes_text = self._writes(_SAID) or not self._writes([_part(_SAID)])
            return content if self._takes_text else [_part(content)]
        if isinstance(content, list) and content and all(map(_is_text, content)):
            if self._takes_parts is None:
                self._takes_parts = self._by_parts and self._writes([_part(_SAID)])
            return content if self._takes_parts else "".join(part["text"] for part in content)
        return content

    def _writes(self, content: Any) -> bool:
        """Whether the template writes only the text of a content."""
        try:
            text = self._render([{"role": "user", "content": content}])
        except TemplateError:
            return False
        return _SAID in text and "'type'" not in text

    def _call(self, call: Any) -> Any:
        inside = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(inside, Mapping) or "arguments" not in inside:
            return call
        made = {
            **inside,
            "arguments": call_arguments(inside["arguments"], self._form_of_calls()[0]),
        }
        return {**call, "function": made} if "function" in call else made

    def _form_of_calls(self) -> tuple[bool, str | None]:
        """(whether the template writes a call's arguments correctly only from JSON text, the
        content of a message with calls alone: empty text, or None if the template writes calls only
        with that).
        """
        if self._calls is None:
            as_text, written = self._probed("")
            empty: str | None = ""
            if not written:
                without, written = self._probed(None)
                if written:
                    as_text, empty = without, None
            self._calls = as_text, empty
        return self._calls

    def _probed(self, content: str | None) -> tuple[bool, bool]:
        """(whether arguments must be JSON text, whether a call is written at all) beside a
        content.
        """
        written = {}
        for as_text in (False, True):
            arguments = call_arguments({_PROBE: "x"}, as_text)
            call = {
                "id": "call00000",
                "type": "function",
                "function": {"name": "f", "arguments": arguments},
            }
            history: list[dict[str, Any]] = [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": content, "tool_calls": [call]},
            ]
            try:
                written[as_text] = self._render(
                    [
                        *history,
                        {"role": "tool", "tool_call_id": "call00000", "name": "f", "content": "b"},
                    ]
                )
            except TemplateError:
                written[as_text] = ""
        spelled = re.compile(rf'"{_PROBE}"\s*:\s*"x"')
        wants_text = bool(spelled.search(written[True])) and (
            not written[False] or f"'{_PROBE}'" in written[False]
        )
        return wants_text, any(_PROBE in text for text in written.values())


def check_messages(messages: Sequence[Any]) -> None:
    """ConfigError names a message that no template can write, or what is of a wrong type in it."""
    for at, message in enumerate(messages):
        _check(message, f"messages[{at}]")


def _check(message: Any, name: str) -> None:
    """ConfigError for a message that no template can write, under its name."""
    if not isinstance(message, Mapping):
        hint = ""
        if isinstance(message, (list, tuple)) and message and isinstance(message[0], Mapping):
            hint = "; a call takes one conversation, submit_chat starts each of several"
        raise ConfigError(
            f"{name}: found {type(message).__name__}, wanted a message: a dict of role and "
            f"content{hint}"
        )
    role, content, calls = (message.get(key) for key in ("role", "content", "tool_calls"))
    if not isinstance(role, str):
        raise ConfigError(
            f"{name}.role: found {_kind(message, 'role')}, wanted a text such as 'user'"
        )
    if calls is not None and not isinstance(calls, (list, tuple)):
        raise ConfigError(f"{name}.tool_calls: found {type(calls).__name__}, wanted a list")
    for at, call in enumerate(calls or ()):
        _check_call(call, f"{name}.tool_calls[{at}]")
    if isinstance(content, str) or (role == "assistant" and calls and content is None):
        return
    if isinstance(content, Mapping) and role in _RESULTS:
        return
    if not isinstance(content, (list, tuple)):
        raise ConfigError(
            f"{name}.content: found {_kind(message, 'content')}, wanted text or a list of parts"
            + (", or tool_calls" if role == "assistant" and content is None else "")
        )
    if not content:
        raise ConfigError(f"{name}.content: found no parts, wanted 1 or more")
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not (isinstance(kind, str) and kind in MEDIA_TYPES) and not _is_text(part):
            raise ConfigError(
                f"{name}.content[{at}]: found {_part_found(part)}, wanted a part such as "
                '{"type": "text", "text": "..."}, an image or audio'
            )


def _check_call(call: Any, name: str) -> None:
    """ConfigError for a call that does not say what is called, under its name."""
    if not isinstance(call, Mapping):
        raise ConfigError(f"{name}: found {type(call).__name__}, wanted a dict of function")
    function = call.get("function", call)
    if "function" in call:
        name += ".function"
    if not isinstance(function, Mapping):
        raise ConfigError(f"{name}: found {type(function).__name__}, wanted a dict with a name")
    if not isinstance(function.get("name"), str):
        raise ConfigError(f"{name}.name: found {_kind(function, 'name')}, wanted a text")
    if not isinstance(function.get("arguments"), (str, Mapping, NoneType)):
        raise ConfigError(
            f"{name}.arguments: found {_kind(function, 'arguments')}, wanted a dict or its JSON"
        )


def _kind(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    return type(value).__name__ if value is not None else "None" if key in message else "nothing"


def _part_found(part: Any) -> str:
    if not isinstance(part, Mapping):
        return type(part).__name__
    if part.get("type") == "text":
        return f"a text of type {type(part.get('text')).__name__}"
    return f"a dict of type {part.get('type')!r:.40}"


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    )


def call_arguments(given: Any, as_text: bool) -> Any:
    """Arguments in one form or the other; a text that is not a JSON object is unchanged."""
    if as_text:
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    if not isinstance(given, str):
        return given
    try:
        value = json.loads(given) if given.strip() else {}
    except (ValueError, RecursionError):
        return given
    return value if isinstance(value, dict) else given
