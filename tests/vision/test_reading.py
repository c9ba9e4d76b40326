"""Images as callers bring them: what is read, what is made upright and RGB, what is refused by
name.
"""

import base64
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from oxillama.errors import ImageError
from oxillama.vision import ImageLimits, read_image
from oxillama.vision.integrity import is_whole

PIXELS = (np.arange(40 * 60 * 3) % 251).astype(np.uint8).reshape(40, 60, 3)
IMAGE = Image.fromarray(PIXELS)


def encoded(image, kind, **options):
    held = io.BytesIO()
    image.save(held, kind, **options)
    return held.getvalue()


PNG = encoded(IMAGE, "PNG")


def png_of(width, height, rows=b""):
    """A PNG that says it has that size, with whatever rows."""

    def chunk(name, data):
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


NOISE = np.random.default_rng(1).bytes(1 << 18)


def animated(kind):
    return encoded(IMAGE, kind, save_all=True, append_images=[IMAGE.rotate(180)])


@pytest.mark.parametrize("kind", ("PNG", "BMP", "PPM"))
def test_an_image_is_the_same_in_every_exact_format(kind):
    read = read_image(encoded(IMAGE, kind))
    assert read.mode == "RGB" and np.array_equal(np.asarray(read), PIXELS)


@pytest.mark.parametrize("kind", ("JPEG", "WEBP", "GIF"))
def test_other_formats_are_read(kind):
    assert read_image(encoded(IMAGE, kind)).size == (60, 40)


def test_an_image_comes_in_any_of_the_ways(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    for source in (IMAGE, PIXELS, PNG, bytearray(PNG), memoryview(PNG), path, url):
        assert np.array_equal(np.asarray(read_image(source)), PIXELS)


def test_images_of_other_modes_become_rgb():
    grey = np.asarray(IMAGE.convert("L"))
    for mode in ("L", "LA"):
        found = np.asarray(read_image(encoded(IMAGE.convert(mode), "PNG")))
        assert np.array_equal(found, np.repeat(grey[..., None], 3, axis=2))
    found = read_image(encoded(IMAGE.convert("RGBA"), "PNG"))
    assert np.array_equal(np.asarray(found), PIXELS)
    palette = IMAGE.quantize(16)
    found = read_image(encoded(palette, "PNG", transparency=3))
    assert np.array_equal(np.asarray(found), np.asarray(palette.convert("RGB")))
    cmyk = IMAGE.convert("CMYK")
    assert np.array_equal(np.asarray(read_image(cmyk)), np.asarray(cmyk.convert("RGB")))


def test_sixteen_bits_keep_their_upper_eight():
    deep = (np.arange(40 * 60, dtype=np.uint16) * 27).reshape(40, 60)
    found = np.asarray(read_image(encoded(Image.fromarray(deep), "PNG")))
    assert np.array_equal(found[..., 0], (deep >> 8).astype(np.uint8))


def test_an_image_is_turned_as_its_exif_data_says():
    exif = Image.Exif()
    exif[0x0112] = 6
    found = read_image(encoded(IMAGE, "PNG", exif=exif))
    assert np.array_equal(np.asarray(found), np.rot90(PIXELS, -1))


@pytest.mark.parametrize(
    "source, said",
    (
        (b"", "found no bytes, wanted a PNG"),
        (b"not a picture", "found 13 bytes that begin with b'not a pi', wanted a PNG"),
        (encoded(IMAGE, "TIFF"), "wanted a PNG, JPEG, WebP, GIF, BMP or PPM file"),
        (PNG[:20], "found 20 bytes"),
        (PNG[: len(PNG) // 2], "found a damaged PNG file"),
        (png_of(2000, 2000, b"\0" * 100), "found a damaged PNG file of 69 bytes"),
        (png_of(0, 10), "wanted a PNG"),
        (png_of(8000, 8000), "found 8000 x 8000 pixels, wanted at most 33554432 in all"),
        (png_of(50000, 50000), "decompression bomb.* Wanted at most 33554432 pixels"),
        (png_of(4000, 4000, NOISE)[:-1], "damaged PNG file of [0-9]+ bytes: its end is missing"),
        (encoded(Image.new("RGB", (2100, 2100)), "PNG"), "bytes that unpack into 13230000"),
        (png_of(1, 100000), "found 1 x 100000 pixels, wanted sides that differ"),
        (animated("GIF"), "found an animation"),
        (animated("WEBP"), "found an animation"),
        (animated("PNG"), "found an animation"),
        (Image.new("F", (4, 4)), "found pixels of mode 'F', wanted 8 or 16 bits"),
        (np.zeros((3, 4, 5), np.uint8), r"found uint8 \(3, 4, 5\), wanted uint8 \(height"),
        (np.zeros((4, 5, 3), np.float32), r"found float32 \(4, 5, 3\)"),
        (np.zeros((0, 5, 3), np.uint8), r"found uint8 \(0, 5, 3\)"),
        ("http://example.com/a.png", "which is not fetched; wanted a data URL"),
        ("/etc/hostname", "files are read where `image_folder` allows it"),
        ("data:text/html,hello", "found a data URL of 'text/html'"),
        ("data:image/png;base64,@@@@", "found a data URL that is not base64"),
        (None, "found NoneType, wanted a data URL"),
    ),
)
def test_what_is_no_image_is_refused_by_name(source, said):
    with pytest.raises(ImageError, match=f"^here: .*{said}"):
        read_image(source, name="here")


@pytest.mark.parametrize("kind", ("PNG", "JPEG", "WEBP", "GIF", "BMP"))
def test_a_file_that_lacks_its_end_is_not_whole(kind):
    held = encoded(IMAGE, kind)
    assert is_whole(held, kind)
    assert not any(is_whole(held[:size], kind) for size in range(26, len(held), 7))
    assert not is_whole(held[:-1], kind)


def test_the_end_of_a_thumbnail_is_not_the_end_of_its_image():
    small = encoded(IMAGE.resize((8, 8)), "JPEG")
    whole = encoded(IMAGE, "JPEG", exif=b"Exif\0\0" + small)
    assert small in whole and is_whole(whole, "JPEG")
    assert not is_whole(whole[:-2], "JPEG")


def test_a_file_is_called_by_its_name(tmp_path):
    path = tmp_path / "half.png"
    path.write_bytes(PNG[: len(PNG) // 2])
    with pytest.raises(ImageError, match=f"^here: {path}: found a damaged PNG"):
        read_image(path, name="here")
    with pytest.raises(ImageError, match="^here: half.png: found a damaged PNG"):
        read_image("half.png", ImageLimits(folder=tmp_path), name="here")


def test_text_that_unpacks_into_too_much_is_refused():
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "x" * (4 << 20), zip=True)
    with pytest.raises(ImageError):
        read_image(encoded(IMAGE, "PNG", pnginfo=info))


def test_files_are_read_below_the_allowed_folder_alone(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(PNG)
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "way.png").symlink_to(tmp_path / "secret.png")
    limits = ImageLimits(folder=folder)
    for name in ("a.png", f"file://{folder}/a.png", str(folder / "a.png")):
        assert read_image(name, limits).size == (60, 40)
    for name in ("../secret.png", str(tmp_path / "secret.png"), "way.png"):
        with pytest.raises(ImageError, match="wanted a file below the allowed folder"):
            read_image(name, limits)
    with pytest.raises(ImageError, match="found no file"):
        read_image("b.png", limits)


def test_limits_hold_for_every_source():
    for source in (PNG, IMAGE, PIXELS):
        with pytest.raises(ImageError, match="found 60 x 40 pixels, wanted at most 2399 in all"):
            read_image(source, ImageLimits(max_pixels=2399))
    with pytest.raises(ImageError, match=f"found {len(PNG)} bytes, wanted at most 99"):
        read_image(PNG, ImageLimits(max_bytes=99))
