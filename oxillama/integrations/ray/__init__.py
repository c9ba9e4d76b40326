"""Many machines: batch inference with Ray Data, the server on Ray Serve, sessions that move.

Needs the extra `ray`; docs/ray.md says how it is used.

config       OxillamaProcessorConfig: engines, batches, what becomes of a row that fails
rows         a row's request and its answer, by the column names of Ray Data's LLM API
checkpoint   finished rows in a folder
predictor    OxillamaPredictor: an engine in an actor of Ray Data
processor    build_processor: preprocess, answers, postprocess
serving      build_app, app: the server on Ray Serve; Gateway
replica      OxillamaReplica: the application with its engine
http         HTTP requests between actors
prompts      the token ids of a request's prompt
routing      PrefixRouter: which replica a request goes to
ledger       which replica has which session
"""

from oxillama.errors import MissingExtra

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise MissingExtra("integrations.ray", error, "ray") from None

from oxillama.integrations.ray.config import OxillamaProcessorConfig
from oxillama.integrations.ray.predictor import OxillamaPredictor
from oxillama.integrations.ray.processor import Processor, build_processor
from oxillama.integrations.ray.routing import PrefixRouter
from oxillama.integrations.ray.serving import app, build_app

__all__ = [
    "OxillamaPredictor",
    "OxillamaProcessorConfig",
    "PrefixRouter",
    "Processor",
    "app",
    "build_app",
    "build_processor",
]
