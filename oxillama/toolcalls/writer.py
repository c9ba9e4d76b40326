"""`ChatWriter`: conversations as one chat template writes them, with tools. A template that teaches
no notation of calls gets tools, calls and results in the text of messages.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jinja2
import jinja2.meta

from oxillama.errors import ConfigError, TemplateError
from oxillama.grammar.schema.values import nests_deeply
from oxillama.tokenizer import ChatTemplate, TemplateText, TokenizerBridge
from oxillama.tokenizer.provenance import plain
from oxillama.toolcalls.formats import HERMES, ToolCallFormat, format_of
from oxillama.toolcalls.inline import inline_tools
from oxillama.toolcalls.messages import MessageForm, check_messages
from oxillama.toolcalls.plan import ChatPlanner

_OTHER = "other"  # makes another content of one
_DEEP = "messages, tools: a value in them is nested too deeply"
_DEVELOPER = re.compile(r"""(['"])developer\1""")  # the role, as a template compares with it


class ChatWriter:
    """Writes the chats of one template and vocabulary, and plans them (`planner`); safe to share
    between threads.
    """

    def __init__(self, source: str, bridge: TokenizerBridge) -> None:
        self.template = ChatTemplate(source)
        self.planner = ChatPlanner(source, bridge, fallback=HERMES)
        self._taken: dict[str, bool] = {}
        ends = (("bos_token", bridge.bos_id), ("eos_token", bridge.eos_id))
        self._special = {
            name: bridge.token_text(token) for name, token in ends if token is not None
        }
        # no method: the form and this would hold each other, and the vocabulary
        self._form = MessageForm(source, partial(_rendered, self.template, self._special))

    def write(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        tool_format: str | ToolCallFormat | None = None,
        variables: Mapping[str, Any],
    ) -> TemplateText:
        """The conversation as text. tools: as a request lists them; tool_format: as in
        `ChatPlanner.plan`; variables: what the template may read besides. Where the template does
        not take them one after another, successive instructions are written as one message, and
        so are those of the user.
        """
        if nests_deeply((messages, tools)):
            raise ConfigError(_DEEP)
        try:
            return self._write(messages, tools, tool_format, variables)
        except RecursionError:
            raise ConfigError(_DEEP) from None

    def _write(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        tool_format: str | ToolCallFormat | None,
        variables: Mapping[str, Any],
    ) -> TemplateText:
        if not messages:
            raise ConfigError("messages: found none, wanted 1 or more")
        check_messages(messages)
        given, messages = messages, [self._in_known_role(message) for message in messages]
        places: Sequence[int] = range(len(messages))
        if tools or any(each["role"] == "tool" or each.get("tool_calls") for each in messages):
            kind = self._inline_format(tool_format)
            if kind is not None:
                messages = inline_tools(
                    messages, tools, kind, system=not tools or self._takes("system")
                )
                places = _places(given, len(messages))
                tools = None
        variables = {**variables, "tools": list(tools) if tools else None}
        try:
            return self._complete(messages, variables, given, places)
        except (ConfigError, TemplateError) as error:
            wrong = error
        count = len(messages)
        for user in (False, True):
            joined, kept = _joined(messages, user=user)
            if len(joined) == count:
                continue
            count = len(joined)
            try:
                return self._complete(joined, variables, given, [places[at] for at in kept])
            except (ConfigError, TemplateError) as error:
                wrong = error
        raise wrong

    def _complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        given: Sequence[Mapping[str, Any]],
        places: Sequence[int],
    ) -> TemplateText:
        """The template's text; ConfigError names a message that it leaves out as the one of `given`
        at its place.
        """
        formed = self._form.formed(messages)
        text = self._rendered(formed, **variables)
        left_out = self._left_out(formed, text, variables)
        if left_out is not None:
            at = places[left_out]
            raise ConfigError(
                f"messages[{at}]: the chat template writes nothing of a message with the role "
                f"{given[at]['role']!r}"
            )
        return text

    def _left_out(
        self, messages: list[dict[str, Any]], text: TemplateText, variables: Mapping[str, Any]
    ) -> int | None:
        """The first message that the template leaves out, as some do with roles that they do not
        know. Of replies a template may leave out anything, such as reasoning.
        """
        written, at = plain(text), 0
        changed = []  # by the template, or left out
        for index, message in enumerate(messages):
            content = message["content"]
            if message["role"] == "assistant" or not isinstance(content, str):
                continue
            said = content.strip()
            found = written.find(said, at)  # most often in order
            if found >= 0:
                at = found
            elif said not in written and _as_json(said) not in written:
                changed.append(index)
        if len(changed) > 1:
            # each with digits that no message has: one look for all that are written at all
            words = {index: str(secrets.randbits(64)) for index in changed}
            again = self._changed(messages, words, variables)
            changed = [index for index in changed if again is None or words[index] not in again]
        for index in changed:
            # unless another text gives the same
            if self._changed(messages, {index: _OTHER}, variables) == written:
                return index
        return None

    def _changed(
        self,
        messages: Sequence[dict[str, Any]],
        words: Mapping[int, str],
        variables: Mapping[str, Any],
    ) -> str | None:
        """The text with words put before the contents of messages, by their index; None where the
        template refuses them.
        """
        others = [
            {**each, "content": f"{words[at]} {each['content']}"} if at in words else each
            for at, each in enumerate(messages)
        ]
        try:
            return plain(self._rendered(others, **variables))
        except TemplateError:
            return None

    def knows(self, variable: str) -> bool:
        """Whether the template reads a variable."""
        return variable in self._variables

    def _inline_format(self, tool_format: str | ToolCallFormat | None) -> ToolCallFormat | None:
        """The notation of calls in the text of messages; None if the template writes tools and
        calls itself: it teaches a notation, or lists tools for one that the caller names.
        """
        kind = self.planner.fallback if tool_format is None else format_of(tool_format)
        if self.planner.format is not None or (tool_format is not None and self.knows("tools")):
            return None
        return kind

    def _in_known_role(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A developer's message as one of the system, unless the template knows developers. One
        that only writes every role's name does not.
        """
        if message["role"] != "developer":
            return message
        named = _DEVELOPER.search(self.template.source) is not None
        return message if named and self._takes("developer") else {**message, "role": "system"}

    def _takes(self, role: str) -> bool:
        """Whether the template takes a first message of a role: neither refuses it nor leaves it
        out.
        """
        if role not in self._taken:
            self._taken[role] = self._tried(role)
        return self._taken[role]

    def _tried(self, role: str) -> bool:
        texts = []
        for content in ("a", "c"):
            messages = [{"role": role, "content": content}, {"role": "user", "content": "b"}]
            try:
                texts.append(
                    plain(self._rendered(messages, tools=None, add_generation_prompt=True))
                )
            except TemplateError:
                return False
        return texts[0] != texts[1]

    @cached_property
    def _variables(self) -> frozenset[str]:
        """The variables that the template reads from outside."""
        source = self.template.source
        try:
            parsed = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source)
            return frozenset(jinja2.meta.find_undeclared_variables(parsed))
        except (jinja2.TemplateError, RecursionError):
            # tags of its own: every word inside a tag may be one
            inside = " ".join(re.findall(r"{[%{](.*?)[%}]}", source, re.DOTALL))
            return frozenset(re.findall(r"[A-Za-z_]\w*", inside))

    def _rendered(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> TemplateText:
        """The template's text for messages as they are."""
        return _rendered(self.template, self._special, messages, **variables)


def _rendered(
    template: ChatTemplate,
    special: Mapping[str, str],
    messages: Sequence[Mapping[str, Any]],
    **variables: Any,
) -> TemplateText:
    return template.render(messages, **{**special, **variables})


def _as_json(text: str) -> str:
    """A text as it is written within JSON, which some templates write results in."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _joined(
    messages: Sequence[Mapping[str, Any]], *, user: bool
) -> tuple[list[Mapping[str, Any]], list[int]]:
    """(the messages with successive instructions as one, a blank line between their texts, the
    index of the first of each); user: and successive ones of the user. One that has more than a
    role and a content stays.
    """
    out: list[Mapping[str, Any]] = []
    places: list[int] = []
    kinds = {"system": 1, "developer": 1, **({"user": 2} if user else {})}
    last = None
    for at, message in enumerate(messages):
        kind = kinds.get(message["role"]) if message.keys() == {"role", "content"} else None
        if kind is not None and kind == last:
            out[-1] = {**out[-1], "content": _both(out[-1]["content"], message["content"])}
        else:
            out.append(message)
            places.append(at)
        last = kind
    return out, places


def _both(first: Any, second: Any) -> Any:
    """Two contents as one: a text, or parts where one of them has parts."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts = [
        [{"type": "text", "text": content}] if isinstance(content, str) else content
        for content in (first, second)
    ]
    return [*parts[0], {"type": "text", "text": "\n\n"}, *parts[1]]


def _places(given: Sequence[Mapping[str, Any]], count: int) -> list[int]:
    """The index in `given` of each of the `count` messages that `inline_tools` made of them: it
    joins successive tool results, and may put a system message in front.
    """
    roles = [message["role"] for message in given]
    kept = [at for at, role in enumerate(roles) if roles[at - 1 : at + 1] != ["tool", "tool"]]
    return [0] * (count - len(kept)) + kept
