"""Free text in which calls follow their tools' schemas from their opening on: `TriggeredGrammar`,
for tool_choice "auto".

Invariants of `TriggeredState`: (1) the bytes consumed since a call opened are always a prefix of
the call grammar's texts; (2) a mask holds exactly the tokens that `TokenMasker.advance` accepts,
except that in a call no token extends beyond the call's end; (3) without `parallel` nothing follows
the first call; (4) a restored state, in any process, continues like the one that was saved.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from oxillama.arguments import checked_flag
from oxillama.errors import ConfigError, GrammarError, not_pickled
from oxillama.grammar import Grammar, GrammarLimits, GrammarState, TokenMasker
from oxillama.grammar.automaton import read_saved
from oxillama.tokenizer import TokenizerBridge
from oxillama.toolcalls.events import Text
from oxillama.toolcalls.formats import ToolCallFormat, format_of
from oxillama.toolcalls.grammar import ToolCallGrammar
from oxillama.toolcalls.openings import SPACE, bare_templates, search
from oxillama.toolcalls.reasoning import ReasoningFormat, ReasoningSplitter
from oxillama.toolcalls.tools import tools_of

VERSION = 1  # of descriptions and saved states
_KEPT = 64  # masks of free text
_UNKNOWN = object()
_SPACE = SPACE.encode()


def _bytewise(text: str) -> str:
    """The UTF-8 bytes of a text, one character for each byte."""
    return text.encode().decode("latin-1")


def _copied(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools as they are now, whatever becomes of the caller's schemas: grammars are compiled of
    these. What is no JSON, which `mark` refuses, stays as it is.
    """
    try:
        made: list[dict[str, Any]] = json.loads(json.dumps(tools))
    except (TypeError, ValueError, RecursionError):
        return tools
    return made


class TriggeredGrammar:
    """What `tool_choice` "auto" allows: any text, and calls that follow the tools' schemas.
    Arguments are those of `ToolCallGrammar`.

    reasoning: the format of a reasoning region that may come first and is not constrained;
    reasoning_opened: the prompt has opened it. parallel: allow several calls; otherwise the reply
    ends after the first.
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
        self._listed = _copied([tool.listed() for tool in self.tools])
        if reasoning is not None and not isinstance(reasoning, ReasoningFormat):
            raise ConfigError(f"reasoning: found {reasoning!r:.50}, wanted a ReasoningFormat")
        reasoning_opened = checked_flag("reasoning_opened", reasoning_opened)
        if self.format.style == "harmony":
            raise ConfigError(
                "tool call format harmony: has no free text, wanted the grammar of a whole reply "
                "(ReplyGrammar)"
            )
        self.parallel, self.closed, self.strict, self.limits = (
            checked_flag("parallel", parallel),
            checked_flag("closed", closed),
            checked_flag("strict", strict),
            limits,
        )
        # One block of calls; the next block has an opening of its own.
        several = parallel and (
            self.format.style == "array"
            or (self.format.style == "headed" and bool(self.format.lead))
            or self.format.style == "python"
            or self.format.together
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
        # Delimiters that are control tokens, which have no bytes of their own.
        self._spelled = {token: text.encode() for text, token in self.token_ids.items()}
        self._marks = {text.encode(): token for text, token in self.token_ids.items()}
        marks = sorted(self._marks, key=len, reverse=True)
        self._marks_pattern = (
            re.compile(b"(" + b"|".join(map(re.escape, marks)) + b")") if marks else None
        )
        self.names = frozenset(tool.name for tool in self.tools)
        # Bytes are searched as Latin-1, where every byte is a character, so that delimiters may be
        # cut anywhere.
        self.openers = (_bytewise(self.format.open), _bytewise(self.format.inner))
        # A call without its block's opening is recognised but never generated: ban its first token.
        inner = self.token_ids.get(self.format.inner)
        self.banned = frozenset(() if inner is None else (inner,))
        self.reasoning, self.reasoning_opened = reasoning, reasoning_opened
        self.templates = bare_templates(self.format, trigger=True)
        self._firsts = {template[:1].encode() for template in self.templates}
        # as in a grammar with token terminals: tokens are also looked up by their ids
        self.tokens = ("",)
        # for one vocabulary; replaced as a whole, because states in several threads share a grammar
        self._free: tuple[TokenMasker | None, list[int], dict[tuple, Any]] = (None, [], {})

    def state(self, masker: TokenMasker | None = None) -> TriggeredState:
        """A state at the beginning of a reply; with a `TokenMasker` it can give masks and take
        tokens.
        """
        if masker is not None and not hasattr(masker, "resolve"):
            raise GrammarError(f"masker: found {type(masker).__name__}, wanted a TokenMasker")
        return TriggeredState(self, masker)

    def describe(self) -> dict[str, Any]:
        """Everything needed to make an equal grammar, as JSON values for `constraint_of`."""
        return {
            "kind": "tools",
            "version": VERSION,
            "format": asdict(self.format),
            "tools": self._listed,
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

    def spelled(self, data: bytes, token: int | None) -> bytes:
        """The text of a token outside of calls: its bytes, or the delimiter that it stands for."""
        return data if token is None else self._spelled.get(token, data)

    def parts(self, data: bytes) -> list[tuple[bytes, int | None]]:
        """Bytes split into text and delimiters, each delimiter with its token."""
        pieces = [data] if self._marks_pattern is None else self._marks_pattern.split(data)
        return [(piece, self._marks.get(piece)) for piece in pieces if piece]

    def _free_in(self, masker: TokenMasker) -> tuple[list[int], dict[tuple, Any]]:
        """(tokens of a vocabulary that contain the last byte of an opening and so might open a
        call, the cached masks in free text).
        """
        known, candidates, masks = self._free
        if known is not masker:
            ends = {
                *(each[-1:].encode("latin-1")[0] for each in self.openers if each),
                *(template.encode()[-1] for template in self.templates),
            }
            found = [masker.tokens_with(end) for end in ends]
            candidates = np.unique(np.concatenate(found)).tolist() if found else []
            masks = {}
            self._free = masker, candidates, masks
        return candidates, masks

    def free_mask(self, state: TriggeredState) -> np.ndarray | None:
        """The mask in free text; None if every token is allowed."""
        masker = state.masker
        if masker is None:
            raise GrammarError("mask: the state has no masker, wanted one made with a TokenMasker")
        wrong, masks = self._free_in(masker)
        region = state.region
        held = b"" if region is None or region.over else region.held.encode("latin-1")
        key = (state.fresh, state.tail, held, "after" if region is None else region.place)
        known = masks.get(key, _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        before = state.tail + held
        banned = [
            token
            for token in wrong
            if self._may_open(before + masker.vocab_bytes[token], state)
            and not state.fork().try_advance(masker.vocab_bytes[token])
        ]
        mask = None
        banned += sorted(self.banned)
        if banned:
            mask = np.full((masker.vocab_size + 31) // 32, 0xFFFFFFFF, np.uint32)
            tokens = np.array(banned)
            np.bitwise_and.at(mask, tokens >> 5, ~(np.uint32(1) << (tokens & 31).astype(np.uint32)))
            mask.flags.writeable = False
        if len(masks) >= _KEPT:
            masks.clear()
        masks[key] = mask
        return mask

    def _may_open(self, data: bytes, state: TriggeredState) -> bool:
        """Whether an opening may end in these bytes: cheap, and never a false negative."""
        if any(each and each.encode("latin-1") in data for each in self.openers):
            return True
        if not state.fresh or not self.templates:
            return False
        if data.lstrip(_SPACE)[:1] in self._firsts:
            return True
        if self.reasoning is None or state.region is None or state.region.over:
            return False
        return self.reasoning.close.encode()[-1] in data


class TriggeredState:
    """The position in a reply. `call` is the state inside a call, None in free text; `tail` is text
    that may begin an opening.
    """

    __slots__ = ("call", "fresh", "grammar", "masker", "region", "tail")

    __reduce__ = not_pickled(
        "state: refers to tables in memory of this process",
        "`fork()` makes another, `serialise()` gives bytes that `restore_state` takes",
    )

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
        """Consume bytes (with a token's id if delimiters are tokens); False if the call that they
        are in, or open, does not allow them.
        """
        if self.call is None:
            data = self.grammar.spelled(data, token)
            if self.region is not None and not self.region.over:
                data = self._after_region(data)
                if not data and not self.region.over:
                    return True
            return token not in self.grammar.banned and self._free(data)
        if data:
            return self._through(data)
        return token is None or self._token(token)

    def advance(self, data: bytes, token: int | None = None) -> None:
        """`try_advance` that raises GrammarError; the state must not be used after that."""
        if not self.try_advance(data, token):
            raise GrammarError(
                f"tool call: {bytes(data[:40])!r} is not allowed here, wanted a call of "
                f"{', '.join(sorted(self.grammar.names))}"
            )

    def mask(self) -> np.ndarray | None:
        """The bitset of allowed tokens, as `GrammarState.mask`; None if all are allowed."""
        return self.grammar.free_mask(self) if self.call is None else self.call.mask()

    def forced(self, limit: int = 4096) -> bytes:
        """The bytes that every continuation starts with, as `GrammarState.forced`; none in free
        text.
        """
        return b"" if self.call is None else self.call.forced(limit)

    def is_complete(self) -> bool:
        """Whether generation may end here: in free text, or after a complete call."""
        return self.call is None or self.call.is_complete()

    def only_end(self) -> bool:
        """Whether only the end may follow: after the single call that `parallel=False` allows."""
        return self.call is not None and not self.grammar.parallel and self.call.only_end()

    def fork(self) -> TriggeredState:
        """An independent state at the same position."""
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
        """The state that `serialise` saved under an equal grammar; GrammarError for anything
        else.
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

    def _after_region(self, data: bytes) -> bytes:
        """Feed the reasoning region; returns the text after it."""
        if self.region is None:
            return data
        events = self.region.feed(data.decode("latin-1"))
        return "".join(event.raw for event in events if isinstance(event, Text)).encode("latin-1")

    def _free(self, data: bytes) -> bool:
        """Consume free text, looking for an opening in it."""
        grammar, text = self.grammar, (self.tail + data).decode("latin-1")
        while text:
            opening, sure = search(
                grammar.format,
                text,
                fresh=self.fresh,
                templates=grammar.templates,
                names=grammar.names,
                openers=grammar.openers,
            )
            if opening is not None and opening.start == 0:
                self.tail = b""
                return self._open(text.encode("latin-1"))
            if not sure:
                break
            self.fresh = self.fresh and not text[:sure].strip()
            text = text[sure:]
        self.tail = text.encode("latin-1")
        return True

    def _open(self, data: bytes) -> bool:
        """Begin a call with these bytes, in which delimiters may be tokens."""
        self.call = self.grammar.calls.state(self.masker)
        self.tail = b""
        parts = self.grammar.parts(data)
        for at, (piece, token) in enumerate(parts):
            if self.call is None:
                return self._free(b"".join(rest for rest, _ in parts[at:]))
            if not (self._through(piece) if token is None else self._token(token)):
                return False
        return True

    def _token(self, token: int) -> bool:
        """Consume a delimiter that is a token, in a call."""
        call = self.call
        if call is None or call.grammar.symbol(token) <= 0 or not call.allows_token(b"", token):
            return False
        call.advance(b"", token)
        self._close_if_over()
        return True

    def _through(self, data: bytes) -> bool:
        """Consume bytes in a call, and as free text those beyond its end."""
        call = self.call
        if call is None:
            return self._free(data)
        for at in range(len(data)):
            byte = data[at : at + 1]
            if not call.allows_token(byte):
                if not call.is_complete() or not self.grammar.parallel:
                    return False
                self._leave()
                return self._free(data[at:])
            call.advance(byte)
        self._close_if_over()
        return True

    def _close_if_over(self) -> None:
        if self.call is not None and self.grammar.parallel and self.call.only_end():
            self._leave()

    def _leave(self) -> None:
        self.call, self.fresh = None, bool(self.grammar.templates)


def constraint_of(
    description: Mapping[str, Any], bridge: TokenizerBridge | None = None
) -> TriggeredGrammar:
    """The constraint of a `describe()` of kind "tools".

    bridge: if given, its ids of the delimiters must be those described. GrammarError for a
    malformed description, or one that does not fit the vocabulary.
    """
    kind = description.get("kind") if isinstance(description, Mapping) else None
    if kind != "tools" or description.get("version") != VERSION:
        version = None if kind is None else description.get("version")
        raise GrammarError(
            f"constraint: found kind {kind!r}, version {version!r}, wanted 'tools', {VERSION}"
        )
    try:
        format = {
            **description["format"],
            "arguments_keys": tuple(description["format"]["arguments_keys"]),
        }
        ids = {str(text): int(token) for text, token in description["token_ids"].items()}
        made = TriggeredGrammar(
            ToolCallFormat(**format),
            description["tools"],
            reasoning=None
            if description["reasoning"] is None
            else ReasoningFormat(**description["reasoning"]),
            reasoning_opened=description["reasoning_opened"],
            parallel=description["parallel"],
            closed=description["closed"],
            strict=description["strict"],
            token_ids=ids,
            limits=None
            if description["limits"] is None
            else GrammarLimits(**description["limits"]),
        )
    except ConfigError as error:
        raise GrammarError(f"constraint: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, GrammarError):
            raise
        raise GrammarError(f"constraint: malformed description ({error!r})") from None
    for text, token in ids.items():
        if bridge is not None and bridge.token_to_id(text) != token:
            raise GrammarError(
                f"constraint: {text} was token {token}, this vocabulary has "
                f"{bridge.token_to_id(text)}"
            )
    return made


def restore_state(
    description: Mapping[str, Any],
    data: bytes,
    *,
    masker: TokenMasker | None = None,
    bridge: TokenizerBridge | None = None,
    once: Callable[..., Any] | None = None,
) -> GrammarState | TriggeredState:
    """The state saved by `state.describe()` and `state.serialise()`. GrammarError if they are
    malformed. once: see `GrammarState.restore`.
    """
    if isinstance(description, Mapping) and description.get("kind") == "grammar":
        return GrammarState.restore(data, masker=masker, once=once)
    return TriggeredState.restore(data, grammar=constraint_of(description, bridge), masker=masker)
