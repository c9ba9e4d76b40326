"""The arguments that a `Llama` is made with: what is refused, and the engine's options for them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from oxillama.compat import constants
from oxillama.compat.arguments import (
    KV_TYPES,
    POOLINGS,
    ROPE_SCALINGS,
    TEMPLATES,
    check_flags,
)
from oxillama.compat.handlers import MTMDChatHandler
from oxillama.compat.objects import LlamaPromptLookupDecoding
from oxillama.errors import ConfigError


def check_loading(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for arguments, by name, that have no meaning here or none together."""
    check_flags(f16_kv=given["f16_kv"])
    threads, batch_threads = given["n_threads"], given["n_threads_batch"]
    if batch_threads not in (None, threads):
        raise ConfigError(
            f"n_threads_batch: found {batch_threads} and n_threads {threads}, wanted one number of "
            "threads"
        )
    type_k, type_v = _kv_types(given)
    if type_k != type_v or type_k not in KV_TYPES:
        raise ConfigError(
            f"type_k, type_v: found {type_k}, {type_v}, wanted the same of {list(KV_TYPES)}"
        )
    if given["rope_scaling_type"] not in (None, *ROPE_SCALINGS):
        raise ConfigError(f"rope_scaling_type: found {given['rope_scaling_type']}, wanted -1 to 2")
    if given["pooling_type"] not in (-1, *POOLINGS):
        raise ConfigError(f"pooling_type: found {given['pooling_type']}, wanted -1 to 3")
    if given["chat_format"] is not None and given["chat_format"] not in TEMPLATES:
        raise ConfigError(
            f"chat_format: found {given['chat_format']!r}, wanted None (the file's own template) "
            f"or one of {', '.join(TEMPLATES)}"
        )
    if given["lora_path"] is None and given["lora_scale"] != 1.0:
        raise ConfigError(
            f"lora_scale: found {given['lora_scale']} without a lora_path, wanted both"
        )
    if given["lora_path"] is not None and given["vocab_only"]:
        raise ConfigError(
            "lora_path: found together with vocab_only=True, wanted a model to change"
        )
    handler, draft = given["chat_handler"], given["draft_model"]
    if handler is not None and not isinstance(handler, MTMDChatHandler):
        raise ConfigError(
            f"chat_handler: found {type(handler).__name__}, wanted an MTMDChatHandler"
        )
    if handler is not None and given["vocab_only"]:
        raise ConfigError(
            "chat_handler: found together with vocab_only=True, wanted a model that sees"
        )
    if draft is not None and not isinstance(draft, LlamaPromptLookupDecoding):
        raise ConfigError(
            f"draft_model: found {type(draft).__name__}, wanted a LlamaPromptLookupDecoding"
        )
    if not isinstance(given["model_path"], (str, os.PathLike)):
        raise ConfigError(f"model_path: found {type(given['model_path']).__name__}, wanted a path")


def engine_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `oxillama.load` for checked arguments, by name."""
    scaling, threads = given["rope_scaling_type"], given["n_threads"]
    options: dict[str, Any] = {
        "n_ctx": given["n_ctx"],
        "num_threads": None if threads in (None, 0, -1) else threads,
        "prefill_chunk_size": given["n_batch"],
        "rope_freq_base": given["rope_freq_base"] or None,
        "rope_freq_scale": given["rope_freq_scale"] or None,
        "rope_scaling": ROPE_SCALINGS[-1 if scaling is None else scaling],
        "yarn_orig_ctx": given["yarn_orig_ctx"] or None,
        "yarn_ext_factor": None if given["yarn_ext_factor"] < 0 else given["yarn_ext_factor"],
    }
    for name, default in (
        ("yarn_attn_factor", 1.0),
        ("yarn_beta_fast", 32.0),
        ("yarn_beta_slow", 1.0),
    ):
        options[name] = None if given[name] == default else given[name]
    type_k, _ = _kv_types(given)
    if type_k is not None:
        options["kv_type"] = KV_TYPES[type_k]
    if given["chat_handler"] is not None:
        options["mmproj"] = given["chat_handler"].clip_model_path
    return options


def _kv_types(given: Mapping[str, Any]) -> tuple[Any, Any]:
    """The types of keys and of values; `f16_kv` is the older name of both."""
    if not given["f16_kv"] and given["type_k"] is given["type_v"] is None:
        return constants.GGML_TYPE_F32, constants.GGML_TYPE_F32
    return given["type_k"], given["type_v"]
