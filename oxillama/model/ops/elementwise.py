"""Ops over the numbers of a row, or of each of its heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.model.ops.numeric import (
    activated,
    softmax,
)
from oxillama.model.ops.op import Frame, Op, split_heads


class Add(Op, name="add"):
    """x + y."""

    reads = ("x", "y")

    @staticmethod
    def meaning(f: Frame, *, x, y, out) -> None:
        f.slots[out] = f.slots[x] + f.slots[y]


class Mul(Op, name="mul"):
    """x * y."""

    reads = ("x", "y")

    @staticmethod
    def meaning(f: Frame, *, x, y, out) -> None:
        f.slots[out] = f.slots[x] * f.slots[y]


class Scale(Op, name="scale"):
    """x * factor."""

    @staticmethod
    def meaning(f: Frame, *, x, factor, out) -> None:
        f.slots[out] = f.slots[x] * np.float32(factor)


class Affine(Op, name="affine"):
    """x * weight + bias, one number a column; either may be None."""

    @staticmethod
    def meaning(f: Frame, *, x, weight, bias, out) -> None:
        y = f.slots[x] if weight is None else f.slots[x] * weight
        f.slots[out] = y if bias is None else y + bias


class Clamp(Op, name="clamp"):
    """x within `low` and `high`."""

    @staticmethod
    def meaning(f: Frame, *, x, low, high, out) -> None:
        f.slots[out] = np.clip(f.slots[x], np.float32(low), np.float32(high))


class Softcap(Op, name="softcap"):
    """cap * tanh(x / cap)."""

    @staticmethod
    def meaning(f: Frame, *, x, cap, out) -> None:
        f.slots[out] = (cap * np.tanh(f.slots[x].astype(np.float64) / cap)).astype(np.float32)


class Activate(Op, name="activate"):
    """An activation of `ACTIVATIONS`."""

    @staticmethod
    def meaning(f: Frame, *, x, kind, out) -> None:
        f.slots[out] = activated(f.slots[x], kind)


class Measure(Op, name="measure"):
    """One number for each of `heads` parts of a row: "rms", the root of its mean square,
    "deviation", its standard deviation, or its "sum".
    """

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return params.get("heads", 1)

    @staticmethod
    def meaning(f: Frame, *, x, kind, out, heads=1) -> None:
        parts = f.slots[x].astype(np.float64).reshape(len(f.slots[x]), heads, -1)
        if kind == "rms":
            found = np.sqrt((parts * parts).mean(axis=2))
        else:
            found = parts.std(axis=2) if kind == "deviation" else parts.sum(axis=2)
        f.slots[out] = found.astype(np.float32)


class Softmax(Op, name="softmax"):
    """The softmax of each of `heads` parts of a row. With `rounds`, of a matrix whose rows are the
    parts, it is made doubly stochastic: `eps` is added, then columns and rows are divided by their
    sums plus eps in turn, columns `rounds` times and rows between (Sinkhorn and Knopp 1967).
    """

    @staticmethod
    def meaning(f: Frame, *, x, out, heads=1, rounds=0, eps=0.0) -> None:
        y = softmax(f.slots[x].astype(np.float64).reshape(len(f.slots[x]), heads, -1)) + eps
        for k in range(2 * rounds - 1):
            y = y / (y.sum(axis=2 if k % 2 else 1, keepdims=True) + eps)
        f.slots[out] = y.reshape(len(y), -1).astype(np.float32)


class HeadScale(Op, name="head_scale"):
    """x with each of `heads` parts of its rows times a number: the dot product of the same parts of
    p and q, or without q the number of p for that part.
    """

    reads = ("x", "p", "q")

    @staticmethod
    def meaning(f: Frame, *, x, p, heads, out, q=None) -> None:
        x, p = (split_heads(f, part, heads) for part in (x, p))
        q = 1.0 if q is None else split_heads(f, q, heads)
        made = x * (p * q).sum(axis=2, keepdims=True)
        f.slots[out] = made.reshape(len(x), -1).astype(np.float32)
