"""Conversations with one model: a chat goes out through its template as a `Turn`, and what comes back is read into its parts.

    messages, tools --render--> text --plan_chat--> Turn(prompt, options, plan) --submit--> Request --read--> Completion
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oxillama.engine.generation import Options, Vocabulary, response_constraint
from oxillama.engine.request import Completion
from oxillama.errors import TemplateError
from oxillama.tokenizer import ChatTemplate, TokenizerBridge
from oxillama.toolcalls import ChatPlan, Tool, plan_chat, tool_of

_OF_TOOLS = ("tool_choice", "tool_format", "parallel_tool_calls")
_CONSTRAINTS = ("grammar", "json_schema", "regex", "choices")


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply to come: the prompt's token ids, the options of its generation, and how the reply is read."""

    prompt: list[int]
    options: dict[str, Any]
    plan: ChatPlan
    bridge: TokenizerBridge

    def read(self, done: Completion) -> Completion:
        """The completion with its reply read: content, reasoning, calls."""
        reply = self.plan.read(self.plan.text_of(self.bridge, done.tokens, done.text))
        reason = "tool_calls" if reply.tool_calls and done.finish_reason == "stop" else done.finish_reason
        return replace(done, content=reply.content, reasoning=reply.reasoning, tool_calls=reply.tool_calls, malformed_calls=reply.malformed,
                       finish_reason=reason)


class Chat:
    """How one model is talked to: its chat template over its vocabulary."""

    __slots__ = ("template", "vocabulary")

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            raise TemplateError("tokenizer.chat_template: the file has none, wanted one to chat with")
        self.template, self.vocabulary = ChatTemplate(source), vocabulary

    def render(self, messages: Sequence[dict], *, tools: Sequence[dict] | None = None, add_generation_prompt: bool = True,
               **variables: Any) -> str:
        """The conversation as the template writes it; `variables` reach the template as they are."""
        bridge = self.vocabulary.bridge
        ends = (("bos_token", bridge.bos_id), ("eos_token", bridge.eos_id))
        special = {name: bridge.token_text(token) for name, token in ends if token is not None}
        return self.template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt, **{**special, **variables})

    def turn(self, messages: Sequence[dict], *, tools: Sequence[Any] | None = None, response_format: dict | None = None,
             template: dict | None = None, **options: Any) -> Turn:
        """The next reply of a conversation, planned; options are those of `generate` and of `plan_chat`."""
        tools = [tool_of(tool).listed() if callable(tool) or isinstance(tool, Tool) else tool for tool in tools] if tools else None
        text = self.render(messages, tools=tools, **(template or {}))
        about = {name: options.pop(name) for name in _OF_TOOLS if name in options}
        wanted = {**response_constraint(response_format), **options}
        words = self.vocabulary
        plan = plan_chat(self.template.source, text, words.bridge, tools=tools, constraint=words.grammar(Options.of(wanted)), **about)
        wanted = {key: value for key, value in wanted.items() if key not in _CONSTRAINTS}
        prompt = words.bridge.encode(text, add_special=False, parse_special=True)
        return Turn(prompt, {**wanted, "grammar": plan.constraint}, plan, words.bridge)
