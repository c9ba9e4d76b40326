"""`oxillama chat`: an interactive chat; an error ends a turn, not the chat.

`Conversation` holds the messages and the options of each reply; `Commands` runs the lines that
begin with a slash. An error in a turn prints one line and restores the conversation to its state
before that turn.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields
from typing import Any

import oxillama
from oxillama.cli import lora, media
from oxillama.cli.generation import add_generation, generation
from oxillama.cli.input import Dropped, InputReader
from oxillama.cli.loading import add_model, load
from oxillama.cli.parsing import closest
from oxillama.cli.run import (
    add_prompt,
    add_template,
    prompt_of,
    quoted_token,
    reply,
    system_of,
    use_template,
    variables_of,
)
from oxillama.cli.streams import bracketed, json_of, note, read, timed
from oxillama.durable import write_parts
from oxillama.media.messages import media_part
from oxillama.options import SAMPLING_FIELDS
from oxillama.toolcalls import check_messages

# what chats of other programs set, and what does it here
_VARIABLES = "--chat-template-kwargs sets variables of the template"
_TIMINGS = "/stats shows the timings of the last reply, --no-timings leaves out those of each"
_ELSEWHERE = {
    **dict.fromkeys(("think", "nothink", "enable_thinking", "reasoning_effort"), _VARIABLES),
    **dict.fromkeys(("verbose", "quiet"), _TIMINGS),
    **dict.fromkeys(("history", "nohistory"), "OXILLAMA_HISTORY names its file, empty for none"),
    **dict.fromkeys(("wordwrap", "nowordwrap"), "lines are not wrapped"),
    **dict.fromkeys(("num_ctx", "n_ctx", "context_size"), "-c is the length of the context"),
    **dict.fromkeys(("num_thread", "n_threads", "num_threads"), "-t is the number of threads"),
    "format": '/set json_schema {"type": "object"} asks for JSON, a whole schema for more',
    "noformat": "/set json_schema without a value leaves the text free",
    "model": "a chat has one model, which `oxillama chat MODEL` names",
    "system": "/system TEXT sets it",
}
# options of a reply, without those that are no values in JSON or are given in another way
_SETTINGS = SAMPLING_FIELDS.union(each.name for each in fields(oxillama.Options)).difference(
    _ELSEWHERE, ("diffusion", "processors", "sampler", "sampling_fields")
)
_SHOWN = "/system shows the system message, /set the options, `oxillama info` what a file holds"
_COMMANDS = {"show": _SHOWN, "copy": "/save writes the conversation to a file"}
_ALIASES = {
    **dict.fromkeys(("quit", "bye"), "exit"),
    **dict.fromkeys(("regenerate", "retry"), "regen"),
    "?": "help",
    "reset": "clear",
}
_SYSTEM = ("system", "developer")
_ROLES = (*_SYSTEM, "user", "assistant", "tool")


def add_commands(commands: Any) -> None:
    """Add `chat`."""
    chat = commands.add_parser("chat", help="chat with a model through its own chat template")
    add_model(chat, sidecar="auto")
    add_prompt(chat, "the first message; further ones come from standard input")
    media.add_media(chat, later=True)
    add_template(chat)
    chat.add_argument(
        "--tools",
        default=None,
        metavar="FILE",
        help="a JSON list of tools; a call is printed as JSON, the next line answers it",
    )
    chat.add_argument(
        "--tool-choice",
        default=None,
        metavar="CHOICE",
        help="auto (default with tools), none, required, or the name of a tool",
    )
    chat.add_argument(
        "--tool-format",
        default=None,
        metavar="NAME",
        help="how calls are spelled (default: as the chat template teaches, else hermes)",
    )
    chat.add_argument(
        "--parallel-tool-calls",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="several calls in one reply (default), or one",
    )
    add_generation(chat)
    lora.add_lora(chat)
    chat.set_defaults(function=_chat)


def _tools(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `chat` that the options of tools and of the template ask for."""
    named = {
        "tool_choice": arguments.tool_choice,
        "tool_format": arguments.tool_format,
        "parallel_tool_calls": arguments.parallel_tool_calls,
    }
    options: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    variables = variables_of(arguments)
    if variables is not None:
        options["template"] = variables
    if arguments.tools is not None:
        text = read(arguments.tools)
        try:
            options["tools"] = json_of(text)
        except ValueError as error:
            raise oxillama.ConfigError(
                f"{arguments.tools}: {error}, wanted a JSON list of tools"
            ) from None
        if not isinstance(options["tools"], list):
            raise oxillama.ConfigError(
                f"{arguments.tools}: found {type(options['tools']).__name__}, wanted a JSON list "
                "of tools"
            )
    return options


class Conversation:
    """A conversation: its messages, and the options of its replies."""

    def __init__(
        self,
        engine: oxillama.InferenceEngine,
        *,
        system: str | None,
        options: Mapping[str, Any],
        tools: Mapping[str, Any],
        timings: bool,
    ) -> None:
        self.engine, self.options, self.tools = engine, dict(options), dict(tools)
        self.messages: list[dict[str, Any]] = []
        self.timings = timings
        self.calls: list[Any] = []  # that wait for their results
        self.last: oxillama.Completion | None = None
        self.replies = self.tokens = 0
        self.attached: list[media.MediaFile] = []  # that come with the next message
        self._said: set[str] = set()
        self.system = system

    @property
    def system(self) -> str | None:
        """The system message, None for none."""
        first = self.messages[0] if self.messages else {}
        return first.get("content") if first.get("role") in _SYSTEM else None

    @system.setter
    def system(self, text: str | None) -> None:
        if self.system is not None:
            del self.messages[0]
        if text:
            self.messages.insert(0, {"role": "system", "content": text})

    def ask(self, text: str) -> None:
        """Say something and print the reply."""
        before, attached = len(self.messages), self.attached
        message = {"role": "user", "content": media.content(text, attached)}
        self.attached = []
        self._turn(message)
        if len(self.messages) == before:
            self.attached = attached

    def answer_call(self, text: str) -> None:
        """Bring the result of the first call that waits; the last one is followed by a reply."""
        call = self.calls[0]
        message = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
        if len(self.calls) > 1:
            self.messages.append(message)
            self.calls.pop(0)
            return
        self._turn(message)

    def regenerate(self) -> None:
        """Ask for the last message of the user again."""
        if self.undo_reply():
            self._turn(self.messages.pop())
        else:
            note("[nothing to ask again]")

    def undo_reply(self) -> bool:
        """Forget everything after the last message of the user; whether there is one."""
        at = self._last_user()
        if at is None:
            return False
        del self.messages[at + 1 :]
        self.calls = []
        return True

    def undo(self) -> None:
        """Forget the last message of the user and what came of it."""
        at = self._last_user()
        if at is None:
            note("[nothing to undo]")
            return
        del self.messages[at:]
        self.calls = []
        note(f"[messages: {len(self.messages)}]")

    def clear(self) -> None:
        """Forget all messages but the system message."""
        system, self.messages, self.calls = self.system, [], []
        self.system = system

    def _last_user(self) -> int | None:
        users = [at for at, each in enumerate(self.messages) if each["role"] == "user"]
        return users[-1] if users else None

    def _turn(self, message: dict[str, Any]) -> None:
        """Add a message and print the reply; without a reply nothing has changed."""
        before, waiting = len(self.messages), self.calls
        said: list[str] = []
        self.messages.append(message)
        self.calls = []
        try:
            self._reply(said)
        except KeyboardInterrupt:
            print()
            if said and self.last is not None:
                self._show_logprobs(self.last)
            if "".join(said).strip():
                self.messages.append({"role": "assistant", "content": "".join(said)})
                note("[stopped; what was said stays]")
            else:
                del self.messages[before:]
                self.calls = waiting
                note("[stopped before anything was said; the message is forgotten]")
        except oxillama.OxillamaError as error:
            del self.messages[before:]
            self.calls = waiting
            note(f"oxillama: {error}")
            note("[the message is dropped; the conversation continues]")

    def _reply(self, said: list[str]) -> None:
        options = dict(self.options)
        window = self._window(options)
        stream = self.engine.chat(window, stream=True, **options, **self.tools)
        try:
            with closing(stream):
                done = reply(stream, said=said)
        except KeyboardInterrupt:
            if said:
                self._count(stream.completion)
            raise
        self.messages.append(done.message())
        self.calls = list(done.tool_calls)
        self._count(done)
        self._show_logprobs(done)
        limit = options.get("max_tokens")
        if done.finish_reason == "length" and done.usage.completion_tokens != limit:
            self._once("[the reply ended with the context; --context-shift would go on]")
        if self.timings:
            note(timed(done))

    def _count(self, done: oxillama.Completion) -> None:
        """Take note of a reply, whole or stopped."""
        self.last = done
        self.replies += 1
        self.tokens += done.usage.completion_tokens
        if done.usage.context_shifts:
            self._once("[the context was full: the older half of it was forgotten]")

    def _show_logprobs(self, done: oxillama.Completion) -> None:
        """A line for each token of a reply, where they were asked for: the logarithm of its
        probability before any sampler stage, then the likeliest tokens with theirs.
        """
        bridge = self.engine.tokenizer
        for each in done.logprobs:
            likeliest = ", ".join(
                f"{quoted_token(bridge, token)} {value:z.3f}"
                for token, value in zip(each.raw_ids, each.raw_values)
            )
            line = f"  {quoted_token(bridge, each.token)} {each.raw:z.3f}"
            note(f"{line}  ({likeliest})" if likeliest else line)

    def _window(self, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The messages that fit the context together with a reply: the system message and the last
        turns.

        ContextError if the last turn alone fills the context.
        """
        context = self.engine.context_size
        reserve = context // 4
        limit = options.get("max_tokens")
        if limit is not None and limit >= 0:
            reserve = min(reserve, limit)
        head = [each for each in self.messages[:1] if each["role"] in _SYSTEM]
        turns = self.messages[len(head) :]
        starts = [at for at, each in enumerate(turns) if each["role"] == "user"] or [0]
        size = 0
        for at, start in enumerate((0, *starts[1:])):
            window = head + turns[start:]
            size = self.size(window)
            if size + reserve <= context or (at == len(starts) - 1 and size < context):
                if start:
                    self._once(
                        f"[the context of {context} tokens is full: the oldest turns are left out]"
                    )
                return window
        raise oxillama.ContextError(
            f"message: the conversation takes {size} tokens without its older turns, a context of "
            f"{context} takes at most {context - 1}; -c gives a larger one where the model has it",
            tokens=size,
            limit=context - 1,
        )

    def size(self, messages: list[dict[str, Any]]) -> int:
        """Tokens of a conversation as its template writes it."""
        return len(self.engine.loaded.chat.turn(messages, **self.tools).prompt)

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            note(text)


class Commands:
    """The lines that begin with a slash."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.known: dict[str, tuple[Callable[[str], None], str]] = {
            "help": (self.help, "show these lines"),
            "save": (self.save, "FILE: write the conversation as JSON"),
            "image": (self.image, "FILE: an image that comes with the next message"),
            "audio": (self.audio, "FILE: a clip of audio that comes with the next message"),
            "load": (self.load, "FILE: go on with a conversation that was saved"),
            "system": (self.system, "[TEXT]: show or change the system message (- removes it)"),
            "set": (self.set, "[NAME [VALUE]]: show, change or reset an option: /set top_p 0.8"),
            "regen": (self.regen, "ask for another reply to the last message"),
            "undo": (self.undo, "forget the last message and its reply"),
            "stats": (self.stats, "tokens, speed and what is left of the context"),
            "clear": (self.clear, "forget all messages but the system message"),
            "exit": (self.exit, "leave (also: Ctrl-D, or Ctrl-C twice)"),
        }

    def run(self, line: str) -> None:
        """Do what a line says. EOFError: leave."""
        name, _, rest = line.removeprefix("/").partition(" ")
        name = _ALIASES.get(name, name)
        found = self.known.get(name)
        if found is None:
            close = closest(name, self.known)
            hint = f"did you mean /{close}?" if close else "/help lists them."
            if name in _COMMANDS:
                hint = f"{_COMMANDS[name]}."
            note(
                f"[/{name} is not a command; {hint} A message that begins with a slash is written "
                "with two]"
            )
            return
        try:
            found[0](rest.strip())
        except OSError as error:
            note(f"[/{name}: {rest.strip()}: {error.strerror or error}]")
        except (oxillama.OxillamaError, ValueError) as error:
            note(f"[/{name}: {error}]")

    def help(self, _: str) -> None:
        for name, (_function, text) in self.known.items():
            note(f"  /{name:<7} {text}")
        note("  A line that ends in \\ continues on the next one;")
        note('  """ begins and ends a message of several lines. Ctrl-C stops a reply.')

    def save(self, rest: str) -> None:
        path = _file(rest)
        conversation = self.conversation
        content = {"messages": conversation.messages, "options": conversation.options}
        write_parts(path, [json.dumps(content, ensure_ascii=False, indent=1).encode()])
        note(f"[messages: {len(conversation.messages)}, written to {path}]")

    def image(self, rest: str) -> None:
        self._attach(media.MediaFile.image(_file(rest)))

    def audio(self, rest: str) -> None:
        self._attach(media.MediaFile.audio(_file(rest)))

    def _attach(self, file: media.MediaFile) -> None:
        """Let a file come with the next message."""
        conversation = self.conversation
        engine, image = conversation.engine, file.kind == "image"
        if not (engine.takes_images if image else engine.takes_audio):
            raise ValueError(
                "the model was loaded without --mmproj, wanted the file of its encoder or the "
                "model's folder"
                if not (engine.takes_images or engine.takes_audio)
                else f"the model's encoder is of {'audio' if image else 'images'} alone"
            )
        engine.loaded.check_media(media_part(media.file_part(file), file.path))
        conversation.attached.append(file)
        note(f"[{len(conversation.attached)} with the next message]")

    def load(self, rest: str) -> None:
        path = _file(rest)
        text = read(path)
        try:
            content = json_of(text)
        except ValueError as error:
            raise ValueError(f"{path}: found no JSON ({error}), wanted a conversation") from None
        messages = content.get("messages") if isinstance(content, dict) else content
        options = content.get("options", {}) if isinstance(content, dict) else {}
        if not isinstance(messages, list):
            raise ValueError(f"{path}: found no list of messages, wanted a conversation")
        check_messages(messages)
        for at, message in enumerate(messages):
            if message["role"] not in _ROLES:
                raise ValueError(
                    f"messages[{at}].role: found {message['role']!r}, wanted one of "
                    + ", ".join(_ROLES)
                )
        if not isinstance(options, dict):
            raise ValueError(f"options: found {type(options).__name__}, wanted an object")
        options = _from_json(options)
        _check_options(options)
        self.conversation.messages, self.conversation.calls = messages, []
        self.conversation.options.update(options)
        note(f"[messages: {len(messages)}]")

    def system(self, rest: str) -> None:
        if rest:
            self.conversation.system = None if rest == "-" else rest
        shown = self.conversation.system
        note("[no system message]" if shown is None else f"[system: {shown}]")

    def set(self, rest: str) -> None:
        options = self.conversation.options
        name, _, text = rest.partition(" ")
        if name == "parameter":  # Ollama's word before the name
            name, _, text = text.strip().partition(" ")
        if not name:
            for key, value in options.items():
                note(f"  {key} = {json.dumps(value)}")
            return
        names = oxillama.arguments.OPTION_NAMES
        name = name.replace("-", "_").lstrip("_")
        name = names.get(name, name)
        if name in _ELSEWHERE:
            raise ValueError(f"{name}: is not an option of a reply; {_ELSEWHERE[name]}")
        if name not in _SETTINGS:
            raise oxillama.arguments.unknown(name, _SETTINGS, place="an option of a reply")
        changed = {key: value for key, value in options.items() if key != name}
        if text.strip():
            changed = _from_json({**changed, name: _value(text.strip())})
        _check_options(changed)
        self.conversation.options = changed
        note(f"[{name} = {json.dumps(changed[name])}]" if name in changed else f"[{name}: default]")

    def regen(self, _: str) -> None:
        self.conversation.regenerate()

    def undo(self, _: str) -> None:
        self.conversation.undo()

    def stats(self, _: str) -> None:
        conversation, messages = self.conversation, self.conversation.messages
        used = conversation.size(messages) if messages else 0
        note(
            bracketed(
                [
                    f"messages: {len(messages)}, {used} tokens",
                    f"context: {conversation.engine.context_size} tokens",
                    f"replies: {conversation.replies}, {conversation.tokens} tokens",
                ]
            )
        )
        if conversation.last is not None:
            note(timed(conversation.last))

    def clear(self, _: str) -> None:
        self.conversation.clear()
        note("[forgotten]")

    def exit(self, _: str) -> None:
        raise EOFError


def _file(rest: str) -> str:
    """The one file that a command names."""
    names = shlex.split(rest) if os.name != "nt" else [rest.strip('"')]
    if len(names) != 1 or not names[0]:
        raise ValueError(f"found {rest!r}, wanted one file")
    return os.path.expanduser(names[0])


def _value(text: str) -> Any:
    """A value as JSON, or as the text that it is."""
    try:
        return json_of(text)
    except ValueError:
        return {"on": True, "off": False, "True": True, "False": False}.get(text, text)


def _from_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options whose token ids came as the names of JSON members."""
    found = dict(options)
    bias = found.get("logit_bias")
    if isinstance(bias, dict):
        found["logit_bias"] = {int(token): value for token, value in bias.items()}
    return found


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise for options of a reply that are wrong, or that no conversation can honour."""
    oxillama.Options.of(options)
    for name in ("n", "best_of"):
        if options.get(name) not in (None, 1):
            raise ValueError(
                f"{name}: found {options[name]}, wanted 1: a conversation has one reply at a time"
            )
    if options.get("prompt_logprobs") is not None:
        raise ValueError(
            f"prompt_logprobs: found {options['prompt_logprobs']}, wanted nothing: a conversation "
            "shows the tokens of its replies alone; logprobs is for those"
        )


def _chat(arguments: argparse.Namespace) -> int:
    first, system = prompt_of(arguments), system_of(arguments)
    options, tools = generation(arguments), _tools(arguments)
    media.check_media(arguments)
    with load(arguments) as engine:
        lora.apply(engine, arguments.lora)
        use_template(arguments, engine)
        # a file without a template is said before the first message, an unread variable too
        engine.loaded.chat.check_variables(tools.get("template", {}))
        conversation = Conversation(
            engine, system=system, options=options, tools=tools, timings=arguments.timings
        )
        conversation.attached = list(arguments.media)
        inputs, commands = InputReader(note), Commands(conversation)
        if inputs.terminal:
            note("[/help shows what can be typed; Ctrl-C stops a reply, Ctrl-D leaves]")
        if first is not None and first.strip():
            conversation.ask(first)
        _loop(conversation, inputs, commands)
    return 0


def _loop(conversation: Conversation, inputs: InputReader, commands: Commands) -> None:
    """Read messages and print replies until the input ends, or Ctrl-C comes twice at the prompt."""
    interrupted = False
    while True:
        try:
            prompt = f"{conversation.calls[0].name}> " if conversation.calls else "> "
            text = inputs.message(prompt if inputs.terminal else "")
        except EOFError:
            return
        except Dropped:
            interrupted = False
            continue
        except KeyboardInterrupt:
            if interrupted:
                return
            interrupted = True
            note("[Ctrl-C again leaves]")
            continue
        interrupted = False
        try:
            if conversation.calls:
                conversation.answer_call(text)
            elif text.startswith("/") and not text.startswith("//"):
                commands.run(text)
            elif text.strip():
                conversation.ask(text[1:] if text.startswith("//") else text)
        except EOFError:
            return
        except KeyboardInterrupt:
            note("")
