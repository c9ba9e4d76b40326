"""The table of routes: finds the handler of a request, refuses unknown paths and methods, and
describes itself in the OpenAPI document.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from starlette.responses import Response
from starlette.routing import compile_path

from oxillama.server import (
    anthropic,
    chat,
    completions,
    embeddings,
    listing,
    llama,
    ollama,
    ollama_models,
    responses,
    session_routes,
    slots,
    tokens,
    transcriptions,
    vllm,
)
from oxillama.server.calls import Call, Handler, Route, json_response
from oxillama.server.openapi import document
from oxillama.server.page import page
from oxillama.server.schema import Schema


def _post(path: str, handler: Handler, body: Schema, about: str, **more: Any) -> Route:
    return Route(method="POST", path=path, handler=handler, body=body, about=about, **more)


def _get(path: str, handler: Handler, about: str, **more: Any) -> Route:
    return Route(method="GET", path=path, handler=handler, about=about, **more)


_SSE = "text/event-stream"


@cache
def _document() -> dict[str, Any]:
    return document(ROUTES)


async def _openapi(call: Call) -> Response:
    """GET /openapi.json"""
    return json_response(await call.offload(_document))


ROUTES: tuple[Route, ...] = (
    # the page and the document
    _get("/", page, "The chat page.", media="text/html"),
    _get("/static/{file}", page, "A file of the page.", media="text/html", hidden=True),
    _get("/openapi.json", _openapi, "This document."),
    # OpenAI
    _post(
        "/v1/chat/completions",
        chat.chat_completions,
        chat.BODY,
        "The next message of a chat.",
        images=True,
        streams=_SSE,
    ),
    _post(
        "/chat/completions",
        chat.chat_completions,
        chat.BODY,
        "The same.",
        images=True,
        streams=_SSE,
        hidden=True,
    ),
    _post(
        "/v1/completions",
        completions.completions,
        completions.BODY,
        "Prompts continued.",
        streams=_SSE,
    ),
    _post("/v1/embeddings", embeddings.embeddings, embeddings.BODY, "Vectors of texts."),
    _post(
        "/v1/responses",
        responses.create,
        responses.BODY,
        "A response, stored unless refused.",
        images=True,
        streams=_SSE,
    ),
    _get("/v1/responses/{response_id}", responses.retrieve, "A stored response."),
    Route(
        method="POST",
        path="/v1/audio/transcriptions",
        handler=transcriptions.create,
        body=transcriptions.BODY,
        images=True,
        form=True,
        about="A file of speech as text.",
    ),
    Route(
        method="DELETE",
        path="/v1/responses/{response_id}",
        handler=responses.delete,
        about="Forget a stored response.",
    ),
    _get(
        "/v1/responses/{response_id}/input_items",
        responses.input_items,
        "What a stored response was given.",
        query=responses.ITEMS_QUERY,
        may_lack=tuple(responses.ITEMS_QUERY),
    ),
    _post(
        "/v1/responses/input_tokens",
        responses.input_tokens,
        responses.COUNT_BODY,
        "Tokens of a response's prompt.",
        images=True,
    ),
    Route(
        method="POST",
        path="/v1/responses/{response_id}/cancel",
        handler=responses.cancel,
        about="Refused: no response runs in the background.",
    ),
    _get("/v1/models", listing.models, "The models."),
    _get("/models", listing.models, "The same.", hidden=True),
    _get("/v1/models/{model:path}", listing.model, "One model."),
    # Anthropic
    _post(
        "/v1/messages",
        anthropic.messages,
        anthropic.BODY,
        "The next message (Anthropic).",
        dialect="anthropic",
        images=True,
        streams=_SSE,
    ),
    _post(
        "/v1/messages/count_tokens",
        anthropic.count_tokens,
        anthropic.COUNT_BODY,
        "Tokens of a message's prompt (Anthropic).",
        dialect="anthropic",
        images=True,
    ),
    # llama-server
    _get("/health", llama.health, "Whether the engine serves.", dialect="llama", open=True),
    _get("/v1/health", llama.health, "The same.", dialect="llama", open=False, hidden=True),
    _get("/props", llama.props, "What is served, and how.", dialect="llama"),
    _get(
        "/slots",
        slots.slots,
        "What runs.",
        dialect="llama",
        query={"fail_on_no_slot": {"type": "string"}},
        may_lack=("fail_on_no_slot",),
    ),
    _post(
        "/slots/{slot}",
        slots.slot_action,
        slots.SLOT_BODY,
        "Save, restore or erase what a slot has evaluated.",
        dialect="llama",
        optional=True,
        query={"action": {"type": "string", "enum": ["save", "restore", "erase"]}},
    ),
    _post("/tokenize", tokens.tokenize, tokens.TOKENIZE_BODY, "Token ids.", dialect="llama"),
    _post("/detokenize", tokens.detokenize, tokens.DETOKENIZE_BODY, "Text.", dialect="llama"),
    _post(
        "/apply-template",
        tokens.apply_template,
        tokens.TEMPLATE_BODY,
        "A conversation as the chat template writes it.",
        dialect="llama",
    ),
    _post(
        "/completion",
        llama.completion,
        llama.COMPLETION_BODY,
        "A prompt continued.",
        dialect="llama",
        streams=_SSE,
    ),
    _post(
        "/completions",
        llama.completion,
        llama.COMPLETION_BODY,
        "The same.",
        dialect="llama",
        streams=_SSE,
        hidden=True,
    ),
    _post(
        "/infill",
        llama.infill,
        llama.INFILL_BODY,
        "Text in the middle.",
        dialect="llama",
        streams=_SSE,
    ),
    _post("/embedding", llama.embedding, llama.EMBEDDING_BODY, "Vectors.", dialect="llama"),
    _post(
        "/embeddings",
        llama.embedding,
        llama.EMBEDDING_BODY,
        "The same.",
        dialect="llama",
        hidden=True,
    ),
    _post("/rerank", vllm.rerank, vllm.RERANK_BODY, "Documents by relevance."),
    _post("/v1/rerank", vllm.rerank, vllm.RERANK_BODY, "The same."),
    _post("/v2/rerank", vllm.rerank, vllm.RERANK_BODY, "The same.", hidden=True),
    _post("/reranking", vllm.rerank, vllm.RERANK_BODY, "The same.", hidden=True),
    _post("/v1/reranking", vllm.rerank, vllm.RERANK_BODY, "The same.", hidden=True),
    _get("/lora-adapters", llama.lora_list, "The adapters.", dialect="llama"),
    Route(
        method="POST",
        path="/lora-adapters",
        handler=llama.lora_set,
        dialect="llama",
        body=llama.LORA_BODY,
        about="Scales of the adapters.",
    ),
    # vLLM
    _post("/v1/load_lora_adapter", vllm.load_lora, vllm.LOAD_BODY, "Load an adapter."),
    _post("/v1/unload_lora_adapter", vllm.unload_lora, vllm.UNLOAD_BODY, "Unload an adapter."),
    _post("/v1/score", vllm.score, vllm.SCORE_BODY, "Scores of pairs of texts."),
    _post("/score", vllm.score, vllm.SCORE_BODY, "The same.", hidden=True),
    _get("/version", vllm.version, "The version."),
    _get("/metrics", vllm.metrics, "Counters for Prometheus.", media="text/plain"),
    # sessions
    _get("/v1/sessions", session_routes.index, "The named sessions."),
    _get("/v1/sessions/{name}", session_routes.about, "One session."),
    _post(
        "/v1/sessions/{name}",
        session_routes.create,
        session_routes.CREATE_BODY,
        "A new session.",
        optional=True,
    ),
    Route(
        method="DELETE",
        path="/v1/sessions/{name}",
        handler=session_routes.delete,
        about="Forget a session, saved or not.",
    ),
    _post(
        "/v1/sessions/{name}/save",
        session_routes.save,
        session_routes.EMPTY_BODY,
        "Write a session to the folder.",
        optional=True,
    ),
    _post(
        "/v1/sessions/{name}/restore",
        session_routes.restore,
        session_routes.RESTORE_BODY,
        "Read a session from the folder.",
        optional=True,
    ),
    _post(
        "/v1/sessions/{name}/fork",
        session_routes.fork,
        session_routes.FORK_BODY,
        "Copy a session to a new name.",
    ),
    # Ollama
    _post(
        "/api/chat",
        ollama.chat,
        ollama.CHAT_BODY,
        "The next message (Ollama).",
        dialect="ollama",
        images=True,
        streams=ollama.LINES,
    ),
    _post(
        "/api/generate",
        ollama.generate,
        ollama.GENERATE_BODY,
        "A prompt continued (Ollama).",
        dialect="ollama",
        images=True,
        streams=ollama.LINES,
    ),
    _get("/api/tags", ollama_models.tags, "The models (Ollama).", dialect="ollama"),
    _get("/api/ps", ollama_models.running, "The loaded models (Ollama).", dialect="ollama"),
    _get("/api/version", ollama_models.version, "The version (Ollama).", dialect="ollama"),
    _post(
        "/api/pull",
        ollama_models.pull,
        ollama_models.PULL_BODY,
        "A model that is here (Ollama).",
        dialect="ollama",
    ),
    _post(
        "/api/show",
        ollama_models.show,
        ollama_models.SHOW_BODY,
        "About a model (Ollama).",
        dialect="ollama",
    ),
    _post("/api/embed", ollama.embed, ollama.EMBED_BODY, "Vectors (Ollama).", dialect="ollama"),
    _post(
        "/api/embeddings",
        ollama.embeddings,
        ollama.EMBEDDINGS_BODY,
        "A vector (Ollama).",
        dialect="ollama",
    ),
)

# those without parameters that the OpenAPI document has
PATHS = [route.path for route in ROUTES if "{" not in route.path and not route.hidden]


class Table:
    """Finds the route of a request."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self._plain: dict[str, dict[str, Route]] = {}
        self._patterns: list[tuple[Any, dict[str, Route]]] = []
        patterns: dict[str, dict[str, Route]] = {}
        for route in routes:
            if "{" in route.path:
                patterns.setdefault(route.path, {})[route.method] = route
            else:
                self._plain.setdefault(route.path, {})[route.method] = route
        for path, methods in patterns.items():
            self._patterns.append((compile_path(path)[0], methods))

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]]:
        """(the routes of a path by method, the parameters in it); none for an unknown path."""
        methods = self._plain.get(path)
        if methods is not None:
            return methods, {}
        for pattern, methods in self._patterns:
            match = pattern.match(path)
            if match:
                return methods, match.groupdict()
        return {}, {}
