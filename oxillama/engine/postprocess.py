"""What follows from a row of logits: a token, its text, and whether the request ends."""

from __future__ import annotations

import numpy as np

from oxillama.engine.images import moved, outside
from oxillama.engine.request import Request
from oxillama.engine.session import Session

MOST_FORCED = 32  # tokens that a grammar forces, taken after one draw


def advance(request: Request, row: np.ndarray, context_size: int) -> str | None:
    """Draw a request's next token, add it to its session and tell its callers; returns why the
    request ends, None when it goes on.

    Tokens that the grammar forces after it come along without a row of logits each: they go into
    the next step together.

    A token that stops is not part of the text: the session keeps its logits and would draw again
    from them.
    """
    session = request.session
    if request.max_tokens == 0:
        session.pending = row.copy()
        return "length"
    grammar, speculation = session.grammar, request.speculation
    mask = None if grammar is None else grammar.mask()
    token = (
        session.sampler.sample(row, mask)
        if speculation is None
        else speculation.draw(session.sampler, row, mask)
    )
    if token in request.stop_ids:
        session.pending = row.copy()
        _say_rest(request)
        return "stop"
    reason = _take(request, token, context_size)
    if grammar is not None and request.takes_forced:
        most = len(request.generated) + MOST_FORCED
        while (
            reason is None
            and len(request.generated) < most
            and (token := _forced(request)) is not None
        ):
            reason = _take(request, token, context_size)
    return reason


def only_token(mask: np.ndarray | None) -> int | None:
    """The token of a mask that allows one alone; None for every other mask, and for none."""
    if mask is None or np.count_nonzero(mask) != 1:
        return None
    at = int(mask.argmax())
    word = int(mask[at])
    return None if word & (word - 1) else 32 * at + word.bit_length() - 1


def _forced(request: Request) -> int | None:
    """The next token where the grammar leaves one alone: it is what a draw would give, and the
    sampler is left as a draw would leave it.
    """
    session = request.session
    token = only_token(session.grammar.mask())
    if token is None or token in request.stop_ids or not session.sampler.pass_over(token):
        return None
    if request.speculation is not None:
        request.speculation.passed(token)
    return token


def _take(request: Request, token: int, context_size: int) -> str | None:
    """Make a token part of the text; returns why the request ends, None when it goes on."""
    session = request.session
    sampler, grammar = session.sampler, session.grammar
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
    if len(request.generated) == request.max_tokens or (
        len(session.tokens) >= context_size and not _shift(request)
    ):
        _flush(request)
        return "length"
    return None


def _say(request: Request, text: str) -> bool:
    """Pass text through the stop filter to the callers; True when a stop string was completed."""
    session, stopped = request.session, False
    if session.at_start and text:
        text, session.at_start = text.removeprefix(" "), False
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
    """Make room at the end of the context: keep the first tokens, forget the older half of the
    rest. False where it was not asked for.
    """
    keep, session = request.shift_keep, request.session
    if keep is None:
        return False
    shift_context(session, keep)
    request.shifts += 1
    return True


def shift_context(session: Session, keep: int) -> None:
    """Forget the older half of the tokens after the first `keep`; those that moved will be
    evaluated again, at their new positions.
    """
    keep = outside(session.images, keep)
    drop = outside(session.images, keep + max(1, (len(session.tokens) - keep) // 2)) - keep
    del session.tokens[keep : keep + drop]
    session.images = (
        *(each for each in session.images if each.end <= keep),
        *moved((each for each in session.images if each.start >= keep + drop), -drop),
    )
    session.start = max(keep, session.start - drop)
    session.kv.truncate(min(keep, session.kv.length))
