"""Grammars of replies: calls that follow their tools' schemas, alone, as an alternative to an
answer, or after reasoning.

ToolCallGrammar      one or several calls: the whole reply, for tool_choice "required" or a name
ReplyGrammar         a whole reply in the harmony notation
with_reasoning       a grammar after a free reasoning region
answer_or_calls      an answer under its own constraint, or calls
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from oxillama.arguments import checked_flag, is_one_of
from oxillama.errors import ConfigError
from oxillama.grammar import Grammar, GrammarLimits, GrammarState
from oxillama.grammar.composer import Composer
from oxillama.grammar.nodes import choice, literal, repeat, seq
from oxillama.toolcalls.call_nodes import SPACES, CallNodes
from oxillama.toolcalls.formats import HARMONY, ToolCallFormat, format_of
from oxillama.toolcalls.harmony import CHANNEL, CONSTRAIN, END, FUNCTIONS, MESSAGE, NEXT
from oxillama.toolcalls.openings import KEYWORD, NAME, SPACE, WORD, bare_templates
from oxillama.toolcalls.reasoning import THINK, ReasoningFormat
from oxillama.toolcalls.tools import tools_of


def ToolCallGrammar(
    format: str | ToolCallFormat,
    tools: Iterable[Any],
    *,
    name: str | None = None,
    parallel: bool = True,
    closed: bool = True,
    strict: bool = True,
    token_ids: Mapping[str, int] | None = None,
    limits: GrammarLimits | None = None,
) -> Grammar:
    """The grammar of a reply that is one call, or with `parallel` one or more.

    name: only this tool may be called. closed: an object whose schema lists properties has no
    others unless the schema says so. strict: as in `JsonSchemaCompiler.compile`. token_ids: ids of
    delimiters that are control tokens of the vocabulary, by their text. Raises ConfigError for no
    tools or an unknown name, GrammarError for a schema that cannot be enforced, naming the tool.
    """
    kind, tools = format_of(format), tools_of(tools)
    parallel, closed = checked_flag("parallel", parallel), checked_flag("closed", closed)
    if name is not None and not is_one_of(name, [tool.name for tool in tools]):
        raise ConfigError(
            f"tool_choice: found {name!r:.50}, wanted one of "
            f"{', '.join(tool.name for tool in tools) or 'no tools'}"
        )
    chosen = [tool for tool in tools if name in (None, tool.name)]
    if not chosen:
        raise ConfigError("tools: found none, wanted at least one to call")
    if kind.style == "harmony":
        return ReplyGrammar(
            chosen, closed=closed, strict=strict, token_ids=token_ids, limits=limits
        )
    composer = Composer(token_ids=token_ids)
    nodes = CallNodes(composer, kind, closed=closed, strict=strict, limits=limits)
    call = composer.rule("call", choice(*(nodes.call(tool) for tool in chosen)))
    return composer.grammar(nodes.blocks(call, parallel=parallel), limits=limits)


def ReplyGrammar(
    tools: Iterable[Any],
    *,
    answered: bool = False,
    answer: Grammar | None = None,
    closed: bool = True,
    strict: bool = True,
    token_ids: Mapping[str, int] | None = None,
    limits: GrammarLimits | None = None,
) -> Grammar:
    """The grammar of a whole reply in the harmony notation: reasoning, then one call of the tools.

    answered: an answer may come instead of a call, constrained by `answer` (None: any text). Other
    arguments are those of `ToolCallGrammar`.
    """
    answered, closed = checked_flag("answered", answered), checked_flag("closed", closed)
    composer = Composer(token_ids=token_ids)
    nodes = CallNodes(composer, HARMONY, closed=closed, strict=strict, limits=limits)
    calls = [(tool.name, nodes.arguments(tool)) for tool in tools_of(tools)]
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

    answered: an answer may come instead of a call; answer: its grammar, None for any text.
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
) -> Grammar:
    """A grammar preceded by a reasoning region, in which any text is allowed.

    opened: the prompt has opened the region; otherwise the reply may begin without one. token_ids:
    ids of delimiters that are control tokens, by their text. A region that the prompt has closed
    needs no such grammar.
    """
    composer = Composer(token_ids=token_ids)
    answer = composer.include(grammar, "answer")
    region = composer.rule("reasoning", seq(composer.until_spelled(format.close), SPACES))
    root = (
        seq(region, answer)
        if opened
        else choice(seq(SPACES, composer.spelled(format.open), region, answer), answer)
    )
    return composer.grammar(root, limits=grammar.limits)


_MOST = 512  # states followed at once
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_MORE = _LETTERS + "0123456789.-"


def answer_or_calls(
    answer: Grammar,
    calls: Grammar,
    kind: ToolCallFormat,
    names: Collection[str],
    *,
    token_ids: Mapping[str, int] | None = None,
) -> Grammar:
    """The grammar of a reply that is an answer or calls. ConfigError if an answer may begin like a
    call of one of these names.
    """
    ids = dict(token_ids or {})
    # A copy: other requests may be generating under the answer's grammar, and share its automaton.
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
    return composer.grammar(root)


def _may_begin(start: GrammarState, template: str, names: Collection[str]) -> bool:
    """Whether a text of the grammar may begin like a template; also True if there are too many
    states to decide it.
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
    """The states reached by a text."""
    out = []
    for state in states.values():
        if state.allows_token(text.encode()):
            out.append(state.fork())
            out[-1].advance(text.encode())
    return out


def _closed(states: dict[tuple, GrammarState], chars: str) -> dict[tuple, GrammarState]:
    """The states reached by any number of these characters."""
    found, new = dict(states), states
    while new and len(found) <= _MOST:
        reached = {state.key: state for char in chars for state in _after(new, char)}
        new = {key: state for key, state in reached.items() if key not in found}
        found.update(new)
    return found
