"""`Loaded`: what an engine has loaded, with the checks that every call needs: is there a model, is
it open, does it have a vocabulary?

    file --opening--> model, core, vocabulary --Loaded--> `api.InferenceEngine`,
    `speculative.engine`
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from oxillama.arguments import checked_ids
from oxillama.chat import TEMPLATE_KEY, Chat
from oxillama.engine.config import EngineConfig
from oxillama.engine.engine import EngineCore
from oxillama.engine.generation import SharedVocabulary
from oxillama.engine.request import Request
from oxillama.engine.session import DefaultSession, Session
from oxillama.engine.siblings import Siblings
from oxillama.errors import EngineError, not_pickled
from oxillama.lora.stack import LoraStack
from oxillama.media.features import Kind
from oxillama.media.messages import MediaPart
from oxillama.media.prompt import ImagePrompt, media_of
from oxillama.media_prompts import MediaPrompts, no_encoder
from oxillama.model.load import Model
from oxillama.opening import LazyMedia, Progress, open_model
from oxillama.options import Options
from oxillama.sampling import SamplerConfig
from oxillama.tokenizer.builtin_templates import template_source

Prompt = str | Sequence[int]
# What type checkers know to be one prompt, or a list of prompts.
SinglePrompt = str | list[int] | tuple[int, ...] | None
PromptList = list[str] | tuple[str, ...] | Iterator[str] | list[list[int]]


class Loaded:
    """A model, the core of an engine over it, its vocabulary and chat template, and the session
    used last. EngineError if the part asked for does not exist.
    """

    __slots__ = (
        "_chat",
        "_core",
        "_default_session",
        "_lock",
        "_loras",
        "_model",
        "_recommended",
        "_media",
        "_most",
        "_template",
        "vocabulary",
    )

    __reduce__ = not_pickled(
        "loaded: is the model of an engine of this process",
        "load it in each process (packed weights are shared), and pickle `engine_config`",
    )

    def __init__(self) -> None:
        # None also for a file without one; `required_vocabulary` wants one
        self.vocabulary: SharedVocabulary | None = None
        self._model: Model | None = None
        self._core: EngineCore | None = None
        self._loras: LoraStack | None = None
        self._chat: Chat | None = None
        self._default_session: DefaultSession | None = None
        self._recommended: SamplerConfig | None = None
        self._media: LazyMedia | None = None
        self._most: dict[Kind, int] = {}
        self._template: str | None = None  # in place of the file's
        self._lock = threading.RLock()

    def open(
        self,
        config: EngineConfig,
        source: Any,
        *,
        tokenizer_json: str | bytes | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Load a model; a model loaded before is closed."""
        opened = open_model(config, source, tokenizer_json=tokenizer_json, progress=progress)
        with self._lock:
            self._template = config.chat_template
            before, self._core, old = self._core, opened.core, self._model
            self._model, self.vocabulary, self._chat = opened.model, opened.vocabulary, None
            self._media, self._most = opened.media, config.most_media
            retired, self._loras = self._loras, opened.loras
            self._default_session, self._recommended = (
                DefaultSession(opened.core),
                opened.recommended,
            )
        if before is not None:
            before.close()
        if retired is not None:
            retired.close()
        if old is not None:
            # the new model wants the memory, and its first requests the bandwidth
            old.end(keep=False)

    def close(self) -> None:
        """Stop all work, write the model's sidecar if one is due, and free the model. May be called
        twice.
        """
        if self._core is not None:
            self._core.close()
        with self._lock:
            model, self._model = self._model, None
            self.vocabulary = self._chat = self._media = self._default_session = None
            loras, self._loras = self._loras, None
        if loras is not None:
            loras.close()
        if model is not None:
            model.end(keep=True)
            if model.pager is not None:
                # it and its pages refer to each other, and they hold the whole budget of memory
                del model
                gc.collect()

    def stop(self) -> None:
        """Let the engine's thread end, for an engine that is no longer referenced."""
        if self._core is not None:
            self._core.stop()

    @property
    def core(self) -> EngineCore:
        """The core of an open engine that has not failed."""
        core = self._core
        if core is None:
            raise EngineError("engine: has no model, call load_model first")
        core.check()
        return core

    @property
    def model(self) -> Model:
        """The model of an open engine."""
        _, model = self.core, self._model  # raises the reason if there is none
        if model is None:
            raise EngineError("engine: is closed")
        return model

    @property
    def loras(self) -> LoraStack:
        """The adapters of an open engine."""
        _, loras = self.model, self._loras
        if loras is None:
            raise EngineError("engine: is closed")
        return loras

    @property
    def required_vocabulary(self) -> SharedVocabulary:
        """The vocabulary; EngineError if the file has none."""
        _, vocabulary = self.model, self.vocabulary
        if vocabulary is None:
            raise EngineError(
                "tokenizer: the file has no vocabulary, wanted tokenizer_path or token ids"
            )
        return vocabulary

    @property
    def default_session(self) -> DefaultSession:
        """The session of `prefill` and `forward_one`, and the one used last."""
        self.core.check_waiter()  # the holder of its lock may wait for a step
        session = self._default_session
        if session is None:
            raise EngineError("engine: has no model, call load_model first")
        return session

    @property
    def chat(self) -> Chat:
        """The chat template with its vocabulary; TemplateError for a file without a template."""
        chat = self._chat
        if chat is None:
            # what another thread opens or sets meanwhile comes after it, not before
            with self._lock:
                chat = self._chat
                if chat is None:
                    chat = self._chat = self._chat_over(self.model.reader.metadata)
        return chat

    def use_template(self, given: str) -> None:
        """Use another chat template than the file's: Jinja text, or the name of a built-in one
        (`tokenizer.builtin_templates`).
        """
        template_source(given)  # raises for what is neither
        with self._lock:
            self._template, self._chat = given, None

    def _chat_over(self, metadata: Mapping[str, Any]) -> Chat:
        if self._template is not None:
            metadata = {**metadata, TEMPLATE_KEY: template_source(self._template)}
        return Chat(metadata, self.required_vocabulary, self.media)

    @property
    def media(self) -> MediaPrompts | None:
        """Makes prompts with images and audio; None if the engine has no encoder of either. They
        are opened for the first image or clip.
        """
        media = self._media
        return (
            None
            if media is None
            else MediaPrompts(media, self.required_vocabulary.bridge, media.kinds, self._most)
        )

    def sampler(self, given: SamplerConfig | None) -> SamplerConfig:
        """The sampler of requests without one: the config's, otherwise the file's, otherwise the
        default.
        """
        if given is not None:
            return given
        _, recommended = self.core, self._recommended
        return recommended or SamplerConfig()

    def described(self, sampler: SamplerConfig | None) -> str:
        """One line that describes the model and how it is served."""
        core, model = self._core, self._model
        if core is None or model is None:
            return "closed" if core is not None else "without a model"
        config = model.config
        named = f"{config.architecture} {config.name!r}" if config.name else config.architecture
        try:
            core.check()
        except EngineError as error:  # failed, or a fork's copy: no reason to fail to show it
            return f"{named}; {error}"
        own = self.sampler(sampler) != SamplerConfig() if sampler is None else False
        return (
            f"{named}, context {core.context_size}, {model.program.num_threads} threads, "
            f"{core.metrics().requests_running} running" + (", sampler of the file" if own else "")
        )

    def encodes(self, kind: Kind) -> bool:
        """Whether there is an encoder of images, or of audio."""
        return self._media is not None and kind in self._media.kinds

    def check_media(self, part: MediaPart) -> None:
        """Raise ImageError for an image, AudioError for a clip that no prompt can hold."""
        prompts = self.media
        if prompts is None:
            raise no_encoder(part.kind, part.name)
        prompts.check([part])
        if part.kind == "image":
            prompts.vision.pixels(part.source, name=part.name)
        else:
            prompts.hearing.check(part.source, name=part.name)

    def ids(self, prompt: Prompt, *, add_special: bool = True) -> list[int]:
        """Token ids of a prompt, each within the vocabulary."""
        if isinstance(prompt, str):
            return self.required_vocabulary.bridge.encode(
                prompt, add_special=add_special, parse_special=True
            )
        ids = checked_ids(prompt, self.model.config.vocab_size, media=True)
        return ImagePrompt(ids, media_of(prompt)) if isinstance(prompt, ImagePrompt) else ids

    def last_session(self, purpose: str) -> Session:
        """The session used last. EngineError names the purpose if there is none, as after several
        completions.
        """
        recent = self.default_session.recent
        session = recent.session if isinstance(recent, Siblings) else recent
        if session is None:
            raise EngineError(f"{purpose}, wanted a prompt first")
        return session

    def set_last(self, request: Request | Siblings) -> Request | Siblings:
        """Make a request's session the one that a prompt of None continues."""
        if self._default_session is not None:
            self._default_session.recent = (
                request if isinstance(request, Siblings) else request.session
            )
        return request

    def submit(
        self,
        make: Callable[..., Request | Siblings],
        prompt: Prompt | None,
        wanted: Options,
        *,
        session: Session | None,
        sampler: SamplerConfig,
        owner: Any,
    ) -> Request | Siblings:
        """Submit the request that `make` makes to the core. `sampler` is used if `wanted` has none.
        A request keeps its owner alive.
        """
        core = self.core
        if session is not None:
            core.check_session(session)
        if prompt is None and session is None:
            session = self.last_session("generate(None): there is no session to continue")
        ids = (
            None
            if prompt is None
            else self.ids(prompt, add_special=session is None or not len(session))
        )
        # once: another thread may close meanwhile, which the core tells
        vocabulary = self.vocabulary
        if vocabulary is not None:
            vocabulary.prepare(wanted, sampler)  # whatever takes long comes before the lock
        if session is not None:
            core.wait_for_cancelled(session)
        with (
            nullcontext() if session is None else core.lock,
            nullcontext() if session is None else session.restored_on_error(),
        ):
            made = make(core, vocabulary, wanted, default=sampler, prompt=ids, session=session)
            requests = made.requests if isinstance(made, Siblings) else (made,)
            for each in requests:
                each.owner = owner
            try:
                core.submit(requests[0])
            except BaseException:
                for each in requests:
                    if each.speculation is not None:
                        each.speculation.close(0)
                    # a beam search has a fork of the session, which nothing else refers to
                    if each.session is not session and not each.session.busy:
                        each.session.kv.release()
                raise
            return made
