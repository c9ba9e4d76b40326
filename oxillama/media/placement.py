"""Images and audio among the tokens of a session: their positions, the rotation of later rows, and
the input of a step.

    tokens   t0 t1 [f f f f f f] t8 t9       f: a token of the vocabulary, the placeholder of a row
    media          PlacedMedia(2, features)  the rows that the step uses there instead

    tokens   [s0 s1 s2 t0] t1                s: what an encoder reads before a decoder writes,
    media          PlacedMedia(0, source)    t: the decoder's, from its start token on

If features have positions of their own (M-RoPE), the tokens after an image continue from the
largest of them: an image of 6 x 4 rows advances a text by 6, not by 24. If some of these are fixed
(XD-RoPE), rows have a fourth position, which is that of their token in texts and the number of
images before in images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from blake3 import blake3

from oxillama.errors import ContextError
from oxillama.media.features import Kind, MediaFeatures

NAMES = {"image": "an image", "audio": "a clip of audio", "source": "the source"}


@dataclass(frozen=True, eq=False)
class EncoderSource:
    """What an encoder reads before its decoder writes: tokens, which remain what they are, and
    behind them the decoder's start token. They are one in a session, as the rows of an image are.
    """

    tokens: tuple[int, ...]

    kind: ClassVar = "source"
    positions: ClassVar = None
    together: ClassVar = True
    fixed: ClassVar = False

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def digest(self) -> int:
        """A number that is the same for the same tokens, and for nothing else."""
        hashed = blake3(np.array(self.tokens, "<i4").tobytes())
        return int.from_bytes(hashed.digest(length=16), "little")

    @property
    def advance(self) -> int:
        """How far positions have come behind the start token."""
        return len(self)


@dataclass(frozen=True, slots=True)
class PlacedMedia:
    """Features whose first row is at token `start`; a source is always at 0."""

    start: int
    features: MediaFeatures | EncoderSource

    @property
    def end(self) -> int:
        """The token after its last row."""
        return self.start + len(self.features)


class HasMedia(Protocol):
    """What has images or audio among its tokens (`engine.session.Session`)."""

    media: tuple[PlacedMedia, ...]


def source_of(media: Iterable[PlacedMedia]) -> EncoderSource | None:
    """The source among them; None for the tokens of a model without an encoder before them."""
    return next((each.features for each in media if isinstance(each.features, EncoderSource)), None)


def of_kind(media: Iterable[PlacedMedia], kind: Kind) -> tuple[PlacedMedia, ...]:
    """Those of one kind."""
    return tuple(each for each in media if each.features.kind == kind)


def moved(media: Iterable[PlacedMedia], by: int) -> tuple[PlacedMedia, ...]:
    """The same images and clips, shifted by this many tokens."""
    return tuple(replace(each, start=each.start + by) for each in media)


def identities(tokens: Sequence[int], media: Iterable[PlacedMedia]) -> list[int]:
    """The tokens, with numbers below 0 in the places of rows, which are equal for equal rows alone:
    what prefixes are compared by.
    """
    made = list(tokens)
    for each in media:
        # the last row may be of one that was cut
        first = -1 - (each.features.digest << 24)
        stop = min(each.end, len(made))
        made[each.start : stop] = range(first, first - (stop - each.start), -1)
    return made


def outside(media: Iterable[PlacedMedia], position: int) -> int:
    """A position that no image or clip is cut at: the same one, or the end of the one around it."""
    for each in media:
        if each.start < position < each.end:
            return each.end
    return position


def check_boundary(media: Iterable[PlacedMedia], position: int, what: str) -> None:
    """Raise ContextError for a position between the rows of an image or a clip."""
    media = tuple(media)
    end = outside(media, position)
    if end != position:
        kind = next(each.features.kind for each in media if each.start < position < each.end)
        raise ContextError(
            f"{what}: found {position}, which is within {NAMES[kind]}, wanted a position before it "
            f"or from {end} on"
        )


def spans_of(media: Iterable[PlacedMedia]) -> tuple[tuple[int, int], ...]:
    """(start, end) of those whose rows must be of one step."""
    return tuple((each.start, each.end) for each in media if each.features.together)


def rotations(media: Iterable[PlacedMedia], start: int, rows: int, *, axes: int = 3) -> np.ndarray:
    """int32 (axes, rows): the positions that rotate the rows of tokens from `start` on; axes: 4
    where images have fixed ones.
    """
    made = np.tile(np.arange(start, start + rows, dtype=np.int32), (axes, 1))
    saved = 0  # positions that the images before take less than they have rows
    number = 0  # images with fixed positions before
    for each in media:
        first, stop = max(each.start, start), min(each.end, start + rows)
        if first < stop and each.features.positions is not None:
            part = each.features.positions[:, first - each.start : stop - each.start]
            here = slice(first - start, stop - start)
            if each.features.fixed:
                made[0, here] = part[0] + (each.start - saved)
                made[1:3, here], made[3, here] = part[:0:-1], number
            else:
                made[:, here] = part + (each.start - saved)
        number += each.features.fixed
        gain = len(each.features) - each.features.advance
        saved += gain
        if each.end < start + rows:
            made[:, max(each.end - start, 0) :] -= gain
    return made


def inputs(
    parts: Iterable[tuple[HasMedia, int, int, int]], tokens: np.ndarray, positions: np.ndarray
) -> dict[str, Any]:
    """What a batch brings for sessions with images or audio, as keyword arguments; marks their rows
    in `tokens` by -1.

    parts: (session, first token, rows, first row of the step) of each such session.
    """
    parts, more = list(parts), dict[str, Any]()
    placed = [each for session, *_ in parts for each in session.media]
    if any(each.features.positions is not None for each in placed):
        axes = 4 if any(each.features.fixed for each in placed) else 3
        more["rope"] = rope = np.tile(positions, (axes, 1))
        for session, start, rows, at in parts:
            rope[:, at : at + rows] = rotations(session.media, start, rows, axes=axes)
    for session, start, rows, at in parts:
        for each in session.media:
            if isinstance(each.features, EncoderSource):
                spans = more.setdefault("spans", np.zeros((2, len(tokens)), np.int32))
                spans[1, at : at + rows] = each.end - 1
                continue
            first, stop = max(each.start, start), min(each.end, start + rows)
            if first >= stop:
                continue
            here = slice(at + first - start, at + stop - start)
            taken = each.features.rows[first - each.start : stop - each.start]
            if "embeds" not in more:
                more["embeds"] = np.zeros((len(tokens), taken.shape[1]), np.float32)
            tokens[here], more["embeds"][here] = -1, taken
            if each.features.together:
                more.setdefault("visible", positions + 1)[here] = stop
    return more
