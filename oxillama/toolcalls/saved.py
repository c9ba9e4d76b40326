"""Constraints told in JSON and made again: what lets a session with a constraint go on in another
process.

A constraint's `describe()` names its kind and what rebuilds it; its state's `serialise()` says
where in it the session stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxillama.errors import ConfigError, GrammarError
from oxillama.grammar import GrammarLimits, GrammarState, TokenMasker
from oxillama.tokenizer import TokenizerBridge
from oxillama.toolcalls.formats import ToolCallFormat
from oxillama.toolcalls.reasoning import ReasoningFormat
from oxillama.toolcalls.triggered import VERSION, TriggeredGrammar, TriggeredState


def constraint_of(
    description: Mapping[str, Any], bridge: TokenizerBridge | None = None
) -> TriggeredGrammar:
    """The constraint that a `describe()` of kind "tools" told.

    bridge: where given, its ids of the delimiters must be those described. Raises GrammarError for
    a description that is none, or does not fit the vocabulary.
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
    for text, token in ids.items() if bridge is not None else ():
        if bridge.token_to_id(text) != token:
            raise GrammarError(
                f"constraint: {text} was token {token}, this vocabulary has {bridge.token_to_id(text)}"
            )
    return made


def restore_state(
    description: Mapping[str, Any],
    data: bytes,
    *,
    masker: TokenMasker | None = None,
    bridge: TokenizerBridge | None = None,
) -> GrammarState | TriggeredState:
    """The state that was saved as `state.describe()` and `state.serialise()`, ready to go on.
    Raises GrammarError for malformed ones.
    """
    if isinstance(description, Mapping) and description.get("kind") == "grammar":
        return GrammarState.restore(data, masker=masker)
    return TriggeredState.restore(data, grammar=constraint_of(description, bridge), masker=masker)
