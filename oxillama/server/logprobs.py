"""Log-probabilities in the form of the APIs: natural logarithms of the model's own distribution,
before any sampler stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from oxillama.completion import Completion
from oxillama.tokenizer import TextOffsets, TokenizerBridge

# what a token that cannot be drawn has: JSON has no infinity
LOWEST = -9999.0


def spelled(bridge: TokenizerBridge, token: int) -> tuple[str, bytes]:
    """(the text of a token, its bytes); control tokens as the vocabulary spells them."""
    if token >= bridge.vocab_size:
        return "", b""
    data = bridge.token_bytes(token)
    if not data and bridge.is_special(token):
        data = bridge.token_text(token).encode()
    return data.decode("utf-8", "replace"), data


def finite(value: float) -> float:
    """A logarithm that JSON can hold."""
    return max(float(value), LOWEST)


def chat_entries(found: Iterable[Any], bridge: TokenizerBridge, top: int) -> list[dict[str, Any]]:
    """The entries of `logprobs.content`; `found` are the engine's `Logprobs`."""
    out = []
    for each in found:
        text, data = spelled(bridge, each.token)
        entry: dict[str, Any] = {
            "token": text,
            "logprob": finite(each.raw),
            "bytes": list(data),
            "top_logprobs": [],
        }
        for token, value in list(zip(each.raw_ids, each.raw_values))[:top]:
            text, data = spelled(bridge, token)
            entry["top_logprobs"].append(
                {"token": text, "logprob": finite(value), "bytes": list(data)}
            )
        out.append(entry)
    return out


def prompt_entries(
    ids: Sequence[int], done: Completion, bridge: TokenizerBridge, top: int
) -> list[dict[str, Any] | None]:
    """A prompt's tokens in vLLM's form: null for the first, of which nothing is known, then for
    each of them its own entry and those of the `top` likeliest, by token id. Equals share a rank.
    """
    out: list[dict[str, Any] | None] = [None]
    for token, (own, likely, values), rank in zip(ids[1:], done.prompt_logprobs, done.prompt_ranks):
        found = {token: (own, rank)}
        for each, value in list(zip(likely, values))[:top]:
            found.setdefault(each, (value, 1 + sum(other > value for other in values)))
        out.append(
            {
                str(each): {
                    "logprob": finite(value),
                    "rank": place,
                    "decoded_token": spelled(bridge, each)[0],
                }
                for each, (value, place) in found.items()
            }
        )
    return out


def legacy_token(bridge: TokenizerBridge, token: int) -> str:
    """A token in the form of completions: text, or its bytes if they are not whole characters."""
    text, data = spelled(bridge, token)
    if "�" in text and text.encode() != data:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
    return text


class LegacyLogprobs:
    """The four lists of a completion's `logprobs`, filled token by token."""

    def __init__(
        self, bridge: TokenizerBridge, top: int, *, before: Sequence[int] | None = ()
    ) -> None:
        """before: the tokens that the text follows; None for some that are not known."""
        self._bridge, self._top = bridge, top
        self._offsets = TextOffsets(bridge, before=before)
        self.lists: dict[str, list[Any]] = self._empty()

    def add(
        self, token: int, logprob: float | None, ids: Sequence[int], values: Sequence[float]
    ) -> None:
        """One token with its logarithm (None: unknown) and the likeliest."""
        name = legacy_token(self._bridge, token)
        self.lists["tokens"].append(name)
        self.lists["token_logprobs"].append(None if logprob is None else finite(logprob))
        if logprob is None:
            self.lists["top_logprobs"].append(None)
        else:
            likely: dict[str, float] = {}
            for each, value in list(zip(ids, values))[: self._top]:
                likely.setdefault(legacy_token(self._bridge, each), finite(value))
            if self._top:
                likely.setdefault(name, finite(logprob))
            self.lists["top_logprobs"].append(likely)
        self.lists["text_offset"].append(self._offsets.add(token))

    def begin(self) -> None:
        """The tokens so far were the prompt's; the completion is a text of its own."""
        self._offsets.begin()

    def take(self) -> dict[str, list[Any]]:
        """What was added since the last time."""
        made, self.lists = self.lists, self._empty()
        return made

    @staticmethod
    def _empty() -> dict[str, list[Any]]:
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
