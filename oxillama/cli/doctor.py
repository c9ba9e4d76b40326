"""`oxillama doctor`: holds the compiled tape against its numpy meaning, op by op, on the user's own
file.
"""

from __future__ import annotations

import argparse
import sys

from oxillama.cli.loading import add_model, load


def add_commands(commands) -> None:
    """Add `doctor`."""
    command = commands.add_parser(
        "doctor", help="compare the compiled tape with the numpy reference, op by op"
    )
    add_model(command)
    command.add_argument(
        "-p", "--prompt", default="Once upon a time", help="the text to run (default: %(default)r)"
    )
    command.add_argument("--dump", action="store_true", help="print the tape first")
    command.set_defaults(function=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    with load(arguments) as engine:
        if arguments.dump:
            print(engine.dump())
        worst, count = 0.0, 0
        for difference in engine.diagnose(engine.tokenize(arguments.prompt)):
            if not difference.agrees:
                print(
                    f"op {difference.index} ({difference.op}) differs: relative error {difference.error:.3g}",
                    file=sys.stderr,
                )
                return 1
            worst, count = max(worst, difference.error), count + 1
    print(f"{count} ops agree with the reference; largest relative error {worst:.3g}")
    return 0
