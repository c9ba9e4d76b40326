"""Conversations as prompts: the file's chat template, over messages as the APIs have them.

What it renders knows which characters came from the request (`tokenizer.TemplateText`), so that
nothing a client writes becomes a control token: not in messages, tools, template variables, or in
the beginning of a reply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from oxillama.chat import Turn
from oxillama.engine.generation import SharedVocabulary
from oxillama.errors import ConfigError, TemplateError
from oxillama.grammar import Grammar
from oxillama.media_prompts import MediaPrompts
from oxillama.options import Options
from oxillama.server.errors import ApiError
from oxillama.tokenizer import TemplateText
from oxillama.toolcalls import ChatWriter
from oxillama.toolcalls.formats import HARMONY, taught_format

_SWITCHES = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"
# a template that reads this value of the effort, as Mistral's does
_NONE = re.compile(rf"""\{{%(?:(?!%\}}).)*\b{_EFFORT}\b(?:(?!%\}}).)*(['"])none\1""", re.DOTALL)
_GIVEN = ("messages", "tools", "add_generation_prompt")
_INSTRUCTIONS = ("system", "developer")  # roles


def has_late_instructions(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether instructions come after other messages."""
    return any(each["role"] in _INSTRUCTIONS for each in messages[_beginning(messages) :])


def _beginning(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many messages of instructions come first."""
    found = (at for at, each in enumerate(messages) if each["role"] not in _INSTRUCTIONS)
    return next(found, len(messages))


def _as_users(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with late instructions as the user's."""
    count = _beginning(messages)
    return [
        {**each, "role": "user"} if at >= count and each["role"] in _INSTRUCTIONS else each
        for at, each in enumerate(messages)
    ]


class PromptBuilder:
    """How one model is talked to; safe to share between threads."""

    def __init__(
        self,
        source: str,
        vocabulary: SharedVocabulary,
        media: MediaPrompts | None = None,
        *,
        late_instructions: str = "refuse",
    ) -> None:
        """media: how prompts hold images and audio, None for a model that takes neither.
        late_instructions: as of `ServerConfig`.
        """
        bridge, self.media = vocabulary.bridge, media
        self.late_instructions = late_instructions
        self.source, self.vocabulary, self.bridge = source, vocabulary, bridge
        self.writer = ChatWriter(source, bridge)
        self.planner, self.knows = self.writer.planner, self.writer.knows

    @property
    def thinking(self) -> str | None:
        """The variable that turns reasoning on and off, None where the template reads none."""
        return next((name for name in _SWITCHES if self.knows(name)), None)

    def reasoning(self, wanted: bool | str) -> dict[str, Any] | None:
        """The variables that turn reasoning on, at a level if `wanted` is one, or off (False,
        "none"); empty where that is so without any, None where the template cannot do it. Where it
        has only a switch a level turns that on.
        """
        on = wanted not in (False, "none")
        switch = {} if self.thinking is None else {self.thinking: on}
        if on and isinstance(wanted, str) and self.knows(_EFFORT):
            return {_EFFORT: wanted, **switch}
        if not switch and _NONE.search(self.source) is not None:
            return {_EFFORT: "high" if on else "none"}
        return switch or ({} if on == self.reasons else None)

    @property
    def reasons(self) -> bool:
        """Whether replies may hold reasoning, in a region of their text or on a channel."""
        return self.planner.reasoning is not None or taught_format(self.source) is HARMONY

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        prefill: str = "",
        add_generation_prompt: bool = True,
    ) -> TemplateText:
        """The conversation as text; `prefill` begins the reply."""
        for name in variables or ():
            # text in a variable of such a name would be the template's
            if name in _GIVEN or name.endswith("_token"):
                raise ApiError(
                    400,
                    f"chat_template_kwargs.{name}: is given by the request itself, wanted another",
                    param=f"chat_template_kwargs.{name}",
                )
        variables = {"add_generation_prompt": add_generation_prompt, **(variables or {})}
        try:
            text = self.writer.write(messages, tools=tools, variables=variables)
        except (ConfigError, TemplateError):
            if self.late_instructions == "refuse" or not has_late_instructions(messages):
                raise
            text = self.writer.write(_as_users(messages), tools=tools, variables=variables)
        # marked as what messages say
        return TemplateText(text.plain + prefill, text.marks + b"\1" * len(prefill))

    def encode(self, rendered: TemplateText) -> list[int]:
        """Token ids: control tokens are those that the template wrote."""
        return self.bridge.encode(rendered, add_special=False)

    def turn(
        self,
        rendered: TemplateText,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        parallel_tool_calls: bool = True,
        options: Mapping[str, Any],
        prompt: list[int] | None = None,
    ) -> Turn:
        """The next reply of a rendered conversation, planned; options are those of `submit`.
        prompt: its tokens, where they are more than those of the text.
        """
        asked = dict(options)
        constraint: dict[str, Any] = {
            name: asked.pop(name)
            for name in ("grammar", "json_schema", "regex", "choices")
            if name in asked
        }
        shown = asked.pop("shown_tokens", ())
        answer: Grammar | None = (
            self.vocabulary.grammar(Options.of(constraint)) if constraint else None
        )
        plan = self.planner.plan(
            rendered,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            constraint=answer,
        )
        return Turn(
            self.encode(rendered) if prompt is None else prompt,
            {
                **asked,
                "grammar": plan.constraint,
                "shown_tokens": sorted({*shown, *plan.shown.values()}),
            },
            plan,
        )
