"""`TemplateText`: a string that knows which of its characters came from messages.

A chat template writes control tokens, and it writes text from users, tools and documents. In the
rendered text both look alike, so the origin of each character is recorded while the template runs:
one mark per character, kept by every operation that a template can use. If an operation cannot be
followed, its whole result is marked. `TokenizerBridge.encode` then recognises control tokens only
in characters without marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from string import Formatter
from typing import Any, SupportsIndex

_TEMPLATE, _MESSAGE = b"\0", b"\1"
_PERCENT = re.compile(r"%(?:\((?P<key>[^)]*)\))?[-+ #0]*\d*(?:\.\d+)?[hlL]?(?P<kind>[a-zA-Z%])")


class TemplateText(str):
    """Text with `marks`, one byte per character: 1 if the character came from a message, 0 if the
    template wrote it.

    Every method of `str` that returns text keeps the marks. An operation that does not (an
    f-string, `"".join`) gives a plain `str`, in which nothing is known to come from a message.
    """

    __slots__ = ("marks",)
    marks: bytes

    def __new__(cls, text: str, marks: bytes) -> TemplateText:
        if len(text) != len(marks):
            raise ValueError(f"marks: found {len(marks)}, wanted {len(text)}")
        made = super().__new__(cls, text)
        made.marks = marks
        return made

    @property
    def plain(self) -> str:
        """The same text as a plain `str`, which may hold control tokens anywhere."""
        return str.__str__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return TemplateText, (self.plain, self.marks)

    def __str__(self) -> str:
        return self

    def __iter__(self) -> Iterator[str]:
        for char, mark in zip(str.__iter__(self), self.marks):
            yield from_message(char) if mark else char

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        text = super().__getitem__(key)
        if isinstance(key, slice):
            return marked(text, self.marks[key])
        return from_message(text) if self.marks[key] else text

    def __add__(self, other: str) -> str:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        return marked(super().__mul__(count), self.marks * int(count))

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        return percent_formatted(self, values)

    def __rmod__(self, text: str) -> str:
        return percent_formatted(text, self) if isinstance(text, str) else NotImplemented

    def capitalize(self) -> str:
        return changed(self, super().capitalize())

    def casefold(self) -> str:
        return changed(self, super().casefold())

    def lower(self) -> str:
        return changed(self, super().lower())

    def swapcase(self) -> str:
        return changed(self, super().swapcase())

    def title(self) -> str:
        return changed(self, super().title())

    def upper(self) -> str:
        return changed(self, super().upper())

    def expandtabs(self, tabsize: SupportsIndex = 8) -> str:
        return from_message(super().expandtabs(tabsize))

    def zfill(self, width: SupportsIndex) -> str:
        return from_message(super().zfill(width))

    def translate(self, table: Any) -> str:
        return from_message(super().translate(table))

    def center(self, width: SupportsIndex, fillchar: str = " ") -> str:
        return self._padded(str.center, width, fillchar)

    def ljust(self, width: SupportsIndex, fillchar: str = " ") -> str:
        return self._padded(str.ljust, width, fillchar)

    def rjust(self, width: SupportsIndex, fillchar: str = " ") -> str:
        return self._padded(str.rjust, width, fillchar)

    def _padded(self, pad: Callable[..., str], width: SupportsIndex, fill: str) -> str:
        made = pad(self.plain, width, plain(fill))
        before = max(pad("x" * len(self), width, " ").find("x"), 0)
        after = len(made) - len(self) - before
        mark = marks_of(fill)
        return marked(made, mark * before + self.marks + mark * after)

    def format(self, *args: Any, **kwargs: Any) -> str:
        return formatted(Formatter(), self, args, kwargs)

    def format_map(self, mapping: Mapping[str, Any]) -> str:  # type: ignore[override]
        return formatted(Formatter(), self, (), mapping)

    def join(self, parts: Iterable[str]) -> str:
        pieces = [piece for part in parts for piece in (self, part)]
        return concat(pieces[1:])

    def lstrip(self, chars: str | None = None) -> str:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None) -> str:
        return self[: len(super().rstrip(chars))]

    def strip(self, chars: str | None = None) -> str:
        start = len(self) - len(super().lstrip(chars))
        return self[start : start + len(super().strip(chars))]

    def removeprefix(self, prefix: str) -> str:
        return self[len(self) - len(super().removeprefix(prefix)) :]

    def removesuffix(self, suffix: str) -> str:
        return self[: len(super().removesuffix(suffix))]

    def partition(self, sep: str) -> tuple[str, str, str]:
        at = self.find(sep)
        super().partition(sep)  # for its errors
        return (self, "", "") if at < 0 else self._parted(at, len(sep))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        at = self.rfind(sep)
        super().rpartition(sep)
        return ("", "", self) if at < 0 else self._parted(at, len(sep))

    def _parted(self, at: int, size: int) -> tuple[str, str, str]:
        return self[:at], self[at : at + size], self[at + size :]

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:  # type: ignore[override]
        if not old:
            most = len(self) + 1 if int(count) < 0 else min(int(count), len(self) + 1)
            pieces = [piece for char in self[: most - 1] for piece in (new, char)] if most else []
            return concat((*pieces, *((new,) if most else ()), self[max(most - 1, 0) :]))
        text, mark = self.plain, marks_of(new)
        parts = text.split(plain(old), int(count))
        if self.marks.count(_MESSAGE) == len(text):
            marks = mark.join(_MESSAGE * len(part) for part in parts)
        else:
            ends = accumulate(len(part) + len(old) for part in parts)
            marks = mark.join(
                self.marks[end - len(old) - len(part) : end - len(old)]
                for part, end in zip(parts, ends)
            )
        return marked(plain(new).join(parts), marks)

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:  # type: ignore[override]
        return self._located(super().split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:  # type: ignore[override]
        return self._located(super().rsplit(sep, maxsplit), sep)

    def _located(self, parts: Iterable[str], sep: str | None) -> list[str]:
        """The parts of a split, each with the marks of its place: separators are as long as `sep`,
        or white space that no part begins with.
        """
        out, at = [], 0
        for part in parts:
            at = self.find(part, at) if sep is None else at
            out.append(self[at : at + len(part)])
            at += len(part) + (0 if sep is None else len(sep))
        return out

    def splitlines(self, keepends: bool = False) -> list[str]:  # type: ignore[override]
        out, at = [], 0
        for line, whole in zip(super().splitlines(keepends), super().splitlines(True)):
            out.append(self[at : at + len(line)])
            at += len(whole)
        return out


def marks_of(text: str) -> bytes:
    """The marks of a text; a plain `str` has none."""
    return text.marks if isinstance(text, TemplateText) else _TEMPLATE * len(text)


def plain(text: str) -> str:
    """The text as a plain `str`."""
    return text.plain if isinstance(text, TemplateText) else text


def marked(text: str, marks: bytes) -> str:
    """The text with these marks; a plain `str` where there are none."""
    return TemplateText(text, marks) if _MESSAGE in marks else plain(text)


def from_message(text: str) -> str:
    """The text, all of it marked as a message's."""
    return TemplateText(text, _MESSAGE * len(text)) if text else ""


def concat(parts: Iterable[str]) -> str:
    """The parts, joined."""
    pieces = list(parts)
    text = "".join(pieces)
    if not any(isinstance(piece, TemplateText) for piece in pieces):
        return text
    return marked(text, b"".join(map(marks_of, pieces)))


def changed(source: str, made: str) -> str:
    """The results of an operation on each character of a text, in order; marked completely if the
    lengths do not show which came from which.
    """
    if not isinstance(source, TemplateText):
        return made
    return marked(made, source.marks) if len(made) == len(source) else from_message(made)


_MOST = 1 << 20  # values looked at; more are taken for a message's


def holds_message(value: Any, *, known: tuple[type, ...] = ()) -> bool:
    """Whether writing a value may write text of a message: part of it is marked, or it is an object
    of an unknown type (`known`: further types whose text is the template's).
    """
    waiting = [value]
    for _ in range(_MOST):
        if not waiting or len(waiting) > _MOST:
            break
        one = waiting.pop()
        if isinstance(one, TemplateText):
            return True
        if one is None or isinstance(one, (str, int, float, range, *known)):
            continue
        if isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += one
        else:
            return True
    return bool(waiting)


def percent_formatted(text: str, values: Any) -> str:
    """`text % values`; each field has the marks of its value."""
    plainly = plain(text)
    made = plainly % (values if isinstance(values, (tuple, Mapping)) else (values,))
    if isinstance(text, TemplateText) or not holds_message(values):
        return from_message(made) if isinstance(text, TemplateText) else made
    given = iter(values if isinstance(values, tuple) else (values,))
    pieces, at = [], 0
    for found in _PERCENT.finditer(plainly):
        pieces.append(plainly[at : found.start()])
        at = found.end()
        if found["kind"] == "%":
            pieces.append("%")
            continue
        if found["key"] is None:
            value = next(given, None)
            piece = found.group() % (value,)
        else:
            value = values[found["key"]]
            piece = found.group() % {found["key"]: value}
        pieces.append(_field(piece, value))
    return _checked(concat((*pieces, plainly[at:])), made)


def formatted(
    formatter: Formatter, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """The result of a formatter on `text`, like `str.format`; each field has the marks of its
    value.
    """
    plainly = plain(text)
    made = plain(formatter.vformat(plainly, args, kwargs))
    if isinstance(text, TemplateText):
        return from_message(made)
    if not holds_message((args, kwargs)):
        return made
    pieces, number = [], 0
    for literal, field, spec, conversion in formatter.parse(plainly):
        pieces.append(literal)
        if field is None:
            continue
        if not field or field[0] in ".[":
            field, number = f"{number}{field}", number + 1
        value, _ = formatter.get_field(field, args, kwargs)
        ending = (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        piece = formatter.vformat(f"{{{field}{ending}}}", args, kwargs)
        pieces.append(_field(plain(piece), value))
    return _checked(concat(pieces), made)


def _field(piece: str, value: Any) -> str:
    """A formatted field with the marks of its value."""
    if isinstance(value, TemplateText) and value.plain == piece:
        return value
    return from_message(piece) if holds_message(value) else piece


def _checked(pieced: str, made: str) -> str:
    """The result made piece by piece, if it equals the result of the whole."""
    return pieced if plain(pieced) == made else from_message(made)
