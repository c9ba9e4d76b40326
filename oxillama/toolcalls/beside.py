"""Calls beside an answer's own constraint: a reply is one or the other, and which one shows where
it begins.

That is exact unless an answer may begin as a call does, so that whoever reads the reply could not
tell: such a pair is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from oxillama.errors import ConfigError
from oxillama.grammar import Grammar, GrammarLimits
from oxillama.grammar.automaton import GrammarState
from oxillama.grammar.nodes import choice
from oxillama.toolcalls.compose import Composer
from oxillama.toolcalls.formats import ToolCallFormat
from oxillama.toolcalls.opening import KEYWORD, NAME, SPACE, WORD, bare_templates

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
        told = (
            clash.replace(NAME, '"name"')
            .replace(WORD, "name")
            .replace(KEYWORD, "key")
            .replace(" ", "")
        )
        raise ConfigError(
            f"tool_choice: found 'auto' in format {kind.name} beside a constraint whose answers may begin with {told}, as calls do; "
            "wanted 'none', 'required' or a constraint that excludes it"
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
