"""`AsyncEngine`: the engine for `asyncio`, without a thread per request: the loop's thread tells
the event loop what came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from oxillama.engine.request import Completion, Piece, Request
from oxillama.errors import ConfigError


class AsyncEngine:
    """Awaitable doors of an engine; options are those of `generate`. A cancelled task cancels its
    request.
    """

    def __init__(self, engine: Any) -> None:
        if not hasattr(engine, "submit_each"):
            raise ConfigError(f"engine: found {type(engine).__name__}, wanted an InferenceEngine")
        self.engine = engine

    def submit(self, prompt: Any, **options: Any) -> Request:
        """A request: `await` it for its completion, `async for` it for its pieces."""
        return self.engine.submit(prompt, **options)

    async def generate(self, prompt: Any, **options: Any) -> Completion | list[Completion]:
        """The completion of a prompt, or of each prompt of a list; an error of one cancels the
        others.
        """
        if self.engine.is_many(prompt):
            requests: list[Request] = []
            try:
                requests.extend(self.engine.submit_each(prompt, **options))
                return list(await asyncio.gather(*requests))
            except BaseException:  # gather leaves the others running
                for request in requests:
                    request.cancel()
                raise
        return await self.engine.submit(prompt, live=True, **options)

    async def stream(self, prompt: Any, **options: Any) -> AsyncIterator[Piece]:
        """The pieces of a completion as they come."""
        async for piece in self.engine.submit(prompt, live=True, **options):
            yield piece

    async def beam_generate(self, prompt: Any, config: Any = None, **options: Any) -> list:
        """The likeliest continuations of a prompt, best first."""
        return await self.engine.submit_beams(prompt, config, **options)

    async def chat(
        self, messages: Any, *, stream: bool = False, **options: Any
    ) -> Completion | AsyncIterator:
        """The reply to a conversation; with `stream` its events as they come: `async for event in
        await engine.chat(..., stream=True)`.
        """
        request = self.engine.submit_chat(messages, live=True, **options)
        return aiter(request) if stream else await request

    async def embed(self, text: Any, **options: Any) -> Any:
        """The vector of a text or of token ids."""
        request, pooler = self.engine.submit_embedding(text, **options)
        await request
        return pooler.result()

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.engine.close)
