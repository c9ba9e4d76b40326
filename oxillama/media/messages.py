"""Images and audio within the messages of a chat: the parts that hold them, and where a template
writes them.

Parts are OpenAI's, `{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}` and
`{"type": "input_audio", "input_audio": {"data": "...", "format": "wav"}}`, those of its Responses
API (`input_image`), vLLM's `audio_url`, and `{"type": "image", "image": ...}` and `{"type":
"audio", "audio": ...}` with anything that is read (`vision.reading`, `audio.reading`). In place of
each a template is given `{"type": "image"}` or `{"type": "audio"}`. A part's `at` is what errors
call it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.errors import AudioError, ImageError
from oxillama.media.features import Kind
from oxillama.tokenizer.provenance import marks_of, plain

# the types of parts, and where one says what it holds
_TYPES: dict[Kind, tuple[str, ...]] = {
    "image": ("image", "image_url", "input_image"),
    "audio": ("audio", "audio_url", "input_audio"),
}
_SOURCES: dict[Kind, tuple[str, ...]] = {
    "image": ("image_url", "image", "url", "path"),
    "audio": ("audio_url", "audio", "input_audio", "url", "path"),
}
MEDIA_TYPES: dict[str, Kind] = {each: kind for kind, types in _TYPES.items() for each in types}
_OTHERS = ("video", "video_url", "input_video", "file", "input_file")


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An image or a clip of a message, under the name that errors have for it."""

    kind: Kind
    name: str
    source: Any


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text has an image or a clip in place of its characters."""

    start: int
    stop: int
    kind: Kind


def split_media(
    messages: Iterable[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[MediaPart]]:
    """(messages with a plain mark in place of each image and clip, these in order). ImageError or
    AudioError for a part that holds none where it says one, or holds video or a file.
    """
    made: list[Mapping[str, Any]] = []
    found: list[MediaPart] = []
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
                raise ImageError(
                    f"{name}: found a part of type {kind!r}, wanted text, an image or audio"
                )
            if isinstance(kind, str) and kind in MEDIA_TYPES:
                found.append(media_part(part, name))
                part = {"type": found[-1].kind}
            parts.append(part)
        made.append({**message, "content": parts})
    return made, found


def media_part(part: Mapping[str, Any], name: str) -> MediaPart:
    """An image or a clip as a part of a message says it."""
    kind, name = MEDIA_TYPES[part["type"]], part.get("at") or name
    for key in _SOURCES[kind]:
        value = part.get(key)
        if isinstance(value, Mapping) and key != "input_audio":
            value = value.get("url")
        if value is not None:
            if kind == "audio" and part.get("sampling_rate") is not None:
                value = (value, part["sampling_rate"])
            return MediaPart(kind, name, value)
    error, wanted = (
        (ImageError, "image_url with a url")
        if kind == "image"
        else (AudioError, "audio, input_audio, or audio_url with a url")
    )
    raise error(f"{name}: found keys {sorted(map(str, part))}, wanted {wanted}")


def flattened(
    messages: Iterable[Mapping[str, Any]],
    mark: Callable[[int], str],
    joint: str = "",
) -> list[Any]:
    """Messages whose content is text, with `mark(number)` in the place of each image and clip, and
    `joint` between the parts.
    """
    count, made = 0, []
    for message in messages:
        content = message.get("content")
        if not isinstance(content, list):
            made.append(message)
            continue
        pieces = []
        for part in content:
            if isinstance(part, Mapping) and part.get("type") in _TYPES:
                pieces.append(mark(count))
                count += 1
            else:
                pieces.append(str(part.get("text", "")) if isinstance(part, Mapping) else str(part))
        made.append({**message, "content": joint.join(pieces)})
    return made


def text_of(content: Any) -> str:
    """The text of a message's content, without its images and clips."""
    if not isinstance(content, list):
        return content or ""
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))


def placeholders(text: str, words: Mapping[Kind, Sequence[str]]) -> list[Place]:
    """The places of each of the words in a text, the first that fits, where a template wrote it and
    no message did.
    """
    marks = marks_of(text)
    kinds = {word: kind for kind, each in words.items() for word in each}
    pattern = re.compile("|".join(map(re.escape, kinds)))
    return [
        Place(*match.span(), kinds[match[0]])
        for match in pattern.finditer(plain(text))
        if not any(marks[slice(*match.span())])
    ]
