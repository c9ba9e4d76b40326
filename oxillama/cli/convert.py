"""`oxillama convert`: writes the GGUF file of a Hugging Face model folder."""

from __future__ import annotations

import argparse
from functools import partial

from oxillama.cli.parsing import number
from oxillama.cli.progress import progress_bar


def add_commands(commands) -> None:
    """Add `convert`."""
    command = commands.add_parser("convert", help="write the GGUF file of a Hugging Face folder")
    command.add_argument("source", metavar="FOLDER", nargs="?", help="the Hugging Face folder")
    command.add_argument("target", metavar="OUT.gguf", nargs="?", help="the file to write")
    command.add_argument(
        "--type",
        default="auto",
        metavar="TYPE",
        help="auto (the folder's own numbers), F32, F16, BF16 or a recipe such as Q4_K_M, of an "
        "encoder Q8_0 (default: %(default)s)",
    )
    command.add_argument(
        "--mmproj",
        action="store_true",
        help="write the file of the folder's encoder of images or audio (mmproj), which goes with "
        "the model's",
    )
    layers = command.add_mutually_exclusive_group()
    layers.add_argument(
        "--mtp",
        action=argparse.BooleanOptionalAction,
        help="keep the layers that predict further tokens, an error if there are none, or leave "
        "them out (default: they are kept where llama.cpp's converter keeps them)",
    )
    layers.add_argument(
        "--mtp-only",
        action="store_true",
        help="write a file of the layers that predict further tokens alone, and of what they share "
        "with the model",
    )
    command.add_argument("--name", help="general.name of the file (default: the folder's name)")
    command.add_argument(
        "-t", "--threads", type=number(int), default=0, help="worker threads of quantising"
    )
    command.add_argument(
        "--list",
        action="store_true",
        help="print the classes that can be converted, with --mmproj those of encoders",
    )
    command.set_defaults(function=_convert, parser=command)


def _convert(arguments: argparse.Namespace) -> int:
    # no other command waits for the converters' import
    from oxillama.convert import convert_encoder, convert_folder, convertible, convertible_encoders

    if arguments.list and arguments.mmproj:
        for name, projectors in convertible_encoders().items():
            print(f"{name:40} {', '.join(projectors)}")
        return 0
    if arguments.list:
        for name, archs in convertible().items():
            print(f"{name:40} {', '.join(archs)}")
        return 0
    if arguments.source is None or arguments.target is None:
        arguments.parser.error("FOLDER and OUT.gguf are required")
    if arguments.mmproj and arguments.threads:
        arguments.parser.error("-t: found with --mmproj, wanted it with a recipe of a model alone")
    if arguments.mmproj and (arguments.mtp is not None or arguments.mtp_only):
        arguments.parser.error("--mtp: found with --mmproj, wanted it with a model")
    if arguments.mmproj:
        convert = partial(convert_encoder, type=arguments.type, name=arguments.name)
    else:
        convert = partial(
            convert_folder,
            type=arguments.type,
            name=arguments.name,
            mtp="only" if arguments.mtp_only else arguments.mtp,
            num_threads=arguments.threads or None,
        )
    with progress_bar("converting") as progress:
        made = convert(arguments.source, arguments.target, progress=progress)
    print(made)
    return 0
