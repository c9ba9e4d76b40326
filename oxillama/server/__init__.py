"""The HTTP server over engines of this process: OpenAI's, Anthropic's, llama-server's, vLLM's and
Ollama's routes, and a page to talk to. Needs the extra `server` (starlette, uvicorn).

settings        ServerConfig: what is listened to, served, and refused
run             Server: the process; sockets, signals, the end
protocol        time-outs and limits of connections
app             from a request to its route and back: keys, origins, headers, log lines
routes          the table of routes
openapi         the document that describes them
schema          bodies against schemas
strict_json     JSON from strangers
options         every spelling of every option of generation
errors          what is refused, in each dialect
calls           one HTTP request
work            one generation
waker           from the engine's thread to the event loop
sse             streams of events
state           what requests share; health
models          models by name, loaded and unloaded
prompts         conversations as prompts, control tokens kept apart
chat            chat completions, and what every chat shares
completions     completions
embeddings      vectors
responses       responses
anthropic       Anthropic's messages
llama           llama-server's routes
vllm            vLLM's routes
ollama          Ollama's routes
sessions, session_routes   sessions by name
adapters, ranking          where adapters and rerankers are wired
budget          bounded reasoning
infill          text in the middle
logprobs        log-probabilities as the APIs write them
metrics         counters in Prometheus' format
logs            log lines and spans
ids             ids that nobody can guess
page, static    the page at /
"""

from oxillama.server.app import App, create_app
from oxillama.server.settings import ServerConfig

__all__ = ["App", "ServerConfig", "create_app"]
