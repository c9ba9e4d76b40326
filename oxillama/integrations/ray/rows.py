"""What a row of a dataset asks for, and the columns of its answer, under the names that Ray Data's
LLM API has for them.

    messages | prompt | tokenized_prompt, sampling_params | pooling_params, tools, ...
        --> a request of the engine --> generated_text, generated_tokens, ... | embeddings

Columns whose values have no fixed shape (`PACKED`) travel as JSON text: Arrow gives all objects of
a column the same keys and fills what is absent with nulls, which would change a JSON schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from oxillama.api import InferenceEngine
from oxillama.completion import Completion
from oxillama.engine.request import Request
from oxillama.errors import ConfigError
from oxillama.server import options as table
from oxillama.server.errors import ApiError
from oxillama.server.schema import BOOLEAN, check_body, integer, obj

RowFunction = Callable[[dict[str, Any]], dict[str, Any]]
ERROR = "__inference_error__"
PACKED = ("messages", "sampling_params", "pooling_params", "tools", "chat_template_kwargs")
_REMEMBERED = 256  # different sampling parameters
ASKED = (*PACKED, "prompt", "tokenized_prompt", "tool_choice")

_SAMPLING = obj(
    {
        **table.properties("stop_sequences"),
        "max_tokens": integer(1),
        "n": integer(1, 1),
        "logprobs": integer(0, 20),
        "detokenize": BOOLEAN,  # the text is there either way
    }
)
_POOLING = obj({"pooling": {"type": "string"}, "normalize": BOOLEAN})
_TEXT, _INT, _IDS = pa.string(), pa.int64(), pa.list_(pa.int32())
_COMMON = {"num_input_tokens": _INT, "prompt_token_ids": _IDS, "time_taken_llm": pa.float64()}
# the columns of an answer, and of a row that failed the values in them
GENERATED = {
    **_COMMON,
    "generated_text": _TEXT,
    "generated_tokens": _IDS,
    "num_generated_tokens": _INT,
    "finish_reason": _TEXT,
    "tool_calls": _TEXT,
    "logprobs": pa.list_(pa.float32()),
}
EMBEDDED = {**_COMMON, "embeddings": pa.list_(pa.float32())}


def plain(value: Any) -> Any:
    """A value as JSON has it: arrays are lists, numpy's numbers numbers."""
    if isinstance(value, np.ndarray):
        return [plain(each) for each in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def pack(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose packed columns are JSON text."""
    out = dict(row)
    for name in PACKED:
        if name in out and out[name] is not None and not isinstance(out[name], str):
            out[name] = json.dumps(plain(out[name]), ensure_ascii=False)
    return out


def unpack(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose packed columns are values again; ConfigError for text that is no JSON."""
    out = dict(row)
    for name in PACKED:
        value = out.get(name)
        if isinstance(value, str):
            try:
                out[name] = json.loads(value)
            except ValueError as error:
                raise ConfigError(f"{name}: found text that is not JSON: {error}") from None
        elif value is not None:
            out[name] = _without_nulls(plain(value), name)
    return out


def _without_nulls(value: Any, path: str) -> Any:
    """A value of a column that Arrow may have filled with nulls. Those beside given keys are left
    out; inside a schema they cannot be told from its own, so they are refused.
    """
    if isinstance(value, list):
        return [_without_nulls(each, path) for each in value]
    if not isinstance(value, dict):
        return value
    out = {}
    for name, each in value.items():
        if each is None:
            continue
        if name in ("json_schema", "guided_json", "json", "parameters") and _has_null(each):
            raise ConfigError(
                f"{path}.{name}: found nulls, as Arrow fills in where rows have different keys; "
                "wanted the schema as JSON text"
            )
        out[name] = _without_nulls(each, f"{path}.{name}")
    return out


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(each is None or _has_null(each) for each in value.values())
    return isinstance(value, list) and any(each is None or _has_null(each) for each in value)


class Sampling:
    """Keyword arguments of `submit` from sampling parameters under any name that is known; the rows
    of a dataset mostly ask for the same ones, which are read once.
    """

    def __init__(self, engine: InferenceEngine, defaults: Mapping[str, object]) -> None:
        """defaults: parameters that a row's own come on top of."""
        self._engine, self._defaults = engine, defaults
        self._read: dict[str, dict[str, Any]] = {}

    def options(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What a row's own parameters come to; ConfigError names what cannot be honoured."""
        if not isinstance(asked, Mapping):
            raise ConfigError(f"sampling_params: found {type(asked).__name__}, wanted an object")
        text = repr(asked)
        found = self._read.get(text)
        if found is None:
            found = _options(self._engine, {**self._defaults, **asked})
            if len(self._read) >= _REMEMBERED:
                self._read.clear()
            self._read[text] = found
        return dict(found)


def submit(
    engine: InferenceEngine,
    row: Mapping[str, Any],
    *,
    sampling: Sampling,
    chats: bool | None,
) -> Request:
    """Start what a row asks for; an error of this package names what cannot be honoured.

    sampling: reads its sampling parameters. chats: whether rows must (True) or must not (False) be
    chats.
    """
    given = unpack({name: row[name] for name in ASKED if row.get(name) is not None})
    if "pooling_params" in given:
        raise ConfigError("pooling_params: found in a row to generate from, wanted sampling_params")
    prompt = _prompt(given, chats)
    options = sampling.options(given.get("sampling_params", {}))
    if prompt == "messages":
        made = engine.submit_chat(
            given["messages"],
            tools=given.get("tools"),
            template=given.get("chat_template_kwargs"),
            **({"tool_choice": given["tool_choice"]} if "tool_choice" in given else {}),
            **options,
        )
    else:
        for name in ("tools", "tool_choice", "chat_template_kwargs"):
            if name in given:
                raise ConfigError(f"{name}: found together with {prompt}, wanted messages")
        made = engine.submit(_text(given, prompt), **options)
    assert isinstance(made, Request)  # n is 1
    return made


def submit_embedding(engine: InferenceEngine, row: Mapping[str, Any]) -> tuple[Request, Any]:
    """Start a row's embedding: the request, and the pooler that has the vector when it is done."""
    given = unpack({name: row[name] for name in ASKED if row.get(name) is not None})
    for name in ("messages", "sampling_params", "tools", "tool_choice", "chat_template_kwargs"):
        if name in given:
            raise ConfigError(f"{name}: found in a row to embed, wanted prompt or tokenized_prompt")
    pooling = given.get("pooling_params", {})
    _check(pooling, _POOLING, "pooling_params")
    return engine.submit_embedding(
        _text(given, _prompt(given, False)),
        pooling=pooling.get("pooling"),
        normalize=pooling.get("normalize"),
    )


def _prompt(given: Mapping[str, Any], chats: bool | None) -> str:
    """The column that a row's prompt is in."""
    names = [name for name in ("messages", "prompt", "tokenized_prompt") if name in given]
    if len(names) != 1:
        found = " and ".join(names) or "none of them"
        raise ConfigError(
            f"messages, prompt, tokenized_prompt: found {found} in a row, wanted one of them"
        )
    if chats is not None and chats != (names[0] == "messages"):
        wanted = "messages" if chats else "prompt or tokenized_prompt"
        raise ConfigError(f"{names[0]}: found in a row, wanted {wanted}")
    return names[0]


def _text(given: Mapping[str, Any], name: str) -> str | list[int]:
    value = given[name]
    if name == "prompt" and not isinstance(value, str):
        raise ConfigError(f"prompt: found {type(value).__name__}, wanted a text")
    return plain(value)


def _options(engine: InferenceEngine, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `submit` from sampling parameters under any name that is known."""
    _check(asked, _SAMPLING, "sampling_params")
    try:
        read = table.read(
            asked,
            default=engine.sampler,
            vocab_size=engine.config.vocab_size,
            path="sampling_params.",
        )
    except ApiError as error:
        raise ConfigError(error.message) from None
    found = read.options
    for name in ("max_tokens", "logprobs"):
        if asked.get(name) is not None:
            found[name] = int(asked[name])
    return found


def _check(value: Mapping[str, Any], schema: Mapping[str, Any], name: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: found {type(value).__name__}, wanted an object")
    try:
        check_body(value, schema)
    except ApiError as error:
        raise ConfigError(f"{name}: {error.message}") from None


def generated(request: Request, done: Completion) -> dict[str, Any]:
    """The columns of a finished generation."""
    calls = [{"name": each.name, "arguments": each.arguments} for each in done.tool_calls]
    return {
        "num_input_tokens": done.usage.prompt_tokens,
        "prompt_token_ids": request.prompt_ids,
        "time_taken_llm": done.timings.total_seconds,
        "generated_text": done.text if done.content is None else done.content,
        "generated_tokens": list(done.tokens),
        "num_generated_tokens": done.usage.completion_tokens,
        "finish_reason": done.finish_reason,
        "tool_calls": json.dumps(calls) if calls else "",
        "logprobs": [each.raw for each in done.logprobs],
    }


def embedded(request: Request, vector: np.ndarray) -> dict[str, Any]:
    """The columns of a finished embedding."""
    tokens = list(request.session.tokens)
    return {
        "num_input_tokens": len(tokens),
        "prompt_token_ids": tokens,
        "time_taken_llm": request.timings().total_seconds,
        "embeddings": vector,
    }


def failed(error: BaseException, columns: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """The columns of a row that failed: empty values, and what went wrong."""
    empty: dict[str, Any] = {
        name: "" if kind == _TEXT else [] if pa.types.is_list(kind) else 0 if kind == _INT else -1.0
        for name, kind in columns.items()
    }
    return {**empty, ERROR: f"{type(error).__name__}: {error}"}


def finished(row: dict[str, Any], function: RowFunction | None, *, errors: bool) -> dict[str, Any]:
    """The row of the result: what `function` makes of a row with its answer; one that failed stays
    as it is. errors: whether all rows have the column that says what went wrong.
    """
    if function is None or row.get(ERROR):
        return row
    made = function(unpack(row))
    return {**made, ERROR: ""} if errors else made
