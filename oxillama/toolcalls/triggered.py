"""`TriggeredGrammar`: free text in which a constraint begins at the opening of a tool call, and
ends with it.

A state stands in free text or in a call. In free text every token may come but those that would
open a call and go on wrongly (they are found once per beginning of the opening that the text ends
in); in a call the mask is that of the call's grammar. A bare beginning such as `{"name":` or `[f(`
of a known tool counts where a reply, or what follows a call, begins.

Invariants: (1) the bytes consumed since a call opened are always a beginning of the call grammar's
texts; (2) a mask holds exactly the tokens that `TokenMasker.advance` takes, except that in a call
no token reaches beyond the call's end; (3) without `parallel` nothing follows the first call; (4) a
state that was restored, in whatever process, goes on as the one that was saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from oxillama.errors import ConfigError, GrammarError
from oxillama.grammar import Grammar, GrammarLimits, GrammarState, TokenMasker
from oxillama.grammar.automaton import read_saved
from oxillama.toolcalls.constraint import ToolCallGrammar
from oxillama.toolcalls.events import Text
from oxillama.toolcalls.formats import ToolCallFormat, format_of
from oxillama.toolcalls.opening import SPACE, bare_templates, search
from oxillama.toolcalls.reasoning import ReasoningFormat, ReasoningSplitter
from oxillama.toolcalls.tools import tools_of

VERSION = 1  # of descriptions and saved states
_KEPT = 64  # masks of free text
_SPACE = SPACE.encode()


def _bytewise(text: str) -> str:
    """The UTF-8 bytes of a text, a character each."""
    return text.encode().decode("latin-1")


class TriggeredGrammar:
    """What `tool_choice` "auto" allows: any text, and calls that follow the tools' schemas.
    Arguments are those of `ToolCallGrammar`.

    reasoning: regions that may come first, in which nothing is constrained; reasoning_opened: the
    prompt has opened one. parallel: more than one call may come; without it the reply ends with its
    first call.
    """

    def __init__(
        self,
        format: str | ToolCallFormat,
        tools: Iterable[Any],
        *,
        reasoning: ReasoningFormat | None = None,
        reasoning_opened: bool = False,
        parallel: bool = True,
        closed: bool = True,
        strict: bool = True,
        token_ids: Mapping[str, int] | None = None,
        limits: GrammarLimits | None = None,
    ) -> None:
        self.format, self.tools = format_of(format), tools_of(tools)
        if self.format.style == "harmony":
            raise ConfigError(
                "tool call format harmony: has no free text, wanted the grammar of a whole reply (ReplyGrammar)"
            )
        self.parallel, self.closed, self.strict, self.limits = (
            bool(parallel),
            bool(closed),
            bool(strict),
            limits,
        )
        # One block of calls; the next block has an opening of its own.
        several = parallel and (
            self.format.style == "array"
            or bool(self.format.lead)
            or (not self.format.close and self.format.style != "named")
        )
        self.calls: Grammar = ToolCallGrammar(
            self.format,
            self.tools,
            parallel=several,
            closed=closed,
            strict=strict,
            token_ids=token_ids,
            limits=limits,
        )
        self.token_ids = dict(token_ids or {})
        self.names = frozenset(tool.name for tool in self.tools)
        # Bytes are searched as Latin-1, where every byte is a character, so that delimiters may be
        # cut anywhere.
        self.opener = _bytewise(self.format.open)
        self.reasoning, self.reasoning_opened = reasoning, reasoning_opened
        self.templates = bare_templates(self.format, trigger=True)
        self._firsts = {template[:1].encode() for template in self.templates}
        # as a grammar with token terminals: whether a token may come is asked by its id too
        self.tokens = ("",)
        self._masks: dict[tuple, np.ndarray | None] = {}
        self._candidates: tuple[Any, list[int]] = (None, [])

    def state(self, masker: TokenMasker | None = None) -> TriggeredState:
        """A state at the beginning of a reply; with a `TokenMasker` it can give masks and take
        tokens.
        """
        return TriggeredState(self, masker)

    def describe(self) -> dict[str, Any]:
        """Everything that makes an equal grammar, as JSON values: what `constraint_of` takes."""
        return {
            "kind": "tools",
            "version": VERSION,
            "format": asdict(self.format),
            "tools": [tool.listed() for tool in self.tools],
            "tool_choice": "auto",
            "reasoning": None if self.reasoning is None else asdict(self.reasoning),
            "reasoning_opened": self.reasoning_opened,
            "parallel": self.parallel,
            "closed": self.closed,
            "strict": self.strict,
            "token_ids": self.token_ids,
            "limits": None if self.limits is None else asdict(self.limits),
        }

    @cached_property
    def mark(self) -> str:
        """A digest of the description: equal grammars have equal marks."""
        try:
            text = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise GrammarError(f"tools: cannot be described as JSON ({error})") from None
        return hashlib.sha256(text.encode()).hexdigest()

    def symbol(self, token: int | None) -> int:
        """Every token is one that the grammar may name; its states decide."""
        return 1

    def candidates(self, masker: TokenMasker) -> list[int]:
        """Tokens that might open a call: those with the last byte of an opening in them."""
        if self._candidates[0] is not masker:
            ends = {
                *self.opener[-1:].encode("latin-1"),
                *(template.encode()[-1] for template in self.templates),
            }
            found = [masker.tokens_with(end) for end in ends]
            self._masks.clear()
            self._candidates = (masker, np.unique(np.concatenate(found)).tolist() if found else [])
        return self._candidates[1]

    def free_mask(self, state: TriggeredState) -> np.ndarray | None:
        """The mask in free text, None where every token may come."""
        masker = state.masker
        wrong = self.candidates(masker)
        region = state.region
        held = b"" if region is None or region.over else region.held.encode("latin-1")
        key = (state.fresh, state.tail, held, region is None or region.over)
        if key in self._masks:
            return self._masks[key]
        before = state.tail + held
        banned = [
            token
            for token in wrong
            if self._may_open(before + masker.vocab_bytes[token], state)
            and not state.fork().try_advance(masker.vocab_bytes[token])
        ]
        mask = None
        if banned:
            mask = np.full((masker.vocab_size + 31) // 32, 0xFFFFFFFF, np.uint32)
            tokens = np.array(banned)
            np.bitwise_and.at(mask, tokens >> 5, ~(np.uint32(1) << (tokens & 31).astype(np.uint32)))
            mask.flags.writeable = False
        if len(self._masks) >= _KEPT:
            self._masks.clear()
        self._masks[key] = mask
        return mask

    def _may_open(self, data: bytes, state: TriggeredState) -> bool:
        """Whether an opening may end in these bytes; cheap, and never False where one does."""
        if self.opener and self.opener.encode("latin-1") in data:
            return True
        if not state.fresh or not self.templates:
            return False
        over = state.region is None or state.region.over
        return data.lstrip(_SPACE)[:1] in self._firsts or (
            not over and self.reasoning.close.encode()[-1] in data
        )


class TriggeredState:
    """Where a reply stands. `call` is the state inside a call, None in free text; `tail` what may
    begin an opening.
    """

    __slots__ = ("call", "fresh", "grammar", "masker", "region", "tail")

    def __init__(self, grammar: TriggeredGrammar, masker: TokenMasker | None = None) -> None:
        self.grammar, self.masker = grammar, masker
        self.call: GrammarState | None = None
        self.tail = b""
        self.fresh = True
        self.region: ReasoningSplitter | None = None  # None: no region may come
        if grammar.reasoning is not None:
            bytewise = ReasoningFormat(
                _bytewise(grammar.reasoning.open), _bytewise(grammar.reasoning.close)
            )
            self.region = ReasoningSplitter(bytewise, opened=grammar.reasoning_opened)

    @property
    def inside(self) -> bool:
        """Whether the constraint is on."""
        return self.call is not None

    def try_advance(self, data: bytes, token: int | None = None) -> bool:
        """Consumes bytes (with a token's id, where delimiters are tokens); False where a call they
        are in, or open, does not allow them.
        """
        if self.region is not None and not self.region.over:
            data = self._after_region(data, token)
            if not data and not self.region.over:
                return True
        opener = self.grammar.format.open
        if token is not None and self.call is None and self.grammar.token_ids.get(opener) == token:
            return self._open(b"", token)
        if self.call is None:
            return self._free(data)
        if data:
            return self._through(data)
        if token is None:
            return True
        if self.call.grammar.symbol(token) <= 0 or not self.call.allows_token(b"", token):
            return False
        self.call.advance(b"", token)
        self._close_if_over()
        return True

    def advance(self, data: bytes, token: int | None = None) -> None:
        """The same; raises GrammarError where it is not allowed, and the state must not be used any
        more.
        """
        if not self.try_advance(data, token):
            raise GrammarError(
                f"tool call: {bytes(data[:40])!r} is not allowed here, wanted a call of {', '.join(sorted(self.grammar.names))}"
            )

    def mask(self) -> np.ndarray | None:
        """The bitset of tokens that may come next, as `GrammarState.mask`; None where all may."""
        return self.grammar.free_mask(self) if self.call is None else self.call.mask()

    def forced(self, limit: int = 4096) -> bytes:
        """The bytes that every continuation starts with, as `GrammarState.forced`; none in free
        text.
        """
        return b"" if self.call is None else self.call.forced(limit)

    def is_complete(self) -> bool:
        """Whether generation may end here: in free text, or after a call that is whole."""
        return self.call is None or self.call.is_complete()

    def only_end(self) -> bool:
        """Whether nothing but the end may follow: after the one call of a reply that may hold no
        more.
        """
        return self.call is not None and not self.grammar.parallel and self.call.only_end()

    def fork(self) -> TriggeredState:
        """An independent state at the same place."""
        twin = TriggeredState(self.grammar, self.masker)
        twin.call = None if self.call is None else self.call.fork()
        twin.tail, twin.fresh = self.tail, self.fresh
        twin.region = None if self.region is None else self.region.fork()
        return twin

    def describe(self) -> dict[str, Any]:
        """The grammar's own description."""
        return self.grammar.describe()

    def serialise(self) -> bytes:
        """The position as bytes for `restore`."""
        region = None if self.region is None else [self.region.place, self.region.held]
        saved = {
            "version": VERSION,
            "grammar": self.grammar.mark,
            "tail": self.tail.decode("latin-1"),
            "fresh": self.fresh,
            "region": region,
        }
        return json.dumps(
            {**saved, "call": None if self.call is None else self.call.journal()},
            separators=(",", ":"),
        ).encode("ascii")

    @classmethod
    def restore(
        cls, data: bytes, *, grammar: TriggeredGrammar, masker: TokenMasker | None = None
    ) -> TriggeredState:
        """The state that `serialise` saved, under an equal grammar. Raises GrammarError for bytes
        that are no such state.
        """
        saved = read_saved(data, "tool call state", VERSION)
        if saved.get("grammar") != grammar.mark:
            raise GrammarError(
                "tool call state: was saved under another constraint than the one given"
            )
        state = cls(grammar, masker)
        try:
            state.tail, state.fresh = saved["tail"].encode("latin-1"), saved["fresh"]
            if not isinstance(state.fresh, bool) or (saved["region"] is None) != (
                state.region is None
            ):
                raise ValueError(f"found {state.fresh!r} and a region {saved['region']!r}")
            if state.region is not None:
                place, held = saved["region"]
                held.encode("latin-1")
                state.region = ReasoningSplitter.at(state.region.format, place, held)
            if saved["call"] is not None:
                state.call = grammar.calls.state(masker)
                state.call.replay(saved["call"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GrammarError(f"tool call state: malformed ({error})") from None
        return state

    def _after_region(self, data: bytes, token: int | None) -> bytes:
        """Feeds a region; returns what is no part of it."""
        kind = self.grammar.reasoning
        for text in (kind.open, kind.close):
            if token is not None and self.grammar.token_ids.get(text) == token:
                data = text.encode()
        events = self.region.feed(data.decode("latin-1"))
        return "".join(event.raw for event in events if isinstance(event, Text)).encode("latin-1")

    def _free(self, data: bytes) -> bool:
        """Free text: look for an opening in it."""
        grammar, text = self.grammar, (self.tail + data).decode("latin-1")
        while text:
            opening, sure = search(
                grammar.format,
                text,
                fresh=self.fresh,
                templates=grammar.templates,
                names=grammar.names,
                opener=grammar.opener,
            )
            if opening is not None and opening.start == 0:
                self.tail = b""
                return self._open(text.encode("latin-1"), None)
            if not sure:
                break
            self.fresh = self.fresh and not text[:sure].strip()
            text = text[sure:]
        self.tail = text.encode("latin-1")
        return True

    def _open(self, data: bytes, token: int | None) -> bool:
        """A call begins with these bytes."""
        self.call = self.grammar.calls.state(self.masker)
        self.tail = b""
        if token is None:
            return self._through(data)
        self.call.advance(b"", token)
        return True

    def _through(self, data: bytes) -> bool:
        """Bytes in a call that may reach beyond its end: what the call takes, then free text."""
        for at in range(len(data)):
            byte = data[at : at + 1]
            if not self.call.allows_token(byte):
                if not self.call.is_complete() or not self.grammar.parallel:
                    return False
                self._leave()
                return self._free(data[at:])
            self.call.advance(byte)
        self._close_if_over()
        return True

    def _close_if_over(self) -> None:
        if self.grammar.parallel and self.call.only_end():
            self._leave()

    def _leave(self) -> None:
        self.call, self.fresh = None, bool(self.grammar.templates)
