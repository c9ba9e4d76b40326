"""Options of models that fill in masks, under llama.cpp's names."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from oxillama.cli.parsing import number
from oxillama.sampling import DiffusionConfig
from oxillama.sampling.diffusion import Order

# llama.cpp's numbers of the orders
_NUMBERED = ("origin", "entropy", "margin", "random", "confidence")
# (name, field of a DiffusionConfig, kind, help)
_OPTIONS: tuple[tuple[str, str, type, str], ...] = (
    ("steps", "steps", int, "passes over an answer (default: as many as it has places)"),
    ("block-length", "block_length", int, "places of a block (default: 32, without eps)"),
    ("eps", "eps", float, "fill by time, which ends at this, in place of blocks"),
    ("alg-temp", "order_temperature", float, "temperature of the order; 0 is off (default)"),
    ("cfg-scale", "guidance", float, "scale of classifier-free guidance; 0 is off (default)"),
)


def add_diffusion(command: argparse.ArgumentParser) -> None:
    """The options that `diffusion_of` reads."""
    group = command.add_argument_group("models that fill in masks (diffusion)")
    for name, field, kind, text in _OPTIONS:
        group.add_argument(
            f"--diffusion-{name}",
            dest=field,
            type=number(kind),
            default=None,
            metavar="N",
            help=text,
        )
    group.add_argument(
        "--diffusion-algorithm",
        dest="order",
        choices=(*get_args(Order), *map(str, range(len(_NUMBERED)))),
        default=None,
        help="which places are filled first, or llama.cpp's number of that (default: confidence)",
    )


def diffusion_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword argument `diffusion` that the options ask for, checked; none without them."""
    names = ("order", *(field for _, field, _, _ in _OPTIONS))
    given = {name: getattr(arguments, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("order", "").isdigit():
        given["order"] = _NUMBERED[int(given["order"])]
    return {"diffusion": DiffusionConfig(**given)} if given else {}
