"""What does here what fields and routes of other servers ask for, for errors that refuse them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from difflib import get_close_matches

_ONE_WAY = "constraints are enforced in one way alone"
_SPACE = "white space between tokens of JSON is bounded already"
_BEAMS = "beams are searched in Python, by beam_generate"
_EFFORT = "reasoning_effort says how far the model thinks"
_TOKENS = "/completion gives token ids with return_tokens"
_BODY = "its members are fields of the body itself"
_IN_OPTIONS = "options has it"
_TEXT = "max_tokens bounds the answer"
_HEALTH = "/health says whether the server serves"

# path of a field -> (a field of the same object, without which the hint would be wrong; the hint)
_ONE_VALUE = {  # fields of vLLM's that are known, but have one value alone
    "bad_words": ("banned_tokens", "banned_tokens takes ids that are never drawn"),
    "include_stop_str_in_output": ("stop", "what an answer stops before is left out"),
    "length_penalty": ("temperature", _BEAMS),
    "truncate_prompt_tokens": ("truncate_prompt", "truncate_prompt shortens a prompt"),
    "use_beam_search": ("temperature", _BEAMS),
}
_FIELDS = {
    **_ONE_VALUE,
    # of bodies with `options`, which are Ollama's
    **dict.fromkeys(("seed", "stop", "temperature", "top_k", "top_p"), ("options", _IN_OPTIONS)),
    "max_tokens": ("options", "num_predict of options is its name here"),
    # OpenAI's and its clients'
    "system": ("messages", "a message of the role system has it"),
    "extra_body": ("temperature", _BODY),
    "function_call": ("tool_choice", "tool_choice says whether a tool is called, and which"),
    "functions": ("tools", "tools has functions"),
    "reasoning": ("reasoning_effort", _EFFORT),
    "thinking": ("reasoning_effort", _EFFORT),
    "web_search_options": ("tools", "tools are run by the client"),
    # vLLM's
    "best_of": ("messages", "/v1/completions has it"),
    "cache_salt": ("cache_prompt", "cache_prompt: false uses no stored prefix"),
    "chat_template": ("messages", "oxillama serve --chat-template is for all requests"),
    "detokenize": ("stop", "answers are texts"),
    "documents": ("messages", "what is to be read belongs into a message"),
    "early_stopping": ("temperature", _BEAMS),
    "echo": ("messages", "/v1/completions has it"),
    "enable_thinking": ("chat_template_kwargs", "chat_template_kwargs takes it"),
    "guided_decoding_backend": ("guided_json", _ONE_WAY),
    "guided_whitespace_pattern": ("guided_json", _SPACE),
    "prompt_embeds": ("prompt", "a prompt is a text or token ids"),
    "return_token_ids": ("temperature", _TOKENS),
    "return_tokens_as_token_ids": ("return_token_ids", "return_token_ids gives token ids"),
    "structured_outputs._backend": ("json", _ONE_WAY),
    "structured_outputs.disable_additional_properties": (
        "json",
        "objects have only the members that a schema names",
    ),
    "structured_outputs.disable_any_whitespace": ("json", _SPACE),
    "structured_outputs.disable_fallback": ("json", _ONE_WAY),
    "structured_outputs.structural_tag": ("grammar", "grammar constrains parts of a text"),
    "structured_outputs.whitespace_pattern": ("json", _SPACE),
    "thinking_budget": ("reasoning_effort", "/v1/messages has budget_tokens"),
    # llama-server's and others'
    "do_sample": ("temperature", "temperature: 0 takes the likeliest tokens"),
    "id_slot": ("session", "session names what is gone on with"),
    "max_length": ("max_tokens", _TEXT),
    "max_new_tokens": ("max_tokens", _TEXT),
    "n_predict": ("max_tokens", _TEXT),
    "num_ctx": ("temperature", "oxillama serve -c is the length of the context"),
    "num_predict": ("max_tokens", _TEXT),
    "options": ("temperature", _BODY),
    "random_seed": ("seed", "seed is its name here"),
    "reasoning_budget": ("reasoning_effort", "/v1/messages has budget_tokens"),
}

# names of one thing in several APIs; the first that a body has is told
_SAME = (
    ("max_tokens", "max_output_tokens", "max_completion_tokens", "num_predict", "n_predict"),
    ("stop", "stop_sequences"),
    ("messages", "input", "prompt", "content"),
    ("response_format", "text", "output_config", "format"),
    ("instructions", "system"),
)
_ELSEWHERE = frozenset(name for names in _SAME for name in names)

# the first parts of a path -> the hint
_PATHS = {
    # Ollama's routes that change which models there are
    "/api/blobs": "a GGUF file of --models-dir is a model",
    "/api/copy": "a GGUF file of --models-dir is a model, which can be copied",
    "/api/create": "a GGUF file of --models-dir is a model, and options of requests replace a "
    "Modelfile",
    "/api/delete": "`oxillama rm` removes a model",
    "/api/push": "nothing is uploaded",
    # vLLM's and others'
    "/classify": "/v1/score and /v1/rerank give what a classifier says",
    "/docs": "/openapi.json describes the routes",
    "/generate": "/v1/completions and /completion continue a prompt",
    "/livez": _HEALTH,
    "/ping": _HEALTH,
    "/pooling": "/v1/embeddings gives vectors",
    "/readyz": _HEALTH,
    "/redoc": "/openapi.json describes the routes",
    "/tokenizer_info": "/props has the chat template and the context",
    "/v1/audio": "/v1/audio/transcriptions writes what is heard",
    "/v1/detokenize": "/detokenize does it",
    "/v1/tokenize": "/tokenize does it",
}


def of_unknown(path: str, known: Container[str]) -> str:
    """What stands for an unknown field, by its path in the body, behind an error that refuses it;
    "" for nothing. known: the fields of its object.
    """
    return _hint(path, _FIELDS, known) or _renamed(path, known)


def of_another_api(path: str) -> bool:
    """Whether an unknown field, by its path, is no typing error: other APIs have it."""
    return path.rpartition(".")[2] in _ELSEWHERE


def _renamed(path: str, known: Container[str]) -> str:
    name = path.rpartition(".")[2]
    for names in _SAME:
        here = next((each for each in names if each in known), None)
        if name in names and here is not None:
            return f"; {here} is its name here"
    return ""


def of_value(path: str | None, known: Container[str]) -> str:
    """The same for a known field whose value is refused."""
    return _hint(path or "", _ONE_VALUE, known)


def _hint(path: str, table: Mapping[str, tuple[str, str]], known: Container[str]) -> str:
    beside, hint = table.get(path, ("", ""))
    return f"; {hint}" if beside in known and hint else ""


def of_path(path: str, known: Iterable[str]) -> str:
    """What stands for an unknown path, likewise, or the one of those that are known that was
    probably meant: addresses of clients end in /v1 or not, and in a slash or not.
    """
    hint = _PATHS.get("/".join(path.split("/")[:3]), "")
    close = get_close_matches(path[:100], known, n=1, cutoff=0.82)
    if close and not hint:
        hint = f"did you mean {close[0]}?"
    return f"; {hint}" if hint else ""
