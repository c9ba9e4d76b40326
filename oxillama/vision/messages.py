"""Images within the messages of a chat: the parts that hold them, and where a template writes them.

Parts are OpenAI's, `{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}`,
those of its Responses API (`input_image`), and `{"type": "image", "image": ...}` with anything that
`reading` takes. In place of each a template is given `{"type": "image"}`. A part's `at` is what
errors call it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.errors import ImageError
from oxillama.tokenizer.provenance import marks_of, plain

IMAGE_TYPES = ("image", "image_url", "input_image")
_OTHERS = (
    "audio",
    "audio_url",
    "input_audio",
    "video",
    "video_url",
    "input_video",
    "file",
    "input_file",
)


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image of a message, under the name that errors have for it."""

    name: str
    source: Any


def split_images(
    messages: Iterable[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[ImagePart]]:
    """(messages with a plain mark in place of each image, the images in order). ImageError for a
    part that holds none where it says one, or holds sound, video or a file.
    """
    made: list[Mapping[str, Any]] = []
    found: list[ImagePart] = []
    for at, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, (list, tuple)):
            made.append(message)
            continue
        parts = []
        for index, part in enumerate(content):
            name = f"messages[{at}].content[{index}]"
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in _OTHERS:
                raise ImageError(f"{name}: found a part of type {kind!r}, wanted text or an image")
            if kind in IMAGE_TYPES:
                name = part.get("at") or name
                found.append(ImagePart(name, _source(part, name)))
                part = {"type": "image"}
            parts.append(part)
        made.append({**message, "content": parts})
    return made, found


def _source(part: Mapping[str, Any], name: str) -> Any:
    """What a part says its image is."""
    for key in ("image_url", "image", "url", "path"):
        if part.get(key) is not None:
            value = part[key]
            if isinstance(value, Mapping):
                value = value.get("url")
            if value is not None:
                return value
    raise ImageError(f"{name}: found keys {sorted(map(str, part))}, wanted image_url with a url")


def flattened(
    messages: Iterable[Mapping[str, Any]], mark: Callable[[int], str], joint: str = ""
) -> list[Any]:
    """Messages whose content is text, with `mark(number)` in the place of each image and `joint`
    between the parts.
    """
    count, made = 0, []
    for message in messages:
        content = message.get("content")
        if not isinstance(content, list):
            made.append(message)
            continue
        pieces = []
        for part in content:
            if isinstance(part, Mapping) and part.get("type") == "image":
                pieces.append(mark(count))
                count += 1
            else:
                pieces.append(str(part.get("text", "")) if isinstance(part, Mapping) else str(part))
        made.append({**message, "content": joint.join(pieces)})
    return made


def text_of(content: Any) -> str:
    """The text of a message's content, without its images."""
    if not isinstance(content, list):
        return content or ""
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))


def placeholders(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """(start, stop) of each of the words in a text, the first that fits, where a template wrote it
    and no message did.
    """
    marks = marks_of(text)
    pattern = re.compile("|".join(map(re.escape, words)))
    return [
        match.span()
        for match in pattern.finditer(plain(text))
        if not any(marks[slice(*match.span())])
    ]
