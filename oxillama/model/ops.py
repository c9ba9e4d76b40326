"""The catalogue of the tape's ops: what each reads and writes, and what it means, in numpy.

This is the definition. The compiled tape is right when it agrees with these functions
(`reference.py` runs them, `oxillama doctor` compares), and adding an op starts with a row here. A
`Frame` holds the rows of one step: `frame.slots[i]` is the float32 array (rows, width) of a slot,
`frame.keys[layer]` and `frame.values[layer]` all keys and values stored so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from oxillama.model.builder import Tensor

OUTPUT = -1  # the slot number of the program's own output rows


@dataclass(slots=True)
class Frame:
    """The state of the reference interpreter: one sequence, its rows in this step, and what earlier
    steps stored.
    """

    tokens: np.ndarray
    positions: np.ndarray
    wanted: np.ndarray
    weights: Callable[[Tensor], np.ndarray]
    kv_type: str = "f16"
    slots: dict[int, np.ndarray] = field(default_factory=dict)
    keys: dict[int, np.ndarray] = field(default_factory=dict)
    values: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpKind:
    """A row of the catalogue; `reads` and `writes` name the parameters that hold slot numbers
    (`acts` holds one per format).
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    meaning: Callable[..., None]


def rounded(x: np.ndarray, act: str) -> np.ndarray:
    """x (rows, width) as its activation format holds it: int8 steps of the largest magnitude in
    each 32 or 256 columns, or bf16 to nearest even.
    """
    if act == "f32":
        return x
    if act == "bf16":
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        near = (bits + (0x7FFF + (bits >> 16 & 1)).astype(np.uint32) & 0xFFFF0000).view(np.float32)
        return np.where(
            np.isnan(x),
            np.float32(np.nan),
            np.where(np.abs(x) < np.float32(2.0**-126), np.float32(0), near),
        )
    block = {"q8_32": 32, "q8_256": 256}[act]
    blocks = x.reshape(len(x), -1, block)
    step = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(step > 0, np.rint(blocks / step), 0)
    return (codes * step).astype(np.float32).reshape(x.shape)


def _coded(
    x: np.ndarray, scale: np.ndarray, least: int, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Blocks x (..., 32) as codes times half-precision scales (..., 1): the numbers kept, and their
    sums of squared errors (..., 1).
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a scale that no half holds gives NaN
        scale = scale.astype(np.float16).astype(np.float32)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
        kept = np.rint(np.clip(x * inverse, least, most)) * scale
    return kept, np.square(x - kept).sum(axis=-1, keepdims=True)


def as_kept(x: np.ndarray, kv_type: str) -> np.ndarray:
    """Keys or values (..., dim) as a page holds them, in float32: rounded one token at a time, in
    blocks of 32 where they become codes.

    q8_0: scale = largest magnitude / 127, a half; codes -127 to 127. q4_0: codes -8 to 7 under -m /
    7.5, -m / 8 or -m / 8.5, m the number of largest magnitude: whichever leaves the least sum of
    squared errors.
    """
    x = x.astype(np.float32)
    if kv_type in ("f16", "f32"):
        return x if kv_type == "f32" else x.astype(np.float16).astype(np.float32)
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    if kv_type == "q8_0":
        return _coded(
            blocks, np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127), -127, 127
        )[0].reshape(x.shape)
    top, bottom = blocks.max(axis=-1, keepdims=True), blocks.min(axis=-1, keepdims=True)
    most = np.where(top > -bottom, top, bottom)
    best, least = _coded(blocks, most / np.float32(-7.5), -8, 7)
    for divisor in (-8.0, -8.5):
        found, error = _coded(blocks, most / np.float32(divisor), -8, 7)
        better = (error < least) | np.isnan(least)  # NaN: that scale did not fit a half
        best, least = np.where(better, found, best), np.where(better, error, least)
    return best.reshape(x.shape)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def _erf(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


def _activated(x: np.ndarray, kind: str) -> np.ndarray:
    return ACTIVATIONS[kind](x.astype(np.float64)).astype(np.float32)


def _embed(f: Frame, *, out, table, scale) -> None:
    f.slots[out] = f.weights(table)[f.tokens] * np.float32(scale)


def _rope_table(f: Frame, *, out, inv_freq, mscale) -> None:
    angles = f.positions[:, None].astype(np.float64) * inv_freq.astype(np.float64)
    f.slots[out] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(
        np.float32
    ) * np.float32(mscale)


def _normed(x: np.ndarray, kind: str, weight, bias, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    x = x if weight is None else x * weight
    return (x if bias is None else x + bias).astype(np.float32)


def _norm(f: Frame, *, x, add, kind, weight, bias, eps, out, acts) -> None:
    if add is not None:
        f.slots[x] = f.slots[x] + f.slots[add]
    n = _normed(f.slots[x], kind, weight, bias, eps)
    if out is not None:
        f.slots[out] = n
    for act, slot in acts.items():
        f.slots[slot] = rounded(n, act)


def _quantise(f: Frame, *, x, acts) -> None:
    for act, slot in acts.items():
        f.slots[slot] = rounded(f.slots[x], act)


def _matmul(f: Frame, *, x, act, weights, bias, gate, out, offset) -> None:
    x = f.slots[x].astype(np.float64)
    parts = [(x @ f.weights(w).astype(np.float64).T) for w in weights]
    y = np.concatenate(parts, axis=1)
    y = (y if bias is None else y + bias).astype(np.float32)
    if gate is not None:
        half = y.shape[1] // 2
        y = _activated(y[:, :half], gate) * y[:, half:]
    if offset == 0 and out not in f.slots:
        f.slots[out] = y
        return
    width = offset + y.shape[1]
    held = f.slots.get(out)
    if held is None or held.shape[0] != len(y) or offset == 0:
        held = np.zeros((len(y), width), np.float32)
    elif held.shape[1] < width:
        held = np.concatenate([held, np.zeros((len(y), width - held.shape[1]), np.float32)], axis=1)
    held[:, offset:width] = y
    f.slots[out] = held


def _rotated(x: np.ndarray, table: np.ndarray, dims: int, style: str) -> np.ndarray:
    """x (rows, heads, dim) with the first `dims` floats of each head turned by the row's angles."""
    cos, sin = (part[:, None, :].astype(np.float64) for part in np.split(table, 2, axis=1))
    y = x.astype(np.float64)
    first, second = (
        (slice(0, dims, 2), slice(1, dims, 2))
        if style == "norm"
        else (slice(0, dims // 2), slice(dims // 2, dims))
    )
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
    return y


def _rope_store(
    f: Frame,
    *,
    x,
    q_heads,
    kv_heads,
    k_dim,
    v_dim,
    rope,
    rope_dims,
    style,
    q_norm,
    k_norm,
    eps,
    q_scale,
    layer,
) -> None:
    rows = f.slots[x]
    n = len(rows)
    edges = np.cumsum([q_heads * k_dim, kv_heads * k_dim, kv_heads * v_dim])
    q, k, v = (
        rows[:, : edges[0]].reshape(n, q_heads, k_dim),
        rows[:, edges[0] : edges[1]].reshape(n, kv_heads, k_dim),
        rows[:, edges[1] : edges[2]],
    )
    q = q if q_norm is None else _normed(q, "rms", q_norm, None, eps)
    k = k if k_norm is None else _normed(k, "rms", k_norm, None, eps)
    if rope is not None:
        q, k = (
            _rotated(q, f.slots[rope], rope_dims, style),
            _rotated(k, f.slots[rope], rope_dims, style),
        )
    rows = rows.copy()
    rows[:, : edges[0]] = (q * q_scale).reshape(n, -1)
    f.slots[x] = rows
    for store, new in ((f.keys, k), (f.values, v.reshape(n, kv_heads, v_dim))):
        new = as_kept(new, f.kv_type)
        old = store.get(layer)
        store[layer] = new if old is None else np.concatenate([old[: f.positions[0]], new])


def _attend(
    f: Frame, *, x, q_heads, kv_heads, k_dim, v_dim, layer, window, softcap, sinks, out
) -> None:
    n = len(f.positions)
    q = f.slots[x][:, : q_heads * k_dim]
    # scores of codes are integer dots: queries are rounded as the rows of a matmul are
    if f.kv_type in ("q8_0", "q4_0"):
        q = rounded(q, "q8_32")
    q = q.reshape(n, kv_heads, q_heads // kv_heads, k_dim).astype(np.float64)
    keys, values = f.keys[layer].astype(np.float64), f.values[layer].astype(np.float64)
    scores = np.einsum("ngid,mgd->ngim", q, keys)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    distance = f.positions[:, None] - np.arange(len(keys))[None, :]
    hidden = (distance < 0) | ((distance >= window) if window else False)
    scores = np.where(hidden[:, None, None, :], -np.inf, scores)
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        sink = sinks.reshape(1, kv_heads, -1, 1).astype(np.float64)
        top = np.maximum(top, sink)
    p = np.exp(scores - top)
    total = p.sum(axis=-1, keepdims=True) + (np.exp(sink - top) if sinks is not None else 0.0)
    f.slots[out] = np.einsum("ngim,mgd->ngid", p / total, values).astype(np.float32).reshape(n, -1)


def _take_rows(f: Frame, *, x, out) -> None:
    f.slots[out] = f.slots[x][f.wanted]


def _add(f: Frame, *, x, y, out) -> None:
    f.slots[out] = f.slots[x] + f.slots[y]


def _mul(f: Frame, *, x, y, out) -> None:
    f.slots[out] = f.slots[x] * f.slots[y]


def _scale(f: Frame, *, x, factor, out) -> None:
    f.slots[out] = f.slots[x] * np.float32(factor)


def _softcap(f: Frame, *, x, cap, out) -> None:
    f.slots[out] = (cap * np.tanh(f.slots[x].astype(np.float64) / cap)).astype(np.float32)


def _activate(f: Frame, *, x, kind, out) -> None:
    f.slots[out] = _activated(f.slots[x], kind)


OPS: dict[str, OpKind] = {
    kind.name: kind
    for kind in (
        OpKind("embed", (), ("out",), _embed),
        OpKind("rope_table", (), ("out",), _rope_table),
        OpKind("norm", ("x", "add"), ("x", "out", "acts"), _norm),
        OpKind("quantise", ("x",), ("acts",), _quantise),
        OpKind("matmul", ("x",), ("out",), _matmul),
        OpKind("rope_store", ("x", "rope"), ("x",), _rope_store),
        OpKind("attend", ("x",), ("out",), _attend),
        OpKind("take_rows", ("x",), ("out",), _take_rows),
        OpKind("add", ("x", "y"), ("out",), _add),
        OpKind("mul", ("x", "y"), ("out",), _mul),
        OpKind("scale", ("x",), ("out",), _scale),
        OpKind("softcap", ("x",), ("out",), _softcap),
        OpKind("activate", ("x",), ("out",), _activate),
    )
}
