"""The token ids of a request's prompt, read from its body without the model's weights, to find the
replica that holds its prefix.

This never decides an answer: a body that cannot be read has no ids and goes to the least busy
replica.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oxillama.embedded import embedded_path
from oxillama.engine.generation import SharedVocabulary
from oxillama.gguf import GgufReader
from oxillama.server.chat import messages_of
from oxillama.server.models import EMBEDDED, stem
from oxillama.server.prompts import PromptBuilder
from oxillama.server.settings import ServerConfig
from oxillama.server.tools import tools_of
from oxillama.tokenizer import TokenizerBridge

_CHATS = ("/v1/chat/completions", "/chat/completions", "/v1/messages", "/api/chat")
_TEXTS = ("/v1/completions", "/completions", "/completion")


class PromptReader:
    """The vocabulary and the chat template of a server's first model."""

    def __init__(self, config: ServerConfig) -> None:
        self._talk: PromptBuilder | None = None
        self._bridge: TokenizerBridge | None = None
        if config.model is None and config.models_dir is not None:
            return
        path = embedded_path() if config.model is None else Path(config.model)
        self._names = {
            config.alias or (EMBEDDED if config.model is None else stem(path)),
            str(path),
        }
        try:
            self._bridge = TokenizerBridge.from_gguf(path)
            with GgufReader(path) as reader:
                source = config.chat_template or reader.metadata.get("tokenizer.chat_template")
        except Exception:  # the replicas say what is wrong with it
            return
        if isinstance(source, str):
            self._talk = PromptBuilder(
                source,
                SharedVocabulary(self._bridge, len(self._bridge.vocabulary.tokens)),
                late_instructions=config.late_instructions,
            )

    def ids(self, path: str, body: Mapping[str, Any]) -> list[int]:
        """The prompt of a request to a path; empty where it has none that can be read here."""
        model = body.get("model")
        if self._bridge is None or (model is not None and model not in self._names):
            return []
        try:
            if path in _TEXTS:
                return self._text(body.get("prompt"))
            messages = _messages(path, body)
            if messages and self._talk is not None:
                tools = tools_of(body) if path in _CHATS[:2] else None
                return self._talk.encode(self._talk.render(messages, tools=tools))
        except Exception:  # a body that is refused where it is answered
            return []
        return []

    def _text(self, prompt: Any) -> list[int]:
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompt = prompt[0]  # several go together, to where the first is
        if isinstance(prompt, str) and self._bridge is not None:
            return self._bridge.encode(prompt, add_special=True, parse_special=True)
        return list(prompt) if isinstance(prompt, list) else []


def _messages(path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The conversation of a chat in any dialect, as the template takes it."""
    if path in _CHATS[:2]:
        return messages_of(body["messages"])
    if path in _CHATS:
        given = list(body["messages"])
        text = _said(body.get("system"))
        first = [{"role": "system", "content": text}] if text else []
        return first + [{"role": each["role"], "content": _said(each["content"])} for each in given]
    if path == "/api/generate" and not body.get("raw"):
        system = body.get("system")
        first = [{"role": "system", "content": system}] if system else []
        return [*first, {"role": "user", "content": body["prompt"]}]
    if path == "/v1/responses":
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        system = body.get("instructions")
        first = [{"role": "system", "content": system}] if system else []
        return first + [{"role": each["role"], "content": _said(each["content"])} for each in items]
    return []


def _said(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """The text of a message's content."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(str(each.get("text", "")) for each in content)


def body_of(data: bytes) -> dict[str, Any]:
    """A request's body where it is a JSON object, else an empty one."""
    try:
        found = json.loads(data) if data else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
