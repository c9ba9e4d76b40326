"""Whether an image file is complete, according to its structure. This is checked before anything
large is unpacked, which would allocate every pixel only to find the last ones missing.
"""

from __future__ import annotations

from collections.abc import Callable


def is_whole(held: bytes, kind: str) -> bool:
    """Whether the bytes of a file of a kind (Pillow's name for it) reach to its end. True of kinds
    whose bytes do not say.
    """
    check = _CHECKS.get(kind)
    return check is None or check(held)


def _png(held: bytes) -> bool:
    """Chunks of a length, a name, data and a checksum, up to IEND (PNG, section 5.3)."""
    at = 8
    while at + 12 <= len(held):
        size, name = int.from_bytes(held[at : at + 4], "big"), held[at + 4 : at + 8]
        at += 12 + size
        if name == b"IEND":
            return at <= len(held)
    return False


def _jpeg(held: bytes) -> bool:
    """Segments with lengths up to the first scan, then an end of image (ITU T.81, annex B); a
    thumbnail's end lies within a segment.
    """
    at = 2
    while at + 4 <= len(held) and held[at] == 0xFF:
        marker = held[at + 1]
        if marker == 0xDA:
            return held.find(b"\xff\xd9", at) >= 0
        # fill bytes and markers without a segment
        bare = marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD8
        at += (
            (1 if marker == 0xFF else 2)
            if bare
            else 2 + int.from_bytes(held[at + 2 : at + 4], "big")
        )
    return False


def _webp(held: bytes) -> bool:
    """A RIFF file says its size, but for its first eight bytes."""
    return int.from_bytes(held[4:8], "little") + 8 <= len(held)


def _gif(held: bytes) -> bool:
    """Blocks up to a trailer (GIF89a specification, sections 15 to 27)."""

    def table(flags: int) -> int:
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    at = 13 + table(held[10]) if len(held) > 13 else len(held)
    while at + 10 < len(held) and held[at] in b"!,":
        # an extension has a label; an image its place, a table and the size of its codes
        at += 2 if held[at] == 0x21 else 11 + table(held[at + 9])
        while at < len(held) and held[at]:
            at += 1 + held[at]
        at += 1
    return held[at : at + 1] == b";"


def _bmp(held: bytes) -> bool:
    """The header has the file's size; in some files it is 0."""
    return int.from_bytes(held[2:6], "little") <= len(held)


_CHECKS: dict[str, Callable[[bytes], bool]] = {
    "PNG": _png,
    "JPEG": _jpeg,
    "MPO": _jpeg,
    "WEBP": _webp,
    "GIF": _gif,
    "BMP": _bmp,
}
