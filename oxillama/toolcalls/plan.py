"""`ChatPlan`: how one chat is generated (a constraint) and how its reply is read (reasoning,
content, calls).

`ChatPlanner` combines the notation that the chat template teaches, the rendered prompt, the tools
and `tool_choice`, and the tokens of the vocabulary. Plans are cached: a chat with the same tools,
choice and constraint reuses its compiled grammar and masks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from os.path import commonprefix
from typing import Any
from weakref import WeakMethod

from oxillama.arguments import is_one_of
from oxillama.errors import ConfigError, TemplateError
from oxillama.grammar import Grammar
from oxillama.tokenizer import ChatTemplate, TokenizerBridge
from oxillama.toolcalls.events import ToolCall
from oxillama.toolcalls.formats import FORMATS, HARMONY, ToolCallFormat, format_of, taught_format
from oxillama.toolcalls.grammar import (
    ReplyGrammar,
    ToolCallGrammar,
    answer_or_calls,
    with_reasoning,
)
from oxillama.toolcalls.reader import detect_calls
from oxillama.toolcalls.reasoning import (
    ReasoningFormat,
    closed_by,
    detect_reasoning,
    implied_by,
    opened_by,
)
from oxillama.toolcalls.reply import Reply, ReplyParser
from oxillama.toolcalls.tools import Tool, tools_of
from oxillama.toolcalls.triggered import TriggeredGrammar

CHOICES = ("auto", "none", "required")
_KEPT = 32  # plans


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    """How one chat runs. format: the notation of calls, None if none are looked for; constraint: of
    the generation, None for none.

    leading: calls are recognised only at the beginning of the reply. shown: ids of delimiters that
    are control tokens, by their text; generation writes them as text, so that the reply can be
    read.
    """

    tools: tuple[Tool, ...] = ()
    format: ToolCallFormat | None = None
    reasoning: ReasoningFormat | None = None
    reasoning_opened: bool = False
    constraint: Grammar | TriggeredGrammar | None = None
    leading: bool = False
    shown: Mapping[str, int] = field(default_factory=dict)

    def parser(self) -> ReplyParser:
        """A parser for the streamed reply."""
        return ReplyParser(
            self.format,
            reasoning=self.reasoning,
            reasoning_opened=self.reasoning_opened,
            names=[tool.name for tool in self.tools],
            parameters={tool.name: tool.parameters for tool in self.tools},
            leading=self.leading,
        )

    def read(self, text: str) -> Reply:
        """A complete reply in its parts."""
        parser = self.parser()
        parser.feed(text)
        parser.finish()
        return parser.reply


class ChatPlanner:
    """Plans the chats of one template and vocabulary; safe to share between threads.

    fallback: the notation for a template that teaches none; if it is None, the caller must name
    one. The last `kept` plans are cached.
    """

    def __init__(
        self,
        template: str,
        bridge: TokenizerBridge,
        *,
        fallback: ToolCallFormat | None = None,
        kept: int = _KEPT,
    ) -> None:
        self.bridge, self.fallback = bridge, fallback
        self._template, self.reasoning = template, detect_reasoning(template)
        region = self.reasoning
        self._implied = region is not None and implied_by(template, region)
        made = WeakMethod(self._made)  # or the cache and this would hold each other, and `bridge`

        @lru_cache(maxsize=kept)
        def plan(*key: Any) -> ChatPlan:
            make = made()
            assert make is not None
            return make(*key)

        self._plan = plan

    @cached_property
    def format(self) -> ToolCallFormat | None:
        """The format that the template teaches."""
        return detect_format(self._template)

    def plan(
        self,
        prompt: str,
        *,
        tools: Sequence[Any] | None = None,
        tool_choice: Any = None,
        tool_format: str | ToolCallFormat | None = None,
        parallel_tool_calls: bool = True,
        constraint: Grammar | None = None,
    ) -> ChatPlan:
        """The plan of a chat with a rendered prompt.

        - `tool_choice`: "auto" (the default with tools), "none", "required", or one tool: its name
          or {"type": "function", "function": {"name": ...}}.
        - `tool_format`: None for the template's notation, or `fallback`.
        - `parallel_tool_calls`: False ends a reply after its first call.
        - `constraint`: applies to answers; with calls, the beginning of the reply decides whether
          it is an answer or calls.

        ConfigError for choices that cannot be honoured, and for a constraint whose answers may
        begin like a call.
        """
        offered = tools_of(tools or ())
        choice, name = _choice(tool_choice, offered)
        if not isinstance(parallel_tool_calls, bool):
            raise ConfigError(
                f"parallel_tool_calls: found {parallel_tool_calls!r}, wanted True or False"
            )
        asked = None if tool_format is None else format_of(tool_format)
        kind = HARMONY if asked is None and taught_format(self._template) is HARMONY else None
        if offered and choice != "none":
            kind = asked or self.format or self.fallback
            if kind is None:
                raise ConfigError(
                    "tool_format: the chat template teaches none that is known, wanted tool_format "
                    "or tool_choice='none'"
                )
        if (
            constraint is not None
            and not isinstance(constraint, Grammar)
            and (kind is not None or self.reasoning is not None)
        ):
            raise ConfigError(
                f"grammar: found {type(constraint).__name__} in a chat with tools or reasoning, "
                "wanted a Grammar"
            )
        region = self.reasoning
        opened = region is not None and opened_by(prompt, region)
        # what is held to a form then begins with its first token
        over = region is not None and closed_by(prompt, region)
        over = over and (constraint is not None or choice in ("required", "named"))
        return self._plan(
            _tools_json(offered), choice, name, kind, opened, over, parallel_tool_calls, constraint
        )

    def _made(
        self,
        tools_json: str,
        choice: str,
        name: str | None,
        kind: ToolCallFormat | None,
        opened: bool,
        over: bool,
        parallel: bool,
        answer: Grammar | None,
    ) -> ChatPlan:
        """A new plan; its arguments are the key of the cache."""
        if kind is not None and kind.style == "harmony":
            return self._channelled(tools_json, choice, name, answer)
        tools, region = tools_of(json.loads(tools_json)), None if over else self.reasoning
        ids = self._ids(kind)
        leading = False
        constraint: Grammar | TriggeredGrammar | None = answer
        if kind is not None and choice == "auto" and answer is None:
            constraint = TriggeredGrammar(
                kind,
                tools,
                reasoning=region,
                reasoning_opened=opened,
                parallel=parallel,
                token_ids=ids,
            )
        else:
            grammar = answer
            if kind is not None:
                grammar = ToolCallGrammar(kind, tools, name=name, parallel=parallel, token_ids=ids)
                if answer is not None and choice == "auto":
                    names, leading = [tool.name for tool in tools], True
                    grammar = answer_or_calls(answer, grammar, kind, names, token_ids=ids)
            if grammar is not None and region is not None:
                grammar = with_reasoning(grammar, region, opened=opened, token_ids=ids)
            constraint = grammar
        return ChatPlan(
            tools=tools,
            format=kind,
            reasoning=region,
            reasoning_opened=opened or (constraint is None and self._implied),
            constraint=constraint,
            leading=leading,
            shown=ids,
        )

    def _channelled(
        self, tools_json: str, choice: str, name: str | None, answer: Grammar | None
    ) -> ChatPlan:
        """A plan in the harmony notation: calls, reasoning and answers have separate channels, so
        one grammar covers them all.
        """
        tools, ids = tools_of(json.loads(tools_json)), self._ids(HARMONY)
        offered = [tool for tool in tools if choice != "none" and name in (None, tool.name)]
        constraint = None
        if offered or answer is not None:
            constraint = ReplyGrammar(
                offered, answered=choice in ("auto", "none"), answer=answer, token_ids=ids
            )
        return ChatPlan(tools=tools, format=HARMONY, constraint=constraint, shown=ids)

    def _ids(self, kind: ToolCallFormat | None) -> dict[str, int]:
        """Ids of the delimiters that are control tokens."""
        region = self.reasoning
        texts = (
            *(kind.marks if kind is not None else ()),
            *(region.marks if region is not None else ()),
        )
        found = {text: self.bridge.token_to_id(text) for text in texts}
        return {
            text: token
            for text, token in found.items()
            if token is not None and token in self.bridge.special_ids
        }


def detect_format(template: str) -> ToolCallFormat | None:
    """The notation of calls that a chat template teaches its model, None if it teaches no known
    one.

    It is recognised from the template's source, and checked with the text that the template writes
    for a call in a conversation. If that text reads as a call in another format, that format is
    returned; if no format reads it, None.
    """
    kind = taught_format(template)
    written = None if kind is not None and _proven_by_source(kind) else _written_call(template)
    if written is None or (kind is not None and _reads(kind, written)):
        return kind
    others = (each for each in FORMATS.values() if not _proven_by_source(each))
    return next((each for each in others if _reads(each, written)), None)


def _proven_by_source(kind: ToolCallFormat) -> bool:
    """Whether the text that a template writes proves nothing, because bare calls and channels
    depend on their position.
    """
    return bool(kind.bare) or kind.style == "harmony"


_ENDS: dict[str, Any] = {"bos_token": "", "eos_token": ""}
_PROBE = ToolCall("probe_tool", {"probe_key": "probe value"})


def _written_call(template: str) -> str | None:
    """The text that a template writes for an assistant's call, None if it writes none."""
    tool = Tool(
        _PROBE.name,
        "a probe",
        {"type": "object", "properties": {"probe_key": {"type": "string"}}},
    ).listed()
    asked: list[dict[str, Any]] = [{"role": "user", "content": "probe question"}]
    answered = {"role": "tool", "tool_call_id": _PROBE.id, "name": _PROBE.name, "content": "b"}
    rendered = ChatTemplate(template)
    for arguments in (_PROBE.arguments, _PROBE.arguments_text):
        call = _PROBE.message()
        call["function"]["arguments"] = arguments
        history = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
        for messages in ([*history, answered], history):
            try:
                before = rendered.render(asked, tools=[tool], **_ENDS).plain
                text = rendered.render(
                    messages, tools=[tool], add_generation_prompt=False, **_ENDS
                ).plain
            except TemplateError:
                continue
            start = len(commonprefix([before, text]))
            # back to the beginning of what the reply and the prompt share
            text = text[text.rfind("probe question", 0, start) + len("probe question") :]
            if "probe_key" in text and "probe value" in text:
                return text
    return None


def _reads(kind: ToolCallFormat, text: str) -> bool:
    """Whether a text is read as the probe's call in a format."""
    _, calls, malformed = detect_calls(text, kind)
    found = [(call.name, call.arguments) for call in calls]
    return not malformed and found == [(_PROBE.name, _PROBE.arguments)]


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
    """The plan of a single chat; arguments are those of `ChatPlanner.plan`."""
    return ChatPlanner(template, bridge, kept=0).plan(
        prompt,
        tools=tools,
        tool_choice=tool_choice,
        tool_format=tool_format,
        parallel_tool_calls=parallel_tool_calls,
        constraint=constraint,
    )


def _tools_json(tools: Sequence[Tool]) -> str:
    """The tools as JSON text, the key of cached plans. The order of members matters, because
    arguments follow it.
    """
    try:
        return json.dumps([tool.listed() for tool in tools], separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"tools: cannot be written as JSON ({error}), wanted JSON Schemas"
        ) from None


def _choice(given: Any, tools: tuple[Tool, ...]) -> tuple[str, str | None]:
    """(one of the choices or "named", the name of the one tool)."""
    names = [tool.name for tool in tools]
    if given is None:
        return ("auto" if tools else "none"), None
    function = given.get("function", given) if isinstance(given, Mapping) else {"name": given}
    name = function.get("name") if isinstance(function, Mapping) else None
    if is_one_of(name, names):
        return "named", name
    if not is_one_of(given, CHOICES):
        raise ConfigError(
            f"tool_choice: found {given if name is None else name!r:.50}, wanted one of "
            f"{', '.join((*CHOICES, *names))}"
        )
    if given == "required" and not tools:
        raise ConfigError("tool_choice: found 'required' without tools, wanted at least one")
    return given, None
