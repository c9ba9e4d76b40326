"""`oxillama quantize`: writes a GGUF file again in another format."""

from __future__ import annotations

import argparse

from oxillama.cli.parsing import number
from oxillama.cli.progress import progress_bar
from oxillama.errors import ConfigError
from oxillama.quant import RECIPES, quantize_file


def add_commands(commands) -> None:
    """Add `quantize`."""
    command = commands.add_parser("quantize", help="write a GGUF file in another format")
    command.add_argument("source", metavar="IN.gguf", help="the file to read")
    command.add_argument("target", metavar="OUT.gguf", help="the file to write")
    command.add_argument(
        "type",
        metavar="TYPE",
        help=f"a recipe, in any case: {', '.join(RECIPES)}; or its file type's number",
    )
    command.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        metavar="REGEX=TYPE",
        help="a format for the tensors whose name matches",
    )
    command.add_argument(
        "--imatrix",
        action="append",
        metavar="FILE",
        help="importance matrix, GGUF or legacy; of several GGUF files all tokens count together",
    )
    command.add_argument(
        "--pure", action="store_true", help="one format for every matrix, no mixture"
    )
    command.add_argument(
        "-t",
        "--threads",
        type=number(int),
        default=0,
        help="worker threads (default: the cores this process may use)",
    )
    command.add_argument("--dry-run", action="store_true", help="print the sizes and write nothing")
    command.set_defaults(function=_quantize)


def _quantize(arguments: argparse.Namespace) -> int:
    overrides: dict[str, str] = {}
    for item in arguments.tensor_type:
        pattern, equals, kind = item.rpartition("=")
        if not equals:
            raise ConfigError(f"--tensor-type: found {item!r}, wanted REGEX=TYPE")
        if pattern in overrides:
            raise ConfigError(
                f"--tensor-type: {pattern!r} appears twice, as {overrides[pattern]} and as {kind}"
            )
        overrides[pattern] = kind
    options = dict(
        overrides=overrides,
        imatrix=arguments.imatrix,
        pure=arguments.pure,
        num_threads=arguments.threads or None,
        dry_run=arguments.dry_run,
    )
    with progress_bar("quantizing", sizes=True, waits=True) as progress:
        report = quantize_file(
            arguments.source, arguments.target, arguments.type, progress=progress, **options
        )
    print(report)
    return 0
