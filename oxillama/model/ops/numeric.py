"""Functions over rows that the definitions of several ops have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def rounded(x: np.ndarray, act: str) -> np.ndarray:
    """x (rows, width) as stored in its activation format: int8 steps of the largest magnitude in
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
    """Blocks x (..., 32) as codes times half-precision scales (..., 1): the stored numbers, and
    their sums of squared errors (..., 1).
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a scale that no half holds gives NaN
        scale = scale.astype(np.float16).astype(np.float32)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
        kept = np.rint(np.clip(x * inverse, least, most)) * scale
    return kept, np.square(x - kept).sum(axis=-1, keepdims=True)


def as_kept(x: np.ndarray, kv_type: str) -> np.ndarray:
    """Keys or values (..., dim) as stored in a page, in float32: rounded one token at a time, in
    blocks of 32 for coded types.

    q8_0: scale = largest magnitude / 127, a half; codes -127 to 127. q4_0: codes -8 to 7 with scale
    -m / 7.5, -m / 8 or -m / 8.5, where m is the number of largest magnitude: the scale with the
    smallest sum of squared errors.
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


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), elementwise."""
    return 1.0 / (1.0 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    """The softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _erf(x: np.ndarray) -> np.ndarray:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x * sigmoid(x),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(0, x),
    "exp_excess": lambda x: np.where(x > 0, 0.0, np.expm1(np.minimum(x, 0)) - x),
    "exp": lambda x: np.exp(np.minimum(x, 88.0)),
    "signed_root": lambda x: np.sign(x) * np.sqrt(np.maximum(np.abs(x), 1e-6)),
}


def activated(x: np.ndarray, kind: str) -> np.ndarray:
    """An activation of `ACTIVATIONS`, elementwise."""
    return ACTIVATIONS[kind](x.astype(np.float64)).astype(np.float32)


def normed(x: np.ndarray, kind: str, weight, bias, eps: float) -> np.ndarray:
    """x normalised over its last axis ("rms", or "layer", which subtracts the mean), times the
    weight and plus the bias where there are any.
    """
    x = x.astype(np.float64)
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    x = x if weight is None else x * weight
    return (x if bias is None else x + bias).astype(np.float32)


def rotated(x: np.ndarray, table: np.ndarray, dims: int, style: str) -> np.ndarray:
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
