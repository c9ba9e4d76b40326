"""The HTTP server over engines of this process: routes of OpenAI, Anthropic, llama-server, vLLM and
Ollama, and a chat page. Needs the extra `server` (starlette, uvicorn).

settings        ServerConfig: addresses, models and limits run             Server: the process;
sockets, signals, shutdown protocol        time-outs and limits of connections app             from
a request to its route and back: keys, origins, headers, log lines routes          the table of
routes openapi         the OpenAPI document schema          checks bodies against schemas
strict_json     parses untrusted JSON options         every name of every generation option errors
errors, in each API's form calls           one HTTP request work            one generation waker
notifications from the engine's thread to the event loop sse             server-sent events state
what requests share; health models          models by name, loaded and unloaded prompts
conversations as prompts, without control tokens from clients chat            chat completions, and
what all chats share completions     completions embeddings      vectors responses       responses
anthropic       Anthropic's messages llama           llama-server's routes vllm            vLLM's
routes ollama          Ollama's routes sessions, session_routes   named sessions adapters, ranking
adapters and rerankers budget          bounded reasoning infill          text in the middle logprobs
log-probabilities in the form of the APIs metrics         counters in Prometheus' format logs
log lines and spans ids             ids that cannot be guessed page, static    the page at /
"""

from oxillama.server.app import App, create_app
from oxillama.server.settings import ServerConfig

__all__ = ["App", "ServerConfig", "create_app"]
