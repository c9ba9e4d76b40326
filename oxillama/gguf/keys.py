"""Typed, bounded access to a model's hyper-parameters: each question names the key, the type and
the range it accepts.

`Keys(metadata)` adds the file's architecture as a prefix (`attention.head_count` is looked up as
`llama.attention.head_count`); `keys.root` takes whole names (`general.name`). A value that is
missing, of another type, not finite or out of range raises a ModelError with the key, the value
found and the value wanted.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from oxillama.errors import ModelError

_ARCHITECTURE = re.compile(r"[a-z0-9_.-]+")
_INT32_MAX = 2**31 - 1


class _Required:
    """The default of a key that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()


def architecture(metadata: Mapping[str, Any]) -> str:
    """The file's `general.architecture`; raises ModelError unless it is a plain name of `a-z 0-9 _
    . -`.
    """
    name = metadata.get("general.architecture")
    if name is None:
        raise ModelError("general.architecture: missing, wanted the name of an architecture")
    return checked_architecture(name)


# files that are no models, by `general.architecture` or else by `general.type`
_KINDS = {
    "clip": "the file of an encoder of images or sound (mmproj)",
    "mmproj": "the file of an encoder of images or sound (mmproj)",
    "adapter": "an adapter",
    "imatrix": "an importance matrix",
    "controlvector": "a control vector",
}


def file_kind(metadata: Mapping[str, Any]) -> str:
    """What a file is by its keys, for an error about one in another's place."""
    found = [metadata.get(f"general.{name}") for name in ("architecture", "type")]
    arch, kind = (one if isinstance(one, str) else None for one in found)
    for name in (arch, kind):
        if name in _KINDS:
            return _KINDS[name]
    if kind not in (None, "model"):
        return f"a file of type {kind!r:.60}"
    return "a file without an architecture" if arch is None else f"a model ({arch:.60})"


def checked_architecture(name: Any) -> str:
    """`name` itself; raises ModelError unless it is a plain name of `a-z 0-9 _ . -`."""
    if not isinstance(name, str) or not _ARCHITECTURE.fullmatch(name) or ".." in name:
        raise ModelError(
            f"general.architecture: found {_shown(name)}, wanted a name of a-z, 0-9, '_', '.' and "
            "'-'"
        )
    return name


class Keys:
    """A view of `metadata` under the prefix of one architecture (`arch`, by default the file's own;
    "" for whole names).

    Every method takes a key without the prefix, and a `default` that is returned unchecked if the
    file lacks the key. Without a default a missing key raises ModelError.
    """

    __slots__ = ("arch", "metadata", "read")

    def __init__(
        self,
        metadata: Mapping[str, Any],
        arch: str | None = None,
        *,
        read: set[str] | None = None,
    ):
        self.metadata = metadata
        # whole names of the keys whose values were asked for
        self.read: set[str] = set() if read is None else read
        self.arch = (
            architecture(metadata) if arch is None else checked_architecture(arch) if arch else ""
        )

    @property
    def root(self) -> "Keys":
        """The same metadata, under whole names."""
        return Keys(self.metadata, "")

    def name(self, key: str) -> str:
        """The whole name of `key`."""
        return f"{self.arch}.{key}" if self.arch else key

    def __contains__(self, key: str) -> bool:
        return self.name(key) in self.metadata

    def integer(
        self, key: str, *, minimum: int = 0, maximum: int = _INT32_MAX, default: Any = REQUIRED
    ) -> int:
        """An integer from `minimum` to `maximum`, both included."""
        if self._absent(key, default, f"an integer from {minimum} to {maximum}"):
            return default
        return self._integer(key, self._value(key), minimum, maximum)

    def number(
        self,
        key: str,
        *,
        minimum: float = -math.inf,
        maximum: float = math.inf,
        default: Any = REQUIRED,
    ) -> float:
        """A finite number from `minimum` to `maximum`, both included; an integer in the file counts
        as one.
        """
        if self._absent(key, default, _range("a finite number", minimum, maximum)):
            return default
        return self._number(key, self._value(key), minimum, maximum)

    def flag(self, key: str, *, default: Any = REQUIRED) -> bool:
        """A boolean."""
        return (
            default
            if self._absent(key, default, "a boolean")
            else self._flag(key, self._value(key))
        )

    def text(
        self, key: str, *, choices: Sequence[str] | None = None, default: Any = REQUIRED
    ) -> str:
        """A string, one of `choices` if they are given."""
        wanted = "a string" if choices is None else f"one of {', '.join(choices)}"
        if self._absent(key, default, wanted):
            return default
        value = self._value(key)
        if not isinstance(value, str) or (choices is not None and value not in choices):
            raise self._wrong(key, value, wanted)
        return value

    def integers(
        self,
        key: str,
        *,
        count: int | None = None,
        minimum: int = 0,
        maximum: int = _INT32_MAX,
        default: Any = REQUIRED,
    ) -> tuple[int, ...]:
        """An array of `count` (any number where it is None) integers from `minimum` to
        `maximum`.
        """
        if self._absent(key, default, _array_of("integers", count)):
            return default
        return tuple(
            self._integer(key, item, minimum, maximum)
            for item in self._items(key, "integers", count)
        )

    def numbers(
        self,
        key: str,
        *,
        count: int | None = None,
        minimum: float = -math.inf,
        maximum: float = math.inf,
        default: Any = REQUIRED,
    ) -> tuple[float, ...]:
        """An array of `count` (any number where it is None) finite numbers from `minimum` to
        `maximum`.
        """
        if self._absent(key, default, _array_of("numbers", count)):
            return default
        return tuple(
            self._number(key, item, minimum, maximum) for item in self._items(key, "numbers", count)
        )

    def flags(
        self, key: str, *, count: int | None = None, default: Any = REQUIRED
    ) -> tuple[bool, ...]:
        """An array of `count` (any number where it is None) booleans."""
        if self._absent(key, default, _array_of("booleans", count)):
            return default
        return tuple(self._flag(key, item) for item in self._items(key, "booleans", count))

    def texts(
        self, key: str, *, count: int | None = None, default: Any = REQUIRED
    ) -> tuple[str, ...]:
        """An array of `count` (any number where it is None) strings."""
        wanted = _array_of("strings", count)
        if self._absent(key, default, wanted):
            return default
        items = self._items(key, "strings", count)
        if not all(isinstance(item, str) for item in items):
            raise self._wrong(key, items, wanted)
        return tuple(items)

    def per_layer(
        self,
        key: str,
        layers: int,
        *,
        minimum: int = 0,
        maximum: int = _INT32_MAX,
        default: Any = REQUIRED,
    ) -> tuple[int, ...]:
        """One integer for each of `layers`: the file's array of that length, or its single value
        (or `default`) for every layer.
        """
        if self._absent(key, default, f"an integer, or an array of {layers}"):
            return (default,) * layers
        if _is_array(self._value(key)):
            return self.integers(key, count=layers, minimum=minimum, maximum=maximum)
        return (self.integer(key, minimum=minimum, maximum=maximum),) * layers

    def _absent(self, key: str, default: Any, wanted: str) -> bool:
        """Whether the file lacks `key`; ModelError if it has no default either."""
        absent = key not in self
        if absent and default is REQUIRED:
            raise ModelError(f"{self.name(key)}: missing, wanted {wanted}")
        return absent

    def _value(self, key: str) -> Any:
        name = self.name(key)
        self.read.add(name)
        return self.metadata[name]

    def _items(self, key: str, what: str, count: int | None) -> Sequence[Any]:
        value = self._value(key)
        if not _is_array(value) or (count is not None and len(value) != count):
            raise self._wrong(key, value, _array_of(what, count))
        return value.tolist() if isinstance(value, np.ndarray) else value

    def _flag(self, key: str, value: Any) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            raise self._wrong(key, value, "a boolean")
        return bool(value)

    def _integer(self, key: str, value: Any, minimum: int, maximum: int) -> int:
        if (
            not isinstance(value, (int, np.integer))
            or isinstance(value, bool)
            or not minimum <= value <= maximum
        ):
            raise self._wrong(key, value, f"an integer from {minimum} to {maximum}")
        return int(value)

    def _number(self, key: str, value: Any, minimum: float, maximum: float) -> float:
        real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(
            value, bool
        )
        if not real or not math.isfinite(value) or not minimum <= value <= maximum:
            raise self._wrong(key, value, _range("a finite number", minimum, maximum))
        return float(value)

    def _wrong(self, key: str, value: Any, wanted: str) -> ModelError:
        return ModelError(f"{self.name(key)}: found {_shown(value)}, wanted {wanted}")


def _is_array(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray))


def _array_of(what: str, count: int | None) -> str:
    return f"an array of {what}" if count is None else f"an array of {count} {what}"


def _range(what: str, minimum: float, maximum: float) -> str:
    low = "" if minimum == -math.inf else f" at least {minimum:g}"
    high = "" if maximum == math.inf else f" at most {maximum:g}"
    return f"{what}{low}{' and' if low and high else ''}{high}"


def _shown(value: Any) -> str:
    """`value` on one short line."""
    if _is_array(value):
        return f"an array of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
