"""What follows from a row of logits: a token, its text, and whether the request ends."""
from __future__ import annotations

import numpy as np

from oxillama.engine.request import Request
from oxillama.engine.session import Session


def advance(request: Request, row: np.ndarray, context_size: int) -> str | None:
    """Draw a request's next token, add it to its session and tell its callers; returns why the request ends, None when it goes on.

    A token that stops is not part of the text: the session keeps its logits and would draw again from them.
    """
    session = request.session
    if request.max_tokens == 0:
        session.pending = row.copy()
        return "length"
    sampler, grammar = session.sampler, session.grammar
    token = sampler.sample(row, None if grammar is None else grammar.mask())
    if token in request.stop_ids:
        session.pending = row.copy()
        _say_rest(request)
        return "stop"
    sampler.accept(token)
    session.tokens.append(token)
    request.generated.append(token)
    if sampler.logprobs is not None:
        request.logprobs.append(sampler.logprobs)
    if grammar is not None:
        request.masker.advance(grammar, token)
    if session.text is None:
        request.push("")
    elif _say(request, session.text.feed(token)):
        return "stop"
    if grammar is not None and grammar.only_end():
        _say_rest(request)
        return "stop"
    if len(request.generated) == request.max_tokens or (len(session.tokens) >= context_size and not _shift(request)):
        _flush(request)
        return "length"
    return None


def _say(request: Request, text: str) -> bool:
    """Pass text through the stop filter to the callers; True when a stop string was completed."""
    session, stopped = request.session, False
    if request.at_start and text:
        text, request.at_start = text.removeprefix(" "), False
    if session.stops.stops and session.sampler.generated >= request.min_tokens:
        text, stopped = session.stops.feed(text)
    if text:
        request.push(text)
    return stopped


def _say_rest(request: Request) -> None:
    """The text is over: what the decoder and the stop filter still hold."""
    if request.session.text is not None and not _say(request, request.session.text.flush()):
        _flush(request)


def _flush(request: Request) -> None:
    """What the stop filter holds; the decoder keeps an unfinished character for whoever goes on."""
    text = request.session.stops.flush() if request.session.stops is not None else ""
    if text:
        request.push(text)


def _shift(request: Request) -> bool:
    """Make room at the end of the context: keep the first tokens, forget the older half of the rest. False where it was not asked for."""
    keep, session = request.shift_keep, request.session
    if keep is None:
        return False
    drop_half(session, keep)
    request.shifts += 1
    return True


def drop_half(session: Session, keep: int) -> None:
    """Forget the older half of the tokens after the first `keep`; those that moved will be evaluated again, at their new positions."""
    drop = max(1, (len(session.tokens) - keep) // 2)
    del session.tokens[keep:keep + drop]
    session.start = max(keep, session.start - drop)
    session.kv.truncate(min(keep, session.kv.length))
