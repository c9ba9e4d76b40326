"""Finds special tokens in a text, however many there are: a few prefixes find candidates, a table
of lengths decides.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping

from oxillama.tokenizer.provenance import TemplateText, plain

_MOST_PREFIXES = 32


class SpecialTokens:
    """Texts of special tokens with their ids; `split` divides a text at them, taking the longest at
    each position.
    """

    def __init__(self, ids: Mapping[str, int], *, in_text: Container[int] = ()) -> None:
        """`in_text`: those that are found in text of messages too (see `TemplateText`)."""
        self._ids, self._in_text = ids, in_text
        size, prefixes = 4, {text[:4] for text in ids}
        # an expression of many branches is slow at every character
        while len(prefixes) > _MOST_PREFIXES and size > 1:
            size -= 1
            prefixes = {text[:size] for text in ids}
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:size], set()).add(len(text))
        self._lengths = {prefix: sorted(found, reverse=True) for prefix, found in lengths.items()}
        branches = sorted(prefixes, key=lambda text: (-len(text), text))
        self._candidate = re.compile(
            "|".join(map(re.escape, branches))
            if size > 1
            else f"[{''.join(map(re.escape, branches))}]"
        )

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Pieces of `text` in order: (text, None) for what lies between special tokens, (text, id)
        for each of them. In a `TemplateText` a token is found where no character of it came from a
        message.
        """
        marks = text.marks if isinstance(text, TemplateText) else b""
        text, done, start = plain(text), 0, 0
        while self._ids and (found := self._candidate.search(text, start)):
            start = found.start()
            token, end = self._longest(text, start, marks)
            if token is None:
                start += 1
                continue
            if done < start:
                yield text[done:start], None
            yield text[start:end], token
            done = start = end
        if done < len(text):
            yield text[done:], None

    def _longest(self, text: str, start: int, marks: bytes) -> tuple[int | None, int]:
        best: tuple[int | None, int] = None, start
        for size in range(1, 5):
            for length in self._lengths.get(text[start : start + size], ()):
                if length <= best[1] - start:
                    break
                token = self._ids.get(text[start : start + length])
                if token is not None and (
                    marks.find(1, start, start + length) < 0 or token in self._in_text
                ):
                    best = token, start + length
                    break
        return best
