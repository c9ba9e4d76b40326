"""What callers pass by keyword: names that other tools have for the same thing, names that are
none, and numbers of any kind.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from oxillama.errors import ConfigError

if TYPE_CHECKING:  # types of arguments, for editors and checkers alone
    from oxillama.engine.scheduler import SchedulerConfig
    from oxillama.grammar import Grammar
    from oxillama.sampling import SamplerConfig

# llama.cpp's and llama-cpp-python's, Ollama's, transformers' names of options
OPTION_NAMES = {
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "n_keep": "keep",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repetition_window",
    "mirostat_mode": "mirostat",
    "typical": "typical_p",
    "temp": "temperature",
}
# and of what a model is loaded with
CONFIG_NAMES = {
    "n_ctx": "context_size",
    "num_ctx": "context_size",
    "n_threads": "num_threads",
    "num_thread": "num_threads",
}
# what -1 stands for elsewhere, where it is refused here
_MINUS_ONE = {
    "context_size": "None for the model's own",
    "keep": "the number of the prompt's tokens to keep all of it",
    "logprobs": "up to the size of the vocabulary",
    "max_pages": "None for as many as memory allows",
    "num_threads": "None for the cores this process may use",
    "prefill_chunk_size": "None for the scheduler's",
    "prompt_logprobs": "up to the size of the vocabulary",
    "timeout": "None for no limit",
}


def renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments under our names; ConfigError where a value is given under two."""
    out: dict[str, Any] = {}
    first: dict[str, str] = {}
    for name, value in given.items():
        own = names.get(name, name)
        if own in out:
            raise ConfigError(f"{name}: found beside {first[own]}, wanted one of them")
        out[own], first[own] = value, name
    return out


def unknown(name: str, known: Iterable[str], *, place: str) -> ConfigError:
    """The error of a name that nobody has, with the one that was probably meant."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return ConfigError(f"{name}: is no {place}; did you mean {close[0]}?")
    return ConfigError(f"{name}: is no {place}, wanted one of {', '.join(names)}")


def whole(name: str, value: Any, least: int) -> int:
    """A whole number of any kind (numpy's too) that is at least `least`; ConfigError for what is
    none.
    """
    number: int | None = None
    with suppress(TypeError):
        number = None if isinstance(value, (bool, np.bool_)) else index(value)
    if number is None or number < least:
        hint = f" ({_MINUS_ONE[name]})" if number == -1 and name in _MINUS_ONE else ""
        raise ConfigError(f"{name}: found {value!r}, wanted an integer of {least} or more{hint}")
    return number


def seconds(name: str, value: Any) -> float:
    """A number of seconds above 0, of any kind; ConfigError for what is none."""
    good = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not good or not value > 0:
        hint = f" ({_MINUS_ONE[name]})" if good and value == -1 and name in _MINUS_ONE else ""
        raise ConfigError(f"{name}: found {value!r}, wanted seconds above 0{hint}")
    return float(value)


def separated(prompt: Any) -> tuple[Any, bool]:
    """(a prompt or a list of prompts, whether it is a list of them).

    Lists, tuples, arrays, Series and iterators: of texts or of lists they are prompts, of whole
    numbers they are the token ids of one. Nothing at all is a list of no prompts. ConfigError for a
    None among prompts.
    """
    if (
        prompt is None
        or isinstance(prompt, (str, bytes, bytearray, memoryview, Mapping, set, frozenset))
        or not hasattr(prompt, "__iter__")
        or getattr(prompt, "ndim", 1) == 0
    ):
        return prompt, False
    items = list(prompt)
    if items and isinstance(items[0], (int, np.integer)):
        return items, False
    if any(each is None for each in items):
        raise ConfigError(
            f"prompt: found None in a list of {len(items)}, wanted texts or token ids (None alone goes on with the last session)"
        )
    return items, True


class SamplerFields(TypedDict, total=False):
    """Fields of `SamplerConfig` that `generate` and its kin take as arguments of their own, and
    other tools' names of them.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float | None
    repetition_window: int
    frequency_penalty: float
    presence_penalty: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    typical_p: float
    top_a: float
    eta_cutoff: float
    epsilon_cutoff: float
    top_n_sigma: float | None
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str | bytes | Sequence[int]]
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    logit_bias: Mapping[int, float]
    banned_tokens: Iterable[int]
    allowed_tokens: Iterable[int] | None
    ignore_eos: bool
    min_tokens: int
    samplers: Sequence[str] | None
    temp: float
    repeat_penalty: float
    repeat_last_n: int
    mirostat_mode: int
    typical: float


class SingleOptions(SamplerFields, total=False):
    """What `generate` and its kin take for one completion (`oxillama.Options`)."""

    max_tokens: int | None
    sampler: SamplerConfig | None
    sampling_fields: Mapping[str, Any] | None
    stop: str | Iterable[str] | None
    stop_token_ids: Iterable[int] | None
    seed: int | None
    cache_prompt: bool
    truncate_prompt: bool
    context_shift: bool
    keep: int
    logprobs: int | None
    prompt_logprobs: int | None
    grammar: str | Grammar | None
    json_schema: Any
    regex: str | None
    choices: Iterable[str] | None
    shown_tokens: Iterable[int] | None
    speculative: Any
    processors: Iterable[Callable[..., Any]] | None
    priority: int
    timeout: float | None
    lora: Any
    max_new_tokens: int | None
    n_predict: int
    num_predict: int
    n_keep: int


class GenerateOptions(SingleOptions, total=False):
    """What `generate` and its kin take for any number of completions."""

    n: int
    best_of: int | None


class ChatOptions(GenerateOptions, total=False):
    """What `chat` and its kin take."""

    tools: Sequence[Any] | None
    tool_choice: Any
    tool_format: str | None
    parallel_tool_calls: bool
    response_format: Mapping[str, Any] | None
    template: Mapping[str, Any] | None


class ConfigOptions(TypedDict, total=False):
    """The fields of `EngineConfig` but the model's path, and llama.cpp's names of them."""

    tokenizer_path: str | Path | None
    sidecar: str | Path | Literal[False]
    mmproj: str | Path | None
    image_fit: Literal["stretch", "pad"] | None
    image_folder: str | Path | None
    max_images: int
    max_image_pixels: int
    context_size: int | None
    num_threads: int | None
    sampler: SamplerConfig | None
    prefill_chunk_size: int | None
    kv_type: str
    page_size: int
    max_pages: int | None
    scheduler: SchedulerConfig | None
    prefix_cache: bool
    prefix_min_tokens: int
    prefix_max_entries: int
    prefix_max_bytes: int
    rope_freq_base: float | None
    rope_freq_scale: float | None
    rope_scaling: Literal["none", "linear", "yarn"] | None
    yarn_orig_ctx: int | None
    yarn_ext_factor: float | None
    yarn_attn_factor: float | None
    yarn_beta_fast: float | None
    yarn_beta_slow: float | None
    n_ctx: int | None
    num_ctx: int | None
    n_threads: int | None
    num_thread: int | None
