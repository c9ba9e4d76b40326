"""llama-cpp-python's `Llama` on this engine: the same calls, with results of the same form.

    from oxillama.compat.llama_cpp import Llama      # was: from llama_cpp import Llama
    llm = Llama(model_path="model.gguf", n_ctx=4096)
    llm("Q: Name the planets. A:", max_tokens=32, stop=["Q:"])["choices"][0]["text"]

Its defaults are llama-cpp-python's (n_ctx 512, completions of 16 tokens, temperature 0.8, in chats
0.2); random draws are this engine's own. Anything not supported here is refused by name
(`ConfigError`). Arguments about memory and devices that cannot change a result on a CPU
(`use_mmap`, `offload_kqv`, `flash_attn`, `n_ubatch`, `no_perf`, `verbose`) are accepted and have no
effect.
"""

from __future__ import annotations

import os
import random
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any, ParamSpec, Self, TypedDict, Unpack, cast

import numpy as np

import oxillama
from oxillama.arguments import checked_ids, spelled, unknown, whole
from oxillama.chat import TEMPLATE_KEY
from oxillama.compat import constants, facts, handlers, shapes, types
from oxillama.compat.arguments import (
    COMPLETION,
    HINTS,
    NO_CUTS,
    OF_HUB,
    POOLINGS,
    REFUSED,
    SAMPLING,
    TEMPLATES,
    biases_of,
    check_flags,
    criteria_of,
    functions_as_tools,
    given_seed,
    grammar_of,
    is_negative,
    messages_of,
    processors_of,
    refuse,
    room_in_arguments,
    texts_of,
)
from oxillama.compat.constants import *  # noqa: F403 - programs import the numbers from here
from oxillama.compat.facts import *  # noqa: F403
from oxillama.compat.facts import __version__ as __version__  # for type checkers
from oxillama.compat.handlers import *  # noqa: F403
from oxillama.compat.handlers import MTMDChatHandler
from oxillama.compat.loading import check_loading, engine_options
from oxillama.compat.objects import (
    ANY_SEED,
    LlamaCache,
    LlamaDiskCache,
    LlamaGrammar,
    LlamaHFTokenizer,
    LlamaPromptLookupDecoding,
    LlamaRAMCache,
    LlamaState,
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    Stopping,
    StoppingCriteria,
    StoppingCriteriaList,
)
from oxillama.compat.types import *  # noqa: F403
from oxillama.engine.generation import sampler_of
from oxillama.engine.session import Session
from oxillama.errors import ConfigError, EngineError, TemplateError
from oxillama.grammar import Grammar
from oxillama.sampling import Sampler
from oxillama.stores import located
from oxillama.tokenizer import TextOffsets

__all__ = [
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaHFTokenizer",
    "LlamaPromptLookupDecoding",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
    "install",
]
__all__ += [*constants.__all__, *facts.__all__, *handlers.__all__, *types.__all__]

# `from llama_cpp.llama_speculative import ...`: what these modules have stands in this one
_MODULES = (
    *("llama", "llama_cache", "llama_chat_format", "llama_cpp", "llama_grammar"),
    *("llama_speculative", "llama_tokenizer", "llama_types"),
)
for _name in _MODULES:
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = sys.modules[__name__]


def install() -> None:
    """Make `import llama_cpp` mean this module, for libraries that import it themselves.

    EngineError if llama-cpp-python has been imported before.
    """
    this = sys.modules[__name__]
    if sys.modules.get("llama_cpp", this) is not this:
        raise EngineError("install: llama_cpp is imported already, wanted the call before it")
    sys.modules["llama_cpp"] = this
    for name in _MODULES:
        sys.modules[f"llama_cpp.{name}"] = this


P = ParamSpec("P")


def _called_like(other: Callable[P, Any]) -> Callable[[Callable[..., Any]], Callable[P, Any]]:
    """Gives a method the parameters of another one, for editors and `help`."""

    def same(method: Callable[..., Any]) -> Callable[P, Any]:
        method.__signature__ = signature(other)  # type: ignore[attr-defined]
        return cast(Callable[P, Any], method)

    return same


class LlamaTokenizer:
    """The vocabulary of a `Llama`, for texts instead of bytes."""

    def __init__(self, llama: Llama) -> None:
        self._llama = llama

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """`Llama.tokenize`, with control tokens recognised."""
        return self._llama.tokenize(text, add_bos, special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """`Llama.detokenize`."""
        return self._llama.detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of a text."""
        return self.tokenize(text.encode(), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without bytes that are no characters."""
        return self.detokenize(tokens).decode("utf-8", "ignore")


class LlamaOptions(TypedDict, total=False):
    """The keyword arguments of `Llama.from_pretrained`: those of `Llama` without the path."""

    n_ctx: int
    n_batch: int | None
    n_threads: int | None
    n_threads_batch: int | None
    seed: int
    vocab_only: bool
    rope_scaling_type: int | None
    pooling_type: int
    rope_freq_base: float
    rope_freq_scale: float
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int
    lora_path: str | os.PathLike[str] | None
    lora_scale: float
    logits_all: bool
    embedding: bool
    last_n_tokens_size: int
    chat_format: str | None
    chat_handler: MTMDChatHandler | None
    draft_model: LlamaPromptLookupDecoding | None
    type_k: int | None
    type_v: int | None
    f16_kv: bool
    verbose: bool


class Llama:
    """A model, with llama-cpp-python's methods. Pickling one pickles the arguments it was made
    with: the model is loaded again where it is read.
    """

    _given: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        made._given = (arguments, options)
        return made

    def __reduce__(self) -> Any:
        arguments, options = self._given
        return partial(type(self), *arguments, **options), ()

    def __repr__(self) -> str:
        return f"<Llama {self.model_path!r}{', closed' if self._closed else ''}>"

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        n_ctx: int = 512,
        n_batch: int | None = None,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        seed: int = ANY_SEED,
        vocab_only: bool = False,
        rope_scaling_type: int | None = -1,
        pooling_type: int = -1,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        lora_path: str | os.PathLike[str] | None = None,
        lora_scale: float = 1.0,
        logits_all: bool = False,
        embedding: bool = False,
        last_n_tokens_size: int = 64,
        chat_format: str | None = None,
        chat_handler: MTMDChatHandler | None = None,
        draft_model: LlamaPromptLookupDecoding | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        f16_kv: bool = True,
        verbose: bool = True,
        **more: Any,
    ) -> None:
        """n_ctx=0 is the model's own context. logits_all: `eval` keeps the logits of every token in
        `scores`. embedding: allows `embed` and `create_embedding`. f16_kv: False is the older name
        of `type_k` and `type_v` GGML_TYPE_F32, which LangChain still gives. verbose: nothing is
        ever printed.
        """
        given = locals()
        _check_more(more)
        check_loading(given)
        self.model_path = os.fspath(model_path)
        self.verbose, self.chat_format = verbose, chat_format
        self.chat_handler = chat_handler
        self._seed = given_seed(seed)
        self._logits_all, self._embedding = logits_all, embedding
        self._pooling_type, self.last_n_tokens_size = pooling_type, last_n_tokens_size
        self.draft_model = draft_model
        self._speculative = "lookup" if draft_model is not None else None
        self.cache: LlamaRAMCache | None = None
        self._rows: np.ndarray | None = None
        self._rows_of: list[int] = []  # the tokens that these are the logits of
        self._session: Any = None
        self._engine: oxillama.InferenceEngine | None = None
        self._closed = False
        path = located(self.model_path)
        self._reader = oxillama.gguf.GgufReader(path)
        self.metadata = {  # what is no list, as text
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key in self._reader.metadata
            if not hasattr(value := self._reader.metadata[key], "__len__") or isinstance(value, str)
        }
        self._bridge = oxillama.TokenizerBridge.from_metadata(self._reader.metadata)
        if vocab_only:
            return
        self._engine = oxillama.load(path, **engine_options(given))
        if lora_path is not None:
            try:
                self._engine.apply_lora(os.fspath(lora_path), lora_scale)
            except BaseException:
                self._engine.close()
                raise
        if chat_format is not None:
            self._engine.loaded.use_template(TEMPLATES[chat_format])

    @classmethod
    @spelled
    def from_pretrained(
        cls, repo_id: str, filename: str | None = None, **options: Unpack[LlamaOptions]
    ) -> Llama:
        """A model of the Hugging Face hub; filename may be a pattern ("*Q4_K_M.gguf"). It is kept
        in the hub's own cache folder.
        """
        for name, only in OF_HUB:
            refuse(name, options.pop(name, only), only)  # type: ignore[misc]
        # before it is fetched
        _check_more({name: options[name] for name in options.keys() - LlamaOptions.__annotations__})  # type: ignore[literal-required]
        return cls(model_path=str(located(f"hf://{repo_id}", file=filename)), **options)

    # ---- the model

    @property
    def engine(self) -> oxillama.InferenceEngine:
        """The engine; EngineError if only the vocabulary was loaded, or after `close`."""
        if self._closed:
            raise EngineError("Llama: is closed")
        if self._engine is None:
            raise EngineError("Llama: has no model in memory, wanted vocab_only=False")
        return self._engine

    @property
    def context_params(self) -> SimpleNamespace:
        """`n_ctx`, which LlamaIndex reads here."""
        return SimpleNamespace(n_ctx=self.n_ctx())

    def n_ctx(self) -> int:
        """Tokens of the context."""
        return self.engine.context_size

    def n_embd(self) -> int:
        """Numbers of an embedding."""
        return self.engine.config.hidden_size

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self._bridge.vocab_size

    @property
    def n_batch(self) -> int:
        """Tokens of a prompt that a step evaluates."""
        return self.engine.engine_config.scheduling().prefill_chunk

    def tokenizer(self) -> LlamaTokenizer:
        """The vocabulary, for texts."""
        return LlamaTokenizer(self)

    def token_bos(self) -> int:
        """The token that begins a text, -1 for none."""
        return -1 if self._bridge.bos_id is None else self._bridge.bos_id

    def token_eos(self) -> int:
        """The token that ends a text, -1 for none."""
        return -1 if self._bridge.eos_id is None else self._bridge.eos_id

    def token_nl(self) -> int:
        """The newline token, -1 for none."""
        ids = self._bridge.encode("\n", add_special=False, parse_special=False)
        return ids[-1] if ids else -1

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of UTF-8 bytes. special: recognise control tokens in them."""
        if not isinstance(text, (bytes, bytearray)):
            raise ConfigError(f"tokenize: found {type(text).__name__}, wanted bytes")
        try:
            words = bytes(text).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"tokenize: byte {error.start} is not UTF-8, wanted text in UTF-8"
            ) from None
        return self._bridge.encode(words, add_special=add_bos, parse_special=special)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """The bytes of tokens, without the space that some vocabularies put before a text.

        prev_tokens: the tokens before, so that the first of these begins no text. special: write
        control tokens as text.
        """
        tokens = checked_ids(tokens, name="tokens", wanted="token ids")
        parts = []
        for token in tokens:
            control = special and self._bridge.is_special(token)
            name = self._bridge.token_text(token).encode() if control else b""
            parts.append(name or self._bridge.token_bytes(token))
        data = b"".join(parts)
        if prev_tokens is not None and not hasattr(prev_tokens, "__len__"):
            raise ConfigError(f"prev_tokens: found {type(prev_tokens).__name__}, wanted token ids")
        first = prev_tokens is None or len(prev_tokens) == 0
        begins = first and len(tokens) > 0 and tokens[0] == self.token_bos()
        return data[1:] if begins and data.startswith(b" ") else data

    def _data(self, token: int) -> bytes:
        return self.detokenize([token], prev_tokens=[0], special=True)

    def _spelled(self, token: int) -> str:
        return self._data(token).decode("utf-8", "replace")

    # ---- completions

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = (),
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: StoppingCriteria | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[Any, float] | None = None,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """The completion of a prompt; with `stream` its pieces.

        The `text_offset` of log-probabilities counts from the beginning of the prompt.
        """
        given = locals()
        refuse("suffix", suffix, None)
        check_flags(echo=echo, stream=stream)
        options = self._options({name: given[name] for name in COMPLETION})
        stopping, criteria = None, criteria_of(stopping_criteria)
        if criteria is not None:
            stopping = Stopping(criteria)
            options["processors"] = [stopping, *options.get("processors", ())]
        options["logprobs"] = logprobs
        if echo and logprobs is not None:
            options["prompt_logprobs"] = logprobs
        ids = self._ids(prompt)
        frame = shapes.Frame("text_completion", "cmpl", model or self.model_path)
        told = (
            prompt if isinstance(prompt, str) else self.detokenize(ids).decode("utf-8", "replace")
        )
        text = told if echo else ""
        if stream:
            return self._pieces(frame, ids, told, echo, logprobs, stopping, options)
        with self._streamed(ids, options) as pieces:
            if stopping is not None:
                stopping.watch(pieces.request)
            done = pieces.completion
        self._follow()
        found = None
        if logprobs is not None:
            offsets = TextOffsets(self._bridge, before=() if echo else ids)
            found = shapes.joined(
                self._of_prompt(ids if echo else (), done.prompt_logprobs, offsets),
                shapes.text_logprobs(
                    done.logprobs,
                    self._spelled,
                    offsets,
                    top=logprobs,
                    start=0 if echo else len(told),
                ),
            )
        rest = self._held_back(ids, done, len(done.text))
        reason = _reason(done.finish_reason)
        whole = frame(text=text + done.text + rest, logprobs=found, finish_reason=reason)
        return {**whole, "usage": shapes.usage(done)}

    @_called_like(create_completion)
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """`create_completion`."""
        return self.create_completion(*arguments, **options)

    def _pieces(
        self,
        frame: shapes.Frame,
        ids: list[int],
        told: str,
        echo: bool,
        logprobs: int | None,
        stopping: Stopping | None,
        options: dict[str, Any],
    ) -> Iterator[dict[str, Any]]:
        shown, offsets = 0, TextOffsets(self._bridge, before=() if echo else ids)
        start = 0 if echo else len(told)
        if echo and told and logprobs is None:
            yield frame(text=told, logprobs=None, finish_reason=None)
        with self._streamed(ids, options) as pieces:
            if stopping is not None:
                stopping.watch(pieces.request)
            self._follow()
            for at, piece in enumerate(pieces):
                if echo and logprobs is not None and not at:
                    # all of them are known once it has begun to draw
                    request: Any = pieces.request
                    scores = tuple(request.prompt_logprobs)
                    begun = self._of_prompt(ids, scores, offsets)
                    yield frame(text=told, logprobs=begun, finish_reason=None)
                text, found = piece.text, None
                shown += len(text)
                if piece.finish_reason is not None:
                    text += self._held_back(ids, pieces.completion, shown)
                if logprobs is not None:
                    found = shapes.text_logprobs(
                        piece.logprobs, self._spelled, offsets, top=logprobs, start=start
                    )
                yield frame(text=text, logprobs=found, finish_reason=_reason(piece.finish_reason))

    def _of_prompt(
        self, ids: Sequence[int], scores: Sequence[Any], offsets: TextOffsets
    ) -> dict[str, list[Any]]:
        """The log-probabilities of an echoed prompt."""
        bos = self.token_bos()
        return shapes.prompt_logprobs(ids, scores, self._spelled, offsets, bos=bos)

    def _held_back(self, ids: list[int], done: Any, shown: int) -> str:
        """The end of a text that its stopping criteria ended, which the engine held back because a
        stop string might begin there.
        """
        if done.finish_reason != "cancelled":
            return ""
        if all(map(self._bridge.is_special, ids)):
            return self._bridge.decode(done.tokens)[shown:]
        return self.detokenize(done.tokens, prev_tokens=ids).decode("utf-8", "replace")[shown:]

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: Any = None,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        grammar: LlamaGrammar | None = None,
        logit_bias: Mapping[Any, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        tool_format: str | None = None,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """The reply to a conversation; with `stream` its pieces.

        tool_format: the notation of calls (None: the template's, or Hermes if it teaches none), an
        option that llama-cpp-python does not have.
        """
        given = locals()
        check_flags(stream=stream, logprobs=logprobs)
        if self.chat_format is None and TEMPLATE_KEY not in self._reader.metadata:
            raise TemplateError(
                f"chat_format: found None and a file without {TEMPLATE_KEY}, wanted one of "
                f"{', '.join(TEMPLATES)}"
            )
        messages = messages_of(messages)
        options = self._options({name: given[name] for name in COMPLETION})
        if top_logprobs and not logprobs:
            raise ConfigError(
                f"top_logprobs: found {top_logprobs!r} without logprobs=True, wanted both"
            )
        tools, tool_choice = functions_as_tools(functions, function_call, tools, tool_choice)
        of_chat = {
            "tools": tools,
            "tool_choice": tool_choice,
            "tool_format": tool_format,
            "response_format": response_format,
            "logprobs": (top_logprobs or 0) if logprobs else None,
            # `function_call` holds a single call
            "parallel_tool_calls": False if functions else None,
        }
        options |= {name: value for name, value in of_chat.items() if value is not None}
        name = model or self.model_path
        legacy, top = functions is not None, top_logprobs or 0
        if stream:
            frame = shapes.Frame("chat.completion.chunk", "chatcmpl", name)
            return self._chunks(frame, messages, options, top, legacy=legacy)
        frame = shapes.Frame("chat.completion", "chatcmpl", name)
        with room_in_arguments():
            begun = self.engine.chat(messages, stream=True, **options)
        with closing(begun):
            events = list(begun)
        self._follow()
        done, calls = events[-1].completion, shapes.Calls()
        content = done.content + "".join(map(calls.take, events))
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls.found:
            message["content"] = content or None
            message["tool_calls"] = calls.entries(frame)
            if legacy:
                message["function_call"] = message["tool_calls"][0]["function"]
        if done.reasoning:
            message["reasoning_content"] = done.reasoning
        found = shapes.chat_logprobs(done.logprobs, self._data, top=top) if logprobs else None
        reason = _chat_reason(done.finish_reason, legacy)
        return {
            **frame(message=message, logprobs=found, finish_reason=reason),
            "usage": shapes.usage(done),
        }

    def _chunks(
        self,
        frame: shapes.Frame,
        messages: Sequence[Mapping[str, Any]],
        options: dict[str, Any],
        top: int,
        *,
        legacy: bool,
    ) -> Iterator[dict[str, Any]]:
        yield frame(delta={"role": "assistant"}, logprobs=None, finish_reason=None)
        with room_in_arguments():
            begun = self.engine.chat(messages, stream=True, **options)
        with closing(begun) as events:
            self._follow()
            calls = shapes.Calls()
            for event in events:
                found = None
                if event.logprobs:
                    found = shapes.chat_logprobs(event.logprobs, self._data, top=top)
                delta = _delta(event, legacy, frame)
                if text := calls.take(event):
                    delta = {"content": text}
                reason = _chat_reason(event.finish_reason, legacy)
                if delta or reason or found:
                    yield frame(delta=delta, logprobs=found, finish_reason=reason)

    @_called_like(create_chat_completion)
    def create_chat_completion_openai_v1(self, *arguments: Any, **options: Any) -> Any:
        """`create_chat_completion` with results of the classes of the package `openai`."""
        try:
            from openai.types.chat import ChatCompletion, ChatCompletionChunk
        except ImportError as error:
            raise ImportError(
                "create_chat_completion_openai_v1: needs the package openai (`pip install openai`)"
            ) from error
        made = self.create_chat_completion(*arguments, **options)
        if isinstance(made, dict):
            return ChatCompletion(**made)
        return (ChatCompletionChunk(**chunk) for chunk in made)

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        """The engine's options for the arguments of both kinds of completions."""
        refuse("tfs_z", given.pop("tfs_z"), 1.0)
        grammar = grammar_of(given.pop("grammar"))
        processors = processors_of(given.pop("logits_processor"))
        bias, seed = given.pop("logit_bias"), given.pop("seed")
        limit = given.pop("max_tokens")
        if given["mirostat_mode"]:
            given |= NO_CUTS
        if is_negative(given["top_k"]):
            given["top_k"] = 0
        if is_negative(given["temperature"]):
            given["temperature"] = 0.0
        given["stop"] = () if given["stop"] is None else given["stop"]
        options = {
            **given,
            "repeat_last_n": self.last_n_tokens_size,
            "max_tokens": None if limit == 0 or is_negative(limit) else limit,
            "seed": self._next_seed() if seed is None else given_seed(seed),
        }
        if grammar is not None:
            options["grammar"] = grammar
        if processors:
            options["processors"] = processors
        if bias is not None:
            options["logit_bias"] = biases_of(bias)
        if self._speculative is not None:
            options["speculative"] = self._speculative
        return options

    def _streamed(self, ids: Sequence[int], options: dict[str, Any]) -> oxillama.Stream[Any]:
        with room_in_arguments():
            return self.engine.stream(ids, **options)

    def _ids(self, prompt: str | Sequence[int], name: str = "prompt") -> list[int]:
        if isinstance(prompt, str):
            ids = self.engine.tokenize(prompt)
            return ids or [self.token_bos()]
        if isinstance(prompt, (bytes, Mapping)) or not hasattr(prompt, "__iter__"):
            raise ConfigError(f"{name}: found {type(prompt).__name__}, wanted text or token ids")
        return [*prompt]

    # ---- embeddings

    def embed(
        self,
        input: str | list[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """The vector of a text, or of each text of a list; a list of vectors, one per token, for
        models without pooling. With `truncate`, texts longer than the context are cut.
        """
        if not self._embedding:
            raise EngineError("embed: found embedding=False, wanted Llama(..., embedding=True)")
        texts = texts_of(input)
        limit = self.n_ctx()
        ids = [self._ids(text, f"input[{at}]") for at, text in enumerate(texts)]
        if not truncate and any(len(each) > limit for each in ids):
            most = max(map(len, ids))
            raise oxillama.ContextError(
                f"embed: found {most} tokens, wanted at most {limit}", tokens=most, limit=limit
            )
        ids = [each[:limit] for each in ids]
        vectors = self.engine.embed_batch(ids, pooling=self._pooling(), normalize=normalize)
        found = [each.tolist() for each in vectors]
        out = found[0] if isinstance(input, str) else found
        return (out, sum(map(len, ids))) if return_count else out

    def create_embedding(self, input: str | list[str], model: str | None = None) -> dict[str, Any]:
        """Embeddings in OpenAI's form."""
        texts = texts_of(input)
        vectors, count = self.embed(texts, return_count=True)
        data = [
            {"object": "embedding", "embedding": vector, "index": at}
            for at, vector in enumerate(vectors)
        ]
        return {
            "object": "list",
            "data": data,
            "model": model or self.model_path,
            "usage": {"prompt_tokens": count, "total_tokens": count},
        }

    def pooling_type(self) -> int:
        """The pooling of embeddings, one of LLAMA_POOLING_TYPE_*."""
        if self._pooling_type != constants.LLAMA_POOLING_TYPE_UNSPECIFIED:
            return self._pooling_type
        arch = self._reader.metadata.get("general.architecture")
        return int(self._reader.metadata.get(f"{arch}.pooling_type") or 0)

    def _pooling(self) -> str:
        kind = self.pooling_type()
        if kind not in POOLINGS:
            raise ConfigError(f"pooling_type: found {kind}, wanted one of {list(POOLINGS)}")
        return POOLINGS[kind]

    # ---- the state

    @property
    def n_tokens(self) -> int:
        """Tokens of the session."""
        return 0 if self._session is None else len(self._session)

    @property
    def input_ids(self) -> np.ndarray:
        """The session's tokens, intc (n_tokens,)."""
        tokens = [] if self._session is None else self._session.tokens
        return np.array(tokens, np.intc)

    @property
    def scores(self) -> np.ndarray:
        """Logits after the session's tokens, float32 (n_tokens, n_vocab): of every token with
        `logits_all`, otherwise only of the last one, in its row, with 0 elsewhere.
        """
        kept = self._kept()
        count = 0 if kept is None else len(self._rows_of)
        rows = np.zeros((count, self.engine.config.vocab_size), np.float32)
        if kept is not None:
            rows[count - len(kept) :] = kept
        return rows

    @property
    def eval_tokens(self) -> deque[int]:
        """The session's tokens."""
        return deque(self.input_ids.tolist(), maxlen=self.n_ctx())

    @property
    def eval_logits(self) -> deque[list[float]]:
        """The same logits: of every token with `logits_all`, otherwise of the last."""
        kept = self._kept()
        rows = [] if kept is None else kept.tolist()
        return deque(rows, maxlen=self.n_ctx() if self._logits_all else 1)

    def _kept(self) -> np.ndarray | None:
        """The logits after the last tokens of the session; those of a completion, which keeps
        none, are made again. None if there are no tokens.
        """
        # of a completion that is read while it streams, more come
        tokens = [] if self._session is None else [*self._session.tokens]
        if tokens != self._rows_of:
            self._rows = None
        if self._rows is None and tokens:
            if self._logits_all:
                self._keep(self.engine.logits(tokens), tokens)
            else:
                with self._session.fork() as again:
                    self._keep(self._last_row(again), tokens)
        return self._rows

    def _keep(self, rows: np.ndarray, tokens: Sequence[int]) -> None:
        """Keep the logits after the last of these tokens."""
        self._rows, self._rows_of = rows, [*tokens]

    def _last_row(self, session: Session) -> np.ndarray:
        """The logits after a session's last token, (1, vocabulary), made again."""
        last, source = len(session) - 1, session.target
        again = session.tokens[:source] if source == last else session.tokens[last:]
        session.truncate(0 if source == last else last)
        return self.engine.prefill(again, session=session)[None]

    def reset(self) -> None:
        """Drop the session."""
        self._session = self._rows = None

    def set_seed(self, seed: int) -> None:
        """Completions without a seed get one after another from this one; -1 draws each anew."""
        self._seed = given_seed(seed)

    def _next_seed(self) -> int | None:
        """The seed of a completion without one: it differs from that of the one before."""
        if self._seed is not None:
            self._seed = random.Random(self._seed).getrandbits(32)
        return self._seed

    def set_cache(self, cache: Any) -> None:
        """Stored prefixes belong to the engine and are always on; None and a LlamaRAMCache are
        accepted and change nothing.
        """
        if not isinstance(cache, LlamaRAMCache):
            refuse("cache", cache, None)
        self.cache = cache

    def eval(self, tokens: Sequence[int]) -> None:
        """Append tokens to the session and evaluate them."""
        ids = checked_ids(tokens, name="tokens", wanted="token ids")
        if not ids:
            return
        if self._session is None:
            self._session, self._rows = self.engine.session(), None
        if self._logits_all:
            rows = self.engine.logits([*self._session.tokens, *ids])
            self.engine.prefill(ids, session=self._session)
        else:
            rows = self.engine.prefill(ids, session=self._session)[None]
        self._keep(rows, self._session.tokens)

    def sample(
        self,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_eta: float = 0.1,
        mirostat_tau: float = 5.0,
        penalize_nl: bool = True,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        grammar: LlamaGrammar | str | None = None,
        idx: int | None = None,
        *,
        seed: int | None = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> int:
        """A token drawn from the logits after the last `eval`, or after token `idx` of the session;
        the session does not change. A grammar is asked about its first token.
        """
        given = locals()
        refuse("tfs_z", tfs_z, 1.0)
        refuse("penalize_nl", penalize_nl, True)
        rows = self._kept()
        if rows is None:
            raise EngineError("sample: found no logits, wanted eval first")
        first = self.n_tokens - len(rows)
        at = self.n_tokens - 1 if idx is None else whole("idx", idx, 0)
        if not first <= at < self.n_tokens:
            raise EngineError(
                f"sample: found idx {idx}, and the logits of tokens {first} to "
                f"{self.n_tokens - 1}, wanted one of those; `logits_all` keeps more"
            )
        rules = grammar_of(grammar)
        sampler = self._sampler(given, self._seed if seed is None else given_seed(seed))
        mask = None if rules is None else self._state_of(rules).mask()
        return sampler.sample(rows[at - first], mask)

    def _state_of(self, rules: Grammar) -> Any:
        """The state of a grammar before its first token."""
        return self.engine.loaded.required_vocabulary.masker.state(rules)

    def _sampler(self, given: Mapping[str, Any], seed: int | None) -> Sampler:
        """A sampler, by the arguments of `sample` and `generate`, that has seen the session's
        tokens.
        """
        fields = {ours: given[theirs] for theirs, ours in SAMPLING.items()}
        if is_negative(fields["top_k"]):
            fields["top_k"] = 0
        if fields["mirostat"]:
            fields |= NO_CUTS
        bias = given["logit_bias"]
        config = oxillama.SamplerConfig(
            repetition_window=self.last_n_tokens_size,
            logit_bias={} if bias is None else biases_of(bias),
            seed=seed,
            **fields,
        )
        made = sampler_of(
            config,
            self.engine.loaded.required_vocabulary,
            self.engine.config.vocab_size,
            seed=config.seed,
            processors=processors_of(given["logits_processor"]),
        )
        if self._session is not None:
            made.accept_prompt(self.input_ids[self._session.target :])
        return made

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        stopping_criteria: StoppingCriteria | None = None,
        grammar: LlamaGrammar | str | None = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        """Tokens after those given, one by one, until the stopping criteria are met or the context
        is full; the caller stops at `token_eos()`. Tokens that are sent to the generator are
        appended after the token yielded last, and no grammar is asked about them.

        reset: begin a new session; stored prefixes are used in any case.
        """
        given = locals()
        refuse("tfs_z", tfs_z, 1.0)
        refuse("penalize_nl", penalize_nl, True)
        over, rules = criteria_of(stopping_criteria), grammar_of(grammar)
        state = None if rules is None else self._state_of(rules)
        if reset:
            self.reset()
        self.eval(tokens)
        sampler = self._sampler(given, self._seed)
        while self._rows is not None and self.n_tokens < self.n_ctx():
            row = self._rows[-1]
            if over is not None and over(self.input_ids, row.copy()):
                return
            token = sampler.sample(row, None if state is None else state.mask())
            sampler.accept(token)
            if state is not None:
                self.engine.loaded.required_vocabulary.masker.advance(state, token)
            more = yield token
            sent = [] if more is None else [*more]
            sampler.accept_prompt(sent)
            self.eval([token, *sent])

    def save_state(self) -> LlamaState:
        """The session, to be continued later."""
        seed = ANY_SEED if self._seed is None else self._seed
        if self._session is None:
            return LlamaState(np.zeros(0, np.intc), 0, b"", seed=seed)
        sampler = self._session.sampler
        processors = () if sampler is None else tuple(sampler.processors)
        data = self._session.snapshot()
        return LlamaState(self.input_ids, self.n_tokens, data, processors, seed)

    def load_state(self, state: LlamaState) -> None:
        """Continue a saved session of this model."""
        if not isinstance(state, LlamaState):
            raise ConfigError(f"load_state: found {type(state).__name__}, wanted a LlamaState")
        self.reset()
        self.set_seed(state.seed)
        if not state.llama_state:
            return
        self._session = self.engine.restore(state.llama_state, processors=state.processors)
        # logits are no part of a state: those of the last token are made again
        if self._session.tokens:
            self._keep(self._last_row(self._session), self._session.tokens)

    def _follow(self) -> None:
        """Make the session of the last completion the current one."""
        self._session, self._rows = (
            self.engine.loaded.last_session("Llama: there is no session"),
            None,
        )

    @staticmethod
    def logits_to_logprobs(logits: Any, axis: int = -1) -> np.ndarray:
        """Log-probabilities of logits, float32 of the same shape."""
        rows = np.asarray(logits, np.float32)
        shifted = rows - rows.max(axis=axis, keepdims=True)
        shares: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        return shares

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Tokens that two sequences begin with in common."""
        return next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))

    def close(self) -> None:
        """Free the model; safe to call twice."""
        engine, self._engine, self._closed = self._engine, None, True
        self.reset()
        if engine is not None:
            engine.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_more(more: Mapping[str, Any]) -> None:
    """Raise ConfigError for arguments that are unknown or not supported here."""
    refused = dict(REFUSED)
    for name, value in more.items():
        if name in refused:
            refuse(name, value, refused[name])
        elif name not in HINTS:
            own = [each for each in signature(Llama.__init__).parameters if each != "self"]
            raise unknown(name, (*own[:-1], *refused, *HINTS), place="an argument of Llama")


def _reason(reason: str | None) -> str | None:
    """Why a text ended; only stopping criteria cancel."""
    return "stop" if reason == "cancelled" else reason


def _chat_reason(reason: str | None, legacy: bool) -> str | None:
    return "function_call" if reason == "tool_calls" and legacy else reason


def _delta(event: Any, legacy: bool, frame: shapes.Frame) -> dict[str, Any]:
    """The delta of a chunk for an event of a chat."""
    if event.kind == "content":
        return {"content": event.text}
    if event.kind == "reasoning":
        return {"reasoning_content": event.reasoning}
    if event.kind not in ("call", "arguments"):
        return {}
    begun = event.kind == "call"
    function = {"name": event.name if begun else None, "arguments": event.arguments}
    if legacy:
        return {"function_call": function}
    head = {"index": event.index, "type": "function", "function": function}
    return {"tool_calls": [{**head, "id": frame.call_id(event.index)} if begun else head]}
