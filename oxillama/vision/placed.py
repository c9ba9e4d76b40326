"""Images among the tokens of a session: their positions, the rotation of later rows, and the input
of a step.

    tokens   t0 t1 [f f f f f f] t8 t9       f: a token of the vocabulary, the placeholder of a row
    images         PlacedImage(2, features)  the rows that the step uses there instead

If features have positions of their own (M-RoPE), the tokens after an image continue from the
largest of them: an image of 6 x 4 rows advances a text by 6, not by 24. If some of these are fixed
(XD-RoPE), rows have a fourth position, which is that of their token in texts and the number of
images before in images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from oxillama.errors import ContextError
from oxillama.vision.features import ImageFeatures


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """Features whose first row is at token `start`."""

    start: int
    features: ImageFeatures

    @property
    def end(self) -> int:
        """The token after its last row."""
        return self.start + len(self.features)


class ImagePrompt(list[int]):
    """Token ids of a prompt, and the images among them; a slice and a sum have those of their
    tokens, `list(prompt)` is the ids alone.
    """

    __slots__ = ("images",)

    def __init__(self, ids: Iterable[int] = (), images: Iterable[PlacedImage] = ()) -> None:
        super().__init__(ids)
        self.images = tuple(images)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice):
            return super().__getitem__(key)
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise ContextError(f"prompt: found a slice of step {step}, wanted 1: it has images")
        for position in (start, stop):
            check_boundary(self.images, position, "slice of a prompt")
        inside = (each for each in self.images if start <= each.start and each.end <= stop)
        return ImagePrompt(super().__getitem__(key), moved(inside, -start))

    def __add__(self, other: Any) -> ImagePrompt:  # type: ignore[override]
        return ImagePrompt(
            super().__add__(other), (*self.images, *moved(images_of(other), len(self)))
        )

    def __radd__(self, other: list[int]) -> ImagePrompt:
        return ImagePrompt(other) + self

    def __iadd__(self, other: Iterable[int]) -> ImagePrompt:  # type: ignore[override,misc]
        self.extend(other)
        return self

    def extend(self, more: Iterable[int]) -> None:
        """Append tokens, and the images of another prompt."""
        images = moved(more.images, len(self)) if isinstance(more, ImagePrompt) else ()
        super().extend(more)
        if images:  # none in what is unpickled: its own come last
            self.images += images

    def copy(self) -> ImagePrompt:
        """A prompt of the same tokens and images."""
        return ImagePrompt(self, self.images)

    def add(self, features: ImageFeatures, token: int) -> None:
        """Append an image; `token` marks its rows."""
        _ = features.digest  # hashed here, not in the loop
        self.images = (*self.images, PlacedImage(len(self), features))
        super().extend([token] * len(features))

    def _fixed(self, *_: Any, **__: Any) -> Any:
        raise ContextError(
            "prompt: has images, which stay with their tokens, wanted a slice, a sum or an append"
        )

    __setitem__ = __delitem__ = __mul__ = __rmul__ = __imul__ = _fixed
    insert = pop = remove = reverse = sort = clear = _fixed


class HasImages(Protocol):
    """What has images among its tokens (`engine.session.Session`)."""

    images: tuple[PlacedImage, ...]


def images_of(prompt: Sequence[int] | None) -> tuple[PlacedImage, ...]:
    """The images of a prompt; empty for plain token ids."""
    return prompt.images if isinstance(prompt, ImagePrompt) else ()


def moved(images: Iterable[PlacedImage], by: int) -> tuple[PlacedImage, ...]:
    """The same images, shifted by this many tokens."""
    return tuple(replace(each, start=each.start + by) for each in images)


def identities(tokens: Sequence[int], images: Iterable[PlacedImage]) -> list[int]:
    """The tokens, with numbers below 0 in the places of images, which are equal for equal rows
    alone: what prefixes are compared by.
    """
    made = list(tokens)
    for each in images:
        # the last row may be of an image that was cut
        first = -1 - (each.features.digest << 24)
        stop = min(each.end, len(made))
        made[each.start : stop] = range(first, first - (stop - each.start), -1)
    return made


def outside(images: Iterable[PlacedImage], position: int) -> int:
    """A position that no image is cut at: the same one, or the end of the image around it."""
    for each in images:
        if each.start < position < each.end:
            return each.end
    return position


def check_boundary(images: Iterable[PlacedImage], position: int, what: str) -> None:
    """Raise ContextError for a position between the rows of an image."""
    end = outside(images, position)
    if end != position:
        raise ContextError(
            f"{what}: found {position}, which is within an image, wanted a position before it or "
            f"from {end} on"
        )


def spans_of(images: Iterable[PlacedImage]) -> tuple[tuple[int, int], ...]:
    """(start, end) of the images whose rows must be of one step."""
    return tuple((each.start, each.end) for each in images if each.features.together)


def rotations(images: Iterable[PlacedImage], start: int, rows: int, *, axes: int = 3) -> np.ndarray:
    """int32 (axes, rows): the positions that rotate the rows of tokens from `start` on; axes: 4
    where images have fixed ones.
    """
    made = np.tile(np.arange(start, start + rows, dtype=np.int32), (axes, 1))
    saved = 0  # positions that the images before take less than they have rows
    number = 0  # images with fixed positions before
    for each in images:
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
    parts: Iterable[tuple[HasImages, int, int, int]], tokens: np.ndarray, positions: np.ndarray
) -> dict[str, Any]:
    """What a batch brings for sessions with images, as keyword arguments; marks the rows of images
    in `tokens` by -1.

    parts: (session, first token, rows, first row of the step) of each such session.
    """
    parts, more = list(parts), dict[str, Any]()
    placed = [each for session, *_ in parts for each in session.images]
    if any(each.features.positions is not None for each in placed):
        axes = 4 if any(each.features.fixed for each in placed) else 3
        more["rope"] = rope = np.tile(positions, (axes, 1))
        for session, start, rows, at in parts:
            rope[:, at : at + rows] = rotations(session.images, start, rows, axes=axes)
    for session, start, rows, at in parts:
        for each in session.images:
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
