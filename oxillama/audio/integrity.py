"""What kind of file audio is, and whether it is complete, according to its structure. Decoders give
what they can of a damaged file without a word; here it is refused.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_UNKNOWN = 0xFFFFFFFF  # the length that a program writes that cannot know it yet, as to a pipe


class Damaged(Exception):
    """What is wrong with a file."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a file says of itself. samples: of each channel, None if it does not say; digest: the
    MD5 of all of them as integers of `bits` bits, None if it does not say.
    """

    samples: int | None = None
    digest: bytes | None = None
    bits: int = 0

    def check(self, samples: int, whole: Hash | None) -> None:
        """Raise Damaged unless that is what was decoded."""
        if self.samples is not None and samples != self.samples:
            raise Damaged(f"{samples} samples of {self.samples}")
        if whole is not None and self.digest is not None and whole.digest() != self.digest:
            raise Damaged("its samples are not those that its checksum is of")


class Hash:
    """The MD5 of the samples of a FLAC file, as its header has it (RFC 9639, section 8.2)."""

    def __init__(self, bits: int) -> None:
        self._bits, self._made = bits, hashlib.md5(usedforsecurity=False)

    def update(self, samples: np.ndarray) -> None:
        """Further samples, int32 (samples, channels), of which the upper bits are used."""
        integers = (samples >> (32 - self._bits)).astype("<i4")
        size = (self._bits + 7) // 8
        held = np.ascontiguousarray(integers).view(np.uint8).reshape(-1, 4)
        self._made.update(np.ascontiguousarray(held[:, :size]).data)

    def digest(self) -> bytes:
        """Of all so far."""
        return self._made.digest()


def kind_of(held: bytes) -> str | None:
    """WAV, FLAC, OGG or MP3 by the first bytes, None for another file."""
    if held[:4] == b"RIFF" and held[8:12] == b"WAVE":
        return "WAV"
    if held[:4] == b"fLaC":
        return "FLAC"
    if held[:4] == b"OggS":
        return "OGG"
    if held[:3] == b"ID3" or (len(held) > 4 and _mp3_frame(held, 0) is not None):
        return "MP3"
    return None


def claims_of(held: bytes, kind: str) -> Claims:
    """What a file of that kind says of itself; Damaged if it is not complete."""
    return _CHECKS[kind](held)


def _wav(held: bytes) -> Claims:
    """Chunks of a name, a length and data; what is counted is that of `data`."""
    at, block = 12, 0
    while at + 8 <= len(held):
        name, size = held[at : at + 4], int.from_bytes(held[at + 4 : at + 8], "little")
        at += 8
        if name == b"data":
            if not block:
                raise Damaged("its samples come before their format")
            if size == _UNKNOWN:
                return Claims()
            if at + size > len(held):
                raise Damaged(f"{len(held) - at} bytes of samples of {size}")
            return Claims(size // block)
        if at + size > len(held):
            break
        if name == b"fmt " and size >= 16:
            code, block = struct.unpack_from("<H", held, at)[0], held[at + 12] + 256 * held[at + 13]
            if code not in (1, 3, 0xFFFE, 6, 7):
                # blocks of several samples, which `block` does not count
                return Claims() if _has_data(held, at + size + size % 2) else _no_samples()
        at += size + size % 2
    return _no_samples()


def _no_samples() -> Claims:
    raise Damaged("its samples are missing")


def _has_data(held: bytes, at: int) -> bool:
    """Whether a whole chunk of samples follows."""
    while at + 8 <= len(held):
        size = int.from_bytes(held[at + 4 : at + 8], "little")
        if held[at : at + 4] == b"data":
            return size == _UNKNOWN or at + 8 + size <= len(held)
        at += 8 + size + size % 2
    return False


def _flac(held: bytes) -> Claims:
    """The header says the number of samples and their MD5, or 0 (RFC 9639, section 8.2)."""
    if len(held) < 42 or held[4] & 0x7F:
        raise Damaged("its header is missing")
    packed = int.from_bytes(held[18:26], "big")
    digest = held[26:42]
    return Claims(
        packed & (1 << 36) - 1 or None,
        digest if any(digest) else None,
        (packed >> 36 & 31) + 1,
    )


_REVERSED = bytes(int(f"{each:08b}"[::-1], 2) for each in range(256))


def _ogg(held: bytes) -> Claims:
    """Pages with a checksum and a number, from one that begins a stream to one that ends it (RFC
    3533, section 6).
    """
    at, number, serial, last = 0, 0, b"", 0
    while at < len(held):
        head = held[at : at + 27]
        if len(head) < 27 or head[:4] != b"OggS":
            raise Damaged(f"no page at byte {at}")
        table = held[at + 27 : at + 27 + head[26]]
        end = at + 27 + head[26] + sum(table)
        if len(table) < head[26] or end > len(held):
            raise Damaged("its last page is cut")
        page = head[:22] + bytes(4) + held[at + 26 : end]
        if _ogg_sum(page) != int.from_bytes(head[22:26], "little"):
            raise Damaged(f"the page at byte {at} has another checksum")
        last, serial = head[5], serial or head[14:18]
        if head[14:18] != serial or bool(last & 2) != (number == 0):
            raise Damaged("several streams, wanted one")
        if int.from_bytes(head[18:22], "little") != number:
            raise Damaged(f"page {number} is missing")
        at, number = end, number + 1
    if not last & 4:
        raise Damaged("its end is missing")
    return Claims()


def _ogg_sum(page: bytes) -> int:
    """The checksum of a page: the polynomial of zlib's, of bits in the other order."""
    made = zlib.crc32(page.translate(_REVERSED), _UNKNOWN) ^ _UNKNOWN
    return int(f"{made:032b}"[::-1], 2)


# kbit/s of layer III by four bits of a header: of MPEG 1, of MPEG 2 and 2.5 (ISO 11172-3, 13818-3)
_KBITS = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_RATES = (44100, 48000, 32000)


def _mp3_frame(held: bytes, at: int) -> tuple[int, tuple[int, int]] | None:
    """(bytes of the frame at a byte, its version and rate), None for no frame of layer III."""
    if at + 4 > len(held) or held[at] != 0xFF or held[at + 1] & 0xE6 != 0xE2:
        return None
    version, bits, rate = held[at + 1] >> 3 & 3, held[at + 2] >> 4, held[at + 2] >> 2 & 3
    if version == 1 or bits in (0, 15) or rate == 3:
        return None
    first = version == 3
    hertz = _RATES[rate] // (1 if first else 2 if version == 2 else 4)
    size = (144 if first else 72) * 1000 * _KBITS[not first][bits] // hertz
    return size + (held[at + 2] >> 1 & 1), (version, hertz)


def _mp3(held: bytes) -> Claims:
    """Frames, each of a length that its header says, between tags; the first may say how many
    follow.
    """
    at, end = _after_tags(held), _before_tags(held)
    if _mp3_frame(held, at) is None:
        raise Damaged("its first frame is missing")
    said, count, kind = _frames_said(held, at), 0, None
    while at < end:
        found = _mp3_frame(held, at)
        if found is None and not any(held[at:end]):
            break
        if found is None or (kind is not None and found[1] != kind):
            raise Damaged(f"no frame at byte {at}")
        kind = found[1]
        at, count = at + found[0], count + 1
    if at > end:
        raise Damaged("its last frame is cut")
    if said is not None and said != count - 1:
        raise Damaged(f"{count - 1} frames of {said}")
    return Claims()


def _after_tags(held: bytes) -> int:
    """Where the first frame is, after ID3v2 tags."""
    at = 0
    while held[at : at + 3] == b"ID3" and at + 10 <= len(held):
        size = 0
        for each in held[at + 6 : at + 10]:
            size = size << 7 | each & 0x7F
        at += 10 + size + (10 if held[at + 5] & 0x10 else 0)
    return at


def _before_tags(held: bytes) -> int:
    """Where the last frame ends, before ID3v1 and APE tags."""
    end = len(held)
    if held[max(end - 128, 0) :][:3] == b"TAG":
        end -= 128
    if held[max(end - 32, 0) : end][:8] == b"APETAGEX":
        size, flags = struct.unpack_from("<I4xI", held, end - 20)
        end -= size + (32 if flags >> 31 else 0)
    return end


def _frames_said(held: bytes, at: int) -> int | None:
    """The number of frames that a first frame without sound says follow it, None without one."""
    mono, first = held[at + 3] >> 6 == 3, held[at + 1] >> 3 & 3 == 3
    start = at + 4 + (17 if mono else 32) if first else at + 4 + (9 if mono else 17)
    head = held[start : start + 12]
    if len(head) < 12 or head[:4] not in (b"Xing", b"Info") or not head[7] & 1:
        return None
    return int.from_bytes(head[8:12], "big")


_CHECKS: dict[str, Callable[[bytes], Claims]] = {
    "WAV": _wav,
    "FLAC": _flac,
    "OGG": _ogg,
    "MP3": _mp3,
}
