"""`SpeculativeDecoder`: a `SpeculativeEngine` with background drafting and a number of threads for
its draft.
"""

from __future__ import annotations

import threading
from typing import Any

from oxillama._core.threads import default_threads
from oxillama.arguments import OPTION_NAMES
from oxillama.completion import Completion, Piece, SpecStats
from oxillama.engine.config import EngineConfig
from oxillama.engine.request import Request, finished
from oxillama.engine.stream import Stream
from oxillama.errors import ConfigError, not_pickled
from oxillama.speculative.config import AsyncSpecConfig, SpeculativeConfig
from oxillama.speculative.engine import SpeculativeEngine


class CancellationToken:
    """Stops every request that was started with it. `cancel` can be called from any thread, at any
    time, more than once.
    """

    __slots__ = ("_cancelled", "_lock", "_requests")

    __reduce__ = not_pickled(
        "token: cancels requests of this process",
        "make one for each of the others",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self._cancelled = False

    def __repr__(self) -> str:
        """Whether `cancel` was called."""
        return f"<CancellationToken {'cancelled' if self._cancelled else 'not cancelled'}>"

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Stop now, and stop later requests with this token at once."""
        with self._lock:
            self._cancelled = True
            requests, self._requests = self._requests, []
        for request in requests:
            request.cancel()

    def stops(self, request: Request) -> None:
        """Cancel a request on cancellation, or now if it is already cancelled. Ended requests are
        not kept.
        """
        with self._lock:
            if not self._cancelled:
                self._requests = [*(each for each in self._requests if not each.done), request]
                return
        request.cancel()


class SpeculativeDecoder:
    """Generates with a target while a draft works ahead in a separate thread. Close it, or use it
    in a `with` block; if it is dropped, its thread ends after its requests.

    target, draft: as in `SpeculativeConfig`; a draft that is loaded here has `draft_threads`
    workers.
    """

    def __init__(self, config: AsyncSpecConfig, target: Any = None, draft: Any = None) -> None:
        if not isinstance(config, AsyncSpecConfig):
            raise ConfigError(f"config: found {type(config).__name__}, wanted an AsyncSpecConfig")
        self.config = config
        self._requests: list[Request] = []
        threads = config.draft_threads or max(1, default_threads() // 2)
        self.engine = SpeculativeEngine(
            SpeculativeConfig(
                target,
                draft,
                num_speculative=config.spec_k,
                draft_sampler=config.draft_sampler,
                adaptive=config.adaptive,
            ),
            background=True,
            draft_config=EngineConfig(num_threads=threads),
        )

    def __repr__(self) -> str:
        """The engine of its target."""
        return f"<SpeculativeDecoder of {self.engine.target!r}>"

    def submit(
        self, prompt: Any, *, cancel: CancellationToken | None = None, **options: Any
    ) -> Request:
        """Start a generation and return at once; options are those of `InferenceEngine.submit`."""
        if not any(OPTION_NAMES.get(name, name) == "max_tokens" for name in options):
            options["max_tokens"] = self.config.max_tokens
        if self.config.target_sampler is not None and prompt is not None:
            options.setdefault("sampler", self.config.target_sampler)
        request = self.engine.submit(prompt, drafting=not self.config.force_n1, **options)
        self._requests = [each for each in self._requests if not each.done] + [request]
        if cancel is not None:
            cancel.stops(request)
        return request

    def generate(
        self, prompt: Any, *, cancel: CancellationToken | None = None, **options: Any
    ) -> Completion:
        """The completion of a prompt (text or token ids); finish_reason is "cancelled" if the token
        was cancelled before the end.
        """
        return finished(self.submit(prompt, cancel=cancel, **options))

    def stream(
        self, prompt: Any, *, cancel: CancellationToken | None = None, **options: Any
    ) -> Stream[Piece]:
        """The pieces of the completion as they are generated."""
        return Stream(self.submit(prompt, cancel=cancel, **options))

    @property
    def stats(self) -> SpecStats:
        """The counts of the last request's candidates."""
        return self.engine.stats

    @property
    def stale(self) -> int:
        """Runs of candidates that were dropped because the text continued differently."""
        background = self.engine.background
        return 0 if background is None else background.stale

    def close(self) -> None:
        """Stop the requests and the draft's thread; safe to call twice."""
        for request in self._requests:
            request.cancel()
            request.wait()
        self.engine.close()

    def __enter__(self) -> SpeculativeDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
