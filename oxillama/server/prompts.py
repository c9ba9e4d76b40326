"""Conversations as prompts: the file's chat template, over messages as the APIs have them.

What it renders knows which characters came from the request (`tokenizer.TemplateText`), so that
nothing a client writes becomes a control token: not in messages, tools, template variables, or in
the beginning of a reply.

A template that teaches no notation of tool calls that is known here gets the tools in a system
message, and calls in the Hermes notation (`<tool_call>`).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta

from oxillama.chat import Turn
from oxillama.engine.generation import Options, Vocabulary
from oxillama.errors import TemplateError
from oxillama.grammar import Grammar
from oxillama.image_prompts import ImagePrompts
from oxillama.server.errors import ApiError
from oxillama.tokenizer import ChatTemplate, TemplateText
from oxillama.toolcalls import ChatPlanner, MessageForm

_SWITCHES = ("enable_thinking", "thinking")
_GIVEN = ("messages", "tools", "add_generation_prompt")
_PREAMBLE = """You can call functions. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>
To call a function, write a JSON object with its name and arguments between these tags:
<tool_call>
{{"name": <function name>, "arguments": <object of arguments>}}
</tool_call>"""


class PromptBuilder:
    """How one model is talked to; safe to share between threads."""

    def __init__(self, source: str, words: Vocabulary, images: ImagePrompts | None = None) -> None:
        """images: how prompts hold images, None for a model that takes none."""
        bridge, self.images = words.bridge, images
        self.source, self.words, self.bridge = source, words, bridge
        self.template = ChatTemplate(source)
        self.planner = ChatPlanner(source, bridge)
        self._form = MessageForm(source, self._write)
        self._variables: frozenset[str] | None = None
        self._system: bool | None = None
        ends = (("bos_token", bridge.bos_id), ("eos_token", bridge.eos_id))
        self._special = {
            name: bridge.token_text(token) for name, token in ends if token is not None
        }

    @property
    def teaches_tools(self) -> bool:
        """Whether the template teaches its model a notation of calls that is known here."""
        return self.planner.format is not None

    def knows(self, variable: str) -> bool:
        """Whether the template reads a variable."""
        if self._variables is None:
            self._variables = _variables_of(self.source)
        return variable in self._variables

    @property
    def thinking(self) -> str | None:
        """The variable that turns reasoning on and off, None where the template reads none."""
        return next((name for name in _SWITCHES if self.knows(name)), None)

    @property
    def _takes_system(self) -> bool:
        """Whether the template takes a system message; tried once."""
        if self._system is None:
            messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
            try:
                self._write(messages, tools=None, add_generation_prompt=True)
                self._system = True
            except TemplateError:
                self._system = False
        return self._system

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
        if not self.teaches_tools:
            messages = _in_words(messages, tools, system=not tools or self._takes_system)
            tools = None
        text = self._write(
            self._form.formed(messages),
            tools=list(tools) if tools else None,
            add_generation_prompt=add_generation_prompt,
            **(variables or {}),
        )
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
        answer: Grammar | None = self.words.grammar(Options.of(constraint)) if constraint else None
        wanted = tools and tool_choice != "none"
        plan = self.planner.plan(
            rendered,
            tools=tools,
            tool_choice=tool_choice,
            tool_format="hermes" if wanted and not self.teaches_tools else None,
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

    def _write(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> TemplateText:
        return self.template.render(messages, **{**self._special, **variables})


def _variables_of(source: str) -> frozenset[str]:
    """The variables that a template reads from outside."""
    try:
        parsed = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
        return frozenset(jinja2.meta.find_undeclared_variables(parsed))
    except (jinja2.TemplateError, RecursionError):
        # tags of its own: every word inside a tag may be one
        inside = " ".join(re.findall(r"{[%{](.*?)[%}]}", source, re.DOTALL))
        return frozenset(re.findall(r"[A-Za-z_]\w*", inside))


def _in_words(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    system: bool,
) -> list[dict[str, Any]]:
    """Messages for a template that knows neither tools nor calls; without `system` the tools stand
    in the first message of the user.
    """
    out: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):  # with images, which calls and results have none of
            out.append(dict(message))
            continue
        if message["role"] == "tool":
            result = f"<tool_response>\n{content}\n</tool_response>"
            if out and out[-1].get("results"):
                out[-1]["content"] += f"\n{result}"
            else:
                out.append({"role": "user", "content": result, "results": True})
            continue
        calls = message.get("tool_calls") or ()
        parts = [content] if content else []
        for call in calls:
            parts.append(f"<tool_call>\n{_called(call)}\n</tool_call>")
        kept = {
            name: value for name, value in message.items() if name not in ("tool_calls", "content")
        }
        out.append({**kept, "content": "\n".join(parts)})
    for message in out:
        message.pop("results", None)
    if tools:
        listed = "\n".join(
            json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools
        )
        preamble = _PREAMBLE.format(tools=listed)
        first = next((each for each in out if each["role"] == "user"), None)
        if not system and first is not None and isinstance(first["content"], list):
            said = {"type": "text", "text": f"{preamble}\n\n"}
            first["content"] = [said, *first["content"]]
        elif not system and first is not None:
            first["content"] = f"{preamble}\n\n{first['content']}"
        elif out and out[0]["role"] == "system":
            out[0] = {**out[0], "content": f"{out[0]['content']}\n\n{preamble}".strip()}
        else:
            out.insert(0, {"role": "system", "content": preamble})
    return out


def _called(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments) if arguments.strip() else {}
    return json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
