"""Prompts with images and audio: a conversation is rendered with a marker for each image and clip,
and its text is tokenised around the features that replace the markers.

    messages --split_media--> marks, media --render--> text, places --prompt--> ImagePrompt
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxillama.arguments import checked_ids
from oxillama.audio import Hearing
from oxillama.errors import AudioError, EngineError, ImageError, ModelError, TemplateError
from oxillama.media.features import Kind
from oxillama.media.messages import (
    MEDIA_TYPES,
    MediaPart,
    Place,
    flattened,
    media_part,
    placeholders,
)
from oxillama.media.piece_cache import Pieces
from oxillama.media.placement import NAMES
from oxillama.media.prompt import ImagePrompt
from oxillama.media.tokens import MediaTokens
from oxillama.tokenizer import TemplateText, TokenizerBridge
from oxillama.tokenizer.provenance import concat
from oxillama.vision import Vision

Places = list[Place]
# the error for too many of a kind, what they are, and the option that limits them
_COUNTED: dict[Kind, tuple[type[ImageError] | type[AudioError], str, str]] = {
    "image": (ImageError, "images", "max_images"),
    "audio": (AudioError, "clips of audio", "max_audio_clips"),
}


@dataclass(frozen=True, slots=True)
class Media:
    """The encoders of a model; unheard: why there is none of audio though the file has one."""

    vision: Vision | None = None
    hearing: Hearing | None = None
    unheard: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """The pieces of one image or clip."""

    kind: Kind
    pieces: Pieces


def no_encoder(kind: Kind, name: str, *, other: bool = False) -> EngineError:
    """The error for an image or a clip if the engine has no encoder of its kind; other: whether it
    has one of the other kind.
    """
    alone = "images" if kind == "audio" else "audio"
    how = f"has an encoder of {alone} alone" if other else "was loaded without mmproj"
    return EngineError(
        f"{name}: found {NAMES[kind]}, this engine {how}, wanted mmproj= the file of its encoder "
        "or the folder of its model"
    )


@dataclass(frozen=True, slots=True)
class MediaPrompts:
    """Makes prompts with images and audio for one model; open: gives its encoders; kinds: what
    these encode; most: the most images and clips of a prompt.
    """

    open: Callable[[], Media]
    bridge: TokenizerBridge
    kinds: frozenset[Kind]
    most: Mapping[Kind, int]

    @property
    def vision(self) -> Vision:
        """The encoder of images, opened by now. ModelError for a vocabulary that lacks the family's
        token.
        """
        made = self.open().vision
        if made is None:
            raise self._lacking("image", "image")
        self._check_needed(made.image_tokens, made.encoder.kind, "images")
        return made

    @property
    def hearing(self) -> Hearing:
        """The same of audio."""
        made = self.open().hearing
        if made is None:
            raise self._lacking("audio", "audio")
        self._check_needed(made.audio_tokens, made.encoder.kind, "audio")
        return made

    def _lacking(self, kind: Kind, name: str) -> EngineError:
        """The error for an image or a clip where the engine has an encoder of the other kind."""
        unheard = self.open().unheard if kind == "audio" else ""
        return EngineError(f"{name}: {unheard}") if unheard else no_encoder(kind, name, other=True)

    def _check_needed(self, tokens: MediaTokens, kind: str, what: str) -> None:
        if tokens.needed and self.bridge.token_to_id(tokens.needed) is None:
            raise ModelError(
                f"mmproj: {kind} marks {what} by {tokens.needed!r}, wanted a vocabulary with this "
                "token"
            )

    def tokens(self, kind: Kind) -> MediaTokens:
        """How prompts hold what is of a kind."""
        return self.vision.image_tokens if kind == "image" else self.hearing.audio_tokens

    def encoded(self, part: MediaPart) -> Part:
        """The pieces of an image or a clip."""
        encoder = self.vision if part.kind == "image" else self.hearing
        return Part(part.kind, encoder.pieces(part.source, name=part.name))

    def check(self, parts: Sequence[MediaPart]) -> None:
        """Raise EngineError for what there is no encoder for, ImageError or AudioError for more
        than a prompt can have.
        """
        for kind, (error, what, option) in _COUNTED.items():
            found, limit = [each for each in parts if each.kind == kind], self.most[kind]
            if found and kind not in self.kinds:
                raise self._lacking(kind, found[0].name)
            if len(found) > limit:
                raise error(
                    f"{found[limit].name}: found {len(found)} {what}, wanted at most {limit} "
                    f"({option})"
                )

    def render(
        self,
        messages: Sequence[Any],
        media: Sequence[MediaPart],
        render: Callable[[Sequence[Any]], TemplateText],
    ) -> tuple[TemplateText, Places]:
        """(the conversation as `render` writes it, the places of images and clips). messages: those
        of `split_media`. A template without support for them gets only texts, with a marker for
        each.
        """
        self.check(media)
        kinds = [each.kind for each in media]
        words = {kind: self.tokens(kind).placeholders for kind in dict.fromkeys(kinds)}
        try:
            text = render(messages)
            places = placeholders(text, words)
        except TemplateError:
            places = []
        if [each.kind for each in places] == kinds:
            return text, places
        # random, so that no message can contain the marks
        secret = secrets.token_hex(8)
        marks = [f"<{each.kind} {secret} {number}>" for number, each in enumerate(media)]
        joint = self.tokens(kinds[0]).joint
        text = render(flattened(messages, marks.__getitem__, joint))
        at = [text.find(mark) for mark in marks]
        if min(at) < 0 or at != sorted(at):
            what = "images" if set(kinds) == {"image"} else "images and clips"
            raise TemplateError(
                f"chat template: wrote {sum(each >= 0 for each in at)} of {len(media)} {what} in "
                "order, wanted all of them"
            )
        return text, [
            Place(start, start + len(mark), kind) for start, mark, kind in zip(at, marks, kinds)
        ]

    def prompt(
        self,
        text: TemplateText,
        places: Places,
        media: Sequence[MediaPart],
        *,
        parse_special: bool = False,
    ) -> ImagePrompt:
        """The tokens of a rendered conversation with its images and clips in their places."""
        parts: list[str | Part] = []
        at = 0
        for place, each in zip(places, media):
            parts += [text[at : place.start], self.encoded(each)]
            at = place.stop
        parts.append(text[at:])
        return self.compose(parts, parse_special=parse_special)

    def of_parts(self, parts: Iterable[Any], kind: Kind, *, vocab_size: int) -> ImagePrompt:
        """The prompt of what `InferenceEngine.image_prompt` and `audio_prompt` take. kind: what
        parts are that are no texts, token ids or parts of messages.
        """
        given: list[str | list[int] | MediaPart] = []
        for at, part in enumerate(parts):
            named = f"parts[{at}]"
            if isinstance(part, str):
                given.append(part)
            elif isinstance(part, (list, tuple)) and not _is_clip(part):
                given.append(checked_ids(part, vocab_size, name=named))
            elif isinstance(part, Mapping) and part.get("type") in MEDIA_TYPES:
                given.append(media_part(part, named))
            else:
                given.append(MediaPart(kind, named, part))
        self.check([part for part in given if isinstance(part, MediaPart)])
        made: list[str | list[int] | Part] = [
            self.encoded(part) if isinstance(part, MediaPart) else part for part in given
        ]
        lead = self.bridge.lead_ids
        if made and isinstance(made[0], str) and lead:
            made.insert(0, lead)
        return self.compose(made)

    def compose(
        self, parts: Iterable[str | list[int] | Part], *, parse_special: bool = False
    ) -> ImagePrompt:
        """The prompt of texts, token ids, images and clips in order, these after their number where
        the family has one. Adjacent texts are tokenised as one; parse_special: recognise control
        tokens also in text from messages.
        """
        made, waiting = ImagePrompt(), list[str]()
        counts = Counter[Kind]()

        def flush() -> None:
            text = concat(waiting)
            waiting.clear()
            if text:
                plain = text.plain if parse_special and isinstance(text, TemplateText) else text
                made.extend(self.bridge.encode(plain, add_special=False))

        for part in parts:
            if isinstance(part, str):
                waiting.append(part)
                continue
            if isinstance(part, list):
                flush()
                made.extend(part)
                continue
            tokens = self.tokens(part.kind)
            # what marks a row is never evaluated
            token = self.bridge.token_to_id(tokens.token) or 0
            if tokens.numbered:
                waiting.append(tokens.numbered.format(counts[part.kind]))
                counts[part.kind] += 1
            for piece in part.pieces:
                if isinstance(piece, str):
                    waiting.append(piece)
                else:
                    flush()
                    made.add(piece, token)
        flush()
        return made


def _is_clip(part: Any) -> bool:
    """Whether a part of a prompt is a pair of samples and their rate, not token ids."""
    return isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], np.ndarray)
