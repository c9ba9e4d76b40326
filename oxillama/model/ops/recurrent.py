"""Ops whose layer keeps a state of fixed size: convolutions, state spaces, linear attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.model.ops.numeric import (
    activated,
)
from oxillama.model.ops.op import Frame, Op, RowDomain, begun, split_heads


class Conv(Op, name="conv"):
    """A causal convolution of each channel with its own taps (channels, taps), the last one for the
    row itself, then an activation. The taps - 1 rows before a step are state `state`; None: the
    step has whole texts, and the tap in the middle of an odd number is for the row itself.
    """

    state = True
    rows = RowDomain.ALL

    @staticmethod
    def meaning(f: Frame, *, x, weight, out, state=None, bias=None, act=None) -> None:
        rows, past = f.slots[x], weight.shape[1] - 1
        zeros = np.zeros((past, rows.shape[1]), np.float32)
        fresh = f.positions[0] == 0 or state not in f.states
        seen = np.concatenate([zeros if fresh else f.states[state], rows])
        if state is None:
            seen = np.concatenate([seen[past // 2 :], zeros[past // 2 :]])
        y = sum(seen[j : j + len(rows)].astype(np.float64) * weight[:, j] for j in range(past + 1))
        y = (y if bias is None else y + bias).astype(np.float32)
        f.slots[out] = y if act is None else activated(y, act)
        if state is not None:
            f.states[state] = seen[len(rows) :]


class Scan(Op, name="scan"):
    """A selective state space: h = h exp(dt a) + dt x b, y = h c + d x, for each channel.

    x (rows, channels), dt (rows, heads), b and c (rows, groups * states), a (heads, states), or
    (heads, 1) for all states alike, d (heads,). A head has channels / heads channels, a group heads
    / groups heads. Gu and Dao 2023 (Mamba, section 3.2), Dao and Gu 2024 (Mamba-2, section 5).
    """

    reads = ("x", "dt", "b", "c")
    state = True
    rows = RowDomain.ALL

    @staticmethod
    def meaning(f: Frame, *, x, dt, b, c, a, state, out, d=None, groups=1) -> None:
        x, dt = f.slots[x].astype(np.float64), f.slots[dt].astype(np.float64)
        n, heads = len(x), dt.shape[1]
        per, x = heads // groups, x.reshape(n, heads, -1)
        b, c = (
            np.repeat(f.slots[part].astype(np.float64).reshape(n, groups, -1), per, axis=1)
            for part in (b, c)
        )
        fresh = f.positions[0] == 0 or state not in f.states
        h = np.zeros((heads, x.shape[2], b.shape[2])) if fresh else f.states[state]
        y = np.empty_like(x)
        for t in range(n):
            decay = np.exp(dt[t][:, None] * a.astype(np.float64))
            h = h * decay[:, None, :] + (dt[t][:, None] * x[t])[..., None] * b[t][:, None, :]
            y[t] = np.einsum("hps,hs->hp", h, c[t])
        f.states[state] = h
        y = y if d is None else y + x * d.astype(np.float64)[:, None]
        f.slots[out] = y.reshape(n, -1).astype(np.float32)


class Delta(Op, name="delta"):
    """Linear attention under the gated delta rule: S = S exp(w), S = S + k beta (v - S^T k), y =
    scale S^T q, for each head (Yang et al. 2024, Gated Delta Networks, section 3.1).

    q, k (rows, key heads * keys), v (rows, heads * values), w and beta (rows, heads). Head h takes
    queries and keys of head h / (heads / key_heads), or of h mod key_heads where they are tiled.
    """

    reads = ("q", "k", "v", "w", "beta")
    state = True
    rows = RowDomain.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return widths[2]

    @staticmethod
    def meaning(
        f: Frame, *, q, k, v, w, beta, heads, key_heads, tiled, state, out, scale=1.0
    ) -> None:
        w, beta = (f.slots[part].astype(np.float64) for part in (w, beta))
        v = split_heads(f, v, heads)
        which = np.arange(heads) % key_heads if tiled else np.arange(heads) * key_heads // heads
        q, k = (split_heads(f, part, key_heads)[:, which] for part in (q, k))
        s, y = begun(f, state, heads, k.shape[2], v.shape[2]), np.empty_like(v)
        for t in range(len(v)):
            s = s * np.exp(w[t])[:, None, None]
            written = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", s, k[t]))
            s = s + k[t][:, :, None] * written[:, None, :]
            y[t] = scale * np.einsum("hkv,hk->hv", s, q[t])
        f.states[state] = s
        f.slots[out] = y.reshape(len(v), -1).astype(np.float32)


class Wkv(Op, name="wkv"):
    """Linear attention whose state decays per key: S = diag(w) S + k v^T + b (a^T S), y = scale S^T
    r, for each head; with `u` (heads, keys) y = scale (S_before + diag(u) k v^T)^T r. Peng et al.
    2024 (Eagle and Finch, section 4.2), 2025 (RWKV-7, section 4.1).

    r, w, k, a, b (rows, heads * keys), v (rows, heads * values); w is the decay itself, 0 to 1.
    Without a and b that term is left out.
    """

    reads = ("r", "w", "k", "v", "a", "b")
    state = True
    rows = RowDomain.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return widths[3]

    @staticmethod
    def meaning(
        f: Frame, *, r, w, k, v, heads, state, out, a=None, b=None, u=None, scale=1.0
    ) -> None:
        r, w, k, v = (split_heads(f, part, heads) for part in (r, w, k, v))
        takes = a is not None
        if takes:
            a, b = split_heads(f, a, heads), split_heads(f, b, heads)
        s, y = begun(f, state, heads, k.shape[2], v.shape[2]), np.empty_like(v)
        for t in range(len(v)):
            new = k[t][:, :, None] * v[t][:, None, :]
            before = s
            s = s * w[t][:, :, None] + new
            if takes:
                s = s + b[t][:, :, None] * np.einsum("hkv,hk->hv", before, a[t])[:, None, :]
            seen = s if u is None else before + u.astype(np.float64)[:, :, None] * new
            y[t] = scale * np.einsum("hkv,hk->hv", seen, r[t])
        f.states[state] = s
        f.slots[out] = y.reshape(len(v), -1).astype(np.float32)
