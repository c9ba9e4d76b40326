"""From a row of logits to a token, its text, and whether the request ends.

`StopText` holds back text that may be the beginning of a stop string. A stop string itself is never
shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.engine.request import GenerateRequest
from oxillama.sampling import Logprobs

MOST_FORCED = 32  # tokens that a grammar forces, taken after one draw


class OutputProcessor:
    """Draws tokens and writes their text. context_size: most tokens of a session."""

    __slots__ = ("_context_size",)

    def __init__(self, context_size: int) -> None:
        self._context_size = context_size

    def advance(self, request: GenerateRequest, row: np.ndarray) -> str | None:
        """Draw a request's next token, append it to its session and notify its callers; returns why
        the request ends, None if it continues.

        Forced tokens are appended without logits of their own and are evaluated together in the
        next step. A token that stops the request is not part of the text: the session keeps the
        logits and would draw from them again.
        """
        session = request.session
        if request.max_tokens == 0:
            session.pending = row.copy()
            return "length"
        grammar, speculation = session.grammar, request.speculation
        mask = None if grammar is None else grammar.mask()
        token = (
            session.sampler.sample(row, mask)
            if speculation is None or not speculation.judges
            else speculation.draw(session.sampler, row, mask)
        )
        if token in request.stop_ids:
            session.pending = row.copy()
            _emit_rest(request)
            return "stop"
        reason = self._take(request, token)
        if grammar is not None and request.takes_forced:
            most = len(request.generated) + MOST_FORCED
            while (
                reason is None
                and len(request.generated) < most
                and (token := _forced(request)) is not None
            ):
                reason = self._take(request, token)
        return reason

    def fill(self, request: GenerateRequest, rows: np.ndarray) -> str | None:
        """Fill masks from the rows of a pass, append the tokens that are final then, and notify the
        request's callers; returns why the request ends, None if there is another pass.
        """
        answer, session = request.fill, request.session
        assert answer is not None
        answer.take(rows)
        for at in range(len(session.tokens), answer.final):
            token = int(answer.tokens[at])
            if token in request.stop_ids:
                _emit_rest(request)
                return "stop"
            reason = self._take(request, token, answer.logprobs.get(at))
            if reason is not None:
                return reason
        return None

    def shift_full(self, request: GenerateRequest) -> None:
        """Shift a context that is full when a request begins: the one that filled it would have
        done so before its next draw, had it gone on.
        """
        full = len(request.session.tokens) >= self._context_size
        if full and request.max_tokens != 0 and _shift(request):
            request.prompt_tokens = len(request.session.tokens)

    def _take(
        self, request: GenerateRequest, token: int, logprobs: Logprobs | None = None
    ) -> str | None:
        """Append a token to the text; returns why the request ends, None if it continues. logprobs:
        None for those of the last draw.
        """
        session = request.session
        sampler, grammar = session.sampler, session.grammar
        sampler.accept(token)
        session.tokens.append(token)
        request.generated.append(token)
        logprobs = logprobs or sampler.logprobs
        if logprobs is not None:
            request.logprobs.append(logprobs)
        if grammar is not None:
            request.masker.advance(grammar, token)
        if session.text is None:
            request.push("")
        elif _emit(request, session.text.feed(token)):
            return "stop"
        if grammar is not None and grammar.only_end():
            _emit_rest(request)
            return "stop"
        if len(request.generated) == request.max_tokens or (
            len(session.tokens) >= self._context_size and not _shift(request)
        ):
            _flush(request)
            return "length"
        return None


def _forced(request: GenerateRequest) -> int | None:
    """The next token if the grammar allows only one. It equals what a draw would give, and the
    sampler's state advances in the same way.
    """
    session = request.session
    token = only_token(session.grammar.mask())
    if token is None or token in request.stop_ids or not session.sampler.pass_over(token):
        return None
    if request.speculation is not None and request.speculation.judges:
        request.speculation.token_forced(token)
    return token


def only_token(mask: np.ndarray | None) -> int | None:
    """The token of a mask that allows exactly one; None for every other mask and for no mask."""
    if mask is None or np.count_nonzero(mask) != 1:
        return None
    at = int(mask.argmax())
    word = int(mask[at])
    return None if word & (word - 1) else 32 * at + word.bit_length() - 1


def _emit(request: GenerateRequest, text: str) -> bool:
    """Pass text through the stop filter to the callers; True if a stop string was completed."""
    session, stopped = request.session, False
    stops = session.stops
    if session.at_start and text:
        text, session.at_start = text.removeprefix(" "), False
    if stops.stops and session.sampler.generated >= request.min_tokens:
        text, stopped = stops.feed(text)
    elif stops.tail:
        text = stops.skip(text)
    if text:
        request.push(text)
    return stopped


def _emit_rest(request: GenerateRequest) -> None:
    """The text has ended: emit what the decoder and the stop filter hold."""
    if request.session.text is not None and not _emit(request, request.session.text.flush()):
        _flush(request)


def _flush(request: GenerateRequest) -> None:
    """Emit what the stop filter holds; the decoder keeps an unfinished character for a
    continuation.
    """
    text = request.session.stops.flush() if request.session.stops is not None else ""
    if text:
        request.push(text)


def _shift(request: GenerateRequest) -> bool:
    """Make space at the end of the context: keep the first tokens, drop the older half of the rest.
    False if this was not asked for.
    """
    keep, session = request.shift_keep, request.session
    if keep is None:
        return False
    if not request.shifts:
        request.shifted_prompt = request.prompt_ids
    session.shift(keep)
    request.shifts += 1
    return True


class StopText:
    """A stop filter. `tail` is the end of all text so far, of which the last `held` characters were
    not shown.
    """

    __slots__ = ("_longest", "_reach", "held", "stops", "tail")

    def __init__(self, stops: Sequence[str], tail: str = "", held: int = 0) -> None:
        self.stops = tuple(stops)
        self.tail, self.held = tail, held
        self._longest = max(map(len, self.stops), default=0)
        # no stop string has begun before that many characters of the tail: long ones are compared
        # with what may be theirs alone
        self._reach = len(tail)

    def feed(self, text: str) -> tuple[str, bool]:
        """(text that may be shown now, whether a stop string was completed). The earliest stop
        string counts.
        """
        if not self.stops:
            return self.skip(text), False
        before, tail = len(self.tail), self.tail + text
        shown = before - self.held
        first = before - self._reach
        # one that lies wholly before this text was none then
        begins = [tail.find(stop, max(first, before + 1 - len(stop))) for stop in self.stops]
        begins = [at for at in begins if at >= 0]
        if begins:
            self.tail, self.held, self._reach = "", 0, 0
            return tail[shown : min(begins)], True
        self._reach = hold = self._may_begin(tail, len(tail) - first)
        out = tail[shown : max(shown, len(tail) - hold)]
        self.held = min(hold, len(tail) - shown)
        self.tail = tail[-max(self._longest - 1, 1) :]
        return out, False

    def flush(self) -> str:
        """The text held back, shown now. It still counts as the possible beginning of a stop string
        if more text is fed.
        """
        out = self.tail[len(self.tail) - self.held :]
        self.held = 0
        return out

    def skip(self, text: str) -> str:
        """Text in which stop strings do not count: what is shown now, with what was held back."""
        out, self.tail, self._reach = self.flush() + text, "", 0
        return out

    def fork(self, stops: Sequence[str] | None = None) -> StopText:
        """An independent filter in the same state; of these stop strings, if they are given, which
        may have begun already.
        """
        if stops is None:
            twin = StopText(self.stops, self.tail, self.held)
            twin._reach = self._reach
            return twin
        keep = max(max(map(len, stops), default=0) - 1, bool(stops), self.held)
        return StopText(stops, self.tail[max(0, len(self.tail) - keep) :], self.held)

    def _may_begin(self, tail: str, most: int) -> int:
        """Length of the longest suffix of `tail` that is a prefix of a stop string; most: its
        length at most.
        """
        best = 0
        for stop in self.stops:
            for size in range(min(len(stop) - 1, most), best, -1):
                if tail.endswith(stop[:size]):
                    best = size
                    break
        return best
