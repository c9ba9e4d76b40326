"""Arguments from callers: other libraries' names for them, unknown names, numbers of any type, and
token ids.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import wraps
from operator import index
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from oxillama.errors import ConfigError

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
# the meaning of -1 elsewhere, for options that refuse it here
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

# how a reply that was begun for the model goes on
GOES_ON = "generate(render_chat(messages) + beginning) goes on with the beginning of a reply"
# what does here what an argument of another library does
_ELSEWHERE = {
    "add_generation_prompt": "render_chat(...) takes it",
    "add_special_tokens": "token ids as the prompt begin with any token",
    "assistant_model": "speculative= takes a draft model",
    "attention_mask": "prompts of a list are not padded and need none",
    "attn_implementation": "attention is computed in one way alone",
    "bad_words": "banned_tokens= takes ids that are never drawn, processors= see whole sequences",
    "bad_words_ids": (
        "banned_tokens= takes ids that are never drawn, processors= see whole sequences"
    ),
    "batch_size": (
        "generate(...) takes a list of prompts, "
        "scheduler=SchedulerConfig(max_sequences=...) is how many run at once"
    ),
    "beam_width": "BeamSearchConfig of beam_generate has it",
    "begin_suppress_tokens": "processors= takes functions over tokens and logits",
    "best_of": "generate(...) takes it",
    "block_size": "page_size= is how many tokens a page of keys and values holds",
    "bos_token_id": "token ids as the prompt begin with any token",
    "cache_dir": "HF_HOME of the environment is the folder for what the hub gives",
    "cache_implementation": "keys and values are always kept",
    "chat_template_kwargs": "template= of chat(...) takes variables of the template",
    "clip_model_path": "mmproj= of load is the file of an image encoder",
    "compilation_config": "the steps of a model are made once, when it is loaded",
    "continue_final_message": GOES_ON,
    "detokenize": "a Completion has its tokens and their text",
    "device": "everything runs on the CPU",
    "device_map": "everything runs on the CPU",
    "diversity_penalty": "BeamSearchConfig of beam_generate is without groups",
    "do_sample": "temperature=0 takes the likeliest tokens, any other draws",
    "download_dir": "HF_HOME of the environment is the folder for what the hub gives",
    "draft_model": "speculative= takes a draft model",
    "dtype": "weights have the types of the file, kv_type= sets that of keys and values",
    "early_stopping": "BeamSearchConfig of beam_generate has it",
    "echo": "prompt_logprobs= scores the prompt, and the text of the result is without it",
    "embedding": "embed(...) takes any model",
    "enable_chunked_prefill": "prompts are always evaluated in chunks",
    "enable_lora": "lora= of a request takes adapters, and load_lora(...) of the engine loads them",
    "enable_thinking": "template= of chat(...) takes variables of the template",
    "enforce_eager": "the steps of a model are made once, when it is loaded",
    "eos_token_id": "stop_token_ids= ends at these tokens",
    "exponential_decay_length_penalty": "processors= takes functions over tokens and logits",
    "filename": "load(...) has file=, which names one of several files",
    "flash_attn": "attention is computed in one way alone",
    "force_words_ids": "regex= and grammar= constrain the text",
    "forced_bos_token_id": "token ids as the prompt end with any token",
    "forced_eos_token_id": "max_tokens= ends a text without a token of its end",
    "format": "json_schema= constrains the text, response_format= of chat too",
    "generation_config": "sampler= takes a SamplerConfig, and its fields are options",
    "gguf_file": "load(...) has file=, which names one of several files",
    "gpu_memory_utilization": "everything runs on the CPU",
    "guidance_scale": "guidance by a second prompt is not done",
    "guided_choice": "choices= constrains the text",
    "guided_decoding": "json_schema=, regex=, choices= and grammar= constrain the text",
    "guided_decoding_backend": "constraints are enforced in one way alone",
    "guided_grammar": "grammar= constrains the text",
    "guided_json": "json_schema= constrains the text",
    "guided_regex": "regex= constrains the text",
    "hf_overrides": "the keys of a file are as they are, but for rope_... and yarn_...",
    "images": "messages of chat(...) have images as parts",
    "include_stop_str_in_output": "what a text stops before is left out",
    "input_ids": "the prompt is the first argument, text or token ids",
    "kv_overrides": "the keys of a file are as they are, but for rope_... and yarn_...",
    "length_penalty": "BeamSearchConfig of beam_generate has it",
    "limit_mm_per_prompt": "max_images= and max_audio_clips= of load bound a prompt",
    "load_format": "a GGUF file or a Hugging Face folder is known by what it holds",
    "load_in_4bit": "`oxillama quantize` writes a smaller file",
    "load_in_8bit": "`oxillama quantize` writes a smaller file",
    "local_dir": "HF_HOME of the environment is the folder for what the hub gives",
    "local_files_only": "HF_HUB_OFFLINE of the environment, set to 1, asks the hub for nothing",
    "logits_all": "logits(...) gives all rows",
    "logits_processor": "processors= takes functions over tokens and logits",
    "logprobs": "generate(...) takes it",
    "lora_path": "apply_lora(...) of the engine loads an adapter and uses it",
    "lora_request": "lora= takes an adapter's name or path",
    "low_cpu_mem_usage": "weights are packed as they are read, offload= leaves them in the file",
    "main_gpu": "everything runs on the CPU",
    "max_completion_tokens": "max_tokens= bounds the answer",
    "max_length": "max_tokens= bounds the answer without its prompt",
    "max_lora_rank": "adapters of any rank are loaded",
    "max_memory": "offload= reads weights from the file within a budget of memory",
    "max_model_len": "context_size= (n_ctx=) is the length of the context",
    "max_num_batched_tokens": "scheduler=SchedulerConfig(max_batch_tokens=...) sets it",
    "max_num_seqs": "scheduler=SchedulerConfig(max_sequences=...) sets it",
    "max_time": "timeout= is the most seconds of a request",
    "max_tokens": "generate(...) takes it",
    "messages": "chat(...) takes them",
    "n_batch": "prefill_chunk_size= is the number of a prompt's tokens in a step",
    "n_gpu_layers": "everything runs on the CPU",
    "n_probs": "logprobs= reports the likeliest tokens",
    "negative_prompt_ids": "guidance by a second prompt is not done",
    "no_repeat_ngram_size": (
        "dry_multiplier= and the other options of DRY keep sequences from repeating"
    ),
    "num_assistant_tokens": "as many candidates are run as pay, by measured times",
    "num_beam_groups": "BeamSearchConfig of beam_generate is without groups",
    "num_beams": "beam_generate searches with beams",
    "num_gpu": "everything runs on the CPU",
    "num_return_sequences": "n= asks for several answers",
    "num_speculative_tokens": "as many candidates are run as pay, by measured times",
    "output_hidden_states": 'embed(..., pooling="none") gives the last of them',
    "output_logits": "logprobs= reports the likeliest tokens, logits(...) gives all rows",
    "output_scores": "logprobs= reports the likeliest tokens, logits(...) gives all rows",
    "pad_token_id": "prompts of a list are not padded",
    "padding": "prompts of a list are not padded",
    "padding_side": "prompts of a list are not padded",
    "past_key_values": "session() keeps what was evaluated",
    "penalty_alpha": "contrastive search is not done, temperature= and the penalties are there",
    "prefix_allowed_tokens_fn": "processors= takes functions over tokens and logits",
    "prompt_logprobs": "generate(...) takes it",
    "prompt_lookup_num_tokens": 'speculative="lookup" proposes tokens from earlier text',
    "prompt_token_ids": "the prompt is the first argument, text or token ids",
    "quantization": "weights have the types of the file, `oxillama quantize` writes another",
    "quantization_config": "weights have the types of the file, `oxillama quantize` writes another",
    "reasoning_effort": "template= of chat(...) takes variables of the template",
    "response_format": "json_schema= constrains the text, chat(...) takes it as it is",
    "return_dict_in_generate": "the result is a Completion",
    "return_full_text": "the result does not contain the prompt",
    "return_tensors": "results are arrays of numpy or a Completion",
    "revision": "the newest revision is fetched",
    "runner": "an engine generates and embeds, as its model can",
    "sampling_params": "sampler= takes a SamplerConfig, and its fields are options",
    "seed": "sampler=SamplerConfig(seed=...) of load, or seed= of a request",
    "sequence_bias": "logit_bias= takes token ids, processors= see whole sequences",
    "skip_special_tokens": "shown_tokens= names control tokens that are written in the text",
    "speculative_config": 'speculative= takes "mtp", "lookup" or a draft model',
    "speculative_model": "speculative= takes a draft model",
    "stop_strings": "stop= ends at these texts",
    "stopping_criteria": "stop= ends at texts, or leave the loop over stream(...)",
    "stream": "stream(...) is a method of its own",
    "streamer": "stream(...) gives the text while it is generated",
    "structured_outputs": "json_schema=, regex=, choices= and grammar= constrain the text",
    "suppress_tokens": "banned_tokens= takes ids that are never drawn",
    "swap_space": "everything runs on the CPU",
    "system": "a message of chat(...) with the role system says it",
    "system_prompt": "a message of chat(...) with the role system says it",
    "t_max_predict_ms": "timeout= is the most seconds of a request",
    "task": "an engine generates and embeds, as its model can",
    "temperature": "sampler=SamplerConfig(temperature=...) of load, or temperature= of a request",
    "tensor_parallel_size": "everything runs on the CPU",
    "think": "template= of chat(...) takes variables of the template",
    "token": "HF_TOKEN of the environment is sent to the hub",
    "tool_choice": "chat(...) takes it",
    "tools": "chat(...) takes them",
    "torch_dtype": "weights have the types of the file, kv_type= sets that of keys and values",
    "trust_remote_code": "code of a repository is never run",
    "type_k": "kv_type= sets that of keys and values",
    "type_v": "kv_type= sets that of keys and values",
    "use_beam_search": "beam_generate searches with beams",
    "use_cache": "keys and values are always kept",
    "use_mmap": "files are mapped always",
    "use_tqdm": "nothing is printed",
    "verbose": "nothing is printed",
}


# the annotation of `**options`, as text
_UNPACKED = re.compile(r"Unpack\[(\w+)\]")

Target = TypeVar("Target")


class _Unset:
    """Stands in a signature for a default that depends on the model or the engine."""

    def __repr__(self) -> str:
        return "..."


_UNSET = _Unset()


def spelled(target: Target) -> Target:
    """A function, or a class with all its methods, whose signature names every option of its
    `**options: Unpack[...]`: notebooks and shells complete what `inspect.signature` tells.
    ConfigError for an option that is given without its name.
    """
    if isinstance(target, type):
        for name, method in [*vars(target).items()]:
            if isinstance(method, FunctionType):
                setattr(target, name, spelled(method))
    if not isinstance(target, FunctionType):
        return target
    signature = inspect.signature(target)
    taken = [each for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD]
    match = _UNPACKED.fullmatch(str(taken[0].annotation)) if taken else None
    if match is not None:
        options = target.__globals__[match[1]].__annotations__
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_UNSET,
                annotation=kind.__forward_arg__,
            )
            for name, kind in options.items()
        ]
        target = _named_alone(target, own)
        target.__signature__ = signature.replace(parameters=own + named)  # type: ignore[attr-defined]
    return target


def _named_alone(function: Any, own: Iterable[inspect.Parameter]) -> Any:
    """The function, with a ConfigError for more values without a name than it has parameters."""
    places = [each.name for each in own if each.kind is each.POSITIONAL_OR_KEYWORD]
    shown = [name for name in places if name not in ("self", "cls")]

    def check(given: int) -> None:
        if given > len(places):
            hidden = len(places) - len(shown)
            raise ConfigError(
                f"{function.__name__}: found {given - hidden} arguments without a name, wanted at "
                f"most {len(shown)} ({', '.join(shown)}): options are given by name"
            )

    @wraps(function)
    def plain(*args: Any, **given: Any) -> Any:
        check(len(args))
        return function(*args, **given)

    @wraps(function)
    async def waiting(*args: Any, **given: Any) -> Any:
        check(len(args))
        return await function(*args, **given)

    return waiting if inspect.iscoroutinefunction(function) else plain


def renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments under our names; ConfigError for a value given under two names."""
    out: dict[str, Any] = {}
    first: dict[str, str] = {}
    for name, value in given.items():
        own = names.get(name, name)
        if own in out:
            raise ConfigError(f"{name}: found together with {first[own]}, wanted one of them")
        out[own], first[own] = value, name
    return out


@contextmanager
def as_written(given: Iterable[str], names: Mapping[str, str]) -> Iterator[None]:
    """A context manager in which a ConfigError names an argument as it was given, not as `renamed`
    calls it.
    """
    try:
        yield
    except ConfigError as error:
        own, colon, rest = str(error).partition(":")
        for name in given:
            if colon and names.get(name) == own:
                error.args = (f"{name}:{rest}",)
        raise


def refuse_resumable(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for the option `resumable` of a method whose requests always are."""
    if "resumable" in options:
        raise ConfigError(
            f"resumable: found {options['resumable']!r:.50}, wanted it left out: a prompt of None "
            "continues what this method generates (submit takes it)"
        )


def unknown(name: str, known: Iterable[str], *, place: str) -> ConfigError:
    """The error for an unknown name, with the most similar known one, or what stands for it."""
    names = sorted(known)
    close = [each for each in names if _own(each) == _own(name)] or difflib.get_close_matches(
        str(name), names, n=1, cutoff=0.81 if name in _ELSEWHERE else 0.6
    )
    if not close and name in _ELSEWHERE:
        return ConfigError(f"{name}: is not {place}; {_ELSEWHERE[name]}")
    if close:
        return ConfigError(f"{name}: is not {place}; did you mean {close[0]}?")
    return ConfigError(f"{name}: is not {place}, wanted one of {', '.join(names)}")


def _own(name: str) -> str:
    """Our name of what other libraries may call differently."""
    return OPTION_NAMES.get(name, CONFIG_NAMES.get(name, name))


def named_fields(target: type[Target]) -> type[Target]:
    """A dataclass that raises ConfigError, as `unknown` words it, for a field that it has not."""
    made = target.__init__
    known = [each.name for each in fields(target) if each.init]  # type: ignore[arg-type]

    @wraps(made)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        try:
            made(self, *args, **given)
        except TypeError:
            for name in given:
                if name not in known:
                    raise unknown(name, known, place=f"a field of {target.__name__}") from None
            raise

    target.__init__ = __init__  # type: ignore[method-assign]
    return target


def whole(name: str, value: Any, least: int) -> int:
    """An integer of any type (numpy's too) that is at least `least`; ConfigError otherwise."""
    number: int | None = None
    with suppress(TypeError):
        number = None if isinstance(value, (bool, np.bool_)) else index(value)
    if number is None or number < least:
        hint = f" ({_MINUS_ONE[name]})" if number == -1 and name in _MINUS_ONE else ""
        raise ConfigError(f"{name}: found {value!r}, wanted an integer of {least} or more{hint}")
    return number


def is_one_of(value: Any, choices: Iterable[Any]) -> bool:
    """Whether a value is one of these texts and constants; an array, which compares item by item,
    is none of them.
    """
    if isinstance(value, str):
        return value in choices
    return any(value is each for each in choices)


def listable(value: Any) -> bool:
    """Whether a value has items; an array without dimensions has none."""
    return hasattr(value, "__iter__") and getattr(value, "ndim", 1) != 0


def checked_flag(name: str, value: Any) -> bool:
    """A value that is True or False; ConfigError otherwise."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: found {value!r:.50}, wanted True or False")
    return value


def check_progress(value: Any, given: str = "(done, total)") -> None:
    """Raise ConfigError unless progress is told to a function or, with None, to nobody."""
    if value is not None and not callable(value):
        raise ConfigError(f"progress: found {value!r:.50}, wanted a function {given}")


def path_of(name: str, value: Any) -> Path:
    """A path of any type; ConfigError otherwise."""
    if not isinstance(value, (str, PathLike)):
        raise ConfigError(f"{name}: found {type(value).__name__}, wanted a path")
    return Path(value)


def seconds(name: str, value: Any) -> float:
    """A number of seconds above 0, of any type; ConfigError otherwise."""
    good = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not good or not value > 0:
        hint = f" ({_MINUS_ONE[name]})" if good and value == -1 and name in _MINUS_ONE else ""
        raise ConfigError(f"{name}: found {value!r}, wanted seconds above 0{hint}")
    return float(value)


def separated(prompt: Any, *, in_session: bool = False) -> tuple[Any, bool]:
    """(a prompt or a list of prompts, whether it is a list).

    Lists, tuples, arrays, tensors, Series and iterators of texts or of lists are prompts; those of
    integers are the token ids of one prompt. An empty one is a list of no prompts, but no tokens of
    one prompt in a session. ConfigError for a None among prompts, and for several in one session.
    """
    if (
        prompt is None
        or isinstance(prompt, (str, bytes, bytearray, memoryview, Mapping, set, frozenset))
        or not listable(prompt)
    ):
        return prompt, False
    items = prompt if isinstance(prompt, list) else list(prompt)
    # an item of a tensor is one without dimensions
    if items and hasattr(items[0], "__index__") and getattr(items[0], "ndim", 0) == 0:
        return items, False
    if any(each is None for each in items):
        raise ConfigError(
            f"prompt: found None in a list of {len(items)}, wanted texts or token ids (None alone "
            "continues the last session)"
        )
    if in_session and len(items) > 1:
        raise ConfigError(
            f"prompt: found {len(items)} prompts for one session, wanted one; `Session.fork` gives "
            "a session for each"
        )
    return items, bool(items) or not in_session


def _index(token: Any) -> int:
    if isinstance(token, bool):
        raise TypeError("a bool")
    return index(token)


_MESSAGES = " (messages: chat)"  # what takes what is no prompt


def checked_ids(
    prompt: Iterable[int],
    vocab_size: int | None = None,
    *,
    name: str = "prompt",
    wanted: str = "a string or token ids",
    media: bool = False,
) -> list[int]:
    """The token ids of a prompt, each within a vocabulary of that size. ConfigError for any other
    value, and for images or audio unless the caller takes them besides; nothing is rounded or
    parsed.
    """
    # an `ImagePrompt`, which is of a higher layer
    if not media and isinstance(prompt, list) and getattr(prompt, "media", None):
        raise ConfigError(f"{name}: found a prompt with images or audio, wanted {wanted} alone")
    if isinstance(prompt, (str, bytes, bytearray, memoryview, Mapping, Set)):
        hint = _MESSAGES if isinstance(prompt, Mapping) and "role" in prompt else ""
        raise ConfigError(f"{name}: found {type(prompt).__name__}, wanted {wanted}{hint}")
    try:
        given = list(prompt)
    except TypeError:
        raise ConfigError(f"{name}: found {type(prompt).__name__}, wanted {wanted}") from None
    # as tokenizers give them: no closer look is needed
    plain = set(map(type, given)) <= {int}
    ids = given if plain else []
    for at, token in enumerate(() if plain else given):
        try:
            ids.append(_index(token))
        except TypeError:
            hint = " (many texts: generate and embed_batch)" if isinstance(token, str) else ""
            if isinstance(token, Mapping) and "role" in token:
                hint = _MESSAGES
            raise ConfigError(
                f"{name}[{at}]: found {type(token).__name__} {token!r:.50}, wanted a token id{hint}"
            ) from None
    if vocab_size is not None and ids and (min(ids) < 0 or max(ids) >= vocab_size):
        at = next(at for at, token in enumerate(ids) if not 0 <= token < vocab_size)
        raise ConfigError(f"{name}[{at}]: found token {ids[at]}, wanted 0 to {vocab_size - 1}")
    return ids
