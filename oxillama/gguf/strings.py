"""Arrays of strings, the only large part of a header. A vocabulary of 100,000 tokens with its
merges opens in milliseconds.

Each string is a length of eight bytes followed by the text, so the position of a string depends on
the one before. But lengths are nearly always under 256, and text contains no zeros. Every position
whose eight bytes are such a number is guessed to start a string, many at once. The guess is
accepted only if each guessed string ends exactly where the next begins, which is the result of
reading one by one. Otherwise that stretch is read one by one.
"""

import struct
from collections.abc import Iterator

import numpy as np

_U64 = struct.Struct("<Q")
_STRETCH = 1 << 18  # bytes guessed at once, small enough to stay in the cache


def strings_end(buffer: memoryview, position: int, count: int) -> int:
    """The position after the last of `count` strings from `position` on, or -1 if one runs past the
    end; holds one stretch at a time.
    """
    for found, after in _stretches(buffer, position, count):
        position, count = after, count - len(found)
    return position if not count and position <= len(buffer) else -1


def string_starts(buffer: memoryview, position: int, count: int) -> tuple[np.ndarray, int]:
    """The positions (int64) where `count` strings from `position` on start, and the result of
    `strings_end`.
    """
    pieces = [np.empty(0, np.int64)]
    for found, after in _stretches(buffer, position, count):
        pieces.append(found)
        position, count = after, count - len(found)
    return np.concatenate(pieces), position if not count and position <= len(buffer) else -1


def _stretches(buffer: memoryview, position: int, left: int) -> Iterator[tuple[np.ndarray, int]]:
    """The starts of up to `left` strings, a stretch of the buffer at a time, each with the place
    after its last string.
    """
    while left and len(buffer) - position >= 8:
        stop = min(position + _STRETCH, len(buffer))
        found, position = _guessed(buffer, position, stop, left) or _walked(
            buffer, position, stop, left
        )
        left -= len(found)
        yield found, position


def _guessed(
    buffer: memoryview, position: int, stop: int, left: int
) -> tuple[np.ndarray, int] | None:
    stretch = np.frombuffer(buffer, np.uint8, stop - position, position)
    lengths = np.ndarray(len(stretch) - 7, "<u8", stretch, 0, (1,))  # the number at every byte
    found = np.flatnonzero(lengths < 256)[:left]
    if not len(found) or found[0]:
        return None
    after = found + 8 + lengths[found].astype(np.int64)
    if (after[:-1] != found[1:]).any():
        return None
    return found + position, position + int(after[-1])


def _walked(buffer: memoryview, position: int, stop: int, left: int) -> tuple[np.ndarray, int]:
    unpack, last = _U64.unpack_from, min(stop, len(buffer) - 8)
    found: list[int] = []
    while position <= last and len(found) < left:
        found.append(position)
        position += 8 + unpack(buffer, position)[0]
    return np.array(found, np.int64), position


def decode_strings(buffer: memoryview, starts: np.ndarray, end: int) -> list[str]:
    """The texts of the strings at `starts`, the last of which ends at `end`; UnicodeDecodeError if
    one is not UTF-8.
    """
    if not len(starts):
        return []
    first = int(starts[0])
    starts = starts - first
    blob = np.frombuffer(buffer, np.uint8, end - first, first).copy()
    # One zero byte in place of each length, then one decoding and one split of the whole; a text
    # that holds a zero itself makes more pieces than there are strings.
    blob[starts] = 0
    keep = np.ones(len(blob), bool)
    for offset in range(1, 8):
        keep[starts + offset] = False
    texts = blob[keep].tobytes().decode().split("\0")
    if len(texts) == len(starts) + 1:
        return texts[1:]
    ends = np.append(starts[1:], end - first).tolist()
    raw = bytes(buffer[first:end])
    return [raw[start + 8 : stop].decode() for start, stop in zip(starts.tolist(), ends)]
