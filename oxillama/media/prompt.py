"""`ImagePrompt`: token ids with the images and the audio among them, as one list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from oxillama.arguments import checked_ids, listable
from oxillama.errors import ConfigError, ContextError
from oxillama.media.features import MediaFeatures
from oxillama.media.placement import PlacedMedia, check_boundary, moved, of_kind


class ImagePrompt(list[int]):
    """Token ids of a prompt, and the images and the audio among them (`media`); a slice and a sum
    have those of their tokens, `list(prompt)` is the ids alone.
    """

    __slots__ = ("media",)

    def __init__(self, ids: Iterable[int] = (), media: Iterable[PlacedMedia] = ()) -> None:
        super().__init__(checked_ids(ids, name="ids", wanted="token ids", media=True))
        self.media: tuple[PlacedMedia, ...] = tuple(media) if listable(media) else ()
        if not listable(media) or not all(isinstance(each, PlacedMedia) for each in self.media):
            raise ConfigError(f"media: found {media!r:.50}, wanted a list of PlacedMedia")

    @property
    def images(self) -> tuple[PlacedMedia, ...]:
        """The images among them."""
        return of_kind(self.media, "image")

    @property
    def audio(self) -> tuple[PlacedMedia, ...]:
        """The clips of audio among them."""
        return of_kind(self.media, "audio")

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice):
            return super().__getitem__(key)
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise ContextError(
                f"prompt: found a slice of step {step}, wanted 1: it has images or audio"
            )
        for position in (start, stop):
            check_boundary(self.media, position, "slice of a prompt")
        inside = (each for each in self.media if start <= each.start and each.end <= stop)
        return ImagePrompt(super().__getitem__(key), moved(inside, -start))

    def __add__(self, other: Any) -> ImagePrompt:  # type: ignore[override]
        return ImagePrompt(
            super().__add__(other), (*self.media, *moved(media_of(other), len(self)))
        )

    def __radd__(self, other: list[int]) -> ImagePrompt:
        return ImagePrompt(other) + self

    def __iadd__(self, other: Iterable[int]) -> ImagePrompt:  # type: ignore[override,misc]
        self.extend(other)
        return self

    def extend(self, more: Iterable[int]) -> None:
        """Append tokens, and the images and audio of another prompt."""
        media = moved(more.media, len(self)) if isinstance(more, ImagePrompt) else ()
        super().extend(more)
        if media:  # none in what is unpickled: its own come last
            self.media += media

    def copy(self) -> ImagePrompt:
        """A prompt of the same tokens, images and audio."""
        return ImagePrompt(self, self.media)

    def add(self, features: MediaFeatures, token: int) -> None:
        """Append an image or a clip; `token` marks its rows."""
        _ = features.digest  # hashed here, not in the loop
        self.media = (*self.media, PlacedMedia(len(self), features))
        super().extend([token] * len(features))

    def _fixed(self, *_: Any, **__: Any) -> Any:
        raise ContextError(
            "prompt: has images or audio, which stay with their tokens, wanted a slice, a sum or "
            "an append"
        )

    __setitem__ = __delitem__ = __mul__ = __rmul__ = __imul__ = _fixed
    insert = pop = remove = reverse = sort = clear = _fixed


def media_of(prompt: Sequence[int] | None) -> tuple[PlacedMedia, ...]:
    """The images and audio of a prompt; empty for plain token ids."""
    return prompt.media if isinstance(prompt, ImagePrompt) else ()
