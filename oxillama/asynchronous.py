"""`AsyncEngine`: the engine for `asyncio`. It needs no thread per request, because the engine's
thread notifies the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, Unpack, overload

import numpy as np

from oxillama.api import InferenceEngine, naming
from oxillama.arguments import checked_flag, refuse_resumable, separated, spelled, whole
from oxillama.completion import Completion, Piece
from oxillama.engine.beam import BeamHypothesis, BeamSearchConfig
from oxillama.engine.embedding import (
    Pooler,
    PoolingMode,
    RankedDocument,
    batch_of,
    pairs_of,
    ranked,
    scored_label,
    stacked,
)
from oxillama.engine.request import GenerateRequest, Request
from oxillama.engine.session import Session
from oxillama.engine.siblings import Siblings
from oxillama.errors import ConfigError, QueueFull
from oxillama.loaded import Prompt, PromptList, SinglePrompt
from oxillama.options import ChatOptions, GenerateOptions, Several, SingleChatOptions, SingleOptions
from oxillama.toolcalls import ChatEvent


@spelled
class AsyncEngine:
    """Awaitable methods of an engine; options are those of `generate`. Cancelling a task cancels
    its request.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        if not isinstance(engine, InferenceEngine):
            raise ConfigError(f"engine: found {type(engine).__name__}, wanted an InferenceEngine")
        self.engine = engine

    def __repr__(self) -> str:
        return f"<AsyncEngine of {self.engine!r}>"

    @overload
    def submit(
        self,
        prompt: Any,
        *,
        n: Literal[1] = 1,
        best_of: Literal[1] | None = None,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> GenerateRequest: ...

    @overload
    def submit(
        self, prompt: Any, *, session: Session | None = None, **options: Unpack[GenerateOptions]
    ) -> Request | Siblings: ...

    def submit(
        self, prompt: Any, *, session: Session | None = None, **options: Unpack[GenerateOptions]
    ) -> Any:
        """A request: `await` it for its completion, `async for` it for its pieces."""
        return self.engine.submit(prompt, session=session, **options)

    @overload
    async def generate(
        self,
        prompt: PromptList,
        *,
        n: Literal[1] = 1,
        best_of: Literal[1] | None = None,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[Completion]: ...

    @overload
    async def generate(
        self,
        prompt: SinglePrompt,
        *,
        n: Literal[1] = 1,
        best_of: Literal[1] | None = None,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> Completion: ...

    @overload
    async def generate(
        self,
        prompt: PromptList,
        *,
        n: Several,
        best_of: int | None = None,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[list[Completion]]: ...

    @overload
    async def generate(
        self,
        prompt: SinglePrompt,
        *,
        n: Several,
        best_of: int | None = None,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[Completion]: ...

    @overload
    async def generate(
        self,
        prompt: PromptList,
        *,
        best_of: Several,
        n: int = 1,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[list[Completion]]: ...

    @overload
    async def generate(
        self,
        prompt: SinglePrompt,
        *,
        best_of: Several,
        n: int = 1,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[Completion]: ...

    @overload
    async def generate(
        self,
        prompt: SinglePrompt,
        *,
        session: Session | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion]: ...

    @overload
    async def generate(
        self,
        prompt: Prompt | Iterable[Prompt] | None,
        *,
        session: Session | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion] | list[list[Completion]]: ...

    async def generate(
        self, prompt: Any, *, session: Session | None = None, **options: Unpack[GenerateOptions]
    ) -> Any:
        """The completion of a prompt, or of each prompt of a list; an error of one cancels the
        others. If the engine's queue is full, prompts of a list wait until one of them has ended.
        """
        refuse_resumable(options)
        prompt, many = separated(prompt, in_session=session is not None)
        if many:
            # what is an iterator counts for every prompt
            read = {
                name: tuple(value) if isinstance(value, Iterator) else value
                for name, value in options.items()
            }
            begin = partial(self.engine.submit, session=session, **read)
            return await _all_finished("prompts", prompt, begin)
        return await self.engine.submit(prompt, resumable=True, session=session, **options)

    async def stream(
        self, prompt: Any, *, session: Session | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncIterator[Piece]:
        """The pieces of a completion as they are generated."""
        refuse_resumable(options)
        request = self.engine.submit(prompt, resumable=True, session=session, **options)
        async for piece in aiter(request):
            yield piece

    async def beam_generate(
        self,
        prompt: Any,
        config: BeamSearchConfig | None = None,
        *,
        session: Session | None = None,
        **options: Unpack[SingleOptions],
    ) -> list[BeamHypothesis]:
        """The likeliest continuations of a prompt, best first."""
        request = self.engine.submit_beams(prompt, config, session=session, **options)
        found: list[BeamHypothesis] = await request
        return found

    @overload
    async def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        stream: Literal[True],
        session: Session | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncIterator[ChatEvent]: ...

    @overload
    async def chat(
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
    async def chat(
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
    async def chat(
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
    async def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        stream: Literal[False] = False,
        session: Session | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion]: ...

    @overload
    async def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        stream: bool,
        session: Session | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion] | AsyncIterator[ChatEvent]: ...

    async def chat(
        self,
        messages: Any,
        *,
        stream: bool = False,
        session: Session | None = None,
        **options: Unpack[ChatOptions],
    ) -> Any:
        """The reply to a conversation. With `stream`, an iterator of its events: `async for event
        in await engine.chat(..., stream=True)`.
        """
        refuse_resumable(options)
        checked_flag("stream", stream)
        request = self.engine.submit_chat(messages, resumable=True, session=session, **options)
        return _Events(request) if stream else await request

    async def embed(
        self,
        text: Any,
        *,
        pooling: PoolingMode | str | None = None,
        normalize: bool | None = None,
        lora: Any = None,
    ) -> np.ndarray:
        """The vector of a text or of token ids; arguments are those of `InferenceEngine.embed`."""
        request, pooler = self.engine.submit_embedding(
            text, pooling=pooling, normalize=normalize, lora=lora
        )
        await request
        return pooler.result()

    async def embed_batch(
        self,
        texts: Iterable[Any],
        *,
        pooling: PoolingMode | str | None = None,
        normalize: bool | None = None,
        lora: Any = None,
    ) -> np.ndarray | list[np.ndarray]:
        """The vectors of many texts; see `InferenceEngine.embed_batch`."""
        loaded = self.engine.loaded
        texts, mode = batch_of(loaded.model, texts, pooling, normalize)
        vectors = await self._pooled("texts", texts, pooling=mode, normalize=normalize, lora=lora)
        return stacked(loaded.core, loaded.model, vectors, mode)

    async def rerank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        top_n: int | None = None,
        label: str | None = None,
    ) -> list[RankedDocument]:
        """(index, score) of documents, the most relevant to a query first; see
        `InferenceEngine.rerank`.
        """
        if top_n is not None:
            top_n = whole("top_n", top_n, 1)
        model = self.engine.loaded.model
        number = scored_label(model, label)
        pairs = pairs_of(model, self.engine.tokenizer, query, documents)
        scores = await self._pooled("documents", pairs, pooling=PoolingMode.RANK)
        return ranked((each[number] for each in scores), top_n)

    async def _pooled(self, name: str, inputs: Iterable[Any], **options: Any) -> list[np.ndarray]:
        """The vectors of a list of that name."""
        poolers: list[Pooler] = []

        def begin(given: Any) -> Request:
            request, pooler = self.engine.submit_embedding(given, **options)
            poolers.append(pooler)
            return request

        await _all_finished(name, inputs, begin)
        return [pooler.result() for pooler in poolers]

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.engine.close)


async def _all_finished(
    name: str, inputs: Iterable[Any], begin: Callable[[Any], Request | Siblings]
) -> list[Any]:
    """The results of the requests that `begin` submits for a list of that name; an error of one
    cancels the others. If the engine's queue is full, what is left waits until an earlier request
    has ended.
    """
    begun: list[Request | Siblings] = []
    try:
        for at, each in enumerate(inputs):
            while True:
                try:
                    with naming(f"{name}[{at}]"):
                        made = begin(each)
                    break
                except QueueFull:
                    running = next((other for other in begun if not other.done), None)
                    if running is None:
                        raise
                    await running
            begun.append(made)
        return list(await asyncio.gather(*begun))
    except BaseException:  # gather leaves the others running
        for request in begun:
            request.cancel()
        raise


class _Events:
    """The events of a chat's request. Closing or dropping them stops it, even if they were never
    iterated over: the code of a generator that was not begun does not run.
    """

    __slots__ = ("_events", "_request")

    def __init__(self, request: Any) -> None:
        self._request = request
        self._events: Any = aiter(request)

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> ChatEvent:
        event: ChatEvent = await self._events.__anext__()
        return event

    async def aclose(self) -> None:
        """Stop; the engine ends the request within a few milliseconds."""
        self._request.cancel()
        await self._events.aclose()

    def __del__(self) -> None:
        self._request.cancel()
