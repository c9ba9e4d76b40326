"""`Composer`: the rules of several grammars in one, with delimiters that are control tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import Grammar, GrammarLimits
from oxillama.grammar.gbnf import OTHER, symbol_node, symbol_of
from oxillama.grammar.nodes import (
    ANY,
    CLASS,
    NETWORK,
    NEVER,
    RULE,
    SYMBOL,
    literal,
    merge,
    repeat,
    rewritten,
    seq,
    subtract,
)


class Composer:
    """Collects rules, the root first; `token_ids` gives the ids of delimiters that are control
    tokens, which have no text.
    """

    def __init__(self, *, token_ids: Mapping[str, int] | None = None) -> None:
        self.names: list[str] = ["root"]
        self.rules: list[tuple] = [NEVER]
        self.tokens: list[int | str] = []
        if token_ids is not None and not isinstance(token_ids, Mapping):
            raise GrammarError(
                f"token_ids: found {type(token_ids).__name__}, wanted ids by the text of a token"
            )
        self.token_ids = dict(token_ids or {})

    def delimiter(self, text: str) -> tuple:
        """The node of a delimiter: its token where it is a control token, else its text; nothing
        for an empty one.
        """
        if text in self.token_ids:
            return self._symbol(self.token_ids[text])
        return literal(text)

    def spelled(self, text: str) -> tuple:
        """The node of a text that may hold delimiters."""
        if not self.token_ids:
            return literal(text)
        marks = sorted(self.token_ids, key=len, reverse=True)
        return seq(
            *(
                self.delimiter(part)
                for part in re.split(f"({'|'.join(map(re.escape, marks))})", text)
                if part
            )
        )

    def until(self, text: str) -> tuple:
        """The node of any text up to and including a delimiter."""
        return (
            seq(self.any_text(), self.delimiter(text))
            if text in self.token_ids
            else text_until(text)
        )

    def until_spelled(self, text: str) -> tuple:
        """The node of any text up to and including one that may hold delimiters; with control
        tokens in it, it ends at the first of them.
        """
        if any(mark in text for mark in self.token_ids):
            return seq(self.any_text(), self.spelled(text))
        return text_until(text)

    def _symbol(self, token: int | str) -> tuple:
        if token not in self.tokens:
            self.tokens.append(token)
        return symbol_node(OTHER + 1 + self.tokens.index(token))

    def any_text(self) -> tuple:
        """The node of any text."""
        return repeat((CLASS, ANY))

    def rule(self, name: str, node: tuple) -> tuple:
        """Add a rule; returns the node that refers to it."""
        self.names.append(f"{name}-{len(self.rules)}")
        self.rules.append(node)
        return (RULE, len(self.rules) - 1)

    def reserve(self, name: str) -> tuple:
        """A rule whose node comes later, by `define`: for rules that refer to themselves."""
        return self.rule(name, NEVER)

    def define(self, rule: tuple, node: tuple) -> None:
        """The node of a rule that was reserved."""
        self.rules[rule[1]] = node

    def include(self, grammar: Grammar, name: str) -> tuple:
        """All rules of a grammar; returns the node of its root."""
        shift = len(self.rules)
        for number, (old, body) in enumerate(zip(grammar.names, grammar.rules)):
            self.names.append(f"{name}-{shift + number}-{old}")
            self.rules.append(self._moved(body, shift, grammar.tokens))
        return (RULE, shift)

    def _moved(self, node: tuple, shift: int, tokens: tuple) -> tuple:
        """A node in its place among these rules."""

        def moved(leaf: tuple) -> tuple:
            if leaf[0] == RULE:
                return (RULE, leaf[1] + shift)
            return self._moved_symbol(leaf, tokens) if leaf[0] == SYMBOL else leaf

        return rewritten(node, moved)

    def _moved_symbol(self, node: tuple, tokens: tuple) -> tuple:
        symbol, negated = symbol_of(node)
        moved = self._symbol(tokens[symbol - OTHER - 1])
        return symbol_node(moved[1][0][0], negated=True) if negated else moved

    def grammar(self, root: tuple, *, limits: GrammarLimits | None = None) -> Grammar:
        """The grammar whose root is this node."""
        self.rules[0] = root
        return Grammar(
            self.names,
            self.rules,
            tokens=self.tokens,
            limits=limits or GrammarLimits(max_repetition=1 << 30),
        )


def partial(text: str, delimiter: str) -> int:
    """Length of the longest end of the text that a delimiter begins with, without being it."""
    for size in range(min(len(delimiter) - 1, len(text)), 0, -1):
        if text.endswith(delimiter[:size]):
            return size
    return 0


def text_until(delimiter: str) -> tuple:
    """The node of any text up to and including the first delimiter."""
    if not delimiter:
        raise GrammarError("delimiter: found '', wanted a text")
    states = []
    for at in range(len(delimiter)):
        known = delimiter[:at]
        edges: dict[int, list[str]] = {}
        for char in sorted(set(delimiter)):
            longer = known + char
            target = len(longer) if delimiter.startswith(longer) else partial(longer, delimiter)
            edges.setdefault(target, []).append(char)
        rest = subtract(ANY, merge((ord(char), ord(char)) for char in delimiter))
        nodes = [
            ((CLASS, merge((ord(char), ord(char)) for char in chars)), target)
            for target, chars in edges.items()
        ]
        states.append((False, (*nodes, ((CLASS, rest), 0))))
    states.append((True, ()))
    return (NETWORK, 0, tuple(states))
