"""The public API: load a GGUF file, then generate, stream, chat, embed, or ask for logits. Every
method may be called from any thread.

`InferenceEngine(EngineConfig(...)).load_model()` and `oxillama.load(...)` make the same object.
Requests run in the engine's own thread, many of them in one step, and each gets the tokens it would
get alone. The caller only waits, so Ctrl-C and `stream.close()` take effect at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, overload

import numpy as np

from oxillama._core.kernels import cpu_info
from oxillama.arguments import (
    checked_flag,
    checked_ids,
    listable,
    path_of,
    refuse_resumable,
    separated,
    spelled,
    whole,
)
from oxillama.completion import Completion, Piece
from oxillama.embedded import embedded_path
from oxillama.engine.beam import BeamHypothesis, BeamSearchConfig, make_beams
from oxillama.engine.config import ConfigOptions, EngineConfig
from oxillama.engine.embedding import (
    Pooler,
    PoolingMode,
    RankedDocument,
    all_logits,
    all_pooled,
    batch_of,
    pairs_of,
    ranked,
    scored_label,
    stacked,
    submit_embedding,
)
from oxillama.engine.generation import make_request
from oxillama.engine.metrics import MetricsSnapshot
from oxillama.engine.raw import RawLoop, diagnose
from oxillama.engine.request import GenerateRequest, Request, all_finished, finished
from oxillama.engine.session import Session
from oxillama.engine.siblings import Siblings, make_siblings
from oxillama.engine.stream import Stream
from oxillama.errors import (
    ConfigError,
    ContextError,
    EmptySequence,
    EngineError,
    QueueFull,
    TokenizerError,
    not_pickled,
)
from oxillama.loaded import Loaded, Prompt, PromptList, SinglePrompt
from oxillama.lora.fit import Lora
from oxillama.lora.stack import LoraStack, checked_scale
from oxillama.media.features import Kind
from oxillama.media.prompt import ImagePrompt
from oxillama.media_prompts import no_encoder
from oxillama.model.record import ModelConfig
from oxillama.model.reference import Difference
from oxillama.opening import Progress
from oxillama.options import (
    ChatOptions,
    GenerateOptions,
    Options,
    Several,
    SingleChatOptions,
    SingleOptions,
)
from oxillama.sampling import SamplerConfig
from oxillama.snapshot.prefixes import load_prefixes, save_prefixes
from oxillama.snapshot.session import EngineSnapshot
from oxillama.stores import located
from oxillama.tokenizer import TokenizerBridge
from oxillama.toolcalls import ChatEvent, ToolCallFormat
from oxillama.transcription import (
    Transcript,
    shown_tokens,
    transcript,
    transcription_prompt,
)

__all__ = ["EngineConfig", "InferenceEngine", "cpu_info", "load", "load_model_from_bytes"]


Maker = Callable[..., Request | Siblings]
Made = TypeVar("Made")


@spelled
def load(
    model_path: str | Path | None = None,
    *,
    file: str | None = None,
    progress: Progress | None = None,
    **config: Unpack[ConfigOptions],
) -> InferenceEngine:
    """An engine with a model loaded; without a path, the embedded model. Keyword arguments are the
    fields of `EngineConfig`.

    A path is a GGUF file, a folder with one, or a Hugging Face folder, which is converted once into
    the cache folder. `owner/name` is a repository on the Hugging Face hub (extra `hub`), and `file`
    selects one of its files ("*Q4_K_M.gguf"); the image encoder beside it comes too, unless
    `mmproj` is given, or False. `ollama:NAME` and `lmstudio:OWNER/NAME` are models
    stored by those programs (`stores.located`). `progress(done, total)` is called with the bytes of
    weights prepared so far.
    """
    if file is not None:
        own = config.get("mmproj") is None and config.get("max_images") != 0
        model_path = located(model_path, file=file, encoder=own)
    engine = InferenceEngine(EngineConfig.of({"model_path": model_path, **config}, function="load"))
    engine.load_model(progress=progress)
    return engine


@spelled
def load_model_from_bytes(
    gguf_bytes: bytes,
    tokenizer_json: str | bytes | None = None,
    **config: Unpack[ConfigOptions],
) -> InferenceEngine:
    """An engine with the model of a GGUF file in memory. `tokenizer_json` replaces the file's
    vocabulary. ConfigError if a path is given as well.
    """
    given: dict[str, Any] = {**config}
    if given.get("model_path") is not None:
        raise ConfigError(
            f"model_path: found {str(given['model_path'])!r} and the bytes of a file, wanted "
            "one model"
        )
    engine = InferenceEngine(EngineConfig.of(given, function="load_model_from_bytes"))
    engine.load_model_from_bytes(gguf_bytes, tokenizer_json)
    return engine


@spelled
class InferenceEngine:
    """One loaded model, which serves requests from any number of threads.

        with oxillama.load("model.gguf") as engine:
            engine.generate("Once upon a time", max_tokens=32).text

    `EngineConfig` describes how the model is loaded and served, and `Options` what one request can
    set. Text: `generate`, `stream`, `chat`, `beam_generate`; without waiting: `submit`,
    `submit_chat`, `submit_beams`. Vectors and scores: `embed`, `rerank`, `score`. Logits: `logits`,
    `prefill`, `forward_one`. State: `session`, `snapshot`, `restore`. EngineError for every call
    before a model is loaded, or after `close`.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        if config is not None and not isinstance(config, EngineConfig):
            raise ConfigError(f"config: found {type(config).__name__}, wanted an EngineConfig")
        self.engine_config = config or EngineConfig()
        self._loaded = Loaded()

    # ---- loading
    # ----------------------------------------------------------------------------------------------

    def load_model(
        self, model_path: str | Path | None = None, *, progress: Progress | None = None
    ) -> InferenceEngine:
        """Load the config's model, or another one, named as in `load`; returns the engine."""
        path = model_path if model_path is not None else self.engine_config.model_path
        own = self.engine_config.mmproj is None and self.engine_config.max_images > 0
        self._loaded.open(
            self.engine_config,
            located(path, encoder=own) if path is not None else embedded_path(),
            progress=progress,
        )
        return self

    def load_model_from_bytes(
        self, gguf_bytes: bytes, tokenizer_json: str | bytes | None = None
    ) -> InferenceEngine:
        """Load a model from the bytes of a GGUF file; returns the engine."""
        if isinstance(gguf_bytes, (str, PathLike)):
            raise ConfigError(
                f"gguf_bytes: found {type(gguf_bytes).__name__}, wanted the bytes of a GGUF file "
                "(load takes a path)"
            )
        self._loaded.open(self.engine_config, gguf_bytes, tokenizer_json=tokenizer_json)
        return self

    @property
    def config(self) -> ModelConfig:
        """Sizes of the loaded model."""
        return self._loaded.model.config

    @property
    def num_threads(self) -> int:
        """Workers of a step."""
        return self._loaded.model.program.num_threads

    @property
    def sampler(self) -> SamplerConfig:
        """The sampler of requests without one: the config's, otherwise `SamplerConfig()` with the
        values that the file recommends.
        """
        return self._loaded.sampler(self.engine_config.sampler)

    @property
    def loaded(self) -> Loaded:
        """The loaded model, its vocabulary and the core of its engine, from which drafts and
        `SpeculativeEngine` are made.
        """
        return self._loaded

    @property
    def context_size(self) -> int:
        """The largest number of tokens of a session."""
        return self._loaded.core.context_size

    @property
    def model_bytes(self) -> int:
        """Bytes of the model's tensors in its file."""
        return sum(tensor.nbytes for tensor in self._loaded.model.reader.tensors.values())

    @property
    def model_files(self) -> tuple[Path, ...]:
        """The files the model was read from, with every part of a set; empty if it was loaded from
        bytes.
        """
        return self._loaded.model.reader.paths

    @property
    def tokenizer(self) -> TokenizerBridge:
        """The vocabulary; EngineError if the file has none."""
        return self._loaded.required_vocabulary.bridge

    # ---- text
    # ----------------------------------------------------------------------------------------------

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text. By default the vocabulary's special tokens are added around it, and
        those spelled in the text are recognised.
        """
        return self.tokenizer.encode(
            text,
            add_special=checked_flag("add_special", add_special),
            parse_special=checked_flag("parse_special", parse_special),
        )

    def tokenize_batch(
        self, texts: Iterable[str], *, add_special: bool = True, parse_special: bool = True
    ) -> list[list[int]]:
        """Token ids of each text, as `tokenize` returns them, by as many threads as the engine
        has.
        """
        return self.tokenizer.encode_batch(
            texts,
            add_special=checked_flag("add_special", add_special),
            parse_special=checked_flag("parse_special", parse_special),
            num_threads=self._loaded.model.program.num_threads,
        )

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        given = checked_ids(ids, name="detokenize", wanted="token ids", media=True)
        return self.tokenizer.decode(given)

    def image_prompt(self, parts: Iterable[Any]) -> ImagePrompt:
        """A prompt of texts, token ids and images in order, for `generate`, `stream`, `logits` and
        sessions. `chat` takes images in its messages.

        A `str` is text in which control tokens are recognised; a sequence of integers is token ids;
        `bytes`, a `pathlib.Path`, a PIL image or a uint8 array (height, width, 3) is an image; a
        part of a message, such as `{"type": "audio", "audio": ...}`, is what it says. Tokens that
        the vocabulary puts before a text are put before the first part. ImageError for any other
        value or an image beyond the limits; EngineError if the engine has no image encoder.
        """
        return self._media_prompt("image", "image_prompt", parts)

    def audio_prompt(self, parts: Iterable[Any]) -> ImagePrompt:
        """The same of texts, token ids and clips of audio: `bytes`, a `pathlib.Path` or a pair of a
        float32 array of one channel and its sampling rate is a clip, and a part of a message, such
        as `{"type": "image", "image": ...}`, is what it says. AudioError for any other value or a
        clip beyond the limits; EngineError if the engine has no audio encoder.
        """
        return self._media_prompt("audio", "audio_prompt", parts)

    def _media_prompt(self, kind: Kind, name: str, parts: Iterable[Any]) -> ImagePrompt:
        _, prompts = self._loaded.required_vocabulary, self._loaded.media
        if prompts is None:
            raise no_encoder(kind, name)
        return prompts.of_parts(parts, kind, vocab_size=self.config.vocab_size)

    def transcribe(
        self,
        audio: Any,
        *,
        language: str | None = None,
        prompt: str | None = None,
        **options: Unpack[SingleOptions],
    ) -> Transcript:
        """The text of speech, by a model that has a form of prompt for it (Qwen3-ASR, Voxtral).
        audio: a clip as in `audio_prompt`. language: a code such as "en", None for the model to
        hear it. prompt: words that may occur. Options are those of `generate`; the temperature is 0
        unless it is given. EngineError for a model without such a form or without an audio encoder.
        """
        prompts = self._loaded.media
        if prompts is None:
            raise no_encoder("audio", "transcribe")
        shown = shown_tokens(prompts.bridge)
        wanted: dict[str, Any] = {"temperature": 0.0, **options, "shown_tokens": shown}
        _only_one(wanted)
        ids = transcription_prompt(prompts, audio, language=language, prompt=prompt, name="audio")
        done = _single(self.submit(ids, **wanted)).result()
        return transcript(prompts.bridge, language, done)

    @property
    def takes_images(self) -> bool:
        """Whether there is an encoder of images (`mmproj`, or the model's own)."""
        return self._loaded.encodes("image")

    @property
    def takes_audio(self) -> bool:
        """Whether there is an encoder of audio (`mmproj`, or the model's own)."""
        return self._loaded.encodes("audio")

    def is_eos(self, token: int) -> bool:
        """Whether a token ends generation. ConfigError for what is no id of the vocabulary."""
        number, most = whole("token", token, 0), self.config.vocab_size - 1
        if number > most:
            raise ConfigError(f"token: found {number}, wanted 0 to {most}")
        return number in self._loaded.core.eog_ids

    # ---- generation
    # ----------------------------------------------------------------------------------------------

    @overload
    def submit(
        self,
        prompt: Prompt | None,
        *,
        n: Literal[1] = 1,
        best_of: Literal[1] | None = None,
        session: Session | None = None,
        resumable: bool = False,
        **options: Unpack[SingleOptions],
    ) -> GenerateRequest: ...

    @overload
    def submit(
        self,
        prompt: Prompt | None,
        *,
        session: Session | None = None,
        resumable: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Request | Siblings: ...

    def submit(
        self,
        prompt: Prompt | None,
        *,
        session: Session | None = None,
        resumable: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """Start a generation and return at once. The request has `result()`, iteration, `await` and
        `cancel()`.

        With a session, the prompt is appended to it. A prompt of None continues the session, or the
        one used last. With `resumable`, as in `generate` and `stream`, this request's session
        becomes the one used last. When a session continues, options that are not given stay as they
        were. With `n` or `best_of` above 1, returns the `Siblings` of the prompt, whose result is a
        list.
        """
        return self._begin(prompt, session=session, resumable=resumable, **options)

    def _begin(
        self,
        prompt: Prompt | None,
        *,
        resumable: bool = False,
        session: Session | None = None,
        **options: Any,
    ) -> Request | Siblings:
        """`submit`. With `resumable`, a later prompt of None continues this request, so its session
        keeps its pages.
        """
        make, wanted = self._asked(options)
        if not checked_flag("resumable", resumable):
            return self._submit(make, prompt, session, wanted)
        return self._loaded.set_last(
            self._submit(self._loaded.default_session.retaining(make), prompt, session, wanted)
        )

    def submit_each(
        self,
        prompts: Iterable[Prompt],
        *,
        session: Session | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[Request | Siblings]:
        """Start a generation for each prompt of an iterable as it is read. Options are those of
        `submit` and are checked once.

        If the engine's queue is full, this waits until one of the earlier requests has ended;
        QueueFull if all of them have ended.
        """
        if isinstance(prompts, (str, bytes, Mapping)) or not listable(prompts):
            raise ConfigError(
                f"submit_each: found {type(prompts).__name__}, wanted a list of prompts; `submit` "
                "takes one"
            )
        make, wanted = self._asked({**options})
        return self._each(make, prompts, session, wanted)

    def _each(
        self, make: Maker, prompts: Iterable[Prompt], session: Session | None, wanted: Options
    ) -> Iterator[Request | Siblings]:
        begun: deque[Request] = deque()
        for at, prompt in enumerate(prompts):
            make_it = partial(self._submit, make, prompt, session, wanted)
            made = _in_turn(make_it, begun, f"prompts[{at}]")
            begun.extend(made.requests if isinstance(made, Siblings) else (made,))
            yield made

    def _asked(self, options: dict[str, Any]) -> tuple[Maker, Options]:
        """(the function that makes a request, its checked options)."""
        speculator = self._loaded.core.speculator
        if speculator is not None and "speculative" in options:
            options = {**options, "speculative": speculator.resolve(options["speculative"])}
        if options.get("lora") is not None:
            options = {**options, "lora": self._loaded.loras.resolve(options["lora"])}
        wanted = Options.of(options)
        return make_siblings if wanted.completions > 1 else make_request, wanted

    def _submit(
        self,
        make: Maker,
        prompt: Prompt | None,
        session: Session | None,
        wanted: Options,
    ) -> Request | Siblings:
        """Submit the request that `make` makes of a prompt. The request keeps this engine alive, so
        it finishes even if the caller drops the engine.
        """
        return self._loaded.submit(
            make, prompt, wanted, session=session, sampler=self.sampler, owner=self
        )

    @overload
    def generate(
        self,
        prompt: PromptList,
        *,
        n: Literal[1] = 1,
        best_of: Literal[1] | None = None,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompt: SinglePrompt,
        *,
        n: Literal[1] = 1,
        best_of: Literal[1] | None = None,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: PromptList,
        *,
        n: Several,
        best_of: int | None = None,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[list[Completion]]: ...

    @overload
    def generate(
        self,
        prompt: SinglePrompt,
        *,
        n: Several,
        best_of: int | None = None,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompt: PromptList,
        *,
        best_of: Several,
        n: int = 1,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[list[Completion]]: ...

    @overload
    def generate(
        self,
        prompt: SinglePrompt,
        *,
        best_of: Several,
        n: int = 1,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompt: SinglePrompt,
        *,
        session: Session | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion]: ...

    @overload
    def generate(
        self,
        prompt: Prompt | Iterable[Prompt] | None,
        *,
        session: Session | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion] | list[list[Completion]]: ...

    def generate(
        self,
        prompt: Prompt | Iterable[Prompt] | None,
        *,
        session: Session | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """The completion of a prompt (text or token ids), or of each prompt of a list, in one
        batch. Options are the fields of `Options` and those of a sampler (`temperature=0`).

        Prompts can be a list, tuple, array, pandas Series or iterator; no prompts give an empty
        list. With `n` or `best_of` above 1, each completion becomes a list of completions.

        A prompt of None continues the session used last: that of `prefill`, or of the last
        `generate` or `stream` with a single prompt. With `best_of` that is the session of the
        completion returned; after several completions there is none. A session takes one prompt.
        """
        refuse_resumable(options)
        found, many = separated(prompt, in_session=session is not None)
        if many:
            return all_finished(self.submit_each(found, session=session, **options))
        return finished(self._begin(found, resumable=True, session=session, **options))

    def stream(
        self,
        prompt: Prompt | None,
        *,
        session: Session | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream[Piece]:
        """An iterator of the completion's pieces as they are generated; `.text` of each is whole
        UTF-8. Closing or dropping it stops the generation.
        """
        refuse_resumable(options)
        _only_one({**options})
        return Stream(_single(self._begin(prompt, resumable=True, session=session, **options)))

    def beam_generate(
        self,
        prompt: Prompt | None,
        config: BeamSearchConfig | None = None,
        *,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[BeamHypothesis]:
        """The likeliest continuations of a prompt, best first, at most `beam_width` of them (see
        `engine.beam`).

        With a session, the search runs on a fork and the session does not change. Only options that
        constrain or stop the text are used. A sampler must be `SamplerConfig.greedy(...)` with no
        settings but bans, biases and stops.
        """
        found: list[BeamHypothesis] = finished(
            self.submit_beams(prompt, config, session=session, **options)
        )
        return found

    def submit_beams(
        self,
        prompt: Prompt | None,
        config: BeamSearchConfig | None = None,
        *,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> Request:
        """Start a beam search and return at once; its result is what `beam_generate` returns."""
        if config is not None and not isinstance(config, BeamSearchConfig):
            raise ConfigError(f"config: found {type(config).__name__}, wanted a BeamSearchConfig")
        return _single(
            self._submit(
                partial(make_beams, config=config or BeamSearchConfig()),
                prompt,
                session,
                self._asked({**options})[1],
            )
        )

    @overload
    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        stream: Literal[True],
        session: Session | None = None,
        **options: Unpack[ChatOptions],
    ) -> Stream[ChatEvent]: ...

    @overload
    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        stream: Literal[False] = False,
        n: Literal[1] = 1,
        best_of: Literal[1] | None = None,
        session: Session | None = None,
        **options: Unpack[SingleChatOptions],
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        stream: Literal[False] = False,
        n: Several,
        best_of: int | None = None,
        session: Session | None = None,
        **options: Unpack[SingleChatOptions],
    ) -> list[Completion]: ...

    @overload
    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        stream: Literal[False] = False,
        best_of: Several,
        n: int = 1,
        session: Session | None = None,
        **options: Unpack[SingleChatOptions],
    ) -> list[Completion]: ...

    @overload
    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        stream: Literal[False] = False,
        session: Session | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion]: ...

    @overload
    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        stream: bool,
        session: Session | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion] | Stream[ChatEvent]: ...

    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        stream: bool = False,
        session: Session | None = None,
        **options: Unpack[ChatOptions],
    ) -> Any:
        """The reply to a conversation, formatted by the model's own chat template. Options are
        those of `submit_chat` and `generate`.

        With `stream`, an iterator of `ChatEvent`s: their `.text` is the answer, and the last one
        holds the completion.
        """
        refuse_resumable(options)
        if checked_flag("stream", stream):
            _only_one({**options})
        request = self._begin_chat(messages, resumable=True, session=session, **options)
        return Stream(_single(request)) if stream else finished(request)

    @overload
    def submit_chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        n: Literal[1] = 1,
        best_of: Literal[1] | None = None,
        resumable: bool = False,
        session: Session | None = None,
        **options: Unpack[SingleChatOptions],
    ) -> GenerateRequest: ...

    @overload
    def submit_chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        resumable: bool = False,
        session: Session | None = None,
        **options: Unpack[ChatOptions],
    ) -> Request | Siblings: ...

    def submit_chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        resumable: bool = False,
        session: Session | None = None,
        **options: Unpack[ChatOptions],
    ) -> Any:
        """Start a reply and return at once. `template` holds further variables for the chat
        template; `response_format` asks for JSON, as a mapping or a type.

        `tools` are functions, `Tool`s or dicts, and calls follow their schemas. `tool_choice` is
        "auto", "none", "required" or a tool's name; `tool_format` names a notation (None: the
        template's, or Hermes if it teaches none); `parallel_tool_calls=False` allows one call (see
        `toolcalls.ChatPlanner`). The completion has `content`, `reasoning` and `tool_calls`.
        """
        return self._begin_chat(messages, resumable=resumable, session=session, **options)

    def _begin_chat(
        self,
        messages: Any,
        *,
        resumable: bool = False,
        session: Session | None = None,
        **options: Any,
    ) -> Request | Siblings:
        self._loaded.core.check_generates("chat")
        turn = self._loaded.chat.turn(messages, **options)
        request = self._begin(turn.prompt, resumable=resumable, session=session, **turn.options)
        for each in request.requests if isinstance(request, Siblings) else (request,):
            if isinstance(each, GenerateRequest):
                each.read, each.events = turn.read, turn.events
        return request

    def render_chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        tool_format: str | ToolCallFormat | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text that the model's chat template makes from a conversation, the prompt of `chat`
        with the same tools and `tool_format`.
        """
        return self._loaded.chat.render(
            messages,
            tools=tools,
            tool_format=tool_format,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )

    # ---- logits and the default session
    # ----------------------------------------------------------------------------------------

    def logits(self, ids: Prompt, *, lora: Any = None) -> np.ndarray:
        """float32 (tokens, vocabulary): row i predicts token i + 1, computed as in `generate`.
        Text is tokenized as there. lora: as in `Options`.
        """
        return all_logits(
            self._loaded.core,
            self._loaded.ids(ids),
            owner=self,
            adapters=self._loaded.loras.resolve(lora),
        )

    def session(self, *, lora: Any = None) -> Session:
        """A new session for `prefill`, `forward_one` and `generate`, with methods `fork`,
        `truncate` and `close`. It is closed when nothing refers to it any more. lora: its adapters,
        as in `Options`.
        """
        core = self._loaded.core
        return core.keep(core.new_session(adapters=self._loaded.loras.resolve(lora)))

    def prefill(self, ids: Prompt, *, session: Session | None = None) -> np.ndarray:
        """Append tokens to a session (by default the engine's own); returns the logits after them,
        float32 (vocabulary,). If it fails, the session is as it was before. Of a decoder behind an
        encoder the first are the source, and token ids after it are the decoder's.
        """
        core, default = self._loaded.core, self._loaded.default_session
        with nullcontext() if session is not None else default.lock:
            session = default.use() if session is None else core.check_session(session)
            if isinstance(ids, str):
                core.check_unsourced(session)
            return core.extend(session, self._loaded.ids(ids, add_special=not len(session)))

    def forward_one(self, token: int, *, session: Session | None = None) -> np.ndarray:
        """Append one token; returns the logits after it, float32 (vocabulary,)."""
        return self.prefill([token], session=session)

    def truncate(self, length: int) -> None:
        """Remove the default session's tokens from position `length` on."""
        self._loaded.default_session.truncate(length)

    def reset(self) -> None:
        """Remove all tokens of the default session."""
        self._loaded.default_session.reset()

    def kv_cache_seq_len(self) -> int:
        """The number of tokens of the default session."""
        return len(self._loaded.default_session.get())

    # ---- adapters
    # ----------------------------------------------------------------------------------------------

    def apply_lora(self, path: str | Path, scale: float = 1.0, *, name: str | None = None) -> Lora:
        """Load a low-rank adapter (a GGUF file or PEFT folder) and push it on the stack for new
        sessions. Existing sessions and requests keep their adapters. name: see `load_lora`.

        LoraError or GgufError for a bad adapter; then nothing has changed.
        """
        loras = self._loaded.loras
        checked_scale(scale)
        return loras.push_lora(loras.load(path, name=name), scale)

    def load_lora(self, path: str | Path, *, name: str | None = None) -> Lora:
        """Load an adapter for requests that name it (`lora=`), without pushing it. name: None for
        the file's name without its suffix, or the folder's.
        """
        return self._loaded.loras.load(path, name=name)

    def unload_lora(self, name: str) -> Lora:
        """Unload the adapter with this name. Sessions and requests that use it keep it until they
        end. ConfigError if it is on the stack.
        """
        return self._loaded.loras.unload(name)

    @property
    def loras(self) -> LoraStack:
        """The loaded adapters, and the stack for new sessions."""
        return self._loaded.loras

    # ---- snapshots
    # ----------------------------------------------------------------------------------------------

    def snapshot(self, *, compress: Literal["zstd"] | None = None, full: bool = False) -> bytes:
        """The complete session that `generate(None)` would continue, as bytes.

        compress="zstd" makes its pages smaller; full=True binds the snapshot to every byte of the
        model's file.
        """
        return self._last().snapshot(compress=compress, full=full)

    def snapshot_to_file(
        self, path: str | Path, *, compress: Literal["zstd"] | None = None, full: bool = False
    ) -> None:
        """Write `snapshot` to a file. Even if the process is killed, the file holds either its old
        content or the complete snapshot.
        """
        self._last().snapshot_to_file(path, compress=compress, full=full)

    @classmethod
    def resume(
        cls,
        data: bytes | str | Path,
        model_path: Any = None,
        *,
        processors: Sequence[Callable[..., Any]] = (),
        loras: Iterable[str | Path] = (),
        progress: Progress | None = None,
        **config: Unpack[ConfigOptions],
    ) -> InferenceEngine:
        """A new engine, configured like the one that took the snapshot, whose default session
        continues where that one ended, bit for bit.

        model_path: the file (or bytes) of the same model, None for the embedded one. config: fields
        of `EngineConfig` to change, such as num_threads. processors: see `restore`. loras: files of
        the adapters that the session used. ModelFingerprintMismatch for another model,
        SnapshotIncompatible for any other difference.
        """
        if isinstance(loras, (str, bytes, Mapping)) or not listable(loras):
            raise ConfigError(f"loras: found {type(loras).__name__}, wanted a list of files")
        saved = EngineSnapshot.inspect(data)
        model = embedded_path() if model_path is None else located(model_path)
        saved.model.verify(model)
        engine = cls(
            saved.config(model_path=model if isinstance(model, (str, Path)) else None, **config)
        )
        engine._loaded.open(engine.engine_config, model, progress=progress)
        try:
            for path in loras:
                engine.load_lora(path)
            engine._loaded.default_session.take(engine.restore(data, processors=processors))
        except BaseException:
            engine.close()
            raise
        return engine

    @classmethod
    def resume_from_file(
        cls,
        path: str | Path,
        model_path: Any = None,
        *,
        processors: Sequence[Callable[..., Any]] = (),
        loras: Iterable[str | Path] = (),
        progress: Progress | None = None,
        **config: Unpack[ConfigOptions],
    ) -> InferenceEngine:
        """`resume` from a file of `snapshot_to_file`."""
        return cls.resume(
            path_of("resume_from_file", path),
            model_path,
            processors=processors,
            loras=loras,
            progress=progress,
            **config,
        )

    def restore(
        self, data: bytes | str | Path, *, processors: Sequence[Callable[..., Any]] = ()
    ) -> Session:
        """A new session with the state of a snapshot, in addition to all others.

        processors: the functions that its generation used, which a snapshot cannot contain. If the
        snapshot is refused (SnapshotIncompatible, ModelFingerprintMismatch, PoolError), nothing has
        changed.
        """
        session: Session = self._loaded.core.require_snapshots().restore(
            data, processors=processors
        )
        return session

    def restore_from_file(
        self, path: str | Path, *, processors: Sequence[Callable[..., Any]] = ()
    ) -> Session:
        """`restore` from a file."""
        return self.restore(path_of("restore_from_file", path), processors=processors)

    def save_prefixes(self, path: str | Path) -> int:
        """Write the stored prefixes to a file for `load_prefixes` of another engine with the same
        model; returns how many.
        """
        return save_prefixes(self._loaded.core.require_snapshots(), path)

    def load_prefixes(self, path: str | Path, *, trust: bool = False) -> int:
        """Add the prefixes of a file to the cache as far as they fit; returns how many.

        Stored prefixes serve every request that begins with them. SnapshotIncompatible for a file
        that this user did not save, unless trust=True declares that its origin is known.
        """
        return load_prefixes(self._loaded.core.require_snapshots(), path, trust=trust)

    def _last(self) -> Session:
        """The session that `snapshot` saves."""
        return self._loaded.last_session("snapshot: there is no session to save")

    # ---- embeddings
    # ----------------------------------------------------------------------------------------------

    def embed(
        self,
        text: Prompt,
        *,
        pooling: PoolingMode | str | None = None,
        normalize: bool | None = None,
        lora: Any = None,
    ) -> np.ndarray:
        """The vector of a text, float32 (hidden,), of length 1 unless normalize is False.

        pooling: how the rows of its tokens are combined; None: as the file says, otherwise their
        mean. "none" returns all rows, (tokens, hidden). "rank" returns the scores of the file's
        classifier, (labels,): ConfigError if the file has none, or with normalize=True. lora: as in
        `Options`.
        """
        work = self.submit_embedding(text, pooling=pooling, normalize=normalize, lora=lora)
        return all_pooled([work])[0]

    def embed_with(
        self,
        text: Prompt,
        pooling: PoolingMode | str | None,
        *,
        normalize: bool | None = None,
        lora: Any = None,
    ) -> np.ndarray:
        """`embed` with the pooling as the second positional argument."""
        return self.embed(text, pooling=pooling, normalize=normalize, lora=lora)

    def embed_batch(
        self,
        texts: Iterable[Prompt],
        *,
        pooling: PoolingMode | str | None = None,
        normalize: bool | None = None,
        lora: Any = None,
    ) -> np.ndarray | list[np.ndarray]:
        """The vectors of many texts, float32 (texts, hidden), evaluated in shared steps without
        padding; a list with PoolingMode.NONE. Arguments are those of `embed`.
        """
        model = self._loaded.model
        texts, mode = batch_of(model, texts, pooling, normalize)
        vectors = self._pooled("texts", texts, pooling=mode, normalize=normalize, lora=lora)
        return stacked(self._loaded.core, model, vectors, mode)

    def _pooled(self, name: str, inputs: Iterable[Any], **options: Any) -> list[np.ndarray]:
        """The vectors of a list of that name, whose embeddings wait where the queue is full."""
        begun: deque[Request] = deque()

        def work() -> Iterator[tuple[Request, Pooler]]:
            for at, each in enumerate(inputs):
                make = partial(self.submit_embedding, each, **options)
                made = _in_turn(make, begun, f"{name}[{at}]")
                begun.append(made[0])
                yield made

        return all_pooled(work())

    def submit_embedding(
        self,
        text: Prompt,
        *,
        pooling: PoolingMode | str | None = None,
        normalize: bool | None = None,
        lora: Any = None,
    ) -> tuple[Request, Pooler]:
        """Start an embedding and return at once: the request, and the pooler that has the vector
        when it has ended. Arguments are those of `embed`.
        """
        ids = [] if isinstance(text, str) and not text else self._loaded.ids(text)
        return submit_embedding(
            self._loaded.core,
            ids,
            pooling=pooling,
            normalize=normalize,
            model=self._loaded.model,
            owner=self,
            adapters=self._loaded.loras.resolve(lora),
        )

    def rerank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        top_n: int | None = None,
        label: str | None = None,
    ) -> list[RankedDocument]:
        """(index, score) of documents, the most relevant to a query first; index is the position in
        `documents`. top_n: how many to return.

        The file's classifier gives the score: a probability of "yes" for models that answer yes or
        no, otherwise a number in any range. label: the score to use if there are several labels.
        ConfigError for a model without a classifier.
        """
        if top_n is not None:
            top_n = whole("top_n", top_n, 1)
        return ranked(self._scores(query, documents, label), top_n)

    def score(self, query: str, document: str, *, label: str | None = None) -> float:
        """How relevant a document is to a query; see `rerank`."""
        if not isinstance(document, str):
            raise TokenizerError(f"document: found {type(document).__name__}, wanted str")
        return float(self._scores(query, [document], label)[0])

    def _scores(self, query: str, documents: Any, label: str | None) -> list[np.floating]:
        model, bridge = self._loaded.model, self.tokenizer
        number = scored_label(model, label)
        pairs = pairs_of(model, bridge, query, documents)
        scores = self._pooled("documents", pairs, pooling=PoolingMode.RANK)
        return [each[number] for each in scores]

    # ---- looking inside
    # ----------------------------------------------------------------------------------------------

    def metrics(self) -> MetricsSnapshot:
        """The engine's current counters."""
        return self._loaded.core.metrics()

    def clear_cache(self) -> None:
        """Remove all stored prefixes and free their memory."""
        self._loaded.core.clear_cache()

    def raw_loop(self) -> RawLoop:
        """A bare step loop over the program, for measurements. Requests wait while it is open."""
        config = self.engine_config
        steps = config.scheduling()
        return RawLoop(
            self._loaded.core,
            self._loaded.model,
            kv_type=self._loaded.core.memory.kv_type,
            page_size=config.page_size,
            chunk=min(steps.prefill_chunk, steps.max_batch_tokens),
        )

    def diagnose(self, ids: Sequence[int]) -> Iterator[Difference]:
        """Compares each op of the compiled tape with its numpy definition
        (model.reference.Difference), in order.

        ContextError for no ids, or for more than one step or the context can hold.
        """
        return diagnose(self._loaded.core, self._loaded.model, self._loaded.ids(ids))

    def dump(self) -> str:
        """The model's tape as text."""
        return self._loaded.model.tape.dump()

    def close(self) -> None:
        """Stop all work and free the model. May be called twice."""
        self._loaded.close()

    def __repr__(self) -> str:
        """The model, its size, and how it is served."""
        return f"<InferenceEngine {self._loaded.described(self.engine_config.sampler)}>"

    def _repr_html_(self) -> str:
        """For notebooks: what `repr` says, and what the engine has done so far."""
        line = f"<code>{escape(repr(self))}</code>"
        try:
            found = self.metrics()
        except EngineError:
            return line
        rows = {
            "requests": f"{found.requests_running} running, {found.requests_waiting} waiting, "
            f"{found.requests_completed_total:,} completed",
            "prompt": f"{found.tokens_prefilled_total:,} tokens, "
            f"{found.prompt_tokens_per_second:.1f} tokens/s",
            "generation": f"{found.tokens_generated_total:,} tokens, "
            f"{found.decode_tokens_per_second:.1f} tokens/s",
            "prefix cache": f"{found.kv_tokens_saved_total:,} tokens saved",
            "pages": f"{found.pages_used:,} used, {found.page_memory_bytes >> 20:,} MB",
        }
        cells = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in rows.items())
        return f"{line}<table>{cells}</table>"

    __reduce__ = not_pickled(
        "engine: holds a model, threads and pages of this process",
        "load it in each process (packed weights are shared), and pickle `engine_config` or "
        "`snapshot()`",
    )

    def __enter__(self) -> InferenceEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        loaded = getattr(self, "_loaded", None)
        if loaded is not None:
            loaded.stop()


@contextmanager
def naming(place: str) -> Iterator[None]:
    """A context manager that adds which text of a list it is to an error about the text."""
    try:
        yield
    except (ContextError, EmptySequence, TokenizerError) as error:
        error.args = (f"{place}: {error}",)
        raise
    except ConfigError as error:
        if str(error).startswith("prompt"):  # others are about options
            error.args = (f"{place}: {error}",)
        raise


def _in_turn(make: Callable[[], Made], begun: deque[Request], place: str) -> Made:
    """What `make` submits for one of a list. If the engine's queue is full, this waits until one of
    the earlier requests has ended; QueueFull if all of them have ended.
    """
    while True:
        try:
            with naming(place):
                return make()
        except QueueFull:
            while begun and begun[0].done:
                begun.popleft()
            if not begun:
                raise
            begun[0].wait()


def _single(made: Request | Siblings) -> Request:
    """A request that is known to be a single one."""
    if isinstance(made, Siblings):
        raise ConfigError(f"n, best_of: found {len(made.requests)} completions, wanted 1")
    return made


def _only_one(options: dict[str, Any]) -> None:
    """Raise ConfigError if a call that returns pieces asks for more than one completion."""
    if (
        Options.of(
            {name: options[name] for name in ("n", "best_of") if name in options}
        ).completions
        > 1
    ):
        raise ConfigError(
            "n, best_of: found more than 1 completion to stream as one, wanted 1; `submit` gives "
            "requests to iterate over"
        )
