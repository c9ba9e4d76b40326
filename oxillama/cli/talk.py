"""`oxillama run`, `oxillama chat` and `oxillama tokenize`: text in, text out, streamed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable

import oxillama
from oxillama.cli import lora
from oxillama.cli.loading import add_model, load


def add_commands(commands) -> None:
    """Add `run`, `chat` and `tokenize`."""
    run = commands.add_parser("run", help="continue a prompt, streaming")
    add_model(run, sidecar="auto")
    run.add_argument(
        "-p",
        "--prompt",
        default="Once upon a time",
        help="the text to continue (default: %(default)r); '-' reads standard input",
    )
    _add_sampling(run)
    lora.add_lora(run)
    run.set_defaults(function=_run)

    chat = commands.add_parser("chat", help="talk with a model through its own chat template")
    add_model(chat, sidecar="auto")
    chat.add_argument("--system", default=None, help="the system message")
    chat.add_argument(
        "--tools",
        default=None,
        metavar="FILE",
        help="a JSON list of tools; a call is printed as JSON, the next line answers it",
    )
    chat.add_argument(
        "--tool-choice",
        default=None,
        help="auto (default with tools), none, required, or the name of a tool",
    )
    chat.add_argument(
        "--tool-format",
        default=None,
        help="how calls are spelled (default: as the chat template teaches)",
    )
    _add_sampling(chat)
    lora.add_lora(chat)
    chat.set_defaults(function=_chat)

    tokenize = commands.add_parser("tokenize", help="show the tokens of a text")
    tokenize.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a GGUF file (vocabulary-only files too); the embedded model when left out",
    )
    tokenize.add_argument(
        "-p", "--prompt", default="-", help="the text; '-' reads standard input (default)"
    )
    tokenize.add_argument(
        "--no-special", action="store_true", help="add no special tokens and parse none in the text"
    )
    tokenize.add_argument("--json", action="store_true", help="print the ids as one JSON array")
    tokenize.set_defaults(function=_tokenize)


def _add_sampling(command: argparse.ArgumentParser) -> None:
    default = oxillama.SamplerConfig()
    command.add_argument(
        "--temp",
        type=float,
        default=default.temperature,
        help="temperature; 0 is greedy (default: %(default)s)",
    )
    command.add_argument(
        "--top-k",
        type=int,
        default=default.top_k,
        help="keep the k likeliest tokens; 0 is off (default: %(default)s)",
    )
    command.add_argument(
        "--top-p",
        type=float,
        default=default.top_p,
        help="keep the likeliest tokens of this mass (default: %(default)s)",
    )
    command.add_argument(
        "--min-p",
        type=float,
        default=default.min_p,
        help="drop tokens under this share of the likeliest (default: %(default)s)",
    )
    command.add_argument(
        "--repeat-penalty",
        type=float,
        default=None,
        help="1 is off (default: 1.1, and 1 at temperature 0)",
    )
    command.add_argument(
        "--seed",
        type=int,
        default=None,
        help="the same seed gives the same text (default: a fresh one)",
    )
    command.add_argument(
        "-n",
        "--max-tokens",
        type=int,
        default=None,
        help="stop after so many tokens (default: the end of the context)",
    )
    command.add_argument(
        "--stop",
        action="append",
        default=[],
        help="stop before this text; may be given more than once",
    )
    command.add_argument(
        "--grammar-file", default=None, help="a GBNF grammar that the text must follow"
    )
    command.add_argument(
        "--json-schema",
        default=None,
        help="a JSON schema that the text must follow: JSON, or @FILE",
    )


def _generation(arguments: argparse.Namespace) -> dict:
    """The keyword arguments of `stream` that the sampling options ask for."""
    options: dict = {
        "max_tokens": arguments.max_tokens,
        "stop": arguments.stop,
        "sampler": oxillama.SamplerConfig(
            temperature=arguments.temp,
            top_k=arguments.top_k,
            top_p=arguments.top_p,
            min_p=arguments.min_p,
            repetition_penalty=arguments.repeat_penalty,
            seed=arguments.seed,
        ),
    }
    if arguments.grammar_file is not None:
        options["grammar"] = _read(arguments.grammar_file)
    if arguments.json_schema is not None:
        text = arguments.json_schema
        options["json_schema"] = _read(text[1:]) if text.startswith("@") else text
    return options


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise oxillama.ConfigError(f"{path}: {error.strerror}, wanted a readable file") from error


def _text(given: str) -> str:
    return sys.stdin.read() if given == "-" else given


def _print(pieces: Iterable) -> str:
    """Print pieces as they come and return the whole text."""
    parts = []
    for piece in pieces:
        print(piece.text, end="", flush=True)
        parts.append(piece.text)
    print()
    return "".join(parts)


def _run(arguments: argparse.Namespace) -> int:
    prompt = _text(arguments.prompt)
    options = _generation(arguments)
    with load(arguments) as engine:
        lora.apply(engine, arguments.lora)
        print(prompt, end="", flush=True)
        _print(engine.stream(prompt, **options))
    return 0


def _tools(arguments: argparse.Namespace) -> dict:
    """The keyword arguments of `chat` that the tool options ask for."""
    named = {"tool_choice": arguments.tool_choice, "tool_format": arguments.tool_format}
    options: dict = {name: value for name, value in named.items() if value is not None}
    if arguments.tools is not None:
        try:
            options["tools"] = json.loads(_read(arguments.tools))
        except ValueError as error:
            raise oxillama.ConfigError(
                f"{arguments.tools}: {error}, wanted a JSON list of tools"
            ) from None
        if not isinstance(options["tools"], list):
            raise oxillama.ConfigError(
                f"{arguments.tools}: found {type(options['tools']).__name__}, wanted a JSON list of tools"
            )
    return options


def _chat(arguments: argparse.Namespace) -> int:
    messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
    options = {**_generation(arguments), **_tools(arguments)}
    calls: list = []  # that wait for their results
    with load(arguments) as engine:
        lora.apply(engine, arguments.lora)
        while True:
            prompt = f"{calls[0].name}> " if calls else "> "
            try:
                line = input(prompt if sys.stdin.isatty() else "")
            except EOFError:
                return 0
            if calls:
                call = calls.pop(0)
                messages.append(
                    {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": line}
                )
                if calls:
                    continue
            elif line.strip():
                messages.append({"role": "user", "content": line})
            else:
                continue
            try:
                done = _reply(engine.chat(messages, stream=True, **options))
            except KeyboardInterrupt:
                print()
                messages.pop()
                continue
            calls = list(done.tool_calls)
            messages.append(_message(done))


def _reply(events: Iterable) -> oxillama.Completion:
    """Print a reply as it comes, calls as JSON, reasoning to standard error; returns the
    completion.
    """
    done = None
    for event in events:
        if event.reasoning:
            print(event.reasoning, end="", file=sys.stderr, flush=True)
        if event.text:
            print(event.text, end="", flush=True)
        if event.call is not None:
            print(
                json.dumps(
                    {"name": event.call.name, "arguments": event.call.arguments}, ensure_ascii=False
                ),
                flush=True,
            )
        done = event.completion
    print()
    return done


def _message(done: oxillama.Completion) -> dict:
    """A reply as the conversation holds it."""
    calls = [call.message() for call in done.tool_calls]
    return {
        "role": "assistant",
        "content": done.content,
        **({"tool_calls": calls} if calls else {}),
    }


def _tokenize(arguments: argparse.Namespace) -> int:
    from oxillama.embedded import embedded_path

    bridge = oxillama.TokenizerBridge.from_gguf(arguments.model or embedded_path())
    special = not arguments.no_special
    ids = bridge.encode(_text(arguments.prompt), add_special=special, parse_special=special)
    if arguments.json:
        print(json.dumps(ids))
    else:
        for token in ids:
            print(f"{token:>8}  {bridge.token_bytes(token).decode('utf-8', 'backslashreplace')!r}")
    return 0
