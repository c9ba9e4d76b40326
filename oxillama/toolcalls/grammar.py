"""Grammars of replies: calls that follow their tools' schemas, alone, as an alternative to an
answer, or after reasoning.

ToolCallGrammar      one or several calls: the whole reply, for tool_choice "required" or a name
ReplyGrammar         a whole reply in the harmony notation
with_reasoning       a grammar after a free reasoning region
answer_or_calls      an answer under its own constraint, or calls
TriggeredGrammar     free text in which calls are constrained from their opening on ("auto")
constraint_of, restore_state   constraints described as JSON, and states restored

Invariants of `TriggeredState`: (1) the bytes consumed since a call opened are always a prefix of
the call grammar's texts; (2) a mask holds exactly the tokens that `TokenMasker.advance` accepts,
except that in a call no token extends beyond the call's end; (3) without `parallel` nothing follows
the first call; (4) a restored state, in any process, continues like the one that was saved.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np

from oxillama.errors import ConfigError, GrammarError
from oxillama.grammar import Grammar, GrammarLimits, GrammarState, JsonSchemaCompiler, TokenMasker
from oxillama.grammar.automaton import read_saved
from oxillama.grammar.composer import Composer
from oxillama.grammar.nodes import ANY, CLASS, choice, literal, repeat, seq, subtract
from oxillama.grammar.schema.spelling import whitespace
from oxillama.tokenizer import TokenizerBridge
from oxillama.toolcalls.events import Text
from oxillama.toolcalls.formats import (
    ARGS,
    CDATA,
    DIGITS,
    IDENTIFIER,
    KEY,
    STRING,
    ToolCallFormat,
    format_of,
)
from oxillama.toolcalls.harmony import CHANNEL, CONSTRAIN, END, FUNCTIONS, MESSAGE, NEXT
from oxillama.toolcalls.literals import types_of
from oxillama.toolcalls.openings import KEYWORD, NAME, SPACE, WORD, bare_templates, search
from oxillama.toolcalls.quoted import quoted_arguments
from oxillama.toolcalls.reasoning import THINK, ReasoningFormat, ReasoningSplitter
from oxillama.toolcalls.tools import Tool, arguments_schema, tools_of

SPACES = whitespace()  # bounded, so that a model cannot stay in them
_BOUNDS_OF_TEXT = {"pattern", "format", "allOf", "not"}
_ANNOTATIONS = {
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "deprecated",
}


def ToolCallGrammar(
    format: str | ToolCallFormat,
    tools: Iterable[Any],
    *,
    name: str | None = None,
    parallel: bool = True,  # noqa: N802 (it makes a Grammar)
    closed: bool = True,
    strict: bool = True,
    token_ids: Mapping[str, int] | None = None,
    limits: GrammarLimits | None = None,
) -> Grammar:
    """The grammar of a reply that is one call, or with `parallel` one or more.

    name: only this tool may be called. closed: where a schema lists properties and says nothing
    about others, there are no others. strict: as `JsonSchemaCompiler.compile`'s. token_ids: ids of
    delimiters that are control tokens of the vocabulary, by their text. Raises ConfigError for no
    tools or an unknown name, GrammarError for a schema that cannot be enforced, naming the tool.
    """
    kind, tools = format_of(format), tools_of(tools)
    if name is not None and name not in [tool.name for tool in tools]:
        raise ConfigError(
            f"tool_choice: found {name!r}, wanted one of "
            f"{', '.join(tool.name for tool in tools) or 'no tools'}"
        )
    chosen = [tool for tool in tools if name in (None, tool.name)]
    if not chosen:
        raise ConfigError("tools: found none, wanted at least one to call")
    composer = Composer(token_ids=token_ids)
    if kind.style == "harmony":
        return ReplyGrammar(
            chosen, closed=closed, strict=strict, token_ids=token_ids, limits=limits
        )
    makers = {
        "python": _python_call,
        "named": _named_call,
        "headed": _headed_call,
        "tags": _tag_call,
    }
    make = makers.get(kind.style, _object_call)
    call = composer.rule(
        "call", choice(*(make(composer, kind, tool, closed, strict, limits) for tool in chosen))
    )
    return composer.grammar(_reply(composer, kind, call, parallel), limits=limits)


def ReplyGrammar(
    tools: Iterable[Any],
    *,
    answered: bool = False,
    answer: Grammar | None = None,
    closed: bool = True,
    strict: bool = True,  # noqa: N802 (it makes a Grammar)
    token_ids: Mapping[str, int] | None = None,
    limits: GrammarLimits | None = None,
) -> Grammar:
    """The grammar of a whole reply in the harmony notation: reasoning, then one call of the tools.

    answered: an answer may come instead of a call, held to `answer`; any text where that is None.
    Other arguments as `ToolCallGrammar`'s.
    """
    composer = Composer(token_ids=token_ids)
    calls = [
        (tool.name, _arguments(composer, tool, closed, strict, limits)) for tool in tools_of(tools)
    ]
    return harmony_grammar(composer, calls, answered=answered, answer=answer, limits=limits)


def harmony_grammar(
    composer: Composer,
    calls: Sequence[tuple[str, tuple]],
    *,
    answer: Grammar | None = None,
    answered: bool = False,
    limits: GrammarLimits | None = None,
) -> Grammar:
    """The grammar of a whole reply: any reasoning, then one of the calls, given as (name, node of
    its arguments).

    answered: an answer may come instead of a call; answer: what it is held to, None for any text.
    """
    spelled, message = composer.spelled, composer.delimiter(MESSAGE)
    before = [
        seq(spelled(f"{CHANNEL}{channel}{MESSAGE}"), composer.until(END), spelled(NEXT))
        for channel in ("analysis", "commentary")
    ]
    typed = choice(spelled(f" {CONSTRAIN}json"), literal(" json"), literal(""))
    ends = []
    for name, arguments in calls:
        heads = (
            spelled(f"{CHANNEL}commentary to={FUNCTIONS}{name}"),
            spelled(f" to={FUNCTIONS}{name}{CHANNEL}commentary"),
        )
        ends.append(seq(choice(*heads), typed, message, arguments))
    if answered:
        body = composer.any_text() if answer is None else composer.include(answer, "answer")
        ends.append(
            seq(
                spelled(f"{CHANNEL}final"),
                repeat(spelled(f" {CONSTRAIN}json"), 0, 1),
                message,
                body,
            )
        )
    return composer.grammar(
        seq(repeat(composer.rule("before", choice(*before))), choice(*ends)), limits=limits
    )


def with_reasoning(
    grammar: Grammar,
    format: ReasoningFormat = THINK,
    *,
    opened: bool = False,
    token_ids: Mapping[str, int] | None = None,
    limits: GrammarLimits | None = None,
) -> Grammar:
    """The grammar after a region: reasoning is free, what follows it is constrained; without
    `opened` there may be no region.

    token_ids: ids of delimiters that are control tokens, by their text. A region in a prompt that
    is over needs no such grammar.
    """
    composer = Composer(token_ids=token_ids)
    answer = composer.include(grammar, "answer")
    region = composer.rule("reasoning", seq(composer.until_spelled(format.close), SPACES))
    root = (
        seq(region, answer)
        if opened
        else choice(seq(SPACES, composer.spelled(format.open), region, answer), answer)
    )
    return composer.grammar(root, limits=limits or grammar.limits)


def _reply(composer: Composer, kind: ToolCallFormat, call: tuple, parallel: bool) -> tuple:
    """The blocks of a reply around its calls."""
    open, close = composer.spelled(kind.open), composer.spelled(kind.close)
    more = repeat(seq(literal(","), SPACES, call)) if parallel else literal("")
    if kind.style == "python":
        return seq(open, literal("["), SPACES, call, more, literal("]"), close)
    if kind.style == "array":
        return seq(
            open,
            SPACES,
            literal("["),
            SPACES,
            call,
            more,
            SPACES,
            literal("]"),
            SPACES if kind.close else literal(""),
            close,
        )
    if kind.style == "headed" and kind.lead:
        return seq(open, call, repeat(seq(SPACES, call)) if parallel else literal(""), close)
    if kind.style == "headed":
        block = seq(open, call, close)
        return seq(block, repeat(seq(SPACES, block))) if parallel else block
    if kind.together:
        calls = seq(call, repeat(seq(SPACES, call))) if parallel else call
        return seq(open, SPACES, calls, SPACES, close)
    if kind.style == "named":
        block = seq(open, call)
        return seq(block, repeat(block)) if parallel else block
    if not kind.close:
        calls = seq(call, repeat(seq(SPACES, literal(";"), SPACES, call))) if parallel else call
        return seq(repeat(open, 0, 1) if kind.bare else open, SPACES, calls)
    block = seq(open, SPACES, call, SPACES, close)
    return seq(block, repeat(seq(SPACES, block))) if parallel else block


def _arguments(
    composer: Composer, tool: Tool, closed: bool, strict: bool, limits: GrammarLimits | None
) -> tuple:
    """The node of a tool's arguments as a JSON object."""
    return composer.include(
        _compiled(tool, arguments_schema(tool, closed=closed), strict, limits),
        f"arguments-{_plain(tool.name)}",
    )


def _compiled(
    tool: Tool,
    schema: Any,
    strict: bool,
    limits: GrammarLimits | None,
    resources: Mapping[str, Any] | None = None,
) -> Grammar:
    try:
        return JsonSchemaCompiler(
            whitespace="flexible", limits=limits, resources=resources
        ).compile(schema, strict=strict)
    except GrammarError as error:
        raise GrammarError(f"tool {tool.name}: {error}") from None


def _object_call(
    composer: Composer,
    kind: ToolCallFormat,
    tool: Tool,
    closed: bool,
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """{"name": "f", "arguments": {...}}, or with whatever keys the format has; {"f": {...}} where
    the name is the key.
    """
    if not kind.name_key:
        return seq(
            literal("{"),
            SPACES,
            literal(json.dumps(tool.name)),
            literal(":"),
            SPACES,
            _arguments(composer, tool, closed, strict, limits),
            SPACES,
            literal("}"),
        )
    key, arguments = (
        json.dumps(kind.name_key, ensure_ascii=False),
        json.dumps(kind.arguments_keys[0], ensure_ascii=False),
    )
    colon, comma = (seq(repeat(literal(" "), 0, 1), literal(mark), SPACES) for mark in ":,")
    head = (
        repeat(seq(literal('"type"'), colon, literal('"function"'), comma), 0, 1)
        if kind.bare
        else literal("")
    )
    return seq(
        literal("{"),
        SPACES,
        head,
        literal(key),
        colon,
        literal(json.dumps(tool.name)),
        comma,
        literal(arguments),
        colon,
        _arguments(composer, tool, closed, strict, limits),
        SPACES,
        literal("}"),
    )


def _named_call(
    composer: Composer,
    kind: ToolCallFormat,
    tool: Tool,
    closed: bool,
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """name[ARGS]{...}."""
    return seq(
        literal(tool.name),
        composer.delimiter(ARGS),
        _arguments(composer, tool, closed, strict, limits),
    )


def _headed_call(
    composer: Composer,
    kind: ToolCallFormat,
    tool: Tool,
    closed: bool,
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """The lead, name, the middle, {...}, the tail."""
    if kind.quote:
        properties, required = _keywords(tool)
        arguments = quoted_arguments(
            composer, kind.quote, tool, properties, required, strict, limits
        )
    else:
        arguments = _arguments(composer, tool, closed, strict, limits)
    return seq(
        _lead(composer, kind),
        literal(tool.name),
        _middle(composer, kind),
        arguments,
        composer.spelled(kind.tail),
    )


def _lead(composer: Composer, kind: ToolCallFormat) -> tuple:
    """The text before a name, with an identifier if the format has one."""
    before, identifier, after = kind.lead.partition(IDENTIFIER)
    if not identifier:
        return composer.spelled(kind.lead)
    chars = (CLASS, ((ord("0"), ord("9")), (ord("a"), ord("z"))))
    return seq(composer.spelled(before), repeat(chars, 10, 10), composer.spelled(after))


def _middle(composer: Composer, kind: ToolCallFormat) -> tuple:
    """The text between a name and its arguments, with a number if the format has one."""
    before, number, after = kind.middle.partition(DIGITS)
    if not number:
        return composer.spelled(kind.middle)
    digit = (CLASS, ((ord("0"), ord("9")),))
    return seq(composer.spelled(before), repeat(digit, 1, 4), composer.spelled(after))


def _tag_call(
    composer: Composer,
    kind: ToolCallFormat,
    tool: Tool,
    closed: bool,
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """The lead, name, the middle, the arguments as tags in the order of the properties, the
    tail.
    """
    properties, required = _keywords(tool)
    arguments = []
    for key in properties:
        line = "\n" if kind.lines else ""
        end = line + kind.value_tail.replace(KEY, key)
        lead = seq(SPACES, composer.spelled(kind.key_lead), literal(key))
        schema = properties[key]
        texts, others = _texts_and_others(schema)
        values = []
        for said, found in (("true", texts), ("false", others)):
            if not found:
                continue
            between = seq(
                composer.spelled(kind.key_tail.replace(STRING, said)),
                SPACES if kind.value_lead else literal(""),
                composer.spelled(kind.value_lead),
                literal(line),
            )
            apart = STRING in kind.key_tail
            if said == "true":
                listed = _listed(schema, apart)
                value = _text(composer, tool, key, end, strict, listed, cdata=kind.cdata)
                values.append(seq(between, value))
            elif apart or not texts:
                value = _other(composer, tool, key, texts, strict, limits)
                values.append(seq(between, value, composer.spelled(end)))
        pair = seq(lead, choice(*values))
        arguments.append(pair if key in required else repeat(pair, 0, 1))
    return seq(
        composer.spelled(kind.lead),
        literal(tool.name),
        composer.spelled(kind.middle),
        *arguments,
        SPACES,
        composer.spelled(kind.tail),
    )


_OTHERS = ("number", "boolean", "null", "object", "array")


def _texts_and_others(schema: Any) -> tuple[bool, bool]:
    """(whether a schema allows texts, whether anything else)."""
    kinds = types_of(schema)
    return "string" in kinds or not kinds, kinds != {"string"}


def _listed(schema: Any, texts_alone: bool) -> list[str] | None:
    """The values that a schema lists, as they are written bare; None where it lists none."""
    given: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    listed = given["enum"] if isinstance(given.get("enum"), list) else None
    listed = [given["const"]] if "const" in given else listed
    if listed is None:
        return None
    return [
        each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)
        for each in listed
        if isinstance(each, str) or not texts_alone
    ]


def _text(
    composer: Composer,
    tool: Tool,
    key: str,
    end: str,
    strict: bool,
    listed: list[str] | None,
    *,
    cdata: bool,
) -> tuple:
    """The node of one argument that is written as it is, and of its end."""
    if listed is not None:
        return seq(choice(*map(literal, listed)), composer.spelled(end))
    schema = tool.parameters["properties"][key]
    given: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    bounded = sorted(_BOUNDS_OF_TEXT & given.keys())
    if bounded and strict:
        raise GrammarError(
            f"tool {tool.name}: schema /properties/{key}/{bounded[0]}: cannot be enforced over "
            "a text in tags"
        )
    least, most = given.get("minLength", 0), given.get("maxLength")
    # of bounded length: without the character that its end begins with
    other = (CLASS, subtract(ANY, ((ord(end[0]), ord(end[0])),)))
    if least or most is not None:
        return seq(repeat(other, least, most), composer.spelled(end))
    if not cdata:
        return composer.until_spelled(end)
    section = seq(literal(CDATA[0]), composer.until_spelled(CDATA[1] + end))
    return choice(section, composer.spelled(end), seq(other, composer.until_spelled(end)))


def _other(
    composer: Composer,
    tool: Tool,
    key: str,
    texts: bool,
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """The node of one argument that is written as JSON; texts: they are written otherwise."""
    base = "urn:oxillama:tool"
    place = {"$ref": f"{base}#/properties/{key.replace('~', '~0').replace('/', '~1')}"}
    resources = {base: {**tool.parameters, "$id": base}}
    schema: Any = {"allOf": [place, {"type": list(_OTHERS)}]} if texts else place
    compiled = _compiled(tool, schema, strict, limits, resources)
    return composer.include(compiled, f"value-{_plain(key)}")


def _keywords(tool: Tool) -> tuple[dict[str, Any], list[str]]:
    """(properties, names of the required ones) of a tool whose arguments are written apart; raises
    GrammarError for what cannot be enforced so.
    """
    schema = dict(tool.parameters)
    known = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
    for keyword in schema:
        if keyword not in known:
            raise GrammarError(
                f"tool {tool.name}: schema /{keyword}: cannot be enforced over keyword arguments, "
                "wanted properties and required"
            )
    properties, required = dict(schema.get("properties") or {}), list(schema.get("required") or ())
    for key in required:
        if key not in properties:
            raise GrammarError(
                f"tool {tool.name}: schema /required: {key!r} is not a property, wanted its schema"
            )
    return properties, required


def _python_call(
    composer: Composer,
    kind: ToolCallFormat,
    tool: Tool,
    closed: bool,
    strict: bool,
    limits: GrammarLimits | None,
) -> tuple:
    """name(key=value, ...): the properties in their order, values as JSON but for True, False and
    None at the outside.
    """
    properties, required = _keywords(tool)
    for key in properties:
        if not key.isidentifier():
            raise GrammarError(
                f"tool {tool.name}: schema /properties: {key!r} is not a keyword, wanted a name"
            )
    first = tail = literal("")  # what may come while nothing was written, and what follows a pair
    for key in reversed(properties):
        pair = seq(
            literal(f"{key}="),
            composer.rule("value", _python_value(composer, tool, key, strict, limits)),
        )
        later = seq(literal(","), repeat(literal(" "), 0, 1), pair, tail)
        if key in required:
            first, tail = seq(pair, tail), composer.rule("rest", later)
        else:
            first, tail = (
                composer.rule("first", choice(seq(pair, tail), first)),
                composer.rule("rest", choice(later, tail)),
            )
    return seq(literal(f"{tool.name}("), first, literal(")"))


def _python_value(
    composer: Composer, tool: Tool, key: str, strict: bool, limits: GrammarLimits | None
) -> tuple:
    """The node of one parameter's values."""
    base = "urn:oxillama:tool"
    resources = {base: {**tool.parameters, "$id": base}}
    place = {"$ref": f"{base}#/properties/{key.replace('~', '~0').replace('/', '~1')}"}
    everything = _compiled(tool, place, strict, limits, resources)
    words = [
        literal(python)
        for text, python in ((b"true", "True"), (b"false", "False"), (b"null", "None"))
        if everything.matches(text)
    ]
    if not words:
        return composer.include(everything, f"value-{_plain(key)}")
    try:
        rest = JsonSchemaCompiler(
            whitespace="flexible", limits=limits, resources=resources
        ).compile(
            {"allOf": [place, {"type": ["string", "number", "object", "array"]}]}, strict=strict
        )
    except GrammarError:
        return choice(*words)  # nothing else is valid
    return choice(composer.include(rest, f"value-{_plain(key)}"), *words)


def _plain(name: str) -> str:
    """A name that a rule may have."""
    return "".join(
        char if char.isascii() and (char.isalnum() or char == "-") else "-" for char in name
    )


_MOST = 512  # places followed at once
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_MORE = _LETTERS + "0123456789.-"


def answer_or_calls(
    answer: Grammar,
    calls: Grammar,
    kind: ToolCallFormat,
    names: Collection[str],
    *,
    token_ids: Mapping[str, int] | None = None,
    limits: GrammarLimits | None = None,
) -> Grammar:
    """The grammar of a reply that is an answer or calls. Raises ConfigError where an answer may
    begin as a call of these names.
    """
    ids = dict(token_ids or {})
    # A copy: whoever generates under the answer's grammar meanwhile shares its machine.
    start = Grammar(answer.names, answer.rules, tokens=answer.tokens, limits=answer.limits).state()
    if kind.open in ids:
        clash = (
            kind.open
            if start.grammar.symbol(ids[kind.open]) >= 0 and start.allows_token(b"", ids[kind.open])
            else ""
        )
    else:
        clash = kind.open if kind.open and _may_begin(start, f" {kind.open}", names) else ""
    clash = clash or next(
        (each for each in bare_templates(kind) if _may_begin(start, f" {each}", names)), ""
    )
    if clash:
        shown = (
            clash.replace(NAME, '"name"')
            .replace(WORD, "name")
            .replace(KEYWORD, "key")
            .replace(" ", "")
        )
        raise ConfigError(
            f"tool_choice: found 'auto' in format {kind.name} and a constraint whose answers "
            f"may begin with {shown}, as calls do; wanted 'none', 'required' or a constraint that "
            "excludes it"
        )
    composer = Composer(token_ids=ids)
    root = choice(composer.include(answer, "answer"), composer.include(calls, "calls"))
    return composer.grammar(root, limits=limits)


def _may_begin(start: GrammarState, template: str, names: Collection[str]) -> bool:
    """Whether a text of the grammar may begin with a template's text; True as well where that
    cannot be found out in time.
    """
    states = {start.key: start}
    for char in template:
        if char == " ":
            states = _closed(states, SPACE)
        elif char in (NAME, WORD):
            words = [f'"{name}"' if char == NAME else name for name in names]
            states = {state.key: state for word in words for state in _after(states, word)}
        elif char == KEYWORD:
            states = _closed(
                {state.key: state for letter in _LETTERS for state in _after(states, letter)}, _MORE
            )
        else:
            states = {state.key: state for state in _after(states, char)}
        if not states or len(states) > _MOST:
            break
    return bool(states)


def _after(states: Mapping[tuple, GrammarState], text: str) -> list[GrammarState]:
    """The states that are reached by a text."""
    out = []
    for state in states.values():
        if state.allows_token(text.encode()):
            out.append(state.fork())
            out[-1].advance(text.encode())
    return out


def _closed(states: dict[tuple, GrammarState], chars: str) -> dict[tuple, GrammarState]:
    """The states that are reached by any number of these characters."""
    found, new = dict(states), states
    while new and len(found) <= _MOST:
        reached = {state.key: state for char in chars for state in _after(new, char)}
        new = {key: state for key, state in reached.items() if key not in found}
        found.update(new)
    return found


VERSION = 1  # of descriptions and saved states
_KEPT = 64  # masks of free text
_UNKNOWN = object()
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
                "tool call format harmony: has no free text, wanted the grammar of a whole reply "
                "(ReplyGrammar)"
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
        # A call whose block has no opening is read, and not written: its first token may not come.
        inner = self.token_ids.get(self.format.inner)
        self.banned = frozenset(() if inner is None else (inner,))
        self.reasoning, self.reasoning_opened = reasoning, reasoning_opened
        self.templates = bare_templates(self.format, trigger=True)
        self._firsts = {template[:1].encode() for template in self.templates}
        # as a grammar with token terminals: whether a token may come is asked by its id too
        self.tokens = ("",)
        # of one vocabulary, and replaced as a whole: states of several threads share a grammar
        self._free: tuple[TokenMasker | None, list[int], dict[tuple, Any]] = (None, [], {})

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

    def spelled(self, data: bytes, token: int | None) -> bytes:
        """What a token says outside of calls: its bytes, or the delimiter that it is."""
        return data if token is None else self._spelled.get(token, data)

    def parts(self, data: bytes) -> list[tuple[bytes, int | None]]:
        """Bytes cut into what is text and what is a delimiter, with the token that it is."""
        pieces = [data] if self._marks_pattern is None else self._marks_pattern.split(data)
        return [(piece, self._marks.get(piece)) for piece in pieces if piece]

    def _free_in(self, masker: TokenMasker) -> tuple[list[int], dict[tuple, Any]]:
        """(tokens that might open a call: those with the last byte of an opening in them, the masks
        in free text that are known) of a vocabulary.
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
        """The mask in free text, None where every token may come."""
        masker = state.masker
        if masker is None:
            raise GrammarError("mask: the state has no masker, wanted one made with a TokenMasker")
        wrong, masks = self._free_in(masker)
        region = state.region
        held = b"" if region is None or region.over else region.held.encode("latin-1")
        key = (state.fresh, state.tail, held, region is None or region.over)
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
        """Whether an opening may end in these bytes; cheap, and never False where one does."""
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
        """The same; raises GrammarError where it is not allowed, and the state must not be used any
        more.
        """
        if not self.try_advance(data, token):
            raise GrammarError(
                f"tool call: {bytes(data[:40])!r} is not allowed here, wanted a call of "
                f"{', '.join(sorted(self.grammar.names))}"
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

    def _after_region(self, data: bytes) -> bytes:
        """Feeds a region; returns the text after it."""
        if self.region is None:
            return data
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
        """A call begins with these bytes, in which delimiters may be tokens."""
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
        """A delimiter that is a token, in a call."""
        call = self.call
        if call is None or call.grammar.symbol(token) <= 0 or not call.allows_token(b"", token):
            return False
        call.advance(b"", token)
        self._close_if_over()
        return True

    def _through(self, data: bytes) -> bool:
        """Bytes in a call that may reach beyond its end: what the call takes, then free text."""
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
) -> GrammarState | TriggeredState:
    """The state saved by `state.describe()` and `state.serialise()`. GrammarError if they are
    malformed.
    """
    if isinstance(description, Mapping) and description.get("kind") == "grammar":
        return GrammarState.restore(data, masker=masker)
    return TriggeredState.restore(data, grammar=constraint_of(description, bridge), masker=masker)
