"""Image files as parts of prompts: the options of `run` and `chat`, and messages with images."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import oxillama
from oxillama.stores import own_encoder
from oxillama.vision.reading import file_bytes, read_image


def add_encoder(command: argparse.ArgumentParser) -> None:
    """`--mmproj` and what goes with it."""
    either = command.add_mutually_exclusive_group()
    either.add_argument(
        "--mmproj",
        default=None,
        metavar="FILE",
        help="the encoder that turns images into what the model reads: its GGUF file, or a Hugging "
        "Face folder (default: that of MODEL, if it is such a folder or has one in its store)",
    )
    either.add_argument(
        "--no-mmproj",
        dest="mmproj",
        action="store_const",
        const=False,
        help="load no encoder of images, and fetch none with MODEL",
    )
    command.add_argument(
        "--image-fit",
        choices=("stretch", "pad"),
        default=None,
        help="how an image is fitted to another aspect ratio (default: as the model's family does)",
    )


def add_images(command: argparse.ArgumentParser, *, later: bool = False) -> None:
    """`--image`; later: images may also come while the command runs."""
    command.set_defaults(later_images=later)
    command.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="an image that comes before the prompt; may be given more than once",
    )


def encoder_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `oxillama.load` that those options ask for."""
    found = {name: getattr(arguments, name, None) for name in ("mmproj", "image_fit")}
    return {name: value for name, value in found.items() if value is not None}


def check_images(arguments: argparse.Namespace) -> None:
    """Raise ImageError for unreadable images before a model is loaded."""
    for path in arguments.image:
        read_image(Path(path), name="--image")


def wants_own_encoder(arguments: argparse.Namespace) -> bool:
    """Whether the encoder that belongs to the model is fetched with it."""
    images = getattr(arguments, "image", []) or getattr(arguments, "later_images", False)
    return bool(images) and arguments.mmproj is None


def needed_encoder(arguments: argparse.Namespace, model: str | None) -> str | Path | None:
    """What images of the arguments need: `--mmproj`, otherwise the model's own encoder. ConfigError
    for images without either; None without images.
    """
    given: str | Literal[False] | None = getattr(arguments, "mmproj", None)
    paths: list[str] = getattr(arguments, "image", [])
    if not paths:
        return given or None
    found = given or (None if given is False else own_encoder(model))
    if found is None:
        without = "--mmproj" if given is None else "an encoder (--no-mmproj)"
        raise oxillama.ConfigError(
            f"--image: found {paths[0]} without {without}, wanted the file of the model's encoder"
        )
    return found


def content(text: str, paths: Iterable[str | Path]) -> str | list[dict[str, Any]]:
    """The content of a message with images before a text; the text alone without images."""
    parts: list[dict[str, Any]] = [image_part(path) for path in paths]
    return [*parts, {"type": "text", "text": text}] if parts else text


def image_part(path: str | Path) -> dict[str, Any]:
    """An image file as a part of a message, as JSON can hold it."""
    data = file_bytes(Path(path), name=str(path))
    url = f"data:;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}, "at": str(path)}


def shown(message: dict[str, Any]) -> Any:
    """A message's content with images by name alone."""
    given = message.get("content")
    if not isinstance(given, Sequence) or isinstance(given, str):
        return given
    return " ".join(part.get("text") or f"[{part.get('at', 'image')}]" for part in given)
