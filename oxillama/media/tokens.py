"""What a family of models writes around an image or a clip."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MediaTokens:
    """The tokens of a family around an image or a clip. placeholders: what its chat template writes
    for one, the longest first; token: the vocabulary's token for a row; before, after: texts around
    it; numbered: a text before these, with {} for its number among those of its kind in the prompt,
    from 0 on; needed: a token without which a vocabulary is of another family; joint: a text
    between the parts of a message, where the chat template takes only texts.
    """

    placeholders: tuple[str, ...]
    token: str
    before: str = ""
    after: str = ""
    numbered: str = ""
    needed: str = ""
    joint: str = ""
