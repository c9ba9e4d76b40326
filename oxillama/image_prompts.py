"""Prompts with images: a conversation is rendered with a marker for each image, and its text is
tokenised around the features that replace the markers.

    messages --split_images--> marks, images --render--> text, places --prompt--> ImagePrompt
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.errors import EngineError, ImageError, ModelError, TemplateError
from oxillama.tokenizer import TemplateText, TokenizerBridge
from oxillama.tokenizer.provenance import concat
from oxillama.vision import Vision
from oxillama.vision.encoder import Pieces
from oxillama.vision.messages import ImagePart, flattened, placeholders
from oxillama.vision.placed import ImagePrompt

Places = list[tuple[int, int]]


def no_encoder(name: str) -> EngineError:
    """The error for an image if the engine has no encoder."""
    return EngineError(
        f"{name}: found an image, this engine was loaded without mmproj, wanted mmproj= the file "
        "of its encoder or the folder of its model"
    )


@dataclass(frozen=True, slots=True)
class ImagePrompts:
    """Makes prompts with images for one model; open: gives its encoder; max_images: the most images
    of a prompt.
    """

    open: Callable[[], Vision]
    bridge: TokenizerBridge
    max_images: int

    @property
    def vision(self) -> Vision:
        """The encoder, opened by now. ModelError for a vocabulary that lacks the family's token."""
        made = self.open()
        needed = made.image_tokens.needed
        if needed and self.bridge.token_to_id(needed) is None:
            raise ModelError(
                f"mmproj: {made.encoder.kind} marks images by {needed!r}, wanted a vocabulary "
                "with this token"
            )
        return made

    def check_count(self, images: Sequence[ImagePart]) -> None:
        """Raise ImageError for more images than a prompt can have."""
        if len(images) > self.max_images:
            raise ImageError(
                f"{images[self.max_images].name}: found {len(images)} images, wanted at most "
                f"{self.max_images} (max_images)"
            )

    def render(
        self,
        messages: Sequence[Any],
        images: Sequence[ImagePart],
        render: Callable[[Sequence[Any]], TemplateText],
    ) -> tuple[TemplateText, Places]:
        """(the conversation as `render` writes it, the positions of the images). messages: those of
        `split_images`. A template without support for images gets only texts, with a marker for
        each image.
        """
        self.check_count(images)
        try:
            text = render(messages)
            places = placeholders(text, self.vision.image_tokens.placeholders)
        except TemplateError:
            places = []
        if len(places) == len(images):
            return text, places
        # random, so that no message can contain the marks
        secret = secrets.token_hex(8)
        marks = [f"<image {secret} {number}>" for number in range(len(images))]
        joint = self.vision.image_tokens.joint
        text = render(flattened(messages, marks.__getitem__, joint))
        at = [text.find(mark) for mark in marks]
        if min(at) < 0 or at != sorted(at):
            raise TemplateError(
                f"chat template: wrote {sum(each >= 0 for each in at)} of {len(images)} images in "
                "order, wanted all of them"
            )
        return text, [(start, start + len(mark)) for start, mark in zip(at, marks)]

    def prompt(
        self,
        text: TemplateText,
        places: Places,
        images: Sequence[ImagePart],
        *,
        parse_special: bool = False,
    ) -> ImagePrompt:
        """The tokens of a rendered conversation with its images in their positions."""
        parts: list[str | Pieces] = []
        at = 0
        for (start, stop), image in zip(places, images):
            parts += [text[at:start], self.vision.pieces(image.source, name=image.name)]
            at = stop
        parts.append(text[at:])
        return self.compose(parts, parse_special=parse_special)

    def compose(
        self, parts: Iterable[str | list[int] | Pieces], *, parse_special: bool = False
    ) -> ImagePrompt:
        """The prompt of texts, token ids and images in order, these after their number where the
        family has one. Adjacent texts are tokenised as one; parse_special: recognise control
        tokens also in text from messages.
        """
        made, waiting = ImagePrompt(), list[str]()
        token = self.bridge.token_to_id(self.vision.image_tokens.token)
        token = 0 if token is None else token  # what marks a row is never evaluated
        numbered, count = self.vision.image_tokens.numbered, 0

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
            if numbered:
                waiting.append(numbered.format(count))
                count += 1
            for piece in part:
                if isinstance(piece, str):
                    waiting.append(piece)
                else:
                    flush()
                    made.add(piece, token)
        flush()
        return made
