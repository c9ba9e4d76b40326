"""Ops of attention: rotation, stored keys, what rows see of them, keys of blocks and choices of
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxillama.model.ops.numeric import (
    as_kept,
    normed,
    rotated,
    rounded,
    softmax,
)
from oxillama.model.ops.op import Frame, Op, RowDomain, split_heads


class RopeTable(Op, name="rope_table"):
    """[cosines, sines] of positions times frequencies, times `mscale`. `sections` selects, for each
    frequency, which of several positions is used. far: the frequencies of a sequence with more than
    `near` tokens.
    """

    reads = ()
    rows = RowDomain.ALL

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


class RopeStore(Op, name="rope_store"):
    """Norm and rotation of the heads of q and k, which are next to v in a row, and the store of k
    and v; if values are a view of the keys there is no v.

    norm_last: the norm comes after the rotation. keep: False if the layer attends to keys that
    another layer stored, and there is only q; without query heads there are only k and v. temper:
    (rate, span, offset); q is multiplied by 1 + rate log(1 + floor((position + offset) / span)).
    """

    reads = ("x", "rope")
    writes = ("x",)
    state = True
    rows = RowDomain.ALL

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

        def scaled(x: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
            return x if weight is None else normed(x, "rms", weight, None, eps)

        if not norm_last:
            q, k = scaled(q, q_norm), scaled(k, k_norm)
        if rope is not None:
            turned = slice(rope_start, None)
            q, k = q.astype(np.float64), k.astype(np.float64)
            q[..., turned] = rotated(q[..., turned], f.slots[rope], rope_dims, style)
            k[..., turned] = rotated(k[..., turned], f.slots[rope], rope_dims, style)
        if norm_last:
            q, k = scaled(q, q_norm), scaled(k, k_norm)
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


def _unseen(
    f: Frame,
    distance: np.ndarray,
    *,
    window=0,
    causal=True,
    chunk=0,
    spans=False,
    behind=False,
    strict=False,
) -> np.ndarray:
    """The keys that rows do not see (rows, keys), by the distance row - key; the parameters are
    those of `Attend`.
    """
    n, count = distance.shape
    keys_at = np.arange(count)[None, :]
    if causal:
        limit = f.positions + 1 if f.visible is None or strict else f.visible
    else:
        limit = np.full(n, count)
    far = distance if causal else np.abs(distance)
    unseen = (keys_at >= limit[:, None]) | ((far >= window) if window else False)
    if spans and f.spans is not None:
        unseen |= (keys_at < f.spans[0][:, None]) | (keys_at >= f.spans[1][:, None])
    if behind and f.spans is not None:
        unseen |= keys_at < f.spans[1][:, None]
    if chunk:
        unseen |= distance > (f.positions % chunk)[:, None]
    return unseen


class Attend(Op, name="attend"):
    """Softmax attention of the q part of a slot over the keys that each row sees. `slopes` add a
    bias by distance to each head's scores (ALiBi); `sinks` are scores without a value. window: how
    many keys a row sees; chunk: it sees keys from the last multiple of `chunk` on.

    causal False: a row sees all keys of its sequence, and a window extends as far ahead as back.
    relative (heads, 2 n + 1): a bias for each distance key - query from -n to n, and for larger
    distances the bias of the last one (Raffel et al. 2020, section 2.1). spans: a row sees only the
    keys that the batch assigns to the same span; behind: only those behind it. strict: a row sees
    no key after its own, even if the batch says that it does. most: the positions a batch may have,
    if the model attends differently beyond; 0 for any. blocks: the layer with the keys of blocks of
    `ratio` tokens; a row also sees those of whole blocks up to its position, or of them those that
    its row of `chosen` numbers (-1: none).

    chosen without blocks: of its own keys a row sees those of the blocks of `ratio` tokens that its
    row of `chosen` numbers, and those behind the last whole block. each: there are such numbers for
    each KV head. running: the block that is not whole yet is chosen like the others.
    """

    reads = ("x", "chosen")
    state = True
    rows = RowDomain.ALL

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
        softcap=0.0,
        sinks=None,
        slopes=None,
        relative=None,
        most=0,
        blocks=None,
        ratio=0,
        chosen=None,
        each=False,
        running=False,
        **sight,
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
        unseen = _unseen(f, distance, **sight)
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
    rows = RowDomain.ALL

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
    rows = RowDomain.ALL

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
        shares = softmax(gates.swapaxes(1, 2)) if count else gates.swapaxes(1, 2)
        made = (rows.swapaxes(1, 2) * shares).sum(axis=2)
        if weight is not None:
            made = normed(made, "rms", weight, None, eps).astype(np.float64)
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
    rows = RowDomain.ALL

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
        q, keys = split_heads(f, x, weight.shape[1]), f.keys[layer][:, 0].astype(np.float64)
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
    rows = RowDomain.ALL

    @staticmethod
    def width(widths: Sequence[int], params: dict) -> int:
        return params["heads"] * params["most"]

    @staticmethod
    def meaning(f: Frame, *, x, heads, layer, ratio, most, local, out) -> None:
        q, keys = split_heads(f, x, heads), f.keys[layer][:, 0].astype(np.float64)
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
        y, table = split_heads(f, x, heads), f.slots[rope].copy()
        turned = table.shape[1]
        if back:
            table[:, turned // 2 :] *= -1
        part = slice(start, start + turned)
        y[..., part] = rotated(y[..., part], table, turned, style)
        f.slots[out] = y.reshape(len(y), -1).astype(np.float32)
