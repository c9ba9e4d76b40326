"""Fields that the bodies of several APIs have, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import oxillama
from oxillama.options import response_constraint
from oxillama.server import adapters
from oxillama.server import options as table
from oxillama.server.errors import ApiError, bad, missing, shown, unsupported
from oxillama.server.models import ServedModel
from oxillama.server.schema import (
    BOOLEAN,
    FALSE,
    OBJECT,
    STRING,
    TRUE,
    array,
    enum,
    integer,
    number,
    obj,
    one_of,
)
from oxillama.server.sessions import NAME_PATTERN

FORMAT_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
JSON_SCHEMA = obj(
    {
        "name": FORMAT_NAME,
        "description": STRING,
        "schema": OBJECT,
        "strict": BOOLEAN,
    },
    ("name",),
)
RESPONSE_FORMAT = one_of(
    obj({"type": enum("text")}, ("type",)),
    obj({"type": enum("json_object"), "schema": OBJECT}, ("type",)),
    obj({"type": enum("json_schema"), "json_schema": JSON_SCHEMA}, ("type", "json_schema")),
)
# what says who asks, and where to look for what is known already: nothing of the answer
EXCEPTIONS = {
    "user": STRING,
    "metadata": OBJECT,
    "store": BOOLEAN,
    "safety_identifier": STRING,
    "prompt_cache_key": STRING,
    "prompt_cache_retention": enum("in_memory", "in-memory", "24h"),
    "prompt_cache_options": obj({"mode": enum("implicit"), "ttl": enum("30m")}),
}
# what vLLM's clients send of its defaults, which is done here anyway
VLLM_DEFAULTS = {
    "skip_special_tokens": TRUE,
    "spaces_between_special_tokens": TRUE,
    "include_stop_str_in_output": FALSE,
    "use_beam_search": FALSE,
    "length_penalty": number(1, 1),
    "bad_words": array(STRING, 0, 0),
    "truncate_prompt_tokens": {"type": "null"},
}
# what vLLM tells of tokens in addition
VLLM_TOKENS = {"return_token_ids": BOOLEAN, "prompt_logprobs": integer(0, 20)}
SESSION = {"type": "string", "pattern": NAME_PATTERN}
TEMPLATE = {
    "chat_template_kwargs": OBJECT,
    "reasoning_effort": enum("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "add_generation_prompt": BOOLEAN,
    "continue_final_message": BOOLEAN,
}
MOST_COMPLETIONS = 128
# no padding hides the sizes of a stream's chunks
NOT_OBFUSCATED = FALSE
STREAM_OPTIONS = obj(
    {
        "include_usage": BOOLEAN,
        "include_obfuscation": NOT_OBFUSCATED,
        "continuous_usage_stats": BOOLEAN,  # vLLM's
    }
)
# a model is as verbose as it is: what the APIs have by default
VERBOSITY = enum("medium")
TOKENS = array(integer(0), 1, 1 << 20)
PROMPT = one_of(STRING, TOKENS, array(one_of(STRING, TOKENS), 1, 2048))
FINGERPRINT = f"oxillama-{oxillama.__version__}"


def options_of(
    model: ServedModel,
    body: Mapping[str, Any],
    given: Mapping[str, Any] | None = None,
    path: str = "",
) -> table.RequestOptions:
    """The options of generation in a body, and its adapters; given: the object of the body that
    holds the options (default: the body itself), path: what its names begin with in errors.
    """
    asked = table.read(
        body if given is None else given,
        default=model.engine.sampler,
        vocab_size=model.engine.config.vocab_size,
        path=path,
    )
    asked.options.update(adapters.asked(model, body))
    return asked


def check_stream_options(body: Mapping[str, Any]) -> None:
    """A 400 for options of a stream that is not asked for, or of usage that is not."""
    given = body.get("stream_options")
    if given is not None and not body.get("stream"):
        raise ApiError(400, "stream_options: found without stream: true", param="stream_options")
    if given and given.get("continuous_usage_stats") and not given.get("include_usage"):
        param = "stream_options.continuous_usage_stats"
        raise ApiError(400, f"{param}: found without include_usage: true, wanted both", param=param)


def streamed_usage(body: Mapping[str, Any]) -> tuple[bool, bool]:
    """(whether a stream ends with its usage, whether every chunk has the usage so far)."""
    given = body.get("stream_options") or {}
    return bool(given.get("include_usage")), bool(given.get("continuous_usage_stats"))


def top_logprobs_of(body: Mapping[str, Any]) -> int | None:
    """How many other tokens `logprobs` gives with each one, None where it is not asked for."""
    if body.get("logprobs"):
        return int(body.get("top_logprobs") or 0)
    if body.get("top_logprobs") is not None:
        raise ApiError(
            400, "top_logprobs: found without logprobs: true, wanted both", param="top_logprobs"
        )
    return None


def want_tokens(body: Mapping[str, Any], asked: table.RequestOptions) -> None:
    """Check VLLM_TOKENS, and ask the engine for `prompt_logprobs`. A session's prompt is more than
    that of the body, and in vLLM no chunk of a stream has `prompt_logprobs`.
    """
    top = body.get("prompt_logprobs")
    refused = [("prompt_logprobs", name) for name in ("stream", "session", "truncate_prompt")]
    for field, name in (*refused, ("return_token_ids", "session")):
        asks = body.get(field) is not None and body[field] is not False
        if asks and body.get(name):
            raise unsupported(field, f"found together with {name}, wanted one of them")
    if top is None:
        return
    asked.options["prompt_logprobs"] = max(int(top), asked.options.get("prompt_logprobs", 0))


def prompts_of(given: Any) -> list[str | list[int]]:
    """A prompt field as a list of prompts."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], (int, float)) and not isinstance(given[0], bool):
        return [[int(token) for token in given]]
    return [each if isinstance(each, str) else [int(token) for token in each] for each in given]


def encoded(
    model: ServedModel,
    prompt: str | Sequence[int],
    *,
    param: str = "prompt",
    special: bool = True,
    bounded: bool = True,
) -> list[int]:
    """The ids of a prompt, checked against the vocabulary. bounded: refuse a text that is certainly
    too long before it is encoded.
    """
    if isinstance(prompt, str):
        bridge = model.tokenizer()
        if bounded and model.too_long(prompt):
            raise too_long(model, param, len(prompt))
        return bridge.encode(prompt, add_special=special, parse_special=True)
    size = model.engine.config.vocab_size
    for at, token in enumerate(prompt):
        if token >= size:
            raise bad(f"{param}[{at}]", token, f"token ids of 0 to {size - 1}")
    return list(prompt)


class SessionPrompt(list[int]):
    """The token ids of a prompt for a named session. Whether the session has begun, so that the
    prompt begins no text, is asked when they are made and once more when they are submitted: in
    between another request may have begun or deleted it. encode: the ids, given whether it has
    begun.
    """

    __slots__ = ("_begun", "_encode")

    def __init__(self, begun: bool, encode: Callable[[bool], list[int]]) -> None:
        super().__init__(encode(begun))
        self._begun, self._encode = begun, encode

    def follow(self, begun: bool) -> None:
        """Take the ids that it has now."""
        if begun != self._begun:
            self[:], self._begun = self._encode(begun), begun


def too_long(model: ServedModel, param: str, size: int, help: str = "") -> ApiError:
    """The error for a text that is longer than any that fits; help: what may be done."""
    return ApiError(
        400,
        f"{param}: a text of {size} characters has more tokens than the context of "
        f"{model.engine.context_size}{help}",
        param=param,
        code="context_length_exceeded",
    )


def format_of(given: Mapping[str, Any] | None, *, path: str) -> tuple[dict[str, Any], str | None]:
    """(the option of a response format, the name of its field), as `response_format` of
    `engine.chat`.
    """
    if given is None or given["type"] == "text":
        return {}, None
    inner = given.get("json_schema", given)
    if given["type"] == "json_schema" and inner.get("schema") is None:
        where = f"{path}.json_schema.schema" if "json_schema" in given else f"{path}.schema"
        raise missing(where)
    return response_constraint(given), path


def constrain(asked: table.RequestOptions, given: Mapping[str, Any] | None, *, path: str) -> None:
    """Add a response format to the options."""
    formed, where = format_of(given, path=path)
    if formed and asked.constraint:
        raise ApiError(
            400,
            f"{path}: found together with {asked.constraint}, wanted one constraint",
            param=path,
        )
    if formed:
        asked.options.update(formed)
        asked.constraint = where


def template_kwargs(model: ServedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat template's variables that a body names; one that it does not read is refused."""
    builder = model.chat()
    given = dict(body.get("chat_template_kwargs") or {})
    for name in given:
        if not builder.knows(name):
            raise unsupported(
                f"chat_template_kwargs.{name}", "the model's chat template reads no such variable"
            )
    return given


def variables_of(model: ServedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat template's variables in addition to the messages, as chat completions ask for
    them.
    """
    builder, given = model.chat(), template_kwargs(model, body)
    effort = body.get("reasoning_effort")
    if effort is not None:
        found = builder.reasoning(effort)
        if found is None:
            raise unsupported(
                "reasoning_effort",
                "found 'none', and the model's chat template cannot turn reasoning off"
                if effort == "none"
                else "the model's chat template has no such setting",
            )
        add_variables(given, found, path="reasoning_effort")
    return given


def add_variables(given: dict[str, Any], found: Mapping[str, Any], *, path: str) -> None:
    """Add the template's variables that the field at `path` stands for; refused where
    `chat_template_kwargs` sets one of them to another value.
    """
    for name, value in found.items():
        if given.setdefault(name, value) != value:
            raise bad(
                f"chat_template_kwargs.{name}", given[name], f"{shown(value)} or none, as of {path}"
            )
