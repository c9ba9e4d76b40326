"""`oxillama perplexity` and `oxillama imatrix`: how good a quantised file is, and what a quantiser
should weigh by.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import oxillama
from oxillama.cli.loading import add_model, load
from oxillama.cli.parsing import number
from oxillama.cli.progress import progress_bar
from oxillama.cli.streams import read
from oxillama.gguf import is_among
from oxillama.quality import NARROWEST, usual_window, widest_collected
from oxillama.quant import check_imatrix_path, write_imatrix


def add_commands(commands) -> None:
    """Add `perplexity` and `imatrix`."""
    measure = commands.add_parser(
        "perplexity",
        help="measure the perplexity of a text, and the distance from another file's logits",
    )
    add_model(measure)
    _add_text(measure, "the context")
    both = measure.add_mutually_exclusive_group()
    both.add_argument(
        "--save-logits", metavar="FILE", help="keep every prediction, to compare other files with"
    )
    both.add_argument(
        "--kl-base",
        metavar="FILE",
        help="compare with predictions kept by --save-logits (or by llama.cpp)",
    )
    measure.add_argument("--json", action="store_true", help="print one JSON object")
    measure.set_defaults(function=_perplexity)

    collect = commands.add_parser(
        "imatrix", help="collect the importance matrix that `quantize --imatrix` takes"
    )
    add_model(collect)
    _add_text(collect, "512 and the context")
    collect.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="the GGUF file to write"
    )
    collect.set_defaults(function=_imatrix)


def _add_text(command: argparse.ArgumentParser, widest: str) -> None:
    command.add_argument("text", metavar="TEXT", help="a text file; - reads standard input")
    command.add_argument(
        "-w",
        "--window",
        type=number(int),
        default=None,
        metavar="TOKENS",
        help=f"tokens of a window: {NARROWEST} or more, at most {widest} (default: 512 or "
        "the most)",
    )
    command.add_argument(
        "-l",
        "--limit",
        type=number(int),
        default=None,
        metavar="WINDOWS",
        help="most windows (default: the whole text)",
    )


def _check_output(path: str | None, *inputs: str | Path) -> None:
    """Raise ConfigError where the file to write is one that is read."""
    if path is not None and is_among(path, inputs):
        raise oxillama.ConfigError(f"{path}: is read by this command, wanted another file to write")


def _window(tokens: int | None, widest: int) -> int:
    """The tokens of a window; ConfigError where it is wider than the command can take it, or too
    narrow.
    """
    if tokens is None:
        return usual_window(widest)
    if not NARROWEST <= tokens <= widest:
        raise oxillama.ConfigError(
            f"--window: found {tokens}, wanted {NARROWEST} to {widest} tokens"
        )
    return tokens


def _perplexity(arguments: argparse.Namespace) -> int:
    text = read(arguments.text)
    _check_output(arguments.save_logits, arguments.text)
    with load(arguments) as engine, progress_bar("perplexity", remaining=True) as progress:
        _check_output(arguments.save_logits, *engine.model_files)
        window = _window(arguments.window, engine.context_size)
        found = oxillama.perplexity(
            engine,
            text,
            context=window,
            limit=arguments.limit,
            save_logits=arguments.save_logits,
            kl_base=arguments.kl_base,
            progress=progress,
        )
    if arguments.json:
        print(json.dumps(asdict(found)))
        return 0
    print(
        f"perplexity {found.value:.4f} +- {found.error:.4f} over {found.tokens} tokens of "
        f"{found.windows} windows of {window}"
    )
    if found.divergence is not None:
        d = found.divergence
        print(
            f"KL divergence mean {d.mean:z.6f} +- {d.error:.6f}, median {d.median:z.6f}, 99 % "
            f"{d.p99:z.6f}, largest {d.largest:z.6f}\nsame likeliest token "
            f"{100 * d.same_top:.2f} %, perplexity of the base {d.base_perplexity:.4f}"
        )
    return 0


def _imatrix(arguments: argparse.Namespace) -> int:
    text = read(arguments.text)
    _check_output(arguments.output, arguments.text)
    check_imatrix_path(arguments.output)
    with load(arguments) as engine, progress_bar("imatrix", remaining=True) as progress:
        _check_output(arguments.output, *engine.model_files)
        window = _window(arguments.window, widest_collected(engine))
        sums, counts, windows = oxillama.collect_imatrix(
            engine, text, context=window, limit=arguments.limit, progress=progress
        )
    path = write_imatrix(
        arguments.output,
        sums,
        counts,
        chunk_count=windows,
        chunk_size=window,
        datasets=[arguments.text],
    )
    print(f"{path}: {len(sums)} matrices over {windows} windows of {window} tokens")
    return 0
