"""`Job`: one generation for a client, from its preparation outside the event loop to its last
token; cancelled as soon as its client disconnects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from oxillama.completion import Completion
from oxillama.engine.request import GenerateRequest, Request
from oxillama.server.calls import Call
from oxillama.server.errors import from_engine
from oxillama.server.ids import new_number
from oxillama.server.models import ServedModel
from oxillama.server.state import ServerState
from oxillama.tokenizer import TokenizerBridge


class Work(Protocol):
    """The submitted work: a request, siblings, or a batch of embeddings."""

    def result(self, timeout: float | None = None) -> Any:
        """What comes of it."""

    def cancel(self) -> None:
        """End it."""


class Job:
    """One prompt's generation. `requests` are its completions; `param` is the field of its prompt,
    `constraint` that of its constraint, for errors.
    """

    __slots__ = (
        "_closed",
        "_made",
        "abandoned",
        "call",
        "constraint",
        "id",
        "model",
        "params",
        "param",
        "requests",
        "slot",
        "started",
        "state",
    )

    def __init__(
        self,
        call: Call,
        model: ServedModel,
        *,
        param: str,
        constraint: str | None = None,
        params: dict[str, Any] | None = None,
    ) -> None:
        self.state: ServerState = call.state
        self.call, self.model, self.param, self.constraint = call, model, param, constraint
        self.params = params or {}
        self.requests: tuple[Request, ...] = ()
        self.started = time.perf_counter()
        self.id = new_number()
        self.slot = -1
        self._made: Work | None = None
        self._closed = False
        self.abandoned = False  # by its client, before it was prepared

    async def __aenter__(self) -> Job:
        self.model.users += 1  # from the first: who waits may outlast the call of the route
        try:
            await self.state.enter(self)
        except BaseException:
            self.state.models.release(self.model)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def begin(self, make: Callable[[], Any]) -> Work:
        """Prepare and submit, outside the event loop, in addition to what was submitted before;
        returns the work. An error of the engine becomes an ApiError.
        """
        pool = self.state.bulk if self.call.large else self.state.pool
        future = pool.submit(make)
        making = asyncio.wrap_future(future)
        try:
            await asyncio.wait((making,))
            made = making.result()
        except asyncio.CancelledError:
            self.abandoned = True
            making.add_done_callback(_looked_at)  # retrieves its error
            if not future.cancel():  # it runs already, or has run
                future.add_done_callback(_cancel_made)
            raise
        except Exception as error:
            raise from_engine(error, param=self.param, constraint=self.constraint) from error
        work: Work = made
        new = _requests_of(work)
        self._made, self.requests = work, (*self.requests, *new)
        for request in new:
            request.listen(self._progress, in_loop=True)
        return work

    async def results(self, work: Work | None = None) -> list[Any]:
        """The results of some work, by default of the last: completions, best first if more were
        drawn than wanted; or vectors.
        """
        bell, ring = self.state.waker.bell(), self.state.waker.ring
        made = self._made if work is None else work
        requests = () if made is None else _requests_of(made)

        def tell() -> None:
            if all(request.done for request in requests):
                ring(bell)

        for request in requests:
            request.listen(tell, in_loop=True)
        if not all(request.done for request in requests):
            await bell.wait()
        try:
            done = made.result(0) if made is not None else []
        except Exception as error:
            raise from_engine(error, param=self.param) from error
        done = done if isinstance(done, list) else [done]
        if isinstance(done[0], Completion):
            self.call.log_fields["finish_reason"] = done[0].finish_reason
        return done

    async def pieces(
        self, readers: Sequence[Any] | None = None, *, texts: bool = False
    ) -> AsyncIterator[list[tuple[int, Any]]]:
        """(number of the completion, its next piece or event) as they arrive; the last of each is a
        `Completion`. readers: make the events of each completion's pieces. texts: lists of texts
        instead of pieces, which is cheaper.
        """
        bell, ring = self.state.waker.bell(), self.state.waker.ring
        requests = self.requests

        def telling(request: Request) -> Callable[[], None]:
            def tell() -> None:
                ring(bell, at_once=len(request.pieces) < 2 or request.done)

            return tell

        for request in requests:
            request.listen(telling(request), in_loop=True)
        at = [0] * len(requests)
        left = list(range(len(requests)))
        while left:
            bell.clear()
            came: list[tuple[int, Any]] = []
            try:
                for index in tuple(left):
                    request, reader = requests[index], readers[index] if readers else None
                    ended = request.done  # before the look: nothing comes after it
                    new = range(at[index], len(request.pieces))
                    at[index] = new.stop
                    if reader is not None:
                        came += [
                            (index, each) for one in new for each in reader.feed(request.piece(one))
                        ]
                    elif texts:
                        if new:
                            came.append((index, [request.pieces[one][0] for one in new]))
                    else:
                        came += [(index, request.piece(one)) for one in new]
                    if ended:
                        left.remove(index)
                        came += self._last(index, reader, texts=texts)
            except Exception:
                if came:
                    yield came
                raise
            if came:
                yield came
            if left:
                await bell.wait()

    def _last(self, index: int, reader: Any, *, texts: bool) -> list[tuple[int, Any]]:
        """The end of a completion's pieces."""
        request = self.requests[index]
        try:
            done, piece = request.result(0), request.last_piece()
        except Exception as error:
            raise from_engine(error, param=self.param) from error
        self.call.log_fields["finish_reason"] = done.finish_reason
        if texts:
            rest = []  # it has none
        elif reader is None:
            rest = [piece] if piece.tokens else []
        else:
            rest = list(reader.finish(piece, done))
        return [(index, each) for each in (*rest, done)]

    def close(self) -> None:
        """Cancel what still runs, count it, and release its slot."""
        if self._closed:
            return
        self._closed = True
        for request in self.requests:
            request.cancel()
        self.state.leave(self)
        self.state.models.release(self.model)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, 0 before it is prepared."""
        if not self.requests:
            return 0
        first = self.requests[0]
        if isinstance(first, GenerateRequest):
            return first.prompt_tokens
        return sum(len(each.session.tokens) for each in self.requests)

    @property
    def generated(self) -> int:
        """Tokens so far, of all completions."""
        return sum(len(request.generated) for request in self.requests)

    def times(self) -> dict[str, float]:
        """Seconds of its parts: queue, prefill, decode, e2e."""
        now = time.perf_counter()
        if not self.requests:
            return {"queue": 0.0, "prefill": 0.0, "decode": 0.0, "e2e": now - self.started}
        request = self.requests[0]
        submitted = request.submitted_at or self.started
        admitted = request.admitted_at or now
        # the first token, which may have no text yet: the first piece comes later
        first = request.first_at or request.ended_at or now
        last = max(each.token_at for each in self.requests) or now
        return {
            "queue": max(0.0, admitted - submitted),
            "prefill": max(0.0, first - admitted),
            "decode": max(0.0, last - first) if request.first_at else 0.0,
            "e2e": now - self.started,
        }

    def _progress(self) -> None:
        """Called in the engine's thread after every piece."""
        self.state.moved_at = time.perf_counter()


def _requests_of(work: Any) -> tuple[Request, ...]:
    return tuple(getattr(work, "requests", (work,)))


def _looked_at(future: asyncio.Future) -> None:
    """Keep asyncio from logging, with its text, an error that nobody waits for any more."""
    if not future.cancelled():
        future.exception()


def _cancel_made(future: Future) -> None:
    """End what was made for a client that had left meanwhile."""
    if not future.cancelled() and future.exception() is None:
        future.result().cancel()


def reason_of(done: Completion) -> str:
    """Why a completion ended, in the words of OpenAI's API: a time-out counts as "length"."""
    return {"cancelled": "stop", "timeout": "length"}.get(done.finish_reason, done.finish_reason)


def fills_context(done: Completion, most: int | None) -> bool:
    """Whether a completion ended because the context was full, before it had `most` tokens."""
    fewer = most is None or done.usage.completion_tokens < most
    return done.finish_reason == "length" and fewer


def usage_of(done: Sequence[Completion]) -> dict[str, int]:
    """Token counts of one prompt's completions."""
    first = done[0].usage
    return {
        "prompt": first.prompt_tokens,
        "cached": min(first.cached_tokens, first.prompt_tokens),
        "generated": sum(each.usage.completion_tokens for each in done),
    }


def usage_so_far(request: Request, generated: int) -> dict[str, int]:
    """Token counts of a completion that goes on, of which so many tokens are drawn."""
    return {
        "prompt": request.prompt_tokens,
        "cached": min(request.cached, request.prompt_tokens),
        "generated": generated,
    }


# the members of `timings_json`
TIMINGS = (
    "cache_n",
    "prompt_n",
    "prompt_ms",
    "prompt_per_token_ms",
    "prompt_per_second",
    "predicted_n",
    "predicted_ms",
    "predicted_per_token_ms",
    "predicted_per_second",
)


def timings_json(requests: Sequence[Request], usage: Mapping[str, int]) -> dict[str, Any]:
    """Times and rates of one prompt's completions so far, in llama-server's form: milliseconds and
    tokens per second. usage: as of `usage_of`.
    """
    now, first = time.perf_counter(), requests[0]
    began = first.first_at or now
    prompt = max(0.0, began - (first.admitted_at or now)) * 1e3
    last = max(each.token_at for each in requests) or now
    predicted = max(0.0, last - began) * 1e3 if first.first_at else 0.0
    count, generated = max(0, usage["prompt"] - usage["cached"]), usage["generated"]
    return {
        "cache_n": usage["cached"],
        "prompt_n": count,
        "prompt_ms": prompt,
        "prompt_per_token_ms": prompt / count if count else 0.0,
        "prompt_per_second": count / prompt * 1e3 if prompt else 0.0,
        "predicted_n": generated,
        "predicted_ms": predicted,
        "predicted_per_token_ms": predicted / generated if generated else 0.0,
        "predicted_per_second": generated / predicted * 1e3 if predicted else 0.0,
    }


def stopped_by(
    done: Completion, stops: Sequence[str], bridge: TokenizerBridge, *, shown: Sequence[int] = ()
) -> str | None:
    """The stop string that ended a completion, None if something else did.

    The text ends before the stop string; the tokens include it.
    """
    if done.finish_reason not in ("stop", "tool_calls") or not stops:
        return None
    stream = bridge.stream(shown=shown)
    said = "".join(map(stream.feed, done.tokens)) + stream.flush()
    for text in (said, said.removeprefix(" ")):
        if text.startswith(done.text):
            rest = text[len(done.text) :]
            hits = [stop for stop in stops if rest.startswith(stop)]
            if hits:
                return min(hits, key=len)
    return None
