"""`Grammar` and `GrammarState`: the texts that are allowed, and a position in them.

A grammar is compiled once into a lazily determinised pushdown machine over bytes
(`_core.pushdown`); a state is a cursor in it. Equal positions have equal ids, however they were
reached, so states share masks. Code points may be split between calls of `advance`.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from oxillama._core.cursor import Cursor, prepare
from oxillama._core.pushdown import Machine
from oxillama.arguments import listable, named_fields, whole
from oxillama.errors import GrammarError, not_pickled
from oxillama.grammar import gbnf
from oxillama.grammar.collector import paused_collector
from oxillama.grammar.left_recursion import without_left_recursion
from oxillama.grammar.nodes import SYMBOL, choice, literal, rewritten
from oxillama.grammar.regex import parse_regex
from oxillama.grammar.schema.compiler import (
    CompiledSchema,
    Order,
    SchemaCompiler,
    Whitespace,
    schema_errors,
)

VERSION = 1
MOST_SAVED = 1 << 26  # bytes of a saved state


@named_fields
@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """Limits of a grammar. Every limit is checked; exceeding one raises a `GrammarError` that names
    it.

    - `max_source`: characters of text.
    - `max_repetition`: bounds inside `{m,n}`.
    - `max_nesting`: groups inside groups.
    - `max_states`: network states after expansion.
    - `max_depth`: rules open at once; a text that is nested deeper is not accepted.
    - `max_items`: alternatives followed at once.
    - `max_configs`: positions remembered before unused ones are dropped (about 1.2 KiB of memory
      each).
    """

    max_source: int = 1 << 22
    max_repetition: int = 4096
    max_nesting: int = 200
    max_states: int = 2_000_000
    max_depth: int = 1000
    max_items: int = 20_000
    max_configs: int = 1 << 15

    def __post_init__(self):
        for name, value in asdict(self).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise GrammarError(
                    f"GrammarLimits.{name}: found {value!r}, wanted a positive integer"
                )


class Grammar:
    """A context-free language of byte strings that constrains generation.

    Make one with `parse` (GBNF), `from_json_schema`, `from_regex` or `from_choices`. Immutable;
    safe to share between states.
    """

    __slots__ = (
        "tokens",
        "limits",
        "warnings",
        "_names",
        "_rules",
        "_deferred",
        "_origin",
        "_source",
        "_machine",
        "_make",
        "_symbols",
        "_repeated",
        "_twins",
    )

    def __init__(
        self,
        names: Sequence[str],
        rules: Sequence[tuple[Any, ...]],
        *,
        tokens: Sequence[int | str] = (),
        limits: GrammarLimits | None = None,
        source: str | None = None,
        warnings: Sequence[str] = (),
        places: Sequence[tuple[int, int]] = (),
        deferred: Any = None,
        origin: Mapping[str, Any] | None = None,
    ):
        if deferred is None:
            count = len(rules)
            rules = without_left_recursion(rules)
            names = [*names, *(f"nonempty-{i}" for i in range(len(rules) - count))]
        self._names, self._rules, self._deferred, self.tokens = (
            names,
            rules,
            deferred,
            tuple(tokens),
        )
        self._origin = None if origin is None else dict(origin)
        self.limits = limits_of(limits)
        self.warnings = tuple(warnings)
        self._source = source
        self._symbols = {key: i + 1 for i, key in enumerate(self.tokens)}
        self._repeated: dict[int, int] = {}  # symbols of tokens that have another, and that one
        self._twins: dict[tuple[tuple[int, int], ...], Grammar] = {}  # with one symbol for these
        lim, symbols = self.limits, len(self.tokens) + 1 if self.tokens else 0

        def make() -> Machine:  # without `self`: a grammar is freed when the last use of it ends
            with nullcontext() if deferred is None else deferred.alone():
                machine = Machine(
                    list(rules),
                    symbols=symbols,
                    names=None if deferred is not None else list(names),
                    max_states=lim.max_states,
                    max_depth=lim.max_depth,
                    max_items=lim.max_items,
                    max_configs=lim.max_configs,
                    deferred=deferred,
                )
                prepare(machine)
                return machine

        self._make = make
        try:
            self._machine = make()
        except GrammarError as error:
            number = getattr(error, "rule", None)
            if number is None or number >= len(places):
                raise
            line, column = places[number]
            raise GrammarError(
                f"grammar: line {line}, column {column}: left recursion through rule "
                f"{self.names[number]!r}"
            ) from None

    @classmethod
    def parse(cls, source: str, *, limits: GrammarLimits | None = None) -> "Grammar":
        """Reads GBNF. Raises `GrammarError` for bad syntax (with line and column), undefined rules,
        a root rule that no text can match, and exceeded limits.
        """
        limits = limits_of(limits)
        if isinstance(source, str) and len(source) > limits.max_source:
            raise GrammarError(
                f"grammar: found {len(source)} characters, wanted at most {limits.max_source} "
                "(max_source)"
            )
        parsed = gbnf.parse(
            source, max_repetition=limits.max_repetition, max_nesting=limits.max_nesting
        )
        return cls(
            parsed.names,
            parsed.rules,
            tokens=parsed.tokens,
            limits=limits,
            source=source,
            places=parsed.places,
        )

    @classmethod
    def from_choices(
        cls, choices: Iterable[str | bytes], *, limits: GrammarLimits | None = None
    ) -> "Grammar":
        """Exactly one of the given texts."""
        if isinstance(choices, (str, bytes)):
            raise GrammarError("choices: found one text, wanted a list of texts")
        if isinstance(choices, Mapping) or not listable(choices):
            raise GrammarError(f"choices: found {type(choices).__name__}, wanted a list of texts")
        texts = list(choices)
        if not texts:
            raise GrammarError("choices: found none, wanted at least one")
        for text in texts:
            if not isinstance(text, (str, bytes)):
                raise GrammarError(f"choices: found {type(text).__name__}, wanted text")
            try:
                text.encode() if isinstance(text, str) else text.decode("utf-8")
            except UnicodeDecodeError:
                raise GrammarError(f"choices: {text!r} is not UTF-8") from None
            except UnicodeEncodeError:
                raise GrammarError(f"choices: {text!r} holds a lone surrogate") from None
        return cls(
            ["root"],
            [choice(*(literal(text) for text in texts))],
            limits=limits,
            origin={
                "choices": [
                    text if isinstance(text, str) else text.decode("utf-8") for text in texts
                ]
            },
        )

    @classmethod
    def from_regex(cls, pattern: str, *, limits: GrammarLimits | None = None) -> "Grammar":
        """Texts that match an ECMA-262 regular expression (u flag) as a whole, as far as it is
        regular; else `GrammarError`.
        """
        if not isinstance(pattern, str):  # before it is looked for among those read
            raise GrammarError(f"pattern: found {type(pattern).__name__}, wanted text")
        return cls(
            ["root"], [parse_regex(pattern).whole()], limits=limits, origin={"regex": pattern}
        )

    @classmethod
    def from_json_schema(
        cls,
        schema: Any,
        *,
        strict: bool = True,
        whitespace: Whitespace = "compact",
        order: Order = "declared",
        closed: bool | None = None,
        limits: GrammarLimits | None = None,
        resources: Mapping[str, object] | None = None,
    ) -> "Grammar":
        """JSON texts that are valid under a schema; arguments, errors and the pause of the garbage
        collector are those of `JsonSchemaCompiler` and its `compile`.
        """
        compiler = SchemaCompiler(
            whitespace=whitespace, order=order, closed=closed, resources=resources
        )
        with schema_errors(), paused_collector():
            return cls.of_compiled(compiler.compile(schema, strict=strict), limits=limits)

    @classmethod
    def of_compiled(
        cls, schema: CompiledSchema, *, limits: GrammarLimits | None = None
    ) -> "Grammar":
        """The grammar of a compiled schema."""
        return cls(
            schema.names,
            schema.rules,
            limits=GrammarLimits(max_repetition=1 << 30) if limits is None else limits,
            warnings=schema.warnings,
            deferred=schema.deferred,
            origin=schema.origin,
        )

    def describe(self) -> dict[str, Any]:
        """The source of the grammar as JSON values, from which `Grammar.rebuild` makes the same
        grammar.
        """
        return {"gbnf": self.source} if self._origin is None else dict(self._origin)

    def __reduce__(self) -> Any:
        """Pickles hold the description; the grammar is compiled again where one is read."""
        return partial(Grammar.rebuild, self.describe(), limits=self.limits), ()

    def __deepcopy__(self, memo: Any) -> "Grammar":
        return self

    @classmethod
    def rebuild(
        cls, description: Mapping[str, Any], *, limits: GrammarLimits | None = None
    ) -> "Grammar":
        """The grammar of a description. GrammarError for a malformed description, and the errors of
        the original constructor.
        """
        makers: dict[str, Callable[..., Grammar]] = {
            "gbnf": cls.parse,
            "regex": cls.from_regex,
            "choices": cls.from_choices,
            "schema": cls.from_json_schema,
        }
        kind = (
            next((k for k in makers if k in description), "")
            if isinstance(description, Mapping)
            else ""
        )
        options = {k: v for k, v in description.items() if k != kind} if kind else {}
        wanted = {"schema": {"whitespace", "order", "strict"}}.get(kind, set())
        # "closed" came later: grammars described before are without it
        if not kind or options.keys() - ({"closed"} if wanted else set()) != wanted:
            raise GrammarError(
                f"grammar: found {str(description)[:80]}, wanted a description (gbnf, regex, "
                "choices or schema)"
            )
        if not isinstance(description[kind], list if kind == "choices" else str):
            raise GrammarError(
                f"grammar: {kind}: found {type(description[kind]).__name__}, "
                f"wanted {'a list' if kind == 'choices' else 'text'}"
            )
        return makers[kind](description[kind], limits=limits, **options)

    @property
    def names(self) -> tuple[str, ...]:
        """The rules' names, the root first."""
        self._write_all()
        return tuple(self._names)

    @property
    def rules(self) -> tuple[tuple[Any, ...], ...]:
        """The rules' nodes (see `nodes`), the root first."""
        self._write_all()
        return tuple(self._rules)

    def _write_all(self) -> None:
        """Writes the deferred rules. GrammarError for one that is nested too deeply."""
        if self._deferred is not None:
            with self._deferred.alone():
                index = 0
                try:
                    while index < len(self._rules):
                        self._deferred.write(index)
                        index += 1
                except RecursionError:
                    raise GrammarError("schema: nested too deeply") from None
                self._names = self._deferred.names

    @property
    def source(self) -> str:
        """The grammar as GBNF text; `Grammar.parse` of it gives the same language. GrammarError for
        one that is nested too deeply to be written.
        """
        if self._source is None:
            try:
                self._source = gbnf.render(self.names, self.rules, self.tokens)
            except RecursionError:
                raise GrammarError("grammar: nested too deeply to be written as GBNF") from None
        return self._source

    def resolve(self, ids: Mapping[str, int]) -> "Grammar":
        """The same grammar with token terminals such as `<think>` replaced by their ids, for good:
        no vocabulary is asked for them any more. GrammarError if one has no id.
        """
        if not any(isinstance(key, str) for key in self.tokens):
            return self
        other = self._with_ids(ids)
        other._rules = self._merged(other._repeated)
        other.tokens = tuple(ids[key] if isinstance(key, str) else key for key in self.tokens)
        other._source = None
        return other

    def _with_ids(self, ids: Mapping[str, int]) -> "Grammar":
        """The same grammar, its names kept, with these ids for them."""
        missing = [key for key in self.tokens if isinstance(key, str) and key not in ids]
        if missing:
            raise GrammarError(f"grammar: token {missing[0]} is not in the vocabulary")
        other = object.__new__(Grammar)
        for name in Grammar.__slots__:
            setattr(other, name, getattr(self, name))
        symbols: dict[int | str, int] = {}
        repeated = {}
        for number, key in enumerate(self.tokens, 1):
            first = symbols.setdefault(ids[key] if isinstance(key, str) else key, number)
            if first != number:
                repeated[number] = first
        other._symbols = symbols
        other._repeated = repeated
        if repeated or self._repeated:
            twin = tuple(repeated.items())
            same = self._twins.get(twin)
            if same is None:  # compiled once: states share its positions, and their masks
                rules = self._merged(repeated)
                made = Grammar(self.names, rules, tokens=self.tokens, limits=self.limits)
                same = self._twins.setdefault(twin, made)
            other._machine, other._make = same.current_machine(), same._make
        return other

    def _merged(self, repeated: Mapping[int, int]) -> Sequence[tuple[Any, ...]]:
        """The rules where a token that has several names, or a name beside its id, is one symbol.
        repeated: such further symbols, and the first of the same token.
        """

        def first(node: tuple[Any, ...]) -> tuple[Any, ...]:
            if node[0] != SYMBOL:
                return node
            symbol, negated = gbnf.symbol_of(node)
            number = symbol - gbnf.OTHER
            return gbnf.symbol_node(gbnf.OTHER + repeated.get(number, number), negated=negated)

        return [rewritten(rule, first) for rule in self._rules] if repeated else self._rules

    def current_machine(self) -> Machine:
        """The machine for a new state. It is replaced when it has many rules for words written by
        earlier states, which later states do not need.
        """
        if self._machine.removed_states > self.limits.max_states // 8:
            self._machine = self._make()
        return self._machine

    def state(self, masker: Any = None) -> "GrammarState":
        """A state at the beginning; with a `TokenMasker` it can also compute masks."""
        return GrammarState(self, masker=masker)

    def matches(self, text: bytes | str | Sequence[bytes | str | int]) -> bool:
        """Whether the whole text belongs to the language; a sequence mixes texts with token ids
        (for token terminals).
        """
        state = GrammarState(self)
        single = isinstance(text, (bytes, bytearray, str))
        if not single and (isinstance(text, Mapping) or not listable(text)):
            raise _no_text("text", text)
        for piece in (text,) if single else text:
            if isinstance(piece, int) and not isinstance(piece, bool):
                ok = state._cursor.advance(b"", self.symbol(piece))
            elif not isinstance(piece, (bytes, bytearray, str)):
                raise _no_text("text", piece)
            else:
                data = piece.encode("utf-8") if isinstance(piece, str) else piece
                ok = not data or state._cursor.advance(data, self.symbol(None))
            if not ok:
                self._refuse_depth(state._cursor)
                return False
        return state.is_complete()

    def symbol(self, token: int | None) -> int:
        """The machine's number of a token: -1 without token terminals, 0 for a token that the
        grammar does not name.
        """
        if not self.tokens:
            return -1
        return 0 if token is None else self._symbols.get(token, 0)

    def _refuse_depth(self, cursor: Cursor) -> None:
        """Raises where the last step of a cursor failed for its depth."""
        if cursor.too_deep:
            raise GrammarError(
                f"grammar: the text nests deeper than {self.limits.max_depth} open rules "
                "(max_depth)"
            )

    def __repr__(self):
        return f"<Grammar of {len(self.rules)} rule{'' if len(self.rules) == 1 else 's'}>"


class GrammarState:
    """A position in a grammar: which bytes may come next, and whether the text may end.

    Bytes can be fed in any pieces; `fork` is cheap; `serialise` stores the grammar's source and
    everything consumed, so that `restore` finds the same position in any later version.
    """

    __slots__ = ("grammar", "masker", "_cursor", "_history", "_steps")

    __reduce__ = not_pickled(
        "state: refers to tables in memory of this process",
        "`fork()` makes another, `serialise()` gives bytes that `restore` takes",
    )

    def __init__(self, grammar: Grammar, *, masker: Any = None) -> None:
        if not isinstance(grammar, Grammar):
            raise GrammarError(f"grammar: found {type(grammar).__name__}, wanted a Grammar")
        if masker is not None and not hasattr(masker, "resolve"):
            raise GrammarError(f"masker: found {type(masker).__name__}, wanted a TokenMasker")
        self.grammar: Grammar = masker.resolve(grammar) if masker is not None else grammar
        self.masker: Any = masker
        self._cursor = Cursor(self.grammar.current_machine())
        self._history = bytearray()
        # (length, token or -1) of each step; only with token terminals
        self._steps: list[tuple[int, int]] = []

    def allows_token(self, data: bytes, token: int | None = None) -> bool:
        """Whether these bytes may come next; if the grammar has token terminals, `token` is the id
        to check.
        """
        try:
            if not data and token is None:
                return bool(_bytes_like(data))
            return self._cursor.allows(data, self.grammar.symbol(token))
        except (TypeError, ValueError):
            raise _no_step(data, token) from None

    def advance(self, data: bytes, token: int | None = None) -> None:
        """Consumes bytes (one token's, or any number if the grammar names no tokens). GrammarError,
        with the state unchanged, if they are not allowed.
        """
        try:
            if not data and token is None:
                _bytes_like(data)
                return
            taken = self._cursor.advance(data, self.grammar.symbol(token))
        except (TypeError, ValueError):
            raise _no_step(data, token) from None
        if not taken:
            self.grammar._refuse_depth(self._cursor)
            raise GrammarError(
                f"grammar: {bytes(data[:40])!r} is not allowed after {bytes(self._history[-40:])!r}"
            )
        self._history += data
        if self.grammar.tokens:
            self._steps.append((len(data), -1 if token is None else token))

    def is_complete(self) -> bool:
        """Whether the text so far is a whole match, so that generation may end here."""
        return self._cursor.complete

    def forced(self, limit: int = 4096) -> bytes:
        """The bytes that every continuation starts with, which need no sampling. Empty if the
        grammar may end here.
        """
        if isinstance(limit, int) and limit > MOST_SAVED:
            limit = MOST_SAVED
        return self._cursor.forced(whole("limit", limit, 0))

    def only_end(self) -> bool:
        """Whether nothing but the end of generation may follow."""
        return self._cursor.finished

    @property
    def consumed(self) -> bytes:
        """Everything consumed so far."""
        return bytes(self._history)

    @property
    def key(self) -> tuple[int, int] | tuple[int, int, bytes]:
        """Equal keys of states of one grammar mean equal futures."""
        return self._cursor.key

    def mask(self) -> np.ndarray:
        """The bitset of allowed tokens: read-only uint32 of ceil(vocabulary / 32) words (needs a
        `TokenMasker`).
        """
        if self.masker is None:
            raise GrammarError(
                "grammar state: has no vocabulary, make it with TokenMasker.state or "
                "Grammar.state(masker)"
            )
        allowed: np.ndarray = self.masker.mask(self)
        return allowed

    def fork(self) -> "GrammarState":
        """An independent state at the same position."""
        other = object.__new__(GrammarState)
        other.grammar, other.masker = self.grammar, self.masker
        other._cursor = self._cursor.fork()
        other._history = bytearray(self._history)
        other._steps = list(self._steps)
        return other

    def describe(self) -> dict[str, Any]:
        """The kind of constraint; everything else is in the result of `serialise`."""
        return {"kind": "grammar"}

    def serialise(self) -> bytes:
        """The grammar's description and what was consumed, as bytes for `restore`: no tables,
        whatever their size.
        """
        return json.dumps(
            {
                "version": VERSION,
                "grammar": self.grammar.describe(),
                "limits": asdict(self.grammar.limits),
                **self.journal(),
            },
            separators=(",", ":"),
        ).encode("ascii")

    def journal(self) -> dict[str, Any]:
        """Everything consumed, as JSON values for `replay`."""
        return {"consumed": base64.b64encode(self._history).decode("ascii"), "steps": self._steps}

    def replay(self, journal: Mapping[str, Any]) -> None:
        """Consumes the `journal` of a state of the same grammar. GrammarError if it is malformed or
        does not fit.
        """
        try:
            consumed = base64.b64decode(journal["consumed"], validate=True)
            steps = [(int(length), int(token)) for length, token in journal["steps"]]
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise GrammarError(f"grammar state: malformed ({error})") from None
        if not self.grammar.tokens:
            self.advance(consumed)
            return
        if any(length < 0 for length, _ in steps) or sum(length for length, _ in steps) != len(
            consumed
        ):
            raise GrammarError(
                f"grammar state: malformed (steps that do not make up {len(consumed)} bytes)"
            )
        at = 0
        for length, token in steps:
            self.advance(consumed[at : at + length], None if token < 0 else token)
            at += length

    @classmethod
    def restore(
        cls,
        data: bytes,
        *,
        masker: Any = None,
        grammar: Grammar | None = None,
        once: Callable[..., Any] | None = None,
    ) -> "GrammarState":
        """The state saved by `serialise`. Pass a `grammar` with the same description to share its
        compiled form, or `once`: once(key, make) is what `make()` gave for an equal key before.
        """
        saved = read_saved(data, "grammar state", VERSION)
        found, limits = saved.get("grammar"), saved.get("limits")
        if isinstance(found, str):  # as states were saved at first
            found = {"gbnf": found}
        if not isinstance(found, dict):
            raise GrammarError(f"grammar: found {str(found)[:80]}, wanted a description")
        if "schema" in found:  # without "closed" as described before there was such an option
            found = {**found, "closed": found.get("closed", False)}
        if grammar is None:
            if not isinstance(limits, dict) or not all(
                name in GrammarLimits.__dataclass_fields__ for name in limits
            ):
                raise GrammarError(f"grammar state: malformed limits, found {str(limits)[:60]}")
            make = partial(Grammar.rebuild, found, limits=GrammarLimits(**limits))
            # text, since among values 1 and True are equal
            grammar = once(("rebuild", json.dumps([found, limits])), make) if once else make()
        elif grammar.describe() != found and found != {"gbnf": grammar.source}:
            raise GrammarError("grammar state: was saved under another grammar than the one given")
        state = cls(grammar, masker=masker)
        state.replay(saved)
        return state

    def __repr__(self):
        count = len(self._history)
        return (
            f"<GrammarState after {count} byte{'' if count == 1 else 's'}"
            f"{', complete' if self.is_complete() else ''}>"
        )


def _bytes_like(data: Any) -> bool:
    """True; TypeError for what holds no bytes."""
    memoryview(data)
    return True


def _no_step(data: Any, token: Any) -> GrammarError:
    """The error for what is no bytes, or no token."""
    try:
        _bytes_like(data)
    except TypeError:
        return GrammarError(f"data: found {type(data).__name__}, wanted bytes")
    return GrammarError(f"data: found {data!r:.40} and token {token!r:.40}, wanted bytes and an id")


def _no_text(name: str, found: Any) -> GrammarError:
    return GrammarError(
        f"{name}: found {type(found).__name__}, wanted text, bytes or a list of these and token ids"
    )


def limits_of(given: GrammarLimits | None) -> GrammarLimits:
    """The limits, the default ones for None; GrammarError for any other value."""
    if given is None:
        return GrammarLimits()
    if not isinstance(given, GrammarLimits):
        raise GrammarError(f"limits: found {type(given).__name__}, wanted GrammarLimits or None")
    return given


def read_saved(data: bytes, what: str, version: int) -> dict[str, Any]:
    """The members of a saved state. GrammarError, naming `what`, if it is malformed or of another
    version.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise GrammarError(f"{what}: found {type(data).__name__}, wanted bytes")
    if len(data) > MOST_SAVED:
        raise GrammarError(f"{what}: found {len(data)} bytes, wanted at most {MOST_SAVED}")
    try:
        saved = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{what}: malformed ({error})") from None
    if not isinstance(saved, dict):
        raise GrammarError(f"{what}: malformed, found {type(saved).__name__}, wanted an object")
    if saved.get("version") != version:
        raise GrammarError(f"{what}: found version {saved.get('version')!r}, wanted {version}")
    return saved
