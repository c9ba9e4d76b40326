"""Images as callers bring them, read and checked before anything large is allocated.

What is accepted: a PIL image; a uint8 array (height, width, 3); the bytes of a file; a `data:` URL;
a `pathlib.Path`; and, where a folder was allowed, a text that names a file in it. The size is known
from the header, so that a file that would unpack into more than the limits is refused before it
does.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.arguments import named_fields
from oxillama.errors import ImageError, MissingExtra
from oxillama.media.sources import FileKind
from oxillama.vision.integrity import is_whole

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "PPM")
_NAMED = "a PNG, JPEG, WebP, GIF, BMP or PPM file"


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Limits of images: bytes of a file, pixels, and the ratio of the sides; folder: where texts
    may name files, None for nowhere.
    """

    max_bytes: int = 32 << 20
    max_pixels: int = 1 << 25
    max_ratio: int = 200
    folder: Path | None = None

    @property
    def file(self) -> FileKind:
        """What an image's file is wanted to be."""
        return FileKind(
            error=ImageError,
            wanted=_NAMED,
            media_type="image/",
            folder_option="image_folder",
            max_bytes=self.max_bytes,
            folder=self.folder,
        )


# A file of many pixels that is so many times smaller than they are is made to fill memory.
_LARGE, _FOLD = 1 << 22, 200
# From so many pixels on, of four bytes each while they are read, a file is seen to be whole first.
_HUGE = 12 << 20


def pillow() -> Any:
    """The module `PIL.Image`; MissingExtra where Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("images", error, "vision") from None
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
    held, name = limits.file.read(source, name)
    if held is not None:
        return _of_bytes(held, limits, name, module)
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
