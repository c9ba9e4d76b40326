"""Results in the form of llama-cpp-python, which is that of OpenAI's completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oxillama.completion import Completion
from oxillama.tokenizer import TextOffsets
from oxillama.toolcalls import ChatEvent

Spell = Callable[[int], str]
Bytes = Callable[[int], bytes]


def usage(done: Completion) -> dict[str, int]:
    """Tokens of a request."""
    return {
        "prompt_tokens": done.usage.prompt_tokens,
        "completion_tokens": done.usage.completion_tokens,
        "total_tokens": done.usage.total_tokens,
    }


class Frame:
    """What the results of one request have in common."""

    def __init__(self, kind: str, prefix: str, model: str) -> None:
        self._base = {
            "id": f"{prefix}-{uuid.uuid4()}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def __call__(self, **choice: Any) -> dict[str, Any]:
        """A result of one choice."""
        return {**self._base, "choices": [{"index": 0, **choice}]}

    def call_id(self, index: int) -> str:
        """The id of a tool call of this request, which no call of another one has."""
        return f"call_{index}_{self._base['id']}"


def text_logprobs(
    reports: Sequence[Any], spell: Spell, offsets: TextOffsets, *, top: int = 0, start: int = 0
) -> dict[str, list[Any]]:
    """Log-probabilities of a completion's tokens, the next ones of `offsets`, which count from
    `start`.
    """
    out: dict[str, list[Any]] = {
        "tokens": [],
        "text_offset": [],
        "token_logprobs": [],
        "top_logprobs": [],
    }
    for report in reports:
        text = spell(report.token)
        likeliest = dict(zip(map(spell, report.raw_ids[:top]), report.raw_values))
        out["tokens"].append(text)
        out["text_offset"].append(start + offsets.add(report.token))
        out["token_logprobs"].append(report.raw)
        out["top_logprobs"].append({**likeliest, text: report.raw})
    return out


def prompt_logprobs(
    ids: Sequence[int],
    reports: Iterable[tuple[Any, ...]],
    spell: Spell,
    offsets: TextOffsets,
    *,
    bos: int,
) -> dict[str, list[Any]]:
    """Log-probabilities of a prompt's tokens; reports: of those after the first. As in
    llama-cpp-python, the token that begins a text (bos) is left out, and the first of the others
    has none.
    """
    out: dict[str, list[Any]] = {
        "tokens": [],
        "text_offset": [],
        "token_logprobs": [],
        "top_logprobs": [],
    }
    for at, (token, report) in enumerate(zip(ids, (None, *reports))):
        offset = offsets.add(token)
        if not at and token == bos:
            continue
        text = spell(token)
        first = not out["tokens"]
        likeliest = None
        if report is not None and not first:
            likeliest = {**dict(zip(map(spell, report[1]), report[2])), text: report[0]}
        out["tokens"].append(text)
        out["text_offset"].append(offset)
        out["token_logprobs"].append(None if report is None or first else report[0])
        out["top_logprobs"].append(likeliest)
    offsets.begin()
    return out


def joined(first: dict[str, list[Any]], second: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The log-probabilities of a prompt and of what came after it."""
    return {name: [*first[name], *second[name]] for name in first}


def chat_logprobs(reports: Sequence[Any], data: Bytes, *, top: int) -> dict[str, Any]:
    """Log-probabilities of a chat's reply; data: the bytes of a token."""

    def entry(token: int, value: float) -> dict[str, Any]:
        found = data(token)
        text = found.decode("utf-8", "replace")
        return {"token": text, "bytes": list(found), "logprob": value}

    content = [
        {
            **entry(report.token, report.raw),
            "top_logprobs": [
                entry(token, value) for token, value in zip(report.raw_ids[:top], report.raw_values)
            ],
        }
        for report in reports
    ]
    return {"content": content, "refusal": None}


class Calls:
    """The tool calls of a reply, from its events; one that was cut off has the arguments that
    came.
    """

    def __init__(self) -> None:
        self.found: dict[int, dict[str, str]] = {}  # name and arguments, by number

    def take(self, event: ChatEvent) -> str:
        """Read an event; returns the text of what began like a call and has no name."""
        number = event.index or 0
        if event.kind == "call":
            self.found[number] = {"name": event.name, "arguments": ""}
        elif event.kind == "arguments":
            self.found[number]["arguments"] += event.arguments
        elif event.malformed is not None and number not in self.found:
            return event.malformed.text
        return ""

    def entries(self, frame: Frame) -> list[dict[str, Any]]:
        """The calls of a message."""
        return [
            {"id": frame.call_id(index), "type": "function", "function": each}
            for index, each in enumerate(self.found.values())
        ]
