"""Messages in the form that a chat template expects. Some templates write a call's arguments from
an object, some from JSON text; some call reasoning "thinking"; some read contents only as text,
some only as parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oxillama.errors import TemplateError

_PROBE = "probe_of_arguments"
_SAID = "probe_of_content"
# a template that goes through a content part by part
_PARTS = re.compile(r"\bfor\s+\w+\s+in\s+\w+(?:\.content\b|\[['\"]content['\"]\])")


class MessageForm:
    """The form of messages that one template expects. The forms of arguments and of contents are
    detected by rendering, when the first message needs it.
    """

    __slots__ = ("_as_text", "_by_parts", "_render", "_takes_parts", "_takes_text", "_thinking")

    def __init__(self, source: str, render: Callable[[Sequence[dict]], str]) -> None:
        self._render = render
        self._thinking = (
            "reasoning_content" not in source
            and re.search(r"\.thinking\b|\[['\"]thinking['\"]\]", source) is not None
        )
        self._as_text: bool | None = None
        self._by_parts = _PARTS.search(source) is not None
        # None: not tried yet; texts are read by whoever does not go through parts
        self._takes_text: bool | None = None if self._by_parts else True
        self._takes_parts: bool | None = None

    def formed(self, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The messages with tool-call arguments and reasoning as the template expects them."""
        return [
            self._message(message) if isinstance(message, Mapping) else message
            for message in messages
        ]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(message)
        if "content" in made:
            made["content"] = self._content(made["content"])
        if made.get("tool_calls"):
            made["tool_calls"] = [self._call(call) for call in made["tool_calls"]]
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
        if self._as_text is None:
            self._as_text = self._wants_text()
        made = {**inside, "arguments": _arguments(inside["arguments"], self._as_text)}
        return {**call, "function": made} if "function" in call else made

    def _wants_text(self) -> bool:
        """Whether the template writes a call's arguments correctly only from JSON text."""
        written = {}
        for as_text in (False, True):
            arguments = _arguments({_PROBE: "x"}, as_text)
            call = {
                "id": "call00000",
                "type": "function",
                "function": {"name": "f", "arguments": arguments},
            }
            history: list[dict[str, Any]] = [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
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
        return bool(spelled.search(written[True])) and (
            not written[False] or f"'{_PROBE}'" in written[False]
        )


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    )


def _arguments(given: Any, as_text: bool) -> Any:
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
