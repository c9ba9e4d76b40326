"""Images as callers bring them, read and checked before anything large is allocated.

What is accepted: a PIL image; a uint8 array (height, width, 3); the bytes of a file; a `data:` URL;
a `pathlib.Path`; and, where a folder was allowed, a text that names a file in it. The size is known
from the header, so that a file that would unpack into more than the limits is refused before it
does.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import numpy as np

from oxillama.errors import ConfigError, ImageError
from oxillama.vision.whole import is_whole

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "PPM")
_NAMED = "a PNG, JPEG, WebP, GIF, BMP or PPM file"
_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
# bytes of the text of a URL in an error
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Limits of images: bytes of a file, pixels, and the ratio of the sides; folder: where texts
    may name files, None for nowhere.
    """

    max_bytes: int = 32 << 20
    max_pixels: int = 1 << 25
    max_ratio: int = 200
    folder: Path | None = None


# A file of many pixels that is so many times smaller than they are is made to fill memory.
_LARGE, _FOLD = 1 << 22, 200
# From so many pixels on, of four bytes each while they are read, a file is seen to be whole first.
_HUGE = 12 << 20


def pillow() -> Any:
    """The module `PIL.Image`; ConfigError where Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError(
            "images: Pillow is not installed, wanted `pip install oxillama[vision]`"
        ) from None
    return Image


def read_image(source: Any, limits: ImageLimits | None = None, *, name: str = "image") -> Any:
    """The image as an upright `PIL.Image` of mode RGB. ImageError says what is wrong with it, under
    the name that the caller has for it.
    """
    limits, module = limits or ImageLimits(), pillow()
    if isinstance(source, np.ndarray):
        return _of_array(source, limits, name, module)
    if isinstance(source, module.Image):
        _check_size(source.size, limits, name)
        return _upright(source, name)
    if isinstance(source, str):
        given, source = source, _named(source, limits, name)
        if isinstance(source, Path):
            name = f"{name}: {given[:_SHOWN]}"
    elif isinstance(source, Path):
        name = f"{name}: {source}"
    if isinstance(source, Path):
        source = file_bytes(source, limits, name=name)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(source), limits, name, module)
    raise ImageError(
        f"{name}: found {type(source).__name__}, wanted a data URL, bytes, a pathlib.Path, a PIL "
        f"image or a uint8 array (height, width, 3)"
    )


def _of_array(array: np.ndarray, limits: ImageLimits, name: str, module: Any) -> Any:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise ImageError(
            f"{name}: found {array.dtype} {array.shape}, wanted uint8 (height, width, 3)"
        )
    _check_size((array.shape[1], array.shape[0]), limits, name)
    return module.fromarray(np.ascontiguousarray(array))


def _named(text: str, limits: ImageLimits, name: str) -> bytes | Path:
    """The bytes of a data URL, or the file that a text names within the allowed folder."""
    if text[:5].lower() == "data:":
        return _data_bytes(text, limits, name)
    scheme = urlsplit(text[:4096]).scheme.lower()
    shown = f"{text[:_SHOWN]!r}"
    if scheme in ("http", "https"):
        raise ImageError(f"{name}: found the URL {shown}, which is not fetched; wanted a data URL")
    if limits.folder is None:
        raise ImageError(
            f"{name}: found {shown}, wanted a data URL (files are read where `image_folder` allows "
            "it)"
        )
    path = Path(unquote(urlsplit(text).path) if scheme == "file" else text)
    folder = limits.folder.resolve()
    found = (folder / path).resolve()
    if not found.is_relative_to(folder):
        raise ImageError(f"{name}: found {shown}, wanted a file below the allowed folder")
    return found


def _data_bytes(url: str, limits: ImageLimits, name: str) -> bytes:
    head = _DATA_URL.match(url[:1024])
    if head is None:
        raise ImageError(f"{name}: found {url[:_SHOWN]!r}, wanted data:image/...;base64,...")
    kind = head[1].lower()
    if kind and not kind.startswith("image/"):
        raise ImageError(f"{name}: found a data URL of {kind[:_SHOWN]!r}, wanted image/...")
    size = len(url) - head.end()
    if size > 4 * limits.max_bytes:
        raise _too_long(size, limits, name)
    body = url[head.end() :]
    if ";base64" not in head[2].lower():
        return unquote_to_bytes(body)
    try:
        return base64.b64decode("".join(unquote(body).split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"{name}: found a data URL that is not base64 ({error})") from None


def file_bytes(path: Path, limits: ImageLimits | None = None, *, name: str) -> bytes:
    """The bytes of an image file, at most one more than the limit; ImageError for anything else."""
    limits = limits or ImageLimits()
    try:
        if not path.is_file():
            raise ImageError(f"{name}: found no file, wanted {_NAMED}")
        with path.open("rb") as file:
            return file.read(limits.max_bytes + 1)
    except OSError as error:
        raise ImageError(f"{name}: {error.strerror or error}") from None


def _too_long(size: int, limits: ImageLimits, name: str) -> ImageError:
    return ImageError(f"{name}: found {size} bytes, wanted at most {limits.max_bytes}")


def _check_size(size: tuple[int, int], limits: ImageLimits, name: str) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"{name}: found {width} x {height} pixels, wanted 1 x 1 or more")
    if width * height > limits.max_pixels:
        raise ImageError(
            f"{name}: found {width} x {height} pixels, wanted at most {limits.max_pixels} in all"
        )
    if max(size) > limits.max_ratio * min(size):
        raise ImageError(
            f"{name}: found {width} x {height} pixels, wanted sides that differ by a factor of at "
            f"most {limits.max_ratio}"
        )


def _of_bytes(held: bytes, limits: ImageLimits, name: str, module: Any) -> Any:
    if len(held) > limits.max_bytes:
        raise _too_long(len(held), limits, name)
    try:
        image = module.open(io.BytesIO(held), formats=FORMATS)
    except module.DecompressionBombError as error:
        raise ImageError(
            f"{name}: {error} Wanted at most {limits.max_pixels} pixels in all"
        ) from None
    except Exception as error:
        # whatever a parser of headers raises: the file is none that it reads
        found = "no bytes" if not held else f"{len(held)} bytes that begin with {held[:8]!r}"
        raise ImageError(f"{name}: found {found}, wanted {_NAMED}") from error
    with image:
        _check_size(image.size, limits, name)
        unpacked = 3 * image.width * image.height
        if image.width * image.height > _LARGE and unpacked > _FOLD * len(held):
            raise ImageError(
                f"{name}: found {len(held)} bytes that unpack into {unpacked}, wanted at most "
                f"{_FOLD} times as many"
            )
        if image.width * image.height > _HUGE and not is_whole(held, image.format):
            raise ImageError(
                f"{name}: found a damaged {image.format} file of {len(held)} bytes: "
                "its end is missing"
            )
        frames = 1 if image.format == "MPO" else getattr(image, "is_animated", False)
        if frames is True:
            raise ImageError(f"{name}: found an animation, wanted a single image")
        try:
            image.load()
        except Exception as error:
            raise ImageError(
                f"{name}: found a damaged {image.format} file of {len(held)} bytes: {error}"
            ) from error
        return _upright(image, name)


def _upright(image: Any, name: str) -> Any:
    """The image turned as its EXIF data says, in RGB; what lies under transparency stays as it
    is.
    """
    from PIL import Image, ImageOps

    try:
        image = ImageOps.exif_transpose(image)
        if image.mode in ("I;16", "I;16B", "I;16L", "I;16N"):
            # as of files of colour with 16 bits: the upper eight
            image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise ImageError(
                f"{name}: found pixels of mode {image.mode!r}, wanted 8 or 16 bits a colour"
            )
        # a copy, so that nothing of a caller's image or file is held
        return image.convert("RGB") if image.mode != "RGB" else image.copy()
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"{name}: found pixels of mode {image.mode!r}: {error}") from error
