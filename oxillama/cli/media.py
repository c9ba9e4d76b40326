"""Files of images and of audio as parts of prompts: the options of `run` and `chat`, and messages
with them.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import oxillama
from oxillama.audio import AudioLimits, read_audio
from oxillama.audio.spectrogram import RATE
from oxillama.media.features import Kind
from oxillama.media.placement import NAMES
from oxillama.stores import own_encoder
from oxillama.vision import ImageLimits, read_image


class MediaFile(NamedTuple):
    """An image or a clip of audio in a file."""

    kind: Kind
    path: str

    @classmethod
    def image(cls, path: str) -> MediaFile:
        """An image."""
        return cls("image", path)

    @classmethod
    def audio(cls, path: str) -> MediaFile:
        """A clip."""
        return cls("audio", path)


def add_encoder(command: argparse.ArgumentParser) -> None:
    """`--mmproj` and what goes with it."""
    either = command.add_mutually_exclusive_group()
    either.add_argument(
        "--mmproj",
        default=None,
        metavar="FILE",
        help="the encoder that turns images or audio into what the model reads: its GGUF file, or "
        "a Hugging Face folder (default: that of MODEL, if it is such a folder or has one in its "
        "store)",
    )
    either.add_argument(
        "--no-mmproj",
        dest="mmproj",
        action="store_const",
        const=False,
        help="load no encoder of images or audio, and fetch none with MODEL",
    )
    command.add_argument(
        "--image-fit",
        choices=("stretch", "pad"),
        default=None,
        help="how an image is fitted to another aspect ratio (default: as the model's family does)",
    )


def add_media(command: argparse.ArgumentParser, *, later: bool = False) -> None:
    """`--image` and `--audio`; later: they may also come while the command runs."""
    command.set_defaults(later_media=later, media=[])
    for kind, of in (("image", MediaFile.image), ("audio", MediaFile.audio)):
        command.add_argument(
            f"--{kind}",
            dest="media",
            action="append",
            type=of,
            default=[],
            metavar="FILE",
            help=f"{NAMES[of('').kind]} that comes before the prompt; may be given more than once",
        )


def encoder_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `oxillama.load` that those options ask for."""
    found = {name: getattr(arguments, name, None) for name in ("mmproj", "image_fit")}
    return {name: value for name, value in found.items() if value is not None}


def check_media(arguments: argparse.Namespace) -> None:
    """Raise ImageError or AudioError for unreadable files before a model is loaded."""
    for kind, path in arguments.media:
        if kind == "image":
            read_image(Path(path), name="--image")
        else:
            read_audio(Path(path), RATE, name="--audio")


def wants_own_encoder(arguments: argparse.Namespace) -> bool:
    """Whether the encoder that belongs to the model is fetched with it."""
    media = getattr(arguments, "media", []) or getattr(arguments, "later_media", False)
    return bool(media) and arguments.mmproj is None


def needed_encoder(arguments: argparse.Namespace, model: str | None) -> str | Path | None:
    """What files of the arguments need: `--mmproj`, otherwise the model's own encoder. ConfigError
    for files without either; None without files.
    """
    given: str | Literal[False] | None = getattr(arguments, "mmproj", None)
    files: list[MediaFile] = getattr(arguments, "media", [])
    if not files:
        return given or None
    found = given or (None if given is False else own_encoder(model))
    if found is None:
        without = "--mmproj" if given is None else "an encoder (--no-mmproj)"
        raise oxillama.ConfigError(
            f"--{files[0].kind}: found {files[0].path} without {without}, wanted the file of the "
            "model's encoder"
        )
    return found


def content(text: str, files: Iterable[MediaFile]) -> str | list[dict[str, Any]]:
    """The content of a message with files before a text; the text alone without any."""
    parts = [file_part(each) for each in files]
    return [*parts, {"type": "text", "text": text}] if parts else text


def file_part(file: MediaFile) -> dict[str, Any]:
    """An image or a clip as a part of a message, as JSON can hold it."""
    kind, path = file
    limits = ImageLimits() if kind == "image" else AudioLimits()
    data = limits.file.file_bytes(Path(path), name=path)
    url = f"data:;base64,{base64.b64encode(data).decode()}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}, "at": path}


def prompt_part(file: MediaFile) -> dict[str, Any]:
    """The same as a part of a prompt without a chat template."""
    return {"type": file.kind, file.kind: Path(file.path)}
