"""`ApiError`, its form in each API, and the ApiErrors of the engine's errors."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from oxillama.errors import (
    AudioError,
    Cancelled,
    ConfigError,
    ContextError,
    EmptySequence,
    EngineError,
    GgufError,
    GrammarError,
    ImageError,
    ModelError,
    ModelFingerprintMismatch,
    NoNextToken,
    OxillamaError,
    PoolError,
    QuantError,
    QueueFull,
    SamplingError,
    SnapshotIncompatible,
    TemplateError,
    TokenizerError,
)
from oxillama.server.hints import of_another_api, of_unknown

_TYPES = {
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    507: "server_error",
}
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    507: "api_error",
}
# codes of Anthropic's own, by which its clients choose what to do
_ANTHROPIC_CODES = {"thread_not_found", "thread_unsupported_request"}
_LLAMA = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    500: "server_error",
    503: "unavailable_error",
    507: "server_error",
}
_PARAM = re.compile(r"([A-Za-z_][A-Za-z0-9_]*(?:\[[^\]]{1,20}\]|\.[A-Za-z0-9_]+)*)(?:,[ \w]+)?: ")


class ApiError(Exception):
    """A request that was refused or failed: an HTTP status, a message, and the field it is
    about.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self, dialect: str, request_id: str) -> dict[str, Any]:
        """The error in the form of one API: "anthropic", "ollama", "llama" or "openai"."""
        forms = {"ollama": self.ollama, "llama": self.llama, "openai": self.openai}
        return self.anthropic(request_id) if dialect == "anthropic" else forms[dialect]()

    def openai(self) -> dict[str, Any]:
        """The error as OpenAI's API writes it; all four keys are always there."""
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "invalid_request_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic(self, request_id: str) -> dict[str, Any]:
        """The error as Anthropic's API writes it."""
        kind = _ANTHROPIC.get(self.status, "invalid_request_error")
        message = self.message
        if self.param and not message.startswith(self.param):
            message = f"{self.param}: {message}"
        error: dict[str, Any] = {"type": kind, "message": message}
        if self.code in _ANTHROPIC_CODES:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error, "request_id": request_id}

    def llama(self) -> dict[str, Any]:
        """The error as llama-server writes it, with OpenAI's keys in addition (`code` is the
        status).
        """
        kind = _LLAMA.get(self.status, "invalid_request_error")
        if self.code == "context_length_exceeded":
            kind = "exceed_context_size_error"
        return {
            "error": {
                "code": self.status,
                "message": self.message,
                "type": kind,
                "param": self.param,
            }
        }

    def ollama(self) -> dict[str, Any]:
        """The error as Ollama writes it."""
        return {"error": self.message}


def bad(param: str, found: Any, wanted: str) -> ApiError:
    """A 400 for a field: the value found, shortened, and the value wanted."""
    return ApiError(400, f"{param}: found {shown(found)}, wanted {wanted}", param=param)


def shown(value: Any, most: int = 80) -> str:
    """A value for a message: on one line, shortened, printable, and in JSON's words."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "an array"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = repr(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else text[: most - 3] + "..."


def unknown(name: str, known: Collection[str]) -> ApiError:
    """A 400 for a field, by its path, that its object has not; with what does the same here, or the
    most similar of those that it has.
    """
    hint = of_unknown(name, known)
    close = get_close_matches(name.rpartition(".")[2], sorted(known), n=1, cutoff=0.6)
    if close and not hint and not of_another_api(name):
        hint = f"; did you mean {close[0]}?"
    name = shown(name)[1:-1]
    return ApiError(
        400, f"{name}: is not a known field{hint}", param=name, code="unknown_parameter"
    )


def missing(param: str, why: str = "is required") -> ApiError:
    """A 400 for a field that is not there."""
    return ApiError(400, f"{param}: {why}", param=param, code="missing_required_parameter")


def unsupported(param: str, why: str) -> ApiError:
    """A 400 for a known field whose value cannot be honoured."""
    return ApiError(400, f"{param}: {why}", param=param, code="unsupported_parameter")


def shutting_down() -> ApiError:
    """The error of what a server that ends does not finish."""
    return ApiError(
        503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"}
    )


def from_engine(
    error: BaseException, *, param: str | None = None, constraint: str | None = None
) -> ApiError:
    """The ApiError for an exception of the engine; `param` names the prompt's field, and
    `constraint` that of a constraint.
    """
    if isinstance(error, ApiError):
        return error
    message = str(error) or type(error).__name__
    if isinstance(error, ContextError):
        fact, _, help = message.partition("; ")
        if "truncate_prompt=True" in help:  # what helps has other names here
            other = (
                "wanted a new one"
                if fact.startswith("session")
                else '"truncate_prompt": true shortens it, the server\'s -c gives more where the '
                "model has it"
            )
            message = f"{fact}; {other}"
        return ApiError(400, message, param=param, code="context_length_exceeded")
    if isinstance(error, EmptySequence):
        return ApiError(400, message, param=param)
    if isinstance(error, GrammarError):
        return ApiError(400, message, param=constraint or param, code="invalid_schema")
    if isinstance(error, (TemplateError, TokenizerError)):
        return ApiError(400, message, param=param)
    if isinstance(error, SnapshotIncompatible):
        return ApiError(409, message, param=param, code="snapshot_incompatible")
    if isinstance(error, ModelFingerprintMismatch):
        return ApiError(409, message, param=param, code="model_mismatch")
    if isinstance(error, ConfigError):
        return ApiError(400, message, param=named(message) or param)
    if isinstance(error, ImageError):
        return ApiError(400, message, param=named(message) or param, code="invalid_image")
    if isinstance(error, AudioError):
        return ApiError(400, message, param=named(message) or param, code="invalid_audio")
    if isinstance(error, SamplingError):
        return ApiError(400, message, param=param, code="nothing_to_sample")
    if isinstance(error, PoolError):
        return ApiError(
            503, message, param=param, code="out_of_memory", headers={"Retry-After": "1"}
        )
    if isinstance(error, Cancelled):
        return ApiError(503, "the request was cancelled: the model is being unloaded")
    if isinstance(error, NoNextToken):
        return ApiError(400, message, param="model", code="generation_not_supported")
    if isinstance(error, QueueFull):
        return ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})
    if isinstance(error, EngineError):
        if "busy" in message or "a request is running on it" in message:
            return ApiError(409, message, param="session", code="session_busy")
        return ApiError(503, message, code="engine_unavailable")
    if isinstance(error, (GgufError, ModelError, QuantError)):
        return ApiError(500, message, param="model", code="model_unusable")
    if isinstance(error, OxillamaError):
        return ApiError(400, message, param=param)
    if isinstance(error, MemoryError):
        return ApiError(503, "out of memory", code="out_of_memory", headers={"Retry-After": "1"})
    return ApiError(500, f"internal error: {type(error).__name__}", code="internal_error")


def named(message: str) -> str | None:
    """The field that an error message begins with, None where it names none."""
    match = _PARAM.match(message)
    return match.group(1) if match else None
