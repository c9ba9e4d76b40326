"""The ops of the tape. An op is one class with what it reads and writes, whether its layer keeps
state, the rows it runs over, and its definition in numpy.

The compiled tape is right if it agrees with these definitions (`reference.py` runs them, `oxillama
doctor` compares). A new op starts with a class here: `Builder.op` records it and `lower.py` emits
it without further code. A `Frame` holds the rows of one step: `frame.slots[i]` is the float32 array
(rows, width) of a slot, `frame.keys[layer]` and `frame.values[layer]` are all keys and values
stored so far, `frame.states[i]` is recurrent state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from oxillama.model.tensors import Tensor

OUTPUT = -1  # the slot number of the program's own output rows


class Rows(Enum):
    """The rows that an op runs over.

    A routed value (one part per chosen expert) is a row whose parts are side by side, so routed
    rows need no kind of their own.
    """

    ALL = "all"  # every row of the step
    WANTED = "wanted"  # the rows whose output is asked
    SAME = "same"  # those of what it reads


@dataclass(slots=True)
class Frame:
    """The state of the reference interpreter: one sequence, its rows in this step, and what earlier
    steps stored.

    rope: positions (sections, rows) for the rotation; visible: keys that each row sees; embeds:
    rows that replace the embedding where a token is -1. Each is None if positions and tokens
    determine it.
    """

    tokens: np.ndarray
    positions: np.ndarray
    wanted: np.ndarray
    weights: Callable[[Tensor], np.ndarray]
    kv_type: str = "f16"
    slots: dict[Any, np.ndarray] = field(default_factory=dict)
    keys: dict[int, np.ndarray] = field(default_factory=dict)
    values: dict[int, np.ndarray] = field(default_factory=dict)
    states: dict[int, np.ndarray] = field(default_factory=dict)
    rope: np.ndarray | None = None
    visible: np.ndarray | None = None
    embeds: np.ndarray | None = None
    spans: np.ndarray | None = None  # (2, rows): first key, and the one after the last, of each row
    served: int = 0  # tokens that the sequence may have; 0: the last row says it


class Op:
    """The base class of every op of the tape; a subclass is added to `OPS` under its `name`.

    reads, writes: the parameters that hold slot numbers (`acts` holds one per format); state:
    whether its layer keeps something for every token, so that it must run over all rows.
    """

    name: ClassVar[str]
    reads: ClassVar[tuple[str, ...]] = ("x",)
    writes: ClassVar[tuple[str, ...]] = ("out",)
    state: ClassVar[bool] = False
    rows: ClassVar[Rows] = Rows.SAME
    # a static method of (frame, **parameters) that does in numpy what the op does
    meaning: ClassVar[Callable[..., None]]

    def __init_subclass__(cls, *, name: str) -> None:
        cls.name = name
        OPS[name] = cls

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        """Floats per row of the result, given those of the inputs."""
        return widths[0]

    @staticmethod
    def written(params: dict) -> np.ndarray | slice:
        """The columns of `out` that the op writes, if it leaves others unchanged."""
        return slice(None)


OPS: dict[str, type[Op]] = {}


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
    "gelu_quick": lambda x: x * _sigmoid(1.702 * x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(0, x),
    "exp_excess": lambda x: np.where(x > 0, 0.0, np.expm1(np.minimum(x, 0)) - x),
    "exp": lambda x: np.exp(np.minimum(x, 88.0)),
    "signed_root": lambda x: np.sign(x) * np.sqrt(np.maximum(np.abs(x), 1e-6)),
}


def activated(x: np.ndarray, kind: str) -> np.ndarray:
    """An activation of `ACTIVATIONS`, elementwise."""
    return ACTIVATIONS[kind](x.astype(np.float64)).astype(np.float32)


def _normed(x: np.ndarray, kind: str, weight, bias, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    x = x if weight is None else x * weight
    return (x if bias is None else x + bias).astype(np.float32)


class Embed(Op, name="embed"):
    """Rows of a table, by token or by position, times `scale`. For a token of -1, the row that the
    batch brings, or row `filler` of an additional table, or zeros if `filler` is "zeros".
    """

    reads = ()
    rows = Rows.ALL

    @staticmethod
    def meaning(f: Frame, *, out, table, scale=1.0, by="token", filler=None) -> None:
        rows = f.weights(table)
        if by == "position":
            f.slots[out] = rows[f.positions] * np.float32(scale)
            return
        tokens = np.where(f.tokens < 0, 0 if filler in (None, "zeros") else filler, f.tokens)
        f.slots[out] = rows[tokens] * np.float32(scale)
        if f.embeds is not None and filler is None:
            brought = f.embeds[:, : rows.shape[1]]
            f.slots[out] = np.where(f.tokens[:, None] < 0, brought, f.slots[out])
        if filler == "zeros":
            f.slots[out] = np.where(f.tokens[:, None] < 0, np.float32(0), f.slots[out])


class Features(Op, name="features"):
    """`count` columns, from `start` on, of the rows that a batch brings; zeros for token rows."""

    reads = ()
    rows = Rows.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return params["count"]

    @staticmethod
    def meaning(f: Frame, *, out, start, count) -> None:
        if f.embeds is None:
            f.slots[out] = np.zeros((len(f.tokens), count), np.float32)
            return
        brought = f.embeds[:, start : start + count]
        f.slots[out] = np.where(f.tokens[:, None] < 0, brought, np.float32(0))


class RopeTable(Op, name="rope_table"):
    """[cosines, sines] of positions times frequencies, times `mscale`. `sections` selects, for each
    frequency, which of several positions is used. far: the frequencies of a sequence with more than
    `near` tokens.
    """

    reads = ()
    rows = Rows.ALL

    @staticmethod
    def meaning(f: Frame, *, out, inv_freq, mscale=1.0, sections=None, far=None, near=0) -> None:
        if far is not None and (f.served or f.positions[-1] + 1) > near:
            inv_freq = far
        positions = f.positions[None] if f.rope is None else f.rope
        which = (
            np.zeros(len(inv_freq), int) if len(positions) == 1 or sections is None else sections
        )
        angles = positions[which].T.astype(np.float64) * inv_freq.astype(np.float64)
        f.slots[out] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(
            np.float32
        ) * np.float32(mscale)


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
        n = _normed(parts, kind, weight, bias, eps).reshape(rows.shape)
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


class RopeStore(Op, name="rope_store"):
    """Norm and rotation of the heads of q and k, which are next to v in a row, and the store of k
    and v; if values are a view of the keys there is no v.

    norm_last: the norm comes after the rotation. keep: False if the layer attends to keys that
    another layer stored, and there is only q. temper: (rate, span, offset); q is multiplied by 1 +
    rate log(1 + floor((position + offset) / span)).
    """

    reads = ("x", "rope")
    writes = ("x",)
    state = True
    rows = Rows.ALL

    @staticmethod
    def meaning(
        f: Frame,
        *,
        x,
        q_heads,
        kv_heads,
        k_dim,
        v_dim,
        layer,
        rope=None,
        rope_dims=0,
        rope_start=0,
        style="norm",
        q_norm=None,
        k_norm=None,
        eps=1e-6,
        q_scale=1.0,
        norm_last=False,
        keep=True,
        temper=None,
    ) -> None:
        rows = f.slots[x]
        n = len(rows)
        if not keep:
            kv_heads = 0
        edges = np.cumsum([q_heads * k_dim, kv_heads * k_dim, kv_heads * v_dim])
        q, k, v = (
            rows[:, : edges[0]].reshape(n, q_heads, k_dim),
            rows[:, edges[0] : edges[1]].reshape(n, kv_heads, k_dim),
            rows[:, edges[1] : edges[2]],
        )

        def normed(x: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
            return x if weight is None else _normed(x, "rms", weight, None, eps)

        if not norm_last:
            q, k = normed(q, q_norm), normed(k, k_norm)
        if rope is not None:
            turned = slice(rope_start, None)
            q, k = q.astype(np.float64), k.astype(np.float64)
            q[..., turned] = rotated(q[..., turned], f.slots[rope], rope_dims, style)
            k[..., turned] = rotated(k[..., turned], f.slots[rope], rope_dims, style)
        if norm_last:
            q, k = normed(q, q_norm), normed(k, k_norm)
        if temper is not None:
            rate, span, offset = temper
            q = q * (1 + rate * np.log1p((f.positions + offset) // span))[:, None, None]
        rows = rows.copy()
        rows[:, : edges[0]] = (q * q_scale).reshape(n, -1)
        f.slots[x] = rows
        if not keep:
            return
        stores = [(f.keys, k)]
        if v.shape[1]:
            stores.append((f.values, v.reshape(n, kv_heads, v_dim)))
        for store, new in stores:
            new = as_kept(new, f.kv_type)
            old = store.get(layer)
            store[layer] = new if old is None else np.concatenate([old[: f.positions[0]], new])


class Attend(Op, name="attend"):
    """Softmax attention of the q part of a slot over the keys that each row sees. `slopes` add a
    bias by distance to each head's scores (ALiBi); `sinks` are scores without a value. window: how
    many keys a row sees; chunk: it sees keys from the last multiple of `chunk` on.

    causal False: a row sees all keys of its sequence, and a window extends as far ahead as back.
    relative (heads, 2 n + 1): a bias for each distance key - query from -n to n, and for larger
    distances the bias of the last one (Raffel et al. 2020, section 2.1). spans: a row sees only the
    keys that the batch assigns to the same span. strict: a row sees no key after its own, even if
    the batch says that it does. most: the positions a batch may have, if the model attends
    differently beyond; 0 for any. blocks: the layer with the keys of blocks of `ratio` tokens; a
    row also sees those of whole blocks up to its position, or of them those that its row of
    `chosen` numbers (-1: none).

    chosen without blocks: of its own keys a row sees those of the blocks of `ratio` tokens that its
    row of `chosen` numbers, and those behind the last whole block. each: there are such numbers for
    each KV head. running: the block that is not whole yet is chosen like the others.
    """

    reads = ("x", "chosen")
    state = True
    rows = Rows.ALL

    @staticmethod
    def meaning(
        f: Frame,
        *,
        x,
        q_heads,
        kv_heads,
        k_dim,
        v_dim,
        layer,
        out,
        window=0,
        softcap=0.0,
        sinks=None,
        slopes=None,
        relative=None,
        causal=True,
        chunk=0,
        spans=False,
        strict=False,
        most=0,
        blocks=None,
        ratio=0,
        chosen=None,
        each=False,
        running=False,
    ) -> None:
        n = len(f.positions)
        q = f.slots[x][:, : q_heads * k_dim]
        # scores of codes are integer dots: queries are rounded as the rows of a matmul are
        if f.kv_type in ("q8_0", "q4_0"):
            q = rounded(q, "q8_32")
        q = q.reshape(n, kv_heads, q_heads // kv_heads, k_dim).astype(np.float64)
        keys = f.keys[layer].astype(np.float64)
        values = f.values[layer].astype(np.float64) if layer in f.values else keys[..., :v_dim]
        scores = np.einsum("ngid,mgd->ngim", q, keys)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        distance = f.positions[:, None] - np.arange(len(keys))[None, :]
        if slopes is not None:
            slope = slopes.reshape(1, kv_heads, -1, 1).astype(np.float64)
            scores = scores - slope * distance[:, None, None, :]
        if relative is not None:
            reach = relative.shape[1] // 2
            added = relative[:, np.clip(-distance, -reach, reach) + reach].astype(np.float64)
            scores = scores + added.transpose(1, 0, 2).reshape(scores.shape)
        if causal:
            limit = f.positions + 1 if f.visible is None or strict else f.visible
        else:
            limit = np.full(n, len(keys))
        far = distance if causal else np.abs(distance)
        unseen = (np.arange(len(keys))[None, :] >= limit[:, None]) | (
            (far >= window) if window else False
        )
        if spans and f.spans is not None:
            keys_at = np.arange(len(keys))[None, :]
            unseen |= (keys_at < f.spans[0][:, None]) | (keys_at >= f.spans[1][:, None])
        if chunk:
            unseen |= distance > (f.positions % chunk)[:, None]
        if blocks is not None:
            made = as_kept(f.keys[blocks], f.kv_type).astype(np.float64)
            scores = np.concatenate([np.einsum("ngid,mgd->ngim", q, made), scores], axis=-1)
            values = np.concatenate([made, values])
            count = np.arange(len(made))[None, :]
            unseen = np.concatenate(
                [count >= ((f.positions + 1) // ratio)[:, None], unseen], axis=1
            )
            if chosen is not None:
                picks = f.slots[chosen][:, None, :] == count[..., None]
                unseen[:, : len(made)] |= ~picks.any(axis=2)
        unseen = np.broadcast_to(unseen[:, None, :], (n, kv_heads, unseen.shape[1]))
        if chosen is not None and blocks is None:
            block = np.arange(len(keys)) // ratio
            numbers = f.slots[chosen].reshape(n, kv_heads if each else 1, -1)
            seen = (numbers[..., None, :] == block[:, None]).any(axis=-1)
            if not running:
                seen |= (block >= (f.positions[:, None] + 1) // ratio)[:, None]
            unseen = unseen | ~seen
        scores = np.where(unseen[:, :, None, :], -np.inf, scores)
        top = scores.max(axis=-1, keepdims=True)
        if sinks is not None:
            sink = sinks.reshape(1, kv_heads, -1, 1).astype(np.float64)
            top = np.maximum(top, sink)
        p = np.exp(scores - top)
        total = p.sum(axis=-1, keepdims=True) + (np.exp(sink - top) if sinks is not None else 0.0)
        mixed = np.einsum("ngim,mgd->ngid", p / total, values)
        f.slots[out] = mixed.astype(np.float32).reshape(n, -1)


class KeepRows(Op, name="keep_rows"):
    """The rows of x, kept in layer `layer`; beside them, if there is a gate, those of `gate` plus
    the row of `bias` (period, width) at the token's place in a period. The rows of layer `into`,
    where the key of a token's block will be, are zeros until it is made.
    """

    reads = ("x", "gate")
    writes = ()
    state = True
    rows = Rows.ALL

    @staticmethod
    def meaning(f: Frame, *, x, layer, gate=None, bias=None, into=None) -> None:
        rows = f.slots[x]
        if gate is not None:
            rows = np.concatenate(
                [rows, f.slots[gate] + bias[f.positions % len(bias)]], axis=1, dtype=np.float32
            )
        held = f.keys.get(layer, rows[:0, None])
        f.keys[layer] = np.concatenate([held[: f.positions[0]], rows[:, None]])


class Compress(Op, name="compress"):
    """A key of `dim` floats for each whole block of `ratio` tokens, from what `keep_rows` left in
    layer `layer`: the mean of the tokens' rows, weighted for each float by a softmax over their
    gates if they are `gated`, under a norm if there is a weight. inv_freq: its last floats
    (adjacent pairs) are turned by the position where the block begins. carried: rows end with so
    many floats, their token's angles; those of the block's first token turn the first floats of the
    key (pairs of halves). overlap: rows have two parts, the first for the key of the block after
    their own.
    """

    reads = ()
    writes = ()
    state = True
    rows = Rows.ALL

    @staticmethod
    def meaning(
        f: Frame,
        *,
        layer,
        into,
        ratio,
        dim,
        weight=None,
        eps=0.0,
        gated=True,
        overlap=False,
        inv_freq=None,
        mscale=1.0,
        carried=0,
    ) -> None:
        count = len(f.keys[layer]) // ratio
        kept = f.keys[layer][: count * ratio].astype(np.float64)
        kept = kept.reshape(count, ratio, f.keys[layer].shape[2])
        table, kept = kept[:, 0, kept.shape[2] - carried :], kept[..., : kept.shape[2] - carried]
        kept = kept.reshape(count, ratio, 2 if gated else 1, 2 if overlap else 1, dim)
        # each (blocks, tokens, parts, floats)
        rows, gates = kept[:, :, 0], kept[:, :, 1] if gated else np.zeros_like(kept[:, :, 0])
        if overlap:
            before = [
                np.concatenate([np.full((1, ratio, dim), fill), part[:-1, :, 0]])[:count]
                for part, fill in ((rows, 0.0), (gates, -np.inf))
            ]
            rows, gates = (
                np.concatenate([old, part[:, :, 1]], axis=1)
                for old, part in zip(before, (rows, gates))
            )
        else:
            rows, gates = rows[:, :, 0], gates[:, :, 0]
        shares = _softmax(gates.swapaxes(1, 2)) if count else gates.swapaxes(1, 2)
        made = (rows.swapaxes(1, 2) * shares).sum(axis=2)
        if weight is not None:
            made = _normed(made, "rms", weight, None, eps).astype(np.float64)
        made = made[:, None, :]
        if inv_freq is not None:
            angles = ratio * np.arange(count)[:, None] * inv_freq.astype(np.float64)[None]
            table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * mscale
            turned = 2 * len(inv_freq)
            made[..., dim - turned :] = rotated(made[..., dim - turned :], table, turned, "norm")
        elif carried:
            made[..., :carried] = rotated(made[..., :carried], table, carried, "neox")
        f.keys[into] = made.astype(np.float32)


class ChooseBlocks(Op, name="choose_blocks"):
    """The numbers of the `most` blocks, of those whole up to a row's position, whose keys (layer
    `layer`) have the highest scores, ascending and then -1; all of them where there are no more. A
    score is the sum over heads of a weight (1 where there are no shares) times the dot product of
    query and key where that is positive. Of equal scores the earlier block is chosen (DeepSeek-AI
    2025, DeepSeek-V3.2, section 2.1).
    """

    reads = ("x", "shares")
    state = True
    rows = Rows.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return params["most"]

    @staticmethod
    def meaning(f: Frame, *, x, layer, ratio, most, out, shares=None, heads=0) -> None:
        weight = (
            np.ones((len(f.slots[x]), heads))
            if shares is None
            else f.slots[shares].astype(np.float64)
        )
        q, keys = _split_heads(f, x, weight.shape[1]), f.keys[layer][:, 0].astype(np.float64)
        scores = np.einsum("nhm,nh->nm", np.maximum(np.einsum("nhd,md->nhm", q, keys), 0), weight)
        made = np.full((len(q), most), -1, np.float32)
        for row, position in enumerate(f.positions):
            best = np.argsort(-scores[row, : (position + 1) // ratio], kind="stable")[:most]
            made[row, : len(best)] = np.sort(best)
        f.slots[out] = made


class ChooseSpans(Op, name="choose_spans"):
    """For each of `heads`, the numbers of the `most` blocks of `ratio` tokens, the one that a row's
    position is in among them, with the highest scores, ascending and then -1. A score is the
    largest dot product of the head's query and the keys (layer `layer`) of the block's tokens up to
    the row's position; the last `local` blocks are chosen in any case. Of equal scores the earlier
    block is chosen.
    """

    state = True
    rows = Rows.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return params["heads"] * params["most"]

    @staticmethod
    def meaning(f: Frame, *, x, heads, layer, ratio, most, local, out) -> None:
        q, keys = _split_heads(f, x, heads), f.keys[layer][:, 0].astype(np.float64)
        scores = np.einsum("nhd,md->nhm", q, keys)
        made = np.full((len(q), heads, most), -1, np.float32)
        for row, position in enumerate(f.positions):
            count = position // ratio + 1
            seen = np.full((heads, count * ratio), -np.inf)
            seen[:, : position + 1] = scores[row, :, : position + 1]
            best = seen.reshape(heads, count, ratio).max(axis=2)
            best[:, max(0, count - local) :] = np.inf
            picks = np.sort(np.argsort(-best, axis=1, kind="stable")[:, :most], axis=1)
            made[row, :, : picks.shape[1]] = picks
        f.slots[out] = made.reshape(len(q), -1)


class Turn(Op, name="turn"):
    """Some floats of each of `heads` parts of a row, from `start` on, turned by the row's angles
    (back: by their negatives). style: "norm" turns adjacent pairs, "neox" pairs of halves.
    """

    reads = ("x", "rope")

    @staticmethod
    def meaning(f: Frame, *, x, rope, heads, out, start=0, style="norm", back=False) -> None:
        y, table = _split_heads(f, x, heads), f.slots[rope].copy()
        turned = table.shape[1]
        if back:
            table[:, turned // 2 :] *= -1
        part = slice(start, start + turned)
        y[..., part] = rotated(y[..., part], table, turned, style)
        f.slots[out] = y.reshape(len(y), -1).astype(np.float32)


class TakeRows(Op, name="take_rows"):
    """The wanted rows of a slot."""

    rows = Rows.WANTED

    @staticmethod
    def meaning(f: Frame, *, x, out) -> None:
        f.slots[out] = f.slots[x][f.wanted]


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


class Route(Op, name="route"):
    """The experts of each row by their scores x: [ids | weights], `used` of each, best first.

    gating: "softmax" and "sigmoid" of all scores, "sqrt_softplus", the root of their softplus,
    "chosen" and "chosen_sigmoid" of the chosen ones only, or "mixer": for each choice, the softmax
    over the experts not chosen before whose score is close to the best (SparseMixer: Liu et al.
    2024, GRIN, section 2.1). bias affects the choice, not the weights. With `groups`, experts come
    only from the `groups_used` best groups; the score of a group is that of its best expert, or the
    sum of its "two" best (DeepSeek-AI 2024, DeepSeek-V3, section 2.1.2). share: the ids are divided
    by this number, because so many experts have one matrix in common. by_token (vocabulary, used):
    the experts of each token, whatever the scores, which are weights all the same (Roller et al.
    2021, "Hash Layers", section 3).
    """

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return 2 * params["used"]

    @staticmethod
    def meaning(
        f: Frame,
        *,
        x,
        out,
        used,
        gating,
        bias=None,
        groups=1,
        groups_used=1,
        group_by="best",
        normalise=False,
        scale=1.0,
        share=1,
        by_token=None,
    ) -> None:
        x = f.slots[x].astype(np.float64)
        p = {
            "softmax": _softmax,
            "sigmoid": _sigmoid,
            "sqrt_softplus": lambda x: np.sqrt(np.logaddexp(0, x)),
        }.get(gating, lambda x: x)(x)
        p = p.astype(np.float32)
        scores = p if bias is None else p + bias
        if groups > 1:
            best = -np.sort(-scores.reshape(len(x), groups, -1), axis=2)
            two = group_by == "two" and best.shape[2] > 1
            worth = best[..., 0] + best[..., 1] if two else best[..., 0]
            out_of_it = np.ones_like(worth, bool)
            kept = np.argsort(-worth, axis=1, kind="stable")[:, :groups_used]
            np.put_along_axis(out_of_it, kept, False, axis=1)
            hidden = np.repeat(out_of_it, best.shape[2], axis=1)
            scores = np.where(hidden, -np.inf, scores)
        ids = np.argsort(-scores, axis=1, kind="stable")[:, :used]
        if by_token is not None:
            ids = by_token[f.tokens if len(x) == len(f.tokens) else f.tokens[f.wanted]]
        weights = np.take_along_axis(p, ids, axis=1)
        if gating == "mixer":
            weights = _mixed(p.astype(np.float64), ids)
        elif gating.startswith("chosen"):
            weights = _softmax(weights) if gating == "chosen" else _sigmoid(weights)
        if normalise:
            weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 2.0**-14)
        f.slots[out] = np.concatenate([ids // share, weights * scale], axis=1).astype(np.float32)


def _mixed(scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """SparseMixer's weights of the experts `ids` (rows, used), best first."""
    weights, left = np.empty(ids.shape), scores.copy()
    for k in range(ids.shape[1]):
        best = np.take_along_axis(scores, ids[:, k : k + 1], axis=1)
        near = (best - left) / np.maximum(np.abs(scores), best) <= 0.02
        weights[:, k] = 1 / np.where(near, np.exp(left - best), 0.0).sum(axis=1)
        np.put_along_axis(left, ids[:, k : k + 1], -np.inf, axis=1)
    return weights


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def chosen(f: Frame, routes: Any, count: int, rows: int) -> np.ndarray:
    """The matrix of a stack for each part of each row, (rows, parts); without a route, part k uses
    matrix k.
    """
    if routes is None:
        return np.tile(np.arange(count), (rows, 1))
    return f.slots[routes][:, : f.slots[routes].shape[1] // 2].astype(int)


class Experts(Op, name="experts"):
    """Each part of a row times its matrix of a stack of `experts`; a row as wide as a matrix is
    used for every part. Gated: of two stacks.
    """

    reads = ("x", "routes")

    @staticmethod
    def meaning(f: Frame, *, x, act, weights, experts, out, routes=None, used=0, gate=None) -> None:
        x = f.slots[x].astype(np.float64)
        ids = chosen(f, routes, experts, len(x))
        stacks = [f.weights(w).reshape(experts, -1, w.shape[1]).astype(np.float64) for w in weights]
        parts = x.reshape(len(x), -1, weights[0].shape[1])
        parts = np.broadcast_to(parts, (len(x), ids.shape[1], parts.shape[2]))
        y = [np.einsum("rkdc,rkc->rkd", w[ids], parts) for w in stacks]
        y = [part.astype(np.float32) for part in y]
        f.slots[out] = (y[0] if gate is None else activated(y[0], gate) * y[1]).reshape(len(x), -1)


class ExpertBias(Op, name="expert_bias"):
    """Each part of a routed row plus its expert's row of `bias` (experts, width)."""

    reads = ("x", "routes")

    @staticmethod
    def meaning(f: Frame, *, x, routes, bias, out) -> None:
        rows = f.slots[x]
        ids = chosen(f, routes, 0, len(rows))
        f.slots[out] = rows + bias[ids].reshape(len(rows), -1)


class Combine(Op, name="combine"):
    """The sum of a routed row's parts, weighted by its route."""

    reads = ("x", "routes")

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return widths[0] // (widths[1] // 2)

    @staticmethod
    def meaning(f: Frame, *, x, routes, out) -> None:
        used = f.slots[routes].shape[1] // 2
        parts = f.slots[x].reshape(len(f.slots[x]), used, -1)
        weights = f.slots[routes][:, used:, None]
        f.slots[out] = (parts.astype(np.float64) * weights).sum(axis=1).astype(np.float32)


class Conv(Op, name="conv"):
    """A causal convolution of each channel with its own taps (channels, taps), the last one for the
    row itself, then an activation. The taps - 1 rows before a step are state `state`.
    """

    state = True
    rows = Rows.ALL

    @staticmethod
    def meaning(f: Frame, *, x, weight, state, out, bias=None, act=None) -> None:
        rows, past = f.slots[x], weight.shape[1] - 1
        fresh = f.positions[0] == 0 or state not in f.states
        before = np.zeros((past, rows.shape[1]), np.float32) if fresh else f.states[state]
        seen = np.concatenate([before, rows])
        y = sum(seen[j : j + len(rows)].astype(np.float64) * weight[:, j] for j in range(past + 1))
        y = (y if bias is None else y + bias).astype(np.float32)
        f.slots[out] = y if act is None else activated(y, act)
        f.states[state] = seen[len(rows) :]


class Scan(Op, name="scan"):
    """A selective state space: h = h exp(dt a) + dt x b, y = h c + d x, for each channel.

    x (rows, channels), dt (rows, heads), b and c (rows, groups * states), a (heads, states), or
    (heads, 1) for all states alike, d (heads,). A head has channels / heads channels, a group heads
    / groups heads. Gu and Dao 2023 (Mamba, section 3.2), Dao and Gu 2024 (Mamba-2, section 5).
    """

    reads = ("x", "dt", "b", "c")
    state = True
    rows = Rows.ALL

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


def _split_heads(f: Frame, slot: Any, heads: int) -> np.ndarray:
    """A slot's rows as float64 (rows, heads, columns of a head)."""
    rows = f.slots[slot].astype(np.float64)
    return rows.reshape(len(rows), heads, -1)


def _begun(f: Frame, state: int, *shape: int) -> np.ndarray:
    """The state from which a sequence's rows continue."""
    fresh = f.positions[0] == 0 or state not in f.states
    return np.zeros(shape) if fresh else f.states[state]


class Delta(Op, name="delta"):
    """Linear attention under the gated delta rule: S = S exp(w), S = S + k beta (v - S^T k), y =
    scale S^T q, for each head (Yang et al. 2024, Gated Delta Networks, section 3.1).

    q, k (rows, key heads * keys), v (rows, heads * values), w and beta (rows, heads). Head h takes
    queries and keys of head h / (heads / key_heads), or of h mod key_heads where they are tiled.
    """

    reads = ("q", "k", "v", "w", "beta")
    state = True
    rows = Rows.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return widths[2]

    @staticmethod
    def meaning(
        f: Frame, *, q, k, v, w, beta, heads, key_heads, tiled, state, out, scale=1.0
    ) -> None:
        w, beta = (f.slots[part].astype(np.float64) for part in (w, beta))
        v = _split_heads(f, v, heads)
        which = np.arange(heads) % key_heads if tiled else np.arange(heads) * key_heads // heads
        q, k = (_split_heads(f, part, key_heads)[:, which] for part in (q, k))
        s, y = _begun(f, state, heads, k.shape[2], v.shape[2]), np.empty_like(v)
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
    rows = Rows.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return widths[3]

    @staticmethod
    def meaning(
        f: Frame, *, r, w, k, v, heads, state, out, a=None, b=None, u=None, scale=1.0
    ) -> None:
        r, w, k, v = (_split_heads(f, part, heads) for part in (r, w, k, v))
        takes = a is not None
        if takes:
            a, b = _split_heads(f, a, heads), _split_heads(f, b, heads)
        s, y = _begun(f, state, heads, k.shape[2], v.shape[2]), np.empty_like(v)
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


class NgramEmbed(Op, name="ngram_embed"):
    """Rows of a table by hashes of the last tokens, one for each head side by side: `offsets` +
    (the exclusive or of the tokens, the row's own first, times `multipliers`) mod `sizes`.

    With n multipliers the first 1 / (n - 1) of the heads hash two tokens, the next ones three, and
    so on. A token `stop` before a row's own ends what is seen of the sequence and stands for every
    token that is missing; a token of -1 counts as `filler`. The n - 1 tokens before a step are
    state `state`.
    """

    reads = ()
    state = True
    rows = Rows.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return len(params["sizes"]) * params["table"].shape[1]

    @staticmethod
    def meaning(f: Frame, *, table, multipliers, sizes, offsets, stop, filler, state, out) -> None:
        past, n = len(multipliers) - 1, len(f.tokens)
        fresh = f.positions[0] == 0 or state not in f.states
        before = np.full(past, stop) if fresh else f.states[state]
        seen = np.concatenate([before, np.where(f.tokens < 0, filler, f.tokens)]).astype(np.int64)
        f.states[state] = seen[n:]
        mixed, ended, parts = seen[past:] * multipliers[0], np.zeros(n, bool), []
        per = len(sizes) // past
        for back in range(1, past + 1):
            earlier = seen[past - back : past - back + n]
            ended = ended | (earlier == stop)
            mixed = mixed ^ np.where(ended, stop, earlier) * multipliers[back]
            for head in range((back - 1) * per, back * per):
                parts.append(f.weights(table)[mixed % sizes[head] + offsets[head]])
        f.slots[out] = np.concatenate(parts, axis=1)


class HeadScale(Op, name="head_scale"):
    """x with each of `heads` parts of its rows times a number: the dot product of the same parts of
    p and q, or without q the number of p for that part.
    """

    reads = ("x", "p", "q")

    @staticmethod
    def meaning(f: Frame, *, x, p, heads, out, q=None) -> None:
        x, p = (_split_heads(f, part, heads) for part in (x, p))
        q = 1.0 if q is None else _split_heads(f, q, heads)
        made = x * (p * q).sum(axis=2, keepdims=True)
        f.slots[out] = made.reshape(len(x), -1).astype(np.float32)


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
        y = _softmax(f.slots[x].astype(np.float64).reshape(len(f.slots[x]), heads, -1)) + eps
        for k in range(2 * rounds - 1):
            y = y / (y.sum(axis=2 if k % 2 else 1, keepdims=True) + eps)
        f.slots[out] = y.reshape(len(y), -1).astype(np.float32)
