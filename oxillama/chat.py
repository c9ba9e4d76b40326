"""Conversations with one model. A chat template turns a conversation into a `Turn`; the reply is
read into its parts.

    messages, tools --render--> text --plan--> Turn(prompt, options, plan) --submit--> Request
    --read--> Completion, or ChatEvents
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oxillama.arguments import GOES_ON, listable
from oxillama.completion import Completion, Piece
from oxillama.engine.generation import SharedVocabulary
from oxillama.errors import ConfigError, TemplateError, not_pickled
from oxillama.media.messages import MediaPart, split_media
from oxillama.media_prompts import MediaPrompts, Places, no_encoder
from oxillama.options import Options, response_constraint
from oxillama.tokenizer import TemplateText
from oxillama.toolcalls import (
    ChatEvent,
    ChatEventBuilder,
    ChatPlan,
    ChatWriter,
    Tool,
    ToolCallFormat,
    tool_of,
)

TEMPLATE_KEY = "tokenizer.chat_template"
_OF_TOOLS = ("tool_choice", "tool_format", "parallel_tool_calls")
_CONSTRAINTS = ("grammar", "json_schema", "regex", "choices")
# variables of a template that are arguments of their own
_GIVEN = ("messages", "tools")
_PLANNED = (*_CONSTRAINTS, "shown_tokens")


@dataclass(frozen=True, slots=True)
class Turn:
    """A reply to be generated: the prompt's token ids, the options of its generation, and how the
    reply is read.
    """

    prompt: list[int]
    options: dict[str, Any]
    plan: ChatPlan

    def read(self, done: Completion) -> Completion:
        """The completion with its reply read: content, reasoning, calls."""
        reply = self.plan.read(done.text)
        reason = (
            "tool_calls"
            if reply.tool_calls and done.finish_reason == "stop"
            else done.finish_reason
        )
        return replace(
            done,
            content=reply.content,
            reasoning=reply.reasoning,
            tool_calls=reply.tool_calls,
            malformed_calls=reply.malformed,
            finish_reason=reason,
        )

    def events(self) -> EventReader:
        """A reader that turns the pieces of a streamed reply into events."""
        return EventReader(self.plan)


class EventReader:
    """Turns the pieces of one reply into `ChatEvent`s, and its end into the last of them."""

    __slots__ = ("_logprobs", "_parser", "_builder", "_tokens")

    def __init__(self, plan: ChatPlan) -> None:
        self._parser, self._builder = plan.parser(), ChatEventBuilder()
        self._tokens: tuple[int, ...] = ()
        self._logprobs: tuple[Any, ...] = ()

    def feed(self, piece: Piece) -> list[ChatEvent]:
        """The events that a piece completes."""
        return self._with_tokens(piece, self._builder.take(self._parser.feed(piece.text)))

    def finish(self, piece: Piece, done: Completion) -> list[ChatEvent]:
        """The events of the reply's end, after its last piece."""
        out = (
            self._builder.take(self._parser.feed(piece.text) + self._parser.finish())
            + self._builder.finish()
        )
        return self._with_tokens(piece, [*out, ChatEvent(kind="end", completion=done)])

    def _with_tokens(self, piece: Piece, out: list[ChatEvent]) -> list[ChatEvent]:
        """The events; the first of them gets the tokens since the last one."""
        self._tokens, self._logprobs = self._tokens + piece.tokens, self._logprobs + piece.logprobs
        if out:
            out[0] = replace(out[0], tokens=self._tokens, logprobs=self._logprobs)
            self._tokens = self._logprobs = ()
        return out


# arguments of transformers' apply_chat_template that are no variables of a template
_NO_VARIABLES = {
    **dict.fromkeys(
        ("tokenize", "return_dict", "return_tensors"),
        "the conversation is returned as a text, of which tokenize(...) gives the ids",
    ),
    "continue_final_message": GOES_ON,
}


class Chat:
    """A chat template with its vocabulary. Plans for tools and constraints are cached."""

    __slots__ = ("_writer", "media", "vocabulary")

    __reduce__ = not_pickled(
        "chat: belongs to the engine of this process",
        "pickle the messages, and the template as text",
    )

    def __init__(
        self,
        metadata: Mapping[str, Any],
        vocabulary: SharedVocabulary,
        media: MediaPrompts | None = None,
    ) -> None:
        """media: makes prompts with images and audio, None for a model of text alone."""
        source = metadata.get(TEMPLATE_KEY)
        if not isinstance(source, str):
            raise TemplateError(
                f"{TEMPLATE_KEY}: the file has none, wanted one to chat with, or one given by "
                "chat_template= or --chat-template (its text, or a name such as 'chatml')"
            )
        self.vocabulary, self.media = vocabulary, media
        self._writer = ChatWriter(source, vocabulary.bridge)

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        tool_format: str | ToolCallFormat | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> TemplateText:
        """The conversation as the template writes it; `variables` are passed to the template
        unchanged (ConfigError for one that it does not read). Tools are written as `turn` shows
        them to the model.

        The text records which parts came from messages. If it is passed to `generate` unchanged,
        control tokens are recognised only in what the template wrote, and no token is added before
        it.
        """
        return self._write(
            messages,
            _listed(tools),
            tool_format,
            {"add_generation_prompt": add_generation_prompt, **variables},
        )

    def _write(
        self,
        messages: Any,
        tools: Sequence[Any] | None,
        tool_format: str | ToolCallFormat | None,
        variables: Mapping[str, Any],
    ) -> TemplateText:
        if isinstance(messages, (str, bytes, Mapping)) or not listable(messages):
            raise ConfigError(
                f"messages: found {type(messages).__name__}, wanted a list of messages such as "
                '[{"role": "user", "content": ...}]'
            )
        self.check_variables(variables)
        return self._writer.write(
            list(messages), tools=tools, tool_format=tool_format, variables=variables
        )

    def check_variables(self, variables: Mapping[str, Any]) -> None:
        """ConfigError for a variable that the template does not read."""
        for name, value in variables.items():
            if name != "add_generation_prompt" and not self._writer.knows(name):
                hint = f"; {_NO_VARIABLES[name]}" if name in _NO_VARIABLES else ""
                raise ConfigError(
                    f"{name}: found {value!r:.80}, but the model's chat template reads no such "
                    f"variable{hint}"
                )

    def turn(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        response_format: Any = None,
        template: dict[str, Any] | None = None,
        parse_special: bool = False,
        **options: Any,
    ) -> Turn:
        """The next reply of a conversation, planned. Options are those of `generate` and of
        `ChatPlanner.plan`.

        parse_special: recognise control tokens in the text of messages and tools too. Without it,
        that text never contains control tokens; only the template can write them.
        """
        if not isinstance(parse_special, bool):
            raise ConfigError(f"parse_special: found {parse_special!r}, wanted True or False")
        tools = _listed(tools)
        if template is not None and not (
            isinstance(template, Mapping)
            and all(isinstance(name, str) and name not in _GIVEN for name in template)
        ):
            raise ConfigError(
                f"template: found {template!r:.80}, wanted a dict of further variables, none of "
                f"them {' or '.join(_GIVEN)}"
            )
        found: list[MediaPart] = []
        conversation: Any = messages
        if listable(messages) and not isinstance(messages, (str, bytes, Mapping)):
            conversation, found = split_media(messages)
        notation = options.get("tool_format")
        variables = {"add_generation_prompt": True, **(template or {})}

        def render(messages: Any) -> TemplateText:
            return self._write(messages, tools, notation, variables)

        places: Places = []
        if not found:
            text = render(conversation)
        elif self.media is None:
            raise no_encoder(found[0].kind, found[0].name)
        else:
            text, places = self.media.render(conversation, found, render)
        about, asked = (
            {name: options.pop(name) for name in names if name in options}
            for names in (_OF_TOOLS, _PLANNED)
        )
        planned, words = _planned(response_format, asked), self.vocabulary
        plan = self._writer.planner.plan(
            text, tools=tools, constraint=words.grammar(planned), **about
        )
        prompt: list[int]
        if self.media is not None and found:
            prompt = self.media.prompt(text, places, found, parse_special=parse_special)
        else:
            prompt = words.bridge.encode(text.plain if parse_special else text, add_special=False)
        shown = {*planned.shown_tokens, *plan.shown.values()}
        return Turn(
            prompt, {**options, "grammar": plan.constraint, "shown_tokens": sorted(shown)}, plan
        )


def _listed(tools: Sequence[Any] | None) -> list[Any] | None:
    """Tools as a request lists them, None for none; ConfigError for what is no list."""
    if tools is None:
        return None
    if isinstance(tools, (str, bytes, Mapping)) or not listable(tools):
        raise ConfigError(f"tools: found {type(tools).__name__}, wanted a list of tools")
    return [
        tool_of(tool).listed() if callable(tool) or isinstance(tool, Tool) else tool
        for tool in tools
    ] or None


def _planned(response_format: Any, asked: Mapping[str, Any]) -> Options:
    """The options with the constraint of response_format; ConfigError if they have another
    constraint.
    """
    formed = response_constraint(response_format)
    others = [name for name in _CONSTRAINTS if formed and asked.get(name) is not None]
    if others:
        raise ConfigError(
            f"{others[0]}: found together with response_format, wanted one constraint"
        )
    return Options.of({**asked, **formed})
