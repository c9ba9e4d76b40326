"""oxillama: a fast and exact CPU engine for GGUF language models.

    import oxillama
    engine = oxillama.load("model.gguf")            # oxillama.load() is the embedded model
    engine.generate("Once upon a time").text

Names are imported when they are first used, so that `import oxillama` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `import typing` alone takes as long as all else here
    from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "oxillama.options": ("Options",),
    "oxillama.api": (
        "EngineConfig",
        "InferenceEngine",
        "cpu_info",
        "load",
        "load_model_from_bytes",
    ),
    "oxillama.embedded": ("embedded_path",),
    "oxillama.engine.beam": ("BeamHypothesis", "BeamSearchConfig"),
    "oxillama.asynchronous": ("AsyncEngine",),
    "oxillama.engine.embedding": ("PoolingMode", "RankedDocument"),
    "oxillama.media.prompt": ("ImagePrompt",),
    "oxillama.transcription": ("Transcript",),
    "oxillama.engine.metrics": ("EngineMetrics", "MetricsSnapshot"),
    "oxillama.engine.memory.pages": ("KvCache", "KvCachePool", "PagedKvCache", "Rewindable"),
    "oxillama.engine.memory.prefix": ("PrefixKvCache",),
    "oxillama.completion": ("Completion", "Piece", "SpecStats", "Timings", "Usage"),
    "oxillama.engine.request": ("Request",),
    "oxillama.engine.stream": ("Stream",),
    "oxillama.engine.scheduler": (
        "MAX_DECODE_WAIT_MS",
        "PREFILL_CHUNK",
        "Scheduler",
        "SchedulerConfig",
    ),
    "oxillama.engine.session": ("Session",),
    "oxillama.snapshot.session": ("EngineSnapshot",),
    "oxillama.engine.memory.states": ("SequencePool", "SsmStatePool"),
    "oxillama.errors": (
        "Cancelled",
        "ConfigError",
        "ContextError",
        "ContextWarning",
        "ConvertError",
        "DamagedWeightsWarning",
        "EmptySequence",
        "EngineError",
        "Exhausted",
        "GgufError",
        "GgufNotFound",
        "GrammarError",
        "AudioError",
        "ImageError",
        "InvalidSlot",
        "LoraError",
        "MissingExtra",
        "ModelError",
        "ModelFingerprintMismatch",
        "NotSupported",
        "OxillamaError",
        "PagingError",
        "PoolError",
        "PositionBeyondEnd",
        "QuantError",
        "QueueFull",
        "NoNextToken",
        "RewindError",
        "RoundsExhausted",
        "SamplingError",
        "SnapshotIncompatible",
        "SnapshotNotFound",
        "SpecSnapshotIncompatible",
        "TemplateError",
        "TokenizerError",
        "WeightsDamaged",
    ),
    "oxillama.gguf": ("ModelFingerprint",),
    "oxillama.grammar": (
        "Grammar",
        "GrammarState",
        "GrammarWarning",
        "JsonSchemaCompiler",
        "TokenMasker",
        "apply_grammar_mask",
    ),
    "oxillama.about": ("get_include", "show_versions", "versions"),
    "oxillama.lora.fit": ("Lora",),
    "oxillama.lora.merge": ("merge_lora",),
    "oxillama.lora.stack": ("LoraStack",),
    "oxillama.quality": ("Perplexity", "collect_imatrix", "perplexity"),
    "oxillama.sampling": (
        "DiffusionConfig",
        "Sampler",
        "SamplerChain",
        "SamplerConfig",
        "SamplerStage",
        "Xorshift64",
    ),
    "oxillama.speculative.config": ("AsyncSpecConfig", "SpeculativeConfig"),
    "oxillama.speculative.decoder": ("CancellationToken", "SpeculativeDecoder"),
    "oxillama.speculative.engine": ("SpeculativeEngine",),
    "oxillama.speculative.lookup": ("LookupDrafter",),
    "oxillama.speculative.snapshot": ("SpecSnapshot",),
    "oxillama.speculative.types": ("Candidates", "Draft", "DraftRequest", "Drafter"),
    "oxillama.weights.offload": ("Budget", "OffloadPolicy", "PinnedHotSet"),
    "oxillama.weights.pager": ("LayerPager", "PagingStats"),
    "oxillama.weights.pressure": ("MemoryPressureProbe", "MemoryUse"),
    "oxillama.tokenizer": ("ChatTemplate", "TextStream", "TokenizerBridge"),
    "oxillama.toolcalls": (
        "ChatEvent",
        "NoOpDispatcher",
        "ReasoningSplitter",
        "ReplyParser",
        "ToolCall",
        "ToolCallDetector",
        "ToolCallGrammar",
        "ToolDispatcher",
        "ToolResult",
        "TriggeredGrammar",
        "run_until_answer",
        "run_until_answer_async",
        "split_reasoning",
    ),
}
_MODULES = (
    "api",
    "capi",
    "convert",
    "embedded",
    "engine",
    "errors",
    "gguf",
    "grammar",
    "lora",
    "model",
    "quality",
    "quant",
    "sampling",
    "speculative",
    "tokenizer",
    "toolcalls",
)
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None and name not in _MODULES:
        raise AttributeError(
            f"module 'oxillama' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    try:
        module = importlib.import_module(home or f"oxillama.{name}")
    except ModuleNotFoundError as error:
        from oxillama.errors import not_compiled

        if (refused := not_compiled(error)) is None:
            raise
        raise refused from None
    value = module if home is None else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
