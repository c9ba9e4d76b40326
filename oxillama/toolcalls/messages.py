"""Messages as a chat template takes them: some write a call's arguments from an object, some from
JSON text; some call reasoning thinking.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oxillama.errors import TemplateError

_PROBE = "probe_of_arguments"


class MessageForm:
    """How one template wants its messages; which form of arguments it takes is tried once, when the
    first call comes.
    """

    __slots__ = ("_as_text", "_render", "_thinking")

    def __init__(self, source: str, render: Callable[[Sequence[dict]], str]) -> None:
        self._render = render
        self._thinking = (
            "reasoning_content" not in source
            and re.search(r"\.thinking\b|\[['\"]thinking['\"]\]", source) is not None
        )
        self._as_text: bool | None = None

    def formed(self, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The messages, with the arguments of calls and what came before an answer as the template
        takes them.
        """
        return [
            self._message(message) if isinstance(message, Mapping) else message
            for message in messages
        ]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(message)
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

    def _call(self, call: Any) -> Any:
        inside = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(inside, Mapping) or "arguments" not in inside:
            return call
        if self._as_text is None:
            self._as_text = self._wants_text()
        made = {**inside, "arguments": _arguments(inside["arguments"], self._as_text)}
        return {**call, "function": made} if "function" in call else made

    def _wants_text(self) -> bool:
        """Whether the template writes a call's arguments right from JSON text alone."""
        written = {}
        for as_text in (False, True):
            arguments = _arguments({_PROBE: "x"}, as_text)
            call = {
                "id": "call00000",
                "type": "function",
                "function": {"name": "f", "arguments": arguments},
            }
            talk: list[dict[str, Any]] = [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
            try:
                written[as_text] = self._render(
                    [
                        *talk,
                        {"role": "tool", "tool_call_id": "call00000", "name": "f", "content": "b"},
                    ]
                )
            except TemplateError:
                written[as_text] = ""
        spelled = re.compile(rf'"{_PROBE}"\s*:\s*"x"')
        return bool(spelled.search(written[True])) and (
            not written[False] or f"'{_PROBE}'" in written[False]
        )


def _arguments(given: Any, as_text: bool) -> Any:
    """Arguments in one form or the other; a text that is no JSON object stays as it is."""
    if as_text:
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    if not isinstance(given, str):
        return given
    try:
        value = json.loads(given) if given.strip() else {}
    except (ValueError, RecursionError):
        return given
    return value if isinstance(value, dict) else given
