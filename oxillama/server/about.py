"""What a model is, from the model if it is loaded, otherwise from its file: clients ask about all
models of a list, and none is loaded or unloaded for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oxillama.errors import OxillamaError
from oxillama.gguf import GgufReader
from oxillama.model.record import ModelConfig, record
from oxillama.opening import encoded_by
from oxillama.server.infill import fim_tokens, fim_words
from oxillama.server.models import FIM_KEYS, ServedModel, unusable
from oxillama.server.settings import ServerConfig
from oxillama.tokenizer.builtin_templates import template_source
from oxillama.toolcalls.formats import HARMONY, taught_format
from oxillama.toolcalls.reasoning import detect_reasoning


@dataclass(frozen=True, slots=True)
class About:
    """A model's file, its sizes, its chat template ("" for none), and what it is for."""

    path: Path
    config: ModelConfig
    template: str
    embeds: bool
    fills: bool
    sees: bool
    reasons: bool


def of_model(model: ServedModel) -> About:
    """About a loaded model."""
    builder = model.builder
    return About(
        Path(model.engine.model_files[0]),
        model.engine.config,
        "" if builder is None else builder.source,
        _embeds(model.engine.config),
        model.bridge is not None and fim_tokens(model) is not None,
        model.sees,
        builder is not None and builder.reasons,
    )


def of_file(path: Path, server: ServerConfig) -> About:
    """About a model that the server would load from a file; ApiError for one that it cannot."""
    try:
        with GgufReader(path) as reader:
            config, found = record(reader)[0], reader.metadata
            spells = "tokenizer.ggml.model" in found
            fills = spells and (
                all(isinstance(found.get(key), int) for key in FIM_KEYS)
                or fim_words(found["tokenizer.ggml.tokens"]) is not None
            )
            given = server.chat_template or server.engine.get("chat_template")
            own = found.get("tokenizer.chat_template")
            template = template_source(given) if given else own if isinstance(own, str) else ""
    except (OSError, OxillamaError) as error:
        raise unusable(path, error) from None
    template, mmproj = template if spells else "", server.engine.get("mmproj")
    return About(
        path,
        config,
        template,
        _embeds(config),
        fills,
        bool(template and mmproj and "image" in encoded_by(mmproj)),
        detect_reasoning(template) is not None or taught_format(template) is HARMONY,
    )


def _embeds(config: ModelConfig) -> bool:
    return not config.generates or config.pooling not in (None, "none")
