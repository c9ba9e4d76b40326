"""Arguments of llama-cpp-python: what they mean here, which values are refused."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oxillama.arguments import checked_flag, whole
from oxillama.compat import constants
from oxillama.compat.objects import (
    ANY_SEED,
    LlamaGrammar,
    StoppingCriteria,
)
from oxillama.errors import ConfigError, ContextError
from oxillama.grammar import Grammar
from oxillama.toolcalls.events import call_id

KV_TYPES = {
    None: None,
    constants.GGML_TYPE_F32: "f32",
    constants.GGML_TYPE_F16: "f16",
    constants.GGML_TYPE_Q4_0: "q4_0",
    constants.GGML_TYPE_Q8_0: "q8_0",
}
ROPE_SCALINGS = {
    constants.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED: None,
    constants.LLAMA_ROPE_SCALING_TYPE_NONE: "none",
    constants.LLAMA_ROPE_SCALING_TYPE_LINEAR: "linear",
    constants.LLAMA_ROPE_SCALING_TYPE_YARN: "yarn",
}
# -1 is the file's pooling of embeddings, and none where it names none
POOLINGS = {
    constants.LLAMA_POOLING_TYPE_NONE: "none",
    constants.LLAMA_POOLING_TYPE_MEAN: "mean",
    constants.LLAMA_POOLING_TYPE_CLS: "cls",
    constants.LLAMA_POOLING_TYPE_LAST: "last",
}
# in llama.cpp mirostat stands in the place of what truncates
NO_CUTS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
# arguments of both kinds of completions
COMPLETION = (
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "tfs_z"),
    *("frequency_penalty", "presence_penalty", "repeat_penalty", "logit_bias"),
    *("mirostat_mode", "mirostat_tau", "mirostat_eta"),
    *("stop", "seed", "grammar", "logits_processor"),
)
# arguments of `sample` and `generate` -> fields of a sampler
SAMPLING = {
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "temp": "temperature",
    "repeat_penalty": "repetition_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "mirostat_mode": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
# names of `chat_format`
TEMPLATES = {
    "chatml": "chatml",
    "chatml-function-calling": "chatml",
    "gemma": "gemma",
    "llama-2": "llama2",
    "llama-3": "llama3",
    "mistral-instruct": "mistral",
    "zephyr": "zephyr",
}
# accepted: they cannot change a result here
HINTS = ("use_mmap", "n_ubatch", "offload_kqv", "flash_attn", "op_offload", "swa_full", "no_perf")
# (argument, the only value that means what is done here)
REFUSED: tuple[tuple[str, Any], ...] = (
    ("n_gpu_layers", 0),
    ("split_mode", constants.LLAMA_SPLIT_MODE_LAYER),
    ("main_gpu", 0),
    ("tensor_split", None),
    ("rpc_servers", None),
    ("attention_type", constants.LLAMA_ATTENTION_TYPE_UNSPECIFIED),
    ("use_mlock", False),
    ("kv_overrides", None),
    ("lora_base", None),
    ("numa", False),
    ("tokenizer", None),
    ("spm_infill", False),
    ("n_parts", -1),  # LangChain gives this and the next
    ("device", None),
)
_DEVICES = ("n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "rpc_servers", "device")
# the same of `from_pretrained` alone
OF_HUB: tuple[tuple[str, Any], ...] = (
    ("additional_files", None),
    ("local_dir", None),
    ("local_dir_use_symlinks", "auto"),
    ("cache_dir", None),
)


def check_flags(**given: Any) -> None:
    """Raise ConfigError for a flag that is neither True nor False nor None."""
    for name, value in given.items():
        if value is not None:
            checked_flag(name, value)


def texts_of(given: Any) -> list[Any]:
    """The texts to embed."""
    if isinstance(given, (bytes, Mapping)) or not hasattr(given, "__iter__"):
        raise ConfigError(f"input: found {type(given).__name__}, wanted a text or a list of texts")
    return [given] if isinstance(given, str) else [*given]


def biases_of(given: Any) -> dict[int, Any]:
    """logit_bias by token id; programs that read JSON have the ids as text."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"logit_bias: found {type(given).__name__}, wanted a mapping of token id to number"
        )
    out = {}
    for key, value in given.items():
        try:
            token = int(key)
        except (TypeError, ValueError, OverflowError):
            token = -1
        if isinstance(key, bool) or token < 0 or (not isinstance(key, str) and token != key):
            raise ConfigError(f"logit_bias: found {key!r:.40} as a token, wanted its id")
        out[token] = value
    return out


def messages_of(given: Any) -> Any:
    """Messages with the calls of functions as those of tools: `function_call` of a message is the
    older form, with the role `function` for what the call gave. Calls are numbered anew, since
    some templates write only ids of nine characters.
    """
    if isinstance(given, (str, bytes, Mapping)) or not hasattr(given, "__iter__"):
        return given
    out, ids, last, count = [], {}, None, 0
    for message in given:
        if isinstance(message, Mapping):
            message = dict(message)
            call = message.pop("function_call", None)
            if call is not None and not message.get("tool_calls"):
                message["tool_calls"] = [{"type": "function", "function": call}]
            if isinstance(message.get("tool_calls"), (list, tuple)):
                calls = [*message["tool_calls"]]
                for at, each in enumerate(calls):
                    if isinstance(each, Mapping):
                        last = call_id(count)
                        count += 1
                        ids[str(each.get("id"))] = last
                        calls[at] = {**each, "id": last}
                message["tool_calls"] = calls
            if message.get("role") == "function" and last is not None:
                message |= {"role": "tool", "tool_call_id": last}
            elif message.get("role") == "tool" and str(message.get("tool_call_id")) in ids:
                message["tool_call_id"] = ids[str(message["tool_call_id"])]
        out.append(message)
    return out


def is_negative(value: Any) -> bool:
    """Whether a value is a number below 0; the engine names what is none."""
    return isinstance(value, numbers.Real) and value < 0


def given_seed(seed: int) -> int | None:
    """A seed; None for those that stand for a random one."""
    return None if seed in (-1, ANY_SEED) else whole("seed", seed, 0)


def refuse(name: str, value: Any, only: Any) -> None:
    """Raise ConfigError for an argument that asks for something not supported here."""
    if value != only:
        hint = "; everything runs on the CPU" if name in _DEVICES else ""
        raise ConfigError(
            f"{name}: found {value!r:.60}, which is not done here, wanted {only!r}{hint}"
        )


def processors_of(value: Any) -> list[Any]:
    """Logits processors as a list; ConfigError for what is neither a function nor a list of
    them.
    """
    if value is None:
        return []
    many = not isinstance(value, (str, bytes, Mapping)) and hasattr(value, "__iter__")
    found = [*value] if many else [value]
    if not all(map(callable, found)):
        raise ConfigError(
            f"logits_processor: found {value!r:.60}, wanted a LogitsProcessorList or a list of "
            "functions over (tokens, logits)"
        )
    return found


def functions_as_tools(functions: Any, function_call: Any, tools: Any, tool_choice: Any) -> Any:
    """(tools, tool_choice) of a chat, of which `functions` and `function_call` are the older form;
    ConfigError for both forms together.
    """
    if functions is None:
        if function_call not in (None, "none"):
            raise ConfigError(
                f"function_call: found {function_call!r:.60} without functions, wanted both"
            )
        return tools, tool_choice
    for name, value in (("tools", tools), ("tool_choice", tool_choice)):
        if value is not None:
            raise ConfigError(f"{name}: found together with functions, wanted one form of them")
    if isinstance(functions, (str, bytes, Mapping)) or not hasattr(functions, "__iter__"):
        raise ConfigError(f"functions: found {type(functions).__name__}, wanted a list of mappings")
    made = []
    for at, each in enumerate(functions):
        if not isinstance(each, Mapping):
            raise ConfigError(
                f"functions[{at}]: found {type(each).__name__}, wanted a mapping with a name"
            )
        made.append({"type": "function", "function": dict(each)})
    if isinstance(function_call, Mapping):
        function_call = {"type": "function", "function": dict(function_call)}
    return made, function_call


def criteria_of(value: Any) -> StoppingCriteria | None:
    """Stopping criteria, None for none; ConfigError for what cannot be called."""
    if value is not None and not callable(value):
        raise ConfigError(
            f"stopping_criteria: found {type(value).__name__}, wanted a StoppingCriteriaList"
        )
    checked: StoppingCriteria | None = value
    return checked


def grammar_of(given: Any) -> Grammar | None:
    """The grammar that an argument means, None for none."""
    if isinstance(given, str):
        return Grammar.parse(given)
    if given is not None and not isinstance(given, LlamaGrammar):
        raise ConfigError(f"grammar: found {type(given).__name__}, wanted a LlamaGrammar")
    return None if given is None else given.grammar


@contextmanager
def room_in_arguments() -> Iterator[None]:
    """Let a prompt that is too long name the argument of `Llama` that helps, not those of `load`
    and `generate`, which are none here.
    """
    try:
        yield
    except ContextError as error:
        fact, _, rest = str(error).partition("; ")
        if "truncate_prompt" not in rest:
            raise
        raise ContextError(
            f"{fact}; Llama(n_ctx=...) gives more where the model has it",
            tokens=error.tokens,
            limit=error.limit,
        ) from None
