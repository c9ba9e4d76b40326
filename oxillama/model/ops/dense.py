"""Ops that norm, round, multiply and move rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.model.ops.numeric import (
    activated,
    normed,
    rounded,
)
from oxillama.model.ops.op import Frame, Op, RowDomain


class Norm(Op, name="norm"):
    """Each of `heads` parts of a row, after `add` was added to it in place, normalised."""

    reads = ("x", "add")
    writes = ("x", "out", "acts")

    @staticmethod
    def meaning(
        f: Frame, *, x, kind, weight, bias, eps, add=None, out=None, acts=None, heads=1
    ) -> None:
        if add is not None:
            f.slots[x] = f.slots[x] + f.slots[add]
        rows = f.slots[x]
        parts = rows.reshape(len(rows), heads, -1)
        if weight is not None and weight.size == rows.shape[1]:
            weight = weight.reshape(heads, -1)
        if bias is not None and bias.size == rows.shape[1]:
            bias = bias.reshape(heads, -1)
        n = normed(parts, kind, weight, bias, eps).reshape(rows.shape)
        if out is not None:
            f.slots[out] = n
        for act, slot in (acts or {}).items():
            f.slots[slot] = rounded(n, act)


class Quantise(Op, name="quantise"):
    """Rows in the activation formats that products read."""

    writes = ("acts",)

    @staticmethod
    def meaning(f: Frame, *, x, acts) -> None:
        for act, slot in acts.items():
            f.slots[slot] = rounded(f.slots[x], act)


class Matmul(Op, name="matmul"):
    """Products with several matrices side by side, plus bias and `addend`; or gated, of two."""

    reads = ("x", "addend")

    @staticmethod
    def meaning(
        f: Frame, *, x, act, weights, out, bias=None, gate=None, addend=None, offset=0
    ) -> None:
        y = np.concatenate(
            [f.slots[x].astype(np.float64) @ f.weights(w).astype(np.float64).T for w in weights],
            axis=1,
        )
        y = y if bias is None else y + bias
        y = (y if addend is None else y + f.slots[addend]).astype(np.float32)
        if gate is not None:
            half = y.shape[1] // 2
            y = activated(y[:, :half], gate) * y[:, half:]
        _write(f, out, y, offset)


def _write(f: Frame, out: Any, y: np.ndarray, offset: int) -> None:
    """Write columns from `offset` on of a slot; its earlier columns stay."""
    width = offset + y.shape[1]
    held = f.slots.get(out)
    if held is None or len(held) != len(y) or offset == 0:
        held = np.zeros((len(y), width), np.float32)
    elif held.shape[1] < width:
        held = np.concatenate([held, np.zeros((len(y), width - held.shape[1]), np.float32)], axis=1)
    held[:, offset:width] = y
    f.slots[out] = held


class TakeRows(Op, name="take_rows"):
    """The `rows` "wanted" or "kept" of a slot that has `of` "all" or "kept" rows. Kept rows are the
    wanted ones and those whose state behind the last layer is read; here they are the same.
    """

    rows = RowDomain.WANTED

    @staticmethod
    def meaning(f: Frame, *, x, out, rows="wanted", of="all") -> None:
        f.slots[out] = f.slots[x][f.wanted] if of == "all" else f.slots[x]


class Shift(Op, name="shift"):
    """The row before each row, of the same sequence in the same step; zeros for the first. Only for
    models whose sequences are steps of their own, like the blocks of a draft.
    """

    state = True
    rows = RowDomain.ALL

    @staticmethod
    def meaning(f: Frame, *, x, out) -> None:
        rows = f.slots[x]
        f.slots[out] = np.concatenate([0 * rows[:1], rows[:-1]])


class Copy(Op, name="copy"):
    """`count` columns for each of `heads`, from `first` on at every `step` columns of a slot, to
    `offset` on at every `stride` columns of another slot, whose other columns stay.
    """

    @staticmethod
    def written(params: dict) -> np.ndarray | slice:
        each = params.get("offset", 0) + np.arange(params["count"])
        heads = np.arange(params.get("heads", 1))[:, None] * params.get("stride", 0)
        return (heads + each).reshape(-1)

    @staticmethod
    def meaning(f: Frame, *, x, out, count, heads=1, first=0, step=0, offset=0, stride=0) -> None:
        rows = f.slots[x]
        end = offset + (heads - 1) * stride + count
        held = f.slots.get(out)
        made = np.zeros((len(rows), end), np.float32)
        if offset and held is not None and len(held) == len(rows):
            made = np.zeros((len(rows), max(end, held.shape[1])), np.float32)
            made[:, : held.shape[1]] = held
        for head in range(heads):
            made[:, offset + head * stride :][:, :count] = rows[:, first + head * step :][:, :count]
        f.slots[out] = made
