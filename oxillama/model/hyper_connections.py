"""Residuals of several streams: hyper-connections (Zhu et al. 2024, "Hyper-Connections", section
2.2). A row holds the streams side by side; a branch reads their weighted sum, and its result is
added to each under a weight of its own. The weights are functions of the row.
"""

from __future__ import annotations

import numpy as np

from oxillama.model.builder import Builder, Value


def stream_count(b: Builder) -> int:
    """How many streams the residual has."""
    return b.keys.integer("hyper_connection.count", minimum=2, maximum=64)


def stream_weights(b: Builder, name: str, x: Value, *sizes: int) -> list[Value]:
    """Numbers for each row, in parts of these sizes: a product with all streams under one norm,
    each part times its number of `name_scale` and plus its numbers of `name_base`.
    """
    rows = sum(sizes)
    y = b.linear(b.norm(x, None), f"{name}_fn", rows)
    y = y * np.repeat(b.vector(f"{name}_scale.weight", len(sizes)), sizes)
    y = y + b.vector(f"{name}_base.weight", rows)
    ends = np.cumsum(sizes).tolist()
    return [y.columns(end - size, end) for size, end in zip(sizes, ends)]


def open_weights(b: Builder, x: Value, *, most: float = 1.0) -> Value:
    """Sigmoids up to `most`, plus the file's epsilon, so that no stream is without any."""
    least = b.keys.number("hyper_connection.epsilon", minimum=0.0)
    return b.activate(x, "sigmoid") * most + np.full(x.width, least, np.float32)


def last_stream(b: Builder, x: Value) -> Value:
    """What the streams are after the last layer: a sum under weights of its own."""
    (taken,) = stream_weights(b, "output_hc", x, stream_count(b))
    return b.weighted(x, open_weights(b, taken))


def mixed_streams(b: Builder, x: Value, weights: Value) -> Value:
    """Each stream as a sum of all, under a doubly stochastic matrix for each row, so that their sum
    stays what it is (Xie et al. 2025, "mHC", section 4). weights: before that, by source, then by
    target.
    """
    count = stream_count(b)
    rounds = b.keys.integer("hyper_connection.sinkhorn_iterations", minimum=1, maximum=1 << 10)
    eps = b.keys.number("hyper_connection.epsilon", minimum=0.0, maximum=1.0)
    shares = b.softmax(weights, heads=count, rounds=rounds, eps=eps)
    of = (shares.columns(to, to + 1, heads=count) for to in range(count))
    return b.concat(*(b.weighted(x, share) for share in of))


def stream_mean(b: Builder, x: Value) -> Value:
    """The mean of all streams."""
    count = stream_count(b)
    first, *others = (x.columns(at, at + b.hidden) for at in range(0, x.width, b.hidden))
    for other in others:
        first = first + other
    return first * (1.0 / count)
