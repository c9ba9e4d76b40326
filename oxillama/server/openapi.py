"""The OpenAPI document that the server gives out, made from the table of routes and the schemas
that check their bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import oxillama
from oxillama.server.calls import Route

_REFUSALS = {
    "400": "The request is malformed, or asks for what cannot be honoured.",
    "401": "The API key is missing or wrong.",
    "403": "The page's origin or the host's name is not allowed.",
    "404": "Unknown.",
    "405": "The path has no such method.",
    "408": "The request did not come within the time-out.",
    "409": "In conflict with what is there: a busy session, a name that exists.",
    "413": "The body is too large.",
    "415": "The body is of a kind that is not read.",
    "429": "The queue is full; see Retry-After.",
    "431": "The head is too large.",
    "500": "An error of the server.",
    "503": "The engine is not ready, or has failed.",
    "507": "There is no space to save the session.",
}
_ERRORS = {
    "openai": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    "llama": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "code": {"type": "integer"},
                    "param": {"type": ["string", "null"]},
                },
            }
        },
    },
    "anthropic": {
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": "string"},
        },
    },
    "ollama": {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}},
    },
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The document of the routes that are not hidden."""
    paths: dict[str, Any] = {}
    for route in routes:
        if not route.hidden:
            path = route.path.replace(":path}", "}")
            paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "oxillama",
            "version": oxillama.__version__,
            "description": "GGUF language models on the CPU, in the dialects of OpenAI, Anthropic, "
            "llama-server, vLLM and Ollama.",
        },
        "paths": paths,
        "components": {
            "schemas": {f"{name}_error": schema for name, schema in _ERRORS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
        "security": [{"bearer": []}, {"key": []}, {}],
    }


def _operation(route: Route) -> dict[str, Any]:
    media = {route.media: {"schema": {} if route.media == "application/json" else _TEXT}}
    if route.streams:
        # no schema: one of a sequential media type is of its items, and OpenAPI 3.1 has no place
        # for their kinds
        media[route.streams] = {}
    if route.path.endswith("_lora_adapter"):
        media = {"text/plain": {"schema": _TEXT}}
    answers: dict[str, Any] = {
        "200": {"description": route.about, "content": media},
    }
    for status, about in _REFUSALS.items():
        answers[status] = {
            "description": about,
            "content": {
                "application/json": {
                    "schema": {"$ref": f"#/components/schemas/{route.dialect}_error"}
                }
            },
        }
    if route.path == "/health":
        answers["503"]["content"]["application/json"]["schema"] = {}
    made: dict[str, Any] = {
        "summary": route.about,
        "operationId": re.sub(r"[^a-z0-9]+", "_", f"{route.method}{route.path}".lower()).strip("_"),
        "responses": answers,
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)(?::path)?}", route.path)
    ]
    for name, schema in (route.query or {}).items():
        required = name not in route.may_lack
        parameters.append(
            {"name": name, "in": "query", "required": required, "schema": dict(schema)}
        )
    if parameters:
        made["parameters"] = parameters
    if route.body is not None:
        made["requestBody"] = {
            "required": not route.optional,
            "content": (
                {"multipart/form-data": {"schema": route.body}}
                if route.form
                else {"application/json": {"schema": _nullable(route.body)}}
            ),
        }
    if route.open:
        made["security"] = []
    return made


_TEXT = {"type": "string"}


def _nullable(schema: Any) -> Any:
    """A schema as JSON Schema has it: optional members of an object may be null here."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if "properties" in schema:
        required = schema.get("required", ())
        made["properties"] = {
            name: _nullable(each) if name in required else _or_null(_nullable(each))
            for name, each in schema["properties"].items()
        }
    if "items" in schema:
        made["items"] = _nullable(schema["items"])
    if "anyOf" in schema:
        made["anyOf"] = [_nullable(each) for each in schema["anyOf"]]
    if isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = _nullable(schema["additionalProperties"])
    return made


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if not schema:
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}
