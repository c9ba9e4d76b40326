"""`OffloadPolicy`: how much memory the weights of a model may take, and which of them stay there.

None keeps all weights in memory. `Budget` limits them. `PinnedHotSet` limits them and says what
must stay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from oxillama.arguments import checked_flag, named_fields, whole
from oxillama.errors import ConfigError

WeightSource = Literal["file", "direct", "mmap"]
SOURCES: tuple[WeightSource, ...] = ("file", "direct", "mmap")
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)


def _set_whole(policy: object, name: str, least: int) -> None:
    """Make a field an int; ConfigError for anything but an integer of at least `least`."""
    object.__setattr__(policy, name, whole(f"offload: {name}", getattr(policy, name), least))


def _source(value: object) -> None:
    if value not in SOURCES:
        raise ConfigError(f"offload: source: found {value!r}, wanted one of {', '.join(SOURCES)}")


@named_fields
@dataclass(frozen=True, slots=True)
class Budget:
    """The weights of a model take at most `ram_bytes` bytes of memory, including read buffers.
    Other weights are read from the model's file while a step runs.

    `source` says how the file is read: "direct" without the system's file cache, if the file system
    allows it; "file" through the cache; "mmap" through the mapping of the file.
    """

    ram_bytes: int
    source: WeightSource = "direct"

    def __post_init__(self) -> None:
        _set_whole(self, "ram_bytes", 1)
        _source(self.source)


@named_fields
@dataclass(frozen=True, slots=True)
class PinnedHotSet:
    """A budget of `ram_bytes` bytes in which some weights always stay in memory; the rest is used
    as in `Budget`.

    - `pin_embeddings`: the table of token embeddings, which is otherwise read one row per token.
    - `pin_output_head`: the matrix that makes logits.
    - `pin_last_n_layers`: all weights of the last layers.
    - `prefetch_n_ahead`: how many layers can be read ahead.
    - `source`: as in `Budget`.

    ConfigError when a model is loaded for which `ram_bytes` is too small.
    """

    ram_bytes: int
    pin_embeddings: bool = True
    pin_output_head: bool = True
    pin_last_n_layers: int = 0
    prefetch_n_ahead: int = 1
    source: WeightSource = "direct"

    def __post_init__(self) -> None:
        _set_whole(self, "ram_bytes", 1)
        _set_whole(self, "pin_last_n_layers", 0)
        _set_whole(self, "prefetch_n_ahead", 0)
        for name in ("pin_embeddings", "pin_output_head"):
            checked_flag(f"offload: {name}", getattr(self, name))
        _source(self.source)


OffloadPolicy: TypeAlias = Budget | PinnedHotSet | None
"""How much memory weights may take: None for all of them, or a `Budget` or `PinnedHotSet`."""


def parse_size(text: str) -> int:
    """Bytes of "6G", "512MiB", "1.5 GB" or "1000000": units are powers of 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"--ram-budget: found {text!r}, wanted a size like 6G, 512MiB or 1000000")
    return int(float(found[1]) * (1 << _UNITS[found[2].lower()]))


def parse_policy(text: str | None, ram_bytes: int | None) -> OffloadPolicy:
    """The policy of `--offload` and `--ram-budget`: "none", "budget", or "pinned" with what stays,
    "pinned:embeddings,head,layers=4,ahead=2"; None means "budget" if bytes are given.
    """
    kind, _, rest = (
        ("none" if ram_bytes is None else "budget", "", "") if text is None else text.partition(":")
    )
    if kind not in ("none", "budget", "pinned") or (rest and kind != "pinned"):
        raise ConfigError(
            f"--offload: found {text!r}, wanted none, budget, or "
            "pinned[:embeddings,head,layers=N,ahead=N]"
        )
    if kind == "none":
        if ram_bytes is not None:
            raise ConfigError("--offload: found 'none' and --ram-budget, wanted one of the two")
        return None
    if ram_bytes is None:
        raise ConfigError(f"--offload: found {kind} without --ram-budget, wanted a size like 6G")
    if kind == "budget":
        return Budget(ram_bytes)
    given: dict[str, int] = {"embeddings": 0, "head": 0, "layers": 0, "ahead": 1}
    for word in rest.split(",") if rest else ("embeddings", "head"):
        name, equals, number = word.partition("=")
        if (
            name not in given
            or bool(equals) != (name in ("layers", "ahead"))
            or (equals and not number.isdecimal())
        ):
            raise ConfigError(
                f"--offload: found {word!r}, wanted embeddings, head, layers=N or ahead=N"
            )
        given[name] = int(number) if equals else 1
    return PinnedHotSet(
        ram_bytes,
        pin_embeddings=bool(given["embeddings"]),
        pin_output_head=bool(given["head"]),
        pin_last_n_layers=given["layers"],
        prefetch_n_ahead=given["ahead"],
    )
