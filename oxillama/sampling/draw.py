"""One draw through the compiled core, with errors that say why no token was left; and token ids as
the core takes them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from oxillama._core.sampler import SamplerCore
from oxillama.errors import SamplingError

BAD_LOGITS, NOTHING_LEFT = -1, -2


def draw(
    core: SamplerCore,
    row: np.ndarray,
    mask: np.ndarray | None,
    top: int,
    lists: Callable[[], Mapping[str, Any]],
) -> int:
    """A token id from (vocab,) float32 `row`; `lists` gives the bans and allowed tokens for error
    messages.
    """
    try:
        token = core.sample(row, mask, top)
    except (TypeError, ValueError) as error:
        raise misfit(error) from error
    if token >= 0:
        return token
    raise no_draw(token, row, mask, lists)


def misfit(error: Exception) -> SamplingError:
    """The error for a row or mask of the wrong type or shape."""
    return SamplingError(
        f"sample: {error}; wanted logits (vocab,) float32 and a mask (ceil(vocab/32),) uint32"
    )


def no_draw(
    code: int, row: np.ndarray, mask: np.ndarray | None, lists: Callable[[], Mapping[str, Any]]
) -> SamplingError:
    """The error for a result of the compiled core that is not a draw."""
    if code == BAD_LOGITS:
        where = int(np.flatnonzero(~(row <= np.finfo(np.float32).max))[0])
        return SamplingError(f"logits[{where}]: found {row[where]}, wanted finite numbers or -inf")
    return SamplingError(why_nothing(row, mask, lists()))


def token_array(name: str, ids: Sequence[int] | np.ndarray, vocab_size: int) -> np.ndarray:
    """The ids as (n,) int32; SamplingError under `name` unless all are integers below the
    vocabulary size.
    """
    try:
        array = np.asarray(ids)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(1)
    if array.size == 0:
        return np.empty(0, np.int32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise SamplingError(f"{name}: found {str(ids)[:80]!r}, wanted a list of token ids")
    bad = (array < 0) | (array >= vocab_size)
    if bad.any():
        raise SamplingError(
            f"{name}: found token {array[bad][0]}, wanted ids below the vocabulary size "
            f"{vocab_size}"
        )
    return np.ascontiguousarray(array, dtype=np.int32)


def why_nothing(row: np.ndarray, mask: np.ndarray | None, lists: Mapping[str, Any]) -> str:
    """Explains how each setting reduced the vocabulary until no token was left."""
    alive = np.isfinite(row)
    story = [f"{int(alive.sum())} of {row.size} logits are finite"]
    if lists.get("allow") is not None:
        allowed = np.zeros(row.size, bool)
        allowed[list(lists["allow"])] = True
        alive &= allowed
        story.append(f"allowed_tokens leave {int(alive.sum())}")
    if mask is not None:
        alive &= np.unpackbits(mask.view(np.uint8), bitorder="little")[: row.size].astype(bool)
        story.append(f"the mask leaves {int(alive.sum())}")
    if lists.get("bans"):
        alive[list(lists["bans"])] = False
        story.append(f"banned tokens leave {int(alive.sum())}")
    if lists.get("late"):
        alive[list(lists["late"])] = False
        story.append(f"min_tokens bans end of generation, leaving {int(alive.sum())}")
    return "no token left to sample: " + ", ".join(story) + "; wanted at least 1"
