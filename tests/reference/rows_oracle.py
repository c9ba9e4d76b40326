"""Row functions, rotation and attention in float64, as the papers write them; imports nothing from
the package.
"""

from math import erf

import numpy as np


def rms_norm(x, weight, eps):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    x = x.astype(np.float64)
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight + bias


ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "softplus": lambda x: np.logaddexp(0, x),
    "exp_excess": lambda x: np.where(x > 0, 0.0, np.expm1(np.minimum(x, 0)) - x),
    "exp": np.exp,
    "signed_root": lambda x: np.sign(x) * np.sqrt(np.maximum(np.abs(x), 1e-6)),
}


def rotate(x, inv_freq, positions, style, dims):
    """x (rows, heads, dim): pairs of the first `dims` numbers turned by position * frequency."""
    x = x.astype(np.float64).copy()
    angle = np.asarray(positions)[:, None, None] * inv_freq.astype(np.float64)
    half = dims // 2
    a, b = (
        (x[..., 0:dims:2], x[..., 1:dims:2])
        if style == "norm"
        else (x[..., :half], x[..., half:dims])
    )
    first, second = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    if style == "norm":
        x[..., 0:dims:2], x[..., 1:dims:2] = first, second
    else:
        x[..., :half], x[..., half:dims] = first, second
    return x


def attend(q, k, v, positions, *, window=0, softcap=0.0, sinks=None):
    """q (rows, q_heads, k_dim) at `positions`, k and v (keys, kv_heads, dim) at 0, 1, ...; returns
    (rows, q_heads, v_dim) in float64.
    """
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    out = np.empty((q.shape[0], q.shape[1], v.shape[2]))
    group = q.shape[1] // k.shape[1]
    for r, position in enumerate(positions):
        first = max(0, position - window + 1) if window else 0
        for h in range(q.shape[1]):
            s = k[first : position + 1, h // group] @ q[r, h]
            if softcap:
                s = softcap * np.tanh(s / softcap)
            top = s.max() if sinks is None else max(s.max(), sinks[h])
            p = np.exp(s - top)
            total = p.sum() + (0 if sinks is None else np.exp(sinks[h] - top))
            out[r, h] = p @ v[first : position + 1, h // group] / total
    return out
