"""`oxillama run` and `oxillama tokenize`: text in, text out, streamed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import oxillama
from oxillama.cli import lora, media
from oxillama.cli.generation import add_generation, generation
from oxillama.cli.loading import add_model, load, located_model
from oxillama.cli.parsing import unicode_text
from oxillama.cli.streams import json_of, note, piped, read, read_prompt, timed

PROMPT = "Once upon a time"


def add_commands(commands: Any) -> None:
    """Add `run` and `tokenize`."""
    run = commands.add_parser("run", help="continue a prompt, or answer it with -sys, streaming")
    add_model(run, sidecar="auto")
    add_prompt(
        run,
        f"the text to continue; - reads standard input (default: what is piped in, or {PROMPT!r})",
    )
    media.add_media(run)
    add_template(run)
    run.add_argument(
        "--no-display-prompt",
        dest="display_prompt",
        action="store_false",
        help="print what is generated alone",
    )
    run.add_argument(
        "--truncate-prompt",
        action="store_true",
        help="leave out the beginning of a prompt that is longer than the context",
    )
    add_generation(run)
    lora.add_lora(run)
    run.set_defaults(function=_run)

    tokenize = commands.add_parser("tokenize", help="show the tokens of a text")
    tokenize.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a model as of `oxillama run`, or a file of a vocabulary alone; the embedded model "
        "when left out",
    )
    tokenize.add_argument("-m", "--model", dest="named", metavar="MODEL", help="MODEL as an option")
    either = tokenize.add_mutually_exclusive_group()
    either.add_argument(
        "-p",
        "--prompt",
        type=unicode_text,
        default="-",
        metavar="TEXT",
        help="the text; - reads standard input (default: -)",
    )
    either.add_argument("-f", "--file", default=None, metavar="FILE", help="read it from a file")
    tokenize.add_argument(
        "--no-special", action="store_true", help="add no special tokens and parse none in the text"
    )
    tokenize.add_argument("--json", action="store_true", help="print the ids as one JSON array")
    tokenize.set_defaults(function=_tokenize)


def add_prompt(command: argparse.ArgumentParser, text: str) -> None:
    """A prompt, as text or as a file."""
    either = command.add_mutually_exclusive_group()
    either.add_argument(
        "-p", "--prompt", type=unicode_text, default=None, metavar="TEXT", help=text
    )
    either.add_argument(
        "-f",
        "--file",
        default=None,
        metavar="FILE",
        help="read it from a file (- for standard input)",
    )


def add_template(command: argparse.ArgumentParser) -> None:
    """What a conversation begins with, and how it is written."""
    either = command.add_mutually_exclusive_group()
    either.add_argument(
        "-sys",
        "--system-prompt",
        "--system",
        dest="system",
        type=unicode_text,
        default=None,
        metavar="TEXT",
        help="the system message of a conversation",
    )
    either.add_argument(
        "-sysf",
        "--system-prompt-file",
        dest="system_file",
        default=None,
        metavar="FILE",
        help="read it from a file",
    )
    add_chat_template(command)
    command.add_argument(
        "--chat-template-kwargs",
        type=unicode_text,
        default=None,
        metavar="JSON",
        help='variables of the template, such as {"enable_thinking": false}',
    )


def add_chat_template(command: argparse.ArgumentParser) -> None:
    """How conversations are written."""
    either = command.add_mutually_exclusive_group()
    either.add_argument(
        "--chat-template",
        type=unicode_text,
        default=None,
        metavar="NAME|TEXT",
        help=(
            "write conversations by a built-in template (chatml, llama3, ...) or this one, not by "
            "the file's"
        ),
    )
    either.add_argument(
        "--chat-template-file",
        default=None,
        metavar="FILE",
        help="write conversations by the template in this file",
    )


def prompt_of(arguments: argparse.Namespace) -> str | None:
    """The prompt that is given, None for none; of a file without the newline at its end."""
    path = "-" if arguments.prompt == "-" else arguments.file
    return arguments.prompt if path is None else read_prompt(path)


def system_of(arguments: argparse.Namespace) -> str | None:
    """The system message that is given, None for none."""
    if arguments.system_file is not None:
        return read_prompt(arguments.system_file)
    return arguments.system


def chat_template_of(arguments: argparse.Namespace) -> str | None:
    """The chat template that is given, a name or its text; None for none."""
    if arguments.chat_template_file is not None:
        return read(arguments.chat_template_file)
    given: str | None = arguments.chat_template
    return given


def variables_of(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The variables of the chat template that are given, None for none."""
    given = arguments.chat_template_kwargs
    if given is None:
        return None
    try:
        found = json_of(given)
    except ValueError as error:
        raise oxillama.ConfigError(
            f"--chat-template-kwargs: {error}, wanted an object in JSON"
        ) from None
    if not isinstance(found, dict):
        raise oxillama.ConfigError(
            f"--chat-template-kwargs: found {given!r:.50}, wanted an object in JSON"
        )
    return found


def use_template(arguments: argparse.Namespace, engine: oxillama.InferenceEngine) -> None:
    """Write conversations as `--chat-template` says."""
    given = chat_template_of(arguments)
    if given is not None:
        engine.loaded.use_template(given)


def _run(arguments: argparse.Namespace) -> int:
    prompt, system = prompt_of(arguments), system_of(arguments)
    options = {**generation(arguments), "truncate_prompt": arguments.truncate_prompt}
    templated = arguments.chat_template or arguments.chat_template_file
    variables = variables_of(arguments)
    media.check_media(arguments)
    if (templated or variables is not None) and system is None and not arguments.media:
        name = "--chat-template" if templated else "--chat-template-kwargs"
        raise oxillama.ConfigError(
            f"{name}: found without a system message, wanted -sys, or `oxillama chat`"
        )
    if prompt is None and piped():
        prompt = read_prompt("-", instead="-p TEXT gives a prompt") or None
    text = PROMPT if prompt is None else prompt
    with load(arguments) as engine, _room_in_options():
        lora.apply(engine, arguments.lora)
        bare = arguments.media and system is None and not templated and variables is None
        if bare and not _has_template(engine):
            parts = [*map(media.prompt_part, arguments.media), text]
            done = _print(engine.stream(engine.image_prompt(parts), **options))
        elif system is None and not arguments.media:
            # a model that cannot go on says so before the prompt is repeated
            stream = engine.stream(text, **options)
            # an answer to what an encoder read does not go on with it
            if arguments.display_prompt and engine.config.start_token is None:
                print(text, end="", flush=True)
            done = _print(stream)
        else:
            use_template(arguments, engine)
            messages: list[dict[str, Any]] = [
                {"role": "user", "content": media.content(text, arguments.media)}
            ]
            if system:
                messages.insert(0, {"role": "system", "content": system})
            done = reply(engine.chat(messages, stream=True, template=variables, **options))
        if done.usage.truncated_tokens:
            left, whole = done.usage.truncated_tokens, done.usage.prompt_tokens
            note(f"[{left:,} of the prompt's {left + whole:,} tokens were left out]")
        if arguments.timings:
            note(timed(done))
    return 0


@contextmanager
def _room_in_options() -> Iterator[None]:
    """Let a prompt that is too long name the options of the shell that help."""
    try:
        yield
    except oxillama.ContextError as error:
        if error.tokens is None:
            raise
        raise oxillama.ContextError(
            f"{str(error).partition(';')[0]}; -c gives more where the model has it, "
            "--truncate-prompt leaves out what is too much",
            tokens=error.tokens,
            limit=error.limit,
        ) from None


def _has_template(engine: oxillama.InferenceEngine) -> bool:
    """Whether the file says how conversations are written."""
    try:
        return engine.loaded.chat is not None
    except oxillama.TemplateError:
        return False


def _print(stream: oxillama.Stream[Any]) -> oxillama.Completion:
    """Print pieces as they come and return the completion."""
    with stream:
        for piece in stream:
            print(piece.text, end="", flush=True)
    print()
    return stream.completion


def reply(events: Iterable[Any], *, said: list[str] | None = None) -> oxillama.Completion:
    """Print a reply as it comes, calls as JSON, reasoning to standard error; returns the
    completion.

    said: takes the pieces of the answer, for a caller that is interrupted.
    """
    done = None
    for event in events:
        if event.reasoning:
            print(event.reasoning, end="", file=sys.stderr, flush=True)
        if event.text:
            if said is not None:  # first: what is shown stays, whenever Ctrl-C comes
                said.append(event.text)
            print(event.text, end="", flush=True)
        if event.call is not None:
            call = {"name": event.call.name, "arguments": event.call.arguments}
            print(json.dumps(call, ensure_ascii=False), flush=True)
        done = event.completion
    print()
    if done is None:
        raise oxillama.EngineError("chat: the reply ended without a completion")
    return done


def _tokenize(arguments: argparse.Namespace) -> int:
    from oxillama.embedded import embedded_path

    bridge = oxillama.TokenizerBridge.from_gguf(located_model(arguments) or embedded_path())
    special = not arguments.no_special
    path = "-" if arguments.file is None and arguments.prompt == "-" else arguments.file
    text = arguments.prompt if path is None else read(path)
    ids = bridge.encode(text, add_special=special, parse_special=special)
    if arguments.json:
        print(json.dumps(ids))
    else:
        for token in ids:
            print(f"{token:>8}  {quoted_token(bridge, token)}")
    return 0


def quoted_token(bridge: oxillama.TokenizerBridge, token: int) -> str:
    """A token's text between quotes. A control token adds nothing to a text, and is shown by its
    name.
    """
    text = (
        bridge.token_text(token)
        if bridge.is_special(token)
        else bridge.token_bytes(token).decode("utf-8", "backslashreplace")
    )
    return repr(text)
