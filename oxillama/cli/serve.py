"""`oxillama serve`: the HTTP server."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import oxillama
from oxillama.cli import lora
from oxillama.cli.diffusion import add_diffusion, diffusion_of
from oxillama.cli.generation import DRAFTS
from oxillama.cli.loading import add_model, drafts_of, encoder_file, engine_options, located_model
from oxillama.cli.parsing import number, unicode_text
from oxillama.cli.run import add_chat_template, chat_template_of
from oxillama.cli.streams import read
from oxillama.errors import ConfigError, MissingExtra

# (option, default, help). The defaults are those of `ServerConfig`, which the server's extra
# dependencies must not be needed for to show.
LIMITS: tuple[tuple[str, int | float, str], ...] = (
    ("max-queue", 512, "requests that may wait, then 429"),
    ("per-key", 0, "requests of one key at once, 0 for no limit"),
    ("header-bytes", 1 << 15, "largest head of a request"),
    ("body-bytes", 1 << 23, "largest body"),
    ("image-body-bytes", 1 << 26, "largest body of a route that takes images"),
    ("json-depth", 64, "deepest nesting of a body"),
    ("schema-bytes", 1 << 18, "largest schema, grammar or set of tools"),
    ("header-timeout", 15.0, "seconds for a request's head"),
    ("body-timeout", 60.0, "seconds for a request's body"),
    ("idle-timeout", 30.0, "seconds that a connection may stay without a request"),
    ("write-timeout", 60.0, "seconds that a client may not read"),
    (
        "sse-ping-interval",
        30.0,
        "seconds without an event until a stream sends a comment, 0 for none",
    ),
    ("max-connections", 2048, "connections at once"),
    ("grace", 30.0, "seconds that SIGTERM gives to running requests"),
    ("stall-timeout", 60.0, "seconds without a step after which /health fails"),
)


def add_commands(commands: Any) -> None:
    """Add `serve`."""
    command = commands.add_parser(
        "serve", help="serve a model over HTTP, in the dialects of OpenAI, Anthropic and others"
    )
    add_model(command)
    lora.add_lora(command)
    add = command.add_argument
    add(
        "--image-folder",
        default=None,
        metavar="FOLDER",
        help="a folder whose images requests may name (default: data URLs alone)",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add(
        "--port",
        type=number(int),
        default=8080,
        help="port, 0 for a free one (default: %(default)s)",
    )
    add(
        "--alias",
        type=unicode_text,
        default=None,
        help="the model's name to clients (default: the file's)",
    )
    add(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="a key that requests must bring; may be given more than once, or in OXILLAMA_API_KEY",
    )
    add("--api-key-file", default=None, metavar="FILE", help="a file of keys, one a line")
    add("--force", action="store_true", help="listen beyond this machine without a key")
    add("--models-dir", default=None, metavar="FOLDER", help="serve the GGUF files of a folder")
    add(
        "--max-loaded",
        type=number(int),
        default=2,
        metavar="N",
        help="models in memory at once (default: %(default)s)",
    )
    add(
        "--parallel",
        type=number(int),
        default=None,
        metavar="N",
        help="sequences that run at once (default: the scheduler's)",
    )
    add(
        "--speculative",
        default=None,
        metavar="HOW",
        help=f"how requests speculate that do not say it: {DRAFTS} (default: auto)",
    )
    add_diffusion(command)
    add_chat_template(command)
    add(
        "--late-instructions",
        choices=("refuse", "user"),
        default="refuse",
        help="system messages in the midst of a chat, where its template cannot write them: refuse "
        "them, or write them as the user's (default: %(default)s)",
    )
    add(
        "--sessions-dir",
        default=None,
        metavar="FOLDER",
        help="where named sessions are saved (default: nowhere)",
    )
    for name, default, text in LIMITS:
        add(
            f"--{name}",
            type=number(type(default)),
            default=None,
            metavar="N",
            help=f"{text} (default: {default:.12g})",
        )
    add(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="an origin whose pages may use the server; may be given more than once",
    )
    add(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name that the Host header may have",
    )
    add("--log-prompts", action="store_true", help="log the bodies of requests")
    add("--no-log-requests", action="store_true", help="log no line for each request")
    command.set_defaults(function=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from oxillama.server.run import serve
        from oxillama.server.settings import ServerConfig
    except MissingExtra:  # as the package says it
        raise
    except ImportError as error:  # of a package that only `serve` needs
        raise MissingExtra("server", error, "server") from None
    known = {each.name for each in fields(ServerConfig)}
    given = {
        name: value
        for name, value in vars(arguments).items()
        if name in known and value is not None
    }
    if arguments.model is not None:
        given["model"] = located_model(arguments, encoder=arguments.mmproj is None)
        if not Path(arguments.model).exists():  # clients know a stored model by that name
            given.setdefault("alias", arguments.model)
    given["api_keys"] = tuple(_keys(arguments))
    given["cors_origins"] = tuple(arguments.cors_origin)
    given["allowed_hosts"] = tuple(arguments.allowed_host)
    given["log_requests"] = not arguments.no_log_requests
    template = chat_template_of(arguments)
    if template is not None:
        given["chat_template"] = template
    given["loras"] = tuple(map(lora.file_and_scale, arguments.lora))
    given["engine"] = _engine(arguments)
    return serve(ServerConfig.of(given))


def _keys(arguments: argparse.Namespace) -> list[str]:
    keys = list(arguments.api_key)
    if os.environ.get("OXILLAMA_API_KEY"):
        keys.append(os.environ["OXILLAMA_API_KEY"])
    if arguments.api_key_file is not None:
        found = [line.strip() for line in read(arguments.api_key_file).splitlines()]
        found = [line for line in found if line]
        if not found:
            raise ConfigError(f"--api-key-file: {arguments.api_key_file} holds no key, wanted one")
        keys += found
    return keys


def _engine(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `load` that the options of every command ask for."""
    options = engine_options(arguments)
    if arguments.mmproj and arguments.models_dir is not None:
        raise ConfigError(
            "--mmproj: found together with --models-dir, wanted one model, whose encoder it is"
        )
    if arguments.mmproj:
        options["mmproj"] = encoder_file(arguments.mmproj)
    if arguments.image_folder is not None:
        options["image_folder"] = arguments.image_folder
    if arguments.speculative is not None:
        options["speculative"] = drafts_of(arguments)
    options |= diffusion_of(arguments)
    if arguments.parallel is not None:
        rows = oxillama.SchedulerConfig()
        options["scheduler"] = oxillama.SchedulerConfig(
            max_sequences=arguments.parallel,
            max_batch_sequences=min(arguments.parallel, rows.max_batch_tokens),
        )
    return options
