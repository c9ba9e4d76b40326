"""`ChatPlan`: what one chat asks of generation (a constraint) and how its reply is read (reasoning, content, calls).

It puts together what the chat template teaches, the prompt it rendered, the tools and `tool_choice`, and what the vocabulary has as tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.errors import ConfigError
from oxillama.grammar import Grammar
from oxillama.tokenizer import TokenizerBridge
from oxillama.toolcalls.constraint import ToolCallGrammar
from oxillama.toolcalls.formats import ARGS, CALL_ID, ToolCallFormat, detect_format, format_of
from oxillama.toolcalls.reasoning import ReasoningFormat, detect_reasoning, opened_by, with_reasoning
from oxillama.toolcalls.reply import Reply, ReplyParser
from oxillama.toolcalls.tools import Tool, tools_of
from oxillama.toolcalls.triggered import TriggeredGrammar

CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    """How one chat goes. format: None where no calls are looked for; constraint: what generation is held to, None where to nothing."""

    tools: tuple[Tool, ...] = ()
    format: ToolCallFormat | None = None
    reasoning: ReasoningFormat | None = None
    reasoning_opened: bool = False
    constraint: Grammar | TriggeredGrammar | None = None

    def parser(self, *, first_index: int = 0) -> ReplyParser:
        """A parser for the reply as it streams."""
        return ReplyParser(
            self.format,
            reasoning=self.reasoning,
            reasoning_opened=self.reasoning_opened,
            first_index=first_index,
            names=[tool.name for tool in self.tools],
        )

    def read(self, text: str) -> Reply:
        """A whole reply in its parts."""
        parser = self.parser()
        parser.feed(text)
        parser.finish()
        return parser.reply

    @property
    def delimiters(self) -> tuple[str, ...]:
        """The texts that the plan looks for."""
        kind, region = self.format, self.reasoning
        texts = () if kind is None else (kind.open, kind.close, *((ARGS, CALL_ID) if kind.header else ()))
        return tuple(filter(None, (*texts, *(() if region is None else (region.open, region.close)))))

    def text_of(self, bridge: TokenizerBridge, tokens: Sequence[int], text: str) -> str:
        """The text to read: a generation's own, or with control tokens in it the same with those that are delimiters written out."""
        special = bridge.special_ids
        if not any(token in special for token in tokens):
            return text
        known = {bridge.token_to_id(delimiter): delimiter for delimiter in self.delimiters}
        pieces = [known.get(token, "").encode() if token in special else bridge.token_bytes(token) for token in tokens]
        return b"".join(pieces).decode("utf-8", "replace")


def plan_chat(
    template: str,
    prompt: str,
    bridge: TokenizerBridge,
    *,
    tools: Sequence[Any] | None = None,
    tool_choice: Any = None,
    tool_format: str | ToolCallFormat | None = None,
    parallel_tool_calls: bool = True,
    constraint: Grammar | None = None,
) -> ChatPlan:
    """The plan of a chat over a rendered prompt.

    tool_choice: "auto" (the default with tools), "none", "required", or one tool: its name or {"type": "function", "function": {"name":
    ...}}.
    tool_format: None for what the template teaches. constraint: what the answer is held to besides; only without calls.
    Raises ConfigError for choices that cannot be honoured.
    """
    offered = tools_of(tools or ())
    choice, name = _choice(tool_choice, offered)
    region = detect_reasoning(template)
    opened = region is not None and opened_by(prompt, region)
    kind = None
    if offered and choice != "none":
        kind = detect_format(template) if tool_format is None else format_of(tool_format)
        if kind is None:
            raise ConfigError("tool_format: the chat template teaches none that is known, wanted tool_format or tool_choice='none'")
        if constraint is not None:
            raise ConfigError(f"tool_choice: found {choice!r} beside another constraint, wanted 'none' or no constraint")
    plan = ChatPlan(tools=offered, format=kind, reasoning=region, reasoning_opened=opened)
    special = bridge.special_ids
    ids = {text: token for text in plan.delimiters if (token := bridge.token_to_id(text)) is not None and token in special}
    if kind is not None and choice == "auto":
        constraint = TriggeredGrammar(kind, offered, reasoning=region, reasoning_opened=opened, token_ids=ids)
    else:
        if kind is not None:
            constraint = ToolCallGrammar(kind, offered, name=name, parallel=parallel_tool_calls, token_ids=ids)
        if constraint is not None and region is not None:
            constraint = with_reasoning(constraint, region, opened=opened, token_ids=ids)
    return ChatPlan(tools=offered, format=kind, reasoning=region, reasoning_opened=opened, constraint=constraint)


def _choice(given: Any, tools: tuple[Tool, ...]) -> tuple[str, str | None]:
    """(one of the choices or "named", the name of the one tool)."""
    names = [tool.name for tool in tools]
    if given is None:
        return ("auto" if tools else "none"), None
    name = given.get("function", given).get("name") if isinstance(given, Mapping) else given
    if name in names:
        return "named", name
    if given not in CHOICES:
        raise ConfigError(f"tool_choice: found {name!r}, wanted one of {', '.join((*CHOICES, *names))}")
    if given == "required" and not tools:
        raise ConfigError("tool_choice: found 'required' without tools, wanted at least one")
    return given, None
