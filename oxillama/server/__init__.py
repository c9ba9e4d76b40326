"""The HTTP server over engines of this process: routes of OpenAI, Anthropic, llama-server, vLLM and
Ollama, and a chat page. Needs the extra `server` (starlette, uvicorn).

The server:

- `settings`: `ServerConfig`: addresses, models and limits
- `run`: `Server`: the process, sockets, signals, shutdown
- `protocol`: time-outs and limits of connections
- `app`: from a request to its route and back: keys, origins, headers, log lines
- `routes`, `openapi`: the table of routes, and the OpenAPI document
- `schema`, `strict_json`, `forms`: check bodies against schemas; parse untrusted JSON and
  multipart forms
- `calls`, `work`: one HTTP request; one generation
- `waker`: notifications from the engine's thread to the event loop
- `sse`: server-sent events
- `state`, `models`: what requests share, health; models by name, loaded and unloaded
- `about`: what a model is, without loading it
- `errors`, `ids`: errors in each API's form; ids that cannot be guessed
- `hints`: what does here what fields and routes of other servers ask for
- `logs`, `metrics`: log lines and spans; counters in Prometheus' format

What all APIs share:

- `options`: every name of every generation option
- `fields`, `tools`: fields that several bodies have; tools and the choice among them
- `replies`: a chat's completion as a message
- `prompts`: conversations as prompts, without control tokens from clients
- `logprobs`: log-probabilities in the form of the APIs
- `budget`, `opaque`: bounded reasoning; reasoning as a text that clients keep
- `adapters`: LoRA adapters of a request
- `sessions`, `session_routes`: named sessions

The APIs:

- `chat`: chat completions, and what all chats share
- `completions`, `infill`: completions, and text in the middle
- `embeddings`, `ranking`, `transcriptions`: vectors, rerankers, speech as text
- `responses`, `response_items`: OpenAI's responses
- `anthropic`, `message_blocks`: Anthropic's messages
- `llama`, `slots`, `vllm`, `tokens`: routes of llama-server and vLLM
- `ollama`, `ollama_models`: Ollama's routes
- `listing`: the list of models
- `page`, `static`: the page at /
"""

from oxillama.errors import MissingExtra

try:
    import starlette as _starlette  # noqa: F401
except ImportError as error:
    raise MissingExtra("server", error, "server") from None

from oxillama.server.app import App, create_app
from oxillama.server.settings import ServerConfig

__all__ = ["App", "ServerConfig", "create_app"]
