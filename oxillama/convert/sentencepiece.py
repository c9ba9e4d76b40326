"""Reads the pieces of a SentencePiece model (`tokenizer.model`, `spiece.model`).

The file is a protocol buffer: field 1 of `ModelProto` repeats pieces (1 text, 2 score, 3 type),
field 2 is the trainer's specification (3 its model type: 1 unigram, 2 BPE), field 3 the
normaliser's (2 the precompiled character map, 3 add_dummy_prefix, 4 remove_extra_whitespaces).
Source: sentencepiece_model.proto and the protocol buffers encoding specification.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from oxillama.convert.folder import read_whole
from oxillama.errors import ConvertError

UNIGRAM, BPE = 1, 2


@dataclass(frozen=True, slots=True)
class Pieces:
    """A SentencePiece model: its pieces in the order of their ids, and what its normaliser does."""

    texts: list[str]
    scores: list[float]
    kinds: list[int]  # 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
    model_type: int
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    charsmap: bytes


def read_sentencepiece(path: Path) -> Pieces:
    """The pieces of a file; ConvertError where it is no SentencePiece model."""
    held = read_whole(path) or b""
    try:
        return _model(held)
    except (ValueError, IndexError, struct.error) as error:
        raise ConvertError(f"{path}: found no SentencePiece model: {error}") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field: an int for wire type 0, bytes for 1, 2 and 5."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(data):
            raise ValueError("a field beyond the end")
        yield tag >> 3, data[at : at + size]
        at += size


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where bytes are wanted")
    return value


def _int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number is wanted")
    return value


def _model(data: bytes) -> Pieces:
    texts: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    model_type, prefix, trim, charsmap = UNIGRAM, True, True, b""
    for number, value in _fields(data):
        if number == 1:
            text, score, kind = "", 0.0, 1
            for part, held in _fields(_bytes(value)):
                if part == 1:
                    text = _bytes(held).decode("utf-8")
                elif part == 2:
                    score = struct.unpack("<f", _bytes(held))[0]
                elif part == 3:
                    kind = _int(held)
            texts.append(text)
            scores.append(score)
            kinds.append(kind)
        elif number == 2:
            for part, held in _fields(_bytes(value)):
                if part == 3:
                    model_type = _int(held)
        elif number == 3:
            for part, held in _fields(_bytes(value)):
                if part == 2:
                    charsmap = _bytes(held)
                elif part == 3:
                    prefix = bool(_int(held))
                elif part == 4:
                    trim = bool(_int(held))
    if not texts:
        raise ValueError("no pieces")
    if not all(1 <= kind <= 6 for kind in kinds):
        raise ValueError("a piece of unknown type")
    return Pieces(texts, scores, kinds, model_type, prefix, trim, charsmap)
