"""`oxillama doctor`: holds the compiled tape against its numpy meaning, op by op, on the user's own
file.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from oxillama.cli.loading import add_model, load
from oxillama.cli.parsing import unicode_text
from oxillama.media_prompts import MediaPrompts


def add_commands(commands) -> None:
    """Add `doctor`."""
    command = commands.add_parser(
        "doctor", help="compare the compiled tape with the numpy reference, op by op"
    )
    add_model(command)
    command.add_argument(
        "-p",
        "--prompt",
        type=unicode_text,
        default="Once upon a time",
        metavar="TEXT",
        help="the text to run (default: %(default)r)",
    )
    command.add_argument("--dump", action="store_true", help="print the tape first")
    command.set_defaults(function=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    with load(arguments) as engine:
        if arguments.dump:
            print(engine.dump())
        checks = [("", engine.diagnose(engine.tokenize(arguments.prompt)))]
        # that of a folder is not converted for this alone
        media = engine.loaded.media if arguments.mmproj else None
        if media is not None and engine.takes_images:
            checks.append(("of the image encoder ", media.vision.diagnose(_image())))
        if media is not None and engine.takes_audio:
            checks.append(("of the audio encoder ", media.hearing.diagnose(_clip(media))))
        for where, differences in checks:
            worst, count = 0.0, 0
            for difference in differences:
                if not difference.agrees:
                    print(
                        f"op {difference.index} {where}({difference.op}) differs: relative error "
                        f"{difference.error:.3g}",
                        file=sys.stderr,
                    )
                    return 1
                worst, count = max(worst, difference.error), count + 1
            print(
                f"{count} ops {where}agree with the reference; largest relative error {worst:.3g}"
            )
    return 0


def _image() -> np.ndarray:
    """An image with something to see everywhere: uint8 (112, 168, 3)."""
    y, x = np.mgrid[:112, :168]
    return np.stack([x * 3 + y, x * y // 7, y * 5 - x], axis=2).astype(np.uint8)


def _clip(media: MediaPrompts) -> tuple[np.ndarray, int]:
    """A clip with something to hear everywhere: a saw of a rising tone, two seconds long."""
    rate = media.hearing.processor.rate
    at = np.arange(2 * rate)
    return ((at * (200 + at // 100) // rate * 37 % 64 - 32) / 64).astype(np.float32), rate
